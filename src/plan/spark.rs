//! Where DataFusion reads an expression otherwise than Spark, its meaning is put right here, before types are coerced:
//! operators, casts and calls get the operand types that Spark gives them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, ScalarValue, TableReference, not_impl_err, plan_err};
use datafusion::functions::core::get_field;
use datafusion::logical_expr::expr::{Case, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr, TypePlanner};
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, GetFieldAccess, Operator, ScalarUDF, TryCast, lit,
};
use datafusion::sql::sqlparser::ast;

use super::clock::reads_clock;
use super::functions::{self, PATH, Settings, TypeIn};

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
        let types = args.iter().map(|a| a.type_in(schema)).collect::<Result<Vec<_>>>()?;
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

    /// `x:a.b`, which goes into JSON text or into a struct.
    fn member_path(&self, func: &ScalarUDF, args: &[Expr], schema: &DFSchema) -> Result<Option<Expr>> {
        let (PATH, [root, Expr::Literal(ScalarValue::Utf8(Some(path)), _)]) = (func.name(), args) else {
            return Ok(None);
        };
        let mut from = root.type_in(schema)?;
        if !matches!(from, DataType::Struct(_)) {
            return self.call("get_json_object", args.to_vec(), schema).map(Some);
        }
        let mut found = root.clone();
        for name in functions::members_of(path) {
            let field = functions::member_of(&from, &name)?;
            found = get_field().call(vec![found, lit(field.name().clone())]);
            from = field.data_type().clone();
        }
        Ok(Some(found))
    }

    fn binary(&self, binary: BinaryExpr, schema: &DFSchema) -> Result<Expr> {
        let BinaryExpr { left, op, right } = binary;
        let (lt, rt) = (left.type_in(schema)?, right.type_in(schema)?);
        let plain = |left: Box<Expr>, right: Box<Expr>| Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
        let interval = |t: &DataType| matches!(t, DataType::Interval(_) | DataType::Duration(_));
        let temporal = |t: &DataType| matches!(t, DataType::Date32 | DataType::Timestamp(..));
        match op {
            Operator::Plus | Operator::Minus if interval(&lt) || interval(&rt) => {
                // Text beside an interval is a timestamp, and so is a date beside hours.
                let hours = has_hours(&left) || has_hours(&right);
                let instant = functions::instant();
                let side = |expr: Box<Expr>, t: &DataType| match t {
                    DataType::Utf8 => self.cast(*expr, t, &instant).map(Box::new),
                    DataType::Date32 if hours => self.cast(*expr, t, &instant).map(Box::new),
                    _ => Ok(expr),
                };
                let (left, right) = (side(left, &lt)?, side(right, &rt)?);
                let (left_instant, right_instant) =
                    (left.type_in(schema)? == instant, right.type_in(schema)? == instant);
                match op {
                    // Beside the clock a day has 24 hours, so that the moment of a change can be foretold.
                    _ if self.settings.zone.is_utc() || reads_clock(&left) || reads_clock(&right) => plain(left, right),
                    Operator::Minus if left_instant => self.call("minus_interval", vec![*left, *right], schema),
                    Operator::Plus if left_instant => self.call("plus_interval", vec![*left, *right], schema),
                    Operator::Plus if right_instant => self.call("plus_interval", vec![*right, *left], schema),
                    _ => plain(left, right),
                }
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
            | Operator::IsNotDistinctFrom => {
                if (interval(&lt) || interval(&rt)) && (reads_clock(&left) || reads_clock(&right)) {
                    return plain(left, right);
                }
                if interval(&lt) || interval(&rt) {
                    let (left, right) = (
                        self.call("interval_micros", vec![*left], schema)?,
                        self.call("interval_micros", vec![*right], schema)?,
                    );
                    return plain(Box::new(left), Box::new(right));
                }
                self.comparison(*left, op, *right, &lt, &rt)
            }
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
        let mut types = vec![expr.type_in(schema)?];
        for item in &list {
            types.push(item.type_in(schema)?);
        }
        let Some(one) = functions::common(&types, self.settings.ansi) else {
            return plan_err!("the values of IN have no type in common");
        };
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
        let type_of = |e: &Expr| e.type_in(schema);
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
            let from = e.type_in(schema)?;
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
                let from = cast.expr.type_in(schema)?;
                functions::cast(*cast.expr, &from, cast.field.data_type(), false, &self.settings)?
            }
            Expr::TryCast(TryCast { expr, field }) => {
                let from = expr.type_in(schema)?;
                functions::cast(*expr, &from, field.data_type(), true, &self.settings)?
            }
            Expr::BinaryExpr(binary) => self.binary(binary, schema)?,
            Expr::Negative(expr) if !matches!(expr.type_in(schema)?, DataType::Interval(_)) => {
                self.call("negative", vec![*expr], schema)?
            }
            Expr::Between(Between { expr, negated, low, high }) => {
                let (t, lt, ht) = (expr.type_in(schema)?, low.type_in(schema)?, high.type_in(schema)?);
                let from = self.comparison((*expr).clone(), Operator::GtEq, *low, &t, &lt)?;
                let to = self.comparison(*expr, Operator::LtEq, *high, &t, &ht)?;
                let both = from.and(to);
                if negated { Expr::Not(Box::new(both)) } else { both }
            }
            Expr::InList(list) => self.list(list, schema)?,
            Expr::Case(case) => self.case(case, schema)?,
            Expr::Not(expr) => {
                let from = expr.type_in(schema)?;
                Expr::Not(Box::new(self.cast(*expr, &from, &DataType::Boolean)?))
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) => match self.member_path(&func, &args, schema)? {
                Some(member) => member,
                None => self.with_types(func, args, schema)?,
            },
            other => return Ok(Transformed::no(other)),
        };
        Ok(Transformed::yes(rewritten))
    }
}

/// `a.b` and `a[b]` over structs, arrays and maps, and maps themselves, which the planner has a way of its own for.
#[derive(Debug)]
pub(super) struct SparkAccess {
    subscript: Arc<ScalarUDF>,
    member: Arc<ScalarUDF>,
    map: Arc<ScalarUDF>,
}

impl SparkAccess {
    pub(super) fn new(functions: &[Arc<ScalarUDF>]) -> Option<SparkAccess> {
        let find = |name: &str| functions.iter().find(|f| f.name() == name).cloned();
        Some(SparkAccess { subscript: find("subscript")?, member: find("member")?, map: find("map")? })
    }
}

impl SparkAccess {
    /// `expr.name`, `None` for a struct, which the planner knows itself.
    fn named(&self, expr: Expr, from: &DataType, name: ScalarValue) -> std::result::Result<Expr, Expr> {
        let func = match from {
            DataType::Map(..) => &self.subscript,
            DataType::List(_) => &self.member,
            _ => return Err(expr),
        };
        Ok(Expr::ScalarFunction(ScalarFunction { func: Arc::clone(func), args: vec![expr, lit(name)] }))
    }
}

impl ExprPlanner for SparkAccess {
    fn plan_make_map(&self, args: Vec<Expr>) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(PlannerResult::Planned(self.map.call(args)))
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        qualifier: Option<&TableReference>,
        names: &[String],
    ) -> Result<PlannerResult<Vec<Expr>>> {
        let mut expr = Expr::Column(Column::from((qualifier, field)));
        let mut from = field.data_type().clone();
        let columns =
            DFSchema::new_with_metadata(vec![(qualifier.cloned(), Arc::new(field.clone()))], Default::default())?;
        for name in names {
            let member = |fields: &Fields| {
                let same = fields.iter().find(|f| f.name() == name);
                same.or_else(|| fields.iter().find(|f| f.name().eq_ignore_ascii_case(name))).cloned()
            };
            match &from {
                DataType::Struct(fields) => {
                    let Some(found) = member(fields) else {
                        return plan_err!("{expr} has no member {name}");
                    };
                    expr = get_field().call(vec![expr, lit(found.name().clone())]);
                    from = found.data_type().clone();
                }
                other => {
                    expr = match self.named(expr, other, ScalarValue::from(name.as_str())) {
                        Ok(found) => found,
                        Err(expr) => return plan_err!("{expr} is {other} and has no members"),
                    };
                    from = expr.get_type(&columns)?;
                }
            }
        }
        Ok(PlannerResult::Planned(expr))
    }

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
            GetFieldAccess::NamedStructField { name } => match self.named(expr, &from, name.clone()) {
                Ok(found) => Ok(PlannerResult::Planned(found)),
                Err(expr) => Ok(PlannerResult::Original(RawFieldAccessExpr {
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

/// A type as DDL writes it, whatever brackets it was parsed from.
fn ddl(sql_type: &ast::DataType) -> String {
    match sql_type {
        ast::DataType::Map(key, value) => format!("MAP<{}, {}>", ddl(key), ddl(value)),
        ast::DataType::Array(ast::ArrayElemTypeDef::AngleBracket(item) | ast::ArrayElemTypeDef::Parenthesis(item)) => {
            format!("ARRAY<{}>", ddl(item))
        }
        ast::DataType::Struct(fields, _) => {
            let members: Vec<String> = fields
                .iter()
                .map(|f| match &f.field_name {
                    Some(name) => format!("`{}`: {}", name.value.replace('`', "``"), ddl(&f.field_type)),
                    None => ddl(&f.field_type),
                })
                .collect();
            format!("STRUCT<{}>", members.join(", "))
        }
        // A cast to a text of a limited length is one to text.
        ast::DataType::Char(_) | ast::DataType::Character(_) | ast::DataType::Varchar(_) => "STRING".to_owned(),
        other => other.to_string(),
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
            other => match functions::ddl(&ddl(other)) {
                Ok(found) => Ok(Some(Arc::new(Field::new("", found, true)))),
                Err(message) => plan_err!("{message}"),
            },
        }
    }
}

/// Whether a literal interval has a part below a day.
fn has_hours(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(v)), _) => v.nanoseconds != 0,
        Expr::Literal(ScalarValue::IntervalDayTime(Some(v)), _) => v.milliseconds != 0,
        _ => false,
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
