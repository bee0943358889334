//! The Delta tables of a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use super::audit::with_left;
use super::columns::with_epoch;
use super::definitions::{quarantine_key, table_key};
use super::intent::Intent;
use super::report::{RuleReport, TableReport, action_name};
use crate::dataflow::TableId;
use crate::error::{Error, Fault, Result};
use crate::lake::{Evolution, History, Lake, Layout, Table, TableSpec};
use crate::pipeline::{DatasetKind, END_COLUMN, START_COLUMN, ScdType, TableName};
use crate::plan::{DatasetPlan, Feed, Plan, REPLAY, Stored};

/// Open tables, until their committers take them.
pub(super) struct Tables {
    open: BTreeMap<TableId, (Table, String)>,
    /// The last epoch of each table.
    pub(super) epochs: BTreeMap<TableId, Option<u64>>,
    /// Quarantines that no rule fills any more: they are to be emptied.
    pub(super) orphans: BTreeSet<TableId>,
}

/// Where a table lies in the lake.
pub(super) fn path(lake: &Lake, dataset: &DatasetPlan, table: TableId) -> String {
    match (&dataset.stored, table) {
        (Stored::Replay(flow), _) => lake.replay_location(flow),
        (_, TableId::Rows(_)) => lake.table_location(&dataset.name),
        (_, TableId::Quarantine(_)) => lake.table_location(&dataset.name.quarantine()),
    }
}

/// The table that stores a source and is not in the plan, under the name that the log has for it, and its quarantine: their
/// versions by those names, if they hold an epoch. Earlier runs are shut out of both.
pub(super) fn held_elsewhere(
    lake: &Lake,
    (name, source): (&str, &str),
    (epoch, generation): (u64, u64),
    io: &Handle,
) -> Result<BTreeMap<String, i64>> {
    let own = match name.split('.').collect::<Vec<_>>().as_slice() {
        [catalog, schema, table] if !name.starts_with(REPLAY) => Some(TableName::new(*catalog, *schema, *table)),
        _ => None,
    };
    let rows = own.as_ref().map_or_else(|| lake.replay_location(source), |own| lake.table_location(own));
    let quarantine = own.map(|own| (quarantine_key(name), lake.table_location(&own.quarantine())));
    let (mut versions, mut held) = (BTreeMap::new(), false);
    for (key, location) in [(name.to_owned(), rows)].into_iter().chain(quarantine) {
        let Some(mut table) = io.block_on(Table::open(lake, &location))? else { continue };
        io.block_on(table.fence(generation))?;
        held |= key == name && table.epoch().is_some_and(|at| at >= epoch);
        versions.insert(key, table.version());
    }
    Ok(if held { versions } else { BTreeMap::new() })
}

/// The columns of the changes of a dataset's table, for rows of `schema`.
pub(super) fn changed(schema: &SchemaRef, dataset: &DatasetPlan) -> SchemaRef {
    if dataset.replay_point { with_epoch(schema) } else { Arc::clone(schema) }
}

/// The columns in which a dataset's table keeps rows of `schema`.
pub(super) fn stored(schema: &SchemaRef, dataset: &DatasetPlan, id: TableId) -> SchemaRef {
    match id {
        TableId::Rows(_) => changed(schema, dataset),
        TableId::Quarantine(_) if dataset.quarantine_history => with_left(&with_epoch(schema)),
        TableId::Quarantine(_) => with_epoch(schema),
    }
}

/// History settles by key and start, apart from the versions that are still open; current rows lie by key.
pub(super) fn layout(dataset: &DatasetPlan, table: TableId) -> Layout {
    let (Feed::Cdc(cdc), TableId::Rows(_)) = (&dataset.feed, table) else { return Layout::default() };
    let keys = cdc.keys.iter().filter_map(|i| cdc.layout.fields().get(*i)).map(|x| x.name().clone());
    match cdc.scd {
        ScdType::One => Layout { sort: keys.collect(), open: None },
        ScdType::Two => {
            let sort = keys.chain([START_COLUMN.to_owned()]).collect();
            Layout { sort, open: Some(END_COLUMN.to_owned()) }
        }
    }
}

/// What becomes of columns that are gone from a definition, unless the table is replaced.
fn evolution(dataset: &DatasetPlan, table: TableId, compare: &BTreeSet<TableId>) -> Evolution {
    if compare.contains(&table) && !dataset.replay_point { Evolution::Follow } else { Evolution::Keep }
}

/// A table for rows of `schema`.
fn spec(
    (plan, dataset, id): (&Plan, &DatasetPlan, TableId),
    schema: &SchemaRef,
    path: String,
    (generation, evolution): (u64, Evolution),
) -> TableSpec {
    let comment = match id {
        TableId::Rows(_) => dataset.comment.clone(),
        TableId::Quarantine(_) => Some(format!("Rows that violate expectations of {}", dataset.name)),
    };
    TableSpec {
        comment,
        properties: dataset.properties.clone(),
        generation,
        evolution,
        layout: layout(dataset, id),
        rows_go: match id {
            TableId::Rows(_) => dataset.retracts.rows,
            // Quarantines that keep their history note when a row has left.
            TableId::Quarantine(_) => dataset.retracts.quarantine,
        },
        ..TableSpec::new(table_key(plan, id), path, stored(schema, dataset, id))
    }
}

/// Opens the tables of one dataset that another process of the run has made and leaves to this one.
pub(super) fn adopt(
    plan: &Plan,
    lake: &Lake,
    index: usize,
    compare: &BTreeSet<TableId>,
    generation: u64,
    io: &Handle,
) -> Result<Vec<(TableId, (Table, String))>> {
    let Some(dataset) = plan.datasets.get(index) else { return Ok(Vec::new()) };
    let wanted =
        [(TableId::Rows(index), Some(&dataset.schema)), (TableId::Quarantine(index), dataset.quarantine.as_ref())];
    let mut tables = Vec::new();
    for (id, schema) in wanted {
        let Some(schema) = schema else { continue };
        let path = path(lake, dataset, id);
        let spec = spec((plan, dataset, id), schema, path.clone(), (generation, evolution(dataset, id, compare)));
        tables.push((id, (io.block_on(Table::open_or_create(lake, spec))?, path)));
    }
    Ok(tables)
}

impl Tables {
    /// Opens every table of the plan, and makes those that are not there.
    /// Of datasets that take no part only replay points are opened, as they are.
    pub(super) fn open(
        plan: &Plan,
        lake: &Lake,
        history: &History,
        (intent, compare): (&Intent, &BTreeSet<TableId>),
        generation: u64,
        io: &Handle,
    ) -> Result<Tables> {
        let mut tables = Tables { open: BTreeMap::new(), epochs: BTreeMap::new(), orphans: BTreeSet::new() };
        let mut misfits = Vec::new();
        for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.stored != Stored::No) {
            if !intent.takes_part(index) && !dataset.replay_point {
                continue;
            }
            let mut wanted = vec![(TableId::Rows(index), Some(&dataset.schema))];
            let quarantine = TableId::Quarantine(index);
            match &dataset.quarantine {
                Some(schema) => wanted.push((quarantine, Some(schema))),
                None if history.versions.contains_key(&table_key(plan, quarantine)) => wanted.push((quarantine, None)),
                None => {}
            }
            for (id, schema) in wanted {
                let path = path(lake, dataset, id);
                let table = match schema {
                    Some(schema) => {
                        let evolution = if intent.replaced.contains(&index) {
                            Evolution::Replace
                        } else {
                            evolution(dataset, id, compare)
                        };
                        let spec = spec((plan, dataset, id), schema, path.clone(), (generation, evolution));
                        match io.block_on(Table::open_or_create(lake, spec)) {
                            Ok(table) => Some(table),
                            Err(error) if error.fault() == Fault::User => {
                                misfits.push(error);
                                continue;
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    None => {
                        tables.orphans.insert(id);
                        let mut table = io.block_on(Table::open(lake, &path))?;
                        table.iter_mut().try_for_each(|table| table.claim(generation))?;
                        table
                    }
                };
                if let Some(table) = table {
                    tables.epochs.insert(id, table.epoch());
                    tables.open.insert(id, (table, path));
                }
            }
        }
        Error::all(misfits).map_or(Ok(tables), Err)
    }

    /// Shuts earlier runs out of every table.
    pub(super) fn fence(&mut self, generation: u64, io: &Handle) -> Result<()> {
        for (id, (table, _)) in &mut self.open {
            io.block_on(table.fence(generation))?;
            self.epochs.insert(*id, table.epoch());
        }
        Ok(())
    }

    /// A table that no committer has taken yet.
    pub(super) fn get(&self, id: TableId) -> Option<&Table> {
        self.open.get(&id).map(|(table, _)| table)
    }

    /// Hands all tables over.
    pub(super) fn take(&mut self) -> BTreeMap<TableId, (Table, String)> {
        std::mem::take(&mut self.open)
    }
}

/// Makes sure that the tables that are there can follow their definitions in place. Reads their logs, changes nothing.
///
/// # Errors
/// For each table that cannot: `CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE` (user), naming column and types.
pub(super) fn fit(plan: &Plan, lake: &Lake, io: &Handle) -> Result<()> {
    let mut misfits = Vec::new();
    for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.stored != Stored::No) {
        for (id, schema) in
            [(TableId::Rows(index), Some(&dataset.schema)), (TableId::Quarantine(index), dataset.quarantine.as_ref())]
        {
            let Some(schema) = schema else { continue };
            if let Some(table) = io.block_on(Table::open(lake, &path(lake, dataset, id)))? {
                misfits.extend(table.fits(&table_key(plan, id), &stored(schema, dataset, id)).err());
            }
        }
    }
    Error::all(misfits).map_or(Ok(()), Err)
}

/// An empty report for each stored dataset.
pub(super) fn describe(plan: &Plan, lake: &Lake, history: &History) -> Vec<TableReport> {
    let stored = plan.datasets.iter().enumerate().filter(|(_, d)| d.stored != Stored::No);
    stored
        .map(|(index, dataset)| TableReport {
            dataset: index,
            name: dataset.label(),
            kind: match (&dataset.stored, &dataset.feed, dataset.kind) {
                (Stored::Replay(_), ..) => "replay point",
                (_, Feed::Cdc(cdc), _) if cdc.scd == ScdType::One => "AUTO CDC SCD type 1",
                (_, Feed::Cdc(_), _) => "AUTO CDC SCD type 2",
                (_, _, DatasetKind::MaterializedView) => "materialized view",
                _ => "streaming table",
            },
            version: history.versions.get(&table_key(plan, TableId::Rows(index))).copied().unwrap_or(0),
            location: lake.display(&path(lake, dataset, TableId::Rows(index))),
            quarantine_location: dataset
                .quarantine
                .is_some()
                .then(|| lake.display(&path(lake, dataset, TableId::Quarantine(index)))),
            expectations: dataset
                .rules
                .iter()
                .map(|rule| RuleReport {
                    name: rule.name.clone(),
                    action: action_name(rule.action),
                    passed: 0,
                    failed: 0,
                    null: 0,
                    error: 0,
                })
                .collect(),
            ..TableReport::default()
        })
        .collect()
}
