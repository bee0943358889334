//! Parts that were given to the builder, read to declarations.

use std::ops::Range;

use super::TableBuilder;
use super::cdc::AutoCdcBuilder;
use crate::error::{Error, Result};
use crate::pipeline::declaration::{
    CdcParts, DatasetDeclaration, Declarations, Defaults, FlowBody, FlowDeclaration, WrittenRelation, WrittenSource,
};
use crate::pipeline::{Action, ColumnList, DatasetKind, Expectation, IgnoreNull, Name};
use crate::sql::Snippets;

/// Where a piece of SQL stands in the builder's text.
pub(super) type Piece = Range<usize>;

/// A part whose SQL is in the text.
pub(super) enum Prepared {
    Dataset {
        name: Piece,
        kind: DatasetKind,
        query: Option<Piece>,
        columns: Option<Piece>,
        expectations: Vec<(String, Piece, Action)>,
        table: TableBuilder,
    },
    Append {
        name: Piece,
        target: Piece,
        query: Piece,
        once: bool,
    },
    AutoCdc {
        name: Piece,
        target: Piece,
        source: Piece,
        sequence_by: Option<Piece>,
        delete_when: Option<Piece>,
        truncate_when: Option<Piece>,
        keys: Vec<(String, Piece)>,
        columns: KeptLists,
        track_history: KeptLists,
        ignore_null: KeptLists,
        flow: Box<AutoCdcBuilder>,
    },
}

/// Columns in and out, as places.
pub(super) struct KeptLists {
    pub(super) include: Option<Vec<(String, Piece)>>,
    pub(super) except: Option<Vec<(String, Piece)>>,
}

/// Parts to declarations.
pub(super) struct Reader<'a> {
    pub(super) snippets: Snippets<'a>,
    pub(super) defaults: Defaults,
}

impl Reader<'_> {
    /// Adds what a part declares, or tells what is wrong with it.
    pub(super) fn part(&self, part: Prepared, declarations: &mut Declarations) -> Result<()> {
        let defaults = self.defaults.clone();
        match part {
            Prepared::Dataset { name: piece, kind, query, columns, expectations, table } => {
                let name = self.snippets.table(&piece)?;
                let span = self.snippets.span(&piece);
                let query = query.map(|query| self.snippets.query(&query)).transpose()?;
                if query.is_none() && kind != DatasetKind::StreamingTable {
                    let message = format!("`{name}` has no query");
                    return Err(Error::user("PIPELINE_DATASET_WITHOUT_FLOW", message).at(&span));
                }
                let dataset = DatasetDeclaration {
                    name: name.clone(),
                    defaults: defaults.clone(),
                    kind,
                    private: table.private || kind == DatasetKind::TemporaryView,
                    columns: columns.map(|columns| self.snippets.columns(&columns)).transpose()?,
                    expectations: expectations
                        .into_iter()
                        .map(|(name, piece, action)| {
                            let (condition, span) = self.snippets.expr(&piece, "an expectation")?;
                            Ok(Expectation { name, condition, action, span })
                        })
                        .collect::<Result<_>>()?,
                    comment: table.comment,
                    properties: table.properties,
                    span: span.clone(),
                };
                declarations.datasets.push(dataset);
                declarations.flows.extend(query.map(|query| FlowDeclaration {
                    name: None,
                    target: name,
                    defaults,
                    once: false,
                    body: FlowBody::Query { query, by_name: true },
                    comment: None,
                    span,
                }));
            }
            Prepared::Append { name, target, query, once } => {
                let body = FlowBody::Query { query: self.snippets.query(&query)?, by_name: true };
                declarations.flows.push(self.flow(&name, &target, once, body)?);
            }
            Prepared::AutoCdc {
                name,
                target,
                source,
                sequence_by,
                delete_when,
                truncate_when,
                keys,
                columns,
                track_history,
                ignore_null,
                flow,
            } => {
                let place = self.snippets.span(&name);
                let clause = |piece: Option<Piece>| {
                    piece.map(|piece| self.snippets.expr(&piece, "a clause of AUTO CDC")).transpose()
                };
                let listed = self.list(ignore_null, ["ignore_null_updates_on", "ignore_null_updates_except"])?;
                let parts = CdcParts {
                    keys: Some(self.names(keys)),
                    sequence_by: clause(sequence_by)?,
                    apply_as_deletes: clause(delete_when)?.map(|(expr, _)| expr),
                    apply_as_truncates: clause(truncate_when)?.map(|(expr, _)| expr),
                    columns: self.list(columns, ["columns", "except_columns"])?,
                    track_history: self.list(track_history, ["track_history", "track_history_except"])?,
                    ignore_null_updates: match listed {
                        Some(list) => Some(IgnoreNull::Columns(list)),
                        None => flow.ignore_null.then_some(IgnoreNull::All),
                    },
                    scd: flow.scd,
                };
                let source = self.snippets.table(&source)?;
                let span = source.span.clone();
                let source =
                    WrittenRelation { stream: true, options: Vec::new(), source: WrittenSource::Table(source), span };
                let body = FlowBody::AutoCdc { source, clauses: Box::new(parts.finish(&place)?) };
                declarations.flows.push(self.flow(&name, &target, flow.once, body)?);
            }
        }
        Ok(())
    }

    fn flow(&self, name: &Piece, target: &Piece, once: bool, body: FlowBody) -> Result<FlowDeclaration> {
        let written = self.snippets.table(name)?;
        if written.parts.len() > 1 {
            let message = "the name of a flow has one part";
            return Err(Error::user("MULTIPART_FLOW_NAME_NOT_SUPPORTED", message).at(&written.span));
        }
        let span = written.span.clone();
        Ok(FlowDeclaration {
            name: Some(Name { text: written.table().to_owned(), span: span.clone() }),
            target: self.snippets.table(target)?,
            defaults: self.defaults.clone(),
            once,
            body,
            comment: None,
            span,
        })
    }

    fn names(&self, names: Vec<(String, Piece)>) -> Vec<Name> {
        names.into_iter().map(|(text, piece)| Name { text, span: self.snippets.span(&piece) }).collect()
    }

    fn list(&self, lists: KeptLists, [include, except]: [&str; 2]) -> Result<Option<ColumnList>> {
        match (lists.include, lists.except) {
            (Some(_), Some(names)) => {
                let error =
                    Error::user("CANNOT_SET_TOGETHER", format!("`{include}` and `{except}` exclude each other"));
                Err(match names.first() {
                    Some((_, piece)) => error.at(&self.snippets.span(piece)),
                    None => error,
                })
            }
            (Some(names), None) => Ok(Some(ColumnList::Include(self.names(names)))),
            (None, Some(names)) => Ok(Some(ColumnList::Except(self.names(names)))),
            (None, None) => Ok(None),
        }
    }
}
