//! The example of the README: what it prints is what the tables hold, batch by batch, run by run.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use silverflow::runtime::{RunOptions, RunReport, TableReport};

use crate::faults::Death;
use crate::support::{Dice, Project, assert_rows, copy_folder, json_rows};

#[path = "../../examples/embed.rs"]
#[allow(dead_code, unreachable_pub)]
mod embed;

pub(crate) const EXAMPLE: &str = "examples/step_right";
const TABLES: [&str; 14] = [
    "customers_bronze",
    "customers_bronze_quarantine",
    "products_bronze",
    "products_bronze_quarantine",
    "orders_bronze",
    "orders_bronze_quarantine",
    "order_items_bronze",
    "order_items_bronze_quarantine",
    "silver_customers",
    "silver_products",
    "silver_orders",
    "silver_orders_quarantine",
    "silver_order_items",
    "silver_order_items_quarantine",
];

fn table<'a>(report: &'a RunReport, name: &str) -> &'a TableReport {
    report.tables.iter().find(|t| t.name == format!("main.step_right.{name}")).unwrap_or_else(|| panic!("no {name}"))
}

/// Rows without what tells when and where a file was read: the epoch of arrival and the path in rescued data.
fn timeless(rows: Vec<Value>, landing: &Path) -> Vec<Value> {
    let landing = landing.to_string_lossy();
    let timeless = |mut row: Value| {
        row.as_object_mut().unwrap().remove("_epoch");
        if let Some(rescued) = row.get("_rescued_data").and_then(Value::as_str) {
            row["_rescued_data"] = json!(rescued.replace(&*landing, ""));
        }
        row
    };
    rows.into_iter().map(timeless).collect()
}

pub(crate) fn contents(project: &Project) -> Vec<(&'static str, Vec<Value>)> {
    let landing = project.path("landing");
    TABLES.iter().map(|table| (*table, timeless(project.rows(&format!("SELECT * FROM {table}")), &landing))).collect()
}

pub(crate) fn assert_same_contents(context: &str, actual: &[(&str, Vec<Value>)], expected: &[(&str, Vec<Value>)]) {
    for ((name, actual), (_, expected)) in actual.iter().zip(expected) {
        assert_rows(&format!("{context}, {name}"), actual, expected);
    }
}

/// The example with the feeds still to come.
pub(crate) fn without_feeds() -> Project {
    let project = Project::copy_of(EXAMPLE);
    for feed in ["customers", "products", "orders", "order_items"] {
        fs::remove_dir_all(project.path("landing").join(feed)).unwrap();
        fs::create_dir_all(project.path("landing").join(feed)).unwrap();
    }
    project
}

pub(crate) fn land_batch(project: &Project, batch: usize) {
    let landing = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE).join("landing");
    for feed in fs::read_dir(landing).unwrap().map(|feed| feed.unwrap().path()) {
        let file = format!("batch_{batch:03}.json");
        let target = project.path("landing").join(feed.file_name().unwrap()).join(&file);
        fs::copy(feed.join(&file), target).unwrap();
    }
}

#[test]
fn a_second_run_finds_nothing_new_and_commits_nothing() {
    let project = Project::copy_of(EXAMPLE);
    let first = project.run(2).unwrap();
    assert!(first.changed());
    assert_eq!(first.files, 12);
    let before = project.versions();
    let second = project.run(2).unwrap();
    assert!(!second.changed() && second.epochs.is_empty());
    assert_eq!(second.last_epoch, first.last_epoch);
    assert_eq!(project.versions(), before);
}

#[test]
fn every_row_that_is_read_is_accounted_for() {
    let project = Project::copy_of(EXAMPLE);
    let report = project.run(2).unwrap();
    for table in &report.tables {
        let places = table.valid + table.quarantined + table.dropped;
        assert_eq!(table.read, places, "{}", table.name);
    }
    let count = |sql: &str| project.rows(sql)[0]["n"].as_i64().unwrap();
    for (feed, lines) in [("customers", 18), ("products", 21), ("orders", 162), ("order_items", 188)] {
        let bronze = table(&report, &format!("{feed}_bronze"));
        assert_eq!(bronze.read, lines, "{feed}");
        assert_eq!(bronze.valid, count(&format!("SELECT COUNT(*) AS n FROM {feed}_bronze")));
        assert_eq!(bronze.quarantined, count(&format!("SELECT COUNT(*) AS n FROM {feed}_bronze_quarantine")));
    }
    for feed in ["orders", "order_items"] {
        let history = table(&report, &format!("silver_{feed}")).read;
        let rejected = table(&report, &format!("silver_{feed}_quarantine")).read;
        assert_eq!(history + rejected, table(&report, &format!("{feed}_bronze")).valid, "{feed}");
    }
}

#[test]
fn batch_by_batch_ends_where_all_at_once_ends() {
    let whole = Project::copy_of(EXAMPLE);
    whole.run(1).unwrap();
    let expected = contents(&whole);
    let project = without_feeds();
    let mut waiting = Vec::new();
    for batch in 0..3 {
        land_batch(&project, batch);
        let report = project.run(1 + batch).unwrap();
        assert!(report.changed());
        assert!(report.files <= 4, "files of earlier batches were read again");
        waiting.push(project.rows("SELECT * FROM silver_orders_quarantine").len());
        if batch == 2 {
            assert!(table(&report, "silver_orders_quarantine").verdicts_withdrawn > 0);
        }
    }
    assert_eq!(waiting, [7, 18, 5], "orders that wait for a customer, after each batch");
    assert_same_contents("batch by batch", &contents(&project), &expected);
}

/// Each batch is run by one run after another that dies, each at another step and with other workers, until one gets through.
#[test]
fn killed_and_resumed_at_other_worker_counts_ends_where_all_at_once_ends() {
    let whole = Project::copy_of(EXAMPLE);
    whole.run(1).unwrap();
    let expected = contents(&whole);
    let (project, mut dice, mut deaths) = (without_feeds(), Dice::new(3), 0);
    for batch in 0..3 {
        land_batch(&project, batch);
        for _ in 0..5 {
            let death = Arc::new(Death::at(dice.below(500), dice.once_in(2)));
            let lake = Some(project.watched(death.clone()));
            let outcome = project.run_with(&RunOptions { lake, workers: 1 + dice.below(4), ..RunOptions::default() });
            assert!(outcome.is_ok() || death.happened(), "{outcome:?}");
            deaths += usize::from(outcome.is_err());
        }
        project.run(1 + batch).unwrap();
    }
    assert!(deaths > 5, "only {deaths} deaths");
    assert_same_contents("killed and resumed", &contents(&project), &expected);
    project.assert_clean("killed and resumed");
    assert_eq!(project.epochs_twice(), None);
}

#[test]
fn an_emptied_landing_folder_costs_nothing_and_new_files_still_find_their_history() {
    let whole = Project::copy_of(EXAMPLE);
    whole.run(2).unwrap();
    let project = without_feeds();
    for batch in 0..3 {
        land_batch(&project, batch);
        project.run(2).unwrap();
        for feed in ["customers", "products", "orders", "order_items"] {
            fs::remove_file(project.path(format!("landing/{feed}/batch_{batch:03}.json"))).unwrap();
        }
    }
    assert_same_contents("emptied", &contents(&project), &contents(&whole));
    let before = project.versions();
    assert!(!project.run(2).unwrap().changed());
    assert_eq!(project.versions(), before);
}

#[test]
fn workers_do_not_show() {
    let reference = Project::copy_of(EXAMPLE);
    reference.run(1).unwrap();
    let expected = contents(&reference);
    for workers in [2, 3, 4] {
        let project = Project::copy_of(EXAMPLE);
        project.run(workers).unwrap();
        assert_same_contents(&format!("{workers} workers"), &contents(&project), &expected);
    }
}

#[test]
fn the_queries_of_the_example_answer() {
    let project = Project::copy_of(EXAMPLE);
    project.run(2).unwrap();
    let text = fs::read_to_string(project.path("queries.sql")).unwrap();
    let queries: Vec<&str> = text.split(';').map(str::trim).filter(|query| !query.is_empty()).collect();
    let answers: Vec<Vec<Value>> = queries.iter().map(|query| project.query(query).unwrap()).collect();
    let [current, history, orders, items, warnings] = answers.as_slice() else { panic!("{} queries", answers.len()) };
    let total: i64 = current.iter().map(|row| row["orders"].as_i64().unwrap()).sum();
    assert_eq!(json!(total), project.rows("SELECT COUNT(*) AS n FROM silver_orders WHERE __END_AT IS NULL")[0]["n"]);
    let statuses: Vec<&str> = history.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["PLACED", "SHIPPED", "DELIVERED"]);
    assert_eq!(history[2]["__END_AT"], json!("2025-01-30T01:45:56Z"), "the order was deleted");
    assert_rows("orders", orders, &[json!({"rule": "customer_not_resolved", "rows": 5})]);
    let rules = |rows: &[Value]| rows.iter().map(|row| row["rule"].as_str().unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(rules(items), ["invalid_discount_pct", "product_not_resolved"]);
    assert_eq!(rules(warnings), ["excessive_quantity", "missing_quantity", "negative_net_price"]);
}

#[test]
fn the_builder_makes_the_same_tables() {
    let project = Project::copy_of(EXAMPLE);
    project.run(2).unwrap();
    let embedded = tempfile::tempdir().unwrap();
    copy_folder(&project.path("landing"), &embedded.path().join("landing"));
    let loaded = embed::pipeline(&embedded.path().join("landing"), &embedded.path().join("lakehouse")).unwrap();
    silverflow::runtime::run(&loaded.pipeline, &silverflow::runtime::RunOptions::default()).unwrap();
    for (name, expected) in contents(&project) {
        let answer = silverflow::runtime::query(&loaded.pipeline, &format!("SELECT * FROM {name}")).unwrap();
        let actual = timeless(json_rows(&answer.batches), &embedded.path().join("landing"));
        assert_rows(name, &actual, &expected);
    }
}
