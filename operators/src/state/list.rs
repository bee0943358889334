//! Flat lists of byte strings.

use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Boundaries of consecutive ranges. Ranges of one common length need no storage; the others take
/// four bytes each, or eight once the total passes 4 Gi.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Ends {
    count: usize,
    total: usize,
    /// Common length of all ranges, meaningful while `small` and `large` are empty.
    width: usize,
    small: Vec<u32>,
    large: Vec<u64>,
}

impl Ends {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    fn uniform(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    fn store(&mut self, end: usize) {
        match u32::try_from(end) {
            Ok(end) if self.large.is_empty() => self.small.push(end),
            _ => self.large.push(end as u64),
        }
    }

    /// Appends a range of `len` items.
    pub(super) fn push(&mut self, len: usize) {
        if self.uniform() {
            if self.count == 0 {
                self.width = len;
            } else if self.width != len {
                for i in 1..=self.count {
                    self.store(i * self.width);
                }
            }
        }
        self.total += len;
        self.count += 1;
        if !self.uniform() {
            self.store(self.total);
        }
    }

    fn end(&self, i: usize) -> usize {
        if self.uniform() {
            return (i + 1) * self.width;
        }
        match self.small.get(i) {
            Some(end) => *end as usize,
            None => self.large.get(i - self.small.len()).map_or(self.total, |end| *end as usize),
        }
    }

    /// The `i`-th range. `i` is less than [`Ends::len`].
    pub(super) fn range(&self, i: usize) -> Range<usize> {
        let start = if i == 0 { 0 } else { self.end(i - 1) };
        start..self.end(i)
    }

    /// Whether the stored numbers agree with each other, for data that comes from outside.
    pub(super) fn consistent(&self) -> bool {
        if self.uniform() {
            return self.count.checked_mul(self.width) == Some(self.total);
        }
        let ends = self.small.iter().map(|end| u64::from(*end)).chain(self.large.iter().copied());
        self.small.len() + self.large.len() == self.count
            && ends.clone().is_sorted()
            && ends.last() == Some(self.total as u64)
    }

    pub(super) fn bytes(&self) -> usize {
        self.small.capacity() * 4 + self.large.capacity() * 8
    }
}

fn serialize_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

struct BytesVisitor;

impl serde::de::Visitor<'_> for BytesVisitor {
    type Value = Vec<u8>;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a byte string")
    }
    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
    fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(BytesVisitor)
}

/// Byte strings, end to end in one allocation.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ByteList {
    ends: Ends,
    #[serde(serialize_with = "serialize_bytes", deserialize_with = "deserialize_bytes")]
    bytes: Vec<u8>,
}

impl ByteList {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn push(&mut self, item: &[u8]) {
        self.ends.push(item.len());
        self.bytes.extend_from_slice(item);
    }

    /// Length of all strings together.
    pub(super) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// The `i`-th string; empty beyond the end.
    pub(super) fn get(&self, i: usize) -> &[u8] {
        self.bytes.get(self.ends.range(i)).unwrap_or_default()
    }

    pub(super) fn consistent(&self) -> bool {
        self.ends.consistent() && self.ends.total() == self.bytes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_pushed() {
        let lengths: [&[usize]; 5] = [&[], &[3, 3, 3], &[0, 0, 0], &[0, 0, 4], &[5, 5, 1, 0, 9]];
        for lengths in lengths {
            let mut list = ByteList::default();
            let items: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(i, n)| vec![i as u8; *n]).collect();
            for item in &items {
                list.push(item);
            }
            assert!(list.consistent());
            assert_eq!(list.len(), items.len());
            for (i, item) in items.iter().enumerate() {
                assert_eq!(list.get(i), item);
            }
        }
    }

    #[test]
    fn ends_beyond_four_gibibytes() {
        let mut ends = Ends::default();
        let lengths = [7usize, 1 << 31, 1 << 31, 5, 0, 1 << 33];
        let mut start = 0;
        for len in lengths {
            ends.push(len);
        }
        for (i, len) in lengths.iter().enumerate() {
            assert_eq!(ends.range(i), start..start + len);
            start += len;
        }
        assert!(ends.consistent());
    }
}
