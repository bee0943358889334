//! The physical half of a plan: numbers, private replay points, and queries lowered to nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::Expr;

use super::clock::reads_clock;
use super::draft::{Draft, Reading, quarantine_schema};
use super::fingerprint::{fingerprints, retractions};
use super::lower::{Lowering, physical};
use super::query::{Planner, from_datafusion};
use super::replay::{Candidate, Reads, replay_points};
use super::schema::{position, with_wall};
use super::unique::{KnownKeys, unique};
use super::{CdcFlow, CdcPlan, DatasetPlan, Feed, Input, Node, Plan, PlanLint, Rule, Source, Stored};
use crate::error::{Error, Result};
use crate::pipeline::{DatasetKind, FlowKind, ScdType, TableName};

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
        quarantine: None,
        wall,
        replay_point: true,
        fingerprint: String::new(),
        parts: BTreeMap::new(),
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
        parts: BTreeMap::new(),
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
