#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::stable_hash;
use crate::testing::{Feed, Random, carried, check, draw_change, random_feed, run_history, totals, winners};

fn sequence(n: u64) -> Row {
    Row::from(n.to_be_bytes().as_slice())
}

fn oracle(changes: &BTreeMap<(Row, Change), Diff>, truncates: &BTreeMap<Row, Diff>) -> BTreeMap<(Row, Row), Diff> {
    let truncated = truncates.iter().filter(|(_, count)| **count > 0).map(|(sequence, _)| sequence).max();
    let mut out = BTreeMap::new();
    for (key, winners) in winners(changes) {
        if let Some(winner) = winners.last()
            && let Some(upsert) = winner.upsert()
            && truncated.is_none_or(|truncated| winner.sequence() > truncated.as_bytes())
        {
            out.insert((key, Row::from(upsert.value)), 1);
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
        let (keys, sequences) = (1 + random.below(6), 2 + random.below(20));
        let changes = random_feed(&mut random, 100, epochs, 35, |r| draw_change(r, keys, sequences, 3));
        let truncates = random_feed(&mut random, seed as usize % 5, epochs, 40, |r| sequence(r.below(sequences)));
        let all = totals(&truncates);
        let workers = 1 + (seed % 2) as usize;
        let output = run_history(workers, 2, &changes, &truncates, |changes, truncates, ties| {
            changes.scd1(truncates, "newest", ties)
        });
        check(&changes, &output, |epoch, changes| oracle(changes, &all[epoch]));
    }
}

#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..160u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let append_only = seed % 2 == 0;
        let epochs = 15;
        let (keys, sequences) = (1 + random.below(5), 4 + random.below(60));
        let retract = if append_only { 0 } else { 40 };
        let changes = random_feed(&mut random, 300, epochs, retract, |r| draw_change(r, keys, sequences, 3));
        let truncates = random_feed(&mut random, 5, epochs, 50, |r| sequence(r.below(sequences)));
        let all = totals(&truncates);
        let mut states = vec![Scd1State::with_overlay(append_only, 16)];
        let mut output = Feed::new();
        for (epoch, updates) in changes.iter().enumerate() {
            if epoch % 6 == 5 {
                let shards: Vec<_> = states.iter_mut().map(|state| carried(&state.snapshot())).collect();
                let workers = 1 + random.below(3);
                states = (0..workers)
                    .map(|worker| {
                        let mut state = Scd1State::with_overlay(append_only, 16);
                        for shard in &shards {
                            state.restore(shard, Share::new(worker, workers)).unwrap();
                        }
                        state
                    })
                    .collect();
            }
            let mut out = Vec::new();
            let workers = states.len() as u64;
            for (worker, state) in states.iter_mut().enumerate() {
                let mine: Vec<_> = updates
                    .iter()
                    .filter(|((key, _), _)| stable_hash(key) % workers == worker as u64)
                    .cloned()
                    .collect();
                state.apply(&mine, &truncates[epoch], &mut out);
            }
            output.push(out);
        }
        check(&changes, &output, |epoch, changes| oracle(changes, &all[epoch]));
        if append_only {
            let stored: usize = states.iter().map(|state| state.events.len()).sum();
            assert_eq!(stored, winners(totals(&changes).last().unwrap()).len());
        }
    }
}

fn upsert(at: u64, value: &str) -> Change {
    Change::new(&sequence(at), Some(crate::Upsert::of(value.as_bytes())))
}

/// Truncate at 3 takes what was last written at 1 and 2 and leaves what was last written at 6.
#[test]
fn a_truncate_deletes_what_is_older_whenever_it_comes() {
    let row = |text: &str| Row::from(text.as_bytes());
    let changes = [
        ((row("a"), upsert(1, "a1")), 1),
        ((row("b"), upsert(2, "b2")), 1),
        ((row("c"), upsert(3, "c3")), 1),
        ((row("d"), upsert(2, "d2")), 1),
        ((row("d"), upsert(6, "d6")), 1),
    ];
    for early in [true, false] {
        let mut state = Scd1State::new();
        let mut total = BTreeMap::new();
        let truncate = [(sequence(3), 1)];
        let steps: [(&[_], &[_]); 2] =
            if early { [(&[], &truncate), (&changes, &[])] } else { [(&changes, &[]), (&[], &truncate)] };
        for (changes, truncates) in steps {
            let mut out = Vec::new();
            state.apply(changes, truncates, &mut out);
            crate::testing::add(&mut total, &out);
        }
        assert_eq!(total, BTreeMap::from([((row("d"), row("d6")), 1)]));
        // A change older than the truncate does not bring the key back; the retraction of the
        // truncate does.
        let mut out = Vec::new();
        state.apply(&[((row("a"), upsert(2, "a2")), 1)], &[], &mut out);
        assert_eq!(out, []);
        state.apply(&[], &[(sequence(3), -1)], &mut out);
        assert_eq!(out.len(), 3);
        assert!(out.contains(&((row("a"), row("a2")), 1)));
    }
}
