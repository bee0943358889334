//! A definition file cut into statements, with `${key}` filled in and every position still that of the file.

use std::collections::BTreeMap;
use std::ops::Range;

use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};

use crate::error::{Error, Result};
use crate::pipeline::names::near_miss;
use crate::pipeline::source::Source;

/// How deep a value may refer to other values.
const DEPTH: usize = 16;

/// One statement, after interpolation.
#[derive(Debug)]
pub(super) struct Piece {
    text: Source,
    segments: Vec<Segment>,
    end: usize,
}

/// A stretch of a piece's text and where in the file it comes from.
#[derive(Clone, Copy, Debug)]
struct Segment {
    at: usize,
    origin: usize,
    /// End in the file of a `${key}`; `None` for text taken over as it is.
    replaced: Option<usize>,
}

impl Piece {
    pub(super) fn text(&self) -> &Source {
        &self.text
    }

    /// The position in the file of a stretch of this piece.
    pub(super) fn place(&self, file: &Source, span: AstSpan) -> AstSpan {
        AstSpan {
            start: file.location(self.origin(span.start, false)),
            end: file.location(self.origin(span.end, true)),
        }
    }

    /// The end of the statement in the file.
    pub(super) fn end(&self, file: &Source) -> AstSpan {
        let at = file.location(self.end);
        AstSpan { start: at, end: at }
    }

    fn origin(&self, at: Location, end: bool) -> usize {
        let offset = self.text.offset(at);
        let probe = if end { offset.saturating_sub(1) } else { offset };
        let found = self.segments.partition_point(|segment| segment.at <= probe);
        match found.checked_sub(1).and_then(|i| self.segments.get(i)) {
            None => offset,
            Some(Segment { replaced: Some(after), origin, .. }) => {
                if end {
                    *after
                } else {
                    *origin
                }
            }
            Some(Segment { at, origin, .. }) => origin + (offset - at),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Code,
    Quotes(char),
    LineComment,
    BlockComment(usize),
}

/// Cuts a file at its semicolons. Call [`Pieces::next`] until it yields `None`; variables set in between count for what follows.
pub(super) struct Pieces<'a> {
    file: &'a Source,
    position: usize,
    end: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(file: &'a Source) -> Self {
        Pieces { file, position: 0, end: file.text().len() }
    }

    /// The statements of a part of a file, given in bytes.
    pub(super) fn within(file: &'a Source, part: Range<usize>) -> Self {
        Pieces { file, position: part.start, end: part.end }
    }

    /// The next statement, or why its variables cannot be filled in.
    pub(super) fn next(&mut self, variables: &Variables) -> Option<Result<Piece>> {
        let rest = self.file.text().get(self.position..self.end).filter(|rest| !rest.is_empty())?;
        let base = self.position;
        let mut piece = String::new();
        let mut segments = vec![Segment { at: 0, origin: base, replaced: None }];
        let mut inside = Inside::Code;
        let mut failure: Option<Error> = None;
        let mut end = self.end;
        self.position = self.end;
        let mut chars = rest.char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            let commented = matches!(inside, Inside::LineComment | Inside::BlockComment(_));
            if c == '$'
                && next == Some('{')
                && !commented
                && let Some(length) = rest.get(i..).and_then(|r| r.find('}'))
            {
                let key = rest.get(i + 2..i + length).unwrap_or("").trim();
                let after = base + i + length + 1;
                match variables.value(key) {
                    Ok(value) => {
                        segments.push(Segment { at: piece.len(), origin: base + i, replaced: Some(after) });
                        piece.push_str(&value);
                        segments.push(Segment { at: piece.len(), origin: after, replaced: None });
                    }
                    Err(error) => {
                        let at = AstSpan { start: self.file.location(base + i), end: self.file.location(after) };
                        failure.get_or_insert(error.at(&self.file.span(at)));
                    }
                }
                while chars.next_if(|(j, _)| *j <= i + length).is_some() {}
                continue;
            }
            if c == ';' && inside == Inside::Code {
                end = base + i;
                self.position = base + i + 1;
                break;
            }
            piece.push(c);
            let two = |second: char| next == Some(second);
            let mut takes_next = false;
            inside = match inside {
                Inside::Code if matches!(c, '\'' | '"' | '`') => Inside::Quotes(c),
                Inside::Code if c == '-' && two('-') => Inside::LineComment,
                Inside::Code if c == '/' && two('*') => {
                    takes_next = true;
                    Inside::BlockComment(1)
                }
                Inside::Quotes(quote) if c == quote => Inside::Code,
                Inside::Quotes(quote) if c == '\\' && quote != '`' => {
                    takes_next = true;
                    inside
                }
                Inside::LineComment if c == '\n' => Inside::Code,
                Inside::BlockComment(depth) if c == '/' && two('*') => {
                    takes_next = true;
                    Inside::BlockComment(depth + 1)
                }
                Inside::BlockComment(depth) if c == '*' && two('/') => {
                    takes_next = true;
                    if depth == 1 { Inside::Code } else { Inside::BlockComment(depth - 1) }
                }
                same => same,
            };
            if takes_next && let Some((_, c)) = chars.next() {
                piece.push(c);
            }
        }
        Some(match failure {
            Some(error) => Err(error),
            None => Ok(Piece { text: Source::new(self.file.name(), piece), segments, end }),
        })
    }
}

/// Values for `${key}`: the project's configuration, then what SET statements of the file have set so far.
#[derive(Clone, Debug)]
pub(super) struct Variables {
    values: BTreeMap<String, String>,
}

impl Variables {
    pub(super) fn new(configuration: &BTreeMap<String, String>) -> Self {
        Variables { values: configuration.clone() }
    }

    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.values.insert(key.to_owned(), value.to_owned());
    }

    fn value(&self, key: &str) -> Result<String> {
        self.filled(key, DEPTH)
    }

    fn filled(&self, key: &str, depth: usize) -> Result<String> {
        let bare = ["spark:", "sparkconf:", "hivevar:", "hiveconf:", "spark.conf."]
            .iter()
            .find_map(|prefix| key.strip_prefix(prefix))
            .unwrap_or(key);
        let value = self.values.get(key).or_else(|| self.values.get(bare)).ok_or_else(|| {
            let error = Error::user("UNRESOLVED_VARIABLE", format!("nothing sets `{bare}`"));
            match near_miss(bare, self.values.keys().map(String::as_str)) {
                Some(near) => error.help(format!("did you mean ${{{near}}}?")),
                None => {
                    error.help("set it under `configuration` in the project file, or by SET further up in this file")
                }
            }
        })?;
        if depth == 0 {
            return Err(Error::user("UNRESOLVED_VARIABLE", format!("the value of `{bare}` refers to itself")));
        }
        let mut result = String::new();
        let mut rest = value.as_str();
        while let Some((before, tail)) = rest.split_once("${") {
            let Some((inner, after)) = tail.split_once('}') else { break };
            result.push_str(before);
            result.push_str(&self.filled(inner.trim(), depth - 1)?);
            rest = after;
        }
        result.push_str(rest);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pieces(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let file = Source::new("f.sql", text);
        let variables = Variables::new(&variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        let mut pieces = Pieces::new(&file);
        let mut found = Vec::new();
        while let Some(piece) = pieces.next(&variables) {
            found.push(match piece {
                Ok(piece) => piece.text().text().to_owned(),
                Err(error) => format!("{}: {}", error.place().span.as_ref().unwrap(), error.message()),
            });
        }
        found
    }

    #[test]
    fn statements_end_at_semicolons_outside_quotes_and_comments() {
        assert_eq!(
            pieces("a ';' \";\" `;` -- ; '\n /* ; /* ; */ ; */ b; c '\\';' d ;", &[]),
            ["a ';' \";\" `;` -- ; '\n /* ; /* ; */ ; */ b", " c '\\';' d "]
        );
    }

    #[test]
    fn variables_are_filled_in_everywhere_but_in_comments() {
        let variables = [("db", "main"), ("path", "/data/${db}"), ("a", "${b}"), ("b", "${a}")];
        assert_eq!(
            pieces("${db}.t_${db} '${path}/x' -- ${nope}\n/* ${nope} */", &variables),
            ["main.t_main '/data/main/x' -- ${nope}\n/* ${nope} */"]
        );
        assert_eq!(pieces("${spark.conf.db} ${spark:db}", &variables), ["main main"]);
        assert_eq!(pieces("x\n  ${pth}", &variables), ["f.sql:2:3: nothing sets `pth`"]);
        assert_eq!(pieces("${a}", &variables), ["f.sql:1:1: the value of `a` refers to itself"]);
    }

    #[test]
    fn positions_are_those_of_the_file() {
        let file = Source::new("f.sql", "x;\nab ${k} cd");
        let variables = Variables::new(&BTreeMap::from([("k".to_owned(), "v\nw".to_owned())]));
        let mut pieces = Pieces::new(&file);
        pieces.next(&variables).unwrap().unwrap();
        let piece = pieces.next(&variables).unwrap().unwrap();
        let place = |text: &str| {
            let at = piece.text().text().find(text).unwrap();
            let span = AstSpan { start: piece.text().location(at), end: piece.text().location(at + text.len()) };
            file.slice(piece.place(&file, span)).to_owned()
        };
        assert_eq!([place("ab"), place("v"), place("w"), place("cd")], ["ab", "${k}", "${k}", "cd"]);
    }
}
