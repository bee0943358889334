//! Exact changes: the stretches of data files whose rows a commit added or removed, and their rows.
//!
//! A file that was removed is in no version any more that delta-rs could read, and of a file whose deletion vector grew
//! only some rows are wanted. So the files are read through a table that exists for one reading: the real table's
//! definition, and a log in memory that names just those files, each with the vector that leaves the wanted rows.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use async_trait::async_trait;
use deltalake::{DeltaTable, DeltaTableBuilder};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, path::Path,
};
use roaring::RoaringBitmap;
use serde_json::{Map, Value, json};

use super::{Entry, ExternalTable, Head, KEEP};
use crate::error::{Error, Result};
use crate::lake::log::entry_path;
use crate::lake::objects::Objects;
use crate::lake::types::position;
use crate::lake::vector::{Foreign, foreign, inline};

/// Name of the partition column that tells which piece a row is of.
const PIECE: &str = "__silverflow_piece";
/// The kind of change that a writer noted beside a row.
const CHANGE_TYPE: &str = "_change_type";
/// Files of one reading at most. delta-rs holds up when a few hundred have deletion vectors.
const FILES: usize = 64;

/// Rows of one file that a commit added or removed.
#[derive(Clone, Debug)]
pub struct Piece {
    file: Map<String, Value>,
    /// +1 for rows that came, -1 for rows that went; 0 if it stands beside each row what became of it.
    pub diff: i64,
    /// The version that did it.
    pub version: i64,
    /// When, in microseconds since 1970.
    pub timestamp: Option<i64>,
}

impl Piece {
    fn of(entry: &Entry, file: Map<String, Value>, diff: i64) -> Piece {
        Piece { file, diff, version: entry.version, timestamp: entry.timestamp }
    }
}

/// Rows of a piece.
pub struct Part {
    /// The piece.
    pub piece: Piece,
    /// The rows.
    pub rows: RecordBatch,
    /// What became of each, where the writer noted it: `insert`, `delete`, `update_preimage`, `update_postimage`.
    pub noted: Option<ArrayRef>,
}

impl ExternalTable {
    /// The rows by which a commit changed the table: those that the writer noted, if it did, else what its files say.
    ///
    /// # Errors
    /// As [`files`](Self::files).
    pub async fn pieces(&self, entry: &Entry) -> Result<Vec<Piece>> {
        if entry.has_changes() {
            return Ok(entry.changes.iter().map(|file| Piece::of(entry, file.clone(), 0)).collect());
        }
        self.files(entry).await
    }

    /// The rows by which the files of a commit differ from those before: rows that it only copied from one file to
    /// another stand on both sides.
    ///
    /// # Errors
    /// `SOURCE_FILE_GONE`, `SOURCE_NOT_READABLE` (external).
    pub async fn files(&self, entry: &Entry) -> Result<Vec<Piece>> {
        let piece = |file: Map<String, Value>, diff| Piece::of(entry, file, diff);
        let mut pieces = Vec::new();
        for add in &entry.adds {
            let before = entry.removes.iter().find(|remove| remove.get("path") == add.get("path"));
            let Some(before) = before else {
                pieces.push(piece(add.clone(), 1));
                continue;
            };
            let rows = records(add).or_else(|| records(before));
            match (self.vector(before).await?, self.vector(add).await?, rows) {
                (Some(old), Some(new), Some(rows)) => {
                    for (wanted, diff) in [(&new - &old, -1), (&old - &new, 1)] {
                        if !wanted.is_empty() {
                            pieces.push(piece(only(add, &wanted, rows)?, diff));
                        }
                    }
                }
                _ => pieces.extend([piece(before.clone(), -1), piece(add.clone(), 1)]),
            }
        }
        let again = |remove: &&Map<String, Value>| entry.adds.iter().any(|add| add.get("path") == remove.get("path"));
        pieces.extend(entry.removes.iter().filter(|x| !again(x)).map(|remove| piece(remove.clone(), -1)));
        Ok(pieces)
    }

    /// The rows of pieces, in a schema: columns by name, absent ones null. They are read while they are asked for, in no
    /// particular order.
    ///
    /// # Errors
    /// Items: `SOURCE_FILE_GONE`, `SOURCE_NOT_READABLE` (external).
    pub fn read(&self, head: &Head, pieces: Vec<Piece>, schema: &SchemaRef) -> BoxStream<'static, Result<Part>> {
        let (table, head, schema) = (self.clone(), head.clone(), Arc::clone(schema));
        stream::iter(groups(pieces))
            .then(move |group| {
                let (table, head, schema) = (table.clone(), head.clone(), Arc::clone(&schema));
                async move {
                    let checked = (table.clone(), group.clone());
                    let parts = match table.read_group(&head, group, &schema).await {
                        Ok(parts) => parts,
                        Err(e) => stream::once(async { Err(e) }).boxed(),
                    };
                    Ok(parts.or_else(move |e| {
                        let (table, group) = checked.clone();
                        async move { Err(table.explained(e, &group).await) }
                    }))
                }
            })
            .try_flatten()
            .boxed()
    }

    async fn read_group(
        &self,
        head: &Head,
        group: Vec<Piece>,
        schema: &SchemaRef,
    ) -> Result<BoxStream<'static, Result<Part>>> {
        let noted = group.first().is_some_and(|piece| piece.diff == 0);
        let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
        if noted {
            fields.push(Arc::new(Field::new(CHANGE_TYPE, DataType::Utf8, true)));
        }
        fields.push(Arc::new(Field::new(PIECE, DataType::Int64, true)));
        let wide = Arc::new(Schema::new(fields));
        let delta = self.lens(head, &group, noted).await?;
        let provider = delta.table_provider().build().await.map_err(|e| self.unreadable(e))?;
        let rows = self.stream(Arc::new(provider), &wide).await?;
        let (table, schema) = (self.clone(), Arc::clone(schema));
        let parts = rows.map(move |batch| {
            let parts = split(&batch?, &group, &schema, noted).map_err(|e| table.unreadable(e))?;
            Ok(stream::iter(parts.into_iter().map(Ok)))
        });
        Ok(parts.try_flatten().boxed())
    }

    /// The error of a reading, or what it comes from: a file that a vacuum has removed.
    async fn explained(&self, error: Error, group: &[Piece]) -> Error {
        let Ok(root) = self.root() else { return error };
        let store = self.lake.objects();
        for piece in group {
            let name = piece.file.get("path").and_then(Value::as_str).unwrap_or_default();
            let Some(path) = Path::from_url_path(name).ok().filter(|_| !name.contains(':')) else { continue };
            let path = Path::from_iter(root.parts().chain(path.parts()));
            if let Err(object_store::Error::NotFound { .. }) = store.head(&path).await {
                let message = format!(
                    "the data file {name} of {} is gone; version {} added or removed rows of it",
                    self.location(),
                    piece.version
                );
                return Error::external("SOURCE_FILE_GONE", message).caused_by(error).help(KEEP);
            }
        }
        error
    }

    /// Where the table lies in the store.
    fn root(&self) -> Result<Path> {
        Path::from_url_path(self.lake.table_url(&self.location)?.path()).map_err(|e| self.unreadable(e))
    }

    /// A table of these files alone.
    async fn lens(&self, head: &Head, group: &[Piece], noted: bool) -> Result<DeltaTable> {
        let mut log = Vec::new();
        for action in [json!({"protocol": head.protocol}), json!({"metaData": self.widened(head, noted)?})] {
            log.extend(action.to_string().into_bytes());
            log.push(b'\n');
        }
        let partitions = head.metadata.get("partitionColumns").and_then(Value::as_array).map_or(0, Vec::len);
        for (number, piece) in group.iter().enumerate() {
            let mut file = piece.file.clone();
            let known = file.get("partitionValues").and_then(Value::as_object).cloned();
            let whole = file.get("size").is_some_and(Value::is_number) && (known.is_some() || partitions == 0);
            if !whole {
                return Err(self.unreadable(format!(
                    "version {} removes a file without saying how large it is or to which partition it belongs",
                    piece.version
                )));
            }
            let mut values = known.unwrap_or_default();
            values.insert(PIECE.to_owned(), json!(number.to_string()));
            file.insert("partitionValues".to_owned(), Value::Object(values));
            file.insert("dataChange".to_owned(), json!(true));
            file.entry("modificationTime").or_insert_with(|| json!(0));
            for key in ["deletionTimestamp", "extendedFileMetadata", "tags", "stats"] {
                file.shift_remove(key);
            }
            log.extend(json!({ "add": file }).to_string().into_bytes());
            log.push(b'\n');
        }
        let url = self.lake.table_url(&self.location)?;
        let root = self.root()?;
        let entry = entry_path("", 0);
        let entry = Path::from_iter(root.parts().chain(Path::from(entry.trim_start_matches('/')).parts()));
        let memory = InMemory::new();
        memory.put(&entry, PutPayload::from(log)).await.map_err(|e| self.unreadable(e))?;
        let store = Arc::new(Lens { log: memory, files: self.lake.objects() });
        let builder = DeltaTableBuilder::from_url(url.clone()).map_err(|e| self.unreadable(e))?;
        builder.with_storage_backend(store, url).load().await.map_err(|e| self.unreadable(e))
    }

    /// The table's metadata with the columns that are read besides its own.
    fn widened(&self, head: &Head, noted: bool) -> Result<Value> {
        let damaged = || self.unreadable("the metadata of the table is incomplete");
        let mut metadata = head.metadata.clone();
        let fields = metadata.as_object_mut().ok_or_else(damaged)?;
        let text = fields.get("schemaString").and_then(Value::as_str).ok_or_else(damaged)?;
        let mut schema: Value = serde_json::from_str(text).map_err(|e| self.unreadable(e))?;
        let configuration = fields.get("configuration").and_then(Value::as_object).cloned().unwrap_or_default();
        let mapped = configuration.get("delta.columnMapping.mode").is_some_and(|mode| mode != "none");
        let last = configuration.get("delta.columnMapping.maxColumnId").and_then(Value::as_str);
        let mut id: i64 = last.and_then(|id| id.parse().ok()).unwrap_or(0);
        let columns = schema.get_mut("fields").and_then(Value::as_array_mut).ok_or_else(damaged)?;
        for (name, kind) in [(CHANGE_TYPE, "string"), (PIECE, "long")].into_iter().skip(usize::from(!noted)) {
            id += 1;
            let names = if mapped {
                json!({"delta.columnMapping.id": id, "delta.columnMapping.physicalName": name})
            } else {
                json!({})
            };
            columns.push(json!({"name": name, "type": kind, "nullable": true, "metadata": names}));
        }
        fields.insert("schemaString".to_owned(), json!(schema.to_string()));
        let partitions = fields.entry("partitionColumns").or_insert_with(|| json!([]));
        partitions.as_array_mut().ok_or_else(damaged)?.push(json!(PIECE));
        if mapped && let Some(configuration) = fields.get_mut("configuration").and_then(Value::as_object_mut) {
            configuration.insert("delta.columnMapping.maxColumnId".to_owned(), json!(id.to_string()));
        }
        Ok(metadata)
    }

    /// Rows of a file that are gone, as its action says; `None` if that cannot be told without reading elsewhere.
    async fn vector(&self, action: &Map<String, Value>) -> Result<Option<RoaringBitmap>> {
        let Some(descriptor) = action.get("deletionVector").filter(|x| !x.is_null()) else {
            return Ok(Some(RoaringBitmap::new()));
        };
        match foreign(descriptor).map_err(|e| self.unreadable(e))? {
            Foreign::Rows(rows) => Ok(Some(rows)),
            Foreign::Elsewhere => Ok(None),
            Foreign::File(name, descriptor) => {
                let bytes = self.lake.get(&format!("{}/{name}", self.location)).await?.ok_or_else(|| {
                    Error::external(
                        "SOURCE_FILE_GONE",
                        format!("the deletion vector {name} of {} is gone", self.location()),
                    )
                    .help(KEEP)
                })?;
                crate::lake::vector::read(&bytes, &descriptor).map(Some).map_err(|e| self.unreadable(e))
            }
        }
    }
}

/// Cuts pieces into groups that can be read at once: a file is in a log once, and noted changes have a column more.
fn groups(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut groups: Vec<Vec<Piece>> = Vec::new();
    let mut paths = BTreeSet::new();
    for piece in pieces {
        let path = piece.file.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
        let fits = groups.last().is_some_and(|group| {
            group.len() < FILES && group.first().is_some_and(|first| (first.diff == 0) == (piece.diff == 0))
        });
        if !fits || !paths.insert(path.clone()) {
            groups.push(Vec::new());
            paths = BTreeSet::from([path]);
        }
        if let Some(group) = groups.last_mut() {
            group.push(piece);
        }
    }
    groups
}

/// Rows of a file, dead ones counted, if its action says it.
fn records(action: &Map<String, Value>) -> Option<u32> {
    let stats: Value = serde_json::from_str(action.get("stats")?.as_str()?).ok()?;
    stats.get("numRecords")?.as_u64()?.try_into().ok()
}

/// The file with all rows gone but these.
fn only(file: &Map<String, Value>, wanted: &RoaringBitmap, rows: u32) -> Result<Map<String, Value>> {
    let mut gone = RoaringBitmap::new();
    gone.insert_range(0..rows);
    let mut file = file.clone();
    file.insert("deletionVector".to_owned(), inline(&(gone - wanted))?);
    Ok(file)
}

/// Rows by the piece that they are of.
fn split(batch: &RecordBatch, group: &[Piece], schema: &SchemaRef, noted: bool) -> Result<Vec<Part>> {
    let wrong = |e| Error::internal("rows of a table do not fit its schema").caused_by(e);
    let at = position(batch.schema().fields(), PIECE).ok_or_else(|| Error::internal("rows without their file"))?;
    let numbers = cast(batch.column(at), &DataType::Int64).map_err(wrong)?;
    let numbers = numbers.as_primitive::<Int64Type>();
    let mut parts = Vec::new();
    let mut start = 0;
    for end in 1..=batch.num_rows() {
        if end < batch.num_rows() && numbers.value(end) == numbers.value(start) {
            continue;
        }
        let piece = usize::try_from(numbers.value(start)).ok().and_then(|i| group.get(i));
        let piece = piece.ok_or_else(|| Error::internal("rows of a file that was not asked for"))?.clone();
        let rows = batch.slice(start, end - start);
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let beside = noted.then(|| rows.column(schema.fields().len()).clone());
        parts.push(Part { piece, rows: rows.project(&columns).map_err(wrong)?, noted: beside });
        start = end;
    }
    Ok(parts)
}

/// A store in which the log of a table is another one.
#[derive(Debug)]
struct Lens {
    log: InMemory,
    files: Objects,
}

impl Lens {
    fn of(&self, location: &Path) -> &dyn ObjectStore {
        if location.parts().any(|part| part.as_ref() == "_delta_log") { &self.log } else { &self.files }
    }

    fn refused() -> object_store::Error {
        object_store::Error::NotImplemented { operation: "writing".to_owned(), implementer: "Lens".to_owned() }
    }
}

impl fmt::Display for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lens({})", self.files)
    }
}

#[async_trait]
impl ObjectStore for Lens {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        Err(Lens::refused())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(Lens::refused())
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.of(location).get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        stream::once(async { Err(Lens::refused()) }).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.log.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.log.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(Lens::refused())
    }
}
