//! Files as a source: listing, inferring a schema, reading records.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::new_null_array;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};

use super::columns::{Reading, utc, with_field};
use super::infer::Inference;
use super::input::{Bytes, packing, text, unpacked};
use super::listing::{Landing, Place, identify};
use super::options::{Clean, Evolution, FORMATS, Format, Options};
use super::partitions;
use super::parts::{Part, lines};
use super::reader::FileReader;
use super::rows::Special;
use super::text::{binary_fields, check_text, text_fields};
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::lake::types::{position, stored_schema};
use crate::pipeline::{Kept, ReadFiles};

/// Rows of a batch.
pub(super) const BATCH_ROWS: usize = 8192;
/// Name of the column with what is known of the file.
pub const METADATA: &str = "_metadata";
/// Name of the rescued data column of an inferred schema.
const RESCUED: &str = "_rescued_data";
/// How many times larger the rows of packed files are, and of those in columns.
const UNPACKED: u64 = 4;
/// Files and bytes that inference looks at.
const SAMPLE: (usize, u64) = (1000, 256 << 20);
/// Code of the error of a file that has columns which the schema is to get.
pub const NEW_COLUMNS: &str = "NEW_COLUMNS";

/// The column `_metadata`: path, name, size and modification time of the file that a row came from, and the part of the
/// file that was read at once, which is all of it.
pub fn metadata_field() -> Field {
    let fields = vec![
        Field::new("file_path", DataType::Utf8, true),
        Field::new("file_name", DataType::Utf8, true),
        Field::new("file_size", DataType::Int64, true),
        Field::new("file_block_start", DataType::Int64, true),
        Field::new("file_block_length", DataType::Int64, true),
        Field::new("file_modification_time", utc(), true),
    ];
    Field::new(METADATA, DataType::Struct(fields.into()), true)
}

/// What reading a file came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadStats {
    /// Rows that were handed out.
    pub rows: u64,
    /// Records that were not, or not wholly, understood.
    pub malformed: u64,
    /// Records left out for that reason.
    pub dropped: u64,
    /// Rows of which something was put into the rescued data column.
    pub rescued: u64,
    /// Files that could not be read to their end, where that is no error.
    pub corrupt_files: u64,
}

impl std::ops::AddAssign for ReadStats {
    fn add_assign(&mut self, other: ReadStats) {
        self.rows += other.rows;
        self.malformed += other.malformed;
        self.dropped += other.dropped;
        self.rescued += other.rescued;
        self.corrupt_files += other.corrupt_files;
    }
}

/// The files of one `read_files`.
#[derive(Clone, Debug)]
pub struct FileSource {
    path: String,
    place: Place,
    format: Format,
    evolution: Evolution,
    options: Options,
    kept: Option<Kept>,
}

impl FileSource {
    /// Checks path and options. The format is the option's, else that of the file name, else that of the first file there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, `INVALID_OPTION`, `INVALID_SCHEMA_HINTS`, `INVALID_PATH`, `MISSING_FORMAT` (user).
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
                            .help(format!("say format => '…': {FORMATS}"))
                    })?
                }
            },
        };
        let evolution = match (options.evolution, &read.schema) {
            (Some(Evolution::AddNewColumns), Some(_)) => {
                return Err(Error::user("INVALID_OPTION", "a schema that is declared does not grow by itself")
                    .help("leave out schema and give types with schemaHints, or use the schemaEvolutionMode rescue"));
            }
            (Some(given), _) => given,
            (None, Some(_)) => Evolution::None,
            (None, None) => Evolution::AddNewColumns,
        };
        if let (Format::Text, Some(schema)) = (format, &read.schema) {
            check_text(schema.fields())?;
        }
        if let Clean::Move(to) = &options.clean
            && place.holds(to)
        {
            return Err(Error::user("INVALID_OPTION", format!("files that are moved to {to} would be read again"))
                .help("move them to a folder outside the one that is read"));
        }
        Ok(FileSource { path: read.path.clone(), place, format, evolution, options, kept: read.kept.clone() })
    }

    /// Folder, file or pattern, as given.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The folder below which all files are, or the file.
    pub fn root(&self) -> &Path {
        self.place.root()
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// How the files are understood.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What is to be said of the options: a stable code and a sentence.
    pub fn warnings(&self) -> &[(&'static str, String)] {
        &self.options.warnings
    }

    /// Files that one epoch reads at most.
    pub fn max_files_per_trigger(&self) -> usize {
        self.options.max_files
    }

    /// Bytes after which an epoch takes no further file.
    pub fn max_bytes_per_trigger(&self) -> Option<u64> {
        self.options.max_bytes
    }

    /// About how many bytes the rows of a file are: packed files and those in columns are several times as large then.
    pub fn unpacked_size(&self, file: &FileId) -> u64 {
        let packed = packing(&file.path).is_ok_and(|(packing, _)| packing.is_some());
        let columns = matches!(self.format, Format::Parquet | Format::Avro);
        file.size.saturating_mul(if packed || columns { UNPACKED } else { 1 })
    }

    /// Whether files that are there when the source is first looked at are read.
    pub fn includes_existing(&self) -> bool {
        self.options.include_existing
    }

    /// Whether a file that has changed since it was read is read once more.
    pub fn allows_overwrites(&self) -> bool {
        self.options.allow_overwrites
    }

    /// What becomes of a file after it was read, and after how many microseconds; `None` if it stays.
    pub fn clean(&self) -> Option<(&Clean, i64)> {
        (self.options.clean != Clean::Off).then_some((&self.options.clean, self.options.retention))
    }

    /// The files that are there and not `seen`, sorted by path. Hidden and temporary names are not looked at.
    /// `read_before` says that files were read from here once; then a place that is gone has nothing new.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` (external) if the place does not exist; `SOURCE_NOT_READABLE` (external).
    pub fn discover(&self, seen: impl Fn(&FileId) -> bool, read_before: bool) -> Result<Vec<FileId>> {
        match self.place.list(&self.options)? {
            Some(files) => Ok(files.into_iter().filter(|x| !seen(x)).collect()),
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
        seen: impl Fn(&FileId) -> bool,
    ) -> Result<Option<Vec<FileId>>> {
        let found = self.place.among(paths, &self.options)?;
        Ok(found.map(|files| files.into_iter().filter(|x| !seen(x)).collect()))
    }

    /// Where files land: where to watch for them.
    pub fn landing(&self) -> Landing {
        self.place.landing(&self.options)
    }

    /// The schema that the files have, with `schemaHints`, columns for partitions in paths and, unless
    /// `schemaEvolutionMode` is none, the rescued data column. Looks at the first 1000 files and 256 MiB.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE`, `SOURCE_FILE_CHANGED` (external), naming the file; `EMPTY_SOURCE` (user) if there is nothing
    /// to infer from.
    pub fn infer(&self, files: &[FileId]) -> Result<SchemaRef> {
        let fields = self.inferred(files, SAMPLE)?;
        if fields.is_empty() {
            return Err(Error::user(
                "EMPTY_SOURCE",
                format!("no schema can be inferred from {}: there are no records", self.path),
            )
            .help("declare the columns with schema => '…'"));
        }
        let rescues = self.evolution != Evolution::None && !matches!(self.format, Format::Text | Format::Binary);
        let rescued = self.options.rescued_column.as_deref().or(rescues.then_some(RESCUED));
        stored_schema(&with_rescued(&Schema::new(fields), rescued))
    }

    /// Looks at so many files and bytes.
    fn inferred(&self, files: &[FileId], sample: (usize, u64)) -> Result<Fields> {
        let mut fields = match self.format {
            Format::Text => text_fields(),
            Format::Binary => binary_fields(),
            _ => {
                let mut bytes = 0;
                let mut found = Inference::new(&self.options);
                for file in files.iter().take(sample.0) {
                    if bytes > sample.1 {
                        break;
                    }
                    bytes += file.size;
                    match self.open(file, &Part::Whole) {
                        Ok(input) => found.add(self.format, input, &self.options).map_err(|e| unreadable(file, e))?,
                        Err(e) if self.options.ignore_missing && e.code() == MISSING => {}
                        Err(e) => return Err(e),
                    }
                }
                found.finish().unwrap_or_else(Fields::empty)
            }
        };
        let typed = self.options.infer_types.unwrap_or(self.format != Format::Csv);
        for (name, data_type) in partitions::columns(self.place.root(), files, self.partitions(), typed) {
            fields = with_field(&fields, &[name], &data_type);
        }
        for (path, data_type) in &self.options.hints {
            fields = with_field(&fields, path, data_type);
        }
        Ok(fields)
    }

    /// The schema with what `files` have and it lacks: new columns, and new members of structs, at the end. Looks at all of
    /// every file.
    ///
    /// # Errors
    /// As [`infer`](Self::infer).
    pub fn grown(&self, schema: &SchemaRef, files: &[FileId]) -> Result<SchemaRef> {
        let grown = grow(schema.fields(), &self.inferred(files, (usize::MAX, u64::MAX))?);
        stored_schema(&Schema::new(grown))
    }

    /// A declared schema as the files are read with it: every column nullable, and the rescued data column added if
    /// the option asks for it.
    pub fn declared(&self, schema: &Schema) -> SchemaRef {
        let fields: Vec<Field> = schema.fields().iter().map(|x| x.as_ref().clone().with_nullable(true)).collect();
        Arc::new(with_rescued(&Schema::new(fields), self.options.rescued_column.as_deref()))
    }

    /// Which keys of paths are columns.
    fn partitions(&self) -> partitions::Wanted<'_> {
        match (&self.options.partition_columns, self.options.recursive) {
            (Some(names), _) => partitions::Wanted::Names(names),
            (None, Some(true)) => partitions::Wanted::None,
            (None, _) => partitions::Wanted::All,
        }
    }

    /// Opens a file for reading in batches of `schema`, which is one that [`infer`](Self::infer) or
    /// [`declared`](Self::declared) gave, perhaps with [`metadata_field`] at its end. Columns are matched by name, without
    /// regard to case unless what does not fit is rescued; absent ones are null.
    ///
    /// # Errors
    /// `SOURCE_FILE_CHANGED` (external) if it is not the file that was discovered; `SOURCE_NOT_READABLE` (external),
    /// naming the file; `UNSUPPORTED_DATA_TYPE` (user). The reader's items fail with the same codes, with
    /// `MALFORMED_RECORD` (external), naming file and line, in the mode FAILFAST, and with [`NEW_COLUMNS`] or
    /// `UNKNOWN_FIELD` (external) where the schema lacks columns that it is to get, or must have.
    pub fn read(&self, file: &FileId, schema: &SchemaRef) -> Result<FileReader> {
        self.read_used(file, schema, &(0..schema.fields().len()).collect())
    }

    /// As [`read`](Self::read), with nulls for what is not `used`, as far as that saves reading it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_used(&self, file: &FileId, schema: &SchemaRef, used: &BTreeSet<usize>) -> Result<FileReader> {
        self.read_part(file, &Part::Whole, schema, used)
    }

    /// As [`read_used`](Self::read_used), of one of the [`parts`](Self::parts) of a file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_part(
        &self,
        file: &FileId,
        part: &Part,
        schema: &SchemaRef,
        used: &BTreeSet<usize>,
    ) -> Result<FileReader> {
        let rescued = self.options.rescued_column.as_deref().unwrap_or(RESCUED);
        let special = |name: &str| {
            schema.fields().iter().position(|x| x.name().eq_ignore_ascii_case(name) && x.data_type() == &DataType::Utf8)
        };
        let columnar = matches!(self.format, Format::Parquet | Format::Avro | Format::Binary);
        let reading = Reading {
            instants: self.options.instants()?,
            rescue: special(rescued).is_some_and(|at| !columnar || used.contains(&at)),
            exact: special(rescued).is_some() && self.options.case_sensitive,
            unknown: matches!(self.evolution, Evolution::AddNewColumns | Evolution::FailOnNewColumns)
                .then(|| RefCell::new(Default::default())),
            kept: self.kept.clone(),
        };
        let reading = Rc::new(reading);
        let mut constants = partitions::values(self.place.root(), file, self.partitions(), schema, &reading)?;
        if columnar && !reading.rescue {
            let fields =
                schema.fields().iter().enumerate().filter(|(i, field)| !used.contains(i) && field.name() != METADATA);
            constants.extend(fields.map(|(i, field)| (i, new_null_array(field.data_type(), 1))));
        }
        let special = Special { corrupt: special(&self.options.corrupt_column), rescued: special(rescued), constants };
        let input = match self.open(file, part) {
            Ok(input) => Some(input),
            Err(e) if self.options.ignore_missing && e.code() == MISSING => None,
            Err(e) => return Err(e),
        };
        FileReader::open(self.format, input, file, schema, special, reading, &self.options, self.evolution, part)
    }

    /// Opens a file and makes sure that it is the one that was discovered.
    fn open(&self, file: &FileId, part: &Part) -> Result<Input> {
        let unsupported = |what: &str| {
            Error::user("NOT_SUPPORTED", format!("files of {what} cannot be read: {}", file.path))
                .help("pack it with gzip, zstd or bzip2, or leave it out with pathGlobFilter")
        };
        let (packing, _) = match self.format {
            Format::Parquet | Format::Binary => (None, ""),
            _ => packing(&file.path).map_err(unsupported)?,
        };
        let input = File::open(&file.path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                Error::external(MISSING, format!("the file {} is not there any more", file.path)).caused_by(e)
            }
            _ => unreadable(file, e),
        })?;
        let found = input.metadata().and_then(|x| identify(&file.path, &x)).map_err(|e| unreadable(file, e))?;
        unchanged(file, &found)?;
        let bytes = |input| {
            let opened = match part {
                Part::Lines(range) => lines(input, range, self.format == Format::Csv && self.options.header),
                _ => unpacked(input, packing),
            };
            opened.map_err(|e| unreadable(file, e))
        };
        Ok(match self.format {
            Format::Parquet | Format::Binary => Input::File(input),
            Format::Avro => Input::Bytes(bytes(input)?),
            // What looks like a mark elsewhere than at the beginning is none.
            _ if matches!(part, Part::Lines(range) if range.start > 0)
                && !(self.format == Format::Csv && self.options.header) =>
            {
                Input::Bytes(bytes(input)?)
            }
            _ => Input::Bytes(text(bytes(input)?, self.options.charset).map_err(|e| unreadable(file, e))?),
        })
    }
}

/// Code of the error of a file that has been removed since it was found.
const MISSING: &str = "SOURCE_FILE_GONE";

/// What a reader reads from.
pub(super) enum Input {
    /// Any part in any order.
    File(File),
    /// From the beginning to the end.
    Bytes(Bytes),
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

/// Fields with those that others have in addition, at the end; the types that are there stay.
fn grow(known: &Fields, found: &Fields) -> Fields {
    fn grown(known: &DataType, found: &DataType) -> DataType {
        match (known, found) {
            (DataType::Struct(known), DataType::Struct(found)) => DataType::Struct(grow(known, found)),
            (DataType::List(known), DataType::List(found)) => {
                let item = grown(known.data_type(), found.data_type());
                DataType::List(Arc::new(known.as_ref().clone().with_data_type(item)))
            }
            _ => known.clone(),
        }
    }
    let mut out: Vec<Field> = Vec::with_capacity(known.len());
    for field in known {
        let same = position(found, field.name()).and_then(|at| found.get(at));
        let data_type = same.map_or_else(|| field.data_type().clone(), |x| grown(field.data_type(), x.data_type()));
        out.push(field.as_ref().clone().with_data_type(data_type));
    }
    out.extend(found.iter().filter(|x| position(known, x.name()).is_none()).map(|x| x.as_ref().clone()));
    out.into()
}

/// The format that a file name tells; an error for one that is known not to be readable.
fn format_of(path: &str) -> Result<Option<Format>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let refused = |end: &str| {
        Err(Error::user("NOT_SUPPORTED", format!("{end} files are not supported: {path}"))
            .help(format!("{FORMATS} are, also packed with gzip, zstd or bzip2")))
    };
    let name = match packing(name) {
        Ok((_, name)) => name,
        Err(end) => return refused(end),
    };
    let Some((_, end)) = name.rsplit_once('.') else { return Ok(None) };
    match (Format::from_ending(end), end.to_lowercase().as_str()) {
        (Some(format), _) => Ok(Some(format)),
        (None, end @ ("xml" | "orc")) => refused(end),
        _ => Ok(None),
    }
}

pub(super) fn unchanged(file: &FileId, found: &FileId) -> Result<()> {
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
