//! Sorted runs of entries, as they lie in state.

use std::cmp::Ordering;
use std::ops::Range;

use super::draft::{LONG, STRIDE};
use super::sealed::{Frozen, Sealed};
use super::tally::Tally;
use super::{Entry, Order};

/// The first place in `range` that is not `below`, where places that are come first. With a `hint`, it is looked for
/// from there in growing steps; without, the end is looked at first.
pub(super) fn lower(range: &Range<usize>, hint: Option<usize>, below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    if low >= high {
        return low;
    }
    let from = hint.unwrap_or(high - 1).clamp(low, high - 1);
    let mut step = 1;
    if below(from) {
        low = from + 1;
        while low < high && hint.is_some() {
            let next = from.saturating_add(step);
            if next >= high {
                break;
            }
            if !below(next) {
                high = next;
                break;
            }
            low = next + 1;
            step *= 2;
        }
    } else {
        high = from;
        while low < high && hint.is_some() {
            let Some(next) = from.checked_sub(step).filter(|next| *next >= low) else { break };
            if below(next) {
                low = next + 1;
                break;
            }
            high = next;
            step *= 2;
        }
    }
    while low < high {
        let middle = low.midpoint(high);
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Entries sorted by (hash of the key, key, order), as they lie in state.
///
/// The bytes never change. Counts do: an entry whose count becomes zero is dead, is skipped by
/// navigation, and disappears at the next merge.
#[derive(Debug)]
pub(super) struct Segment {
    sealed: Sealed,
    tally: Tally,
}

impl Segment {
    /// Entries as they were sealed.
    pub(super) fn of(sealed: Sealed) -> Self {
        Segment::new(sealed, Tally::default())
    }

    pub(super) fn new(sealed: Sealed, mut tally: Tally) -> Self {
        if sealed.0.negative > 0 {
            tally.born_negative(&sealed.0.counts, sealed.len());
        }
        Segment { sealed, tally }
    }

    /// What the segment holds now.
    pub(super) fn freeze(&self) -> Frozen {
        Frozen::of(&self.sealed, &self.tally)
    }

    pub(super) fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// Number of entries, dead ones included.
    pub(super) fn len(&self) -> usize {
        self.sealed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }

    /// Entries with a count of zero.
    pub(super) fn dead(&self) -> usize {
        self.tally.dead()
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.sealed.bytes() + self.tally.bytes()
    }

    // ------------------------------------------------------------------ keys

    pub(super) fn key_count(&self) -> usize {
        self.sealed.0.keys.len()
    }

    /// The hash of the `k`-th key.
    #[inline]
    pub(super) fn hash(&self, k: usize) -> u64 {
        self.sealed.0.hashes.large(k)
    }

    pub(super) fn key(&self, k: usize) -> &[u8] {
        self.sealed.0.keys.get(k)
    }

    /// The entries of the `k`-th key.
    pub(super) fn span(&self, k: usize) -> Range<usize> {
        self.sealed.0.spans.range(k)
    }

    /// The entries of `key`, if it is here.
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<Range<usize>> {
        let mut k = self.lower_hash(hash);
        while k < self.key_count() && self.hash(k) == hash {
            match self.key(k).cmp(key) {
                Ordering::Less => k += 1,
                Ordering::Equal => return Some(self.span(k)),
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// The first key whose hash is not below `hash`.
    ///
    /// Hashes are evenly spread, so their value tells their place to within about the square root
    /// of their number, and a second guess to within a few.
    fn lower_hash(&self, hash: u64) -> usize {
        let count = self.key_count();
        if count == 0 {
            return 0;
        }
        let place = |hash: u64| ((u128::from(hash) * count as u128) >> 64) as usize;
        let guess = place(hash);
        let found = self.hash(guess);
        let guess = match hash.checked_sub(found) {
            Some(ahead) => (guess + place(ahead)).min(count - 1),
            None => guess.saturating_sub(place(found - hash)),
        };
        let mut step = 4;
        let (mut low, mut high) = (guess, guess);
        if self.hash(guess) < hash {
            high = guess + step;
            while high < count && self.hash(high) < hash {
                low = high;
                step *= 2;
                high += step;
            }
        } else {
            low = guess.saturating_sub(step);
            while low > 0 && self.hash(low) >= hash {
                high = low;
                step *= 2;
                low = low.saturating_sub(step);
            }
        }
        lower(&(low..high.min(count)), None, |k| self.hash(k) < hash)
    }

    // ------------------------------------------------------------------ entries

    pub(super) fn order(&self, i: usize) -> &[u8] {
        self.sealed.0.orders.get(i)
    }

    pub(super) fn data(&self, i: usize) -> &[u8] {
        self.sealed.0.datas.get(i)
    }

    #[inline]
    pub(super) fn count(&self, i: usize) -> i64 {
        self.tally.count(i, &self.sealed.0.counts)
    }

    pub(super) fn entry(&self, i: usize) -> Entry<'_> {
        Entry { order: self.order(i), data: self.data(i), count: self.count(i) }
    }

    /// Sets the count of an entry that is there.
    pub(super) fn set_count(&mut self, i: usize, count: i64) {
        self.tally.set(i, count, &self.sealed.0.counts, self.sealed.len());
    }

    /// The first entry of `span` that is not below `order`. The nearer `hint` is to it, the less is looked at.
    pub(super) fn lower<O: Order>(&self, span: &Range<usize>, order: &[u8], hint: Option<usize>) -> usize {
        let below = |i: usize| O::compare(self.order(i), order) == Ordering::Less;
        // Most changes arrive in order.
        if hint.is_some() || span.len() < LONG || below(span.end - 1) {
            return lower(span, hint, below);
        }
        let fences = &self.sealed.0.fences;
        let first = span.start.div_ceil(STRIDE);
        let within = if fences.is_empty() { 0 } else { ((span.end - 1) / STRIDE + 1).saturating_sub(first) };
        let prefix = O::prefix(order);
        let at = |i: usize| fences.huge(first + i);
        // Moments are often evenly spread.
        let guess = within.checked_sub(1).map(|last| {
            let (least, most) = (at(0), at(last));
            let (ahead, width) = (prefix.saturating_sub(least) as f64, most.saturating_sub(least) as f64);
            (ahead / width.max(1.0) * within as f64) as usize
        });
        let before = lower(&(0..within), guess, |i| at(i) < prefix);
        let same = (before..within.min(before + 2)).take_while(|i| at(*i) == prefix).count();
        let same = match same {
            // Many are alike.
            2.. => lower(&(before..within), None, |i| at(i) == prefix) - before,
            few => few,
        };
        let low = if before == 0 { span.start } else { (first + before - 1) * STRIDE + 1 };
        let high = if within == 0 { span.end } else { ((first + before + same) * STRIDE).min(span.end) };
        lower(&(low..high), None, below)
    }

    /// The first live entry of `from..end`.
    pub(super) fn next_live(&self, from: usize, end: usize) -> Option<usize> {
        match self.tally.live() {
            None => Some(from),
            Some(live) => live.next(from),
        }
        .filter(|i| *i < end)
    }

    /// The last live entry of `start..before`.
    pub(super) fn previous_live(&self, before: usize, start: usize) -> Option<usize> {
        match self.tally.live() {
            None => before.checked_sub(1),
            Some(live) => live.previous(before),
        }
        .filter(|i| *i >= start)
    }
}
