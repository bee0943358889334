//! What the benchmark claims about its feed and its pipeline.

use std::collections::BTreeSet;

use super::*;

fn settings() -> Settings {
    Settings { epochs: 12, batch: 40, late: 0.3, lag: (1, 5), never: 0.1, out_of_order: 0.2, ..Settings::default() }
}

#[test]
fn the_feed_has_the_shares_and_lags_that_were_asked_for() {
    let settings = Settings { epochs: 100, batch: 400, ..settings() };
    let feed = feed::feed(&settings);
    let orders: Vec<(u64, u64)> = feed.iter().flat_map(|x| x.orders.iter().copied()).collect();
    let all = (settings.epochs * settings.batch / settings.items_per_order) as f64;
    assert!((orders.len() as f64 / all - 0.9).abs() < 0.02);
    let late: Vec<u64> = orders.iter().map(|x| x.1).filter(|lag| *lag > 0).collect();
    assert!((late.len() as f64 / orders.len() as f64 - 0.3).abs() < 0.03);
    assert_eq!(late.iter().collect::<BTreeSet<_>>(), (1..=5).collect::<Vec<_>>().iter().collect());
    let corrects = |(n, item): &(usize, &feed::Item)| item.item < *n as u64;
    let old = feed.iter().flat_map(|x| &x.items).enumerate().filter(corrects).count();
    assert!((old as f64 / (settings.epochs * settings.batch) as f64 - 0.2).abs() < 0.02, "{old}");
}

#[test]
fn every_item_of_an_order_that_came_is_resolved_and_nothing_is_touched_in_vain() {
    let settings = settings();
    for workers in [1, 3] {
        let report = late_orders(Stage::Dataflow, &Settings { workers, ..settings.clone() }, &mut |_, _| {}).unwrap();
        assert_eq!(Some(report.touched), report.changed);
        assert_eq!(report.items, settings.epochs * settings.batch);
        assert!(report.late_orders > 0 && report.latency.is_some());
        assert!(report.by_lag.iter().all(|lag| lag.epochs <= 5));
    }
}

#[test]
fn tables_hold_what_the_dataflow_yields() {
    let settings = Settings { epochs: 4, ..settings() };
    let [dataflow, delta] =
        [Stage::Dataflow, Stage::Delta].map(|stage| late_orders(stage, &settings, &mut |_, _| {}).unwrap());
    // Both bronze tables are committed as well; an item that comes in the epoch of its order, or in one right beside it,
    // waits for it at most.
    assert!(delta.touched >= dataflow.touched, "{} and {}", delta.touched, dataflow.touched);
    assert_eq!((delta.items, delta.late_orders), (dataflow.items, dataflow.late_orders));
    assert!(delta.latency.is_some_and(|latency| latency.epochs == dataflow.latency.unwrap().epochs));
}

#[test]
fn settings_that_contradict_themselves_are_refused() {
    for wrong in [
        Settings { late: 1.5, ..settings() },
        Settings { never: -0.1, ..settings() },
        Settings { lag: (0, 3), ..settings() },
        Settings { lag: (4, 3), ..settings() },
        Settings { batch: 0, ..settings() },
    ] {
        let error = late_orders(Stage::Operators, &wrong, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.code(), "BENCH_SETTINGS");
    }
}

#[test]
fn percentiles_are_of_the_nearest_rank() {
    let latency = measure::latency((1..=200).map(f64::from).collect()).unwrap();
    assert_eq!((latency.p50_micros, latency.p99_micros, latency.max_micros), (100.0, 198.0, 200.0));
    assert_eq!(measure::latency(vec![7.0]).unwrap().p99_micros, 7.0);
    assert!(measure::latency(Vec::new()).is_none());
}

#[test]
fn the_plot_has_a_line_for_each_stage() {
    let settings = settings();
    let reports: Vec<Report> =
        [Stage::Operators, Stage::Dataflow].map(|stage| late_orders(stage, &settings, &mut |_, _| {}).unwrap()).into();
    let svg = plot(&reports).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("operators, median") && svg.contains("dataflow, median"));
    assert!(plot(&[]).is_err());
}
