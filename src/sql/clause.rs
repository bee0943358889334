//! Clauses of `CREATE` that say how a table is kept elsewhere: some change nothing here, the others are refused.

use datafusion::sql::sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use super::relation::not_supported;
use super::statement::Context;
use crate::error::{Error, Result};
use crate::pipeline::DatasetKind;

const LAYOUT: &str = "the engine lays files out and compacts them by itself, and a read skips those it does not need";
const STARTED: &str = "a run is started from outside, and computes what has changed";

/// Clauses that are refused, by the words they start with, and what to write instead.
const REFUSED: [(&[&str], &str); 13] = [
    (&["location"], "leave it out: tables are under `storage` of the project file, at catalog/schema/table"),
    (&["path"], "leave it out: tables are under `storage` of the project file, at catalog/schema/table"),
    (&["with", "row", "filter"], "filter in a view, WHERE …, and give readers that"),
    (&["row", "filter"], "filter in a view, WHERE …, and give readers that"),
    (&["options"], "options of the table are TBLPROPERTIES"),
    (&["partition", "by"], "it is PARTITIONED BY (…)"),
    (&["row", "format"], "leave it out: tables are Delta tables"),
    (&["stored", "as"], "leave it out: tables are Delta tables; for AUTO CDC it comes behind the keys"),
    (&["skewed", "by"], "leave it out"),
    (&["with", "metrics"], "a view of a pipeline is a query"),
    (&["with"], "the query comes after AS"),
    (&["schedule", "drop"], "leave it out"),
    (&["query"], "AS and the query"),
];

/// Takes a clause that changes nothing, if one comes next.
pub(super) fn without_effect(context: &Context<'_>, cursor: &mut Cursor, kind: DatasetKind) -> Result<bool> {
    let start = cursor.next_span();
    let (clause, why) = if cursor.take(&["partitioned", "by"]) {
        columns(cursor)?;
        ("PARTITIONED BY", LAYOUT)
    } else if cursor.take(&["cluster", "by"]) {
        if !cursor.take(&["auto"]) && !cursor.take(&["none"]) {
            columns(cursor)?;
        }
        ("CLUSTER BY", LAYOUT)
    } else if cursor.take(&["clustered", "by"]) {
        columns(cursor)?;
        if cursor.take(&["sorted", "by"]) {
            cursor.balanced()?;
        }
        cursor.expect(&["into"])?;
        number(cursor)?;
        cursor.expect(&["buckets"])?;
        ("CLUSTERED BY", LAYOUT)
    } else if kind == DatasetKind::TemporaryView
        && ((cursor.is_word("schema") && !cursor.is_word_at(1, "as")) || cursor.take(&["with", "schema"]))
    {
        cursor.take(&["schema"]);
        if ![&["binding"][..], &["compensation"], &["type", "evolution"], &["evolution"]]
            .iter()
            .any(|words| cursor.take(words))
        {
            return Err(cursor.unexpected("BINDING, COMPENSATION, TYPE EVOLUTION or EVOLUTION"));
        }
        ("SCHEMA of a view", "a view is planned anew with what it reads")
    } else if kind == DatasetKind::TemporaryView {
        return Ok(false);
    } else if cursor.take(&["refresh", "policy"]) {
        if !cursor.take(&["auto"])
            && !cursor.take(&["incremental", "strict"])
            && !cursor.take(&["incremental"])
            && !cursor.take(&["full"])
        {
            return Err(cursor.unexpected("AUTO, INCREMENTAL, INCREMENTAL STRICT or FULL"));
        }
        ("REFRESH POLICY", "every table is kept up to date by the difference")
    } else if cursor.is_word("schedule") && !cursor.is_word_at(1, "drop") {
        cursor.advance();
        schedule(cursor)?;
        ("SCHEDULE", STARTED)
    } else if cursor.take(&["trigger", "on", "update"]) {
        if cursor.take(&["at", "most", "every"]) {
            every(cursor)?;
        }
        ("TRIGGER ON UPDATE", STARTED)
    } else if cursor.take(&["default", "collation"]) {
        collation(cursor)?;
        ("DEFAULT COLLATION UTF8_BINARY", "text is compared by its bytes anyway")
    } else {
        return Ok(false);
    };
    context.without_effect(clause, why, cursor.since(start));
    Ok(true)
}

/// The error for a clause that is refused by name, if one comes next.
pub(super) fn refused(cursor: &Cursor) -> Result<()> {
    let starts = |words: &&[&str]| words.iter().enumerate().all(|(i, word)| cursor.is_word_at(i, word));
    match REFUSED.iter().find(|(words, _)| starts(words)) {
        Some((words, help)) => Err(not_supported(&words.join(" ").to_uppercase()).at(&cursor.here()).help(*help)),
        None => Ok(()),
    }
}

/// The name of a collation; there is one.
pub(super) fn collation(cursor: &mut Cursor) -> Result<()> {
    let name = cursor.name("a collation")?;
    if name.text.eq_ignore_ascii_case("utf8_binary") {
        return Ok(());
    }
    Err(not_supported(&format!("the collation {}", name.text.to_uppercase()))
        .at(&name.span)
        .help("text is compared by its bytes (UTF8_BINARY); compare lower(…) where case does not count"))
}

/// Columns in parentheses, or transforms of them such as `bucket(4, id)`.
fn columns(cursor: &mut Cursor) -> Result<()> {
    cursor.expect_token(&Token::LParen)?;
    loop {
        cursor.name("a column")?;
        if cursor.peek() == Some(&Token::LParen) {
            cursor.balanced()?;
        }
        while cursor.take_token(&Token::Period) {
            cursor.name("a column")?;
        }
        if let Some(Token::Word(_)) = cursor.peek() {
            return Err(not_supported("a column that is declared by where it is used")
                .at(&cursor.here())
                .help("declare it among the columns, or yield it in the query"));
        }
        if !cursor.take_token(&Token::Comma) {
            return cursor.expect_token(&Token::RParen);
        }
    }
}

fn number(cursor: &mut Cursor) -> Result<()> {
    match cursor.peek() {
        Some(Token::Number(..)) => {
            cursor.advance();
            Ok(())
        }
        _ => Err(cursor.unexpected("a number")),
    }
}

/// `REFRESH CRON '…' [AT TIME ZONE '…']` or `EVERY n HOURS`; `SCHEDULE` has been taken.
fn schedule(cursor: &mut Cursor) -> Result<()> {
    cursor.take(&["refresh"]);
    if cursor.take(&["cron"]) {
        cursor.string("the schedule in quotes")?;
        if cursor.take(&["at", "time", "zone"]) {
            cursor.string("a time zone in quotes")?;
        }
        return Ok(());
    }
    cursor.expect(&["every"])?;
    every(cursor)
}

/// A duration.
fn every(cursor: &mut Cursor) -> Result<()> {
    cursor.take(&["interval"]);
    if let Some(Token::SingleQuotedString(_)) = cursor.peek() {
        cursor.advance();
    } else {
        number(cursor)?;
    }
    if let Some(Token::Word(_)) = cursor.peek()
        && !cursor.is_word("as")
    {
        cursor.name("a unit")?;
    }
    Ok(())
}

/// A constraint of keys, which informs and is not checked: takes it, if one comes next. The name is there already.
pub(super) fn key_constraint(context: &Context<'_>, cursor: &mut Cursor) -> Result<bool> {
    const WHY: &str = "keys inform readers and are not checked; an AUTO CDC target has one row a key";
    let start = cursor.next_span();
    let clause = if cursor.take(&["primary", "key"]) {
        if cursor.peek() == Some(&Token::LParen) {
            key_columns(cursor)?;
        }
        "PRIMARY KEY"
    } else if cursor.take(&["unique"]) {
        if cursor.peek() == Some(&Token::LParen) {
            key_columns(cursor)?;
        }
        "UNIQUE"
    } else if cursor.is_word("foreign") || cursor.is_word("references") {
        if cursor.take(&["foreign"]) {
            cursor.expect(&["key"])?;
            if cursor.peek() == Some(&Token::LParen) {
                key_columns(cursor)?;
            }
        }
        cursor.expect(&["references"])?;
        cursor.table_name("the table of the key")?;
        if cursor.peek() == Some(&Token::LParen) {
            key_columns(cursor)?;
        }
        "FOREIGN KEY"
    } else {
        return Ok(false);
    };
    loop {
        if cursor.is_word("enforced") {
            return Err(not_supported("a key that is ENFORCED").at(&cursor.here()).help("leave ENFORCED out"));
        }
        let taken = [
            &["not", "enforced"][..],
            &["rely"],
            &["norely"],
            &["deferrable"],
            &["not", "deferrable"],
            &["initially", "deferred"],
            &["initially", "immediate"],
            &["match", "full"],
            &["on", "update", "no", "action"],
            &["on", "delete", "no", "action"],
        ]
        .iter()
        .any(|words| cursor.take(words));
        if !taken {
            break;
        }
    }
    context.without_effect(clause, WHY, cursor.since(start));
    Ok(true)
}

fn key_columns(cursor: &mut Cursor) -> Result<()> {
    cursor.expect_token(&Token::LParen)?;
    loop {
        cursor.name("a column")?;
        cursor.take(&["timeseries"]);
        if !cursor.take_token(&Token::Comma) {
            return cursor.expect_token(&Token::RParen);
        }
    }
}

/// The error for CHECK, which would have to hold.
pub(super) fn no_check(cursor: &Cursor) -> Error {
    not_supported("CHECK")
        .at(&cursor.here())
        .help("CONSTRAINT name EXPECT (condition) ON VIOLATION FAIL UPDATE is checked on every row")
}
