//! Verdicts that follow the clock, run by run: what is due is done, also with nothing new to read.

use serde_json::{Value, json};

use crate::support::{Dice, Project, assert_rows};

const ORDERS: &str = "
CREATE STREAMING TABLE bronze (
  CONSTRAINT not_from_the_future EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE,
  CONSTRAINT fresh EXPECT (at > current_timestamp() - INTERVAL 3 DAYS)
) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
  schema => 'id BIGINT, status STRING, at TIMESTAMP, due DATE, op STRING');

CREATE STREAMING TABLE raw AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
  schema => 'id BIGINT, status STRING, at TIMESTAMP, due DATE, op STRING');

CREATE STREAMING TABLE started (
  CONSTRAINT has_begun EXPECT (at <= current_timestamp()) ON VIOLATION DROP ROW
) AS SELECT id, status, at FROM STREAM(raw);

CREATE STREAMING TABLE open AS SELECT id, status FROM STREAM(raw) WHERE due >= current_date();

CREATE TEMPORARY VIEW tagged AS
SELECT *, array_except(array(CASE WHEN due < current_date() THEN 'overdue' END,
                             CASE WHEN at > current_timestamp() THEN 'early' END),
                       array(CAST(NULL AS STRING))) AS warnings
FROM STREAM(raw);

CREATE STREAMING TABLE history;
CREATE FLOW h AS AUTO CDC INTO history FROM STREAM(tagged) KEYS (id) APPLY AS DELETE WHEN op = 'D'
SEQUENCE BY at COLUMNS * EXCEPT (op) STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (warnings);

CREATE STREAMING TABLE current (
  CONSTRAINT begun EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE
);
CREATE FLOW c AS AUTO CDC INTO current FROM STREAM(raw) KEYS (id) APPLY AS DELETE WHEN op = 'D' AND due <= current_date()
SEQUENCE BY at COLUMNS * EXCEPT (op) STORED AS SCD TYPE 1;

CREATE MATERIALIZED VIEW late_versions AS
SELECT id, status, due < current_date() AS late FROM history WHERE __END_AT IS NULL;
";

struct Order {
    id: i64,
    status: String,
    /// Hours since the beginning.
    at: i64,
    /// Days since the beginning.
    due: i64,
    deleted: bool,
}

fn instant(hours: i64) -> String {
    let begin = "2026-01-01T00:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    (begin + chrono::TimeDelta::hours(hours)).format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn day(days: i64) -> String {
    instant(days * 24)[..10].to_owned()
}

impl Order {
    /// One at another time than those there are, so that nothing ties.
    fn random(dice: &mut Dice, there: &[Order], around: i64) -> Order {
        let (mut id, mut at) = (0, 0);
        while there.iter().any(|o| o.id == id && o.at == at) || at == 0 {
            (id, at) = (dice.below(6) as i64, around - 40 + dice.below(120) as i64);
        }
        Order {
            id,
            status: format!("s{}", there.len()),
            at,
            due: around / 24 - 2 + dice.below(8) as i64,
            deleted: dice.once_in(6),
        }
    }

    fn json(&self) -> Value {
        let op = if self.deleted { "D" } else { "U" };
        json!({"id": self.id, "status": self.status, "at": instant(self.at), "due": day(self.due), "op": op})
    }
}

/// Everything that should be there when it is `now`.
fn check(project: &Project, orders: &[Order], now: i64, context: &str) {
    let rows = |orders: Vec<&Order>, show: &dyn Fn(&Order) -> Value| orders.into_iter().map(show).collect::<Vec<_>>();
    let of = |keep: &dyn Fn(&Order) -> bool| orders.iter().filter(|o| keep(o)).collect::<Vec<_>>();
    let (today, status) = (now.div_euclid(24), |o: &Order| json!({"status": o.status}));
    let same = |table: &str, actual: Vec<Value>, expected: Vec<Value>| {
        assert_rows(&format!("{context}: {table}"), &actual, &expected);
    };
    same("bronze", project.rows("SELECT status FROM bronze"), rows(of(&|o| o.at <= now), &status));
    let failed = |o: &Order| json!({"status": o.status, "_dq_failed": ["not_from_the_future"]});
    let actual = project.rows("SELECT status, _dq_failed FROM bronze_quarantine");
    same("bronze_quarantine", actual, rows(of(&|o| o.at > now), &failed));
    same("started", project.rows("SELECT status FROM started"), rows(of(&|o| o.at <= now), &status));
    same("open", project.rows("SELECT status FROM open"), rows(of(&|o| o.due >= today), &status));

    let mut versions = Vec::new();
    let mut late = Vec::new();
    let mut newest = Vec::new();
    for id in 0..6 {
        let mut events: Vec<&Order> = orders.iter().filter(|o| o.id == id).collect();
        events.sort_by_key(|o| o.at);
        for (i, order) in events.iter().enumerate().filter(|(_, o)| !o.deleted) {
            let mut warnings = Vec::new();
            if order.due < today {
                warnings.push("overdue");
            }
            if order.at > now {
                warnings.push("early");
            }
            let end = events.get(i + 1).map(|next| instant(next.at));
            if end.is_none() {
                late.push(json!({"status": order.status, "late": order.due < today}));
            }
            versions.push(json!({"status": order.status, "warnings": warnings,
                "__START_AT": instant(order.at), "__END_AT": end}));
        }
        let passed = |o: &&&Order| o.deleted && o.due <= today || o.at <= now;
        newest.extend(events.iter().rfind(passed).filter(|o| !(o.deleted && o.due <= today)).map(|o| status(o)));
    }
    same("history", project.rows("SELECT status, warnings, __START_AT, __END_AT FROM history"), versions);
    same("late_versions", project.rows("SELECT status, late FROM late_versions"), late);
    same("current", project.rows("SELECT status FROM current"), newest);
}

#[test]
fn tables_are_right_whenever_one_looks() {
    for seed in 0..2 {
        let project = Project::new(ORDERS);
        let mut dice = Dice::new(seed);
        let (mut orders, mut now) = (Vec::<Order>::new(), 0);
        for round in 0..10 {
            let context = format!("seed {seed}, round {round}, hour {now}");
            if round == 0 || dice.once_in(3) {
                for _ in 0..6 {
                    orders.push(Order::random(&mut dice, &orders, now));
                }
                let new: Vec<Value> = orders.iter().rev().take(6).map(Order::json).collect();
                project.land("raw", &format!("r{round:02}"), &new);
            }
            let before = project.versions();
            let held = project.held(&["bronze", "started", "open", "history", "current", "late_versions"]);
            let report = project.run_at(&instant(now), 1 + round % 3).unwrap();
            check(&project, &orders, now, &context);
            project.assert_touched(&report, &held, &context);
            if report.epochs.is_empty() {
                assert_eq!(project.versions(), before, "{context}: nothing was due");
            }
            if round % 4 == 3 {
                project.assert_clean(&context);
                let again = project.run_at(&instant(now), 2).unwrap();
                assert!(again.epochs.is_empty(), "{context}: everything was done");
            }
            now += [0, 1, 5, 24, 30][dice.below(5)];
        }
    }
}

#[test]
fn a_released_row_keeps_its_epoch_and_nothing_is_done_before_it_is_due() {
    let project = Project::new(
        "CREATE STREAMING TABLE bronze (
           CONSTRAINT begun EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE
         ) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT, at TIMESTAMP');",
    );
    project.land("raw", "a", &[json!({"id": 1, "at": "2026-01-03T00:00:00Z"})]);
    project.run_at("2026-01-01T00:00:00Z", 2).unwrap();
    project.land("raw", "b", &[json!({"id": 2, "at": "2026-01-01T00:00:00Z"})]);
    project.run_at("2026-01-02T00:00:00Z", 2).unwrap();
    let early = project.run_at("2026-01-02T23:59:59Z", 2).unwrap();
    assert!(early.epochs.is_empty());
    let due = project.run_at("2026-01-03T00:00:00Z", 2).unwrap();
    assert_eq!(due.epochs, [3]);
    let rows = [json!({"id": 1, "_epoch": 1}), json!({"id": 2, "_epoch": 2})];
    assert_rows("released", &project.rows("SELECT id, _epoch FROM bronze"), &rows);
    assert_rows("released", &project.rows("SELECT id FROM bronze_quarantine"), &[]);
    project.assert_clean("released");
    assert!(project.run_at("2027-01-01T00:00:00Z", 2).unwrap().epochs.is_empty(), "nothing is ever due again");
}

const HANDED_ON: &str = "
CREATE STREAMING TABLE ord AS SELECT * FROM STREAM read_files('landing/ord', format => 'json',
  schema => 'id BIGINT, day DATE, at TIMESTAMP');
CREATE STREAMING TABLE due AS
WITH x AS (SELECT *, current_date() AS today FROM STREAM ord)
SELECT id, today AS loaded_on FROM (SELECT * FROM x) AS y WHERE day <= today;

CREATE TEMPORARY VIEW dated AS SELECT *, current_date() AS today, datediff(current_date(), day) AS age FROM STREAM ord;
CREATE TEMPORARY VIEW passed_on AS SELECT id, day, at, today, age AS days FROM STREAM dated;
CREATE STREAMING TABLE tagged AS SELECT id, CASE WHEN days > 2 THEN 'old' WHEN day <= today THEN 'due' END AS tag
FROM STREAM passed_on;
CREATE STREAMING TABLE fresh (CONSTRAINT young EXPECT (datediff(today, day) < 3) ON VIOLATION QUARANTINE)
AS SELECT id, day, today FROM STREAM dated;
CREATE TEMPORARY VIEW checked (CONSTRAINT young EXPECT (days < 3) ON VIOLATION DROP ROW) AS SELECT * FROM STREAM passed_on;
CREATE STREAMING TABLE young AS SELECT id FROM STREAM checked;
CREATE STREAMING TABLE alive (CONSTRAINT begun EXPECT (day <= today) ON VIOLATION QUARANTINE);
CREATE FLOW f AS AUTO CDC INTO alive FROM STREAM(dated) KEYS (id) APPLY AS DELETE WHEN datediff(today, day) > 4
SEQUENCE BY at COLUMNS id, day, today STORED AS SCD TYPE 1;
";

/// The rows of a table in which the column that hands on the clock decides nothing would never change.
#[test]
fn a_condition_on_a_column_that_hands_on_the_clock_does_not_freeze() {
    let project = Project::new(HANDED_ON);
    let mut dice = Dice::new(5);
    let mut orders: Vec<(i64, i64, i64)> = Vec::new();
    for today in 10..24 {
        let context = format!("day {today}");
        if today % 3 == 1 {
            let new: Vec<(i64, i64, i64)> =
                (0..5).map(|i| (today * 10 + i, today - 4 + dice.below(9) as i64, today)).collect();
            let rows: Vec<Value> =
                new.iter().map(|(id, on, _)| json!({"id": id, "day": day(*on), "at": instant(today * 24)})).collect();
            project.land("ord", &format!("d{today}"), &rows);
            orders.extend(new);
        }
        project.run_at(&instant(today * 24 + 7), 1 + (today % 2) as usize).unwrap();
        let rows = |keep: &dyn Fn(i64) -> bool, show: &dyn Fn(i64, i64, i64) -> Value| -> Vec<Value> {
            orders.iter().filter(|(_, on, _)| keep(*on)).map(|(id, on, came)| show(*id, *on, *came)).collect()
        };
        let same = |table: &str, query: &str, expected: Vec<Value>| {
            assert_rows(&format!("{context}: {table}"), &project.rows(query), &expected);
        };
        let id = |id: i64, _: i64, _: i64| json!({"id": id});
        same(
            "due",
            "SELECT * FROM due",
            rows(&|on| on <= today, &|id, _, came| json!({"id": id, "loaded_on": day(came)})),
        );
        let tag = |id: i64, on: i64, _: i64| {
            let tag = if today - on > 2 { Some("old") } else { (on <= today).then_some("due") };
            json!({"id": id, "tag": tag})
        };
        same("tagged", "SELECT * FROM tagged", rows(&|_| true, &tag));
        same("fresh", "SELECT id FROM fresh", rows(&|on| today - on < 3, &id));
        same("fresh_quarantine", "SELECT id FROM fresh_quarantine", rows(&|on| today - on >= 3, &id));
        same("young", "SELECT id FROM young", rows(&|on| today - on < 3, &id));
        let held = |id: i64, on: i64, came: i64| json!({"id": id, "day": day(on), "today": day(came)});
        same("alive", "SELECT * FROM alive", rows(&|on| on <= today && today - on <= 4, &held));
        if today % 4 == 0 {
            project.assert_clean(&context);
        }
    }
}

#[test]
fn the_clock_does_not_go_backwards() {
    let project = Project::new(
        "CREATE STREAMING TABLE bronze AS
           SELECT * FROM STREAM read_files('landing/raw', format => 'json', schema => 'id BIGINT');",
    );
    project.land("raw", "a", &[json!({"id": 1})]);
    project.run_at("2026-01-02T00:00:00Z", 1).unwrap();
    project.land("raw", "b", &[json!({"id": 2})]);
    assert_eq!(project.run_at("2026-01-01T00:00:00Z", 1).unwrap_err().code(), "WALL_GOES_BACK");
    project.run_at("2026-01-02T00:00:00Z", 1).unwrap();
    assert_eq!(project.rows("SELECT id FROM bronze").len(), 2);
}

#[test]
fn fail_is_for_rows_that_come_and_not_for_time_that_passes() {
    let project = Project::new(
        "CREATE STREAMING TABLE bronze (
           CONSTRAINT valid EXPECT (until > current_timestamp()) ON VIOLATION FAIL UPDATE,
           CONSTRAINT begun EXPECT (at <= current_timestamp()) ON VIOLATION QUARANTINE
         ) AS SELECT * FROM STREAM read_files('landing/raw', format => 'json',
           schema => 'id BIGINT, at TIMESTAMP, until TIMESTAMP');",
    );
    let row = |id: i64, at: &str, until: &str| json!({"id": id, "at": at, "until": until});
    project.land("raw", "a", &[row(1, "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z")]);
    project.run_at("2026-01-02T00:00:00Z", 1).unwrap();
    project.run_at("2026-01-06T00:00:00Z", 2).unwrap();
    assert_eq!(project.rows("SELECT id FROM bronze").len(), 1);
    project.assert_clean("what was valid when it came");
    project.land("raw", "b", &[row(2, "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z")]);
    assert_eq!(project.run_at("2026-01-07T00:00:00Z", 1).unwrap_err().code(), "EXPECTATION_VIOLATED");
}
