//! Options of a stream: `WITH ('key' = 'value', …)` behind the table, and the arguments of `read_stream`.

use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, Spanned, Value};
use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token, TokenWithSpan};

use super::cursor::written_name;
use super::read_files::literal;
use super::statement::Context;
use crate::error::{Error, Result};
use crate::pipeline::Name;
use crate::pipeline::declaration::WrittenName;
use crate::pipeline::source::Source;

/// Options by name, as written.
pub(super) type StreamOptions = Vec<(Name, String)>;

/// Reads what stands between the parentheses of `WITH (…)`: keys as words with dots or as strings, `=` or nothing, and
/// values.
pub(super) fn stream_options(file: &Source, tokens: &[TokenWithSpan], at: AstSpan) -> Result<StreamOptions> {
    let mut options = Vec::new();
    for option in tokens.split(|t| t.token == Token::Comma) {
        let Some((first, last)) = option.first().zip(option.last()) else {
            return Err(Error::user("PARSE_SYNTAX_ERROR", "expected an option").at(&file.span(at)));
        };
        let whole = AstSpan { start: first.span.start, end: last.span.end };
        let wrong = || {
            Error::user("PARSE_SYNTAX_ERROR", "expected an option and its value")
                .at(&file.span(whole))
                .help("WITH ('skipChangeCommits' = 'true')")
        };
        let mut key = String::new();
        let mut end = first.span;
        let mut rest = option.iter().peekable();
        while let Some(token) = rest.next() {
            match &token.token {
                Token::SingleQuotedString(text) => key.push_str(text),
                Token::Word(word) => key.push_str(&word.value),
                _ => return Err(wrong()),
            }
            end = token.span;
            match rest.next_if(|t| t.token == Token::Period) {
                Some(_) => key.push('.'),
                None => break,
            }
        }
        rest.next_if(|t| t.token == Token::Eq);
        let value: Option<String> = rest
            .map(|token| match &token.token {
                Token::SingleQuotedString(text) | Token::Number(text, _) => Some(text.clone()),
                Token::Word(word) if word.quote_style.is_none() => Some(word.value.clone()),
                Token::Minus => Some("-".to_owned()),
                _ => None,
            })
            .collect();
        let value = value.filter(|value| !value.is_empty()).ok_or_else(wrong)?;
        options.push((Name { text: key, span: file.span(AstSpan { start: first.span.start, end: end.end }) }, value));
    }
    Ok(options)
}

/// `read_stream('table', option => value, …)`: the table and its options.
pub(super) fn read_stream(
    context: &Context<'_>,
    args: &[FunctionArg],
    at: AstSpan,
) -> Result<(WrittenName, StreamOptions)> {
    let file = context.file;
    let help = "read_stream('catalog.schema.table', skipChangeCommits => true)";
    let mut table = None;
    let mut options = Vec::new();
    for arg in args {
        let (key, value) = match arg {
            FunctionArg::Unnamed(value) => {
                let name = match value {
                    FunctionArgExpr::Expr(Expr::Value(text)) => match &text.value {
                        Value::SingleQuotedString(text) => Some(text.split('.').map(str::to_owned).collect()),
                        _ => None,
                    },
                    FunctionArgExpr::Expr(Expr::Identifier(ident)) => Some(vec![ident.value.clone()]),
                    FunctionArgExpr::Expr(Expr::CompoundIdentifier(idents)) => {
                        Some(idents.iter().map(|ident| ident.value.clone()).collect())
                    }
                    _ => None,
                };
                let place = file.span(arg.span());
                let message = "read_stream takes the name of a table, and options by name";
                let name = name
                    .filter(|_| table.is_none())
                    .ok_or_else(|| Error::user("INVALID_OPTION", message).at(&place).help(help))?;
                table = Some(written_name(name, false, place)?);
                continue;
            }
            FunctionArg::Named { name, arg: value, .. } => (name.value.clone(), value),
            FunctionArg::ExprNamed { name, arg: value, .. } => (name.to_string(), value),
        };
        let span = file.span(arg.span());
        let value = literal(value).ok_or_else(|| {
            Error::user("INVALID_OPTION", format!("`{key}` of read_stream takes a literal")).at(&span)
        })?;
        options.push((Name { text: key.trim_matches(['\'', '`']).to_owned(), span }, value));
    }
    let table = table
        .ok_or_else(|| Error::user("INVALID_OPTION", "read_stream needs a table").at(&file.span(at)).help(help))?;
    Ok((table, options))
}
