//! The first bytes of a connection: both sides show what they are and prove that they know the secret.
//!
//! ```text
//! initiator                                   acceptor
//! "silverflow" version nonce         ──────>
//!                                    <──────  "silverflow" version nonce
//! proof claim                        ──────>
//!                                    <──────  proof verdict
//! ```
//!
//! A proof is an HMAC over both nonces and the claim, or the verdict. Whoever calls proves first: a caller without the
//! secret gets nothing of it, not even something to try guesses on. The acceptor looks at the claim only after its proof,
//! the initiator at the verdict only after that one's.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::frame::{read_frame, write_frame};
use super::hosts::resolve;
use super::secret::{NONCE, PROOF, nonce};
use super::{PEER_MISSING, PROTOCOL, Secret};
use crate::error::{Error, Fault, Result};

const MAGIC: &[u8; 10] = b"silverflow";
/// Bytes of one step of a handshake at most.
const STEP: usize = 1 << 16;
/// How long a handshake takes at most.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// Pause between attempts to reach a process that is not there yet.
const AGAIN: Duration = Duration::from_millis(50);
const INITIATOR: &str = "silverflow initiator";
const ACCEPTOR: &str = "silverflow acceptor";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Orders and results, between the leading process and another one.
    Control,
    /// What workers exchange.
    Data {
        /// Generation of the run.
        generation: u64,
        /// Which of its dataflows.
        session: u64,
    },
    /// A process, to the command that has started it.
    Child,
}

/// What the initiator of a connection says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// What the connection is for.
    pub purpose: Purpose,
    /// Release of silverflow.
    pub release: String,
    /// Name of the pipeline.
    pub pipeline: String,
    /// Hash of its definitions.
    pub definitions: String,
    /// Its number.
    pub from: usize,
    /// The process that it means to reach.
    pub to: usize,
    /// How many processes it knows of.
    pub processes: usize,
    /// Workers of each.
    pub workers: usize,
}

/// What a claim is held against.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Release of silverflow.
    pub release: String,
    /// Name of the pipeline.
    pub pipeline: String,
    /// Hash of its definitions.
    pub definitions: String,
    /// The number of this process.
    pub index: usize,
    /// How many processes there are.
    pub processes: usize,
    /// Workers of each.
    pub workers: usize,
}

/// Why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Stable code.
    pub code: String,
    /// For people.
    pub message: String,
}

impl Expected {
    /// The claim that this process makes to another one.
    pub fn claim(&self, purpose: Purpose, to: usize) -> Claim {
        Claim {
            purpose,
            release: self.release.clone(),
            pipeline: self.pipeline.clone(),
            definitions: self.definitions.clone(),
            from: self.index,
            to,
            processes: self.processes,
            workers: self.workers,
        }
    }

    /// What is wrong with a claim.
    pub(super) fn judge(&self, claim: &Claim) -> Result<(), Refusal> {
        let differs = |code: &str, what: &str, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            let message = format!("{what} of process {} is {theirs}, here it is {ours}", claim.from);
            Err(Refusal { code: code.to_owned(), message })
        };
        if claim.release != self.release {
            return differs("RELEASE_DIFFERS", "the release", &claim.release, &self.release);
        }
        if claim.pipeline != self.pipeline {
            return differs("PIPELINE_DIFFERS", "the pipeline", &claim.pipeline, &self.pipeline);
        }
        if claim.processes != self.processes {
            return differs("PROCESSES_DIFFER", "the number of processes", &claim.processes, &self.processes);
        }
        if claim.from >= self.processes || claim.from == self.index || claim.to != self.index {
            let message = format!(
                "process {} of {} looks for process {}, and this is process {}",
                claim.from, claim.processes, claim.to, self.index
            );
            return Err(Refusal { code: "PROCESS_NOT_EXPECTED".to_owned(), message });
        }
        if claim.workers != self.workers {
            return differs("WORKERS_DIFFER", "the number of workers", &claim.workers, &self.workers);
        }
        if claim.definitions != self.definitions {
            return differs("DEFINITIONS_DIFFER", "the hash of the definitions", &claim.definitions, &self.definitions);
        }
        Ok(())
    }
}

/// A connection until a moment, whatever it does.
struct Until<'a> {
    stream: &'a TcpStream,
    moment: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.moment.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn preamble() -> Vec<u8> {
    [MAGIC.as_slice(), &PROTOCOL.to_le_bytes()].concat()
}

/// The version that the other side speaks.
fn read_preamble(input: &mut impl Read) -> io::Result<Option<u32>> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Ok(None);
    }
    let mut version = [0; 4];
    input.read_exact(&mut version)?;
    Ok(Some(u32::from_le_bytes(version)))
}

/// Text with what came over a connection, of which nothing is known.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it says nothing".to_owned(),
        io::ErrorKind::UnexpectedEof => "it was closed before it said who it is".to_owned(),
        _ => error.to_string(),
    }
}

/// The acceptor's side. Why the connection is not taken, otherwise.
pub(super) fn accept(stream: &TcpStream, expected: &Expected, secret: &Secret) -> Result<Claim, String> {
    let words = |e: io::Error| in_words(&e);
    let mut line = Until { stream, moment: Instant::now() + DEADLINE };
    match read_preamble(&mut line).map_err(words)? {
        None => return Err("it does not speak silverflow's protocol".to_owned()),
        Some(PROTOCOL) => {}
        Some(version) => {
            line.write_all(&preamble()).map_err(words)?;
            return Err(format!("its version of the protocol is {version}, here it is {PROTOCOL}"));
        }
    }
    let mut theirs = [0; NONCE];
    line.read_exact(&mut theirs).map_err(words)?;
    let own = nonce().map_err(|e| e.to_string())?;
    line.write_all(&[&preamble(), &own[..]].concat()).map_err(words)?;
    let frame = read_frame(&mut line, STEP).map_err(words)?;
    let (proof, claimed) = frame.split_at_checked(PROOF).unwrap_or_default();
    if !secret.verify(INITIATOR, &[&theirs, &own, claimed], proof) {
        // It hears that nothing follows, and is told nothing that takes the secret to make.
        let _ = write_frame(&mut line, &[]);
        return Err("it does not know the secret".to_owned());
    }
    let claim: Claim = bincode::deserialize(claimed).map_err(|_| "what it claims cannot be read".to_owned())?;
    let verdict = expected.judge(&claim);
    let told = bincode::serialize(&verdict).map_err(|e| e.to_string())?;
    let sent = write_frame(&mut line, &[&secret.prove(ACCEPTOR, &[&theirs, &own, &told]), &told]);
    // It hears why it is refused, if it still listens.
    verdict.map_err(|refusal| refusal.message)?;
    sent.map_err(words)?;
    settle(stream).map_err(words)?;
    Ok(claim)
}

/// Why a connection came to nothing.
enum Failed {
    /// Nobody is there, or nobody that answers.
    NotThere(String),
    /// The other side, or this one, does not want it.
    Refused(Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::NotThere(in_words(&error))
    }
}

fn attempt(address: &str, claim: &Claim, secret: &Secret, until: Instant) -> Result<TcpStream, Failed> {
    let mut last = None;
    let stream = resolve(address)?.into_iter().find_map(|address| {
        let patience = until.saturating_duration_since(Instant::now()).clamp(AGAIN, DEADLINE);
        TcpStream::connect_timeout(&address, patience).map_err(|e| last = Some(e)).ok()
    });
    let Some(stream) = stream else { return Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()).into()) };
    let mut line = Until { stream: &stream, moment: Instant::now() + DEADLINE };
    let claimed = bincode::serialize(claim).map_err(io::Error::other)?;
    let own = nonce().map_err(Failed::Refused)?;
    line.write_all(&[&preamble(), &own[..]].concat())?;
    let refused = |fault: Fault, code: &'static str, message: String| {
        Failed::Refused(Error::new(fault, code, format!("{address}: {message}")))
    };
    match read_preamble(&mut line)? {
        Some(PROTOCOL) => {}
        Some(version) => {
            let message = format!("its version of the protocol is {version}, here it is {PROTOCOL}");
            return Err(refused(Fault::User, "PROTOCOL_DIFFERS", message));
        }
        None => {
            let message = "what listens there is not silverflow".to_owned();
            return Err(refused(Fault::User, "PEER_NOT_SILVERFLOW", message));
        }
    }
    let mut theirs = [0; NONCE];
    line.read_exact(&mut theirs)?;
    write_frame(&mut line, &[&secret.prove(INITIATOR, &[&own, &theirs, &claimed]), &claimed])?;
    let answer = read_frame(&mut line, STEP)?;
    let (proof, told) = answer.split_at_checked(PROOF).unwrap_or_default();
    if !secret.verify(ACCEPTOR, &[&own, &theirs, told], proof) {
        return Err(refused(Fault::User, "SECRET_DIFFERS", "it has another secret".to_owned()));
    }
    let verdict: Result<(), Refusal> = bincode::deserialize(told).map_err(io::Error::other)?;
    if let Err(Refusal { code, message }) = verdict {
        const KNOWN: [&str; 6] = [
            "RELEASE_DIFFERS",
            "PIPELINE_DIFFERS",
            "PROCESSES_DIFFER",
            "PROCESS_NOT_EXPECTED",
            "WORKERS_DIFFER",
            "DEFINITIONS_DIFFER",
        ];
        let code = KNOWN.into_iter().find(|known| *known == code).unwrap_or("PEER_REFUSES");
        return Err(refused(Fault::User, code, message));
    }
    settle(&stream)?;
    Ok(stream)
}

/// The connection has no deadline any more.
fn settle(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)
}

/// Connects to a process and shakes hands. Tries again while nobody is there, for `patience`; `goes_on` ends it earlier.
///
/// # Errors
/// `PEER_MISSING` (external) if nobody came; otherwise why the other side refuses (user).
pub fn connect(
    address: &str,
    claim: &Claim,
    secret: &Secret,
    patience: Duration,
    goes_on: &dyn Fn() -> bool,
) -> Result<TcpStream> {
    let until = Instant::now() + patience;
    loop {
        match attempt(address, claim, secret, until) {
            Ok(stream) => return Ok(stream),
            Err(Failed::Refused(error)) => return Err(error),
            Err(Failed::NotThere(why)) if Instant::now() > until || !goes_on() => {
                return Err(Error::external(
                    PEER_MISSING,
                    format!("process {} ({address}) was not there in {patience:?}: {why}", claim.to),
                )
                .help("start it, or look whether its machine can be reached"));
            }
            Err(Failed::NotThere(_)) => std::thread::sleep(AGAIN),
        }
    }
}
