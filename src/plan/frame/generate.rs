//! Select lists that give several rows of one (`explode` and its like), planned as SQL over the rows at hand.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::datasource::{TableProvider, ViewTable};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    self, Ident, ObjectName, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins,
};

use super::names::{Col, default_name};
use super::{Built, FramePlanner, lookup, parts_of, unique};
use crate::error::{Error, Result};
use crate::pipeline::frame::Item;
use crate::plan::query::plan_sql;
use crate::sql::{GENERATORS, query_of, select_all};

/// The rows at hand, for the time of one plan.
const ROWS: &str = "$frame";

fn generates(expr: &ast::Expr) -> bool {
    match expr {
        ast::Expr::Function(function) => GENERATORS.contains(&function.name.to_string().to_lowercase().as_str()),
        ast::Expr::Nested(inner) => generates(inner),
        _ => false,
    }
}

/// Whether an entry of a select list gives several rows.
pub(super) fn is_generator(item: &Item) -> bool {
    matches!(item, Item::Rows(..)) || item.expr().is_some_and(generates)
}

/// Columns that are added or replaced, as a select list, if one of them gives several rows.
pub(super) fn beside(input: &Built, columns: &[(String, ast::Expr)]) -> Option<Vec<Item>> {
    if !columns.iter().any(|(_, expr)| generates(expr)) {
        return None;
    }
    let given = |(name, expr): &(String, ast::Expr)| Item::Expr(Box::new(expr.clone()), Some(name.clone()));
    let mut items: Vec<Item> = Vec::new();
    for col in input.cols.iter().filter(|col| !col.hidden) {
        items.push(match columns.iter().find(|(name, _)| col.named(name)) {
            Some(column) => given(column),
            None => Item::Expr(
                Box::new(crate::pipeline::frame::column(std::slice::from_ref(&col.name), None)),
                Some(col.name.clone()),
            ),
        });
    }
    let there = |name: &str| input.cols.iter().any(|col| !col.hidden && col.named(name));
    items.extend(columns.iter().filter(|(name, _)| !there(name)).map(given));
    Some(items)
}

fn bare(expr: ast::Expr) -> ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => bare(*inner),
        other => other,
    }
}

impl FramePlanner<'_> {
    pub(super) fn generate(&self, input: Built, items: &[Item]) -> Result<Built> {
        let ident = |name: &str| Ident::with_quote('`', name);
        // What users see of each column, and what SQL is to call it; the generator's columns have no place yet.
        let mut before: Vec<Col> = Vec::new();
        let mut after: Vec<Col> = Vec::new();
        let mut titles: Option<Vec<String>> = None;
        let mut projection = Vec::new();
        let mut seen = BTreeSet::new();
        for item in items {
            let mut plain = |col: Col, expr: ast::Expr, titles: &Option<Vec<String>>| {
                let internal = unique(&col.name, &mut seen);
                let alias = ident(&internal);
                projection.push(SelectItem::ExprWithAlias { expr, alias });
                let list = if titles.is_none() { &mut before } else { &mut after };
                list.push(Col { internal, ..col });
            };
            match item {
                Item::Star { qualifier, frame } => {
                    for col in self.star(&input, qualifier.as_deref(), *frame)? {
                        plain(col.clone(), ast::Expr::Identifier(ident(&col.internal)), &titles);
                    }
                }
                Item::Expr(expr, name) if !generates(expr) => {
                    let known = parts_of(expr)
                        .and_then(|parts| lookup(&parts, &input.cols).ok().filter(|f| f.1 == parts.len()));
                    let col = match (known, name) {
                        (Some((col, _)), None) => col.clone(),
                        (_, name) => Col::new("", name.clone().unwrap_or_else(|| default_name(expr))),
                    };
                    plain(col, self.resolve(expr, &input.cols)?, &titles);
                }
                Item::Expr(..) | Item::Rows(..) if titles.is_some() => {
                    let message = "a select list can hold one call that gives several rows (explode and its like)";
                    return Err(Error::user("UNSUPPORTED_GENERATOR", message).help("select twice"));
                }
                Item::Expr(expr, name) => {
                    titles = Some(name.iter().cloned().collect());
                    projection.push(SelectItem::UnnamedExpr(bare(self.resolve(expr, &input.cols)?)));
                }
                Item::Rows(expr, names) => {
                    titles = Some(names.clone());
                    projection.push(SelectItem::UnnamedExpr(bare(self.resolve(expr, &input.cols)?)));
                }
            }
        }
        let titles = titles.unwrap_or_default();
        let schema = Arc::new(input.plan.schema().as_arrow().clone());
        let view: Arc<dyn TableProvider> = Arc::new(ViewTable::new(input.plan, None));
        let relation = TableFactor::Table {
            name: ObjectName::from(vec![ident(ROWS)]),
            alias: Some(TableAlias { explicit: true, name: ident(ROWS), columns: Vec::new(), at: None }),
            args: None,
            with_hints: Vec::new(),
            version: None,
            with_ordinality: false,
            partitions: Vec::new(),
            json_path: None,
            sample: None,
            index_hints: Vec::new(),
        };
        let mut select = select_all(vec![TableWithJoins { relation, joins: Vec::new() }]);
        select.projection = projection;
        let query = query_of(SetExpr::Select(Box::new(select)));
        let home = self.state.schema_for_ref(TableReference::bare(ROWS)).map_err(|e| self.wrong(e))?;
        home.register_table(ROWS.to_owned(), view).map_err(|e| self.wrong(e))?;
        let planned = plan_sql(&query, &[schema], self.state, self.span, None);
        home.deregister_table(ROWS).map_err(|e| self.wrong(e))?;
        let plan = planned?;
        // The generator's columns stand where it stood.
        let columns = plan.schema().columns();
        let made = columns.len().saturating_sub(before.len() + after.len());
        if titles.len() > 1 && titles.len() != made {
            let message = format!("{} names are given to {made} columns", titles.len());
            return Err(Error::user("UNSUPPORTED_GENERATOR", message));
        }
        let mut taken = BTreeSet::new();
        let mut cols = Vec::with_capacity(columns.len());
        let mut exprs = Vec::with_capacity(columns.len());
        for (at, column) in columns.into_iter().enumerate() {
            let mut col = match at.checked_sub(before.len()) {
                None => before.get(at).cloned(),
                Some(own) if own < made => {
                    let title = titles.get(own).cloned().unwrap_or_else(|| column.name.clone());
                    Some(Col::new("", title))
                }
                Some(own) => after.get(own - made).cloned(),
            }
            .ok_or_else(|| Error::internal("a column too many of a generator"))?;
            col.internal = unique(&col.name, &mut taken);
            exprs.push(Expr::Column(column).alias(&col.internal));
            cols.push(col);
        }
        Ok(Built { plan: self.made(LogicalPlanBuilder::from(plan).project(exprs))?, cols })
    }
}
