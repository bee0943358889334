//! Who reads whom: order, upstream, downstream and a text picture.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::names::listed;
use super::{
    Action, AutoCdc, ColumnList, Dataset, DatasetKind, Flow, FlowKind, Name, Pipeline, Relation, RelationSource,
    ScdType, TableName,
};
use crate::error::{Error, Result};

/// The datasets of a pipeline in an order in which each comes after all that it reads. The order depends on names alone.
#[derive(Clone, Debug)]
pub struct Graph {
    order: Vec<TableName>,
    reads: BTreeMap<TableName, BTreeSet<TableName>>,
    read_by: BTreeMap<TableName, BTreeSet<TableName>>,
}

impl Graph {
    /// Builds the graph. Reading a dataset's quarantine is reading the dataset.
    ///
    /// # Errors
    /// `PIPELINE_GRAPH_NOT_TOPOLOGICALLY_SORTABLE` names a cycle.
    pub fn new(pipeline: &Pipeline) -> Result<Graph> {
        let mut reads: BTreeMap<TableName, BTreeSet<TableName>> =
            pipeline.datasets.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
        let mut read_by = reads.clone();
        for flow in pipeline.flows.values() {
            for source in flow.relations().iter().filter_map(|relation| relation.source.dataset()) {
                reads.entry(flow.target.clone()).or_default().insert(source.clone());
                read_by.entry(source.clone()).or_default().insert(flow.target.clone());
            }
        }
        let mut open: BTreeMap<&TableName, usize> = reads.iter().map(|(name, sources)| (name, sources.len())).collect();
        let mut ready: BTreeSet<&TableName> = open.iter().filter(|(_, n)| **n == 0).map(|(name, _)| *name).collect();
        let mut order = Vec::with_capacity(reads.len());
        while let Some(name) = ready.pop_first() {
            open.remove(name);
            order.push(name.clone());
            for next in read_by.get(name).into_iter().flatten() {
                if let Some(left) = open.get_mut(next) {
                    *left -= 1;
                    if *left == 0 {
                        ready.insert(next);
                    }
                }
            }
        }
        if let Some(start) = open.keys().next() {
            return Err(cycle_error(pipeline, &reads, &open, start));
        }
        Ok(Graph { order, reads, read_by })
    }

    /// All datasets, sources first.
    pub fn order(&self) -> &[TableName] {
        &self.order
    }

    /// The datasets that a dataset reads itself.
    pub fn reads(&self, name: &TableName) -> impl Iterator<Item = &TableName> {
        self.reads.get(name).into_iter().flatten()
    }

    /// The datasets that read a dataset themselves.
    pub fn read_by(&self, name: &TableName) -> impl Iterator<Item = &TableName> {
        self.read_by.get(name).into_iter().flatten()
    }

    /// Everything that the named datasets depend on, without themselves unless one depends on another.
    pub fn upstream<'a>(&self, names: impl IntoIterator<Item = &'a TableName>) -> BTreeSet<TableName> {
        reach(&self.reads, names)
    }

    /// Everything that depends on the named datasets.
    pub fn downstream<'a>(&self, names: impl IntoIterator<Item = &'a TableName>) -> BTreeSet<TableName> {
        reach(&self.read_by, names)
    }

    /// The pipeline as text: each dataset with its flows, what they read, and its expectations.
    pub fn render(&self, pipeline: &Pipeline) -> String {
        let mut text = String::new();
        for dataset in self.order.iter().filter_map(|name| pipeline.datasets.get(name)) {
            // Writing to a String cannot fail.
            let _ = render_dataset(&mut text, pipeline, dataset);
        }
        text
    }
}

fn reach<'a>(
    edges: &BTreeMap<TableName, BTreeSet<TableName>>,
    from: impl IntoIterator<Item = &'a TableName>,
) -> BTreeSet<TableName> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&TableName> = from.into_iter().collect();
    while let Some(name) = open.pop() {
        for next in edges.get(name).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    found
}

/// Walks backwards from a dataset that could not be ordered until one comes up again.
fn cycle_error(
    pipeline: &Pipeline,
    reads: &BTreeMap<TableName, BTreeSet<TableName>>,
    open: &BTreeMap<&TableName, usize>,
    start: &TableName,
) -> Error {
    let mut path = vec![start];
    let mut at = start;
    // Every dataset that is left reads one that is left, so this goes on until a name repeats.
    while let Some(next) = reads.get(at).into_iter().flatten().find(|source| open.contains_key(source)) {
        if let Some(first) = path.iter().position(|name| *name == next) {
            path.drain(..first);
            break;
        }
        path.push(next);
        at = next;
    }
    path.reverse();
    let least = path.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(i, _)| i);
    path.rotate_left(least);
    path.extend(path.first().copied());
    let shown: Vec<String> = path.iter().map(|name| pipeline.short(name)).collect();
    let message = format!("these datasets read each other in a circle: {}", shown.join(" -> "));
    let error = Error::user("PIPELINE_GRAPH_NOT_TOPOLOGICALLY_SORTABLE", message);
    match path.first().and_then(|name| pipeline.datasets.get(name)) {
        Some(dataset) => error.at(&dataset.span).dataset(&dataset.name),
        None => error,
    }
}

fn render_dataset(text: &mut String, pipeline: &Pipeline, dataset: &Dataset) -> std::fmt::Result {
    let private = if dataset.private && dataset.kind != DatasetKind::TemporaryView { "private " } else { "" };
    writeln!(text, "{} ({private}{})", pipeline.short(&dataset.name), dataset.kind)?;
    for flow in pipeline.flows_into(&dataset.name) {
        write!(text, "  ")?;
        let own = flow.name == dataset.name.to_string();
        if !own {
            write!(text, "flow {}: ", flow.name)?;
        }
        if flow.once {
            write!(text, "once, ")?;
        }
        render_flow(text, pipeline, flow)?;
    }
    for rule in &dataset.expectations {
        writeln!(text, "  expect {}: {} [{}]", rule.name, rule.condition, rule.action)?;
    }
    if dataset.quarantines() {
        writeln!(text, "  quarantine {}", pipeline.short(&dataset.name.quarantine()))?;
    }
    Ok(())
}

fn render_flow(text: &mut String, pipeline: &Pipeline, flow: &Flow) -> std::fmt::Result {
    match &flow.kind {
        FlowKind::Query { query, .. } => {
            let mut sources: Vec<String> = Vec::new();
            for relation in &query.relations {
                let shown = relation_text(pipeline, relation);
                if !sources.contains(&shown) {
                    sources.push(shown);
                }
            }
            match sources.as_slice() {
                [] => writeln!(text, "from constants"),
                sources => writeln!(text, "from {}", sources.join(", ")),
            }
        }
        FlowKind::AutoCdc(cdc) => {
            let AutoCdc {
                source,
                keys,
                sequence_by,
                apply_as_deletes,
                apply_as_truncates,
                columns,
                track_history,
                scd,
                ..
            } = cdc.as_ref();
            let scd = match scd {
                ScdType::One => 1,
                ScdType::Two => 2,
            };
            write!(text, "AUTO CDC from {}, SCD type {scd}", relation_text(pipeline, source))?;
            write!(text, ", keys {}, sequence {sequence_by}", listed(keys.iter().map(|key| &key.text)))?;
            if let Some(condition) = apply_as_deletes {
                write!(text, ", delete when {condition}")?;
            }
            if let Some(condition) = apply_as_truncates {
                write!(text, ", truncate when {condition}")?;
            }
            if let Some(list) = columns {
                write!(text, ", columns {list}")?;
            }
            if let Some(list) = track_history {
                write!(text, ", history of {list}")?;
            }
            if cdc.ignore_null_updates.is_some() {
                write!(text, ", nulls keep the value before")?;
            }
            writeln!(text)
        }
    }
}

fn relation_text(pipeline: &Pipeline, relation: &Relation) -> String {
    let source = match &relation.source {
        RelationSource::Dataset(name) => pipeline.short(name),
        RelationSource::Quarantine(name) => pipeline.short(&name.quarantine()),
        RelationSource::External { name, location: None, .. } => format!("outside table {name}"),
        RelationSource::External { name, location: Some(location), .. } => {
            format!("outside table {name} at {location}")
        }
        RelationSource::Files(files) => format!("files {}", files.path),
    };
    if relation.stream { format!("stream of {source}") } else { source }
}

impl std::fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DatasetKind::StreamingTable => "streaming table",
            DatasetKind::MaterializedView => "materialized view",
            DatasetKind::TemporaryView => "view",
        })
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Warn => "warn",
            Action::Drop => "drop",
            Action::Quarantine => "quarantine",
            Action::Fail => "fail",
        })
    }
}

impl std::fmt::Display for ColumnList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = |list: &[Name]| list.iter().map(|name| name.text.clone()).collect::<Vec<_>>().join(", ");
        match self {
            ColumnList::Include(list) => write!(f, "({})", names(list)),
            ColumnList::Except(list) => write!(f, "* except ({})", names(list)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pipeline::Settings;
    use crate::project::load_sql;

    #[test]
    fn order_and_reach_follow_the_names() {
        let text = "CREATE STREAMING TABLE z AS SELECT * FROM STREAM outside;
            CREATE MATERIALIZED VIEW a AS SELECT * FROM b JOIN z USING (id);
            CREATE VIEW b AS SELECT * FROM z;
            CREATE STREAMING TABLE alone AS SELECT * FROM STREAM outside;
            CREATE STREAMING TABLE q (CONSTRAINT c EXPECT (x) ON VIOLATION QUARANTINE) AS SELECT * FROM STREAM b;
            CREATE STREAMING TABLE r AS SELECT * FROM STREAM q_quarantine;";
        let pipeline = load_sql(&[("a.sql", text)], &Settings::default()).unwrap().pipeline;
        let graph = Graph::new(&pipeline).unwrap();
        let shown =
            |names: &mut dyn Iterator<Item = &TableName>| names.map(|n| n.table.clone()).collect::<Vec<_>>().join(" ");
        let name = |table: &str| TableName::new("MAIN", "default", table);
        assert_eq!(shown(&mut graph.order().iter()), "alone z b a q r");
        assert_eq!(shown(&mut graph.reads(&name("A"))), "b z");
        assert_eq!(shown(&mut graph.read_by(&name("b"))), "a q");
        assert_eq!(shown(&mut graph.upstream([&name("r")]).iter()), "b q z");
        assert_eq!(shown(&mut graph.downstream([&name("b"), &name("alone")]).iter()), "a q r");
        assert_eq!(shown(&mut graph.downstream([&name("nope")]).iter()), "");
    }
}
