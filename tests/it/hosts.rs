//! Runs on several hosts, with the real binary: strangers at the door, hosts that hang, are cut off, or do not come back.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::crash::definitions;
use crate::kill::land;
use crate::processes::{Going, assert_undisturbed, behind, orders, run, signal, strings};
use crate::runs::wait_until;
use crate::support::{Dice, Project};

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
    let short = [("SILVERFLOW_SECRET", "fifteen letters")];
    Going::start(&project, &strings(&arguments), &short).ends_with(2, &["SECRET_SHORT", "16 bytes"]);
    // A file of it, however it is wrong, and whoever reads it.
    let with_file = [&arguments[..], &["--secret-file", "secret"]].concat();
    for more in [&[][..], &["--restart"]] {
        let arguments = strings(&[&with_file, more].concat());
        let _ = fs::remove_file(project.path("secret"));
        Going::start(&project, &arguments, &[]).ends_with(3, &["SECRET_NOT_READABLE"]);
        fs::write(project.path("secret"), " \n").unwrap();
        Going::start(&project, &arguments, &[]).ends_with(2, &["SECRET_EMPTY"]);
        fs::write(project.path("secret"), "too short\n").unwrap();
        Going::start(&project, &arguments, &[]).ends_with(2, &["SECRET_SHORT"]);
    }
    Going::start(&project, &strings(&["run", "--process", "0"]), &[]).ends_with(2, &["HOSTS_MISSING"]);
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
    // By their name, as on several machines.
    let named = fs::read_to_string(project.path("hosts.txt")).unwrap().replace("127.0.0.1", "localhost");
    fs::write(project.path("hosts.txt"), named).unwrap();
    let (mut lead, mut served) = (start("0"), start("1"));
    lead.until_printed("complete");
    signal(served.children()[&1], "KILL");
    land(&project, &mut Dice::new(9), 30);
    wait_until("all files are read", || behind(&project));
    lead.until_printed("starting again");
    // And the one that leads.
    signal(lead.children()[&0], "KILL");
    land(&project, &mut Dice::new(10), 31);
    wait_until("all files are read", || behind(&project));
    served.until_printed("process 0 (localhost:");
    lead.signal("TERM");
    lead.ends_with(0, &["is lost"]);
    served.ends_with(0, &[]);
    assert_undisturbed(&project, "restarted");
}

/// Machines, as far as the network goes, on one switch.
struct Machines(usize);

impl Machines {
    fn make(count: usize) -> Machines {
        let machines = Machines(count);
        ip(&["link", "add", "sfswitch", "type", "bridge"]);
        ip(&["link", "set", "sfswitch", "up"]);
        for at in 0..count {
            let (name, inside, outside) = (format!("sf{at}"), format!("sfin{at}"), format!("sfout{at}"));
            ip(&["netns", "add", &name]);
            ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside, "netns", &name]);
            ip(&["link", "set", &outside, "master", "sfswitch", "up"]);
            ip(&["-n", &name, "address", "add", &format!("10.77.0.{}/24", at + 1), "dev", &inside]);
            ip(&["-n", &name, "link", "set", &inside, "up"]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
        }
        machines
    }

    /// The file of hosts of these machines.
    fn hosts(&self) -> String {
        (1..=self.0).map(|at| format!("10.77.0.{at}:7420\n")).collect()
    }

    fn start(&self, project: &Project, at: usize, more: &[&str]) -> Going {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("sf{at}"), env!("CARGO_BIN_EXE_silverflow")]);
        let at = at.to_string();
        let arguments = ["run", "--hosts", "hosts.txt", "--process", &at, "--workers", "1", "--peer-timeout", "2s"];
        let arguments = strings(&[&arguments, more].concat());
        Going::spawn(command, project, &arguments, &[("SILVERFLOW_SECRET", "between us, and nobody else")])
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for at in 0..self.0 {
            let _ = Command::new("ip").args(["netns", "del", &format!("sf{at}")]).status();
        }
        let _ = Command::new("ip").args(["link", "del", "sfswitch"]).status();
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn machines_that_are_cut_off_end_the_run_and_another_one_goes_on() {
    let project = orders();
    let machines = Machines::make(3);
    fs::write(project.path("hosts.txt"), machines.hosts()).unwrap();
    let follow = ["--continuous", "--interval", "50ms"];
    let mut all = [0, 1, 2].map(|at| machines.start(&project, at, &follow));
    all[0].until_printed("complete");
    wait_until("all files are read", || behind(&project));
    // One of them is cut off from both others.
    ip(&["link", "set", "sfout1", "down"]);
    let begin = Instant::now();
    let [lead, cut, other] = all;
    lead.ends_with(3, &["PEER_LOST", "10.77.0.2:7420", "no sign of life"]);
    cut.ends_with(3, &["PEER_LOST", "10.77.0.1:7420", "no sign of life"]);
    other.ends_with(3, &["PEER_LOST"]);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    ip(&["link", "set", "sfout1", "up"]);
    // Two of them do not reach each other any more, and both reach the one that leads.
    let mut all = [0, 1, 2].map(|at| machines.start(&project, at, &follow));
    land(&project, &mut Dice::new(6), 12);
    wait_until("all files are read", || behind(&project));
    ip(&["-n", "sf1", "route", "add", "blackhole", "10.77.0.3"]);
    let begin = Instant::now();
    land(&project, &mut Dice::new(7), 13);
    all[0].until_printed("PEER_LOST");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    all.into_iter().for_each(|process| process.ends_with(3, &["PEER_LOST"]));
    ip(&["-n", "sf1", "route", "del", "blackhole", "10.77.0.3"]);
    let all = [0, 1, 2].map(|at| machines.start(&project, at, &[]));
    all.into_iter().for_each(|process| process.ends_with(0, &[]));
    assert_undisturbed(&project, "cut off");
}

#[test]
fn a_host_that_does_not_come_back_is_named() {
    let project = orders();
    let addresses = hosts(&project, 2);
    let start = |index: &str| {
        let arguments = ["run", "--hosts", "hosts.txt", "--process", index, "--workers", "1", "--peer-timeout", "1s"];
        let more = ["--continuous", "--interval", "50ms", "--restart", "--start-timeout", "3s"];
        Going::start(&project, &strings(&[&arguments[..], &more].concat()), &[])
    };
    let (mut lead, served) = (start("0"), start("1"));
    lead.until_printed("complete");
    drop(served);
    lead.ends_with(3, &["PEER_LOST", "starting again", "PEER_MISSING", &addresses[1]]);
    run(&project, 1, 2).unwrap();
    assert_undisturbed(&project, "left alone");
}
