//! Delta tables, the epoch log and what else is durable under a pipeline's storage.
//!
//! This is the only module that touches Delta logs and the object store. It knows nothing of datasets and flows:
//! a [`Table`] takes the exact changes of an epoch and applies them, an [`EpochLog`] keeps what was read and decided.
//! Everything async needs a multi-threaded tokio runtime.

mod between;
mod change;
mod commit;
mod compact;
mod compare;
mod data;
mod definition;
mod difference;
mod disk;
mod epoch_log;
mod epochs;
pub mod external;
#[doc(hidden)]
pub mod faults;
mod foreign;
pub mod heartbeat;
mod index;
mod index_file;
mod layout;
mod learn;
mod locate;
mod log;
mod mapped;
mod objects;
mod policy;
pub mod query;
mod scan;
pub mod schemas;
mod stats;
mod storage;
mod table;
#[cfg(test)]
mod tests;
pub mod types;
mod upkeep;
mod vacuum;
mod vector;

pub use between::ChangeStream;
pub use commit::{Commit, Committed};
pub use compare::{Comparison, Mismatch};
pub(crate) use data::{Failure, undamaged};
pub use epoch_log::EpochLog;
pub use epochs::{Abort, Begin, Complete, FileId, Generation, History, Owner, Position, SeenFile};
pub use layout::Layout;
pub(crate) use mapped::map;
pub use scan::{RowStream, Scan};
pub use storage::Lake;
pub use table::{Evolution, Table, TableSpec};
pub use upkeep::{Done, Maintained, Upkeep};
