//! How a run starts: storage, history, plan, backlog, lock, tables, workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crossbeam_channel::bounded;
use tokio::runtime::Handle;

use super::RunOptions;
use super::backlog::{Backlog, Found};
use super::checkpoint::Checkpoints;
use super::clean::clean;
use super::clock::RunClock;
use super::definitions::{keep_kind, recompute, refuse, start, table_of};
use super::grow::SCHEMA_GREW;
use super::intent::{Intent, renamed};
use super::lock::{RunLock, refuse_if_owned};
use super::outside::LakeOutside;
use super::report::RunReport;
use super::resume::Resume;
use super::supervisor::Supervisor;
use super::tables::{Tables, describe};
use super::worker::Workers;
use crate::dataflow::{Start, TableId};
use crate::error::{Error, Result};
use crate::lake::{Abort, EpochLog, History, Lake};
use crate::pipeline::Pipeline;
use crate::plan::{Plan, analyze};

/// Runs everything that is new, or what the options select.
pub(super) fn run(pipeline: &Pipeline, options: &RunOptions, io: &Handle) -> Result<RunReport> {
    loop {
        match pass(pipeline, options, false, io) {
            // Each time at least one column more.
            Err(error) if error.code() == SCHEMA_GREW => {
                if let Some(progress) = &options.progress {
                    progress(&error.to_string());
                }
            }
            other => return other,
        }
    }
}

/// One dataflow from start to end. With `finish_only` it ends when what an earlier run left open is finished.
fn pass(pipeline: &Pipeline, options: &RunOptions, finish_only: bool, io: &Handle) -> Result<RunReport> {
    let say = |line: &str| {
        if let Some(progress) = &options.progress {
            progress(line);
        }
    };
    // Scans start tasks of the runtime.
    let _context = io.enter();
    let lake = match &options.lake {
        Some(lake) => lake.clone(),
        None => io.block_on(Lake::open(&pipeline.storage))?,
    };
    let (_, mut seen) = io.block_on(EpochLog::load(&lake))?;
    refuse_if_owned(&lake, &seen, options.lock_timeout, io)?;
    if seen.open.is_some() && options.selection.is_selective() && !finish_only {
        // What an earlier run left open is of another kind: it is finished first, by itself.
        pass(pipeline, options, true, io)?;
        seen = io.block_on(EpochLog::load(&lake))?.1;
    }
    let ready = Ready::find(pipeline, &lake, &seen, options, io)?;
    let now = || options.wall.unwrap_or_else(chrono::Utc::now).timestamp_micros();
    if ready.is_idle(&seen) && !RunClock::new(&seen, options).is_due() {
        let cleaned = clean(&ready.plan, &seen, now())?;
        return Ok(RunReport { cleaned, ..ready.report(pipeline, &lake, &seen) });
    }
    let (lock, mut log, mut history) = RunLock::take(&lake, options.lock_timeout, io, &say)?;
    let missing = || {
        Error::external(
            "EPOCH_LOG_MISSING",
            format!("the tables in {} hold epochs or runs that its epoch log does not know", lake.url()),
        )
        .help("restore _silverflow/epochs; without it everything would be read a second time")
    };
    let mut ready = if history.is_as(&seen) { ready } else { Ready::find(pipeline, &lake, &history, options, io)? };
    let mut tables =
        match Tables::open(&ready.plan, &lake, &history, (&ready.intent, &ready.start.compare), lock.generation, io) {
            Err(error) if error.code() == "FENCED" && lock.is_last(&lake, io) => return Err(missing().caused_by(error)),
            other => other?,
        };
    if let Some(open) = history.open.clone().filter(|open| !open.forgotten.is_empty())
        && !tables.epochs.values().flatten().any(|at| *at >= open.epoch)
    {
        say(&format!(
            "epoch {}, a full refresh, was interrupted before anything was stored; nothing is changed",
            open.epoch
        ));
        let reason = "a full refresh was interrupted".to_owned();
        io.block_on(log.abort(&Abort { epoch: open.epoch, reason, stray: history.stray.clone() }))?;
        history = log.history().clone();
        ready = Ready::find(pipeline, &lake, &history, options, io)?;
        tables =
            Tables::open(&ready.plan, &lake, &history, (&ready.intent, &ready.start.compare), lock.generation, io)?;
    }
    let mut report = ready.report(pipeline, &lake, &history);
    if lock.took_over || history.open.is_some() {
        // The run that began the epoch may be at a commit still, or wake up to one.
        tables.fence(lock.generation, io)?;
    }
    let clock = RunClock::new(&history, options);
    if ready.is_done(&history) && !clock.is_due() && tables.orphans.is_empty() {
        // Readers find empty tables rather than none.
        report.tables = describe(&ready.plan, &lake, &history);
        return Ok(report);
    }
    if tables.epochs.values().flatten().any(|epoch| *epoch >= history.next) {
        return Err(missing());
    }
    let Ready { plan, mut start, mut backlog, intent, left } = ready;
    let resume = history.open.as_ref().map(|open| Resume::of(&plan, open, &tables.epochs, &start.compare));
    start.compare.extend(resume.iter().flat_map(|resume| &resume.stray));
    let compare = start.compare.iter().copied().chain(tables.orphans.iter().copied()).collect();
    let (events_out, events) = bounded(256);
    let (commits_out, commits) = bounded(256);
    let mut checkpoints = Checkpoints::new(pipeline, &lake)?;
    let (base, state) = checkpoints.find(&plan, &start, &history, io, &say).unzip();
    report.checkpoint = base.as_ref().map(|base| base.epoch);
    let start = Start { state: state.map(Arc::new), ..start };
    let mut workers = Workers::start(&plan, &start, options, &events_out)?;
    let mut supervisor = Supervisor {
        plan,
        begin: start,
        intent,
        finish_only,
        left,
        compare,
        log,
        walls: history.walls.clone(),
        clock,
        versions: history.versions.clone(),
        lake,
        lock: Arc::new(lock),
        io: io.clone(),
        mail: workers.mail(),
        events,
        committers: BTreeMap::new(),
        tables,
        commits_out,
        commits,
        checkpoints,
        base,
        report,
    };
    let view = supervisor.intent.view(&supervisor.plan, &history);
    let mut outcome = supervisor.hydrate(&view);
    if let Err(error) = &outcome
        && supervisor.abandons_checkpoint(error, &say)
    {
        let _ = workers.stop();
        supervisor.events.try_iter().for_each(drop);
        workers = Workers::start(&supervisor.plan, &supervisor.begin, options, &events_out)?;
        supervisor.mail = workers.mail();
        outcome = supervisor.hydrate(&view);
    }
    let outcome = outcome.and_then(|()| supervisor.drive(&history, resume, &mut backlog, &say));
    let ended = workers.stop();
    outcome?;
    ended?;
    let cleaned = clean(&supervisor.plan, supervisor.log.history(), now())?;
    Ok(RunReport { cleaned, ..supervisor.report })
}

/// What there is to do, and how.
struct Ready {
    plan: Arc<Plan>,
    start: Start,
    backlog: Backlog,
    intent: Intent,
    /// Tables that have missed changes, and take no part again.
    left: BTreeSet<TableId>,
}

impl Ready {
    fn find(pipeline: &Pipeline, lake: &Lake, history: &History, options: &RunOptions, io: &Handle) -> Result<Ready> {
        let renamed = renamed(&options.flows, history)?;
        let outside = LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: true, renamed };
        let plan = Arc::new(analyze(pipeline, &outside)?);
        let mut intent = Intent::of(&options.selection, &options.flows, pipeline, &plan, history)?;
        if let Some(open) = &history.open {
            intent.resume(open, &plan);
        }
        let view = intent.view(&plan, history);
        let mut start = start(&plan, &view)?;
        keep_kind(&plan, &view, &intent.replaced)?;
        if !options.recompute {
            refuse(recompute(&plan, &view, lake, io)?)?;
        }
        let mut found = Found::read(&plan, &view, lake, io)?;
        start.compare.extend(found.gone.iter().copied());
        let stray = history.stray.iter().filter_map(|key| table_of(&plan, key));
        let (stray, left): (BTreeSet<TableId>, BTreeSet<TableId>) =
            stray.partition(|table| intent.opens(&plan, *table));
        start.compare.extend(stray);
        start.compare.retain(|table| intent.opens(&plan, *table));
        let timed = |index: &usize| plan.datasets.get(*index).is_some_and(|d| !d.boundaries.is_empty());
        start.rejudge.retain(|index| intent.takes_part(*index) || timed(index));
        start.compare.extend(intent.compared(&plan));
        found.changed.retain(|id, _| intent.opens(&plan, *id));
        found.unchanged(&start.compare)?;
        let backlog = Backlog::find(&plan, &view, &intent, io)?;
        Ok(Ready { plan, start, backlog, intent, left })
    }

    /// Nothing is new, nothing is open, and the tables are there.
    fn is_idle(&self, history: &History) -> bool {
        history.last_complete.is_some() && self.is_done(history)
    }

    /// Nothing is new and nothing is open.
    fn is_done(&self, history: &History) -> bool {
        history.open.is_none() && self.backlog.is_empty() && self.start.compare.is_empty() && !self.intent.is_pending()
    }

    fn report(&self, pipeline: &Pipeline, lake: &Lake, history: &History) -> RunReport {
        RunReport {
            pipeline: pipeline.name.clone(),
            storage: lake.url().to_string(),
            last_epoch: history.last_complete,
            tables: describe(&self.plan, lake, history),
            ..RunReport::default()
        }
    }
}
