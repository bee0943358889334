//! The one way by which the storage touches a disk or an object store: each step is told to whoever watches, who can
//! let it fail. Nobody watches outside of tests.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A step of the storage. Paths are absolute on a disk, and as the store has them elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A folder is made in one that is there.
    MakeFolder(&'a Path),
    /// A new empty file is made.
    Create(&'a Path),
    /// Bytes become the contents of a file that has been made.
    Write(&'a Path, &'a [u8]),
    /// What a file holds is made durable.
    SyncFile(&'a Path),
    /// Which names a folder has is made durable.
    SyncFolder(&'a Path),
    /// A file gets a second name, which must be free.
    Link(&'a Path, &'a Path),
    /// A file gets another name, in place of whatever had it.
    Rename(&'a Path, &'a Path),
    /// A name goes.
    Remove(&'a Path),
    /// An object is written, durable at once.
    Put(&'a Path, &'a [u8]),
    /// A file or an object is read.
    Read(&'a Path),
    /// A folder or a prefix is listed.
    List(&'a Path),
}

impl Step<'_> {
    /// Whether the step leaves anything that a later run can find.
    pub fn changes(&self) -> bool {
        !matches!(self, Step::Read(_) | Step::List(_))
    }
}

/// What becomes of a step.
#[derive(Debug)]
pub enum Fate {
    /// It happens.
    Happens,
    /// It does not happen.
    Fails(io::Error),
    /// A write leaves the first half of its bytes; any other step happens, and is reported as failed all the same.
    FailsHalfway(io::Error),
}

/// Watches the steps of a storage. Called from many threads, in the order in which things happen on each.
pub trait Faults: Debug + Send + Sync {
    /// Decides on a step before it happens. May block.
    fn before(&self, step: Step<'_>) -> Fate;

    /// Is told of a step that has happened; of a write, with the bytes that were written.
    fn after(&self, step: Step<'_>);
}

/// Takes every step of a storage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard(Option<Arc<dyn Faults>>);

impl Guard {
    /// A guard with someone who watches.
    pub(crate) fn watched(faults: Arc<dyn Faults>) -> Guard {
        Guard(Some(faults))
    }

    /// Whether someone watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.is_some()
    }

    /// Takes a step.
    pub(crate) fn step<T>(&self, step: Step<'_>, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(faults) = &self.0 else { return work() };
        let fate = faults.before(step);
        if let Fate::Fails(error) = fate {
            return Err(error);
        }
        let done = work()?;
        faults.after(step);
        match fate {
            Fate::FailsHalfway(error) => Err(error),
            _ => Ok(done),
        }
    }

    /// Takes a step of a store.
    pub(crate) async fn step_of<T>(
        &self,
        step: Step<'_>,
        work: impl Future<Output = object_store::Result<T>> + Send,
    ) -> object_store::Result<T> {
        let Some(faults) = &self.0 else { return work.await };
        let fate = faults.before(step);
        if let Fate::Fails(error) = fate {
            return Err(failed(error));
        }
        let done = work.await?;
        faults.after(step);
        match fate {
            Fate::FailsHalfway(error) => Err(failed(error)),
            _ => Ok(done),
        }
    }

    /// Writes to a file by `work`, which gets the bytes to write.
    pub(crate) fn write(
        &self,
        path: &Path,
        bytes: &[u8],
        mut work: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(faults) = &self.0 else { return work(bytes) };
        let (part, outcome) = match faults.before(Step::Write(path, bytes)) {
            Fate::Happens => (bytes, Ok(())),
            Fate::Fails(error) => return Err(error),
            Fate::FailsHalfway(error) => (bytes.get(..bytes.len() / 2).unwrap_or_default(), Err(error)),
        };
        work(part)?;
        faults.after(Step::Write(path, part));
        outcome
    }
}

/// An error of a disk as the store's.
pub(crate) fn failed(error: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "storage", source: error.into() }
}
