//! `schemaHints`: types of some columns, in DDL.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::sql::sqlparser::ast::{self, ArrayElemTypeDef, ExactNumberInfo, TimezoneInfo};
use datafusion::sql::sqlparser::dialect::DatabricksDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::columns::utc;
use crate::error::{Error, Result};

fn invalid(text: &str, why: impl std::fmt::Display) -> Error {
    Error::user("INVALID_SCHEMA_HINTS", format!("cannot read the schemaHints {text:?}: {why}"))
}

/// A path to a column, or to a field inside one, and the type it has.
pub(super) type Hint = (Vec<String>, DataType);

/// Columns and types of `a INT, b.c DATE`; a name with dots is a field inside a struct.
pub(super) fn parse_hints(text: &str) -> Result<Vec<Hint>> {
    let dialect = DatabricksDialect {};
    let mut parser = Parser::new(&dialect).try_with_sql(text).map_err(|e| invalid(text, e))?;
    let mut hints = Vec::new();
    while parser.peek_token().token != Token::EOF {
        let mut path = vec![parser.parse_identifier().map_err(|e| invalid(text, e))?.value];
        while parser.consume_token(&Token::Period) {
            path.push(parser.parse_identifier().map_err(|e| invalid(text, e))?.value);
        }
        let written = parser.parse_data_type().map_err(|e| invalid(text, e))?;
        let data_type =
            arrow_type(&written).ok_or_else(|| invalid(text, format!("the type {written} is not known")))?;
        hints.push((path, data_type));
        if !parser.consume_token(&Token::Comma) && parser.peek_token().token != Token::EOF {
            return Err(invalid(text, format!("a comma is expected before {}", parser.peek_token().token)));
        }
    }
    Ok(hints)
}

fn arrow_type(written: &ast::DataType) -> Option<DataType> {
    use ast::DataType as A;
    Some(match written {
        A::Boolean | A::Bool => DataType::Boolean,
        A::TinyInt(_) => DataType::Int8,
        A::SmallInt(_) => DataType::Int16,
        A::Int(_) | A::Integer(_) => DataType::Int32,
        A::BigInt(_) => DataType::Int64,
        A::Float(_) | A::Real => DataType::Float32,
        A::Double(_) | A::DoublePrecision => DataType::Float64,
        A::String(_) | A::Text | A::Varchar(_) | A::Char(_) => DataType::Utf8,
        A::Binary(_) => DataType::Binary,
        A::Date => DataType::Date32,
        A::Timestamp(_, TimezoneInfo::None) => utc(),
        A::TimestampNtz(_) => DataType::Timestamp(TimeUnit::Microsecond, None),
        A::Decimal(info) | A::Numeric(info) | A::Dec(info) => {
            let (precision, scale) = match info {
                ExactNumberInfo::None => (10, 0),
                ExactNumberInfo::Precision(p) => (*p, 0),
                ExactNumberInfo::PrecisionAndScale(p, s) => (*p, *s),
            };
            let (precision, scale) = (u8::try_from(precision).ok()?, i8::try_from(scale).ok()?);
            ((1..=38).contains(&precision) && (0..=precision.cast_signed()).contains(&scale))
                .then_some(DataType::Decimal128(precision, scale))?
        }
        A::Array(ArrayElemTypeDef::AngleBracket(item)) => {
            DataType::List(Arc::new(Field::new("element", arrow_type(item)?, true)))
        }
        A::Struct(fields, _) => {
            let field = |x: &ast::StructField| {
                Some(Field::new(&x.field_name.as_ref()?.value, arrow_type(&x.field_type)?, true))
            };
            DataType::Struct(fields.iter().map(field).collect::<Option<Vec<_>>>()?.into())
        }
        A::Custom(name, arguments) if arguments.is_empty() => match name.to_string().to_lowercase().as_str() {
            "byte" => DataType::Int8,
            "short" => DataType::Int16,
            "long" => DataType::Int64,
            "timestamp_ltz" => utc(),
            "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_columns_and_fields_inside() {
        let hints = parse_hints(
            "a INT, b.c DATE, b.d DECIMAL(9, 2), e ARRAY<STRING>, `f g` TIMESTAMP, h TIMESTAMP_NTZ, i bigint",
        )
        .unwrap();
        let text: Vec<_> = hints.iter().map(|(path, data_type)| format!("{} {data_type}", path.join("/"))).collect();
        assert_eq!(
            text.get(..4).unwrap(),
            ["a Int32", "b/c Date32", "b/d Decimal128(9, 2)", "e List(Utf8, field: 'element')"]
        );
        assert_eq!(text.get(4..).unwrap(), ["f g Timestamp(µs, \"UTC\")", "h Timestamp(µs)", "i Int64"]);
        assert!(parse_hints("").unwrap().is_empty());
        for wrong in ["a", "a INT b INT", "a MAP<INT", "a DECIMAL(50, 2)", ","] {
            assert_eq!(parse_hints(wrong).unwrap_err().code(), "INVALID_SCHEMA_HINTS", "{wrong}");
        }
    }
}
