//! `CREATE STREAMING TABLE`, `CREATE MATERIALIZED VIEW` and `CREATE VIEW`.

use std::collections::BTreeMap;

use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token};

use super::cdc::auto_cdc;
use super::cursor::Cursor;
use super::relation::{not_supported, parse_query, without_query};
use super::statement::{Context, finish};
use super::types::parse_type;
use crate::error::{Error, Result};
use crate::pipeline::declaration::{DatasetDeclaration, Declarations, FlowBody, FlowDeclaration};
use crate::pipeline::{Action, Column, DatasetKind, Expectation};

/// Clauses that the language has and this release refuses, by the words they start with.
const REFUSED: [&[&str]; 13] = [
    &["partitioned", "by"],
    &["cluster", "by"],
    &["location"],
    &["with", "row", "filter"],
    &["row", "filter"],
    &["refresh", "policy"],
    &["schedule"],
    &["trigger"],
    &["options"],
    &["default", "collation"],
    &["with"],
    &["path"],
    &["partition", "by"],
];

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
    let (columns, expectations) =
        if cursor.take_token(&Token::LParen) { items(&mut cursor, kind)? } else { (None, Vec::new()) };
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
    while !cursor.at_end() {
        let place = cursor.here();
        let twice = |what: &str| Error::user("DUPLICATE_CLAUSES", format!("{what} is given twice")).at(&place);
        if let Some(words) =
            REFUSED.iter().find(|words| words.iter().enumerate().all(|(i, word)| cursor.is_word_at(i, word)))
        {
            return Err(not_supported(&words.join(" ").to_uppercase()).at(&place));
        }
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
            let query = parse_query(context, tokens, cursor.next_span())?;
            flow = Some(FlowBody::Query { query, by_name: true });
        } else if kind == DatasetKind::StreamingTable && cursor.take(&["flow"]) {
            cursor.expect(&["auto", "cdc"])?;
            flow = Some(auto_cdc(context, &mut cursor)?);
            finish(&cursor)?;
        } else {
            return Err(cursor.unexpected("COMMENT, TBLPROPERTIES, AS or the end of the statement"));
        }
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

/// Columns and constraints up to the closing parenthesis.
fn items(cursor: &mut Cursor, kind: DatasetKind) -> Result<(Option<Vec<Column>>, Vec<Expectation>)> {
    let mut columns = Vec::new();
    let mut expectations = Vec::new();
    loop {
        if cursor.take_token(&Token::RParen) {
            break;
        }
        let named_constraint = |word: &str| cursor.is_word("constraint") && cursor.is_word_at(2, word);
        if named_constraint("expect") {
            expectations.push(expectation(cursor)?);
        } else if ["primary", "foreign", "check", "unique"].into_iter().any(named_constraint)
            || [["primary", "key"], ["foreign", "key"]]
                .iter()
                .any(|[a, b]| cursor.is_word(a) && cursor.is_word_at(1, b))
        {
            return Err(not_supported("a key or check constraint")
                .at(&cursor.here())
                .help("CONSTRAINT name EXPECT (condition) is checked on every row"));
        } else {
            let one_word =
                matches!(cursor.peek_at(1), Some(Token::Comma | Token::RParen)) || cursor.is_word_at(1, "comment");
            if kind == DatasetKind::TemporaryView && one_word {
                return Err(not_supported("a column list of a view")
                    .at(&cursor.here())
                    .help("name the columns in its query"));
            }
            columns.push(column(cursor)?);
        }
        if !cursor.take_token(&Token::Comma) {
            cursor.expect_token(&Token::RParen)?;
            break;
        }
    }
    if kind == DatasetKind::TemporaryView
        && let Some(column) = columns.first()
    {
        return Err(not_supported("a column list of a view")
            .at(&column.span)
            .help("name and cast the columns in its query"));
    }
    Ok((if columns.is_empty() { None } else { Some(columns) }, expectations))
}

pub(super) fn column(cursor: &mut Cursor) -> Result<Column> {
    let name = cursor.name("a column")?;
    let data_type = parse_type(cursor)?;
    let mut column = Column { name: name.text, data_type, nullable: true, comment: None, span: name.span };
    loop {
        if cursor.take(&["not", "null"]) {
            column.nullable = false;
        } else if cursor.take(&["comment"]) {
            column.comment = Some(cursor.string("the comment in quotes")?);
        } else if let Some(word) =
            ["generated", "default", "mask", "primary", "constraint", "collate"].into_iter().find(|w| cursor.is_word(w))
        {
            return Err(not_supported(&format!("{} on a column", word.to_uppercase())).at(&cursor.here()));
        } else {
            return Ok(column);
        }
    }
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
