//! The clock of a run: it shows each epoch its wall, and never goes backwards.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::RunOptions;
use crate::error::{Error, Result};
use crate::lake::History;

/// Which wall an epoch gets, and whether there is one to be cut because time has passed.
pub(super) struct RunClock {
    fixed: Option<DateTime<Utc>>,
    /// The last epoch's wall.
    last: i64,
    /// When something next changes.
    due: Option<i64>,
}

impl RunClock {
    /// After what has happened so far.
    pub(super) fn new(history: &History, options: &RunOptions) -> RunClock {
        let open = history.open.as_ref().map(|open| open.wall_micros);
        let last = history.walls.values().copied().chain(open).max().unwrap_or(0);
        RunClock { fixed: options.wall, last, due: history.due_micros }
    }

    /// What it shows, in microseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.fixed.unwrap_or_else(Utc::now).timestamp_micros()
    }

    /// Whether the clock has come to where something changes.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= self.now().max(self.last))
    }

    /// How long it is until something changes; none if nothing does, or if the clock stands.
    pub(super) fn until_due(&self) -> Option<Duration> {
        let due = self.due.filter(|_| self.fixed.is_none())?;
        Some(Duration::from_micros(u64::try_from(due.saturating_sub(self.now())).unwrap_or(0)))
    }

    /// The wall of the next epoch, in microseconds since 1970. A machine's clock that was set back stands still until it has
    /// caught up.
    ///
    /// # Errors
    /// `WALL_GOES_BACK` (user) if a fixed wall is before the last one, or before 1970.
    pub(super) fn next(&self) -> Result<i64> {
        let now = self.now();
        if now < self.last && self.fixed.is_some() {
            let last = DateTime::from_timestamp_micros(self.last).unwrap_or_default();
            return Err(Error::user(
                "WALL_GOES_BACK",
                format!("the wall is to be earlier than {}, which the last epoch had", last.to_rfc3339()),
            )
            .help("the clock never goes backwards: give a later --wall, or none"));
        }
        Ok(now.max(self.last))
    }

    /// An epoch is complete.
    pub(super) fn settle(&mut self, wall: i64, due: Option<i64>) {
        self.last = self.last.max(wall);
        self.due = due;
    }
}
