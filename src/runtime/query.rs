//! Ad-hoc queries on the tables of a pipeline, all of them as of the last complete epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::TableReference;
use datafusion::datasource::TableProvider;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{self, Ident, ObjectName, TableAlias, TableFactor, VisitMut, VisitorMut};

use regex::{Regex, RegexBuilder};

use super::definitions::quarantine_key;
use super::io;
use crate::error::{Error, Result, Span};
use crate::lake::{EpochLog, History, Lake, query as tables};
use crate::pipeline::{DatasetKind, Pipeline, Query, QueryBody, RelationSource, Source, TableName, near_miss};
use crate::plan::{Settings, from_datafusion, function_names, plan_frame, plan_sql, session};
use crate::sql::{name_defaults, read_query};
use crate::stack::on_large_stack;

/// The rows of a query.
#[derive(Clone, Debug)]
pub struct QueryResult {
    /// Columns.
    pub schema: SchemaRef,
    /// Rows.
    pub batches: Vec<RecordBatch>,
}

/// Answers a SELECT from the pipeline's tables, pinned to the last complete epoch. Every stored dataset and its quarantine
/// can be named with one to three parts; names are matched without regard to case. `SHOW FUNCTIONS` lists what can be
/// called, aggregates and the clock apart.
///
/// # Errors
/// A query that cannot be parsed or planned (user), tables that cannot be read (external).
pub fn query(pipeline: &Pipeline, sql: &str) -> Result<QueryResult> {
    on_large_stack(|| io()?.block_on(answer(pipeline, sql, None)))
}

/// As [`query`], with every table as it was at the end of an epoch; if that epoch was aborted, of the one before it.
///
/// # Errors
/// `EPOCH_NOT_KEPT` (user) for an epoch that is not complete, or so long ago that it is not known any more what the tables
/// held then, or that files have been removed since; otherwise as [`query`].
pub fn query_as_of(pipeline: &Pipeline, sql: &str, epoch: u64) -> Result<QueryResult> {
    on_large_stack(|| io()?.block_on(answer(pipeline, sql, Some(epoch))))
}

/// Versions of the tables at the end of an epoch.
fn versions_of(history: &History, epoch: u64) -> Result<&BTreeMap<String, i64>> {
    let wrong = |message: String| {
        let kept = match (history.past.first_key_value(), history.last_complete) {
            (Some((first, _)), Some(last)) => format!("epochs {first} to {last} can be asked for"),
            _ => "no epoch is complete yet".to_owned(),
        };
        Err(Error::user("EPOCH_NOT_KEPT", message).help(kept).epoch(epoch))
    };
    if history.last_complete.is_none_or(|last| epoch > last) {
        return wrong(format!("epoch {epoch} is not complete"));
    }
    match history.past.range(..=epoch).next_back() {
        Some((_, versions)) => Ok(versions),
        None => wrong(format!("what the tables held in epoch {epoch} is not known any more")),
    }
}

async fn answer(pipeline: &Pipeline, sql: &str, as_of: Option<u64>) -> Result<QueryResult> {
    let source = Arc::new(Source::new("<query>", sql));
    let whole = Span { file: "<query>".to_owned(), line: 1, column: 1, length: 1, text: source.line(1).to_owned() };
    if let Some(pattern) = asks_for_functions(sql)? {
        return functions(pattern.as_deref());
    }
    let mut query = read_query(&source)?;
    let lake = Lake::open(&pipeline.storage).await?;
    let (_, history) = EpochLog::load(&lake).await?;
    let versions = match as_of {
        Some(epoch) => versions_of(&history, epoch)?,
        None => &history.versions,
    };
    let mut relations = Relations { pipeline, ctes: BTreeSet::new(), found: Vec::new(), unknown: None };
    let _ = VisitMut::visit(&mut query, &mut relations);
    if let Some(error) = relations.unknown {
        return Err(error.at(&whole));
    }
    let context = session(false, &Settings::of(&pipeline.configuration)?)?;
    let mut schemas: Vec<SchemaRef> = Vec::new();
    for (index, (table, key)) in relations.found.iter().enumerate() {
        let version = versions.get(key).copied();
        if let Some(epoch) = as_of
            && !tables::is_kept(&lake, &lake.table_location(table), version.unwrap_or(0)).await?
        {
            let message = format!(
                "files that {table} had in epoch {epoch} (version {}) have been removed since",
                version.unwrap_or(0)
            );
            let help = "ask for a later epoch; the table's property delta.deletedFileRetentionDuration says how long files \
                        stay that a table has no more";
            return Err(Error::user("EPOCH_NOT_KEPT", message).help(help).epoch(epoch));
        }
        let provider = at_version(&lake, table, version).await?;
        schemas.push(provider.schema());
        context
            .register_table(TableReference::bare(name_of(index)), provider)
            .map_err(|e| Error::internal("a table cannot be registered").caused_by(e))?;
    }
    let state = context.state();
    let plan = plan_sql(&query, &schemas, &state, &whole, Some(&source))?;
    let wrong = |e| from_datafusion(e, &whole, Some(&source));
    let frame = context.execute_logical_plan(plan).await.map_err(wrong)?;
    let schema: SchemaRef = Arc::new(frame.schema().as_arrow().clone());
    let batches = frame.collect().await.map_err(wrong)?;
    Ok(QueryResult { schema, batches })
}

/// Answers a query that has been resolved, as [`query`] does.
///
/// # Errors
/// As for [`query`]; what is outside the pipeline cannot be read here.
pub fn query_resolved(pipeline: &Pipeline, query: &Query) -> Result<QueryResult> {
    io()?.block_on(async {
        let (context, plan) = planned(pipeline, query).await?;
        let wrong = |e| from_datafusion(e, &query.span, None);
        let frame = context.execute_logical_plan(plan).await.map_err(wrong)?;
        let batches = frame.collect().await.map_err(wrong)?;
        let schema = match batches.first() {
            Some(batch) => batch.schema(),
            None => columns(pipeline, query).await?,
        };
        Ok(QueryResult { schema, batches })
    })
}

/// The columns of what [`query_resolved`] answers.
///
/// # Errors
/// As for [`query_resolved`].
pub fn describe_resolved(pipeline: &Pipeline, query: &Query) -> Result<SchemaRef> {
    io()?.block_on(columns(pipeline, query))
}

async fn columns(pipeline: &Pipeline, query: &Query) -> Result<SchemaRef> {
    let (context, plan) = planned(pipeline, query).await?;
    let plan = context.state().optimize(&plan).map_err(|e| from_datafusion(e, &query.span, None))?;
    Ok(Arc::new(plan.schema().as_arrow().clone()))
}

async fn planned(pipeline: &Pipeline, query: &Query) -> Result<(SessionContext, LogicalPlan)> {
    let QueryBody::Frame(frame) = &query.body else {
        return Err(Error::internal("a query in SQL is answered as text"));
    };
    let mut tables: Vec<Arc<dyn TableProvider>> = Vec::with_capacity(query.relations.len());
    if !query.relations.is_empty() {
        let named: Vec<(TableName, String)> = query
            .relations
            .iter()
            .map(|relation| stored(pipeline, &relation.source).map_err(|e| e.at(&relation.span)))
            .collect::<Result<_>>()?;
        let lake = Lake::open(&pipeline.storage).await?;
        let (_, history) = EpochLog::load(&lake).await?;
        for (table, key) in named {
            tables.push(at_version(&lake, &table, history.versions.get(&key).copied()).await?);
        }
    }
    let context = session(false, &Settings::of(&pipeline.configuration)?)?;
    for (index, table) in tables.iter().enumerate() {
        context
            .register_table(TableReference::bare(name_of(index)), Arc::clone(table))
            .map_err(|e| Error::internal("a table cannot be registered").caused_by(e))?;
    }
    let plan = plan_frame(frame, &tables, &context.state(), &query.span, None)?;
    Ok((context, plan))
}

/// The table that holds a relation, and the key of its version in the epoch log.
fn stored(pipeline: &Pipeline, source: &RelationSource) -> Result<(TableName, String)> {
    match source {
        RelationSource::Dataset(name) => match pipeline.datasets.get(name) {
            Some(dataset) if dataset.kind == DatasetKind::TemporaryView => Err(view_not_stored(name)),
            _ => Ok((name.clone(), name.to_string())),
        },
        RelationSource::Quarantine(name) => Ok((name.quarantine(), format!("{name} quarantine"))),
        RelationSource::External { name, .. } => {
            Err(Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("the pipeline has no table {name}")))
        }
        RelationSource::Files(_) => {
            Err(Error::user("NOT_SUPPORTED", "reading files outside of a flow is not supported yet")
                .help("declare a table that reads them, and read that"))
        }
    }
}

fn view_not_stored(name: &TableName) -> Error {
    Error::user("VIEW_NOT_STORED", format!("{name} is a temporary view, which is not stored"))
        .help("query a table that reads it")
}

/// A table as a complete epoch left it. One that no epoch has changed is as it was made: empty.
async fn at_version(lake: &Lake, table: &TableName, version: Option<i64>) -> Result<Arc<dyn TableProvider>> {
    let missing =
        || Error::user("TABLE_NOT_THERE", format!("{table} has not been made yet")).help("run the pipeline first");
    tables::provider(lake, &lake.table_location(table), Some(version.unwrap_or(0))).await?.ok_or_else(missing)
}

/// Whether it is `SHOW FUNCTIONS`, and which ones.
fn asks_for_functions(sql: &str) -> Result<Option<Option<String>>> {
    let wanted =
        Regex::new(r#"(?is)^\s*show\s+(?:all\s+)?functions(?:\s+(?:like\s+)?(?:'([^']*)'|"([^"]*)"|(\w+)))?\s*;?\s*$"#)
            .map_err(|e| Error::internal("a pattern of ours").caused_by(e))?;
    let Some(found) = wanted.captures(sql) else { return Ok(None) };
    Ok(Some(found.iter().skip(1).flatten().next().map(|pattern| pattern.as_str().to_owned())))
}

/// What `SHOW FUNCTIONS` answers; a pattern has `*` for any text, and `|` between several.
fn functions(pattern: Option<&str>) -> Result<QueryResult> {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("function", DataType::Utf8, false)]));
    let names: ArrayRef = Arc::new(StringArray::from(chosen(function_names(), pattern)?));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![names])
        .map_err(|e| Error::internal("the names of functions").caused_by(e))?;
    Ok(QueryResult { schema, batches: vec![batch] })
}

/// The names that a pattern fits: `*` is any text, `|` stands between several, and case does not count.
///
/// # Errors
/// A pattern that is none (user).
pub(crate) fn chosen(mut names: Vec<String>, pattern: Option<&str>) -> Result<Vec<String>> {
    names.sort();
    names.dedup();
    let Some(pattern) = pattern else { return Ok(names) };
    let branches = pattern.split('|').map(|branch| regex::escape(branch.trim()).replace("\\*", ".*"));
    let expression = format!("^(?:{})$", branches.collect::<Vec<_>>().join("|"));
    let fits = RegexBuilder::new(&expression)
        .case_insensitive(true)
        .build()
        .map_err(|_| Error::user("INVALID_PATTERN", format!("{} is no pattern of names", pattern.escape_debug())))?;
    names.retain(|name| fits.is_match(name));
    Ok(names)
}

fn name_of(index: usize) -> String {
    format!("${index}")
}

/// Replaces the names of tables by numbers.
struct Relations<'a> {
    pipeline: &'a Pipeline,
    ctes: BTreeSet<String>,
    /// Tables, and the keys of their versions in the epoch log.
    found: Vec<(TableName, String)>,
    unknown: Option<Error>,
}

impl Relations<'_> {
    fn tables(&self) -> BTreeMap<TableName, String> {
        let mut tables = BTreeMap::new();
        for dataset in self.pipeline.datasets.values().filter(|d| d.kind != DatasetKind::TemporaryView) {
            tables.insert(dataset.name.clone(), dataset.name.to_string());
            let quarantine = dataset.name.quarantine();
            if dataset.quarantines() && !self.pipeline.datasets.contains_key(&quarantine) {
                tables.insert(quarantine, quarantine_key(&dataset.name.to_string()));
            }
        }
        tables
    }

    fn resolve(&self, parts: &[&str]) -> Result<(TableName, String)> {
        let (catalog, schema) = (&self.pipeline.catalog, &self.pipeline.schema);
        let name = match parts {
            [table] => TableName::new(catalog, schema, *table),
            [schema, table] => TableName::new(catalog, *schema, *table),
            [catalog, schema, table] => TableName::new(*catalog, *schema, *table),
            _ => return Err(Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("{} is no table's name", parts.join(".")))),
        };
        let tables = self.tables();
        if let Some((name, key)) = tables.get_key_value(&name) {
            return Ok((name.clone(), key.clone()));
        }
        if self.pipeline.datasets.contains_key(&name) {
            return Err(view_not_stored(&name));
        }
        let error = Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("the pipeline has no table {}", parts.join(".")));
        let names: Vec<&str> = tables.keys().map(|t| t.table.as_str()).collect();
        Err(match near_miss(&name.table, names.iter().copied()) {
            Some(near) => error.help(format!("did you mean {near}?")),
            None => error.help(format!("its tables are {}", names.join(", "))),
        })
    }
}

impl VisitorMut for Relations<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        let names = query.with.iter().flat_map(|with| &with.cte_tables).map(|cte| cte.alias.name.value.to_lowercase());
        self.ctes.extend(names);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
        name_defaults(expr, &self.pipeline.catalog, &self.pipeline.schema);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return ControlFlow::Continue(()) };
        let parts: Vec<&str> = name.0.iter().filter_map(|p| p.as_ident().map(|i| i.value.as_str())).collect();
        if let [only] = parts.as_slice()
            && self.ctes.contains(&only.to_lowercase())
        {
            return ControlFlow::Continue(());
        }
        match self.resolve(&parts) {
            Ok(found) => {
                let index = self.found.iter().position(|known| *known == found).unwrap_or_else(|| {
                    self.found.push(found.clone());
                    self.found.len() - 1
                });
                if alias.is_none() {
                    let name = Ident::new(found.0.table);
                    *alias = Some(TableAlias { name, columns: Vec::new(), explicit: true, at: None });
                }
                *name = ObjectName::from(vec![Ident::with_quote('`', name_of(index))]);
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.unknown = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}
