//! The parts of a file against the file.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};

use super::Part;
use crate::lake::FileId;
use crate::pipeline::ReadFiles;
use crate::sources::{FileSource, ReadStats};

fn source(path: &Path, options: &[(&str, &str)]) -> (FileSource, FileId) {
    let options = options.iter().map(|(k, v)| (k.to_lowercase(), (*v).to_owned())).collect();
    let read = ReadFiles { path: path.to_str().unwrap().into(), schema: None, options, kept: None };
    let source = FileSource::new(&read).unwrap();
    let file = source.discover(|_| false, false).unwrap().remove(0);
    (source, file)
}

/// The rows of the parts, one after the other, are those of the file, and so are the counts. Gives the most parts.
fn check(name: &str, content: &[u8], options: &[(&str, &str)]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let (source, file) = source(&path, options);
    let schema = source.infer(std::slice::from_ref(&file)).unwrap();
    let used: BTreeSet<usize> = (0..schema.fields().len()).collect();
    let read = |part: &Part| {
        let mut reader = source.read_part(&file, part, &schema, &used).unwrap();
        let rows: Vec<RecordBatch> = reader.by_ref().map(|batch| batch.unwrap()).collect();
        (rows, reader.stats())
    };
    let (whole, counts) = read(&Part::Whole);
    let whole = concat_batches(&schema, &whole).unwrap();
    let mut most = 0;
    for count in 1..40 {
        let parts = source.parts(&file, count);
        assert!(parts.len() <= count.max(1), "{name}: {parts:?}");
        most = most.max(parts.len());
        let (mut rows, mut stats) = (Vec::new(), ReadStats::default());
        for part in &parts {
            let (more, counted) = read(part);
            rows.extend(more);
            stats += counted;
        }
        assert_eq!(concat_batches(&schema, &rows).unwrap(), whole, "{name} with {options:?} in {count}: {parts:?}");
        assert_eq!(stats, counts, "{name} in {count}");
    }
    most
}

#[test]
fn the_parts_of_a_text_have_its_lines_each_once() {
    let objects: String = (0..300)
        .map(|i| match i % 5 {
            0 => format!("{{\"a\":{i}}}\r\n"),
            1 => format!("{{\"a\":{i},\"b\":\"é{}\"}}\n", "x".repeat(i)),
            2 => "\n".to_owned(),
            3 => format!("[{{\"a\":{i}}},{{\"a\":-1}}]\n"),
            _ => "{broken\n".to_owned(),
        })
        .collect();
    assert!(check("a.json", objects.as_bytes(), &[]) > 20);
    assert!(check("a.json", objects.trim_end().as_bytes(), &[]) > 20);
    assert!(check("a.json", format!("\u{feff}{objects}").as_bytes(), &[("mode", "DROPMALFORMED")]) > 20);
    let values: String = (0..300).map(|i| format!("{i},\"x,{i}\",{}\n", "y".repeat(i % 17))).collect();
    assert!(check("a.csv", values.as_bytes(), &[]) > 20);
    let headed = format!("id,name,\"the rest\"\n{values}");
    assert!(check("a.csv", headed.as_bytes(), &[("header", "true"), ("inferSchema", "true")]) > 20);
    assert!(check("a.csv", format!("\u{feff}{headed}").as_bytes(), &[("header", "true")]) > 20);
    assert!(check("a.txt", objects.as_bytes(), &[("format", "text")]) > 20);
    // What looks like a mark of another encoding begins a line of text.
    let odd = [b"{\"a\":1}\n".repeat(20), b"\xef\xbb\xbf{\"a\":2}\n".repeat(20)].concat();
    check("a.json", &odd, &[]);
}

#[test]
fn what_is_not_lines_by_itself_stays_whole() {
    let lines = "{\"a\":1}\n".repeat(100);
    let values = "1,2\n".repeat(100);
    let wide: Vec<u8> = lines.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, content, options) in [
        ("a.json", lines.as_bytes(), [("multiLine", "true")]),
        ("a.json", lines.as_bytes(), [("mode", "FAILFAST")]),
        ("a.json", lines.as_bytes(), [("lineSep", "\n")]),
        ("a.json", &wide, [("encoding", "UTF-16LE")]),
        ("a.csv", values.as_bytes(), [("multiLine", "true")]),
        ("a.csv", values.as_bytes(), [("skipRows", "2")]),
        ("a.csv", format!("\n{values}").as_bytes(), [("header", "true")]),
        ("a.txt", lines.as_bytes(), [("wholeText", "true")]),
    ] {
        assert_eq!(check(name, content, &options), 1, "{name} {options:?}");
    }
    assert_eq!(check("a.json", lines.replace('\n', "\r").as_bytes(), &[]), 1);
}

#[test]
fn the_parts_of_a_parquet_file_are_row_groups() {
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
    let rows = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new((0..95).map(Some).collect::<Int64Array>())]);
    let properties =
        ::parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    let mut content = Vec::new();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(&mut content, schema, Some(properties)).unwrap();
    writer.write(&rows.unwrap()).unwrap();
    writer.close().unwrap();
    assert_eq!(check("a.parquet", &content, &[]), 10);
}
