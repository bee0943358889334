//! Separated values, as Spark tells them apart, except that a doubled quote inside quotes is always one quote.

use std::io;

use arrow::datatypes::Fields;

use super::columns::{Fit, Reading, Rescued};
use super::input::Bytes;
use super::lines::{Lines, keep};
use super::options::Options;
use super::rows::{Record, Rows};
use crate::error::{Error, Result};
use crate::lake::types::position;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What stands between and around values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Syntax {
    pub(super) separator: Vec<u8>,
    pub(super) quote: Option<u8>,
    pub(super) escape: Option<u8>,
    pub(super) comment: Option<u8>,
    /// White space before and after values is no part of them.
    pub(super) trim: (bool, bool),
}

impl Default for Syntax {
    fn default() -> Syntax {
        let (quote, escape) = (Some(b'"'), Some(b'\\'));
        Syntax { separator: vec![b','], quote, escape, comment: None, trim: (false, false) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Plain,
    Quoted,
    /// After a quote that ends a value, if nothing but white space follows.
    Closed,
}

/// The values of one record.
#[derive(Default)]
struct Values {
    bytes: Vec<u8>,
    /// Where each value ends, and whether it stood in quotes.
    ends: Vec<(usize, bool)>,
}

impl Values {
    fn iter(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, quoted)| {
            let value = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            (value, *quoted)
        })
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

fn is_white(byte: u8) -> bool {
    byte <= b' '
}

impl Syntax {
    /// Whether quotes are open after more of a record, which began or went on in the state before it.
    fn goes_on(&self, text: &[u8], open: bool) -> bool {
        let Some(quote) = self.quote else { return false };
        if !open && memchr::memchr(quote, text).is_none() {
            return false;
        }
        let mut values = Values::default();
        let at = if open { At::Quoted } else { At::Start };
        self.scan(text, at, &mut values) == At::Quoted
    }

    /// Tells the values of a record apart.
    fn split(&self, record: &[u8], values: &mut Values) {
        values.bytes.clear();
        values.ends.clear();
        self.scan(record, At::Start, values);
    }

    /// A quote that is neither doubled nor followed by a separator does not end a value: it is taken as it stands, with
    /// the quote at its beginning, up to the next separator.
    fn scan(&self, record: &[u8], mut at: At, values: &mut Values) -> At {
        // Where the value begins, in the record and in the bytes of the values.
        let (mut first, mut begin, mut quoted) = (0, 0, false);
        let mut i = 0;
        let end = |values: &mut Values, begin: &mut usize, quoted: bool| {
            if self.trim.1 && !quoted {
                let blank = values.bytes.iter().skip(*begin).rev().take_while(|x| is_white(**x)).count();
                values.bytes.truncate(values.bytes.len() - blank);
            }
            values.ends.push((values.bytes.len(), quoted));
            *begin = values.bytes.len();
        };
        while let Some(byte) = record.get(i).copied() {
            let separated = at != At::Quoted && record.get(i..).is_some_and(|x| x.starts_with(&self.separator));
            if separated {
                end(values, &mut begin, quoted && at != At::Plain);
                i += self.separator.len();
                (at, first, quoted) = (At::Start, i, false);
                continue;
            }
            i += 1;
            at = match at {
                At::Start if self.quote == Some(byte) => {
                    quoted = true;
                    At::Quoted
                }
                At::Start if self.trim.0 && is_white(byte) => {
                    first = i;
                    At::Start
                }
                At::Start | At::Plain => {
                    values.bytes.push(byte);
                    At::Plain
                }
                At::Quoted if self.quote == Some(byte) => {
                    if record.get(i).copied() == self.quote {
                        i += 1;
                        values.bytes.push(byte);
                        At::Quoted
                    } else {
                        At::Closed
                    }
                }
                At::Quoted => {
                    let next = record.get(i).copied();
                    let escaped =
                        self.escape == Some(byte) && next.is_some() && [self.quote, self.escape].contains(&next);
                    values.bytes.push(if escaped { next.unwrap_or(byte) } else { byte });
                    i += usize::from(escaped);
                    At::Quoted
                }
                At::Closed if is_white(byte) => At::Closed,
                At::Closed => {
                    // What seemed to be quoted is not.
                    values.bytes.truncate(begin);
                    values.bytes.extend_from_slice(record.get(first..i).unwrap_or_default());
                    At::Plain
                }
            };
        }
        end(values, &mut begin, quoted && at != At::Plain);
        at
    }
}

/// The records of a text.
struct Records {
    lines: Lines,
    syntax: Syntax,
    multi_line: bool,
    /// Lines at the beginning that are no records.
    skip: u64,
    record: Vec<u8>,
    values: Values,
}

impl Records {
    fn new(input: Bytes, options: &Options) -> Records {
        Records {
            lines: Lines::new(input, options.line_end.clone()),
            syntax: options.syntax.clone(),
            multi_line: options.multi_line,
            skip: options.skip_rows,
            record: Vec::new(),
            values: Values::default(),
        }
    }

    /// Reads the next record into `record` and `values`; gives the line on which it begins. Blank lines and comments are
    /// passed over.
    fn next(&mut self) -> io::Result<Option<u64>> {
        loop {
            let Some((line, number)) = self.lines.next()? else { return Ok(None) };
            let comment = self.syntax.comment.is_some_and(|x| line.first() == Some(&x));
            if comment || number <= self.skip || line.iter().all(|x| is_white(*x)) {
                continue;
            }
            self.record.clear();
            self.record.extend_from_slice(line);
            if self.multi_line {
                let mut open = self.syntax.goes_on(&self.record, false);
                while open {
                    let Some((line, _)) = self.lines.next()? else { break };
                    keep(&mut self.record, b"\n")?;
                    keep(&mut self.record, line)?;
                    open = self.syntax.goes_on(line, true);
                }
            }
            self.syntax.split(&self.record, &mut self.values);
            return Ok(Some(number));
        }
    }

    /// Names of the header: made for columns without one, and numbered where they would be the same.
    fn header(&self) -> Vec<String> {
        let name = |(i, (bytes, _)): (usize, (&[u8], bool))| match String::from_utf8_lossy(bytes).trim() {
            "" => format!("_c{i}"),
            name => name.to_owned(),
        };
        let names: Vec<String> = self.values.iter().enumerate().map(name).collect();
        let mut count = std::collections::HashMap::new();
        for name in &names {
            *count.entry(name.to_lowercase()).or_insert(0) += 1;
        }
        let numbered = |(i, name): (usize, &String)| match count.get(&name.to_lowercase()) {
            Some(count) if *count > 1 => format!("{name}{i}"),
            _ => name.clone(),
        };
        names.iter().enumerate().map(numbered).collect()
    }
}

/// Reads records of separated values from one file.
pub(super) struct CsvReader {
    input: Records,
    options: Options,
    /// The column of the schema for each value of a record; none where it has no column.
    places: Option<Vec<Option<usize>>>,
    names: Vec<String>,
    columns: usize,
}

impl CsvReader {
    pub(super) fn open(
        input: Bytes,
        options: &Options,
        fields: &Fields,
        reading: &Reading,
    ) -> Result<CsvReader, Failure> {
        if let Some(nested) = fields.iter().find(|x| x.data_type().is_nested()) {
            let (name, data_type) = (nested.name(), nested.data_type());
            return Err(format!("a column {name} of type {data_type} cannot be read from separated values").into());
        }
        let mut input = Records::new(input, options);
        let (mut names, mut places) = (Vec::new(), None);
        if options.header && input.next()?.is_some() {
            names = input.header();
            match options.enforce_schema {
                // The names of the schema hold, place by place.
                Some(true) => {}
                Some(false) if names.len() != fields.len() || !same_names(&names, fields) => {
                    let wanted: Vec<&str> = fields.iter().map(|x| x.name().as_str()).collect();
                    return Err(
                        format!("its header is {}, the schema says {}", names.join(", "), wanted.join(", ")).into()
                    );
                }
                _ => places = Some(by_name(&names, fields, reading)),
            }
        }
        Ok(CsvReader { input, options: options.clone(), places, names, columns: fields.len() })
    }

    /// Reads records until `rows` is full; false at the end of the file.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<bool> {
        while !rows.is_full() {
            let Some(line) = self.input.next().map_err(|e| rows.unreadable(e))? else { return Ok(false) };
            self.append(line, rows)?;
        }
        Ok(true)
    }

    fn append(&self, line: u64, rows: &mut Rows) -> Result<()> {
        let values = &self.input.values;
        let expected = self.places.as_ref().map_or(self.columns, Vec::len);
        let mut filled = vec![false; self.columns];
        let mut rescued = Rescued::default();
        let mut whole = values.len() == expected;
        for (i, (bytes, quoted)) in values.iter().enumerate() {
            let place = match &self.places {
                Some(places) => places.get(i).copied().flatten(),
                None => Some(i).filter(|x| *x < self.columns),
            };
            let text = String::from_utf8_lossy(bytes);
            let value = match (text.is_empty(), quoted) {
                (true, true) => self.options.empty_value.as_str(),
                (true, false) => self.options.null_value.as_str(),
                _ => text.as_ref(),
            };
            let null = value == self.options.null_value;
            let Some(column) = place.and_then(|x| rows.group().column(x)) else {
                if !null {
                    rescued.add(&self.name(i), &serde_json::to_string(value).unwrap_or_default());
                }
                continue;
            };
            if let Some(filled) = place.and_then(|x| filled.get_mut(x)) {
                *filled = true;
            }
            if null {
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
        rows.push(Record::Appended { fit, text: &String::from_utf8_lossy(&self.input.record) }, line)
    }

    fn name(&self, i: usize) -> String {
        self.names.get(i).cloned().unwrap_or_else(|| format!("_c{i}"))
    }
}

fn same_names(names: &[String], fields: &Fields) -> bool {
    names.iter().zip(fields).all(|(name, field)| name.eq_ignore_ascii_case(field.name()))
}

/// The column for each name; what the schema lacks is noted. A column is filled by the first of its names.
fn by_name(names: &[String], fields: &Fields, reading: &Reading) -> Vec<Option<usize>> {
    let mut taken = vec![false; fields.len()];
    let mut place = |name: &String| {
        let Some(at) = position(fields, name) else {
            reading.miss("", name);
            return None;
        };
        if reading.exact && fields.get(at).is_some_and(|x| x.name() != name) {
            return None;
        }
        let free = taken.get_mut(at).filter(|taken| !**taken)?;
        *free = true;
        Some(at)
    };
    names.iter().map(&mut place).collect()
}

/// The values of all records, with the names of their columns; `None` for an empty one.
pub(super) fn each_value(
    input: Bytes,
    options: &Options,
    mut each: impl FnMut(&str, Option<&str>),
) -> Result<(), Failure> {
    let mut input = Records::new(input, options);
    let mut names: Vec<String> = Vec::new();
    if options.header && input.next()?.is_some() {
        names = input.header();
        names.iter().for_each(|x| each(x, None));
    }
    while input.next()?.is_some() {
        for (i, (bytes, _)) in input.values.iter().enumerate() {
            let name = match names.get(i) {
                Some(name) => name,
                None if options.header => break,
                None => {
                    names.push(format!("_c{i}"));
                    names.last().map_or("", |x| x)
                }
            };
            let text = String::from_utf8_lossy(bytes);
            each(name, Some(text.as_ref()).filter(|x| !x.is_empty() && options.null_value != **x));
        }
    }
    Ok(())
}

/// An error for a quote, escape or comment that is a separator, too.
pub(super) fn check(syntax: &Syntax) -> Result<()> {
    let marks = [("quote", syntax.quote), ("escape", syntax.escape), ("comment", syntax.comment)];
    match marks.iter().find(|(_, mark)| mark.is_some_and(|x| syntax.separator.contains(&x))) {
        Some((name, _)) => {
            Err(Error::user("INVALID_OPTION", format!("the read_files options sep and {name} are the same")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(syntax: &Syntax, record: &str) -> Vec<(String, bool)> {
        let mut values = Values::default();
        syntax.split(record.as_bytes(), &mut values);
        values.iter().map(|(value, quoted)| (String::from_utf8_lossy(value).into_owned(), quoted)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What is written by the rules is read back, whatever is in it.
        #[test]
        fn quoted_values_come_back(values in prop::collection::vec("[a,;|\"\\\\ \t]{0,6}", 1..5), doubled: bool, wide: bool) {
            let separator = if wide { ";|" } else { "," };
            let syntax = Syntax { separator: separator.into(), ..Syntax::default() };
            let quote = |x: &String| {
                let inside = if doubled {
                    x.replace('\\', "\\\\").replace('"', "\"\"")
                } else {
                    x.replace('\\', "\\\\").replace('"', "\\\"")
                };
                format!("\"{inside}\"")
            };
            let record = values.iter().map(quote).collect::<Vec<_>>().join(separator);
            let expected: Vec<_> = values.into_iter().map(|x| (x, true)).collect();
            prop_assert_eq!(split(&syntax, &record), expected);
            prop_assert!(!syntax.goes_on(record.as_bytes(), false));
        }

        /// Quotes are open after a record in two parts as they are after the whole.
        #[test]
        fn open_quotes_are_seen_across_lines(a in "[a,\" \n]{0,8}", b in "[a,\" \n]{0,8}") {
            let syntax = Syntax { escape: None, ..Syntax::default() };
            let whole = format!("{a}\n{b}");
            if syntax.goes_on(a.as_bytes(), false) {
                prop_assert_eq!(syntax.goes_on(b.as_bytes(), true), syntax.goes_on(whole.as_bytes(), false));
            }
        }
    }
}
