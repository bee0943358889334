//! Runs a plan: actors that read, compute and commit, one epoch after the other.
//!
//! | actor | thread | mailbox | job |
//! |---|---|---|---|
//! | supervisor | the caller's | events of all others | cuts epochs, writes the epoch log, decides, stops everything |
//! | ingress | one a source and epoch | none | reads files and table versions to batches |
//! | worker | one a timely worker | batches and epoch ends, bounded | computes; its operators never block |
//! | committer | one a table | closed epochs, bounded | writes files and commits |

mod audit;
mod backlog;
mod checkpoint;
mod clean;
mod clock;
mod cluster;
mod columns;
mod commit;
mod computed;
mod definitions;
mod difference;
mod follow;
mod grow;
mod hydrate;
mod ingress;
mod intent;
mod lock;
mod loss;
mod memory;
mod names;
mod optimize;
mod outside;
mod preamble;
mod query;
mod report;
mod resume;
mod retry;
mod scratch;
mod settle;
mod spread;
mod supervisor;
mod tables;
mod told;
mod verify;
mod watch;
mod worker;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::cluster::Member;
use crate::error::{Error, Result};
use crate::lake::{EpochLog, History, Lake};
use crate::pipeline::Pipeline;
use crate::plan::{Plan, analyze};

pub use cluster::join;
pub use definitions::Recompute;
pub use follow::{Continuous, Stop};
pub use intent::{FlowChanges, Selection};
pub use memory::{Memory, TableChange};
pub use optimize::{OptimizeReport, TableCare, optimize, optimize_in};
pub(crate) use query::chosen;
pub use query::{QueryResult, describe_resolved, query, query_as_of, query_resolved};
pub use report::{HotKey, ProcessReport, RuleReport, RunReport, SourceReport, TableReport, WorkerReport};
pub use verify::{TableVerdict, VerifyReport, verify};
pub use worker::COMMUNICATION;

/// Takes lines of progress.
pub type Progress = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// Takes what an epoch did.
pub type OnEpoch = std::sync::Arc<dyn Fn(&RunReport) + Send + Sync>;

/// How to run.
#[derive(Clone)]
pub struct RunOptions {
    /// Timely workers, that is, computing threads. The result does not depend on it.
    pub workers: usize,
    /// Fixes the wall clock of every epoch of the run; the machine's clock otherwise. It cannot be earlier than the wall of
    /// the last epoch.
    pub wall: Option<DateTime<Utc>>,
    /// Compute tables anew whose definitions have changed; otherwise that is an error.
    pub recompute: bool,
    /// Bytes of memory that the run may take for state and for the rows of an epoch; unless said otherwise, half of what
    /// the machine, or the container, has, shared by the processes of a run that are on it. State beyond that lies in files, as far as it does not come and go with an epoch.
    pub memory: Option<u64>,
    /// Where these files lie; unless said otherwise, in the storage, or, if that is no local disk, in the system's folder for
    /// temporary files.
    pub scratch: Option<PathBuf>,
    /// Which datasets take part, and which are made anew.
    pub selection: Selection,
    /// What has become of flows that are not there any more.
    pub flows: FlowChanges,
    /// Called with what is being done, as work goes on.
    pub progress: Option<Progress>,
    /// Go on until stopped; otherwise the run ends when nothing is new.
    pub continuous: Option<Continuous>,
    /// Lets others ask the run to end after the epoch at hand.
    pub stop: Stop,
    /// Called after each complete epoch, with what it did.
    pub on_epoch: Option<OnEpoch>,
    /// After how long without a sign of life another run counts as dead, if its process cannot be asked about.
    pub lock_timeout: Duration,
    /// The run is in several processes, and this is the one that leads. See [`join`] for the others.
    pub member: Option<std::sync::Arc<Member>>,
    /// The pipeline's storage, opened before; for tests of its failures.
    #[doc(hidden)]
    pub lake: Option<Lake>,
    /// Called on a worker before it takes in an epoch; for tests of containment.
    #[doc(hidden)]
    pub before_epoch: Option<fn(usize, u64)>,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            workers: 1,
            wall: None,
            recompute: true,
            memory: None,
            scratch: None,
            selection: Selection::default(),
            flows: FlowChanges::default(),
            progress: None,
            continuous: None,
            stop: Stop::default(),
            on_epoch: None,
            lock_timeout: lock::LOCK_TIMEOUT,
            member: None,
            lake: None,
            before_epoch: None,
        }
    }
}

impl RunOptions {
    /// Bytes of memory that this process may take. Processes of one machine share what it has.
    fn memory(&self) -> u64 {
        let here = |member: &std::sync::Arc<Member>| if member.hosts.are_loopback() { member.hosts.len() } else { 1 };
        let share = self.member.as_ref().map_or(1, here).max(1) as u64;
        self.memory.unwrap_or_else(|| scratch::default_memory() / share)
    }
}

/// Runs the pipeline over everything that is new, and ends; or, continuous, goes on until it is stopped.
///
/// Tables change by exactly the difference; where there is none, nothing is committed. A run that was interrupted is
/// finished first.
///
/// # Errors
/// Mistakes of the pipeline (user), rows that violate an expectation with the action FAIL (data), files and storage
/// (external). In each case the epoch at hand is in no table, or is finished by the next run.
pub fn run(pipeline: &Pipeline, options: &RunOptions) -> Result<RunReport> {
    let io = io()?;
    let Some(member) = &options.member else { return preamble::run(pipeline, options, None, io.handle()) };
    let lead = std::sync::Arc::new(cluster::Lead::gather(member, pipeline, options)?);
    let result = preamble::run(pipeline, options, Some(&lead), io.handle());
    cluster::end(lead, result)
}

/// What a dry run finds.
#[derive(Debug)]
pub struct DryRun {
    /// The plan.
    pub plan: Plan,
    /// What the next run would compute anew, in the order of the graph.
    pub recompute: Vec<Recompute>,
}

/// Plans the pipeline without touching data: names, types, columns, AUTO CDC rules. Reads the schemas of sources, and
/// compares the definitions with those under which existing tables were made.
///
/// # Errors
/// The mistakes of the pipeline, and definitions that do not fit existing tables (user); sources whose schema cannot be read
/// (external).
pub fn dry_run(pipeline: &Pipeline) -> Result<DryRun> {
    let io = io()?;
    let lake = match io.block_on(Lake::existing(&pipeline.storage)) {
        Ok(lake) => Some(lake),
        Err(error) if error.code() == "STORAGE_NOT_ACCESSIBLE" => None,
        Err(error) => return Err(error),
    };
    let history = match &lake {
        Some(lake) => io.block_on(EpochLog::load(lake))?.1,
        None => History::default(),
    };
    let outside = outside::LakeOutside {
        lake: lake.clone(),
        io: io.handle().clone(),
        remember: false,
        renamed: history.renamed.clone(),
    };
    let plan = analyze(pipeline, &outside)?;
    definitions::start(&plan, &history)?;
    definitions::keep_kind(&plan, &history, &BTreeSet::new())?;
    let recompute = match &lake {
        Some(lake) => {
            tables::fit(&plan, lake, io.handle())?;
            definitions::recompute(&plan, &history, lake, io.handle())?
        }
        None => Vec::new(),
    };
    Ok(DryRun { plan, recompute })
}

fn io() -> Result<tokio::runtime::Runtime> {
    // Readers of tables with deletion vectors hold a blocking thread a file.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4096)
        .enable_all()
        .thread_name("silverflow-io")
        .build()
        .map_err(|e| Error::external("NO_THREADS", "the runtime for input and output cannot start").caused_by(e))
}
