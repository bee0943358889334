//! Runs that go on: when they look outside again, and when they end.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::Utc;
use crossbeam_channel::{Receiver, Sender, bounded, select};

use super::watch::{Notice, Watch};
use crate::lake::FileId;
use crate::sources::Landing;

/// A file that was modified longer ago than this is whole.
pub(super) const SETTLED: Duration = Duration::from_secs(2);
/// Between two looks at a file that may still be being written.
const LOOK: Duration = Duration::from_millis(500);
/// Looks at everything take one part of so many of the time, where nothing tells of changes, and where the system does.
const SHARES: (u32, u32) = (20, 1000);

/// How a run goes on until it is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Continuous {
    /// How often everything is looked at: tables of others, and folders of which the system does not tell what lands. Less
    /// often where looking is slow: it takes a twentieth of the time at most.
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

    /// Wakes whoever waits, to look at what there is.
    pub(super) fn wake(&self) {
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

/// When to look outside, and at what.
pub(super) struct Follow {
    interval: Duration,
    places: Vec<Landing>,
    watch: Watch,
    whole: Whole,
    /// There are tables of others, of which nothing tells.
    tables: bool,
    /// When they were last looked at, and what that took.
    polled: (Instant, Duration),
    /// What the system has told is not all that there is to look at.
    everything: bool,
    stale: bool,
    looked: Instant,
    cost: Duration,
}

/// What a look is at.
pub(super) enum Look<'a> {
    /// All that is there, whole or not.
    AsItIs,
    /// All that is there; files that may still be being written are left for another look.
    Everything(&'a mut Whole),
    /// Files that the system has told of, and whether tables of others have another version.
    Told(&'a mut Whole),
}

impl Follow {
    pub(super) fn new(continuous: Continuous, places: Vec<Landing>, tables: bool) -> Follow {
        Follow {
            interval: continuous.interval,
            watch: Watch::new(places.clone()),
            places,
            whole: Whole::default(),
            tables,
            polled: (Instant::now(), Duration::ZERO),
            everything: true,
            stale: false,
            looked: Instant::now(),
            cost: Duration::ZERO,
        }
    }

    /// Waits until there may be something new: a file landed, it is time to look, or the clock is due. False if the run is
    /// to stop.
    pub(super) fn wait(&mut self, stop: &Stop, due: Option<Duration>) -> bool {
        let share = if self.watch.complete { SHARES.1 } else { SHARES.0 };
        let period = self.interval.max(self.cost.saturating_mul(share));
        let mut idle = period.saturating_sub(self.looked.elapsed());
        if self.tables {
            let (polled, cost) = self.polled;
            let period = self.interval.max(cost.saturating_mul(SHARES.0));
            idle = idle.min(period.saturating_sub(polled.elapsed()));
        }
        if self.whole.is_waiting() {
            idle = idle.min(LOOK);
        }
        if self.everything {
            idle = Duration::ZERO;
        }
        let first = select! {
            recv(stop.bell.1) -> _ => None,
            recv(self.watch.notices) -> notice => Some(notice.unwrap_or(Notice::Lost)),
            default(due.map_or(idle, |due| idle.min(due))) => None,
        };
        for notice in first.into_iter().chain(self.watch.notices.try_iter()) {
            match notice {
                Notice::Whole(path) => drop(self.whole.notices.insert(path)),
                Notice::Anything => self.everything = true,
                Notice::Lost => (self.everything, self.stale) = (true, true),
            }
        }
        self.everything |= self.looked.elapsed() >= period;
        !stop.is_requested()
    }

    /// Looks.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(Look<'_>) -> T) -> T {
        if std::mem::take(&mut self.stale) {
            self.watch = Watch::new(self.places.clone());
        }
        let begun = Instant::now();
        let seen = if std::mem::take(&mut self.everything) {
            self.looked = Instant::now();
            let seen = look(Look::Everything(&mut self.whole));
            self.cost = self.looked.elapsed();
            seen
        } else {
            look(Look::Told(&mut self.whole))
        };
        self.polled = (begun, begun.elapsed());
        self.whole.seen();
        seen
    }

    /// Looks at everything, whatever was told.
    pub(super) fn look_at_everything<T>(&mut self, look: impl FnOnce(Look<'_>) -> T) -> T {
        self.everything = true;
        self.look(look)
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
    /// Files of which something is known: they were told of, or were not whole.
    pub(super) fn known(&self) -> impl Iterator<Item = &Path> {
        let waiting = self.before.keys().map(Path::new).filter(|path| !self.notices.contains(*path));
        self.notices.iter().map(PathBuf::as_path).chain(waiting)
    }

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
                || self.notices.contains(Path::new(&file.path));
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
    fn tables_of_others_do_not_wait_until_everything_is_looked_at() {
        let mut follow = Follow::new(Continuous { interval: Duration::from_millis(1) }, Vec::new(), true);
        follow.everything = false;
        // As a look that takes its time: the next one at everything is long off.
        follow.cost = Duration::from_secs(600);
        assert!(follow.wait(&Stop::default(), None));
        assert!(!follow.everything);
    }

    #[test]
    fn where_the_system_tells_nothing_everything_is_looked_at_once_an_interval() {
        let interval = Duration::from_millis(30);
        let mut follow = Follow::new(Continuous { interval }, Vec::new(), false);
        follow.watch = Watch::blind();
        let (begin, mut all, mut told) = (Instant::now(), 0, 0);
        while all < 5 {
            assert!(follow.wait(&Stop::default(), None));
            follow.look(|look| match look {
                Look::Everything(_) => all += 1,
                _ => told += 1,
            });
        }
        assert!(begin.elapsed() >= interval * 4);
        // It sleeps in between.
        assert!(told <= 5, "woke {told} times for nothing");
    }

    #[test]
    fn who_waits_is_woken_by_a_request_to_stop() {
        let stop = Stop::default();
        let mut follow = Follow::new(Continuous { interval: Duration::from_secs(600) }, Vec::new(), true);
        follow.everything = false;
        let asking = stop.clone();
        let asked = std::thread::spawn(move || asking.request());
        assert!(!follow.wait(&stop, None));
        asked.join().unwrap();
        assert!(!stop.pause(Duration::from_secs(600)));
    }
}
