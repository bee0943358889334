//! The supervisor of a run: cuts epochs, keeps the epoch log, and sees each epoch through all actors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use tokio::runtime::Handle;

use super::OnEpoch;
use super::backlog::Backlog;
use super::checkpoint::{Base, Checkpoints, DAMAGED, When};
use super::clean::clean;
use super::clock::RunClock;
use super::cluster::{Lead, is_loss};
use super::commit::{CommitDone, ToCommitter};
use super::computed::{Computed, faults};
use super::definitions::{keeper, table_key};
use super::follow::{Follow, Look, Stop};
use super::hydrate::{Hydration, Pace, Rows, hydrate, way_in};
use super::ingress::{Ingress, Read};
use super::intent::Intent;
use super::lock::RunLock;
use super::names::logged;
use super::report::{ProcessReport, RunReport};
use super::resume::Resume;
use super::scratch::Scratch;
use super::settle::Keeper;
use super::spread::Spread;
use super::tables::Tables;
use super::told::{self, Told};
use super::worker::{FromWorker, Mail};
use crate::dataflow::{Start, TableId};
use crate::error::{Error, Fault, Result};
use crate::lake::{Abort, Begin, EpochLog, History, Lake, Position, Table};
use crate::plan::{Input, Plan};
use crate::sources::NEW_COLUMNS;

/// One run: its actors, its log, and what it has come to.
pub(super) struct Supervisor {
    pub(super) plan: Arc<Plan>,
    pub(super) begin: Start,
    pub(super) intent: Intent,
    /// Nothing is begun.
    pub(super) finish_only: bool,
    /// Tables that have missed changes, since they take no part.
    pub(super) left: BTreeSet<TableId>,
    /// Tables that the plan does not have and that may lack what they should hold, by their names in the log.
    pub(super) foreign: BTreeSet<String>,
    /// Tables to be set by comparison in the next epoch that is cut.
    pub(super) compare: BTreeSet<TableId>,
    pub(super) log: EpochLog,
    pub(super) walls: BTreeMap<u64, i64>,
    pub(super) clock: RunClock,
    pub(super) versions: BTreeMap<String, i64>,
    pub(super) lake: Lake,
    pub(super) lock: Arc<RunLock>,
    pub(super) io: Handle,
    pub(super) mail: Mail,
    /// The other processes, if there are any.
    pub(super) lead: Option<Arc<Lead>>,
    pub(super) events: Receiver<FromWorker>,
    pub(super) committers: BTreeMap<TableId, Keeper>,
    pub(super) tables: Tables,
    pub(super) commits_out: Sender<CommitDone>,
    pub(super) commits: Receiver<CommitDone>,
    pub(super) checkpoints: Checkpoints,
    pub(super) scratch: Arc<Scratch>,
    /// What the operators have begun with.
    pub(super) base: Option<Base>,
    /// What the epoch at hand does.
    pub(super) report: RunReport,
    /// What the epochs before it did.
    pub(super) total: RunReport,
    pub(super) spread: Spread,
    pub(super) on_epoch: Option<OnEpoch>,
    pub(super) stop: Stop,
    pub(super) told: Told,
}

impl Supervisor {
    /// Finishes what the last run left open, and runs all epochs there are; then goes on, if there is someone to follow.
    pub(super) fn drive(
        &mut self,
        history: &History,
        resume: Option<Resume>,
        backlog: &mut Backlog,
        mut follow: Option<Follow>,
        say: &dyn Fn(&str),
    ) -> Result<()> {
        if let Some((open, resume)) = history.open.clone().zip(resume) {
            self.finish(open, resume, say)?;
            // What the open epoch read is behind it now.
            *backlog = match &mut follow {
                Some(follow) => follow.look_at_everything(|look| self.look(look))?,
                None => self.look(Look::AsItIs)?,
            };
        }
        if self.finish_only {
            return Ok(());
        }
        if follow.is_none() {
            let files = backlog.settle(&self.plan, &self.stop);
            told::waiting(&self.plan, &files, &mut self.report, say);
        }
        self.told.changed(&self.plan, backlog, &mut self.report, say);
        let mut prepared = false;
        loop {
            let before = self.total.epochs.len();
            while !backlog.is_empty() || !self.compare.is_empty() || self.intent.is_pending() || self.clock.is_due() {
                if self.stop.is_requested() {
                    break;
                }
                let share = backlog.take(self.scratch.epoch());
                let last = follow.is_none() && backlog.is_empty();
                self.epoch(share, last, say)?;
                self.checkpoint(When::GoingOn, say)?;
            }
            if follow.is_none() || self.total.epochs.len() > before {
                self.total.cleaned += clean(&self.plan, self.log.history(), self.clock.now())?;
            }
            let Some(follow) = &mut follow else { break };
            if !std::mem::replace(&mut prepared, true) {
                self.prepare()?;
            }
            if !follow.wait(&self.stop, self.clock.until_due()) {
                break;
            }
            self.check()?;
            *backlog = follow.look(|look| self.look(look))?;
            self.told.changed(&self.plan, backlog, &mut self.report, say);
        }
        self.total.add_sources(&std::mem::take(&mut self.report.sources));
        self.checkpoint(if follow.is_some() { When::Stopped } else { When::Ended }, say)?;
        if follow.is_none() && self.stop.is_requested() && !backlog.is_empty() {
            return Err(Error::external("INTERRUPTED", "the run was asked to stop, and there is more to read")
                .help("what was complete stays; run again for the rest"));
        }
        Ok(())
    }

    /// Whether the run is still its own, and whole.
    fn check(&self) -> Result<()> {
        self.lock.check()?;
        self.lead.as_ref().map_or(Ok(()), |lead| lead.check())
    }

    fn look(&self, look: Look<'_>) -> Result<Backlog> {
        let view = self.intent.view(&self.plan, self.log.history());
        Backlog::find(&self.plan, &view, &self.intent, &self.io, look)
    }

    /// Brings the operators to the end of the last complete epoch, without any output.
    pub(super) fn hydrate(&mut self, history: &History) -> Result<()> {
        let epoch = self.begin.hydrated;
        let base = self.base.as_ref().map(|base| &base.versions);
        let tables = |table| self.tables.get(table);
        let mut computed = Computed::default();
        let mut end = |at: u64| {
            self.end_epoch(at)?;
            computed.collect(&self.events, self.mail.workers(), at)?;
            history.walls.get(&epoch).iter().for_each(|wall| self.mail.wall(at + 1, **wall));
            Ok(())
        };
        // What is decided now is decided on all that there is; and other processes read their share on their own.
        let begun = self.base.as_ref().map_or(0, |base| base.epoch);
        let parts = self.begin.undecided.is_empty() && self.lead.is_none();
        let first = if parts { (begun + 1).min(epoch) } else { epoch };
        let mut pace = Pace::steps(first..=epoch, self.scratch.epoch(), &mut end);
        let to = (&self.mail, self.lead.as_deref(), &mut pace);
        let rows = hydrate(&self.plan, &self.begin, history, tables, base, to, &self.io)?;
        self.checkpoints.grown(rows);
        self.report.replayed = rows;
        self.end_epoch(epoch)?;
        let mut computed = self.collect(epoch, computed)?;
        self.sound()?;
        if let Some(state) = self.begin.state.take() {
            state.release();
        }
        if let Some(error) = faults(std::mem::take(&mut computed.faults)) {
            return Err(error.help("rows that were stored before do not fit the definitions of now"));
        }
        self.start_committers()?;
        for (table, batches) in computed.changes {
            self.hand_over(table, ToCommitter::Hold { epoch, batches })?;
        }
        Ok(())
    }

    /// Finishes the epoch that an earlier run began, or gives it up: its input then comes again in a new epoch.
    fn finish(&mut self, open: Begin, resume: Resume, say: &dyn Fn(&str)) -> Result<()> {
        let epoch = open.epoch;
        if resume.given_up {
            say(&format!("epoch {epoch} was interrupted before it was stored; its input is read again"));
            return self.abort(epoch, "it was interrupted, and cannot be repeated as it was".to_owned());
        }
        say(&format!("epoch {epoch} was interrupted; finishing it"));
        self.walls.insert(epoch, open.wall_micros);
        self.mail.wall(epoch, open.wall_micros);
        self.versions.extend(resume.elsewhere.clone());
        for (at, retracts) in &resume.stored {
            self.replay_stored(*at, *retracts, epoch)?;
        }
        match self.compute(epoch, open.wall_micros, &resume.again) {
            Ok(computed) => self.settle(&open, computed, Some(resume)),
            Err(error) => {
                // Otherwise the next run looks again at what can be finished.
                if resume.untouched && !is_loss(&error) {
                    self.abort(epoch, error.to_string())?;
                }
                Err(error)
            }
        }
    }

    /// What an interrupted epoch has changed in its replay point already. Where expectations have changed since, stored rows
    /// have been judged again as they are, and only those that came with the epoch are missing.
    fn replay_stored(&mut self, at: usize, retracts: bool, epoch: u64) -> Result<()> {
        let Some(dataset) = self.plan.datasets.get(at) else { return Ok(()) };
        for id in [TableId::Rows(at), TableId::Quarantine(at)] {
            let Some(committer) = self.committers.get(&id) else { continue };
            let Some(table) = self.io.block_on(Table::open(&self.lake, committer.path()))? else { continue };
            let before = self.versions.insert(table_key(&self.plan, id), table.version());
            let before = before.filter(|_| retracts || !self.begin.rejudge.contains(&at));
            // Nothing of a table that is read again is here but what came with the epoch.
            let before = before.filter(|_| !self.intent.replaced.contains(&at));
            let Some((inlet, schema)) = way_in(&self.plan, &self.begin, id) else { continue };
            let hydration = Hydration {
                table: &table,
                rows: before.map_or(Rows::Arrived(epoch), |from| Rows::Between(from, table.version())),
                inlet,
                schema,
                columns: None,
                wall: dataset.wall,
            };
            hydration.send(&self.walls, &self.mail, &mut Pace::at_once(epoch), &self.io)?;
        }
        Ok(())
    }

    /// Cuts an epoch and sees it through. `last` says that none follows, as far as can be seen.
    fn epoch(&mut self, share: BTreeMap<usize, Position>, last: bool, say: &dyn Fn(&str)) -> Result<()> {
        self.check()?;
        let epoch = self.log.history().next.max(1);
        let wall = self.clock.next()?;
        let source = |index: &usize| self.plan.sources.get(*index);
        let mut begin = Begin {
            epoch,
            wall_micros: wall,
            sources: share
                .iter()
                .filter_map(|(i, p)| Some((source(i)?.id.clone(), logged(&self.plan.root, p))))
                .collect(),
            once: share.keys().filter_map(source).filter(|s| s.once).map(|s| s.id.clone()).collect(),
            ..Begin::default()
        };
        self.intent.log(&self.plan, self.log.history(), &mut begin);
        self.io.block_on(self.log.begin(&begin))?;
        self.walls.insert(epoch, wall);
        let files: usize = share.values().map(|p| if let Position::Files(f) = p { f.len() } else { 0 }).sum();
        self.report.files += files as u64;
        say(&format!("epoch {epoch}: reading {files} files"));
        let computed = self.compute(epoch, wall, &share).and_then(|computed| {
            self.refuse_loss(&computed)?;
            self.stage_checkpoint(epoch, &computed, last)?;
            Ok(computed)
        });
        match computed {
            Ok(computed) => {
                let processes = self.processes();
                self.spread.tell(&computed.loads, processes, &mut self.report, say);
                say(&format!("epoch {epoch}: committing"));
                self.settle(&begin, computed, None)
            }
            Err(error) => {
                // A bug of ours, or a process that is lost, says nothing about the input: the epoch stays open and is tried again.
                if !is_loss(&error) {
                    self.abort(epoch, error.to_string())?;
                }
                Err(error)
            }
        }
    }

    fn abort(&mut self, epoch: u64, reason: String) -> Result<()> {
        self.io.block_on(self.log.abort(&Abort { epoch, reason, stray: self.unsettled() }))
    }

    /// Reads and computes an epoch. Nothing is stored yet.
    fn compute(&mut self, epoch: u64, wall_micros: i64, share: &BTreeMap<usize, Position>) -> Result<Computed> {
        // Whatever else went wrong on state that is damaged went wrong because of that.
        self.attempt(epoch, wall_micros, share).or_else(|error| {
            self.sound()?;
            if error.code() == DAMAGED {
                // Another process has found out.
                self.checkpoints.discard(&self.io);
            }
            Err(error)
        })
    }

    fn attempt(&mut self, epoch: u64, wall_micros: i64, share: &BTreeMap<usize, Position>) -> Result<Computed> {
        self.mail.wall(epoch, wall_micros);
        let (done_out, done) = unbounded();
        let parts: Vec<(usize, usize, Position)> = match &self.lead {
            None => share.iter().map(|(index, position)| (*index, 0, position.clone())).collect(),
            Some(lead) => {
                lead.hear_reads(done_out.clone());
                let deal = |(index, position): (&usize, &Position)| {
                    let index = *index;
                    let dealt = lead.deal(&self.plan, index, position);
                    dealt.into_iter().map(move |(process, part)| (index, process, part))
                };
                share.iter().flat_map(deal).collect()
            }
        };
        for (index, process, position) in &parts {
            let Some(source) = self.plan.sources.get(*index) else { continue };
            if let Some(lead) = self.lead.as_ref().filter(|_| *process > 0) {
                lead.read(&self.plan, *process, *index, position, (epoch, wall_micros))?;
                continue;
            }
            // A source that is read from its beginning is no difference to what is stored.
            let follows = source.kind.retracts() && !self.intent.forgotten.contains(index);
            let stored = match keeper(&self.plan, *index).filter(|_| follows) {
                Some(at) => match self.committers.get(&TableId::Rows(at)) {
                    Some(committer) => self.io.block_on(Table::open(&self.lake, committer.path()))?.map(Arc::new),
                    None => None,
                },
                None => None,
            };
            let walls = if stored.is_some() { self.walls.clone() } else { BTreeMap::new() };
            Ingress {
                index: *index,
                source: source.clone(),
                position: position.clone(),
                used: self.plan.used(Input::Source(*index)),
                epoch,
                wall_micros,
                stored,
                walls: Arc::new(walls),
                io: self.io.clone(),
                mail: self.mail.here(),
            }
            .start(done_out.clone());
        }
        drop(done_out);
        let mut computed = Computed::default();
        // Workers hand over results while sources are still being read, so both are heard.
        let mut reading = parts.len();
        while reading > 0 {
            select! {
                recv(done) -> read => {
                    let Ok(Read { source, result }) = read else { break };
                    reading -= 1;
                    let result = match result {
                        Err(error) if error.code() == NEW_COLUMNS => {
                            Err(self.grow(source, share.get(&source), error)?)
                        }
                        other => other,
                    };
                    match result {
                    Ok(stats) => computed.sources.push((source, stats)),
                    Err(error) => {
                        if error.fault() == Fault::Internal {
                            self.ended()?;
                        }
                        return Err(match self.plan.sources.get(source) {
                            Some(s) => error.flow(&s.id).epoch(epoch),
                            None => error,
                        });
                    }
                    }
                }
                recv(self.events) -> event => {
                    computed.hear(event.map_err(|_| Error::internal("the workers have ended"))?, epoch)?;
                }
            };
        }
        self.end_epoch(epoch)?;
        let computed = self.collect(epoch, computed)?;
        self.sound()?;
        match faults(computed.faults.clone()) {
            Some(error) => Err(error),
            None => Ok(computed),
        }
    }

    /// What the processes have come to since the workers were started.
    pub(super) fn processes(&self) -> Vec<ProcessReport> {
        let mut all = self.lead.as_ref().map(|lead| lead.figures()).unwrap_or_default();
        if all.is_empty() {
            all.push(ProcessReport::default());
        }
        if let Some(own) = all.first_mut() {
            own.spilled_bytes = self.scratch.written();
        }
        all
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
}
