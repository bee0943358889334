//! Whether a reference has at most one row a key: what makes a join a lookup.

use std::collections::BTreeSet;

use datafusion::logical_expr::{Distinct, Expr, JoinType, LogicalPlan};

/// What is known of the relations that a query reads.
pub(super) trait KnownKeys {
    /// True where no two rows of relation `$n` can agree in all of the columns `key`, given that the columns `nulls` are
    /// null.
    fn unique(&self, relation: usize, key: &BTreeSet<usize>, nulls: &BTreeSet<usize>) -> bool;
}

/// The relation number of a scan.
pub(super) fn relation_of(table: &str) -> Option<usize> {
    table.strip_prefix('$')?.parse().ok()
}

/// True where no two rows of `plan` can agree in all of the output columns `key`. Nulls count as equal.
pub(super) fn unique_on(plan: &LogicalPlan, key: &BTreeSet<usize>, known: &dyn KnownKeys) -> bool {
    unique(plan, key, known, &BTreeSet::new())
}

/// As [`unique_on`]; `nulls` are the output columns of `plan` that a filter above it has narrowed to null.
pub(super) fn unique(
    plan: &LogicalPlan,
    key: &BTreeSet<usize>,
    known: &dyn KnownKeys,
    nulls: &BTreeSet<usize>,
) -> bool {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => {
            (0..input.schema().fields().len()).all(|i| key.contains(&i)) || unique(input, key, known, nulls)
        }
        LogicalPlan::Aggregate(aggregate) => (0..aggregate.group_expr.len()).all(|i| key.contains(&i)),
        LogicalPlan::SubqueryAlias(alias) => unique(&alias.input, key, known, nulls),
        LogicalPlan::Projection(projection) => {
            let through = |i: usize| projection.expr.get(i).and_then(|e| column_index(e, &projection.input));
            let mapped = |set: &BTreeSet<usize>| set.iter().filter_map(|i| through(*i)).collect::<BTreeSet<usize>>();
            unique(&projection.input, &mapped(key), known, &mapped(nulls))
        }
        LogicalPlan::Filter(filter) => {
            let mut nulls = nulls.clone();
            conjuncts(&filter.predicate, &mut |e| {
                if let Expr::IsNull(inner) = e {
                    nulls.extend(column_index(inner, &filter.input));
                }
            });
            unique(&filter.input, key, known, &nulls)
        }
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) => {
            unique(&join.left, key, known, nulls)
        }
        LogicalPlan::TableScan(scan) => {
            let Some(relation) = relation_of(scan.table_name.table()) else { return false };
            let source = |i: usize| match &scan.projection {
                Some(columns) => columns.get(i).copied(),
                None => Some(i),
            };
            let key: BTreeSet<usize> = key.iter().filter_map(|i| source(*i)).collect();
            let nulls: BTreeSet<usize> = nulls.iter().filter_map(|i| source(*i)).collect();
            known.unique(relation, &key, &nulls)
        }
        _ => false,
    }
}

fn conjuncts(predicate: &Expr, f: &mut impl FnMut(&Expr)) {
    match predicate {
        Expr::BinaryExpr(binary) if binary.op == datafusion::logical_expr::Operator::And => {
            conjuncts(&binary.left, f);
            conjuncts(&binary.right, f);
        }
        other => f(other),
    }
}

/// The input column that an expression passes on unchanged.
pub(super) fn column_index(expr: &Expr, input: &LogicalPlan) -> Option<usize> {
    match expr {
        Expr::Column(column) => input.schema().maybe_index_of_column(column),
        Expr::Alias(alias) => column_index(&alias.expr, input),
        _ => None,
    }
}
