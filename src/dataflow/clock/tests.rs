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
const FORMS: [&str; 38] = [
    "at <= current_timestamp()",
    "at < now()",
    "at >= current_timestamp()",
    "current_timestamp() > at",
    "at = current_timestamp()",
    "at <> current_timestamp()",
    "NOT (at > current_timestamp() - INTERVAL 36 HOURS)",
    "at + INTERVAL 90 MINUTES < current_timestamp()",
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
    "CASE WHEN at > current_timestamp() OR d > current_date() THEN 'early' WHEN n > 2 THEN 'other' END = 'early'",
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

fn pipeline(zone: &str) -> Plan {
    let columns = FORMS.iter().enumerate().map(|(i, form)| format!("{form} AS c{i}")).collect::<Vec<_>>().join(",\n");
    let files = "STREAM read_files('/landing/t', format => 'json', schema => 'id BIGINT, at TIMESTAMP, d DATE, n INT')";
    let sql = format!(
        "CREATE STREAMING TABLE t AS SELECT * FROM {files};
         CREATE STREAMING TABLE live AS SELECT id, {columns} FROM STREAM t;
         CREATE STREAMING TABLE once AS SELECT id, {columns} FROM {files};"
    );
    plan_in(zone, &sql).unwrap()
}

type Row = (i64, Option<i64>, Option<i64>, Option<i64>);

fn batch(plan: &Plan, source: usize, rows: &[Row], wall: i64) -> RecordBatch {
    let schema = with_wall(&plan.sources[source].schema);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.0))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|r| r.1)).with_timezone("UTC")),
        Arc::new(Date32Array::from_iter(rows.iter().map(|r| r.2.map(|d| d as i32)))),
        Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.3.map(|n| n as i32)))),
        Arc::new(TimestampMicrosecondArray::from(vec![wall; rows.len()]).with_timezone("UTC")),
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
    let Node::Map { steps, .. } = &flows[0].1 else { panic!("a projection") };
    let rows = batch(plan, source_of(plan, "once"), rows, wall);
    let results = run_steps(steps, Batch::added(1, rows)).unwrap_or_else(|(bad, _)| panic!("{}", bad.message));
    let mut all = BTreeMap::new();
    for row in results.iter().flat_map(|result| texts(&result.rows)) {
        *all.entry(row).or_insert(0) += 1;
    }
    all
}

fn follow(zone: &str, from: &str, seed: u64, epochs: u64) {
    let plan = Arc::new(pipeline(zone));
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
            let come: Vec<Row> = (0..4)
                .map(|i| {
                    let id = epoch as i64 * 100 + i;
                    let (at, d, n) = (some(0), some(0), some(0));
                    (id, at, d, n)
                })
                .collect();
            let come: Vec<Row> = come
                .into_iter()
                .map(|(id, at, d, n)| {
                    let near = around + random.below(12 * DAY) - 6 * DAY;
                    let near = match random.below(4) {
                        0 => near - 30 * DAY,
                        1 => near + 61 * DAY,
                        2 => near / DAY * DAY,
                        _ => near,
                    };
                    let day = around / DAY + random.below(14) - 7;
                    let day = if random.below(4) == 0 { day + random.below(130) - 65 } else { day };
                    (id, at.map(|_| near), d.map(|_| day), n.map(|_| random.below(9) - 3))
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
                    let mut one = Batch::added(epoch, batch(&plan, source, part, wall));
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
                    for (i, form) in FORMS.iter().enumerate() {
                        if is.is_none_or(|is| is[i + 1] != row[i + 1]) {
                            let source = rows.iter().find(|r| r.0.to_string() == row[0]);
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
fn conditions_follow_the_clock_in_utc_and_over_a_leap_day() {
    follow("UTC", "2024-02-29T00:00:00Z", 1, 60);
    follow("Europe/Berlin", "2024-02-29T12:00:00Z", 2, 60);
}

#[test]
fn conditions_follow_the_clock_over_nights_in_which_clocks_are_set() {
    follow("Europe/Berlin", "2025-03-30T01:00:00Z", 3, 60);
    follow("Europe/Berlin", "2025-10-26T01:00:00Z", 4, 60);
    follow("America/Sao_Paulo", "2018-11-04T03:00:00Z", 5, 60);
    follow("America/Sao_Paulo", "2018-02-18T02:00:00Z", 6, 60);
    follow("America/St_Johns", "2006-10-29T02:31:00Z", 7, 60);
}
