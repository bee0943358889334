//! Hydration: what replay points hold goes back into the dataflow, as of the last complete epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use tokio::runtime::Handle;

use super::columns::{add_wall, by_arrival};
use super::definitions::table_key;
use super::worker::{Mail, ToWorker};
use crate::dataflow::{Batch, Inlet, Start, TableId, relabel, with_wall};
use crate::error::{Error, Result};
use crate::lake::types::conform;
use crate::lake::{History, Table};
use crate::plan::Plan;

/// Sends what the replay points held at the end of the last complete epoch, as rows of the epoch of `start`. Tables that are
/// not there are passed over.
pub fn hydrate<'t>(
    plan: &Plan,
    start: &Start,
    history: &History,
    table: impl Fn(TableId) -> Option<&'t Table>,
    mail: &Mail,
    io: &Handle,
) -> Result<()> {
    if start.hydrated == 0 {
        return Ok(());
    }
    for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.replay_point) {
        let rejudge = start.rejudge.contains(&index);
        for id in [TableId::Rows(index), TableId::Quarantine(index)] {
            let Some(table) = table(id) else { continue };
            let Some(version) = history.versions.get(&table_key(plan, id)) else { continue };
            let (inlet, schema) = match id {
                TableId::Rows(_) => (Inlet::Rows(index), Arc::clone(&dataset.schema)),
                TableId::Quarantine(_) if rejudge => (Inlet::Rows(index), Arc::clone(&dataset.schema)),
                TableId::Quarantine(_) => match &dataset.quarantine {
                    Some(schema) => (Inlet::Quarantine(index), Arc::clone(schema)),
                    None => continue,
                },
            };
            let hydration = Hydration {
                table,
                version: Some(*version),
                only: None,
                inlet,
                epoch: start.hydrated,
                schema,
                wall: dataset.wall,
            };
            hydration.send(&history.walls, mail, io)?;
        }
    }
    Ok(())
}

/// Stored rows on their way to an inlet.
pub struct Hydration<'a> {
    /// The table.
    pub table: &'a Table,
    /// As of this version; the newest if absent.
    pub version: Option<i64>,
    /// Only rows that arrived in this epoch, if given.
    pub only: Option<u64>,
    /// Where they go.
    pub inlet: Inlet,
    /// The epoch in which they enter.
    pub epoch: u64,
    /// Columns on the inlet's edge, without the wall.
    pub schema: arrow::datatypes::SchemaRef,
    /// The edge carries the wall.
    pub wall: bool,
}

impl Hydration<'_> {
    /// Sends the rows.
    pub fn send(&self, walls: &BTreeMap<u64, i64>, mail: &Mail, io: &Handle) -> Result<u64> {
        let wrong = |e| Error::internal("stored rows do not fit the plan").caused_by(e).dataset(self.table.name());
        let mut rows = match self.version {
            Some(version) => io.block_on(self.table.scan_at(version))?,
            None => self.table.scan(),
        };
        let (mut sent, mut next) = (0, 0);
        while let Some(batch) = io.block_on(rows.next()) {
            for (arrived, part) in by_arrival(&batch?).map_err(wrong)? {
                if self.only.is_some_and(|only| only != arrived) || part.num_rows() == 0 {
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
                let batch = Batch { epoch: self.epoch, arrived, rows: part, diffs: None };
                if !mail.send(next, ToWorker::Rows(self.inlet, batch)) {
                    return Err(Error::internal("the workers have ended"));
                }
            }
        }
        Ok(sent)
    }
}
