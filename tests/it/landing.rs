//! Files as they come: schemas that grow, partitions, packed and encoded files, files that change or have been read,
//! what cannot be understood, and many of them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use silverflow::runtime::RunOptions;

use crate::support::{Project, assert_rows};

fn bronze(options: &str) -> Project {
    Project::new(&format!("CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t'{options});"))
}

fn put(project: &Project, path: &str, content: impl AsRef<[u8]>) {
    let path = project.path("landing").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn new_columns_are_added_in_place_and_what_hangs_on_the_table_gets_them() {
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t', format => 'json');
         CREATE STREAMING TABLE kept AS SELECT * EXCEPT (_rescued_data) FROM STREAM(t) WHERE id > 0;
         CREATE STREAMING TABLE history;
         CREATE FLOW h AS AUTO CDC INTO history FROM STREAM(kept) KEYS (id) SEQUENCE BY s STORED AS SCD TYPE 2;",
    );
    project.land("t", "a", &[json!({"id": 1, "s": 1, "n": {"x": 1}})]);
    project.run(2).unwrap();
    let first = project.stored("main/default/t");
    assert_eq!(first, [json!({"id": 1, "s": 1, "n": {"x": 1}, "_rescued_data": null})]);
    project.land("t", "b", &[json!({"id": 1, "s": 2, "n": {"x": 2, "y": "new"}, "added": true})]);
    project.land("t", "c", &[json!({"id": 2, "s": 1, "later": 1.5})]);
    let report = project.run(2).unwrap();
    assert_eq!(report.files, 2);
    let rows = project.rows("SELECT id, s, n.x AS x, n.y AS y, added, later, _rescued_data FROM t");
    let row = |id: i64, s: i64, x: Value, y: Value, added: Value, later: Value| json!({"id": id, "s": s, "x": x, "y": y, "added": added, "later": later, "_rescued_data": null});
    let none = Value::Null;
    let expected = [
        row(1, 1, json!(1), none.clone(), none.clone(), none.clone()),
        row(1, 2, json!(2), json!("new"), json!(true), none.clone()),
        row(2, 1, none.clone(), none.clone(), none, json!(1.5)),
    ];
    assert_rows("grown", &rows, &expected);
    let current = project.rows("SELECT id, added, later FROM history WHERE __END_AT IS NULL");
    let newest = [json!({"id": 1, "added": true, "later": null}), json!({"id": 2, "added": null, "later": 1.5})];
    assert_rows("downstream", &current, &newest);
    project.assert_clean("grown");
    // What is of another type is rescued, and the schema stays.
    project.land("t", "d", &[json!({"id": 3, "s": 1, "added": "maybe"})]);
    project.run(1).unwrap();
    let rescued = project.rows("SELECT added, get_json_object(_rescued_data, '$.added') AS was FROM t WHERE id = 3");
    assert_rows("rescued", &rescued, &[json!({"added": null, "was": "maybe"})]);
    assert!(!project.run(2).unwrap().changed());
}

#[test]
fn the_other_evolution_modes_rescue_fail_or_pass_over() {
    let first = [json!({"id": 1})];
    let second = [json!({"id": 2, "new": {"a": 1}})];
    let rescue = bronze(", format => 'json', schemaEvolutionMode => 'rescue'");
    let fail = bronze(", format => 'json', `cloudFiles.schemaEvolutionMode` => 'failOnNewColumns'");
    let none = bronze(", format => 'json', schemaEvolutionMode => 'none'");
    for project in [&rescue, &fail, &none] {
        project.land("t", "a", &first);
        project.run(1).unwrap();
        project.land("t", "b", &second);
    }
    rescue.run(2).unwrap();
    let rows = rescue.rows("SELECT id, get_json_object(_rescued_data, '$.new.a') AS a FROM t");
    assert_rows("rescue", &rows, &[json!({"id": 1, "a": null}), json!({"id": 2, "a": "1"})]);
    let error = fail.run(2).unwrap_err();
    assert_eq!(error.code(), "UNKNOWN_FIELD");
    assert!(error.to_string().contains("b.json") && error.to_string().contains("new"), "{error}");
    assert_rows("fail", &fail.rows("SELECT id FROM t"), &first);
    fs::remove_file(fail.path("landing/t/b.json")).unwrap();
    fail.land("t", "c", &[json!({"id": 3})]);
    fail.run(2).unwrap();
    assert_rows("mended", &fail.rows("SELECT id FROM t"), &[json!({"id": 1}), json!({"id": 3})]);
    none.run(2).unwrap();
    assert_rows("none", &none.rows("SELECT * FROM t"), &[json!({"id": 1}), json!({"id": 2})]);
}

#[test]
fn a_column_beyond_the_sample_and_in_a_file_read_by_another_thread_is_found() {
    let project = bronze(", format => 'csv', header => true, maxFilesPerTrigger => 3");
    put(&project, "t/a.csv", "id\n1\n");
    project.run(2).unwrap();
    let many: String = (0..200_000).map(|i| format!("{i}\n")).collect();
    put(&project, "t/b.csv", format!("id\n{many}"));
    put(&project, "t/c.csv", format!("id\n{many}"));
    put(&project, "t/d.csv", format!("x,id\n{}", many.replace('\n', ",7\n")));
    put(&project, "t/e.csv", "id,y\n8,z\n");
    project.run(2).unwrap();
    let rows = project.rows("SELECT count(*) AS n, count(x) AS x, count(y) AS y, count(id) AS id FROM t");
    assert_rows("all", &rows, &[json!({"n": 600_002, "x": 200_000, "y": 1, "id": 600_002})]);
}

#[test]
fn partitions_in_paths_are_columns_with_types() {
    let project = bronze(", format => 'json'");
    put(&project, "t/day=2026-01-31/shop=a%2Fb/x.json", "{\"id\":1}");
    put(&project, "t/day=2026-02-01/shop=__HIVE_DEFAULT_PARTITION__/x.json", "{\"id\":2}");
    put(&project, "t/other/x.json", "{\"id\":3}");
    project.run(2).unwrap();
    let rows = project.rows("SELECT id, day + INTERVAL 1 DAY AS next, shop FROM t");
    let expected = [
        json!({"id": 1, "next": "2026-02-01", "shop": "a/b"}),
        json!({"id": 2, "next": "2026-02-02", "shop": null}),
        json!({"id": 3, "next": null, "shop": null}),
    ];
    assert_rows("inferred", &rows, &expected);
    let declared = bronze(", format => 'json', schema => 'id BIGINT, year INT, shop STRING'");
    put(&declared, "t/year=2026/shop=a/x.json", "{\"id\":1,\"shop\":\"in the file\"}");
    declared.run(1).unwrap();
    assert_rows("declared", &declared.rows("SELECT * FROM t"), &[json!({"id": 1, "year": 2026, "shop": "a"})]);
    put(&declared, "t/year=soon/shop=a/x.json", "{\"id\":1}");
    let error = declared.run(1).unwrap_err();
    assert_eq!(error.code(), "INVALID_PARTITION_VALUE");
    let without = bronze(", format => 'json', recursiveFileLookup => true, schemaEvolutionMode => 'none'");
    put(&without, "t/year=2026/x.json", "{\"id\":1}");
    without.run(1).unwrap();
    assert_rows("without", &without.rows("SELECT * FROM t"), &[json!({"id": 1})]);
}

#[test]
fn every_format_packing_and_encoding_in_one_pipeline() {
    let read = |name: &str, options: &str| {
        format!("CREATE STREAMING TABLE {name} AS SELECT * FROM STREAM read_files('landing/{name}'{options});\n")
    };
    let sql = [
        read("zipped", ", schema => 'id INT'"),
        read("texts", ", format => 'text'"),
        read("files", ", format => 'binaryFile', pathGlobFilter => '*.bin'"),
        read("events", ""),
        read("wide", ", format => 'csv', header => true, encoding => 'UTF-16', schema => 'id INT, name STRING'"),
    ];
    let project = Project::new(&sql.concat());
    let gzip = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    // Two members in one file are one text.
    put(&project, "zipped/a.json.gz", [gzip("{\"id\":1}\n{\"id\""), gzip(":2}\n")].concat());
    put(&project, "zipped/b.json.zst", zstd::encode_all("{\"id\":3}".as_bytes(), 0).unwrap());
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
    bzip2.write_all(b"{\"id\":4}").unwrap();
    put(&project, "zipped/c.json.bz2", bzip2.finish().unwrap());
    put(&project, "texts/a.txt", "one\r\ntwo");
    put(&project, "files/a.bin", [0, 255, 7]);
    put(&project, "files/a.txt", "no");
    put(&project, "events/a.avro", avro());
    let wide: Vec<u8> =
        [0xfeff].into_iter().chain("id,name\n1,é€\n".encode_utf16()).flat_map(u16::to_be_bytes).collect();
    put(&project, "wide/a.csv", wide);
    project.run(2).unwrap();
    let ids: Vec<Value> = (1..=4).map(|id| json!({"id": id})).collect();
    assert_rows("packed", &project.rows("SELECT id FROM zipped"), &ids);
    assert_rows("text", &project.rows("SELECT value FROM texts"), &[json!({"value": "one"}), json!({"value": "two"})]);
    let files = project.rows("SELECT length, content, path LIKE '%/files/a.bin' AS found FROM files");
    assert_rows("binary", &files, &[json!({"length": 3, "content": "00ff07", "found": true})]);
    let events = project.rows("SELECT id, name, at, get(tags, 0) AS tag FROM events");
    let at = "1970-01-01T00:00:00.001Z";
    assert_rows(
        "avro",
        &events,
        &[json!({"id": 1, "name": "a", "at": at, "tag": "x"}), json!({"id": 2, "name": null, "at": at, "tag": null})],
    );
    assert_rows("encoded", &project.rows("SELECT * FROM wide"), &[json!({"id": 1, "name": "é€"})]);
    // A file that ends too early is no end of the data.
    let whole = gzip("{\"id\":5}\n{\"id\":6}\n");
    put(&project, "zipped/d.json.gz", &whole[..whole.len() - 6]);
    let error = project.run(2).unwrap_err();
    assert_eq!(error.code(), "SOURCE_NOT_READABLE");
    assert_rows("unchanged", &project.rows("SELECT id FROM zipped"), &ids);
    for name in ["a.xml", "a.orc", "a.json.xz"] {
        let refused = bronze("");
        put(&refused, &format!("t/{name}"), "x");
        assert_eq!(refused.run(1).unwrap_err().code(), "NOT_SUPPORTED", "{name}");
    }
}

fn avro() -> Vec<u8> {
    use arrow::array::{Int64Array, ListBuilder, RecordBatch, StringArray, StringBuilder, TimestampMillisecondArray};
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.values().append_value("x");
    tags.append(true);
    tags.append(true);
    let columns = [
        ("id", std::sync::Arc::new(Int64Array::from(vec![1, 2])) as _, false),
        ("name", std::sync::Arc::new(StringArray::from(vec![Some("a"), None])) as _, true),
        ("at", std::sync::Arc::new(TimestampMillisecondArray::from(vec![1, 1]).with_timezone("UTC")) as _, false),
        ("tags", std::sync::Arc::new(tags.finish()) as _, true),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer = arrow_avro::writer::AvroWriter::new(Vec::new(), batch.schema().as_ref().clone()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner()
}

#[test]
fn what_is_not_understood_is_counted_by_flow() {
    let project = bronze(", format => 'json', schema => 'id BIGINT, name STRING', mode => 'DROPMALFORMED'");
    put(&project, "t/a.json", "{\"id\":1}\n{\"id\":\"x\"}\nno\n{\"id\":2}\n");
    let report = project.run(2).unwrap();
    let counts: Vec<_> =
        report.sources.iter().map(|(flow, x)| (flow.as_str(), x.malformed, x.dropped, x.rescued)).collect();
    assert_eq!(counts, [("main.default.t", 2, 2, 0)]);
    assert_rows("rest", &project.rows("SELECT id FROM t"), &[json!({"id": 1}), json!({"id": 2})]);
    put(&project, "t/b.json", "{\"id\":3}\n");
    assert!(project.run(2).unwrap().sources.is_empty());
}

#[test]
fn files_that_were_there_before_count_as_read_where_that_is_asked_for() {
    let project = bronze(", format => 'json', schema => 'id BIGINT', `cloudFiles.includeExistingFiles` => false");
    project.land("t", "a", &[json!({"id": 1})]);
    assert!(!project.run(2).unwrap().changed());
    assert!(!project.run(2).unwrap().changed());
    project.land("t", "b", &[json!({"id": 2})]);
    project.run(2).unwrap();
    assert_rows("new only", &project.rows("SELECT id FROM t"), &[json!({"id": 2})]);
    let empty = bronze(", format => 'json', schema => 'id BIGINT', includeExistingFiles => false");
    fs::create_dir_all(empty.path("landing/t")).unwrap();
    empty.run(1).unwrap();
    empty.land("t", "a", &[json!({"id": 1})]);
    empty.run(1).unwrap();
    assert_rows("after an empty look", &empty.rows("SELECT id FROM t"), &[json!({"id": 1})]);
}

#[test]
fn a_file_that_is_overwritten_is_read_again_only_where_that_is_asked_for() {
    let plain = bronze(", format => 'json', schema => 'id BIGINT'");
    let again = bronze(", format => 'json', schema => 'id BIGINT', allowOverwrites => true");
    for project in [&plain, &again] {
        project.land("t", "a", &[json!({"id": 1})]);
        project.run(1).unwrap();
        project.land("t", "a", &[json!({"id": 1}), json!({"id": 22})]);
        project.run(1).unwrap();
        // It is said in each run, whether there is something else to read or not.
        for there_is_more in [false, true] {
            if there_is_more {
                put(project, "t/b.json", "");
            }
            let (report, said) = run_and_hear(project);
            assert!(!report.changed());
            let asked = std::ptr::eq(project, &again);
            assert_eq!(report.sources.values().map(|x| x.changed_files).sum::<u64>(), u64::from(!asked));
            assert_eq!(said.iter().any(|line| line.contains("SOURCE_FILE_CHANGED") && line.contains("a.json")), !asked);
        }
    }
    assert_rows("once", &plain.rows("SELECT id FROM t"), &[json!({"id": 1})]);
    assert_rows("again", &again.rows("SELECT id FROM t"), &[json!({"id": 1}), json!({"id": 1}), json!({"id": 22})]);
}

/// Runs, and gives what was said meanwhile.
fn run_and_hear(project: &Project) -> (silverflow::runtime::RunReport, Vec<String>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&said);
    let progress: silverflow::runtime::Progress =
        Arc::new(move |line: &str| hears.lock().unwrap().push(line.to_owned()));
    let report = project.run_with(&RunOptions { progress: Some(progress), ..RunOptions::default() }).unwrap();
    let said = said.lock().unwrap().clone();
    (report, said)
}

#[test]
fn a_file_that_is_being_written_waits_for_the_next_run() {
    let project = bronze(", format => 'json', schema => 'id BIGINT'");
    project.land("t", "whole", &[json!({"id": -1})]);
    put(&project, "t/growing.json", "");
    let over = AtomicBool::new(false);
    let path = project.path("landing/t/growing.json");
    let (report, said, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                writeln!(file, "{{\"id\":{written}}}").unwrap();
                written += 1;
                std::thread::yield_now();
            }
            written
        });
        while fs::metadata(&path).unwrap().len() == 0 {
            std::thread::yield_now();
        }
        let (report, said) = run_and_hear(&project);
        over.store(true, Ordering::Relaxed);
        (report, said, writer.join().unwrap())
    });
    assert_eq!(report.files, 1);
    assert_eq!(report.sources.values().map(|x| x.waiting_files).sum::<u64>(), 1);
    assert!(said.iter().any(|line| line.contains("growing.json") && line.contains("still being written")), "{said:?}");
    assert_rows("whole files", &project.rows("SELECT id FROM t"), &[json!({"id": -1})]);
    let (report, _) = run_and_hear(&project);
    assert_eq!((report.files, report.sources.len()), (1, 0));
    let counted = project.rows("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM t");
    assert_rows("all of it", &counted, &[json!({"n": written + 1, "ids": written + 1})]);
}

fn run_at(project: &Project, wall: DateTime<Utc>) -> silverflow::error::Result<silverflow::runtime::RunReport> {
    project.run_with(&RunOptions { wall: Some(wall), ..RunOptions::default() })
}

#[test]
fn files_that_were_read_go_when_their_time_is_over_and_not_before_they_are_stored() {
    let start = "2030-01-01T00:00:00Z".parse::<DateTime<Utc>>().unwrap();
    let project = Project::new(
        "CREATE STREAMING TABLE t (CONSTRAINT low EXPECT (id < 100) ON VIOLATION FAIL UPDATE)
           AS SELECT * FROM STREAM read_files('landing/t', format => 'json', schema => 'id BIGINT',
             cleanSource => 'MOVE', `cleanSource.retentionDuration` => '2 days',
             `cloudFiles.cleanSource.moveDestination` => 'archive');",
    );
    let there = |path: &str| project.path(path).exists();
    put(&project, "t/day=1/a.json", "{\"id\":1}");
    let report = run_at(&project, start).unwrap();
    assert_eq!((report.files, report.cleaned), (1, 0));
    project.land("t", "bad", &[json!({"id": 100})]);
    assert_eq!(run_at(&project, start + TimeDelta::days(1)).unwrap_err().code(), "EXPECTATION_VIOLATED");
    fs::remove_file(project.path("landing/t/bad.json")).unwrap();
    project.land("t", "b", &[json!({"id": 2})]);
    run_at(&project, start + TimeDelta::days(1)).unwrap();
    assert!(there("landing/t/day=1/a.json") && there("landing/t/b.json"));
    // A file that was changed after it was read stays.
    project.land("t", "b", &[json!({"id": 3}), json!({"id": 4})]);
    let report = run_at(&project, start + TimeDelta::days(4)).unwrap();
    assert_eq!(report.cleaned, 1);
    assert!(!there("landing/t/day=1/a.json") && there("archive/day=1/a.json") && there("landing/t/b.json"));
    assert_rows("kept", &project.rows("SELECT id FROM t"), &[json!({"id": 1}), json!({"id": 2})]);
    let inside = bronze(
        ", format => 'json', schema => 'id BIGINT', cleanSource => 'MOVE', sourceArchiveDir => 'landing/t/archive'",
    );
    inside.land("t", "a", &[json!({"id": 1})]);
    assert_eq!(inside.run(1).unwrap_err().code(), "INVALID_OPTION");
    let delete = bronze(
        ", format => 'json', schema => 'id BIGINT', cleanSource => 'DELETE', `cleanSource.retentionDuration` => '0 days'",
    );
    delete.land("t", "a", &[json!({"id": 1})]);
    assert_eq!(delete.run(1).unwrap().cleaned, 1);
    assert!(!delete.path("landing/t/a.json").exists());
    assert!(!delete.run(1).unwrap().changed());
}

#[test]
fn an_unknown_option_is_said_and_does_not_stop_the_run() {
    let project = bronze(", format => 'json', schema => 'id BIGINT', multiLines => true, useNotifications => true");
    project.land("t", "a", &[json!({"id": 1})]);
    project.run(1).unwrap();
    let loaded = silverflow::project::load(&project.spec()).unwrap();
    let lints = silverflow::runtime::dry_run(&loaded.pipeline).unwrap().plan.lints;
    let said: Vec<_> = lints.iter().map(|x| (x.code, x.message.as_str())).collect();
    assert!(
        said.contains(&("UNKNOWN_OPTION", "read_files has no option multilines; did you mean multiLine?")),
        "{said:?}"
    );
    assert!(said.iter().any(|x| x.0 == "OPTION_WITHOUT_EFFECT"), "{said:?}");
}

#[test]
fn a_file_that_cannot_be_read_may_be_passed_over() {
    let project = bronze(", format => 'parquet', schema => 'id BIGINT', ignoreCorruptFiles => true");
    put(&project, "t/a.parquet", "PAR1 and nothing else");
    let report = project.run(1).unwrap();
    assert_eq!(report.sources.values().map(|x| x.corrupt_files).sum::<u64>(), 1);
    assert!(project.rows("SELECT id FROM t").is_empty());
}

#[test]
fn of_files_with_columns_only_those_are_read_that_something_asks_for() {
    use arrow::array::{Int64Array, RecordBatch, StringArray};
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT id, part FROM STREAM read_files('landing/t', format => 'parquet',
           schema => 'junk INT, id BIGINT, part STRING, more DATE');",
    );
    let batch = RecordBatch::try_from_iter([
        ("id", std::sync::Arc::new(Int64Array::from(vec![1, 2])) as _),
        ("junk", std::sync::Arc::new(StringArray::from(vec!["no", "number"])) as _),
    ])
    .unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    put(&project, "t/part=x/a.parquet", writer.into_inner().unwrap());
    project.run(2).unwrap();
    let rows = project.rows("SELECT * FROM t");
    assert_rows("projected", &rows, &[json!({"id": 1, "part": "x"}), json!({"id": 2, "part": "x"})]);
}

#[test]
fn a_full_refresh_that_meets_new_columns_is_made_once() {
    let project = bronze(", format => 'json', maxFilesPerTrigger => 1");
    project.land("t", "a", &[json!({"id": 1})]);
    project.run(1).unwrap();
    project.land("t", "b", &[json!({"id": 2, "b": "x"})]);
    project.land("t", "c", &[json!({"id": 3, "c": "x"})]);
    let selection = silverflow::runtime::Selection { full_refresh: vec!["t".into()], ..Default::default() };
    let report = project.run_with(&RunOptions { selection, ..RunOptions::default() }).unwrap();
    assert_eq!(report.epochs.len(), 1);
    let rows = project.rows("SELECT id, b, c FROM t");
    let row = |id: i64, b: Value, c: Value| json!({"id": id, "b": b, "c": c});
    let none = Value::Null;
    let expected = [row(1, none.clone(), none.clone()), row(2, json!("x"), none.clone()), row(3, none, json!("x"))];
    assert_rows("refreshed", &rows, &expected);
    assert!(!project.run(1).unwrap().changed());
}

/// The bytes of the epoch log that a run writes.
fn log_bytes(project: &Project) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |x| x.len());
    fs::read_dir(project.path("lakehouse/_silverflow/epochs")).unwrap().map(|x| size(&x.unwrap().path())).sum()
}

#[test]
fn ten_thousand_files_that_were_read_do_not_weigh_on_the_next_epoch() {
    let options = ", format => 'json', schema => 'id BIGINT', maxFilesPerTrigger => 20000";
    let cost = |files: usize| {
        let project = bronze(options);
        for i in 0..files {
            put(&project, &format!("t/{i:05}.json"), format!("{{\"id\":{i}}}"));
        }
        project.run(2).unwrap();
        let rows = project.rows("SELECT count(*) AS n FROM t");
        assert_rows("all", &rows, &[json!({"n": files})]);
        let mut costs = Vec::new();
        for i in 0..5 {
            project.land("t", &format!("late-{i}"), &[json!({"id": i})]);
            let (before, since) = (log_bytes(&project), Instant::now());
            project.run(2).unwrap();
            costs.push((since.elapsed(), log_bytes(&project) - before));
        }
        costs.sort_unstable();
        costs[costs.len() / 2]
    };
    let (few, many) = (cost(10), cost(10_000));
    eprintln!("an epoch after 10 files: {few:?}, after 10000: {many:?}");
    assert!(many.1 < 2 * few.1 + 1024, "the log grows by {} bytes an epoch, not {}", many.1, few.1);
    // Listing is what is left; the bound is wide since other tests run beside this one.
    assert!(many.0 < few.0 * 4 + Duration::from_secs(2), "{many:?} {few:?}");
}

#[test]
fn limits_of_bytes_moments_and_skipped_rows_hold_in_a_run() {
    let three = |options: &str| {
        let project = bronze(&format!(", format => 'csv', schema => 'id INT', {options}"));
        for (name, day) in [("a", 1), ("b", 2), ("c", 3)] {
            put(&project, &format!("t/{name}.csv"), format!("x{name}\ny\n{day}0000000\n"));
            let file = fs::File::options().write(true).open(project.path(format!("landing/t/{name}.csv"))).unwrap();
            let day = DateTime::<Utc>::UNIX_EPOCH + TimeDelta::days(day);
            file.set_modified(day.into()).unwrap();
        }
        let report = project.run(2).unwrap();
        let ids: Vec<Value> = project.rows("SELECT id FROM t WHERE id IS NOT NULL ORDER BY id");
        (report.epochs.len(), ids.iter().map(|row| row["id"].as_i64().unwrap() / 10_000_000).collect::<Vec<_>>())
    };
    assert_eq!(three("skipRows => 2, maxBytesPerTrigger => '5b'"), (3, vec![1, 2, 3]));
    assert_eq!(three("skipRows => 2, maxBytesPerTrigger => '1k'"), (1, vec![1, 2, 3]));
    assert_eq!(three("skipRows => 2, modifiedBefore => '1970-01-04'"), (1, vec![1, 2]));
    assert_eq!(three("skipRows => 2, modifiedAfter => '1970-01-03T00:00:00Z'"), (1, vec![3]));
    assert_eq!(three("skipRows => 3").1, [] as [i64; 0]);
}
