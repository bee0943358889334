//! What there is to do: what is new outside, and which tables have to be made again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use chrono::Utc;

use tokio::runtime::Handle;

use super::definitions::{moved, stays, table_key};
use super::follow::{Look, SETTLED, Stop};
use super::intent::Intent;
use super::names::name_of;
use super::tables::path;
use crate::dataflow::TableId;
use crate::error::{Error, Result};
use crate::lake::{FileId, History, Lake, Position, SeenFile, Table};
use crate::pipeline::ReadTable;
use crate::plan::{Plan, SourceKind};
use crate::sources::{DeltaSource, FileSource, First, Landing, as_it_is};

/// How the tables are found that have epochs, as the log says.
#[derive(Default)]
pub(super) struct Found {
    /// Derived tables that are not there any more, or not with all they held: they are made again from the replay points.
    pub(super) gone: Vec<TableId>,
    /// Tables that someone else has changed.
    pub(super) changed: BTreeMap<TableId, Error>,
}

impl Found {
    /// Reads the logs of the tables since the last complete epoch.
    ///
    /// # Errors
    /// `REPLAY_POINT_GONE` (external); external errors of the storage.
    pub(super) fn read(plan: &Plan, history: &History, lake: &Lake, io: &Handle) -> Result<Found> {
        let mut found = Found::default();
        for (index, dataset) in plan.datasets.iter().enumerate() {
            for id in [TableId::Rows(index), TableId::Quarantine(index)] {
                let wanted = matches!(id, TableId::Rows(_)) || dataset.quarantine.is_some();
                let Some(version) = history.versions.get(&table_key(plan, id)).filter(|_| wanted) else { continue };
                let path = path(lake, dataset, id);
                match io.block_on(Table::open(lake, &path))? {
                    Some(table) if dataset.replay_point || table.version() >= *version => {
                        if let Err(error) = io.block_on(table.unchanged_since(*version)) {
                            found.changed.insert(id, error.dataset(dataset.label()));
                        }
                    }
                    None if dataset.replay_point => {
                        return Err(Error::external(
                            "REPLAY_POINT_GONE",
                            format!(
                                "the table {} is gone, and with it what was read from outside",
                                lake.display(&path)
                            ),
                        )
                        .dataset(dataset.label())
                        .help("restore it from a backup"));
                    }
                    _ => found.gone.push(id),
                }
            }
        }
        Ok(found)
    }

    /// An error if a table has been changed by someone else, unless it will be compared with its definition anyway.
    pub(super) fn unchanged(&mut self, compare: &BTreeSet<TableId>) -> Result<()> {
        self.changed.retain(|id, _| !compare.contains(id));
        Error::all(std::mem::take(&mut self.changed).into_values()).map_or(Ok(()), Err)
    }
}

/// What is new outside, by source.
pub(super) struct Backlog {
    positions: BTreeMap<usize, Position>,
    /// Sources of files of which an epoch takes a part.
    divisible: BTreeMap<usize, FileSource>,
    /// Versions of tables that are left for the epochs after.
    later: BTreeMap<usize, VecDeque<Position>>,
    /// Files that were read and have another size now, each with the one it had. They are not read again.
    pub(super) changed: Vec<(usize, FileId, SeenFile)>,
    looked: Instant,
}

/// A file that nobody has touched for so long is not being written, as far as a run can tell that does not wait longer.
const QUIET: Duration = Duration::from_millis(100);

/// What is new of a table whose changes are known up to a version, an epoch's share each.
async fn versions(location: &str, read: &ReadTable, known: Option<(i64, Option<&str>)>) -> Result<VecDeque<Position>> {
    let source = DeltaSource::open(location, read).await?;
    let from = match known {
        Some((at, id)) if at <= source.version() && id.is_none_or(|id| id == source.id()) => Some(at),
        // The rows of another table under the name are compared with those that are stored.
        Some(_) if read.retracts() => None,
        Some(_) => return Err(source.recreated()),
        None => match source.first().await? {
            First::Rows => None,
            First::After(at) => Some(at),
            First::NotYet => return Ok(VecDeque::new()),
        },
    };
    let table = Some(source.id().to_owned());
    let Some(mut from) = from else {
        return Ok(VecDeque::from([Position::Delta { from: None, to: source.version(), table }]));
    };
    let mut positions = VecDeque::new();
    for to in source.ends(from).await? {
        if to > from || known.is_none() {
            positions.push_back(Position::Delta { from: Some(from), to, table: table.clone() });
        }
        from = to;
    }
    Ok(positions)
}

impl Backlog {
    /// Looks outside.
    pub(super) fn find(
        plan: &Plan,
        history: &History,
        intent: &Intent,
        io: &Handle,
        mut look: Look<'_>,
    ) -> Result<Backlog> {
        let (mut positions, mut divisible, mut later) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (changed, looked) = (RefCell::new(Vec::new()), Instant::now());
        for (index, source) in plan.sources.iter().enumerate() {
            if history.finished_once.contains(&source.id) || !intent.reads(plan, index) {
                continue;
            }
            let position = match &source.kind {
                SourceKind::Files(read) => {
                    stays(plan, history, index)?;
                    let files = FileSource::new(read).map_err(|e| e.at(&source.span))?;
                    let seen = history.seen(&source.id);
                    let read_before = seen.is_some_and(|seen| !seen.is_empty());
                    let known = |file: &FileId| {
                        let Some(before) = seen.and_then(|seen| seen.get(name_of(&plan.root, &file.path))) else {
                            return false;
                        };
                        let again = files.allows_overwrites() && !before.is_of(file);
                        if !again && before.size != file.size {
                            changed.borrow_mut().push((index, file.clone(), *before));
                        }
                        !again
                    };
                    // What is there now is passed over, and that is written down.
                    let passes = seen.is_none() && !files.includes_existing();
                    let told = match &look {
                        Look::Told(whole) if !source.once && !passes => {
                            files.discover_among(whole.known(), known).map_err(|e| e.at(&source.span))?
                        }
                        _ => None,
                    };
                    let found = match told {
                        Some(found) => found,
                        None => files.discover(known, read_before).map_err(|e| e.at(&source.span))?,
                    };
                    let found = match &mut look {
                        Look::AsItIs => found,
                        _ if passes => found,
                        // What is read once is read when all of it is there.
                        Look::Everything(whole) | Look::Told(whole) if source.once => {
                            let all = found.len();
                            Some(whole.of(found)).filter(|found| found.len() == all).unwrap_or_default()
                        }
                        Look::Everything(whole) | Look::Told(whole) => whole.of(found),
                    };
                    // What replaces a table comes in one commit, and what is read once is finished with its epoch.
                    if !intent.forgotten.contains(&index) && !source.once {
                        divisible.insert(index, files);
                    }
                    if passes {
                        Some(Position::Skipped(found))
                    } else {
                        (!found.is_empty()).then_some(Position::Files(found))
                    }
                }
                SourceKind::Delta { location, read } => {
                    let known = if moved(plan, history, index)? {
                        None
                    } else {
                        history.delta_position(&source.id).map(|at| (at, history.delta_table(&source.id)))
                    };
                    if let (Look::Told(_), Some((at, _))) = (&look, known)
                        && !io.block_on(DeltaSource::goes_on(location, at)).map_err(|e| e.at(&source.span))?
                    {
                        continue;
                    }
                    let mut found = io.block_on(versions(location, read, known)).map_err(|e| e.at(&source.span))?;
                    let first = found.pop_front();
                    later.insert(index, found);
                    first
                }
            };
            positions.extend(position.map(|p| (index, p)));
        }
        Ok(Backlog { positions, divisible, later, changed: changed.into_inner(), looked })
    }

    /// Looks a second time at files that were modified a moment before they were found, and gives those that have changed
    /// since: they are left for another run. Takes [`QUIET`] at most, and only if there are such files.
    pub(super) fn settle(&mut self, plan: &Plan, stop: &Stop) -> Vec<(usize, FileId)> {
        let found = Utc::now().timestamp_micros() - micros(self.looked.elapsed());
        let young = |file: &&FileId| file.modified_micros > found - micros(SETTLED);
        let files = self.positions.values().filter_map(|position| match position {
            Position::Files(files) => Some(files),
            _ => None,
        });
        let Some(newest) = files.flatten().filter(young).map(|file| file.modified_micros).max() else {
            return Vec::new();
        };
        let age = u64::try_from(Utc::now().timestamp_micros() - newest).map_or(Duration::ZERO, Duration::from_micros);
        stop.pause(QUIET.saturating_sub(age).min(QUIET.saturating_sub(self.looked.elapsed())));
        let mut waiting = Vec::new();
        for (index, position) in std::mem::take(&mut self.positions) {
            let Position::Files(mut files) = position else {
                self.positions.insert(index, position);
                continue;
            };
            let before = waiting.len();
            files.retain(|file| {
                let changed = young(&file) && as_it_is(file).is_some_and(|now| now != *file);
                if changed {
                    waiting.push((index, file.clone()));
                }
                !changed
            });
            // What is read once is read when all of it is there.
            let parts = plan.sources.get(index).is_some_and(|source| !source.once);
            if !files.is_empty() && (parts || waiting.len() == before) {
                self.positions.insert(index, Position::Files(files));
            }
        }
        waiting
    }

    /// Where files of the plan's sources land.
    pub(super) fn places(plan: &Plan) -> Vec<Landing> {
        let files = plan.sources.iter().filter_map(|source| match &source.kind {
            SourceKind::Files(read) => FileSource::new(read).ok(),
            SourceKind::Delta { .. } => None,
        });
        files.map(|files| files.landing()).collect()
    }

    /// Whether tables of others are read.
    pub(super) fn has_tables(plan: &Plan) -> bool {
        plan.sources.iter().any(|source| matches!(source.kind, SourceKind::Delta { .. }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The next epoch's share: of each source as much as its limit allows, and of all about as many files as become `bytes`
    /// of rows. Each source gives of these in proportion to what there is of it, so that feeds that belong together keep in
    /// step, and one file at least.
    pub(super) fn take(&mut self, bytes: u64) -> BTreeMap<usize, Position> {
        let size = |(index, source): (&usize, &FileSource)| match self.positions.get(index) {
            Some(Position::Files(files)) => files.iter().map(|file| u128::from(source.unpacked_size(file))).sum(),
            _ => 0u128,
        };
        let all: u128 = self.divisible.iter().map(size).sum();
        let mut share = BTreeMap::new();
        for (index, position) in std::mem::take(&mut self.positions) {
            let position = match position {
                Position::Files(mut files) => {
                    if let Some(source) = self.divisible.get(&index) {
                        let own = files.iter().map(|file| u128::from(source.unpacked_size(file))).sum::<u128>();
                        let room = if all <= u128::from(bytes) { all } else { u128::from(bytes) * own / all };
                        let rest = files.split_off(within(source, &files, u64::try_from(room).unwrap_or(u64::MAX)));
                        if !rest.is_empty() {
                            self.positions.insert(index, Position::Files(rest));
                        }
                    }
                    Position::Files(files)
                }
                delta => {
                    let next = self.later.get_mut(&index).and_then(VecDeque::pop_front);
                    self.positions.extend(next.map(|next| (index, next)));
                    delta
                }
            };
            share.insert(index, position);
        }
        share
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// How many of the files an epoch takes that has room for so many bytes of rows: those that fit, and one more.
fn within(source: &FileSource, files: &[FileId], mut room: u64) -> usize {
    let mut left = source.max_bytes_per_trigger().unwrap_or(u64::MAX);
    let fits = |file: &&FileId| {
        let fits = left > 0 && room > 0;
        left = left.saturating_sub(file.size);
        room = room.saturating_sub(source.unpacked_size(file));
        fits
    };
    files.iter().take(source.max_files_per_trigger().max(1)).take_while(fits).count().max(1)
}
