//! How much memory state may take, and files for the rest.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use silverflow_operators::{Shelf, ShelfFile};

use crate::error::{Error, Result};
use crate::lake::map;

/// State takes this part of a run's memory; the rest is for the rows of an epoch on their way.
const STATE: u64 = 2;
/// This part of it may come from outside in an epoch.
const EPOCH: u64 = 16;
/// New entries of one state are gathered in this part of the room at most, ...
const PORTIONS: usize = 32;
/// ... and in so many bytes at least.
const PORTION: usize = 1 << 20;
/// Of the machine's memory a run takes this part, unless it is told otherwise.
const MACHINE: u64 = 2;
/// What a machine has that does not tell.
const UNKNOWN: u64 = 4 << 30;

/// Memory that a run takes unless it is told otherwise: half of what the machine, or the container, has.
pub(super) fn default_memory() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let machine = Some(system.total_memory()).filter(|bytes| *bytes > 0).unwrap_or(UNKNOWN);
    let limit = system.cgroup_limits().map(|limits| limits.total_memory).filter(|bytes| *bytes > 0);
    limit.map_or(machine, |limit| limit.min(machine)) / MACHINE
}

/// The shelf of a run's states. Its files have no name: they are gone when the process is, however it ends.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    room: usize,
    epoch: u64,
    taken: AtomicUsize,
    written: Arc<AtomicU64>,
    failure: Arc<Failure>,
}

/// The first thing that went wrong.
#[derive(Debug, Default)]
struct Failure {
    happened: AtomicBool,
    first: Mutex<Option<io::Error>>,
}

impl Failure {
    fn note(&self, error: io::Error) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.happened.store(true, Ordering::SeqCst);
    }

    fn hear<T>(&self, result: io::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(error)).ok()
    }
}

impl Scratch {
    /// With so many bytes of memory for the run, and files in a folder, which is made when it is needed.
    pub(super) fn new(memory: u64, folder: PathBuf) -> Scratch {
        let room = usize::try_from(memory / STATE).unwrap_or(usize::MAX);
        let failure = Arc::default();
        let epoch = (memory / EPOCH).max(1);
        Scratch { folder, room, epoch, taken: AtomicUsize::new(0), written: Arc::default(), failure }
    }

    /// Bytes of rows that an epoch may bring from outside. On their way they are in several operators at once.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes of state that have been written to files.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether state could not be written. What the operators do from then on is right as long as there is memory.
    pub(super) fn failed(&self) -> bool {
        self.failure.happened.load(Ordering::Relaxed)
    }

    /// An error if state could not be written.
    ///
    /// # Errors
    /// `SCRATCH_FAILED` (external).
    pub(super) fn check(&self) -> Result<()> {
        if !self.failed() {
            return Ok(());
        }
        let first = self.failure.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let what = format!("state that memory has no room for cannot be written to {}", self.folder.display());
        let error = Error::external("SCRATCH_FAILED", what);
        let error = error.help("make room there, name another folder with --scratch, or allow more with --memory");
        Err(match first {
            Some(first) => error.caused_by(first),
            None => error,
        })
    }
}

impl Shelf for Scratch {
    fn take(&self, bytes: usize, anyway: bool) -> bool {
        let more = |taken: usize| {
            let sum = taken.saturating_add(bytes);
            (anyway || sum <= self.room).then_some(sum)
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, bytes: usize) {
        let less = |taken: usize| Some(taken.saturating_sub(bytes));
        let _ = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn portion(&self) -> usize {
        (self.room / PORTIONS).max(PORTION)
    }

    fn file(&self) -> Option<Box<dyn ShelfFile>> {
        if self.failed() {
            return None;
        }
        let made = fs::create_dir_all(&self.folder).and_then(|()| tempfile::tempfile_in(&self.folder));
        let file = self.failure.hear(made)?;
        let (written, failure) = (Arc::clone(&self.written), Arc::clone(&self.failure));
        Some(Box::new(ScratchFile { file, written, failure }))
    }
}

#[derive(Debug)]
struct ScratchFile {
    file: File,
    written: Arc<AtomicU64>,
    failure: Arc<Failure>,
}

impl ShelfFile for ScratchFile {
    fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        let written = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.write_all(bytes));
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.failure.hear(written).is_some()
    }

    fn finish(self: Box<Self>) -> Option<Bytes> {
        self.failure.hear(map(&self.file))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_and_given_and_what_is_written_can_be_read_and_leaves_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(2_000, folder.path().join("a/b"));
        assert!(scratch.take(900, false) && !scratch.take(101, false) && scratch.take(500, true));
        assert!(!scratch.take(1, false));
        scratch.give(500);
        assert!(scratch.take(100, false));
        let mut file = scratch.file().unwrap();
        assert!(file.write(4096, b"second") && file.write(0, b"first"));
        let bytes = file.finish().unwrap();
        assert_eq!((bytes.get(..5), bytes.get(4096..)), (Some(&b"first"[..]), Some(&b"second"[..])));
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 0);
        assert_eq!(scratch.written(), 11);
        assert!(scratch.check().is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "x").unwrap();
        let scratch = Scratch::new(2_000, taken.clone());
        assert!(scratch.file().is_none() && scratch.file().is_none());
        let error = scratch.check().unwrap_err();
        assert_eq!((error.code(), error.fault().exit_code()), ("SCRATCH_FAILED", 3));
        assert!(error.to_string().contains(taken.to_str().unwrap()), "{error}");
    }
}
