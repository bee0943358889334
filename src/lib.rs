//! silverflow runs declarative data pipelines on timely and differential dataflow and keeps the results in Delta tables.

pub mod bench;
pub mod cluster;
pub mod connect;
pub mod dataflow;
pub mod error;
pub mod lake;
pub mod pipeline;
pub mod plan;
pub mod project;
pub mod rows;
pub mod runtime;
pub mod sources;
pub mod sql;
mod stack;
