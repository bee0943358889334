//! A declared pipeline as a [`Plan`].

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};

use super::assemble::assemble;
use super::draft::{Draft, draft};
use super::query::Planner;
use super::{Plan, Settings, SourceKind, session};
use crate::error::Result;
use crate::pipeline::{Dataset, DatasetKind, Flow, Graph, Pipeline, RelationSource, TableName};

/// What planning must know of the world outside: the columns of files and tables.
pub trait Outside {
    /// Columns of a source. `id` is its stable name, under which an inferred schema is remembered.
    fn schema(&self, id: &str, kind: &SourceKind) -> Result<SchemaRef>;

    /// What is to be said of how a source is read, which is no error: stable codes and sentences.
    fn warnings(&self, kind: &SourceKind) -> Vec<(&'static str, String)>;
    /// The stable name of a flow's sources: the name under which the flow first read them.
    ///
    /// # Errors
    /// `FLOW_NAME_TAKEN` (user) if it is that of another flow, which was renamed.
    fn origin(&self, flow: &str) -> Result<String> {
        Ok(flow.to_owned())
    }
    /// Columns of a dataset's table as it is now, without silverflow's own.
    fn stored(&self, name: &TableName) -> Result<Option<SchemaRef>>;
    /// The column `_metadata` of files.
    fn metadata(&self) -> Field;
    /// Location of an external table by its full name.
    fn location(&self, name: &TableName) -> String;
}

/// Plans a pipeline: types, columns, expressions, replay points, fingerprints. All mistakes of one dataset's queries are
/// reported; a dataset that reads a faulty one is not looked at.
pub fn analyze(pipeline: &Pipeline, outside: &dyn Outside) -> Result<Plan> {
    let settings = Settings::of(&pipeline.configuration)?;
    let zone: Arc<str> = settings.zone.name().into();
    let planner = Planner { session: session(true, &settings)?, settings, sources: &pipeline.sources };
    let graph = Graph::new(pipeline)?;
    let order: Vec<&Dataset> = graph.order().iter().filter_map(|name| pipeline.datasets.get(name)).collect();
    let number: BTreeMap<&TableName, usize> = order.iter().enumerate().map(|(i, d)| (&d.name, i)).collect();
    let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(order.len());
    for dataset in &order {
        let mut flows: Vec<&Flow> = pipeline.flows.values().filter(|f| f.target == dataset.name).collect();
        flows.sort_by(|a, b| a.name.cmp(&b.name));
        let once = read_once(pipeline, dataset);
        let draft = draft(&planner, outside, dataset, &flows, once, &number, &drafts)?;
        drafts.push(draft);
    }
    Ok(Plan { root: pipeline.root.clone(), ..assemble(&drafts, &zone, &planner)? })
}

/// Whether a view is there for ONCE flows alone, so that what it reads outside is read once, too.
fn read_once(pipeline: &Pipeline, dataset: &Dataset) -> bool {
    let here = RelationSource::Dataset(dataset.name.clone());
    let mut readers = pipeline.flows.values().filter(|f| f.relations().iter().any(|r| r.source == here)).peekable();
    let through = |flow: &Flow| pipeline.datasets.get(&flow.target).is_some_and(|target| read_once(pipeline, target));
    dataset.kind == DatasetKind::TemporaryView && readers.peek().is_some() && readers.all(|f| f.once || through(f))
}
