//! Separated values.

use std::fs::File;
use std::io::Read;

use arrow::datatypes::Fields;
use csv::{ByteRecord, Reader, ReaderBuilder};

use super::columns::{Column, Fit, Rescued};
use super::files::{Record, Rows};
use super::options::Options;
use crate::error::Result;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The file, with the bytes of the records that were not yet done with: the reader's text is needed as it stood.
struct Window {
    input: File,
    /// Position in the file of the first byte that is kept.
    start: u64,
    kept: Vec<u8>,
}

impl Read for Window {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

impl Window {
    fn offset(&self, position: u64) -> usize {
        usize::try_from(position.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.kept.len())
    }

    /// Lets go of what lies before a position, now and then.
    fn forget(&mut self, position: u64) {
        let done = self.offset(position);
        if done > (1 << 20) {
            self.kept.drain(..done);
            self.start += done as u64;
        }
    }
}

fn reader(file: File, options: &Options) -> Reader<Window> {
    ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .delimiter(options.separator)
        .quoting(options.quote.is_some())
        .quote(options.quote.unwrap_or(b'"'))
        .double_quote(true)
        .escape(options.escape.filter(|x| Some(*x) != options.quote))
        .comment(options.comment)
        .buffer_capacity(256 << 10)
        .from_reader(Window { input: file, start: 0, kept: Vec::new() })
}

/// Which values of a record's text stand in quotes.
fn quoted(text: &[u8], options: &Options) -> Vec<bool> {
    enum At {
        Start,
        Plain,
        Quoted,
    }
    let mut flags = Vec::new();
    let (mut at, mut bytes) = (At::Start, text.iter().copied().peekable());
    while let Some(byte) = bytes.next() {
        at = match at {
            At::Start | At::Plain if byte == options.separator => {
                if matches!(at, At::Start) {
                    flags.push(false);
                }
                At::Start
            }
            At::Start => {
                let quote = options.quote == Some(byte);
                flags.push(quote);
                if quote { At::Quoted } else { At::Plain }
            }
            At::Plain => At::Plain,
            At::Quoted if options.quote == Some(byte) => {
                // A doubled quote is one inside.
                if bytes.next_if(|x| options.quote == Some(*x)).is_some() { At::Quoted } else { At::Plain }
            }
            At::Quoted => {
                if options.escape == Some(byte) {
                    bytes.next();
                }
                At::Quoted
            }
        };
    }
    if matches!(at, At::Start) {
        flags.push(false);
    }
    flags
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Names of the header, made unique for columns without one.
fn header(record: &ByteRecord) -> Vec<String> {
    let name =
        |(i, bytes): (usize, &[u8])| match String::from_utf8_lossy(if i == 0 { without_mark(bytes) } else { bytes })
            .trim()
        {
            "" => format!("_c{i}"),
            name => name.to_owned(),
        };
    record.iter().enumerate().map(name).collect()
}

/// Reads records of separated values from one file.
pub(super) struct CsvReader {
    input: Reader<Window>,
    record: ByteRecord,
    options: Options,
    /// The column of the schema for each value of a record; none where it has no column.
    places: Option<Vec<Option<usize>>>,
    names: Vec<String>,
    columns: usize,
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
            return Err(format!(
                "a column {} of type {} cannot be read from separated values",
                nested.name(),
                nested.data_type()
            )
            .into());
        }
        Ok(CsvReader { input, record, options: options.clone(), places, names, columns: fields.len() })
    }

    /// Reads records until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        while !rows.is_full() {
            if !self.input.read_byte_record(&mut self.record).map_err(|e| rows.unreadable(e))? {
                return Ok(false);
            }
            self.append(rows)?;
            let done = self.input.position().byte();
            self.input.get_mut().forget(done);
        }
        Ok(true)
    }

    fn append(&mut self, rows: &mut Rows) -> Result<()> {
        let (first, line) = self.record.position().map_or((0, 0), |x| (x.byte(), x.line()));
        let text = self.text(first);
        // Only where it can make a difference is it looked at which values are quoted.
        let doubled = self.options.quote.is_some_and(|x| text.windows(2).any(|pair| pair == [x, x]));
        let quotes =
            if doubled && self.record.iter().any(<[u8]>::is_empty) { quoted(text, &self.options) } else { Vec::new() };
        let expected = self.places.as_ref().map_or(self.columns, Vec::len);
        let mut filled = vec![false; self.columns];
        let mut rescued = Rescued::default();
        let mut whole = self.record.len() == expected;
        for (i, bytes) in self.record.iter().enumerate() {
            let bytes = if i == 0 && first == 0 { without_mark(bytes) } else { bytes };
            let place = match &self.places {
                Some(places) => places.get(i).copied().flatten(),
                None => Some(i).filter(|x| *x < self.columns),
            };
            let Ok(value) = std::str::from_utf8(bytes) else {
                whole = false;
                continue;
            };
            let value = self.trimmed(value);
            let Some(column) = place
                .and_then(|x| rows.group().column(x))
                .filter(|_| place.is_some_and(|x| filled.get(x) == Some(&false)))
            else {
                if !value.is_empty() {
                    rescued.add(&self.name(i), &serde_json::to_string(value).unwrap_or_default());
                }
                continue;
            };
            if let Some(filled) = place.and_then(|x| filled.get_mut(x)) {
                *filled = true;
            }
            let empty = value.is_empty() && !(column.is_text() && quotes.get(i) == Some(&true));
            if empty || self.options.null_value.as_deref() == Some(value) {
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
        rows.push(Record::Appended { fit, text: &String::from_utf8_lossy(text) }, line)
    }

    fn name(&self, i: usize) -> String {
        self.names.get(i).cloned().unwrap_or_else(|| format!("_c{i}"))
    }

    fn trimmed<'a>(&self, value: &'a str) -> &'a str {
        let value = if self.options.trim.0 { value.trim_start() } else { value };
        if self.options.trim.1 { value.trim_end() } else { value }
    }

    /// The record as it stands in the file, beginning at a position, without comments and line ends around it.
    fn text(&self, first: u64) -> &[u8] {
        let window = self.input.get_ref();
        let bytes =
            window.kept.get(window.offset(first)..window.offset(self.input.position().byte())).unwrap_or_default();
        let mut text = without_mark(bytes);
        while let Some(shorter) = text.strip_suffix(b"\n").or_else(|| text.strip_suffix(b"\r")) {
            text = shorter;
        }
        loop {
            text = text.strip_prefix(b"\r").or_else(|| text.strip_prefix(b"\n")).unwrap_or(text);
            match (text.first(), text.iter().position(|x| *x == b'\n')) {
                (Some(b'\r' | b'\n'), _) => {}
                (Some(byte), Some(end)) if self.options.comment == Some(*byte) => {
                    text = text.get(end..).unwrap_or_default()
                }
                _ => return text,
            }
        }
    }
}

/// The values of all records, with the names of their columns; `None` for an empty one.
pub(super) fn each_value(
    file: File,
    options: &Options,
    mut each: impl FnMut(&str, Option<&str>),
) -> std::result::Result<(), Failure> {
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
