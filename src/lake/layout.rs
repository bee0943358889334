//! How rewriting lays the rows of a table out in files.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::row::{RowConverter, Rows, SortField};
use serde_json::Value;

use super::types::position;
use crate::error::{Error, Result};

/// Which rows belong together, and in which order. Decides nothing about what a table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Columns by which the rows of a rewritten file are sorted; with none they stay in the order of arrival. Columns
    /// that the table does not have are passed over.
    pub sort: Vec<String>,
    /// A column that is null in rows that are expected to change, such as `__END_AT`. They get files of their own, which
    /// are small, so that the others settle in large files that no one touches.
    pub open: Option<String>,
}

/// Rows that go into files together: batch and row of each, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The rows.
    pub(crate) rows: Vec<(usize, usize)>,
    /// They are expected to change.
    pub(crate) open: bool,
}

impl Layout {
    /// Rows may stay as they come.
    pub(crate) fn is_plain(&self) -> bool {
        self.sort.is_empty() && self.open.is_none()
    }

    /// Whether all rows of a file are expected to change, as its statistics say.
    pub(crate) fn is_open(&self, stats: &Value) -> bool {
        let nulls = self.open.as_ref().and_then(|x| stats.get("nullCount")?.get(x)?.as_u64());
        nulls.is_some_and(|nulls| nulls > 0 && stats.get("numRecords").and_then(Value::as_u64) == Some(nulls))
    }

    /// Divides and sorts the rows of batches of one schema.
    pub(crate) fn arrange(&self, batches: &[RecordBatch]) -> Result<Vec<Part>> {
        let Some(first) = batches.first() else { return Ok(Vec::new()) };
        let schema = first.schema();
        let columns: Vec<usize> = self.sort.iter().filter_map(|x| position(schema.fields(), x)).collect();
        let open = self.open.as_ref().and_then(|x| position(schema.fields(), x));
        let failed = |e| Error::internal("rows cannot be sorted").caused_by(e);
        let fields =
            columns.iter().filter_map(|i| schema.fields().get(*i)).map(|x| SortField::new(x.data_type().clone()));
        let converter = RowConverter::new(fields.collect()).map_err(failed)?;
        let mut keys: Vec<Rows> = Vec::with_capacity(batches.len());
        let (mut hot, mut cold) = (Part { open: true, ..Part::default() }, Part::default());
        for (at, batch) in batches.iter().enumerate() {
            if !columns.is_empty() {
                let sorted: Vec<ArrayRef> = columns.iter().map(|i| batch.column(*i).clone()).collect();
                keys.push(converter.convert_columns(&sorted).map_err(failed)?);
            }
            let nulls = open.and_then(|i| batch.column(i).logical_nulls());
            for row in 0..batch.num_rows() {
                let part = if nulls.as_ref().is_some_and(|x| x.is_null(row)) { &mut hot } else { &mut cold };
                part.rows.push((at, row));
            }
        }
        for part in [&mut hot, &mut cold].into_iter().filter(|_| !columns.is_empty()) {
            let key = |x: &(usize, usize)| keys.get(x.0).map(|rows| rows.row(x.1));
            part.rows.sort_by(|a, b| key(a).cmp(&key(b)));
        }
        Ok([hot, cold].into_iter().filter(|x| !x.rows.is_empty()).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use serde_json::json;

    use super::*;

    fn rows(keys: &[&str], ends: &[Option<i64>]) -> RecordBatch {
        let (keys, ends): (ArrayRef, ArrayRef) =
            (Arc::new(StringArray::from(keys.to_vec())), Arc::new(Int64Array::from(ends.to_vec())));
        RecordBatch::try_from_iter_with_nullable([("key", keys, true), ("end", ends, true)]).unwrap()
    }

    #[test]
    fn open_rows_stand_apart_and_all_are_sorted() {
        let layout = Layout { sort: vec!["KEY".into(), "none".into()], open: Some("end".into()) };
        let batches = [rows(&["c", "a", "b"], &[Some(1), None, Some(2)]), rows(&["a", "0"], &[Some(3), None])];
        let parts = layout.arrange(&batches).unwrap();
        assert_eq!(
            parts,
            [Part { rows: vec![(1, 1), (0, 1)], open: true }, Part { rows: vec![(1, 0), (0, 2), (0, 0)], open: false }]
        );
        let unsorted = Layout { sort: Vec::new(), open: Some("end".into()) };
        assert_eq!(unsorted.arrange(&batches).unwrap().last().unwrap().rows, [(0, 0), (0, 2), (1, 0)]);
        assert!(layout.arrange(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_file_is_open_when_all_its_rows_are() {
        let layout = Layout { sort: Vec::new(), open: Some("end".into()) };
        assert!(layout.is_open(&json!({"numRecords": 3, "nullCount": {"end": 3}})));
        assert!(!layout.is_open(&json!({"numRecords": 3, "nullCount": {"end": 2}})));
        assert!(!layout.is_open(&json!({"numRecords": 3})));
        assert!(!Layout::default().is_open(&json!({"numRecords": 3, "nullCount": {"end": 3}})));
    }
}
