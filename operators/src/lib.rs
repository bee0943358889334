//! Incremental dataflow operators over opaque byte rows.

mod batch;
mod commit;
mod dedup;
mod epochs;
mod event;
mod fill;
mod join;
mod lookup;
mod row;
mod scd1;
mod scd2;
mod sides;
mod snapshot;
mod state;
#[cfg(test)]
mod testing;
mod truncate;

pub use commit::{Closed, HasEpoch, commit};
pub use dedup::{Dedup, DedupState, Distinct, DistinctState};
pub use epochs::{Rows, Shared, shared};
pub use event::{Change, Upsert};
pub use fill::{Fill, FillState};
pub use join::{EquiJoin, JoinKind, JoinState};
pub use lookup::{Lookup, LookupKind, LookupState};
pub use row::{Row, stable_hash};
pub use scd1::{Scd1, Scd1State};
pub use scd2::{Scd2, Scd2State, Version};
pub use snapshot::SnapshotError;
pub use state::{Bytewise, Entry, KeyMut, KeyedState, Order, Run};

/// The logical time of the dataflow.
pub type Epoch = u64;
/// A multiplicity, or a change of one.
pub type Diff = isize;
