//! `struct(*)`, `concat_ws('|', x.*)`: calls that take all columns, written out before there is a plan.

use std::ops::ControlFlow;

use arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast::{
    self, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, SetExpr,
    TableFactor, Value, VisitMut, VisitorMut,
};

use super::metadata::METADATA;
use crate::error::{Error, Result};
use crate::pipeline::EPOCH_COLUMN;

/// Names of columns, with the expressions of their values.
pub(super) type Named = Vec<(String, Expr)>;

/// Writes a call with stars out: one of `struct` as names and values in turn, any other as values. `columns` gives those of a
/// qualifier, or all if it is empty. Calls without stars stay as they are, and so does `count(*)`.
///
/// # Errors
/// A star over nothing.
pub(super) fn spread(function: &mut ast::Function, columns: &mut dyn FnMut(&[String]) -> Named) -> Result<()> {
    let FunctionArguments::List(list) = &mut function.args else { return Ok(()) };
    let star = |argument: &FunctionArg| {
        matches!(argument, FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::QualifiedWildcard(_)))
    };
    let name = function.name.to_string().to_lowercase();
    let counts = name == "count" && matches!(list.args.as_slice(), [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)]);
    if counts || !list.args.iter().any(star) {
        return Ok(());
    }
    let mut pairs = Named::new();
    for (index, argument) in list.args.drain(..).enumerate() {
        let qualifier: Vec<String> = match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => Vec::new(),
            FunctionArg::Unnamed(FunctionArgExpr::QualifiedWildcard(name)) => {
                name.0.iter().filter_map(ObjectNamePart::as_ident).map(|ident| ident.value.clone()).collect()
            }
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => {
                pairs.push(match expr {
                    Expr::Named { expr, name } => (name.value, *expr),
                    Expr::Identifier(ident) => (ident.value.clone(), Expr::Identifier(ident)),
                    Expr::CompoundIdentifier(idents) => {
                        (idents.last().map_or_else(String::new, |i| i.value.clone()), Expr::CompoundIdentifier(idents))
                    }
                    expr => (format!("col{}", index + 1), expr),
                });
                continue;
            }
            _ => {
                let message = format!("{name} takes columns, expressions and stars");
                return Err(Error::user("INVALID_QUERY", message));
            }
        };
        let found = columns(&qualifier);
        if found.is_empty() {
            let shown = if qualifier.is_empty() { "*".to_owned() } else { format!("{}.*", qualifier.join(".")) };
            return Err(Error::user("CANNOT_RESOLVE_STAR_EXPAND", format!("{shown} in {name} names no columns here"))
                .help("inside an expression a star is all columns of tables that stand in FROM by themselves"));
        }
        pairs.extend(found);
    }
    if name != "struct" {
        list.args.extend(pairs.into_iter().map(|(_, expr)| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))));
        return Ok(());
    }
    function.name = ObjectName::from(vec![Ident::new("named_struct")]);
    for (title, expr) in pairs {
        let title = Expr::Value(Value::SingleQuotedString(title).with_empty_span());
        list.args.extend([title, expr].map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))));
    }
    Ok(())
}

/// Writes out the stars in expressions of a query whose relation `$n` has the columns `schemas[n]`.
///
/// # Errors
/// A star over what is not such a relation.
pub fn expand_stars(query: &mut ast::Query, schemas: &[SchemaRef]) -> Result<()> {
    match VisitMut::visit(query, &mut Queries { schemas }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Queries<'a> {
    schemas: &'a [SchemaRef],
}

impl Queries<'_> {
    fn body(&self, body: &mut SetExpr) -> ControlFlow<Error> {
        match body {
            SetExpr::Select(select) => {
                let mut inputs = Vec::new();
                for table in &select.from {
                    for factor in std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation))
                    {
                        inputs.extend(self.input(factor));
                    }
                }
                // A star over all of them needs to know all of them.
                let factors: usize = select.from.iter().map(|table| 1 + table.joins.len()).sum();
                let mut calls = Calls { whole: inputs.len() == factors, inputs };
                VisitMut::visit(&mut select.projection, &mut calls)?;
                VisitMut::visit(&mut select.selection, &mut calls)
            }
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn input(&self, factor: &TableFactor) -> Option<(String, Vec<String>)> {
        let TableFactor::Table { name, alias, .. } = factor else { return None };
        let ident = name.0.last().and_then(ObjectNamePart::as_ident)?;
        let number: usize = ident.value.strip_prefix('$')?.parse().ok()?;
        let shown = alias.as_ref().map_or(&ident.value, |alias| &alias.name.value).clone();
        let fields = self.schemas.get(number)?.fields().iter().map(|field| field.name().clone());
        Some((shown, fields.filter(|field| ![METADATA, EPOCH_COLUMN].contains(&field.as_str())).collect()))
    }
}

impl VisitorMut for Queries<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<Error> {
        self.body(&mut query.body)
    }
}

struct Calls {
    whole: bool,
    inputs: Vec<(String, Vec<String>)>,
}

impl VisitorMut for Calls {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let mut columns = |qualifier: &[String]| -> Named {
            let fits = |shown: &String| match qualifier {
                [] => self.whole,
                [only] => shown.eq_ignore_ascii_case(only),
                _ => false,
            };
            let of = |(shown, names): &(String, Vec<String>)| -> Named {
                let column = |name: &String| {
                    let idents = [shown, name].map(|part| Ident::with_quote('`', part.as_str()));
                    (name.clone(), Expr::CompoundIdentifier(idents.to_vec()))
                };
                names.iter().map(column).collect()
            };
            self.inputs.iter().filter(|(shown, _)| fits(shown)).flat_map(of).collect()
        };
        match spread(function, &mut columns) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}
