//! Slowly changing dimensions, type 1: the newest row of each key.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::batch::{Batch, Group, consolidate_from};
use crate::epochs::{Rows, Shared, shared};
use crate::event::{ByPrecedence, Change, Event, above, winner_at};
use crate::history::{History, historise};
use crate::row::Row;
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{KeyedState, Run, Shelf};
use crate::truncate::Truncates;
use crate::{Diff, Epoch};

/// [`Scd1::scd1`] on a collection of changes by key.
pub trait Scd1<'s> {
    /// The newest row of each key.
    ///
    /// Of a key's changes the one with the greatest sequence counts; at one sequence a delete wins
    /// over upserts, among upserts the greatest by (rank, tracked, value). A key shows if that
    /// change is an upsert and its sequence is above that of every truncate. The result depends on
    /// the two multisets alone, never on the order or the epochs in which they came: a late
    /// truncate, a retracted change or a retracted truncate is as good as an early one. The changes
    /// of an epoch are net.
    ///
    /// `ties` is called for each epoch in which the number of changes that lose to another one of
    /// the same key and sequence moved, with the net movement on this worker.
    ///
    /// State: every distinct change, since a retraction uncovers the change before it; with
    /// [`Scd1State::append_only`] one change a key. Cost of a change: O(log n). Cost of a truncate:
    /// all keys.
    #[must_use]
    fn scd1(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Row)>
    where
        Self: Sized,
    {
        self.scd1_with(truncates, name, shared(Scd1State::new()), ties)
    }

    /// [`Scd1::scd1`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn scd1_with(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        state: Shared<Scd1State>,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Row)>;
}

impl<'s> Scd1<'s> for Rows<'s, (Row, Change)> {
    fn scd1_with(
        self,
        truncates: impl Into<Option<Rows<'s, Row>>>,
        name: &str,
        state: Shared<Scd1State>,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Row)> {
        historise(self, truncates.into(), name, state, ties)
    }
}

/// The state of [`Scd1::scd1`].
#[derive(Debug, Default)]
pub struct Scd1State {
    /// The last entry of a key is the change that counts.
    events: KeyedState<ByPrecedence>,
    truncates: Truncates,
    append_only: bool,
    /// Keys that are new in the epoch.
    new: Run<ByPrecedence>,
    /// A bound to search by, kept to reuse its allocation.
    bound: Vec<u8>,
}

type Out = Vec<((Row, Row), Diff)>;

/// The value that a key with this newest change shows.
fn shows<'a>(newest: Option<&'a [u8]>, truncated: Option<&Row>) -> Option<&'a [u8]> {
    let event = Event::decode(newest?);
    let visible = !event.is_delete() && truncated.is_none_or(|truncated| event.sequence > truncated.as_bytes());
    visible.then_some(event.value)
}

impl Scd1State {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty state for changes of which the plan knows that none is ever retracted: only the
    /// newest change of a key is kept. A retraction that comes nevertheless is ignored. `ties`
    /// then counts the arrivals that tied with the newest change of that moment. (Truncates may
    /// still be retracted.)
    #[must_use]
    pub fn append_only() -> Self {
        Scd1State { append_only: true, ..Self::default() }
    }

    #[cfg(test)]
    fn with_overlay(append_only: bool, limit: usize) -> Self {
        Scd1State { events: KeyedState::with_overlay(limit), append_only, ..Self::default() }
    }

    /// Applies the changes and truncates of one epoch, appends what they do to the result to
    /// `out`, and returns by how much the number of losing changes moved.
    pub fn apply(
        &mut self,
        changes: &[((Row, Change), Diff)],
        truncates: &[(Row, Diff)],
        out: &mut Vec<((Row, Row), Diff)>,
    ) -> i64 {
        let ties = self.portion(changes, truncates, out);
        self.settle();
        ties
    }

    fn apply_some(&mut self, changes: &[((Row, Change), Diff)], truncates: &[(Row, Diff)], out: &mut Out) -> i64 {
        let start = out.len();
        let truncated = !truncates.is_empty() && self.truncate(truncates, out);
        let mut ties = 0;
        let mut run = std::mem::take(&mut self.new);
        Batch::new(changes).for_each(Ord::cmp, |key, group| {
            ties += if self.append_only {
                self.advance(key, group, &mut run, out)
            } else {
                self.change(key, group, &mut run, out)
            };
        });
        self.new = run;
        self.events.absorb(&mut self.new);
        if truncated {
            consolidate_from(out, start);
        }
        ties
    }

    /// Whether the greatest truncate moved. Then keys show or hide that stand in between.
    fn truncate(&mut self, truncates: &[(Row, Diff)], out: &mut Out) -> bool {
        let old = self.truncates.greatest().cloned();
        self.truncates.apply(truncates);
        let new = self.truncates.greatest();
        if old.as_ref() == new {
            return false;
        }
        for key in self.events.keys() {
            let events = self.events.at(&key);
            let newest = events.last().map(|entry| entry.order);
            emit(&key, shows(newest, old.as_ref()), shows(newest, new), out);
        }
        true
    }

    fn change(&mut self, key: &Row, group: &Group<'_, Change>, run: &mut Run<ByPrecedence>, out: &mut Out) -> i64 {
        let truncated = self.truncates.greatest();
        let bound = &mut self.bound;
        let mut events = self.events.at(key);
        let mut ties = 0;
        if events.is_new() {
            for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
                for (change, count) in same {
                    run.push(change.as_bytes(), b"", *count);
                }
                let live = same.iter().filter(|(_, count)| *count > 0).count() as i64;
                ties += (live - 1).max(0);
            }
            run.close_key(key);
            show_new(key, group.iter().rfind(|(_, count)| *count > 0).map(|(change, _)| *change), truncated, out);
            return ties;
        }
        let old = shows(events.last().map(|entry| entry.order), truncated).map(Row::from);
        for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
            let Some(sequence) = same.first().map(|(change, _)| change.sequence()) else {
                continue;
            };
            above(sequence, bound);
            ties += i64::from(winner_at(&events, sequence, bound).is_some());
            for (change, diff) in same {
                let (before, after) = events.add(change.as_bytes(), *diff);
                ties += i64::from(after > 0) - i64::from(before > 0);
            }
            ties -= i64::from(winner_at(&events, sequence, bound).is_some());
        }
        emit(key, old.as_deref(), shows(events.last().map(|entry| entry.order), truncated), out);
        ties
    }

    /// As [`Scd1State::change`], keeping the newest change only.
    fn advance(&mut self, key: &Row, group: &Group<'_, Change>, run: &mut Run<ByPrecedence>, out: &mut Out) -> i64 {
        let inserted = || group.iter().filter(|(_, diff)| *diff > 0).map(|(change, _)| *change);
        let Some(newest) = inserted().next_back() else {
            return 0;
        };
        let tied = inserted().filter(|change| change.sequence() == newest.sequence()).count() as i64;
        let truncated = self.truncates.greatest();
        let mut events = self.events.at(key);
        let Some(current) = events.last().map(|entry| Row::from(entry.order)) else {
            if events.is_new() {
                run.push(newest.as_bytes(), b"", 1);
                run.close_key(key);
            } else {
                events.add(newest.as_bytes(), 1);
            }
            show_new(key, Some(newest), truncated, out);
            return tied - 1;
        };
        let at = Event::decode(&current).sequence;
        let again = inserted().any(|change| change.as_bytes() == current.as_bytes());
        let ties = match newest.sequence().cmp(at) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => tied - i64::from(again),
            std::cmp::Ordering::Greater => tied - 1,
        };
        let order = <ByPrecedence as crate::state::Order>::compare(newest.as_bytes(), &current);
        if order == std::cmp::Ordering::Greater {
            events.set(&current, b"", 0);
            events.add(newest.as_bytes(), 1);
            emit(key, shows(Some(&current), truncated), shows(Some(newest.as_bytes()), truncated), out);
        }
        ties
    }
}

impl History<(Row, Row)> for Scd1State {
    fn portion(&mut self, changes: &[((Row, Change), Diff)], truncates: &[(Row, Diff)], out: &mut Out) -> i64 {
        self.apply_some(changes, truncates, out)
    }

    fn settle(&mut self) {
        self.events.load(std::mem::take(&mut self.new));
    }
}

impl State for Scd1State {
    fn kind(&self) -> &'static str {
        "scd1"
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

fn show_new(key: &Row, newest: Option<&Change>, truncated: Option<&Row>, out: &mut Out) {
    if let Some(newest) = newest
        && let Some(value) = shows(Some(newest.as_bytes()), truncated)
    {
        out.push(((key.clone(), newest.part(value)), 1));
    }
}

fn emit(key: &Row, old: Option<&[u8]>, new: Option<&[u8]>, out: &mut Out) {
    if old != new {
        out.extend(old.map(|value| ((key.clone(), Row::from(value)), -1)));
        out.extend(new.map(|value| ((key.clone(), Row::from(value)), 1)));
    }
}
