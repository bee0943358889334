//! How the rows of keyed operators are spread over the workers, and which keys take most of one.
//!
//! Rows are counted where they are sent, by the worker that their key belongs to. Beside the count stands a Misra-Gries
//! sketch a worker: of `n` rows it names each key with more than `n / (KEPT + 1)` of them, and counts it too low by that at
//! most.

use std::cell::RefCell;
use std::rc::Rc;

use arrow::util::display::array_value_to_string;
use serde::{Deserialize, Serialize};

use super::codec::Codec;

/// Keys that are counted at the same time, for each operator and worker.
const KEPT: usize = 8;
/// Of fewer rows to a worker no key is named.
const LEAST: u64 = 100;
/// A key is named from so large a part of the rows to its worker on.
const PART: u64 = 4;
/// Letters of a key that are shown.
const SHOWN: usize = 100;

/// What was sent to one worker.
#[derive(Debug, Default)]
struct To {
    rows: u64,
    /// Those with no rows are free. Their allocations stay: keys come and go with nearly every row.
    keys: [Counted; KEPT],
}

#[derive(Debug, Default)]
struct Counted {
    hash: u64,
    key: Vec<u8>,
    rows: u64,
}

impl To {
    fn see(&mut self, hash: u64, key: &[u8]) {
        self.rows += 1;
        if let Some(counted) = self.keys.iter_mut().find(|counted| counted.hash == hash && counted.rows > 0) {
            counted.rows += 1;
        } else if let Some(free) = self.keys.iter_mut().find(|counted| counted.rows == 0) {
            (free.hash, free.rows) = (hash, 1);
            free.key.clear();
            free.key.extend_from_slice(key);
        } else {
            self.keys.iter_mut().for_each(|counted| counted.rows -= 1);
        }
    }
}

struct Counts {
    dataset: String,
    codec: Codec,
    to: Vec<To>,
}

/// The way of rows into one input of a keyed operator.
#[derive(Clone)]
pub struct Lane(Rc<RefCell<Counts>>);

impl Lane {
    /// Workers that rows go to.
    pub fn workers(&self) -> usize {
        self.0.borrow().to.len()
    }

    /// Counts rows that are sent, by their worker, the hash of their key, and the key.
    pub fn see<'a>(&self, keys: impl Iterator<Item = (usize, u64, &'a [u8])>) {
        let mut counts = self.0.borrow_mut();
        if let [only] = counts.to.as_mut_slice() {
            // There is nobody else who could have them.
            only.rows += keys.count() as u64;
            return;
        }
        for (worker, hash, key) in keys {
            if let Some(to) = counts.to.get_mut(worker) {
                to.see(hash, key);
            }
        }
    }
}

/// All of them, of one worker.
#[derive(Default)]
pub struct Lanes {
    workers: usize,
    all: Vec<Lane>,
}

/// What went over one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneLoad {
    /// The dataset that the operator is of.
    pub dataset: String,
    /// Rows to each worker.
    pub rows: Vec<u64>,
    /// Keys that many of them have.
    pub keys: Vec<KeyLoad>,
}

/// A key that many rows have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyLoad {
    /// The worker that it belongs to.
    pub worker: usize,
    /// Its hash.
    pub hash: u64,
    /// As people read it.
    pub shown: String,
    /// Rows that have it, at least.
    pub rows: u64,
}

impl Lanes {
    /// Lanes to so many workers.
    pub fn new(workers: usize) -> Lanes {
        Lanes { workers: workers.max(1), all: Vec::new() }
    }

    /// A new one, into an operator of a dataset. The codec is that of its keys.
    pub fn add(&mut self, dataset: &str, codec: Codec) -> Lane {
        let to = (0..self.workers).map(|_| To::default()).collect();
        let lane = Lane(Rc::new(RefCell::new(Counts { dataset: dataset.to_owned(), codec, to })));
        self.all.push(lane.clone());
        lane
    }

    /// What went over each since the last time.
    pub fn take(&self) -> Vec<LaneLoad> {
        self.all.iter().map(|lane| take(&mut lane.0.borrow_mut())).collect()
    }
}

fn take(counts: &mut Counts) -> LaneLoad {
    let mut load = LaneLoad { dataset: counts.dataset.clone(), ..LaneLoad::default() };
    for (worker, to) in counts.to.iter_mut().enumerate() {
        let To { rows, keys } = std::mem::take(to);
        load.rows.push(rows);
        for counted in keys.iter().filter(|counted| rows >= LEAST && counted.rows >= rows / PART) {
            let shown = show(&counts.codec, &counted.key);
            load.keys.push(KeyLoad { worker, hash: counted.hash, shown, rows: counted.rows });
        }
    }
    load
}

fn show(codec: &Codec, key: &[u8]) -> String {
    let text = codec.decode([key]).and_then(|columns| {
        let values = columns.iter().map(|column| match column.is_null(0) {
            true => Ok("NULL".to_owned()),
            false => array_value_to_string(column, 0),
        });
        Ok(values.collect::<Result<Vec<_>, _>>()?.join(", "))
    });
    match text {
        Ok(text) if text.chars().count() > SHOWN => text.chars().take(SHOWN).chain(['…']).collect(),
        Ok(text) => text,
        Err(error) => format!("(not shown: {error})"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::DataType;

    use silverflow_operators::{Row, stable_hash};

    use super::*;
    use crate::dataflow::pack::Pack;

    fn codec() -> Codec {
        Codec::new(&[DataType::Int64, DataType::Utf8]).unwrap()
    }

    /// Keys with many different numbers, and some of them often.
    fn keys(numbers: &[i64]) -> Vec<Row> {
        let texts: Vec<Option<String>> = numbers.iter().map(|n| (*n != 7).then(|| format!("k{n}"))).collect();
        let columns: [ArrayRef; 2] = [Arc::new(Int64Array::from(numbers.to_vec())), Arc::new(StringArray::from(texts))];
        codec().encode(&columns).unwrap()
    }

    fn see(lane: &Lane, keys: &[Row]) {
        let mut pack = Pack::new(lane.clone());
        keys.iter().for_each(|key| pack.push(key, |_| {}));
        assert_eq!(pack.take().count(), keys.len());
    }

    /// Beside it a count of all keys, exact and without a bound to its memory.
    #[test]
    fn keys_that_many_rows_have_are_found_and_counted_closely_enough() {
        for (workers, part) in [(2, 40), (3, 30), (8, 20), (40, 5)] {
            let mut next = 1u64;
            let mut numbers = Vec::new();
            for _ in 0..20_000 {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let rare = 1_000 + i64::try_from(next >> 40).unwrap() % 5_000;
                numbers.push(if next >> 33 & 0xff < part * 256 / 100 { 7 } else { rare });
            }
            let rows = keys(&numbers);
            let mut lanes = Lanes::new(workers);
            let lane = lanes.add("t", codec());
            rows.chunks(1_000).for_each(|chunk| see(&lane, chunk));
            let mut exact: BTreeMap<usize, BTreeMap<u64, u64>> = BTreeMap::new();
            for row in &rows {
                let hash = stable_hash(row);
                *exact.entry((hash % workers as u64) as usize).or_default().entry(hash).or_default() += 1;
            }
            let load = lanes.take().remove(0);
            for (worker, rows) in load.rows.iter().enumerate() {
                let of = exact.get(&worker).map(|keys| keys.values().sum()).unwrap_or(0);
                assert_eq!(*rows, of, "{workers} workers");
            }
            let hot = stable_hash(&keys(&[7])[0]);
            let key = load.keys.iter().find(|key| key.hash == hot).unwrap();
            let really = exact[&key.worker][&hot];
            assert_eq!(key.shown, "7, NULL");
            assert!(key.rows <= really && really - key.rows <= load.rows[key.worker] / (KEPT as u64 + 1), "{key:?}");
            assert_eq!(load.keys.len(), 1, "{:?}", load.keys);
            assert!(lanes.take()[0].rows.iter().all(|rows| *rows == 0), "taken is taken");
        }
    }

    #[test]
    fn one_worker_has_all_and_no_key_is_to_blame() {
        let mut lanes = Lanes::new(1);
        let lane = lanes.add("t", codec());
        see(&lane, &keys(&[1; 500]));
        assert_eq!(lanes.take(), [LaneLoad { dataset: "t".into(), rows: vec![500], keys: Vec::new() }]);
    }
}
