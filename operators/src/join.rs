//! Rows with every reference row of their key.

#[cfg(test)]
mod tests;

use crate::Diff;
use crate::batch::{Batch, Group, consolidate_from, for_each_pair};
use crate::epochs::{Rows, Shared, binary, shared};
use crate::row::{Row, stable_hash};
use crate::sides::{Sides, by_key, row_hash};
use crate::snapshot::{Snapshot, SnapshotError, State};
use crate::state::Run;

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
    /// State: both sides. Cost of a change: O(log n) and the rows of its key on the other side.
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

/// The state of [`EquiJoin::equi_join`].
#[derive(Debug)]
pub struct JoinState {
    kind: JoinKind,
    sides: Sides,
}

impl JoinState {
    /// Empty state.
    #[must_use]
    pub fn new(kind: JoinKind) -> Self {
        JoinState { kind, sides: Sides::default() }
    }

    #[cfg(test)]
    fn with_overlay(kind: JoinKind, limit: usize) -> Self {
        JoinState { kind, sides: Sides::with_overlay(limit) }
    }

    /// Applies the changes of one epoch and appends what they do to the result to `out`.
    pub fn apply(
        &mut self,
        rows: Vec<((Option<Row>, Row), Diff)>,
        reference: &[((Row, Row), Diff)],
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
        let (rows, keyless) = by_key(rows);
        if self.kind == JoinKind::Left {
            let start = out.len();
            out.extend(keyless.into_iter().map(|(row, diff)| ((row, None), diff)));
            consolidate_from(out, start);
        }
        let mut runs = (Run::default(), Run::default());
        for_each_pair(&Batch::new(&rows), &Batch::new(reference), |key, rows, reference| {
            let start = out.len();
            self.change(key, rows, reference, &mut runs, out);
            if !reference.is_empty() {
                consolidate_from(out, start);
            }
        });
        self.sides.rows.load(runs.0);
        self.sides.reference.load(runs.1);
    }

    /// The changed rows meet the old references, then all rows meet the changed references.
    fn change(
        &mut self,
        key: &Row,
        rows: &Group<'_, Row>,
        reference: &Group<'_, Row>,
        (row_run, reference_run): &mut (Run, Run),
        out: &mut Vec<((Row, Option<Row>), Diff)>,
    ) {
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

        let mut meet = |row: &Row, count: i64| {
            for (reference, diff) in reference {
                out.push(((row.clone(), Some((*reference).clone())), (count * diff) as Diff));
            }
            if left && had_any != has_any {
                let sign = if has_any { -1 } else { 1 };
                out.push(((row.clone(), None), (count * sign) as Diff));
            }
        };
        let mut stored = self.sides.rows.at(key);
        if !stored.is_new() {
            for (row, diff) in rows {
                stored.add(row, *diff);
            }
            if !reference.is_empty() {
                for entry in stored.scan() {
                    meet(&Row::from(entry.order), entry.count);
                }
            }
        } else {
            for (row, diff) in rows {
                meet(row, *diff);
                row_run.push(row, b"", *diff);
            }
            row_run.close_key(key);
        }
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
