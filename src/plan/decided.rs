//! What a dataset that decides its rows when they arrive may read.

use super::assemble::Numbering;
use super::draft::Draft;
use super::{DatasetPlan, Feed, Input, Node, Source};
use crate::error::{Error, Result};

/// Rows that are decided when they arrive cannot be taken back, so that they cannot be made from such that are.
pub(super) fn decided_rows_grow(datasets: &[DatasetPlan], drafts: &[Draft<'_>], numbering: &Numbering) -> Result<()> {
    let mut errors = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let Some(dataset) = numbering.datasets.get(index).and_then(|at| datasets.get(*at)) else { continue };
        let Feed::Append(flows) = &dataset.feed else { continue };
        for (flow, node) in flows.iter().filter(|_| dataset.decided) {
            let Some(from) = taken_back(node, datasets, &numbering.sources) else { continue };
            errors.push(
                Error::user(
                    "ARRIVAL_OVER_CHANGES",
                    format!("rows of {} are to be decided when they arrive, and rows of {from} are taken back", dataset.name),
                )
                .help("read a table that only grows: one that stores what comes from outside, or one that is decided at arrival too")
                .at(&draft.dataset.span)
                .dataset(&dataset.name)
                .flow(flow),
            );
        }
    }
    Error::all(errors).map_or(Ok(()), Err)
}

/// Something whose rows a query may have to take back. What only the clock takes out of a replay point stays decided.
fn taken_back(node: &Node, datasets: &[DatasetPlan], sources: &[Source]) -> Option<String> {
    match node {
        Node::Read { input: Input::Dataset(i), .. } => {
            let dataset = datasets.get(*i)?;
            let Feed::Append(flows) = &dataset.feed else { return Some(dataset.label()) };
            if dataset.decided {
                return None;
            }
            let from = flows.iter().find_map(|(_, node)| taken_back(node, datasets, sources));
            let clock = !dataset.boundaries.is_empty() && !dataset.replay_point;
            from.or_else(|| clock.then(|| dataset.label()))
        }
        Node::Read { input: Input::Quarantine(i), .. } => Some(format!("{} quarantine", datasets.get(*i)?.label())),
        Node::Read { input: Input::Source(i), .. } => {
            sources.get(*i).filter(|s| s.kind.retracts()).map(|s| s.id.clone())
        }
        Node::Map { input, .. } => taken_back(input, datasets, sources),
        Node::Union { inputs, .. } => inputs.iter().find_map(|input| taken_back(input, datasets, sources)),
        Node::Match(node) if node.once => taken_back(&node.rows, datasets, sources),
        Node::Match(_) => Some("a join".to_owned()),
        Node::Clock { .. } => Some("a condition on the clock".to_owned()),
        Node::Distinct { .. } => Some("DISTINCT".to_owned()),
    }
}
