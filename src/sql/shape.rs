//! Queries as syntax trees, put together and taken apart.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArguments, GroupByExpr, Ident, PipeOperator, Query, Select, SelectFlavor, SelectItem, SetExpr,
    Spanned, TableAlias, TableAliasColumnDef, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use super::statement::Context;
use crate::error::Span;
use crate::pipeline::declaration::WrittenQuery;
use crate::pipeline::{Name, QueryBody};

/// The query with other names for its columns.
pub(super) fn name_columns(query: Box<Query>, names: &[Name]) -> Box<Query> {
    let columns = names.iter().map(|name| TableAliasColumnDef::from_name(name.text.as_str())).collect();
    let alias = TableAlias { explicit: true, name: Ident::new("$named"), columns, at: None };
    let relation = TableFactor::Derived { lateral: false, subquery: query, alias: Some(alias), sample: None };
    Box::new(query_of(SetExpr::Select(Box::new(select_all(vec![TableWithJoins { relation, joins: Vec::new() }])))))
}

/// A query that is a body and nothing more.
pub(crate) fn query_of(body: SetExpr) -> Query {
    Query {
        with: None,
        body: Box::new(body),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

/// `SELECT * FROM …`
pub(crate) fn select_all(from: Vec<TableWithJoins>) -> Select {
    Select {
        select_token: AttachedToken::empty(),
        optimizer_hints: Vec::new(),
        distinct: None,
        select_modifiers: None,
        top: None,
        top_before_distinct: false,
        projection: vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())],
        exclude: None,
        into: None,
        from,
        lateral_views: Vec::new(),
        prewhere: None,
        selection: None,
        connect_by: Vec::new(),
        group_by: GroupByExpr::Expressions(Vec::new(), Vec::new()),
        cluster_by: Vec::new(),
        distribute_by: Vec::new(),
        sort_by: Vec::new(),
        having: None,
        named_window: Vec::new(),
        qualify: None,
        window_before_qualify: false,
        value_table_mode: None,
        flavor: SelectFlavor::Standard,
    }
}

/// Takes off what orders the rows of a definition's query: a table has no order.
pub(super) fn without_order(context: &Context<'_>, query: &mut WrittenQuery) {
    let mut order = Order { context, whole: query.span.clone() };
    if let QueryBody::Sql(ast) = &mut query.body {
        let _ = VisitMut::visit(ast, &mut order);
    }
}

struct Order<'a> {
    context: &'a Context<'a>,
    whole: Span,
}

impl Order<'_> {
    fn found(&self, clause: &'static str, at: AstSpan) {
        let at = if at.start.line == 0 { self.whole.clone() } else { self.context.file.span(at) };
        self.context.without_effect(clause, "rows of a table have no order; sort when you query it", at);
    }
}

impl VisitorMut for Order<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let limited = |pipe: &PipeOperator| matches!(pipe, PipeOperator::Limit { .. });
        // What is limited must be refused as such, and not be cut off anywhere.
        if query.limit_clause.is_some() || query.fetch.is_some() || query.pipe_operators.iter().any(limited) {
            return ControlFlow::Continue(());
        }
        if let Some(order) = query.order_by.take() {
            self.found("ORDER BY", order.span());
        }
        query.pipe_operators.retain(|pipe| {
            let sorts = matches!(pipe, PipeOperator::OrderBy { .. });
            if sorts {
                self.found("ORDER BY", AstSpan::empty());
            }
            !sorts
        });
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let first = select.sort_by.first().map(|key| key.expr.span());
        if let Some(at) =
            first.or_else(|| select.cluster_by.iter().chain(&select.distribute_by).next().map(Spanned::span))
        {
            select.sort_by.clear();
            select.cluster_by.clear();
            select.distribute_by.clear();
            self.found("SORT BY, DISTRIBUTE BY, CLUSTER BY", at);
        }
        ControlFlow::Continue(())
    }
}

/// `current_catalog()` and `current_schema()` as the names that they stand for.
pub(crate) fn name_defaults(expr: &mut Expr, catalog: &str, schema: &str) {
    let Expr::Function(function) = expr else { return };
    let plain = matches!(&function.args, FunctionArguments::List(list) if list.args.is_empty());
    let name = match function.name.to_string().to_lowercase().as_str() {
        "current_catalog" if plain => catalog,
        "current_schema" | "current_database" if plain => schema,
        _ => return,
    };
    *expr = Expr::Value(Value::SingleQuotedString(name.to_owned()).with_span(function.name.span()));
}
