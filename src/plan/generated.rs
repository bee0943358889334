//! Columns that are generated from the others of their row.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::clock::reads_clock;
use super::draft::DraftRule;
use super::functions::{cast, spelled};
use super::query::{Planner, from_datafusion, plan_expr};
use crate::error::{Error, Result};
use crate::pipeline::{Action, Dataset, Generated};

/// How a column is generated, if it is.
pub(super) fn of<'a>(dataset: &'a Dataset, column: &str) -> Option<&'a Generated> {
    let declared = dataset.columns.iter().flatten().find(|c| c.name.eq_ignore_ascii_case(column))?;
    declared.generated.as_ref()
}

/// Computes generated columns that the query does not yield.
pub(super) fn compute(
    plan: LogicalPlan,
    made: &[usize],
    schema: &SchemaRef,
    dataset: &Dataset,
    planner: &Planner<'_>,
) -> Result<LogicalPlan> {
    let columns: SchemaRef = Arc::new(plan.schema().as_arrow().clone());
    let mut exprs: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
    for (index, field) in schema.fields().iter().enumerate().filter(|(index, _)| made.contains(index)) {
        let Some(Generated { expr, span }) = of(dataset, field.name()) else { continue };
        let wrong = |e: Error| e.dataset(&dataset.name);
        let alias = &dataset.name.table;
        let (value, _, from) = plan_expr(planner, expr, &columns, alias, span).map_err(wrong)?;
        if let Some(other) = value.column_refs().iter().find(|c| of(dataset, &c.name).is_some()) {
            let message = format!("{} is generated from {}, which is generated itself", field.name(), other.name);
            return Err(wrong(Error::user("INVALID_GENERATED_COLUMN", message).at(span)));
        }
        if reads_clock(&value) {
            let message = format!("{} is generated from the clock, and not from its row", field.name());
            return Err(wrong(Error::user("INVALID_GENERATED_COLUMN", message).at(span)));
        }
        let plain = |e: Expr| {
            let unqualified = |e: Expr| match e {
                Expr::Column(c) => Ok(Transformed::yes(Expr::Column(Column::from_name(c.name)))),
                other => Ok(Transformed::no(other)),
            };
            e.transform(unqualified).map(|t| t.data).map_err(|e| from_datafusion(e, span, None))
        };
        let value = cast(plain(value)?, &from, field.data_type(), false, &planner.settings)
            .map_err(|e| from_datafusion(e, span, None))?;
        if let Some(slot) = exprs.get_mut(index) {
            *slot = value.alias(field.name());
        }
    }
    LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(|e| from_datafusion(e, &dataset.span, None))
}

/// A row whose generated column has another value, since the query yields it all the same, fails the epoch.
pub(super) fn rules(planner: &Planner<'_>, dataset: &Dataset, judged: &SchemaRef) -> Result<Vec<DraftRule>> {
    let mut rules = Vec::new();
    for column in dataset.columns.iter().flatten() {
        let Some(Generated { expr, span }) = &column.generated else { continue };
        let same = ast::Expr::BinaryOp {
            left: Box::new(ast::Expr::Identifier(ast::Ident::with_quote('`', &column.name))),
            op: ast::BinaryOperator::Spaceship,
            right: Box::new(ast::Expr::Nested(Box::new(ast::Expr::Cast {
                kind: ast::CastKind::Cast,
                expr: Box::new(expr.clone()),
                data_type: ast::DataType::Custom(
                    ast::ObjectName::from(vec![ast::Ident::new(spelled(&column.data_type))]),
                    Vec::new(),
                ),
                array: false,
                format: None,
            }))),
        };
        let (condition, columns, _) =
            plan_expr(planner, &same, judged, &dataset.name.table, span).map_err(|e| e.dataset(&dataset.name))?;
        rules.push(DraftRule {
            name: format!("{} is as generated", column.name),
            text: same.to_string(),
            condition,
            columns,
            action: Action::Fail,
            constraint: true,
            span: span.clone(),
        });
    }
    Ok(rules)
}
