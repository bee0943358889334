//! What AUTO CDC must yield, computed naively: a function of the set of events, whatever their order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Values of the data columns of an event. Columns in the order of their names, and nulls first within each, so that
/// the derived order is the one that decides ties.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Values {
    /// `a STRING`.
    pub(crate) a: Option<String>,
    /// `b BIGINT`.
    pub(crate) b: Option<i64>,
    /// `n STRUCT<x: BIGINT, y: STRING>`.
    pub(crate) n: Option<(Option<i64>, Option<String>)>,
}

/// A change as it arrives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    /// `k BIGINT`, null for a truncate.
    pub(crate) key: Option<i64>,
    /// `s BIGINT`.
    pub(crate) sequence: i64,
    /// Data columns; the order of ties looks at them before `op`.
    pub(crate) values: Values,
    /// `op STRING`: I and U put a row, D deletes it, T empties the table.
    pub(crate) op: &'static str,
}

/// The columns of the feed.
pub(crate) const SCHEMA: &str = "k BIGINT, s BIGINT, op STRING, a STRING, b BIGINT, n STRUCT<x: BIGINT, y: STRING>";

impl Event {
    /// The event as it lands.
    pub(crate) fn json(&self) -> Value {
        let Values { a, b, n } = &self.values;
        let n = n.as_ref().map(|(x, y)| json!({"x": x, "y": y}));
        json!({"k": self.key, "s": self.sequence, "op": self.op, "a": a, "b": b, "n": n})
    }
}

/// What an AUTO CDC flow is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Keeps every version, or the newest row only.
    pub(crate) history: bool,
    /// Columns in which a null keeps the value before it.
    pub(crate) ignore_null: &'static [char],
    /// Columns whose change opens a version.
    pub(crate) tracked: &'static [char],
}

fn fill(config: &Config, before: Option<&Values>, own: &Values) -> Values {
    let mut own = own.clone();
    let before = before.cloned().unwrap_or(Values { a: None, b: None, n: None });
    for column in config.ignore_null {
        match column {
            'a' => own.a = own.a.or(before.a.clone()),
            'b' => own.b = own.b.or(before.b),
            _ => {
                let (own_x, own_y) = own.n.clone().unwrap_or_default();
                let (old_x, old_y) = before.n.clone().unwrap_or_default();
                let merged = (own_x.or(old_x), own_y.or(old_y));
                own.n = (merged != (None, None)).then_some(merged);
            }
        }
    }
    own
}

fn same(config: &Config, left: &Values, right: &Values) -> bool {
    config.tracked.iter().all(|column| match column {
        'a' => left.a == right.a,
        'b' => left.b == right.b,
        _ => left.n == right.n,
    })
}

/// The rows that must stand in the target, with `__START_AT` and `__END_AT` if history is kept.
pub(crate) fn target(config: &Config, events: &[Event]) -> Vec<Value> {
    let truncates: BTreeSet<i64> = events.iter().filter(|e| e.op == "T").map(|e| e.sequence).collect();
    let mut keys: BTreeMap<i64, BTreeMap<i64, Vec<&Event>>> = BTreeMap::new();
    for event in events.iter().filter(|e| e.op != "T") {
        keys.entry(event.key.unwrap()).or_default().entry(event.sequence).or_default().push(event);
    }
    let mut rows = Vec::new();
    for (key, sequences) in keys {
        // The winner of each sequence: a delete (or a truncate) beats upserts, then the greatest row.
        let mut winners: BTreeMap<i64, Option<&Values>> = truncates.iter().map(|s| (*s, None)).collect();
        for (sequence, events) in &sequences {
            let deleted = events.iter().any(|e| e.op == "D") || truncates.contains(sequence);
            let greatest = events.iter().filter(|e| e.op != "D").max_by_key(|e| (&e.values, e.op));
            winners.insert(*sequence, greatest.filter(|_| !deleted).map(|e| &e.values));
        }
        let mut filled: Vec<(i64, Option<Values>)> = Vec::new();
        for (sequence, winner) in winners {
            let before = filled.last().and_then(|(_, values)| values.as_ref());
            let values = winner.map(|own| fill(config, before, own));
            filled.push((sequence, values));
        }
        let row = |values: &Values| {
            let n = values.n.as_ref().map(|(x, y)| json!({"x": x, "y": y}));
            json!({"k": key, "a": values.a, "b": values.b, "n": n})
        };
        if !config.history {
            rows.extend(filled.last().and_then(|(_, values)| values.as_ref()).map(row));
            continue;
        }
        let mut i = 0;
        while i < filled.len() {
            let (start, first) = &filled[i];
            let Some(first) = first else {
                i += 1;
                continue;
            };
            let mut last = first;
            i += 1;
            while let Some((_, Some(next))) =
                filled.get(i).filter(|(_, next)| next.as_ref().is_some_and(|n| same(config, first, n)))
            {
                last = next;
                i += 1;
            }
            let mut version = row(last);
            version["__START_AT"] = json!(start);
            version["__END_AT"] = json!(filled.get(i).map(|(sequence, _)| sequence));
            rows.push(version);
        }
    }
    rows
}

/// What holds of any history, whatever the feed: intervals are not empty and do not overlap, a key has at most one
/// open version, and versions that touch differ in a tracked column.
pub(crate) fn history_faults(rows: &[Value], tracked: &[char]) -> Vec<String> {
    let mut keys: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for row in rows {
        keys.entry(row["k"].to_string()).or_default().push(row);
    }
    let mut faults = Vec::new();
    for (key, mut versions) in keys {
        versions.sort_by_key(|row| row["__START_AT"].as_i64());
        for version in &versions {
            let (start, end) = (version["__START_AT"].as_i64(), version["__END_AT"].as_i64());
            if start.is_none() || end.is_some_and(|end| Some(end) <= start) {
                faults.push(format!("key {key} has an empty or headless version {version}"));
            }
        }
        for pair in versions.windows(2) {
            let (end, start) = (pair[0]["__END_AT"].as_i64(), pair[1]["__START_AT"].as_i64());
            if end.is_none() || end > start {
                faults.push(format!("key {key}: {} overlaps {}", pair[0], pair[1]));
            }
            let equal = tracked.iter().all(|c| pair[0][c.to_string()] == pair[1][c.to_string()]);
            if end == start && equal {
                faults.push(format!("key {key}: {} and {} are one version", pair[0], pair[1]));
            }
        }
    }
    faults
}
