//! What the leading process and the others say to each other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use silverflow_operators::Epoch;

use super::wire::{SentError, SentFault};
use crate::cluster::Link;
use crate::dataflow::{Batch, Counts, Inlet, Outcome, Start, TableId};
use crate::error::{Error, Result};
use crate::lake::{Committed, Position};
use crate::runtime::spread::Load;
use crate::runtime::worker::{FromWorker, ToWorker};
use crate::sources::ReadStats;

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
    /// Hydrate with this process's part of a table as of a version.
    Hydrate(TableId, i64),
    /// Make what the workers remember at the end of an epoch durable.
    Stage(Epoch),
    /// The checkpoint of an epoch is there, and so are these objects and no others.
    Published(Epoch, BTreeSet<String>),
    /// Open the tables that this process commits.
    Adopt,
    /// The changes of an epoch to a table that this process commits are not to be committed yet.
    Hold(TableId, Epoch),
    /// Commit them.
    Commit(Commit),
    /// Learn where the table's rows are.
    Prepare(TableId),
    /// End the dataflow.
    Close,
    /// The run is over.
    Over(Result<(), SentError>),
}

/// To a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Work {
    Rows(Inlet, Batch),
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
    pub(super) homes: BTreeMap<usize, usize>,
}

impl Open {
    pub(super) fn start(&self) -> Start {
        Start {
            hydrated: self.hydrated,
            compare: self.compare.clone(),
            rejudge: self.rejudge.clone(),
            undecided: self.undecided.clone(),
            homes: self.homes.clone(),
            state: None,
            shelf: None,
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

/// The commit of a table.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Commit {
    pub(super) table: TableId,
    pub(super) epoch: Epoch,
    /// All that was held, too, as the difference to what the table holds.
    pub(super) compare: bool,
    /// Numbers to be kept with it.
    pub(super) metrics: BTreeMap<String, u64>,
}

/// From another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is ready to connect its workers, or why not.
    Ready(Result<(), SentError>),
    /// Its workers are connected, or why not.
    Connected(Result<(), SentError>),
    /// There are changes of a table that this process commits.
    Changed(TableId, Epoch),
    /// Faults of rows.
    Faults(Epoch, Vec<SentFault>),
    /// A worker is done with an epoch.
    Done(Epoch, Vec<(usize, Counts)>, Option<i64>, Load),
    /// What this process has come to in the dataflow so far: bytes sent and received between workers, and written to files.
    Figures(u64, u64, u64),
    /// A worker has ended.
    Failed(SentError),
    /// What reading a portion came to, by source.
    Read(usize, Result<ReadStats, SentError>),
    /// What is durable of the workers' state, as JSON.
    Staged(Epoch, Result<String, SentError>),
    /// Rows of a table that this process has hydrated with.
    Hydrated(Result<u64, SentError>),
    /// What a commit came to: what was committed, and the table's version after it.
    Committed(TableId, Result<(Option<Committed>, i64), SentError>),
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
    pub(super) fn of(message: ToWorker) -> Work {
        match message {
            ToWorker::Rows(inlet, batch) => Work::Rows(inlet, batch),
            ToWorker::Wall(epoch, wall) => Work::Wall(epoch, wall),
            ToWorker::End(epoch) => Work::End(epoch),
            ToWorker::Snapshot => Work::Snapshot,
        }
    }

    pub(super) fn message(self) -> ToWorker {
        match self {
            Work::Rows(inlet, batch) => ToWorker::Rows(inlet, batch),
            Work::Wall(epoch, wall) => ToWorker::Wall(epoch, wall),
            Work::End(epoch) => ToWorker::End(epoch),
            Work::Snapshot => ToWorker::Snapshot,
        }
    }
}

/// What a worker has said; its changes stay where they are.
pub(super) fn answer(event: FromWorker) -> Option<Answer> {
    Some(match event {
        FromWorker::Outcome(Outcome::Changes { table, epoch, .. }) => Answer::Changed(table, epoch),
        FromWorker::Outcome(Outcome::Faults { epoch, faults }) => {
            Answer::Faults(epoch, faults.into_iter().map(SentFault::from).collect())
        }
        FromWorker::Done { epoch, counts, due, load } => Answer::Done(epoch, counts, due, load),
        FromWorker::NotBuilt(error) | FromWorker::Lost(error) => Answer::Failed(SentError::from(&error)),
        FromWorker::Panicked(message) => {
            let error = Error::internal(format!("a worker panicked: {message}"));
            Answer::Failed(SentError::from(&error))
        }
        FromWorker::Snapshot { .. } => return None,
    })
}
