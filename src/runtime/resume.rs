//! What an interrupted epoch has left, and what of it can be finished.

use std::collections::{BTreeMap, BTreeSet};

use super::definitions::{fingerprints, keeper};
use crate::dataflow::TableId;
use crate::lake::{Begin, Position};
use crate::plan::Plan;
use crate::sources::is_there;

/// How the epoch that an earlier run began is finished.
///
/// The quarantine of a replay point commits before its rows, so that the rows decide: once their table holds the epoch,
/// both do, and the source is not read again.
#[derive(Default)]
pub(super) struct Resume {
    /// Sources whose rows are in their replay points.
    pub(super) stored: BTreeSet<usize>,
    /// Sources that are read again as recorded.
    pub(super) again: BTreeMap<usize, Position>,
    /// Sources whose input is given back: it comes again in a later epoch.
    pub(super) returned: BTreeSet<String>,
    /// Tables that hold a part of the epoch that is given back.
    pub(super) stray: BTreeSet<TableId>,
    /// Nothing of the epoch is kept.
    pub(super) given_up: bool,
    /// Tables that are set by comparison are left for the next epoch: they may hold this one already, under other
    /// definitions, and no table takes an epoch twice.
    pub(super) hold: bool,
}

impl Resume {
    /// Looks at what the tables hold of the open epoch. `compare` are those that are to be set by comparison.
    pub(super) fn of(
        plan: &Plan,
        open: &Begin,
        epochs: &BTreeMap<TableId, Option<u64>>,
        compare: &BTreeSet<TableId>,
    ) -> Resume {
        let holds = |table: &TableId| epochs.get(table).copied().flatten().is_some_and(|e| e >= open.epoch);
        let replay_point = |table: &TableId| {
            let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
            plan.datasets.get(*index).is_some_and(|d| d.replay_point)
        };
        // Tables that are derived commit after all replay points.
        let derived = epochs.keys().any(|table| holds(table) && !replay_point(table));
        let same = open.fingerprints == fingerprints(plan);
        let mut resume = Resume { hold: !same, ..Resume::default() };
        for (id, position) in &open.sources {
            let Some(index) = plan.sources.iter().position(|s| s.id == *id) else { continue };
            let Some((at, dataset)) = keeper(plan, index).and_then(|at| Some((at, plan.datasets.get(at)?))) else {
                continue;
            };
            if derived || holds(&TableId::Rows(at)) {
                resume.stored.insert(index);
            } else if open.fingerprints.get(&dataset.label()) == Some(&dataset.fingerprint) && is_there(position) {
                resume.again.insert(index, position.clone());
            } else {
                resume.give_back(id, at, &holds);
            }
        }
        // What is read now has to be committed now.
        if resume.hold {
            for (index, _) in std::mem::take(&mut resume.again).into_iter().collect::<Vec<_>>() {
                let Some((source, at)) = plan.sources.get(index).zip(keeper(plan, index)) else { continue };
                if [TableId::Rows(at), TableId::Quarantine(at)].iter().any(|table| compare.contains(table)) {
                    resume.give_back(&source.id, at, &holds);
                } else if let Some(position) = open.sources.get(&source.id) {
                    resume.again.insert(index, position.clone());
                }
            }
        }
        let nothing = resume.stored.is_empty() && !derived;
        if nothing && (!same || !resume.returned.is_empty()) {
            resume.given_up = true;
            resume.stray = epochs.keys().copied().filter(holds).collect();
        }
        resume
    }

    fn give_back(&mut self, source: &str, keeper: usize, holds: &impl Fn(&TableId) -> bool) {
        self.hold = true;
        self.returned.insert(source.to_owned());
        self.stray.extend([TableId::Rows(keeper), TableId::Quarantine(keeper)].iter().filter(|t| holds(t)));
    }
}
