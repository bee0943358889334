//! The golden cases of `tests/cases`, brought into one form.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// A recorded feed with its AUTO CDC arguments and what must come out.
pub(crate) struct Case {
    /// Unique among all cases.
    pub(crate) name: String,
    /// Successive updates of the pipeline.
    pub(crate) runs: Vec<Run>,
}

/// One update of the pipeline.
#[derive(Clone)]
pub(crate) struct Run {
    /// Arguments of the flow.
    pub(crate) args: Map<String, Value>,
    /// Columns of the feed as DDL.
    pub(crate) schema: String,
    /// What arrives, batch by batch.
    pub(crate) batches: Vec<Vec<Value>>,
    /// What must come out.
    pub(crate) expect: Expect,
}

/// The outcome of a run.
#[derive(Clone)]
pub(crate) enum Expect {
    /// These rows, on these columns.
    Rows { columns: Vec<String>, rows: Vec<Value> },
    /// An error of this class, after which the target holds these rows (not checked if unknown).
    Error { class: String, after: Option<Vec<Value>> },
}

impl Case {
    /// True if no run is to fail, so that the feed can be cut and mixed at will.
    pub(crate) fn plain(&self) -> bool {
        self.runs.iter().all(|run| matches!(run.expect, Expect::Rows { .. }))
    }

    /// True if the definitions are to be refused for what they ask.
    pub(crate) fn refused(&self) -> bool {
        self.runs.iter().any(|run| matches!(&run.expect, Expect::Error { class, .. } if class == "NOT_SUPPORTED"))
    }
}

/// Every case that can be run.
pub(crate) fn all() -> Vec<Case> {
    let exceptions = read("exceptions.json");
    let mut cases: Vec<Case> = Vec::new();
    for (file, id, parse) in
        [("spark_4_3", "name", spark as fn(&Value) -> Option<Vec<Run>>), ("published", "id", published)]
    {
        for recorded in read(&format!("{file}.json"))["cases"].as_array().unwrap() {
            let name = recorded[id].as_str().unwrap().to_string();
            let exception = exceptions[file].get(&name);
            let runnable = exception.is_none_or(|e| e.get("expect").is_some());
            let runs = if runnable { parse(recorded) } else { unsupported(recorded, exception) };
            let Some(mut runs) = runs else { continue };
            if let Some(expected) = exception.and_then(|e| e["expect"].as_array()) {
                runs.truncate(expected.len());
                for (run, rows) in runs.iter_mut().zip(expected.iter().map(|e| e["rows"].as_array())) {
                    run.expect = rows.map_or(run.expect.clone(), |rows| expect_rows(rows.clone()));
                }
            }
            cases.push(Case { name, runs });
        }
    }
    cases
}

/// How many cases the files hold, and how many of them are named as not runnable.
pub(crate) fn counts() -> (usize, usize) {
    let exceptions = read("exceptions.json");
    let recorded = ["spark_4_3", "published"].map(|f| read(&format!("{f}.json"))["cases"].as_array().unwrap().len());
    let idle = |file: &str| {
        let file = exceptions[file].as_object().unwrap().values();
        file.filter(|e| e.get("expect").is_none()).count()
    };
    (recorded.iter().sum(), idle("spark_4_3") + idle("published"))
}

fn read(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn expect_rows(rows: Vec<Value>) -> Expect {
    let columns = rows.first().and_then(Value::as_object).map(|row| row.keys().cloned().collect()).unwrap_or_default();
    Expect::Rows { columns, rows }
}

fn spark(case: &Value) -> Option<Vec<Run>> {
    let mut args = case["args"].as_object().unwrap().clone();
    let mut schema = case["schema"].as_str().unwrap().to_string();
    let mut runs = Vec::new();
    for run in case["runs"].as_array().unwrap() {
        args.extend(run["args"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        schema = run["schema"].as_str().unwrap_or(&schema).to_string();
        let target = run["target"].as_array().cloned();
        let expect = match run["error"]["root_error_class"].as_str() {
            Some(class) => Expect::Error { class: class.to_string(), after: target },
            None => expect_rows(target.unwrap()),
        };
        let batches = run["batches"].as_array().unwrap().iter().map(|b| b.as_array().unwrap().clone()).collect();
        runs.push(Run { args: args.clone(), schema: schema.clone(), batches, expect });
    }
    Some(runs)
}

fn published(case: &Value) -> Option<Vec<Run>> {
    let args = case["config"].as_object().unwrap().clone();
    let outcome = case.get("recommended_expected").unwrap_or(&case["expected"]);
    let batches = case["batches"].as_array().unwrap();
    // A feed that gains a column, and one that ends in an error, is two updates.
    let last = &batches.last()?["columns"];
    let error = outcome.get("error").map(|class| class.as_str().unwrap().to_string());
    let first = batches.iter().position(|batch| &batch["columns"] == last).unwrap();
    let cut = if first == 0 && error.is_some() { batches.len() - 1 } else { first };
    let (before, after) = batches.split_at(cut);
    let columns: Vec<String> = texts(&outcome["columns"]);
    let expect = match error {
        Some(class) => {
            let kept = texts(&batches[0]["columns"]);
            let after = outcome["target_after"].as_array().map(|rows| objects(&kept, rows));
            Expect::Error { class, after }
        }
        None => Expect::Rows { rows: objects(&columns, outcome["rows"].as_array()?), columns },
    };
    let run = |batches: &[Value], seen: &[Value], expect| {
        let columns = texts(&batches[0]["columns"]);
        let rows = |batch: &Value| objects(&texts(&batch["columns"]), batch["rows"].as_array().unwrap());
        let schema = schema_of(&columns, &seen.iter().flat_map(rows).collect::<Vec<_>>());
        Run { args: args.clone(), schema, batches: batches.iter().map(rows).collect(), expect }
    };
    if before.is_empty() {
        return Some(vec![run(after, batches, expect)]);
    }
    // What stands between the two updates is not recorded; an empty list of columns compares nothing.
    let between = Expect::Rows { columns: Vec::new(), rows: Vec::new() };
    Some(vec![run(before, before, between), run(after, batches, expect)])
}

/// A feature that must be refused: the definitions alone decide.
fn unsupported(case: &Value, exception: Option<&Value>) -> Option<Vec<Run>> {
    let args = case.get("config")?.as_object()?;
    if exception?["reason"] != "not_supported" || !args.contains_key("system_sequence_by") {
        return None;
    }
    let sequence = ["sequence_by", "system_sequence_by"].map(|k| args[k].as_str().unwrap().replace(' ', "_"));
    let keys = texts(&args["keys"]).join(" STRING, ");
    let mut args = args.clone();
    args.insert("sequence_by".into(), json!(sequence[0]));
    let schema = format!("{keys} STRING, {} STRING, {} STRING, operation STRING", sequence[0], sequence[1]);
    let expect = Expect::Error { class: "NOT_SUPPORTED".into(), after: None };
    Some(vec![Run { args, schema, batches: vec![Vec::new()], expect }])
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|v| v.as_str().unwrap().to_string()).collect()
}

fn objects(columns: &[String], rows: &[Value]) -> Vec<Value> {
    let object =
        |row: &Value| columns.iter().cloned().zip(row.as_array().unwrap().iter().cloned()).collect::<Map<_, _>>();
    rows.iter().map(|row| Value::Object(object(row))).collect()
}

/// Column types from the values: a feed that has no declared schema has simple ones.
fn schema_of(columns: &[String], rows: &[Value]) -> String {
    let column = |column: &String| {
        let sample = rows.iter().filter_map(|row| row.get(column)).find(|value| !value.is_null());
        let kind = match sample {
            Some(Value::Bool(_)) => "BOOLEAN",
            Some(Value::Number(n)) if n.is_i64() => "BIGINT",
            Some(Value::Number(_)) => "DOUBLE",
            _ => "STRING",
        };
        format!("`{column}` {kind}")
    };
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}
