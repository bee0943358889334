//! Columns that hand on what the clock shows. A later condition on such a column is a condition on the clock, so that the
//! function of the clock is put into the column's place, through everything that hands rows on: select lists, queries in FROM,
//! views, joins. What is stored in a table is what the clock showed when the row arrived, and stays that.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::{Distinct, Expr, ExprSchemable, Join, JoinType, LogicalPlan, Operator};

use super::chain::Finder;
use super::clock::reads_clock;
use super::moments::live;
use super::unique::relation_of;

/// What a column has of the clock.
#[derive(Clone, Debug, PartialEq)]
enum Shown {
    /// A function of the clock and of other columns of the same relation, which can be followed.
    Function(Expr),
    /// What cannot be followed.
    Once,
}

/// What the columns of a relation have of the clock, by index. Columns beyond the last have nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Readings(Vec<Option<Shown>>);

/// Their operands need not be known to know that they are conditions.
const COMPARISONS: [Operator; 8] = [
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
    Operator::IsDistinctFrom,
    Operator::IsNotDistinctFrom,
];

impl Readings {
    fn at(&self, column: &Column, schema: &DFSchema) -> Option<&Shown> {
        self.0.get(schema.maybe_index_of_column(column)?)?.as_ref()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Whether an expression over `schema` reads such a column.
    pub(super) fn touch(&self, expr: &Expr, schema: &DFSchema) -> bool {
        !self.is_empty()
            && expr.exists(|e| Ok(matches!(e, Expr::Column(c) if self.at(c, schema).is_some()))).unwrap_or(true)
    }

    /// The expression with the functions of the clock in the columns' places.
    pub(super) fn put_into(&self, expr: &Expr, schema: &DFSchema) -> Result<Expr> {
        if self.is_empty() {
            return Ok(expr.clone());
        }
        let put = expr.clone().transform_up(|e| match &e {
            Expr::Column(column) => Ok(match self.at(column, schema) {
                Some(Shown::Function(function)) => Transformed::yes(function.clone()),
                _ => Transformed::no(e),
            }),
            _ => Ok(Transformed::no(e)),
        })?;
        Ok(put.data)
    }

    /// Whether a condition in the expression reads such a column. That a value is null is no matter of the clock.
    pub(super) fn decide(&self, expr: &Expr, schema: &DFSchema) -> bool {
        if !self.touch(expr, schema) {
            return false;
        }
        let condition = |e: &Expr| match e {
            Expr::BinaryExpr(binary) if COMPARISONS.contains(&binary.op) => true,
            other => other.get_type(schema).is_ok_and(|t| t == DataType::Boolean),
        };
        let mut found = false;
        let looked = expr.apply(|e| {
            Ok(match e {
                Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::Column(_) => TreeNodeRecursion::Jump,
                Expr::Alias(_) | Expr::Not(_) | Expr::Case(_) => TreeNodeRecursion::Continue,
                Expr::BinaryExpr(b) if matches!(b.op, Operator::And | Operator::Or) => TreeNodeRecursion::Continue,
                e if condition(e) && self.touch(e, schema) => {
                    found = true;
                    TreeNodeRecursion::Stop
                }
                _ => TreeNodeRecursion::Continue,
            })
        });
        found || looked.is_err()
    }

    /// The same, of which nothing can be followed.
    pub(super) fn stored(&self) -> Readings {
        Readings(self.0.iter().map(|shown| shown.as_ref().map(|_| Shown::Once)).collect())
    }

    /// Those of rows of `from` in a relation `to`, where column `i` goes to `place(i)`.
    pub(super) fn moved(&self, from: &DFSchema, to: &DFSchema, place: impl Fn(usize) -> Option<usize>) -> Readings {
        let mut all = vec![None; to.fields().len()];
        for (index, shown) in self.0.iter().enumerate() {
            if let (Some(shown), Some(slot)) = (shown, place(index).and_then(|at| all.get_mut(at))) {
                *slot = Some(shown.moved(from, to, &place));
            }
        }
        Readings(all)
    }

    /// Those that this and another relation have, whose rows are put together, both with the columns `schema`.
    fn and(self, other: Readings) -> Readings {
        let width = self.0.len().max(other.0.len());
        let (mut a, mut b) = (self.0, other.0);
        a.resize(width, None);
        b.resize(width, None);
        Readings(a.into_iter().zip(b).map(|(a, b)| if a == b { a } else { Some(Shown::Once) }).collect())
    }

    /// Those of several flows into one relation.
    pub(super) fn of_all(flows: impl IntoIterator<Item = Readings>) -> Readings {
        flows.into_iter().reduce(Readings::and).unwrap_or_default()
    }
}

impl Shown {
    fn moved(&self, from: &DFSchema, to: &DFSchema, place: &impl Fn(usize) -> Option<usize>) -> Shown {
        let Shown::Function(function) = self else { return Shown::Once };
        let mut whole = true;
        let moved = function.clone().transform_up(|e| {
            let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
            let at = from.maybe_index_of_column(column).and_then(place).filter(|at| *at < to.fields().len());
            Ok(match at {
                Some(at) => Transformed::yes(Expr::Column(Column::from(to.qualified_field(at)))),
                None => {
                    whole = false;
                    Transformed::no(e)
                }
            })
        });
        match moved {
            Ok(moved) if whole => Shown::Function(moved.data),
            _ => Shown::Once,
        }
    }
}

/// How the clock is read in a query.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    /// What the relations of the query have.
    pub(super) relations: &'a [Readings],
    /// Their columns.
    pub(super) schemas: &'a [SchemaRef],
    pub(super) zone: &'a Arc<str>,
    /// The query's own conditions on the clock are decided at arrival.
    pub(super) once: bool,
}

impl Reader<'_> {
    /// What the columns of `plan` have.
    pub(super) fn of(&self, plan: &LogicalPlan) -> Result<Readings> {
        Ok(match plan {
            LogicalPlan::TableScan(scan) => {
                let relation = relation_of(scan.table_name.table());
                let found = relation.and_then(|n| Some((self.relations.get(n)?, self.schemas.get(n)?)));
                let Some((readings, schema)) = found.filter(|(readings, _)| !readings.is_empty()) else {
                    return Ok(Readings::default());
                };
                let from = DFSchema::try_from(schema.as_ref().clone())?;
                readings.moved(&from, plan.schema(), |i| match &scan.projection {
                    Some(columns) => columns.iter().position(|column| *column == i),
                    None => Some(i),
                })
            }
            LogicalPlan::Projection(projection) => {
                let input = self.of(&projection.input)?;
                self.made(&projection.expr, &input, projection.input.schema(), plan.schema())?
            }
            LogicalPlan::Filter(filter) => self.of(&filter.input)?,
            LogicalPlan::SubqueryAlias(alias) => {
                self.of(&alias.input)?.moved(alias.input.schema(), plan.schema(), Some)
            }
            LogicalPlan::Distinct(Distinct::All(input)) => self.of(input)?,
            LogicalPlan::Unnest(unnest) => {
                let made = unnest.list_type_columns.iter().map(|(column, _)| *column).collect::<Vec<_>>();
                let kept = |i| (!made.contains(&i)).then_some(i);
                self.of(&unnest.input)?.moved(unnest.input.schema(), plan.schema(), kept)
            }
            LogicalPlan::Union(union) => {
                let mut all = Vec::with_capacity(union.inputs.len());
                for input in &union.inputs {
                    all.push(self.of(input)?.moved(input.schema(), plan.schema(), Some));
                }
                Readings::of_all(all)
            }
            LogicalPlan::Join(join) => self.joined(join)?,
            _ => Readings::default(),
        })
    }

    /// What the columns of a join have: where a side may have no row, it also depends on whether it has.
    pub(super) fn joined(&self, join: &Join) -> Result<Readings> {
        let (left, right) = (self.of(&join.left)?, self.of(&join.right)?);
        let width = join.left.schema().fields().len();
        let (mut left, mut right) = match join.join_type {
            JoinType::Inner => (left, right),
            JoinType::Left => (left, right.stored()),
            JoinType::Right => (left.stored(), right),
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => return Ok(Readings::default()),
            JoinType::Full => (left.stored(), right.stored()),
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (left, Readings::default()),
        };
        left = left.moved(join.left.schema(), &join.schema, Some);
        right = right.moved(join.right.schema(), &join.schema, |i| Some(width + i));
        left.0.truncate(width);
        left.0.resize(width, None);
        left.0.extend(right.0.drain(width.min(right.0.len())..));
        Ok(left)
    }

    /// What the columns have that `exprs` make from those of `input`.
    pub(super) fn made(
        &self,
        exprs: &[Expr],
        readings: &Readings,
        input: &DFSchema,
        output: &DFSchema,
    ) -> Result<Readings> {
        // Where a column of the input goes as it is.
        let place = |index: usize| {
            exprs.iter().position(|expr| match expr.clone().unalias() {
                Expr::Column(column) => input.maybe_index_of_column(&column) == Some(index),
                _ => false,
            })
        };
        let mut all = Vec::with_capacity(exprs.len());
        for expr in exprs {
            if !reads_clock(expr) && !readings.touch(expr, input) {
                all.push(None);
                continue;
            }
            let put = readings.put_into(expr, input)?.unalias_nested().data;
            let finder = Finder { schema: input, zone: self.zone };
            if reads_clock(&put) && finder.chain(&put).is_some() {
                all.push(Some(Shown::Function(put).moved(input, output, &place)));
                continue;
            }
            let found = live(expr, input, self.zone, self.once, readings)?;
            let left = found.at_arrival || readings.touch(&found.expr, input);
            all.push(left.then_some(Shown::Once));
        }
        Ok(Readings(all))
    }
}
