//! What is known of datasets as a whole: a hash of everything that decides their rows, and whether rows are taken back.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assemble::Numbering;
use super::draft::{Draft, Reading};
use super::{DatasetPlan, Feed, Input, Node, SEMANTICS, Source, SourceKind};

/// A dataset's fingerprint covers its definition and those of everything it reads.
pub(super) fn fingerprints(datasets: &mut [DatasetPlan], drafts: &[Draft<'_>], numbering: &Numbering, zone: &str) {
    let draft_of: BTreeMap<usize, &Draft<'_>> =
        numbering.datasets.iter().zip(drafts).map(|(number, draft)| (*number, draft)).collect();
    let mut known: BTreeMap<usize, String> = BTreeMap::new();
    for (index, dataset) in datasets.iter_mut().enumerate() {
        let mut text = format!("semantics {SEMANTICS}; zone {zone}; {:?}\n", dataset.schema);
        for rule in &dataset.rules {
            text.push_str(&format!("rule {} {:?} {}\n", rule.name, rule.action, rule.text));
        }
        if let Some(draft) = draft_of.get(&index) {
            for flow in &draft.flows {
                match &flow.plan {
                    Some(plan) => text.push_str(&format!("flow {}\n", plan.display_indent_schema())),
                    None => text.push_str("flow\n"),
                }
                for (reading, _) in &flow.reads {
                    if let Reading::Outside(source) = reading {
                        text.push_str(&format!("reads {}\n", source.id));
                    }
                }
            }
        }
        if let Feed::Cdc(cdc) = &dataset.feed {
            text.push_str(&format!(
                "cdc {:?} {:?} {:?} {:?} {:?} {:?} {} {:?} {}\n",
                cdc.layout,
                cdc.keys,
                cdc.kept,
                cdc.tracked,
                cdc.fill,
                cdc.sequence,
                cdc.own,
                cdc.scd,
                cdc.quarantine_invalid
            ));
            for flow in &cdc.flows {
                let shown = |e: &Arc<dyn datafusion::physical_expr::PhysicalExpr>| e.to_string();
                text.push_str(&format!(
                    "{:?} {} {:?} {:?}\n",
                    flow.layout.iter().map(shown).collect::<Vec<_>>(),
                    flow.sequence,
                    flow.delete.as_ref().map(shown),
                    flow.truncate.as_ref().map(shown)
                ));
            }
        }
        for upstream in &dataset.upstream {
            text.push_str(known.get(upstream).map_or("", String::as_str));
        }
        dataset.fingerprint = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        known.insert(index, dataset.fingerprint.clone());
    }
}

/// Marks the AUTO CDC targets whose sources never take an event back.
pub(super) fn retractions(datasets: &mut [DatasetPlan], sources: &[Source]) {
    let mut retracts: Vec<bool> = Vec::with_capacity(datasets.len());
    for dataset in datasets {
        let value = match &mut dataset.feed {
            Feed::Append(flows) => flows.iter().any(|(_, node)| node_retracts(node, &retracts, sources)),
            Feed::Cdc(cdc) => {
                cdc.append_only = !cdc.flows.iter().any(|f| node_retracts(&f.input, &retracts, sources));
                true
            }
        };
        retracts.push(value);
    }
}

fn node_retracts(node: &Node, datasets: &[bool], sources: &[Source]) -> bool {
    match node {
        Node::Read { input: Input::Source(i), .. } => {
            sources.get(*i).is_none_or(|s| matches!(s.kind, SourceKind::DeltaSnapshot { .. }))
        }
        Node::Read { input: Input::Dataset(i) | Input::Quarantine(i), .. } => datasets.get(*i).copied().unwrap_or(true),
        Node::Map { input, .. } | Node::Distinct { input, .. } => node_retracts(input, datasets, sources),
        Node::Union { inputs, .. } => inputs.iter().any(|n| node_retracts(n, datasets, sources)),
        Node::Match(_) | Node::Clock { .. } => true,
    }
}
