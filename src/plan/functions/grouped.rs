//! Numbers with commas between thousands: `format_number`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::Result;

use super::function::{Asked, Call, Typed};
use super::show;
use super::types::{decimal, double, integral};

pub(super) fn typing(asked: &Asked<'_>) -> Result<Typed> {
    let number = match asked.of(0)? {
        t if decimal(t) => t.clone(),
        t if integral(t) => DataType::Int64,
        _ => double(),
    };
    Ok(Typed { arguments: vec![number, DataType::Int32], result: DataType::Utf8 })
}

pub(super) fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        let places = usize::try_from(row.int(1)).ok();
        let (Some(places), false) = (places, row.any_null()) else {
            builder.append_null();
            continue;
        };
        let Some((array, at)) = row.at(0) else { continue };
        let exact = match array.data_type() {
            DataType::Decimal128(_, scale) => {
                show::decimal(array.as_primitive::<arrow::datatypes::Decimal128Type>().value(at), *scale)
            }
            DataType::Int64 => row.long(0).to_string(),
            _ if row.double(0).is_nan() => {
                builder.append_value("NaN");
                continue;
            }
            _ if row.double(0).is_infinite() => {
                builder.append_value(if row.double(0) > 0.0 { "∞" } else { "-∞" });
                continue;
            }
            _ => exact_decimal(row.double(0)),
        };
        builder.append_value(grouped(&exact, places));
    }
    Ok(Arc::new(builder.finish()))
}

/// All digits that a double has.
fn exact_decimal(value: f64) -> String {
    format!("{value:.1074}")
}

/// A plain decimal rounded half to even, with commas between thousands.
fn grouped(exact: &str, places: usize) -> String {
    let (negative, digits) = match exact.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, exact),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let kept: String = fraction.chars().chain(std::iter::repeat('0')).take(places).collect();
    let dropped = fraction.get(places.min(fraction.len())..).unwrap_or_default();
    let mut all: Vec<u8> = whole.bytes().chain(kept.bytes()).collect();
    let half = dropped.starts_with('5') && dropped.bytes().skip(1).all(|b| b == b'0');
    let odd = all.last().is_some_and(|b| (b - b'0') % 2 == 1);
    if (dropped.as_bytes().first().is_some_and(|b| *b >= b'5') && !half) || (half && odd) {
        let mut carry = true;
        for digit in all.iter_mut().rev() {
            if !carry {
                break;
            }
            carry = *digit == b'9';
            *digit = if carry { b'0' } else { *digit + 1 };
        }
        if carry {
            all.insert(0, b'1');
        }
    }
    let whole_length = all.len() - places;
    let mut out = String::new();
    if negative {
        out.push('-');
    }
    for (index, digit) in all.iter().take(whole_length).enumerate() {
        if index > 0 && (whole_length - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(char::from(*digit));
    }
    if places > 0 {
        out.push('.');
        out.extend(all.iter().skip(whole_length).map(|b| char::from(*b)));
    }
    out
}
