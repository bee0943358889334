//! One row an item of a list.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::batch::{Batch, relabel};
use super::eval::BadRow;

/// About how many bytes one outgoing batch may have.
const BATCH: usize = 32 << 20;
/// About how many bytes the rows of one incoming row may have together.
const ROW: usize = 1 << 30;

/// Puts each item of the list `column` in the list's place, with the other columns of its row.
pub(super) fn unnest(batch: &Batch, column: usize, schema: &SchemaRef) -> Result<Vec<Batch>, BadRow> {
    let mut done = Vec::new();
    let size = |rows: &RecordBatch| {
        rows.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0)).sum::<usize>()
    };
    part(batch, 0, batch.rows.num_rows(), column, schema, &size, &mut done)?;
    Ok(done)
}

/// The rows from `start`, as many as `length`; halved until what they become is small enough.
fn part(
    batch: &Batch,
    start: usize,
    length: usize,
    column: usize,
    schema: &SchemaRef,
    size: &dyn Fn(&RecordBatch) -> usize,
    done: &mut Vec<Batch>,
) -> Result<(), BadRow> {
    let bad = |error: ArrowError| BadRow { index: start, message: error.to_string() };
    let rows = batch.rows.slice(start, length);
    let Some(list) = rows.columns().get(column).and_then(|c| c.as_list_opt::<i32>()) else {
        return Err(BadRow { index: start, message: "a list is no list".to_owned() });
    };
    let offsets = list.value_offsets();
    let items = match (offsets.first(), offsets.last()) {
        (Some(from), Some(to)) => usize::try_from(to - from).unwrap_or(0),
        _ => 0,
    };
    // Each item repeats the row that it is of.
    let repeated = size(&rows).checked_div(length).unwrap_or(0).saturating_mul(items);
    if repeated > BATCH && length > 1 {
        let half = length / 2;
        part(batch, start, half, column, schema, size, done)?;
        return part(batch, start + half, length - half, column, schema, size, done);
    }
    if repeated > ROW {
        let message = format!(
            "{items} items of one row, with its other columns {} MiB, are more than can be laid out; select fewer columns beside them",
            repeated >> 20
        );
        return Err(BadRow { index: start, message });
    }
    let mut of = Vec::with_capacity(items);
    for (row, bounds) in (0u32..).zip(offsets.windows(2)) {
        if let [from, to] = bounds
            && list.is_valid(row as usize)
        {
            of.extend((*from..*to).map(|item| (row, item.cast_unsigned())));
        }
    }
    let chunk = if repeated > BATCH { (BATCH / (repeated / items.max(1)).max(1)).max(1) } else { of.len().max(1) };
    for few in of.chunks(chunk) {
        let rows_of: UInt32Array = few.iter().map(|(row, _)| *row).collect();
        let items_of: UInt32Array = few.iter().map(|(_, item)| *item).collect();
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(rows.num_columns());
        for (index, values) in rows.columns().iter().enumerate() {
            let taken =
                if index == column { take(list.values(), &items_of, None) } else { take(values, &rows_of, None) };
            columns.push(taken.map_err(bad)?);
        }
        let made = relabel(schema, columns, few.len()).map_err(bad)?;
        let diffs = batch
            .diffs
            .as_ref()
            .map(|_| few.iter().map(|(row, _)| batch.diff(start + *row as usize)).collect::<Arc<[i64]>>());
        done.push(Batch { rows: made, diffs, pairs: false, ..*batch });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use arrow::array::{Int32Array, ListArray, StringArray};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema};

    use super::*;

    fn lists(lists: Vec<Option<Vec<Option<i32>>>>, beside: Vec<String>) -> (Batch, SchemaRef) {
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let text: ArrayRef = Arc::new(StringArray::from(beside));
        let rows = RecordBatch::try_from_iter([("l", list), ("t", text)]).unwrap();
        let schema = Schema::new(vec![Field::new("l", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]);
        (Batch::added(3, rows), Arc::new(schema))
    }

    /// The rows of batches with their changes.
    fn shown(batches: &[Batch]) -> Vec<(Option<i32>, usize, i64)> {
        let mut all = Vec::new();
        for batch in batches {
            let items: &Int32Array = batch.rows.column(0).as_primitive();
            let texts = batch.rows.column(1).as_string::<i32>();
            for row in 0..batch.rows.num_rows() {
                let item = items.is_valid(row).then(|| items.value(row));
                all.push((item, texts.value(row).len(), batch.diff(row)));
            }
        }
        all
    }

    #[test]
    fn items_come_with_their_rows_and_their_changes() {
        let text = |n: usize| "x".repeat(n);
        let (mut batch, schema) =
            lists(vec![Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(3)])], (0..4).map(text).collect());
        batch.diffs = Some(vec![1, 5, 5, -2].into());
        let made = unnest(&batch, 0, &schema).unwrap_or_else(|bad| panic!("{}", bad.message));
        assert_eq!(shown(&made), [(Some(1), 0, 1), (None, 0, 1), (Some(3), 3, -2)]);
        let slice = Batch { rows: batch.rows.slice(2, 2), diffs: Some(vec![5, -2].into()), ..batch };
        let made = unnest(&slice, 0, &schema).unwrap_or_else(|bad| panic!("{}", bad.message));
        assert_eq!(shown(&made), [(Some(3), 3, -2)]);
    }

    #[test]
    fn what_becomes_large_is_cut_and_what_becomes_too_large_is_refused() {
        let (batch, schema) =
            lists(vec![Some(vec![Some(1); 100]), Some(vec![Some(2); 3])], vec!["x".repeat(1 << 20), "y".repeat(7)]);
        let made = unnest(&batch, 0, &schema).unwrap_or_else(|bad| panic!("{}", bad.message));
        assert!(made.len() > 3, "{} batches", made.len());
        let expected: Vec<_> =
            std::iter::repeat_n((Some(1), 1 << 20, 1), 100).chain(std::iter::repeat_n((Some(2), 7, 1), 3)).collect();
        assert_eq!(shown(&made), expected);
        let (batch, schema) =
            lists(vec![Some(vec![Some(2); 3]), Some(vec![Some(1); 3000])], vec![String::new(), "x".repeat(1 << 20)]);
        let bad = unnest(&batch, 0, &schema).err().unwrap();
        assert_eq!(bad.index, 1);
        assert!(bad.message.starts_with("3000 items of one row"), "{}", bad.message);
    }
}
