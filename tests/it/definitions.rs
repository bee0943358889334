//! Definitions that change between runs: the tables follow by the difference, computed from what is stored.

use serde_json::json;
use silverflow::runtime::{RunOptions, Selection};

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

/// An edit of the definitions, and the datasets that it makes be recomputed with the reasons.
type Edit = (&'static str, fn(&str) -> String, &'static [(&'static str, &'static [&'static str])]);

const READS_JUDGED: &[&str] = &["main.default.judged, which it reads, is recomputed"];

const EDITS: &[Edit] = &[
    ("nothing", |sql| sql.to_owned(), &[]),
    ("case and space", |sql| sql.replace("SELECT id, s,", "select  id,s ,"), &[]),
    (
        "a rule",
        |sql| sql.replace("amount < 10", "amount < 11"),
        &[("judged", &["expectation fair: changed"]), ("history", READS_JUDGED)],
    ),
    (
        "an action",
        |sql| sql.replace("ON VIOLATION QUARANTINE", "ON VIOLATION DROP ROW"),
        &[("judged", &["expectation fair: changed"]), ("history", READS_JUDGED)],
    ),
    (
        "a rule of another name",
        |sql| sql.replace("CONSTRAINT fair", "CONSTRAINT unfair"),
        &[
            ("judged", &["expectation fair: gone", "expectation unfair: new", "order of expectations: changed"]),
            ("history", READS_JUDGED),
        ],
    ),
    (
        "a query",
        |sql| sql.replace("note AS note", "note || '!' AS note"),
        &[("judged", &["query: changed"]), ("history", READS_JUDGED)],
    ),
    (
        "a literal that plans show cut short",
        |sql| sql.replace("note AS note", "concat(note, hex(X'00112233445566778899AABBCCDDEEFF')) AS note"),
        &[("judged", &["query: changed"]), ("history", READS_JUDGED)],
    ),
    (
        "the end of that literal",
        |sql| sql.replace("note AS note", "concat(note, hex(X'00112233445566778899AABBCCDDEEFE')) AS note"),
        &[("judged", &["query: changed"]), ("history", READS_JUDGED)],
    ),
    ("a key", |sql| sql.replace("KEYS (id)", "KEYS (id, amount)"), &[("history", &["keys: changed"])]),
    (
        "the tracked columns",
        |sql| sql.replace("STORED AS SCD TYPE 2", "STORED AS SCD TYPE 2 TRACK HISTORY ON amount"),
        &[("history", &["tracked columns: changed"])],
    ),
    (
        "the kept columns",
        |sql| sql.replace("* EXCEPT (s)", "* EXCEPT (s, note)"),
        &[("history", &["columns: changed", "kept columns: changed", "tracked columns: changed"])],
    ),
    (
        "a rule of the first table",
        |sql| sql.replace("TABLE raw AS", "TABLE raw (CONSTRAINT small EXPECT (id < 3) ON VIOLATION QUARANTINE) AS"),
        &[
            ("raw", &["expectation small: new", "order of expectations: changed"]),
            ("judged", &["main.default.raw, which it reads, is recomputed"]),
            ("history", READS_JUDGED),
        ],
    ),
];

#[test]
fn a_dry_run_tells_what_is_recomputed_and_why_and_no_recompute_refuses_it() {
    let sql = pipeline("amount < 10", "note");
    let project = landed(&sql);
    let before = project.versions();
    for (name, edit, expected) in EDITS {
        let edited = edit(&sql);
        assert!(*name == "nothing" || edited != sql, "{name} edits nothing");
        project.define(&edited);
        let found = project.recomputed();
        let names = |list: &[(String, Vec<String>)]| list.iter().map(|(table, _)| table.clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), expected.iter().map(|(table, _)| *table).collect::<Vec<_>>(), "{name}");
        for ((table, reasons), (_, wanted)) in found.iter().zip(*expected) {
            assert!(wanted.iter().all(|w| reasons.iter().any(|r| r == w)), "{name}, {table}: {reasons:?}");
        }
        let run = project.run_with(&RunOptions { recompute: false, ..RunOptions::default() });
        if expected.is_empty() {
            assert!(!run.unwrap().changed(), "{name}");
        } else {
            let error = run.unwrap_err();
            assert_eq!((error.code(), error.fault().exit_code()), ("RECOMPUTE_REFUSED", 2), "{name}");
            assert_eq!(1 + error.others().len(), expected.len(), "{name}: {error}");
            assert!(error.to_string().contains(expected[0].1[0]), "{name}: {error}");
        }
        assert_eq!(project.versions(), before, "{name}");
    }
    // Edited one after the other, each is what it would have been from the start.
    for (name, edit, _) in EDITS.iter().filter(|(name, ..)| *name != "the kept columns") {
        project.define(&edit(&sql));
        assert_eq!(project.recomputed().is_empty(), ["nothing", "case and space"].contains(name), "{name}");
        project.run(2).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(project.recomputed().is_empty(), "{name}");
        project.assert_clean(name);
    }
}

/// The names of a table's columns.
fn columns(project: &Project, table: &str) -> Vec<String> {
    project.rows(&format!("SELECT * FROM {table}"))[0].as_object().unwrap().keys().cloned().collect()
}

fn full_refresh(tables: &[&str]) -> RunOptions {
    let full_refresh = tables.iter().map(|table| (*table).to_owned()).collect();
    let selection = Selection { full_refresh, accept_loss: true, ..Selection::default() };
    RunOptions { workers: 2, selection, ..RunOptions::default() }
}

#[test]
fn a_derived_table_has_the_columns_of_its_definition_and_no_stale_values() {
    let sql = pipeline("amount < 10", "note");
    let project = landed(&sql);
    let commits = |project: &Project| project.versions()["main/default/judged"];
    let before = commits(&project);
    project.define(&sql.replace(", amount, note AS note", ", amount"));
    project.run(2).unwrap();
    assert_eq!(commits(&project), before + 1, "definition and rows in one commit");
    assert_eq!(columns(&project, "judged"), ["id", "s", "amount"]);
    assert_eq!(columns(&project, "judged_quarantine"), ["id", "s", "amount", "_dq_failed"]);
    assert_eq!(columns(&project, "history"), ["id", "amount", "__START_AT", "__END_AT"]);
    project.assert_clean("without the column");
    // Rows come and go as before.
    let row = |id: i64, s: i64, amount: i64| json!({"id": id, "s": s, "amount": amount, "note": "n"});
    project.land("raw", "b", &[row(1, 2, 4), row(2, 2, 1)]);
    project.run(1).unwrap();
    project.assert_clean("with more rows");
    // The column comes back, behind the others, with its values.
    project.define(&sql);
    project.run(2).unwrap();
    assert_rows("notes", &project.rows("SELECT DISTINCT note FROM history"), &[json!({"note": "n"})]);
    assert_eq!(columns(&project, "judged"), ["id", "s", "amount", "note"]);
    project.assert_clean("with the column again");
    assert!(!project.run(2).unwrap().changed());
}

#[test]
fn columns_are_added_in_place_also_inside_structs_and_in_bronze() {
    let sql = |columns: &str, more: &str| {
        format!(
            "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files(
               'landing/raw', format => 'json', schema => '{columns}');
             CREATE STREAMING TABLE derived AS SELECT *, id + 1 AS next {more} FROM STREAM(raw);"
        )
    };
    let project = Project::new(&sql("id BIGINT, at STRUCT<x: BIGINT>", ""));
    project.land("raw", "a", &[json!({"id": 1, "at": {"x": 1, "y": 2}, "v": "not read yet"})]);
    project.run(1).unwrap();
    project.define(&sql("id BIGINT, at STRUCT<x: BIGINT, y: BIGINT>, v STRING", ", 'new' AS more"));
    project.land("raw", "b", &[json!({"id": 2, "at": {"x": 3, "y": 4}, "v": "v"})]);
    project.run(2).unwrap();
    let rows = [
        json!({"id": 1, "at": {"x": 1, "y": null}, "v": null, "next": 2, "more": "new"}),
        json!({"id": 2, "at": {"x": 3, "y": 4}, "v": "v", "next": 3, "more": "new"}),
    ];
    assert_rows("derived", &project.rows("SELECT id, at, v, next, more FROM derived"), &rows);
    project.assert_clean("added");
    // A bronze table keeps what it has stored.
    project.define(&sql("id BIGINT", ""));
    project.land("raw", "c", &[json!({"id": 3})]);
    project.run(2).unwrap();
    assert_rows("kept", &project.rows("SELECT v FROM raw WHERE v IS NOT NULL"), &[json!({"v": "v"})]);
    project.assert_clean("kept");
}

#[test]
fn another_type_is_an_error_that_names_both_until_the_table_is_replaced() {
    let sql = pipeline("amount < 10", "note");
    let project = landed(&sql);
    let before = project.versions();
    let edited = sql
        .replace("SELECT id, s, amount,", "SELECT id, s, string(amount) AS amount,")
        .replace("amount < 10", "bigint(amount) < 10");
    let edited =
        edited.replace("string(amount)", "CAST(amount AS STRING)").replace("bigint(amount)", "CAST(amount AS BIGINT)");
    project.define(&edited);
    let refused = |run: silverflow::error::Result<()>, code: &str, parts: &[&str]| {
        let error = run.unwrap_err();
        assert_eq!((error.code(), error.fault().exit_code()), (code, 2), "{error}");
        parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{part} is missing in {error}"));
        error.others().len()
    };
    let parts = [
        "the column amount of main.default.judged is Int64 in the table and Utf8",
        "--full-refresh main.default.judged",
    ];
    assert_eq!(refused(project.run(2).map(drop), "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE", &parts), 2);
    assert_eq!(refused(project.dry_run(), "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE", &parts), 2);
    assert_eq!(project.versions(), before);
    project.run_with(&full_refresh(&["judged", "history"])).unwrap();
    let newest = project.rows("SELECT amount FROM history WHERE __END_AT IS NULL");
    assert_rows("newest", &newest, &[json!({"amount": "7"}), json!({"amount": "6"})]);
    project.assert_clean("replaced");
    // Also at a table that stores the outside: it is read again.
    let raw = edited.replace("note STRING'", "note BIGINT'");
    let row = |id: i64, s: i64, amount: i64| json!({"id": id, "s": s, "amount": amount, "note": 8});
    project.land("raw", "a", &[row(1, 1, 5)]);
    project.define(&raw);
    refused(project.run(2).map(drop), "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE", &["the column note of main.default.raw"]);
    project.run_with(&full_refresh(&["raw", "judged", "history"])).unwrap();
    assert_rows("raw", &project.rows("SELECT note FROM raw"), &[json!({"note": 8})]);
    project.assert_clean("read again");
    // History does not become current rows by the way.
    project.define(&raw.replace("SCD TYPE 2", "SCD TYPE 1"));
    let parts = ["main.default.history is SCD type 2 in the storage and SCD type 1 in its definition"];
    refused(project.run(2).map(drop), "SCD_TYPE_CHANGED", &parts);
    refused(project.dry_run(), "SCD_TYPE_CHANGED", &parts);
    project.run_with(&full_refresh(&["history"])).unwrap();
    assert_eq!(columns(&project, "history"), ["id", "amount", "note"]);
    project.assert_clean("current rows");
    assert!(!project.run(2).unwrap().changed());
}

#[test]
fn another_type_of_the_sequence_does_not_reorder_current_rows_in_silence() {
    let definitions = |sequence: &str| {
        format!(
            "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
               schema => 'id BIGINT, s BIGINT, amount BIGINT');
             CREATE STREAMING TABLE latest;
             CREATE FLOW keep AS AUTO CDC INTO latest FROM STREAM(raw) KEYS (id) SEQUENCE BY {sequence}
               COLUMNS * EXCEPT (s) STORED AS SCD TYPE 1;"
        )
    };
    let project = Project::new(&definitions("s"));
    project.land("raw", "a", &[json!({"id": 1, "s": 9, "amount": 1}), json!({"id": 1, "s": 10, "amount": 2})]);
    project.run(1).unwrap();
    let latest = || project.rows("SELECT amount FROM latest");
    let before = project.versions();
    project.define(&definitions("CAST(s AS STRING)"));
    for error in [project.run(1).map(drop).unwrap_err(), project.dry_run().map(drop).unwrap_err()] {
        assert_eq!(
            (error.code(), error.fault().exit_code()),
            ("AUTOCDC_INVALID_STATE.SEQUENCING_TYPE_DRIFT", 2),
            "{error}"
        );
        for part in ["in the order of Int64 in the storage and of Utf8", "--full-refresh main.default.latest"] {
            assert!(error.to_string().contains(part), "{part} is missing in {error}");
        }
    }
    assert_eq!(project.versions(), before);
    assert_rows("as it was", &latest(), &[json!({"amount": 2})]);
    project.run_with(&full_refresh(&["latest"])).unwrap();
    assert_rows("by text", &latest(), &[json!({"amount": 1})]);
    // Another expression of the type that it has is no other type.
    project.define(&definitions("concat(CAST(s AS STRING), '')"));
    project.run(1).unwrap();
    assert_rows("by other text", &latest(), &[json!({"amount": 1})]);
    project.assert_clean("by other text");
}
