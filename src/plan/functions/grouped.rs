//! Numbers with commas between thousands, or by a pattern such as `#,##0.00`: `format_number`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Decimal128Type};
use datafusion::common::{Result, ScalarValue, plan_err};

use super::function::{Asked, Call, Row, Typed, fault};
use super::show;
use super::types::{decimal, double, integral, text};

pub(super) fn typing(asked: &Asked<'_>) -> Result<Typed> {
    let number = match asked.of(0)? {
        t if decimal(t) => t.clone(),
        t if integral(t) => DataType::Int64,
        _ => double(),
    };
    if let Some(ScalarValue::Utf8(Some(pattern))) = asked.literal(1)
        && Picture::parse(pattern).is_none()
    {
        return plan_err!("'{pattern}' is no pattern of a number such as '#,##0.00'");
    }
    let second = if text(asked.of(1)?) { DataType::Utf8 } else { DataType::Int32 };
    Ok(Typed { arguments: vec![number, second], result: DataType::Utf8 })
}

pub(super) fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        builder.append_option(if row.any_null() { None } else { written(&row)? });
    }
    Ok(Arc::new(builder.finish()))
}

fn written(row: &Row<'_>) -> Result<Option<String>> {
    let by_pattern = row.at(1).is_some_and(|(array, _)| text(array.data_type()));
    let picture = match by_pattern {
        false => match usize::try_from(row.int(1)) {
            Ok(places) => Picture::places(super::function::times("format_number", 1, row.int(1)).map(|_| places)?),
            Err(_) => return Ok(None),
        },
        true => Picture::parse(row.str(1)).ok_or_else(|| {
            fault("INVALID_PARAMETER_VALUE.PATTERN", format!("'{}' is no pattern of a number", row.str(1)))
        })?,
    };
    let Some((array, at)) = row.at(0) else { return Ok(None) };
    let exact = match array.data_type() {
        DataType::Decimal128(_, scale) => {
            let digits = show::decimal(array.as_primitive::<Decimal128Type>().value(at), *scale);
            if picture.percent { shifted(&digits) } else { digits }
        }
        DataType::Int64 if picture.percent => format!("{}00", row.long(0)),
        DataType::Int64 => row.long(0).to_string(),
        _ if row.double(0).is_nan() => return Ok(Some("NaN".to_owned())),
        _ if row.double(0).is_infinite() => {
            return Ok(Some(if row.double(0) > 0.0 { "∞" } else { "-∞" }.to_owned()));
        }
        _ => exact_decimal(row.double(0) * if picture.percent { 100.0 } else { 1.0 }),
    };
    Ok(Some(picture.written(&exact)))
}

/// All digits that a double has.
fn exact_decimal(value: f64) -> String {
    format!("{value:.1074}")
}

/// A hundred times a decimal.
fn shifted(digits: &str) -> String {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let moved: String = fraction.chars().chain(std::iter::repeat('0')).take(2).collect();
    format!("{whole}{moved}.{}", fraction.get(2..).unwrap_or_default())
}

/// A pattern, as Java reads it.
struct Picture {
    prefix: String,
    suffix: String,
    /// Around negative numbers, where that is another than a minus before all.
    negative: Option<(String, String)>,
    percent: bool,
    whole: usize,
    least: usize,
    most: usize,
    /// Digits between commas.
    group: usize,
}

impl Picture {
    /// With so many places.
    fn places(places: usize) -> Picture {
        let (prefix, suffix) = (String::new(), String::new());
        Picture { prefix, suffix, negative: None, percent: false, whole: 1, least: places, most: places, group: 3 }
    }

    fn parse(pattern: &str) -> Option<Picture> {
        if pattern.is_empty() {
            return Some(Picture::places(0));
        }
        let mut rest = pattern.chars().peekable();
        let prefix = affix(&mut rest)?;
        let mut number = String::new();
        while let Some(c) = rest.next_if(|c| "#0,.".contains(*c)) {
            number.push(c);
        }
        let suffix = affix(&mut rest)?;
        let negative = match rest.next() {
            None => None,
            Some(';') => {
                let before = affix(&mut rest)?;
                while rest.next_if(|c| "#0,.".contains(*c)).is_some() {}
                let after = affix(&mut rest)?;
                rest.next().is_none().then_some(())?;
                Some((before, after))
            }
            Some(_) => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        let ordered = |digits: &str, first: char| {
            let digits: String = digits.chars().filter(|c| *c != ',').collect();
            let after = digits.trim_start_matches(first);
            !after.contains(first)
        };
        if number.is_empty()
            || fraction.contains([',', '.'])
            || whole.ends_with(',')
            || !ordered(whole, '#')
            || !ordered(fraction, '0')
        {
            return None;
        }
        let zeros = |digits: &str| digits.chars().filter(|c| *c == '0').count();
        // A point behind nothing but # has a zero before it.
        let alone = !number.contains('0') && number.contains('.') && !whole.is_empty();
        Some(Picture {
            percent: prefix.contains('%') || suffix.contains('%'),
            prefix,
            suffix,
            negative,
            whole: if alone { 1 } else { zeros(whole) },
            least: zeros(fraction),
            most: fraction.len(),
            group: whole.rsplit_once(',').map_or(0, |(_, last)| last.len()),
        })
    }

    fn written(&self, exact: &str) -> String {
        let (negative, whole, fraction) = rounded(exact, self.most);
        let mut fraction = fraction.as_str();
        while fraction.len() > self.least && fraction.ends_with('0') {
            fraction = fraction.get(..fraction.len() - 1).unwrap_or_default();
        }
        let digits = whole.trim_start_matches('0');
        let least = if digits.is_empty() && fraction.is_empty() { self.whole.max(1) } else { self.whole };
        let digits = format!("{}{digits}", "0".repeat(least.saturating_sub(digits.len())));
        let mut out = String::new();
        let (before, after) = match (&self.negative, negative) {
            (Some((before, after)), true) => (before, after),
            (None, true) => {
                out.push('-');
                (&self.prefix, &self.suffix)
            }
            (_, false) => (&self.prefix, &self.suffix),
        };
        out.push_str(before);
        for (index, digit) in digits.chars().enumerate() {
            if self.group > 0 && index > 0 && (digits.len() - index).is_multiple_of(self.group) {
                out.push(',');
            }
            out.push(digit);
        }
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        out.push_str(after);
        out
    }
}

/// What stands around the digits; quoted text is itself.
fn affix(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut out = String::new();
    while let Some(c) = rest.next_if(|c| !"#0,.;".contains(*c)) {
        match c {
            '\'' if rest.next_if_eq(&'\'').is_some() => out.push('\''),
            '\'' => loop {
                match rest.next()? {
                    '\'' if rest.next_if_eq(&'\'').is_some() => out.push('\''),
                    '\'' => break,
                    other => out.push(other),
                }
            },
            // Exponents, signs per mille and currencies are written otherwise elsewhere.
            'E' | '‰' | '¤' => return None,
            '1'..='9' => return None,
            other => out.push(other),
        }
    }
    Some(out)
}

/// A plain decimal rounded half to even: whether it is negative, and its digits before and behind the point.
fn rounded(exact: &str, places: usize) -> (bool, String, String) {
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
    let text: String = all.into_iter().map(char::from).collect();
    let (whole, fraction) = text.split_at(text.len() - places);
    (negative, whole.to_owned(), fraction.to_owned())
}
