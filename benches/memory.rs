//! Bytes of memory for each event that SCD2 keeps, by what is allocated: a 64-byte row, an 18-byte key, an 8-byte
//! sequence.
//!
//! ```sh
//! cargo bench --manifest-path benches/Cargo.toml --bench memory
//! ```
//!
//! `settled` is after the load, `grown` after as many events in epochs of 10,000 rows in any order, `peak` the most
//! on the way, which includes a merge's sources and its result.

use peak_alloc::PeakAlloc;
use silverflow_benches::bulk;
use silverflow_operators::{Scd2State, State};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const EVENTS: u64 = 2_000_000;
const WANTED: f64 = 130.0;

fn main() {
    for per_key in [2, 10] {
        let before = ALLOCATED.current_usage();
        let mut state = Scd2State::new();
        {
            let feed = bulk(EVENTS, per_key);
            state.apply(&feed, &mut Vec::new());
        }
        report(&format!("settled, {per_key} events a key"), ALLOCATED.current_usage() - before, &state);
        drop(state);

        let feed = bulk(EVENTS, per_key);
        let before = ALLOCATED.current_usage();
        let mut state = Scd2State::new();
        let mut peak = (0.0, 0, 0);
        for batch in feed.chunks(10_000) {
            state.apply(batch, &mut Vec::new());
            let used = ALLOCATED.current_usage() - before;
            let each = used as f64 / state.len() as f64;
            if state.len() > 200_000 && each > peak.0 {
                peak = (each, used, state.len());
            }
        }
        report(&format!("grown, {per_key} events a key"), ALLOCATED.current_usage() - before, &state);
        println!("peak, {per_key} events a key: {:.1} bytes an event, at {} events", peak.0, peak.2);
    }
}

fn report(what: &str, used: usize, state: &Scd2State) {
    let each = used as f64 / state.len() as f64;
    let verdict = if each <= WANTED { "ok" } else { "MISSED" };
    let told = state.bytes() as f64 / state.len() as f64;
    println!("{what}: {each:.1} bytes an event (the state says {told:.1}), <= {WANTED} {verdict}");
}
