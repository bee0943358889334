//! Operators that go by all columns or by their types: schemas, nulls, duplicates, columns to rows.

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, cast, lit, when};
use datafusion::sql::sqlparser::ast;

use super::names::{Col, default_name};
use super::{Built, FramePlanner, fresh, internal, parts_of, unique};
use crate::error::{Error, Result};
use crate::plan::frame::names::lookup;
use crate::plan::functions;

/// Types among which a value can replace another.
#[derive(PartialEq, Eq)]
enum Class {
    Number,
    Text,
    Boolean,
    Other,
}

fn class(data_type: &DataType) -> Class {
    match data_type {
        t if t.is_numeric() => Class::Number,
        DataType::Boolean => Class::Boolean,
        t if functions::text(t) => Class::Text,
        _ => Class::Other,
    }
}

impl FramePlanner<'_> {
    fn type_of(&self, col: &Col, over: &Built) -> Result<DataType> {
        let field = over.plan.schema().field_with_unqualified_name(&col.internal).map_err(|e| self.wrong(e))?;
        Ok(field.data_type().clone())
    }

    /// Columns by name; all if none is named.
    fn chosen(&self, over: &Built, names: &[String]) -> Result<Vec<usize>> {
        let mut places = BTreeSet::new();
        for name in names {
            let (found, _) = lookup(std::slice::from_ref(name), &over.cols)?;
            places.extend(over.cols.iter().enumerate().filter(|(_, c)| c.internal == found.internal).map(|(at, _)| at));
        }
        if names.is_empty() {
            places = (0..over.cols.len()).filter(|at| over.cols.get(*at).is_some_and(|col| !col.hidden)).collect();
        }
        Ok(places.into_iter().collect())
    }

    pub(super) fn distinct(&self, mut input: Built, columns: Option<&[String]>) -> Result<Built> {
        input.cols.retain(|col| !col.hidden);
        let input = self.normal(input, &BTreeSet::new())?;
        let builder = LogicalPlanBuilder::from(input.plan.clone());
        let plan = match columns {
            None => self.made(builder.distinct())?,
            Some(names) => {
                let keys = self.chosen(&input, names)?;
                let on = keys.iter().filter_map(|at| input.cols.get(*at)).map(|col| internal(&col.internal)).collect();
                let all = input.cols.iter().map(|col| internal(&col.internal)).collect();
                self.made(builder.distinct_on(on, all, None))?
            }
        };
        Ok(Built { plan, cols: input.cols })
    }

    pub(super) fn conform(&self, input: Built, schema: &SchemaRef) -> Result<Built> {
        let mut cols = Vec::new();
        let mut computed = Vec::new();
        for field in schema.fields() {
            match lookup(std::slice::from_ref(field.name()), &input.cols) {
                Ok((col, _)) => {
                    computed.push((cols.len(), cast(internal(&col.internal), field.data_type().clone())));
                }
                Err(error) if !field.is_nullable() => return Err(error),
                Err(_) => computed.push((cols.len(), null(field.data_type())?)),
            }
            cols.push(Col::new("", field.name()));
        }
        self.computed(input, cols, computed)
    }

    /// The columns with nulls of the types of `missing` behind them.
    pub(super) fn with_nulls(&self, input: Built, missing: &[Col]) -> Result<Built> {
        if missing.is_empty() {
            return Ok(input);
        }
        let mut cols = input.cols.clone();
        let mut computed = Vec::new();
        for col in missing {
            // The union finds the type in common, and null has every type.
            computed.push((cols.len(), lit(ScalarValue::Null)));
            cols.push(Col::new("", &col.name));
        }
        self.computed(input, cols, computed)
    }

    pub(super) fn fill(&self, input: Built, columns: &[String], values: &[ast::Expr]) -> Result<Built> {
        let mut cols = input.cols.clone();
        let mut computed = Vec::new();
        let places = self.chosen(&input, columns)?;
        let many = values.len() > 1;
        for (number, at) in places.into_iter().enumerate() {
            let value = match many {
                false => values.first(),
                // One value a column, in the order in which the columns are named.
                true => {
                    let name = input.cols.get(at).map(|col| col.name.clone()).unwrap_or_default();
                    let named = columns.iter().position(|c| super::names::same(c, &name)).unwrap_or(number);
                    values.get(named)
                }
            };
            let (Some(value), Some(col)) = (value, input.cols.get(at)) else { continue };
            let column_type = self.type_of(col, &input)?;
            let value = self.expr(value, &input)?;
            let value_type = self.value_type(&value, &input)?;
            if class(&column_type) != class(&value_type) || class(&column_type) == Class::Other {
                continue;
            }
            let column = internal(&col.internal);
            let filled = when(column.clone().is_null(), cast(value, column_type)).otherwise(column);
            computed.push((at, filled.map_err(|e| self.wrong(e))?));
            if let Some(slot) = cols.get_mut(at) {
                *slot = Col::new("", &slot.name);
            }
        }
        self.computed(input, cols, computed)
    }

    pub(super) fn replace(&self, input: Built, columns: &[String], values: &[(ast::Expr, ast::Expr)]) -> Result<Built> {
        let mut cols = input.cols.clone();
        let mut computed = Vec::new();
        for at in self.chosen(&input, columns)? {
            let Some(col) = input.cols.get(at) else { continue };
            let column_type = self.type_of(col, &input)?;
            let column = internal(&col.internal);
            let mut cases: Vec<(Box<Expr>, Box<Expr>)> = Vec::new();
            for (old, new) in values {
                let (old, new) = (self.expr(old, &input)?, self.expr(new, &input)?);
                let old_type = self.value_type(&old, &input)?;
                let is_null = old_type == DataType::Null;
                if !is_null && (class(&column_type) != class(&old_type) || class(&column_type) == Class::Other) {
                    continue;
                }
                let matches =
                    if is_null { column.clone().is_null() } else { column.clone().eq(cast(old, column_type.clone())) };
                cases.push((Box::new(matches), Box::new(cast(new, column_type.clone()))));
            }
            if cases.is_empty() {
                continue;
            }
            let case = datafusion::logical_expr::Case::new(None, cases, Some(Box::new(column)));
            computed.push((at, Expr::Case(case)));
            if let Some(slot) = cols.get_mut(at) {
                *slot = Col::new("", &slot.name);
            }
        }
        self.computed(input, cols, computed)
    }

    fn value_type(&self, value: &Expr, over: &Built) -> Result<DataType> {
        use datafusion::logical_expr::ExprSchemable;
        value.get_type(over.plan.schema().as_ref()).map_err(|e| self.wrong(e))
    }

    pub(super) fn drop_null(&self, mut input: Built, columns: &[String], at_least: Option<i32>) -> Result<Built> {
        let places = self.chosen(&input, columns)?;
        let present =
            places.iter().filter_map(|at| input.cols.get(*at)).map(|col| internal(&col.internal).is_not_null());
        let condition = match at_least {
            None => present.reduce(Expr::and),
            Some(needed) => {
                let ones = present.map(|present| when(present, lit(1i64)).otherwise(lit(0i64)));
                let ones: Vec<Expr> = ones.collect::<std::result::Result<_, _>>().map_err(|e| self.wrong(e))?;
                ones.into_iter().reduce(|a, b| a + b).map(|sum| sum.gt_eq(lit(i64::from(needed))))
            }
        };
        if let Some(condition) = condition {
            input.plan = self.made(LogicalPlanBuilder::from(input.plan).filter(condition))?;
        }
        Ok(input)
    }

    pub(super) fn unpivot(
        &self,
        input: Built,
        ids: &[ast::Expr],
        values: Option<&[ast::Expr]>,
        variable: &str,
        value: &str,
    ) -> Result<Built> {
        let mut kept: Vec<Col> = Vec::new();
        for id in ids {
            let parts = parts_of(id)
                .ok_or_else(|| Error::user("UNPIVOT_REQUIRES_ATTRIBUTES", "unpivot takes columns as they are"))?;
            kept.push(lookup(&parts, &input.cols)?.0.clone());
        }
        let turned: Vec<(String, Expr)> = match values {
            Some(values) => {
                values.iter().map(|v| Ok((default_name(v), self.expr(v, &input)?))).collect::<Result<_>>()?
            }
            None => input
                .cols
                .iter()
                .filter(|col| !col.hidden && !kept.iter().any(|k| k.internal == col.internal))
                .map(|col| (col.name.clone(), internal(&col.internal)))
                .collect(),
        };
        let mut union: Option<LogicalPlanBuilder> = None;
        let mut cols = Vec::new();
        for (name, expr) in turned {
            let mut seen = BTreeSet::new();
            let mut exprs = Vec::new();
            cols.clear();
            for col in &kept {
                let fresh = unique(&col.name, &mut seen);
                exprs.push(internal(&col.internal).alias(&fresh));
                cols.push(Col::new(fresh, &col.name));
            }
            for (title, expr) in [(variable, lit(name)), (value, expr)] {
                let fresh = unique(title, &mut seen);
                exprs.push(expr.alias(&fresh));
                cols.push(Col::new(fresh, title));
            }
            let part = self.made(LogicalPlanBuilder::from(input.plan.clone()).project(exprs))?;
            union = Some(match union {
                None => LogicalPlanBuilder::from(part),
                Some(before) => before.union(part).map_err(|e| self.wrong(e))?,
            });
        }
        let union =
            union.ok_or_else(|| Error::user("UNPIVOT_REQUIRES_VALUE_COLUMNS", "unpivot is left without a column"))?;
        Ok(Built { plan: union.build().map_err(|e| self.wrong(e))?, cols: fresh(cols) })
    }
}

fn null(data_type: &DataType) -> Result<Expr> {
    let value = ScalarValue::try_from(data_type).map_err(|e| Error::internal("a null of a type").caused_by(e))?;
    Ok(lit(value))
}
