//! What a run did, for people and machines.

use serde::Serialize;

use crate::dataflow::Counts;
use crate::pipeline::Action;
use crate::sources::ReadStats;

/// What a run did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Where tables and state are.
    pub storage: String,
    /// Epochs that this run completed, in order.
    pub epochs: Vec<u64>,
    /// The last complete epoch.
    pub last_epoch: Option<u64>,
    /// Files that were read.
    pub files: u64,
    /// The epoch of the checkpoint that the run began with, if there was one.
    pub checkpoint: Option<u64>,
    /// Rows that were read back from replay points at the start.
    pub replayed: u64,
    /// Files that were removed or moved away after they had been read (`cleanSource`).
    pub cleaned: u64,
    /// What could not be understood of what was read, by flow; flows of which everything was are left out.
    pub sources: Vec<SourceReport>,
    /// Stored datasets in the order of the graph.
    pub tables: Vec<TableReport>,
}

/// What could not be understood of what a flow read from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// The flow.
    pub flow: String,
    /// Records that were not, or not wholly, understood and not rescued.
    pub malformed: u64,
    /// Of these, the ones that were left out.
    pub dropped: u64,
    /// Rows of which something is in the rescued data column.
    pub rescued: u64,
    /// Files that could not be read to their end, where that is no error.
    pub corrupt_files: u64,
}

impl RunReport {
    /// Whether there was anything to do.
    pub fn changed(&self) -> bool {
        self.tables.iter().any(|t| t.committed)
    }

    pub(super) fn count_source(&mut self, flow: &str, stats: &ReadStats) {
        if stats.malformed + stats.dropped + stats.rescued + stats.corrupt_files == 0 {
            return;
        }
        let at = self.sources.iter().position(|x| x.flow == flow).unwrap_or_else(|| {
            self.sources.push(SourceReport { flow: flow.to_owned(), ..SourceReport::default() });
            self.sources.len() - 1
        });
        if let Some(report) = self.sources.get_mut(at) {
            report.malformed += stats.malformed;
            report.dropped += stats.dropped;
            report.rescued += stats.rescued;
            report.corrupt_files += stats.corrupt_files;
        }
    }
}

/// What a run did to one dataset. Rows are counted as they come: `read = valid + quarantined + dropped`. Versions are net.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableReport {
    /// Index of the dataset in the plan.
    #[serde(skip)]
    pub(super) dataset: usize,
    /// Full name.
    pub name: String,
    /// `streaming table`, `AUTO CDC SCD type 1`, `AUTO CDC SCD type 2`, `materialized view` or `replay point`.
    pub kind: &'static str,
    /// Where the Delta table is.
    pub location: String,
    /// Where its quarantine is, if it has one.
    pub quarantine_location: Option<String>,
    /// Delta version of the table now.
    pub version: i64,
    /// Whether the run committed to it or to its quarantine.
    pub committed: bool,
    /// Rows that its queries yield; for AUTO CDC, change events.
    pub read: i64,
    /// Of these, the ones that passed into the dataset.
    pub valid: i64,
    /// Of these, the ones in quarantine.
    pub quarantined: i64,
    /// Of these, the ones left out by DROP.
    pub dropped: i64,
    /// Versions that opened.
    pub versions_opened: i64,
    /// Versions that closed.
    pub versions_closed: i64,
    /// Rows whose verdict was withdrawn: they left the dataset, or its quarantine.
    pub verdicts_withdrawn: i64,
    /// Events that lose against another one of the same key and sequence.
    pub ties: i64,
    /// Rows written by commits, and rows deleted by them.
    pub inserted: u64,
    /// Rows that commits deleted.
    pub deleted: u64,
    /// Outcomes by expectation.
    pub expectations: Vec<RuleReport>,
}

/// Outcomes of one expectation.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Name.
    pub name: String,
    /// `WARN`, `DROP`, `QUARANTINE` or `FAIL`.
    pub action: &'static str,
    /// Rows for which it is true.
    pub passed: i64,
    /// Rows that violate it.
    pub failed: i64,
    /// Of these, the ones for which it is null.
    pub null: i64,
    /// Of these, the ones on which its expression fails.
    pub error: i64,
}

pub(super) fn action_name(action: Action) -> &'static str {
    match action {
        Action::Warn => "WARN",
        Action::Drop => "DROP",
        Action::Quarantine => "QUARANTINE",
        Action::Fail => "FAIL",
    }
}

impl TableReport {
    pub(super) fn count(&mut self, counts: &Counts) {
        self.read += counts.yielded;
        self.valid += counts.kept;
        self.quarantined += counts.quarantined;
        self.dropped += counts.dropped;
        self.versions_opened += counts.versions;
        self.versions_closed += counts.closed;
        self.verdicts_withdrawn += counts.withdrawn;
        self.ties += counts.ties;
        for (report, rule) in self.expectations.iter_mut().zip(&counts.rules) {
            report.passed += rule.passed;
            report.failed += rule.failed;
            report.null += rule.null;
            report.error += rule.error;
        }
    }
}
