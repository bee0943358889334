//! What is known of datasets as a whole: a hash of everything that decides their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

use super::assemble::Numbering;
use super::draft::{Draft, Reading};
use super::functions::Settings;
use super::{CdcFlow, CdcPlan, DECIDED, DatasetPlan, Feed, SEMANTICS};

/// Prefix of the parts that stand for what a dataset reads.
pub const UPSTREAM: &str = "upstream ";
/// Part for whether a target holds history or current rows.
pub const SCD_TYPE: &str = "SCD type";
/// Part with the type by which events are ordered, as it is written. The fingerprint covers it with the sequence.
pub const SEQUENCE_TYPE: &str = "type of the sequence";

/// A dataset's fingerprint covers its definition and those of everything it reads. Its parts are named as users speak of
/// them, so that a change can be told.
pub(super) fn fingerprints(
    datasets: &mut [DatasetPlan],
    drafts: &[Draft<'_>],
    numbering: &Numbering,
    settings: &Settings,
) {
    let draft_of: BTreeMap<usize, &Draft<'_>> =
        numbering.datasets.iter().zip(drafts).map(|(number, draft)| (*number, draft)).collect();
    let mut known: BTreeMap<usize, (String, String)> = BTreeMap::new();
    for (index, dataset) in datasets.iter_mut().enumerate() {
        let mut parts = Parts::default();
        parts.put("meaning in this version of silverflow", &SEMANTICS.to_string());
        parts.put("time zone of the session", settings.zone.name());
        parts.put("ANSI mode", if settings.ansi { "on" } else { "off" });
        parts.put("columns", &format!("{:?}", dataset.schema));
        if dataset.quarantine_history {
            parts.put("quarantine", "history");
        }
        for rule in &dataset.rules {
            let kind = if rule.constraint { "constraint" } else { "expectation" };
            parts.put(&format!("{kind} {}", rule.name), &format!("{:?} {}", rule.action, rule.text));
        }
        parts.put(
            "order of expectations",
            &dataset.rules.iter().map(|r| r.name.as_str()).collect::<Vec<_>>().join("\n"),
        );
        if let Some(draft) = draft_of.get(&index) {
            let mut queries: Vec<String> = draft.flows.iter().map(|flow| query(flow.plan.as_ref())).collect();
            // The order of flows decides nothing but columns, which are a part of their own.
            queries.sort();
            parts.put("query", &queries.join("\n"));
            let outside = draft.flows.iter().flat_map(|flow| &flow.reads).filter_map(|(reading, _)| match reading {
                Reading::Outside(source) => Some(source.id.as_str()),
                _ => None,
            });
            parts.put("sources", &outside.collect::<Vec<_>>().join("\n"));
        }
        if let Feed::Cdc(cdc) = &dataset.feed {
            merge(&mut parts, cdc);
        }
        for (name, fingerprint) in dataset.upstream.iter().filter_map(|upstream| known.get(upstream)) {
            parts.put(&format!("{UPSTREAM}{name}"), fingerprint);
        }
        let text: String = parts.0.iter().map(|(name, hash)| format!("{name}: {hash}\n")).collect();
        let kind = if dataset.decided { DECIDED } else { "" };
        dataset.fingerprint = format!("{kind}{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        if let Feed::Cdc(cdc) = &dataset.feed {
            parts.0.insert(SEQUENCE_TYPE.to_owned(), cdc.sequence.data_type().to_string());
        }
        dataset.parts = parts.0;
        known.insert(index, (dataset.label(), dataset.fingerprint.clone()));
    }
}

/// Hashes by name.
#[derive(Default)]
struct Parts(BTreeMap<String, String>);

impl Parts {
    fn put(&mut self, name: &str, text: &str) {
        self.0.insert(name.to_owned(), format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes())));
    }
}

/// A query as text. Plans are shown with long binary literals cut short, so all literals follow in full.
fn query(plan: Option<&LogicalPlan>) -> String {
    let Some(plan) = plan else { return "feed".to_owned() };
    let mut text = plan.display_indent_schema().to_string();
    let _ = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(value, _) = part {
                    text.push_str(&format!("\n{value:?}"));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    text
}

fn expression(expr: &Arc<dyn PhysicalExpr>) -> String {
    let mut text = expr.to_string();
    let _ = expr.apply(|part| {
        if let Some(literal) = part.downcast_ref::<Literal>() {
            text.push_str(&format!("\n{:?}", literal.value()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    text
}

fn merge(parts: &mut Parts, cdc: &CdcPlan) {
    let flows = |f: &dyn Fn(&CdcFlow) -> String| cdc.flows.iter().map(f).collect::<Vec<_>>().join("\n");
    let optional = |e: &Option<Arc<dyn PhysicalExpr>>| e.as_ref().map_or("none".to_owned(), expression);
    let names = |columns: &[usize]| {
        let fields = columns.iter().filter_map(|at| cdc.layout.fields().get(*at));
        fields.map(|field| field.name().as_str()).collect::<Vec<_>>().join("\n")
    };
    parts.put("keys", &names(&cdc.keys));
    parts.put("kept columns", &names(&cdc.kept));
    parts.put("tracked columns", &names(&cdc.tracked));
    parts.put("columns in which null updates are ignored", &names(&cdc.fill));
    parts.put("events", &format!("{:?} {}", cdc.layout, cdc.own));
    parts.put("columns of the events", &flows(&|f| f.layout.iter().map(expression).collect::<Vec<_>>().join(", ")));
    parts.put("sequence", &format!("{:?} {}", cdc.sequence, flows(&|f| expression(&f.sequence))));
    parts.put("condition of deletes", &flows(&|f| optional(&f.delete)));
    parts.put("condition of truncates", &flows(&|f| optional(&f.truncate)));
    parts.put(SCD_TYPE, &format!("{:?}", cdc.scd));
    parts.put("treatment of invalid events", &cdc.quarantine_invalid.to_string());
}
