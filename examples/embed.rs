//! The pipeline of `examples/step_right`, built and run from Rust.
//!
//! ```text
//! cargo run --example embed -- STORAGE
//! ```
//!
//! What SQL has to spell out four times, a program says once: the contract of the bronze tables and the two tiers of
//! rules are functions here. The tables are the same as those of the SQL project.

use std::path::{Path, PathBuf};

use arrow::util::pretty::print_batches;
use silverflow::error::Result;
use silverflow::pipeline::{Action, Pipeline, PipelineBuilder, ScdType};
use silverflow::project::Loaded;
use silverflow::runtime::{self, RunOptions};

/// A change feed: its name, key, and the columns between the key and the columns that every feed has.
struct Feed {
    name: &'static str,
    key: &'static str,
    columns: &'static str,
    has_operation: bool,
}

const FEEDS: [Feed; 4] = [
    Feed {
        name: "customers",
        key: "customer_id",
        columns: "first_name STRING, last_name STRING, email STRING, region STRING, signup_date DATE",
        has_operation: true,
    },
    Feed {
        name: "products",
        key: "product_id",
        columns: "product_name STRING, category STRING, list_price DECIMAL(10, 2), launch_date DATE",
        has_operation: false,
    },
    Feed {
        name: "orders",
        key: "order_id",
        columns: "customer_id STRING, order_date DATE, status STRING",
        has_operation: true,
    },
    Feed {
        name: "order_items",
        key: "order_item_id",
        columns: "order_id STRING, product_id STRING, quantity INT, unit_price DECIMAL(10, 2), discount_pct DECIMAL(5, 1)",
        has_operation: true,
    },
];

/// A bronze table under the contract that every feed has to keep.
fn bronze(pipeline: PipelineBuilder, feed: &Feed) -> PipelineBuilder {
    let Feed { name, key, columns, has_operation } = feed;
    let operation = if *has_operation { "operation STRING, " } else { "" };
    let rescued = if *name == "order_items" { ", _rescued_data STRING" } else { "" };
    let option = if *name == "order_items" { ", rescuedDataColumn => '_rescued_data'" } else { "" };
    let read = format!(
        "SELECT * FROM STREAM read_files('${{landing}}/{name}', format => 'json'{option}, schema => \
         '{key} STRING, {columns}, {operation}updated_at TIMESTAMP, _corrupt_record STRING{rescued}')"
    );
    let unless_unreadable = |condition: &str| format!("_corrupt_record IS NOT NULL OR {condition}");
    pipeline.streaming_table(&format!("{name}_bronze"), |table| {
        let mut table = table
            .query(read)
            .expect("readable", "_corrupt_record IS NULL", Action::Quarantine)
            .expect("not_from_the_future", unless_unreadable("updated_at <= current_timestamp()"), Action::Quarantine)
            .expect("has_key", unless_unreadable(&format!("{key} IS NOT NULL")), Action::Fail)
            .expect("has_sequence", unless_unreadable("updated_at IS NOT NULL"), Action::Fail);
        if *has_operation {
            let known = unless_unreadable("operation IN ('UPSERT', 'DELETE')");
            table = table.expect("known_operation", known, Action::Fail);
        }
        if *name == "order_items" {
            table = table.expect("nothing_rescued", "_rescued_data IS NULL", Action::Warn);
        }
        table
    })
}

/// The names of the rules that a row breaks, as an array. A rule is a name and the condition that breaks it.
fn tags(rules: &[(&str, &str)]) -> String {
    let case = |(name, broken): &(&str, &str)| format!("CASE WHEN {broken} THEN '{name}' END");
    let cases: Vec<String> = rules.iter().map(case).collect();
    format!("array_except(array({}), array(CAST(NULL AS STRING)))", cases.join(", "))
}

/// Tagged rows, the history of those that break no critical rule, and the quarantine of the others.
fn silver(
    pipeline: PipelineBuilder,
    name: &str,
    key: &str,
    columns: &str,
    source: &str,
    critical: &[(&str, &str)],
    warnings: &[(&str, &str)],
) -> PipelineBuilder {
    let tagged = format!(
        "SELECT {columns}, {} AS _dq_critical_failures, {} AS _dq_warnings FROM {source}",
        tags(critical),
        tags(warnings)
    );
    let clean = format!(
        "SELECT * EXCEPT (_dq_critical_failures) FROM STREAM({name}_tagged) WHERE size(_dq_critical_failures) = 0"
    );
    let rejected = format!("SELECT * FROM STREAM({name}_tagged) WHERE size(_dq_critical_failures) > 0");
    pipeline
        .view(&format!("{name}_tagged"), &tagged)
        .view(&format!("{name}_clean"), &clean)
        .streaming_table(&format!("silver_{name}"), |table| table)
        .auto_cdc(&format!("{name}_history"), &format!("silver_{name}"), &format!("{name}_clean"), |flow| {
            flow.keys([key])
                .delete_when("operation = 'DELETE'")
                .sequence_by("updated_at")
                .except_columns(["operation", "updated_at"])
                .track_history_except(["_dq_warnings"])
                .scd(ScdType::Two)
        })
        .streaming_table(&format!("silver_{name}_quarantine"), |table| table)
        .append_flow(&format!("{name}_rejected"), &format!("silver_{name}_quarantine"), &rejected)
}

/// The whole pipeline, checked.
pub fn pipeline(landing: &Path, storage: &Path) -> Result<Loaded> {
    let mut pipeline = Pipeline::builder("step_right")
        .storage(storage.to_string_lossy())
        .schema("step_right")
        .configuration("landing", landing.display());
    for feed in &FEEDS {
        pipeline = bronze(pipeline, feed);
    }
    pipeline = pipeline
        .view("known_customers", "SELECT DISTINCT customer_id FROM customers_bronze")
        .view("known_products", "SELECT DISTINCT product_id FROM products_bronze")
        .view("known_orders", "SELECT DISTINCT order_id FROM orders_bronze");

    let region = [
        ("missing_region", "region IS NULL"),
        ("invalid_region", "region NOT IN ('NORTHEAST', 'SOUTHEAST', 'MIDWEST', 'WEST')"),
    ];
    let tagged = format!(
        "SELECT customer_id, first_name, last_name, email, region, signup_date, operation, updated_at, \
         {} AS _dq_warnings FROM STREAM(customers_bronze)",
        tags(&region)
    );
    pipeline = pipeline
        .view("customers_tagged", &tagged)
        .streaming_table("silver_customers", |table| table)
        .auto_cdc("customers_history", "silver_customers", "customers_tagged", |flow| {
            flow.keys(["customer_id"])
                .delete_when("operation = 'DELETE'")
                .sequence_by("updated_at")
                .except_columns(["operation", "updated_at"])
                .track_history_except(["_dq_warnings"])
                .scd(ScdType::Two)
        })
        .streaming_table("silver_products", |table| table)
        .auto_cdc("products_history", "silver_products", "products_bronze", |flow| {
            flow.keys(["product_id"])
                .sequence_by("updated_at")
                .except_columns(["updated_at", "_corrupt_record"])
                .scd(ScdType::Two)
        });

    pipeline = silver(
        pipeline,
        "orders",
        "order_id",
        "o.order_id, o.customer_id, o.order_date, o.status, o.operation, o.updated_at",
        "STREAM(orders_bronze) AS o LEFT JOIN known_customers AS c ON o.customer_id = c.customer_id",
        &[("customer_not_resolved", "o.operation <> 'DELETE' AND c.customer_id IS NULL")],
        &[
            ("missing_order_date", "o.operation <> 'DELETE' AND o.order_date IS NULL"),
            ("unknown_status", "o.status NOT IN ('PLACED', 'SHIPPED', 'DELIVERED', 'CANCELLED')"),
            ("future_order_date", "o.order_date > current_date()"),
        ],
    );
    pipeline = silver(
        pipeline,
        "order_items",
        "order_item_id",
        "i.order_item_id, i.order_id, i.product_id, i.quantity, i.unit_price, i.discount_pct, i.operation, i.updated_at",
        "STREAM(order_items_bronze) AS i LEFT JOIN known_products AS p ON i.product_id = p.product_id \
         LEFT JOIN known_orders AS o ON i.order_id = o.order_id",
        &[
            ("invalid_discount_pct", "i.discount_pct < 0 OR i.discount_pct > 100"),
            ("product_not_resolved", "i.operation <> 'DELETE' AND p.product_id IS NULL"),
        ],
        &[
            ("missing_quantity", "i.operation <> 'DELETE' AND i.quantity IS NULL"),
            ("order_not_resolved", "i.operation <> 'DELETE' AND o.order_id IS NULL"),
            ("negative_net_price", "i.unit_price * (1 - i.discount_pct / 100) < 0"),
            ("excessive_quantity", "i.quantity > 10"),
        ],
    );
    pipeline.build()
}

fn main() -> Result<()> {
    let storage = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/embed"), PathBuf::from);
    let landing = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/step_right/landing");
    let loaded = pipeline(&landing, &storage)?;
    let report = runtime::run(&loaded.pipeline, &RunOptions { workers: 2, ..RunOptions::default() })?;
    for table in &report.tables {
        println!("{:50} read {:4} quarantined {:3} -> {}", table.name, table.read, table.quarantined, table.location);
    }
    let current =
        "SELECT status, COUNT(*) AS orders FROM silver_orders WHERE __END_AT IS NULL GROUP BY status ORDER BY status";
    let answer = runtime::query(&loaded.pipeline, current)?;
    print_batches(&answer.batches).map_err(|e| silverflow::error::Error::internal("rows cannot be shown").caused_by(e))
}
