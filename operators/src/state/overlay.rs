//! The entries that have changed since the last segment was made.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::draft::Draft;
use super::{Entry, Order};
use crate::row::{Row, stable_hash};

/// Bytes of entries that are gone, before they are a reason to make a segment.
const WASTE: usize = 1 << 20;

/// A key with its [`stable_hash`], which is expensive enough to compute once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HashedKey {
    pub(super) hash: u64,
    pub(super) key: Row,
}

impl HashedKey {
    pub(super) fn new(key: &Row) -> Self {
        HashedKey { hash: stable_hash(key), key: key.clone() }
    }

    /// As it may be kept: the key at hand may be a part of much else.
    fn detached(&self) -> Self {
        HashedKey { hash: self.hash, key: self.key.detached() }
    }
}

impl Hash for HashedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Passes the hash of a [`HashedKey`] on.
#[derive(Default)]
struct PassOn(u64);

impl Hasher for PassOn {
    fn write(&mut self, _: &[u8]) {}
    // Routing leaves the low bits of all keys of a worker alike, but a table looks at the low bits.
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// An entry whose bytes are in the arena: its order, then its data.
#[derive(Debug)]
pub(super) struct Cell {
    at: usize,
    order: usize,
    data: usize,
    pub(super) count: i64,
}

/// Entries by key, sorted within the key.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    keys: HashMap<HashedKey, Vec<Cell>, BuildHasherDefault<PassOn>>,
    arena: Vec<u8>,
    /// Bytes in the arena that no cell refers to.
    wasted: usize,
}

impl Overlay {
    pub(super) fn contains(&self, key: &HashedKey) -> bool {
        self.keys.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Row> {
        self.keys.keys().map(|key| &key.key)
    }

    /// The entries of `key`, in order.
    pub(super) fn entries(&self, key: &HashedKey) -> impl Iterator<Item = Entry<'_>> {
        self.keys.get(key).into_iter().flatten().map(|cell| self.entry(cell))
    }

    /// Takes the cells of `key` out of their place, if there is one.
    pub(super) fn take(&mut self, key: &HashedKey) -> Option<Vec<Cell>> {
        self.keys.get_mut(key).map(std::mem::take)
    }

    /// Puts the cells of `key` in their place, which was there already if `kept`.
    pub(super) fn put(&mut self, key: &HashedKey, cells: Vec<Cell>, kept: bool) {
        match (kept, cells.is_empty()) {
            (false, true) => {}
            (true, true) => _ = self.keys.remove(key),
            (true, false) => {
                if let Some(slot) = self.keys.get_mut(key) {
                    *slot = cells;
                }
            }
            (false, false) => _ = self.keys.insert(key.detached(), cells),
        }
    }

    pub(super) fn cell(&mut self, order: &[u8], data: &[u8], count: i64) -> Cell {
        let at = self.arena.len();
        self.arena.extend_from_slice(order);
        self.arena.extend_from_slice(data);
        Cell { at, order: order.len(), data: data.len(), count }
    }

    pub(super) fn order(&self, cell: &Cell) -> &[u8] {
        self.arena.get(cell.at..cell.at + cell.order).unwrap_or_default()
    }

    fn data(&self, cell: &Cell) -> &[u8] {
        let start = cell.at + cell.order;
        self.arena.get(start..start + cell.data).unwrap_or_default()
    }

    pub(super) fn entry(&self, cell: &Cell) -> Entry<'_> {
        Entry { order: self.order(cell), data: self.data(cell), count: cell.count }
    }

    /// Another cell with the order of `cell`, which must not be used any more.
    pub(super) fn replace(&mut self, cell: &Cell, data: &[u8], count: i64) -> Cell {
        if self.data(cell) == data {
            return Cell { count, ..*cell };
        }
        self.forget(cell);
        let at = self.arena.len();
        self.arena.extend_from_within(cell.at..cell.at + cell.order);
        self.arena.extend_from_slice(data);
        Cell { at, order: cell.order, data: data.len(), count }
    }

    /// `cell` is gone.
    pub(super) fn forget(&mut self, cell: &Cell) {
        self.wasted += cell.order + cell.data;
    }

    /// Whether most of the arena is waste, and it is not small.
    pub(super) fn wasteful(&self) -> bool {
        self.wasted > WASTE && self.wasted > self.arena.len() / 2
    }

    pub(super) fn bytes(&self) -> usize {
        let cells: usize = self.keys.values().map(Vec::capacity).sum();
        self.arena.capacity() + cells * size_of::<Cell>() + self.keys.capacity() * size_of::<(HashedKey, Vec<Cell>)>()
    }

    /// The entries, sorted.
    pub(super) fn flat<O: Order>(&self) -> Draft {
        let mut keys: Vec<(&HashedKey, &Vec<Cell>)> = self.keys.iter().collect();
        keys.sort_unstable_by(|(a, _), (b, _)| (a.hash, &a.key).cmp(&(b.hash, &b.key)));
        let mut draft = Draft::default();
        for (key, cells) in keys {
            for cell in cells {
                draft.push::<O>(self.order(cell), self.data(cell), cell.count);
            }
            draft.close_key(key.hash, &key.key);
        }
        draft
    }
}
