//! Which datasets only grow: no row of them is ever taken back, so that what reads them need not be able to.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column};

use super::schema::{NOW_COLUMN, varies};
use super::{DatasetPlan, Feed, Input, MatchKind, MatchNode, Node, Retracts, Rule, Source};
use crate::pipeline::Action;

/// Marks the datasets that take rows back, the AUTO CDC targets whose sources never take an event back, and the lookups
/// whose reference never takes a row back.
pub(super) fn growth(datasets: &mut [DatasetPlan], sources: &[Source]) {
    let mut known: Vec<Retracts> = Vec::with_capacity(datasets.len());
    for dataset in datasets {
        let timed = !dataset.boundaries.is_empty();
        let releases = dataset.rules.iter().all(only_releases);
        dataset.retracts = match &mut dataset.feed {
            Feed::Append(flows) => {
                flows.iter_mut().for_each(|(_, node)| settle(node, &known, sources));
                let flows = !dataset.decided && flows.iter().any(|(_, node)| node_retracts(node, &known, sources));
                let decided = dataset.decided;
                Retracts { rows: !decided && (flows || timed && !releases), quarantine: !decided && (flows || timed) }
            }
            Feed::Cdc(cdc) => {
                cdc.flows.iter_mut().for_each(|flow| settle(&mut flow.input, &known, sources));
                cdc.append_only = !cdc.flows.iter().any(|f| node_retracts(&f.input, &known, sources));
                Retracts { rows: true, quarantine: true }
            }
        };
        known.push(dataset.retracts);
    }
}

/// A key of a reference that only grows, and is unique on it, keeps the row that it has.
fn settle(node: &mut Node, datasets: &[Retracts], sources: &[Source]) {
    match node {
        Node::Read { .. } => {}
        Node::Map { input, .. } | Node::Distinct { input, .. } | Node::Clock { input, .. } => {
            settle(input, datasets, sources);
        }
        Node::Union { inputs, .. } => inputs.iter_mut().for_each(|node| settle(node, datasets, sources)),
        Node::Match(node) => {
            settle(&mut node.rows, datasets, sources);
            settle(&mut node.reference, datasets, sources);
            let grows = !node_retracts(&node.reference, datasets, sources);
            node.settled = node.unique && !node.once && exact(node) && grows;
        }
    }
}

fn node_retracts(node: &Node, datasets: &[Retracts], sources: &[Source]) -> bool {
    match node {
        Node::Read { input: Input::Source(i), .. } => sources.get(*i).is_none_or(|s| s.kind.retracts()),
        Node::Read { input: Input::Dataset(i), .. } => datasets.get(*i).is_none_or(|dataset| dataset.rows),
        Node::Read { input: Input::Quarantine(i), .. } => datasets.get(*i).is_none_or(|dataset| dataset.quarantine),
        Node::Map { input, .. } => node_retracts(input, datasets, sources),
        // Of equal rows that differ in their bits the least one is shown, and a lesser one may come.
        Node::Distinct { input, schema } => {
            schema.fields().iter().any(|field| varies(field.data_type())) || node_retracts(input, datasets, sources)
        }
        Node::Union { inputs, .. } => inputs.iter().any(|n| node_retracts(n, datasets, sources)),
        Node::Match(node) if node.once => node_retracts(&node.rows, datasets, sources),
        // A row that has found something has found it for good, where nothing goes on either side.
        Node::Match(node) if matches!(node.kind, MatchKind::Inner | MatchKind::Semi) => {
            let replaces = node.unique && !exact(node);
            replaces || [&node.rows, &node.reference].into_iter().any(|side| node_retracts(side, datasets, sources))
        }
        Node::Match(_) | Node::Clock { .. } => true,
    }
}

/// Whether the row that a key has stays the same: of references that differ in their bits alone the least one counts, and a
/// lesser one may come.
fn exact(node: &MatchNode) -> bool {
    let presence = matches!(node.kind, MatchKind::Semi | MatchKind::Anti | MatchKind::Mark);
    presence || !node.reference.schema().fields().iter().any(|field| varies(field.data_type()))
}

/// Whether time can make a row pass the rule, and never fail it again.
fn only_releases(rule: &Rule) -> bool {
    matches!(rule.action, Action::Warn | Action::Fail) || rises(&rule.condition)
}

/// Whether the condition can become true with time, and never false again: it is made with AND and OR of comparisons in
/// which the clock stands, by itself, on the greater side.
fn rises(condition: &Arc<dyn PhysicalExpr>) -> bool {
    if !reads_now(condition) {
        return true;
    }
    let Some(binary) = condition.downcast_ref::<BinaryExpr>() else { return false };
    let (left, right) = (binary.left(), binary.right());
    match binary.op() {
        Operator::And | Operator::Or => rises(left) && rises(right),
        Operator::Lt | Operator::LtEq => !reads_now(left) && ascends(right),
        Operator::Gt | Operator::GtEq => ascends(left) && !reads_now(right),
        _ => false,
    }
}

/// The clock, or the clock as another type.
fn ascends(expr: &Arc<dyn PhysicalExpr>) -> bool {
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) => ascends(cast.expr()),
        None => expr.downcast_ref::<Column>().is_some_and(|column| column.name() == NOW_COLUMN),
    }
}

fn reads_now(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let mut found = false;
    let _ = expr.apply(|part| {
        found |= part.downcast_ref::<Column>().is_some_and(|column| column.name() == NOW_COLUMN);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found
}
