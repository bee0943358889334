//! `scd2` and `lookup` on state of a hundred thousand events: what one more batch costs.
//!
//! A batch is applied and taken back, so that the state is the same for every measurement; the numbers are for both.
//! `checkpoint` is what a checkpoint of a million events costs: on the worker, where epochs wait for it, and elsewhere.
//! `scd2 history` shows that the cost of one event does not grow with the history of its key.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use silverflow_benches::{Spread, changes, histories, lookups, negated, references};
use silverflow_operators::{Change, Frozen, LookupKind, LookupState, Scd2State, Sealed, Share, Snapshot, State};

const LOADED: u64 = 100_000;
const BATCHES: [u64; 3] = [1, 100, 10_000];

fn scd2(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scd2");
    group.sample_size(20);
    for spread in Spread::ALL {
        let mut state = Scd2State::new();
        let of = LOADED + BATCHES.iter().sum::<u64>();
        state.apply(&changes(spread, 0, LOADED, of), &mut Vec::new());
        for batch in BATCHES {
            let more = changes(spread, LOADED, LOADED + batch, of);
            let less = negated(&more);
            group.throughput(Throughput::Elements(2 * batch));
            group.bench_function(BenchmarkId::new(format!("{spread:?}"), batch), |bencher| {
                bencher.iter(|| {
                    let mut out = Vec::new();
                    state.apply(&more, &mut out);
                    state.apply(&less, &mut out);
                    out
                });
            });
        }
    }
    group.finish();
}

fn scd2_history(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scd2 history");
    for events in [10_000, 100_000, 1_000_000] {
        let mut state = Scd2State::new();
        state.apply(&histories(10, 0, events), &mut Vec::new());
        // In the middle of a history, where both neighbours matter.
        let one = histories(10, events, events + 1);
        let moved = one.into_iter().map(|((key, change), diff)| {
            let sequence = (events / 2).to_be_bytes();
            ((key, Change::new(&sequence, change.upsert())), diff)
        });
        let one: Vec<_> = moved.collect();
        let back = negated(&one);
        group.throughput(Throughput::Elements(2));
        group.bench_function(BenchmarkId::new("events of ten keys", events), |bencher| {
            bencher.iter(|| {
                let mut out = Vec::new();
                state.apply(&one, &mut out);
                state.apply(&back, &mut out);
                out
            });
        });
    }
    group.finish();
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    group.sample_size(20);
    for spread in Spread::ALL {
        let mut state = LookupState::new(LookupKind::Left);
        let of = LOADED + BATCHES.iter().sum::<u64>();
        state.apply(lookups(spread, 0, LOADED, of), &references(spread, of), &mut Vec::new());
        for batch in BATCHES {
            let more = lookups(spread, LOADED, LOADED + batch, of);
            let less = negated(&more);
            group.throughput(Throughput::Elements(2 * batch));
            group.bench_function(BenchmarkId::new(format!("{spread:?}"), batch), |bencher| {
                bencher.iter(|| {
                    let mut out = Vec::new();
                    state.apply(more.clone(), &[], &mut out);
                    state.apply(less.clone(), &[], &mut out);
                    out
                });
            });
        }
    }
    group.finish();
}

fn checkpoint(criterion: &mut Criterion) {
    const EVENTS: u64 = 1_000_000;
    let mut group = criterion.benchmark_group("checkpoint");
    group.sample_size(10);
    let mut state = Scd2State::new();
    state.apply(&histories(EVENTS / 5, 0, EVENTS), &mut Vec::new());
    let changes = histories(EVENTS / 5, EVENTS, EVENTS + 50_000);
    let back = negated(&changes);
    group.bench_function("snapshot after 50000 changes", |bencher| {
        bencher.iter_custom(|times| {
            let mut taken = Duration::ZERO;
            for _ in 0..times {
                state.apply(&changes, &mut Vec::new());
                let start = Instant::now();
                let snapshot = state.snapshot();
                taken += start.elapsed();
                drop(snapshot);
                state.apply(&back, &mut Vec::new());
            }
            taken
        });
    });
    let snapshot = state.snapshot();
    let encode = |snapshot: &Snapshot| -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
        let encoded = |run: &Frozen| (run.sealed().parts().concat(), run.counts().to_vec());
        snapshot.parts().iter().map(|part| part.iter().map(encoded).collect()).collect()
    };
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("encode", |bencher| bencher.iter(|| encode(&snapshot)));
    let encoded = encode(&snapshot);
    group.bench_function("decode and restore", |bencher| {
        bencher.iter_batched(
            || encoded.clone(),
            |encoded| {
                let decoded = |(entries, counts): (Vec<u8>, Vec<u8>)| {
                    Sealed::decode(entries.into()).and_then(|entries| Frozen::new(entries, counts.into()))
                };
                let parts = encoded.into_iter().map(|part| part.into_iter().map(decoded).collect::<Result<_, _>>());
                let parts = parts.collect::<Result<_, _>>().expect("intact bytes");
                let mut state = Scd2State::new();
                state.restore(&Snapshot::new("scd2", parts), Share::ALL).expect("state of this operator");
                state
            },
            criterion::BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, scd2, scd2_history, lookup, checkpoint);
criterion_main!(benches);
