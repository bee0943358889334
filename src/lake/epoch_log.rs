//! The epoch log: one immutable object a record, created if absent under the next number, so that of several writers one wins.
//!
//! Records are `<20 digits>.json`, numbered without a gap, each a document `{"format", "kind", "generation", "crc32",
//! "body"}` whose checksum is that of the body's bytes as they stand. A run first writes a record of the kind
//! `generation`: it takes the number that any earlier run would write next, which therefore can write nothing more.
//! `<20 digits>.base.json` holds everything up to that number and replaces the records before it; those are removed only
//! after the base is durable. Records of generations stay longer, since they keep earlier runs out.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::epochs::{Abort, Begin, Complete, Generation, History, Owner};
use super::storage::Lake;
use crate::error::{Error, Result};

/// Raised whenever a record means something else than before.
const FORMAT: u32 = 5;
/// More records than this are replaced by a base.
const RECORDS: usize = 200;
/// Records of generations that a base does not remove.
const GENERATIONS: usize = 200;
/// How often reading begins again because another run compacts the log meanwhile.
const ATTEMPTS: usize = 5;

/// The epoch log of a storage. Written by one run at a time, read by anyone.
#[derive(Debug)]
pub struct EpochLog {
    lake: Lake,
    folder: String,
    /// The number of the next record.
    next: u64,
    /// Numbers of the records since the last base.
    records: Vec<u64>,
    /// Numbers of the last base, and of the records before it that are still there.
    before: BTreeSet<u64>,
    /// Numbers of the records of generations since the last base.
    generations: Vec<u64>,
    base: Option<u64>,
    history: History,
    /// The generation that this log writes as; none if it only reads.
    own: Option<u64>,
}

impl EpochLog {
    /// Reads the log; an empty one if there is none.
    ///
    /// # Errors
    /// `EPOCH_LOG_DAMAGED` (external), naming the record, if one is damaged, of an unknown format or missing.
    pub async fn load(lake: &Lake) -> Result<(EpochLog, History)> {
        let mut attempt = 1;
        loop {
            match EpochLog::read(lake).await {
                // A base may have replaced records after they were listed.
                Err(Unread::Missing(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(Unread::Missing(error) | Unread::Failed(error)) => return Err(error),
                Ok(log) => {
                    let history = log.history.clone();
                    return Ok((log, history));
                }
            }
        }
    }

    async fn read(lake: &Lake) -> Result<EpochLog, Unread> {
        let folder = lake.private_location("epochs");
        let names = lake.list(&folder).await.map_err(Unread::Failed)?;
        let base = names.iter().filter_map(|name| numbered(name, BASE)).max();
        let numbers: BTreeSet<u64> = names.iter().filter_map(|name| numbered(name, RECORD)).collect();
        let mut log = EpochLog {
            lake: lake.clone(),
            folder,
            next: base.map_or(0, |base| base + 1),
            records: Vec::new(),
            before: numbers.iter().copied().filter(|number| base.is_some_and(|base| *number <= base)).collect(),
            generations: Vec::new(),
            base,
            history: History::default(),
            own: None,
        };
        if let Some(base) = base {
            let document = log.document(&named(base, BASE)).await?;
            match document.record::<History>("base") {
                Ok(history) => log.history = history,
                Err(why) => return Err(Unread::Failed(log.damaged(&named(base, BASE), &why))),
            }
            if document.header().is_ok_and(|header| header.generation != log.history.generation()) {
                return Err(Unread::Failed(log.damaged(&named(base, BASE), "it is of another generation")));
            }
        }
        for number in numbers.range(log.next..) {
            let missing = (*number != log.next).then(|| named(log.next, RECORD));
            if let Some(missing) = missing {
                return Err(Unread::Missing(log.damaged(&missing, "it is missing")));
            }
            let name = named(*number, RECORD);
            let document = log.document(&name).await?;
            log.replay(*number, &document).map_err(|why| Unread::Failed(log.damaged(&name, &why)))?;
        }
        Ok(log)
    }

    async fn document(&self, name: &str) -> Result<Document, Unread> {
        match self.lake.get(&format!("{}/{name}", self.folder)).await {
            Ok(Some(bytes)) => Ok(Document(bytes)),
            Ok(None) => Err(Unread::Missing(self.damaged(name, "it vanished"))),
            Err(error) => Err(Unread::Failed(error)),
        }
    }

    /// Takes in the next record.
    fn replay(&mut self, number: u64, document: &Document) -> Result<(), String> {
        let header = document.header()?;
        let kind = header.kind.as_ref();
        if kind == GENERATION {
            let generation: Generation = document.record(kind)?;
            if generation.generation != header.generation || header.generation <= self.history.generation() {
                return Err("it is of a generation that has been".into());
            }
            self.history.generation = Some(generation);
            self.generations.push(number);
        } else if header.generation != self.history.generation() {
            return Err(format!("it is of generation {}", header.generation));
        } else if kind == BEGIN {
            let begin: Begin = document.record(kind)?;
            if self.history.open.is_some() {
                return Err("the epoch before it has no end".into());
            }
            if begin.epoch < self.history.next {
                return Err("its epoch has been".into());
            }
            self.history.begin(begin);
        } else {
            let begin = self.history.open.take().ok_or("its epoch has no beginning")?;
            let epoch = match kind {
                ABORT => {
                    let abort: Abort = document.record(kind)?;
                    let epoch = abort.epoch;
                    self.history.abort(abort);
                    epoch
                }
                COMPLETE => {
                    let complete: Complete = document.record(kind)?;
                    let epoch = complete.epoch;
                    self.history.complete(begin.clone(), complete);
                    epoch
                }
                other => return Err(format!("{other} is no kind of record")),
            };
            if epoch != begin.epoch {
                return Err("it is of another epoch".into());
            }
        }
        self.records.push(number);
        self.next = number + 1;
        Ok(())
    }

    /// What the log says, with everything written through it.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Takes the storage for a run: from now on no earlier one can write a record. Gives the new generation, or none if
    /// another run has written meanwhile; then the log has to be loaded again.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn take(&mut self, owner: Owner) -> Result<Option<u64>> {
        let generation = Generation { generation: self.history.generation() + 1, owner };
        let number = self.next;
        if self.create(GENERATION, generation.generation, &generation).await?.is_some() {
            return Ok(None);
        }
        self.generations.push(number);
        self.own = Some(generation.generation);
        self.history.generation = Some(generation);
        Ok(self.own)
    }

    /// Goes on writing as a generation that was taken before, after the log was loaded again.
    ///
    /// # Errors
    /// `FENCED` (external) if another run has taken the storage.
    pub fn resume(&mut self, generation: u64) -> Result<()> {
        match &self.history.generation {
            Some(last) if last.generation == generation => {
                self.own = Some(generation);
                Ok(())
            }
            Some(last) => Err(fenced(&self.lake, generation, last)),
            None => {
                Err(Error::external("EPOCH_LOG_MISSING", "the epoch log is gone").help("restore _silverflow/epochs"))
            }
        }
    }

    /// Records the start of an epoch.
    ///
    /// # Errors
    /// `FENCED` (external) if another run has taken the storage; internal if an epoch is open or the number was used.
    pub async fn begin(&mut self, begin: &Begin) -> Result<()> {
        if self.history.open.is_some() || begin.epoch < self.history.next {
            return Err(Error::internal(format!("epoch {} cannot begin now", begin.epoch)));
        }
        self.write(BEGIN, begin).await.map_err(|e| e.epoch(begin.epoch))?;
        self.history.begin(begin.clone());
        Ok(())
    }

    /// Records that the open epoch is in every table. Now and then it also replaces old records by a base.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn complete(&mut self, complete: &Complete) -> Result<()> {
        let begin = self.opened(complete.epoch)?;
        self.write(COMPLETE, complete).await.map_err(|e| e.epoch(complete.epoch))?;
        self.history.complete(begin, complete.clone());
        self.compact().await;
        Ok(())
    }

    /// Records that the open epoch was given up.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn abort(&mut self, abort: &Abort) -> Result<()> {
        self.opened(abort.epoch)?;
        self.write(ABORT, abort).await.map_err(|e| e.epoch(abort.epoch))?;
        self.history.abort(abort.clone());
        self.compact().await;
        Ok(())
    }

    fn opened(&self, epoch: u64) -> Result<Begin> {
        let open = self.history.open.as_ref().filter(|x| x.epoch == epoch);
        open.cloned().ok_or_else(|| Error::internal(format!("epoch {epoch} is not open")))
    }

    async fn write<T: Serialize>(&mut self, kind: &str, body: &T) -> Result<()> {
        let own =
            self.own.ok_or_else(|| Error::internal("the epoch log is written without the storage being taken"))?;
        let Some(winner) = self.create(kind, own, body).await? else { return Ok(()) };
        if let Ok(last) = winner.record::<Generation>(GENERATION) {
            return Err(fenced(&self.lake, own, &last));
        }
        Err(self.damaged(&named(self.next, RECORD), "it was written by no other run and not by this one"))
    }

    /// Creates the next record. Gives the one that is there, if it is another one: an attempt that had seemed to fail
    /// may have reached the storage after all.
    async fn create<T: Serialize>(&mut self, kind: &str, generation: u64, body: &T) -> Result<Option<Document>> {
        let bytes = encode(kind, generation, body)?;
        let path = format!("{}/{}", self.folder, named(self.next, RECORD));
        if !self.lake.put_new(&path, bytes.clone()).await? {
            let failed = || Error::external("STORAGE_FAILED", format!("cannot read {}", self.lake.display(&path)));
            let winner = self.lake.get(&path).await?.ok_or_else(failed)?;
            if winner != bytes {
                return Ok(Some(Document(winner)));
            }
        }
        self.records.push(self.next);
        self.next += 1;
        Ok(None)
    }

    /// Replaces records by a base, if there are many and no epoch is open. A failure harms nothing.
    async fn compact(&mut self) {
        if self.records.len() <= RECORDS {
            return;
        }
        if let Err(error) = self.replace().await {
            tracing::warn!("the epoch log cannot be compacted: {error}");
        }
    }

    async fn replace(&mut self) -> Result<()> {
        let (Some(base), Some(own)) = (self.next.checked_sub(1), self.own) else { return Ok(()) };
        let bytes = encode("base", own, &self.history)?;
        self.lake.put_new(&format!("{}/{}", self.folder, named(base, BASE)), bytes).await?;
        let mut kept: Vec<u64> = self.before.iter().chain(&self.generations).copied().collect();
        let surplus = kept.len().saturating_sub(GENERATIONS);
        let kept = kept.split_off(surplus);
        let all = self.before.iter().chain(&self.records);
        let old = all.filter(|number| kept.binary_search(number).is_err()).map(|number| named(*number, RECORD));
        let old = old.chain(self.base.map(|number| named(number, BASE)));
        let old = old.map(|name| format!("{}/{name}", self.folder)).collect();
        self.before = kept.into_iter().collect();
        self.base = Some(base);
        self.records.clear();
        self.generations.clear();
        self.lake.remove(old).await
    }

    fn damaged(&self, name: &str, why: &str) -> Error {
        let place = self.lake.display(&format!("{}/{name}", self.folder));
        Error::external("EPOCH_LOG_DAMAGED", format!("cannot use {place}: {why}"))
            .help("restore the record from a backup")
    }
}

/// Why the log was not read.
enum Unread {
    /// A record that was listed, or should have been, is not there.
    Missing(Error),
    /// Anything else.
    Failed(Error),
}

fn fenced(lake: &Lake, own: u64, last: &Generation) -> Error {
    Error::external(
        "FENCED",
        format!(
            "another run (generation {}: {}) has taken over {}; this one (generation {own}) stops",
            last.generation,
            last.owner,
            lake.display("")
        ),
    )
    .help("nothing is lost: that run finishes what this one had begun")
}

const GENERATION: &str = "generation";
const BEGIN: &str = "begin";
const ABORT: &str = "abort";
const COMPLETE: &str = "complete";
const RECORD: &str = ".json";
const BASE: &str = ".base.json";

fn named(number: u64, end: &str) -> String {
    format!("{number:020}{end}")
}

fn numbered(name: &str, end: &str) -> Option<u64> {
    let digits = name.strip_suffix(end)?;
    (digits.len() == 20 && digits.bytes().all(|x| x.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    format: u32,
    kind: std::borrow::Cow<'a, str>,
    generation: u64,
    crc32: u32,
    #[serde(borrow)]
    body: &'a RawValue,
}

fn encode<T: Serialize>(kind: &str, generation: u64, body: &T) -> Result<Vec<u8>> {
    let failed = |e| Error::internal("an epoch record cannot be written").caused_by(e);
    let body = serde_json::value::to_raw_value(body).map_err(failed)?;
    let crc32 = crc32fast::hash(body.get().as_bytes());
    serde_json::to_vec(&Record { format: FORMAT, kind: kind.into(), generation, crc32, body: &body }).map_err(failed)
}

/// The bytes of a record.
struct Document(Vec<u8>);

impl Document {
    fn header(&self) -> Result<Record<'_>, String> {
        let record: Record<'_> = serde_json::from_slice(&self.0).map_err(|e| e.to_string())?;
        if record.format != FORMAT {
            return Err(format!("its format {} is not the one of this version, {FORMAT}", record.format));
        }
        if crc32fast::hash(record.body.get().as_bytes()) != record.crc32 {
            return Err("its checksum does not match".into());
        }
        Ok(record)
    }

    fn record<T: DeserializeOwned>(&self, kind: &str) -> Result<T, String> {
        let record = self.header()?;
        if record.kind != kind {
            return Err(format!("it is a record of the kind {}", record.kind));
        }
        serde_json::from_str(record.body.get()).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests;
