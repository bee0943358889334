//! Spark compares names without regard to case; the planner compares them as they stand. Before planning, every column
//! reference is therefore spelled as the column is.

use std::collections::HashMap;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, Fields, SchemaRef};
use datafusion::sql::sqlparser::ast::{
    self, AccessExpr, Expr, Ident, JoinConstraint, JoinOperator, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    Subscript, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

/// Spells the references of `query` as the columns of its relations, or else the aliases in the query, are spelled.
/// Names that the query gives (`AS x`) stay as written.
pub fn fold(node: &mut (impl VisitMut + VisitNames), schemas: &[SchemaRef]) {
    let mut names = Names::default();
    for schema in schemas {
        names.add_fields(schema.fields());
    }
    node.collect(&mut names);
    let _ = VisitMut::visit(node, &mut Folder { names: &names });
}

/// Something that gives names of its own.
pub trait VisitNames {
    /// Adds the names.
    fn collect(&mut self, names: &mut Names);
}

impl VisitNames for Expr {
    fn collect(&mut self, _: &mut Names) {}
}

impl VisitNames for ast::Query {
    fn collect(&mut self, names: &mut Names) {
        let _ = VisitMut::visit(self, &mut Collector { names });
    }
}

/// Spelling by folded name.
#[derive(Default)]
pub struct Names {
    columns: HashMap<String, String>,
    relations: HashMap<String, String>,
}

impl Names {
    fn add_fields(&mut self, fields: &Fields) {
        for field in fields {
            self.columns.entry(field.name().to_lowercase()).or_insert_with(|| field.name().clone());
        }
        // Nested names come after all plain ones, so that a struct's member never respells a column.
        for field in fields {
            match field.data_type() {
                DataType::Struct(inner) => self.add_fields(inner),
                DataType::List(item) | DataType::Map(item, _) => {
                    if let DataType::Struct(inner) = item.data_type() {
                        self.add_fields(inner);
                    }
                }
                _ => {}
            }
        }
    }

    fn column(&self, ident: &mut Ident) {
        if let Some(name) = self.columns.get(&ident.value.to_lowercase()) {
            ident.value.clone_from(name);
        }
    }

    fn relation(&self, ident: &mut Ident) -> bool {
        match self.relations.get(&ident.value.to_lowercase()) {
            Some(name) => {
                ident.value.clone_from(name);
                true
            }
            None => false,
        }
    }

    fn compound(&self, parts: &mut [Ident]) {
        if let Some((first, rest)) = parts.split_first_mut() {
            if rest.is_empty() || !self.relation(first) {
                self.column(first);
            }
            rest.iter_mut().for_each(|part| self.column(part));
        }
    }
}

struct Collector<'a> {
    names: &'a mut Names,
}

impl VisitorMut for Collector<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            for cte in &with.cte_tables {
                let name = &cte.alias.name.value;
                self.names.relations.entry(name.to_lowercase()).or_insert_with(|| name.clone());
                for column in &cte.alias.columns {
                    let name = &column.name.value;
                    self.names.columns.entry(name.to_lowercase()).or_insert_with(|| name.clone());
                }
            }
        }
        aliases(&query.body, self.names);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let alias = match factor {
            TableFactor::Table { alias, .. } | TableFactor::Derived { alias, .. } => alias.as_ref(),
            // A generator, whose columns have names of their own where it gives them none.
            TableFactor::Pivot { alias, .. } => {
                for name in ["col", "key", "pos", "value"] {
                    self.names.columns.entry(name.to_owned()).or_insert_with(|| name.to_owned());
                }
                alias.as_ref()
            }
            _ => None,
        };
        if let Some(alias) = alias {
            let name = &alias.name.value;
            self.names.relations.entry(name.to_lowercase()).or_insert_with(|| name.clone());
            for column in &alias.columns {
                let name = &column.name.value;
                self.names.columns.entry(name.to_lowercase()).or_insert_with(|| name.clone());
            }
        }
        ControlFlow::Continue(())
    }
}

fn aliases(body: &SetExpr, names: &mut Names) {
    match body {
        SetExpr::Select(select) => {
            for item in &select.projection {
                if let SelectItem::ExprWithAlias { alias, .. } = item {
                    names.columns.entry(alias.value.to_lowercase()).or_insert_with(|| alias.value.clone());
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            aliases(left, names);
            aliases(right, names);
        }
        _ => {}
    }
}

struct Folder<'a> {
    names: &'a Names,
}

impl Folder<'_> {
    /// The name that Spark gives to a member of a struct and to a cast, which have none for the planner.
    fn own_name(&self, expr: &Expr) -> Option<Ident> {
        let last = |parts: &[Ident]| parts.last().map(|ident| Ident::with_quote('`', ident.value.as_str()));
        match expr {
            Expr::CompoundIdentifier(parts) => {
                let qualified =
                    parts.first().is_some_and(|first| self.names.relations.contains_key(&first.value.to_lowercase()));
                (parts.len() > 1 + usize::from(qualified)).then(|| last(parts)).flatten()
            }
            Expr::Cast { expr, .. } => match expr.as_ref() {
                Expr::Identifier(ident) => last(std::slice::from_ref(ident)),
                Expr::CompoundIdentifier(parts) => last(parts),
                _ => None,
            },
            _ => None,
        }
    }

    fn body(&self, body: &mut SetExpr) {
        match body {
            SetExpr::Select(select) => {
                for item in &mut select.projection {
                    if let SelectItem::UnnamedExpr(expr) = item
                        && let Some(alias) = self.own_name(expr)
                    {
                        let expr = std::mem::replace(expr, Expr::Identifier(alias.clone()));
                        *item = SelectItem::ExprWithAlias { expr, alias };
                    }
                    let options = match item {
                        SelectItem::Wildcard(options) => options,
                        SelectItem::QualifiedWildcard(kind, options) => {
                            if let SelectItemQualifiedWildcardKind::ObjectName(name) = kind {
                                for part in &mut name.0 {
                                    if let ast::ObjectNamePart::Identifier(ident) = part {
                                        self.names.relation(ident);
                                    }
                                }
                            }
                            options
                        }
                        _ => continue,
                    };
                    if let Some(except) = &mut options.opt_except {
                        self.names.column(&mut except.first_element);
                        except.additional_elements.iter_mut().for_each(|ident| self.names.column(ident));
                    }
                }
                for table in &mut select.from {
                    self.joins(table);
                }
            }
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left);
                self.body(right);
            }
            _ => {}
        }
    }

    fn joins(&self, table: &mut TableWithJoins) {
        for join in &mut table.joins {
            let constraint = match &mut join.join_operator {
                JoinOperator::Join(c)
                | JoinOperator::Inner(c)
                | JoinOperator::Left(c)
                | JoinOperator::LeftOuter(c)
                | JoinOperator::Right(c)
                | JoinOperator::RightOuter(c)
                | JoinOperator::FullOuter(c)
                | JoinOperator::Semi(c)
                | JoinOperator::LeftSemi(c)
                | JoinOperator::Anti(c)
                | JoinOperator::LeftAnti(c) => c,
                _ => continue,
            };
            if let JoinConstraint::Using(columns) = constraint {
                for part in columns.iter_mut().flat_map(|name| name.0.iter_mut()) {
                    if let ast::ObjectNamePart::Identifier(ident) = part {
                        self.names.column(ident);
                    }
                }
            }
        }
    }
}

impl VisitorMut for Folder<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
        self.body(&mut query.body);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(ident) => self.names.column(ident),
            Expr::CompoundIdentifier(parts) => self.names.compound(parts),
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    match access {
                        AccessExpr::Dot(Expr::Identifier(ident)) => self.names.column(ident),
                        AccessExpr::Dot(_)
                        | AccessExpr::Subscript(Subscript::Index { .. } | Subscript::Slice { .. }) => {}
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
