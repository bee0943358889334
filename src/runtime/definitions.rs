//! What the pipeline's definitions mean for the tables that are there: which are as their definitions say, which have to be
//! set by comparison, and why.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tokio::runtime::Handle;

use super::backlog::Found;
use super::names::name_of;
use crate::dataflow::{Start, TableId};
use crate::error::{Error, Result};
use crate::lake::{History, Lake};
use crate::pipeline::ScdType;
use crate::plan::{
    DECIDED, DatasetPlan, Feed, Input, Node, Plan, SCD_TYPE, SEQUENCE_TYPE, SourceKind, Stored, UPSTREAM,
};

const SOURCE: &str = "source ";
const BEHIND: &str = "it has missed changes of an earlier run";

/// A dataset that the next run computes anew, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recompute {
    /// Full name.
    pub name: String,
    /// What has changed.
    pub reasons: Vec<String>,
    /// It has no table yet, so that nothing is replaced.
    pub new: bool,
}

/// Fingerprints as the epoch log keeps them: by dataset, and for each source the dataset that stores it.
pub fn fingerprints(plan: &Plan) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for dataset in plan.datasets.iter().filter(|d| d.stored != Stored::No) {
        all.insert(dataset.label(), dataset.fingerprint.clone());
    }
    for (index, source) in plan.sources.iter().enumerate() {
        if let Some(keeper) = keeper(plan, index).and_then(|at| plan.datasets.get(at)) {
            all.insert(source_key(&source.id), keeper.label());
        }
    }
    all
}

/// Whether the rows of a source were stored elsewhere before, so that they have to be read anew.
///
/// # Errors
/// `SOURCE_MODE_CHANGED` (user) if where they are to be stored there are other rows.
pub fn moved(plan: &Plan, history: &History, source: usize) -> Result<bool> {
    let Some(id) = plan.sources.get(source).map(|s| &s.id) else { return Ok(false) };
    let now = keeper(plan, source).and_then(|at| plan.datasets.get(at)).map(|d| d.label());
    let (Some(before), Some(now)) = (history.fingerprints.get(&source_key(id)), now) else { return Ok(false) };
    if *before == now {
        return Ok(false);
    }
    if history.fingerprints.contains_key(&now) {
        return Err(Error::user(
            "SOURCE_MODE_CHANGED",
            format!(
                "{now} has rows that came through {before}, and flow {id} is to read them straight from outside now"
            ),
        )
        .help("read the table in the mode that it was read in, or write into a new table")
        .dataset(now));
    }
    Ok(true)
}

/// Makes sure that the rows that a source has read from files are where they are looked for: they are not outside for ever.
///
/// # Errors
/// `SOURCE_MODE_CHANGED` (user) if they are to be stored in another table than before.
pub fn stays(plan: &Plan, history: &History, source: usize) -> Result<()> {
    let Some(about) = plan.sources.get(source) else { return Ok(()) };
    let now = keeper(plan, source).and_then(|at| plan.datasets.get(at)).map(DatasetPlan::label);
    let (Some(before), Some(now)) = (history.fingerprints.get(&source_key(&about.id)), now) else { return Ok(()) };
    if *before == now || history.seen(&about.id).is_none_or(BTreeMap::is_empty) {
        return Ok(());
    }
    let fed = target(plan, source).map(DatasetPlan::label).unwrap_or_default();
    Err(Error::user(
        "SOURCE_MODE_CHANGED",
        format!("what flow {} has read is in {before}, and would be in {now} under these definitions", about.flow),
    )
    .help(format!(
        "a table with one flow stores what it reads, one with several is computed from what each has read: keep \
         the number of flows as it was, or read the outside again with --full-refresh {fed}"
    ))
    .dataset(fed)
    .flow(&about.flow)
    .at(&about.span))
}

/// What fingerprints are made of, as far as the log does not know it.
pub fn parts(plan: &Plan, history: &History) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for dataset in plan.datasets.iter().filter(|d| d.stored != Stored::No) {
        all.insert(dataset.label(), dataset.parts.clone());
    }
    for (index, source) in plan.sources.iter().enumerate() {
        let target = target(plan, index).map(DatasetPlan::label).unwrap_or_default();
        let about = [("target".to_owned(), target), ("place".to_owned(), place(plan, &source.kind))];
        all.insert(source_key(&source.id), about.into());
    }
    all.retain(|name, parts| history.parts.get(name) != Some(parts));
    all
}

/// As files are named: a project that is moved reads from where it did.
fn place(plan: &Plan, kind: &SourceKind) -> String {
    let path = match kind {
        SourceKind::Files(read) => &read.path,
        SourceKind::Delta { location, .. } => location,
    };
    name_of(&plan.root, path).to_owned()
}

/// The replay point that stores a source's rows.
pub fn keeper(plan: &Plan, source: usize) -> Option<usize> {
    fn reads(plan: &Plan, node: &Node, source: usize) -> bool {
        let mut found = false;
        node.leaves(&mut |input, _| {
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

/// The dataset that the flow of a source feeds.
fn target(plan: &Plan, source: usize) -> Option<&DatasetPlan> {
    let at = keeper(plan, source)?;
    let keeper = plan.datasets.get(at)?;
    match keeper.stored {
        Stored::Replay(_) => plan.datasets.iter().find(|d| d.upstream.contains(&at)),
        _ => Some(keeper),
    }
}

/// Datasets whose definition is not the one of the last complete epoch, or of the epoch that is open, with what has
/// changed: what an open epoch has stored was made under its own definitions.
pub fn changes(plan: &Plan, history: &History) -> BTreeMap<usize, Recompute> {
    let mut changes = BTreeMap::new();
    let complete = history.last_complete.map(|_| &history.fingerprints);
    let open = history.open.as_ref().map(|begin| &begin.fingerprints);
    for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.stored != Stored::No) {
        let label = dataset.label();
        let before: Vec<_> = complete.into_iter().chain(open).map(|all| all.get(&label)).collect();
        let same = |before: &String| *before == dataset.fingerprint;
        if before.iter().all(|before| before.is_some_and(same)) {
            continue;
        }
        // What was decided stays so.
        if dataset.decided && before.iter().any(|before| was_decided(*before)) {
            continue;
        }
        // A new replay point has nothing to begin with.
        if dataset.replay_point && !dataset.decided && before.iter().flatten().all(|before| same(before)) {
            continue;
        }
        let new = before.iter().all(Option::is_none);
        let reasons = match history.parts.get(&label) {
            _ if new => vec!["it is new".to_owned()],
            Some(parts) if *parts != dataset.parts => reasons(parts, &dataset.parts),
            _ => vec!["its definition has changed".to_owned()],
        };
        changes.insert(index, Recompute { name: label, reasons, new });
    }
    changes
}

/// Whether a dataset already decided its rows when they arrived.
fn was_decided(fingerprint: Option<&String>) -> bool {
    fingerprint.is_some_and(|f| f.starts_with(DECIDED))
}

/// What a run would compute anew: datasets that are defined otherwise, and derived tables that are gone.
pub fn recompute(plan: &Plan, history: &History, lake: &Lake, io: &Handle) -> Result<Vec<Recompute>> {
    let mut all = changes(plan, history);
    for table in Found::read(plan, history, lake, io)?.gone {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        let name = plan.datasets.get(index).map(DatasetPlan::label).unwrap_or_default();
        let entry = all.entry(index).or_insert_with(|| Recompute { name, reasons: Vec::new(), new: false });
        entry.reasons.push(format!("the table {} is gone", table_key(plan, table)));
    }
    for table in history.stray.iter().filter_map(|key| table_of(plan, key)) {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        let name = plan.datasets.get(index).map(DatasetPlan::label).unwrap_or_default();
        let entry = all.entry(index).or_insert_with(|| Recompute { name, reasons: Vec::new(), new: false });
        if !entry.reasons.iter().any(|reason| reason == BEHIND) {
            entry.reasons.push(BEHIND.to_owned());
        }
    }
    Ok(all.into_values().collect())
}

/// Stops a run that is to compute nothing anew.
///
/// # Errors
/// `RECOMPUTE_REFUSED` (user), naming each dataset and what has changed.
pub fn refuse(recompute: Vec<Recompute>) -> Result<()> {
    let errors = recompute.into_iter().filter(|r| !r.new).map(|r| {
        Error::user("RECOMPUTE_REFUSED", format!("{} would be recomputed", r.name))
            .dataset(&r.name)
            .details(r.reasons)
            .help("run without --no-recompute, or put the definition back")
    });
    Error::all(errors).map_or(Ok(()), Err)
}

fn reasons(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    // It never changes alone, and epochs of earlier releases do not have it.
    let names = names.into_iter().filter(|name| *name != SEQUENCE_TYPE);
    names
        .filter_map(|name| {
            let upstream = name.strip_prefix(UPSTREAM);
            Some(match (before.get(name), now.get(name), upstream) {
                (Some(old), Some(new), _) if old == new => return None,
                (Some(_), Some(_), None) => format!("{name}: changed"),
                (None, _, None) => format!("{name}: new"),
                (_, None, None) => format!("{name}: gone"),
                (Some(_), Some(_), Some(upstream)) => format!("{upstream}, which it reads, is recomputed"),
                (None, _, Some(upstream)) => format!("it reads {upstream} now"),
                (_, None, Some(upstream)) => format!("it no longer reads {upstream}"),
            })
        })
        .collect()
}

/// How to start on tables that were made under the definitions of `history`.
///
/// # Errors
/// `FLOW_GONE` (user) if a flow that has read something is not there any more.
pub fn start(plan: &Plan, history: &History) -> Result<Start> {
    let mut start = Start { hydrated: history.last_complete.unwrap_or(0), ..Start::default() };
    // Where the clock releases rows, those that are stored pass it again.
    let timed = plan.datasets.iter().enumerate().filter(|(_, d)| d.replay_point && !d.boundaries.is_empty());
    start.rejudge.extend(timed.map(|(index, _)| index));
    if history.last_complete.is_none() && history.open.is_none() {
        return Ok(start);
    }
    if let Some(error) = Error::all(gone_flows(plan, history)) {
        return Err(error);
    }
    for index in changes(plan, history).into_keys() {
        let Some(dataset) = plan.datasets.get(index) else { continue };
        if dataset.decided {
            start.undecided.insert(index);
        } else if dataset.replay_point {
            // What it has stored stays; only the expectations are applied anew.
            start.rejudge.insert(index);
        }
        start.compare.insert(TableId::Rows(index));
        if dataset.quarantine.is_some() {
            start.compare.insert(TableId::Quarantine(index));
        }
    }
    Ok(start)
}

/// Makes sure that history stays history, and current rows stay current rows, and that what came first still does, where a
/// table is not replaced.
///
/// # Errors
/// `SCD_TYPE_CHANGED`, `AUTOCDC_INVALID_STATE.SEQUENCING_TYPE_DRIFT` (user), for each table with both types.
pub fn keep_kind(plan: &Plan, history: &History, replaced: &BTreeSet<usize>) -> Result<()> {
    let datasets = plan.datasets.iter().enumerate().filter(|(index, _)| !replaced.contains(index));
    let errors = datasets.filter_map(|(_, dataset)| {
        let Feed::Cdc(cdc) = &dataset.feed else { return None };
        let label = dataset.label();
        let before = history.parts.get(&label).filter(|_| history.fingerprints.contains_key(&label))?;
        let changed = |part: &str| before.get(part).filter(|old| Some(*old) != dataset.parts.get(part));
        let (code, message) = if changed(SCD_TYPE).is_some() {
            let (old, new) = match cdc.scd {
                ScdType::One => (2, 1),
                ScdType::Two => (1, 2),
            };
            (
                "SCD_TYPE_CHANGED",
                format!("{label} is SCD type {old} in the storage and SCD type {new} in its definition"),
            )
        } else {
            let (old, new) = (changed(SEQUENCE_TYPE)?, cdc.sequence.data_type());
            (
                "AUTOCDC_INVALID_STATE.SEQUENCING_TYPE_DRIFT",
                format!("{label} is in the order of {old} in the storage and of {new} in its definition"),
            )
        };
        let error = Error::user(code, message).dataset(&label);
        Some(error.help(format!("write to a table of another name, or replace this one: --full-refresh {label}")))
    });
    Error::all(errors).map_or(Ok(()), Err)
}

/// The table that the log keeps under a name, if the plan has it.
pub fn table_of(plan: &Plan, key: &str) -> Option<TableId> {
    let tables = (0..plan.datasets.len()).flat_map(|index| [TableId::Rows(index), TableId::Quarantine(index)]);
    tables.into_iter().find(|table| table_key(plan, *table) == key)
}

/// Flows that have read something and are gone, while what they feed, or another flow in their place, is there.
fn gone_flows<'a>(plan: &'a Plan, history: &'a History) -> impl Iterator<Item = Error> + 'a {
    let known = |id: &str| history.fingerprints.contains_key(&source_key(id));
    history.fingerprints.iter().filter_map(move |(name, keeper)| {
        let id = name.strip_prefix(SOURCE)?;
        if plan.sources.iter().any(|s| s.id == id) {
            return None;
        }
        let about = |part| history.parts.get(name).and_then(|parts| parts.get(part));
        let target = about("target").and_then(|label| plan.datasets.iter().find(|d| d.label() == *label));
        let heir = plan.sources.iter().enumerate().find(|(index, source)| {
            let feeds = self::target(plan, *index).map(DatasetPlan::label);
            !known(&source.id)
                && (about("place") == Some(&place(plan, &source.kind)) || about("target") == feeds.as_ref())
        });
        let flow = flow_of(id);
        // Users know it by its last name.
        let flow = history.renamed.iter().find(|(_, origin)| **origin == flow).map_or(flow, |(name, _)| name.clone());
        let heir = heir.map(|(_, source)| source.flow.clone());
        let fed = target.map_or_else(|| keeper.clone(), DatasetPlan::label);
        if target.is_none() && heir.is_none() {
            // It went with everything it fed.
            return None;
        }
        let rest = match target {
            Some(target) if target.replay_point => "its rows stay".to_owned(),
            _ => format!("{fed} is recomputed without it"),
        };
        let error = Error::user(
            "FLOW_GONE",
            match &heir {
                Some(heir) => format!("flow {flow}, which has fed {fed}, is gone, and there is a new flow {heir}"),
                None => format!("flow {flow}, which has fed {fed}, is gone"),
            },
        )
        .help(format!(
            "if it has another name now: --rename-flow {flow}={}; if it is to go, so that {rest}: --drop-flow {flow}",
            heir.as_deref().unwrap_or("NEW")
        ));
        Some(error.dataset(fed).flow(flow))
    })
}

/// Sources that the flows of the last complete epoch had.
pub fn known_sources(history: &History) -> impl Iterator<Item = &str> {
    history.fingerprints.keys().filter_map(|name| name.strip_prefix(SOURCE))
}

/// The name under which the log keeps who stores a source.
pub fn source_key(id: &str) -> String {
    format!("{SOURCE}{id}")
}

/// Whether the log keeps who stores a source under a name.
pub fn is_source(name: &str) -> bool {
    name.starts_with(SOURCE)
}

/// The flow of a source: several sources of one flow are numbered.
pub fn flow_of(source: &str) -> String {
    match source.rsplit_once(':') {
        Some((flow, number)) if number.chars().all(|c| c.is_ascii_digit()) => flow.to_owned(),
        _ => source.to_owned(),
    }
}

/// Names under which the log keeps the versions of tables.
pub fn table_key(plan: &Plan, table: TableId) -> String {
    let label = |index: usize| plan.datasets.get(index).map(|d| d.label()).unwrap_or_default();
    match table {
        TableId::Rows(index) => label(index),
        TableId::Quarantine(index) => quarantine_key(&label(index)),
    }
}

/// The name under which the log keeps the quarantine of a table.
pub fn quarantine_key(table: &str) -> String {
    format!("{table} quarantine")
}
