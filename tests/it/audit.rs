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
