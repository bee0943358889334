//! One of the processes of a run.

use std::time::Duration;

use super::handshake::Expected;
use super::{Hosts, Listener, Pulse, Say, Secret};
use crate::pipeline::Pipeline;

/// What a process knows of itself and of the others.
pub struct Member {
    /// Its number. Process 0 leads.
    pub index: usize,
    /// Where it and the others listen.
    pub hosts: Hosts,
    /// Where it listens.
    pub listener: Listener,
    /// What all of them know.
    pub secret: Secret,
    /// How long it waits for the others at the start.
    pub start_timeout: Duration,
    /// After how long without a sign of life another one counts as lost.
    pub peer_timeout: Duration,
    /// Whether its workers get on.
    pub pulse: Pulse,
    /// Hears of connections that are refused, and the like.
    pub say: Say,
}

impl Member {
    /// What the connections of others have to claim.
    pub(crate) fn expected(&self, pipeline: &Pipeline, workers: usize) -> Expected {
        Expected {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pipeline: pipeline.name.clone(),
            definitions: definitions(pipeline),
            index: self.index,
            processes: self.hosts.len(),
            workers: workers.max(1),
        }
    }
}

/// A hash of what a pipeline says, wherever its files lie.
fn definitions(pipeline: &Pipeline) -> String {
    let Pipeline { name, storage: _, catalog, schema, configuration, datasets, flows, sources, root } = pipeline;
    let mut text = format!("{name:?} {catalog:?} {schema:?} {configuration:?} {datasets:?} {flows:?}");
    // Longer names first: one may begin with another.
    let mut files: Vec<&String> = sources.keys().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.len()));
    for file in files {
        text = text.replace(file.as_str(), file.rsplit(['/', '\\']).next().unwrap_or_default());
    }
    let root = root.to_string_lossy();
    if !root.is_empty() {
        text = text.replace(root.as_ref(), "");
    }
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}
