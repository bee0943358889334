//! The state of operators that match rows with a reference.

use std::sync::Arc;

use crate::Diff;
use crate::epochs::{Apply, Rows, Second, Shared, binary};
use crate::row::{Row, stable_hash};
use crate::snapshot::{Share, Snapshot, SnapshotError};
use crate::state::{KeyMut, KeyedState, Run, Shelf};

/// A row with its key, or without.
pub(crate) type Keyed = (Option<Row>, Row);
/// A row with a reference, or without.
pub(crate) type Matched = (Row, Option<Row>);

/// The operator on `state` that matches rows with a reference.
pub(crate) fn match_rows<'s, S: Apply<Keyed, (Row, Row), Matched> + 'static>(
    rows: Rows<'s, Keyed>,
    reference: Rows<'s, (Row, Row)>,
    name: &str,
    state: Shared<S>,
) -> Rows<'s, Matched> {
    let reference_hash = |(key, _): &(Row, Row)| stable_hash(key);
    binary(rows, reference, Second::Keyed, name, row_hash, reference_hash, state)
}

/// Rows and reference rows by key, with their multiplicities.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    pub(crate) rows: KeyedState,
    pub(crate) reference: KeyedState,
    /// Keys that are new in the epoch.
    pub(crate) new: (Run, Run),
}

impl Sides {
    #[cfg(test)]
    pub(crate) fn with_overlay(limit: usize) -> Self {
        Sides { rows: KeyedState::with_overlay(limit), reference: KeyedState::with_overlay(limit), ..Self::default() }
    }

    /// The epoch has no further keys.
    pub(crate) fn settle(&mut self) {
        let (rows, reference) = std::mem::take(&mut self.new);
        self.rows.load(rows);
        self.reference.load(reference);
    }

    /// The portion at hand is over.
    pub(crate) fn absorb(&mut self) {
        self.rows.absorb(&mut self.new.0);
        self.reference.absorb(&mut self.new.1);
    }

    pub(crate) fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.rows.put_on(shelf);
        self.reference.put_on(shelf);
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
        share: Share,
    ) -> Result<(), SnapshotError> {
        let [rows, reference] = snapshot.expect(kind)?;
        self.rows.thaw(rows, share)?;
        self.reference.thaw(reference, share)?;
        Ok(())
    }
}

/// Updates of rows that may lack a key.
pub(crate) type KeyedUpdates = Vec<((Row, Row), Diff)>;

/// Splits rows into those with a key and those without, which match nothing.
pub(crate) fn by_key(rows: Vec<(Keyed, Diff)>) -> (KeyedUpdates, Vec<(Row, Diff)>) {
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
fn row_hash((key, row): &Keyed) -> u64 {
    stable_hash(key.as_ref().unwrap_or(row))
}

/// So many stored rows of a key follow a change of its reference at once.
pub(crate) const FEW: usize = if cfg!(test) { 4 } else { 64 };

/// A way through the stored rows of a key, which all follow a change of its reference.
#[derive(Debug)]
pub(crate) struct Walk<C> {
    pub(crate) key: Row,
    /// What each of them does.
    pub(crate) change: C,
    /// Rows that have followed already, ascending.
    pub(crate) skip: Vec<Row>,
    /// Whether rows need not be stored any more once they have followed.
    pub(crate) forget: bool,
    /// The last row that has followed.
    pub(crate) past: Option<Row>,
}

impl<C> Walk<C> {
    /// Calls `give` for up to `fuel` rows. True if there may be more.
    pub(crate) fn step(&mut self, stored: &mut KeyMut<'_>, fuel: usize, mut give: impl FnMut(&C, Row, i64)) -> bool {
        let (mut looked, mut more) = (0, false);
        let (mut gone, mut past) = (Vec::new(), None);
        for entry in stored.scan_after(self.past.as_deref()) {
            if looked == fuel {
                more = true;
                break;
            }
            looked += 1;
            let row = Row::from(entry.order);
            if self.forget {
                gone.push(row.clone());
            }
            past = Some(row.clone());
            if self.skip.binary_search(&row).is_err() {
                give(&self.change, row, entry.count);
            }
        }
        gone.iter().for_each(|row| stored.set(row, b"", 0));
        if past.is_some() {
            self.past = past;
        }
        more
    }
}
