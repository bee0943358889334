//! What a state holds at one moment, to be kept outside the process and read back.

use bytes::{Buf, Bytes};
use thiserror::Error;

use crate::state::Frozen;

/// Raised whenever the meaning or the layout of any operator's state changes. State of another format is not read.
pub const STATE_FORMAT: u32 = 2;

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

    /// Adds what a snapshot holds of the keys whose [`stable_hash`](crate::stable_hash) passes `keep`. Several
    /// snapshots with distinct keys can be restored into one state, which is how shards move between workers.
    ///
    /// What is not content but configuration (the kind of a lookup, say) is no part of a snapshot.
    ///
    /// # Errors
    /// If the snapshot is of another operator. The state is then unchanged.
    fn restore(&mut self, snapshot: &Snapshot, keep: &dyn Fn(u64) -> bool) -> Result<(), SnapshotError>;

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

/// Bytes that are read front to back. Nothing is believed of a length that they contain.
pub(crate) struct Source(Bytes);

impl Source {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Source(bytes)
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        self.0.try_get_u64_le().ok()
    }

    /// The next bytes, without a copy.
    pub(crate) fn bytes(&mut self, length: usize) -> Option<Bytes> {
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
