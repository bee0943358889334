//! One Delta table as the sink knows it: its files, which of their rows are live, and the last epoch it holds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use deltalake::DeltaTable;
use deltalake::kernel::{MetadataExt, StructType};
use futures::TryStreamExt;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::data::{DataFile, load_vectors};
use super::index::RowIndex;
use super::log::{Entry, Outcome, Writer, fenced, now_millis};
use super::storage::Lake;
use super::types::{from_delta, position, stored_schema, to_delta};
use super::vector::Descriptor;
use crate::error::{Error, Result};

/// Table property with the random id under which epochs are committed.
const APP_ID: &str = "silverflow.appId";
/// Properties of Delta that a user may set; the others change what readers and writers must do.
const FREE_PROPERTIES: [&str; 4] = [
    "delta.logretentionduration",
    "delta.deletedfileretentionduration",
    "delta.enableexpiredlogcleanup",
    "delta.dataskippingnumindexedcols",
];

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
    /// Built when a row is first to be deleted.
    pub(crate) index: Option<RowIndex>,
    /// Version of the last log checkpoint written here.
    pub(crate) checkpoint: i64,
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
        let delta = lake.load_delta(&spec.location, None).await?.ok_or_else(|| {
            Error::external("STORAGE_FAILED", format!("the table {} vanished", lake.display(&spec.location)))
        })?;
        let mut table = Table::load(lake, &spec.location, &delta).await.map_err(|e| e.dataset(&spec.name))?;
        table.name.clone_from(&spec.name);
        table.schema = Arc::clone(&spec.schema);
        table.claim(spec.generation).map_err(|e| e.dataset(&spec.name))?;
        table.evolve(&spec, &wanted, &properties, &delta).await.map_err(|e| e.dataset(&spec.name))?;
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
            checkpoint: version - version % super::compact::CHECKPOINT_INTERVAL,
        };
        table.set_files(live_files(lake, location, delta).await?);
        Ok(table)
    }

    /// Takes over what another writer made of the files, the rows being the same. Positions are found anew.
    pub(crate) async fn reload(&mut self) -> Result<()> {
        let delta = self
            .lake
            .load_delta(&self.location, None)
            .await?
            .ok_or_else(|| Error::external("STORAGE_FAILED", format!("the table {} vanished", self.location())))?;
        let fresh = Table::load(&self.lake, &self.location, &delta).await?;
        *self = Table {
            name: self.name.clone(),
            schema: Arc::clone(&self.schema),
            writer: self.writer.clone(),
            checkpoint: self.checkpoint,
            ..fresh
        };
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

    fn set_files(&mut self, files: Vec<DataFile>) {
        self.files = (0..).zip(files).collect();
        self.next_file = self.files.last_key_value().map_or(0, |(id, _)| id + 1);
        self.index = None;
    }

    /// Brings columns, comment and properties to the specification, in one commit if anything differs.
    async fn evolve(
        &mut self,
        spec: &TableSpec,
        wanted: &SchemaRef,
        properties: &BTreeMap<String, String>,
        delta: &DeltaTable,
    ) -> Result<()> {
        let merged = merge_fields(self.stored.fields(), wanted.fields()).map_err(|(column, old, new)| {
            Error::user(
                "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE",
                format!("the column {column} of {} is {old} in the table and {new} in the definition", spec.name),
            )
            .help("cast the column to the old type, or write to a table of another name")
        })?;
        let state = delta.snapshot().map_err(|e| unreadable(&self.lake, &self.location, e))?;
        let metadata = state.metadata();
        let stored = Arc::new(Schema::new(merged));
        let same_schema = stored == self.stored;
        let same_comment = spec.comment.is_none() || spec.comment.as_deref() == metadata.description();
        let same_properties = properties.iter().all(|(k, v)| metadata.configuration().get(k) == Some(v));
        if same_schema && same_comment && same_properties {
            return Ok(());
        }
        let failed =
            |e: deltalake::kernel::Error| Error::internal("the table's metadata cannot be changed").caused_by(e);
        let mut changed = metadata.clone().with_schema(&to_delta(&stored)?).map_err(failed)?;
        if let Some(comment) = &spec.comment {
            changed = changed.with_description(comment.clone()).map_err(failed)?;
        }
        for (key, value) in properties {
            changed = changed.add_config_key(key.clone(), value.clone()).map_err(failed)?;
        }
        let metadata = serde_json::to_value(&changed)
            .map_err(|e| Error::internal("the table's metadata has no JSON form").caused_by(e))?;
        let (now, version) = (now_millis(), self.version + 1);
        let mut entry = self.entry("SET TABLE DEFINITION", Map::new(), Map::new(), now)?;
        if needs_ntz(&stored) && !needs_ntz(&self.stored) {
            entry.push(protocol(true));
        }
        entry.push(json!({ "metaData": metadata }));
        match entry.create(&self.lake, &self.location, version, entry.bytes(), Vec::new()).await? {
            Outcome::Committed => {
                self.committed(version);
                self.stored = stored;
                Ok(())
            }
            Outcome::Rewritten | Outcome::Repeated | Outcome::Earlier => Err(Error::external(
                "TABLE_CHANGED_OUTSIDE",
                format!("the table {} was rewritten while it was opened", self.location()),
            )
            .help("run again")),
        }
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

fn unreadable(lake: &Lake, location: &str, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::external("TABLE_NOT_READABLE", format!("cannot read the Delta log of {}", lake.display(location)))
        .caused_by(e)
}

async fn create(
    lake: &Lake,
    spec: &TableSpec,
    stored: &SchemaRef,
    properties: &BTreeMap<String, String>,
) -> Result<()> {
    let now = now_millis();
    let schema: StructType = to_delta(stored)?;
    let schema =
        serde_json::to_string(&schema).map_err(|e| Error::internal("the schema has no JSON form").caused_by(e))?;
    let mut configuration: Map<String, Value> = properties.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    configuration.insert("delta.enableDeletionVectors".into(), json!("true"));
    configuration.insert("delta.checkpointInterval".into(), json!(super::compact::CHECKPOINT_INTERVAL.to_string()));
    let writer = Writer { app_id: Uuid::new_v4().to_string(), generation: spec.generation };
    configuration.insert(APP_ID.into(), json!(writer.app_id));
    let mut metadata = json!({
        "id": Uuid::new_v4().to_string(),
        "name": spec.name,
        "format": { "provider": "parquet", "options": {} },
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now,
    });
    if let (Some(comment), Some(fields)) = (&spec.comment, metadata.as_object_mut()) {
        fields.insert("description".into(), json!(comment));
    }
    let mut entry = Entry::new(&writer, "CREATE TABLE", Map::new(), Map::new(), now);
    entry.push(protocol(needs_ntz(stored)));
    entry.push(json!({ "metaData": metadata }));
    if writer.generation > 0 {
        entry.fence(now)?;
    }
    entry.create(lake, &spec.location, 0, entry.bytes(), Vec::new()).await.map(drop)
}

fn protocol(ntz: bool) -> Value {
    let mut reader = vec!["deletionVectors"];
    let mut writer = vec!["deletionVectors", "invariants", "appendOnly"];
    if ntz {
        reader.push("timestampNtz");
        writer.push("timestampNtz");
    }
    json!({ "protocol": { "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": writer } })
}

fn needs_ntz(schema: &Schema) -> bool {
    fn inside(data_type: &DataType) -> bool {
        match data_type {
            DataType::Timestamp(_, None) => true,
            DataType::List(item) | DataType::Map(item, _) => inside(item.data_type()),
            DataType::Struct(fields) => fields.iter().any(|x| inside(x.data_type())),
            _ => false,
        }
    }
    schema.fields().iter().any(|x| inside(x.data_type()))
}

fn checked_properties(spec: &TableSpec) -> Result<BTreeMap<String, String>> {
    for key in spec.properties.keys() {
        let folded = key.to_lowercase();
        if (folded.starts_with("delta.") && !FREE_PROPERTIES.contains(&folded.as_str())) || key == APP_ID {
            return Err(Error::user("UNSUPPORTED_TABLE_PROPERTY", format!("the table property {key} cannot be set"))
                .dataset(&spec.name)
                .help("silverflow decides how its tables are written; retention and data skipping can be set"));
        }
    }
    Ok(spec.properties.clone())
}

type Conflict = (String, DataType, DataType);

/// The table's fields with those of the definition: new ones at the end, nullable where either is. A conflict names
/// the column and both types.
fn merge_fields(table: &Fields, wanted: &Fields) -> Result<Fields, Conflict> {
    let mut merged = Vec::with_capacity(table.len());
    for old in table {
        let field = match position(wanted, old.name()).and_then(|i| wanted.get(i)) {
            Some(new) => merge_field(old, new)?,
            None => Field::new(old.name(), old.data_type().clone(), true),
        };
        merged.push(field);
    }
    for new in wanted.iter().filter(|x| position(table, x.name()).is_none()) {
        merged.push(Field::new(new.name(), new.data_type().clone(), true));
    }
    Ok(merged.into())
}

fn merge_field(old: &Field, new: &Field) -> Result<Field, Conflict> {
    let conflict = || (old.name().clone(), old.data_type().clone(), new.data_type().clone());
    let inside = |(_, _, _): Conflict| conflict();
    let data_type = match (old.data_type(), new.data_type()) {
        (a, b) if a == b => a.clone(),
        (DataType::Struct(a), DataType::Struct(b)) => DataType::Struct(merge_fields(a, b).map_err(inside)?),
        (DataType::List(a), DataType::List(b)) => DataType::List(Arc::new(merge_field(a, b).map_err(inside)?)),
        (DataType::Map(a, _), DataType::Map(b, _)) => {
            DataType::Map(Arc::new(merge_field(a, b).map_err(inside)?), false)
        }
        _ => return Err(conflict()),
    };
    Ok(Field::new(old.name(), data_type, old.is_nullable() || new.is_nullable()))
}
