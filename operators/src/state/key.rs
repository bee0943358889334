//! The entries of one key, across the overlay and the segments.

use std::cell::Cell;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Range;

use super::merge::Merge;
use super::overlay::{self, HashedKey, Overlay};
use super::segment::{Segment, lower};
use super::{Bytewise, Entry, Order};

/// Where the entries of one key lie in one segment.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) segment: usize,
    pub(super) entries: Range<usize>,
    /// Where something was looked for last.
    near: Cell<Option<usize>>,
}

impl Span {
    pub(super) fn new(segment: usize, entries: Range<usize>) -> Self {
        Span { segment, entries, near: Cell::new(None) }
    }

    /// The first entry that is not below `order`. The next one that is looked for is often close.
    fn lower<O: Order>(&self, segment: &Segment, order: &[u8]) -> usize {
        let found = segment.lower::<O>(&self.entries, order, self.near.get());
        self.near.set(Some(found));
        found
    }

    /// The first entry that is above `order`.
    fn after<O: Order>(&self, segment: &Segment, order: &[u8]) -> usize {
        let i = self.lower::<O>(segment, order);
        let here = i < self.entries.end && O::compare(segment.order(i), order) == Ordering::Equal;
        i + usize::from(here)
    }
}

#[derive(Debug, Default)]
pub(super) struct Size {
    /// Entries with a count other than zero.
    pub(super) entries: usize,
    /// Entries that have come since a merge last went on.
    pub(super) fresh: usize,
    pub(super) overlay: usize,
    /// A key of the overlay has grown beyond its part.
    pub(super) crowded: bool,
    /// A segment may be mostly dead.
    pub(super) decayed: bool,
}

/// The entries of one key.
#[derive(Debug)]
pub struct KeyMut<'a, O: Order = Bytewise> {
    pub(super) key: HashedKey,
    /// The overlay's entries of the key, in their place again when this is dropped.
    pub(super) cells: Vec<overlay::Cell>,
    /// Whether the overlay has a place for the key.
    pub(super) kept: bool,
    /// Where something was looked for last in `cells`.
    pub(super) near: Cell<Option<usize>>,
    pub(super) overlay: &'a mut Overlay,
    pub(super) segments: &'a mut [Segment],
    pub(super) merge: &'a mut Option<Merge>,
    pub(super) spans: &'a [Span],
    pub(super) size: &'a mut Size,
    pub(super) crowd: usize,
    pub(super) order: PhantomData<O>,
}

impl<O: Order> Drop for KeyMut<'_, O> {
    fn drop(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        self.overlay.put(&self.key, cells, self.kept);
    }
}

enum Place {
    Overlay(usize),
    Segment(usize, usize),
}

impl<O: Order> KeyMut<'_, O> {
    /// Whether nothing is, nor recently was, stored under the key.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.cells.is_empty() && self.spans.is_empty()
    }

    /// An upper bound of the number of entries.
    pub(crate) fn size_hint(&self) -> usize {
        self.cells.len() + self.spans.iter().map(|span| span.entries.len()).sum::<usize>()
    }

    fn search(&self, order: &[u8]) -> Result<usize, usize> {
        let compare = |cell: &overlay::Cell| O::compare(self.overlay.order(cell), order);
        let below = |i: usize| self.cells.get(i).is_some_and(|cell| compare(cell) == Ordering::Less);
        let at = lower(&(0..self.cells.len()), self.near.get(), below);
        self.near.set(Some(at));
        match self.cells.get(at).map(compare) {
            Some(Ordering::Equal) => Ok(at),
            _ => Err(at),
        }
    }

    fn find(&self, order: &[u8]) -> Result<Place, usize> {
        let at = match self.search(order) {
            Ok(i) => return Ok(Place::Overlay(i)),
            Err(at) => at,
        };
        for span in self.spans {
            let Some(segment) = self.segments.get(span.segment) else {
                continue;
            };
            let i = span.lower::<O>(segment, order);
            if i < span.entries.end && segment.count(i) != 0 && O::compare(segment.order(i), order) == Ordering::Equal {
                return Ok(Place::Segment(span.segment, i));
            }
        }
        Err(at)
    }

    /// The entry at `order`, whatever its count.
    #[must_use]
    pub fn get(&self, order: &[u8]) -> Option<Entry<'_>> {
        match self.find(order).ok()? {
            Place::Overlay(i) => self.cells.get(i).map(|cell| self.overlay.entry(cell)),
            Place::Segment(s, i) => self.segments.get(s).map(|segment| segment.entry(i)),
        }
    }

    /// Adds `diff` to the count at `order` and returns the count before and after. A new entry
    /// has empty data; at zero the entry, with its data, is gone.
    pub fn add(&mut self, order: &[u8], diff: i64) -> (i64, i64) {
        match self.find(order) {
            Err(at) => {
                self.insert(at, order, b"", diff);
                (0, diff)
            }
            Ok(place) => {
                let old = match place {
                    Place::Overlay(i) => self.cells.get(i).map_or(0, |cell| cell.count),
                    Place::Segment(s, i) => self.segments.get(s).map_or(0, |segment| segment.count(i)),
                };
                let new = old.saturating_add(diff);
                self.write(place, new);
                (old, new)
            }
        }
    }

    /// Makes the entry at `order` hold `data` and `count`; a count of zero removes it.
    pub fn set(&mut self, order: &[u8], data: &[u8], count: i64) {
        let found = self.find(order);
        let same = match found {
            Err(at) => return self.insert(at, order, data, count),
            Ok(Place::Overlay(i)) => {
                if let Some(cell) = self.cells.get_mut(i).filter(|_| count != 0) {
                    *cell = self.overlay.replace(cell, data, count);
                }
                return self.write(Place::Overlay(i), count);
            }
            Ok(Place::Segment(s, i)) => {
                let same = self.segments.get(s).is_some_and(|segment| segment.data(i) == data);
                self.write(Place::Segment(s, i), if same { count } else { 0 });
                same
            }
        };
        if !same {
            let at = self.search(order).unwrap_or_else(|at| at);
            self.insert(at, order, data, count);
        }
    }

    /// Removes all entries. Cost: the entries.
    pub fn clear(&mut self) {
        self.size.entries -= self.cells.len();
        self.size.overlay -= self.cells.len();
        for cell in self.cells.drain(..) {
            self.overlay.forget(&cell);
        }
        for span in self.spans {
            for i in span.entries.clone() {
                if self.segments.get(span.segment).is_some_and(|segment| segment.count(i) != 0) {
                    self.write(Place::Segment(span.segment, i), 0);
                }
            }
        }
    }

    fn insert(&mut self, at: usize, order: &[u8], data: &[u8], count: i64) {
        if count != 0 {
            self.cells.insert(at, self.overlay.cell(order, data, count));
            self.size.entries += 1;
            self.size.overlay += 1;
            self.size.fresh += 1;
            self.size.crowded |= self.cells.len() > self.crowd;
        }
    }

    fn write(&mut self, place: Place, count: i64) {
        self.size.entries -= usize::from(count == 0);
        match place {
            Place::Overlay(i) if count == 0 => {
                self.overlay.forget(&self.cells.remove(i));
                self.size.overlay -= 1;
            }
            Place::Overlay(i) => {
                if let Some(cell) = self.cells.get_mut(i) {
                    cell.count = count;
                }
            }
            Place::Segment(s, i) => {
                if let Some(segment) = self.segments.get_mut(s) {
                    segment.set_count(i, count);
                    self.size.decayed |= segment.dead() * 2 > segment.len();
                    if let Some(merge) = self.merge {
                        merge.touch(&self.key, s, i);
                    }
                }
            }
        }
    }

    /// The live entries of the parts, one candidate each, and among them the chosen one.
    fn choose<'e>(
        overlay: Option<Entry<'e>>,
        stored: impl Iterator<Item = Entry<'e>>,
        wanted: Ordering,
    ) -> Option<Entry<'e>> {
        let mut best = overlay;
        for entry in stored {
            if best.is_none_or(|best| O::compare(entry.order, best.order) == wanted) {
                best = Some(entry);
            }
        }
        best
    }

    fn parts(&self) -> impl Iterator<Item = (&Segment, &Span)> {
        self.spans.iter().filter_map(|span| Some((self.segments.get(span.segment)?, span)))
    }

    fn downwards(&self, overlay: usize, before: impl Fn(&Segment, &Span) -> usize) -> Option<Entry<'_>> {
        let cells = self.cells.get(..overlay).unwrap_or_default();
        let cell = cells.iter().rev().find(|cell| cell.count > 0).map(|cell| self.overlay.entry(cell));
        let stored = self.parts().filter_map(|(segment, span)| {
            segment.previous_live(before(segment, span), span.entries.start).map(|i| segment.entry(i))
        });
        Self::choose(cell, stored, Ordering::Greater)
    }

    fn upwards(&self, overlay: usize, from: impl Fn(&Segment, &Span) -> usize) -> Option<Entry<'_>> {
        let cells = self.cells.get(overlay..).unwrap_or_default();
        let cell = cells.iter().find(|cell| cell.count > 0).map(|cell| self.overlay.entry(cell));
        let stored = self.parts().filter_map(|(segment, span)| {
            segment.next_live(from(segment, span), span.entries.end).map(|i| segment.entry(i))
        });
        Self::choose(cell, stored, Ordering::Less)
    }

    /// The least live entry.
    #[must_use]
    pub fn first(&self) -> Option<Entry<'_>> {
        self.upwards(0, |_, span| span.entries.start)
    }

    /// The greatest live entry.
    #[must_use]
    pub fn last(&self) -> Option<Entry<'_>> {
        self.downwards(self.cells.len(), |_, span| span.entries.end)
    }

    /// The greatest live entry below `order`.
    #[must_use]
    pub fn before(&self, order: &[u8]) -> Option<Entry<'_>> {
        let overlay = self.search(order).unwrap_or_else(|at| at);
        self.downwards(overlay, |segment, span| span.lower::<O>(segment, order))
    }

    /// The least live entry above `order`.
    #[must_use]
    pub fn after(&self, order: &[u8]) -> Option<Entry<'_>> {
        let overlay = self.search(order).map_or_else(|at| at, |at| at + 1);
        self.upwards(overlay, |segment, span| span.after::<O>(segment, order))
    }

    /// All entries in order, those with a negative count included.
    pub fn scan(&self) -> impl Iterator<Item = Entry<'_>> {
        self.scan_after(None)
    }

    /// As [`KeyMut::scan`], from the first entry above `past` on.
    pub(crate) fn scan_after(&self, past: Option<&[u8]>) -> impl Iterator<Item = Entry<'_>> {
        let first = past.map_or(0, |past| self.search(past).map_or_else(|at| at, |at| at + 1));
        let mut cells = self.cells.get(first..).unwrap_or_default().iter().peekable();
        let rest = |(segment, span): (_, &Span)| {
            (segment, past.map_or(span.entries.start, |past| span.after::<O>(segment, past))..span.entries.end)
        };
        let mut parts: Vec<(&Segment, Range<usize>)> = self.parts().map(rest).collect();
        std::iter::from_fn(move || {
            for (segment, span) in &mut parts {
                while span.start < span.end && segment.count(span.start) == 0 {
                    span.start += 1;
                }
            }
            let least = parts
                .iter_mut()
                .filter(|(_, span)| span.start < span.end)
                .min_by(|(a, x), (b, y)| O::compare(a.order(x.start), b.order(y.start)));
            match (cells.peek(), least) {
                (Some(cell), Some((segment, span)))
                    if O::compare(self.overlay.order(cell), segment.order(span.start)) == Ordering::Greater =>
                {
                    span.start += 1;
                    Some(segment.entry(span.start - 1))
                }
                (None, Some((segment, span))) => {
                    span.start += 1;
                    Some(segment.entry(span.start - 1))
                }
                _ => cells.next().map(|cell| self.overlay.entry(cell)),
            }
        })
    }
}
