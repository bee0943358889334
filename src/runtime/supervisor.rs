//! The supervisor of a run: cuts epochs, keeps the epoch log, and sees each epoch through all actors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::Utc;
use crossbeam_channel::{Receiver, Sender, bounded, select};
use tokio::runtime::Handle;

use super::RunOptions;
use super::backlog::{Backlog, gone};
use super::commit::{CommitDone, Committer, ToCommitter};
use super::computed::{Computed, faults};
use super::definitions::{fingerprints, keeper, start, table_key};
use super::hydrate::{Hydration, hydrate};
use super::ingress::{Ingress, Read};
use super::outside::LakeOutside;
use super::report::RunReport;
use super::tables::{Tables, describe};
use super::worker::{FromWorker, Mail, Workers};
use crate::dataflow::{Inlet, Start, TableId};
use crate::error::{Error, Fault, Result};
use crate::lake::{Abort, Begin, Complete, EpochLog, History, Lake, Position};
use crate::pipeline::Pipeline;
use crate::plan::{Feed, Plan, SourceKind, analyze};

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
    let outside = LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: true };
    let plan = Arc::new(analyze(pipeline, &outside)?);
    let begin = start(&plan, &history)?;
    let mut report = RunReport {
        pipeline: pipeline.name.clone(),
        storage: lake.url().to_string(),
        last_epoch: history.last_complete,
        ..RunReport::default()
    };
    let mut backlog = Backlog::find(&plan, &history, io)?;
    let begin = Start { compare: gone(&plan, &history, &lake, io)?.chain(begin.compare).collect(), ..begin };
    if history.open.is_none() && backlog.is_empty() && begin.compare.is_empty() {
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
    let compare = begin.compare.iter().copied().chain(tables.orphans.iter().copied()).collect();
    let (events_out, events) = bounded(256);
    let (commits_out, commits) = bounded(256);
    let workers = Workers::start(&plan, &begin, options, &events_out)?;
    let mut supervisor = Supervisor {
        plan,
        begin,
        compare,
        log,
        walls: history.walls.clone(),
        versions: history.versions.clone(),
        lake,
        io: io.clone(),
        mail: workers.mail(),
        events,
        committers: BTreeMap::new(),
        tables,
        commits_out,
        commits,
        report,
        options,
    };
    let outcome = supervisor.drive(&history, &mut backlog, &say);
    let ended = workers.stop();
    outcome?;
    ended?;
    Ok(supervisor.report)
}

struct Supervisor<'a> {
    plan: Arc<Plan>,
    begin: Start,
    /// Tables to be set by comparison in the next epoch that is cut.
    compare: BTreeSet<TableId>,
    log: EpochLog,
    walls: BTreeMap<u64, i64>,
    versions: BTreeMap<String, i64>,
    lake: Lake,
    io: Handle,
    mail: Mail,
    events: Receiver<FromWorker>,
    committers: BTreeMap<TableId, Committer>,
    tables: Tables,
    commits_out: Sender<CommitDone>,
    commits: Receiver<CommitDone>,
    report: RunReport,
    options: &'a RunOptions,
}

impl Supervisor<'_> {
    fn drive(&mut self, history: &History, backlog: &mut Backlog, say: &dyn Fn(&str)) -> Result<()> {
        self.hydrate(history)?;
        if let Some(open) = history.open.clone() {
            self.finish(open, say)?;
            // What the open epoch read is behind it now.
            let history = self.log.history().clone();
            *backlog = Backlog::find(&self.plan, &history, &self.io)?;
        }
        while !backlog.is_empty() || !self.compare.is_empty() {
            let share = backlog.take();
            self.epoch(share, say)?;
        }
        Ok(())
    }

    /// Brings the operators to the end of the last complete epoch, without any output.
    fn hydrate(&mut self, history: &History) -> Result<()> {
        let epoch = self.begin.hydrated;
        hydrate(&self.plan, &self.begin, history, |table| self.tables.get(table), &self.mail, &self.io)?;
        self.end_epoch(epoch)?;
        let mut computed = self.collect(epoch, Computed::default())?;
        if let Some(error) = faults(std::mem::take(&mut computed.faults)) {
            return Err(error.help("rows that were stored before do not fit the definitions of now"));
        }
        self.start_committers();
        for (table, batches) in computed.changes {
            self.hand_over(table, ToCommitter::Hold(batches))?;
        }
        Ok(())
    }

    fn start_committers(&mut self) {
        for (id, table) in self.tables.take() {
            let keeps_epoch = match id {
                TableId::Rows(index) | TableId::Quarantine(index) => {
                    self.plan.datasets.get(index).is_some_and(|d| d.replay_point)
                }
            };
            self.committers.insert(id, Committer::start(id, table, keeps_epoch, &self.io, &self.commits_out));
        }
    }

    /// Finishes the epoch that an earlier run began. If nothing of it is stored and it cannot be read as recorded, or
    /// definitions have changed since, it is aborted: its input comes again in a new epoch.
    fn finish(&mut self, open: Begin, say: &dyn Fn(&str)) -> Result<()> {
        let epoch = open.epoch;
        let same = open.fingerprints == fingerprints(&self.plan);
        let index_of = |id: &str| self.plan.sources.iter().position(|s| s.id == id);
        let mut share = BTreeMap::new();
        let mut stored = BTreeSet::new();
        for (id, position) in &open.sources {
            let Some(index) = index_of(id) else { continue };
            let kept = keeper(&self.plan, index).is_some_and(|at| {
                [TableId::Rows(at), TableId::Quarantine(at)]
                    .iter()
                    .any(|t| self.tables.epochs.get(t).copied().flatten().is_some_and(|e| e >= epoch))
            });
            if kept {
                stored.insert(index);
            } else {
                share.insert(index, position.clone());
            }
        }
        if stored.is_empty() && !same {
            say(&format!("epoch {epoch} was interrupted before anything was stored; its input is read again"));
            return self.abort(epoch, "superseded by changed definitions".to_owned());
        }
        say(&format!("epoch {epoch} was interrupted; finishing it"));
        self.walls.insert(epoch, open.wall_micros);
        for index in stored.iter().copied() {
            self.replay_stored(index, epoch)?;
        }
        let none_stored = stored.is_empty();
        match self.compute(epoch, open.wall_micros, &share) {
            Ok(computed) => self.settle(&open, computed, !same),
            Err(error) if none_stored && error.fault() == Fault::External => {
                self.abort(epoch, error.to_string())?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Rows of an interrupted epoch that its replay point holds already.
    fn replay_stored(&self, source: usize, epoch: u64) -> Result<()> {
        let Some(at) = keeper(&self.plan, source) else { return Ok(()) };
        let Some(dataset) = self.plan.datasets.get(at) else { return Ok(()) };
        for (id, inlet, schema) in [
            (TableId::Rows(at), Inlet::Rows(at), Some(&dataset.schema)),
            (TableId::Quarantine(at), Inlet::Quarantine(at), dataset.quarantine.as_ref()),
        ] {
            let (Some(committer), Some(schema)) = (self.committers.get(&id), schema) else { continue };
            let table = self.io.block_on(crate::lake::Table::open(&self.lake, &committer.path))?;
            if let Some(table) = table {
                let hydration = Hydration {
                    table: &table,
                    version: None,
                    only: Some(epoch),
                    inlet,
                    epoch,
                    schema: Arc::clone(schema),
                    wall: dataset.wall,
                };
                hydration.send(&self.walls, &self.mail, &self.io)?;
            }
        }
        Ok(())
    }

    /// Cuts an epoch and sees it through.
    fn epoch(&mut self, share: BTreeMap<usize, Position>, say: &dyn Fn(&str)) -> Result<()> {
        let past = self.tables.epochs.values().copied().flatten().max().unwrap_or(0);
        let epoch = self.log.history().next.max(past + 1).max(1);
        let wall = self.options.wall.unwrap_or_else(Utc::now).timestamp_micros();
        let source = |index: &usize| self.plan.sources.get(*index);
        let begin = Begin {
            epoch,
            wall_micros: wall,
            sources: share.iter().filter_map(|(i, p)| Some((source(i)?.id.clone(), p.clone()))).collect(),
            fingerprints: fingerprints(&self.plan),
            once: share.keys().filter_map(source).filter(|s| s.once).map(|s| s.id.clone()).collect(),
        };
        self.io.block_on(self.log.begin(&begin))?;
        self.walls.insert(epoch, wall);
        let files: usize = share.values().map(|p| if let Position::Files(f) = p { f.len() } else { 0 }).sum();
        self.report.files += files as u64;
        say(&format!("epoch {epoch}: reading {files} files"));
        match self.compute(epoch, wall, &share) {
            Ok(computed) => {
                say(&format!("epoch {epoch}: committing"));
                self.settle(&begin, computed, false)
            }
            Err(error) => {
                // A bug of ours says nothing about the input: the epoch stays open and is tried again.
                if error.fault() != Fault::Internal {
                    self.abort(epoch, error.to_string())?;
                }
                Err(error)
            }
        }
    }

    fn abort(&mut self, epoch: u64, reason: String) -> Result<()> {
        self.io.block_on(self.log.abort(&Abort { epoch, reason }))
    }

    /// Reads and computes an epoch. Nothing is stored yet.
    fn compute(&mut self, epoch: u64, wall_micros: i64, share: &BTreeMap<usize, Position>) -> Result<Computed> {
        let (done_out, done) = bounded(share.len().max(1));
        for (index, position) in share {
            let Some(source) = self.plan.sources.get(*index) else { continue };
            let stored = match (&source.kind, keeper(&self.plan, *index)) {
                (SourceKind::DeltaSnapshot { .. }, Some(at)) => match self.committers.get(&TableId::Rows(at)) {
                    Some(committer) => {
                        self.io.block_on(crate::lake::Table::open(&self.lake, &committer.path))?.map(Arc::new)
                    }
                    None => None,
                },
                _ => None,
            };
            Ingress {
                index: *index,
                source: source.clone(),
                position: position.clone(),
                epoch,
                wall_micros,
                stored,
                io: self.io.clone(),
                mail: self.mail.clone(),
            }
            .start(done_out.clone());
        }
        drop(done_out);
        let mut computed = Computed::default();
        // Workers hand over results while sources are still being read, so both are heard.
        let mut reading = share.len();
        while reading > 0 {
            select! {
                recv(done) -> read => {
                    let Ok(Read { source, result }) = read else { break };
                    reading -= 1;
                    if let Err(error) = result {
                        if error.fault() == Fault::Internal {
                            self.ended()?;
                        }
                        return Err(match self.plan.sources.get(source) {
                            Some(s) => error.flow(&s.id).epoch(epoch),
                            None => error,
                        });
                    }
                }
                recv(self.events) -> event => {
                    computed.hear(event.map_err(|_| Error::internal("the workers have ended"))?, epoch)?;
                }
            };
        }
        self.end_epoch(epoch)?;
        let computed = self.collect(epoch, computed)?;
        match faults(computed.faults.clone()) {
            Some(error) => Err(error),
            None => Ok(computed),
        }
    }

    fn end_epoch(&self, epoch: u64) -> Result<()> {
        if self.mail.end(epoch) {
            return Ok(());
        }
        self.ended()?;
        Err(Error::internal("the workers have ended"))
    }

    /// An error, if the workers have said why they ended.
    fn ended(&self) -> Result<()> {
        for event in self.events.try_iter() {
            Computed::default().hear(event, 0)?;
        }
        Ok(())
    }

    fn collect(&self, epoch: u64, mut computed: Computed) -> Result<Computed> {
        computed.collect(&self.events, self.mail.workers(), epoch)?;
        Ok(computed)
    }

    fn hand_over(&self, table: TableId, message: ToCommitter) -> Result<()> {
        match self.committers.get(&table) {
            Some(committer) if committer.send(message) => Ok(()),
            Some(_) => Err(Error::internal(format!("the committer of {} has ended", table_key(&self.plan, table)))),
            None => Err(Error::internal(format!("{} has no committer", table_key(&self.plan, table)))),
        }
    }

    /// Commits an epoch to all tables, replay points first, and marks it complete.
    ///
    /// With `hold`, tables that are to be set by comparison are left for the next epoch.
    fn settle(&mut self, begin: &Begin, mut computed: Computed, hold: bool) -> Result<()> {
        let epoch = begin.epoch;
        let compare = if hold { BTreeSet::new() } else { std::mem::take(&mut self.compare) };
        let replay = |table: &TableId| match table {
            TableId::Rows(index) | TableId::Quarantine(index) => {
                self.plan.datasets.get(*index).is_some_and(|d| d.replay_point)
            }
        };
        let mut wanted: BTreeSet<TableId> = computed.changes.keys().copied().collect();
        wanted.extend(compare.iter().copied());
        let (first, second): (Vec<TableId>, Vec<TableId>) = wanted.into_iter().partition(replay);
        for group in [first, second] {
            let mut open = 0;
            for table in group {
                let batches = computed.changes.remove(&table).unwrap_or_default();
                if hold && self.compare.contains(&table) {
                    self.hand_over(table, ToCommitter::Hold(batches))?;
                    continue;
                }
                let compare = compare.contains(&table);
                self.hand_over(table, ToCommitter::Commit { epoch, batches, compare })?;
                open += 1;
            }
            let mut failed = Vec::new();
            for _ in 0..open {
                let CommitDone { table, result } =
                    self.commits.recv().map_err(|_| Error::internal("the committers have ended"))?;
                match result {
                    Ok((committed, version)) => {
                        self.versions.insert(table_key(&self.plan, table), version);
                        self.tables.epochs.insert(table, Some(epoch));
                        self.count_commit(table, committed, version);
                    }
                    Err(error) => failed.push(error),
                }
            }
            if let Some(error) = Error::all(failed) {
                return Err(error);
            }
        }
        self.io.block_on(self.log.complete(&Complete { epoch, versions: self.versions.clone() }))?;
        for (dataset, counts) in &computed.counts {
            if let Some(report) = self.report.tables.iter_mut().find(|t| t.dataset == *dataset) {
                report.count(counts);
            }
        }
        self.report.epochs.push(epoch);
        self.report.last_epoch = Some(epoch);
        Ok(())
    }

    fn count_commit(&mut self, table: TableId, committed: Option<crate::lake::Committed>, version: i64) {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        let append =
            self.plan.datasets.get(index).is_some_and(|d| matches!(d.feed, Feed::Append(_)) && !d.replay_point);
        let Some(report) = self.report.tables.iter_mut().find(|t| t.dataset == index) else { return };
        let rows = matches!(table, TableId::Rows(_));
        if rows {
            report.version = version;
        }
        if let Some(committed) = committed {
            report.committed = true;
            if rows {
                report.inserted += committed.inserted;
                report.deleted += committed.deleted;
                if append {
                    report.verdicts_withdrawn += i64::try_from(committed.deleted).unwrap_or(i64::MAX);
                }
            }
        }
    }
}
