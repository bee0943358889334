//! Where the live rows of a table are: a hash of the whole row to its positions.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::row::{RowConverter, SortField};

use crate::error::{Error, Result};

/// 128 bits of hash of a row's stored bits.
pub(crate) type RowHash = [u64; 2];

/// A row of a data file. Files are numbered per open table; the order decides which of equal rows goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    /// Number of the file.
    pub(crate) file: u32,
    /// Row in the file, dead rows counted.
    pub(crate) row: u32,
}

/// Hashes whole rows. Equal stored bits, equal hash; the value of a float or a decimal is not normalised.
pub(crate) struct RowHasher {
    converter: RowConverter,
}

impl RowHasher {
    /// For rows of this schema.
    pub(crate) fn new(schema: &Schema) -> Result<Self> {
        let fields = schema.fields().iter().map(|x| SortField::new(x.data_type().clone())).collect();
        let converter = RowConverter::new(fields)
            .map_err(|e| Error::internal("rows of this type cannot be compared").caused_by(e))?;
        Ok(RowHasher { converter })
    }

    /// One hash a row.
    pub(crate) fn hash(&self, batch: &RecordBatch) -> Result<Vec<RowHash>> {
        let mut hashes = Vec::with_capacity(batch.num_rows());
        self.each(batch, |hash, _| hashes.push(hash))?;
        Ok(hashes)
    }

    /// Hands each row's hash and bytes to `row`. Equal rows have equal bytes, and only they.
    pub(crate) fn each(&self, batch: &RecordBatch, mut row: impl FnMut(RowHash, &[u8])) -> Result<()> {
        if batch.num_columns() == 0 {
            (0..batch.num_rows()).for_each(|_| row([0; 2], &[]));
            return Ok(());
        }
        let rows = self
            .converter
            .convert_columns(batch.columns())
            .map_err(|e| Error::internal("rows cannot be compared").caused_by(e))?;
        for bytes in &rows {
            row(split(xxhash_rust::xxh3::xxh3_128(bytes.as_ref())), bytes.as_ref());
        }
        Ok(())
    }
}

fn split(hash: u128) -> RowHash {
    [(hash >> 64) as u64, hash as u64]
}

/// Takes the first half of a row hash for the hash: it is uniform already.
#[derive(Default)]
pub(crate) struct Uniform(u64);

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some((first, _)) = bytes.split_first_chunk::<8>() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }

    // The length of a row hash says nothing.
    fn write_usize(&mut self, _: usize) {}
}

/// Maps that are keyed by row hashes.
pub(crate) type ByHash<V> = HashMap<RowHash, V, BuildHasherDefault<Uniform>>;

/// The positions of all live rows, a multiset. 24 bytes a row and the map's slack; equal rows cost more.
#[derive(Default)]
pub(crate) struct RowIndex {
    lowest: ByHash<Position>,
    /// The other positions of rows that occur more than once.
    others: ByHash<BTreeSet<Position>>,
}

impl RowIndex {
    /// Empty, with room.
    pub(crate) fn with_capacity(rows: usize) -> Self {
        RowIndex {
            lowest: ByHash::with_capacity_and_hasher(rows, BuildHasherDefault::default()),
            others: ByHash::default(),
        }
    }

    /// Adds a live row.
    pub(crate) fn insert(&mut self, hash: RowHash, position: Position) {
        match self.lowest.entry(hash) {
            Entry::Vacant(free) => {
                free.insert(position);
            }
            Entry::Occupied(mut taken) => {
                let higher = if position < *taken.get() { taken.insert(position) } else { position };
                self.others.entry(hash).or_default().insert(higher);
            }
        }
    }

    /// Removes a row that was live; false if it was not.
    pub(crate) fn remove(&mut self, hash: RowHash, position: Position) -> bool {
        let Entry::Occupied(mut lowest) = self.lowest.entry(hash) else { return false };
        let Some(others) = self.others.get_mut(&hash) else {
            let found = *lowest.get() == position;
            if found {
                lowest.remove();
            }
            return found;
        };
        let found = if *lowest.get() == position {
            if let Some(next) = others.pop_first() {
                lowest.insert(next);
            }
            true
        } else {
            others.remove(&position)
        };
        if others.is_empty() {
            self.others.remove(&hash);
        }
        found
    }

    /// The `count` lowest positions of a row; fewer if there are not as many.
    pub(crate) fn lowest(&self, hash: &RowHash, count: usize) -> Vec<Position> {
        let first = self.lowest.get(hash).copied();
        first.into_iter().chain(self.others.get(hash).into_iter().flatten().copied()).take(count).collect()
    }

    /// Live rows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lowest.len() + self.others.values().map(BTreeSet::len).sum::<usize>()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_index_is_a_multimap_with_the_lowest_position_first(
            steps in prop::collection::vec((0u64..4, 0u32..3, 0u32..6, prop::bool::weighted(0.6)), 0..200)
        ) {
            let mut index = RowIndex::default();
            let mut model: Vec<(RowHash, Position)> = Vec::new();
            for (key, file, row, add) in steps {
                let (hash, position) = ([key, 7], Position { file, row });
                let at = model.iter().position(|x| *x == (hash, position));
                if add {
                    // A position holds one row.
                    if at.is_none() {
                        index.insert(hash, position);
                        model.push((hash, position));
                    }
                } else {
                    prop_assert_eq!(index.remove(hash, position), at.is_some());
                    at.map(|i| model.remove(i));
                }
                prop_assert_eq!(index.len(), model.len());
                for key in 0..4 {
                    let mut expected: Vec<_> = model.iter().filter(|x| x.0 == [key, 7]).map(|x| x.1).collect();
                    expected.sort();
                    prop_assert_eq!(index.lowest(&[key, 7], usize::MAX), expected);
                }
            }
        }
    }
}
