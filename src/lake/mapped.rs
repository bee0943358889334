//! Files as memory that the system pages.

use std::fs::File;
use std::io;

use bytes::Bytes;
use memmap2::Mmap;

/// The contents of a file that nobody changes any more. Nothing is read until it is looked at, and what was read can be
/// dropped by the system at any time. The file may lose its name meanwhile.
///
/// Files that are mapped are the run's own, without a name or with one that was created once: nobody writes to them or
/// cuts them. Where the disk fails under them, reading them ends the process, as a crash would.
///
/// # Errors
/// If the system refuses.
pub(crate) fn map(file: &File) -> io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the bytes are borrowed from the mapping for as long as it is owned, and they do not change, since the file is
    // complete, no descriptor to write it is kept, and files of this kind are never written twice.
    #[allow(unsafe_code, reason = "a mapped file is memory that others could change, which nobody does")]
    let mapping = unsafe { Mmap::map(file) }?;
    Ok(Bytes::from_owner(mapping))
}
