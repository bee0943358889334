//! The relations of a query: each becomes `$n` with an alias, and a list says what was written.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    self, AccessExpr, Expr, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Spanned, TableAlias, TableFactor, TableWithJoins, VisitMut, VisitorMut,
    With,
};
use datafusion::sql::sqlparser::tokenizer::{Span as AstSpan, Token, TokenWithSpan, Word};

use super::cursor::{parser, syntax_error, written_name};
use super::depth::check_depth;
use super::read_files::{cloud_files, not_a_path, read_files};
use super::refused::{SAMPLE, is_generator, refuse_expr, refuse_factor, refuse_query, refuse_select};
use super::shape::name_defaults;
use super::statement::Context;
use super::stream::{MARK, OPTIONS, mark_streams};
use super::stream_options::{StreamOptions, read_stream};
use crate::error::{Error, Result, Span};
use crate::pipeline::QueryBody;
use crate::pipeline::declaration::{WrittenName, WrittenQuery, WrittenRelation, WrittenSource};
use crate::pipeline::source::Source;

/// Reads a query from its tokens.
pub(super) fn parse_query(context: &Context<'_>, tokens: Vec<TokenWithSpan>, end: AstSpan) -> Result<WrittenQuery> {
    let file = context.file;
    let whole = match (tokens.first(), tokens.last()) {
        (Some(first), Some(last)) => AstSpan { start: first.span.start, end: last.span.end },
        _ => return Err(Error::user("PARSE_SYNTAX_ERROR", "expected a query, the statement ends").at(&file.span(end))),
    };
    let (tokens, options) = mark_streams(file, tokens)?;
    let mut ast = parse(file, tokens, end)?;
    let mut rewrite = Rewrite {
        context,
        whole,
        options,
        relations: Vec::new(),
        ctes: Vec::new(),
        scopes: Vec::new(),
        withs: Vec::new(),
        errors: Vec::new(),
    };
    let _: ControlFlow<()> = ast.visit(&mut rewrite);
    if let Some(error) = Error::all(rewrite.errors) {
        return Err(error);
    }
    let body = QueryBody::Sql(ast);
    Ok(WrittenQuery { body, relations: rewrite.relations, text: file.slice(whole).to_owned(), span: file.span(whole) })
}

pub(super) fn parse(file: &Source, tokens: Vec<TokenWithSpan>, end: AstSpan) -> Result<Box<Query>> {
    check_depth(file, &tokens)?;
    let attempt = |tokens: Vec<TokenWithSpan>, end: AstSpan| {
        let mut parser = parser(tokens);
        let query = parser.parse_query().map_err(|error| syntax_error(file, &error, &parser, end))?;
        match parser.peek_token_ref() {
            TokenWithSpan { token: Token::EOF, .. } => Ok(query),
            TokenWithSpan { token, span } => {
                let message = format!("expected the end of the query, found `{token}`").replace([MARK, OPTIONS], "");
                Err(Error::user("PARSE_SYNTAX_ERROR", message).at(&file.span(*span)))
            }
        }
    };
    attempt(tokens.clone(), end).map_err(|error| {
        // sqlparser reports a mistake inside parentheses at the parenthesis, so the innermost faulty query is sought.
        let mut groups = subqueries(&tokens);
        groups.sort_by_key(|(group, _)| group.len());
        let inner = groups.into_iter().find_map(|(group, close)| attempt(group.to_vec(), close).err());
        inner.unwrap_or(error)
    })
}

/// Token runs between parentheses that start like a query, with the place of the closing parenthesis.
fn subqueries(tokens: &[TokenWithSpan]) -> Vec<(&[TokenWithSpan], AstSpan)> {
    let mut open = Vec::new();
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => open.push(i + 1),
            Token::RParen => {
                let group = open.pop().and_then(|start| tokens.get(start..i)).unwrap_or_default();
                let starts =
                    |word: &Word| word.value.eq_ignore_ascii_case("select") || word.value.eq_ignore_ascii_case("with");
                if matches!(group.first(), Some(TokenWithSpan { token: Token::Word(word), .. }) if starts(word)) {
                    found.push((group, token.span));
                }
            }
            _ => {}
        }
    }
    found
}

/// A relation that columns can be qualified with.
struct InScope {
    /// Qualifiers that mean it, longest first.
    qualifiers: Vec<Vec<String>>,
    alias: Ident,
}

struct Rewrite<'a> {
    context: &'a Context<'a>,
    whole: AstSpan,
    /// Options of streams; a relation's mark counts them.
    options: Vec<StreamOptions>,
    relations: Vec<WrittenRelation>,
    /// Names of common table expressions that are visible, one list a query, innermost last.
    ctes: Vec<Vec<Ident>>,
    scopes: Vec<Vec<InScope>>,
    /// WITH clauses of the queries being visited; they are visited apart, since each name counts from its own end on.
    withs: Vec<Option<With>>,
    errors: Vec<Error>,
}

impl VisitorMut for Rewrite<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        refuse_query(query, &mut |what, help, at| self.refuse_with(what, help, at));
        self.ctes.push(Vec::new());
        let mut with = query.with.take();
        if let Some(with) = &mut with {
            if with.recursive {
                self.refuse("a recursive WITH", with.with_token.0.span);
            }
            for cte in &mut with.cte_tables {
                cte.query.visit(self)?;
                if let Some(names) = self.ctes.last_mut() {
                    names.push(cte.alias.name.clone());
                }
            }
        }
        self.withs.push(with);
        let scope = match query.body.as_ref() {
            SetExpr::Select(select) => self.scope(&select.from),
            _ => Vec::new(),
        };
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        query.with = self.withs.pop().flatten();
        self.ctes.pop();
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        refuse_select(select, &mut |what, help, at| self.refuse_with(what, help, at));
        let scope = self.scope(&select.from);
        self.scopes.push(scope);
        for item in &mut select.projection {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item {
                let parts: Vec<&str> =
                    name.0.iter().filter_map(|part| part.as_ident()).map(|i| i.value.as_str()).collect();
                if let Some((length, alias)) = self.qualifier(&parts, 0)
                    && length == parts.len()
                {
                    *name = ObjectName::from(vec![Ident { span: name.span(), ..alias }]);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<()> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { .. } => self.relation(factor),
            other => refuse_factor(other, &mut |what, help, at| self.refuse_with(what, help, at)),
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundIdentifier(idents) => {
                let parts: Vec<&str> = idents.iter().map(|ident| ident.value.as_str()).collect();
                if let Some((length, alias)) = self.qualifier(&parts, 1) {
                    let span = AstSpan::union_iter(idents.iter().take(length).map(|ident| ident.span));
                    idents.splice(..length, [Ident { span, ..alias }]);
                }
            }
            Expr::CompoundFieldAccess { root, access_chain } => {
                let Expr::Identifier(first) = root.as_ref() else { return ControlFlow::Continue(()) };
                let dots = access_chain.iter().map_while(|access| match access {
                    AccessExpr::Dot(Expr::Identifier(ident)) => Some(ident),
                    _ => None,
                });
                let idents: Vec<&Ident> = std::iter::once(first).chain(dots).collect();
                let parts: Vec<&str> = idents.iter().map(|ident| ident.value.as_str()).collect();
                if let Some((length, alias)) = self.qualifier(&parts, 1) {
                    let span = AstSpan::union_iter(idents.iter().take(length).map(|ident| ident.span));
                    **root = Expr::Identifier(Ident { span, ..alias });
                    access_chain.drain(..length - 1);
                }
            }
            other => {
                let defaults = &self.context.defaults;
                name_defaults(other, &defaults.catalog, &defaults.schema);
                refuse_expr(other, &mut |what, help, at| self.refuse_with(what, help, at));
            }
        }
        ControlFlow::Continue(())
    }
}

impl Rewrite<'_> {
    fn refuse(&mut self, what: &str, at: AstSpan) {
        self.refuse_with(what, "", at);
    }

    fn refuse_with(&mut self, what: &str, help: &str, at: AstSpan) {
        // Some parts of a syntax tree know no place.
        let at = if at.start.line == 0 { self.whole } else { at };
        let error = not_supported(what).at(&self.context.file.span(at));
        self.errors.push(if help.is_empty() { error } else { error.help(help) });
    }

    /// What qualifies columns in a FROM clause whose names are still as written.
    fn scope(&self, from: &[TableWithJoins]) -> Vec<InScope> {
        let mut found = Vec::new();
        for item in from {
            self.scope_of(&item.relation, &mut found);
            for join in &item.joins {
                self.scope_of(&join.relation, &mut found);
            }
        }
        found
    }

    fn scope_of(&self, factor: &TableFactor, found: &mut Vec<InScope>) {
        let alias = match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                found.extend(self.scope(std::slice::from_ref(table_with_joins)));
                return;
            }
            TableFactor::Table { name, alias: None, args, .. } => {
                let Some(mut written) = written(self.context, name) else { return };
                let alias = match name.0.last().and_then(ObjectNamePart::as_ident) {
                    Some(last) => unmarked(last),
                    None => return,
                };
                if args.is_some() || self.cte(name).is_some() {
                    let alias = self.cte(name).unwrap_or(alias);
                    found.push(InScope { qualifiers: vec![vec![alias.value.clone()]], alias });
                    return;
                }
                let full = written.full(&self.context.defaults);
                let parts = [full.catalog, full.schema, full.table];
                let mut qualifiers: Vec<Vec<String>> =
                    (0..3).filter_map(|i| parts.get(i..).map(<[String]>::to_vec)).collect();
                if written.live {
                    written.parts.insert(0, "LIVE".to_owned());
                    qualifiers.insert(1, written.parts);
                }
                found.push(InScope { qualifiers, alias });
                return;
            }
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::NestedJoin { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::UNNEST { alias, .. } => alias,
            _ => return,
        };
        if let Some(TableAlias { name, .. }) = alias {
            found.push(InScope { qualifiers: vec![vec![name.value.clone()]], alias: name.clone() });
        }
    }

    /// How many leading parts name a relation in scope, innermost first, and that relation's alias; at least `after`
    /// parts must be left.
    fn qualifier(&self, parts: &[&str], after: usize) -> Option<(usize, Ident)> {
        self.scopes.iter().rev().flatten().find_map(|relation| {
            relation.qualifiers.iter().find_map(|qualifier| {
                let fits = parts.len() >= qualifier.len() + after
                    && qualifier.iter().zip(parts).all(|(q, p)| q.to_lowercase() == p.to_lowercase());
                fits.then(|| (qualifier.len(), relation.alias.clone()))
            })
        })
    }

    /// The common table expression of this name, as it was declared.
    fn cte(&self, name: &ObjectName) -> Option<Ident> {
        let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return None };
        let folded = ident.value.to_lowercase();
        self.ctes.iter().rev().flatten().find(|cte| cte.value.to_lowercase() == folded).cloned()
    }

    fn relation(&mut self, factor: &mut TableFactor) {
        let TableFactor::Table {
            name,
            alias,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } = factor
        else {
            return;
        };
        let Some(first) = name.0.first().and_then(ObjectNamePart::as_ident) else {
            return self.refuse("a table name that is computed", name.span());
        };
        let span = name.span();
        let mut stream = first.value.starts_with(MARK);
        if version.is_some() {
            self.refuse("time travel (VERSION AS OF, TIMESTAMP AS OF)", span);
        }
        if sample.is_some() {
            self.refuse_with("TABLESAMPLE", SAMPLE, span);
        }
        if !with_hints.is_empty() || !index_hints.is_empty() {
            self.refuse("an option clause on a table that is not read as a STREAM", span);
        }
        if *with_ordinality || !partitions.is_empty() || json_path.is_some() {
            self.refuse("this kind of table", span);
        }
        if !stream
            && args.is_none()
            && let Some(cte) = self.cte(name)
        {
            if alias.is_none() && cte.value != first.value {
                *alias = Some(table_alias(cte.clone()));
            }
            *name = ObjectName::from(vec![Ident { span, ..cte }]);
            return;
        }
        let plain = unmarked(first);
        let number = first.value.chars().filter(|c| *c == OPTIONS).count();
        let mut options = number.checked_sub(1).and_then(|i| self.options.get(i)).cloned().unwrap_or_default();
        if !stream && args.is_some() && is_generator(name) {
            return;
        }
        let source = match args {
            Some(args) if name.0.len() == 1 && plain.value.eq_ignore_ascii_case("cloud_files") => {
                match cloud_files(self.context, &args.args, span) {
                    Ok(files) => {
                        stream = true;
                        WrittenSource::Files(files)
                    }
                    Err(error) => return self.errors.push(error),
                }
            }
            Some(args) if stream && name.0.len() == 1 && plain.value.eq_ignore_ascii_case("read_stream") => {
                match read_stream(self.context, &args.args, span) {
                    Ok((table, given)) => {
                        options.extend(given);
                        WrittenSource::Table(table)
                    }
                    Err(error) => return self.errors.push(error),
                }
            }
            Some(args) if name.0.len() == 1 && plain.value.eq_ignore_ascii_case("read_files") => {
                match read_files(self.context, &args.args, span) {
                    Ok(files) => WrittenSource::Files(files),
                    Err(error) => return self.errors.push(error),
                }
            }
            Some(_) => {
                return self
                    .refuse(&format!("the table function `{}`", name.to_string().replace([MARK, OPTIONS], "")), span);
            }
            None => match written_from(self.context, name).and_then(not_a_path) {
                Ok(written) => WrittenSource::Table(written),
                Err(error) => return self.errors.push(error),
            },
        };
        if alias.is_none()
            && let Some(last) = name.0.last().and_then(ObjectNamePart::as_ident)
        {
            *alias = Some(table_alias(unmarked(last)));
        }
        let number = self.relations.len();
        self.relations.push(WrittenRelation { stream, options, source, span: self.context.file.span(span) });
        *args = None;
        *name = ObjectName::from(vec![Ident { value: format!("${number}"), quote_style: Some('`'), span }]);
    }
}

fn table_alias(name: Ident) -> TableAlias {
    TableAlias { explicit: true, name, columns: Vec::new(), at: None }
}

fn unmarked(ident: &Ident) -> Ident {
    Ident { value: ident.value.trim_start_matches([MARK, OPTIONS]).to_owned(), ..ident.clone() }
}

fn written(context: &Context<'_>, name: &ObjectName) -> Option<WrittenName> {
    written_from(context, name).ok()
}

fn written_from(context: &Context<'_>, name: &ObjectName) -> Result<WrittenName> {
    let idents: Vec<&Ident> = name.0.iter().filter_map(ObjectNamePart::as_ident).collect();
    let quoted = idents.first().is_some_and(|ident| ident.quote_style.is_some());
    let parts = idents.iter().map(|ident| unmarked(ident).value).collect();
    written_name(parts, quoted, context.file.span(name.span()))
}

/// The error for what the language has and this release has not.
pub(super) fn not_supported(what: &str) -> Error {
    Error::user("NOT_SUPPORTED", format!("{what} is not supported yet"))
}

/// An expression that stands in a declaration, where no table can be read.
pub(super) fn without_query(file: &Arc<Source>, expr: &Expr, whole: &Span, what: &str) -> Result<()> {
    struct Finder;
    impl ast::Visitor for Finder {
        type Break = AstSpan;
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<AstSpan> {
            ControlFlow::Break(query.span())
        }
    }
    match ast::Visit::visit(expr, &mut Finder) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(at) => {
            let place = if at.start.line == 0 { whole.clone() } else { file.span(at) };
            Err(Error::user("UNSUPPORTED_SUBQUERY", format!("{what} cannot hold a query")).at(&place))
        }
    }
}

#[cfg(test)]
mod tests;
