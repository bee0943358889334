//! What the pipeline's definitions mean for the tables that are there: which are as their definitions say, which have to be
//! set by comparison.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataflow::{Start, TableId};
use crate::error::{Error, Result};
use crate::lake::History;
use crate::plan::{Feed, Input, Node, Plan, Stored};

const SOURCE: &str = "source ";

/// Fingerprints as the epoch log keeps them: by dataset, and for each source the dataset that stores it.
pub fn fingerprints(plan: &Plan) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for dataset in plan.datasets.iter().filter(|d| d.stored != Stored::No) {
        all.insert(dataset.label(), dataset.fingerprint.clone());
    }
    for (index, source) in plan.sources.iter().enumerate() {
        if let Some(keeper) = keeper(plan, index).and_then(|at| plan.datasets.get(at)) {
            all.insert(format!("{SOURCE}{}", source.id), keeper.label());
        }
    }
    all
}

/// The replay point that stores a source's rows.
pub fn keeper(plan: &Plan, source: usize) -> Option<usize> {
    fn reads(plan: &Plan, node: &Node, source: usize) -> bool {
        let mut found = false;
        node.leaves(&mut |input| {
            found |= match input {
                Input::Source(index) => index == source,
                // A view between the source and the table.
                Input::Dataset(index) => plan.datasets.get(index).is_some_and(|d| {
                    d.stored == Stored::No
                        && matches!(&d.feed, Feed::Append(flows) if flows.iter().any(|(_, n)| reads(plan, n, source)))
                }),
                Input::Quarantine(_) => false,
            }
        });
        found
    }
    plan.datasets.iter().position(|dataset| {
        dataset.replay_point
            && matches!(&dataset.feed, Feed::Append(flows) if flows.iter().any(|(_, n)| reads(plan, n, source)))
    })
}

/// How to start on tables that were made under the definitions of `history`.
///
/// # Errors
/// `FLOW_GONE` (user) if a replay point is now fed by a flow of another name: its rows would be read a second time.
pub fn start(plan: &Plan, history: &History) -> Result<Start> {
    let mut start = Start { hydrated: history.last_complete.unwrap_or(0), ..Start::default() };
    // Where the clock releases rows, those that are stored pass it again.
    let timed = plan.datasets.iter().enumerate().filter(|(_, d)| d.replay_point && !d.boundaries.is_empty());
    start.rejudge.extend(timed.map(|(index, _)| index));
    if history.last_complete.is_none() {
        return Ok(start);
    }
    let now = fingerprints(plan);
    for (old, keeper) in &history.fingerprints {
        let Some(id) = old.strip_prefix(SOURCE) else { continue };
        if now.contains_key(old) {
            continue;
        }
        if let Some(new) = now.iter().find(|(name, label)| name.starts_with(SOURCE) && *label == keeper) {
            return Err(Error::user(
                "FLOW_GONE",
                format!(
                    "{keeper} has rows that flow {id} read, and flow {} is to feed it now: it would read them a second time",
                    new.0.trim_start_matches(SOURCE)
                ),
            )
            .help("give the flow its old name again, or write into a new table")
            .dataset(keeper));
        }
    }
    let mut changed = BTreeSet::new();
    for (index, dataset) in plan.datasets.iter().enumerate() {
        if dataset.stored == Stored::No {
            continue;
        }
        let before = history.fingerprints.get(&dataset.label());
        if before == Some(&dataset.fingerprint) {
            continue;
        }
        if dataset.replay_point {
            // What it has stored stays; only the expectations are applied anew.
            if before.is_some() {
                start.rejudge.insert(index);
                changed.insert(index);
            }
        } else {
            changed.insert(index);
        }
    }
    for index in changed {
        start.compare.insert(TableId::Rows(index));
        if plan.datasets.get(index).is_some_and(|d| d.quarantine.is_some()) {
            start.compare.insert(TableId::Quarantine(index));
        }
    }
    Ok(start)
}

/// Names under which the log keeps the versions of tables.
pub fn table_key(plan: &Plan, table: TableId) -> String {
    let label = |index: usize| plan.datasets.get(index).map(|d| d.label()).unwrap_or_default();
    match table {
        TableId::Rows(index) => label(index),
        TableId::Quarantine(index) => format!("{} quarantine", label(index)),
    }
}
