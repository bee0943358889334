//! JSON: one value a line, or values over several lines, one after the other or in an array.

use std::borrow::Cow;
use std::io;

use serde_json::value::RawValue;

use super::columns::Members;
use super::input::Bytes;
use super::json_values::JsonValues;
use super::lenient::Lenient;
use super::lines::Lines;
use super::options::Options;
use super::rows::{Record, Rows};
use crate::error::Result;

/// The texts of a file that are records, or arrays of records.
struct Texts {
    source: Source,
    lenient: Lenient,
}

enum Source {
    Lines(Lines),
    Values(JsonValues),
}

impl Texts {
    fn new(input: Bytes, options: &Options) -> Texts {
        let source = if options.multi_line {
            Source::Values(JsonValues::new(input))
        } else {
            Source::Lines(Lines::new(input, options.line_end.clone()))
        };
        Texts { source, lenient: options.lenient }
    }

    /// The next one, which may be blank, and the line on which it begins.
    fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        match &mut self.source {
            Source::Values(values) => values.next(),
            Source::Lines(lines) => Ok(lines.next()?.map(|(line, number)| (line.trim_ascii(), number))),
        }
    }
}

/// Reads JSON records from one file.
pub(super) struct JsonReader {
    texts: Texts,
}

impl JsonReader {
    pub(super) fn open(input: Bytes, options: &Options) -> JsonReader {
        JsonReader { texts: Texts::new(input, options) }
    }

    /// Reads records until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        let lenient = self.texts.lenient;
        while !rows.is_full() {
            match self.texts.next().map_err(|e| rows.unreadable(e))? {
                Some(([], _)) => {}
                Some((text, line)) => append(rows, text, line, lenient)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Appends one text: an object is a record, an array of objects is several.
fn append(rows: &mut Rows, text: &[u8], line: u64, lenient: Lenient) -> Result<()> {
    let Ok(text) = std::str::from_utf8(text) else {
        return rows.push(Record::Malformed(&String::from_utf8_lossy(text)), line);
    };
    if text.starts_with('[') {
        let relaxed;
        let elements = match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(elements) => Some(elements),
            Err(_) => {
                relaxed = lenient.strict(text);
                relaxed.as_deref().and_then(|x| serde_json::from_str::<Vec<&RawValue>>(x).ok())
            }
        };
        if let Some(elements) = elements {
            return elements.iter().try_for_each(|x| append_object(rows, x.get(), line, lenient));
        }
    }
    append_object(rows, text, line, lenient)
}

fn append_object(rows: &mut Rows, text: &str, line: u64, lenient: Lenient) -> Result<()> {
    if let Ok(Members(members)) = serde_json::from_str(text) {
        let fit = rows.group().append(&members);
        return rows.push(Record::Appended { fit, text }, line);
    }
    if let Some(strict) = lenient.strict(text)
        && let Ok(Members(members)) = serde_json::from_str(&strict)
    {
        let fit = rows.group().append(&members);
        return rows.push(Record::Appended { fit, text }, line);
    }
    rows.push(Record::Malformed(text), line)
}

/// The members of every object, for inference.
pub(super) fn each_object(
    input: Bytes,
    options: &Options,
    mut each: impl FnMut(&[(Cow<'_, str>, &RawValue)]),
) -> io::Result<()> {
    let mut texts = Texts::new(input, options);
    let lenient = texts.lenient;
    while let Some((text, _)) = texts.next()? {
        let Ok(text) = std::str::from_utf8(text) else { continue };
        let strict = match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Cow::Borrowed(text),
            Err(_) => match lenient.strict(text) {
                Some(strict) => Cow::Owned(strict),
                None => continue,
            },
        };
        let elements = match strict.starts_with('[') {
            true => serde_json::from_str::<Vec<&RawValue>>(&strict).unwrap_or_default(),
            false => serde_json::from_str::<&RawValue>(&strict).into_iter().collect(),
        };
        for element in elements {
            if let Ok(Members(members)) = serde_json::from_str(element.get()) {
                each(&members);
            }
        }
    }
    Ok(())
}
