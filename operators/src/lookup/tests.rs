#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use differential_dataflow::input::InputSession;
use timely::dataflow::operators::Probe;

use super::*;
use crate::Distinct;
use crate::epochs::{LIMITS, Limits};
use crate::testing::{Feed, Random, add, carried, check, random_feed, run2, totals};

const KINDS: [LookupKind; 4] = [LookupKind::Left, LookupKind::Inner, LookupKind::Semi, LookupKind::Anti];

type Item = (Option<Row>, Row);
type Out = BTreeMap<(Row, Option<Row>), Diff>;

fn oracle(kind: LookupKind, rows: &BTreeMap<Item, Diff>, reference: &BTreeMap<(Row, Row), Diff>) -> Out {
    let mut out = Out::new();
    for ((key, row), count) in rows {
        let matching = reference.iter().filter(|((k, _), n)| Some(k) == key.as_ref() && **n > 0);
        let found = matching.map(|((_, value), _)| value.clone()).min();
        let shown = match (kind, found) {
            (LookupKind::Left, found) => found,
            (LookupKind::Inner, Some(found)) => Some(found),
            (LookupKind::Semi, Some(_)) | (LookupKind::Anti, None) => None,
            _ => continue,
        };
        add(&mut out, &[((row.clone(), shown), *count)]);
    }
    out
}

fn text(prefix: &str, n: u64) -> Row {
    Row::from(format!("{prefix}{n}").as_bytes())
}

fn feeds(random: &mut Random, epochs: usize, keys: u64, retract: u64) -> (Feed<Item>, Feed<(Row, Row)>) {
    let rows = random_feed(random, 120, epochs, retract, |r| {
        // A row holds its key, so that rows of different keys differ.
        let (null, key) = (r.below(8) == 0, r.below(keys));
        let row = text(&format!("{key}-{null}-"), r.below(12));
        ((!null).then(|| text("k", key)), row)
    });
    let reference =
        random_feed(random, 30, epochs, retract + 20, |r| (text("k", r.below(keys)), text("ref", r.below(3))));
    (rows, reference)
}

#[test]
fn equals_the_oracle_in_a_dataflow() {
    for seed in 0..48u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let kind = KINDS[seed as usize % 4];
        let epochs = 1 + random.below(10) as usize;
        let keys = 1 + random.below(8);
        let feeds = feeds(&mut random, epochs, keys, 30);
        let references = totals(&feeds.1);
        let workers = 1 + (seed / 4 % 2) as usize;
        let output = run2(workers, 1 + random.below(3) as usize, feeds.clone(), move |rows, reference| {
            rows.lookup(reference, kind, "lookup")
        });
        check(&feeds.0, &output, |epoch, rows| oracle(kind, rows, &references[epoch]));
    }
}

#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..140u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let kind = KINDS[seed as usize % 4];
        let (rows, reference) = feeds(&mut random, 12, 1 + seed % 5, 40);
        let references = totals(&reference);
        let mut state = LookupState::with_overlay(kind, false, 16);
        let mut output = Feed::new();
        for (epoch, (rows, reference)) in rows.iter().zip(&reference).enumerate() {
            if epoch % 5 == 4 {
                let snapshot = carried(&state.snapshot());
                state = LookupState::with_overlay(kind, false, 16);
                state.restore(&snapshot, Share::new(0, 2)).unwrap();
                state.restore(&snapshot, Share::new(1, 2)).unwrap();
            }
            let mut out = Vec::new();
            state.apply(rows.clone(), reference, &mut out);
            output.push(out);
        }
        check(&rows, &output, |epoch, rows| oracle(kind, rows, &references[epoch]));
    }
}

/// With a reference that only grows, rows that are resolved need not be kept, and nothing shows.
#[test]
fn settled_references_give_the_same() {
    for seed in 200..240u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let kind = KINDS[seed as usize % 4];
        let (rows, _) = feeds(&mut random, 10, 4, 40);
        let reference = random_feed(&mut random, 6, 10, 0, |r| {
            let key = r.below(4);
            (text("k", key), text("ref", key))
        });
        let references = totals(&reference);
        let mut state = LookupState::with_overlay(kind, true, 16);
        let mut output = Feed::new();
        for (rows, reference) in rows.iter().zip(&reference) {
            let mut out = Vec::new();
            state.apply(rows.clone(), reference, &mut out);
            output.push(out);
        }
        check(&rows, &output, |epoch, rows| oracle(kind, rows, &references[epoch]));
        let known: BTreeSet<_> = references[9].keys().map(|(key, _)| key).collect();
        assert!(state.sides.rows.keys().iter().all(|key| !known.contains(key)));
    }
}

#[test]
fn a_row_and_its_reference_in_one_epoch_are_one_record() {
    let (key, row, reference) = (text("k", 1), text("row", 1), text("ref", 1));
    let mut out = Vec::new();
    let mut state = LookupState::new(LookupKind::Left);
    state.apply(vec![((Some(key.clone()), row.clone()), 1)], &[((key.clone(), reference.clone()), 1)], &mut out);
    assert_eq!(out, [((row.clone(), Some(reference.clone())), 1)]);
    out.clear();
    // Both go in one epoch.
    state.apply(vec![((Some(key.clone()), row.clone()), -1)], &[((key, reference.clone()), -1)], &mut out);
    assert_eq!(out, [((row, Some(reference)), -1)]);
}

/// While a million rows would follow their reference, an operator beside it goes on, and no more is given in a step than
/// the fuel allows. The epoch is not over before all rows have followed.
#[test]
fn a_reference_of_many_rows_does_not_stall_the_worker() {
    const ROWS: u64 = 5_000;
    const FUEL: usize = 50;
    timely::execute_directly(|worker| {
        LIMITS.set(Limits { fuel: FUEL, split: 1_000 });
        let mut rows = InputSession::<Epoch, Item, Diff>::new();
        let mut reference = InputSession::<Epoch, (Row, Row), Diff>::new();
        let mut others = InputSession::<Epoch, Row, Diff>::new();
        let given = Rc::new(Cell::new(0usize));
        let count = Rc::clone(&given);
        let (found, beside) = worker.dataflow::<Epoch, _, _>(|scope| {
            let matched = rows.to_collection(scope).lookup(reference.to_collection(scope), LookupKind::Left, "lookup");
            let matched = matched.inspect(move |_| count.set(count.get() + 1)).inner.probe().0;
            (matched, others.to_collection(scope).distinct_rows("others").inner.probe().0)
        });
        for n in 0..ROWS {
            rows.update((Some(text("hot", 0)), text("row", n)), 1);
        }
        rows.advance_to(1);
        reference.advance_to(1);
        rows.flush();
        reference.flush();
        while found.less_than(&1) {
            worker.step();
        }
        reference.update((text("hot", 0), text("ref", 0)), 1);
        rows.advance_to(2);
        reference.advance_to(2);
        rows.flush();
        reference.flush();
        let mut turns = 0;
        while found.less_than(&2) {
            turns += 1;
            others.update(text("other", turns), 1);
            others.advance_to(turns);
            others.flush();
            let before = given.get();
            worker.step();
            let now = given.get() - before;
            assert!(now <= 4 * FUEL, "{now} rows in a step");
        }
        assert_eq!(given.get() as u64, 3 * ROWS, "each row once without, then taken back, and with its reference");
        assert!(turns > ROWS / FUEL as u64 / 2, "{turns}");
        assert!(!beside.less_than(&(turns - 10)), "what came beside it was held up");
    });
}

/// Whatever an operator does in one go: what it remembers when an epoch is over is what it would remember if it did all
/// at once, and goes on the same way.
#[test]
fn a_snapshot_between_epochs_knows_nothing_of_portions() {
    for seed in 300..324u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let settled = seed % 3 == 0;
        let kind = KINDS[seed as usize % 4];
        let epochs = 6;
        let (rows, reference) = feeds(&mut random, epochs, 1 + seed % 3, 30);
        // What is settled stays.
        let reference = if settled { reference.iter().map(|_| Vec::new()).collect() } else { reference };
        let mut reference: Feed<(Row, Row)> = reference;
        if settled {
            reference[3].push(((text("k", 0), text("ref", 0)), 1));
        }
        let cut = 1 + random.below(epochs as u64 - 1) as usize;
        let new = move || LookupState::with_overlay(kind, settled, 16);
        let mut whole = new();
        let mut expected = Feed::new();
        for (rows, reference) in rows.iter().zip(&reference) {
            let mut out = Vec::new();
            whole.apply(rows.clone(), reference, &mut out);
            out.sort();
            expected.push(out);
        }
        timely::execute_directly(move |worker| {
            LIMITS.set(Limits { fuel: [1, 7][seed as usize % 2], split: 3 });
            let state = shared(new());
            let mut left = InputSession::<Epoch, Item, Diff>::new();
            let mut right = InputSession::<Epoch, (Row, Row), Diff>::new();
            let probe = worker.dataflow::<Epoch, _, _>(|scope| {
                let right = right.to_collection(scope);
                left.to_collection(scope).lookup_with(right, "lookup", Rc::clone(&state)).inner.probe().0
            });
            for epoch in 0..cut {
                rows[epoch].iter().for_each(|(row, diff)| left.update(row.clone(), *diff));
                reference[epoch].iter().for_each(|(row, diff)| right.update(row.clone(), *diff));
                let next = epoch as Epoch + 1;
                left.advance_to(next);
                right.advance_to(next);
                left.flush();
                right.flush();
                while probe.less_than(&next) {
                    worker.step();
                }
            }
            let mut again = new();
            again.restore(&carried(&state.borrow_mut().snapshot()), Share::ALL).unwrap();
            for epoch in cut..epochs {
                let mut out = Vec::new();
                again.apply(rows[epoch].clone(), &reference[epoch], &mut out);
                out.sort();
                assert_eq!(out, expected[epoch], "epoch {epoch} after a snapshot at {cut}");
            }
        });
    }
}
