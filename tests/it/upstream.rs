//! Delta tables that others write as live sources: whatever delta-rs does to them, what is read equals a model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, Int64Array, RecordBatch, StringArray};
use datafusion::prelude::SessionContext;
use deltalake::DeltaTable;
use deltalake::operations::write::SchemaMode;
use deltalake::protocol::SaveMode;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use url::Url;

use crate::support::{Dice, Project, assert_rows};

/// Rows by id.
type Model = BTreeMap<i64, String>;

/// A table that delta-rs writes, and what its rows are.
struct Upstream {
    folder: PathBuf,
    io: Runtime,
    rows: Model,
    /// Its rows at each version that something was done.
    versions: BTreeMap<i64, Model>,
    partitioned: bool,
    feed: bool,
}

fn batch(rows: &Model) -> RecordBatch {
    let ids: Vec<i64> = rows.keys().copied().collect();
    let parts = ids.iter().map(|id| id % 2).collect::<Vec<_>>();
    let columns = [
        ("id", Arc::new(Int64Array::from(ids)) as Arc<dyn Array>),
        ("part", Arc::new(Int64Array::from(parts)) as _),
        ("v", Arc::new(StringArray::from(rows.values().cloned().collect::<Vec<_>>())) as _),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn model(rows: &[(i64, &str)]) -> Model {
    rows.iter().map(|(id, v)| (*id, (*v).to_owned())).collect()
}

/// Makes a table of one row in a folder.
pub(crate) fn make(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let url = Url::from_directory_path(folder).unwrap();
    let io = Runtime::new().unwrap();
    let table = io.block_on(DeltaTable::try_from_url(url)).unwrap();
    io.block_on(table.write(vec![batch(&model(&[(1, "a")]))]).into_future()).unwrap();
}

impl Upstream {
    fn new(project: &Project, partitioned: bool, feed: bool, rows: Model) -> Upstream {
        let folder = project.path("up stream");
        fs::create_dir_all(&folder).unwrap();
        let spec = fs::read_to_string(project.spec()).unwrap();
        if !spec.contains("configuration") {
            let line = format!("configuration:\n  silverflow.table.up: {}\n", folder.display());
            fs::write(project.spec(), format!("{spec}{line}")).unwrap();
        }
        let io = Runtime::new().unwrap();
        let mut upstream = Upstream { folder, io, rows: Model::new(), versions: BTreeMap::new(), partitioned, feed };
        upstream.append(rows);
        upstream
    }

    fn table(&self) -> DeltaTable {
        let url = Url::from_directory_path(&self.folder).unwrap();
        self.io.block_on(DeltaTable::try_from_url(url)).unwrap()
    }

    fn version(&self) -> i64 {
        self.table().version().unwrap().cast_signed()
    }

    fn done(&mut self) {
        self.versions.insert(self.version(), self.rows.clone());
    }

    fn append(&mut self, rows: Model) {
        let mut write = self.table().write(vec![batch(&rows)]);
        if self.versions.is_empty() {
            let feed = self.feed.to_string();
            write = write.with_configuration([("delta.enableChangeDataFeed", Some(feed))]);
            if self.partitioned {
                write = write.with_partition_columns(["part"]);
            }
        }
        self.io.block_on(write.into_future()).unwrap();
        self.rows.extend(rows);
        self.done();
    }

    fn overwrite(&mut self, rows: Model) {
        let write = self.table().write(vec![batch(&rows)]).with_save_mode(SaveMode::Overwrite);
        self.io.block_on(write.into_future()).unwrap();
        self.rows = rows;
        self.done();
    }

    fn delete(&mut self, condition: &str, gone: impl Fn(i64) -> bool) {
        self.io.block_on(self.table().delete().with_predicate(condition).into_future()).unwrap();
        self.rows.retain(|id, _| !gone(*id));
        self.done();
    }

    fn update(&mut self, condition: &str, hit: impl Fn(i64) -> bool, suffix: &str) {
        let new = format!("concat(v, '{suffix}')");
        let update = self.table().update().with_predicate(condition).with_update("v", new);
        self.io.block_on(update.into_future()).unwrap();
        self.rows.iter_mut().filter(|(id, _)| hit(**id)).for_each(|(_, v)| v.push_str(suffix));
        self.done();
    }

    fn merge(&mut self, rows: Model) {
        let source = SessionContext::new().read_batch(batch(&rows)).unwrap();
        let merge = self
            .table()
            .merge(source, "t.id = s.id")
            .with_source_alias("s")
            .with_target_alias("t")
            .when_matched_update(|update| update.update("v", "s.v"))
            .unwrap()
            .when_not_matched_insert(|insert| insert.set("id", "s.id").set("part", "s.part").set("v", "s.v"))
            .unwrap();
        self.io.block_on(merge.into_future()).unwrap();
        self.rows.extend(rows);
        self.done();
    }

    fn restore(&mut self, version: i64) {
        let restore = self.table().restore().with_version_to_restore(version.cast_unsigned());
        self.io.block_on(restore.into_future()).unwrap();
        self.rows = self.versions[&version].clone();
        self.done();
    }

    fn optimize(&mut self) {
        self.io.block_on(self.table().optimize().into_future()).unwrap();
        self.done();
    }

    /// Removes every file that the newest version does not need.
    fn vacuum(&self) {
        let vacuum = self.table().vacuum().with_retention_period(chrono::Duration::zero());
        self.io.block_on(vacuum.with_enforce_retention_duration(false).into_future()).unwrap();
    }

    fn random(&mut self, dice: &mut Dice, step: usize) {
        let rest = dice.below(4) as i64;
        match dice.below(9) {
            0 | 1 => {
                let next = self.rows.keys().max().map_or(0, |id| id + 1);
                self.append((next..next + 1 + rest * 3).map(|id| (id, format!("a{step}"))).collect());
            }
            2 => self.delete(&format!("id % 4 = {rest}"), |id| id % 4 == rest),
            3 => self.delete(&format!("part = {}", rest % 2), |id| id % 2 == rest % 2),
            4 => self.update(&format!("id % 4 = {rest}"), |id| id % 4 == rest, "+"),
            5 => self.merge((0..5).map(|_| (dice.below(30) as i64, format!("m{step}"))).collect()),
            6 => self.overwrite((0..6).map(|id| (id * 2 + rest % 2, format!("o{}", id % 3))).collect()),
            7 => {
                let newest = self.version();
                let known: Vec<i64> = self.versions.keys().copied().filter(|version| *version < newest).collect();
                if !known.is_empty() {
                    self.restore(known[dice.below(known.len())]);
                }
            }
            _ => self.optimize(),
        }
    }

    fn expected(&self) -> Vec<Value> {
        self.rows.iter().map(|(id, v)| json!({"id": id, "part": id % 2, "v": v})).collect()
    }

    /// The history of each id from a version on, by comparing each version with the one before.
    fn history(&self, first: i64) -> Vec<Value> {
        let mut done = Vec::new();
        let mut open: BTreeMap<i64, (i64, String)> = BTreeMap::new();
        let row = |id: i64, from: i64, to: Value, v: &str| json!({"id": id, "part": id % 2, "v": v, "__START_AT": from, "__END_AT": to});
        for (version, rows) in self.versions.range(first..) {
            open.retain(|id, (from, v)| {
                let stays = rows.get(id) == Some(v);
                if !stays {
                    done.push(row(*id, *from, json!(version), v));
                }
                stays
            });
            for (id, v) in rows {
                open.entry(*id).or_insert((*version, v.clone()));
            }
        }
        done.extend(open.iter().map(|(id, (from, v))| row(*id, *from, Value::Null, v)));
        done
    }
}

const FOLLOWING: &str = "
CREATE STREAMING TABLE copied AS SELECT * FROM STREAM(up) WITH ('silverflow.mode' = 'changes');
CREATE STREAMING TABLE newest;
CREATE FLOW into_newest AS AUTO CDC INTO newest FROM STREAM(up) WITH ('readChangeFeed' = 'true')
  KEYS (id) APPLY AS DELETE WHEN _change_type = 'delete' SEQUENCE BY _commit_version
  COLUMNS * EXCEPT (_change_type, _commit_version, _commit_timestamp) STORED AS SCD TYPE 1;
CREATE STREAMING TABLE history;
CREATE FLOW into_history AS AUTO CDC INTO history FROM STREAM up WITH (readChangeFeed = true)
  KEYS (id) APPLY AS DELETE WHEN _change_type = 'delete' SEQUENCE BY _commit_version
  COLUMNS (id, part, v) STORED AS SCD TYPE 2;
CREATE STREAMING TABLE feed AS SELECT * FROM STREAM read_stream('up', readChangeFeed => true, `silverflow.keys` => 'id');
CREATE TEMPORARY VIEW events AS SELECT * FROM STREAM(feed) WHERE _change_type <> 'update_preimage';
CREATE STREAMING TABLE from_feed;
CREATE FLOW into_from_feed AS AUTO CDC INTO from_feed FROM STREAM(events)
  KEYS (id) APPLY AS DELETE WHEN _change_type = 'delete' SEQUENCE BY _commit_version
  COLUMNS (id, part, v) STORED AS SCD TYPE 1;
CREATE STREAMING TABLE asked AS SELECT * FROM STREAM read_files(
  'landing/asked', format => 'json', schema => 'n BIGINT');
CREATE STREAMING TABLE answered AS SELECT a.n, u.v FROM STREAM(asked) AS a LEFT JOIN up AS u ON a.n = u.id;
";

fn follow(project: &Project, upstream: &Upstream, first: i64, context: &str) {
    let expected = upstream.expected();
    for table in ["copied", "newest", "from_feed"] {
        assert_rows(&format!("{context}: {table}"), &project.rows(&format!("SELECT * FROM {table}")), &expected);
    }
    let history = project.rows("SELECT * FROM history");
    assert_rows(&format!("{context}: history"), &history, &upstream.history(first));
    let answered: Vec<Value> = (0..20).map(|n| json!({"n": n, "v": upstream.rows.get(&n)})).collect();
    assert_rows(&format!("{context}: answered"), &project.rows("SELECT * FROM answered"), &answered);
}

#[test]
fn whatever_is_done_to_a_table_what_follows_it_equals_it() {
    let seeds: u64 = std::env::var("SILVERFLOW_SEEDS").ok().and_then(|x| x.parse().ok()).unwrap_or(1);
    for seed in 0..seeds * 2 {
        let mut dice = Dice::new(seed);
        let project = Project::new(FOLLOWING);
        let asked: Vec<Value> = (0..20).map(|n| json!({"n": n})).collect();
        project.land("asked", "a", &asked);
        let rows = (0..10).map(|id| (id, "first".to_owned())).collect();
        let mut upstream = Upstream::new(&project, seed % 4 > 1, seed % 2 == 0, rows);
        let first = upstream.version();
        project.run(2).unwrap();
        follow(&project, &upstream, first, "at first");
        for step in 0..12 {
            upstream.random(&mut dice, step);
            if dice.once_in(2) || step == 11 {
                project.run(1 + dice.below(2)).unwrap();
                follow(&project, &upstream, first, &format!("seed {seed}, step {step}"));
            }
        }
        assert!(!project.run(2).unwrap().changed());
        project.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn a_table_of_another_pipeline_with_deletion_vectors_is_followed() {
    let other = Project::new(
        "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files(
           'landing/raw', format => 'json', schema => 'id BIGINT, part BIGINT, v STRING, s BIGINT, gone BOOLEAN');
         CREATE STREAMING TABLE newest;
         CREATE FLOW keep AS AUTO CDC INTO newest FROM STREAM(raw) KEYS (id) APPLY AS DELETE WHEN gone
           SEQUENCE BY s COLUMNS (id, part, v) STORED AS SCD TYPE 1;",
    );
    let project = Project::new(&FOLLOWING.replace("read_stream('up'", "read_stream(\"up\""));
    let spec = fs::read_to_string(project.spec()).unwrap();
    let location = other.path("lakehouse/main/default/newest");
    fs::write(project.spec(), format!("{spec}configuration:\n  silverflow.table.up: {}\n", location.display()))
        .unwrap();
    project.land("asked", "a", &[json!({"n": 1})]);
    let mut dice = Dice::new(7);
    let mut rows = Model::new();
    for step in 0..8i64 {
        let changes: Vec<Value> = (0..4)
            .map(|i| {
                let (id, gone) = (i * 5 + dice.below(5) as i64, dice.once_in(4));
                let v = format!("v{}", dice.below(3));
                if gone {
                    rows.remove(&id)
                } else {
                    rows.insert(id, v.clone())
                };
                json!({"id": id, "part": id % 2, "v": v, "s": step, "gone": gone})
            })
            .collect();
        other.land("raw", &step.to_string(), &changes);
        other.run(1).unwrap();
        if step % 3 == 1 {
            continue;
        }
        project.run(2).unwrap();
        let expected: Vec<Value> = rows.iter().map(|(id, v)| json!({"id": id, "part": id % 2, "v": v})).collect();
        for table in ["copied", "newest", "from_feed"] {
            assert_rows(&format!("{table} {step}"), &project.rows(&format!("SELECT * FROM {table}")), &expected);
        }
        let answered = project.rows("SELECT * FROM answered");
        assert_rows(&format!("answered {step}"), &answered, &[json!({"n": 1, "v": rows.get(&1)})]);
        let open = project.rows("SELECT id, part, v FROM history WHERE __END_AT IS NULL");
        assert_rows(&format!("history {step}"), &open, &expected);
    }
}

fn code(project: &Project) -> String {
    project.run(1).unwrap_err().code().to_owned()
}

fn reading(options: &str) -> Project {
    Project::new(&format!("CREATE STREAMING TABLE t AS SELECT id, v FROM STREAM up {options};"))
}

fn ids(project: &Project) -> Vec<i64> {
    project.query("SELECT id FROM t ORDER BY id").unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect()
}

#[test]
fn a_stream_of_appended_rows_says_what_to_do_about_changes() {
    for (options, after_delete, after_update) in [
        ("", None, None),
        ("WITH ('ignoreDeletes' = 'true')", Some(vec![0, 1, 2, 3, 4]), None),
        ("WITH ('skipChangeCommits' = 'true')", Some(vec![0, 1, 2, 3, 4]), Some(vec![0, 1, 2, 3, 4, 5])),
        ("WITH (silverflow.mode = 'changes')", Some(vec![0, 2, 4]), Some(vec![0, 2, 4, 5])),
    ] {
        let project = reading(options);
        let mut upstream = Upstream::new(&project, true, false, (0..4).map(|id| (id, "a".into())).collect());
        project.run(1).unwrap();
        upstream.append(model(&[(4, "b")]));
        project.run(1).unwrap();
        assert_eq!(ids(&project), [0, 1, 2, 3, 4], "{options}");
        upstream.delete("part = 1", |id| id % 2 == 1);
        let Some(expected) = after_delete else {
            let error = project.run(1).unwrap_err();
            assert_eq!(error.code(), "SOURCE_TABLE_CHANGED");
            let advice = error.advice().unwrap();
            for option in ["skipChangeCommits", "ignoreDeletes", "readChangeFeed", "silverflow.mode"] {
                assert!(advice.contains(option), "{advice}");
            }
            continue;
        };
        project.run(1).unwrap();
        assert_eq!(ids(&project), expected, "{options}");
        upstream.update("id = 2", |id| id == 2, "+");
        upstream.append(model(&[(5, "c")]));
        let Some(expected) = after_update else {
            assert_eq!(code(&project), "SOURCE_TABLE_CHANGED");
            continue;
        };
        project.run(1).unwrap();
        assert_eq!(ids(&project), expected, "{options}");
    }
}

#[test]
fn a_stream_begins_where_it_is_told_and_takes_no_more_than_it_may() {
    for (options, expected, epochs) in [
        ("", vec![0, 1, 2, 3], 1),
        ("WITH ('startingVersion' = '2')", vec![2, 3], 1),
        ("WITH ('startingVersion' = '0', 'maxFilesPerTrigger' = '1')", vec![0, 1, 2, 3], 4),
        ("WITH ('startingVersion' = '1', 'maxBytesPerTrigger' = '1b')", vec![1, 2, 3], 3),
        ("WITH ('startingVersion' = '1', 'maxFilesPerTrigger' = '2')", vec![1, 2, 3], 2),
        ("WITH ('startingVersion' = 'latest')", vec![], 1),
        ("WITH ('startingVersion' = '9')", vec![], 0),
        ("WITH ('startingTimestamp' = '2000-01-01')", vec![0, 1, 2, 3], 1),
        ("WITH ('startingTimestamp' = '2200-01-01')", vec![], 0),
    ] {
        let project = reading(options);
        let mut upstream = Upstream::new(&project, false, false, model(&[(0, "a")]));
        for id in 1..4 {
            upstream.append(model(&[(id, "a")]));
        }
        let report = project.run(1).unwrap();
        assert_eq!((ids(&project), report.epochs.len()), (expected.clone(), epochs), "{options}");
        upstream.append(model(&[(4, "a")]));
        let report = project.run(1).unwrap();
        let later = epochs > 0;
        let expected: Vec<i64> = expected.into_iter().chain(later.then_some(4)).collect();
        assert_eq!((ids(&project), report.epochs.len()), (expected, usize::from(later)), "{options}");
    }
}

#[test]
fn a_gap_in_the_log_is_an_error_or_costs_a_comparison() {
    for (options, gone, vacuumed) in [
        ("", Some("SOURCE_VERSION_GONE"), None),
        ("WITH (readChangeFeed = true)", Some("SOURCE_VERSION_GONE"), Some("SOURCE_FILE_GONE")),
        ("WITH (silverflow.mode = 'changes')", None, None),
    ] {
        let project = reading(options);
        let mut upstream = Upstream::new(&project, false, false, (0..4).map(|id| (id, "a".into())).collect());
        project.run(1).unwrap();
        if options.is_empty() {
            upstream.append(model(&[(8, "b")]));
        } else {
            upstream.update("id = 2", |id| id == 2, "+");
            upstream.optimize();
            upstream.vacuum();
            match vacuumed {
                Some(expected) => assert_eq!(code(&project), expected, "{options}"),
                None => {
                    project.run(1).unwrap();
                    let rows = project.rows("SELECT v FROM t WHERE id = 2");
                    assert_rows(options, &rows, &[json!({"v": "a+"})]);
                }
            }
        }
        upstream.append(model(&[(9, "b")]));
        let version = upstream.version();
        let io = Runtime::new().unwrap();
        io.block_on(deltalake::checkpoints::create_checkpoint(&upstream.table(), None)).unwrap();
        for old in 0..version {
            let _ = fs::remove_file(upstream.folder.join(format!("_delta_log/{old:020}.json")));
        }
        match gone {
            Some(expected) => assert_eq!(code(&project), expected, "{options}"),
            None => {
                project.run(1).unwrap();
                assert_eq!(ids(&project), [0, 1, 2, 3, 9], "{options}");
            }
        }
    }
}

#[test]
fn a_table_that_is_made_anew_is_another_table() {
    for (options, expected) in [
        ("", Err("SOURCE_RECREATED")),
        ("WITH (readChangeFeed = true)", Err("SOURCE_RECREATED")),
        ("WITH (silverflow.mode = 'changes')", Ok(vec![0, 7])),
    ] {
        let project = reading(options);
        let old = Upstream::new(&project, false, false, model(&[(0, "a"), (1, "a")]));
        project.run(1).unwrap();
        fs::remove_dir_all(&old.folder).unwrap();
        let mut new = Upstream::new(&project, false, false, model(&[(0, "a")]));
        new.append(model(&[(7, "b")]));
        match expected {
            Err(expected) => assert_eq!(code(&project), expected, "{options}"),
            Ok(expected) => {
                project.run(1).unwrap();
                assert_eq!(ids(&project), expected, "{options}");
            }
        }
    }
}

#[test]
fn columns_may_come_and_types_must_stay() {
    for options in ["", "WITH (silverflow.mode = 'changes')"] {
        let project = Project::new(&format!("CREATE STREAMING TABLE t AS SELECT * FROM STREAM up {options};"));
        let mut upstream = Upstream::new(&project, false, false, model(&[(0, "a")]));
        project.run(1).unwrap();
        upstream.append(model(&[(1, "b")]));
        let columns = [
            ("id", Arc::new(Int64Array::from(vec![2])) as Arc<dyn Array>),
            ("w", Arc::new(StringArray::from(vec!["new"])) as _),
        ];
        let more = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
        let write = upstream.table().write(vec![more]).with_schema_mode(SchemaMode::Merge);
        upstream.io.block_on(write.into_future()).unwrap();
        project.run(1).unwrap();
        let expected = [
            json!({"id": 0, "v": "a", "w": null}),
            json!({"id": 1, "v": "b", "w": null}),
            json!({"id": 2, "v": null, "w": "new"}),
        ];
        assert_rows(options, &project.rows("SELECT id, v, w FROM t"), &expected);
        if !options.is_empty() {
            upstream.delete("id < 2", |id| id < 2);
            project.run(1).unwrap();
            assert_rows(options, &project.rows("SELECT id, v, w FROM t"), &expected[2..]);
        }
        let columns = [("id", Arc::new(StringArray::from(vec!["three"])) as Arc<dyn Array>)];
        let other = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
        let write = upstream.table().write(vec![other]).with_save_mode(SaveMode::Overwrite);
        upstream.io.block_on(write.with_schema_mode(SchemaMode::Overwrite).into_future()).unwrap();
        let error = project.run(1).unwrap_err();
        assert_eq!(error.code(), "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE", "{options}: {error}");
        project
            .define(&format!("CREATE STREAMING TABLE t AS SELECT CAST(id AS BIGINT) AS id FROM STREAM up {options};"));
        let expected = if options.is_empty() { "SOURCE_SCHEMA_CHANGED" } else { "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE" };
        assert_eq!(code(&project), expected, "{options}");
    }
}

#[test]
fn rows_taken_back_in_an_interrupted_epoch_are_taken_back_downstream() {
    let project =
        Project::new("CREATE STREAMING TABLE t AS SELECT id, v FROM STREAM up WITH (silverflow.mode = 'changes');");
    let mut upstream = Upstream::new(&project, false, false, (0..6).map(|id| (id, "a".into())).collect());
    project.run(1).unwrap();
    upstream.delete("id = 1", |id| id == 1);
    upstream.append(model(&[(8, "b")]));
    let before: Vec<PathBuf> = files(&project);
    project.run(1).unwrap();
    // The machine stopped after the replay point had the epoch, and before the table that it feeds had it.
    let end = files(&project).into_iter().filter(|file| file.parent().unwrap().ends_with("epochs")).max();
    for file in files(&project).iter().filter(|file| !before.contains(file)) {
        if Some(file) == end.as_ref() || file.to_string_lossy().contains("default/t/") {
            fs::remove_file(file).unwrap();
        }
    }
    project.run(2).unwrap();
    assert_eq!(ids(&project), [0, 2, 3, 4, 5, 8]);
    project.assert_clean("finished");
}

fn files(project: &Project) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![project.path("lakehouse")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

#[test]
fn a_change_of_mode_reads_the_table_anew_or_is_refused() {
    let project = reading("WITH (silverflow.mode = 'append')");
    let mut upstream = Upstream::new(&project, false, false, model(&[(0, "a"), (1, "a")]));
    project.run(1).unwrap();
    upstream.delete("id = 0", |id| id == 0);
    assert_eq!(code(&project), "SOURCE_TABLE_CHANGED");
    project.define("CREATE STREAMING TABLE t AS SELECT id, v FROM STREAM up WITH (silverflow.mode = 'changes');");
    project.run(1).unwrap();
    assert_eq!(ids(&project), [1]);
    project.define("CREATE STREAMING TABLE t AS SELECT id, v FROM STREAM up;");
    upstream.append(model(&[(2, "a")]));
    assert_eq!(code(&project), "SOURCE_MODE_CHANGED");
}

#[test]
fn the_clock_of_a_row_that_goes_is_that_of_its_arrival() {
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT id, current_timestamp() AS loaded
         FROM STREAM up WITH (silverflow.mode = 'changes');",
    );
    let mut upstream = Upstream::new(&project, false, false, model(&[(0, "a"), (1, "a")]));
    project.run_at("2026-01-01T00:00:00Z", 1).unwrap();
    upstream.delete("id = 0", |id| id == 0);
    upstream.append(model(&[(2, "a")]));
    project.run_at("2026-01-02T00:00:00Z", 1).unwrap();
    let expected =
        [json!({"id": 1, "loaded": "2026-01-01T00:00:00Z"}), json!({"id": 2, "loaded": "2026-01-02T00:00:00Z"})];
    assert_rows("loaded", &project.rows("SELECT * FROM t"), &expected);
}
