//! silverflow runs declarative data pipelines on timely and differential dataflow and keeps the results in Delta tables.

pub mod error;
pub mod lake;
pub mod pipeline;
pub mod sources;
