#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering as AtomicOrdering};

use super::*;
use crate::testing::{Random, TestShelf, carry};

/// Descending byte order, to see that the order is the one asked for.
#[derive(Debug)]
struct Backwards;

impl Order for Backwards {
    fn compare(a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }

    fn prefix(order: &[u8]) -> u128 {
        !prefix(order)
    }
}

trait Model: Order {
    fn rank(order: &[u8]) -> Vec<u8>;
}
impl Model for Bytewise {
    fn rank(order: &[u8]) -> Vec<u8> {
        order.to_vec()
    }
}
impl Model for Backwards {
    // Complement, then a terminator above all bytes in a doubled alphabet: longer sorts first.
    fn rank(order: &[u8]) -> Vec<u8> {
        order.iter().flat_map(|b| [0, !b]).chain([1]).collect()
    }
}

type Reference = BTreeMap<(Vec<u8>, Vec<u8>), (Vec<u8>, Vec<u8>, i64)>;
type Owned = Option<(Vec<u8>, Vec<u8>, i64)>;

fn owned(entry: Option<Entry<'_>>) -> Owned {
    entry.map(|e| (e.order.to_vec(), e.data.to_vec(), e.count))
}

fn check_key<O: Model>(state: &mut KeyedState<O>, model: &Reference, key: &Row, order: &[u8]) {
    let least: Vec<Owned> = state.least(key, 3).into_iter().map(|entry| owned(Some(entry))).collect();
    let at = state.at(key);
    let all: Vec<_> = model.range((key.to_vec(), vec![])..).take_while(|(k, _)| k.0 == key.to_vec()).collect();
    let rank = O::rank(order);
    let live = |keep: &dyn Fn(&Vec<u8>) -> bool| -> Vec<Owned> {
        all.iter().filter(|(k, v)| v.2 > 0 && keep(&k.1)).map(|(_, v)| Some((*v).clone())).collect()
    };
    assert_eq!(least, live(&|_| true).into_iter().take(3).collect::<Vec<_>>());
    let exact = all.iter().find(|(k, _)| k.1 == rank).map(|(_, v)| (*v).clone());
    assert_eq!(owned(at.get(order)), exact);
    assert_eq!(owned(at.first()), live(&|_| true).first().cloned().flatten());
    assert_eq!(owned(at.last()), live(&|_| true).last().cloned().flatten());
    assert_eq!(owned(at.before(order)), live(&|r| *r < rank).last().cloned().flatten());
    assert_eq!(owned(at.after(order)), live(&|r| *r > rank).first().cloned().flatten());
    let scanned: Vec<_> = at.scan().map(|e| owned(Some(e)).unwrap()).collect();
    assert_eq!(scanned, all.iter().map(|(_, v)| (*v).clone()).collect::<Vec<_>>());
}

fn random_walk<O: Model>(seed: u64, overlay: usize, keys: u64, orders: u64, removals: bool) {
    let mut random = Random::new(seed);
    let mut state = KeyedState::<O>::with_overlay(overlay);
    let mut model = Reference::new();
    for step in 0..1500 {
        let key = Row::from(format!("key{}", random.below(keys)).as_bytes());
        let mut order = random.below(orders).to_be_bytes()[5..].to_vec();
        if random.below(4) == 0 {
            order.pop();
        }
        let id = (key.to_vec(), O::rank(&order));
        let order = Row::from(order);
        match random.below(if removals { 5 } else { 3 }) {
            0 => {
                let data = random.below(3).to_be_bytes()[7..].to_vec();
                let count = random.below(4) as i64 - 1;
                state.at(&key).set(&order, &data, count);
                if count == 0 {
                    model.remove(&id)
                } else {
                    model.insert(id, (order.to_vec(), data, count))
                };
            }
            n => {
                let diff = if n < 3 { 1 } else { -1 };
                let old = model.get(&id).map_or(0, |e| e.2);
                assert_eq!(state.at(&key).add(&order, diff), (old, old + diff));
                if old + diff == 0 {
                    model.remove(&id);
                } else {
                    model.entry(id).or_insert((order.to_vec(), vec![], 0)).2 += diff;
                }
            }
        }
        assert_eq!(state.len(), model.len());
        check_key(&mut state, &model, &key, &order);
        let probe = random.below(orders).to_be_bytes()[5..].to_vec();
        check_key(&mut state, &model, &key, &probe);
        if step % 250 == 249 {
            let frozen = carry(&state.freeze());
            // In two shards, as two workers would read it.
            let mut again = KeyedState::<O>::with_overlay(overlay);
            for shard in 0..2 {
                again.thaw(&frozen, Share::new(shard, 2)).unwrap();
            }
            assert_eq!(again.keys(), state.keys());
            assert_eq!(again.len(), state.len());
            state = again;
        }
    }
    let mut keys: Vec<Vec<u8>> = model.keys().map(|k| k.0.clone()).collect();
    keys.dedup();
    let mut found: Vec<Vec<u8>> = state.keys().iter().map(|k| k.to_vec()).collect();
    found.sort();
    assert_eq!(found, keys);
}

#[test]
fn agrees_with_an_ordered_map() {
    for seed in 0..12 {
        println!("seed {seed}");
        random_walk::<Bytewise>(seed, 32, 5, 40, true);
        random_walk::<Backwards>(seed, 64, 20, 8, seed % 2 == 0);
        random_walk::<Bytewise>(seed, 16, 1, 300, true);
        random_walk::<Bytewise>(seed, OVERLAY, 3, 40, true);
    }
}

#[test]
fn bulk_load_beside_changes() {
    let mut random = Random::new(7);
    for size in [3u64, 5000] {
        let mut state = KeyedState::<Bytewise>::with_overlay(1024);
        let mut model = Reference::new();
        for i in 0..200u64 {
            let (key, order) = (Row::from(&(i % 9 + 1_000_000).to_be_bytes()), Row::from(&i.to_be_bytes()));
            state.at(&key).add(&order, 1);
            model.insert((key.to_vec(), order.to_vec()), (order.to_vec(), vec![], 1));
        }
        let mut keys: Vec<Row> = (0..size / 3).map(|i| Row::from(&i.to_be_bytes())).collect();
        keys.sort_by_key(|key| (stable_hash(key), key.clone()));
        let mut run = Run::default();
        for key in &keys {
            for i in 0..3u8 {
                let count = random.below(3) as i64;
                run.push(&[i], &[i, i], count);
                if count != 0 {
                    model.insert((key.to_vec(), vec![i]), (vec![i], vec![i, i], count));
                }
            }
            run.close_key(key);
        }
        state.load(run);
        assert_eq!(state.len(), model.len());
        for key in keys.iter().chain([&Row::from(&1_000_004u64.to_be_bytes())]) {
            assert!(state.knows(key) || !model.keys().any(|k| k.0 == key.to_vec()));
            check_key(&mut state, &model, key, &[1]);
        }
    }
}

#[test]
fn the_first_of_many_removed_is_found_fast() {
    let mut state = KeyedState::<Bytewise>::new();
    let key = Row::from(b"hot");
    let n = 200_000u64;
    let mut run = Run::default();
    for i in 0..n {
        run.push(&i.to_be_bytes(), b"", 1);
    }
    run.close_key(&key);
    state.load(run);
    for i in 0..n {
        let mut at = state.at(&key);
        let first = Row::from(at.first().unwrap().order);
        assert_eq!(*first, i.to_be_bytes());
        at.add(&first, -1);
    }
    assert!(state.is_empty());
    assert_eq!(state.keys(), []);
}

/// What is read back may be anything: bytes that are not what was written lead to no panic and to no end of work, and
/// whoever looks at one of them has raised the alarm.
#[test]
fn damaged_entries_are_refused_or_raise_the_alarm() {
    let mut state = KeyedState::<Bytewise>::with_overlay(16);
    for i in 0..300u64 {
        let data = if i % 3 == 0 { "" } else { "data" };
        let count = if i % 50 == 0 { -1 } else { 1 + (i % 7 == 0) as i64 };
        let key = Row::from(&(if i < 200 { 0 } else { i % 7 }).to_be_bytes());
        state.at(&key).set(&i.to_be_bytes()[..(i % 8 + 1) as usize], data.as_bytes(), count);
    }
    let content = |sealed: &Sealed| -> Vec<(Vec<u8>, Vec<u8>, i64)> {
        let mut state = KeyedState::<Bytewise>::new();
        state.thaw(&[Frozen::new(sealed.clone(), Default::default()).unwrap()], Share::ALL).unwrap();
        let mut all = Vec::new();
        for key in state.keys() {
            let at = state.at(&key);
            all.extend(at.scan().map(|entry| (key.to_vec(), entry.order.to_vec(), entry.count)));
            let _ = at.get(&[0, 0, 0, 0, 0, 0, 0, 9]);
        }
        all
    };
    for run in state.freeze() {
        let parts = run.sealed().parts();
        let (whole, sums) = (parts.concat(), checksums(&parts));
        let open = |bytes: Vec<u8>, sums: &[u8]| {
            let alarm = Arc::new(AtomicBool::new(false));
            let sealed = Sealed::open(bytes.into(), sums.to_vec().into(), Arc::clone(&alarm));
            (sealed, alarm)
        };
        for cut in 0..whole.len() {
            assert!(Sealed::decode(whole[..cut].to_vec().into()).is_err(), "cut at {cut}");
            assert!(open(whole[..cut].to_vec(), &sums).0.is_err(), "cut at {cut}");
        }
        assert!(open(whole.clone(), &sums[8..]).0.is_err());
        let expected = content(run.sealed());
        let (good, alarm) = open(whole.clone(), &sums);
        assert_eq!((content(&good.unwrap()), alarm.load(AtomicOrdering::SeqCst)), (expected, false));
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            if let (Ok(sealed), alarm) = open(bytes, &sums) {
                content(&sealed);
                assert!(alarm.load(AtomicOrdering::SeqCst), "byte {at}");
            }
        }
    }
}

/// A snapshot shares the entries and has the counts of its moment; what happens later is not in it. Entries that have
/// been written down are known again by their label, as long as they are not merged.
#[test]
fn a_snapshot_is_of_its_moment_and_shares_what_did_not_change() {
    let mut state = KeyedState::<Bytewise>::with_overlay(64);
    let key = |n: u64| Row::from(&(n % 50).to_be_bytes());
    for n in 0..5_000u64 {
        state.at(&key(n)).add(&n.to_be_bytes(), 1 + (n % 10 == 0) as i64);
    }
    let first = state.freeze();
    (0..).zip(&first).for_each(|(label, run)| run.sealed().set_label(label));
    for n in 0..500u64 {
        state.at(&key(n)).add(&n.to_be_bytes(), -1);
    }
    let second = state.freeze();
    let count = |runs: &[Frozen]| -> i64 {
        let mut state = KeyedState::<Bytewise>::new();
        state.thaw(&carry(runs), Share::ALL).unwrap();
        state.keys().iter().map(|key| state.at(key).scan().map(|entry| entry.count).sum::<i64>()).sum()
    };
    assert_eq!((count(&first), count(&second)), (5_500, 5_000));
    let entries = |runs: &[Frozen], known: bool| -> usize {
        runs.iter().map(Frozen::sealed).filter(|s| s.label().is_some() == known).map(Sealed::len).sum()
    };
    assert!(entries(&second, true) > 4 * entries(&second, false), "most entries are the same");
}

/// Many shards of several workers, restored on fewer, do not pile up segments.
#[test]
fn segments_of_many_shards_merge() {
    let mut shards = Vec::new();
    for worker in 0..8u64 {
        let mut state = KeyedState::<Bytewise>::with_overlay(32);
        for n in 0..2_000u64 {
            state.at(&Row::from(&(n * 8 + worker).to_be_bytes())).add(b"x", 1);
        }
        shards.push(state.freeze());
    }
    let mut state = KeyedState::<Bytewise>::with_overlay(32);
    for shard in &shards {
        state.thaw(&carry(shard), Share::ALL).unwrap();
    }
    for n in 0..20_000u64 {
        assert_eq!(state.at(&Row::from(&(n % 16_000).to_be_bytes())).get(b"x").map(|e| e.count), Some(1));
    }
    assert!(state.segments.len() < 6, "{}", state.segments.len());
    assert_eq!(state.len(), 16_000);
}

/// While a merge is under way, counts of its entries change, entries die and come again, and
/// segments are made; nothing of it may get lost.
#[test]
fn changes_during_a_merge() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut state = KeyedState::<Bytewise>::with_overlay(64);
        let mut model = Reference::new();
        let key = |n: u64| Row::from(&(n % 7).to_be_bytes());
        let mut merging = 0;
        for _ in 0..30_000 {
            let (key, order) = (key(random.next()), random.below(3000).to_be_bytes());
            let old = model.get(&(key.to_vec(), order.to_vec())).map_or(0, |e| e.2);
            let diff = if old > 0 && random.below(3) > 0 { -old } else { 1 };
            assert_eq!(state.at(&key).add(&order, diff), (old, old + diff));
            merging += usize::from(state.merge.is_some());
            if old + diff == 0 {
                model.remove(&(key.to_vec(), order.to_vec()));
            } else {
                let id = (key.to_vec(), order.to_vec());
                model.entry(id).or_insert((order.to_vec(), vec![], 0)).2 += diff;
            }
        }
        assert!(merging > 3_000, "merges were under way in {merging} of 30000 steps");
        assert_eq!(state.len(), model.len());
        for n in 0..7 {
            for _ in 0..20 {
                let order = random.below(3000).to_be_bytes();
                check_key(&mut state, &model, &key(n), &order);
            }
        }
        assert!(state.segments.len() < 12);
    }
}

/// Prefixes of a long key only narrow the search, wherever they are equal and wherever the key begins.
#[test]
fn a_long_key_is_searched_by_prefixes() {
    for (before, step) in [(0u64, 1u64), (5, 3), (16, 1 << 40), (17, 7)] {
        let (small, long) = (Row::from(b"small"), Row::from(b"long"));
        let mut keys = [(&small, before), (&long, 1000)];
        keys.sort_by_key(|(key, _)| stable_hash(key));
        // Sixteen bytes are equal for many, and some are shorter than that.
        let order = |i: u64| {
            [&[7; 9][..usize::from(i > 100) * 9], &(i / 40 * step).to_be_bytes(), &(i % 40).to_be_bytes()].concat()
        };
        let order = |i: u64| if i > 100 { order(i) } else { (i / 3).to_be_bytes()[..(6 + i % 3) as usize].to_vec() };
        let mut orders: Vec<Vec<u8>> = (0..1000).map(order).collect();
        orders.sort();
        orders.dedup();
        let mut run = Run::<Bytewise>::default();
        for (key, count) in keys {
            orders.iter().take(count as usize).for_each(|order| run.push(order, b"", 1));
            run.close_key(key);
        }
        let mut state = KeyedState::<Bytewise>::with_overlay(64);
        state.load(run);
        let mut read = KeyedState::<Bytewise>::with_overlay(64);
        read.thaw(&carry(&state.freeze()), Share::ALL).unwrap();
        for state in [&mut state, &mut read] {
            for (i, order) in orders.iter().enumerate() {
                assert_eq!(state.at(&long).get(order).map(|entry| entry.order.to_vec()).as_ref(), Some(order));
                let between = [order.as_slice(), &[0]].concat();
                assert_eq!(state.at(&long).before(&between).unwrap().order, order.as_slice());
                let next = orders.get(i + 1).map(Vec::as_slice);
                assert_eq!(state.at(&long).after(order).map(|entry| entry.order), next);
            }
        }
    }
}

/// State of which hardly anything is in memory is the same state, and takes the room that it says.
#[test]
fn state_beyond_memory_is_the_same_state() {
    let mut random = Random::new(11);
    let shelf = Arc::new(TestShelf::new(20_000));
    let (mut state, mut plain) = (KeyedState::<Bytewise>::with_overlay(64), KeyedState::<Bytewise>::with_overlay(64));
    plain.shelf = None;
    let dynamic: Arc<dyn Shelf> = Arc::<TestShelf>::clone(&shelf);
    state.put_on(&dynamic);
    for round in 0..20 {
        // New keys in bulk, as an epoch has them, then changes.
        let mut keys: Vec<Row> = (0..400u64).map(|n| Row::from(&(round * 400 + n).to_be_bytes())).collect();
        keys.sort_by_key(|key| (stable_hash(key), key.clone()));
        let mut runs = (Run::default(), Run::default());
        for key in &keys {
            for order in 0..random.below(4) + 1 {
                for run in [&mut runs.0, &mut runs.1] {
                    run.push(&order.to_be_bytes(), &vec![7; order as usize * 9], 1 + (order == 3) as i64);
                }
            }
            runs.0.close_key(key);
            runs.1.close_key(key);
            state.absorb(&mut runs.0);
        }
        state.load(runs.0);
        plain.load(runs.1);
        for _ in 0..3_000 {
            let key = Row::from(&random.below((round + 1) * 400).to_be_bytes());
            let (order, diff) = (random.below(5).to_be_bytes(), random.below(3) as i64 - 1);
            assert_eq!(state.at(&key).add(&order, diff), plain.at(&key).add(&order, diff));
        }
        assert_eq!(state.len(), plain.len());
    }
    for key in plain.keys() {
        let (a, b) = (state.at(&key), plain.at(&key));
        assert!(a.scan().eq(b.scan()));
    }
    let in_files =
        state.segments.iter().filter(|segment| segment.sealed().bytes() == 0).map(Segment::len).sum::<usize>();
    assert!(in_files * 2 > state.len(), "{in_files} of {}", state.len());
    assert!(state.bytes() < plain.bytes() / 2, "{} of {}", state.bytes(), plain.bytes());
    assert!(shelf.taken() < 30_000, "{}", shelf.taken());
    drop(state);
    assert_eq!(shelf.taken(), 0);
}

/// A shelf that fails at any moment leaves the state as it is.
#[test]
fn a_full_disk_loses_nothing() {
    for writes in (0..40).chain([60, 100, 200]) {
        let shelf = TestShelf::failing(2_000, writes);
        let mut random = Random::new(writes as u64);
        let mut state = KeyedState::<Bytewise>::with_overlay(32);
        state.put_on(&(Arc::new(shelf) as Arc<dyn Shelf>));
        let mut model = Reference::new();
        for _ in 0..4_000 {
            let (key, order) = (Row::from(&random.below(40).to_be_bytes()), random.below(60).to_be_bytes());
            let id = (key.to_vec(), order.to_vec());
            let old = model.get(&id).map_or(0, |entry| entry.2);
            let diff = if old > 0 { -old } else { 1 };
            assert_eq!(state.at(&key).add(&order, diff), (old, old + diff));
            match old + diff {
                0 => _ = model.remove(&id),
                count => _ = model.insert(id, (order.to_vec(), vec![], count)),
            }
        }
        for key in 0..40u64 {
            check_key(&mut state, &model, &Row::from(&key.to_be_bytes()), &[0, 0, 0, 0, 0, 0, 0, 30]);
        }
    }
}
