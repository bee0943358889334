//! Builds the timely dataflow of a plan on one worker: an operator, or a short chain under one name, for each dataset and
//! each flow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use differential_dataflow::AsCollection;
use serde::{Deserialize, Serialize};
use silverflow_operators::{Closed, Diff, Epoch, Rows, Shared, Shelf, State, commit};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::core::{Concatenate, Exchange, Filter, OkErr};
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::generic::operator::empty;
use timely::dataflow::{InputHandle, Scope, Stream};

use super::batch::{Batch, Batches, relabel};
use super::clock::{ClockInlet, ClockSource, Passage, pass_clock};
use super::eval::run_steps;
use super::fan::{Fan, fan_out};
use super::fault::RowFault;
use super::keyed::{distinct, match_rows};
use super::load::Lanes;
use super::merge::{Merged, merge};
use super::metrics::Tally;
use super::rules::{Judge, bad_row, internal};
use super::states::{Registered, Restored, States};
use crate::error::{Error, Result};
use crate::plan::{DatasetPlan, Feed, Input, NOW_COLUMN, Node, Plan, Step, Stored, WALL_COLUMN, with_now};

/// Where batches enter a dataflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Inlet {
    /// Rows of a source, with the wall behind them.
    Source(usize),
    /// Stored rows of a replay point.
    Rows(usize),
    /// Stored rows of a replay point's quarantine.
    Quarantine(usize),
}

/// A table that a dataset keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TableId {
    /// The dataset's rows.
    Rows(usize),
    /// Its quarantine.
    Quarantine(usize),
}

/// What a worker hands over.
#[derive(Debug)]
pub enum Outcome {
    /// The changes of a table in a closed epoch, as far as they are this worker's.
    Changes {
        /// The table.
        table: TableId,
        /// The epoch.
        epoch: Epoch,
        /// The changes.
        batches: Vec<Batch>,
    },
    /// Faults of a closed epoch.
    Faults {
        /// The epoch.
        epoch: Epoch,
        /// The faults.
        faults: Vec<Box<RowFault>>,
    },
}

/// How a dataflow starts.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Changes of epochs up to this one are already in the tables.
    pub hydrated: Epoch,
    /// Tables of which even those changes are wanted, because they will be set by comparison.
    pub compare: BTreeSet<TableId>,
    /// Replay points whose stored rows are judged again: their expectations have changed, or change with the clock.
    pub rejudge: BTreeSet<usize>,
    /// Replay points of decisions that have none yet: all that is known is decided now.
    pub undecided: BTreeSet<usize>,
    /// Workers at which the changes of a dataset's tables come together, where that matters; otherwise each hands over its
    /// own.
    pub homes: BTreeMap<usize, usize>,
    /// What the operators remember from a checkpoint. Empty operators otherwise.
    pub state: Option<Arc<Restored>>,
    /// Where state lies that memory has no room for. In memory otherwise, all of it.
    pub shelf: Option<Arc<dyn Shelf>>,
}

/// Handle of an inlet.
pub type Handle = InputHandle<Epoch, CapacityContainerBuilder<Vec<Batch>>>;

/// The ends of a dataflow on one worker.
pub struct Dataflow {
    /// Where batches enter.
    pub inlets: BTreeMap<Inlet, Handle>,
    /// How far each table, and the faults, are closed.
    pub closed: Vec<Closed>,
    /// What the stateful operators remember, by stable names.
    pub states: Vec<Registered>,
    /// Where it hears what the clock shows.
    pub clock: ClockInlet,
    /// The ways of rows to the workers that their keys belong to.
    pub lanes: Lanes,
}

impl Dataflow {
    /// Every epoch below this is closed everywhere on this worker.
    pub fn closed_below(&self) -> Epoch {
        self.closed.iter().map(Closed::below).min().unwrap_or(Epoch::MAX)
    }
}

/// What building needs on the way.
pub struct Builder<'s> {
    /// The dataflow's scope.
    pub scope: Scope<'s, Epoch>,
    /// Fault streams of all operators so far.
    pub faults: Vec<Stream<'s, Epoch, Vec<Box<RowFault>>>>,
    /// What the stateful operators so far remember.
    pub states: States,
    /// The clock.
    pub clock: ClockSource<'s>,
    /// Epochs up to this one were seen by an earlier run.
    pub hydrated: Epoch,
    /// The ways of rows into keyed operators so far.
    pub lanes: Lanes,
}

struct Edge<'s> {
    stream: Batches<'s>,
    width: usize,
}

impl<'s> Builder<'s> {
    /// Separates faults from batches.
    pub fn split_faults(&mut self, stream: Stream<'s, Epoch, Vec<Result<Batch, Box<RowFault>>>>) -> Batches<'s> {
        let (batches, faults) = stream.ok_err(|item: Result<Batch, Box<RowFault>>| item);
        self.faults.push(faults);
        batches
    }

    /// Hands state to an operator of the dataset `label`, with what a checkpoint holds of it, so that the next checkpoint
    /// will hold it too. Every state that outlives an epoch goes through here.
    pub fn state<S: State + 'static>(&mut self, label: &str, state: S) -> Result<Shared<S>> {
        self.states.register(label, state)
    }

    /// Changes updates in place, message by message.
    pub fn map_chunks<D: Clone + 'static>(
        &mut self,
        rows: Rows<'s, D>,
        name: &str,
        label: &str,
        mut f: impl FnMut(&mut [(D, Epoch, Diff)]) -> Result<(), ArrowError> + 'static,
    ) -> Rows<'s, D> {
        let label = label.to_owned();
        let alarm = self.states.alarm();
        type Item<D> = Result<(D, Epoch, Diff), Box<RowFault>>;
        let mapped =
            rows.inner.unary::<CapacityContainerBuilder<Vec<Item<D>>>, _, _, _>(Pipeline, name, move |_, _| {
                move |input, output| {
                    input.for_each(|cap, data| {
                        if alarm.is_raised() {
                            // These may be no rows.
                            return data.clear();
                        }
                        let mut session = output.session(&cap);
                        match f(data.as_mut_slice()) {
                            Ok(()) => session.give_iterator(data.drain(..).map(Ok)),
                            Err(error) => {
                                let epoch = data.first().map_or(0, |(_, epoch, _)| *epoch);
                                data.clear();
                                session.give(Err(internal(epoch, &label, error.to_string())));
                            }
                        }
                    });
                }
            });
        let (rows, faults) = mapped.ok_err(|item: Item<D>| item);
        self.faults.push(faults);
        rows.as_collection()
    }
}

/// Builds the dataflow. Every worker must call it with the same plan and start.
pub fn build<'s>(
    scope: Scope<'s, Epoch>,
    plan: &Arc<Plan>,
    start: &Start,
    tally: &Tally,
    outbox: &(impl Fn(Outcome) + Clone + 'static),
) -> Result<Dataflow> {
    let states = States::new(start.state.clone(), start.shelf.clone(), scope.index(), scope.peers());
    let mut builder = Builder {
        scope,
        faults: Vec::new(),
        states,
        clock: ClockSource::new(scope),
        hydrated: start.hydrated,
        lanes: Lanes::new(scope.peers()),
    };
    let mut inlets: BTreeMap<Inlet, Handle> = BTreeMap::new();
    let mut edges: BTreeMap<Input, Edge<'s>> = BTreeMap::new();
    let mut closed = Vec::new();
    for (index, source) in plan.sources.iter().enumerate() {
        let stream = open(scope, &mut inlets, Inlet::Source(index));
        edges.insert(Input::Source(index), Edge { stream, width: source.schema.fields().len() + 1 });
    }
    for (index, dataset) in plan.datasets.iter().enumerate() {
        let label = dataset.label();
        let mut judge = judge(index, dataset, tally);
        judge.stored_through = start.hydrated;
        let mut quarantine: Vec<Batches<'s>> = Vec::new();
        let rows = match &dataset.feed {
            Feed::Append(flows) => {
                let mut streams = Vec::with_capacity(flows.len() + 1);
                for (name, node) in flows {
                    streams.push(build_node(&mut builder, &edges, node, &format!("flow {name}"), &label)?);
                }
                if start.rejudge.contains(&index) {
                    streams.push(open(scope, &mut inlets, Inlet::Rows(index)));
                }
                let mut yielded = scope.concatenate(streams);
                if dataset.decided {
                    let through = if start.undecided.contains(&index) { 0 } else { start.hydrated };
                    yielded = decided(&mut builder, yielded, through, &label);
                }
                if judge.now {
                    let schema = if dataset.wall { with_wall(&dataset.schema) } else { Arc::clone(&dataset.schema) };
                    let passage = Passage {
                        boundaries: &dataset.boundaries,
                        schema: &schema,
                        pairs: true,
                        keeps_arrival: dataset.replay_point,
                        name: &format!("{label}: expectations"),
                        label: &label,
                    };
                    yielded = pass_clock(&mut builder, yielded, &passage)?;
                }
                let (rows, quarantined) = judge_rows(&mut builder, yielded, judge.clone());
                quarantine.push(quarantined);
                rows
            }
            Feed::Cdc(cdc) => {
                let mut inputs = Vec::with_capacity(cdc.flows.len());
                for flow in &cdc.flows {
                    inputs.push(build_node(&mut builder, &edges, &flow.input, &format!("flow {}", flow.name), &label)?);
                }
                let Merged { rows, quarantine: invalid } = merge(&mut builder, cdc, &dataset.schema, &judge, inputs)?;
                quarantine.push(invalid);
                rows
            }
        };
        let mut rows = rows;
        if dataset.replay_point && !start.rejudge.contains(&index) {
            let stored = open(scope, &mut inlets, Inlet::Rows(index));
            rows = scope.concatenate([rows, stored]);
            if dataset.quarantine.is_some() {
                quarantine.push(open(scope, &mut inlets, Inlet::Quarantine(index)));
            }
        }
        let quarantine = scope.concatenate(quarantine);
        if dataset.stored != Stored::No {
            let mut keep = |stream: Batches<'s>, table: TableId| {
                let wanted = if start.compare.contains(&table) { 0 } else { start.hydrated + 1 };
                let stream = stream.filter(move |batch: &Batch| batch.epoch >= wanted);
                let stream = match start.homes.get(&index) {
                    Some(home) => {
                        let home = *home as u64;
                        stream.exchange(move |_| home)
                    }
                    None => stream,
                };
                let outbox = outbox.clone();
                closed.push(commit(
                    stream,
                    empty::<_, Vec<Box<RowFault>>>(scope),
                    &format!("commit {label}"),
                    move |epoch, batches, _| {
                        outbox(Outcome::Changes { table, epoch, batches });
                    },
                ));
            };
            keep(rows.clone(), TableId::Rows(index));
            if dataset.quarantine.is_some() {
                keep(quarantine.clone(), TableId::Quarantine(index));
            }
        }
        let width = dataset.schema.fields().len() + usize::from(dataset.wall);
        edges.insert(Input::Dataset(index), Edge { stream: rows, width });
        if let Some(schema) = &judge.quarantine {
            edges.insert(Input::Quarantine(index), Edge { stream: quarantine, width: schema.fields().len() });
        }
    }
    let faults = scope.concatenate(std::mem::take(&mut builder.faults));
    let outbox = outbox.clone();
    closed.push(commit(empty::<_, Vec<Batch>>(scope), faults, "faults", move |epoch, _, faults| {
        outbox(Outcome::Faults { epoch, faults });
    }));
    let (states, clock) = (builder.states.finish()?, builder.clock.finish());
    Ok(Dataflow { inlets, closed, states, clock, lanes: builder.lanes })
}

fn open<'s>(scope: Scope<'s, Epoch>, inlets: &mut BTreeMap<Inlet, Handle>, inlet: Inlet) -> Batches<'s> {
    let mut handle = Handle::new_with_builder();
    let stream = handle.to_stream(scope);
    inlets.insert(inlet, handle);
    stream
}

fn judge(index: usize, dataset: &DatasetPlan, tally: &Tally) -> Judge {
    let schema = match &dataset.feed {
        Feed::Append(_) => {
            let schema = if dataset.wall { with_wall(&dataset.schema) } else { Arc::clone(&dataset.schema) };
            if dataset.boundaries.is_empty() { schema } else { with_now(&schema) }
        }
        Feed::Cdc(cdc) => Arc::clone(&cdc.judged),
    };
    let has = |name: &str| schema.fields().iter().any(|f| f.name() == name);
    let (wall, now) = (has(WALL_COLUMN), has(NOW_COLUMN));
    Judge {
        dataset: index,
        label: dataset.label(),
        rules: dataset.rules.clone().into(),
        together: dataset.together.clone(),
        schema: Arc::clone(&schema),
        quarantine: dataset.quarantine.as_ref().map(|q| if wall { with_wall(q) } else { Arc::clone(q) }),
        wall,
        now,
        drop_is_final: dataset.replay_point,
        stored_through: 0,
        tally: tally.clone(),
    }
}

/// `schema` with the hidden wall column behind it.
pub fn with_wall(schema: &SchemaRef) -> SchemaRef {
    crate::plan::with_wall(schema)
}

fn judge_rows<'s>(builder: &mut Builder<'s>, input: Batches<'s>, judge: Judge) -> (Batches<'s>, Batches<'s>) {
    let name = judge.label.clone();
    let (rows, quarantined, faults, _) =
        fan_out(input, &name, move |batch, fan: &mut Fan<Batch, Batch, Box<RowFault>, ()>| {
            let epoch = batch.epoch;
            match judge.judge(batch) {
                Ok(judged) => {
                    if judged.kept.rows.num_rows() > 0 {
                        fan.first.push(judged.kept);
                    }
                    fan.second.extend(judged.quarantined);
                    fan.third.extend(judged.faults);
                }
                Err(error) => fan.third.push(judge.broken(epoch, &error)),
            }
        });
    builder.faults.push(faults);
    (rows, quarantined)
}

/// Rows that come after the epoch `through`: what was decided before is read back, and nothing that goes undoes it.
fn decided<'s>(builder: &mut Builder<'s>, input: Batches<'s>, through: Epoch, label: &str) -> Batches<'s> {
    let owner = label.to_owned();
    let (rows, faults, _, _) =
        fan_out(input, &format!("{label}: decided"), move |mut batch, fan: &mut Fan<Batch, Box<RowFault>, (), ()>| {
            if batch.epoch <= through {
                return;
            }
            batch.arrived = batch.epoch;
            let comes = batch.each_diff().map(|diff| Some(diff > 0)).collect();
            match batch.filter(&comes) {
                Ok(batch) if batch.rows.num_rows() > 0 => fan.first.push(batch),
                Ok(_) => {}
                Err(error) => fan.second.push(internal(batch.epoch, &owner, error.to_string())),
            }
        });
    builder.faults.push(faults);
    rows
}

fn build_node<'s>(
    builder: &mut Builder<'s>,
    edges: &BTreeMap<Input, Edge<'s>>,
    node: &Node,
    name: &str,
    label: &str,
) -> Result<Batches<'s>> {
    match node {
        Node::Read { input, columns, schema } => {
            let edge =
                edges.get(input).ok_or_else(|| Error::internal(format!("{input:?} is read before it is built")))?;
            if columns.len() == edge.width && columns.iter().enumerate().all(|(i, c)| i == *c) {
                return Ok(edge.stream.clone());
            }
            let (columns, schema, label) = (columns.clone(), Arc::clone(schema), label.to_owned());
            let (batches, faults, _, _) =
                fan_out(edge.stream.clone(), name, move |batch, fan: &mut Fan<Batch, Box<RowFault>, (), ()>| {
                    let chosen = columns.iter().filter_map(|i| batch.rows.columns().get(*i).cloned()).collect();
                    match relabel(&schema, chosen, batch.rows.num_rows()) {
                        Ok(rows) => fan.first.push(batch.with_rows(rows)),
                        Err(error) => fan.second.push(internal(batch.epoch, &label, error.to_string())),
                    }
                });
            builder.faults.push(faults);
            Ok(batches)
        }
        Node::Map { input, steps, .. } => {
            let input = build_node(builder, edges, input, name, label)?;
            Ok(map_steps(builder, input, steps.clone(), name, label))
        }
        Node::Union { inputs, schema } => {
            let mut streams = Vec::with_capacity(inputs.len());
            for input in inputs {
                let stream = build_node(builder, edges, input, name, label)?;
                streams.push(if input.schema() == schema {
                    stream
                } else {
                    let columns = (0..schema.fields().len())
                        .map(|i| {
                            let name = input.schema().fields().get(i).map_or("", |f| f.name().as_str());
                            Arc::new(datafusion::physical_expr::expressions::Column::new(name, i)) as _
                        })
                        .collect();
                    let relabelled = vec![Step::Project { columns, schema: Arc::clone(schema) }];
                    map_steps(builder, stream, relabelled, name, label)
                });
            }
            Ok(builder.scope.concatenate(streams))
        }
        Node::Clock { input, boundaries, .. } => {
            let schema = Arc::clone(input.schema());
            let input = build_node(builder, edges, input, name, label)?;
            let passage = Passage { boundaries, schema: &schema, pairs: false, keeps_arrival: false, name, label };
            pass_clock(builder, input, &passage)
        }
        Node::Distinct { input, schema } => {
            let input = build_node(builder, edges, input, name, label)?;
            distinct(builder, input, schema, name, label)
        }
        Node::Match(node) => {
            let rows = build_node(builder, edges, &node.rows, name, label)?;
            let reference = build_node(builder, edges, &node.reference, name, label)?;
            match_rows(builder, node, rows, reference, name, label)
        }
    }
}

fn map_steps<'s>(
    builder: &mut Builder<'s>,
    input: Batches<'s>,
    steps: Vec<Step>,
    name: &str,
    label: &str,
) -> Batches<'s> {
    let label = label.to_owned();
    let flow = name.strip_prefix("flow ").map(str::to_owned);
    let (batches, faults, _, _) = fan_out(input, name, move |batch, fan: &mut Fan<Batch, Box<RowFault>, (), ()>| {
        let epoch = batch.epoch;
        match run_steps(&steps, batch) {
            Ok(batches) => batches.into_iter().filter(|b| b.rows.num_rows() > 0).for_each(|b| fan.first.push(b)),
            Err((bad, rows)) => {
                fan.second.push(bad_row(epoch, &label, flow.as_deref(), bad.message, &rows, bad.index));
            }
        }
    });
    builder.faults.push(faults);
    batches
}
