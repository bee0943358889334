//! The dataflow of a plan, as timely sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use timely::logging::{TimelyEvent, TimelyEventBuilder};

use super::{Start, Tally, build};
use crate::plan::Feed;
use crate::plan::tests::plan;

#[test]
fn operators_bear_the_names_of_datasets_and_flows() {
    let plan = Arc::new(
        plan(
            "CREATE TEMPORARY VIEW tagged AS SELECT o.*, c.k FROM STREAM orders o
               LEFT JOIN (SELECT DISTINCT id AS k FROM customers) c ON o.customer = c.k;
             CREATE STREAMING TABLE history;
             CREATE FLOW changes AS AUTO CDC INTO history FROM STREAM(tagged) KEYS (id) SEQUENCE BY at STORED AS SCD TYPE 2;
             CREATE STREAMING TABLE strays AS SELECT id FROM STREAM tagged WHERE k IS NULL",
        )
        .unwrap(),
    );
    let names: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let (seen, built) = (Arc::clone(&names), Arc::clone(&plan));
    timely::execute(timely::Config::thread(), move |worker| {
        let seen = Arc::clone(&seen);
        worker.log_register().unwrap().insert::<TimelyEventBuilder, _>("timely", move |_, events| {
            for (_, event) in events.iter().flat_map(|events| events.iter()) {
                if let TimelyEvent::Operates(operator) = event {
                    seen.lock().unwrap().insert(operator.name.clone());
                }
            }
        });
        let dataflow = worker.dataflow::<u64, _, _>(|scope| {
            build(scope, &built, &Start::default(), &Tally::default(), &|_| {}).unwrap()
        });
        drop(dataflow);
        while worker.step() {}
    })
    .unwrap()
    .join()
    .into_iter()
    .for_each(|result| result.unwrap());
    let names = names.lock().unwrap();
    for dataset in &plan.datasets {
        assert!(names.iter().any(|n| n.contains(&dataset.label())), "{} in {names:?}", dataset.label());
        let flows: Vec<&str> = match &dataset.feed {
            // A flow that hands its source on as it is has no operator of its own.
            Feed::Append(_) => Vec::new(),
            Feed::Cdc(cdc) => cdc.flows.iter().map(|f| f.name.as_str()).collect(),
        };
        for flow in flows {
            assert!(names.iter().any(|n| n.contains(flow)), "{flow} in {names:?}");
        }
    }
    for part in ["flow main.default.tagged: lookup", "main.default.history: SCD type 2", "commit main.default.strays"] {
        assert!(names.iter().any(|n| n == part), "{part} in {names:?}");
    }
}
