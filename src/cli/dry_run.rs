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
        let plan = runtime::dry_run(&loaded.pipeline).map_err(|error| with_remarks(error, &loaded.lints))?;
        let mut out = Graph::new(&loaded.pipeline)?.render(&loaded.pipeline);
        for lint in &loaded.lints {
            let _ =
                writeln!(out, "\nwarning: [{}] {}\n --> {}\n  help: {}", lint.code, lint.message, lint.span, lint.help);
        }
        for lint in &plan.lints {
            let _ = writeln!(out, "\nwarning: [{}] {}\n --> {}", lint.code, lint.message, lint.span);
        }
        let _ = writeln!(out, "\n{} is well formed: {} datasets", loaded.pipeline.name, loaded.pipeline.datasets.len());
        print(&out)
    }
}
