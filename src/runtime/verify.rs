//! Is every table what its definition says? Recomputes all of them from the replay points and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use crossbeam_channel::bounded;
use futures::StreamExt;
use serde::Serialize;
use tokio::runtime::Handle;

use super::RunOptions;
use super::audit::present;
use super::columns::to_stored;
use super::computed::Computed;
use super::definitions::{start, table_key};
use super::hydrate::{Pace, hydrate};
use super::outside::LakeOutside;
use super::tables::{changed, path};
use super::worker::Workers;
use crate::dataflow::{Batch, Codec, SHOWN_ROWS, Start, TableId, normalise, row_json};
use crate::error::{Error, Fault, Result};
use crate::lake::{Comparison, EpochLog, History, Lake, Mismatch, Scan, Table};
use crate::pipeline::{EPOCH_COLUMN, LEFT_COLUMN, Pipeline, START_COLUMN, ScdType};
use crate::plan::{DatasetPlan, Feed, Plan, Stored, analyze};

/// How the tables compare with their definitions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Where tables and state are.
    pub storage: String,
    /// The last complete epoch, as of which the tables are compared; absent before the first one.
    pub epoch: Option<u64>,
    /// Every table is what its definition says.
    pub clean: bool,
    /// Stored tables in the order of the graph, each quarantine after its dataset.
    pub tables: Vec<TableVerdict>,
}

/// How one table compares with its definition.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableVerdict {
    /// Full name of the dataset, followed by `quarantine` for its quarantine.
    pub name: String,
    /// Where the Delta table is.
    pub location: String,
    /// Rows that the table holds.
    pub rows: u64,
    /// Rows that should be there and are not.
    pub missing: u64,
    /// Rows that are there and should not be.
    pub extra: u64,
    /// Rows that are there with other values: the same key, or key and start, on both sides. AUTO CDC targets only; not
    /// counted in `missing` and `extra`.
    pub different: u64,
    /// The definition is not the one under which the table was last set; the next run recomputes it.
    pub redefined: bool,
    /// What is wrong beside the rows.
    pub problems: Vec<String>,
    /// Some of the rows, as JSON, after `missing: ` or `extra: `.
    pub examples: Vec<String>,
}

impl TableVerdict {
    /// The table is what its definition says.
    pub fn clean(&self) -> bool {
        self.missing + self.extra + self.different == 0 && self.problems.is_empty()
    }
}

/// Recomputes every table from the replay points, as of the last complete epoch, and compares. Writes nothing and needs no
/// lock: a run that goes on beside it does not show.
///
/// Costs a whole replay: every replay point is read twice, every other table once, and their rows are held in memory.
///
/// # Errors
/// The mistakes of the pipeline (user); tables that cannot be read (external). A difference is no error.
pub fn verify(pipeline: &Pipeline, options: &RunOptions) -> Result<VerifyReport> {
    let io = super::io()?;
    // Scans start tasks of the runtime.
    let _context = io.enter();
    let io = io.handle();
    let lake = io.block_on(Lake::existing(&pipeline.storage))?;
    let (_, history) = io.block_on(EpochLog::load(&lake))?;
    let outside =
        LakeOutside { lake: Some(lake.clone()), io: io.clone(), remember: false, renamed: history.renamed.clone() };
    let plan = Arc::new(analyze(pipeline, &outside)?);
    let mut report = VerifyReport {
        pipeline: pipeline.name.clone(),
        storage: lake.url().to_string(),
        epoch: history.last_complete,
        clean: true,
        tables: Vec::new(),
    };
    if history.last_complete.is_none() {
        return Ok(report);
    }
    let changed = start(&plan, &history)?;
    let mut subjects = Subjects::open(&plan, &history, &lake, io)?;
    let everything = Start {
        compare: subjects.all.keys().copied().collect(),
        rejudge: plan
            .datasets
            .iter()
            .enumerate()
            .filter(|(_, d)| d.replay_point && !d.decided && !d.rules.is_empty())
            .map(|(index, _)| index)
            .collect(),
        ..changed.clone()
    };
    subjects.check_epochs(&history, io)?;
    let (events_out, events) = bounded(256);
    let workers = Workers::start(&plan, &everything, options, &events_out, None)?;
    let mut computed = Computed::default();
    let outcome = subjects.recompute(&everything, &history, &workers, io).and_then(|()| {
        let mail = workers.mail();
        mail.end(everything.hydrated);
        computed.collect(&events, mail.workers(), everything.hydrated)
    });
    let ended = workers.stop();
    outcome?;
    ended?;
    for fault in std::mem::take(&mut computed.faults) {
        if fault.fault == Fault::Internal {
            return Err(fault.into_error());
        }
        subjects.blame(*fault);
    }
    for (id, mut subject) in std::mem::take(&mut subjects.all) {
        subject.verdict.redefined = changed.compare.contains(&id);
        if subject.comparable {
            subject.compare(computed.changes.remove(&id).unwrap_or_default(), io)?;
        }
        report.clean &= subject.verdict.clean();
        report.tables.push(subject.verdict);
    }
    Ok(report)
}

/// The tables of a plan, with what is found out about them.
struct Subjects<'a> {
    plan: &'a Plan,
    all: BTreeMap<TableId, Subject<'a>>,
}

struct Subject<'a> {
    dataset: &'a DatasetPlan,
    id: TableId,
    table: Option<Table>,
    /// The version that is compared; the newest if absent.
    version: Option<i64>,
    /// What it is derived from is there.
    comparable: bool,
    verdict: TableVerdict,
}

impl<'a> Subjects<'a> {
    fn open(plan: &'a Plan, history: &History, lake: &Lake, io: &Handle) -> Result<Subjects<'a>> {
        let mut all = BTreeMap::new();
        let mut lost: BTreeMap<usize, String> = BTreeMap::new();
        for (index, dataset) in plan.datasets.iter().enumerate() {
            // What hangs on a replay point that is gone cannot be recomputed.
            if let Some(from) = dataset.upstream.iter().find_map(|u| lost.get(u)).cloned() {
                lost.insert(index, from);
            }
            if dataset.stored == Stored::No {
                continue;
            }
            for id in [TableId::Rows(index), TableId::Quarantine(index)] {
                let name = table_key(plan, id);
                let logged = history.versions.get(&name).copied();
                if matches!(id, TableId::Quarantine(_)) && dataset.quarantine.is_none() && logged.is_none() {
                    continue;
                }
                let location = path(lake, dataset, id);
                let mut verdict =
                    TableVerdict { name: name.clone(), location: lake.display(&location), ..TableVerdict::default() };
                let table = io.block_on(Table::open(lake, &location)).map_err(|e| e.dataset(&name))?;
                if table.is_none() && logged.is_some() {
                    verdict.problems.push("the table is gone".to_owned());
                    if dataset.replay_point {
                        lost.insert(index, name);
                    }
                }
                if let Some(table) = &table
                    && logged.is_some_and(|logged| table.version() < logged)
                {
                    verdict.problems.push(format!(
                        "the table is at version {}, which is before the one of the last complete epoch, {}",
                        table.version(),
                        logged.unwrap_or_default()
                    ));
                }
                // A table that is ahead has part of an epoch that is not complete.
                let ahead = table.as_ref().is_some_and(|t| t.epoch() > history.last_complete);
                let version = ahead.then(|| logged.unwrap_or(0));
                all.insert(id, Subject { dataset, id, table, version, comparable: true, verdict });
            }
        }
        for subject in all.values_mut() {
            let (TableId::Rows(index) | TableId::Quarantine(index)) = subject.id;
            if let Some(from) = lost.get(&index).filter(|from| **from != subject.verdict.name) {
                subject.verdict.problems.push(format!("it cannot be recomputed, since {from} is gone"));
            }
            subject.comparable = !lost.contains_key(&index);
        }
        Ok(Subjects { plan, all })
    }

    /// Every row of a replay point has arrived in an epoch that the log knows.
    fn check_epochs(&mut self, history: &History, io: &Handle) -> Result<()> {
        for subject in self.all.values_mut().filter(|s| s.dataset.replay_point) {
            let Some(table) = &subject.table else { continue };
            let columns = Some(vec![EPOCH_COLUMN.to_owned()]);
            let mut rows = io.block_on(table.scan_with(Scan { columns, version: subject.version, share: None }))?;
            let mut unknown: BTreeMap<Option<i64>, u64> = BTreeMap::new();
            while let Some(batch) = io.block_on(rows.next()) {
                let batch = batch?;
                let epochs = batch.column(0);
                let epochs = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(epochs);
                let known = |epoch: i64| u64::try_from(epoch).is_ok_and(|e| history.walls.contains_key(&e));
                for epoch in epochs.iter().filter(|epoch| !epoch.is_some_and(known)) {
                    *unknown.entry(epoch).or_default() += 1;
                }
            }
            subject.verdict.problems.extend(unknown.into_iter().map(|(epoch, rows)| match epoch {
                Some(epoch) => format!("{rows} rows have arrived in epoch {epoch}, which the epoch log does not know"),
                None => format!("{rows} rows do not say in which epoch they arrived"),
            }));
        }
        Ok(())
    }

    /// Lets the dataflow compute what every table should hold.
    fn recompute(&self, start: &Start, history: &History, workers: &Workers, io: &Handle) -> Result<()> {
        let table = |id| self.all.get(&id).filter(|s| s.comparable).and_then(|s| s.table.as_ref());
        let mut pace = Pace::at_once(start.hydrated);
        hydrate(self.plan, start, history, table, None, (&workers.mail(), None, &mut pace), io).map(drop)
    }

    fn blame(&mut self, fault: crate::dataflow::RowFault) {
        let at = self.plan.datasets.iter().position(|d| d.label() == fault.dataset);
        let Some(subject) = at.and_then(|index| self.all.get_mut(&TableId::Rows(index))) else { return };
        subject.verdict.problems.push(format!("[{}] {} ({} rows)", fault.code, fault.message, fault.count));
        subject.verdict.examples.extend(fault.rows.into_iter().map(|row| format!("faulty: {row}")));
    }
}

impl Subject<'_> {
    fn compare(&mut self, changes: Vec<Batch>, io: &Handle) -> Result<()> {
        let name = self.verdict.name.clone();
        let plain = match self.id {
            TableId::Rows(_) => Some(&self.dataset.schema),
            TableId::Quarantine(_) => self.dataset.quarantine.as_ref(),
        };
        let defined = plain.map(|schema| changed(schema, self.dataset));
        // When a row entered a quarantine and when it left it does not follow from the definitions.
        let quarantine = matches!(self.id, TableId::Quarantine(_)) && plain.is_some();
        let own = |name: &str| name == LEFT_COLUMN || name == EPOCH_COLUMN && !self.dataset.replay_point;
        let without = |schema: &SchemaRef| -> Vec<usize> {
            let fields = schema.fields().iter().enumerate();
            fields.filter(|(_, f)| !(quarantine && own(f.name()))).map(|(i, _)| i).collect()
        };
        let held = self.table.as_ref().map(|table| table.schema().project(&without(table.schema())).map(Arc::new));
        let held = held.transpose().map_err(|e| Error::internal("columns of a quarantine").caused_by(e))?;
        let Some(columns) = defined.as_ref().or(held.as_ref()) else { return Ok(()) };
        // A column that the definition no longer has should be empty.
        let mut comparison = Comparison::new(&widened(columns, held.as_ref())).map_err(|e| e.dataset(&name))?;
        let wrong = |e| Error::internal("recomputed rows do not fit the table").caused_by(e).dataset(&name);
        if let Some(schema) = &defined {
            for batch in changes {
                let (coming, going) =
                    to_stored(&batch, schema, self.dataset.replay_point).and_then(Batch::into_parts).map_err(wrong)?;
                comparison.want(&coming)?;
                comparison.withdraw(&going)?;
            }
        }
        if let Some(table) = &self.table {
            let mut rows = io.block_on(table.scan_with(Scan { version: self.version, ..Scan::default() }))?;
            while let Some(batch) = io.block_on(rows.next()) {
                let mut batch = batch?;
                if quarantine {
                    batch = present(&batch).and_then(|b| b.project(&without(&b.schema()))).map_err(wrong)?;
                }
                self.verdict.rows += batch.num_rows() as u64;
                if let Err(error) = comparison.found(&batch) {
                    self.verdict.problems.push(format!("the definition has other columns: {}", error.message()));
                    return Ok(());
                }
            }
        }
        let mismatch = comparison.finish().map_err(|e| e.dataset(&name))?;
        self.verdict.different = self.different(&mismatch).map_err(wrong)?;
        self.verdict.missing = (mismatch.missing() as u64).saturating_sub(self.verdict.different);
        self.verdict.extra = (mismatch.extra() as u64).saturating_sub(self.verdict.different);
        for (side, batches) in [("missing", &mismatch.missing), ("extra", &mismatch.extra)] {
            let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| row_json(batch, row)));
            self.verdict.examples.extend(rows.take(SHOWN_ROWS).map(|row| format!("{side}: {row}")));
        }
        Ok(())
    }

    /// Keys that are on both sides.
    fn different(&self, mismatch: &Mismatch) -> Result<u64, arrow::error::ArrowError> {
        let (Feed::Cdc(cdc), TableId::Rows(_)) = (&self.dataset.feed, self.id) else { return Ok(0) };
        let mut names: BTreeSet<&str> =
            cdc.keys.iter().filter_map(|k| cdc.layout.fields().get(*k)).map(|f| f.name().as_str()).collect();
        if cdc.scd == ScdType::Two {
            names.insert(START_COLUMN);
        }
        let keys = |batches: &[RecordBatch]| {
            let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for batch in batches {
                let columns = names.iter().filter_map(|n| batch.column_by_name(n).cloned()).collect::<Vec<_>>();
                let codec = Codec::new(columns.iter().map(|c| c.data_type()))?;
                for key in codec.encode(&normalise(&columns)?)? {
                    *counts.entry(key.to_vec()).or_default() += 1;
                }
            }
            Ok::<_, arrow::error::ArrowError>(counts)
        };
        let (missing, extra) = (keys(&mismatch.missing)?, keys(&mismatch.extra)?);
        Ok(missing.iter().map(|(key, n)| extra.get(key).map_or(0, |m| *n.min(m))).sum())
    }
}

/// `columns`, and those that only `held` has.
fn widened(columns: &SchemaRef, held: Option<&SchemaRef>) -> SchemaRef {
    let mut fields: Vec<FieldRef> = columns.fields().iter().cloned().collect();
    for field in held.iter().flat_map(|schema| schema.fields()) {
        if crate::lake::types::position(columns.fields(), field.name()).is_none() {
            fields.push(Arc::clone(field));
        }
    }
    Arc::new(Schema::new(fields))
}
