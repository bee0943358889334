//! One entry of a table's log: which files it adds and removes, and what that means for rows.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What one commit did to the rows of a table. Commits that only move rows to other files did nothing.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The version that it made.
    pub version: i64,
    /// When, in microseconds since 1970: the in-commit timestamp, else what the writer noted.
    pub timestamp: Option<i64>,
    pub(super) adds: Vec<Map<String, Value>>,
    pub(super) removes: Vec<Map<String, Value>>,
    pub(super) changes: Vec<Map<String, Value>>,
    metadata: Option<Map<String, Value>>,
}

impl Entry {
    pub(super) fn parse(version: i64, bytes: &[u8]) -> Result<Entry, serde_json::Error> {
        let mut entry = Entry { version, ..Entry::default() };
        let (mut adds, mut removes) = (BTreeMap::new(), BTreeMap::new());
        for line in serde_json::Deserializer::from_slice(bytes).into_iter::<Map<String, Value>>() {
            for (kind, action) in line? {
                let Value::Object(action) = action else { continue };
                let changes_rows = action.get("dataChange").and_then(Value::as_bool).unwrap_or(true);
                let path = action.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
                match kind.as_str() {
                    "add" if changes_rows => {
                        adds.insert(path, action);
                    }
                    "remove" if changes_rows => {
                        removes.insert(path, action);
                    }
                    "cdc" => entry.changes.push(action),
                    "metaData" => entry.metadata = Some(action),
                    "commitInfo" => {
                        let millis =
                            ["inCommitTimestamp", "timestamp"].iter().find_map(|key| action.get(*key)?.as_i64());
                        entry.timestamp = millis.and_then(|x| x.checked_mul(1000));
                    }
                    _ => {}
                }
            }
        }
        entry.adds = adds.into_values().collect();
        entry.removes = removes.into_values().collect();
        Ok(entry)
    }

    /// Whether rows that were there before are changed or removed.
    pub fn rewrites(&self) -> bool {
        !self.removes.is_empty()
    }

    /// Whether any row comes or goes.
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.removes.is_empty() && self.changes.is_empty()
    }

    /// Whether the writer noted the changed rows themselves.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Files that have to be read for its rows, and their bytes.
    pub fn size(&self) -> (u64, u64) {
        let files = if self.has_changes() { self.changes.iter() } else { self.adds.iter() };
        let removes = if self.has_changes() { [].iter() } else { self.removes.iter() };
        files.chain(removes).fold((0, 0), |(files, bytes), action| {
            (files + 1, bytes + action.get("size").and_then(Value::as_u64).unwrap_or(0))
        })
    }

    /// The schema that it sets, as JSON.
    pub(super) fn schema(&self) -> Option<&str> {
        self.metadata.as_ref()?.get("schemaString")?.as_str()
    }
}
