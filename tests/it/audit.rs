//! What the tables held at the end of an epoch can be asked for later.

use serde_json::{Value, json};

use crate::support::{Project, assert_rows};

const PIPELINE: &str = "
CREATE STREAMING TABLE customers AS SELECT * FROM STREAM read_files('landing/customers', format => 'json',
  schema => 'id BIGINT');
CREATE STREAMING TABLE order_events AS SELECT * FROM STREAM read_files('landing/orders', format => 'json',
  schema => 'id BIGINT, customer BIGINT');
CREATE STREAMING TABLE orders (CONSTRAINT known EXPECT (found IS NOT NULL) ON VIOLATION QUARANTINE) AS
SELECT o.*, c.id AS found FROM STREAM(order_events) o
LEFT JOIN (SELECT DISTINCT id FROM customers) c ON o.customer = c.id;
";

#[test]
fn every_table_is_shown_as_it_was_at_the_end_of_an_epoch() {
    let project = Project::new(PIPELINE);
    std::fs::create_dir_all(project.path("landing/customers")).unwrap();
    let queries = ["SELECT id FROM orders", "SELECT id, _dq_failed FROM orders_quarantine", "SELECT id FROM customers"];
    let mut seen: Vec<(u64, Vec<Vec<Value>>)> = Vec::new();
    for round in 0..6i64 {
        let order = |i: i64| json!({"id": round * 10 + i, "customer": (round + i) % 4});
        project.land("orders", &format!("r{round}"), &[order(0), order(1)]);
        if round % 2 == 1 {
            project.land("customers", &format!("r{round}"), &[json!({"id": round % 4})]);
        }
        let report = project.run(1 + round as usize % 2).unwrap();
        seen.push((report.last_epoch.unwrap(), queries.iter().map(|sql| project.rows(sql)).collect()));
    }
    for (epoch, answers) in &seen {
        for (sql, answer) in queries.iter().zip(answers) {
            assert_rows(&format!("{sql} as of epoch {epoch}"), &project.query_as_of(sql, *epoch).unwrap(), answer);
        }
    }
    let last = seen.last().unwrap().0;
    assert_eq!(project.query_as_of(queries[0], last + 1).unwrap_err().code(), "EPOCH_NOT_KEPT");
    assert_eq!(project.query_as_of(queries[0], 0).unwrap_err().code(), "EPOCH_NOT_KEPT");
}

#[test]
fn an_epoch_whose_files_are_gone_is_said_to_be() {
    let retention = "TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 seconds') AS\nSELECT o.*";
    let project = Project::new(&PIPELINE.replace("AS\nSELECT o.*", retention));
    let sql = "SELECT id FROM orders_quarantine";
    project.land("customers", "a", &[json!({"id": 1})]);
    for round in 0..8i64 {
        let rows = [json!({"id": round, "customer": 1}), json!({"id": 100 + round, "customer": 10 + round})];
        project.land("orders", &format!("r{round}"), &rows);
        project.land("customers", &format!("r{round}"), &[json!({"id": 9 + round})]);
        project.run(1).unwrap();
    }
    assert_eq!(project.query_as_of(sql, 2).unwrap().len(), 1);
    project.optimize(true);
    let error = project.query_as_of(sql, 2).unwrap_err();
    assert_eq!((error.code(), error.fault().exit_code()), ("EPOCH_NOT_KEPT", 2), "{error}");
    for part in ["main.default.orders_quarantine", "removed since", "deletedFileRetentionDuration"] {
        assert!(error.to_string().contains(part), "{part} is missing in {error}");
    }
    assert_rows("the last epoch", &project.query_as_of(sql, 8).unwrap(), &project.rows(sql));
    assert_eq!(project.query_as_of("SELECT id FROM customers", 2).unwrap().len(), 3);
}

const LOOKED_UP: &str = "
CREATE STREAMING TABLE customer_events AS SELECT * FROM STREAM read_files('landing/customers', format => 'json',
  schema => 'id BIGINT, s BIGINT, op STRING');
CREATE STREAMING TABLE customers;
CREATE FLOW c AS AUTO CDC INTO customers FROM STREAM(customer_events) KEYS (id)
APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (op, s) STORED AS SCD TYPE 1;
CREATE STREAMING TABLE order_events (CONSTRAINT begun EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE)
TBLPROPERTIES ('silverflow.quarantine' = 'history')
AS SELECT * FROM STREAM read_files('landing/orders', format => 'json', schema => 'id BIGINT, customer BIGINT, at TIMESTAMP');
CREATE STREAMING TABLE orders (CONSTRAINT known EXPECT (found IS NOT NULL) ON VIOLATION QUARANTINE)
AS SELECT o.id, o.customer, c.id AS found FROM STREAM(order_events) o LEFT JOIN customers c ON o.customer = c.id;
CREATE STREAMING TABLE kept (CONSTRAINT known EXPECT (found IS NOT NULL) ON VIOLATION QUARANTINE)
TBLPROPERTIES ('silverflow.quarantine' = 'history')
AS SELECT * FROM STREAM(orders) UNION ALL SELECT id, customer, CAST(NULL AS BIGINT) AS found FROM STREAM(orders_quarantine);
";

#[test]
fn a_quarantine_tells_when_a_row_came_and_with_history_when_it_left() {
    let project = Project::new(LOOKED_UP);
    let order = |id: i64, customer: i64, at: &str| json!({"id": id, "customer": customer, "at": at});
    let customer = |id: i64, s: i64, op: &str| json!({"id": id, "s": s, "op": op});
    let now = "2026-01-10T00:00:00Z";
    // Two alike, one that is early.
    project.land("orders", "a", &[order(1, 7, "2026-01-01T00:00:00Z"), order(1, 7, "2026-01-01T00:00:00Z")]);
    project.land("orders", "b", &[order(2, 8, "2026-01-12T00:00:00Z")]);
    std::fs::create_dir_all(project.path("landing/customers")).unwrap();
    project.run_at(now, 2).unwrap();
    project.land("orders", "c", &[order(3, 7, "2026-01-01T00:00:00Z"), order(4, 9, "2026-01-01T00:00:00Z")]);
    project.run_at(now, 1).unwrap();
    let entered = "SELECT id, _epoch FROM orders_quarantine";
    let row = |id: i64, epoch: u64| json!({"id": id, "_epoch": epoch});
    assert_rows("entered", &project.rows(entered), &[row(1, 1), row(1, 1), row(3, 2), row(4, 2)]);
    project.assert_clean("entered");

    project.land("customers", "a", &[customer(7, 1, "U")]);
    project.run_at(now, 3).unwrap();
    assert_rows("left", &project.rows(entered), &[row(4, 2)]);
    project.land("customers", "b", &[customer(7, 2, "D")]);
    project.run_at("2026-01-13T00:00:00Z", 2).unwrap();
    let again = [row(1, 4), row(1, 4), row(2, 4), row(3, 4), row(4, 2)];
    assert_rows("back again", &project.rows(entered), &again);
    project.assert_clean("back again");

    let stay = |id: i64, epoch: u64, left: Option<u64>| json!({"id": id, "_epoch": epoch, "_left_epoch": left});
    let history = |table: &str| project.rows(&format!("SELECT id, _epoch, _left_epoch FROM {table}_quarantine"));
    // The one that was early arrived in epoch 1, and was released in the epoch in which its time had come.
    assert_rows("replay point", &history("order_events"), &[stay(2, 1, Some(4))]);
    let stays = [
        stay(1, 1, Some(3)),
        stay(1, 1, Some(3)),
        stay(3, 2, Some(3)),
        stay(4, 2, None),
        stay(1, 4, None),
        stay(1, 4, None),
        stay(2, 4, None),
        stay(3, 4, None),
    ];
    assert_rows("derived", &history("kept"), &stays);

    // A definition that changes nothing but the name of a rule leaves the epochs as they are where rows stay.
    project.define(&LOOKED_UP.replace("at <= current_timestamp()", "at <= current_timestamp() AND true"));
    project.run_at("2026-01-13T00:00:00Z", 2).unwrap();
    assert_rows("set by comparison", &project.rows(entered), &again);
    project.assert_clean("set by comparison");
    assert_rows(
        "read back",
        &project.rows("SELECT id FROM order_events"),
        &[1, 1, 2, 3, 4].map(|id| json!({"id": id})),
    );
}

#[test]
fn history_is_for_tables_with_a_quarantine() {
    let project = Project::new(
        "CREATE STREAMING TABLE t TBLPROPERTIES ('silverflow.quarantine' = 'history') AS
           SELECT * FROM STREAM read_files('landing/t', format => 'json', schema => 'id BIGINT');",
    );
    assert_eq!(project.run(1).unwrap_err().code(), "INVALID_PROPERTY_VALUE");
}
