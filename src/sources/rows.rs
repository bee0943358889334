//! Rows that are gathered for a batch, with the columns that no record has of its own.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray, StringBuilder, StructArray,
    TimestampMicrosecondArray, UInt32Array, new_null_array,
};
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};

use super::columns::{Fit, Group, Reading};
use super::files::{BATCH_ROWS, METADATA, ReadStats, metadata_field, unreadable};
use super::options::Mode;
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::lake::types::{conform, position};

/// Bytes of records after which a batch is full.
const BATCH_BYTES: usize = 16 << 20;

/// Columns that do not come from a record's own fields.
#[derive(Clone, Debug)]
pub(super) struct Special {
    pub(super) corrupt: Option<usize>,
    pub(super) rescued: Option<usize>,
    /// Columns with the same value in all rows of a file, as an array of it.
    pub(super) constants: Vec<(usize, ArrayRef)>,
}

impl Special {
    /// Whether the column at a place is one of them.
    pub(super) fn has(&self, at: usize) -> bool {
        Some(at) == self.corrupt || Some(at) == self.rescued || self.constant(at).is_some()
    }

    fn constant(&self, at: usize) -> Option<&ArrayRef> {
        self.constants.iter().find(|x| x.0 == at).map(|x| &x.1)
    }
}

/// What came of one record.
pub(super) enum Record<'a> {
    /// Its fields were appended to the group.
    Appended { fit: Fit, text: &'a str },
    /// It is nothing that has fields.
    Malformed(&'a str),
}

/// Rows that are being gathered for a batch.
pub(super) struct Rows {
    file: FileId,
    mode: Mode,
    group: Group,
    keep: Vec<bool>,
    /// Bytes of the records that are gathered.
    bytes: usize,
    corrupt: Option<StringBuilder>,
    rescued: Option<StringBuilder>,
    file_path: String,
    pub(super) stats: ReadStats,
}

impl Rows {
    pub(super) fn new(
        file: &FileId,
        fields: &Fields,
        special: &Special,
        mode: Mode,
        reading: &Rc<Reading>,
    ) -> Result<Rows> {
        Ok(Rows {
            file: file.clone(),
            mode,
            group: Group::new(fields, reading)?,
            keep: Vec::with_capacity(BATCH_ROWS),
            bytes: 0,
            corrupt: special.corrupt.map(|_| StringBuilder::new()),
            rescued: special.rescued.map(|_| StringBuilder::new()),
            file_path: file_path_member(file),
            stats: ReadStats::default(),
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.keep.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    pub(super) fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    /// Whether what does not fit is kept as rescued data.
    pub(super) fn rescues(&self) -> bool {
        self.rescued.is_some()
    }

    pub(super) fn unreadable(&self, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        unreadable(&self.file, e)
    }

    /// Takes note of a record, the fields of which were appended if it has any.
    pub(super) fn push(&mut self, record: Record<'_>, line: u64) -> Result<()> {
        let (mut rescued, mut corrupt, mut keep) = (None, None, true);
        let (Record::Appended { text, .. } | Record::Malformed(text)) = &record;
        self.bytes += text.len();
        let whole = match &record {
            Record::Appended { fit: Fit::Whole, .. } => true,
            // A record that lacks fields has lost none that could be rescued.
            Record::Appended { fit: Fit::Partly(lost), .. } if self.rescued.is_some() && lost.len() > "{}".len() => {
                let members = lost.strip_suffix('}').unwrap_or(lost);
                rescued = Some(format!("{members}{}", self.file_path));
                self.stats.rescued += 1;
                true
            }
            Record::Appended { .. } => false,
            Record::Malformed(_) => {
                self.group.append_null();
                false
            }
        };
        if !whole {
            self.stats.malformed += 1;
            match self.mode {
                Mode::Permissive => corrupt = Some(*text),
                Mode::DropMalformed => {
                    self.stats.dropped += 1;
                    keep = false;
                }
                Mode::FailFast => {
                    let shown: String = text.chars().take(200).collect();
                    return Err(Error::external(
                        "MALFORMED_RECORD",
                        format!("malformed record in {}, line {line}", self.file.path),
                    )
                    .details([shown])
                    .help("correct the file, or read it with mode => 'PERMISSIVE' or 'DROPMALFORMED'"));
                }
            }
        }
        if let Some(builder) = &mut self.corrupt {
            builder.append_option(corrupt);
        }
        if let Some(builder) = &mut self.rescued {
            builder.append_option(rescued);
        }
        self.keep.push(keep);
        Ok(())
    }

    /// The gathered rows: the data columns of `stored`, and the two special ones.
    pub(super) fn finish(
        &mut self,
        stored: &SchemaRef,
        special: &Special,
        schema: &SchemaRef,
        file: &FileId,
    ) -> Result<RecordBatch> {
        let keep = std::mem::take(&mut self.keep);
        self.bytes = 0;
        let columns = self.group.finish()?;
        let data = batch(Arc::clone(stored), columns, keep.len())?;
        let corrupt = self.corrupt.as_mut().map(|x| Arc::new(x.finish()) as ArrayRef);
        let rescued = self.rescued.as_mut().map(|x| Arc::new(x.finish()) as ArrayRef);
        let rows = assemble(&data, corrupt, rescued, special, schema, file)?;
        if keep.iter().all(|x| *x) {
            return Ok(rows);
        }
        filter_record_batch(&rows, &BooleanArray::from(keep))
            .map_err(|e| Error::internal("rows cannot be filtered").caused_by(e))
    }
}

/// The end of a rescued object that names the file.
pub(super) fn file_path_member(file: &FileId) -> String {
    format!(",\"_file_path\":{}}}", serde_json::to_string(&file.path).unwrap_or_default())
}

fn batch(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
        .map_err(|e| Error::internal("columns cannot be put together").caused_by(e))
}

/// Rows in the order of the schema that was asked for, with the columns that a record does not have itself.
pub(super) fn assemble(
    data: &RecordBatch,
    corrupt: Option<ArrayRef>,
    rescued: Option<ArrayRef>,
    special: &Special,
    schema: &SchemaRef,
    file: &FileId,
) -> Result<RecordBatch> {
    let rows = data.num_rows();
    let nulls = || new_null_array(&DataType::Utf8, rows);
    let mut fields = Vec::with_capacity(schema.fields().len());
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (i, field) in schema.fields().iter().enumerate() {
        let column = if Some(i) == special.corrupt {
            corrupt.clone().unwrap_or_else(nulls)
        } else if Some(i) == special.rescued {
            rescued.clone().unwrap_or_else(nulls)
        } else if let Some(value) = special.constant(i) {
            take(value, &UInt32Array::from_value(0, rows), None)
                .map_err(|e| Error::internal("a value cannot be repeated").caused_by(e))?
        } else if field.name() == METADATA {
            metadata(file, rows)?
        } else {
            let at = position(data.schema_ref().fields(), field.name())
                .ok_or_else(|| Error::internal("a column got lost"))?;
            Arc::clone(data.column(at))
        };
        fields.push(Field::new(field.name(), column.data_type().clone(), true));
        columns.push(column);
    }
    let found = batch(Arc::new(Schema::new(fields)), columns, rows)?;
    let relaxed: Vec<Field> = schema.fields().iter().map(|x| x.as_ref().clone().with_nullable(true)).collect();
    conform(&found, &Arc::new(Schema::new(relaxed)))
}

fn metadata(file: &FileId, rows: usize) -> Result<ArrayRef> {
    let DataType::Struct(fields) = metadata_field().data_type().clone() else {
        return Err(Error::internal("no metadata"));
    };
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let size = i64::try_from(file.size).unwrap_or(i64::MAX);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n(&file.path, rows))),
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n(name, rows))),
        Arc::new(Int64Array::from_value(size, rows)),
        Arc::new(Int64Array::from_value(0, rows)),
        Arc::new(Int64Array::from_value(size, rows)),
        Arc::new(TimestampMicrosecondArray::from_value(file.modified_micros, rows).with_timezone("UTC")),
    ];
    let made = StructArray::try_new(fields, columns, None).map_err(|e| Error::internal("no metadata").caused_by(e))?;
    Ok(Arc::new(made))
}
