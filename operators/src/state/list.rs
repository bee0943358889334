//! Flat lists of byte strings.

use std::ops::Range;

use bytes::Bytes;

use super::column::Column;
use super::stored::Stored;
use crate::snapshot::put_number;

/// Boundaries of consecutive ranges while more are appended. Ranges of one common length need no storage; the others take
/// four bytes each, or eight once the total passes 4 Gi.
#[derive(Debug, Default)]
pub(super) struct Ends {
    count: usize,
    total: usize,
    /// Common length of all ranges, meaningful unless they are `listed`.
    width: usize,
    listed: bool,
    pub(super) small: Column,
    pub(super) large: Column,
}

impl Ends {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    fn store(&mut self, end: usize) {
        match u32::try_from(end) {
            Ok(end) if self.large.is_empty() => self.small.push(&end.to_le_bytes()),
            _ => self.large.push(&(end as u64).to_le_bytes()),
        }
    }

    /// Appends a range of `len` items.
    pub(super) fn push(&mut self, len: usize) {
        if !self.listed {
            if self.count == 0 {
                self.width = len;
            } else if self.width != len {
                self.listed = true;
                for i in 1..=self.count {
                    self.store(i * self.width);
                }
            }
        }
        self.total += len;
        self.count += 1;
        if self.listed {
            self.store(self.total);
        }
    }

    /// Before anything is appended: whatever will be there is of `parts`. Gives the most that the columns will hold.
    pub(super) fn expect<'b>(&mut self, parts: impl Iterator<Item = &'b Bounds> + Clone) -> [usize; 2] {
        let known = parts.clone().filter(|part| part.count > 0);
        let mut widths = known.clone().map(|part| (!part.listed).then_some(part.width));
        let first = widths.next().flatten();
        if known.clone().next().is_none() || first.is_some() && widths.all(|width| width == first) {
            return [0, 0];
        }
        let (count, total) = known.fold((0, 0usize), |(count, total), part| (count + part.count, total + part.total));
        self.list(count, total)
    }

    /// Before anything is appended: up to `count` ranges of `total` items follow, of any length. As [`Ends::expect`].
    pub(super) fn list(&mut self, count: usize, total: usize) -> [usize; 2] {
        self.listed = true;
        [count * 4, if u32::try_from(total).is_ok() { 0 } else { count * 8 }]
    }

    fn bounds(&self, small: Stored, large: Stored) -> Bounds {
        let few = small.len() / 4;
        Bounds { count: self.count, total: self.total, width: self.width, listed: self.listed, few, small, large }
    }

    /// The same boundaries, none to follow.
    pub(super) fn pack(mut self) -> Bounds {
        let (small, large) = (std::mem::take(&mut self.small).pack(), std::mem::take(&mut self.large).pack());
        self.bounds(small, large)
    }

    /// The same boundaries, none to follow, from the file that they were written to.
    pub(super) fn of(&self, file: &Bytes) -> Option<Bounds> {
        Some(self.bounds(self.small.of(file)?, self.large.of(file)?))
    }
}

/// Boundaries of consecutive ranges, that stay as they are.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    count: usize,
    total: usize,
    width: usize,
    listed: bool,
    /// Numbers in `small`.
    few: usize,
    small: Stored,
    large: Stored,
}

impl Bounds {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    #[inline]
    fn end(&self, i: usize) -> usize {
        if !self.listed {
            return (i + 1).saturating_mul(self.width);
        }
        if i < self.few {
            return self.small.small(i) as usize;
        }
        usize::try_from(self.large.large(i - self.few)).unwrap_or(self.total)
    }

    /// The `i`-th range. `i` is less than [`Bounds::len`].
    #[inline]
    pub(super) fn range(&self, i: usize) -> Range<usize> {
        let start = if i == 0 { 0 } else { self.end(i - 1) };
        start..self.end(i).max(start)
    }

    pub(super) fn columns(&self) -> [&Stored; 2] {
        [&self.small, &self.large]
    }

    /// Appends five numbers: count, total, width, ends of four bytes, ends of eight bytes.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        let width = if self.listed { 0 } else { self.width };
        for number in [self.count, self.total, width, self.small.len() / 4, self.large.len() / 8] {
            put_number(out, number as u64);
        }
    }

    /// What [`Bounds::describe`] wrote, as yet without the ends. `None` if it contradicts itself.
    pub(super) fn described(source: &mut Stored) -> Option<Shape> {
        let mut number = || usize::try_from(source.number()?).ok();
        let [count, total, width, few, many] = [number()?, number()?, number()?, number()?, number()?];
        let listed = few > 0 || many > 0;
        let fits =
            if listed { few.checked_add(many)? == count } else { count.checked_mul(width).is_some_and(|x| x == total) };
        fits.then_some(Shape { bounds: Bounds { count, total, width, listed, few, ..Bounds::default() }, many })
    }
}

/// Boundaries whose ends have still to be found.
pub(super) struct Shape {
    bounds: Bounds,
    many: usize,
}

impl Shape {
    /// How many ranges there are.
    pub(super) fn len(&self) -> usize {
        self.bounds.len()
    }

    /// Takes the ends off the front.
    pub(super) fn read(mut self, source: &mut Stored) -> Option<Bounds> {
        self.bounds.small = source.split_to(self.bounds.few.checked_mul(4)?)?;
        self.bounds.large = source.split_to(self.many.checked_mul(8)?)?;
        Some(self.bounds)
    }
}

/// Byte strings, end to end, while more are appended.
#[derive(Debug, Default)]
pub(super) struct ByteList {
    pub(super) ends: Ends,
    pub(super) bytes: Column,
}

/// Byte strings, end to end, that stay as they are.
#[derive(Debug, Default)]
pub(super) struct Packed {
    pub(super) ends: Bounds,
    pub(super) bytes: Stored,
}

impl ByteList {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    pub(super) fn push(&mut self, item: &[u8]) {
        self.ends.push(item.len());
        self.bytes.push(item);
    }

    /// The same strings, none to follow.
    pub(super) fn pack(self) -> Packed {
        Packed { ends: self.ends.pack(), bytes: self.bytes.pack() }
    }

    /// The same strings, none to follow, from the file that they were written to.
    pub(super) fn of(&self, file: &Bytes) -> Option<Packed> {
        Some(Packed { ends: self.ends.of(file)?, bytes: self.bytes.of(file)? })
    }
}

impl Packed {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The `i`-th string; empty beyond the end.
    #[inline]
    pub(super) fn get(&self, i: usize) -> &[u8] {
        self.bytes.get(self.ends.range(i))
    }

    /// Length of all strings together.
    pub(super) fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn columns(&self) -> [&Stored; 3] {
        let [small, large] = self.ends.columns();
        [small, large, &self.bytes]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn reread(ends: &Bounds) -> Bounds {
        let mut bytes = Vec::new();
        ends.describe(&mut bytes);
        ends.columns().iter().for_each(|column| bytes.extend_from_slice(&column.all()));
        let mut source = Stored::from(Bytes::from(bytes));
        Bounds::described(&mut source).unwrap().read(&mut source).unwrap()
    }

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
            let read = Packed { ends: reread(&list.ends), bytes: list.bytes.clone() };
            // The same again, from the list that it is expected to come from.
            let mut again = ByteList::default();
            let bounds = again.ends.expect([&list.ends].into_iter());
            items.iter().for_each(|item| again.push(item));
            assert!(again.ends.small.len() <= bounds[0] && again.ends.large.len() <= bounds[1]);
            for list in [list, read, again.pack()] {
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
        let ends = ends.pack();
        for ends in [reread(&ends), ends] {
            assert_eq!(ends.len(), lengths.len());
            start = 0;
            for (i, len) in lengths.iter().enumerate() {
                assert_eq!(ends.range(i), start..start + len);
                start += len;
            }
        }
        assert_eq!(start, (1 << 33) + (1 << 32) + 12);
    }
}
