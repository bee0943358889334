//! Rows with the reference row of their key.

#[cfg(test)]
mod tests;

use crate::Diff;
use crate::batch::{Batch, Group, consolidate_from, for_each_pair};
use crate::epochs::{Rows, Shared, binary, shared};
use crate::row::{Row, stable_hash};
use crate::sides::{Sides, by_key, row_hash};
use crate::snapshot::{Snapshot, SnapshotError, State};
use crate::state::Run;

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
    /// O(log n) and the rows of its key.
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
        binary(
            self,
            reference,
            name,
            row_hash,
            |(key, _)| stable_hash(key),
            move |_, rows, reference, out| state.borrow_mut().apply(rows, &reference, out),
        )
    }
}

/// The state of [`Lookup::lookup`].
#[derive(Debug)]
pub struct LookupState {
    kind: LookupKind,
    /// A key keeps its first reference: rows that have one need not be remembered.
    settled: bool,
    sides: Sides,
}

impl LookupState {
    /// Empty state.
    #[must_use]
    pub fn new(kind: LookupKind) -> Self {
        LookupState { kind, settled: false, sides: Sides::default() }
    }

    /// Empty state for a reference of which the plan knows that a key, once it has a row, keeps
    /// that row for ever (for [`LookupKind::Semi`] and [`LookupKind::Anti`]: keeps some row). Then
    /// only rows without a reference are remembered. A retraction or another row that comes
    /// nevertheless is ignored for the rows that were resolved before it.
    #[must_use]
    pub fn settled(kind: LookupKind) -> Self {
        LookupState { kind, settled: true, sides: Sides::default() }
    }

    #[cfg(test)]
    fn with_overlay(kind: LookupKind, settled: bool, limit: usize) -> Self {
        LookupState { kind, settled, sides: Sides::with_overlay(limit) }
    }

    /// Applies the changes of one epoch and appends what they do to the result to `out`.
    pub fn apply(
        &mut self,
        rows: Vec<((Option<Row>, Row), Diff)>,
        reference: &[((Row, Row), Diff)],
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
        let (rows, keyless) = by_key(rows);
        if let Some(shown) = self.kind.shows(None) {
            let start = out.len();
            out.extend(keyless.into_iter().map(|(row, diff)| ((row, shown.clone()), diff)));
            consolidate_from(out, start);
        }
        let mut runs = (Run::default(), Run::default());
        for_each_pair(&Batch::new(&rows), &Batch::new(reference), |key, rows, reference| {
            self.change(key, rows, reference, &mut runs, out);
        });
        self.sides.rows.load(runs.0);
        self.sides.reference.load(runs.1);
    }

    /// The reference of `key` before and after its changes. New keys go to `run`.
    fn refer(&mut self, key: &Row, changes: &Group<'_, Row>, run: &mut Run) -> (Option<Row>, Option<Row>) {
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
        (row_run, reference_run): &mut (Run, Run),
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
        let (old, new) = self.refer(key, reference, reference_run);
        let resolved = self.settled && old.is_some();
        let remember = !(self.settled && new.is_some());
        let (old, new) = (self.kind.shows(old), self.kind.shows(new));
        let moved = old != new && !resolved;

        let start = out.len();
        if let Some(shown) = &new {
            out.extend(changed.iter().map(|(row, diff)| (((*row).clone(), shown.clone()), *diff as Diff)));
        }
        let mut stored = self.sides.rows.at(key);
        if stored.is_new() {
            if remember {
                for (row, diff) in changed {
                    row_run.push(row, b"", *diff);
                }
                row_run.close_key(key);
            }
            return;
        }
        if !moved && changed.is_empty() {
            return;
        }
        if moved {
            for entry in stored.scan() {
                let row = Row::from(entry.order);
                if let Some(shown) = &old {
                    out.push(((row.clone(), shown.clone()), -entry.count as Diff));
                }
                if let Some(shown) = &new {
                    out.push(((row, shown.clone()), entry.count as Diff));
                }
            }
        }
        if remember {
            for (row, diff) in changed {
                stored.add(row, *diff);
            }
        } else {
            stored.clear();
        }
        drop(stored);
        if moved {
            consolidate_from(out, start);
        }
    }
}

impl State for LookupState {
    fn kind(&self) -> &'static str {
        "lookup"
    }

    fn snapshot(&mut self) -> Snapshot {
        let kind = self.kind();
        self.sides.snapshot(kind)
    }

    fn restore(&mut self, snapshot: &Snapshot, keep: &dyn Fn(u64) -> bool) -> Result<(), SnapshotError> {
        let kind = self.kind();
        self.sides.restore(kind, snapshot, keep)
    }

    fn bytes(&self) -> usize {
        self.sides.bytes()
    }

    fn len(&self) -> usize {
        self.sides.len()
    }
}
