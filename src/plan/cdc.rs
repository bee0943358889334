//! The plan of an AUTO CDC target: which columns an event carries, how events are ordered, what the target shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{Cast, Expr, ident, lit};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast;

use super::functions::spelled;
use super::query::{Planner, plan_expr};
use super::schema::{position, stored_field, stored_type};
use crate::error::{Error, Result, Span};
use crate::pipeline::{
    AutoCdc, Column, ColumnList, END_COLUMN as END, IgnoreNull, Name, START_COLUMN as START, ScdType, near_miss,
};

/// One flow into the target, and what is known of its source.
pub(super) struct CdcSource<'a> {
    pub(super) name: &'a str,
    pub(super) cdc: &'a AutoCdc,
    pub(super) span: &'a Span,
    /// Last part of the source's name, which may qualify columns.
    pub(super) alias: String,
    pub(super) schema: SchemaRef,
    /// For each column, whether it comes from outside as it is.
    pub(super) own: Vec<bool>,
}

/// The logical half of a `CdcPlan`.
pub(super) struct CdcDraft {
    pub(super) flows: Vec<CdcDraftFlow>,
    pub(super) layout: SchemaRef,
    pub(super) keys: Vec<usize>,
    pub(super) kept: Vec<usize>,
    pub(super) tracked: Vec<usize>,
    pub(super) fill: Vec<usize>,
    pub(super) own: usize,
    pub(super) sequence: Field,
    pub(super) scd: ScdType,
    /// Kept columns: what expectations see.
    pub(super) judged: SchemaRef,
    /// Columns of the target.
    pub(super) target: SchemaRef,
}

/// One flow's expressions over its source.
pub(super) struct CdcDraftFlow {
    pub(super) columns: DFSchema,
    pub(super) layout: Vec<Expr>,
    pub(super) sequence: Expr,
    pub(super) delete: Option<Expr>,
    pub(super) truncate: Option<Expr>,
}

struct Shape {
    keys: Vec<String>,
    kept: Vec<FieldRef>,
    tracked: Vec<String>,
    fill: Vec<String>,
}

pub(super) fn draft_cdc(
    planner: &Planner<'_>,
    sources: &[CdcSource<'_>],
    declared: Option<&[Column]>,
) -> Result<CdcDraft> {
    let Some(first) = sources.first() else { return Err(Error::internal("an AUTO CDC target without flows")) };
    let scd = first.cdc.scd;
    let mut shapes = Vec::with_capacity(sources.len());
    for source in sources {
        shapes.push(shape(source).map_err(|e| e.flow(source.name).at(source.span))?);
    }
    let mut kept: Vec<FieldRef> = Vec::new();
    for (shape, source) in shapes.iter().zip(sources) {
        for field in &shape.kept {
            match kept.iter().find(|k| k.name().eq_ignore_ascii_case(field.name())) {
                None => kept.push(Arc::clone(field)),
                Some(known) if known.data_type() == field.data_type() => {}
                Some(known) => {
                    return Err(Error::user(
                        "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE",
                        format!(
                            "column {} is {} in one flow and {} in another",
                            field.name(),
                            known.data_type(),
                            field.data_type()
                        ),
                    )
                    .flow(source.name)
                    .at(source.span));
                }
            }
        }
    }
    let lead = shapes.first().map(|s| (s.keys.clone(), s.tracked.clone(), s.fill.clone())).unwrap_or_default();
    let declares =
        |source: &CdcSource<'_>| source.cdc.track_history.is_some() || source.cdc.ignore_null_updates.is_some();
    if sources.iter().any(declares)
        && let Some((_, source)) =
            shapes.iter().zip(sources).find(|(s, _)| (&s.keys, &s.tracked, &s.fill) != (&lead.0, &lead.1, &lead.2))
    {
        return Err(Error::user(
            "AUTOCDC_FLOWS_DISAGREE",
            "flows into one target must agree in keys, tracked columns and IGNORE NULL UPDATES",
        )
        .flow(source.name)
        .at(source.span));
    }
    let kept = order_as_declared(kept, declared)?;
    let (layout, own) = layout(sources, &kept);
    let index = |name: &str| position(&layout, name);
    let indices = |names: &[String]| names.iter().filter_map(|n| index(n)).collect::<Vec<_>>();
    let tracked = match &first.cdc.track_history {
        Some(_) => indices(&lead.1),
        // By default every kept column of every flow is tracked.
        None => {
            let names: Vec<String> = kept
                .iter()
                .map(|f| f.name().clone())
                .filter(|n| !lead.0.iter().any(|k| k.eq_ignore_ascii_case(n)))
                .collect();
            indices(&names)
        }
    };
    let mut sequence: Option<Field> = None;
    let mut flows = Vec::with_capacity(sources.len());
    for source in sources {
        let (flow, data_type) = flow(planner, source, &layout).map_err(|e| e.flow(source.name))?;
        match &sequence {
            None => sequence = Some(Field::new("sequence", data_type, true)),
            Some(known) if *known.data_type() == data_type => {}
            Some(known) => {
                return Err(Error::user(
                    "AUTOCDC_INVALID_STATE.SEQUENCING_TYPE_DRIFT",
                    format!("the sequence is {} in one flow and {data_type} in another", known.data_type()),
                )
                .flow(source.name)
                .at(&source.cdc.sequence_span));
            }
        }
        flows.push(flow);
    }
    let sequence = sequence.unwrap_or_else(|| Field::new("sequence", DataType::Int64, true));
    let judged = Arc::new(Schema::new(kept.clone()));
    let mut target: Vec<FieldRef> = kept.clone();
    if scd == ScdType::Two {
        for bound in [START, END] {
            if let Some(columns) = declared {
                check_bound(columns, bound, &sequence, first.span)?;
            }
            target.push(Arc::new(Field::new(bound, sequence.data_type().clone(), true)));
        }
    }
    Ok(CdcDraft {
        keys: indices(&lead.0),
        kept: kept.iter().filter_map(|f| index(f.name())).collect(),
        tracked,
        fill: indices(&lead.2),
        layout,
        own,
        flows,
        sequence,
        scd,
        judged,
        target: Arc::new(Schema::new(target)),
    })
}

fn check_bound(columns: &[Column], bound: &str, sequence: &Field, span: &Span) -> Result<()> {
    match columns.iter().find(|c| c.name.eq_ignore_ascii_case(bound)) {
        None => Err(Error::user(
            "AUTOCDC_MISSING_BOUNDS",
            format!("the declared columns of an SCD type 2 target must contain {START} and {END}; {bound} is missing"),
        )
        .at(span)),
        Some(column) if stored_type(&column.data_type) == *sequence.data_type() => Ok(()),
        Some(column) => Err(Error::user(
            "AUTOCDC_BOUND_TYPE",
            format!("{bound} is declared as {} but the sequence is {}", column.data_type, sequence.data_type()),
        )
        .at(&column.span)),
    }
}

fn order_as_declared(mut kept: Vec<FieldRef>, declared: Option<&[Column]>) -> Result<Vec<FieldRef>> {
    let Some(columns) = declared else { return Ok(kept) };
    let mut ordered = Vec::with_capacity(kept.len());
    for column in columns {
        if column.name.eq_ignore_ascii_case(START) || column.name.eq_ignore_ascii_case(END) {
            continue;
        }
        let Some(at) = kept.iter().position(|f| f.name().eq_ignore_ascii_case(&column.name)) else {
            return Err(Error::user(
                "UNKNOWN_COLUMN",
                format!("column {} is declared, but no flow into the table gives it", column.name),
            )
            .at(&column.span));
        };
        kept.remove(at);
        ordered.push(Arc::new(Field::new(&column.name, stored_type(&column.data_type), true)));
    }
    ordered.extend(kept);
    Ok(ordered)
}

/// Sources' own columns by name, then the other kept columns by name.
fn layout(sources: &[CdcSource<'_>], kept: &[FieldRef]) -> (SchemaRef, usize) {
    let mut own: BTreeMap<String, FieldRef> = BTreeMap::new();
    for source in sources {
        for (field, _) in source.schema.fields().iter().zip(&source.own).filter(|(_, own)| **own) {
            let kept = kept.iter().find(|k| k.name().eq_ignore_ascii_case(field.name()));
            own.entry(field.name().to_lowercase())
                .or_insert_with(|| kept.cloned().unwrap_or_else(|| stored_field(field)));
        }
    }
    let count = own.len();
    let mut rest: BTreeMap<String, FieldRef> = BTreeMap::new();
    for field in kept {
        let name = field.name().to_lowercase();
        if !own.contains_key(&name) {
            rest.insert(name, Arc::clone(field));
        }
    }
    let fields: Vec<FieldRef> = own.into_values().chain(rest.into_values()).collect();
    (Arc::new(Schema::new(fields)), count)
}

fn shape(source: &CdcSource<'_>) -> Result<Shape> {
    let schema = &source.schema;
    let all: Vec<FieldRef> = schema.fields().iter().map(|f| stored_field(f)).collect();
    let kept: Vec<FieldRef> = select(&all, source.cdc.columns.as_ref(), "COLUMNS")?;
    let reserved = |f: &FieldRef| {
        source.cdc.scd == ScdType::Two && (f.name().eq_ignore_ascii_case(START) || f.name().eq_ignore_ascii_case(END))
    };
    if let Some(field) = kept.iter().find(|f| reserved(f)) {
        return Err(Error::user(
            "AUTOCDC_RESERVED_COLUMN_NAME_CONFLICT",
            format!("the source has a column {}, a name that SCD type 2 needs for itself", field.name()),
        )
        .help("rename it in a view, or leave it out with COLUMNS * EXCEPT (…)"));
    }
    if let Some(field) = kept.iter().find(|f| f.name().to_lowercase().starts_with("__spark_autocdc_")) {
        return Err(Error::user(
            "AUTOCDC_RESERVED_COLUMN_NAME_PREFIX_CONFLICT",
            format!("the source has a column {}, whose prefix __spark_autocdc_ is reserved", field.name()),
        ));
    }
    let mut keys = Vec::with_capacity(source.cdc.keys.len());
    for key in &source.cdc.keys {
        match kept.iter().find(|f| f.name().eq_ignore_ascii_case(&key.text)) {
            Some(field) => keys.push(field.name().clone()),
            None => {
                let error = Error::user(
                    "AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA",
                    format!("key {} is not among the kept columns of the source", key.text),
                );
                return Err(advise(error, key, &kept));
            }
        }
    }
    let values: Vec<FieldRef> =
        kept.iter().filter(|f| !keys.iter().any(|k| k.eq_ignore_ascii_case(f.name()))).cloned().collect();
    let tracked = match &source.cdc.track_history {
        None => values.clone(),
        Some(list) => {
            let chosen = select(&kept, Some(list), "TRACK HISTORY ON")?;
            chosen.into_iter().filter(|f| !keys.iter().any(|k| k == f.name())).collect()
        }
    };
    let fill = match &source.cdc.ignore_null_updates {
        None => Vec::new(),
        Some(IgnoreNull::All) => values,
        Some(IgnoreNull::Columns(list)) => {
            if matches!(list, ColumnList::Include(names) if names.is_empty()) {
                return Err(Error::user(
                    "AUTOCDC_IGNORE_NULL_EMPTY_COLUMN_LIST",
                    "IGNORE NULL UPDATES ON needs at least one column",
                ));
            }
            let chosen = select(&kept, Some(list), "IGNORE NULL UPDATES ON")?;
            chosen.into_iter().filter(|f| !keys.iter().any(|k| k == f.name())).collect()
        }
    };
    let names = |fields: Vec<FieldRef>| fields.iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    Ok(Shape { keys, tracked: names(tracked), fill: names(fill), kept })
}

fn select(fields: &[FieldRef], list: Option<&ColumnList>, clause: &str) -> Result<Vec<FieldRef>> {
    let (names, include) = match list {
        None => return Ok(fields.to_vec()),
        Some(ColumnList::Include(names)) => (names, true),
        Some(ColumnList::Except(names)) => (names, false),
    };
    for name in names {
        if !fields.iter().any(|f| f.name().eq_ignore_ascii_case(&name.text)) {
            let error = Error::user(
                "AUTOCDC_COLUMNS_NOT_FOUND_IN_SCHEMA",
                format!("{clause} names column {}, which is not there", name.text),
            );
            return Err(advise(error, name, fields));
        }
    }
    let named = |f: &FieldRef| names.iter().any(|n| n.text.eq_ignore_ascii_case(f.name()));
    Ok(fields.iter().filter(|f| named(f) == include).cloned().collect())
}

fn advise(error: Error, name: &Name, fields: &[FieldRef]) -> Error {
    let names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
    let error = error.at(&name.span);
    match near_miss(&name.text, names.iter().copied()) {
        Some(near) => error.help(format!("did you mean {near}?")),
        None => error.help(format!("the columns are {}", names.join(", "))),
    }
}

fn flow(planner: &Planner<'_>, source: &CdcSource<'_>, layout: &SchemaRef) -> Result<(CdcDraftFlow, DataType)> {
    let cdc = source.cdc;
    let (sequence, columns, sequence_type) =
        plan_expr(planner, &cdc.sequence_by, &source.schema, &source.alias, &cdc.sequence_span)?;
    let stored = stored_type(&sequence_type);
    if !orderable(&stored) {
        return Err(Error::user(
            "AUTOCDC_MICROBATCH_VALIDATION.NON_ORDERABLE_SEQUENCE",
            format!("SEQUENCE BY needs a type that can be ordered, and {} cannot", spelled(&sequence_type)),
        )
        .at(&cdc.sequence_span));
    }
    let sequence = cast(sequence, &sequence_type, &stored);
    let condition = |expr: &Option<ast::Expr>, clause: &str| -> Result<Option<Expr>> {
        let Some(expr) = expr else { return Ok(None) };
        let (expr, _, data_type) = plan_expr(planner, expr, &source.schema, &source.alias, source.span)?;
        match data_type {
            DataType::Boolean => Ok(Some(expr)),
            DataType::Null => Ok(Some(lit(false))),
            other => Err(Error::user(
                "AUTOCDC_CONDITION_NOT_BOOLEAN",
                format!("{clause} needs a condition, and this is {other}"),
            )
            .at(source.span)),
        }
    };
    let delete = condition(&cdc.apply_as_deletes, "APPLY AS DELETE WHEN")?;
    let truncate = condition(&cdc.apply_as_truncates, "APPLY AS TRUNCATE WHEN")?;
    let mut exprs = Vec::with_capacity(layout.fields().len());
    for field in layout.fields() {
        exprs.push(match position(&source.schema, field.name()) {
            Some(at) => {
                let from = source.schema.field(at);
                cast(ident(from.name()), from.data_type(), field.data_type())
            }
            None => Expr::Literal(
                ScalarValue::try_from(field.data_type())
                    .map_err(|e| Error::internal(format!("no null of type {}", field.data_type())).caused_by(e))?,
                None,
            ),
        });
    }
    Ok((CdcDraftFlow { columns, layout: exprs, sequence, delete, truncate }, stored))
}

fn cast(expr: Expr, from: &DataType, to: &DataType) -> Expr {
    if from == to { expr } else { Expr::Cast(Cast::new(Box::new(expr), to.clone())) }
}

fn orderable(data_type: &DataType) -> bool {
    match data_type {
        DataType::Map(..) => false,
        DataType::List(item) => orderable(item.data_type()),
        DataType::Struct(fields) => fields.iter().all(|f| orderable(f.data_type())),
        _ => true,
    }
}

/// An expression over the kept columns of a target as one over the source of a flow.
pub(super) fn judged_from(expr: &Expr, cdc: &CdcDraft, parts: &CdcDraftFlow) -> datafusion::common::Result<Expr> {
    let made = expr.clone().transform_up(|e| {
        let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
        let kept = position(&cdc.judged, column.name()).and_then(|at| cdc.kept.get(at));
        Ok(match kept.and_then(|at| parts.layout.get(*at)) {
            Some(made) => Transformed::yes(made.clone()),
            None => Transformed::no(e),
        })
    })?;
    Ok(made.data)
}
