//! Parquet files of others.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringBuilder, new_null_array};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::json::LineDelimitedWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::files::{BATCH_ROWS, file_path_member};
use crate::lake::types::{conform_array, position};
use crate::lake::{Failure, FileId, undamaged};

/// Reads batches of the columns of a schema; where rescuing is asked for, other columns and columns of a type that does
/// not fit go into a JSON object a row.
pub(super) struct ParquetReader {
    inner: ParquetRecordBatchReader,
    schema: SchemaRef,
    /// End of a rescued object, if rescuing is asked for.
    rescue: Option<String>,
}

impl ParquetReader {
    pub(super) fn open(input: File, file: &FileId, schema: &SchemaRef, rescue: bool) -> Result<ParquetReader, Failure> {
        undamaged(|| ParquetReader::build(input, file, schema, rescue))
    }

    fn build(input: File, file: &FileId, schema: &SchemaRef, rescue: bool) -> Result<ParquetReader, Failure> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(input)?;
        let found = builder.schema().fields();
        let builder = if rescue {
            builder
        } else {
            let wanted: Vec<usize> = schema.fields().iter().filter_map(|x| position(found, x.name())).collect();
            let mask = parquet::arrow::ProjectionMask::roots(builder.parquet_schema(), wanted);
            builder.with_projection(mask)
        };
        let inner = builder.with_batch_size(BATCH_ROWS).build()?;
        Ok(ParquetReader { inner, schema: Arc::clone(schema), rescue: rescue.then(|| file_path_member(file)) })
    }

    /// The next rows, and what was rescued of them.
    pub(super) fn next(&mut self) -> Result<Option<(RecordBatch, Option<ArrayRef>)>, Failure> {
        let Some(batch) = undamaged(|| Ok(self.inner.next().transpose()?))? else { return Ok(None) };
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        let mut taken = vec![false; batch.num_columns()];
        for field in self.schema.fields() {
            let Some(at) = position(batch.schema_ref().fields(), field.name()) else {
                columns.push(new_null_array(field.data_type(), batch.num_rows()));
                continue;
            };
            let column = batch.column(at);
            match conform_array(column, field.data_type()) {
                Some(fitting) => {
                    if let Some(taken) = taken.get_mut(at) {
                        *taken = true;
                    }
                    columns.push(fitting);
                }
                None if self.rescue.is_some() => columns.push(new_null_array(field.data_type(), batch.num_rows())),
                None => {
                    return Err(format!(
                        "its column {} is {}, the schema says {}",
                        field.name(),
                        column.data_type(),
                        field.data_type()
                    )
                    .into());
                }
            }
        }
        let rescued = match &self.rescue {
            Some(end) => rescued(&batch, &taken, end)?,
            None => None,
        };
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(Some((RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?, rescued)))
    }
}

/// The columns that were not taken, one JSON object a row; null where all of them are null.
fn rescued(batch: &RecordBatch, taken: &[bool], end: &str) -> Result<Option<ArrayRef>, Failure> {
    let left: Vec<usize> = (0..).zip(taken).filter(|x| !x.1).map(|x| x.0).collect();
    if left.is_empty() {
        return Ok(None);
    }
    let mut writer = LineDelimitedWriter::new(Vec::new());
    writer.write(&batch.project(&left)?)?;
    writer.finish()?;
    let lines = String::from_utf8(writer.into_inner())?;
    let mut out = StringBuilder::new();
    for line in lines.lines() {
        out.append_option((line != "{}").then(|| format!("{}{end}", line.strip_suffix('}').unwrap_or(line))));
    }
    let out: ArrayRef = Arc::new(out.finish());
    if out.len() != batch.num_rows() {
        return Err("its rows cannot be written as JSON".into());
    }
    Ok(Some(out))
}

/// The schema of a file.
pub(super) fn schema(input: File) -> Result<Schema, Failure> {
    undamaged(|| Ok(ParquetRecordBatchReaderBuilder::try_new(input)?.schema().as_ref().clone()))
}
