//! Whether the threads of a process get on: one that hangs keeps its process from giving signs of life, so that the others
//! go on without it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A thread that takes no turn for so long hangs. Turns take milliseconds, seconds at worst.
const HANGS: Duration = Duration::from_secs(120);

/// The threads of a process that have to take turns. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pulse {
    begun: Instant,
    threads: Arc<Mutex<Vec<Weak<AtomicU64>>>>,
}

/// A thread that takes turns, until it is dropped.
#[derive(Debug)]
pub struct Turns {
    begun: Instant,
    last: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { begun: Instant::now(), threads: Arc::default() }
    }
}

impl Turns {
    /// Takes a turn.
    pub fn take(&self) {
        self.last.store(millis(self.begun.elapsed()), Ordering::Relaxed);
    }
}

impl Pulse {
    /// Adds a thread, which has just taken a turn.
    pub fn thread(&self) -> Turns {
        let turns = Turns { begun: self.begun, last: Arc::default() };
        turns.take();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&turns.last));
        turns
    }

    /// Whether no thread hangs.
    pub fn is_there(&self) -> bool {
        self.is_within(HANGS)
    }

    fn is_within(&self, limit: Duration) -> bool {
        let now = millis(self.begun.elapsed());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.strong_count() > 0);
        let last = threads.iter().filter_map(Weak::upgrade).map(|last| last.load(Ordering::Relaxed)).min();
        last.is_none_or(|last| now.saturating_sub(last) <= millis(limit))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_that_hangs_is_enough() {
        let pulse = Pulse::default();
        assert!(pulse.is_within(Duration::ZERO));
        let (a, b) = (pulse.thread(), pulse.thread());
        while pulse.is_within(Duration::from_millis(5)) {
            a.take();
        }
        b.take();
        a.take();
        assert!(pulse.is_within(Duration::from_secs(60)));
        b.last.store(0, Ordering::Relaxed);
        while pulse.begun.elapsed() < Duration::from_millis(20) {
            a.take();
        }
        assert!(!pulse.is_within(Duration::from_millis(10)));
        drop(b);
        a.take();
        assert!(pulse.is_within(Duration::from_secs(60)));
    }
}
