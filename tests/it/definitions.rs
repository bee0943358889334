//! Definitions that change between runs: the tables follow by the difference, computed from what is stored.

use serde_json::json;

use crate::support::{Project, assert_rows};

const RAW: &str = "
CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files(
  'landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, amount BIGINT, note STRING');
";

fn pipeline(rule: &str, note: &str) -> String {
    format!(
        "{RAW}
         CREATE STREAMING TABLE judged (CONSTRAINT fair EXPECT ({rule}) ON VIOLATION QUARANTINE)
           AS SELECT id, s, amount, {note} AS note FROM STREAM(raw);
         CREATE STREAMING TABLE history;
         CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(judged) KEYS (id) SEQUENCE BY s
           COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;"
    )
}

fn landed(sql: &str) -> Project {
    let project = Project::new(sql);
    let row = |id: i64, s: i64, amount: i64| json!({"id": id, "s": s, "amount": amount, "note": "n"});
    project.land("raw", "a", &[row(1, 1, 5), row(1, 2, 50), row(1, 3, 7), row(2, 1, 500), row(3, 1, 6)]);
    project.run(2).unwrap();
    project
}

#[test]
fn an_edited_rule_moves_the_rows_whose_verdict_changes_and_no_others() {
    let project = landed(&pipeline("amount < 10", "note"));
    let waiting = |project: &Project| project.rows("SELECT id, amount FROM judged_quarantine");
    assert_rows("before", &waiting(&project), &[json!({"id": 1, "amount": 50}), json!({"id": 2, "amount": 500})]);
    // The files are gone: what is stored is enough.
    std::fs::remove_file(project.path("landing/raw/a.json")).unwrap();
    project.define(&pipeline("amount < 100", "note"));
    let report = project.run(2).unwrap();
    assert_rows("after", &waiting(&project), &[json!({"id": 2, "amount": 500})]);
    let history = [
        json!({"id": 1, "amount": 5, "note": "n", "__START_AT": 1, "__END_AT": 2}),
        json!({"id": 1, "amount": 50, "note": "n", "__START_AT": 2, "__END_AT": 3}),
        json!({"id": 1, "amount": 7, "note": "n", "__START_AT": 3, "__END_AT": null}),
        json!({"id": 3, "amount": 6, "note": "n", "__START_AT": 1, "__END_AT": null}),
    ];
    assert_rows("history", &project.rows("SELECT * FROM history"), &history);
    let table = |name: &str| report.tables.iter().find(|t| t.name == format!("main.default.{name}")).unwrap();
    assert_eq!((table("history").inserted, table("history").deleted), (2, 1), "one version is cut in two by a third");
    assert!(!table("raw").committed);
    assert!(!project.run(2).unwrap().changed());
    project.assert_clean("history");
}

#[test]
fn an_edited_query_rewrites_what_depends_on_it_once() {
    let project = landed(&pipeline("amount < 10", "note"));
    project.define(&pipeline("amount < 10", "upper(note)"));
    project.run(1).unwrap();
    let notes = project.rows("SELECT DISTINCT note FROM history");
    assert_rows("notes", &notes, &[json!({"note": "N"})]);
    assert!(!project.run(1).unwrap().changed());
    // Back again: the same tables as at first.
    project.define(&pipeline("amount < 10", "note"));
    project.run(1).unwrap();
    let fresh = landed(&pipeline("amount < 10", "note"));
    for table in ["judged", "judged_quarantine", "history"] {
        let sql = format!("SELECT * FROM {table}");
        assert_rows(table, &project.rows(&sql), &fresh.rows(&sql));
    }
    project.assert_clean("there and back");
}

#[test]
fn a_dataset_that_is_added_later_starts_from_what_is_stored() {
    let project = landed(RAW);
    std::fs::remove_file(project.path("landing/raw/a.json")).unwrap();
    let late = format!(
        "{RAW} CREATE STREAMING TABLE newest;
         CREATE FLOW keep AS AUTO CDC INTO newest FROM STREAM(raw) KEYS (id) SEQUENCE BY s COLUMNS (id, amount)
           STORED AS SCD TYPE 1;"
    );
    project.define(&late);
    project.run(2).unwrap();
    let newest = [json!({"id": 1, "amount": 7}), json!({"id": 2, "amount": 500}), json!({"id": 3, "amount": 6})];
    assert_rows("newest", &project.rows("SELECT * FROM newest"), &newest);
    project.assert_clean("newest");
}

#[test]
fn renamed_files_and_statements_in_another_order_change_nothing() {
    let project = landed(&pipeline("amount < 10", "note"));
    let sql = pipeline("amount < 10", "note");
    let statements: Vec<&str> = sql.split(';').map(str::trim).filter(|s| !s.is_empty()).collect();
    project.define("");
    std::fs::remove_file(project.path("transformations/pipeline.sql")).unwrap();
    for (i, statement) in statements.iter().rev().enumerate() {
        std::fs::write(project.path(format!("transformations/{i}.sql")), format!("{statement};\n")).unwrap();
    }
    let before = project.versions();
    assert!(!project.run(2).unwrap().changed());
    assert_eq!(project.versions(), before);
}
