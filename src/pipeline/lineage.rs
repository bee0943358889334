//! What names alone tell of the columns of each dataset: which are verdicts, which come from a clock. Columns that reach a
//! dataset through `*` from outside stay unknown, so an answer is a hint and never a proof.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableFactor, TableWithJoins, UnaryOperator, Value, visit_expressions,
};

use super::check::FAILED_COLUMN;
use super::frame::{Frame, FrameOp, Item, JoinKind};
use super::graph::Graph;
use super::{FlowKind, Pipeline, Query, QueryBody, Relation, RelationSource, TableName};

/// What is known of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// It says what rules think of the row.
    pub(super) verdict: bool,
    /// A filter has left only rows on which this verdict is clean.
    pub(super) settled: bool,
    /// It is a reading of a clock.
    pub(super) clock: bool,
}

/// Is called with the condition of each filter, the relations that it filters, and their known columns.
pub(super) type Found<'a> = dyn FnMut(&Expr, &[&Relation], &Columns) + 'a;

/// Known columns by folded name.
pub(super) type Columns = BTreeMap<String, Traits>;

/// Known columns of every dataset, and the filters on verdicts found on the way.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    columns: BTreeMap<TableName, Columns>,
}

impl Lineage {
    pub(super) fn new(pipeline: &Pipeline, graph: &Graph) -> Lineage {
        let mut lineage = Lineage::default();
        for name in graph.order() {
            let mut columns = Columns::new();
            for flow in pipeline.flows_into(name) {
                match &flow.kind {
                    FlowKind::Query { query, .. } => merge(&mut columns, lineage.query(query)),
                    FlowKind::AutoCdc(cdc) => {
                        let kept = lineage.relation(&cdc.source).into_iter().filter(|(column, _)| cdc.keeps(column));
                        merge(&mut columns, kept.collect());
                    }
                }
            }
            for column in pipeline.datasets.get(name).into_iter().flat_map(|dataset| dataset.columns.iter().flatten()) {
                let folded = column.name.to_lowercase();
                columns.entry(folded.clone()).or_insert_with(|| named(&folded));
            }
            lineage.columns.insert(name.clone(), columns);
        }
        lineage
    }

    /// Known columns of what a relation reads.
    pub(super) fn relation(&self, relation: &Relation) -> Columns {
        match &relation.source {
            RelationSource::Dataset(name) => self.columns.get(name).cloned().unwrap_or_default(),
            RelationSource::Quarantine(name) => {
                let mut columns = self.columns.get(name).cloned().unwrap_or_default();
                columns.insert(FAILED_COLUMN.to_owned(), Traits { verdict: true, ..Traits::default() });
                columns
            }
            RelationSource::External { .. } => Columns::new(),
            RelationSource::Files(files) => {
                let fields = files.schema.iter().flat_map(|schema| schema.fields().iter());
                fields.map(|field| field.name().to_lowercase()).map(|name| (name.clone(), named(&name))).collect()
            }
        }
    }

    /// Calls back for each filter of a query.
    pub(super) fn filters(&self, query: &Query, found: &mut Found<'_>) {
        match &query.body {
            QueryBody::Sql(ast) => drop(self.body(query, &mut Vec::new(), ast, found)),
            QueryBody::Frame(frame) => drop(self.frame(query, frame, found)),
        }
    }

    fn query(&self, query: &Query) -> Columns {
        match &query.body {
            QueryBody::Sql(ast) => self.body(query, &mut Vec::new(), ast, &mut |_, _, _| {}),
            QueryBody::Frame(frame) => self.frame(query, frame, &mut |_, _, _| {}).0,
        }
    }

    /// Known columns of a frame, and the relations whose rows it has.
    fn frame<'q>(&self, query: &'q Query, frame: &Frame, found: &mut Found<'_>) -> (Columns, Vec<&'q Relation>) {
        let mut inputs = frame.inputs().into_iter();
        let (mut columns, mut relations) = match inputs.next() {
            Some(input) => self.frame(query, input, found),
            None => (Columns::new(), Vec::new()),
        };
        let other = inputs.next().map(|input| self.frame(query, input, found));
        let narrow = matches!(&frame.op, FrameOp::Join(join) if matches!(join.kind, JoinKind::Semi | JoinKind::Anti));
        if let Some((more, others)) = other.filter(|_| !narrow) {
            merge(&mut columns, more);
            relations.extend(others);
        }
        match &frame.op {
            FrameOp::Read { relation, .. } => {
                let read = query.relations.get(*relation);
                columns = read.map(|relation| self.relation(relation)).unwrap_or_default();
                relations.extend(read);
            }
            FrameOp::Sql(ast) => columns = self.body(query, &mut Vec::new(), ast, found),
            FrameOp::Filter(_, condition) => {
                found(condition, &relations, &columns);
                settle(&mut columns, condition);
            }
            FrameOp::Project(_, items) => {
                let mut output = Columns::new();
                for item in items {
                    match item {
                        Item::Star { .. } => merge(&mut output, columns.clone()),
                        Item::Expr(expr, name) => {
                            if let Some(name) =
                                name.as_ref().map(|name| name.to_lowercase()).or_else(|| column_name(expr))
                            {
                                let traits = traits(expr, &columns, &name);
                                output.insert(name, traits);
                            }
                        }
                        Item::Rows(..) => {}
                    }
                }
                columns = output;
            }
            FrameOp::WithColumns(_, added) => {
                let before = columns.clone();
                for (name, expr) in added {
                    let name = name.to_lowercase();
                    let traits = traits(expr, &before, &name);
                    columns.insert(name, traits);
                }
            }
            FrameOp::Rename(_, names) => {
                for (old, new) in names {
                    if let Some(traits) = columns.remove(&old.to_lowercase()) {
                        columns.insert(new.to_lowercase(), traits);
                    }
                }
            }
            FrameOp::Drop(_, names, exprs) => {
                let gone = names.iter().map(|name| name.to_lowercase()).chain(exprs.iter().filter_map(column_name));
                gone.for_each(|name| {
                    columns.remove(&name);
                });
            }
            FrameOp::Conform(_, schema) => {
                columns.retain(|name, _| schema.fields().iter().any(|field| field.name().to_lowercase() == *name));
            }
            FrameOp::Names(_, names) => {
                columns = names.iter().map(|name| name.to_lowercase()).map(|n| (n.clone(), named(&n))).collect();
            }
            FrameOp::Aggregate { .. } | FrameOp::Unpivot { .. } => {
                columns.clear();
                relations.clear();
            }
            FrameOp::Rows { .. }
            | FrameOp::Join(_)
            | FrameOp::Union { .. }
            | FrameOp::Compare { .. }
            | FrameOp::Sort(..)
            | FrameOp::Limit { .. }
            | FrameOp::Distinct(..)
            | FrameOp::Alias(..)
            | FrameOp::FillNull { .. }
            | FrameOp::DropNull { .. }
            | FrameOp::Replace { .. } => {}
        }
        (columns, relations)
    }

    fn body(
        &self,
        query: &Query,
        ctes: &mut Vec<(String, Columns)>,
        ast: &ast::Query,
        found: &mut Found<'_>,
    ) -> Columns {
        let outer = ctes.len();
        for cte in ast.with.iter().flat_map(|with| &with.cte_tables) {
            let columns = self.body(query, ctes, &cte.query, found);
            ctes.push((cte.alias.name.value.to_lowercase(), columns));
        }
        let columns = self.set(query, ctes, &ast.body, found);
        ctes.truncate(outer);
        columns
    }

    fn set(&self, query: &Query, ctes: &mut Vec<(String, Columns)>, body: &SetExpr, found: &mut Found<'_>) -> Columns {
        match body {
            SetExpr::Select(select) => self.select(query, ctes, select, found),
            SetExpr::Query(inner) => self.body(query, ctes, inner, found),
            SetExpr::SetOperation { left, right, .. } => {
                let mut columns = self.set(query, ctes, left, found);
                merge(&mut columns, self.set(query, ctes, right, found));
                columns
            }
            _ => Columns::new(),
        }
    }

    fn select(
        &self,
        query: &Query,
        ctes: &mut Vec<(String, Columns)>,
        select: &Select,
        found: &mut Found<'_>,
    ) -> Columns {
        let mut inputs: Vec<(String, Columns)> = Vec::new();
        let mut relations = Vec::new();
        for factor in select.from.iter().flat_map(factors) {
            self.factor(query, ctes, factor, &mut inputs, &mut relations, found);
        }
        let mut input = Columns::new();
        for (_, columns) in &inputs {
            merge(&mut input, columns.clone());
        }
        if let Some(condition) = &select.selection {
            found(condition, &relations, &input);
            for columns in inputs.iter_mut().map(|(_, columns)| columns).chain([&mut input]) {
                settle(columns, condition);
            }
        }
        let mut output = Columns::new();
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(options) => merge(&mut output, without(&input, options)),
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                    let alias = name.0.last().and_then(ObjectNamePart::as_ident).map(|i| i.value.to_lowercase());
                    for (_, columns) in inputs.iter().filter(|(input, _)| Some(input) == alias.as_ref()) {
                        merge(&mut output, without(columns, options));
                    }
                }
                SelectItem::ExprWithAlias { expr, alias } => {
                    let name = alias.value.to_lowercase();
                    let traits = traits(expr, &input, &name);
                    output.insert(name, traits);
                }
                SelectItem::UnnamedExpr(expr) => {
                    if let Some(name) = column_name(expr) {
                        let traits = traits(expr, &input, &name);
                        output.insert(name, traits);
                    }
                }
                _ => {}
            }
        }
        output
    }

    fn factor<'q>(
        &self,
        query: &'q Query,
        ctes: &mut Vec<(String, Columns)>,
        factor: &TableFactor,
        inputs: &mut Vec<(String, Columns)>,
        relations: &mut Vec<&'q Relation>,
        found: &mut Found<'_>,
    ) {
        match factor {
            TableFactor::Table { name, alias, .. } => {
                let Some(ident) = name.0.last().and_then(ObjectNamePart::as_ident) else { return };
                let shown = alias.as_ref().map_or(&ident.value, |alias| &alias.name.value).to_lowercase();
                let number = ident.value.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
                match number.and_then(|number| query.relations.get(number)) {
                    Some(relation) => {
                        relations.push(relation);
                        inputs.push((shown, self.relation(relation)));
                    }
                    None => {
                        let folded = ident.value.to_lowercase();
                        let cte = ctes.iter().rev().find(|(name, _)| *name == folded);
                        inputs.push((shown, cte.map(|(_, columns)| columns.clone()).unwrap_or_default()));
                    }
                }
            }
            TableFactor::Derived { subquery, alias, .. } => {
                let columns = self.body(query, ctes, subquery, found);
                inputs.push((alias.as_ref().map_or(String::new(), |a| a.name.value.to_lowercase()), columns));
            }
            TableFactor::NestedJoin { table_with_joins, .. } => {
                for inner in factors(table_with_joins) {
                    self.factor(query, ctes, inner, inputs, relations, found);
                }
            }
            _ => {}
        }
    }
}

/// Verdicts that a condition requires to be clean are settled behind it.
fn settle(columns: &mut Columns, condition: &Expr) {
    for column in clean_columns(condition) {
        if let Some(traits) = columns.get_mut(&column) {
            traits.settled = traits.verdict;
        }
    }
}

fn factors(table: &TableWithJoins) -> impl Iterator<Item = &TableFactor> {
    std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation))
}

/// A column that only one of two inputs settles is not settled.
fn merge(into: &mut Columns, from: Columns) {
    for (name, new) in from {
        into.entry(name)
            .and_modify(|old| {
                old.settled = match (old.verdict, new.verdict) {
                    (true, true) => old.settled && new.settled,
                    (true, false) => old.settled,
                    (false, _) => new.settled,
                };
                old.verdict |= new.verdict;
                old.clock |= new.clock;
            })
            .or_insert(new);
    }
}

fn without(columns: &Columns, options: &ast::WildcardAdditionalOptions) -> Columns {
    let except =
        options.opt_except.iter().flat_map(|e| std::iter::once(&e.first_element).chain(&e.additional_elements));
    let except: Vec<String> = except.map(|ident| ident.value.to_lowercase()).collect();
    columns.iter().filter(|(name, _)| !except.contains(name)).map(|(name, traits)| (name.clone(), *traits)).collect()
}

/// What a name by itself gives away.
fn named(folded: &str) -> Traits {
    let verdict = folded.starts_with("_dq_")
        || folded.starts_with("dq_")
        || ["is_quarantined", "failed_rules", "failed_expectations"].contains(&folded);
    Traits { verdict, ..Traits::default() }
}

fn traits(expr: &Expr, input: &Columns, name: &str) -> Traits {
    let mut traits = column_name(expr).and_then(|column| input.get(&column).copied()).unwrap_or_default();
    traits.verdict |= named(name).verdict || tags(expr);
    traits.clock |= reads_clock(expr);
    traits
}

/// The folded name of a column that stands by itself.
pub(super) fn column_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(ident) => Some(ident.value.to_lowercase()),
        Expr::CompoundIdentifier(idents) => idents.last().map(|ident| ident.value.to_lowercase()),
        Expr::Nested(inner) => column_name(inner),
        _ => None,
    }
}

/// All columns that an expression names.
pub(super) fn columns_of(expr: &Expr) -> Vec<String> {
    let mut found = Vec::new();
    let _: ControlFlow<()> = visit_expressions(expr, |inner| {
        if !matches!(inner, Expr::Nested(_)) {
            found.extend(column_name(inner));
        }
        ControlFlow::Continue(())
    });
    found
}

/// Is it an array of the names of the rules that a row violates, as `array(CASE WHEN … THEN 'rule' END, …)` is?
fn tags(expr: &Expr) -> bool {
    fn labels(expr: &Expr) -> bool {
        match expr {
            Expr::Nested(inner) => labels(inner),
            Expr::Case { conditions, .. } => conditions.iter().all(|when| string(&when.result)),
            _ => false,
        }
    }
    visit_expressions(expr, |inner| match called(inner) {
        Some((name, arguments)) if name == "array" && arguments.iter().copied().any(labels) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
    .is_break()
}

fn string(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)))
}

/// Does an expression read a clock, or when a file was written?
pub(super) fn reads_clock(expr: &Expr) -> bool {
    const CLOCKS: [&str; 6] =
        ["current_timestamp", "now", "current_date", "localtimestamp", "unix_timestamp", "curdate"];
    visit_expressions(expr, |inner| {
        let clock = match inner {
            Expr::CompoundIdentifier(idents) => {
                let parts: Vec<String> = idents.iter().map(|ident| ident.value.to_lowercase()).collect();
                parts.iter().any(|part| part == "_metadata")
                    && parts.last().is_some_and(|last| last == "file_modification_time")
            }
            Expr::Identifier(ident) => {
                ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("current_timestamp")
            }
            other => {
                called(other).is_some_and(|(name, arguments)| CLOCKS.contains(&name.as_str()) && arguments.is_empty())
            }
        };
        if clock { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .is_break()
}

/// A function's folded name and its plain arguments.
fn called(expr: &Expr) -> Option<(String, Vec<&Expr>)> {
    let Expr::Function(function) = expr else { return None };
    let name = function.name.0.last().and_then(ObjectNamePart::as_ident)?.value.to_lowercase();
    let arguments = match &function.args {
        FunctionArguments::List(list) => list
            .args
            .iter()
            .filter_map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    Some((name, arguments))
}

/// Columns that a condition requires to be clean: no tags, null, or false.
pub(super) fn clean_columns(condition: &Expr) -> Vec<String> {
    let size = |expr: &Expr| {
        let (name, arguments) = called(expr)?;
        let sized = ["size", "cardinality", "array_size", "array_length", "len"].contains(&name.as_str());
        arguments.first().filter(|_| sized).and_then(|argument| column_name(argument))
    };
    let number = |expr: &Expr, wanted: &str| matches!(expr, Expr::Value(value) if matches!(&value.value, Value::Number(n, _) if n == wanted));
    let boolean = |expr: &Expr, wanted: bool| matches!(expr, Expr::Value(value) if matches!(value.value, Value::Boolean(b) if b == wanted));
    let found = match condition {
        Expr::Nested(inner) => return clean_columns(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            let mut both = clean_columns(left);
            both.extend(clean_columns(right));
            return both;
        }
        Expr::BinaryOp { left, op, right } => match op {
            BinaryOperator::Eq | BinaryOperator::LtEq if number(right, "0") => size(left),
            BinaryOperator::Lt if number(right, "1") => size(left),
            BinaryOperator::Eq if number(left, "0") => size(right),
            BinaryOperator::Eq if boolean(right, false) => column_name(left),
            BinaryOperator::Eq => match called(right) {
                Some((name, arguments)) if name == "array" && arguments.is_empty() => column_name(left),
                _ => None,
            },
            _ => None,
        },
        Expr::IsNull(inner) | Expr::IsFalse(inner) | Expr::IsNotTrue(inner) => column_name(inner),
        Expr::UnaryOp { op: UnaryOperator::Not | UnaryOperator::BangNot, expr } => column_name(expr),
        _ => None,
    };
    found.into_iter().collect()
}
