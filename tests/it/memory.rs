//! State that memory has no room for, and state that is read where it is needed: the same tables, whatever the disk does.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use silverflow::error::{Fault, Result};
use silverflow::runtime::{Progress, RunOptions, RunReport};

use crate::support::{Dice, Project, assert_rows};

const DEFINITIONS: &str = "
CREATE STREAMING TABLE facts AS SELECT * FROM STREAM read_files(
  'landing/facts', format => 'json', schema => 'k BIGINT, s BIGINT, ref BIGINT, text STRING');
CREATE STREAMING TABLE refs AS SELECT * FROM STREAM read_files(
  'landing/refs', format => 'json', schema => 'id BIGINT');
CREATE TEMPORARY VIEW tagged AS SELECT f.*, r.id IS NULL AS missing
FROM STREAM(facts) AS f LEFT JOIN (SELECT DISTINCT id FROM refs) AS r ON f.ref = r.id;
CREATE STREAMING TABLE history;
CREATE FLOW keep AS AUTO CDC INTO history FROM STREAM(tagged) KEYS (k) SEQUENCE BY s COLUMNS * EXCEPT (s)
STORED AS SCD TYPE 2;
CREATE MATERIALIZED VIEW texts AS SELECT DISTINCT text FROM facts;
";

const TABLES: [&str; 2] = ["history", "texts"];
/// Far less than the state of these tests.
const MEMORY: u64 = 4 << 20;

fn project() -> Project {
    let project = Project::new(DEFINITIONS);
    let spec = fs::read_to_string(project.spec()).unwrap();
    let checkpoints = "configuration:\n  silverflow.checkpoint.rows: '0'\n  silverflow.checkpoint.seconds: '0'\n";
    fs::write(project.spec(), format!("{spec}{checkpoints}")).unwrap();
    fs::create_dir_all(project.path("landing/facts")).unwrap();
    fs::create_dir_all(project.path("landing/refs")).unwrap();
    project
}

/// So many facts of keys below `keys`, with texts that no encoding makes short.
fn facts(dice: &mut Dice, rows: usize, keys: usize) -> Vec<Value> {
    let mut text = || (0..50).map(|_| format!("{:08x}", dice.below(1 << 32))).collect::<String>();
    let texts: Vec<String> = (0..rows).map(|_| text()).collect();
    let fact = |text| json!({"k": dice.below(keys), "s": dice.below(1 << 20), "ref": dice.below(60), "text": text});
    texts.into_iter().map(fact).collect()
}

fn run(project: &Project, options: RunOptions) -> (Result<RunReport>, Vec<String>) {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let to = Arc::clone(&lines);
    let progress: Progress = Arc::new(move |line: &str| to.lock().unwrap().push(line.to_owned()));
    let wall = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let report = project.run_with(&RunOptions { progress: Some(progress), wall, ..options });
    let lines = lines.lock().unwrap().clone();
    (report, lines)
}

fn assert_same(context: &str, one: &Project, other: &Project) {
    for table in TABLES {
        let rows = |project: &Project| project.rows(&format!("SELECT * FROM {table}"));
        assert_rows(&format!("{context}: {table}"), &rows(one), &rows(other));
    }
}

#[test]
fn state_several_times_the_memory_gives_the_same_tables() {
    let mut dice = Dice::new(3);
    let (small, plain) = (project(), project());
    let land = |feed: &str, file: &str, rows: Vec<Value>| {
        [&small, &plain].into_iter().for_each(|project| project.land(feed, file, &rows));
    };
    for file in 0..4 {
        land("facts", &format!("{file}"), facts(&mut dice, 4_000, 6_000));
        land("refs", &format!("{file}"), (0..6).map(|_| json!({"id": dice.below(60)})).collect());
    }
    let memory = Some(MEMORY);
    let (first, lines) = run(&small, RunOptions { memory, workers: 2, ..RunOptions::default() });
    let whole = run(&plain, RunOptions { workers: 2, ..RunOptions::default() }).0.unwrap();
    let first = first.unwrap();
    // As much as an epoch may bring is less than a file of facts.
    assert_eq!((first.epochs.len(), whole.epochs.len()), (4, 1), "{lines:?}");
    assert!(first.spilled_bytes > 5 * MEMORY, "{} bytes in files", first.spilled_bytes);
    assert_eq!(fs::read_dir(small.path("lakehouse/_silverflow/scratch")).unwrap().count(), 0, "files have no names");
    assert_same("built", &small, &plain);
    // On with it, on as many workers, which read what they need, and on others, which copy their share.
    for (round, workers) in [2, 1].into_iter().enumerate() {
        land("facts", &format!("late {round}"), facts(&mut dice, 100, 6_000));
        land("refs", &format!("late {round}"), (0..6).map(|_| json!({"id": dice.below(60)})).collect());
        let (report, lines) = run(&small, RunOptions { memory, workers, ..RunOptions::default() });
        let report = report.unwrap();
        assert!(report.checkpoint.is_some() && report.replayed == 0, "{lines:?}");
        run(&plain, RunOptions { workers, ..RunOptions::default() }).0.unwrap();
        assert_same(&format!("on {workers} workers"), &small, &plain);
    }
    // Without checkpoints everything is read back, a part at a time.
    fs::remove_dir_all(small.path("lakehouse/_silverflow/checkpoints")).unwrap();
    land("facts", "last", facts(&mut dice, 100, 6_000));
    let (report, lines) = run(&small, RunOptions { memory, workers: 2, ..RunOptions::default() });
    let report = report.unwrap();
    assert!(report.checkpoint.is_none() && report.replayed > 16_000, "{lines:?}");
    assert!(report.spilled_bytes > 5 * MEMORY, "{} bytes in files", report.spilled_bytes);
    run(&plain, RunOptions::default()).0.unwrap();
    assert_same("read back", &small, &plain);
}

#[test]
fn a_disk_without_room_for_state_ends_the_run_and_loses_nothing() {
    let mut dice = Dice::new(4);
    let (small, plain) = (project(), project());
    let rows = facts(&mut dice, 5_000, 6_000);
    [&small, &plain].into_iter().for_each(|project| project.land("facts", "0", &rows));
    let taken = small.path("taken");
    fs::write(&taken, "no folder").unwrap();
    let options = RunOptions { memory: Some(MEMORY), workers: 2, ..RunOptions::default() };
    let (report, lines) = run(&small, RunOptions { scratch: Some(taken), ..options.clone() });
    let error = report.unwrap_err();
    assert_eq!((error.code(), error.fault()), ("SCRATCH_FAILED", Fault::External), "{lines:?}");
    assert_eq!(small.rows("SELECT COUNT(*) AS n FROM facts")[0]["n"], 0, "nothing of the epoch is stored");
    run(&small, options).0.unwrap();
    run(&plain, RunOptions::default()).0.unwrap();
    assert_same("with room", &small, &plain);
}

/// Blocks of state that are large enough are not looked at before they are needed.
#[test]
fn damage_that_is_found_in_the_middle_of_an_epoch_costs_time_only() {
    let mut dice = Dice::new(5);
    let (damaged, plain) = (project(), project());
    let rows = facts(&mut dice, 14_000, 4_000);
    [&damaged, &plain].into_iter().for_each(|project| project.land("facts", "0", &rows));
    [&damaged, &plain].into_iter().for_each(|project| drop(run(project, RunOptions::default()).0.unwrap()));
    let folder = damaged.path("lakehouse/_silverflow/checkpoints");
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut large = 0;
    for path in files.iter().filter(|path| path.metadata().unwrap().len() > 4 << 20) {
        // Somewhere in the middle, where nothing tells of lengths.
        let mut bytes = fs::read(path).unwrap();
        let at = bytes.len() / 2 + dice.below(1 << 18);
        bytes[at] ^= 0x10;
        fs::write(path, bytes).unwrap();
        large += 1;
    }
    assert!(large > 0, "{files:?}");
    // What touches nothing of it is computed as ever.
    [&damaged, &plain].into_iter().for_each(|project| project.land("refs", "none", &[json!({"id": 1_000})]));
    let (report, lines) = run(&damaged, RunOptions::default());
    assert!(report.unwrap().checkpoint.is_some(), "{lines:?}");
    run(&plain, RunOptions::default()).0.unwrap();
    assert_same("untouched", &damaged, &plain);
    let rows = facts(&mut dice, 4_000, 4_000);
    [&damaged, &plain].into_iter().for_each(|project| project.land("facts", "1", &rows));
    let (report, lines) = run(&damaged, RunOptions::default());
    let report = report.unwrap();
    assert!(lines.iter().any(|line| line.contains("CHECKPOINT_DAMAGED")), "{lines:?}");
    assert_eq!(report.epochs.len(), 1, "{lines:?}");
    run(&plain, RunOptions::default()).0.unwrap();
    assert_same("damaged", &damaged, &plain);
    // The next checkpoint is whole again.
    [&damaged, &plain].into_iter().for_each(|project| project.land("refs", "last", &[json!({"id": 7})]));
    let (report, lines) = run(&damaged, RunOptions::default());
    assert!(report.unwrap().checkpoint.is_some(), "{lines:?}");
    run(&plain, RunOptions::default()).0.unwrap();
    assert_same("whole", &damaged, &plain);
}
