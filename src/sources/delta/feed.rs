//! Changes as rows: what happened to each row, in which version and when.
//!
//! A writer may have noted the changed rows. Where it has not, they are what the commit removed and added without what it
//! only copied. A delete and an insert of one key in one version are an update, if keys are known.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::row::{OwnedRow, RowConverter, SortField};
use futures::{StreamExt, TryStreamExt, stream};

use super::DeltaSource;
use crate::error::{Error, Result};
use crate::lake::RowStream;
use crate::lake::external::{Entry, Part};
use crate::lake::types::position;

/// What happened: `insert`, `delete`, `update_preimage` or `update_postimage`.
pub const CHANGE_TYPE: &str = "_change_type";
/// The version that did it.
pub const COMMIT_VERSION: &str = "_commit_version";
/// When that was committed.
pub const COMMIT_TIMESTAMP: &str = "_commit_timestamp";

const INSERT: &str = "insert";
const DELETE: &str = "delete";
const BEFORE: &str = "update_preimage";
const AFTER: &str = "update_postimage";

/// The columns of a feed of a table's changes.
pub(super) fn schema(table: &Schema, keys: &[String], location: &str) -> Result<SchemaRef> {
    for name in [CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP] {
        if position(table.fields(), name).is_some() {
            let message = format!("the table {location} has a column {name}, as its change feed would have");
            return Err(Error::user("RESERVED_COLUMN", message).help("read it without readChangeFeed"));
        }
    }
    if let Some(key) = keys.iter().find(|key| position(table.fields(), key).is_none()) {
        let message = format!("the key {key} is no column of the table {location}");
        return Err(Error::user("UNKNOWN_COLUMN", message).help("set silverflow.keys to what identifies a row there"));
    }
    let mut fields: Vec<FieldRef> = table.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(CHANGE_TYPE, DataType::Utf8, true)));
    fields.push(Arc::new(Field::new(COMMIT_VERSION, DataType::Int64, true)));
    fields.push(Arc::new(Field::new(
        COMMIT_TIMESTAMP,
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        true,
    )));
    Ok(Arc::new(Schema::new(fields)))
}

pub(super) fn unknown_change(location: &str, found: Option<&str>) -> Error {
    let found = found.unwrap_or("NULL");
    Error::external("SOURCE_NOT_READABLE", format!("the table {location} notes a change of the unknown kind {found}"))
}

fn wrong(e: ArrowError) -> Error {
    Error::internal("changes of a table do not fit its schema").caused_by(e)
}

/// Changed rows of one commit.
struct Changed {
    rows: RecordBatch,
    kinds: Vec<&'static str>,
}

impl DeltaSource {
    /// The rows of a version as inserts.
    pub(super) async fn inserted(&self, rows: RowStream, version: i64) -> Result<RowStream> {
        let timestamp = match self.table.entry(version).await {
            Ok(entry) => entry.timestamp,
            // The log may be cleaned up to here.
            Err(e) if e.code() == "SOURCE_VERSION_GONE" => None,
            Err(e) => return Err(e),
        };
        let schema = Arc::clone(&self.schema);
        let rows = rows.and_then(move |rows| {
            let kinds = vec![INSERT; rows.num_rows()];
            futures::future::ready(labelled(&Changed { rows, kinds }, version, timestamp, &schema))
        });
        Ok(rows.boxed())
    }

    /// The changes of entries, one after the other.
    pub(super) async fn fed(&self, entries: Vec<Entry>, keys: &[String], preimages: bool) -> Result<RowStream> {
        let (source, keys) = (self.clone(), keys.to_vec());
        let rows = stream::iter(runs(entries)).then(move |run| {
            let (source, keys) = (source.clone(), keys.clone());
            async move { source.changes_of(run, &keys, preimages).await }
        });
        Ok(rows.try_flatten().boxed())
    }

    async fn changes_of(&self, run: Vec<Entry>, keys: &[String], preimages: bool) -> Result<RowStream> {
        let mut pieces = Vec::new();
        for entry in &run {
            pieces.extend(self.table.pieces(entry).await?);
        }
        let parts = self.table.read(&self.head, pieces, &self.head.schema);
        let (schema, location) = (Arc::clone(&self.schema), self.location());
        let label = move |changed: &Changed, version, timestamp| {
            let rows = labelled(changed, version, timestamp, &schema)?;
            if preimages {
                return Ok(rows);
            }
            let kept: BooleanArray = changed.kinds.iter().map(|kind| Some(*kind != BEFORE)).collect();
            filter_record_batch(&rows, &kept).map_err(wrong)
        };
        match run.as_slice() {
            [entry] if entry.rewrites() => {
                let parts: Vec<Part> = parts.try_collect().await?;
                let mut changed = Vec::with_capacity(parts.len());
                for part in parts {
                    changed.push(changed_of(part, &location)?);
                }
                if !entry.has_changes() {
                    cancel(&mut changed)?;
                }
                pair(&mut changed, keys)?;
                let (version, timestamp) = (entry.version, entry.timestamp);
                let rows = changed.iter().map(|x| label(x, version, timestamp)).collect::<Vec<_>>();
                Ok(stream::iter(rows).boxed())
            }
            _ => {
                let rows = parts.map(move |part| {
                    let part = part?;
                    let (version, timestamp) = (part.piece.version, part.piece.timestamp);
                    label(&changed_of(part, &location)?, version, timestamp)
                });
                Ok(rows.boxed())
            }
        }
    }
}

/// Entries that can be read at once; those that change or remove rows stand alone.
fn runs(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut runs: Vec<Vec<Entry>> = Vec::new();
    for entry in entries {
        match runs.last_mut() {
            Some(run) if !entry.rewrites() && run.last().is_some_and(|last| !last.rewrites()) => run.push(entry),
            _ => runs.push(vec![entry]),
        }
    }
    runs
}

fn changed_of(part: Part, location: &str) -> Result<Changed> {
    let kinds = match &part.noted {
        None => vec![if part.piece.diff < 0 { DELETE } else { INSERT }; part.rows.num_rows()],
        Some(noted) => {
            let known = |kind: Option<&str>| {
                let found = [INSERT, DELETE, BEFORE, AFTER].into_iter().find(|known| Some(*known) == kind);
                found.ok_or_else(|| unknown_change(location, kind))
            };
            noted.as_string::<i32>().iter().map(known).collect::<Result<_>>()?
        }
    };
    Ok(Changed { rows: part.rows, kinds })
}

/// Leaves out rows that are removed and added alike.
fn cancel(changed: &mut Vec<Changed>) -> Result<()> {
    let mut counts: HashMap<OwnedRow, i64> = HashMap::new();
    let encoded = encode(changed, None)?;
    for (part, rows) in changed.iter().zip(&encoded) {
        for (kind, row) in part.kinds.iter().zip(rows) {
            *counts.entry(row.clone()).or_default() += if *kind == INSERT { 1 } else { -1 };
        }
    }
    for (part, rows) in changed.iter_mut().zip(&encoded) {
        let mut kept = Vec::with_capacity(rows.len());
        for (kind, row) in part.kinds.iter().zip(rows) {
            let sign = if *kind == INSERT { 1 } else { -1 };
            let left = counts.get_mut(row).filter(|left| **left * sign > 0);
            kept.push(left.is_some());
            if let Some(left) = left {
                *left -= sign;
            }
        }
        let mut each = kept.iter();
        part.kinds.retain(|_| each.next().copied().unwrap_or(false));
        part.rows = filter_record_batch(&part.rows, &BooleanArray::from(kept)).map_err(wrong)?;
    }
    changed.retain(|part| !part.kinds.is_empty());
    Ok(())
}

/// Makes deletes and inserts of the same key updates.
fn pair(changed: &mut [Changed], keys: &[String]) -> Result<()> {
    let Some(first) = changed.first().filter(|_| !keys.is_empty()) else { return Ok(()) };
    let fields = first.rows.schema();
    let keys: Vec<usize> = keys.iter().filter_map(|key| position(fields.fields(), key)).collect();
    let encoded = encode(changed, Some(&keys))?;
    let of = |changed: &[Changed], wanted: [&str; 2]| -> HashSet<OwnedRow> {
        let rows = changed.iter().zip(&encoded).flat_map(|(part, rows)| part.kinds.iter().zip(rows));
        rows.filter(|(kind, _)| wanted.contains(*kind)).map(|(_, row)| row.clone()).collect()
    };
    let (gone, come) = (of(changed, [DELETE, BEFORE]), of(changed, [INSERT, AFTER]));
    for (part, rows) in changed.iter_mut().zip(&encoded) {
        for (kind, row) in part.kinds.iter_mut().zip(rows) {
            match *kind {
                DELETE if come.contains(row) => *kind = BEFORE,
                INSERT if gone.contains(row) => *kind = AFTER,
                _ => {}
            }
        }
    }
    Ok(())
}

/// The rows, or some of their columns, in a form that can be compared.
fn encode(changed: &[Changed], columns: Option<&[usize]>) -> Result<Vec<Vec<OwnedRow>>> {
    let Some(first) = changed.first() else { return Ok(Vec::new()) };
    let all: Vec<usize> = (0..first.rows.num_columns()).collect();
    let columns = columns.unwrap_or(&all);
    let fields = columns.iter().map(|i| SortField::new(first.rows.column(*i).data_type().clone())).collect();
    let converter = RowConverter::new(fields).map_err(wrong)?;
    let mut encoded = Vec::with_capacity(changed.len());
    for part in changed {
        let arrays: Vec<ArrayRef> = columns.iter().map(|i| Arc::clone(part.rows.column(*i))).collect();
        encoded.push(converter.convert_columns(&arrays).map_err(wrong)?.iter().map(|row| row.owned()).collect());
    }
    Ok(encoded)
}

fn labelled(changed: &Changed, version: i64, timestamp: Option<i64>, schema: &SchemaRef) -> Result<RecordBatch> {
    let count = changed.kinds.len();
    let mut columns = changed.rows.columns().to_vec();
    columns.push(Arc::new(StringArray::from(changed.kinds.clone())));
    columns.push(Arc::new(Int64Array::from(vec![version; count])));
    columns.push(Arc::new(TimestampMicrosecondArray::from(vec![timestamp; count]).with_timezone("UTC")));
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(wrong)
}
