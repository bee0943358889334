//! Random rows and clocks against a look at every row in every epoch.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::testing::{Feed, Random, add, random_feed, run2, totals};

fn draw(random: &mut Random) -> Timed {
    let row = random.below(20);
    // The moments are a function of the row.
    let mut own = Random::new(row);
    let mut moments: Vec<Moment> = (0..own.below(4)).map(|_| own.below(40) as Moment + 1).collect();
    moments.sort_unstable();
    moments.dedup();
    Timed { row: Row::from(row.to_string().as_bytes()), moments }
}

/// A clock that stands, jumps, and sometimes is set back.
fn walls(random: &mut Random, epochs: usize) -> Vec<Moment> {
    let mut now = 5;
    (0..epochs)
        .map(|_| {
            now = (now + [0, 1, 1, 2, 9, -3][random.below(6) as usize]).max(0);
            now
        })
        .collect()
}

/// What a turn stands for.
fn expanded(changes: &[(Standing, Diff)]) -> Vec<((Row, Moment), Diff)> {
    let mut all = Vec::new();
    for (Standing { row, before, now }, diff) in changes {
        if let Some(before) = before {
            all.push(((row.clone(), *before), -diff));
        }
        all.push(((row.clone(), *now), *diff));
    }
    all
}

#[test]
fn every_row_stands_where_the_clock_is() {
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let epochs = 1 + random.below(15) as usize;
        let workers = 1 + (seed % 3) as usize;
        let in_flight = 1 + random.below(3) as usize;
        let walls = walls(&mut random, epochs);
        let rows: Feed<Timed> = random_feed(&mut random, 40, epochs, 40, draw);
        let ticks: Feed<(u64, Moment)> =
            walls.iter().map(|wall| (0..workers as u64).map(|worker| ((worker, *wall), 1)).collect()).collect();
        let out = run2(workers, in_flight, (rows.clone(), ticks), |rows, ticks| rows.clock(ticks, "clock"));
        let mut shown = BTreeMap::new();
        let mut greatest = 0;
        for (epoch, total) in totals(&rows).iter().enumerate() {
            greatest = greatest.max(walls[epoch]);
            add(&mut shown, &expanded(&out[epoch]));
            let mut expected = BTreeMap::new();
            for (timed, count) in total {
                // The moments between two boundaries are all the same.
                let standing = timed.moments.iter().rfind(|at| **at <= greatest).copied().unwrap_or(0);
                *expected.entry((timed.row.clone(), standing)).or_insert(0) += count;
            }
            assert_eq!(shown, expected, "seed {seed}, epoch {epoch}");
        }
    }
}

#[test]
fn rows_whose_last_boundary_has_passed_leave_the_state() {
    let mut state = ClockState::new();
    let rows =
        (0..100i64).map(|i| (Timed { row: Row::from(vec![i as u8]), moments: vec![i + 1, i + 51] }, 1)).collect();
    let mut out = Vec::new();
    state.apply(rows, Some(0), &mut out);
    assert_eq!((out.len(), state.due()), (100, Some(1)));
    out.clear();
    state.apply(Vec::new(), Some(61), &mut out);
    // Rows 0 to 10 passed both boundaries, 11 to 60 one of them.
    assert_eq!((out.len(), state.waiting.len(), state.due()), (61, 89, Some(62)));
    out.clear();
    state.apply(Vec::new(), Some(59), &mut out);
    assert!(out.is_empty(), "the clock was set back");
    state.apply(Vec::new(), Some(1000), &mut out);
    assert_eq!((out.len(), state.bytes(), state.due()), (89, 0, None));
}

#[test]
fn a_snapshot_goes_on_where_it_was_taken_with_any_number_of_workers() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let walls = walls(&mut random, 12);
        let rows: Feed<Timed> = random_feed(&mut random, 60, 12, 30, draw);
        let cut = 1 + random.below(10) as usize;
        let (before, after) = (1 + seed % 3, 1 + random.below(3));
        let mut whole = ClockState::new();
        let mut parts: Vec<ClockState> = (0..before).map(|_| ClockState::new()).collect();
        let mine = |updates: &[(Timed, Diff)], worker: u64, workers: u64| {
            updates.iter().filter(|(t, _)| stable_hash(&t.row) % workers == worker).cloned().collect::<Vec<_>>()
        };
        for epoch in 0..cut {
            whole.apply(rows[epoch].clone(), Some(walls[epoch]), &mut Vec::new());
            for (worker, part) in (0..).zip(&mut parts) {
                part.apply(mine(&rows[epoch], worker, before), Some(walls[epoch]), &mut Vec::new());
            }
        }
        let shards: Vec<Snapshot> = parts.iter_mut().map(State::snapshot).collect();
        let mut parts: Vec<ClockState> = (0..after)
            .map(|worker| {
                let mut part = ClockState::new();
                for shard in &shards {
                    part.restore(shard, Share::new(worker, after)).unwrap();
                }
                part
            })
            .collect();
        for epoch in cut..12 {
            let (mut expected, mut actual) = (Vec::new(), Vec::new());
            whole.apply(rows[epoch].clone(), Some(walls[epoch]), &mut expected);
            for (worker, part) in (0..).zip(&mut parts) {
                part.apply(mine(&rows[epoch], worker, after), Some(walls[epoch]), &mut actual);
            }
            expected.sort();
            actual.sort();
            assert_eq!(actual, expected, "seed {seed}, epoch {epoch}");
            let due = parts.iter().filter_map(ClockState::due).min();
            assert_eq!(due, whole.due(), "seed {seed}, epoch {epoch}");
        }
    }
}

#[test]
fn damaged_snapshots_are_refused() {
    let mut state = ClockState::new();
    state.apply(vec![(Timed { row: Row::from(b"a"), moments: vec![3, 9] }, 2)], Some(5), &mut Vec::new());
    let good = state.snapshot();
    let part = |order: &[u8]| {
        let mut keyed = KeyedState::<Bytewise>::new();
        keyed.at(&Row::from(b"a")).add(order, 1);
        keyed.freeze()
    };
    let moments = |moments: &[Moment]| moments.iter().flat_map(|m| m.to_be_bytes()).collect::<Vec<u8>>();
    let now = good.parts()[1].clone();
    for order in [moments(&[9, 6]), moments(&[3, 4]), moments(&[]), vec![1, 2, 3]] {
        let bad = Snapshot::new("clock", vec![part(&order), now.clone()]);
        assert_eq!(ClockState::new().restore(&bad, Share::ALL), Err(SnapshotError::Damaged), "{order:?}");
    }
    let without_now = Snapshot::new("clock", vec![part(&moments(&[7])), Vec::new()]);
    assert_eq!(ClockState::new().restore(&without_now, Share::ALL), Err(SnapshotError::Damaged));
    let other = Snapshot::new("dedup", good.parts().to_vec());
    assert!(matches!(ClockState::new().restore(&other, Share::ALL), Err(SnapshotError::Kind { .. })));
    let mut again = ClockState::new();
    again.restore(&good, Share::ALL).unwrap();
    assert_eq!((again.due(), again.bytes()), (state.due(), state.bytes()));
}
