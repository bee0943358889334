//! The dialect of queries and expressions: Databricks SQL, widened by what Spark reads and sqlparser leaves out of it.

use std::any::TypeId;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, DataType, DateTimeField, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, Interval, ObjectName, TypedString, Value,
};
use datafusion::sql::sqlparser::dialect::{DatabricksDialect, Dialect};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

/// Databricks SQL as this project reads it. Use it for every piece of SQL that a user writes, so that a string, a
/// quoted name or an operator means the same everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipelineDialect;

const BASE: DatabricksDialect = DatabricksDialect;

impl Dialect for PipelineDialect {
    // sqlparser asks for the type of the dialect where a rule has no method of its own.
    fn dialect(&self) -> TypeId {
        TypeId::of::<DatabricksDialect>()
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        BASE.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        BASE.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        BASE.is_identifier_part(ch)
    }

    fn supports_string_literal_backslash_escape(&self) -> bool {
        true
    }

    // In Spark the pattern '\%' keeps its backslash, since LIKE reads it.
    fn ignores_wildcard_escapes(&self) -> bool {
        true
    }

    fn supports_string_literal_concatenation(&self) -> bool {
        true
    }

    fn supports_filter_during_aggregation(&self) -> bool {
        true
    }

    fn supports_group_by_expr(&self) -> bool {
        true
    }

    fn supports_group_by_with_modifier(&self) -> bool {
        true
    }

    fn supports_table_versioning(&self) -> bool {
        true
    }

    fn supports_lambda_functions(&self) -> bool {
        true
    }

    fn supports_select_wildcard_except(&self) -> bool {
        true
    }

    // INTERVAL '1 day 2 hours' says its units itself.
    fn require_interval_qualifier(&self) -> bool {
        false
    }

    fn supports_bitwise_shift_operators(&self) -> bool {
        true
    }

    fn supports_struct_literal(&self) -> bool {
        true
    }

    fn supports_nested_comments(&self) -> bool {
        true
    }

    fn supports_values_as_table_factor(&self) -> bool {
        true
    }

    fn supports_parens_around_table_factor(&self) -> bool {
        true
    }

    fn supports_bang_not_operator(&self) -> bool {
        true
    }

    fn supports_cte_without_as(&self) -> bool {
        true
    }

    fn supports_select_item_multi_column_alias(&self) -> bool {
        true
    }

    fn supports_long_type_as_bigint(&self) -> bool {
        true
    }

    fn supports_map_literal_with_angle_brackets(&self) -> bool {
        true
    }

    fn supports_left_associative_joins_without_parens(&self) -> bool {
        BASE.supports_left_associative_joins_without_parens()
    }

    fn supports_from_first_select(&self) -> bool {
        true
    }

    fn supports_pipe_operator(&self) -> bool {
        true
    }

    fn parse_prefix(&self, parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        let Token::Word(word) = &parser.peek_token_ref().token else { return None };
        if word.quote_style.is_some() {
            return None;
        }
        if word.keyword == Keyword::INTERVAL {
            return interval(parser);
        }
        // What sqlparser reads as a literal of a struct has no stars in it.
        if word.keyword == Keyword::STRUCT && stars(parser) {
            return Some(struct_of_stars(parser));
        }
        // The tokenizer leaves all strings in single quotes.
        if word.value.eq_ignore_ascii_case("timestamp_ltz")
            && let Token::SingleQuotedString(text) = &parser.peek_nth_token_ref(1).token
        {
            let value = Value::SingleQuotedString(text.clone()).with_span(parser.peek_nth_token_ref(1).span);
            parser.advance_token();
            parser.advance_token();
            let data_type = DataType::Custom(ObjectName::from(vec![Ident::new("TIMESTAMP_LTZ")]), Vec::new());
            return Some(Ok(Expr::TypedString(TypedString { data_type, value, uses_odbc_syntax: false })));
        }
        None
    }

    fn parse_infix(&self, parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        let (shift, more) = (parser.peek_nth_token_ref(0), parser.peek_nth_token_ref(1));
        if (&shift.token, &more.token) == (&Token::ShiftRight, &Token::Gt) && shift.span.end == more.span.start {
            parser.advance_token();
            parser.advance_token();
            return Some(parser.parse_subexpr(precedence).map(|right| Expr::BinaryOp {
                left: Box::new(expr.clone()),
                op: BinaryOperator::Custom(UNSIGNED_SHIFT.to_owned()),
                right: Box::new(right),
            }));
        }
        if !parser.parse_keyword(Keyword::DIV) {
            return None;
        }
        Some(parser.parse_subexpr(precedence).map(|right| Expr::BinaryOp {
            left: Box::new(expr.clone()),
            op: BinaryOperator::MyIntegerDivide,
            right: Box::new(right),
        }))
    }
}

/// `a >>> b`, which sqlparser has no operator for.
pub(crate) const UNSIGNED_SHIFT: &str = ">>>";

/// `INTERVAL 1 DAY 2 HOURS`, `INTERVAL -'3' MONTHS` and `INTERVAL '1 day'` as one text with its units in it, and
/// `INTERVAL '1-2' YEAR TO MONTH` as it stands. `None` where INTERVAL is a name.
fn interval(parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
    let unit_at = |parser: &Parser, ahead: usize| match &parser.peek_nth_token_ref(ahead).token {
        Token::Word(word) if word.quote_style.is_none() => unit(&word.value),
        _ => None,
    };
    let literal = value_at(parser, 1).is_some_and(|(_, width)| {
        let text = matches!(parser.peek_nth_token_ref(width).token, Token::SingleQuotedString(_));
        text || unit_at(parser, 1 + width).is_some()
    });
    if !literal {
        match parser.peek_nth_token_ref(1).token {
            Token::Period => return None,
            Token::Word(_) if unit_at(parser, 2).is_some() => {
                let message = "INTERVAL takes a number that is written out; timestampadd(DAY, n, at) takes a column";
                return Some(Err(ParserError::ParserError(message.to_owned())));
            }
            _ => {}
        }
        parser.advance_token();
        let span = parser.get_current_token().span;
        return Some(Ok(Expr::Identifier(Ident {
            value: parser.get_current_token().to_string(),
            quote_style: None,
            span,
        })));
    }
    parser.advance_token();
    let mut parts: Vec<String> = Vec::new();
    while let Some((text, width)) = value_at(parser, 0) {
        let Some(unit) = unit_at(parser, width) else {
            if parts.is_empty() {
                (0..width).for_each(|_| parser.advance_token());
                parts.push(text);
            }
            break;
        };
        (0..=width).for_each(|_| parser.advance_token());
        if parts.is_empty() && parser.parse_keyword(Keyword::TO) {
            return Some(parser.parse_date_time_field().map(|last| {
                Expr::Interval(Interval {
                    value: Box::new(Expr::Value(Value::SingleQuotedString(text).with_empty_span())),
                    leading_field: Some(match unit {
                        "year" => DateTimeField::Year,
                        "day" => DateTimeField::Day,
                        "hour" => DateTimeField::Hour,
                        "minute" => DateTimeField::Minute,
                        other => DateTimeField::Custom(Ident::new(other.to_uppercase())),
                    }),
                    leading_precision: None,
                    last_field: Some(last),
                    fractional_seconds_precision: None,
                })
            }));
        }
        let number = text.trim();
        let digits = number.trim_start_matches(['-', '+']);
        let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !(whole || unit == "second" && digits.parse::<f64>().is_ok()) {
            let message = format!("Expected: a whole number of {unit}s, found: {number}");
            return Some(Err(ParserError::ParserError(message)));
        }
        parts.push(format!("{number} {unit}"));
    }
    Some(Ok(Expr::Interval(Interval {
        value: Box::new(Expr::Value(Value::SingleQuotedString(parts.join(" ")).with_empty_span())),
        leading_field: None,
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    })))
}

fn struct_of_stars(parser: &mut Parser) -> Result<Expr, ParserError> {
    parser.advance_token();
    let name = Ident { value: "struct".to_owned(), quote_style: None, span: parser.get_current_token().span };
    parser.expect_token(&Token::LParen)?;
    let args = parser.parse_comma_separated(|parser| {
        let expr = parser.parse_wildcard_expr()?;
        let expr = if parser.parse_keyword(Keyword::AS) {
            Expr::Named { expr: Box::new(expr), name: parser.parse_identifier()? }
        } else {
            expr
        };
        Ok(FunctionArg::Unnamed(FunctionArgExpr::from(expr)))
    })?;
    parser.expect_token(&Token::RParen)?;
    Ok(Expr::Function(Function {
        name: ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }))
}

/// Whether a call that begins here has `*` or `x.*` among its arguments.
fn stars(parser: &Parser) -> bool {
    let at = |ahead: usize| &parser.peek_nth_token_ref(ahead).token;
    if *at(1) != Token::LParen {
        return false;
    }
    let (mut depth, mut ahead) = (1usize, 2);
    while depth > 0 {
        match at(ahead) {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth -= 1,
            Token::Mul if depth == 1 && matches!(at(ahead - 1), Token::LParen | Token::Comma | Token::Period) => {
                return true;
            }
            Token::EOF => return false,
            _ => {}
        }
        ahead += 1;
    }
    false
}

/// The literal, with its sign, that comes `ahead`, and how many tokens it has.
fn value_at(parser: &Parser, ahead: usize) -> Option<(String, usize)> {
    let sign = match &parser.peek_nth_token_ref(ahead).token {
        Token::Minus => "-",
        Token::Plus => "+",
        _ => "",
    };
    let width = 1 + sign.len();
    match &parser.peek_nth_token_ref(ahead + width - 1).token {
        Token::Number(text, _) => Some((format!("{sign}{text}"), width)),
        Token::SingleQuotedString(text) => match (sign, text.trim().strip_prefix('-')) {
            ("-", Some(rest)) => Some((rest.to_owned(), width)),
            ("-", None) => Some((format!("-{}", text.trim().trim_start_matches('+')), width)),
            _ => Some((text.clone(), width)),
        },
        _ => None,
    }
}

/// The unit of a word in singular or plural.
fn unit(word: &str) -> Option<&'static str> {
    const UNITS: [&str; 9] = ["year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"];
    let word = word.to_ascii_lowercase();
    UNITS.into_iter().find(|unit| word == *unit || word.strip_suffix('s') == Some(*unit))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::sql::read_expr;

    #[test]
    fn intervals_say_their_units() {
        for (text, expected) in [
            ("INTERVAL 1 DAY", "INTERVAL '1 day'"),
            ("interval '1' days", "INTERVAL '1 day'"),
            ("INTERVAL 1 DAY -2 HOURS '3' minute", "INTERVAL '1 day -2 hour 3 minute'"),
            ("INTERVAL -'3' WEEKS", "INTERVAL '-3 week'"),
            ("INTERVAL - '-3' WEEKS", "INTERVAL '3 week'"),
            ("INTERVAL 1.5 SECONDS", "INTERVAL '1.5 second'"),
            ("INTERVAL '1 day 2 hours' + x", "INTERVAL '1 day 2 hours' + x"),
            ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH"),
            ("a + INTERVAL 1 DAY * 2 - b", "a + INTERVAL '1 day' * 2 - b"),
            ("INTERVAL 1 DAY > INTERVAL 2 HOURS", "INTERVAL '1 day' > INTERVAL '2 hour'"),
            ("a >>> 2 + 1", "a >>> 2 + 1"),
            ("interval", "interval"),
            ("interval + 1", "interval + 1"),
            ("INTERVAL 1.5 DAYS", "expected a whole number of days, found `1.5`"),
            ("INTERVAL 'x' DAYS", "expected a whole number of days, found `x`"),
        ] {
            let read = read_expr(text).map_or_else(|e| e.message().to_owned(), |e| e.to_string());
            assert_eq!(read, expected, "{text}");
        }
    }
}
