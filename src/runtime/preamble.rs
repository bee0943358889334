//! How a run starts: storage, history, plan, backlog, lock, tables, workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crossbeam_channel::bounded;
use silverflow_operators::Shelf;
use tokio::runtime::Handle;

use super::backlog::{Backlog, Found};
use super::checkpoint::{Checkpoints, DAMAGED};
use super::clean::clean;
use super::clock::RunClock;
use super::cluster::{Lead, Opening};
use super::definitions::{keep_kind, recompute, refuse, start, table_of};
use super::follow::{Follow, Look};
use super::grow::SCHEMA_GREW;
use super::intent::{Intent, renamed};
use super::lock::{RunLock, refuse_if_owned};
use super::outside::LakeOutside;
use super::report::RunReport;
use super::resume::Resume;
use super::retry::Retry;
use super::scratch::Scratch;
use super::spread::Spread;
use super::supervisor::Supervisor;
use super::tables::{Tables, describe, held_elsewhere};
use super::told::Told;
use super::worker::Workers;
use super::{FlowChanges, RunOptions};
use crate::dataflow::{Start, TableId, UNUSABLE};
use crate::error::{Error, Result};
use crate::lake::{Abort, EpochLog, History, Lake};
use crate::pipeline::Pipeline;
use crate::plan::{Plan, analyze};

/// Runs everything that is new, or what the options select, and goes on if they say so.
/// `lead` are the other processes of a run, if there are any.
pub(super) fn run(
    pipeline: &Pipeline,
    options: &RunOptions,
    lead: Option<&Arc<Lead>>,
    io: &Handle,
) -> Result<RunReport> {
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
    let (_, seen) = io.block_on(EpochLog::load(&lake))?;
    refuse_if_owned(&lake, &seen, options.lock_timeout, io)?;
    let ready = Ready::find(pipeline, &lake, &seen, options, &options.flows, io)?;
    for source in &ready.plan.sources {
        // An option that is misspelt may have been meant to change what is read.
        let unknown = source.warnings.iter().filter(|(code, _)| *code == "UNKNOWN_OPTION");
        unknown.for_each(|(_, message)| say(&format!("warning: flow {}: {message}", source.flow)));
    }
    let clock = RunClock::new(&seen, options);
    if ready.is_idle(&seen) && !clock.is_due() && options.continuous.is_none() {
        let cleaned = clean(&ready.plan, &seen, clock.now())?;
        let mut report = RunReport { cleaned, ..ready.report(pipeline, &lake, &seen) };
        Told::default().changed(&ready.plan, &ready.backlog, &mut report, &say);
        return Ok(report);
    }
    let (lock, log, history) = RunLock::take(&lake, options.lock_timeout, io, &say)?;
    let selective = options.selection.is_selective();
    let mut begun = Some((log, history.is_as(&seen).then_some(ready)));
    let mut session = Session {
        pipeline,
        options: options.clone(),
        lead,
        io,
        lake,
        lock: Arc::new(lock),
        total: None,
        told: Told::default(),
        say: &say,
    };
    if history.open.is_some() && selective {
        // What an earlier run left open is of another kind: it is finished first, by itself.
        session.run(begun.take(), true)?;
    }
    let mut retry = Retry::new(options.continuous.is_some());
    loop {
        let before = session.epochs();
        let Err(error) = session.run(begun.take(), false) else { return Ok(session.total.unwrap_or_default()) };
        if [SCHEMA_GREW, DAMAGED].contains(&error.code()) {
            say(&error.to_string());
            if session.epochs() > before {
                session.options.selection = session.options.selection.rest();
            }
            session.lock.check()?;
            continue;
        }
        // A refresh that is begun a second time would do what it has done once more.
        let pause = if selective { None } else { retry.pause(&error, session.epochs() > before) };
        let Some(pause) = pause else { return Err(error) };
        say(&format!("{error}\n  trying again in {pause:?}"));
        if !options.stop.pause(pause) {
            return Err(error);
        }
        session.lock.check()?;
    }
}

/// From the storage as it is to the end of the run, or to the first error; then another one can follow.
struct Session<'a> {
    pipeline: &'a Pipeline,
    options: RunOptions,
    lead: Option<&'a Arc<Lead>>,
    io: &'a Handle,
    lake: Lake,
    lock: Arc<RunLock>,
    /// What all sessions did.
    total: Option<RunReport>,
    told: Told,
    say: &'a dyn Fn(&str),
}

impl Session<'_> {
    fn epochs(&self) -> usize {
        self.total.as_ref().map_or(0, |total| total.epochs.len())
    }

    /// Runs, with the log and what there is to do, if they are known already. With `finish_only` it ends when what an earlier
    /// run left open is finished.
    fn run(&mut self, begun: Option<(EpochLog, Option<Ready>)>, finish_only: bool) -> Result<()> {
        let (options, io, lake) = (&self.options, self.io, &self.lake);
        let (mut log, ready) = match begun {
            Some(begun) => begun,
            None => {
                let (mut log, _) = io.block_on(EpochLog::load(lake))?;
                log.resume(self.lock.generation)?;
                (log, None)
            }
        };
        let mut history = log.history().clone();
        let find =
            |history: &History| Ready::find(self.pipeline, lake, history, options, &options.flows.left(history), io);
        let mut ready = match ready {
            Some(ready) => ready,
            None => find(&history)?,
        };
        let missing = || {
            Error::external(
                "EPOCH_LOG_MISSING",
                format!("the tables in {} hold epochs or runs that its epoch log does not know", lake.url()),
            )
            .help("restore _silverflow/epochs; without it everything would be read a second time")
        };
        let generation = self.lock.generation;
        // The run that began the epoch may be at a commit still, or wake up to one: what the tables hold of it is known only
        // when it is shut out. So may a process of a run that lost it and ended.
        let fenced = self.lock.took_over || history.open.is_some() || self.lead.is_some();
        let open = |ready: &Ready, history: &History| -> Result<Tables> {
            let mut tables =
                Tables::open(&ready.plan, lake, history, (&ready.intent, &ready.start.compare), generation, io)?;
            if fenced {
                tables.fence(generation, io)?;
            }
            Ok(tables)
        };
        let mut tables = match open(&ready, &history) {
            Err(e) if e.code() == "FENCED" && self.lock.is_last(lake, io) => return Err(missing().caused_by(e)),
            other => other?,
        };
        if let Some(begin) = history.open.clone().filter(|begin| !begin.forgotten.is_empty())
            && !tables.epochs.values().flatten().any(|at| *at >= begin.epoch)
        {
            (self.say)(&format!(
                "epoch {}, a full refresh, was interrupted before anything was stored; nothing is changed",
                begin.epoch
            ));
            let reason = "a full refresh was interrupted".to_owned();
            io.block_on(log.abort(&Abort { epoch: begin.epoch, reason, stray: history.stray.clone() }))?;
            history = log.history().clone();
            if finish_only {
                return Ok(());
            }
            ready = find(&history)?;
            tables = open(&ready, &history)?;
        }
        let report = ready.report(self.pipeline, lake, &history);
        let total = self.total.get_or_insert_with(|| report.clone());
        let clock = RunClock::new(&history, options);
        let idle = ready.is_done(&history) && !clock.is_due() && tables.orphans.is_empty();
        if idle && options.continuous.is_none() {
            // Readers find empty tables rather than none.
            total.cleaned += clean(&ready.plan, &history, clock.now())?;
            self.told.changed(&ready.plan, &ready.backlog, total, self.say);
            return Ok(());
        }
        if tables.epochs.values().flatten().any(|epoch| *epoch >= history.next) {
            return Err(missing());
        }
        let Ready { plan, mut start, mut backlog, intent, left } = ready;
        let view = intent.view(&plan, &history).into_owned();
        let resume = history.open.as_ref().map(|open| {
            let elsewhere =
                |table: &str, source: &str| held_elsewhere(lake, (table, source), (open.epoch, generation), io);
            Resume::of(&plan, open, &tables.epochs, &start.compare, elsewhere)
        });
        let resume = resume.transpose()?;
        start.compare.extend(resume.iter().flat_map(|resume| &resume.stray));
        let compare = start.compare.iter().copied().chain(tables.orphans.iter().copied()).collect();
        let (events_out, events) = bounded(256);
        let (commits_out, commits) = bounded(256);
        let mut checkpoints = Checkpoints::new(self.pipeline, lake)?;
        let memory = options.memory();
        let scratch = Arc::new(Scratch::new(memory, options.scratch.clone().unwrap_or_else(|| lake.scratch())));
        let (mut base, state) = checkpoints.find(&plan, &start, &history, (io, scratch.folder()), self.say).unzip();
        // What replaces a table, and what leaves some out, is told by rows that only this process sees.
        let alone = !intent.replaced.is_empty() || options.selection.is_selective();
        let homes = self.lead.map(|lead| lead.homes(&plan, alone)).unwrap_or_default();
        let shelf: Arc<dyn Shelf> = Arc::<Scratch>::clone(&scratch);
        let mut start = Start { homes, state: state.map(Arc::new), shelf: Some(shelf), ..start };
        let renamed = renamed(&options.flows.left(&history), &history)?;
        let begin = |plan: &Arc<Plan>, start: &Start, checkpoint: Option<u64>| {
            let opening = Opening { generation, renamed: renamed.clone(), checkpoint };
            let seat = self.lead.map(|lead| lead.open(plan, start, &opening, &events_out)).transpose()?;
            Workers::start(plan, start, options, &events_out, seat)
        };
        let mut workers = match begin(&plan, &start, base.as_ref().map(|base| base.epoch)) {
            Err(error) if error.code() == UNUSABLE && base.is_some() => {
                (self.say)(&format!("the checkpoint cannot be used in all processes: {error}"));
                (base, start.state) = (None, None);
                begin(&plan, &start, None)?
            }
            begun => begun?,
        };
        let report = RunReport { checkpoint: base.as_ref().map(|base| base.epoch), ..report };
        let mut follow = options
            .continuous
            .map(|continuous| Follow::new(continuous, Backlog::places(&plan), Backlog::has_tables(&plan)));
        if let Some(follow) = &mut follow {
            // What is there may still be being written.
            backlog = follow.look(|look| Backlog::find(&plan, &view, &intent, io, look))?;
        }
        let mut supervisor = Supervisor {
            plan,
            begin: start,
            intent,
            finish_only,
            left,
            foreign: resume.iter().flat_map(|resume| resume.foreign.clone()).collect(),
            compare,
            log,
            walls: history.walls.clone(),
            clock,
            versions: history.versions.clone(),
            lake: lake.clone(),
            lock: Arc::clone(&self.lock),
            io: io.clone(),
            mail: workers.mail(),
            lead: self.lead.cloned(),
            events,
            committers: BTreeMap::new(),
            tables,
            commits_out,
            commits,
            checkpoints,
            scratch,
            base,
            report,
            total: total.rest(),
            spread: Spread::default(),
            on_epoch: options.on_epoch.clone(),
            stop: options.stop.clone(),
            told: std::mem::take(&mut self.told),
        };
        let mut outcome = supervisor.hydrate(&view);
        if let Err(error) = &outcome
            && supervisor.abandons_checkpoint(error, self.say)
        {
            let _ = workers.stop();
            supervisor.events.try_iter().for_each(drop);
            workers = begin(&supervisor.plan, &supervisor.begin, None)?;
            supervisor.mail = workers.mail();
            outcome = supervisor.hydrate(&view);
        }
        let outcome = outcome.and_then(|()| supervisor.drive(&history, resume, &mut backlog, follow, self.say));
        let ended = workers.stop();
        self.told = std::mem::take(&mut supervisor.told);
        let processes = supervisor.processes();
        supervisor.total.spilled_bytes = processes.iter().map(|process| process.spilled_bytes).sum();
        supervisor.spread.tell_processes(processes, &mut supervisor.total);
        total.add(&supervisor.total);
        outcome.and(ended)
    }
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
    fn find(
        pipeline: &Pipeline,
        lake: &Lake,
        history: &History,
        options: &RunOptions,
        flows: &FlowChanges,
        io: &Handle,
    ) -> Result<Ready> {
        let renamed = renamed(flows, history)?;
        let outside = LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: true, renamed };
        let plan = Arc::new(analyze(pipeline, &outside)?);
        let mut intent = Intent::of(&options.selection, flows, pipeline, &plan, history)?;
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
        let stray = history.stray.iter().filter_map(|key| {
            let table = table_of(&plan, key)?;
            // A quarantine that a table no longer has, and never had when an epoch was complete.
            let TableId::Quarantine(index) = table else { return Some(table) };
            let there = plan.datasets.get(index)?.quarantine.is_some() || history.versions.contains_key(key);
            there.then_some(table)
        });
        let (stray, left): (BTreeSet<TableId>, BTreeSet<TableId>) =
            stray.partition(|table| intent.opens(&plan, *table));
        start.compare.extend(stray);
        start.compare.retain(|table| intent.opens(&plan, *table));
        let timed = |index: &usize| plan.datasets.get(*index).is_some_and(|d| !d.boundaries.is_empty());
        start.rejudge.retain(|index| intent.takes_part(*index) || timed(index));
        start.compare.extend(intent.compared(&plan));
        found.changed.retain(|id, _| intent.opens(&plan, *id));
        found.unchanged(&start.compare)?;
        let backlog = Backlog::find(&plan, &view, &intent, io, Look::AsItIs)?;
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
