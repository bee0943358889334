//! From the measured epochs to the numbers that are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::feed::Arrival;
use super::{Report, Stage};

/// Percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub epochs: u64,
    /// Half of them are not above this.
    pub p50_micros: f64,
    /// All but one in a hundred are not above this.
    pub p99_micros: f64,
    /// The largest.
    pub max_micros: f64,
}

/// Late orders that came the same number of epochs after their items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lag {
    /// Epochs between the items and the order; of several neighbouring ones the least.
    pub epochs: u64,
    /// Latency of the epochs in which such orders came.
    pub latency: Latency,
}

/// Points of the curve over lag at most.
const POINTS: u64 = 50;

/// The epochs of a stage, in the order of the feed.
#[derive(Debug, Default)]
pub(super) struct Measured {
    epochs: Vec<Duration>,
    touched: u64,
    changed: Option<u64>,
}

impl Measured {
    /// Notes an epoch.
    pub(super) fn epoch(&mut self, took: Duration, touched: u64, changed: Option<u64>) {
        self.epochs.push(took);
        self.touched += touched;
        self.changed = changed.map(|rows| rows + self.changed.unwrap_or(0));
    }

    /// Everything together.
    pub(super) fn report(self, stage: Stage, feed: &[Arrival]) -> Report {
        let sum = |f: fn(&Arrival) -> usize| feed.iter().map(f).sum::<usize>() as u64;
        let items = sum(|x| x.items.len());
        let seconds = self.epochs.iter().sum::<Duration>().as_secs_f64();
        let longest = feed.iter().flat_map(|x| &x.orders).map(|x| x.1).max().unwrap_or(0);
        let step = longest.div_ceil(POINTS).max(1);
        let (mut all, mut lags) = (Vec::new(), BTreeMap::<u64, Vec<f64>>::new());
        for (arrival, took) in feed.iter().zip(&self.epochs) {
            let micros = took.as_secs_f64() * 1e6;
            let mut late: Vec<u64> = arrival.orders.iter().map(|x| x.1).filter(|lag| *lag > 0).collect();
            if late.is_empty() {
                continue;
            }
            all.push(micros);
            late.iter_mut().for_each(|lag| *lag = 1 + (*lag - 1) / step * step);
            late.sort_unstable();
            late.dedup();
            for lag in late {
                lags.entry(lag).or_default().push(micros);
            }
        }
        Report {
            stage,
            items,
            orders: sum(|x| x.orders.len()),
            late_orders: sum(|x| x.orders.iter().filter(|x| x.1 > 0).count()),
            seconds,
            items_per_second: if seconds > 0.0 { items as f64 / seconds } else { 0.0 },
            latency: latency(all),
            by_lag: lags
                .into_iter()
                .filter_map(|(epochs, micros)| Some(Lag { epochs, latency: latency(micros)? }))
                .collect(),
            touched: self.touched,
            changed: self.changed,
            peak_memory: peak_memory(),
        }
    }
}

/// Nearest-rank percentiles; none of nothing.
pub(super) fn latency(mut micros: Vec<f64>) -> Option<Latency> {
    micros.sort_by(f64::total_cmp);
    let rank = |share: f64| {
        let at = (share * micros.len() as f64).ceil() as usize;
        micros.get(at.clamp(1, micros.len().max(1)) - 1).copied()
    };
    Some(Latency {
        epochs: micros.len() as u64,
        p50_micros: rank(0.5)?,
        p99_micros: rank(0.99)?,
        max_micros: rank(1.0)?,
    })
}

/// `VmHWM` of Linux.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
