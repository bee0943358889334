//! Rows whose meaning changes as the clock goes on.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::consolidate_from;
use crate::epochs::{Apply, Rows, Second, Shared, binary, shared};
use crate::row::{Row, stable_hash};
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{Bytewise, KeyedState, Run, Shelf};
use crate::{Diff, Epoch};

/// A point on the clock, in whatever unit the caller counts from where it begins.
pub type Moment = i64;

/// Where the clock begins: it never shows an earlier moment.
const ORIGIN: Moment = 0;

/// A row and the moments at which its meaning changes, ascending, distinct, and after the clock's
/// origin, zero. The moments are a function of the row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timed {
    /// The row.
    pub row: Row,
    /// From each of these moments on, until the next one, the row means one thing.
    pub moments: Vec<Moment>,
}

impl Timed {
    /// The moment that stands for all those at which the row means what it means at `now`: the last
    /// boundary that has been reached, or the clock's origin.
    #[must_use]
    pub fn standing(&self, now: Moment) -> Moment {
        let passed = self.moments.partition_point(|at| *at <= now);
        passed.checked_sub(1).and_then(|last| self.moments.get(last)).copied().unwrap_or(ORIGIN)
    }

    /// The next boundary after `now`.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<Moment> {
        self.moments.get(self.moments.partition_point(|at| *at <= now)).copied()
    }
}

/// A row at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Standing {
    /// The row.
    pub row: Row,
    /// What it stood at before, if only the clock has moved it.
    pub before: Option<Moment>,
    /// What it stands at ([`Timed::standing`]).
    pub now: Moment,
}

/// [`Clock::clock`] on a collection of rows with their boundaries.
pub trait Clock<'s> {
    /// Each row with the moment at which it stands, corrected as the clock passes its boundaries.
    ///
    /// `ticks` says for each worker what the clock shows in an epoch; it must have one for every
    /// worker in every epoch in which rows come. The clock never goes backwards: an earlier moment
    /// counts as the one before it. In an epoch the clock moves first. Rows of which it passes a
    /// boundary come out as one item that names both moments, which stands for taking the row back
    /// as it was and adding it as it is. Then come the epoch's own rows, as they stand now.
    ///
    /// State: the rows that have a boundary before them. Cost: O(log n) for each of those that
    /// comes, goes or falls due, a part at a time while other operators go on; nothing for the others.
    #[must_use]
    fn clock(self, ticks: Rows<'s, (u64, Moment)>, name: &str) -> Rows<'s, Standing>
    where
        Self: Sized,
    {
        self.clock_with(ticks, name, shared(ClockState::new()))
    }

    /// [`Clock::clock`] on state that the caller holds too, to restore it, to snapshot it, or to
    /// see what is due next.
    #[must_use]
    fn clock_with(self, ticks: Rows<'s, (u64, Moment)>, name: &str, state: Shared<ClockState>) -> Rows<'s, Standing>;
}

impl<'s> Clock<'s> for Rows<'s, Timed> {
    fn clock_with(self, ticks: Rows<'s, (u64, Moment)>, name: &str, state: Shared<ClockState>) -> Rows<'s, Standing> {
        let hash = |timed: &Timed| stable_hash(&timed.row);
        binary(self, ticks, Second::ForAll, name, hash, |(worker, _): &(u64, Moment)| *worker, state)
    }
}

/// Rows with boundaries ahead: by the next one, then by row.
type Waiting = BTreeMap<(Moment, Row), (Vec<Moment>, Diff)>;

/// The state of [`Clock::clock`].
#[derive(Debug)]
pub struct ClockState {
    now: Moment,
    waiting: Waiting,
    bytes: usize,
    /// Rows of the epoch at hand, which come when the clock has moved.
    arrived: Vec<(Timed, Diff)>,
}

impl Default for ClockState {
    fn default() -> Self {
        ClockState { now: ORIGIN, waiting: Waiting::new(), bytes: 0, arrived: Vec::new() }
    }
}

fn size(row: &Row, moments: &[Moment]) -> usize {
    // An entry of the map, the row's bytes with their count, the moments.
    96 + row.len() + std::mem::size_of_val(moments)
}

impl ClockState {
    /// Empty state, at the clock's origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next moment at which something changes.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        self.waiting.keys().next().map(|(due, _)| *due)
    }

    /// Moves the clock to `wall`, applies the changes of one epoch, and appends what they do to
    /// `out`.
    pub fn apply(&mut self, rows: Vec<(Timed, Diff)>, wall: Option<Moment>, out: &mut Vec<(Standing, Diff)>) {
        self.advance(rows, wall);
        while self.more(out, usize::MAX) {}
    }

    fn advance(&mut self, rows: Vec<(Timed, Diff)>, wall: Option<Moment>) {
        self.now = self.now.max(wall.unwrap_or(self.now));
        self.arrived = rows;
    }

    fn keep(&mut self, timed: Timed, diff: Diff) {
        let Some(due) = timed.due(self.now) else { return };
        let Timed { row, moments } = timed;
        let bytes = size(&row, &moments);
        match self.waiting.entry((due, row.detached())) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((moments, diff));
                self.bytes += bytes;
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                entry.get_mut().1 += diff;
                if entry.get().1 == 0 {
                    entry.remove();
                    self.bytes -= bytes;
                }
            }
        }
    }
}

impl Apply<Timed, (u64, Moment), Standing> for ClockState {
    fn portion(
        &mut self,
        _: Epoch,
        rows: Vec<(Timed, Diff)>,
        ticks: Vec<((u64, Moment), Diff)>,
        _: &mut Vec<(Standing, Diff)>,
    ) {
        self.advance(rows, ticks.iter().map(|((_, wall), _)| *wall).max());
    }

    fn more(&mut self, out: &mut Vec<(Standing, Diff)>, fuel: usize) -> bool {
        for _ in 0..fuel {
            let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= self.now) else {
                let mut rows = std::mem::take(&mut self.arrived);
                consolidate_from(&mut rows, 0);
                for (timed, diff) in rows {
                    let now = timed.standing(self.now);
                    out.push((Standing { row: timed.row.clone(), before: None, now }, diff));
                    self.keep(timed, diff);
                }
                return false;
            };
            let ((due, row), (moments, count)) = first.remove_entry();
            self.bytes -= size(&row, &moments);
            let timed = Timed { row, moments };
            let before = Some(timed.standing(due - 1));
            out.push((Standing { row: timed.row.clone(), before, now: timed.standing(self.now) }, count));
            self.keep(timed, count);
        }
        true
    }
}

impl State for ClockState {
    fn kind(&self) -> &'static str {
        "clock"
    }

    /// Cost: a sort of the whole state, which is in the order in which rows fall due.
    fn snapshot(&mut self) -> Snapshot {
        let mut waiting: Vec<(u64, &Row, &[Moment], i64)> = self
            .waiting
            .iter()
            .map(|((_, row), (moments, count))| (stable_hash(row), row, moments.as_slice(), *count as i64))
            .collect();
        waiting.sort_unstable();
        let mut run = Run::default();
        for (_, row, moments, count) in waiting {
            let order: Vec<u8> = moments.iter().flat_map(|moment| moment.to_be_bytes()).collect();
            run.push(&order, b"", count);
            run.close_key(row);
        }
        let mut rows = KeyedState::<Bytewise>::new();
        rows.load(run);
        let mut now = KeyedState::<Bytewise>::new();
        now.at(&Row::default()).add(&self.now.to_be_bytes(), 1);
        Snapshot::new(self.kind(), vec![rows.freeze(), now.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [rows, now] = snapshot.expect(self.kind())?;
        let mut clock = KeyedState::<Bytewise>::new();
        clock.thaw(now, Share::ALL)?;
        let shown = clock.at(&Row::default()).last().and_then(|entry| moments(entry.order)?.first().copied());
        let now = shown.ok_or(SnapshotError::Damaged)?;
        let mut state = KeyedState::<Bytewise>::new();
        state.thaw(rows, share)?;
        let mut waiting = Vec::new();
        for row in state.keys() {
            for entry in state.at(&row).scan() {
                let moments = moments(entry.order).ok_or(SnapshotError::Damaged)?;
                let ahead = moments.last().is_some_and(|last| *last > now.max(ORIGIN));
                if !ahead || !moments.is_sorted_by(|a, b| a < b) {
                    return Err(SnapshotError::Damaged);
                }
                waiting.push((Timed { row: row.clone(), moments }, entry.count as Diff));
            }
        }
        self.now = self.now.max(now);
        waiting.into_iter().for_each(|(timed, count)| self.keep(timed, count));
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        // What waits is in the order in which it falls due, in memory.
        let _ = shelf;
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Moments as a snapshot has them.
fn moments(bytes: &[u8]) -> Option<Vec<Moment>> {
    let (moments, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| moments.iter().map(|moment| Moment::from_be_bytes(*moment)).collect())
}
