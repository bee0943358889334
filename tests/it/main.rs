//! Integration tests: whole pipelines, from files to Delta tables.
//!
//! One binary, so that the engine is linked once. `support` is the only place that touches the engine's API;
//! everything else says what lands, what is declared and what must stand in the tables.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod arrival;
mod audit;
mod cases;
mod chains;
mod checkpoint;
mod cli;
mod clock;
mod continuous;
mod convergence;
mod crash;
mod definitions;
mod example;
mod faults;
mod functions;
mod fuzz;
mod golden;
mod kill;
mod landing;
mod language;
mod memory;
mod oracle;
mod outside;
mod processes;
mod refresh;
mod runs;
mod sink;
mod spark_meaning;
mod support;
mod upstream;
mod verdicts;
mod verify;
