//! Tables brought into the best order there is, on demand.

use serde::Serialize;
use tokio::runtime::Handle;

use super::definitions::table_key;
use super::lock::{LOCK_TIMEOUT, RunLock};
use super::outside::LakeOutside;
use super::tables::{layout, path};
use crate::dataflow::TableId;
use crate::error::Result;
use crate::lake::{Lake, Maintained, Table};
use crate::pipeline::Pipeline;
use crate::plan::{Stored, analyze};

/// What was done to the tables of a pipeline.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OptimizeReport {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Stored tables that are there, in the order of the graph, each quarantine after its dataset.
    pub tables: Vec<TableCare>,
}

/// What was done to one table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableCare {
    /// Full name of the dataset, followed by `quarantine` for its quarantine.
    pub name: String,
    /// Where the Delta table is.
    pub location: String,
    /// Delta version afterwards.
    pub version: i64,
    /// Rows that it holds.
    pub rows: u64,
    /// Data files before.
    pub files_before: usize,
    /// Data files afterwards.
    pub files: usize,
    /// Files that were rewritten.
    pub rewritten: usize,
    /// The log got a checkpoint.
    pub checkpoint: bool,
    /// Old files, vectors and log entries that were removed.
    pub removed: usize,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Rewrites small files, files with deletion vectors and files that are out of order, and writes log checkpoints; with
/// `vacuum` also removes what no readable version needs, by the tables' retention properties. Changes no row, and works on
/// tables one after the other, while no run owns the storage.
///
/// # Errors
/// Mistakes of the pipeline (user); `STORAGE_LOCKED` (external) while a run owns the storage; external errors of the storage. What was done to other tables stays.
pub fn optimize(pipeline: &Pipeline, vacuum: bool) -> Result<OptimizeReport> {
    optimize_in(pipeline, vacuum, None)
}

/// As [`optimize`], in a storage that is open already.
///
/// # Errors
/// As [`optimize`].
#[doc(hidden)]
pub fn optimize_in(pipeline: &Pipeline, vacuum: bool, lake: Option<Lake>) -> Result<OptimizeReport> {
    let io = super::io()?;
    let _context = io.enter();
    let lake = lake.map_or_else(|| io.block_on(Lake::existing(&pipeline.storage)), Ok)?;
    all(pipeline, vacuum, lake, io.handle())
}

fn all(pipeline: &Pipeline, vacuum: bool, lake: Lake, io: &Handle) -> Result<OptimizeReport> {
    let (lock, _, history) = RunLock::take(&lake, LOCK_TIMEOUT, io, &|line| tracing::warn!("{line}"))?;
    let outside =
        LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: false, renamed: history.renamed.clone() };
    let plan = analyze(pipeline, &outside)?;
    let mut report = OptimizeReport { pipeline: pipeline.name.clone(), tables: Vec::new() };
    for (index, dataset) in plan.datasets.iter().enumerate().filter(|(_, d)| d.stored != Stored::No) {
        for id in [TableId::Rows(index), TableId::Quarantine(index)] {
            let key = table_key(&plan, id);
            let ours = matches!(id, TableId::Rows(_)) || dataset.quarantine.is_some();
            if !ours && !history.versions.contains_key(&key) {
                continue;
            }
            let location = path(&lake, dataset, id);
            let Some(mut table) = io.block_on(Table::open(&lake, &location))? else { continue };
            table.claim(lock.generation)?;
            table.lay_out(layout(dataset, id));
            // A table that no complete epoch has changed is read as it was made.
            let keep = history.versions.get(&key).copied().unwrap_or(0);
            let files_before = table.files();
            let done = io.block_on(table.optimize(vacuum.then_some(keep))).map_err(|e| e.dataset(&key))?;
            let Maintained { rewritten, checkpoint, removed, removed_bytes, .. } = done;
            report.tables.push(TableCare {
                name: key,
                location: lake.display(&location),
                version: table.version(),
                rows: table.rows(),
                files_before,
                files: table.files(),
                rewritten,
                checkpoint,
                removed,
                removed_bytes,
            });
        }
    }
    Ok(report)
}
