//! `silverflow optimize`.

use std::fmt::Write;

use clap::Args;
use silverflow::error::{Error, Result};
use silverflow::runtime::{self, OptimizeReport};

use super::{Project, print, with_remarks};

/// Arguments of `optimize`.
#[derive(Args)]
pub(super) struct Optimize {
    #[command(flatten)]
    project: Project,
    /// Also remove old data files, vectors and log entries, as the tables' retention properties allow.
    #[arg(long)]
    vacuum: bool,
    /// Report as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Optimize {
    pub(super) fn run(&self) -> Result<()> {
        let loaded = self.project.load()?;
        let report =
            runtime::optimize(&loaded.pipeline, self.vacuum).map_err(|error| with_remarks(error, &loaded.lints))?;
        if self.json {
            let text = serde_json::to_string(&report)
                .map_err(|e| Error::internal("the report has no JSON form").caused_by(e))?;
            return print(&format!("{text}\n"));
        }
        print(&render(&report))
    }
}

fn render(report: &OptimizeReport) -> String {
    let mut out = String::new();
    for table in &report.tables {
        let _ = write!(out, "{}: {} rows in {} files", table.name, table.rows, table.files);
        if table.rewritten > 0 {
            let _ = write!(out, " (were {})", table.files_before);
        }
        if table.checkpoint {
            let _ = write!(out, ", log checkpoint at version {}", table.version);
        }
        if table.removed > 0 {
            let _ = write!(out, ", {} old files removed ({} KB)", table.removed, table.removed_bytes.div_ceil(1000));
        }
        out.push('\n');
    }
    let tidy = report.tables.iter().filter(|x| x.rewritten == 0 && !x.checkpoint && x.removed == 0).count();
    let _ = writeln!(out, "{}: {} tables, {tidy} of them were in order", report.pipeline, report.tables.len());
    out
}
