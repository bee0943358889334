#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::testing::{Feed, Random, add, carried, check, random_feed, run2, totals};

type Item = (Option<Row>, Row);
type Out = BTreeMap<(Row, Option<Row>), Diff>;

fn oracle(kind: JoinKind, rows: &BTreeMap<Item, Diff>, reference: &BTreeMap<(Row, Row), Diff>) -> Out {
    let mut out = Out::new();
    for ((key, row), count) in rows {
        let mut any = false;
        for ((k, value), n) in reference {
            if Some(k) == key.as_ref() {
                any = true;
                add(&mut out, &[((row.clone(), Some(value.clone())), count * n)]);
            }
        }
        if !any && kind == JoinKind::Left {
            add(&mut out, &[((row.clone(), None), *count)]);
        }
    }
    out
}

fn text(prefix: &str, n: u64) -> Row {
    Row::from(format!("{prefix}{n}").as_bytes())
}

fn feeds(random: &mut Random, epochs: usize, keys: u64) -> (Feed<Item>, Feed<(Row, Row)>) {
    let rows = random_feed(random, 60, epochs, 40, |r| {
        // A row holds its key, so that rows of different keys differ.
        let (null, key) = (r.below(8) == 0, r.below(keys));
        let row = text(&format!("{key}-{null}-"), r.below(6));
        ((!null).then(|| text("k", key)), row)
    });
    let reference = random_feed(random, 30, epochs, 60, |r| (text("k", r.below(keys)), text("ref", r.below(4))));
    (rows, reference)
}

fn kind(seed: u64) -> JoinKind {
    if seed.is_multiple_of(2) { JoinKind::Left } else { JoinKind::Inner }
}

#[test]
fn equals_the_oracle_in_a_dataflow() {
    for seed in 0..32u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let kind = kind(seed);
        let (epochs, keys) = (1 + random.below(10) as usize, 1 + random.below(6));
        let feeds = feeds(&mut random, epochs, keys);
        let references = totals(&feeds.1);
        let workers = 1 + (seed / 2 % 2) as usize;
        let output = run2(workers, 1 + random.below(3) as usize, feeds.clone(), move |rows, reference| {
            rows.equi_join(reference, kind, "join")
        });
        check(&feeds.0, &output, |epoch, rows| oracle(kind, rows, &references[epoch]));
    }
}

#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..132u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let kind = kind(seed);
        let (rows, reference) = feeds(&mut random, 12, 1 + seed % 5);
        let references = totals(&reference);
        let mut state = JoinState::with_overlay(kind, 16);
        let mut output = Feed::new();
        for (epoch, (rows, reference)) in rows.iter().zip(&reference).enumerate() {
            if epoch % 5 == 4 {
                let snapshot = carried(&state.snapshot());
                state = JoinState::with_overlay(kind, 16);
                state.restore(&snapshot, Share::ALL).unwrap();
            }
            let mut out = Vec::new();
            state.apply(rows.clone(), reference, &mut out);
            output.push(out);
        }
        check(&rows, &output, |epoch, rows| oracle(kind, rows, &references[epoch]));
    }
}
