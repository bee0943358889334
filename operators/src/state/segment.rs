//! Sorted runs of entries in flat memory.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::list::{ByteList, Ends, Packed};
use super::live::Live;
use super::{Entry, Order};
use crate::row::stable_hash;
use crate::snapshot::{SnapshotError, Source, put_number};

/// Of so many entries the prefix of one is kept.
const STRIDE: usize = 8;
/// A key with so many entries is searched by prefixes first.
const LONG: usize = 8 * STRIDE;

/// Sorted entries while they are put together.
#[derive(Debug, Default)]
pub(super) struct Draft {
    hashes: Vec<u64>,
    keys: ByteList,
    /// The entries of each key.
    spans: Ends,
    orders: ByteList,
    datas: ByteList,
    /// Count of each entry; empty while all are one.
    counts: Vec<i64>,
    /// [`Order::prefix`] of every [`STRIDE`]-th entry.
    fences: Vec<u128>,
}

impl Draft {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.hashes.capacity() * 8
            + self.keys.bytes()
            + self.spans.bytes()
            + self.orders.bytes()
            + self.datas.bytes()
            + self.counts.capacity() * 8
            + self.fences.capacity() * 16
    }

    /// Appends an entry to the key that the next [`Draft::close_key`] names.
    pub(super) fn push<O: Order>(&mut self, order: &[u8], data: &[u8], count: i64) {
        if self.len().is_multiple_of(STRIDE) {
            self.fences.push(O::prefix(order));
        }
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
        let sum = |size: fn(&Sealed) -> usize| parts.iter().map(|part| size(&part.sealed)).sum();
        self.hashes.reserve(sum(|part| part.0.hashes.len()));
        self.keys.reserve(sum(|part| part.0.keys.byte_len()));
        self.orders.reserve(sum(|part| part.0.orders.byte_len()));
        self.datas.reserve(sum(|part| part.0.datas.byte_len()));
        self.fences.reserve(sum(Sealed::len) / STRIDE + 1);
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
    pub(super) fn seal(mut self) -> Segment {
        self.hashes.shrink_to_fit();
        self.spans.shrink();
        self.fences.shrink_to_fit();
        let sealed = Sealed(Arc::new(Body {
            hashes: self.hashes,
            keys: self.keys.pack(),
            spans: self.spans,
            orders: self.orders.pack(),
            datas: self.datas.pack(),
            label: OnceLock::new(),
        }));
        Segment { fences: OnceCell::from(self.fences), ..Segment::new(sealed, self.counts) }
    }
}

/// Entries of many keys that never change, apart from their counts, which are kept beside them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sealed(Arc<Body>);

#[derive(Debug)]
struct Body {
    /// Hashes of `keys`; recomputed when they are read back.
    hashes: Vec<u64>,
    keys: Packed,
    /// The entries of each key.
    spans: Ends,
    orders: Packed,
    datas: Packed,
    label: OnceLock<u64>,
}

impl Sealed {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.orders.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that whoever stores the entries has given them, to know them again in a later snapshot.
    #[must_use]
    pub fn label(&self) -> Option<u64> {
        self.0.label.get().copied()
    }

    /// Gives them a number, once; later calls change nothing.
    pub fn set_label(&self, label: u64) {
        let _ = self.0.label.set(label);
    }

    fn bytes(&self) -> usize {
        let body = &self.0;
        body.hashes.capacity() * 8 + body.keys.bytes() + body.spans.bytes() + body.orders.bytes() + body.datas.bytes()
    }

    /// Length of what [`Sealed::encode`] appends.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let body = &self.0;
        body.keys.encoded_len() + body.spans.encoded_len() + body.orders.encoded_len() + body.datas.encoded_len()
    }

    /// Appends the entries as bytes: the keys, the number of entries of each, their orders, their data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.0.keys.encode(out);
        self.0.spans.encode(out);
        self.0.orders.encode(out);
        self.0.datas.encode(out);
    }

    /// Reads back what [`Sealed::encode`] wrote. The memory of `bytes` is shared, not copied.
    ///
    /// # Errors
    /// If the content contradicts itself. That it is what was written is for a checksum to say.
    pub fn decode(bytes: Bytes) -> Result<Sealed, SnapshotError> {
        Sealed::read(&mut Source::new(bytes)).ok_or(SnapshotError::Damaged)
    }

    fn read(source: &mut Source) -> Option<Sealed> {
        let keys = Packed::decode(source)?;
        let spans = Ends::decode(source)?;
        let (orders, datas) = (Packed::decode(source)?, Packed::decode(source)?);
        let fits = source.is_empty()
            && keys.len() == spans.len()
            && spans.total() == orders.len()
            && orders.len() == datas.len();
        let hashes: Vec<u64> = (0..keys.len()).map(|k| stable_hash(keys.get(k))).collect();
        let sorted = hashes.iter().zip(0..).is_sorted_by(|(a, i), (b, j)| (*a, keys.get(*i)) < (*b, keys.get(*j)));
        let body = Body { hashes, keys, spans, orders, datas, label: OnceLock::new() };
        (fits && sorted).then(|| Sealed(Arc::new(body)))
    }
}

/// Entries at one moment: what never changes, and the counts of then.
#[derive(Clone, Debug)]
pub struct Frozen {
    sealed: Sealed,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum Counts {
    /// Those that are not one, by place.
    Few(Vec<(usize, i64)>),
    All(Vec<i64>),
}

impl Frozen {
    /// The entries.
    #[must_use]
    pub fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// The counts as bytes; none if all are one.
    #[must_use]
    pub fn counts(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match &self.counts {
            Counts::Few(few) => {
                for (place, count) in few {
                    put_number(&mut out, *place as u64);
                    put_number(&mut out, count.cast_unsigned());
                }
            }
            Counts::All(all) => {
                // No place: it is beyond the end.
                put_number(&mut out, u64::MAX);
                all.iter().for_each(|count| put_number(&mut out, count.cast_unsigned()));
            }
        }
        out
    }

    /// Entries with the counts that [`Frozen::counts`] wrote.
    ///
    /// # Errors
    /// If the counts are not those of such entries.
    pub fn new(sealed: Sealed, counts: Bytes) -> Result<Frozen, SnapshotError> {
        let counts = Counts::read(counts, sealed.len()).ok_or(SnapshotError::Damaged)?;
        Ok(Frozen { sealed, counts })
    }

    /// As they lie in state, as far as `keep` says yes to the hash of the key.
    pub(super) fn thaw<O: Order>(&self, keep: &dyn Fn(u64) -> bool) -> Segment {
        let whole = Segment::new(self.sealed.clone(), self.counts.clone().all(self.sealed.len()));
        if self.sealed.0.hashes.iter().all(|hash| keep(*hash)) {
            return whole;
        }
        let mut part = Draft::default();
        for k in (0..whole.key_count()).filter(|k| keep(whole.hash(*k))) {
            for entry in whole.span(k).map(|i| whole.entry(i)).filter(|entry| entry.count != 0) {
                part.push::<O>(entry.order, entry.data, entry.count);
            }
            part.close_key(whole.hash(k), whole.key(k));
        }
        part.seal()
    }
}

/// Where `prefix` is among `fences` if these are evenly spread, as moments often are.
fn guess(fences: &[u128], prefix: u128) -> Option<usize> {
    let (first, last) = (*fences.first()?, *fences.last()?);
    let (ahead, width) = (prefix.saturating_sub(first) as f64, last.saturating_sub(first) as f64);
    Some((ahead / width.max(1.0) * fences.len() as f64) as usize)
}

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

impl Counts {
    fn of(counts: &[i64]) -> Counts {
        let few = counts.iter().filter(|count| **count != 1).count();
        if few > counts.len() / 2 {
            return Counts::All(counts.to_vec());
        }
        Counts::Few(counts.iter().copied().enumerate().filter(|(_, count)| *count != 1).collect())
    }

    fn read(bytes: Bytes, entries: usize) -> Option<Counts> {
        let mut source = Source::new(bytes);
        let mut few = Vec::new();
        while !source.is_empty() {
            let place = source.number()?;
            if place == u64::MAX && few.is_empty() {
                let all = source.bytes(entries.checked_mul(8)?)?;
                let all = all.as_chunks().0.iter().map(|count| i64::from_le_bytes(*count)).collect();
                return source.is_empty().then_some(Counts::All(all));
            }
            let place = usize::try_from(place).ok().filter(|place| *place < entries)?;
            few.push((place, source.number()?.cast_signed()));
        }
        Some(Counts::Few(few))
    }

    /// One count an entry, or nothing where all are one.
    fn all(self, entries: usize) -> Vec<i64> {
        match self {
            Counts::All(all) => all,
            Counts::Few(few) if few.is_empty() => Vec::new(),
            Counts::Few(few) => {
                let mut all = vec![1; entries];
                for (place, count) in few {
                    if let Some(slot) = all.get_mut(place) {
                        *slot = count;
                    }
                }
                all
            }
        }
    }
}

/// Entries sorted by (hash of the key, key, order), as they lie in state.
///
/// The bytes never change. Counts do: an entry whose count becomes zero is dead, is skipped by
/// navigation, and disappears at the next merge.
#[derive(Debug)]
pub(super) struct Segment {
    sealed: Sealed,
    /// Count of each entry; empty while all are one.
    counts: Vec<i64>,
    /// The entries with a positive count; absent while all are positive.
    live: Option<Live>,
    dead: usize,
    /// [`Order::prefix`] of every [`STRIDE`]-th entry. Of what was read back they are made when a long key is searched.
    fences: OnceCell<Vec<u128>>,
}

impl Segment {
    fn new(sealed: Sealed, counts: Vec<i64>) -> Self {
        let bound = sealed.len();
        let (mut live, mut dead) = (None, 0);
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count <= 0) {
            live.get_or_insert_with(|| Live::all(bound)).set(i, false);
            dead += usize::from(*count == 0);
        }
        Segment { sealed, counts, live, dead, fences: OnceCell::new() }
    }

    /// What the segment holds now.
    pub(super) fn freeze(&self) -> Frozen {
        Frozen { sealed: self.sealed.clone(), counts: Counts::of(&self.counts) }
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
        self.dead
    }

    pub(super) fn bytes(&self) -> usize {
        self.sealed.bytes() + self.counts.capacity() * 8 + self.fences.get().map_or(0, |fences| fences.capacity() * 16)
    }

    // ------------------------------------------------------------------ keys

    pub(super) fn key_count(&self) -> usize {
        self.sealed.0.hashes.len()
    }

    pub(super) fn hash(&self, k: usize) -> u64 {
        self.sealed.0.hashes.get(k).copied().unwrap_or(u64::MAX)
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
        while self.sealed.0.hashes.get(k) == Some(&hash) {
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
        let count = self.sealed.0.hashes.len();
        let place = |hash: u64| ((u128::from(hash) * count as u128) >> 64) as usize;
        let guess = place(hash);
        let guess = match self.sealed.0.hashes.get(guess) {
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
        let within = self.sealed.0.hashes.get(low..high.min(count)).unwrap_or_default();
        low + within.partition_point(|found| *found < hash)
    }

    // ------------------------------------------------------------------ entries

    pub(super) fn order(&self, i: usize) -> &[u8] {
        self.sealed.0.orders.get(i)
    }

    pub(super) fn data(&self, i: usize) -> &[u8] {
        self.sealed.0.datas.get(i)
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

    /// The first entry of `span` that is not below `order`. The nearer `hint` is to it, the less is looked at.
    pub(super) fn lower<O: Order>(&self, span: &Range<usize>, order: &[u8], hint: Option<usize>) -> usize {
        let below = |i: usize| O::compare(self.order(i), order) == Ordering::Less;
        // Most changes arrive in order.
        if hint.is_some() || span.len() < LONG || below(span.end - 1) {
            return lower(span, hint, below);
        }
        let fences =
            self.fences.get_or_init(|| (0..self.len()).step_by(STRIDE).map(|i| O::prefix(self.order(i))).collect());
        let first = span.start.div_ceil(STRIDE);
        let within = fences.get(first..=(span.end - 1) / STRIDE).unwrap_or_default();
        let prefix = O::prefix(order);
        let at = |i: usize| within.get(i).copied().unwrap_or(u128::MAX);
        let before = lower(&(0..within.len()), guess(within, prefix), |i| at(i) < prefix);
        let same =
            within.get(before..).unwrap_or_default().iter().take_while(|fence| **fence == prefix).take(2).count();
        let same = match same {
            // Many are alike.
            2.. => within.get(before..).unwrap_or_default().partition_point(|fence| *fence == prefix),
            few => few,
        };
        let low = if before == 0 { span.start } else { (first + before - 1) * STRIDE + 1 };
        let high = ((first + before + same) * STRIDE).min(span.end);
        lower(&(low..high), None, below)
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
