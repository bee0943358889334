//! What a pipeline reads from outside: files in folders, and Delta tables of others.
//!
//! Everything here but [`delta`] blocks and belongs on a thread that may. Nothing is remembered: which files were read
//! and up to which version is for the caller to say.

mod avro;
mod columnar;
mod columns;
#[cfg(test)]
mod corpus;
mod csv;
pub mod delta;
mod files;
mod hints;
mod infer;
mod input;
mod json;
mod json_values;
mod lenient;
mod lines;
mod listing;
mod names;
mod numbers;
mod options;
mod parquet;
mod partitions;
mod parts;
mod pattern;
mod reader;
mod rows;
#[cfg(test)]
mod tests;
mod text;

pub use delta::{DeltaSource, First};
pub use files::{FileSource, METADATA, NEW_COLUMNS, ReadStats, metadata_field};
pub use listing::{Landing, as_it_is, is_there};
pub use options::{Clean, Format};
pub use parts::Part;
pub use reader::FileReader;
