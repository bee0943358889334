//! What a front end hands over: declarations whose names are not resolved yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast;

use super::source::Source;
use super::{
    AutoCdc, Column, ColumnList, DatasetKind, Expectation, IgnoreNull, Name, QueryBody, ReadFiles, Relation, ScdType,
    TableName,
};
use crate::error::{Error, Result, Span};

/// All declarations of a pipeline, from all of its files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) datasets: Vec<DatasetDeclaration>,
    pub(crate) flows: Vec<FlowDeclaration>,
    /// Engine settings of SET statements, with the place of each.
    pub(crate) settings: Vec<(String, String, Span)>,
    pub(crate) sources: Vec<Arc<Source>>,
    pub(crate) without_effect: Vec<WithoutEffect>,
}

/// A clause that is read and changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct WithoutEffect {
    /// The clause in a few words, the same wherever it stands.
    pub(crate) clause: &'static str,
    pub(crate) why: &'static str,
    pub(crate) span: Span,
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
    pub(crate) body: QueryBody,
    pub(crate) relations: Vec<WrittenRelation>,
    pub(crate) text: String,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenRelation {
    pub(crate) stream: bool,
    /// Options of the stream, as written.
    pub(crate) options: Vec<(Name, String)>,
    pub(crate) source: WrittenSource,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum WrittenSource {
    Table(WrittenName),
    Files(ReadFiles),
    /// A Delta table by its location.
    Delta(String),
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

/// The clauses of AUTO CDC as a front end finds them, in any order.
#[derive(Clone, Debug, Default)]
pub(crate) struct CdcParts {
    pub(crate) keys: Option<Vec<Name>>,
    pub(crate) sequence_by: Option<(ast::Expr, Span)>,
    pub(crate) apply_as_deletes: Option<ast::Expr>,
    pub(crate) apply_as_truncates: Option<ast::Expr>,
    pub(crate) columns: Option<ColumnList>,
    pub(crate) track_history: Option<ColumnList>,
    pub(crate) ignore_null_updates: Option<IgnoreNull>,
    pub(crate) scd: Option<ScdType>,
}

impl CdcParts {
    /// Checks that nothing is missing, empty or named twice; `place` is for what has no place of its own.
    pub(crate) fn finish(self, place: &Span) -> Result<CdcClauses> {
        let CdcParts { keys, sequence_by, columns, track_history, ignore_null_updates, .. } = self;
        let missing = |code, clause: &str| {
            Error::user(code, format!("AUTO CDC without {clause}")).at(place).help("KEYS (id) SEQUENCE BY updated_at")
        };
        let keys = keys.filter(|keys| !keys.is_empty()).ok_or_else(|| missing("AUTOCDC_EMPTY_KEYS", "KEYS"))?;
        let (sequence_by, sequence_span) =
            sequence_by.ok_or_else(|| missing("AUTOCDC_MISSING_SEQUENCE", "SEQUENCE BY"))?;
        let ignored = match &ignore_null_updates {
            Some(IgnoreNull::Columns(list)) => Some(list),
            _ => None,
        };
        for (list, code, clause) in [
            (columns.as_ref(), "AUTOCDC_EMPTY_COLUMN_LIST", "COLUMNS"),
            (ignored, "AUTOCDC_IGNORE_NULL_EMPTY_COLUMN_LIST", "IGNORE NULL UPDATES ON"),
        ] {
            if matches!(list, Some(ColumnList::Include(names)) if names.is_empty()) {
                return Err(Error::user(code, format!("{clause} names no column")).at(place));
            }
        }
        let lists = [columns.as_ref(), track_history.as_ref(), ignored].into_iter().flatten();
        for names in lists.map(ColumnList::names).chain([keys.as_slice()]) {
            let mut seen = BTreeSet::new();
            if let Some(twice) = names.iter().find(|name| !seen.insert(name.text.to_lowercase())) {
                let message = format!("`{}` is named twice", twice.text);
                return Err(Error::user("DUPLICATE_COLUMN", message).at(&twice.span));
            }
        }
        Ok(CdcClauses {
            keys,
            sequence_by,
            sequence_span,
            apply_as_deletes: self.apply_as_deletes,
            apply_as_truncates: self.apply_as_truncates,
            columns,
            track_history,
            ignore_null_updates,
            scd: self.scd.unwrap_or(ScdType::One),
        })
    }
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
