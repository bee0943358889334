//! A declared pipeline as a [`Plan`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder, ident};
use datafusion::scalar::ScalarValue;

use super::cdc::{CdcDraft, CdcSource, draft_cdc};
use super::clock::reads_clock;
use super::lower::{Lowering, physical};
use super::metadata::names_metadata;
use super::own::own_columns;
use super::query::{Planner, from_datafusion, plan_expr, plan_query};
use super::replay::{Candidate, Reads, replay_points};
use super::schema::{position, stored_field, stored_schema, stored_type, with_wall};
use super::unique::{KnownKeys, unique};
use super::{
    CdcFlow, CdcPlan, DatasetPlan, Feed, Input, Node, Plan, PlanLint, Rule, SEMANTICS, Source, SourceKind, Stored,
    session,
};
use crate::error::{Error, Result};
use crate::pipeline::{
    Action, Dataset, DatasetKind, EPOCH_COLUMN, FAILED_COLUMN, Flow, FlowKind, Graph, Pipeline, Relation,
    RelationSource, ScdType, TableName, near_miss,
};

/// What planning must know of the world outside: the columns of files and tables.
pub trait Outside {
    /// Columns of a source. `id` is its stable name, under which an inferred schema is remembered.
    fn schema(&self, id: &str, kind: &SourceKind) -> Result<SchemaRef>;
    /// Columns of a dataset's table as it is now, without silverflow's own.
    fn stored(&self, name: &TableName) -> Result<Option<SchemaRef>>;
    /// The column `_metadata` of files.
    fn metadata(&self) -> Field;
    /// Location of an external table by its full name.
    fn location(&self, name: &TableName) -> String;
}

/// A relation of a flow.
#[derive(Clone, Debug)]
enum Reading {
    Outside(Source),
    Dataset(usize),
    Quarantine(usize),
}

struct Draft<'a> {
    dataset: &'a Dataset,
    flows: Vec<DraftFlow<'a>>,
    schema: SchemaRef,
    own: Vec<bool>,
    cdc: Option<CdcDraft>,
    rules: Vec<DraftRule>,
}

struct DraftFlow<'a> {
    flow: &'a Flow,
    reads: Vec<(Reading, SchemaRef)>,
    /// Absent for AUTO CDC.
    plan: Option<LogicalPlan>,
}

struct DraftRule {
    name: String,
    text: String,
    condition: Expr,
    columns: DFSchema,
    action: Action,
    constraint: bool,
}

/// Plans a pipeline: types, columns, expressions, replay points, fingerprints. All mistakes of one dataset's queries are
/// reported; a dataset that reads a faulty one is not looked at.
pub fn analyze(pipeline: &Pipeline, outside: &dyn Outside) -> Result<Plan> {
    let planner = Planner { session: session(true)?, sources: &pipeline.sources };
    let zone: Arc<str> = pipeline
        .configuration
        .get("spark.sql.session.timeZone")
        .map_or_else(|| "UTC".into(), |zone| zone.as_str().into());
    let graph = Graph::new(pipeline)?;
    let order: Vec<&Dataset> = graph.order().iter().filter_map(|name| pipeline.datasets.get(name)).collect();
    let number: BTreeMap<&TableName, usize> = order.iter().enumerate().map(|(i, d)| (&d.name, i)).collect();
    let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(order.len());
    for dataset in &order {
        let mut flows: Vec<&Flow> = pipeline.flows.values().filter(|f| f.target == dataset.name).collect();
        flows.sort_by(|a, b| a.name.cmp(&b.name));
        let draft = draft(&planner, outside, dataset, &flows, &number, &drafts)?;
        drafts.push(draft);
    }
    assemble(&drafts, &zone, &planner)
}

fn draft<'a>(
    planner: &Planner<'_>,
    outside: &dyn Outside,
    dataset: &'a Dataset,
    flows: &[&'a Flow],
    number: &BTreeMap<&TableName, usize>,
    done: &[Draft<'_>],
) -> Result<Draft<'a>> {
    let mut drafted = Vec::with_capacity(flows.len());
    for flow in flows {
        let flow_draft = draft_flow(planner, outside, flow, number, done)
            .map_err(|e| e.dataset(&dataset.name).flow(&flow.name).at(&flow.span))?;
        drafted.push(flow_draft);
    }
    let mut cdc = None;
    let (schema, own) = if flows.iter().any(|f| matches!(f.kind, FlowKind::AutoCdc(_))) {
        let mut sources = Vec::new();
        for drafted in &drafted {
            if let (FlowKind::AutoCdc(auto), Some((reading, schema))) = (&drafted.flow.kind, drafted.reads.first()) {
                sources.push(CdcSource {
                    name: &drafted.flow.name,
                    cdc: auto,
                    span: &drafted.flow.span,
                    alias: alias_of(&auto.source),
                    schema: Arc::clone(schema),
                    own: own_of(reading, schema, done),
                });
            }
        }
        let drafted = draft_cdc(planner, &sources, dataset.columns.as_deref())
            .map_err(|e| e.dataset(&dataset.name).at(&dataset.span))?;
        let schema = Arc::clone(&drafted.target);
        let own: Vec<bool> = schema
            .fields()
            .iter()
            .map(|f| position(&drafted.layout, f.name()).is_some_and(|at| at < drafted.own))
            .collect();
        cdc = Some(drafted);
        (schema, own)
    } else {
        let mut schema = append_schema(dataset, &drafted)?;
        if outside_alone(&drafted) && dataset.columns.is_none() && dataset.kind == DatasetKind::StreamingTable {
            schema = merged(&schema, outside.stored(&dataset.name)?);
        }
        for drafted in &mut drafted {
            conform(drafted, &schema, dataset).map_err(|e| e.dataset(&dataset.name).flow(&drafted.flow.name))?;
        }
        let mut own = vec![true; schema.fields().len()];
        for drafted in &drafted {
            let relations: Vec<Vec<bool>> = drafted.reads.iter().map(|(r, s)| own_of(r, s, done)).collect();
            let outside_only = outside_alone(std::slice::from_ref(drafted));
            if let Some(plan) = &drafted.plan {
                for (all, this) in own.iter_mut().zip(own_columns(plan, &relations, outside_only)) {
                    *all &= this;
                }
            }
        }
        (schema, own)
    };
    let judged = cdc.as_ref().map_or_else(|| Arc::clone(&schema), |c| Arc::clone(&c.judged));
    let rules = rules(planner, dataset, &judged)?;
    Ok(Draft { dataset, flows: drafted, schema, own, cdc, rules })
}

fn outside_alone(flows: &[DraftFlow<'_>]) -> bool {
    flows.iter().flat_map(|flow| &flow.reads).all(|(reading, _)| matches!(reading, Reading::Outside(_)))
}

/// What was stored once stays: a column that the outside no longer gives is null in new rows.
fn merged(schema: &SchemaRef, stored: Option<SchemaRef>) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    for field in stored.iter().flat_map(|s| s.fields()) {
        if position(schema, field.name()).is_none() {
            fields.push(stored_field(field));
        }
    }
    Arc::new(Schema::new(fields))
}

fn alias_of(relation: &Relation) -> String {
    match &relation.source {
        RelationSource::Dataset(name) | RelationSource::External { name, .. } => name.table.clone(),
        RelationSource::Quarantine(name) => name.quarantine().table,
        RelationSource::Files(_) => "read_files".to_owned(),
    }
}

fn own_of(reading: &Reading, schema: &SchemaRef, done: &[Draft<'_>]) -> Vec<bool> {
    match reading {
        Reading::Dataset(index) => done.get(*index).map(|d| d.own.clone()).unwrap_or_default(),
        Reading::Outside(_) | Reading::Quarantine(_) => vec![true; schema.fields().len()],
    }
}

fn draft_flow<'a>(
    planner: &Planner<'_>,
    outside: &dyn Outside,
    flow: &'a Flow,
    number: &BTreeMap<&TableName, usize>,
    done: &[Draft<'_>],
) -> Result<DraftFlow<'a>> {
    let relations: Vec<&Relation> = match &flow.kind {
        FlowKind::Query { query, .. } => query.relations.iter().collect(),
        FlowKind::AutoCdc(cdc) => vec![&cdc.source],
    };
    let from_outside = |r: &Relation| matches!(r.source, RelationSource::Files(_) | RelationSource::External { .. });
    let many = relations.iter().filter(|r| from_outside(r)).count() > 1;
    let mut reads = Vec::with_capacity(relations.len());
    let mut counter = 0;
    for relation in relations {
        let known = |name: &TableName| {
            number
                .get(name)
                .and_then(|i| done.get(*i).map(|d| (*i, d)))
                .ok_or_else(|| Error::internal(format!("{name} is read before it is planned")).at(&relation.span))
        };
        reads.push(match &relation.source {
            RelationSource::Dataset(name) => {
                let (index, draft) = known(name)?;
                (Reading::Dataset(index), Arc::clone(&draft.schema))
            }
            RelationSource::Quarantine(name) => {
                let (index, draft) = known(name)?;
                let judged = draft.cdc.as_ref().map_or(&draft.schema, |c| &c.judged);
                (Reading::Quarantine(index), quarantine_schema(judged))
            }
            RelationSource::External { .. } | RelationSource::Files(_) => {
                counter += 1;
                let id = if many { format!("{}:{counter}", flow.name) } else { flow.name.clone() };
                let kind = match &relation.source {
                    RelationSource::Files(files) => SourceKind::Files(files.clone()),
                    RelationSource::External { name, location } => {
                        let location = location.clone().unwrap_or_else(|| outside.location(name));
                        if relation.stream || flow.once {
                            SourceKind::DeltaStream { location }
                        } else {
                            SourceKind::DeltaSnapshot { location }
                        }
                    }
                    RelationSource::Dataset(_) | RelationSource::Quarantine(_) => continue,
                };
                let mut schema =
                    outside.schema(&id, &kind).map_err(|e| unknown(e, relation, number).at(&relation.span))?;
                if let (SourceKind::Files(_), FlowKind::Query { query, .. }) = (&kind, &flow.kind)
                    && names_metadata(&query.ast)
                {
                    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
                    fields.push(Arc::new(outside.metadata()));
                    schema = Arc::new(Schema::new(fields));
                }
                let schema = stored_schema(&schema);
                let source =
                    Source { id, kind, schema: Arc::clone(&schema), once: flow.once, span: relation.span.clone() };
                (Reading::Outside(source), schema)
            }
        });
    }
    let plan = match &flow.kind {
        FlowKind::Query { query, .. } => {
            let schemas: Vec<SchemaRef> = reads.iter().map(|(_, s)| Arc::clone(s)).collect();
            Some(plan_query(planner, query, &schemas)?)
        }
        FlowKind::AutoCdc(_) => None,
    };
    Ok(DraftFlow { flow, reads, plan })
}

/// A name that is neither a dataset nor a table is a slip, not a failure of the storage.
fn unknown(error: Error, relation: &Relation, number: &BTreeMap<&TableName, usize>) -> Error {
    match &relation.source {
        RelationSource::External { name, location: None }
            if ["SOURCE_NOT_FOUND", "STORAGE_NOT_ACCESSIBLE"].contains(&error.code()) =>
        {
            let error = Error::user(
                "TABLE_OR_VIEW_NOT_FOUND",
                format!("{name} is no dataset of the pipeline, and there is no such table in its storage"),
            );
            match near_miss(&name.table, number.keys().map(|n| n.table.as_str())) {
                Some(near) => error.help(format!("did you mean {near}?")),
                None => error.help(format!("set silverflow.table.{} to where the table is", name.table)),
            }
        }
        _ => error,
    }
}

/// Columns of a dataset that queries feed: as declared, else those of its flows together, in the order of flow names.
fn append_schema(dataset: &Dataset, flows: &[DraftFlow<'_>]) -> Result<SchemaRef> {
    if let Some(columns) = &dataset.columns {
        let fields: Vec<FieldRef> =
            columns.iter().map(|c| Arc::new(Field::new(&c.name, stored_type(&c.data_type), true))).collect();
        return Ok(Arc::new(Schema::new(fields)));
    }
    let mut fields: Vec<FieldRef> = Vec::new();
    for flow in flows {
        let Some(plan) = &flow.plan else { continue };
        let by_name = matches!(flow.flow.kind, FlowKind::Query { by_name: true, .. });
        if !by_name && !fields.is_empty() {
            continue;
        }
        for field in plan.schema().fields() {
            if !fields.iter().any(|f| f.name().eq_ignore_ascii_case(field.name())) {
                fields.push(stored_field(field));
            } else if !by_name || flows.len() == 1 {
                return Err(Error::user(
                    "DUPLICATE_COLUMN",
                    format!("the query yields two columns named {}", field.name()),
                )
                .at(&flow.flow.span)
                .dataset(&dataset.name));
            }
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Makes a flow's query yield exactly the dataset's columns.
fn conform(draft: &mut DraftFlow<'_>, schema: &SchemaRef, dataset: &Dataset) -> Result<()> {
    let FlowKind::Query { by_name, query } = &draft.flow.kind else { return Ok(()) };
    let Some(plan) = draft.plan.take() else { return Ok(()) };
    let given = plan.schema().as_arrow().clone();
    let span = &query.span;
    let by_name = *by_name;
    if by_name {
        if let Some(extra) = given.fields().iter().find(|f| position(schema, f.name()).is_none()) {
            return Err(Error::user(
                "UNKNOWN_COLUMN",
                format!("the query yields column {}, which {} does not declare", extra.name(), dataset.name),
            )
            .at(span));
        }
    } else if given.fields().len() != schema.fields().len() {
        return Err(Error::user(
            "COLUMN_COUNT",
            format!(
                "the query yields {} columns and {} has {}; write BY NAME to match them by name",
                given.fields().len(),
                dataset.name,
                schema.fields().len()
            ),
        )
        .at(span));
    }
    let mut exprs = Vec::with_capacity(schema.fields().len());
    let mut same = given.fields().len() == schema.fields().len();
    for (index, field) in schema.fields().iter().enumerate() {
        let at = if by_name { position(&given, field.name()) } else { Some(index) };
        let expr = match at.and_then(|i| given.fields().get(i).map(|f| (i, f))) {
            Some((at, from)) => {
                same &= at == index && from.name() == field.name() && from.data_type() == field.data_type();
                let (qualifier, _) = plan.schema().qualified_field(at);
                let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), from.name()));
                if from.data_type() == field.data_type() {
                    column
                } else if arrow::compute::can_cast_types(from.data_type(), field.data_type()) {
                    Expr::Cast(Cast::new(Box::new(column), field.data_type().clone()))
                } else {
                    return Err(Error::user(
                        "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE",
                        format!(
                            "column {} is {} in the query and {} in the table",
                            field.name(),
                            from.data_type(),
                            field.data_type()
                        ),
                    )
                    .at(span));
                }
            }
            None if dataset.columns.is_some() => {
                return Err(Error::user(
                    "UNKNOWN_COLUMN",
                    format!("column {} is declared, but the query does not yield it", field.name()),
                )
                .at(span));
            }
            None => {
                same = false;
                let null = ScalarValue::try_from(field.data_type()).map_err(|e| from_datafusion(e, span, None))?;
                Expr::Literal(null, None)
            }
        };
        exprs.push(expr.alias(field.name()));
    }
    draft.plan = Some(if same {
        plan
    } else {
        LogicalPlanBuilder::from(plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(|e| from_datafusion(e, span, None))?
    });
    Ok(())
}

fn rules(planner: &Planner<'_>, dataset: &Dataset, judged: &SchemaRef) -> Result<Vec<DraftRule>> {
    let mut rules = Vec::new();
    for reserved in [FAILED_COLUMN, EPOCH_COLUMN] {
        let taken = position(judged, reserved).is_some();
        if taken && (dataset.quarantines() || reserved == EPOCH_COLUMN) && dataset.kind != DatasetKind::TemporaryView {
            return Err(Error::user(
                "RESERVED_COLUMN_NAME",
                format!("{} has a column {reserved}, a name that silverflow needs for itself", dataset.name),
            )
            .help("rename it in the query, or leave it out")
            .at(&dataset.span)
            .dataset(&dataset.name));
        }
    }
    for column in dataset.columns.iter().flatten().filter(|c| !c.nullable) {
        if let Some(at) = position(judged, &column.name) {
            let name = judged.field(at).name();
            let columns =
                DFSchema::try_from(judged.as_ref().clone()).map_err(|e| from_datafusion(e, &column.span, None))?;
            rules.push(DraftRule {
                name: format!("{name} is not null"),
                text: format!("{name} IS NOT NULL"),
                condition: ident(name).is_not_null(),
                columns,
                action: Action::Fail,
                constraint: true,
            });
        }
    }
    for expectation in &dataset.expectations {
        let (condition, columns, data_type) =
            plan_expr(planner, &expectation.condition, judged, &dataset.name.table, &expectation.span)
                .map_err(|e| e.dataset(&dataset.name).rule(&expectation.name))?;
        if data_type != DataType::Boolean {
            return Err(Error::user(
                "EXPECTATION_NOT_BOOLEAN",
                format!("an expectation is a condition, and this is {data_type}"),
            )
            .at(&expectation.span)
            .dataset(&dataset.name)
            .rule(&expectation.name));
        }
        if expectation.action == Action::Quarantine && dataset.kind == DatasetKind::TemporaryView {
            return Err(Error::user("QUARANTINE_ON_VIEW", "a view has no quarantine, since it is not stored")
                .help("put the expectation on the streaming table that reads the view")
                .at(&expectation.span)
                .dataset(&dataset.name)
                .rule(&expectation.name));
        }
        rules.push(DraftRule {
            name: expectation.name.clone(),
            text: expectation.condition.to_string(),
            condition,
            columns,
            action: expectation.action,
            constraint: false,
        });
    }
    Ok(rules)
}

fn quarantine_schema(judged: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<FieldRef> = judged.fields().iter().cloned().collect();
    let names = DataType::List(Arc::new(Field::new("element", DataType::Utf8, true)));
    fields.push(Arc::new(Field::new(FAILED_COLUMN, names, true)));
    Arc::new(Schema::new(fields))
}

impl Draft<'_> {
    fn quarantine_invalid(&self) -> bool {
        self.dataset
            .properties
            .get("silverflow.cdc.invalid")
            .is_some_and(|value| value.eq_ignore_ascii_case("quarantine"))
    }

    fn fills_quarantine(&self) -> bool {
        self.rules.iter().any(|r| r.action == Action::Quarantine) || (self.cdc.is_some() && self.quarantine_invalid())
    }
}

/// Keys of the datasets that one flow reads.
struct Keys<'a> {
    drafts: &'a [Draft<'a>],
    reads: &'a [(Reading, SchemaRef)],
}

impl KnownKeys for Keys<'_> {
    fn unique(&self, relation: usize, key: &BTreeSet<usize>, nulls: &BTreeSet<usize>) -> bool {
        let Some((Reading::Dataset(index), _)) = self.reads.get(relation) else { return false };
        let Some(draft) = self.drafts.get(*index) else { return false };
        if let Some(cdc) = &draft.cdc {
            let covered = cdc.keys.iter().all(|k| {
                let column = cdc.layout.fields().get(*k).and_then(|f| position(&draft.schema, f.name()));
                column.is_some_and(|c| key.contains(&c))
            });
            let current =
                || position(&draft.schema, crate::pipeline::END_COLUMN).is_some_and(|end| nulls.contains(&end));
            return covered && (cdc.scd == ScdType::One || current());
        }
        // Rules only take rows away, so what a single query guarantees holds for the dataset.
        match draft.flows.as_slice() {
            [flow] => flow
                .plan
                .as_ref()
                .is_some_and(|plan| unique(plan, key, &Keys { drafts: self.drafts, reads: &flow.reads }, nulls)),
            _ => false,
        }
    }
}

/// Numbers sources and datasets, adds private replay points, lowers the queries from the last dataset to the first (so that
/// it is known who needs the wall), and takes fingerprints.
fn assemble(drafts: &[Draft<'_>], zone: &Arc<str>, planner: &Planner<'_>) -> Result<Plan> {
    let candidates: Vec<Candidate<'_>> = drafts
        .iter()
        .map(|d| Candidate {
            kind: d.dataset.kind,
            query: match d.flows.as_slice() {
                [only] => only.plan.as_ref(),
                _ => None,
            },
            reads: d
                .flows
                .iter()
                .flat_map(|f| &f.reads)
                .map(|(r, _)| match r {
                    Reading::Outside(s) if matches!(s.kind, SourceKind::DeltaSnapshot { .. }) => Reads::Snapshot,
                    Reading::Outside(_) => Reads::Stream,
                    Reading::Dataset(i) | Reading::Quarantine(i) => Reads::Dataset(*i),
                })
                .collect(),
        })
        .collect();
    let replay = replay_points(&candidates);
    let mut numbering = Numbering::default();
    let mut lints = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        numbering.place(index, draft, replay.contains(&index), &mut lints);
    }
    let mut slots: Vec<Option<DatasetPlan>> = Vec::new();
    slots.resize_with(numbering.total, || None);
    let mut walls: BTreeSet<Input> = BTreeSet::new();
    for (index, draft) in drafts.iter().enumerate().rev() {
        let at = numbering.dataset(index)?;
        let wall = walls.contains(&Input::Dataset(at)) || walls.contains(&Input::Quarantine(at));
        let is_replay = replay.contains(&index) && draft.dataset.kind != DatasetKind::TemporaryView;
        let plan = lower_dataset(draft, drafts, &numbering, wall, zone, is_replay, &mut walls, &mut lints, planner)?;
        put(&mut slots, at, plan)?;
        for (replay_at, source) in numbering.replays(index) {
            let wall = walls.contains(&Input::Dataset(replay_at));
            put(&mut slots, replay_at, replay_dataset(draft, &numbering, replay_at, source, wall)?)?;
        }
    }
    let mut datasets: Vec<DatasetPlan> = slots.into_iter().flatten().collect();
    fingerprints(&mut datasets, drafts, &numbering, zone);
    retractions(&mut datasets, &numbering.sources);
    lints.sort_by(|a, b| (&a.span.file, a.span.line, a.code).cmp(&(&b.span.file, b.span.line, b.code)));
    Ok(Plan { sources: numbering.sources, datasets, lints })
}

fn put(slots: &mut [Option<DatasetPlan>], at: usize, plan: DatasetPlan) -> Result<()> {
    match slots.get_mut(at) {
        Some(slot) => {
            *slot = Some(plan);
            Ok(())
        }
        None => Err(Error::internal("a dataset without a number")),
    }
}

/// Numbers of datasets and sources in the plan: a dataset's private replay points come right before it.
#[derive(Default)]
struct Numbering {
    sources: Vec<Source>,
    /// By draft.
    datasets: Vec<usize>,
    /// What each outside relation of a flow reads in the plan, by source id.
    outside: BTreeMap<String, Input>,
    /// By draft: number of the replay point, number of its source.
    replays: Vec<Vec<(usize, usize)>>,
    total: usize,
}

impl Numbering {
    fn place(&mut self, index: usize, draft: &Draft<'_>, direct: bool, lints: &mut Vec<PlanLint>) {
        let mut replays = Vec::new();
        for flow in &draft.flows {
            for (reading, _) in &flow.reads {
                let Reading::Outside(source) = reading else { continue };
                let number = self.sources.len();
                self.sources.push(source.clone());
                let input = if direct {
                    Input::Source(number)
                } else {
                    lints.push(PlanLint {
                        code: "PRIVATE_REPLAY_POINT",
                        message: format!(
                            "flow {} reads the outside without storing its rows one to one, so they are kept once more, privately; \
                             read into a streaming table first, where they can be seen and put under a contract",
                            flow.flow.name
                        ),
                        span: source.span.clone(),
                    });
                    replays.push((self.total, number));
                    self.total += 1;
                    Input::Dataset(self.total - 1)
                };
                self.outside.insert(source.id.clone(), input);
            }
        }
        debug_assert_eq!(self.datasets.len(), index);
        self.datasets.push(self.total);
        self.replays.push(replays);
        self.total += 1;
    }

    fn dataset(&self, draft: usize) -> Result<usize> {
        self.datasets.get(draft).copied().ok_or_else(|| Error::internal("a dataset without a number"))
    }

    fn replays(&self, draft: usize) -> Vec<(usize, usize)> {
        self.replays.get(draft).cloned().unwrap_or_default()
    }

    fn input(&self, reading: &Reading) -> Result<Input> {
        Ok(match reading {
            Reading::Dataset(i) => Input::Dataset(self.dataset(*i)?),
            Reading::Quarantine(i) => Input::Quarantine(self.dataset(*i)?),
            Reading::Outside(source) => *self
                .outside
                .get(&source.id)
                .ok_or_else(|| Error::internal(format!("source {} has no number", source.id)))?,
        })
    }
}

fn replay_dataset(
    draft: &Draft<'_>,
    numbering: &Numbering,
    at: usize,
    source: usize,
    wall: bool,
) -> Result<DatasetPlan> {
    let Some(read) = numbering.sources.get(source) else {
        return Err(Error::internal("a replay point without a source"));
    };
    let width = read.schema.fields().len();
    let schema = if wall { with_wall(&read.schema) } else { Arc::clone(&read.schema) };
    let node = Node::Read { input: Input::Source(source), columns: (0..width + usize::from(wall)).collect(), schema };
    Ok(DatasetPlan {
        name: TableName::new("_silverflow", "replay", format!("{}#{at}", read.id)),
        kind: DatasetKind::StreamingTable,
        stored: Stored::Replay(read.id.clone()),
        schema: Arc::clone(&read.schema),
        feed: Feed::Append(vec![(read.id.clone(), node)]),
        rules: Vec::new(),
        quarantine: None,
        wall,
        replay_point: true,
        fingerprint: String::new(),
        comment: Some(format!("What flow {} of {} has read", read.id, draft.dataset.name)),
        properties: BTreeMap::new(),
        upstream: Vec::new(),
    })
}

#[allow(clippy::too_many_arguments)]
fn lower_dataset(
    draft: &Draft<'_>,
    drafts: &[Draft<'_>],
    numbering: &Numbering,
    wall: bool,
    zone: &Arc<str>,
    replay_point: bool,
    walls: &mut BTreeSet<Input>,
    lints: &mut Vec<PlanLint>,
    planner: &Planner<'_>,
) -> Result<DatasetPlan> {
    let name = &draft.dataset.name;
    let rules_clock = draft.rules.iter().any(|r| reads_clock(&r.condition));
    let mut upstream = BTreeSet::new();
    let judged_wall = match &draft.cdc {
        Some(_) if wall => {
            return Err(Error::user(
                "NOT_SUPPORTED",
                "the clock over rows of an AUTO CDC target is not supported yet, since a version has no single arrival",
            )
            .dataset(name)
            .at(&draft.dataset.span));
        }
        Some(_) => rules_clock,
        None => wall || rules_clock,
    };
    let feed = match &draft.cdc {
        None => {
            let mut flows = Vec::new();
            for flow in &draft.flows {
                let Some(plan) = &flow.plan else { continue };
                let inputs = flow
                    .reads
                    .iter()
                    .map(|(r, s)| Ok((numbering.input(r)?, Arc::clone(s))))
                    .collect::<Result<Vec<_>>>()?;
                let span = match &flow.flow.kind {
                    FlowKind::Query { query, .. } => Some(&query.span),
                    FlowKind::AutoCdc(_) => None,
                };
                let keys = Keys { drafts, reads: &flow.reads };
                let mut lowering = Lowering {
                    inputs: &inputs,
                    known: &keys,
                    zone: Arc::clone(zone),
                    span: span.unwrap_or(&flow.flow.span),
                    source: planner.source(span.unwrap_or(&flow.flow.span)),
                    walls: BTreeSet::new(),
                    lints: Vec::new(),
                };
                let node = lowering.lower(plan, judged_wall).map_err(|e| e.dataset(name).flow(&flow.flow.name))?;
                walls.append(&mut lowering.walls);
                lints.append(&mut lowering.lints);
                node.leaves(&mut |input| note(&mut upstream, input));
                flows.push((flow.flow.name.clone(), node));
            }
            Feed::Append(flows)
        }
        Some(cdc) => {
            let mut flows = Vec::new();
            for (flow, parts) in draft.flows.iter().zip(&cdc.flows) {
                let Some((reading, schema)) = flow.reads.first() else { continue };
                let input = numbering.input(reading)?;
                let needs = rules_clock || parts.reads_clock();
                let width = schema.fields().len();
                if needs {
                    walls.insert(input);
                }
                let columns: Vec<usize> = (0..width + usize::from(needs)).collect();
                let batch = if needs { with_wall(schema) } else { Arc::clone(schema) };
                let bind = |expr: &Expr| {
                    physical(expr, &parts.columns, &batch, zone).map_err(|e| from_datafusion(e, &flow.flow.span, None))
                };
                note(&mut upstream, input);
                flows.push(CdcFlow {
                    name: flow.flow.name.clone(),
                    layout: parts.layout.iter().map(bind).collect::<Result<_>>()?,
                    sequence: bind(&parts.sequence)?,
                    delete: parts.delete.as_ref().map(bind).transpose()?,
                    truncate: parts.truncate.as_ref().map(bind).transpose()?,
                    input: Node::Read { input, columns, schema: batch },
                });
            }
            Feed::Cdc(Box::new(CdcPlan {
                flows,
                layout: Arc::clone(&cdc.layout),
                keys: cdc.keys.clone(),
                kept: cdc.kept.clone(),
                tracked: cdc.tracked.clone(),
                fill: cdc.fill.clone(),
                own: cdc.own,
                sequence: cdc.sequence.clone(),
                scd: cdc.scd,
                append_only: false,
                quarantine_invalid: draft.quarantine_invalid(),
                judged: if judged_wall { with_wall(&cdc.judged) } else { Arc::clone(&cdc.judged) },
            }))
        }
    };
    let judged = draft.cdc.as_ref().map_or(&draft.schema, |c| &c.judged);
    let batch = if judged_wall { with_wall(judged) } else { Arc::clone(judged) };
    let rules = draft
        .rules
        .iter()
        .map(|rule| {
            Ok(Rule {
                name: rule.name.clone(),
                text: rule.text.clone(),
                condition: physical(&rule.condition, &rule.columns, &batch, zone)
                    .map_err(|e| from_datafusion(e, &draft.dataset.span, None))?,
                action: rule.action,
                constraint: rule.constraint,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(DatasetPlan {
        name: name.clone(),
        kind: draft.dataset.kind,
        stored: if draft.dataset.kind == DatasetKind::TemporaryView { Stored::No } else { Stored::Table },
        schema: Arc::clone(&draft.schema),
        feed,
        rules,
        quarantine: draft.fills_quarantine().then(|| quarantine_schema(judged)),
        wall: judged_wall && draft.cdc.is_none(),
        replay_point,
        fingerprint: String::new(),
        comment: draft.dataset.comment.clone(),
        properties: draft.dataset.properties.clone(),
        upstream: upstream.into_iter().collect(),
    })
}

fn note(upstream: &mut BTreeSet<usize>, input: Input) {
    match input {
        Input::Dataset(i) | Input::Quarantine(i) => {
            upstream.insert(i);
        }
        Input::Source(_) => {}
    }
}

/// A dataset's fingerprint covers its definition and those of everything it reads.
fn fingerprints(datasets: &mut [DatasetPlan], drafts: &[Draft<'_>], numbering: &Numbering, zone: &str) {
    let draft_of: BTreeMap<usize, &Draft<'_>> =
        numbering.datasets.iter().zip(drafts).map(|(number, draft)| (*number, draft)).collect();
    let mut known: BTreeMap<usize, String> = BTreeMap::new();
    for (index, dataset) in datasets.iter_mut().enumerate() {
        let mut text = format!("semantics {SEMANTICS}; zone {zone}; {:?}\n", dataset.schema);
        for rule in &dataset.rules {
            text.push_str(&format!("rule {} {:?} {}\n", rule.name, rule.action, rule.text));
        }
        if let Some(draft) = draft_of.get(&index) {
            for flow in &draft.flows {
                match &flow.plan {
                    Some(plan) => text.push_str(&format!("flow {}\n", plan.display_indent_schema())),
                    None => text.push_str("flow\n"),
                }
                for (reading, _) in &flow.reads {
                    if let Reading::Outside(source) = reading {
                        text.push_str(&format!("reads {}\n", source.id));
                    }
                }
            }
        }
        if let Feed::Cdc(cdc) = &dataset.feed {
            text.push_str(&format!(
                "cdc {:?} {:?} {:?} {:?} {:?} {:?} {} {:?} {}\n",
                cdc.layout,
                cdc.keys,
                cdc.kept,
                cdc.tracked,
                cdc.fill,
                cdc.sequence,
                cdc.own,
                cdc.scd,
                cdc.quarantine_invalid
            ));
            for flow in &cdc.flows {
                let shown = |e: &Arc<dyn datafusion::physical_expr::PhysicalExpr>| e.to_string();
                text.push_str(&format!(
                    "{:?} {} {:?} {:?}\n",
                    flow.layout.iter().map(shown).collect::<Vec<_>>(),
                    flow.sequence,
                    flow.delete.as_ref().map(shown),
                    flow.truncate.as_ref().map(shown)
                ));
            }
        }
        for upstream in &dataset.upstream {
            text.push_str(known.get(upstream).map_or("", String::as_str));
        }
        dataset.fingerprint = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        known.insert(index, dataset.fingerprint.clone());
    }
}

/// Marks the AUTO CDC targets whose sources never take an event back.
fn retractions(datasets: &mut [DatasetPlan], sources: &[Source]) {
    let mut retracts: Vec<bool> = Vec::with_capacity(datasets.len());
    for dataset in datasets {
        let value = match &mut dataset.feed {
            Feed::Append(flows) => flows.iter().any(|(_, node)| node_retracts(node, &retracts, sources)),
            Feed::Cdc(cdc) => {
                cdc.append_only = !cdc.flows.iter().any(|f| node_retracts(&f.input, &retracts, sources));
                true
            }
        };
        retracts.push(value);
    }
}

fn node_retracts(node: &Node, datasets: &[bool], sources: &[Source]) -> bool {
    match node {
        Node::Read { input: Input::Source(i), .. } => {
            sources.get(*i).is_none_or(|s| matches!(s.kind, SourceKind::DeltaSnapshot { .. }))
        }
        Node::Read { input: Input::Dataset(i) | Input::Quarantine(i), .. } => datasets.get(*i).copied().unwrap_or(true),
        Node::Map { input, .. } | Node::Distinct { input, .. } => node_retracts(input, datasets, sources),
        Node::Union { inputs, .. } => inputs.iter().any(|n| node_retracts(n, datasets, sources)),
        Node::Match(_) => true,
    }
}
