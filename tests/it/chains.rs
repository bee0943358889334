//! References that are derived themselves: item, order, customer. What comes or goes at one end is right at the other in the
//! same epoch, whatever the reference is made of.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::{Dice, Project, assert_rows};

const PIPELINE: &str = "
CREATE STREAMING TABLE customer_events AS SELECT * FROM STREAM read_files('landing/customers', format => 'json',
  schema => 'id BIGINT, s BIGINT, op STRING, name STRING');
CREATE STREAMING TABLE customers;
CREATE FLOW c AS AUTO CDC INTO customers FROM STREAM(customer_events) KEYS (id)
APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (op, s) STORED AS SCD TYPE 2;
CREATE TEMPORARY VIEW known_customers AS SELECT DISTINCT id FROM customers WHERE __END_AT IS NULL;

CREATE STREAMING TABLE order_events AS SELECT * FROM STREAM read_files('landing/orders', format => 'json',
  schema => 'id BIGINT, s BIGINT, op STRING, customer BIGINT');
CREATE TEMPORARY VIEW tagged_orders AS
SELECT o.*, CASE WHEN c.id IS NULL THEN 'no_customer' END AS failure FROM STREAM(order_events) o
LEFT JOIN known_customers c ON o.customer = c.id;
CREATE STREAMING TABLE orders_clean (CONSTRAINT has_customer EXPECT (failure IS NULL) ON VIOLATION QUARANTINE)
AS SELECT * FROM STREAM(tagged_orders);
CREATE STREAMING TABLE orders;
CREATE FLOW o AS AUTO CDC INTO orders FROM STREAM(orders_clean) KEYS (id)
APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (op, s, failure) STORED AS SCD TYPE 2;

CREATE STREAMING TABLE item_events AS SELECT * FROM STREAM read_files('landing/items', format => 'json',
  schema => 'id BIGINT, order_id BIGINT');
CREATE STREAMING TABLE items_clean (CONSTRAINT has_order EXPECT (found IS NOT NULL) ON VIOLATION QUARANTINE)
AS SELECT i.*, o.id AS found FROM STREAM(item_events) i
LEFT JOIN (SELECT DISTINCT id FROM orders_clean) o ON i.order_id = o.id;
CREATE STREAMING TABLE items_open AS
SELECT i.id, o.customer FROM STREAM(item_events) i
JOIN (SELECT id, customer FROM orders WHERE __END_AT IS NULL) o ON i.order_id = o.id;
CREATE STREAMING TABLE item_names AS
SELECT i.id, c.name FROM STREAM(items_open) i
LEFT JOIN (SELECT id, name FROM customers WHERE __END_AT IS NULL) c ON i.customer = c.id;
CREATE STREAMING TABLE orphans AS
SELECT i.id FROM STREAM(item_events) i
WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.id = i.order_id AND o.__END_AT IS NULL);

CREATE TEMPORARY VIEW placed AS
SELECT o.id FROM STREAM(order_events) o WHERE EXISTS (SELECT 1 FROM customer_events c WHERE c.id = o.customer);
CREATE STREAMING TABLE items_placed AS
SELECT i.id, p.id IS NOT NULL AS placed FROM STREAM(item_events) i
LEFT JOIN (SELECT DISTINCT id FROM placed) p ON i.order_id = p.id;
";

const TABLES: [&str; 7] =
    ["customers", "orders_clean", "orders", "items_clean", "items_open", "item_names", "items_placed"];

#[derive(Clone, Default)]
struct Feed {
    /// Customer, sequence, name or deleted.
    customers: Vec<(i64, i64, Option<String>)>,
    /// Order, sequence, customer or deleted (of that customer).
    orders: Vec<(i64, i64, i64, bool)>,
    items: Vec<(i64, i64)>,
}

impl Feed {
    fn random(dice: &mut Dice, serial: &mut i64) -> Feed {
        let mut next = |dice: &mut Dice| {
            *serial += 1;
            dice.below(20) as i64 * 1000 + *serial
        };
        Feed {
            customers: (0..dice.below(3))
                .map(|_| {
                    let s = next(dice);
                    (dice.below(4) as i64, s, (!dice.once_in(3)).then(|| format!("n{s}")))
                })
                .collect(),
            orders: (0..dice.below(4))
                .map(|_| (dice.below(5) as i64, next(dice), dice.below(4) as i64, dice.once_in(5)))
                .collect(),
            items: (0..dice.below(4)).map(|_| (next(dice), dice.below(5) as i64)).collect(),
        }
    }

    fn land(&self, project: &Project, file: &str) {
        let op = |deleted: bool| if deleted { "D" } else { "U" };
        let customers = self
            .customers
            .iter()
            .map(|(id, s, name)| json!({"id": id, "s": s, "op": op(name.is_none()), "name": name}));
        project.land("customers", file, &customers.collect::<Vec<_>>());
        let orders = self
            .orders
            .iter()
            .map(|(id, s, customer, deleted)| json!({"id": id, "s": s, "op": op(*deleted), "customer": customer}));
        project.land("orders", file, &orders.collect::<Vec<_>>());
        let items = self.items.iter().map(|(id, order)| json!({"id": id, "order_id": order}));
        project.land("items", file, &items.collect::<Vec<_>>());
    }

    fn add(&mut self, more: &Feed) {
        self.customers.extend(more.customers.iter().cloned());
        self.orders.extend(more.orders.iter().copied());
        self.items.extend(more.items.iter().copied());
    }
}

/// All of it, from the beginning.
fn check(project: &Project, feed: &Feed, context: &str) {
    let mut newest: BTreeMap<i64, &(i64, i64, Option<String>)> = BTreeMap::new();
    for event in &feed.customers {
        if newest.get(&event.0).is_none_or(|known| known.1 < event.1) {
            newest.insert(event.0, event);
        }
    }
    let customers: BTreeMap<i64, &String> = newest.iter().filter_map(|(id, e)| Some((*id, e.2.as_ref()?))).collect();
    let (clean, waiting): (Vec<_>, Vec<_>) =
        feed.orders.iter().partition(|(_, _, customer, _)| customers.contains_key(customer));
    let mut orders: BTreeMap<i64, (i64, i64, bool)> = BTreeMap::new();
    for (id, s, customer, deleted) in clean.iter().copied() {
        if orders.get(&id).is_none_or(|known| known.0 < s) {
            orders.insert(id, (s, customer, deleted));
        }
    }
    let open: BTreeMap<i64, i64> = orders.iter().filter(|(_, o)| !o.2).map(|(id, o)| (*id, o.1)).collect();
    let known: BTreeSet<i64> = clean.iter().map(|(id, ..)| *id).collect();

    let same =
        |sql: &str, expected: Vec<Value>| assert_rows(&format!("{context}: {sql}"), &project.rows(sql), &expected);
    same("SELECT s FROM orders_clean", clean.iter().map(|(_, s, ..)| json!({"s": s})).collect());
    same("SELECT s FROM orders_clean_quarantine", waiting.iter().map(|(_, s, ..)| json!({"s": s})).collect());
    let id = |(id, _): &&(i64, i64)| json!({"id": id});
    let items = |keep: &dyn Fn(i64) -> bool| feed.items.iter().filter(|(_, order)| keep(*order)).collect::<Vec<_>>();
    same("SELECT id FROM items_clean", items(&|o| known.contains(&o)).iter().map(id).collect());
    same("SELECT id FROM items_clean_quarantine", items(&|o| !known.contains(&o)).iter().map(id).collect());
    let with = items(&|o| open.contains_key(&o));
    same(
        "SELECT id, customer FROM items_open",
        with.iter().map(|(i, o)| json!({"id": i, "customer": open[o]})).collect(),
    );
    let name = |(i, o): &&(i64, i64)| json!({"id": i, "name": customers.get(&open[o])});
    same("SELECT id, name FROM item_names", with.iter().map(name).collect());
    let ever: BTreeSet<i64> = feed.customers.iter().map(|(id, ..)| *id).collect();
    let placed: BTreeSet<i64> = feed.orders.iter().filter(|o| ever.contains(&o.2)).map(|(id, ..)| *id).collect();
    let found = feed.items.iter().map(|(i, o)| json!({"id": i, "placed": placed.contains(o)}));
    same("SELECT id, placed FROM items_placed", found.collect());
    same("SELECT id FROM orphans", items(&|o| !open.contains_key(&o)).iter().map(id).collect());
}

#[test]
fn three_levels_are_right_after_every_epoch() {
    for seed in 0..3 {
        let project = Project::new(PIPELINE);
        let mut dice = Dice::new(seed);
        let (mut all, mut serial) = (Feed::default(), 0);
        for batch in 0..7 {
            let feed = Feed::random(&mut dice, &mut serial);
            feed.land(&project, &format!("b{batch}"));
            all.add(&feed);
            let context = format!("seed {seed}, batch {batch}");
            let before = project.held(&TABLES);
            let report = project.run(1 + batch % 4).unwrap();
            check(&project, &all, &context);
            project.assert_touched(&report, &before, &context);
        }
        project.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn one_epoch_takes_an_item_from_one_end_to_the_other_and_back() {
    let project = Project::new(PIPELINE);
    Feed { items: vec![(1, 7)], ..Feed::default() }.land(&project, "a");
    project.run(2).unwrap();
    Feed { orders: vec![(7, 10, 3, false)], ..Feed::default() }.land(&project, "b");
    project.run(2).unwrap();
    assert_rows("waiting", &project.rows("SELECT id FROM items_clean_quarantine"), &[json!({"id": 1})]);
    Feed { customers: vec![(3, 5, Some("x".into()))], ..Feed::default() }.land(&project, "c");
    let report = project.run(3).unwrap();
    assert_eq!(report.epochs.len(), 1);
    assert_rows("resolved", &project.rows("SELECT id, name FROM item_names"), &[json!({"id": 1, "name": "x"})]);
    assert_rows("resolved", &project.rows("SELECT id FROM items_clean"), &[json!({"id": 1})]);
    Feed { customers: vec![(3, 6, None)], ..Feed::default() }.land(&project, "d");
    assert_eq!(project.run(1).unwrap().epochs.len(), 1);
    assert_rows("gone again", &project.rows("SELECT id FROM items_clean_quarantine"), &[json!({"id": 1})]);
    assert_rows("gone again", &project.rows("SELECT id FROM item_names"), &[]);
}

#[test]
fn a_verdict_that_changes_makes_no_other_version() {
    let project = Project::new(
        "CREATE STREAMING TABLE customers AS SELECT * FROM STREAM read_files('landing/customers', format => 'json',
           schema => 'id BIGINT');
         CREATE STREAMING TABLE order_events AS SELECT * FROM STREAM read_files('landing/orders', format => 'json',
           schema => 'id BIGINT, s BIGINT, customer BIGINT, status STRING');
         CREATE TEMPORARY VIEW tagged AS
         SELECT o.*, CASE WHEN c.id IS NULL THEN 'no_customer' END AS warning FROM STREAM(order_events) o
         LEFT JOIN (SELECT DISTINCT id FROM customers) c ON o.customer = c.id;
         CREATE STREAMING TABLE history;
         CREATE FLOW h AS AUTO CDC INTO history FROM STREAM(tagged) KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s)
         STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (warning);",
    );
    let order = |s: i64, customer: i64, status: &str| json!({"id": 1, "s": s, "customer": customer, "status": status});
    project.land(
        "orders",
        "a",
        &[order(10, 1, "placed"), order(20, 2, "paid"), order(30, 1, "sent"), order(40, 3, "done")],
    );
    std::fs::create_dir_all(project.path("landing/customers")).unwrap();
    project.run(2).unwrap();
    let bounds = "SELECT status, __START_AT, __END_AT FROM history";
    let before = project.rows(bounds);
    assert_eq!(before.len(), 4);
    project.land("customers", "a", &[json!({"id": 2})]);
    let report = project.run(2).unwrap();
    assert_rows("bounds", &project.rows(bounds), &before);
    let history = report.tables.iter().find(|t| t.name.ends_with("history")).unwrap();
    assert_eq!((history.inserted, history.deleted), (1, 1), "the one version whose tag changes");
    let warned = project.rows("SELECT status FROM history WHERE warning IS NOT NULL");
    assert_rows("warned", &warned, &["placed", "sent", "done"].map(|status| json!({"status": status})));
}
