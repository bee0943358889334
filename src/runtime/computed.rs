//! What workers hand over for one epoch, gathered.

use std::collections::BTreeMap;

use crossbeam_channel::Receiver;

use super::spread::Load;
use super::worker::FromWorker;
use crate::dataflow::{Batch, Counts, Outcome, RowFault, SHOWN_ROWS, TableId};
use crate::error::{Error, Result};
use crate::sources::ReadStats;

/// What the workers made of an epoch.
#[derive(Default)]
pub(super) struct Computed {
    pub(super) changes: BTreeMap<TableId, Vec<Batch>>,
    pub(super) counts: BTreeMap<usize, Counts>,
    pub(super) faults: Vec<Box<RowFault>>,
    /// What reading came to, by source.
    pub(super) sources: Vec<(usize, ReadStats)>,
    /// What each worker had to do.
    pub(super) loads: Vec<Load>,
    /// When the clock next changes something, in microseconds since 1970.
    pub(super) due: Option<i64>,
}

impl Computed {
    /// Hears the workers until all of them are done with the epoch.
    pub(super) fn collect(&mut self, events: &Receiver<FromWorker>, workers: usize, epoch: u64) -> Result<()> {
        let mut open = workers;
        while open > 0 {
            let event = events.recv().map_err(|_| Error::internal("the workers have ended"))?;
            if self.hear(event, epoch)? {
                open -= 1;
            }
        }
        Ok(())
    }

    /// Takes in an event; true if a worker is done with the epoch.
    pub(super) fn hear(&mut self, event: FromWorker, epoch: u64) -> Result<bool> {
        match event {
            FromWorker::Outcome(Outcome::Changes { table, batches, .. }) => {
                self.changes.entry(table).or_default().extend(batches);
                Ok(false)
            }
            FromWorker::Outcome(Outcome::Faults { faults, .. }) => {
                self.faults.extend(faults);
                Ok(false)
            }
            FromWorker::Done { epoch: done, counts, due, load } => {
                self.loads.push(load);
                self.due = self.due.into_iter().chain(due).min();
                for (dataset, counts) in counts {
                    self.counts.entry(dataset).or_default().add(&counts);
                }
                Ok(done == epoch)
            }
            // Nobody has asked, or whoever did is gone.
            FromWorker::Snapshot { .. } => Ok(false),
            FromWorker::NotBuilt(error) | FromWorker::Lost(error) => Err(error),
            FromWorker::Panicked(message) => Err(Error::internal(format!("a worker panicked: {message}"))
                .help("this is a bug; the epoch is in no table")),
        }
    }
}

/// Faults of the same kind and place are one error.
pub(super) fn faults(faults: Vec<Box<RowFault>>) -> Option<Error> {
    let mut merged: Vec<Box<RowFault>> = Vec::new();
    for fault in faults {
        match merged.iter_mut().find(|known| known.alike(&fault)) {
            Some(known) => {
                known.count += fault.count;
                let room = SHOWN_ROWS.saturating_sub(known.rows.len());
                known.rows.extend(fault.rows.into_iter().take(room));
            }
            None => merged.push(fault),
        }
    }
    // Data faults lead: they decide the exit code.
    merged.sort_by(|a, b| {
        let rank = |f: &RowFault| f.fault.exit_code();
        (rank(a), &a.dataset, &a.rule, a.code).cmp(&(rank(b), &b.dataset, &b.rule, b.code))
    });
    Error::all(merged.into_iter().map(|fault| fault.into_error()))
}
