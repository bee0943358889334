//! VARIANT, which is its JSON text here: without blanks, and with the members of objects in order.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use serde_json::value::RawValue;

use super::function::Kind::Str;
use super::function::{Body, Call, Function, Typed, fault};
use super::json::{Shape, parse, quoted, shape};
use super::show;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new(
            "parse_json",
            &[Str],
            Body::Text(|r| match parse(r.str(0)).and_then(ordered) {
                Some(text) => Ok(Some(text)),
                None => Err(fault("MALFORMED_RECORD_IN_PARSING", format!("'{}' is no JSON", r.str(0)))),
            }),
        ),
        Function::new("try_parse_json", &[Str], Body::Text(|r| Ok(parse(r.str(0)).and_then(ordered)))),
        Function::new("schema_of_variant", &[Str], Body::Arrays(text_of_text, schemas)),
    ]
}

/// The value without blanks, its members by name, its numbers as a VARIANT keeps them.
fn ordered(raw: &RawValue) -> Option<String> {
    Some(match shape(raw)? {
        Shape::Text(text) => quoted(&text),
        Shape::Number(text) => number(text),
        Shape::Array(items) => {
            format!("[{}]", items.into_iter().map(ordered).collect::<Option<Vec<_>>>()?.join(","))
        }
        Shape::Object(mut members) => {
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            // Of members of one name there is none in a VARIANT.
            if members.windows(2).any(|pair| matches!(pair, [(a, _), (b, _)] if a == b)) {
                return None;
            }
            let members = members.into_iter().map(|(key, value)| Some(format!("{}:{}", quoted(&key), ordered(value)?)));
            format!("{{{}}}", members.collect::<Option<Vec<_>>>()?.join(","))
        }
        Shape::Null | Shape::Bool(_) => raw.get().to_owned(),
    })
}

/// Digits and scale of a number that is kept exactly: one without an exponent, of at most 38 digits.
fn exact(text: &str) -> Option<(usize, usize)> {
    if text.contains(['e', 'E']) {
        return None;
    }
    let digits = text.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let scale = fraction.len();
    let digits = format!("{whole}{fraction}").trim_start_matches('0').len().max(scale).max(1);
    (digits <= 38 && scale <= 38).then_some((digits, scale))
}

fn number(text: &str) -> String {
    match exact(text) {
        Some((_, 0)) if text == "-0" => "0".to_owned(),
        Some((_, 0)) => text.to_owned(),
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text.parse::<f64>().map_or_else(|_| text.to_owned(), show::double),
    }
}

/// A type as `schema_of_variant` tells it.
#[derive(Clone, PartialEq)]
enum Kind {
    Void,
    Boolean,
    Text,
    Whole,
    Double,
    Decimal(usize, usize),
    Array(Box<Kind>),
    Object(Vec<(String, Kind)>),
    /// Values of several types.
    Variant,
}

fn kind(raw: &RawValue) -> Option<Kind> {
    Some(match shape(raw)? {
        Shape::Null => Kind::Void,
        Shape::Bool(_) => Kind::Boolean,
        Shape::Text(_) => Kind::Text,
        Shape::Number(text) if text.parse::<i64>().is_ok() => Kind::Whole,
        Shape::Number(text) => match exact(&number(text)).filter(|_| exact(text).is_some()) {
            Some((digits, scale)) => Kind::Decimal(digits, scale),
            None => Kind::Double,
        },
        Shape::Array(items) => {
            let mut of = Kind::Void;
            for item in items {
                of = merged(of, kind(item)?);
            }
            Kind::Array(Box::new(of))
        }
        Shape::Object(members) => {
            let mut kinds =
                members.into_iter().map(|(name, value)| Some((name, kind(value)?))).collect::<Option<Vec<_>>>()?;
            kinds.sort_by(|(a, _), (b, _)| a.cmp(b));
            Kind::Object(kinds)
        }
    })
}

fn merged(a: Kind, b: Kind) -> Kind {
    match (a, b) {
        (a, b) if a == b => a,
        (Kind::Void, other) | (other, Kind::Void) => other,
        (Kind::Double, Kind::Whole | Kind::Decimal(..)) | (Kind::Whole | Kind::Decimal(..), Kind::Double) => {
            Kind::Double
        }
        (Kind::Whole, Kind::Decimal(digits, scale)) | (Kind::Decimal(digits, scale), Kind::Whole) => {
            merged(Kind::Decimal(20, 0), Kind::Decimal(digits, scale))
        }
        (Kind::Decimal(a, s), Kind::Decimal(b, t)) => {
            let (whole, scale) = ((a - s).max(b - t), s.max(t));
            if whole + scale > 38 { Kind::Double } else { Kind::Decimal(whole + scale, scale) }
        }
        (Kind::Array(a), Kind::Array(b)) => Kind::Array(Box::new(merged(*a, *b))),
        (Kind::Object(a), Kind::Object(b)) => {
            let mut all = a;
            for (name, new) in b {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = merged(known.clone(), new),
                    None => all.push((name, new)),
                }
            }
            all.sort_by(|(a, _), (b, _)| a.cmp(b));
            Kind::Object(all)
        }
        _ => Kind::Variant,
    }
}

fn spelled(kind: &Kind) -> String {
    match kind {
        Kind::Void => "VOID".to_owned(),
        Kind::Boolean => "BOOLEAN".to_owned(),
        Kind::Text => "STRING".to_owned(),
        Kind::Whole => "BIGINT".to_owned(),
        Kind::Double => "DOUBLE".to_owned(),
        Kind::Decimal(digits, scale) => format!("DECIMAL({digits},{scale})"),
        Kind::Array(of) => format!("ARRAY<{}>", spelled(of)),
        Kind::Object(members) => {
            let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let member = |(name, kind): &(String, Kind)| {
                let name = if plain(name) { name.clone() } else { format!("`{}`", name.replace('`', "``")) };
                format!("{name}: {}", spelled(kind))
            };
            format!("OBJECT<{}>", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        Kind::Variant => "VARIANT".to_owned(),
    }
}

fn text_of_text(_: &super::function::Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: vec![DataType::Utf8], result: DataType::Utf8 })
}

fn schemas(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for index in 0..call.rows {
        builder.append_option(call.row(index).opt_str(0).and_then(parse).and_then(kind).map(|kind| spelled(&kind)));
    }
    Ok(Arc::new(builder.finish()))
}
