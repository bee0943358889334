//! Incremental dataflow operators over opaque byte rows.

mod row;
mod snapshot;
mod state;
#[cfg(test)]
mod testing;

pub use row::{Row, stable_hash};
pub use snapshot::SnapshotError;
pub use state::{Bytewise, Entry, KeyMut, KeyedState, Order, Run};

/// The logical time of the dataflow.
pub type Epoch = u64;
/// A multiplicity, or a change of one.
pub type Diff = isize;
