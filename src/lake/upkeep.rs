//! Keeping a table quick to read: files are rewritten, the log gets checkpoints, and what no one needs any more is
//! removed. None of it changes a row.

use deltalake::checkpoints::create_checkpoint;

use super::compact::{Compacted, Compaction};
use super::learn::{Learned, Learning};
use super::policy::{Aim, Limits, crowded};
use super::storage::Lake;
use super::table::Table;
use super::vacuum::Vacuum;
use crate::error::{Error, Result};

/// Versions between two checkpoints of the log.
pub(crate) const CHECKPOINT_INTERVAL: i64 = 100;
/// Versions between two removals of what is old.
pub(crate) const VACUUM_INTERVAL: i64 = 500;

/// What maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Files that were rewritten.
    pub rewritten: usize,
    /// Files that took their place.
    pub written: usize,
    /// Files of which it is known now where their rows are, and of which that was stored.
    pub learned: usize,
    /// Whether the log got a checkpoint.
    pub checkpoint: bool,
    /// Old files, vectors and log entries that were removed.
    pub removed: usize,
    /// Their bytes.
    pub removed_bytes: u64,
}

impl Maintained {
    fn add(&mut self, other: Maintained) {
        self.rewritten += other.rewritten;
        self.written += other.written;
        self.learned += other.learned;
        self.checkpoint |= other.checkpoint;
        self.removed += other.removed;
        self.removed_bytes += other.removed_bytes;
    }
}

/// Work on a table that can be done beside its commits. It does not hold the table.
pub struct Upkeep(Work);

enum Work {
    Learn(Learning),
    Compact(Compaction),
    Tidy(Tidy),
}

struct Tidy {
    lake: Lake,
    location: String,
    checkpoint: Option<i64>,
    vacuum: Option<Vacuum>,
}

/// Work that has been done; [`Table::settle`] brings it into the table.
pub struct Done(Finished);

enum Finished {
    Learned(Vec<Learned>),
    Compacted(Compacted),
    Tidied(Maintained),
}

impl From<Learning> for Upkeep {
    fn from(work: Learning) -> Self {
        Upkeep(Work::Learn(work))
    }
}

#[cfg(test)]
impl From<Compaction> for Upkeep {
    fn from(work: Compaction) -> Self {
        Upkeep(Work::Compact(work))
    }
}

#[cfg(test)]
impl From<Compacted> for Done {
    fn from(done: Compacted) -> Self {
        Done(Finished::Compacted(done))
    }
}

impl Upkeep {
    /// Learns where rows are: a commit that takes rows away would have to do so, too.
    pub fn is_learning(&self) -> bool {
        matches!(&self.0, Work::Learn(work) if work.is_open())
    }

    /// Does the work. Costs as much as is rewritten or listed.
    ///
    /// # Errors
    /// External errors of the storage. The table is as it was.
    pub async fn run(self) -> Result<Done> {
        match self.0 {
            Work::Learn(work) => Ok(Done(Finished::Learned(work.run().await?))),
            Work::Compact(work) => Ok(Done(Finished::Compacted(work.run().await?))),
            Work::Tidy(work) => Ok(Done(Finished::Tidied(work.run().await?))),
        }
    }
}

impl Table {
    /// What should be done for the table now, if anything. A log checkpoint is asked for once an interval, also if it
    /// fails. Old files are removed only if `keep` says the oldest version that must stay readable.
    ///
    /// # Errors
    /// Internal.
    pub fn upkeep(&mut self, keep: Option<i64>) -> Result<Option<Upkeep>> {
        // The files go with the next commit.
        if self.replacement.is_some() {
            return Ok(None);
        }
        // A row that goes would have to wait for this; storing it serves later runs only and comes last.
        if self.is_unlearned() {
            return Ok(self.plan_learning(true)?.map(Upkeep::from));
        }
        if let Some(work) = self.plan_compaction(Aim::Upkeep)? {
            return Ok(Some(Upkeep(Work::Compact(work))));
        }
        if self.version < self.checkpoint + CHECKPOINT_INTERVAL {
            return Ok(self.plan_learning(true)?.map(Upkeep::from));
        }
        self.checkpoint = self.version - self.version % CHECKPOINT_INTERVAL;
        let due = self.version >= self.vacuumed + VACUUM_INTERVAL;
        let vacuum = keep.filter(|_| due).map(|keep| self.plan_vacuum(keep));
        if vacuum.is_some() {
            self.vacuumed = self.version - self.version % VACUUM_INTERVAL;
        }
        Ok(Some(Upkeep(Work::Tidy(self.tidy(true, vacuum)))))
    }

    fn tidy(&self, checkpoint: bool, vacuum: Option<Vacuum>) -> Tidy {
        let checkpoint = checkpoint.then_some(self.version);
        Tidy { lake: self.lake.clone(), location: self.location.clone(), checkpoint, vacuum }
    }

    /// Brings work that has been done into the table, in one commit that says `dataChange: false`. Work that no longer
    /// fits the table is thrown away.
    ///
    /// # Errors
    /// As [`Table::commit`]; the table can be used on.
    pub async fn settle(&mut self, done: Done) -> Result<Maintained> {
        match done.0 {
            Finished::Learned(learned) => Ok(Maintained { learned: self.take_in(learned), ..Maintained::default() }),
            Finished::Compacted(compacted) => self.bring_in(compacted).await.map_err(|e| e.dataset(&self.name)),
            Finished::Tidied(tidied) => Ok(tidied),
        }
    }

    /// There are more small files or vectors than readers should meet: [`upkeep`](Self::upkeep) comes before the next
    /// commit.
    pub fn is_crowded(&self) -> bool {
        crowded(&self.files, Limits::of(self.rewrites))
    }

    /// Whether touched files are rewritten. Then work beside commits would find its files gone, and is done between them.
    pub fn rewrites(&self) -> bool {
        self.rewrites
    }

    /// Does all that [`upkeep`](Self::upkeep) asks for, at once.
    ///
    /// # Errors
    /// As [`Table::commit`].
    pub async fn maintain(&mut self, keep: Option<i64>) -> Result<Maintained> {
        let mut all = Maintained::default();
        while let Some(work) = self.upkeep(keep)? {
            let done = work.run().await?;
            let done = self.settle(done).await?;
            all.add(done);
            if done == Maintained::default() {
                break;
            }
        }
        Ok(all)
    }

    /// Brings the table into the best order there is: as few files as possible, no vectors, rows as the layout says, a log
    /// checkpoint; with `vacuum`, the oldest version that must stay readable, also the removal of what is old.
    ///
    /// # Errors
    /// As [`Table::commit`].
    pub async fn optimize(&mut self, vacuum: Option<i64>) -> Result<Maintained> {
        let mut all = Maintained::default();
        while let Some(work) = self.plan_compaction(Aim::Order)? {
            let done = self.bring_in(work.run().await?).await.map_err(|e| e.dataset(&self.name))?;
            if done == Maintained::default() {
                break;
            }
            all.add(done);
        }
        let vacuum = vacuum.map(|keep| self.plan_vacuum(keep));
        let behind = self.version > 0 && self.last_checkpoint().await? != Some(self.version);
        if behind || vacuum.is_some() {
            all.add(self.tidy(behind, vacuum).run().await?);
            self.checkpoint = self.version - self.version % CHECKPOINT_INTERVAL;
        }
        Ok(all)
    }

    /// The newest version of which the log has a checkpoint.
    async fn last_checkpoint(&self) -> Result<Option<i64>> {
        let names = self.lake.list(&format!("{}/_delta_log", self.location)).await?;
        Ok(names.iter().filter_map(|x| super::vacuum::checkpoint_version(x)).max())
    }
}

impl Tidy {
    async fn run(self) -> Result<Maintained> {
        let mut done = Maintained::default();
        if let Some(version) = self.checkpoint {
            write_checkpoint(&self.lake, &self.location, version).await?;
            done.checkpoint = true;
        }
        if let Some(vacuum) = self.vacuum {
            (done.removed, done.removed_bytes) = vacuum.run().await?;
        }
        Ok(done)
    }
}

async fn write_checkpoint(lake: &Lake, location: &str, version: i64) -> Result<()> {
    let failed =
        |e: deltalake::DeltaTableError| Error::external("STORAGE_FAILED", "cannot write a log checkpoint").caused_by(e);
    let delta = lake
        .load_delta(location, Some(version))
        .await?
        .ok_or_else(|| Error::external("STORAGE_FAILED", format!("the table {} vanished", lake.display(location))))?;
    create_checkpoint(&delta, None).await.map_err(failed)
}
