//! A pipeline project in a folder of its own, run through the public API, and rows as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrow::array::AsArray;
use arrow::datatypes::Float64Type;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use arrow::record_batch::RecordBatch;
use chrono::{DateTime, Utc};
use deltalake::DeltaTable;
use futures::TryStreamExt;
use serde_json::{Map, Value};
use silverflow::error::{Error, Result};
use silverflow::lake::faults::Faults;
use silverflow::lake::{EpochLog, History, Lake, Table};
use silverflow::project;
use silverflow::runtime::{self, OptimizeReport, RunOptions, RunReport, VerifyReport};
use tempfile::TempDir;

/// A project folder with `spark-pipeline.yml`, `transformations/pipeline.sql` and `landing/`.
pub(crate) struct Project {
    folder: TempDir,
}

impl Project {
    /// A project with these definitions and nothing landed.
    pub(crate) fn new(sql: &str) -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        let spec = "name: test\nstorage: lakehouse\nlibraries:\n  - glob:\n      include: transformations/**\n";
        fs::write(project.spec(), spec).unwrap();
        fs::create_dir_all(project.path("landing")).unwrap();
        project.define(sql);
        project
    }

    /// A copy of a project of the repository, without what earlier runs left in it.
    pub(crate) fn copy_of(folder: &str) -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), project.folder.path());
        let _ = fs::remove_dir_all(project.path("lakehouse"));
        project
    }

    /// A path inside the project.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The project file.
    pub(crate) fn spec(&self) -> PathBuf {
        self.path("spark-pipeline.yml")
    }

    /// Replaces the definitions.
    pub(crate) fn define(&self, sql: &str) {
        fs::create_dir_all(self.path("transformations")).unwrap();
        fs::write(self.path("transformations/pipeline.sql"), sql).unwrap();
    }

    /// Writes `landing/<feed>/<file>.json`, one row a line.
    pub(crate) fn land(&self, feed: &str, file: &str, rows: &[Value]) {
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        self.land_text(feed, file, &text);
    }

    /// As [`land`](Self::land), for a feed that is being read: the file is there whole or not at all.
    pub(crate) fn land_whole(&self, feed: &str, file: &str, rows: &[Value]) {
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let folder = self.path("landing").join(feed);
        fs::create_dir_all(&folder).unwrap();
        let hidden = folder.join(format!(".{file}"));
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, folder.join(format!("{file}.json"))).unwrap();
    }

    /// Writes `landing/<feed>/<file>.json` as it is.
    pub(crate) fn land_text(&self, feed: &str, file: &str, text: &str) {
        let folder = self.path("landing").join(feed);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{file}.json")), text).unwrap();
    }

    /// Loads the definitions and runs everything that has landed.
    pub(crate) fn run(&self, workers: usize) -> Result<RunReport> {
        self.run_with(&RunOptions { workers, ..RunOptions::default() })
    }

    /// Runs with the wall clock fixed.
    pub(crate) fn run_at(&self, wall: &str, workers: usize) -> Result<RunReport> {
        let wall = wall.parse::<DateTime<Utc>>().unwrap();
        self.run_with(&RunOptions { workers, wall: Some(wall), ..RunOptions::default() })
    }

    /// Runs with these options.
    pub(crate) fn run_with(&self, options: &RunOptions) -> Result<RunReport> {
        runtime::run(&project::load(&self.spec())?.pipeline, options)
    }

    /// What the next run would compute anew, and why.
    pub(crate) fn recomputed(&self) -> Vec<(String, Vec<String>)> {
        let found = runtime::dry_run(&project::load(&self.spec()).unwrap().pipeline).unwrap();
        found.recompute.into_iter().map(|r| (r.name.replace("main.default.", ""), r.reasons)).collect()
    }

    /// Checks the definitions against what is there.
    pub(crate) fn dry_run(&self) -> Result<()> {
        runtime::dry_run(&project::load(&self.spec())?.pipeline).map(drop)
    }

    /// Compares every table with what its definition says.
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        let options = RunOptions { workers: 2, ..RunOptions::default() };
        runtime::verify(&project::load(&self.spec())?.pipeline, &options)
    }

    /// Fails unless every table is what its definition says.
    #[track_caller]
    pub(crate) fn assert_clean(&self, context: &str) {
        let report = self.verify().unwrap_or_else(|e| panic!("{context}: {e}"));
        let wrong: Vec<_> = report.tables.iter().filter(|table| !table.clean()).collect();
        assert!(report.clean && wrong.is_empty(), "{context}: {wrong:#?}");
    }

    /// The storage, with someone who watches each step and can let it fail.
    pub(crate) fn watched(&self, faults: Arc<dyn Faults>) -> Lake {
        let storage = self.path("lakehouse");
        io().block_on(Lake::open_watched(storage.to_str().unwrap(), faults)).unwrap()
    }

    /// What the epoch log says.
    pub(crate) fn history(&self) -> History {
        let storage = self.path("lakehouse");
        history(&io().block_on(Lake::open(storage.to_str().unwrap())).unwrap()).unwrap()
    }

    /// The newest rows of the table in a folder of the storage, without the epochs in which they arrived.
    pub(crate) fn stored(&self, table: &str) -> Vec<Value> {
        self.try_stored(table).unwrap_or_else(|e| panic!("{table}: {e}"))
    }

    /// As [`stored`](Self::stored), if the table can be read.
    pub(crate) fn try_stored(&self, table: &str) -> Result<Vec<Value>> {
        let storage = self.path("lakehouse");
        let batches = io().block_on(async {
            let lake = Lake::open(storage.to_str().unwrap()).await?;
            match Table::open(&lake, table).await? {
                Some(table) => table.scan().try_collect::<Vec<_>>().await,
                None => Err(Error::external("TABLE_NOT_READABLE", format!("there is no table {table}"))),
            }
        })?;
        let mut rows = json_rows(&batches);
        rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("_epoch")));
        Ok(sorted(rows))
    }

    /// A table and an epoch that stands in its log twice or after a later one, if there is any.
    pub(crate) fn epochs_twice(&self) -> Option<String> {
        for (table, _) in self.versions() {
            let mut last: BTreeMap<String, i64> = BTreeMap::new();
            let log = self.path("lakehouse").join(&table).join("_delta_log");
            let mut entries: Vec<PathBuf> = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).collect();
            entries.sort();
            for entry in entries.iter().filter(|entry| entry.extension().is_some_and(|e| e == "json")) {
                for action in fs::read_to_string(entry).unwrap().lines() {
                    let action: Value = serde_json::from_str(action).unwrap();
                    let Some(transaction) = action.get("txn") else { continue };
                    let version = transaction["version"].as_i64().unwrap();
                    let before = last.insert(transaction["appId"].as_str().unwrap().to_owned(), version);
                    if before.is_some_and(|before| before >= version) {
                        return Some(format!("{version} in {}", entry.display()));
                    }
                }
            }
        }
        None
    }

    /// Brings the files of all tables into order.
    pub(crate) fn optimize(&self, vacuum: bool) -> OptimizeReport {
        runtime::optimize(&project::load(&self.spec()).unwrap().pipeline, vacuum).unwrap()
    }

    /// Brings all tables into order, in a storage that is open.
    pub(crate) fn optimize_in(&self, lake: Lake, vacuum: bool) -> OptimizeReport {
        runtime::optimize_in(&project::load(&self.spec()).unwrap().pipeline, vacuum, Some(lake)).unwrap()
    }

    /// Takes a checkpoint at the end of every epoch.
    pub(crate) fn take_checkpoints(&self) {
        let spec = fs::read_to_string(self.spec()).unwrap();
        let always = "configuration:\n  silverflow.checkpoint.rows: '0'\n  silverflow.checkpoint.seconds: '0'\n";
        fs::write(self.spec(), format!("{spec}{always}")).unwrap();
    }

    /// Does something to a table by another library.
    pub(crate) fn foreign(&self, table: &str, work: impl AsyncFnOnce(DeltaTable)) {
        let folder = self.path(format!("lakehouse/main/default/{table}"));
        let url = url::Url::from_directory_path(folder).unwrap();
        let io = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        io.block_on(async { work(DeltaTable::try_from_url(url).await.unwrap()).await });
    }

    /// The answer to a query.
    pub(crate) fn query(&self, sql: &str) -> Result<Vec<Value>> {
        Ok(json_rows(&runtime::query(&project::load(&self.spec())?.pipeline, sql)?.batches))
    }

    /// The answer to a query as of an epoch.
    pub(crate) fn query_as_of(&self, sql: &str, epoch: u64) -> Result<Vec<Value>> {
        let pipeline = project::load(&self.spec())?.pipeline;
        Ok(sorted(json_rows(&runtime::query_as_of(&pipeline, sql, epoch)?.batches)))
    }

    /// The answer to a query that works, in a fixed order.
    pub(crate) fn rows(&self, sql: &str) -> Vec<Value> {
        sorted(self.query(sql).unwrap_or_else(|e| panic!("{sql}: {e}")))
    }

    /// What tables hold, each row with how often; one that is not there holds nothing.
    pub(crate) fn held(&self, tables: &[&'static str]) -> BTreeMap<&'static str, BTreeMap<String, i64>> {
        let mut held = BTreeMap::new();
        for table in tables {
            let rows: &mut BTreeMap<String, i64> = held.entry(*table).or_default();
            for row in self.query(&format!("SELECT * FROM {table}")).unwrap_or_default() {
                *rows.entry(row.to_string()).or_default() += 1;
            }
        }
        held
    }

    /// That a run of one epoch has written and deleted just the rows in which tables differ from what they held before it.
    pub(crate) fn assert_touched(
        &self,
        report: &RunReport,
        before: &BTreeMap<&'static str, BTreeMap<String, i64>>,
        context: &str,
    ) {
        assert!(report.epochs.len() <= 1, "{context}: several epochs");
        let tables: Vec<&'static str> = before.keys().copied().collect();
        for (table, after) in self.held(&tables) {
            let more = |a: &BTreeMap<String, i64>, b: &BTreeMap<String, i64>| {
                a.iter().map(|(row, n)| (n - b.get(row).copied().unwrap_or(0)).max(0)).sum::<i64>() as u64
            };
            let told = report.tables.iter().find(|t| t.name.ends_with(&format!(".{table}")));
            let told = told.map_or((0, 0), |t| (t.inserted, t.deleted));
            assert_eq!(told, (more(&after, &before[table]), more(&before[table], &after)), "{context}: {table}");
        }
    }

    /// The Delta version of every table, by its path below the storage folder.
    pub(crate) fn versions(&self) -> BTreeMap<String, usize> {
        let mut versions = BTreeMap::new();
        let storage = self.path("lakehouse");
        let mut folders = vec![storage.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
                if entry.ends_with("_delta_log") {
                    let commits = fs::read_dir(&entry).unwrap().map(|f| f.unwrap().path());
                    let commits = commits.filter(|f| f.extension().is_some_and(|e| e == "json")).count();
                    let name = folder.strip_prefix(&storage).unwrap().to_string_lossy().into_owned();
                    versions.insert(name, commits);
                } else if entry.is_dir() {
                    folders.push(entry);
                }
            }
        }
        versions
    }
}

/// Where the tests' own input and output runs.
fn io() -> &'static tokio::runtime::Runtime {
    static IO: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    IO.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap())
}

/// What the epoch log of a storage says.
pub(crate) fn history(lake: &Lake) -> Result<History> {
    io().block_on(EpochLog::load(lake)).map(|(_, history)| history)
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_folder(&entry, &target);
        } else {
            fs::copy(&entry, &target).unwrap();
        }
    }
}

/// Batches as JSON objects with explicit nulls. A number that JSON does not have stands as its name.
pub(crate) fn json_rows(batches: &[RecordBatch]) -> Vec<Value> {
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut first = 0;
    for batch in batches {
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let Some(numbers) = column.as_primitive_opt::<Float64Type>() else { continue };
            for (i, number) in numbers.iter().enumerate().filter(|(_, n)| n.is_some_and(|n| !n.is_finite())) {
                rows[first + i][field.name()] = Value::String(number.unwrap().to_string());
            }
        }
        first += batch.num_rows();
    }
    rows
}

/// A value as text that doesn't depend on the order of the fields of objects.
fn text(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name:?}: {}", text(value))).collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// Rows in the order of their text.
pub(crate) fn sorted(mut rows: Vec<Value>) -> Vec<Value> {
    rows.sort_by_key(text);
    rows
}

/// The given columns of each row, absent ones as null, in a fixed order of rows and columns.
pub(crate) fn project(rows: &[Value], columns: &[String]) -> Vec<Value> {
    let pick = |row: &Value| {
        let cell = |column: &String| (column.clone(), row.get(column).cloned().unwrap_or(Value::Null));
        Value::Object(columns.iter().map(cell).collect::<Map<String, Value>>())
    };
    sorted(rows.iter().map(pick).collect())
}

/// Fails with both sides and what differs, unless the rows are equal as multisets.
#[track_caller]
pub(crate) fn assert_rows(context: &str, actual: &[Value], expected: &[Value]) {
    if let Some(difference) = difference(actual, expected) {
        panic!("{context}: {difference}");
    }
}

/// What differs between two multisets of rows, or nothing.
pub(crate) fn difference(actual: &[Value], expected: &[Value]) -> Option<String> {
    let mut counts = BTreeMap::new();
    for (rows, sign) in [(actual, 1i64), (expected, -1)] {
        for row in rows {
            *counts.entry(text(row)).or_insert(0) += sign;
        }
    }
    let lines: Vec<_> = counts.iter().filter(|(_, n)| **n != 0).collect();
    let show = |(row, n): &(&String, &i64)| {
        format!("\n  {} {}x {row}", if **n > 0 { "too much:" } else { "missing: " }, n.abs())
    };
    (!lines.is_empty()).then(|| lines.iter().take(20).map(show).collect())
}

/// A small seeded source of randomness, the same on every machine.
pub(crate) struct Dice(u64);

impl Dice {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // Marsaglia's xorshift with a multiplier; the high bits are the good ones.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)) * limit as u128) >> 64) as usize
    }

    /// True once in `n`.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Any order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
