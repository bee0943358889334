//! Learning where the rows of a table are: once a file, from what an earlier run has stored of it, else by reading it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use super::data::{DataFile, Reader};
use super::index::{FileIndex, Known, RowHasher, RowIndex, short};
use super::index_file;
use super::storage::{Lake, blocking};
use super::table::Table;
use super::types::stored_schema;
use super::upkeep::Upkeep;
use crate::error::Result;

/// Reading a smaller file takes about as long as reading what is stored of it.
#[cfg(not(test))]
const STORED_ROWS: usize = 32 << 10;
#[cfg(test)]
const STORED_ROWS: usize = 3;

impl Known {
    /// An index that has just been made.
    pub(crate) fn fresh(index: FileIndex) -> Self {
        Known { stored: index.len() < STORED_ROWS, index: Arc::new(index) }
    }
}

/// Files whose indexes are to be read, made or stored.
pub(crate) struct Learning {
    lake: Lake,
    location: String,
    schema: SchemaRef,
    files: Vec<(u32, DataFile, Option<Arc<FileIndex>>)>,
    /// The next file that no one works on yet.
    next: AtomicUsize,
    io: Handle,
    /// What had to be read is stored for later runs.
    store: bool,
}

/// What is known of a file now.
pub(crate) struct Learned {
    id: u32,
    path: String,
    known: Known,
    /// Rows that had to be read.
    read: usize,
}

impl Table {
    /// From now on it is to be known where rows are: [`upkeep`](Self::upkeep) learns it, before a row has to go. Cheap.
    pub fn prepare(&mut self) {
        self.index.get_or_insert_with(|| std::mem::take(&mut self.noted));
    }

    /// Takes note of where the rows of a new file are. Of a small one only if that is to be known anyway.
    pub(crate) fn note(&mut self, id: u32, index: FileIndex) {
        match &mut self.index {
            Some(known) => _ = known.insert(id, Known::fresh(index)),
            None if index.len() >= STORED_ROWS => _ = self.noted.insert(id, Known::fresh(index)),
            None => {}
        }
    }

    /// Whether it is to be noted where rows of files to be written are, of which there are so many.
    pub(crate) fn notes(&self, rows: usize) -> bool {
        self.index.is_some() || (self.rows_go && rows >= STORED_ROWS)
    }

    /// What is known of files by this run alone, as work to store it.
    pub fn unstored(&self) -> Result<Option<Upkeep>> {
        let open = self.replacement.is_some() || self.is_unlearned();
        Ok(if open { None } else { self.plan_learning(true)?.map(Upkeep::from) })
    }

    /// It is not known yet where all rows are, and is to be known.
    pub fn is_unlearned(&self) -> bool {
        self.index.as_ref().is_some_and(|index| self.files.keys().any(|id| !index.contains_key(id)))
    }

    /// Learns of all files of which it is not known where their rows are.
    pub(crate) async fn learn(&mut self) -> Result<()> {
        self.prepare();
        if let Some(work) = self.plan_learning(false)? {
            let learned = work.run().await?;
            self.take_in(learned);
        }
        Ok(())
    }

    /// What there is to learn, if it is to be known, and with `store` also to store.
    pub(crate) fn plan_learning(&self, store: bool) -> Result<Option<Learning>> {
        if !store && !self.is_unlearned() {
            return Ok(None);
        }
        let (index, learn) = (self.index.as_ref().unwrap_or(&self.noted), self.index.is_some());
        let files: Vec<_> = self
            .files
            .iter()
            .filter_map(|(id, file)| match index.get(id) {
                None => learn.then(|| (*id, file.clone(), None)),
                Some(known) if store && !known.stored => Some((*id, file.clone(), Some(Arc::clone(&known.index)))),
                Some(_) => None,
            })
            .collect();
        if files.is_empty() {
            return Ok(None);
        }
        Ok(Some(Learning {
            lake: self.lake.clone(),
            location: self.location.clone(),
            schema: stored_schema(&self.schema)?,
            files,
            next: AtomicUsize::new(0),
            io: Handle::current(),
            store,
        }))
    }

    /// Takes in what was learned; files that have gone meanwhile are passed over. Gives the number of the others.
    pub(crate) fn take_in(&mut self, learned: Vec<Learned>) -> usize {
        let before = self.learned;
        let mut files = 0;
        for Learned { id, path, known, read } in learned {
            if self.files.get(&id).is_some_and(|file| file.path == path) {
                match &mut self.index {
                    Some(index) => _ = index.insert(id, known),
                    // It is read from the storage should a row go.
                    None => _ = self.noted.remove(&id),
                }
                files += 1;
            }
            self.learned += read as u64;
        }
        tracing::debug!(table = self.name, files, rows = self.learned - before, "where rows are is known");
        files
    }
}

impl Learning {
    /// Whether anything is not known yet.
    pub(crate) fn is_open(&self) -> bool {
        self.files.iter().any(|(.., known)| known.is_none())
    }

    /// Does it, files side by side. Costs the reading of 12 bytes for each row of a file of which that is stored, else
    /// the reading of the file.
    pub(crate) async fn run(self) -> Result<Vec<Learned>> {
        blocking(move || {
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(self.files.len());
            std::thread::scope(|scope| {
                let (sender, receiver) = channel();
                for _ in 0..threads {
                    let sender = sender.clone();
                    scope.spawn(|| self.work(sender));
                }
                drop(sender);
                receiver.into_iter().collect()
            })
        })
        .await
    }

    /// Works on files until there are no more.
    #[allow(clippy::needless_pass_by_value, reason = "the other end waits until it is gone")]
    fn work(&self, sender: Sender<Result<Learned>>) {
        while let Some((id, file, known)) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if sender.send(self.file(*id, file, known.as_ref())).is_err() {
                return;
            }
        }
    }

    fn file(&self, id: u32, file: &DataFile, known: Option<&Arc<FileIndex>>) -> Result<Learned> {
        let learned = |known, read| Learned { id, path: file.path.clone(), known, read };
        let place = index_file::place(&self.lake, &self.location, &file.path);
        let (known, read) = match known {
            Some(index) => (Known { index: Arc::clone(index), stored: false }, 0),
            None => {
                let large = file.live() >= STORED_ROWS as u64;
                let bytes = if large { self.io.block_on(self.lake.get(&place))? } else { None };
                if let Some(index) = bytes.and_then(|x| index_file::decode(&x, &self.schema)) {
                    return Ok(learned(Known { index: Arc::new(index), stored: true }, 0));
                }
                let index = self.read(file)?;
                let rows = index.len();
                (Known::fresh(index), rows)
            }
        };
        if known.stored || !self.store {
            return Ok(learned(known, read));
        }
        // What is there already could not be used.
        let bytes = index_file::encode(&known.index, &self.schema);
        if let Err(error) = self.io.block_on(self.lake.replace(&place, bytes)) {
            tracing::warn!(place, "a later run has to read a data file again: {error}");
        }
        // It is not tried again.
        Ok(learned(Known { stored: true, ..known }, read))
    }

    fn read(&self, file: &DataFile) -> Result<FileIndex> {
        let hasher = RowHasher::new(&self.schema)?;
        let mut places = Vec::with_capacity(usize::try_from(file.live()).unwrap_or(0));
        let mut reader = Reader::open(&self.lake, &self.location, file, &self.schema, &self.io)?;
        while let Some(next) = reader.next_rows() {
            let (batch, rows) = next?;
            places.extend(hasher.hash(&batch)?.iter().map(short).zip(rows));
        }
        Ok(FileIndex::new(places))
    }
}

/// What is known of files, by their names.
pub(crate) fn by_path(mut files: BTreeMap<u32, DataFile>, index: Option<RowIndex>) -> Option<BTreeMap<String, Known>> {
    Some(index?.into_iter().filter_map(|(id, known)| Some((files.remove(&id)?.path, known))).collect())
}
