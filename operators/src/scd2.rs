//! Slowly changing dimensions, type 2: the history of each key.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Group, consolidate_from};
use crate::epochs::{Rows, Shared, shared, unary};
use crate::event::{ByPrecedence, Change, Event, above, below, encode, precedence, winner_at};
use crate::row::{Row, stable_hash};
use crate::snapshot::{self, SnapshotError};
use crate::state::{KeyMut, KeyedState, Parts, PartsRef, Run};
use crate::{Diff, Epoch};

/// A stretch of a key's history with one value: `[start, end)` in sequence order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Sequence of the first change of the run.
    pub start: Row,
    /// Sequence of the change that ended it; `None` while it lasts.
    pub end: Option<Row>,
    /// Value of the last change of the run.
    pub value: Row,
}

/// [`Scd2::scd2`] on a collection of changes by key.
pub trait Scd2<'s> {
    /// The history of each key.
    ///
    /// The input is a multiset of changes; a change counts once however often it is in there, and
    /// retractions are as normal as insertions. At one key and sequence one change wins: a delete
    /// over upserts, among upserts the greatest by (rank, tracked, value). The losers contribute
    /// nothing until the winner is retracted. Among the winners in sequence order, a maximal block
    /// of consecutive upserts with equal `tracked` is one version. A delete shows as the end of
    /// the version before it, or not at all.
    ///
    /// The result depends on the multiset alone, never on the order or the epochs in which it
    /// came. The changes of an epoch are net: at most one record a version.
    ///
    /// `ties` is called for each epoch in which the number of changes that lose to another one of
    /// the same key and sequence moved, with the net movement on this worker.
    ///
    /// State: every distinct change, and the sequence at which each run begins. Cost of a change:
    /// O(log n), whatever the length of the key's history or of its runs. The first changes of a
    /// key cost a sort and one pass.
    #[must_use]
    fn scd2(self, name: &str, ties: impl FnMut(Epoch, i64) + 'static) -> Rows<'s, (Row, Version)>
    where
        Self: Sized,
    {
        self.scd2_with(name, shared(Scd2State::new()), ties)
    }

    /// [`Scd2::scd2`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn scd2_with(
        self,
        name: &str,
        state: Shared<Scd2State>,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Version)>;
}

impl<'s> Scd2<'s> for Rows<'s, (Row, Change)> {
    fn scd2_with(
        self,
        name: &str,
        state: Shared<Scd2State>,
        mut ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Version)> {
        unary(
            self,
            name,
            |(key, _)| stable_hash(key),
            move |epoch, changes, out| {
                let moved = state.borrow_mut().apply(&changes, out);
                if moved != 0 {
                    ties(epoch, moved);
                }
            },
        )
    }
}

/// The state of [`Scd2::scd2`].
#[derive(Debug, Default)]
pub struct Scd2State {
    /// All changes; the last one of a sequence is its winner.
    events: KeyedState<ByPrecedence>,
    /// The sequences whose winner differs in `tracked` from the winner before it, where a delete
    /// and the absence of a winner are alike.
    heads: KeyedState,
    scratch: Scratch,
}

/// Bounds for searching, kept to reuse their allocation.
#[derive(Debug, Default)]
struct Scratch {
    event: Vec<u8>,
    below: Vec<u8>,
    above: Vec<u8>,
    /// The winner of a sequence before the change, encoded.
    old: Vec<u8>,
}

/// A piece of history around the sequence that changes: `tracked` is `None` where there is no row.
#[derive(Clone, Copy)]
struct Piece<'a> {
    start: &'a [u8],
    tracked: Option<&'a [u8]>,
    value: &'a [u8],
}

impl<'a> Piece<'a> {
    fn of(event: Event<'a>) -> Self {
        Piece {
            start: event.sequence,
            tracked: event.tracked(),
            value: event.value,
        }
    }
}

impl Scd2State {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_overlay(limit: usize) -> Self {
        Scd2State {
            events: KeyedState::with_overlay(limit),
            heads: KeyedState::with_overlay(limit),
            scratch: Scratch::default(),
        }
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.events.bytes() + self.heads.bytes()
    }

    /// Applies the changes of one epoch, appends what it does to the versions to `out`, and
    /// returns by how much the number of losing changes moved.
    pub fn apply(
        &mut self,
        changes: &[((Row, Change), Diff)],
        out: &mut Vec<((Row, Version), Diff)>,
    ) -> i64 {
        let mut ties = 0;
        let mut events = Run::default();
        let mut heads = Run::default();
        Batch::new(changes).for_each(precedence, |key, group| {
            ties += if self.events.knows(key) {
                let start = out.len();
                let ties = self.change(key, group, out);
                consolidate_from(out, start);
                ties
            } else {
                let ties = begin(
                    key,
                    group,
                    &mut self.scratch.event,
                    &mut events,
                    &mut heads,
                    out,
                );
                events.close_key(key);
                heads.close_key(key);
                ties
            };
        });
        self.events.load(events);
        self.heads.load(heads);
        ties
    }

    /// Changes of a key that has state: each sequence in turn.
    fn change(
        &mut self,
        key: &Row,
        group: &Group<'_, Change>,
        out: &mut Vec<((Row, Version), Diff)>,
    ) -> i64 {
        let mut ties = 0;
        let mut events = self.events.at(key);
        let mut heads = self.heads.at(key);
        for same in group.chunk_by(|a, b| a.0.sequence == b.0.sequence) {
            let Some((first, _)) = same.first() else {
                continue;
            };
            let sequence = &first.sequence;
            below(sequence, &mut self.scratch.below);
            above(sequence, &mut self.scratch.above);
            self.scratch.old.clear();
            if let Some(old) = winner_at(&events, sequence, &self.scratch.above) {
                self.scratch.old.extend_from_slice(old);
            }
            let mut appeared = 0;
            for (change, diff) in same {
                encode(change, &mut self.scratch.event);
                let (before, after) = events.add(&Row::from(self.scratch.event.as_slice()), *diff);
                appeared += i64::from(after > 0) - i64::from(before > 0);
            }
            let old = (!self.scratch.old.is_empty()).then(|| Event::decode(&self.scratch.old));
            let new = winner_at(&events, sequence, &self.scratch.above).map(Event::decode);
            ties += appeared - (i64::from(new.is_some()) - i64::from(old.is_some()));
            if old != new {
                rewrite(
                    key,
                    sequence,
                    old,
                    new,
                    &events,
                    &mut heads,
                    &self.scratch,
                    out,
                );
            }
        }
        ties
    }

    /// The state as bytes. Cost: one pass over it.
    ///
    /// # Errors
    /// If the state cannot be encoded.
    pub fn snapshot(&self) -> Result<Vec<u8>, SnapshotError> {
        let parts: (PartsRef<'_>, PartsRef<'_>) = (self.events.parts(), self.heads.parts());
        snapshot::seal("scd2", &parts)
    }

    /// Adds the keys of a snapshot that pass `keep`; several snapshots with distinct keys can be
    /// restored into one state.
    ///
    /// # Errors
    /// If the bytes are not an intact snapshot of this operator. The state is then unchanged.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        keep: impl Fn(&[u8]) -> bool,
    ) -> Result<(), SnapshotError> {
        let (events, heads): (Parts, Parts) = snapshot::open("scd2", bytes)?;
        let (events, heads) = (
            events.check::<ByPrecedence>()?,
            heads.check::<crate::Bytewise>()?,
        );
        self.events.adopt(events, &keep);
        self.heads.adopt(heads, &keep);
        Ok(())
    }
}

/// The changes of a key that has no state: one pass.
fn begin(
    key: &Row,
    group: &Group<'_, Change>,
    event: &mut Vec<u8>,
    events: &mut Run<ByPrecedence>,
    heads: &mut Run,
    out: &mut Vec<((Row, Version), Diff)>,
) -> i64 {
    let mut ties = 0;
    // Start, tracked and value of the run that is open.
    let mut open: Option<(&Row, &Row, &Row)> = None;
    let mut emit = |run: Option<(&Row, &Row, &Row)>, end: Option<&Row>| {
        if let Some((start, _, value)) = run {
            let version = Version {
                start: start.clone(),
                end: end.cloned(),
                value: value.clone(),
            };
            out.push(((key.clone(), version), 1));
        }
    };
    for same in group.chunk_by(|a, b| a.0.sequence == b.0.sequence) {
        for (change, count) in same {
            encode(change, event);
            events.push(event, b"", *count);
        }
        let live = same.iter().filter(|(_, count)| *count > 0).count() as i64;
        ties += (live - 1).max(0);
        let Some((winner, _)) = same.iter().rfind(|(_, count)| *count > 0) else {
            continue;
        };
        let sequence = &winner.sequence;
        let tracked = winner.upsert.as_ref().map(|upsert| &upsert.tracked);
        if tracked != open.map(|(_, tracked, _)| tracked) {
            heads.push(sequence, b"", 1);
            emit(open.take(), Some(sequence));
        }
        open = winner.upsert.as_ref().map(|upsert| {
            let start = open.map_or(sequence, |(start, _, _)| start);
            (start, &upsert.tracked, &upsert.value)
        });
    }
    emit(open, None);
    ties
}

/// The winner at `sequence` has changed from `old` to `new`: emits what that does to the versions
/// and moves the run heads. `events` are already as they are with `new`.
#[allow(
    clippy::too_many_arguments,
    reason = "the two winners, the state of the key, and where results go"
)]
fn rewrite(
    key: &Row,
    sequence: &Row,
    old: Option<Event<'_>>,
    new: Option<Event<'_>>,
    events: &KeyMut<'_, ByPrecedence>,
    heads: &mut KeyMut<'_>,
    scratch: &Scratch,
    out: &mut Vec<((Row, Version), Diff)>,
) {
    let previous = events
        .before(&scratch.below)
        .map(|entry| Event::decode(entry.order));
    // The least event of the next sequence leads to that sequence's winner.
    let mut bound = Vec::new();
    let next = events.after(&scratch.above).and_then(|entry| {
        above(Event::decode(entry.order).sequence, &mut bound);
        events
            .before(&bound)
            .map(|entry| Event::decode(entry.order))
    });
    // Neither the head of the previous run nor the head after the next event depends on `sequence`.
    let before = previous.map(|event| {
        let head = heads
            .get(event.sequence)
            .or_else(|| heads.before(event.sequence));
        Piece {
            start: head.map_or(event.sequence, |head| head.order),
            ..Piece::of(event)
        }
    });
    let mut end = None;
    let after = next.map(|event| {
        end = heads.after(event.sequence).map(|head| head.order);
        let last = match end {
            None => events.last(),
            Some(end) => {
                below(end, &mut bound);
                events.before(&bound)
            }
        };
        let value = last.map_or(event.value, |last| Event::decode(last.order).value);
        Piece {
            value,
            ..Piece::of(event)
        }
    });
    for (winner, diff) in [(old, -1), (new, 1)] {
        fold([before, winner.map(Piece::of), after], end, |piece, end| {
            let version = Version {
                start: Row::from(piece.start),
                end: end.map(Row::from),
                value: Row::from(piece.value),
            };
            out.push(((key.clone(), version), diff));
        });
    }

    let previous_tracked = previous.and_then(|event| event.tracked());
    let new_tracked = new.and_then(|event| event.tracked());
    let is_head = new.is_some() && new_tracked != previous_tracked;
    let next_head = next.map(|event| {
        let left = if new.is_some() {
            new_tracked
        } else {
            previous_tracked
        };
        (Row::from(event.sequence), event.tracked() != left)
    });
    heads.set(sequence, Row::default(), i64::from(is_head));
    if let Some((next, is_head)) = next_head {
        heads.set(&next, Row::default(), i64::from(is_head));
    }
}

/// Joins neighbours with equal `tracked` and emits those that are rows, each with its end; the
/// last one ends at `end`.
fn fold<'a>(
    pieces: [Option<Piece<'a>>; 3],
    end: Option<&'a [u8]>,
    mut emit: impl FnMut(Piece<'a>, Option<&'a [u8]>),
) {
    let mut open: Option<Piece<'a>> = None;
    let mut close = |piece: Option<Piece<'a>>, end| {
        if let Some(piece) = piece.filter(|piece| piece.tracked.is_some()) {
            emit(piece, end);
        }
    };
    for piece in pieces.into_iter().flatten() {
        match &mut open {
            Some(run) if run.tracked == piece.tracked => run.value = piece.value,
            run => close(run.replace(piece), Some(piece.start)),
        }
    }
    close(open, end);
}
