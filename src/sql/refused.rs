//! Parts of a query that are refused by name, wherever they stand.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, JoinConstraint, JoinOperator, ObjectName, PipeOperator, Query, Select, SelectItem, SetExpr, SetOperator,
    SetQuantifier, Spanned, TableFactor, Value, ValueWithSpan, Visit, Visitor,
};
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use super::relation::not_supported;
use crate::error::Error;
use crate::pipeline::Source;

/// Functions that make several rows, or several columns, of one value.
pub(crate) const GENERATORS: [&str; 8] =
    ["explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "stack"];

/// The errors for all that is refused in a query by itself.
pub(super) fn refusals(file: &Source, query: &Query) -> Vec<Error> {
    struct Finder<'a>(&'a Source, Vec<Error>);
    impl Finder<'_> {
        fn add(&mut self, what: &str, help: &str, at: AstSpan) {
            let error = not_supported(what);
            let error = if help.is_empty() { error } else { error.help(help) };
            self.1.push(if at.start.line == 0 { error } else { error.at(&self.0.span(at)) });
        }
    }
    impl Visitor for Finder<'_> {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            refuse_query(query, &mut |what, help, at| self.add(what, help, at));
            ControlFlow::Continue(())
        }
        fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
            // Rows are picked here and now, so windows are no trouble.
            if let Some(into) = &select.into {
                self.add("SELECT INTO", "", into.span());
            }
            ControlFlow::Continue(())
        }
        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            refuse_factor(factor, &mut |what, help, at| self.add(what, help, at));
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            refuse_expr(expr, &mut |what, help, at| self.add(what, help, at));
            ControlFlow::Continue(())
        }
    }
    let mut finder = Finder(file, Vec::new());
    let _ = Visit::visit(query, &mut finder);
    finder.1
}

/// Told what is refused, what to write instead (or nothing), and where.
type Refuse<'a> = &'a mut dyn FnMut(&str, &str, AstSpan);

/// Is it one of [`GENERATORS`]?
pub(super) fn is_generator(name: &ObjectName) -> bool {
    let name = name.to_string().to_lowercase();
    GENERATORS.contains(&name.as_str())
}

pub(super) fn refuse_query(query: &Query, refuse: Refuse<'_>) {
    body(&query.body, refuse);
    for pipe in &query.pipe_operators {
        match pipe {
            PipeOperator::Pivot { .. } => refuse("PIVOT", PIVOT, AstSpan::empty()),
            PipeOperator::Unpivot { .. } => refuse("UNPIVOT", UNPIVOT, AstSpan::empty()),
            PipeOperator::TableSample { .. } => refuse("TABLESAMPLE", SAMPLE, AstSpan::empty()),
            PipeOperator::Call { function, .. } => refuse("|> CALL", "", function.span()),
            _ => {}
        }
    }
}

const PIVOT: &str = "write one conditional column a value: CASE WHEN key = 'a' THEN value END AS a";
const UNPIVOT: &str = "stack(2, 'a', a, 'b', b) AS (key, value)";
pub(super) const SAMPLE: &str = "a sample could not be rebuilt; filter by a hash of the key: xxhash64(id) % 100 < 10";

fn body(found: &SetExpr, refuse: Refuse<'_>) {
    let at = found.span();
    match found {
        SetExpr::SetOperation { left, right, op, set_quantifier } => {
            if *op != SetOperator::Union && matches!(set_quantifier, SetQuantifier::All | SetQuantifier::AllByName) {
                let help = "without ALL equal rows count once, and the other side is looked up";
                refuse(&format!("{op} ALL"), help, at);
            }
            body(left, refuse);
            body(right, refuse);
        }
        SetExpr::Table(_) => refuse("TABLE as a query", "SELECT * FROM …", at),
        SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
            refuse("a statement that writes, inside a query", "", at);
        }
        SetExpr::Select(_) | SetExpr::Query(_) | SetExpr::Values(_) => {}
    }
}

pub(super) fn refuse_select(select: &Select, refuse: Refuse<'_>) {
    if let Some(into) = &select.into {
        refuse("SELECT INTO", "", into.span());
    }
    if let Some(qualify) = &select.qualify {
        refuse("QUALIFY", "one row a key is AUTO CDC: KEYS (id) SEQUENCE BY updated_at", qualify.span());
    }
    if let Some(window) = select.named_window.first() {
        refuse("WINDOW", "", window.0.span);
    }
    shared_columns(select, refuse);
}

/// The planner takes the columns of USING from one side, whichever has the first name: with an outer join the other one
/// may be the one that has a value.
fn shared_columns(select: &Select, refuse: Refuse<'_>) {
    const NAMED: &str = "name the columns, and those of USING by the side that has all of them: SELECT s.id, …";
    let all = select.projection.iter().any(|item| matches!(item, SelectItem::Wildcard(_)));
    for join in select.from.iter().flat_map(|table| &table.joins) {
        let shared = |on: &JoinConstraint| matches!(on, JoinConstraint::Using(_) | JoinConstraint::Natural);
        match &join.join_operator {
            JoinOperator::Left(on) | JoinOperator::LeftOuter(on) if all && shared(on) => {
                refuse("* behind LEFT JOIN … USING", NAMED, join.relation.span());
            }
            JoinOperator::Right(on) | JoinOperator::RightOuter(on) | JoinOperator::FullOuter(on) if shared(on) => {
                refuse("RIGHT or FULL JOIN … USING", "join ON s.id = r.id", join.relation.span());
            }
            _ => {}
        }
    }
}

pub(super) fn refuse_factor(factor: &TableFactor, refuse: Refuse<'_>) {
    match factor {
        TableFactor::Pivot { table, .. } => refuse("PIVOT", PIVOT, table.span()),
        TableFactor::Unpivot { table, .. } => refuse("UNPIVOT", UNPIVOT, table.span()),
        _ => {}
    }
}

pub(super) fn refuse_expr(expr: &Expr, refuse: Refuse<'_>) {
    match expr {
        Expr::Collate { .. } => {
            let help = "text is compared by its bytes; compare lower(…) where case does not count";
            refuse("COLLATE", help, expr.span());
        }
        Expr::Value(ValueWithSpan { value: Value::Placeholder(marker), span }) => {
            refuse(&format!("the parameter {marker}"), "SET key = value, and ${key}", *span);
        }
        _ => {}
    }
}
