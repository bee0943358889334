//! What a reader of files may leave out: the filters that stand right above a source, where nothing else reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::{PhysicalExpr, conjunction};

use super::{DatasetPlan, Feed, Input, Node, Source, SourceKind, Step};
use crate::pipeline::Kept;

/// Tells sources of files which of their rows are of use. The filters stay where they are, so that a reader leaves out what
/// it can tell cheaply.
pub(super) fn push_down(sources: &mut [Source], datasets: &[DatasetPlan]) {
    let mut found: BTreeMap<usize, Vec<Option<Kept>>> = BTreeMap::new();
    for dataset in datasets {
        match &dataset.feed {
            Feed::Append(flows) => flows.iter().for_each(|(_, node)| collect(node, &mut found)),
            Feed::Cdc(cdc) => cdc.flows.iter().for_each(|flow| collect(&flow.input, &mut found)),
        }
    }
    for (source, mut readers) in found {
        if let (Some(Some(kept)), 1) = (readers.pop(), readers.len() + 1)
            && let Some(Source { kind: SourceKind::Files(files), .. }) = sources.get_mut(source)
        {
            files.kept = Some(kept);
        }
    }
}

fn collect(node: &Node, found: &mut BTreeMap<usize, Vec<Option<Kept>>>) {
    match node {
        Node::Read { input: Input::Source(source), .. } => found.entry(*source).or_default().push(None),
        Node::Read { .. } => {}
        Node::Map { input, steps, .. } => match input.as_ref() {
            Node::Read { input: Input::Source(source), schema, .. } => {
                let kept = kept(steps, schema);
                found.entry(*source).or_default().push(kept);
            }
            other => collect(other, found),
        },
        Node::Clock { input, .. } | Node::Distinct { input, .. } => collect(input, found),
        Node::Union { inputs, .. } => inputs.iter().for_each(|input| collect(input, found)),
        Node::Match(node) => {
            collect(&node.rows, found);
            collect(&node.reference, found);
        }
    }
}

fn kept(steps: &[Step], schema: &SchemaRef) -> Option<Kept> {
    let filters = steps.iter().map_while(|step| match step {
        Step::Filter { predicate } => Some(Arc::clone(predicate)),
        _ => None,
    });
    let filters: Vec<Arc<dyn PhysicalExpr>> = filters.collect();
    (!filters.is_empty()).then(|| Kept { predicate: conjunction(filters), schema: Arc::clone(schema) })
}
