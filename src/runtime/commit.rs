//! Committers: one actor a table, which applies closed epochs in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use crossbeam_channel::{Receiver, Sender, bounded};
use futures::StreamExt;
use tokio::runtime::Handle;

use super::columns::to_stored;
use crate::dataflow::{Batch, TableId};
use crate::error::{Error, Result};
use crate::lake::{Commit, Committed, Table};

/// To a committer.
pub enum ToCommitter {
    /// Changes that are not to be committed yet: the table will be set by comparison.
    Hold(Vec<Batch>),
    /// Commit the changes of an epoch; with `compare`, together with all that was held, as the difference to what the
    /// table holds.
    Commit {
        /// The epoch.
        epoch: u64,
        /// The changes.
        batches: Vec<Batch>,
        /// Compare.
        compare: bool,
    },
}

/// The end of one commit.
pub struct CommitDone {
    /// The table.
    pub table: TableId,
    /// What was committed, and the table's version after it.
    pub result: Result<(Option<Committed>, i64)>,
}

/// Handle of a committer.
pub struct Committer {
    mailbox: Sender<ToCommitter>,
    /// Where the table lies in the lake.
    pub path: String,
}

struct Actor {
    id: TableId,
    table: Table,
    schema: SchemaRef,
    keeps_epoch: bool,
    held: Vec<Batch>,
    io: Handle,
}

impl Committer {
    /// Starts the actor of a table. It ends when the handle is dropped.
    pub fn start(
        id: TableId,
        (table, path): (Table, String),
        keeps_epoch: bool,
        io: &Handle,
        done: &Sender<CommitDone>,
    ) -> Committer {
        let (mailbox, receiver) = bounded(2);
        let schema = Arc::clone(table.schema());
        let actor = Actor { id, table, schema, keeps_epoch, held: Vec::new(), io: io.clone() };
        let done = done.clone();
        std::thread::spawn(move || actor.run(&receiver, &done));
        Committer { mailbox, path }
    }

    /// Hands over a message. False once the actor has ended.
    pub fn send(&self, message: ToCommitter) -> bool {
        self.mailbox.send(message).is_ok()
    }
}

impl Actor {
    fn run(mut self, mailbox: &Receiver<ToCommitter>, done: &Sender<CommitDone>) {
        // Scans start tasks of the runtime.
        let io = self.io.clone();
        let _context = io.enter();
        for message in mailbox {
            match message {
                ToCommitter::Hold(batches) => self.held.extend(batches),
                ToCommitter::Commit { epoch, batches, compare } => {
                    let work = std::panic::AssertUnwindSafe(|| self.commit(epoch, batches, compare));
                    let result = std::panic::catch_unwind(work)
                        .unwrap_or_else(|_| {
                            Err(Error::internal("a commit panicked").dataset(self.table.name()).epoch(epoch))
                        })
                        .map(|committed| (committed, self.table.version()));
                    if done.send(CommitDone { table: self.id, result }).is_err() {
                        return;
                    }
                    self.maintain();
                }
            }
        }
    }

    fn commit(&mut self, epoch: u64, batches: Vec<Batch>, compare: bool) -> Result<Option<Committed>> {
        let name = self.table.name().to_owned();
        let wrong = |e| Error::internal("changes do not fit the table").caused_by(e).dataset(&name).epoch(epoch);
        let (mut inserts, mut deletes): (Vec<RecordBatch>, Vec<RecordBatch>) = (Vec::new(), Vec::new());
        let held = std::mem::take(&mut self.held);
        for batch in held.into_iter().chain(batches) {
            let (added, removed) =
                to_stored(&batch, &self.schema, self.keeps_epoch).and_then(Batch::into_parts).map_err(wrong)?;
            inserts.extend((added.num_rows() > 0).then_some(added));
            deletes.extend((removed.num_rows() > 0).then_some(removed));
        }
        if compare {
            let mut rows = self.table.scan();
            while let Some(batch) = self.io.block_on(rows.next()) {
                deletes.push(batch?);
            }
        }
        self.io.block_on(self.table.commit(Commit { epoch, inserts, deletes, metrics: BTreeMap::new() }))
    }

    /// Compaction and log checkpoints come after the epoch; a failure there harms nothing and is tried again.
    fn maintain(&mut self) {
        if let Err(error) = self.io.block_on(self.table.maintain()) {
            tracing::warn!(table = self.table.name(), "{error}");
        }
    }
}
