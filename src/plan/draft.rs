//! The logical half of a plan: for each dataset its queries as DataFusion plans, its columns, its rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, ident};
use datafusion::scalar::ScalarValue;

use super::cdc::{CdcDraft, CdcSource, draft_cdc};
use super::functions::{cast, of_length, spelled};
use super::generated;
use super::metadata::names_metadata;
use super::own::own_columns;
use super::query::{Planner, from_datafusion, plan_expr, plan_query};
use super::schema::{position, stored_field, stored_schema, stored_type};
use super::{Outside, Source, SourceKind};
use crate::error::{Error, Result, Span};
use crate::pipeline::{
    Action, Dataset, DatasetKind, EPOCH_COLUMN, FAILED_COLUMN, Flow, FlowKind, LEFT_COLUMN, ReadFiles, ReadMode,
    ReadTable, Relation, RelationSource, TableName, near_miss,
};

/// A relation of a flow.
#[derive(Clone, Debug)]
pub(super) enum Reading {
    Outside(Box<Source>),
    Dataset(usize),
    Quarantine(usize),
}

pub(super) struct Draft<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) flows: Vec<DraftFlow<'a>>,
    pub(super) schema: SchemaRef,
    pub(super) own: Vec<bool>,
    pub(super) cdc: Option<CdcDraft>,
    pub(super) rules: Vec<DraftRule>,
}

pub(super) struct DraftFlow<'a> {
    pub(super) flow: &'a Flow,
    pub(super) reads: Vec<(Reading, SchemaRef)>,
    /// Absent for AUTO CDC.
    pub(super) plan: Option<LogicalPlan>,
}

pub(super) struct DraftRule {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) condition: Expr,
    pub(super) columns: DFSchema,
    pub(super) action: Action,
    pub(super) constraint: bool,
    pub(super) span: Span,
}

pub(super) fn draft<'a>(
    planner: &Planner<'_>,
    outside: &dyn Outside,
    dataset: &'a Dataset,
    flows: &[&'a Flow],
    once: bool,
    number: &BTreeMap<&TableName, usize>,
    done: &[Draft<'_>],
) -> Result<Draft<'a>> {
    let mut drafted = Vec::with_capacity(flows.len());
    for flow in flows {
        let flow_draft = draft_flow(planner, outside, flow, once || flow.once, number, done)
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
        if let Some(column) = dataset.columns.iter().flatten().find(|column| column.length.is_some()) {
            let message = format!("{} is VARCHAR(n), which a target of AUTO CDC cannot have", column.name);
            return Err(Error::user("NOT_SUPPORTED", message)
                .at(&column.span)
                .dataset(&dataset.name)
                .help("declare it as STRING, and its length as an expectation: EXPECT (length(…) <= n)"));
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
            conform(drafted, &schema, dataset, planner)
                .map_err(|e| e.dataset(&dataset.name).flow(&drafted.flow.name))?;
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
    once: bool,
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
    let origin = outside.origin(&flow.name)?;
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
                let id = if many { format!("{origin}:{counter}") } else { origin.clone() };
                let kind = match &relation.source {
                    RelationSource::Files(files) => SourceKind::Files(in_zone(files, planner)),
                    RelationSource::External { name, location, read } => {
                        let location = location.clone().unwrap_or_else(|| outside.location(name));
                        SourceKind::Delta { location, read: as_read(read, flow, once) }
                    }
                    RelationSource::Dataset(_) | RelationSource::Quarantine(_) => continue,
                };
                let mut schema =
                    outside.schema(&id, &kind).map_err(|e| unknown(e, relation, number).at(&relation.span))?;
                if let (SourceKind::Files(_), FlowKind::Query { query, .. }) = (&kind, &flow.kind)
                    && names_metadata(&query.body)
                {
                    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
                    fields.push(Arc::new(outside.metadata()));
                    schema = Arc::new(Schema::new(fields));
                }
                let schema = stored_schema(&schema);
                let warnings = outside.warnings(&kind);
                let source = Source {
                    id,
                    warnings,
                    flow: flow.name.clone(),
                    kind,
                    schema: Arc::clone(&schema),
                    once,
                    span: relation.span.clone(),
                };
                (Reading::Outside(Box::new(source)), schema)
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

/// Files whose options name no time zone are read in the session's.
fn in_zone(files: &ReadFiles, planner: &Planner<'_>) -> ReadFiles {
    let mut files = files.clone();
    let zone = &planner.settings.zone;
    let named = files.options.keys().any(|x| x.trim_start_matches("cloudfiles.").eq_ignore_ascii_case("timezone"));
    if !named && !zone.is_utc() {
        files.options.insert("timezone".to_owned(), zone.name().to_owned());
    }
    files
}

/// How a flow reads a table. What is read once never goes. Straight into AUTO CDC, the keys tell an update from a delete,
/// and the rows before it are no events.
fn as_read(read: &ReadTable, flow: &Flow, once: bool) -> ReadTable {
    let mut read = read.clone();
    if once && read.retracts() {
        read.mode = ReadMode::Append;
    }
    if let (ReadMode::ChangeFeed { keys, preimages }, FlowKind::AutoCdc(cdc)) = (&mut read.mode, &flow.kind) {
        *preimages = false;
        if keys.is_empty() {
            *keys = cdc.keys.iter().map(|key| key.text.clone()).collect();
        }
    }
    read
}

/// A name that is neither a dataset nor a table is a slip, not a failure of the storage.
fn unknown(error: Error, relation: &Relation, number: &BTreeMap<&TableName, usize>) -> Error {
    match &relation.source {
        RelationSource::External { name, location: None, .. }
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
fn conform(draft: &mut DraftFlow<'_>, schema: &SchemaRef, dataset: &Dataset, planner: &Planner<'_>) -> Result<()> {
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
    let mut made: Vec<usize> = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let at = if by_name { position(&given, field.name()) } else { Some(index) };
        let expr = match at.and_then(|i| given.fields().get(i).map(|f| (i, f))) {
            Some((at, from)) => {
                same &= at == index && from.name() == field.name() && from.data_type() == field.data_type();
                let (qualifier, _) = plan.schema().qualified_field(at);
                let column = Expr::Column(datafusion::common::Column::new(qualifier.cloned(), from.name()));
                if from.data_type() == field.data_type() {
                    column
                } else if let Ok(cast) = cast(column, from.data_type(), field.data_type(), false, &planner.settings) {
                    cast
                } else {
                    return Err(Error::user(
                        "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE",
                        format!(
                            "column {} is {} in the query and {} in the table",
                            field.name(),
                            spelled(from.data_type()),
                            spelled(field.data_type())
                        ),
                    )
                    .at(span));
                }
            }
            None if generated::of(dataset, field.name()).is_some() => {
                same = false;
                made.push(index);
                Expr::Literal(
                    ScalarValue::try_from(field.data_type()).map_err(|e| from_datafusion(e, span, None))?,
                    None,
                )
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
        let limit = dataset.columns.iter().flatten().find(|c| c.name == *field.name()).and_then(|c| c.length);
        let expr = match limit {
            Some(limit) => {
                same = false;
                of_length(expr, limit, &planner.settings).map_err(|e| from_datafusion(e, span, None))?
            }
            None => expr,
        };
        exprs.push(expr.alias(field.name()));
    }
    let plan = if same {
        plan
    } else {
        LogicalPlanBuilder::from(plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(|e| from_datafusion(e, span, None))?
    };
    draft.plan = Some(if made.is_empty() { plan } else { generated::compute(plan, &made, schema, dataset, planner)? });
    Ok(())
}

fn rules(planner: &Planner<'_>, dataset: &Dataset, judged: &SchemaRef) -> Result<Vec<DraftRule>> {
    let mut rules = Vec::new();
    for reserved in [FAILED_COLUMN, EPOCH_COLUMN, LEFT_COLUMN] {
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
                span: column.span.clone(),
            });
        }
    }
    rules.extend(generated::rules(planner, dataset, judged)?);
    for expectation in &dataset.expectations {
        let (condition, columns, data_type) =
            plan_expr(planner, &expectation.condition, judged, &dataset.name.table, &expectation.span)
                .map_err(|e| e.dataset(&dataset.name).rule(&expectation.name))?;
        if data_type != DataType::Boolean {
            return Err(Error::user(
                "EXPECTATION_NOT_BOOLEAN",
                format!("an expectation is a condition, and this is {}", spelled(&data_type)),
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
            span: expectation.span.clone(),
        });
    }
    Ok(rules)
}

pub(super) fn quarantine_schema(judged: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<FieldRef> = judged.fields().iter().cloned().collect();
    let names = DataType::List(Arc::new(Field::new("element", DataType::Utf8, true)));
    fields.push(Arc::new(Field::new(FAILED_COLUMN, names, true)));
    Arc::new(Schema::new(fields))
}

impl Draft<'_> {
    pub(super) fn quarantine_invalid(&self) -> bool {
        self.dataset
            .properties
            .get("silverflow.cdc.invalid")
            .is_some_and(|value| value.eq_ignore_ascii_case("quarantine"))
    }

    pub(super) fn fills_quarantine(&self) -> bool {
        self.rules.iter().any(|r| r.action == Action::Quarantine) || (self.cdc.is_some() && self.quarantine_invalid())
    }
}
