//! What the epoch log says: what was read, when, under which definitions, how it ended, and which run owns the storage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A run, as others know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Random; names the run's heartbeat.
    pub id: String,
    /// Name of its machine.
    pub host: String,
    /// Which start of that machine's kernel, where there is a name for it.
    pub boot: Option<String>,
    /// Process number.
    pub pid: u32,
    /// When it took the storage, in microseconds since 1970, by its own clock.
    pub since_micros: i64,
    /// How often it gives a sign of life, in milliseconds.
    pub beat_millis: u64,
}

/// Of so many epochs it is known which versions of the tables they left.
const PAST: usize = 200;

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = DateTime::<Utc>::from_timestamp_micros(self.since_micros).unwrap_or_default();
        write!(f, "process {} on {}, since {}", self.pid, self.host, since.format("%Y-%m-%d %H:%M:%S UTC"))
    }
}

/// A run has taken the storage. Whatever an earlier generation writes after this is void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// One more than the generation before.
    pub generation: u64,
    /// The run.
    pub owner: Owner,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Path; in the log that from the project's folder, if the file lies in it.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// When it was last modified, in microseconds since 1970.
    pub modified_micros: i64,
}

/// What is remembered of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenFile {
    /// Bytes.
    #[serde(rename = "s")]
    pub size: u64,
    /// When it was last modified, in microseconds since 1970.
    #[serde(rename = "m")]
    pub modified_micros: i64,
    /// The epoch that read it.
    #[serde(rename = "e")]
    pub epoch: u64,
}

impl SeenFile {
    /// Whether the file is still the one that was read.
    pub fn is_of(&self, file: &FileId) -> bool {
        (self.size, self.modified_micros) == (file.size, file.modified_micros)
    }
}

/// What an epoch reads of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// These new files.
    Files(Vec<FileId>),
    /// These files count as read, though they are not.
    Skipped(Vec<FileId>),
    /// A table's changes after `from` (or its contents, if there is none) up to `to`.
    Delta {
        /// Last version read before.
        from: Option<i64>,
        /// Last version of this epoch.
        to: i64,
        /// The table's own id, by which a table that was made anew is noticed.
        #[serde(default)]
        table: Option<String>,
    },
}

/// The start of an epoch, durable before any of its data is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The epoch.
    pub epoch: u64,
    /// The wall clock of the epoch, in microseconds since 1970.
    pub wall_micros: i64,
    /// What it reads, by source. A source with nothing new may be left out.
    pub sources: BTreeMap<String, Position>,
    /// Fingerprints of the definitions, by dataset or flow.
    pub fingerprints: BTreeMap<String, String>,
    /// ONCE flows that are finished when the epoch is complete.
    pub once: Vec<String>,
    /// What fingerprints are made of, by dataset or flow and part; those that were logged before are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, BTreeMap<String, String>>,
    /// Sources that are read from their beginning again: all that was read of them before is replaced by what the epoch
    /// reads.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub forgotten: BTreeSet<String>,
    /// Flows that bear another name now, and the name under which their sources are known here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
}

/// The end of an epoch whose changes are in every table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// The epoch.
    pub epoch: u64,
    /// Delta version of every table at its end.
    pub versions: BTreeMap<String, i64>,
    /// Sources whose input was given back after all: a later epoch reads it.
    pub returned: BTreeSet<String>,
    /// Tables that are not what their definitions say, and have to be set by comparison.
    pub stray: BTreeSet<String>,
    /// When the clock next changes something, if nothing else does before, in microseconds since 1970.
    pub due_micros: Option<i64>,
}

/// The end of an epoch that was given up; its sources are where they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The epoch.
    pub epoch: u64,
    /// Why, for people.
    pub reason: String,
    /// Tables that may hold a part of it, and have to be set by comparison.
    pub stray: BTreeSet<String>,
}

/// What the log says has happened: complete epochs, and the one that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The run that took the storage last, if any has; it may have ended.
    pub generation: Option<Generation>,
    /// The last complete epoch.
    pub last_complete: Option<u64>,
    /// The epoch that was begun and neither completed nor aborted. Nothing of it is in the other fields.
    pub open: Option<Begin>,
    /// The next number to use, as far as the log knows; tables may be ahead.
    pub next: u64,
    /// The wall of every complete epoch.
    pub walls: BTreeMap<u64, i64>,
    /// When the clock next changes something in what the last complete epoch has left, in microseconds since 1970.
    pub due_micros: Option<i64>,
    /// Delta versions of the tables at the end of the last complete epoch.
    pub versions: BTreeMap<String, i64>,
    /// The same for the complete epochs before, [`PAST`] of them with the last one.
    pub past: BTreeMap<u64, BTreeMap<String, i64>>,
    /// Fingerprints of the last complete epoch.
    pub fingerprints: BTreeMap<String, String>,
    /// ONCE flows that are finished.
    pub finished_once: BTreeSet<String>,
    /// Tables that the last epochs have left other than their definitions say: they have to be set by comparison.
    pub stray: BTreeSet<String>,
    /// What fingerprints are made of, by dataset or flow and part.
    pub parts: BTreeMap<String, BTreeMap<String, String>>,
    /// Flows that bear another name now, and the name under which their sources are known here.
    pub renamed: BTreeMap<String, String>,
    files: BTreeMap<String, BTreeMap<String, SeenFile>>,
    delta: BTreeMap<String, i64>,
    delta_tables: BTreeMap<String, String>,
}

impl History {
    /// The files of a source that complete epochs have read, by path; `None` if it was never looked at.
    pub fn seen(&self, source: &str) -> Option<&BTreeMap<String, SeenFile>> {
        self.files.get(source)
    }

    /// Whether a complete epoch has read the file.
    pub fn has_seen(&self, source: &str, path: &str) -> bool {
        self.files.get(source).is_some_and(|x| x.contains_key(path))
    }

    /// The last version of a table source that complete epochs have read.
    pub fn delta_position(&self, source: &str) -> Option<i64> {
        self.delta.get(source).copied()
    }

    /// The history of someone who has never read these sources and has none of these tables.
    pub fn without(&self, sources: &BTreeSet<String>, tables: &BTreeSet<String>) -> History {
        let mut other = self.clone();
        for source in sources {
            other.files.remove(source);
            other.delta.remove(source);
            other.delta_tables.remove(source);
            other.finished_once.remove(source);
        }
        for table in tables {
            other.versions.remove(table);
            other.fingerprints.remove(table);
        }
        other
    }

    /// Gives flows their last names, each with the name under which its sources are known.
    pub fn rename(&mut self, flows: &BTreeMap<String, String>) {
        for (name, origin) in flows {
            self.renamed.retain(|_, known| known != origin);
            self.renamed.insert(name.clone(), origin.clone());
        }
    }

    /// Whether no epoch has begun or ended since `earlier`.
    pub fn is_as(&self, earlier: &History) -> bool {
        (self.next, self.last_complete, &self.open) == (earlier.next, earlier.last_complete, &earlier.open)
    }

    /// The number of the last generation; 0 if there was none.
    pub fn generation(&self) -> u64 {
        self.generation.as_ref().map_or(0, |x| x.generation)
    }

    /// The own id of the table that a table source was when it was last read.
    pub fn delta_table(&self, source: &str) -> Option<&str> {
        self.delta_tables.get(source).map(String::as_str)
    }

    pub(super) fn begin(&mut self, begin: Begin) {
        self.next = self.next.max(begin.epoch + 1);
        self.open = Some(begin);
    }

    pub(super) fn abort(&mut self, abort: Abort) {
        self.open = None;
        self.stray.extend(abort.stray);
    }

    pub(super) fn complete(&mut self, begin: Begin, complete: Complete) {
        self.open = None;
        self.next = self.next.max(complete.epoch + 1);
        self.last_complete = Some(complete.epoch);
        self.walls.insert(complete.epoch, begin.wall_micros);
        self.past.insert(complete.epoch, complete.versions.clone());
        while self.past.len() > PAST {
            self.past.pop_first();
        }
        self.versions = complete.versions;
        self.due_micros = complete.due_micros;
        self.fingerprints = begin.fingerprints;
        self.stray = complete.stray;
        self.parts.extend(begin.parts);
        self.rename(&begin.renamed);
        let returned = |source: &String| complete.returned.contains(source);
        for source in begin.forgotten.iter().filter(|source| !returned(source)) {
            self.files.remove(source);
            self.delta.remove(source);
            self.delta_tables.remove(source);
            self.finished_once.remove(source);
        }
        self.finished_once.extend(begin.once.into_iter().filter(|source| !returned(source)));
        for (source, position) in begin.sources.into_iter().filter(|(source, _)| !returned(source)) {
            match position {
                Position::Files(files) | Position::Skipped(files) => {
                    let seen = |x: FileId| {
                        (x.path, SeenFile { size: x.size, modified_micros: x.modified_micros, epoch: complete.epoch })
                    };
                    self.files.entry(source).or_default().extend(files.into_iter().map(seen));
                }
                Position::Delta { to, table, .. } => {
                    if let Some(table) = table {
                        self.delta_tables.insert(source.clone(), table);
                    }
                    self.delta.insert(source, to);
                }
            }
        }
    }
}
