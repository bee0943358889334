//! Where the rows of a table are: for each data file, sorted hashes of its rows. Data files do not change, and so neither
//! do these; which rows are gone is said beside.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

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

/// What a row is found by: a part of its hash, since the rows that it proposes are read and compared.
pub(crate) fn short(hash: &RowHash) -> u64 {
    let [first, _] = hash;
    *first
}

/// Where the rows of one data file are. 12 bytes a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileIndex {
    /// Sorted.
    hashes: Vec<u64>,
    /// The row of each hash; those of equal hashes rise.
    rows: Vec<u32>,
}

impl FileIndex {
    /// Of rows in any order. Costs their sorting.
    pub(crate) fn new(mut rows: Vec<(u64, u32)>) -> Self {
        rows.sort_unstable();
        let (hashes, rows) = rows.into_iter().unzip();
        FileIndex { hashes, rows }
    }

    /// Of what [`hashes`](Self::hashes) and [`rows`](Self::rows) gave; `None` if they cannot have come from there.
    pub(crate) fn restored(hashes: Vec<u64>, rows: Vec<u32>) -> Option<Self> {
        (hashes.len() == rows.len() && hashes.is_sorted()).then_some(FileIndex { hashes, rows })
    }

    /// The sorted hashes.
    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The row of each hash.
    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// How many rows it knows.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The rows that have a hash, rising. Costs a few steps: hashes are spread evenly, so that one tells about where it is.
    pub(crate) fn places(&self, hash: u64) -> &[u32] {
        let guess = ((u128::from(hash) * self.len() as u128) >> 64) as usize;
        let first = lower_bound(&self.hashes, hash, guess);
        self.run(first, hash)
    }

    /// Tells of each of some rising hashes which rows have it. Costs one pass over both.
    pub(crate) fn merge<'a>(&'a self, hashes: impl Iterator<Item = u64>, mut found: impl FnMut(usize, &'a [u32])) {
        let mut at = 0;
        for (ordinal, hash) in hashes.enumerate() {
            at = lower_bound(&self.hashes, hash, at);
            found(ordinal, self.run(at, hash));
        }
    }

    fn run(&self, first: usize, hash: u64) -> &[u32] {
        let alike = self.hashes.get(first..).unwrap_or_default().iter().take_while(|x| **x == hash).count();
        self.rows.get(first..first + alike).unwrap_or_default()
    }
}

/// How many values are below `value`. Costs the logarithm of how far off the guess is.
fn lower_bound(values: &[u64], value: u64, guess: usize) -> usize {
    let guess = guess.min(values.len());
    let below = |at: usize| values.get(at).is_some_and(|x| *x < value);
    let (mut low, mut high, mut step) = (guess, guess, 1);
    // The answer is in low..=high.
    if below(guess) {
        low += 1;
        while below(high + step) {
            low = high + step + 1;
            step *= 2;
        }
        high = (high + step).min(values.len());
    } else {
        while high > 0 && !below(high.saturating_sub(step)) {
            high = high.saturating_sub(step);
            step *= 2;
        }
        low = high.saturating_sub(step);
    }
    low + values.get(low..high).unwrap_or_default().partition_point(|x| *x < value)
}

/// The indexes of files, by the hashes and places of all their rows.
pub(crate) fn indexes(rows: impl Iterator<Item = (u64, Position)>) -> impl Iterator<Item = (u32, FileIndex)> {
    let mut files: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
    for (hash, position) in rows {
        files.entry(position.file).or_default().push((hash, position.row));
    }
    files.into_iter().map(|(id, rows)| (id, FileIndex::new(rows)))
}

/// An index of a file, and whether a later run finds it in the storage.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The index.
    pub(crate) index: Arc<FileIndex>,
    /// It is stored, or not worth it.
    pub(crate) stored: bool,
}

/// The indexes of a table's files, by their numbers. Files that are not here have to be read before a row can go.
pub(crate) type RowIndex = BTreeMap<u32, Known>;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_rows_of_a_hash_are_found_whatever_the_hashes_are(
            rows in prop::collection::vec(prop_oneof![0u64..6, Just(u64::MAX), any::<u64>(), (0u64..9).prop_map(|x| x << 61)], 0..300)
        ) {
            let places: Vec<(u64, u32)> = rows.iter().copied().zip(0..).collect();
            let index = FileIndex::new(places.iter().rev().copied().collect());
            let mut asked: Vec<u64> = rows.iter().flat_map(|x| [*x, x.wrapping_add(1), x.wrapping_sub(1)]).collect();
            asked.extend([0, 1, u64::MAX, u64::MAX / 2]);
            asked.sort_unstable();
            let expected = |hash: u64| places.iter().filter(|x| x.0 == hash).map(|x| x.1).collect::<Vec<_>>();
            for hash in &asked {
                prop_assert_eq!(index.places(*hash), expected(*hash));
                for guess in [0, index.len() / 2, index.len(), usize::MAX / 2] {
                    prop_assert_eq!(lower_bound(&index.hashes, *hash, guess), places.iter().filter(|x| x.0 < *hash).count());
                }
            }
            let mut merged = vec![None; asked.len()];
            index.merge(asked.iter().copied(), |at, rows| merged[at] = Some(rows.to_vec()));
            for (hash, rows) in asked.iter().zip(merged) {
                prop_assert_eq!(rows, Some(expected(*hash)));
            }
            prop_assert_eq!(FileIndex::restored(index.hashes.clone(), index.rows.clone()), Some(index));
        }
    }
}
