//! What a worker counts of each dataset in an epoch.
//!
//! Rows and outcomes are counted as they come; a row that is taken back is counted as withdrawn where it leaves a
//! quarantine. Versions, closed versions and ties are net.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use silverflow_operators::Epoch;

/// Counts of one dataset in one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows that the dataset's queries yield; for AUTO CDC, events.
    pub yielded: i64,
    /// Rows that reach the dataset; for AUTO CDC, events that reach the merge.
    pub kept: i64,
    /// Rows in quarantine.
    pub quarantined: i64,
    /// Rows left out by DROP.
    pub dropped: i64,
    /// Versions (SCD type 2) or rows (SCD type 1) of the target.
    pub versions: i64,
    /// Versions with an end.
    pub closed: i64,
    /// Events that lose against another one of the same key and sequence.
    pub ties: i64,
    /// Rows that leave the quarantine, because their verdict or the row itself is withdrawn.
    pub withdrawn: i64,
    /// Outcomes by expectation, in the dataset's order.
    pub rules: Vec<RuleCounts>,
}

/// Outcomes of one expectation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounts {
    /// True.
    pub passed: i64,
    /// False, null or failing: all violations.
    pub failed: i64,
    /// Of the violations, those that evaluate to null.
    pub null: i64,
    /// Of the violations, those whose expression fails on the row.
    pub error: i64,
}

impl Counts {
    /// What is told with a commit, beside what the commit itself does. A net count below zero is left out.
    pub fn metrics(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("numInputRows", self.yielded),
            ("numQuarantinedRows", self.quarantined),
            ("numDroppedRows", self.dropped),
            ("numWithdrawnRows", self.withdrawn),
        ];
        let told = counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), u64::try_from(count).ok()?)));
        told.collect()
    }

    /// Adds another worker's or epoch's counts.
    pub fn add(&mut self, other: &Counts) {
        self.yielded += other.yielded;
        self.kept += other.kept;
        self.quarantined += other.quarantined;
        self.dropped += other.dropped;
        self.versions += other.versions;
        self.closed += other.closed;
        self.ties += other.ties;
        self.withdrawn += other.withdrawn;
        if self.rules.len() < other.rules.len() {
            self.rules.resize(other.rules.len(), RuleCounts::default());
        }
        for (mine, theirs) in self.rules.iter_mut().zip(&other.rules) {
            mine.passed += theirs.passed;
            mine.failed += theirs.failed;
            mine.null += theirs.null;
            mine.error += theirs.error;
        }
    }

    /// The counts of rule `index`.
    pub fn rule(&mut self, index: usize) -> &mut RuleCounts {
        if self.rules.len() <= index {
            self.rules.resize(index + 1, RuleCounts::default());
        }
        match self.rules.get_mut(index) {
            Some(rule) => rule,
            None => unreachable!("resized above"),
        }
    }
}

/// The counts of one worker, by epoch and dataset.
#[derive(Clone, Debug, Default)]
pub struct Tally(Rc<RefCell<BTreeMap<(Epoch, usize), Counts>>>);

impl Tally {
    /// Changes the counts of a dataset in an epoch.
    pub fn count(&self, epoch: Epoch, dataset: usize, f: impl FnOnce(&mut Counts)) {
        f(self.0.borrow_mut().entry((epoch, dataset)).or_default());
    }

    /// Takes out everything that was counted in epochs up to and including `epoch`.
    pub fn take(&self, epoch: Epoch) -> Vec<((Epoch, usize), Counts)> {
        let mut all = self.0.borrow_mut();
        let later = all.split_off(&(epoch + 1, 0));
        std::mem::replace(&mut *all, later).into_iter().collect()
    }
}
