//! Which columns of a query come from outside as they are: they decide ties between change events, since verdicts, the
//! clock and looked-up values may change after the event.

use datafusion::logical_expr::{Distinct, Expr, JoinType, LogicalPlan};

use super::clock::reads_clock;
use super::spark::cast_of;
use super::unique::{column_index, relation_of};

/// For each output column, whether it holds a value of the driving source. `relations[n]` tells it of relation `$n`.
/// With `computed`, row-wise expressions over such columns count as well (a replay point stores their values).
pub(super) fn own_columns(plan: &LogicalPlan, relations: &[Vec<bool>], computed: bool) -> Vec<bool> {
    let width = plan.schema().fields().len();
    match plan {
        LogicalPlan::TableScan(scan) => {
            let flags = relation_of(scan.table_name.table()).and_then(|n| relations.get(n));
            let flag = |i: usize| flags.and_then(|f| f.get(i)).copied().unwrap_or(false);
            match &scan.projection {
                Some(columns) => columns.iter().map(|i| flag(*i)).collect(),
                None => (0..width).map(flag).collect(),
            }
        }
        LogicalPlan::Projection(projection) => {
            let inner = own_columns(&projection.input, relations, computed);
            projection
                .expr
                .iter()
                .map(|e| match column_index(unwrapped(e), &projection.input) {
                    Some(index) => inner.get(index).copied().unwrap_or(false),
                    None => computed && !reads_clock(e),
                })
                .collect()
        }
        LogicalPlan::Filter(filter) => own_columns(&filter.input, relations, computed),
        LogicalPlan::Unnest(unnest) => own_columns(&unnest.input, relations, computed),
        LogicalPlan::SubqueryAlias(alias) => own_columns(&alias.input, relations, computed),
        LogicalPlan::Distinct(Distinct::All(input)) => own_columns(input, relations, computed),
        LogicalPlan::Union(union) => {
            let all: Vec<Vec<bool>> = union.inputs.iter().map(|i| own_columns(i, relations, computed)).collect();
            (0..width).map(|i| all.iter().all(|flags| flags.get(i).copied().unwrap_or(false))).collect()
        }
        LogicalPlan::Join(join) if join.join_type != JoinType::Right => {
            let mut flags = own_columns(&join.left, relations, computed);
            flags.resize(width, false);
            flags
        }
        _ => vec![false; width],
    }
}

/// A cast keeps the value for the purpose of a tie.
fn unwrapped(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unwrapped(&alias.expr),
        other => cast_of(other).map_or(other, unwrapped),
    }
}
