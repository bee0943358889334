//! Opaque byte rows and the hash that routes them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use triomphe::ThinArc;
use xxhash_rust::xxh3::xxh3_64;

/// An immutable byte string. Cloning shares the bytes; the order is the order of the bytes.
///
/// The operators never look inside: whoever encodes rows chooses an encoding whose byte equality
/// is the equality that is meant, and whose byte order is the order that is meant.
///
/// Many rows can be parts of one [`Block`], which then lives as long as any of them: what is kept
/// for long, and is not all of its block, is better [`detached`](Row::detached).
#[derive(Clone, Default)]
pub struct Row {
    block: Option<ThinArc<(), u8>>,
    start: u32,
    /// [`ALL`] where the row is the whole block.
    len: u32,
}

/// No part of a block is that long.
const ALL: u32 = u32::MAX;

impl Row {
    /// The bytes of the row.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.block {
            None => &[],
            Some(block) if self.len == ALL => &block.slice,
            Some(block) => {
                let start = self.start as usize;
                block.slice.get(start..start + self.len as usize).unwrap_or_default()
            }
        }
    }

    /// The row with the bytes of `part`, shared with this row if `part` was borrowed from it.
    #[must_use]
    pub fn part(&self, part: &[u8]) -> Row {
        let Some(block) = &self.block else { return Row::from(part) };
        let offset = (part.as_ptr() as usize).checked_sub(block.slice.as_ptr() as usize);
        match offset.and_then(|start| shared(block, start..start.saturating_add(part.len()))) {
            Some(row) if !part.is_empty() => row,
            _ => Row::from(part),
        }
    }

    /// The same bytes, in a block of their own if they are a part of a larger one.
    #[must_use]
    pub fn detached(&self) -> Row {
        match &self.block {
            Some(block) if self.len != ALL && block.slice.len() != self.len as usize => Row::from(self.as_bytes()),
            _ => self.clone(),
        }
    }
}

/// The row that is this range of a block, if there is such a range, and it is not too long to be told from the whole.
fn shared(block: &ThinArc<(), u8>, range: Range<usize>) -> Option<Row> {
    let start = u32::try_from(range.start).ok()?;
    let len = u32::try_from(range.end.checked_sub(range.start)?).ok().filter(|len| *len != ALL)?;
    (range.end <= block.slice.len()).then(|| Row { block: Some(block.clone()), start, len })
}

/// Bytes that many rows are parts of: one allocation for all of them.
#[derive(Clone)]
pub struct Block(ThinArc<(), u8>);

impl Block {
    /// A copy of `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Block {
        Block(ThinArc::from_header_and_slice((), bytes))
    }

    /// The row that is this range of the block; an empty one where there is no such range.
    #[must_use]
    pub fn row(&self, range: Range<usize>) -> Row {
        let copied = |range| self.0.slice.get(range).map(Row::from).unwrap_or_default();
        shared(&self.0, range.clone()).unwrap_or_else(|| copied(range))
    }
}

impl PartialEq for Row {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Row {}

impl PartialOrd for Row {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Row {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Deref for Row {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Row {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

// `Borrow<[u8]>` requires the same hash as the slice has.
impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl From<&[u8]> for Row {
    fn from(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Row::default();
        }
        let len = u32::try_from(bytes.len()).unwrap_or(ALL);
        Row { block: Some(ThinArc::from_header_and_slice((), bytes)), start: 0, len }
    }
}

impl<const N: usize> From<&[u8; N]> for Row {
    fn from(bytes: &[u8; N]) -> Self {
        Row::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for Row {
    fn from(bytes: Vec<u8>) -> Self {
        Row::from(bytes.as_slice())
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row(\"{}\")", self.as_bytes().escape_ascii())
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Row, E> {
        Ok(Row::from(bytes))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Row, E> {
        Ok(Row::from(bytes))
    }

    // Self-describing formats without a byte type, such as JSON, store a sequence of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Row, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(Row::from(bytes))
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row, D::Error> {
        deserializer.deserialize_bytes(RowVisitor)
    }
}

/// The hash that decides which worker owns a key: the owner is `stable_hash(key) % workers`.
///
/// It is XXH3 (64 bits, seed 0) of the bytes and part of the persistent format: snapshots are
/// split by it, so it is the same on every machine and in every release.
#[must_use]
pub fn stable_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn hash_never_changes() {
        assert_eq!(stable_hash(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(stable_hash(b"silverflow"), 0xf4fa_a010_da7b_67ec);
    }

    #[test]
    fn parts_of_a_block_are_rows_like_others() {
        let block = Block::new(b"silverflow");
        let rows = [block.row(0..6), block.row(6..10), block.row(3..3), block.row(8..11)];
        assert_eq!(rows.each_ref().map(Row::as_bytes), [&b"silver"[..], b"flow", b"", b""]);
        assert_eq!(rows[0], Row::from(b"silver"));
        let row = &rows[0];
        for part in [&row[0..6], &row[2..4], &row[6..], b"elsewhere"] {
            assert_eq!(row.part(part).as_bytes(), part);
        }
        assert_eq!(Row::default().part(b"x"), Row::from(b"x"));
        for row in rows {
            let own = row.detached();
            assert_eq!(own, row);
            assert!(own.block.is_none_or(|block| block.slice.len() == row.len()));
        }
    }

    #[test]
    fn serialises_as_one_byte_string() {
        let row = Row::from(&[0, 1, 255]);
        let bytes = bincode::serialize(&row).unwrap();
        assert_eq!(bytes, [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 255]);
        assert_eq!(bincode::deserialize::<Row>(&bytes).unwrap(), row);
    }

    #[test]
    fn ordered_and_hashed_as_bytes() {
        assert!(Row::from(&[1]) < Row::from(&[1, 0]));
        assert!(Row::from(&[1, 255]) < Row::from(&[2]));
        let set: std::collections::HashSet<Row> = [Row::from(b"a")].into();
        assert!(set.contains(b"a".as_slice()));
    }
}
