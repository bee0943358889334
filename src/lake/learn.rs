//! Learning where the rows of a table are, by reading it once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use super::data::{DataFile, Reader};
use super::index::{Position, RowHash, RowHasher, RowIndex};
use super::storage::{Lake, blocking};
use super::table::Table;
use super::types::stored_schema;
use crate::error::Result;

/// Batches on their way to the index.
const AHEAD: usize = 32;

type Places = Vec<(RowHash, Position)>;

impl Table {
    /// Learns where every live row is, if that is not known yet; without it, the commit does so that first deletes a row.
    ///
    /// # Errors
    /// External errors of the storage; the table can be used all the same.
    pub async fn prepare(&mut self) -> Result<()> {
        if self.index.is_some() { Ok(()) } else { self.build_index().await }
    }

    /// Learns where every live row is. Files are read side by side.
    pub(crate) async fn build_index(&mut self) -> Result<()> {
        self.moves.clear();
        let reading = Reading {
            lake: self.lake.clone(),
            location: self.location.clone(),
            schema: stored_schema(&self.schema)?,
            files: self.files.iter().map(|(id, file)| (*id, file.clone())).collect(),
            next: AtomicUsize::new(0),
            io: Handle::current(),
        };
        let rows = usize::try_from(self.rows()).unwrap_or(0);
        self.index = Some(blocking(move || reading.index(rows)).await?);
        Ok(())
    }
}

struct Reading {
    lake: Lake,
    location: String,
    schema: SchemaRef,
    files: Vec<(u32, DataFile)>,
    /// The next file that no one reads yet.
    next: AtomicUsize,
    io: Handle,
}

impl Reading {
    fn index(&self, rows: usize) -> Result<RowIndex> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(self.files.len());
        let mut index = RowIndex::with_capacity(rows);
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(AHEAD);
            for _ in 0..threads {
                let sender = sender.clone();
                scope.spawn(move || {
                    if let Err(error) = self.read(&sender) {
                        sender.send(Err(error)).ok();
                    }
                });
            }
            drop(sender);
            for places in receiver {
                for (hash, position) in places? {
                    index.insert(hash, position);
                }
            }
            Ok(index)
        })
    }

    /// Reads files until there are no more, or no one listens.
    fn read(&self, sender: &SyncSender<Result<Places>>) -> Result<()> {
        let hasher = RowHasher::new(&self.schema)?;
        while let Some((id, file)) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let mut reader = Reader::open(&self.lake, &self.location, file, &self.schema, &self.io)?;
            while let Some(next) = reader.next_rows() {
                let (batch, rows) = next?;
                let places = rows.into_iter().map(|row| Position { file: *id, row });
                let places = hasher.hash(&batch)?.into_iter().zip(places).collect();
                if sender.send(Ok(places)).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
