//! Rows whose meaning changes as the clock goes on: batches to the clock operator, and back.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, TimestampMicrosecondArray};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use differential_dataflow::AsCollection;
use silverflow_operators::{Clock, ClockState, Diff, Epoch, Moment, Row, Rows, Shared, Standing, Timed};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::core::Concatenate;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::{InputHandle, Scope};

use super::batch::{Batch, Batches, relabel};
use super::build::Builder;
use super::codec::Codec;
use super::fan::{Fan, fan_out};
use super::fault::RowFault;
use super::keyed::{codec, gather};
use super::moments::Moments;
use super::rules::internal;
use crate::error::Result;
use crate::plan::{Boundary, with_now};

/// Rows in a batch that leaves the operator. It is even, so that pairs stay together.
const BATCH_ROWS: usize = 8192;

type Tick = ((u64, Moment), Epoch, Diff);

/// What the clock shows in the epochs that are open, on this worker.
type Walls = Rc<RefCell<BTreeMap<Epoch, Moment>>>;

/// Where a worker hears what the clock shows.
pub struct ClockInlet {
    handle: InputHandle<Epoch, CapacityContainerBuilder<Vec<Tick>>>,
    walls: Walls,
    worker: u64,
    states: Vec<Shared<ClockState>>,
}

impl ClockInlet {
    /// What the clock shows in an epoch that has not ended. It must be said before rows of the epoch come.
    pub fn set(&mut self, epoch: Epoch, wall: Moment) {
        if epoch >= *self.handle.time() {
            self.handle.advance_to(epoch);
            self.handle.send(((self.worker, wall), epoch, 1));
            self.walls.borrow_mut().insert(epoch, wall);
        }
    }

    /// Nothing of an epoch before this one comes any more.
    pub fn advance_to(&mut self, epoch: Epoch) {
        if epoch > *self.handle.time() {
            self.handle.advance_to(epoch);
        }
        self.handle.flush();
    }

    /// Epochs below this one are closed.
    pub fn closed_below(&mut self, epoch: Epoch) {
        let mut walls = self.walls.borrow_mut();
        *walls = walls.split_off(&epoch);
    }

    /// The next moment at which something on this worker changes, in microseconds since 1970.
    pub fn due(&self) -> Option<Moment> {
        self.states.iter().filter_map(|state| state.borrow().due()).min()
    }
}

/// The clock of a dataflow that is being built.
pub struct ClockSource<'s> {
    ticks: Rows<'s, (u64, Moment)>,
    inlet: ClockInlet,
}

impl<'s> ClockSource<'s> {
    pub(super) fn new(scope: Scope<'s, Epoch>) -> Self {
        let mut handle = InputHandle::new_with_builder();
        let ticks = handle.to_stream(scope).as_collection();
        let inlet = ClockInlet { handle, walls: Walls::default(), worker: scope.index() as u64, states: Vec::new() };
        ClockSource { ticks, inlet }
    }

    pub(super) fn finish(self) -> ClockInlet {
        self.inlet
    }
}

/// How rows pass the clock.
pub struct Passage<'a> {
    /// Where their meaning changes.
    pub boundaries: &'a [Boundary],
    /// Their columns.
    pub schema: &'a SchemaRef,
    /// A row that only the clock moves comes as a pair that is marked as such.
    pub pairs: bool,
    /// Rows keep the epoch in which they arrived.
    pub keeps_arrival: bool,
    /// Name of the operator.
    pub name: &'a str,
    /// The dataset.
    pub label: &'a str,
}

/// Adds to each row the moment at which it stands, and corrects it as the clock goes on.
pub fn pass_clock<'s>(builder: &mut Builder<'s>, input: Batches<'s>, passage: &Passage<'_>) -> Result<Batches<'s>> {
    let Passage { boundaries, schema, pairs, keeps_arrival, name, label } = *passage;
    let mut moments = Moments::new(boundaries.to_vec());
    let rows = codec(schema, label)?;
    let walls = Rc::clone(&builder.clock.inlet.walls);
    let (owner, out) = (label.to_owned(), with_now(schema));
    let batches = Arc::clone(&out);
    let (settled, waiting, faults, _) = fan_out(
        input,
        &format!("{name}: boundaries"),
        move |batch, fan: &mut Fan<Batch, (Timed, Epoch, Diff), Box<RowFault>, ()>| {
            let wall = walls.borrow().get(&batch.epoch).copied();
            let epoch = batch.epoch;
            let done = moments
                .of(&batch.rows)
                .and_then(|moments| split(&batch, moments, wall, keeps_arrival, &rows, &batches, &mut fan.second));
            match done {
                Ok(settled) => fan.first.extend(settled),
                Err(error) => fan.third.push(internal(epoch, &owner, error.to_string())),
            }
        },
    );
    builder.faults.push(faults);
    let state = builder.states.register(label, ClockState::new())?;
    builder.clock.inlet.states.push(Rc::clone(&state));
    let standing = waiting.as_collection().clock_with(builder.clock.ticks.clone(), &format!("{name}: clock"), state);
    let (rows, owner) = (codec(schema, label)?, label.to_owned());
    let alarm = builder.states.alarm();
    let turned = standing.inner.unary_frontier::<CapacityContainerBuilder<Vec<Result<Batch, Box<RowFault>>>>, _, _, _>(
        Pipeline,
        &format!("{name}: batches"),
        move |_, _| {
            move |(input, _), output| {
                let Some((permit, epochs)) = gather(input, &alarm) else { return };
                for (epoch, items) in epochs {
                    let cap = permit.delayed(&epoch);
                    let mut session = output.session(&cap);
                    for (pair, arrived, lines) in lines(epoch, items, keeps_arrival) {
                        for lines in lines.chunks(BATCH_ROWS) {
                            session.give(match to_rows(lines, &rows, &out) {
                                Ok(rows) => {
                                    let diffs = Some(lines.iter().map(|line| line.diff).collect());
                                    Ok(Batch { epoch, arrived, rows, diffs, pairs: pair && pairs })
                                }
                                Err(error) => Err(internal(epoch, &owner, error.to_string())),
                            });
                        }
                    }
                }
            }
        },
    );
    let turned = builder.split_faults(turned);
    Ok(builder.scope.concatenate([settled, turned]))
}

fn standing_column(moments: Vec<i64>) -> Arc<dyn Array> {
    Arc::new(TimestampMicrosecondArray::from(moments).with_timezone("UTC"))
}

/// Rows whose last boundary is behind the wall go on as they are; the others to the operator.
fn split(
    batch: &Batch,
    mut moments: Vec<Vec<i64>>,
    wall: Option<Moment>,
    keeps_arrival: bool,
    codec: &Codec,
    schema: &SchemaRef,
    waiting: &mut Vec<(Timed, Epoch, Diff)>,
) -> Result<Option<Batch>, ArrowError> {
    let settled: BooleanArray =
        moments.iter().map(|m| Some(wall.is_some_and(|wall| m.last().is_none_or(|last| *last <= wall)))).collect();
    if settled.true_count() < settled.len() {
        let left = batch.filter(&arrow::compute::not(&settled)?)?;
        let mut timed = moments.iter_mut().zip(settled.iter()).filter(|(_, s)| *s == Some(false)).map(|(m, _)| m);
        for (index, row) in codec.encode(left.rows.columns())?.into_iter().enumerate() {
            let arrived = if keeps_arrival { batch.arrived } else { 0 };
            let mut bytes = arrived.to_be_bytes().to_vec();
            bytes.extend_from_slice(&row);
            let moments = timed.next().map(std::mem::take).unwrap_or_default();
            let diff = isize::try_from(left.diff(index)).unwrap_or_default();
            waiting.push((Timed { row: Row::from(bytes), moments }, batch.epoch, diff));
        }
    }
    let kept = batch.filter(&settled)?;
    if kept.rows.num_rows() == 0 {
        return Ok(None);
    }
    let chosen = moments.iter().zip(settled.iter()).filter(|(_, s)| *s == Some(true));
    let standing = chosen.map(|(m, _)| m.last().copied().unwrap_or(0)).collect();
    let mut columns = kept.rows.columns().to_vec();
    columns.push(standing_column(standing));
    Ok(Some(kept.with_rows(relabel(schema, columns, kept.rows.num_rows())?)))
}

/// A row at a moment.
struct Line {
    row: Row,
    at: Moment,
    diff: i64,
}

/// What only the clock has moved, in pairs, and what has come or gone, each by the epoch of arrival.
fn lines(epoch: Epoch, items: Vec<(Standing, i64)>, keeps_arrival: bool) -> Vec<(bool, Epoch, Vec<Line>)> {
    let mut all: BTreeMap<(bool, Epoch), Vec<Line>> = BTreeMap::new();
    for (Standing { row, before, now }, diff) in items {
        let arrived = match row.split_first_chunk::<8>() {
            Some((arrived, _)) if keeps_arrival => Epoch::from_be_bytes(*arrived),
            _ => epoch,
        };
        let lines = all.entry((before.is_some(), arrived)).or_default();
        if let Some(before) = before {
            lines.push(Line { row: row.clone(), at: before, diff: -diff });
        }
        lines.push(Line { row, at: now, diff });
    }
    all.into_iter().map(|((pair, arrived), lines)| (pair, arrived, lines)).collect()
}

fn to_rows(lines: &[Line], codec: &Codec, schema: &SchemaRef) -> Result<arrow::array::RecordBatch, ArrowError> {
    let mut columns = codec.decode(lines.iter().map(|line| line.row.get(8..).unwrap_or_default()))?;
    columns.push(standing_column(lines.iter().map(|line| line.at).collect()));
    relabel(schema, columns, lines.len())
}
