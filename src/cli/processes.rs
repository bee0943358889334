//! Starts the processes of a run on this machine, watches them, and starts them again when one is lost.

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use silverflow::cluster::{Link, Listener, Listening, Pulse, Secret};
use silverflow::error::{Error, Fault, Result};
use silverflow::runtime::Stop;

use super::member::{AGAIN, PARENT, ToChild, ToParent, family};

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long processes have to report after they were started.
const START: Duration = Duration::from_secs(60);
/// How long processes have to notice that another one is lost, before they are ended.
const NOTICE: Duration = Duration::from_secs(1);
/// Processes that were there for so long have started well.
const STEADY: Duration = Duration::from_secs(60);
/// Pauses before they are started again, as long as nothing is completed; after the last one there is none.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// What a process has said, or that it says nothing more.
enum Heard {
    Said(usize, ToParent),
    Silent(usize, String),
}

/// How all processes have ended.
enum End {
    /// For good.
    Code(u8),
    /// With the loss of one of them.
    Lost,
}

/// Runs these processes until they are done, and gives the exit code. With `local` they are all there are, and are told
/// where the others listen. What is lost is started again if `again` says so.
pub(super) fn run(processes: &[usize], timeout: Duration, (local, again): (bool, bool), stop: &Stop) -> Result<u8> {
    let mut pauses = PAUSES.iter();
    loop {
        let mut generation = Generation::start(processes, timeout, local)?;
        let begun = Instant::now();
        let end = generation.watch(stop);
        if generation.progress || begun.elapsed() > STEADY {
            pauses = PAUSES.iter();
        }
        drop(generation);
        match end? {
            End::Code(code) => return Ok(code),
            End::Lost if stop.is_requested() || !again => return Ok(Fault::External.exit_code()),
            End::Lost => {}
        }
        let Some(pause) = pauses.next() else {
            return Err(Error::external(
                "PROCESSES_LOST",
                "processes are lost again and again before an epoch is complete",
            )
            .help("the messages above say why; nothing is lost of what was committed"));
        };
        std::thread::sleep(*pause);
        eprintln!("starting again from the epoch log");
    }
}

/// Processes that were started together.
struct Generation {
    children: BTreeMap<usize, Child>,
    links: BTreeMap<usize, Arc<Link>>,
    heard: Receiver<Heard>,
    told: Sender<Heard>,
    _listening: Listening,
    timeout: Duration,
    /// They have completed an epoch.
    progress: bool,
}

impl Drop for Generation {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Generation {
    fn start(processes: &[usize], timeout: Duration, local: bool) -> Result<Generation> {
        let listener = Listener::loopback()?;
        let secret = Secret::random()?;
        let count = processes.len();
        let say = Arc::new(|line: &str| tracing::warn!("{line}"));
        let listening = listener.listen(family(count, count), secret.clone(), say)?;
        let failed = |e| Error::external("CANNOT_START", "a process cannot be started").caused_by(e);
        let program = std::env::current_exe().map_err(failed)?;
        let (told, heard) = unbounded();
        let mut generation = Generation {
            children: BTreeMap::new(),
            links: BTreeMap::new(),
            heard,
            told,
            _listening: listening,
            timeout,
            progress: false,
        };
        for process in processes {
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
            command.env(PARENT, format!("{} {}", listener.address(), secret.to_hex()));
            if local {
                command.args(["--process", &process.to_string()]);
            }
            generation.children.insert(*process, command.spawn().map_err(failed)?);
        }
        if local {
            generation.introduce(processes)?;
        } else {
            generation.meet(processes)?;
        }
        Ok(generation)
    }

    /// Waits until all have come. What has ended meanwhile is found out later.
    fn meet(&mut self, processes: &[usize]) -> Result<()> {
        let until = Instant::now() + START;
        while self.links.len() < self.children.len() && self.ended()?.is_empty() && Instant::now() < until {
            let Ok(arrival) = self._listening.arrivals.recv_timeout(LOOK) else { continue };
            let Some(process) = processes.get(arrival.claim.from).copied() else { continue };
            let (said, silent) = (self.told.clone(), self.told.clone());
            let hear = move |frame: Vec<u8>| match bincode::deserialize(&frame) {
                Ok(message) => said.send(Heard::Said(process, message)).is_ok(),
                Err(_) => false,
            };
            let lost = move |why| _ = silent.send(Heard::Silent(process, why));
            self.links.insert(process, Link::start(arrival.stream, (self.timeout, &Pulse::default()), hear, lost)?);
        }
        Ok(())
    }

    /// Tells all where the others listen.
    fn introduce(&mut self, processes: &[usize]) -> Result<()> {
        self.meet(processes)?;
        let mut addresses: BTreeMap<usize, String> = BTreeMap::new();
        let until = Instant::now() + START;
        while addresses.len() < self.children.len() && self.ended()?.is_empty() && Instant::now() < until {
            match self.heard.recv_timeout(LOOK) {
                Ok(Heard::Said(process, ToParent::Listening(address))) => _ = addresses.insert(process, address),
                Ok(Heard::Silent(..)) => break,
                Ok(Heard::Said(..)) | Err(_) => {}
            }
        }
        if addresses.len() < self.children.len() {
            // One has ended before it could say where it listens: there is nothing to wait for.
            for child in self.children.values_mut() {
                let _ = child.kill();
            }
            return Ok(());
        }
        let secret = Secret::random()?.to_hex();
        self.tell(&ToChild::Hosts(addresses.into_values().collect(), secret))
    }

    fn tell(&self, message: &ToChild) -> Result<()> {
        let message =
            bincode::serialize(message).map_err(|e| Error::internal("a message cannot be made").caused_by(e))?;
        for link in self.links.values() {
            // Whether it is gone is seen elsewhere.
            let _ = link.send(&[&message]);
        }
        Ok(())
    }

    /// Processes that have ended.
    fn ended(&mut self) -> Result<BTreeMap<usize, ExitStatus>> {
        let failed = |e| Error::external("CANNOT_WAIT", "a process cannot be waited for").caused_by(e);
        let mut ended = BTreeMap::new();
        for (process, child) in &mut self.children {
            if let Some(status) = child.try_wait().map_err(failed)? {
                ended.insert(*process, status);
            }
        }
        Ok(ended)
    }

    /// Waits until all have ended. When one has, the others have a moment to notice; then they are ended.
    fn watch(&mut self, stop: &Stop) -> Result<End> {
        let (mut stopping, mut since) = (false, None);
        loop {
            if stop.is_requested() && !std::mem::replace(&mut stopping, true) {
                self.tell(&ToChild::Stop)?;
            }
            while let Ok(heard) = self.heard.try_recv() {
                match heard {
                    Heard::Said(_, ToParent::Progress) => self.progress = true,
                    Heard::Said(_, ToParent::Listening(_)) => {}
                    Heard::Silent(process, why) => {
                        if let Some(child) = self.children.get_mut(&process)
                            && matches!(child.try_wait(), Ok(None))
                            && !why.contains("closed")
                        {
                            eprintln!("process {process} is lost: {why}");
                            // It may have been stopped, and must not wake up again.
                            let _ = child.kill();
                        }
                    }
                }
            }
            let ended = self.ended()?;
            if ended.len() == self.children.len() {
                for (process, status) in ended.iter().filter(|(_, status)| status.code().is_none()) {
                    eprintln!("process {process} is lost: {status}");
                }
                return Ok(verdict(&ended));
            }
            if !ended.is_empty() {
                let since = since.get_or_insert_with(Instant::now);
                // Whoever has lost another one has nothing more to do than to notice.
                let moment = if ended.values().any(is_lost) { NOTICE } else { self.timeout * 2 };
                if since.elapsed() > moment {
                    for child in self.children.values_mut() {
                        let _ = child.kill();
                    }
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn code(status: &ExitStatus) -> Option<u8> {
    status.code().and_then(|code| u8::try_from(code).ok())
}

/// Whether a process was lost, or has lost another one.
fn is_lost(status: &ExitStatus) -> bool {
    code(status).is_none_or(|code| code == AGAIN)
}

/// What the ends of all processes come to. The leading process knows how the run went, if it says so.
fn verdict(ended: &BTreeMap<usize, ExitStatus>) -> End {
    let lead = ended.first_key_value().map(|(_, status)| status);
    match lead.and_then(code) {
        Some(0) => End::Code(0),
        Some(code) if code != AGAIN => End::Code(code),
        _ => match ended.values().find(|status| !is_lost(status) && !status.success()) {
            // One that does not come back makes starting again useless.
            Some(status) => End::Code(code(status).unwrap_or(Fault::External.exit_code())),
            None => End::Lost,
        },
    }
}
