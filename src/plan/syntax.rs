//! Forms of Spark's SQL that the planner does not take, or reads otherwise, as the calls and casts that they stand for.

mod forms;

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    self, AccessExpr, BinaryOperator, CaseWhen, CastKind, CeilFloorKind, DataType, DateTimeField, DuplicateTreatment,
    ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    GroupByExpr, Ident, JsonPathElem, LimitClause, ObjectName, OrderByKind, Query, Select, SelectFlavor, SelectItem,
    TableFactor, TrimWhereField, TypedString, UnaryOperator, Value, ValueWithSpan, VisitMut, VisitorMut,
    WildcardAdditionalOptions, WindowFrameBound, WindowType,
};

use self::forms::{Variables, multiple, quantified, spell_body, spell_join, spell_pipe, variant};
use super::functions::{NOT, PATH, SORTED_BY, schema_of};
use super::metadata::METADATA;
use crate::sql::UNSIGNED_SHIFT;

/// Rewrites every expression in `node`.
pub fn read_as_spark(node: &mut impl VisitMut) {
    let _ = VisitMut::visit(node, &mut Reader);
}

struct Reader;

pub(super) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None::<DuplicateTreatment>,
            args: arguments.into_iter().map(|a| FunctionArg::Unnamed(FunctionArgExpr::Expr(a))).collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

fn string(text: impl Into<String>) -> Expr {
    Expr::Value(Value::SingleQuotedString(text.into()).with_empty_span())
}

fn negated(expr: Expr, not: bool) -> Expr {
    if not { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) } } else { expr }
}

fn joined(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, Expr::Value(Value::Null.with_empty_span()))
}

/// A literal number with the type that Spark gives it.
fn number(text: &str, long: bool) -> Option<Expr> {
    let value = |t: &str| Expr::Value(Value::Number(t.to_owned(), false).with_empty_span());
    if text.contains(['e', 'E']) {
        return Some(cast(string(text), DataType::Double(ExactNumberInfo::None)));
    }
    if !long && text.parse::<i32>().is_ok() {
        return Some(cast(value(text), DataType::Int(None)));
    }
    if !text.contains('.') && text.parse::<i64>().is_err() {
        let digits = u64::try_from(text.trim_start_matches('-').len()).ok()?;
        return Some(cast(string(text), DataType::Decimal(ExactNumberInfo::PrecisionAndScale(digits, 0))));
    }
    None
}

/// A literal as it was before [`number`] gave it a type; places and counts are no values.
fn untyped(expr: &mut Expr) {
    if let Expr::Cast { expr: inner, data_type: DataType::Int(None), .. } = expr
        && matches!(inner.as_ref(), Expr::Value(ValueWithSpan { value: Value::Number(..), .. }))
    {
        *expr = take(inner);
    }
}

fn name_of(expr: &Expr, index: usize) -> String {
    match expr {
        Expr::Identifier(ident) => ident.value.clone(),
        Expr::CompoundIdentifier(parts) => parts.last().map_or_else(String::new, |p| p.value.clone()),
        Expr::CompoundFieldAccess { access_chain, .. } => match access_chain.last() {
            Some(AccessExpr::Dot(Expr::Identifier(ident))) => ident.value.clone(),
            Some(AccessExpr::Dot(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(name), .. }))) => {
                name.clone()
            }
            _ => format!("col{}", index + 1),
        },
        Expr::Named { name, .. } => name.value.clone(),
        _ => format!("col{}", index + 1),
    }
}

fn structure(values: Vec<Expr>) -> Expr {
    let mut arguments = Vec::with_capacity(values.len() * 2);
    for (index, value) in values.into_iter().enumerate() {
        arguments.push(string(name_of(&value, index)));
        arguments.push(match value {
            Expr::Named { expr, .. } => *expr,
            other => other,
        });
    }
    call("named_struct", arguments)
}

/// The arguments of a call that has nothing but arguments.
fn arguments(function: &mut Function) -> Option<&mut Vec<FunctionArg>> {
    match &mut function.args {
        FunctionArguments::List(list) => Some(&mut list.args),
        _ => None,
    }
}

/// The arguments, where none has a name.
fn positional(given: &mut Vec<FunctionArg>) -> Option<Vec<Expr>> {
    let plain = |argument: &FunctionArg| matches!(argument, FunctionArg::Unnamed(FunctionArgExpr::Expr(_)));
    if !given.iter().all(plain) {
        return None;
    }
    let values = given.drain(..).filter_map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    Some(values.collect())
}

/// Types whose names are functions that cast.
pub(super) const CASTS: [&str; 12] = [
    "bigint",
    "binary",
    "boolean",
    "date",
    "decimal",
    "double",
    "float",
    "int",
    "smallint",
    "string",
    "timestamp",
    "tinyint",
];

fn cast_name(name: &str) -> Option<DataType> {
    CASTS.contains(&name).then(|| DataType::Custom(ObjectName::from(vec![Ident::new(name)]), Vec::new()))
}

/// The number and unit pairs of an interval such as `'1 02:03:04' DAY TO SECOND`.
fn spread(text: &str, from: &DateTimeField, to: &DateTimeField) -> Option<String> {
    const UNITS: [&str; 4] = ["day", "hour", "minute", "second"];
    let (negative, text) = match text.trim().strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.trim().trim_start_matches('+')),
    };
    let sign = if negative { "-" } else { "" };
    if matches!((from, to), (DateTimeField::Year, DateTimeField::Month)) {
        let (years, months) = text.split_once('-')?;
        return Some(format!("{sign}{years} year {sign}{months} month"));
    }
    let place = |field: &DateTimeField| UNITS.iter().position(|unit| field.to_string().eq_ignore_ascii_case(unit));
    let units = UNITS.get(place(from)?..=place(to)?)?;
    let parts: Vec<&str> = text.split([' ', ':']).collect();
    if parts.len() != units.len() {
        return None;
    }
    Some(parts.iter().zip(units).map(|(part, unit)| format!("{sign}{part} {unit}")).collect::<Vec<_>>().join(" "))
}

fn interval(interval: &mut ast::Interval) {
    untyped(&mut interval.value);
    if let (Some(from), Some(to)) = (&interval.leading_field, &interval.last_field)
        && let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) = interval.value.as_mut()
        && let Some(plain) = spread(text, from, to)
    {
        *text = plain;
        interval.leading_field = None;
        interval.last_field = None;
    }
}

/// Names of members behind a value that is computed are text to the planner.
fn members(root: &Expr, chain: &mut [AccessExpr]) {
    let mut named = matches!(root, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
    for access in chain {
        match access {
            AccessExpr::Dot(Expr::Identifier(name)) if !named => {
                *access = AccessExpr::Dot(string(name.value.clone()));
            }
            AccessExpr::Dot(_) => {}
            AccessExpr::Subscript(_) => named = false,
        }
    }
}

/// Units that `dateadd(unit, …)` and its like take as a bare word.
fn unit(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(ident) if ident.quote_style.is_none() => Some(ident.value.to_ascii_lowercase()),
        _ => None,
    }
}

fn function(function: &mut Function) -> Option<Expr> {
    let name = function.name.to_string().to_ascii_lowercase();
    let given = arguments(function)?;
    match name.as_str() {
        "dateadd" | "date_add" | "timestampadd" | "datediff" | "date_diff" | "timestampdiff" if given.len() == 3 => {
            if let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(first))) = given.first_mut()
                && let Some(unit) = unit(first)
            {
                *first = string(unit);
            }
            let name = if name.contains("add") { "timestampadd" } else { "timestampdiff" };
            function.name = ObjectName::from(vec![Ident::new(name)]);
            None
        }
        "if" => {
            let mut values = positional(given)?.into_iter();
            let (condition, result) = (values.next()?, values.next()?);
            let otherwise = values.next();
            if values.next().is_some() {
                return None;
            }
            // A branch that is not taken is not computed, as CASE has it.
            Some(Expr::Case {
                case_token: AttachedToken::empty(),
                end_token: AttachedToken::empty(),
                operand: None,
                conditions: vec![CaseWhen { condition, result }],
                else_result: otherwise.map(Box::new),
            })
        }
        name if given.len() == 1 && cast_name(name).is_some() => {
            let data_type = cast_name(name)?;
            positional(given)?.pop().map(|value| cast(value, data_type))
        }
        "charindex" => {
            function.name = ObjectName::from(vec![Ident::new("locate")]);
            None
        }
        "array_sort" if matches!(given.get(1), Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Lambda(_))))) => {
            function.name = ObjectName::from(vec![Ident::new(SORTED_BY)]);
            None
        }
        "from_json" => {
            // The schema of a sample is known at once.
            if let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(schema))) = given.get_mut(1)
                && let Some(found) = schema_of_json(schema)
            {
                *schema = string(found);
            }
            None
        }
        "variant_get" | "try_variant_get" | "to_variant_object" | "is_variant_null" => variant(&name, given),
        "input_file_name" if given.is_empty() => {
            Some(Expr::CompoundIdentifier([METADATA, "file_path"].map(Ident::new).to_vec()))
        }
        "struct" => Some(structure(positional(given)?)),
        "map" if given.is_empty() => {
            Some(call("map_from_arrays", vec![call("array", Vec::new()), call("array", Vec::new())]))
        }
        _ => None,
    }
}

/// The schema that `schema_of_json('…')` stands for.
fn schema_of_json(expr: &mut Expr) -> Option<String> {
    let Expr::Function(sample) = expr else { return None };
    if !sample.name.to_string().eq_ignore_ascii_case("schema_of_json") {
        return None;
    }
    match arguments(sample)?.as_slice() {
        [
            FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(ValueWithSpan {
                value: Value::SingleQuotedString(text),
                ..
            }))),
        ] => schema_of(text),
        _ => None,
    }
}

/// `$.a.b[0]` of `value:a.b[0]`.
fn json_path(path: &mut ast::JsonPath) -> Option<String> {
    let mut text = "$".to_owned();
    for element in &mut path.path {
        if let JsonPathElem::Bracket { key } | JsonPathElem::ColonBracket { key } = element {
            untyped(key);
        }
        match element {
            JsonPathElem::Dot { key, .. } => {
                text.push_str("['");
                text.push_str(key);
                text.push_str("']");
            }
            JsonPathElem::Bracket { key } | JsonPathElem::ColonBracket { key } => match key {
                Expr::Value(ValueWithSpan { value: Value::Number(index, _), .. }) => {
                    text.push('[');
                    text.push_str(index);
                    text.push(']');
                }
                Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(key), .. }) => {
                    text.push_str("['");
                    text.push_str(key);
                    text.push_str("']");
                }
                _ => return None,
            },
        }
    }
    Some(text)
}

/// What an expression stands for, once its parts have been read.
fn read(expr: &mut Expr) -> Option<Expr> {
    Some(match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(text, long), .. }) => number(text, *long)?,
        Expr::RLike { negated: not, expr, pattern, .. } => {
            negated(call("rlike", vec![take(expr), take(pattern)]), *not)
        }
        Expr::ILike { negated: not, any: false, expr, pattern, escape_char } => {
            negated(call("ilike", like_arguments(expr, pattern, escape_char)?), *not)
        }
        Expr::Like { negated: not, any: false, expr, pattern, escape_char } => {
            negated(call("like", like_arguments(expr, pattern, escape_char)?), *not)
        }
        Expr::BinaryOp { left, op, right } => {
            let name = match op {
                BinaryOperator::MyIntegerDivide => "div",
                BinaryOperator::StringConcat => "concat",
                BinaryOperator::PGBitwiseShiftLeft => "shiftleft",
                BinaryOperator::PGBitwiseShiftRight => "shiftright",
                BinaryOperator::Custom(name) if name == UNSIGNED_SHIFT => "shiftrightunsigned",
                _ => return None,
            };
            call(name, vec![take(left), take(right)])
        }
        Expr::UnaryOp { op, expr } => {
            let name = match op {
                UnaryOperator::BitwiseNot => NOT,
                UnaryOperator::BangNot => return Some(negated(take(expr), true)),
                UnaryOperator::Plus => "positive",
                UnaryOperator::Minus => "negative",
                _ => return None,
            };
            call(name, vec![take(expr)])
        }
        Expr::Extract { field, expr, .. } => call("date_part", vec![string(field.to_string()), take(expr)]),
        Expr::Ceil { expr, field } => rounded("ceil", expr, field)?,
        Expr::Floor { expr, field } => rounded("floor", expr, field)?,
        Expr::Position { expr, r#in } => call("locate", vec![take(expr), take(r#in)]),
        Expr::Substring { expr, substring_from, substring_for, .. } => {
            let mut arguments = vec![take(expr)];
            arguments.extend(substring_from.as_mut().map(|e| take(e)));
            arguments.extend(substring_for.as_mut().map(|e| take(e)));
            call("substring", arguments)
        }
        Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
            let mut arguments = vec![take(expr), take(overlay_what), take(overlay_from)];
            arguments.extend(overlay_for.as_mut().map(|e| take(e)));
            call("overlay", arguments)
        }
        Expr::Trim { trim_where, trim_what, expr, trim_characters } => {
            let what = match (trim_what, trim_characters.as_deref_mut()) {
                (Some(what), _) => Some(take(what)),
                (None, Some([what])) => Some(take(what)),
                _ => None,
            };
            match trim_where {
                None | Some(TrimWhereField::Both) => call("btrim", std::iter::once(take(expr)).chain(what).collect()),
                Some(TrimWhereField::Leading) => call("ltrim", what.into_iter().chain([take(expr)]).collect()),
                Some(TrimWhereField::Trailing) => call("rtrim", what.into_iter().chain([take(expr)]).collect()),
            }
        }
        Expr::Struct { values, fields } if fields.is_empty() => structure(std::mem::take(values)),
        Expr::JsonAccess { value, path } => {
            let path = json_path(path)?;
            call(PATH, vec![take(value), string(path)])
        }
        Expr::Function(f) => function(f)?,
        Expr::InList { expr: subject, list, negated: not } => {
            let Expr::Tuple(columns) = subject.as_mut() else { return None };
            let columns = std::mem::take(columns);
            let row = |item: Expr| {
                let (Expr::Tuple(values) | Expr::Struct { values, .. }) = item else { return None };
                if values.len() != columns.len() {
                    return None;
                }
                // A struct with a null in it equals another such, so there is no unknown here.
                let same = |(l, r): (&Expr, Expr)| Expr::BinaryOp {
                    left: Box::new(l.clone()),
                    op: BinaryOperator::Spaceship,
                    right: Box::new(r),
                };
                columns.iter().zip(values).map(same).reduce(|l, r| joined(l, BinaryOperator::And, r))
            };
            let rows = std::mem::take(list).into_iter().map(row).collect::<Option<Vec<_>>>()?;
            let any = rows.into_iter().reduce(|l, r| joined(l, BinaryOperator::Or, r))?;
            negated(Expr::Nested(Box::new(any)), *not)
        }
        Expr::TypedString(TypedString { data_type, value, .. }) => cast(Expr::Value(value.clone()), data_type.clone()),
        _ => return None,
    })
}

fn like_arguments(expr: &mut Expr, pattern: &mut Expr, escape: &mut Option<ValueWithSpan>) -> Option<Vec<Expr>> {
    let mut arguments = vec![take(expr), take(pattern)];
    arguments.extend(escape.take().map(Expr::Value));
    Some(arguments)
}

fn rounded(name: &str, expr: &mut Expr, field: &mut CeilFloorKind) -> Option<Expr> {
    let mut arguments = vec![take(expr)];
    match field {
        CeilFloorKind::DateTimeField(ast::DateTimeField::NoDateTime) => {}
        CeilFloorKind::DateTimeField(_) => return None,
        CeilFloorKind::Scale(scale) => arguments.push(Expr::Value(scale.clone())),
    }
    Some(call(name, arguments))
}

impl VisitorMut for Reader {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        // The sign belongs to the literal: the smallest integer has no positive.
        if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } = expr
            && let Expr::Value(ValueWithSpan { value: Value::Number(text, long), span }) = inner.as_ref()
            && text.bytes().all(|b| b.is_ascii_digit())
        {
            let value = Value::Number(format!("-{text}"), *long);
            *expr = Expr::Value(ValueWithSpan { value, span: *span });
        }
        if let Some(product) = multiple(expr) {
            *expr = product;
        }
        if let Expr::Lambda(lambda) = expr {
            let params: Vec<String> = lambda.params.iter().map(|param| param.name.value.to_lowercase()).collect();
            let _ = VisitMut::visit(&mut lambda.body, &mut Variables { params });
        }
        if let Some(conditions) = quantified(expr) {
            *expr = conditions;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Interval(found) => interval(found),
            Expr::CompoundFieldAccess { root, access_chain } => members(root, access_chain),
            other => {
                if let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = other
                    && let Some(frame) = &mut window.window_frame
                {
                    for bound in std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound) {
                        if let WindowFrameBound::Preceding(Some(count)) | WindowFrameBound::Following(Some(count)) =
                            bound
                        {
                            untyped(count);
                        }
                    }
                }
                if let Some(read) = read(other) {
                    *other = read;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        spell_body(&mut query.body);
        for pipe in &mut query.pipe_operators {
            spell_pipe(pipe);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            table_with_joins.joins.iter_mut().for_each(|join| spell_join(&mut join.join_operator));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        // FROM alone is all of it.
        if select.flavor == SelectFlavor::FromFirstNoSelect {
            select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
        }
        select.flavor = SelectFlavor::Standard;
        for table in &mut select.from {
            table.joins.iter_mut().for_each(|join| spell_join(&mut join.join_operator));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if let GroupByExpr::Expressions(keys, _) = &mut select.group_by {
            keys.iter_mut().for_each(untyped);
        }
        // A computed item has the name that it is written with.
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(Expr::Named { expr, name }) = item {
                *item = SelectItem::ExprWithAlias { expr: take(expr), alias: name.clone() };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(keys) = &mut order.kind
        {
            keys.iter_mut().for_each(|key| untyped(&mut key.expr));
        }
        match &mut query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                limit.iter_mut().for_each(untyped);
                offset.iter_mut().for_each(|o| untyped(&mut o.value));
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                untyped(offset);
                untyped(limit);
            }
            None => {}
        }
        if let Some(fetch) = &mut query.fetch {
            fetch.quantity.iter_mut().for_each(untyped);
        }
        ControlFlow::Continue(())
    }
}
