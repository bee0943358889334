#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::event::Upsert;
use crate::stable_hash;
use crate::testing::{Feed, Random, add, carried, check, draw_change, once, random_feed, run_history, winners};

fn row(text: impl AsRef<[u8]>) -> Row {
    Row::from(text.as_ref())
}

fn upsert(sequence: u64, tracked: &str, value: &str) -> Change {
    let upsert = Upsert { tracked: tracked.as_bytes(), ..Upsert::of(value.as_bytes()) };
    Change::new(&sequence.to_be_bytes(), Some(upsert))
}

fn delete(sequence: u64) -> Change {
    Change::delete(&sequence.to_be_bytes())
}

/// The definition, read aloud.
fn history(winners: &[Change]) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for (i, winner) in winners.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| winners[i].upsert());
        let continues = before.is_some_and(|before| winner.upsert().is_some_and(|own| own.tracked == before.tracked));
        match (winner.upsert(), versions.last_mut()) {
            (Some(upsert), Some(version)) if continues => version.value = row(upsert.value),
            (upsert, last) => {
                if let Some(version) = last.filter(|version| version.end.is_none()) {
                    version.end = Some(row(winner.sequence()));
                }
                let start = row(winner.sequence());
                versions.extend(upsert.iter().map(|upsert| Version {
                    start: start.clone(),
                    end: None,
                    value: row(upsert.value),
                }));
            }
        }
    }
    versions
}

fn oracle(input: &BTreeMap<(Row, Change), Diff>) -> BTreeMap<(Row, Version), Diff> {
    once(
        winners(input)
            .into_iter()
            .flat_map(|(key, winners)| history(&winners).into_iter().map(move |version| (key.clone(), version))),
    )
}

#[test]
fn equals_the_oracle_in_a_dataflow() {
    for seed in 0..40u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let epochs = 1 + random.below(12) as usize;
        let (keys, sequences) = (1 + random.below(6), 2 + random.below(20));
        let feed = random_feed(&mut random, 120, epochs, 35, |r| draw_change(r, keys, sequences, 3));
        let workers = 1 + (seed % 2) as usize;
        let nothing = vec![Vec::new(); epochs];
        let output = run_history(workers, 1 + random.below(4) as usize, &feed, &nothing, |rows, _, ties| {
            rows.scd2("history", ties)
        });
        check(&feed, &output, |_, input| oracle(input));
    }
}

/// The state alone, with so small an overlay that segments and merges are part of it, and a
/// snapshot, split over two states, in the middle.
#[test]
fn equals_the_oracle_across_segments_and_snapshots() {
    for seed in 100..140u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let epochs = 20;
        let (keys, sequences) = (1 + random.below(3), 4 + random.below(60));
        let feed = random_feed(&mut random, 400, epochs, 40, |r| draw_change(r, keys, sequences, 2));
        let mut states = vec![Scd2State::with_overlay(16)];
        let mut output: Feed<(Row, Version)> = Vec::new();
        for (epoch, updates) in feed.iter().enumerate() {
            if epoch == epochs / 2 {
                let snapshot = carried(&states[0].snapshot());
                states = (0..2u64)
                    .map(|shard| {
                        let mut state = Scd2State::with_overlay(16);
                        state.restore(&snapshot, Share::new(shard, 2)).unwrap();
                        state
                    })
                    .collect();
            }
            let mut out = Vec::new();
            let shards = states.len() as u64;
            for (shard, state) in states.iter_mut().enumerate() {
                let mine: Vec<_> =
                    updates.iter().filter(|((k, _), _)| stable_hash(k) % shards == shard as u64).cloned().collect();
                state.apply(&mine, &mut out);
            }
            output.push(out);
        }
        check(&feed, &output, |_, input| oracle(input));
    }
}

/// The same changes in one epoch, in many, and in any order leave the same state behind.
#[test]
fn arrival_does_not_matter() {
    for seed in 200..220u64 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut changes: Vec<_> = (0..150).map(|_| (draw_change(&mut random, 4, 25, 3), 1)).collect();
        let mut results = Vec::new();
        for size in [150, 150, 1, 7, 40] {
            random.shuffle(&mut changes);
            let mut state = Scd2State::new();
            let mut total = BTreeMap::new();
            for part in changes.chunks(size) {
                let mut out = Vec::new();
                state.apply(part, &mut out);
                add(&mut total, &out);
            }
            results.push(total);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

fn versions(changes: &[Change]) -> Vec<(u64, Option<u64>, String)> {
    let number = |row: &Row| u64::from_be_bytes((**row).try_into().unwrap());
    let mut state = Scd2State::new();
    let mut total = BTreeMap::new();
    for change in changes {
        let mut out = Vec::new();
        state.apply(&[((row("k"), change.clone()), 1)], &mut out);
        add(&mut total, &out);
    }
    assert!(total.values().all(|count| *count == 1));
    let text = |row: &Row| String::from_utf8(row.to_vec()).unwrap();
    total.into_keys().map(|(_, v)| (number(&v.start), v.end.as_ref().map(number), text(&v.value))).collect()
}

#[test]
fn runs_deletes_and_late_changes() {
    let v = |start, end, value: &str| (start, end, value.to_owned());
    // A late change splits a run of equal ones.
    assert_eq!(
        versions(&[upsert(1, "a", "a"), upsert(5, "a", "a"), upsert(3, "b", "b")]),
        [v(1, Some(3), "a"), v(3, Some(5), "b"), v(5, None, "a")]
    );
    // A version shows the value of the last change of its run.
    assert_eq!(versions(&[upsert(1, "a", "a1"), upsert(4, "a", "a2")]), [v(1, None, "a2")]);
    // Deletes: late, repeated, with nothing to end, tied with an upsert.
    assert_eq!(
        versions(&[
            delete(9),
            upsert(1, "a", "a"),
            delete(4),
            delete(6),
            upsert(12, "a", "a"),
            upsert(6, "z", "z"),
            delete(0)
        ]),
        [v(1, Some(4), "a"), v(12, None, "a")]
    );
    // Of two upserts at one sequence the greater stays.
    assert_eq!(versions(&[upsert(1, "b", "b"), upsert(1, "a", "a")]), [v(1, None, "b")]);
}

/// Work for a change does not grow with the key's history: two hundred thousand late changes into
/// one long run and into one long history, each of which would otherwise be a pass over it.
#[test]
fn long_histories_stay_cheap() {
    let n = 200_000u64;
    for same in [true, false] {
        let tracked = |i: u64| {
            if same { "t".to_owned() } else { format!("t{i}") }
        };
        let mut state = Scd2State::new();
        let changes: Vec<_> = (0..n).map(|i| ((row("k"), upsert(i * 2, &tracked(i), "v")), 1)).collect();
        let mut out = Vec::new();
        state.apply(&changes, &mut out);
        assert_eq!(out.len() as u64, if same { 1 } else { n });
        let mut random = Random::new(1);
        let mut touched = 0;
        for _ in 0..20_000 {
            let change = upsert(random.below(n) * 2 + 1, "late", "late");
            out.clear();
            state.apply(&[((row("k"), change.clone()), 1)], &mut out);
            touched += out.len();
            if random.below(2) == 0 {
                state.apply(&[((row("k"), change), -1)], &mut out);
            }
        }
        assert!(touched <= 20_000 * 4);
    }
}

/// An event of a row of 64 bytes and a key of 18 takes at most 130 bytes once it is in a segment, whether a key has few
/// events or more, loaded or restored.
#[test]
fn an_event_takes_little_memory() {
    for events_a_key in [2, 10u64] {
        let all: Vec<((Row, Change), Diff)> = (0..100_000u64)
            .map(|n| {
                let key = row(format!("key {:014}", n * 7 % (100_000 / events_a_key)));
                let value = format!("{n:064}");
                let upsert = Upsert { tracked: &value.as_bytes()[56..], ..Upsert::of(value.as_bytes()) };
                ((key, Change::new(&n.to_be_bytes(), Some(upsert))), 1)
            })
            .collect();
        let mut state = Scd2State::new();
        state.apply(&all, &mut Vec::new());
        let mut again = Scd2State::new();
        again.restore(&carried(&state.snapshot()), Share::ALL).unwrap();
        let each = [state.bytes(), again.bytes()].map(|bytes| bytes / 100_000);
        println!("{events_a_key} events a key: {each:?} bytes an event");
        assert!(each.iter().all(|each| *each <= 130), "{each:?}");
    }
}
