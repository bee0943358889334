//! Names that a select list gives and that later items of the same list use. Columns come first: only a name that the
//! planner does not find is looked for here.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Query, Select, SelectItem, Visit, VisitMut, Visitor, VisitorMut};
use datafusion::sql::sqlparser::tokenizer::Location;

/// Puts the expression that an earlier item of its list calls `name` in the place of the reference at `at`. False if there
/// is none, or if the query becomes too large.
pub(super) fn resolve(query: &mut Query, name: &str, at: Location) -> bool {
    let mut lists = Lists { name: name.to_lowercase(), at, resolved: false };
    let _ = VisitMut::visit(query, &mut lists);
    lists.resolved && Visit::visit(query, &mut Size(0)).is_continue()
}

/// How many expressions a query may have after its references are written out, since they double with each of a chain.
const LIMIT: usize = 20_000;

struct Size(usize);

impl Visitor for Size {
    type Break = ();

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.0 += 1;
        if self.0 > LIMIT { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Lists {
    name: String,
    at: Location,
    resolved: bool,
}

/// Replaces the reference by an expression.
struct Reference<'a> {
    name: &'a str,
    at: Location,
    by: &'a Expr,
    found: bool,
}

impl VisitorMut for Reference<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(ident) = expr
            && ident.value.to_lowercase() == self.name
            && ident.span.start == self.at
        {
            *expr = Expr::Nested(Box::new(self.by.clone()));
            self.found = true;
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Lists {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut given: Option<Expr> = None;
        for item in &mut select.projection {
            if let (Some(by), SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) =
                (&given, &mut *item)
            {
                let mut reference = Reference { name: &self.name, at: self.at, by, found: false };
                let _ = VisitMut::visit(expr, &mut reference);
                self.resolved |= reference.found;
            }
            if let SelectItem::ExprWithAlias { expr, alias } = item
                && alias.value.to_lowercase() == self.name
            {
                given = Some(expr.clone());
            }
        }
        ControlFlow::Continue(())
    }
}
