//! What the leading process and the others say to each other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use silverflow_operators::Epoch;

use super::wire::{Sent, SentError, SentFault};
use crate::cluster::Link;
use crate::dataflow::{Batch, Counts, Inlet, Outcome, Start, TableId};
use crate::error::{Error, Result};
use crate::lake::Position;
use crate::runtime::worker::{FromWorker, ToWorker};
use crate::sources::ReadStats;

/// Bytes of rows in one message, nearly: a larger result goes in several.
const AT_ONCE: usize = 16 << 20;

/// From the leading process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Make ready for a dataflow.
    Open(Box<Open>),
    /// All are ready: connect the workers and start.
    Connect,
    /// For a worker.
    Work(usize, Work),
    /// Read this part of an epoch.
    Read(Portion),
    /// End the dataflow.
    Close,
    /// The run is over.
    Over(Result<(), SentError>),
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Work {
    Rows(Inlet, Sent),
    Wall(Epoch, i64),
    End(Epoch),
    Snapshot,
}

/// A dataflow.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    /// Its number in the run.
    pub(super) session: u64,
    /// Generation of the run.
    pub(super) generation: u64,
    /// Names that flows had before.
    pub(super) renamed: BTreeMap<String, String>,
    /// Fingerprints of all datasets.
    pub(super) fingerprints: BTreeMap<String, String>,
    /// The epoch of the checkpoint that it begins with.
    pub(super) checkpoint: Option<u64>,
    /// As in [`Start`].
    pub(super) hydrated: Epoch,
    pub(super) compare: BTreeSet<TableId>,
    pub(super) rejudge: BTreeSet<usize>,
    pub(super) undecided: BTreeSet<usize>,
}

impl Open {
    pub(super) fn start(&self) -> Start {
        Start {
            hydrated: self.hydrated,
            compare: self.compare.clone(),
            rejudge: self.rejudge.clone(),
            undecided: self.undecided.clone(),
            state: None,
        }
    }
}

/// A process's part of what an epoch reads of a source.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Portion {
    /// The source.
    pub(super) source: usize,
    /// What to read; files of the project by their path from there.
    pub(super) position: Position,
    /// The epoch.
    pub(super) epoch: u64,
    /// Its wall.
    pub(super) wall_micros: i64,
}

/// From another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is ready to connect its workers, or why not.
    Ready(Result<(), SentError>),
    /// Its workers are connected, or why not.
    Connected(Result<(), SentError>),
    /// Changes of a table.
    Changes(TableId, Epoch, Vec<Sent>),
    /// Faults of rows.
    Faults(Epoch, Vec<SentFault>),
    /// A worker is done with an epoch.
    Done(Epoch, Vec<(usize, Counts)>, Option<i64>),
    /// A worker has ended.
    Failed(SentError),
    /// What reading a portion came to, by source.
    Read(usize, Result<ReadStats, SentError>),
    /// Someone has asked this process to end.
    Stop,
}

/// An answer, and the dataflow that it belongs to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Said(pub(super) u64, pub(super) Answer);

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::internal("a message between processes cannot be made or read").caused_by(error)
}

/// Sends a message. False if the other side is gone; why, the link says to whoever holds it.
pub(super) fn send(link: &Link, message: &impl Serialize) -> Result<bool> {
    let bytes = bincode::serialize(message).map_err(broken)?;
    match link.send(&[&bytes]) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            Err(broken(error).help("a batch of rows is too large to go to another process; run in one process"))
        }
        Err(_) => Ok(false),
    }
}

/// Reads a message.
pub(super) fn read<T: for<'de> Deserialize<'de>>(frame: &[u8]) -> Result<T> {
    bincode::deserialize(frame).map_err(broken)
}

impl Work {
    pub(super) fn of(message: ToWorker) -> Result<Work> {
        Ok(match message {
            ToWorker::Rows(inlet, batch) => Work::Rows(inlet, Sent::of(&batch).map_err(broken)?),
            ToWorker::Wall(epoch, wall) => Work::Wall(epoch, wall),
            ToWorker::End(epoch) => Work::End(epoch),
            ToWorker::Snapshot => Work::Snapshot,
        })
    }

    pub(super) fn message(self) -> Result<ToWorker> {
        Ok(match self {
            Work::Rows(inlet, rows) => ToWorker::Rows(inlet, rows.batch().map_err(broken)?),
            Work::Wall(epoch, wall) => ToWorker::Wall(epoch, wall),
            Work::End(epoch) => ToWorker::End(epoch),
            Work::Snapshot => ToWorker::Snapshot,
        })
    }
}

/// What a worker has said, in messages of a bounded size.
pub(super) fn answers(event: FromWorker, mut give: impl FnMut(Answer) -> Result<bool>) -> Result<bool> {
    match event {
        FromWorker::Outcome(Outcome::Changes { table, epoch, batches }) => {
            let (mut sent, mut size) = (Vec::new(), 0);
            for batch in &batches {
                let one = Sent::of(batch).map_err(broken)?;
                size += one.size();
                sent.push(one);
                if size >= AT_ONCE {
                    size = 0;
                    if !give(Answer::Changes(table, epoch, std::mem::take(&mut sent)))? {
                        return Ok(false);
                    }
                }
            }
            if sent.is_empty() { Ok(true) } else { give(Answer::Changes(table, epoch, sent)) }
        }
        FromWorker::Outcome(Outcome::Faults { epoch, faults }) => {
            give(Answer::Faults(epoch, faults.into_iter().map(SentFault::from).collect()))
        }
        FromWorker::Done { epoch, counts, due } => give(Answer::Done(epoch, counts, due)),
        FromWorker::NotBuilt(error) | FromWorker::Lost(error) => give(Answer::Failed(SentError::from(&error))),
        FromWorker::Panicked(message) => {
            let error = Error::internal(format!("a worker panicked: {message}"));
            give(Answer::Failed(SentError::from(&error)))
        }
        FromWorker::Snapshot { .. } => Ok(true),
    }
}

/// Rows that have come.
pub(super) fn batches(sent: Vec<Sent>) -> Result<Vec<Batch>> {
    sent.into_iter().map(|one| one.batch().map_err(broken)).collect()
}
