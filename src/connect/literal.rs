//! Literals of the protocol as SQL.

use chrono::{DateTime, NaiveDate, TimeDelta};

use super::types::ddl;
use super::wire::spark::DataType;
use super::wire::spark::expression::Literal;
use super::wire::spark::expression::literal::LiteralType;
use crate::error::{Error, Result};

/// A literal as an expression of SQL.
pub(super) fn sql(literal: &Literal, depth: usize) -> Result<String> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let Some(kind) = &literal.literal_type else {
        return Err(Error::user("INVALID_PLAN_INPUT", "a literal without a value"));
    };
    let many = |elements: &[Literal]| -> Result<Vec<String>> { elements.iter().map(|e| sql(e, depth)).collect() };
    let typed = |value: &str, data_type: &str| format!("CAST({value} AS {data_type})");
    let refused = |what: &str| Err(Error::user("NOT_SUPPORTED", format!("{what} literal is not supported yet")));
    Ok(match kind {
        LiteralType::Null(data_type) => match &data_type.kind {
            None | Some(super::wire::spark::data_type::Kind::Null(_)) => "NULL".to_owned(),
            Some(_) => typed("NULL", &ddl(data_type)?),
        },
        LiteralType::Boolean(value) => if *value { "TRUE" } else { "FALSE" }.to_owned(),
        LiteralType::Byte(value) => typed(&value.to_string(), "TINYINT"),
        LiteralType::Short(value) => typed(&value.to_string(), "SMALLINT"),
        LiteralType::Integer(value) => parenthesised(value.to_string()),
        LiteralType::Long(value) => typed(&format!("'{value}'"), "BIGINT"),
        LiteralType::Float(value) => typed(&quoted(&float(f64::from(*value))), "FLOAT"),
        LiteralType::Double(value) => typed(&quoted(&float(*value)), "DOUBLE"),
        LiteralType::Decimal(decimal) => {
            let digits: i64 = i64::try_from(decimal.value.chars().filter(char::is_ascii_digit).count()).unwrap_or(38);
            let scale = decimal.value.split_once('.').map_or(0, |(_, fraction)| fraction.len() as i64);
            // A client says less than the value needs where it has not looked.
            let scale = scale.max(i64::from(decimal.scale.unwrap_or(0)));
            let precision = digits.max(scale).max(1).max(i64::from(decimal.precision.unwrap_or(0)));
            typed(&quoted(&decimal.value), &format!("DECIMAL({precision}, {scale})"))
        }
        LiteralType::String(text) => quoted(text),
        LiteralType::Binary(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            format!("unhex('{hex}')")
        }
        LiteralType::Date(days) => {
            let date = NaiveDate::from_ymd_opt(1970, 1, 1)
                .and_then(|d| d.checked_add_signed(TimeDelta::days(i64::from(*days))));
            let date = date.ok_or_else(|| Error::user("INVALID_PLAN_INPUT", format!("{days} days is no date")))?;
            typed(&quoted(&date.to_string()), "DATE")
        }
        LiteralType::Timestamp(micros) => format!("timestamp_micros(CAST('{micros}' AS BIGINT))"),
        LiteralType::TimestampNtz(micros) => {
            let moment = DateTime::from_timestamp_micros(*micros)
                .ok_or_else(|| Error::user("INVALID_PLAN_INPUT", format!("{micros} microseconds is no timestamp")))?;
            typed(&quoted(&moment.naive_utc().format("%Y-%m-%d %H:%M:%S%.6f").to_string()), "TIMESTAMP_NTZ")
        }
        LiteralType::DayTimeInterval(micros) => interval(*micros),
        LiteralType::YearMonthInterval(months) => format!("INTERVAL '{months}' MONTH"),
        LiteralType::CalendarInterval(_) => return refused("an interval of months, days and microseconds as a"),
        LiteralType::Time(_) => return refused("a TIME"),
        LiteralType::TimestampNtzNanos(_) | LiteralType::TimestampLtzNanos(_) => {
            return refused("a TIMESTAMP with nanoseconds as a");
        }
        LiteralType::Array(array) if array.elements.is_empty() => {
            match literal_element(literal, array.element_type.as_ref()) {
                Some(element) => typed("array()", &format!("ARRAY<{}>", ddl(element)?)),
                None => "array()".to_owned(),
            }
        }
        LiteralType::Array(array) => format!("array({})", many(&array.elements)?.join(", ")),
        LiteralType::Map(map) => {
            format!("map_from_arrays(array({}), array({}))", many(&map.keys)?.join(", "), many(&map.values)?.join(", "))
        }
        LiteralType::Struct(structure) => {
            let data_type = structure.struct_type.as_ref().or(literal.data_type.as_ref());
            let Some(DataType { kind: Some(super::wire::spark::data_type::Kind::Struct(fields)) }) = data_type else {
                return refused("a struct without a type as a");
            };
            let values = many(&structure.elements)?;
            let fields = fields.fields.iter().zip(values).map(|(f, v)| format!("{}, {v}", quoted(&f.name)));
            format!("named_struct({})", fields.collect::<Vec<_>>().join(", "))
        }
        LiteralType::SpecializedArray(_) => return refused("a packed array as a"),
    })
}

/// The type of the elements of an array literal, wherever it is said.
fn literal_element<'a>(literal: &'a Literal, element: Option<&'a DataType>) -> Option<&'a DataType> {
    use super::wire::spark::data_type::Kind;
    let declared = match &literal.data_type {
        Some(DataType { kind: Some(Kind::Array(array)) }) => array.element_type.as_deref(),
        _ => None,
    };
    element.or(declared).filter(|t| !matches!(t.kind, None | Some(Kind::Null(_))))
}

fn interval(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let all = micros.unsigned_abs();
    let (seconds, fraction) = (all / 1_000_000, all % 1_000_000);
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (hours, minutes, seconds) = (rest / 3600, rest % 3600 / 60, rest % 60);
    if rest == 0 && fraction == 0 {
        return format!("INTERVAL '{sign}{days}' DAY");
    }
    format!("INTERVAL '{sign}{days} {hours:02}:{minutes:02}:{seconds:02}.{fraction:06}' DAY TO SECOND")
}

fn float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        format!("{value:?}")
    }
}

fn parenthesised(number: String) -> String {
    if number.starts_with('-') { format!("({number})") } else { number }
}

/// Text as a literal.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' => out.push_str("\\'"),
            '\\' => out.push_str("\\\\"),
            _ => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// The error for what nests deeper than anyone writes.
pub(super) fn too_deep() -> Error {
    Error::user("NESTS_TOO_DEEP", "the expression or the query nests too deep")
}
