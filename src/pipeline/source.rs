//! The text of a definition file, and places in it.

use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};

use crate::error::Span;

/// A definition file. Turns positions of sqlparser and DataFusion (1-based lines and columns in characters) into
/// [`Span`]s that show the line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
    line_starts: Vec<usize>,
    /// Columns are bytes.
    ascii: bool,
}

impl Source {
    /// A file by the name under which messages show it.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let ascii = text.is_ascii();
        Source { name: name.into(), text, line_starts, ascii }
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text of a 1-based line, without its end; empty beyond the last line.
    pub fn line(&self, line: usize) -> &str {
        let Some(start) = line.checked_sub(1).and_then(|i| self.line_starts.get(i)) else { return "" };
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        self.text.get(*start..end).unwrap_or("").trim_end_matches('\r')
    }

    /// The place of a stretch; where it goes over several lines, its part on the first one.
    pub fn span(&self, at: AstSpan) -> Span {
        let line = at.start.line as usize;
        let column = (at.start.column as usize).max(1);
        let text = self.line(line).to_owned();
        let end = if at.end.line == at.start.line {
            at.end.column as usize
        } else if at.end.line > at.start.line {
            text.chars().count() + 1
        } else {
            column + 1
        };
        Span { file: self.name.clone(), line, column, length: end.saturating_sub(column).max(1), text }
    }

    /// The place that a message of sqlparser names at its end (`… at Line: 3, Column: 7`), with the length of the word there.
    pub fn span_of_message(&self, message: &str) -> Option<Span> {
        let (_, tail) = message.rsplit_once("Line: ")?;
        let (line, tail) = tail.split_once(", Column: ")?;
        let column: String = tail.chars().take_while(char::is_ascii_digit).collect();
        let (line, column) = (line.trim().parse().ok()?, column.parse().ok()?);
        let start = Location { line, column };
        let rest = self.text.get(self.offset(start)..).unwrap_or("");
        let word = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').count().max(1);
        Some(self.span(AstSpan { start, end: Location { line, column: column + word as u64 } }))
    }

    /// Byte offset of a location; the end of the text (or of the line) for one beyond it.
    pub fn offset(&self, at: Location) -> usize {
        let Some(start) = (at.line as usize).checked_sub(1).and_then(|i| self.line_starts.get(i)) else {
            return if at.line == 0 { 0 } else { self.text.len() };
        };
        let line = self.line(at.line as usize);
        let column = (at.column as usize).saturating_sub(1);
        if self.ascii {
            return start + column.min(line.len());
        }
        start + line.char_indices().nth(column).map_or(line.len(), |(i, _)| i)
    }

    /// Location of a byte offset.
    pub fn location(&self, offset: usize) -> Location {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|i| self.line_starts.get(i)).copied().unwrap_or(0);
        let end = offset.min(self.text.len());
        let column = match self.text.get(start..end) {
            Some(_) if self.ascii => end - start,
            Some(before) => before.chars().count(),
            None => 0,
        };
        Location { line: line as u64, column: column as u64 + 1 }
    }

    /// The text of a stretch.
    pub fn slice(&self, at: AstSpan) -> &str {
        self.text.get(self.offset(at.start)..self.offset(at.end)).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn locations_and_offsets_agree_also_after_wide_characters() {
        let source = Source::new("a.sql", "é x\n\tüb\r\nlast");
        for (offset, _) in source.text().char_indices().filter(|(_, c)| *c != '\r' && *c != '\n') {
            assert_eq!(source.offset(source.location(offset)), offset);
        }
        assert_eq!(source.location(source.text().find("üb").unwrap()), Location { line: 2, column: 2 });
        assert_eq!(source.line(2), "\tüb");
        assert_eq!(source.line(9), "");
    }

    #[test]
    fn a_span_over_two_lines_marks_the_rest_of_the_first() {
        let source = Source::new("a.sql", "SELECT a,\n  b");
        let span =
            source.span(AstSpan { start: Location { line: 1, column: 8 }, end: Location { line: 2, column: 4 } });
        assert_eq!((span.line, span.column, span.length, span.text.as_str()), (1, 8, 2, "SELECT a,"));
    }

    #[test]
    fn a_parser_message_finds_its_word() {
        let source = Source::new("a.sql", "SELECT 1\nFROM nope x");
        let span = source.span_of_message("sql parser error: Expected: y, found: nope at Line: 2, Column: 6").unwrap();
        assert_eq!((span.line, span.column, span.length), (2, 6, 4));
        assert_eq!(source.span_of_message("no place"), None);
    }
}
