//! Applying an epoch's changes to a table: exactly the difference, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use roaring::RoaringBitmap;
use serde_json::{Map, Value, json};

use super::change::Change;
use super::difference::Difference;
use super::index::{Position, indexes, short};
use super::log::{Outcome, now_millis};
use super::policy::Limits;
use super::storage::blocking;
use super::table::Table;
use crate::error::{Error, Result};

/// How often a commit begins again after another writer moved rows to other files.
pub(crate) const ATTEMPTS: usize = 5;

/// The changes of one epoch to one table.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The epoch. Epochs of a table rise.
    pub epoch: u64,
    /// Rows that come, a multiset, in the table's schema.
    pub inserts: Vec<RecordBatch>,
    /// Rows that go, a multiset of whole rows, in the table's schema.
    pub deletes: Vec<RecordBatch>,
    /// Numbers to be kept with the commit, beside its own.
    pub metrics: BTreeMap<String, u64>,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Committed {
    /// Delta version of the commit.
    pub version: i64,
    /// Rows that came.
    pub inserted: u64,
    /// Rows that went.
    pub deleted: u64,
    /// Bytes written: data, vectors and log.
    pub bytes: u64,
}

impl Table {
    /// Applies the changes of an epoch: equal rows in inserts and deletes cancel, new rows become a data file, deleted
    /// ones a bit in a deletion vector, and one entry of the log holds both with the epoch. When it returns, everything
    /// is durable. `None` if there is no difference, or if the table is already at the epoch or past it.
    ///
    /// In a table with the property `silverflow.sink` = `rewrite` the files in which rows go are rewritten instead.
    ///
    /// Costs what changes. From the first delete on 12 bytes are held for each row; of a large file they are stored, when
    /// it is written or has been read to learn them.
    ///
    /// # Errors
    /// `TABLE_CHANGED_OUTSIDE` (external) if another writer changed the table; `FENCED` (external) if a run of a greater
    /// generation has taken it over, after which no commit of this one can succeed; internal if a row to delete is not
    /// there; external errors of the storage. After an error the commit can be tried again: if it did reach the log after
    /// all, that is noticed and nothing is committed twice.
    pub async fn commit(&mut self, commit: Commit) -> Result<Option<Committed>> {
        let epoch = commit.epoch;
        let name = self.name.clone();
        self.commit_epoch(commit).await.map_err(|e| e.dataset(name).epoch(epoch))
    }

    async fn commit_epoch(&mut self, commit: Commit) -> Result<Option<Committed>> {
        self.claim(self.writer.generation)?;
        if self.epoch.is_some_and(|x| x >= commit.epoch) {
            return Ok(None);
        }
        let rows = |batches: &[RecordBatch]| batches.iter().any(|x| x.num_rows() > 0);
        let (any_inserts, any_deletes) = (rows(&commit.inserts), rows(&commit.deletes));
        if self.replacement.is_some() && any_deletes {
            return Err(Error::internal("rows cannot go one by one from a table that is replaced"));
        }
        if !any_inserts && !any_deletes && self.replacement.is_none() {
            return Ok(None);
        }
        if any_deletes {
            self.learn().await?;
        }
        let schema = Arc::clone(&self.schema);
        let hashed = any_deletes || self.index.is_some();
        let Commit { epoch, inserts, deletes, metrics } = commit;
        let difference = blocking(move || Difference::of(&inserts, &deletes, &schema, hashed)).await?;
        if difference.is_empty() && self.replacement.is_none() {
            return Ok(None);
        }
        let difference = Arc::new(difference);
        for _ in 0..ATTEMPTS {
            if let Some(done) = self.try_commit(epoch, &difference, &metrics).await? {
                return Ok(Some(done));
            }
            self.reload().await?;
            if self.epoch.is_some_and(|x| x >= epoch) {
                return Ok(None);
            }
            if !difference.deletes.is_empty() {
                self.learn().await?;
            }
        }
        Err(Error::external(
            "TABLE_CHANGED_OUTSIDE",
            format!("the table {} is rewritten again and again", self.location()),
        ))
    }

    /// One attempt on the version that is known; `None` if another entry came first: one that changed no rows, or the
    /// epoch itself.
    async fn try_commit(
        &mut self,
        epoch: u64,
        difference: &Arc<Difference>,
        metrics: &BTreeMap<String, u64>,
    ) -> Result<Option<Committed>> {
        let now = now_millis();
        let found = self.locate(difference).await?;
        let Change { actions, writes, added, touched, kept, indexes: noted } = match &self.replacement {
            Some(definition) => self.replace(definition, difference, now).await?,
            None => self.change(by_file(&found), difference, now).await?,
        };
        let inserted: u64 = difference.inserts.iter().map(|x| x.num_rows() as u64).sum();
        let deleted = if self.replacement.is_some() { self.rows() } else { found.len() as u64 };
        let written: usize = writes.iter().map(|x| x.1.len()).sum();
        let mut numbers: Map<String, Value> = Map::new();
        let removed = touched.iter().filter(|x| x.1.is_none()).count();
        for (key, value) in [
            ("numOutputRows", inserted),
            ("numDeletedRows", deleted),
            ("numAddedFiles", added.len() as u64),
            ("numRemovedFiles", removed as u64),
            ("numDeletionVectorsAdded", (touched.len() - removed) as u64),
            ("numOutputBytes", written as u64),
        ] {
            numbers.insert(key.into(), json!(value.to_string()));
        }
        numbers.extend(metrics.iter().map(|(key, value)| (key.clone(), json!(value.to_string()))));
        let parameters: Map<String, Value> = [
            ("outputMode", json!("Update")),
            ("queryId", json!(self.writer.app_id)),
            ("epochId", json!(epoch.to_string())),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let mut entry = self.entry("STREAMING UPDATE", parameters, numbers, now)?;
        entry.epoch(epoch, now)?;
        actions.into_iter().for_each(|x| entry.push(x));

        let version = self.version + 1;
        let bytes = entry.bytes();
        let total = (written + bytes.len()) as u64;
        let paths = writes.iter().map(|x| x.0.clone()).collect();
        match entry.create(&self.lake, &self.location, version, bytes, writes).await? {
            Outcome::Committed => {}
            Outcome::Rewritten | Outcome::Repeated => {
                // No entry has these files. What stays behind is removed with other orphans, in time.
                self.lake.remove(paths).await.ok();
                return Ok(None);
            }
            Outcome::Earlier => {
                return Err(Error::external(
                    "TABLE_CHANGED_OUTSIDE",
                    format!("another run writes the table {}", self.location()),
                )
                .help("let one run at a time write to a storage, then run again"));
            }
        }

        for (id, file) in touched {
            match file {
                Some(file) => self.files.insert(id, file),
                None => self.remove_file(id),
            };
        }
        let first = self.next_file;
        for file in added {
            self.files.insert(self.next_file, file);
            self.next_file += 1;
        }
        // Without hashes the files are read when a row is to go.
        if let Some(hashes) = difference.hashes.as_ref().filter(|_| self.index.is_some()) {
            let hashes = kept.iter().chain(hashes).map(short);
            let rows = hashes.zip(positions(first, Limits::of(self.rewrites).settled));
            indexes(rows).for_each(|(id, index)| self.note(id, index));
        }
        noted.into_iter().for_each(|(ordinal, index)| self.note(first + ordinal, index));
        self.committed(version);
        self.replacement = None;
        self.epoch = Some(epoch);
        Ok(Some(Committed { version, inserted, deleted, bytes: total }))
    }
}

/// Positions of rows that are written one after the other into files of at most `limit` rows, beginning with a file.
pub(crate) fn positions(first: u32, limit: usize) -> impl Iterator<Item = Position> {
    (first..).flat_map(move |file| (0..u32::try_from(limit).unwrap_or(u32::MAX)).map(move |row| Position { file, row }))
}

fn by_file(gone: &[Position]) -> BTreeMap<u32, RoaringBitmap> {
    let mut files: BTreeMap<u32, RoaringBitmap> = BTreeMap::new();
    for position in gone {
        files.entry(position.file).or_default().insert(position.row);
    }
    files
}
