//! `silverflow bench`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use silverflow::bench::{self, Latency, Report, Settings, Stage};
use silverflow::error::{Error, Result};

use super::print;

/// Arguments of `bench`.
#[derive(Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Items whose order comes late: throughput, and the latency of the corrected rows.
    LateOrders(LateOrders),
}

#[derive(Args)]
struct LateOrders {
    /// What to run; by default everything.
    #[arg(long = "stage", value_enum, value_name = "STAGE")]
    stages: Vec<Part>,
    /// Epochs in which items arrive.
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    /// Changes of items an epoch.
    #[arg(long, default_value_t = 10_000)]
    batch: u64,
    /// Items of one order.
    #[arg(long, default_value_t = 4)]
    items_per_order: u64,
    /// Share of the orders that come later than their items.
    #[arg(long, default_value_t = 0.1)]
    late: f64,
    /// So many epochs later, at least and at most.
    #[arg(long, value_name = "LEAST,MOST", default_value = "1,10", value_parser = lag)]
    lag: (u64, u64),
    /// Share of the orders that never come.
    #[arg(long, default_value_t = 0.01)]
    never: f64,
    /// Share of the changes that are older than what is known of their item.
    #[arg(long, default_value_t = 0.05)]
    out_of_order: f64,
    /// Computing threads of the dataflow.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Processes of the stage delta, with so many threads each. Without --stage nothing else runs if there are several.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,
    /// Another feed of the same kind.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Report as one JSON object.
    #[arg(long)]
    json: bool,
    /// Draw the latency over the lag into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// One lookup and one SCD2 history on byte rows, one worker.
    Operators,
    /// The definitions, computed in memory.
    Dataflow,
    /// A continuous run, from files that land to committed Delta tables, in the folder for temporary files.
    Delta,
}

fn lag(text: &str) -> std::result::Result<(u64, u64), String> {
    let (least, most) = text.split_once(',').unwrap_or((text, text));
    let number = |x: &str| u64::from_str(x.trim()).map_err(|e| format!("{x}: {e}"));
    Ok((number(least)?, number(most)?))
}

impl Bench {
    pub(super) fn run(&self) -> Result<()> {
        let What::LateOrders(late_orders) = &self.what;
        late_orders.run()
    }
}

impl LateOrders {
    fn run(&self) -> Result<()> {
        let settings = Settings {
            epochs: self.epochs,
            batch: self.batch,
            items_per_order: self.items_per_order,
            late: self.late,
            lag: self.lag,
            never: self.never,
            out_of_order: self.out_of_order,
            workers: usize::from(self.workers),
            processes: usize::from(self.processes),
            seed: self.seed,
        };
        let stages = match self.stages.as_slice() {
            [] if self.processes > 1 => &[Part::Delta],
            [] => Part::value_variants(),
            chosen => chosen,
        };
        let mut reports = Vec::new();
        for part in stages {
            let stage = match part {
                Part::Operators => Stage::Operators,
                Part::Dataflow => Stage::Dataflow,
                Part::Delta => Stage::Delta,
            };
            let bar = bar(&format!("{stage:?}").to_lowercase());
            let report = bench::late_orders(stage, &settings, &mut |done, all| {
                bar.set_length(all);
                bar.set_position(done);
            });
            bar.finish_and_clear();
            reports.push(report?);
        }
        if let Some(path) = &self.plot {
            std::fs::write(path, bench::plot(&reports)?).map_err(|e| {
                Error::external("OUTPUT_FAILED", format!("{} cannot be written", path.display())).caused_by(e)
            })?;
        }
        if self.json {
            return print(&format!("{}\n", serde_json::json!({ "settings": settings, "stages": reports })));
        }
        print(&render(&reports))
    }
}

fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(name.to_owned());
    match ProgressStyle::with_template("{msg:10} {wide_bar} {pos}/{len} epochs") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn render(reports: &[Report]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>11} {:>11} {:>9}",
        "stage", "items", "items/s", "p50", "p99", "max", "touched", "changed", "peak"
    );
    for report in reports {
        let shown =
            |pick: fn(&Latency) -> f64| report.latency.as_ref().map_or_else(|| "-".to_owned(), |l| micros(pick(l)));
        let _ = writeln!(
            out,
            "{:<10} {:>10} {:>12.0} {:>10} {:>10} {:>10} {:>11} {:>11} {:>9}",
            format!("{:?}", report.stage).to_lowercase(),
            report.items,
            report.items_per_second,
            shown(|l| l.p50_micros),
            shown(|l| l.p99_micros),
            shown(|l| l.max_micros),
            report.touched,
            report.changed.map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
            report.peak_memory.map_or_else(|| "-".to_owned(), |b| format!("{} MiB", b >> 20)),
        );
    }
    if let Some(first) = reports.first() {
        let _ = writeln!(
            out,
            "\n{} of {} orders came late; p50, p99 and max: from their arrival, with all that arrived beside them, to the corrected rows",
            first.late_orders, first.orders
        );
    }
    out
}

fn micros(value: f64) -> String {
    if value < 1_000.0 {
        format!("{value:.0} us")
    } else if value < 1_000_000.0 {
        format!("{:.1} ms", value / 1e3)
    } else {
        format!("{:.2} s", value / 1e6)
    }
}
