//! Committers: one actor a table, which applies closed epochs in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use futures::StreamExt;
use tokio::runtime::Handle;

use super::audit::Audit;
use super::columns::to_stored;
use crate::dataflow::{Batch, TableId};
use crate::error::{Error, Result};
use crate::lake::{Commit, Committed, Done, Table, Upkeep};

/// To a committer.
pub enum ToCommitter {
    /// Changes of an epoch that are not to be committed yet: the table will be set by comparison.
    Hold {
        /// The epoch.
        epoch: u64,
        /// The changes.
        batches: Vec<Batch>,
    },
    /// Commit the changes of an epoch; with `compare`, together with all that was held, as the difference to what the
    /// table holds.
    Commit {
        /// The epoch.
        epoch: u64,
        /// The changes.
        batches: Vec<Batch>,
        /// Compare.
        compare: bool,
        /// Numbers to be kept with the commit.
        metrics: BTreeMap<String, u64>,
    },
    /// Learn where the table's rows are, so that the first that goes does not wait for that.
    Prepare,
}

/// The end of one commit.
pub struct CommitDone {
    /// The table.
    pub table: TableId,
    /// What was committed, and the table's version after it.
    pub result: Result<(Option<Committed>, i64)>,
}

/// Handle of a committer. Dropping it waits until the actor has ended, and with it all work on the table.
pub struct Committer {
    mailbox: Option<Sender<ToCommitter>>,
    actor: Option<JoinHandle<()>>,
    /// Where the table lies in the lake.
    pub path: String,
}

/// The changes of an epoch, and numbers about it.
type Changes = (Vec<Batch>, BTreeMap<String, u64>);

struct Actor {
    id: TableId,
    table: Table,
    /// Columns of the changes.
    schema: SchemaRef,
    keeps_epoch: bool,
    audit: Option<Audit>,
    held: Vec<Batch>,
    /// Work on the table's files that goes on beside epochs, one at a time.
    upkeep: Option<Receiver<Result<Done>>>,
    /// It is learned where rows are.
    learning: bool,
    /// The versions of the last epoch here, and of the one before it, which is complete: it must stay readable.
    committed: Option<i64>,
    complete: Option<i64>,
    io: Handle,
}

impl Committer {
    /// Starts the actor of a table. It ends when the handle is dropped.
    pub fn start(
        id: TableId,
        (table, path): (Table, String),
        keeps_epoch: bool,
        audit: Option<Audit>,
        io: &Handle,
        done: &Sender<CommitDone>,
    ) -> Committer {
        let (mailbox, receiver) = bounded(2);
        let schema = Arc::clone(audit.as_ref().map_or(table.schema(), Audit::changes));
        let actor = Actor {
            id,
            table,
            schema,
            keeps_epoch,
            audit,
            held: Vec::new(),
            upkeep: None,
            learning: false,
            committed: None,
            complete: None,
            io: io.clone(),
        };
        let done = done.clone();
        let actor = std::thread::spawn(move || actor.run(&receiver, &done));
        Committer { mailbox: Some(mailbox), actor: Some(actor), path }
    }

    /// Hands over a message. False once the actor has ended.
    pub fn send(&self, message: ToCommitter) -> bool {
        self.mailbox.as_ref().is_some_and(|x| x.send(message).is_ok())
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.mailbox = None;
        if self.actor.take().is_some_and(|x| x.join().is_err()) {
            tracing::error!("a committer panicked");
        }
    }
}

impl Actor {
    fn run(mut self, mailbox: &Receiver<ToCommitter>, done: &Sender<CommitDone>) {
        // Scans start tasks of the runtime.
        let io = self.io.clone();
        let _context = io.enter();
        let none = never();
        loop {
            select! {
                recv(mailbox) -> message => match message {
                    Ok(ToCommitter::Hold { batches, .. }) => self.held.extend(batches),
                    Ok(ToCommitter::Prepare) => {
                        self.table.prepare();
                        self.start_upkeep();
                    }
                    Ok(ToCommitter::Commit { epoch, batches, compare, metrics }) => {
                        if !self.epoch(epoch, (batches, metrics), compare, done) {
                            break;
                        }
                        self.start_upkeep();
                    }
                    Err(_) => break,
                },
                recv(self.upkeep.as_ref().unwrap_or(&none)) -> finished => {
                    // What failed is left until an epoch comes.
                    if self.end_upkeep(finished.ok()) && self.table.is_unlearned() {
                        self.start_upkeep();
                    }
                }
            }
        }
        self.wait_for_upkeep();
        // The next run would have to read the files.
        if let Ok(Some(work)) = self.table.unstored() {
            self.begin_upkeep(work);
            self.wait_for_upkeep();
        }
    }

    /// Commits an epoch and says so. False if no one listens any more.
    fn epoch(&mut self, epoch: u64, changes: Changes, compare: bool, done: &Sender<CommitDone>) -> bool {
        // Readers stand only so many small files and vectors: then the work on them comes first.
        while self.table.is_crowded() {
            self.start_upkeep();
            if !self.wait_for_upkeep() {
                break;
            }
        }
        let work = std::panic::AssertUnwindSafe(|| self.commit(epoch, changes, compare));
        let result = std::panic::catch_unwind(work)
            .unwrap_or_else(|_| Err(Error::internal("a commit panicked").dataset(self.table.name()).epoch(epoch)))
            .map(|committed| (committed, self.table.version()));
        // The next epoch comes only when this one is complete.
        self.complete = self.committed;
        self.committed = result.as_ref().ok().map(|x| x.1);
        done.send(CommitDone { table: self.id, result }).is_ok()
    }

    fn commit(&mut self, epoch: u64, (batches, metrics): Changes, compare: bool) -> Result<Option<Committed>> {
        let name = self.table.name().to_owned();
        let wrong = |e| Error::internal("changes do not fit the table").caused_by(e).dataset(&name).epoch(epoch);
        let (mut inserts, mut deletes): (Vec<RecordBatch>, Vec<RecordBatch>) = (Vec::new(), Vec::new());
        let held = std::mem::take(&mut self.held);
        if self.table.epoch().is_some_and(|at| at >= epoch) {
            return Ok(None);
        }
        for batch in held.into_iter().chain(batches) {
            let (added, removed) =
                to_stored(&batch, &self.schema, self.keeps_epoch).and_then(Batch::into_parts).map_err(wrong)?;
            inserts.extend((added.num_rows() > 0).then_some(added));
            deletes.extend((removed.num_rows() > 0).then_some(removed));
        }
        let replaced = self.table.is_replaced();
        if replaced && !compare {
            return Err(Error::internal("a table that is replaced is given changes only").dataset(&name).epoch(epoch));
        }
        // All that is in a table to be replaced goes in any case.
        let compare = compare && !replaced;
        if let Some(audit) = &mut self.audit {
            (inserts, deletes) = audit.apply((inserts, deletes), compare, epoch, &self.table, &self.io)?;
        } else if compare {
            let mut rows = self.table.scan();
            while let Some(batch) = self.io.block_on(rows.next()) {
                deletes.push(batch?);
            }
        }
        if self.learning && !deletes.is_empty() {
            self.wait_for_upkeep();
        }
        let committed = self.io.block_on(self.table.commit(Commit { epoch, inserts, deletes, metrics }));
        if let (Err(_), Some(audit)) = (&committed, &mut self.audit) {
            audit.forget();
        }
        committed
    }

    /// Begins what the table needs, if nothing is under way. A failure harms nothing and is tried again.
    fn start_upkeep(&mut self) {
        if self.upkeep.is_some() {
            return;
        }
        let work = match self.table.upkeep(self.complete) {
            Ok(Some(work)) => work,
            Ok(None) => return,
            Err(error) => return tracing::warn!(table = self.table.name(), "{error}"),
        };
        self.begin_upkeep(work);
        if self.table.rewrites() {
            self.wait_for_upkeep();
        }
    }

    fn begin_upkeep(&mut self, work: Upkeep) {
        self.learning = work.is_learning();
        let (sender, receiver) = bounded(1);
        self.io.spawn(async move {
            let done = tokio::spawn(work.run()).await;
            let stopped = |e| Err(Error::internal("work on a table stopped").caused_by(e));
            sender.send(done.unwrap_or_else(stopped)).ok();
        });
        self.upkeep = Some(receiver);
    }

    /// Waits for work that is under way; false if there was none, or it came to nothing.
    fn wait_for_upkeep(&mut self) -> bool {
        let Some(receiver) = &self.upkeep else { return false };
        let finished = receiver.recv().ok();
        let before = self.table.version();
        self.end_upkeep(finished);
        self.table.version() != before
    }

    /// Brings in what was done; false if it failed.
    fn end_upkeep(&mut self, finished: Option<Result<Done>>) -> bool {
        self.upkeep = None;
        self.learning = false;
        let stopped = || Err(Error::internal("work on a table stopped"));
        let settled = finished.unwrap_or_else(stopped).and_then(|done| self.io.block_on(self.table.settle(done)));
        if let Err(error) = &settled {
            tracing::warn!(table = self.table.name(), "{error}");
        }
        settled.is_ok()
    }
}
