#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::testing::{Feed, Random, carried, check, random_feed, run_history, totals, winners};

fn sequence(n: u64) -> Row {
    Row::from(n.to_be_bytes().as_slice())
}

/// Three columns of one byte; `-` is null and leaves the column as it was.
fn merge(previous: Option<&[u8]>, own: &[u8]) -> Row {
    let column = |(i, byte): (usize, &u8)| match previous {
        Some(previous) if *byte == b'-' => previous[i],
        _ => *byte,
    };
    Row::from(own.iter().enumerate().map(column).collect::<Vec<u8>>())
}

fn draw(random: &mut Random, keys: u64, sequences: u64) -> (Row, Change) {
    let key = Row::from(format!("k{}", random.below(keys)).as_bytes());
    let at = sequence(random.below(sequences));
    if random.below(7) == 0 {
        return (key, Change::delete(&at));
    }
    let value = (0..3).map(|_| b"---xy"[random.below(5) as usize]).collect::<Vec<u8>>();
    let rank = random.below(3).to_string();
    (key, Change::new(&at, Some(Upsert { rank: rank.as_bytes(), ..Upsert::of(&value) })))
}

fn oracle(changes: &BTreeMap<(Row, Change), Diff>, truncates: &BTreeMap<Row, Diff>) -> BTreeMap<(Row, Change), Diff> {
    let mut out = BTreeMap::new();
    for (key, winners) in winners(changes) {
        // Truncates are deletes among the winners, and win.
        let mut all: BTreeMap<Row, (bool, Option<Change>)> = BTreeMap::new();
        for winner in winners {
            all.insert(Row::from(winner.sequence()), (false, Some(winner)));
        }
        for (sequence, count) in truncates {
            if *count > 0 {
                all.entry(sequence.clone()).or_insert((true, None)).0 = true;
            }
        }
        let mut previous: Option<Row> = None;
        for (truncate, winner) in all.into_values() {
            match winner.as_ref().map(|winner| (winner.sequence(), winner.upsert())) {
                Some((sequence, Some(upsert))) if !truncate => {
                    let value = merge(previous.as_deref(), upsert.value);
                    out.insert((key.clone(), Change::new(sequence, Some(Upsert { value: &value, ..upsert }))), 1);
                    previous = Some(value);
                }
                Some((sequence, None)) => {
                    previous = None;
                    out.insert((key.clone(), Change::delete(sequence)), 1);
                }
                _ => previous = None,
            }
        }
    }
    out
}

#[test]
fn equals_the_oracle_in_a_dataflow() {
    for seed in 0..40u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let epochs = 1 + random.below(12) as usize;
        let (keys, sequences) = (1 + random.below(5), 2 + random.below(20));
        let changes = random_feed(&mut random, 100, epochs, 35, |r| draw(r, keys, sequences));
        let truncates = random_feed(&mut random, seed as usize % 5, epochs, 40, |r| sequence(r.below(sequences)));
        let all = totals(&truncates);
        let workers = 1 + (seed % 2) as usize;
        let output = run_history(workers, 2, &changes, &truncates, |changes, truncates, ties| {
            changes.fill(truncates, "fill", merge, ties)
        });
        check(&changes, &output, |epoch, changes| oracle(changes, &all[epoch]));
    }
}

#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..160u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let epochs = 15;
        let (keys, sequences) = (1 + random.below(3), 4 + random.below(60));
        let changes = random_feed(&mut random, 300, epochs, 40, |r| draw(r, keys, sequences));
        let truncates = random_feed(&mut random, 5, epochs, 50, |r| sequence(r.below(sequences)));
        let all = totals(&truncates);
        let mut state = FillState::with_overlay(16);
        let mut output = Feed::new();
        for (epoch, updates) in changes.iter().enumerate() {
            if epoch % 6 == 5 {
                let snapshot = carried(&state.snapshot());
                state = FillState::with_overlay(16);
                state.restore(&snapshot, Share::new(1, 2)).unwrap();
                state.restore(&snapshot, Share::new(0, 2)).unwrap();
            }
            let mut out = Vec::new();
            state.apply(updates, &truncates[epoch], &merge, &mut out);
            output.push(out);
        }
        check(&changes, &output, |epoch, changes| oracle(changes, &all[epoch]));
    }
}

/// A late value reaches the later updates that inherit it, and no further.
#[test]
fn a_late_update_goes_as_far_as_it_is_inherited() {
    let key = Row::from(b"k");
    let at = |n: u64, value: &str| Change::new(&sequence(n), Some(Upsert::of(value.as_bytes())));
    let mut state = FillState::new();
    let mut out = Vec::new();
    let first: Vec<_> = [at(1, "a--"), at(4, "--c"), at(6, "b--"), at(8, "---")].map(|c| ((key.clone(), c), 1)).into();
    state.apply(&first, &[], &merge, &mut out);
    let values = |out: &[((Row, Change), Diff)]| -> Vec<(String, Diff)> {
        out.iter().map(|((_, c), d)| (String::from_utf8(c.upsert().unwrap().value.to_vec()).unwrap(), *d)).collect()
    };
    let text = |list: &[(&str, Diff)]| list.iter().map(|(s, d)| ((*s).to_owned(), *d)).collect::<Vec<_>>();
    assert_eq!(values(&out), text(&[("a--", 1), ("a-c", 1), ("b-c", 1), ("b-c", 1)]));
    out.clear();
    state.apply(&[((key.clone(), at(2, "z--")), 1)], &[], &merge, &mut out);
    assert_eq!(values(&out), text(&[("z--", 1), ("a-c", -1), ("z-c", 1)]));
    out.clear();
    state.apply(&[((key.clone(), Change::delete(&sequence(5))), 1)], &[], &merge, &mut out);
    assert_eq!(out.len(), 5);
    let upserts: Vec<_> = out.into_iter().filter(|((_, c), _)| c.upsert().is_some()).collect();
    assert_eq!(values(&upserts), text(&[("b-c", -1), ("b--", 1), ("b-c", -1), ("b--", 1)]));
}
