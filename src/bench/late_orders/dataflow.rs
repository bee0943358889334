//! The stage `dataflow`: the definitions, computed in memory.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use arrow::row::{RowConverter, SortField};

use super::feed::Arrival;
use super::{DEFINITIONS, Measured, Settings};
use crate::dataflow::Batch;
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use crate::runtime::{Memory, TableChange};

pub(super) fn run(settings: &Settings, feed: &[Arrival], progress: &mut dyn FnMut(u64, u64)) -> Result<Measured> {
    let pipeline = Pipeline::builder("late orders")
        .storage("unused")
        .configuration("landing", "/landing")
        .sql(DEFINITIONS)
        .build()?
        .pipeline;
    let mut memory = Memory::start(&pipeline, settings.workers)?;
    let names: Vec<&str> = memory.sources().collect();
    let place = |name: &str| {
        names
            .iter()
            .position(|source| source.contains(name))
            .ok_or_else(|| Error::internal(format!("the pipeline has no source {name}")))
    };
    let (items, orders) = (place("items_bronze")?, place("orders_bronze")?);
    let wall = chrono::DateTime::UNIX_EPOCH;
    let mut measured = Measured::default();
    for (number, arrival) in feed.iter().enumerate() {
        let rows = [(items, arrival.item_rows()?), (orders, arrival.order_rows()?)];
        let start = Instant::now();
        let tables = memory.epoch(wall, &rows)?;
        let took = start.elapsed();
        let touched = tables.values().flatten().map(TableChange::rows).sum();
        measured.epoch(took, touched, Some(net(&tables)?));
        progress(number as u64 + 1, feed.len() as u64);
    }
    memory.stop()?;
    Ok(measured)
}

/// Rows by which the tables differ after the epoch from before.
fn net(tables: &BTreeMap<String, Vec<TableChange>>) -> Result<u64> {
    let wrong = |e| Error::internal("rows of the pipeline cannot be compared").caused_by(e);
    let mut changed = 0;
    for change in tables.values().flatten() {
        let Some(first) = change.batches.first() else { continue };
        let fields = first.rows.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
        let converter = RowConverter::new(fields).map_err(wrong)?;
        let mut counts: HashMap<Box<[u8]>, i64> = HashMap::new();
        for batch in &change.batches {
            let rows = converter.convert_columns(batch.rows.columns()).map_err(wrong)?;
            for (row, diff) in rows.iter().zip(Batch::each_diff(batch)) {
                *counts.entry(row.as_ref().into()).or_default() += diff;
            }
        }
        changed += counts.values().map(|diff| diff.unsigned_abs()).sum::<u64>();
    }
    Ok(changed)
}
