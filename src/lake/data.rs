//! Data files: Parquet with the table's columns, rows that are gone noted beside.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::ChunkReader;
use roaring::RoaringBitmap;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::layout::Layout;
use super::stats::Stats;
use super::storage::{Input, Lake};
use super::types::{conform, position};
use super::vector::{self, Descriptor};
use crate::error::{Error, Result};

/// Rows of one page at most: what is read to look at one row.
const PAGE_ROWS: usize = 4096;
/// Rows of the batches that are read.
const BATCH_ROWS: usize = 8192;

/// A data file of a table's current version.
#[derive(Clone, Debug)]
pub(crate) struct DataFile {
    /// Name, relative to the table.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Rows, dead ones counted.
    pub(crate) rows: u64,
    /// When it was written, in milliseconds.
    pub(crate) modified: i64,
    /// As in the log.
    pub(crate) stats: String,
    /// The vector that the log names, if any.
    pub(crate) vector: Option<Descriptor>,
    /// Rows that are gone: what the vector holds.
    pub(crate) dead: Arc<RoaringBitmap>,
    /// All its rows are expected to change: see [`Layout`](super::layout::Layout).
    pub(crate) open: bool,
}

impl DataFile {
    /// Rows that are there.
    pub(crate) fn live(&self) -> u64 {
        self.rows.saturating_sub(self.dead.len())
    }

    /// The action that brings the file into the table, as it is now.
    pub(crate) fn add(&self, data_change: bool) -> Value {
        let mut add = json!({
            "path": self.path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": self.modified,
            "dataChange": data_change,
            "stats": self.stats,
        });
        if let (Some(vector), Some(fields)) = (&self.vector, add.as_object_mut()) {
            fields.insert("deletionVector".into(), vector.to_json());
        }
        json!({ "add": add })
    }

    /// The action that takes the file, as it is now, out of the table. The vector is part of its identity.
    pub(crate) fn remove(&self, data_change: bool, now: i64) -> Value {
        let mut remove = json!({
            "path": self.path,
            "deletionTimestamp": now,
            "dataChange": data_change,
            "extendedFileMetadata": true,
            "partitionValues": {},
            "size": self.size,
        });
        if let (Some(vector), Some(fields)) = (&self.vector, remove.as_object_mut()) {
            fields.insert("deletionVector".into(), vector.to_json());
        }
        json!({ "remove": remove })
    }

    /// The file with these rows gone.
    pub(crate) fn with_dead(&self, dead: RoaringBitmap, vector: Descriptor) -> DataFile {
        DataFile { stats: wide(&self.stats), vector: Some(vector), dead: Arc::new(dead), ..self.clone() }
    }
}

/// Reads the vectors that the log names; one file holds the vectors of many.
pub(crate) async fn load_vectors(lake: &Lake, location: &str, files: &mut [DataFile]) -> Result<()> {
    let mut read: HashMap<Uuid, Vec<u8>> = HashMap::new();
    for file in files {
        let Some(vector) = &file.vector else { continue };
        let path = format!("{location}/{}", vector.file_name());
        let damaged =
            |why: &str| Error::external("TABLE_NOT_READABLE", format!("cannot use {}: {why}", lake.display(&path)));
        let bytes = match read.entry(vector.file) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(lake.get(&path).await?.ok_or_else(|| damaged("the file is missing"))?),
        };
        file.dead = Arc::new(vector::read(bytes, vector).map_err(|e| damaged(&e))?);
    }
    Ok(())
}

/// With rows gone, the bounds still hold but may not be reached.
fn wide(stats: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(stats) {
        Ok(mut fields) if fields.get("tightBounds").is_none_or(|x| *x == json!(true)) => {
            fields.insert("tightBounds".into(), json!(false));
            Value::Object(fields).to_string()
        }
        _ => stats.to_owned(),
    }
}

/// A data file that is encoded but not yet in the storage.
pub(crate) struct Encoded {
    /// As it will be in the table.
    pub(crate) file: DataFile,
    /// Its contents.
    pub(crate) bytes: Vec<u8>,
}

/// Encodes batches of the table's stored schema into files of a number of rows at most, in order.
pub(crate) struct Packer {
    stored: SchemaRef,
    now: i64,
    limit: usize,
    layout: Layout,
    current: Option<Encoder>,
    files: Vec<Encoded>,
}

impl Packer {
    /// Files written at `now`, of at most `limit` rows each.
    pub(crate) fn new(stored: &SchemaRef, layout: &Layout, limit: usize, now: i64) -> Self {
        Packer {
            stored: Arc::clone(stored),
            now,
            limit: limit.max(1),
            layout: layout.clone(),
            current: None,
            files: Vec::new(),
        }
    }

    /// Adds rows.
    pub(crate) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut done = 0;
        while done < batch.num_rows() {
            let mut encoder = match self.current.take() {
                Some(encoder) => encoder,
                None => Encoder::new(&self.stored, &self.layout)?,
            };
            let part = batch.slice(done, (batch.num_rows() - done).min(self.limit - encoder.rows));
            done += part.num_rows();
            encoder.write(&part)?;
            if encoder.rows == self.limit {
                self.files.push(encoder.finish(&self.layout, self.now)?);
            } else {
                self.current = Some(encoder);
            }
        }
        Ok(())
    }

    /// The files.
    pub(crate) fn finish(mut self) -> Result<Vec<Encoded>> {
        if let Some(last) = self.current {
            self.files.push(last.finish(&self.layout, self.now)?);
        }
        Ok(self.files)
    }
}

struct Encoder {
    writer: ArrowWriter<Vec<u8>>,
    stats: Stats,
    rows: usize,
}

impl Encoder {
    fn new(stored: &SchemaRef, layout: &Layout) -> Result<Self> {
        let level = ZstdLevel::try_new(1).map_err(encoding)?;
        let properties = WriterProperties::builder()
            .set_created_by(concat!("silverflow version ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::ZSTD(level))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .build();
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(stored), options).map_err(encoding)?;
        Ok(Encoder { writer, stats: Stats::new(stored, layout.open.as_deref()), rows: 0 })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        self.stats.update(batch);
        self.writer.write(batch).map_err(encoding)
    }

    fn finish(self, layout: &Layout, now: i64) -> Result<Encoded> {
        let bytes = self.writer.into_inner().map_err(encoding)?;
        let stats = self.stats.to_json();
        let file = DataFile {
            path: format!("part-{}.parquet", Uuid::new_v4()),
            size: bytes.len() as u64,
            rows: self.rows as u64,
            modified: now,
            open: layout.open.is_some() && serde_json::from_str(&stats).is_ok_and(|x| layout.is_open(&x)),
            stats,
            vector: None,
            dead: Arc::default(),
        };
        Ok(Encoded { file, bytes })
    }
}

fn encoding(e: parquet::errors::ParquetError) -> Error {
    Error::internal("rows cannot be encoded").caused_by(e)
}

/// The live rows of one data file.
pub(crate) struct Reader {
    inner: ParquetRecordBatchReader,
    schema: SchemaRef,
    dead: Arc<RoaringBitmap>,
    next_row: u32,
    path: String,
}

impl Reader {
    /// Opens a file of the table at `location`; rows come out in `schema`, columns by name, absent ones null. Blocks.
    pub(crate) fn open(
        lake: &Lake,
        location: &str,
        file: &DataFile,
        schema: &SchemaRef,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Self> {
        let location = format!("{location}/{}", file.path);
        let path = lake.display(&location);
        let input = lake.input(&location, runtime)?;
        let inner = undamaged(|| match input {
            Input::File(input) => Ok(build(input, schema)?),
            Input::Bytes(input) => Ok(build(bytes::Bytes::from(input), schema)?),
        })
        .map_err(|e| unreadable(&path, e))?;
        Ok(Reader { inner, schema: Arc::clone(schema), dead: Arc::clone(&file.dead), next_row: 0, path })
    }

    /// The next live rows and, for each, its row number in the file.
    pub(crate) fn next_rows(&mut self) -> Option<Result<(RecordBatch, Vec<u32>)>> {
        loop {
            let batch = match undamaged(|| Ok(self.inner.next().transpose()?)) {
                Ok(batch) => batch?,
                Err(e) => return Some(Err(unreadable(&self.path, e))),
            };
            let Ok(count) = u32::try_from(batch.num_rows()) else {
                return Some(Err(Error::internal("a batch of more than 2^32 rows")));
            };
            let (first, end) = (self.next_row, self.next_row.saturating_add(count));
            self.next_row = end;
            let dead = self.dead.range_cardinality(first..end);
            if dead == u64::from(count) {
                continue;
            }
            let rows: Vec<u32> = (first..end).filter(|row| dead == 0 || !self.dead.contains(*row)).collect();
            return Some(self.live(batch, dead, first, end).map(|batch| (batch, rows)));
        }
    }

    fn live(&self, batch: RecordBatch, dead: u64, first: u32, end: u32) -> Result<RecordBatch> {
        let batch = if dead == 0 {
            batch
        } else {
            let keep: BooleanArray = (first..end).map(|row| Some(!self.dead.contains(row))).collect();
            filter_record_batch(&batch, &keep).map_err(|e| Error::internal("rows cannot be filtered").caused_by(e))?
        };
        conform(&batch, &self.schema).map_err(|e| unreadable(&self.path, e))
    }
}

fn build<T: ChunkReader + 'static>(input: T, schema: &Schema) -> parquet::errors::Result<ParquetRecordBatchReader> {
    builder(input, schema, PageIndexPolicy::Skip)?.with_batch_size(BATCH_ROWS).build()
}

fn builder<T: ChunkReader + 'static>(
    input: T,
    schema: &Schema,
    pages: PageIndexPolicy,
) -> parquet::errors::Result<ParquetRecordBatchReaderBuilder<T>> {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true).with_offset_index_policy(pages);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(input, options)?;
    let found = builder.schema().fields();
    let wanted: Vec<usize> = schema.fields().iter().filter_map(|x| position(found, x.name())).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
    Ok(builder.with_projection(mask))
}

/// Rows of a data file by their number, which must rise. Reads their pages, not the file. Blocks.
pub(crate) fn rows_at(
    lake: &Lake,
    location: &str,
    file: &DataFile,
    schema: &SchemaRef,
    rows: &[u32],
    runtime: &tokio::runtime::Handle,
) -> Result<RecordBatch> {
    fn read<T: ChunkReader + 'static>(input: T, schema: &Schema, rows: &[u32]) -> Result<Vec<RecordBatch>, Failure> {
        let builder = builder(input, schema, PageIndexPolicy::Optional)?;
        let total = usize::try_from(builder.metadata().file_metadata().num_rows())?;
        let one = |row: &u32| (*row as usize)..(*row as usize + 1);
        if rows.last().is_some_and(|row| *row as usize >= total) {
            return Err(format!("the file has {total} rows only").into());
        }
        let selection = RowSelection::from_consecutive_ranges(rows.iter().map(one), total);
        let reader = builder.with_row_selection(selection).with_batch_size(BATCH_ROWS).build()?;
        Ok(reader.collect::<Result<_, _>>()?)
    }
    let location = format!("{location}/{}", file.path);
    let path = lake.display(&location);
    let input = lake.input(&location, runtime)?;
    let batches = undamaged(|| match input {
        Input::File(input) => read(input, schema, rows),
        Input::Bytes(input) => read(bytes::Bytes::from(input), schema, rows),
    })
    .map_err(|e| unreadable(&path, e))?;
    let batches = batches.iter().map(|x| conform(x, schema)).collect::<Result<Vec<_>>>();
    let batches = batches.map_err(|e| unreadable(&path, e))?;
    concat_batches(schema, &batches).map_err(|e| unreadable(&path, e))
}

/// What a third party found wrong.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a part of reading Parquet. The library panics on some damaged files; that is the file's fault, and the reader
/// is not used again.
pub(crate) fn undamaged<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(format!("the file is damaged ({})", text.unwrap_or("unknown")).into())
    })
}

fn unreadable(path: &str, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::external("TABLE_NOT_READABLE", format!("cannot read the data file {path}")).caused_by(e)
}
