//! JSON: one value a line, or values over several lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use serde_json::value::RawValue;

use super::columns::Members;
use super::files::{Record, Rows};
use crate::error::Result;

/// Reads JSON records from one file.
pub(super) struct JsonReader {
    source: Source,
}

enum Source {
    Lines {
        input: BufReader<File>,
        line: Vec<u8>,
        number: u64,
    },
    /// The values of a whole file, which have been told apart; the last text may be no JSON.
    Values {
        texts: std::vec::IntoIter<(u64, String)>,
    },
}

impl JsonReader {
    pub(super) fn open(file: File, multi_line: bool) -> std::io::Result<JsonReader> {
        let mut input = BufReader::with_capacity(256 << 10, file);
        let source = if multi_line {
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes)?;
            Source::Values { texts: split_values(&bytes).into_iter() }
        } else {
            Source::Lines { input, line: Vec::new(), number: 0 }
        };
        Ok(JsonReader { source })
    }

    /// Reads records until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        while !rows.is_full() {
            match &mut self.source {
                Source::Lines { input, line, number } => {
                    line.clear();
                    if input.read_until(b'\n', line).map_err(|e| rows.unreadable(e))? == 0 {
                        return Ok(false);
                    }
                    *number += 1;
                    let mut text = line.trim_ascii();
                    if *number == 1 {
                        text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
                    }
                    if !text.is_empty() {
                        append(rows, text, *number)?;
                    }
                }
                Source::Values { texts } => match texts.next() {
                    Some((line, text)) => append(rows, text.as_bytes(), line)?,
                    None => return Ok(false),
                },
            }
        }
        Ok(true)
    }
}

/// Appends one text: an object is a record, an array of objects is several.
fn append(rows: &mut Rows, text: &[u8], line: u64) -> Result<()> {
    let Ok(text) = std::str::from_utf8(text) else {
        return rows.push(Record::Malformed(&String::from_utf8_lossy(text)), line);
    };
    if text.starts_with('[')
        && let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(text)
    {
        return elements.iter().try_for_each(|x| append_object(rows, x.get(), line));
    }
    append_object(rows, text, line)
}

fn append_object(rows: &mut Rows, text: &str, line: u64) -> Result<()> {
    match serde_json::from_str::<Members<'_>>(text) {
        Ok(Members(members)) => {
            let fit = rows.group().append(&members);
            rows.push(Record::Appended { fit, text }, line)
        }
        Err(_) => rows.push(Record::Malformed(text), line),
    }
}

/// Tells the values of a text apart, with the line on which each begins.
fn split_values(bytes: &[u8]) -> Vec<(u64, String)> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut out = Vec::new();
    let (mut line, mut counted) = (1, 0);
    loop {
        let before = values.byte_offset();
        let next = values.next();
        let start = before + text.get(before..).map_or(0, |x| x.len() - x.trim_start().len());
        line += text.get(counted..start).map_or(0, |x| x.bytes().filter(|c| *c == b'\n').count() as u64);
        counted = start;
        match next {
            Some(Ok(value)) => out.push((line, value.get().to_owned())),
            Some(Err(_)) => {
                // Nothing after a damaged place can be trusted to begin a value.
                out.push((line, text.get(start..).unwrap_or_default().trim_end().to_owned()));
                return out;
            }
            None => return out,
        }
    }
}

/// What a value is when its kind matters: for inference.
pub(super) fn each_object(
    file: File,
    multi_line: bool,
    mut each: impl FnMut(&[(std::borrow::Cow<'_, str>, &RawValue)]),
) -> std::io::Result<()> {
    let mut reader = JsonReader::open(file, multi_line)?;
    let mut visit = |text: &[u8]| {
        let Ok(text) = std::str::from_utf8(text) else { return };
        let elements = match text.starts_with('[') {
            true => serde_json::from_str::<Vec<&RawValue>>(text).unwrap_or_default(),
            false => serde_json::from_str::<&RawValue>(text).into_iter().collect(),
        };
        for element in elements {
            if let Ok(Members(members)) = serde_json::from_str(element.get()) {
                each(&members);
            }
        }
    };
    match &mut reader.source {
        Source::Lines { input, line, number } => loop {
            line.clear();
            if input.read_until(b'\n', line)? == 0 {
                return Ok(());
            }
            *number += 1;
            let text = line.trim_ascii();
            visit(if *number == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) } else { text });
        },
        Source::Values { texts } => {
            texts.for_each(|(_, text)| visit(text.as_bytes()));
            Ok(())
        }
    }
}
