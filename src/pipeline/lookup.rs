//! Questions about a pipeline that many of its readers have.

use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use super::{AutoCdc, Flow, FlowKind, Pipeline, Query, Relation, RelationSource, TableName};
use crate::error::Span;

impl Pipeline {
    /// The flows that feed a dataset, by name.
    pub fn flows_into<'a>(&'a self, target: &'a TableName) -> impl Iterator<Item = &'a Flow> {
        self.flows.values().filter(move |flow| flow.target == *target)
    }

    /// A name without the parts that are the pipeline's defaults.
    pub fn short(&self, name: &TableName) -> String {
        let folded = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
        match (folded(&name.catalog, &self.catalog), folded(&name.schema, &self.schema)) {
            (true, true) => name.table.clone(),
            (true, false) => format!("{}.{}", name.schema, name.table),
            (false, _) => name.to_string(),
        }
    }

    /// The place of a stretch (as sqlparser gives it) in the file that another place of the same definition is in.
    pub fn locate(&self, file: &Span, at: AstSpan) -> Span {
        match self.sources.get(&file.file) {
            Some(source) if at.start.line > 0 => source.span(at),
            _ => file.clone(),
        }
    }

    /// The place that a message of sqlparser or DataFusion names, else the place that is given.
    pub fn locate_message(&self, file: &Span, message: &str) -> Span {
        self.sources.get(&file.file).and_then(|source| source.span_of_message(message)).unwrap_or_else(|| file.clone())
    }
}

impl Flow {
    /// What the flow reads.
    pub fn relations(&self) -> &[Relation] {
        match &self.kind {
            FlowKind::Query { query, .. } => &query.relations,
            FlowKind::AutoCdc(cdc) => std::slice::from_ref(&cdc.source),
        }
    }

    /// The clauses, if this is an AUTO CDC flow.
    pub fn auto_cdc(&self) -> Option<&AutoCdc> {
        match &self.kind {
            FlowKind::AutoCdc(cdc) => Some(cdc),
            FlowKind::Query { .. } => None,
        }
    }

    /// The query, if this is no AUTO CDC flow.
    pub fn query(&self) -> Option<&Query> {
        match &self.kind {
            FlowKind::Query { query, .. } => Some(query),
            FlowKind::AutoCdc(_) => None,
        }
    }
}

impl RelationSource {
    /// The dataset of this pipeline that is read, be it itself or its quarantine.
    pub fn dataset(&self) -> Option<&TableName> {
        match self {
            RelationSource::Dataset(name) | RelationSource::Quarantine(name) => Some(name),
            RelationSource::External { .. } | RelationSource::Files(_) => None,
        }
    }
}
