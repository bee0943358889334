//! Truncates: deletes of all keys at once.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::Diff;
use crate::epochs::Rows;
use crate::row::Row;
use crate::snapshot::{Share, SnapshotError};
use crate::state::{Bytewise, Frozen, KeyedState};

/// The sequences of the truncates, the same on every worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truncates(BTreeMap<Row, i64>);

impl Truncates {
    /// Applies changes and returns the sequences at which a truncate appeared or went, ascending.
    pub(crate) fn apply(&mut self, changes: &[(Row, Diff)]) -> Vec<Row> {
        let mut before: BTreeMap<&Row, bool> = BTreeMap::new();
        for (sequence, diff) in changes {
            let count = self.0.entry(sequence.detached()).or_default();
            before.entry(sequence).or_insert(*count > 0);
            *count += *diff as i64;
        }
        let moved = before.into_iter().filter(|(sequence, was)| self.at(sequence) != *was);
        let moved = moved.map(|(sequence, _)| sequence.clone()).collect();
        self.0.retain(|_, count| *count != 0);
        moved
    }

    /// Whether there is a truncate at `sequence`.
    pub(crate) fn at(&self, sequence: &[u8]) -> bool {
        self.0.get(sequence).is_some_and(|count| *count > 0)
    }

    /// Whether there is a truncate in `[from, to)`.
    pub(crate) fn between(&self, from: &[u8], to: &[u8]) -> bool {
        from < to && self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))).any(|(_, count)| *count > 0)
    }

    /// The greatest sequence of a truncate.
    pub(crate) fn greatest(&self) -> Option<&Row> {
        self.0.iter().rfind(|(_, count)| **count > 0).map(|(sequence, _)| sequence)
    }

    pub(crate) fn freeze(&self) -> Vec<Frozen> {
        let mut state = KeyedState::<Bytewise>::new();
        let mut at = state.at(&Row::default());
        for (sequence, count) in &self.0 {
            at.add(sequence, *count);
        }
        drop(at);
        state.freeze()
    }

    /// Adds what another worker's snapshot holds. Every worker knows all truncates, so shards
    /// repeat each other and do not add up.
    pub(crate) fn thaw(&mut self, frozen: &[Frozen]) -> Result<(), SnapshotError> {
        let mut state = KeyedState::<Bytewise>::new();
        state.thaw(frozen, Share::ALL)?;
        self.0.extend(state.at(&Row::default()).scan().map(|entry| (Row::from(entry.order), entry.count)));
        Ok(())
    }
}

/// A truncate, addressed to a worker.
pub(crate) type ForWorker = (u64, Row);

/// Each truncate once for every worker.
pub(crate) fn for_all_workers<'s>(truncates: Rows<'s, Row>) -> Rows<'s, ForWorker> {
    let workers = truncates.inner.scope().peers() as u64;
    truncates.flat_map(move |sequence| (0..workers).map(move |worker| (worker, sequence.clone())))
}

/// The truncates of an epoch, without the address.
pub(crate) fn received(truncates: Vec<(ForWorker, Diff)>) -> Vec<(Row, Diff)> {
    truncates.into_iter().map(|((_, sequence), diff)| (sequence, diff)).collect()
}
