#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use super::*;
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
                state.restore(&snapshot, &|hash| hash.is_multiple_of(2)).unwrap();
                state.restore(&snapshot, &|hash| !hash.is_multiple_of(2)).unwrap();
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
