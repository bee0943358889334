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
            Token::DoubleQuotedString(value) | Token::SingleQuotedString(value) => {
                let raw = raw_prefix(&mut result, span);
                result.push(string(text, raw, value, span));
            }
            Token::Word(word) if word.quote_style.is_none() => number_or_suffix(&mut result, word, span),
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

/// Strings are single-quoted for everything behind us; those with `r` before them keep their backslashes.
fn string(text: &Source, raw: Option<AstSpan>, value: String, span: AstSpan) -> TokenWithSpan {
    match raw {
        None => TokenWithSpan { token: Token::SingleQuotedString(value), span },
        Some(prefix) => {
            let written = text.slice(span);
            let inner = written.get(1..written.len().saturating_sub(1)).unwrap_or("").to_owned();
            TokenWithSpan {
                token: Token::SingleQuotedString(inner),
                span: AstSpan { start: prefix.start, end: span.end },
            }
        }
    }
}

/// Spark's number suffixes (`1.5D`, `7BD`, `3S`) become casts; sqlparser would read them as an alias or a name.
fn number_or_suffix(tokens: &mut Vec<TokenWithSpan>, word: Word, span: AstSpan) {
    let digits: String = word.value.chars().take_while(char::is_ascii_digit).collect();
    let (number, suffix) = if digits.is_empty() {
        match tokens.last() {
            Some(TokenWithSpan { token: Token::Number(number, false), span: before }) if before.end == span.start => {
                (number.clone(), word.value.as_str())
            }
            _ => return tokens.push(TokenWithSpan { token: Token::Word(word), span }),
        }
    } else {
        (digits.clone(), word.value.get(digits.len()..).unwrap_or(""))
    };
    let scale = number.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let precision = number.chars().filter(char::is_ascii_digit).count().max(1);
    let target = match suffix.to_ascii_uppercase().as_str() {
        "D" => "DOUBLE".to_owned(),
        "F" => "FLOAT".to_owned(),
        "S" => "SMALLINT".to_owned(),
        "Y" => "TINYINT".to_owned(),
        "L" => "BIGINT".to_owned(),
        "BD" => format!("DECIMAL({precision}, {scale})"),
        _ => return tokens.push(TokenWithSpan { token: Token::Word(word), span }),
    };
    let start = if digits.is_empty() { tokens.pop().map_or(span.start, |t| t.span.start) } else { span.start };
    let span = AstSpan { start, end: span.end };
    let mut push = |token| tokens.push(TokenWithSpan { token, span });
    push(Token::make_word("CAST", None));
    push(Token::LParen);
    push(Token::Number(number, false));
    push(Token::make_word("AS", None));
    match target.split_once('(') {
        None => push(Token::make_word(&target, None)),
        Some((name, _)) => {
            push(Token::make_word(name, None));
            push(Token::LParen);
            push(Token::Number(precision.to_string(), false));
            push(Token::Comma);
            push(Token::Number(scale.to_string(), false));
            push(Token::RParen);
        }
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
            ("'a\\'b' \"it's\"", "'a'b' 'it's'"),
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
