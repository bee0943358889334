//! Delta tables of others as a source: their rows at a version, and what later versions changed.

mod feed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, Result};
use crate::lake::external::{Entry, ExternalTable, Head, Piece};
use crate::lake::types::position;
use crate::lake::{Lake, RowStream};
use crate::pipeline::{ReadMode, ReadTable, StartAt};

pub use feed::{CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION};

/// A Delta table outside the pipeline.
#[derive(Clone, Debug)]
pub struct DeltaSource {
    table: ExternalTable,
    read: ReadTable,
    head: Head,
    schema: SchemaRef,
}

/// Where a source begins that nothing has been read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// With all rows that are there.
    Rows,
    /// With what is changed after a version.
    After(i64),
    /// Not yet: there is no version that is new enough.
    NotYet,
}

impl DeltaSource {
    /// Opens the table at a path or URL. Its schema is the one of the newest version, and stays that; a change feed has
    /// `_change_type`, `_commit_version` and `_commit_timestamp` behind it. Costs one reading of the log.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND`, `SOURCE_NOT_READABLE` (external), naming the table; `UNSUPPORTED_STORAGE`,
    /// `UNSUPPORTED_DATA_TYPE`, `UNKNOWN_COLUMN` for a key, `RESERVED_COLUMN` (user).
    pub async fn open(location: &str, read: &ReadTable) -> Result<DeltaSource> {
        DeltaSource::of(ExternalTable::open(location).await?, read).await
    }

    /// Opens the table at a location in a lake.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn in_lake(lake: &Lake, location: &str, read: &ReadTable) -> Result<DeltaSource> {
        DeltaSource::of(ExternalTable::in_lake(lake, location), read).await
    }

    async fn of(table: ExternalTable, read: &ReadTable) -> Result<DeltaSource> {
        let head = table.head().await?;
        let schema = match &read.mode {
            ReadMode::ChangeFeed { keys, .. } => feed::schema(&head.schema, keys, &table.location())?,
            _ => Arc::clone(&head.schema),
        };
        Ok(DeltaSource { table, read: read.clone(), head, schema })
    }

    /// Whether the table at a path or URL has a version after this one. Costs one look at one name. A table that was made
    /// anew shows only when it is opened.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn goes_on(location: &str, version: i64) -> Result<bool> {
        ExternalTable::open(location).await?.has(version.saturating_add(1)).await
    }

    /// Path or URL, for people.
    pub fn location(&self) -> String {
        self.table.location()
    }

    /// The rows' schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The newest version when the source was opened.
    pub fn version(&self) -> i64 {
        self.head.version
    }

    /// The table's own id: one that was dropped and made again has another.
    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// The error for a table that is another one than before, under the same name.
    pub fn recreated(&self) -> Error {
        Error::external(
            "SOURCE_RECREATED",
            format!("the Delta table {} was made anew since it was last read", self.location()),
        )
        .help("a full refresh of what it feeds reads the new table from its beginning")
    }

    /// Where reading begins.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn first(&self) -> Result<First> {
        Ok(match self.read.start {
            None => First::Rows,
            Some(StartAt::Latest) => First::After(self.version()),
            Some(StartAt::Version(version)) if version > self.version() => First::NotYet,
            Some(StartAt::Version(version)) => First::After(version - 1),
            Some(StartAt::Timestamp(micros)) => {
                let versions = self.table.versions().await?;
                // Timestamps rise with versions.
                let (mut low, mut high) = (0, versions.len());
                while low < high {
                    let middle = low.midpoint(high);
                    let Some(version) = versions.get(middle) else { break };
                    let before = self.table.entry(*version).await?.timestamp.is_none_or(|at| at < micros);
                    if before { low = middle + 1 } else { high = middle }
                }
                match versions.get(low).filter(|version| **version <= self.version()) {
                    Some(version) => First::After(version - 1),
                    None => First::NotYet,
                }
            }
        })
    }

    /// The versions after `from` at which epochs end, the newest last: each takes whole versions until a limit on files
    /// or bytes is reached. Costs nothing without limits, else one reading of each entry of the log.
    ///
    /// # Errors
    /// External errors of the storage. An entry that is gone counts nothing here.
    pub async fn ends(&self, from: i64) -> Result<Vec<i64>> {
        let limit = (self.read.max_files.unwrap_or(u64::MAX), self.read.max_bytes.unwrap_or(u64::MAX));
        if limit == (u64::MAX, u64::MAX) {
            return Ok(vec![self.version()]);
        }
        let mut ends = Vec::new();
        let mut taken = (0, 0);
        for version in from.saturating_add(1)..=self.version() {
            let (files, bytes) = match self.table.entry(version).await {
                Ok(entry) => entry.size(),
                Err(e) if e.code() == "SOURCE_VERSION_GONE" => (0, 0),
                Err(e) => return Err(e),
            };
            let full = taken.0 + files > limit.0 || taken.1 + bytes > limit.1;
            if full && taken != (0, 0) {
                ends.push(version - 1);
                taken = (0, 0);
            }
            taken = (taken.0 + files, taken.1 + bytes);
        }
        ends.push(self.version());
        Ok(ends)
    }

    /// The rows of a stream: all rows at `to`, each an insert in a change feed, if there is no `from`; else what the
    /// versions after `from` and up to `to` append, or all their changes in a change feed. Commits that only move rows
    /// to other files add nothing.
    ///
    /// Costs the entries of the log, and the files that they add; in a change feed also the files that they remove, and
    /// memory for the rows of one commit that rewrote files without noting the changed rows.
    ///
    /// # Errors
    /// Before the first row, so that nothing is read in half: `SOURCE_TABLE_CHANGED` (external) if a version changed or
    /// removed rows and the mode does not say what that means; `SOURCE_SCHEMA_CHANGED` (external) if one changed the
    /// type of a column; `SOURCE_VERSION_GONE` (external). Items: `SOURCE_FILE_GONE`, `SOURCE_NOT_READABLE` (external).
    pub async fn rows(&self, from: Option<i64>, to: i64) -> Result<RowStream> {
        let Some(from) = from else {
            let rows = self.table.rows_at(to, &self.head.schema).await?;
            return match &self.read.mode {
                ReadMode::ChangeFeed { .. } => self.inserted(rows, to).await,
                _ => Ok(rows),
            };
        };
        let entries = self.entries(from, to).await?;
        if let ReadMode::ChangeFeed { keys, preimages } = &self.read.mode {
            return self.fed(entries, keys, *preimages).await;
        }
        let mut pieces = Vec::new();
        for entry in entries {
            if !entry.rewrites() {
                pieces.extend(self.table.files(&entry).await?);
                continue;
            }
            let passed = match self.read.mode {
                ReadMode::SkipChangeCommits => true,
                ReadMode::IgnoreDeletes => self.table.files(&entry).await?.iter().all(|piece| piece.diff < 0),
                _ => false,
            };
            if !passed {
                return Err(self.changed(&entry));
            }
        }
        Ok(self.table.read(&self.head, pieces, &self.head.schema).map_ok(|part| part.rows).boxed())
    }

    /// Rows and by how much each comes (positive) or goes (negative), from the version `from` to the version `to`. Rows
    /// that a commit only copied come and go.
    ///
    /// Costs the entries of the log, and the files that they add and remove.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub async fn changes(&self, from: i64, to: i64) -> Result<BoxStream<'static, Result<(RecordBatch, Vec<i64>)>>> {
        let mut pieces: Vec<Piece> = Vec::new();
        for entry in self.entries(from, to).await? {
            pieces.extend(self.table.pieces(&entry).await?);
        }
        let location = self.location();
        let parts = self.table.read(&self.head, pieces, &self.schema).and_then(move |part| {
            let diffs = match &part.noted {
                None => Ok(vec![part.piece.diff; part.rows.num_rows()]),
                Some(kinds) => kinds
                    .as_string::<i32>()
                    .iter()
                    .map(|kind| match kind {
                        Some("insert" | "update_postimage") => Ok(1),
                        Some("delete" | "update_preimage") => Ok(-1),
                        other => Err(feed::unknown_change(&location, other)),
                    })
                    .collect(),
            };
            futures::future::ready(diffs.map(|diffs| (part.rows, diffs)))
        });
        Ok(parts.boxed())
    }

    /// All rows at a version.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE` (external), also if the table no longer has the version.
    pub async fn snapshot(&self, version: i64) -> Result<RowStream> {
        self.table.rows_at(version, &self.head.schema).await
    }

    /// The entries after `from` and up to `to` that change rows.
    async fn entries(&self, from: i64, to: i64) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut redefined = false;
        for version in from.saturating_add(1)..=to {
            let entry = self.table.entry(version).await?;
            if let Some(schema) = self.table.redefined(&entry)? {
                redefined = true;
                self.same_types(&schema, version)?;
            }
            if !entry.is_empty() {
                entries.push(entry);
            }
        }
        if redefined && from >= 0 {
            let then = self.table.schema_at(from).await?;
            self.same_types(&then, from)?;
        }
        Ok(entries)
    }

    /// Columns may have come or gone; those that are known must have kept their type.
    fn same_types(&self, then: &Schema, version: i64) -> Result<()> {
        for field in self.head.schema.fields() {
            let found = position(then.fields(), field.name()).and_then(|i| then.fields().get(i));
            if let Some(found) = found.filter(|found| found.data_type() != field.data_type()) {
                return Err(Error::external(
                    "SOURCE_SCHEMA_CHANGED",
                    format!(
                        "the column {} of {} changed its type: it is {} in version {version} and {} in version {}",
                        field.name(),
                        self.location(),
                        found.data_type(),
                        field.data_type(),
                        self.version(),
                    ),
                )
                .help("a full refresh of what it feeds reads the rows of now under the new type"));
            }
        }
        Ok(())
    }

    fn changed(&self, entry: &Entry) -> Error {
        Error::external(
            "SOURCE_TABLE_CHANGED",
            format!(
                "version {} of {} changes or removes rows, but it is read as a stream of appended rows",
                entry.version,
                self.location()
            ),
        )
        .help(
            "say what that means: WITH ('silverflow.mode' = 'changes') takes rows back with it, 'skipChangeCommits' = \
             'true' passes such commits over, 'ignoreDeletes' = 'true' those that only remove rows, 'readChangeFeed' = \
             'true' gives each change as a row",
        )
    }
}
