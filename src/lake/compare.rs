//! What a table holds beside what it should hold.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;

use super::index::{ByHash, RowHash, RowHasher};
use super::types::{conform, stored_schema};
use crate::error::{Error, Result};

/// Compares two multisets of rows: first all rows that should be there are told, then all that are.
///
/// Holds the wanted rows and 24 bytes for each different one; of the others only those that should not be there.
pub struct Comparison {
    schema: SchemaRef,
    hasher: RowHasher,
    /// How often each row is wanted and has not been found.
    open: ByHash<i64>,
    wanted: Vec<RecordBatch>,
    extra: Vec<RecordBatch>,
}

/// The rows by which a table differs from what it should hold.
#[derive(Clone, Debug, Default)]
pub struct Mismatch {
    /// Rows that should be there and are not.
    pub missing: Vec<RecordBatch>,
    /// Rows that are there and should not be.
    pub extra: Vec<RecordBatch>,
}

impl Comparison {
    /// For rows of this schema.
    ///
    /// # Errors
    /// `UNSUPPORTED_DATA_TYPE`, `DUPLICATE_COLUMN` (user).
    pub fn new(schema: &SchemaRef) -> Result<Comparison> {
        let schema = stored_schema(schema)?;
        let hasher = RowHasher::new(&schema)?;
        Ok(Comparison { schema, hasher, open: ByHash::default(), wanted: Vec::new(), extra: Vec::new() })
    }

    /// The columns that are compared.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows that should be there, each once more than told so far.
    ///
    /// # Errors
    /// An explanation without a place if the rows do not fit the schema, as [`conform`] says.
    pub fn want(&mut self, rows: &RecordBatch) -> Result<()> {
        let rows = conform(rows, &self.schema)?;
        self.count(&rows, 1)?;
        self.wanted.push(rows);
        Ok(())
    }

    /// Takes back what [`want`](Self::want) told, each row once; also before it is told.
    ///
    /// # Errors
    /// As [`want`](Self::want).
    pub fn withdraw(&mut self, rows: &RecordBatch) -> Result<()> {
        let rows = conform(rows, &self.schema)?;
        self.count(&rows, -1)
    }

    fn count(&mut self, rows: &RecordBatch, by: i64) -> Result<()> {
        for hash in self.hasher.hash(rows)? {
            *self.open.entry(hash).or_default() += by;
        }
        Ok(())
    }

    /// Rows that are there.
    ///
    /// # Errors
    /// As [`want`](Self::want).
    pub fn found(&mut self, rows: &RecordBatch) -> Result<()> {
        let rows = conform(rows, &self.schema)?;
        let open = &mut self.open;
        let extra = self.hasher.hash(&rows)?.iter().map(|hash| Some(!take(open, hash))).collect();
        let extra = filtered(&rows, &extra)?;
        self.extra.extend((extra.num_rows() > 0).then_some(extra));
        Ok(())
    }

    /// The difference.
    ///
    /// # Errors
    /// Internal if a row was withdrawn more often than it was wanted.
    pub fn finish(mut self) -> Result<Mismatch> {
        if self.open.values().any(|open| *open < 0) {
            return Err(Error::internal("a row was taken back that had not come"));
        }
        self.open.retain(|_, open| *open > 0);
        let mut missing = Vec::new();
        for rows in std::mem::take(&mut self.wanted) {
            if self.open.is_empty() {
                break;
            }
            let open = &mut self.open;
            let absent = self.hasher.hash(&rows)?.iter().map(|hash| Some(take(open, hash))).collect();
            let rows = filtered(&rows, &absent)?;
            missing.extend((rows.num_rows() > 0).then_some(rows));
        }
        Ok(Mismatch { missing, extra: self.extra })
    }
}

fn take(open: &mut ByHash<i64>, hash: &RowHash) -> bool {
    match open.get_mut(hash) {
        Some(open) if *open > 0 => {
            *open -= 1;
            true
        }
        _ => false,
    }
}

fn filtered(rows: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch> {
    filter_record_batch(rows, mask).map_err(|e| Error::internal("rows cannot be filtered").caused_by(e))
}

impl Mismatch {
    /// How many rows are missing.
    pub fn missing(&self) -> usize {
        self.missing.iter().map(RecordBatch::num_rows).sum()
    }

    /// How many rows are too much.
    pub fn extra(&self) -> usize {
        self.extra.iter().map(RecordBatch::num_rows).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use proptest::prelude::*;

    use super::*;

    fn batch(values: &[i64]) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
        RecordBatch::try_from_iter_with_nullable([("v", column, true)]).unwrap()
    }

    fn values(batches: &[RecordBatch]) -> BTreeMap<i64, i64> {
        let mut counts = BTreeMap::new();
        for value in batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()) {
            *counts.entry(value).or_default() += 1;
        }
        counts
    }

    fn few() -> impl Strategy<Value = Vec<i64>> {
        proptest::collection::vec(0..6i64, 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_the_difference_of_multisets(
            wanted in proptest::collection::vec(few(), 0..4),
            found in proptest::collection::vec(few(), 0..4),
            again in few(),
        ) {
            let mut comparison =
                Comparison::new(&Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]))).unwrap();
            // What is told and taken back does not count, in any order.
            comparison.withdraw(&batch(&again)).unwrap();
            wanted.iter().for_each(|rows| comparison.want(&batch(rows)).unwrap());
            comparison.want(&batch(&again)).unwrap();
            found.iter().for_each(|rows| comparison.found(&batch(rows)).unwrap());
            let mismatch = comparison.finish().unwrap();
            let mut balance: BTreeMap<i64, i64> = BTreeMap::new();
            wanted.iter().flatten().for_each(|v| *balance.entry(*v).or_default() += 1);
            found.iter().flatten().for_each(|v| *balance.entry(*v).or_default() -= 1);
            let side = |sign: i64| -> BTreeMap<i64, i64> {
                balance.iter().filter(|(_, n)| **n * sign > 0).map(|(v, n)| (*v, n * sign)).collect()
            };
            prop_assert_eq!(values(&mismatch.missing), side(1));
            prop_assert_eq!(values(&mismatch.extra), side(-1));
        }
    }
}
