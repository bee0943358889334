//! Dates and timestamps in texts, as ISO 8601 writes them.

use chrono::{NaiveDate, NaiveDateTime, NaiveTime};

/// Days since 1970 of `2024-01-31`, also with a time after it, which is ignored.
pub(super) fn parse_date(text: &str) -> Option<i32> {
    let (day, rest) = split_date(text.trim())?;
    if !rest.is_empty() {
        parse_time(rest.strip_prefix(['T', ' '])?)?;
    }
    i32::try_from(day.signed_duration_since(NaiveDate::default()).num_days()).ok()
}

/// Microseconds since 1970 of a date, or a date and a time with `T` or a space between and perhaps an offset; without
/// an offset it is UTC. What is finer than a microsecond is cut off.
pub(super) fn parse_timestamp(text: &str) -> Option<i64> {
    let (moment, offset) = parse(text)?;
    moment.checked_sub(offset.unwrap_or(0).checked_mul(1_000_000)?)
}

/// As [`parse_timestamp`], but an offset does not fit.
pub(super) fn parse_timestamp_ntz(text: &str) -> Option<i64> {
    match parse(text)? {
        (moment, None) => Some(moment),
        _ => None,
    }
}

/// Microseconds, and the offset in seconds if there is one.
fn parse(text: &str) -> Option<(i64, Option<i64>)> {
    let (day, rest) = split_date(text.trim())?;
    let (time, offset) = match rest {
        "" => (NaiveTime::MIN, None),
        _ => parse_time(rest.strip_prefix(['T', ' '])?)?,
    };
    Some((NaiveDateTime::new(day, time).and_utc().timestamp_micros(), offset))
}

/// Up to nine digits from the front, at least `least` of them.
fn digits(text: &str, least: usize, most: usize) -> Option<(u32, &str)> {
    let count = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if count < least {
        return None;
    }
    let (number, rest) = text.split_at_checked(count)?;
    Some((number.parse().ok()?, rest))
}

fn split_date(text: &str) -> Option<(NaiveDate, &str)> {
    let (year, rest) = digits(text, 4, 4)?;
    let (month, rest) = digits(rest.strip_prefix('-')?, 1, 2)?;
    let (day, rest) = digits(rest.strip_prefix('-')?, 1, 2)?;
    Some((NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?, rest))
}

/// A time of day and its offset.
fn parse_time(text: &str) -> Option<(NaiveTime, Option<i64>)> {
    let (hour, rest) = digits(text, 1, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?, 1, 2)?;
    let (mut second, mut micro, mut rest) = (0, 0, rest);
    if let Some(tail) = rest.strip_prefix(':') {
        (second, rest) = digits(tail, 1, 2)?;
        if let Some(tail) = rest.strip_prefix('.') {
            let (fraction, tail) = digits(tail, 1, 9).map(|(_, after)| tail.split_at(tail.len() - after.len()))?;
            let padded = format!("{fraction:0<6}");
            micro = padded.get(..6)?.parse().ok()?;
            rest = tail;
        }
    }
    let time = NaiveTime::from_hms_micro_opt(hour, minute, second, micro)?;
    let offset = match rest.trim_start() {
        "" => None,
        "Z" | "z" | "UTC" => Some(0),
        text => {
            let (sign, text) = match text.split_at_checked(1)? {
                ("+", text) => (1, text),
                ("-", text) => (-1, text),
                _ => return None,
            };
            let (hours, text) = digits(text, 1, 2)?;
            let minutes = match text {
                "" => 0,
                _ => match digits(text.strip_prefix(':').unwrap_or(text), 2, 2)? {
                    (minutes, "") => minutes,
                    _ => return None,
                },
            };
            if hours > 18 || minutes > 59 {
                return None;
            }
            Some(sign * i64::from(hours * 3600 + minutes * 60))
        }
    };
    Some((time, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iso_8601_writes_is_read() {
        let second = 1_000_000;
        let cases = [
            ("1970-01-02", 86_400 * second),
            ("1970-01-01T00:00:01", second),
            ("1970-01-01 00:00:01.5", second * 3 / 2),
            ("1970-01-01T00:00:00.123456789Z", 123_456),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1970-01-01T01:00:00+0100", 0),
            ("1970-01-01 00:30-01", 5400 * second),
            (" 1969-12-31T23:59:59.999999Z ", -1),
            ("9999-12-31T23:59:59Z", 253_402_300_799 * second),
            ("0001-01-01", -62_135_596_800 * second),
        ];
        for (text, micros) in cases {
            assert_eq!(parse_timestamp(text), Some(micros), "{text}");
        }
        assert_eq!(parse_timestamp_ntz("1970-01-01T00:00:01"), Some(second));
        assert_eq!(parse_timestamp_ntz("1970-01-01T00:00:01Z"), None);
        assert_eq!(parse_date("1969-12-31"), Some(-1));
        assert_eq!(parse_date("1970-01-02T23:00:00Z"), Some(1));
    }

    #[test]
    fn what_is_no_date_is_none() {
        let wrong = [
            "",
            "x",
            "1970",
            "1970-13-01",
            "1970-02-30",
            "70-01-01",
            "1970-01-01T",
            "1970-01-01T25:00:00",
            "1970-01-01T00:00:00.",
            "1970-01-01T00:00:00+",
            "1970-01-01T00:00:00+99:00",
            "1970-01-01T00:00:00 Europe/Berlin",
            "1970-01-01x",
            "1970-01-01T00:00:00Zx",
            "１970-01-01",
            "1970-01-01T00:00:00+01:00:00:00",
            "99999-01-01",
        ];
        for text in wrong {
            assert_eq!(parse_timestamp(text), None, "{text}");
            assert_eq!(parse_date(text), None, "{text}");
        }
    }
}
