//! A declared query as an optimised DataFusion plan, and DataFusion's errors as ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, DataFusionError, SchemaError, TableReference};
use datafusion::datasource::TableProvider;
use datafusion::datasource::empty::EmptyTable;
use datafusion::execution::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};

use super::frame::plan_frame;
use super::functions::{self, Settings};
use super::generate::lift_generators;
use super::identifiers::fold;
use super::lateral;
use super::metadata::{METADATA, hide_from_wildcards};
use super::stars::expand_stars;
use super::syntax::read_as_spark;
use super::wording::{code_of, in_spark_terms};
use crate::error::{Error, Result, Span};
use crate::pipeline::frame::{Frame, FrameOp};
use crate::pipeline::{EPOCH_COLUMN, Query, QueryBody, Source, near_miss};
use crate::sql::GENERATORS;

/// The session in which a pipeline's queries are planned, and the definition files for places in messages.
pub(super) struct Planner<'a> {
    pub(super) session: SessionContext,
    pub(super) settings: Settings,
    pub(super) sources: &'a BTreeMap<String, Arc<Source>>,
}

impl Planner<'_> {
    /// The file in which a span lies.
    pub(super) fn source(&self, span: &Span) -> Option<&Source> {
        self.sources.get(&span.file).map(Arc::as_ref)
    }
}

/// Plans `query`, whose relation `$n` has the columns `schemas[n]`.
pub(super) fn plan_query(planner: &Planner<'_>, query: &Query, schemas: &[SchemaRef]) -> Result<LogicalPlan> {
    let session = &planner.session;
    let wrong = |e| from_datafusion(e, &query.span, planner.source(&query.span));
    let ast = match &query.body {
        QueryBody::Sql(ast) => ast,
        QueryBody::Frame(frame) => {
            if has_rows(frame) {
                let message = "a flow cannot hold rows that Python made (createDataFrame, range)";
                return Err(Error::user("NOT_SUPPORTED", message)
                    .at(&query.span)
                    .help("put them into a file and read it"));
            }
            let tables: Vec<Arc<dyn TableProvider>> = schemas
                .iter()
                .map(|schema| Arc::new(EmptyTable::new(Arc::clone(schema))) as Arc<dyn TableProvider>)
                .collect();
            register(session, &tables).map_err(wrong)?;
            let state = session.state();
            let plan = plan_frame(frame, &tables, &state, &query.span, planner.source(&query.span))?;
            return state.optimize(&plan).map_err(wrong);
        }
    };
    let tables: Vec<Arc<dyn TableProvider>> =
        schemas.iter().map(|schema| Arc::new(EmptyTable::new(Arc::clone(schema))) as Arc<dyn TableProvider>).collect();
    register(session, &tables).map_err(wrong)?;
    let state = session.state();
    let plan = plan_sql(ast, schemas, &state, &query.span, planner.source(&query.span))?;
    state.optimize(&plan).map_err(wrong)
}

/// Plans a query in SQL, whose relation `$n` has the columns `schemas[n]` and is known to the session.
///
/// # Errors
/// Names that mean nothing or several things, types that do not fit (user), at their place in `source`, else at `span`.
pub fn plan_sql(
    query: &ast::Query,
    schemas: &[SchemaRef],
    state: &SessionState,
    span: &Span,
    source: Option<&Source>,
) -> Result<LogicalPlan> {
    let wrong = |e| from_datafusion(e, span, source);
    let mut ast = query.clone();
    for hidden in [METADATA, EPOCH_COLUMN] {
        let with: Vec<String> = schemas
            .iter()
            .enumerate()
            .filter(|(_, schema)| match hidden {
                // A column of that name is a user's own anywhere else.
                METADATA => schema.fields().last().is_some_and(|f| f.name() == hidden),
                _ => schema.column_with_name(hidden).is_some(),
            })
            .map(|(index, _)| format!("${index}"))
            .collect();
        if !with.is_empty() {
            hide_from_wildcards(&mut ast, &with, hidden);
        }
    }
    lift_generators(&mut ast, source).map_err(|e| e.at(span))?;
    expand_stars(&mut ast, schemas).map_err(|e| e.at(span))?;
    fold(&mut ast, schemas);
    let mut attempts = 0;
    loop {
        let mut spelled = ast.clone();
        read_as_spark(&mut spelled);
        let statement = Statement::Statement(Box::new(ast::Statement::Query(Box::new(spelled))));
        match futures::executor::block_on(state.statement_to_plan(statement)) {
            Ok(plan) => return Ok(plan),
            // A name that is no column may be one of the same select list.
            Err(error) if attempts < LATERAL => match missing(&error) {
                Some((name, at)) if lateral::resolve(&mut ast, &name, at) => attempts += 1,
                _ => return Err(wrong(error)),
            },
            Err(error) => return Err(wrong(error)),
        }
    }
}

/// Makes `tables[n]` known as `$n`.
fn register(session: &SessionContext, tables: &[Arc<dyn TableProvider>]) -> datafusion::common::Result<()> {
    for (index, table) in tables.iter().enumerate() {
        let name = TableReference::bare(format!("${index}"));
        session.deregister_table(name.clone())?;
        session.register_table(name, Arc::clone(table))?;
    }
    Ok(())
}

fn has_rows(frame: &Frame) -> bool {
    matches!(frame.op, FrameOp::Rows { .. }) || frame.inputs().into_iter().any(has_rows)
}

/// How many references to names of the same select list a query may have.
const LATERAL: usize = 64;

/// The column that is missing, and where it is named.
fn missing(error: &DataFusionError) -> Option<(String, Location)> {
    let DataFusionError::SchemaError(found, _) = error.find_root() else { return None };
    let SchemaError::FieldNotFound { field, .. } = found.as_ref() else { return None };
    let at = error.diagnostic()?.span?.start;
    (field.relation.is_none() && at.line > 0)
        .then(|| (field.name.clone(), Location { line: at.line, column: at.column }))
}

/// Plans an expression over the columns of one relation, with types coerced. `alias` qualifies them, as in `orders.id`.
pub(super) fn plan_expr(
    planner: &Planner<'_>,
    expr: &ast::Expr,
    schema: &SchemaRef,
    alias: &str,
    span: &Span,
) -> Result<(Expr, DFSchema, DataType)> {
    let wrong = |e| from_datafusion(e, span, planner.source(span));
    let mut expr = expr.clone();
    fold(&mut expr, std::slice::from_ref(schema));
    read_as_spark(&mut expr);
    let columns = DFSchema::try_from_qualified_schema(TableReference::bare(alias), schema).map_err(wrong)?;
    let state = planner.session.state();
    let mut expr =
        state.create_logical_expr_from_sql_expr(ast::ExprWithAlias { expr, alias: None }, &columns).map_err(wrong)?;
    let aggregate = |e: &Expr| Ok(matches!(e, Expr::AggregateFunction(_) | Expr::WindowFunction(_)));
    if expr.exists(aggregate).map_err(wrong)? {
        return Err(Error::user("NOT_SUPPORTED", "a condition judges one row; an aggregate is over many").at(span));
    }
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(columns.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .build();
    for rewrite in state.analyzer().function_rewrites() {
        expr = expr.transform_up(|e| rewrite.rewrite(e, &columns, state.config_options())).map_err(wrong)?.data;
    }
    // Some functions exist only in the form that simplification gives them.
    let simplifier = ExprSimplifier::new(context);
    let expr = simplifier.coerce(expr, &columns).and_then(|e| simplifier.simplify(e)).map_err(wrong)?;
    let data_type = expr.get_type(&columns).map_err(wrong)?;
    Ok((expr, columns, data_type))
}

/// Spark's functions over several rows that are not here.
#[rustfmt::skip]
const AGGREGATES: [(&[&str], &str); 2] = [
    (&["window", "session_window", "window_time"], "a window of time"),
    (
        &[
            "any_value", "approx_count_distinct", "approx_percentile", "array_agg", "bit_and", "bit_or", "bit_xor",
            "bitmap_construct_agg", "bitmap_or_agg", "collect_list", "collect_set", "corr", "count_min_sketch",
            "covar_pop", "covar_samp", "first", "first_value", "grouping", "grouping_id", "histogram_numeric",
            "hll_sketch_agg", "hll_union_agg", "kurtosis", "last", "last_value", "listagg", "max_by", "median", "min_by",
            "mode", "percentile", "percentile_approx", "percentile_cont", "percentile_disc", "product", "regr_avgx",
            "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy",
            "schema_of_json_agg", "skewness", "some", "std", "stddev", "stddev_pop", "stddev_samp", "string_agg",
            "sum_distinct", "try_avg", "try_sum", "var_pop", "var_samp", "variance",
        ],
        "an aggregate",
    ),
];

/// Spark's functions whose values follow from no input.
const VOLATILE: [&str; 9] = [
    "uuid",
    "rand",
    "random",
    "randn",
    "randstr",
    "uniform",
    "shuffle",
    "monotonically_increasing_id",
    "spark_partition_id",
];

/// Spark's functions whose values are the user's name.
const WHO: [&str; 3] = ["current_user", "session_user", "user"];

fn shown(column: &Column) -> String {
    column.name.clone()
}

/// An error of the planner as ours, with the place in the definition where the planner tells it.
pub fn from_datafusion(error: DataFusionError, span: &Span, source: Option<&Source>) -> Error {
    let place = error.diagnostic().and_then(|d| d.span).zip(source).filter(|(at, _)| at.start.line > 0).map_or_else(
        || span.clone(),
        |(at, source)| {
            let location = |l: datafusion::common::Location| Location { line: l.line, column: l.column };
            source.span(AstSpan { start: location(at.start), end: location(at.end) })
        },
    );
    let root = error.find_root();
    let planned = match root {
        DataFusionError::SchemaError(schema_error, _) => match schema_error.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let names: Vec<String> = valid_fields.iter().map(shown).collect();
                let wanted = shown(field);
                let mut error = Error::user("UNKNOWN_COLUMN", format!("there is no column {wanted}"));
                error = match near_miss(&wanted, names.iter().map(String::as_str)) {
                    Some(near) => error.help(format!("did you mean {near}?")),
                    None => error.help(format!("the columns are {}", names.join(", "))),
                };
                error
            }
            SchemaError::AmbiguousReference { field } => {
                Error::user("AMBIGUOUS_COLUMN", format!("column {} stands in more than one relation", shown(field)))
                    .help("qualify it with the relation's name")
            }
            other => Error::user("INVALID_QUERY", in_spark_terms(&other.to_string())),
        },
        // Some messages end in a dump of the planner's own types.
        DataFusionError::NotImplemented(message) if message.contains("ScalarSubquery") => {
            Error::user("NOT_SUPPORTED", "a scalar subquery is not supported yet")
                .help("LEFT JOIN the query on its key, and select the column")
        }
        DataFusionError::NotImplemented(message)
            if message.contains("logical expression InSubquery") || message.contains("logical expression Exists") =>
        {
            Error::user("NOT_SUPPORTED", "IN and EXISTS with a query are conditions of WHERE, and no values")
                .help("LEFT JOIN the query on its key, and ask whether its column IS NOT NULL")
        }
        DataFusionError::NotImplemented(message) if message.contains("sqltorel: Lambda") => {
            Error::user("NOT_SUPPORTED", "a function that takes no lambda is given one")
                .help("docs/functions.md has the functions, and which of them take lambdas")
        }
        DataFusionError::NotImplemented(message) => {
            let said = message.split(" { ").next().unwrap_or(message);
            Error::user("NOT_SUPPORTED", in_spark_terms(said.trim_end()))
        }
        DataFusionError::Plan(message) | DataFusionError::Execution(message)
            if message.starts_with("Invalid function") =>
        {
            let mut lines = message.lines();
            let first = lines.next().unwrap_or_default();
            let name = first.split('\'').nth(1).unwrap_or_default();
            if GENERATORS.contains(&name) {
                let message = format!("{name} stands by itself in a select list, behind LATERAL VIEW or in FROM");
                return Error::user("UNSUPPORTED_GENERATOR", message).at(&place);
            }
            if let Some(what) = AGGREGATES.iter().find_map(|(names, what)| names.contains(&name).then_some(what)) {
                let message = format!("{name} is {what}, which is not supported yet");
                return Error::user("NOT_SUPPORTED", message)
                    .help("docs/functions.md has what rows can be aggregated by")
                    .at(&place);
            }
            if VOLATILE.contains(&name) {
                let message = format!("{name} gives another value each time, so that a table could never be rebuilt");
                return Error::user("NOT_SUPPORTED", message).at(&place);
            }
            if WHO.contains(&name) {
                let message = format!("{name} gives who runs the pipeline, and a table is the same whoever runs it");
                return Error::user("NOT_SUPPORTED", message).at(&place);
            }
            let mut error = Error::user("UNKNOWN_FUNCTION", format!("there is no function {name}"));
            let names = functions::all_names();
            match near_miss(name, names.iter().map(String::as_str)) {
                Some(near) => error = error.help(format!("did you mean {near}?")),
                None => error = error.help("SHOW FUNCTIONS in `silverflow query` lists all there are"),
            }
            error
        }
        DataFusionError::Plan(message) if message.contains("Invalid interval arithmetic operation") => {
            Error::user("NOT_SUPPORTED", "an interval is multiplied by a whole number that is written out")
                .help("timestampadd(DAY, n, at) adds as many days as a column says")
        }
        DataFusionError::Plan(message)
            if message.starts_with("Source table contains") && message.contains("column alias") =>
        {
            Error::user("COLUMN_COUNT", "there are not as many names as columns")
        }
        DataFusionError::Plan(message) if message.starts_with("Projections require unique expression names") => {
            Error::user("DUPLICATE_COLUMN", "two columns of a select list have the same name")
                .help("give one of them a name: … AS name")
        }
        DataFusionError::Plan(message)
            if message.contains("must be in GROUP BY") || message.contains("must appear in the GROUP BY") =>
        {
            Error::user(
                "MISSING_GROUP_BY",
                "a column beside an aggregate is neither a key of GROUP BY nor in an aggregate",
            )
            .help("add it to GROUP BY, or take any of its values: first_value(…)")
        }
        DataFusionError::Plan(message) | DataFusionError::Execution(message) => {
            Error::user(code_of(message), in_spark_terms(message))
        }
        DataFusionError::Internal(message) => Error::internal(message.clone()),
        other => {
            let message = other.strip_backtrace();
            Error::user(code_of(&message), in_spark_terms(&message))
        }
    };
    planned.at(&place)
}
