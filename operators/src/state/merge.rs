//! Merging segments a little at a time.

use std::cmp::Ordering;
use std::ops::Range;

use std::sync::Arc;

use super::Order;
use super::draft::Draft;
use super::overlay::HashedKey;
use super::segment::Segment;
use super::shelf::Shelf;

/// A merge that is under way. Its sources stay in use until it is done.
#[derive(Debug)]
pub(super) struct Merge {
    /// The segments that are merged.
    parts: Range<usize>,
    /// The next key of each part that is not done.
    heads: Vec<Head>,
    /// The key at hand, by segment and place there.
    key: Option<(usize, usize)>,
    /// Its remaining entries, by segment.
    spans: Vec<(usize, Range<usize>)>,
    out: Draft,
    /// Entries of the parts whose count has changed since the merge began.
    touched: Vec<(HashedKey, usize, usize)>,
}

/// A key of a segment.
#[derive(Clone, Copy, Debug)]
struct Head {
    hash: u64,
    segment: usize,
    k: usize,
}

impl Head {
    /// The `k`-th key, if there are as many.
    fn of(segments: &[Segment], segment: usize, k: usize) -> Option<Head> {
        let part = segments.get(segment).filter(|part| k < part.key_count())?;
        Some(Head { hash: part.hash(k), segment, k })
    }

    fn key<'s>(&self, segments: &'s [Segment]) -> &'s [u8] {
        segments.get(self.segment).map_or(&[], |part| part.key(self.k))
    }

    fn compare(&self, other: &Head, segments: &[Segment]) -> Ordering {
        // Nearly always the hashes differ.
        self.hash.cmp(&other.hash).then_with(|| self.key(segments).cmp(other.key(segments)))
    }
}

impl Merge {
    /// `None` if there is neither room nor a file for the result.
    pub(super) fn new(segments: &[Segment], parts: Range<usize>, shelf: Option<&Arc<dyn Shelf>>) -> Option<Self> {
        let sealed: Vec<_> = segments.get(parts.clone()).unwrap_or_default().iter().map(Segment::sealed).collect();
        let out = Draft::of(&sealed, shelf)?;
        let heads = parts.clone().filter_map(|segment| Head::of(segments, segment, 0)).collect();
        Some(Merge { heads, parts, key: None, spans: Vec::new(), out, touched: Vec::new() })
    }

    /// The index after the last part: segments from there on are younger than the merge.
    pub(super) fn end(&self) -> usize {
        self.parts.end
    }

    pub(super) fn bytes(&self) -> usize {
        self.out.bytes()
    }

    /// The count of an entry has changed.
    pub(super) fn touch(&mut self, key: &HashedKey, segment: usize, entry: usize) {
        if self.parts.contains(&segment) {
            self.touched.push((key.clone(), segment, entry));
        }
    }

    /// Moves up to `fuel` entries. True when all are done.
    pub(super) fn step<O: Order>(&mut self, segments: &[Segment], fuel: usize) -> bool {
        for _ in 0..fuel {
            while self.spans.is_empty() {
                if let Some((segment, k)) = self.key.take()
                    && let Some(segment) = segments.get(segment)
                {
                    self.out.close_key(segment.hash(k), segment.key(k));
                }
                if !self.next_key(segments) {
                    return true;
                }
            }
            self.copy_least::<O>(segments);
        }
        false
    }

    /// Opens the least key that is left, in all parts that have it.
    fn next_key(&mut self, segments: &[Segment]) -> bool {
        let Some(least) = self.heads.iter().copied().min_by(|a, b| a.compare(b, segments)) else {
            return false;
        };
        self.key = Some((least.segment, least.k));
        self.heads.retain_mut(|head| {
            if head.compare(&least, segments) == Ordering::Greater {
                return true;
            }
            self.spans.extend(segments.get(head.segment).map(|part| (head.segment, part.span(head.k))));
            let next = Head::of(segments, head.segment, head.k + 1);
            *head = next.unwrap_or(*head);
            next.is_some()
        });
        true
    }

    fn copy_least<O: Order>(&mut self, segments: &[Segment]) {
        let compare = |(a, x): &(usize, Range<usize>), (b, y): &(usize, Range<usize>)| {
            let order = |segment: usize, i| segments.get(segment).map_or(&[][..], |segment| segment.order(i));
            O::compare(order(*a, x.start), order(*b, y.start))
        };
        let least = match self.spans.len() {
            1 => Some(0),
            _ => (0..self.spans.len()).min_by(|a, b| match (self.spans.get(*a), self.spans.get(*b)) {
                (Some(a), Some(b)) => compare(a, b),
                _ => Ordering::Equal,
            }),
        };
        let Some(least) = least else { return };
        if let Some((segment, span)) = self.spans.get_mut(least) {
            if let Some(entry) = segments.get(*segment).map(|segment| segment.entry(span.start))
                && entry.count != 0
            {
                self.out.push::<O>(entry.order, entry.data, entry.count);
            }
            span.start += 1;
            if span.start >= span.end {
                self.spans.swap_remove(least);
            }
        }
    }

    /// Puts the result in the place of the parts. They stay, and this is false, if it could not be written.
    pub(super) fn finish<O: Order>(self, segments: &mut Vec<Segment>, shelf: Option<&Arc<dyn Shelf>>) -> bool {
        let Some(mut out) = self.out.seal(shelf) else { return false };
        for (key, segment, i) in self.touched {
            let Some(source) = segments.get(segment) else {
                continue;
            };
            let order = source.order(i);
            // An entry that was dead when its turn came is not there.
            let Some(span) = out.find(key.hash, &key.key) else {
                continue;
            };
            let at = out.lower::<O>(&span, order, None);
            if at < span.end && O::compare(out.order(at), order) == Ordering::Equal {
                out.set_count(at, source.count(i));
            }
        }
        segments.splice(self.parts, Some(out).filter(|out| !out.is_empty()));
        true
    }
}
