//! What an epoch changes in a table: inserts and deletes without what cancels.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;

use super::index::{ByHash, RowHash, RowHasher};
use super::types::{conform, stored_schema};
use crate::error::{Error, Result};

/// Equal rows that are to go. Rows of the same hash may differ.
pub(crate) struct Going {
    /// The row's bytes, as [`RowHasher`] gives them.
    pub(crate) row: Box<[u8]>,
    /// How many.
    pub(crate) count: usize,
}

/// The difference between inserts and deletes.
pub(crate) struct Difference {
    /// Rows that come, without empty batches.
    pub(crate) inserts: Vec<RecordBatch>,
    /// A hash for each row of `inserts`, where they are needed.
    pub(crate) hashes: Option<Vec<RowHash>>,
    /// Rows that go.
    pub(crate) deletes: ByHash<Vec<Going>>,
}

impl Difference {
    /// Of two multisets of rows of `schema`. Without deletes nothing needs a hash; `hashed` wants them all the same.
    pub(crate) fn of(
        inserts: &[RecordBatch],
        deletes: &[RecordBatch],
        schema: &SchemaRef,
        hashed: bool,
    ) -> Result<Difference> {
        let stored = stored_schema(schema)?;
        let exact = |batch: &RecordBatch| {
            if batch.num_columns() == schema.fields().len() {
                conform(batch, &stored)
            } else {
                Err(Error::internal(format!(
                    "rows of {} columns for a table of {}",
                    batch.num_columns(),
                    schema.fields().len()
                )))
            }
        };
        let rows = |batches: &[RecordBatch]| {
            batches.iter().filter(|x| x.num_rows() > 0).map(exact).collect::<Result<Vec<_>>>()
        };
        let (inserts, deletes) = (rows(inserts)?, rows(deletes)?);
        if !hashed && deletes.is_empty() {
            return Ok(Difference { inserts, hashes: None, deletes: ByHash::default() });
        }
        let hasher = RowHasher::new(&stored)?;
        let mut going: ByHash<Vec<Going>> = ByHash::default();
        for batch in &deletes {
            hasher.each(batch, |hash, row| {
                let alike = going.entry(hash).or_default();
                match alike.iter_mut().find(|x| *x.row == *row) {
                    Some(known) => known.count += 1,
                    None => alike.push(Going { row: row.into(), count: 1 }),
                }
            })?;
        }
        let mut hashes = Vec::new();
        let mut coming = Vec::with_capacity(inserts.len());
        for batch in inserts {
            let mut keep = Vec::with_capacity(batch.num_rows());
            let before = hashes.len();
            hasher.each(&batch, |hash, row| {
                let alike = going.get_mut(&hash).into_iter().flatten();
                let cancels = alike.into_iter().find(|x| x.count > 0 && *x.row == *row);
                keep.push(cancels.is_none());
                match cancels {
                    Some(known) => known.count -= 1,
                    None => hashes.push(hash),
                }
            })?;
            match hashes.len() - before {
                0 => {}
                all if all == batch.num_rows() => coming.push(batch),
                _ => coming.push(
                    filter_record_batch(&batch, &BooleanArray::from(keep))
                        .map_err(|e| Error::internal("rows cannot be filtered").caused_by(e))?,
                ),
            }
        }
        going.retain(|_, alike| {
            alike.retain(|x| x.count > 0);
            !alike.is_empty()
        });
        Ok(Difference { inserts: coming, hashes: Some(hashes), deletes: going })
    }

    /// Nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.inserts.is_empty() && self.deletes.is_empty()
    }
}
