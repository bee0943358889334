//! `silverflow verify`.

use std::fmt::Write;

use clap::Args;
use silverflow::error::{Error, Fault, Result};
use silverflow::runtime::{self, RunOptions, VerifyReport};

use super::{Project, default_workers, print, with_remarks};

/// Arguments of `verify`.
#[derive(Args)]
pub(super) struct Verify {
    #[command(flatten)]
    project: Project,
    /// Computing threads.
    #[arg(long, value_name = "N", default_value_t = default_workers(), value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Report as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(&self) -> Result<()> {
        let loaded = self.project.load()?;
        let options = RunOptions { workers: usize::from(self.workers), ..RunOptions::default() };
        let report = runtime::verify(&loaded.pipeline, &options).map_err(|error| with_remarks(error, &loaded.lints))?;
        if self.json {
            let text = serde_json::to_string(&report)
                .map_err(|e| Error::internal("the report has no JSON form").caused_by(e))?;
            print(&format!("{text}\n"))?;
        } else {
            print(&render(&report))?;
        }
        if report.clean {
            return Ok(());
        }
        let wrong = report.tables.iter().filter(|table| !table.clean()).count();
        let error = Error::new(
            Fault::Data,
            "TABLES_DIFFER",
            format!("{wrong} of {} tables are not what their definitions say", report.tables.len()),
        );
        Err(if report.tables.iter().any(|table| table.redefined) {
            error.help("definitions have changed since the last run: run the pipeline, and verify again")
        } else {
            error
        })
    }
}

fn render(report: &VerifyReport) -> String {
    let mut out = String::new();
    let Some(epoch) = report.epoch else {
        let _ = writeln!(out, "{}: there is no complete epoch yet, so there is nothing to compare", report.pipeline);
        return out;
    };
    for table in report.tables.iter().filter(|table| !table.clean()) {
        let _ = write!(out, "{}: {} rows", table.name, table.rows);
        for (count, what) in [(table.missing, "missing"), (table.extra, "too much"), (table.different, "different")] {
            if count > 0 {
                let _ = write!(out, ", {count} {what}");
            }
        }
        let _ = writeln!(out, "{}", if table.redefined { " (its definition has changed)" } else { "" });
        for line in table.problems.iter().chain(&table.examples) {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "  {}\n", table.location);
    }
    let clean = report.tables.iter().filter(|table| table.clean());
    let (tables, rows) = clean.fold((0u64, 0u64), |(tables, rows), table| (tables + 1, rows + table.rows));
    let _ = writeln!(
        out,
        "{}: at epoch {epoch}, {tables} of {} tables are what their definitions say ({rows} rows)",
        report.pipeline,
        report.tables.len()
    );
    out
}
