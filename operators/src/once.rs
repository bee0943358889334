//! Rows with the reference rows that are known when they come.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::batch::{Batch, for_each_pair};
use crate::epochs::{Apply, Rows, Shared, shared};
use crate::row::Row;
use crate::sides::{Keyed, Matched, by_key, match_rows};
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{KeyedState, Run, Shelf};
use crate::{Diff, Epoch};

/// Which rows a lookup at arrival yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceKind {
    /// Each row with the references of its key, or with `None`.
    Left,
    /// Each row with the references of its key.
    Inner,
    /// Each row that has a reference, once, with `None`.
    Semi,
    /// Each row that has no reference, once, with `None`.
    Anti,
}

/// [`Once::once`] on a collection of rows by lookup key.
pub trait Once<'s> {
    /// Each row with the references that were known before the epoch in which it comes, and never
    /// looked at again.
    ///
    /// With `unique` a row gets the least reference of its key, once; otherwise all of them, as often
    /// as they are there. A row without a key (`None`: some key column is null) has no reference. References of the
    /// row's own epoch are not known yet. What goes takes nothing back that was decided: rows that
    /// are retracted are retracted as they would be decided now, so that the caller must not feed
    /// any.
    ///
    /// State: the references. Cost of a row: O(log n) and its references.
    #[must_use]
    fn once(
        self,
        reference: Rows<'s, (Row, Row)>,
        kind: OnceKind,
        unique: bool,
        name: &str,
    ) -> Rows<'s, (Row, Option<Row>)>
    where
        Self: Sized,
    {
        self.once_with(reference, name, shared(OnceState::new(kind, unique, 0)))
    }

    /// [`Once::once`] on state that the caller holds too, to restore or to snapshot it.
    #[must_use]
    fn once_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<OnceState>,
    ) -> Rows<'s, (Row, Option<Row>)>;
}

impl<'s> Once<'s> for Rows<'s, (Option<Row>, Row)> {
    fn once_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<OnceState>,
    ) -> Rows<'s, (Row, Option<Row>)> {
        match_rows(self, reference, name, state)
    }
}

/// The state of [`Once::once`].
#[derive(Debug)]
pub struct OnceState {
    kind: OnceKind,
    unique: bool,
    known_through: Epoch,
    reference: KeyedState,
    /// References of keys that are new in the epoch.
    new: Run,
}

impl OnceState {
    /// Empty state. In epochs up to `known_through`, which an earlier run has seen, references are
    /// known at once.
    #[must_use]
    pub fn new(kind: OnceKind, unique: bool, known_through: Epoch) -> Self {
        OnceState { kind, unique, known_through, reference: KeyedState::new(), new: Run::default() }
    }

    #[cfg(test)]
    fn with_overlay(kind: OnceKind, unique: bool, limit: usize) -> Self {
        OnceState { kind, unique, known_through: 0, reference: KeyedState::with_overlay(limit), new: Run::default() }
    }

    /// Decides the rows of one epoch, appends them to `out`, and then takes in the epoch's changes
    /// of the reference.
    pub fn apply(
        &mut self,
        epoch: Epoch,
        rows: Vec<((Option<Row>, Row), Diff)>,
        reference: &[((Row, Row), Diff)],
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
        self.decide(epoch, rows, reference, out);
        self.settle();
    }

    fn settle(&mut self) {
        self.reference.load(std::mem::take(&mut self.new));
    }

    fn decide(
        &mut self,
        epoch: Epoch,
        rows: Vec<(Keyed, Diff)>,
        reference: &[((Row, Row), Diff)],
        out: &mut Vec<(Matched, Diff)>,
    ) {
        let (rows, keyless) = by_key(rows);
        if !matches!(self.kind, OnceKind::Inner | OnceKind::Semi) {
            let start = out.len();
            out.extend(keyless.into_iter().map(|(row, diff)| ((row, None), diff)));
            crate::batch::consolidate_from(out, start);
        }
        let at_once = epoch <= self.known_through;
        for_each_pair(&Batch::new(&rows), &Batch::new(reference), |key, rows, reference| {
            let mut known = self.reference.at(key);
            let is_new = known.is_new() && !at_once;
            if at_once {
                for (row, diff) in reference {
                    known.add(row, *diff);
                }
            }
            let first = known.first().filter(|entry| entry.count > 0).map(|entry| Row::from(entry.order));
            for (row, diff) in rows {
                let mut give =
                    |found: Option<Row>, times: i64| out.push((((*row).clone(), found), (diff * times) as Diff));
                match (self.kind, &first) {
                    (OnceKind::Left | OnceKind::Inner, Some(first)) if self.unique => give(Some(first.clone()), 1),
                    (OnceKind::Left | OnceKind::Inner, Some(_)) => {
                        for entry in known.scan() {
                            give(Some(Row::from(entry.order)), entry.count);
                        }
                    }
                    (OnceKind::Semi, Some(_)) | (OnceKind::Left | OnceKind::Anti, None) => give(None, 1),
                    (OnceKind::Anti, Some(_)) | (OnceKind::Inner | OnceKind::Semi, None) => {}
                }
            }
            if is_new {
                for (row, diff) in reference {
                    self.new.push(row, b"", *diff);
                }
                self.new.close_key(key);
            } else if !at_once {
                for (row, diff) in reference {
                    known.add(row, *diff);
                }
            }
        });
    }
}

impl Apply<Keyed, (Row, Row), Matched> for OnceState {
    fn portion(
        &mut self,
        epoch: Epoch,
        rows: Vec<(Keyed, Diff)>,
        reference: Vec<((Row, Row), Diff)>,
        out: &mut Vec<(Matched, Diff)>,
    ) {
        self.decide(epoch, rows, &reference, out);
        self.reference.absorb(&mut self.new);
    }

    fn end(&mut self, _: Epoch) {
        self.settle();
    }
}

impl State for OnceState {
    fn kind(&self) -> &'static str {
        "once"
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::new(self.kind(), vec![self.reference.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [reference] = snapshot.expect(self.kind())?;
        self.reference.thaw(reference, share)?;
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.reference.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.reference.bytes()
    }

    fn len(&self) -> usize {
        self.reference.len()
    }
}
