//! Keeping a table quick to read: small files and files with many dead rows become few whole ones, and the log gets
//! checkpoints. Neither changes a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use deltalake::checkpoints::create_checkpoint;
use serde_json::{Map, json};

use super::commit::positions;
use super::data::{DataFile, FILE_ROWS, Packer, Reader};
use super::index::{Position, RowHash, RowHasher};
use super::log::{Outcome, now_millis};
use super::storage::blocking;
use super::table::Table;
use super::types::{conform, stored_schema};
use crate::error::{Error, Result};

/// Commits between two checkpoints of the log.
pub(crate) const CHECKPOINT_INTERVAL: i64 = 100;
/// Files below a size are merged when there are so many of them above the size before it.
const LEVELS: [(u64, usize); 3] = [(256 << 10, 32), (4 << 20, 32), (64 << 20, 8)];
/// Files with a vector that readers stand without trouble, with room to spare.
const VECTORS: usize = 150;
/// A larger vector is worth the rewriting of its file.
const VECTOR_BYTES: u32 = 64 << 10;
/// Bytes that are rewritten at once.
const BATCH_BYTES: u64 = 256 << 20;

/// What maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Files that were rewritten.
    pub rewritten: usize,
    /// Files that took their place.
    pub written: usize,
    /// Whether the log got a checkpoint.
    pub checkpoint: bool,
}

impl Table {
    /// Rewrites small and thinned-out files if there are too many, and writes a log checkpoint if one is due. Changes
    /// no row and not the epoch; the commit says `dataChange: false`. To be called between commits, best after the
    /// epoch has been reported complete.
    ///
    /// Costs nothing most of the time, and the rewriting of a bounded number of bytes when there is something to do.
    ///
    /// # Errors
    /// As [`Table::commit`]. A log checkpoint that cannot be written is only a warning.
    pub async fn maintain(&mut self) -> Result<Maintained> {
        let name = self.name.clone();
        let mut done = self.compact().await.map_err(|e| e.dataset(name))?;
        if self.version >= self.checkpoint + CHECKPOINT_INTERVAL {
            match self.write_checkpoint().await {
                Ok(()) => done.checkpoint = true,
                Err(e) => tracing::warn!(table = %self.name, "no log checkpoint: {e}"),
            }
            // The next attempt is one interval away, also after a failure.
            self.checkpoint = self.version - self.version % CHECKPOINT_INTERVAL;
        }
        Ok(done)
    }

    async fn compact(&mut self) -> Result<Maintained> {
        let chosen = choose(&self.files);
        if chosen.is_empty() {
            return Ok(Maintained::default());
        }
        let now = now_millis();
        let files: Vec<(u32, DataFile)> =
            chosen.iter().filter_map(|id| self.files.get(id).map(|file| (*id, file.clone()))).collect();
        let (lake, location, stored) = (self.lake.clone(), self.location.clone(), Arc::clone(&self.stored));
        let keys = match &self.index {
            Some(_) => Some(stored_schema(&self.schema)?),
            None => None,
        };
        let runtime = tokio::runtime::Handle::current();
        let work = files.clone();
        let (moved, encoded) = blocking(move || {
            let mut packer = Packer::new(&stored, now);
            let mut moved: Vec<(RowHash, Position)> = Vec::new();
            let hasher = match &keys {
                Some(keys) => Some((RowHasher::new(keys)?, keys)),
                None => None,
            };
            for (id, file) in work.iter().filter(|x| x.1.live() > 0) {
                let mut reader = Reader::open(&lake, &location, file, &stored, &runtime)?;
                while let Some(next) = reader.next_rows() {
                    let (batch, rows) = next?;
                    packer.push(&batch)?;
                    if let Some((hasher, keys)) = &hasher {
                        let hashes = hasher.hash(&conform(&batch, keys)?)?;
                        moved.extend(
                            hashes.into_iter().zip(rows).map(|(hash, row)| (hash, Position { file: *id, row })),
                        );
                    }
                }
            }
            Ok((moved, packer.finish()?))
        })
        .await?;

        let mut metrics = Map::new();
        metrics.insert("numRemovedFiles".into(), json!(files.len().to_string()));
        metrics.insert("numAddedFiles".into(), json!(encoded.len().to_string()));
        let mut entry = self.entry("OPTIMIZE", Map::new(), metrics, now)?;
        files.iter().for_each(|(_, file)| entry.push(file.remove(false, now)));
        encoded.iter().for_each(|x| entry.push(x.file.add(false)));
        let mut writes = Vec::new();
        let mut added = Vec::new();
        for part in encoded {
            writes.push((format!("{}/{}", self.location, part.file.path), part.bytes));
            added.push(part.file);
        }
        let version = self.version + 1;
        match entry.create(&self.lake, &self.location, version, entry.bytes(), writes).await? {
            Outcome::Committed => {}
            // Someone else rewrote files; what is left to do shows next time.
            Outcome::Rewritten | Outcome::Repeated | Outcome::Earlier => {
                self.reload().await?;
                return Ok(Maintained::default());
            }
        }
        let done = Maintained { rewritten: files.len(), written: added.len(), checkpoint: false };
        if let Some(mut index) = self.index.take() {
            let all = moved.into_iter().zip(positions(self.next_file)).all(|((hash, old), new)| {
                let known = index.remove(hash, old);
                index.insert(hash, new);
                known
            });
            // Otherwise it is built anew when it is needed.
            self.index = all.then_some(index);
        }
        for (id, _) in files {
            self.files.remove(&id);
        }
        for file in added {
            self.files.insert(self.next_file, file);
            self.next_file += 1;
        }
        self.committed(version);
        Ok(done)
    }

    async fn write_checkpoint(&self) -> Result<()> {
        let failed = |e: deltalake::DeltaTableError| {
            Error::external("STORAGE_FAILED", "cannot write a log checkpoint").caused_by(e)
        };
        let delta = self
            .lake
            .load_delta(&self.location, Some(self.version))
            .await?
            .ok_or_else(|| Error::external("STORAGE_FAILED", format!("the table {} vanished", self.location())))?;
        create_checkpoint(&delta, None).await.map_err(failed)
    }
}

/// The files that should be rewritten together; none if the table is fine.
fn choose(files: &BTreeMap<u32, DataFile>) -> BTreeSet<u32> {
    let mut chosen = BTreeSet::new();
    let mut budget = BATCH_BYTES;
    let mut take = |id: u32, file: &DataFile, chosen: &mut BTreeSet<u32>| {
        if !chosen.contains(&id) && (file.size <= budget || chosen.is_empty()) {
            budget = budget.saturating_sub(file.size);
            chosen.insert(id);
        }
    };
    let mut lower = 0;
    for (size, count) in LEVELS {
        let small: Vec<_> = files.iter().filter(|(_, x)| x.size < size && x.live() < FILE_ROWS as u64 / 2).collect();
        if small.iter().filter(|(_, x)| x.size >= lower).count() >= count {
            small.into_iter().for_each(|(id, x)| take(*id, x, &mut chosen));
        }
        lower = size;
    }
    let thin = |x: &DataFile| {
        let worn = x.dead.len() * 10 > x.rows || x.vector.as_ref().is_some_and(|v| v.size > VECTOR_BYTES);
        worn && x.size >= LEVELS[1].0
    };
    files.iter().filter(|(_, x)| thin(x)).for_each(|(id, x)| take(*id, x, &mut chosen));
    let mut vectors: Vec<_> = files.iter().filter(|(id, x)| x.vector.is_some() && !chosen.contains(id)).collect();
    if vectors.len() > VECTORS {
        // The thinnest first: they cost the least to rewrite and give the most.
        vectors.sort_by_key(|(_, x)| x.dead.len().saturating_mul(1_000_000) / x.rows.max(1));
        let excess = vectors.len() - VECTORS / 2;
        vectors.iter().rev().take(excess).for_each(|(id, x)| take(**id, x, &mut chosen));
    }
    chosen
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use roaring::RoaringBitmap;
    use uuid::Uuid;

    use super::*;
    use crate::lake::vector::Descriptor;

    fn file(size: u64, rows: u64, dead: u32) -> DataFile {
        let vector =
            (dead > 0).then(|| Descriptor { file: Uuid::nil(), offset: 1, size: 100, cardinality: dead.into() });
        let dead = Arc::new((0..dead).collect::<RoaringBitmap>());
        DataFile { path: String::new(), size, rows, modified: 0, stats: String::new(), vector, dead }
    }

    fn table(files: impl IntoIterator<Item = DataFile>) -> BTreeMap<u32, DataFile> {
        (0..).zip(files).collect()
    }

    #[test]
    fn a_table_in_order_is_left_alone() {
        assert!(choose(&table([])).is_empty());
        assert!(choose(&table((0..31).map(|_| file(1000, 10, 1)))).is_empty());
        assert!(choose(&table((0..140).map(|_| file(65 << 20, 900_000, 1)))).is_empty());
    }

    #[test]
    fn small_files_merge_when_they_are_many() {
        let mut files: Vec<_> = (0..32).map(|_| file(1000, 10, 0)).collect();
        files.push(file(10 << 20, 100_000, 0));
        assert_eq!(choose(&table(files)).len(), 32);
    }

    #[test]
    fn a_large_file_is_rewritten_when_a_tenth_of_it_is_gone() {
        let files = table([file(30 << 20, 100_000, 10_000), file(30 << 20, 100_000, 10_001), file(1000, 2, 1)]);
        assert_eq!(choose(&files), BTreeSet::from([1]));
    }

    #[test]
    fn files_with_a_vector_never_exceed_the_cap_and_the_bytes_at_once_are_bounded() {
        let files = table((0..190u32).map(|i| file(5 << 20, 600_000, 1 + i)));
        let chosen = choose(&files);
        let left = files.iter().filter(|(id, x)| !chosen.contains(id) && x.vector.is_some()).count();
        assert!(left <= VECTORS, "{left}");
        let large = table((0..300).map(|i| file(40 << 20, 900_000, 1 + i)));
        let bytes: u64 = choose(&large).iter().map(|id| large.get(id).unwrap().size).sum();
        assert!(bytes > 0 && bytes <= BATCH_BYTES);
    }
}
