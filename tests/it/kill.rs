//! The real binary, killed at random moments over and over while files arrive. In the end the tables are those of a run that
//! nobody killed, and no epoch is in a table twice.
//!
//! `SILVERFLOW_KILLS=2000` kills more often than the usual few hundred times; the seed stands in every message.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::crash::{TABLES, definitions};
use crate::support::{Dice, Project, difference};

/// How a process ended.
enum End {
    Killed,
    /// With this code and these messages.
    Own(Option<i32>, String),
}

/// Starts the binary and kills it after a while, unless it has ended on its own.
fn run_for(project: &Project, arguments: &[String], patience: Duration) -> End {
    let mut child = Command::new(env!("CARGO_BIN_EXE_silverflow"))
        .args(arguments)
        .current_dir(project.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let (sender, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        let _ = sender.send(());
        text
    });
    // The messages end when the process does.
    let killed = ended.recv_timeout(patience).is_err();
    if killed {
        child.kill().unwrap();
    }
    let code = child.wait().unwrap().code();
    let text = reader.join().unwrap();
    match code {
        // It may have ended just before the signal.
        None if killed => End::Killed,
        code => End::Own(code, text),
    }
}

/// One file of each of the two feeds: few keys, so that everything touches everything. One product never comes.
fn files(dice: &mut Dice, file: usize) -> [(&'static str, String, Vec<Value>); 2] {
    let orders = (0..1 + dice.below(3)).map(|_| {
        let op = ["U", "U", "U", "D"][dice.below(4)];
        json!({
            "id": dice.below(6), "s": dice.below(60), "product": dice.below(6), "amount": dice.below(8) as i64 - 1,
            "op": op,
        })
    });
    let orders = orders.collect();
    let products = if dice.once_in(8) { vec![json!({"id": dice.below(5), "label": "x"})] } else { Vec::new() };
    [("orders", format!("{file:04}"), orders), ("products", format!("{file:04}"), products)]
}

pub(crate) fn land(project: &Project, dice: &mut Dice, file: usize) {
    for (feed, name, rows) in files(dice, file) {
        if !rows.is_empty() {
            project.land_whole(feed, &name, &rows);
        }
    }
}

fn rounds() -> usize {
    std::env::var("SILVERFLOW_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// What is killed.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Run,
    Continuous,
    FullRefresh,
    Optimize,
}

impl Kind {
    fn any(dice: &mut Dice) -> Kind {
        let runs = [Kind::Run, Kind::Run, Kind::Run, Kind::Run];
        let others = [Kind::Continuous, Kind::FullRefresh, Kind::Optimize];
        runs.into_iter().chain(others).nth(dice.below(7)).unwrap()
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Kind::Run => &[],
            Kind::Continuous => &["--continuous", "--interval", "50ms"],
            Kind::FullRefresh => &["--full-refresh-all"],
            Kind::Optimize => &["--vacuum"],
        }
    }

    fn command(self, dice: &mut Dice) -> Vec<String> {
        if self == Kind::Optimize {
            return vec!["optimize".to_owned()];
        }
        let mut run = vec!["run".to_owned(), "--workers".to_owned(), (1 + dice.below(4)).to_string()];
        if dice.once_in(3) {
            run.push("--json".to_owned());
        }
        run
    }
}

#[test]
fn killed_at_random_moments_while_files_arrive() {
    let seed = 7;
    let sql = definitions(1, "product, amount");
    let project = Project::new(&sql);
    let (mut dice, mut feed) = (Dice::new(seed), Dice::new(seed + 1));
    land(&project, &mut feed, 0);
    std::fs::create_dir_all(project.path("landing/products")).unwrap();
    let spec = std::fs::read_to_string(project.spec()).unwrap();
    project.take_checkpoints();
    let always = std::fs::read_to_string(project.spec()).unwrap();
    let begin = Instant::now();
    let first = run_for(&project, &["run".into()], Duration::from_secs(300));
    assert!(matches!(first, End::Own(Some(0), _)), "the first run is to succeed");
    // Moments are spread over what a run takes on this machine now, which changes.
    let mut whole = begin.elapsed();
    let (mut landed, mut killed) = (1, 0);
    let (mut ordering, mut checkpoints) = (0, BTreeSet::new());
    for round in 0..rounds() {
        let kind = Kind::any(&mut dice);
        let mut arguments = kind.command(&mut dice);
        // Every other run takes a checkpoint at each epoch, and many are killed while it is written.
        std::fs::write(project.spec(), if dice.once_in(2) { &always } else { &spec }).unwrap();
        arguments.extend(kind.arguments().iter().map(|&argument| argument.to_owned()));
        // A file lands before the run, or while it looks; several while a run goes on.
        if dice.once_in(2) {
            land(&project, &mut feed, landed);
            landed += 1;
        }
        let mut patience = whole.mul_f64(dice.below(1200) as f64 / 1000.0);
        let mut moment = patience.mul_f64(dice.below(1000) as f64 / 1000.0);
        if let Kind::Continuous = kind {
            patience += whole / 2;
            moment = moment.div_f64(3.0).max(whole / 8);
        }
        let begin = Instant::now();
        let end = {
            let (project, mut feed) = (&project, Dice::new(seed + 2 + round as u64));
            std::thread::scope(|scope| {
                let (go, wait) = mpsc::channel::<()>();
                let lander = scope.spawn(move || {
                    let mut landed = landed;
                    loop {
                        let ended = wait.recv_timeout(moment) != Err(mpsc::RecvTimeoutError::Timeout);
                        land(project, &mut feed, landed);
                        landed += 1;
                        if ended || kind != Kind::Continuous {
                            return landed;
                        }
                    }
                });
                let end = run_for(project, &arguments, patience);
                drop(go);
                landed = lander.join().unwrap();
                end
            })
        };
        let stored = std::fs::read_dir(project.path("lakehouse/_silverflow/checkpoints"));
        checkpoints.extend(stored.into_iter().flatten().map(|file| file.unwrap().file_name()));
        match end {
            End::Killed => {
                killed += 1;
                ordering += usize::from(kind == Kind::Optimize);
            }
            End::Own(Some(0), _) => whole = (whole + begin.elapsed()) / 2,
            End::Own(code, text) => panic!("seed {seed}, round {round}: ended with {code:?}\n{text}"),
        }
    }
    assert!(killed * 3 > rounds(), "only {killed} of {} rounds were killed", rounds());
    assert!(ordering > 0, "no round was killed while tables are brought into order");
    assert!(!checkpoints.is_empty(), "no round left a checkpoint");
    std::fs::write(project.spec(), &spec).unwrap();
    project.run(2).unwrap();

    let other = Project::new(&sql);
    crate::support::copy_folder(&project.path("landing"), &other.path("landing"));
    other.run(3).unwrap();
    for table in TABLES {
        let [actual, expected] = [&project, &other].map(|p| p.stored(&format!("main/default/{table}")));
        if let Some(difference) = difference(&actual, &expected) {
            panic!("seed {seed}, {killed} kills, {table}: {difference}");
        }
        assert!(!expected.is_empty(), "{table} is empty, which proves nothing");
    }
    project.assert_clean(&format!("seed {seed}, {killed} kills"));
    if let Some(twice) = project.epochs_twice() {
        panic!("seed {seed}, {killed} kills: committed twice: {twice}");
    }
}
