//! Tables whose rows come and go: by how much the outside differs from what is stored of it.

use std::collections::HashMap;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use tokio::runtime::Handle;

use super::columns::by_arrival;
use crate::dataflow::{Codec, relabel};
use crate::error::{Error, Result};
use crate::lake::Table;
use crate::lake::types::conform;
use crate::sources::DeltaSource;

/// A table outside.
pub(super) struct Outside<'a> {
    pub(super) source: &'a DeltaSource,
    /// Columns that are read.
    pub(super) schema: &'a SchemaRef,
    pub(super) io: &'a Handle,
}

/// Rows, the epoch in which they arrived if they are stored, and by how much each comes or goes.
pub(super) type Changed = (RecordBatch, Option<u64>, i64);

/// Rows as a multiset: those that come are kept, those that go are counted.
struct Net {
    come: Vec<(RecordBatch, Vec<Vec<u8>>)>,
    counts: HashMap<Vec<u8>, i64>,
    /// These are all rows that there are, and not only changes.
    whole: bool,
}

impl Outside<'_> {
    /// The rows by which the table at version `to` differs from what is stored, which is as the table was at `from`.
    ///
    /// Costs the files that were added and removed since, and a scan of what is stored if rows go; where there is no
    /// `from`, or what lies between cannot be read any more, all rows of both.
    pub(super) fn difference(&self, from: Option<i64>, to: i64, stored: Option<&Table>) -> Result<Vec<Changed>> {
        if let Some(table) = stored {
            self.same_columns(table)?;
        }
        let changes = from.map(|from| self.changes(from, to)).transpose();
        let found = match changes {
            Ok(Some(net)) => self.against(net, stored)?,
            Ok(None) => None,
            Err(e) if ["SOURCE_VERSION_GONE", "SOURCE_FILE_GONE", "SOURCE_NOT_READABLE"].contains(&e.code()) => None,
            Err(e) => return Err(e),
        };
        match found {
            Some(difference) => Ok(difference),
            None => {
                tracing::info!(table = self.source.location(), "the whole table is compared with what is stored of it");
                let whole = self.against(self.whole(to)?, stored)?;
                whole.ok_or_else(|| Error::internal("rows that are not stored cannot go"))
            }
        }
    }

    /// A column that is stored and gone outside would be null in rows that go, and they would not be found.
    fn same_columns(&self, stored: &Table) -> Result<()> {
        let known = |name: &str| self.schema.fields().iter().any(|f| f.name().eq_ignore_ascii_case(name));
        let stored = stored.schema();
        match stored.fields().iter().find(|f| f.name() != crate::pipeline::EPOCH_COLUMN && !known(f.name())) {
            None => Ok(()),
            Some(gone) => Err(Error::external(
                "SOURCE_SCHEMA_CHANGED",
                format!("the column {} of {} is gone", gone.name(), self.source.location()),
            )
            .help("a full refresh of what it feeds reads the rows of now without it")),
        }
    }

    fn changes(&self, from: i64, to: i64) -> Result<Net> {
        let mut net = Net::new(false);
        let codec = Codec::of(self.schema).map_err(wrong)?;
        let mut parts = self.io.block_on(self.source.changes(from, to))?;
        while let Some(part) = self.io.block_on(parts.next()) {
            let (rows, diffs) = part?;
            net.add(&codec, &columns(&rows, self.schema)?, &diffs)?;
        }
        Ok(net)
    }

    fn whole(&self, version: i64) -> Result<Net> {
        let mut net = Net::new(true);
        let codec = Codec::of(self.schema).map_err(wrong)?;
        let mut rows = self.io.block_on(self.source.snapshot(version))?;
        while let Some(rows) = self.io.block_on(rows.next()) {
            let rows = columns(&rows?, self.schema)?;
            net.add(&codec, &rows, &vec![1; rows.num_rows()])?;
        }
        Ok(net)
    }

    /// What is left of rows that come and go beside what is stored; `None` if rows go that are not stored.
    fn against(&self, mut net: Net, stored: Option<&Table>) -> Result<Option<Vec<Changed>>> {
        let codec = Codec::of(self.schema).map_err(wrong)?;
        let mut difference: Vec<Changed> = Vec::new();
        let mut sought: i64 = net.counts.values().filter(|count| **count < 0).map(|count| -count).sum();
        if let Some(stored) = stored.filter(|_| net.whole || sought > 0) {
            let mut rows = stored.scan();
            while let Some(batch) = self.io.block_on(rows.next()) {
                for (arrived, part) in by_arrival(&batch?).map_err(wrong)? {
                    let part = conform(&part, self.schema)?;
                    let encoded = codec.encode(part.columns()).map_err(wrong)?;
                    let goes: BooleanArray = encoded.iter().map(|row| Some(net.goes(row.as_bytes()))).collect();
                    let going = goes.true_count();
                    if going > 0 {
                        sought -= i64::try_from(going).unwrap_or(i64::MAX);
                        difference.push((filter_record_batch(&part, &goes).map_err(wrong)?, Some(arrived), -1));
                    }
                }
                if !net.whole && sought <= 0 {
                    break;
                }
            }
        }
        if !net.whole && sought > 0 {
            return Ok(None);
        }
        let Net { come, mut counts, .. } = net;
        for (rows, encoded) in come {
            let left: BooleanArray = encoded
                .iter()
                .map(|row| match counts.get_mut(row) {
                    Some(count) if *count > 0 => {
                        *count -= 1;
                        Some(true)
                    }
                    _ => Some(false),
                })
                .collect();
            if left.true_count() > 0 {
                difference.push((filter_record_batch(&rows, &left).map_err(wrong)?, None, 1));
            }
        }
        Ok(Some(difference))
    }
}

impl Net {
    fn new(whole: bool) -> Net {
        Net { come: Vec::new(), counts: HashMap::new(), whole }
    }

    fn add(&mut self, codec: &Codec, rows: &RecordBatch, diffs: &[i64]) -> Result<()> {
        let encoded = codec.encode(rows.columns()).map_err(wrong)?;
        let mut coming = Vec::new();
        for (row, diff) in encoded.iter().zip(diffs) {
            *self.counts.entry(row.to_vec()).or_default() += diff;
            if *diff > 0 {
                coming.push(row.to_vec());
            }
        }
        if !coming.is_empty() {
            let mask: BooleanArray = diffs.iter().map(|diff| Some(*diff > 0)).collect();
            self.come.push((filter_record_batch(rows, &mask).map_err(wrong)?, coming));
        }
        Ok(())
    }

    /// Whether a stored row goes; each is asked about once.
    fn goes(&mut self, row: &[u8]) -> bool {
        match (self.counts.get_mut(row), self.whole) {
            (Some(count), true) if *count > 0 => {
                *count -= 1;
                false
            }
            (_, true) => true,
            (Some(count), false) if *count < 0 => {
                *count += 1;
                true
            }
            (_, false) => false,
        }
    }
}

/// The columns of a foreign table that are read.
pub(super) fn columns(rows: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = schema.fields().iter().map(|f| rows.column_by_name(f.name()).cloned());
    let columns = columns
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| Error::external("SOURCE_NOT_READABLE", "a column of the source went away while it was read"))?;
    relabel(schema, columns, rows.num_rows()).map_err(wrong)
}

fn wrong(error: arrow::error::ArrowError) -> Error {
    Error::internal("rows of a source do not fit its schema").caused_by(error)
}
