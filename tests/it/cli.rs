//! The real binary: what it prints, and the exit code, which is a contract.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::support::Project;

struct Outcome {
    code: i32,
    out: String,
    err: String,
}

impl Outcome {
    /// Fails unless the code is this one and the messages have these parts.
    #[track_caller]
    fn check(&self, code: i32, parts: &[&str]) -> &Outcome {
        let text = format!("{}{}", self.out, self.err);
        assert_eq!(self.code, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        self
    }
}

fn silverflow_in(folder: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_silverflow"));
    let output = command.args(arguments).current_dir(folder).output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn silverflow(project: &Project, arguments: &[&str]) -> Outcome {
    silverflow_in(&project.path(""), arguments)
}

const ORDERS: &str = "
CREATE STREAMING TABLE raw (
  CONSTRAINT has_key EXPECT (id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION QUARANTINE
) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, amount BIGINT');
CREATE STREAMING TABLE orders;
CREATE FLOW keep AS AUTO CDC INTO orders FROM STREAM(raw) KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;
";

fn orders() -> Project {
    let project = Project::new(ORDERS);
    project.land("raw", "a", &[json!({"id": 1, "s": 1, "amount": 5}), json!({"id": 2, "s": 1, "amount": -5})]);
    project
}

#[test]
fn a_run_tells_table_by_table_what_it_did() {
    let project = orders();
    let first = silverflow(&project, &["run"]);
    first.check(0, &["main.default.raw", "main.default.orders", "quarantined 1", "lakehouse/main/default/orders"]);
    silverflow(&project, &["run"]).check(0, &["nothing new", "nothing was committed"]);
    project.land("raw", "b", &[json!({"id": 1, "s": 2, "amount": 6})]);
    silverflow(&project, &["run"]).check(0, &["1 files read", "versions opened 1, closed 1"]);
}

#[test]
fn optimize_tells_what_it_did_to_each_table() {
    let project = orders();
    silverflow(&project, &["run"]);
    project.land("raw", "b", &[json!({"id": 1, "s": 2, "amount": 6}), json!({"id": 3, "s": 2, "amount": 6})]);
    silverflow(&project, &["run"]);
    silverflow(&project, &["optimize"])
        .check(0, &["main.default.orders: 3 rows in 1 files", "log checkpoint", "test: 3 tables, 0"]);
    silverflow(&project, &["optimize", "--vacuum"]).check(0, &["test: 3 tables, 3 of them were in order"]);
    let report = silverflow(&project, &["optimize", "--vacuum", "--json"]);
    let report: Value = serde_json::from_str(&report.check(0, &[]).out).unwrap();
    assert_eq!(report["tables"][0]["files"], 1);
    silverflow(&project, &["query", "SELECT * FROM orders", "--format", "csv"]).check(0, &["1,6,2,"]);
}

#[test]
fn the_report_has_a_form_for_machines() {
    let project = orders();
    let run = silverflow(&project, &["run", "--json", "--workers", "3"]);
    run.check(0, &[]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let raw = report["tables"].as_array().unwrap().iter().find(|t| t["name"] == "main.default.raw").unwrap();
    assert_eq!((&raw["read"], &raw["valid"], &raw["quarantined"]), (&json!(2), &json!(1), &json!(1)));
}

#[test]
fn a_query_answers_in_three_forms() {
    let project = orders();
    silverflow(&project, &["run"]).check(0, &[]);
    let query = "SELECT id, amount FROM orders WHERE __END_AT IS NULL";
    let ask = |format: &str| silverflow(&project, &["query", "--format", format, query]);
    assert_eq!(ask("json").check(0, &[]).out, "{\"id\":1,\"amount\":5}\n");
    assert_eq!(ask("csv").check(0, &[]).out, "id,amount\n1,5\n");
    ask("table").check(0, &["| id | amount |", "| 1  | 5      |"]);
}

#[test]
fn a_violated_contract_commits_nothing_and_names_flow_rule_and_rows() {
    let project = orders();
    silverflow(&project, &["run"]).check(0, &[]);
    let before = project.versions();
    project.land("raw", "b", &[json!({"id": 3, "s": 1, "amount": 7}), json!({"id": null, "s": 9, "amount": 77})]);
    silverflow(&project, &["run"]).check(1, &["main.default.raw", "has_key", "77"]);
    assert_eq!(project.versions(), before);
    assert_eq!(project.rows("SELECT id FROM raw").len(), 1);
    // The data put right, the same file is read.
    project.land("raw", "b", &[json!({"id": 3, "s": 1, "amount": 7})]);
    silverflow(&project, &["run"]).check(0, &[]);
    assert_eq!(project.rows("SELECT id FROM raw").len(), 2);
}

#[test]
fn verify_tells_clean_from_different_by_the_exit_code() {
    let project = orders();
    silverflow(&project, &["verify"]).check(3, &["STORAGE_NOT_ACCESSIBLE"]);
    silverflow(&project, &["run"]).check(0, &[]);
    silverflow(&project, &["verify"]).check(0, &["at epoch 1, 3 of 3 tables are what their definitions say"]);
    fs::remove_dir_all(project.path("lakehouse/main/default/orders")).unwrap();
    let parts = ["TABLES_DIFFER", "main.default.orders: 0 rows, 1 missing", "the table is gone", "missing: {\"id\":1,"];
    silverflow(&project, &["verify"]).check(1, &parts);
    let verify = silverflow(&project, &["verify", "--json", "--workers", "2"]);
    verify.check(1, &[]);
    let report: Value = serde_json::from_str(&verify.out).unwrap();
    assert_eq!((&report["clean"], &report["epoch"]), (&json!(false), &json!(1)));
    let wrong: Vec<_> = report["tables"].as_array().unwrap().iter().filter(|t| t["missing"] != json!(0)).collect();
    assert_eq!(wrong.len(), 1);
    assert_eq!(wrong[0]["name"], json!("main.default.orders"));
}

#[test]
fn a_dry_run_shows_the_graph_and_touches_nothing() {
    let project = orders();
    silverflow(&project, &["dry-run"]).check(0, &["raw", "orders", "keep", "has_key"]);
    assert!(!project.path("lakehouse").exists());
}

#[test]
fn a_mistake_in_sql_is_shown_with_its_place_and_line() {
    let project = orders();
    project.define("CREATE STREAMING TABLE t AS\nSELECT * FORM STREAM read_files('landing/raw');\n");
    let run = silverflow(&project, &["run"]);
    run.check(2, &["PARSE_SYNTAX_ERROR", "transformations/pipeline.sql:2:", "SELECT * FORM STREAM", "^"]);
}

#[test]
fn an_unknown_column_is_named_with_the_nearest_one() {
    let project = orders();
    project.define(&ORDERS.replace("EXPECT (amount > 0)", "EXPECT (amuont > 0)"));
    let run = silverflow(&project, &["dry-run"]);
    run.check(2, &["UNKNOWN_COLUMN", "amuont", "amount", "transformations/pipeline.sql:4:"]);
}

#[test]
fn an_unknown_table_is_named_with_the_nearest_one() {
    let project = orders();
    project.define(&ORDERS.replace("FROM STREAM(raw)", "FROM STREAM(rwa)"));
    silverflow(&project, &["dry-run"]).check(2, &["TABLE_OR_VIEW_NOT_FOUND", "rwa", "remark", "did you mean raw?"]);
}

#[test]
fn a_mistake_in_the_project_file_is_the_users() {
    let project = orders();
    fs::write(project.spec(), "name: [unclosed\n").unwrap();
    silverflow(&project, &["run"]).check(2, &["spark-pipeline.yml"]);
    fs::write(project.spec(), "name: t\nstorge: x\nlibraries: []\n").unwrap();
    silverflow(&project, &["run"]).check(2, &["storge", "storage"]);
}

#[test]
fn a_missing_project_and_a_wrong_flag_are_the_users() {
    let folder = tempfile::tempdir().unwrap();
    silverflow_in(folder.path(), &["run"]).check(2, &["spark-pipeline.yml"]);
    silverflow_in(folder.path(), &["run", "--spec", "nowhere.yml"]).check(2, &["nowhere.yml"]);
    silverflow_in(folder.path(), &["run", "--wrokers", "2"]).check(2, &["--workers"]);
    silverflow_in(folder.path(), &["run", "--wall", "yesterday"]).check(2, &["yesterday"]);
}

#[test]
fn a_missing_landing_folder_is_outside() {
    let project = Project::new(ORDERS);
    silverflow(&project, &["run"]).check(3, &["landing/raw"]);
}

#[test]
fn a_file_that_cannot_be_read_names_itself_and_stops_the_epoch() {
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t', format => 'parquet', schema => 'id BIGINT');",
    );
    fs::create_dir_all(project.path("landing/t")).unwrap();
    fs::write(project.path("landing/t/broken.parquet"), "this is no Parquet").unwrap();
    silverflow(&project, &["run"]).check(3, &["broken.parquet"]);
    fs::remove_file(project.path("landing/t/broken.parquet")).unwrap();
    silverflow(&project, &["run"]).check(0, &["nothing"]);
}

#[test]
fn a_storage_that_cannot_be_written_is_outside() {
    let project = orders();
    // A folder below a regular file cannot be made by anybody, not even by root.
    fs::write(project.path("file"), "").unwrap();
    let spec = fs::read_to_string(project.spec()).unwrap().replace("storage: lakehouse", "storage: file/lakehouse");
    fs::write(project.spec(), spec).unwrap();
    silverflow(&project, &["run"]).check(3, &["file/lakehouse"]);
}

#[test]
fn a_new_project_runs_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    silverflow_in(folder.path(), &["init", "shop"]).check(0, &["cd shop", "silverflow run"]);
    silverflow_in(&folder.path().join("shop"), &["run"]).check(0, &["epoch 1 complete"]);
    silverflow_in(folder.path(), &["init", "shop"]).check(2, &["shop"]);
}

#[test]
fn what_is_not_supported_says_so_and_where() {
    let refused = [
        "CREATE MATERIALIZED VIEW m AS SELECT id, SUM(amount) AS total FROM raw GROUP BY id;",
        "CREATE STREAMING TABLE s; CREATE FLOW f AS AUTO CDC INTO s FROM STREAM(raw) KEYS (id) SEQUENCE BY s STORED AS BITEMPORAL;",
        "CREATE STREAMING TABLE s; CREATE FLOW f AS AUTO CDC INTO s FROM STREAM(raw) KEYS (id) SEQUENCE BY s COLUMNS TO UPDATE id;",
        "CREATE STREAMING TABLE w AS SELECT id, ROW_NUMBER() OVER (PARTITION BY id ORDER BY s) AS n FROM STREAM(raw);",
        "CREATE STREAMING TABLE j AS SELECT a.id FROM STREAM(raw) AS a FULL OUTER JOIN orders AS b ON a.id = b.id;",
    ];
    for sql in refused {
        let project = orders();
        project.define(&format!("{ORDERS}\n{sql}"));
        let outcome = silverflow(&project, &["dry-run"]);
        outcome.check(2, &["NOT_SUPPORTED", "transformations/pipeline.sql:"]);
    }
}

/// Code blocks of the README in the given language.
fn readme(language: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let blocks = text.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(&format!("{language}\n"))).map(str::to_string).collect()
}

#[test]
fn the_language_by_example_is_the_language() {
    let blocks = readme("sql");
    assert_eq!(blocks.len(), 4);
    let around = "
        CREATE STREAMING TABLE customers_bronze AS SELECT * FROM STREAM read_files(
          'landing/customers', format => 'json', schema => 'customer_id STRING');
        CREATE TEMPORARY VIEW orders_clean AS SELECT * EXCEPT (_dq_critical_failures), array('late') AS _dq_warnings
          FROM STREAM(orders_tagged) WHERE size(_dq_critical_failures) = 0;";
    let project = Project::new(&format!("{around}\n{}", blocks.join("\n")));
    for table in ["shop/prices", "shop/stock", "crm/customers"] {
        crate::upstream::make(&project.path("lakehouse/main").join(table));
    }
    silverflow(&project, &["dry-run"])
        .check(0, &["customers_history", "orders_history", "quarantine orders_bronze_quarantine"]);
}

#[test]
fn the_readme_shows_what_the_example_prints() {
    let project = Project::copy_of("examples/step_right");
    let here = project.path("").to_string_lossy().trim_end_matches('/').to_string();
    let printed =
        |arguments: &[&str]| silverflow(&project, arguments).check(0, &[]).out.replace(&here, "examples/step_right");
    let mut out = printed(&["run"]) + &printed(&["run"]);
    let queries = fs::read_to_string(project.path("queries.sql")).unwrap();
    for query in queries.split(';').map(str::trim).filter(|query| !query.is_empty()) {
        out += &printed(&["query", query]);
    }
    for block in readme("text") {
        for part in block.split("\n\n") {
            assert!(out.contains(part.trim()), "not printed:\n{part}\nbut:\n{out}");
        }
    }
}

/// A worker that panics ends the run with an internal error; it is neither a hang nor a commit.
#[test]
fn a_panic_in_a_worker_is_contained() {
    let project = orders();
    let options = silverflow::runtime::RunOptions {
        workers: 2,
        before_epoch: Some(|_, _| panic!("a bug, for the test")),
        ..Default::default()
    };
    let error = project.run_with(&options).unwrap_err();
    assert_eq!(error.fault().exit_code(), 4, "{error}");
    silverflow(&project, &["run"]).check(0, &["main.default.orders"]);
    assert_eq!(project.rows("SELECT id FROM orders").len(), 1);
}

#[test]
fn a_dry_run_explains_how_each_dataset_is_computed() {
    let project = orders();
    silverflow(&project, &["dry-run", "--explain"]).check(
        0,
        &[
            "main.default.raw (streaming table)",
            "replay point",
            "columns id BIGINT, s BIGINT, amount BIGINT",
            "rule positive: amount > 0 [quarantine]",
            "by the row alone",
            "merge by key, SCD type 2, sequence s, history of amount; keys id; remembers every event",
        ],
    );
    let machine = silverflow(&project, &["dry-run", "--json"]);
    let found: Value = serde_json::from_str(&machine.check(0, &[]).out).unwrap();
    let datasets = found["datasets"].as_array().unwrap();
    let raw = datasets.iter().find(|d| d["name"] == "main.default.raw").unwrap();
    assert_eq!(raw["columns"][2], json!({"name": "amount", "type": "BIGINT"}));
    assert_eq!(raw["rules"][1]["judged"], "by the row alone");
    let merged = datasets.iter().find(|d| d["name"] == "main.default.orders").unwrap();
    assert_eq!(merged["flows"][0]["operators"][0]["keys"], json!(["id"]));
    project.define("CREATE STREAMING TABLE t LOCATION 'x' AS SELECT * FROM STREAM s;");
    let wrong = silverflow(&project, &["dry-run", "--json"]);
    let found: Value = serde_json::from_str(&wrong.check(2, &[]).out).unwrap();
    assert_eq!(found["error"]["code"], "NOT_SUPPORTED");
}
