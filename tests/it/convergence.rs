//! AUTO CDC on random feeds: few keys, many events, deletes, truncates, repeats, nulls, ties. Whatever the order of
//! arrival, the cut into batches and the number of workers, the target is what the oracle says, after every epoch.
//!
//! `SILVERFLOW_SEEDS=100` tries more feeds than the usual few; the seed stands in every message.

use serde_json::Value;

use crate::oracle::{self, Config, Event, SCHEMA, Values};
use crate::support::{Dice, Project, difference, project};

struct Target {
    name: &'static str,
    /// The feeds that flow into it.
    feeds: &'static [&'static str],
    clauses: &'static str,
    config: Config,
}

const ALL: &[char] = &['a', 'b', 'n'];

const TARGETS: &[Target] = &[
    target("newest", &["feed"], "STORED AS SCD TYPE 1", false, &[], ALL),
    target("history", &["feed"], "STORED AS SCD TYPE 2", true, &[], ALL),
    target("history_of_a", &["feed"], "STORED AS SCD TYPE 2 TRACK HISTORY ON a", true, &[], &['a']),
    target("history_but_a", &["feed"], "STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (a)", true, &[], &['b', 'n']),
    target("newest_filled", &["feed"], "IGNORE NULL UPDATES STORED AS SCD TYPE 1", false, ALL, ALL),
    target("history_filled", &["feed"], "IGNORE NULL UPDATES STORED AS SCD TYPE 2", true, ALL, ALL),
    target(
        "history_of_b_filled_in_part",
        &["feed"],
        "IGNORE NULL UPDATES ON (a, n) STORED AS SCD TYPE 2 TRACK HISTORY ON b",
        true,
        &['a', 'n'],
        &['b'],
    ),
    target(
        "newest_filled_but_a",
        &["feed"],
        "IGNORE NULL UPDATES ON * EXCEPT (a) STORED AS SCD TYPE 1",
        false,
        &['b', 'n'],
        ALL,
    ),
    target("history_of_two_feeds", &["feed", "other"], "STORED AS SCD TYPE 2", true, &[], ALL),
    target("newest_truncated", &["emptied"], "APPLY AS TRUNCATE WHEN op = 'T' STORED AS SCD TYPE 1", false, &[], ALL),
    target(
        "newest_truncated_filled",
        &["emptied"],
        "APPLY AS TRUNCATE WHEN op = 'T' IGNORE NULL UPDATES STORED AS SCD TYPE 1",
        false,
        ALL,
        ALL,
    ),
];

const fn target(
    name: &'static str,
    feeds: &'static [&'static str],
    clauses: &'static str,
    history: bool,
    ignore_null: &'static [char],
    tracked: &'static [char],
) -> Target {
    Target { name, feeds, clauses, config: Config { history, ignore_null, tracked } }
}

const FEEDS: [&str; 3] = ["feed", "other", "emptied"];

fn definitions() -> String {
    let mut sql = String::new();
    for feed in FEEDS {
        sql += &format!(
            "CREATE STREAMING TABLE {feed} AS SELECT * FROM STREAM read_files(
               'landing/{feed}', format => 'json', schema => '{SCHEMA}', maxFilesPerTrigger => 1);\n"
        );
    }
    for Target { name, feeds, clauses, .. } in TARGETS {
        sql += &format!("CREATE STREAMING TABLE {name};\n");
        for feed in *feeds {
            sql += &format!(
                "CREATE FLOW {feed}_to_{name} AS AUTO CDC INTO {name} FROM STREAM({feed}) KEYS (k)
                   APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS * EXCEPT (s, op) {clauses};\n"
            );
        }
    }
    sql
}

fn random_events(dice: &mut Dice, count: usize, truncates: bool) -> Vec<Event> {
    let letter = |dice: &mut Dice| (!dice.once_in(3)).then(|| ["x", "y", "z"][dice.below(3)].to_string());
    let number = |dice: &mut Dice| (!dice.once_in(3)).then(|| dice.below(3) as i64);
    let mut events: Vec<Event> = Vec::new();
    while events.len() < count {
        if dice.once_in(8) && !events.is_empty() {
            events.push(events[dice.below(events.len())].clone());
            continue;
        }
        let values = Values {
            a: letter(dice),
            b: number(dice),
            n: if dice.once_in(3) { None } else { Some((number(dice), letter(dice))) },
        };
        let sequence = dice.below(count * 2 / 3) as i64;
        if truncates && dice.once_in(15) {
            events.push(Event { key: None, sequence, values: Values { a: None, b: None, n: None }, op: "T" });
            continue;
        }
        let op = ["U", "U", "U", "I", "D"][dice.below(5)];
        events.push(Event { key: Some(dice.below(4) as i64), sequence, values, op });
    }
    events
}

/// The feeds of a seed, in the order in which they arrive.
fn feeds(seed: u64) -> Vec<(&'static str, Vec<Event>)> {
    let mut dice = Dice::new(seed);
    FEEDS.iter().map(|feed| (*feed, random_events(&mut dice, 40, *feed == "emptied"))).collect()
}

fn check(project_: &Project, arrived: &[(&str, Vec<Event>)], context: &str) {
    for target in TARGETS {
        let events: Vec<Event> =
            arrived.iter().filter(|(feed, _)| target.feeds.contains(feed)).flat_map(|(_, e)| e.clone()).collect();
        let mut columns = vec!["k", "a", "b", "n"];
        if target.config.history {
            columns.extend(["__START_AT", "__END_AT"]);
        }
        let columns: Vec<String> = columns.into_iter().map(String::from).collect();
        let actual = project(&project_.rows(&format!("SELECT * FROM {}", target.name)), &columns);
        let expected = project(&oracle::target(&target.config, &events), &columns);
        if let Some(difference) = difference(&actual, &expected) {
            panic!("{context}, {}: {difference}", target.name);
        }
        if target.config.history {
            let faults = oracle::history_faults(&actual, target.config.tracked);
            assert!(faults.is_empty(), "{context}, {}: {faults:?}", target.name);
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SILVERFLOW_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

fn rows(events: &[Event]) -> Vec<Value> {
    events.iter().map(Event::json).collect()
}

#[test]
fn all_at_once() {
    for seed in seeds() {
        let project = Project::new(&definitions());
        let feeds = feeds(seed);
        for (feed, events) in &feeds {
            project.land(feed, "all", &rows(events));
        }
        project.run(2).unwrap();
        check(&project, &feeds, &format!("seed {seed}"));
        project.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn a_run_for_each_batch_is_right_after_each() {
    for seed in seeds() {
        let project = Project::new(&definitions());
        let feeds = feeds(seed + 1000);
        let mut arrived: Vec<(&str, Vec<Event>)> = FEEDS.iter().map(|feed| (*feed, Vec::new())).collect();
        for batch in 0..5 {
            for ((feed, events), (_, seen)) in feeds.iter().zip(&mut arrived) {
                let part: Vec<Event> = events.iter().skip(batch * 8).take(8).cloned().collect();
                project.land(feed, &format!("batch_{batch}"), &rows(&part));
                seen.extend(part);
            }
            project.run(1 + batch % 3).unwrap();
            check(&project, &arrived, &format!("seed {seed}, batch {batch}"));
        }
        project.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn one_event_an_epoch_in_any_order() {
    for seed in seeds() {
        let project = Project::new(&definitions());
        let mut feeds = feeds(seed + 2000);
        let mut dice = Dice::new(seed);
        for (feed, events) in &mut feeds {
            dice.shuffle(events);
            for (i, event) in events.iter().enumerate() {
                project.land(feed, &format!("event_{i:03}"), &[event.json()]);
            }
        }
        project.run(4).unwrap();
        check(&project, &feeds, &format!("seed {seed}"));
        project.assert_clean(&format!("seed {seed}"));
    }
}
