//! Ingress actors: one thread a source and epoch, which reads what the epoch's record names and deals it to the workers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use crossbeam_channel::Sender;
use futures::StreamExt;
use tokio::runtime::Handle;

use super::columns::{add_wall, by_arrival};
use super::worker::{Mail, ToWorker};
use crate::dataflow::{Batch, Inlet, relabel};
use crate::error::{Error, Result};
use crate::lake::types::conform;
use crate::lake::{Position, RowStream, Table};
use crate::plan::{Source, SourceKind};
use crate::sources::{DeltaOptions, DeltaSource, FileSource, ReadStats};

/// What an ingress actor reports when it ends.
pub struct Read {
    /// Index of the source.
    pub source: usize,
    /// What it read, or why it could not.
    pub result: Result<ReadStats>,
}

/// One source's part of an epoch.
pub struct Ingress {
    /// Index of the source.
    pub index: usize,
    /// The source.
    pub source: Source,
    /// What to read.
    pub position: Position,
    /// The epoch.
    pub epoch: u64,
    /// Its wall.
    pub wall_micros: i64,
    /// The replay point's table, for sources whose rows come and go.
    pub stored: Option<Arc<Table>>,
    /// Where input and output run.
    pub io: Handle,
    /// To the workers.
    pub mail: Mail,
}

impl Ingress {
    /// Starts the actor.
    pub fn start(self, done: Sender<Read>) {
        std::thread::spawn(move || {
            let source = self.index;
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.read()));
            let result = read.unwrap_or_else(|_| Err(Error::internal("reading a source panicked")));
            let _ = done.send(Read { source, result });
        });
    }

    fn read(&self) -> Result<ReadStats> {
        // Scans start tasks of the runtime.
        let _context = self.io.enter();
        let mut deal = Deal { ingress: self, next: self.index };
        let mut stats = ReadStats::default();
        match (&self.source.kind, &self.position) {
            (SourceKind::Files(read), Position::Files(files)) => {
                let source = FileSource::new(read)?;
                for file in files {
                    let mut reader = source.read(file, &self.source.schema)?;
                    for rows in &mut reader {
                        deal.rows(&rows?, None)?;
                    }
                    stats += reader.stats();
                }
            }
            (SourceKind::DeltaStream { location }, Position::Delta { from, to }) => {
                let mut rows = self.io.block_on(async {
                    let table = DeltaSource::open(location, DeltaOptions::default()).await?;
                    match from {
                        Some(from) => table.appended(*from, *to).await,
                        None => table.snapshot(*to).await,
                    }
                })?;
                while let Some(rows) = self.io.block_on(rows.next()) {
                    let rows = self.columns(&rows?)?;
                    stats.rows += rows.num_rows() as u64;
                    deal.rows(&rows, None)?;
                }
            }
            (SourceKind::DeltaSnapshot { location }, Position::Delta { to, .. }) => {
                let rows = self.io.block_on(async {
                    DeltaSource::open(location, DeltaOptions::default()).await?.snapshot(*to).await
                })?;
                stats.rows = self.difference(rows, &mut deal)?;
            }
            _ => return Err(Error::internal(format!("the log and the plan disagree on source {}", self.source.id))),
        }
        Ok(stats)
    }

    /// The columns of a foreign table that are read.
    fn columns(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let schema = &self.source.schema;
        let columns = schema.fields().iter().map(|f| rows.column_by_name(f.name()).cloned());
        let columns = columns.collect::<Option<Vec<_>>>().ok_or_else(|| {
            Error::external("SOURCE_NOT_READABLE", format!("a column of the source {} is gone", self.source.id))
        })?;
        relabel(schema, columns, rows.num_rows()).map_err(wrong)
    }

    /// The rows by which the outside differs from what is stored.
    fn difference(&self, mut rows: RowStream, deal: &mut Deal<'_>) -> Result<u64> {
        let codec = crate::dataflow::Codec::of(&self.source.schema).map_err(wrong)?;
        let mut now: Vec<RecordBatch> = Vec::new();
        while let Some(batch) = self.io.block_on(rows.next()) {
            now.push(self.columns(&batch?)?);
        }
        let mut counts: HashMap<Vec<u8>, i64> = HashMap::new();
        for batch in &now {
            for row in codec.encode(batch.columns()).map_err(wrong)? {
                *counts.entry(row.to_vec()).or_default() += 1;
            }
        }
        let mut changed = 0;
        if let Some(stored) = &self.stored {
            let mut rows = stored.scan();
            while let Some(batch) = self.io.block_on(rows.next()) {
                for (arrived, part) in by_arrival(&batch?).map_err(wrong)? {
                    let part = conform(&part, &self.source.schema)?;
                    let mut diffs = vec![0i64; part.num_rows()];
                    for (row, diff) in codec.encode(part.columns()).map_err(wrong)?.iter().zip(&mut diffs) {
                        match counts.get_mut(row.as_bytes()) {
                            Some(count) if *count > 0 => *count -= 1,
                            _ => *diff = -1,
                        }
                    }
                    changed += diffs.iter().filter(|d| **d != 0).count() as u64;
                    deal.send(part, arrived, Some(diffs))?;
                }
            }
        }
        for batch in now {
            let mut diffs = vec![0i64; batch.num_rows()];
            for (row, diff) in codec.encode(batch.columns()).map_err(wrong)?.iter().zip(&mut diffs) {
                if let Some(count) = counts.get_mut(row.as_bytes()).filter(|count| **count > 0) {
                    *count -= 1;
                    *diff = 1;
                }
            }
            changed += diffs.iter().filter(|d| **d != 0).count() as u64;
            deal.send(batch, self.epoch, Some(diffs))?;
        }
        Ok(changed)
    }
}

fn wrong(error: arrow::error::ArrowError) -> Error {
    Error::internal("rows of a source do not fit its schema").caused_by(error)
}

/// Deals batches to the workers in turn.
struct Deal<'a> {
    ingress: &'a Ingress,
    next: usize,
}

impl Deal<'_> {
    fn rows(&mut self, rows: &RecordBatch, diffs: Option<Vec<i64>>) -> Result<()> {
        let schema = &self.ingress.source.schema;
        let rows = relabel(schema, rows.columns().to_vec(), rows.num_rows()).map_err(wrong)?;
        self.send(rows, self.ingress.epoch, diffs)
    }

    fn send(&mut self, rows: RecordBatch, arrived: u64, diffs: Option<Vec<i64>>) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let rows = add_wall(&rows, self.ingress.wall_micros).map_err(wrong)?;
        let mut batch = Batch { epoch: self.ingress.epoch, arrived, rows, diffs: diffs.map(Into::into), pairs: false };
        if let Some(diffs) = &batch.diffs {
            let mask = diffs.iter().map(|d| Some(*d != 0)).collect();
            batch = batch.filter(&mask).map_err(wrong)?;
        }
        self.next += 1;
        if self.ingress.mail.send(self.next, ToWorker::Rows(Inlet::Source(self.ingress.index), batch)) {
            Ok(())
        } else {
            Err(Error::internal("the workers have ended"))
        }
    }
}
