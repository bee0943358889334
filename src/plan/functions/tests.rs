//! Every recorded case, as a constant and fed from columns, in both ANSI modes.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Schema, SchemaRef, TimestampMicrosecondType,
};
use datafusion::common::Result as Planned;
use datafusion::physical_expr::PhysicalExpr;
use serde_json::{Map, Value, json};

use super::conditional::spelled;
use super::map::ends;
use super::{Settings, show};
use crate::error::Span;
use crate::plan::lower::physical;
use crate::plan::query::{Planner, plan_expr};
use crate::plan::session;
use crate::sql::read_expr;

fn recorded() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/functions.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The pieces of an expression around its holes, and the types of these.
fn holes(expression: &str) -> (Vec<String>, Vec<String>) {
    let mut pieces = vec![String::new()];
    let mut types = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at + 1);
        // JSON has braces, too; a type is in capitals.
        match after.split_once('}').filter(|_| after.starts_with(|c: char| c.is_ascii_uppercase())) {
            Some((kind, after)) => {
                pieces.last_mut().unwrap().push_str(&rest[..at]);
                types.push(kind.to_owned());
                pieces.push(String::new());
                rest = after;
            }
            None => {
                pieces.last_mut().unwrap().push_str(before);
                rest = after;
            }
        }
    }
    pieces.last_mut().unwrap().push_str(rest);
    (pieces, types)
}

/// As the recorder writes an argument.
fn literal(value: &str, kind: &str) -> String {
    let plain = ["STRING", "INT", "BOOLEAN"].contains(&kind);
    if value == "NULL" || !plain { format!("CAST({value} AS {kind})") } else { value.to_owned() }
}

fn filled(pieces: &[String], arguments: &[String]) -> String {
    let mut text = pieces[0].clone();
    for (piece, argument) in pieces[1..].iter().zip(arguments) {
        text.push_str(argument);
        text.push_str(piece);
    }
    text
}

/// A value as the recorder writes it.
fn encoded(array: &ArrayRef, at: usize) -> Value {
    if array.is_null(at) || array.data_type().is_null() {
        return Value::Null;
    }
    let float = |v: f64| {
        if v.is_nan() {
            json!("NaN")
        } else if v.is_infinite() {
            json!(if v > 0.0 { "Infinity" } else { "-Infinity" })
        } else {
            json!(v)
        }
    };
    match array.data_type() {
        DataType::Boolean => json!(array.as_boolean().value(at)),
        DataType::Int8 => json!(array.as_primitive::<Int8Type>().value(at)),
        DataType::Int16 => json!(array.as_primitive::<Int16Type>().value(at)),
        DataType::Int32 => json!(array.as_primitive::<Int32Type>().value(at)),
        DataType::Int64 => json!(array.as_primitive::<Int64Type>().value(at)),
        DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(at))),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at)),
        DataType::Decimal128(_, s) => json!(show::decimal(array.as_primitive::<Decimal128Type>().value(at), *s)),
        DataType::Date32 => json!(show::date(array.as_primitive::<Date32Type>().value(at))),
        DataType::Timestamp(..) => json!(show::local(array.as_primitive::<TimestampMicrosecondType>().value(at))),
        DataType::Utf8 => json!(array.as_string::<i32>().value(at)),
        DataType::Binary => {
            json!(array.as_binary::<i32>().value(at).iter().map(|b| format!("{b:02x}")).collect::<String>())
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            ends(list.offsets(), at).map(|i| encoded(list.values(), i)).collect()
        }
        DataType::Map(..) => {
            let map = array.as_map();
            ends(map.offsets(), at).map(|i| json!([encoded(map.keys(), i), encoded(map.values(), i)])).collect()
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let members: Map<String, Value> =
                fields.iter().zip(columns).map(|(f, c)| (f.name().clone(), encoded(c, at))).collect();
            Value::Object(members)
        }
        other => json!(format!("{other}")),
    }
}

/// Equal; doubles may differ by what two mathematical libraries differ.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            a == b || (a - b).abs() <= 4.0 * f64::EPSILON * b.abs()
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn evaluate(expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Planned<ArrayRef> {
    expr.evaluate(rows)?.into_array(rows.num_rows())
}

struct Evaluator {
    planner: Planner<'static>,
    span: Span,
}

type Answer = Result<ArrayRef, String>;

impl Evaluator {
    fn new(ansi: bool) -> Evaluator {
        let settings = Settings { ansi, ..Settings::default() };
        let sources: &'static BTreeMap<_, _> = Box::leak(Box::default());
        let planner = Planner { session: session(true, &settings).unwrap(), settings, sources };
        let span = Span { file: "t".into(), line: 1, column: 1, length: 1, text: String::new() };
        Evaluator { planner, span }
    }

    /// Evaluates over each row of a batch.
    fn rows(&self, text: &str, batch: &RecordBatch) -> Result<(DataType, Vec<Answer>), String> {
        let schema: SchemaRef = batch.schema();
        let (expr, columns, data_type) =
            plan_expr(&self.planner, &read_expr(text).map_err(|e| e.to_string())?, &schema, "t", &self.span)
                .map_err(|e| e.to_string())?;
        let expr = physical(&expr, &columns, &schema, &"UTC".into()).map_err(|e| e.to_string())?;
        let answers: Vec<Answer> =
            (0..batch.num_rows()).map(|row| evaluate(&expr, &batch.slice(row, 1)).map_err(|e| e.to_string())).collect();
        // A whole batch gives what its rows give one by one.
        if batch.num_rows() > 1 && answers.iter().all(Result::is_ok) {
            let whole = evaluate(&expr, batch).map_err(|e| e.to_string())?;
            for (row, answer) in answers.iter().enumerate() {
                let (one, of_whole) = (encoded(answer.as_ref().unwrap(), 0), encoded(&whole, row));
                if one != of_whole {
                    return Err(format!("row {row} gives {one} alone and {of_whole} among others"));
                }
            }
        }
        Ok((data_type, answers))
    }

    fn constant(&self, text: &str) -> Result<(DataType, Answer), String> {
        let schema = Arc::new(Schema::new(vec![Field::new("__none", DataType::Int32, true)]));
        let batch = RecordBatch::try_new(schema, vec![arrow::array::new_null_array(&DataType::Int32, 1)]).unwrap();
        let (data_type, mut answers) = self.rows(text, &batch)?;
        Ok((data_type, answers.remove(0)))
    }
}

fn verdict(expected: &Value, wanted: &str, got: &Result<(DataType, Answer), String>) -> Option<String> {
    if let Some(error) = expected.get("error") {
        return match got {
            Ok((_, Ok(array))) => Some(format!("{} where Spark says {error}", encoded(array, 0))),
            _ => None,
        };
    }
    let value = expected.get("value").unwrap();
    match got {
        Ok((data_type, Ok(array))) => {
            let given = encoded(array, 0);
            if !same(&given, value) {
                return Some(format!("{given} where Spark gives {value}"));
            }
            let named = spelled(data_type);
            (named != wanted).then(|| format!("{given} is {named} and in Spark {wanted}"))
        }
        Ok((_, Err(error))) | Err(error) => Some(format!("{error} where Spark gives {value}")),
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn check(ansi: bool) {
    let evaluator = Evaluator::new(ansi);
    let only = std::env::var("SILVERFLOW_FUNCTION").ok();
    let mut wrong = Vec::new();
    let mut count = 0;
    for group in recorded()["groups"].as_array().unwrap() {
        let function = group["function"].as_str().unwrap();
        if only.as_deref().is_some_and(|only| only != function && only != group["family"]) {
            continue;
        }
        let expression = group["expression"].as_str().unwrap();
        let (pieces, types) = holes(expression);
        let legacy_type = group.get("legacy_type").filter(|_| !ansi);
        let wanted = legacy_type.or(group.get("type")).and_then(Value::as_str).unwrap_or("void");
        let expected = |case: &Value| match case.get("legacy") {
            Some(legacy) if !ansi => legacy.clone(),
            _ => case.clone(),
        };
        let cases = group["cases"].as_array().unwrap();
        let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::new(); types.len()];
        let mut fed = true;
        for case in cases {
            count += 1;
            let arguments: Vec<String> =
                strings(&case["arguments"]).iter().zip(&types).map(|(v, k)| literal(v, k)).collect();
            let text = filled(&pieces, &arguments);
            if let Some(wrongness) = verdict(&expected(case), wanted, &evaluator.constant(&text)) {
                wrong.push(format!("{text}: {wrongness}"));
            }
            for (argument, column) in arguments.iter().zip(&mut columns) {
                match evaluator.constant(argument) {
                    Ok((_, Ok(array))) => column.push(array),
                    other => {
                        fed = false;
                        wrong.push(format!("{argument} is no argument: {other:?}"));
                    }
                }
            }
        }
        if types.is_empty() || cases.is_empty() || !fed {
            continue;
        }
        let arrays: Vec<ArrayRef> =
            columns.iter().map(|parts| concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap()).collect();
        let names: Vec<String> = (0..types.len()).map(|i| format!("a{i}")).collect();
        let fields: Vec<Field> =
            names.iter().zip(&arrays).map(|(n, a)| Field::new(n, a.data_type().clone(), true)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
        let text = filled(&pieces, &names);
        let answers = evaluator.rows(&text, &batch);
        for (row, case) in cases.iter().enumerate() {
            let got = match &answers {
                Ok((data_type, answers)) => Ok((data_type.clone(), answers[row].clone())),
                Err(error) => Err(error.clone()),
            };
            if let Some(wrongness) = verdict(&expected(case), wanted, &got) {
                wrong.push(format!("{text} of {}: {wrongness}", case["arguments"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn recorded_cases_hold_with_ansi() {
    check(true);
}

#[test]
fn recorded_cases_hold_without_ansi() {
    check(false);
}

/// Feeds a function what no calendar can count: an answer or a fault of the row, never an overflow.
#[test]
fn days_and_intervals_beyond_all_calendars_do_not_panic() {
    let far = [
        "CAST({} AS TIMESTAMP)",
        "CAST({} AS TIMESTAMP_NTZ)",
        "trunc({}, 'YEAR')",
        "date_trunc('DAY', {})",
        "year({})",
        "date_part('DAY', {})",
        "to_json(named_struct('d', {}), map('dateFormat', 'yyyy'))",
        "{} + INTERVAL 2000000000 DAYS",
        "{} - INTERVAL 2000000000 DAYS",
        "date_add({}, 2147483647)",
        "add_months({}, 2147483647)",
        "datediff({}, DATE'1970-01-01')",
        "dateadd(YEAR, 2147483647, {})",
        "timestampadd(MONTH, 2147483647, {})",
        "last_day({})",
        "next_day({}, 'MON')",
        "date_format({}, 'yyyy')",
        "months_between({}, DATE'1970-01-01')",
        "sequence({}, {}, INTERVAL 2000000000 DAYS)",
        "CAST({} AS STRING)",
        "unix_date({})",
    ];
    let days = Arc::new(arrow::array::Date32Array::from(vec![i32::MIN, -719_529, 0, 2_932_897, i32::MAX]));
    let batch =
        RecordBatch::try_new(Arc::new(Schema::new(vec![Field::new("d", DataType::Date32, true)])), vec![days]).unwrap();
    for ansi in [true, false] {
        let evaluator = Evaluator::new(ansi);
        for pattern in far {
            let text = pattern.replace("{}", "d");
            let planned = evaluator.rows(&text, &batch);
            assert!(planned.is_ok(), "{text}: {}", planned.err().unwrap());
        }
    }
}

/// Names that are called in the recorded expressions.
fn called() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for group in recorded()["groups"].as_array().unwrap() {
        let (function, expression) = (group["function"].as_str().unwrap(), group["expression"].as_str().unwrap());
        if expression.to_lowercase().contains(&format!("{function}(")) {
            names.insert(function.to_owned());
        }
    }
    names
}

#[test]
fn what_is_offered_is_recorded_and_what_is_recorded_is_offered() {
    let offered: BTreeSet<String> = super::names().into_iter().collect();
    let called = called();
    let without_cases: Vec<_> = offered.difference(&called).collect();
    assert!(without_cases.is_empty(), "no cases are recorded for {without_cases:?}");
    // Forms of the grammar that look like calls.
    let forms = ["cast", "try_cast", "extract", "in"];
    let absent: Vec<_> = called.difference(&offered).filter(|name| !forms.contains(&name.as_str())).collect();
    assert!(absent.is_empty(), "recorded and not offered: {absent:?}");
}

const HEAD: &str = "# Functions

Made from the cases in `tests/cases/functions.json`, which record what Spark answers, in both ANSI modes; a test checks
that this page is current (`SILVERFLOW_UPDATE=1 cargo test --lib functions` writes it anew). A function that is not here
is not offered. `silverflow query … \"SHOW FUNCTIONS\"` lists the names.

`spark.sql.ansi.enabled` (in `configuration`, on unless it is `false`) decides whether bad input and overflow fail the row
or give null, `spark.sql.session.timeZone` in which zone local time is. Besides these there are `current_timestamp()`,
`now()`, `current_date()`, `localtimestamp()`, which read the epoch's wall, and in ad-hoc queries the aggregates of
DataFusion.

Where the answers are not Spark's: `format_string` rounds
the binary value of a double, not its shortest digits; the last digit of what `sin` and its like give may differ.
";

/// The page on functions.
fn page() -> String {
    let recorded = recorded();
    let mut page = HEAD.to_owned();
    page.push_str(&format!("\nRecorded from Spark {}.\n", recorded["spark"].as_str().unwrap()));
    let shown = |text: &str| {
        let text = text.replace('\n', "\\n").replace('|', "\\|");
        if text.chars().count() > 60 { format!("{}…", text.chars().take(59).collect::<String>()) } else { text }
    };
    let mut families: Vec<String> = Vec::new();
    let groups = recorded["groups"].as_array().unwrap();
    for group in groups {
        let family = group["family"].as_str().unwrap().to_owned();
        if !families.contains(&family) {
            families.push(family);
        }
    }
    for family in families {
        page.push_str(&format!("\n## {family}\n\n| name | example | answer |\n|---|---|---|\n"));
        let mut seen = BTreeSet::new();
        for group in groups.iter().filter(|g| g["family"] == *family) {
            let name = group["function"].as_str().unwrap();
            let (pieces, _) = holes(group["expression"].as_str().unwrap());
            let told = |case: &&Value| case.get("value").is_some_and(|v| !v.is_null());
            let Some(case) = group["cases"].as_array().unwrap().iter().find(told) else { continue };
            if !seen.insert(name.to_owned()) {
                continue;
            }
            let example = filled(&pieces, &strings(&case["arguments"]));
            let answer = match &case["value"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            page.push_str(&format!("| {name} | `{}` | `{}` |\n", shown(&example), shown(&answer)));
        }
    }
    page
}

#[test]
fn the_page_on_functions_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/functions.md");
    let page = page();
    if std::env::var_os("SILVERFLOW_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/functions.md is not what the cases say; run with SILVERFLOW_UPDATE=1");
}

/// What a count could make so large that the process would go is a fault of the row.
#[test]
fn a_count_that_is_too_large_faults_its_row() {
    let planner = Planner {
        session: session(true, &Settings::default()).unwrap(),
        settings: Settings::default(),
        sources: &BTreeMap::new(),
    };
    let schema: SchemaRef =
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]));
    let evaluated = |text: &str, n: i32| {
        let expr = read_expr(text).unwrap();
        let (expr, columns, _) = plan_expr(&planner, &expr, &schema, "x", &Span::default()).unwrap();
        let expr = physical(&expr, &columns, &schema, &"UTC".into()).unwrap();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(arrow::array::Int32Array::from(vec![n])),
            Arc::new(arrow::array::StringArray::from(vec!["xy"])),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        expr.evaluate(&batch)
            .map(|value| value.into_array(1).unwrap().get_array_memory_size())
            .map_err(|e| e.to_string())
    };
    for (text, fine) in [
        ("repeat(t, n)", 1 << 19),
        ("space(n)", 1 << 20),
        ("lpad(t, n, 'ab')", 1 << 20),
        ("rpad(t, n)", 1 << 20),
        ("array_repeat(t, n)", 1_000_000),
        ("sequence(1, n)", 1_000_000),
    ] {
        assert!(evaluated(text, fine).is_ok(), "{text}: {:?}", evaluated(text, fine));
        for large in [(fine + 1) * 2, i32::MAX / 4] {
            let fault = evaluated(text, large).unwrap_err();
            assert!(fault.contains("COLLECTION_SIZE_LIMIT_EXCEEDED"), "{text} of {large}: {fault}");
        }
    }
}
