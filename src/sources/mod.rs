//! What a pipeline reads from outside: files in folders, and Delta tables of others.
//!
//! Everything here but [`delta`] blocks and belongs on a thread that may. Nothing is remembered: which files were read
//! and up to which version is for the caller to say.

mod columns;
mod csv;
pub mod delta;
mod files;
mod hints;
mod infer;
mod instants;
mod json;
mod listing;
mod numbers;
mod options;
mod parquet;
#[cfg(test)]
mod tests;

pub use delta::{DeltaSource, First};
pub use files::{FileReader, FileSource, METADATA, ReadStats, metadata_field};
pub use listing::{Landing, is_there};
pub use options::Format;
