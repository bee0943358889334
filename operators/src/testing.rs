//! What the tests of the operators share.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use differential_dataflow::ExchangeData;
use differential_dataflow::input::InputSession;
use timely::CommunicationConfig;
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;

use crate::epochs::{LIMITS, Limits};
use crate::{Change, Diff, Epoch, Frozen, Row, Rows, Sealed, Shelf, ShelfFile, Snapshot, Upsert, checksums};

/// A seeded generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Runs of entries after they were written down and read back, in memory or checked as they are looked at.
pub(crate) fn carry(runs: &[Frozen]) -> Vec<Frozen> {
    let read = |(i, run): (usize, &Frozen)| {
        let parts = run.sealed().parts();
        let bytes = Bytes::from(parts.concat());
        assert_eq!(bytes.len(), run.sealed().encoded_len());
        let sealed = match i % 2 {
            0 => Sealed::decode(bytes),
            _ => Sealed::open(bytes, checksums(&parts).into(), Arc::new(AtomicBool::new(false))),
        };
        Frozen::new(sealed.unwrap(), run.counts().clone()).unwrap()
    };
    runs.iter().enumerate().map(read).collect()
}

/// A shelf whose files are in memory.
#[derive(Debug)]
pub(crate) struct TestShelf {
    room: usize,
    taken: AtomicUsize,
    /// Writes that succeed before none does any more.
    writes: Arc<AtomicUsize>,
}

impl TestShelf {
    pub(crate) fn new(room: usize) -> Self {
        Self::failing(room, usize::MAX)
    }

    pub(crate) fn failing(room: usize, writes: usize) -> Self {
        TestShelf { room, taken: AtomicUsize::new(0), writes: Arc::new(AtomicUsize::new(writes)) }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

fn succeeds(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Shelf for TestShelf {
    fn take(&self, bytes: usize, anyway: bool) -> bool {
        let room = anyway || self.taken() + bytes <= self.room;
        if room {
            self.taken.fetch_add(bytes, Ordering::SeqCst);
        }
        room
    }

    fn give(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::SeqCst);
    }

    fn portion(&self) -> usize {
        1 << 10
    }

    fn file(&self) -> Option<Box<dyn ShelfFile>> {
        let file = TestFile { bytes: Vec::new(), writes: Arc::clone(&self.writes) };
        succeeds(&self.writes).then(|| Box::new(file) as Box<dyn ShelfFile>)
    }
}

#[derive(Debug)]
struct TestFile {
    bytes: Vec<u8>,
    writes: Arc<AtomicUsize>,
}

impl ShelfFile for TestFile {
    fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        let (start, end) = (at as usize, at as usize + bytes.len());
        self.bytes.resize(self.bytes.len().max(end), 0xaa);
        self.bytes[start..end].copy_from_slice(bytes);
        succeeds(&self.writes)
    }

    fn finish(self: Box<Self>) -> Option<Bytes> {
        succeeds(&self.writes).then(|| self.bytes.into())
    }
}

/// A snapshot after it was written down and read back.
pub(crate) fn carried(snapshot: &Snapshot) -> Snapshot {
    Snapshot::new(snapshot.kind(), snapshot.parts().iter().map(|part| carry(part)).collect())
}

/// Changes by epoch.
pub(crate) type Feed<D> = Vec<Vec<(D, Diff)>>;

/// A feed of items drawn by `draw`, some of them retracted again in the same or in a later epoch,
/// in random epochs. Multiplicities never become negative at the end of an epoch.
pub(crate) fn random_feed<D: Clone + Ord>(
    random: &mut Random,
    items: usize,
    epochs: usize,
    retract_percent: u64,
    mut draw: impl FnMut(&mut Random) -> D,
) -> Feed<D> {
    let mut feed: Feed<D> = vec![Vec::new(); epochs];
    for _ in 0..items {
        let item = draw(random);
        let at = random.below(epochs as u64) as usize;
        feed[at].push((item.clone(), 1));
        if random.below(100) < retract_percent {
            let later = at + random.below((epochs - at) as u64) as usize;
            feed[later].push((item, -1));
        }
    }
    for updates in &mut feed {
        random.shuffle(updates);
    }
    feed
}

/// What a multiset holds after each epoch of `feed`.
pub(crate) fn totals<D: Clone + Ord>(feed: &Feed<D>) -> Vec<BTreeMap<D, Diff>> {
    let mut now = BTreeMap::new();
    let mut all = Vec::new();
    for updates in feed {
        add(&mut now, updates);
        all.push(now.clone());
    }
    all
}

pub(crate) fn add<D: Clone + Ord>(total: &mut BTreeMap<D, Diff>, updates: &[(D, Diff)]) {
    for (item, diff) in updates {
        let count = total.entry(item.clone()).or_default();
        *count += diff;
        if *count == 0 {
            total.remove(item);
        }
    }
}

/// Each item once.
pub(crate) fn once<D: Ord>(items: impl IntoIterator<Item = D>) -> BTreeMap<D, Diff> {
    let mut all = BTreeMap::new();
    for item in items {
        *all.entry(item).or_default() += 1;
    }
    all
}

/// Runs a dataflow over two feeds and returns the changes of its output by epoch. Rows are spread
/// over the workers; up to `in_flight` epochs are open at once. However little the operators do in one go, the changes
/// must be the same.
pub(crate) fn run2<D1, D2, E>(
    workers: usize,
    in_flight: usize,
    feeds: (Feed<D1>, Feed<D2>),
    build: impl for<'s> Fn(Rows<'s, D1>, Rows<'s, D2>) -> Rows<'s, E> + Send + Sync + 'static,
) -> Feed<E>
where
    D1: ExchangeData + Sync,
    D2: ExchangeData + Sync,
    E: ExchangeData,
{
    let build = Arc::new(build);
    let run = |limits| run_limited(limits, workers, in_flight, feeds.clone(), Arc::clone(&build));
    let all = run(Limits { fuel: usize::MAX, split: usize::MAX });
    let (fuel, split) = if (feeds.0.len() + workers).is_multiple_of(2) { (1, 0) } else { (7, 16) };
    let limited = run(Limits { fuel, split });
    assert!(limited == all, "with fuel {fuel}, the changes of some epoch are others");
    all
}

fn run_limited<D1, D2, E>(
    limits: Limits,
    workers: usize,
    in_flight: usize,
    feeds: (Feed<D1>, Feed<D2>),
    build: Arc<impl for<'s> Fn(Rows<'s, D1>, Rows<'s, D2>) -> Rows<'s, E> + Send + Sync + 'static>,
) -> Feed<E>
where
    D1: ExchangeData + Sync,
    D2: ExchangeData + Sync,
    E: ExchangeData,
{
    let epochs = feeds.0.len();
    assert_eq!(epochs, feeds.1.len());
    let results = Arc::new(Mutex::new(vec![Vec::new(); epochs]));
    let sink = results.clone();
    // Half of the runs with several workers serialise what they exchange, as processes do.
    let communication = match (workers, in_flight % 2) {
        (1, _) => CommunicationConfig::Thread,
        (_, 0) => CommunicationConfig::ProcessBinary(workers),
        _ => CommunicationConfig::Process(workers),
    };
    let config = timely::Config { communication, worker: timely::WorkerConfig::default() };
    let guards = timely::execute(config, move |worker| {
        LIMITS.set(limits);
        let (index, peers) = (worker.index(), worker.peers());
        let mut left: InputSession<Epoch, D1, Diff> = InputSession::new();
        let mut right: InputSession<Epoch, D2, Diff> = InputSession::new();
        let probe = ProbeHandle::new();
        let sink = sink.clone();
        worker.dataflow::<Epoch, _, _>(|scope| {
            let (left, right) = (left.to_collection(scope), right.to_collection(scope));
            build(left, right)
                .inspect(move |(item, epoch, diff)| sink.lock().unwrap()[*epoch as usize].push((item.clone(), *diff)))
                .inner
                .probe_with(&probe);
        });
        for epoch in 0..epochs {
            for (i, (item, diff)) in feeds.0[epoch].iter().enumerate() {
                if i % peers == index {
                    left.update(item.clone(), *diff);
                }
            }
            for (i, (item, diff)) in feeds.1[epoch].iter().enumerate() {
                if i % peers == index {
                    right.update(item.clone(), *diff);
                }
            }
            let next = epoch as Epoch + 1;
            left.advance_to(next);
            right.advance_to(next);
            // Where epochs may be in flight together, some also share a message.
            if in_flight > 1 && epoch % 3 == 0 {
                continue;
            }
            left.flush();
            right.flush();
            while next > in_flight as Epoch && probe.less_than(&(next - in_flight as Epoch)) {
                worker.step();
            }
        }
    })
    .unwrap();
    for guard in guards.join() {
        guard.unwrap();
    }
    let mut results = std::mem::take(&mut *results.lock().unwrap());
    for updates in &mut results {
        updates.sort();
        for pair in updates.windows(2) {
            assert!(pair[0].0 != pair[1].0, "an epoch changes an item twice");
        }
        assert!(updates.iter().all(|(_, diff)| *diff != 0));
    }
    results
}

/// [`run2`] with one feed.
pub(crate) fn run<D, E>(
    workers: usize,
    in_flight: usize,
    feed: Feed<D>,
    build: impl for<'s> Fn(Rows<'s, D>) -> Rows<'s, E> + Send + Sync + 'static,
) -> Feed<E>
where
    D: ExchangeData + Sync,
    E: ExchangeData,
{
    let nothing = vec![Vec::new(); feed.len()];
    run2(workers, in_flight, (feed, nothing), move |rows, _: Rows<'_, ()>| build(rows))
}

/// Runs an operator on changes, with truncates if there are any, checks how many changes it says lose, and returns the
/// changes of its output by epoch.
pub(crate) fn run_history<E: ExchangeData>(
    workers: usize,
    in_flight: usize,
    changes: &Feed<(Row, Change)>,
    truncates: &Feed<Row>,
    build: impl for<'s> Fn(Rows<'s, (Row, Change)>, Option<Rows<'s, Row>>, Ties) -> Rows<'s, E> + Send + Sync + 'static,
) -> Feed<E> {
    let told = Told::default();
    let by_operator = Arc::clone(&told);
    let truncated = !truncates.iter().all(Vec::is_empty);
    let output = run2(workers, in_flight, (changes.clone(), truncates.clone()), move |changes, truncates| {
        let told = Arc::clone(&by_operator);
        let ties = move |epoch, moved| {
            *told.lock().unwrap().entry((LIMITS.get().fuel, epoch)).or_default() += moved;
        };
        build(changes, truncated.then_some(truncates), Box::new(ties))
    });
    let told = told.lock().unwrap();
    let runs: BTreeSet<usize> = told.keys().map(|(fuel, _)| *fuel).chain([usize::MAX]).collect();
    for fuel in runs {
        let mut lost = 0;
        for (epoch, input) in totals(changes).iter().enumerate() {
            lost += told.get(&(fuel, epoch as Epoch)).copied().unwrap_or(0);
            assert_eq!(lost, losers(input), "losers after epoch {epoch}");
        }
    }
    output
}

/// Who is told by how many the losing changes have moved in an epoch.
pub(crate) type Ties = Box<dyn FnMut(Epoch, i64)>;

/// What was told, by the operators' fuel and by epoch.
type Told = Arc<Mutex<BTreeMap<(usize, Epoch), i64>>>;

/// Checks that `output`, added up, is what `oracle` makes of the input after each epoch.
pub(crate) fn check<D: Clone + Ord + std::fmt::Debug, E: Clone + Ord + std::fmt::Debug>(
    input: &Feed<D>,
    output: &Feed<E>,
    mut oracle: impl FnMut(usize, &BTreeMap<D, Diff>) -> BTreeMap<E, Diff>,
) {
    let mut now = BTreeMap::new();
    for (epoch, (input, updates)) in totals(input).iter().zip(output).enumerate() {
        add(&mut now, updates);
        let expected = oracle(epoch, input);
        assert_eq!(now, expected, "after epoch {epoch}, input {input:?}");
    }
}

/// The changes of each key that count, in sequence order: the definition, read aloud.
pub(crate) fn winners(changes: &BTreeMap<(Row, Change), Diff>) -> BTreeMap<Row, Vec<Change>> {
    let mut all: BTreeMap<Row, Vec<Change>> = BTreeMap::new();
    for ((key, change), count) in changes {
        if *count > 0 {
            all.entry(key.clone()).or_default().push(change.clone());
        }
    }
    for changes in all.values_mut() {
        let place = |change: &Change| (change.sequence().to_vec(), change.upsert().is_none());
        changes.sort_by(|a, b| (place(a), a.upsert()).cmp(&(place(b), b.upsert())));
        let mut winners: Vec<Change> = Vec::new();
        for change in changes.drain(..) {
            if winners.last().is_some_and(|last| last.sequence() == change.sequence()) {
                winners.pop();
            }
            winners.push(change);
        }
        *changes = winners;
    }
    all
}

/// How many distinct changes lose to another one of their key and sequence.
pub(crate) fn losers(changes: &BTreeMap<(Row, Change), Diff>) -> i64 {
    let live = changes.values().filter(|count| **count > 0).count();
    let won: usize = winners(changes).values().map(Vec::len).sum();
    (live - won) as i64
}

/// A change of one of few keys at one of few sequences with one of few values, so that runs, ties
/// and repetitions are common.
pub(crate) fn draw_change(random: &mut Random, keys: u64, sequences: u64, values: u64) -> (Row, Change) {
    let row = |text: String| Row::from(text.as_bytes());
    let key = row(format!("k{}", random.below(keys)));
    let sequence = random.below(sequences).to_be_bytes();
    if random.below(5) == 0 {
        return (key, Change::delete(&sequence));
    }
    let tracked = format!("t{}", random.below(values));
    let value = format!("{tracked}-{}", random.below(2));
    let rank = if random.below(2) == 0 { value.as_bytes() } else { b"" };
    let upsert = Upsert { rank, tracked: tracked.as_bytes(), value: value.as_bytes() };
    (key, Change::new(&sequence, Some(upsert)))
}
