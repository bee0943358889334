//! Files as a source: listing, inferring a schema, reading records.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray, StringBuilder, StructArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};

use super::columns::{Fit, Group, utc, with_field};
use super::csv::CsvReader;
use super::infer;
use super::json::JsonReader;
use super::listing::{Landing, Place, identify};
use super::options::{Format, Mode, Options};
use super::parquet::ParquetReader;
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::lake::types::{conform, position, stored_schema};
use crate::pipeline::ReadFiles;

/// Rows of a batch.
pub(super) const BATCH_ROWS: usize = 8192;
/// Name of the column with what is known of the file.
pub const METADATA: &str = "_metadata";
/// Name of the rescued data column of an inferred schema.
const RESCUED: &str = "_rescued_data";
/// Files and bytes that inference looks at.
const SAMPLE: (usize, u64) = (1000, 256 << 20);

/// The column `_metadata`: path, name, size and modification time of the file that a row came from.
pub fn metadata_field() -> Field {
    let fields = vec![
        Field::new("file_path", DataType::Utf8, true),
        Field::new("file_name", DataType::Utf8, true),
        Field::new("file_size", DataType::Int64, true),
        Field::new("file_modification_time", utc(), true),
    ];
    Field::new(METADATA, DataType::Struct(fields.into()), true)
}

/// What reading a file came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Rows that were handed out.
    pub rows: u64,
    /// Records that were not, or not wholly, understood.
    pub malformed: u64,
    /// Records left out for that reason.
    pub dropped: u64,
    /// Rows of which something was put into the rescued data column.
    pub rescued: u64,
}

impl std::ops::AddAssign for ReadStats {
    fn add_assign(&mut self, other: ReadStats) {
        self.rows += other.rows;
        self.malformed += other.malformed;
        self.dropped += other.dropped;
        self.rescued += other.rescued;
    }
}

/// The files of one `read_files`.
#[derive(Clone, Debug)]
pub struct FileSource {
    path: String,
    place: Place,
    format: Format,
    options: Options,
}

impl FileSource {
    /// Checks path and options. The format is the option's, else that of the file name, else that of the first file there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, `UNKNOWN_OPTION`, `INVALID_OPTION`, `INVALID_SCHEMA_HINTS`, `INVALID_PATH`, `MISSING_FORMAT` (user).
    pub fn new(read: &ReadFiles) -> Result<FileSource> {
        let options = Options::parse(&read.options)?;
        let place = Place::parse(&read.path)?;
        let format = match options.format {
            Some(format) => format,
            None => match format_of(&read.path)? {
                Some(format) => format,
                None => {
                    let first = place.list(&options).ok().flatten().and_then(|x| x.into_iter().next());
                    first.map(|x| format_of(&x.path)).transpose()?.flatten().ok_or_else(|| {
                        Error::user("MISSING_FORMAT", format!("the format of the files in {} is not known", read.path))
                            .help("say format => 'json', 'csv' or 'parquet'")
                    })?
                }
            },
        };
        Ok(FileSource { path: read.path.clone(), place, format, options })
    }

    /// Folder, file or pattern, as given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// How the files are understood.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Files that one epoch reads at most.
    pub fn max_files_per_trigger(&self) -> usize {
        self.options.max_files
    }

    /// Bytes after which an epoch takes no further file.
    pub fn max_bytes_per_trigger(&self) -> Option<u64> {
        self.options.max_bytes
    }

    /// The files that are there and not `seen`, sorted by path. Names that begin with `_` or `.` are not looked at.
    /// `read_before` says that files were read from here once; then a place that is gone has nothing new.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` (external) if the place does not exist; `SOURCE_NOT_READABLE` (external).
    pub fn discover(&self, seen: impl Fn(&str) -> bool, read_before: bool) -> Result<Vec<FileId>> {
        match self.place.list(&self.options)? {
            Some(files) => Ok(files.into_iter().filter(|x| !seen(&x.path)).collect()),
            None if read_before => Ok(Vec::new()),
            None => Err(Error::external("SOURCE_NOT_FOUND", format!("there is no file or folder {}", self.path))
                .help("check the path of read_files; a relative one counts from the folder of the project file")),
        }
    }

    /// As [`discover`](Self::discover), of the files at `paths` alone. None if a listing is needed to tell. Costs what it is
    /// asked for, however many files there are.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE` (external).
    pub fn discover_among<'a>(
        &self,
        paths: impl Iterator<Item = &'a Path>,
        seen: impl Fn(&str) -> bool,
    ) -> Result<Option<Vec<FileId>>> {
        let found = self.place.among(paths, &self.options)?;
        Ok(found.map(|files| files.into_iter().filter(|x| !seen(&x.path)).collect()))
    }

    /// Where files land: where to watch for them.
    pub fn landing(&self) -> Landing {
        self.place.landing(&self.options)
    }

    /// The schema that the files have, with `schemaHints` and, unless `schemaEvolutionMode` is none, the rescued data
    /// column. Fields are in order of their names. Looks at the first 1000 files and 256 MiB.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE`, `SOURCE_FILE_CHANGED` (external), naming the file; `EMPTY_SOURCE` (user) if there is nothing
    /// to infer from.
    pub fn infer(&self, files: &[FileId]) -> Result<SchemaRef> {
        let mut fields = Fields::empty();
        let mut bytes = 0;
        let mut found = infer::Inference::new(self.options.infer_types);
        for file in files.iter().take(SAMPLE.0) {
            if bytes > SAMPLE.1 {
                break;
            }
            bytes += file.size;
            let input = open(file)?;
            found.add(self.format, input, &self.options).map_err(|e| unreadable(file, e))?;
        }
        if let Some(inferred) = found.finish() {
            fields = inferred;
        }
        for (path, data_type) in &self.options.hints {
            fields = with_field(&fields, path, data_type);
        }
        if fields.is_empty() {
            return Err(Error::user(
                "EMPTY_SOURCE",
                format!("no schema can be inferred from {}: there are no records", self.path),
            )
            .help("declare the columns with schema => '…'"));
        }
        let rescued = self.options.rescued_column.as_deref().or(self.options.rescue_inferred.then_some(RESCUED));
        stored_schema(&with_rescued(&Schema::new(fields), rescued))
    }

    /// A declared schema as the files are read with it: every column nullable, and the rescued data column added if
    /// the option asks for it.
    pub fn declared(&self, schema: &Schema) -> SchemaRef {
        let fields: Vec<Field> = schema.fields().iter().map(|x| x.as_ref().clone().with_nullable(true)).collect();
        Arc::new(with_rescued(&Schema::new(fields), self.options.rescued_column.as_deref()))
    }

    /// Opens a file for reading in batches of `schema`, which is one that [`infer`](Self::infer) or
    /// [`declared`](Self::declared) gave, perhaps with [`metadata_field`] at its end. Columns are matched by name
    /// without regard to case; absent ones are null.
    ///
    /// # Errors
    /// `SOURCE_FILE_CHANGED` (external) if it is not the file that was discovered; `SOURCE_NOT_READABLE` (external),
    /// naming the file; `UNSUPPORTED_DATA_TYPE` (user). The reader's items fail with the same codes, and with
    /// `MALFORMED_RECORD` (external), naming file and line, in the mode FAILFAST.
    pub fn read(&self, file: &FileId, schema: &SchemaRef) -> Result<FileReader> {
        let rescued = self.options.rescued_column.as_deref().unwrap_or(RESCUED);
        let special = |name: &str| {
            schema.fields().iter().position(|x| x.name().eq_ignore_ascii_case(name) && x.data_type() == &DataType::Utf8)
        };
        let special = Special { corrupt: special(&self.options.corrupt_column), rescued: special(rescued) };
        let data: Fields = schema
            .fields()
            .iter()
            .enumerate()
            .filter(|(i, x)| Some(*i) != special.corrupt && Some(*i) != special.rescued && x.name() != METADATA)
            .map(|(_, x)| x.as_ref().clone().with_nullable(true))
            .collect();
        let stored = stored_schema(&Schema::new(data))?;
        let input = open(file)?;
        let rows = || Rows::new(file, stored.fields(), &special, self.options.mode);
        let inner = match self.format {
            Format::Json => {
                let reader = JsonReader::open(input, self.options.multi_line).map_err(|e| unreadable(file, e))?;
                Inner::Json(Box::new(reader), Box::new(rows()?))
            }
            Format::Csv => {
                let reader = CsvReader::open(input, &self.options, stored.fields()).map_err(|e| unreadable(file, e))?;
                Inner::Csv(Box::new(reader), Box::new(rows()?))
            }
            Format::Parquet => Inner::Parquet(Box::new(
                ParquetReader::open(input, file, &stored, special.rescued.is_some())
                    .map_err(|e| unreadable(file, e))?,
            )),
        };
        Ok(FileReader {
            file: file.clone(),
            schema: Arc::clone(schema),
            stored,
            special,
            inner,
            stats: ReadStats::default(),
            done: false,
        })
    }
}

fn with_rescued(schema: &Schema, rescued: Option<&str>) -> Schema {
    match rescued {
        Some(name) if position(schema.fields(), name).is_none() => {
            let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
            fields.push(Arc::new(Field::new(name, DataType::Utf8, true)));
            Schema::new(fields)
        }
        _ => schema.clone(),
    }
}

/// The format that a file name tells; an error for one that is known not to be readable.
fn format_of(path: &str) -> Result<Option<Format>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, end)) = name.rsplit_once('.') else { return Ok(None) };
    match Format::from_name(end) {
        Some(format) => Ok(Some(format)),
        None => match end.to_lowercase().as_str() {
            end @ ("xml" | "avro" | "orc" | "txt" | "gz" | "zip" | "bz2" | "zst" | "snappy") => {
                Err(Error::user("NOT_SUPPORTED", format!("{end} files are not supported: {path}"))
                    .help("json, csv and parquet are"))
            }
            _ => Ok(None),
        },
    }
}

/// Opens a file and makes sure that it is the one that was discovered.
fn open(file: &FileId) -> Result<File> {
    let end = file.path.rsplit('.').next().unwrap_or_default().to_lowercase();
    if ["gz", "zip", "bz2", "zst", "xz"].contains(&end.as_str()) {
        return Err(Error::user("NOT_SUPPORTED", format!("compressed files are not supported yet: {}", file.path))
            .help("unpack it, or leave it out with pathGlobFilter"));
    }
    let input = File::open(&file.path).map_err(|e| unreadable(file, e))?;
    let found = input.metadata().and_then(|x| identify(&file.path, &x)).map_err(|e| unreadable(file, e))?;
    unchanged(file, &found)?;
    Ok(input)
}

fn unchanged(file: &FileId, found: &FileId) -> Result<()> {
    if file == found {
        return Ok(());
    }
    Err(Error::external("SOURCE_FILE_CHANGED", format!("the file {} changed after it was found", file.path))
        .details([format!(
            "{} bytes, modified at {} µs, were {} bytes, modified at {} µs",
            found.size, found.modified_micros, file.size, file.modified_micros
        )])
        .help("write new files under new names, and move them into the folder when they are whole"))
}

pub(super) fn unreadable(file: &FileId, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::external("SOURCE_NOT_READABLE", format!("cannot read the file {}", file.path)).caused_by(e)
}

/// Columns that do not come from a record's own fields.
#[derive(Clone, Debug)]
struct Special {
    corrupt: Option<usize>,
    rescued: Option<usize>,
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
    corrupt: Option<StringBuilder>,
    rescued: Option<StringBuilder>,
    file_path: String,
    stats: ReadStats,
}

impl Rows {
    fn new(file: &FileId, fields: &Fields, special: &Special, mode: Mode) -> Result<Rows> {
        let rescue = special.rescued.is_some();
        Ok(Rows {
            file: file.clone(),
            mode,
            group: Group::new(fields, rescue)?,
            keep: Vec::with_capacity(BATCH_ROWS),
            corrupt: special.corrupt.map(|_| StringBuilder::new()),
            rescued: special.rescued.map(|_| StringBuilder::new()),
            file_path: file_path_member(file),
            stats: ReadStats::default(),
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.keep.len() >= BATCH_ROWS
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
            let (Record::Appended { text, .. } | Record::Malformed(text)) = record;
            self.stats.malformed += 1;
            match self.mode {
                Mode::Permissive => corrupt = Some(text),
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
    fn finish(
        &mut self,
        stored: &SchemaRef,
        special: &Special,
        schema: &SchemaRef,
        file: &FileId,
    ) -> Result<RecordBatch> {
        let keep = std::mem::take(&mut self.keep);
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
fn assemble(
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
        Arc::new(TimestampMicrosecondArray::from_value(file.modified_micros, rows).with_timezone("UTC")),
    ];
    let made = StructArray::try_new(fields, columns, None).map_err(|e| Error::internal("no metadata").caused_by(e))?;
    Ok(Arc::new(made))
}

enum Inner {
    Json(Box<JsonReader>, Box<Rows>),
    Csv(Box<CsvReader>, Box<Rows>),
    Parquet(Box<ParquetReader>),
}

/// The rows of one file, in batches. After an error there are no more.
pub struct FileReader {
    file: FileId,
    schema: SchemaRef,
    stored: SchemaRef,
    special: Special,
    inner: Inner,
    stats: ReadStats,
    done: bool,
}

impl FileReader {
    /// Counts so far; complete when the reader has ended.
    pub fn stats(&self) -> ReadStats {
        match &self.inner {
            Inner::Json(_, rows) | Inner::Csv(_, rows) => ReadStats { rows: self.stats.rows, ..rows.stats },
            Inner::Parquet(_) => self.stats,
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let (more, rows) = match &mut self.inner {
            Inner::Json(reader, rows) => (reader.fill(rows)?, rows),
            Inner::Csv(reader, rows) => (reader.fill(rows)?, rows),
            Inner::Parquet(reader) => {
                let Some((data, rescued)) = reader.next().map_err(|e| unreadable(&self.file, e))? else {
                    self.done = true;
                    self.check_unchanged()?;
                    return Ok(None);
                };
                self.stats.rescued += rescued.as_ref().map_or(0, |x| (x.len() - x.null_count()) as u64);
                return assemble(&data, None, rescued, &self.special, &self.schema, &self.file).map(Some);
            }
        };
        let out = rows.finish(&self.stored, &self.special, &self.schema, &self.file)?;
        if !more {
            self.done = true;
            self.check_unchanged()?;
        }
        Ok(Some(out))
    }

    /// What was read is what was recorded only if the file did not change meanwhile.
    fn check_unchanged(&self) -> Result<()> {
        match fs::metadata(&self.file.path).and_then(|x| identify(&self.file.path, &x)) {
            Ok(found) => unchanged(&self.file, &found),
            // An open file that was removed has been read whole.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(unreadable(&self.file, e)),
        }
    }
}

impl Iterator for FileReader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.next_batch() {
                Ok(Some(batch)) if batch.num_rows() > 0 => {
                    self.stats.rows += batch.num_rows() as u64;
                    return Some(Ok(batch));
                }
                Ok(_) => {}
                Err(e) => {
                    self.done = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}
