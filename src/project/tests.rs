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

#[test]
fn all_forms_of_the_language_are_read() {
    let history = "AUTO CDC from stream of s, SCD type 2, keys a and b, sequence seq";
    let with = |clauses: &str| format!("{history}{clauses}");
    for (text, expected) in [
        (
            "CREATE OR REFRESH STREAMING LIVE TABLE t AS SELECT * FROM STREAM(LIVE.s)",
            "t (streaming table)\n  from stream of s".to_owned(),
        ),
        ("CREATE LIVE TABLE t AS SELECT * FROM LIVE.s", "t (materialized view)\n  from s".to_owned()),
        (
            "CREATE TEMPORARY STREAMING TABLE IF NOT EXISTS t AS SELECT * FROM STREAM s",
            "t (private streaming table)\n  from stream of s".to_owned(),
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS INSERT INTO t (SELECT * FROM STREAM s)",
            "t (streaming table)\n  flow f: from stream of s".to_owned(),
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW `a flow` AS INSERT INTO ONCE t BY NAME WITH c AS (SELECT 1 AS x) SELECT * FROM c",
            "t (streaming table)\n  flow a flow: once, from constants".to_owned(),
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC ONCE INTO t FROM s KEYS a, b SEQUENCE BY seq STORED AS SCD TYPE 2",
            format!("t (streaming table)\n  flow f: once, {history}"),
        ),
        (
            "CREATE STREAMING TABLE t; APPLY CHANGES INTO LIVE.t FROM STREAM(LIVE.s) KEYS (a, b) IGNORE NULL UPDATES APPLY AS DELETE WHEN op = 'D' SEQUENCE BY seq COLUMNS * EXCEPT (op, seq) STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (c)",
            format!(
                "t (streaming table)\n  {}",
                with(
                    ", delete when op = 'D', columns * except (op, seq), history of * except (c), nulls keep the value before"
                )
            ),
        ),
        (
            "CREATE STREAMING TABLE t FLOW AUTO CDC FROM STREAM s TRACK HISTORY ON c, d STORED AS SCD TYPE 2 COLUMNS (a, b, c, d) IGNORE NULL UPDATES ON * EXCEPT c SEQUENCE BY seq KEYS a, b",
            format!(
                "t (streaming table)\n  {}",
                with(", columns (a, b, c, d), history of (c, d), nulls keep the value before")
            ),
        ),
        (
            "CREATE STREAMING TABLE t FLOW AUTO CDC FROM STREAM(s) KEYS (a, b) SEQUENCE BY seq STORED AS SCD TYPE 2 TRACK HISTORY ON ()",
            format!("t (streaming table)\n  {}", with(", history of ()")),
        ),
        (
            "USE CATALOG other; USE SCHEMA silver; CREATE STREAMING TABLE t AS SELECT * FROM STREAM main.default.s",
            "other.silver.t (streaming table)\n  from stream of s".to_owned(),
        ),
        (
            "SET x = 'a;b'; SET y = ${x} -- note\n; CREATE STREAMING TABLE t AS SELECT * FROM STREAM s WHERE a = ${y}",
            "t (streaming table)\n  from stream of s".to_owned(),
        ),
    ] {
        let base = "CREATE STREAMING TABLE s AS SELECT * FROM STREAM read_files('in');";
        let found = outcome(&[("a.sql", base), ("b.sql", text)]);
        let found: Vec<&str> =
            found.lines().filter(|line| !line.starts_with("s (") && !line.ends_with("/p/in")).collect();
        assert_eq!(found.join("\n"), expected, "{text}");
    }
}

/// A target and a source for AUTO CDC, and one flow with these clauses.
fn cdc(clauses: &str) -> String {
    format!("CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM s\n{clauses}")
}

#[test]
fn every_mistake_has_a_code_and_a_place() {
    let table = "CREATE STREAMING TABLE t AS SELECT * FROM STREAM s;\n";
    let on = |text: &str| format!("{table}{text}");
    let mut wrong = Vec::new();
    for (text, expected) in [
        // statements
        (on("DROP TABLE t"), "x.sql:2:1 UNSUPPORTED_STATEMENT DROP is no statement of a pipeline"),
        (on("CREATE TABLE u (a INT)"), "x.sql:2:8 UNSUPPORTED_STATEMENT a pipeline has no plain tables"),
        (on("CREATE OR x VIEW v AS SELECT 1"), "x.sql:2:11 PARSE_SYNTAX_ERROR expected REFRESH or REPLACE, found `x`"),
        (on("CREATE VIEW v"), "x.sql:2:14 PARSE_SYNTAX_ERROR expected AS and a query, the statement ends"),
        (on("CREATE VIEW v AS"), "x.sql:2:17 PARSE_SYNTAX_ERROR expected a query, the statement ends"),
        (on("CREATE VIEW v AS SELECT 'a"), "x.sql:2:25 PARSE_SYNTAX_ERROR Unterminated string literal"),
        (on("REFRESH STREAMING TABLE t"), "x.sql:2:1 UNSUPPORTED_STATEMENT REFRESH is no statement of a pipeline"),
        (on("SET x"), "x.sql:2:6 PARSE_SYNTAX_ERROR expected `=` and a value, the statement ends"),
        (on("SET x = -- nothing"), "x.sql:2:19 PARSE_SYNTAX_ERROR SET without a value"),
        (on("CREATE VIEW v AS SELECT ${nope}"), "x.sql:2:25 UNRESOLVED_VARIABLE nothing sets `nope`"),
        // clauses
        (
            on("CREATE STREAMING TABLE u LOCATION 'a' AS SELECT * FROM STREAM s"),
            "x.sql:2:26 NOT_SUPPORTED LOCATION is not supported yet",
        ),
        (
            on("CREATE MATERIALIZED VIEW u WITH ROW FILTER f ON (a) AS SELECT * FROM s"),
            "x.sql:2:28 NOT_SUPPORTED WITH ROW FILTER is not supported yet",
        ),
        (
            on("CREATE MATERIALIZED VIEW u SCHEDULE DAILY AS SELECT * FROM s"),
            "x.sql:2:37 PARSE_SYNTAX_ERROR expected every, found `DAILY`",
        ),
        (on("CREATE STREAMING TABLE u USING parquet"), "x.sql:2:32 NOT_SUPPORTED USING PARQUET is not supported yet"),
        (
            on("CREATE VIEW v COMMENT 'a' COMMENT 'b' AS SELECT 1"),
            "x.sql:2:27 DUPLICATE_CLAUSES COMMENT is given twice",
        ),
        (
            on("CREATE STREAMING TABLE u (a INT MASK f)"),
            "x.sql:2:33 NOT_SUPPORTED MASK on a column is not supported yet",
        ),
        (
            on("CREATE STREAMING TABLE u (a INT, CONSTRAINT k CHECK (a > 1))"),
            "x.sql:2:47 NOT_SUPPORTED CHECK is not supported yet",
        ),
        (on("CREATE VIEW v (a INT) AS SELECT 1"), "x.sql:2:16 NOT_SUPPORTED a column of a view with a type is not supported yet"),
        (
            on("CREATE STREAMING TABLE u (CONSTRAINT c EXPECT (a >) ) AS SELECT * FROM STREAM s"),
            "x.sql:2:51 PARSE_SYNTAX_ERROR expected an expression, found `)`",
        ),
        (
            on("CREATE STREAMING TABLE u (CONSTRAINT c EXPECT (a > 1) ON VIOLATION STOP) AS SELECT * FROM STREAM s"),
            "x.sql:2:68 PARSE_SYNTAX_ERROR expected DROP ROW, FAIL UPDATE or QUARANTINE, found `STOP`",
        ),
        (
            on("CREATE STREAMING TABLE u (CONSTRAINT c EXPECT (a IN (SELECT 1))) AS SELECT * FROM STREAM s"),
            "x.sql:2:54 UNSUPPORTED_SUBQUERY an expectation cannot hold a query",
        ),
        (
            on("CREATE STREAMING TABLE u TBLPROPERTIES ('a' = 'b', 'a' = 'c')"),
            "x.sql:2:52 DUPLICATE_KEY the property `a` is given twice",
        ),
        // names
        (
            on("CREATE VIEW Main.Default.T AS SELECT 1 AS a"),
            "x.sql:2:1 PIPELINE_DUPLICATE_IDENTIFIERS.DATASET `Main.Default.T` is declared twice; the other is at x.sql:1:1",
        ),
        (
            on("CREATE FLOW f AS INSERT INTO t SELECT * FROM STREAM a; CREATE FLOW F AS INSERT INTO t SELECT * FROM STREAM b"),
            "x.sql:2:56 PIPELINE_DUPLICATE_IDENTIFIERS.FLOW two flows are called `F`; the other is at x.sql:2:1",
        ),
        (
            on("CREATE FLOW a.f AS INSERT INTO t SELECT * FROM STREAM a"),
            "x.sql:2:13 MULTIPART_FLOW_NAME_NOT_SUPPORTED the name of a flow has one part",
        ),
        (
            on("CREATE FLOW f AS INSERT INTO tt SELECT * FROM STREAM a"),
            "x.sql:2:30 FLOW_TARGET_NOT_DECLARED no dataset `tt` is declared",
        ),
        (on("CREATE VIEW v AS SELECT * FROM LIVE.tt"), "x.sql:2:32 UNRESOLVED_DATASET LIVE.tt is no dataset of this pipeline"),
        (
            on("CREATE STREAMING TABLE u (CONSTRAINT c EXPECT (a), CONSTRAINT C EXPECT (b)) AS SELECT * FROM STREAM s"),
            "x.sql:2:63 DUPLICATE_EXPECTATION `main.default.u` has two expectations called `C`; the other is at x.sql:2:38",
        ),
        (
            on("CREATE VIEW t_quarantine AS SELECT 1; CREATE FLOW g AS INSERT INTO q SELECT * FROM STREAM s; CREATE STREAMING TABLE q;
                CREATE VIEW q_quarantine AS SELECT 1; CREATE STREAMING TABLE q2 (CONSTRAINT c EXPECT (a) ON VIOLATION QUARANTINE) AS SELECT * FROM STREAM s; CREATE VIEW q2_quarantine AS SELECT 1"),
            "x.sql:3:158 QUARANTINE_TABLE_DECLARED `main.default.q2_quarantine` is declared, and it is also the table to which `main.default.q2` (at x.sql:3:55) sends its quarantined rows",
        ),
        (
            on("CREATE STREAMING TABLE u (a INT, A INT, _epoch LONG) AS SELECT * FROM STREAM s"),
            "x.sql:2:34 COLUMN_ALREADY_EXISTS column `A` is declared twice\n\
             x.sql:2:41 RESERVED_COLUMN_NAME `_epoch` is a name that the engine keeps for itself",
        ),
        // properties
        (
            on("CREATE STREAMING TABLE u TBLPROPERTIES ('silverflow.cdc.invalit' = 'x') AS SELECT * FROM STREAM s"),
            "x.sql:2:1 UNKNOWN_PROPERTY there is no table property `silverflow.cdc.invalit`",
        ),
        (
            on("CREATE STREAMING TABLE u TBLPROPERTIES ('silverflow.resolution' = 'arrivals') AS SELECT * FROM STREAM s"),
            "x.sql:2:1 INVALID_PROPERTY_VALUE `silverflow.resolution` is 'arrivals', and can be 'live' or 'arrival'",
        ),
        (
            on("CREATE STREAMING TABLE u TBLPROPERTIES ('silverflow.cdc.invalid' = 'quarantine') AS SELECT * FROM STREAM s"),
            "x.sql:2:1 INVALID_PROPERTY_VALUE `silverflow.cdc.invalid` is for targets of AUTO CDC, and `main.default.u` is none",
        ),
        // shapes
        ("CREATE VIEW v AS SELECT 1 AS a".into(), "- RUN_EMPTY_PIPELINE the pipeline declares no streaming table and no materialized view"),
        (String::new(), "- RUN_EMPTY_PIPELINE the pipeline declares no streaming table and no materialized view"),
        (on("CREATE STREAMING TABLE u"), "x.sql:2:1 PIPELINE_DATASET_WITHOUT_FLOW nothing feeds `main.default.u`"),
        (
            on("CREATE STREAMING TABLE u AS SELECT * FROM t"),
            "x.sql:2:43 INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE `main.default.u` is a streaming table, and this query reads no stream",
        ),
        (
            on("CREATE FLOW f AS INSERT INTO ONCE t SELECT * FROM STREAM a"),
            "x.sql:2:58 INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_ONCE_FLOW a ONCE flow reads what is there, not a stream",
        ),
        (
            on("CREATE MATERIALIZED VIEW u AS SELECT * FROM STREAM t"),
            "x.sql:2:52 INVALID_FLOW_QUERY_TYPE.STREAMING_RELATION_FOR_MATERIALIZED_VIEW a materialized view reads tables as they are, not as streams",
        ),
        (
            on("CREATE MATERIALIZED VIEW u AS SELECT * FROM t; CREATE FLOW f AS INSERT INTO u SELECT * FROM STREAM t"),
            "x.sql:2:48 MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES `main.default.u` is a materialized view, whose one query is its own: no flow can feed it",
        ),
        (
            on("CREATE MATERIALIZED VIEW a AS SELECT * FROM c; CREATE MATERIALIZED VIEW b AS SELECT * FROM a; CREATE MATERIALIZED VIEW c AS SELECT * FROM b"),
            "x.sql:2:1 PIPELINE_GRAPH_NOT_TOPOLOGICALLY_SORTABLE these datasets read each other in a circle: a -> b -> c -> a",
        ),
        (
            "CREATE STREAMING TABLE a AS SELECT * FROM STREAM a".into(),
            "x.sql:1:1 PIPELINE_GRAPH_NOT_TOPOLOGICALLY_SORTABLE these datasets read each other in a circle: a -> a",
        ),
        // AUTO CDC
        (cdc("KEYS (id)"), "x.sql:2:10 AUTOCDC_MISSING_SEQUENCE AUTO CDC without SEQUENCE BY"),
        (cdc("SEQUENCE BY s"), "x.sql:2:14 AUTOCDC_EMPTY_KEYS AUTO CDC without KEYS"),
        (cdc("KEYS () SEQUENCE BY s"), "x.sql:2:1 AUTOCDC_EMPTY_KEYS KEYS names no column"),
        (cdc("KEYS (a, b.c) SEQUENCE BY s"), "x.sql:2:10 AUTOCDC_MULTIPART_COLUMN_IDENTIFIER `b.…` has several parts: a column is named by itself here"),
        (cdc("KEYS (lower(a)) SEQUENCE BY s"), "x.sql:2:7 AUTOCDC_NON_COLUMN_IDENTIFIER `lower(…)` is no column"),
        (cdc("KEYS (a, A) SEQUENCE BY s"), "x.sql:2:10 DUPLICATE_COLUMN `A` is named twice"),
        (cdc("KEYS (a) SEQUENCE BY s KEYS (b)"), "x.sql:2:24 DUPLICATE_CLAUSES KEYS is given twice"),
        (cdc("KEYS (a) SEQUENCE BY s SYSTEM SEQUENCE BY x"), "x.sql:2:24 NOT_SUPPORTED SYSTEM SEQUENCE BY is not supported yet"),
        (cdc("KEYS (a) SEQUENCE BY s STORED AS BITEMPORAL"), "x.sql:2:34 NOT_SUPPORTED STORED AS BITEMPORAL is not supported yet"),
        (cdc("KEYS (a) SEQUENCE BY s COLUMNS TO UPDATE c"), "x.sql:2:24 NOT_SUPPORTED COLUMNS TO UPDATE is not supported yet"),
        (cdc("KEYS (a) SEQUENCE BY s STORED AS SCD TYPE 3"), "x.sql:2:43 PARSE_SYNTAX_ERROR expected 1 or 2, found `3`"),
        (cdc("KEYS (a) SEQUENCE BY s WHERE x"), "x.sql:2:24 PARSE_SYNTAX_ERROR expected a clause of AUTO CDC, found `WHERE`"),
        (cdc("KEYS (a) SEQUENCE BY (SELECT 1)"), "x.sql:2:23 UNSUPPORTED_SUBQUERY a clause of AUTO CDC cannot hold a query"),
        (cdc("KEYS (a) SEQUENCE BY s IGNORE NULL UPDATES ON ()"), "x.sql:2:24 AUTOCDC_IGNORE_NULL_EMPTY_COLUMN_LIST IGNORE NULL UPDATES ON names no column"),
        (cdc("KEYS (a) SEQUENCE BY s COLUMNS * EXCEPT (a)"), "x.sql:2:7 AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA the key `a` is not among the kept columns"),
        (cdc("KEYS (a) SEQUENCE BY s COLUMNS b, c"), "x.sql:2:7 AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA the key `a` is not among the kept columns"),
        (
            cdc("KEYS (a) SEQUENCE BY s STORED AS SCD TYPE 2 COLUMNS * EXCEPT (op) TRACK HISTORY ON * EXCEPT (op)"),
            "x.sql:2:94 AUTOCDC_COLUMNS_NOT_FOUND_IN_SCHEMA TRACK HISTORY ON names `op`, which is not among the kept columns",
        ),
        (
            cdc("KEYS (a) SEQUENCE BY s TRACK HISTORY ON b"),
            "x.sql:1:27 AUTOCDC_TRACK_HISTORY_REQUIRES_SCD2 TRACK HISTORY ON goes with SCD type 2 only",
        ),
        (
            cdc("KEYS (a) SEQUENCE BY s STORED AS SCD TYPE 2 APPLY AS TRUNCATE WHEN x"),
            "x.sql:1:27 AUTOCDC_TRUNCATE_NOT_SUPPORTED APPLY AS TRUNCATE WHEN does not go with SCD type 2",
        ),
        (
            cdc("KEYS (a) SEQUENCE BY s STORED AS SCD TYPE 2 COLUMNS a, __start_at"),
            "x.sql:2:56 AUTOCDC_RESERVED_COLUMN_NAME_CONFLICT `__start_at` is a column that SCD type 2 adds itself",
        ),
        (
            cdc("KEYS (a) SEQUENCE BY s; CREATE FLOW g AS AUTO CDC INTO t FROM STREAM s2 KEYS (b) SEQUENCE BY s"),
            "x.sql:2:25 AUTOCDC_FLOWS_DISAGREE the flows `f` and `g` feed `main.default.t` and differ in KEYS",
        ),
        (
            cdc("KEYS (a) SEQUENCE BY s; CREATE FLOW g AS INSERT INTO t SELECT * FROM STREAM x"),
            "x.sql:2:25 AUTOCDC_TARGET_WITH_OTHER_FLOWS `main.default.t` is fed by AUTO CDC (flow `f`), so no other kind of flow can feed it",
        ),
        (
            on("APPLY CHANGES INTO t FROM STREAM x KEYS (a) SEQUENCE BY s"),
            "x.sql:2:1 PIPELINE_DUPLICATE_IDENTIFIERS.FLOW two flows are called `main.default.t`; the other is at x.sql:1:1",
        ),
        (
            on("CREATE MATERIALIZED VIEW u AS SELECT * FROM t; CREATE FLOW f AS AUTO CDC INTO u FROM STREAM x KEYS (a) SEQUENCE BY s"),
            "x.sql:2:48 MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES `main.default.u` is a materialized view, whose one query is its own: no flow can feed it",
        ),
        (
            "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM (SELECT * FROM x) KEYS (a) SEQUENCE BY s".into(),
            "x.sql:1:66 INVALID_AUTOCDC_SOURCE the source of AUTO CDC is a name, not a query or a function",
        ),
        (
            "CREATE STREAMING TABLE t (a INT, __START_AT LONG) FLOW AUTO CDC FROM STREAM s KEYS (a) SEQUENCE BY s STORED AS SCD TYPE 2".into(),
            "x.sql:1:1 AUTOCDC_MISSING_HISTORY_COLUMN a declared schema of SCD type 2 history needs `__END_AT`",
        ),
        (
            "CREATE STREAMING TABLE t (a INT, __START_AT LONG) FLOW AUTO CDC FROM STREAM s KEYS (a) SEQUENCE BY s".into(),
            "x.sql:1:34 RESERVED_COLUMN_NAME `__START_AT` is a name that the engine keeps for itself",
        ),
        // several at once
        (
            on("CREATE VIEW v AS SELEC 1;\nCREATE FLOW AS INSERT INTO t SELECT 1; CREATE VIEW w AS SELECT 1 FROM"),
            "x.sql:2:18 PARSE_SYNTAX_ERROR expected SELECT, VALUES, or a subquery in the query body, found `SELEC`\n\
             x.sql:3:16 PARSE_SYNTAX_ERROR expected as, found `INSERT`\n\
             x.sql:3:70 PARSE_SYNTAX_ERROR expected identifier, the statement ends",
        ),
    ] {
        let found = outcome(&[("x.sql", &text)]);
        if found != expected {
            wrong.push(format!("{text}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn settings_of_files_must_agree_and_variables_stay_in_their_file() {
    let base = "CREATE STREAMING TABLE t AS SELECT '${v}' AS v FROM STREAM s;";
    let a = format!("SET v = a; SET spark.sql.session.timeZone = UTC; {base}");
    let loaded = load_sql(&[("a.sql", &a), ("b.sql", "SET v = b;")], &settings()).unwrap();
    let keys: Vec<_> = loaded.pipeline.configuration.iter().collect();
    assert_eq!(format!("{keys:?}"), r#"[("spark.sql.session.timeZone", "UTC")]"#);
    assert_eq!(
        outcome(&[("a.sql", &a), ("b.sql", "SET spark.sql.session.timeZone = CET")]),
        "b.sql:1:5 CONFLICTING_CONFIGURATION `spark.sql.session.timeZone` is `CET` here and `UTC` elsewhere"
    );
    assert_eq!(outcome(&[("a.sql", base)]), "a.sql:1:37 UNRESOLVED_VARIABLE nothing sets `v`");
}

#[test]
fn positions_in_a_query_are_those_of_the_file() {
    let text = "SET long = a_rather_long_name;\nCREATE STREAMING TABLE t AS\n  SELECT ${long},\n    nope FROM STREAM s";
    let loaded = load_sql(&[("a.sql", text)], &settings()).unwrap();
    let flow = loaded.pipeline.flows.get("main.default.t").unwrap();
    let query = flow.query().unwrap();
    let select = query.ast.body.as_select().unwrap();
    use datafusion::sql::sqlparser::ast::Spanned;
    let places: Vec<String> = select
        .projection
        .iter()
        .map(|item| loaded.pipeline.locate(&query.span, item.span()))
        .map(|span| format!("{span} {} {}", span.length, span.text))
        .collect();
    assert_eq!(places, ["a.sql:3:10 7   SELECT ${long},", "a.sql:4:5 4     nope FROM STREAM s"]);
    assert_eq!(query.text, "SELECT ${long},\n    nope FROM STREAM s");
}

#[test]
fn outside_tables_that_look_like_datasets_are_remarked() {
    let text = "CREATE STREAMING TABLE bronze.orders AS SELECT * FROM STREAM s;
        CREATE VIEW a AS SELECT * FROM orders;
        CREATE VIEW b AS SELECT * FROM bronze.ordres;
        CREATE VIEW c AS SELECT * FROM bronze.orders_quarantine;
        CREATE VIEW d AS SELECT * FROM known.orders;
        USE SCHEMA bronze; CREATE VIEW e AS SELECT * FROM orders;";
    let mut settings = settings();
    settings.configuration.insert("silverflow.table.known.orders".into(), "tables/orders".into());
    let loaded = load_sql(&[("a.sql", text)], &settings).unwrap();
    let lints: Vec<String> =
        loaded.lints.iter().map(|l| format!("{} {} {} | {}", l.span, l.code, l.message, l.help)).collect();
    insta::assert_snapshot!(lints.join("\n"), @r#"
    a.sql:2:40 EXTERNAL_TABLE_LIKE_DATASET `orders` is read from outside the pipeline as `main.default.orders`, and the pipeline has `main.bronze.orders` | write `main.bronze.orders` to read the dataset, or set silverflow.table.orders to where the table is
    a.sql:3:40 EXTERNAL_TABLE_LIKE_DATASET `bronze.ordres` is read from outside the pipeline as `main.bronze.ordres`, and the pipeline has `main.bronze.orders` | write `main.bronze.orders` to read the dataset, or set silverflow.table.bronze.ordres to where the table is
    a.sql:4:40 QUARANTINE_NEVER_FILLED `main.bronze.orders` has no rule with the action QUARANTINE, so nothing ever fills `bronze.orders_quarantine` | add ON VIOLATION QUARANTINE to a rule of `main.bronze.orders`
    "#);
    insta::assert_snapshot!(Graph::new(&loaded.pipeline).unwrap().render(&loaded.pipeline), @r#"
    bronze.orders (streaming table)
      from stream of outside table main.default.s
    bronze.e (view)
      from bronze.orders
    a (view)
      from outside table main.default.orders
    b (view)
      from outside table main.bronze.ordres
    c (view)
      from outside table main.bronze.orders_quarantine
    d (view)
      from outside table main.known.orders at /p/tables/orders
    "#);
}

mod disk {
    use std::fs;
    use std::path::Path;

    use super::*;

    const SPEC: &str = "name: shop\nstorage: storage\nlibraries:\n  - glob: {include: transformations/**}\n";
    const TABLE: &str = "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing');";

    /// A project with these files in a new folder; the outcome, with the folder's name taken out.
    fn project(files: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let outcome = match load(&folder.path().join("spark-pipeline.yml")) {
            Ok(Loaded { pipeline: p, root, lints }) => {
                assert_eq!(lints, []);
                assert_eq!(root, folder.path());
                let graph = Graph::new(&p).unwrap().render(&p);
                format!("{} {} {}.{} {:?}\n{graph}", p.name, p.storage, p.catalog, p.schema, p.configuration)
            }
            Err(error) => errors(&error),
        };
        outcome.replace(&format!("{}/", folder.path().display()), "~/")
    }

    fn spec(text: &str) -> String {
        project(&[("spark-pipeline.yml", text), ("transformations/a.sql", TABLE)])
    }

    #[test]
    fn files_of_the_folder_are_loaded_and_hidden_ones_are_not() {
        let files = [
            (
                "spark-pipeline.yml",
                "name: shop\nstorage: file:///data/shop\ndatabase: sales\nconfiguration: {root: landing/x}\nlibraries: [{glob: {include: transformations/**}}, {glob: {include: more.sql}}]",
            ),
            (
                "transformations/deep/er/a.sql",
                "\u{feff}CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('${root}');",
            ),
            ("transformations/b.sql", "-- nothing yet"),
            ("transformations/.ipynb_checkpoints/a.sql", "garbage"),
            ("transformations/.a.sql.swp", "garbage"),
            ("transformations/__pycache__/a.pyc", "garbage"),
            ("more.sql", "CREATE VIEW v AS SELECT * FROM t;"),
            ("elsewhere/c.sql", "garbage"),
        ];
        insta::assert_snapshot!(project(&files), @r#"
        shop /data/shop main.sales {"root": "landing/x"}
        t (streaming table)
          from stream of files ~/landing/x
        v (view)
          from t
        "#);
    }

    #[test]
    fn mistakes_in_the_project_file_have_their_place() {
        let libraries = "libraries:\n  - glob: {include: transformations/**}\n";
        for (text, expected) in [
            ("", "~/spark-pipeline.yml:1:1 PIPELINE_SPEC_FIELD_NOT_DICT a project file is a list of `field: value`"),
            (
                "name: [",
                "~/spark-pipeline.yml:2:1 PIPELINE_SPEC_INVALID_YAML this is no YAML: did not find expected node content at line 2 column 1, while parsing a flow node",
            ),
            (
                &format!("name: x\nstorge: y\n{libraries}"),
                "~/spark-pipeline.yml:2:1 PIPELINE_SPEC_UNEXPECTED_FIELD the project file has no field `storge`\n\
                 ~/spark-pipeline.yml:1:1 PIPELINE_SPEC_MISSING_REQUIRED_FIELD the project file has no `storage`",
            ),
            (
                "catalog: 3\nconfiguration: {a: 1, 2: b}\nlibraries: transformations",
                "~/spark-pipeline.yml:1:1 PIPELINE_SPEC_MISSING_REQUIRED_FIELD the project file has no `name`\n\
                 ~/spark-pipeline.yml:1:1 PIPELINE_SPEC_MISSING_REQUIRED_FIELD the project file has no `storage`\n\
                 ~/spark-pipeline.yml:1:1 PIPELINE_SPEC_FIELD_NOT_STRING `catalog` must be text, and is `3`\n\
                 ~/spark-pipeline.yml:2:17 PIPELINE_SPEC_DICT_VALUE_NOT_STRING the value of `a` must be text: write \"1\"\n\
                 ~/spark-pipeline.yml:2:23 PIPELINE_SPEC_DICT_KEY_NOT_STRING `2` is no key: put it in quotes\n\
                 ~/spark-pipeline.yml:3:1 PIPELINE_SPEC_FIELD_NOT_LIST `libraries` must be a list",
            ),
            (
                &format!("name: x\nstorage: y\nschema: a\ndatabase: b\n{libraries}"),
                "~/spark-pipeline.yml:3:1 PIPELINE_SPEC_CONFLICTING_FIELDS `database` and `schema` are the same thing",
            ),
            (
                "name: x\nstorage: y\nlibraries:\n  - glob:\n      include: trans*/**\n  - glob: {includes: a}\n  - file: a",
                "~/spark-pipeline.yml:5:16 PIPELINE_SPEC_INVALID_GLOB_PATTERN `trans*/**` is neither a file nor a folder followed by /**\n\
                 ~/spark-pipeline.yml:6:12 PIPELINE_SPEC_UNEXPECTED_FIELD `glob` has no field `includes`\n\
                 ~/spark-pipeline.yml:4:5 PIPELINE_SPEC_MISSING_REQUIRED_FIELD an entry of `libraries` is written {glob: {include: transformations/**}}\n\
                 ~/spark-pipeline.yml:7:5 PIPELINE_SPEC_UNEXPECTED_FIELD an entry of `libraries` has no field `file`\n\
                 ~/spark-pipeline.yml:3:1 PIPELINE_SPEC_MISSING_REQUIRED_FIELD an entry of `libraries` is written {glob: {include: transformations/**}}",
            ),
            (
                "name: x\nstorage: y\nlibraries:\n  - glob: {include: nothing/**}",
                "~/spark-pipeline.yml:4:21 PIPELINE_NO_DEFINITION_FILES `nothing/**` matches no definition file",
            ),
        ] {
            assert_eq!(spec(text), expected, "{text}");
        }
    }

    #[test]
    fn files_that_are_no_definitions_are_refused() {
        for (name, text, expected) in [
            ("a.py", "", "- NOT_SUPPORTED ~/transformations/a.py: definitions in Python are not supported yet"),
            (
                "notes.md",
                "",
                "- PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION ~/transformations/notes.md is no definition file",
            ),
            (
                "a.sql",
                "CREAT VIEW v",
                "~/transformations/a.sql:1:1 UNSUPPORTED_STATEMENT `CREAT` starts no statement of a pipeline",
            ),
        ] {
            let file = format!("transformations/{name}");
            assert_eq!(project(&[("spark-pipeline.yml", SPEC), (&file, text)]), expected, "{name}");
        }
    }

    #[test]
    fn the_project_file_is_found_from_a_folder_inside() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a/b");
        fs::create_dir_all(&inside).unwrap();
        assert_eq!(find_spec(&inside).unwrap_err().code(), "PIPELINE_SPEC_FILE_NOT_FOUND");
        fs::write(folder.path().join("spark-pipeline.yaml"), SPEC).unwrap();
        assert_eq!(find_spec(&inside).unwrap(), folder.path().join("spark-pipeline.yaml"));
        fs::write(folder.path().join("spark-pipeline.yml"), SPEC).unwrap();
        assert_eq!(find_spec(&inside).unwrap_err().code(), "MULTIPLE_PIPELINE_SPEC_FILES_FOUND");
        assert_eq!(load(folder.path()).unwrap_err().code(), "PIPELINE_SPEC_FILE_DOES_NOT_EXIST");
        assert_eq!(load(Path::new("/no/such.yml")).unwrap_err().code(), "PIPELINE_SPEC_FILE_DOES_NOT_EXIST");
    }

    #[test]
    fn a_new_project_loads_and_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let root = init("my shop", folder.path()).unwrap();
        let loaded = load(&root.join("spark-pipeline.yml")).unwrap();
        assert_eq!(loaded.lints, []);
        assert_eq!(loaded.pipeline.name, "my shop");
        let landing = root.join("landing/orders");
        let read = loaded.pipeline.flows.values().flat_map(|flow| flow.relations()).any(|relation| {
            matches!(&relation.source, crate::pipeline::RelationSource::Files(files) if Path::new(&files.path) == landing)
        });
        assert!(read && landing.join("batch_1.json").is_file());
        assert_eq!(init("my shop", folder.path()).unwrap_err().code(), "PROJECT_EXISTS");
        for name in ["", "..", "a/b", "-x", "a\nb"] {
            assert_eq!(init(name, folder.path()).unwrap_err().code(), "INVALID_PROJECT_NAME", "{name}");
        }
    }
}
