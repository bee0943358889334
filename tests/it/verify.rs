//! `verify`: it finds what somebody else, or a bug, has done to the tables, and writes nothing itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use silverflow::runtime::TableVerdict;

use crate::support::{Project, copy_folder};

const SQL: &str = "
CREATE STREAMING TABLE raw (CONSTRAINT fair EXPECT (amount < 100) ON VIOLATION QUARANTINE)
  AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, amount BIGINT');
CREATE STREAMING TABLE known AS SELECT * FROM STREAM read_files('landing/known', format => 'json', schema => 'id BIGINT');
CREATE STREAMING TABLE judged (CONSTRAINT resolved EXPECT (known) ON VIOLATION QUARANTINE)
  AS SELECT r.*, k.id IS NOT NULL AS known FROM STREAM(raw) AS r
     LEFT JOIN (SELECT DISTINCT id FROM known) AS k ON r.id = k.id;
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(judged) KEYS (id) SEQUENCE BY s
  COLUMNS * EXCEPT (s, known) STORED AS SCD TYPE 2;
";

/// Two epochs in which verdicts come and go.
fn landed() -> Project {
    let project = Project::new(SQL);
    let row = |id: i64, s: i64, amount: i64| json!({"id": id, "s": s, "amount": amount});
    project.land("raw", "a", &[row(1, 1, 5), row(1, 3, 7), row(2, 1, 500), row(3, 1, 6), row(3, 1, 6)]);
    project.land("known", "a", &[json!({"id": 1})]);
    project.run(2).unwrap();
    project.land("raw", "b", &[row(1, 2, 6), row(3, 2, 8), row(4, 1, 4)]);
    project.land("known", "b", &[json!({"id": 3})]);
    project.run(2).unwrap();
    project
}

/// Every file below a folder, with its size and time.
fn files(folder: &Path, found: &mut BTreeMap<PathBuf, (u64, SystemTime)>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let about = entry.metadata().unwrap();
        if about.is_dir() {
            files(&entry.path(), found);
        } else {
            found.insert(entry.path(), (about.len(), about.modified().unwrap()));
        }
    }
}

/// The entries of a Delta log, by version.
fn log(table: &Path) -> Vec<(PathBuf, Vec<Value>)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(table.join("_delta_log")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    let read = |path: PathBuf| {
        let lines = fs::read_to_string(&path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        (path, lines)
    };
    paths.into_iter().map(read).collect()
}

/// Commits actions as another writer would.
fn commit(table: &Path, actions: &[Value]) {
    let text: String = actions.iter().map(|action| format!("{action}\n")).collect();
    fs::write(table.join(format!("_delta_log/{:020}.json", log(table).len())), text).unwrap();
}

/// The last file that came to a table and is still there.
fn last_file(table: &Path) -> Value {
    let mut live: Vec<Value> = Vec::new();
    for action in log(table).into_iter().flat_map(|(_, actions)| actions) {
        if let Some(add) = action.get("add") {
            live.push(add.clone());
        }
        if let Some(remove) = action.get("remove") {
            live.retain(|add| add["path"] != remove["path"]);
        }
    }
    live.pop().unwrap()
}

/// Another writer deletes a data file.
fn delete_file(table: &Path) {
    let mut remove = last_file(table);
    let fields = remove.as_object_mut().unwrap();
    fields.retain(|name, _| ["path", "partitionValues", "size", "deletionVector"].contains(&name.as_str()));
    fields.insert("dataChange".into(), json!(true));
    fields.insert("deletionTimestamp".into(), json!(1));
    fields.insert("extendedFileMetadata".into(), json!(true));
    commit(table, &[json!({ "remove": remove })]);
}

/// Another writer appends rows that are there already.
fn repeat_file(table: &Path) {
    let mut add = last_file(table);
    fs::copy(table.join(add["path"].as_str().unwrap()), table.join("again.parquet")).unwrap();
    add["path"] = json!("again.parquet");
    commit(table, &[json!({ "add": add })]);
}

fn verdict(project: &Project, table: &str) -> TableVerdict {
    let report = project.verify().unwrap();
    let found = report.tables.iter().find(|t| t.name == format!("main.default.{table}"));
    let found = found.unwrap_or_else(|| panic!("no {table} in {:?}", report.tables)).clone();
    assert_eq!(report.clean, report.tables.iter().all(TableVerdict::clean));
    found
}

#[test]
fn tables_that_are_right_are_clean_and_nothing_is_written() {
    let project = landed();
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    files(&project.path("lakehouse"), &mut before);
    project.assert_clean("after two epochs");
    files(&project.path("lakehouse"), &mut after);
    assert_eq!(before, after);
    let rows = |table| verdict(&project, table).rows;
    assert_eq!((rows("raw"), rows("raw quarantine"), rows("judged"), rows("judged quarantine")), (7, 1, 6, 1));
    assert_eq!(rows("history"), 5);
    // The outside is not needed.
    fs::remove_dir_all(project.path("landing")).unwrap();
    project.assert_clean("without the landing folder");
}

#[test]
fn before_the_first_epoch_there_is_nothing_to_compare() {
    let project = Project::new(SQL);
    project.land("raw", "a", &[]);
    project.land("known", "a", &[]);
    assert_eq!(project.verify().unwrap_err().code(), "STORAGE_NOT_ACCESSIBLE");
    fs::create_dir_all(project.path("lakehouse")).unwrap();
    let report = project.verify().unwrap();
    assert!(report.clean && report.epoch.is_none() && report.tables.is_empty());
    assert_eq!(fs::read_dir(project.path("lakehouse")).unwrap().count(), 0);
}

#[test]
fn what_another_writer_did_is_found_in_every_table() {
    let project = landed();
    let (lakehouse, kept) = (project.path("lakehouse"), project.path("kept"));
    copy_folder(&lakehouse, &kept);
    // The folder, and the rows of its last file.
    for (table, name, rows) in [
        ("raw", "raw", 3),
        ("raw_quarantine", "raw quarantine", 1),
        ("judged", "judged", 4),
        ("judged_quarantine", "judged quarantine", 1),
        ("history", "history", 4),
    ] {
        for (deed, missing, extra) in [(delete_file as fn(&Path), rows, 0), (repeat_file, 0, rows)] {
            deed(&lakehouse.join("main/default").join(table));
            let report = project.verify().unwrap();
            // The other tables are what the last complete epoch made them.
            let [found] = report.tables.iter().filter(|t| !t.clean()).collect::<Vec<_>>()[..] else {
                panic!("{name}: {:#?}", report.tables)
            };
            assert_eq!(found.name, format!("main.default.{name}"));
            assert_eq!((found.missing, found.extra), (missing, extra), "{name}: {found:?}");
            assert!(found.examples.iter().all(|row| row.contains(": {\"id\":")), "{found:?}");
            fs::remove_dir_all(&lakehouse).unwrap();
            copy_folder(&kept, &lakehouse);
        }
    }
}

#[test]
fn tables_that_are_gone_are_named_and_what_hangs_on_them() {
    let project = landed();
    fs::remove_dir_all(project.path("lakehouse/main/default/judged")).unwrap();
    let found = verdict(&project, "judged");
    assert_eq!((found.problems.as_slice(), found.missing), (["the table is gone".to_owned()].as_slice(), 6));
    assert!(verdict(&project, "history").clean());
    fs::remove_dir_all(project.path("lakehouse/main/default/known")).unwrap();
    for table in ["judged", "judged quarantine", "history"] {
        let found = verdict(&project, table);
        assert!(found.problems.iter().any(|p| p.contains("main.default.known is gone")), "{found:?}");
    }
    assert!(verdict(&project, "raw").clean());
}

#[test]
fn rows_of_an_epoch_that_the_log_does_not_know_are_counted() {
    let project = landed();
    let known = project.path("lakehouse/main/default/known");
    let columns = [("id", vec![7, 8]), ("_epoch", vec![99, 99])];
    let columns = columns.map(|(name, values)| (name, Arc::new(Int64Array::from(values)) as ArrayRef, true));
    let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(fs::File::create(known.join("late.parquet")).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let mut add = last_file(&known);
    add["path"] = json!("late.parquet");
    add["size"] = json!(fs::metadata(known.join("late.parquet")).unwrap().len());
    add["stats"] = json!("{\"numRecords\":2}");
    commit(&known, &[json!({ "add": add })]);
    let found = verdict(&project, "known");
    assert_eq!(found.problems, ["2 rows have arrived in epoch 99, which the epoch log does not know"]);
    assert_eq!(found.extra, 2);
}

#[test]
fn tables_that_are_ahead_are_compared_as_of_the_last_complete_epoch() {
    let project = landed();
    // The last record is the end of the second epoch.
    let records = fs::read_dir(project.path("lakehouse/_silverflow/epochs")).unwrap();
    fs::remove_file(records.map(|entry| entry.unwrap().path()).max().unwrap()).unwrap();
    project.assert_clean("with an epoch that is open");
    assert_eq!(verdict(&project, "history").rows, 2);
    project.run(2).unwrap();
    project.assert_clean("with the epoch finished");
    assert_eq!(verdict(&project, "history").rows, 5);
}

#[test]
fn a_definition_that_has_changed_is_told_from_a_table_that_was() {
    let project = landed();
    project.define(&SQL.replace("SELECT r.*,", "SELECT r.id, r.s, r.amount * 2 AS amount,"));
    let found = verdict(&project, "history");
    assert!(found.redefined, "{found:?}");
    assert_eq!((found.missing, found.extra, found.different), (0, 0, 5));
    assert!(!verdict(&project, "raw").redefined);
    project.run(1).unwrap();
    project.assert_clean("after the run");
}
