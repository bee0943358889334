//! Keyed state: the one structure in which operators remember rows.

mod column;
mod draft;
mod key;
mod list;
mod live;
mod merge;
mod overlay;
mod sealed;
mod segment;
mod shelf;
mod stored;
mod tally;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::row::{Row, stable_hash};
use crate::snapshot::{Share, SnapshotError};
use draft::Draft;
pub use key::KeyMut;
use key::{Size, Span};
use merge::Merge;
use overlay::{HashedKey, Overlay};
pub use sealed::{Frozen, Sealed};
use segment::Segment;
pub use shelf::{Shelf, ShelfFile};
pub use stored::{CHUNK, checksums};

/// Entries in the overlay before it becomes a segment, at least.
const OVERLAY: usize = 1 << 12;
/// The overlay may hold this part of all entries (at the price of a few words more an entry), ...
const SHARE: usize = 16;
/// ... but not more than so many times the least, since whoever comes next waits until it is a segment.
const LARGEST: usize = 4;
/// Entries of a single key in the overlay before it becomes a segment: they sit in one vector.
const CROWD: usize = 1 << 10;
/// Entries that a merge under way moves for each entry that comes, and each time a key is looked up.
const FUEL: usize = 32;
/// A segment is at least this many times larger than all younger ones together.
const GROWTH: usize = 4;

/// The order of the entries of one key.
pub trait Order: 'static {
    /// Compares two `order` byte strings. Equal means the same identity.
    fn compare(a: &[u8], b: &[u8]) -> Ordering;

    /// A number that never descends as `order` ascends. The more it tells apart, the less of a long key is looked at
    /// when something is searched there.
    fn prefix(order: &[u8]) -> u128;
}

/// The first sixteen bytes as a number, shorter strings before longer ones.
pub(crate) fn prefix(bytes: &[u8]) -> u128 {
    let mut head = [0; 16];
    for (slot, byte) in head.iter_mut().zip(bytes) {
        *slot = *byte;
    }
    u128::from_be_bytes(head)
}

/// Entries in the order of their bytes.
#[derive(Debug)]
pub struct Bytewise;

impl Order for Bytewise {
    fn compare(a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    fn prefix(order: &[u8]) -> u128 {
        prefix(order)
    }
}

/// One entry of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What identifies the entry within its key, and where it stands.
    pub order: &'a [u8],
    /// What is stored beside it.
    pub data: &'a [u8],
    /// Its multiplicity, never zero.
    pub count: i64,
}

/// An ordered multimap from keys to entries: `key -> (order -> (data, count))`.
///
/// Segments, sorted and in flat memory, lie under a small mutable overlay. An entry is in one
/// place only: the overlay or one segment, in which its count can change but its bytes cannot.
/// When the overlay is full it becomes a segment, and segments merge so that each is several times
/// larger than all younger ones together. A merge goes on a few entries at a time, each time a key
/// is looked up, in proportion to the entries that have come, so no change waits for one. On a
/// [`Shelf`], segments for which memory has no room are in files, and everything else is the same.
///
/// Entries whose count is negative are kept, since the insertion may still come, but navigation
/// ([`KeyMut::first`], [`KeyMut::before`], ...) sees positive counts only.
///
/// Cost: finding a key is a binary search in each of the O(log n) segments; every operation on it
/// another one within the key. Merging costs O(log n) a change, amortised.
#[derive(Debug)]
pub struct KeyedState<O: Order = Bytewise> {
    overlay: Overlay,
    /// From old to young.
    segments: Vec<Segment>,
    merge: Option<Merge>,
    size: Size,
    limit: usize,
    /// The spans of the key at hand, here to reuse the allocation.
    spans: Vec<Span>,
    shelf: Option<Arc<dyn Shelf>>,
    /// The shelf has failed: segments stay as they are.
    stuck: bool,
    order: PhantomData<O>,
}

impl<O: Order> Default for KeyedState<O> {
    fn default() -> Self {
        KeyedState {
            overlay: Overlay::default(),
            segments: Vec::new(),
            merge: None,
            size: Size::default(),
            limit: OVERLAY,
            spans: Vec::new(),
            shelf: None,
            stuck: false,
            order: PhantomData,
        }
    }
}

impl<O: Order> KeyedState<O> {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// State with another size of the overlay, so that little data makes many segments, most of which are in files.
    #[cfg(test)]
    pub(crate) fn with_overlay(limit: usize) -> Self {
        let shelf: Arc<dyn Shelf> = Arc::new(crate::testing::TestShelf::new(1 << 12));
        KeyedState { limit, shelf: Some(shelf), ..Self::default() }
    }

    /// Puts the segments that will be made on a shelf. Those that are there stay where they are.
    pub fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.shelf = Some(Arc::clone(shelf));
    }

    /// Number of entries with a count other than zero.
    #[must_use]
    pub fn len(&self) -> usize {
        self.size.entries
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size.entries == 0
    }

    /// Memory in use, in bytes, without the allocator's own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(Segment::bytes).sum::<usize>()
            + self.overlay.bytes()
            + self.merge.as_ref().map_or(0, Merge::bytes)
    }

    /// The entries of `key`, to read and to change.
    pub fn at(&mut self, key: &Row) -> KeyMut<'_, O> {
        self.maintain();
        let key = HashedKey::new(key);
        self.spans.clear();
        for (segment, part) in self.segments.iter().enumerate() {
            if let Some(entries) = part.find(key.hash, &key.key) {
                self.spans.push(Span::new(segment, entries));
            }
        }
        let cells = self.overlay.take(&key);
        KeyMut {
            kept: cells.is_some(),
            near: Default::default(),
            cells: cells.unwrap_or_default(),
            key,
            overlay: &mut self.overlay,
            segments: &mut self.segments,
            merge: &mut self.merge,
            spans: &self.spans,
            size: &mut self.size,
            crowd: self.limit.min(CROWD),
            order: PhantomData,
        }
    }

    /// Whether anything is, or recently was, stored under `key`.
    #[must_use]
    pub fn knows(&self, key: &Row) -> bool {
        let key = HashedKey::new(key);
        self.overlay.contains(&key) || self.segments.iter().any(|segment| segment.find(key.hash, &key.key).is_some())
    }

    /// The `limit` least live entries of `key`; fewer if there are not as many.
    #[must_use]
    pub fn least(&self, key: &Row, limit: usize) -> Vec<Entry<'_>> {
        let key = HashedKey::new(key);
        let stored = self.segments.iter().filter_map(|segment| Some((segment, segment.find(key.hash, &key.key)?)));
        let stored = stored.flat_map(|(segment, span)| span.map(|i| segment.entry(i)).filter(alive).take(limit));
        let mut least: Vec<Entry<'_>> = self.overlay.entries(&key).filter(alive).take(limit).chain(stored).collect();
        least.sort_by(|a, b| O::compare(a.order, b.order));
        least.truncate(limit);
        least
    }

    /// All keys with entries, each once, in an order that depends on the keys alone.
    #[must_use]
    pub fn keys(&self) -> Vec<Row> {
        let overlay = self.overlay.keys().cloned();
        let stored = self.segments.iter().flat_map(|segment| {
            (0..segment.key_count())
                .filter(|k| segment.span(*k).any(|i| segment.count(i) != 0))
                .map(|k| Row::from(segment.key(k)))
        });
        let mut keys: Vec<(u64, Row)> = overlay.chain(stored).map(|key| (stable_hash(&key), key)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// Adds a sorted run in one step. None of its keys may be in the state already.
    pub fn load(&mut self, run: Run<O>) {
        let small = run.segment.len() < self.limit.min(CROWD);
        let Some(segment) = self.sealed(run.segment) else { return };
        if small {
            for k in 0..segment.key_count() {
                let key = Row::from(segment.key(k));
                let mut at = self.at(&key);
                for entry in segment.span(k).map(|i| segment.entry(i)) {
                    at.set(entry.order, entry.data, entry.count);
                }
            }
        } else {
            self.size.entries += segment.len() - segment.dead();
            self.push(segment);
        }
    }

    /// As [`KeyedState::load`], if the run has become so large that it should not wait for the end of its epoch.
    pub fn absorb(&mut self, run: &mut Run<O>) {
        if self.shelf.as_ref().is_some_and(|shelf| run.segment.bytes() >= shelf.portion()) {
            self.load(std::mem::take(run));
        }
    }

    /// Entries that are in memory are never lost, so that `None` does not happen.
    fn sealed(&self, draft: Draft) -> Option<Segment> {
        draft.seal(self.shelf.as_ref())
    }

    fn maintain(&mut self) {
        // In proportion to the whole, so that growing rewrites an entry only a few times.
        if self.size.overlay >= (self.size.entries / SHARE).clamp(self.limit, LARGEST * self.limit)
            || self.size.crowded
            || self.overlay.wasteful()
        {
            self.flush();
        }
        let fresh = std::mem::take(&mut self.size.fresh);
        if self.merge.is_none()
            && let Some(parts) = self.plan()
        {
            self.merge = Merge::new(&self.segments, parts, self.shelf.as_ref());
            self.stuck = self.merge.is_none();
        }
        if let Some(merge) = &mut self.merge {
            // The more segments have come since it began, the faster it goes.
            let waiting = self.segments.len() - merge.end();
            let fuel = FUEL.min(self.limit / 4) * (1 + waiting) * fresh.max(1);
            if merge.step::<O>(&self.segments, fuel)
                && let Some(merge) = self.merge.take()
            {
                self.stuck = !merge.finish::<O>(&mut self.segments, self.shelf.as_ref());
            }
        }
    }

    /// Makes the overlay a segment.
    fn flush(&mut self) {
        let overlay = std::mem::take(&mut self.overlay);
        self.size.overlay = 0;
        self.size.crowded = false;
        if let Some(segment) = self.sealed(overlay.flat::<O>()) {
            self.push(segment);
        }
    }

    fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.segments.push(segment);
        }
    }

    /// The segments to merge next: one that is mostly dead, or the youngest ones as far as they
    /// are not several times smaller than the one before them.
    fn plan(&mut self) -> Option<Range<usize>> {
        if self.stuck {
            return None;
        }
        if self.size.decayed {
            let decayed = self.segments.iter().position(|segment| segment.dead() * 2 > segment.len());
            if let Some(i) = decayed {
                return Some(i..i + 1);
            }
            self.size.decayed = false;
        }
        let (mut start, mut total) = (self.segments.len(), 0);
        for (i, segment) in self.segments.iter().enumerate().rev() {
            if total > 0 && segment.len() >= GROWTH * total {
                break;
            }
            total += segment.len();
            start = i;
        }
        (self.segments.len() - start > 1).then_some(start..self.segments.len())
    }

    /// What the state holds now, for a [`Snapshot`](crate::Snapshot). Cost: the entries of the overlay, which become a
    /// segment, and a look at the counts of those segments in which some are not one.
    pub fn freeze(&mut self) -> Vec<Frozen> {
        self.flush();
        self.segments.iter().map(Segment::freeze).collect()
    }

    /// Adds entries of a snapshot, of the keys that are in the share. None of these may be in the state already. Cost: of
    /// a whole snapshot nothing but the counts that have changed; of a part, reading all of it.
    ///
    /// # Errors
    /// If a part has to be copied, and the shelf fails.
    pub fn thaw(&mut self, frozen: &[Frozen], share: Share) -> Result<(), SnapshotError> {
        for run in frozen {
            let segment = run.thaw::<O>(share, self.shelf.as_ref()).ok_or(SnapshotError::NoRoom)?;
            self.size.entries += segment.len() - segment.dead();
            self.push(segment);
        }
        // Merging wants the large ones first. One that is under way knows its parts by their place.
        if self.merge.is_none() {
            self.segments.sort_by_key(|segment| std::cmp::Reverse(segment.len()));
        }
        self.size.decayed = true;
        Ok(())
    }
}

fn alive(entry: &Entry<'_>) -> bool {
    entry.count > 0
}

/// A sorted run for [`KeyedState::load`].
#[derive(Debug)]
pub struct Run<O: Order = Bytewise> {
    segment: Draft,
    order: PhantomData<O>,
}

impl<O: Order> Default for Run<O> {
    fn default() -> Self {
        Run { segment: Draft::default(), order: PhantomData }
    }
}

impl<O: Order> Run<O> {
    /// Appends an entry to the key that the next [`Run::close_key`] names. Within a key, entries
    /// come in ascending order, each identity once.
    pub fn push(&mut self, order: &[u8], data: &[u8], count: i64) {
        if count != 0 {
            self.segment.push::<O>(order, data, count);
        }
    }

    /// Gives the entries pushed since the last call to `key`. Keys come ascending by
    /// ([`stable_hash`] of the key, key), each once.
    pub fn close_key(&mut self, key: &[u8]) {
        self.segment.close_key(stable_hash(key), key);
    }
}
