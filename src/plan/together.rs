//! The conditions of a dataset's expectations, evaluated together: what several of them compute is computed once.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::{EmptyRelation, Expr, LogicalPlan, Projection};
use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;
use datafusion::optimizer::{OptimizerContext, OptimizerRule};
use datafusion::physical_expr::PhysicalExpr;

use super::clock::bind_clock;
use super::lower::physical;
use super::schema::WALL_COLUMN;

/// Conditions over the same rows that have something in common.
#[derive(Clone, Debug)]
pub struct Together {
    /// What several of them need, over the rows.
    pub common: Vec<Arc<dyn PhysicalExpr>>,
    /// The conditions, over the rows with the common values behind them.
    pub conditions: Vec<Arc<dyn PhysicalExpr>>,
    /// Columns of the rows, and the common values.
    pub schema: SchemaRef,
}

/// The conditions over rows `batch`, each with the columns that it names; `None` if they have nothing in common.
pub(crate) fn together(
    conditions: &[(&Expr, &DFSchema)],
    batch: &SchemaRef,
    zone: &Arc<str>,
) -> Result<Option<Together>> {
    if conditions.is_empty() {
        return Ok(None);
    }
    let rows = DFSchema::try_from(batch.as_ref().clone())?;
    let mut exprs = Vec::with_capacity(conditions.len());
    for (index, (condition, columns)) in conditions.iter().enumerate() {
        let here = (*condition).clone().transform_up(|e| {
            let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
            let at = columns.maybe_index_of_column(column).filter(|at| *at < batch.fields().len());
            Ok(match at {
                Some(at) => Transformed::yes(Expr::Column(Column::from(rows.qualified_field(at)))),
                None => Transformed::no(e),
            })
        })?;
        exprs.push(bind_clock(here.data, WALL_COLUMN, zone)?.alias(format!("__condition_{index}")));
    }
    let nothing = EmptyRelation { produce_one_row: false, schema: Arc::new(rows) };
    let asked = Projection::try_new(exprs, Arc::new(LogicalPlan::EmptyRelation(nothing)))?;
    let found = CommonSubexprEliminate::new().rewrite(LogicalPlan::Projection(asked), &OptimizerContext::new())?;
    let LogicalPlan::Projection(outer) = found.data else { return Ok(None) };
    let LogicalPlan::Projection(inner) = outer.input.as_ref() else { return Ok(None) };
    let mut common = Vec::new();
    let mut fields: Vec<FieldRef> = batch.fields().iter().cloned().collect();
    for (expr, field) in inner.expr.iter().zip(inner.schema.fields()) {
        if !matches!(expr, Expr::Column(_)) {
            common.push(physical(expr, inner.input.schema(), batch, zone)?);
            fields.push(Arc::clone(field));
        }
    }
    let schema = Arc::new(Schema::new(fields));
    let columns = DFSchema::try_from(schema.as_ref().clone())?;
    let conditions =
        outer.expr.iter().map(|expr| physical(expr, &columns, &schema, zone)).collect::<Result<Vec<_>>>()?;
    Ok(Some(Together { common, conditions, schema }))
}
