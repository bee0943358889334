//! The state of operators that match rows with a reference.

use crate::Diff;
use crate::row::Row;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::state::KeyedState;

/// Rows and reference rows by key, with their multiplicities.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    pub(crate) rows: KeyedState,
    pub(crate) reference: KeyedState,
}

impl Sides {
    #[cfg(test)]
    pub(crate) fn with_overlay(limit: usize) -> Self {
        Sides { rows: KeyedState::with_overlay(limit), reference: KeyedState::with_overlay(limit) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes() + self.reference.bytes()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len() + self.reference.len()
    }

    pub(crate) fn snapshot(&mut self, kind: &'static str) -> Snapshot {
        Snapshot::new(kind, vec![self.rows.freeze(), self.reference.freeze()])
    }

    pub(crate) fn restore(
        &mut self,
        kind: &'static str,
        snapshot: &Snapshot,
        keep: &dyn Fn(u64) -> bool,
    ) -> Result<(), SnapshotError> {
        let [rows, reference] = snapshot.expect(kind)?;
        self.rows.thaw(rows, keep);
        self.reference.thaw(reference, keep);
        Ok(())
    }
}

/// Updates of rows that may lack a key.
pub(crate) type KeyedUpdates = Vec<((Row, Row), Diff)>;

/// Splits rows into those with a key and those without, which match nothing.
pub(crate) fn by_key(rows: Vec<((Option<Row>, Row), Diff)>) -> (KeyedUpdates, Vec<(Row, Diff)>) {
    let (mut keyed, mut keyless) = (Vec::with_capacity(rows.len()), Vec::new());
    for ((key, row), diff) in rows {
        match key {
            Some(key) => keyed.push(((key, row), diff)),
            None => keyless.push((row, diff)),
        }
    }
    (keyed, keyless)
}

/// The worker of a row: its key's, or any fixed one.
pub(crate) fn row_hash((key, row): &(Option<Row>, Row)) -> u64 {
    crate::row::stable_hash(key.as_ref().unwrap_or(row))
}
