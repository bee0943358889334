//! Bytes that stay as they are, in memory or in a file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// So many bytes of a file are checked together, when the first of them is looked at.
pub const CHUNK: usize = 1 << 16;

/// The checksums of what `parts` are, end to end: XXH3 (64 bits, seed 0) of each [`CHUNK`], little endian.
#[must_use]
pub fn checksums(parts: &[Bytes]) -> Vec<u8> {
    let mut sums = Vec::new();
    let (mut hash, mut filled) = (Xxh3::new(), 0);
    for mut rest in parts.iter().map(AsRef::as_ref) {
        while !rest.is_empty() {
            let (head, tail): (&[u8], &[u8]) = rest.split_at_checked(CHUNK - filled).unwrap_or((rest, &[]));
            hash.update(head);
            filled += head.len();
            rest = tail;
            if filled == CHUNK {
                sums.extend(hash.digest().to_le_bytes());
                hash.reset();
                filled = 0;
            }
        }
    }
    if filled > 0 {
        sums.extend(hash.digest().to_le_bytes());
    }
    sums
}

/// Says whether what is read of a block is what was written.
///
/// A chunk is read when the first of its bytes is asked for. One that is not what was written raises the alarm, and
/// nothing of it is ever given: what was computed since is worth nothing, and whoever hears the alarm says so before
/// anyone believes it.
#[derive(Debug)]
pub(super) struct Check {
    block: Bytes,
    sums: Bytes,
    /// A bit for each chunk that is known to be good.
    good: Box<[AtomicU64]>,
    alarm: Arc<AtomicBool>,
}

impl Check {
    /// `None` if there is not one checksum a chunk.
    pub(super) fn new(block: Bytes, sums: Bytes, alarm: Arc<AtomicBool>) -> Option<Check> {
        let chunks = block.len().div_ceil(CHUNK);
        let good = (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        (sums.len() == chunks.checked_mul(8)?).then_some(Check { block, sums, good, alarm })
    }

    fn passes(&self, range: Range<usize>) -> bool {
        let last = range.end.saturating_sub(1).max(range.start) / CHUNK;
        (range.start / CHUNK..=last).all(|chunk| self.is_good(chunk))
    }

    fn is_good(&self, chunk: usize) -> bool {
        let Some(word) = self.good.get(chunk / 64) else { return false };
        let bit = 1 << (chunk % 64);
        // What the bit stands for never changes.
        word.load(Ordering::Relaxed) & bit != 0 || self.look(chunk, word, bit)
    }

    #[cold]
    fn look(&self, chunk: usize, word: &AtomicU64, bit: u64) -> bool {
        let (start, end) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.block.len()));
        let wanted = self.sums.get(chunk * 8..).and_then(|sums| sums.first_chunk()).copied().map(u64::from_le_bytes);
        let good = wanted.is_some() && self.block.get(start..end).map(xxh3_64) == wanted;
        if good {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.alarm.store(true, Ordering::SeqCst);
        }
        good
    }
}

/// Bytes that never change. Of a file they are checked when they are looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    bytes: Bytes,
    /// Where they begin in the block that is checked.
    start: usize,
    check: Option<Arc<Check>>,
}

impl From<Bytes> for Stored {
    fn from(bytes: Bytes) -> Self {
        Stored { bytes, start: 0, check: None }
    }
}

impl Stored {
    pub(super) fn checked(bytes: Bytes, check: Option<Check>) -> Stored {
        Stored { bytes, start: 0, check: check.map(Arc::new) }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes at `range`; none if there are not so many, or if they are not what was written.
    #[inline]
    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        let Some(found) = self.bytes.get(range.clone()) else { return &[] };
        match &self.check {
            Some(check) if !check.passes(self.start + range.start..self.start + range.end) => &[],
            _ => found,
        }
    }

    /// The `i`-th number of four bytes, or zero.
    #[inline]
    pub(super) fn small(&self, i: usize) -> u32 {
        let at = i.saturating_mul(4);
        self.get(at..at.saturating_add(4)).first_chunk().copied().map_or(0, u32::from_le_bytes)
    }

    /// The `i`-th number of eight bytes, or zero.
    #[inline]
    pub(super) fn large(&self, i: usize) -> u64 {
        let at = i.saturating_mul(8);
        self.get(at..at.saturating_add(8)).first_chunk().copied().map_or(0, u64::from_le_bytes)
    }

    /// The `i`-th number of sixteen bytes, or zero.
    pub(super) fn huge(&self, i: usize) -> u128 {
        let at = i.saturating_mul(16);
        self.get(at..at.saturating_add(16)).first_chunk().copied().map_or(0, u128::from_le_bytes)
    }

    /// Takes the next bytes off the front, without a copy.
    pub(super) fn split_to(&mut self, length: usize) -> Option<Stored> {
        if length > self.bytes.len() {
            return None;
        }
        let part = Stored { bytes: self.bytes.split_to(length), start: self.start, check: self.check.clone() };
        self.start += length;
        Some(part)
    }

    /// Takes a number of eight bytes off the front, checked.
    pub(super) fn number(&mut self) -> Option<u64> {
        let number = self.get(0..8).first_chunk().copied().map(u64::from_le_bytes)?;
        self.split_to(8)?;
        Some(number)
    }

    /// All of them, checked, to be written elsewhere.
    pub(super) fn all(&self) -> Bytes {
        let _ = self.get(0..self.len());
        self.bytes.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn checksums_do_not_depend_on_how_bytes_are_cut() {
        let whole: Vec<u8> = (0..3 * CHUNK + 17).map(|i| (i * 7 % 251) as u8).collect();
        let expected: Vec<u8> = whole.chunks(CHUNK).flat_map(|chunk| xxh3_64(chunk).to_le_bytes()).collect();
        for cut in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, whole.len()] {
            let parts = [Bytes::copy_from_slice(&whole[..cut]), Bytes::copy_from_slice(&whole[cut..])];
            assert_eq!(checksums(&parts), expected, "cut at {cut}");
        }
        assert!(checksums(&[]).is_empty());
    }

    #[test]
    fn a_damaged_chunk_raises_the_alarm_when_it_is_looked_at_and_gives_nothing() {
        let mut bytes: Vec<u8> = (0..2 * CHUNK + 100).map(|i| (i % 256) as u8).collect();
        let sums: Bytes = checksums(&[Bytes::copy_from_slice(&bytes)]).into();
        bytes[CHUNK + 3] ^= 1;
        let alarm = Arc::new(AtomicBool::new(false));
        let block = Bytes::from(bytes);
        assert!(Check::new(block.clone(), sums.slice(8..), Arc::clone(&alarm)).is_none());
        let mut stored = Stored::checked(block.clone(), Check::new(block, sums, Arc::clone(&alarm)));
        assert_eq!(stored.number(), Some(0x0706_0504_0302_0100));
        // Behind what was taken off, the chunks are where they were.
        assert_eq!(stored.get(0..4), [8, 9, 10, 11]);
        assert_eq!(stored.get(2 * CHUNK..2 * CHUNK + 2), [8, 9]);
        assert!(stored.get(2 * CHUNK..2 * CHUNK + 200).is_empty(), "there are not so many");
        assert!(!alarm.load(Ordering::SeqCst));
        assert!(stored.get(CHUNK - 9..CHUNK - 7).is_empty(), "a part of it is damaged");
        assert!(alarm.load(Ordering::SeqCst));
        assert!(stored.get(CHUNK..CHUNK + 1).is_empty());
    }
}
