//! Rows that a client sends with its request: tables of its own, and ranges.

use std::cell::Cell;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use arrow::array::{Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;

use super::types;
use super::wire::spark;
use crate::error::{Error, Result};
use crate::pipeline::frame::FrameOp;
use crate::sql::{parse_schema, schema_of_json};

/// How many rows a range may have: they are in memory.
const RANGE: i64 = 10_000_000;
/// How many rows a table of a client may have. A column of nulls has as many as it says and takes no bytes.
const ROWS: i64 = 64 << 20;

/// The rows of a table that a client has made.
pub(super) fn local(local: &spark::LocalRelation) -> Result<FrameOp> {
    let declared = match local.schema.as_deref().filter(|schema| !schema.is_empty()) {
        None => None,
        Some(text) if text.trim_start().starts_with('{') => Some(schema_of_json(text)?),
        Some(text) => Some(parse_schema(text)?),
    };
    let data = local.data.as_deref().unwrap_or_default();
    let wrong = || Error::user("INVALID_PLAN_INPUT", "rows that cannot be read");
    sound(data).ok_or_else(wrong)?;
    // Arrow takes the types of a schema and the insides of an array at their word here and there.
    let (schema, batches) = quietly(|| read(data, declared)).ok_or_else(wrong)?.map_err(|e| wrong().caused_by(e))?;
    if schema.fields().is_empty() && batches.is_empty() {
        return Err(Error::user("INVALID_PLAN_INPUT", "rows without columns"));
    }
    Ok(FrameOp::Rows { schema, batches: Arc::new(batches) })
}

fn read(data: &[u8], declared: Option<SchemaRef>) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let reader = if data.is_empty() { None } else { Some(StreamReader::try_new(Cursor::new(data), None)?) };
    let schema = declared.or_else(|| reader.as_ref().map(|reader| reader.schema()));
    let fields = schema.iter().flat_map(|schema| schema.fields());
    let fields = fields.map(|f| Field::new(f.name(), zoned(&types::plain(f.data_type())), f.is_nullable()));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let batches = reader.into_iter().flatten().map(|batch| {
        let batch = batch?;
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| arrow::compute::cast(column, field.data_type()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&schema), columns.collect::<Result<Vec<_>, _>>()?, &options)
    });
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    Ok((schema, batches))
}

/// Whether each message of a stream lies within it, so that no more memory is asked for than there are bytes.
fn sound(mut data: &[u8]) -> Option<()> {
    while let Some((mut head, mut rest)) = data.split_at_checked(4) {
        if head == [0xff; 4] {
            (head, rest) = rest.split_at_checked(4)?;
        }
        let length = usize::try_from(i32::from_le_bytes(head.try_into().ok()?)).ok()?;
        if length == 0 {
            return Some(());
        }
        let (meta, rest) = rest.split_at_checked(length)?;
        let message = arrow::ipc::root_as_message(meta).ok()?;
        let (body, rest) = rest.split_at_checked(usize::try_from(message.bodyLength()).ok()?)?;
        let dictionary = message.header_as_dictionary_batch();
        let batch = message.header_as_record_batch().or_else(|| dictionary.and_then(|d| d.data()));
        if let Some(batch) = batch {
            let within = |length: i64, most: i64| (0..=most).contains(&length).then_some(());
            let most = i64::try_from(body.len()).ok()?;
            within(batch.length(), ROWS)?;
            if batch.compression().is_some() {
                return None;
            }
            for node in batch.nodes().into_iter().flatten() {
                within(node.length(), ROWS.max(most.checked_mul(8)?))?;
                within(node.null_count(), node.length())?;
            }
            for buffer in batch.buffers().into_iter().flatten() {
                within(buffer.length(), most)?;
                within(buffer.offset(), most.checked_sub(buffer.length())?)?;
            }
        }
        data = rest;
    }
    Some(())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `f` gives, or nothing if it panics, of which nothing is printed.
fn quietly<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    result.ok()
}

/// Moments are kept in UTC, whatever zone they are said in.
fn zoned(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some("UTC".into())),
        other => other.clone(),
    }
}

/// The rows of a range.
pub(super) fn range(range: &spark::Range) -> Result<FrameOp> {
    let (start, end, step) = (range.start.unwrap_or(0), range.end, range.step);
    if step == 0 {
        return Err(Error::user("INVALID_PLAN_INPUT", "a range needs a step"));
    }
    let span = i128::from(end) - i128::from(start);
    let rows = if (span > 0) == (step > 0) && span != 0 {
        (span.abs() + i128::from(step).abs() - 1) / i128::from(step).abs()
    } else {
        0
    };
    if rows > i128::from(RANGE) {
        let message = format!("a range of more than {RANGE} rows is not supported yet");
        return Err(Error::user("NOT_SUPPORTED", message));
    }
    let rows = i64::try_from(rows).unwrap_or(0);
    // The steps between may be wider than a number is, where both ends are within.
    let values: Int64Array = (0..rows).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(values)])
        .map_err(|e| Error::internal("the rows of a range").caused_by(e))?;
    Ok(FrameOp::Rows { schema, batches: Arc::new(vec![batch]) })
}
