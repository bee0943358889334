//! What a full refresh would lose: rows that a table holds and the outside no longer gives.

use futures::StreamExt;

use super::computed::Computed;
use super::definitions::{keeper, source_key, table_key};
use super::supervisor::Supervisor;
use super::tables::path;
use crate::dataflow::{SHOWN_ROWS, TableId, relabel, row_json};
use crate::error::{Error, Result};
use crate::lake::{Comparison, Table};
use crate::plan::DatasetPlan;

/// Parts of a definition without which rows cannot be told to be the same.
const SHAPE: [&str; 2] = ["columns", "query"];

impl Supervisor {
    /// Stops an epoch that replaces what tables hold, if rows would be lost that way. Nothing is committed yet.
    ///
    /// Where the table's query or columns have changed, rows are counted; else they are compared.
    ///
    /// # Errors
    /// `LOSS_NOT_ACCEPTED` (user), for each table with how many rows would be lost.
    pub(super) fn refuse_loss(&self, computed: &Computed) -> Result<()> {
        if self.intent.accept_loss {
            return Ok(());
        }
        let mut errors = Vec::new();
        for source in &self.intent.forgotten {
            // A source whose rows come and go is followed in any case.
            let kept = self.plan.sources.get(*source).is_some_and(|s| !s.kind.retracts());
            let Some(index) = keeper(&self.plan, *source).filter(|_| kept) else { continue };
            let Some(dataset) = self.plan.datasets.get(index) else { continue };
            errors.extend(self.loss(index, dataset, *source, computed)?);
        }
        Error::all(errors).map_or(Ok(()), Err)
    }

    /// Where what a source has read is now, by the name in the log and the place in the lake, and whether that is another
    /// table than the one that will store it.
    fn stores(&self, keeper: usize, source: usize) -> (Vec<(String, String)>, bool) {
        let tables = |index: usize, dataset: &DatasetPlan| {
            let ids = [TableId::Rows(index), TableId::Quarantine(index)];
            ids.map(|id| (table_key(&self.plan, id), path(&self.lake, dataset, id))).to_vec()
        };
        let own = || self.plan.datasets.get(keeper).map(|d| tables(keeper, d)).unwrap_or_default();
        let label = self.plan.datasets.get(keeper).map(DatasetPlan::label);
        let Some(about) = self.plan.sources.get(source) else { return (own(), false) };
        match self.log.history().fingerprints.get(&source_key(&about.id)).filter(|known| label.as_ref() != Some(*known))
        {
            None => (own(), false),
            Some(known) => {
                let dataset = self.plan.datasets.iter().enumerate().find(|(_, d)| d.label() == *known);
                let private = || vec![(known.clone(), self.lake.replay_location(&about.id))];
                (dataset.map_or_else(private, |(index, dataset)| tables(index, dataset)), true)
            }
        }
    }

    fn loss(&self, index: usize, dataset: &DatasetPlan, source: usize, computed: &Computed) -> Result<Option<Error>> {
        let label = dataset.label();
        let (stores, moved) = self.stores(index, source);
        let before = self.log.history().parts.get(&label).filter(|_| !moved);
        let same = before.is_some_and(|parts| SHAPE.iter().all(|part| parts.get(*part) == dataset.parts.get(*part)));
        let wrong = |e| Error::internal("rows do not fit their table").caused_by(e).dataset(&label);
        let mut comparison = Comparison::new(&dataset.schema)?;
        let (mut held, mut given) = (0u64, 0u64);
        for (key, location) in stores {
            let Some(version) = self.versions.get(&key) else { continue };
            let Some(table) = self.io.block_on(Table::open(&self.lake, &location))? else { continue };
            let mut rows = self.io.block_on(table.scan_at(*version))?;
            while let Some(batch) = self.io.block_on(rows.next()) {
                let batch = batch?;
                held += batch.num_rows() as u64;
                if same {
                    comparison.want(&batch)?;
                }
            }
        }
        for table in [TableId::Rows(index), TableId::Quarantine(index)] {
            for batch in computed.changes.get(&table).into_iter().flatten() {
                given += u64::try_from(batch.coming() - batch.going()).unwrap_or(0);
                if same {
                    // The wall that the batch may carry is no column of the table.
                    let columns = batch.rows.columns().iter().take(dataset.schema.fields().len()).cloned().collect();
                    let rows = relabel(&dataset.schema, columns, batch.rows.num_rows()).map_err(wrong)?;
                    let (coming, going) = batch.with_rows(rows).into_parts().map_err(wrong)?;
                    comparison.found(&coming)?;
                    comparison.want(&going)?;
                }
            }
        }
        let missing = if same { comparison.finish()?.missing } else { Vec::new() };
        let lost = if same { missing.iter().map(|b| b.num_rows() as u64).sum() } else { held.saturating_sub(given) };
        if lost == 0 {
            return Ok(None);
        }
        let rows = missing.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| row_json(batch, row)));
        Ok(Some(
            Error::user(
                "LOSS_NOT_ACCEPTED",
                format!("{label} holds {held} rows, and {lost} of them are outside no more: they would be lost"),
            )
            .details(rows.take(SHOWN_ROWS).map(|row| format!("row: {row}")))
            .help("bring the source back, or give them up with --accept-loss")
            .dataset(label),
        ))
    }
}
