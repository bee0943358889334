//! `silverflow dry-run`.

use std::fmt::Write;

use clap::Args;
use silverflow::error::Result;
use silverflow::pipeline::Graph;
use silverflow::runtime;

use super::{Project, print, with_remarks};

/// Arguments of `dry-run`.
#[derive(Args)]
pub(super) struct DryRun {
    #[command(flatten)]
    project: Project,
}

impl DryRun {
    pub(super) fn run(&self) -> Result<()> {
        let loaded = self.project.load()?;
        let found = runtime::dry_run(&loaded.pipeline).map_err(|error| with_remarks(error, &loaded.lints))?;
        let mut out = Graph::new(&loaded.pipeline)?.render(&loaded.pipeline);
        for lint in &loaded.lints {
            let _ =
                writeln!(out, "\nwarning: [{}] {}\n --> {}\n  help: {}", lint.code, lint.message, lint.span, lint.help);
        }
        for lint in &found.plan.lints {
            let _ = writeln!(out, "\nwarning: [{}] {}\n --> {}", lint.code, lint.message, lint.span);
        }
        for recompute in &found.recompute {
            let will = if recompute.new { "will be computed from what is stored" } else { "will be recomputed" };
            let _ = writeln!(out, "\n{} {will}", recompute.name);
            for reason in &recompute.reasons {
                let _ = writeln!(out, "  {reason}");
            }
        }
        let _ = writeln!(out, "\n{} is well formed: {} datasets", loaded.pipeline.name, loaded.pipeline.datasets.len());
        print(&out)
    }
}
