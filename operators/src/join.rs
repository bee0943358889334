//! Rows with every reference row of their key.

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

/// Which rows an equality join yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Matches, and rows without any match with `None`.
    Left,
    /// Matches only.
    Inner,
}

/// [`EquiJoin::equi_join`] on a collection of rows by join key.
pub trait EquiJoin<'s> {
    /// Each row with each reference row of its key; multiplicities multiply.
    ///
    /// A row without a key (`None`: some key column is null) matches nothing. The changes of an
    /// epoch are net.
    ///
    /// State: both sides. Cost of a change: O(log n) and the rows of its key on the other side. Those that meet a changed
    /// reference do it a part at a time, while other operators go on.
    #[must_use]
    fn equi_join(self, reference: Rows<'s, (Row, Row)>, kind: JoinKind, name: &str) -> Rows<'s, (Row, Option<Row>)>
    where
        Self: Sized,
    {
        self.equi_join_with(reference, name, shared(JoinState::new(kind)))
    }

    /// [`EquiJoin::equi_join`] on state that the caller holds too, to restore or to snapshot it.
    /// What restored state already showed is not emitted again.
    #[must_use]
    fn equi_join_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<JoinState>,
    ) -> Rows<'s, (Row, Option<Row>)>;
}

impl<'s> EquiJoin<'s> for Rows<'s, (Option<Row>, Row)> {
    fn equi_join_with(
        self,
        reference: Rows<'s, (Row, Row)>,
        name: &str,
        state: Shared<JoinState>,
    ) -> Rows<'s, (Row, Option<Row>)> {
        match_rows(self, reference, name, state)
    }
}

/// The state of [`EquiJoin::equi_join`].
#[derive(Debug)]
pub struct JoinState {
    kind: JoinKind,
    sides: Sides,
    /// Stored rows that have still to meet what has changed in the epoch at hand.
    walks: Vec<Walk<Change>>,
}

/// What has changed for the rows of a key.
#[derive(Debug)]
struct Change {
    reference: Vec<(Row, i64)>,
    /// By how much the rows show without a reference.
    alone: i64,
}

impl Change {
    fn meet(&self, row: &Row, count: i64, out: &mut Vec<(Matched, Diff)>) {
        if count == 0 {
            return;
        }
        for (reference, diff) in &self.reference {
            out.push(((row.clone(), Some(reference.clone())), (count * diff) as Diff));
        }
        if self.alone != 0 {
            out.push(((row.clone(), None), (count * self.alone) as Diff));
        }
    }
}

impl JoinState {
    /// Empty state.
    #[must_use]
    pub fn new(kind: JoinKind) -> Self {
        JoinState { kind, sides: Sides::default(), walks: Vec::new() }
    }

    #[cfg(test)]
    fn with_overlay(kind: JoinKind, limit: usize) -> Self {
        JoinState { kind, sides: Sides::with_overlay(limit), walks: Vec::new() }
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

    /// Applies changes without those rows that meet a reference in great number.
    fn begin(&mut self, rows: Vec<(Keyed, Diff)>, reference: &[((Row, Row), Diff)], out: &mut Vec<(Matched, Diff)>) {
        let (rows, keyless) = by_key(rows);
        if self.kind == JoinKind::Left {
            let start = out.len();
            out.extend(keyless.into_iter().map(|(row, diff)| ((row, None), diff)));
            consolidate_from(out, start);
        }
        for_each_pair(&Batch::new(&rows), &Batch::new(reference), |key, rows, reference| {
            let start = out.len();
            self.change(key, rows, reference, out);
            if !reference.is_empty() {
                consolidate_from(out, start);
            }
        });
    }

    /// The changed rows meet the old references, then all rows meet the changed references.
    fn change(&mut self, key: &Row, rows: &Group<'_, Row>, reference: &Group<'_, Row>, out: &mut Vec<(Matched, Diff)>) {
        let (row_run, reference_run) = &mut self.sides.new;
        let left = self.kind == JoinKind::Left;
        let (mut had_any, mut has_any) = (false, reference.iter().any(|(_, diff)| *diff > 0));
        let mut known = self.sides.reference.at(key);
        if !known.is_new() {
            had_any = known.first().is_some();
            if !rows.is_empty() {
                for entry in known.scan() {
                    let reference = Row::from(entry.order);
                    out.extend(
                        rows.iter().map(|(row, diff)| {
                            (((*row).clone(), Some(reference.clone())), (diff * entry.count) as Diff)
                        }),
                    );
                }
            }
            for (reference, diff) in reference {
                known.add(reference, *diff);
            }
            has_any = known.first().is_some();
        } else {
            for (reference, diff) in reference {
                reference_run.push(reference, b"", *diff);
            }
            reference_run.close_key(key);
        }
        if left && !had_any {
            out.extend(rows.iter().map(|(row, diff)| (((*row).clone(), None), *diff as Diff)));
        }

        let change = Change {
            reference: reference.iter().map(|(reference, diff)| ((*reference).clone(), *diff)).collect(),
            alone: if left { i64::from(had_any) - i64::from(has_any) } else { 0 },
        };
        let mut stored = self.sides.rows.at(key);
        if stored.is_new() {
            for (row, diff) in rows {
                change.meet(row, *diff, out);
                row_run.push(row, b"", *diff);
            }
            row_run.close_key(key);
            return;
        }
        for (row, diff) in rows {
            let (_, count) = stored.add(row, *diff);
            change.meet(row, count, out);
        }
        if !reference.is_empty() {
            let skip = rows.iter().map(|(row, _)| (*row).clone()).collect();
            let mut walk = Walk { key: key.clone(), change, skip, forget: false, past: None };
            if walk.step(&mut stored, FEW, |change, row, count| change.meet(&row, count, out)) {
                drop(stored);
                self.walks.push(walk);
            }
        }
    }
}

impl Apply<Keyed, (Row, Row), Matched> for JoinState {
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
        // A row gives as many as it meets.
        let fuel = fuel.div_ceil(walk.change.reference.len().max(1));
        let more = walk.step(&mut stored, fuel, |change, row, count| change.meet(&row, count, out));
        drop(stored);
        self.walks.extend(more.then_some(walk));
        !self.walks.is_empty()
    }

    fn end(&mut self, _: Epoch) {
        self.sides.settle();
    }
}

impl State for JoinState {
    fn kind(&self) -> &'static str {
        "join"
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
