//! Text and bytes in other spellings: base64, hexadecimal, character sets, URLs.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringBuilder};
use arrow::datatypes::DataType;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::{Engine, alphabet};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion_spark::function::url;

use super::function::Kind::{Any, Binary, Str};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::types::{binary, common, decimal, integral, text};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("base64", &[Binary], Body::Text(|r| Ok(Some(STANDARD.encode(r.bytes(0)))))),
        Function::new("unbase64", &[Str], Body::Binary(unbase64)),
        Function::new("hex", &[Any], Body::Arrays(hex_type, hex)),
        Function::new("unhex", &[Str], Body::Binary(|r| Ok(unhex(r.str(0))))),
        Function::new("encode", &[Str, Str], Body::Binary(encode)),
        Function::new("decode", &[Any], Body::Arrays(decode_type, decode)).variadic(),
        Function::new("to_binary", &[Str, Str], Body::Binary(to_binary))
            .optional(1)
            .checked(|asked| match asked.literal(1) {
                Some(ScalarValue::Utf8(Some(name))) if form(name).is_none() => {
                    plan_err!("{} knows the formats hex, utf-8 and base64, not '{name}'", asked.function)
                }
                _ => Ok(()),
            })
            .also(&["try_to_binary"]),
        Function::library("url_encode", &[Str], url::url_encode()),
        Function::library("url_decode", &[Str], url::url_decode()),
        Function::library("try_url_decode", &[Str], url::try_url_decode()),
        Function::new("parse_url", &[Str, Str, Str], Body::Text(super::url::part)).optional(1).also(&["try_parse_url"]),
    ]
}

fn unbase64(row: &Row<'_>) -> Answer<Vec<u8>> {
    match from_base64(row.str(0)) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(fault("CONVERSION_INVALID_INPUT", format!("'{}' is no base64", row.str(0)))),
    }
}

/// How text says what bytes are.
enum Form {
    Hex,
    Utf8,
    Base64,
}

fn form(name: &str) -> Option<Form> {
    match name.to_ascii_lowercase().as_str() {
        "hex" => Some(Form::Hex),
        "utf-8" | "utf8" => Some(Form::Utf8),
        "base64" => Some(Form::Base64),
        _ => None,
    }
}

fn to_binary(row: &Row<'_>) -> Answer<Vec<u8>> {
    let name = if row.count() > 1 { row.str(1) } else { "hex" };
    let made = match form(name) {
        Some(Form::Hex) => unhex(row.str(0)),
        Some(Form::Utf8) => Some(row.str(0).as_bytes().to_vec()),
        Some(Form::Base64) => padded(row.str(0)),
        None => None,
    };
    match made {
        None if row.function() == "to_binary" => {
            Err(fault("CONVERSION_INVALID_INPUT", format!("'{}' is not of the format {name}", row.str(0))))
        }
        made => Ok(made),
    }
}

/// Base64 whose padding is whole, or left out.
fn padded(text: &str) -> Option<Vec<u8>> {
    let kept: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let signs = kept.trim_end_matches('=').len();
    let padding = kept.len() - signs;
    let whole = padding == 0 || padding <= 2 && kept.len().is_multiple_of(4);
    (whole && signs % 4 != 1).then(|| from_base64(&kept)).flatten()
}

/// Spark reads as MIME does: white space counts for nothing, the padding may be missing.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let kept: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    LENIENT.decode(kept).ok()
}

fn hex_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    let argument = match given {
        t if binary(t) => DataType::Binary,
        t if text(t) || t.is_null() => DataType::Utf8,
        t if integral(t) || decimal(t) || t.is_floating() => DataType::Int64,
        other => return plan_err!("hex takes a number, text or binary, not {other}"),
    };
    Ok(Typed { arguments: vec![argument], result: DataType::Utf8 })
}

fn hex(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        let whole = row.at(0).is_some_and(|(array, _)| *array.data_type() == DataType::Int64);
        builder.append_option(
            (!row.null(0))
                .then(|| if whole { format!("{:X}", row.long(0)) } else { ::hex::encode_upper(row.bytes(0)) }),
        );
    }
    Ok(Arc::new(builder.finish()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let odd = if text.len().is_multiple_of(2) { "" } else { "0" };
    ::hex::decode(format!("{odd}{text}")).ok()
}

fn charset(name: &str) -> Result<String> {
    let upper = name.to_ascii_uppercase();
    match upper.as_str() {
        "US-ASCII" | "ISO-8859-1" | "UTF-8" | "UTF-16BE" | "UTF-16LE" | "UTF-16" | "UTF-32" => Ok(upper),
        _ => Err(fault("INVALID_PARAMETER_VALUE.CHARSET", format!("there is no charset {name}"))),
    }
}

fn encode(row: &Row<'_>) -> Answer<Vec<u8>> {
    let text = row.str(0);
    let single = |limit: u32| -> Answer<Vec<u8>> {
        text.chars()
            .map(|c| match u8::try_from(u32::from(c)) {
                Ok(byte) if u32::from(byte) < limit => Ok(byte),
                _ => Err(fault("MALFORMED_CHARACTER_CODING", format!("'{c}' is not in {}", row.str(1)))),
            })
            .collect::<Result<Vec<u8>>>()
            .map(Some)
    };
    match charset(row.str(1))?.as_str() {
        "UTF-8" => Ok(Some(text.as_bytes().to_vec())),
        "US-ASCII" => single(128),
        "ISO-8859-1" => single(256),
        "UTF-16LE" => Ok(Some(text.encode_utf16().flat_map(u16::to_le_bytes).collect())),
        "UTF-16BE" => Ok(Some(text.encode_utf16().flat_map(u16::to_be_bytes).collect())),
        "UTF-16" => Ok(Some([0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect())),
        _ => Ok(Some(text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect())),
    }
}

/// `decode(bytes, charset)`, or `decode(value, search, result, …, default)`.
fn decode_type(asked: &Asked<'_>) -> Result<Typed> {
    let count = asked.types.len();
    if count == 2 {
        return Ok(Typed { arguments: vec![DataType::Binary, DataType::Utf8], result: DataType::Utf8 });
    }
    if count < 2 {
        return plan_err!("decode takes at least 2 arguments, not {count}");
    }
    let is_result = |index: usize| index > 0 && (index.is_multiple_of(2) || index == count - 1);
    let ansi = asked.settings.ansi;
    let among = |results: bool| {
        common(asked.types.iter().enumerate().filter(|(i, _)| is_result(*i) == results).map(|(_, t)| t), ansi)
    };
    match (among(false), among(true)) {
        (Some(searched), Some(result)) => Ok(Typed {
            arguments: (0..count).map(|i| if is_result(i) { result.clone() } else { searched.clone() }).collect(),
            result,
        }),
        _ => plan_err!("the arguments of decode have no type in common"),
    }
}

fn decode(call: &Call<'_>) -> Result<ArrayRef> {
    let count = call.arguments.len();
    if count == 2 {
        let mut builder = StringBuilder::new();
        for row in (0..call.rows).map(|index| call.row(index)) {
            if row.any_null() {
                builder.append_null();
                continue;
            }
            builder.append_value(decoded(row.bytes(0), &charset(row.str(1))?));
        }
        return Ok(Arc::new(builder.finish()));
    }
    let arrays = (0..count).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let (Some(value), results) = (arrays.first(), &arrays) else { return plan_err!("decode of nothing") };
    let mut equal = Vec::new();
    let mut search = 1;
    while search + 1 < count {
        if let Some(searched) = arrays.get(search) {
            equal.push((arrow::compute::kernels::cmp::not_distinct(value, searched)?, search + 1));
        }
        search += 2;
    }
    let default = count.is_multiple_of(2).then_some(count - 1);
    let null = arrow::array::new_null_array(call.result, 1);
    // The results are of one type, the values searched for of another.
    let chosen = |place: usize| results.get(place).map_or(null.as_ref(), AsRef::as_ref);
    let of: Vec<usize> = equal.iter().map(|(_, result)| *result).chain(default).collect();
    let mut sources: Vec<&dyn Array> = of.iter().map(|place| chosen(*place)).collect();
    sources.push(null.as_ref());
    let none = of.len();
    let places: Vec<(usize, usize)> = (0..call.rows)
        .map(|row| match equal.iter().position(|(mask, _)| mask.value(row)) {
            Some(found) => (found, row),
            None => default.map_or((none, 0), |_| (none - 1, row)),
        })
        .collect();
    Ok(arrow::compute::interleave(&sources, &places)?)
}

fn decoded(bytes: &[u8], charset: &str) -> String {
    let units = |big: bool, bytes: &[u8]| -> String {
        let units: Vec<u16> = bytes
            .chunks(2)
            .map(|pair| {
                let byte = |i: usize| pair.get(i).copied().unwrap_or_default();
                if big { u16::from_be_bytes([byte(0), byte(1)]) } else { u16::from_le_bytes([byte(0), byte(1)]) }
            })
            .collect();
        String::from_utf16_lossy(&units)
    };
    match charset {
        "UTF-16LE" => units(false, bytes),
        "UTF-16BE" => units(true, bytes),
        "UTF-16" => match bytes {
            [0xff, 0xfe, rest @ ..] => units(false, rest),
            [0xfe, 0xff, rest @ ..] => units(true, rest),
            rest => units(true, rest),
        },
        "ISO-8859-1" => bytes.iter().map(|b| char::from(*b)).collect(),
        "US-ASCII" => bytes.iter().map(|b| if b.is_ascii() { char::from(*b) } else { '\u{fffd}' }).collect(),
        "UTF-32" => bytes
            .chunks(4)
            .map(|quad| {
                let code = quad.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
                char::from_u32(code).unwrap_or('\u{fffd}')
            })
            .collect(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}
