//! Every recorded AUTO CDC case: as given, in one batch, one event a batch, shuffled; with one worker and with four; killed
//! and resumed.

use std::sync::Arc;

use serde_json::{Map, Value};

use silverflow::runtime::RunOptions;

use crate::cases::{self, Case, Expect, Run};
use crate::faults::Death;
use crate::support::{Dice, Project, difference, project};

/// How the events of one update are cut into files. Each file is an epoch of its own.
#[derive(Clone, Copy)]
enum Shape {
    AsGiven,
    OneBatch,
    OneEventABatch,
    Shuffled(u64),
}

impl Shape {
    fn files(self, run: &Run) -> Vec<Vec<Value>> {
        let mut events: Vec<Value> = run.batches.iter().flatten().cloned().collect();
        match self {
            Shape::AsGiven => run.batches.clone(),
            Shape::OneBatch => vec![events],
            Shape::OneEventABatch => events.into_iter().map(|event| vec![event]).collect(),
            Shape::Shuffled(seed) => {
                let mut dice = Dice::new(seed);
                dice.shuffle(&mut events);
                let size = 1 + dice.below(4);
                events.chunks(size).map(<[Value]>::to_vec).collect()
            }
        }
    }
}

fn list(columns: &Value) -> String {
    let quoted = columns.as_array().unwrap().iter().map(|c| format!("`{}`", c.as_str().unwrap()));
    quoted.collect::<Vec<_>>().join(", ")
}

/// The pipeline of one case: the raw feed stored as it arrives, and the flow under test.
fn definitions(name: &str, run: &Run) -> String {
    let Run { args, schema, .. } = run;
    let text = |key: &str| args.get(key).and_then(Value::as_str).map(str::to_string);
    let listed = |key: &str| args.get(key).filter(|list| !list.is_null()).map(list);
    let mut clauses = vec![format!("KEYS ({})", list(&args["keys"]))];
    if args.get("ignore_null_updates").is_some_and(|value| value == &Value::Bool(true)) {
        clauses.push("IGNORE NULL UPDATES".into());
    }
    clauses.extend(text("apply_as_deletes").map(|c| format!("APPLY AS DELETE WHEN {c}")));
    clauses.extend(text("apply_as_truncates").map(|c| format!("APPLY AS TRUNCATE WHEN {c}")));
    clauses.extend(text("sequence_by").map(|c| format!("SEQUENCE BY {c}")));
    clauses.extend(text("system_sequence_by").map(|c| format!("SYSTEM SEQUENCE BY {c}")));
    clauses.extend(listed("column_list").map(|c| format!("COLUMNS ({c})")));
    clauses.extend(listed("except_column_list").map(|c| format!("COLUMNS * EXCEPT ({c})")));
    clauses.push(match &args["stored_as_scd_type"] {
        Value::Number(number) => format!("STORED AS SCD TYPE {number}"),
        other => format!("STORED AS {}", other.as_str().unwrap().to_uppercase()),
    });
    clauses.extend(listed("track_history_column_list").map(|c| format!("TRACK HISTORY ON {c}")));
    clauses.extend(listed("track_history_except_column_list").map(|c| format!("TRACK HISTORY ON * EXCEPT ({c})")));
    format!(
        "CREATE STREAMING TABLE raw_{name} AS SELECT * FROM STREAM read_files(
           'landing/{name}', format => 'json', schema => '{schema}', maxFilesPerTrigger => 1);
         CREATE STREAMING TABLE target_{name};
         CREATE FLOW flow_{name} AS AUTO CDC INTO target_{name} FROM STREAM(raw_{name})\n{};\n",
        clauses.join("\n")
    )
}

/// Names with hyphens would need quoting everywhere.
fn identifier(case: &Case) -> String {
    case.name.replace('-', "_")
}

/// An instant is the same with and without the zone that it is in anyway.
fn comparable(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.strip_suffix('Z').unwrap_or(text).to_string()),
        Value::Array(items) => items.iter().map(comparable).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(k, v)| (k.clone(), comparable(v))).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn compare(context: &str, actual: &[Value], columns: &[String], expected: &[Value]) -> Option<String> {
    if columns.is_empty() {
        let count = actual.len() != expected.len();
        return count.then(|| format!("{context}: {} rows instead of {}", actual.len(), expected.len()));
    }
    let normal = |rows: &[Value]| project(&rows.iter().map(comparable).collect::<Vec<_>>(), columns);
    difference(&normal(actual), &normal(expected)).map(|d| format!("{context}: {d}"))
}

/// How a project is run.
enum Means {
    /// At once.
    Plain,
    /// With a storage that dies under it now and then, each time with other workers.
    Dying(Dice),
    /// By the real binary, in so many processes.
    Processes(usize),
}

fn run(project: &Project, workers: usize, means: &mut Means) -> Result<(), String> {
    if let Means::Processes(count) = means {
        return crate::processes::run(project, *count, workers);
    }
    if let Means::Dying(dice) = means {
        for _ in 0..2 {
            // Early and late in a run of any length.
            let length = 1 << (6 + dice.below(7));
            let death = Arc::new(Death::at(dice.below(length), dice.once_in(2)));
            let lake = Some(project.watched(death.clone()));
            match project.run_with(&RunOptions { lake, workers: 1 + dice.below(4), ..RunOptions::default() }) {
                Err(error) if !death.happened() => return Err(error.to_string()),
                _ => {}
            }
        }
    }
    project.run(workers).map(drop).map_err(|e| e.to_string())
}

/// Runs cases side by side in one pipeline, update by update. Gives what was wrong, or the error that ended it.
fn run_together(cases: &[&Case], shape: Shape, workers: usize, means: &mut Means) -> Result<Vec<String>, String> {
    let project = Project::new("");
    let mut wrong = Vec::new();
    for update in 0..cases.iter().map(|case| case.runs.len()).max().unwrap_or(0) {
        let mut sql = String::new();
        for case in cases {
            let name = identifier(case);
            sql += &definitions(&name, &case.runs[update.min(case.runs.len() - 1)]);
            std::fs::create_dir_all(project.path("landing").join(&name)).unwrap();
            for (i, file) in case.runs.get(update).map(|run| shape.files(run)).into_iter().flatten().enumerate() {
                project.land(&name, &format!("{update}_{i:04}"), &file);
            }
        }
        project.define(&sql);
        run(&project, workers, means).map_err(|e| format!("update {update}: {e}"))?;
        for case in cases {
            let Some(Run { expect: Expect::Rows { columns, rows }, .. }) = case.runs.get(update) else { continue };
            if columns.is_empty() && rows.is_empty() && update + 1 < case.runs.len() {
                continue;
            }
            let query = format!("SELECT * FROM target_{}", identifier(case));
            let actual = project.query(&query).map_err(|e| format!("{}: {e}", case.name))?;
            wrong.extend(compare(&format!("{} update {update}", case.name), &actual, columns, rows));
        }
    }
    if workers > 1 {
        let verdict = project.verify().map_err(|e| e.to_string())?;
        wrong.extend(verdict.tables.iter().filter(|table| !table.clean()).map(|table| format!("{table:?}")));
    }
    Ok(wrong)
}

/// All plain cases in one shape. They run a few dozen to a pipeline; if a pipeline fails as a whole, each of its
/// cases is run alone, so that the report names the ones at fault.
fn check_plain(shape: Shape, workers: usize) {
    check(shape, workers, &mut Means::Plain);
}

/// As [`check_plain`], in several processes; every third case, unless `SILVERFLOW_MATRIX` asks for all.
pub(crate) fn check_in_processes(processes: usize, workers: usize) {
    check(Shape::OneBatch, workers, &mut Means::Processes(processes));
}

fn check(shape: Shape, workers: usize, means: &mut Means) {
    let all = cases::all();
    let mut plain: Vec<&Case> = all.iter().filter(|case| case.plain()).collect();
    assert!(plain.len() > 100, "only {} cases found", plain.len());
    if matches!(means, Means::Processes(_)) && !crate::processes::all_numbers() {
        plain = plain.into_iter().step_by(3).collect();
    }
    let mut wrong = Vec::new();
    for group in plain.chunks(24) {
        match run_together(group, shape, workers, means) {
            Ok(found) => wrong.extend(found),
            Err(whole) => {
                let alone = group.iter().map(|case| (case, run_together(&[case], shape, workers, means)));
                let failed: Vec<String> = alone
                    .flat_map(|(case, outcome)| outcome.unwrap_or_else(|e| vec![format!("{}: {e}", case.name)]))
                    .collect();
                wrong.extend(if failed.is_empty() { vec![format!("only together: {whole}")] } else { failed });
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ with {workers} workers:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn as_given_with_one_worker() {
    check_plain(Shape::AsGiven, 1);
}

#[test]
fn as_given_with_four_workers() {
    check_plain(Shape::AsGiven, 4);
}

#[test]
fn in_one_batch_with_one_worker() {
    check_plain(Shape::OneBatch, 1);
}

#[test]
fn in_one_batch_with_four_workers() {
    check_plain(Shape::OneBatch, 4);
}

#[test]
fn one_event_a_batch_with_one_worker() {
    check_plain(Shape::OneEventABatch, 1);
}

#[test]
fn one_event_a_batch_with_four_workers() {
    check_plain(Shape::OneEventABatch, 4);
}

#[test]
fn shuffled_with_one_worker() {
    check_plain(Shape::Shuffled(1), 1);
    check_plain(Shape::Shuffled(2), 1);
}

#[test]
fn shuffled_with_four_workers() {
    check_plain(Shape::Shuffled(3), 4);
}

#[test]
fn killed_and_resumed_with_other_workers() {
    check(Shape::AsGiven, 2, &mut Means::Dying(Dice::new(1)));
}

/// Our code for the reason of a recorded error, where it is not called the same.
fn same_reason(class: &str, code: &str) -> bool {
    let same = [
        ("CANNOT_SET_TOGETHER", "DUPLICATE_CLAUSES"),
        ("INVALID_MULTIPLE_ARGUMENT_CONDITIONS", "AUTOCDC_TRACK_HISTORY_REQUIRES_SCD2"),
    ];
    class.rsplit('.').next() == code.rsplit('.').next() || same.contains(&(class, code))
}

/// Cases with an error: as given, each in a pipeline of its own.
fn check_special(case: &Case, workers: usize) -> Vec<String> {
    let project = Project::new("");
    let name = identifier(case);
    let mut wrong = Vec::new();
    for (update, run) in case.runs.iter().enumerate() {
        project.define(&definitions(&name, run));
        std::fs::create_dir_all(project.path("landing").join(&name)).unwrap();
        for (i, file) in run.batches.iter().enumerate() {
            project.land(&name, &format!("{update}_{i:04}"), file);
        }
        let outcome = project.run(workers);
        let context = format!("{} update {update}", case.name);
        let rows = match (&run.expect, outcome) {
            (Expect::Rows { columns, rows }, Ok(_)) => Some((columns.clone(), rows.clone())),
            (Expect::Rows { .. }, Err(e)) => {
                wrong.push(format!("{context}: {e}"));
                None
            }
            (Expect::Error { class, after }, Err(e)) => {
                if !same_reason(class, e.code()) {
                    wrong.push(format!("{context}: {class} expected, but {e}"));
                }
                let columns = after.iter().flatten().next().and_then(Value::as_object);
                let columns = columns.map(|row| row.keys().cloned().collect()).unwrap_or_default();
                // A case that fails in its first update has no target that could be read.
                after.clone().filter(|_| update > 0).map(|after| (columns, after))
            }
            (Expect::Error { class, .. }, Ok(_)) => {
                wrong.push(format!("{context}: {class} expected, but it succeeded"));
                None
            }
        };
        let Some((columns, rows)) = rows else { continue };
        if columns.is_empty() && update + 1 < case.runs.len() {
            continue;
        }
        match project.query(&format!("SELECT * FROM target_{name}")) {
            Ok(actual) => wrong.extend(compare(&context, &actual, &columns, &rows)),
            Err(e) => wrong.push(format!("{context}: {e}")),
        }
    }
    wrong
}

fn check_all_special(workers: usize) {
    let all = cases::all();
    let special: Vec<&Case> = all.iter().filter(|case| !case.plain()).collect();
    assert!(special.len() > 20, "only {} cases found", special.len());
    let wrong: Vec<String> = special.iter().flat_map(|case| check_special(case, workers)).collect();
    assert!(wrong.is_empty(), "{} differ with {workers} workers:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn recorded_errors_with_one_worker() {
    check_all_special(1);
}

#[test]
fn recorded_errors_with_four_workers() {
    check_all_special(4);
}

#[test]
fn every_recorded_case_is_run_or_named_with_its_reason() {
    let all = cases::all();
    let (recorded, idle) = cases::counts();
    let refused = all.iter().filter(|case| case.refused()).count();
    assert_eq!(all.len(), recorded - idle + refused);
}
