//! Avro object container files.

use std::io::BufReader;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_avro::reader::{Reader, ReaderBuilder};

use super::columnar::{Batches, ColumnarReader, missing};
use super::columns::Reading;
use super::files::BATCH_ROWS;
use super::input::Bytes;
use crate::lake::{Failure, FileId, undamaged};

/// Reads the columns of a schema, a part of the `known` columns of the source.
pub(super) fn open(
    input: Bytes,
    file: &FileId,
    schema: &SchemaRef,
    known: &Schema,
    reading: &Reading,
) -> Result<ColumnarReader, Failure> {
    undamaged(|| {
        let reader = reader(input)?;
        let found = reader.schema();
        let batches: Batches = Box::new(reader.map(|x| x.map_err(Into::into)));
        missing(known.fields(), found.fields(), reading);
        Ok(ColumnarReader::new(batches, file, schema, reading))
    })
}

/// The schema of a file.
pub(super) fn schema(input: Bytes) -> Result<Schema, Failure> {
    undamaged(|| Ok(reader(input)?.schema().as_ref().clone()))
}

fn reader(input: Bytes) -> Result<Reader<BufReader<Bytes>>, Failure> {
    Ok(ReaderBuilder::new().with_batch_size(BATCH_ROWS).build(BufReader::with_capacity(256 << 10, input))?)
}
