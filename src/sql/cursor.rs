//! A position in the tokens of a statement: reads words, names and strings itself, expressions and types through sqlparser.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token, TokenWithSpan, Word};

use super::dialect::PipelineDialect;
use super::stream::{MARK, OPTIONS};
use crate::error::{Error, Result, Span};
use crate::pipeline::Name;
use crate::pipeline::declaration::WrittenName;
use crate::pipeline::source::Source;

const DIALECT: &PipelineDialect = &PipelineDialect;

pub(super) struct Cursor {
    file: Arc<Source>,
    tokens: Vec<TokenWithSpan>,
    position: usize,
    /// Where a missing token is reported.
    end: AstSpan,
}

impl Cursor {
    pub(super) fn new(file: Arc<Source>, tokens: Vec<TokenWithSpan>, end: AstSpan) -> Self {
        Cursor { file, tokens, position: 0, end }
    }

    pub(super) fn file(&self) -> &Arc<Source> {
        &self.file
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.position + ahead).map(|t| &t.token)
    }

    pub(super) fn at_end(&self) -> bool {
        self.position >= self.tokens.len()
    }

    /// The place of the next token, or the end of the statement.
    pub(super) fn next_span(&self) -> AstSpan {
        self.tokens.get(self.position).map_or(self.end, |t| t.span)
    }

    /// The place of the token before.
    pub(super) fn last_span(&self) -> AstSpan {
        self.position.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(self.end, |t| t.span)
    }

    /// From a start that was remembered to the token before.
    pub(super) fn since(&self, start: AstSpan) -> Span {
        self.file.span(AstSpan { start: start.start, end: self.last_span().end })
    }

    pub(super) fn here(&self) -> Span {
        self.file.span(self.next_span())
    }

    pub(super) fn advance(&mut self) {
        self.position += 1;
    }

    /// The tokens between a parenthesis and the next one that closes.
    pub(super) fn parenthesised(&mut self) -> Result<Vec<TokenWithSpan>> {
        self.expect_token(&Token::LParen)?;
        let start = self.position;
        while !self.at_end() && self.peek() != Some(&Token::RParen) {
            self.advance();
        }
        let inside = self.tokens.get(start..self.position).unwrap_or_default().to_vec();
        self.expect_token(&Token::RParen)?;
        Ok(inside)
    }

    /// Takes a group in parentheses, whatever is in it.
    pub(super) fn balanced(&mut self) -> Result<()> {
        self.expect_token(&Token::LParen)?;
        let mut open = 1;
        while open > 0 {
            match self.peek() {
                Some(Token::LParen) => open += 1,
                Some(Token::RParen) => open -= 1,
                Some(_) => {}
                None => return Err(self.unexpected("`)`")),
            }
            self.advance();
        }
        Ok(())
    }

    /// Is the next token this word, without quotes and in any case?
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.is_word_at(0, word)
    }

    /// The next token, if it is a word, in capitals.
    pub(super) fn next_word(&self) -> String {
        match self.peek() {
            Some(Token::Word(word)) => word.value.to_uppercase(),
            _ => String::new(),
        }
    }

    pub(super) fn is_word_at(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), Some(Token::Word(Word { value, quote_style: None, .. })) if value.eq_ignore_ascii_case(word))
    }

    /// Takes the words if they all come next.
    pub(super) fn take(&mut self, words: &[&str]) -> bool {
        let all = words.iter().enumerate().all(|(i, word)| self.is_word_at(i, word));
        if all {
            self.position += words.len();
        }
        all
    }

    pub(super) fn take_token(&mut self, token: &Token) -> bool {
        let is = self.peek() == Some(token);
        if is {
            self.advance();
        }
        is
    }

    /// Takes one `>`, also the first half of `>>`.
    pub(super) fn take_close_angle(&mut self) -> bool {
        match self.tokens.get_mut(self.position) {
            Some(TokenWithSpan { token, span }) if *token == Token::ShiftRight => {
                *token = Token::Gt;
                span.start.column += 1;
                true
            }
            _ => self.take_token(&Token::Gt),
        }
    }

    pub(super) fn expect(&mut self, words: &[&str]) -> Result<()> {
        for word in words {
            if !self.take(&[word]) {
                return Err(self.unexpected(word));
            }
        }
        Ok(())
    }

    pub(super) fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.take_token(token) { Ok(()) } else { Err(self.unexpected(&format!("`{token}`"))) }
    }

    /// The error for a token that cannot stand here.
    pub(super) fn unexpected(&self, expected: &str) -> Error {
        let found = match self.peek() {
            None => "the statement ends".to_owned(),
            Some(token) => format!("found `{token}`"),
        };
        Error::user("PARSE_SYNTAX_ERROR", format!("expected {expected}, {found}")).at(&self.here())
    }

    /// One identifier.
    pub(super) fn name(&mut self, what: &str) -> Result<Name> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let (text, span) = (word.value.clone(), self.here());
                self.advance();
                Ok(Name { text, span })
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// A table name of one to three parts; `LIVE.` before it is taken off and remembered.
    pub(super) fn table_name(&mut self, what: &str) -> Result<WrittenName> {
        let start = self.next_span();
        let quoted = matches!(self.peek(), Some(Token::Word(Word { quote_style: Some(_), .. })));
        let mut parts = vec![self.name(what)?.text];
        while self.take_token(&Token::Period) {
            parts.push(self.name("a name")?.text);
        }
        let span = self.since(start);
        written_name(parts, quoted, span)
    }

    pub(super) fn string(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::SingleQuotedString(value)) => {
                let value = value.clone();
                self.advance();
                Ok(value)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// An expression, and where it stands.
    pub(super) fn expr(&mut self) -> Result<(ast::Expr, Span)> {
        let start = self.next_span();
        if self.at_end() {
            return Err(self.unexpected("an expression"));
        }
        let rest = self.tokens.get(self.position..).unwrap_or_default().to_vec();
        let mut parser = parser(rest);
        let expr = parser.parse_expr().map_err(|error| syntax_error(&self.file, &error, &parser, self.end))?;
        self.position += parser.get_current_index() + 1;
        Ok((expr, self.since(start)))
    }

    /// All tokens that are left.
    pub(super) fn rest(&mut self) -> Vec<TokenWithSpan> {
        let rest = self.tokens.get(self.position..).unwrap_or_default().to_vec();
        self.position = self.tokens.len();
        rest
    }
}

/// A parser over tokens that have been placed already.
pub(super) fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(DIALECT).with_tokens_with_locations(tokens)
}

/// A message of sqlparser as an error of ours: at the place that it names, else where the parser stopped, else at `end`.
pub(super) fn syntax_error(file: &Source, error: &ParserError, parser: &Parser<'_>, end: AstSpan) -> Error {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.clone(),
        ParserError::RecursionLimitExceeded => "this nests too deep".to_owned(),
    };
    let (text, _) = message.rsplit_once(" at Line: ").unwrap_or((message.as_str(), ""));
    let found = text.rsplit_once("found: ").map(|(_, found)| found).filter(|found| *found != "EOF");
    // A message may name no place, or that of the token behind the one it names, which is the last of its kind that was read.
    let named = |token: &&TokenWithSpan| found.is_some_and(|found| token.token.to_string() == found);
    let read = (0..=parser.get_current_index()).rev().map(|i| parser.token_at(i)).find(named);
    let place = file.span_of_message(&message);
    let names_it = |place: &Span| {
        let there: String = place.text.chars().skip(place.column - 1).collect();
        found.is_none_or(|found| there.starts_with(found))
    };
    let span = match (place, read) {
        (Some(place), _) if names_it(&place) => place,
        (_, Some(token)) if token.span.start.line > 0 => file.span(token.span),
        (Some(place), _) => place,
        (None, _) => file.span(end),
    };
    let message =
        message.rsplit_once(" at Line: ").map_or(message.as_str(), |(message, _)| message).replace([MARK, OPTIONS], "");
    let expected = ["Expected: ", "Expected "].iter().find_map(|prefix| message.strip_prefix(prefix));
    let message = match expected.and_then(|rest| rest.split_once(", found: ").or_else(|| rest.split_once(" found: "))) {
        Some((expected, "EOF")) => format!("expected {}, the statement ends", expected.trim_end_matches(',')),
        Some((expected, found)) => format!("expected {}, found `{found}`", expected.trim_end_matches(',')),
        None => message,
    };
    Error::user("PARSE_SYNTAX_ERROR", message).at(&span)
}

/// Checks the number of parts and takes `LIVE` off.
pub(super) fn written_name(mut parts: Vec<String>, first_quoted: bool, span: Span) -> Result<WrittenName> {
    let live = parts.len() == 2 && !first_quoted && parts.first().is_some_and(|p| p.eq_ignore_ascii_case("live"));
    if live {
        parts.remove(0);
    }
    if parts.len() > 3 || parts.iter().any(String::is_empty) {
        let message = format!("`{}` is no table name: it has one to three parts", parts.join("."));
        return Err(Error::user("INVALID_TABLE_NAME", message).at(&span).help("write catalog.schema.table"));
    }
    Ok(WrittenName { parts, live, span })
}
