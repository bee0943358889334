//! Files that have columns and types of their own: their batches, brought to a schema.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder, new_null_array};
use arrow::datatypes::{DataType, Fields, SchemaRef};
use arrow::json::LineDelimitedWriter;

use super::columns::Reading;
use super::rows::file_path_member;
use crate::lake::types::{conform_array, position};
use crate::lake::{Failure, FileId, undamaged};

/// Batches as they are in a file.
pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch, Failure>>>;

/// Reads batches of the columns of a schema; where rescuing is asked for, other columns and columns of a type that does
/// not fit go into a JSON object a row.
pub(super) struct ColumnarReader {
    inner: Batches,
    schema: SchemaRef,
    exact: bool,
    /// End of a rescued object, if rescuing is asked for.
    rescue: Option<String>,
}

impl ColumnarReader {
    pub(super) fn new(inner: Batches, file: &FileId, schema: &SchemaRef, reading: &Reading) -> Self {
        ColumnarReader {
            inner,
            schema: Arc::clone(schema),
            exact: reading.exact,
            rescue: reading.rescue.then(|| file_path_member(file)),
        }
    }

    /// The next rows, and what was rescued of them.
    pub(super) fn next(&mut self) -> Result<Option<(RecordBatch, Option<ArrayRef>)>, Failure> {
        let Some(batch) = undamaged(|| self.inner.next().transpose())? else { return Ok(None) };
        let found = batch.schema_ref().fields();
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        let mut taken = vec![false; batch.num_columns()];
        for field in self.schema.fields() {
            let at = position(found, field.name());
            let at = at.filter(|at| !self.exact || found.get(*at).is_some_and(|x| x.name() == field.name()));
            let Some(at) = at else {
                columns.push(new_null_array(field.data_type(), batch.num_rows()));
                continue;
            };
            let column = batch.column(at);
            match conform_array(column, field.data_type()) {
                Some(fitting) => {
                    if let Some(taken) = taken.get_mut(at) {
                        *taken = !lacks(field.data_type(), column.data_type());
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
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(Some((RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?, rescued)))
    }
}

/// Takes note of the fields of a file that a schema lacks.
pub(super) fn missing(known: &Fields, found: &Fields, reading: &Reading) {
    missing_in(known, found, "", reading);
}

fn missing_in(known: &Fields, found: &Fields, inside: &str, reading: &Reading) {
    for field in found {
        match position(known, field.name()).and_then(|at| known.get(at)) {
            None => reading.miss(inside, field.name()),
            Some(same) => {
                if let (DataType::Struct(known), DataType::Struct(found)) = (same.data_type(), field.data_type()) {
                    missing_in(known, found, &format!("{inside}{}.", field.name()), reading);
                }
            }
        }
    }
}

/// Whether a type lacks members of structs that another one has.
fn lacks(known: &DataType, found: &DataType) -> bool {
    match (known, found) {
        (DataType::Struct(known), DataType::Struct(found)) => found.iter().any(|x| {
            let same = position(known, x.name()).and_then(|at| known.get(at));
            same.is_none_or(|same| lacks(same.data_type(), x.data_type()))
        }),
        (DataType::List(known), DataType::List(found)) => lacks(known.data_type(), found.data_type()),
        _ => false,
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
