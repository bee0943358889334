//! Tables as Delta tables: what others did to them, tables without deletion vectors, and order on demand.

use std::fs;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::json;
use silverflow::error::Fault;

use crate::support::{Dice, Project, assert_rows, copy_folder};

const HISTORY: &str = "
CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files(
  'landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, note STRING');
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(raw) KEYS (id) SEQUENCE BY s
  COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;";

/// Runs a file at a time, each with an event for every key and a late one.
fn landed(sql: &str, files: i64) -> Project {
    let project = Project::new(sql);
    for file in 0..files {
        let row = |id: i64, s: i64| json!({"id": id, "s": s, "note": format!("{file}-{id}")});
        let mut rows: Vec<_> = (0..5).map(|id| row(id, file * 10 + id)).collect();
        rows.push(row(file % 5, file * 5 + 1));
        project.land("raw", &format!("f{file}"), &rows);
        project.run(1).unwrap();
    }
    project
}

fn files(folder: &Path, ending: &str) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|x| x.unwrap().file_name().into_string().unwrap());
    names.filter(|x| x.ends_with(ending)).count()
}

#[test]
fn a_foreign_delete_between_two_runs_is_told_with_the_way_out() {
    let project = landed(HISTORY, 2);
    // Moving rows to other files is no change.
    project.foreign("history", async |table| drop(table.optimize().await.unwrap()));
    assert!(!project.run(1).unwrap().changed());
    project.foreign("history", async |table| drop(table.delete().with_predicate("id = 1").await.unwrap()));
    for new_rows in [false, true] {
        if new_rows {
            project.land("raw", "more", &[json!({"id": 1, "s": 99, "note": "x"})]);
        }
        let error = project.run(1).unwrap_err();
        assert_eq!((error.code(), error.fault()), ("TABLE_CHANGED_OUTSIDE", Fault::External));
        let text = error.to_string();
        for part in ["main.default.history", "DELETE", "--full-refresh"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn a_table_without_vectors_holds_the_same_rows() {
    let rewrite = HISTORY.replace(
        "CREATE STREAMING TABLE history;",
        "CREATE STREAMING TABLE history TBLPROPERTIES ('silverflow.sink' = 'rewrite');",
    );
    let (with, without) = (landed(HISTORY, 7), landed(&rewrite, 7));
    let rows = |project: &Project| project.rows("SELECT * FROM history");
    assert_rows("rewritten", &rows(&without), &rows(&with));
    let folder = |project: &Project| project.path("lakehouse/main/default/history");
    assert!(files(&folder(&with), ".bin") > 0);
    assert_eq!(files(&folder(&without), ".bin"), 0);
    without.foreign("history", async |table| {
        assert_eq!(table.snapshot().unwrap().protocol().min_reader_version(), 1);
    });
    without.assert_clean("rewritten");
    // The property can be set on a table that has vectors.
    with.define(&rewrite);
    with.land("raw", "last", &[json!({"id": 1, "s": 3, "note": "late"}), json!({"id": 2, "s": 300, "note": "new"})]);
    without.land("raw", "last", &[json!({"id": 1, "s": 3, "note": "late"}), json!({"id": 2, "s": 300, "note": "new"})]);
    let before = files(&folder(&with), ".bin");
    with.run(1).unwrap();
    without.run(2).unwrap();
    assert_eq!(files(&folder(&with), ".bin"), before, "no vector is written any more");
    assert_rows("switched", &rows(&with), &rows(&without));
    with.assert_clean("switched");
}

#[test]
fn optimize_changes_files_and_no_rows() {
    let project = landed(HISTORY, 8);
    let rows = project.rows("SELECT * FROM history");
    let report = project.optimize(false);
    let history = report.tables.iter().find(|x| x.name == "main.default.history").unwrap();
    assert!(history.files_before > 5 && history.files == 2 && history.checkpoint, "{history:?}");
    assert_rows("optimized", &project.rows("SELECT * FROM history"), &rows);
    project.assert_clean("optimized");
    let again = project.optimize(false);
    assert!(again.tables.iter().all(|x| x.rewritten == 0 && !x.checkpoint), "{again:?}");
    // The pipeline goes on, and what is old may go once no complete epoch needs it.
    project.land("raw", "more", &[json!({"id": 1, "s": 2, "note": "late"}), json!({"id": 9, "s": 1, "note": "new"})]);
    assert!(project.run(1).unwrap().changed());
    project.optimize(true);
    project.assert_clean("vacuumed");
    assert!(!project.run(1).unwrap().changed());
}

#[test]
fn a_commit_tells_what_it_did() {
    let project = Project::new(
        "CREATE STREAMING TABLE raw (CONSTRAINT positive EXPECT (n > 0) ON VIOLATION QUARANTINE,
           CONSTRAINT small EXPECT (n < 100) ON VIOLATION DROP ROW)
         AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'n BIGINT');",
    );
    project.land("raw", "a", &[3, 4, -5, 500, 6].map(|n| json!({"n": n})));
    project.run(2).unwrap();
    for (table, rows) in [("raw", 3), ("raw_quarantine", 1)] {
        let entry = project.path(format!("lakehouse/main/default/{table}/_delta_log/{:020}.json", 1));
        let entry = fs::read_to_string(entry).unwrap();
        let info: serde_json::Value = serde_json::from_str(entry.lines().next().unwrap()).unwrap();
        let metrics = &info["commitInfo"]["operationMetrics"];
        for (name, count) in [
            ("numOutputRows", rows),
            ("numAddedFiles", 1),
            ("numRemovedFiles", 0),
            ("numInputRows", 5),
            ("numQuarantinedRows", 1),
            ("numDroppedRows", 1),
        ] {
            assert_eq!(metrics[name], json!(count.to_string()), "{table}: {name} in {metrics}");
        }
    }
}

#[test]
fn files_are_rewritten_while_the_epochs_go_on() {
    let sql = HISTORY.replace("format => 'json',", "format => 'json', maxFilesPerTrigger => 1,");
    let mut dice = Dice::new(7);
    let project = Project::new(&sql);
    for file in 0..90 {
        let row = |id: usize, s: usize| json!({"id": id, "s": s, "note": format!("{file}")});
        let rows: Vec<_> = (0..4).map(|_| row(dice.below(20), dice.below(2000))).collect();
        project.land("raw", &format!("f{file:02}"), &rows);
    }
    let report = project.run(1).unwrap();
    assert!(report.epochs.len() >= 90, "{}", report.epochs.len());
    let rewritten = |table: &str| {
        let folder = project.path(format!("lakehouse/main/default/{table}/_delta_log"));
        let entries = fs::read_dir(folder).unwrap().map(|x| fs::read_to_string(x.unwrap().path()).unwrap_or_default());
        entries.filter(|x| x.contains("\"operation\":\"OPTIMIZE\"")).count()
    };
    for table in ["raw", "history"] {
        assert!(rewritten(table) >= 2, "{table} was rewritten {} times", rewritten(table));
        project.foreign(table, async |table| {
            let files = table.snapshot().unwrap().log_data().num_files();
            assert!(files < 64, "{files} files");
        });
    }
    project.assert_clean("many epochs");
    // The same rows in one epoch.
    let whole = Project::new(HISTORY);
    copy_folder(&project.path("landing"), &whole.path("landing"));
    whole.run(2).unwrap();
    assert_rows("history", &project.rows("SELECT * FROM history"), &whole.rows("SELECT * FROM history"));
}

/// Where a Parquet file has the values of a column.
fn column_bytes(file: &Path, column: &str) -> std::ops::Range<usize> {
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    let chunks = reader.metadata().row_group(0).columns();
    let (start, length) = chunks.iter().find(|x| x.column_path().string() == column).unwrap().byte_range();
    start as usize..(start + length) as usize
}

/// What nobody asks of a replay point is not looked at, however broken it is.
#[test]
fn a_run_reads_back_only_the_columns_that_it_needs() {
    let sql = HISTORY.replace("note STRING'", "note STRING, unused STRING'").replace("STREAM(raw)", "STREAM(seen)");
    let project = Project::new(&format!("{sql} CREATE TEMPORARY VIEW seen AS SELECT id, s, note FROM STREAM(raw);"));
    let row = |id: i64, s: i64| json!({"id": id, "s": s, "note": format!("n{s}"), "unused": format!("u{s}")});
    project.land("raw", "a", &[row(1, 10), row(1, 30), row(2, 10)]);
    project.run(1).unwrap();
    let folder = project.path("lakehouse/main/default/raw");
    let data = |path: &Path| path.extension().is_some_and(|x| x == "parquet");
    let file = fs::read_dir(&folder).unwrap().map(|x| x.unwrap().path()).find(|path| data(path)).unwrap();
    let damage = |column: &str| {
        let mut bytes = fs::read(&file).unwrap();
        bytes[column_bytes(&file, column)].iter_mut().for_each(|byte| *byte = !*byte);
        fs::write(&file, bytes).unwrap();
    };
    damage("unused");
    project.land("raw", "b", &[row(1, 20)]);
    let report = project.run(2).unwrap();
    assert_eq!((report.replayed, report.checkpoint), (3, None));
    let history = project.rows("SELECT note, __END_AT AS ended FROM history WHERE id = 1");
    let version = |note: &str, ended: Option<i64>| json!({"note": note, "ended": ended});
    let expected = [version("n10", Some(20)), version("n20", Some(30)), version("n30", None)];
    assert_rows("a late row", &history, &expected);
    // What is needed is looked at.
    damage("note");
    project.land("raw", "c", &[row(2, 20)]);
    assert_eq!(project.run(1).unwrap_err().fault(), Fault::External);
}

/// Large enough that where its rows are is stored: the run that wrote a table leaves that to the next one.
#[test]
fn a_restart_that_meets_a_late_row_at_once_does_not_read_the_table() {
    let project = Project::new(HISTORY);
    let line = |id: usize, s: i64| format!("{{\"id\": {id}, \"s\": {s}, \"note\": \"n{s}\"}}\n");
    let text: String = (0..17_000).flat_map(|id| [10, 30].map(|s| line(id, s))).collect();
    project.land_text("raw", "a", &text);
    project.run(2).unwrap();
    let stored = project.path("lakehouse/_silverflow/rows/main/default/history");
    assert_eq!(files(&stored, ".rows"), 1);
    assert!(!project.path("lakehouse/_silverflow/rows/main/default/raw").exists());
    let index = || {
        let file = fs::read_dir(&stored).unwrap().next().unwrap().unwrap();
        (file.file_name(), file.metadata().unwrap().modified().unwrap())
    };
    // What cannot be used is made again.
    let before = index();
    project.land_text("raw", "b", &line(3, 20));
    assert!(project.run(1).unwrap().changed());
    assert_eq!(index(), before);
    assert_eq!(project.rows("SELECT id FROM history WHERE id = 3").len(), 3);
    project.assert_clean("a late row");
}
