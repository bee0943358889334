//! Bytes that grow at their end, in memory or, a part at a time, in a file.

use bytes::Bytes;

use super::shelf::ShelfFile;
use super::stored::Stored;

/// Places in a file are multiples of this, so that no two columns share a page.
const ALIGNMENT: usize = 1 << 12;
/// What is larger than this grows in larger steps.
const LARGE: usize = 1 << 22;
/// Bytes that wait in memory before they are written.
pub(super) const BUFFER: usize = if cfg!(test) { 1 << 8 } else { 1 << 17 };

/// One of the byte strings of which a segment consists.
#[derive(Debug, Default)]
pub(super) struct Column {
    /// Those that are not in the file, or not only there.
    bytes: Vec<u8>,
    /// Those that are in the file only.
    gone: usize,
    /// Where it lies in the file.
    start: u64,
}

impl Column {
    pub(super) fn len(&self) -> usize {
        self.gone + self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that have still to be written.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            self.grow(bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// What is large grows by more than the usual factor of two: room that is not touched costs nothing, a copy does.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        let room = self.bytes.capacity();
        self.bytes.reserve(if room < LARGE { bytes } else { bytes.max(3 * room) });
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        (self.bytes, self.gone) = (Vec::new(), 0);
    }

    /// The bytes, all of which are in memory.
    pub(super) fn pack(mut self) -> Stored {
        self.bytes.shrink_to_fit();
        Bytes::from(self.bytes).into()
    }

    /// The bytes, all of which are in the file.
    pub(super) fn of(&self, file: &Bytes) -> Option<Stored> {
        if self.is_empty() {
            return Some(Stored::default());
        }
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add(self.len()).filter(|end| *end <= file.len())?;
        Some(file.slice(start..end).into())
    }
}

/// The file into which columns are written, each into its own part.
#[derive(Debug)]
pub(super) struct Spool {
    file: Box<dyn ShelfFile>,
    failed: bool,
}

impl Spool {
    /// `bounds` says how long each column becomes at most.
    pub(super) fn new<const N: usize>(
        file: Box<dyn ShelfFile>,
        columns: [&mut Column; N],
        bounds: [usize; N],
    ) -> Spool {
        let mut start = 0u64;
        for (column, bound) in columns.into_iter().zip(bounds) {
            column.start = start;
            start = start.saturating_add(bound.next_multiple_of(ALIGNMENT) as u64);
        }
        Spool { file, failed: false }
    }

    fn put(&mut self, column: &Column) {
        if !self.failed && !column.bytes.is_empty() {
            self.failed = !self.file.write(column.start + column.gone as u64, &column.bytes);
        }
    }

    /// Writes the columns that have grown enough.
    pub(super) fn write<const N: usize>(&mut self, columns: [&mut Column; N]) {
        for column in columns.into_iter().filter(|column| column.bytes.len() >= BUFFER) {
            self.put(column);
            column.gone += column.bytes.len();
            column.bytes.clear();
        }
    }

    /// Writes what the columns still have.
    pub(super) fn write_rest<const N: usize>(&mut self, columns: [&mut Column; N]) {
        for column in columns {
            self.put(column);
            column.gone += column.bytes.len();
            column.bytes = Vec::new();
        }
    }

    /// Writes what the columns have, which they keep.
    pub(super) fn copy<const N: usize>(&mut self, columns: [&mut Column; N]) {
        columns.into_iter().for_each(|column| self.put(column));
    }

    /// What was written; `None` if any of it could not be.
    pub(super) fn finish(self) -> Option<Bytes> {
        if self.failed { None } else { self.file.finish() }
    }
}
