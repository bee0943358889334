//! Benchmarks of the product itself, for the command line: what a late row costs.

mod late_orders;

pub use late_orders::{Lag, Latency, Report, Settings, Stage, late_orders, plot};
