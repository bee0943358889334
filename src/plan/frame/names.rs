//! Names in the expressions of frames, resolved to the columns that they mean.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{self, AccessExpr, Expr, Ident, OneOrManyWithParens, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use crate::error::{Error, Result};
use crate::pipeline::frame::FRAME_MARK;
use crate::pipeline::near_miss;
use crate::plan::stars::{Named, spread};

/// Stands before a name that has been resolved, until all are.
const DONE: char = '\u{2}';

/// A column of an operator's result.
#[derive(Clone, Debug)]
pub(super) struct Col {
    /// Its name in the plan.
    pub(super) internal: String,
    /// Its name for users.
    pub(super) name: String,
    /// What it can be qualified with.
    pub(super) qualifiers: Vec<Vec<String>>,
    /// Frames that it has passed through unchanged.
    pub(super) frames: Vec<i64>,
    /// Not part of `*`.
    pub(super) hidden: bool,
}

impl Col {
    /// A column that has just been computed.
    pub(super) fn new(internal: impl Into<String>, name: impl Into<String>) -> Col {
        Col { internal: internal.into(), name: name.into(), qualifiers: Vec::new(), frames: Vec::new(), hidden: false }
    }

    pub(super) fn named(&self, name: &str) -> bool {
        same(&self.name, name)
    }

    pub(super) fn qualified(&self, qualifier: &[String]) -> bool {
        self.qualifiers
            .iter()
            .any(|own| own.len() == qualifier.len() && own.iter().zip(qualifier).all(|(a, b)| same(a, b)))
    }
}

/// Spark compares names without regard to case.
pub(super) fn same(a: &str, b: &str) -> bool {
    a == b || a.to_lowercase() == b.to_lowercase()
}

/// The column that a name of several parts means, and how many parts it takes; the rest are fields in it.
pub(super) fn lookup<'a>(parts: &[String], cols: &'a [Col]) -> Result<(&'a Col, usize)> {
    if let Some((first, rest)) = parts.split_first()
        && let Some(id) = first.strip_prefix(FRAME_MARK)
    {
        let id: Option<i64> = id.parse().ok();
        if let Some(name) = rest.first() {
            let of_frame = |col: &&Col| id.is_some_and(|id| col.frames.contains(&id)) && col.named(name);
            match distinct(cols.iter().filter(of_frame)).as_slice() {
                [] => {}
                [only] => return Ok((only, 2)),
                _ => return Err(ambiguous(name)),
            }
        }
        return lookup(rest, cols).map(|(col, taken)| (col, taken + 1));
    }
    for before in (0..parts.len()).rev() {
        let (Some(qualifier), Some(name)) = (parts.get(..before), parts.get(before)) else { continue };
        let fits = |col: &&Col| col.named(name) && (before == 0 || col.qualified(qualifier));
        let found = distinct(cols.iter().filter(fits));
        match found.as_slice() {
            [] => {}
            [only] => return Ok((only, before + 1)),
            _ => return Err(ambiguous(name)),
        }
    }
    Err(unknown(parts, cols))
}

/// One column stands twice where a select list names it twice.
fn distinct<'a>(cols: impl Iterator<Item = &'a Col>) -> Vec<&'a Col> {
    let mut found: Vec<&Col> = Vec::new();
    for col in cols {
        if found.iter().all(|other| other.internal != col.internal) {
            found.push(col);
        }
    }
    found
}

fn ambiguous(name: &str) -> Error {
    Error::user("AMBIGUOUS_COLUMN", format!("column {name} stands in more than one relation"))
        .help("take it from its data frame (df.x), or give both sides an alias and qualify it")
}

fn unknown(parts: &[String], cols: &[Col]) -> Error {
    let wanted = parts.join(".");
    let names: Vec<&str> = cols.iter().filter(|c| !c.hidden).map(|c| c.name.as_str()).collect();
    let error = Error::user("UNKNOWN_COLUMN", format!("there is no column {wanted}"));
    match near_miss(parts.last().map_or("", String::as_str), names.iter().copied()) {
        Some(near) => error.help(format!("did you mean {near}?")),
        None => error.help(format!("the columns are {}", names.join(", "))),
    }
}

/// Replaces every name of a column in `expr` by the name that the plan knows it by.
///
/// # Errors
/// With the place of the name.
pub(super) fn resolve(expr: &Expr, cols: &[Col]) -> std::result::Result<Expr, (Error, AstSpan)> {
    let mut resolved = expr.clone();
    let mut resolver = Resolver { cols, bound: Vec::new() };
    if let ControlFlow::Break(error) = VisitMut::visit(&mut resolved, &mut resolver) {
        return Err(error);
    }
    let _ = VisitMut::visit(&mut resolved, &mut Unmark);
    Ok(resolved)
}

struct Resolver<'a> {
    cols: &'a [Col],
    /// Parameters of the lambdas around the expression at hand.
    bound: Vec<Vec<String>>,
}

fn done(value: &str) -> Ident {
    Ident::new(format!("{DONE}{value}"))
}

impl Resolver<'_> {
    fn is_bound(&self, name: &str) -> bool {
        self.bound.iter().flatten().any(|bound| same(bound, name))
    }

    /// The columns of `*` or of `qualifier.*`.
    fn star(&self, qualifier: &[String]) -> Named {
        let fits = |col: &&Col| !col.hidden && (qualifier.is_empty() || col.qualified(qualifier));
        let named = |col: &Col| (col.name.clone(), Expr::Identifier(done(&col.internal)));
        self.cols.iter().filter(fits).map(named).collect()
    }

    /// The idents of a dotted name, resolved.
    fn dotted(&self, idents: &[Ident]) -> Result<Vec<Ident>> {
        let parts: Vec<String> = idents.iter().map(|ident| ident.value.clone()).collect();
        if parts.first().is_some_and(|first| self.is_bound(first)) {
            return Ok(parts.iter().map(|part| done(part)).collect());
        }
        let (col, taken) = lookup(&parts, self.cols)?;
        let mut resolved = vec![done(&col.internal)];
        resolved.extend(parts.iter().skip(taken).map(|part| done(part)));
        Ok(resolved)
    }
}

impl VisitorMut for Resolver<'_> {
    type Break = (Error, AstSpan);

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<(Error, AstSpan)> {
        match expr {
            Expr::Lambda(lambda) => {
                let names = match &lambda.params {
                    OneOrManyWithParens::One(one) => vec![one.name.value.clone()],
                    OneOrManyWithParens::Many(many) => many.iter().map(|p| p.name.value.clone()).collect(),
                };
                self.bound.push(names);
            }
            // A field has the column's name for users, whatever the plan calls the column.
            Expr::Struct { values, .. } => {
                for value in
                    values.iter_mut().filter(|v| matches!(v, Expr::Identifier(_) | Expr::CompoundIdentifier(_)))
                {
                    let name = Ident::with_quote('`', default_name(value));
                    *value = Expr::Named { expr: Box::new(value.clone()), name };
                }
            }
            Expr::Function(function) => {
                if let Err(error) = spread(function, &mut |qualifier| self.star(qualifier)) {
                    return ControlFlow::Break((error, AstSpan::empty()));
                }
            }
            Expr::Identifier(ident) if ident.value.starts_with(DONE) => {}
            Expr::CompoundIdentifier(idents) if idents.iter().all(|i| i.value.starts_with(DONE)) => {}
            Expr::Identifier(ident) => {
                // `current_date` and its kin stand without parentheses.
                let parts = [ident.value.clone()];
                if self.is_bound(&ident.value) || (lookup(&parts, self.cols).is_err() && bare_function(&ident.value)) {
                    *ident = done(&ident.value);
                    return ControlFlow::Continue(());
                }
                let at = ident.span;
                match self.dotted(std::slice::from_ref(ident)) {
                    Ok(idents) => *expr = dotted_expr(idents),
                    Err(error) => return ControlFlow::Break((error, at)),
                }
            }
            Expr::CompoundIdentifier(idents) => match self.dotted(idents) {
                Ok(idents) => *expr = dotted_expr(idents),
                Err(error) => return ControlFlow::Break((error, at_of(idents))),
            },
            Expr::CompoundFieldAccess { root, access_chain } => {
                if let Expr::Identifier(first) = root.as_ref()
                    && !first.value.starts_with(DONE)
                {
                    let dots = access_chain.iter().map_while(|access| match access {
                        AccessExpr::Dot(Expr::Identifier(ident)) => Some(ident.clone()),
                        _ => None,
                    });
                    let idents: Vec<Ident> = std::iter::once(first.clone()).chain(dots).collect();
                    match self.dotted(&idents) {
                        Ok(mut resolved) => {
                            access_chain.drain(..idents.len() - 1);
                            let fields = resolved.split_off(1);
                            for (at, field) in fields.into_iter().enumerate() {
                                access_chain.insert(at, AccessExpr::Dot(Expr::Identifier(field)));
                            }
                            if let Some(column) = resolved.pop() {
                                **root = Expr::Identifier(column);
                            }
                        }
                        Err(error) => return ControlFlow::Break((error, at_of(&idents))),
                    }
                }
                for access in access_chain {
                    if let AccessExpr::Dot(Expr::Identifier(ident)) = access
                        && !ident.value.starts_with(DONE)
                    {
                        *ident = done(&ident.value);
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<(Error, AstSpan)> {
        if matches!(expr, Expr::Lambda(_)) {
            self.bound.pop();
        }
        ControlFlow::Continue(())
    }
}

fn at_of(idents: &[Ident]) -> AstSpan {
    idents.first().map_or(AstSpan::empty(), |ident| ident.span)
}

fn dotted_expr(mut idents: Vec<Ident>) -> Expr {
    match idents.pop() {
        Some(only) if idents.is_empty() => Expr::Identifier(only),
        Some(last) => {
            idents.push(last);
            Expr::CompoundIdentifier(idents)
        }
        None => Expr::Identifier(Ident::new("")),
    }
}

fn bare_function(name: &str) -> bool {
    ["current_date", "current_timestamp", "localtimestamp", "current_timezone", "user", "current_user"]
        .iter()
        .any(|bare| name.eq_ignore_ascii_case(bare))
}

struct Unmark;

impl Unmark {
    fn ident(ident: &mut Ident) {
        if let Some(plain) = ident.value.strip_prefix(DONE) {
            *ident = Ident { value: plain.to_owned(), quote_style: Some('`'), span: ident.span };
        }
    }
}

impl VisitorMut for Unmark {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(ident) => {
                let bare = ident.value.strip_prefix(DONE).is_some_and(bare_function);
                Unmark::ident(ident);
                if bare {
                    ident.quote_style = None;
                }
            }
            Expr::CompoundIdentifier(idents) => idents.iter_mut().for_each(Unmark::ident),
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    if let AccessExpr::Dot(Expr::Identifier(ident)) = access {
                        Unmark::ident(ident);
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The name that Spark gives a column without one.
pub(super) fn default_name(expr: &ast::Expr) -> String {
    match expr {
        Expr::Identifier(ident) => ident.value.clone(),
        Expr::CompoundIdentifier(parts) => parts.last().map(|p| p.value.clone()).unwrap_or_default(),
        Expr::CompoundFieldAccess { access_chain, .. } => match access_chain.last() {
            Some(AccessExpr::Dot(Expr::Identifier(ident))) => ident.value.clone(),
            _ => shown(expr),
        },
        // The cast of a column keeps the column's name.
        Expr::Cast { expr: inner, .. }
            if matches!(inner.as_ref(), Expr::Identifier(_) | Expr::CompoundIdentifier(_)) =>
        {
            default_name(inner)
        }
        _ => shown(expr),
    }
}

fn shown(expr: &ast::Expr) -> String {
    struct Plain;
    impl VisitorMut for Plain {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(ident) => ident.quote_style = None,
                Expr::CompoundIdentifier(parts) => {
                    parts.retain(|part| !part.value.starts_with(FRAME_MARK));
                    parts.iter_mut().for_each(|part| part.quote_style = None);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        }
    }
    let mut plain = expr.clone();
    let _ = VisitMut::visit(&mut plain, &mut Plain);
    plain.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sql::read_built;

    /// Columns of `o` and `c` after a join; the second `id` has another name in the plan.
    fn cols() -> Vec<Col> {
        let col = |internal: &str, name: &str, alias: &str, frame: i64| Col {
            qualifiers: vec![vec![alias.to_owned()], vec!["main".to_owned(), alias.to_owned()]],
            frames: vec![frame],
            ..Col::new(internal, name)
        };
        vec![col("id", "id", "o", 1), col("at", "At", "o", 1), col("id#2", "id", "c", 2), col("s", "s", "c", 2)]
    }

    #[test]
    fn names_mean_columns_by_qualifier_and_by_frame() {
        for (text, expected) in [
            ("at + 1", "`at` + 1"),
            ("o.ID = c.id", "`id` = `id#2`"),
            ("main.c.id", "`id#2`"),
            ("id", "AMBIGUOUS_COLUMN"),
            ("`\u{1}2`.id", "`id#2`"),
            ("`\u{1}1`.At", "`at`"),
            // A frame that the column has not passed through says nothing; its name does.
            ("`\u{1}9`.s", "`s`"),
            ("c.s.f.g", "`s`.`f`.`g`"),
            ("s.f[0].g", "`s`.`f`[0].`g`"),
            ("filter(s, at -> at > o.id)", "filter(`s`, at -> `at` > `id`)"),
            ("struct(*)", "named_struct('id', `id`, 'At', `at`, 'id', `id#2`, 's', `s`)"),
            ("to_json(struct(c.*, o.id + 1 AS n))", "to_json(named_struct('id', `id#2`, 's', `s`, 'n', `id` + 1))"),
            ("struct(x.*)", "CANNOT_RESOLVE_STAR_EXPAND"),
            ("struct(c.id, at)", "STRUCT(`id#2` AS `id`, `at` AS `at`)"),
            ("nope", "UNKNOWN_COLUMN"),
            ("x.id", "UNKNOWN_COLUMN"),
            ("current_date", "current_date"),
        ] {
            let expr = read_built(text, AstSpan::empty()).unwrap();
            let found = match resolve(&expr, &cols()) {
                Ok(resolved) => resolved.to_string(),
                Err((error, _)) => error.code().to_owned(),
            };
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn columns_without_a_name_are_called_as_spark_calls_them() {
        for (text, expected) in [
            ("a.b", "b"),
            ("upper(`a`)", "upper(a)"),
            ("CAST(a AS INT)", "a"),
            ("(a + 1)", "(a + 1)"),
            ("s.f[0]", "s.f[0]"),
        ] {
            let expr = read_built(text, AstSpan::empty()).unwrap();
            assert_eq!(default_name(&expr), expected, "{text}");
        }
    }
}
