//! Numbers as text by a format such as `S$99,999.00`, and back: `to_char`, `to_number`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Builder, StringBuilder};
use arrow::datatypes::{DataType, Decimal128Type};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::common::{Result, ScalarValue, plan_err};

use super::function::Kind::{Any, Str};
use super::function::{Asked, Body, Call, Function, Row, Typed, fault};
use super::types::{as_decimal, binary, decimal, instant, number, text};
use super::{pattern, show};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("to_char", &[Any, Str], Body::Arrays(char_type, to_char)).also(&["to_varchar"]),
        Function::new("to_number", &[Str, Str], Body::Arrays(number_type, to_number)).also(&["try_to_number"]),
    ]
}

/// Where the sign of a number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// `S`: a plus or a minus.
    Always,
    /// `MI`: a minus.
    Minus,
}

/// Digits between separators.
#[derive(Clone, Copy, Debug)]
struct Group {
    digits: usize,
    /// Begins with 0: none of its digits may be left out.
    exact: bool,
}

/// A parsed format.
#[derive(Debug, Default)]
struct Format {
    /// Before the point, from the left.
    groups: Vec<Group>,
    /// Behind the point; none if there is no point.
    fraction: Option<usize>,
    before: Option<Sign>,
    after: Option<Sign>,
    /// `PR`: negative numbers stand in angle brackets.
    brackets: bool,
    dollar_before: bool,
    dollar_after: bool,
}

impl Format {
    /// None for what is no format.
    fn parse(text: &str) -> Option<Format> {
        let upper = text.to_ascii_uppercase();
        let mut rest = upper.as_str();
        let before = sign(&mut rest);
        let mut format = Format { before, dollar_before: eat(&mut rest, "$"), ..Format::default() };
        loop {
            let length = rest.find(|c| c != '0' && c != '9').unwrap_or(rest.len());
            let (digits, after) = rest.split_at(length);
            if !digits.is_empty() {
                format.groups.push(Group { digits: digits.len(), exact: digits.starts_with('0') });
            }
            rest = after;
            if !(eat(&mut rest, ",") || eat(&mut rest, "G")) {
                break;
            }
            if digits.is_empty() || !rest.starts_with(['0', '9']) {
                return None;
            }
        }
        if eat(&mut rest, ".") || eat(&mut rest, "D") {
            let length = rest.find(|c| c != '0' && c != '9').unwrap_or(rest.len());
            format.fraction = Some(length);
            rest = rest.get(length..)?;
        }
        format.dollar_after = eat(&mut rest, "$");
        format.brackets = eat(&mut rest, "PR");
        format.after = sign(&mut rest);
        let digits = format.whole() + format.fraction.unwrap_or_default();
        let signs = [format.before.is_some(), format.after.is_some(), format.brackets].into_iter().filter(|x| *x);
        let fine = rest.is_empty()
            && (1..=38).contains(&digits)
            && signs.count() <= 1
            && !(format.dollar_before && format.dollar_after);
        fine.then_some(format)
    }

    fn whole(&self) -> usize {
        self.groups.iter().map(|group| group.digits).sum()
    }

    /// A decimal's digits before and behind the point as the format has them; marks where it has no room for them.
    fn written(&self, negative: bool, whole: &str, fraction: &str) -> String {
        let fits = whole.len() <= self.whole() && fraction.len() <= self.fraction.unwrap_or_default();
        let mut out = String::new();
        let minus = |sign: Option<Sign>| match sign {
            Some(Sign::Always) => {
                if negative {
                    "-"
                } else {
                    "+"
                }
            }
            Some(Sign::Minus) => {
                if negative {
                    "-"
                } else {
                    " "
                }
            }
            None => "",
        };
        out.push_str(minus(self.before));
        if self.dollar_before {
            out.push('$');
        }
        let mut missing = self.whole().saturating_sub(whole.len());
        let mut digits = whole.chars();
        for (at, group) in self.groups.iter().enumerate() {
            if at > 0 {
                out.push(if out.ends_with(|c: char| c.is_ascii_digit()) { ',' } else { ' ' });
            }
            for _ in 0..group.digits {
                out.push(match (fits, missing) {
                    (false, _) => '#',
                    (true, 0) => digits.next().unwrap_or('0'),
                    (true, _) => {
                        if group.exact {
                            '0'
                        } else {
                            ' '
                        }
                    }
                });
                missing = missing.saturating_sub(1);
            }
        }
        if let Some(places) = self.fraction {
            if out.ends_with(' ') && self.whole() > 0 {
                out.pop();
                out.push('0');
            }
            out.push('.');
            out.extend(fraction.chars().chain(std::iter::repeat('0')).map(|c| if fits { c } else { '#' }).take(places));
        }
        if self.dollar_after {
            out.push('$');
        }
        if self.brackets && negative {
            let at = out.find(|c| c != ' ').unwrap_or(out.len());
            out.insert(at, '<');
            out.push('>');
        } else if self.brackets {
            out.push_str("  ");
        }
        out.push_str(minus(self.after));
        out
    }

    /// The digits of a text, with the point at the format's scale; none if it is not of the format.
    fn read(&self, text: &str) -> Option<i128> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut rest = plain.as_str();
        let mut negative = false;
        let mut signed = |rest: &mut &str, sign: Option<Sign>| {
            if sign.is_some() && eat(rest, "-") {
                negative = true;
            } else if sign == Some(Sign::Always) {
                eat(rest, "+");
            }
        };
        signed(&mut rest, self.before);
        let bracketed = self.brackets && eat(&mut rest, "<");
        if self.dollar_before && !eat(&mut rest, "$") {
            return None;
        }
        let length = rest.find(|c: char| c != ',' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (whole, after) = rest.split_at(length);
        rest = after;
        let given: Vec<&str> = if whole.is_empty() { Vec::new() } else { whole.split(',').collect() };
        let absent = self.groups.len().checked_sub(given.len())?;
        for (at, group) in self.groups.iter().enumerate() {
            let count = at.checked_sub(absent).and_then(|at| given.get(at)).map_or(0, |digits| digits.len());
            let separated = at > absent || at == absent && given.len() > 1;
            if count > group.digits || group.exact && count < group.digits || separated && count == 0 {
                return None;
            }
        }
        let mut digits: String = given.concat();
        let mut scale = 0;
        if let Some(places) = self.fraction {
            if eat(&mut rest, ".") {
                let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                if length > places {
                    return None;
                }
                digits.push_str(rest.get(..length)?);
                rest = rest.get(length..)?;
                scale = length;
            }
            if digits.is_empty() {
                return None;
            }
            digits.extend(std::iter::repeat_n('0', places - scale));
        }
        if self.dollar_after && !eat(&mut rest, "$") {
            return None;
        }
        if bracketed && !eat(&mut rest, ">") {
            return None;
        }
        signed(&mut rest, self.after);
        let value: i128 = digits.parse().ok().filter(|_| rest.is_empty())?;
        Some(if negative || bracketed { -value } else { value })
    }
}

fn eat(rest: &mut &str, what: &str) -> bool {
    match rest.strip_prefix(what) {
        Some(after) => {
            *rest = after;
            true
        }
        None => false,
    }
}

fn sign(rest: &mut &str) -> Option<Sign> {
    if eat(rest, "MI") {
        return Some(Sign::Minus);
    }
    eat(rest, "S").then_some(Sign::Always)
}

fn format(asked: &Asked<'_>) -> Result<Format> {
    let Some(ScalarValue::Utf8(Some(text))) = asked.literal(1) else {
        return plan_err!("the format of {} is a literal such as '99,999.00'", asked.function);
    };
    match Format::parse(text) {
        Some(format) => Ok(format),
        None => plan_err!(
            "'{text}' is no format of a number: it has digits 9 and 0, separators , and G, a point . or D, a $, and a sign \
             S, MI or PR"
        ),
    }
}

fn char_type(asked: &Asked<'_>) -> Result<Typed> {
    let first = match asked.of(0)? {
        DataType::Date32 | DataType::Timestamp(_, Some(_)) => instant(),
        t @ DataType::Timestamp(..) => t.clone(),
        t if binary(t) => {
            match asked.literal(1) {
                Some(ScalarValue::Utf8(Some(name)))
                    if ["hex", "base64", "utf-8"].iter().any(|known| name.eq_ignore_ascii_case(known)) => {}
                _ => return plan_err!("bytes are written as 'hex', 'base64' or 'utf-8'"),
            }
            DataType::Binary
        }
        t => {
            format(asked)?;
            match t {
                t if decimal(t) => t.clone(),
                t if t.is_floating() => DataType::Decimal128(30, 15),
                t if number(t) => {
                    as_decimal(t).map_or(DataType::Decimal128(38, 18), |(p, s)| DataType::Decimal128(p, s))
                }
                t if text(t) || t.is_null() => DataType::Decimal128(38, 18),
                _ => return plan_err!("{} takes a number, a date, a timestamp or bytes", asked.function),
            }
        }
    };
    Ok(Typed { arguments: vec![first, DataType::Utf8], result: DataType::Utf8 })
}

/// The format of a call, which is the same in all rows.
fn of_call(call: &Call<'_>) -> Option<Format> {
    (call.rows > 0).then(|| call.row(0).opt_str(1)).flatten().and_then(Format::parse)
}

fn to_char(call: &Call<'_>) -> Result<ArrayRef> {
    let values = call.array(0)?;
    let format = of_call(call);
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        builder.append_option(if row.any_null() { None } else { Some(char_of(&row, &values, format.as_ref())?) });
    }
    Ok(Arc::new(builder.finish()))
}

fn char_of(row: &Row<'_>, values: &ArrayRef, format: Option<&Format>) -> Result<String> {
    let name = row.str(1);
    match (values.data_type(), format) {
        (DataType::Timestamp(_, zone), _) => {
            let zone = if zone.is_some() { row.settings().zone.clone() } else { super::zone::Zone::utc() };
            Ok(pattern::compiled(name)?.written(row.micros(0), &zone))
        }
        (DataType::Binary, _) => Ok(match name.to_ascii_lowercase().as_str() {
            "hex" => ::hex::encode_upper(row.bytes(0)),
            "base64" => STANDARD.encode(row.bytes(0)),
            _ => String::from_utf8_lossy(row.bytes(0)).into_owned(),
        }),
        (DataType::Decimal128(_, scale), Some(format)) => {
            let value = row.at(0).map_or(0, |(array, at)| array.as_primitive::<Decimal128Type>().value(at));
            let plain = show::decimal(value, *scale);
            let digits = plain.trim_start_matches('-');
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            Ok(format.written(value < 0, whole.trim_start_matches('0'), fraction.trim_end_matches('0')))
        }
        _ => plan_err!("{} has no format", row.function()),
    }
}

fn number_type(asked: &Asked<'_>) -> Result<Typed> {
    let format = format(asked)?;
    let scale = format.fraction.unwrap_or_default();
    let precision = u8::try_from(format.whole() + scale).unwrap_or(38);
    let result = DataType::Decimal128(precision, i8::try_from(scale).unwrap_or_default());
    Ok(Typed { arguments: vec![DataType::Utf8; 2], result })
}

fn to_number(call: &Call<'_>) -> Result<ArrayRef> {
    let format = of_call(call);
    let mut builder = Decimal128Builder::new().with_data_type(call.result.clone());
    for row in (0..call.rows).map(|index| call.row(index)) {
        let Some(format) = format.as_ref().filter(|_| !row.any_null()) else {
            builder.append_null();
            continue;
        };
        match format.read(row.str(0)) {
            None if call.function == "to_number" => {
                let message = format!("'{}' is not of the format '{}'", row.str(0), row.str(1));
                return Err(fault("INVALID_FORMAT.MISMATCH_INPUT", message));
            }
            value => builder.append_option(value),
        }
    }
    Ok(Arc::new(builder.finish()))
}
