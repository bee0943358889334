//! Feeds for the benchmarks: change events and rows by key, the same on every machine.

use silverflow_operators::{Change, Diff, Row, Upsert};

/// How the events of a feed are spread.
#[derive(Clone, Copy, Debug)]
pub enum Spread {
    /// Many keys, each event the newest of its key.
    Uniform,
    /// One key has every event.
    HotKey,
    /// Many keys, events in any order.
    Shuffled,
}

impl Spread {
    /// All of them.
    pub const ALL: [Spread; 3] = [Spread::Uniform, Spread::HotKey, Spread::Shuffled];

    /// The key and the sequence of the n-th event of `of`.
    fn place(self, n: u64, of: u64) -> (u64, u64) {
        match self {
            Spread::Uniform => (scatter(n) % (of / 10).max(1), n),
            Spread::HotKey => (0, n),
            Spread::Shuffled => (scatter(n) % (of / 10).max(1), scatter(n ^ 0xA5A5) % (4 * of)),
        }
    }
}

/// A well mixed function of a number.
pub fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

/// A row of a number, whose byte order is the order of numbers.
pub fn number(n: u64) -> Row {
    Row::from(&n.to_be_bytes()[..])
}

/// Events `from..to` of a feed of `of` events: about half of them change what is tracked.
pub fn changes(spread: Spread, from: u64, to: u64, of: u64) -> Vec<((Row, Change), Diff)> {
    let event = |n: u64| {
        let (key, sequence) = spread.place(n, of);
        let tracked = format!("status {}", scatter(n) % 2);
        let value = format!("a customer's row of some forty bytes {n:09}");
        let upsert = Upsert { tracked: tracked.as_bytes(), ..Upsert::of(value.as_bytes()) };
        ((number(key), Change::new(&sequence.to_be_bytes(), (n % 50 != 0).then_some(upsert))), 1)
    };
    (from..to).map(event).collect()
}

/// Events of `keys` keys in order, as [`changes`] for histories of a given length.
pub fn histories(keys: u64, from: u64, to: u64) -> Vec<((Row, Change), Diff)> {
    let event = |n: u64| {
        let value = format!("value {}", scatter(n) % 3);
        ((number(n % keys), Change::new(&n.to_be_bytes(), Some(Upsert::of(value.as_bytes())))), 1)
    };
    (from..to).map(event).collect()
}

/// Rows `from..to` with the key that each looks up.
pub fn lookups(spread: Spread, from: u64, to: u64, of: u64) -> Vec<((Option<Row>, Row), Diff)> {
    let row = |n: u64| {
        let key = number(spread.place(n, of).0);
        ((Some(key), Row::from(format!("an order's row of some forty bytes {n:09}").into_bytes())), 1)
    };
    (from..to).map(row).collect()
}

/// The references of [`lookups`]: every tenth key is missing.
pub fn references(spread: Spread, of: u64) -> Vec<((Row, Row), Diff)> {
    let mut keys: Vec<u64> = (0..of).map(|n| spread.place(n, of).0).collect();
    keys.sort_unstable();
    keys.dedup();
    let known = keys.into_iter().filter(|key| key % 10 != 3);
    known.map(|key| ((number(key), Row::from(&b"reference"[..])), 1)).collect()
}

/// The same changes, taken back.
pub fn negated<T: Clone>(changes: &[(T, Diff)]) -> Vec<(T, Diff)> {
    changes.iter().map(|(change, diff)| (change.clone(), -diff)).collect()
}

/// The key of eighteen bytes with a number.
pub fn name(key: u64) -> Row {
    Row::from(format!("customer-{key:09}").into_bytes())
}

/// The key of an order.
pub fn order(number: u64) -> Row {
    Row::from(format!("order-{number:012}").into_bytes())
}

/// A row of 64 bytes: its key of eighteen bytes, its sequence of eight, eight bytes that are tracked, and more.
pub fn value(key: u64, sequence: u64, tracked: u64) -> Row {
    let mut bytes = [b'.'; 64];
    for (slot, part) in
        bytes.iter_mut().zip(name(key).iter().chain(&sequence.to_be_bytes()).chain(&tracked.to_be_bytes()))
    {
        *slot = *part;
    }
    Row::from(&bytes[..])
}

/// An upsert of a 64-byte row that differs from its neighbours in what is tracked.
pub fn event(key: u64, sequence: u64, n: u64) -> ((Row, Change), Diff) {
    let value = value(key, sequence, n);
    let upsert = Upsert { tracked: &n.to_be_bytes(), ..Upsert::of(&value) };
    ((name(key), Change::new(&sequence.to_be_bytes(), Some(upsert))), 1)
}

/// `events` [events](event) in no order, so many for each key.
pub fn bulk(events: u64, per_key: u64) -> Vec<((Row, Change), Diff)> {
    // A prime that does not divide their count visits every number once.
    let place = |n: u64| (n * 2_654_435_761) % events;
    (0..events).map(place).map(|n| event(n / per_key, n % per_key, n)).collect()
}
