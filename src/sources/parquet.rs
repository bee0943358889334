//! Parquet files of others.

use std::fs::File;

use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::columnar::{Batches, ColumnarReader, missing};
use super::columns::Reading;
use super::files::BATCH_ROWS;
use crate::lake::types::position;
use crate::lake::{Failure, FileId, undamaged};

/// Reads the columns of a schema, a part of the `known` columns of the source, or all of them where what does not fit is rescued.
pub(super) fn open(
    input: File,
    file: &FileId,
    schema: &SchemaRef,
    known: &Schema,
    reading: &Reading,
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
        let batches: Batches = Box::new(builder.with_batch_size(BATCH_ROWS).build()?.map(|x| x.map_err(Into::into)));
        missing(known.fields(), found.fields(), reading);
        Ok(ColumnarReader::new(batches, file, schema, reading))
    })
}

/// The schema of a file.
pub(super) fn schema(input: File) -> Result<Schema, Failure> {
    undamaged(|| Ok(ParquetRecordBatchReaderBuilder::try_new(input)?.schema().as_ref().clone()))
}
