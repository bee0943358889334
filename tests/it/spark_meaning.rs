//! Expressions that DataFusion alone would read otherwise than Spark, in a query and in an expectation.

use serde_json::json;

use crate::support::{Project, assert_rows};

#[test]
fn division_subscripts_and_substrings_mean_what_they_mean_in_spark() {
    let project = Project::new(
        "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
           schema => 'id BIGINT, s STRING, xs ARRAY<STRING>');
         CREATE STREAMING TABLE t (
           CONSTRAINT half EXPECT (id / 2 = 0.5) ON VIOLATION QUARANTINE,
           CONSTRAINT named EXPECT (coalesce(s, '') <> '') ON VIOLATION QUARANTINE
         ) AS SELECT id, id / 2 AS half, xs[0] AS first, try_element_at(xs, 2) AS second, substring(s, -2) AS tail,
             struct(id, s) AS member, s FROM STREAM raw;",
    );
    project.land(
        "raw",
        "a",
        &[json!({"id": 1, "s": "abc", "xs": ["x", "y"]}), json!({"id": 2, "s": "de", "xs": ["z"]})],
    );
    project.run(1).unwrap();
    assert_rows(
        "kept",
        &project.rows("SELECT * FROM t"),
        &[
            json!({"id": 1, "half": 0.5, "first": "x", "second": "y", "tail": "bc", "member": {"id": 1, "s": "abc"}, "s": "abc"}),
        ],
    );
    assert_rows(
        "quarantined",
        &project.rows("SELECT id, half, first, second, _dq_failed FROM t_quarantine"),
        &[json!({"id": 2, "half": 1.0, "first": "z", "second": null, "_dq_failed": ["half"]})],
    );
}

#[test]
fn an_overflow_names_its_row_and_stops_the_epoch() {
    let project = Project::new(
        "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');
         CREATE STREAMING TABLE t AS SELECT id + 9223372036854775807 AS more FROM STREAM raw;",
    );
    project.land("raw", "a", &[json!({"id": 0}), json!({"id": 1})]);
    let error = project.run(1).unwrap_err();
    assert_eq!(error.code(), "ROW_EXPRESSION_FAILED", "{error}");
    assert!(error.to_string().contains(r#"{"id":1}"#), "{error}");
}

#[test]
fn a_constraint_of_the_table_judges_what_the_expectations_leave() {
    let project = Project::new(
        "CREATE STREAMING TABLE t (id BIGINT NOT NULL, CONSTRAINT has_id EXPECT (id IS NOT NULL) ON VIOLATION DROP ROW)
         AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');",
    );
    project.land("raw", "a", &[json!({"id": 1}), json!({"id": null})]);
    project.run(1).unwrap();
    assert_rows("kept", &project.rows("SELECT * FROM t"), &[json!({"id": 1})]);
}

#[test]
fn what_gives_another_value_each_time_is_refused() {
    let project = Project::new(
        "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');
         CREATE STREAMING TABLE t AS SELECT id, uuid() AS u FROM STREAM raw;",
    );
    project.land("raw", "a", &[json!({"id": 1})]);
    assert_eq!(project.run(1).unwrap_err().code(), "NOT_SUPPORTED");
}
