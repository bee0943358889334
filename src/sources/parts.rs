//! A large file in parts, so that several readers share it: row groups of Parquet, whole lines of text.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use super::files::FileSource;
use super::input::{Bytes, Charset, packing, sniff};
use super::options::{Format, Mode, Options};
use super::parquet;
use crate::lake::FileId;

/// A part of a file that can be read by itself. The parts of a file have its rows, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Lines, by the bytes that they take.
    Lines(Range<u64>),
    /// Row groups, by their numbers.
    Groups(Range<usize>),
}

/// The longest line that is looked for at the border of two parts.
const LINE: u64 = 1 << 20;

impl FileSource {
    /// Divides a file into about so many parts of one size, or leaves it whole where it cannot be divided: packed files,
    /// values over several lines, encodings other than UTF-8, and modes that tell of a line by its number. Reads a few bytes
    /// at the borders, or what the file says of its row groups.
    pub fn parts(&self, file: &FileId, count: usize) -> Vec<Part> {
        // What is wrong with the file is said by who reads it.
        let parts = if count > 1 { self.divided(file, count).unwrap_or_default() } else { Vec::new() };
        if parts.len() > 1 { parts } else { vec![Part::Whole] }
    }

    fn divided(&self, file: &FileId, count: usize) -> io::Result<Vec<Part>> {
        let options = self.options();
        if options.ignore_corrupt {
            return Ok(Vec::new());
        }
        let steps = u64::try_from(count).unwrap_or(u64::MAX);
        match self.format() {
            Format::Parquet => {
                let groups = parquet::groups(File::open(&file.path)?).unwrap_or_default();
                let end = |at: usize| groups * at / count;
                let ranges = (0..count).map(|at| end(at)..end(at + 1)).filter(|range| !range.is_empty());
                Ok(ranges.map(Part::Groups).collect())
            }
            format if has_lines(format, options) && packing(&file.path).is_ok_and(|(packing, _)| packing.is_none()) => {
                let mut input = BufReader::new(File::open(&file.path)?);
                if !is_plain(&mut input, options)? || format == Format::Csv && !has_header_line(&mut input, options)? {
                    return Ok(Vec::new());
                }
                let mut borders = vec![0];
                for step in 1..steps {
                    let wanted =
                        u64::try_from(u128::from(file.size) * u128::from(step) / u128::from(steps)).unwrap_or(0);
                    match line_after(&mut input, wanted)? {
                        Some(at) if at < file.size => borders.push(at),
                        _ => {}
                    }
                }
                borders.push(file.size);
                borders.dedup();
                Ok(borders.iter().zip(borders.iter().skip(1)).map(|(from, to)| Part::Lines(*from..*to)).collect())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Whether a line is a record, whatever stands in the lines before it.
fn has_lines(format: Format, options: &Options) -> bool {
    let lines = match format {
        Format::Json | Format::Csv => !options.multi_line,
        Format::Text => !options.whole_text,
        _ => false,
    };
    lines && options.line_end.is_none() && options.mode != Mode::FailFast && options.skip_rows == 0
}

fn is_plain(input: &mut BufReader<File>, options: &Options) -> io::Result<bool> {
    input.seek(SeekFrom::Start(0))?;
    let mut first = Vec::new();
    input.by_ref().take(4).read_to_end(&mut first)?;
    Ok(sniff(&first, options.charset).0 == Charset::Utf8)
}

/// Whether the names of columns, if there are any, are in the first line alone.
fn has_header_line(input: &mut BufReader<File>, options: &Options) -> io::Result<bool> {
    if !options.header {
        return Ok(true);
    }
    input.seek(SeekFrom::Start(0))?;
    let mut line = Vec::new();
    input.by_ref().take(LINE).read_until(b'\n', &mut line)?;
    let broken = line.trim_ascii_end().contains(&b'\r');
    let comment = options.syntax.comment.is_some_and(|comment| line.trim_ascii_start().first() == Some(&comment));
    Ok(line.ends_with(b"\n") && !line.trim_ascii().is_empty() && !comment && !broken)
}

/// Where the first line begins that does so behind a place.
fn line_after(input: &mut BufReader<File>, place: u64) -> io::Result<Option<u64>> {
    input.seek(SeekFrom::Start(place))?;
    let mut rest = Vec::new();
    let length = input.by_ref().take(LINE).read_until(b'\n', &mut rest)?;
    Ok(rest.ends_with(b"\n").then(|| place + u64::try_from(length).unwrap_or(0)))
}

/// The lines of a part, behind the line with the names of columns, if there is one.
pub(super) fn lines(mut file: File, range: &Range<u64>, header: bool) -> io::Result<Bytes> {
    let mut names = Vec::new();
    if header && range.start > 0 {
        BufReader::new(&mut file).take(LINE).read_until(b'\n', &mut names)?;
    }
    file.seek(SeekFrom::Start(range.start))?;
    let own = BufReader::with_capacity(64 << 10, file).take(range.end.saturating_sub(range.start));
    Ok(Box::new(io::Cursor::new(names).chain(own)))
}
