//! From a plan to a timely dataflow: Arrow batches between stateless operators, packed rows in keyed ones.

mod batch;
mod build;
mod clock;
mod codec;
mod eval;
mod fan;
mod fault;
mod keyed;
mod load;
mod merge;
mod metrics;
mod moments;
mod pack;
mod rules;
mod states;
#[cfg(test)]
mod tests;
mod unnest;

pub use batch::{Batch, relabel};
pub use build::{Dataflow, Handle, Inlet, Outcome, Start, TableId, build, with_wall};
pub use codec::{Codec, ROW_FORMAT, normalise};
pub use eval::row_json;
pub use fault::{RowFault, SHOWN_ROWS};
pub use load::{KeyLoad, LaneLoad};
pub use metrics::{Counts, RuleCounts, Tally};
pub use states::{Alarm, Registered, Restored, States, UNUSABLE};
