//! Time zones by the names and offsets that Spark takes.

use std::fmt;
use std::hash::{Hash, Hasher};

use chrono::{FixedOffset, LocalResult, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rules {
    Named(Tz),
    Fixed(i32),
}

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone {
    name: String,
    rules: Rules,
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.rules == other.rules && self.name == other.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Zone {
    /// Universal time.
    pub fn utc() -> Zone {
        Zone { name: "UTC".to_owned(), rules: Rules::Fixed(0) }
    }

    /// A zone by a name such as `Europe/Berlin`, an abbreviation such as `PST`, or an offset such as `+02:00`,
    /// `UTC+2` or `Z`. `None` where there is no such zone.
    pub fn parse(name: &str) -> Option<Zone> {
        let zone = |rules| Some(Zone { name: name.to_owned(), rules });
        if let Some(seconds) = offset(name) {
            return zone(Rules::Fixed(seconds));
        }
        for prefix in ["UTC", "GMT", "UT"] {
            if let Some(rest) = name.strip_prefix(prefix)
                && let Some(seconds) = if rest.is_empty() { Some(0) } else { offset(rest) }
            {
                return zone(Rules::Fixed(seconds));
            }
        }
        let known = match name {
            "ACT" => "Australia/Darwin",
            "AET" => "Australia/Sydney",
            "AST" => "America/Anchorage",
            "CST" => "America/Chicago",
            "CTT" => "Asia/Shanghai",
            "ECT" => "Europe/Paris",
            "IST" => "Asia/Kolkata",
            "JST" => "Asia/Tokyo",
            "PST" => "America/Los_Angeles",
            other => other,
        };
        known.parse::<Tz>().ok().and_then(|tz| zone(Rules::Named(tz)))
    }

    /// Name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether local time is universal time.
    pub fn is_utc(&self) -> bool {
        matches!(self.rules, Rules::Fixed(0) | Rules::Named(Tz::UTC | Tz::Etc__UTC))
    }

    /// Whether the zone is an offset.
    pub fn is_fixed(&self) -> bool {
        matches!(self.rules, Rules::Fixed(_))
    }

    /// Seconds by which local time is ahead at an instant in microseconds.
    pub fn ahead(&self, micros: i64) -> i64 {
        match self.rules {
            Rules::Fixed(seconds) => i64::from(seconds),
            Rules::Named(tz) => chrono::DateTime::<Utc>::from_timestamp_micros(micros)
                .map_or(0, |at| i64::from(tz.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc())),
        }
    }

    /// Local time of an instant, both in microseconds; it stays where it is at the ends of what can be told.
    pub fn local(&self, micros: i64) -> i64 {
        micros.saturating_add(self.ahead(micros) * 1_000_000)
    }

    /// The instant of a local time, both in microseconds: the earlier one where there are two; where a clock was put
    /// forward over it, the time as if it had not been.
    pub fn instant(&self, local: i64) -> i64 {
        match self.rules {
            Rules::Fixed(seconds) => local.saturating_sub(i64::from(seconds) * 1_000_000),
            Rules::Named(tz) => {
                let Some(naive) = chrono::DateTime::<Utc>::from_timestamp_micros(local).map(|at| at.naive_utc()) else {
                    return local;
                };
                let ahead = match tz.offset_from_local_datetime(&naive) {
                    LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => offset.fix(),
                    LocalResult::None => before(tz, naive),
                };
                local.saturating_sub(i64::from(ahead.local_minus_utc()) * 1_000_000)
            }
        }
    }

    /// Short name of the zone at an instant, as in `CET`.
    pub fn abbreviation(&self, micros: i64) -> String {
        match self.rules {
            Rules::Named(tz) => chrono::DateTime::<Utc>::from_timestamp_micros(micros)
                .map_or_else(|| self.name.clone(), |at| at.with_timezone(&tz).format("%Z").to_string()),
            Rules::Fixed(_) => self.name.clone(),
        }
    }
}

/// The offset in force a day before.
fn before(tz: Tz, naive: NaiveDateTime) -> FixedOffset {
    match tz.offset_from_local_datetime(&(naive - chrono::Duration::days(1))) {
        LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => offset.fix(),
        LocalResult::None => tz.offset_from_utc_datetime(&naive).fix(),
    }
}

/// Seconds of an offset: `Z`, `+h`, `+hh`, `+hh:mm`, `+hhmm`, `+hh:mm:ss`.
pub(super) fn offset(text: &str) -> Option<i32> {
    if text == "Z" {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let rest = text.get(1..)?;
    let parts: Vec<&str> = if rest.contains(':') {
        rest.split(':').collect()
    } else {
        match rest.len() {
            1 | 2 => vec![rest],
            4 => vec![rest.get(..2)?, rest.get(2..)?],
            6 => vec![rest.get(..2)?, rest.get(2..4)?, rest.get(4..)?],
            _ => return None,
        }
    };
    if parts.len() > 3 {
        return None;
    }
    let mut seconds = 0;
    for (index, part) in parts.iter().enumerate() {
        if part.is_empty() || part.len() > 2 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let value: i32 = part.parse().ok()?;
        if value > if index == 0 { 18 } else { 59 } {
            return None;
        }
        seconds += value * [3600, 60, 1].get(index)?;
    }
    (seconds <= 18 * 3600).then_some(sign * seconds)
}
