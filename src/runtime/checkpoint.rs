//! Checkpoints: what the operators remember at the end of an epoch, kept so that the next run need not rebuild it.
//!
//! Nothing depends on them. One that is missing, damaged, of another release or of other definitions costs the reading
//! of the replay points, as without checkpoints.

mod format;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use silverflow_operators::STATE_FORMAT;

use self::format::Manifest;
pub(super) use self::store::DAMAGED;
pub use self::store::{Part, States, damaged};
use self::store::{Staged, Store, Written};
use super::computed::Computed;
use super::supervisor::Supervisor;
use super::worker::FromWorker;
use crate::dataflow::{Alarm, ROW_FORMAT, Restored, Start, UNUSABLE};
use crate::error::{Error, Fault, Result};
use crate::lake::{History, Lake};
use crate::pipeline::Pipeline;
use crate::plan::{Plan, SEMANTICS};

/// Rows after which a checkpoint is worth more than reading them back, unless the configuration says otherwise.
const ROWS: u64 = 50_000;
/// Epochs after which it is, however few rows they had: each is a commit to look at.
const EPOCHS: u64 = 100;
/// Seconds between two checkpoints while a run goes on.
const SECONDS: u64 = 60;

const ROWS_KEY: &str = "silverflow.checkpoint.rows";
const SECONDS_KEY: &str = "silverflow.checkpoint.seconds";

/// When a checkpoint is taken.
#[derive(Clone, Copy, Debug)]
struct Policy {
    rows: u64,
    interval: Duration,
}

impl Policy {
    fn of(pipeline: &Pipeline) -> Result<Policy> {
        let number = |key: &str, default: u64| match pipeline.configuration.get(key) {
            None => Ok(default),
            Some(text) => text.trim().parse().map_err(|_| {
                Error::user("INVALID_CONFIGURATION", format!("{key} is `{text}`, which is no whole number"))
            }),
        };
        Ok(Policy { rows: number(ROWS_KEY, ROWS)?, interval: Duration::from_secs(number(SECONDS_KEY, SECONDS)?) })
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// It goes on.
    GoingOn,
    /// It ends, since nothing is new.
    Ended,
    /// It ends, since it was told to.
    Stopped,
}

/// A checkpoint that the run has begun with.
pub struct Base {
    /// The epoch at whose end it was taken.
    pub epoch: u64,
    /// Delta versions of the tables at the end of that epoch.
    pub versions: BTreeMap<String, i64>,
    /// Raised when something of it was looked at that is not what was written.
    pub alarm: Alarm,
}

/// A checkpoint that is being written: its state first, and, when its epoch is complete, what it is of.
struct Writing {
    epoch: u64,
    /// Nothing is published if this is dropped.
    complete: Option<Sender<Manifest>>,
    thread: JoinHandle<Result<Option<Written>>>,
}

/// The other processes of a run, each of which makes the state of its own workers durable.
pub struct Others {
    /// How many there are.
    pub count: usize,
    /// What they have made durable, in the order of the processes.
    pub parts: Receiver<Result<Part>>,
    /// Tells them that the epoch's checkpoint is there, and which objects are.
    pub published: Box<dyn FnOnce(u64, BTreeSet<String>) + Send>,
}

/// The part of a process that serves another one.
#[derive(Clone)]
pub struct ShareOf {
    store: Arc<Mutex<Store>>,
    staged: Arc<Mutex<Option<(u64, Staged)>>>,
}

impl ShareOf {
    /// Makes what the workers here remember at the end of an epoch durable.
    ///
    /// # Errors
    /// External, of the storage.
    pub fn stage(&self, epoch: u64, states: &States, io: &tokio::runtime::Handle) -> Result<Part> {
        let panicked = || Error::internal("an earlier checkpoint panicked");
        let staged = io.block_on(self.store.lock().map_err(|_| panicked())?.stage(epoch, states))?;
        let part = staged.part();
        *self.staged.lock().map_err(|_| panicked())? = Some((epoch, staged));
        Ok(part)
    }

    /// The checkpoint of an epoch is there, and these are the objects that are.
    pub fn published(&self, epoch: u64, needed: &BTreeSet<String>) {
        let Ok(mut staged) = self.staged.lock() else { return };
        if let Some((_, staged)) = staged.take_if(|(of, _)| *of == epoch)
            && let Ok(mut store) = self.store.lock()
        {
            store.published(staged, needed);
        }
    }
}

/// The checkpoints of a run.
pub struct Checkpoints {
    store: Arc<Mutex<Store>>,
    policy: Policy,
    /// Rows and epochs that a run would have to read back which starts from the last checkpoint.
    rows: u64,
    epochs: u64,
    last: Instant,
    /// There is a checkpoint that the next run could begin with.
    exists: bool,
    writing: Option<Writing>,
}

/// Fingerprints of all datasets.
pub fn fingerprints(plan: &Plan) -> BTreeMap<String, String> {
    plan.datasets.iter().map(|d| (d.label(), d.fingerprint.clone())).collect()
}

impl Checkpoints {
    /// Those of a pipeline's storage.
    ///
    /// # Errors
    /// `INVALID_CONFIGURATION` (user).
    pub fn new(pipeline: &Pipeline, lake: &Lake) -> Result<Checkpoints> {
        Ok(Checkpoints {
            store: Arc::new(Mutex::new(Store::new(lake))),
            policy: Policy::of(pipeline)?,
            rows: 0,
            epochs: 0,
            last: Instant::now(),
            exists: false,
            writing: None,
        })
    }

    /// The newest checkpoint that the tables of `history` can be brought on from, under the definitions of `plan`. If any
    /// definition has changed, or tables are to be set by comparison, everything is computed anew and there is none.
    pub fn find(
        &mut self,
        plan: &Plan,
        start: &Start,
        history: &History,
        (io, scratch): (&tokio::runtime::Handle, &Path),
        warn: &dyn Fn(&str),
    ) -> Option<(Base, Restored)> {
        let last = history.last_complete?;
        // Rows that are judged again only because the clock releases them wait in the clock's own state.
        let timed = |index: &usize| plan.datasets.get(*index).is_some_and(|dataset| !dataset.boundaries.is_empty());
        if !start.compare.is_empty() || !start.rejudge.iter().all(timed) {
            return None;
        }
        let own = fingerprints(plan);
        let fits = |manifest: &Manifest| {
            manifest.epoch <= last
                && manifest.fingerprints == own
                && history.walls.get(&manifest.epoch) == Some(&manifest.wall_micros)
        };
        let mut store = self.store.lock().ok()?;
        match io.block_on(store.find(fits, scratch, warn)) {
            Ok(found) => found.map(|found| {
                self.epochs = last - found.manifest.epoch;
                self.exists = true;
                tracing::debug!(epoch = found.manifest.epoch, bytes = found.bytes, "checkpoint");
                let Manifest { epoch, versions, .. } = found.manifest;
                (Base { epoch, versions, alarm: found.alarm }, found.state)
            }),
            Err(error) => {
                warn(&format!("checkpoints cannot be read: {error}"));
                None
            }
        }
    }

    /// What a process that serves another one writes of them.
    pub fn share(&self) -> ShareOf {
        ShareOf { store: Arc::clone(&self.store), staged: Arc::default() }
    }

    /// Rows were read back at the start, or came in an epoch.
    pub fn grown(&mut self, rows: u64) {
        self.rows += rows;
    }

    /// An epoch is complete.
    pub fn passed(&mut self) {
        self.epochs += 1;
    }

    /// Whether it is worth it: now that the run ends, or while it goes on. Where there is one already, a run does not end
    /// without the next: it costs what has changed, and without it the next run would begin to pay for this one. Neither
    /// does a run that goes on until it is told to end: another one is to go on where it has left off. `rows` and `epochs`
    /// come on top of what was told.
    fn due(&self, when: When, rows: u64, epochs: u64) -> bool {
        let (rows, epochs) = (self.rows + rows, self.epochs + epochs);
        let grown = rows >= self.policy.rows || epochs >= EPOCHS;
        match when {
            When::GoingOn => grown && self.last.elapsed() >= self.policy.interval && self.idle(),
            When::Ended => grown || (self.exists && epochs > 0),
            When::Stopped => grown || epochs > 0 || rows > 0,
        }
    }

    fn idle(&self) -> bool {
        self.writing.as_ref().is_none_or(|writing| writing.thread.is_finished())
    }

    /// Begins to write what the operators remember at the end of `epoch`, which may still be open.
    /// What other processes remember comes from `others`.
    fn stage(&mut self, epoch: u64, states: States, others: Option<Others>, io: &tokio::runtime::Handle) -> Result<()> {
        self.settle(true)?;
        let (store, io) = (Arc::clone(&self.store), io.clone());
        let (complete, completed) = bounded::<Manifest>(1);
        let thread = std::thread::spawn(move || {
            let panicked = || Error::internal("an earlier checkpoint panicked");
            let mut staged = io.block_on(store.lock().map_err(|_| panicked())?.stage(epoch, &states))?;
            drop(states);
            for _ in 0..others.as_ref().map_or(0, |others| others.count) {
                let part = others.as_ref().and_then(|others| others.parts.recv().ok());
                staged.add(part.unwrap_or_else(|| Err(Error::internal("nobody tells of the others' state")))?);
            }
            let Ok(manifest) = completed.recv() else { return Ok(None) };
            let mut store = store.lock().map_err(|_| panicked())?;
            let written = io.block_on(store.publish(manifest, staged))?;
            if let Some(others) = others {
                (others.published)(epoch, store.needed());
            }
            Ok(Some(written))
        });
        self.writing = Some(Writing { epoch, complete: Some(complete), thread });
        Ok(())
    }

    /// Whether the state of `epoch` is being written, and waits for its end.
    fn is_staged(&self, epoch: u64) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.epoch == epoch && writing.complete.is_some())
    }

    /// The epoch of the staged state is complete: it becomes a checkpoint.
    fn publish(&mut self, manifest: Manifest) {
        if let Some(complete) = self.writing.as_mut().and_then(|writing| writing.complete.take()) {
            // A thread that has failed has left; it says why when it is heard.
            let _ = complete.send(manifest);
            (self.rows, self.epochs, self.last, self.exists) = (0, 0, Instant::now(), true);
        }
    }

    /// Hears how the last writing ended; waits for that with `wait`. What waits for its epoch is given up then.
    fn settle(&mut self, wait: bool) -> Result<()> {
        let over = |writing: &mut Writing| wait || writing.thread.is_finished();
        let Some(Writing { complete, thread, .. }) = self.writing.take_if(over) else { return Ok(()) };
        drop(complete);
        let written = thread.join().map_err(|_| Error::internal("writing a checkpoint panicked"))??;
        if let Some(written) = written {
            tracing::debug!(bytes = written.bytes, reused = written.reused, "checkpoint written");
        }
        Ok(())
    }

    /// Removes all checkpoints of the storage: they share what is damaged.
    pub(super) fn discard(&mut self, io: &tokio::runtime::Handle) {
        let _ = self.settle(true);
        self.exists = false;
        if let Ok(mut store) = self.store.lock()
            && let Err(error) = io.block_on(store.clear())
        {
            tracing::warn!("damaged checkpoints cannot be removed: {error}");
        }
    }
}

impl Drop for Checkpoints {
    // A run that fails does not leave a thread behind that writes to its storage.
    fn drop(&mut self) {
        if let Err(error) = self.settle(true) {
            tracing::warn!("the checkpoint was not written: {error}");
        }
    }
}

impl Supervisor {
    /// Takes a checkpoint of the epoch that has just been completed, if it is worth it. A run that goes on does so while it
    /// is written; else it is durable when this returns. No epoch may be under way.
    ///
    /// A checkpoint that cannot be written is no failure of the run: `say` is told, and the next run reads more back.
    ///
    /// # Errors
    /// Internal, if the workers have ended.
    pub(super) fn checkpoint(&mut self, when: When, say: &dyn Fn(&str)) -> Result<()> {
        let ending = when != When::GoingOn;
        let missed = |result: Result<()>| {
            if let Err(error) = result {
                say(&format!("the checkpoint was not written: {error}"));
            }
        };
        let last = self.report.last_epoch;
        let staged = last.is_some_and(|epoch| self.checkpoints.is_staged(epoch));
        let due = staged || self.checkpoints.due(when, 0, 0);
        if !staged {
            missed(self.checkpoints.settle(ending));
        }
        // While a table holds other rows than the operators have given it, its versions do not go with their state.
        if due
            && self.compare.is_empty()
            && self.left.is_empty()
            && let Some((epoch, wall_micros)) = last.and_then(|epoch| Some((epoch, *self.walls.get(&epoch)?)))
        {
            if !staged {
                let (states, others) = self.states(epoch)?;
                missed(self.checkpoints.stage(epoch, states, others, &self.io));
            }
            self.checkpoints.publish(Manifest {
                epoch,
                wall_micros,
                state_format: STATE_FORMAT,
                row_format: ROW_FORMAT,
                semantics: SEMANTICS,
                workers: self.mail.workers(),
                fingerprints: fingerprints(&self.plan),
                versions: self.versions.clone(),
                objects: Vec::new(),
                operators: BTreeMap::new(),
            });
        }
        // What was staged in vain would wait for ever.
        if ending || last.is_some_and(|epoch| self.checkpoints.is_staged(epoch)) {
            missed(self.checkpoints.settle(true));
        }
        Ok(())
    }

    /// Begins to write the checkpoint of an epoch that is computed while its tables commit, if it will be worth it; `last`
    /// says that the run ends with it, as far as can be seen.
    ///
    /// # Errors
    /// Internal, if the workers have ended; `CHECKPOINT_DAMAGED`, `SCRATCH_FAILED` (external).
    pub(super) fn stage_checkpoint(&mut self, epoch: u64, computed: &Computed, last: bool) -> Result<()> {
        let stored =
            computed.counts.iter().filter(|(at, _)| self.plan.datasets.get(**at).is_some_and(|d| d.replay_point));
        let rows = stored.map(|(_, counts)| u64::try_from(counts.yielded).unwrap_or(0)).sum();
        let when = if last { When::Ended } else { When::GoingOn };
        // An epoch does not wait for the checkpoint of an earlier one: the end of the run does.
        if self.checkpoints.idle() && self.checkpoints.due(when, rows, 1) && self.left.is_empty() {
            let (states, others) = self.states(epoch)?;
            if let Err(error) = self.checkpoints.stage(epoch, states, others, &self.io) {
                tracing::warn!("the checkpoint was not written: {error}");
            }
        }
        Ok(())
    }

    /// An error if what the operators have computed, or remember, is worth nothing.
    ///
    /// # Errors
    /// `CHECKPOINT_DAMAGED`, `SCRATCH_FAILED` (external).
    pub(super) fn sound(&mut self) -> Result<()> {
        if self.base.as_ref().is_some_and(|base| base.alarm.is_raised()) {
            self.checkpoints.discard(&self.io);
            return Err(damaged());
        }
        self.scratch.check()
    }

    /// Whether hydration failed because of the checkpoint that it began with; from then on there is none.
    pub(super) fn abandons_checkpoint(&mut self, error: &Error, say: &dyn Fn(&str)) -> bool {
        let Some(base) = self.base.take_if(|base| {
            // What was read on top of it may be gone from the tables' logs while the tables are as they should be.
            error.code() == UNUSABLE || error.fault() == Fault::External || base.alarm.is_raised()
        }) else {
            return false;
        };
        say(&format!("the checkpoint of epoch {} cannot be used: {error}", base.epoch));
        self.begin.state = None;
        self.report.checkpoint = None;
        self.checkpoints.exists = false;
        true
    }

    fn states(&mut self, epoch: u64) -> Result<(States, Option<Others>)> {
        let ended = || Error::internal("the workers have ended");
        let others = self.lead.as_ref().map(|lead| lead.stage(epoch)).transpose()?;
        let mail = self.mail.here();
        if !mail.snapshot() {
            return Err(ended());
        }
        let mut states = States::new();
        while states.len() < mail.workers() {
            match self.events.recv().map_err(|_| ended())? {
                FromWorker::Snapshot { worker, states: of_worker } => _ = states.insert(worker, of_worker),
                other => _ = Computed::default().hear(other, 0)?,
            }
        }
        self.sound()?;
        Ok((states, others))
    }
}
