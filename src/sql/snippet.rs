//! Pieces of SQL that a program hands over by themselves: a query, a condition, a name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{Expr, Query};
use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token, TokenWithSpan};

use super::cursor::Cursor;
use super::dataset::column;
use super::interpolate::{Pieces, Variables};
use super::refused::refusals;
use super::relation::{parse, parse_query, without_query};
use super::shape::without_order;
use super::statement::{Context, finish};
use super::token::{tokenize, tokens_of};
use crate::error::{Error, Result, Span};
use crate::pipeline::Column;
use crate::pipeline::declaration::{WrittenName, WrittenQuery};
use crate::pipeline::source::Source;

/// One query by itself, whose relations stay as they are written.
pub(crate) fn read_query(file: &Arc<Source>) -> Result<Box<Query>> {
    let mut cursor = whole(file)?;
    let starts = ["select", "with", "values", "from"].iter().any(|word| cursor.is_word(word));
    match cursor.peek() {
        Some(token) if !starts && *token != Token::LParen => {
            let error = Error::user("NOT_A_QUERY", format!("`{token}` starts no query")).at(&cursor.here());
            Err(error.help("a query is one SELECT; tables change through the pipeline's own flows"))
        }
        _ => {
            let tokens = cursor.rest();
            let query = parse(file, tokens, cursor.next_span())?;
            match Error::all(refusals(file, &query)) {
                Some(error) => Err(error),
                None => Ok(query),
            }
        }
    }
}

fn whole(file: &Arc<Source>) -> Result<Cursor> {
    let end = file.location(file.text().len());
    let tokens = tokens_of(file).map_err(|(message, at)| {
        Error::user("PARSE_SYNTAX_ERROR", message).at(&file.span(AstSpan { start: at, end: at }))
    })?;
    let mut tokens = tokens;
    while matches!(tokens.last(), Some(TokenWithSpan { token: Token::SemiColon, .. })) {
        tokens.pop();
    }
    Ok(Cursor::new(Arc::clone(file), tokens, AstSpan { start: end, end }))
}

/// One expression by itself.
#[cfg(test)]
pub(crate) fn read_expr(text: &str) -> Result<Expr> {
    let mut cursor = whole(&Arc::new(Source::new("<expression>", text)))?;
    let (expr, _) = cursor.expr()?;
    finish(&cursor)?;
    Ok(expr)
}

/// Reads pieces of one text, each given by its bytes. Each piece must be one whole thing of its kind.
pub(crate) struct Snippets<'a> {
    context: Context<'a>,
    variables: Variables,
}

impl<'a> Snippets<'a> {
    pub(crate) fn new(context: Context<'a>, configuration: &BTreeMap<String, String>) -> Self {
        Snippets { context, variables: Variables::new(configuration) }
    }

    /// The place of a piece, as far as it is on one line.
    pub(crate) fn span(&self, piece: &Range<usize>) -> Span {
        self.context.file.span(self.ast_span(piece))
    }

    /// The query of a definition.
    pub(crate) fn query(&self, piece: &Range<usize>) -> Result<WrittenQuery> {
        let mut query = self.ordered_query(piece)?;
        without_order(&self.context, &mut query);
        Ok(query)
    }

    fn ordered_query(&self, piece: &Range<usize>) -> Result<WrittenQuery> {
        let mut cursor = self.cursor(piece)?;
        let tokens = cursor.rest();
        parse_query(&self.context, tokens, cursor.next_span())
    }

    /// A query where a statement of another kind might stand.
    pub(crate) fn lone_query(&self, piece: &Range<usize>) -> Result<WrittenQuery> {
        let cursor = self.cursor(piece)?;
        let starts = ["select", "with", "values", "from"].iter().any(|word| cursor.is_word(word));
        match cursor.peek() {
            Some(token) if !starts && *token != Token::LParen => {
                let error = Error::user("NOT_A_QUERY", format!("`{token}` starts no query")).at(&cursor.here());
                Err(error.help("tables change through the pipeline's own flows; here stands one SELECT"))
            }
            _ => self.ordered_query(piece),
        }
    }

    /// An expression without a query in it; `what` is for the message.
    pub(crate) fn expr(&self, piece: &Range<usize>, what: &str) -> Result<(Expr, Span)> {
        let mut cursor = self.cursor(piece)?;
        let (expr, span) = cursor.expr()?;
        without_query(self.context.file, &expr, &span, what)?;
        finish(&cursor)?;
        Ok((expr, span))
    }

    pub(crate) fn table(&self, piece: &Range<usize>) -> Result<WrittenName> {
        let mut cursor = self.cursor(piece)?;
        let name = cursor.table_name("the name of a table")?;
        finish(&cursor)?;
        Ok(name)
    }

    /// Columns as in `CREATE TABLE`, without the parentheses.
    pub(crate) fn columns(&self, piece: &Range<usize>) -> Result<Vec<Column>> {
        let mut cursor = self.cursor(piece)?;
        let mut columns = vec![column(&self.context, &mut cursor)?];
        while cursor.take_token(&Token::Comma) {
            columns.push(column(&self.context, &mut cursor)?);
        }
        finish(&cursor)?;
        Ok(columns)
    }

    fn ast_span(&self, piece: &Range<usize>) -> AstSpan {
        let file = self.context.file;
        AstSpan { start: file.location(piece.start), end: file.location(piece.end) }
    }

    fn cursor(&self, piece: &Range<usize>) -> Result<Cursor> {
        let file = self.context.file;
        let end = AstSpan { start: file.location(piece.end), end: file.location(piece.end) };
        let mut pieces = Pieces::within(file, piece.clone());
        let mut found = None;
        while let Some(part) = pieces.next(&self.variables) {
            let tokens = tokenize(file, &part?)?;
            if let Some(token) = tokens.first()
                && found.is_some()
            {
                let message = "one thing stands here, and what follows the semicolon is another";
                return Err(Error::user("PARSE_SYNTAX_ERROR", message).at(&file.span(token.span)));
            }
            found.get_or_insert(tokens);
        }
        Ok(Cursor::new(Arc::clone(file), found.unwrap_or_default(), end))
    }
}
