//! Spark's patterns for dates and times, `yyyy-MM-dd HH:mm:ss` and their like: writing by them and reading by them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use chrono::{Datelike, NaiveDate};
use datafusion::common::Result;

use super::function::fault;
use super::parse::{DAY_MICROS, date_of, days, days_of};
use super::zone::{Zone, offset};

/// A piece of a pattern.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Literal(String),
    /// A letter and how often it stands.
    Field(char, usize),
    /// Read if it is there; always written.
    Optional(Vec<Piece>),
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    pieces: Vec<Piece>,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Full name of a month, counted from 1.
pub(super) fn month_name(month: u32) -> &'static str {
    usize::try_from(month).ok().and_then(|m| MONTHS.get(m.checked_sub(1)?)).copied().unwrap_or_default()
}

/// Full name of a date's day of the week.
pub(super) fn day_name(date: NaiveDate) -> &'static str {
    usize::try_from(date.weekday().num_days_from_monday()).ok().and_then(|d| DAYS.get(d)).copied().unwrap_or_default()
}

const KEPT: usize = 256;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Rc<Pattern>>> = RefCell::new(HashMap::new());
}

/// A pattern, compiled once a thread.
pub(super) fn compiled(text: &str) -> Result<Rc<Pattern>> {
    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(found) = patterns.get(text) {
            return Ok(Rc::clone(found));
        }
        let made = Rc::new(Pattern::new(text)?);
        if patterns.len() >= KEPT {
            patterns.clear();
        }
        patterns.insert(text.to_owned(), Rc::clone(&made));
        Ok(made)
    })
}

fn wrong(pattern: &str) -> datafusion::common::DataFusionError {
    fault("INVALID_DATETIME_PATTERN", format!("'{pattern}' is no pattern of a date or time"))
}

impl Pattern {
    fn new(text: &str) -> Result<Pattern> {
        let mut open: Vec<Vec<Piece>> = vec![Vec::new()];
        let mut characters = text.chars().peekable();
        let push = |open: &mut Vec<Vec<Piece>>, piece: Piece| {
            if let Some(pieces) = open.last_mut() {
                match (pieces.last_mut(), piece) {
                    (Some(Piece::Literal(before)), Piece::Literal(more)) => before.push_str(&more),
                    (_, piece) => pieces.push(piece),
                }
            }
        };
        while let Some(c) = characters.next() {
            match c {
                '\'' => {
                    let mut literal = String::new();
                    let mut closed = false;
                    while let Some(c) = characters.next() {
                        if c != '\'' {
                            literal.push(c);
                        } else if characters.peek() == Some(&'\'') {
                            characters.next();
                            literal.push('\'');
                        } else {
                            closed = true;
                            break;
                        }
                    }
                    if !closed {
                        return Err(wrong(text));
                    }
                    push(&mut open, Piece::Literal(if literal.is_empty() { "'".to_owned() } else { literal }));
                }
                '[' => open.push(Vec::new()),
                ']' => match open.pop() {
                    Some(inner) if !open.is_empty() => push(&mut open, Piece::Optional(inner)),
                    _ => return Err(wrong(text)),
                },
                '{' | '}' | '#' => return Err(wrong(text)),
                c if c.is_ascii_alphabetic() => {
                    let mut count = 1;
                    while characters.peek() == Some(&c) {
                        characters.next();
                        count += 1;
                    }
                    let most = match c {
                        'y' => 6,
                        'M' | 'L' | 'E' | 'Q' | 'q' | 'G' | 'z' => 4,
                        'D' => 3,
                        'd' | 'h' | 'H' | 'k' | 'K' | 'm' | 's' | 'V' => 2,
                        'a' | 'F' => 1,
                        'S' => 9,
                        'X' | 'x' | 'Z' => 5,
                        'O' => 4,
                        _ => 0,
                    };
                    let odd = c == 'V' && count != 2 || c == 'O' && !matches!(count, 1 | 4);
                    if count > most || odd {
                        return Err(wrong(text));
                    }
                    push(&mut open, Piece::Field(c, count));
                }
                c => push(&mut open, Piece::Literal(c.to_string())),
            }
        }
        match <[Vec<Piece>; 1]>::try_from(open) {
            Ok([pieces]) => Ok(Pattern { pieces }),
            Err(_) => Err(wrong(text)),
        }
    }

    /// Fails where the pattern has what can be written and not read.
    pub(super) fn for_reading(&self, text: &str) -> Result<()> {
        fn holds(pieces: &[Piece]) -> bool {
            pieces.iter().all(|piece| match piece {
                Piece::Field('E' | 'F' | 'Q' | 'q', _) => false,
                Piece::Optional(inner) => holds(inner),
                _ => true,
            })
        }
        if holds(&self.pieces) {
            return Ok(());
        }
        Err(fault("INVALID_DATETIME_PATTERN", format!("'{text}' has letters that are only for writing (E, F, Q)")))
    }

    /// Writes an instant.
    pub(super) fn written(&self, micros: i64, zone: &Zone) -> String {
        let mut out = String::new();
        write_pieces(&self.pieces, micros, zone, &mut out);
        out
    }

    /// Reads text: local microseconds, and the zone if one was named. `None` where the text is not of the form.
    pub(super) fn read(&self, text: &str) -> Option<(i64, Option<Zone>)> {
        let mut fields = Fields::default();
        let rest = read_pieces(&self.pieces, text, &mut fields)?;
        if !rest.is_empty() {
            return None;
        }
        fields.resolved()
    }

    /// Reads text as an instant.
    pub(super) fn instant(&self, text: &str, session: &Zone) -> Option<i64> {
        let (local, zone) = self.read(text)?;
        Some(zone.as_ref().unwrap_or(session).instant(local))
    }
}

fn write_pieces(pieces: &[Piece], micros: i64, zone: &Zone, out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Literal(text) => out.push_str(text),
            Piece::Optional(inner) => write_pieces(inner, micros, zone, out),
            Piece::Field(letter, count) => write_field(*letter, *count, micros, zone, out),
        }
    }
}

fn write_field(letter: char, count: usize, micros: i64, zone: &Zone, out: &mut String) {
    let local = zone.local(micros);
    let Some(date) = i32::try_from(local.div_euclid(DAY_MICROS)).ok().and_then(date_of) else { return };
    let time = local.rem_euclid(DAY_MICROS);
    let seconds = time / 1_000_000;
    let hour = seconds / 3600;
    let padded = |out: &mut String, value: i64| {
        let _ = write!(out, "{value:0count$}");
    };
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    match letter {
        'y' => {
            // The year of the era: there is no year 0.
            let year = if date.year() > 0 { date.year() } else { 1 - date.year() };
            match count {
                2 => padded(out, i64::from(year % 100)),
                _ => {
                    if year > 9999 && count >= 4 {
                        out.push('+');
                    }
                    padded(out, i64::from(year));
                }
            }
        }
        'M' | 'L' => match count {
            3 => out.push_str(short(month_name(date.month()))),
            4 => out.push_str(month_name(date.month())),
            _ => padded(out, i64::from(date.month())),
        },
        'd' => padded(out, i64::from(date.day())),
        'D' => padded(out, i64::from(date.ordinal())),
        'E' if count == 4 => out.push_str(day_name(date)),
        'E' => out.push_str(short(day_name(date))),
        'F' => padded(out, i64::from((date.day() - 1) / 7 + 1)),
        'a' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
        'H' => padded(out, hour),
        'k' => padded(out, if hour == 0 { 24 } else { hour }),
        'K' => padded(out, hour % 12),
        'h' => padded(out, if hour % 12 == 0 { 12 } else { hour % 12 }),
        'm' => padded(out, seconds / 60 % 60),
        's' => padded(out, seconds % 60),
        'S' => {
            let digits = format!("{:06}000", time % 1_000_000);
            out.push_str(digits.get(..count).unwrap_or(&digits));
        }
        'Q' | 'q' => {
            let quarter = i64::from((date.month() - 1) / 3 + 1);
            match count {
                3 => {
                    let _ = write!(out, "Q{quarter}");
                }
                4 => {
                    let ending = match quarter {
                        1 => "st",
                        2 => "nd",
                        3 => "rd",
                        _ => "th",
                    };
                    let _ = write!(out, "{quarter}{ending} quarter");
                }
                _ => padded(out, quarter),
            }
        }
        'G' => out.push_str(match (date.year() > 0, count) {
            (true, 4) => "Anno Domini",
            (false, 4) => "Before Christ",
            (true, _) => "AD",
            (false, _) => "BC",
        }),
        'V' => out.push_str(zone.name()),
        'z' => out.push_str(&zone.abbreviation(micros)),
        _ => write_offset(letter, count, zone.ahead(micros), out),
    }
}

fn write_offset(letter: char, count: usize, ahead: i64, out: &mut String) {
    let sign = if ahead < 0 { '-' } else { '+' };
    let (hours, minutes, seconds) = (ahead.abs() / 3600, ahead.abs() / 60 % 60, ahead.abs() % 60);
    let _ = match (letter, count) {
        ('X', _) | ('Z', 5) if ahead == 0 => write!(out, "Z"),
        ('O', _) | ('Z', 4) if ahead == 0 => write!(out, "GMT"),
        ('O', 1) if minutes == 0 => write!(out, "GMT{sign}{hours}"),
        ('O', 1) => write!(out, "GMT{sign}{hours}:{minutes:02}"),
        ('O', _) | ('Z', 4) => write!(out, "GMT{sign}{hours:02}:{minutes:02}"),
        ('X' | 'x', 1) if minutes == 0 => write!(out, "{sign}{hours:02}"),
        ('X' | 'x', 1 | 2) | ('Z', 1..=3) => write!(out, "{sign}{hours:02}{minutes:02}"),
        ('X' | 'x', 4) if seconds != 0 => write!(out, "{sign}{hours:02}{minutes:02}{seconds:02}"),
        ('X' | 'x', 4) => write!(out, "{sign}{hours:02}{minutes:02}"),
        _ if seconds != 0 => write!(out, "{sign}{hours:02}:{minutes:02}:{seconds:02}"),
        _ => write!(out, "{sign}{hours:02}:{minutes:02}"),
    };
}

/// What has been read.
#[derive(Clone, Default)]
struct Fields {
    year: Option<i32>,
    before_christ: bool,
    month: Option<u32>,
    day: Option<u32>,
    day_of_year: Option<u32>,
    hour: Option<i64>,
    half_hour: Option<i64>,
    afternoon: Option<bool>,
    minute: Option<i64>,
    second: Option<i64>,
    micros: i64,
    zone: Option<Zone>,
}

impl Fields {
    fn resolved(self) -> Option<(i64, Option<Zone>)> {
        let year = match self.year {
            Some(year) if self.before_christ => 1 - year,
            Some(year) => year,
            None => 1970,
        };
        let day = match self.day_of_year {
            Some(ordinal) => days(NaiveDate::from_yo_opt(year, ordinal)?),
            None => days_of(year, self.month.unwrap_or(1), self.day.unwrap_or(1))?,
        };
        let date = date_of(day)?;
        if self.month.is_some_and(|m| m != date.month()) {
            return None;
        }
        let hour = match (self.hour, self.half_hour) {
            (Some(hour), _) => hour,
            (None, Some(half)) => half + if self.afternoon? { 12 } else { 0 },
            (None, None) => 0,
        };
        let time = (hour * 3600 + self.minute.unwrap_or(0) * 60 + self.second.unwrap_or(0)) * 1_000_000 + self.micros;
        Some((i64::from(day) * DAY_MICROS + time, self.zone))
    }
}

/// How many digits a field is read from, at least and at most; `None` for one that is no number.
fn width(piece: &Piece) -> Option<(usize, usize)> {
    let Piece::Field(letter, count) = piece else { return None };
    Some(match (letter, count) {
        ('M' | 'L', 3..) => return None,
        ('y', 2) => (2, 2),
        ('y', count) => (*count, 9),
        ('S', count) => (1, *count),
        ('M' | 'L' | 'd' | 'D' | 'H' | 'h' | 'k' | 'K' | 'm' | 's', 1) => (1, 9),
        ('D', 2) => (2, 3),
        ('M' | 'L' | 'd' | 'D' | 'H' | 'h' | 'k' | 'K' | 'm' | 's', count) => (*count, *count),
        _ => return None,
    })
}

fn read_pieces<'a>(pieces: &[Piece], text: &'a str, fields: &mut Fields) -> Option<&'a str> {
    let mut rest = text;
    for (index, piece) in pieces.iter().enumerate() {
        rest = match piece {
            Piece::Literal(literal) => rest.strip_prefix(literal.as_str())?,
            Piece::Optional(inner) => {
                let mut tried = fields.clone();
                match read_pieces(inner, rest, &mut tried) {
                    Some(after) => {
                        *fields = tried;
                        after
                    }
                    None => rest,
                }
            }
            Piece::Field(letter, count) => match width(piece) {
                Some((least, most)) => {
                    // Digits that the fields right behind must have are theirs.
                    let behind = pieces.get(index + 1..).unwrap_or_default();
                    let reserved: usize = behind
                        .iter()
                        .map_while(width)
                        .map_while(|(least, most)| (least == most).then_some(least))
                        .sum();
                    read_number(*letter, *count, least, most, reserved, rest, fields)?
                }
                None => read_text(*letter, *count, rest, fields)?,
            },
        };
    }
    Some(rest)
}

fn read_number<'a>(
    letter: char,
    count: usize,
    least: usize,
    most: usize,
    reserved: usize,
    text: &'a str,
    fields: &mut Fields,
) -> Option<&'a str> {
    let (signed, text) = match text.strip_prefix('+') {
        Some(rest) if letter == 'y' && count != 2 => (true, rest),
        _ => (false, text),
    };
    let there = text.bytes().take_while(u8::is_ascii_digit).count();
    // More digits than the pattern has letters need a sign.
    let most = if letter == 'y' && count >= 4 && !signed { count } else { most };
    let length = there.min(most).min(there.saturating_sub(reserved).max(least));
    if length < least {
        return None;
    }
    let digits = text.get(..length)?;
    let value: i64 = digits.parse().ok()?;
    let small = u32::try_from(value).ok()?;
    let within = |low: i64, high: i64| (low..=high).contains(&value).then_some(value);
    match letter {
        'y' if count == 2 => fields.year = Some(2000 + i32::try_from(value).ok()?),
        'y' => fields.year = Some(i32::try_from(within(1, 999_999)?).ok()?),
        'M' | 'L' => {
            within(1, 12)?;
            fields.month = Some(small);
        }
        'd' => {
            within(1, 31)?;
            fields.day = Some(small);
        }
        'D' => {
            within(1, 366)?;
            fields.day_of_year = Some(small);
        }
        'H' => fields.hour = Some(within(0, 23)?),
        'k' => fields.hour = Some(within(1, 24)? % 24),
        'h' => fields.half_hour = Some(within(1, 12)? % 12),
        'K' => fields.half_hour = Some(within(0, 11)?),
        'm' => fields.minute = Some(within(0, 59)?),
        's' => fields.second = Some(within(0, 59)?),
        'S' => {
            let micros = format!("{digits:0<6}");
            fields.micros = micros.get(..6)?.parse().ok()?;
        }
        _ => {}
    }
    text.get(length..)
}

/// The index of the name that the text starts with, and what follows it.
fn named<'a>(names: &[&str], short: bool, text: &'a str) -> Option<(u32, &'a str)> {
    names.iter().enumerate().find_map(|(index, name)| {
        let name = if short { name.get(..3)? } else { name };
        let rest = text.strip_prefix(name)?;
        Some((u32::try_from(index).ok()?, rest))
    })
}

fn read_text<'a>(letter: char, count: usize, text: &'a str, fields: &mut Fields) -> Option<&'a str> {
    match letter {
        'M' | 'L' => {
            let (index, rest) = named(&MONTHS, count == 3, text)?;
            fields.month = Some(index + 1);
            Some(rest)
        }
        'a' => {
            for (name, afternoon) in [("AM", false), ("PM", true), ("am", false), ("pm", true)] {
                if let Some(rest) = text.strip_prefix(name) {
                    fields.afternoon = Some(afternoon);
                    return Some(rest);
                }
            }
            None
        }
        'G' => {
            let names = if count == 4 { ["Anno Domini", "Before Christ"] } else { ["AD", "BC"] };
            names.into_iter().zip([false, true]).find_map(|(name, before)| {
                let rest = text.strip_prefix(name)?;
                fields.before_christ = before;
                Some(rest)
            })
        }
        'V' | 'z' => {
            let length = text.find(|c: char| !(c.is_ascii_alphanumeric() || "/_+-:".contains(c))).unwrap_or(text.len());
            let (name, rest) = text.split_at(length);
            fields.zone = Some(Zone::parse(name)?);
            Some(rest)
        }
        'O' => {
            let rest = text.strip_prefix("GMT")?;
            let length = rest.find(|c: char| !(c.is_ascii_digit() || "+-:".contains(c))).unwrap_or(rest.len());
            let (name, rest) = rest.split_at(length);
            fields.zone = Some(if name.is_empty() { Zone::utc() } else { Zone::parse(name)? });
            Some(rest)
        }
        'X' | 'x' | 'Z' => {
            if matches!((letter, count), ('X', _) | ('Z', 5))
                && let Some(rest) = text.strip_prefix('Z')
            {
                fields.zone = Some(Zone::utc());
                return Some(rest);
            }
            let text = if (letter, count) == ('Z', 4) { text.strip_prefix("GMT")? } else { text };
            let colon =
                matches!((letter, count), (_, 3 | 5)) && letter != 'Z' || matches!((letter, count), ('Z', 4 | 5));
            let lengths: &[usize] = match (letter, count) {
                ('X' | 'x', 1) => &[5, 3],
                ('X' | 'x', 4) => &[7, 5],
                ('X' | 'x', 5) | ('Z', 5) => &[9, 6],
                _ if colon => &[6],
                _ => &[5],
            };
            lengths.iter().find_map(|length| {
                let given = text.get(..*length)?;
                if given.contains(':') != (colon && *length > 3) {
                    return None;
                }
                offset(given)?;
                fields.zone = Zone::parse(given);
                text.get(*length..)
            })
        }
        _ => None,
    }
}
