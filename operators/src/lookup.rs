//! Rows with the reference row of their key.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::batch::{Batch, Group, consolidate_from, for_each_pair};
use crate::epochs::{Apply, Rows, Shared, shared};
use crate::row::Row;
use crate::sides::{FEW, Keyed, Matched, Sides, Walk, by_key, match_rows};
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::Shelf;
use crate::{Diff, Epoch};

/// Which rows a lookup yields, and what with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupKind {
    /// Every row, with its reference or `None`.
    Left,
    /// The rows that have a reference, with it.
    Inner,
    /// The rows that have a reference, with `None`.
    Semi,
    /// The rows that have no reference, with `None`.
    Anti,
}

impl LookupKind {
    /// What a row yields whose key has `reference`; outer `None`: nothing.
    fn shows(self, reference: Option<Row>) -> Option<Option<Row>> {
        match self {
            LookupKind::Left => Some(reference),
            LookupKind::Inner => reference.map(Some),
            LookupKind::Semi => reference.map(|_| None),
            LookupKind::Anti => reference.is_none().then_some(None),
        }
    }
}

/// [`Lookup::lookup`] on a collection of rows by lookup key.
pub trait Lookup<'s> {
    /// Each row with the reference row of its key, as `kind` says.
    ///
    /// A row without a key (`None`: some key column is null) matches nothing. `reference` is
    /// expected to hold one distinct row a key; of several the least is used.
    ///
    /// The result is live: when a reference row comes, changes or goes, the rows of its key follow.
    /// The changes of an epoch are net: a row and its reference that arrive together are one
    /// record.
    ///
    /// State: both sides. Cost of a change to a row: O(log n). Cost of a change to a reference:
    /// O(log n) and the rows of its key, which follow a part at a time while other operators go on.
    #[must_use]
    fn lookup(self, reference: Rows<'s, (Row, Row)>, kind: LookupKind, name: &str) -> Rows<'s, (Row, Option<Row>)>
    where
        Self: Sized,
    {
        self.lookup_with(reference, name, shared(LookupState::new(kind)))
    }

    /// [`Lookup::lookup`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn lookup_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<LookupState>,
    ) -> Rows<'s, (Row, Option<Row>)>;
}

impl<'s> Lookup<'s> for Rows<'s, (Option<Row>, Row)> {
    fn lookup_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<LookupState>,
    ) -> Rows<'s, (Row, Option<Row>)> {
        match_rows(self, reference, name, state)
    }
}

/// The state of [`Lookup::lookup`].
#[derive(Debug)]
pub struct LookupState {
    kind: LookupKind,
    /// A key keeps its first reference: rows that have one need not be remembered.
    settled: bool,
    sides: Sides,
    /// Stored rows that have still to follow their reference in the epoch at hand.
    walks: Vec<Walk<Shown>>,
}

/// What a row of a key showed before its reference changed, and what it shows since.
type Shown = (Option<Option<Row>>, Option<Option<Row>>);

/// What a row does of which there were `before` and are `after`.
fn follow((old, new): &Shown, row: Row, before: i64, after: i64, out: &mut Vec<(Matched, Diff)>) {
    if let Some(shown) = old.as_ref().filter(|_| before != 0) {
        out.push(((row.clone(), shown.clone()), -before as Diff));
    }
    if let Some(shown) = new.as_ref().filter(|_| after != 0) {
        out.push(((row, shown.clone()), after as Diff));
    }
}

impl LookupState {
    /// Empty state.
    #[must_use]
    pub fn new(kind: LookupKind) -> Self {
        LookupState { kind, settled: false, sides: Sides::default(), walks: Vec::new() }
    }

    /// Empty state for a reference of which the plan knows that a key, once it has a row, keeps
    /// that row for ever (for [`LookupKind::Semi`] and [`LookupKind::Anti`]: keeps some row). Then
    /// only rows without a reference are remembered. A retraction or another row that comes
    /// nevertheless is ignored for the rows that were resolved before it.
    #[must_use]
    pub fn settled(kind: LookupKind) -> Self {
        LookupState { kind, settled: true, sides: Sides::default(), walks: Vec::new() }
    }

    #[cfg(test)]
    fn with_overlay(kind: LookupKind, settled: bool, limit: usize) -> Self {
        LookupState { kind, settled, sides: Sides::with_overlay(limit), walks: Vec::new() }
    }

    /// Applies the changes of one epoch and appends what they do to the result to `out`.
    pub fn apply(
        &mut self,
        rows: Vec<((Option<Row>, Row), Diff)>,
        reference: &[((Row, Row), Diff)],
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
        self.begin(rows, reference, out);
        while self.more(out, usize::MAX) {}
        self.sides.settle();
    }

    /// Applies changes without those rows that follow a reference in great number.
    fn begin(&mut self, rows: Vec<(Keyed, Diff)>, reference: &[((Row, Row), Diff)], out: &mut Vec<(Matched, Diff)>) {
        let (rows, keyless) = by_key(rows);
        if let Some(shown) = self.kind.shows(None) {
            let start = out.len();
            out.extend(keyless.into_iter().map(|(row, diff)| ((row, shown.clone()), diff)));
            consolidate_from(out, start);
        }
        for_each_pair(&Batch::new(&rows), &Batch::new(reference), |key, rows, reference| {
            self.change(key, rows, reference, out);
        });
    }

    /// The reference of `key` before and after its changes.
    fn refer(&mut self, key: &Row, changes: &Group<'_, Row>) -> (Option<Row>, Option<Row>) {
        let run = &mut self.sides.new.1;
        let mut known = self.sides.reference.at(key);
        if known.is_new() {
            for (row, diff) in changes {
                run.push(row, b"", *diff);
            }
            run.close_key(key);
            return (None, changes.iter().find(|(_, diff)| *diff > 0).map(|(row, _)| (*row).clone()));
        }
        let old = known.first().map(|entry| Row::from(entry.order));
        if changes.is_empty() {
            return (old.clone(), old);
        }
        for (row, diff) in changes {
            known.add(row, *diff);
        }
        let new = known.first().map(|entry| Row::from(entry.order));
        (old, new)
    }

    fn change(
        &mut self,
        key: &Row,
        changed: &Group<'_, Row>,
        reference: &Group<'_, Row>,
        out: &mut Vec<(Matched, Diff)>,
    ) {
        let (old, new) = self.refer(key, reference);
        let resolved = self.settled && old.is_some();
        let remember = !(self.settled && new.is_some());
        let shown = (self.kind.shows(old), self.kind.shows(new));
        let moved = shown.0 != shown.1 && !resolved;

        let mut stored = self.sides.rows.at(key);
        if stored.is_new() || !moved {
            for (row, diff) in changed {
                follow(&shown, (*row).clone(), 0, *diff, out);
            }
        }
        if stored.is_new() {
            if remember {
                let run = &mut self.sides.new.0;
                changed.iter().for_each(|(row, diff)| run.push(row, b"", *diff));
                run.close_key(key);
            }
            return;
        }
        for (row, diff) in changed {
            let (before, after) = if remember {
                stored.add(row, *diff)
            } else {
                let before = stored.get(row).map_or(0, |entry| entry.count);
                (before, before + diff)
            };
            if moved {
                follow(&shown, (*row).clone(), before, after, out);
            }
        }
        if moved {
            let skip = changed.iter().map(|(row, _)| (*row).clone()).collect();
            let mut walk = Walk { key: key.clone(), change: shown, skip, forget: !remember, past: None };
            if walk.step(&mut stored, FEW, |shown, row, count| follow(shown, row, count, count, out)) {
                drop(stored);
                self.walks.push(walk);
            }
        } else if !remember {
            stored.clear();
        }
    }
}

impl Apply<Keyed, (Row, Row), Matched> for LookupState {
    fn portion(
        &mut self,
        _: Epoch,
        rows: Vec<(Keyed, Diff)>,
        reference: Vec<((Row, Row), Diff)>,
        out: &mut Vec<(Matched, Diff)>,
    ) {
        self.begin(rows, &reference, out);
        self.sides.absorb();
    }

    fn more(&mut self, out: &mut Vec<(Matched, Diff)>, fuel: usize) -> bool {
        let Some(mut walk) = self.walks.pop() else { return false };
        let mut stored = self.sides.rows.at(&walk.key);
        let more = walk.step(&mut stored, fuel, |shown, row, count| follow(shown, row, count, count, out));
        drop(stored);
        self.walks.extend(more.then_some(walk));
        !self.walks.is_empty()
    }

    fn end(&mut self, _: Epoch) {
        self.sides.settle();
    }
}

impl State for LookupState {
    fn kind(&self) -> &'static str {
        // What one of them forgets the other one needs.
        if self.settled { "settled lookup" } else { "lookup" }
    }

    fn snapshot(&mut self) -> Snapshot {
        let kind = self.kind();
        self.sides.snapshot(kind)
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let kind = self.kind();
        self.sides.restore(kind, snapshot, share)
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.sides.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.sides.bytes()
    }

    fn len(&self) -> usize {
        self.sides.len()
    }
}
