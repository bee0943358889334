//! Every form of condition on the clock, over hundreds of epochs, against a look at every row in every epoch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::*;
use crate::dataflow::eval::run_steps;
use crate::dataflow::{Inlet, Outcome, Start, TableId, Tally, build, with_wall};
use crate::plan::tests::plan_in;
use crate::plan::{Feed, Node, Plan};

/// What follows the clock. Each form stands in the documentation.
const FORMS: &[&str] = &[
    "at <= current_timestamp()",
    "at < now()",
    "at >= current_timestamp()",
    "current_timestamp() > at",
    "at = current_timestamp()",
    "at <> current_timestamp()",
    "NOT (at > current_timestamp() - INTERVAL 36 HOURS)",
    "at + INTERVAL 90 MINUTES < now()",
    "at BETWEEN current_timestamp() - INTERVAL 2 DAYS AND current_timestamp()",
    "at < current_timestamp() - INTERVAL 1 MONTH",
    "at >= current_timestamp() + INTERVAL 2 MONTHS",
    "at < current_timestamp() - INTERVAL 1 MONTH - INTERVAL 5 HOURS",
    "current_timestamp() - at > INTERVAL 30 HOURS",
    "current_timestamp() - at <= INTERVAL 1 DAY",
    "at - current_timestamp() < INTERVAL 1 DAY",
    "d <= current_date()",
    "d < current_date()",
    "d = current_date()",
    "d <> current_date()",
    "d > current_date() - INTERVAL 2 DAYS",
    "d >= current_date() + INTERVAL 1 MONTH",
    "d < current_date() - 3",
    "date_sub(current_date(), CAST(3 AS INT)) >= d",
    "date_add(d, n) > current_date()",
    "date_add(current_date(), n) = d",
    "add_months(current_date(), CAST(-1 AS INT)) >= d",
    "datediff(current_date(), d) > 3",
    "datediff(d, current_date()) >= 2",
    "current_date() - d BETWEEN 1 AND 2",
    "current_date() BETWEEN d AND date_add(d, n)",
    "d IN (current_date(), current_date() - INTERVAL 1 DAY)",
    "to_date(at) <= current_date()",
    "CAST(at AS DATE) = current_date()",
    "CAST(current_timestamp() AS DATE) > d",
    "at < current_date()",
    "date_trunc('MONTH', current_timestamp()) <= at",
    "date_trunc('WEEK', current_timestamp()) <= at AND date_trunc('HOUR', current_timestamp()) > at",
    "dateadd(current_date(), -7) < d",
    "dateadd(DAY, -7, current_date()) < d",
    "dateadd(MONTH, 1, current_date()) >= d",
    "timestampadd(HOUR, -5, current_timestamp()) > at",
    "timestampadd(HOUR, n, current_timestamp()) > at",
    "timestampadd(DAY, n, current_timestamp()) > at",
    "timestampadd(MONTH, -1, now()) > at",
    "date_diff(current_date(), d) >= 1",
    "DATEDIFF(DAY, d, current_date()) > 3",
    "DATEDIFF(MONTH, d, current_date()) >= 1",
    "timestampdiff(HOUR, at, now()) >= 5",
    "timestampdiff(HOUR, now(), at) >= -5",
    "timestampdiff(WEEK, at, now()) = 0",
    "timestampdiff(DAY, now(), at) < 1",
    "timestampdiff(MONTH, at, now()) < 1",
    "timestampdiff(MONTH, now(), at) >= 1",
    "timestampdiff(QUARTER, at, now()) = 0",
    "to_timestamp(current_date()) <= at",
    "to_date(current_timestamp()) = d",
    "CAST(current_date() AS TIMESTAMP) > at",
    "CAST(current_timestamp() AS TIMESTAMP_NTZ) >= CAST(d AS TIMESTAMP_NTZ)",
    "trunc(current_date(), 'MM') <= d",
    "last_day(current_date()) < d",
    "unix_timestamp(current_timestamp()) - unix_timestamp(at) > 7200",
    "unix_seconds(at) <= unix_seconds(now()) AND unix_millis(at) < unix_millis(now())",
    "unix_micros(now()) - unix_micros(at) BETWEEN 0 AND 86400000000",
    "unix_date(current_date()) - unix_date(d) < 2",
    "CASE WHEN at > current_timestamp() OR d > current_date() THEN 'early' WHEN n > 2 THEN 'other' END = 'early'",
];

/// Conditions on columns that hand on what the clock shows, through select lists, queries in FROM and a view.
const COLUMNS: &[&str] = &[
    "d <= today",
    "NOT (d > today)",
    "moment >= at",
    "datediff(today, d) < 3",
    "age > 3",
    "at < cutoff",
    "d BETWEEN today AND date_add(today, 2)",
    "d IN (today, date_sub(today, 1))",
    "moment - at > INTERVAL 30 HOURS",
    "at < moment - INTERVAL 1 DAY",
    "at < moment - INTERVAL 1 MONTH - INTERVAL 5 HOURS",
    "timestampdiff(HOUR, at, moment) >= 5",
    "date_trunc('MONTH', moment) <= at",
    "to_date(moment) = d",
    "d <= today AND today IS NOT NULL",
    "CASE WHEN d < today THEN 'overdue' WHEN at > moment THEN 'early' END = 'overdue'",
];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as i64) % bound
    }
}

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

fn pipeline(zone: &str, forms: &[&str]) -> Plan {
    let columns = forms.iter().enumerate().map(|(i, form)| format!("{form} AS c{i}")).collect::<Vec<_>>().join(",\n");
    let files = "STREAM read_files('/landing/t', format => 'json', schema => 'id BIGINT, at TIMESTAMP, d DATE, n INT')";
    let handed_on = |from: &str| {
        format!(
            "WITH a AS (SELECT *, current_date() AS today FROM {from})
             SELECT *, now() AS moment, now() - INTERVAL 36 HOURS AS cutoff FROM (SELECT *, datediff(today, d) AS age FROM a)"
        )
    };
    let (handed, once) = (handed_on("STREAM t"), handed_on(files));
    let sql = format!(
        "CREATE STREAMING TABLE t AS SELECT * FROM {files};
         CREATE TEMPORARY VIEW handed_on AS {handed};
         CREATE STREAMING TABLE live AS SELECT id, {columns} FROM STREAM handed_on;
         CREATE STREAMING TABLE once AS SELECT id, {columns} FROM ({once});"
    );
    plan_in(zone, &sql).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Row {
    id: i64,
    at: Option<i64>,
    d: Option<i64>,
    n: Option<i64>,
    arrived: i64,
}

fn batch(plan: &Plan, source: usize, rows: &[Row]) -> RecordBatch {
    let schema = with_wall(&plan.sources[source].schema);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.id))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|r| r.at)).with_timezone("UTC")),
        Arc::new(Date32Array::from_iter(rows.iter().map(|r| r.d.map(|d| d as i32)))),
        Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.n.map(|n| n as i32)))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|r| r.arrived)).with_timezone("UTC")),
    ];
    RecordBatch::try_new(schema, columns).unwrap()
}

fn texts(batch: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::default().with_null("null");
    let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).unwrap()).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect()).collect()
}

fn source_of(plan: &Plan, table: &str) -> usize {
    plan.sources.iter().position(|s| s.id.ends_with(&format!(".{table}"))).unwrap()
}

/// The rows of `once` as they would be, had all of them come now.
fn asked(plan: &Plan, rows: &[Row], wall: i64) -> BTreeMap<Vec<String>, i64> {
    let dataset = plan.datasets.iter().find(|d| d.name.table == "once").unwrap();
    let Feed::Append(flows) = &dataset.feed else { panic!("a query") };
    let Node::Map { steps, input, .. } = &flows[0].1 else { panic!("a projection") };
    let Node::Read { columns, .. } = input.as_ref() else { panic!("files") };
    let rows: Vec<Row> = rows.iter().map(|row| Row { arrived: wall, ..*row }).collect();
    let rows = batch(plan, source_of(plan, "once"), &rows).project(columns).unwrap();
    let results = run_steps(steps, Batch::added(1, rows)).unwrap_or_else(|(bad, _)| panic!("{}", bad.message));
    let mut all = BTreeMap::new();
    for row in results.iter().flat_map(|result| texts(&result.rows)) {
        *all.entry(row).or_insert(0) += 1;
    }
    all
}

fn follow(zone: &str, from: &str, seed: u64, epochs: u64, forms: &'static [&'static str]) {
    let plan = Arc::new(pipeline(zone, forms));
    let around: i64 = from.parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp_micros();
    let context = format!("{zone} {from} seed {seed}");
    timely::execute(timely::Config::thread(), move |worker| {
        let shown: Rc<RefCell<BTreeMap<Vec<String>, i64>>> = Rc::default();
        let table = plan.datasets.iter().position(|d| d.name.table == "live").unwrap();
        let sink = Rc::clone(&shown);
        let deliver = move |outcome| match outcome {
            Outcome::Changes { table: TableId::Rows(index), batches, .. } if index == table => {
                for batch in batches {
                    for (row, diff) in texts(&batch.rows).into_iter().zip(batch.each_diff()) {
                        *sink.borrow_mut().entry(row).or_insert(0) += diff;
                    }
                }
                sink.borrow_mut().retain(|_, count| *count != 0);
            }
            Outcome::Changes { .. } => {}
            Outcome::Faults { faults, .. } => assert!(faults.is_empty(), "{faults:?}"),
        };
        let mut dataflow = worker
            .dataflow::<Epoch, _, _>(|scope| build(scope, &plan, &Start::default(), &Tally::default(), &deliver))
            .unwrap();
        let source = source_of(&plan, "t");
        let mut random = Random(seed);
        let mut rows: Vec<Row> = Vec::new();
        let mut wall = around - 4 * DAY;
        for epoch in 1..=epochs {
            // To right before, at or right after a boundary, or just on.
            wall = match (random.below(3), dataflow.clock.due()) {
                (0, Some(due)) => due - 1 + random.below(3),
                (1, _) => wall + random.below(20) * HOUR / 7,
                _ => wall + random.below(2 * HOUR),
            }
            .max(wall);
            let mut some = |value: i64| (random.below(12) > 0).then_some(value);
            let come: Vec<(i64, [Option<i64>; 3])> =
                (0..4).map(|i| (epoch as i64 * 100 + i, [some(0), some(0), some(0)])).collect();
            let come: Vec<Row> = come
                .into_iter()
                .map(|(id, [at, d, n])| {
                    let near = around + random.below(12 * DAY) - 6 * DAY;
                    let near = match random.below(4) {
                        0 => near - 30 * DAY,
                        1 => near + 61 * DAY,
                        2 => near / DAY * DAY,
                        _ => near,
                    };
                    let day = around / DAY + random.below(14) - 7;
                    let day = if random.below(4) == 0 { day + random.below(130) - 65 } else { day };
                    let n = n.map(|_| random.below(9) - 3);
                    Row { id, at: at.map(|_| near), d: d.map(|_| day), n, arrived: wall }
                })
                .collect();
            let mut gone: Vec<Row> = Vec::new();
            while rows.len() > 60 || rows.len() > 4 && random.below(4) == 0 {
                gone.push(rows.swap_remove(random.below(rows.len() as i64) as usize));
            }
            dataflow.clock.set(epoch, wall);
            let handle = dataflow.inlets.get_mut(&Inlet::Source(source)).unwrap();
            let width = plan.sources[source].schema.fields().len();
            for (part, diff) in [(&come, 1), (&gone, -1)] {
                if !part.is_empty() {
                    handle.advance_to(epoch);
                    let mut one = Batch::added(epoch, batch(&plan, source, part));
                    assert_eq!(one.rows.num_columns(), width + 1);
                    one.diffs = Some(vec![diff; part.len()].into());
                    handle.send(one);
                }
            }
            rows.extend(come);
            for handle in dataflow.inlets.values_mut() {
                handle.advance_to(epoch + 1);
                handle.flush();
            }
            dataflow.clock.advance_to(epoch + 1);
            while dataflow.closed_below() <= epoch {
                worker.step();
            }
            dataflow.clock.closed_below(epoch + 1);
            let expected = asked(&plan, &rows, wall);
            if *shown.borrow() != expected {
                let shown = shown.borrow();
                for (row, _) in expected.iter().filter(|(row, count)| shown.get(*row) != Some(count)) {
                    let is = shown.keys().find(|s| s[0] == row[0]);
                    for (i, form) in forms.iter().enumerate() {
                        if is.is_none_or(|is| is[i + 1] != row[i + 1]) {
                            let source = rows.iter().find(|r| r.id.to_string() == row[0]);
                            println!("{form} should be {} of {source:?} at {wall}", row[i + 1]);
                        }
                    }
                }
                panic!("{context}, epoch {epoch}");
            }
        }
        drop(dataflow);
    })
    .unwrap()
    .join()
    .into_iter()
    .for_each(|result| result.unwrap());
}

#[test]
fn all_of_them_can_be_foretold() {
    for (i, form) in FORMS.iter().enumerate() {
        let files =
            "STREAM read_files('/landing/t', format => 'json', schema => 'id BIGINT, at TIMESTAMP, d DATE, n INT')";
        let sql = format!(
            "CREATE STREAMING TABLE t AS SELECT * FROM {files}; CREATE STREAMING TABLE live AS SELECT id, {form} AS c FROM STREAM t;"
        );
        let plan = plan_in("Europe/Berlin", &sql).unwrap();
        assert!(!plan.lints.iter().any(|l| l.code == "CLOCK_READ_ONCE"), "{i}: {form}");
        let live = plan.datasets.iter().find(|d| d.name.table == "live").unwrap();
        assert!(!live.wall, "{form} asks for the time of arrival");
    }
}

#[test]
fn the_documentation_names_them_all() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/clock.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("\n## ").find(|part| part.starts_with("Conditions follow the clock")).unwrap();
    let examples: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| form"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|code| code.contains(['<', '>', '=']) || code.contains(" IN ") || code.contains(" BETWEEN "))
        .collect();
    assert!(examples.len() > 20);
    for example in &examples {
        assert!(FORMS.iter().any(|form| form.contains(example)), "{example} is in the documentation and in no test");
    }
    // Each function of the forms stands in the table.
    let named = |name: &str| section.to_lowercase().contains(&format!("{name}("));
    for form in FORMS {
        for (at, _) in form.match_indices('(') {
            let name: String = form[..at].chars().rev().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let name = name.chars().rev().collect::<String>().to_lowercase();
            assert!(name.is_empty() || name == "and" || named(&name), "{name} is not in the documentation");
        }
    }
}

#[test]
fn conditions_on_columns_that_hand_on_the_clock_follow_it() {
    follow("UTC", "2024-02-29T00:00:00Z", 11, 60, COLUMNS);
    follow("Europe/Berlin", "2025-03-30T01:00:00Z", 12, 60, COLUMNS);
    follow("America/Sao_Paulo", "2018-11-04T03:00:00Z", 13, 60, COLUMNS);
}

#[test]
fn conditions_follow_the_clock_in_utc_and_over_a_leap_day() {
    follow("UTC", "2024-02-29T00:00:00Z", 1, 60, FORMS);
    follow("Europe/Berlin", "2024-02-29T12:00:00Z", 2, 60, FORMS);
}

#[test]
fn conditions_follow_the_clock_over_nights_in_which_clocks_are_set() {
    follow("Europe/Berlin", "2025-03-30T01:00:00Z", 3, 60, FORMS);
    follow("Europe/Berlin", "2025-10-26T01:00:00Z", 4, 60, FORMS);
    follow("America/Sao_Paulo", "2018-11-04T03:00:00Z", 5, 60, FORMS);
    follow("America/Sao_Paulo", "2018-02-18T02:00:00Z", 6, 60, FORMS);
    follow("America/St_Johns", "2006-10-29T02:31:00Z", 7, 60, FORMS);
}
