//! Text as numbers, booleans, dates and timestamps, as Spark's casts read it.

use chrono::{Datelike, NaiveDate};

use super::zone::Zone;

/// Days from 1970-01-01 to 0001-01-01 in the count of `chrono`.
const EPOCH_DAY: i32 = 719_163;
pub(super) const DAY_MICROS: i64 = 86_400_000_000;

/// When a day begins, in local microseconds since 1970; none for a day beyond what these can count.
pub(super) fn start_of(day: i32) -> Option<i64> {
    i64::from(day).checked_mul(DAY_MICROS)
}

/// What Spark's casts strip from both ends.
pub(super) fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c <= ' ' || c.is_control())
}

/// Days since 1970-01-01.
pub(super) fn days(date: NaiveDate) -> i32 {
    date.num_days_from_ce() - EPOCH_DAY
}

/// The date of days since 1970-01-01.
pub(super) fn date_of(days: i32) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(days.checked_add(EPOCH_DAY)?)
}

/// The date of a year, month and day.
pub(super) fn days_of(year: i32, month: u32, day: u32) -> Option<i32> {
    NaiveDate::from_ymd_opt(year, month, day).map(days)
}

/// An integer; with `fraction`, digits behind a point are cut off.
pub(super) fn integer(text: &str, fraction: bool) -> Option<i128> {
    let text = trimmed(text);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (whole, rest) = match digits.split_once('.') {
        Some((whole, rest)) if fraction => (whole, rest),
        Some(_) => return None,
        None => (digits, ""),
    };
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(rest) || whole.len() > 30 || (whole.is_empty() && (rest.is_empty() && !fraction)) {
        return None;
    }
    if whole.is_empty() && !digits.contains('.') {
        return None;
    }
    let value: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    Some(if negative { -value } else { value })
}

/// A double; Java's suffixes `d` and `f` and words for infinity included.
pub(super) fn double(text: &str) -> Option<f64> {
    let text = trimmed(text);
    let lower = text.to_ascii_lowercase();
    let (negative, word) = match lower.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, lower.strip_prefix('+').unwrap_or(&lower)),
    };
    let sign = if negative { -1.0 } else { 1.0 };
    match word {
        "inf" | "infinity" => return Some(sign * f64::INFINITY),
        "nan" => return (word == lower).then_some(f64::NAN),
        _ => {}
    }
    let digits = word.strip_suffix(['d', 'f']).unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'+' | b'-')) {
        return None;
    }
    digits.parse::<f64>().ok().map(|value| sign * value)
}

/// A decimal as its digits and their scale.
pub(super) fn decimal(text: &str) -> Option<(bool, String, i32)> {
    let text = trimmed(text);
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (rest.get(..at)?, rest.get(at + 1..)?.parse::<i32>().ok()?),
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) || exponent.abs() > 400 {
        return None;
    }
    Some((negative, digits, i32::try_from(fraction.len()).ok()? - exponent))
}

/// A decimal as an integer of the given scale, rounded half up.
pub(super) fn scaled(text: &str, scale: i32) -> Option<i128> {
    let (negative, digits, given) = decimal(text)?;
    let digits = digits.trim_start_matches('0');
    let shift = scale - given;
    let value: i128 = if shift >= 0 {
        if digits.is_empty() {
            0
        } else {
            let zeros = usize::try_from(shift).ok()?;
            if digits.len() + zeros > 38 {
                return None;
            }
            digits.parse::<i128>().ok()?.checked_mul(10i128.checked_pow(u32::try_from(shift).ok()?)?)?
        }
    } else {
        let cut = usize::try_from(-shift).ok()?;
        if cut > digits.len() {
            0
        } else {
            let (kept, dropped) = digits.split_at(digits.len() - cut);
            if kept.len() > 38 {
                return None;
            }
            let kept: i128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
            kept + i128::from(dropped.as_bytes().first().is_some_and(|b| *b >= b'5'))
        }
    };
    Some(if negative { -value } else { value })
}

/// A boolean.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match trimmed(text).to_ascii_lowercase().as_str() {
        "t" | "true" | "y" | "yes" | "1" => Some(true),
        "f" | "false" | "n" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Reads `[+-]yyyy[-m[-d]]` from the front; what follows is left.
fn front_date(text: &str) -> Option<(i32, &str)> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let mut parts = [1i64; 3];
    for (index, part) in parts.iter_mut().enumerate() {
        if index > 0 {
            match rest.strip_prefix('-') {
                Some(after) => rest = after,
                None => break,
            }
        }
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 || (index == 0 && !(4..=7).contains(&length)) || (index > 0 && length > 2) {
            return None;
        }
        *part = rest.get(..length)?.parse().ok()?;
        rest = rest.get(length..)?;
    }
    let [year, month, day] = parts;
    let year = i32::try_from(if negative { -year } else { year }).ok()?;
    let days = days_of(year, u32::try_from(month).ok()?, u32::try_from(day).ok()?)?;
    Some((days, rest))
}

/// A date: `yyyy`, `yyyy-m`, `yyyy-m-d`, and a day followed by a blank or `T` and anything.
pub(super) fn date(text: &str) -> Option<i32> {
    let text = trimmed(text);
    let (days, rest) = front_date(text)?;
    let complete = text.get(1..).is_some_and(|t| t.matches('-').count() >= 2);
    (rest.is_empty() || complete && rest.starts_with([' ', 'T'])).then_some(days)
}

/// A timestamp as local microseconds and the zone that it names.
pub(super) fn local_timestamp(text: &str) -> Option<(i64, Option<Zone>)> {
    let text = trimmed(text);
    let (days, rest) = front_date(text)?;
    let midnight = i64::from(days).checked_mul(DAY_MICROS)?;
    if rest.is_empty() {
        return Some((midnight, None));
    }
    if text.get(1..)?.split([' ', 'T']).next()?.matches('-').count() < 2 {
        return None;
    }
    let mut rest = rest.strip_prefix([' ', 'T'])?;
    let mut time = 0i64;
    for (index, (limit, unit)) in [(24i64, 3_600_000_000i64), (60, 60_000_000), (60, 1_000_000)].into_iter().enumerate()
    {
        if index > 0 {
            match rest.strip_prefix(':') {
                Some(after) => rest = after,
                None if index == 2 => break,
                None => return None,
            }
        }
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 || length > 2 {
            return None;
        }
        let value: i64 = rest.get(..length)?.parse().ok()?;
        if value >= limit {
            return None;
        }
        time += value * unit;
        rest = rest.get(length..)?;
        if index == 2
            && let Some(fraction) = rest.strip_prefix('.')
        {
            let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let digits = fraction.get(..length.min(6))?;
            let value: i64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
            time += value * 10i64.pow(6 - u32::try_from(digits.len()).ok()?);
            rest = fraction.get(length..)?;
        }
    }
    let zone = trimmed(rest);
    let zone = if zone.is_empty() { None } else { Some(Zone::parse(zone)?) };
    Some((midnight.checked_add(time)?, zone))
}

/// An instant in microseconds.
pub(super) fn timestamp(text: &str, session: &Zone) -> Option<i64> {
    let (local, zone) = local_timestamp(text)?;
    Some(zone.as_ref().unwrap_or(session).instant(local))
}
