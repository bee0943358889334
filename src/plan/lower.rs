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
use super::query::from_datafusion;
use super::schema::{WALL_COLUMN, wall_field, with_wall};
use super::unique::{KnownKeys, column_index, relation_of, unique_on};
use super::{Input, MatchKind, MatchNode, Node, PlanLint, Step};
use crate::error::{Error, Result, Span};
use crate::pipeline::Source;

/// What lowering needs to know of the flow around the query.
pub(super) struct Lowering<'a> {
    /// What relation `$n` reads, and its columns without the wall.
    pub(super) inputs: &'a [(Input, SchemaRef)],
    pub(super) known: &'a dyn KnownKeys,
    /// Session time zone.
    pub(super) zone: Arc<str>,
    pub(super) span: &'a Span,
    pub(super) source: Option<&'a Source>,
    /// Inputs that must carry the wall.
    pub(super) walls: BTreeSet<Input>,
    pub(super) lints: Vec<PlanLint>,
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
                let inner = wall || projection.expr.iter().any(reads_clock);
                let input = self.lower(&projection.input, inner)?;
                let mut columns = Vec::with_capacity(projection.expr.len() + 1);
                for expr in &projection.expr {
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
                let clock = reads_clock(&filter.predicate);
                let input = self.lower(&filter.input, wall || clock)?;
                let predicate = self.physical(&filter.predicate, filter.input.schema(), &input)?;
                let filtered = map(input, Step::Filter { predicate });
                Ok(if clock && !wall { without_wall(filtered) } else { filtered })
            }
            LogicalPlan::SubqueryAlias(alias) => self.lower(&alias.input, wall),
            LogicalPlan::TableScan(scan) => {
                let found = relation_of(scan.table_name.table()).and_then(|n| self.inputs.get(n));
                let Some((input, schema)) = found else {
                    return Err(Error::internal(format!("relation {} is not known", scan.table_name)));
                };
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
            LogicalPlan::Unnest(_) => Err(self.unsupported("explode")),
            LogicalPlan::Distinct(_) => Err(self.unsupported("DISTINCT ON")),
            LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => {
                Err(self.unsupported("a query that reads nothing"))
            }
            LogicalPlan::RecursiveQuery(_) => Err(self.unsupported("a recursive common table expression")),
            LogicalPlan::Subquery(_) => Err(self.unsupported("a scalar subquery")),
            other => Err(self.unsupported(&format!("the operator {}", other.display()))),
        }
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
            JoinType::Right => return self.right_join(join, wall),
            _ => return Err(self.unsupported("a FULL join")),
        };
        if join.on.is_empty() {
            return Err(self.unsupported("a join without an equality between its sides"));
        }
        let (residual, mask) = self.residual(join, kind)?;
        let clock = residual.as_ref().is_some_and(reads_clock)
            || mask.as_ref().is_some_and(reads_clock)
            || join.on.iter().any(|(l, _)| reads_clock(l));
        let rows = self.lower(&join.left, wall || clock)?;
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
        let rows_wall = wall || clock;
        let mut fields: Vec<FieldRef> = join.left.schema().fields().iter().cloned().collect();
        match kind {
            MatchKind::Left | MatchKind::Inner => {
                fields.extend(join.right.schema().fields().iter().map(|f| Arc::new(nullable(f))));
            }
            MatchKind::Mark => fields.push(Arc::new(Field::new("mark", DataType::Boolean, false))),
            MatchKind::Semi | MatchKind::Anti => {}
        }
        if rows_wall {
            fields.push(wall_field());
        }
        let node = Node::Match(Box::new(MatchNode {
            rows,
            reference,
            row_key,
            reference_key,
            null_equal: join.null_equality == NullEquality::NullEqualsNull,
            kind,
            unique,
            schema: Arc::new(Schema::new(fields)),
        }));
        let node = match residual {
            Some(residual) => {
                let predicate = self.physical(&residual, &join.schema, &node)?;
                map(node, Step::Filter { predicate })
            }
            None => node,
        };
        Ok(if rows_wall && !wall { without_wall(node) } else { node })
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
    fn right_join(&mut self, join: &Join, wall: bool) -> Result<Node> {
        let turned = Join::try_new(
            Arc::clone(&join.right),
            Arc::clone(&join.left),
            join.on.iter().map(|(l, r)| (r.clone(), l.clone())).collect(),
            join.filter.clone(),
            JoinType::Left,
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
    let expr = bind_clock(expr, zone)?;
    if expr.is_volatile() {
        return Err(DataFusionError::NotImplemented(format!(
            "{expr} gives another value each time, so that a table could never be rebuilt"
        )));
    }
    let mut fields: Vec<(Option<TableReference>, FieldRef)> =
        logical.iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).collect();
    if batch.fields().last().is_some_and(|f| f.name() == WALL_COLUMN) && fields.len() < batch.fields().len() {
        fields.push((None, wall_field()));
    }
    let columns = DFSchema::new_with_metadata(fields, Default::default())?;
    let mut properties = ExecutionProps::new();
    properties.mark_start_execution(Arc::clone(config().options()));
    create_physical_expr(&expr, &columns, &properties, &PhysicalPlanningContext::default())
}

fn wall_expr(input: &Node) -> Arc<dyn PhysicalExpr> {
    let last = input.schema().fields().len().saturating_sub(1);
    Arc::new(PhysicalColumn::new(WALL_COLUMN, last))
}

/// Adds a row-wise step behind a node.
pub(super) fn map(input: Node, step: Step) -> Node {
    let schema = match &step {
        Step::Project { schema, .. } => Arc::clone(schema),
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

fn without_wall(input: Node) -> Node {
    let width = input.schema().fields().len().saturating_sub(1);
    select(input, (0..width).collect())
}
