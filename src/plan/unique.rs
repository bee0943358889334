//! Whether a reference has at most one row a key: what makes a join a lookup.

use std::collections::BTreeSet;

use datafusion::logical_expr::{Distinct, Expr, JoinType, LogicalPlan};

/// What is known of a relation that a query reads.
pub(super) trait KnownKeys {
    /// Key columns of an AUTO CDC target of SCD type 1, by index, for relation `$n`.
    fn scd1_keys(&self, relation: usize) -> Option<Vec<usize>>;
    /// Key columns and the `__END_AT` column of a target of SCD type 2.
    fn scd2_keys(&self, relation: usize) -> Option<(Vec<usize>, usize)>;
}

/// The relation number of a scan.
pub(super) fn relation_of(table: &str) -> Option<usize> {
    table.strip_prefix('$')?.parse().ok()
}

/// True where no two rows of `plan` can agree in all of the output columns `key`. Nulls count as equal.
pub(super) fn unique_on(plan: &LogicalPlan, key: &BTreeSet<usize>, known: &dyn KnownKeys) -> bool {
    unique(plan, key, known, &BTreeSet::new())
}

/// `nulls` are the output columns of `plan` that a filter above it has narrowed to null.
fn unique(plan: &LogicalPlan, key: &BTreeSet<usize>, known: &dyn KnownKeys, nulls: &BTreeSet<usize>) -> bool {
    match plan {
        LogicalPlan::Distinct(Distinct::All(input)) => {
            (0..input.schema().fields().len()).all(|i| key.contains(&i)) || unique(input, key, known, nulls)
        }
        LogicalPlan::Aggregate(aggregate) => (0..aggregate.group_expr.len()).all(|i| key.contains(&i)),
        LogicalPlan::SubqueryAlias(alias) => unique(&alias.input, key, known, nulls),
        LogicalPlan::Projection(projection) => {
            let through = |i: usize| {
                projection.expr.get(i).and_then(|e| column_index(e, &projection.input))
            };
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
            let covered = |keys: &[usize]| keys.iter().all(|k| key.contains(k));
            known.scd1_keys(relation).is_some_and(|keys| covered(&keys))
                || known.scd2_keys(relation).is_some_and(|(keys, end)| covered(&keys) && nulls.contains(&end))
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
