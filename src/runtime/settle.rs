//! The end of an epoch: its changes go into the tables, replay points first, and then it is complete.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::Sender;
use tokio::runtime::Handle;

use super::audit::Audit;
use super::commit::{CommitDone, Committer, ToCommitter};
use super::computed::Computed;
use super::definitions::{table_key, table_of};
use super::resume::Resume;
use super::supervisor::Supervisor;
use super::tables::changed;
use crate::cluster::PEER_LOST;
use crate::dataflow::{Counts, TableId};
use crate::error::{Error, Result};
use crate::lake::{Begin, Complete, Table};
use crate::plan::{Feed, Plan};

/// Where a table is committed.
pub(super) enum Keeper {
    /// Here.
    Here(Committer),
    /// In another process of the run.
    There {
        /// The process.
        process: usize,
        /// Where the table lies in the lake.
        path: String,
    },
}

impl Keeper {
    /// Where the table lies in the lake.
    pub(super) fn path(&self) -> &str {
        match self {
            Keeper::Here(committer) => &committer.path,
            Keeper::There { path, .. } => path,
        }
    }
}

/// Starts the committer of a table of the plan.
pub(super) fn start_committer(
    plan: &Plan,
    id: TableId,
    table: (Table, String),
    io: &Handle,
    done: &Sender<CommitDone>,
) -> Committer {
    let (TableId::Rows(index) | TableId::Quarantine(index)) = id;
    let dataset = plan.datasets.get(index);
    let keeps_epoch = dataset.is_some_and(|d| d.replay_point);
    let audit = dataset.filter(|_| matches!(id, TableId::Quarantine(_))).and_then(|d| {
        let changes = changed(d.quarantine.as_ref()?, d);
        (changes != *table.0.schema()).then(|| Audit::new(&changes, table.0.schema()))
    });
    Committer::start(id, table, keeps_epoch, audit, io, done)
}

impl Supervisor {
    pub(super) fn start_committers(&mut self) -> Result<()> {
        let orphans = self.tables.orphans.clone();
        for (id, table) in self.tables.take() {
            let process = match &self.lead {
                Some(lead) if !orphans.contains(&id) => lead.home(&self.begin, id),
                _ => 0,
            };
            let keeper = if process == 0 {
                Keeper::Here(start_committer(&self.plan, id, table, &self.io, &self.commits_out))
            } else {
                Keeper::There { process, path: table.1 }
            };
            self.committers.insert(id, keeper);
        }
        // Nobody here writes to them from now on.
        self.lead.as_ref().map_or(Ok(()), |lead| lead.adopt(self.commits_out.clone()))
    }

    pub(super) fn hand_over(&self, table: TableId, message: ToCommitter) -> Result<()> {
        let ended = || Err(Error::internal(format!("the committer of {} has ended", table_key(&self.plan, table))));
        match (self.committers.get(&table), &self.lead) {
            (Some(Keeper::Here(committer)), _) => {
                if committer.send(message) {
                    Ok(())
                } else {
                    ended()
                }
            }
            (Some(Keeper::There { process, .. }), Some(lead)) => lead.hand_over(*process, table, message),
            (Some(Keeper::There { .. }), None) => ended(),
            (None, _) => Err(Error::internal(format!("{} has no committer", table_key(&self.plan, table)))),
        }
    }

    /// Lets the tables of AUTO CDC learn where their rows are while there is nothing else to do.
    pub(super) fn prepare(&self) -> Result<()> {
        let merged = |table: &&TableId| match table {
            TableId::Rows(index) => self.plan.datasets.get(*index).is_some_and(|d| matches!(d.feed, Feed::Cdc(_))),
            TableId::Quarantine(_) => false,
        };
        self.committers.keys().filter(merged).try_for_each(|table| self.hand_over(*table, ToCommitter::Prepare))
    }

    /// Names of the tables that are still to be set by comparison, also of those that the plan does not know.
    pub(super) fn unsettled(&self) -> BTreeSet<String> {
        let known = self.log.history().stray.iter().chain(&self.foreign);
        let foreign = known.filter(|key| table_of(&self.plan, key).is_none()).cloned();
        let own = self.compare.iter().chain(&self.left).map(|table| table_key(&self.plan, *table));
        own.chain(foreign).collect()
    }

    /// Commits an epoch to all tables, replay points first, and marks it complete. The quarantine of a replay point
    /// commits before its rows: these decide whether the epoch is stored.
    pub(super) fn settle(&mut self, begin: &Begin, mut computed: Computed, resume: Option<Resume>) -> Result<()> {
        let epoch = begin.epoch;
        let plan = Arc::clone(&self.plan);
        let hold = resume.as_ref().is_some_and(|resume| resume.hold);
        let compare = if hold { BTreeSet::new() } else { std::mem::take(&mut self.compare) };
        // What was decided is stored only where that on which it was decided is.
        let rank = |table: &TableId| {
            let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
            let Some(dataset) = plan.datasets.get(*index).filter(|d| d.replay_point) else { return 4 };
            2 * usize::from(dataset.decided) + usize::from(matches!(table, TableId::Rows(_)))
        };
        let mut wanted: BTreeSet<TableId> = computed.changes.keys().copied().collect();
        wanted.extend(compare.iter().copied());
        let group = |of: usize| wanted.iter().copied().filter(|table| rank(table) == of).collect::<Vec<_>>();
        let groups: Vec<Vec<TableId>> = (0..5).map(group).collect();
        for group in groups {
            let mut open = 0;
            for table in group {
                let batches = computed.changes.remove(&table).unwrap_or_default();
                let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
                if !self.intent.takes_part(index) && rank(&table) == 4 {
                    self.left.insert(table);
                    continue;
                }
                if self.compare.contains(&table) {
                    self.hand_over(table, ToCommitter::Hold { epoch, batches })?;
                    continue;
                }
                let compare = compare.contains(&table);
                let metrics = computed.counts.get(&index).map(Counts::metrics).unwrap_or_default();
                self.hand_over(table, ToCommitter::Commit { epoch, batches, compare, metrics })?;
                open += 1;
            }
            let mut failed = Vec::new();
            for _ in 0..open {
                let CommitDone { table, result } =
                    self.commits.recv().map_err(|_| Error::internal("the committers have ended"))?;
                match result {
                    Ok((committed, version)) => {
                        self.versions.insert(table_key(&self.plan, table), version);
                        self.tables.epochs.insert(table, Some(epoch));
                        self.count_commit(table, committed, version);
                    }
                    // Nobody tells of the others, then.
                    Err(error) if error.code() == PEER_LOST => return Err(error),
                    Err(error) => failed.push(error),
                }
            }
            if let Some(error) = Error::all(failed) {
                return Err(error);
            }
        }
        let complete = Complete {
            epoch,
            versions: self.versions.clone(),
            due_micros: computed.due,
            returned: resume.map(|resume| resume.returned).unwrap_or_default(),
            stray: self.unsettled(),
        };
        self.io.block_on(self.log.complete(&complete))?;
        self.intent.settled(begin, &complete.returned, &plan);
        self.checkpoints.passed();
        for (source, stats) in &computed.sources {
            if let Some(source) = plan.sources.get(*source) {
                self.report.count_source(&source.flow, stats);
            }
        }
        for (dataset, counts) in &computed.counts {
            if self.plan.datasets.get(*dataset).is_some_and(|d| d.replay_point) {
                self.checkpoints.grown(u64::try_from(counts.yielded).unwrap_or(0));
            }
            if let Some(report) = self.report.tables.iter_mut().find(|t| t.dataset == *dataset) {
                report.count(counts);
            }
        }
        self.clock.settle(begin.wall_micros, computed.due);
        self.report.epochs.push(epoch);
        self.report.last_epoch = Some(epoch);
        let rest = self.report.rest();
        let done = std::mem::replace(&mut self.report, rest);
        self.total.add(&done);
        if let Some(on_epoch) = &self.on_epoch {
            on_epoch(&done);
        }
        Ok(())
    }

    fn count_commit(&mut self, table: TableId, committed: Option<crate::lake::Committed>, version: i64) {
        let (TableId::Rows(index) | TableId::Quarantine(index)) = table;
        let append =
            self.plan.datasets.get(index).is_some_and(|d| matches!(d.feed, Feed::Append(_)) && !d.replay_point);
        let Some(report) = self.report.tables.iter_mut().find(|t| t.dataset == index) else { return };
        let rows = matches!(table, TableId::Rows(_));
        if rows {
            report.version = version;
        }
        if let Some(committed) = committed {
            report.committed = true;
            if rows {
                report.inserted += committed.inserted;
                report.deleted += committed.deleted;
                if append {
                    report.verdicts_withdrawn += i64::try_from(committed.deleted).unwrap_or(i64::MAX);
                }
            }
        }
    }
}
