//! Incremental dataflow operators over opaque byte rows.
//!
//! The operators work on [timely] and [differential](differential_dataflow) collections of
//! [`Row`]s in [`Epoch`]s. They know nothing of columns: whoever encodes rows chooses an encoding
//! whose byte equality and byte order are the ones that are meant.
//!
//! | operator | from | to | state | cost of one change |
//! |---|---|---|---|---|
//! | [`Lookup`] | rows by lookup key; reference | row, and its reference or none | both sides; of a [settled](LookupState::settled) reference, only the rows without one | O(log n), and for a reference the rows of its key |
//! | [`EquiJoin`] | rows by join key; reference | row with each of its references | both sides | O(log n), and the rows of its key on the other side |
//! | [`Once`] | rows by lookup key; reference | row with the references known before its epoch | references | O(log n) and the references of its key |
//! | [`Dedup`] | rows by key | the least row of each key | distinct rows | O(log n) |
//! | [`Distinct`] | rows | each row once | distinct rows | O(log n) |
//! | [`Scd1`] | changes by key; truncates | the newest row of each key | distinct changes; if [append-only](Scd1State::append_only), one a key | O(log n); a truncate: all keys |
//! | [`Scd2`] | changes by key | versions of each key | distinct changes, run heads | O(log n), whatever the key's history |
//! | [`Fill`] | changes by key; truncates | the changes that count, completed from earlier ones | distinct changes, completed values | O(log n), and the later changes that inherit from it; a truncate: all keys |
//! | [`Clock`] | rows with the moments at which their meaning changes; what the clock shows | each row with the moment at which it stands | rows with a moment ahead | O(log n) for a row that comes, goes or falls due |
//! | [`commit()`] | changes and errors of a table | one call for each closed epoch | the open epochs | O(1) |
//!
//! What holds for all of them:
//!
//! - The result is a function of the input's multiset. It depends neither on the order nor on the
//!   epochs in which rows come, nor on the number of workers. Retractions are as normal as
//!   insertions.
//! - An operator applies an epoch when all of it is there, in epoch order, and emits the net
//!   difference: for each key, each distinct output at most once an epoch.
//! - It does so some thousand rows at a time, and the other operators of the worker have their
//!   turn in between; only then is the epoch over. (Truncates, and one key's own updates, are taken
//!   in one go.)
//! - Rows go to the worker `stable_hash(key) % workers` ([`stable_hash`]), so that snapshots can be
//!   split and joined when the number of workers changes.
//! - The logic is a plain struct with `apply`, usable without a dataflow; the `..._with` form of an
//!   operator runs on such a struct, [shared] with the worker loop.
//! - What it remembers is a [`State`]: a [`Snapshot`] of it shares its memory, is written down
//!   elsewhere, and can be restored on any number of workers.
//! - No operator blocks, reads a clock, or panics on data.

mod batch;
mod clock;
mod commit;
mod dedup;
mod epochs;
mod event;
mod fill;
mod history;
mod join;
mod lookup;
mod once;
mod row;
mod scd1;
mod scd2;
mod sides;
mod snapshot;
mod state;
#[cfg(test)]
mod testing;
mod truncate;

pub use clock::{Clock, ClockState, Moment, Standing, Timed};
pub use commit::{Closed, HasEpoch, commit};
pub use dedup::{Dedup, DedupState, Distinct, DistinctState};
pub use epochs::{Rows, Shared, shared};
pub use event::{Change, Upsert};
pub use fill::{Fill, FillState};
pub use join::{EquiJoin, JoinKind, JoinState};
pub use lookup::{Lookup, LookupKind, LookupState};
pub use once::{Once, OnceKind, OnceState};
pub use row::{Block, Row, stable_hash};
pub use scd1::{Scd1, Scd1State};
pub use scd2::{Scd2, Scd2State, Version};
pub use snapshot::{STATE_FORMAT, Share, Snapshot, SnapshotError, State};
pub use state::{Bytewise, CHUNK, Entry, Frozen, KeyMut, KeyedState, Order, Run, Sealed, Shelf, ShelfFile, checksums};

/// The logical time of the dataflow.
pub type Epoch = u64;
/// A multiplicity, or a change of one.
pub type Diff = isize;
