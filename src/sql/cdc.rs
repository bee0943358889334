//! The clauses of AUTO CDC, in any order.

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use super::relation::{not_supported, without_query};
use super::statement::Context;
use super::stream_options::stream_options;
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::{CdcParts, FlowBody, WrittenRelation, WrittenSource};
use crate::pipeline::{ColumnList, IgnoreNull, Name, ScdType};

/// `FROM source` and the clauses behind it, to the end of the statement.
pub(super) fn auto_cdc(context: &Context<'_>, cursor: &mut Cursor) -> Result<FlowBody> {
    let source = source(cursor)?;
    let mut parts = CdcParts::default();
    while !cursor.at_end() {
        clause(context, cursor, &mut parts)?;
    }
    Ok(FlowBody::AutoCdc { source, clauses: Box::new(parts.finish(&cursor.here())?) })
}

/// A source is read as a stream, whether STREAM is written or not.
fn source(cursor: &mut Cursor) -> Result<WrittenRelation> {
    cursor.expect(&["from"])?;
    let stream = cursor.is_word("stream")
        && matches!(cursor.peek_at(1), Some(Token::Word(_) | Token::LParen))
        && !starts_clause(cursor, 1);
    if stream {
        cursor.advance();
    }
    let parentheses = cursor.take_token(&Token::LParen);
    let query = parentheses && (cursor.is_word("select") || cursor.is_word("with"));
    let function = cursor.peek_at(1) == Some(&Token::LParen);
    if query || function {
        return Err(Error::user(
            "INVALID_AUTOCDC_SOURCE",
            "the source of AUTO CDC is a name, not a query or a function",
        )
        .at(&cursor.here())
        .help("give it a name: CREATE TEMPORARY VIEW v AS SELECT … , then FROM STREAM(v)"));
    }
    let name = cursor.table_name("the source")?;
    if parentheses {
        cursor.expect_token(&Token::RParen)?;
    }
    let span = name.span.clone();
    let mut options = Vec::new();
    if cursor.is_word("with") && cursor.peek_at(1) == Some(&Token::LParen) {
        let at = cursor.next_span();
        cursor.advance();
        let inside = cursor.parenthesised()?;
        options = stream_options(cursor.file(), &inside, at)?;
    }
    Ok(WrittenRelation { stream: true, options, source: WrittenSource::Table(name), span })
}

fn starts_clause(cursor: &Cursor, ahead: usize) -> bool {
    ["with", "keys", "ignore", "apply", "sequence", "system", "columns", "stored", "track"]
        .iter()
        .any(|word| cursor.is_word_at(ahead, word))
}

fn clause(context: &Context<'_>, cursor: &mut Cursor, parts: &mut CdcParts) -> Result<()> {
    let place = cursor.here();
    let once = |before: bool, clause: &str| {
        if before {
            return Err(Error::user("DUPLICATE_CLAUSES", format!("{clause} is given twice")).at(&place));
        }
        Ok(())
    };
    if cursor.take(&["keys"]) {
        once(parts.keys.is_some(), "KEYS")?;
        let keys = names(cursor)?;
        if keys.is_empty() {
            return Err(Error::user("AUTOCDC_EMPTY_KEYS", "KEYS names no column").at(&place));
        }
        parts.keys = Some(keys);
    } else if cursor.take(&["apply", "as", "delete", "when"]) {
        once(parts.apply_as_deletes.is_some(), "APPLY AS DELETE WHEN")?;
        parts.apply_as_deletes = Some(expr(context, cursor)?.0);
    } else if cursor.take(&["apply", "as", "truncate", "when"]) {
        once(parts.apply_as_truncates.is_some(), "APPLY AS TRUNCATE WHEN")?;
        parts.apply_as_truncates = Some(expr(context, cursor)?.0);
    } else if cursor.take(&["sequence", "by"]) {
        once(parts.sequence_by.is_some(), "SEQUENCE BY")?;
        parts.sequence_by = Some(expr(context, cursor)?);
    } else if cursor.take(&["system", "sequence", "by"]) {
        return Err(not_supported("SYSTEM SEQUENCE BY").at(&place));
    } else if cursor.take(&["columns", "to", "update"]) {
        return Err(not_supported("COLUMNS TO UPDATE").at(&place));
    } else if cursor.take(&["columns"]) {
        once(parts.columns.is_some(), "COLUMNS")?;
        let list = column_list(cursor)?;
        if matches!(&list, ColumnList::Include(names) if names.is_empty()) {
            return Err(Error::user("AUTOCDC_EMPTY_COLUMN_LIST", "COLUMNS names no column").at(&place));
        }
        parts.columns = Some(list);
    } else if cursor.take(&["stored", "as"]) {
        once(parts.scd.is_some(), "STORED AS")?;
        parts.scd = Some(scd_type(cursor)?);
    } else if cursor.take(&["track", "history", "on"]) {
        once(parts.track_history.is_some(), "TRACK HISTORY ON")?;
        parts.track_history = Some(column_list(cursor)?);
    } else if cursor.take(&["ignore", "null", "updates"]) {
        once(parts.ignore_null_updates.is_some(), "IGNORE NULL UPDATES")?;
        parts.ignore_null_updates = Some(if cursor.take(&["on"]) {
            let list = column_list(cursor)?;
            if matches!(&list, ColumnList::Include(names) if names.is_empty()) {
                let message = "IGNORE NULL UPDATES ON names no column";
                return Err(Error::user("AUTOCDC_IGNORE_NULL_EMPTY_COLUMN_LIST", message).at(&place));
            }
            IgnoreNull::Columns(list)
        } else {
            IgnoreNull::All
        });
    } else {
        return Err(cursor.unexpected("a clause of AUTO CDC"));
    }
    Ok(())
}

fn expr(context: &Context<'_>, cursor: &mut Cursor) -> Result<(Expr, Span)> {
    let (expr, span) = cursor.expr()?;
    without_query(context.file, &expr, &span, "a clause of AUTO CDC")?;
    Ok((expr, span))
}

fn scd_type(cursor: &mut Cursor) -> Result<ScdType> {
    if cursor.is_word("bitemporal") {
        return Err(not_supported("STORED AS BITEMPORAL").at(&cursor.here()));
    }
    cursor.expect(&["scd", "type"])?;
    let found = match cursor.peek() {
        Some(Token::Number(text, false)) if text == "1" => ScdType::One,
        Some(Token::Number(text, false)) if text == "2" => ScdType::Two,
        _ => return Err(cursor.unexpected("1 or 2")),
    };
    cursor.advance();
    Ok(found)
}

/// `a, b` or `* EXCEPT (a, b)`, each with or without parentheses.
fn column_list(cursor: &mut Cursor) -> Result<ColumnList> {
    if cursor.peek() == Some(&Token::LParen) && cursor.peek_at(1) == Some(&Token::Mul) {
        cursor.advance();
        let list = column_list(cursor)?;
        cursor.expect_token(&Token::RParen)?;
        return Ok(list);
    }
    if cursor.take_token(&Token::Mul) {
        cursor.expect(&["except"])?;
        return Ok(ColumnList::Except(names(cursor)?));
    }
    Ok(ColumnList::Include(names(cursor)?))
}

/// Column names, with or without parentheses.
fn names(cursor: &mut Cursor) -> Result<Vec<Name>> {
    let parentheses = cursor.take_token(&Token::LParen);
    let mut names: Vec<Name> = Vec::new();
    if parentheses && cursor.take_token(&Token::RParen) {
        return Ok(names);
    }
    loop {
        let name = cursor.name("a column")?;
        if cursor.peek() == Some(&Token::Period) {
            let message = format!("`{}.…` has several parts: a column is named by itself here", name.text);
            return Err(Error::user("AUTOCDC_MULTIPART_COLUMN_IDENTIFIER", message).at(&name.span));
        }
        if cursor.peek() == Some(&Token::LParen) {
            return Err(Error::user("AUTOCDC_NON_COLUMN_IDENTIFIER", format!("`{}(…)` is no column", name.text))
                .at(&name.span)
                .help("compute it in a view and name the column here"));
        }
        names.push(name);
        if !cursor.take_token(&Token::Comma) {
            break;
        }
    }
    if parentheses {
        cursor.expect_token(&Token::RParen)?;
    }
    Ok(names)
}
