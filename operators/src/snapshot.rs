//! What a state holds at one moment, to be kept outside the process and read back.

use std::sync::Arc;

use thiserror::Error;

use crate::state::{Frozen, Shelf};

/// Raised whenever the meaning or the layout of any operator's state changes. State of another format is not read.
pub const STATE_FORMAT: u32 = 3;

/// Why a snapshot could not be read. Nothing is lost by it: state can always be rebuilt from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// A snapshot of another operator.
    #[error("the snapshot is not of `{expected}`")]
    Kind {
        /// The operator that was to be restored.
        expected: &'static str,
    },
    /// The content contradicts itself.
    #[error("the snapshot is damaged")]
    Damaged,
    /// There is neither memory nor a file for what has to be copied.
    #[error("there is no room for it")]
    NoRoom,
}

/// The keys that are one worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    worker: u64,
    workers: u64,
}

impl Share {
    /// All keys.
    pub const ALL: Share = Share { worker: 0, workers: 1 };

    /// Those of one of so many workers.
    #[must_use]
    pub fn new(worker: u64, workers: u64) -> Share {
        Share { worker, workers: workers.max(1) }
    }

    /// Whether the key with this [`stable_hash`](crate::stable_hash) is among them.
    #[must_use]
    pub fn has(self, hash: u64) -> bool {
        hash % self.workers == self.worker
    }

    /// Whether these are all.
    #[must_use]
    pub fn is_all(self) -> bool {
        self.workers == 1 && self.worker == 0
    }
}

/// What one operator holds at one moment.
///
/// It shares memory with the state that it is of, which can go on meanwhile, and may be sent to another thread. Kept
/// outside the process it is its [kind](Snapshot::kind), and of each part the sealed entries and counts of all
/// [`Frozen`] runs.
#[derive(Clone, Debug)]
pub struct Snapshot {
    kind: String,
    parts: Vec<Vec<Frozen>>,
}

impl Snapshot {
    /// A snapshot of the given kind, from its parts.
    #[must_use]
    pub fn new(kind: impl Into<String>, parts: Vec<Vec<Frozen>>) -> Self {
        Snapshot { kind: kind.into(), parts }
    }

    /// The operator's kind. State of another kind is not restored.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The operator's keyed states in a fixed order, each as runs of entries in any order.
    #[must_use]
    pub fn parts(&self) -> &[Vec<Frozen>] {
        &self.parts
    }

    /// Entries, dead ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().flatten().map(|run| run.sealed().len()).sum()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts, if there are `N` of them and the kind is the expected one.
    pub(crate) fn expect<const N: usize>(&self, kind: &'static str) -> Result<&[Vec<Frozen>; N], SnapshotError> {
        if self.kind != kind {
            return Err(SnapshotError::Kind { expected: kind });
        }
        self.parts.as_slice().try_into().map_err(|_| SnapshotError::Damaged)
    }
}

/// What an operator remembers between epochs.
pub trait State {
    /// What the state is of: snapshots of another kind are not restored.
    fn kind(&self) -> &'static str;

    /// What the state holds now. Cost: the changes since the last snapshot, and a look at the counts of entries that
    /// have changed; the entries themselves are shared.
    fn snapshot(&mut self) -> Snapshot;

    /// Adds what a snapshot holds of the keys in the share. Several snapshots with distinct keys can be restored into one
    /// state, which is how shards move between workers.
    ///
    /// What is not content but configuration (the kind of a lookup, say) is no part of a snapshot.
    ///
    /// # Errors
    /// If the snapshot is of another operator, or a part of it cannot be copied. The state is then of no use.
    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError>;

    /// Puts what is remembered from now on on a shelf.
    fn put_on(&mut self, shelf: &Arc<dyn Shelf>);

    /// Memory in use, in bytes, without the allocator's own.
    fn bytes(&self) -> usize;

    /// Entries that are held.
    fn len(&self) -> usize;

    /// Whether nothing is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Appends a number as eight bytes, little endian.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}
