//! A plan for people: what each dataset holds, reads, judges and remembers.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use serde::Serialize;

use super::functions::spelled;
use super::schema::WALL_COLUMN;
use super::{
    CdcPlan, DatasetPlan, Feed, Input, MatchKind, MatchNode, Node, Plan, Rule, SourceKind, Step, Stored, is_hidden,
};
use crate::pipeline::{Action, ReadMode, ScdType};

/// One dataset, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// Full name, or that of a private replay point.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Where its rows come from when everything is built anew.
    pub origin: &'static str,
    /// Names and types, as DDL writes them.
    pub columns: Vec<ExplainedColumn>,
    /// What it reads: datasets, quarantines, files and tables outside.
    pub reads: Vec<String>,
    /// Its expectations and constraints.
    pub rules: Vec<ExplainedRule>,
    /// The table to which rows that fail can go.
    pub quarantine: Option<String>,
    /// The operators that compute it, by flow.
    pub flows: Vec<ExplainedFlow>,
}

/// A column.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedColumn {
    /// Name.
    pub name: String,
    /// Type, as DDL writes it.
    #[serde(rename = "type")]
    pub data_type: String,
}

/// An expectation or a constraint.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedRule {
    /// Name.
    pub name: String,
    /// The condition as written.
    pub condition: String,
    /// What happens to a row that violates it.
    pub action: String,
    /// When a row is judged.
    pub judged: &'static str,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedFlow {
    /// Name.
    pub name: String,
    /// Its operators, each before what it reads.
    pub operators: Vec<ExplainedOperator>,
}

/// An operator.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedOperator {
    /// How deep it stands below the flow's outcome.
    pub depth: usize,
    /// What it does.
    pub does: String,
    /// By what it finds rows.
    pub keys: Vec<String>,
    /// What it remembers between epochs; nothing if absent.
    pub state: Option<&'static str>,
}

/// Explains every dataset of a plan, each after what it reads.
pub fn explain(plan: &Plan) -> Vec<Explained> {
    plan.datasets.iter().map(|dataset| dataset_of(plan, dataset)).collect()
}

fn dataset_of(plan: &Plan, dataset: &DatasetPlan) -> Explained {
    let mut reads: Vec<String> = Vec::new();
    let mut read = |input: Input, _: &[usize]| {
        let name = input_name(plan, input);
        if !reads.contains(&name) {
            reads.push(name);
        }
    };
    let flows = match &dataset.feed {
        Feed::Append(flows) => flows
            .iter()
            .map(|(name, node)| {
                node.leaves(&mut read);
                let mut operators = Vec::new();
                node_of(plan, node, 0, &mut operators);
                ExplainedFlow { name: name.clone(), operators }
            })
            .collect(),
        Feed::Cdc(cdc) => cdc
            .flows
            .iter()
            .map(|flow| {
                flow.input.leaves(&mut read);
                let mut operators = vec![merge_of(cdc)];
                node_of(plan, &flow.input, 1, &mut operators);
                ExplainedFlow { name: flow.name.clone(), operators }
            })
            .collect(),
    };
    let kind = match (&dataset.stored, &dataset.feed) {
        (Stored::Replay(_), _) => "private replay point".to_owned(),
        (_, Feed::Cdc(cdc)) => format!("{}, AUTO CDC SCD type {}", dataset.kind, scd(cdc)),
        _ => dataset.kind.to_string(),
    };
    Explained {
        name: dataset.label(),
        kind,
        origin: match () {
            () if dataset.decided => "replay point: rows are decided when they arrive, and stored so",
            () if dataset.replay_point => "replay point: the outside is read once, and this table stands for it",
            () if dataset.stored == Stored::No => "not stored: part of what reads it",
            () => "derived: rebuilt from what it reads",
        },
        columns: dataset
            .schema
            .fields()
            .iter()
            .filter(|f| !is_hidden(f))
            .map(|f| ExplainedColumn { name: f.name().clone(), data_type: capitals(f.data_type()) })
            .collect(),
        reads,
        rules: dataset.rules.iter().map(|rule| rule_of(dataset, rule)).collect(),
        quarantine: dataset.quarantine.is_some().then(|| dataset.name.quarantine().to_string()),
        flows,
    }
}

/// A type with its words in capitals and its names as they are.
fn capitals(t: &DataType) -> String {
    match t {
        DataType::List(item) => format!("ARRAY<{}>", capitals(item.data_type())),
        DataType::Struct(fields) => {
            let member = |field: &FieldRef| format!("{}:{}", field.name(), capitals(field.data_type()));
            format!("STRUCT<{}>", fields.iter().map(member).collect::<Vec<_>>().join(","))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| capitals(part.data_type())).collect();
                format!("MAP<{}>", parts.join(","))
            }
            other => capitals(other),
        },
        other => spelled(other).to_uppercase(),
    }
}

fn scd(cdc: &CdcPlan) -> u8 {
    match cdc.scd {
        ScdType::One => 1,
        ScdType::Two => 2,
    }
}

fn input_name(plan: &Plan, input: Input) -> String {
    let dataset = |index: usize| plan.datasets.get(index);
    match input {
        Input::Dataset(index) => dataset(index).map_or_else(String::new, DatasetPlan::label),
        Input::Quarantine(index) => dataset(index).map_or_else(String::new, |d| d.name.quarantine().to_string()),
        Input::Source(index) => match plan.sources.get(index) {
            None => String::new(),
            Some(source) => {
                let once = if source.once { ", once" } else { "" };
                match &source.kind {
                    SourceKind::Files(files) => format!("files {}{once}", files.path),
                    SourceKind::Delta { location, read } => {
                        let how = match &read.mode {
                            ReadMode::ChangeFeed { .. } => "change feed of ",
                            ReadMode::Append => "appended rows of ",
                            _ => "",
                        };
                        format!("{how}table {location}{once}")
                    }
                }
            }
        },
    }
}

fn rule_of(dataset: &DatasetPlan, rule: &Rule) -> ExplainedRule {
    let mut reads_clock = false;
    let _ = rule.condition.apply(|part| {
        reads_clock |= part.downcast_ref::<Column>().is_some_and(|c| c.name() == WALL_COLUMN);
        Ok(TreeNodeRecursion::Continue)
    });
    ExplainedRule {
        name: rule.name.clone(),
        condition: rule.text.clone(),
        action: rule.action.to_string(),
        judged: match () {
            () if rule.live => "follows the clock",
            () if dataset.decided || reads_clock => "fixed at arrival",
            () if dataset.replay_point && rule.action == Action::Drop => {
                "fixed at arrival: a dropped row is kept nowhere"
            }
            () if dataset.replay_point => "by the row alone",
            () => "live: again whenever what the row is made of changes",
        },
    }
}

/// An expression without the positions of its columns.
fn shown(expr: &Arc<dyn PhysicalExpr>) -> String {
    let text = expr.to_string();
    let mut result = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('@') {
        result.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            result.push('@');
        }
        rest = after.get(digits..).unwrap_or("");
    }
    result.push_str(rest);
    result
}

fn node_of(plan: &Plan, node: &Node, depth: usize, out: &mut Vec<ExplainedOperator>) {
    let mut push = |does: String, keys: Vec<String>, state| out.push(ExplainedOperator { depth, does, keys, state });
    match node {
        Node::Read { input, schema, .. } => {
            let columns: Vec<&str> =
                schema.fields().iter().filter(|f| !is_hidden(f)).map(|f| f.name().as_str()).collect();
            push(format!("read {}: {}", input_name(plan, *input), columns.join(", ")), Vec::new(), None);
        }
        Node::Map { input, steps, .. } => {
            for step in steps.iter().rev() {
                let does = match step {
                    Step::Filter { predicate } => format!("filter {}", shown(predicate)),
                    Step::Unnest { .. } => "one row an item".to_owned(),
                    Step::Project { schema, .. } => {
                        let columns: Vec<&str> =
                            schema.fields().iter().filter(|f| !is_hidden(f)).map(|f| f.name().as_str()).collect();
                        format!("compute {}", columns.join(", "))
                    }
                };
                push(does, Vec::new(), None);
            }
            node_of(plan, input, depth + 1, out);
        }
        Node::Union { inputs, .. } => {
            push("union".to_owned(), Vec::new(), None);
            inputs.iter().for_each(|input| node_of(plan, input, depth + 1, out));
        }
        Node::Clock { input, boundaries, .. } => {
            let does = format!("follow the clock, {} conditions", boundaries.len());
            push(does, Vec::new(), Some("rows by the next moment at which they change"));
            node_of(plan, input, depth + 1, out);
        }
        Node::Distinct { input, schema } => {
            let keys = schema.fields().iter().map(|f| f.name().clone()).collect();
            push("distinct".to_owned(), keys, Some("each row and how often it is there"));
            node_of(plan, input, depth + 1, out);
        }
        Node::Match(found) => {
            let (does, state) = match_of(found);
            let equal = if found.null_equal { "<=>" } else { "=" };
            let keys = found
                .row_key
                .iter()
                .zip(&found.reference_key)
                .map(|(l, r)| format!("{} {equal} {}", shown(l), shown(r)))
                .collect();
            push(does, keys, Some(state));
            node_of(plan, &found.rows, depth + 1, out);
            node_of(plan, &found.reference, depth + 1, out);
        }
    }
}

fn match_of(found: &MatchNode) -> (String, &'static str) {
    let kind = match found.kind {
        MatchKind::Left => "left",
        MatchKind::Inner => "inner",
        MatchKind::Semi => "semi",
        MatchKind::Anti => "anti",
        MatchKind::Mark => "mark",
    };
    match (found.once, found.unique) {
        (true, _) => (format!("look up once, {kind}"), "references of earlier epochs by key"),
        (false, true) if found.settled => {
            (format!("look up, {kind}"), "references by key, and the rows that have none")
        }
        (false, true) => (format!("look up, {kind}"), "rows and references by key"),
        (false, false) => (format!("join, {kind}"), "rows of both sides by key"),
    }
}

fn merge_of(cdc: &CdcPlan) -> ExplainedOperator {
    let names = |columns: &[usize]| -> Vec<String> {
        columns.iter().filter_map(|i| cdc.layout.fields().get(*i)).map(|f| f.name().clone()).collect()
    };
    let mut does = format!("merge by key, SCD type {}", scd(cdc));
    let sequences: Vec<String> = cdc.flows.iter().map(|flow| shown(&flow.sequence)).collect();
    if let Some(first) = sequences.first() {
        let _ = write!(does, ", sequence {first}");
    }
    if cdc.scd == ScdType::Two {
        let _ = write!(does, ", history of {}", names(&cdc.tracked).join(", "));
    }
    if !cdc.fill.is_empty() {
        let _ = write!(does, ", nulls keep the value before in {}", names(&cdc.fill).join(", "));
    }
    ExplainedOperator {
        depth: 0,
        does,
        keys: names(&cdc.keys),
        state: Some(match (cdc.scd, cdc.fill.is_empty()) {
            (ScdType::One, true) => "the newest event of each key, deletes included",
            _ => "every event of each key in the order of the sequence",
        }),
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.name, self.kind)?;
        writeln!(f, "  {}", self.origin)?;
        let columns: Vec<String> = self.columns.iter().map(|c| format!("{} {}", c.name, c.data_type)).collect();
        writeln!(f, "  columns {}", columns.join(", "))?;
        if !self.reads.is_empty() {
            writeln!(f, "  reads {}", self.reads.join(", "))?;
        }
        for rule in &self.rules {
            writeln!(f, "  rule {}: {} [{}]", rule.name, rule.condition, rule.action)?;
            writeln!(f, "    {}", rule.judged)?;
        }
        if let Some(quarantine) = &self.quarantine {
            writeln!(f, "  quarantine {quarantine}")?;
        }
        for flow in &self.flows {
            writeln!(f, "  flow {}", flow.name)?;
            for operator in &flow.operators {
                write!(f, "    {}{}", "  ".repeat(operator.depth), operator.does)?;
                if !operator.keys.is_empty() {
                    write!(f, "; keys {}", operator.keys.join(", "))?;
                }
                match operator.state {
                    Some(state) => writeln!(f, "; remembers {state}")?,
                    None => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}
