//! What a front end hands over: declarations whose names are not resolved yet.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast;

use super::source::Source;
use super::{
    AutoCdc, Column, ColumnList, DatasetKind, Expectation, IgnoreNull, Name, ReadFiles, Relation, ScdType, TableName,
};
use crate::error::Span;

/// All declarations of a pipeline, from all of its files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) datasets: Vec<DatasetDeclaration>,
    pub(crate) flows: Vec<FlowDeclaration>,
    /// Engine settings of SET statements, with the place of each.
    pub(crate) settings: Vec<(String, String, Span)>,
    pub(crate) sources: Vec<Arc<Source>>,
}

/// Catalog and schema that complete a short name at one place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) catalog: String,
    pub(crate) schema: String,
}

/// A table name of one to three parts, as written.
#[derive(Clone, Debug)]
pub(crate) struct WrittenName {
    pub(crate) parts: Vec<String>,
    /// Written as `LIVE.x`: a dataset of the pipeline and nothing else.
    pub(crate) live: bool,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct DatasetDeclaration {
    pub(crate) name: WrittenName,
    pub(crate) defaults: Defaults,
    pub(crate) kind: DatasetKind,
    pub(crate) private: bool,
    pub(crate) columns: Option<Vec<Column>>,
    pub(crate) expectations: Vec<Expectation>,
    pub(crate) comment: Option<String>,
    pub(crate) properties: BTreeMap<String, String>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct FlowDeclaration {
    /// `None` for the flow that bears its target's name.
    pub(crate) name: Option<Name>,
    pub(crate) target: WrittenName,
    pub(crate) defaults: Defaults,
    pub(crate) once: bool,
    pub(crate) body: FlowBody,
    pub(crate) comment: Option<String>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum FlowBody {
    Query { query: WrittenQuery, by_name: bool },
    AutoCdc { source: WrittenRelation, clauses: Box<CdcClauses> },
}

/// A query in which relations are `$n`, not resolved yet.
#[derive(Clone, Debug)]
pub(crate) struct WrittenQuery {
    pub(crate) ast: Box<ast::Query>,
    pub(crate) relations: Vec<WrittenRelation>,
    pub(crate) text: String,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenRelation {
    pub(crate) stream: bool,
    pub(crate) source: WrittenSource,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum WrittenSource {
    Table(WrittenName),
    Files(ReadFiles),
}

/// [`AutoCdc`] without its source.
#[derive(Clone, Debug)]
pub(crate) struct CdcClauses {
    pub(crate) keys: Vec<Name>,
    pub(crate) sequence_by: ast::Expr,
    pub(crate) sequence_span: Span,
    pub(crate) apply_as_deletes: Option<ast::Expr>,
    pub(crate) apply_as_truncates: Option<ast::Expr>,
    pub(crate) columns: Option<ColumnList>,
    pub(crate) track_history: Option<ColumnList>,
    pub(crate) ignore_null_updates: Option<IgnoreNull>,
    pub(crate) scd: ScdType,
}

impl CdcClauses {
    pub(crate) fn with_source(self, source: Relation) -> AutoCdc {
        AutoCdc {
            source,
            keys: self.keys,
            sequence_by: self.sequence_by,
            sequence_span: self.sequence_span,
            apply_as_deletes: self.apply_as_deletes,
            apply_as_truncates: self.apply_as_truncates,
            columns: self.columns,
            track_history: self.track_history,
            ignore_null_updates: self.ignore_null_updates,
            scd: self.scd,
        }
    }
}

impl WrittenName {
    /// The full name; the parser lets one to three parts through.
    pub(crate) fn full(&self, defaults: &Defaults) -> TableName {
        let mut parts = self.parts.iter().rev().cloned();
        let table = parts.next().unwrap_or_default();
        let schema = parts.next().unwrap_or_else(|| defaults.schema.clone());
        let catalog = parts.next().unwrap_or_else(|| defaults.catalog.clone());
        TableName { catalog, schema, table }
    }

    /// The last part.
    pub(crate) fn table(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }
}

impl fmt::Display for WrittenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("."))
    }
}
