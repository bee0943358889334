//! Which files of a table should be rewritten together.

use std::collections::{BTreeMap, BTreeSet};

use super::data::DataFile;

/// Rows of one file at most, so that rewriting it or its vector stays cheap.
pub(crate) const FILE_ROWS: usize = 1_000_000;
/// Rows of one file whose rows are expected to change.
const OPEN_ROWS: usize = 128 << 10;
/// Rows of one file of a table without vectors: a row that goes costs the rewriting of its file.
const REWRITE_ROWS: usize = 64 << 10;
/// Files below a size are merged when there are so many of them above the size before it.
const LEVELS: [(u64, usize); 3] = [(256 << 10, 32), (4 << 20, 32), (64 << 20, 8)];
/// Files with a vector that readers stand without trouble, with room to spare.
const VECTORS: usize = 150;
/// Files with a vector, and small files, beyond which rewriting comes before the next epoch.
const MOST: (usize, usize) = (190, 280);
/// A larger vector is worth the rewriting of its file.
const VECTOR_BYTES: u32 = 64 << 10;
/// Bytes and rows that are rewritten at once.
const BATCH: (u64, u64) = (128 << 20, 4_000_000);

/// Why files are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// To keep the table healthy.
    Upkeep,
    /// To make it as good as it gets.
    Order,
    /// To be rid of all vectors.
    NoVectors,
}

/// How many rows a file may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A file whose rows are expected to change.
    pub(crate) open: usize,
    /// Any other.
    pub(crate) settled: usize,
}

impl Limits {
    /// Of a table with vectors, or one whose files are rewritten.
    pub(crate) fn of(rewrites: bool) -> Self {
        if rewrites {
            Limits { open: REWRITE_ROWS, settled: REWRITE_ROWS }
        } else {
            Limits { open: OPEN_ROWS, settled: FILE_ROWS }
        }
    }

    /// Less than half full: merging it with others makes fewer files.
    fn is_small(self, file: &DataFile) -> bool {
        let limit = if file.open { self.open } else { self.settled };
        file.live() < limit as u64 / 2
    }
}

/// There are more files of a kind that readers mind than they should meet.
pub(crate) fn crowded(files: &BTreeMap<u32, DataFile>, limits: Limits) -> bool {
    let small = files.values().filter(|x| x.size < LEVELS[1].0 && limits.is_small(x)).count();
    files.values().filter(|x| x.vector.is_some()).count() > MOST.0 || small > MOST.1
}

/// The files that should be rewritten together; none if the table is fine.
pub(crate) fn choose(files: &BTreeMap<u32, DataFile>, limits: Limits, aim: Aim) -> BTreeSet<u32> {
    let mut chosen = Chosen { ids: BTreeSet::new(), bytes: BATCH.0, rows: BATCH.1 };
    if aim == Aim::NoVectors || aim == Aim::Order {
        files.iter().filter(|(_, x)| x.vector.is_some()).for_each(|(id, x)| chosen.take(*id, x));
    }
    match aim {
        Aim::NoVectors => {}
        Aim::Order => {
            for open in [true, false] {
                let small = || files.iter().filter(|(_, x)| x.open == open && limits.is_small(x));
                if small().count() > 1 {
                    small().for_each(|(id, x)| chosen.take(*id, x));
                }
            }
        }
        Aim::Upkeep => keep_up(files, limits, &mut chosen),
    }
    chosen.ids
}

struct Chosen {
    ids: BTreeSet<u32>,
    bytes: u64,
    rows: u64,
}

impl Chosen {
    fn take(&mut self, id: u32, file: &DataFile) {
        let fits = file.size <= self.bytes && file.live() <= self.rows;
        if !self.ids.contains(&id) && (fits || self.ids.is_empty()) {
            self.bytes = self.bytes.saturating_sub(file.size);
            self.rows = self.rows.saturating_sub(file.live());
            self.ids.insert(id);
        }
    }
}

fn keep_up(files: &BTreeMap<u32, DataFile>, limits: Limits, chosen: &mut Chosen) {
    let mut lower = 0;
    for (size, count) in LEVELS {
        let small: Vec<_> = files.iter().filter(|(_, x)| x.size < size && limits.is_small(x)).collect();
        if small.iter().filter(|(_, x)| x.size >= lower).count() >= count {
            small.into_iter().for_each(|(id, x)| chosen.take(*id, x));
        }
        lower = size;
    }
    let worn = |x: &DataFile| {
        let tenths = if x.size >= LEVELS[1].0 { 1 } else { 3 };
        let thin = x.dead.len() * 10 > x.rows * tenths;
        x.size >= LEVELS[0].0 && thin || x.vector.as_ref().is_some_and(|v| v.size > VECTOR_BYTES)
    };
    files.iter().filter(|(_, x)| worn(x)).for_each(|(id, x)| chosen.take(*id, x));
    let mut vectors: Vec<_> = files.iter().filter(|(id, x)| x.vector.is_some() && !chosen.ids.contains(id)).collect();
    if vectors.len() > VECTORS {
        // The thinnest first: they cost the least to rewrite and give the most.
        vectors.sort_by_key(|(_, x)| x.dead.len().saturating_mul(1_000_000) / x.rows.max(1));
        let excess = vectors.len() - VECTORS / 2;
        vectors.iter().rev().take(excess).for_each(|(id, x)| chosen.take(**id, x));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use roaring::RoaringBitmap;
    use uuid::Uuid;

    use super::*;
    use crate::lake::vector::Descriptor;

    fn file(size: u64, rows: u64, dead: u32) -> DataFile {
        let vector =
            (dead > 0).then(|| Descriptor { file: Uuid::nil(), offset: 1, size: 100, cardinality: dead.into() });
        let dead = Arc::new((0..dead).collect::<RoaringBitmap>());
        DataFile { path: String::new(), size, rows, modified: 0, stats: String::new(), vector, dead, open: false }
    }

    fn table(files: impl IntoIterator<Item = DataFile>) -> BTreeMap<u32, DataFile> {
        (0..).zip(files).collect()
    }

    fn chosen(files: &BTreeMap<u32, DataFile>) -> BTreeSet<u32> {
        choose(files, Limits::of(false), Aim::Upkeep)
    }

    #[test]
    fn a_table_in_order_is_left_alone() {
        assert!(chosen(&table([])).is_empty());
        assert!(chosen(&table((0..31).map(|_| file(1000, 10, 1)))).is_empty());
        assert!(chosen(&table((0..140).map(|_| file(65 << 20, 900_000, 1)))).is_empty());
        // Files that are full of open rows are no fewer after a merge.
        let open = table((0..60).map(|_| DataFile { open: true, ..file(1 << 20, OPEN_ROWS as u64, 1) }));
        assert!(chosen(&open).is_empty());
    }

    #[test]
    fn small_files_merge_when_they_are_many() {
        let mut files: Vec<_> = (0..32).map(|_| file(1000, 10, 0)).collect();
        files.push(file(10 << 20, 100_000, 0));
        assert_eq!(chosen(&table(files)).len(), 32);
    }

    #[test]
    fn a_large_file_is_rewritten_when_a_tenth_of_it_is_gone() {
        let files = table([file(30 << 20, 100_000, 10_000), file(30 << 20, 100_000, 10_001), file(1000, 2, 1)]);
        assert_eq!(chosen(&files), BTreeSet::from([1]));
    }

    #[test]
    fn files_with_a_vector_never_exceed_the_cap_and_what_is_rewritten_at_once_is_bounded() {
        let files = table((0..190u32).map(|i| file(1 << 20, 600_000, 1 + i)));
        let mut left = files.clone();
        while let picked = chosen(&left)
            && !picked.is_empty()
        {
            let rows: u64 = picked.iter().map(|id| left.get(id).unwrap().live()).sum();
            assert!(rows <= BATCH.1);
            left.retain(|id, _| !picked.contains(id));
        }
        assert!(left.len() <= VECTORS && !crowded(&left, Limits::of(false)), "{}", left.len());
        assert!(crowded(&table((0..191).map(|_| file(65 << 20, 900_000, 1))), Limits::of(false)));
        assert!(crowded(&table((0..281).map(|_| file(1000, 9, 0))), Limits::of(false)));
        let large = table((0..300).map(|i| file(40 << 20, 900_000, 1 + i)));
        let bytes: u64 = chosen(&large).iter().map(|id| large.get(id).unwrap().size).sum();
        assert!(bytes > 0 && bytes <= BATCH.0);
    }

    #[test]
    fn order_and_no_vectors_come_to_an_end() {
        for aim in [Aim::Order, Aim::NoVectors] {
            assert!(choose(&table([file(1000, 10, 0), file(65 << 20, 900_000, 0)]), Limits::of(false), aim).is_empty());
            assert_eq!(choose(&table([file(1000, 10, 1)]), Limits::of(false), aim).len(), 1);
        }
        let two = table([file(1000, 10, 0), file(1000, 10, 0)]);
        assert_eq!(choose(&two, Limits::of(false), Aim::Order).len(), 2);
        assert!(choose(&two, Limits::of(false), Aim::NoVectors).is_empty());
    }
}
