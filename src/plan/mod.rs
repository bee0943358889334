//! From a declared pipeline to a plan that the dataflow can be built from: every query as a tree of [`Node`]s whose
//! expressions are DataFusion physical expressions over Arrow batches.

mod analyze;
mod assemble;
mod cdc;
mod chain;
mod clock;
mod context;
mod decided;
mod draft;
mod explain;
mod fingerprint;
mod frame;
mod functions;
mod generate;
mod generated;
mod growth;
mod identifiers;
mod lateral;
mod lower;
mod metadata;
mod moments;
mod own;
mod push;
mod query;
mod readings;
mod replay;
mod schema;
mod spark;
mod stars;
mod syntax;
#[cfg(test)]
pub(crate) mod tests;
mod together;
mod unique;
mod wording;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;

use crate::error::Span;
use crate::pipeline::{Action, DatasetKind, ReadFiles, ReadTable, ScdType, TableName};

pub use analyze::Outside;
pub use analyze::analyze;
pub use context::session;
pub use explain::{Explained, ExplainedColumn, ExplainedFlow, ExplainedOperator, ExplainedRule, explain};
pub use fingerprint::{SCD_TYPE, SEQUENCE_TYPE, UPSTREAM};
pub use frame::plan_frame;
pub(crate) use functions::{Instants, double};
pub use functions::{Settings, Zone, all_names as function_names};
pub use moments::{Boundary, ClockStep, Span as TimeSpan};
pub use query::{from_datafusion, plan_sql};
pub use schema::{NOW_COLUMN, WALL_COLUMN, is_hidden, stored_schema, varies, with_now, with_wall};
pub use together::Together;
#[cfg(test)]
pub(crate) use together::together;

/// Raised whenever an operator, a function or an encoding changes its meaning, so that stored results are recomputed.
pub const SEMANTICS: u32 = 3;

/// A pipeline, checked and ready to be built as a dataflow.
#[derive(Debug)]
pub struct Plan {
    /// What is read from outside.
    pub sources: Vec<Source>,
    /// Datasets, each after everything it reads.
    pub datasets: Vec<DatasetPlan>,
    /// Mistakes that are not errors.
    pub lints: Vec<PlanLint>,
    /// The project's folder.
    pub root: PathBuf,
}

/// A likely mistake, found while planning.
#[derive(Debug)]
pub struct PlanLint {
    /// Stable code.
    pub code: &'static str,
    /// What was found.
    pub message: String,
    /// Where.
    pub span: Span,
}

/// Something outside the pipeline that is read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Stable name: the flow that first read it, with a number where it reads several.
    pub id: String,
    /// The flow that reads it.
    pub flow: String,
    /// What it is.
    pub kind: SourceKind,
    /// Columns.
    pub schema: SchemaRef,
    /// Read once, when first seen, and never again.
    pub once: bool,
    /// What is to be said of how it is read: a stable code and a sentence.
    pub warnings: Vec<(&'static str, String)>,
    /// Where it is named.
    pub span: Span,
}

/// Fingerprints of datasets that decide their rows when they arrive begin with this.
pub const DECIDED: &str = "arrival ";

/// Labels of private replay points begin with this; the source that they store follows.
pub const REPLAY: &str = "replay of ";

/// Kind of a source.
#[derive(Clone, Debug)]
pub enum SourceKind {
    /// Files, each read once.
    Files(ReadFiles),
    /// A Delta table.
    Delta {
        /// Path or URL.
        location: String,
        /// How it is read.
        read: ReadTable,
    },
}

impl SourceKind {
    /// Rows are taken back when they are outside no more.
    pub fn retracts(&self) -> bool {
        matches!(self, SourceKind::Delta { read, .. } if read.retracts())
    }
}

/// Where the rows of a dataset are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Nowhere: a view.
    No,
    /// In the table of its name.
    Table,
    /// In a private replay point, by the name of the flow that reads the outside.
    Replay(String),
}

/// A dataset with everything that feeds it.
#[derive(Debug)]
pub struct DatasetPlan {
    /// Full name.
    pub name: TableName,
    /// What it is.
    pub kind: DatasetKind,
    /// Where its rows are kept.
    pub stored: Stored,
    /// Columns that users see.
    pub schema: SchemaRef,
    /// What feeds it.
    pub feed: Feed,
    /// Expectations; for AUTO CDC they judge upsert events before the merge.
    pub rules: Vec<Rule>,
    /// The conditions of the rules once more, if several of them compute the same.
    pub together: Option<Together>,
    /// Columns of the automatic quarantine table, without `_epoch`; absent where no rule can fill it.
    pub quarantine: Option<SchemaRef>,
    /// Rows that leave the quarantine stay in its table, with the epoch in which they left.
    pub quarantine_history: bool,
    /// Where the truth of the expectations changes as the clock goes on; for AUTO CDC the flows' inputs know it.
    pub boundaries: Vec<Boundary>,
    /// Rows carry the wall of the epoch they arrived in as a hidden last column [`WALL_COLUMN`].
    pub wall: bool,
    /// Stored as it arrived, with [`EPOCH_COLUMN`]; downstream is rebuilt from it.
    pub replay_point: bool,
    /// A replay point of what was decided when rows arrived: its query is not asked again for rows of earlier epochs.
    pub decided: bool,
    /// Whether rows are ever taken back.
    pub retracts: Retracts,
    /// Hash of everything that decides the dataset's rows, its upstream included.
    pub fingerprint: String,
    /// What the fingerprint is made of: a hash for each part of the definition, by a name for people.
    pub parts: BTreeMap<String, String>,
    /// Comment of the table.
    pub comment: Option<String>,
    /// Table properties.
    pub properties: BTreeMap<String, String>,
    /// Indices of the datasets it reads.
    pub upstream: Vec<usize>,
}

/// Whether rows of a dataset, and of its quarantine, are taken back, be it by the clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retracts {
    /// Rows of the dataset.
    pub rows: bool,
    /// Rows of its quarantine.
    pub quarantine: bool,
}

impl DatasetPlan {
    /// The name that logs, metrics and reports use.
    pub fn label(&self) -> String {
        match &self.stored {
            Stored::Replay(flow) => format!("{REPLAY}{flow}"),
            _ => self.name.to_string(),
        }
    }
}

/// What feeds a dataset.
#[derive(Debug)]
pub enum Feed {
    /// Rows of queries, by flow name.
    Append(Vec<(String, Node)>),
    /// Change events of one or more flows, merged.
    Cdc(Box<CdcPlan>),
}

/// An expectation, ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name.
    pub name: String,
    /// The condition as written, for reports.
    pub text: String,
    /// Evaluates to a boolean array.
    pub condition: Arc<dyn PhysicalExpr>,
    /// What happens on violation.
    pub action: Action,
    /// It reads the clock ever anew.
    pub live: bool,
    /// A constraint of the table (NOT NULL): it judges the rows that are written, after the expectations.
    pub constraint: bool,
}

/// What a leaf of a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// Index into [`Plan::sources`].
    Source(usize),
    /// Index into [`Plan::datasets`]: the rows of the dataset.
    Dataset(usize),
    /// Index into [`Plan::datasets`]: its quarantined rows.
    Quarantine(usize),
}

/// A relational operator. The schema is that of the batches on its outgoing edge: the query's columns, and
/// [`WALL_COLUMN`] last where something above needs it.
#[derive(Debug)]
pub enum Node {
    /// A leaf; `columns` selects from what is read.
    Read {
        /// What is read.
        input: Input,
        /// Kept columns of the input, in order.
        columns: Vec<usize>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// Row-wise steps.
    Map {
        /// Input.
        input: Box<Node>,
        /// Steps, in order.
        steps: Vec<Step>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// UNION ALL.
    Union {
        /// Inputs of equal schema.
        inputs: Vec<Node>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// Each row with the moment at which it stands, in [`NOW_COLUMN`] behind its columns, corrected as the clock goes on.
    Clock {
        /// Input.
        input: Box<Node>,
        /// Where the meaning of a row changes.
        boundaries: Vec<Boundary>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// DISTINCT over all columns.
    Distinct {
        /// Input.
        input: Box<Node>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// An equality join.
    Match(Box<MatchNode>),
}

/// An equality join of rows with a reference.
#[derive(Debug)]
pub struct MatchNode {
    /// The rows.
    pub rows: Node,
    /// The reference.
    pub reference: Node,
    /// Key of a row; a null in it matches nothing, unless `null_equal`.
    pub row_key: Vec<Arc<dyn PhysicalExpr>>,
    /// Key of a reference row.
    pub reference_key: Vec<Arc<dyn PhysicalExpr>>,
    /// Nulls match nulls.
    pub null_equal: bool,
    /// Kind of match.
    pub kind: MatchKind,
    /// The reference has at most one row a key, or only its presence counts.
    pub unique: bool,
    /// The reference is unique and only grows: a row that has found its own keeps it.
    pub settled: bool,
    /// Rows are matched once, with the references known before their epoch.
    pub once: bool,
    /// Outgoing columns.
    pub schema: SchemaRef,
}

/// Kind of an equality join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// Rows with reference columns or nulls.
    Left,
    /// Rows that have a reference, with its columns.
    Inner,
    /// Rows that have a reference.
    Semi,
    /// Rows that have none.
    Anti,
    /// Rows with a boolean column: has a reference.
    Mark,
}

/// A row-wise step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Keeps the rows for which the predicate is true.
    Filter {
        /// Boolean.
        predicate: Arc<dyn PhysicalExpr>,
    },
    /// One row an item of a list.
    Unnest {
        /// The list, in whose place the item comes. Rows without items go.
        column: usize,
        /// Outgoing columns.
        schema: SchemaRef,
    },
    /// Computes columns.
    Project {
        /// One an outgoing column.
        columns: Vec<Arc<dyn PhysicalExpr>>,
        /// Outgoing columns.
        schema: SchemaRef,
    },
}

/// The merge of change events into an AUTO CDC target.
///
/// The *layout* of an event's stored value is: every column that some flow's source has from outside (not derived by
/// verdicts, clock or lookups), by name, then the other kept columns, by name. Its bytes therefore order events as the tie
/// rule wants, and hold what the target shows.
#[derive(Debug)]
pub struct CdcPlan {
    /// Flows into the target.
    pub flows: Vec<CdcFlow>,
    /// Columns of the stored value.
    pub layout: SchemaRef,
    /// Key columns, as indices into the layout.
    pub keys: Vec<usize>,
    /// Kept columns in the target's order, as indices into the layout.
    pub kept: Vec<usize>,
    /// Tracked columns, as indices into the layout. SCD type 2.
    pub tracked: Vec<usize>,
    /// Columns in which a null keeps the value before it, as indices into the layout.
    pub fill: Vec<usize>,
    /// How many leading layout columns come from the sources themselves.
    pub own: usize,
    /// Type of the sequence.
    pub sequence: arrow::datatypes::Field,
    /// SCD type.
    pub scd: ScdType,
    /// No input ever retracts an event.
    pub append_only: bool,
    /// Events without key or sequence go to quarantine instead of failing the epoch.
    pub quarantine_invalid: bool,
    /// Columns that expectations see: the kept ones, and the wall if needed.
    pub judged: SchemaRef,
}

/// One flow of change events.
#[derive(Debug)]
pub struct CdcFlow {
    /// Name.
    pub name: String,
    /// The source.
    pub input: Node,
    /// One expression over the source a layout column.
    pub layout: Vec<Arc<dyn PhysicalExpr>>,
    /// The sequence.
    pub sequence: Arc<dyn PhysicalExpr>,
    /// True for deletes.
    pub delete: Option<Arc<dyn PhysicalExpr>>,
    /// True for truncates.
    pub truncate: Option<Arc<dyn PhysicalExpr>>,
}

impl Plan {
    /// The columns of a source, or of a dataset, that something reads.
    pub fn used(&self, of: Input) -> BTreeSet<usize> {
        let mut used = BTreeSet::new();
        let mut note = |input: Input, columns: &[usize]| {
            if input == of {
                used.extend(columns);
            }
        };
        for dataset in &self.datasets {
            match &dataset.feed {
                Feed::Append(flows) => flows.iter().for_each(|(_, node)| node.leaves(&mut note)),
                Feed::Cdc(cdc) => cdc.flows.iter().for_each(|flow| flow.input.leaves(&mut note)),
            }
        }
        used
    }
}

impl Node {
    /// Columns on the outgoing edge.
    pub fn schema(&self) -> &SchemaRef {
        match self {
            Node::Read { schema, .. }
            | Node::Map { schema, .. }
            | Node::Union { schema, .. }
            | Node::Clock { schema, .. }
            | Node::Distinct { schema, .. } => schema,
            Node::Match(node) => &node.schema,
        }
    }

    /// Calls `f` on every leaf, with the columns that it keeps.
    pub fn leaves(&self, f: &mut impl FnMut(Input, &[usize])) {
        match self {
            Node::Read { input, columns, .. } => f(*input, columns),
            Node::Map { input, .. } | Node::Clock { input, .. } | Node::Distinct { input, .. } => input.leaves(f),
            Node::Union { inputs, .. } => inputs.iter().for_each(|n| n.leaves(f)),
            Node::Match(node) => {
                node.rows.leaves(f);
                node.reference.leaves(f);
            }
        }
    }

    /// Whether each outgoing row is made from one incoming row alone.
    pub fn row_wise(&self) -> bool {
        match self {
            Node::Read { .. } => true,
            Node::Map { input, .. } => input.row_wise(),
            Node::Union { .. } | Node::Clock { .. } | Node::Distinct { .. } | Node::Match(_) => false,
        }
    }
}
