//! A pipeline in memory: its dataflow fed by the caller, its changes handed back, nothing read and nothing stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use chrono::{DateTime, Utc};
use crossbeam_channel::{Receiver, bounded};

use super::RunOptions;
use super::columns::add_wall;
use super::outside::LakeOutside;
use super::worker::{FromWorker, Mail, ToWorker, Workers};
use crate::dataflow::{Batch, Inlet, Outcome, RowFault, Start, TableId, relabel};
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use crate::plan::{Plan, analyze};

/// Rows that are handed to a worker at once.
const BATCH_ROWS: usize = 8192;

/// A running pipeline without storage. Its definitions are planned and computed as in any run; sources are what the
/// caller feeds, tables are what it gets back.
pub struct Memory {
    plan: Arc<Plan>,
    workers: Workers,
    mail: Mail,
    events: Receiver<FromWorker>,
    epoch: u64,
}

/// What an epoch did to a table.
#[derive(Debug, Default)]
pub struct TableChange {
    /// The changes, as they left the dataflow.
    pub batches: Vec<Batch>,
    /// They are of the table's quarantine.
    pub quarantine: bool,
}

impl TableChange {
    /// Rows that came or went, each as often as it did.
    pub fn rows(&self) -> u64 {
        self.batches.iter().flat_map(Batch::each_diff).map(i64::unsigned_abs).sum()
    }
}

impl Memory {
    /// Plans the pipeline and starts its workers. Sources need a declared schema or files to infer it from.
    ///
    /// # Errors
    /// Mistakes of the pipeline (user).
    pub fn start(pipeline: &Pipeline, workers: usize) -> Result<Memory> {
        let io = super::io()?;
        let outside = LakeOutside { lake: None, io: io.handle().clone(), remember: false, renamed: BTreeMap::new() };
        let plan = Arc::new(analyze(pipeline, &outside)?);
        let (sender, events) = bounded(1024);
        let options = RunOptions { workers, ..RunOptions::default() };
        let workers = Workers::start(&plan, &Start::default(), &options, &sender, None)?;
        Ok(Memory { plan, mail: workers.mail(), workers, events, epoch: 0 })
    }

    /// The names of the sources, in the order of their numbers.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.plan.sources.iter().map(|source| source.id.as_str())
    }

    /// Feeds rows to sources, by number and in the columns of their schema, and computes the epoch. Gives the changes of
    /// each stored dataset by its name.
    ///
    /// # Errors
    /// Rows that violate an expectation with the action FAIL or fail an expression (data), internal errors. The pipeline is
    /// then of no further use.
    pub fn epoch(
        &mut self,
        wall: DateTime<Utc>,
        rows: &[(usize, RecordBatch)],
    ) -> Result<BTreeMap<String, Vec<TableChange>>> {
        self.epoch += 1;
        let wrong = |e| Error::internal("rows do not fit their source").caused_by(e);
        let mut next = 0;
        for (index, rows) in rows {
            let source = self.plan.sources.get(*index);
            let source = source.ok_or_else(|| Error::internal(format!("there is no source {index}")))?;
            for first in (0..rows.num_rows()).step_by(BATCH_ROWS) {
                let part = rows.slice(first, BATCH_ROWS.min(rows.num_rows() - first));
                let part = relabel(&source.schema, part.columns().to_vec(), part.num_rows()).map_err(wrong)?;
                let part = add_wall(&part, wall.timestamp_micros()).map_err(wrong)?;
                self.tell(next, ToWorker::Rows(Inlet::Source(*index), Batch::added(self.epoch, part)))?;
                next += 1;
            }
        }
        for worker in 0..self.mail.workers() {
            self.tell(worker, ToWorker::End(self.epoch))?;
        }
        self.changes()
    }

    /// Stops the workers.
    ///
    /// # Errors
    /// Internal, if one ended badly.
    pub fn stop(self) -> Result<()> {
        self.workers.stop()
    }

    fn tell(&self, worker: usize, message: ToWorker) -> Result<()> {
        if self.mail.send(worker, message) {
            return Ok(());
        }
        for event in self.events.try_iter() {
            ended(event)?;
        }
        Err(Error::internal("the workers have ended"))
    }

    fn changes(&self) -> Result<BTreeMap<String, Vec<TableChange>>> {
        let mut changes: BTreeMap<TableId, Vec<Batch>> = BTreeMap::new();
        let mut faults: Vec<Box<RowFault>> = Vec::new();
        let mut open = self.mail.workers();
        while open > 0 {
            match self.events.recv().map_err(|_| Error::internal("the workers have ended"))? {
                FromWorker::Outcome(Outcome::Changes { table, batches, .. }) => {
                    changes.entry(table).or_default().extend(batches);
                }
                FromWorker::Outcome(Outcome::Faults { faults: more, .. }) => faults.extend(more),
                FromWorker::Done { epoch, .. } => open -= usize::from(epoch == self.epoch),
                event => ended(event)?,
            }
        }
        if let Some(error) = Error::all(faults.into_iter().map(|fault| fault.into_error())) {
            return Err(error);
        }
        let mut tables: BTreeMap<String, Vec<TableChange>> = BTreeMap::new();
        for (table, batches) in changes {
            let (index, quarantine) = match table {
                TableId::Rows(index) => (index, false),
                TableId::Quarantine(index) => (index, true),
            };
            let name = self.plan.datasets.get(index).map(|d| d.name.table.clone()).unwrap_or_default();
            tables.entry(name).or_default().push(TableChange { batches, quarantine });
        }
        Ok(tables)
    }
}

fn ended(event: FromWorker) -> Result<()> {
    match event {
        FromWorker::NotBuilt(error) => Err(error),
        FromWorker::Lost(error) => Err(error),
        FromWorker::Panicked(message) => Err(Error::internal(format!("a worker panicked: {message}"))),
        _ => Ok(()),
    }
}
