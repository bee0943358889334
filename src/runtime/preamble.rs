//! How a run starts: storage, history, plan, backlog, tables, workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crossbeam_channel::bounded;
use tokio::runtime::Handle;

use super::RunOptions;
use super::backlog::{Backlog, Found};
use super::checkpoint::Checkpoints;
use super::clock::RunClock;
use super::definitions::{recompute, refuse, start, table_of};
use super::outside::LakeOutside;
use super::report::RunReport;
use super::resume::Resume;
use super::supervisor::Supervisor;
use super::tables::{Tables, describe};
use super::worker::Workers;
use crate::dataflow::{Start, TableId};
use crate::error::{Error, Result};
use crate::lake::{EpochLog, Lake};
use crate::pipeline::Pipeline;
use crate::plan::analyze;

/// Runs everything that is new.
pub(super) fn run(pipeline: &Pipeline, options: &RunOptions, io: &Handle) -> Result<RunReport> {
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
    let (log, history) = io.block_on(EpochLog::load(&lake))?;
    let outside =
        LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: true, renamed: history.renamed.clone() };
    let plan = Arc::new(analyze(pipeline, &outside)?);
    let begin = start(&plan, &history)?;
    if !options.recompute {
        refuse(recompute(&plan, &history, &lake, io)?)?;
    }
    let mut report = RunReport {
        pipeline: pipeline.name.clone(),
        storage: lake.url().to_string(),
        last_epoch: history.last_complete,
        ..RunReport::default()
    };
    let mut backlog = Backlog::find(&plan, &history, io)?;
    let stray: Vec<TableId> = history.stray.iter().filter_map(|key| table_of(&plan, key)).collect();
    let mut found = Found::read(&plan, &history, &lake, io)?;
    let compare: BTreeSet<TableId> = found.gone.iter().copied().chain(begin.compare).chain(stray).collect();
    found.unchanged(&compare)?;
    let mut begin = Start { compare, ..begin };
    let clock = RunClock::new(&history, options);
    if history.open.is_none() && backlog.is_empty() && begin.compare.is_empty() && !clock.is_due() {
        if history.last_complete.is_none() {
            // Readers find empty tables rather than none.
            Tables::open(&plan, &lake, &history, io)?;
        }
        report.tables = describe(&plan, &lake, &history);
        return Ok(report);
    }
    let tables = Tables::open(&plan, &lake, &history, io)?;
    if history.last_complete.is_none() && history.open.is_none() && tables.epochs.values().any(Option::is_some) {
        return Err(Error::external(
            "EPOCH_LOG_MISSING",
            format!("the tables in {} hold epochs that its epoch log does not know", lake.url()),
        )
        .help("restore _silverflow/epochs; without it everything would be read a second time"));
    }
    report.tables = describe(&plan, &lake, &history);
    let resume = history.open.as_ref().map(|open| Resume::of(&plan, open, &tables.epochs, &begin.compare));
    begin.compare.extend(resume.iter().flat_map(|resume| &resume.stray));
    let compare = begin.compare.iter().copied().chain(tables.orphans.iter().copied()).collect();
    let (events_out, events) = bounded(256);
    let (commits_out, commits) = bounded(256);
    let mut checkpoints = Checkpoints::new(pipeline, &lake)?;
    let (base, state) = checkpoints.find(&plan, &begin, &history, io, &say).unzip();
    report.checkpoint = base.as_ref().map(|base| base.epoch);
    let begin = Start { state: state.map(Arc::new), ..begin };
    let mut workers = Workers::start(&plan, &begin, options, &events_out)?;
    let mut supervisor = Supervisor {
        plan,
        begin,
        compare,
        log,
        walls: history.walls.clone(),
        clock,
        versions: history.versions.clone(),
        lake,
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
    let mut outcome = supervisor.hydrate(&history);
    if let Err(error) = &outcome
        && supervisor.abandons_checkpoint(error, &say)
    {
        let _ = workers.stop();
        supervisor.events.try_iter().for_each(drop);
        workers = Workers::start(&supervisor.plan, &supervisor.begin, options, &events_out)?;
        supervisor.mail = workers.mail();
        outcome = supervisor.hydrate(&history);
    }
    let outcome = outcome.and_then(|()| supervisor.drive(&history, resume, &mut backlog, &say));
    let ended = workers.stop();
    outcome?;
    ended?;
    Ok(supervisor.report)
}
