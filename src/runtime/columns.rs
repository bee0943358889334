//! Columns that the runtime adds to and takes from batches: the hidden wall, and the epoch of arrival of stored rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;

use crate::dataflow::{Batch, relabel, with_wall};
use crate::pipeline::EPOCH_COLUMN;

/// `schema` with the epoch of arrival behind it.
pub fn with_epoch(schema: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(EPOCH_COLUMN, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// Appends the wall to every row.
pub fn add_wall(rows: &RecordBatch, wall_micros: i64) -> Result<RecordBatch, ArrowError> {
    let wall = TimestampMicrosecondArray::from(vec![wall_micros; rows.num_rows()]).with_timezone("UTC");
    let mut columns = rows.columns().to_vec();
    columns.push(Arc::new(wall));
    relabel(&with_wall(&rows.schema()), columns, rows.num_rows())
}

/// A batch as a table stores it: the first `schema` columns, and the epoch of arrival if the table keeps it.
pub fn to_stored(batch: &Batch, schema: &SchemaRef, keeps_epoch: bool) -> Result<Batch, ArrowError> {
    let rows = batch.rows.num_rows();
    let width = schema.fields().len() - usize::from(keeps_epoch);
    let mut columns: Vec<ArrayRef> = batch.rows.columns().iter().take(width).cloned().collect();
    if keeps_epoch {
        let arrived = i64::try_from(batch.arrived).unwrap_or(i64::MAX);
        columns.push(Arc::new(Int64Array::from(vec![arrived; rows])));
    }
    Ok(batch.with_rows(relabel(schema, columns, rows)?))
}

/// Splits stored rows by the epoch in which they arrived, and takes that column off. It is found by name: columns that a
/// table gained later stand behind it.
pub fn by_arrival(rows: &RecordBatch) -> Result<BTreeMap<u64, RecordBatch>, ArrowError> {
    let at = rows.schema().index_of(EPOCH_COLUMN)?;
    let plain: Vec<usize> = (0..rows.num_columns()).filter(|i| *i != at).collect();
    let data = rows.project(&plain)?;
    let Some(epochs) = rows.columns().get(at).and_then(|c| c.as_primitive_opt::<Int64Type>()) else {
        return Err(ArrowError::SchemaError(format!("{EPOCH_COLUMN} is no number")));
    };
    let distinct: BTreeSet<Option<i64>> = epochs.iter().collect();
    let number = |epoch: Option<i64>| epoch.and_then(|e| u64::try_from(e).ok()).unwrap_or(0);
    if let [only] = distinct.iter().copied().collect::<Vec<_>>().as_slice() {
        return Ok(BTreeMap::from([(number(*only), data)]));
    }
    let mut parts = BTreeMap::new();
    for epoch in distinct {
        let mask: BooleanArray = epochs.iter().map(|e| Some(e == epoch)).collect();
        parts.insert(number(epoch), filter_record_batch(&data, &mask)?);
    }
    Ok(parts)
}
