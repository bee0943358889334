//! When rows entered a quarantine, and when they left it: columns of its table that the dataflow knows nothing of.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::compute::{filter_record_batch, is_null, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use futures::StreamExt;
use tokio::runtime::Handle;

use crate::dataflow::{Codec, normalise, relabel};
use crate::error::{Error, Result};
use crate::lake::Table;
use crate::lake::types::conform;
use crate::pipeline::{EPOCH_COLUMN, LEFT_COLUMN};

/// `schema` with the epoch in which a row left behind it.
pub(super) fn with_left(schema: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(LEFT_COLUMN, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// The rows that are in a quarantine now, without those that have left it.
pub(super) fn present(rows: &RecordBatch) -> std::result::Result<RecordBatch, ArrowError> {
    match rows.column_by_name(LEFT_COLUMN) {
        Some(left) => filter_record_batch(rows, &is_null(left)?),
        None => Ok(rows.clone()),
    }
}

/// The audit columns of one quarantine's table.
pub(super) struct Audit {
    /// Columns of the changes.
    changes: SchemaRef,
    /// Columns of the table.
    table: SchemaRef,
    /// The changes do not say when a row entered.
    enters: bool,
    /// Rows that leave are kept.
    history: bool,
    /// When the rows that are there have entered, by hash; looked up in the table when first needed.
    entered: Option<HashMap<u128, Vec<Option<i64>>>>,
}

/// Rows to add and rows to remove.
type Changes = (Vec<RecordBatch>, Vec<RecordBatch>);

/// A row of some batches.
type Place = (usize, usize);

impl Audit {
    /// Of a table whose changes have the columns `changes`.
    pub(super) fn new(changes: &SchemaRef, table: &SchemaRef) -> Audit {
        let has = |schema: &SchemaRef, name: &str| schema.fields().iter().any(|f| f.name() == name);
        Audit {
            changes: Arc::clone(changes),
            table: Arc::clone(table),
            enters: !has(changes, EPOCH_COLUMN),
            history: has(table, LEFT_COLUMN),
            entered: None,
        }
    }

    /// Columns of the changes.
    pub(super) fn changes(&self) -> &SchemaRef {
        &self.changes
    }

    /// What an epoch changes in the table, from what comes and what goes. A row that comes and goes keeps its epoch. With
    /// `compare`, `inserts` is all that should be there.
    ///
    /// Costs the changes, a look at the whole table once, and with `compare` another one.
    pub(super) fn apply(
        &mut self,
        (inserts, deletes): Changes,
        compare: bool,
        epoch: u64,
        table: &Table,
        io: &Handle,
    ) -> Result<Changes> {
        let wrong =
            |e| Error::internal("changes of a quarantine do not fit its table").caused_by(e).dataset(table.name());
        let mut coming = places(&inserts).map_err(wrong)?;
        let mut going: HashMap<u128, Vec<Place>> = HashMap::new();
        for (hash, all) in places(&deletes).map_err(wrong)? {
            for place in all {
                if coming.get_mut(&hash).and_then(Vec::pop).is_none() {
                    going.entry(hash).or_default().push(place);
                }
            }
        }
        let now = i64::try_from(epoch).unwrap_or(i64::MAX);
        let mut gone: Vec<RecordBatch> = Vec::new();
        if compare {
            self.entered = None;
            let mut rows = table.scan();
            while let Some(batch) = io.block_on(rows.next()) {
                let batch = present(&batch?).map_err(wrong)?;
                let known = hashes(&conform(&batch, &self.changes)?).map_err(wrong)?;
                let extra = known.iter().enumerate().filter(|(_, h)| coming.get_mut(h).and_then(Vec::pop).is_none());
                let extra = UInt64Array::from_iter_values(extra.map(|(i, _)| i as u64));
                gone.push(take_record_batch(&batch, &extra).map_err(wrong)?);
            }
        } else if self.enters && !going.is_empty() {
            if self.entered.is_none() {
                self.entered = Some(self.look(table, io)?);
            }
            let entered = self.entered.get_or_insert_default();
            let mut by_batch: HashMap<usize, (Vec<u64>, Vec<Option<i64>>)> = HashMap::new();
            for (hash, all) in &going {
                for (batch, row) in all {
                    // Of equal rows the one that came last goes.
                    let since = entered.get_mut(hash).and_then(|epochs| {
                        let (at, _) = epochs.iter().enumerate().max_by_key(|(_, epoch)| **epoch)?;
                        Some(epochs.swap_remove(at))
                    });
                    let since = since.ok_or_else(|| {
                        Error::internal("a row leaves a quarantine in which it is not").dataset(table.name())
                    })?;
                    let (rows, epochs) = by_batch.entry(*batch).or_default();
                    rows.push(*row as u64);
                    epochs.push(since);
                }
            }
            for (batch, (rows, epochs)) in by_batch {
                let Some(batch) = deletes.get(batch) else { continue };
                let rows = take_record_batch(batch, &UInt64Array::from(rows)).map_err(wrong)?;
                gone.push(self.complete(&rows, Some(epochs), None).map_err(wrong)?);
            }
        } else {
            for rows in chosen(&deletes, &going).map_err(wrong)? {
                gone.push(self.complete(&rows, None, None).map_err(wrong)?);
            }
        }
        let mut come = Vec::new();
        for rows in chosen(&inserts, &coming).map_err(wrong)? {
            let epochs = self.enters.then(|| vec![Some(now); rows.num_rows()]);
            come.push(self.complete(&rows, epochs, None).map_err(wrong)?);
        }
        if let Some(entered) = &mut self.entered {
            for (hash, all) in &coming {
                entered.entry(*hash).or_default().extend(all.iter().map(|_| Some(now)));
            }
        }
        if self.history {
            for rows in &gone {
                let mut columns = rows.columns().to_vec();
                columns.pop();
                columns.push(Arc::new(Int64Array::from(vec![now; rows.num_rows()])));
                come.push(relabel(&self.table, columns, rows.num_rows()).map_err(wrong)?);
            }
        }
        let full = |batches: Vec<RecordBatch>| batches.into_iter().filter(|b| b.num_rows() > 0).collect::<Vec<_>>();
        Ok((full(come), full(gone)))
    }

    /// A commit failed: what is in the table is looked up again.
    pub(super) fn forget(&mut self) {
        self.entered = None;
    }

    fn look(&self, table: &Table, io: &Handle) -> Result<HashMap<u128, Vec<Option<i64>>>> {
        let wrong = |e| Error::internal("a quarantine does not fit its table").caused_by(e).dataset(table.name());
        let mut entered: HashMap<u128, Vec<Option<i64>>> = HashMap::new();
        let mut rows = table.scan();
        while let Some(batch) = io.block_on(rows.next()) {
            let batch = present(&batch?).map_err(wrong)?;
            let epochs = batch.column_by_name(EPOCH_COLUMN).and_then(|c| c.as_primitive_opt::<Int64Type>()).cloned();
            for (row, hash) in hashes(&conform(&batch, &self.changes)?).map_err(wrong)?.into_iter().enumerate() {
                let epoch = epochs.as_ref().filter(|e| e.is_valid(row)).map(|e| e.value(row));
                entered.entry(hash).or_default().push(epoch);
            }
        }
        Ok(entered)
    }

    /// Rows of the changes as rows of the table.
    fn complete(
        &self,
        rows: &RecordBatch,
        entered: Option<Vec<Option<i64>>>,
        left: Option<i64>,
    ) -> std::result::Result<RecordBatch, ArrowError> {
        let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
        columns.extend(entered.map(|epochs| Arc::new(Int64Array::from(epochs)) as ArrayRef));
        if self.history {
            columns.push(Arc::new(Int64Array::from(vec![left; rows.num_rows()])));
        }
        relabel(&self.table, columns, rows.num_rows())
    }
}

fn hashes(rows: &RecordBatch) -> std::result::Result<Vec<u128>, ArrowError> {
    let codec = Codec::of(&rows.schema())?;
    let rows = codec.encode(&normalise(rows.columns())?)?;
    Ok(rows.iter().map(|row| xxhash_rust::xxh3::xxh3_128(row)).collect())
}

/// Where equal rows are.
fn places(batches: &[RecordBatch]) -> std::result::Result<HashMap<u128, Vec<Place>>, ArrowError> {
    let mut all: HashMap<u128, Vec<Place>> = HashMap::new();
    for (at, batch) in batches.iter().enumerate() {
        for (row, hash) in hashes(batch)?.into_iter().enumerate() {
            all.entry(hash).or_default().push((at, row));
        }
    }
    Ok(all)
}

/// The rows at some places, batch by batch, in their order.
fn chosen(
    batches: &[RecordBatch],
    places: &HashMap<u128, Vec<Place>>,
) -> std::result::Result<Vec<RecordBatch>, ArrowError> {
    let mut rows: Vec<Vec<u64>> = vec![Vec::new(); batches.len()];
    for (batch, row) in places.values().flatten() {
        if let Some(rows) = rows.get_mut(*batch) {
            rows.push(*row as u64);
        }
    }
    let chosen = batches.iter().zip(&mut rows).map(|(batch, rows)| {
        rows.sort_unstable();
        take_record_batch(batch, &UInt64Array::from(std::mem::take(rows)))
    });
    chosen.collect()
}
