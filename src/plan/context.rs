//! The DataFusion session in which queries are planned: Spark's functions over DataFusion's, the names of the clock, and
//! the options that Spark's SQL needs.

use std::sync::Arc;

use datafusion::config::Dialect;
use datafusion::execution::FunctionRegistry;
use datafusion::execution::SessionStateBuilder;
use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::eliminate_duplicated_expr::EliminateDuplicatedExpr;
use datafusion::optimizer::eliminate_outer_join::EliminateOuterJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::rewrite_set_comparison::RewriteSetComparison;
use datafusion::optimizer::simplify_expressions::SimplifyExpressions;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::clock::clock_functions;
use super::functions::{self, Settings};
use super::generate::Generate;
use super::spark::{SparkAccess, SparkMeaning, SparkTypes};
use crate::error::{Error, Result};

/// How queries are read and evaluated.
pub(super) fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_information_schema(false);
    {
        let options = config.options_mut();
        options.sql_parser.dialect = Dialect::Databricks;
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        options.sql_parser.collect_spans = true;
        options.sql_parser.parse_float_as_decimal = true;
        options.sql_parser.default_null_ordering = "nulls_min".to_owned();
        options.execution.parquet.schema_force_view_types = false;
        options.execution.enable_ansi_mode = true;
        options.execution.time_zone = Some("UTC".to_owned());
    }
    config
}

/// A session for planning the queries of pipelines. `clock` replaces `current_timestamp()` and its kin by markers that
/// the planner turns into the wall of the row's epoch; without it they show when the session was made, as questions want it.
///
/// The optimizer rules are listed, so that a plan, and with it a fingerprint, changes only when this list does.
pub fn session(clock: bool, settings: &Settings) -> Result<SessionContext> {
    let failed = |e| Error::internal("the functions of the planner cannot be registered").caused_by(e);
    let functions = functions::scalar(settings);
    let mut builder = SessionStateBuilder::new().with_config(config()).with_default_features();
    if let Some(access) = SparkAccess::new(&functions) {
        builder.expr_planners().get_or_insert_default().insert(0, Arc::new(access));
    }
    builder = builder.with_type_planner(Arc::new(SparkTypes));
    builder = builder.with_optimizer_rules(if clock { rules() } else { all_but_leaves() });
    let mut state = builder.build();
    for name in state.udfs() {
        state.deregister_udf(&name).map_err(failed)?;
    }
    for name in state.higher_order_function_names() {
        state.deregister_higher_order_function(&name).map_err(failed)?;
    }
    let meaning = Arc::new(SparkMeaning::new(settings, &functions));
    state.register_relation_planner(Arc::new(Generate::new(Arc::clone(&meaning)))).map_err(failed)?;
    state.register_function_rewrite(meaning).map_err(failed)?;
    for function in functions {
        if functions::callable(function.name()) {
            state.register_udf(function).map_err(failed)?;
        }
    }
    for function in functions::higher_order(settings) {
        state.register_higher_order_function(function).map_err(failed)?;
    }
    for function in clock_functions((!clock).then_some(&settings.zone)) {
        state.register_udf(Arc::new(function)).map_err(failed)?;
    }
    Ok(SessionContext::new_with_state(state))
}

/// The rules for questions. Those that move the fields of structs below what makes the structs are left out: where a call
/// puts a field into a struct that bears the name it had before, they look for the field in the struct before.
fn all_but_leaves() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let left_out = ["extract_leaf_expressions", "push_down_leaf_projections"];
    Optimizer::new().rules.into_iter().filter(|rule| !left_out.contains(&rule.name())).collect()
}

fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    vec![
        Arc::new(RewriteSetComparison::new()),
        Arc::new(SimplifyExpressions::new()),
        Arc::new(DecorrelatePredicateSubquery::new()),
        Arc::new(ExtractEquijoinPredicate::new()),
        Arc::new(EliminateDuplicatedExpr::new()),
        Arc::new(EliminateCrossJoin::new()),
        Arc::new(EliminateOuterJoin::new()),
        Arc::new(PushDownFilter::new()),
        Arc::new(CommonSubexprEliminate::new()),
        Arc::new(OptimizeProjections::new()),
    ]
}
