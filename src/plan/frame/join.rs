//! Operators of two inputs: joins, and unions.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::logical_expr::{Expr, JoinType, LogicalPlanBuilder, lit};
use datafusion::sql::sqlparser::ast;

use super::names::Col;
use super::{Built, FramePlanner, columns_differ, fresh, internal};
use crate::error::{Error, Result};
use crate::pipeline::frame::{JoinFrame, JoinKind};
use crate::plan::identifiers::fold;
use crate::plan::syntax::read_as_spark;

impl FramePlanner<'_> {
    pub(super) fn join(&self, join: &JoinFrame, left: Built, right: Built) -> Result<Built> {
        let taken: BTreeSet<String> = left.plan.schema().fields().iter().map(|f| f.name().to_lowercase()).collect();
        let right = self.normal(right, &taken)?;
        let mut both: Vec<Col> = left.cols.iter().chain(&right.cols).cloned().collect();
        let mut keys: Vec<(Col, Col)> = Vec::new();
        for name in &join.using {
            let one = |built: &Built, side: &str| {
                let found: Vec<&Col> = built.cols.iter().filter(|col| col.named(name)).collect();
                match found.as_slice() {
                    [only] => Ok((*only).clone()),
                    [] => Err(Error::user(
                        "UNRESOLVED_USING_COLUMN_FOR_JOIN",
                        format!("column {name} is not on the {side} side of the join"),
                    )),
                    _ => Err(Error::user("AMBIGUOUS_COLUMN", format!("column {name} stands twice on the {side} side"))),
                }
            };
            keys.push((one(&left, "left")?, one(&right, "right")?));
        }
        let equal = keys.iter().map(|(l, r)| internal(&l.internal).eq(internal(&r.internal))).reduce(Expr::and);
        let kind = match join.kind {
            JoinKind::Inner => JoinType::Inner,
            JoinKind::Left => JoinType::Left,
            JoinKind::Right => JoinType::Right,
            JoinKind::Full => JoinType::Full,
            JoinKind::Semi => JoinType::LeftSemi,
            JoinKind::Anti => JoinType::LeftAnti,
        };
        let on = match (&join.on, equal) {
            (None, equal) => equal,
            (Some(on), equal) => {
                // The condition sees both sides, whatever the join keeps of them.
                let schema = left.plan.schema().join(right.plan.schema()).map_err(|e| self.wrong(e))?;
                let mut expr = self.resolve(on, &both)?;
                fold(&mut expr, &[Arc::new(schema.as_arrow().clone())]);
                read_as_spark(&mut expr);
                let on = self
                    .state
                    .create_logical_expr_from_sql_expr(ast::ExprWithAlias { expr, alias: None }, &schema)
                    .map_err(|e| self.wrong(e))?;
                Some(equal.map_or(on.clone(), |equal| equal.and(on)))
            }
        };
        let left_cols = left.cols.clone();
        let builder = LogicalPlanBuilder::from(left.plan);
        let plan = match on {
            Some(on) => self.made(builder.join_on(right.plan, kind, [on]))?,
            None if kind == JoinType::Inner => self.made(builder.cross_join(right.plan))?,
            None => self.made(builder.join_on(right.plan, kind, [lit(true)]))?,
        };
        if matches!(join.kind, JoinKind::Semi | JoinKind::Anti) {
            return Ok(Built { plan, cols: left_cols });
        }
        if keys.is_empty() {
            return Ok(Built { plan, cols: both });
        }
        // A key stands once, first, with the value of the side that has one.
        both.retain(|col| !keys.iter().any(|(l, r)| [&l.internal, &r.internal].contains(&&col.internal)));
        let mut cols: Vec<Col> = Vec::new();
        let mut computed = Vec::new();
        for (l, r) in &keys {
            match join.kind {
                JoinKind::Right => cols.push(Col { name: l.name.clone(), ..r.clone() }),
                JoinKind::Full => {
                    let coalesce = self.over_internal("coalesce", &[&l.internal, &r.internal], &plan)?;
                    computed.push((cols.len(), coalesce));
                    cols.push(Col::new("", &l.name));
                }
                _ => cols.push(l.clone()),
            }
        }
        cols.extend(both);
        self.computed(Built { plan, cols: Vec::new() }, cols, computed)
    }

    pub(super) fn union(&self, left: Built, right: Built, by_name: bool, allow_missing: bool) -> Result<Built> {
        let (mut left, mut right) = (left, right);
        left.cols.retain(|col| !col.hidden);
        right.cols.retain(|col| !col.hidden);
        if by_name {
            let missing = |in_these: &[Col], of: &[Col]| -> Vec<Col> {
                of.iter().filter(|col| !in_these.iter().any(|other| other.named(&col.name))).cloned().collect()
            };
            let (not_right, not_left) = (missing(&right.cols, &left.cols), missing(&left.cols, &right.cols));
            if let Some(col) = not_right.first().or(not_left.first())
                && !allow_missing
            {
                let message = format!("unionByName: column {} is on one side only", col.name);
                return Err(Error::user("UNKNOWN_COLUMN", message).help("allowMissingColumns=True puts null there"));
            }
            right = self.with_nulls(right, &not_right)?;
            left = self.with_nulls(left, &not_left)?;
            let mut ordered = Vec::with_capacity(left.cols.len());
            for col in &left.cols {
                ordered.extend(right.cols.iter().find(|other| other.named(&col.name)).cloned());
            }
            right.cols = ordered;
        }
        if left.cols.len() != right.cols.len() {
            return Err(columns_differ(left.cols.len(), right.cols.len()));
        }
        let (left, right) = (self.normal(left, &BTreeSet::new())?, self.normal(right, &BTreeSet::new())?);
        let cols = left.cols;
        let plan = self.made(LogicalPlanBuilder::from(left.plan).union(right.plan))?;
        Ok(Built { plan, cols: fresh(cols) })
    }
}
