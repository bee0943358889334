//! Runs that go on, with the real binary: what lands is read, signals end them, failures outside pass.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::runs::{Running, SQL, assert_undisturbed, wait_until};
use crate::support::{Project, assert_rows};

/// A continuous run, and what it has printed so far.
struct Following {
    child: Child,
    epochs: Arc<Mutex<Vec<Value>>>,
    errors: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Following {
    fn start(project: &Project, more: &[&str]) -> Following {
        let mut command = Command::new(env!("CARGO_BIN_EXE_silverflow"));
        command.args(["run", "--continuous", "--json", "--workers", "2"]).args(more);
        if !more.contains(&"--interval") {
            command.args(["--interval", "20ms"]);
        }
        command.current_dir(project.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (epochs, errors): (Arc<Mutex<Vec<Value>>>, Arc<Mutex<String>>) = Default::default();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut err = child.stderr.take().unwrap();
        let readers = vec![
            {
                let epochs = Arc::clone(&epochs);
                std::thread::spawn(move || {
                    for line in out.lines() {
                        epochs.lock().unwrap().push(serde_json::from_str(&line.unwrap()).unwrap());
                    }
                })
            },
            {
                let errors = Arc::clone(&errors);
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = err.read(&mut buffer) {
                        errors.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..n]));
                    }
                })
            },
        ];
        Following { child, epochs, errors, readers }
    }

    fn printed(&self) -> String {
        format!("{:?}\n{}", self.epochs.lock().unwrap(), self.errors.lock().unwrap())
    }

    fn files(&self) -> u64 {
        self.epochs.lock().unwrap().iter().filter_map(|epoch| epoch["files"].as_u64()).sum()
    }

    #[track_caller]
    fn until_files(&mut self, files: u64) {
        wait_until(&format!("{files} files are read"), || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.printed());
            self.files() >= files
        });
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        for reader in std::mem::take(&mut self.readers) {
            reader.join().unwrap();
        }
        (code, self.printed())
    }
}

fn row(id: usize, s: usize) -> Value {
    json!({"id": id % 7, "s": s, "amount": s % 5})
}

/// As others land files: written aside, then moved into place.
fn land(project: &Project, file: usize) {
    let text: String = (0..10).map(|i| format!("{}\n", row(i, file * 10 + i))).collect();
    let aside = project.path(format!("{file}.json"));
    fs::write(&aside, text).unwrap();
    fs::rename(aside, project.path(format!("landing/raw/{file:03}.json"))).unwrap();
}

fn project() -> Project {
    let project = Project::new(SQL);
    fs::create_dir_all(project.path("landing/raw")).unwrap();
    project
}

#[test]
fn files_are_read_as_they_land_and_a_signal_ends_the_run() {
    for signal in ["TERM", "INT"] {
        let project = project();
        land(&project, 0);
        let mut run = Following::start(&project, &[]);
        for file in 1..5 {
            run.until_files(file as u64);
            land(&project, file);
        }
        run.until_files(5);
        let (code, text) = Running::start(&project, &["run"]).end();
        assert!(code == 3 && text.contains("STORAGE_LOCKED"), "{code}: {text}");
        run.signal(signal);
        let (code, text) = run.end();
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("stopping"), "{text}");
        assert_undisturbed(&project, signal);
        assert_eq!(fs::read_dir(project.path("lakehouse/_silverflow/runs")).unwrap().count(), 0);
        assert!(!project.run(1).unwrap().changed());
    }
}

/// However little it was: the next run does not read back what the tables hold.
#[test]
fn a_run_that_is_told_to_end_leaves_a_checkpoint() {
    for signal in ["TERM", "INT"] {
        let project = project();
        land(&project, 0);
        let mut run = Following::start(&project, &[]);
        run.until_files(1);
        run.signal(signal);
        let (code, text) = run.end();
        assert_eq!(code, 0, "{text}");
        land(&project, 1);
        let report = project.run(1).unwrap();
        assert_eq!((report.checkpoint, report.replayed), (Some(1), 0), "{signal}");
        assert_undisturbed(&project, signal);
    }
}

#[test]
fn a_file_that_is_still_being_written_waits() {
    let project = project();
    let mut run = Following::start(&project, &[]);
    let mut file = fs::File::create(project.path("landing/raw/slow.json")).unwrap();
    let mut rows = 0;
    let mut more = |file: &mut fs::File| {
        // In halves, so that what is there is no whole record most of the time.
        let text = format!("{}\n", row(rows, 1000 + rows));
        let (first, second) = text.split_at(9);
        file.write_all(first.as_bytes()).unwrap();
        std::thread::park_timeout(Duration::from_millis(20));
        file.write_all(second.as_bytes()).unwrap();
        rows += 1;
    };
    for other in 0..3 {
        land(&project, other);
        while run.files() <= other as u64 {
            assert!(run.child.try_wait().unwrap().is_none(), "it ended: {}", run.printed());
            more(&mut file);
        }
    }
    assert_eq!(run.files(), 3, "the slow file was read too early");
    more(&mut file);
    drop(file);
    run.until_files(4);
    run.signal("TERM");
    assert_eq!(run.end().0, 0);
    assert_undisturbed(&project, "the slow file");
}

#[test]
fn a_violated_contract_ends_a_continuous_run() {
    let project = project();
    project.define(
        &SQL.replace("EXPECT (amount > 0) ON VIOLATION QUARANTINE", "EXPECT (s < 15) ON VIOLATION FAIL UPDATE"),
    );
    land(&project, 0);
    let mut run = Following::start(&project, &[]);
    run.until_files(1);
    land(&project, 1);
    let (code, text) = run.end();
    assert!(code == 1 && text.contains("positive"), "{code}: {text}");
    assert_eq!(project.rows("SELECT id FROM raw").len(), 10);
}

#[test]
fn a_storage_that_is_gone_for_a_while_is_tried_again() {
    let project = project();
    land(&project, 0);
    let mut run = Following::start(&project, &[]);
    run.until_files(1);
    let (log, aside) = (project.path("lakehouse/_silverflow/epochs"), project.path("aside"));
    fs::rename(&log, &aside).unwrap();
    fs::write(&log, "not a folder").unwrap();
    land(&project, 1);
    wait_until("it tries again", || run.printed().contains("trying again"));
    fs::remove_file(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    run.until_files(2);
    run.signal("TERM");
    let (code, text) = run.end();
    assert!(code == 0 && text.contains("STORAGE_FAILED"), "{code}: {text}");
    assert_undisturbed(&project, "after the failure");
}

#[test]
fn an_idle_run_that_was_taken_over_ends() {
    let project = project();
    land(&project, 0);
    let mut run = Following::start(&project, &["--lock-timeout", "600ms"]);
    run.until_files(1);
    run.signal("STOP");
    land(&project, 1);
    wait_until("the run is taken over", || {
        let (code, text) = Running::start(&project, &["run", "--lock-timeout", "600ms"]).end();
        assert!(code == 0 || text.contains("STORAGE_LOCKED"), "{code}: {text}");
        code == 0
    });
    let versions = project.versions();
    run.signal("CONT");
    let (code, text) = run.end();
    assert!(code == 3 && text.contains("FENCED"), "{code}: {text}");
    assert_eq!(project.versions(), versions);
    assert_undisturbed(&project, "taken over");
}

/// The second signal does not wait for anything.
#[test]
fn two_signals_end_a_run_at_once_and_the_next_one_goes_on() {
    let project = project();
    (0..20).for_each(|file| land(&project, file));
    let run = Following::start(&project, &[]);
    wait_until("an epoch begins", || run.errors.lock().unwrap().contains("reading"));
    run.signal("INT");
    run.signal("INT");
    let (code, text) = run.end();
    assert!([0, 130].contains(&code), "{code}: {text}");
    project.run(1).unwrap();
    assert_undisturbed(&project, "two signals");
}

/// Nothing lands, and yet there is an epoch when a row's moment comes.
#[test]
fn what_falls_due_comes_without_input() {
    let project = Project::new(
        "CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
           schema => 'id BIGINT, at TIMESTAMP');
         CREATE STREAMING TABLE due (CONSTRAINT past EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE)
           AS SELECT * FROM STREAM(raw);",
    );
    let at = chrono::Utc::now() + chrono::TimeDelta::seconds(3);
    project.land(
        "raw",
        "a",
        &[json!({"id": 1, "at": at.to_rfc3339()}), json!({"id": 2, "at": "2020-01-01T00:00:00Z"})],
    );
    let mut run = Following::start(&project, &["--interval", "10m"]);
    run.until_files(1);
    wait_until("the moment comes", || run.epochs.lock().unwrap().len() == 2);
    assert!(chrono::Utc::now() >= at);
    assert_eq!(project.rows("SELECT id FROM due").len(), 2);
    run.signal("TERM");
    assert_eq!(run.end().0, 0);
}

#[test]
fn new_versions_of_a_table_of_others_are_read_and_a_once_flow_runs_once() {
    let upstream = project();
    land(&upstream, 0);
    upstream.run(1).unwrap();
    let project = Project::new(
        "CREATE STREAMING TABLE copy AS SELECT id, s FROM STREAM(up);
         CREATE STREAMING TABLE filled;
         CREATE FLOW fill AS INSERT INTO ONCE filled BY NAME
           SELECT * FROM read_files('landing/old', format => 'json', schema => 'id BIGINT');",
    );
    let spec = fs::read_to_string(project.spec()).unwrap();
    let location = upstream.path("lakehouse/main/default/raw");
    let spec = format!("{spec}configuration:\n  silverflow.table.up: {}\n", location.display());
    fs::write(project.spec(), spec).unwrap();
    project.land("old", "a", &[json!({"id": 1})]);
    let run = Following::start(&project, &[]);
    wait_until("the backfill is read", || run.files() == 1);
    let until = |rows| {
        wait_until("the table is read", || {
            run.epochs.lock().unwrap().iter().map(|epoch| epoch["tables"][0]["read"].as_u64().unwrap()).sum::<u64>()
                >= rows
        });
    };
    for (file, rows) in [(1, 8), (2, 16), (3, 24)] {
        until(rows);
        land(&upstream, file);
        project.land("old", &format!("b{file}"), &[json!({"id": 2})]);
        upstream.run(1).unwrap();
    }
    until(32);
    run.signal("TERM");
    assert_eq!(run.end().0, 0);
    assert_eq!(project.rows("SELECT * FROM filled"), [json!({"id": 1})]);
}

#[test]
fn a_run_that_goes_on_gives_its_tables_the_columns_that_files_bring() {
    let project =
        Project::new("CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t', format => 'json');");
    project.land("t", "a", &[json!({"id": 1})]);
    let mut following = Following::start(&project, &[]);
    following.until_files(1);
    project.land_whole("t", "b", &[json!({"id": 2, "name": "new"})]);
    following.until_files(2);
    project.land_whole("t", "c", &[json!({"id": 3, "name": "old", "more": {"x": 1}})]);
    following.until_files(3);
    following.signal("TERM");
    let (code, printed) = following.end();
    assert_eq!(code, 0, "{printed}");
    let rows = project.rows("SELECT id, name, more.x AS x FROM t");
    let row = |id: i64, name: Value, x: Value| json!({"id": id, "name": name, "x": x});
    let expected =
        [row(1, Value::Null, Value::Null), row(2, json!("new"), Value::Null), row(3, json!("old"), json!(1))];
    assert_rows("grown", &rows, &expected);
    project.assert_clean("grown");
}
