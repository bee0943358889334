//! How the work of an epoch is spread over workers and processes: what the report says of it, and a warning where one key
//! takes most of a worker.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::report::{HotKey, ProcessReport, RunReport, WorkerReport};
use crate::dataflow::LaneLoad;

/// Fewer rows to a worker are no reason for a warning.
const LEAST: u64 = 10_000;

/// What a worker has done since it last said so.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// The worker.
    pub worker: usize,
    /// Rows that were handed to it.
    pub entered: u64,
    /// Microseconds in its operators.
    pub busy_micros: u64,
    /// Messages that waited for it, at most.
    pub waiting: u64,
    /// What it sent to keyed operators.
    pub lanes: Vec<LaneLoad>,
}

/// What has been told already.
#[derive(Debug, Default)]
pub(super) struct Spread {
    processes: Vec<ProcessReport>,
    warned: BTreeSet<(String, String)>,
}

impl Spread {
    /// Adds an epoch's loads to a report, with `processes` as they are now. Warns of each key once.
    pub(super) fn tell(
        &mut self,
        loads: &[Load],
        processes: Vec<ProcessReport>,
        report: &mut RunReport,
        say: &dyn Fn(&str),
    ) {
        let workers = loads.iter().map(|load| load.worker + 1).max().unwrap_or(0);
        let each = workers.checked_div(processes.len()).unwrap_or(0).max(1);
        let worker = |worker| WorkerReport { worker, process: worker / each, ..WorkerReport::default() };
        let mut all: Vec<WorkerReport> = (0..workers).map(worker).collect();
        for load in loads {
            if let Some(own) = all.get_mut(load.worker) {
                own.rows_in += load.entered;
                own.busy_micros += load.busy_micros;
                own.most_waiting = own.most_waiting.max(load.waiting);
            }
            for (own, rows) in all.iter_mut().zip(rows_to(&load.lanes)) {
                own.rows += rows;
            }
        }
        let hot_keys = hot_keys(loads);
        for key in &hot_keys {
            if self.warned.insert((key.table.clone(), key.key.clone())) {
                say(&format!(
                    "warning: [HOT_KEY] {}: the key ({}) has {} of the {} rows of worker {}, and a key is computed by one worker",
                    key.table, key.key, key.rows, key.of, key.worker
                ));
            }
        }
        report.add_spread(&RunReport { workers: all, hot_keys, ..RunReport::default() });
        self.tell_processes(processes, report);
    }

    /// Adds what processes have come to since they were last told of.
    pub(super) fn tell_processes(&mut self, processes: Vec<ProcessReport>, report: &mut RunReport) {
        let before = std::mem::replace(&mut self.processes, processes);
        let since = self.processes.iter().map(|now| match before.get(now.process) {
            Some(before) => now.since(before),
            None => now.clone(),
        });
        report.add_spread(&RunReport { processes: since.collect(), ..RunReport::default() });
    }
}

fn rows_to(lanes: &[LaneLoad]) -> Vec<u64> {
    let mut rows = Vec::new();
    for lane in lanes {
        rows.resize(lane.rows.len().max(rows.len()), 0);
        rows.iter_mut().zip(&lane.rows).for_each(|(sum, rows)| *sum += rows);
    }
    rows
}

/// Keys that have more than half of the rows of a worker which has more than its part. All workers have the same lanes.
fn hot_keys(loads: &[Load]) -> Vec<HotKey> {
    let lanes = loads.iter().map(|load| load.lanes.len()).max().unwrap_or(0);
    let mut hot: Vec<HotKey> = Vec::new();
    for at in 0..lanes {
        let parts: Vec<&LaneLoad> = loads.iter().filter_map(|load| load.lanes.get(at)).collect();
        let mut rows: Vec<u64> = Vec::new();
        let mut keys: BTreeMap<(usize, u64), (&str, u64)> = BTreeMap::new();
        for part in &parts {
            rows.resize(part.rows.len().max(rows.len()), 0);
            rows.iter_mut().zip(&part.rows).for_each(|(sum, rows)| *sum += rows);
            for key in &part.keys {
                keys.entry((key.worker, key.hash)).or_insert((&key.shown, 0)).1 += key.rows;
            }
        }
        let all: u64 = rows.iter().sum();
        for ((worker, _), (key, with)) in keys {
            let of = rows.get(worker).copied().unwrap_or(0);
            let crowded = of >= LEAST && of * rows.len() as u64 * 4 > all * 5;
            let Some(part) = parts.first().filter(|_| crowded && with * 2 > of) else { continue };
            // Another input of the same dataset may have told of it.
            if !hot.iter().any(|known| known.table == part.dataset && known.key == key) {
                hot.push(HotKey { table: part.dataset.clone(), key: key.to_owned(), worker, rows: with, of });
            }
        }
    }
    hot
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::dataflow::KeyLoad;

    fn load(worker: usize, rows: &[u64], hot: u64) -> Load {
        let keys = vec![KeyLoad { worker: 1, hash: 9, shown: "x".into(), rows: hot }];
        let lane = LaneLoad { dataset: "t".into(), rows: rows.to_vec(), keys };
        Load { worker, entered: 3, busy_micros: 5, waiting: 1, lanes: vec![lane] }
    }

    #[test]
    fn a_key_is_named_once_if_it_takes_most_of_a_worker_that_has_more_than_its_part() {
        let cases: [(&[u64], u64, bool); 4] = [
            (&[8_000, 20_000], 11_000, true),
            // Less than half; spread evenly, as keys that are few can be; too few rows.
            (&[8_000, 20_000], 9_000, false),
            (&[20_000, 20_000], 20_000, false),
            (&[100, 4_000], 4_000, false),
        ];
        for (rows, hot, named) in cases {
            let half: Vec<u64> = rows.iter().map(|rows| rows / 2).collect();
            let loads = [load(0, &half, hot / 2), load(1, &half, hot / 2)];
            let said = std::cell::RefCell::new(Vec::new());
            let (mut spread, mut report) = (Spread::default(), RunReport::default());
            for sent in [100, 250] {
                let processes = vec![
                    ProcessReport { process: 0, sent_bytes: sent, ..ProcessReport::default() },
                    ProcessReport { process: 1, ..ProcessReport::default() },
                ];
                spread.tell(&loads, processes, &mut report, &|line| said.borrow_mut().push(line.to_owned()));
            }
            assert_eq!(
                (said.borrow().len(), report.hot_keys.len()),
                (usize::from(named), usize::from(named)),
                "{rows:?}"
            );
            let told: Vec<u64> = report.workers.iter().map(|worker| worker.rows).collect();
            assert_eq!(told, rows.iter().map(|rows| 2 * rows).collect::<Vec<_>>());
            assert_eq!((report.workers[1].process, report.workers[1].rows_in), (1, 6));
            assert_eq!((report.processes[0].sent_bytes, report.processes.len()), (250, 2), "no byte twice");
            let even = rows.iter().sum::<u64>() as f64 / rows.len() as f64;
            assert_eq!(report.skew, Some(*rows.iter().max().unwrap() as f64 / even));
        }
    }
}
