//! One row a key.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::batch::Batch;
use crate::epochs::{Apply, Rows, Shared, shared, unary};
use crate::row::{Row, stable_hash};
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{KeyedState, Run, Shelf};
use crate::{Diff, Epoch};

/// [`Dedup::dedup`] on a collection of rows by key.
pub trait Dedup<'s> {
    /// For each key the least of its rows, once.
    ///
    /// A row counts as present while its multiplicity is positive. When the least row goes, the
    /// next one takes its place.
    ///
    /// State: every distinct row. Cost of a change: O(log n).
    #[must_use]
    fn dedup(self, name: &str) -> Rows<'s, Row>
    where
        Self: Sized,
    {
        self.dedup_with(name, shared(DedupState::new()))
    }

    /// [`Dedup::dedup`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn dedup_with(self, name: &str, state: Shared<DedupState>) -> Rows<'s, Row>;
}

impl<'s> Dedup<'s> for Rows<'s, (Row, Row)> {
    fn dedup_with(self, name: &str, state: Shared<DedupState>) -> Rows<'s, Row> {
        unary::<_, (), _>(self, name, |(key, _): &(Row, Row)| stable_hash(key), state)
    }
}

/// [`Distinct::distinct_rows`] on a collection of rows.
pub trait Distinct<'s> {
    /// Each row once, while its multiplicity is positive.
    ///
    /// State: every distinct row, once. Cost of a change: O(log n).
    #[must_use]
    fn distinct_rows(self, name: &str) -> Rows<'s, Row>
    where
        Self: Sized,
    {
        self.distinct_rows_with(name, shared(DistinctState::new()))
    }

    /// [`Distinct::distinct_rows`] on state that the caller holds too.
    #[must_use]
    fn distinct_rows_with(self, name: &str, state: Shared<DistinctState>) -> Rows<'s, Row>;
}

impl<'s> Distinct<'s> for Rows<'s, Row> {
    fn distinct_rows_with(self, name: &str, state: Shared<DistinctState>) -> Rows<'s, Row> {
        unary::<_, (), _>(self, name, |row: &Row| stable_hash(row), state)
    }
}

/// The state of [`Dedup::dedup`].
#[derive(Debug, Default)]
pub struct DedupState {
    rows: KeyedState,
    /// Keys that are new in the epoch.
    new: Run,
}

impl DedupState {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_overlay(limit: usize) -> Self {
        DedupState { rows: KeyedState::with_overlay(limit), new: Run::default() }
    }

    /// Applies the changes of one epoch and appends what they do to the result to `out`.
    pub fn apply(&mut self, rows: &[((Row, Row), Diff)], out: &mut Vec<(Row, Diff)>) {
        self.change(rows, out);
        self.settle();
    }

    fn settle(&mut self) {
        self.rows.load(std::mem::take(&mut self.new));
    }

    fn change(&mut self, rows: &[((Row, Row), Diff)], out: &mut Vec<(Row, Diff)>) {
        let run = &mut self.new;
        Batch::new(rows).for_each(Row::cmp, |key, group| {
            let mut at = self.rows.at(key);
            if at.is_new() {
                for (row, count) in group {
                    run.push(row, b"", *count);
                }
                run.close_key(key);
                let least = group.iter().find(|(_, count)| *count > 0);
                out.extend(least.map(|(row, _)| ((*row).clone(), 1)));
                return;
            }
            let old = at.first().map(|entry| Row::from(entry.order));
            for (row, diff) in group {
                at.add(row, *diff);
            }
            let new = at.first().map(|entry| entry.order);
            if old.as_deref() != new {
                let new = new.map(Row::from);
                out.extend(old.map(|row| (row, -1)));
                out.extend(new.map(|row| (row, 1)));
            }
        });
    }
}

impl Apply<(Row, Row), (), Row> for DedupState {
    fn portion(&mut self, _: Epoch, rows: Vec<((Row, Row), Diff)>, _: Vec<((), Diff)>, out: &mut Vec<(Row, Diff)>) {
        self.change(&rows, out);
        self.rows.absorb(&mut self.new);
    }

    fn end(&mut self, _: Epoch) {
        self.settle();
    }
}

impl State for DedupState {
    fn kind(&self) -> &'static str {
        "dedup"
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::new(self.kind(), vec![self.rows.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [rows] = snapshot.expect(self.kind())?;
        self.rows.thaw(rows, share)?;
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.rows.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }
}

/// The state of [`Distinct::distinct_rows`].
#[derive(Debug, Default)]
pub struct DistinctState {
    /// Each row is a key with one entry without bytes.
    rows: KeyedState,
    /// Rows that are new in the epoch.
    new: Run,
}

impl DistinctState {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_overlay(limit: usize) -> Self {
        DistinctState { rows: KeyedState::with_overlay(limit), new: Run::default() }
    }

    /// Applies the changes of one epoch and appends what they do to the result to `out`.
    pub fn apply(&mut self, rows: Vec<(Row, Diff)>, out: &mut Vec<(Row, Diff)>) {
        self.change(rows, out);
        self.settle();
    }

    fn settle(&mut self) {
        self.rows.load(std::mem::take(&mut self.new));
    }

    fn change(&mut self, rows: Vec<(Row, Diff)>, out: &mut Vec<(Row, Diff)>) {
        let rows: Vec<((Row, ()), Diff)> = rows.into_iter().map(|(row, diff)| ((row, ()), diff)).collect();
        let nothing = Row::default();
        let run = &mut self.new;
        Batch::new(&rows).for_each(<()>::cmp, |row, group| {
            let diff: i64 = group.iter().map(|(_, diff)| diff).sum();
            let mut at = self.rows.at(row);
            let (old, new) = if !at.is_new() {
                at.add(&nothing, diff)
            } else {
                run.push(&nothing, b"", diff);
                run.close_key(row);
                (0, diff)
            };
            let change = i32::from(new > 0) - i32::from(old > 0);
            if change != 0 {
                out.push((row.clone(), change as Diff));
            }
        });
    }
}

impl Apply<Row, (), Row> for DistinctState {
    fn portion(&mut self, _: Epoch, rows: Vec<(Row, Diff)>, _: Vec<((), Diff)>, out: &mut Vec<(Row, Diff)>) {
        self.change(rows, out);
        self.rows.absorb(&mut self.new);
    }

    fn end(&mut self, _: Epoch) {
        self.settle();
    }
}

impl State for DistinctState {
    fn kind(&self) -> &'static str {
        "distinct"
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::new(self.kind(), vec![self.rows.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [rows] = snapshot.expect(self.kind())?;
        self.rows.thaw(rows, share)?;
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.rows.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }
}
