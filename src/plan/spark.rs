//! Where DataFusion reads an expression otherwise than Spark, its meaning is put right here, before types are coerced:
//! operators, casts and calls get the operand types that Spark gives them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::logical_expr::expr::{Case, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr, TypePlanner};
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, GetFieldAccess, Operator, ScalarUDF, TryCast, lit,
};
use datafusion::sql::sqlparser::ast;

use super::functions::{self, Settings};

/// Operators and calls as Spark means them.
#[derive(Debug)]
pub(super) struct SparkMeaning {
    settings: Settings,
    functions: HashMap<String, Arc<ScalarUDF>>,
}

impl SparkMeaning {
    pub(super) fn new(settings: &Settings, functions: &[Arc<ScalarUDF>]) -> SparkMeaning {
        let functions = functions.iter().map(|f| (f.name().to_owned(), Arc::clone(f))).collect();
        SparkMeaning { settings: settings.clone(), functions }
    }

    fn call(&self, name: &str, arguments: Vec<Expr>, schema: &DFSchema) -> Result<Expr> {
        match self.functions.get(name) {
            Some(function) => self.with_types(Arc::clone(function), arguments, schema),
            None => not_impl_err!("{name}"),
        }
    }

    fn cast(&self, expr: Expr, from: &DataType, to: &DataType) -> Result<Expr> {
        functions::cast(expr, from, to, false, &self.settings)
    }

    /// A call with its arguments cast to what the function takes.
    fn with_types(&self, func: Arc<ScalarUDF>, args: Vec<Expr>, schema: &DFSchema) -> Result<Expr> {
        let types = args.iter().map(|a| a.get_type(schema)).collect::<Result<Vec<_>>>()?;
        let literals: Vec<Option<&ScalarValue>> = args
            .iter()
            .map(|a| match a {
                Expr::Literal(value, _) => Some(value),
                _ => None,
            })
            .collect();
        let Some(wanted) = functions::argument_types(&func, &types, &literals)? else {
            return Ok(Expr::ScalarFunction(ScalarFunction { func, args }));
        };
        let args = args
            .into_iter()
            .zip(types.iter().zip(&wanted))
            .map(|(arg, (from, to))| self.cast(arg, from, to))
            .collect::<Result<Vec<_>>>()?;
        Ok(Expr::ScalarFunction(ScalarFunction { func, args }))
    }

    fn binary(&self, binary: BinaryExpr, schema: &DFSchema) -> Result<Expr> {
        let BinaryExpr { left, op, right } = binary;
        let (lt, rt) = (left.get_type(schema)?, right.get_type(schema)?);
        let plain = |left: Box<Expr>, right: Box<Expr>| Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
        let interval = |t: &DataType| matches!(t, DataType::Interval(_) | DataType::Duration(_));
        let temporal = |t: &DataType| matches!(t, DataType::Date32 | DataType::Timestamp(..));
        match op {
            Operator::Plus | Operator::Minus if interval(&lt) || interval(&rt) => {
                // Text beside an interval is a timestamp.
                let side = |expr: Box<Expr>, t: &DataType| match t {
                    DataType::Utf8 => self.cast(*expr, t, &functions::instant()).map(Box::new),
                    _ => Ok(expr),
                };
                plain(side(left, &lt)?, side(right, &rt)?)
            }
            Operator::Plus if lt == DataType::Date32 && !temporal(&rt) => {
                self.call("date_add", vec![*left, *right], schema)
            }
            Operator::Plus if rt == DataType::Date32 && !temporal(&lt) => {
                self.call("date_add", vec![*right, *left], schema)
            }
            Operator::Minus if lt == DataType::Date32 && !temporal(&rt) && !functions::text(&rt) => {
                self.call("date_sub", vec![*left, *right], schema)
            }
            Operator::Minus if temporal(&lt) && temporal(&rt) => {
                let instant = functions::instant();
                match (&lt, &rt) {
                    (DataType::Date32, DataType::Date32) => plain(left, right),
                    _ => plain(Box::new(self.cast(*left, &lt, &instant)?), Box::new(self.cast(*right, &rt, &instant)?)),
                }
            }
            Operator::Plus => self.call("add", vec![*left, *right], schema),
            Operator::Minus => self.call("subtract", vec![*left, *right], schema),
            Operator::Multiply if interval(&lt) || interval(&rt) => plain(left, right),
            Operator::Multiply => self.call("multiply", vec![*left, *right], schema),
            Operator::Divide => self.call("divide", vec![*left, *right], schema),
            Operator::Modulo => self.call("mod", vec![*left, *right], schema),
            Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
            | Operator::IsDistinctFrom
            | Operator::IsNotDistinctFrom => self.comparison(*left, op, *right, &lt, &rt),
            Operator::BitwiseAnd | Operator::BitwiseOr | Operator::BitwiseXor => {
                match functions::common([&lt, &rt], self.settings.ansi) {
                    Some(one) if one.is_integer() => {
                        plain(Box::new(self.cast(*left, &lt, &one)?), Box::new(self.cast(*right, &rt, &one)?))
                    }
                    _ => plan_err!("{op} takes integers, not {lt} and {rt}"),
                }
            }
            Operator::And | Operator::Or => plain(
                Box::new(self.cast(*left, &lt, &DataType::Boolean)?),
                Box::new(self.cast(*right, &rt, &DataType::Boolean)?),
            ),
            _ => plain(left, right),
        }
    }

    fn comparison(&self, left: Expr, op: Operator, right: Expr, lt: &DataType, rt: &DataType) -> Result<Expr> {
        let interval = |t: &DataType| matches!(t, DataType::Interval(_) | DataType::Duration(_));
        if interval(lt) || interval(rt) {
            return Ok(Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }));
        }
        let Some(one) = functions::compared(lt, rt, self.settings.ansi) else {
            return plan_err!("{lt} and {rt} cannot be compared");
        };
        let (left, right) = (self.cast(left, lt, &one)?, self.cast(right, rt, &one)?);
        let (left, right) = if one.is_floating() && !functions::nonzero(&left) && !functions::nonzero(&right) {
            (functions::normal(left), functions::normal(right))
        } else {
            (left, right)
        };
        Ok(Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }))
    }

    fn list(&self, list: InList, schema: &DFSchema) -> Result<Expr> {
        let InList { expr, list, negated } = list;
        let mut types = vec![expr.get_type(schema)?];
        for item in &list {
            types.push(item.get_type(schema)?);
        }
        let mut one = DataType::Null;
        for t in &types {
            one = match functions::compared(&one, t, self.settings.ansi) {
                Some(one) => one,
                None => return plan_err!("the values of IN have no type in common with {one}"),
            };
        }
        let mut cast = types.iter().zip(std::iter::once(*expr).chain(list)).map(|(t, e)| {
            let cast = self.cast(e, t, &one)?;
            Ok(if one.is_floating() { functions::normal(cast) } else { cast })
        });
        let Some(expr) = cast.next().transpose()? else { return plan_err!("IN of nothing") };
        let list = cast.collect::<Result<Vec<_>>>()?;
        Ok(Expr::InList(InList { expr: Box::new(expr), list, negated }))
    }

    fn case(&self, case: Case, schema: &DFSchema) -> Result<Expr> {
        let Case { expr, when_then_expr, else_expr } = case;
        let type_of = |e: &Expr| e.get_type(schema);
        let mut results: Vec<DataType> = when_then_expr.iter().map(|(_, then)| type_of(then)).collect::<Result<_>>()?;
        results.extend(else_expr.as_deref().map(type_of).transpose()?);
        let Some(result) = functions::common(&results, self.settings.ansi) else {
            return plan_err!("the branches of CASE have no type in common");
        };
        let subject = match &expr {
            None => DataType::Boolean,
            Some(expr) => {
                let mut one = type_of(expr)?;
                for (when, _) in &when_then_expr {
                    let when = type_of(when)?;
                    one = match functions::compared(&one, &when, self.settings.ansi) {
                        Some(one) => one,
                        None => return plan_err!("CASE of {one} has no branch of {when}"),
                    };
                }
                one
            }
        };
        let to = |e: Box<Expr>, wanted: &DataType| {
            let from = e.get_type(schema)?;
            self.cast(*e, &from, wanted).map(Box::new)
        };
        let else_expr = else_expr.map(|e| to(e, &result)).transpose()?;
        let when_then_expr = when_then_expr
            .into_iter()
            .map(|(when, then)| Ok((to(when, &subject)?, to(then, &result)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Expr::Case(Case { expr: expr.map(|e| to(e, &subject)).transpose()?, when_then_expr, else_expr }))
    }
}

impl FunctionRewrite for SparkMeaning {
    fn name(&self) -> &str {
        "spark_meaning"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        let rewritten = match expr {
            Expr::Cast(cast) => {
                let from = cast.expr.get_type(schema)?;
                functions::cast(*cast.expr, &from, cast.field.data_type(), false, &self.settings)?
            }
            Expr::TryCast(TryCast { expr, field }) => {
                let from = expr.get_type(schema)?;
                functions::cast(*expr, &from, field.data_type(), true, &self.settings)?
            }
            Expr::BinaryExpr(binary) => self.binary(binary, schema)?,
            Expr::Negative(expr) if !matches!(expr.get_type(schema)?, DataType::Interval(_)) => {
                self.call("negative", vec![*expr], schema)?
            }
            Expr::Between(Between { expr, negated, low, high }) => {
                let (t, lt, ht) = (expr.get_type(schema)?, low.get_type(schema)?, high.get_type(schema)?);
                let from = self.comparison((*expr).clone(), Operator::GtEq, *low, &t, &lt)?;
                let to = self.comparison(*expr, Operator::LtEq, *high, &t, &ht)?;
                let both = from.and(to);
                if negated { Expr::Not(Box::new(both)) } else { both }
            }
            Expr::InList(list) => self.list(list, schema)?,
            Expr::Case(case) => self.case(case, schema)?,
            Expr::Not(expr) => {
                let from = expr.get_type(schema)?;
                Expr::Not(Box::new(self.cast(*expr, &from, &DataType::Boolean)?))
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) => match (func.name(), args.as_slice()) {
                // A branch that is not taken is not computed, as CASE has it.
                ("if", [_, _, _]) => {
                    let mut args = args.into_iter();
                    let mut next = || args.next().unwrap_or_else(|| lit(ScalarValue::Null));
                    let (test, then) = (next(), next());
                    let case = Case::new(None, vec![(Box::new(test), Box::new(then))], Some(Box::new(next())));
                    self.case(case, schema)?
                }
                _ => self.with_types(func, args, schema)?,
            },
            other => return Ok(Transformed::no(other)),
        };
        Ok(Transformed::yes(rewritten))
    }
}

/// `a.b` and `a[b]` over structs, arrays and maps.
#[derive(Debug)]
pub(super) struct SparkAccess {
    subscript: Arc<ScalarUDF>,
    member: Arc<ScalarUDF>,
}

impl SparkAccess {
    pub(super) fn new(functions: &[Arc<ScalarUDF>]) -> Option<SparkAccess> {
        let find = |name: &str| functions.iter().find(|f| f.name() == name).cloned();
        Some(SparkAccess { subscript: find("subscript")?, member: find("member")? })
    }
}

impl ExprPlanner for SparkAccess {
    fn plan_field_access(
        &self,
        access: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        let RawFieldAccessExpr { field_access, expr } = access;
        let planned = |func: &Arc<ScalarUDF>, args: Vec<Expr>| {
            Ok(PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction { func: Arc::clone(func), args })))
        };
        let from = expr.get_type(schema)?;
        match field_access {
            GetFieldAccess::NamedStructField { name } => match from {
                DataType::Map(..) => planned(&self.subscript, vec![expr, lit(name)]),
                DataType::List(_) => planned(&self.member, vec![expr, lit(name)]),
                _ => Ok(PlannerResult::Original(RawFieldAccessExpr {
                    field_access: GetFieldAccess::NamedStructField { name },
                    expr,
                })),
            },
            GetFieldAccess::ListIndex { key } => planned(&self.subscript, vec![expr, *key]),
            range @ GetFieldAccess::ListRange { .. } => {
                Ok(PlannerResult::Original(RawFieldAccessExpr { field_access: range, expr }))
            }
        }
    }
}

/// Types by their names in Spark's DDL.
#[derive(Debug)]
pub(super) struct SparkTypes;

impl TypePlanner for SparkTypes {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> Result<Option<FieldRef>> {
        match sql_type {
            // Without a size it is an interval between days and microseconds, which DDL has no name for.
            ast::DataType::Interval { .. } => Ok(None),
            other => match functions::ddl(&other.to_string()) {
                Ok(found) => Ok(Some(Arc::new(Field::new("", found, true)))),
                Err(message) => plan_err!("{message}"),
            },
        }
    }
}

/// What a cast is of; a cast keeps the value for the purpose of a tie.
pub(super) fn cast_of(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Cast(cast) => Some(&cast.expr),
        Expr::ScalarFunction(function) if (function.func.inner().as_ref() as &dyn Any).is::<functions::SparkCast>() => {
            function.args.first()
        }
        _ => None,
    }
}
