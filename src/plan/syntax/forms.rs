//! Forms that stand for others: set operations and joins in their other spellings, pipes, quantified LIKE, products of
//! intervals, members of lambda variables, and the functions of VARIANT.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    self, AccessExpr, AssignmentTarget, BinaryOperator, CastKind, DataType, ExceptSelectItem, Expr, FunctionArg, Ident,
    JoinOperator, ObjectName, PipeOperator, ReplaceSelectElement, ReplaceSelectItem, SelectItem, SetExpr, SetOperator,
    UnaryOperator, Value, ValueWithSpan, VisitorMut, WildcardAdditionalOptions,
};

use super::{arguments, call, joined, positional, spread, string, take};

pub(super) fn spell_body(body: &mut SetExpr) {
    if let SetExpr::SetOperation { left, right, op, .. } = body {
        if *op == SetOperator::Minus {
            *op = SetOperator::Except;
        }
        spell_body(left);
        spell_body(right);
    }
}

/// SEMI and ANTI keep rows of the left side, also where LEFT is not written.
pub(super) fn spell_join(join: &mut JoinOperator) {
    let taken = std::mem::replace(join, JoinOperator::CrossApply);
    *join = match taken {
        JoinOperator::Semi(on) => JoinOperator::LeftSemi(on),
        JoinOperator::Anti(on) => JoinOperator::LeftAnti(on),
        other => other,
    };
}

/// `|> SET` and `|> DROP` as the select lists that they stand for.
pub(super) fn spell_pipe(pipe: &mut PipeOperator) {
    match pipe {
        PipeOperator::Join(join) => spell_join(&mut join.join_operator),
        PipeOperator::Drop { columns } if !columns.is_empty() => {
            let first_element = columns.remove(0);
            let except = ExceptSelectItem { first_element, additional_elements: std::mem::take(columns) };
            let options = WildcardAdditionalOptions { opt_except: Some(except), ..Default::default() };
            *pipe = PipeOperator::Select { exprs: vec![SelectItem::Wildcard(options)] };
        }
        PipeOperator::Set { assignments } => {
            let items = assignments.drain(..).filter_map(|assignment| match assignment.target {
                AssignmentTarget::ColumnName(name) => {
                    let column_name = name.0.into_iter().next_back()?.as_ident()?.clone();
                    Some(Box::new(ReplaceSelectElement { expr: assignment.value, column_name, as_keyword: true }))
                }
                AssignmentTarget::Tuple(_) => None,
            });
            let replace = ReplaceSelectItem { items: items.collect() };
            let options = WildcardAdditionalOptions { opt_replace: Some(replace), ..Default::default() };
            *pipe = PipeOperator::Select { exprs: vec![SelectItem::Wildcard(options)] };
        }
        _ => {}
    }
}

/// `x LIKE ANY (…)` and `LIKE ALL (…)` as the conditions that they stand for.
pub(super) fn quantified(expr: &mut Expr) -> Option<Expr> {
    let (Expr::Like { negated: not, any, expr: subject, pattern, escape_char }
    | Expr::ILike { negated: not, any, expr: subject, pattern, escape_char }) = expr
    else {
        return None;
    };
    let not = *not;
    let (all, patterns) = match pattern.as_mut() {
        Expr::Tuple(patterns) if *any => (false, std::mem::take(patterns)),
        Expr::Nested(one) if *any => (false, vec![take(one)]),
        Expr::Function(function) => {
            let all = match function.name.to_string().to_ascii_lowercase().as_str() {
                "all" => true,
                "some" => false,
                _ => return None,
            };
            (all, positional(arguments(function)?)?)
        }
        _ => return None,
    };
    let (subject, escape_char) = (take(subject), escape_char.take());
    let insensitive = matches!(expr, Expr::ILike { .. });
    let one = |pattern: Expr| {
        let (subject, pattern) = (Box::new(subject.clone()), Box::new(pattern));
        let escape_char = escape_char.clone();
        Expr::Nested(Box::new(if insensitive {
            Expr::ILike { negated: not, any: false, expr: subject, pattern, escape_char }
        } else {
            Expr::Like { negated: not, any: false, expr: subject, pattern, escape_char }
        }))
    };
    let op = if all { BinaryOperator::And } else { BinaryOperator::Or };
    let both = |left, right| joined(left, op.clone(), right);
    patterns.into_iter().map(one).reduce(both).map(|all| Expr::Nested(Box::new(all)))
}

/// `variant_get(v, path[, type])` and its like: a VARIANT is its JSON text.
pub(super) fn variant(name: &str, given: &mut Vec<FunctionArg>) -> Option<Expr> {
    let attempt = name == "try_variant_get";
    match (name, given.len()) {
        ("to_variant_object", 1) => Some(call("to_json", positional(given)?)),
        ("is_variant_null", 1) => {
            let value = positional(given)?.pop()?;
            let text = call("trim", vec![call("coalesce", vec![value, string("")])]);
            Some(Expr::BinaryOp { left: Box::new(text), op: BinaryOperator::Eq, right: Box::new(string("null")) })
        }
        ("variant_get" | "try_variant_get", 2) => Some(call("get_json_object", positional(given)?)),
        ("variant_get" | "try_variant_get", 3) => {
            let mut values = positional(given)?;
            let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(to), .. }) = values.pop()? else {
                return None;
            };
            let data_type = DataType::Custom(ObjectName::from(vec![Ident::new(to)]), Vec::new());
            let kind = if attempt { CastKind::TryCast } else { CastKind::Cast };
            let expr = Box::new(call("get_json_object", values));
            Some(Expr::Cast { kind, expr, data_type, array: false, format: None })
        }
        _ => None,
    }
}

/// Members of the variables of a lambda.
pub(super) struct Variables {
    pub(super) params: Vec<String>,
}

impl VisitorMut for Variables {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && let Some((first, rest)) = parts.split_first()
            && self.params.contains(&first.value.to_lowercase())
        {
            *expr = Expr::CompoundFieldAccess {
                root: Box::new(Expr::Identifier(first.clone())),
                access_chain: rest.iter().map(|part| AccessExpr::Dot(string(part.value.clone()))).collect(),
            };
        }
        ControlFlow::Continue(())
    }
}

/// `2 * INTERVAL 1 HOUR`, of which the planner has no type.
pub(super) fn multiple(expr: &Expr) -> Option<Expr> {
    let Expr::BinaryOp { left, op: BinaryOperator::Multiply, right } = expr else { return None };
    let (found, factor) = match (left.as_ref(), right.as_ref()) {
        (Expr::Interval(found), factor) | (factor, Expr::Interval(found)) => (found, factor),
        _ => return None,
    };
    let factor: i64 = match factor {
        Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => text.parse().ok()?,
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match expr.as_ref() {
            Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => {
                text.parse::<i64>().ok()?.checked_neg()?
            }
            _ => return None,
        },
        _ => return None,
    };
    let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) = found.value.as_ref() else {
        return None;
    };
    let text = match (&found.leading_field, &found.last_field) {
        (None, None) => text.clone(),
        (Some(from), Some(to)) => spread(text, from, to)?,
        _ => return None,
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let parts = words.chunks(2).map(|pair| match pair {
        [number, unit] => Some(format!("{} {unit}", number.parse::<i64>().ok()?.checked_mul(factor)?)),
        _ => None,
    });
    let text = parts.collect::<Option<Vec<String>>>()?.join(" ");
    Some(Expr::Interval(ast::Interval {
        value: Box::new(string(text)),
        leading_field: None,
        last_field: None,
        ..found.clone()
    }))
}
