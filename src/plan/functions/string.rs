//! Functions over text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use datafusion_spark::function::string as library;

use super::function::Kind::{Any, Int, Long, Str, TextOrBinary};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault, times};
use super::grouped;
use super::types::{binary, common, item, list_of};

pub(super) fn functions() -> Vec<Function> {
    let mut all = plain();
    all.extend(searching());
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
        Function::new("lpad", &[Str, Int, Str], Body::Text(|r| padded(r, true).map(Some))).optional(1),
        Function::new("rpad", &[Str, Int, Str], Body::Text(|r| padded(r, false).map(Some))).optional(1),
        Function::new(
            "repeat",
            &[Str, Int],
            Body::Text(|r| Ok(Some(r.str(0).repeat(times("repeat", r.str(0).len(), r.int(1))?)))),
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
        Function::new("space", &[Int], Body::Text(|r| Ok(Some(" ".repeat(times("space", 1, r.int(0))?))))),
        Function::new("overlay", &[Str, Str, Int, Int], Body::Text(overlay)).optional(1),
        Function::new("mask", &[Str, Str, Str, Str, Str], Body::Text(mask)).optional(4).with_nulls(),
        Function::new("elt", &[Int, Str], Body::Text(elt)).variadic().with_nulls(),
        Function::new("format_number", &[Any, Any], Body::Arrays(grouped::typing, grouped::compute)),
        Function::new(super::LIMITED_LENGTH, &[Str, Int], Body::Text(of_length)),
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

/// What a column of a limited length holds: blanks at the end that are too many go, and what is too long otherwise fails.
fn of_length(row: &Row<'_>) -> Answer<String> {
    let (text, most) = (row.str(0), usize::try_from(row.int(1)).unwrap_or_default());
    let length = text.chars().count();
    if length <= most {
        return Ok(Some(text.to_owned()));
    }
    let cut = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
    match text.split_at(cut) {
        (kept, more) if more.bytes().all(|b| b == b' ') => Ok(Some(kept.to_owned())),
        _ => Err(fault("EXCEED_LIMIT_LENGTH", format!("a text of {length} characters is in a column of {most}"))),
    }
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

fn padded(row: &Row<'_>, front: bool) -> Result<String> {
    let text = row.str(0);
    let wanted = usize::try_from(row.int(1)).unwrap_or_default();
    let filler = if row.count() > 2 { row.str(2) } else { " " };
    let length = text.chars().count();
    if wanted <= length {
        return Ok(text.chars().take(wanted).collect());
    }
    // A character has at most four bytes.
    let wanted = if filler.is_empty() {
        length
    } else {
        times("a padded text", if filler.is_ascii() { 1 } else { 4 }, row.int(1))?
    };
    let fill = filler.chars().cycle().take(wanted - length);
    Ok(if front { fill.chain(text.chars()).collect() } else { text.chars().chain(fill).collect() })
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
    let distance = i32::try_from(strsim::levenshtein(row.str(0), row.str(1))).unwrap_or(i32::MAX);
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
