//! One Delta table as the sink knows it: its files, which of their rows are live, and the last epoch it holds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use deltalake::DeltaTable;
use futures::TryStreamExt;
use serde_json::{Map, Value};

use super::data::{DataFile, load_vectors};
use super::definition::{checked_properties, create, rewrites};
use super::index::RowIndex;
use super::layout::Layout;
use super::learn::by_path;
use super::log::{Entry, Outcome, Writer, fenced, now_millis};
use super::storage::Lake;
use super::types::{from_delta, stored_schema};
use super::upkeep::{CHECKPOINT_INTERVAL, VACUUM_INTERVAL};
use super::vacuum::Retention;
use super::vector::Descriptor;
use crate::error::{Error, Result};

/// Table property with the random id under which epochs are committed.
pub(crate) const APP_ID: &str = "silverflow.appId";
/// What a table should be.
#[derive(Clone, Debug)]
pub struct TableSpec {
    /// Full name, for messages and the log.
    pub name: String,
    /// Where it lies in the lake: see [`Lake::table_location`] and [`Lake::replay_location`].
    pub location: String,
    /// Its rows.
    pub schema: SchemaRef,
    /// Comment.
    pub comment: Option<String>,
    /// Table properties as the user wrote them.
    pub properties: BTreeMap<String, String>,
    /// Generation of the run that opens the table to write it; 0 if there are no generations.
    pub generation: u64,
    /// How its rows are laid out in files, in time.
    pub layout: Layout,
    /// Rows will go: where those of a large file are is noted as it is written, and need not be learned by reading it.
    pub rows_go: bool,
    /// What becomes of columns that are not as they were.
    pub evolution: Evolution,
}

/// What becomes of a table whose columns are not those of its definition any more. New columns are always added in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evolution {
    /// Columns that are gone from the definition stay, null in new rows; another type is an error.
    #[default]
    Keep,
    /// Columns that are gone from the definition go with the next commit, which brings all rows anew; another type is an
    /// error.
    Follow,
    /// As `Follow`, and so does another type.
    Replace,
}

impl TableSpec {
    /// A table of these rows, with nothing else said about it.
    pub fn new(name: impl Into<String>, location: impl Into<String>, schema: SchemaRef) -> Self {
        TableSpec {
            name: name.into(),
            location: location.into(),
            schema,
            comment: None,
            properties: BTreeMap::new(),
            generation: 0,
            layout: Layout::default(),
            rows_go: false,
            evolution: Evolution::default(),
        }
    }
}

/// One Delta table: the sink of its changes and the reader of its rows.
///
/// A table is a multiset of rows. One writer at a time; a second one is noticed and stops with
/// `TABLE_CHANGED_OUTSIDE`, it never makes the table wrong.
pub struct Table {
    pub(crate) lake: Lake,
    pub(crate) name: String,
    pub(crate) location: String,
    /// Rows as they are handed in and out.
    pub(crate) schema: SchemaRef,
    /// All columns of the table, as stored.
    pub(crate) stored: SchemaRef,
    /// This writer.
    pub(crate) writer: Writer,
    /// The greatest generation that the table holds.
    pub(crate) fence: u64,
    pub(crate) version: i64,
    pub(crate) epoch: Option<u64>,
    /// Live files by their number; a number is not used again.
    pub(crate) files: BTreeMap<u32, DataFile>,
    pub(crate) next_file: u32,
    /// Where rows are, from when a row is first to be deleted, or that is expected.
    pub(crate) index: Option<RowIndex>,
    /// Until then, what was noted of large files as they were written and is not stored yet.
    pub(crate) noted: RowIndex,
    /// It is noted, since rows will go.
    pub(crate) rows_go: bool,
    /// Rows that were read to learn where they are.
    pub(crate) learned: u64,
    /// Version of the last log checkpoint written here.
    pub(crate) checkpoint: i64,
    /// Version at which old files were last removed.
    pub(crate) vacuumed: i64,
    /// How long old versions can be read.
    pub(crate) retention: Retention,
    /// Touched files are rewritten instead of given vectors.
    pub(crate) rewrites: bool,
    pub(crate) layout: Layout,
    /// A definition that comes with the next commit, as actions of the log; the rows that are there go with it.
    pub(crate) replacement: Option<Vec<Value>>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("location", &self.location())
            .field("version", &self.version)
            .field("epoch", &self.epoch)
            .finish()
    }
}

impl Table {
    /// Opens a table, or creates it with deletion vectors enabled. Columns that the table lacks are added at its end,
    /// columns that the specification lacks stay and are null in new rows.
    ///
    /// Costs the reading of the table's log and vectors, not of its rows.
    ///
    /// # Errors
    /// `CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE` (user) if a column's type differs from the table's;
    /// `UNSUPPORTED_DATA_TYPE`, `DUPLICATE_COLUMN`, `UNSUPPORTED_TABLE_PROPERTY` (user);
    /// `TABLE_NOT_OURS` (user) if the Delta table there was not made by silverflow; `FENCED` (external) if the table
    /// holds a greater generation than the specification; external errors of the storage.
    pub async fn open_or_create(lake: &Lake, spec: TableSpec) -> Result<Table> {
        let wanted = stored_schema(&spec.schema).map_err(|e| e.dataset(&spec.name))?;
        let properties = checked_properties(&spec)?;
        if lake.list(&format!("{}/_delta_log", spec.location)).await?.is_empty() {
            create(lake, &spec, &wanted, &properties).await?;
        }
        // What is found here counts as committed from now on.
        lake.sync_folder(&format!("{}/_delta_log", spec.location)).await?;
        let delta = lake.load_delta(&spec.location, None).await?.ok_or_else(|| {
            Error::external("STORAGE_FAILED", format!("the table {} vanished", lake.display(&spec.location)))
        })?;
        let mut table = Table::load(lake, &spec.location, &delta).await.map_err(|e| e.dataset(&spec.name))?;
        table.name.clone_from(&spec.name);
        table.schema = Arc::clone(&spec.schema);
        table.claim(spec.generation).map_err(|e| e.dataset(&spec.name))?;
        table.lay_out(spec.layout.clone());
        table.rows_go = spec.rows_go;
        table.evolve(&spec, &wanted, properties, &delta).await.map_err(|e| e.dataset(&spec.name))?;
        Ok(table)
    }

    /// Opens a table that silverflow made; `None` if there is no table.
    ///
    /// # Errors
    /// `TABLE_NOT_OURS` (user); external errors of the storage.
    pub async fn open(lake: &Lake, location: &str) -> Result<Option<Table>> {
        match lake.load_delta(location, None).await? {
            Some(delta) => Table::load(lake, location, &delta).await.map(Some),
            None => Ok(None),
        }
    }

    /// The rows' schema: the specification's, or the stored one if there was none.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Delta version of the last commit seen.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The last epoch that changed the table; later ones had nothing for it or have not happened.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path or URL of the table, for people.
    pub fn location(&self) -> String {
        self.lake.display(&self.location)
    }

    /// The greatest generation that the table holds; 0 if none.
    pub fn generation(&self) -> u64 {
        self.fence
    }

    /// The next commit brings another definition, and all rows anew: it is given inserts alone.
    pub fn is_replaced(&self) -> bool {
        self.replacement.is_some()
    }

    /// Data files of the table.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Rows in the table.
    pub fn rows(&self) -> u64 {
        self.files.values().map(DataFile::live).sum()
    }

    async fn load(lake: &Lake, location: &str, delta: &DeltaTable) -> Result<Table> {
        let state = delta.snapshot().map_err(|e| unreadable(lake, location, e))?;
        let app_id = state.metadata().configuration().get(APP_ID).cloned().ok_or_else(|| {
            Error::user(
                "TABLE_NOT_OURS",
                format!("the Delta table {} was not made by silverflow", lake.display(location)),
            )
            .help("give the dataset another name, or move the table away")
        })?;
        let log_store = delta.log_store();
        let newest = async |id: &str| {
            let found = state.transaction_version(log_store.as_ref(), id).await;
            Ok::<_, Error>(found.map_err(|e| unreadable(lake, location, e))?.and_then(|x| u64::try_from(x).ok()))
        };
        let (epoch, fence) = (newest(&app_id).await?, newest(&Writer::fence_id(&app_id)).await?);
        let stored = from_delta(&state.schema())?;
        let version = i64::try_from(state.version()).map_err(|e| unreadable(lake, location, e))?;
        let configuration = state.metadata().configuration().clone().into_iter().collect();
        let mut table = Table {
            lake: lake.clone(),
            name: location.replace('/', "."),
            location: location.to_owned(),
            schema: Arc::clone(&stored),
            stored,
            writer: Writer { app_id, generation: 0 },
            fence: fence.unwrap_or(0),
            version,
            epoch,
            files: BTreeMap::new(),
            next_file: 0,
            index: None,
            noted: RowIndex::new(),
            rows_go: false,
            learned: 0,
            checkpoint: version - version % CHECKPOINT_INTERVAL,
            vacuumed: version - version % VACUUM_INTERVAL,
            retention: Retention::of(state.table_config()),
            rewrites: rewrites(&configuration),
            layout: Layout::default(),
            replacement: None,
        };
        table.set_files(live_files(lake, location, delta).await?);
        Ok(table)
    }

    /// Takes over what another writer made of the files, the rows being the same.
    pub(crate) async fn reload(&mut self) -> Result<()> {
        self.lake.sync_folder(&format!("{}/_delta_log", self.location)).await?;
        let delta = self
            .lake
            .load_delta(&self.location, None)
            .await?
            .ok_or_else(|| Error::external("STORAGE_FAILED", format!("the table {} vanished", self.location())))?;
        let fresh = Table::load(&self.lake, &self.location, &delta).await?;
        let (before, layout) = (self.next_file, std::mem::take(&mut self.layout));
        let replacement = self.replacement.take();
        let known = by_path(std::mem::take(&mut self.files), self.index.take());
        let stored = if replacement.is_some() { Arc::clone(&self.stored) } else { Arc::clone(&fresh.stored) };
        *self = Table {
            name: self.name.clone(),
            schema: Arc::clone(&self.schema),
            writer: self.writer.clone(),
            checkpoint: self.checkpoint,
            vacuumed: self.vacuumed,
            learned: self.learned,
            rows_go: self.rows_go,
            replacement,
            stored,
            ..fresh
        };
        // Numbers of files are not used again: work that is under way knows its files by them.
        let files = std::mem::take(&mut self.files);
        self.files = (before..).zip(files.into_values()).collect();
        self.next_file = self.files.last_key_value().map_or(before, |(id, _)| id + 1);
        self.index = known.map(|mut known| {
            self.files.iter().filter_map(|(id, file)| Some((*id, known.remove(&file.path)?))).collect()
        });
        self.lay_out(layout);
        self.claim(self.writer.generation)
    }

    /// Later commits are of this generation; the first of them carries it. Cheap: nothing is written.
    ///
    /// That is enough where no earlier run can still be at work. Otherwise see [`fence`](Self::fence).
    ///
    /// # Errors
    /// `FENCED` (external) if the table is known to hold a greater generation.
    pub fn claim(&mut self, generation: u64) -> Result<()> {
        if self.fence > generation {
            return Err(fenced(&self.location(), self.fence, generation).dataset(&self.name));
        }
        self.writer.generation = generation;
        Ok(())
    }

    /// Writes the generation into the table, unless it is there already. When this returns, no run of a smaller
    /// generation can commit to the table any more: a commit that it tries ends with `FENCED`. Whatever it had
    /// committed before shows in [`version`](Self::version) and [`epoch`](Self::epoch).
    ///
    /// # Errors
    /// `FENCED` (external) if the table holds a greater generation; `TABLE_CHANGED_OUTSIDE` (external) if others wrote
    /// to the table; external errors of the storage, after which it can be tried again.
    pub async fn fence(&mut self, generation: u64) -> Result<()> {
        self.claim(generation)?;
        for _ in 0..super::commit::ATTEMPTS {
            if self.fence == generation {
                return Ok(());
            }
            let now = now_millis();
            let entry = self.entry("FENCE", Map::new(), Map::new(), now)?;
            let version = self.version + 1;
            let outcome = entry.create(&self.lake, &self.location, version, entry.bytes(), Vec::new()).await;
            match outcome.map_err(|e| e.dataset(&self.name))? {
                Outcome::Committed => self.committed(version),
                Outcome::Rewritten | Outcome::Repeated | Outcome::Earlier => self.reload().await?,
            }
        }
        Err(Error::external("TABLE_CHANGED_OUTSIDE", format!("others keep writing the table {}", self.location()))
            .dataset(&self.name)
            .help("stop the other run, then run again"))
    }

    /// An entry by this writer. The first one of a generation carries it.
    pub(crate) fn entry(
        &self,
        operation: &str,
        parameters: Map<String, Value>,
        metrics: Map<String, Value>,
        now: i64,
    ) -> Result<Entry> {
        if self.fence > self.writer.generation {
            return Err(fenced(&self.location(), self.fence, self.writer.generation));
        }
        let mut entry = Entry::new(&self.writer, operation, parameters, metrics, now);
        if self.fence < self.writer.generation {
            entry.fence(now)?;
        }
        Ok(entry)
    }

    /// The writer's entry is this version now.
    pub(crate) fn committed(&mut self, version: i64) {
        self.version = version;
        self.fence = self.writer.generation;
    }

    /// How rows are laid out when files are rewritten from now on.
    pub fn lay_out(&mut self, layout: Layout) {
        for file in self.files.values_mut() {
            file.open = layout.open.is_some() && serde_json::from_str(&file.stats).is_ok_and(|x| layout.is_open(&x));
        }
        self.layout = layout;
    }

    /// Takes a file out, and with it what is known of its rows.
    pub(crate) fn remove_file(&mut self, id: u32) -> Option<DataFile> {
        self.index.as_mut().unwrap_or(&mut self.noted).remove(&id);
        self.files.remove(&id)
    }

    fn set_files(&mut self, files: Vec<DataFile>) {
        self.files = (0..).zip(files).collect();
        self.next_file = self.files.last_key_value().map_or(0, |(id, _)| id + 1);
        self.index = None;
    }
}

async fn live_files(lake: &Lake, location: &str, delta: &DeltaTable) -> Result<Vec<DataFile>> {
    let state = delta.snapshot().map_err(|e| unreadable(lake, location, e))?;
    let log_store = delta.log_store();
    let views: Vec<_> = state
        .snapshot()
        .file_views(log_store.as_ref(), None)
        .try_collect()
        .await
        .map_err(|e| unreadable(lake, location, e))?;
    let mut files = Vec::with_capacity(views.len());
    for view in views {
        let vector = view
            .deletion_vector_descriptor()
            .map(|x| {
                Descriptor::from_parts(
                    x.storage_type.as_ref(),
                    &x.path_or_inline_dv,
                    x.offset,
                    x.size_in_bytes,
                    x.cardinality,
                )
            })
            .transpose()?;
        let path = view.path().into_owned();
        let stats = view.stats().unwrap_or_default();
        let rows = serde_json::from_str::<Value>(&stats)
            .ok()
            .and_then(|x| x.get("numRecords").and_then(Value::as_u64))
            .ok_or_else(|| {
                Error::external(
                    "TABLE_CHANGED_OUTSIDE",
                    format!("the data file {path} of {} has no row count", lake.display(location)),
                )
            })?;
        let size = u64::try_from(view.size()).map_err(|e| unreadable(lake, location, e))?;
        files.push(DataFile {
            path,
            size,
            rows,
            modified: view.modification_time(),
            stats,
            vector,
            dead: Arc::default(),
            open: false,
        });
    }
    files.sort_by(|a, b| (a.modified, &a.path).cmp(&(b.modified, &b.path)));
    load_vectors(lake, location, &mut files).await?;
    Ok(files)
}

/// The live files of a table at a version.
pub(crate) async fn files_at(lake: &Lake, location: &str, version: i64) -> Result<Vec<DataFile>> {
    match lake.load_delta(location, Some(version)).await? {
        Some(delta) => live_files(lake, location, &delta).await,
        None => Err(Error::external("STORAGE_FAILED", format!("there is no table {}", lake.display(location)))),
    }
}

/// The table's log cannot be read.
pub(crate) fn unreadable(lake: &Lake, location: &str, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::external("TABLE_NOT_READABLE", format!("cannot read the Delta log of {}", lake.display(location)))
        .caused_by(e)
}
