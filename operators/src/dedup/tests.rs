#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::testing::{Feed, Random, carried, check, once, random_feed, run};

fn text(prefix: &str, n: u64) -> Row {
    Row::from(format!("{prefix}{n}").as_bytes())
}

fn least(rows: &BTreeMap<(Row, Row), Diff>) -> BTreeMap<Row, Diff> {
    let mut best: BTreeMap<&Row, &Row> = BTreeMap::new();
    for ((key, row), count) in rows {
        if *count > 0 {
            let current = best.entry(key).or_insert(row);
            *current = (*current).min(row);
        }
    }
    once(best.into_values().cloned())
}

fn present(rows: &BTreeMap<Row, Diff>) -> BTreeMap<Row, Diff> {
    once(rows.iter().filter(|(_, count)| **count > 0).map(|(row, _)| row.clone()))
}

#[test]
fn equals_the_oracle_in_a_dataflow() {
    for seed in 0..24u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let workers = 1 + (seed % 2) as usize;
        let epochs = 1 + random.below(10) as usize;
        // The key is part of the row, so that rows of different keys differ.
        let feed = random_feed(&mut random, 120, epochs, 60, |r| {
            let key = text("k", r.below(5));
            let row = [key.as_bytes(), text("-", r.below(6)).as_bytes()].concat();
            (key, Row::from(row))
        });
        let output = run(workers, 2, feed.clone(), |rows| rows.dedup("first"));
        check(&feed, &output, |_, rows| least(rows));

        let feed = random_feed(&mut random, 120, epochs, 60, |r| text("row", r.below(20)));
        let output = run(workers, 2, feed.clone(), |rows| rows.distinct_rows("distinct"));
        check(&feed, &output, |_, rows| present(rows));
    }
}

#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..120u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let feed = random_feed(&mut random, 300, 12, 60, |r| (text("k", r.below(3)), text("row", r.below(60))));
        let mut keyed = DedupState::with_overlay(16);
        let mut whole = DistinctState::with_overlay(16);
        let (mut firsts, mut distinct) = (Feed::new(), Feed::new());
        for (epoch, rows) in feed.iter().enumerate() {
            if epoch % 5 == 4 {
                let (a, b) = (carried(&keyed.snapshot()), carried(&whole.snapshot()));
                (keyed, whole) = (DedupState::with_overlay(16), DistinctState::with_overlay(16));
                assert!(keyed.restore(&b, Share::ALL).is_err());
                keyed.restore(&a, Share::ALL).unwrap();
                whole.restore(&b, Share::ALL).unwrap();
            }
            let mut out = Vec::new();
            keyed.apply(rows, &mut out);
            firsts.push(out);
            let mut out = Vec::new();
            whole.apply(rows.iter().map(|((_, row), diff)| (row.clone(), *diff)).collect(), &mut out);
            distinct.push(out);
        }
        check(&feed, &firsts, |_, rows| least(rows));
        let rows: Feed<Row> =
            feed.iter().map(|epoch| epoch.iter().map(|((_, row), diff)| (row.clone(), *diff)).collect()).collect();
        check(&rows, &distinct, |_, rows| present(rows));
    }
}
