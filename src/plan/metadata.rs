//! Columns that are not part of `*`: `_metadata` of files, there for a query that names it, and `_epoch` of stored rows.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    self, ExceptSelectItem, Expr, Ident, SelectItem, SetExpr, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
};

use crate::pipeline::QueryBody;
use crate::pipeline::frame::{Frame, FrameOp};

/// Name of the column.
pub(super) const METADATA: &str = "_metadata";

/// Whether the query names the column.
pub(super) fn names_metadata(body: &QueryBody) -> bool {
    struct Search;
    impl Visitor for Search {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let named = |ident: &Ident| ident.value.eq_ignore_ascii_case(METADATA);
            let found = match expr {
                Expr::Identifier(ident) => named(ident),
                Expr::CompoundIdentifier(parts) => parts.iter().any(named),
                // It stands for the path in the column.
                Expr::Function(function) => function.name.to_string().eq_ignore_ascii_case("input_file_name"),
                _ => false,
            };
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    fn frame_names(frame: &Frame) -> bool {
        let here = match &frame.op {
            FrameOp::Sql(query) => query.visit(&mut Search).is_break(),
            _ => frame.exprs().into_iter().any(|expr| expr.visit(&mut Search).is_break()),
        };
        here || frame.inputs().into_iter().any(frame_names)
    }
    match body {
        QueryBody::Sql(query) => query.visit(&mut Search).is_break(),
        QueryBody::Frame(root) => frame_names(root),
    }
}

/// Takes a column out of every `*` over one of the `relations` (names `$n`), all of which have it.
pub fn hide_from_wildcards(query: &mut ast::Query, relations: &[String], column: &str) {
    struct Hide<'a>(&'a [String], &'a str);
    impl VisitorMut for Hide<'_> {
        type Break = ();
        fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
            self.body(&mut query.body);
            ControlFlow::Continue(())
        }
    }
    impl Hide<'_> {
        fn body(&self, body: &mut SetExpr) {
            match body {
                SetExpr::Select(select) => {
                    let reads = select.from.iter().any(|from| {
                        std::iter::once(&from.relation).chain(from.joins.iter().map(|j| &j.relation)).any(|factor| {
                            matches!(factor, TableFactor::Table { name, .. }
                                if name.0.first().and_then(|p| p.as_ident()).is_some_and(|i| self.0.contains(&i.value)))
                        })
                    });
                    if !reads {
                        return;
                    }
                    for item in &mut select.projection {
                        let (SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)) = item else {
                            continue;
                        };
                        let hidden = Ident::new(self.1);
                        match &mut options.opt_except {
                            Some(except) => except.additional_elements.push(hidden),
                            None => {
                                options.opt_except =
                                    Some(ExceptSelectItem { first_element: hidden, additional_elements: Vec::new() });
                            }
                        }
                    }
                }
                SetExpr::SetOperation { left, right, .. } => {
                    self.body(left);
                    self.body(right);
                }
                _ => {}
            }
        }
    }
    let _ = VisitMut::visit(query, &mut Hide(relations, column));
}
