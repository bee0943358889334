//! `STREAM` taken off the tokens of a query, where sqlparser would read it as a table or an alias.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

use super::relation::not_supported;
use super::stream_options::{StreamOptions, stream_options};
use crate::error::{Error, Result};
use crate::pipeline::source::Source;

/// Stands before the first name of a relation that is read as a stream. No name of a user can hold it: the tokenizer
/// refuses control characters outside quotes, and quoted names with it are refused by [`mark_streams`].
pub(super) const MARK: char = '\u{1}';

/// Stands behind [`MARK`] n times where the n-th options of the query belong to the relation.
pub(super) const OPTIONS: char = '\u{2}';

/// One level of parentheses.
#[derive(Default)]
struct Level {
    /// A SELECT stands at this level, so FROM starts its tables (it does not inside `extract(… FROM …)`).
    select: bool,
    from: bool,
    /// It begins with WITH, so that FROM may come behind a parenthesis.
    with: bool,
    /// `|>` has come, behind which JOIN may stand.
    pipe: bool,
    /// The next token starts a table.
    table: bool,
    /// This level is the parentheses of `STREAM(…)`, which are dropped.
    stream: bool,
}

/// Drops each `STREAM` (and the parentheses of `STREAM(…)`) that stands where a table can, and marks the name behind it.
///
/// Takes `WITH (…)` behind such a table off too; what it says is given beside.
pub(super) fn mark_streams(
    file: &Source,
    tokens: Vec<TokenWithSpan>,
) -> Result<(Vec<TokenWithSpan>, Vec<StreamOptions>)> {
    let mut result: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut options: Vec<StreamOptions> = Vec::new();
    // The marked name that ends before the next token.
    let mut named: Option<usize> = None;
    let mut levels = vec![Level::default()];
    let mut marking = false;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(mut current) = tokens.next() {
        let outer = levels.len() > 1;
        let Some(level) = levels.last_mut() else { break };
        let table = std::mem::take(&mut level.table);
        let continues = match &current.token {
            Token::Period => true,
            Token::RParen => level.stream,
            Token::Word(_) => result.last().is_some_and(|before| before.token == Token::Period),
            _ => false,
        };
        if !continues && let Some(at) = named.take() {
            let with = matches!(&current.token, Token::Word(word) if word.keyword == Keyword::WITH);
            if matches!(&current.token, Token::Word(word) if word.value.eq_ignore_ascii_case("watermark"))
                && matches!(tokens.peek().map(|t| &t.token), Some(Token::Word(_)))
            {
                return Err(not_supported("WATERMARK")
                    .at(&file.span(current.span))
                    .help("leave it out: a row is never too late here, and what it changes is corrected"));
            }
            if with && tokens.peek().is_some_and(|t| t.token == Token::LParen) {
                tokens.next();
                let inside: Vec<TokenWithSpan> =
                    std::iter::from_fn(|| tokens.next_if(|t| t.token != Token::RParen)).collect();
                tokens.next();
                options.push(stream_options(file, &inside, current.span)?);
                if let Some(TokenWithSpan { token: Token::Word(word), .. }) = result.get_mut(at) {
                    word.value.insert_str(MARK.len_utf8(), &OPTIONS.to_string().repeat(options.len()));
                }
                continue;
            }
        }
        match &mut current.token {
            Token::Word(word) => {
                if word.value.contains([MARK, OPTIONS]) {
                    let message = "a name cannot hold a control character";
                    return Err(Error::user("PARSE_SYNTAX_ERROR", message).at(&file.span(current.span)));
                }
                let keyword = if word.quote_style.is_none() { word.keyword } else { Keyword::NoKeyword };
                if table && word.quote_style.is_none() && word.value.eq_ignore_ascii_case("stream") && !marking {
                    match tokens.peek().map(|t| &t.token) {
                        Some(Token::LParen) => {
                            tokens.next();
                            levels.push(Level { table: true, stream: true, ..Level::default() });
                            marking = true;
                            continue;
                        }
                        Some(Token::Word(next)) if next.quote_style.is_some() || !ends_table(next) => {
                            level.table = true;
                            marking = true;
                            continue;
                        }
                        _ => {}
                    }
                }
                if std::mem::take(&mut marking) {
                    if matches!(keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES) {
                        return Err(Error::user(
                            "INVALID_STREAM",
                            "STREAM takes a table or read_files(…), not a query",
                        )
                        .at(&file.span(current.span))
                        .help("give the query a name with CREATE TEMPORARY VIEW and read STREAM of that"));
                    }
                    word.value.insert(0, MARK);
                    named = Some(result.len());
                } else {
                    match keyword {
                        Keyword::SELECT => (level.select, level.from) = (true, false),
                        Keyword::WITH if starts_query(&result, false) => level.with = true,
                        Keyword::FROM
                            if starts_query(&result, level.with) || level.select && !distinct_from(&result) =>
                        {
                            (level.from, level.table) = (true, true)
                        }
                        Keyword::JOIN if level.from || level.pipe => level.table = true,
                        Keyword::LATERAL if table => level.table = true,
                        Keyword::WHERE
                        | Keyword::GROUP
                        | Keyword::HAVING
                        | Keyword::ORDER
                        | Keyword::SORT
                        | Keyword::LIMIT
                        | Keyword::QUALIFY
                        | Keyword::WINDOW
                        | Keyword::UNION
                        | Keyword::EXCEPT
                        | Keyword::INTERSECT
                        | Keyword::MINUS => level.from = false,
                        _ => {}
                    }
                }
            }
            _ if std::mem::take(&mut marking) => {
                return Err(
                    Error::user("INVALID_STREAM", "STREAM takes a table or read_files(…)").at(&file.span(current.span))
                );
            }
            Token::VerticalBarRightAngleBracket => (level.pipe, level.from) = (true, false),
            Token::LParen => levels.push(Level { table, from: table, ..Level::default() }),
            Token::Comma if level.from => level.table = true,
            Token::RParen if outer && levels.pop().is_some_and(|level| level.stream) => continue,
            _ => {}
        }
        result.push(current);
    }
    Ok((result, options))
}

/// Can a query start behind these tokens? With `with`, behind the common table expressions of the query itself.
fn starts_query(before: &[TokenWithSpan], with: bool) -> bool {
    let set =
        |word: &Word| matches!(word.keyword, Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS);
    let mut back = before.iter().rev().map(|t| &t.token);
    match back.next() {
        None | Some(Token::LParen) => true,
        Some(Token::RParen) => with,
        Some(Token::Word(word)) if matches!(word.keyword, Keyword::ALL | Keyword::DISTINCT) => {
            matches!(back.next(), Some(Token::Word(word)) if set(word))
        }
        Some(Token::Word(word)) => set(word),
        _ => false,
    }
}

/// `IS [NOT] DISTINCT FROM`
fn distinct_from(before: &[TokenWithSpan]) -> bool {
    let keyword = |back: usize| match before.len().checked_sub(back).and_then(|i| before.get(i)).map(|t| &t.token) {
        Some(Token::Word(word)) => word.keyword,
        _ => Keyword::NoKeyword,
    };
    keyword(1) == Keyword::DISTINCT && matches!(keyword(2), Keyword::IS | Keyword::NOT)
}

/// Can this word follow a table called `stream`, and not be the table of `STREAM x`?
fn ends_table(word: &Word) -> bool {
    matches!(
        word.keyword,
        Keyword::AS
            | Keyword::JOIN
            | Keyword::INNER
            | Keyword::CROSS
            | Keyword::LEFT
            | Keyword::RIGHT
            | Keyword::FULL
            | Keyword::SEMI
            | Keyword::ANTI
            | Keyword::NATURAL
            | Keyword::ON
            | Keyword::USING
            | Keyword::LATERAL
            | Keyword::WHERE
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::SORT
            | Keyword::LIMIT
            | Keyword::QUALIFY
            | Keyword::WINDOW
            | Keyword::UNION
            | Keyword::EXCEPT
            | Keyword::INTERSECT
            | Keyword::MINUS
            | Keyword::PIVOT
            | Keyword::UNPIVOT
            | Keyword::TABLESAMPLE
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sql::token::tokens_of;

    fn marked(text: &str) -> String {
        let file = Source::new("q.sql", text);
        match mark_streams(&file, tokens_of(&file).unwrap()) {
            Ok((tokens, options)) => {
                let shown = |t: &TokenWithSpan| t.token.to_string().replace(MARK, "!").replace(OPTIONS, "+");
                let options = options.iter().flatten().map(|(name, value)| format!("{}: {value}", name.text));
                tokens.iter().map(shown).chain(options).collect::<Vec<_>>().join(" ")
            }
            Err(error) => format!("{}: {}", error.place().span.as_ref().unwrap(), error.message()),
        }
    }

    #[test]
    fn streams_are_found_where_tables_stand() {
        for (text, expected) in [
            ("SELECT * FROM STREAM x", "SELECT * FROM !x"),
            ("SELECT * FROM STREAM(a.b.x) AS t", "SELECT * FROM !a . b . x AS t"),
            ("SELECT * FROM stream `my x` y", "SELECT * FROM `!my x` y"),
            (
                "SELECT * FROM STREAM read_files('p', format => 'json')",
                "SELECT * FROM !read_files ( 'p' , format => 'json' )",
            ),
            ("SELECT * FROM STREAM(read_files('p')) f", "SELECT * FROM !read_files ( 'p' ) f"),
            (
                "SELECT * FROM a, STREAM b JOIN STREAM(c) ON f(1, stream)",
                "SELECT * FROM a , !b JOIN !c ON f ( 1 , stream )",
            ),
            ("SELECT * FROM (a JOIN STREAM b)", "SELECT * FROM ( a JOIN !b )"),
            ("SELECT * FROM (STREAM b) x", "SELECT * FROM ( !b ) x"),
            (
                "SELECT stream s, extract(YEAR FROM stream s) FROM t",
                "SELECT stream s , extract ( YEAR FROM stream s ) FROM t",
            ),
            ("SELECT a IS DISTINCT FROM stream AND b FROM t", "SELECT a IS DISTINCT FROM stream AND b FROM t"),
            ("SELECT * FROM stream WHERE x", "SELECT * FROM stream WHERE x"),
            ("SELECT * FROM stream", "SELECT * FROM stream"),
            ("SELECT * FROM `stream` s", "SELECT * FROM `stream` s"),
            (
                "WITH c AS (SELECT * FROM STREAM x) SELECT * FROM c WHERE a IN (SELECT b FROM STREAM y)",
                "WITH c AS ( SELECT * FROM !x ) SELECT * FROM c WHERE a IN ( SELECT b FROM !y )",
            ),
            ("SELECT * FROM STREAM x UNION ALL SELECT * FROM STREAM y", "SELECT * FROM !x UNION ALL SELECT * FROM !y"),
            ("SELECT * FROM STREAM x WITH ('a b' = 'true') y", "SELECT * FROM !+x y a b: true"),
            (
                "SELECT * FROM STREAM(a.x) WITH (silverflow.mode 'changes', n=-3), STREAM b.`y` WITH (c TRUE) JOIN c",
                "SELECT * FROM !+a . x , !++b . `y` JOIN c silverflow.mode: changes n: -3 c: TRUE",
            ),
            ("SELECT * FROM STREAM(x WITH (a = b)) AS y", "SELECT * FROM !+x AS y a: b"),
            (
                "FROM STREAM x |> WHERE a > 1 |> LEFT JOIN STREAM y USING (id) |> SELECT stream s, b",
                "FROM !x |> WHERE a > 1 |> LEFT JOIN !y USING ( id ) |> SELECT stream s , b",
            ),
            (
                "WITH c AS (FROM STREAM x SELECT a) FROM STREAM y UNION ALL FROM STREAM z",
                "WITH c AS ( FROM !x SELECT a ) FROM !y UNION ALL FROM !z",
            ),
            (
                "SELECT substring(f(a) FROM stream b), trim(BOTH FROM stream c) FROM t",
                "SELECT substring ( f ( a ) FROM stream b ) , trim ( BOTH FROM stream c ) FROM t",
            ),
            (
                "SELECT * FROM STREAM x WATERMARK ts DELAY OF INTERVAL 1 HOUR",
                "q.sql:1:24: WATERMARK is not supported yet",
            ),
            ("SELECT * FROM STREAM x WITH (a = )", "q.sql:1:30: expected an option and its value"),
            ("SELECT * FROM STREAM x WITH ()", "q.sql:1:24: expected an option"),
            ("SELECT * FROM STREAM (SELECT 1)", "q.sql:1:23: STREAM takes a table or read_files(…), not a query"),
            ("SELECT * FROM STREAM('x')", "q.sql:1:22: STREAM takes a table or read_files(…)"),
        ] {
            assert_eq!(marked(text), expected, "{text}");
        }
    }
}
