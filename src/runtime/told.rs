//! What is said of files that are not read: once a run, and counted.

use std::collections::BTreeSet;

use super::backlog::Backlog;
use super::report::RunReport;
use crate::lake::FileId;
use crate::plan::Plan;

/// Files that are named, of each look; the others are counted.
const NAMED: usize = 5;

/// What has been said.
#[derive(Default)]
pub(super) struct Told(BTreeSet<(String, u64)>);

impl Told {
    /// Says which files have another size than when they were read.
    pub(super) fn changed(&mut self, plan: &Plan, backlog: &Backlog, report: &mut RunReport, say: &dyn Fn(&str)) {
        let mut named = 0;
        for (index, file, before) in &backlog.changed {
            let Some(source) = plan.sources.get(*index) else { continue };
            if !self.0.insert((format!("{} {}", source.id, file.path), file.size)) {
                continue;
            }
            report.source(&source.flow).changed_files += 1;
            named += 1;
            if named <= NAMED {
                say(&format!(
                    "warning: [SOURCE_FILE_CHANGED] flow {}: the file {} has {} bytes now and had {} when epoch {} read \
                     it; what has changed is not read: land new rows in new files, or set allowOverwrites => true",
                    source.flow, file.path, file.size, before.size, before.epoch
                ));
            }
        }
        if named > NAMED {
            say(&format!("warning: [SOURCE_FILE_CHANGED] and {} more files that have changed", named - NAMED));
        }
    }
}

/// Says which files are left for another run, since they are still being written.
pub(super) fn waiting(plan: &Plan, files: &[(usize, FileId)], report: &mut RunReport, say: &dyn Fn(&str)) {
    for (at, (index, file)) in files.iter().enumerate() {
        let Some(source) = plan.sources.get(*index) else { continue };
        report.source(&source.flow).waiting_files += 1;
        if at < NAMED {
            say(&format!(
                "warning: [SOURCE_FILE_CHANGING] flow {}: the file {} is still being written; the next run reads it",
                source.flow, file.path
            ));
        }
    }
    if files.len() > NAMED {
        say(&format!("warning: [SOURCE_FILE_CHANGING] and {} more files that wait", files.len() - NAMED));
    }
}
