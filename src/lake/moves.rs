//! Rows that were rewritten into other files while the index still points to their old places.

use std::collections::VecDeque;

use super::index::{Position, RowHash, RowIndex};

/// A row that was moved. Files of new places are counted from the first file of the rewriting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Its hash.
    pub(crate) hash: RowHash,
    /// Where it was.
    pub(crate) old: Position,
    /// Where it is.
    pub(crate) new: Position,
}

#[derive(Debug)]
struct Rewriting {
    /// Sorted by their old places.
    rows: Vec<Moved>,
    /// Number of the first new file.
    first: u32,
    /// Rows that the index knows of.
    told: usize,
}

/// The rewritings that the index does not fully know yet, oldest first. It learns of them bit by bit, so that no commit
/// waits for all of one.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    open: VecDeque<Rewriting>,
}

fn placed(first: u32, new: Position) -> Position {
    Position { file: first + new.file, ..new }
}

impl Moves {
    /// Adds a rewriting: rows sorted by their old places, and the number of its first new file.
    pub(crate) fn add(&mut self, rows: Vec<Moved>, first: u32) {
        self.open.push_back(Rewriting { rows, first, told: 0 });
    }

    /// Where a row is that the index says is at `position`.
    pub(crate) fn resolve(&self, mut position: Position) -> Position {
        for rewriting in &self.open {
            if let Some(new) = find(&rewriting.rows, position) {
                position = placed(rewriting.first, new);
            }
        }
        position
    }

    /// Tells the index of `limit` moves at most; false when it knows all.
    pub(crate) fn tell(&mut self, index: &mut RowIndex, mut limit: usize) -> bool {
        while let Some(rewriting) = self.open.front_mut() {
            for row in rewriting.rows.iter().skip(rewriting.told).take(limit) {
                // A row that has gone since is not brought back.
                if index.remove(row.hash, row.old) {
                    index.insert(row.hash, placed(rewriting.first, row.new));
                }
                rewriting.told += 1;
                limit -= 1;
            }
            if rewriting.told < rewriting.rows.len() {
                return true;
            }
            self.open.pop_front();
        }
        false
    }

    /// Forgets all, for an index that is gone.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }
}

/// Where a row went, in moves that are sorted by their old places.
pub(crate) fn find(rows: &[Moved], old: Position) -> Option<Position> {
    let at = rows.binary_search_by(|x| x.old.cmp(&old)).ok()?;
    rows.get(at).map(|x| x.new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: u32, row: u32) -> Position {
        Position { file, row }
    }

    fn moved(key: u64, old: Position, new: Position) -> Moved {
        Moved { hash: [key, 1], old, new }
    }

    #[test]
    fn rows_are_found_whatever_the_index_knows_already() {
        let mut index = RowIndex::default();
        (0..4).for_each(|key| index.insert([key, 1], at(key as u32 / 2, key as u32 % 2)));
        let mut moves = Moves::default();
        // Files 0 and 1 become file 2, then 2 becomes 3 and 4.
        moves.add((0..4).map(|k| moved(k, at(k as u32 / 2, k as u32 % 2), at(0, 3 - k as u32))).collect(), 2);
        let mut second: Vec<_> =
            (0..4).map(|k| moved(k, at(2, 3 - k as u32), at(k as u32 % 2, k as u32 / 2))).collect();
        second.sort_by_key(|x| x.old);
        moves.add(second, 3);
        index.remove([1, 1], at(0, 1));
        for step in 0.. {
            for key in [0u64, 2, 3] {
                let places = index.lowest(&[key, 1], 9);
                let real: Vec<_> = places.iter().map(|x| moves.resolve(*x)).collect();
                assert_eq!(real, [at(3 + key as u32 % 2, key as u32 / 2)], "step {step} row {key}");
            }
            assert!(index.lowest(&[1, 1], 9).is_empty());
            if !moves.tell(&mut index, 1) {
                break;
            }
            assert!(step < 9);
        }
        assert_eq!(index.lowest(&[3, 1], 9), [at(4, 1)]);
    }
}
