//! Separated values.

use std::fs::File;
use std::io::{BufReader, Read};

use arrow::datatypes::Fields;
use csv::{ByteRecord, Reader, ReaderBuilder};

use super::columns::{Column, Fit, Rescued};
use super::files::{Record, Rows};
use super::options::Options;
use crate::error::Result;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn reader(file: File, options: &Options) -> Reader<Box<dyn Read + Send>> {
    let input = BufReader::with_capacity(256 << 10, file);
    ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(options.separator)
        .quoting(options.quote.is_some())
        .quote(options.quote.unwrap_or(b'"'))
        .double_quote(true)
        .escape(options.escape.filter(|x| Some(*x) != options.quote))
        .comment(options.comment)
        .from_reader(Box::new(input))
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Names of the header, made unique for columns without one.
fn header(record: &ByteRecord) -> Vec<String> {
    let name = |(i, bytes): (usize, &[u8])| match String::from_utf8_lossy(if i == 0 { without_mark(bytes) } else { bytes }).trim() {
        "" => format!("_c{i}"),
        name => name.to_owned(),
    };
    record.iter().enumerate().map(name).collect()
}

/// Reads records of separated values from one file.
pub(super) struct CsvReader {
    input: Reader<Box<dyn Read + Send>>,
    record: ByteRecord,
    /// The column of the schema for each value of a record; none where it has no column.
    places: Option<Vec<Option<usize>>>,
    names: Vec<String>,
    columns: usize,
    null: Option<String>,
    trim: (bool, bool),
    plain: bool,
}

impl CsvReader {
    pub(super) fn open(file: File, options: &Options, fields: &Fields) -> std::result::Result<CsvReader, Failure> {
        let mut input = reader(file, options);
        let mut record = ByteRecord::new();
        let mut names = Vec::new();
        let mut places = None;
        if options.header && input.read_byte_record(&mut record)? {
            names = header(&record);
            places = Some(names.iter().map(|x| crate::lake::types::position(fields, x)).collect());
        }
        if let Some(nested) = fields.iter().find(|x| !Column::is_plain(x.data_type())) {
            return Err(format!("a column {} of type {} cannot be read from separated values", nested.name(), nested.data_type()).into());
        }
        Ok(CsvReader {
            input,
            record,
            places,
            names,
            columns: fields.len(),
            null: options.null_value.clone(),
            trim: options.trim,
            plain: options.header,
        })
    }

    /// Reads records until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        while !rows.is_full() {
            if !self.input.read_byte_record(&mut self.record).map_err(|e| rows.unreadable(e))? {
                return Ok(false);
            }
            let line = self.record.position().map_or(0, |x| x.line());
            self.append(rows, line)?;
        }
        Ok(true)
    }

    fn append(&mut self, rows: &mut Rows, line: u64) -> Result<()> {
        let text = self.text();
        let expected = self.places.as_ref().map_or(self.columns, Vec::len);
        let mut filled = vec![false; self.columns];
        let mut rescued = Rescued::default();
        let mut whole = self.record.len() == expected;
        for (i, bytes) in self.record.iter().enumerate() {
            let bytes = if i == 0 && line == 1 && !self.plain { without_mark(bytes) } else { bytes };
            let place = match &self.places {
                Some(places) => places.get(i).copied().flatten(),
                None => Some(i).filter(|x| *x < self.columns),
            };
            let Ok(value) = std::str::from_utf8(bytes) else {
                whole = false;
                continue;
            };
            let value = self.trimmed(value);
            let Some(column) = place.and_then(|x| rows.group().column(x)).filter(|_| place.is_some_and(|x| filled.get(x) == Some(&false))) else {
                if !value.is_empty() {
                    rescued.add(&self.name(i), &serde_json::to_string(value).unwrap_or_default());
                }
                continue;
            };
            if let Some(filled) = place.and_then(|x| filled.get_mut(x)) {
                *filled = true;
            }
            if value.is_empty() || self.null.as_deref() == Some(value) {
                column.append_null();
            } else if !column.append_text(value) {
                whole = false;
                rescued.add(&self.name(i), &serde_json::to_string(value).unwrap_or_default());
            }
        }
        for (i, _) in filled.iter().enumerate().filter(|x| !x.1) {
            if let Some(column) = rows.group().column(i) {
                column.append_null();
            }
        }
        let fit = match rescued.finish() {
            // A value without a column of its own is only of interest where it can be rescued.
            Some(lost) if !whole || rows.rescues() => Fit::Partly(lost),
            _ if whole => Fit::Whole,
            _ => Fit::Partly(String::new()),
        };
        rows.push(Record::Appended { fit, text: &text }, line)
    }

    fn name(&self, i: usize) -> String {
        self.names.get(i).cloned().unwrap_or_else(|| format!("_c{i}"))
    }

    fn trimmed<'a>(&self, value: &'a str) -> &'a str {
        let value = if self.trim.0 { value.trim_start() } else { value };
        if self.trim.1 { value.trim_end() } else { value }
    }

    /// The record as a line, for messages and the corrupt record column.
    fn text(&self) -> String {
        let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
        let written = writer.write_byte_record(&self.record).ok().and_then(|()| writer.into_inner().ok());
        String::from_utf8_lossy(&written.unwrap_or_default()).trim_end().to_owned()
    }
}

/// The values of all records, with the names of their columns; `None` for an empty one.
pub(super) fn each_value(file: File, options: &Options, mut each: impl FnMut(&str, Option<&str>)) -> std::result::Result<(), Failure> {
    let mut input = reader(file, options);
    let mut record = ByteRecord::new();
    let mut names: Vec<String> = Vec::new();
    if options.header && input.read_byte_record(&mut record)? {
        names = header(&record);
        names.iter().for_each(|x| each(x, None));
    }
    while input.read_byte_record(&mut record)? {
        for (i, bytes) in record.iter().enumerate() {
            let name = match names.get(i) {
                Some(name) => name,
                None if options.header => break,
                None => {
                    names.push(format!("_c{i}"));
                    names.last().map_or("", |x| x)
                }
            };
            let text = std::str::from_utf8(bytes).unwrap_or("\u{fffd}");
            each(name, Some(text).filter(|x| !x.is_empty() && options.null_value.as_deref() != Some(x)));
        }
    }
    Ok(())
}
