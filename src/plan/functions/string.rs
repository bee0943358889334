//! Functions over text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use datafusion_spark::function::{string as library, url};

use super::function::Kind::{Any, Binary, Int, Long, Str, TextOrBinary};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::show;
use super::types::{binary, common, decimal, double, integral, item, list_of, text};

pub(super) fn functions() -> Vec<Function> {
    let mut all = plain();
    all.extend(searching());
    all.extend(encoding());
    all
}

fn plain() -> Vec<Function> {
    vec![
        Function::new("upper", &[Str], Body::Text(|r| Ok(Some(r.str(0).to_uppercase())))).also(&["ucase"]),
        Function::new("lower", &[Str], Body::Text(|r| Ok(Some(r.str(0).to_lowercase())))).also(&["lcase"]),
        Function::new("btrim", &[Str, Str], Body::Text(|r| strip(r, 0, 1, true, true))).optional(1).also(&["trim"]),
        Function::new("ltrim", &[Str, Str], Body::Text(|r| strip_named(r, true, false))).optional(1),
        Function::new("rtrim", &[Str, Str], Body::Text(|r| strip_named(r, false, true))).optional(1),
        Function::new("length", &[TextOrBinary], Body::Int(characters)).also(&[
            "char_length",
            "character_length",
            "len",
        ]),
        Function::new("octet_length", &[TextOrBinary], Body::Int(|r| count(r.bytes(0).len()))),
        Function::new("bit_length", &[TextOrBinary], Body::Int(|r| count(r.bytes(0).len() * 8))),
        Function::new("substring", &[TextOrBinary, Int, Int], Body::Arrays(part_type, part))
            .optional(1)
            .also(&["substr"]),
        Function::new("left", &[Str, Int], Body::Text(|r| Ok(Some(cut(r.str(0), 1, r.int(1)))))),
        Function::new("right", &[Str, Int], Body::Text(right)),
        Function::new("substring_index", &[Str, Str, Int], Body::Text(substring_index)),
        Function::new("concat", &[Any], Body::Arrays(concat_type, concat)).variadic().optional(1),
        Function::new("concat_ws", &[Str, Any], Body::Arrays(concat_ws_type, concat_ws)).variadic().optional(1),
        Function::new("lpad", &[Str, Int, Str], Body::Text(|r| Ok(Some(padded(r, true))))).optional(1),
        Function::new("rpad", &[Str, Int, Str], Body::Text(|r| Ok(Some(padded(r, false))))).optional(1),
        Function::new(
            "repeat",
            &[Str, Int],
            Body::Text(|r| Ok(Some(r.str(0).repeat(usize::try_from(r.int(1)).unwrap_or_default())))),
        ),
        Function::new(
            "replace",
            &[Str, Str, Str],
            Body::Text(|r| {
                Ok(Some(match r.str(1) {
                    "" => r.str(0).to_owned(),
                    searched => r.str(0).replace(searched, r.str(2)),
                }))
            }),
        )
        .optional(1),
        Function::new("translate", &[Str, Str, Str], Body::Text(translate)),
        Function::new("initcap", &[Str], Body::Text(initcap)),
        Function::new("ascii", &[Str], Body::Int(|r| Ok(Some(r.str(0).chars().next().map_or(0, |c| c as i32))))),
        Function::new("chr", &[Long], Body::Text(character)).also(&["char"]),
        Function::new(
            "space",
            &[Int],
            Body::Text(|r| Ok(Some(" ".repeat(usize::try_from(r.int(0)).unwrap_or_default())))),
        ),
        Function::new("overlay", &[Str, Str, Int, Int], Body::Text(overlay)).optional(1),
        Function::new("mask", &[Str, Str, Str, Str, Str], Body::Text(mask)).optional(4).with_nulls(),
        Function::new("elt", &[Int, Str], Body::Text(elt)).variadic().with_nulls(),
        Function::new("format_number", &[Any, Int], Body::Arrays(format_number_type, format_number)),
        Function::library("format_string", &[Str, Any], library::format_string())
            .variadic()
            .optional(1)
            .also(&["printf"]),
        Function::library("luhn_check", &[Str], library::luhn_check()),
        Function::library("soundex", &[Str], library::soundex()),
        Function::new("levenshtein", &[Str, Str, Int], Body::Int(levenshtein)).optional(1),
        Function::library("quote", &[Str], library::quote()),
        Function::library("is_valid_utf8", &[TextOrBinary], library::is_valid_utf8()),
    ]
}

fn searching() -> Vec<Function> {
    vec![
        Function::new("instr", &[Str, Str], Body::Int(|r| Ok(Some(find(r.str(0), r.str(1), 1))))),
        Function::new("locate", &[Str, Str, Int], Body::Int(locate)).optional(1).with_nulls().also(&["position"]),
        Function::new(
            "startswith",
            &[TextOrBinary, TextOrBinary],
            Body::Bool(|r| Ok(Some(r.bytes(0).starts_with(r.bytes(1))))),
        ),
        Function::new(
            "endswith",
            &[TextOrBinary, TextOrBinary],
            Body::Bool(|r| Ok(Some(r.bytes(0).ends_with(r.bytes(1))))),
        ),
        Function::new("contains", &[Str, Str], Body::Bool(|r| Ok(Some(r.str(0).contains(r.str(1)))))),
        Function::new(
            "find_in_set",
            &[Str, Str],
            Body::Int(|r| {
                let at = if r.str(0).contains(',') { None } else { r.str(1).split(',').position(|p| p == r.str(0)) };
                Ok(Some(at.and_then(|at| i32::try_from(at + 1).ok()).unwrap_or_default()))
            }),
        ),
        Function::new("split_part", &[Str, Str, Int], Body::Text(split_part)),
        Function::new("like", &[Str, Str, Str], Body::Bool(|r| like(r, false))).optional(1),
        Function::new("ilike", &[Str, Str, Str], Body::Bool(|r| like(r, true))).optional(1),
    ]
}

fn encoding() -> Vec<Function> {
    vec![
        Function::new("base64", &[Binary], Body::Text(|r| Ok(Some(base64_text(r.bytes(0)))))),
        Function::new("unbase64", &[Str], Body::Binary(unbase64)),
        Function::new("hex", &[Any], Body::Arrays(hex_type, hex)),
        Function::new("unhex", &[Str], Body::Binary(|r| Ok(unhex(r.str(0))))),
        Function::new("encode", &[Str, Str], Body::Binary(encode)),
        Function::new("decode", &[Any], Body::Arrays(decode_type, decode)).variadic(),
        Function::library("url_encode", &[Str], url::url_encode()),
        Function::library("url_decode", &[Str], url::url_decode()),
        Function::library("try_url_decode", &[Str], url::try_url_decode()),
        Function::new("parse_url", &[Str, Str, Str], Body::Text(super::url::part)).optional(1).also(&["try_parse_url"]),
    ]
}

fn count(length: usize) -> Answer<i32> {
    Ok(Some(i32::try_from(length).unwrap_or(i32::MAX)))
}

fn characters(row: &Row<'_>) -> Answer<i32> {
    match row.at(0) {
        Some((array, _)) if binary(array.data_type()) => count(row.bytes(0).len()),
        _ => count(row.str(0).chars().count()),
    }
}

fn stripped(text: &str, what: &str, front: bool, back: bool) -> String {
    let among = |c: char| what.contains(c);
    let text = if front { text.trim_start_matches(among) } else { text };
    (if back { text.trim_end_matches(among) } else { text }).to_owned()
}

fn strip(row: &Row<'_>, text: usize, what: usize, front: bool, back: bool) -> Answer<String> {
    let what = if row.count() > 1 { row.str(what) } else { " " };
    Ok(Some(stripped(row.str(text), what, front, back)))
}

/// With two arguments the characters come first.
fn strip_named(row: &Row<'_>, front: bool, back: bool) -> Answer<String> {
    if row.count() > 1 { strip(row, 1, 0, front, back) } else { strip(row, 0, 1, front, back) }
}

/// The slice that starts at a place counted from 1, or from the end where it is negative.
fn bounds(length: usize, start: i32, wanted: i32) -> (usize, usize) {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let start = i64::from(start);
    let from = match start {
        1.. => start - 1,
        0 => 0,
        _ => length + start,
    };
    let to = from.saturating_add(i64::from(wanted)).clamp(0, length);
    let from = from.clamp(0, length);
    (usize::try_from(from).unwrap_or_default(), usize::try_from(to.max(from)).unwrap_or_default())
}

fn cut(text: &str, start: i32, wanted: i32) -> String {
    if wanted <= 0 {
        return String::new();
    }
    if text.is_ascii() {
        let (from, to) = bounds(text.len(), start, wanted);
        return text.get(from..to).unwrap_or_default().to_owned();
    }
    let (from, to) = bounds(text.chars().count(), start, wanted);
    text.chars().skip(from).take(to - from).collect()
}

fn right(row: &Row<'_>) -> Answer<String> {
    let (text, wanted) = (row.str(0), row.int(1));
    if wanted <= 0 {
        return Ok(Some(String::new()));
    }
    let length = text.chars().count();
    let skipped = length.saturating_sub(usize::try_from(wanted).unwrap_or(usize::MAX));
    Ok(Some(text.chars().skip(skipped).collect()))
}

fn part_type(asked: &Asked<'_>) -> Result<Typed> {
    let first = if binary(asked.of(0)?) { DataType::Binary } else { DataType::Utf8 };
    let mut arguments = vec![DataType::Int32; asked.types.len()];
    if let Some(argument) = arguments.first_mut() {
        argument.clone_from(&first);
    }
    Ok(Typed { arguments, result: first })
}

fn part(call: &Call<'_>) -> Result<ArrayRef> {
    let wanted = |row: &Row<'_>| if row.count() > 2 { row.int(2) } else { i32::MAX };
    let rows = (0..call.rows).map(|index| call.row(index));
    if *call.result == DataType::Binary {
        let mut builder = BinaryBuilder::new();
        for row in rows {
            let bytes = row.bytes(0);
            let (from, to) = bounds(bytes.len(), row.int(1), wanted(&row).max(0));
            builder.append_option((!row.any_null()).then(|| bytes.get(from..to).unwrap_or_default()));
        }
        return Ok(Arc::new(builder.finish()));
    }
    let mut builder = StringBuilder::new();
    for row in rows {
        builder.append_option((!row.any_null()).then(|| cut(row.str(0), row.int(1), wanted(&row))));
    }
    Ok(Arc::new(builder.finish()))
}

fn substring_index(row: &Row<'_>) -> Answer<String> {
    let (text, delimiter, wanted) = (row.str(0), row.str(1), row.int(2));
    if delimiter.is_empty() || wanted == 0 {
        return Ok(Some(String::new()));
    }
    let nth = usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX) - 1;
    Ok(Some(if wanted > 0 {
        text.match_indices(delimiter).nth(nth).and_then(|(at, _)| text.get(..at)).unwrap_or(text).to_owned()
    } else {
        let found = text.rmatch_indices(delimiter).nth(nth);
        found.and_then(|(at, _)| text.get(at + delimiter.len()..)).unwrap_or(text).to_owned()
    }))
}

/// Arrays are joined to an array, binaries to a binary, all else to text.
fn concat_type(asked: &Asked<'_>) -> Result<Typed> {
    let count = asked.types.len();
    let arrays = asked.types.iter().filter(|t| item(t).is_some()).count();
    let result = if arrays > 0 {
        let Some(one) = common(asked.types, asked.settings.ansi).filter(|t| item(t).is_some()) else {
            return plan_err!("concat takes arrays or text, not both");
        };
        list_of(item(&one).cloned().unwrap_or(DataType::Null))
    } else if count > 0 && asked.types.iter().all(binary) {
        DataType::Binary
    } else {
        DataType::Utf8
    };
    Ok(Typed { arguments: vec![result.clone(); count], result })
}

fn concat(call: &Call<'_>) -> Result<ArrayRef> {
    if item(call.result).is_some() {
        return super::array::concat(call);
    }
    let rows = (0..call.rows).map(|index| call.row(index));
    if *call.result == DataType::Binary {
        let mut builder = BinaryBuilder::new();
        for row in rows {
            let parts = (0..row.count()).flat_map(|i| row.bytes(i).iter().copied());
            builder.append_option((!row.any_null()).then(|| parts.collect::<Vec<u8>>()));
        }
        return Ok(Arc::new(builder.finish()));
    }
    let mut builder = StringBuilder::new();
    for row in rows {
        builder.append_option((!row.any_null()).then(|| (0..row.count()).map(|i| row.str(i)).collect::<String>()));
    }
    Ok(Arc::new(builder.finish()))
}

fn concat_ws_type(asked: &Asked<'_>) -> Result<Typed> {
    let one = |t: &DataType| if item(t).is_some() { list_of(DataType::Utf8) } else { DataType::Utf8 };
    Ok(Typed { arguments: asked.types.iter().map(one).collect(), result: DataType::Utf8 })
}

fn concat_ws(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.null(0) {
            builder.append_null();
            continue;
        }
        let mut parts: Vec<String> = Vec::new();
        for argument in (1..row.count()).filter(|a| !row.null(*a)) {
            let Some((array, at)) = row.at(argument) else { continue };
            match array.as_list_opt::<i32>() {
                Some(list) => {
                    let items = list.value(at);
                    parts.extend(items.as_string::<i32>().iter().flatten().map(str::to_owned));
                }
                None => parts.push(row.str(argument).to_owned()),
            }
        }
        builder.append_value(parts.join(row.str(0)));
    }
    Ok(Arc::new(builder.finish()))
}

fn padded(row: &Row<'_>, front: bool) -> String {
    let text = row.str(0);
    let wanted = usize::try_from(row.int(1)).unwrap_or_default();
    let filler = if row.count() > 2 { row.str(2) } else { " " };
    let length = text.chars().count();
    if wanted <= length {
        return text.chars().take(wanted).collect();
    }
    let fill = filler.chars().cycle().take(if filler.is_empty() { 0 } else { wanted - length });
    if front { fill.chain(text.chars()).collect() } else { text.chars().chain(fill).collect() }
}

fn translate(row: &Row<'_>) -> Answer<String> {
    let (from, to): (Vec<char>, Vec<char>) = (row.str(1).chars().collect(), row.str(2).chars().collect());
    Ok(Some(
        row.str(0)
            .chars()
            .filter_map(|c| match from.iter().position(|f| *f == c) {
                Some(at) => to.get(at).copied(),
                None => Some(c),
            })
            .collect(),
    ))
}

fn initcap(row: &Row<'_>) -> Answer<String> {
    let mut first = true;
    let mut out = String::with_capacity(row.str(0).len());
    for c in row.str(0).chars() {
        if first {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        first = c == ' ';
    }
    Ok(Some(out))
}

fn character(row: &Row<'_>) -> Answer<String> {
    let code = row.long(0);
    if code < 0 {
        return Ok(Some(String::new()));
    }
    let code = u8::try_from(code & 0xff).unwrap_or_default();
    Ok(Some(char::from(code).to_string()))
}

fn overlay(row: &Row<'_>) -> Answer<String> {
    let (text, new) = (row.str(0), row.str(1));
    let at = row.int(2);
    let length = match row.opt_int(3) {
        Some(length) if row.count() > 3 && length >= 0 => length,
        _ => i32::try_from(new.chars().count()).unwrap_or(i32::MAX),
    };
    let front = cut(text, 1, at.saturating_sub(1));
    let back = cut(text, at.saturating_add(length), i32::MAX);
    Ok(Some(format!("{front}{new}{back}")))
}

fn mask(row: &Row<'_>) -> Answer<String> {
    let Some(text) = row.opt_str(0) else { return Ok(None) };
    let replacement = |argument: usize, default: Option<char>| {
        if argument < row.count() { row.opt_str(argument).and_then(|s| s.chars().next()) } else { default }
    };
    let (upper, lower) = (replacement(1, Some('X')), replacement(2, Some('x')));
    let (digit, other) = (replacement(3, Some('n')), replacement(4, None));
    Ok(Some(
        text.chars()
            .map(|c| {
                let masked = if c.is_uppercase() {
                    upper
                } else if c.is_lowercase() {
                    lower
                } else if c.is_ascii_digit() {
                    digit
                } else {
                    other
                };
                masked.unwrap_or(c)
            })
            .collect(),
    ))
}

fn elt(row: &Row<'_>) -> Answer<String> {
    let Some(wanted) = row.opt_int(0) else { return Ok(None) };
    match usize::try_from(wanted) {
        Ok(at) if at >= 1 && at < row.count() => Ok(row.opt_str(at).map(str::to_owned)),
        _ if row.ansi() => {
            Err(fault("INVALID_ARRAY_INDEX", format!("elt has {} values, there is no {wanted}", row.count() - 1)))
        }
        _ => Ok(None),
    }
}

fn levenshtein(row: &Row<'_>) -> Answer<i32> {
    let (a, b): (Vec<char>, Vec<char>) = (row.str(0).chars().collect(), row.str(1).chars().collect());
    let mut distances: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let above = distances.get(j + 1).copied().unwrap_or_default();
            let cheapest = (diagonal + usize::from(ca != cb)).min(above + 1).min(left + 1);
            if let Some(cell) = distances.get_mut(j) {
                *cell = left;
            }
            diagonal = above;
            left = cheapest;
        }
        if let Some(cell) = distances.last_mut() {
            *cell = left;
        }
    }
    let distance = i32::try_from(distances.last().copied().unwrap_or_default()).unwrap_or(i32::MAX);
    Ok(Some(if row.count() > 2 && distance > row.int(2) { -1 } else { distance }))
}

/// Place of `searched` from the character `start` on, counted from 1; 0 where it is not.
fn find(text: &str, searched: &str, start: i32) -> i32 {
    let Ok(skipped) = usize::try_from(start - 1) else { return 0 };
    let Some((from, _)) = text.char_indices().chain([(text.len(), ' ')]).nth(skipped) else { return 0 };
    let found = text.get(from..).and_then(|rest| rest.find(searched));
    found
        .and_then(|at| text.get(..from + at))
        .map_or(0, |before| i32::try_from(before.chars().count() + 1).unwrap_or(i32::MAX))
}

fn locate(row: &Row<'_>) -> Answer<i32> {
    if row.count() > 2 && row.null(2) {
        return Ok(Some(0));
    }
    if row.null(0) || row.null(1) {
        return Ok(None);
    }
    Ok(Some(find(row.str(1), row.str(0), if row.count() > 2 { row.int(2) } else { 1 })))
}

fn split_part(row: &Row<'_>) -> Answer<String> {
    let (text, delimiter, wanted) = (row.str(0), row.str(1), row.int(2));
    if wanted == 0 {
        return Err(fault("INVALID_INDEX_OF_ZERO", "the index 0 is invalid; parts are counted from 1"));
    }
    let parts: Vec<&str> = if delimiter.is_empty() { vec![text] } else { text.split(delimiter).collect() };
    let nth = usize::try_from(wanted.unsigned_abs()).unwrap_or(usize::MAX) - 1;
    let found = if wanted > 0 { parts.get(nth) } else { parts.iter().rev().nth(nth) };
    Ok(Some(found.copied().unwrap_or_default().to_owned()))
}

/// Whether text matches a pattern of LIKE: greedy, going back to the last `%`.
fn like(row: &Row<'_>, fold: bool) -> Answer<bool> {
    let escape = if row.count() > 2 { row.str(2).chars().next() } else { Some('\\') };
    let folded = |s: &str| if fold { s.to_lowercase() } else { s.to_owned() };
    let text: Vec<char> = folded(row.str(0)).chars().collect();
    let mut pattern = Vec::new();
    let mut characters = row.str(1).chars();
    while let Some(c) = characters.next() {
        pattern.push(if Some(c) == escape {
            match characters.next() {
                Some(next) if next == '_' || next == '%' || Some(next) == escape => Piece::Literal(next),
                Some(next) => {
                    return Err(fault(
                        "INVALID_FORMAT.ESC_IN_THE_MIDDLE",
                        format!("the escape character stands before '{next}' in the pattern '{}'", row.str(1)),
                    ));
                }
                None => {
                    return Err(fault(
                        "INVALID_FORMAT.ESC_AT_THE_END",
                        format!("the pattern '{}' ends with the escape character", row.str(1)),
                    ));
                }
            }
        } else {
            match c {
                '%' => Piece::Many,
                '_' => Piece::One,
                c => Piece::Literal(c),
            }
        });
    }
    let (mut at, mut piece) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    loop {
        let fits = match (pattern.get(piece), text.get(at)) {
            (None, None) => return Ok(Some(true)),
            (Some(Piece::Many), _) => {
                back = Some((at, piece));
                piece += 1;
                continue;
            }
            (Some(Piece::One), Some(_)) => true,
            (Some(Piece::Literal(wanted)), Some(c)) => {
                wanted == c || fold && wanted.to_lowercase().eq(std::iter::once(*c))
            }
            _ => false,
        };
        if fits {
            at += 1;
            piece += 1;
            continue;
        }
        match back {
            Some((from, many)) if from < text.len() => {
                back = Some((from + 1, many));
                at = from + 1;
                piece = many + 1;
            }
            _ => return Ok(Some(false)),
        }
    }
}

enum Piece {
    Literal(char),
    One,
    Many,
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn base64_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let sextet = usize::try_from(group >> (18 - 6 * i) & 63).unwrap_or_default();
            out.push(if i <= chunk.len() { BASE64.get(sextet).map_or('=', |b| char::from(*b)) } else { '=' });
        }
    }
    out
}

fn unbase64(row: &Row<'_>) -> Answer<Vec<u8>> {
    match from_base64(row.str(0)) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(fault("CONVERSION_INVALID_INPUT", format!("'{}' is no base64", row.str(0)))),
    }
}

pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let (mut group, mut bits) = (0u32, 0);
    for c in text.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'=') {
        let value = BASE64.iter().position(|b| *b == c)?;
        group = group << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(out)
}

pub(super) fn hex_text(bytes: &[u8], upper: bool) -> String {
    bytes.iter().map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") }).collect()
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
            (!row.null(0)).then(|| if whole { format!("{:X}", row.long(0)) } else { hex_text(row.bytes(0), true) }),
        );
    }
    Ok(Arc::new(builder.finish()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect::<Option<Vec<u8>>>()?;
    let odd = digits.len() % 2;
    let padded: Vec<u8> = std::iter::repeat_n(0, odd).chain(digits).collect();
    Some(padded.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
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

fn format_number_type(asked: &Asked<'_>) -> Result<Typed> {
    let number = match asked.of(0)? {
        t if decimal(t) => t.clone(),
        t if integral(t) => DataType::Int64,
        _ => double(),
    };
    Ok(Typed { arguments: vec![number, DataType::Int32], result: DataType::Utf8 })
}

fn format_number(call: &Call<'_>) -> Result<ArrayRef> {
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
