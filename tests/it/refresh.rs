//! Full and selective refreshes, and flows that are gone or renamed: what is asked for happens, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use silverflow::error::{Error, Result};
use silverflow::lake::Lake;
use silverflow::lake::faults::{Fate, Faults, Step};
use silverflow::runtime::{FlowChanges, RunOptions, RunReport, Selection};

use crate::support::{Project, assert_rows, copy_folder};

const SQL: &str = "
CREATE STREAMING TABLE raw (CONSTRAINT fair EXPECT (amount < 100) ON VIOLATION QUARANTINE)
  AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, amount BIGINT',
    maxFilesPerTrigger => 1);
CREATE STREAMING TABLE known AS SELECT * FROM STREAM read_files('landing/known', format => 'json', schema => 'id BIGINT');
CREATE STREAMING TABLE judged (CONSTRAINT resolved EXPECT (known) ON VIOLATION QUARANTINE)
  AS SELECT r.*, k.id IS NOT NULL AS known FROM STREAM(raw) AS r
     LEFT JOIN (SELECT DISTINCT id FROM known) AS k ON r.id = k.id;
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(judged) KEYS (id) SEQUENCE BY s
  COLUMNS * EXCEPT (s, known) STORED AS SCD TYPE 2;
";
const TABLES: [&str; 6] = ["raw", "raw_quarantine", "known", "judged", "judged_quarantine", "history"];

fn row(id: i64, s: i64, amount: i64) -> Value {
    json!({"id": id, "s": s, "amount": amount})
}

fn landed(sql: &str) -> Project {
    let project = Project::new(sql);
    project.land("raw", "a", &[row(1, 1, 5), row(1, 3, 7), row(2, 1, 500), row(3, 1, 6)]);
    project.land("raw", "b", &[row(1, 2, 6), row(3, 2, 8), row(4, 1, 4)]);
    project.land("known", "a", &[json!({"id": 1}), json!({"id": 3})]);
    project.run(2).unwrap();
    project
}

/// What the tables hold, without when it arrived.
fn contents(project: &Project) -> BTreeMap<&'static str, Vec<Value>> {
    TABLES.iter().map(|table| (*table, project.rows(&format!("SELECT * FROM {table}")))).collect()
}

fn select(refresh: &[&str], full_refresh: &[&str]) -> RunOptions {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    let selection = Selection { refresh: owned(refresh), full_refresh: owned(full_refresh), ..Selection::default() };
    RunOptions { workers: 2, selection, ..RunOptions::default() }
}

fn accepting(mut options: RunOptions) -> RunOptions {
    options.selection.accept_loss = true;
    options
}

fn flows(drop: &[&str], rename: &[(&str, &str)]) -> RunOptions {
    let flows = FlowChanges {
        drop: drop.iter().map(|flow| (*flow).to_owned()).collect(),
        rename: rename.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned())).collect(),
    };
    RunOptions { workers: 2, flows, ..RunOptions::default() }
}

#[track_caller]
fn refused(run: Result<RunReport>, code: &str, parts: &[&str]) -> Error {
    let error = run.unwrap_err();
    assert_eq!((error.code(), error.fault().exit_code()), (code, 2), "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part} is missing in {error}");
    }
    error
}

#[test]
fn a_full_refresh_of_a_bronze_table_reads_the_outside_as_it_is_now() {
    let project = landed(SQL);
    // One row is corrected, one file has come, and nobody told.
    project.land("raw", "b", &[row(1, 2, 60), row(3, 2, 8), row(4, 1, 4)]);
    project.land("raw", "c", &[row(3, 9, 9)]);
    project.land("known", "b", &[json!({"id": 4})]);
    let before = project.versions();
    let report = project.run_with(&accepting(select(&[], &["raw"]))).unwrap();
    assert_eq!(report.epochs.len(), 1, "one epoch, whatever the trigger's limit");
    let after = project.versions();
    let commits = |table: &str| after[&format!("main/default/{table}")] - before[&format!("main/default/{table}")];
    assert_eq!((commits("raw"), commits("judged"), commits("history"), commits("known")), (1, 1, 1, 0));
    let epochs = project.rows("SELECT DISTINCT _epoch FROM raw");
    assert_rows("epochs", &epochs, &[json!({"_epoch": report.epochs[0]})]);
    assert_rows("known", &project.rows("SELECT * FROM known"), &[json!({"id": 1}), json!({"id": 3})]);
    project.assert_clean("after the refresh");
    // Nothing of it is read again, and what was left out follows.
    assert_eq!(project.run(2).unwrap().files, 1);
    let fresh = Project::new(SQL);
    copy_folder(&project.path("landing"), &fresh.path("landing"));
    fresh.run(1).unwrap();
    assert_eq!(contents(&project), contents(&fresh));
    project.assert_clean("at the end");
}

#[test]
fn rows_that_are_outside_no_more_are_named_and_stay_until_their_loss_is_accepted() {
    let project = landed(SQL);
    fs::remove_file(project.path("landing/raw/a.json")).unwrap();
    let (before, rows) = (project.versions(), contents(&project));
    let parts = ["main.default.raw holds 7 rows, and 4 of them are outside no more", "--accept-loss", "\"amount\":500"];
    refused(project.run_with(&select(&[], &["raw"])), "LOSS_NOT_ACCEPTED", &parts);
    assert_eq!((project.versions(), contents(&project)), (before, rows));
    project.assert_clean("refused");
    // The query has changed as well: rows are counted.
    project.define(&SQL.replace(
        "SELECT * FROM STREAM read_files('landing/raw'",
        "SELECT id, s, amount + 1 AS amount FROM STREAM read_files('landing/raw'",
    ));
    let parts = ["main.default.raw holds 7 rows, and 4 of them are outside no more"];
    refused(project.run_with(&select(&[], &["raw"])), "LOSS_NOT_ACCEPTED", &parts);
    project.define(SQL);
    assert!(!project.run(2).unwrap().changed());
    project.run_with(&accepting(select(&[], &["raw"]))).unwrap();
    assert_rows("raw", &project.rows("SELECT * FROM raw"), &[row(1, 2, 6), row(3, 2, 8), row(4, 1, 4)]);
    assert_rows("waiting", &project.rows("SELECT * FROM raw_quarantine"), &[]);
    project.assert_clean("accepted");
    // A folder that is gone altogether is a mistake, not an empty source.
    fs::remove_dir_all(project.path("landing/raw")).unwrap();
    let error = project.run_with(&accepting(select(&[], &["raw"]))).unwrap_err();
    assert_eq!(error.code(), "SOURCE_NOT_FOUND");
    assert_eq!(project.rows("SELECT * FROM raw").len(), 3);
}

#[test]
fn a_table_that_must_not_be_reset_is_never_reset() {
    let guarded =
        |table: &str| SQL.replace(table, &format!("{table} TBLPROPERTIES ('Pipelines.reset.allowed' = 'false')"));
    let project = landed(&guarded("TABLE history"));
    let before = project.versions();
    let all =
        RunOptions { selection: Selection { full_refresh_all: true, ..Selection::default() }, ..RunOptions::default() };
    for options in [select(&[], &["history"]), select(&[], &["judged", "default.HISTORY"]), all] {
        let parts = ["main.default.history must not be refreshed in full"];
        refused(project.run_with(&accepting(options)), "TABLE_NOT_RESETTABLE", &parts);
    }
    let parts = ["main.default.history hangs on what would be read again"];
    refused(project.run_with(&accepting(select(&[], &["raw"]))), "TABLE_NOT_RESETTABLE", &parts);
    assert_eq!(project.versions(), before);
    // What is not reset is refreshed as ever.
    project.land("raw", "c", &[row(1, 9, 1)]);
    project.run_with(&select(&["raw", "judged", "history"], &[])).unwrap();
    project.assert_clean("refreshed");
}

#[test]
fn a_selection_that_makes_no_sense_is_refused_in_one_go() {
    let sql = format!("{SQL} CREATE TEMPORARY VIEW v AS SELECT * FROM STREAM(raw);");
    let project = landed(&sql);
    let error = refused(
        project.run_with(&select(&["rav", "v"], &["other.raw"])),
        "TABLE_OR_VIEW_NOT_FOUND",
        &["did you mean raw?", "v is a temporary view", "no dataset other.raw"],
    );
    assert_eq!(error.others().len(), 2);
    refused(project.run_with(&select(&["raw"], &["main.default.RAW"])), "REFRESH_CONFLICT", &["main.default.raw"]);
    let mut all = select(&["raw"], &[]);
    all.selection.full_refresh_all = true;
    refused(project.run_with(&all), "REFRESH_CONFLICT", &["--full-refresh-all"]);
}

#[test]
fn what_takes_no_part_is_left_alone_and_catches_up() {
    let project = landed(SQL);
    project.land("raw", "c", &[row(1, 9, 1), row(4, 9, 1)]);
    project.land("known", "b", &[json!({"id": 4})]);
    let before = contents(&project);
    let versions = project.versions();
    let report = project.run_with(&select(&["raw"], &[])).unwrap();
    assert_eq!(report.files, 1);
    let changed: Vec<_> = project.versions().into_iter().filter(|(table, v)| versions[table] != *v).collect();
    assert_eq!(changed.iter().map(|(table, _)| table.as_str()).collect::<Vec<_>>(), ["main/default/raw"]);
    let behind =
        ["judged", "history"].map(|t| (t.to_owned(), vec!["it has missed changes of an earlier run".to_owned()]));
    assert_eq!(project.recomputed(), behind);
    // One of them follows, on what is stored; the source beside it is not read.
    let report = project.run_with(&select(&["history"], &[])).unwrap();
    assert_eq!(report.files, 0);
    assert_eq!(contents(&project)["judged"], before["judged"]);
    assert_rows(
        "newest",
        &project.rows("SELECT id, amount FROM history WHERE __END_AT IS NULL AND id = 1"),
        &[json!({"id": 1, "amount": 1})],
    );
    assert_eq!(project.recomputed(), behind[..1]);
    let report = project.run(1).unwrap();
    assert_eq!(report.files, 1);
    assert!(project.recomputed().is_empty());
    let fresh = Project::new(SQL);
    copy_folder(&project.path("landing"), &fresh.path("landing"));
    fresh.run(1).unwrap();
    assert_eq!(contents(&project), contents(&fresh));
    project.assert_clean("caught up");
}

#[test]
fn definitions_of_what_takes_no_part_are_applied_when_it_does() {
    let project = landed(SQL);
    project.define(
        &SQL.replace("amount < 100", "amount < 7")
            .replace("SELECT r.*, k", "SELECT r.id, r.s, r.amount * 2 AS amount, k"),
    );
    project.land("known", "b", &[json!({"id": 4})]);
    project.run_with(&select(&["known"], &[])).unwrap();
    assert_eq!(project.rows("SELECT * FROM raw_quarantine").len(), 1);
    let changed: Vec<String> = project.recomputed().into_iter().map(|(table, _)| table).collect();
    assert_eq!(changed, ["raw", "judged", "history"]);
    project.run(2).unwrap();
    project.assert_clean("all");
    assert_rows("judged", &project.rows("SELECT amount FROM judged"), &[10, 12, 12, 8].map(|a| json!({"amount": a})));
}

#[test]
fn a_full_refresh_of_all_is_a_first_run_on_what_is_there_now() {
    let project = landed(SQL);
    fs::remove_file(project.path("landing/raw/b.json")).unwrap();
    project.land("known", "a", &[json!({"id": 1})]);
    let mut all = accepting(select(&[], &[]));
    all.selection.full_refresh_all = true;
    project.run_with(&all).unwrap();
    let fresh = Project::new(SQL);
    copy_folder(&project.path("landing"), &fresh.path("landing"));
    fresh.run(1).unwrap();
    assert_eq!(contents(&project), contents(&fresh));
    project.assert_clean("all");
    assert!(!project.run(2).unwrap().changed());
}

const PRIVATE: &str = "
CREATE STREAMING TABLE events;
CREATE FLOW changes AS INSERT INTO events BY NAME SELECT * FROM STREAM read_files(
  'landing/feed', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
CREATE FLOW backfill AS INSERT INTO ONCE events BY NAME SELECT * FROM read_files(
  'landing/copy', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
CREATE FLOW others AS INSERT INTO events BY NAME SELECT * FROM STREAM read_files(
  'landing/others', format => 'json', schema => 'id BIGINT, s BIGINT, v STRING');
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(events)
  KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;
";

fn backfilled() -> Project {
    let project = Project::new(PRIVATE);
    project.land("feed", "a", &[json!({"id": 1, "s": 10, "v": "now"})]);
    project.land("copy", "a", &[json!({"id": 1, "s": 1, "v": "old"})]);
    project.land("others", "a", &[]);
    project.run(2).unwrap();
    project
}

#[test]
fn a_once_flow_runs_again_on_a_full_refresh_and_only_then() {
    let project = backfilled();
    project.land("copy", "a", &[json!({"id": 1, "s": 1, "v": "older"}), json!({"id": 2, "s": 1, "v": "more"})]);
    assert!(!project.run(2).unwrap().changed());
    let parts = ["replay of backfill holds 1 rows, and 1 of them are outside no more"];
    refused(project.run_with(&select(&[], &["events"])), "LOSS_NOT_ACCEPTED", &parts);
    // Nothing outside is kept for the history itself.
    assert!(!project.run_with(&select(&[], &["history"])).unwrap().changed());
    project.run_with(&accepting(select(&[], &["events"]))).unwrap();
    let values = [json!({"v": "older"}), json!({"v": "now"}), json!({"v": "more"})];
    assert_rows("history", &project.rows("SELECT v FROM history"), &values);
    project.assert_clean("again");
    project.land("copy", "b", &[json!({"id": 3, "s": 1, "v": "too late"})]);
    assert!(!project.run(2).unwrap().changed());
}

#[test]
fn a_flow_that_is_gone_is_missed_until_it_is_renamed_or_dropped() {
    let project = backfilled();
    let renamed = PRIVATE.replace("FLOW changes", "FLOW events");
    project.define(&renamed);
    let before = project.versions();
    let parts = ["flow changes", "--rename-flow changes=events", "--drop-flow changes"];
    refused(project.run(2), "FLOW_GONE", &parts);
    refused(project.run_with(&flows(&["chances"], &[])), "UNKNOWN_FLOW", &["did you mean changes?"]);
    refused(project.run_with(&flows(&[], &[("changes", "nothing")])), "UNKNOWN_FLOW", &["no flow nothing"]);
    assert_eq!(project.versions(), before);
    // Under its new name it goes on where it was.
    fs::remove_file(project.path("landing/feed/a.json")).unwrap();
    project.land("feed", "b", &[json!({"id": 1, "s": 20, "v": "later"})]);
    project.run_with(&flows(&[], &[("changes", "events")])).unwrap();
    let values = |project: &Project| project.rows("SELECT v FROM history");
    assert_rows("renamed", &values(&project), &[json!({"v": "old"}), json!({"v": "now"}), json!({"v": "later"})]);
    assert!(!project.run(2).unwrap().changed());
    project.assert_clean("renamed");
    // Renamed once more, and the first name is not free for another flow.
    project.define(&PRIVATE.replace("FLOW changes", "FLOW feed"));
    refused(project.run(2), "FLOW_GONE", &["flow events", "--rename-flow events=feed"]);
    project.run_with(&flows(&[], &[("events", "feed")])).unwrap();
    project.define(PRIVATE);
    refused(project.run_with(&flows(&["feed"], &[])), "FLOW_NAME_TAKEN", &["flow feed was named changes once"]);
    // Dropped, what it gave is recomputed without it.
    let from = PRIVATE.find("CREATE FLOW changes").unwrap();
    let to = PRIVATE.find("CREATE FLOW backfill").unwrap();
    project.define(&format!("{}{}", &PRIVATE[..from], &PRIVATE[to..]));
    refused(project.run(2), "FLOW_GONE", &["flow feed", "events is recomputed without it"]);
    project.run_with(&flows(&["feed"], &[])).unwrap();
    assert_rows("dropped", &values(&project), &[json!({"v": "old"})]);
    assert!(!project.run(2).unwrap().changed());
    project.assert_clean("dropped");
}

#[test]
fn rows_of_a_bronze_table_stay_when_their_flow_is_dropped() {
    let table = |flow: &str, folder: &str| {
        format!(
            "CREATE STREAMING TABLE raw;
             CREATE FLOW {flow} AS INSERT INTO raw BY NAME
               SELECT * FROM STREAM read_files('landing/{folder}', format => 'json', schema => 'id BIGINT');"
        )
    };
    let project = Project::new(&table("first", "one"));
    project.land("one", "a", &[json!({"id": 1})]);
    project.land("two", "a", &[json!({"id": 2})]);
    project.run(1).unwrap();
    project.define(&table("second", "two"));
    refused(project.run(1), "FLOW_GONE", &["flow first", "new flow second", "its rows stay"]);
    project.run_with(&flows(&["first"], &[])).unwrap();
    assert_rows("both", &project.rows("SELECT * FROM raw"), &[json!({"id": 1}), json!({"id": 2})]);
    project.assert_clean("dropped");
    // The first one comes back, and reads nothing twice.
    project.define(&table("first", "one"));
    project.land("one", "b", &[json!({"id": 3})]);
    project.run_with(&flows(&["second"], &[])).unwrap();
    assert_rows("back", &project.rows("SELECT * FROM raw"), &[1, 2, 3].map(|id| json!({"id": id})));
}

#[test]
fn rows_do_not_get_lost_when_a_bronze_table_gets_a_second_flow() {
    let flow = |name: &str| {
        format!(
            "CREATE FLOW {name} AS INSERT INTO raw BY NAME
               SELECT * FROM STREAM read_files('landing/{name}', format => 'json', schema => 'id BIGINT');"
        )
    };
    let project = Project::new(&format!("CREATE STREAMING TABLE raw; {}", flow("one")));
    project.land("one", "a", &[json!({"id": 1})]);
    project.land("one", "b", &[json!({"id": 2})]);
    project.run(1).unwrap();
    let both = format!("CREATE STREAMING TABLE raw; {} {}", flow("one"), flow("two"));
    project.define(&both);
    project.land("two", "a", &[json!({"id": 3})]);
    let parts = ["what flow one has read is in main.default.raw", "--full-refresh main.default.raw"];
    refused(project.run(1), "SOURCE_MODE_CHANGED", &parts);
    fs::remove_file(project.path("landing/one/a.json")).unwrap();
    let parts = ["replay of one", "holds 2 rows, and 1 of them are outside no more"];
    refused(project.run_with(&select(&[], &["raw"])), "LOSS_NOT_ACCEPTED", &parts);
    assert_eq!(project.rows("SELECT id FROM raw").len(), 2);
    project.land("one", "a", &[json!({"id": 1})]);
    project.run_with(&select(&[], &["raw"])).unwrap();
    assert_rows("both", &project.rows("SELECT * FROM raw"), &[1, 2, 3].map(|id| json!({"id": id})));
    project.assert_clean("two flows");
    // And back to one.
    project.define(&format!("CREATE STREAMING TABLE raw; {}", flow("one")));
    refused(project.run_with(&flows(&["two"], &[])), "SOURCE_MODE_CHANGED", &["replay of one"]);
    let mut options = accepting(select(&[], &["raw"]));
    options.flows = flows(&["two"], &[]).flows;
    project.run_with(&options).unwrap();
    assert_rows("one", &project.rows("SELECT * FROM raw"), &[1, 2].map(|id| json!({"id": id})));
    project.assert_clean("one flow");
}

/// Lets every step of the storage fail from a given one on, as if the process were gone.
#[derive(Debug)]
struct Dies {
    left: AtomicUsize,
}

impl Faults for Dies {
    fn before(&self, step: Step<'_>) -> Fate {
        let lives = match step.changes() {
            true => self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok(),
            false => self.left.load(Ordering::SeqCst) > 0,
        };
        if lives { Fate::Happens } else { Fate::Fails(io::Error::other("the process is gone")) }
    }

    fn after(&self, _: Step<'_>) {}
}

/// Runs on a storage that dies after so many steps, and gives the number of steps that there were.
fn run_and_die(project: &Project, mut options: RunOptions, after: usize) -> (usize, Result<RunReport>) {
    let dies = Arc::new(Dies { left: AtomicUsize::new(usize::MAX) });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let storage = project.path("lakehouse");
    options.lake = Some(runtime.block_on(Lake::open_watched(storage.to_str().unwrap(), dies.clone())).unwrap());
    dies.left.store(after, Ordering::SeqCst);
    let run = project.run_with(&options);
    (after - dies.left.load(Ordering::SeqCst), run)
}

/// Calls `judge` after a run that died at a step, for steps all over the run, each time on the same tables.
fn at_crash_points(project: &Project, options: &RunOptions, points: usize, judge: impl Fn(&str)) {
    let (lakehouse, kept) = (project.path("lakehouse"), project.path("kept"));
    copy_folder(&lakehouse, &kept);
    let (steps, run) = run_and_die(project, options.clone(), usize::MAX);
    run.unwrap();
    assert!(steps > points, "{steps} steps");
    for point in 0..points {
        fs::remove_dir_all(&lakehouse).unwrap();
        copy_folder(&kept, &lakehouse);
        let after = point * steps / points;
        let (_, run) = run_and_die(project, options.clone(), after);
        assert!(run.is_err_and(|e| e.fault().exit_code() == 3), "step {after} of {steps}");
        judge(&format!("died at step {after} of {steps}"));
    }
}

#[test]
fn a_refresh_that_dies_anywhere_is_finished_or_undone() {
    let project = landed(SQL);
    let old = contents(&project);
    project.land("raw", "b", &[row(1, 2, 60), row(3, 2, 8), row(4, 1, 4)]);
    project.land("raw", "c", &[row(3, 9, 9)]);
    let fresh = Project::new(SQL);
    copy_folder(&project.path("landing"), &fresh.path("landing"));
    fresh.run(1).unwrap();
    let new = contents(&fresh);
    let (undone, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    at_crash_points(&project, &accepting(select(&[], &["raw"])), 12, |context| {
        // A run in which raw has no part: it only finishes.
        project.run_with(&select(&["known"], &[])).unwrap_or_else(|e| panic!("{context}: {e}"));
        let now = contents(&project);
        assert!(now == old || now == new, "{context}: {now:#?}");
        if now == old { &undone } else { &finished }.fetch_add(1, Ordering::SeqCst);
        project.assert_clean(context);
        project.run_with(&accepting(select(&[], &["raw"]))).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(contents(&project), new, "{context}, again");
        project.assert_clean(context);
    });
    let counts = (undone.into_inner(), finished.into_inner());
    assert!(counts.0 > 1 && counts.1 > 1, "{counts:?}");
}

#[test]
fn an_epoch_that_dies_anywhere_is_finished_under_definitions_that_were_edited_meanwhile() {
    let edited = SQL
        .replace("amount < 100", "amount < 7")
        .replace("SELECT r.*, k", "SELECT r.id, r.s, r.amount * 2 AS amount, k")
        .replace("KEYS (id)", "KEYS (id, amount)");
    let project = landed(SQL);
    project.land("raw", "c", &[row(3, 9, 9), row(4, 2, 3), row(2, 2, 2)]);
    project.land("known", "b", &[json!({"id": 4})]);
    let fresh = Project::new(&edited);
    copy_folder(&project.path("landing"), &fresh.path("landing"));
    fresh.run(1).unwrap();
    let expected = contents(&fresh);
    at_crash_points(&project, &RunOptions { workers: 2, ..RunOptions::default() }, 12, |context| {
        project.define(&edited);
        project.run(2).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(contents(&project), expected, "{context}");
        project.assert_clean(context);
        assert!(project.recomputed().is_empty(), "{context}");
        project.define(SQL);
    });
}

/// Replaces a file with another one as soon as the first epoch is complete.
fn replacing(project: &Project, file: &'static str, mut options: RunOptions) -> RunOptions {
    let (path, first) = (project.path(file), AtomicUsize::new(0));
    options.on_epoch = Some(Arc::new(move |_| {
        if first.fetch_add(1, Ordering::SeqCst) == 0 {
            fs::write(&path, format!("{}\n", row(77, 1, 1))).unwrap();
        }
    }));
    options
}

#[test]
fn a_flow_is_dropped_or_renamed_once_also_by_a_run_that_begins_again() {
    let defined = |flows: &[&str]| {
        let read = "SELECT * FROM STREAM read_files('landing/known', format => 'json', schema => 'id BIGINT')";
        let flow = |name: &&str| format!("CREATE FLOW {name} AS INSERT INTO extra BY NAME {read};\n");
        format!("CREATE STREAMING TABLE extra; {} {SQL}", flows.iter().map(flow).collect::<String>())
    };
    let project = landed(&defined(&["one", "two", "four"]));
    project.define(&defined(&["three", "four"]));
    project.land("raw", "c", &[row(5, 1, 1)]);
    project.land("raw", "d", &[row(6, 1, 1)]);
    let options = replacing(&project, "landing/raw/d.json", flows(&["one"], &[("two", "three")]));
    let report = project.run_with(&options).unwrap();
    assert_eq!(report.epochs.len(), 2, "{report:?}");
    assert_eq!(project.rows("SELECT id FROM raw WHERE id > 4"), [json!({"id": 5}), json!({"id": 77})]);
    assert!(!project.run(1).unwrap().changed());
}

#[test]
fn a_full_refresh_that_fails_later_does_not_begin_a_second_time() {
    let sql = SQL.replace("'id BIGINT');", "'id BIGINT', maxFilesPerTrigger => 1);");
    let project = landed(&sql);
    project.land("known", "b", &[json!({"id": 4})]);
    project.land("known", "c", &[json!({"id": 2})]);
    let options = replacing(&project, "landing/known/c.json", select(&["known", "judged", "history"], &["raw"]));
    let before = project.versions();
    let error = project.run_with(&options).unwrap_err();
    assert_eq!(error.code(), "SOURCE_FILE_CHANGED", "{error}");
    let commits = project.versions()["main/default/raw"] - before["main/default/raw"];
    assert_eq!(commits, 1, "it was refreshed more than once");
    project.run(2).unwrap();
    project.assert_clean("after it");
}
