//! Checkpoints: a run that begins with what the operators of an earlier one remembered gives the tables of one that reads
//! everything back, now and for every later change, on any number of workers; and one that cannot be used costs time only.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use silverflow::runtime::{RunOptions, RunReport};

use crate::support::{Dice, Project, assert_rows};

const DEFINITIONS: &str = "
CREATE STREAMING TABLE facts (
  CONSTRAINT is_named EXPECT (v IS NOT NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT has_come EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE
) AS SELECT * FROM STREAM read_files(
  'landing/facts', format => 'json', schema => 'k BIGINT, s BIGINT, ref BIGINT, v STRING, d DOUBLE, op STRING, at TIMESTAMP');
CREATE STREAMING TABLE changes AS SELECT * FROM STREAM read_files(
  'landing/changes', format => 'json', schema => 'id BIGINT, s BIGINT, op STRING, label STRING');
CREATE STREAMING TABLE known;
CREATE FLOW keep_known AS AUTO CDC INTO known FROM STREAM(changes) KEYS (id)
  APPLY AS DELETE WHEN op = 'D' APPLY AS TRUNCATE WHEN op = 'T' SEQUENCE BY s COLUMNS (id, label) STORED AS SCD TYPE 1;
CREATE STREAMING TABLE labels;
CREATE FLOW keep_labels AS AUTO CDC INTO labels FROM STREAM(changes) KEYS (id)
  APPLY AS DELETE WHEN op = 'D' APPLY AS TRUNCATE WHEN op = 'T' SEQUENCE BY s COLUMNS (id, label)
  IGNORE NULL UPDATES STORED AS SCD TYPE 1;

CREATE TEMPORARY VIEW tagged AS
SELECT f.k, f.s, f.ref, f.v, f.op, r.label, p.price,
  array_except(array(CASE WHEN r.id IS NULL THEN 'unknown' END, CASE WHEN r.label = 'a' THEN 'blocked' END),
               array(CAST(NULL AS STRING))) AS failures
FROM STREAM(facts) AS f LEFT JOIN known AS r ON f.ref = r.id LEFT JOIN prices AS p ON f.v = p.item;
CREATE TEMPORARY VIEW clean AS SELECT k, s, ref, v, op, label, price FROM STREAM(tagged) WHERE size(failures) = 0;
CREATE STREAMING TABLE history;
CREATE FLOW keep_history AS AUTO CDC INTO history FROM STREAM(clean) KEYS (k)
  APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (s, op) STORED AS SCD TYPE 2;
CREATE STREAMING TABLE filled;
CREATE FLOW keep_filled AS AUTO CDC INTO filled FROM STREAM(clean) KEYS (ref)
  SEQUENCE BY s COLUMNS * EXCEPT (op) IGNORE NULL UPDATES STORED AS SCD TYPE 2 TRACK HISTORY ON label, price;
CREATE STREAMING TABLE rejected;
CREATE FLOW reject AS INSERT INTO rejected BY NAME SELECT k, s, failures FROM STREAM(tagged) WHERE size(failures) > 0;
CREATE STREAMING TABLE present AS SELECT f.k, f.s FROM STREAM(facts) AS f LEFT SEMI JOIN known AS r ON f.ref = r.id;
CREATE STREAMING TABLE absent AS SELECT f.k, f.s FROM STREAM(facts) AS f LEFT ANTI JOIN labels AS r ON f.ref = r.id;
CREATE STREAMING TABLE paired AS SELECT f.k, f.s, c.label FROM STREAM(facts) AS f JOIN changes AS c ON f.ref = c.id;
CREATE STREAMING TABLE aged AS SELECT k, s FROM STREAM(facts) WHERE at < current_timestamp() - INTERVAL 20 SECONDS;
CREATE MATERIALIZED VIEW numbers AS SELECT DISTINCT d FROM facts;
CREATE MATERIALIZED VIEW names AS SELECT DISTINCT v, label FROM tagged;
";

const TABLES: [&str; 13] = [
    "aged",
    "facts",
    "facts_quarantine",
    "known",
    "labels",
    "history",
    "filled",
    "rejected",
    "present",
    "absent",
    "paired",
    "numbers",
    "names",
];

/// The pipeline, and another one whose table it reads as a reference.
struct Pair<'a> {
    project: Project,
    prices: &'a Project,
}

fn prices() -> Project {
    Project::new(
        "CREATE STREAMING TABLE feed AS SELECT * FROM STREAM read_files(
               'landing/feed', format => 'json', schema => 'item STRING, price BIGINT, s BIGINT, op STRING');
             CREATE STREAMING TABLE prices;
             CREATE FLOW keep AS AUTO CDC INTO prices FROM STREAM(feed) KEYS (item)
               APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS (item, price) STORED AS SCD TYPE 1;",
    )
}

impl Pair<'_> {
    fn new(prices: &Project) -> Pair<'_> {
        Pair { project: Project::new(DEFINITIONS), prices }
    }

    /// Takes checkpoints once so many rows have come, or never.
    fn configure(&self, rows: Option<u64>) {
        let spec = format!(
            "name: test\nstorage: lakehouse\nlibraries:\n  - glob:\n      include: transformations/**\nconfiguration:\n  \
             silverflow.table.prices: {}\n  silverflow.checkpoint.rows: '{}'\n  silverflow.checkpoint.seconds: '0'\n",
            self.prices.path("lakehouse/main/default/prices").display(),
            rows.unwrap_or(u64::MAX),
        );
        fs::write(self.project.spec(), spec).unwrap();
    }

    /// Runs when a batch has landed. From one to the next the clock goes on by a few seconds.
    fn run(&self, batch: usize, workers: usize) -> (RunReport, Vec<String>) {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let to = Arc::clone(&lines);
        let progress: silverflow::runtime::Progress =
            Arc::new(move |line: &str| to.lock().unwrap().push(line.to_owned()));
        let wall = format!("2030-01-01T00:00:{:02}Z", batch * 6).parse().unwrap();
        let options = RunOptions { workers, wall: Some(wall), progress: Some(progress), ..RunOptions::default() };
        let report = self.project.run_with(&options).unwrap();
        let lines = lines.lock().unwrap().clone();
        (report, lines)
    }

    fn rows(&self, table: &str) -> Vec<Value> {
        self.project.rows(&format!("SELECT * FROM {table}"))
    }

    fn tables(&self) -> BTreeMap<&'static str, Vec<Value>> {
        TABLES.iter().map(|table| (*table, self.rows(table))).collect()
    }

    fn checkpoint_of(&self, epoch: u64) -> PathBuf {
        self.project.path(format!("lakehouse/_silverflow/checkpoints/{epoch:020}.json"))
    }

    /// The epochs of which there are checkpoints.
    fn epochs(&self) -> Vec<u64> {
        let manifests = self.checkpoints().into_iter().filter(|path| path.extension().unwrap() == "json");
        manifests.map(|path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap()).collect()
    }

    fn checkpoints(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.project.path("lakehouse/_silverflow/checkpoints")) else {
            return Vec::new();
        };
        let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }
}

/// What lands in one batch, at the same place in each of the projects.
fn land(dice: &mut Dice, batch: usize, pairs: &[&Pair<'_>]) {
    let letter = |dice: &mut Dice| (!dice.once_in(6)).then(|| ["a", "b", "c", "d"][dice.below(4)]);
    let doubles = [0.0, -0.0, 1.5];
    let first = usize::from(batch == 0);
    let facts: Vec<Value> = (0..first + dice.below(12))
        .map(|_| {
            json!({
                "k": dice.below(6), "s": dice.below(40), "ref": dice.below(6), "v": letter(dice),
                "d": doubles[dice.below(3)], "op": if dice.once_in(8) { "D" } else { "U" },
                "at": format!("2030-01-01T00:00:{:02}Z", dice.below(60)),
            })
        })
        .collect();
    let changes: Vec<Value> = (0..first + dice.below(5))
        .map(|_| {
            let op = if dice.once_in(12) { "T" } else { ["U", "U", "D"][dice.below(3)] };
            json!({"id": dice.below(6), "s": dice.below(40), "op": op, "label": letter(dice)})
        })
        .collect();
    let prices: Vec<Value> = (0..first + dice.below(3))
        .map(|_| {
            let op = if dice.once_in(3) { "D" } else { "U" };
            json!({"item": letter(dice).unwrap_or("a"), "price": dice.below(5), "s": dice.below(30), "op": op})
        })
        .collect();
    for pair in pairs {
        for (feed, rows) in [("facts", &facts), ("changes", &changes)] {
            if !rows.is_empty() {
                pair.project.land(feed, &format!("batch_{batch:02}"), rows);
            }
        }
    }
    if let Some(pair) = pairs.first().filter(|_| !prices.is_empty()) {
        pair.prices.land("feed", &format!("batch_{batch:02}"), &prices);
        pair.prices.run(1).unwrap();
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SILVERFLOW_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

#[test]
fn begins_where_an_earlier_run_ended_and_goes_on_as_if_it_had_read_everything() {
    for seed in seeds() {
        let mut dice = Dice::new(seed + 50);
        let prices = prices();
        let (with, without) = (Pair::new(&prices), Pair::new(&prices));
        without.configure(None);
        with.configure(Some(0));
        let (mut begun, mut replayed, mut last_epoch) = (0, (0, 0), None);
        for batch in 0..9 {
            land(&mut dice, batch, &[&with, &without]);
            let newest = with.epochs().last().copied();
            let (report, lines) = with.run(batch, 1 + dice.below(4));
            let (plain, _) = without.run(batch, 1);
            let context = format!("seed {seed}, batch {batch}: {lines:?}");
            if !report.epochs.is_empty() {
                assert_eq!(report.checkpoint, newest, "{context}");
                assert_eq!(with.epochs().last().copied(), report.last_epoch, "{context}");
            }
            assert!(plain.checkpoint.is_none() && without.checkpoints().is_empty(), "{context}");
            assert!(lines.iter().all(|line| !line.contains("checkpoint")), "{context}");
            if report.checkpoint.is_some() {
                begun += 1;
                replayed = (replayed.0 + report.replayed, replayed.1 + plain.replayed);
                assert!(report.checkpoint != last_epoch || report.replayed == 0, "{context}");
            }
            last_epoch = report.last_epoch;
            // As if the run had been killed before its checkpoint was there: the next one has more to catch up with.
            let epochs = with.epochs();
            if epochs.len() > 1 && dice.once_in(2) {
                fs::remove_file(with.checkpoint_of(epochs[epochs.len() - 1])).unwrap();
            }
            // Some tables after each batch; what differs once differs to the end.
            for table in TABLES.iter().filter(|_| batch == 8 || dice.once_in(4)) {
                assert_rows(&format!("{context}, {table}"), &with.rows(table), &without.rows(table));
            }
        }
        assert!(
            begun >= 4 && replayed.0 > 0,
            "seed {seed}: {begun} runs began with one and caught up with {replayed:?}"
        );
        assert!(
            replayed.0 * 3 < replayed.1,
            "seed {seed}: {begun} runs began with one and read {replayed:?} rows back"
        );
    }
}

#[test]
fn a_checkpoint_that_cannot_be_used_costs_time_only() {
    let mut dice = Dice::new(7);
    let prices = prices();
    let pair = Pair::new(&prices);
    pair.configure(Some(0));
    for batch in 0..3 {
        land(&mut dice, batch, &[&pair]);
        pair.run(batch, 2);
    }
    let whole: Vec<(PathBuf, Vec<u8>)> =
        pair.checkpoints().into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect();
    assert!(whole.iter().any(|(path, _)| path.extension().unwrap() == "json"), "{whole:?}");
    let damage = |bytes: &[u8], dice: &mut Dice, kind: usize| -> Option<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        match kind {
            0 => return None,
            1 => bytes.truncate(dice.below(bytes.len())),
            2 => bytes.clear(),
            _ => {
                let at = dice.below(bytes.len());
                bytes[at] ^= 1 << dice.below(8);
            }
        }
        Some(bytes)
    };
    let storage = tempfile::tempdir().unwrap();
    crate::support::copy_folder(&pair.project.path("lakehouse"), storage.path());
    land(&mut dice, 3, &[&pair]);
    let mut expected = None;
    for kind in 0..12 {
        fs::remove_dir_all(pair.project.path("lakehouse")).unwrap();
        crate::support::copy_folder(storage.path(), &pair.project.path("lakehouse"));
        // The newest is damaged in any of its parts; or all of them are, and everything is read back.
        let newest = pair.checkpoints().into_iter().rev().find(|path| path.extension().unwrap() == "json").unwrap();
        let stem = newest.file_stem().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<PathBuf> = pair
            .checkpoints()
            .into_iter()
            .filter(|path| kind % 2 == 1 || path.file_name().unwrap().to_str().unwrap().starts_with(&stem))
            .collect();
        let chosen = if kind % 2 == 1 { parts } else { vec![parts[dice.below(parts.len())].clone()] };
        for path in &chosen {
            let bytes = &whole.iter().find(|(p, _)| p == path).unwrap().1;
            match damage(bytes, &mut dice, kind / 2 % 4) {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        let (report, lines) = pair.run(3, 1 + dice.below(3));
        let context = format!("kind {kind}, {chosen:?}: {lines:?}");
        let complaints = lines.iter().filter(|line| line.contains("cannot be used")).count();
        if kind % 2 == 1 {
            assert_eq!(report.checkpoint, None, "{context}");
            // A manifest that is not there is no complaint.
            assert!(complaints > 0 || kind / 2 % 4 == 0, "{context}");
        }
        let tables = pair.tables();
        let expected = expected.get_or_insert_with(|| tables.clone());
        for (table, rows) in &tables {
            assert_rows(&format!("{context}, {table}"), rows, &expected[table]);
        }
        // The next one is whole again.
        assert!(!pair.checkpoints().is_empty(), "{context}");
    }
}
