//! Ingress actors: one thread a source and epoch, which reads what the epoch's record names and deals it to the workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use crossbeam_channel::Sender;
use futures::StreamExt;
use tokio::runtime::Handle;

use super::columns::add_wall;
use super::difference::{Outside, columns};
use super::worker::{Mail, ToWorker};
use crate::dataflow::{Batch, Inlet, relabel};
use crate::error::{Error, Result};
use crate::lake::{FileId, Position, Table};
use crate::plan::{Source, SourceKind};
use crate::sources::{DeltaSource, FileSource, Part, ReadStats};

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
    /// The columns that something reads.
    pub used: BTreeSet<usize>,
    /// The epoch.
    pub epoch: u64,
    /// Its wall.
    pub wall_micros: i64,
    /// The replay point's table, for sources whose rows come and go.
    pub stored: Option<Arc<Table>>,
    /// Walls of the epochs in which stored rows have arrived.
    pub walls: Arc<BTreeMap<u64, i64>>,
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
                stats = self.files(&FileSource::new(read)?, files)?;
            }
            (SourceKind::Files(_), Position::Skipped(_)) => {}
            (SourceKind::Delta { location, read }, Position::Delta { from, to, table }) => {
                let source = self.io.block_on(DeltaSource::open(location, read))?;
                let same = table.as_deref().is_none_or(|id| id == source.id());
                if read.retracts() {
                    let outside = Outside { source: &source, schema: &self.source.schema, io: &self.io };
                    let difference = outside.difference(from.filter(|_| same), *to, self.stored.as_deref())?;
                    for (rows, arrived, diff) in difference {
                        stats.rows += rows.num_rows() as u64;
                        let diffs = vec![diff; rows.num_rows()];
                        deal.send(rows, arrived.unwrap_or(self.epoch), Some(diffs))?;
                    }
                } else if same {
                    let mut rows = self.io.block_on(source.rows(*from, *to))?;
                    while let Some(rows) = self.io.block_on(rows.next()) {
                        let rows = columns(&rows?, &self.source.schema)?;
                        stats.rows += rows.num_rows() as u64;
                        deal.rows(&rows, None)?;
                    }
                } else {
                    return Err(source.recreated());
                }
            }
            _ => return Err(Error::internal(format!("the log and the plan disagree on source {}", self.source.id))),
        }
        Ok(stats)
    }
}

impl Ingress {
    /// Reads files, several at a time if they are worth a thread, and large ones in parts.
    fn files(&self, source: &FileSource, files: &[FileId]) -> Result<ReadStats> {
        let bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = if bytes < PARALLEL { 1 } else { cores.min(READERS) };
        // Enough parts that no reader waits long for the last one.
        let size = (bytes / u64::try_from(most * 4).unwrap_or(1)).max(PART);
        let count = |file: &FileId| if most > 1 { usize::try_from(file.size / size).unwrap_or(1).max(1) } else { 1 };
        let parts: Vec<(&FileId, Part)> = files
            .iter()
            .flat_map(|file| source.parts(file, count(file)).into_iter().map(move |part| (file, part)))
            .collect();
        let readers = most.min(parts.len()).max(1);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let read = |reader: usize| {
            let mut deal = Deal { ingress: self, next: self.index + reader };
            let mut stats = ReadStats::default();
            while !failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((file, part)) = parts.get(at) else { break };
                let mut all = || {
                    let mut rows = source.read_part(file, part, &self.source.schema, &self.used)?;
                    for rows in &mut rows {
                        deal.rows(&rows?, None)?;
                    }
                    Ok(rows.stats())
                };
                match all() {
                    Ok(more) => stats += more,
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        return Err((at, error));
                    }
                }
            }
            Ok(stats)
        };
        if readers == 1 {
            return read(0).map_err(|(_, error)| error);
        }
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..readers)
                .map(|reader| {
                    scope.spawn({
                        let read = &read;
                        move || read(reader)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let (mut stats, mut errors) = (ReadStats::default(), Vec::new());
        for result in results {
            match result {
                Ok(Ok(more)) => stats += more,
                Ok(Err(error)) => errors.push(error),
                Err(_) => return Err(Error::internal("reading a file panicked")),
            }
        }
        match errors.into_iter().min_by_key(|(at, _)| *at) {
            Some((_, error)) => Err(error),
            None => Ok(stats),
        }
    }
}

/// Files that are read at the same time at most, and bytes below which one reader is enough.
const READERS: usize = 4;
const PARALLEL: u64 = 1 << 20;
/// Bytes of a part of a file at least.
const PART: u64 = 4 << 20;

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
        // A row that goes was there under the wall of its arrival.
        let wall = self.ingress.walls.get(&arrived).copied().unwrap_or(self.ingress.wall_micros);
        let rows = add_wall(&rows, wall).map_err(wrong)?;
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
