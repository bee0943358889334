//! What a run did, for people and machines.

use std::collections::BTreeMap;

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
    /// Bytes of state that were written to files since memory had no room for them.
    pub spilled_bytes: u64,
    /// Files that were removed or moved away after they had been read (`cleanSource`).
    pub cleaned: u64,
    /// What could not be understood of what was read, and files that were not, by flow; flows without any are left out.
    pub sources: BTreeMap<String, SourceReport>,
    /// Stored datasets in the order of the graph.
    pub tables: Vec<TableReport>,
    /// What each worker did, by number.
    pub workers: Vec<WorkerReport>,
    /// How many times as many rows of keyed operators the busiest worker had as it would have had if all had the same.
    pub skew: Option<f64>,
    /// What each process did, by number.
    pub processes: Vec<ProcessReport>,
    /// Keys that had most of the rows of a worker: more workers do not make them faster.
    pub hot_keys: Vec<HotKey>,
}

/// What a worker did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerReport {
    /// Its number.
    pub worker: usize,
    /// The process that it is in.
    pub process: usize,
    /// Rows that readers handed to it, in turn.
    pub rows_in: u64,
    /// Rows that came to its keyed operators: joins, DISTINCT, AUTO CDC. A row counts in each of them.
    pub rows: u64,
    /// Microseconds in its operators.
    pub busy_micros: u64,
    /// Messages that waited for it, at most; readers wait when there are 64.
    pub most_waiting: u64,
}

/// What a process did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number.
    pub process: usize,
    /// Bytes that its workers sent to those of other processes.
    pub sent_bytes: u64,
    /// Bytes that they received from there.
    pub received_bytes: u64,
    /// Bytes of state that it wrote to files since memory had no room for them.
    pub spilled_bytes: u64,
}

impl ProcessReport {
    pub(super) fn since(&self, before: &ProcessReport) -> ProcessReport {
        ProcessReport {
            process: self.process,
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            spilled_bytes: self.spilled_bytes.saturating_sub(before.spilled_bytes),
        }
    }
}

/// A key that had most of the rows of a worker, at an input of a keyed operator and in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HotKey {
    /// The dataset that the operator is of.
    pub table: String,
    /// The key, its columns separated by commas.
    pub key: String,
    /// The worker that it belongs to.
    pub worker: usize,
    /// Rows that have it, at least.
    pub rows: u64,
    /// Rows of the worker there.
    pub of: u64,
}

/// What could not be understood of what a flow read from outside, and which files it did not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Records that were not, or not wholly, understood and not rescued.
    pub malformed: u64,
    /// Of these, the ones that were left out.
    pub dropped: u64,
    /// Rows of which something is in the rescued data column.
    pub rescued: u64,
    /// Files that could not be read to their end, where that is no error.
    pub corrupt_files: u64,
    /// Files that have another size than when they were read. What has changed in them is not read.
    pub changed_files: u64,
    /// Files that were still being written, and wait for the next run.
    pub waiting_files: u64,
}

impl std::ops::AddAssign<&SourceReport> for SourceReport {
    fn add_assign(&mut self, more: &SourceReport) {
        self.malformed += more.malformed;
        self.dropped += more.dropped;
        self.rescued += more.rescued;
        self.corrupt_files += more.corrupt_files;
        self.changed_files += more.changed_files;
        self.waiting_files += more.waiting_files;
    }
}

impl RunReport {
    /// The same tables, with nothing done yet.
    pub(super) fn rest(&self) -> RunReport {
        let rest = |table: &TableReport| TableReport {
            dataset: table.dataset,
            name: table.name.clone(),
            kind: table.kind,
            location: table.location.clone(),
            quarantine_location: table.quarantine_location.clone(),
            version: table.version,
            expectations: table
                .expectations
                .iter()
                .map(|rule| RuleReport { passed: 0, failed: 0, null: 0, error: 0, ..rule.clone() })
                .collect(),
            ..TableReport::default()
        };
        RunReport {
            pipeline: self.pipeline.clone(),
            storage: self.storage.clone(),
            last_epoch: self.last_epoch,
            tables: self.tables.iter().map(rest).collect(),
            ..RunReport::default()
        }
    }

    /// Adds what came after.
    pub(super) fn add(&mut self, later: &RunReport) {
        self.epochs.extend(&later.epochs);
        self.last_epoch = later.last_epoch;
        self.files += later.files;
        self.checkpoint = self.checkpoint.or(later.checkpoint);
        self.replayed += later.replayed;
        self.spilled_bytes += later.spilled_bytes;
        self.cleaned += later.cleaned;
        self.add_sources(&later.sources);
        for (table, more) in self.tables.iter_mut().zip(&later.tables) {
            table.add(more);
        }
        self.add_spread(later);
    }

    /// Adds what came after, of workers and processes.
    pub(super) fn add_spread(&mut self, later: &RunReport) {
        for more in &later.workers {
            match self.workers.get_mut(more.worker) {
                Some(known) => {
                    known.rows_in += more.rows_in;
                    known.rows += more.rows;
                    known.busy_micros += more.busy_micros;
                    known.most_waiting = known.most_waiting.max(more.most_waiting);
                }
                None => self.workers.push(more.clone()),
            }
        }
        let all: u64 = self.workers.iter().map(|worker| worker.rows).sum();
        let most = self.workers.iter().map(|worker| worker.rows).max().unwrap_or(0);
        self.skew = (all > 0).then(|| most as f64 * self.workers.len() as f64 / all as f64);
        for more in &later.processes {
            match self.processes.get_mut(more.process) {
                Some(known) => {
                    known.sent_bytes += more.sent_bytes;
                    known.received_bytes += more.received_bytes;
                    known.spilled_bytes += more.spilled_bytes;
                }
                None => self.processes.push(more.clone()),
            }
        }
        for key in &later.hot_keys {
            if !self.hot_keys.iter().any(|known| known.table == key.table && known.key == key.key) {
                self.hot_keys.push(key.clone());
            }
        }
    }

    pub(super) fn add_sources(&mut self, later: &BTreeMap<String, SourceReport>) {
        for (flow, more) in later {
            *self.source(flow) += more;
        }
    }

    pub(super) fn source(&mut self, flow: &str) -> &mut SourceReport {
        self.sources.entry(flow.to_owned()).or_default()
    }

    /// Whether there was anything to do.
    pub fn changed(&self) -> bool {
        self.tables.iter().any(|t| t.committed)
    }

    pub(super) fn count_source(&mut self, flow: &str, stats: &ReadStats) {
        if stats.malformed + stats.dropped + stats.rescued + stats.corrupt_files == 0 {
            return;
        }
        let report = self.source(flow);
        report.malformed += stats.malformed;
        report.dropped += stats.dropped;
        report.rescued += stats.rescued;
        report.corrupt_files += stats.corrupt_files;
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
    fn add(&mut self, later: &TableReport) {
        self.version = later.version;
        self.committed |= later.committed;
        self.read += later.read;
        self.valid += later.valid;
        self.quarantined += later.quarantined;
        self.dropped += later.dropped;
        self.versions_opened += later.versions_opened;
        self.versions_closed += later.versions_closed;
        self.verdicts_withdrawn += later.verdicts_withdrawn;
        self.ties += later.ties;
        self.inserted += later.inserted;
        self.deleted += later.deleted;
        for (rule, more) in self.expectations.iter_mut().zip(&later.expectations) {
            rule.passed += more.passed;
            rule.failed += more.failed;
            rule.null += more.null;
            rule.error += more.error;
        }
    }

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
