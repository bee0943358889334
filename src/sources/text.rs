//! Texts by lines or whole, and files as they are.

use std::io::Read;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::columns::{Fit, utc};
use super::input::Bytes;
use super::lines::{Lines, RECORD_BYTES};
use super::options::Options;
use super::rows::{Record, Rows};
use crate::error::{Error, Result};
use crate::lake::{Failure, FileId};

/// The column of a text.
pub(super) fn text_fields() -> Fields {
    vec![Field::new("value", DataType::Utf8, true)].into()
}

/// The columns of a file as it is.
pub(super) fn binary_fields() -> Fields {
    vec![
        Field::new("path", DataType::Utf8, true),
        Field::new("modificationTime", utc(), true),
        Field::new("length", DataType::Int64, true),
        Field::new("content", DataType::Binary, true),
    ]
    .into()
}

/// Makes sure that a schema is one of text: a single column of texts.
pub(super) fn check_text(fields: &Fields) -> Result<()> {
    match fields.as_ref() {
        [] => Ok(()),
        [one] if one.data_type() == &DataType::Utf8 => Ok(()),
        _ => Err(Error::user("INVALID_SCHEMA", "files of the format text have one column of the type STRING")
            .help("schema => 'value STRING', or no schema")),
    }
}

/// Reads lines, or one text, into the only column.
pub(super) enum TextReader {
    Lines(Lines),
    Whole(Option<Bytes>),
}

impl TextReader {
    pub(super) fn open(input: Bytes, options: &Options) -> TextReader {
        if options.whole_text {
            TextReader::Whole(Some(input))
        } else {
            TextReader::Lines(Lines::new(input, options.line_end.clone()))
        }
    }

    /// Reads until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        match self {
            TextReader::Whole(input) => {
                let Some(input) = input.take() else { return Ok(false) };
                let mut text = Vec::new();
                input.take(RECORD_BYTES as u64 + 1).read_to_end(&mut text).map_err(|e| rows.unreadable(e))?;
                if text.len() > RECORD_BYTES {
                    return Err(rows.unreadable(format!("its text has more than {} MiB", RECORD_BYTES >> 20)));
                }
                append(rows, &text, 1)?;
                Ok(false)
            }
            TextReader::Lines(lines) => {
                while !rows.is_full() {
                    match lines.next().map_err(|e| rows.unreadable(e))? {
                        Some((line, number)) => append(rows, line, number)?,
                        None => return Ok(false),
                    }
                }
                Ok(true)
            }
        }
    }
}

fn append(rows: &mut Rows, text: &[u8], line: u64) -> Result<()> {
    let text = String::from_utf8_lossy(text);
    if let Some(column) = rows.group().column(0) {
        column.append_text(&text);
    }
    rows.push(Record::Appended { fit: Fit::Whole, text: &text }, line)
}

/// The one row of a file as it is; its content is only read where it is asked for.
pub(super) fn binary(input: std::fs::File, file: &FileId, schema: &SchemaRef) -> Result<RecordBatch, Failure> {
    let mut columns: Vec<(Field, ArrayRef)> = Vec::new();
    for field in schema.fields() {
        let name = field.name().to_lowercase();
        let column: ArrayRef = match name.as_str() {
            "path" => Arc::new(StringArray::from(vec![file.path.as_str()])),
            "modificationtime" => {
                Arc::new(TimestampMicrosecondArray::from(vec![file.modified_micros]).with_timezone("UTC"))
            }
            "length" => Arc::new(Int64Array::from(vec![i64::try_from(file.size)?])),
            "content" => {
                if file.size > RECORD_BYTES as u64 {
                    return Err(format!("its content has more than {} MiB", RECORD_BYTES >> 20).into());
                }
                let mut content = Vec::new();
                (&input).take(file.size).read_to_end(&mut content)?;
                Arc::new(BinaryArray::from_vec(vec![&content]))
            }
            _ => arrow::array::new_null_array(field.data_type(), 1),
        };
        columns.push((Field::new(field.name(), column.data_type().clone(), true), column));
    }
    let (fields, columns): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(1));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
}
