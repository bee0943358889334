//! Parquet files of others.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::RowGroupMetaData;

use super::columnar::{Batches, ColumnarReader, missing};
use super::columns::Reading;
use super::files::BATCH_ROWS;
use super::parts::Part;
use crate::lake::types::position;
use crate::lake::{Failure, FileId, undamaged};

/// Reads the columns of a schema, a part of the `known` columns of the source, or all of them where what does not fit is rescued.
pub(super) fn open(
    input: File,
    file: &FileId,
    schema: &SchemaRef,
    known: &Schema,
    reading: &Reading,
    part: &Part,
) -> Result<ColumnarReader, Failure> {
    undamaged(|| {
        let builder = ParquetRecordBatchReaderBuilder::try_new(input)?;
        let found = builder.schema().clone();
        let builder = if reading.rescue {
            builder
        } else {
            let wanted: Vec<usize> =
                schema.fields().iter().filter_map(|x| position(found.fields(), x.name())).collect();
            let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
            builder.with_projection(mask)
        };
        let all = 0..builder.metadata().num_row_groups();
        let builder = match (needed(&builder, reading), part) {
            (Some(groups), Part::Groups(own)) => {
                builder.with_row_groups(groups.into_iter().filter(|group| own.contains(group)).collect())
            }
            (None, Part::Groups(own)) => builder.with_row_groups(all.filter(|group| own.contains(group)).collect()),
            (Some(groups), _) => builder.with_row_groups(groups),
            (None, _) => builder,
        };
        let batches: Batches = Box::new(builder.with_batch_size(BATCH_ROWS).build()?.map(|x| x.map_err(Into::into)));
        missing(known.fields(), found.fields(), reading);
        Ok(ColumnarReader::new(batches, file, schema, reading))
    })
}

/// The row groups in which a row may be of use, as far as their statistics tell; `None` for all of them.
fn needed(builder: &ParquetRecordBatchReaderBuilder<File>, reading: &Reading) -> Option<Vec<usize>> {
    let kept = reading.kept.as_ref()?;
    // What cannot be told is kept, and so is everything where the predicate is of no form that statistics speak of.
    let pruning = PruningPredicateBuilder::new().with_file_schema(Arc::clone(&kept.schema));
    let pruning = pruning.build(Arc::clone(&kept.predicate))?;
    let groups = Groups { builder, schema: &kept.schema, exact: reading.exact };
    let keep = pruning.prune(&groups).ok()?;
    Some((0..).zip(keep).filter_map(|(group, keep)| keep.then_some(group)).collect())
}

/// What a file says of its row groups.
struct Groups<'a> {
    builder: &'a ParquetRecordBatchReaderBuilder<File>,
    schema: &'a SchemaRef,
    exact: bool,
}

impl Groups<'_> {
    /// Statistics of a column that is read as it is in the file, and whose bounds hold all of its values.
    fn converter(&self, name: &str) -> Option<StatisticsConverter<'_>> {
        let wanted = self.schema.field_with_name(name).ok()?;
        let fields = self.builder.schema().fields();
        let found = fields.get(position(fields, name)?)?;
        // NaN is greater than all numbers, and no bound says whether there is one.
        let bounded = !found.data_type().is_floating() && !found.data_type().is_nested();
        if !bounded || found.data_type() != wanted.data_type() || (self.exact && found.name() != name) {
            return None;
        }
        StatisticsConverter::try_new(found.name(), self.builder.schema(), self.builder.parquet_schema()).ok()
    }

    fn metadata(&self) -> impl Iterator<Item = &RowGroupMetaData> {
        self.builder.metadata().row_groups().iter()
    }
}

impl PruningStatistics for Groups<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.converter(&column.name)?.row_group_mins(self.metadata()).ok()
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.converter(&column.name)?.row_group_maxes(self.metadata()).ok()
    }

    fn num_containers(&self) -> usize {
        self.builder.metadata().num_row_groups()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let converter = self.converter(&column.name)?.with_missing_null_counts_as_zero(false);
        Some(Arc::new(converter.row_group_null_counts(self.metadata()).ok()?))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.metadata().map(|group| u64::try_from(group.num_rows()).ok());
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// How many row groups a file has.
pub(super) fn groups(input: File) -> Result<usize, Failure> {
    undamaged(|| Ok(ParquetRecordBatchReaderBuilder::try_new(input)?.metadata().num_row_groups()))
}

/// The schema of a file.
pub(super) fn schema(input: File) -> Result<Schema, Failure> {
    undamaged(|| Ok(ParquetRecordBatchReaderBuilder::try_new(input)?.schema().as_ref().clone()))
}
