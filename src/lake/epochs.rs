//! The epoch log: what was read, when, under which definitions, and how it ended. One immutable object a record.
//!
//! Records are `<20 digits>.<kind>.json`, each a document `{"format", "kind", "crc32", "body"}` whose checksum is that
//! of the body's bytes as they stand. A base record holds everything up to its epoch and replaces the records before
//! it; those are removed only after the base is durable.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::storage::Lake;
use crate::error::{Error, Result};

/// Raised whenever a record means something else than before.
const FORMAT: u32 = 2;
/// More records than this are replaced by a base.
const RECORDS: usize = 200;
/// Of so many epochs it is known which versions of the tables they left.
const PAST: usize = 200;

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Full path or URL.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// When it was last modified, in microseconds since 1970.
    pub modified_micros: i64,
}

/// What an epoch reads of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// These new files.
    Files(Vec<FileId>),
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
    /// Sources whose flow is gone for good.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped: BTreeSet<String>,
    /// Flows that bear another name now, and the name under which their sources are known here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
}

/// The end of an epoch whose changes are in every table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
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
    /// Sources whose flow is gone for good.
    pub dropped: BTreeSet<String>,
    /// Flows that bear another name now, and the name under which their sources are known here.
    pub renamed: BTreeMap<String, String>,
    files: BTreeMap<String, BTreeSet<String>>,
    delta: BTreeMap<String, i64>,
    delta_tables: BTreeMap<String, String>,
}

impl History {
    /// Paths of the files of a source that complete epochs have read; `None` if there are none.
    pub fn seen(&self, source: &str) -> Option<&BTreeSet<String>> {
        self.files.get(source)
    }

    /// Whether a complete epoch has read the file.
    pub fn has_seen(&self, source: &str, path: &str) -> bool {
        self.files.get(source).is_some_and(|x| x.contains(path))
    }

    /// The last version of a table source that complete epochs have read.
    pub fn delta_position(&self, source: &str) -> Option<i64> {
        self.delta.get(source).copied()
    }

    /// The own id of the table that a table source was when it was last read.
    pub fn delta_table(&self, source: &str) -> Option<&str> {
        self.delta_tables.get(source).map(String::as_str)
    }

    fn begin(&mut self, begin: Begin) {
        self.next = self.next.max(begin.epoch + 1);
        self.open = Some(begin);
    }

    fn abort(&mut self, abort: Abort) {
        self.open = None;
        self.stray.extend(abort.stray);
    }

    fn complete(&mut self, begin: Begin, complete: Complete) {
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
        self.dropped.extend(begin.dropped);
        self.renamed.extend(begin.renamed);
        let returned = |source: &String| complete.returned.contains(source);
        for source in begin.forgotten.iter().filter(|source| !returned(source)) {
            self.files.remove(source);
            self.delta.remove(source);
            self.finished_once.remove(source);
        }
        self.finished_once.extend(begin.once.into_iter().filter(|source| !returned(source)));
        for (source, position) in begin.sources.into_iter().filter(|(source, _)| !returned(source)) {
            match position {
                Position::Files(files) => {
                    self.files.entry(source).or_default().extend(files.into_iter().map(|x| x.path))
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

/// Everything up to an epoch, all of it closed.
#[derive(Debug, Serialize, Deserialize)]
struct Base {
    epoch: u64,
    last_complete: Option<u64>,
    walls: BTreeMap<u64, i64>,
    due_micros: Option<i64>,
    versions: BTreeMap<String, i64>,
    past: BTreeMap<u64, BTreeMap<String, i64>>,
    fingerprints: BTreeMap<String, String>,
    finished_once: BTreeSet<String>,
    stray: BTreeSet<String>,
    parts: BTreeMap<String, BTreeMap<String, String>>,
    dropped: BTreeSet<String>,
    renamed: BTreeMap<String, String>,
    files: BTreeMap<String, BTreeSet<String>>,
    delta: BTreeMap<String, i64>,
    #[serde(default)]
    delta_tables: BTreeMap<String, String>,
}

/// The epoch log of a storage. One writer at a time: a record that exists already means that there is another one.
#[derive(Debug)]
pub struct EpochLog {
    lake: Lake,
    folder: String,
    /// Names of the records that are there.
    records: Vec<String>,
    history: History,
}

impl EpochLog {
    /// Reads the log; an empty one if there is none.
    ///
    /// # Errors
    /// `EPOCH_LOG_DAMAGED` (external), naming the record, if one is damaged, of an unknown format or missing.
    pub async fn load(lake: &Lake) -> Result<(EpochLog, History)> {
        let folder = lake.private_location("epochs");
        let mut names: BTreeMap<(u64, u8), String> = BTreeMap::new();
        for name in lake.list(&folder).await? {
            if let Some(key) = key_of(&name) {
                names.insert(key, name);
            }
        }
        let mut history = History::default();
        // A record of the base's epoch is part of it.
        let base = names.iter().rev().find(|((_, kind), _)| *kind == BASE).map(|(key, name)| (*key, name.clone()));
        if let Some(((epoch, _), name)) = &base {
            let base: Base = read(lake, &folder, name).await?;
            if base.epoch != *epoch {
                return Err(damaged(lake, &folder, name, "it is of another epoch"));
            }
            history = History {
                last_complete: base.last_complete,
                open: None,
                next: epoch + 1,
                walls: base.walls,
                due_micros: base.due_micros,
                past: base.past,
                versions: base.versions,
                fingerprints: base.fingerprints,
                finished_once: base.finished_once,
                stray: base.stray,
                parts: base.parts,
                dropped: base.dropped,
                renamed: base.renamed,
                files: base.files,
                delta: base.delta,
                delta_tables: base.delta_tables,
            };
        }
        let after = base.map(|((epoch, _), _)| epoch);
        for ((epoch, kind), name) in names.iter().filter(|((epoch, _), _)| after.is_none_or(|x| *epoch > x)) {
            let wrong = |why: &str| damaged(lake, &folder, name, why);
            match *kind {
                BEGIN => {
                    if history.open.is_some() {
                        return Err(wrong("the epoch before it has no end"));
                    }
                    let begin: Begin = read(lake, &folder, name).await?;
                    if begin.epoch != *epoch {
                        return Err(wrong("it is of another epoch"));
                    }
                    history.begin(begin);
                }
                kind => {
                    let begin = history
                        .open
                        .take()
                        .filter(|x| x.epoch == *epoch)
                        .ok_or_else(|| wrong("its epoch has no beginning"))?;
                    if kind == ABORT {
                        history.abort(read(lake, &folder, name).await?);
                    } else {
                        let complete: Complete = read(lake, &folder, name).await?;
                        if complete.epoch != *epoch {
                            return Err(wrong("it is of another epoch"));
                        }
                        history.complete(begin, complete);
                    }
                }
            }
        }
        let log =
            EpochLog { lake: lake.clone(), folder, records: names.into_values().collect(), history: history.clone() };
        Ok((log, history))
    }

    /// What the log says, with everything written through it.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Records the start of an epoch.
    ///
    /// # Errors
    /// `EPOCH_TAKEN` (external) if another run has begun it; internal if an epoch is open or the number was used.
    pub async fn begin(&mut self, begin: &Begin) -> Result<()> {
        if self.history.open.is_some() || begin.epoch < self.history.next {
            return Err(Error::internal(format!("epoch {} cannot begin now", begin.epoch)));
        }
        self.write(begin.epoch, BEGIN, begin).await?;
        self.history.begin(begin.clone());
        Ok(())
    }

    /// Records that the open epoch is in every table. Now and then it also replaces old records by a base.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn complete(&mut self, complete: &Complete) -> Result<()> {
        let begin = self.opened(complete.epoch)?;
        self.write(complete.epoch, COMPLETE, complete).await?;
        self.history.complete(begin, complete.clone());
        self.compact().await
    }

    /// Records that the open epoch is in no table.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn abort(&mut self, abort: &Abort) -> Result<()> {
        self.opened(abort.epoch)?;
        self.write(abort.epoch, ABORT, abort).await?;
        self.history.abort(abort.clone());
        self.compact().await
    }

    fn opened(&self, epoch: u64) -> Result<Begin> {
        let open = self.history.open.as_ref().filter(|x| x.epoch == epoch);
        open.cloned().ok_or_else(|| Error::internal(format!("epoch {epoch} is not open")))
    }

    async fn write<T: Serialize>(&mut self, epoch: u64, kind: u8, body: &T) -> Result<()> {
        let name = format!("{epoch:020}.{}.json", KINDS.get(usize::from(kind)).copied().unwrap_or_default());
        let path = format!("{}/{name}", self.folder);
        if !self.lake.put_new(&path, encode(kind, body)?).await? {
            return Err(Error::external(
                "EPOCH_TAKEN",
                format!("{} was written by another run", self.lake.display(&path)),
            )
            .help("run one pipeline at a time on a storage")
            .epoch(epoch));
        }
        self.records.push(name);
        Ok(())
    }

    async fn compact(&mut self) -> Result<()> {
        // An open epoch keeps its own record, so a base ends before it.
        let Some(epoch) = self.history.next.checked_sub(1).filter(|_| self.history.open.is_none()) else {
            return Ok(());
        };
        if self.records.len() <= RECORDS {
            return Ok(());
        }
        let old = std::mem::take(&mut self.records);
        let history = &self.history;
        let base = Base {
            epoch,
            last_complete: history.last_complete,
            walls: history.walls.clone(),
            due_micros: history.due_micros,
            past: history.past.clone(),
            versions: history.versions.clone(),
            fingerprints: history.fingerprints.clone(),
            finished_once: history.finished_once.clone(),
            stray: history.stray.clone(),
            parts: history.parts.clone(),
            dropped: history.dropped.clone(),
            renamed: history.renamed.clone(),
            files: history.files.clone(),
            delta: history.delta.clone(),
            delta_tables: history.delta_tables.clone(),
        };
        self.write(epoch, BASE, &base).await?;
        self.lake.remove(old.iter().map(|x| format!("{}/{x}", self.folder)).collect()).await
    }
}

const BEGIN: u8 = 0;
const ABORT: u8 = 1;
const COMPLETE: u8 = 2;
const BASE: u8 = 3;
const KINDS: [&str; 4] = ["begin", "abort", "complete", "base"];

fn key_of(name: &str) -> Option<(u64, u8)> {
    let mut parts = name.split('.');
    let (epoch, kind, end) = (parts.next()?, parts.next()?, parts.next()?);
    let kind = (0..).zip(KINDS).find(|(_, x)| *x == kind)?.0;
    (epoch.len() == 20 && end == "json" && parts.next().is_none())
        .then(|| epoch.parse().ok().map(|epoch| (epoch, kind)))
        .flatten()
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    format: u32,
    kind: std::borrow::Cow<'a, str>,
    crc32: u32,
    #[serde(borrow)]
    body: &'a RawValue,
}

fn encode<T: Serialize>(kind: u8, body: &T) -> Result<Vec<u8>> {
    let failed = |e| Error::internal("an epoch record cannot be written").caused_by(e);
    let body = serde_json::value::to_raw_value(body).map_err(failed)?;
    let kind = KINDS.get(usize::from(kind)).copied().unwrap_or_default();
    let record =
        Record { format: FORMAT, kind: kind.into(), crc32: crc32fast::hash(body.get().as_bytes()), body: &body };
    serde_json::to_vec(&record).map_err(failed)
}

async fn read<T: DeserializeOwned>(lake: &Lake, folder: &str, name: &str) -> Result<T> {
    let wrong = |why: &str| damaged(lake, folder, name, why);
    let bytes = lake.get(&format!("{folder}/{name}")).await?.ok_or_else(|| wrong("it vanished"))?;
    decode(&bytes, name).map_err(|e| wrong(&e))
}

fn decode<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T, String> {
    let record: Record<'_> = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if record.format != FORMAT {
        return Err(format!("its format {} is not the one of this version, {FORMAT}", record.format));
    }
    if crc32fast::hash(record.body.get().as_bytes()) != record.crc32 {
        return Err("its checksum does not match".into());
    }
    if name.split('.').nth(1) != Some(&record.kind) {
        return Err(format!("it is a record of the kind {}", record.kind));
    }
    serde_json::from_str(record.body.get()).map_err(|e| e.to_string())
}

fn damaged(lake: &Lake, folder: &str, name: &str, why: &str) -> Error {
    Error::external("EPOCH_LOG_DAMAGED", format!("cannot use {}: {why}", lake.display(&format!("{folder}/{name}"))))
        .help("restore the record from a backup")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests {
    use super::*;

    fn begin(epoch: u64, files: &[&str]) -> Begin {
        let files = files.iter().map(|x| FileId { path: (*x).into(), size: 1, modified_micros: 2 }).collect();
        Begin {
            epoch,
            wall_micros: 1000 + epoch as i64,
            sources: [
                ("raw".to_owned(), Position::Files(files)),
                ("t".to_owned(), Position::Delta { from: None, to: epoch as i64, table: Some("id".to_owned()) }),
            ]
            .into(),
            fingerprints: [("a".to_owned(), format!("f{epoch}"))].into(),
            once: if epoch == 1 { vec!["o".into()] } else { vec![] },
            ..Begin::default()
        }
    }

    fn complete(epoch: u64) -> Complete {
        Complete {
            epoch,
            versions: [("main.default.a".to_owned(), epoch as i64 + 7)].into(),
            returned: BTreeSet::new(),
            stray: BTreeSet::new(),
            due_micros: Some(epoch as i64),
        }
    }

    async fn lake() -> (tempfile::TempDir, Lake) {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        (folder, lake)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_written_is_what_the_next_run_reads() {
        let (_folder, lake) = lake().await;
        let (mut log, history) = EpochLog::load(&lake).await.unwrap();
        assert_eq!(history, History::default());
        log.begin(&begin(1, &["x", "y"])).await.unwrap();
        log.complete(&complete(1)).await.unwrap();
        log.begin(&begin(2, &["z"])).await.unwrap();
        log.abort(&Abort { epoch: 2, reason: "no".into(), stray: ["a".to_owned()].into() }).await.unwrap();
        log.begin(&begin(5, &["z"])).await.unwrap();
        let (again, history) = EpochLog::load(&lake).await.unwrap();
        assert_eq!(&history, log.history());
        assert_eq!(history.last_complete, Some(1));
        assert_eq!(history.due_micros, Some(1));
        assert_eq!(history.next, 6);
        assert_eq!(history.open, Some(begin(5, &["z"])));
        assert!(history.has_seen("raw", "x") && !history.has_seen("raw", "z"));
        assert_eq!(history.delta_position("t"), Some(1));
        assert_eq!(history.walls, [(1, 1001)].into());
        assert_eq!(history.finished_once, ["o".to_owned()].into());
        assert_eq!(history.stray, ["a".to_owned()].into());
        drop(again);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn input_that_is_given_back_has_not_been_read() {
        let (_folder, lake) = lake().await;
        let (mut log, _) = EpochLog::load(&lake).await.unwrap();
        log.begin(&begin(1, &["x"])).await.unwrap();
        let stray = BTreeSet::from(["b".to_owned()]);
        let returned = BTreeSet::from(["raw".to_owned(), "o".to_owned()]);
        log.complete(&Complete { returned, stray: stray.clone(), ..complete(1) }).await.unwrap();
        let (_, history) = EpochLog::load(&lake).await.unwrap();
        assert!(!history.has_seen("raw", "x") && history.finished_once.is_empty());
        assert_eq!((history.delta_position("t"), &history.stray), (Some(1), &stray));
        log.begin(&begin(2, &["x"])).await.unwrap();
        log.complete(&complete(2)).await.unwrap();
        assert!(log.history().stray.is_empty() && log.history().has_seen("raw", "x"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_number_is_used_once_and_a_second_run_is_noticed() {
        let (_folder, lake) = lake().await;
        let (mut a, _) = EpochLog::load(&lake).await.unwrap();
        let (mut b, _) = EpochLog::load(&lake).await.unwrap();
        a.begin(&begin(0, &[])).await.unwrap();
        assert_eq!(b.begin(&begin(0, &[])).await.unwrap_err().code(), "EPOCH_TAKEN");
        a.complete(&complete(0)).await.unwrap();
        assert_eq!(a.begin(&begin(0, &[])).await.unwrap_err().code(), "INTERNAL");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_records_become_a_base_and_nothing_is_forgotten() {
        let (folder, lake) = lake().await;
        let (mut log, _) = EpochLog::load(&lake).await.unwrap();
        for epoch in 1..=250 {
            log.begin(&begin(epoch, &[&format!("f{epoch}")])).await.unwrap();
            log.complete(&complete(epoch)).await.unwrap();
        }
        let count = std::fs::read_dir(folder.path().join("_silverflow/epochs")).unwrap().count();
        assert!(count <= RECORDS + 2, "{count}");
        let (_, history) = EpochLog::load(&lake).await.unwrap();
        assert_eq!(&history, log.history());
        assert_eq!(history.seen("raw").unwrap().len(), 250);
        assert_eq!(history.walls.len(), 250);
        assert_eq!(history.past.len(), PAST);
        assert_eq!(history.past.last_key_value(), Some((&250, &complete(250).versions)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn damage_is_an_external_error_that_names_the_record() {
        let (folder, lake) = lake().await;
        let (mut log, _) = EpochLog::load(&lake).await.unwrap();
        log.begin(&begin(1, &["some/path"])).await.unwrap();
        log.complete(&complete(1)).await.unwrap();
        let path = folder.path().join("_silverflow/epochs/00000000000000000001.begin.json");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            match EpochLog::load(&lake).await {
                Err(e) => {
                    assert_eq!(e.code(), "EPOCH_LOG_DAMAGED");
                    assert!(e.to_string().contains("00000000000000000001.begin.json"));
                }
                Ok(_) => panic!("byte {at} changed unnoticed"),
            }
        }
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(EpochLog::load(&lake).await.unwrap_err().code(), "EPOCH_LOG_DAMAGED");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(EpochLog::load(&lake).await.unwrap_err().code(), "EPOCH_LOG_DAMAGED");
    }
}
