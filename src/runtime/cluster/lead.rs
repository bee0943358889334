//! The leading process: waits for the others, tells them what to do, and hears what they made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use silverflow_operators::stable_hash;

use super::deal::deal;
use super::hydration::Elsewhere;
use super::message::{self, Answer, Commit, Open, Order, Portion, Said, Work};
use super::network::{Cut, Traffic, exchange, meet};
use super::wire::SentError;
use crate::cluster::{Arrival, Expected, Link, Listening, Member, PEER_LOST, PEER_MISSING, Purpose};
use crate::dataflow::{Outcome, Start, TableId};
use crate::error::{Error, Fault, Result};
use crate::lake::Position;
use crate::pipeline::Pipeline;
use crate::plan::{DatasetPlan, Plan, SourceKind, Stored};
use crate::runtime::checkpoint::{Others, Part, fingerprints};
use crate::runtime::commit::{CommitDone, ToCommitter};
use crate::runtime::ingress::Read;
use crate::runtime::names::logged;
use crate::runtime::report::ProcessReport;
use crate::runtime::worker::{FromWorker, Post, Seat, ToWorker};
use crate::runtime::{RunOptions, Stop};

/// What the others have to know of a dataflow, beside how it starts.
pub(in crate::runtime) struct Opening {
    /// Generation of the run.
    pub generation: u64,
    /// Names that flows had before.
    pub renamed: BTreeMap<String, String>,
    /// The epoch of the checkpoint that it begins with.
    pub checkpoint: Option<u64>,
}

/// The other processes of a run, as the leading one has them.
pub(in crate::runtime) struct Lead {
    member: Arc<Member>,
    expected: Expected,
    listening: Listening,
    /// Of process 1, 2, …
    links: Arc<Vec<Arc<Link>>>,
    heard: Arc<Heard>,
    ends: Receiver<()>,
    session: AtomicU64,
}

/// What has been heard of the others.
struct Heard {
    member: Arc<Member>,
    stop: Stop,
    current: Mutex<Option<Session>>,
    lost: Mutex<Option<Loss>>,
    /// The run is over: that others go is as it should be.
    over: AtomicBool,
    cut: Arc<Cut>,
}

/// Who is lost, and why.
#[derive(Clone)]
struct Loss {
    process: usize,
    why: String,
}

/// A checkpoint that processes make durable, each the state of its workers.
struct Staging {
    epoch: u64,
    /// What came before its turn, by process.
    early: BTreeMap<usize, Part>,
    next: usize,
    parts: Sender<Result<Part>>,
}

impl Staging {
    /// Passes parts on in the order of the processes.
    fn take(&mut self, process: usize, part: Result<Part>) {
        match part {
            Ok(part) => _ = self.early.insert(process, part),
            Err(error) => _ = self.parts.send(Err(error)),
        }
        while let Some(part) = self.early.remove(&self.next) {
            let _ = self.parts.send(Ok(part));
            self.next += 1;
        }
    }
}

/// Where what is said of the dataflow at hand goes.
struct Session {
    number: u64,
    events: Sender<FromWorker>,
    reads: Option<Sender<Read>>,
    commits: Option<Sender<CommitDone>>,
    hydrated: Option<Sender<Result<u64>>>,
    staging: Option<Staging>,
    steps: Sender<(usize, Result<()>)>,
    /// What goes between the workers here and those of others.
    traffic: Arc<Traffic>,
    /// What other processes have come to.
    figures: BTreeMap<usize, ProcessReport>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heard {
    fn error(&self, loss: &Loss) -> Error {
        Error::external(PEER_LOST, format!("{} is lost: {}", self.member.hosts.show(loss.process), loss.why))
            .help("what was committed stays; start the run again, or let `--restart` do it")
    }

    fn lose(&self, process: usize, why: String) {
        if self.over.load(Ordering::SeqCst) {
            return;
        }
        let loss = Loss { process, why };
        held(&self.lost).get_or_insert_with(|| loss.clone());
        if let Some(session) = &*held(&self.current) {
            let (events, steps, commits) = (session.events.clone(), session.steps.clone(), session.commits.clone());
            if let Some(hydrated) = &session.hydrated {
                let _ = hydrated.send(Err(self.error(&loss)));
            }
            if let Some(staging) = &session.staging {
                let _ = staging.parts.send(Err(self.error(&loss)));
            }
            let (event, step) = (FromWorker::Lost(self.error(&loss)), Err(self.error(&loss)));
            let commit = CommitDone { table: TableId::Rows(usize::MAX), result: Err(self.error(&loss)) };
            // Whoever hears it may be busy, and may be gone.
            std::thread::spawn(move || {
                let _ = steps.send((process, step));
                if let Some(commits) = commits {
                    let _ = commits.send(commit);
                }
                let _ = events.send(event);
            });
        }
        self.cut.now();
        self.stop.wake();
    }

    /// Takes in what a process says. False if it cannot be understood.
    fn hear(&self, process: usize, frame: &[u8]) -> bool {
        match message::read::<Said>(frame).and_then(|said| self.take(process, said)) {
            Ok(()) => true,
            Err(error) => {
                self.lose(process, error.to_string());
                false
            }
        }
    }

    fn take(&self, process: usize, Said(number, answer): Said) -> Result<()> {
        if let Answer::Stop = answer {
            self.stop.request();
            return Ok(());
        }
        let (events, reads, commits, steps) = match &*held(&self.current) {
            Some(session) if session.number == number => {
                (session.events.clone(), session.reads.clone(), session.commits.clone(), session.steps.clone())
            }
            // Of a dataflow that has ended.
            _ => return Ok(()),
        };
        let place = |error: SentError| error.error().details([format!("in {}", self.member.hosts.show(process))]);
        let event = match answer {
            Answer::Ready(result) | Answer::Connected(result) => {
                // Nobody waits any more, otherwise.
                let _ = steps.send((process, result.map_err(place)));
                return Ok(());
            }
            Answer::Read(source, result) => {
                if let Some(reads) = reads {
                    let _ = reads.send(Read { source, result: result.map_err(place) });
                }
                return Ok(());
            }
            Answer::Committed(table, result) => {
                if let Some(commits) = commits {
                    let _ = commits.send(CommitDone { table, result: result.map_err(place) });
                }
                return Ok(());
            }
            Answer::Staged(epoch, result) => {
                let wrong = |e| Error::internal("a part of a checkpoint cannot be read").caused_by(e);
                let part = result.map_err(place).and_then(|text| serde_json::from_str::<Part>(&text).map_err(wrong));
                let mut current = held(&self.current);
                let staging = current.as_mut().and_then(|session| session.staging.as_mut());
                if let Some(staging) = staging.filter(|staging| staging.epoch == epoch) {
                    staging.take(process, part);
                }
                return Ok(());
            }
            Answer::Hydrated(result) => {
                if let Some(hydrated) = held(&self.current).as_ref().and_then(|session| session.hydrated.as_ref()) {
                    let _ = hydrated.send(result.map_err(place));
                }
                return Ok(());
            }
            Answer::Figures(sent_bytes, received_bytes, spilled_bytes) => {
                if let Some(session) = held(&self.current).as_mut() {
                    let figures = ProcessReport { process, sent_bytes, received_bytes, spilled_bytes };
                    session.figures.insert(process, figures);
                }
                return Ok(());
            }
            Answer::Changed(table, epoch) => {
                FromWorker::Outcome(Outcome::Changes { table, epoch, batches: Vec::new() })
            }
            Answer::Faults(epoch, faults) => {
                let faults = faults.into_iter().map(Into::into).collect();
                FromWorker::Outcome(Outcome::Faults { epoch, faults })
            }
            Answer::Done(epoch, counts, due, load) => FromWorker::Done { epoch, counts, due, load },
            Answer::Failed(error) => FromWorker::Lost(place(error)),
            Answer::Stop => return Ok(()),
        };
        let _ = events.send(event);
        Ok(())
    }
}

impl Lead {
    /// Waits until all other processes have come.
    ///
    /// # Errors
    /// `PEER_MISSING` (external), naming those that have not.
    pub fn gather(member: &Arc<Member>, pipeline: &Pipeline, options: &RunOptions) -> Result<Lead> {
        let expected = member.expected(pipeline, options.workers);
        let listening = member.listener.listen(expected.clone(), member.secret.clone(), Arc::clone(&member.say))?;
        let count = member.hosts.len();
        let mut streams = BTreeMap::new();
        let until = Instant::now() + member.start_timeout;
        while streams.len() + 1 < count {
            let missing = || {
                let missing = (1..count).filter(|i| !streams.contains_key(i)).map(|i| member.hosts.show(i));
                missing.collect::<Vec<_>>().join(", ")
            };
            if options.stop.is_requested() {
                return Err(Error::external("INTERRUPTED", "the run was asked to stop while it waited for processes"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("not there after {:?}: {}", member.start_timeout, missing());
                return Err(Error::external(PEER_MISSING, message)
                    .help("start them, or look whether their machines can reach this one"));
            }
            let Ok(Arrival { claim, stream }) = listening.arrivals.recv_timeout(left.min(Duration::from_millis(100)))
            else {
                continue;
            };
            if claim.purpose != Purpose::Control {
                (member.say)(&format!("closed a connection of process {}: it is of another run", claim.from));
            } else if streams.insert(claim.from, stream).is_some() {
                (member.say)(&format!("process {} has come again", claim.from));
            }
        }
        let heard = Arc::new(Heard {
            member: Arc::clone(member),
            stop: options.stop.clone(),
            current: Mutex::default(),
            lost: Mutex::default(),
            over: AtomicBool::new(false),
            cut: Arc::default(),
        });
        let (end, ends) = unbounded();
        let links = streams.into_iter().map(|(process, stream)| {
            let (hearing, losing, end) = (Arc::clone(&heard), Arc::clone(&heard), end.clone());
            let hear = move |frame: Vec<u8>| hearing.hear(process, &frame);
            let lost = move |why| {
                losing.lose(process, why);
                let _ = end.send(());
            };
            Link::start(stream, (member.peer_timeout, &member.pulse), hear, lost)
        });
        let links = Arc::new(links.collect::<Result<Vec<_>>>()?);
        let member = Arc::clone(member);
        Ok(Lead { member, expected, listening, links, heard, ends, session: AtomicU64::new(0) })
    }

    /// Prepares a dataflow in all processes and connects their workers. What the others' workers say arrives at `events`.
    ///
    /// # Errors
    /// `PEER_LOST`, `PEER_MISSING` (external); whatever keeps another process from it.
    pub fn open(&self, plan: &Plan, start: &Start, opening: &Opening, events: &Sender<FromWorker>) -> Result<Seat> {
        self.check()?;
        let number = self.session.fetch_add(1, Ordering::SeqCst) + 1;
        let (steps, stepped) = bounded(2 * self.links.len());
        *held(&self.heard.current) = Some(Session {
            number,
            events: events.clone(),
            reads: None,
            commits: None,
            hydrated: None,
            staging: None,
            steps,
            traffic: Arc::default(),
            figures: BTreeMap::new(),
        });
        // It may have gone just before it could be told to the session.
        self.check()?;
        let open = Open {
            session: number,
            generation: opening.generation,
            renamed: opening.renamed.clone(),
            fingerprints: fingerprints(plan),
            checkpoint: opening.checkpoint,
            hydrated: start.hydrated,
            compare: start.compare.clone(),
            rejudge: start.rejudge.clone(),
            undecided: start.undecided.clone(),
            homes: start.homes.clone(),
        };
        let ready = self.tell(&Order::Open(Box::new(open))).and_then(|()| self.all(&stepped));
        if let Err(error) = ready {
            // They may begin again, without the checkpoint.
            let _ = self.tell(&Order::Close);
            return Err(error);
        }
        self.tell(&Order::Connect)?;
        let streams =
            meet(&self.member, &self.expected, &self.listening, (opening.generation, number), &self.heard.cut)
                .map_err(|error| self.lost().unwrap_or(error))?;
        let (builders, mut network) = exchange(streams, 0, self.expected.workers, &self.heard.cut)?;
        if let Some(session) = &mut *held(&self.heard.current) {
            session.traffic = Arc::clone(&network.traffic);
        }
        self.all(&stepped)?;
        let links = Arc::clone(&self.links);
        network.ending = Some(Box::new(move || {
            for link in links.iter() {
                let _ = message::send(link, &Order::Close);
            }
        }));
        Ok(Seat {
            first: 0,
            network: Box::new(network),
            builders,
            others: Some(Arc::new(Postman {
                links: Arc::clone(&self.links),
                heard: Arc::clone(&self.heard),
                workers: self.expected.workers,
            })),
            workers: self.expected.workers * self.member.hosts.len(),
        })
    }

    /// Where the changes of each dataset come together: the worker of the process that commits its tables. With `alone` this
    /// process commits all of them.
    pub fn homes(&self, plan: &Plan, alone: bool) -> BTreeMap<usize, usize> {
        let workers = self.expected.workers as u64;
        let all = if alone { workers } else { workers * self.member.hosts.len() as u64 };
        let stored = plan.datasets.iter().enumerate().filter(|(_, dataset)| dataset.stored != Stored::No);
        let home = |(index, dataset): (usize, &DatasetPlan)| {
            (index, usize::try_from(stable_hash(dataset.label().as_bytes()) % all.max(1)).unwrap_or(0))
        };
        stored.map(home).collect()
    }

    /// The process that commits a table.
    pub fn home(&self, start: &Start, table: TableId) -> usize {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        start.homes.get(&index).map_or(0, |worker| worker / self.expected.workers)
    }

    /// What all processes have come to in the dataflow at hand, by number; of this one only what it exchanged.
    pub fn figures(&self) -> Vec<ProcessReport> {
        let current = held(&self.heard.current);
        let Some(session) = &*current else { return Vec::new() };
        let (sent_bytes, received_bytes) = session.traffic.bytes();
        let own = ProcessReport { process: 0, sent_bytes, received_bytes, spilled_bytes: 0 };
        let other = |process| {
            let none = || ProcessReport { process, ..ProcessReport::default() };
            session.figures.get(&process).cloned().unwrap_or_else(none)
        };
        std::iter::once(own).chain((1..=self.links.len()).map(other)).collect()
    }

    /// Begins to hydrate in all processes.
    pub fn hydration(&self) -> Elsewhere<'_> {
        let (sender, hydrated) = unbounded();
        if let Some(session) = &mut *held(&self.heard.current) {
            session.hydrated = Some(sender);
        }
        Elsewhere::new(self, hydrated, self.links.len())
    }

    /// Lets the others hydrate with their parts of a table.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub(super) fn hydrate(&self, table: TableId, version: i64) -> Result<()> {
        self.check()?;
        self.tell(&Order::Hydrate(table, version))
    }

    /// Lets the others make durable what their workers remember at the end of an epoch.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn stage(&self, epoch: u64) -> Result<Others> {
        let (sender, parts) = unbounded();
        if let Some(session) = &mut *held(&self.heard.current) {
            session.staging = Some(Staging { epoch, early: BTreeMap::new(), next: 1, parts: sender });
        }
        self.check()?;
        self.tell(&Order::Stage(epoch))?;
        let links = Arc::clone(&self.links);
        let published = Box::new(move |epoch, needed: BTreeSet<String>| {
            let order = Order::Published(epoch, needed);
            for link in links.iter() {
                // One that is gone writes no further checkpoint.
                let _ = message::send(link, &order);
            }
        });
        Ok(Others { count: self.links.len(), parts, published })
    }

    /// Leaves tables to the processes that commit them. What their commits come to goes to `commits`.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn adopt(&self, commits: Sender<CommitDone>) -> Result<()> {
        if let Some(session) = &mut *held(&self.heard.current) {
            session.commits = Some(commits);
        }
        self.check()?;
        self.tell(&Order::Adopt)
    }

    /// Hands a committer's message to the process that has it. It has the changes that come from workers; there are none
    /// here.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn hand_over(&self, process: usize, table: TableId, message: ToCommitter) -> Result<()> {
        let order = match message {
            ToCommitter::Hold { epoch, .. } => Order::Hold(table, epoch),
            ToCommitter::Commit { epoch, compare, metrics, .. } => {
                Order::Commit(Commit { table, epoch, compare, metrics })
            }
            ToCommitter::Prepare => Order::Prepare(table),
        };
        let link = process.checked_sub(1).and_then(|at| self.links.get(at));
        match link.map(|link| message::send(link, &order)).transpose()? {
            Some(true) => Ok(()),
            _ => Err(self.gone(process)),
        }
    }

    fn tell(&self, order: &Order) -> Result<()> {
        for (process, link) in (1..).zip(self.links.iter()) {
            if !message::send(link, order)? {
                return Err(self.gone(process));
            }
        }
        Ok(())
    }

    /// Waits until every other process has taken a step.
    fn all(&self, stepped: &Receiver<(usize, Result<()>)>) -> Result<()> {
        let mut errors = Vec::new();
        for _ in self.links.iter() {
            match stepped.recv() {
                Ok((_, Ok(()))) => {}
                Ok((_, Err(error))) if error.code() == PEER_LOST => return Err(error),
                Ok((_, Err(error))) => errors.push(error),
                Err(_) => return Err(self.gone(0)),
            }
        }
        Error::all(errors).map_or(Ok(()), Err)
    }

    fn gone(&self, process: usize) -> Error {
        let loss = Loss { process, why: "its connection was closed".to_owned() };
        self.lost().unwrap_or_else(|| self.heard.error(&loss))
    }

    /// The loss with which the run ends, if there is one.
    pub fn lost(&self) -> Option<Error> {
        held(&self.heard.lost).as_ref().map(|loss| self.heard.error(loss))
    }

    /// The loss that may be the reason of a failure. What a lost process leaves broken may show before the loss itself does.
    pub fn reason(&self) -> Option<Error> {
        let until = Instant::now() + REASON;
        while self.lost().is_none() && Instant::now() < until {
            std::thread::sleep(REASON / 50);
        }
        self.lost()
    }

    /// Whether all are there.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn check(&self) -> Result<()> {
        self.lost().map_or(Ok(()), Err)
    }

    /// Deals what an epoch reads of a source to the processes: whole files, so that each gets about as many bytes. What the
    /// leading process reads comes first, if it reads anything.
    pub fn deal(&self, plan: &Plan, source: usize, position: &Position) -> Vec<(usize, Position)> {
        let processes = self.member.hosts.len();
        match (plan.sources.get(source).map(|source| &source.kind), position) {
            (_, Position::Files(files)) => {
                let shares = deal(files, processes, source);
                shares.into_iter().map(|(process, files)| (process, Position::Files(files))).collect()
            }
            (Some(SourceKind::Delta { read, .. }), Position::Delta { .. }) if !read.retracts() => {
                vec![(source % processes.max(1), position.clone())]
            }
            _ => vec![(0, position.clone())],
        }
    }

    /// From now on, what reading came to elsewhere goes to `reads`.
    pub fn hear_reads(&self, reads: Sender<Read>) {
        if let Some(session) = &mut *held(&self.heard.current) {
            session.reads = Some(reads);
        }
    }

    /// Lets a process read its part of a source. What it comes to is told where [`hear_reads`](Self::hear_reads) says.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn read(&self, plan: &Plan, process: usize, source: usize, position: &Position, at: (u64, i64)) -> Result<()> {
        let (epoch, wall_micros) = at;
        let portion = Portion { source, position: logged(&plan.root, position), epoch, wall_micros };
        let link = process.checked_sub(1).and_then(|at| self.links.get(at));
        match link.map(|link| message::send(link, &Order::Read(portion))).transpose()? {
            Some(true) => Ok(()),
            _ => Err(self.gone(process)),
        }
    }

    /// Tells the others how the run has ended, and lets them go.
    pub fn over(self, result: Result<(), &Error>) {
        self.heard.over.store(true, Ordering::SeqCst);
        let order = Order::Over(result.map_err(SentError::from));
        let told = self.links.iter().filter(|link| matches!(message::send(link, &order), Ok(true))).count();
        let until = Instant::now() + self.member.peer_timeout;
        for _ in 0..told {
            select! {
                recv(self.ends) -> _ => {}
                default(until.saturating_duration_since(Instant::now())) => break,
            }
        }
    }
}

/// Carries messages to the workers of other processes.
struct Postman {
    links: Arc<Vec<Arc<Link>>>,
    heard: Arc<Heard>,
    workers: usize,
}

impl Post for Postman {
    fn deliver(&self, worker: usize, message: ToWorker) -> bool {
        let process = worker / self.workers.max(1);
        let Some(link) = process.checked_sub(1).and_then(|at| self.links.get(at)) else { return false };
        let sent = message::send(link, &Order::Work(worker, Work::of(message)));
        sent.unwrap_or_else(|error| {
            self.heard.lose(process, error.to_string());
            false
        })
    }
}

/// How long the end of a connection can show after what it has broken.
const REASON: Duration = Duration::from_millis(500);

/// Whether an error says that a process cannot go on, and nothing of what is read or computed.
pub(in crate::runtime) fn is_loss(error: &Error) -> bool {
    error.fault() == Fault::Internal || [PEER_LOST, PEER_MISSING].contains(&error.code())
}
