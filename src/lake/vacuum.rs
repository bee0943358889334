//! Removing what no version needs that can still be read: data files, vectors, log entries, and what crashes left.

use std::collections::BTreeSet;

use deltalake::table::config::TablePropertiesExt;
use serde_json::Value;

use super::index_file;
use super::log::{entry_path, now_millis, parse};
use super::storage::{Lake, Stored};
use super::table::Table;
use super::vector::Descriptor;
use crate::error::{Error, Result};

/// How long what is old is kept, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// Files that are in the table no more, and files that never came to be in it.
    pub(crate) files: i64,
    /// Entries of the log; `None` keeps them all.
    pub(crate) log: Option<i64>,
}

impl Retention {
    /// Keeps nothing, not even what was written this millisecond.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Retention { files: -1000, log: Some(-1000) }
    }

    /// As the table's properties say, or Delta's defaults.
    pub(crate) fn of(properties: &impl TablePropertiesExt) -> Self {
        let millis = |x: std::time::Duration| i64::try_from(x.as_millis()).unwrap_or(i64::MAX);
        let log = properties.enable_expired_log_cleanup().then(|| millis(properties.log_retention_duration()));
        Retention { files: millis(properties.deleted_file_retention_duration()), log }
    }
}

/// A removal that has not begun.
pub(crate) struct Vacuum {
    lake: Lake,
    location: String,
    version: i64,
    /// This version and all later ones stay readable.
    keep: i64,
    /// Data files and vectors of the version.
    live: BTreeSet<String>,
    retention: Retention,
    now: i64,
}

impl Table {
    /// What is to be removed so that `keep` and all later versions stay readable.
    pub(crate) fn plan_vacuum(&self, keep: i64) -> Vacuum {
        let vectors = self.files.values().filter_map(|x| x.vector.as_ref()).map(Descriptor::file_name);
        Vacuum {
            lake: self.lake.clone(),
            location: self.location.clone(),
            version: self.version,
            keep: keep.min(self.version),
            live: self.files.values().map(|x| x.path.clone()).chain(vectors).collect(),
            retention: self.retention,
            now: now_millis(),
        }
    }
}

impl Vacuum {
    /// Removes; gives the number of files and their bytes.
    ///
    /// A file goes if it is older than the retention, the version does not have it, and no entry that is younger than the
    /// retention or than the version to keep took it out of the table. What was written after the plan was made is
    /// younger than any retention that is not zero, and with a retention of zero there is only one writer.
    pub(crate) async fn run(self) -> Result<(usize, u64)> {
        let log = format!("{}/_delta_log", self.location);
        let entries = self.lake.stored(&log).await?;
        let before = self.now.saturating_sub(self.retention.files);
        let mut old: Vec<Stored> = self.lake.stored(&self.location).await?;
        old.retain(|x| x.modified < before && is_data(&x.name) && !self.live.contains(&x.name));
        if !old.is_empty() {
            let needed = self.needed(&entries, before).await?;
            old.retain(|x| !needed.contains(&x.name));
        }
        let mut gone: Vec<(String, u64)> =
            old.iter().map(|x| (format!("{}/{}", self.location, x.name), x.size)).collect();
        gone.extend(self.old_entries(&entries).map(|x| (format!("{log}/{}", x.name), x.size)));
        gone.extend(self.old_indexes().await?);
        let result = (gone.len(), gone.iter().map(|x| x.1).sum());
        self.lake.remove(gone.into_iter().map(|x| x.0).collect()).await?;
        Ok(result)
    }

    /// Indexes of data files that the version does not have: only its writer reads them.
    async fn old_indexes(&self) -> Result<Vec<(String, u64)>> {
        let folder = index_file::folder(&self.lake, &self.location);
        let stored = self.lake.stored(&folder).await?;
        let old =
            stored.iter().filter(|x| !index_file::data_file(&x.name).is_some_and(|data| self.live.contains(data)));
        Ok(old.map(|x| (format!("{folder}/{}", x.name), x.size)).collect())
    }

    /// Files that were taken out of the table lately, or after the version to keep.
    async fn needed(&self, entries: &[Stored], before: i64) -> Result<BTreeSet<String>> {
        let mut needed = BTreeSet::new();
        for entry in entries {
            let Some(version) = entry_version(&entry.name) else { continue };
            if version > self.version || version <= self.keep && entry.modified < before {
                continue;
            }
            let path = entry_path(&self.location, version);
            let damaged = || Error::external("TABLE_NOT_READABLE", format!("cannot read {}", self.lake.display(&path)));
            let bytes = self.lake.get(&path).await?.ok_or_else(damaged)?;
            for action in parse(&bytes).map_err(|e| damaged().caused_by(e))? {
                let Some(remove) = action.get("remove") else { continue };
                needed.extend(remove.get("path").and_then(Value::as_str).map(str::to_owned));
                let vector = remove.get("deletionVector").filter(|x| !x.is_null());
                needed.extend(vector.and_then(Descriptor::from_json).map(|x| x.file_name()));
            }
        }
        Ok(needed)
    }

    /// Entries and checkpoints before the newest checkpoint from which the version to keep can be read; and temporary
    /// files that a crash left.
    fn old_entries<'a>(&self, entries: &'a [Stored]) -> impl Iterator<Item = &'a Stored> {
        let keep = self.keep;
        let base = entries.iter().filter_map(|x| checkpoint_version(&x.name)).filter(|x| *x <= keep).max();
        let before = self.retention.log.map_or(i64::MIN, |x| self.now.saturating_sub(x));
        let left = self.now.saturating_sub(self.retention.files);
        entries.iter().filter(move |x| {
            let version = entry_version(&x.name).or_else(|| checkpoint_version(&x.name));
            let behind = version.is_some_and(|version| base.is_some_and(|base| version < base));
            behind && x.modified < before || x.name.contains(".json#") && x.modified < left
        })
    }
}

/// Files in the table's folder that are data, and not someone else's.
fn is_data(name: &str) -> bool {
    name.ends_with(".parquet") && !name.starts_with(['_', '.'])
        || name.starts_with("deletion_vector_") && name.ends_with(".bin")
        || name.contains(".parquet#")
        || name.contains(".bin#")
}

fn entry_version(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// The version of a log checkpoint that is one file.
pub(crate) fn checkpoint_version(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(".checkpoint.parquet")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}
