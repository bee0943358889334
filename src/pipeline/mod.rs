//! A pipeline as its author declared it: datasets, flows, expectations. No I/O, no dataflow.
//!
//! Every front end (SQL, the Rust builder, later Spark Connect) builds these types; everything behind them
//! (checks, planning, running) sees only these types.

mod builder;
mod check;
pub(crate) mod declaration;
pub mod frame;
mod graph;
mod lineage;
mod lint;
mod lookup;
pub(crate) mod names;
mod read_table;
pub(crate) mod resolve;
pub(crate) mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast;

use self::frame::Frame;
use crate::error::Span;

pub use builder::{AutoCdcBuilder, PipelineBuilder, TableBuilder};
pub use check::{END_COLUMN, EPOCH_COLUMN, FAILED_COLUMN, LEFT_COLUMN, START_COLUMN};
pub use graph::Graph;
pub use lint::{Lint, NO_EFFECT};
pub use names::near_miss;
pub(crate) use read_table::bytes as parse_bytes;
pub use read_table::{ReadMode, ReadTable, StartAt};
pub use resolve::Settings;
pub use source::Source;

/// Full name of a dataset or an external table. Compared without regard to case; shown as written.
#[derive(Clone, Debug)]
pub struct TableName {
    /// Catalog, `main` by default.
    pub catalog: String,
    /// Schema (also called database), `default` by default.
    pub schema: String,
    /// Table.
    pub table: String,
}

/// A whole pipeline.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// Name from the project file.
    pub name: String,
    /// Root of tables and state: a local path or an object-store URL.
    pub storage: String,
    /// Default catalog.
    pub catalog: String,
    /// Default schema.
    pub schema: String,
    /// Keys of `configuration` and `SET`, as written.
    pub configuration: BTreeMap<String, String>,
    /// Datasets by name.
    pub datasets: BTreeMap<TableName, Dataset>,
    /// Flows by name; a flow that a dataset's `AS query` creates bears the dataset's full name.
    pub flows: BTreeMap<String, Flow>,
    /// The definition files by the name that [`Span::file`] bears, to turn positions inside queries and conditions into spans.
    pub sources: BTreeMap<String, Arc<Source>>,
    /// The project's folder, from which relative paths count.
    pub root: PathBuf,
}

/// What a dataset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Fed by append flows or AUTO CDC flows, stored.
    StreamingTable,
    /// Always equal to its query on the current input, stored.
    MaterializedView,
    /// A named query, not stored.
    TemporaryView,
}

/// A dataset that a pipeline declares.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Full name.
    pub name: TableName,
    /// What it is.
    pub kind: DatasetKind,
    /// Not published (kept under the storage all the same).
    pub private: bool,
    /// Declared columns, if any.
    pub columns: Option<Vec<Column>>,
    /// Expectations in the order written.
    pub expectations: Vec<Expectation>,
    /// Comment for the table.
    pub comment: Option<String>,
    /// Table properties as written.
    pub properties: BTreeMap<String, String>,
    /// Where it is declared.
    pub span: Span,
}

/// A declared column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name as written.
    pub name: String,
    /// Type in Arrow terms: STRING is `Utf8`, TIMESTAMP is microseconds in UTC, TIMESTAMP_NTZ microseconds without zone.
    pub data_type: arrow::datatypes::DataType,
    /// Characters that a text of `VARCHAR(n)` has at most. One that is longer fails its row, unless what is too much is
    /// blanks, which go.
    pub length: Option<i32>,
    /// False for NOT NULL.
    pub nullable: bool,
    /// Comment.
    pub comment: Option<String>,
    /// What computes it from the other columns.
    pub generated: Option<Generated>,
    /// Where it is declared.
    pub span: Span,
}

/// `GENERATED ALWAYS AS (expression)`: the column has the value of the expression over the other columns of its row. A
/// query that yields the column all the same must yield that value.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The expression.
    pub expr: ast::Expr,
    /// Where it stands.
    pub span: Span,
}

/// What happens to a row that violates an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Kept and counted.
    Warn,
    /// Left out and counted.
    Drop,
    /// Sent to `<table>_quarantine` with the names of the rules it violates.
    Quarantine,
    /// Nothing of the epoch is committed.
    Fail,
}

/// A named condition on a dataset's rows.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Unique in its dataset.
    pub name: String,
    /// The condition: true or false for each row.
    pub condition: ast::Expr,
    /// What happens on violation.
    pub action: Action,
    /// Where it is declared.
    pub span: Span,
}

/// A query that feeds a dataset.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Unique in the pipeline.
    pub name: String,
    /// The dataset it feeds.
    pub target: TableName,
    /// Reads what is there when it first runs, and never again.
    pub once: bool,
    /// How it feeds.
    pub kind: FlowKind,
    /// Comment.
    pub comment: Option<String>,
    /// Where it is declared.
    pub span: Span,
}

/// How a flow feeds its target.
#[derive(Clone, Debug)]
pub enum FlowKind {
    /// The rows of a query are appended (streaming table) or are the contents (view).
    Query {
        /// The query.
        query: Query,
        /// Columns are matched by name (always so for `AS query`; by position for INSERT without BY NAME).
        by_name: bool,
    },
    /// Change events are merged by key and sequence. Boxed, since it is much larger than the rest.
    AutoCdc(Box<AutoCdc>),
}

/// A query whose relations have been resolved to what they read.
///
/// In SQL every relation stands as a table named `$0`, `$1`, … with an alias (the user's own, else the last part of
/// the name that the user wrote), and `relations` says what each of them is. Names of common table expressions are left as they are.
#[derive(Clone, Debug)]
pub struct Query {
    /// The rewritten query.
    pub body: QueryBody,
    /// What `$n` reads.
    pub relations: Vec<Relation>,
    /// The query as written.
    pub text: String,
    /// Where it stands. Positions inside `ast` (sqlparser spans) are lines and columns of the same file.
    pub span: Span,
}

/// What a query says.
#[derive(Clone, Debug)]
pub enum QueryBody {
    /// In SQL.
    Sql(Box<ast::Query>),
    /// Built operator by operator.
    Frame(Box<Frame>),
}

/// Something a query reads.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Read as a stream (`STREAM x`), that is: as appended rows.
    pub stream: bool,
    /// What is read.
    pub source: RelationSource,
    /// Where it is named.
    pub span: Span,
}

/// What a relation is.
#[derive(Clone, Debug, PartialEq)]
pub enum RelationSource {
    /// A dataset of this pipeline.
    Dataset(TableName),
    /// The automatic `<table>_quarantine` of a dataset of this pipeline; the name is that of the dataset.
    Quarantine(TableName),
    /// A Delta table outside the pipeline: at `<storage>/<catalog>/<schema>/<table>`, or where `configuration` says
    /// (`silverflow.table.<name as written>`).
    External {
        /// Full name.
        name: TableName,
        /// Location from `configuration`, if given.
        location: Option<String>,
        /// How it is read.
        read: ReadTable,
    },
    /// Files.
    Files(ReadFiles),
}

/// `read_files(...)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadFiles {
    /// Folder, file or glob. A relative path counts from the folder of the project file and is made absolute on loading.
    pub path: String,
    /// Declared schema; inferred once if absent.
    pub schema: Option<SchemaRef>,
    /// All other options, keys in lower case (`format`, `mode`, `header`, …).
    pub options: BTreeMap<String, String>,
    /// Rows that are of use, if not all are; known once the pipeline is planned.
    pub kept: Option<Kept>,
}

/// Rows of which a predicate is true.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The predicate, over columns of `schema`.
    pub predicate: Arc<dyn PhysicalExpr>,
    /// Columns that the predicate can name.
    pub schema: SchemaRef,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        self.predicate.as_ref() == other.predicate.as_ref() && self.schema == other.schema
    }
}

/// An AUTO CDC flow.
#[derive(Clone, Debug)]
pub struct AutoCdc {
    /// The source of change events.
    pub source: Relation,
    /// Key columns.
    pub keys: Vec<Name>,
    /// Order of changes.
    pub sequence_by: ast::Expr,
    /// Where the sequence expression stands.
    pub sequence_span: Span,
    /// Rows for which this is true are deletes.
    pub apply_as_deletes: Option<ast::Expr>,
    /// Rows for which this is true empty the table; SCD type 1 only.
    pub apply_as_truncates: Option<ast::Expr>,
    /// Kept columns; all by default.
    pub columns: Option<ColumnList>,
    /// Columns whose change opens a version; all kept ones by default. SCD type 2 only.
    pub track_history: Option<ColumnList>,
    /// Columns in which a null keeps the value before it.
    pub ignore_null_updates: Option<IgnoreNull>,
    /// SCD type.
    pub scd: ScdType,
}

/// Columns by inclusion or exclusion.
#[derive(Clone, Debug)]
pub enum ColumnList {
    /// These.
    Include(Vec<Name>),
    /// All but these.
    Except(Vec<Name>),
}

/// Scope of IGNORE NULL UPDATES.
#[derive(Clone, Debug)]
pub enum IgnoreNull {
    /// Every eligible column.
    All,
    /// Some.
    Columns(ColumnList),
}

/// Slowly changing dimension type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScdType {
    /// The newest row a key.
    One,
    /// Every version a key.
    Two,
}

/// A column name with its place.
#[derive(Clone, Debug)]
pub struct Name {
    /// As written.
    pub text: String,
    /// Where.
    pub span: Span,
}

impl QueryBody {
    /// The query with its SQL changed; a frame stays.
    pub(crate) fn map_sql(self, f: impl FnOnce(Box<ast::Query>) -> Box<ast::Query>) -> QueryBody {
        match self {
            QueryBody::Sql(ast) => QueryBody::Sql(f(ast)),
            frame @ QueryBody::Frame(_) => frame,
        }
    }

    /// The query, which must be one in SQL.
    #[cfg(test)]
    #[allow(clippy::panic)]
    pub(crate) fn sql(&self) -> &ast::Query {
        match self {
            QueryBody::Sql(ast) => ast,
            QueryBody::Frame(_) => panic!("a frame is no SQL"),
        }
    }
}

impl TableName {
    /// A full name.
    pub fn new(catalog: impl Into<String>, schema: impl Into<String>, table: impl Into<String>) -> Self {
        TableName { catalog: catalog.into(), schema: schema.into(), table: table.into() }
    }

    /// The name of the automatic quarantine table.
    #[must_use]
    pub fn quarantine(&self) -> TableName {
        TableName { table: format!("{}_quarantine", self.table), ..self.clone() }
    }

    fn folded(&self) -> [String; 3] {
        [self.catalog.to_lowercase(), self.schema.to_lowercase(), self.table.to_lowercase()]
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.catalog, self.schema, self.table)
    }
}

impl PartialEq for TableName {
    fn eq(&self, other: &Self) -> bool {
        self.folded() == other.folded()
    }
}

impl Eq for TableName {}

impl PartialOrd for TableName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TableName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.folded().cmp(&other.folded())
    }
}

impl std::hash::Hash for TableName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.folded().hash(state);
    }
}
