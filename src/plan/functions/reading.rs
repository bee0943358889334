//! Dates and times in texts of files: by Spark's patterns, or as Spark's casts read them.

use std::rc::Rc;

use super::cast::day_of;
use super::parse;
use super::pattern::{Pattern, compiled};
use super::zone::Zone;

/// How dates and times stand in the texts of a source. Of one thread.
pub(crate) struct Instants {
    date: Option<Rc<Pattern>>,
    timestamp: Option<Rc<Pattern>>,
    local: Option<Rc<Pattern>>,
    zone: Zone,
}

impl Instants {
    /// With patterns for dates, timestamps and timestamps without a time zone, and the zone of what names none.
    ///
    /// # Errors
    /// A pattern that is none, in words.
    pub(crate) fn new(
        date: Option<&str>,
        timestamp: Option<&str>,
        local: Option<&str>,
        zone: &Zone,
    ) -> Result<Self, String> {
        let made = |text: Option<&str>| -> Result<Option<Rc<Pattern>>, String> {
            let Some(text) = text else { return Ok(None) };
            let wrong = || format!("'{text}' is no pattern by which dates or times can be read");
            let pattern = compiled(text).map_err(|_| wrong())?;
            pattern.for_reading(text).map_err(|_| wrong())?;
            Ok(Some(pattern))
        };
        Ok(Instants { date: made(date)?, timestamp: made(timestamp)?, local: made(local)?, zone: zone.clone() })
    }

    /// Days since 1970.
    pub(crate) fn date(&self, text: &str) -> Option<i32> {
        match &self.date {
            Some(pattern) => pattern.read(text).map(|(local, _)| day_of(local)),
            None => parse::date(text),
        }
    }

    /// Microseconds since 1970 in UTC.
    pub(crate) fn timestamp(&self, text: &str) -> Option<i64> {
        match &self.timestamp {
            Some(pattern) => pattern.instant(text, &self.zone),
            None => parse::timestamp(text, &self.zone),
        }
    }

    /// Microseconds since 1970 of what a clock on the wall shows; a text that names a zone is none.
    pub(crate) fn local(&self, text: &str) -> Option<i64> {
        let (local, zone) = match &self.local {
            Some(pattern) => pattern.read(text)?,
            None => parse::local_timestamp(text)?,
        };
        zone.is_none().then_some(local)
    }
}

/// A double as Java reads one.
pub(crate) fn double(text: &str) -> Option<f64> {
    parse::double(text)
}
