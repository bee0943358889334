//! Damaged input of every kind: definitions, project files, landed files, the epoch log, Delta logs, data and vectors. An
//! error or an answer, never a panic and never a hang; where there is a checksum, never a wrong answer.
//!
//! `SILVERFLOW_FUZZ=20` tries twenty times as much as usual.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use silverflow::error::{Fault, Result};
use silverflow::pipeline::ReadFiles;
use silverflow::project;
use silverflow::sources::FileSource;

use crate::crash::{TABLES, definitions};
use crate::support::{Dice, Project, copy_folder};

/// Nothing may take longer. A hundred times what the slowest takes, since machines are busy at times.
const PATIENCE: Duration = Duration::from_secs(60);

fn times(usual: usize) -> usize {
    usual * std::env::var("SILVERFLOW_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Bytes that mean something somewhere.
const TOKENS: [&[u8]; 24] = [
    b"\0",
    b"\xff",
    b"\n",
    b"\r\n",
    b"\"",
    b"'",
    b"`",
    b"(",
    b")",
    b"[",
    b"{",
    b"}",
    b",",
    b";",
    b"--",
    b"/*",
    b"-1",
    b"9223372036854775808",
    b"1e400",
    b"null",
    b"\\u0000",
    b"\xef\xbb\xbf",
    b"\xf0\x9f\x98\x80",
    b"$${",
];

/// One of the inputs with a few damages: bits, gaps, repeats, cuts, parts of another, and meaningful bytes.
fn damaged(dice: &mut Dice, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = inputs[dice.below(inputs.len())].clone();
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(bytes.len() + 1);
        let end = (at + dice.below(24)).min(bytes.len());
        match dice.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.extend_from_within(at..end),
            3 => bytes.truncate(at),
            4 => {
                let other = &inputs[dice.below(inputs.len())];
                let from = dice.below(other.len() + 1);
                let to = (from + dice.below(200)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            5 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part.repeat(1 + dice.below(20)));
            }
            _ => drop(bytes.splice(at..at, TOKENS[dice.below(TOKENS.len())].iter().copied())),
        }
    }
    bytes
}

/// Runs it and fails, with the input at hand, if it panics or takes forever.
fn survive<T>(what: &str, input: &[u8], work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let shown = String::from_utf8_lossy(input);
    let Ok(outcome) = outcome else { panic!("{what} panicked on {} bytes:\n{shown}\n{input:?}", input.len()) };
    assert!(begin.elapsed() < PATIENCE, "{what} took {:?} on:\n{shown}", begin.elapsed());
    outcome
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

#[test]
fn definitions_in_sql() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut inputs: Vec<Vec<u8>> =
        files_below(&root.join("examples/step_right/transformations")).iter().map(|f| fs::read(f).unwrap()).collect();
    inputs.push(definitions(0, "*").into_bytes());
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    inputs.extend(readme.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap().as_bytes().to_vec()));
    for folder in ["accepted", "refused", "lints"] {
        inputs.extend(crate::language::files(folder).into_iter().map(|(_, text)| text.into_bytes()));
    }
    assert!(inputs.len() > 50);
    let mut dice = Dice::new(1);
    let (mut loaded, tries) = (0, times(4000));
    for _ in 0..tries {
        let bytes = damaged(&mut dice, &inputs);
        let text = String::from_utf8_lossy(&bytes);
        match survive("reading definitions", &bytes, || project::load_sql(&[("a.sql", &text)], &Default::default())) {
            Ok(_) => loaded += 1,
            Err(error) => assert_eq!(error.fault(), Fault::User, "{error}\n{text}"),
        }
    }
    assert!(loaded > 0 && loaded < tries, "{loaded} of {tries} were accepted");
}

#[test]
fn definitions_that_are_planned() {
    let inputs: Vec<Vec<u8>> = [definitions(0, "*"), definitions(2, "product")].map(String::into_bytes).to_vec();
    let mut dice = Dice::new(2);
    let project = Project::new("");
    project.land("products", "a", &[json!({"id": 1, "label": "x"})]);
    project.land("orders", "a", &[json!({"id": 1})]);
    for _ in 0..times(150) {
        let bytes = damaged(&mut dice, &inputs);
        let text = String::from_utf8_lossy(&bytes);
        project.define(&text);
        let planned = survive("planning", &bytes, || {
            silverflow::runtime::dry_run(&project::load(&project.spec())?.pipeline).map(drop)
        });
        if let Err(error) = planned {
            assert_ne!(error.fault(), Fault::Internal, "{error}\n{text}");
        }
    }
}

/// What nests is read or refused, however deep, and soon.
#[test]
fn what_nests_deep() {
    let project = crate::language::project("", false);
    let query = |select: String| format!("CREATE STREAMING TABLE t AS {select};");
    for n in [30, 100, 3000] {
        let around = |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(n), close.repeat(n));
        let chain = |link: &str| vec!["id"; n].join(link);
        for text in [
            query(format!("SELECT {} AS x FROM STREAM s", around("(", "id", ")"))),
            query(format!("SELECT id FROM {}", around("(", "s", ")"))),
            query(format!("SELECT id FROM {}", around("s JOIN (", "s", ")"))),
            query(around("(", "SELECT id FROM STREAM s", ")")),
            query(around("SELECT * FROM (", "SELECT id FROM STREAM s", ") AS x")),
            query(format!("SELECT CAST(id AS {}) AS x FROM STREAM s", around("ARRAY<", "INT", ">"))),
            query(format!("SELECT {} AS x FROM STREAM s", around("INTERVAL ", "'1 day'", ""))),
            query(format!("SELECT {} AS x FROM STREAM s", around("ARRAY[", "1", "]"))),
            query(format!("SELECT {} AS x FROM STREAM s", around("tags[", "1", "]"))),
            query(format!("SELECT {} AS x FROM STREAM s", around("CASE WHEN id > 1 THEN ", "1", " END"))),
            query(format!("SELECT {} AS x FROM STREAM s", around("upper(", "name", ")"))),
            query(format!("SELECT {} AS x FROM STREAM s", around("transform(tags, y -> ", "1", ")"))),
            query(format!("SELECT {} AS x FROM STREAM s", chain(" + "))),
            query(format!("SELECT id FROM STREAM s WHERE id = {}", chain(" OR id = "))),
            query(format!("SELECT id{} AS x FROM STREAM s", "::INT".repeat(n))),
            query(format!("SELECT id FROM STREAM s{}", " UNION ALL SELECT id FROM STREAM s".repeat(n))),
            query(format!("FROM STREAM s{}", " |> WHERE id > 1".repeat(n))),
            query(format!("SELECT id FROM STREAM s{}", " LATERAL VIEW explode(tags) x AS y".repeat(n))),
            query(format!(
                "SELECT id AS a0 {} FROM STREAM s",
                (0..n).map(|i| format!(", a{i} + 1 AS a{}", i + 1)).collect::<String>()
            )),
            query(format!(
                "SELECT id AS a0 {} FROM STREAM s",
                (0..n).map(|i| format!(", a{i} + a{i} AS a{}", i + 1)).collect::<String>()
            )),
            format!(
                "CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (id = {})) AS SELECT id FROM STREAM s;",
                chain(" AND id = ")
            ),
        ] {
            project.define(&text);
            let found = survive("planning", text.as_bytes(), || {
                silverflow::runtime::dry_run(&project::load(&project.spec())?.pipeline).map(drop)
            });
            if let Err(error) = found {
                assert_eq!(error.fault(), Fault::User, "{error}");
            }
        }
    }
}

#[test]
fn pipelines_of_every_feature_that_are_planned() {
    let inputs: Vec<Vec<u8>> = ["accepted", "refused"]
        .into_iter()
        .flat_map(crate::language::files)
        .flat_map(|(_, text)| text.split("--@ next\n").map(|part| part.as_bytes().to_vec()).collect::<Vec<_>>())
        .collect();
    let mut dice = Dice::new(8);
    let project = crate::language::project("", false);
    let mut planned = 0;
    for _ in 0..times(400) {
        let bytes = damaged(&mut dice, &inputs);
        let text = String::from_utf8_lossy(&bytes);
        project.define(&text);
        let found = survive("planning", &bytes, || {
            silverflow::runtime::dry_run(&project::load(&project.spec())?.pipeline).map(drop)
        });
        match found {
            Ok(()) => planned += 1,
            Err(error) => assert_ne!(error.fault(), Fault::Internal, "{error}\n{text}"),
        }
    }
    assert!(planned > 0);
}

#[test]
fn project_files() {
    let project = Project::new("CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing');");
    let inputs: Vec<Vec<u8>> = vec![
        fs::read(project.spec()).unwrap(),
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/step_right/spark-pipeline.yml")).unwrap(),
        b"name: x\nstorage: s\ncatalog: c\ndatabase: d\nconfiguration:\n  a: '1'\n  b: 2\nlibraries:\n  - file: {path: a.sql}\n  - glob: {include: 'a/**'}\n".to_vec(),
    ];
    let mut dice = Dice::new(3);
    for _ in 0..times(1500) {
        let bytes = damaged(&mut dice, &inputs);
        fs::write(project.spec(), &bytes).unwrap();
        if let Err(error) = survive("reading a project file", &bytes, || project::load(&project.spec())) {
            assert_ne!(error.fault(), Fault::Internal, "{error}\n{}", String::from_utf8_lossy(&bytes));
        }
    }
}

/// A file of ours in Parquet, with nested columns.
fn parquet() -> Vec<u8> {
    let lines = (0..300).map(|i| {
        format!(
            "{}\n",
            json!({"i": i, "s": format!("text {i}"), "f": i as f64 / 3.0, "l": [i, null, i + 1], "n": {"a": i, "b": "x"}})
        )
    });
    let text: String = lines.collect();
    let (schema, _) = arrow::json::reader::infer_json_schema(text.as_bytes(), None).unwrap();
    let schema: Arc<Schema> = Arc::new(schema);
    let mut reader = arrow::json::ReaderBuilder::new(Arc::clone(&schema)).build(text.as_bytes()).unwrap();
    let batch: RecordBatch = reader.next().unwrap().unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Infers, discovers and reads whatever is in a folder.
fn read_all(folder: &Path, options: &[(&str, &str)], declared: Option<&str>) -> Result<usize> {
    let source = FileSource::new(&ReadFiles {
        path: folder.to_str().unwrap().into(),
        schema: None,
        options: options.iter().map(|(k, v)| (k.to_lowercase(), (*v).to_owned())).collect(),
        kept: None,
    })?;
    let files = source.discover(|_| false, false)?;
    let schema = match declared {
        Some(ddl) => source.declared(&*silverflow::sql::parse_schema(ddl)?),
        None => source.infer(&files)?,
    };
    let mut rows = 0;
    for file in &files {
        for batch in source.read(file, &schema)? {
            rows += batch?.num_rows();
        }
    }
    Ok(rows)
}

#[test]
fn landed_files() {
    const DDL: &str = "i INT, s STRING, f DOUBLE, d DECIMAL(9, 2), t TIMESTAMP, b DATE, l ARRAY<BIGINT>, \
                       n STRUCT<a: SMALLINT, b: STRING>, m MAP<STRING, BIGINT>, y BINARY, z BOOLEAN";
    let json = br#"{"i":1,"s":"a","f":1.5,"d":1.25,"t":"2024-01-02T03:04:05.6Z","b":"2024-02-29","l":[1,null],"n":{"a":1,"b":"x"},"m":{"k":1},"y":"AQI=","z":true}
{"i":"7","s":null,"f":"NaN","d":"12.5","t":1700000000,"b":"2024-13-01","l":[],"n":null,"m":{},"z":"false","more":[{"a":1}]}
{"i":99999999999,"s":"\u00e9\ud83d\ude00\n","d":1e3,"t":"2024-01-02 03:04:05","l":[[1]],"n":{"b":2}}
"#
    .to_vec();
    let csv = b"i,s,f,d,t,b,z\n1,\"a, \"\"b\"\"\",1.5,1.25,2024-01-02T03:04:05Z,2024-02-29,true\n2,\"two\nlines\",,-3,,x,\n,,,,,,\n".to_vec();
    type Case<'a> = (&'a str, &'a str, Vec<Vec<u8>>, Vec<Vec<(&'a str, &'a str)>>, usize);
    let cases: [Case<'_>; 3] = [
        (
            "a.json",
            "json",
            vec![json],
            vec![
                vec![],
                vec![("multiLine", "true")],
                vec![("mode", "DROPMALFORMED")],
                vec![("rescuedDataColumn", "r")],
            ],
            1500,
        ),
        (
            "a.csv",
            "csv",
            vec![csv],
            vec![
                vec![("header", "true")],
                vec![("header", "false"), ("sep", ";")],
                vec![("header", "true"), ("multiLine", "true")],
            ],
            1500,
        ),
        ("a.parquet", "parquet", vec![parquet()], vec![vec![]], 400),
    ];
    let mut dice = Dice::new(4);
    for (name, format, inputs, variants, tries) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (mut read, tries) = (0, times(tries));
        for _ in 0..tries {
            let bytes = damaged(&mut dice, &inputs);
            fs::write(folder.path().join(name), &bytes).unwrap();
            let mut options = variants[dice.below(variants.len())].clone();
            options.push(("format", format));
            let declared = dice.once_in(2).then_some(DDL);
            match survive(&format!("reading {format} {options:?}"), &bytes, || {
                read_all(folder.path(), &options, declared)
            }) {
                Ok(_) => read += 1,
                Err(error) => assert_ne!(error.fault(), Fault::Internal, "{format} {options:?}: {error}\n{bytes:?}"),
            }
        }
        assert!(read > 0, "no {format} file could be read");
    }
}

/// A storage after a few epochs with deletes, and what its tables hold.
fn storage() -> (Project, Vec<Vec<Value>>) {
    let project = Project::new(&definitions(0, "product, amount"));
    for i in 0..4i64 {
        let order =
            |id: i64| json!({"id": id, "s": 10 * (7 * i % 4), "product": i % 3, "amount": i - 1 + id, "op": "U"});
        project.land("orders", &format!("{i}"), &[order(1), order(2)]);
        project.land("products", &format!("{i}"), &[json!({"id": i, "label": "x"})]);
    }
    project.run(1).unwrap();
    let rows = TABLES.map(|table| project.stored(&format!("main/default/{table}"))).to_vec();
    (project, rows)
}

#[test]
fn records_of_the_epoch_log() {
    let (project, _) = storage();
    let lake = || project.watched(Arc::new(crate::faults::Death::never()));
    let history = || crate::support::history(&lake());
    let whole = history().unwrap();
    let folder = project.path("lakehouse/_silverflow/epochs");
    let records: Vec<(PathBuf, Vec<u8>)> =
        files_below(&folder).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let inputs: Vec<Vec<u8>> = records.iter().map(|(_, bytes)| bytes.clone()).collect();
    let mut dice = Dice::new(5);
    let mut refused = 0;
    for _ in 0..times(1500) {
        let (path, original) = &records[dice.below(records.len())];
        let bytes = damaged(&mut dice, &inputs);
        fs::write(path, &bytes).unwrap();
        match survive("reading the epoch log", &bytes, history) {
            Ok(read) => assert_eq!(read, whole, "damage was not noticed: {}", String::from_utf8_lossy(&bytes)),
            Err(error) => {
                refused += 1;
                assert_eq!(error.code(), "EPOCH_LOG_DAMAGED", "{error}");
            }
        }
        fs::write(path, original).unwrap();
    }
    assert!(refused > 0);
}

#[test]
fn files_of_the_tables() {
    let (project, whole) = storage();
    let storage = project.path("lakehouse");
    let files: Vec<PathBuf> =
        files_below(&storage).into_iter().filter(|path| !path.to_string_lossy().contains("_silverflow")).collect();
    for kind in ["json", "parquet", "bin"] {
        assert!(files.iter().any(|path| path.extension().is_some_and(|e| e == kind)), "no {kind}");
    }
    let mut dice = Dice::new(6);
    let mut refused = 0;
    for _ in 0..times(250) {
        let path = &files[dice.below(files.len())];
        let original = fs::read(path).unwrap();
        let alike = files.iter().filter(|other| other.extension() == path.extension());
        let inputs: Vec<Vec<u8>> =
            std::iter::once(original.clone()).chain(alike.map(|other| fs::read(other).unwrap())).collect();
        let bytes = damaged(&mut dice, &inputs);
        fs::write(path, &bytes).unwrap();
        let checked = path.extension().is_some_and(|e| e == "bin");
        for (table, rows) in TABLES.iter().zip(&whole) {
            match survive(&format!("reading {table} with {}", path.display()), &bytes, || {
                project.try_stored(&format!("main/default/{table}"))
            }) {
                // A vector has a checksum; a log and the pages of a data file have none.
                Ok(found) => assert!(!checked || found == *rows, "damage of {} was not noticed", path.display()),
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.fault(), Fault::External, "{}: {error}", path.display());
                }
            }
        }
        fs::write(path, original).unwrap();
    }
    assert!(refused > 0);
}

/// Whole runs on a storage of which one file is damaged.
#[test]
fn runs_on_a_damaged_storage() {
    let (project, _) = storage();
    let storage = project.path("lakehouse");
    let kept = tempfile::tempdir().unwrap();
    copy_folder(&storage, kept.path());
    project.land("orders", "9", &[json!({"id": 1, "s": 5, "product": 0, "amount": 3, "op": "U"})]);
    let files = files_below(&storage);
    let mut dice = Dice::new(7);
    for _ in 0..times(60) {
        let path = &files[dice.below(files.len())];
        let bytes = damaged(&mut dice, &[fs::read(path).unwrap()]);
        fs::write(path, &bytes).unwrap();
        if let Err(error) = survive(&format!("a run with {}", path.display()), &bytes, || project.run(1)) {
            assert_ne!(
                error.fault(),
                Fault::Internal,
                "{}: {error}\n{}",
                path.display(),
                String::from_utf8_lossy(&bytes)
            );
        }
        fs::remove_dir_all(&storage).unwrap();
        copy_folder(kept.path(), &storage);
    }
}
