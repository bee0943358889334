//! `CREATE STREAMING TABLE`, `CREATE MATERIALIZED VIEW` and `CREATE VIEW`.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token};

use super::cdc::auto_cdc;
use super::clause::{collation, key_constraint, no_check, refused, without_effect};
use super::cursor::Cursor;
use super::relation::{not_supported, parse_query, without_query};
use super::shape::{name_columns, without_order};
use super::statement::{Context, finish};
use super::types::parse_type;
use crate::error::{Error, Result};
use crate::pipeline::declaration::{DatasetDeclaration, Declarations, FlowBody, FlowDeclaration};
use crate::pipeline::{Action, Column, DatasetKind, Expectation, Generated, Name};

/// The words up to the kind have been taken.
pub(super) fn create_dataset(
    context: &Context<'_>,
    mut cursor: Cursor,
    kind: DatasetKind,
    private: bool,
    start: AstSpan,
    declarations: &mut Declarations,
) -> Result<()> {
    cursor.take(&["if", "not", "exists"]);
    let name = cursor.table_name("a name")?;
    let span = cursor.since(start);
    let Items { columns, names, expectations } =
        if cursor.take_token(&Token::LParen) { items(context, &mut cursor, kind)? } else { Items::default() };
    let mut dataset = DatasetDeclaration {
        name: name.clone(),
        defaults: context.defaults.clone(),
        kind,
        private,
        columns,
        expectations,
        comment: None,
        properties: BTreeMap::new(),
        span: span.clone(),
    };
    let mut flow = None;
    let mut properties_given = false;
    let mut laid_out: Vec<String> = Vec::new();
    while !cursor.at_end() {
        let place = cursor.here();
        let twice = |what: &str| Error::user("DUPLICATE_CLAUSES", format!("{what} is given twice")).at(&place);
        let clause = cursor.next_word();
        if without_effect(context, &mut cursor, kind)? {
            let exclusive = ["PARTITIONED", "CLUSTER"].iter().all(|c| clause == *c || laid_out.iter().any(|l| l == c));
            if laid_out.contains(&clause) || exclusive {
                return Err(Error::user("DUPLICATE_CLAUSES", format!("{clause} is one clause too many")).at(&place));
            }
            laid_out.push(clause);
            continue;
        }
        refused(&cursor)?;
        if cursor.take(&["using"]) {
            let format = cursor.name("DELTA")?;
            if !format.text.eq_ignore_ascii_case("delta") {
                return Err(not_supported(&format!("USING {}", format.text.to_uppercase()))
                    .at(&format.span)
                    .help("tables are Delta tables"));
            }
        } else if cursor.take(&["comment"]) {
            if dataset.comment.replace(cursor.string("the comment in quotes")?).is_some() {
                return Err(twice("COMMENT"));
            }
        } else if cursor.take(&["tblproperties"]) {
            if std::mem::replace(&mut properties_given, true) {
                return Err(twice("TBLPROPERTIES"));
            }
            dataset.properties = properties(&mut cursor)?;
        } else if cursor.take(&["as"]) {
            let tokens = cursor.rest();
            let mut query = parse_query(context, tokens, cursor.next_span())?;
            without_order(context, &mut query);
            if !names.is_empty() {
                query.body = query.body.map_sql(|ast| name_columns(ast, &names));
            }
            flow = Some(FlowBody::Query { query, by_name: true });
        } else if kind == DatasetKind::StreamingTable && cursor.take(&["flow"]) {
            cursor.expect(&["auto", "cdc"])?;
            flow = Some(auto_cdc(context, &mut cursor)?);
            finish(&cursor)?;
        } else {
            return Err(cursor.unexpected("COMMENT, TBLPROPERTIES, AS or the end of the statement"));
        }
    }
    if let Some(name) = names.first()
        && !matches!(flow, Some(FlowBody::Query { .. }))
    {
        return Err(Error::user("PARSE_SYNTAX_ERROR", format!("`{}` has no type", name.text)).at(&name.span));
    }
    if flow.is_none() && kind != DatasetKind::StreamingTable {
        return Err(cursor.unexpected("AS and a query"));
    }
    declarations.datasets.push(dataset);
    declarations.flows.extend(flow.map(|body| FlowDeclaration {
        name: None,
        target: name,
        defaults: context.defaults.clone(),
        once: false,
        body,
        comment: None,
        span,
    }));
    Ok(())
}

/// What stands in parentheses behind the name.
#[derive(Default)]
struct Items {
    columns: Option<Vec<Column>>,
    /// Names for the columns of the query, which have the types that it gives them.
    names: Vec<Name>,
    expectations: Vec<Expectation>,
}

/// Columns and constraints up to the closing parenthesis.
fn items(context: &Context<'_>, cursor: &mut Cursor, kind: DatasetKind) -> Result<Items> {
    let mut items = Items::default();
    let mut columns = Vec::new();
    loop {
        if cursor.take_token(&Token::RParen) {
            break;
        }
        let named = cursor.is_word("constraint")
            && ["expect", "primary", "foreign", "check", "unique"].iter().any(|word| cursor.is_word_at(2, word));
        let key = ["primary", "foreign"].iter().any(|word| cursor.is_word(word) && cursor.is_word_at(1, "key"));
        let of_columns = |word| cursor.is_word(word) && cursor.peek_at(1) == Some(&Token::LParen);
        if named && cursor.is_word_at(2, "expect") {
            items.expectations.push(expectation(cursor)?);
        } else if named || key || of_columns("check") || of_columns("unique") {
            if cursor.take(&["constraint"]) {
                cursor.name("a name for the constraint")?;
            }
            if !key_constraint(context, cursor)? {
                return Err(no_check(cursor));
            }
        } else if matches!(cursor.peek_at(1), Some(Token::Comma | Token::RParen)) || cursor.is_word_at(1, "comment") {
            let name = cursor.name("a column")?;
            if cursor.take(&["comment"]) {
                let place = cursor.next_span();
                cursor.string("the comment in quotes")?;
                let why = "a comment belongs to a column that is declared with its type";
                context.without_effect("COMMENT of a column without a type", why, cursor.since(place));
            }
            items.names.push(name);
        } else {
            columns.push(column(context, cursor)?);
        }
        if !cursor.take_token(&Token::Comma) {
            cursor.expect_token(&Token::RParen)?;
            break;
        }
    }
    if let (Some(column), Some(name)) = (columns.first(), items.names.first()) {
        return Err(Error::user(
            "PARSE_SYNTAX_ERROR",
            format!("`{}` has no type, and `{}` has one", name.text, column.name),
        )
        .at(&name.span)
        .help("declare all columns with their types, or just their names"));
    }
    if kind == DatasetKind::TemporaryView
        && let Some(column) = columns.first()
    {
        return Err(not_supported("a column of a view with a type")
            .at(&column.span)
            .help("write the names alone, and cast the columns in the query"));
    }
    if !columns.is_empty() {
        items.columns = Some(columns);
    }
    Ok(items)
}

pub(super) fn column(context: &Context<'_>, cursor: &mut Cursor) -> Result<Column> {
    let name = cursor.name("a column")?;
    let (data_type, length) = parse_type(cursor)?;
    let mut column =
        Column { name: name.text, data_type, length, nullable: true, comment: None, generated: None, span: name.span };
    loop {
        let place = cursor.here();
        let no = |what: &str, help: &str| Err(not_supported(what).at(&place).help(help));
        if cursor.take(&["not", "null"]) {
            column.nullable = false;
        } else if cursor.take(&["comment"]) {
            column.comment = Some(cursor.string("the comment in quotes")?);
        } else if cursor.take(&["collate"]) {
            collation(cursor)?;
        } else if cursor.is_word("generated") {
            if length.is_some() {
                return no("a generated column of VARCHAR(n)", "declare it as STRING");
            }
            column.generated = Some(generated(cursor)?);
        } else if cursor.is_word("default") {
            return no("DEFAULT on a column", "write coalesce(…) in the query");
        } else if cursor.is_word("mask") {
            return no("MASK on a column", "leave the column out, or hide it in the query");
        } else if cursor.is_word("check") {
            return Err(no_check(cursor));
        } else {
            if cursor.is_word("constraint") {
                cursor.advance();
                cursor.name("a name for the constraint")?;
                if !key_constraint(context, cursor)? {
                    return Err(no_check(cursor));
                }
            } else if !key_constraint(context, cursor)? {
                return Ok(column);
            }
        }
    }
}

/// `GENERATED ALWAYS AS (expression)`
fn generated(cursor: &mut Cursor) -> Result<Generated> {
    let place = cursor.here();
    cursor.expect(&["generated"])?;
    let always = cursor.take(&["always"]);
    if !always {
        cursor.expect(&["by", "default"])?;
    }
    cursor.expect(&["as"])?;
    if cursor.is_word("identity") || !always {
        return Err(not_supported("an IDENTITY column")
            .at(&place)
            .help("numbers that depend on arrival could not be rebuilt; hash the key, as in xxhash64(id)"));
    }
    cursor.expect_token(&Token::LParen)?;
    let (expr, span) = cursor.expr()?;
    without_query(cursor.file(), &expr, &span, "a generated column")?;
    cursor.expect_token(&Token::RParen)?;
    Ok(Generated { expr, span })
}

/// `CONSTRAINT name EXPECT (condition) [ON VIOLATION …]`
fn expectation(cursor: &mut Cursor) -> Result<Expectation> {
    cursor.expect(&["constraint"])?;
    let name = cursor.name("a name for the expectation")?;
    cursor.expect(&["expect"])?;
    cursor.expect_token(&Token::LParen)?;
    let (condition, place) = cursor.expr()?;
    without_query(cursor.file(), &condition, &place, "an expectation")?;
    cursor.expect_token(&Token::RParen)?;
    let action = if cursor.take(&["on"]) {
        cursor.expect(&["violation"])?;
        if cursor.take(&["drop", "row"]) {
            Action::Drop
        } else if cursor.take(&["fail", "update"]) {
            Action::Fail
        } else if cursor.take(&["quarantine"]) {
            cursor.take(&["row"]);
            Action::Quarantine
        } else {
            return Err(cursor.unexpected("DROP ROW, FAIL UPDATE or QUARANTINE"));
        }
    } else {
        Action::Warn
    };
    Ok(Expectation { name: name.text, condition, action, span: name.span })
}

/// `('key' = 'value', a.b = 3, …)`
fn properties(cursor: &mut Cursor) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    cursor.expect_token(&Token::LParen)?;
    while !cursor.take_token(&Token::RParen) {
        let place = cursor.here();
        let key = match cursor.peek() {
            Some(Token::SingleQuotedString(_)) => cursor.string("a key")?,
            _ => {
                let mut key = cursor.name("a key")?.text;
                while cursor.take_token(&Token::Period) {
                    key.push('.');
                    key.push_str(&cursor.name("a key")?.text);
                }
                key
            }
        };
        cursor.take_token(&Token::Eq);
        let value = match cursor.peek() {
            Some(Token::SingleQuotedString(text) | Token::Number(text, _)) => text.clone(),
            Some(Token::Minus) if matches!(cursor.peek_at(1), Some(Token::Number(..))) => {
                cursor.advance();
                format!("-{}", cursor.peek().map(ToString::to_string).unwrap_or_default())
            }
            Some(Token::Word(word)) if ["true", "false"].iter().any(|b| word.value.eq_ignore_ascii_case(b)) => {
                word.value.to_lowercase()
            }
            _ => return Err(cursor.unexpected("a value in quotes")),
        };
        cursor.advance();
        if found.insert(key.clone(), value).is_some() {
            return Err(Error::user("DUPLICATE_KEY", format!("the property `{key}` is given twice")).at(&place));
        }
        if !cursor.take_token(&Token::Comma) {
            cursor.expect_token(&Token::RParen)?;
            break;
        }
    }
    Ok(found)
}
