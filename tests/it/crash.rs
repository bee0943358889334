//! Crashes at every point at which a run touches its storage. Whatever state they leave, the next run ends where the
//! uninterrupted one ends, and no table holds an epoch twice.
//!
//! A run is recorded once, step by step; each state in which it could have ended is put back, and the pipeline run on it.
//!
//! With `SILVERFLOW_SWEEP` in the environment every state is visited where usually some are, and judged by `verify`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};
use silverflow::error::Fault;
use silverflow::lake::Lake;
use silverflow::lake::faults::Step;
use silverflow::runtime::{Continuous, RunOptions, Selection, Stop};

use crate::faults::{Death, EACCES, EIO, ENOSPC, Image, Journal, Steps, Trouble};
use crate::support::{Dice, Project, difference};

/// The tables of the pipeline.
pub(crate) const TABLES: [&str; 5] = ["products", "orders", "orders_quarantine", "waiting", "history"];

/// Two replay points, one with a quarantine; a lookup whose verdicts are withdrawn; history.
pub(crate) fn definitions(least: i64, tracked: &str) -> String {
    format!(
        "CREATE STREAMING TABLE products AS SELECT * FROM STREAM read_files(
           'landing/products', format => 'json', schema => 'id BIGINT, label STRING', maxFilesPerTrigger => 1);
         CREATE STREAMING TABLE orders (CONSTRAINT enough EXPECT (amount > {least}) ON VIOLATION QUARANTINE)
           AS SELECT * FROM STREAM read_files('landing/orders', format => 'json', maxFilesPerTrigger => 1,
             schema => 'id BIGINT, s BIGINT, product BIGINT, amount BIGINT, op STRING');
         CREATE TEMPORARY VIEW tagged AS SELECT o.id, o.s, o.product, o.amount, o.op,
             array_except(array(CASE WHEN p.id IS NULL AND o.op <> 'D' THEN 'unknown' END), array(CAST(NULL AS STRING)))
               AS failures
           FROM STREAM(orders) AS o LEFT JOIN (SELECT DISTINCT id FROM products) AS p ON o.product = p.id;
         CREATE TEMPORARY VIEW clean AS
           SELECT id, s, product, amount, op FROM STREAM(tagged) WHERE size(failures) = 0;
         CREATE STREAMING TABLE waiting;
         CREATE FLOW wait AS INSERT INTO waiting BY NAME SELECT * FROM STREAM(tagged) WHERE size(failures) > 0;
         CREATE STREAMING TABLE history;
         CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(clean) KEYS (id) APPLY AS DELETE WHEN op = 'D'
           SEQUENCE BY s COLUMNS * EXCEPT (s, op) STORED AS SCD TYPE 2 TRACK HISTORY ON {tracked};"
    )
}

fn first() -> String {
    definitions(0, "product, amount")
}

fn edited() -> String {
    definitions(2, "product")
}

fn order(id: i64, s: i64, product: i64, amount: i64, op: &str) -> Value {
    json!({"id": id, "s": s, "product": product, "amount": amount, "op": op})
}

/// Two files a feed, which are two epochs. The second brings a late event, a delete, and what the first waited for.
fn project(sql: &str) -> Project {
    let project = Project::new(sql);
    project.land("products", "a", &[json!({"id": 1, "label": "x"})]);
    project.land("products", "b", &[json!({"id": 2, "label": "y"}), json!({"id": 3, "label": "z"})]);
    project.land(
        "orders",
        "a",
        &[
            order(1, 10, 1, 5, "U"),
            order(1, 30, 1, 7, "U"),
            order(2, 10, 2, 3, "U"),
            order(3, 10, 1, 0, "U"),
            order(4, 10, 1, 1, "U"),
            order(5, 10, 9, 4, "U"),
        ],
    );
    project.land(
        "orders",
        "b",
        &[
            order(1, 20, 2, 6, "U"),
            order(2, 20, 1, -1, "U"),
            order(4, 20, 1, 9, "D"),
            order(2, 30, 3, 2, "U"),
            order(6, 10, 9, 8, "U"),
        ],
    );
    project
}

fn options(workers: usize) -> RunOptions {
    RunOptions { workers, wall: Some("2026-01-01T00:00:00Z".parse().unwrap()), ..RunOptions::default() }
}

type Contents = BTreeMap<&'static str, Vec<Value>>;

fn contents(project: &Project) -> Contents {
    TABLES.iter().map(|table| (*table, project.stored(&format!("main/default/{table}")))).collect()
}

/// The tables of a run that nothing befell.
fn uninterrupted(change: bool) -> Contents {
    let project = project(&first());
    project.run_with(&options(1)).unwrap();
    if change {
        project.define(&edited());
        project.run_with(&options(1)).unwrap();
    }
    let contents = contents(&project);
    for (table, rows) in &contents {
        assert!(!rows.is_empty(), "{table} is empty, which proves nothing");
    }
    contents
}

/// What is wrong after the next run on a storage that a crash has left.
fn wrong_after(project: &Project, workers: usize, expected: &Contents) -> Option<String> {
    wrong_after_any(project, workers, std::slice::from_ref(expected))
}

/// As [`wrong_after`], where the tables may be in one of several states, all of them in the same.
fn wrong_after_any(project: &Project, workers: usize, expected: &[Contents]) -> Option<String> {
    match project.run_with(&options(workers)) {
        Err(error) => return Some(format!("the next run failed: {error}")),
        Ok(report) if report.last_epoch.is_none() => return Some("the next run did nothing".to_owned()),
        Ok(_) => {}
    }
    let actual = contents(project);
    if !expected.contains(&actual) {
        let wrong =
            |(table, rows): (&&str, &Vec<Value>)| Some(format!("{table}: {}", difference(&actual[*table], rows)?));
        return Some(expected.iter().flat_map(|expected| expected.iter().filter_map(wrong)).collect());
    }
    project.epochs_twice().map(|twice| format!("committed twice: {twice}"))
}

/// Puts back state after state and runs the pipeline on each.
fn check_states(project: &Project, states: &[Image], expected: &Contents) {
    check_some_states(project, states, 1, std::slice::from_ref(expected));
}

/// As [`check_states`], of every `step`th state, where the tables may end in one of several.
fn check_some_states(project: &Project, states: &[Image], step: usize, expected: &[Contents]) {
    assert!(states.len() > 20, "only {} states", states.len());
    let sweep = std::env::var_os("SILVERFLOW_SWEEP").is_some();
    let step = if sweep { 1 } else { step };
    for (i, state) in states.iter().enumerate().step_by(step) {
        state.restore(&project.path("lakehouse"));
        if (i / step).is_multiple_of(2) {
            leave_signs_of_life(project);
        }
        if let Some(wrong) = wrong_after_any(project, 1 + i % 2, expected) {
            panic!("state {i} of {}: {wrong}\nit was:{}", states.len(), state.describe());
        }
        // The judge costs as much as the run.
        if sweep || (i / step).is_multiple_of(4) {
            project.assert_clean(&format!("state {i} of {}", states.len()));
        }
    }
}

/// What the last run gave and could not take back: its successor takes over from one that died.
fn leave_signs_of_life(project: &Project) {
    let lake = project.watched(Arc::new(Death::never()));
    let Some(last) = crate::support::history(&lake).ok().and_then(|history| history.generation) else { return };
    let runs = project.path("lakehouse/_silverflow/runs");
    std::fs::create_dir_all(&runs).unwrap();
    std::fs::write(runs.join(last.owner.id), "").unwrap();
}

fn journal(project: &Project) -> Arc<Journal> {
    Arc::new(Journal::of(&project.path("lakehouse").canonicalize().unwrap()))
}

fn recorded_with(project: &Project, options: RunOptions) -> Arc<Journal> {
    let journal = journal(project);
    project.run_with(&RunOptions { lake: Some(project.watched(journal.clone())), ..options }).unwrap();
    journal
}

fn recorded(project: &Project) -> Arc<Journal> {
    recorded_with(project, options(1))
}

/// A project whose storage is there and empty.
fn prepared() -> Project {
    let project = project(&first());
    std::fs::create_dir(project.path("lakehouse")).unwrap();
    project
}

#[test]
fn a_process_that_dies_at_any_step() {
    let project = prepared();
    let states = recorded(&project).deaths();
    check_states(&project, &states, &uninterrupted(false));
}

#[test]
fn a_loss_of_power_at_any_step() {
    let project = prepared();
    let states = recorded(&project).power_losses(&mut Dice::new(1));
    check_states(&project, &states, &uninterrupted(false));
}

#[test]
fn definitions_that_are_edited_between_the_crash_and_the_next_run() {
    let project = prepared();
    let states = recorded(&project).deaths();
    project.define(&edited());
    check_states(&project, &states, &uninterrupted(true));
}

/// Every epoch takes a checkpoint, which the next run begins with, whatever has become of it.
#[test]
fn a_process_that_dies_while_it_takes_checkpoints() {
    let project = prepared();
    project.take_checkpoints();
    let journal = recorded(&project);
    let deaths = journal.deaths();
    let met = |part: &str| deaths.iter().filter(|state| state.has(part)).count();
    assert!(met("checkpoints/") > 10 && met("checkpoints/") < deaths.len(), "{}", deaths[deaths.len() - 1].describe());
    let expected = [uninterrupted(false)];
    check_some_states(&project, &deaths, 2, &expected);
    check_some_states(&project, &journal.power_losses(&mut Dice::new(2)), 5, &expected);
}

/// The tables of two epochs, with vectors and several files, are brought into order, and what is old is removed.
#[test]
fn a_process_that_dies_while_it_brings_tables_into_order() {
    let sql = first().replace(
        "CREATE STREAMING TABLE history;",
        "CREATE STREAMING TABLE history TBLPROPERTIES (
           'delta.deletedFileRetentionDuration' = 'interval 0 seconds', 'delta.logRetentionDuration' = 'interval 0 seconds');",
    );
    let project = project(&sql);
    std::fs::create_dir(project.path("lakehouse")).unwrap();
    project.take_checkpoints();
    project.run_with(&options(1)).unwrap();
    let journal = journal(&project);
    let report = project.optimize_in(project.watched(journal.clone()), true);
    assert!(report.tables.iter().any(|table| table.rewritten > 0), "{report:?}");
    assert!(report.tables.iter().any(|table| table.checkpoint), "{report:?}");
    // The next run has something to do, on the tables as they are left.
    project.land("products", "c", &[json!({"id": 9, "label": "late"})]);
    project.land("orders", "c", &[order(1, 15, 1, 3, "U"), order(2, 40, 1, 4, "D")]);
    let reference = self::project(&sql);
    for (feed, rows) in [
        ("products", vec![json!({"id": 9, "label": "late"})]),
        ("orders", vec![order(1, 15, 1, 3, "U"), order(2, 40, 1, 4, "D")]),
    ] {
        reference.land(feed, "c", &rows);
    }
    reference.run_with(&options(1)).unwrap();
    check_some_states(&project, &journal.deaths(), 2, &[contents(&reference)]);
    check_some_states(&project, &journal.power_losses(&mut Dice::new(3)), 5, &[contents(&reference)]);
}

/// A run that goes on, to which the second half of the files comes when it has read the first.
#[test]
fn a_continuous_run_that_dies_at_any_step() {
    let project = prepared();
    let files = ["products", "orders"].map(|feed| project.path(format!("landing/{feed}/b.json")));
    let hidden = ["products", "orders"].map(|feed| project.path(format!("landing/{feed}/.b.json")));
    files.iter().zip(&hidden).for_each(|(file, hidden)| std::fs::rename(file, hidden).unwrap());
    let (stop, read) = (Stop::default(), AtomicU64::new(0));
    let follow = RunOptions {
        continuous: Some(Continuous { interval: Duration::from_millis(100) }),
        stop: stop.clone(),
        on_epoch: Some(Arc::new(move |epoch| match read.fetch_add(epoch.files, SeqCst) + epoch.files {
            2 => hidden.iter().zip(&files).for_each(|(hidden, file)| std::fs::rename(hidden, file).unwrap()),
            4 => stop.request(),
            _ => {}
        })),
        ..options(1)
    };
    let states = recorded_with(&project, follow).deaths();
    check_some_states(&project, &states, 2, &[uninterrupted(false)]);
}

#[test]
fn a_full_refresh_that_dies_at_any_step_has_happened_or_has_not() {
    let project = prepared();
    project.run_with(&options(1)).unwrap();
    let before = contents(&project);
    // Another amount, another product, and one event less.
    project.land("orders", "b", &[order(1, 20, 1, 6, "U"), order(4, 20, 1, 9, "D"), order(2, 30, 3, 4, "U")]);
    let refresh = || RunOptions {
        selection: Selection { full_refresh_all: true, accept_loss: true, ..Selection::default() },
        ..options(1)
    };
    let states = recorded_with(&project, refresh()).deaths();
    let after = contents(&project);
    assert!(before.iter().any(|(table, rows)| *rows != after[table]));
    check_some_states(&project, &states, 1, &[before, after.clone()]);
    project.run_with(&refresh()).unwrap();
    assert_eq!(contents(&project), after);
}

/// The run that takes over from a dead one, and finishes its epoch, dies as well.
#[test]
fn a_run_that_dies_while_it_takes_over() {
    let project = prepared();
    let expected = [uninterrupted(false)];
    let first = recorded(&project).deaths();
    for part in [2, 3] {
        first[first.len() * part / 5].restore(&project.path("lakehouse"));
        leave_signs_of_life(&project);
        let states = recorded(&project).deaths();
        check_some_states(&project, &states, 3, &expected);
    }
}

#[test]
fn a_process_that_dies_on_an_object_store() {
    let project = prepared();
    let root = project.path("lakehouse").canonicalize().unwrap();
    let journal = journal(&project);
    let lake = Lake::watched_objects(&root, journal.clone()).unwrap();
    project.run_with(&RunOptions { lake: Some(lake), ..options(1) }).unwrap();
    check_states(&project, &journal.deaths(), &uninterrupted(false));
}

/// The run itself sees its storage die: it says so, as a fault of the outside, and what it leaves is whole.
fn check_deaths(objects: bool, salt: usize) {
    let expected = uninterrupted(false);
    let lake_of = |project: &Project, death: Arc<Death>| match objects {
        true => Lake::watched_objects(&project.path("lakehouse").canonicalize().unwrap(), death).unwrap(),
        false => project.watched(death),
    };
    let project = prepared();
    let whole = Arc::new(Death::never());
    project.run_with(&RunOptions { lake: Some(lake_of(&project, whole.clone())), ..options(2) }).unwrap();
    let steps = whole.steps();
    assert!(steps > 60, "only {steps} steps");
    for at in (salt..steps).step_by(steps / 24) {
        let project = prepared();
        let death = Arc::new(Death::at(at, at % 2 == 0));
        let lake = lake_of(&project, death.clone());
        let outcome = project.run_with(&RunOptions { lake: Some(lake), ..options(2) });
        if let Err(error) = outcome {
            assert_eq!(error.fault(), Fault::External, "step {at} of {steps}: {error}");
        } else {
            // What comes after the last epoch may fail without harm.
            assert!(at > steps / 2 || !death.happened(), "step {at} of {steps}: the death was not noticed");
        }
        if let Some(wrong) = wrong_after(&project, 1, &expected) {
            panic!("died at step {at} of {steps}: {wrong}");
        }
    }
}

#[test]
fn a_storage_that_dies_under_a_run_ends_it_with_an_external_error() {
    check_deaths(false, 3);
}

#[test]
fn a_store_that_dies_under_a_run_ends_it_with_an_external_error() {
    check_deaths(true, 5);
}

#[test]
fn a_storage_that_refuses_is_an_external_error_and_the_next_run_goes_on() {
    let expected = uninterrupted(false);
    let troubles: [(&str, Steps, i32); 6] = [
        (
            "a full disk",
            |step| matches!(step, Step::Write(path, _) if path.extension().is_some_and(|x| x == "parquet")),
            ENOSPC,
        ),
        (
            "a full disk for the log",
            |step| matches!(step, Step::Write(path, _) if path.to_string_lossy().contains("epochs")),
            ENOSPC,
        ),
        (
            "folders that cannot be made",
            |step| matches!(step, Step::MakeFolder(path) if !path.ends_with("lakehouse")),
            EACCES,
        ),
        ("names that cannot be given", |step| matches!(step, Step::Link(..)), EACCES),
        ("syncs that fail", |step| matches!(step, Step::SyncFile(_)), EIO),
        ("folders that do not sync", |step| matches!(step, Step::SyncFolder(_)), EIO),
    ];
    for (name, steps, error) in troubles {
        let project = prepared();
        let lake = project.watched(Arc::new(Trouble::new(steps, error, usize::MAX)));
        let failed = project.run_with(&RunOptions { lake: Some(lake), ..options(1) }).unwrap_err();
        assert_eq!(failed.fault(), Fault::External, "{name}: {failed}");
        if let Some(wrong) = wrong_after(&project, 2, &expected) {
            panic!("{name}: {wrong}");
        }
    }
}

/// A commit, on a disk or on a store.
fn commits(step: Step<'_>) -> bool {
    matches!(step, Step::Put(path, _) | Step::Link(_, path) if path.to_string_lossy().contains("_delta_log"))
}

/// A data file of a table, likewise.
fn data(step: Step<'_>) -> bool {
    matches!(step, Step::Put(path, _) | Step::Link(_, path) if path.extension().is_some_and(|x| x == "parquet"))
}

#[test]
fn a_store_that_fails_for_a_while_is_tried_again_and_one_that_keeps_failing_is_an_external_error() {
    let expected = uninterrupted(false);
    let lake_of = |project: &Project, objects: bool, trouble: Trouble| match objects {
        true => Lake::watched_objects(&project.path("lakehouse").canonicalize().unwrap(), Arc::new(trouble)).unwrap(),
        false => project.watched(Arc::new(trouble)),
    };
    let cases: [(&str, bool, Steps); 3] =
        [("commits on a disk", false, commits), ("commits on a store", true, commits), ("data on a store", true, data)];
    for (name, objects, steps) in cases {
        let project = prepared();
        let lake = lake_of(&project, objects, Trouble::new(steps, EIO, usize::MAX));
        let failed = project.run_with(&RunOptions { lake: Some(lake), ..options(1) }).unwrap_err();
        assert_eq!(failed.fault().exit_code(), 3, "{name}: {failed}");
        if let Some(wrong) = wrong_after(&project, 2, &expected) {
            panic!("{name}: {wrong}");
        }

        let project = prepared();
        let lake = lake_of(&project, objects, Trouble::new(steps, EIO, 2));
        let (stop, complete) = (Stop::default(), AtomicU64::new(0));
        let lines: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let told = Arc::clone(&lines);
        let follow = RunOptions {
            continuous: Some(Continuous { interval: Duration::from_millis(100) }),
            stop: stop.clone(),
            progress: Some(Arc::new(move |line: &str| told.lock().unwrap().push(line.to_owned()))),
            // An epoch that is finished after a failure reads nothing that is new.
            on_epoch: Some(Arc::new(move |_| {
                if complete.fetch_add(1, SeqCst) == 1 {
                    stop.request();
                }
            })),
            lake: Some(lake),
            ..options(1)
        };
        project.run_with(&follow).unwrap();
        let again = lines.lock().unwrap().iter().filter(|line| line.contains("trying again")).count();
        assert_eq!(again, 2, "{name}: {:?}", lines.lock().unwrap());
        assert_eq!(contents(&project), expected, "{name}");
        assert!(project.epochs_twice().is_none(), "{name}: {:?}", project.epochs_twice());
    }
}
