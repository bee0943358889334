//! Verdicts live as long as their reason: references that come late, go and come back; clocks that move; and every
//! row in exactly one place.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Dice, Project, assert_rows, project};

const REFERENCED: &str = "
CREATE STREAMING TABLE facts AS SELECT * FROM STREAM read_files(
  'landing/facts', format => 'json', schema => 'k BIGINT, s BIGINT, ref BIGINT, v STRING', maxFilesPerTrigger => 1);
CREATE STREAMING TABLE reference_changes AS SELECT * FROM STREAM read_files(
  'landing/references', format => 'json', schema => 'id BIGINT, s BIGINT, op STRING, label STRING', maxFilesPerTrigger => 1);
CREATE STREAMING TABLE known;
CREATE FLOW keep_known AS AUTO CDC INTO known FROM STREAM(reference_changes)
  KEYS (id) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY s COLUMNS (id, label) STORED AS SCD TYPE 1;

CREATE TEMPORARY VIEW tagged AS
SELECT f.k, f.s, f.ref, f.v, r.label,
  array_except(array(
    CASE WHEN r.id IS NULL THEN 'unknown' END,
    CASE WHEN r.label = 'blocked' THEN 'blocked' END
  ), array(CAST(NULL AS STRING))) AS failures
FROM STREAM(facts) AS f LEFT JOIN known AS r ON f.ref = r.id;
CREATE TEMPORARY VIEW clean AS SELECT k, s, ref, v, label FROM STREAM(tagged) WHERE size(failures) = 0;
CREATE STREAMING TABLE history;
CREATE FLOW keep_history AS AUTO CDC INTO history FROM STREAM(clean)
  KEYS (k) SEQUENCE BY s COLUMNS * EXCEPT (s) STORED AS SCD TYPE 2;
CREATE STREAMING TABLE rejected;
CREATE FLOW reject AS INSERT INTO rejected BY NAME SELECT k, s, failures FROM STREAM(tagged) WHERE size(failures) > 0;

CREATE STREAMING TABLE matched AS SELECT f.k, f.s, r.label FROM STREAM(facts) AS f JOIN known AS r ON f.ref = r.id;
CREATE STREAMING TABLE present AS SELECT f.k, f.s FROM STREAM(facts) AS f LEFT SEMI JOIN known AS r ON f.ref = r.id;
CREATE STREAMING TABLE absent AS SELECT f.k, f.s FROM STREAM(facts) AS f LEFT ANTI JOIN known AS r ON f.ref = r.id;
";

#[derive(Clone, Debug)]
struct Fact {
    key: i64,
    sequence: i64,
    reference: Option<i64>,
    value: &'static str,
}

/// A reference: id, sequence, and its label unless it goes.
type ReferenceChange = (i64, i64, Option<&'static str>);

fn check_referenced(project_: &Project, facts: &[Fact], changes: &[ReferenceChange], context: &str) {
    let mut newest: BTreeMap<i64, ReferenceChange> = BTreeMap::new();
    for change in changes {
        let entry = newest.entry(change.0).or_insert(*change);
        if change.1 >= entry.1 {
            *entry = *change;
        }
    }
    let label = |fact: &Fact| fact.reference.and_then(|id| newest.get(&id)).and_then(|change| change.2);
    let (mut rejected, mut matched, mut present, mut absent) = (vec![], vec![], vec![], vec![]);
    let mut keys: BTreeMap<i64, BTreeMap<i64, &Fact>> = BTreeMap::new();
    for fact in facts {
        let at = json!({"k": fact.key, "s": fact.sequence});
        match label(fact) {
            Some(label) => {
                present.push(at.clone());
                matched.push(json!({"k": fact.key, "s": fact.sequence, "label": label}));
            }
            None => absent.push(at),
        }
        match label(fact) {
            Some("blocked") => rejected.push(json!({"k": fact.key, "s": fact.sequence, "failures": ["blocked"]})),
            None => rejected.push(json!({"k": fact.key, "s": fact.sequence, "failures": ["unknown"]})),
            _ => drop(keys.entry(fact.key).or_default().insert(fact.sequence, fact)),
        }
    }
    let mut history: Vec<Value> = Vec::new();
    for facts in keys.values() {
        let mut open: Option<Value> = None;
        for (sequence, fact) in facts {
            let row = json!({"k": fact.key, "ref": fact.reference, "v": fact.value, "label": label(fact)});
            if open.as_ref().is_some_and(|o| row.as_object().unwrap().iter().all(|(k, v)| &o[k] == v)) {
                continue;
            }
            history.extend(open.take().map(|mut closed| {
                closed["__END_AT"] = json!(sequence);
                closed
            }));
            let mut version = row;
            version["__START_AT"] = json!(sequence);
            version["__END_AT"] = Value::Null;
            open = Some(version);
        }
        history.extend(open);
    }
    for (table, expected) in
        [("history", history), ("rejected", rejected), ("matched", matched), ("present", present), ("absent", absent)]
    {
        let actual = project_.rows(&format!("SELECT * FROM {table}"));
        let columns: Vec<String> = match expected.first().or(actual.first()).and_then(Value::as_object) {
            Some(row) => row.keys().cloned().collect(),
            None => continue,
        };
        assert_rows(&format!("{context}, {table}"), &project(&actual, &columns), &project(&expected, &columns));
    }
}

fn referenced(seed: u64) -> (Vec<Fact>, Vec<ReferenceChange>) {
    let mut dice = Dice::new(seed);
    // One fact for each key and sequence, and one change for each id and sequence: ties are tested elsewhere.
    let mut places: Vec<(i64, i64)> = (0..4).flat_map(|k| (0..12).map(move |s| (k, s))).collect();
    dice.shuffle(&mut places);
    let fact = |dice: &mut Dice, (key, sequence)| Fact {
        key,
        sequence,
        reference: (!dice.once_in(8)).then(|| dice.below(4) as i64),
        value: ["p", "q"][dice.below(2)],
    };
    let facts = places.into_iter().take(30).map(|place| fact(&mut dice, place)).collect();
    let mut places: Vec<(i64, i64)> = (0..4).flat_map(|id| (0..8).map(move |s| (id, s))).collect();
    dice.shuffle(&mut places);
    let change = |dice: &mut Dice, (id, s)| (id, s, [None, Some("good"), Some("fine"), Some("blocked")][dice.below(4)]);
    let changes = places.into_iter().take(15).map(|place| change(&mut dice, place)).collect();
    (facts, changes)
}

fn land_facts(project: &Project, file: &str, facts: &[Fact]) {
    let row = |f: &Fact| json!({"k": f.key, "s": f.sequence, "ref": f.reference, "v": f.value});
    project.land("facts", file, &facts.iter().map(row).collect::<Vec<_>>());
}

fn land_references(project: &Project, file: &str, changes: &[ReferenceChange]) {
    let row = |(id, s, label): &ReferenceChange| json!({"id": id, "s": s, "op": if label.is_some() { "U" } else { "D" }, "label": label});
    project.land("references", file, &changes.iter().map(row).collect::<Vec<_>>());
}

#[test]
fn verdicts_follow_their_references_run_by_run() {
    for seed in 0..3 {
        let project = Project::new(REFERENCED);
        let (facts, changes) = referenced(seed);
        for batch in 0..5 {
            land_facts(&project, &format!("b{batch}"), &facts[batch * 6..batch * 6 + 6]);
            land_references(&project, &format!("b{batch}"), &changes[batch * 3..batch * 3 + 3]);
            project.run(1 + batch % 2).unwrap();
            let context = format!("seed {seed}, batch {batch}");
            check_referenced(&project, &facts[..batch * 6 + 6], &changes[..batch * 3 + 3], &context);
            project.assert_clean(&context);
        }
    }
}

#[test]
fn verdicts_follow_their_references_epoch_by_epoch() {
    for seed in 10..13 {
        let project = Project::new(REFERENCED);
        let (facts, changes) = referenced(seed);
        for (i, fact) in facts.iter().enumerate() {
            land_facts(&project, &format!("f{i:02}"), std::slice::from_ref(fact));
        }
        for (i, change) in changes.iter().enumerate() {
            land_references(&project, &format!("r{i:02}"), std::slice::from_ref(change));
        }
        project.run(4).unwrap();
        check_referenced(&project, &facts, &changes, &format!("seed {seed}"));
        project.assert_clean(&format!("seed {seed}"));
    }
}

#[test]
fn verdicts_do_not_depend_on_who_comes_first() {
    let (facts, changes) = referenced(77);
    for references_first in [false, true] {
        let project = Project::new(REFERENCED);
        std::fs::create_dir_all(project.path("landing/facts")).unwrap();
        std::fs::create_dir_all(project.path("landing/references")).unwrap();
        if references_first {
            land_references(&project, "all", &changes);
        } else {
            land_facts(&project, "all", &facts);
        }
        project.run(2).unwrap();
        land_facts(&project, "all", &facts);
        land_references(&project, "all", &changes);
        project.run(2).unwrap();
        check_referenced(&project, &facts, &changes, &format!("references first: {references_first}"));
    }
}

const JUDGED: &str = "
CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files(
  'landing/raw', format => 'json', schema => 'id BIGINT, amount BIGINT, country STRING');
CREATE STREAMING TABLE judged (
  CONSTRAINT has_country EXPECT (country IS NOT NULL),
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION QUARANTINE,
  CONSTRAINT small EXPECT (amount < 1000) ON VIOLATION QUARANTINE,
  CONSTRAINT has_id EXPECT (id IS NOT NULL) ON VIOLATION DROP ROW
) AS SELECT * FROM STREAM(raw);
";

#[test]
fn every_row_is_in_exactly_one_place_and_a_null_verdict_is_a_violation() {
    let project = Project::new(JUDGED);
    let row = |id: Option<i64>, amount: Option<i64>, country: Option<&str>| json!({"id": id, "amount": amount, "country": country});
    project.land(
        "raw",
        "a",
        &[
            row(Some(1), Some(5), Some("DE")),
            row(Some(2), Some(5), None),
            row(Some(3), Some(-5), Some("DE")),
            row(Some(4), None, Some("DE")),
            row(Some(5), Some(5000), None),
            row(None, Some(5), Some("DE")),
            row(None, Some(-5), Some("DE")),
            row(Some(1), Some(5), Some("DE")),
        ],
    );
    project.run(2).unwrap();
    let target = [row(Some(1), Some(5), Some("DE")), row(Some(1), Some(5), Some("DE")), row(Some(2), Some(5), None)];
    assert_rows("target", &project.rows("SELECT id, amount, country FROM judged"), &target);
    // A row that is to be quarantined and dropped is quarantined: it can still be put right.
    let quarantine = [
        json!({"id": 3, "_dq_failed": ["positive"]}),
        json!({"id": 4, "_dq_failed": ["positive", "small"]}),
        json!({"id": 5, "_dq_failed": ["has_country", "small"]}),
        json!({"id": null, "_dq_failed": ["positive", "has_id"]}),
    ];
    assert_rows("quarantine", &project.rows("SELECT id, _dq_failed FROM judged_quarantine"), &quarantine);
    project.assert_clean("judged");
}

const CLOCKED: &str = "
CREATE STREAMING TABLE bronze (
  CONSTRAINT not_from_the_future EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE
) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, due DATE, at TIMESTAMP');
CREATE STREAMING TABLE dated AS SELECT id, due > current_date() AS early, current_date() AS seen FROM STREAM(bronze);
";

#[test]
fn a_condition_follows_the_clock_and_its_value_is_the_wall_of_the_epoch_in_which_a_row_arrived() {
    let project = Project::new(CLOCKED);
    let row = |id: i64, due: &str, at: &str| json!({"id": id, "due": due, "at": at});
    project.land(
        "raw",
        "a",
        &[row(1, "2026-01-10", "2026-01-01T00:00:00Z"), row(2, "2026-01-01", "2026-01-03T00:00:00Z")],
    );
    project.run_at("2026-01-02T00:00:00Z", 2).unwrap();
    assert_rows("first", &project.rows("SELECT id FROM bronze"), &[json!({"id": 1})]);
    assert_rows("waiting", &project.rows("SELECT id FROM bronze_quarantine"), &[json!({"id": 2})]);
    project.land("raw", "b", &[row(3, "2026-01-10", "2026-01-11T00:00:00Z")]);
    project.run_at("2026-01-11T00:00:00Z", 2).unwrap();
    let dated = |id: i64, seen: &str| json!({"id": id, "early": false, "seen": seen});
    assert_rows(
        "dated",
        &project.rows("SELECT * FROM dated"),
        &[dated(1, "2026-01-02"), dated(2, "2026-01-02"), dated(3, "2026-01-11")],
    );
    assert_rows("released", &project.rows("SELECT id FROM bronze_quarantine"), &[]);
    project.assert_clean("dated");
}

#[test]
fn a_drop_rule_that_is_added_later_takes_no_stored_row_away() {
    let table = |rules: &str| {
        format!(
            "CREATE STREAMING TABLE bronze {rules} AS
             SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');"
        )
    };
    let project = Project::new(&table(""));
    project.land("raw", "a", &[json!({"id": -1}), json!({"id": 1})]);
    project.run(1).unwrap();
    project.define(&table("(CONSTRAINT positive EXPECT (id > 0) ON VIOLATION DROP ROW)"));
    project.land("raw", "b", &[json!({"id": -2}), json!({"id": 2})]);
    project.run(2).unwrap();
    assert_rows(
        "kept",
        &project.rows("SELECT * FROM bronze"),
        &[json!({"id": -1}), json!({"id": 1}), json!({"id": 2})],
    );
    project.assert_clean("kept");
}

#[test]
fn a_table_that_is_gone_is_made_again_and_a_log_that_is_gone_is_missed() {
    let project = Project::new(
        "CREATE STREAMING TABLE bronze AS
           SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');
         CREATE STREAMING TABLE odd AS SELECT id FROM STREAM bronze WHERE id % 2 = 1;",
    );
    project.land("raw", "a", &[json!({"id": 1}), json!({"id": 2})]);
    project.run(1).unwrap();
    std::fs::remove_dir_all(project.path("lakehouse/main/default/odd")).unwrap();
    project.run(1).unwrap();
    assert_rows("made again", &project.rows("SELECT * FROM odd"), &[json!({"id": 1})]);
    std::fs::remove_dir_all(project.path("lakehouse/_silverflow/epochs")).unwrap();
    assert_eq!(project.run(1).unwrap_err().code(), "EPOCH_LOG_MISSING");
}

/// VARCHAR(n) was read as STRING, and its length as nothing.
#[test]
fn a_text_that_is_too_long_for_its_column_fails_the_epoch() {
    let project = Project::new(
        "CREATE STREAMING TABLE t (id BIGINT, name VARCHAR(3)) AS
           SELECT * FROM STREAM read_files('landing/t', format => 'json', schema => 'id BIGINT, name STRING');",
    );
    project.land("t", "a", &[json!({"id": 1, "name": "abc"}), json!({"id": 2, "name": "äöü  "}), json!({"id": 3})]);
    project.run(1).unwrap();
    let rows = [json!({"id": 1, "name": "abc"}), json!({"id": 2, "name": "äöü"}), json!({"id": 3, "name": null})];
    assert_rows("as long as may be", &project.rows("SELECT id, name FROM t"), &rows);
    project.assert_clean("as long as may be");
    project.land("t", "b", &[json!({"id": 4, "name": "abcd"})]);
    let error = project.run(2).unwrap_err();
    assert!(error.to_string().contains("EXCEED_LIMIT_LENGTH"), "{error}");
    assert_rows("nothing of it", &project.rows("SELECT id, name FROM t"), &rows);
}
