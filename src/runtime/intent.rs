//! What a run is asked to do beside reading what is new: which datasets take part, what is read again from its beginning,
//! which flows are gone or have another name.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::definitions::{fingerprints, flow_of, keeper, known_sources, parts, source_key, table_key};
use crate::dataflow::TableId;
use crate::error::{Error, Result};
use crate::lake::{Begin, History};
use crate::pipeline::{DatasetKind, Pipeline, TableName, near_miss};
use crate::plan::{DatasetPlan, Plan, Stored};

/// Table property that forbids to read what a table stores again.
const RESET_ALLOWED: &str = "pipelines.reset.allowed";

/// Which datasets take part in a run, by names of one to three parts; all of them if nothing is said. A selection is not
/// expanded to what a dataset reads.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// These, as far as there is something new for them.
    pub refresh: Vec<String>,
    /// These anew: what they store of the outside is read again as it is now, everything else is recomputed.
    pub full_refresh: Vec<String>,
    /// All of them anew.
    pub full_refresh_all: bool,
    /// Rows that the outside no longer has may be lost.
    pub accept_loss: bool,
}

/// What has become of flows that have read something.
#[derive(Clone, Debug, Default)]
pub struct FlowChanges {
    /// Flows that are gone for good.
    pub drop: Vec<String>,
    /// Flows that bear another name now: the old one, the new one.
    pub rename: Vec<(String, String)>,
}

impl Selection {
    /// What is left to do after the first epoch: nothing is made anew once more.
    pub(super) fn rest(&self) -> Selection {
        if self.full_refresh_all {
            return Selection::default();
        }
        let names = self.refresh.iter().chain(&self.full_refresh).cloned();
        Selection { refresh: names.collect(), ..Selection::default() }
    }

    fn is_everything(&self) -> bool {
        self.refresh.is_empty() && self.full_refresh.is_empty()
    }

    /// Whether it is another run than one over everything that is new.
    pub(super) fn is_selective(&self) -> bool {
        !self.is_everything() || self.full_refresh_all
    }
}

impl FlowChanges {
    /// Those that the log does not hold yet.
    pub(super) fn left(&self, history: &History) -> FlowChanges {
        let known = |flow: &String| {
            let origin = history.renamed.get(flow).unwrap_or(flow);
            known_sources(history).any(|id| flow_of(id) == *origin)
        };
        let renamed =
            |(old, new): &(String, String)| history.renamed.get(new).is_some_and(|origin| origin == old || !known(old));
        FlowChanges {
            drop: self.drop.iter().filter(|flow| known(flow)).cloned().collect(),
            rename: self.rename.iter().filter(|change| !renamed(change)).cloned().collect(),
        }
    }
}

/// The flows that bear another name, by the new one, with the name under which their sources are known.
///
/// # Errors
/// `UNKNOWN_FLOW` (user) if the old name is not one that has read something, `FLOW_NAME_TAKEN` (user) if the new one is.
pub(super) fn renamed(flows: &FlowChanges, history: &History) -> Result<BTreeMap<String, String>> {
    let mut renamed = history.renamed.clone();
    renamed.extend(history.open.iter().flat_map(|open| open.renamed.clone()));
    let known: BTreeSet<String> = known_sources(history).map(flow_of).collect();
    let mut errors = Vec::new();
    for (old, new) in &flows.rename {
        if renamed.get(new).is_some_and(|origin| origin == old) {
            continue;
        }
        let origin = renamed.remove(old).unwrap_or_else(|| old.clone());
        if !known.contains(&origin) {
            let error = Error::user("UNKNOWN_FLOW", format!("no flow {old} has read anything here")).flow(old);
            errors.push(with_near_miss(error, old, &known));
        } else if known.contains(new) {
            let error = Error::user("FLOW_NAME_TAKEN", format!("flow {new} has read something itself")).flow(new);
            errors.push(error.help(format!("drop one of the two flows with --drop-flow {old}")));
        }
        renamed.insert(new.clone(), origin);
    }
    Error::all(errors).map_or(Ok(renamed), Err)
}

fn with_near_miss(error: Error, name: &str, known: &BTreeSet<String>) -> Error {
    match near_miss(name, known.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean {near}?")),
        None if known.is_empty() => error,
        None => error.help(format!("flows that have: {}", known.iter().cloned().collect::<Vec<_>>().join(", "))),
    }
}

/// What is asked of a run, in the plan's terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Intent {
    /// Sources that are read from their beginning.
    pub(super) forgotten: BTreeSet<usize>,
    /// Datasets whose tables are made anew, and what hangs on them: they are set by comparison.
    pub(super) affected: BTreeSet<usize>,
    /// Datasets whose tables may be replaced as a whole, whatever they hold.
    pub(super) replaced: BTreeSet<usize>,
    /// Datasets that take part; all if absent.
    part: Option<BTreeSet<usize>>,
    /// Sources whose flow is gone for good, not yet in the log.
    pub(super) dropped: BTreeSet<String>,
    /// Flows of another name, not yet in the log.
    pub(super) renamed: BTreeMap<String, String>,
    /// Lost rows are accepted.
    pub(super) accept_loss: bool,
}

impl Intent {
    /// What the options ask for.
    ///
    /// # Errors
    /// `TABLE_OR_VIEW_NOT_FOUND`, `VIEW_NOT_STORED`, `REFRESH_CONFLICT`, `UNKNOWN_FLOW`, `FLOW_NOT_GONE` (user);
    /// `TABLE_NOT_RESETTABLE` (user) if a property of a table forbids it.
    pub(super) fn of(
        selection: &Selection,
        flows: &FlowChanges,
        pipeline: &Pipeline,
        plan: &Plan,
        history: &History,
    ) -> Result<Intent> {
        let mut errors = Vec::new();
        let mut indices = |names: &[String]| -> BTreeSet<usize> {
            let found = names.iter().map(|name| dataset(name, pipeline, plan));
            found.filter_map(|found| found.map_err(|e| errors.push(e)).ok()).collect()
        };
        let refresh = indices(&selection.refresh);
        let mut full = indices(&selection.full_refresh);
        if selection.full_refresh_all && !selection.is_everything() {
            errors.push(
                Error::user("REFRESH_CONFLICT", "--full-refresh-all leaves nothing to select")
                    .help("leave out --refresh and --full-refresh"),
            );
        }
        for both in refresh.intersection(&full).filter_map(|index| plan.datasets.get(*index)) {
            errors.push(
                Error::user("REFRESH_CONFLICT", format!("{} is in --refresh and in --full-refresh", both.name))
                    .help("name it in one of them"),
            );
        }
        if selection.full_refresh_all {
            full = (0..plan.datasets.len())
                .filter(|index| plan.datasets.get(*index).is_some_and(|d| d.stored == Stored::Table))
                .collect();
        }
        let mut intent = Intent { accept_loss: selection.accept_loss, ..Intent::default() };
        intent.replaced.clone_from(&full);
        intent.forgotten = full.iter().flat_map(|index| sources(plan, *index)).collect();
        intent.spread(plan);
        errors.extend(protected(plan, &full, &intent.affected));
        if !selection.is_everything() {
            let private = refresh.iter().flat_map(|index| sources(plan, *index)).filter_map(|s| keeper(plan, s));
            intent.part = Some(private.chain(refresh.iter().copied()).chain(intent.affected.iter().copied()).collect());
        }
        match dropped(flows, plan, history) {
            Ok(dropped) => intent.dropped = dropped,
            Err(error) => errors.push(error),
        }
        for (old, new) in &flows.rename {
            if let Some(origin) = known_as(plan, new) {
                intent.renamed.insert(new.clone(), origin);
            } else {
                let error = Error::user("UNKNOWN_FLOW", format!("no flow {new} reads the outside")).flow(new);
                errors.push(error.help(format!("name the flow that has taken the place of {old}")));
            }
        }
        Error::all(errors).map_or(Ok(intent), Err)
    }

    /// Takes over what an epoch was about that an earlier run began and did not finish. The run carries on with that alone,
    /// and with the tables that can be opened in no other way.
    pub(super) fn resume(&mut self, open: &Begin, plan: &Plan) {
        let sources = plan.sources.iter().enumerate();
        self.forgotten = sources.filter(|(_, s)| open.forgotten.contains(&s.id)).map(|(index, _)| index).collect();
        self.replaced.retain(|index| plan.datasets.get(*index).is_some_and(|d| !d.replay_point));
        self.spread(plan);
        self.part = None;
        self.renamed.extend(open.renamed.clone());
        // It was decided before anything was stored.
        self.accept_loss = true;
    }

    /// What is set by comparison, since what it is made from begins anew.
    fn spread(&mut self, plan: &Plan) {
        let begun: BTreeSet<usize> = self.forgotten.iter().filter_map(|source| keeper(plan, *source)).collect();
        self.replaced.extend(begun.iter().copied());
        self.affected.clone_from(&self.replaced);
        self.affected.extend(downstream(plan, &begun));
    }

    /// Whether the dataset takes part.
    pub(super) fn takes_part(&self, dataset: usize) -> bool {
        self.part.as_ref().is_none_or(|part| part.contains(&dataset))
    }

    /// Whether a table is used at all: a replay point is what others are computed from.
    pub(super) fn opens(&self, plan: &Plan, table: TableId) -> bool {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        self.takes_part(index) || plan.datasets.get(index).is_some_and(|d| d.replay_point)
    }

    /// Whether the source is read.
    pub(super) fn reads(&self, plan: &Plan, source: usize) -> bool {
        keeper(plan, source).is_none_or(|keeper| self.takes_part(keeper))
    }

    /// There is something that the next epoch has to log.
    pub(super) fn is_pending(&self) -> bool {
        !(self.forgotten.is_empty() && self.dropped.is_empty() && self.renamed.is_empty())
    }

    /// The epoch is complete: what it has logged is done.
    pub(super) fn settled(&mut self, begin: &Begin, returned: &BTreeSet<String>, plan: &Plan) {
        let open = |id: &String| !begin.forgotten.contains(id) || returned.contains(id);
        self.forgotten.retain(|s| plan.sources.get(*s).is_some_and(|s| open(&s.id)));
        self.dropped.retain(|id| begin.fingerprints.contains_key(&source_key(id)));
        self.renamed.retain(|flow, _| !begin.renamed.contains_key(flow));
    }

    /// The history as the run is to see it: what is to be forgotten is.
    pub(super) fn view<'a>(&self, plan: &Plan, history: &'a History) -> Cow<'a, History> {
        if !self.is_pending() {
            return Cow::Borrowed(history);
        }
        let sources = self.forgotten.iter().filter_map(|s| plan.sources.get(*s)).map(|s| s.id.clone()).collect();
        let begun: BTreeSet<usize> = self.forgotten.iter().filter_map(|source| keeper(plan, *source)).collect();
        let tables = begun.into_iter().flat_map(|index| [TableId::Rows(index), TableId::Quarantine(index)]);
        let mut view = history.without(&sources, &tables.map(|table| table_key(plan, table)).collect());
        self.dropped.iter().for_each(|id| drop(view.fingerprints.remove(&source_key(id))));
        view.rename(&self.renamed);
        Cow::Owned(view)
    }

    /// Tables that are set by comparison because of it.
    pub(super) fn compared(&self, plan: &Plan) -> BTreeSet<TableId> {
        let mut tables = BTreeSet::new();
        for index in &self.affected {
            let Some(dataset) = plan.datasets.get(*index).filter(|d| d.stored != Stored::No) else { continue };
            tables.insert(TableId::Rows(*index));
            if dataset.quarantine.is_some() {
                tables.insert(TableId::Quarantine(*index));
            }
        }
        tables
    }

    /// Writes down under which definitions the epoch is, and what it is about. A dataset that takes no part stays as it was
    /// defined.
    pub(super) fn log(&self, plan: &Plan, history: &History, begin: &mut Begin) {
        begin.fingerprints = fingerprints(plan);
        begin.parts = parts(plan, history);
        for (_, dataset) in plan.datasets.iter().enumerate().filter(|(index, _)| !self.takes_part(*index)) {
            let label = dataset.label();
            begin.parts.remove(&label);
            match history.fingerprints.get(&label) {
                Some(before) => begin.fingerprints.insert(label, before.clone()),
                None => begin.fingerprints.remove(&label),
            };
        }
        begin.forgotten = self.forgotten.iter().filter_map(|s| plan.sources.get(*s)).map(|s| s.id.clone()).collect();
        begin.renamed.clone_from(&self.renamed);
    }
}

/// The stored dataset of a name.
fn dataset(name: &str, pipeline: &Pipeline, plan: &Plan) -> Result<usize> {
    let parts: Vec<&str> = name.split('.').map(|part| part.trim().trim_matches('`')).collect();
    let full = match parts.as_slice() {
        [table] => TableName::new(&pipeline.catalog, &pipeline.schema, *table),
        [schema, table] => TableName::new(&pipeline.catalog, *schema, *table),
        [catalog, schema, table] => TableName::new(*catalog, *schema, *table),
        _ => return Err(Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("{name} is no dataset's name"))),
    };
    let found = plan.datasets.iter().position(|d| d.stored == Stored::Table && d.name == full);
    found.ok_or_else(|| match pipeline.datasets.get(&full) {
        Some(view) if view.kind == DatasetKind::TemporaryView => {
            Error::user("VIEW_NOT_STORED", format!("{} is a temporary view, which holds nothing", view.name))
                .help("name the tables that read it")
        }
        _ => {
            let tables = pipeline.datasets.values().filter(|d| d.kind != DatasetKind::TemporaryView);
            let names: BTreeSet<String> = tables.map(|d| d.name.table.clone()).collect();
            let error = Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("the pipeline has no dataset {name}"));
            match near_miss(&full.table, names.iter().map(String::as_str)) {
                Some(near) => error.help(format!("did you mean {near}?")),
                None => error.help(format!("its datasets are {}", names.into_iter().collect::<Vec<_>>().join(", "))),
            }
        }
    })
}

/// What a dataset itself has read from outside: its own sources if it is a replay point, else those of its private ones.
fn sources(plan: &Plan, dataset: usize) -> BTreeSet<usize> {
    let mut keepers = BTreeSet::new();
    let mut look = vec![dataset];
    while let Some(index) = look.pop() {
        let Some(found) = plan.datasets.get(index) else { continue };
        if found.replay_point {
            keepers.insert(index);
            continue;
        }
        let inner = |u: &&usize| plan.datasets.get(**u).is_some_and(|d| d.stored != Stored::Table);
        look.extend(found.upstream.iter().filter(inner));
    }
    (0..plan.sources.len()).filter(|s| keeper(plan, *s).is_some_and(|k| keepers.contains(&k))).collect()
}

fn downstream(plan: &Plan, from: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut reached = from.clone();
    // Datasets come after everything that they read.
    for (index, dataset) in plan.datasets.iter().enumerate() {
        if dataset.upstream.iter().any(|u| reached.contains(u)) {
            reached.insert(index);
        }
    }
    reached
}

fn protected<'a>(
    plan: &'a Plan,
    named: &'a BTreeSet<usize>,
    affected: &'a BTreeSet<usize>,
) -> impl Iterator<Item = Error> + 'a {
    let forbids = |dataset: &DatasetPlan| {
        let mut properties = dataset.properties.iter();
        properties.any(|(key, value)| key.eq_ignore_ascii_case(RESET_ALLOWED) && value.eq_ignore_ascii_case("false"))
    };
    affected.iter().filter_map(move |index| {
        let dataset = plan.datasets.get(*index).filter(|d| forbids(d))?;
        let message = if named.contains(index) {
            format!("{} must not be refreshed in full: its property {RESET_ALLOWED} is false", dataset.name)
        } else {
            format!(
                "{} hangs on what would be read again, and must not lose rows: its property {RESET_ALLOWED} is false",
                dataset.name
            )
        };
        let error = Error::user("TABLE_NOT_RESETTABLE", message).dataset(&dataset.name);
        Some(error.help(format!("select other tables, or remove {RESET_ALLOWED} from its definition")))
    })
}

/// The sources of flows that are gone for good.
fn dropped(flows: &FlowChanges, plan: &Plan, history: &History) -> Result<BTreeSet<String>> {
    let mut dropped = BTreeSet::new();
    let mut errors = Vec::new();
    for flow in &flows.drop {
        let origin = history.renamed.get(flow).unwrap_or(flow);
        let known: Vec<&str> = known_sources(history).filter(|id| flow_of(id) == *origin).collect();
        if known.is_empty() {
            let all = known_sources(history).map(flow_of).collect();
            let error = Error::user("UNKNOWN_FLOW", format!("no flow {flow} has read anything here")).flow(flow);
            errors.push(with_near_miss(error, flow, &all));
        } else if known.iter().any(|id| plan.sources.iter().any(|s| s.id == *id)) {
            let error = Error::user("FLOW_NOT_GONE", format!("flow {flow} is still defined")).flow(flow);
            errors.push(error.help("take it out of the pipeline's definitions"));
        }
        dropped.extend(known.into_iter().map(str::to_owned));
    }
    Error::all(errors).map_or(Ok(dropped), Err)
}

/// The name under which the sources of a flow are known.
fn known_as(plan: &Plan, flow: &str) -> Option<String> {
    plan.sources.iter().find(|source| source.flow == flow).map(|source| flow_of(&source.id))
}
