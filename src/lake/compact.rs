//! Rewriting files into fewer and better ones, beside the commits: the work has its own view of the files, and rows that
//! go meanwhile are marked in the new files when they are brought in. Changes no row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use roaring::RoaringBitmap;
use serde_json::{Map, json};

use super::commit::positions;
use super::data::{DataFile, Encoded, Packer, Reader};
use super::index::{FileIndex, Position, RowHasher, indexes, short};
use super::layout::Layout;
use super::log::{Outcome, now_millis};
use super::policy::{Aim, Limits, choose};
use super::storage::{Lake, blocking};
use super::table::Table;
use super::types::{conform, stored_schema};
use super::upkeep::Maintained;
use super::vector::VectorFile;
use crate::error::{Error, Result};

/// Rows that are encoded at once.
const CHUNK: usize = 8192;

/// A rewriting that has not begun.
pub(crate) struct Compaction {
    lake: Lake,
    location: String,
    stored: SchemaRef,
    /// The columns by which rows are known, if it is of use to know where they are.
    keys: Option<SchemaRef>,
    layout: Layout,
    limits: Limits,
    files: Vec<(u32, DataFile)>,
}

/// New files that are durable and not in the table yet.
pub(crate) struct Compacted {
    /// The files that were read, as they were.
    files: Vec<(u32, DataFile)>,
    added: Vec<DataFile>,
    /// Where the rows went, sorted by their old places.
    moved: Vec<(Position, Position)>,
    /// Where rows are in the new files, by their ordinal, if that was of use.
    indexes: BTreeMap<u32, FileIndex>,
    now: i64,
}

/// A row on its way: places in new files are counted from the first of them.
struct Moved {
    hash: u64,
    old: Position,
    new: Position,
}

impl Table {
    /// What should be rewritten together now, if anything.
    pub(crate) fn plan_compaction(&self, aim: Aim) -> Result<Option<Compaction>> {
        let limits = Limits::of(self.rewrites);
        let chosen = choose(&self.files, limits, aim);
        if chosen.is_empty() {
            return Ok(None);
        }
        let files: Vec<_> = chosen.iter().filter_map(|id| self.files.get(id).map(|file| (*id, file.clone()))).collect();
        let rows = usize::try_from(files.iter().map(|(_, file)| file.live()).sum::<u64>()).unwrap_or(usize::MAX);
        Ok(Some(Compaction {
            lake: self.lake.clone(),
            location: self.location.clone(),
            stored: Arc::clone(&self.stored),
            keys: self.notes(rows).then(|| stored_schema(&self.schema)).transpose()?,
            layout: self.layout.clone(),
            limits,
            files,
        }))
    }

    /// Rewrites all files that have a vector.
    pub(crate) async fn drop_vectors(&mut self) -> Result<()> {
        while let Some(work) = self.plan_compaction(Aim::NoVectors)? {
            self.bring_in(work.run().await?).await?;
        }
        Ok(())
    }

    /// Puts rewritten files in the place of the old ones, in one commit. If those are not in the table any more, nothing
    /// happens.
    pub(crate) async fn bring_in(&mut self, done: Compacted) -> Result<Maintained> {
        let Compacted { files, mut added, moved, mut indexes, now } = done;
        let mut old = Vec::with_capacity(files.len());
        let mut late: Vec<Position> = Vec::new();
        let mut intact = true;
        for (id, before) in &files {
            match self.files.get(id) {
                Some(file) if file.path == before.path => {
                    let gone = &*file.dead - &*before.dead;
                    late.extend(gone.into_iter().map(|row| Position { file: *id, row }));
                    old.push(file.clone());
                }
                _ => intact = false,
            }
        }
        // Rows that went meanwhile, by their new places.
        let places = late.iter().map(|old| placed(&moved, *old)).collect::<Option<Vec<_>>>();
        let Some(places) = places.filter(|_| intact) else {
            self.discard(&added).await;
            return Ok(Maintained::default());
        };
        let mut dead: BTreeMap<u32, RoaringBitmap> = BTreeMap::new();
        for place in places {
            dead.entry(place.file).or_default().insert(place.row);
        }
        let mut vectors = VectorFile::new();
        for (ordinal, file) in (0..).zip(&mut added) {
            if let Some(rows) = dead.remove(&ordinal) {
                let vector = vectors.push(&rows)?;
                *file = file.with_dead(rows, vector);
            }
        }
        let mut metrics = Map::new();
        for (key, count) in [
            ("numRemovedFiles", files.len() as u64),
            ("numAddedFiles", added.len() as u64),
            ("numRemovedBytes", old.iter().map(|x| x.size).sum()),
            ("numAddedBytes", added.iter().map(|x| x.size).sum()),
        ] {
            metrics.insert(key.into(), json!(count.to_string()));
        }
        let mut entry = self.entry("OPTIMIZE", Map::new(), metrics, now)?;
        old.iter().for_each(|file| entry.push(file.remove(false, now)));
        added.iter().filter(|x| x.live() > 0).for_each(|file| entry.push(file.add(false)));
        let writes = vectors.finish().map(|(name, bytes)| (format!("{}/{name}", self.location), bytes));
        let version = self.version + 1;
        let bytes = entry.bytes();
        match entry.create(&self.lake, &self.location, version, bytes, writes.into_iter().collect()).await? {
            Outcome::Committed => {}
            // Someone else wrote; what is left to do shows next time.
            Outcome::Rewritten | Outcome::Repeated | Outcome::Earlier => {
                self.discard(&added).await;
                self.reload().await?;
                return Ok(Maintained::default());
            }
        }
        let done = Maintained { rewritten: files.len(), written: added.len(), ..Maintained::default() };
        for (id, _) in files {
            self.remove_file(id);
        }
        for (ordinal, file) in (0..).zip(added) {
            if file.live() > 0 {
                if let Some(index) = indexes.remove(&ordinal) {
                    self.note(self.next_file, index);
                }
                self.files.insert(self.next_file, file);
            }
            self.next_file += 1;
        }
        self.committed(version);
        Ok(done)
    }

    /// Files that will never be in the table. What stays behind is removed with other orphans, in time.
    async fn discard(&self, files: &[DataFile]) {
        let paths = files.iter().map(|x| format!("{}/{}", self.location, x.path)).collect();
        if let Err(e) = self.lake.remove(paths).await {
            tracing::warn!(table = %self.name, "files that no one needs are left: {e}");
        }
    }
}

impl Compaction {
    /// Reads the files and writes the new ones. Costs as much as there is in them, in time and, where rows are sorted, in
    /// memory.
    pub(crate) async fn run(self) -> Result<Compacted> {
        let now = now_millis();
        let runtime = tokio::runtime::Handle::current();
        let (this, encoded, moved, indexes) = blocking(move || {
            let (encoded, rows) = self.rewrite(now, &runtime)?;
            let mut moved: Vec<(Position, Position)> = rows.iter().map(|x| (x.old, x.new)).collect();
            moved.sort_unstable();
            let known = self.keys.is_some().then(|| indexes(rows.into_iter().map(|x| (x.hash, x.new))));
            let known = known.into_iter().flatten().collect();
            Ok((self, encoded, moved, known))
        })
        .await?;
        let mut added = Vec::with_capacity(encoded.len());
        for Encoded { file, bytes } in encoded {
            let path = format!("{}/{}", this.location, file.path);
            if !this.lake.put_new(&path, bytes).await? {
                return Err(Error::internal(format!("the name {path} is taken")));
            }
            added.push(file);
        }
        Ok(Compacted { files: this.files, added, moved, indexes, now })
    }

    fn rewrite(&self, now: i64, runtime: &tokio::runtime::Handle) -> Result<(Vec<Encoded>, Vec<Moved>)> {
        let hasher = match &self.keys {
            Some(keys) => Some((RowHasher::new(keys)?, keys)),
            None => None,
        };
        let packer = |limit| Packer::new(&self.stored, &self.layout, limit, now);
        let mut plain = packer(self.limits.settled);
        let mut batches = Vec::new();
        // For each batch.
        let mut origins: Vec<Vec<(u64, Position)>> = Vec::new();
        for (id, file) in self.files.iter().filter(|x| x.1.live() > 0) {
            let mut reader = Reader::open(&self.lake, &self.location, file, &self.stored, runtime)?;
            while let Some(next) = reader.next_rows() {
                let (batch, rows) = next?;
                let hashes = match &hasher {
                    Some((hasher, keys)) => hasher.hash(&conform(&batch, keys)?)?.iter().map(short).collect(),
                    None => vec![0; rows.len()],
                };
                let places = rows.into_iter().map(|row| Position { file: *id, row });
                origins.push(hashes.into_iter().zip(places).collect());
                if self.layout.is_plain() {
                    plain.push(&batch)?;
                } else {
                    batches.push(batch);
                }
            }
        }
        let moved = |((hash, old), new)| Moved { hash, old, new };
        if self.layout.is_plain() {
            let rows = origins.into_iter().flatten().zip(positions(0, self.limits.settled));
            return Ok((plain.finish()?, rows.map(moved).collect()));
        }
        let (mut encoded, mut all) = (Vec::new(), Vec::new());
        let refs: Vec<_> = batches.iter().collect();
        for part in self.layout.arrange(&batches)? {
            let limit = if part.open { self.limits.open } else { self.limits.settled };
            let first = u32::try_from(encoded.len()).map_err(|_| Error::internal("too many files"))?;
            let origin = |(batch, row): &(usize, usize)| origins.get(*batch)?.get(*row).copied();
            all.extend(part.rows.iter().filter_map(origin).zip(positions(first, limit)).map(moved));
            let mut packer = packer(limit);
            for chunk in part.rows.chunks(CHUNK) {
                let rows = interleave_record_batch(&refs, chunk)
                    .map_err(|e| Error::internal("rows cannot be sorted").caused_by(e))?;
                packer.push(&rows)?;
            }
            encoded.extend(packer.finish()?);
        }
        Ok((encoded, all))
    }
}

/// Where a row went, in moves that are sorted by their old places.
fn placed(moved: &[(Position, Position)], old: Position) -> Option<Position> {
    let at = moved.binary_search_by_key(&old, |x| x.0).ok()?;
    moved.get(at).map(|x| x.1)
}
