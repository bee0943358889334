//! silverflow runs declarative data pipelines on timely and differential dataflow and keeps the results in Delta tables.

pub mod error;
pub mod pipeline;
pub mod project;
pub mod sql;
