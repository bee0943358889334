//! Rows on their way to a keyed operator.

use silverflow_operators::{Block, Row, stable_hash};

use super::load::Lane;

/// Packs the rows of a batch into one block of bytes for each worker that they go to, since a block is counted by those
/// who hold its rows, and workers that count together slow each other down.
pub struct Pack {
    blocks: Vec<Vec<u8>>,
    places: Vec<Place>,
    lane: Lane,
}

/// Where a key and its row lie.
struct Place {
    block: usize,
    /// Of the key; `None` if there is none, or one worker has all.
    hash: Option<u64>,
    key: usize,
    row: usize,
    end: usize,
}

impl Pack {
    /// For rows that go over `lane`, where they are counted.
    pub fn new(lane: Lane) -> Pack {
        Pack { blocks: vec![Vec::new(); lane.workers().max(1)], places: Vec::new(), lane }
    }

    /// Adds a row, which `put` appends to what it is given.
    pub fn push(&mut self, key: &[u8], put: impl FnOnce(&mut Vec<u8>)) {
        let hash = (self.blocks.len() > 1).then(|| stable_hash(key));
        self.add(hash, key, put);
    }

    /// Adds a row that goes to whatever worker.
    pub fn push_keyless(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        self.add(None, &[], put);
    }

    fn add(&mut self, hash: Option<u64>, key: &[u8], put: impl FnOnce(&mut Vec<u8>)) {
        let block = hash.map_or(0, |hash| (hash % self.blocks.len() as u64) as usize);
        let Some(bytes) = self.blocks.get_mut(block) else { return };
        let start = bytes.len();
        bytes.extend_from_slice(key);
        let row = bytes.len();
        put(bytes);
        self.places.push(Place { block, hash, key: start, row, end: bytes.len() });
    }

    /// Keys and rows in the order in which they were added. None are left.
    pub fn take(&mut self) -> impl Iterator<Item = (Row, Row)> + use<> {
        let alone = self.blocks.len() == 1;
        self.lane.see(self.places.iter().filter_map(|Place { block, hash, key, row, .. }| {
            let hash = hash.or(alone.then_some(0))?;
            Some((*block, hash, self.blocks.get(*block)?.get(*key..*row)?))
        }));
        let blocks: Vec<Block> = self.blocks.iter().map(|bytes| Block::new(bytes)).collect();
        self.blocks.iter_mut().for_each(Vec::clear);
        std::mem::take(&mut self.places).into_iter().map(move |Place { block, key, row, end, .. }| {
            match blocks.get(block) {
                Some(block) => (block.row(key..row), block.row(row..end)),
                None => Default::default(),
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dataflow::codec::Codec;
    use crate::dataflow::load::Lanes;

    #[test]
    fn rows_come_back_in_order_whatever_worker_they_go_to() {
        for workers in [1, 3] {
            let codec = Codec::new([&arrow::datatypes::DataType::Utf8]).unwrap();
            let mut pack = Pack::new(Lanes::new(workers).add("t", codec));
            for round in 0..2 {
                let rows: Vec<(String, String)> =
                    (0..100).map(|n| (format!("key {}", n % 7), format!("row {round} {n}"))).collect();
                let rows: Vec<_> = rows.into_iter().chain([Default::default()]).collect();
                for (key, row) in &rows {
                    pack.push(key.as_bytes(), |out| out.extend_from_slice(row.as_bytes()));
                }
                let text = |row: Row| String::from_utf8(row.to_vec()).unwrap();
                let back: Vec<_> = pack.take().map(|(key, row)| (text(key), text(row))).collect();
                assert_eq!(back, rows);
            }
        }
    }
}
