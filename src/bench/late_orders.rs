//! Late orders: items arrive before the order they belong to, wait, and are resolved in the epoch in which the order comes.
//!
//! The same feed goes through three stages, each of which adds something:
//!
//! | stage | what runs |
//! |---|---|
//! | operators | one `lookup` and one `scd2` on byte rows, one worker: the algorithm |
//! | dataflow | the pipeline's definitions as any run computes them, Arrow batches in and out, without storage |
//! | delta | a continuous run: from files that land to Delta tables that are committed and durable |

mod dataflow;
mod delta;
mod feed;
mod measure;
mod operators;
mod plot;
mod processes;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use serde::Serialize;

use crate::error::{Error, Result};
use measure::Measured;

pub use measure::{Lag, Latency};
pub use plot::plot;

/// The definitions of the pipeline that is measured; `${landing}` is the folder of its feeds.
const DEFINITIONS: &str = include_str!("late_orders/pipeline.sql");

/// What to generate and how to run it.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Epochs in which items arrive.
    pub epochs: u64,
    /// Changes of items an epoch.
    pub batch: u64,
    /// Items of one order.
    pub items_per_order: u64,
    /// Share of the orders that come later than their items.
    pub late: f64,
    /// So many epochs later, at least and at most; evenly spread.
    pub lag: (u64, u64),
    /// Share of the orders that never come.
    pub never: f64,
    /// Share of the changes that are older than what is known of their item.
    pub out_of_order: f64,
    /// Timely workers of the stages `dataflow` and `delta`.
    pub workers: usize,
    /// Processes of the stage `delta`, with so many workers each. Several are started as `run --processes` starts them, from
    /// the program that measures: it has to be silverflow's command line.
    pub processes: usize,
    /// Another feed of the same kind.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            epochs: 20,
            batch: 10_000,
            items_per_order: 4,
            late: 0.1,
            lag: (1, 10),
            never: 0.01,
            out_of_order: 0.05,
            workers: 1,
            processes: 1,
            seed: 1,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        let shares = [("late", self.late), ("never", self.never), ("out of order", self.out_of_order)];
        let wrong = if let Some((name, share)) = shares.iter().find(|(_, x)| !(0.0..=1.0).contains(x)) {
            format!("the share {name} is {share}, and a share is between 0 and 1")
        } else if self.lag.0 == 0 || self.lag.0 > self.lag.1 {
            format!("a lag of {} to {} epochs", self.lag.0, self.lag.1)
        } else if [self.epochs, self.batch, self.items_per_order].contains(&0) {
            "epochs, batch and items per order are at least 1".to_owned()
        } else if self.epochs.saturating_mul(self.batch) > 1 << 32 {
            "more than 2^32 changes".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::user("BENCH_SETTINGS", wrong))
    }
}

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The operators alone.
    Operators,
    /// The pipeline without storage.
    Dataflow,
    /// The pipeline in a continuous run, from files that land to committed tables.
    Delta,
}

/// What a stage gave.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The stage.
    pub stage: Stage,
    /// Changes of items that went in.
    pub items: u64,
    /// Orders that went in.
    pub orders: u64,
    /// Of these, orders that came after their items.
    pub late_orders: u64,
    /// Computing, all epochs together, in seconds.
    pub seconds: f64,
    /// Changes of items a second.
    pub items_per_second: f64,
    /// From the arrival of an epoch with late orders to the corrected rows.
    pub latency: Option<Latency>,
    /// The same by lag.
    pub by_lag: Vec<Lag>,
    /// Rows that came or went, as they left the dataflow or, with tables, as they were committed.
    pub touched: u64,
    /// Rows that differ between the tables before and after an epoch: `touched` without what cancels out. Absent where
    /// only commits are seen.
    pub changed: Option<u64>,
    /// The most memory that the process has held so far, in bytes; absent where the system does not tell, and
    /// where other processes compute.
    pub peak_memory: Option<u64>,
}

/// Runs one stage on the feed that `settings` describe. `progress` hears of each epoch that is done, with their number.
///
/// # Errors
/// `BENCH_SETTINGS` (user) if the settings contradict themselves; errors of the run.
pub fn late_orders(stage: Stage, settings: &Settings, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    settings.check()?;
    let feed = feed::feed(settings);
    let measured = match stage {
        Stage::Operators => operators::run(&feed, progress)?,
        Stage::Dataflow => dataflow::run(settings, &feed, progress)?,
        Stage::Delta => delta::run(settings, &feed, progress)?,
    };
    let report = measured.report(stage, &feed);
    let elsewhere = stage == Stage::Delta && settings.processes > 1;
    Ok(Report { peak_memory: report.peak_memory.filter(|_| !elsewhere), ..report })
}
