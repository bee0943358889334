//! Runs beside and after one another on one storage, with the real binary: nothing is lost, nothing is there twice.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use silverflow::lake::faults::{Fate, Faults, Step};
use silverflow::runtime::{RunOptions, Selection};

use crate::support::{Dice, Project, assert_rows};

pub(crate) const SQL: &str = "
CREATE STREAMING TABLE raw (
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION QUARANTINE
) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, s BIGINT, amount BIGINT');
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(raw) KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s)
  STORED AS SCD TYPE 2;
CREATE STREAMING TABLE newest;
CREATE FLOW last AS AUTO CDC INTO newest FROM STREAM(raw) KEYS (id) SEQUENCE BY s COLUMNS * EXCEPT (s)
  STORED AS SCD TYPE 1;
";
const TABLES: [&str; 4] = ["raw", "raw_quarantine", "history", "newest"];
/// Longer than anything here takes, for conditions that never come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A run of the real binary that goes on by itself.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn start(project: &Project, arguments: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_silverflow"));
        command.args(arguments).current_dir(project.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { child: command.spawn().unwrap() }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Exit code, and what was printed.
    pub(crate) fn end(mut self) -> (i32, String) {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), text)
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

/// Files of events; one event in nine belongs into quarantine.
fn land(project: &Project, dice: &mut Dice, files: std::ops::Range<usize>) {
    for file in files {
        let rows: Vec<Value> =
            (0..20).map(|row| json!({"id": dice.below(15), "s": file * 100 + row, "amount": dice.below(9)})).collect();
        project.land("raw", &format!("{file:03}"), &rows);
    }
}

/// The same input, run by one that nobody disturbed.
#[track_caller]
pub(crate) fn assert_undisturbed(project: &Project, context: &str) {
    assert_as_defined(project, SQL, context);
}

#[track_caller]
fn assert_as_defined(project: &Project, sql: &str, context: &str) {
    let other = Project::new(sql);
    crate::support::copy_folder(&project.path("landing"), &other.path("landing"));
    other.run(1).unwrap();
    for table in TABLES {
        let sql = format!("SELECT * FROM {table}");
        assert_rows(&format!("{context}: {table}"), &project.rows(&sql), &other.rows(&sql));
    }
}

#[test]
fn a_second_run_says_who_owns_the_storage() {
    static GATE: (Mutex<u8>, Condvar) = (Mutex::new(0), Condvar::new());
    fn move_to(step: u8) {
        *GATE.0.lock().unwrap() = step;
        GATE.1.notify_all();
    }
    fn wait_for(step: u8) {
        let gate = GATE.0.lock().unwrap();
        drop(GATE.1.wait_timeout_while(gate, PATIENCE, |at| *at < step).unwrap());
    }
    let project = Project::new(SQL);
    land(&project, &mut Dice::new(1), 0..3);
    std::thread::scope(|scope| {
        let hold: fn(usize, u64) = |_, _| {
            move_to(1);
            wait_for(2);
        };
        let project = &project;
        let first = scope.spawn(move || {
            project.run_with(&RunOptions { workers: 1, before_epoch: Some(hold), ..RunOptions::default() })
        });
        wait_for(1);
        let (code, text) = Running::start(project, &["run"]).end();
        let query = project.query("SELECT COUNT(*) AS n FROM raw").map(|rows| rows.len());
        move_to(2);
        assert_eq!(code, 3, "{text}");
        for part in ["STORAGE_LOCKED", &format!("process {}", std::process::id()), "since 20", "help:"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert_eq!(query.unwrap(), 1, "queries need no lock");
        first.join().unwrap().unwrap();
    });
    assert_undisturbed(&project, "after the lock");
    assert_eq!(fs::read_dir(project.path("lakehouse/_silverflow/runs")).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn of_runs_that_start_at_once_one_runs() {
    for round in 0..3 {
        let project = Project::new(SQL);
        land(&project, &mut Dice::new(round), 0..5);
        let all: Vec<Running> = (0..3).map(|_| Running::start(&project, &["run", "--workers", "1"])).collect();
        let ends: Vec<(i32, String)> = all.into_iter().map(Running::end).collect();
        for (code, text) in &ends {
            assert!(*code == 0 || *code == 3 && text.contains("STORAGE_LOCKED"), "{code}: {text}");
        }
        assert!(ends.iter().any(|(code, _)| *code == 0), "{ends:?}");
        assert_undisturbed(&project, &format!("round {round}"));
    }
}

#[test]
fn a_run_that_was_killed_is_followed_at_once() {
    let project = Project::new(SQL);
    let mut dice = Dice::new(5);
    for round in 0..4 {
        land(&project, &mut dice, round * 3..round * 3 + 3);
        let before = files_below(&project.path("lakehouse"));
        let run = Running::start(&project, &["run", "--workers", "2"]);
        let more = 2 + dice.below(12);
        wait_until("the run writes", || files_below(&project.path("lakehouse")) >= before + more);
        run.signal("KILL");
        run.end();
        let (code, text) = Running::start(&project, &["run", "--workers", "1"]).end();
        assert_eq!(code, 0, "{text}");
        assert_undisturbed(&project, &format!("round {round}"));
    }
}

/// A run is stopped in the middle, taken over, and wakes up.
#[test]
fn a_run_that_wakes_up_after_it_was_taken_over_commits_nothing() {
    let mut fenced = 0;
    for round in 0..5 {
        let project = Project::new(SQL);
        let mut dice = Dice::new(round);
        land(&project, &mut dice, 0..4);
        project.run(1).unwrap();
        land(&project, &mut dice, 4..8);
        let before = files_below(&project.path("lakehouse"));
        let arguments = ["run", "--workers", "2", "--lock-timeout", "600ms"];
        let zombie = Running::start(&project, &arguments);
        let more = 2 + 2 * round as usize;
        wait_until("the run writes", || files_below(&project.path("lakehouse")) >= before + more);
        zombie.signal("STOP");
        let (mut code, mut text) = (3, String::new());
        wait_until("the run is taken over", || {
            (code, text) = Running::start(&project, &arguments).end();
            code != 3 || !text.contains("STORAGE_LOCKED")
        });
        assert_eq!(code, 0, "{text}");
        let versions = project.versions();
        assert_undisturbed(&project, &format!("round {round}, taken over"));
        zombie.signal("CONT");
        let (code, late) = zombie.end();
        // It may have been stopped before it had the storage, or when all was done.
        let missed = late.contains("nothing new") || text.contains("nothing new");
        assert!(code == 3 && late.contains("FENCED") || code == 0 && missed, "{code}: {late}\n{text}");
        fenced += usize::from(code == 3);
        assert!(code == 0 || text.contains("has given no sign of life"), "{text}");
        assert_eq!(project.versions(), versions, "round {round}: {late}");
        assert_undisturbed(&project, &format!("round {round}, woken up"));
        land(&project, &mut dice, 8..9);
        assert!(project.run(1).unwrap().changed());
        assert_undisturbed(&project, &format!("round {round}, afterwards"));
    }
    assert!(fenced > 0, "no run was stopped in the middle");
}

/// Where a run that is about to write its first commit is held until another one writes to the same tables.
#[derive(Debug, Default)]
struct Meeting {
    step: Mutex<u8>,
    moved: Condvar,
}

impl Meeting {
    fn at(&self) -> u8 {
        *self.step.lock().unwrap()
    }

    fn move_to(&self, step: u8) {
        let mut at = self.step.lock().unwrap();
        *at = (*at).max(step);
        self.moved.notify_all();
    }

    fn wait_for(&self, step: u8) {
        let at = self.step.lock().unwrap();
        assert!(!self.moved.wait_timeout_while(at, PATIENCE, |at| *at < step).unwrap().1.timed_out(), "step {step}");
    }
}

fn enters_a_table(step: Step<'_>) -> bool {
    matches!(step, Step::Link(_, to) if to.parent().is_some_and(|folder| folder.ends_with("_delta_log")))
}

/// The one who is held.
#[derive(Debug)]
struct Late(Arc<Meeting>);

impl Faults for Late {
    fn before(&self, step: Step<'_>) -> Fate {
        if enters_a_table(step) && self.0.at() == 0 {
            self.0.move_to(1);
            self.0.wait_for(2);
        }
        Fate::Happens
    }

    fn after(&self, step: Step<'_>) {
        if enters_a_table(step) {
            self.0.move_to(3);
        }
    }
}

/// The one who comes after.
#[derive(Debug)]
struct Successor(Arc<Meeting>);

impl Faults for Successor {
    fn before(&self, step: Step<'_>) -> Fate {
        if enters_a_table(step) {
            self.0.move_to(2);
            self.0.wait_for(3);
        }
        Fate::Happens
    }

    fn after(&self, _: Step<'_>) {}
}

/// Its successor has looked at the tables, and would have found nothing of the epoch.
#[test]
fn the_commit_of_a_full_refresh_that_lands_after_it_was_taken_over_is_not_passed_over() {
    let project = Project::new(SQL);
    land(&project, &mut Dice::new(3), 0..4);
    project.run(1).unwrap();
    fs::remove_file(project.path("landing/raw/000.json")).unwrap();
    let meeting = Arc::new(Meeting::default());
    let selection = Selection { full_refresh_all: true, accept_loss: true, ..Selection::default() };
    std::thread::scope(|scope| {
        let lake = Some(project.watched(Arc::new(Late(Arc::clone(&meeting)))));
        let options = RunOptions { selection, lake, ..RunOptions::default() };
        let held = &project;
        let zombie = scope.spawn(move || held.run_with(&options));
        meeting.wait_for(1);
        // As after a stop that its own signs of life know nothing of.
        for sign in fs::read_dir(project.path("lakehouse/_silverflow/runs")).unwrap() {
            fs::remove_file(sign.unwrap().path()).unwrap();
        }
        let lake = Some(project.watched(Arc::new(Successor(Arc::clone(&meeting)))));
        project.run_with(&RunOptions { lake, ..RunOptions::default() }).unwrap();
        assert_eq!(zombie.join().unwrap().unwrap_err().code(), "FENCED");
    });
    assert_undisturbed(&project, "the refresh is finished");
    project.assert_clean("the refresh is finished");
    assert!(!project.run(1).unwrap().changed());
}

/// A run dies in the middle of an epoch; the next one does not know some of its tables, the one after that does again.
#[test]
fn tables_that_are_not_there_when_an_epoch_is_finished_have_all_of_it_when_they_are_back() {
    let whole = format!(
        "{SQL} CREATE STREAMING TABLE extra AS SELECT * FROM STREAM read_files('landing/extra', format => 'json',
           schema => 'id BIGINT');
         CREATE STREAMING TABLE doubled (CONSTRAINT small EXPECT (twice < 25) ON VIOLATION QUARANTINE)
           AS SELECT id * 2 AS twice FROM STREAM(extra);"
    );
    let tables = [TABLES.as_slice(), &["extra", "doubled", "doubled_quarantine"]].concat();
    let project = Project::new(&whole);
    let mut dice = Dice::new(11);
    for round in 0..2 {
        land(&project, &mut dice, round * 2..round * 2 + 2);
        let rows: Vec<Value> = (0..9).map(|row| json!({"id": round * 9 + row})).collect();
        project.land("extra", &format!("{round}"), &rows);
        project.run(1).unwrap();
    }
    let contents = || -> Vec<_> { tables.iter().map(|t| project.rows(&format!("SELECT * FROM {t}"))).collect() };
    let expected = contents();
    let saved = project.path("saved");
    crate::support::copy_folder(&project.path("lakehouse"), &saved);
    for raw in [false, true] {
        // What is derived commits last.
        for others in 0..if raw { 4 } else { 2 } {
            fs::remove_dir_all(project.path("lakehouse")).unwrap();
            crate::support::copy_folder(&saved, &project.path("lakehouse"));
            let log = project.path("lakehouse/_silverflow/epochs");
            fs::remove_file(fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).max().unwrap()).unwrap();
            let lacks = TABLES.iter().skip(if raw { 2 } else { 0 }).chain(&tables[4 + others..]);
            lacks.for_each(|table| uncommit(&project, table));
            for (sql, context) in [(SQL, "without"), (&whole, "with"), (&whole, "again")] {
                project.define(sql);
                let report = project.run(1).unwrap_or_else(|e| panic!("{raw}, {others}, {context}: {e}"));
                assert!(context != "again" || !report.changed());
            }
            for ((table, expected), actual) in tables.iter().zip(&expected).zip(contents()) {
                assert_rows(&format!("raw {raw}, {others} of the others: {table}"), &actual, expected);
            }
        }
    }
}

/// Moves all there is to another folder.
fn moved(project: &Project) -> Project {
    let other = Project::new(SQL);
    for folder in ["landing", "lakehouse"] {
        let _ = fs::remove_dir(other.path(folder));
        fs::rename(project.path(folder), other.path(folder)).unwrap();
    }
    other
}

#[test]
fn a_project_that_is_moved_reads_nothing_twice() {
    let project = Project::new(SQL);
    let mut dice = Dice::new(4);
    land(&project, &mut dice, 0..3);
    project.run(1).unwrap();
    for record in fs::read_dir(project.path("lakehouse/_silverflow/epochs")).unwrap() {
        let record = fs::read_to_string(record.unwrap().path()).unwrap();
        assert!(!record.contains(&project.path("landing").display().to_string()), "{record}");
    }
    let project = moved(&project);
    assert!(!project.run(1).unwrap().changed());
    land(&project, &mut dice, 3..5);
    assert_eq!(project.run(1).unwrap().files, 2);
    // The same with an epoch that has only begun.
    let log = project.path("lakehouse/_silverflow/epochs");
    fs::remove_file(fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).max().unwrap()).unwrap();
    TABLES.iter().for_each(|table| uncommit(&project, table));
    let project = moved(&project);
    let epochs = project.run(1).unwrap().epochs;
    assert_eq!(epochs, [2], "it was not finished");
    assert_undisturbed(&project, "moved");
}

/// Takes back the last commit of a table.
fn uncommit(project: &Project, table: &str) {
    let log = project.path("lakehouse/main/default").join(table).join("_delta_log");
    let last = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    fs::remove_file(last).unwrap();
}

/// A run died when some of the tables had the epoch and the others had not. Where a replay point was stored whole, its
/// files may be gone.
#[test]
fn an_epoch_that_is_in_some_tables_gets_into_all() {
    let edited = SQL.replace("amount > 0", "amount > 3");
    // raw, raw_quarantine, history, newest: replay points first, and of these the quarantine.
    let states = [[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1], [1, 1, 1, 1]];
    let project = Project::new(SQL);
    let mut dice = Dice::new(9);
    land(&project, &mut dice, 0..4);
    project.run(1).unwrap();
    land(&project, &mut dice, 4..8);
    project.run(1).unwrap();
    let saved = project.path("saved");
    crate::support::copy_folder(&project.path("lakehouse"), &saved);
    for state in states {
        for (sql, keep) in [(SQL, true), (&edited, true), (SQL, state[..2] != [1, 1])] {
            project.define(sql);
            fs::remove_dir_all(project.path("lakehouse")).unwrap();
            crate::support::copy_folder(&saved, &project.path("lakehouse"));
            let log = project.path("lakehouse/_silverflow/epochs");
            let end = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
            assert!(fs::read_to_string(&end).unwrap().contains("\"complete\""));
            fs::remove_file(end).unwrap();
            for (table, _) in TABLES.iter().zip(state).filter(|(_, there)| *there == 0) {
                uncommit(&project, table);
            }
            let landing = project.path("landing");
            let aside = project.path("aside");
            if !keep {
                fs::rename(&landing, &aside).unwrap();
            }
            let report = project.run(1).unwrap();
            assert!(state != [1, 1, 1, 1] || sql != SQL || !report.changed(), "committed twice: {report:?}");
            if !keep {
                fs::rename(&aside, &landing).unwrap();
            }
            let context = format!("{state:?}, edited {}, landing kept {keep}", sql != SQL);
            assert_as_defined(&project, sql, &context);
            assert!(!project.run(1).unwrap().changed(), "{context}: everything was read");
        }
    }
}
