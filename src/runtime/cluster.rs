//! One run in several processes.
//!
//! Every process makes the same plan from the same definitions and runs its share of the workers. Process 0 leads: it is
//! the supervisor of the run, and has the epoch log. The others serve: they read the files that they are given, compute, and
//! commit the tables that are theirs when they are told to.
//!
//! ```text
//!              orders: open, wall, end of an epoch, files to read, commit, close
//!   lead ────────────────────────────────────────────────────────────────────────> serve
//!   process 0 <─────────────────────────────────────────────────────────────────── process 1, 2, …
//!              answers: ready, faults, counts, what reading and commits came to
//!        workers <════════════ rows by key, progress: timely's own ════════════> workers
//! ```
//!
//! A process that is lost ends the run in all of them. What was committed stays, and the next run goes on from the epoch log.

mod deal;
mod hydration;
mod lead;
mod message;
mod network;
mod serve;
mod wire;

use std::sync::Arc;

use crate::error::Result;

pub(super) use hydration::Elsewhere;
pub(super) use lead::{Lead, Opening, is_loss};
pub use serve::join;

/// Ends a run: the others hear how it went. What broke because a process was lost ends as that loss.
pub(super) fn end<T>(lead: Arc<Lead>, result: Result<T>) -> Result<T> {
    let result = result.map_err(|error| if is_loss(&error) { lead.reason().unwrap_or(error) } else { error });
    if let Some(lead) = Arc::into_inner(lead) {
        lead.over(result.as_ref().map(drop));
    }
    result
}
