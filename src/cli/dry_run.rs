//! `silverflow dry-run`.

use std::fmt::Write;

use clap::Args;
use serde_json::json;
use silverflow::error::Result;
use silverflow::pipeline::Graph;
use silverflow::plan::explain;
use silverflow::project::Loaded;
use silverflow::runtime::{self, DryRun as Found};

use super::{Project, describe, print, with_remarks};

/// Arguments of `dry-run`.
#[derive(Args)]
pub(super) struct DryRun {
    #[command(flatten)]
    project: Project,
    /// Show how each dataset is computed: columns and types, what it reads, when its rules judge, keys and state of operators.
    #[arg(long)]
    explain: bool,
    /// One JSON object for machines, everything that `--explain` shows included.
    #[arg(long)]
    json: bool,
}

impl DryRun {
    pub(super) fn run(&self) -> Result<()> {
        let found = self.project.load().and_then(|loaded| {
            let found = runtime::dry_run(&loaded.pipeline).map_err(|error| with_remarks(error, &loaded.lints))?;
            Ok((loaded, found))
        });
        match (self.json, found) {
            (true, Ok((loaded, found))) => print(&format!("{}\n", machine(&loaded, &found))),
            (true, Err(error)) => {
                print(&format!("{}\n", json!({ "error": describe(&error) })))?;
                Err(error)
            }
            (false, found) => {
                let (loaded, found) = found?;
                print(&self.text(&loaded, &found)?)
            }
        }
    }

    fn text(&self, loaded: &Loaded, found: &Found) -> Result<String> {
        let mut out = String::new();
        if self.explain {
            for dataset in explain(&found.plan) {
                let _ = writeln!(out, "{dataset}");
            }
        } else {
            out.push_str(&Graph::new(&loaded.pipeline)?.render(&loaded.pipeline));
        }
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
        Ok(out)
    }
}

fn machine(loaded: &Loaded, found: &Found) -> serde_json::Value {
    let declared = loaded.lints.iter().map(
        |lint| json!({ "code": lint.code, "message": lint.message, "at": lint.span.to_string(), "help": lint.help }),
    );
    let planned =
        found.plan.lints.iter().map(
            |lint| json!({ "code": lint.code, "message": lint.message, "at": lint.span.to_string(), "help": null }),
        );
    let recompute = found.recompute.iter().map(|r| json!({ "dataset": r.name, "new": r.new, "reasons": r.reasons }));
    json!({
        "pipeline": loaded.pipeline.name,
        "datasets": explain(&found.plan),
        "remarks": declared.chain(planned).collect::<Vec<_>>(),
        "recompute": recompute.collect::<Vec<_>>(),
    })
}
