//! Random rows and references against a look at the references of the epochs before.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;
use crate::stable_hash;
use crate::testing::{Feed, Random, add, random_feed, run2, totals};

type Item = (Option<Row>, Row);
type Out = BTreeMap<(Row, Option<Row>), Diff>;

fn decided((kind, unique): (OnceKind, bool), rows: &[(Item, Diff)], reference: &BTreeMap<(Row, Row), Diff>) -> Out {
    let mut out = Out::new();
    for ((key, row), count) in rows {
        let found: Vec<(&Row, &Diff)> =
            reference.iter().filter(|((k, _), _)| Some(k) == key.as_ref()).map(|((_, value), n)| (value, n)).collect();
        let none = [((row.clone(), None), *count)];
        match (kind, found.first()) {
            (OnceKind::Left | OnceKind::Inner, Some(_)) => {
                for (value, n) in found.iter().take(if unique { 1 } else { usize::MAX }) {
                    let times = if unique { 1 } else { **n };
                    add(&mut out, &[((row.clone(), Some((*value).clone())), count * times)]);
                }
            }
            (OnceKind::Semi, Some(_)) | (OnceKind::Anti | OnceKind::Left, None) => add(&mut out, &none),
            _ => {}
        }
    }
    out
}

fn text(prefix: &str, n: u64) -> Row {
    Row::from(format!("{prefix}{n}").as_bytes())
}

fn feeds(random: &mut Random, epochs: usize, keys: u64) -> (Feed<Item>, Feed<(Row, Row)>) {
    let rows = random_feed(random, 60, epochs, 0, |r| {
        let (null, key) = (r.below(8) == 0, r.below(keys));
        ((!null).then(|| text("k", key)), text(&format!("{key}-{null}-"), r.below(6)))
    });
    let reference = random_feed(random, 30, epochs, 60, |r| (text("k", r.below(keys)), text("ref", r.below(4))));
    (rows, reference)
}

const KINDS: [(OnceKind, bool); 6] = [
    (OnceKind::Left, false),
    (OnceKind::Left, true),
    (OnceKind::Inner, false),
    (OnceKind::Inner, true),
    (OnceKind::Semi, true),
    (OnceKind::Anti, true),
];

#[test]
fn rows_know_what_came_before_their_epoch() {
    for seed in 0..60u64 {
        let mut random = Random::new(seed);
        let kind = KINDS[(seed % 6) as usize];
        let (epochs, keys) = (1 + random.below(10) as usize, 1 + random.below(6));
        let mut feeds = feeds(&mut random, epochs, keys);
        // Epoch 0 is before all that is decided.
        feeds.0.insert(0, Vec::new());
        feeds.1.insert(0, Vec::new());
        let references = totals(&feeds.1);
        let workers = 1 + (seed / 6 % 3) as usize;
        let output = run2(workers, 1 + random.below(3) as usize, feeds.clone(), move |rows, reference| {
            rows.once(reference, kind.0, kind.1, "once")
        });
        let nothing = BTreeMap::new();
        for (epoch, changes) in output.iter().enumerate() {
            let known = epoch.checked_sub(1).map_or(&nothing, |before| &references[before]);
            let mut is = Out::new();
            add(&mut is, changes);
            assert_eq!(is, decided(kind, &feeds.0[epoch], known), "seed {seed}, {kind:?}, epoch {epoch}");
        }
    }
}

#[test]
fn a_snapshot_goes_on_where_it_was_taken() {
    for seed in 0..40u64 {
        let mut random = Random::new(seed);
        let kind = KINDS[(seed % 6) as usize];
        let (rows, reference) = feeds(&mut random, 8, 5);
        let cut = 1 + random.below(7) as usize;
        let mut whole = OnceState::with_overlay(kind.0, kind.1, 3);
        for epoch in 0..cut {
            whole.apply(epoch as Epoch + 1, rows[epoch].clone(), &reference[epoch], &mut Vec::new());
        }
        let snapshot = whole.snapshot();
        let mut parts: Vec<OnceState> = (0..2u64)
            .map(|worker| {
                let mut part = OnceState::with_overlay(kind.0, kind.1, 3);
                part.restore(&snapshot, Share::new(worker, 2)).unwrap();
                part
            })
            .collect();
        for epoch in cut..8 {
            let (mut expected, mut actual) = (Vec::new(), Vec::new());
            whole.apply(epoch as Epoch + 1, rows[epoch].clone(), &reference[epoch], &mut expected);
            for (worker, part) in (0..2u64).zip(&mut parts) {
                let mine = |key: &Row| stable_hash(key) % 2 == worker;
                let rows = rows[epoch].iter().filter(|((key, row), _)| mine(key.as_ref().unwrap_or(row))).cloned();
                let reference: Vec<_> = reference[epoch].iter().filter(|((key, _), _)| mine(key)).cloned().collect();
                part.apply(epoch as Epoch + 1, rows.collect(), &reference, &mut actual);
            }
            let (mut a, mut b) = (Out::new(), Out::new());
            add(&mut a, &expected);
            add(&mut b, &actual);
            assert_eq!(a, b, "seed {seed}, {kind:?}, epoch {epoch}");
        }
    }
}
