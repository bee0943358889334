//! Runs that go on: when they look outside again, and when they end.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::Utc;
use crossbeam_channel::{Receiver, Sender, bounded, select};

use super::watch::Watch;
use crate::lake::FileId;

/// A file that was modified longer ago than this is whole.
const SETTLED: Duration = Duration::from_secs(2);
/// Between two looks at a file that may still be being written.
const LOOK: Duration = Duration::from_millis(500);
/// A look outside may take this share of the time, where nothing tells of changes.
const SHARE: u32 = 100;

/// How a run goes on until it is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Continuous {
    /// Looks outside begin at least this far apart. What tells of no changes is looked at as often, or less often where
    /// looking is slow: it takes a hundredth of the time at most.
    pub interval: Duration,
}

/// Asks a run to end after the epoch at hand. Cheap to clone; for one run.
#[derive(Clone, Debug)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    bell: (Sender<()>, Receiver<()>),
}

impl Default for Stop {
    fn default() -> Self {
        Stop { requested: Arc::default(), bell: bounded(1) }
    }
}

impl Stop {
    /// Asks.
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        let _ = self.bell.0.try_send(());
    }

    /// Whether someone has asked.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Waits; false as soon as someone asks.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        if !self.is_requested() && !pause.is_zero() {
            let _ = self.bell.1.recv_timeout(pause);
        }
        !self.is_requested()
    }
}

/// When to look outside.
pub(super) struct Follow {
    interval: Duration,
    watch: Watch,
    /// Which files are whole.
    pub(super) whole: Whole,
    looked: Instant,
    cost: Duration,
}

impl Follow {
    pub(super) fn new(continuous: Continuous, folders: &[PathBuf]) -> Follow {
        let watch = Watch::new(folders);
        Follow {
            interval: continuous.interval,
            watch,
            whole: Whole::default(),
            looked: Instant::now(),
            cost: Duration::ZERO,
        }
    }

    /// Waits until there may be something new: a file landed, it is time to look, or the clock is due. False if the run is
    /// to stop.
    pub(super) fn wait(&mut self, stop: &Stop, due: Option<Duration>) -> bool {
        if !stop.pause((self.looked + self.interval).saturating_duration_since(Instant::now())) {
            return false;
        }
        let mut idle = (self.looked + self.interval.max(self.cost * SHARE)).saturating_duration_since(Instant::now());
        if self.whole.is_waiting() {
            idle = idle.min(LOOK);
        }
        let idle = due.map_or(idle, |due| idle.min(due));
        select! {
            recv(stop.bell.1) -> _ => {}
            recv(self.watch.notices) -> notice => self.whole.notices.extend(notice),
            default(idle) => {}
        }
        self.whole.notices.extend(self.watch.notices.try_iter());
        !stop.is_requested()
    }

    /// Looks.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(&mut Whole) -> T) -> T {
        self.looked = Instant::now();
        let seen = look(&mut self.whole);
        self.whole.seen();
        self.cost = self.looked.elapsed();
        seen
    }
}

/// Tells files that are whole from those that may still be being written. A file is whole if its writer has closed it or
/// moved it into place, as far as the system tells; if it was modified some seconds ago; or if it is the same in two looks.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Files that were closed or moved into place.
    notices: HashSet<PathBuf>,
    before: HashMap<String, (FileId, Instant)>,
    now: HashMap<String, (FileId, Instant)>,
}

impl Whole {
    /// Those that are whole. The others are kept in mind.
    pub(super) fn of(&mut self, found: Vec<FileId>) -> Vec<FileId> {
        let settled = Utc::now().timestamp_micros() - i64::try_from(SETTLED.as_micros()).unwrap_or(0);
        let is_whole = |file: &FileId| {
            let since = match self.before.get(&file.path) {
                Some((before, since)) if before == file => *since,
                _ => Instant::now(),
            };
            let whole = file.modified_micros < settled
                || since.elapsed() >= LOOK
                || self.notices.contains(std::path::Path::new(&file.path));
            if !whole {
                self.now.insert(file.path.clone(), (file.clone(), since));
            }
            whole
        };
        found.into_iter().filter(is_whole).collect()
    }

    fn is_waiting(&self) -> bool {
        !self.before.is_empty()
    }

    /// A look is over.
    fn seen(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.notices.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64, age: Duration) -> FileId {
        let modified_micros = Utc::now().timestamp_micros() - i64::try_from(age.as_micros()).unwrap();
        FileId { path: path.into(), size, modified_micros }
    }

    #[test]
    fn a_file_waits_while_it_changes() {
        let mut whole = Whole::default();
        let old = file("old", 1, SETTLED * 2);
        let mut new = file("new", 1, Duration::ZERO);
        let moved = file("moved", 1, Duration::ZERO);
        whole.notices.insert(PathBuf::from("moved"));
        assert_eq!(whole.of(vec![old.clone(), new.clone(), moved.clone()]), [old, moved]);
        whole.seen();
        assert!(whole.is_waiting());
        // It grows between two looks that are far enough apart.
        whole.before.values_mut().for_each(|(_, since)| *since -= LOOK);
        new.size = 2;
        assert!(whole.of(vec![new.clone()]).is_empty());
        whole.seen();
        assert!(whole.of(vec![new.clone()]).is_empty(), "too soon");
        whole.seen();
        whole.before.values_mut().for_each(|(_, since)| *since -= LOOK);
        assert_eq!(whole.of(vec![new.clone()]), [new]);
        whole.seen();
        assert!(!whole.is_waiting());
    }

    #[test]
    fn who_waits_is_woken_by_a_request_to_stop() {
        let stop = Stop::default();
        let mut follow = Follow::new(Continuous { interval: Duration::from_secs(600) }, &[]);
        let asking = stop.clone();
        let asked = std::thread::spawn(move || asking.request());
        assert!(!follow.wait(&stop, None));
        asked.join().unwrap();
        assert!(!stop.pause(Duration::from_secs(600)));
    }
}
