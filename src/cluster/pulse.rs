//! Whether the threads of a process get on: one that hangs keeps its process from giving signs of life, so that the others
//! go on without it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A thread that takes no turn for so long hangs, unless said otherwise. A turn is a batch of rows at most: milliseconds, a
/// second at worst.
pub const HANGS: Duration = Duration::from_secs(30);

thread_local! {
    static OWN: RefCell<Option<Turns>> = const { RefCell::new(None) };
}

/// The threads of a process that have to take turns. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pulse {
    begun: Instant,
    limit: Duration,
    threads: Arc<Mutex<Vec<Weak<AtomicU64>>>>,
}

/// A thread that takes turns, until it is dropped.
#[derive(Debug)]
struct Turns {
    begun: Instant,
    last: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse::new(HANGS)
    }
}

impl Turns {
    fn take(&self) {
        self.last.store(millis(self.begun.elapsed()), Ordering::Relaxed);
    }
}

/// Takes a turn on this thread, if it is one that [`Pulse::watch`]es. In the midst of long work this says that it gets on.
pub fn turn() {
    OWN.with_borrow(|own| own.iter().for_each(Turns::take));
}

/// A thread is watched until this is dropped.
#[derive(Debug)]
pub struct Watched(());

impl Drop for Watched {
    fn drop(&mut self) {
        OWN.set(None);
    }
}

impl Pulse {
    /// With threads that hang when they have taken no turn for `limit`.
    pub fn new(limit: Duration) -> Pulse {
        Pulse { begun: Instant::now(), limit, threads: Arc::default() }
    }

    /// Watches this thread: it hangs if it does not take a [`turn`] in time.
    pub fn watch(&self) -> Watched {
        OWN.set(Some(self.thread()));
        Watched(())
    }

    /// Adds a thread, which has just taken a turn.
    fn thread(&self) -> Turns {
        let turns = Turns { begun: self.begun, last: Arc::default() };
        turns.take();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&turns.last));
        turns
    }

    /// Whether no thread hangs.
    pub fn is_there(&self) -> bool {
        self.is_within(self.limit)
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
    fn turns_in_the_midst_of_work_count_for_their_own_thread() {
        let pulse = Pulse::new(Duration::from_millis(40));
        turn();
        let watched = pulse.watch();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(120) {
            turn();
            assert!(pulse.is_there());
        }
        // Another thread's turns are its own.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while pulse.is_there() {
                    turn();
                }
            });
        });
        drop(watched);
        assert!(pulse.is_there());
    }

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
