//! Frames to DataFusion plans. Each operator's result has columns of its own, which know their name for users, what they
//! can be qualified with and which frames they have passed through; the plan below knows them by names that are unique.

mod generate;
mod join;
mod names;
mod shape;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DataFusionError, TableReference};
use datafusion::datasource::{MemTable, TableProvider, provider_as_source};
use datafusion::execution::SessionState;
use datafusion::functions::core::get_field;
use datafusion::logical_expr::utils::{find_aggregate_exprs, find_window_exprs};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, SortExpr, lit};
use datafusion::sql::sqlparser::ast;

use self::names::{Col, default_name, lookup, resolve};
use super::identifiers::fold;
use super::metadata::METADATA;
use super::query::{from_datafusion, plan_sql};
use super::syntax::read_as_spark;
use crate::error::{Error, Result, Span};
use crate::pipeline::frame::{Frame, FrameOp, Item, SortKey, column};
use crate::pipeline::{EPOCH_COLUMN, Source};

/// How deep operators may nest.
pub const DEPTH: usize = 400;

/// A frame's plan, before it is optimised. Relation `$n` is `tables[n]`.
///
/// # Errors
/// Names that mean nothing or several things, types that do not fit (user), at their place in `source`, else at `span`.
pub fn plan_frame(
    frame: &Frame,
    tables: &[Arc<dyn TableProvider>],
    state: &SessionState,
    span: &Span,
    source: Option<&Source>,
) -> Result<LogicalPlan> {
    let mut planner = FramePlanner { tables, state, span, source, rows: 0 };
    let built = planner.build(frame, DEPTH).map_err(|e| e.at(span))?;
    planner.finish(built).map_err(|e| e.at(span))
}

/// A plan and the columns of it that are the operator's result, in order.
struct Built {
    plan: LogicalPlan,
    cols: Vec<Col>,
}

struct FramePlanner<'a> {
    tables: &'a [Arc<dyn TableProvider>],
    state: &'a SessionState,
    span: &'a Span,
    source: Option<&'a Source>,
    /// Tables of rows that came with the query.
    rows: usize,
}

impl FramePlanner<'_> {
    fn wrong(&self, error: DataFusionError) -> Error {
        from_datafusion(error, self.span, self.source)
    }

    fn build(&mut self, frame: &Frame, depth: usize) -> Result<Built> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::user("NESTS_TOO_DEEP", format!("more than {DEPTH} operators upon one another")));
        };
        let mut built = match &frame.op {
            FrameOp::Read { relation, qualifiers } => self.read(*relation, qualifiers)?,
            FrameOp::Sql(query) => self.sql(query)?,
            FrameOp::Rows { schema, batches } => {
                let name = format!("$rows{}", self.rows);
                self.rows += 1;
                let table = MemTable::try_new(Arc::clone(schema), vec![batches.as_ref().clone()]);
                self.scan(&name, Arc::new(table.map_err(|e| self.wrong(e))?))?
            }
            FrameOp::Project(input, items) => {
                let input = self.build(input, depth)?;
                self.project(input, items)?
            }
            FrameOp::Filter(input, condition) => {
                let mut input = self.build(input, depth)?;
                let condition = self.expr(condition, &input)?;
                if !find_window_exprs([&condition]).is_empty() {
                    return Err(Error::user("INVALID_QUERY", "a filter cannot hold a window function")
                        .help("compute it in a column first"));
                }
                input.plan = self.made(LogicalPlanBuilder::from(input.plan).filter(condition))?;
                input
            }
            FrameOp::Join(join) => {
                let left = self.build(&join.left, depth)?;
                let right = self.build(&join.right, depth)?;
                self.join(join, left, right)?
            }
            FrameOp::Union { left, right, by_name, allow_missing } => {
                let left = self.build(left, depth)?;
                let right = self.build(right, depth)?;
                self.union(left, right, *by_name, *allow_missing)?
            }
            FrameOp::Compare { left, right, intersect, all } => {
                let left = self.build(left, depth)?;
                let right = self.build(right, depth)?;
                let (left, right) = (self.normal(left, &BTreeSet::new())?, self.normal(right, &BTreeSet::new())?);
                if left.cols.len() != right.cols.len() {
                    return Err(columns_differ(left.cols.len(), right.cols.len()));
                }
                let cols = left.cols;
                let plan = if *intersect {
                    LogicalPlanBuilder::intersect(left.plan, right.plan, *all)
                } else {
                    LogicalPlanBuilder::except(left.plan, right.plan, *all)
                };
                Built { plan: plan.map_err(|e| self.wrong(e))?, cols: fresh(cols) }
            }
            FrameOp::Sort(input, keys) => {
                let input = self.build(input, depth)?;
                self.sort(input, keys)?
            }
            FrameOp::Limit { input, skip, fetch } => {
                let mut input = self.build(input, depth)?;
                input.plan = self.made(LogicalPlanBuilder::from(input.plan).limit(*skip, *fetch))?;
                input
            }
            FrameOp::Aggregate { input, keys, aggregates } => {
                let input = self.build(input, depth)?;
                self.aggregate(input, keys, aggregates)?
            }
            FrameOp::Distinct(input, columns) => {
                let input = self.build(input, depth)?;
                self.distinct(input, columns.as_deref())?
            }
            FrameOp::Alias(input, alias) => {
                let mut input = self.build(input, depth)?;
                for col in &mut input.cols {
                    col.qualifiers = vec![vec![alias.clone()]];
                }
                input
            }
            FrameOp::WithColumns(input, columns) => {
                let input = self.build(input, depth)?;
                self.with_columns(input, columns)?
            }
            FrameOp::Rename(input, names) => {
                let mut input = self.build(input, depth)?;
                for (old, new) in names {
                    for col in input.cols.iter_mut().filter(|col| col.named(old)) {
                        *col = Col::new(col.internal.clone(), new);
                    }
                }
                input
            }
            FrameOp::Names(input, names) => {
                let mut input = self.build(input, depth)?;
                input.cols.retain(|col| !col.hidden);
                if input.cols.len() != names.len() {
                    let message = format!("toDF gives {} names to {} columns", names.len(), input.cols.len());
                    return Err(Error::user("ASSIGNMENT_ARITY_MISMATCH", message));
                }
                input.cols = input.cols.iter().zip(names).map(|(col, name)| Col::new(&col.internal, name)).collect();
                input
            }
            FrameOp::Drop(input, names, exprs) => {
                let mut input = self.build(input, depth)?;
                let mut gone: Vec<String> = Vec::new();
                for expr in exprs {
                    // What is not there needs no leaving out.
                    if let Some(parts) = parts_of(expr)
                        && let Ok((col, _)) = lookup(&parts, &input.cols)
                    {
                        gone.push(col.internal.clone());
                    }
                }
                input.cols.retain(|col| !names.iter().any(|name| col.named(name)) && !gone.contains(&col.internal));
                input
            }
            FrameOp::Conform(input, schema) => {
                let input = self.build(input, depth)?;
                self.conform(input, schema)?
            }
            FrameOp::FillNull { input, columns, values } => {
                let input = self.build(input, depth)?;
                self.fill(input, columns, values)?
            }
            FrameOp::DropNull { input, columns, at_least } => {
                let input = self.build(input, depth)?;
                self.drop_null(input, columns, *at_least)?
            }
            FrameOp::Replace { input, columns, values } => {
                let input = self.build(input, depth)?;
                self.replace(input, columns, values)?
            }
            FrameOp::Unpivot { input, ids, values, variable, value } => {
                let input = self.build(input, depth)?;
                self.unpivot(input, ids, values.as_deref(), variable, value)?
            }
        };
        if let Some(id) = frame.id {
            built.cols.iter_mut().for_each(|col| col.frames.push(id));
        }
        Ok(built)
    }

    fn made(&self, builder: datafusion::common::Result<LogicalPlanBuilder>) -> Result<LogicalPlan> {
        builder.and_then(LogicalPlanBuilder::build).map_err(|e| self.wrong(e))
    }

    /// The result with the names that users know, each of which can stand only once.
    fn finish(&self, built: Built) -> Result<LogicalPlan> {
        let cols: Vec<Col> = built.cols.into_iter().filter(|col| !col.hidden).collect();
        let mut seen = BTreeSet::new();
        if let Some(twice) = cols.iter().find(|col| !seen.insert(col.name.to_lowercase())) {
            let message = format!("column {} stands twice in the result", twice.name);
            return Err(Error::user("COLUMN_ALREADY_EXISTS", message).help("rename or drop one of the two"));
        }
        let exprs = cols.iter().map(|col| internal(&col.internal).alias(&col.name));
        self.made(LogicalPlanBuilder::from(built.plan).project(exprs.collect::<Vec<_>>()))
    }

    fn read(&self, relation: usize, qualifiers: &[Vec<String>]) -> Result<Built> {
        let table = self.tables.get(relation).ok_or_else(|| Error::internal("a frame reads an unknown relation"))?;
        let mut built = self.scan(&format!("${relation}"), Arc::clone(table))?;
        for col in &mut built.cols {
            col.qualifiers = qualifiers.to_vec();
            col.hidden = [METADATA, EPOCH_COLUMN].contains(&col.name.as_str());
        }
        Ok(built)
    }

    /// All columns of a table, without the table's name.
    fn scan(&self, name: &str, table: Arc<dyn TableProvider>) -> Result<Built> {
        let name = TableReference::bare(name);
        let schema = table.schema();
        let scan =
            LogicalPlanBuilder::scan(name.clone(), provider_as_source(table), None).map_err(|e| self.wrong(e))?;
        let columns = schema
            .fields()
            .iter()
            .map(|field| Expr::Column(Column::new(Some(name.clone()), field.name())).alias(field.name()));
        let plan = self.made(scan.project(columns.collect::<Vec<_>>()))?;
        Ok(Built { plan, cols: schema.fields().iter().map(|field| Col::new(field.name(), field.name())).collect() })
    }

    fn sql(&self, query: &ast::Query) -> Result<Built> {
        let schemas: Vec<_> = self.tables.iter().map(|table| table.schema()).collect();
        let plan = plan_sql(query, &schemas, self.state, self.span, None)?;
        let columns: Vec<(Expr, String)> =
            plan.schema().columns().into_iter().map(|c| (Expr::Column(c.clone()), c.name)).collect();
        let mut seen = BTreeSet::new();
        let mut exprs = Vec::with_capacity(columns.len());
        let mut cols = Vec::with_capacity(columns.len());
        for (expr, name) in columns {
            let unique = unique(&name, &mut seen);
            exprs.push(expr.alias(&unique));
            cols.push(Col::new(unique, name));
        }
        Ok(Built { plan: self.made(LogicalPlanBuilder::from(plan).project(exprs))?, cols })
    }

    /// The expression with the names that the plan knows; a mistake is told where it stands.
    fn resolve(&self, expr: &ast::Expr, cols: &[Col]) -> Result<ast::Expr> {
        resolve(expr, cols).map_err(|(error, at)| match self.source.filter(|_| at.start.line > 0) {
            Some(source) => error.at(&source.span(at)),
            None => error,
        })
    }

    /// An expression over the columns of an operator's result.
    fn expr(&self, expr: &ast::Expr, over: &Built) -> Result<Expr> {
        let mut expr = self.resolve(expr, &over.cols)?;
        fold(&mut expr, &[Arc::new(over.plan.schema().as_arrow().clone())]);
        read_as_spark(&mut expr);
        self.state
            .create_logical_expr_from_sql_expr(ast::ExprWithAlias { expr, alias: None }, over.plan.schema())
            .map_err(|e| self.wrong(e))
    }

    fn star<'b>(&self, over: &'b Built, qualifier: Option<&[String]>, frame: Option<i64>) -> Result<Vec<&'b Col>> {
        let cols = over.cols.iter().filter(|col| {
            !col.hidden
                && qualifier.is_none_or(|qualifier| col.qualified(qualifier))
                && frame.is_none_or(|frame| col.frames.contains(&frame))
        });
        let cols: Vec<&Col> = cols.collect();
        match qualifier {
            Some(qualifier) if cols.is_empty() => {
                let message = format!("nothing is called {}, so that {0}.* is empty", qualifier.join("."));
                Err(Error::user("CANNOT_RESOLVE_STAR_EXPAND", message))
            }
            _ => Ok(cols),
        }
    }

    /// The members of a struct, `None` where `path` is none.
    fn members(&self, over: &Built, path: &[String]) -> Option<Vec<(String, Expr)>> {
        let structure = self.expr(&column(path, None), over).ok()?;
        let DataType::Struct(fields) = structure.get_type(over.plan.schema()).ok()? else { return None };
        let member = |field: &FieldRef| {
            let name = field.name().clone();
            (name.clone(), get_field().call(vec![structure.clone(), lit(name)]))
        };
        Some(fields.iter().map(member).collect())
    }

    fn project(&self, input: Built, items: &[Item]) -> Result<Built> {
        if items.iter().any(generate::is_generator) {
            return self.generate(input, items);
        }
        let mut cols: Vec<Col> = Vec::new();
        // What is computed, each with its place among the columns.
        let mut computed: Vec<(usize, Expr)> = Vec::new();
        for item in items {
            match item {
                Item::Star { qualifier, frame } => match (self.star(&input, qualifier.as_deref(), *frame), qualifier) {
                    (Ok(found), _) => cols.extend(found.into_iter().cloned()),
                    (Err(error), Some(path)) => {
                        for (name, expr) in self.members(&input, path).ok_or(error)? {
                            computed.push((cols.len(), expr));
                            cols.push(Col::new("", name));
                        }
                    }
                    (Err(error), None) => return Err(error),
                },
                Item::Rows(..) => return Err(Error::internal("a generator was passed over")),
                Item::Expr(expr, name) => {
                    if let Some(parts) = parts_of(expr)
                        && let Ok((col, taken)) = lookup(&parts, &input.cols)
                        && taken == parts.len()
                    {
                        cols.push(match name {
                            None => Col { hidden: false, ..col.clone() },
                            Some(name) => Col::new(&col.internal, name),
                        });
                        continue;
                    }
                    let name = name.clone().unwrap_or_else(|| default_name(expr));
                    computed.push((cols.len(), self.expr(expr, &input)?));
                    cols.push(Col::new("", name));
                }
            }
        }
        if !find_aggregate_exprs(computed.iter().map(|(_, expr)| expr)).is_empty() {
            return self.aggregate(input, &[], items);
        }
        self.computed(input, cols, computed)
    }

    /// Columns of which some are computed from the input; `cols` are in the order of the result.
    fn computed(&self, input: Built, mut cols: Vec<Col>, computed: Vec<(usize, Expr)>) -> Result<Built> {
        if computed.is_empty() {
            return Ok(Built { plan: input.plan, cols });
        }
        let windows = find_window_exprs(computed.iter().map(|(_, expr)| expr));
        let mut plan = input.plan;
        if !windows.is_empty() {
            plan = LogicalPlanBuilder::window_plan(plan, windows.clone()).map_err(|e| self.wrong(e))?;
        }
        let mut kept: BTreeSet<String> = BTreeSet::new();
        let mut exprs = Vec::with_capacity(cols.len());
        for (at, col) in cols.iter().enumerate() {
            if !computed.iter().any(|(place, _)| *place == at) && kept.insert(col.internal.to_lowercase()) {
                exprs.push(internal(&col.internal));
            }
        }
        for (at, expr) in computed {
            let Some(col) = cols.get_mut(at) else { continue };
            col.internal = unique(&col.name, &mut kept);
            exprs.push(replaced(expr, &windows).map_err(|e| self.wrong(e))?.alias(&col.internal));
        }
        Ok(Built { plan: self.made(LogicalPlanBuilder::from(plan).project(exprs))?, cols })
    }

    fn with_columns(&self, input: Built, columns: &[(String, ast::Expr)]) -> Result<Built> {
        let mut cols: Vec<Col> = input.cols.clone();
        let mut computed: Vec<(usize, Expr)> = Vec::new();
        if let Some(items) = generate::beside(&input, columns) {
            return self.generate(input, &items);
        }
        let mut seen = BTreeSet::new();
        for (name, expr) in columns {
            if !seen.insert(name.to_lowercase()) {
                return Err(Error::user("COLUMN_ALREADY_EXISTS", format!("withColumns gives {name} twice")));
            }
            let value = self.expr(expr, &input)?;
            let places: Vec<usize> =
                cols.iter().enumerate().filter(|(_, col)| col.named(name)).map(|(at, _)| at).collect();
            if places.is_empty() {
                computed.push((cols.len(), value));
                cols.push(Col::new("", name));
                continue;
            }
            for at in places {
                if let Some(col) = cols.get_mut(at) {
                    *col = Col::new("", name);
                }
                computed.push((at, value.clone()));
            }
        }
        self.computed(input, cols, computed)
    }

    fn aggregate(&self, input: Built, keys: &[Item], aggregates: &[Item]) -> Result<Built> {
        let mut cols: Vec<Col> = Vec::new();
        let mut groups: Vec<Expr> = Vec::new();
        let mut results: Vec<Expr> = Vec::new();
        for item in keys {
            let Item::Expr(expr, name) = item else {
                return Err(Error::user("NOT_SUPPORTED", "a star as a key of a group is not supported yet"));
            };
            let value = self.expr(expr, &input)?;
            let known = parts_of(expr).and_then(|parts| lookup(&parts, &input.cols).ok());
            cols.push(match (known, name) {
                (Some((col, _)), None) => col.clone(),
                (_, name) => Col::new("", name.clone().unwrap_or_else(|| default_name(expr))),
            });
            groups.push(value.clone());
            results.push(value);
        }
        for item in aggregates {
            let Item::Expr(expr, name) = item else {
                return Err(Error::user("NOT_SUPPORTED", "a star among aggregates is not supported yet"));
            };
            cols.push(Col::new("", name.clone().unwrap_or_else(|| default_name(expr))));
            results.push(self.expr(expr, &input)?);
        }
        let functions = find_aggregate_exprs(&results);
        let plan = self.made(LogicalPlanBuilder::from(input.plan).aggregate(groups.clone(), functions.clone()))?;
        let known: Vec<Expr> = groups.into_iter().chain(functions).collect();
        let mut seen = BTreeSet::new();
        let mut exprs = Vec::with_capacity(results.len());
        for (col, expr) in cols.iter_mut().zip(results) {
            let result = replaced(expr, &known).map_err(|e| self.wrong(e))?;
            if let Some(free) = result.column_refs().into_iter().find(|c| plan.schema().index_of_column(c).is_err()) {
                let message = format!("column {} is neither a key of the groups nor in an aggregate", free.name);
                return Err(
                    Error::user("MISSING_AGGREGATION", message).help("add it to groupBy, or wrap it in first()")
                );
            }
            col.internal = unique(&col.name, &mut seen);
            exprs.push(result.alias(&col.internal));
        }
        Ok(Built { plan: self.made(LogicalPlanBuilder::from(plan).project(exprs))?, cols })
    }

    fn sort(&self, mut input: Built, keys: &[SortKey]) -> Result<Built> {
        let mut sorts = Vec::with_capacity(keys.len());
        for key in keys {
            let expr = self.expr(&key.expr, &input)?;
            sorts.push(SortExpr { expr, asc: key.ascending, nulls_first: key.nulls_first });
        }
        input.plan = self.made(LogicalPlanBuilder::from(input.plan).sort(sorts))?;
        Ok(input)
    }

    /// A plan that has exactly the columns, each with a name that is not among `taken`.
    fn normal(&self, built: Built, taken: &BTreeSet<String>) -> Result<Built> {
        let mut seen = taken.clone();
        let mut cols = built.cols;
        let mut exprs = Vec::with_capacity(cols.len());
        for col in &mut cols {
            let before = internal(&col.internal);
            col.internal = unique(&col.name, &mut seen);
            exprs.push(before.alias(&col.internal));
        }
        Ok(Built { plan: self.made(LogicalPlanBuilder::from(built.plan).project(exprs))?, cols })
    }

    /// A call over columns by the names that the plan knows them by.
    fn over_internal(&self, function: &str, columns: &[&str], plan: &LogicalPlan) -> Result<Expr> {
        let cols = columns.iter().map(|name| Col::new(*name, *name)).collect();
        let arguments = columns.iter().map(|name| crate::pipeline::frame::column(&[(*name).to_owned()], None));
        let call = super::syntax::call(function, arguments.collect());
        self.expr(&call, &Built { plan: plan.clone(), cols })
    }
}

fn columns_differ(left: usize, right: usize) -> Error {
    Error::user("NUM_COLUMNS_MISMATCH", format!("one side has {left} columns and the other {right}"))
}

/// A column of the plan.
fn internal(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

/// Columns behind an operator that makes rows anew.
fn fresh(cols: Vec<Col>) -> Vec<Col> {
    cols.into_iter().map(|col| Col::new(col.internal, col.name)).collect()
}

/// A name that is not among `taken`, and is then.
fn unique(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut candidate = name.to_owned();
    let mut number = 2;
    while !taken.insert(candidate.to_lowercase()) {
        candidate = format!("{name}#{number}");
        number += 1;
    }
    candidate
}

/// `expr` with each part that an operator below has computed as that operator's column.
fn replaced(expr: Expr, known: &[Expr]) -> datafusion::common::Result<Expr> {
    let done = expr.transform_down(|e| {
        if known.contains(&e) && !matches!(e, Expr::Column(_)) {
            let column = Expr::Column(Column::new_unqualified(e.schema_name().to_string()));
            return Ok(Transformed::yes(column));
        }
        Ok(Transformed::no(e))
    })?;
    Ok(done.data)
}

/// The parts of a name, if that is all that the expression is.
fn parts_of(expr: &ast::Expr) -> Option<Vec<String>> {
    match expr {
        ast::Expr::Identifier(ident) => Some(vec![ident.value.clone()]),
        ast::Expr::CompoundIdentifier(idents) => Some(idents.iter().map(|ident| ident.value.clone()).collect()),
        _ => None,
    }
}
