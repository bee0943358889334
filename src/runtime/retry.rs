//! Failures outside that may pass: which, and how long it is tried again.

use std::io;
use std::time::{Duration, Instant};

use crate::error::{Error, Fault};

/// Pauses of a run that ends when nothing is new.
const SHORT: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
/// The first and the longest pause of a continuous run; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a continuous run goes on failing.
const PATIENCE: Duration = Duration::from_secs(600);

/// Decides whether a run begins again after a failure.
pub(super) struct Retry {
    continuous: bool,
    tries: u32,
    since: Option<Instant>,
}

impl Retry {
    pub(super) fn new(continuous: bool) -> Retry {
        Retry { continuous, tries: 0, since: None }
    }

    /// The pause after which to begin again; none if that does not help, or no longer. `progress` says that epochs were
    /// completed since the last failure.
    pub(super) fn pause(&mut self, error: &Error, progress: bool) -> Option<Duration> {
        if progress {
            (self.tries, self.since) = (0, None);
        }
        let pause = if self.continuous {
            let since = *self.since.get_or_insert_with(Instant::now);
            let pause = (PAUSES.0 * 2u32.saturating_pow(self.tries.min(16))).min(PAUSES.1);
            (may_pass(error) && since.elapsed() < PATIENCE).then_some(pause)
        } else {
            SHORT.get(self.tries as usize).copied().filter(|_| file_changed(error))
        };
        self.tries += 1;
        pause
    }
}

/// A file vanished or changed between listing and reading: another listing shows what is there now.
fn file_changed(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<io::Error>());
    let vanished = source.is_some_and(|e| e.kind() == io::ErrorKind::NotFound);
    error.code() == "SOURCE_FILE_CHANGED" || error.code() == "SOURCE_NOT_READABLE" && vanished
}

/// A disk, a store or a network that may come back. Everything else stays as it is until someone does something.
fn may_pass(error: &Error) -> bool {
    const CODES: [&str; 7] = [
        "STORAGE_FAILED",
        "SCRATCH_FAILED",
        "STORAGE_NOT_ACCESSIBLE",
        "TABLE_NOT_READABLE",
        "SOURCE_NOT_READABLE",
        "SOURCE_NOT_FOUND",
        "SOURCE_FILE_CHANGED",
    ];
    error.fault() == Fault::External && CODES.contains(&error.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_with_growing_pauses_and_nothing_else_is() {
        let failed = Error::external("STORAGE_FAILED", "no");
        let mut retry = Retry::new(true);
        let seconds: Vec<u64> =
            (0..8).filter_map(|_| retry.pause(&failed, false)).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry.pause(&failed, true), Some(PAUSES.0));
        for hopeless in [Error::external("FENCED", "no"), Error::user("X", "no"), Error::internal("no")] {
            assert_eq!(retry.pause(&hopeless, true), None);
        }
        let gone = || Error::external("SOURCE_NOT_READABLE", "no").caused_by(io::Error::from(io::ErrorKind::NotFound));
        let mut once = Retry::new(false);
        assert_eq!(once.pause(&failed, false), None);
        let mut once = Retry::new(false);
        assert_eq!([(); 3].map(|()| once.pause(&gone(), false)), [Some(SHORT[0]), Some(SHORT[1]), None]);
    }
}
