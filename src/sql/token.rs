//! Tokens of a statement, at their positions in the file and in the forms that the parser reads.

use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan, Token, TokenWithSpan, Tokenizer, Word};

use super::dialect::PipelineDialect;
use super::interpolate::Piece;
use crate::error::{Error, Result};
use crate::pipeline::source::Source;

/// The tokens of a piece without white space and comments.
pub(super) fn tokenize(file: &Source, piece: &Piece) -> Result<Vec<TokenWithSpan>> {
    let raw = tokens_of(piece.text()).map_err(|(message, at)| {
        let span = AstSpan { start: at, end: at };
        Error::user("PARSE_SYNTAX_ERROR", message).at(&file.span(piece.place(file, span)))
    })?;
    let placed =
        raw.into_iter().map(|TokenWithSpan { token, span }| TokenWithSpan { token, span: piece.place(file, span) });
    Ok(placed.collect())
}

/// The tokens of a text by themselves.
pub(super) fn tokens_of(text: &Source) -> Result<Vec<TokenWithSpan>, (String, Location)> {
    let tokens = Tokenizer::new(&PipelineDialect, text.text())
        .tokenize_with_location()
        .map_err(|error| (error.message, error.location))?;
    let mut result: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for TokenWithSpan { token, span } in tokens {
        match token {
            Token::Whitespace(_) | Token::EOF => {}
            Token::DoubleQuotedString(_) | Token::SingleQuotedString(_) => {
                let raw = raw_prefix(&mut result, span);
                result.push(string(text, raw, span));
            }
            Token::Word(word) if word.quote_style.is_none() => number_or_word(&mut result, word, span),
            token => result.push(TokenWithSpan { token, span }),
        }
    }
    Ok(result)
}

/// Takes the `r` that stands right before a raw string off the tokens.
fn raw_prefix(tokens: &mut Vec<TokenWithSpan>, string: AstSpan) -> Option<AstSpan> {
    match tokens.last() {
        Some(TokenWithSpan { token: Token::Word(Word { value, quote_style: None, .. }), span })
            if value.eq_ignore_ascii_case("r") && span.end == string.start =>
        {
            let span = *span;
            tokens.pop();
            Some(span)
        }
        _ => None,
    }
}

/// Strings are single-quoted for everything behind us, and hold what Spark reads from their text.
fn string(text: &Source, raw: Option<AstSpan>, span: AstSpan) -> TokenWithSpan {
    let written = text.slice(span);
    let inner = written.get(1..written.len().saturating_sub(1)).unwrap_or("");
    match raw {
        Some(prefix) => {
            let token = Token::SingleQuotedString(inner.to_owned());
            TokenWithSpan { token, span: AstSpan { start: prefix.start, end: span.end } }
        }
        None => {
            let quote = written.chars().next().unwrap_or('\'');
            TokenWithSpan { token: Token::SingleQuotedString(unescaped(inner, quote)), span }
        }
    }
}

/// The value of a string from the text between its quotes. `\%` and `\_` stay, since LIKE reads them.
fn unescaped(inner: &str, quote: char) -> String {
    let mut value = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or("");
        if c == quote {
            rest = rest.strip_prefix(quote).unwrap_or(rest);
        }
        if c != '\\' {
            value.push(c);
            continue;
        }
        let numbered = [('u', 4), ('U', 8)].into_iter().find_map(|(letter, length)| {
            let digits = rest.strip_prefix(letter)?.get(..length)?;
            let number = u32::from_str_radix(digits, 16).ok()?;
            Some((char::from_u32(number)?, length + 1))
        });
        let octal = || {
            let digits = rest.get(..3).filter(|digits| digits.starts_with(['0', '1', '2', '3']))?;
            Some((char::from(u8::from_str_radix(digits, 8).ok()?), 3))
        };
        if let Some((c, length)) = numbered.or_else(octal) {
            value.push(c);
            rest = rest.get(length..).unwrap_or("");
            continue;
        }
        let Some(escaped) = rest.chars().next() else { break };
        rest = rest.get(escaped.len_utf8()..).unwrap_or("");
        match escaped {
            '0' => value.push('\0'),
            'b' => value.push('\u{8}'),
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            'Z' => value.push('\u{1a}'),
            '%' | '_' => value.extend(['\\', escaped]),
            other => value.push(other),
        }
    }
    value
}

/// Spark's number suffixes (`1.5D`, `7BD`, `3S`) become casts; sqlparser would read them as an alias.
fn number_or_word(tokens: &mut Vec<TokenWithSpan>, word: Word, span: AstSpan) {
    let number = match tokens.last() {
        Some(TokenWithSpan { token: Token::Number(number, false), span: before }) if before.end == span.start => {
            Some((number.clone(), AstSpan { start: before.start, end: span.end }))
        }
        _ => None,
    };
    let suffix = word.value.to_ascii_uppercase();
    let (number, span, target) = match (number, suffix.as_str()) {
        (Some((number, span)), "D") => (number, span, "DOUBLE"),
        (Some((number, span)), "F") => (number, span, "FLOAT"),
        (Some((number, span)), "S") => (number, span, "SMALLINT"),
        (Some((number, span)), "Y") => (number, span, "TINYINT"),
        (Some((number, span)), "BD") => (number, span, "DECIMAL"),
        _ => return tokens.push(TokenWithSpan { token: Token::Word(word), span }),
    };
    tokens.pop();
    let scale = number.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let precision = number.chars().filter(char::is_ascii_digit).count();
    let mut push = |token| tokens.push(TokenWithSpan { token, span });
    push(Token::make_word("CAST", None));
    push(Token::LParen);
    push(Token::Number(number, false));
    push(Token::make_word("AS", None));
    push(Token::make_word(target, None));
    if target == "DECIMAL" {
        push(Token::LParen);
        push(Token::Number(precision.to_string(), false));
        push(Token::Comma);
        push(Token::Number(scale.to_string(), false));
        push(Token::RParen);
    }
    push(Token::RParen);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn strings_and_numbers_are_read_as_spark_reads_them() {
        for (text, expected) in [
            ("'a\\'b' \"it's\" 'a''b' \"a\"\"b\"", "'a'b' 'it's' 'a'b' 'a\"b'"),
            ("'\\u00e9\\U0001F600\\101\\t\\d\\f\\\\'", "'é\u{1F600}A\tdf\\'"),
            ("'\\%\\_\\u12'", "'\\%\\_u12'"),
            ("r'\\d+' R\"\\n\" 'x\\n'", "'\\d+' '\\n' 'x\n'"),
            ("r '\\d'", "r 'd'"),
            ("1.5D x", "CAST ( 1.5 AS DOUBLE ) x"),
            ("2L 3s 12.50BD", "2L CAST ( 3 AS SMALLINT ) CAST ( 12.50 AS DECIMAL ( 4 , 2 ) )"),
            ("7BD", "CAST ( 7 AS DECIMAL ( 1 , 0 ) )"),
            ("1 D -- note\n/* x */", "1 D"),
            ("`a b`.`c``d`", "`a b` . `c`d`"),
        ] {
            let tokens = tokens_of(&Source::new("x", text)).unwrap();
            let shown: Vec<String> = tokens.iter().map(|t| t.token.to_string()).collect();
            assert_eq!(shown.join(" "), expected, "{text}");
        }
        assert!(tokens_of(&Source::new("x", "'open")).is_err());
    }
}
