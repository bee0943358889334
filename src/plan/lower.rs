//! A DataFusion plan as a tree of [`Node`]s. What the dataflow has no operator for is refused here, by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{DFSchema, DataFusionError, JoinType, NullEquality, TableReference};
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Distinct, Expr, Join, LogicalPlan, when};
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use super::clock::{bind_clock, reads_clock};
use super::context::config;
use super::moments::{Boundary, live};
use super::query::from_datafusion;
use super::readings::{Reader, Readings};
use super::schema::{WALL_COLUMN, is_hidden, with_now, with_wall};
use super::unique::{KnownKeys, column_index, relation_of, unique_on};
use super::{Input, MatchKind, MatchNode, Node, PlanLint, Step};
use crate::error::{Error, Result, Span};
use crate::pipeline::Source;

/// What lowering needs to know of the flow around the query.
pub(super) struct Lowering<'a> {
    /// What relation `$n` reads, and its columns without the wall.
    pub(super) inputs: &'a [(Input, SchemaRef)],
    /// What columns of relation `$n` have of the clock.
    pub(super) shown: &'a [Readings],
    /// Columns of relation `$n`.
    pub(super) schemas: &'a [SchemaRef],
    pub(super) known: &'a dyn KnownKeys,
    /// Session time zone.
    pub(super) zone: Arc<str>,
    /// The clock is read when a row arrives, and never again.
    pub(super) once: bool,
    /// So are references, and views are part of the query.
    pub(super) decided: bool,
    /// Which relations are read as streams.
    pub(super) streams: Vec<bool>,
    pub(super) views: &'a dyn Views,
    /// Views that are part of the query.
    pub(super) inlined: BTreeSet<Input>,
    pub(super) span: &'a Span,
    pub(super) source: Option<&'a Source>,
    /// Inputs that must carry the wall.
    pub(super) walls: BTreeSet<Input>,
    pub(super) lints: Vec<PlanLint>,
}

/// The query of a view.
pub(super) struct View<'a> {
    pub(super) plan: &'a LogicalPlan,
    pub(super) inputs: Vec<(Input, SchemaRef)>,
    pub(super) shown: Vec<Readings>,
    pub(super) streams: Vec<bool>,
    pub(super) known: Box<dyn KnownKeys + 'a>,
    pub(super) judged: bool,
}

/// The views of a pipeline.
pub(super) trait Views {
    /// The query of `input`, if it is a view.
    fn view(&self, input: Input) -> Result<Option<View<'_>>>;
}

impl Lowering<'_> {
    fn wrong(&self, error: datafusion::common::DataFusionError) -> Error {
        from_datafusion(error, self.span, self.source)
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::user("NOT_SUPPORTED", format!("{what} in a pipeline query is not supported yet")).at(self.span)
    }

    /// Lowers `plan`; with `wall`, the outgoing rows carry the wall as last column.
    pub(super) fn lower(&mut self, plan: &LogicalPlan, wall: bool) -> Result<Node> {
        match plan {
            LogicalPlan::Projection(projection) => {
                let shown = self.shown(&projection.input)?;
                let read = self.read(&projection.expr, projection.input.schema(), &shown)?;
                let input = self.lower(&projection.input, wall || read.at_arrival)?;
                let input = self.clocked(input, &read.boundaries, projection.input.schema())?;
                let mut columns = Vec::with_capacity(projection.expr.len() + 1);
                for expr in &read.exprs {
                    columns.push(self.physical(expr, projection.input.schema(), &input)?);
                }
                let mut schema = plan.schema().as_arrow().clone();
                if wall {
                    columns.push(wall_expr(&input));
                    schema = with_wall(&schema).as_ref().clone();
                }
                Ok(project(input, columns, Arc::new(schema)))
            }
            LogicalPlan::Filter(filter) => {
                let shown = self.shown(&filter.input)?;
                let read = self.read(std::slice::from_ref(&filter.predicate), filter.input.schema(), &shown)?;
                let input = self.lower(&filter.input, wall || read.at_arrival)?;
                self.filter(input, &read, filter.input.schema(), wall)
            }
            LogicalPlan::SubqueryAlias(alias) => self.lower(&alias.input, wall),
            LogicalPlan::TableScan(scan) => {
                let found = relation_of(scan.table_name.table()).and_then(|n| self.inputs.get(n));
                let Some((input, schema)) = found else {
                    return Err(Error::internal(format!("relation {} is not known", scan.table_name)));
                };
                if self.decided
                    && let Some(view) = self.views.view(*input)?
                {
                    return self.inline(*input, &view, scan.projection.as_deref(), wall);
                }
                let mut columns: Vec<usize> =
                    scan.projection.clone().unwrap_or_else(|| (0..schema.fields().len()).collect());
                let mut out =
                    schema.project(&columns).map_err(|e| Error::internal("projection of a scan").caused_by(e))?;
                if wall {
                    self.walls.insert(*input);
                    columns.push(schema.fields().len());
                    out = with_wall(&out).as_ref().clone();
                }
                Ok(Node::Read { input: *input, columns, schema: Arc::new(out) })
            }
            LogicalPlan::Union(union) => {
                let inputs = union.inputs.iter().map(|i| self.lower(i, wall)).collect::<Result<Vec<_>>>()?;
                let schema = plan.schema().as_arrow().clone();
                let schema = if wall { with_wall(&schema) } else { Arc::new(schema) };
                Ok(Node::Union { inputs, schema })
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                if self.decided {
                    return Err(self.unsupported("DISTINCT over rows that are decided when they arrive"));
                }
                if wall {
                    return Err(self.unsupported("the clock over the result of DISTINCT"));
                }
                let input = self.lower(input, false)?;
                let schema = Arc::clone(input.schema());
                Ok(Node::Distinct { input: Box::new(input), schema })
            }
            LogicalPlan::Join(join) => self.join(join, wall),
            LogicalPlan::Aggregate(_) => Err(self.unsupported("an aggregate (GROUP BY or an aggregate function)")),
            LogicalPlan::Window(_) => Err(self.unsupported("a window function")),
            LogicalPlan::Sort(_) => {
                Err(self.unsupported("ORDER BY").help("rows of a table have no order; sort when you query it"))
            }
            LogicalPlan::Limit(_) => Err(self.unsupported("LIMIT")),
            LogicalPlan::Unnest(unnest) => {
                let (&[(column, _)], []) = (unnest.list_type_columns.as_slice(), unnest.struct_type_columns.as_slice())
                else {
                    return Err(self.unsupported("unnest"));
                };
                let input = self.lower(&unnest.input, wall)?;
                let schema = plan.schema().as_arrow().clone();
                let schema = if wall { with_wall(&schema) } else { Arc::new(schema) };
                Ok(map(input, Step::Unnest { column, schema }))
            }
            LogicalPlan::Distinct(_) => Err(self
                .unsupported("DISTINCT ON, dropDuplicates of some columns,")
                .help("an AUTO CDC flow keeps one row for each key; whole rows can be distinct")),
            LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => {
                Err(self.unsupported("a query that reads nothing"))
            }
            LogicalPlan::RecursiveQuery(_) => Err(self.unsupported("a recursive common table expression")),
            LogicalPlan::Subquery(_) => Err(self.unsupported("a scalar subquery")),
            other => Err(self.unsupported(&format!("the operator {}", other.display()))),
        }
    }

    /// A view as part of a query that decides rows when they arrive.
    fn inline(&mut self, input: Input, view: &View<'_>, columns: Option<&[usize]>, wall: bool) -> Result<Node> {
        if view.judged {
            return Err(self
                .unsupported("a view with expectations, before a table that decides rows when they arrive,")
                .help("put the expectations on the table"));
        }
        let mut inner = Lowering {
            inputs: &view.inputs,
            shown: &view.shown,
            schemas: &view.inputs.iter().map(|(_, schema)| Arc::clone(schema)).collect::<Vec<_>>(),
            known: view.known.as_ref(),
            zone: Arc::clone(&self.zone),
            once: true,
            decided: true,
            streams: view.streams.clone(),
            views: self.views,
            inlined: BTreeSet::from([input]),
            span: self.span,
            source: self.source,
            walls: BTreeSet::new(),
            lints: Vec::new(),
        };
        let node = inner.lower(view.plan, wall)?;
        self.walls.append(&mut inner.walls);
        self.lints.append(&mut inner.lints);
        self.inlined.append(&mut inner.inlined);
        let width = node.schema().fields().len() - usize::from(wall);
        let mut order: Vec<usize> = columns.map_or_else(|| (0..width).collect(), <[usize]>::to_vec);
        if wall {
            order.push(width);
        }
        Ok(select(node, order))
    }

    /// Whether a stream is read in `plan`.
    fn streams(&self, plan: &LogicalPlan) -> bool {
        match plan {
            LogicalPlan::TableScan(scan) => {
                relation_of(scan.table_name.table()).and_then(|n| self.streams.get(n)).copied().unwrap_or(false)
            }
            other => other.inputs().iter().any(|input| self.streams(input)),
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader { relations: self.shown, schemas: self.schemas, zone: &self.zone, once: self.once }
    }

    /// What the columns of `plan` have of the clock.
    fn shown(&self, plan: &LogicalPlan) -> Result<Readings> {
        self.reader().of(plan).map_err(|e| self.wrong(e))
    }

    /// How expressions over `columns` read the clock.
    fn read(&mut self, exprs: &[Expr], columns: &DFSchema, shown: &Readings) -> Result<Reads> {
        let mut reads = Reads { exprs: Vec::with_capacity(exprs.len()), boundaries: Vec::new(), at_arrival: false };
        for expr in exprs {
            let found = live(expr, columns, &self.zone, self.once, shown).map_err(|e| self.wrong(e))?;
            if found.is_partial() {
                self.lints.push(read_once(self.once, found.at_arrival, self.span));
            }
            reads.exprs.push(found.expr);
            reads.boundaries.extend(found.boundaries);
            reads.at_arrival |= found.at_arrival;
        }
        Ok(reads)
    }

    /// Lets rows pass the clock, if their meaning changes at boundaries.
    fn clocked(&self, input: Node, boundaries: &[Boundary<Expr>], columns: &DFSchema) -> Result<Node> {
        let boundaries = boundaries.iter().map(|b| b.bind(|e| self.physical(e, columns, &input)));
        clock(boundaries.collect::<Result<_>>()?, input)
    }

    /// Keeps the rows for which a predicate is true; `wall` says whether the wall goes on.
    fn filter(&self, input: Node, read: &Reads, columns: &DFSchema, wall: bool) -> Result<Node> {
        let mut node = self.clocked(input, &read.boundaries, columns)?;
        for predicate in &read.exprs {
            let predicate = self.physical(predicate, columns, &node)?;
            node = map(node, Step::Filter { predicate });
        }
        Ok(without_hidden(node, wall))
    }

    /// Binds an expression over `logical` to the batches of `node`.
    pub(super) fn physical(&self, expr: &Expr, logical: &DFSchema, node: &Node) -> Result<Arc<dyn PhysicalExpr>> {
        physical(expr, logical, node.schema(), &self.zone).map_err(|e| self.wrong(e))
    }

    fn join(&mut self, join: &Join, wall: bool) -> Result<Node> {
        if join.null_aware {
            return Err(self.unsupported("NOT IN with a subquery").help("write NOT EXISTS (SELECT … WHERE …)"));
        }
        let kind = match join.join_type {
            JoinType::Inner => MatchKind::Inner,
            JoinType::Left => MatchKind::Left,
            JoinType::LeftSemi => MatchKind::Semi,
            JoinType::LeftAnti => MatchKind::Anti,
            JoinType::LeftMark => MatchKind::Mark,
            JoinType::Right => return self.turned_join(join, JoinType::Left, wall),
            _ => return Err(self.unsupported("a FULL join")),
        };
        if self.decided {
            match (self.streams(&join.left), self.streams(&join.right)) {
                (true, true) => {
                    return Err(self.unsupported("a join of two streams whose rows are decided when they arrive"));
                }
                (false, true) if kind == MatchKind::Inner => return self.turned_join(join, JoinType::Inner, wall),
                (false, true) => return Err(self.unsupported("a stream as the looked-up side of a join")),
                _ => {}
            }
        }
        if join.on.is_empty() {
            return Err(self.unsupported("a join without an equality between its sides"));
        }
        let (residual, mask) = self.residual(join, kind)?;
        if join.on.iter().any(|(l, r)| reads_clock(l) || reads_clock(r)) {
            return Err(self.unsupported("the clock in the equality of a join"));
        }
        let (left, right) = (self.shown(&join.left)?, self.shown(&join.right)?);
        if join.on.iter().any(|(l, r)| left.touch(l, join.left.schema()) || right.touch(r, join.right.schema())) {
            self.lints.push(read_once(self.once, false, self.span));
        }
        let joined = self.reader().joined(join).map_err(|e| self.wrong(e))?;
        let beside = self.read(residual.as_slice(), &join.schema, &joined)?;
        let masked = self.read(mask.as_slice(), join.left.schema(), &left)?;
        let rows_wall = wall || beside.at_arrival || masked.at_arrival;
        let rows = self.lower(&join.left, rows_wall)?;
        let rows = self.clocked(rows, &masked.boundaries, join.left.schema())?;
        let mask = masked.exprs.into_iter().next();
        let reference = self.reference(join, kind)?;
        let mut row_key = Vec::new();
        let mut reference_key = Vec::new();
        for (left, right) in &join.on {
            let left = match &mask {
                Some(mask) => when(mask.clone(), left.clone()).end().map_err(|e| self.wrong(e))?,
                None => left.clone(),
            };
            row_key.push(self.physical(&left, join.left.schema(), &rows)?);
            reference_key.push(self.physical(right, join.right.schema(), &reference)?);
        }
        if mask.is_some() && join.null_equality == NullEquality::NullEqualsNull {
            return Err(self.unsupported("a null-safe join with a further condition"));
        }
        let key: BTreeSet<usize> = join.on.iter().filter_map(|(_, r)| column_index(r, &join.right)).collect();
        let presence = matches!(kind, MatchKind::Semi | MatchKind::Anti | MatchKind::Mark);
        let unique = presence || unique_on(&join.right, &key, self.known);
        if !unique {
            self.lints.push(PlanLint {
                code: "JOIN_FANS_OUT",
                message: "the joined relation may hold several rows a key, and each of them gives a row; \
                          join to SELECT DISTINCT of the key, to an AUTO CDC target, or to its current rows \
                          (WHERE __END_AT IS NULL) to look up one"
                    .to_owned(),
                span: self.span.clone(),
            });
        }
        let mut fields: Vec<FieldRef> = join.left.schema().fields().iter().cloned().collect();
        match kind {
            MatchKind::Left | MatchKind::Inner => {
                fields.extend(join.right.schema().fields().iter().map(|f| Arc::new(nullable(f))));
            }
            MatchKind::Mark => fields.push(Arc::new(Field::new("mark", DataType::Boolean, false))),
            MatchKind::Semi | MatchKind::Anti => {}
        }
        fields.extend(rows.schema().fields().iter().filter(|f| is_hidden(f)).cloned());
        let node = Node::Match(Box::new(MatchNode {
            rows,
            reference,
            row_key,
            reference_key,
            null_equal: join.null_equality == NullEquality::NullEqualsNull,
            kind,
            unique,
            settled: false,
            once: self.decided,
            schema: Arc::new(Schema::new(fields)),
        }));
        // The moment at which the mask stands is of no use behind the join.
        self.filter(without_hidden(node, rows_wall), &beside, &join.schema, wall)
    }

    /// A condition beside the equalities: for an inner join it filters the result; where it reads the rows' side alone it
    /// masks the key, so that the row matches nothing.
    fn residual(&self, join: &Join, kind: MatchKind) -> Result<(Option<Expr>, Option<Expr>)> {
        let Some(filter) = &join.filter else { return Ok((None, None)) };
        if kind == MatchKind::Inner {
            return Ok((Some(filter.clone()), None));
        }
        if filter.column_refs().iter().all(|c| join.left.schema().maybe_index_of_column(c).is_some()) {
            return Ok((None, Some(filter.clone())));
        }
        Err(self.unsupported("a join condition that compares both sides other than by equality"))
    }

    /// The reference's side. Where only the key is read, DISTINCT is what the lookup does anyway.
    fn reference(&mut self, join: &Join, kind: MatchKind) -> Result<Node> {
        // What is known of a reference is what it is at the time, whoever asks.
        let (once, decided) = (self.once, self.decided);
        (self.once, self.decided) = (once && !decided, false);
        let node = self.reference_side(join, kind);
        (self.once, self.decided) = (once, decided);
        node
    }

    fn reference_side(&mut self, join: &Join, kind: MatchKind) -> Result<Node> {
        if matches!(kind, MatchKind::Left | MatchKind::Inner)
            && let LogicalPlan::SubqueryAlias(alias) = join.right.as_ref()
            && let LogicalPlan::Distinct(Distinct::All(input)) = alias.input.as_ref()
        {
            let keys: BTreeSet<usize> = join.on.iter().filter_map(|(_, r)| column_index(r, &join.right)).collect();
            if keys.len() == input.schema().fields().len() {
                return self.lower(input, false);
            }
        }
        self.lower(&join.right, false)
    }

    /// A right join is a left join with the sides changed and the columns put back.
    fn turned_join(&mut self, join: &Join, join_type: JoinType, wall: bool) -> Result<Node> {
        let turned = Join::try_new(
            Arc::clone(&join.right),
            Arc::clone(&join.left),
            join.on.iter().map(|(l, r)| (r.clone(), l.clone())).collect(),
            join.filter.clone(),
            join_type,
            join.join_constraint,
            join.null_equality,
            false,
        )
        .map_err(|e| self.wrong(e))?;
        let node = self.join(&turned, wall)?;
        let right = join.right.schema().fields().len();
        let left = join.left.schema().fields().len();
        let order = (right..right + left).chain(0..right).chain(wall.then_some(left + right));
        Ok(select(node, order.collect()))
    }
}

fn nullable(field: &Field) -> Field {
    field.clone().with_nullable(true)
}

/// Binds an expression over the logical columns to batches that may carry the wall behind them.
pub(super) fn physical(
    expr: &Expr,
    logical: &DFSchema,
    batch: &SchemaRef,
    zone: &Arc<str>,
) -> datafusion::common::Result<Arc<dyn PhysicalExpr>> {
    let mut expr = expr.clone();
    while let Expr::Alias(alias) = expr {
        expr = *alias.expr;
    }
    let expr = bind_clock(expr, WALL_COLUMN, zone)?;
    if expr.is_volatile() {
        return Err(DataFusionError::NotImplemented(format!(
            "{expr} gives another value each time, so that a table could never be rebuilt"
        )));
    }
    let mut fields: Vec<(Option<TableReference>, FieldRef)> =
        logical.iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).collect();
    fields.extend(batch.fields().iter().skip(logical.fields().len()).map(|f| (None, Arc::clone(f))));
    let columns = DFSchema::new_with_metadata(fields, Default::default())?;
    let mut properties = ExecutionProps::new();
    properties.mark_start_execution(Arc::clone(config().options()));
    create_physical_expr(&expr, &columns, &properties, &PhysicalPlanningContext::default())
}

fn wall_expr(input: &Node) -> Arc<dyn PhysicalExpr> {
    let at = input.schema().index_of(WALL_COLUMN).unwrap_or_default();
    Arc::new(PhysicalColumn::new(WALL_COLUMN, at))
}

/// Expressions and how they read the clock.
struct Reads {
    exprs: Vec<Expr>,
    boundaries: Vec<Boundary<Expr>>,
    at_arrival: bool,
}

/// Lets rows pass the clock, if their meaning changes at boundaries.
pub(super) fn clock(boundaries: Vec<Boundary>, input: Node) -> Result<Node> {
    if boundaries.is_empty() {
        return Ok(input);
    }
    let schema = with_now(input.schema());
    Ok(Node::Clock { input: Box::new(input), boundaries, schema })
}

/// What `dry-run` says of a condition that is evaluated once: since what it decides is stored, since its changes cannot be
/// told from the row, or, if the clock is not read in the condition itself, since it reads a column that holds what the
/// clock showed.
pub(super) fn read_once(once: bool, itself: bool, span: &Span) -> PlanLint {
    let message = if once {
        "an expression on the clock is evaluated once, when a row arrives, since what it decides is stored; \
         to have it follow the clock, put it into a query that reads this table, or make it an expectation with \
         ON VIOLATION QUARANTINE"
    } else if itself {
        "an expression on the clock is evaluated once, when a row arrives, since it cannot be told from the row when it \
         changes; a comparison of a column with the clock plus or minus a constant follows the clock"
    } else {
        "a condition on a column that holds what the clock showed is evaluated once, when a row arrives, since the column \
         is stored or since it cannot be told from the row when it changes; with current_date() or its like in the \
         condition itself it follows the clock"
    };
    PlanLint { code: "CLOCK_READ_ONCE", message: message.to_owned(), span: span.clone() }
}

/// Adds a row-wise step behind a node.
pub(super) fn map(input: Node, step: Step) -> Node {
    let schema = match &step {
        Step::Project { schema, .. } | Step::Unnest { schema, .. } => Arc::clone(schema),
        Step::Filter { .. } => Arc::clone(input.schema()),
    };
    match input {
        Node::Map { input, mut steps, .. } => {
            steps.push(step);
            Node::Map { input, steps, schema }
        }
        other => Node::Map { input: Box::new(other), steps: vec![step], schema },
    }
}

pub(super) fn project(input: Node, columns: Vec<Arc<dyn PhysicalExpr>>, schema: SchemaRef) -> Node {
    map(input, Step::Project { columns, schema })
}

fn select(input: Node, order: Vec<usize>) -> Node {
    let fields: Vec<FieldRef> = order.iter().filter_map(|i| input.schema().fields().get(*i).cloned()).collect();
    let columns = order
        .iter()
        .zip(&fields)
        .map(|(i, f)| Arc::new(PhysicalColumn::new(f.name(), *i)) as Arc<dyn PhysicalExpr>)
        .collect();
    project(input, columns, Arc::new(Schema::new(fields)))
}

/// Takes off the moment at which rows stand and, unless it goes on, the wall.
fn without_hidden(input: Node, wall: bool) -> Node {
    let kept = |field: &FieldRef| !is_hidden(field) || wall && field.name() == WALL_COLUMN;
    let fields = input.schema().fields();
    let order: Vec<usize> = fields.iter().enumerate().filter(|(_, f)| kept(f)).map(|(i, _)| i).collect();
    if order.len() == fields.len() { input } else { select(input, order) }
}
