//! The physical half of a plan: numbers, private replay points, and queries lowered to nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;

use super::cdc::{CdcDraftFlow, judged_from};
use super::decided::decided_rows_grow;
use super::draft::{Draft, DraftFlow, Reading, quarantine_schema};
use super::fingerprint::fingerprints;
use super::growth::growth;
use super::lower::{Lowering, View, Views, clock, physical, read_once};
use super::moments::{Boundary, Live, live};
use super::push::push_down;
use super::query::{Planner, from_datafusion};
use super::readings::{Reader, Readings};
use super::replay::{Candidate, Reads, replay_points};
use super::schema::{position, with_now, with_wall};
use super::together::together;
use super::unique::{KnownKeys, unique};
use super::{CdcFlow, CdcPlan, DatasetPlan, Feed, Input, Node, Plan, PlanLint, Retracts, Rule, Source, Stored};
use crate::error::{Error, Result};
use crate::pipeline::{Action, DatasetKind, FlowKind, ScdType, TableName};

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
pub(super) fn assemble(drafts: &[Draft<'_>], zone: &Arc<str>, planner: &Planner<'_>) -> Result<Plan> {
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
                    Reading::Outside(s) if s.kind.retracts() => Reads::Snapshot,
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
    let once = |index: usize, draft: &Draft<'_>| replay.contains(&index) || draft.dataset.decides_at_arrival();
    let mut shown: Vec<Readings> = Vec::with_capacity(drafts.len());
    for (index, draft) in drafts.iter().enumerate() {
        let found = shown_in(draft, drafts, &shown, zone, once(index, draft));
        shown.push(found.map_err(|e| from_datafusion(e, &draft.dataset.span, None))?);
    }
    let mut slots: Vec<Option<DatasetPlan>> = Vec::new();
    slots.resize_with(numbering.total, || None);
    let mut walls: BTreeSet<Input> = BTreeSet::new();
    for (index, draft) in drafts.iter().enumerate().rev() {
        let at = numbering.dataset(index)?;
        let wall = walls.contains(&Input::Dataset(at)) || walls.contains(&Input::Quarantine(at));
        let is_replay = replay.contains(&index) && draft.dataset.kind != DatasetKind::TemporaryView;
        let arrival = draft.dataset.decides_at_arrival();
        let place = Place {
            wall,
            replay_point: is_replay || arrival,
            once: once(index, draft),
            arrival,
            decided: arrival && !is_replay,
        };
        let plan =
            lower_dataset(draft, drafts, &numbering, &shown, index, place, zone, &mut walls, &mut lints, planner)?;
        put(&mut slots, at, plan)?;
        for (replay_at, source) in numbering.replays(index) {
            let wall = walls.contains(&Input::Dataset(replay_at));
            put(&mut slots, replay_at, replay_dataset(draft, &numbering, replay_at, source, wall)?)?;
        }
    }
    let mut datasets: Vec<DatasetPlan> = slots.into_iter().flatten().collect();
    fingerprints(&mut datasets, drafts, &numbering, &planner.settings);
    growth(&mut datasets, &numbering.sources);
    push_down(&mut numbering.sources, &datasets);
    decided_rows_grow(&datasets, drafts, &numbering)?;
    lints.sort_by(|a, b| (&a.span.file, a.span.line, a.code).cmp(&(&b.span.file, b.span.line, b.code)));
    Ok(Plan { sources: numbering.sources, datasets, lints, root: PathBuf::new() })
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
pub(super) struct Numbering {
    pub(super) sources: Vec<Source>,
    /// By draft.
    pub(super) datasets: Vec<usize>,
    /// What each outside relation of a flow reads in the plan, by source id.
    pub(super) outside: BTreeMap<String, Input>,
    /// By draft: number of the replay point, number of its source.
    pub(super) replays: Vec<Vec<(usize, usize)>>,
    pub(super) total: usize,
}

impl Numbering {
    fn place(&mut self, index: usize, draft: &Draft<'_>, direct: bool, lints: &mut Vec<PlanLint>) {
        let mut replays = Vec::new();
        for flow in &draft.flows {
            for (reading, _) in &flow.reads {
                let Reading::Outside(source) = reading else { continue };
                let number = self.sources.len();
                lints.extend(source.warnings.iter().map(|(code, message)| PlanLint {
                    code,
                    message: message.clone(),
                    span: source.span.clone(),
                }));
                self.sources.push((**source).clone());
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
        together: None,
        quarantine: None,
        quarantine_history: false,
        boundaries: Vec::new(),
        wall,
        replay_point: true,
        decided: false,
        retracts: Retracts::default(),
        fingerprint: String::new(),
        parts: BTreeMap::new(),
        comment: Some(format!("What flow {} of {} has read", read.id, draft.dataset.name)),
        properties: BTreeMap::new(),
        upstream: Vec::new(),
    })
}

/// What a dataset is to those around it.
#[derive(Clone, Copy)]
struct Place {
    /// Someone reads the wall of its rows.
    wall: bool,
    replay_point: bool,
    /// What its queries decide is decided when a row arrives: a replay point, and the views within its query.
    once: bool,
    /// So are its expectations.
    arrival: bool,
    /// It stores what was decided, not what came from outside.
    decided: bool,
}

#[allow(clippy::too_many_arguments)]
fn lower_dataset(
    draft: &Draft<'_>,
    drafts: &[Draft<'_>],
    numbering: &Numbering,
    shown: &[Readings],
    index: usize,
    place: Place,
    zone: &Arc<str>,
    walls: &mut BTreeSet<Input>,
    lints: &mut Vec<PlanLint>,
    planner: &Planner<'_>,
) -> Result<DatasetPlan> {
    let name = &draft.dataset.name;
    let Place { wall, replay_point, once, decided, .. } = place;
    let own = shown.get(index).cloned().unwrap_or_default();
    let read = read_rules(draft, &own, zone, place, lints)?;
    let rules_wall = read.iter().any(|r| r.at_arrival);
    let rules_now = read.iter().any(|r| !r.boundaries.is_empty());
    let mut upstream = BTreeSet::new();
    let judged_wall = match &draft.cdc {
        Some(_) if wall => {
            return Err(Error::user(
                "NOT_SUPPORTED",
                "the time of arrival of rows of an AUTO CDC target is asked for, and a version has none",
            )
            .help("read the clock before the merge, or compare a column with the clock plus or minus a constant")
            .dataset(name)
            .at(&draft.dataset.span));
        }
        Some(_) => rules_wall,
        None => wall || rules_wall,
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
                let schemas: Vec<SchemaRef> = inputs.iter().map(|(_, schema)| Arc::clone(schema)).collect();
                let mut lowering = Lowering {
                    inputs: &inputs,
                    shown: &read_by(flow, drafts, shown),
                    schemas: &schemas,
                    known: &keys,
                    zone: Arc::clone(zone),
                    once,
                    decided,
                    streams: streams(flow),
                    views: &AllViews { drafts, numbering, shown },
                    inlined: BTreeSet::new(),
                    span: span.unwrap_or(&flow.flow.span),
                    source: planner.source(span.unwrap_or(&flow.flow.span)),
                    walls: BTreeSet::new(),
                    lints: Vec::new(),
                };
                let node = lowering.lower(plan, judged_wall).map_err(|e| e.dataset(name).flow(&flow.flow.name))?;
                walls.append(&mut lowering.walls);
                lints.append(&mut lowering.lints);
                node.leaves(&mut |input, _| note(&mut upstream, input));
                lowering.inlined.iter().for_each(|input| note(&mut upstream, *input));
                flows.push((flow.flow.name.clone(), node));
            }
            Feed::Append(flows)
        }
        Some(cdc) => {
            let mut flows = Vec::new();
            for (flow, parts) in draft.flows.iter().zip(&cdc.flows) {
                let Some((reading, schema)) = flow.reads.first() else { continue };
                let input = numbering.input(reading)?;
                let wrong = |e| from_datafusion(e, &flow.flow.span, None);
                let source = read_by(flow, drafts, shown).into_iter().next().unwrap_or_default();
                let mut found = FlowClock {
                    parts,
                    zone,
                    shown: &source,
                    boundaries: Vec::new(),
                    at_arrival: rules_wall,
                    once: None,
                };
                let layout =
                    parts.layout.iter().map(|e| found.read(e)).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
                let sequence = found.read(&parts.sequence).map_err(wrong)?;
                let delete = parts.delete.as_ref().map(|e| found.read(e)).transpose().map_err(wrong)?;
                let truncate = parts.truncate.as_ref().map(|e| found.read(e)).transpose().map_err(wrong)?;
                for boundary in read.iter().flat_map(|r| &r.boundaries) {
                    found.boundaries.push(boundary.bind(|e| judged_from(e, cdc, parts)).map_err(wrong)?);
                }
                let FlowClock { boundaries, at_arrival, once, .. } = found;
                lints.extend(once.map(|itself| read_once(false, itself, &flow.flow.span)));
                let width = schema.fields().len();
                if at_arrival {
                    walls.insert(input);
                }
                let columns: Vec<usize> = (0..width + usize::from(at_arrival)).collect();
                let batch = if at_arrival { with_wall(schema) } else { Arc::clone(schema) };
                let bind = |expr: &Expr| physical(expr, &parts.columns, &batch, zone).map_err(wrong);
                let boundaries = boundaries.iter().map(|b| b.bind(bind)).collect::<Result<Vec<_>>>()?;
                let read = Node::Read { input, columns, schema: Arc::clone(&batch) };
                let source = clock(boundaries, read)?;
                let bind = |expr: &Expr| physical(expr, &parts.columns, source.schema(), zone).map_err(wrong);
                note(&mut upstream, input);
                flows.push(CdcFlow {
                    name: flow.flow.name.clone(),
                    layout: layout.iter().map(bind).collect::<Result<_>>()?,
                    sequence: bind(&sequence)?,
                    delete: delete.as_ref().map(bind).transpose()?,
                    truncate: truncate.as_ref().map(bind).transpose()?,
                    input: source,
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
                judged: hidden(&cdc.judged, judged_wall, rules_now),
            }))
        }
    };
    let judged = draft.cdc.as_ref().map_or(&draft.schema, |c| &c.judged);
    let wrong = |e| from_datafusion(e, &draft.dataset.span, None);
    let batch = hidden(judged, judged_wall, false);
    let mut boundaries = Vec::new();
    for (rule, read) in draft.rules.iter().zip(&read) {
        for boundary in &read.boundaries {
            boundaries.push(boundary.bind(|e| physical(e, &rule.columns, &batch, zone)).map_err(wrong)?);
        }
    }
    let batch = hidden(judged, judged_wall, rules_now);
    let mut rules = Vec::with_capacity(draft.rules.len());
    for (rule, read) in draft.rules.iter().zip(&read) {
        rules.push(Rule {
            name: rule.name.clone(),
            text: rule.text.clone(),
            condition: physical(&read.expr, &rule.columns, &batch, zone).map_err(wrong)?,
            action: rule.action,
            live: !read.boundaries.is_empty(),
            constraint: rule.constraint,
        });
    }
    let conditions: Vec<(&Expr, &DFSchema)> =
        draft.rules.iter().zip(&read).map(|(rule, read)| (&read.expr, &rule.columns)).collect();
    let together = together(&conditions, &batch, zone).map_err(wrong)?;
    Ok(DatasetPlan {
        name: name.clone(),
        kind: draft.dataset.kind,
        stored: if draft.dataset.kind == DatasetKind::TemporaryView { Stored::No } else { Stored::Table },
        schema: Arc::clone(&draft.schema),
        feed,
        rules,
        together,
        quarantine: draft.fills_quarantine().then(|| quarantine_schema(judged)),
        quarantine_history: draft.dataset.keeps_quarantine_history(),
        boundaries: if draft.cdc.is_some() { Vec::new() } else { boundaries },
        wall: judged_wall && draft.cdc.is_none(),
        replay_point,
        decided,
        retracts: Retracts::default(),
        fingerprint: String::new(),
        parts: BTreeMap::new(),
        comment: draft.dataset.comment.clone(),
        properties: draft.dataset.properties.clone(),
        upstream: upstream.into_iter().collect(),
    })
}

/// How the expectations read the clock. What a view within a replay point's query leaves out is nowhere, and what a replay
/// point drops neither, so that there the clock is read once.
fn read_rules(
    draft: &Draft<'_>,
    own: &Readings,
    zone: &Arc<str>,
    place: Place,
    lints: &mut Vec<PlanLint>,
) -> Result<Vec<Live>> {
    // Rows that are stored as they came are judged as they are stored.
    let own = if place.replay_point { own.stored() } else { own.clone() };
    let mut all = Vec::with_capacity(draft.rules.len());
    for rule in &draft.rules {
        let once = place.once && (!place.replay_point || place.arrival || rule.action == Action::Drop);
        let found =
            live(&rule.condition, &rule.columns, zone, once, &own).map_err(|e| from_datafusion(e, &rule.span, None))?;
        if once {
            if found.at_arrival && rule.action == Action::Drop && !place.arrival {
                lints.push(PlanLint {
                    code: "CLOCK_DROP_IS_FINAL",
                    message: format!(
                        "expectation {} drops rows by the clock where they come in, and a row that is dropped there is kept \
                         nowhere; with ON VIOLATION QUARANTINE it is released when its time comes",
                        rule.name
                    ),
                    span: rule.span.clone(),
                });
            } else if found.by_column {
                lints.push(read_once(false, false, &rule.span));
            }
        } else if found.is_partial() {
            lints.push(read_once(false, found.at_arrival, &rule.span));
        }
        all.push(found);
    }
    Ok(all)
}

/// Which relations of a flow are read as streams.
fn streams(flow: &DraftFlow<'_>) -> Vec<bool> {
    match &flow.flow.kind {
        FlowKind::Query { query, .. } => query.relations.iter().map(|relation| relation.stream).collect(),
        FlowKind::AutoCdc(_) => Vec::new(),
    }
}

struct AllViews<'a> {
    drafts: &'a [Draft<'a>],
    numbering: &'a Numbering,
    shown: &'a [Readings],
}

impl Views for AllViews<'_> {
    fn view(&self, input: Input) -> Result<Option<View<'_>>> {
        let Input::Dataset(at) = input else { return Ok(None) };
        let found = self.numbering.datasets.iter().position(|number| *number == at).and_then(|i| self.drafts.get(i));
        let Some(draft) = found.filter(|draft| draft.dataset.kind == DatasetKind::TemporaryView) else {
            return Ok(None);
        };
        let [flow] = draft.flows.as_slice() else { return Ok(None) };
        let Some(plan) = &flow.plan else { return Ok(None) };
        let inputs = flow.reads.iter().map(|(r, s)| Ok((self.numbering.input(r)?, Arc::clone(s))));
        Ok(Some(View {
            plan,
            inputs: inputs.collect::<Result<_>>()?,
            shown: read_by(flow, self.drafts, self.shown),
            streams: streams(flow),
            known: Box::new(Keys { drafts: self.drafts, reads: &flow.reads }),
            judged: !draft.rules.is_empty(),
        }))
    }
}

fn hidden(schema: &SchemaRef, wall: bool, now: bool) -> SchemaRef {
    let schema = if wall { with_wall(schema) } else { Arc::clone(schema) };
    if now { with_now(&schema) } else { schema }
}

/// What the columns have of the clock that a dataset's rules judge, and that a view hands on.
fn shown_in(
    draft: &Draft<'_>,
    drafts: &[Draft<'_>],
    before: &[Readings],
    zone: &Arc<str>,
    once: bool,
) -> datafusion::common::Result<Readings> {
    let mut flows = Vec::with_capacity(draft.flows.len());
    for (index, flow) in draft.flows.iter().enumerate() {
        let relations = read_by(flow, drafts, before);
        let schemas: Vec<SchemaRef> = flow.reads.iter().map(|(_, schema)| Arc::clone(schema)).collect();
        let reader = Reader { relations: &relations, schemas: &schemas, zone, once };
        let found = match (&draft.cdc, &flow.plan) {
            (None, Some(plan)) => {
                let columns = DFSchema::try_from(draft.schema.as_ref().clone())?;
                reader.of(plan)?.moved(plan.schema(), &columns, Some)
            }
            (Some(cdc), _) => {
                let (Some(parts), Some(source)) = (cdc.flows.get(index), relations.first()) else { continue };
                let kept: Vec<Expr> = cdc.kept.iter().filter_map(|at| parts.layout.get(*at)).cloned().collect();
                let judged = DFSchema::try_from(cdc.judged.as_ref().clone())?;
                reader.made(&kept, source, &parts.columns, &judged)?
            }
            (None, None) => continue,
        };
        flows.push(found);
    }
    Ok(Readings::of_all(flows))
}

/// What the relations of a flow have of the clock: those that are views, since what a table stores stays as it is.
fn read_by(flow: &DraftFlow<'_>, drafts: &[Draft<'_>], shown: &[Readings]) -> Vec<Readings> {
    let of = |reading: &Reading| match reading {
        Reading::Dataset(i) if drafts.get(*i).is_some_and(|d| d.dataset.kind == DatasetKind::TemporaryView) => {
            shown.get(*i).cloned()
        }
        _ => None,
    };
    flow.reads.iter().map(|(reading, _)| of(reading).unwrap_or_default()).collect()
}

/// How the expressions of a flow of change events read the clock.
struct FlowClock<'a> {
    parts: &'a CdcDraftFlow,
    zone: &'a Arc<str>,
    shown: &'a Readings,
    boundaries: Vec<Boundary<Expr>>,
    at_arrival: bool,
    /// Some condition is evaluated once: whether it reads the clock itself.
    once: Option<bool>,
}

impl FlowClock<'_> {
    fn read(&mut self, expr: &Expr) -> datafusion::common::Result<Expr> {
        let found = live(expr, &self.parts.columns, self.zone, false, self.shown)?;
        if found.is_partial() {
            self.once = Some(found.at_arrival);
        }
        self.boundaries.extend(found.boundaries);
        self.at_arrival |= found.at_arrival;
        Ok(found.expr)
    }
}

fn note(upstream: &mut BTreeSet<usize>, input: Input) {
    match input {
        Input::Dataset(i) | Input::Quarantine(i) => {
            upstream.insert(i);
        }
        Input::Source(_) => {}
    }
}
