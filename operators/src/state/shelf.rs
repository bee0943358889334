//! Where segments lie: in memory while there is room, else in files that the system pages.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

/// Segments below this size are not worth a file.
pub(super) const WORTH_A_FILE: usize = if cfg!(test) { 1 << 8 } else { 1 << 20 };

/// The room that the states of a process share, and files for what has none.
///
/// A segment is read wherever its bytes are, so state that is larger than the room works as any other, as fast as the
/// system pages it. Files are written front to back, column by column, and never changed.
pub trait Shelf: Debug + Send + Sync {
    /// Takes room for so many bytes of memory if there is; with `anyway` also if there is none.
    fn take(&self, bytes: usize, anyway: bool) -> bool;

    /// Gives room back.
    fn give(&self, bytes: usize);

    /// Bytes of new entries that a state may gather before they become a segment.
    fn portion(&self) -> usize;

    /// A new file; `None` if there can be none. Whoever made the shelf then knows why, and ends what the states are for;
    /// until then they keep what they have as it is.
    fn file(&self) -> Option<Box<dyn ShelfFile>>;
}

/// A file while it is written.
pub trait ShelfFile: Debug {
    /// Writes at a place that was not written before. False if that failed, as with [`Shelf::file`].
    fn write(&mut self, at: u64, bytes: &[u8]) -> bool;

    /// The contents. What was not written is undefined, and nobody reads it.
    fn finish(self: Box<Self>) -> Option<Bytes>;
}

/// Room that is taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    shelf: Arc<dyn Shelf>,
    bytes: usize,
}

impl Lease {
    /// Room for what has to be in memory.
    pub(super) fn forced(shelf: &Arc<dyn Shelf>, bytes: usize) -> Lease {
        shelf.take(bytes, true);
        Lease { shelf: Arc::clone(shelf), bytes }
    }

    /// Room for what could be in a file, unless it is too small for that.
    pub(super) fn asked(shelf: &Arc<dyn Shelf>, bytes: usize) -> Option<Lease> {
        shelf.take(bytes, bytes < WORTH_A_FILE).then(|| Lease { shelf: Arc::clone(shelf), bytes })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shelf.give(self.bytes);
    }
}
