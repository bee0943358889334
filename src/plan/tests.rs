//! Pipelines in SQL against the plan they give, or the error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::{Feed, Input, MatchKind, Node, Outside, Plan, SourceKind, Stored, analyze};
use crate::error::Result;
use crate::pipeline::{Settings, TableName};
use crate::project::load_sql;

struct Declared;

impl Outside for Declared {
    fn warnings(&self, _: &SourceKind) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn schema(&self, _: &str, kind: &SourceKind) -> Result<SchemaRef> {
        Ok(match kind {
            SourceKind::Files(read) => read.schema.clone().expect("tests declare schemas"),
            SourceKind::Delta { .. } => Arc::new(Schema::new(vec![
                Field::new("id", DataType::Int64, true),
                Field::new("name", DataType::Utf8, true),
            ])),
        })
    }

    fn stored(&self, _: &TableName) -> Result<Option<SchemaRef>> {
        Ok(None)
    }

    fn metadata(&self) -> Field {
        let path = Field::new("file_path", DataType::Utf8, true);
        Field::new("_metadata", DataType::Struct(vec![path].into()), true)
    }

    fn location(&self, name: &TableName) -> String {
        name.to_string()
    }
}

const BRONZE: &str = "
CREATE STREAMING TABLE orders AS SELECT * FROM STREAM read_files('/landing/orders', format => 'json',
  schema => 'id BIGINT, customer STRING, amount DOUBLE, op STRING, at TIMESTAMP');
CREATE STREAMING TABLE customers AS SELECT * FROM STREAM read_files('/landing/customers', format => 'json',
  schema => 'id STRING, region STRING, at TIMESTAMP');
";

/// The plan of a pipeline over the tables `orders` and `customers`.
pub(crate) fn plan(sql: &str) -> Result<Plan> {
    plan_in("UTC", sql)
}

/// The same with a session time zone.
pub(crate) fn plan_in(zone: &str, sql: &str) -> Result<Plan> {
    let text = format!("{BRONZE}{sql}");
    let configuration = [("spark.sql.session.timeZone".to_owned(), zone.to_owned())].into();
    let settings = Settings { storage: "/lake".to_owned(), configuration, ..Settings::default() };
    analyze(&load_sql(&[("p.sql", &text)], &settings)?.pipeline, &Declared)
}

/// A plan in short: for each dataset its name, where it is kept, and its queries.
fn shown(plan: &Plan) -> Vec<String> {
    let short = |node: &Node| show(node, plan);
    plan.datasets
        .iter()
        .filter(|d| !["orders", "customers"].contains(&d.name.table.as_str()))
        .map(|dataset| {
            let kept = match (&dataset.stored, dataset.replay_point) {
                (Stored::No, _) => "view",
                (Stored::Replay(_), _) => "private replay point",
                (Stored::Table, true) => "replay point",
                (Stored::Table, false) => "table",
            };
            let feed = match &dataset.feed {
                Feed::Append(flows) => flows.iter().map(|(_, n)| short(n)).collect::<Vec<_>>().join(" | "),
                Feed::Cdc(cdc) => format!(
                    "merge of {} by {:?}{}",
                    cdc.flows.iter().map(|f| short(&f.input)).collect::<Vec<_>>().join(" | "),
                    cdc.keys.iter().map(|k| cdc.layout.field(*k).name().as_str()).collect::<Vec<_>>(),
                    if cdc.append_only { ", append only" } else { "" }
                ),
            };
            let name = if matches!(dataset.stored, Stored::Replay(_)) { "-" } else { &dataset.name.table };
            format!("{name} [{kept}{}]: {feed}", if dataset.wall { ", wall" } else { "" })
        })
        .collect()
}

fn show(node: &Node, plan: &Plan) -> String {
    match node {
        Node::Read { input, .. } => match input {
            Input::Source(_) => "outside".to_owned(),
            Input::Dataset(i) if matches!(plan.datasets[*i].stored, Stored::Replay(_)) => "replay".to_owned(),
            Input::Dataset(i) => plan.datasets[*i].name.table.clone(),
            Input::Quarantine(i) => format!("{}!", plan.datasets[*i].name.table),
        },
        Node::Map { input, .. } => format!("map({})", show(input, plan)),
        Node::Union { inputs, .. } => {
            format!("union({})", inputs.iter().map(|n| show(n, plan)).collect::<Vec<_>>().join(", "))
        }
        Node::Distinct { input, .. } => format!("distinct({})", show(input, plan)),
        Node::Clock { input, .. } => format!("clock({})", show(input, plan)),
        Node::Match(m) => {
            let kind = match m.kind {
                MatchKind::Left => "left",
                MatchKind::Inner => "inner",
                MatchKind::Semi => "semi",
                MatchKind::Anti => "anti",
                MatchKind::Mark => "mark",
            };
            let unique = match (m.settled, m.unique) {
                (true, _) => "settled lookup",
                (false, true) => "lookup",
                (false, false) => "join",
            };
            format!("{kind} {unique}({}, {})", show(&m.rows, plan), show(&m.reference, plan))
        }
    }
}

#[test]
fn queries_become_operators() {
    let cases: &[(&str, &[&str])] = &[
        ("CREATE TEMPORARY VIEW v AS SELECT id, amount * 2 AS twice FROM STREAM orders WHERE amount > 0", &["v [view]: map(orders)"]),
        ("CREATE TEMPORARY VIEW v AS SELECT DISTINCT customer FROM orders", &["v [view]: distinct(orders)"]),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM STREAM orders UNION ALL SELECT id + 1 FROM STREAM orders",
            &["v [view]: union(orders, map(orders))"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT o.*, c.k FROM STREAM orders o
               LEFT JOIN (SELECT DISTINCT id AS k FROM customers) c ON o.customer = c.k",
            &["v [view]: left settled lookup(orders, map(customers))"],
        ),
        (
            "CREATE TEMPORARY VIEW known AS SELECT DISTINCT id FROM customers;
             CREATE TEMPORARY VIEW v AS SELECT o.id, k.id AS c FROM STREAM orders o LEFT JOIN known k ON o.customer = k.id",
            &["known [view]: distinct(customers)", "v [view]: map(left settled lookup(orders, known))"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT o.id, c.region FROM STREAM orders o JOIN customers c ON o.customer = c.id",
            &["v [view]: map(inner join(orders, customers))"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM STREAM orders o
               WHERE EXISTS (SELECT 1 FROM customers c WHERE c.id = o.customer)",
            &["v [view]: map(semi settled lookup(orders, customers))"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM STREAM orders o
               WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.id = o.customer)",
            &["v [view]: map(anti settled lookup(orders, customers))"],
        ),
        (
            "CREATE STREAMING TABLE c2; CREATE FLOW f AS AUTO CDC INTO c2 FROM STREAM(customers) KEYS (id) SEQUENCE BY at
               STORED AS SCD TYPE 2;
             CREATE TEMPORARY VIEW v AS SELECT o.id, c.region FROM STREAM orders o
               LEFT JOIN (SELECT * FROM c2 WHERE __END_AT IS NULL) c ON o.customer = c.id",
            &[
                "c2 [table]: merge of customers by [\"id\"], append only",
                "v [view]: map(left lookup(orders, map(c2)))",
            ],
        ),
        (
            "CREATE TEMPORARY VIEW late AS SELECT id FROM STREAM orders WHERE at > current_timestamp()",
            &["late [view]: map(clock(orders))"],
        ),
        (
            "CREATE STREAMING TABLE s AS SELECT id, current_date() AS day FROM STREAM orders",
            &["s [table]: map(orders)"],
        ),
        (
            "CREATE TEMPORARY VIEW raw AS SELECT * FROM STREAM read_files('/l/x', format => 'json', schema => 'a INT');
             CREATE STREAMING TABLE x AS SELECT a FROM STREAM raw WHERE a > 0",
            &["raw [view]: outside", "x [replay point]: map(raw)"],
        ),
        (
            "CREATE TEMPORARY VIEW raw AS SELECT * FROM STREAM read_files('/l/x', format => 'json', schema => 'a INT, s INT');
             CREATE STREAMING TABLE x;
             CREATE FLOW f AS AUTO CDC INTO x FROM STREAM(raw) KEYS (a) SEQUENCE BY s",
            &[
                "- [private replay point]: outside",
                "raw [view]: replay",
                "x [table]: merge of raw by [\"a\"], append only",
            ],
        ),
        (
            "CREATE STREAMING TABLE x AS SELECT o.id FROM STREAM orders o JOIN other.names n ON o.id = n.id",
            &["- [private replay point]: outside", "x [table]: map(inner join(orders, replay))"],
        ),
        (
            "CREATE STREAMING TABLE q (CONSTRAINT pos EXPECT (amount > 0) ON VIOLATION QUARANTINE) AS SELECT * FROM STREAM orders;
             CREATE TEMPORARY VIEW v AS SELECT id FROM q_quarantine",
            &["q [table]: orders", "v [view]: q!"],
        ),
    ];
    for (sql, expected) in cases {
        let plan = plan(sql).unwrap_or_else(|e| panic!("{sql}\n{e}"));
        assert_eq!(shown(&plan), *expected, "{sql}");
    }
}

/// A row that has found its reference is forgotten only where no reference is ever taken back.
#[test]
fn lookups_settle_where_the_reference_only_grows() {
    let from = "STREAM read_files('/l/k', format => 'json', schema => 'k STRING, n DOUBLE, at TIMESTAMP, day DATE')";
    let rule = |rule: &str| format!("CREATE STREAMING TABLE known ({rule}) AS SELECT * FROM {from};");
    let quarantine = |condition: &str| rule(&format!("CONSTRAINT c EXPECT ({condition}) ON VIOLATION QUARANTINE"));
    let looked_up = |query: &str| {
        format!("CREATE STREAMING TABLE raw AS SELECT * FROM {from}; CREATE TEMPORARY VIEW known AS {query};")
    };
    let cases = [
        (rule("CONSTRAINT c EXPECT (k IS NOT NULL) ON VIOLATION DROP ROW"), true),
        (quarantine("at <= current_timestamp()"), true),
        (quarantine("k IS NULL OR at < current_timestamp()"), true),
        (quarantine("current_timestamp() >= at AND n > 0"), true),
        (quarantine("day <= current_date()"), true),
        // Rows go as time passes, or may.
        (quarantine("at > current_timestamp()"), false),
        (quarantine("NOT (at <= current_timestamp())"), false),
        (quarantine("at >= current_timestamp() - INTERVAL 1 DAY"), false),
        (quarantine("current_timestamp() <= at"), false),
        (quarantine("k IS NULL AND at > current_timestamp()"), false),
        // They stay, whatever is said of them; where the outside is stored, a DROP is decided once.
        (rule("CONSTRAINT c EXPECT (at > current_timestamp()) ON VIOLATION DROP ROW"), true),
        (rule("CONSTRAINT c EXPECT (at > current_timestamp())"), true),
        (rule("CONSTRAINT c EXPECT (at > current_timestamp()) ON VIOLATION FAIL UPDATE"), true),
        // The current row of a key changes.
        (
            format!(
                "CREATE STREAMING TABLE raw AS SELECT * FROM {from}; CREATE STREAMING TABLE known;
                 CREATE FLOW f AS AUTO CDC INTO known FROM STREAM(raw) KEYS (k) SEQUENCE BY at;"
            ),
            false,
        ),
        // Who has not found anything may still find it, and who has found it has found it for good.
        (
            looked_up("SELECT r.* FROM STREAM raw r WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.id = r.k)"),
            false,
        ),
        (looked_up("SELECT r.* FROM STREAM raw r WHERE EXISTS (SELECT 1 FROM customers c WHERE c.id = r.k)"), true),
        (looked_up("SELECT r.* FROM STREAM raw r JOIN (SELECT DISTINCT id FROM customers) c ON c.id = r.k"), true),
        (looked_up("SELECT r.* FROM STREAM raw r JOIN customers c ON c.id = r.k"), true),
        (looked_up("SELECT r.* FROM STREAM raw r LEFT JOIN customers c ON c.id = r.k"), false),
        (looked_up("SELECT r.* FROM STREAM raw r LEFT JOIN customers c ON c.id = r.k WHERE c.id IS NOT NULL"), true),
        (looked_up("SELECT r.* FROM STREAM raw r JOIN (SELECT DISTINCT n FROM raw) c ON c.n = r.n"), false),
        (
            looked_up("SELECT r.* FROM STREAM raw r JOIN customers c ON c.id = r.k WHERE r.at > current_timestamp()"),
            false,
        ),
    ];
    let lookup = "CREATE TEMPORARY VIEW v AS SELECT o.id, k.k IS NULL AS missing FROM STREAM orders o
      LEFT JOIN (SELECT DISTINCT k FROM known) k ON o.customer = k.k";
    for (known, settled) in cases {
        let plan = plan(&format!("{known}{lookup}")).unwrap_or_else(|e| panic!("{known}\n{e}"));
        let shown = shown(&plan).pop().unwrap();
        assert!(shown.contains("lookup"), "{shown}");
        assert_eq!(shown.contains("settled"), settled, "{known}\n{shown}");
    }
    // Two zeros are one key: which one is shown may change.
    let zeros = format!(
        "{}CREATE TEMPORARY VIEW v AS SELECT o.id, k.n FROM STREAM orders o
           LEFT JOIN (SELECT DISTINCT n FROM known) k ON o.amount = k.n",
        rule("CONSTRAINT c EXPECT (k IS NOT NULL)")
    );
    assert!(!shown(&plan(&zeros).unwrap()).pop().unwrap().contains("settled"));
}

#[test]
fn the_hidden_wall_reaches_whoever_reads_the_clock() {
    let plan = plan(
        "CREATE TEMPORARY VIEW a AS SELECT id, customer, at FROM STREAM orders;
         CREATE TEMPORARY VIEW b AS SELECT a.* FROM a LEFT JOIN (SELECT DISTINCT id AS k FROM customers) c ON a.customer = c.k;
         CREATE STREAMING TABLE s AS SELECT id, current_timestamp() AS now FROM STREAM b",
    )
    .unwrap();
    let walls: Vec<(&str, bool)> = plan.datasets.iter().map(|d| (d.name.table.as_str(), d.wall)).collect();
    assert_eq!(walls, [("customers", false), ("orders", true), ("a", true), ("b", true), ("s", false)]);
}

#[test]
fn what_does_not_follow_the_clock_is_said() {
    let table = |rule: &str| {
        format!(
            "CREATE STREAMING TABLE t ({rule}) AS SELECT * FROM STREAM read_files('/x', format => 'json', schema => 'at TIMESTAMP')"
        )
    };
    let cases: &[(&str, &[&str])] = &[
        ("CREATE TEMPORARY VIEW v AS SELECT id, at > current_timestamp() AS early FROM STREAM orders", &[]),
        ("CREATE TEMPORARY VIEW v AS SELECT id, current_date() AS seen FROM STREAM orders", &[]),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id, datediff(current_date(), CAST(at AS DATE)) AS age FROM STREAM orders",
            &["CLOCK_READ_ONCE"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM STREAM orders WHERE greatest(at, current_timestamp()) = at",
            &["CLOCK_READ_ONCE"],
        ),
        (
            "CREATE STREAMING TABLE t AS SELECT *, at > now() AS early
               FROM STREAM read_files('/x', format => 'json', schema => 'at TIMESTAMP')",
            &["CLOCK_READ_ONCE"],
        ),
        (&table("CONSTRAINT x EXPECT (at <= now()) ON VIOLATION QUARANTINE"), &[]),
        (&table("CONSTRAINT x EXPECT (at <= now()) ON VIOLATION DROP ROW"), &["CLOCK_DROP_IS_FINAL"]),
        (
            "CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (at <= now()) ON VIOLATION DROP ROW) AS SELECT id, at FROM STREAM orders",
            &[],
        ),
        // Columns that hand on what the clock shows.
        ("CREATE TEMPORARY VIEW v AS SELECT id FROM (SELECT *, now() AS seen FROM STREAM orders) WHERE at > seen", &[]),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM (SELECT *, now() - INTERVAL 1 HOUR AS seen FROM STREAM orders) WHERE at > seen",
            &[],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM (SELECT *, now() AS seen FROM STREAM orders) WHERE greatest(at, seen) = at",
            &["CLOCK_READ_ONCE"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id, at AS seen FROM STREAM orders UNION ALL SELECT id, now() AS seen FROM STREAM orders;
             CREATE TEMPORARY VIEW w AS SELECT id FROM STREAM v WHERE seen > TIMESTAMP '2025-01-01 00:00:00'",
            &["CLOCK_READ_ONCE"],
        ),
        (
            "CREATE TEMPORARY VIEW w AS SELECT o.id FROM STREAM orders o
               LEFT JOIN (SELECT id AS k, now() AS seen FROM customers) c ON o.customer = c.k WHERE o.at > c.seen OR c.seen IS NULL",
            &["CLOCK_READ_ONCE", "JOIN_FANS_OUT"],
        ),
        (
            "CREATE STREAMING TABLE t AS SELECT id, now() AS seen FROM STREAM orders;
             CREATE TEMPORARY VIEW w AS SELECT id FROM STREAM t WHERE seen > TIMESTAMP '2025-01-01 00:00:00'",
            &[],
        ),
        (
            "CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (at <= seen) ON VIOLATION QUARANTINE,
                                      CONSTRAINT y EXPECT (seen IS NOT NULL))
             AS SELECT *, now() AS seen FROM STREAM read_files('/x', format => 'json', schema => 'at TIMESTAMP')",
            &["CLOCK_READ_ONCE"],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT *, now() AS seen FROM STREAM orders;
             CREATE STREAMING TABLE t;
             CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(v) KEYS (id) APPLY AS DELETE WHEN at > seen SEQUENCE BY at COLUMNS id, at",
            &[],
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT *, now() AS seen FROM STREAM orders;
             CREATE STREAMING TABLE t;
             CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(v) KEYS (id) APPLY AS DELETE WHEN greatest(at, seen) = at SEQUENCE BY at COLUMNS id, at",
            &["CLOCK_READ_ONCE"],
        ),
    ];
    for (sql, codes) in cases {
        let plan = plan(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(plan.lints.iter().map(|l| l.code).collect::<Vec<_>>(), *codes, "{sql}");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let cases: &[(&str, &str, &str)] = &[
        ("CREATE TEMPORARY VIEW v AS SELECT nope FROM STREAM orders", "UNKNOWN_COLUMN", "nope"),
        ("CREATE TEMPORARY VIEW v AS SELECT amont FROM STREAM orders", "UNKNOWN_COLUMN", "did you mean amount?"),
        (
            "CREATE TEMPORARY VIEW v AS SELECT o.id FROM STREAM orders o JOIN customers c ON o.customer = c.id AND at = at",
            "AMBIGUOUS_COLUMN",
            "at",
        ),
        ("CREATE TEMPORARY VIEW v AS SELECT nofun(id) AS x FROM STREAM orders", "UNKNOWN_FUNCTION", "nofun"),
        (
            "CREATE TEMPORARY VIEW v AS SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            "NOT_SUPPORTED",
            "aggregate",
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders",
            "NOT_SUPPORTED",
            "window",
        ),
        ("CREATE TEMPORARY VIEW v AS SELECT id FROM orders ORDER BY id LIMIT 1", "NOT_SUPPORTED", "LIMIT"),
        ("CREATE TEMPORARY VIEW v AS SELECT id FROM orders LIMIT 1", "NOT_SUPPORTED", "LIMIT"),
        (
            "CREATE TEMPORARY VIEW v AS SELECT o.id FROM orders o FULL JOIN customers c ON o.customer = c.id",
            "NOT_SUPPORTED",
            "FULL",
        ),
        ("CREATE TEMPORARY VIEW v AS SELECT o.id FROM orders o CROSS JOIN customers c", "NOT_SUPPORTED", "equality"),
        (
            "CREATE TEMPORARY VIEW v AS SELECT o.id FROM orders o JOIN customers c ON o.at < c.at",
            "NOT_SUPPORTED",
            "equality",
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id FROM orders WHERE customer NOT IN (SELECT id FROM customers)",
            "NOT_SUPPORTED",
            "NOT EXISTS",
        ),
        (
            "CREATE STREAMING TABLE s (CONSTRAINT c EXPECT (amount + 1)) AS SELECT * FROM STREAM orders",
            "EXPECTATION_NOT_BOOLEAN",
            "expectation c",
        ),
        (
            "CREATE STREAMING TABLE s (CONSTRAINT c EXPECT (amuont > 1)) AS SELECT * FROM STREAM orders",
            "UNKNOWN_COLUMN",
            "did you mean amount?",
        ),
        ("CREATE STREAMING TABLE s (id BIGINT, extra INT) AS SELECT id FROM STREAM orders", "UNKNOWN_COLUMN", "extra"),
        ("CREATE STREAMING TABLE s (id BIGINT) AS SELECT id, at FROM STREAM orders", "UNKNOWN_COLUMN", "at"),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(orders) KEYS (nope) SEQUENCE BY at",
            "AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA",
            "nope",
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(orders) KEYS (id) SEQUENCE BY at COLUMNS (id, nope)",
            "AUTOCDC_COLUMNS_NOT_FOUND_IN_SCHEMA",
            "nope",
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(orders) KEYS (id) SEQUENCE BY at
               COLUMNS * EXCEPT (op) STORED AS SCD TYPE 2 TRACK HISTORY ON op",
            "AUTOCDC_COLUMNS_NOT_FOUND_IN_SCHEMA",
            "op",
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(orders) KEYS (id)
               APPLY AS DELETE WHEN amount SEQUENCE BY at",
            "AUTOCDC_CONDITION_NOT_BOOLEAN",
            "APPLY AS DELETE",
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT *, 1 AS __START_AT FROM STREAM orders; CREATE STREAMING TABLE t;
             CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(v) KEYS (id) SEQUENCE BY at STORED AS SCD TYPE 2",
            "AUTOCDC_RESERVED_COLUMN_NAME_CONFLICT",
            "__START_AT",
        ),
        (
            "CREATE TEMPORARY VIEW v AS SELECT id, map(op, id) AS m FROM STREAM orders; CREATE STREAMING TABLE t;
             CREATE FLOW f AS AUTO CDC INTO t FROM STREAM(v) KEYS (id) SEQUENCE BY m",
            "AUTOCDC_MICROBATCH_VALIDATION.NON_ORDERABLE_SEQUENCE",
            "ordered",
        ),
    ];
    for (sql, code, part) in cases {
        match plan(sql) {
            Ok(plan) => panic!("{sql}\nhas no error: {:?}", shown(&plan)),
            Err(error) => {
                assert_eq!(error.code(), *code, "{sql}\n{error}");
                assert!(error.to_string().contains(part), "{sql}\n{error}");
                assert!(error.place().span.is_some(), "no place: {sql}\n{error}");
            }
        }
    }
}

#[test]
fn names_are_found_in_any_case_and_keep_their_own() {
    let plan = plan(
        "CREATE STREAMING TABLE s AS SELECT ID, O.Amount AS Total FROM STREAM ORDERS AS o WHERE CUSTOMER IS NOT NULL",
    )
    .unwrap();
    let dataset = plan.datasets.last().unwrap();
    let names: Vec<&str> = dataset.schema.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["id", "Total"]);
}

#[test]
fn a_fingerprint_follows_the_definition_and_what_it_reads() {
    let print = |sql: &str, name: &str| {
        let plan = plan(sql).unwrap();
        plan.datasets.iter().find(|d| d.name.table == name).unwrap().fingerprint.clone()
    };
    let base = "CREATE TEMPORARY VIEW v AS SELECT id, amount FROM STREAM orders; CREATE STREAMING TABLE s AS SELECT * FROM STREAM v";
    assert_eq!(print(base, "s"), print(base, "s"));
    let upstream = base.replace("amount FROM", "amount + 1 AS amount FROM");
    assert_ne!(print(base, "s"), print(&upstream, "s"));
    let rule = base.replace("TABLE s AS", "TABLE s (CONSTRAINT c EXPECT (id > 0)) AS");
    assert_ne!(print(base, "s"), print(&rule, "s"));
    assert_eq!(print(base, "orders"), print(&rule, "orders"));
}

/// An expression over rows of `columns`.
pub(crate) fn physical(
    expr: &datafusion::logical_expr::Expr,
    columns: &datafusion::common::DFSchema,
) -> Arc<dyn datafusion::physical_expr::PhysicalExpr> {
    super::lower::physical(expr, columns, &Arc::new(columns.as_arrow().clone()), &"UTC".into()).unwrap()
}
