//! `silverflow.resolution = 'arrival'`: what is decided when a row arrives, batch by batch, stays decided.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Dice, Project, assert_rows};

const PIPELINE: &str = "
CREATE STREAMING TABLE customer_events AS SELECT * FROM STREAM read_files('landing/customers', format => 'json',
  schema => 'id BIGINT, s BIGINT, op STRING, name STRING');
CREATE STREAMING TABLE customers;
CREATE FLOW c AS AUTO CDC INTO customers FROM STREAM(customer_events) KEYS (id)
APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (op, s) STORED AS SCD TYPE 2;

CREATE STREAMING TABLE orders AS SELECT * FROM STREAM read_files('landing/orders', format => 'json',
  schema => 'id BIGINT, customer BIGINT');
CREATE TEMPORARY VIEW tagged AS
SELECT o.*, c.name, c.id IS NOT NULL AS known FROM STREAM(orders) o
LEFT JOIN (SELECT id, name FROM customers WHERE __END_AT IS NULL) c ON o.customer = c.id;

CREATE STREAMING TABLE followed (CONSTRAINT customer_known EXPECT (known) ON VIOLATION QUARANTINE)
AS SELECT * FROM STREAM(tagged);
CREATE STREAMING TABLE decided (CONSTRAINT customer_known EXPECT (known) ON VIOLATION QUARANTINE)
TBLPROPERTIES ('silverflow.resolution' = 'arrival')
AS SELECT * FROM STREAM(tagged);
CREATE STREAMING TABLE matched TBLPROPERTIES ('silverflow.resolution' = 'arrival')
AS SELECT o.id, c.name FROM customers c JOIN STREAM(orders) o ON o.customer = c.id AND c.__END_AT IS NULL;
CREATE STREAMING TABLE strangers TBLPROPERTIES ('silverflow.resolution' = 'arrival')
AS SELECT o.id FROM STREAM(orders) o WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.id = o.customer AND c.__END_AT IS NULL);

CREATE STREAMING TABLE after_it;
CREATE FLOW a AS AUTO CDC INTO after_it FROM STREAM(decided) KEYS (id) SEQUENCE BY id STORED AS SCD TYPE 1;
";

#[derive(Clone)]
struct Event {
    id: i64,
    s: i64,
    /// None: deleted.
    name: Option<String>,
}

/// What is known of the customers when these events have come.
fn known(events: &[Event]) -> BTreeMap<i64, String> {
    let mut newest: BTreeMap<i64, &Event> = BTreeMap::new();
    for event in events {
        let known = newest.entry(event.id).or_insert(event);
        if known.s < event.s {
            *known = event;
        }
    }
    newest.into_iter().filter_map(|(id, event)| Some((id, event.name.clone()?))).collect()
}

type Order = (i64, i64);

fn row((id, customer): Order, known: &BTreeMap<i64, String>) -> Value {
    json!({"id": id, "customer": customer, "name": known.get(&customer), "known": known.contains_key(&customer)})
}

struct Batch {
    events: Vec<Event>,
    orders: Vec<Order>,
}

fn batches(seed: u64, count: usize) -> Vec<Batch> {
    let mut dice = Dice::new(seed);
    let mut serial = 0;
    let mut event = |dice: &mut Dice| {
        serial += 1;
        let name = (!dice.once_in(4)).then(|| format!("n{serial}"));
        // Events come out of order, and no two have one sequence.
        Event { id: dice.below(8) as i64, s: dice.below(30) as i64 * 100 + serial, name }
    };
    (0..count)
        .map(|batch| Batch {
            events: (0..dice.below(4)).map(|_| event(&mut dice)).collect(),
            orders: (0..1 + dice.below(5)).map(|i| ((batch * 10 + i) as i64, dice.below(8) as i64)).collect(),
        })
        .collect()
}

fn land(project: &Project, number: usize, batch: &Batch) {
    let event =
        |e: &Event| json!({"id": e.id, "s": e.s, "op": if e.name.is_some() { "U" } else { "D" }, "name": e.name});
    let order = |(id, customer): &Order| json!({"id": id, "customer": customer});
    project.land("customers", &format!("b{number}"), &batch.events.iter().map(event).collect::<Vec<_>>());
    project.land("orders", &format!("b{number}"), &batch.orders.iter().map(order).collect::<Vec<_>>());
}

fn check(project: &Project, rows: &[Value], context: &str) {
    let is = |known: bool| rows.iter().filter(|r| r["known"] == known).cloned().collect::<Vec<_>>();
    let columns = "id, customer, name, known";
    let same = |sql: &str, expected: &[Value]| assert_rows(&format!("{context}: {sql}"), &project.rows(sql), expected);
    same(&format!("SELECT {columns} FROM decided"), &is(true));
    same(&format!("SELECT {columns} FROM decided_quarantine"), &is(false));
    same(&format!("SELECT {columns} FROM after_it"), &is(true));
    let short = |r: &Value| json!({"id": r["id"], "name": r["name"]});
    same("SELECT id, name FROM matched", &is(true).iter().map(short).collect::<Vec<_>>());
    same("SELECT id FROM strangers", &is(false).iter().map(|r| json!({"id": r["id"]})).collect::<Vec<_>>());
}

#[test]
fn rows_are_decided_by_what_is_known_before_their_batch_and_never_again() {
    for seed in 0..2 {
        let project = Project::new(PIPELINE);
        let mut events: Vec<Event> = Vec::new();
        let mut orders: Vec<Order> = Vec::new();
        let mut rows: Vec<Value> = Vec::new();
        for (number, batch) in batches(seed, 7).iter().enumerate() {
            let before = known(&events);
            land(&project, number, batch);
            project.run(1 + number % 3).unwrap();
            rows.extend(batch.orders.iter().map(|order| row(*order, &before)));
            events.extend(batch.events.iter().cloned());
            orders.extend(&batch.orders);
            let context = format!("seed {seed}, batch {number}");
            check(&project, &rows, &context);
            let now = known(&events);
            let live: Vec<Value> =
                orders.iter().map(|order| row(*order, &now)).filter(|row| row["known"] == true).collect();
            assert_rows(&context, &project.rows("SELECT id, customer, name, known FROM followed"), &live);
            if number % 3 == 2 {
                project.assert_clean(&context);
            }
            if number % 3 == 2 && !project.rows("SELECT id FROM after_it").is_empty() {
                std::fs::remove_dir_all(project.path("lakehouse/main/default/after_it")).unwrap();
                project.run(2).unwrap();
                check(&project, &rows, &format!("{context}, after a rebuild"));
            }
        }
        // A definition is for rows to come.
        project.define(&PIPELINE.replace("c.id IS NOT NULL AS known", "c.id IS NOT NULL OR o.customer >= 0 AS known"));
        project.run(2).unwrap();
        check(&project, &rows, "redefined");
        project.land("orders", "last", &[json!({"id": 1000, "customer": 99})]);
        project.run(2).unwrap();
        let last = json!({"id": 1000, "customer": 99, "name": null, "known": true});
        assert_rows("last", &project.rows("SELECT id, customer, name, known FROM decided WHERE id = 1000"), &[last]);
    }
}

#[test]
fn what_is_there_when_the_table_is_new_is_decided_by_what_is_known_then() {
    let (before, _) = PIPELINE.split_once("CREATE STREAMING TABLE followed").unwrap();
    let project = Project::new(before);
    let all = batches(9, 5);
    let (mut events, mut orders): (Vec<Event>, Vec<Order>) = (Vec::new(), Vec::new());
    for (number, batch) in all.iter().take(4).enumerate() {
        land(&project, number, batch);
        project.run(2).unwrap();
        events.extend(batch.events.iter().cloned());
        orders.extend(&batch.orders);
    }
    project.define(PIPELINE);
    project.run(3).unwrap();
    let now = known(&events);
    let mut rows: Vec<Value> = orders.iter().map(|order| row(*order, &now)).collect();
    check(&project, &rows, "new");
    land(&project, 4, &all[4]);
    project.run(1).unwrap();
    rows.extend(all[4].orders.iter().map(|order| row(*order, &now)));
    check(&project, &rows, "new, and a batch");
    project.assert_clean("new, and a batch");
}

#[test]
fn what_may_be_taken_back_cannot_be_decided() {
    let table = |query: &str| {
        format!("{PIPELINE} CREATE STREAMING TABLE x TBLPROPERTIES ('silverflow.resolution' = 'arrival') AS {query};")
    };
    for (query, code) in [
        ("SELECT * FROM STREAM(followed)", "ARRIVAL_OVER_CHANGES"),
        ("SELECT * FROM STREAM(customers)", "ARRIVAL_OVER_CHANGES"),
        ("SELECT DISTINCT customer FROM STREAM(orders)", "NOT_SUPPORTED"),
    ] {
        let project = Project::new(&table(query));
        std::fs::create_dir_all(project.path("landing/customers")).unwrap();
        std::fs::create_dir_all(project.path("landing/orders")).unwrap();
        assert_eq!(project.run(1).unwrap_err().code(), code, "{query}");
    }
    let view = PIPELINE.replace(
        "CREATE STREAMING TABLE customers;",
        "CREATE STREAMING TABLE customers TBLPROPERTIES ('silverflow.resolution' = 'arrival');",
    );
    assert_eq!(Project::new(&view).run(1).unwrap_err().code(), "INVALID_PROPERTY_VALUE");
}
