//! Values as text, as Spark's cast to STRING writes them.

use std::fmt::Write;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use datafusion::common::{Result, not_impl_err};

use super::parse::{DAY_MICROS, date_of};
use super::zone::Zone;

/// A double as Java writes it: plain from 0.001 to below 10 million, else with an exponent.
pub(super) fn double(value: f64) -> String {
    java(value, format!("{value:e}"))
}

/// A float as Java writes it.
pub(super) fn float(value: f32) -> String {
    java(f64::from(value), format!("{value:e}"))
}

fn java(value: f64, scientific: String) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    if value == 0.0 {
        return format!("{sign}0.0");
    }
    let digits = mantissa.replace('.', "");
    if !(-3..7).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let rest = if rest.is_empty() { "0" } else { rest };
        return format!("{sign}{first}.{rest}E{exponent}");
    }
    if exponent < 0 {
        let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or_default());
        return format!("{sign}0.{zeros}{digits}");
    }
    let whole = usize::try_from(exponent).unwrap_or_default() + 1;
    if digits.len() <= whole {
        format!("{sign}{digits}{}.0", "0".repeat(whole - digits.len()))
    } else {
        let (whole, rest) = digits.split_at(whole);
        format!("{sign}{whole}.{rest}")
    }
}

/// A decimal with all digits of its scale, in plain form.
pub(super) fn decimal(value: i128, scale: i8) -> String {
    let digits = value.unsigned_abs().to_string();
    let sign = if value < 0 { "-" } else { "" };
    match usize::try_from(scale) {
        Ok(0) => format!("{sign}{digits}"),
        Ok(scale) => {
            let padded = format!("{digits:0>width$}", width = scale + 1);
            let (whole, rest) = padded.split_at(padded.len() - scale);
            format!("{sign}{whole}.{rest}")
        }
        Err(_) => format!("{sign}{digits}{}", "0".repeat(usize::from(scale.unsigned_abs()))),
    }
}

/// A date.
pub(super) fn date(days: i32) -> String {
    use chrono::Datelike;
    match date_of(days) {
        Some(date) if date.year() > 9999 => {
            format!("+{}-{:02}-{:02}", date.year(), date.month(), date.day())
        }
        Some(date) if date.year() < 0 => format!("-{:04}-{:02}-{:02}", -date.year(), date.month(), date.day()),
        Some(date) => format!("{:04}-{:02}-{:02}", date.year(), date.month(), date.day()),
        None => days.to_string(),
    }
}

/// Local microseconds as a date and a time, with as many digits of a second as there are.
pub(super) fn local(micros: i64) -> String {
    let days = micros.div_euclid(DAY_MICROS);
    let time = micros.rem_euclid(DAY_MICROS);
    let seconds = time / 1_000_000;
    let mut text = date(i32::try_from(days).unwrap_or(i32::MAX));
    let _ = write!(text, " {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = time % 1_000_000;
    if fraction != 0 {
        text.push_str(format!(".{fraction:06}").trim_end_matches('0'));
    }
    text
}

/// An instant as local time.
pub(super) fn instant(micros: i64, zone: &Zone) -> String {
    local(zone.local(micros))
}

/// How values are written.
pub(super) struct Style<'a> {
    pub(super) zone: &'a Zone,
    /// Decimals near zero with an exponent, as Java writes them.
    pub(super) exponents: bool,
}

/// A decimal as Java writes it: with an exponent where it has more than six leading zeros.
fn with_exponent(value: i128, scale: i8) -> String {
    let digits = value.unsigned_abs().to_string();
    let exponent = i32::try_from(digits.len()).unwrap_or_default() - 1 - i32::from(scale);
    if scale <= 0 || exponent >= -6 {
        return decimal(value, scale);
    }
    let sign = if value < 0 { "-" } else { "" };
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{first}{point}{rest}E{exponent}")
}

/// The value at a place of an array; `None` for a null.
pub(super) fn value(array: &ArrayRef, at: usize, style: &Style<'_>) -> Result<Option<String>> {
    if array.is_null(at) {
        return Ok(None);
    }
    macro_rules! plain {
        ($t:ty) => {
            array.as_primitive::<$t>().value(at)
        };
    }
    Ok(Some(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(at).to_owned(),
        DataType::Boolean => array.as_boolean().value(at).to_string(),
        DataType::Int8 => plain!(Int8Type).to_string(),
        DataType::Int16 => plain!(Int16Type).to_string(),
        DataType::Int32 => plain!(Int32Type).to_string(),
        DataType::Int64 => plain!(Int64Type).to_string(),
        DataType::Float32 => float(plain!(Float32Type)),
        DataType::Float64 => double(plain!(Float64Type)),
        DataType::Decimal128(_, scale) if style.exponents => with_exponent(plain!(Decimal128Type), *scale),
        DataType::Decimal128(_, scale) => decimal(plain!(Decimal128Type), *scale),
        DataType::Date32 => date(plain!(Date32Type)),
        DataType::Timestamp(_, Some(_)) => instant(plain!(TimestampMicrosecondType), style.zone),
        DataType::Timestamp(_, None) => local(plain!(TimestampMicrosecondType)),
        DataType::Binary => String::from_utf8_lossy(array.as_binary::<i32>().value(at)).into_owned(),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(at);
            format!("[{}]", joined(&items, style)?)
        }
        DataType::Struct(_) => {
            let members = array.as_struct().columns().iter().map(|column| shown(column, at, style));
            format!("{{{}}}", members.collect::<Result<Vec<_>>>()?.join(", "))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries = map.value(at);
            let (keys, values) = match entries.columns() {
                [keys, values] => (keys, values),
                _ => return not_impl_err!("a map of this form as text"),
            };
            let pairs = (0..entries.len())
                .map(|i| Ok(format!("{} -> {}", shown(keys, i, style)?, shown(values, i, style)?)))
                .collect::<Result<Vec<_>>>()?;
            format!("{{{}}}", pairs.join(", "))
        }
        DataType::Null => return Ok(None),
        other => return not_impl_err!("a value of type {other} as text"),
    }))
}

fn shown(array: &ArrayRef, at: usize, style: &Style<'_>) -> Result<String> {
    Ok(value(array, at, style)?.unwrap_or_else(|| "null".to_owned()))
}

fn joined(items: &ArrayRef, style: &Style<'_>) -> Result<String> {
    Ok((0..items.len()).map(|i| shown(items, i, style)).collect::<Result<Vec<_>>>()?.join(", "))
}
