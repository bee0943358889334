//! What one commit writes for a difference: new data files, and for the files in which rows go either vectors or new
//! files in their place.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use roaring::RoaringBitmap;
use serde_json::Value;

use super::data::{DataFile, Encoded, Packer, Reader};
use super::difference::Difference;
use super::index::{FileIndex, RowHash, RowHasher, short};
use super::policy::Limits;
use super::storage::blocking;
use super::table::Table;
use super::types::{conform, stored_schema};
use super::vector::VectorFile;
use crate::error::{Error, Result};

/// A commit's files and actions.
#[derive(Default)]
pub(crate) struct Change {
    /// The log's actions.
    pub(crate) actions: Vec<Value>,
    /// Files to write: where, and what.
    pub(crate) writes: Vec<(String, Vec<u8>)>,
    /// New data files.
    pub(crate) added: Vec<DataFile>,
    /// Files as they are afterwards, or gone.
    pub(crate) touched: Vec<(u32, Option<DataFile>)>,
    /// Rows that stay but stand in the new files, before the inserted ones and in this order.
    pub(crate) kept: Vec<RowHash>,
    /// Where rows are in the new files, by their ordinal, if that was made beside the writing.
    pub(crate) indexes: BTreeMap<u32, FileIndex>,
}

/// What becomes of the rows of a commit.
struct Written {
    files: Vec<Encoded>,
    kept: Vec<RowHash>,
    indexes: BTreeMap<u32, FileIndex>,
}

impl Change {
    fn add(&mut self, location: &str, encoded: Vec<Encoded>) {
        for Encoded { file, bytes } in encoded {
            self.writes.push((format!("{location}/{}", file.path), bytes));
            self.added.push(file);
        }
        self.actions.extend(self.added.iter().map(|x| x.add(true)));
    }
}

impl Table {
    /// Takes rows out of files and puts new ones in.
    pub(crate) async fn change(
        &self,
        gone: BTreeMap<u32, RoaringBitmap>,
        difference: &Arc<Difference>,
        now: i64,
    ) -> Result<Change> {
        let missing = || Error::internal("a row in a file that is not in the table");
        let gone = gone.into_iter().map(|(id, rows)| Ok((id, self.files.get(&id).ok_or_else(missing)?, rows)));
        let gone = gone.collect::<Result<Vec<_>>>()?;
        let mut change = Change::default();
        change.actions.extend(gone.iter().map(|(_, file, _)| file.remove(true, now)));
        let mut vectors = VectorFile::new();
        let mut rewritten: Vec<DataFile> = Vec::new();
        for (id, file, rows) in gone {
            let dead = &*file.dead | rows;
            if dead.len() == file.rows {
                change.touched.push((id, None));
            } else if self.rewrites {
                rewritten.push(DataFile { dead: Arc::new(dead), ..file.clone() });
                change.touched.push((id, None));
            } else {
                let vector = vectors.push(&dead)?;
                let file = file.with_dead(dead, vector);
                change.actions.push(file.add(true));
                change.touched.push((id, Some(file)));
            }
        }
        let written = self.encode(rewritten, difference, now).await?;
        (change.kept, change.indexes) = (written.kept, written.indexes);
        change.add(&self.location, written.files);
        change.writes.extend(vectors.finish().map(|(name, bytes)| (format!("{}/{name}", self.location), bytes)));
        Ok(change)
    }

    /// Takes all files out, and puts new rows in under another definition.
    pub(crate) async fn replace(&self, definition: &[Value], difference: &Arc<Difference>, now: i64) -> Result<Change> {
        let mut change = Change { actions: definition.to_vec(), ..Change::default() };
        change.actions.extend(self.files.values().map(|file| file.remove(true, now)));
        change.touched.extend(self.files.keys().map(|id| (*id, None)));
        let written = self.encode(Vec::new(), difference, now).await?;
        change.indexes = written.indexes;
        change.add(&self.location, written.files);
        Ok(change)
    }

    /// New files with what is left in some files, and the inserted rows.
    async fn encode(&self, left: Vec<DataFile>, difference: &Arc<Difference>, now: i64) -> Result<Written> {
        let rows = difference.inserts.iter().map(RecordBatch::num_rows).sum();
        let limit = Limits::of(self.rewrites).settled;
        // On a thread of its own: encoding takes longer.
        let notes = difference.hashes.is_none() && left.is_empty() && self.notes(rows);
        let (lake, location) = (self.lake.clone(), self.location.clone());
        let (stored, keys) = (Arc::clone(&self.stored), stored_schema(&self.schema)?);
        let mut packer = Packer::new(&self.stored, &self.layout, limit, now);
        let difference = Arc::clone(difference);
        let runtime = tokio::runtime::Handle::current();
        blocking(move || {
            let mut kept = Vec::new();
            let hasher = RowHasher::new(&keys)?;
            for file in &left {
                let mut reader = Reader::open(&lake, &location, file, &stored, &runtime)?;
                while let Some(next) = reader.next_rows() {
                    let (batch, _) = next?;
                    packer.push(&batch)?;
                    kept.extend(hasher.hash(&conform(&batch, &keys)?)?);
                }
            }
            let inserts = &difference.inserts;
            let hash = || indexed(inserts, &hasher, limit);
            let encode = move || {
                for batch in inserts {
                    packer.push(&conform(batch, &stored)?)?;
                }
                packer.finish()
            };
            let (files, indexes) = std::thread::scope(|scope| {
                let indexes = notes.then(|| scope.spawn(hash));
                (encode(), indexes.map(std::thread::ScopedJoinHandle::join))
            });
            let panicked = |_| Error::internal("hashing rows panicked");
            let indexes = indexes.transpose().map_err(panicked)?.transpose()?.unwrap_or_default();
            Ok(Written { files: files?, kept, indexes })
        })
        .await
    }
}

/// Where rows are in files of at most `limit` rows, by the ordinal of the file.
fn indexed(batches: &[RecordBatch], hasher: &RowHasher, limit: usize) -> Result<BTreeMap<u32, FileIndex>> {
    let mut indexes = BTreeMap::new();
    let mut rows: Vec<(u64, u32)> = Vec::new();
    let (mut file, mut row) = (0, 0);
    for batch in batches {
        for hash in hasher.hash(batch)? {
            rows.push((short(&hash), row));
            row += 1;
            if row as usize == limit {
                indexes.insert(file, FileIndex::new(std::mem::take(&mut rows)));
                (file, row) = (file + 1, 0);
            }
        }
    }
    if !rows.is_empty() {
        indexes.insert(file, FileIndex::new(rows));
    }
    Ok(indexes)
}
