//! Spark's functions and modes through whole pipelines; case by case they are tested beside the functions.

use serde_json::json;

use crate::support::{Project, assert_rows};

const RAW: &str = "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
    schema => 'id BIGINT, s STRING, d DATE, t TIMESTAMP, n DECIMAL(10,2), f DOUBLE, xs ARRAY<INT>, doc STRING');";

#[test]
fn functions_of_every_family_give_sparks_answers_in_a_table() {
    let project = Project::new(&format!(
        "{RAW}
         CREATE STREAMING TABLE t AS SELECT id,
           initcap(s) AS i, s RLIKE '^a.*c$' AS r, regexp_extract(s, '(\\\\w+) (\\\\w+)', 2) AS e,
           date_format(t, 'EEE d MMM yyyy HH:mm') AS shown, CAST(t AS STRING) AS text, last_day(d) AS last,
           date_add(d, 1) AS next, months_between(d, DATE'2024-01-01') AS months, n / 3 AS third, round(f, 1) AS f1,
           aggregate(xs, 0, (a, x) -> a + x) AS total, filter(xs, x -> x > 1) AS big, transform(xs, x -> x * 2) AS twice,
           array_join(CAST(xs AS ARRAY<STRING>), '-', '?') AS joined, map('a', id)['a'] AS entry,
           doc:a.b AS b, from_json(doc, 'a STRUCT<b: INT>').a.b + 1 AS c, to_json(struct(id, xs)) AS again,
           md5(s) AS hash, if(id > 1, 'many', 'one') AS how, try_cast(s AS INT) AS no, nvl2(s, true, false) AS there,
           id DIV 2 AS half, s <=> NULL AS none
         FROM STREAM raw;"
    ));
    project.land(
        "raw",
        "a",
        &[
            json!({"id": 3, "s": "abc abc", "d": "2024-02-10", "t": "2024-02-10T13:04:05.5Z", "n": 10, "f": 2.25,
                   "xs": [1, 2, null], "doc": "{\"a\":{\"b\":7}}"}),
            json!({"id": null, "s": null, "d": null, "t": null, "n": null, "f": null, "xs": null, "doc": null}),
        ],
    );
    project.run(2).unwrap();
    let nothing: serde_json::Map<String, serde_json::Value> = [
        "id", "i", "r", "e", "shown", "text", "last", "next", "months", "third", "f1", "total", "big", "twice",
        "joined", "entry", "b", "c", "hash", "no", "half",
    ]
    .into_iter()
    .map(|name| (name.to_owned(), json!(null)))
    .chain([
        ("again".to_owned(), json!("{}")),
        ("how".to_owned(), json!("one")),
        ("there".to_owned(), json!(false)),
        ("none".to_owned(), json!(true)),
    ])
    .collect();
    assert_rows(
        "rows",
        &project.rows("SELECT * FROM t"),
        &[
            json!({"id": 3, "i": "Abc Abc", "r": true, "e": "abc", "shown": "Sat 10 Feb 2024 13:04",
                   "text": "2024-02-10 13:04:05.5", "last": "2024-02-29", "next": "2024-02-11", "months": 1.29032258,
                   "third": 3.333333, "f1": 2.3, "total": null, "big": [2], "twice": [2, 4, null], "joined": "1-2-?",
                   "entry": 3, "b": "7", "c": 8, "again": "{\"id\":3,\"xs\":[1,2,null]}",
                   "hash": "8ae32a5442259217c4613c77eb937ba0", "how": "many", "no": null, "there": true, "half": 1,
                   "none": false}),
            serde_json::Value::Object(nothing),
        ],
    );
}

#[test]
fn a_bad_cast_names_its_row_with_ansi_and_is_null_without() {
    let project =
        Project::new(&format!("{RAW} CREATE STREAMING TABLE t AS SELECT id, CAST(s AS INT) AS i FROM STREAM raw;"));
    project.land("raw", "a", &[json!({"id": 1, "s": "12"}), json!({"id": 2, "s": "twelve"})]);
    let error = project.run(1).unwrap_err();
    assert_eq!(error.code(), "ROW_EXPRESSION_FAILED", "{error}");
    assert!(error.to_string().contains("CAST_INVALID_INPUT"), "{error}");
    assert!(error.to_string().contains(r#""s":"twelve""#), "{error}");
    let spec = std::fs::read_to_string(project.spec()).unwrap();
    std::fs::write(project.spec(), format!("{spec}configuration:\n  spark.sql.ansi.enabled: \"false\"\n")).unwrap();
    project.run(1).unwrap();
    assert_rows("rows", &project.rows("SELECT * FROM t"), &[json!({"id": 1, "i": 12}), json!({"id": 2, "i": null})]);
}

#[test]
fn local_time_follows_the_zone_of_the_session() {
    let project = Project::new(&format!(
        "{RAW} CREATE STREAMING TABLE t AS SELECT date_format(t, 'yyyy-MM-dd HH:mm VV') AS shown, hour(t) AS h,
           CAST(date_trunc('DAY', t) AS STRING) AS day, CAST(t + INTERVAL 1 DAY AS STRING) AS next FROM STREAM raw;"
    ));
    let spec = std::fs::read_to_string(project.spec()).unwrap();
    let zone = "configuration:\n  spark.sql.session.timeZone: Europe/Berlin\n";
    std::fs::write(project.spec(), format!("{spec}{zone}")).unwrap();
    // The day after has 23 hours.
    project.land("raw", "a", &[json!({"id": 1, "t": "2024-03-30T23:30:00Z"})]);
    project.run(1).unwrap();
    assert_rows(
        "rows",
        &project.rows("SELECT * FROM t"),
        &[
            json!({"shown": "2024-03-31 00:30 Europe/Berlin", "h": 0, "day": "2024-03-31 00:00:00", "next": "2024-04-01 00:30:00"}),
        ],
    );
}

#[test]
fn an_unknown_function_names_the_near_one_and_all_are_listed() {
    let project =
        Project::new(&format!("{RAW} CREATE STREAMING TABLE t AS SELECT subtring(s, 1) AS a FROM STREAM raw;"));
    project.land("raw", "a", &[json!({"id": 1})]);
    let error = project.run(1).unwrap_err();
    assert_eq!((error.code(), error.advice()), ("UNKNOWN_FUNCTION", Some("did you mean substring?")), "{error}");
    let listed = project.rows("SHOW FUNCTIONS");
    for name in ["explode", "json_tuple", "input_file_name", "current_timestamp", "sum", "to_char", "if"] {
        assert!(listed.contains(&json!({"function": name})), "{name}");
    }
    let some = project.rows("SHOW FUNCTIONS LIKE 'to_ch*|TRY_to_num*'");
    assert_eq!(some, [json!({"function": "to_char"}), json!({"function": "try_to_number"})]);
    assert!(listed.len() > 250 && listed.contains(&json!({"function": "date_format"})), "{}", listed.len());
}

#[test]
fn what_is_not_finite_is_text_in_json() {
    let project = Project::new(RAW);
    project.land("raw", "a", &[json!({"id": 1, "f": 1.5})]);
    project.run(1).unwrap();
    let loaded = silverflow::project::load(&project.spec()).unwrap();
    let sql = "SELECT double('NaN') AS a, array(double('-Infinity'), f) AS b FROM raw";
    let result = silverflow::runtime::query(&loaded.pipeline, sql).unwrap();
    assert_eq!(silverflow::rows::json_lines(&result.batches).unwrap(), "{\"a\":\"NaN\",\"b\":[\"-Infinity\",1.5]}\n");
}
