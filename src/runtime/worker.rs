//! Worker actors: one timely worker a thread, fed by a bounded mailbox, never blocked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use silverflow_operators::{Epoch, Snapshot};
use timely::WorkerConfig;
use timely::communication::allocator::AllocatorBuilder;
use timely::communication::{Config as Communication, WorkerGuards};
use timely::execute::execute_from;
use timely::logging::{StartStop, TimelyEvent, TimelyEventBuilder};
use timely::worker::Worker;

use super::RunOptions;
use super::spread::Load;
use crate::cluster::{PEER_LOST, Pulse, turn};
use crate::dataflow::{Batch, Counts, Inlet, Outcome, Start, Tally, build};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// What panics of timely's communication say.
pub const COMMUNICATION: [&str; 2] = ["timely communication error:", "MergeQueue poisoned"];
/// Messages that wait in a worker's mailbox at most.
const MAILBOX: usize = 64;
/// A worker with nothing to do looks around this often.
const IDLE: Duration = Duration::from_millis(500);
/// So does one that waits for its peers.
const BUSY: Duration = Duration::from_millis(10);

/// To a worker.
pub enum ToWorker {
    /// Rows of the epoch that is open.
    Rows(Inlet, Batch),
    /// What the clock shows in an epoch, in microseconds since 1970. It comes before the epoch's rows.
    Wall(Epoch, i64),
    /// The epoch has no further rows.
    End(Epoch),
    /// Say what the operators remember. Only between epochs, when all of them are done.
    Snapshot,
}

/// From a worker.
pub enum FromWorker {
    /// Changes or faults of a closed epoch.
    Outcome(Outcome),
    /// Everything of the epoch is closed on this worker, and all its outcomes have been sent.
    Done {
        /// The epoch.
        epoch: Epoch,
        /// What the worker counted, by dataset.
        counts: Vec<(usize, Counts)>,
        /// When the clock next changes something on the worker, in microseconds since 1970.
        due: Option<i64>,
        /// What the worker has done since it last said so.
        load: Load,
    },
    /// What the worker's operators remember, by name.
    Snapshot {
        /// The worker.
        worker: usize,
        /// The states.
        states: Vec<(String, Snapshot)>,
    },
    /// The dataflow could not be built.
    NotBuilt(Error),
    /// An operator panicked.
    Panicked(String),
    /// Another process is gone, or says that it cannot go on.
    Lost(Error),
}

/// The workers of a run in this process.
pub struct Workers {
    mail: Mail,
    stop: Arc<AtomicBool>,
    guards: Option<WorkerGuards<()>>,
    network: Option<Box<dyn Network>>,
}

/// How workers are connected with those of other processes.
pub trait Network: Send {
    /// Ends the exchange in good order, once the workers here have ended.
    fn end(self: Box<Self>) -> Result<()>;

    /// Says that the workers here are about to end, and waits for nobody.
    fn ending(&mut self);

    /// Breaks the exchange off, so that nobody here or there waits for it.
    fn abort(self: Box<Self>);
}

/// A place among the workers of several processes.
pub struct Seat {
    /// Number of the first worker here.
    pub first: usize,
    /// What connects them.
    pub network: Box<dyn Network>,
    /// Their communication.
    pub builders: Vec<AllocatorBuilder>,
    /// Takes messages for workers of other processes; `None` where nobody here tells them anything.
    pub others: Option<Arc<dyn Post>>,
    /// Workers of all processes.
    pub workers: usize,
}

/// Carries messages to workers of other processes.
pub trait Post: Send + Sync {
    /// Hands a message over. False once the worker cannot be reached any more.
    fn deliver(&self, worker: usize, message: ToWorker) -> bool;
}

/// Sends to workers and wakes them. Cheap to clone.
#[derive(Clone)]
pub struct Mail {
    mailboxes: Vec<Sender<ToWorker>>,
    threads: Arc<Mutex<Vec<Thread>>>,
    /// Number of the first worker that is here, and of all there are.
    first: usize,
    workers: usize,
    others: Option<Arc<dyn Post>>,
}

impl Mail {
    /// Sends a message to one worker, waiting while its mailbox is full. False once the worker has ended.
    pub fn send(&self, worker: usize, message: ToWorker) -> bool {
        let worker = worker % self.workers.max(1);
        let sent = match (worker.checked_sub(self.first).and_then(|at| self.mailboxes.get(at)), &self.others) {
            (Some(mailbox), _) => mailbox.send(message).is_ok(),
            (None, Some(others)) => return others.deliver(worker, message),
            (None, None) => false,
        };
        self.wake();
        sent
    }

    /// To the workers of this process alone.
    pub fn here(&self) -> Mail {
        let (first, workers) = (0, self.mailboxes.len());
        Mail { mailboxes: self.mailboxes.clone(), threads: Arc::clone(&self.threads), first, workers, others: None }
    }

    /// Tells all workers what the clock shows in an epoch. A worker that has ended is found out by whoever ends the epoch.
    pub fn wall(&self, epoch: Epoch, wall: i64) {
        for worker in 0..self.workers {
            self.send(worker, ToWorker::Wall(epoch, wall));
        }
    }

    /// Ends an epoch on all workers.
    pub fn end(&self, epoch: Epoch) -> bool {
        (0..self.workers).all(|worker| self.send(worker, ToWorker::End(epoch)))
    }

    /// Asks all workers what their operators remember.
    pub fn snapshot(&self) -> bool {
        (0..self.workers).all(|worker| self.send(worker, ToWorker::Snapshot))
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers
    }

    fn wake(&self) {
        if let Ok(threads) = self.threads.lock() {
            threads.iter().for_each(Thread::unpark);
        }
    }
}

impl Workers {
    /// Starts `options.workers` workers. What they have to say arrives at `events`. With a `seat` they work with those of
    /// other processes, each of which has as many.
    pub fn start(
        plan: &Arc<Plan>,
        start: &Start,
        options: &RunOptions,
        events: &Sender<FromWorker>,
        seat: Option<Seat>,
    ) -> Result<Workers> {
        let count = options.workers.max(1);
        let (mut mailboxes, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (sender, receiver) = bounded(MAILBOX);
            mailboxes.push(sender);
            receivers.push(Some(receiver));
        }
        let receivers = Arc::new(Mutex::new(receivers));
        let threads: Arc<Mutex<Vec<Thread>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared {
            plan: Arc::clone(plan),
            start: start.clone(),
            events: events.clone(),
            stop: Arc::clone(&stop),
            threads: Arc::clone(&threads),
            before_epoch: options.before_epoch,
            pulse: options.member.as_ref().filter(|_| seat.is_some()).map(|member| member.pulse.clone()),
        };
        let first = seat.as_ref().map_or(0, |seat| seat.first);
        let work = move |worker: &mut Worker| {
            let at = worker.index().wrapping_sub(first);
            let mailbox = receivers.lock().ok().and_then(|mut all| all.get_mut(at).and_then(Option::take));
            if let Some(mailbox) = mailbox {
                shared.work(worker, &mailbox);
            }
        };
        let mut mail = Mail { mailboxes, threads, first, workers: count, others: None };
        let mut network = None;
        let guards = match seat {
            None => {
                let communication = if count == 1 { Communication::Thread } else { Communication::Process(count) };
                timely::execute(timely::Config { communication, worker: WorkerConfig::default() }, work)
            }
            Some(seat) => {
                (mail.workers, mail.others) = (seat.workers, seat.others);
                network = Some(seat.network);
                execute_from(seat.builders, Box::new(()), WorkerConfig::default(), work)
            }
        };
        let guards = guards.map_err(|e| Error::internal(format!("the workers cannot start: {e}")))?;
        Ok(Workers { mail, stop, guards: Some(guards), network })
    }

    /// Where to send.
    pub fn mail(&self) -> Mail {
        self.mail.clone()
    }

    /// Stops all workers and waits for them.
    pub fn stop(mut self) -> Result<()> {
        if let Some(network) = &mut self.network {
            network.ending();
        }
        self.halt();
        let guards = self.guards.take();
        for result in guards.map(WorkerGuards::join).into_iter().flatten() {
            result.map_err(|e| match &self.network {
                // Its own panics are caught before.
                Some(_) => Error::external(PEER_LOST, "the exchange with another process broke off"),
                None => Error::internal(format!("a worker ended badly: {e}")),
            })?;
        }
        self.network.take().map_or(Ok(()), Network::end)
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.mail.wake();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.halt();
        if let Some(network) = self.network.take() {
            network.abort();
        }
        // Dropping the guards without joining them would panic where a worker has.
        if let Some(guards) = self.guards.take() {
            drop(guards.join());
        }
    }
}

/// Adds up the time in operators. They are in each other: a dataflow is one, and so are its parts.
struct Busy(Rc<Cell<Duration>>);

impl Busy {
    fn hear(&mut self, at: Duration, starts: bool, inside: &mut Vec<Duration>) {
        if starts {
            inside.push(at);
        } else if let Some(began) = inside.pop()
            && inside.is_empty()
        {
            self.0.set(self.0.get() + at.saturating_sub(began));
        }
    }
}

#[derive(Clone)]
struct Shared {
    plan: Arc<Plan>,
    start: Start,
    events: Sender<FromWorker>,
    stop: Arc<AtomicBool>,
    threads: Arc<Mutex<Vec<Thread>>>,
    before_epoch: Option<fn(usize, u64)>,
    /// Where it is told that the worker gets on, if it works with those of other processes.
    pulse: Option<Pulse>,
}

impl Shared {
    fn work(&self, worker: &mut Worker, mailbox: &Receiver<ToWorker>) {
        if let Ok(mut threads) = self.threads.lock() {
            threads.push(std::thread::current());
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.turn(worker, mailbox)));
        let end = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(FromWorker::NotBuilt(error)),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_else(|| "without a message".to_owned());
                // That is how timely says that a connection is closed.
                if self.pulse.is_some() && COMMUNICATION.iter().any(|part| message.contains(part)) {
                    Some(FromWorker::Lost(Error::external(PEER_LOST, "the exchange with another process broke off")))
                } else {
                    Some(FromWorker::Panicked(message))
                }
            }
        };
        if let Some(end) = end {
            // The reason first: once the others stop, their mailboxes close, and the supervisor asks why.
            let _ = self.events.send(end);
            self.stop.store(true, Ordering::SeqCst);
            if let Ok(threads) = self.threads.lock() {
                threads.iter().for_each(Thread::unpark);
            }
        }
        // A worker whose peer is gone would otherwise wait for its dataflow for ever.
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    }

    fn turn(&self, worker: &mut Worker, mailbox: &Receiver<ToWorker>) -> Result<()> {
        let tally = Tally::default();
        let outbox: Rc<RefCell<VecDeque<FromWorker>>> = Rc::default();
        let out = Rc::clone(&outbox);
        let deliver = move |outcome| out.borrow_mut().push_back(FromWorker::Outcome(outcome));
        let index = worker.index();
        let busy: Rc<Cell<Duration>> = Rc::default();
        if let Some(mut log) = worker.log_register() {
            let (mut busy, mut inside) = (Busy(Rc::clone(&busy)), Vec::new());
            // Every operator bears the name of its dataset or flow.
            log.insert::<TimelyEventBuilder, _>("timely", move |_, events| {
                for (at, event) in events.iter().flat_map(|events| events.iter()) {
                    match event {
                        TimelyEvent::Operates(operator) => {
                            tracing::debug!(worker = index, id = operator.id, name = operator.name, "operator");
                        }
                        TimelyEvent::Schedule(turn) => busy.hear(*at, turn.start_stop == StartStop::Start, &mut inside),
                        _ => {}
                    }
                }
            });
        }
        let mut load = Load { worker: index, ..Load::default() };
        let mut dataflow =
            worker.dataflow::<Epoch, _, _>(|scope| build(scope, &self.plan, &self.start, &tally, &deliver))?;
        // The epoch that rows belong to, and the ended epochs that are not yet closed.
        let mut ended: VecDeque<Epoch> = VecDeque::new();
        let mut current: Epoch = 0;
        let mut entered: Option<Epoch> = None;
        let _watched = self.pulse.as_ref().map(Pulse::watch);
        while !self.stop.load(Ordering::Relaxed) {
            turn();
            let mut idle = true;
            match mailbox.try_recv() {
                Ok(ToWorker::Rows(inlet, batch)) => {
                    idle = false;
                    load.entered += batch.rows.num_rows() as u64;
                    load.waiting = load.waiting.max(mailbox.len() as u64 + 1);
                    if entered != Some(batch.epoch) {
                        entered = Some(batch.epoch);
                        if let Some(hook) = self.before_epoch {
                            hook(index, batch.epoch);
                        }
                    }
                    if batch.epoch > current {
                        current = batch.epoch;
                        dataflow.inlets.values_mut().for_each(|handle| handle.advance_to(current));
                        dataflow.clock.advance_to(current);
                    }
                    if let Some(handle) = dataflow.inlets.get_mut(&inlet) {
                        handle.send(batch);
                    }
                }
                Ok(ToWorker::Wall(epoch, wall)) => {
                    idle = false;
                    dataflow.clock.set(epoch, wall);
                }
                Ok(ToWorker::End(epoch)) => {
                    idle = false;
                    current = epoch + 1;
                    for handle in dataflow.inlets.values_mut() {
                        handle.advance_to(current);
                        handle.flush();
                    }
                    dataflow.clock.advance_to(current);
                    ended.push_back(epoch);
                }
                Ok(ToWorker::Snapshot) => {
                    idle = false;
                    let states = dataflow.states.iter().map(|s| (s.name.clone(), s.state.borrow_mut().snapshot()));
                    outbox.borrow_mut().push_back(FromWorker::Snapshot { worker: index, states: states.collect() });
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            while ended.front().is_some_and(|epoch| dataflow.closed_below() > *epoch) {
                if let Some(epoch) = ended.pop_front() {
                    dataflow.clock.closed_below(epoch + 1);
                    let due = dataflow.clock.due();
                    let counts = tally.take(epoch).into_iter().filter(|((at, _), _)| *at == epoch);
                    let counts = counts.map(|((_, dataset), counts)| (dataset, counts)).collect();
                    let mut done = std::mem::replace(&mut load, Load { worker: index, ..Load::default() });
                    done.busy_micros = u64::try_from(busy.take().as_micros()).unwrap_or(u64::MAX);
                    done.lanes = dataflow.lanes.take();
                    outbox.borrow_mut().push_back(FromWorker::Done { epoch, counts, due, load: done });
                }
            }
            let mut waiting = outbox.borrow_mut();
            while let Some(event) = waiting.pop_front() {
                match self.events.try_send(event) {
                    Ok(()) => {}
                    Err(TrySendError::Full(event)) => {
                        waiting.push_front(event);
                        break;
                    }
                    Err(TrySendError::Disconnected(_)) => return Ok(()),
                }
            }
            let pending = !waiting.is_empty();
            drop(waiting);
            if idle && !pending {
                // Mail and peers wake it.
                let nap = if ended.is_empty() { IDLE } else { BUSY };
                worker.step_or_park(Some(nap));
            } else {
                worker.step();
            }
        }
        Ok(())
    }
}
