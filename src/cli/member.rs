//! Flags of a run in several processes, and what a process makes of them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};
use silverflow::cluster::{
    Expected, Hosts, LEAST, Link, Listener, Member, PEER_LOST, Pulse, Purpose, Say, Secret, connect,
};
use silverflow::error::{Error, Fault, Result};
use silverflow::runtime::{COMMUNICATION, Stop};

use super::processes;
use super::run::duration;

/// Bears what a process has to know that was started by a command: where to report, and how to prove that it may.
pub(super) const PARENT: &str = "SILVERFLOW_PARENT";
/// The secret of a run on several hosts.
const SECRET: &str = "SILVERFLOW_SECRET";
/// Exit code of a process that the command that has started it should start again.
pub(super) const AGAIN: u8 = 75;

/// Flags of a run in several processes.
#[derive(Args)]
pub(super) struct Cluster {
    /// Run in so many processes on this machine, each with --workers threads.
    #[arg(long, value_name = "N", conflicts_with = "hosts", value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: Option<u16>,
    /// Run in several processes on the hosts that this file names, one host:port a line; this is process --process of them.
    #[arg(long, value_name = "FILE", requires = "process")]
    hosts: Option<PathBuf>,
    /// The number of this process: its line in --hosts, counted from 0. Process 0 leads.
    #[arg(long, value_name = "I")]
    process: Option<u16>,
    /// The secret that all processes share is in this file; otherwise it is the value of SILVERFLOW_SECRET. It is needed
    /// unless all hosts are this one.
    #[arg(long, value_name = "FILE", requires = "hosts")]
    secret_file: Option<PathBuf>,
    /// Start this process again when it, or another one, is lost.
    #[arg(long, requires = "hosts")]
    restart: bool,
    /// How long to wait for the other processes at the start.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    start_timeout: Duration,
    /// After how long without a sign of life another process counts as lost.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    peer_timeout: Duration,
    /// After how long at one batch of rows a computing thread counts as hanging; its process then gives no signs of life.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    hang_timeout: Duration,
}

/// What a command is in a run.
pub(super) enum Role {
    /// All of it.
    Alone,
    /// One of its processes.
    Member(Arc<Member>),
    /// It has started others and waited for them; they ended with this code.
    Parent(u8),
}

/// From a process to the command that has started it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToParent {
    /// It listens here.
    Listening(String),
    /// It has completed an epoch.
    Progress,
}

/// From the command to a process that it has started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToChild {
    /// Where all processes listen, and what they share, in hexadecimal digits.
    Hosts(Vec<String>, String),
    /// End after the epoch at hand.
    Stop,
}

/// Connections of a process and of the command that has started it are of a run of their own.
pub(super) fn family(index: usize, children: usize) -> Expected {
    Expected {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        pipeline: String::new(),
        definitions: String::new(),
        index,
        processes: children + 1,
        workers: 0,
    }
}

/// The connection to the command that has started this process.
static FAMILY: OnceLock<Arc<Link>> = OnceLock::new();

/// Whether the workers of this process get on.
static PULSE: OnceLock<Pulse> = OnceLock::new();

/// Whether this process was started by a command, which hears how it ends.
pub(super) fn is_child() -> bool {
    std::env::var_os(PARENT).is_some()
}

/// Tells the command that has started this process that it gets on.
pub(super) fn progress() {
    if let Some(link) = FAMILY.get()
        && let Ok(message) = bincode::serialize(&ToParent::Progress)
    {
        // If the command is gone, so is this process in a moment.
        let _ = link.send(&[&message]);
    }
}

/// A connection that breaks is told as an error of the run; the panics by which timely's threads hear of it are not shown.
fn quiet() {
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload_as_str().unwrap_or_default();
        let thread = std::thread::current();
        let of_timely = thread.name().is_some_and(|name| name.starts_with("timely:"));
        let joins = ["Send thread panic", "Recv thread panic"].iter().any(|part| message.contains(part));
        let broken = of_timely && COMMUNICATION.iter().any(|part| message.contains(part));
        if !(joins || broken) {
            show(info);
        }
    }));
}

/// Whether a failure may be over when all processes start again.
pub(super) fn may_pass(error: &Error) -> bool {
    error.code() == PEER_LOST || error.fault() == Fault::Internal
}

impl Cluster {
    /// Whether this process serves another one.
    pub(super) fn serves(&self) -> bool {
        self.process.is_some_and(|process| process > 0)
    }

    /// Whether what this process has to say is said by the leading one, too.
    pub(super) fn is_echo(&self) -> bool {
        self.serves() && self.hosts.is_none()
    }

    /// Finds out what this command is, and starts other processes if that is what it does.
    /// Those that are lost are started again only if `again` says so.
    pub(super) fn role(&self, stop: &Stop, again: bool) -> Result<Role> {
        let index = usize::from(self.process.unwrap_or_default());
        match (&self.hosts, self.processes) {
            (Some(file), _) => {
                let hosts = Hosts::from_file(file)?;
                if index >= hosts.len() {
                    let message = format!("--process {index}: {} names {} hosts", file.display(), hosts.len());
                    return Err(Error::user("PROCESS_NOT_EXPECTED", message));
                }
                let secret = self.secret(&hosts)?;
                if self.restart && !is_child() {
                    return processes::run(&[index], self.peer_timeout, (false, again), stop).map(Role::Parent);
                }
                let listener = Listener::bind(hosts.get(index).unwrap_or_default())?;
                if is_child() {
                    self.family(1, stop)?;
                }
                Ok(self.member(index, hosts, secret, listener))
            }
            (None, Some(count)) if is_child() => {
                let listener = Listener::loopback()?;
                let said = self.family(usize::from(count), stop)?;
                let link = FAMILY.get().ok_or_else(|| Error::internal("there is no link to the command"))?;
                let message = bincode::serialize(&ToParent::Listening(listener.address().to_string()));
                let sent = message.is_ok_and(|message| link.send(&[&message]).is_ok());
                let hosts = said.recv_timeout(self.start_timeout).ok().filter(|_| sent);
                let (hosts, secret) = hosts.ok_or_else(|| {
                    Error::external(PEER_LOST, "the command that has started this process does not say what to do")
                })?;
                let secret = Secret::from_hex(&secret).ok_or_else(|| Error::internal("a secret without form"))?;
                Ok(self.member(index, Hosts::new(hosts), secret, listener))
            }
            (None, _) if self.process.is_some() => Err(Error::user("HOSTS_MISSING", "--process needs --hosts")),
            (None, Some(count)) if count > 1 => {
                let all: Vec<usize> = (0..usize::from(count)).collect();
                processes::run(&all, self.peer_timeout, (true, again), stop).map(Role::Parent)
            }
            (None, _) => Ok(Role::Alone),
        }
    }

    fn member(&self, index: usize, hosts: Hosts, secret: Secret, listener: Listener) -> Role {
        quiet();
        let say: Say = Arc::new(move |line| tracing::warn!("process {index}: {line}"));
        Role::Member(Arc::new(Member {
            index,
            hosts,
            listener,
            secret,
            start_timeout: self.start_timeout,
            peer_timeout: self.peer_timeout,
            pulse: self.pulse().clone(),
            say,
        }))
    }

    fn pulse(&self) -> &'static Pulse {
        PULSE.get_or_init(|| Pulse::new(self.hang_timeout))
    }

    fn secret(&self, hosts: &Hosts) -> Result<Secret> {
        let secret = match (&self.secret_file, std::env::var(SECRET)) {
            (Some(file), _) => Secret::from_file(file)?,
            (None, Ok(secret)) => Secret::new(secret.trim()),
            (None, Err(_)) => Secret::default(),
        };
        if secret.is_empty() && !hosts.are_loopback() {
            return Err(Error::user(
                "SECRET_MISSING",
                "the hosts are not all this one, and there is no secret by which processes recognise each other",
            )
            .help(format!("give all of them the same: --secret-file, or {SECRET} in the environment")));
        }
        if secret.is_short() && !hosts.are_loopback() {
            let message =
                format!("a secret of fewer than {LEAST} bytes can be guessed, and the hosts are not all this one");
            return Err(
                Error::user("SECRET_SHORT", message).help("take a random one, such as `openssl rand -hex 32` gives")
            );
        }
        Ok(secret)
    }

    /// Connects with the command that has started this process, and ends with it. Gives the hosts that it names.
    fn family(&self, children: usize, stop: &Stop) -> Result<crossbeam_channel::Receiver<(Vec<String>, String)>> {
        let damaged = || Error::user("PARENT_INVALID", format!("{PARENT} is set and is not what a command sets"));
        let text = std::env::var(PARENT).map_err(|_| damaged())?;
        let (address, secret) = text.split_once(' ').ok_or_else(damaged)?;
        let secret = Secret::from_hex(secret).ok_or_else(damaged)?;
        let index = if children > 1 { usize::from(self.process.unwrap_or_default()) } else { 0 };
        let claim = family(index, children).claim(Purpose::Child, children);
        let stream = connect(address, &claim, &secret, self.start_timeout, &|| true)?;
        let (hosts, said) = bounded(1);
        let stop = stop.clone();
        let hear = move |frame: Vec<u8>| {
            match bincode::deserialize(&frame) {
                Ok(ToChild::Hosts(addresses, secret)) => _ = hosts.send((addresses, secret)),
                Ok(ToChild::Stop) => stop.request(),
                Err(error) => tracing::error!("the command cannot be understood: {error}"),
            }
            true
        };
        // Nobody would notice what happens to it: what it has begun, the next run finishes.
        let lost = |_| std::process::exit(i32::from(Fault::External.exit_code()));
        let link = Link::start(stream, (self.peer_timeout, self.pulse()), hear, lost)?;
        let _ = FAMILY.set(link);
        Ok(said)
    }
}
