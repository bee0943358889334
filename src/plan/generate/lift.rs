//! Calls of generators, wherever SQL lets them stand, as relations.
//!
//! The syntax tree has no node for "these rows with the items of that value", so PIVOT, which no query keeps, carries it:
//! the table is the input, the one aggregate is the call, and a default stands for OUTER.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    self, Expr, ExprWithAlias, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, Join,
    JoinConstraint, JoinOperator, ObjectName, PivotValueSource, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Spanned, TableAlias, TableAliasColumnDef, TableFactor, TableWithJoins,
    Value, ValueWithSpan, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use crate::error::Error;
use crate::pipeline::Source;
use crate::sql::{GENERATORS, query_of, select_all};

/// Name of the column that a call in a select list stands for until its items take its place.
pub(super) const PLACE: &str = "$generator";

/// Alias of relations that no query names.
const NAMELESS: &str = "$generated";

/// Name of the call that puts the members of a struct in its place.
pub(super) const MEMBERS: &str = "$members";

/// Qualifiers that mean relations.
fn names_of(table: &TableWithJoins, names: &mut Vec<String>) {
    for factor in std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation)) {
        let alias = match factor {
            TableFactor::NestedJoin { table_with_joins, alias } => {
                names_of(table_with_joins, names);
                alias
            }
            TableFactor::Pivot { table, alias, .. } => {
                let inner = TableWithJoins { relation: table.as_ref().clone(), joins: Vec::new() };
                names_of(&inner, names);
                alias
            }
            TableFactor::Table { name, alias, .. } => {
                if let Some(last) = name.0.last().and_then(|part| part.as_ident()) {
                    names.push(last.value.to_lowercase());
                }
                alias
            }
            TableFactor::Derived { alias, .. } | TableFactor::Function { alias, .. } => alias,
            _ => continue,
        };
        names.extend(alias.iter().map(|alias| alias.name.value.to_lowercase()));
    }
}

/// Rewrites every call of a generator; `source` tells places.
///
/// # Errors
/// `UNSUPPORTED_GENERATOR` (user) where a generator stands in an expression or beside another one.
pub fn lift_generators(query: &mut Query, source: Option<&Source>) -> Result<(), Error> {
    let mut lift = Lift { source };
    match VisitMut::visit(query, &mut lift) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Lift<'a> {
    source: Option<&'a Source>,
}

fn generator(expr: &Expr) -> Option<&Function> {
    match expr {
        Expr::Function(function) if GENERATORS.contains(&function.name.to_string().to_lowercase().as_str()) => {
            Some(function)
        }
        _ => None,
    }
}

fn positional(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let plain = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(plain).collect()
}

pub(super) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.into_iter().map(|a| FunctionArg::Unnamed(FunctionArgExpr::Expr(a))).collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn text(value: impl Into<String>) -> Expr {
    Expr::Value(Value::SingleQuotedString(value.into()).with_empty_span())
}

fn structure(prefix: &str, values: Vec<Expr>) -> Expr {
    let members = values.into_iter().enumerate().flat_map(|(i, value)| [text(format!("{prefix}{i}")), value]);
    call("named_struct", members.collect())
}

fn alias_of(name: Ident, columns: Vec<Ident>) -> TableAlias {
    let columns = columns.into_iter().map(|name| TableAliasColumnDef { name, data_type: None }).collect();
    TableAlias { explicit: true, name, columns, at: None }
}

/// The rows of `table` with the items of a call.
fn carrier(table: TableFactor, call: Expr, outer: bool, alias: TableAlias) -> TableFactor {
    TableFactor::Pivot {
        table: Box::new(table),
        aggregate_functions: vec![ExprWithAlias { expr: call, alias: None }],
        value_column: Vec::new(),
        value_source: PivotValueSource::List(Vec::new()),
        default_on_null: outer.then(|| Expr::Value(Value::Null.with_empty_span())),
        alias: Some(alias),
    }
}

/// One factor for what a FROM clause reads so far.
fn whole(mut tables: Vec<TableWithJoins>) -> Option<TableFactor> {
    let mut first = if tables.is_empty() { return None } else { tables.remove(0) };
    for more in tables {
        let relation = match more.joins.is_empty() {
            true => more.relation,
            false => TableFactor::NestedJoin { table_with_joins: Box::new(more), alias: None },
        };
        first.joins.push(Join {
            relation,
            global: false,
            join_operator: JoinOperator::CrossJoin(JoinConstraint::None),
        });
    }
    Some(match first.joins.is_empty() {
        true => first.relation,
        false => TableFactor::NestedJoin { table_with_joins: Box::new(first), alias: None },
    })
}

/// The call and the alias of a table function that is a generator.
fn of_factor(factor: &TableFactor) -> Option<(Expr, Option<TableAlias>)> {
    let (name, arguments, alias) = match factor {
        TableFactor::Table { name, args: Some(args), alias, .. } => (name, &args.args, alias),
        TableFactor::Function { name, args, alias, .. } => (name, args, alias),
        _ => return None,
    };
    let called = call(&name.to_string(), Vec::new());
    let Expr::Function(mut function) = called else { return None };
    if let FunctionArguments::List(list) = &mut function.args {
        list.args.clone_from(arguments);
    }
    let called = Expr::Function(function);
    generator(&called)?;
    Some((called, alias.clone()))
}

impl Lift<'_> {
    fn wrong(&self, message: &str, at: &Expr) -> Error {
        let error = Error::user("UNSUPPORTED_GENERATOR", message);
        let span = at.span();
        match self.source {
            Some(source) if span.start.line > 0 => error.at(&source.span(span)),
            _ => error,
        }
    }

    /// The call as one of those that are planned: `stack` and `json_tuple` are rows of `inline`.
    fn plain(&self, expr: Expr) -> Result<Expr, Error> {
        let Some(function) = generator(&expr) else { return Ok(expr) };
        let name = function.name.to_string().to_lowercase();
        let Some(mut values) = positional(function) else {
            return Err(self.wrong(&format!("{name} takes plain arguments"), &expr));
        };
        match name.as_str() {
            "stack" => {
                let count = match values.first() {
                    Some(Expr::Value(ValueWithSpan { value: Value::Number(n, _), .. })) => n.parse::<usize>().ok(),
                    _ => None,
                };
                let Some(rows) = count.filter(|n| (1..=10_000).contains(n) && values.len() > 1) else {
                    return Err(self.wrong("stack takes a number of rows, and their values one after the other", &expr));
                };
                values.remove(0);
                let width = values.len().div_ceil(rows);
                values.resize_with(width * rows, || Expr::Value(Value::Null.with_empty_span()));
                let rows = values.chunks(width).map(|row| structure("col", row.to_vec())).collect();
                Ok(call("inline", vec![call("array", rows)]))
            }
            "json_tuple" => {
                let mut values = values.into_iter();
                let Some(json) = values.next() else {
                    return Err(self.wrong("json_tuple takes a text and names", &expr));
                };
                let members = values.map(|name| {
                    let path = call("concat", vec![text("$['"), name, text("']")]);
                    call("get_json_object", vec![json.clone(), path])
                });
                let members: Vec<Expr> = members.collect();
                if members.is_empty() {
                    return Err(self.wrong("json_tuple takes a text and names", &expr));
                }
                Ok(call("inline", vec![call("array", vec![structure("c", members)])]))
            }
            _ if values.len() != 1 => Err(self.wrong(&format!("{name} takes one argument"), &expr)),
            _ => Ok(expr),
        }
    }

    fn lateral_views(&self, select: &mut Select) -> Result<(), Error> {
        if select.lateral_views.is_empty() {
            return Ok(());
        }
        let Some(mut table) = whole(std::mem::take(&mut select.from)) else { return Ok(()) };
        for view in std::mem::take(&mut select.lateral_views) {
            if generator(&view.lateral_view).is_none() {
                return Err(self.wrong("LATERAL VIEW takes explode or its like", &view.lateral_view));
            }
            let name = view.lateral_view_name.0.last().and_then(|part| part.as_ident()).cloned();
            let alias = alias_of(name.unwrap_or_else(|| Ident::new(NAMELESS)), view.lateral_col_alias);
            table = carrier(table, self.plain(view.lateral_view)?, view.outer, alias);
        }
        select.from = vec![TableWithJoins { relation: table, joins: Vec::new() }];
        Ok(())
    }

    fn table_functions(&self, select: &mut Select) -> Result<(), Error> {
        let calls = |tables: &[TableWithJoins]| {
            tables
                .iter()
                .any(|t| of_factor(&t.relation).is_some() || t.joins.iter().any(|j| of_factor(&j.relation).is_some()))
        };
        if !calls(&select.from) {
            return Ok(());
        }
        let mut done: Vec<TableWithJoins> = Vec::new();
        for TableWithJoins { relation, joins } in std::mem::take(&mut select.from) {
            match of_factor(&relation) {
                None => done.push(TableWithJoins { relation, joins: Vec::new() }),
                Some((called, alias)) => {
                    done = vec![self.beside(done, called, alias, false)?];
                }
            }
            for join in joins {
                let Some((called, alias)) = of_factor(&join.relation) else {
                    if let Some(last) = done.last_mut() {
                        last.joins.push(join);
                    }
                    continue;
                };
                let free = |on: &JoinConstraint| match on {
                    JoinConstraint::None => true,
                    JoinConstraint::On(Expr::Value(value)) => value.value == Value::Boolean(true),
                    _ => false,
                };
                let outer = match &join.join_operator {
                    JoinOperator::CrossJoin(_) => false,
                    JoinOperator::Join(on) | JoinOperator::Inner(on) if free(on) => false,
                    JoinOperator::Left(on) | JoinOperator::LeftOuter(on) if free(on) => true,
                    _ => return Err(self.wrong("a join to explode or its like has no condition", &called)),
                };
                // The call reads what stands before it in this chain of joins, and what stands before the chain.
                done = vec![self.beside(done, called, alias, outer)?];
            }
        }
        select.from = done;
        Ok(())
    }

    fn beside(
        &self,
        tables: Vec<TableWithJoins>,
        called: Expr,
        alias: Option<TableAlias>,
        outer: bool,
    ) -> Result<TableWithJoins, Error> {
        let Some(table) = whole(tables) else {
            return Err(self.wrong("explode and its like read a table that stands before them", &called));
        };
        let alias = alias.unwrap_or_else(|| alias_of(Ident::new(NAMELESS), Vec::new()));
        Ok(TableWithJoins { relation: carrier(table, self.plain(called)?, outer, alias), joins: Vec::new() })
    }

    /// `a.*` where `a` is a column: its members in its place.
    fn members(&self, select: &mut Select) -> ControlFlow<Error> {
        let mut relations = Vec::new();
        select.from.iter().for_each(|table| names_of(table, &mut relations));
        let mut wrapped: Option<Vec<String>> = None;
        for item in &mut select.projection {
            let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) = item else {
                continue;
            };
            let parts: Vec<Ident> = name.0.iter().filter_map(|part| part.as_ident()).cloned().collect();
            let relation =
                parts.first().is_some_and(|p| parts.len() == 1 && relations.contains(&p.value.to_lowercase()));
            if relation || parts.is_empty() || *options != WildcardAdditionalOptions::default() {
                continue;
            }
            let places = wrapped.get_or_insert_default();
            let place = format!("{PLACE}{}", places.len());
            let expr = match <[Ident; 1]>::try_from(parts) {
                Ok([one]) => Expr::Identifier(one),
                Err(parts) => Expr::CompoundIdentifier(parts),
            };
            *item = SelectItem::ExprWithAlias { expr, alias: Ident::new(place.as_str()) };
            places.push(place);
        }
        let Some(places) = wrapped else { return ControlFlow::Continue(()) };
        let distinct = select.distinct.take();
        let subquery = Box::new(query_of(SetExpr::Select(Box::new(select.clone()))));
        let alias = Some(alias_of(Ident::new("$rows"), Vec::new()));
        let mut relation = TableFactor::Derived { lateral: false, subquery, alias, sample: None };
        for place in places {
            let called = call(MEMBERS, vec![Expr::Identifier(Ident::new(place))]);
            relation = carrier(relation, called, false, alias_of(Ident::new(NAMELESS), Vec::new()));
        }
        *select = select_all(vec![TableWithJoins { relation, joins: Vec::new() }]);
        select.distinct = distinct;
        ControlFlow::Continue(())
    }

    fn select_list(&self, select: &mut Select) -> Result<(), Error> {
        let mut found: Option<(usize, Expr, Vec<Ident>)> = None;
        for (index, item) in select.projection.iter().enumerate() {
            let (expr, names) = match item {
                SelectItem::UnnamedExpr(expr) => (expr, Vec::new()),
                SelectItem::ExprWithAlias { expr, alias } => (expr, vec![alias.clone()]),
                SelectItem::ExprWithAliases { expr, aliases } => (expr, aliases.clone()),
                _ => continue,
            };
            if generator(expr).is_none() {
                if let SelectItem::ExprWithAliases { .. } = item {
                    return Err(self.wrong("several names are for what explode and its like yield", expr));
                }
                continue;
            }
            if found.replace((index, expr.clone(), names)).is_some() {
                let message = "one select list has one generator; a LATERAL VIEW each takes more";
                return Err(self.wrong(message, expr));
            }
        }
        let Some((index, expr, names)) = found else { return Ok(()) };
        let grouped = match (&select.group_by, names.as_slice()) {
            (GroupByExpr::Expressions(keys, _), [name]) => keys
                .iter()
                .any(|key| matches!(key, Expr::Identifier(ident) if ident.value.eq_ignore_ascii_case(&name.value))),
            _ => false,
        };
        let called = self.plain(expr)?;
        if grouped {
            let Some(table) = whole(std::mem::take(&mut select.from)) else { return Ok(()) };
            if let (Some(item), [name]) = (select.projection.get_mut(index), names.as_slice()) {
                *item = SelectItem::UnnamedExpr(Expr::Identifier(name.clone()));
            }
            let relation = carrier(table, called, false, alias_of(Ident::new(NAMELESS), names));
            select.from = vec![TableWithJoins { relation, joins: Vec::new() }];
            return Ok(());
        }
        let Expr::Function(mut function) = called else { return Ok(()) };
        let Some(argument) = positional(&function).and_then(|mut values| values.pop()) else { return Ok(()) };
        if let FunctionArguments::List(list) = &mut function.args {
            let place = Expr::Identifier(Ident::new(PLACE));
            list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(place))];
        }
        let distinct = select.distinct.take();
        let mut inner = select.clone();
        if let Some(item) = inner.projection.get_mut(index) {
            *item = SelectItem::ExprWithAlias { expr: argument, alias: Ident::new(PLACE) };
        }
        let subquery = Box::new(query_of(SetExpr::Select(Box::new(inner))));
        let derived = TableFactor::Derived {
            lateral: false,
            subquery,
            alias: Some(alias_of(Ident::new("$rows"), Vec::new())),
            sample: None,
        };
        let relation = carrier(derived, Expr::Function(function), false, alias_of(Ident::new(NAMELESS), names));
        *select = select_all(vec![TableWithJoins { relation, joins: Vec::new() }]);
        select.distinct = distinct;
        Ok(())
    }
}

impl VisitorMut for Lift<'_> {
    type Break = Error;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let lifted = self
            .table_functions(select)
            .and_then(|()| self.lateral_views(select))
            .and_then(|()| self.select_list(select));
        match lifted {
            Ok(()) => self.members(select),
            Err(error) => ControlFlow::Break(error),
        }
    }
}
