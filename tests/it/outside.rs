//! What is read from outside, end to end: file formats and modes, files once, Delta tables of others, ONCE flows.

use std::fs;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use serde_json::json;

use crate::support::{Project, assert_rows};

#[test]
fn the_same_rows_from_json_csv_and_parquet() {
    let read = |format: &str, more: &str| {
        format!(
            "CREATE STREAMING TABLE from_{format} AS SELECT * FROM STREAM read_files(
               'landing/{format}', format => '{format}', schema => 'id BIGINT, name STRING'{more});"
        )
    };
    let sql = [read("json", ""), read("csv", ", header => true"), read("parquet", "")].concat();
    let project = Project::new(&sql);
    project.land("json", "a", &[json!({"id": 1, "name": "a"}), json!({"id": 2, "name": null})]);
    for folder in ["csv", "parquet"] {
        fs::create_dir_all(project.path("landing").join(folder)).unwrap();
    }
    fs::write(project.path("landing/csv/a.csv"), "id,name\n1,a\n2,\n").unwrap();
    let columns = [
        ("id", Arc::new(Int64Array::from(vec![1, 2])) as _),
        ("name", Arc::new(StringArray::from(vec![Some("a"), None])) as _),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap();
    let file = fs::File::create(project.path("landing/parquet/a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    project.run(2).unwrap();
    for format in ["json", "csv", "parquet"] {
        let rows = project.rows(&format!("SELECT id, name FROM from_{format}"));
        assert_rows(format, &rows, &[json!({"id": 1, "name": "a"}), json!({"id": 2, "name": null})]);
    }
}

#[test]
fn a_schema_that_is_inferred_once_holds_and_misfits_are_rescued() {
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t', format => 'json', inferColumnTypes => true,
           schemaEvolutionMode => 'rescue');",
    );
    project.land("t", "a", &[json!({"id": 1, "n": {"x": 1}})]);
    project.run(1).unwrap();
    project.land("t", "b", &[json!({"id": "two", "n": {"x": 2}, "extra": true})]);
    project.run(1).unwrap();
    let rows = project.rows("SELECT id, n FROM t");
    assert_rows("typed", &rows, &[json!({"id": 1, "n": {"x": 1}}), json!({"id": null, "n": {"x": 2}})]);
    let rescued = project.rows("SELECT _rescued_data FROM t WHERE id IS NULL");
    let text = rescued[0]["_rescued_data"].as_str().unwrap();
    assert!(text.contains("\"id\":\"two\"") && text.contains("\"extra\":true"), "{text}");
}

#[test]
fn a_table_of_another_pipeline_is_a_stream_or_a_reference() {
    let other = Project::new(
        "CREATE STREAMING TABLE prices AS SELECT * FROM STREAM read_files(
           'landing/prices', format => 'json', schema => 'item STRING, price BIGINT');",
    );
    other.land("prices", "a", &[json!({"item": "shoe", "price": 5})]);
    other.run(1).unwrap();
    let project = Project::new(
        "CREATE STREAMING TABLE sales AS SELECT * FROM STREAM read_files(
           'landing/sales', format => 'json', schema => 'id BIGINT, item STRING');
         CREATE STREAMING TABLE copied AS SELECT item, price FROM STREAM(prices);
         CREATE STREAMING TABLE priced AS SELECT s.id, p.price FROM STREAM(sales) AS s LEFT JOIN prices AS p ON s.item = p.item;",
    );
    let location = other.path("lakehouse/main/default/prices");
    let spec = fs::read_to_string(project.spec()).unwrap();
    let configuration = format!("configuration:\n  silverflow.table.prices: {}\n", location.display());
    fs::write(project.spec(), format!("{spec}{configuration}")).unwrap();
    project.land("sales", "a", &[json!({"id": 1, "item": "shoe"}), json!({"id": 2, "item": "lace"})]);
    project.run(2).unwrap();
    assert_rows("copied", &project.rows("SELECT * FROM copied"), &[json!({"item": "shoe", "price": 5})]);
    let priced = [json!({"id": 1, "price": 5}), json!({"id": 2, "price": null})];
    assert_rows("priced", &project.rows("SELECT * FROM priced"), &priced);
    // The other pipeline goes on; the reference resolves what waited for it.
    other.land("prices", "b", &[json!({"item": "lace", "price": 1})]);
    other.run(1).unwrap();
    project.run(2).unwrap();
    let copied = [json!({"item": "shoe", "price": 5}), json!({"item": "lace", "price": 1})];
    assert_rows("copied", &project.rows("SELECT * FROM copied"), &copied);
    let priced = [json!({"id": 1, "price": 5}), json!({"id": 2, "price": 1})];
    assert_rows("priced", &project.rows("SELECT * FROM priced"), &priced);
    project.assert_clean("priced");
}

const BACKFILLED: &str = "
CREATE STREAMING TABLE feed AS SELECT * FROM STREAM read_files(
  'landing/feed', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
CREATE STREAMING TABLE history;
CREATE FLOW changes AS AUTO CDC INTO history FROM STREAM(feed)
  KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;
CREATE TEMPORARY VIEW copy AS SELECT * FROM read_files(
  'landing/copy', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
CREATE FLOW backfill AS AUTO CDC ONCE INTO history FROM copy
  KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;
";

#[test]
fn a_once_flow_reads_what_is_there_when_it_first_runs_and_never_again() {
    let project = Project::new(BACKFILLED);
    let row = |id: i64, s: i64, v: &str| json!({"id": id, "s": s, "v": v});
    project.land("feed", "a", &[row(1, 10, "now")]);
    project.land("copy", "a", &[row(1, 1, "old"), row(2, 2, "old")]);
    project.run(2).unwrap();
    let history = [
        json!({"id": 1, "v": "old", "__START_AT": 1, "__END_AT": 10}),
        json!({"id": 1, "v": "now", "__START_AT": 10, "__END_AT": null}),
        json!({"id": 2, "v": "old", "__START_AT": 2, "__END_AT": null}),
    ];
    assert_rows("backfilled", &project.rows("SELECT * FROM history"), &history);
    project.land("copy", "b", &[row(3, 3, "too late")]);
    fs::remove_file(project.path("landing/copy/a.json")).unwrap();
    assert!(!project.run(2).unwrap().changed());
    project.land("feed", "b", &[row(2, 5, "later")]);
    project.run(2).unwrap();
    let second = [
        json!({"id": 2, "v": "old", "__START_AT": 2, "__END_AT": 5}),
        json!({"id": 2, "v": "later", "__START_AT": 5, "__END_AT": null}),
    ];
    assert_rows("later", &project.rows("SELECT * FROM history WHERE id = 2"), &second);
    assert_rows("never", &project.rows("SELECT id FROM history WHERE id = 3"), &[]);
    project.assert_clean("backfilled");
}

#[test]
fn a_struct_orders_changes_field_by_field() {
    let project = Project::new(
        "CREATE STREAMING TABLE feed AS SELECT * FROM STREAM read_files(
           'landing/feed', format => 'json', schema => 'id BIGINT, day DATE, n BIGINT, v STRING');
         CREATE STREAMING TABLE history;
         CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(feed)
           KEYS (id) SEQUENCE BY struct(day, n) COLUMNS (id, v) STORED AS SCD TYPE 2;",
    );
    let row = |day: &str, n: i64, v: &str| json!({"id": 1, "day": day, "n": n, "v": v});
    project.land("feed", "a", &[row("2026-01-02", 1, "c"), row("2026-01-01", 9, "b"), row("2026-01-01", 2, "a")]);
    project.run(2).unwrap();
    let versions = project.query("SELECT v, __START_AT, __END_AT FROM history ORDER BY v").unwrap();
    let bounds: Vec<_> = versions.iter().map(|row| (row["v"].clone(), row["__END_AT"] == json!(null))).collect();
    assert_eq!(bounds, [(json!("a"), false), (json!("b"), false), (json!("c"), true)]);
    for pair in versions.windows(2) {
        assert_eq!(pair[0]["__END_AT"], pair[1]["__START_AT"]);
    }
}

#[test]
fn a_null_key_or_sequence_fails_the_epoch_or_waits_in_quarantine() {
    let sql = |properties: &str| {
        format!(
            "CREATE STREAMING TABLE feed AS SELECT * FROM STREAM read_files(
               'landing/feed', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
             CREATE STREAMING TABLE newest {properties};
             CREATE FLOW keep AS AUTO CDC INTO newest FROM STREAM(feed) KEYS (id) SEQUENCE BY s COLUMNS (id, v)
               STORED AS SCD TYPE 1;"
        )
    };
    let rows = [
        json!({"id": 1, "s": 1, "v": "a"}),
        json!({"id": null, "s": 1, "v": "no key"}),
        json!({"id": 2, "s": null, "v": "no sequence"}),
    ];
    let strict = Project::new(&sql(""));
    strict.land("feed", "a", &rows);
    let error = strict.run(2).unwrap_err();
    assert!(error.code().contains("NULL_"), "{error}");
    let lenient = Project::new(&sql("TBLPROPERTIES ('silverflow.cdc.invalid' = 'quarantine')"));
    lenient.land("feed", "a", &rows);
    lenient.run(2).unwrap();
    assert_rows("newest", &lenient.rows("SELECT * FROM newest"), &[json!({"id": 1, "v": "a"})]);
    lenient.assert_clean("lenient");
    assert_eq!(lenient.rows("SELECT * FROM newest_quarantine").len(), 2);
}
