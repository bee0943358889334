//! Sorted runs of entries in flat memory.

use std::cmp::Ordering;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::list::{ByteList, Ends};
use super::live::Live;
use super::{Entry, Order};
use crate::row::stable_hash;

/// Entries sorted by (hash of the key, key, order).
///
/// The bytes never change. Counts do: an entry whose count becomes zero is dead, is skipped by
/// navigation, and disappears at the next merge.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Segment {
    /// Hashes of `keys`; recomputed when a snapshot is read.
    #[serde(skip)]
    hashes: Vec<u64>,
    keys: ByteList,
    /// The entries of each key.
    spans: Ends,
    orders: ByteList,
    datas: ByteList,
    /// Count of each entry; empty while all are one.
    counts: Vec<i64>,
    /// The entries with a positive count; absent while all are positive.
    #[serde(skip)]
    live: Option<Live>,
    #[serde(skip)]
    dead: usize,
}

impl Segment {
    /// Number of entries, dead ones included.
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.orders.len() == 0
    }

    /// Entries with a count of zero.
    pub(super) fn dead(&self) -> usize {
        self.dead
    }

    pub(super) fn bytes(&self) -> usize {
        self.hashes.capacity() * 8
            + self.keys.bytes()
            + self.spans.bytes()
            + self.orders.bytes()
            + self.datas.bytes()
            + self.counts.capacity() * 8
    }

    // ------------------------------------------------------------------ building

    /// Appends an entry to the key that the next [`Segment::close_key`] names.
    pub(super) fn push(&mut self, order: &[u8], data: &[u8], count: i64) {
        if count != 1 && self.counts.is_empty() {
            self.counts.resize(self.len(), 1);
        }
        self.orders.push(order);
        self.datas.push(data);
        if count != 1 || !self.counts.is_empty() {
            self.counts.push(count);
        }
    }

    /// Makes room for the entries of `parts`.
    pub(super) fn reserve(&mut self, parts: &[Segment]) {
        let sum = |size: fn(&Segment) -> usize| parts.iter().map(size).sum();
        self.hashes.reserve(sum(|part| part.hashes.len()));
        self.keys.reserve(sum(|part| part.keys.byte_len()));
        self.orders.reserve(sum(|part| part.orders.byte_len()));
        self.datas.reserve(sum(|part| part.datas.byte_len()));
    }

    /// Gives the entries pushed since the last call to `key`. Without entries there is no key.
    pub(super) fn close_key(&mut self, hash: u64, key: &[u8]) {
        let entries = self.len() - self.spans.total();
        if entries > 0 {
            self.hashes.push(hash);
            self.keys.push(key);
            self.spans.push(entries);
        }
    }

    /// Ends the building: from here on entries may die.
    pub(super) fn seal(&mut self) {
        self.live = None;
        self.dead = 0;
        let bound = self.len();
        for (i, count) in self.counts.iter().enumerate() {
            if *count <= 0 {
                self.live.get_or_insert_with(|| Live::all(bound)).set(i, false);
                self.dead += usize::from(*count == 0);
            }
        }
    }

    /// Recomputes what a snapshot leaves out. False if the content contradicts itself.
    pub(super) fn rebuild<O: Order>(&mut self) -> bool {
        let lengths = self.keys.len() == self.spans.len()
            && self.spans.total() == self.orders.len()
            && self.orders.len() == self.datas.len()
            && (self.counts.is_empty() || self.counts.len() == self.orders.len());
        let ends =
            self.keys.consistent() && self.spans.consistent() && self.orders.consistent() && self.datas.consistent();
        if !lengths || !ends {
            return false;
        }
        self.hashes = (0..self.keys.len()).map(|k| stable_hash(self.keys.get(k))).collect();
        let keys =
            (1..self.keys.len()).all(|k| (self.hash(k - 1), self.keys.get(k - 1)) < (self.hash(k), self.keys.get(k)));
        let orders = (0..self.keys.len()).all(|k| {
            let span = self.span(k);
            (span.start + 1..span.end).all(|i| O::compare(self.order(i - 1), self.order(i)) == Ordering::Less)
        });
        self.seal();
        keys && orders
    }

    // ------------------------------------------------------------------ keys

    pub(super) fn key_count(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn hash(&self, k: usize) -> u64 {
        self.hashes.get(k).copied().unwrap_or(u64::MAX)
    }

    pub(super) fn key(&self, k: usize) -> &[u8] {
        self.keys.get(k)
    }

    /// The entries of the `k`-th key.
    pub(super) fn span(&self, k: usize) -> Range<usize> {
        self.spans.range(k)
    }

    /// The entries of `key`, if it is here.
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<Range<usize>> {
        let mut k = self.lower_hash(hash);
        while self.hashes.get(k) == Some(&hash) {
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
        let count = self.hashes.len();
        let place = |hash: u64| ((u128::from(hash) * count as u128) >> 64) as usize;
        let guess = place(hash);
        let guess = match self.hashes.get(guess) {
            None => return 0,
            Some(found) if *found < hash => (guess + place(hash - found)).min(count - 1),
            Some(found) => guess.saturating_sub(place(found - hash)),
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
        let within = self.hashes.get(low..high.min(count)).unwrap_or_default();
        low + within.partition_point(|found| *found < hash)
    }

    // ------------------------------------------------------------------ entries

    pub(super) fn order(&self, i: usize) -> &[u8] {
        self.orders.get(i)
    }

    pub(super) fn data(&self, i: usize) -> &[u8] {
        self.datas.get(i)
    }

    pub(super) fn count(&self, i: usize) -> i64 {
        if self.counts.is_empty() { 1 } else { self.counts.get(i).copied().unwrap_or(0) }
    }

    pub(super) fn entry(&self, i: usize) -> Entry<'_> {
        Entry { order: self.order(i), data: self.data(i), count: self.count(i) }
    }

    pub(super) fn set_count(&mut self, i: usize, count: i64) {
        if self.counts.is_empty() {
            self.counts.resize(self.len(), 1);
        }
        let bound = self.len();
        if let Some(slot) = self.counts.get_mut(i) {
            self.dead = self.dead + usize::from(count == 0) - usize::from(*slot == 0);
            *slot = count;
            if count <= 0 || self.live.is_some() {
                self.live.get_or_insert_with(|| Live::all(bound)).set(i, count > 0);
            }
        }
    }

    /// The first entry of `span` that is not below `order`.
    pub(super) fn lower<O: Order>(&self, span: &Range<usize>, order: &[u8]) -> usize {
        let (mut low, mut high) = (span.start, span.end);
        while low < high {
            let middle = low.midpoint(high);
            if O::compare(self.order(middle), order) == Ordering::Less { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The first live entry of `from..end`.
    pub(super) fn next_live(&self, from: usize, end: usize) -> Option<usize> {
        match &self.live {
            None => Some(from),
            Some(live) => live.next(from),
        }
        .filter(|i| *i < end)
    }

    /// The last live entry of `start..before`.
    pub(super) fn previous_live(&self, before: usize, start: usize) -> Option<usize> {
        match &self.live {
            None => before.checked_sub(1),
            Some(live) => live.previous(before),
        }
        .filter(|i| *i >= start)
    }
}
