//! `explode(array)` in a select list, for ad-hoc queries: the planner knows it as `unnest`, which it takes only where
//! nothing is grouped; grouped queries explode in a derived table first.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    self, Expr, Function, GroupByExpr, Ident, ObjectName, Query, Select, SelectItem, SetExpr, TableAlias, TableFactor,
    TableWithJoins, VisitMut, VisitorMut,
};

/// Rewrites every select list of the query.
pub fn lift_explode(query: &mut Query) {
    let _ = VisitMut::visit(query, &mut Lift);
}

struct Lift;

impl VisitorMut for Lift {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_mut() {
            lift(select);
        }
        ControlFlow::Continue(())
    }
}

fn exploded(expr: &mut Expr) -> Option<&mut Function> {
    match expr {
        Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("explode") => Some(function),
        _ => None,
    }
}

fn lift(select: &mut Select) {
    let grouped = matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if !keys.is_empty());
    let mut lifted: Vec<SelectItem> = Vec::new();
    for item in &mut select.projection {
        let (expr, alias) = match item {
            SelectItem::ExprWithAlias { expr, alias } => (expr, alias.clone()),
            SelectItem::UnnamedExpr(expr) => (expr, Ident::new("col")),
            _ => continue,
        };
        let Some(function) = exploded(expr) else { continue };
        function.name = ObjectName::from(vec![Ident::new("unnest")]);
        let unnest = expr.clone();
        if grouped {
            *item = SelectItem::UnnamedExpr(Expr::Identifier(alias.clone()));
            lifted.push(SelectItem::ExprWithAlias { expr: unnest, alias });
        } else {
            *item = SelectItem::ExprWithAlias { expr: unnest, alias };
        }
    }
    if lifted.is_empty() {
        return;
    }
    let mut inner = select.clone();
    inner.projection = vec![SelectItem::Wildcard(ast::WildcardAdditionalOptions::default())];
    inner.projection.extend(lifted);
    inner.group_by = GroupByExpr::Expressions(Vec::new(), Vec::new());
    inner.having = None;
    inner.distinct = None;
    select.selection = None;
    let subquery = Query {
        with: None,
        body: Box::new(SetExpr::Select(Box::new(inner))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    };
    select.from = vec![TableWithJoins {
        relation: TableFactor::Derived {
            lateral: false,
            subquery: Box::new(subquery),
            alias: Some(TableAlias { name: Ident::new("exploded"), columns: Vec::new(), explicit: true, at: None }),
            sample: None,
        },
        joins: Vec::new(),
    }];
}
