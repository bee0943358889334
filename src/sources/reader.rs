//! The rows of one file.

use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{Fields, Schema, SchemaRef};

use super::columnar::ColumnarReader;
use super::columns::Reading;
use super::csv::CsvReader;
use super::files::{Input, METADATA, NEW_COLUMNS, ReadStats, unchanged, unreadable};
use super::json::JsonReader;
use super::listing::identify;
use super::options::{Evolution, Format, Options};
use super::parts::Part;
use super::rows::{Rows, Special, assemble};
use super::text::{TextReader, binary, check_text};
use super::{avro, parquet};
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::lake::types::stored_schema;

enum Inner {
    Json(Box<JsonReader>, Box<Rows>),
    Csv(Box<CsvReader>, Box<Rows>),
    Text(Box<TextReader>, Box<Rows>),
    Columnar(ColumnarReader),
    Binary(Option<fs::File>),
    /// The file is gone, and that is no error.
    Gone,
}

/// The rows of one file, in batches. After an error there are no more.
pub struct FileReader {
    file: FileId,
    schema: SchemaRef,
    stored: SchemaRef,
    special: Special,
    reading: Rc<Reading>,
    evolution: Evolution,
    ignore_corrupt: bool,
    inner: Inner,
    stats: ReadStats,
    done: bool,
}

impl FileReader {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn open(
        format: Format,
        input: Option<Input>,
        file: &FileId,
        schema: &SchemaRef,
        special: Special,
        reading: Rc<Reading>,
        options: &Options,
        evolution: Evolution,
        part: &Part,
    ) -> Result<FileReader> {
        let data: Fields = schema
            .fields()
            .iter()
            .enumerate()
            .filter(|(i, x)| !special.has(*i) && x.name() != METADATA)
            .map(|(_, x)| x.as_ref().clone().with_nullable(true))
            .collect();
        let stored = stored_schema(&Schema::new(data))?;
        if format == Format::Text {
            check_text(stored.fields())?;
        }
        let rows = || Rows::new(file, stored.fields(), &special, options.mode, &reading).map(Box::new);
        let broken = |e| unreadable(file, e);
        let inner = match (format, input) {
            (_, None) => Ok(Inner::Gone),
            (Format::Json, Some(Input::Bytes(input))) => {
                Ok(Inner::Json(Box::new(JsonReader::open(input, options)), rows()?))
            }
            (Format::Csv, Some(Input::Bytes(input))) => {
                let rows = rows()?;
                CsvReader::open(input, options, stored.fields(), &reading)
                    .map(|x| Inner::Csv(Box::new(x), rows))
                    .map_err(broken)
            }
            (Format::Text, Some(Input::Bytes(input))) => {
                Ok(Inner::Text(Box::new(TextReader::open(input, options)), rows()?))
            }
            (Format::Avro, Some(Input::Bytes(input))) => {
                avro::open(input, file, &stored, schema, &reading).map(Inner::Columnar).map_err(broken)
            }
            (Format::Parquet, Some(Input::File(input))) => {
                parquet::open(input, file, &stored, schema, &reading, part).map(Inner::Columnar).map_err(broken)
            }
            (Format::Binary, Some(Input::File(input))) => Ok(Inner::Binary(Some(input))),
            _ => Err(Error::internal("a file was opened for another format")),
        };
        let mut stats = ReadStats::default();
        let inner = match inner {
            Err(e) if options.ignore_corrupt && e.code() == "SOURCE_NOT_READABLE" => {
                stats.corrupt_files = 1;
                Inner::Gone
            }
            other => other?,
        };
        Ok(FileReader {
            file: file.clone(),
            schema: Arc::clone(schema),
            stored,
            special,
            reading,
            evolution,
            ignore_corrupt: options.ignore_corrupt,
            inner,
            stats,
            done: false,
        })
    }

    /// Counts so far; complete when the reader has ended.
    pub fn stats(&self) -> ReadStats {
        match &self.inner {
            Inner::Json(_, rows) | Inner::Csv(_, rows) | Inner::Text(_, rows) => {
                ReadStats { rows: self.stats.rows, corrupt_files: self.stats.corrupt_files, ..rows.stats }
            }
            _ => self.stats,
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let (more, rows) = match &mut self.inner {
            Inner::Json(reader, rows) => (reader.fill(rows)?, rows),
            Inner::Csv(reader, rows) => (reader.fill(rows)?, rows),
            Inner::Text(reader, rows) => (reader.fill(rows)?, rows),
            Inner::Columnar(reader) => {
                self.reading.complete(&self.file, self.evolution)?;
                let Some((data, rescued)) = reader.next().map_err(|e| unreadable(&self.file, e))? else {
                    self.done = true;
                    self.check_unchanged()?;
                    return Ok(None);
                };
                self.stats.rescued += rescued.as_ref().map_or(0, |x| (x.len() - x.null_count()) as u64);
                return assemble(&data, None, rescued, &self.special, &self.schema, &self.file).map(Some);
            }
            Inner::Binary(input) => {
                let Some(input) = input.take() else {
                    self.done = true;
                    self.check_unchanged()?;
                    return Ok(None);
                };
                let data = binary(input, &self.file, &self.stored).map_err(|e| unreadable(&self.file, e))?;
                return assemble(&data, None, None, &self.special, &self.schema, &self.file).map(Some);
            }
            Inner::Gone => {
                self.done = true;
                return Ok(None);
            }
        };
        self.reading.complete(&self.file, self.evolution)?;
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

impl Reading {
    /// An error if a file has fields that the schema lacks and must not lack.
    fn complete(&self, file: &FileId, evolution: Evolution) -> Result<()> {
        let Some(unknown) = self.unknown.as_ref().map(|x| x.borrow()).filter(|x| !x.is_empty()) else { return Ok(()) };
        let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let message = format!("the file {} has columns that its schema lacks: {}", file.path, names.join(", "));
        Err(match evolution {
            Evolution::AddNewColumns => Error::external(NEW_COLUMNS, message),
            _ => Error::external("UNKNOWN_FIELD", message)
                .help("correct the file or the schema, or use the schemaEvolutionMode addNewColumns, rescue or none"),
        })
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
                Err(e) if self.ignore_corrupt && e.code() == "SOURCE_NOT_READABLE" => {
                    self.stats.corrupt_files = 1;
                    self.done = true;
                }
                Err(e) => {
                    self.done = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}
