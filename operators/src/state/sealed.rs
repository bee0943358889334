//! Entries that never change, and what a snapshot has of them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::Order;
use super::draft::{Draft, STRIDE};
use super::list::{Bounds, Packed};
use super::segment::Segment;
use super::shelf::{Lease, Shelf};
use super::stored::{Check, Stored};
use super::tally::Tally;
use crate::snapshot::{Share, SnapshotError, put_number};

/// Entries of many keys that never change, apart from their counts, of which changes are kept beside them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sealed(pub(super) Arc<Body>);

#[derive(Debug)]
pub(super) struct Body {
    /// Hashes of `keys`.
    pub(super) hashes: Stored,
    pub(super) keys: Packed,
    /// The entries of each key.
    pub(super) spans: Bounds,
    pub(super) orders: Packed,
    pub(super) datas: Packed,
    /// Count of each entry when they were sealed; empty where all were one.
    pub(super) counts: Stored,
    /// [`Order::prefix`] of every [`STRIDE`]-th entry; empty where no key is long.
    pub(super) fences: Stored,
    /// Entries with a negative count.
    pub(super) negative: usize,
    pub(super) in_memory: bool,
    pub(super) label: OnceLock<u64>,
    /// Room in memory, while they are there.
    #[allow(dead_code, reason = "given back when it is dropped")]
    pub(super) lease: Option<Lease>,
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

    /// Length of all bytes, wherever they are.
    pub(super) fn size(&self) -> usize {
        self.columns().iter().map(|column| column.len()).sum()
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        if self.0.in_memory { self.size() } else { 0 }
    }

    fn columns(&self) -> [&Stored; 14] {
        let body = &self.0;
        let ([k1, k2, k3], [s1, s2]) = (body.keys.columns(), body.spans.columns());
        let ([o1, o2, o3], [d1, d2, d3]) = (body.orders.columns(), body.datas.columns());
        [&body.hashes, k1, k2, k3, s1, s2, o1, o2, o3, d1, d2, d3, &body.counts, &body.fences]
    }

    fn directory(&self) -> Bytes {
        let body = &self.0;
        let mut out = Vec::new();
        for number in [body.negative, body.counts.len(), body.fences.len()] {
            put_number(&mut out, number as u64);
        }
        for ends in [&body.keys.ends, &body.spans, &body.orders.ends, &body.datas.ends] {
            ends.describe(&mut out);
        }
        out.into()
    }

    /// The entries as bytes, end to end: their memory is shared, not copied.
    #[must_use]
    pub fn parts(&self) -> Vec<Bytes> {
        let columns = self.columns().map(Stored::all);
        std::iter::once(self.directory()).chain(columns).filter(|part| !part.is_empty()).collect()
    }

    /// Length of the [`Sealed::parts`].
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.directory().len() + self.size()
    }

    /// Reads back what [`Sealed::parts`] gave. The memory of `bytes` is shared, not copied, and it is not looked at as a
    /// whole.
    ///
    /// # Errors
    /// If the lengths contradict each other. That the content is what was written is for a checksum to say.
    pub fn decode(bytes: Bytes) -> Result<Sealed, SnapshotError> {
        Sealed::read(bytes.into(), true).ok_or(SnapshotError::Damaged)
    }

    /// As [`Sealed::decode`], of bytes that lie in a file and are checked a part at a time, when it is first looked at,
    /// against the [`checksums`](super::checksums) that `sums` are. The `alarm` is raised if one does not match: what was
    /// done with the entries since they were opened is then worth nothing.
    ///
    /// # Errors
    /// If there is not one checksum a chunk, or the lengths contradict each other.
    pub fn open(bytes: Bytes, sums: Bytes, alarm: Arc<AtomicBool>) -> Result<Sealed, SnapshotError> {
        let check = Check::new(bytes.clone(), sums, alarm).ok_or(SnapshotError::Damaged)?;
        Sealed::read(Stored::checked(bytes, Some(check)), false).ok_or(SnapshotError::Damaged)
    }

    fn read(mut source: Stored, in_memory: bool) -> Option<Sealed> {
        let mut number = || usize::try_from(source.number()?).ok();
        let (negative, counts, fences) = (number()?, number()?, number()?);
        let (keys, spans) = (Bounds::described(&mut source)?, Bounds::described(&mut source)?);
        let (orders, datas) = (Bounds::described(&mut source)?, Bounds::described(&mut source)?);
        let hashes = source.split_to(keys.len().checked_mul(8)?)?;
        let mut list = |shape: super::list::Shape| {
            let ends = shape.read(&mut source)?;
            let bytes = source.split_to(ends.total())?;
            Some(Packed { ends, bytes })
        };
        let keys = list(keys)?;
        let spans = spans.read(&mut source)?;
        let mut list = |shape: super::list::Shape| {
            let ends = shape.read(&mut source)?;
            let bytes = source.split_to(ends.total())?;
            Some(Packed { ends, bytes })
        };
        let (orders, datas) = (list(orders)?, list(datas)?);
        let entries = orders.len();
        let (counts, fences) = (source.split_to(counts)?, source.split_to(fences)?);
        let fits = source.is_empty()
            && keys.len() == spans.len()
            && spans.total() == entries
            && datas.len() == entries
            && (counts.is_empty() || counts.len() / 8 == entries)
            && (fences.is_empty() || fences.len() / 16 == entries.div_ceil(STRIDE));
        let (label, lease) = (OnceLock::new(), None);
        let body = Body { hashes, keys, spans, orders, datas, counts, fences, negative, in_memory, label, lease };
        fits.then(|| Sealed(Arc::new(body)))
    }
}

/// Entries at one moment: what never changes, and the counts of then.
#[derive(Clone, Debug)]
pub struct Frozen {
    sealed: Sealed,
    counts: Bytes,
    changes: u64,
}

impl Frozen {
    pub(super) fn of(sealed: &Sealed, tally: &Tally) -> Frozen {
        Frozen { sealed: sealed.clone(), counts: tally.encode(sealed.len()).into(), changes: tally.changes() }
    }

    /// The entries.
    #[must_use]
    pub fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// The counts that have changed since the entries were sealed, as bytes; none if there are none.
    #[must_use]
    pub fn counts(&self) -> &Bytes {
        &self.counts
    }

    /// How often counts have changed since the entries were sealed or thawed: while this is the same, so are they.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Entries with the counts that [`Frozen::counts`] wrote.
    ///
    /// # Errors
    /// If the counts are not those of such entries.
    pub fn new(sealed: Sealed, counts: Bytes) -> Result<Frozen, SnapshotError> {
        Tally::decode(&counts, sealed.len()).ok_or(SnapshotError::Damaged)?;
        Ok(Frozen { sealed, counts, changes: 0 })
    }

    /// As they lie in state, as far as they are of the share. `None` if there is no room for them.
    pub(super) fn thaw<O: Order>(&self, share: Share, shelf: Option<&Arc<dyn Shelf>>) -> Option<Segment> {
        let tally = Tally::decode(&self.counts, self.sealed.len()).unwrap_or_default();
        let whole = Segment::new(self.sealed.clone(), tally);
        if share.is_all() || (0..whole.key_count()).all(|k| share.has(whole.hash(k))) {
            return Some(whole);
        }
        let mut part = Draft::of(&[&self.sealed], shelf)?;
        for k in (0..whole.key_count()).filter(|k| share.has(whole.hash(*k))) {
            for entry in whole.span(k).map(|i| whole.entry(i)).filter(|entry| entry.count != 0) {
                part.push::<O>(entry.order, entry.data, entry.count);
            }
            part.close_key(whole.hash(k), whole.key(k));
        }
        part.seal(shelf)
    }
}
