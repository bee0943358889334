//! Types as Spark's DDL writes them, in Arrow terms.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token};

use super::clause::collation;
use super::cursor::Cursor;
use super::token::tokens_of;
use crate::error::{Error, Result};
use crate::pipeline::names::near_miss;
use crate::pipeline::source::Source;

/// How deep types may nest.
const DEPTH: usize = 64;

const NAMES: [&str; 25] = [
    "BOOLEAN",
    "BYTE",
    "TINYINT",
    "SHORT",
    "SMALLINT",
    "INT",
    "INTEGER",
    "LONG",
    "BIGINT",
    "FLOAT",
    "REAL",
    "DOUBLE",
    "DECIMAL",
    "DEC",
    "NUMERIC",
    "STRING",
    "VARCHAR",
    "CHAR",
    "CHARACTER",
    "BINARY",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TIMESTAMP_LTZ",
    "VARIANT",
];

/// A schema from a DDL string such as `id INT NOT NULL, tags ARRAY<STRUCT<k: STRING, v: STRING>>`, or from one
/// `STRUCT<…>`. Nested names are Delta's: `element` in an array; `key_value`, `key` and `value` in a map.
///
/// # Errors
/// `PARSE_SYNTAX_ERROR` or `UNSUPPORTED_DATATYPE`, with the place counted in the string itself.
pub fn parse_schema(ddl: &str) -> Result<SchemaRef> {
    let text = Arc::new(Source::new("<schema>", ddl));
    let end = text.location(ddl.len());
    let end = AstSpan { start: end, end };
    let tokens = tokens_of(&text).map_err(|(message, at)| {
        Error::user("PARSE_SYNTAX_ERROR", message).at(&text.span(AstSpan { start: at, end: at }))
    })?;
    let mut cursor = Cursor::new(text, tokens, end);
    let fields = if cursor.is_word("struct") && cursor.peek_at(1) == Some(&Token::Lt) {
        match data_type(&mut cursor, DEPTH)? {
            DataType::Struct(fields) => fields,
            _ => Fields::empty(),
        }
    } else {
        if cursor.at_end() {
            return Err(cursor.unexpected("a column such as `name STRING`"));
        }
        let mut fields = vec![field(&mut cursor, DEPTH)?];
        while cursor.take_token(&Token::Comma) {
            fields.push(field(&mut cursor, DEPTH)?);
        }
        Fields::from(fields)
    };
    if !cursor.at_end() {
        return Err(cursor.unexpected("`,` and a column"));
    }
    unique(&fields).map_err(|error| error.at(&cursor.file().span(end)))?;
    Ok(Arc::new(Schema::new(fields)))
}

/// The type of a column that comes next, and how long its texts may be.
pub(super) fn parse_type(cursor: &mut Cursor) -> Result<(DataType, Option<i32>)> {
    let place = cursor.here();
    if !cursor.take(&["varchar"]) {
        return Ok((data_type(cursor, DEPTH)?, None));
    }
    match arguments(cursor)?.as_slice() {
        [length] if *length > 0 => Ok((DataType::Utf8, Some(i32::try_from(*length).unwrap_or(i32::MAX)))),
        _ => Err(Error::user("UNSUPPORTED_DATATYPE", "VARCHAR takes a length: VARCHAR(20)").at(&place)),
    }
}

fn field(cursor: &mut Cursor, depth: usize) -> Result<Field> {
    let name = cursor.name("a column name")?.text;
    cursor.take_token(&Token::Colon);
    let data_type = data_type(cursor, depth)?;
    let nullable = !cursor.take(&["not", "null"]);
    if cursor.take(&["comment"]) {
        cursor.string("the comment in quotes")?;
    }
    Ok(Field::new(name, data_type, nullable))
}

fn unique(fields: &Fields) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    match fields.iter().find(|field| !seen.insert(field.name().to_lowercase())) {
        None => Ok(()),
        Some(twice) => {
            Err(Error::user("COLUMN_ALREADY_EXISTS", format!("`{}` stands twice in one schema", twice.name())))
        }
    }
}

fn data_type(cursor: &mut Cursor, depth: usize) -> Result<DataType> {
    let place = cursor.here();
    let Some(depth) = depth.checked_sub(1) else {
        return Err(Error::user("UNSUPPORTED_DATATYPE", "this type nests too deep").at(&place));
    };
    let name = cursor.name("a type")?.text.to_uppercase();
    Ok(match name.as_str() {
        "BOOLEAN" => DataType::Boolean,
        "BYTE" | "TINYINT" => DataType::Int8,
        "SHORT" | "SMALLINT" => DataType::Int16,
        "INT" | "INTEGER" => DataType::Int32,
        "LONG" | "BIGINT" => DataType::Int64,
        "FLOAT" | "REAL" => DataType::Float32,
        "DOUBLE" => DataType::Float64,
        "DECIMAL" | "DEC" | "NUMERIC" => {
            let (precision, scale) = match arguments(cursor)?.as_slice() {
                [] => (10, 0),
                [precision] => (*precision, 0),
                [precision, scale] => (*precision, *scale),
                _ => {
                    return Err(Error::user("UNSUPPORTED_DATATYPE", "DECIMAL takes a precision and a scale").at(&place));
                }
            };
            match (u8::try_from(precision), i8::try_from(scale)) {
                (Ok(p @ 1..=38), Ok(s)) if scale <= precision => DataType::Decimal128(p, s),
                _ => {
                    let message = format!("DECIMAL({precision}, {scale}) does not exist");
                    return Err(Error::user("UNSUPPORTED_DATATYPE", message)
                        .at(&place)
                        .help("the precision is 1 to 38, the scale at most the precision"));
                }
            }
        }
        "STRING" => {
            if cursor.take(&["collate"]) {
                collation(cursor)?;
            }
            DataType::Utf8
        }
        // A value of any type is kept as its JSON text.
        "VARIANT" => DataType::Utf8,
        "VOID" | "INTERVAL" | "OBJECT" | "GEOMETRY" | "GEOGRAPHY" => {
            return Err(Error::user("UNSUPPORTED_DATATYPE", format!("no column can be {name}")).at(&place).help(
                if name == "INTERVAL" {
                    "keep a number and its unit in the name, or two moments"
                } else {
                    "keep it as STRING"
                },
            ));
        }
        "VARCHAR" => {
            let message = "VARCHAR(n) is the type of a column in a table's column list, and of nothing else";
            return Err(Error::user("UNSUPPORTED_DATATYPE", message).at(&place).help("write STRING"));
        }
        "CHAR" | "CHARACTER" => {
            let message =
                format!("{name}(n), which fills texts up with blanks and compares without them, is not supported");
            return Err(Error::user("UNSUPPORTED_DATATYPE", message).at(&place).help("write VARCHAR(n) or STRING"));
        }
        "BINARY" => DataType::Binary,
        "DATE" => DataType::Date32,
        "TIMESTAMP" | "TIMESTAMP_LTZ" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        "TIMESTAMP_NTZ" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "ARRAY" => {
            cursor.expect_token(&Token::Lt)?;
            let element = data_type(cursor, depth)?;
            close(cursor)?;
            DataType::List(Arc::new(Field::new("element", element, true)))
        }
        "MAP" => {
            cursor.expect_token(&Token::Lt)?;
            let key = data_type(cursor, depth)?;
            cursor.expect_token(&Token::Comma)?;
            let value = data_type(cursor, depth)?;
            close(cursor)?;
            let entries = vec![Field::new("key", key, false), Field::new("value", value, true)];
            DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(entries.into()), false)), false)
        }
        "STRUCT" => {
            cursor.expect_token(&Token::Lt)?;
            let mut fields = vec![field(cursor, depth)?];
            while cursor.take_token(&Token::Comma) {
                fields.push(field(cursor, depth)?);
            }
            close(cursor)?;
            let fields = Fields::from(fields);
            unique(&fields).map_err(|error| error.at(&place))?;
            DataType::Struct(fields)
        }
        _ => {
            let error =
                Error::user("UNSUPPORTED_DATATYPE", format!("`{name}` is no type that is supported")).at(&place);
            return Err(match near_miss(&name, NAMES.into_iter().chain(["ARRAY", "MAP", "STRUCT"])) {
                Some(near) => error.help(format!("did you mean {near}?")),
                None => error,
            });
        }
    })
}

fn close(cursor: &mut Cursor) -> Result<()> {
    if cursor.take_close_angle() { Ok(()) } else { Err(cursor.unexpected("`>`")) }
}

/// Numbers in parentheses after a type's name, if any.
fn arguments(cursor: &mut Cursor) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    if !cursor.take_token(&Token::LParen) {
        return Ok(numbers);
    }
    loop {
        match cursor.peek() {
            Some(Token::Number(text, false)) => match text.parse() {
                Ok(number) => numbers.push(number),
                Err(_) => return Err(cursor.unexpected("a whole number")),
            },
            _ => return Err(cursor.unexpected("a whole number")),
        }
        cursor.advance();
        if !cursor.take_token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(data_type: &DataType) -> String {
        match data_type {
            DataType::List(item) => format!("[{}:{}]", item.name(), shown(item.data_type())),
            DataType::Map(entries, false) => format!("map {} {}", entries.name(), shown(entries.data_type())),
            DataType::Struct(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|f| {
                        format!("{}{}{}", f.name(), if f.is_nullable() { " " } else { "! " }, shown(f.data_type()))
                    })
                    .collect();
                format!("({})", fields.join(", "))
            }
            other => other.to_string(),
        }
    }

    #[test]
    fn spark_types_become_arrow_types() {
        for (ddl, expected) in [
            ("a int", "(a Int32)"),
            ("a: INT, `b c` STRING NOT NULL COMMENT 'x'", "(a Int32, b c! Utf8)"),
            (
                "a BOOLEAN, b byte, c TINYINT, d SHORT, e SMALLINT, f INTEGER, g LONG, h bigint",
                "(a Boolean, b Int8, c Int8, d Int16, e Int16, f Int32, g Int64, h Int64)",
            ),
            (
                "a FLOAT, b REAL, c DOUBLE, d DECIMAL, e DECIMAL(5), f NUMERIC(38, 18), g DEC(3,3)",
                "(a Float32, b Float32, c Float64, d Decimal128(10, 0), e Decimal128(5, 0), f Decimal128(38, 18), g Decimal128(3, 3))",
            ),
            ("c BINARY, d DATE", "(c Binary, d Date32)"),
            (
                "a TIMESTAMP, b TIMESTAMP_NTZ, c timestamp_ltz",
                "(a Timestamp(µs, \"UTC\"), b Timestamp(µs), c Timestamp(µs, \"UTC\"))",
            ),
            (
                "a ARRAY<ARRAY<INT>>, b ARRAY<STRUCT<x: INT, y ARRAY<MAP<STRING,ARRAY<INT>>>>>",
                "(a [element:[element:Int32]], b [element:(x Int32, y [element:map key_value (key! Utf8, value [element:Int32])])])",
            ),
            ("struct<a: int, b: struct<c: date not null>>", "(a Int32, b (c! Date32))"),
            (
                "date DATE, timestamp TIMESTAMP, comment STRING",
                "(date Date32, timestamp Timestamp(µs, \"UTC\"), comment Utf8)",
            ),
        ] {
            let schema = parse_schema(ddl).unwrap();
            assert_eq!(shown(&DataType::Struct(schema.fields().clone())), expected, "{ddl}");
        }
    }

    #[test]
    fn wrong_types_are_named_with_their_place() {
        for (ddl, expected) in [
            ("", "1:1 expected a column such as `name STRING`, the statement ends"),
            ("a", "1:2 expected a type, the statement ends"),
            ("a INT b", "1:7 expected `,` and a column, found `b`"),
            ("a STRNG", "1:3 `STRNG` is no type that is supported"),
            ("a DECIMAL(39,1)", "1:3 DECIMAL(39, 1) does not exist"),
            ("a DECIMAL(3,4)", "1:3 DECIMAL(3, 4) does not exist"),
            ("a ARRAY<INT", "1:12 expected `>`, the statement ends"),
            ("a ARRAY", "1:8 expected `<`, the statement ends"),
            ("a INTERVAL", "1:3 no column can be INTERVAL"),
            ("a VARCHAR(3)", "1:3 VARCHAR(n) is the type of a column in a table's column list, and of nothing else"),
            (
                "a ARRAY<CHAR(3)>",
                "1:9 CHAR(n), which fills texts up with blanks and compares without them, is not supported",
            ),
            ("a INT, A STRING", "1:16 `A` stands twice in one schema"),
        ] {
            let error = parse_schema(ddl).unwrap_err();
            let span = error.place().span.clone().unwrap();
            assert_eq!(format!("{}:{} {}", span.line, span.column, error.message()), expected, "{ddl}");
        }
        assert_eq!(parse_schema("a STRNG").unwrap_err().advice(), Some("did you mean STRING?"));
        let deep = format!("a {}INT{}", "ARRAY<".repeat(100), ">".repeat(100));
        assert_eq!(parse_schema(&deep).unwrap_err().message(), "this type nests too deep");
    }
}
