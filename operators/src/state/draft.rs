//! Sorted entries while they are put together.

use std::sync::Arc;

use super::column::{BUFFER, Column, Spool};
use super::list::{ByteList, Ends};
use super::sealed::{Body, Sealed};
use super::segment::Segment;
use super::shelf::{Lease, Shelf};
use super::{Order, stored::Stored};

/// Of so many entries the prefix of one is kept.
pub(super) const STRIDE: usize = 8;
/// A key with so many entries is searched by prefixes first.
pub(super) const LONG: usize = 8 * STRIDE;

/// Sorted entries while they are put together.
#[derive(Debug, Default)]
pub(super) struct Draft {
    hashes: Column,
    keys: ByteList,
    /// The entries of each key.
    spans: Ends,
    orders: ByteList,
    datas: ByteList,
    /// Count of each entry; empty while all are one.
    counts: Column,
    /// [`Order::prefix`] of every [`STRIDE`]-th entry.
    fences: Column,
    /// Entries with a negative count.
    negative: usize,
    /// Entries of the key that has most.
    longest: usize,
    /// Where the columns go that do not fit into memory, and what has come since they last went there.
    spool: Option<Spool>,
    pending: usize,
    lease: Option<Lease>,
}

impl Draft {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        let Draft { hashes, keys, spans, orders, datas, counts, fences, .. } = self;
        [hashes, counts, fences].map(Column::bytes).iter().sum::<usize>()
            + [&spans.small, &spans.large].map(Column::bytes).iter().sum::<usize>()
            + [keys, orders, datas]
                .iter()
                .map(|list| list.bytes.bytes() + list.ends.small.bytes() + list.ends.large.bytes())
                .sum::<usize>()
    }

    fn columns(&mut self) -> [&mut Column; 14] {
        let Draft { hashes, keys, spans, orders, datas, counts, fences, .. } = self;
        [
            hashes,
            &mut keys.ends.small,
            &mut keys.ends.large,
            &mut keys.bytes,
            &mut spans.small,
            &mut spans.large,
            &mut orders.ends.small,
            &mut orders.ends.large,
            &mut orders.bytes,
            &mut datas.ends.small,
            &mut datas.ends.large,
            &mut datas.bytes,
            counts,
            fences,
        ]
    }

    /// A draft of the entries of `parts`, in memory if there is room. `None` if there is neither room nor a file.
    pub(super) fn of(parts: &[&Sealed], shelf: Option<&Arc<dyn Shelf>>) -> Option<Draft> {
        let mut draft = Draft::default();
        let sum = |size: fn(&Body) -> usize| parts.iter().map(|part| size(&part.0)).sum::<usize>();
        let entries = sum(|body| body.orders.len());
        let [keys, orders, datas] =
            [sum(|x| x.keys.byte_len()), sum(|x| x.orders.byte_len()), sum(|x| x.datas.byte_len())];
        let hashes = sum(|body| body.hashes.len());
        let fences = (entries / STRIDE + 1) * 16;
        if let Some(shelf) = shelf {
            draft.lease = Lease::asked(shelf, parts.iter().map(|part| part.size()).sum());
            if draft.lease.is_none() {
                let file = shelf.file()?;
                let [key_small, key_large] = draft.keys.ends.expect(parts.iter().map(|part| &part.0.keys.ends));
                let [order_small, order_large] = draft.orders.ends.expect(parts.iter().map(|part| &part.0.orders.ends));
                let [data_small, data_large] = draft.datas.ends.expect(parts.iter().map(|part| &part.0.datas.ends));
                let [span_small, span_large] = draft.spans.list(hashes / 8, entries);
                let bounds = [
                    hashes,
                    key_small,
                    key_large,
                    keys,
                    span_small,
                    span_large,
                    order_small,
                    order_large,
                    orders,
                    data_small,
                    data_large,
                    datas,
                    entries * 8,
                    fences,
                ];
                draft.spool = Some(Spool::new(file, draft.columns(), bounds));
                return Some(draft);
            }
        }
        draft.hashes.reserve(hashes);
        draft.keys.bytes.reserve(keys);
        draft.orders.bytes.reserve(orders);
        draft.datas.bytes.reserve(datas);
        draft.fences.reserve(fences);
        Some(draft)
    }

    /// Appends an entry to the key that the next [`Draft::close_key`] names.
    #[inline]
    pub(super) fn push<O: Order>(&mut self, order: &[u8], data: &[u8], count: i64) {
        if self.len().is_multiple_of(STRIDE) {
            self.fences.push(&O::prefix(order).to_le_bytes());
        }
        if count != 1 && self.counts.is_empty() {
            self.count_all_once();
        }
        self.orders.push(order);
        self.datas.push(data);
        if count != 1 || !self.counts.is_empty() {
            self.counts.push(&count.to_le_bytes());
            self.negative += usize::from(count < 0);
        }
        if self.spool.is_some() {
            self.pending += order.len() + data.len() + 16;
            if self.pending >= BUFFER {
                self.write();
            }
        }
    }

    #[cold]
    fn count_all_once(&mut self) {
        for _ in 0..self.len() {
            self.counts.push(&1i64.to_le_bytes());
            if self.spool.is_some() && self.counts.waiting() >= BUFFER {
                self.write();
            }
        }
    }

    fn write(&mut self) {
        self.pending = 0;
        if let Some(mut spool) = self.spool.take() {
            spool.write(self.columns());
            self.spool = Some(spool);
        }
    }

    /// Gives the entries pushed since the last call to `key`. Without entries there is no key.
    pub(super) fn close_key(&mut self, hash: u64, key: &[u8]) {
        let entries = self.len() - self.spans.total();
        if entries > 0 {
            self.hashes.push(&hash.to_le_bytes());
            self.keys.push(key);
            self.spans.push(entries);
            self.longest = self.longest.max(entries);
        }
    }

    /// Ends the building: from here on entries may die. What has grown in memory goes into a file if there is no room for
    /// it. `None` if what was written to a file could not be.
    pub(super) fn seal(mut self, shelf: Option<&Arc<dyn Shelf>>) -> Option<Segment> {
        if self.longest < LONG {
            self.fences.clear();
        }
        if let Some(mut spool) = self.spool.take() {
            spool.write_rest(self.columns());
            let file = spool.finish()?;
            return self.filed(&file).map(Segment::of);
        }
        // What was reserved was a bound.
        self.lease = None;
        if let Some(shelf) = shelf {
            let bytes = self.columns().iter().map(|column| column.len()).sum();
            self.lease = Lease::asked(shelf, bytes);
            if self.lease.is_none() {
                if let Some(sealed) = self.move_out(shelf) {
                    return Some(Segment::of(sealed));
                }
                self.lease = Some(Lease::forced(shelf, bytes));
            }
        }
        Some(Segment::of(Sealed(Arc::new(Body {
            hashes: self.hashes.pack(),
            keys: self.keys.pack(),
            spans: self.spans.pack(),
            orders: self.orders.pack(),
            datas: self.datas.pack(),
            counts: self.counts.pack(),
            fences: self.fences.pack(),
            negative: self.negative,
            in_memory: true,
            label: Default::default(),
            lease: self.lease,
        }))))
    }

    /// Writes what is in memory to a file. If that fails, all of it is still there.
    fn move_out(&mut self, shelf: &Arc<dyn Shelf>) -> Option<Sealed> {
        let file = shelf.file()?;
        let bounds = self.columns().map(|column| column.len());
        let mut spool = Spool::new(file, self.columns(), bounds);
        spool.copy(self.columns());
        self.filed(&spool.finish()?)
    }

    fn filed(&self, file: &bytes::Bytes) -> Option<Sealed> {
        Some(Sealed(Arc::new(Body {
            hashes: self.hashes.of(file)?,
            keys: self.keys.of(file)?,
            spans: self.spans.of(file)?,
            orders: self.orders.of(file)?,
            datas: self.datas.of(file)?,
            counts: self.counts.of(file)?,
            fences: if self.longest < LONG { Stored::default() } else { self.fences.of(file)? },
            negative: self.negative,
            in_memory: false,
            label: Default::default(),
            lease: None,
        })))
    }
}
