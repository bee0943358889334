#![allow(clippy::unwrap_used)]
use super::*;
use crate::pipeline::{Graph, ScdType};
use crate::project::load_sql;
use crate::project::tests::errors;

fn builder() -> PipelineBuilder {
    Pipeline::builder("p").root("/p").storage("storage")
}

fn outcome(builder: PipelineBuilder) -> String {
    match builder.build() {
        Ok(loaded) => Graph::new(&loaded.pipeline).unwrap().render(&loaded.pipeline),
        Err(error) => errors(&error),
    }
}

#[test]
fn a_pipeline_in_rust_is_the_same_as_in_sql() {
    let sql = "
        CREATE STREAMING TABLE bronze.raw (id INT NOT NULL, qty INT, CONSTRAINT has_id EXPECT (id IS NOT NULL) ON VIOLATION FAIL UPDATE)
            COMMENT 'as it came' TBLPROPERTIES ('quality' = 'bronze')
            AS SELECT * FROM STREAM read_files('/landing', format => 'csv');
        CREATE FLOW backfill AS INSERT INTO ONCE bronze.raw BY NAME SELECT * FROM old;
        CREATE FLOW more AS INSERT INTO bronze.raw BY NAME SELECT * FROM STREAM other;
        CREATE VIEW clean AS SELECT * FROM STREAM bronze.raw WHERE qty > 0;
        CREATE PRIVATE STREAMING TABLE t;
        CREATE FLOW merge AS AUTO CDC INTO t FROM STREAM clean KEYS (id) SEQUENCE BY struct(ts, qty) APPLY AS DELETE WHEN op = 'D'
            COLUMNS * EXCEPT (op, ts) TRACK HISTORY ON (name) IGNORE NULL UPDATES ON * EXCEPT (qty) STORED AS SCD TYPE 2;
        CREATE STREAMING TABLE u;
        CREATE FLOW once AS AUTO CDC ONCE INTO u FROM STREAM clean KEYS (id) SEQUENCE BY ts APPLY AS TRUNCATE WHEN op = 'T';
        CREATE MATERIALIZED VIEW m AS SELECT * FROM t WHERE __END_AT IS NULL;";
    let built = builder()
        .configuration("folder", "/landing")
        .streaming_table("bronze.raw", |t| {
            t.query("SELECT * FROM STREAM read_files('${folder}', format => 'csv')")
                .columns("id INT NOT NULL, qty INT")
                .expect("has_id", "id IS NOT NULL", Action::Fail)
                .comment("as it came")
                .property("quality", "bronze")
        })
        .append_once("backfill", "bronze.raw", "SELECT * FROM old")
        .append_flow("more", "bronze.raw", "SELECT * FROM STREAM other;")
        .view("clean", "SELECT * FROM STREAM bronze.raw WHERE qty > 0")
        .streaming_table("t", TableBuilder::private)
        .auto_cdc("merge", "t", "clean", |f| {
            f.keys(["id"])
                .sequence_by("struct(ts, qty)")
                .delete_when("op = 'D'")
                .except_columns(["op", "ts"])
                .track_history(["name"])
                .ignore_null_updates_except(["qty"])
                .scd(ScdType::Two)
        })
        .sql("CREATE STREAMING TABLE u")
        .auto_cdc("once", "u", "clean", |f| f.keys(["id"]).sequence_by("ts").truncate_when("op = 'T'").once())
        .materialized_view("m", |v| v.query("SELECT * FROM t WHERE __END_AT IS NULL"));
    let built = built.build().unwrap().pipeline;
    let settings = Settings { root: "/p".into(), ..Settings::default() };
    let loaded = load_sql(&[("a.sql", sql)], &settings).unwrap().pipeline;
    let shown = |pipeline: &Pipeline| Graph::new(pipeline).unwrap().render(pipeline);
    assert_eq!(shown(&built), shown(&loaded));
    assert_eq!(built.storage, "/p/storage");
    for (name, dataset) in &loaded.datasets {
        let other = built.datasets.get(name).unwrap();
        let facts = |d: &crate::pipeline::Dataset| {
            let columns: Vec<_> =
                d.columns.iter().flatten().map(|c| (c.name.clone(), c.data_type.clone(), c.nullable)).collect();
            (d.kind, d.private, d.comment.clone(), d.properties.clone(), columns)
        };
        // A view is private either way; only SQL leaves that unsaid.
        if dataset.kind != DatasetKind::TemporaryView {
            assert_eq!(facts(other), facts(dataset), "{name}");
        }
    }
    for (name, flow) in &loaded.flows {
        let other = built.flows.get(name).unwrap();
        assert_eq!(
            other.query().map(|q| q.body.sql().to_string()),
            flow.query().map(|q| q.body.sql().to_string()),
            "{name}"
        );
        let lists = |cdc: &crate::pipeline::AutoCdc| {
            let ignored = match &cdc.ignore_null_updates {
                Some(crate::pipeline::IgnoreNull::Columns(list)) => list.to_string(),
                other => format!("{other:?}"),
            };
            (cdc.track_history.as_ref().map(ToString::to_string), ignored)
        };
        assert_eq!(other.auto_cdc().map(lists), flow.auto_cdc().map(lists), "{name}");
    }
}

#[test]
fn the_builder_makes_the_same_checks() {
    let cdc = |clauses: fn(AutoCdcBuilder) -> AutoCdcBuilder| {
        builder().streaming_table("t", |t| t).auto_cdc("f", "t", "s", clauses)
    };
    for (built, expected) in [
        (builder(), "- RUN_EMPTY_PIPELINE the pipeline declares no streaming table and no materialized view"),
        (
            builder().streaming_table("t", |t| t.query("SELECT\n  FROM STREAM s")),
            "<builder>:3:3 PARSE_SYNTAX_ERROR expected an expression, found `FROM`",
        ),
        (
            builder().streaming_table("t", |t| t.query("SELECT * FROM STREAM s; DROP TABLE x")),
            "<builder>:2:25 PARSE_SYNTAX_ERROR one thing stands here, and what follows the semicolon is another",
        ),
        (
            builder().streaming_table("t", |t| {
                t.query("SELECT * FROM STREAM s").expect("c", "a) ON VIOLATION (b", Action::Drop)
            }),
            "<builder>:3:2 PARSE_SYNTAX_ERROR expected the end of the statement, found `)`",
        ),
        (
            builder().streaming_table("t AS SELECT 1", |t| t),
            "<builder>:1:3 PARSE_SYNTAX_ERROR expected the end of the statement, found `AS`",
        ),
        (
            builder().streaming_table("t", |t| t.columns("a STRNG").query("SELECT * FROM STREAM s")),
            "<builder>:3:3 UNSUPPORTED_DATATYPE `STRNG` is no type that is supported",
        ),
        (builder().materialized_view("m", |m| m), "<builder>:1:1 PIPELINE_DATASET_WITHOUT_FLOW `m` has no query"),
        (
            builder().streaming_table("t", |t| t.query("SELECT * FROM s")),
            "<builder>:2:15 INVALID_FLOW_QUERY_TYPE.BATCH_RELATION_FOR_STREAMING_TABLE `main.default.t` is a streaming table, and this query reads no stream",
        ),
        (
            builder().append_flow("a.f", "t", "SELECT 1"),
            "<builder>:1:1 MULTIPART_FLOW_NAME_NOT_SUPPORTED the name of a flow has one part",
        ),
        (cdc(|f| f.sequence_by("ts")), "<builder>:2:1 AUTOCDC_EMPTY_KEYS AUTO CDC without KEYS"),
        (cdc(|f| f.keys([""; 0]).sequence_by("ts")), "<builder>:2:1 AUTOCDC_EMPTY_KEYS AUTO CDC without KEYS"),
        (cdc(|f| f.keys(["id"])), "<builder>:2:1 AUTOCDC_MISSING_SEQUENCE AUTO CDC without SEQUENCE BY"),
        (cdc(|f| f.keys(["id", "ID"]).sequence_by("ts")), "<builder>:7:1 DUPLICATE_COLUMN `ID` is named twice"),
        (
            cdc(|f| f.keys(["id"]).sequence_by("ts").columns(["id"]).except_columns(["op"])),
            "<builder>:8:1 CANNOT_SET_TOGETHER `columns` and `except_columns` exclude each other",
        ),
        (
            cdc(|f| f.keys(["id"]).sequence_by("ts").track_history(["a"]).track_history_except(["b"])),
            "<builder>:8:1 CANNOT_SET_TOGETHER `track_history` and `track_history_except` exclude each other",
        ),
        (
            cdc(|f| f.keys(["id"]).sequence_by("ts").ignore_null_updates_on([""; 0])),
            "<builder>:2:1 AUTOCDC_IGNORE_NULL_EMPTY_COLUMN_LIST IGNORE NULL UPDATES ON names no column",
        ),
        (
            cdc(|f| f.keys(["id"]).sequence_by("ts").except_columns(["id"])),
            "<builder>:6:1 AUTOCDC_KEY_NOT_IN_SELECTED_SCHEMA the key `id` is not among the kept columns",
        ),
        (
            builder().sql("CREATE VIEW v AS SELECT 1").sql("CREATE VIEW w AS\nSELEC"),
            "<sql 2>:2:1 PARSE_SYNTAX_ERROR expected SELECT, VALUES, or a subquery in the query body, found `SELEC`",
        ),
    ] {
        let shown = format!("{built:?}");
        assert_eq!(outcome(built), expected, "{shown}");
    }
}
