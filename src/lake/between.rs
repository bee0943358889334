//! What changed in one of our tables between two versions, as rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::stream::BoxStream;
use roaring::RoaringBitmap;
use serde_json::Value;

use super::data::{DataFile, Reader, load_vectors};
use super::log::{entry_path, parse};
use super::scan::blocking_stream;
use super::table::Table;
use super::vector::Descriptor;
use crate::error::{Error, Result};

/// Rows with the change of their multiplicity, which is the same for all rows of a batch.
pub type ChangeStream = BoxStream<'static, Result<(RecordBatch, i64)>>;

/// Rows of a file, all but its dead ones, that came or went.
struct Piece {
    file: DataFile,
    diff: i64,
}

impl Table {
    /// The rows by which version `to` differs from version `from`, in the table's [`schema`](Table::schema): commit by
    /// commit, so that a row may come and go again. Commits that only move rows to other files change nothing.
    ///
    /// Costs the log entries in between and the files that they touch.
    ///
    /// # Errors
    /// `TABLE_VERSION_GONE` (external) if the log no longer has an entry in between. Items: external, naming the file
    /// that cannot be read.
    pub async fn changes(&self, from: i64, to: i64) -> Result<ChangeStream> {
        let mut pieces = Vec::new();
        for version in from.saturating_add(1)..=to {
            pieces.extend(self.pieces(version).await?);
        }
        let (lake, location, schema) = (self.lake.clone(), self.location.clone(), Arc::clone(&self.schema));
        Ok(blocking_stream(move |send| {
            let runtime = tokio::runtime::Handle::current();
            for Piece { file, diff } in pieces {
                let mut reader = match Reader::open(&lake, &location, &file, &schema, &runtime) {
                    Ok(reader) => reader,
                    Err(e) => {
                        send(Err(e));
                        return;
                    }
                };
                while let Some(next) = reader.next_rows() {
                    let failed = next.is_err();
                    if !send(next.map(|(rows, _)| (rows, diff))) || failed {
                        return;
                    }
                }
            }
        }))
    }

    /// What one commit did.
    async fn pieces(&self, version: i64) -> Result<Vec<Piece>> {
        let path = entry_path(&self.location, version);
        let bytes = self.lake.get(&path).await?.ok_or_else(|| {
            Error::external("TABLE_VERSION_GONE", format!("{} is no longer there", self.lake.display(&path)))
        })?;
        let unreadable = |why: &str| {
            Error::external("TABLE_NOT_READABLE", format!("cannot read {}: {why}", self.lake.display(&path)))
        };
        let mut files: BTreeMap<String, [Option<DataFile>; 2]> = BTreeMap::new();
        for action in parse(&bytes).map_err(|e| unreadable(&e.to_string()))? {
            for (side, kind) in ["remove", "add"].into_iter().enumerate() {
                let Some(action) = action.get(kind) else { continue };
                if action.get("dataChange") == Some(&Value::Bool(false)) {
                    continue;
                }
                let mut file = [file_of(action).ok_or_else(|| unreadable("an action is not understood"))??];
                load_vectors(&self.lake, &self.location, &mut file).await?;
                let [file] = file;
                if let Some(slot) = files.entry(file.path.clone()).or_default().get_mut(side) {
                    *slot = Some(file);
                }
            }
        }
        let mut pieces = Vec::new();
        for sides in files.into_values() {
            match sides {
                [Some(gone), None] => pieces.push(Piece { file: gone, diff: -1 }),
                [None, Some(new)] => pieces.push(Piece { file: new, diff: 1 }),
                [Some(old), Some(new)] => {
                    let rows = u32::try_from(new.rows).map_err(|_| unreadable("a file has too many rows"))?;
                    for (only, diff) in [(&*new.dead - &*old.dead, -1), (&*old.dead - &*new.dead, 1)] {
                        if !only.is_empty() {
                            let mut others = RoaringBitmap::new();
                            others.insert_range(0..rows);
                            others -= only;
                            let file = DataFile { dead: Arc::new(others), ..new.clone() };
                            pieces.push(Piece { file, diff });
                        }
                    }
                }
                [None, None] => {}
            }
        }
        Ok(pieces)
    }
}

/// The file of an `add` or a `remove`. The latter does not say how many rows there are.
fn file_of(action: &Value) -> Option<Result<DataFile>> {
    let path = action.get("path")?.as_str()?.to_owned();
    let number = |from: &Value, name: &str| from.get(name).and_then(Value::as_i64);
    let vector = match action.get("deletionVector") {
        None | Some(Value::Null) => None,
        Some(vector) => {
            let (kind, place) = (vector.get("storageType")?.as_str()?, vector.get("pathOrInlineDv")?.as_str()?);
            let offset = number(vector, "offset").and_then(|x| i32::try_from(x).ok());
            let size = i32::try_from(number(vector, "sizeInBytes")?).ok()?;
            match Descriptor::from_parts(kind, place, offset, size, number(vector, "cardinality")?) {
                Ok(vector) => Some(vector),
                Err(error) => return Some(Err(error)),
            }
        }
    };
    let stats = action.get("stats").and_then(Value::as_str).unwrap_or_default().to_owned();
    let counted = serde_json::from_str::<Value>(&stats).ok();
    let rows = counted.and_then(|stats| stats.get("numRecords")?.as_u64()).unwrap_or(0);
    Some(Ok(DataFile {
        path,
        size: action.get("size").and_then(Value::as_u64).unwrap_or(0),
        rows,
        modified: number(action, "modificationTime").unwrap_or(0),
        stats,
        vector,
        dead: Arc::default(),
        open: false,
    }))
}
