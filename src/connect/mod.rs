//! A server for clients of Spark Connect: Python declares pipelines over it, runs them, and asks their tables.
//!
//! A request is decoded level by level (`wire`, `expression`, `relation`), lowered to the frames that `plan` knows, and
//! what a client declares ends as the same declarations that SQL gives (`graph`). Executions are kept until their answers
//! have arrived (`operation`, `session`).

mod answer;
mod catalog;
mod execute;
mod expression;
mod extension;
mod fields;
pub(crate) mod graph;
mod literal;
mod load;
mod operation;
mod parameters;
mod relation;
mod rows;
mod server;
mod service;
mod session;
mod status;
#[cfg(test)]
mod tests;
mod types;
pub mod wire;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use crate::project::{Loaded, find_spec, name_of_spec};

use self::graph::Home;
pub use load::load;
pub use server::Server;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// What a client must bear; needed for an address that others can reach.
    pub token: Option<String>,
    /// Workers of a run.
    pub workers: usize,
    /// Folder from which relative paths count, until a definition shows where its project is.
    pub root: PathBuf,
    /// How messages name that folder.
    pub shown: PathBuf,
    /// Name of a pipeline whose project cannot be seen.
    pub name: String,
    /// All definitions are in `root`.
    pub fixed_root: bool,
    /// The pipeline whose tables are read before a session has declared its own.
    pub tables: Option<Tables>,
}

/// A pipeline whose tables can be asked.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The pipeline.
    pub pipeline: Arc<Pipeline>,
    /// Its folder.
    pub root: PathBuf,
}

impl From<Loaded> for Tables {
    fn from(loaded: Loaded) -> Tables {
        Tables { pipeline: Arc::new(loaded.pipeline), root: loaded.root }
    }
}

impl ServeOptions {
    /// A server at an address, for clients of this machine.
    ///
    /// # Errors
    /// `NO_CURRENT_FOLDER` (external).
    pub fn at(address: SocketAddr) -> Result<ServeOptions> {
        let root = std::env::current_dir()
            .map_err(|e| Error::external("NO_CURRENT_FOLDER", "the current folder cannot be read").caused_by(e))?;
        Ok(ServeOptions {
            address,
            token: None,
            workers: 1,
            root,
            shown: PathBuf::new(),
            name: "pipeline".to_owned(),
            fixed_root: false,
            tables: None,
        })
    }
}

/// The project that a definition file belongs to, by the project file in its folder or above.
fn project_of(file: &Path) -> Option<Home> {
    let spec = find_spec(file.parent()?).ok()?;
    let root = std::path::absolute(spec.parent()?).ok()?;
    Some(Home { root, shown: PathBuf::new(), name: name_of_spec(&spec)? })
}
