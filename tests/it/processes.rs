//! Runs in several processes, with the real binary: the same tables in any number of them, whatever is killed, stopped or
//! knocks at the door.
//!
//! `SILVERFLOW_KILLS=50` kills more often than the usual few times; the seed stands in every message.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crash::{TABLES, definitions};
use crate::example::{EXAMPLE, assert_same_contents, contents, land_batch, without_feeds};
use crate::kill::land;
use crate::runs::wait_until;
use crate::support::{Dice, Project, copy_folder, difference};

/// A command that goes on, and what it has printed so far.
struct Going {
    child: Child,
    printed: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Going {
    fn start(project: &Project, arguments: &[String], environment: &[(&str, &str)]) -> Going {
        Going::spawn(Command::new(env!("CARGO_BIN_EXE_silverflow")), project, arguments, environment)
    }

    fn spawn(mut command: Command, project: &Project, arguments: &[String], environment: &[(&str, &str)]) -> Going {
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

    fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    #[track_caller]
    fn until_printed(&mut self, part: &str) {
        wait_until(part, || {
            assert!(
                self.printed().contains(part) || self.child.try_wait().unwrap().is_none(),
                "it ended: {}",
                self.printed()
            );
            self.printed().contains(part)
        });
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The exit code, and all that was printed.
    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        for reader in std::mem::take(&mut self.readers) {
            reader.join().unwrap();
        }
        (code, self.printed())
    }

    #[track_caller]
    fn ends_with(self, code: i32, parts: &[&str]) {
        let (ended, text) = self.end();
        assert_eq!(ended, code, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    /// The processes that it has started and that are there, by their number in the run.
    fn children(&self) -> BTreeMap<usize, u32> {
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

fn signal(pid: u32, name: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status().unwrap();
}

fn strings(arguments: &[&str]) -> Vec<String> {
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

#[test]
fn recorded_cases_in_two_processes() {
    crate::golden::check_in_processes(2, 2);
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

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes a file of hosts, all of them this one.
fn hosts(project: &Project, count: usize) -> Vec<String> {
    let addresses: Vec<String> = (0..count).map(|_| format!("127.0.0.1:{}", port())).collect();
    fs::write(project.path("hosts.txt"), addresses.join("\n")).unwrap();
    addresses
}

fn orders() -> Project {
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
fn assert_undisturbed(project: &Project, context: &str) {
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

#[test]
fn strangers_at_the_start_are_named_and_disturb_nothing() {
    let project = orders();
    let addresses = hosts(&project, 2);
    let process = |project: &Project, index: &str, workers: &str, secret: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", workers];
        Going::start(project, &strings(&arguments), &[("SILVERFLOW_SECRET", secret)])
    };
    let mut lead = process(&project, "0", "1", "right");
    wait_until("process 0 listens", || TcpStream::connect(&addresses[0]).is_ok());
    let idle = TcpStream::connect(&addresses[0]).unwrap();
    let mut probe = TcpStream::connect(&addresses[0]).unwrap();
    probe.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut version = TcpStream::connect(&addresses[0]).unwrap();
    version.write_all(b"silverflow\xff\xff\xff\xff").unwrap();
    process(&project, "1", "1", "wrong").ends_with(2, &["SECRET_DIFFERS"]);
    process(&project, "1", "2", "right").ends_with(2, &["WORKERS_DIFFER"]);
    let other = Project::new(&definitions(1, "product"));
    fs::copy(project.path("hosts.txt"), other.path("hosts.txt")).unwrap();
    process(&other, "1", "1", "right").ends_with(2, &["DEFINITIONS_DIFFER"]);
    for refused in
        ["does not speak silverflow's protocol", "its version of the protocol is", "does not know the secret"]
    {
        lead.until_printed(refused);
    }
    let right = process(&project, "1", "1", "right");
    lead.ends_with(0, &["the hash of the definitions", "complete"]);
    right.ends_with(0, &[]);
    assert_undisturbed(&project, "strangers");
    drop((idle, probe, version));
}

#[test]
fn a_storage_that_is_not_shared_is_refused() {
    let project = orders();
    hosts(&project, 2);
    let other = orders();
    fs::copy(project.path("hosts.txt"), other.path("hosts.txt")).unwrap();
    let process = |project: &Project, index: &str| {
        Going::start(project, &strings(&["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1"]), &[])
    };
    let (lead, served) = (process(&project, "0"), process(&other, "1"));
    lead.ends_with(3, &["STORAGE_DIFFERS", "process 1 (127.0.0.1:"]);
    served.ends_with(3, &["STORAGE_DIFFERS"]);
}

#[test]
fn a_process_that_never_comes_is_named() {
    let project = orders();
    let addresses = hosts(&project, 3);
    let start = |index: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--start-timeout", "2s"];
        Going::start(&project, &strings(&arguments), &[])
    };
    let (lead, second) = (start("0"), start("1"));
    lead.ends_with(3, &["PEER_MISSING", &addresses[2]]);
    second.ends_with(3, &[]);
}

#[test]
fn hosts_that_others_can_reach_need_a_secret() {
    let project = orders();
    fs::write(project.path("hosts.txt"), "127.0.0.1:7001\n192.0.2.1:7001\n").unwrap();
    let arguments = ["run", "--hosts", "hosts.txt", "--process", "0"];
    Going::start(&project, &strings(&arguments), &[]).ends_with(2, &["SECRET_MISSING", "--secret-file"]);
    Going::start(&project, &strings(&["run", "--process", "0"]), &[]).ends_with(2, &["HOSTS_MISSING"]);
}

/// A continuous run in several processes.
fn follow(project: &Project, processes: usize) -> Going {
    let processes = processes.to_string();
    let arguments = ["run", "--continuous", "--interval", "50ms", "--workers", "1", "--peer-timeout", "1s", "--json"];
    Going::start(project, &strings(&[&arguments[..], &["--processes", &processes]].concat()), &[])
}

/// Whether everything that has landed is in an epoch that is complete.
fn behind(project: &Project) -> bool {
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
fn a_host_that_hangs_ends_the_run_and_writes_nothing_when_it_wakes_up() {
    let project = orders();
    let addresses = hosts(&project, 2);
    let start = |index: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--peer-timeout", "1s"];
        Going::start(&project, &strings(&[&arguments[..], &["--continuous", "--lock-timeout", "600ms"]].concat()), &[])
    };
    let (mut lead, served) = (start("0"), start("1"));
    lead.until_printed("complete");
    lead.signal("STOP");
    served.ends_with(3, &["PEER_LOST", &addresses[0], "no sign of life"]);
    // Another run takes over meanwhile; the one that hangs is told at the next thing that it does.
    let taken = Going::start(&project, &strings(&["run", "--lock-timeout", "100ms"]), &[]);
    taken.ends_with(0, &["taking over"]);
    land(&project, &mut Dice::new(8), 20);
    run(&project, 2, 1).unwrap();
    lead.signal("CONT");
    let (code, text) = lead.end();
    assert!(code == 3 && (text.contains("PEER_LOST") || text.contains("FENCED")), "{code}: {text}");
    assert_undisturbed(&project, "woken up");
}

#[test]
fn a_signal_to_any_host_ends_the_run_after_the_epoch_at_hand() {
    let project = orders();
    hosts(&project, 2);
    let start = |index: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--continuous"];
        Going::start(&project, &strings(&arguments), &[])
    };
    let (mut lead, served) = (start("0"), start("1"));
    lead.until_printed("complete");
    wait_until("all files are read", || behind(&project));
    served.signal("TERM");
    lead.ends_with(0, &[]);
    served.ends_with(0, &[]);
    assert_undisturbed(&project, "asked to end");
}

#[test]
fn hosts_that_restart_go_on_when_a_lost_one_comes_back() {
    let project = orders();
    hosts(&project, 2);
    let start = |index: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--peer-timeout", "1s"];
        let more = ["--continuous", "--interval", "50ms", "--restart"];
        Going::start(&project, &strings(&[&arguments[..], &more].concat()), &[])
    };
    let (mut lead, served) = (start("0"), start("1"));
    lead.until_printed("complete");
    let child = served.children()[&1];
    signal(child, "KILL");
    land(&project, &mut Dice::new(9), 30);
    wait_until("all files are read", || behind(&project));
    lead.until_printed("starting again");
    lead.signal("TERM");
    lead.ends_with(0, &["is lost"]);
    served.ends_with(0, &[]);
    assert_undisturbed(&project, "restarted");
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

/// Two machines, as far as the network goes, with a link between them.
struct TwoHosts;

impl TwoHosts {
    fn make() -> TwoHosts {
        let hosts = TwoHosts;
        for host in ["sfa", "sfb"] {
            ip(&["netns", "add", host]);
        }
        ip(&["link", "add", "sfa0", "netns", "sfa", "type", "veth", "peer", "name", "sfb0", "netns", "sfb"]);
        for (host, link, address) in [("sfa", "sfa0", "10.77.0.1/24"), ("sfb", "sfb0", "10.77.0.2/24")] {
            ip(&["-n", host, "address", "add", address, "dev", link]);
            ip(&["-n", host, "link", "set", link, "up"]);
            ip(&["-n", host, "link", "set", "lo", "up"]);
        }
        hosts
    }

    fn link(&self, state: &str) {
        ip(&["-n", "sfb", "link", "set", "sfb0", state]);
    }

    fn start(&self, host: &str, project: &Project, arguments: &[&str]) -> Going {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host, env!("CARGO_BIN_EXE_silverflow")]);
        Going::spawn(command, project, &strings(arguments), &[("SILVERFLOW_SECRET", "between us")])
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for host in ["sfa", "sfb"] {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_that_is_cut_ends_the_run_on_both_hosts() {
    let project = orders();
    fs::write(project.path("hosts.txt"), "10.77.0.1:7420\n10.77.0.2:7420\n").unwrap();
    let hosts = TwoHosts::make();
    let run = |host: &str, index: &str, more: &[&str]| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--peer-timeout", "2s"];
        hosts.start(host, &project, &[&arguments, more].concat())
    };
    let follow = ["--continuous", "--interval", "50ms"];
    let (mut lead, served) = (run("sfa", "0", &follow), run("sfb", "1", &follow));
    lead.until_printed("complete");
    hosts.link("down");
    let begin = Instant::now();
    lead.ends_with(3, &["PEER_LOST", "10.77.0.2:7420", "no sign of life"]);
    served.ends_with(3, &["PEER_LOST", "10.77.0.1:7420", "no sign of life"]);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    hosts.link("up");
    land(&project, &mut Dice::new(6), 12);
    let (lead, served) = (run("sfa", "0", &[]), run("sfb", "1", &[]));
    lead.ends_with(0, &["complete"]);
    served.ends_with(0, &[]);
    assert_undisturbed(&project, "cut off");
}
