//! The marks of the operators: ratios and latencies that must hold on any machine, each beside what is wanted.
//!
//! ```sh
//! cargo bench --manifest-path benches/Cargo.toml --bench marks              # all; about three minutes
//! cargo bench --manifest-path benches/Cargo.toml --bench marks -- late bulk # some, by the beginning of their names
//! ```
//!
//! "In memory" means operators fed with rows and read at their output, one worker: no log, no sink. What is compared
//! alternates within one process; a number is the median of its rounds, with the least and the greatest behind it.
//! Time is that of the thread on a processor, so that other work on the machine counts only as far as it takes caches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use differential_dataflow::AsCollection;
use silverflow_benches::{bulk, event, order, scatter, value};
use silverflow_operators::{
    Change, Diff, Epoch, Lookup, LookupKind, LookupState, Row, Scd2, Scd2State, Shared, State, Upsert, Version, shared,
};
use timely::WorkerConfig;
use timely::communication::Allocator;
use timely::communication::allocator::Thread;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Probe;
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;

// As the product has it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 34] = b"thp:always,background_thread:true\0";

/// Items of one order.
const PER_ORDER: u64 = 4;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let marks: [(&str, fn()); 6] = [
        ("late orders", late_orders),
        ("long history", long_history),
        ("large state", large_state),
        ("bulk load", bulk_load),
        ("hot key", hot_key),
        ("hot reference", hot_reference),
    ];
    for (name, mark) in marks {
        if wanted.is_empty() || wanted.iter().any(|x| name.starts_with(x.as_str())) {
            mark();
        }
    }
}

/// Numbers of several rounds.
#[derive(Default)]
struct Rounds(Vec<f64>);

impl Rounds {
    fn add(&mut self, number: f64) {
        self.0.push(number);
        self.0.sort_by(f64::total_cmp);
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    fn median(&self) -> f64 {
        self.at(0.5)
    }
}

/// Latencies of single steps, in microseconds.
struct Steps(Vec<f64>);

impl Steps {
    fn of(times: Vec<Duration>) -> Self {
        let mut micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        micros.sort_by(f64::total_cmp);
        Steps(micros)
    }

    fn at(&self, share: f64) -> f64 {
        self.0.get(((self.0.len() - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN)
    }
}

fn show(what: &str, rounds: &Rounds, unit: &str, wanted: Option<(bool, f64)>) {
    let (mark, verdict) = match wanted {
        None => (String::new(), ""),
        Some((true, most)) => (format!("<= {most}"), if rounds.median() <= most { "ok" } else { "MISSED" }),
        Some((false, least)) => (format!(">= {least}"), if rounds.median() >= least { "ok" } else { "MISSED" }),
    };
    let [low, middle, high] = [0.0, 0.5, 1.0].map(|share| rounds.at(share));
    println!("{what:<58} {middle:>9.2} {unit:<7} [{low:.2} .. {high:.2}] {mark:>9} {verdict}");
}

type Input<D> = InputHandle<Epoch, CapacityContainerBuilder<Vec<(D, Epoch, Diff)>>>;

/// One lookup of an item's order, and one SCD2 history of the items whose order is there.
struct Pipeline {
    worker: Worker,
    items: Input<(Option<Row>, Row)>,
    orders: Input<(Row, Row)>,
    probe: ProbeHandle<Epoch>,
    epoch: Epoch,
}

impl Pipeline {
    fn new() -> Self {
        Self::with(&shared(LookupState::new(LookupKind::Left)), &shared(Scd2State::new()))
    }

    fn with(lookup: &Shared<LookupState>, history: &Shared<Scd2State>) -> Self {
        let allocator = Allocator::Thread(Thread::default());
        let mut worker = Worker::new(WorkerConfig::default(), allocator, Some(Instant::now()));
        let (mut items, mut orders) = (Input::new_with_builder(), Input::new_with_builder());
        let probe = worker.dataflow::<Epoch, _, _>(|scope| {
            let rows = items.to_stream(scope).as_collection();
            let reference = orders.to_stream(scope).as_collection();
            let checked = rows.lookup_with(reference, "order of an item", lookup.clone());
            let resolved = checked.flat_map(|(value, order): (Row, Option<Row>)| order.map(|_| item_change(&value)));
            resolved.scd2_with("history of an item", history.clone(), |_, _| {}).inner.probe().0
        });
        Pipeline { worker, items, orders, probe, epoch: 0 }
    }

    /// An epoch with these rows, until its output is there.
    fn epoch(&mut self, items: &mut Vec<(Option<Row>, Row)>, orders: &mut Vec<Row>) -> Duration {
        let epoch = self.epoch;
        let mut items = items.drain(..).map(|item| (item, epoch, 1)).collect();
        let mut orders = orders.drain(..).map(|order| ((order, Row::default()), epoch, 1)).collect();
        let start = ThreadTime::now();
        self.items.send_batch(&mut items);
        self.orders.send_batch(&mut orders);
        self.epoch += 1;
        self.items.advance_to(self.epoch);
        self.orders.advance_to(self.epoch);
        self.items.flush();
        self.orders.flush();
        while self.probe.less_than(&self.epoch) {
            self.worker.step();
        }
        start.elapsed()
    }
}

/// The change that an item's row is: the key is its beginning, then comes the sequence, then what is tracked.
fn item_change(row: &Row) -> (Row, Change) {
    let part = |from: usize, to: usize| row.as_bytes().get(from..to).unwrap_or_default();
    let upsert = Upsert { tracked: part(26, 34), ..Upsert::of(row) };
    (row.part(part(0, 18)), Change::new(part(18, 26), Some(upsert)))
}

/// The `n`-th item: the first of its key unless `again`.
fn item(n: u64, again: bool) -> (Option<Row>, Row) {
    let sequence = if again { scatter(n) % 1000 } else { 0 };
    (Some(order(n / PER_ORDER)), value(n, sequence, scatter(n)))
}

/// `total` items in batches, each order `lag` epochs after its first item. Seconds of all, and the epochs.
fn run_late(total: u64, batch: u64, lag: u64) -> (f64, Vec<Duration>) {
    let mut pipeline = Pipeline::new();
    let epochs = total.div_ceil(batch);
    let mut arrivals: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
    let (mut items, mut times) = (Vec::new(), Vec::new());
    for number in 0..epochs {
        for n in number * batch..(number + 1) * batch {
            items.push(item(n, false));
            if n % PER_ORDER == 0 {
                arrivals.entry(number + lag).or_default().push(order(n / PER_ORDER));
            }
        }
        let mut orders = arrivals.remove(&number).unwrap_or_default();
        times.push(pipeline.epoch(&mut items, &mut orders));
    }
    // The last orders belong to the items that wait.
    for (_, mut orders) in arrivals {
        times.push(pipeline.epoch(&mut items, &mut orders));
    }
    (times.iter().sum::<Duration>().as_secs_f64(), times)
}

fn late_orders() {
    let lags = [1, 100, 1000];
    let (mut large, mut single, mut tail) = (Rounds::default(), Rounds::default(), Rounds::default());
    let mut by_lag: Vec<Rounds> = lags.iter().map(|_| Rounds::default()).collect();
    for _ in 0..3 {
        large.add(1_000_000.0 / run_late(1_000_000, 10_000, 5).0 / 1e3);
        let steps = Steps::of(run_late(100_000, 1, 5).1);
        single.add(steps.at(0.5));
        tail.add(steps.at(0.99));
        for (lag, rounds) in lags.iter().zip(&mut by_lag) {
            rounds.add(400_000.0 / run_late(400_000, 100, *lag).0 / 1e3);
        }
    }
    show("late orders, batch 10,000", &large, "k/s", Some((false, 400.0)));
    show("late orders, batch 1: p50", &single, "us", Some((true, 60.0)));
    show("late orders, batch 1: p99", &tail, "us", None);
    for (lag, rounds) in lags.iter().zip(&by_lag) {
        show(&format!("late orders, batch 100, {lag} epochs late"), rounds, "k/s", None);
    }
    let mut ratio = Rounds::default();
    ratio.add(by_lag[0].median() / by_lag[2].median());
    show("late orders, batch 100: 1 epoch late over 1000", &ratio, "x", Some((true, 1.25)));
}

/// One event among a million versions of its key, and among ten, in the same state.
fn long_history() {
    const LONG: u64 = 1_000_000;
    let key = LONG;
    let mut feed: Vec<_> = (0..LONG).map(|n| event(key, 2 * n, n)).collect();
    feed.extend((0..LONG).map(|n| event(n / 10, 2 * (n % 10), n)));
    let mut state = Scd2State::new();
    state.apply(&feed, &mut Vec::new());
    drop(feed);
    let (mut ratio, mut long, mut short) = (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..5 {
        let mut times = [Vec::new(), Vec::new()];
        for n in round * 20_000..(round + 1) * 20_000 {
            let at = scatter(n);
            let events = [event(key, 2 * (at % LONG) + 1, n), event(at % (LONG / 10), 2 * (n % 10) + 1, n)];
            for (event, times) in events.into_iter().zip(&mut times) {
                times.push(one(&mut state, event));
            }
        }
        let [a, b] = times.map(Steps::of);
        long.add(a.at(0.5));
        short.add(b.at(0.5));
        ratio.add(a.at(0.5) / b.at(0.5));
    }
    show("one event, key with 1,000,000 versions: p50", &long, "us", None);
    show("one event, keys with 10 versions: p50", &short, "us", None);
    show("one event, 1,000,000 versions over 10", &ratio, "x", Some((true, 2.0)));
}

fn one(state: &mut Scd2State, event: ((Row, Change), Diff)) -> Duration {
    let mut out: Vec<((Row, Version), Diff)> = Vec::with_capacity(8);
    let start = ThreadTime::now();
    state.apply(std::slice::from_ref(&event), &mut out);
    start.elapsed()
}

/// One late row through the dataflow, with little and with much history.
fn large_state() {
    let sizes = [100_000, 5_000_000u64];
    let mut pipelines: Vec<(u64, Pipeline)> = sizes.iter().map(|size| (*size, loaded(*size))).collect();
    let mut rounds: Vec<[Rounds; 3]> = sizes.iter().map(|_| Default::default()).collect();
    let mut ratio = Rounds::default();
    for round in 0..5 {
        let mut steps = Vec::new();
        for (size, pipeline) in &mut pipelines {
            let mut times = Vec::new();
            for n in round * 20_000..(round + 1) * 20_000 {
                // A late change of an item that is there.
                let row = value(scatter(n) % *size, 1 + n, n);
                let key = order(scatter(n) % *size / PER_ORDER);
                times.push(pipeline.epoch(&mut vec![(Some(key), row)], &mut Vec::new()));
            }
            steps.push(Steps::of(times));
        }
        for (rounds, steps) in rounds.iter_mut().zip(&steps) {
            for (rounds, share) in rounds.iter_mut().zip([0.5, 0.99, 1.0]) {
                rounds.add(steps.at(share));
            }
        }
        ratio.add(steps[1].at(0.5) / steps[0].at(0.5));
    }
    for (size, [p50, p99, max]) in sizes.iter().zip(&rounds) {
        show(&format!("one late row, {size} rows of history: p50"), p50, "us", None);
        show(&format!("one late row, {size} rows of history: p99"), p99, "us", Some((true, 100.0)));
        show(&format!("one late row, {size} rows of history: worst"), max, "us", None);
    }
    show("one late row, 5,000,000 over 100,000", &ratio, "x", Some((true, 2.0)));
}

/// A pipeline with so many resolved items.
fn loaded(size: u64) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let mut at = 0;
    while at < size {
        let end = (at + 500_000).min(size);
        let mut items = (at..end).map(|n| item(n, false)).collect();
        let mut orders = (at / PER_ORDER..end / PER_ORDER).map(order).collect();
        pipeline.epoch(&mut items, &mut orders);
        at = end;
    }
    pipeline
}

/// Events into state and versions, in one epoch, against sorting them by key and sequence.
fn bulk_load() {
    const EVENTS: u64 = 5_000_000;
    let feed = bulk(EVENTS, 10);
    let (mut ratio, mut load, mut sort) = (Rounds::default(), Rounds::default(), Rounds::default());
    for _ in 0..3 {
        let mut sorted = feed.clone();
        let start = ThreadTime::now();
        sorted.sort_unstable_by(|((a, x), _), ((b, y), _)| (a, x.sequence()).cmp(&(b, y.sequence())));
        let sorting = start.elapsed().as_secs_f64();
        drop(sorted);
        let (mut state, mut out) = (Scd2State::new(), Vec::new());
        let start = ThreadTime::now();
        state.apply(&feed, &mut out);
        let loading = start.elapsed().as_secs_f64();
        assert_eq!((out.len(), state.len()), (EVENTS as usize, EVENTS as usize));
        sort.add(sorting);
        load.add(loading);
        ratio.add(loading / sorting);
    }
    show("bulk load of 5,000,000 events", &load, "s", None);
    show("sorting them", &sort, "s", None);
    show("bulk load over sorting", &ratio, "x", Some((true, 2.0)));
}

/// All events on one key, against many keys.
fn hot_key() {
    const EVENTS: u64 = 1_000_000;
    for batch in [1_000usize, 10_000, 100_000] {
        let (mut hot, mut many, mut ratio) = (Rounds::default(), Rounds::default(), Rounds::default());
        for _ in 0..3 {
            let [a, b] = [1, EVENTS / 10].map(|keys| {
                let feed: Vec<_> =
                    (0..EVENTS).map(|n| event(scatter(n) % keys, scatter(n ^ 0xA5A5) % (4 * EVENTS), n)).collect();
                let mut state = Scd2State::new();
                let mut out = Vec::new();
                let start = ThreadTime::now();
                for batch in feed.chunks(batch) {
                    state.apply(batch, &mut out);
                    out.clear();
                }
                EVENTS as f64 / start.elapsed().as_secs_f64() / 1e3
            });
            hot.add(a);
            many.add(b);
            ratio.add(b / a);
        }
        show(&format!("one hot key, events in any order, batch {batch}"), &hot, "k/s", None);
        show(&format!("many keys, events in any order, batch {batch}"), &many, "k/s", None);
        show(&format!("many keys over one hot key, batch {batch}"), &ratio, "x", Some((true, 2.0)));
    }
}

/// A reference row comes that a million rows wait for: how long the worker does nothing else.
fn hot_reference() {
    const ROWS: u64 = 1_000_000;
    let (mut all, mut longest) = (Rounds::default(), Rounds::default());
    for _ in 0..3 {
        let mut pipeline = Pipeline::new();
        let mut items = (0..ROWS).map(|n| (Some(order(0)), value(n, 0, n))).collect();
        pipeline.epoch(&mut items, &mut Vec::new());
        pipeline.orders.send(((order(0), Row::default()), pipeline.epoch, 1));
        pipeline.epoch += 1;
        pipeline.items.advance_to(pipeline.epoch);
        pipeline.orders.advance_to(pipeline.epoch);
        let start = ThreadTime::now();
        let mut most = Duration::ZERO;
        while pipeline.probe.less_than(&pipeline.epoch) {
            let step = ThreadTime::now();
            pipeline.worker.step();
            most = most.max(step.elapsed());
        }
        all.add(start.elapsed().as_secs_f64() * 1e3);
        longest.add(most.as_secs_f64() * 1e3);
    }
    show("a reference that 1,000,000 rows wait for", &all, "ms", None);
    show("the longest step of the worker meanwhile", &longest, "ms", None);
}
