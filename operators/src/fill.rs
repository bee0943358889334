//! Updates that leave columns as they are: each upsert completed from the ones before it.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::batch::{Batch, Group, consolidate_from};
use crate::epochs::{Rows, Shared, shared};
use crate::event::{ByPrecedence, Change, Event, Upsert, above, below, winner_at};
use crate::history::{History, historise};
use crate::row::Row;
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{KeyMut, KeyedState, Run, Shelf};
use crate::truncate::Truncates;
use crate::{Diff, Epoch};

/// [`Fill::fill`] on a collection of changes by key.
pub trait Fill<'s> {
    /// The changes that count, each upsert's value completed from the values before it.
    ///
    /// Of the changes of a key at one sequence only the winner is in the result: a delete over
    /// upserts, among upserts the greatest by (rank, tracked, value). The value of an upsert
    /// becomes `merge(previous, own)`, where `previous` is the completed value of the winner
    /// before it, or `None` if there is none, if it is a delete, or if there is a truncate at its
    /// sequence or between the two. An upsert at the sequence of a truncate is not in the result:
    /// the truncate deletes it. `rank` and `tracked` stay as they came.
    ///
    /// `merge` must be a function of its arguments. The result depends on the two multisets alone,
    /// never on the order or the epochs in which they came. The changes of an epoch are net.
    ///
    /// `ties` is called for each epoch in which the number of changes that lose to another one of
    /// the same key and sequence moved, with the net movement on this worker.
    ///
    /// State: every distinct change, and the completed value of the winners. Cost of a change:
    /// O(log n) for it and for every later upsert whose completed value moves. Cost of a truncate:
    /// all keys.
    #[must_use]
    fn fill(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        merge: impl Fn(Option<&[u8]>, &[u8]) -> Row + 'static,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Change)>
    where
        Self: Sized,
    {
        self.fill_with(truncates, name, shared(FillState::new()), merge, ties)
    }

    /// [`Fill::fill`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn fill_with(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        state: Shared<FillState>,
        merge: impl Fn(Option<&[u8]>, &[u8]) -> Row + 'static,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Change)>;
}

impl<'s> Fill<'s> for Rows<'s, (Row, Change)> {
    fn fill_with(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        state: Shared<FillState>,
        merge: impl Fn(Option<&[u8]>, &[u8]) -> Row + 'static,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Change)> {
        historise(self, truncates.into(), name, Filling { state, merge }, ties)
    }
}

/// The state, and how values are completed.
struct Filling<M> {
    state: Shared<FillState>,
    merge: M,
}

impl<M: Fn(Option<&[u8]>, &[u8]) -> Row> History<(Row, Change)> for Filling<M> {
    fn portion(&mut self, changes: &[((Row, Change), Diff)], truncates: &[(Row, Diff)], out: &mut Out) -> i64 {
        self.state.borrow_mut().portion(changes, truncates, &self.merge, out)
    }

    fn settle(&mut self) {
        self.state.borrow_mut().settle();
    }
}

/// Marks the data of an event that is in the result; the completed value of an upsert follows.
const SHOWN: u8 = 1;

/// The state of [`Fill::fill`].
#[derive(Debug, Default)]
pub struct FillState {
    /// All changes. The data of one that is in the result starts with [`SHOWN`]; the others have
    /// none.
    events: KeyedState<ByPrecedence>,
    truncates: Truncates,
    /// Keys that are new in the epoch.
    new: Run<ByPrecedence>,
}

type Out = Vec<((Row, Change), Diff)>;

/// An event in the result: the event and its data.
#[derive(Clone, PartialEq, Eq)]
struct Shown {
    event: Row,
    data: Row,
}

impl Shown {
    fn emit(&self, key: &Row, diff: Diff, out: &mut Out) {
        let event = Event::decode(&self.event);
        let value = completed(&self.data).unwrap_or_default();
        let upsert = (!event.is_delete()).then_some(Upsert { rank: event.rank, tracked: event.tracked, value });
        out.push(((key.clone(), Change::new(event.sequence, upsert)), diff));
    }
}

/// The completed value in an event's data.
fn completed(data: &[u8]) -> Option<&[u8]> {
    data.split_first().filter(|(mark, _)| **mark == SHOWN).map(|(_, value)| value)
}

fn shown_data(value: &[u8]) -> Row {
    let mut data = Vec::with_capacity(value.len() + 1);
    data.push(SHOWN);
    data.extend_from_slice(value);
    Row::from(data)
}

impl FillState {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_overlay(limit: usize) -> Self {
        FillState { events: KeyedState::with_overlay(limit), ..Self::default() }
    }

    /// Applies the changes and truncates of one epoch, appends what they do to the result to
    /// `out`, and returns by how much the number of losing changes moved.
    pub fn apply(
        &mut self,
        changes: &[((Row, Change), Diff)],
        truncates: &[(Row, Diff)],
        merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
        out: &mut Vec<((Row, Change), Diff)>,
    ) -> i64 {
        let ties = self.portion(changes, truncates, merge, out);
        self.settle();
        ties
    }

    fn settle(&mut self) {
        self.events.load(std::mem::take(&mut self.new));
    }

    fn portion(
        &mut self,
        changes: &[((Row, Change), Diff)],
        truncates: &[(Row, Diff)],
        merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
        out: &mut Out,
    ) -> i64 {
        let start = out.len();
        let moved = self.truncates.apply(truncates);
        if !moved.is_empty() {
            for key in self.events.keys() {
                let mut events = self.events.at(&key);
                let touched = moved.iter().map(|sequence| (sequence.clone(), None)).collect();
                walk(&key, touched, true, &mut events, &self.truncates, merge, out);
            }
        }
        let mut ties = 0;
        let run = &mut self.new;
        Batch::new(changes).for_each(Ord::cmp, |key, group| {
            let mut events = self.events.at(key);
            ties += if events.is_new() {
                let ties = begin(key, group, &self.truncates, merge, run, out);
                run.close_key(key);
                ties
            } else {
                change(key, group, &mut events, &self.truncates, merge, out)
            };
        });
        self.events.absorb(&mut self.new);
        if !moved.is_empty() {
            consolidate_from(out, start);
        }
        ties
    }
}

impl State for FillState {
    fn kind(&self) -> &'static str {
        "fill"
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::new(self.kind(), vec![self.events.freeze(), self.truncates.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [events, truncates] = snapshot.expect(self.kind())?;
        self.events.thaw(events, share)?;
        self.truncates.thaw(truncates)?;
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.events.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.events.bytes()
    }

    fn len(&self) -> usize {
        self.events.len()
    }
}

/// The changes of a key that has no state: one pass.
fn begin(
    key: &Row,
    group: &Group<'_, Change>,
    truncates: &Truncates,
    merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
    run: &mut Run<ByPrecedence>,
    out: &mut Out,
) -> i64 {
    let mut ties = 0;
    // Sequence and completed value of the winner before.
    let mut previous: Option<(&[u8], Row)> = None;
    for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
        let winner = same.iter().rposition(|(_, count)| *count > 0);
        let live = same.iter().filter(|(_, count)| *count > 0).count() as i64;
        ties += (live - 1).max(0);
        for (i, (change, count)) in same.iter().enumerate() {
            let sequence = change.sequence();
            let data = match change.upsert() {
                _ if winner != Some(i) => Row::default(),
                None => {
                    previous = None;
                    out.push(((key.clone(), (*change).clone()), 1));
                    shown_data(b"")
                }
                Some(_) if truncates.at(sequence) => {
                    previous = None;
                    Row::default()
                }
                Some(upsert) => {
                    let inherited = previous.as_ref().filter(|(from, _)| !truncates.between(from, sequence));
                    let value = merge(inherited.map(|(_, value)| value.as_bytes()), upsert.value);
                    let upsert = Upsert { value: &value, ..upsert };
                    out.push(((key.clone(), Change::new(sequence, Some(upsert))), 1));
                    let data = shown_data(&value);
                    previous = Some((sequence, value));
                    data
                }
            };
            run.push(change.as_bytes(), &data, *count);
        }
    }
    ties
}

/// Changes of a key that has state.
fn change(
    key: &Row,
    group: &Group<'_, Change>,
    events: &mut KeyMut<'_, ByPrecedence>,
    truncates: &Truncates,
    merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
    out: &mut Out,
) -> i64 {
    let mut ties = 0;
    let mut touched: Vec<(Row, Option<Shown>)> = Vec::new();
    let mut bound = Vec::new();
    for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
        let Some((first, _)) = same.first() else {
            continue;
        };
        let sequence = first.sequence();
        above(sequence, &mut bound);
        let old = shown_at(events, sequence, &bound);
        ties += i64::from(winner_at(events, sequence, &bound).is_some());
        for (change, diff) in same {
            let (before, after) = events.add(change.as_bytes(), *diff);
            ties += i64::from(after > 0) - i64::from(before > 0);
        }
        let winner = winner_at(events, sequence, &bound);
        ties -= i64::from(winner.is_some());
        if let Some(old) = &old
            && winner != Some(old.event.as_bytes())
        {
            // Still there, but a loser now.
            let count = events.get(&old.event).map_or(0, |entry| entry.count);
            events.set(&old.event, b"", count);
        }
        touched.push((first.part(sequence), old));
    }
    walk(key, touched, false, events, truncates, merge, out);
    ties
}

/// What is in the result at `sequence`, by the state.
fn shown_at(events: &KeyMut<'_, ByPrecedence>, sequence: &[u8], above: &[u8]) -> Option<Shown> {
    let event = winner_at(events, sequence, above)?;
    let data = events.get(event)?.data;
    (!data.is_empty()).then(|| Shown { event: Row::from(event), data: Row::from(data) })
}

/// Brings the result up to date at the `touched` sequences (ascending, each with what was in the
/// result there; `from_state`: what the state says) and after them, as far as values move.
fn walk(
    key: &Row,
    touched: Vec<(Row, Option<Shown>)>,
    from_state: bool,
    events: &mut KeyMut<'_, ByPrecedence>,
    truncates: &Truncates,
    merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
    out: &mut Out,
) {
    let (mut under, mut over) = (Vec::new(), Vec::new());
    let mut touched = touched.into_iter().peekable();
    // The next sequence to look at because a value before it moved.
    let mut follower: Option<Row> = None;
    loop {
        let at_follower = match (&follower, touched.peek()) {
            (None, None) => return,
            (Some(follower), Some((sequence, _))) => follower < sequence,
            (Some(_), None) => true,
            (None, Some(_)) => false,
        };
        let (sequence, given) = if at_follower {
            let Some(sequence) = follower.take() else {
                return;
            };
            (sequence, None)
        } else {
            let Some((sequence, old)) = touched.next() else {
                return;
            };
            if follower.as_ref() == Some(&sequence) {
                follower = None;
            }
            (sequence, Some(old))
        };
        below(&sequence, &mut under);
        above(&sequence, &mut over);
        let old = match given {
            Some(old) if !from_state => old,
            _ => shown_at(events, &sequence, &over),
        };
        let new = evaluate(events, &sequence, &under, &over, truncates, merge);
        let moved = old != new;
        if moved {
            if let Some(old) = &old {
                old.emit(key, -1, out);
            }
            let winner = winner_at(events, &sequence, &over).map(Row::from);
            if let Some(winner) = winner {
                let count = events.get(&winner).map_or(0, |entry| entry.count);
                let data = new.as_ref().map(|new| new.data.clone()).unwrap_or_default();
                events.set(&winner, &data, count);
            }
            if let Some(new) = &new {
                new.emit(key, 1, out);
            }
        }
        // Where a truncate came or went, the next winner may inherit otherwise although nothing
        // moved here.
        if moved || (from_state && !at_follower) {
            follower = events.after(&over).map(|entry| Row::from(Event::decode(entry.order).sequence));
        }
    }
}

/// What is in the result at `sequence` by the changes and by what is before it.
fn evaluate(
    events: &KeyMut<'_, ByPrecedence>,
    sequence: &[u8],
    under: &[u8],
    over: &[u8],
    truncates: &Truncates,
    merge: &impl Fn(Option<&[u8]>, &[u8]) -> Row,
) -> Option<Shown> {
    let encoded = winner_at(events, sequence, over)?;
    let event = Event::decode(encoded);
    if event.is_delete() {
        return Some(Shown { event: Row::from(encoded), data: shown_data(b"") });
    }
    if truncates.at(sequence) {
        return None;
    }
    let previous = events.before(under).and_then(|entry| {
        let before = Event::decode(entry.order);
        let reset = before.is_delete() || truncates.between(before.sequence, sequence);
        if reset { None } else { completed(entry.data) }
    });
    let value = merge(previous, event.value);
    Some(Shown { event: Row::from(encoded), data: shown_data(&value) })
}
