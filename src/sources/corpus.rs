//! Every oddity of files and what comes of it: `tests/cases/files/cases.json` has the files, `spark.json` what Spark reads
//! from them, `exceptions.json` where we read something else, and why.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::io::Write;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use base64::Engine;
use chrono::DateTime;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::FileSource;
use crate::error::Result;
use crate::pipeline::ReadFiles;

#[derive(Deserialize)]
struct Case {
    file: String,
    format: String,
    text: Option<String>,
    hex: Option<String>,
    encoding: Option<String>,
    pack: Option<String>,
    schema: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, String>,
}

/// What we read instead of what Spark reads.
#[derive(Deserialize)]
struct Exception {
    case: usize,
    why: String,
    rows: Option<Vec<Value>>,
    schema: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: bool,
    schema: Option<String>,
    #[serde(default)]
    rows: Vec<Value>,
}

fn data<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = format!("{}/tests/cases/files/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Case {
    fn content(&self) -> Vec<u8> {
        let raw: Vec<u8> = match (&self.hex, &self.text) {
            (Some(hex), _) => {
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
            }
            (_, Some(text)) => encoded(text, self.encoding.as_deref().unwrap_or("utf-8")),
            _ => panic!("a case without content"),
        };
        match self.pack.as_deref() {
            None => raw,
            Some("gzip") => {
                let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                out.write_all(&raw).unwrap();
                out.finish().unwrap()
            }
            Some("bzip2") => {
                let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
                out.write_all(&raw).unwrap();
                out.finish().unwrap()
            }
            Some(other) => panic!("{other}"),
        }
    }

    fn read(&self) -> Result<(String, Vec<Value>)> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(&self.file), self.content()).unwrap();
        let mut options: BTreeMap<String, String> =
            self.options.iter().map(|(k, v)| (k.to_lowercase(), v.clone())).collect();
        options.insert("format".into(), self.format.clone());
        options.entry("schemaevolutionmode".into()).or_insert("none".into());
        let schema = self.schema.as_ref().map(|text| crate::sql::parse_schema(text).unwrap());
        let path = folder.path().to_str().unwrap().to_owned();
        let source = FileSource::new(&ReadFiles { path, schema: schema.clone(), options, kept: None })?;
        let files = source.discover(|_| false, false)?;
        let schema = match schema {
            Some(schema) => source.declared(&schema),
            None => source.infer(&files)?,
        };
        let mut rows = Vec::new();
        for batch in source.read(&files[0], &schema)? {
            let batch = batch?;
            let object = |row: usize| {
                let fields = batch.schema();
                let members =
                    fields.fields().iter().zip(batch.columns()).map(|(f, c)| (f.name().clone(), value(c, row)));
                Value::Object(members.collect())
            };
            rows.extend((0..batch.num_rows()).map(object));
        }
        let text: Vec<String> =
            schema.fields().iter().map(|f| format!("{}:{}", f.name(), kind(f.data_type()))).collect();
        Ok((format!("struct<{}>", text.join(",")), rows))
    }
}

fn encoded(text: &str, encoding: &str) -> Vec<u8> {
    let little = |wide: u32| wide.to_le_bytes();
    match encoding {
        "utf-8" => text.as_bytes().to_vec(),
        "latin-1" | "cp1252" => text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect(),
        "utf-16-le" => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        "utf-16" => [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect(),
        "utf-32" => [0xfeff].into_iter().chain(text.chars().map(u32::from)).flat_map(little).collect(),
        other => panic!("{other}"),
    }
}

/// A type as Spark calls it.
fn kind(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "string".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Int8 => "tinyint".into(),
        DataType::Int16 => "smallint".into(),
        DataType::Int32 => "int".into(),
        DataType::Int64 => "bigint".into(),
        DataType::Float32 => "float".into(),
        DataType::Float64 => "double".into(),
        DataType::Decimal128(p, s) => format!("decimal({p},{s})"),
        DataType::Date32 => "date".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp".into(),
        DataType::Timestamp(_, None) => "timestamp_ntz".into(),
        DataType::Binary => "binary".into(),
        DataType::List(item) => format!("array<{}>", kind(item.data_type())),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => format!("map<string,{}>", kind(pair[1].data_type())),
            other => panic!("{other}"),
        },
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| format!("{}:{}", f.name(), kind(f.data_type()))).collect();
            format!("struct<{}>", fields.join(","))
        }
        other => panic!("{other}"),
    }
}

/// A value as Spark's `to_json` writes it.
fn value(array: &ArrayRef, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    let real = |x: f64, text: String| match x {
        x if x.is_nan() => "NaN".into(),
        x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        _ => serde_json::from_str::<Value>(&text).unwrap(),
    };
    let moment = |micros: i64, end: &str| {
        let at = DateTime::from_timestamp_micros(micros).unwrap();
        format!("{}{end}", at.format("%Y-%m-%dT%H:%M:%S%.6f")).into()
    };
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::Float32 => {
            let x = array.as_primitive::<Float32Type>().value(row);
            real(f64::from(x), format!("{x:?}"))
        }
        DataType::Float64 => {
            let x = array.as_primitive::<Float64Type>().value(row);
            real(x, format!("{x:?}"))
        }
        DataType::Timestamp(_, zone) => {
            moment(array.as_primitive::<TimestampMicrosecondType>().value(row), if zone.is_some() { "Z" } else { "" })
        }
        DataType::Binary => {
            base64::engine::general_purpose::STANDARD.encode(array.as_binary::<i32>().value(row)).into()
        }
        DataType::Decimal128(..) => {
            let text = arrow::util::display::array_value_to_string(array, row).unwrap();
            serde_json::from_str::<f64>(&text).unwrap().into()
        }
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            (0..items.len()).map(|i| value(&items, i)).collect::<Vec<_>>().into()
        }
        DataType::Map(..) => {
            let pairs = array.as_map().value(row);
            let key = |i: usize| value(pairs.column(0), i).as_str().unwrap().to_owned();
            Value::Object((0..pairs.len()).map(|i| (key(i), value(pairs.column(1), i))).collect::<Map<_, _>>())
        }
        DataType::Struct(fields) => {
            let group = array.as_struct();
            let member = |(i, f): (usize, &arrow::datatypes::FieldRef)| (f.name().clone(), value(group.column(i), row));
            Value::Object(fields.iter().enumerate().map(member).collect())
        }
        _ => arrow::util::display::array_value_to_string(array, row).unwrap().into(),
    }
}

/// Numbers that are equal are the same, however they are written.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(x) if x.is_f64() => serde_json::Number::from_f64(x.as_f64().unwrap() + 0.0).unwrap().into(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().into(),
        Value::Object(members) => Value::Object(members.iter().map(|(k, v)| (k.clone(), plain(v))).collect()),
        Value::Number(x) => serde_json::Number::from_f64(x.as_f64().unwrap()).unwrap().into(),
        other => other.clone(),
    }
}

#[test]
fn files_are_read_as_spark_reads_them_but_for_the_exceptions() {
    let cases: Vec<Case> = data("cases.json");
    let mut answers: Vec<Value> = data("spark.json");
    assert_eq!(answers.remove(0)["spark"], "4.3.0");
    assert_eq!(answers.len(), cases.len());
    let exceptions: Vec<Exception> = data("exceptions.json");
    let mut wrong = Vec::new();
    for (number, (case, answer)) in cases.iter().zip(answers).enumerate() {
        let spark: Answer = serde_json::from_value(answer).unwrap();
        let exception = exceptions.iter().find(|x| x.case == number);
        let ours = case.read();
        let rows: Option<Vec<Value>> = ours.as_ref().ok().map(|x| x.1.iter().map(plain).collect());
        let schema = ours.as_ref().ok().map(|x| x.0.clone());
        let mut expected = (!spark.error).then_some((spark.schema, spark.rows));
        let same = |expected: &Option<(Option<String>, Vec<Value>)>| {
            let rows_expected = expected.as_ref().map(|x| x.1.iter().map(plain).collect::<Vec<_>>());
            rows == rows_expected && (case.schema.is_some() || schema == expected.as_ref().and_then(|x| x.0.clone()))
        };
        if let Some(exception) = exception {
            assert!(!exception.why.is_empty());
            if same(&expected) {
                wrong.push(format!("case {number} is no exception any more"));
            }
            let given = exception.rows.clone().map(|rows| (exception.schema.clone().or(schema.clone()), rows));
            expected = given;
        }
        if !same(&expected) {
            let input = case.text.clone().or(case.hex.clone()).unwrap_or_default();
            let shown =
                ours.as_ref().map_or_else(|e| e.to_string(), |x| format!("{} {}", x.0, Value::from(x.1.clone())));
            let expected =
                expected.map_or("an error".into(), |x| format!("{} {}", x.0.unwrap_or_default(), Value::from(x.1)));
            wrong.push(format!(
                "case {number}: {} {input:?} {:?}\n  is   {shown}\n  not  {expected}",
                case.format, case.options
            ));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
