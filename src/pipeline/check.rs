//! Rules of the language that names alone decide.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Graph;
use super::names::near_miss;
use super::{
    Action, AutoCdc, ColumnList, Dataset, DatasetKind, Flow, FlowKind, IgnoreNull, Name, Pipeline, ScdType, TableName,
};
use crate::error::Error;

/// Column that says in which epoch a stored row arrived.
pub const EPOCH_COLUMN: &str = "_epoch";
/// Column of a quarantine table with the names of the rules that a row violates.
pub const FAILED_COLUMN: &str = "_dq_failed";
/// Column of a quarantine table that keeps its history: in which epoch a row left.
pub const LEFT_COLUMN: &str = "_left_epoch";
/// Start of a version in SCD type 2 history.
pub const START_COLUMN: &str = "__START_AT";
/// End of a version in SCD type 2 history.
pub const END_COLUMN: &str = "__END_AT";

/// Table property that says what happens to change events without key or sequence.
const CDC_INVALID: &str = "silverflow.cdc.invalid";
/// Table property that says whether a quarantine keeps what has left it.
const QUARANTINE: &str = "silverflow.quarantine";
/// Table property that says whether verdicts follow what they depend on, or are taken once.
const RESOLUTION: &str = "silverflow.resolution";

/// All mistakes of a pipeline whose names are resolved.
pub(super) fn check(pipeline: &Pipeline) -> Vec<Error> {
    let mut errors = Vec::new();
    if pipeline.datasets.values().all(|dataset| dataset.kind == DatasetKind::TemporaryView) {
        let message = "the pipeline declares no streaming table and no materialized view";
        errors.push(Error::user("RUN_EMPTY_PIPELINE", message).help("declare at least one; views alone store nothing"));
    }
    for dataset in pipeline.datasets.values() {
        let flows: Vec<&Flow> = pipeline.flows_into(&dataset.name).collect();
        expectations(dataset, &mut errors);
        properties(dataset, &flows, &mut errors);
        columns(dataset, &flows, &mut errors);
        match dataset.kind {
            DatasetKind::StreamingTable => streaming_table(dataset, &flows, &mut errors),
            DatasetKind::MaterializedView | DatasetKind::TemporaryView => view(dataset, &flows, &mut errors),
        }
    }
    for flow in pipeline.flows.values() {
        if let FlowKind::AutoCdc(cdc) = &flow.kind {
            auto_cdc(flow, cdc, &mut errors);
        }
    }
    errors.extend(Graph::new(pipeline).err());
    errors
}

fn same(a: &str, b: &str) -> bool {
    a.to_lowercase() == b.to_lowercase()
}

fn expectations(dataset: &Dataset, errors: &mut Vec<Error>) {
    let mut seen = BTreeMap::new();
    for rule in &dataset.expectations {
        if let Some(first) = seen.insert(rule.name.to_lowercase(), &rule.span) {
            let message =
                format!("`{}` has two expectations called `{}`; the other is at {first}", dataset.name, rule.name);
            let error = Error::user("DUPLICATE_EXPECTATION", message).at(&rule.span);
            errors.push(error.dataset(&dataset.name).rule(&rule.name));
        }
    }
}

const SINK: &str = "silverflow.sink";

/// Our own table properties: a key or a value that nobody reads would change nothing and say nothing.
fn properties(dataset: &Dataset, flows: &[&Flow], errors: &mut Vec<Error>) {
    const KNOWN: [(&str, &[&str]); 4] = [
        (CDC_INVALID, &["fail", "quarantine"]),
        (QUARANTINE, &["current", "history"]),
        (RESOLUTION, &["live", "arrival"]),
        (SINK, &["vectors", "rewrite"]),
    ];
    for (key, value) in dataset.properties.iter().filter(|(key, _)| key.starts_with("silverflow.")) {
        let error = |code, message| Error::user(code, message).at(&dataset.span).dataset(&dataset.name);
        let Some((_, values)) = KNOWN.iter().find(|(known, _)| known == key) else {
            let unknown = error("UNKNOWN_PROPERTY", format!("there is no table property `{key}`"));
            errors.push(match near_miss(key, KNOWN.map(|(known, _)| known)) {
                Some(near) => unknown.help(format!("did you mean `{near}`?")),
                None => unknown,
            });
            continue;
        };
        let choices = values.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(" or ");
        match values.iter().position(|known| known.eq_ignore_ascii_case(value)) {
            None => {
                let message = format!("`{key}` is '{value}', and can be {choices}");
                errors.push(error("INVALID_PROPERTY_VALUE", message));
            }
            Some(0) => {}
            Some(_) if key == QUARANTINE => {
                if !dataset.quarantines() || dataset.kind == DatasetKind::TemporaryView {
                    let message = format!("`{key}` is for tables with a quarantine, and `{}` has none", dataset.name);
                    errors.push(error("INVALID_PROPERTY_VALUE", message));
                }
            }
            Some(_) if key == RESOLUTION => {
                let fed =
                    dataset.kind == DatasetKind::StreamingTable && flows.iter().all(|flow| flow.auto_cdc().is_none());
                if !fed {
                    let message = format!(
                        "`{key}` = '{value}' is for streaming tables that queries feed, and `{}` is none",
                        dataset.name
                    );
                    errors.push(error("INVALID_PROPERTY_VALUE", message).help(
                        "put it on a streaming table before this one, whose rows are then decided when they arrive",
                    ));
                }
            }
            Some(_) if key == SINK => {}
            Some(_) if key == CDC_INVALID => {
                if !flows.iter().any(|flow| flow.auto_cdc().is_some()) {
                    let message = format!("`{key}` is for targets of AUTO CDC, and `{}` is none", dataset.name);
                    errors.push(error("INVALID_PROPERTY_VALUE", message));
                }
            }
            Some(_) => errors.push(error("NOT_SUPPORTED", format!("`{key}` = '{value}' is not supported yet"))),
        }
    }
}

fn columns(dataset: &Dataset, flows: &[&Flow], errors: &mut Vec<Error>) {
    let Some(columns) = &dataset.columns else { return };
    let cdc = flows.iter().find_map(|flow| flow.auto_cdc());
    let history = cdc.is_some_and(|cdc| cdc.scd == ScdType::Two);
    let mut seen = BTreeSet::new();
    for column in columns {
        if let (Some(generated), true) = (&column.generated, cdc.is_some()) {
            let message =
                format!("`{}` is generated, and columns of an AUTO CDC target come from the events", column.name);
            let error = Error::user("NOT_SUPPORTED", message).at(&generated.span).dataset(&dataset.name);
            errors.push(error.help("compute it in the view that the flow reads"));
        }
        if !seen.insert(column.name.to_lowercase()) {
            let message = format!("column `{}` is declared twice", column.name);
            errors.push(Error::user("COLUMN_ALREADY_EXISTS", message).at(&column.span).dataset(&dataset.name));
        }
        let bounds = same(&column.name, START_COLUMN) || same(&column.name, END_COLUMN);
        let reserved = same(&column.name, EPOCH_COLUMN)
            || same(&column.name, FAILED_COLUMN) && dataset.quarantines()
            || bounds && cdc.is_some() && !history;
        if reserved {
            let message = format!("`{}` is a name that the engine keeps for itself", column.name);
            errors.push(Error::user("RESERVED_COLUMN_NAME", message).at(&column.span).dataset(&dataset.name));
        }
    }
    if history {
        for bound in [START_COLUMN, END_COLUMN] {
            if !columns.iter().any(|column| same(&column.name, bound)) {
                let message = format!("a declared schema of SCD type 2 history needs `{bound}`");
                let error =
                    Error::user("AUTOCDC_MISSING_HISTORY_COLUMN", message).at(&dataset.span).dataset(&dataset.name);
                errors.push(error.help(format!("add `{bound}` with the type of the sequence, or declare no columns")));
            }
        }
    }
}

fn view(dataset: &Dataset, flows: &[&Flow], errors: &mut Vec<Error>) {
    let own = dataset.name.to_string();
    for flow in flows {
        if flow.name != own || flow.auto_cdc().is_some() {
            let (code, what) = match dataset.kind {
                DatasetKind::MaterializedView => ("MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES", "materialized view"),
                _ => ("INVALID_FLOW_TARGET", "view"),
            };
            let message = format!("`{}` is a {what}, whose one query is its own: no flow can feed it", dataset.name);
            let error = Error::user(code, message).at(&flow.span).dataset(&dataset.name).flow(&flow.name);
            errors.push(error.help("flows feed streaming tables"));
            continue;
        }
        if dataset.kind == DatasetKind::MaterializedView
            && let Some(stream) = flow.relations().iter().find(|relation| relation.stream)
        {
            let code = "INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_MATERIALIZED_VIEW";
            let message = "a materialized view reads tables as they are, not as streams";
            let error = Error::user(code, message).at(&stream.span).dataset(&dataset.name);
            errors.push(error.help("leave out STREAM, or make it a streaming table"));
        }
    }
}

fn streaming_table(dataset: &Dataset, flows: &[&Flow], errors: &mut Vec<Error>) {
    if flows.is_empty() {
        let message = format!("nothing feeds `{}`", dataset.name);
        let error = Error::user("PIPELINE_DATASET_WITHOUT_FLOW", message).at(&dataset.span).dataset(&dataset.name);
        errors.push(error.help("add AS query, or a CREATE FLOW … INTO it"));
    }
    let cdc: Vec<(&Flow, &AutoCdc)> = flows.iter().filter_map(|flow| Some((*flow, flow.auto_cdc()?))).collect();
    for flow in flows {
        let FlowKind::Query { query, .. } = &flow.kind else { continue };
        if let Some((merge, _)) = cdc.first() {
            let message = format!(
                "`{}` is fed by AUTO CDC (flow `{}`), so no other kind of flow can feed it",
                dataset.name, merge.name
            );
            let error = Error::user("AUTOCDC_TARGET_WITH_OTHER_FLOWS", message).at(&flow.span);
            let error = error.dataset(&dataset.name).flow(&flow.name);
            errors.push(error.help("let the query feed a table of its own, and AUTO CDC read that"));
        }
        let stream = query.relations.iter().find(|relation| relation.stream);
        match (flow.once, stream) {
            (true, Some(stream)) => {
                let code = "INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_ONCE_FLOW";
                let error = Error::user(code, "a ONCE flow reads what is there, not a stream").at(&stream.span);
                errors.push(error.dataset(&dataset.name).flow(&flow.name).help("leave out STREAM or ONCE"));
            }
            (false, None) => {
                let code = "INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE";
                let message = format!("`{}` is a streaming table, and this query reads no stream", dataset.name);
                let place = query.relations.first().map_or(&query.span, |relation| &relation.span);
                let error = Error::user(code, message).at(place).dataset(&dataset.name).flow(&flow.name);
                errors.push(error.help("read its source with STREAM, or make it a materialized view"));
            }
            _ => {}
        }
    }
    agreement(&dataset.name, &cdc, errors);
}

/// All AUTO CDC flows of one target merge into one history, so they must say the same of it.
fn agreement(target: &TableName, flows: &[(&Flow, &AutoCdc)], errors: &mut Vec<Error>) {
    let Some(((first, a), others)) = flows.split_first() else { return };
    let folded = |names: &[Name]| names.iter().map(|name| name.text.to_lowercase()).collect::<BTreeSet<String>>();
    let tracked = |list: &Option<ColumnList>| match list {
        None => (true, BTreeSet::new()),
        Some(ColumnList::Except(names)) => (true, folded(names)),
        Some(ColumnList::Include(names)) => (false, folded(names)),
    };
    for (flow, b) in others {
        let differs = match () {
            () if folded(&a.keys) != folded(&b.keys) => "KEYS",
            () if a.scd != b.scd => "STORED AS",
            () if tracked(&a.track_history) != tracked(&b.track_history) => "TRACK HISTORY ON",
            () => continue,
        };
        let message = format!("the flows `{}` and `{}` feed `{target}` and differ in {differs}", first.name, flow.name);
        let error = Error::user("AUTOCDC_FLOWS_DISAGREE", message).at(&flow.span).dataset(target).flow(&flow.name);
        errors.push(error.help(format!("the other is at {}", first.span)));
    }
}

fn auto_cdc(flow: &Flow, cdc: &AutoCdc, errors: &mut Vec<Error>) {
    let mut error = |error: Error| errors.push(error.dataset(&flow.target).flow(&flow.name));
    if cdc.scd == ScdType::Two && cdc.apply_as_truncates.is_some() {
        let message = "APPLY AS TRUNCATE WHEN does not go with SCD type 2";
        error(
            Error::user("AUTOCDC_TRUNCATE_NOT_SUPPORTED", message)
                .at(&flow.span)
                .help("history is not emptied: delete the rows, or use SCD type 1"),
        );
    }
    if cdc.scd == ScdType::One && cdc.track_history.is_some() {
        let message = "TRACK HISTORY ON goes with SCD type 2 only";
        error(
            Error::user("AUTOCDC_TRACK_HISTORY_REQUIRES_SCD2", message).at(&flow.span).help("add STORED AS SCD TYPE 2"),
        );
    }
    let ignore_null = match &cdc.ignore_null_updates {
        Some(IgnoreNull::Columns(list)) => Some(list),
        _ => None,
    };
    let lists = [cdc.columns.as_ref(), cdc.track_history.as_ref(), ignore_null];
    let named = lists.into_iter().flatten().flat_map(ColumnList::names).chain(&cdc.keys);
    if cdc.scd == ScdType::Two {
        for name in named.filter(|name| same(&name.text, START_COLUMN) || same(&name.text, END_COLUMN)) {
            let message = format!("`{}` is a column that SCD type 2 adds itself", name.text);
            error(Error::user("AUTOCDC_RESERVED_COLUMN_NAME_CONFLICT", message).at(&name.span));
        }
    }
    for key in cdc.keys.iter().filter(|key| !cdc.keeps(&key.text)) {
        let message = format!("the key `{}` is not among the kept columns", key.text);
        error(
            Error::user("AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA", message)
                .at(&key.span)
                .help("keys are always kept: correct COLUMNS"),
        );
    }
    for (list, clause) in [(cdc.track_history.as_ref(), "TRACK HISTORY ON"), (ignore_null, "IGNORE NULL UPDATES ON")] {
        for name in list.into_iter().flat_map(ColumnList::names).filter(|name| !cdc.keeps(&name.text)) {
            let message = format!("{clause} names `{}`, which is not among the kept columns", name.text);
            error(Error::user("AUTOCDC_COLUMNS_NOT_FOUND_IN_SCHEMA", message).at(&name.span));
        }
    }
}

impl Dataset {
    /// Can rows of this dataset go to `<table>_quarantine`?
    pub fn quarantines(&self) -> bool {
        let invalid = self.properties.get(CDC_INVALID);
        self.expectations.iter().any(|rule| rule.action == Action::Quarantine)
            || invalid.is_some_and(|value| value.eq_ignore_ascii_case("quarantine"))
    }
}

impl Dataset {
    /// Does its quarantine keep what has left it?
    pub fn keeps_quarantine_history(&self) -> bool {
        self.properties.get(QUARANTINE).is_some_and(|value| value.eq_ignore_ascii_case("history"))
    }

    /// Are rows of this dataset decided when they arrive, and never again?
    pub fn decides_at_arrival(&self) -> bool {
        self.properties.get(RESOLUTION).is_some_and(|value| value.eq_ignore_ascii_case("arrival"))
    }
}

impl AutoCdc {
    /// Does the target keep this column, as far as COLUMNS tells?
    pub fn keeps(&self, column: &str) -> bool {
        match &self.columns {
            None => true,
            Some(ColumnList::Include(names)) => names.iter().any(|name| same(&name.text, column)),
            Some(ColumnList::Except(names)) => !names.iter().any(|name| same(&name.text, column)),
        }
    }
}

impl ColumnList {
    /// The names that are listed, whether they are in or out.
    pub fn names(&self) -> &[Name] {
        match self {
            ColumnList::Include(names) | ColumnList::Except(names) => names,
        }
    }
}
