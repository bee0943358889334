//! Hydration: what replay points hold goes back into the dataflow, as of the last complete epoch.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};
use silverflow_operators::Epoch;
use tokio::runtime::Handle;

use super::audit::present;
use super::cluster::{Elsewhere, Lead};
use super::columns::{add_wall, by_arrival};
use super::definitions::table_key;
use super::tables::path;
use super::worker::{Mail, ToWorker};
use crate::dataflow::{Batch, Inlet, Start, TableId, relabel, with_wall};
use crate::error::{Error, Result};
use crate::lake::types::conform;
use crate::lake::{History, Lake, Scan, Table};
use crate::pipeline::{EPOCH_COLUMN, LEFT_COLUMN};
use crate::plan::{Input, Plan};

/// The epochs in which rows are read back, one after the other as they fill up. All are past, so that it does not show.
pub struct Pace<'a> {
    epoch: Epoch,
    last: Epoch,
    /// Bytes of rows after which the next one begins, and what is left of them.
    room: u64,
    left: u64,
    /// Sees an epoch through that has no further rows.
    end: Option<&'a mut dyn FnMut(Epoch) -> Result<()>>,
}

impl<'a> Pace<'a> {
    /// All in one epoch.
    pub fn at_once(epoch: Epoch) -> Self {
        Pace { epoch, last: epoch, room: u64::MAX, left: u64::MAX, end: None }
    }

    /// About `room` bytes an epoch, as far as there are epochs. `end` is called with all but the last that has rows.
    pub fn steps(epochs: RangeInclusive<Epoch>, room: u64, end: &'a mut dyn FnMut(Epoch) -> Result<()>) -> Self {
        let (epoch, last) = epochs.into_inner();
        Pace { epoch, last, room, left: room, end: Some(end) }
    }

    /// Where the next rows go.
    fn epoch(&mut self, rows: &RecordBatch) -> Result<Epoch> {
        if self.left == 0
            && self.epoch < self.last
            && let Some(end) = &mut self.end
        {
            end(self.epoch)?;
            self.epoch += 1;
            self.left = self.room;
        }
        self.left = self.left.saturating_sub(rows.get_array_memory_size() as u64);
        Ok(self.epoch)
    }
}

/// Reads the part of a table that is this process's, for the process that leads.
pub fn hydrate_share(
    (plan, start, walls): (&Plan, &Start, &BTreeMap<u64, i64>),
    lake: &Lake,
    id: TableId,
    rows: Rows,
    mail: &Mail,
    io: &Handle,
) -> Result<u64> {
    let (TableId::Rows(index) | TableId::Quarantine(index)) = id;
    let (Some(dataset), Some((inlet, schema))) = (plan.datasets.get(index), way_in(plan, start, id)) else {
        return Err(Error::internal(format!("there is no way in for {id:?}")));
    };
    let Some(table) = io.block_on(Table::open(lake, &path(lake, dataset, id)))? else {
        return Err(Error::external("TABLE_NOT_READABLE", format!("there is no table {}", table_key(plan, id)))
            .help("all processes need the same storage"));
    };
    let columns = needed(plan, start, id);
    let hydration = Hydration { table: &table, rows, inlet, schema, columns, wall: dataset.wall };
    hydration.send(walls, mail, &mut Pace::at_once(start.hydrated), io)
}

/// Sends what the replay points held at the end of the last complete epoch, as rows of the epochs of `pace`. Tables that are
/// not there are passed over. With `base`, the tables' versions at a checkpoint that the operators have begun with, only
/// what has changed since. Tables that are read whole are
/// read by all processes that `lead` leads, a part each. Says how many rows that were.
pub fn hydrate<'t>(
    plan: &Plan,
    start: &Start,
    history: &History,
    table: impl Fn(TableId) -> Option<&'t Table>,
    base: Option<&BTreeMap<String, i64>>,
    (mail, lead, pace): (&Mail, Option<&Lead>, &mut Pace<'_>),
    io: &Handle,
) -> Result<u64> {
    let mut sent = 0;
    let mut elsewhere = lead.map(Lead::hydration);
    if start.hydrated == 0 {
        return Ok(sent);
    }
    if let Some(wall) = history.walls.get(&start.hydrated) {
        mail.wall(pace.epoch, *wall);
    }
    for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.replay_point) {
        for id in [TableId::Rows(index), TableId::Quarantine(index)] {
            let Some(table) = table(id) else { continue };
            let key = table_key(plan, id);
            let Some(version) = history.versions.get(&key).copied() else { continue };
            let since = base.and_then(|versions| versions.get(&key).copied());
            if since == Some(version) {
                continue;
            }
            let Some((inlet, schema)) = way_in(plan, start, id) else { continue };
            let (rows, mail) = match (since, &mut elsewhere) {
                (Some(since), _) => (Rows::Between(since, version), mail.clone()),
                (None, None) => (Rows::At(version), mail.clone()),
                (None, Some(others)) => (Rows::Share(version, others.begin(id, version)?), mail.here()),
            };
            let columns = needed(plan, start, id);
            let hydration = Hydration { table, rows, inlet, schema, columns, wall: dataset.wall };
            sent += hydration.send(&history.walls, &mail, pace, io)?;
        }
    }
    Ok(sent + elsewhere.map_or(Ok(0), Elsewhere::end)?)
}

/// Where the stored rows of a replay point enter the dataflow, and with which columns.
pub fn way_in(plan: &Plan, start: &Start, table: TableId) -> Option<(Inlet, SchemaRef)> {
    let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
    let dataset = plan.datasets.get(index)?;
    match table {
        TableId::Quarantine(_) if !start.rejudge.contains(&index) => {
            dataset.quarantine.as_ref().map(|schema| (Inlet::Quarantine(index), Arc::clone(schema)))
        }
        _ => Some((Inlet::Rows(index), Arc::clone(&dataset.schema))),
    }
}

/// The columns that have to be read back of the stored rows of a replay point; all if absent: where they are judged again,
/// or compared with what the table holds.
fn needed(plan: &Plan, start: &Start, table: TableId) -> Option<Vec<String>> {
    let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
    let dataset = plan.datasets.get(index)?;
    let (input, schema) = match table {
        TableId::Rows(_) => (Input::Dataset(index), &dataset.schema),
        TableId::Quarantine(_) => (Input::Quarantine(index), dataset.quarantine.as_ref()?),
    };
    if start.rejudge.contains(&index) || start.compare.contains(&table) {
        return None;
    }
    let mut used = plan.used(input);
    if used.is_empty() {
        // Rows without columns are none.
        used.insert(0);
    }
    let fields = used.into_iter().filter_map(|at| schema.fields().get(at));
    Some(fields.map(|field| field.name().clone()).chain([EPOCH_COLUMN.to_owned()]).collect())
}

/// Rows of a table.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// All, as of a version.
    At(i64),
    /// Of those the part of one process, as of a version: `(i, n)` for process `i` of `n`.
    Share(i64, (usize, usize)),
    /// Those that arrived in an epoch.
    Arrived(u64),
    /// Those that came or went after a version, up to another.
    Between(i64, i64),
}

/// Stored rows on their way to an inlet.
pub struct Hydration<'a> {
    /// The table.
    pub table: &'a Table,
    /// Which of its rows.
    pub rows: Rows,
    /// Where they go.
    pub inlet: Inlet,
    /// Columns on the inlet's edge, without the wall.
    pub schema: SchemaRef,
    /// Of these, what is read of a whole table; the others are null. All if absent.
    pub columns: Option<Vec<String>>,
    /// The edge carries the wall.
    pub wall: bool,
}

impl Hydration<'_> {
    /// Sends the rows.
    pub fn send(&self, walls: &BTreeMap<u64, i64>, mail: &Mail, pace: &mut Pace<'_>, io: &Handle) -> Result<u64> {
        let wrong = |e| Error::internal("stored rows do not fit the plan").caused_by(e).dataset(self.table.name());
        let whole = |version, share| {
            let mut columns = self.columns.clone();
            if let Some(columns) = &mut columns {
                let left = self.table.schema().fields().iter().any(|field| field.name() == LEFT_COLUMN);
                columns.extend(left.then(|| LEFT_COLUMN.to_owned()));
            }
            let scan = Scan { columns, version: Some(version), share };
            Ok::<_, Error>(io.block_on(self.table.scan_with(scan))?.map_ok(|rows| (rows, 1)).boxed())
        };
        let mut rows = match self.rows {
            Rows::At(version) => whole(version, None)?,
            Rows::Share(version, share) => whole(version, Some(share))?,
            Rows::Arrived(_) => self.table.scan().map_ok(|rows| (rows, 1)).boxed(),
            Rows::Between(from, to) => io.block_on(self.table.changes(from, to))?,
        };
        let (mut sent, mut next) = (0, 0);
        while let Some(batch) = io.block_on(rows.next()) {
            let (batch, diff) = batch?;
            for (arrived, part) in present(&batch).and_then(|rows| by_arrival(&rows)).map_err(wrong)? {
                if matches!(self.rows, Rows::Arrived(epoch) if epoch != arrived) || part.num_rows() == 0 {
                    continue;
                }
                let mut part = conform(&part, &self.schema)?;
                if self.wall {
                    let wall = walls.get(&arrived).copied().ok_or_else(|| {
                        Error::external("EPOCH_LOG_DAMAGED", format!("the epoch log has no wall for epoch {arrived}"))
                            .dataset(self.table.name())
                    })?;
                    let schema = with_wall(&self.schema);
                    let walled = add_wall(&part, wall).map_err(wrong)?;
                    part = relabel(&schema, walled.columns().to_vec(), walled.num_rows()).map_err(wrong)?;
                }
                sent += part.num_rows() as u64;
                next += 1;
                let diffs = (diff != 1).then(|| vec![diff; part.num_rows()].into());
                let batch = Batch { epoch: pace.epoch(&part)?, arrived, rows: part, diffs, pairs: false };
                if !mail.send(next, ToWorker::Rows(self.inlet, batch)) {
                    return Err(Error::internal("the workers have ended"));
                }
            }
        }
        Ok(sent)
    }
}
