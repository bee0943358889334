//! A process that serves the leading one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use silverflow_operators::{Epoch, Shelf};
use tokio::runtime::Handle;

use super::message::{self, Answer, Commit, Open, Order, Portion, Said, answer};
use super::network::{Cut, Traffic, exchange, meet};
use super::wire::SentError;
use crate::cluster::{Expected, Link, Listening, Member, PEER_LOST, Purpose, connect};
use crate::dataflow::{Alarm, Batch, Outcome, Start, TableId, UNUSABLE};
use crate::error::{Error, Result};
use crate::lake::{EpochLog, Lake};
use crate::pipeline::Pipeline;
use crate::plan::{Input, Plan, analyze};
use crate::runtime::checkpoint::{Checkpoints, ShareOf, States, damaged, fingerprints};
use crate::runtime::commit::{CommitDone, Committer, ToCommitter};
use crate::runtime::hydrate::{Rows, hydrate_share};
use crate::runtime::ingress::{Ingress, Read};
use crate::runtime::names::found;
use crate::runtime::outside::LakeOutside;
use crate::runtime::scratch::Scratch;
use crate::runtime::settle::start_committer;
use crate::runtime::tables::adopt;
use crate::runtime::worker::{FromWorker, Seat, Workers};
use crate::runtime::{RunOptions, Stop};

/// Orders that wait at most.
const MAILBOX: usize = 16;

/// Serves the leading process of the run that the options' member belongs to, until the run is over.
///
/// # Errors
/// Why the leading process does not want this one (user); `PEER_MISSING` and `PEER_LOST` (external); what has ended the
/// run, as the leading process tells it.
pub fn join(pipeline: &Pipeline, options: &RunOptions) -> Result<()> {
    let member = options.member.as_ref().ok_or_else(|| Error::internal("a process joins nobody"))?;
    let io = crate::runtime::io()?;
    // Scans start tasks of the runtime.
    let _context = io.enter();
    let expected = member.expected(pipeline, options.workers);
    let listening = member.listener.listen(expected.clone(), member.secret.clone(), Arc::clone(&member.say))?;
    let address = member.hosts.get(0).unwrap_or_default();
    let claim = expected.claim(Purpose::Control, 0);
    let goes_on = || !options.stop.is_requested();
    let stream = connect(address, &claim, &member.secret, member.start_timeout, &goes_on)?;
    let cut: Arc<Cut> = Arc::default();
    let (sender, orders) = bounded(MAILBOX);
    let (told, why) = bounded(1);
    let cutting = Arc::clone(&cut);
    let hear = move |frame: Vec<u8>| match message::read::<Order>(&frame) {
        Ok(order) => sender.send(order).is_ok(),
        Err(error) => {
            tracing::error!("{error}");
            false
        }
    };
    let lost = move |reason| {
        let _ = told.send(reason);
        cutting.now();
    };
    let link = Link::start(stream, (member.peer_timeout, &member.pulse), hear, lost)?;
    let mut process = Process {
        pipeline,
        options,
        member,
        expected,
        listening,
        link,
        cut,
        io: io.handle(),
        session: None,
        running: None,
    };
    let gone = Arc::new(AtomicBool::new(false));
    pass_on(options.stop.clone(), Arc::downgrade(&process.link), Arc::clone(&gone));
    let result = process.serve(&orders);
    gone.store(true, Ordering::SeqCst);
    match result {
        Ok(Some(result)) => result,
        // What broke here broke because the leading process is gone.
        Ok(None) | Err(_) if !why.is_empty() => {
            let why: String = why.recv().unwrap_or_default();
            Err(Error::external(PEER_LOST, format!("{} is lost: {why}", member.hosts.show(0)))
                .help("what was committed stays; start the run again, or let `--restart` do it"))
        }
        Ok(None) => Err(Error::external(PEER_LOST, format!("{} is lost", member.hosts.show(0)))),
        Err(error) => Err(error),
    }
}

/// How often it is looked whether this process is to end.
const LOOK: Duration = Duration::from_millis(500);

/// Passes a request to stop on to the leading process, until `gone`.
fn pass_on(stop: Stop, link: Weak<Link>, gone: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        while !gone.load(Ordering::SeqCst) {
            if !stop.pause(LOOK) {
                if let Some(link) = link.upgrade() {
                    // A leading process that is gone has stopped.
                    let _ = message::send(&link, &Said(0, Answer::Stop));
                }
                return;
            }
        }
    });
}

struct Process<'a> {
    pipeline: &'a Pipeline,
    options: &'a RunOptions,
    member: &'a Arc<Member>,
    expected: Expected,
    listening: Listening,
    link: Arc<Link>,
    cut: Arc<Cut>,
    io: &'a Handle,
    session: Option<Prepared>,
    running: Option<Running>,
}

/// A dataflow that is planned.
struct Prepared {
    number: u64,
    generation: u64,
    plan: Arc<Plan>,
    start: Arc<Start>,
    lake: Lake,
    walls: Arc<BTreeMap<u64, i64>>,
    checkpoints: ShareOf,
    /// What has to be sound if what the workers give is to be worth anything.
    alarm: Alarm,
    scratch: Arc<Scratch>,
}

/// A dataflow that runs.
struct Running {
    workers: Workers,
    reads: Sender<Read>,
    commits: Sender<CommitDone>,
    hydrated: Sender<Result<u64>>,
    /// Epochs of which the workers are to be asked what they remember.
    stages: Sender<Epoch>,
    /// What the workers made of epochs that are not committed yet.
    pending: Pending,
    committers: BTreeMap<TableId, Committer>,
    forward: std::thread::JoinHandle<()>,
}

/// Changes by epoch and table.
type Pending = Arc<Mutex<BTreeMap<(Epoch, TableId), Vec<Batch>>>>;

impl Running {
    /// The changes of an epoch to a table. What is left of earlier epochs came to nothing.
    fn take(&self, table: TableId, epoch: Epoch) -> Vec<Batch> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let later = pending.split_off(&(epoch, TableId::Rows(0)));
        *pending = later;
        pending.remove(&(epoch, table)).unwrap_or_default()
    }

    /// Hands a message to the committer of a table.
    fn hand_over(&self, table: TableId, message: ToCommitter) -> Result<()> {
        match self.committers.get(&table) {
            Some(committer) if committer.send(message) => Ok(()),
            Some(_) => Err(Error::internal("a committer has ended")),
            None => Err(Error::internal(format!("{table:?} is not committed here"))),
        }
    }
}

impl Process<'_> {
    /// Does what it is told until the run is over; `None` if the leading process is gone.
    fn serve(&mut self, orders: &Receiver<Order>) -> Result<Option<Result<()>>> {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Open(open) => {
                    self.close()?;
                    let number = open.session;
                    let prepared = self.prepare(&open);
                    let result = prepared.as_ref().map(|_| ()).map_err(SentError::from);
                    self.session = prepared.ok();
                    self.say(number, Answer::Ready(result))?;
                }
                Order::Connect => {
                    let number = self.session.as_ref().map_or(0, |session| session.number);
                    let connected = self.connect();
                    let result = connected.as_ref().map(|_| ()).map_err(SentError::from);
                    self.say(number, Answer::Connected(result))?;
                    connected?;
                }
                Order::Work(worker, work) => {
                    if let Some(running) = &self.running {
                        // A worker that has ended has said why.
                        running.workers.mail().send(worker, work.message());
                    }
                }
                Order::Read(portion) => self.read(portion)?,
                Order::Hydrate(table, version) => self.hydrate(table, version),
                Order::Stage(epoch) => {
                    if let Some(running) = &self.running {
                        let _ = running.stages.send(epoch);
                        // A worker that has ended has said why.
                        running.workers.mail().here().snapshot();
                    }
                }
                Order::Published(epoch, needed) => {
                    if let Some(session) = &self.session {
                        session.checkpoints.published(epoch, &needed);
                    }
                }
                Order::Adopt => {
                    if let Err(error) = self.adopt() {
                        let number = self.session.as_ref().map_or(0, |session| session.number);
                        self.say(number, Answer::Failed(SentError::from(&error)))?;
                    }
                }
                Order::Hold(table, epoch) => {
                    if let Some(running) = &self.running {
                        let batches = running.take(table, epoch);
                        running.hand_over(table, ToCommitter::Hold { epoch, batches })?;
                    }
                }
                Order::Commit(Commit { table, epoch, compare, metrics }) => {
                    if let Some(running) = &self.running {
                        let batches = running.take(table, epoch);
                        running.hand_over(table, ToCommitter::Commit { epoch, batches, compare, metrics })?;
                    }
                }
                Order::Prepare(table) => {
                    if let Some(running) = &self.running {
                        running.hand_over(table, ToCommitter::Prepare)?;
                    }
                }
                Order::Close => self.close()?,
                Order::Over(result) => {
                    let closed = self.close();
                    return Ok(Some(result.map_err(SentError::error).and(closed)));
                }
            }
        }
        Ok(None)
    }

    fn say(&self, session: u64, answer: Answer) -> Result<()> {
        message::send(&self.link, &Said(session, answer)).map(drop)
    }

    fn close(&mut self) -> Result<()> {
        self.session = None;
        let Some(Running { workers, reads, commits, hydrated, stages, committers, forward, .. }) = self.running.take()
        else {
            return Ok(());
        };
        drop(committers);
        let ended = workers.stop();
        drop((reads, commits, hydrated, stages));
        let _ = forward.join();
        ended
    }

    fn prepare(&self, open: &Open) -> Result<Prepared> {
        let lake = match &self.options.lake {
            Some(lake) => lake.clone(),
            None => self.io.block_on(Lake::open(&self.pipeline.storage))?,
        };
        let (_, history) = self.io.block_on(EpochLog::load(&lake))?;
        if history.generation() != open.generation {
            return Err(Error::external(
                "STORAGE_DIFFERS",
                format!(
                    "the storage {} is at generation {}, and the run is generation {}",
                    lake.url(),
                    history.generation(),
                    open.generation
                ),
            )
            .help("all processes need the same storage: a shared folder or an object store"));
        }
        let renamed: BTreeMap<String, String> = open.renamed.clone();
        let outside = LakeOutside { lake: Some(lake.clone()), io: self.io.clone(), remember: false, renamed };
        let plan = Arc::new(analyze(self.pipeline, &outside)?);
        if fingerprints(&plan) != open.fingerprints {
            return Err(Error::external(
                "PLANS_DIFFER",
                "the definitions are the same, and their plans differ: what is read has changed meanwhile",
            )
            .help("run again"));
        }
        let mut start = open.start();
        let folder = self.options.scratch.clone().unwrap_or_else(|| lake.scratch());
        let scratch = Arc::new(Scratch::new(self.options.memory(), folder));
        let shelf: Arc<dyn Shelf> = Arc::<Scratch>::clone(&scratch);
        start.shelf = Some(shelf);
        let mut checkpoints = Checkpoints::new(self.pipeline, &lake)?;
        let mut alarm = Alarm::default();
        if let Some(epoch) = open.checkpoint {
            let warn = |line: &str| tracing::warn!("{line}");
            let state = match checkpoints.find(&plan, &start, &history, (self.io, scratch.folder()), &warn) {
                Some((base, state)) if base.epoch == epoch => {
                    alarm = base.alarm;
                    state
                }
                _ => {
                    return Err(Error::external(UNUSABLE, format!("the checkpoint of epoch {epoch} cannot be read")));
                }
            };
            start.state = Some(Arc::new(state));
        }
        let (start, walls) = (Arc::new(start), Arc::new(history.walls.clone()));
        let (number, generation, checkpoints) = (open.session, open.generation, checkpoints.share());
        Ok(Prepared { number, generation, plan, start, lake, walls, checkpoints, alarm, scratch })
    }

    fn connect(&mut self) -> Result<()> {
        let Some(session) = &self.session else { return Err(Error::internal("there is nothing to connect")) };
        let at = (session.generation, session.number);
        let streams = meet(self.member, &self.expected, &self.listening, at, &self.cut)?;
        let workers = self.expected.workers;
        let (builders, network) = exchange(streams, self.member.index, workers, &self.cut)?;
        let traffic = Arc::clone(&network.traffic);
        let seat = Seat {
            first: self.member.index * workers,
            network: Box::new(network),
            builders,
            others: None,
            workers: workers * self.member.hosts.len(),
        };
        let (events_out, events) = bounded(256);
        let workers = Workers::start(&session.plan, &session.start, self.options, &events_out, Some(seat))?;
        drop(events_out);
        let (reads, read) = unbounded();
        let (commits, done) = unbounded();
        let (hydrated, rows) = unbounded();
        let (stages, staged) = unbounded();
        let pending = Pending::default();
        let desk = Desk {
            link: Arc::clone(&self.link),
            session: session.number,
            events,
            reads: read,
            commits: done,
            hydrated: rows,
            stages: staged,
            states: States::new(),
            workers: self.expected.workers,
            checkpoints: session.checkpoints.clone(),
            alarm: session.alarm.clone(),
            scratch: Arc::clone(&session.scratch),
            io: self.io.clone(),
            pending: Arc::clone(&pending),
            traffic,
        };
        let forward = std::thread::spawn(move || desk.forward());
        let committers = BTreeMap::new();
        self.running = Some(Running { workers, reads, commits, hydrated, stages, pending, committers, forward });
        Ok(())
    }

    /// Reads this process's part of a table, beside other orders.
    fn hydrate(&self, table: TableId, version: i64) {
        let (Some(session), Some(running)) = (&self.session, &self.running) else { return };
        let Prepared { plan, start, lake, walls, .. } = session;
        let (plan, start, lake, walls) = (Arc::clone(plan), Arc::clone(start), lake.clone(), Arc::clone(walls));
        let (mail, io, hydrated) = (running.workers.mail().here(), self.io.clone(), running.hydrated.clone());
        let rows = Rows::Share(version, (self.member.index, self.member.hosts.len()));
        std::thread::spawn(move || {
            // Scans start tasks of the runtime.
            let _context = io.enter();
            let read = || hydrate_share((&plan, &start, &walls), &lake, table, rows, &mail, &io);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            let _ = hydrated.send(result.unwrap_or_else(|_| Err(Error::internal("reading a table panicked"))));
        });
    }

    /// Opens the tables that are committed here.
    fn adopt(&mut self) -> Result<()> {
        let (Some(session), Some(running)) = (&self.session, &mut self.running) else { return Ok(()) };
        // The workers have what they need of it.
        if let Some(state) = &session.start.state {
            state.release();
        }
        let own = |worker: &usize| worker / self.expected.workers == self.member.index;
        for (index, _) in session.start.homes.iter().filter(|(_, worker)| own(worker)) {
            let compare = &session.start.compare;
            let tables = adopt(&session.plan, &session.lake, *index, compare, session.generation, self.io)?;
            for (id, table) in tables {
                let committer = start_committer(&session.plan, id, table, self.io, &running.commits);
                running.committers.insert(id, committer);
            }
        }
        Ok(())
    }

    fn read(&self, portion: Portion) -> Result<()> {
        let Portion { source: index, position, epoch, wall_micros } = portion;
        let (Some(session), Some(running)) = (&self.session, &self.running) else { return Ok(()) };
        let source = session.plan.sources.get(index);
        let source = source.ok_or_else(|| Error::internal(format!("there is no source {index}")))?;
        Ingress {
            index,
            source: source.clone(),
            position: found(&session.plan.root, &position),
            used: session.plan.used(Input::Source(index)),
            epoch,
            wall_micros,
            stored: None,
            walls: Arc::default(),
            io: self.io.clone(),
            mail: running.workers.mail().here(),
        }
        .start(running.reads.clone());
        Ok(())
    }
}

/// Hands over what workers, readers and committers say.
struct Desk {
    link: Arc<Link>,
    session: u64,
    events: Receiver<FromWorker>,
    reads: Receiver<Read>,
    commits: Receiver<CommitDone>,
    hydrated: Receiver<Result<u64>>,
    stages: Receiver<Epoch>,
    /// What workers remember, until all of this process have said it.
    states: States,
    workers: usize,
    checkpoints: ShareOf,
    alarm: Alarm,
    scratch: Arc<Scratch>,
    io: Handle,
    pending: Pending,
    traffic: Arc<Traffic>,
}

impl Desk {
    /// Works until the workers have ended.
    fn forward(mut self) {
        loop {
            let answer = select! {
                recv(self.events) -> event => match event {
                    Ok(event) => self.keep(event),
                    Err(_) => return,
                },
                recv(self.reads) -> read => read.ok().map(|Read { source, result }| {
                    Answer::Read(source, result.map_err(|e| SentError::from(&e)))
                }),
                recv(self.hydrated) -> rows => rows.ok().map(|rows| {
                    Answer::Hydrated(rows.map_err(|e| SentError::from(&e)))
                }),
                recv(self.commits) -> done => done.ok().map(|CommitDone { table, result }| {
                    Answer::Committed(table, result.map_err(|e| SentError::from(&e)))
                }),
            };
            let Some(answer) = answer else { continue };
            match message::send(&self.link, &Said(self.session, answer)) {
                Ok(true) => {}
                // The leading process is gone; the workers end as soon as that is noticed.
                Ok(false) => return,
                Err(error) => {
                    let failed = Answer::Failed(SentError::from(&error));
                    let _ = message::send(&self.link, &Said(self.session, failed));
                }
            }
        }
    }

    /// Whether what the workers give can be relied on.
    fn sound(&self) -> Result<()> {
        if self.alarm.is_raised() {
            return Err(damaged());
        }
        self.scratch.check()
    }

    /// Writes what the workers remember, beside everything else.
    fn stage(&mut self) {
        let states = std::mem::take(&mut self.states);
        let Ok(epoch) = self.stages.recv() else { return };
        let (link, session, io) = (Arc::clone(&self.link), self.session, self.io.clone());
        let (checkpoints, sound) = (self.checkpoints.clone(), self.sound());
        std::thread::spawn(move || {
            let part = sound.and_then(|()| checkpoints.stage(epoch, &states, &io)).and_then(|part| {
                serde_json::to_string(&part)
                    .map_err(|e| Error::internal("a part of a checkpoint has no JSON form").caused_by(e))
            });
            // A leading process that is gone publishes nothing.
            let _ = message::send(&link, &Said(session, Answer::Staged(epoch, part.map_err(|e| SentError::from(&e)))));
        });
    }

    /// Keeps changes here, and gives what is told of an event.
    fn keep(&mut self, mut event: FromWorker) -> Option<Answer> {
        if let FromWorker::Snapshot { worker, states } = event {
            self.states.insert(worker, states);
            if self.states.len() == self.workers {
                self.stage();
            }
            return None;
        }
        if matches!(event, FromWorker::Done { .. }) {
            if let Err(error) = self.sound() {
                return Some(Answer::Failed(SentError::from(&error)));
            }
            // Before what it belongs to, which the leading process waits for.
            let (sent, received) = self.traffic.bytes();
            let figures = Answer::Figures(sent, received, self.scratch.written());
            let _ = message::send(&self.link, &Said(self.session, figures));
        }
        if let FromWorker::Outcome(Outcome::Changes { table, epoch, batches }) = &mut event {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.entry((*epoch, *table)).or_default().append(batches);
        }
        answer(event)
    }
}
