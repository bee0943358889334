//! Pipeline SQL: definition files to declarations, and the SQL dialect that the rest of the project shares.
//!
//! A file is cut into statements and its `${key}` filled in (`interpolate`), each statement becomes tokens at their
//! positions in the file (`token`), our own statements are read from those (`statement`, `dataset`, `cdc`), and queries
//! and expressions by sqlparser. `STREAM` is taken off before sqlparser sees a query (`stream`); afterwards each relation
//! is numbered and listed (`relation`). Names are resolved behind all this, by `pipeline`.

mod cdc;
mod clause;
mod cursor;
mod dataset;
mod depth;
mod dialect;
mod interpolate;
mod json_schema;
mod read_files;
mod refused;
mod relation;
mod shape;
mod snippet;
mod statement;
mod stream;
mod stream_options;
#[cfg(test)]
mod tests;
mod token;
mod types;

pub use dialect::PipelineDialect;
pub(crate) use dialect::UNSIGNED_SHIFT;
pub(crate) use json_schema::{schema_of_json, type_of_json};
pub(crate) use refused::GENERATORS;
pub(crate) use shape::{name_defaults, query_of, select_all};
pub use types::parse_schema;

pub(crate) use cursor::written_name;
pub(crate) use read_files::absolute;
#[cfg(test)]
pub(crate) use snippet::read_expr;
pub(crate) use snippet::{Snippets, read_built, read_query};
pub(crate) use statement::{Context, parse_file};
