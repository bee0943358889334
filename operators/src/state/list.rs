//! Flat lists of byte strings.

use std::ops::Range;

use bytes::Bytes;

use crate::snapshot::{Source, put_number};

/// Boundaries of consecutive ranges. Ranges of one common length need no storage; the others take
/// four bytes each, or eight once the total passes 4 Gi.
#[derive(Debug, Default)]
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

    pub(super) fn shrink(&mut self) {
        self.small.shrink_to_fit();
        self.large.shrink_to_fit();
    }

    pub(super) fn encoded_len(&self) -> usize {
        5 * 8 + self.small.len() * 4 + self.large.len() * 8
    }

    /// Appends five numbers (count, total, width, ends of four bytes, ends of eight bytes) and the ends.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.count, self.total, self.width, self.small.len(), self.large.len()] {
            put_number(out, number as u64);
        }
        out.extend(self.small.iter().flat_map(|end| end.to_le_bytes()));
        out.extend(self.large.iter().flat_map(|end| end.to_le_bytes()));
    }

    /// What [`Ends::encode`] wrote. `None` if it contradicts itself.
    pub(super) fn decode(source: &mut Source) -> Option<Ends> {
        let mut number = || usize::try_from(source.number()?).ok();
        let (count, total, width) = (number()?, number()?, number()?);
        let (small, large) = (number()?, number()?);
        let small = source.bytes(small.checked_mul(4)?)?;
        let large = source.bytes(large.checked_mul(8)?)?;
        let ends = Ends {
            count,
            total,
            width,
            small: small.as_chunks().0.iter().map(|end| u32::from_le_bytes(*end)).collect(),
            large: large.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end)).collect(),
        };
        ends.consistent().then_some(ends)
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

/// Byte strings, end to end in one allocation, while more are appended.
#[derive(Debug, Default)]
pub(super) struct ByteList {
    ends: Ends,
    bytes: Vec<u8>,
}

/// Byte strings, end to end, that stay as they are. They may be a part of what was read from a file.
#[derive(Debug, Default)]
pub(super) struct Packed {
    ends: Ends,
    bytes: Bytes,
}

impl ByteList {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn push(&mut self, item: &[u8]) {
        self.ends.push(item.len());
        self.bytes.extend_from_slice(item);
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.bytes()
    }

    /// The same strings, none to follow.
    pub(super) fn pack(mut self) -> Packed {
        self.ends.shrink();
        self.bytes.shrink_to_fit();
        Packed { ends: self.ends, bytes: Bytes::from(self.bytes) }
    }
}

impl Packed {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The `i`-th string; empty beyond the end.
    pub(super) fn get(&self, i: usize) -> &[u8] {
        self.bytes.get(self.ends.range(i)).unwrap_or_default()
    }

    /// Length of all strings together.
    pub(super) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + self.ends.bytes()
    }

    /// Bytes that [`Packed::encode`] appends.
    pub(super) fn encoded_len(&self) -> usize {
        self.ends.encoded_len() + 8 + self.bytes.len()
    }

    /// Appends the boundaries, then the length of the strings and the strings.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.ends.encode(out);
        put_number(out, self.bytes.len() as u64);
        out.extend_from_slice(&self.bytes);
    }

    /// What [`Packed::encode`] wrote; it shares the memory of `source`. `None` if it contradicts itself.
    pub(super) fn decode(source: &mut Source) -> Option<Packed> {
        let ends = Ends::decode(source)?;
        let length = source.number()?;
        let bytes = source.bytes(usize::try_from(length).ok()?)?;
        (ends.total() == bytes.len()).then_some(Packed { ends, bytes })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
            let list = list.pack();
            let mut bytes = Vec::new();
            list.encode(&mut bytes);
            assert_eq!(bytes.len(), list.encoded_len());
            let read = Packed::decode(&mut Source::new(bytes.into())).unwrap();
            for list in [list, read] {
                assert_eq!(list.len(), items.len());
                for (i, item) in items.iter().enumerate() {
                    assert_eq!(list.get(i), item);
                }
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
        let mut bytes = Vec::new();
        ends.encode(&mut bytes);
        let read = Ends::decode(&mut Source::new(bytes.into())).unwrap();
        assert_eq!((read.len(), read.total(), read.range(5)), (ends.len(), ends.total(), ends.range(5)));
    }
}
