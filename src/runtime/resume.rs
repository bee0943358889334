//! What an interrupted epoch has left, and what of it can be finished.

use std::collections::{BTreeMap, BTreeSet};

use super::definitions::{fingerprints, is_source, keeper, quarantine_key, source_key, table_of};
use super::names::found;
use crate::dataflow::TableId;
use crate::error::Result;
use crate::lake::{Begin, Position};
use crate::plan::{DECIDED, Plan};
use crate::sources::is_there;

/// How the epoch that an earlier run began is finished.
///
/// The quarantine of a replay point commits before its rows, so that the rows decide: once their table holds the epoch,
/// both do, and the source is not read again.
#[derive(Default)]
pub(super) struct Resume {
    /// Replay points that hold the epoch, and whether rows can have gone from them in it.
    pub(super) stored: BTreeMap<usize, bool>,
    /// Sources that are read again as recorded.
    pub(super) again: BTreeMap<usize, Position>,
    /// Sources whose input is given back: it comes again in a later epoch.
    pub(super) returned: BTreeSet<String>,
    /// Tables that hold another part of the epoch than the others.
    pub(super) stray: BTreeSet<TableId>,
    /// No table holds anything of the epoch.
    pub(super) untouched: bool,
    /// Versions of tables that the plan does not have and that hold the epoch, by their names in the log.
    pub(super) elsewhere: BTreeMap<String, i64>,
    /// Tables that the plan does not have, by their names in the log: they may lack the epoch, or hold what is not kept of it.
    pub(super) foreign: BTreeSet<String>,
    /// Nothing of the epoch is kept.
    pub(super) given_up: bool,
    /// Tables that are set by comparison are left for the next epoch: they may hold this one already, made otherwise, and
    /// no table takes an epoch twice.
    pub(super) hold: bool,
}

impl Resume {
    /// Looks at what the tables hold of the open epoch. `compare` are those that are to be set by comparison; `elsewhere`
    /// gives the versions of a table that the plan does not have, and that stores a source, if it holds the epoch.
    pub(super) fn of(
        plan: &Plan,
        open: &Begin,
        epochs: &BTreeMap<TableId, Option<u64>>,
        compare: &BTreeSet<TableId>,
        elsewhere: impl Fn(&str, &str) -> Result<BTreeMap<String, i64>>,
    ) -> Result<Resume> {
        let held: BTreeSet<TableId> = epochs
            .iter()
            .filter(|(_, epoch)| epoch.is_some_and(|e| e >= open.epoch))
            .map(|(table, _)| *table)
            .collect();
        let derived = held.iter().copied().filter(|table| {
            let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
            plan.datasets.get(*index).is_some_and(|d| !d.replay_point)
        });
        let derived: BTreeSet<TableId> = derived.collect();
        let same = open.fingerprints == fingerprints(plan);
        let mut resume = Resume { hold: !same, untouched: held.is_empty(), ..Resume::default() };
        // What a replay point reads is stored at once or not at all.
        let mut waiting: BTreeMap<usize, Vec<(usize, Position)>> = BTreeMap::new();
        for (id, position) in &open.sources {
            let Some((index, source)) = plan.sources.iter().enumerate().find(|(_, s)| s.id == *id) else {
                // Its flow is gone. What is stored of it is read; what is not comes again, should the flow come back.
                let label = open.fingerprints.get(&source_key(id));
                let at = plan.datasets.iter().position(|d| Some(&d.label()) == label);
                match (at, label) {
                    (Some(at), _) if held.contains(&TableId::Rows(at)) => {
                        *resume.stored.entry(at).or_default() |= matches!(position, Position::Delta { .. });
                    }
                    (None, Some(label)) => {
                        let held = elsewhere(label, id)?;
                        if held.is_empty() {
                            resume.returned.insert(id.clone());
                        }
                        resume.elsewhere.extend(held);
                    }
                    _ => drop(resume.returned.insert(id.clone())),
                }
                continue;
            };
            let Some(at) = keeper(plan, index) else { continue };
            if held.contains(&TableId::Rows(at)) {
                *resume.stored.entry(at).or_default() |= source.kind.retracts();
            } else {
                waiting.entry(at).or_default().push((index, found(&plan.root, position)));
            }
        }
        // Derived tables may have been made with or without what is not stored.
        if !waiting.is_empty() && !derived.is_empty() {
            resume.stray.extend(&derived);
            resume.hold = true;
        }
        let mut given_back = BTreeSet::new();
        for (at, sources) in &waiting {
            let Some(dataset) = plan.datasets.get(*at) else { continue };
            let unchanged = open.fingerprints.get(&dataset.label()) == Some(&dataset.fingerprint);
            if !unchanged || !sources.iter().all(|(_, position)| is_there(position)) {
                resume.hold = true;
                given_back.insert(*at);
            }
        }
        for (at, sources) in waiting {
            let tables = [TableId::Rows(at), TableId::Quarantine(at)];
            // What is read now has to be committed now.
            let held_back = resume.hold && tables.iter().any(|table| compare.contains(table));
            if given_back.contains(&at) || held_back {
                let ids = sources.iter().filter_map(|(index, _)| Some(plan.sources.get(*index)?.id.clone()));
                resume.returned.extend(ids);
                resume.stray.extend(tables.iter().filter(|table| held.contains(table)));
            } else {
                resume.again.extend(sources);
            }
        }
        resume.foreign = foreign(plan, open);
        resume.untouched &= resume.elsewhere.is_empty();
        if resume.stored.is_empty()
            && resume.elsewhere.is_empty()
            && derived.is_empty()
            && (!same || !resume.returned.is_empty())
        {
            resume.given_up = true;
            resume.stray = held;
        }
        Ok(resume)
    }
}

/// Tables of the epoch that can be computed, and are not in the plan.
fn foreign(plan: &Plan, open: &Begin) -> BTreeSet<String> {
    let keepers: BTreeSet<&String> =
        open.sources.keys().filter_map(|id| open.fingerprints.get(&source_key(id))).collect();
    let derived = |(label, fingerprint): &(&String, &String)| {
        !is_source(label) && !keepers.contains(label) && !fingerprint.starts_with(DECIDED)
    };
    let gone = open.fingerprints.iter().filter(derived).filter(|(label, _)| table_of(plan, label).is_none());
    gone.flat_map(|(label, _)| [label.clone(), quarantine_key(label)]).collect()
}
