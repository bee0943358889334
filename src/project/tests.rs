#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use crate::error::Error;
use crate::pipeline::Graph;

/// Every error on a line of its own: place, code and message.
pub(crate) fn errors(error: &Error) -> String {
    let line = |e: &Error| {
        let place = e
            .place()
            .span
            .as_ref()
            .map_or("-".to_owned(), |span| format!("{}:{}:{}", span.file, span.line, span.column));
        format!("{place} {} {}", e.code(), e.message())
    };
    std::iter::once(error).chain(error.others()).map(line).collect::<Vec<_>>().join("\n")
}

fn settings() -> Settings {
    Settings { root: "/p".into(), storage: "/p/storage".into(), ..Settings::default() }
}

pub(crate) fn outcome(sources: &[(&str, &str)]) -> String {
    match load_sql(sources, &settings()) {
        Ok(loaded) => Graph::new(&loaded.pipeline).unwrap().render(&loaded.pipeline),
        Err(error) => errors(&error),
    }
}

const SHOP: &str = "
CREATE OR REFRESH STREAMING TABLE bronze.orders_raw (
  order_id STRING NOT NULL COMMENT 'key', amount DECIMAL(10, 2), updated_at TIMESTAMP,
  CONSTRAINT has_id EXPECT (order_id IS NOT NULL) ON VIOLATION FAIL UPDATE,
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION QUARANTINE ROW
)
USING DELTA COMMENT 'as it came' TBLPROPERTIES ('quality' = 'bronze', pipelines.reset.allowed = false)
AS SELECT * FROM STREAM read_files('${root}/orders', format => 'json');

CREATE TEMPORARY VIEW clean_orders (CONSTRAINT known EXPECT (c.region IS NOT NULL) ON VIOLATION DROP ROW)
AS SELECT o.* FROM STREAM(bronze.orders_raw) o LEFT JOIN customers c ON o.customer_id = c.customer_id;

CREATE OR REFRESH PRIVATE STREAMING TABLE orders;
CREATE FLOW merge COMMENT 'history' AS AUTO CDC INTO orders FROM STREAM(clean_orders)
  SEQUENCE BY STRUCT(updated_at, amount) STORED AS SCD TYPE 2 KEYS (order_id)
  COLUMNS * EXCEPT (op, updated_at) APPLY AS DELETE WHEN op = 'D' TRACK HISTORY ON * EXCEPT (amount)
  IGNORE NULL UPDATES;
APPLY CHANGES INTO customers FROM STREAM raw.customers KEYS customer_id SEQUENCE BY ts
  APPLY AS TRUNCATE WHEN op = 'T';
CREATE STREAMING TABLE customers;
CREATE MATERIALIZED VIEW big AS SELECT * FROM orders WHERE amount > 100 AND __END_AT IS NULL;
CREATE FLOW backfill AS INSERT INTO ONCE bronze.orders_raw BY NAME SELECT * FROM main.old.orders;
CREATE STREAMING TABLE rejected AS SELECT * FROM STREAM bronze.orders_raw_quarantine;
SET root = /landing;
";

#[test]
fn a_whole_pipeline_is_resolved() {
    let text = format!("SET root = /landing;{SHOP}");
    let shown = outcome(&[("a.sql", &text)]);
    insta::assert_snapshot!(shown, @r#"
    bronze.orders_raw (streaming table)
      flow backfill: once, from outside table main.old.orders
      from stream of files /landing/orders
      expect has_id: order_id IS NOT NULL [fail]
      expect positive: amount > 0 [quarantine]
      quarantine bronze.orders_raw_quarantine
    customers (streaming table)
      AUTO CDC from stream of outside table main.raw.customers, SCD type 1, keys customer_id, sequence ts, truncate when op = 'T'
    clean_orders (view)
      from stream of bronze.orders_raw, customers
      expect known: c.region IS NOT NULL [drop]
    orders (private streaming table)
      flow merge: AUTO CDC from stream of clean_orders, SCD type 2, keys order_id, sequence STRUCT(updated_at, amount), delete when op = 'D', columns * except (op, updated_at), history of * except (amount), nulls keep the value before
    big (materialized view)
      from orders
    rejected (streaming table)
      from stream of bronze.orders_raw_quarantine
    "#);
}

#[test]
fn the_order_of_files_and_statements_does_not_matter() {
    let statements: Vec<String> = SHOP.replace("${root}", "/landing").split_inclusive(';').map(str::to_owned).collect();
    let names: Vec<String> = (0..statements.len()).map(|i| format!("{i:02}.sql")).collect();
    let mut files: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(statements.iter().map(String::as_str)).collect();
    let forwards = outcome(&files);
    files.reverse();
    assert_eq!(outcome(&files), forwards);
    let text = format!("SET root = /landing;{SHOP}");
    assert_eq!(outcome(&[("a.sql", &text)]), forwards);
}
