//! A call of a generator, planned: the rows with their items, one row an item.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, NullHandling, Result, UnnestOptions, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::functions::core::get_field;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, ScalarUDF, lit};
use datafusion::sql::sqlparser::ast::{
    self, Expr as SqlExpr, FunctionArg, FunctionArgExpr, FunctionArguments, TableFactor,
};

use super::items::Items;
use super::lift::{MEMBERS, PLACE};
use crate::plan::spark::SparkMeaning;

/// Column of the items until each is a row.
const ITEMS: &str = "$items";

/// Plans what [`lift_generators`](super::lift_generators) has put beside the relations.
#[derive(Debug)]
pub(crate) struct Generate {
    meaning: Arc<SparkMeaning>,
}

impl Generate {
    pub(crate) fn new(meaning: Arc<SparkMeaning>) -> Generate {
        Generate { meaning }
    }
}

fn argument(call: &SqlExpr) -> Option<(String, SqlExpr)> {
    let SqlExpr::Function(ast::Function { name, args: FunctionArguments::List(list), .. }) = call else { return None };
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))] => Some((name.to_string(), expr.clone())),
        _ => None,
    }
}

/// The columns, with what is made in the place of one of them, or behind them all.
fn placed(columns: Vec<Column>, place: Option<usize>, made: Vec<Expr>) -> Vec<Expr> {
    let mut all: Vec<Expr> = columns.into_iter().map(Expr::Column).collect();
    match place {
        Some(place) => drop(all.splice(place..=place, made)),
        None => all.extend(made),
    }
    all
}

/// The members of a struct in its place.
fn members(input: LogicalPlan, value: Expr, place: Option<usize>) -> Result<RelationPlanning> {
    let schema = Arc::clone(input.schema());
    let DataType::Struct(fields) = value.get_type(schema.as_ref())? else {
        return plan_err!("{} is no relation and no struct, so it has no `.*`", value.human_display());
    };
    let member = |name: &str| get_field().call(vec![value.clone(), lit(name)]).alias(name);
    let made = fields.iter().map(|field| member(field.name())).collect();
    let plan = LogicalPlanBuilder::from(input).project(placed(schema.columns(), place, made))?.build()?;
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
}

impl RelationPlanner for Generate {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let TableFactor::Pivot { table, aggregate_functions, default_on_null, alias, .. } = relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let Some((name, value)) = aggregate_functions.first().and_then(|call| argument(&call.expr)) else {
            return plan_err!("PIVOT is not supported");
        };
        let input = context.plan(*table)?;
        let schema = Arc::clone(input.schema());
        // A place in a select list is told by its name, which is that of the argument.
        let in_place = match &value {
            SqlExpr::Identifier(ident) if ident.value.starts_with(PLACE) => {
                schema.columns().iter().position(|column| column.name == ident.value)
            }
            _ => None,
        };
        let value = context.sql_to_expr(value, &schema)?;
        let options = ConfigOptions::default();
        let value = value.transform_up(|e| self.meaning.rewrite(e, &schema, &options))?.data;
        if name == MEMBERS {
            return members(input, value, in_place);
        }
        let items = Items::new(&name, default_on_null.is_some());
        let fields = items.columns(&value.get_type(schema.as_ref())?)?;
        let (qualifier, names) = match alias {
            Some(alias) => {
                (Some(alias.name.value), alias.columns.into_iter().map(|column| column.name.value).collect::<Vec<_>>())
            }
            None => (None, Vec::new()),
        };
        if !names.is_empty() && names.len() != fields.len() {
            return plan_err!(
                "{name} yields {} columns here, and the number of names is {}",
                fields.len(),
                names.len()
            );
        }
        let names: Vec<String> =
            if names.is_empty() { fields.iter().map(|f| f.name().clone()).collect() } else { names };
        let list = ScalarUDF::new_from_impl(items).call(vec![value]).alias(ITEMS);
        let columns = schema.columns();
        let before: Vec<Expr> = columns.iter().cloned().map(Expr::Column).chain([list]).collect();
        let keep_none = UnnestOptions::new().with_null_handling(NullHandling::Drop);
        let rows = LogicalPlanBuilder::from(input)
            .project(before)?
            .unnest_column_with_options(Column::from_name(ITEMS), keep_none)?;
        let item = |field: &str| get_field().call(vec![Expr::Column(Column::from_name(ITEMS)), lit(field)]);
        let made = fields.iter().zip(names).map(|(field, name)| match (in_place, &qualifier) {
            (None, Some(qualifier)) => item(field.name()).alias_qualified(Some(qualifier.as_str()), name),
            _ => item(field.name()).alias(name),
        });
        let made: Vec<Expr> = made.collect();
        let after = placed(columns, in_place, made);
        let plan = rows.project(after)?.build()?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
    }
}
