//! Runs in several processes, with the real binary: the same tables in any number of them, whatever is killed or stopped.
//!
//! `SILVERFLOW_KILLS=50` kills more often than the usual few times; the seed stands in every message. `SILVERFLOW_MATRIX=1`
//! runs all recorded cases in 1, 2 and 3 processes of 1 and 2 workers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use silverflow::cluster::{Hosts, Listener, Member, Pulse, Secret};
use silverflow::error::{Error, Fault};
use silverflow::runtime::RunOptions;

use crate::crash::{TABLES, definitions};
use crate::example::{EXAMPLE, assert_same_contents, contents, land_batch, without_feeds};
use crate::kill::land;
use crate::runs::wait_until;
use crate::support::{Dice, Project, copy_folder, difference};

/// A command that goes on, and what it has printed so far.
pub(crate) struct Going {
    child: Child,
    printed: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Going {
    pub(crate) fn start(project: &Project, arguments: &[String], environment: &[(&str, &str)]) -> Going {
        Going::spawn(Command::new(env!("CARGO_BIN_EXE_silverflow")), project, arguments, environment)
    }

    pub(crate) fn spawn(
        mut command: Command,
        project: &Project,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> Going {
        command.args(arguments).current_dir(project.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("SILVERFLOW_SECRET").envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let printed: Arc<Mutex<String>> = Arc::default();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let read = |stream: Box<dyn Read + Send>| {
            let printed = Arc::clone(&printed);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    printed.lock().unwrap().push_str(&format!("{line}\n"));
                }
            })
        };
        let readers = streams.into_iter().map(read).collect();
        Going { child, printed, readers }
    }

    pub(crate) fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn until_printed(&mut self, part: &str) {
        wait_until(part, || {
            assert!(
                self.printed().contains(part) || self.child.try_wait().unwrap().is_none(),
                "it ended: {}",
                self.printed()
            );
            self.printed().contains(part)
        });
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The exit code, and all that was printed.
    pub(crate) fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        for reader in std::mem::take(&mut self.readers) {
            reader.join().unwrap();
        }
        (code, self.printed())
    }

    #[track_caller]
    pub(crate) fn ends_with(self, code: i32, parts: &[&str]) {
        let (ended, text) = self.end();
        assert_eq!(ended, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    /// The processes that it has started and that are there, by their number in the run.
    pub(crate) fn children(&self) -> BTreeMap<usize, u32> {
        let parent = self.child.id().to_string();
        let mut found = BTreeMap::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            if fields.next() == Some("Z") || fields.next() != Some(&parent) {
                continue;
            }
            let Ok(line) = fs::read_to_string(entry.path().join("cmdline")) else { continue };
            let arguments: Vec<&str> = line.split('\0').collect();
            let at = arguments.iter().position(|argument| *argument == "--process");
            found.extend(at.and_then(|at| arguments.get(at + 1)?.parse().ok()).map(|process: usize| (process, pid)));
        }
        found
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status().unwrap();
}

pub(crate) fn strings(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

/// Runs everything that has landed in so many processes.
pub(crate) fn run(project: &Project, processes: usize, workers: usize) -> Result<(), String> {
    run_with(project, processes, workers, &[]).map(drop)
}

/// As [`run`]; gives what was printed.
fn run_with(project: &Project, processes: usize, workers: usize, more: &[&str]) -> Result<String, String> {
    let arguments = ["run", "--processes", &processes.to_string(), "--workers", &workers.to_string()];
    match Going::start(project, &strings(&[&arguments, more].concat()), &[]).end() {
        (0, text) => Ok(text),
        (code, text) => Err(format!("{processes} processes: {code}: {text}")),
    }
}

#[test]
fn processes_do_not_show() {
    let whole = Project::copy_of(EXAMPLE);
    whole.run(1).unwrap();
    let expected = contents(&whole);
    for (processes, workers) in [(2, 1), (3, 2)] {
        let project = Project::copy_of(EXAMPLE);
        run(&project, processes, workers).unwrap();
        assert_same_contents(&format!("{processes} processes of {workers}"), &contents(&project), &expected);
    }
    // Each batch in another number of them, which go on from the state of those before.
    let project = without_feeds();
    let spec = fs::read_to_string(project.spec()).unwrap();
    let always = "configuration:\n  silverflow.checkpoint.rows: \"1\"\n";
    fs::write(project.spec(), spec.replace("configuration:\n", always)).unwrap();
    for (batch, (processes, workers)) in [(2, 1), (3, 2), (1, 1)].into_iter().enumerate() {
        land_batch(&project, batch);
        let text = run_with(&project, processes, workers, &["--json"]).unwrap();
        let report = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok()).unwrap();
        let last = batch as u64;
        assert_eq!(report["checkpoint"], if batch == 0 { Value::Null } else { json!(last) }, "{text}");
    }
    assert_same_contents("batch by batch", &contents(&project), &expected);
    project.assert_clean("batch by batch");
    run_with(&project, 2, 1, &["--full-refresh-all"]).unwrap();
    assert_same_contents("made anew", &contents(&project), &expected);
}

#[test]
fn tables_follow_edited_definitions_and_refreshes_in_several_processes() {
    let project = orders();
    run(&project, 2, 1).unwrap();
    project.define(&definitions(2, "product"));
    land(&project, &mut Dice::new(2), 7);
    run(&project, 3, 1).unwrap();
    assert_as_if_alone(&project, &definitions(2, "product"), "edited");
    run_with(&project, 2, 1, &["--full-refresh", "history"]).unwrap();
    land(&project, &mut Dice::new(4), 8);
    run_with(&project, 2, 1, &["--refresh", "orders"]).unwrap();
    run(&project, 2, 2).unwrap();
    assert_as_if_alone(&project, &definitions(2, "product"), "refreshed");
}

/// Whether everything is to be run in all numbers of processes and workers.
pub(crate) fn all_numbers() -> bool {
    std::env::var_os("SILVERFLOW_MATRIX").is_some()
}

#[test]
fn recorded_cases_in_two_processes() {
    let all = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)];
    let numbers = if all_numbers() { &all[..] } else { &[(2, 2)] };
    for (processes, workers) in numbers {
        crate::golden::check_in_processes(*processes, *workers);
    }
}

/// The report that was printed with `--json`.
#[track_caller]
fn reported(text: &str) -> Value {
    let mut reports = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    reports.next_back().unwrap_or_else(|| panic!("no report in {text}"))
}

/// A history of rows, and texts of which there is each once.
const HISTORY: &str = "
CREATE STREAMING TABLE facts AS SELECT * FROM STREAM read_files(
  'landing/facts', format => 'json', schema => 'k BIGINT, s BIGINT, text STRING');
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(facts) KEYS (k) SEQUENCE BY s COLUMNS * EXCEPT (s)
STORED AS SCD TYPE 2;
CREATE MATERIALIZED VIEW texts AS SELECT DISTINCT text FROM facts;";

#[test]
fn memory_and_scratch_are_those_of_every_process() {
    let project = Project::new(HISTORY);
    let mut dice = Dice::new(12);
    let mut text = || (0..250).map(|_| format!("{:016x}", dice.below(usize::MAX))).collect::<String>();
    for file in 0..8 {
        let fact = |row| json!({"k": file * 1_500 + row, "s": 1, "text": text()});
        project.land("facts", &file.to_string(), &(0..1_500).map(fact).collect::<Vec<_>>());
    }
    let text = run_with(&project, 2, 1, &["--memory", "64MB", "--scratch", "beside", "--json"]).unwrap();
    let report = reported(&text);
    let spilled: Vec<u64> = (0..2).map(|at| report["processes"][at]["spilled_bytes"].as_u64().unwrap()).collect();
    assert!(spilled.iter().all(|bytes| *bytes > 1 << 20), "{spilled:?}");
    assert_eq!(report["spilled_bytes"].as_u64(), Some(spilled.iter().sum()));
    assert!(project.path("beside").is_dir() && !project.path("lakehouse/_silverflow/scratch").exists());
    assert_eq!(project.rows("SELECT COUNT(DISTINCT k) AS n FROM history")[0]["n"], 12_000);
}

#[test]
fn what_each_worker_does_is_told_and_a_key_that_takes_most_of_one_is_named() {
    let project = Project::new(HISTORY);
    // Of the first files two rows in three have one key; of the last one none has more than another.
    let fact = |row: usize, k: usize| json!({"k": k, "s": row, "text": format!("{row}")});
    let mixed = |row: usize| fact(row, if row.is_multiple_of(3) { row } else { 77 });
    for file in 0..2 {
        let rows: Vec<_> = (file * 12_000..(file + 1) * 12_000).map(mixed).collect();
        project.land("facts", &file.to_string(), &rows);
    }
    let text = run_with(&project, 2, 1, &["--json"]).unwrap();
    let report = reported(&text);
    assert_eq!(text.matches("[HOT_KEY]").count(), 1, "{text}");
    let hot = report["hot_keys"].as_array().unwrap();
    assert_eq!(hot.len(), 1, "{hot:?}");
    assert!(hot[0]["table"].as_str().unwrap().ends_with("history") && hot[0]["key"] == "77", "{hot:?}");
    let workers = report["workers"].as_array().unwrap();
    let sum = |name: &str| workers.iter().map(|worker| worker[name].as_u64().unwrap()).sum::<u64>();
    // Each row goes to the history and to the texts.
    assert_eq!((workers.len(), sum("rows_in"), sum("rows")), (2, 24_000, 48_000), "{workers:?}");
    assert!(workers.iter().all(|worker| worker["busy_micros"].as_u64() > Some(0)), "{workers:?}");
    assert_eq!([&workers[0]["process"], &workers[1]["process"]], [&json!(0), &json!(1)]);
    assert!(report["skew"].as_f64() > Some(1.2), "{report}");
    for process in report["processes"].as_array().unwrap() {
        let [sent, received] = ["sent_bytes", "received_bytes"].map(|name| process[name].as_u64().unwrap());
        assert!(sent.min(received) > 100_000, "{process}");
    }
    project.land("facts", "2", &(0..24_000).map(|row| fact(row + 24_000, row)).collect::<Vec<_>>());
    let text = run_with(&project, 2, 1, &["--figures"]).unwrap();
    assert!(text.contains("keyed rows") && text.contains("bytes exchanged a keyed row"), "{text}");
    assert!(!text.to_lowercase().contains("hot"), "{text}");
}

/// Two processes in threads of this one, of which the second calls `before` where its worker begins with an epoch. How the
/// first ended, and the thread of the second.
fn with_hook(project: &Project, before: fn(usize, u64)) -> (Error, std::thread::JoinHandle<Result<(), Error>>) {
    let listeners = [Listener::loopback().unwrap(), Listener::loopback().unwrap()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let second = Duration::from_secs(1);
    let [lead, served] = listeners.map(|listener| {
        let index = addresses.iter().position(|address| *address == listener.address().to_string()).unwrap();
        let member = Member {
            index,
            hosts: Hosts::new(addresses.clone()),
            listener,
            secret: Secret::new("between the threads"),
            start_timeout: Duration::from_secs(60),
            peer_timeout: second,
            pulse: Pulse::new(second),
            say: Arc::new(|_| {}),
        };
        RunOptions { member: Some(Arc::new(member)), ..RunOptions::default() }
    });
    let pipeline = silverflow::project::load(&project.spec()).unwrap().pipeline;
    let served = std::thread::spawn(move || {
        silverflow::runtime::join(&pipeline, &RunOptions { before_epoch: Some(before), ..served })
    });
    (project.run_with(&lead).unwrap_err(), served)
}

#[test]
fn a_worker_that_panics_in_one_process_ends_the_run_in_all() {
    let project = orders();
    let (error, served) = with_hook(&project, |_, _| panic!("as a bug would"));
    assert_eq!(error.fault(), Fault::Internal, "{error}");
    let text = error.to_string();
    assert!(text.contains("a worker panicked: as a bug would") && text.contains("in process 1"), "{text}");
    assert!(served.join().unwrap().is_err());
    run(&project, 2, 1).unwrap();
    assert_undisturbed(&project, "panicked");
}

#[test]
fn a_worker_that_hangs_in_one_process_ends_the_run_within_seconds() {
    static GO_ON: AtomicBool = AtomicBool::new(false);
    let project = orders();
    let begin = Instant::now();
    let (error, served) = with_hook(&project, |_, _| {
        while !GO_ON.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
    assert_eq!(error.code(), "PEER_LOST", "{error}");
    assert!(error.to_string().contains("no sign of life"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    GO_ON.store(true, Ordering::SeqCst);
    assert_eq!(served.join().unwrap().unwrap_err().code(), "PEER_LOST");
    run(&project, 2, 1).unwrap();
    assert_undisturbed(&project, "hung");
}

#[test]
fn rows_that_fail_end_all_processes_with_the_code_of_data_and_are_told_once() {
    let project = Project::new(
        "CREATE STREAMING TABLE t (CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION FAIL UPDATE) AS
         SELECT * FROM STREAM read_files('landing/t', format => 'json', schema => 'id BIGINT, amount BIGINT');",
    );
    for file in 0..3 {
        project.land("t", &format!("{file}"), &[json!({"id": file, "amount": file - 1})]);
    }
    let (code, text) = Going::start(&project, &strings(&["run", "--processes", "3"]), &[]).end();
    assert_eq!(code, 1, "{text}");
    assert_eq!(text.matches("EXPECTATION_VIOLATED").count(), 1, "{text}");
    assert!(!text.contains("lost"), "{text}");
}

#[test]
fn a_mistake_in_the_definitions_is_told_once() {
    let project = Project::new("CREATE STREAMING TABLE t AS SELECT * FORM STREAM read_files('landing/t');");
    let (code, text) = Going::start(&project, &strings(&["run", "--processes", "2"]), &[]).end();
    assert_eq!(code, 2, "{text}");
    assert_eq!(text.matches("PARSE_SYNTAX_ERROR").count(), 1, "{text}");
}

pub(crate) fn orders() -> Project {
    let project = Project::new(&definitions(0, "product, amount"));
    fs::create_dir_all(project.path("landing/products")).unwrap();
    let mut dice = Dice::new(5);
    (0..3).for_each(|file| land(&project, &mut dice, file));
    let products: Vec<_> = (0..4).map(|id| json!({"id": id, "label": "x"})).collect();
    project.land("products", "all", &products);
    let orders: Vec<_> =
        (0..6).map(|id| json!({"id": id, "s": 100, "product": id, "amount": id * 2 - 1, "op": "U"})).collect();
    project.land("orders", "all", &orders);
    project
}

/// The same input, run by one process.
#[track_caller]
pub(crate) fn assert_undisturbed(project: &Project, context: &str) {
    assert_as_if_alone(project, &definitions(0, "product, amount"), context);
}

/// The same input, run by one process under these definitions.
#[track_caller]
fn assert_as_if_alone(project: &Project, sql: &str, context: &str) {
    let other = Project::new(sql);
    copy_folder(&project.path("landing"), &other.path("landing"));
    other.run(2).unwrap();
    for table in TABLES {
        let [actual, expected] = [project, &other].map(|p| p.stored(&format!("main/default/{table}")));
        if let Some(difference) = difference(&actual, &expected) {
            panic!("{context}, {table}: {difference}");
        }
        assert!(!expected.is_empty(), "{table} is empty, which proves nothing");
    }
    project.assert_clean(context);
    assert_eq!(project.epochs_twice(), None, "{context}");
}

/// A continuous run in several processes.
fn follow(project: &Project, processes: usize) -> Going {
    let processes = processes.to_string();
    let arguments = ["run", "--continuous", "--interval", "50ms", "--workers", "1", "--peer-timeout", "1s", "--json"];
    Going::start(project, &strings(&[&arguments[..], &["--processes", &processes]].concat()), &[])
}

/// Whether everything that has landed is in an epoch that is complete.
pub(crate) fn behind(project: &Project) -> bool {
    let history = project.history();
    let [orders, products] = ["orders", "products"].map(|feed| {
        let read = history.seen(&format!("main.default.{feed}")).map_or(0, BTreeMap::len);
        (read, fs::read_dir(project.path("landing").join(feed)).unwrap().count())
    });
    history.open.is_none() && orders.0 == orders.1 && products.0 == products.1
}

fn rounds() -> usize {
    std::env::var("SILVERFLOW_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

#[test]
fn each_process_is_killed_in_turn_while_files_arrive() {
    let seed = 11;
    let project = orders();
    // Checkpoints are under way most of the time.
    let spec = fs::read_to_string(project.spec()).unwrap();
    let always = "configuration:\n  silverflow.checkpoint.rows: \"1\"\n  silverflow.checkpoint.seconds: \"0\"\n";
    fs::write(project.spec(), format!("{spec}{always}")).unwrap();
    let (mut dice, mut feed) = (Dice::new(seed), Dice::new(seed + 1));
    let mut going = follow(&project, 3);
    going.until_printed("\"epochs\"");
    let (mut slowest, mut file) = (Duration::ZERO, 3);
    for round in 0..rounds() {
        let context = format!("seed {seed}, round {round}");
        let mut victims = BTreeMap::new();
        wait_until("three processes are there", || {
            victims = going.children();
            victims.len() == 3
        });
        land(&project, &mut feed, file);
        file += 1;
        // Now and then it is just starting again.
        let moment = Duration::from_millis(dice.below(400) as u64);
        std::thread::park_timeout(moment);
        signal(victims[&(round % 3)], "KILL");
        let begin = Instant::now();
        land(&project, &mut feed, file);
        file += 1;
        wait_until(&format!("{context}: all files are read"), || {
            assert!(going.child.try_wait().unwrap().is_none(), "{context}: it ended: {}", going.printed());
            behind(&project)
        });
        slowest = slowest.max(begin.elapsed());
    }
    going.signal("TERM");
    going.ends_with(0, &["is lost", "starting again"]);
    assert_undisturbed(&project, &format!("seed {seed}"));
    println!("restart at most {slowest:?}");
    assert!(slowest < Duration::from_secs(30), "a restart took {slowest:?}");
}

#[test]
fn processes_end_with_the_command_that_has_started_them() {
    let project = orders();
    let mut going = follow(&project, 2);
    going.until_printed("\"epochs\"");
    let children = going.children();
    assert_eq!(children.len(), 2);
    going.signal("KILL");
    wait_until("both processes have ended", || {
        children.values().all(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
    });
    run(&project, 2, 1).unwrap();
    assert_undisturbed(&project, "without its command");
}

#[test]
fn a_process_that_is_stopped_is_found_out_and_replaced() {
    let project = orders();
    let mut feed = Dice::new(3);
    let mut going = follow(&project, 2);
    going.until_printed("\"epochs\"");
    for (round, victim) in [1, 0].into_iter().enumerate() {
        let mut there = BTreeMap::new();
        wait_until("both processes are there", || {
            there = going.children();
            there.len() == 2
        });
        signal(there[&victim], "STOP");
        land(&project, &mut feed, 10 + round);
        wait_until("all files are read", || behind(&project));
        signal(there[&victim], "CONT");
    }
    going.signal("TERM");
    going.ends_with(0, &["no sign of life"]);
    assert_undisturbed(&project, "stopped");
}

#[test]
fn the_benchmark_runs_in_several_processes() {
    let project = orders();
    let arguments = ["bench", "late-orders", "--processes", "2", "--epochs", "3", "--batch", "200", "--json"];
    let (code, text) = Going::start(&project, &strings(&arguments), &[]).end();
    assert_eq!(code, 0, "{text}");
    let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let stages = report["stages"].as_array().unwrap();
    assert_eq!((stages.len(), &stages[0]["stage"], &stages[0]["items"]), (1, &json!("delta"), &json!(600)), "{report}");
    assert!(stages[0]["touched"].as_u64().unwrap() > 600, "{report}");
}

#[test]
fn schemas_grow_whichever_process_meets_the_new_columns() {
    let project = Project::new(
        "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('landing/t', format => 'json');
         CREATE STREAMING TABLE u AS SELECT * FROM STREAM(t);",
    );
    (0..6).for_each(|file| project.land("t", &file.to_string(), &[json!({"id": file, "a": "x"})]));
    run(&project, 3, 1).unwrap();
    (6..9).for_each(|file| project.land("t", &file.to_string(), &[json!({"id": file, "b": file})]));
    let text = run_with(&project, 3, 1, &[]).unwrap();
    assert!(text.contains("SCHEMA_GREW") && !text.contains("starting again"), "{text}");
    let other = Project::new(&fs::read_to_string(project.path("transformations/pipeline.sql")).unwrap());
    copy_folder(&project.path("landing"), &other.path("landing"));
    other.run(1).unwrap();
    let query = "SELECT id, a, b FROM u ORDER BY id";
    assert_eq!(project.query(query).unwrap(), other.query(query).unwrap());
    project.assert_clean("grown");
}

#[test]
fn tables_of_others_are_read_by_one_of_the_processes() {
    let sql = "CREATE STREAMING TABLE first AS SELECT * FROM STREAM(shop.one);
         CREATE STREAMING TABLE second AS SELECT * FROM STREAM(shop.two);
         CREATE STREAMING TABLE third AS SELECT * FROM STREAM(shop.three) WITH ('silverflow.mode' = 'changes');";
    let [several, alone] = [3, 1].map(|processes| {
        let project = Project::new(sql);
        for table in ["one", "two", "three"] {
            crate::upstream::make(&project.path("lakehouse/main/shop").join(table));
        }
        run(&project, processes, 1).unwrap();
        project.assert_clean("tables of others");
        project
    });
    for table in ["first", "second", "third"] {
        let query = format!("SELECT * FROM {table}");
        let rows = several.query(&query).unwrap();
        assert_eq!((rows.len(), &rows), (1, &alone.query(&query).unwrap()), "{table}");
    }
}
