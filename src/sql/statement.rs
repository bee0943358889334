//! The statements of a definition file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::cdc::auto_cdc;
use super::cursor::Cursor;
use super::dataset::create_dataset;
use super::interpolate::{Piece, Pieces, Variables};
use super::relation::{not_supported, parse_query};
use super::shape::{name_columns, without_order};
use super::token::tokenize;
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::{Declarations, Defaults, FlowBody, FlowDeclaration, WithoutEffect};
use crate::pipeline::names::near_miss;
use crate::pipeline::source::Source;
use crate::pipeline::{DatasetKind, Name};
use crate::stack::on_large_stack;

/// Prefixes of keys that set something in the engine; every other key of SET is a variable of its file.
const ENGINE_KEYS: [&str; 3] = ["spark.", "pipelines.", "silverflow."];

const TIME_ZONE: &str = "spark.sql.session.timeZone";

const STATEMENTS: [&str; 5] = ["CREATE", "APPLY", "SET", "USE", "REFRESH"];

/// Statements of Spark that a pipeline has not, and what is there instead.
const ELSEWHERE: [(&str, &str); 12] = [
    ("INSERT", "CREATE FLOW name AS INSERT INTO … feeds a streaming table"),
    (
        "DELETE",
        "what is in a table follows from its definition: filter in the query, or AUTO CDC with APPLY AS DELETE WHEN",
    ),
    ("UPDATE", "what is in a table follows from its definition: AUTO CDC applies changes by key"),
    ("MERGE", "AUTO CDC merges changes by key and sequence"),
    ("TRUNCATE", "`silverflow run --full-refresh` computes a table anew"),
    ("DROP", "a dataset goes when its statement is taken out of the file"),
    ("ALTER", "change the statement that declares the dataset; its table follows with the next run"),
    ("SELECT", "a query stands in CREATE … AS; `silverflow query` asks the tables"),
    ("WITH", "a query stands in CREATE … AS; `silverflow query` asks the tables"),
    ("EXPLAIN", "`silverflow dry-run --explain` shows how everything is computed"),
    ("DECLARE", "SET key = value, and ${key}"),
    ("ANALYZE", "statistics are kept by the engine"),
];

/// What CREATE makes in Spark and not in a pipeline.
const NOT_CREATED: [(&str, &str); 6] = [
    ("FUNCTION", "write the expression in a view; docs/functions.md lists the functions there are"),
    ("SCHEMA", "a schema is there as soon as a dataset is in it"),
    ("DATABASE", "a schema is there as soon as a dataset is in it"),
    ("CATALOG", "a catalog is there as soon as a dataset is in it"),
    ("SINK", "the tables are ordinary Delta tables, which others read"),
    ("GLOBAL", "CREATE TEMPORARY VIEW; views belong to the pipeline"),
];

/// What a statement is read against.
pub(crate) struct Context<'a> {
    pub(crate) file: &'a Arc<Source>,
    /// The project's folder, from which relative paths count.
    pub(crate) root: &'a Path,
    pub(crate) defaults: Defaults,
    /// Clauses so far that change nothing.
    without_effect: RefCell<Vec<WithoutEffect>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(file: &'a Arc<Source>, root: &'a Path, defaults: Defaults) -> Self {
        Context { file, root, defaults, without_effect: RefCell::default() }
    }

    /// Remembers a clause that changes nothing.
    pub(super) fn without_effect(&self, clause: &'static str, why: &'static str, span: Span) {
        self.without_effect.borrow_mut().push(WithoutEffect { clause, why, span });
    }
}

/// Reads all statements of a file. A statement with a mistake is left out and its error returned with the others.
pub(crate) fn parse_file(
    context: &mut Context<'_>,
    configuration: &BTreeMap<String, String>,
    declarations: &mut Declarations,
) -> Vec<Error> {
    on_large_stack(|| Ok(statements(context, configuration, declarations))).unwrap_or_else(|error| vec![error])
}

fn statements(
    context: &mut Context<'_>,
    configuration: &BTreeMap<String, String>,
    declarations: &mut Declarations,
) -> Vec<Error> {
    let file = context.file;
    let mut errors = Vec::new();
    let mut variables = Variables::new(configuration);
    let mut pieces = Pieces::new(file);
    while let Some(piece) = pieces.next(&variables) {
        let result = piece.and_then(|piece| {
            let tokens = tokenize(file, &piece)?;
            match tokens.first() {
                None => Ok(()),
                Some(first) if is(first, "set") => set(context, &piece, tokens, &mut variables, declarations),
                Some(_) => statement(context, Cursor::new(Arc::clone(file), tokens, piece.end(file)), declarations),
            }
        });
        errors.extend(result.err());
    }
    declarations.without_effect.append(&mut context.without_effect.borrow_mut());
    declarations.sources.push(Arc::clone(file));
    errors
}

fn is(token: &TokenWithSpan, word: &str) -> bool {
    matches!(&token.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// `SET key = value`: the value is everything up to the end of the statement, quotes included, as in Spark.
fn set(
    context: &mut Context<'_>,
    piece: &Piece,
    tokens: Vec<TokenWithSpan>,
    variables: &mut Variables,
    declarations: &mut Declarations,
) -> Result<()> {
    let file = context.file;
    let end = piece.end(file);
    let Some(equals) = tokens.iter().position(|t| t.token == Token::Eq) else {
        let mut cursor = Cursor::new(Arc::clone(file), tokens, end);
        cursor.advance();
        if cursor.take(&["time", "zone"]) {
            let place = cursor.here();
            let help = "SET TIME ZONE 'Europe/Berlin'";
            if cursor.is_word("local") {
                return Err(not_supported("the time zone of the machine (LOCAL)").at(&place).help(help));
            }
            let zone = cursor.string("a time zone in quotes").map_err(|e| e.help(help))?;
            finish(&cursor)?;
            variables.set(TIME_ZONE, &zone);
            declarations.settings.push((TIME_ZONE.to_owned(), zone, place));
            return Ok(());
        }
        if cursor.take(&["catalog"]) {
            context.defaults.catalog = match cursor.peek() {
                Some(Token::SingleQuotedString(_)) => cursor.string("a catalog")?,
                _ => cursor.name("a catalog")?.text,
            };
            return finish(&cursor);
        }
        while !cursor.at_end() {
            cursor.advance();
        }
        return Err(cursor.unexpected("`=` and a value"));
    };
    let between = |from: usize, to: usize| {
        let text = match (tokens.get(from), to.checked_sub(1).and_then(|i| tokens.get(i))) {
            (Some(first), Some(last)) if to > from => first.span.union(&last.span),
            _ => return None,
        };
        Some(text)
    };
    let missing = |what: &str| Error::user("PARSE_SYNTAX_ERROR", format!("SET without {what}")).at(&file.span(end));
    let key_at = between(1, equals).ok_or_else(|| missing("a key"))?;
    if let Some(TokenWithSpan { token: Token::Word(word), span }) = tokens.get(1)
        && ["var", "variable"].iter().any(|w| word.value.eq_ignore_ascii_case(w))
        && equals > 2
    {
        return Err(not_supported("SET VARIABLE").at(&file.span(*span)).help("SET key = value, and ${key}"));
    }
    let key = file.slice(key_at).trim().trim_matches('`').to_owned();
    // The text is taken from the statement and not from the file, so that `${…}` in a value is filled in here and now.
    let whole = piece.text().text().trim_end();
    let value = whole.split_once('=').map_or("", |(_, value)| value);
    let value = strip_comments(value).trim().to_owned();
    if value.is_empty() {
        return Err(missing("a value"));
    }
    if ENGINE_KEYS.iter().any(|prefix| key.starts_with(prefix)) {
        declarations.settings.push((key.clone(), value.clone(), file.span(key_at)));
    }
    variables.set(&key, &value);
    Ok(())
}

/// The text without a comment at its end; a comment inside would be part of no sensible value.
fn strip_comments(text: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if (before, c) == ('-', '-') || (before, c) == ('/', '*') => return text.get(..i - 1).unwrap_or(text),
            None => {}
        }
        before = c;
    }
    text
}

fn statement(context: &mut Context<'_>, mut cursor: Cursor, declarations: &mut Declarations) -> Result<()> {
    let start = cursor.next_span();
    if cursor.take(&["use"]) {
        return use_default(context, cursor);
    }
    if cursor.is_word("apply") {
        let (target, once, body) = auto_cdc_into(context, &mut cursor)?;
        let span = cursor.file().span(start);
        finish(&cursor)?;
        let defaults = context.defaults.clone();
        declarations.flows.push(FlowDeclaration { name: None, target, defaults, once, body, comment: None, span });
        return Ok(());
    }
    if cursor.is_word("refresh") {
        return Err(Error::user("UNSUPPORTED_STATEMENT", "REFRESH is no statement of a pipeline")
            .at(&cursor.here())
            .help("name the dataset on the command line: run --refresh NAME, or --full-refresh NAME"));
    }
    if !cursor.take(&["create"]) {
        let word = cursor.peek().map(ToString::to_string).unwrap_or_default();
        if let Some((starts, help)) = ELSEWHERE.iter().find(|(starts, _)| starts.eq_ignore_ascii_case(&word)) {
            let message = format!("{starts} is no statement of a pipeline");
            return Err(Error::user("UNSUPPORTED_STATEMENT", message).at(&cursor.here()).help(*help));
        }
        let error = Error::user("UNSUPPORTED_STATEMENT", format!("`{word}` starts no statement of a pipeline"))
            .at(&cursor.here());
        return Err(match near_miss(&word, STATEMENTS) {
            Some(near) => error.help(format!("did you mean {near}?")),
            None => error.help("a pipeline file holds CREATE STREAMING TABLE, VIEW, MATERIALIZED VIEW and FLOW, APPLY CHANGES, SET and USE"),
        });
    }
    let replaces = cursor.take(&["or"]);
    if replaces && !cursor.take(&["refresh"]) && !cursor.take(&["replace"]) {
        return Err(cursor.unexpected("REFRESH or REPLACE"));
    }
    let (mut private, mut streaming, mut live) = (false, false, false);
    loop {
        match () {
            () if cursor.take(&["private"]) || cursor.take(&["temporary"]) || cursor.take(&["temp"]) => private = true,
            () if cursor.take(&["streaming"]) || cursor.take(&["incremental"]) => streaming = true,
            () if cursor.take(&["live"]) => live = true,
            () => break,
        }
    }
    let kind = match () {
        () if cursor.take(&["materialized", "view"]) => DatasetKind::MaterializedView,
        () if cursor.take(&["view"]) => DatasetKind::TemporaryView,
        () if cursor.is_word("table") && streaming => {
            cursor.advance();
            DatasetKind::StreamingTable
        }
        () if cursor.is_word("table") && live => {
            cursor.advance();
            DatasetKind::MaterializedView
        }
        () if cursor.is_word("table") => {
            return Err(Error::user("UNSUPPORTED_STATEMENT", "a pipeline has no plain tables")
                .at(&cursor.here())
                .help("write CREATE STREAMING TABLE or CREATE MATERIALIZED VIEW"));
        }
        () if cursor.take(&["flow"]) && !private && !streaming && !live => {
            return create_flow(context, cursor, start, declarations);
        }
        () if let Some((what, help)) = NOT_CREATED.iter().find(|(what, _)| cursor.is_word(what)) => {
            let message = format!("CREATE {what} is no statement of a pipeline");
            return Err(Error::user("UNSUPPORTED_STATEMENT", message).at(&cursor.here()).help(*help));
        }
        () => return Err(cursor.unexpected("STREAMING TABLE, MATERIALIZED VIEW, TEMPORARY VIEW or FLOW")),
    };
    create_dataset(context, cursor, kind, private, start, declarations)
}

fn use_default(context: &mut Context<'_>, mut cursor: Cursor) -> Result<()> {
    let catalog = cursor.take(&["catalog"]);
    if !catalog && !cursor.take(&["schema"]) {
        cursor.take(&["database"]);
    }
    let first = cursor.name("a name")?.text;
    match (catalog, cursor.take_token(&Token::Period)) {
        (true, _) => context.defaults.catalog = first,
        (false, false) => context.defaults.schema = first,
        (false, true) => {
            let schema = cursor.name("a name")?.text;
            context.defaults = Defaults { catalog: first, schema };
        }
    }
    finish(&cursor)
}

/// `CREATE FLOW` has been taken.
fn create_flow(
    context: &Context<'_>,
    mut cursor: Cursor,
    start: datafusion::sql::sqlparser::tokenizer::Span,
    declarations: &mut Declarations,
) -> Result<()> {
    let name = cursor.name("a name for the flow")?;
    if cursor.peek() == Some(&Token::Period) {
        return Err(Error::user("MULTIPART_FLOW_NAME_NOT_SUPPORTED", "the name of a flow has one part").at(&name.span));
    }
    let comment = if cursor.take(&["comment"]) { Some(cursor.string("the comment in quotes")?) } else { None };
    let span = cursor.since(start);
    cursor.expect(&["as"])?;
    let (target, once, body) = if cursor.take(&["insert"]) {
        if cursor.is_word("overwrite") {
            return Err(not_supported("INSERT OVERWRITE")
                .at(&cursor.here())
                .help("a materialized view always holds what its query yields; a flow appends with INSERT INTO"));
        }
        cursor.expect(&["into"])?;
        if cursor.is_word("table") && matches!(cursor.peek_at(1), Some(Token::Word(_))) && !cursor.is_word_at(1, "by") {
            cursor.advance();
        }
        let names_once = ["by", "select", "with", "values", "from"].iter().any(|word| cursor.is_word_at(1, word));
        let once = matches!(cursor.peek_at(1), Some(Token::Word(_))) && !names_once && cursor.take(&["once"]);
        let target = cursor.table_name("the table to insert into")?;
        let listed = cursor.peek() == Some(&Token::LParen)
            && !["select", "with", "values", "from", "table"].iter().any(|word| cursor.is_word_at(1, word))
            && cursor.peek_at(1) != Some(&Token::LParen);
        let names = if listed { column_names(&mut cursor)? } else { Vec::new() };
        let by_name = cursor.take(&["by", "name"]);
        let tokens = cursor.rest();
        let mut query = parse_query(context, tokens, cursor.next_span())?;
        without_order(context, &mut query);
        if listed {
            query.body = query.body.map_sql(|ast| name_columns(ast, &names));
        }
        let by_name = by_name || listed;
        (target, once, FlowBody::Query { query, by_name })
    } else if cursor.is_word("auto") || cursor.is_word("apply") {
        auto_cdc_into(context, &mut cursor)?
    } else {
        return Err(cursor.unexpected("INSERT INTO or AUTO CDC"));
    };
    finish(&cursor)?;
    let defaults = context.defaults.clone();
    declarations.flows.push(FlowDeclaration { name: Some(name), target, defaults, once, body, comment, span });
    Ok(())
}

/// Column names in parentheses.
fn column_names(cursor: &mut Cursor) -> Result<Vec<Name>> {
    cursor.expect_token(&Token::LParen)?;
    let mut names = Vec::new();
    loop {
        names.push(cursor.name("a column")?);
        if !cursor.take_token(&Token::Comma) {
            cursor.expect_token(&Token::RParen)?;
            return Ok(names);
        }
    }
}

/// `AUTO CDC [ONCE] INTO t …` or `APPLY CHANGES [ONCE] INTO t …`
fn auto_cdc_into(
    context: &Context<'_>,
    cursor: &mut Cursor,
) -> Result<(crate::pipeline::declaration::WrittenName, bool, FlowBody)> {
    if cursor.take(&["auto"]) {
        cursor.expect(&["cdc"])?;
    } else {
        cursor.expect(&["apply", "changes"])?;
    }
    let once = cursor.take(&["once"]);
    cursor.expect(&["into"])?;
    let target = cursor.table_name("the target")?;
    let body = auto_cdc(context, cursor)?;
    Ok((target, once, body))
}

/// Nothing may follow.
pub(super) fn finish(cursor: &Cursor) -> Result<()> {
    if cursor.at_end() { Ok(()) } else { Err(cursor.unexpected("the end of the statement")) }
}
