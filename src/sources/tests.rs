//! Files in, rows out: tables of what each format and mode makes of a text.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::pipeline::ReadFiles;

fn source(path: &Path, options: &[(&str, &str)]) -> Result<FileSource> {
    with_schema(path, options, None)
}

fn with_schema(path: &Path, options: &[(&str, &str)], schema: Option<&SchemaRef>) -> Result<FileSource> {
    FileSource::new(&ReadFiles {
        path: path.to_str().unwrap().into(),
        schema: schema.cloned(),
        options: options.iter().map(|(k, v)| (k.to_lowercase(), (*v).to_owned())).collect(),
        kept: None,
    })
}

fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(fields.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect::<Vec<_>>()))
}

/// Rows as JSON objects, nulls included.
fn to_json(batches: &[RecordBatch]) -> Vec<Value> {
    let mut writer = arrow::json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow::json::writer::LineDelimited>(Vec::new());
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    String::from_utf8(writer.into_inner()).unwrap().lines().map(|x| serde_json::from_str(x).unwrap()).collect()
}

fn read_file(source: &FileSource, file: &FileId, schema: &SchemaRef) -> Result<(Vec<Value>, ReadStats)> {
    let mut reader = source.read(file, schema)?;
    let batches = reader.by_ref().collect::<Result<Vec<_>>>()?;
    assert!(batches.iter().all(|x| x.num_rows() > 0));
    let stats = reader.stats();
    assert_eq!(batches.iter().map(|x| x.num_rows() as u64).sum::<u64>(), stats.rows);
    Ok((to_json(&batches), stats))
}

/// Writes a text into a file, reads it, and gives rows and counts.
fn read_text(
    name: &str,
    text: impl AsRef<[u8]>,
    options: &[(&str, &str)],
    declared: Option<&SchemaRef>,
) -> Result<(Vec<Value>, ReadStats)> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), text).unwrap();
    let source = with_schema(folder.path(), options, declared)?;
    let files = source.discover(|_| false, false)?;
    let schema = match declared {
        Some(schema) => source.declared(schema),
        None => source.infer(&files)?,
    };
    let (mut rows, stats) = read_file(&source, &files[0], &schema)?;
    for row in &mut rows {
        for value in row.as_object_mut().unwrap().values_mut() {
            if let Value::String(text) = value {
                *text = text.replace(folder.path().to_str().unwrap(), "");
            }
        }
    }
    Ok((rows, stats))
}

fn lines(rows: &[Value]) -> Vec<String> {
    rows.iter().map(Value::to_string).collect()
}

fn people() -> SchemaRef {
    schema(&[("name", DataType::Utf8), ("age", DataType::Int32), ("_corrupt_record", DataType::Utf8)])
}

const DAMAGED: &str = "{\"name\":\"Ann\",\"age\":1}\n\n{\"name\":\"Bob\",\"age\":\"x\"}\r\n{\"name\":\"C\n[{\"NAME\":\"Dan\"},7]\n{\"age\":2,\"new\":[1, 2]}";

#[test]
fn malformed_json_is_treated_by_mode() {
    let (rows, stats) = read_text("a.json", DAMAGED, &[], Some(&people())).unwrap();
    assert_eq!(
        lines(&rows),
        [
            r#"{"name":"Ann","age":1,"_corrupt_record":null}"#,
            r#"{"name":"Bob","age":null,"_corrupt_record":"{\"name\":\"Bob\",\"age\":\"x\"}"}"#,
            r#"{"name":null,"age":null,"_corrupt_record":"{\"name\":\"C"}"#,
            r#"{"name":"Dan","age":null,"_corrupt_record":null}"#,
            r#"{"name":null,"age":null,"_corrupt_record":"7"}"#,
            r#"{"name":null,"age":2,"_corrupt_record":null}"#,
        ]
    );
    assert_eq!(stats, ReadStats { rows: 6, malformed: 3, dropped: 0, rescued: 0, corrupt_files: 0 });
    let (rows, stats) = read_text("a.json", DAMAGED, &[("mode", "dropMalformed")], Some(&people())).unwrap();
    assert_eq!(
        rows.iter().map(|x| x["name"].clone()).collect::<Vec<_>>(),
        [Value::from("Ann"), "Dan".into(), Value::Null]
    );
    assert_eq!(stats, ReadStats { rows: 3, malformed: 3, dropped: 3, rescued: 0, corrupt_files: 0 });
    let error = read_text("a.json", DAMAGED, &[("mode", "FAILFAST")], Some(&people())).unwrap_err();
    assert_eq!(error.code(), "MALFORMED_RECORD");
    assert!(error.to_string().contains("a.json, line 3") && error.to_string().contains("Bob"), "{error}");
}

#[test]
fn what_does_not_fit_is_rescued_where_that_is_wanted() {
    let (rows, stats) =
        read_text("a.json", DAMAGED, &[("rescuedDataColumn", "rest"), ("mode", "DROPMALFORMED")], Some(&people()))
            .unwrap();
    assert_eq!(
        lines(&rows),
        [
            r#"{"name":"Ann","age":1,"_corrupt_record":null,"rest":null}"#,
            r#"{"name":"Bob","age":null,"_corrupt_record":null,"rest":"{\"age\":\"x\",\"_file_path\":\"/a.json\"}"}"#,
            r#"{"name":null,"age":null,"_corrupt_record":null,"rest":"{\"NAME\":\"Dan\",\"_file_path\":\"/a.json\"}"}"#,
            r#"{"name":null,"age":2,"_corrupt_record":null,"rest":"{\"new\":[1, 2],\"_file_path\":\"/a.json\"}"}"#,
        ]
    );
    assert_eq!(stats, ReadStats { rows: 4, malformed: 2, dropped: 2, rescued: 3, corrupt_files: 0 });
    let options = [("rescuedDataColumn", "rest"), ("mode", "DROPMALFORMED"), ("readerCaseSensitive", "false")];
    let (rows, _) = read_text("a.json", DAMAGED, &options, Some(&people())).unwrap();
    assert_eq!(lines(&rows)[2], r#"{"name":"Dan","age":null,"_corrupt_record":null,"rest":null}"#);
}

#[test]
fn json_over_several_lines_is_values_one_after_the_other() {
    let text = "\u{feff}{\"name\":\n\"Ann\"}\n[\n{\"name\":\"Bob\"},\n{\"name\":\"Cid\"}]\n{\"name\": oops}\n{\"name\":\"Dan\"}";
    let (rows, _) = read_text("a.json", text, &[("multiLine", "true")], Some(&people())).unwrap();
    let names: Vec<_> = rows.iter().map(|x| x["name"].as_str()).collect();
    assert_eq!(names, [Some("Ann"), Some("Bob"), Some("Cid"), None, Some("Dan")]);
    assert_eq!(rows[3]["_corrupt_record"], "{\"name\": oops}");
}

#[test]
fn bytes_that_are_no_text_are_malformed() {
    let (rows, stats) = read_text("a.json", b"{\"name\":\"\xff\"}\n{\"name\":\"b\"}", &[], Some(&people())).unwrap();
    assert_eq!((rows.len(), stats.malformed), (2, 1));
    assert_eq!(rows[0]["_corrupt_record"], "{\"name\":\"\u{fffd}\"}");
}

#[test]
fn a_json_schema_is_inferred_with_types_and_hints() {
    let text = r#"{"s":"2024-01-01","n":1,"d":1,"b":true,"o":{"y":null,"x":[1]},"e":[],"big":12345678901234567890,"mix":1}
{"S":"x","d":1.5,"o":{"x":[2.5],"z":"t"},"mix":"m","l":[{"a":1},{"b":false}]}"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), text).unwrap();
    let infer = |options: &[(&str, &str)]| {
        let source = source(folder.path(), options).unwrap();
        let schema = source.infer(&source.discover(|_| false, false).unwrap()).unwrap();
        assert!(schema.fields().iter().all(|x| x.is_nullable()));
        let text: Vec<String> = schema.fields().iter().map(|x| format!("{} {}", x.name(), x.data_type())).collect();
        text
    };
    let found = infer(&[]);
    assert_eq!(
        found,
        [
            "b Boolean",
            "big Decimal128(38, 0)",
            "d Float64",
            "e List(Utf8, field: 'element')",
            "l List(Struct(\"a\": Int64, \"b\": Boolean), field: 'element')",
            "mix Utf8",
            "n Int64",
            "o Struct(\"x\": List(Float64, field: 'element'), \"y\": Utf8, \"z\": Utf8)",
            "s Utf8",
            "_rescued_data Utf8",
        ]
    );
    let hinted =
        infer(&[("cloudFiles.schemaHints", "n SMALLINT, o.y DATE, added TIMESTAMP"), ("schemaEvolutionMode", "none")]);
    assert!(
        hinted.contains(&"n Int16".to_owned()) && hinted.contains(&"added Timestamp(µs, \"UTC\")".to_owned()),
        "{hinted:?}"
    );
    assert!(
        hinted.iter().any(|x| x.contains("\"y\": Date32")) && !hinted.iter().any(|x| x.contains("rescued")),
        "{hinted:?}"
    );
    assert!(infer(&[("inferColumnTypes", "false")]).iter().all(|x| x.ends_with(" Utf8")));
}

#[test]
fn separated_values_are_read_by_header_or_by_place() {
    let typed = schema(&[
        ("b", DataType::Utf8),
        ("A", DataType::Int64),
        ("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        ("_corrupt_record", DataType::Utf8),
    ]);
    let text = "\u{feff}a;B;more;t\n1;\"x;\"\"y\"\"\nz\";;2024-01-01 10:00:00+02:00\nNA;NA;1;\n1x;q;;\n7\n8;a;b;2024-01-01;c;d\n";
    let options = [("header", "true"), ("sep", ";"), ("nullValue", "NA"), ("multiLine", "true")];
    let (rows, stats) = read_text("a.csv", text, &options, Some(&typed)).unwrap();
    assert_eq!(
        lines(&rows),
        [
            r#"{"b":"x;\"y\"\nz","A":1,"t":"2024-01-01T08:00:00Z","_corrupt_record":null}"#,
            r#"{"b":null,"A":null,"t":null,"_corrupt_record":null}"#,
            r#"{"b":"q","A":null,"t":null,"_corrupt_record":"1x;q;;"}"#,
            r#"{"b":null,"A":7,"t":null,"_corrupt_record":"7"}"#,
            r#"{"b":"a","A":8,"t":"2024-01-01T00:00:00Z","_corrupt_record":"8;a;b;2024-01-01;c;d"}"#,
        ]
    );
    assert_eq!(stats.malformed, 3);
    let (rows, _) = read_text(
        "a.csv",
        "x,1\n#no\ny,2\n",
        &[("comment", "#")],
        Some(&schema(&[("k", DataType::Utf8), ("v", DataType::Int8)])),
    )
    .unwrap();
    assert_eq!(lines(&rows), [r#"{"k":"x","v":1}"#, r#"{"k":"y","v":2}"#]);
    let (rows, stats) = read_text(
        "a.csv",
        "k,v,w\nx,1,5\ny,z,\n",
        &[("header", "true"), ("rescuedDataColumn", "r")],
        Some(&schema(&[("k", DataType::Utf8), ("v", DataType::Int8)])),
    )
    .unwrap();
    assert_eq!(
        lines(&rows),
        [
            r#"{"k":"x","v":1,"r":"{\"w\":\"5\",\"_file_path\":\"/a.csv\"}"}"#,
            r#"{"k":"y","v":null,"r":"{\"v\":\"z\",\"_file_path\":\"/a.csv\"}"}"#,
        ]
    );
    assert_eq!((stats.rescued, stats.malformed), (2, 0));
}

#[test]
fn an_empty_text_in_quotes_is_a_text_where_nothing_is_written_otherwise() {
    let table = schema(&[("a", DataType::Utf8), ("b", DataType::Utf8)]);
    let text = "\"\",\nx,\"\"\n,y\n\"say \"\"\"\"\",\n";
    let (rows, _) = read_text("a.csv", text, &[("nullValue", "NULL")], Some(&table)).unwrap();
    assert_eq!(
        lines(&rows),
        [r#"{"a":"","b":null}"#, r#"{"a":"x","b":""}"#, r#"{"a":null,"b":"y"}"#, r#"{"a":"say \"\"","b":null}"#]
    );
}

#[test]
fn a_schema_of_separated_values_is_inferred_as_text_or_typed() {
    let text = "id,day,at,ok,x,code\n1,2024-01-01,2024-01-01T00:00:00Z,true,1,12345678901234567890\n2,2024-02-01,2024-01-01,FALSE,1.5,\n";
    let kinds = |options: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), text).unwrap();
        let source = source(folder.path(), options).unwrap();
        let schema = source.infer(&source.discover(|_| false, false).unwrap()).unwrap();
        schema.fields().iter().map(|x| format!("{} {}", x.name(), x.data_type())).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(&[("header", "true"), ("inferSchema", "true")]),
        [
            "id Int64",
            "day Date32",
            "at Timestamp(µs, \"UTC\")",
            "ok Boolean",
            "x Float64",
            "code Utf8",
            "_rescued_data Utf8"
        ]
    );
    assert_eq!(kinds(&[("header", "true")])[0], "id Utf8");
    assert_eq!(kinds(&[])[5], "_c5 Utf8");
}

fn write_parquet(path: &Path, batch: &RecordBatch) {
    let mut writer =
        ::parquet::arrow::ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn parquet_keeps_its_types_and_is_widened_but_never_cut() {
    use arrow::array::{Int32Array, LargeStringArray, TimestampNanosecondArray};
    let folder = tempfile::tempdir().unwrap();
    let batch = RecordBatch::try_from_iter(vec![
        ("Id", Arc::new(Int32Array::from(vec![Some(1), None])) as _),
        ("s", Arc::new(LargeStringArray::from(vec!["a", "b"])) as _),
        ("t", Arc::new(TimestampNanosecondArray::from(vec![1_500, 2_000]).with_timezone("+02:00")) as _),
    ])
    .unwrap();
    write_parquet(&folder.path().join("a.parquet"), &batch);
    let plain = source(folder.path(), &[("schemaEvolutionMode", "none")]).unwrap();
    let files = plain.discover(|_| false, false).unwrap();
    let inferred = plain.infer(&files).unwrap();
    let kinds: Vec<_> = inferred.fields().iter().map(|x| format!("{} {}", x.name(), x.data_type())).collect();
    assert_eq!(kinds, ["Id Int32", "s Utf8", "t Timestamp(µs, \"UTC\")"]);
    let (rows, _) = read_file(&plain, &files[0], &inferred).unwrap();
    assert_eq!(
        lines(&rows),
        [
            r#"{"Id":1,"s":"a","t":"1970-01-01T00:00:00.000001Z"}"#,
            r#"{"Id":null,"s":"b","t":"1970-01-01T00:00:00.000002Z"}"#
        ]
    );
    let wide = schema(&[("id", DataType::Int64), ("new", DataType::Utf8)]);
    assert_eq!(
        lines(&read_file(&plain, &files[0], &wide).unwrap().0),
        [r#"{"id":1,"new":null}"#, r#"{"id":null,"new":null}"#]
    );
    let error = read_file(&plain, &files[0], &schema(&[("s", DataType::Int64)])).unwrap_err();
    assert!(error.to_string().contains("a.parquet") && error.to_string().contains("column s is"), "{error}");
    let rescuing = source(folder.path(), &[("rescuedDataColumn", "r"), ("schemaEvolutionMode", "rescue")]).unwrap();
    let (rows, stats) = read_file(
        &rescuing,
        &files[0],
        &rescuing.declared(&schema(&[
            ("id", DataType::Int8),
            ("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        ])),
    )
    .unwrap();
    assert_eq!(stats.rescued, 2);
    let first: Value = serde_json::from_str(rows[0]["r"].as_str().unwrap()).unwrap();
    // The schema has no column that is spelt so.
    assert_eq!((&first["Id"], &first["s"]), (&Value::from(1), &Value::from("a")));
    std::fs::write(folder.path().join("b.parquet"), "PAR1 no").unwrap();
    let files = plain.discover(|x| x.path.ends_with("a.parquet"), false).unwrap();
    let error = plain.read(&files[0], &inferred).map(|_| ()).unwrap_err();
    assert_eq!((error.code(), error.fault()), ("SOURCE_NOT_READABLE", crate::error::Fault::External));
    assert!(error.to_string().contains("b.parquet"));
}

#[test]
fn files_are_found_by_folder_name_and_pattern_and_hidden_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let names =
        ["b.json", "a.json", "_c.json", ".d.json", "e.txt", "sub/f.json", "_log/g.json", "h.json.tmp", "day=1/i.json"];
    for name in names {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "{}").unwrap();
    }
    let names = |path: &Path, options: &[(&str, &str)]| -> Vec<String> {
        let source = source(path, options).unwrap();
        let found = source.discover(|_| false, false).unwrap();
        found.iter().map(|x| x.path.strip_prefix(folder.path().to_str().unwrap()).unwrap().to_owned()).collect()
    };
    let root = folder.path();
    assert_eq!(names(root, &[]), ["/a.json", "/b.json", "/day=1/i.json", "/e.txt", "/sub/f.json"]);
    assert_eq!(names(root, &[("recursiveFileLookup", "false")]), ["/a.json", "/b.json", "/day=1/i.json", "/e.txt"]);
    assert_eq!(
        names(root, &[("pathGlobFilter", "{a,f}.json"), ("recursiveFileLookup", "true")]),
        ["/a.json", "/sub/f.json"]
    );
    assert_eq!(names(&root.join("{a,sub/f,x}.json"), &[]), ["/a.json", "/sub/f.json"]);
    assert_eq!(names(&root.join("**/[a-f].json"), &[]), ["/a.json", "/b.json", "/sub/f.json"]);
    assert_eq!(names(&root.join("[^ab]*.txt"), &[("format", "text")]), ["/e.txt"]);
    let old = std::fs::File::options().write(true).open(root.join("a.json")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400)).unwrap();
    assert_eq!(names(root, &[("modifiedBefore", "1970-01-02T00:00:01Z")]), ["/a.json"]);
    assert_eq!(names(root, &[("modifiedBefore", "1970-01-02"), ("format", "json")]), [""; 0]);
    assert_eq!(names(root, &[("modifiedAfter", "1970-01-02"), ("pathGlobFilter", "*.json")]).len(), 3);
    assert_eq!(names(&root.join("*.json"), &[]), ["/a.json", "/b.json"]);
    assert_eq!(names(&root.join("*/*.json"), &[]), ["/day=1/i.json", "/sub/f.json"]);
    assert_eq!(names(&root.join("s*"), &[("format", "json")]), ["/sub/f.json"]);
    assert_eq!(names(&root.join("b.json"), &[]), ["/b.json"]);
    let source = source(root, &[]).unwrap();
    let seen: BTreeMap<String, ()> =
        source.discover(|_| false, false).unwrap().into_iter().map(|x| (x.path, ())).collect();
    assert!(source.discover(|x| seen.contains_key(&x.path), true).unwrap().is_empty());
}

fn fails<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("no error"),
        Err(e) => e,
    }
}

#[test]
fn a_place_that_is_missing_or_a_file_that_changed_is_an_external_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("landing");
    let missing = source(&gone, &[("format", "json")]).unwrap();
    let error = fails(missing.discover(|_| false, false));
    assert_eq!(error.code(), "SOURCE_NOT_FOUND");
    assert!(error.to_string().contains("landing"));
    assert!(missing.discover(|_| false, true).unwrap().is_empty());
    assert_eq!(fails(source(&gone, &[])).code(), "MISSING_FORMAT");
    assert_eq!(fails(source(&folder.path().join("*.xml"), &[])).code(), "NOT_SUPPORTED");
    assert_eq!(fails(source(Path::new("s3://bucket/x"), &[("format", "json")])).code(), "NOT_SUPPORTED");

    let path = folder.path().join("a.json");
    std::fs::write(&path, "{\"name\":1}\n").unwrap();
    let source = source(folder.path(), &[]).unwrap();
    let files = source.discover(|_| false, false).unwrap();
    let mut reader = source.read(&files[0], &people()).unwrap();
    std::fs::write(&path, "{\"name\":1}\n{\"name\":2}\n").unwrap();
    assert_eq!(fails(source.read(&files[0], &people())).code(), "SOURCE_FILE_CHANGED");
    let last = reader.by_ref().last().unwrap();
    assert_eq!(fails(last).code(), "SOURCE_FILE_CHANGED");
    assert!(reader.next().is_none());
    std::fs::remove_file(&path).unwrap();
    let error = fails(source.read(&files[0], &people()));
    assert_eq!(error.code(), "SOURCE_FILE_GONE");
    assert!(error.to_string().contains("a.json"));
    assert_eq!(fails(source.infer(&[])).code(), "EMPTY_SOURCE");
}

#[test]
fn the_metadata_column_tells_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), "{\"n\":1}\n").unwrap();
    let source = source(folder.path(), &[]).unwrap();
    let files = source.discover(|_| false, false).unwrap();
    let asked = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), metadata_field()]));
    let (rows, _) = read_file(&source, &files[0], &asked).unwrap();
    let metadata = &rows[0][METADATA];
    assert_eq!(metadata["file_name"], "a.json");
    assert_eq!(metadata["file_size"], 8);
    assert_eq!(metadata["file_path"].as_str().unwrap(), files[0].path);
    assert!(metadata["file_modification_time"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn more_rows_than_a_batch_come_in_several() {
    let text: String = (0..20_000).map(|i| format!("{{\"n\":{i}}}\n")).collect();
    let (rows, stats) = read_text("a.json", text, &[], None).unwrap();
    assert_eq!(stats.rows, 20_000);
    assert!(rows.iter().enumerate().all(|(i, x)| x["n"] == i));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a line becomes depends on the line alone, whatever surrounds it.
    #[test]
    fn a_line_means_the_same_in_any_company(
        lines in prop::collection::vec(
            prop_oneof![
                Just("{\"name\":\"a\",\"age\":1}".to_owned()), Just("{\"name\":\"a".to_owned()), Just("\"}".to_owned()),
                Just("{\"age\":01}".to_owned()), Just("{\"age\":1}{\"age\":2}".to_owned()), Just("[{\"age\":3},[]]".to_owned()),
                Just("{\"age\":3000000000,\"x\":{\"y\":1}}".to_owned()), "[\\[\\]{}\",:a0-9 \\\\]{1,12}",
            ], 1..12)
    ) {
        let options = [("rescuedDataColumn", "r")];
        let apart: Vec<Value> =
            lines.iter().flat_map(|x| read_text("a.json", x, &options, Some(&people())).unwrap().0).collect();
        let together = read_text("a.json", lines.join("\n"), &options, Some(&people())).unwrap().0;
        prop_assert_eq!(apart, together);
    }

    /// No bytes make a reader panic, and what is read ends.
    #[test]
    fn any_bytes_are_rows_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0usize..FUZZED.len()) {
        let (name, options) = FUZZED[kind];
        let _ = read_text(name, &bytes, options, Some(&people()));
        let _ = read_text(name, &bytes, options, None);
    }

    /// The same for texts that are nearly right.
    #[test]
    fn any_text_is_rows_or_an_error(text in "[\\[\\]{}\"',:;a01.e\\\\\r\n -]{0,60}", kind in 0usize..FUZZED.len()) {
        let (name, options) = FUZZED[kind];
        let _ = read_text(name, &text, options, Some(&people()));
        let _ = read_text(name, &text, options, None);
    }

    /// A packed file or one with a schema of its own, in which bytes changed or which was cut, is rows or an error.
    #[test]
    fn a_damaged_file_is_rows_or_an_error(
        which in 0usize..4, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>())
    ) {
        let text = DAMAGED.repeat(50);
        let (name, mut bytes) = match which {
            0 => ("a.json.gz", gzip(text.as_bytes())),
            1 => ("a.json.zst", zstd::encode_all(text.as_bytes(), 1).unwrap()),
            2 => ("a.json.bz2", bzip2(text.as_bytes())),
            _ => ("a.avro", avro_of(&batch_of_many_types())),
        };
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = read_text(name, &bytes, &[], None);
        let _ = read_text(name, &bytes, &[("rescuedDataColumn", "r")], Some(&people()));
    }

    /// A Parquet file in which bytes changed is rows or an error too.
    #[test]
    fn a_damaged_parquet_file_is_rows_or_an_error(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in prop::option::of(any::<prop::sample::Index>())
    ) {
        let mut bytes = parquet_of_many_types();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = read_text("a.parquet", &bytes, &[], None);
        let _ = read_text("a.parquet", &bytes, &[("rescuedDataColumn", "r")], Some(&people()));
    }
}

/// Files that are read as whatever they are.
const FUZZED: [(&str, &[(&str, &str)]); 14] = [
    ("a.json", &[]),
    ("a.json", &[("multiLine", "true")]),
    ("a.json", &[("allowComments", "true"), ("allowUnquotedFieldNames", "true"), ("allowNumericLeadingZeros", "true")]),
    ("a.json", &[("encoding", "UTF-16"), ("lineSep", "|")]),
    ("a.csv", &[("header", "true")]),
    ("a.csv", &[("multiLine", "true"), ("inferSchema", "true"), ("sep", ";"), ("comment", "#")]),
    ("a.csv", &[("ignoreLeadingWhiteSpace", "true"), ("ignoreTrailingWhiteSpace", "true"), ("encoding", "UTF-32")]),
    ("a.txt", &[("wholetext", "true")]),
    ("a.txt", &[("lineSep", "::"), ("encoding", "Shift_JIS")]),
    ("a.parquet", &[]),
    ("a.avro", &[]),
    ("a.json.gz", &[]),
    ("a.csv.zst", &[]),
    ("a.txt.bz2", &[]),
];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut out, bytes).unwrap();
    out.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut out = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    std::io::Write::write_all(&mut out, bytes).unwrap();
    out.finish().unwrap()
}

fn avro_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow_avro::writer::AvroWriter::new(Vec::new(), batch.schema().as_ref().clone()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner()
}

#[test]
fn avro_is_read_by_name_widened_and_rescued() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.avro"), avro_of(&batch_of_many_types())).unwrap();
    let source = source(folder.path(), &[("schemaEvolutionMode", "rescue")]).unwrap();
    let files = source.discover(|_| false, false).unwrap();
    let inferred = source.infer(&files).unwrap();
    let kinds: Vec<_> = inferred.fields().iter().map(|x| format!("{} {}", x.name(), x.data_type())).collect();
    assert_eq!(kinds, ["age Int64", "name Utf8", "l List(Utf8, field: 'element')", "_rescued_data Utf8"]);
    let (rows, stats) = read_file(&source, &files[0], &inferred).unwrap();
    assert_eq!((stats.rows, stats.rescued), (100, 0));
    assert_eq!(lines(&rows)[1], r#"{"age":1,"name":"name 1","l":["item 1"],"_rescued_data":null}"#);
    let (rows, stats) =
        read_file(&source, &files[0], &source.declared(&schema(&[("age", DataType::Utf8), (RESCUED, DataType::Utf8)])))
            .unwrap();
    assert_eq!(stats.rescued, 100);
    assert!(rows[1][RESCUED].as_str().unwrap().starts_with(r#"{"age":1,"name":"name 1","l":["item 1"],"_file_path":"#));
}

const RESCUED: &str = "_rescued_data";

fn parquet_of_many_types() -> Vec<u8> {
    let batch = batch_of_many_types();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn batch_of_many_types() -> RecordBatch {
    use arrow::array::{Int64Array, ListBuilder, StringArray, StringBuilder};
    let mut list = ListBuilder::new(StringBuilder::new());
    for i in 0..100 {
        list.values().append_value(format!("item {}", i % 7));
        list.append(i % 3 > 0);
    }
    RecordBatch::try_from_iter(vec![
        ("age", Arc::new(Int64Array::from_iter_values(0..100)) as _),
        ("name", Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("name {}", i % 10)))) as _),
        ("l", Arc::new(list.finish()) as _),
    ])
    .unwrap()
}
