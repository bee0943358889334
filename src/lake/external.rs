//! Delta tables that others write: their versions, rows and commits, read through delta-rs.

mod entry;
mod pieces;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;
use deltalake::DeltaTable;
use deltalake::kernel::StructType;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;

use super::log::entry_path;
use super::scan::RowStream;
use super::storage::Lake;
use super::types::{conform, from_delta};
use crate::error::{Error, Result};

pub use entry::Entry;
pub use pieces::{Part, Piece};

/// A Delta table of others.
#[derive(Clone, Debug)]
pub struct ExternalTable {
    lake: Lake,
    location: String,
}

/// A table as its newest version defines it.
#[derive(Clone, Debug)]
pub struct Head {
    /// The version.
    pub version: i64,
    /// The table's own id: a table that was dropped and made again has another one.
    pub id: String,
    /// Columns: every type one that a table of ours can hold.
    pub schema: SchemaRef,
    protocol: Value,
    metadata: Value,
}

impl ExternalTable {
    /// The table at a path or URL.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` (external) if the folder above it is missing; `UNSUPPORTED_STORAGE` (user).
    pub async fn open(location: &str) -> Result<ExternalTable> {
        let trimmed = location.trim_end_matches('/');
        let (folder, name) = match trimmed.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((folder, name)) => (folder, name),
            None => (".", trimmed),
        };
        let lake = Lake::existing(folder).await.map_err(|e| match e.code() {
            "STORAGE_NOT_ACCESSIBLE" => not_found(location).caused_by(e),
            _ => e,
        })?;
        // In a URL the name is encoded, on a disk it is not.
        let name = match lake.local_root() {
            Some(_) if location.starts_with("file:") => percent_decoded(name),
            _ => name.to_owned(),
        };
        Ok(ExternalTable { lake, location: name })
    }

    /// The table at a location in a lake.
    pub fn in_lake(lake: &Lake, location: &str) -> ExternalTable {
        ExternalTable { lake: lake.clone(), location: location.to_owned() }
    }

    /// Path or URL, for people.
    pub fn location(&self) -> String {
        self.lake.display(&self.location)
    }

    /// The newest version and what it defines. Costs one reading of the log.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` (external) if there is no table; `SOURCE_NOT_READABLE` (external); `UNSUPPORTED_DATA_TYPE` (user).
    pub async fn head(&self) -> Result<Head> {
        let delta = self.load(None).await?;
        let state = delta.snapshot().map_err(|e| self.unreadable(e))?;
        let version = i64::try_from(state.version()).map_err(|e| self.unreadable(e))?;
        let metadata = serde_json::to_value(state.metadata()).map_err(|e| self.unreadable(e))?;
        Ok(Head {
            version,
            id: metadata.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            schema: from_delta(&state.schema())?,
            protocol: serde_json::to_value(state.protocol()).map_err(|e| self.unreadable(e))?,
            metadata,
        })
    }

    /// All rows at a version, in a schema: columns by name, absent ones null.
    ///
    /// # Errors
    /// As [`head`](Self::head); a version that the table no longer has is not readable.
    pub async fn rows_at(&self, version: i64, schema: &SchemaRef) -> Result<RowStream> {
        let delta = self.load(Some(version)).await?;
        let provider = delta.table_provider().build().await.map_err(|e| self.unreadable(e))?;
        self.stream(Arc::new(provider), schema).await
    }

    /// What the commit of a version did.
    ///
    /// # Errors
    /// `SOURCE_VERSION_GONE` (external) if its log entry was cleaned up; `SOURCE_NOT_READABLE` (external).
    pub async fn entry(&self, version: i64) -> Result<Entry> {
        let bytes = self.lake.get(&entry_path(&self.location, version)).await?.ok_or_else(|| {
            Error::external(
                "SOURCE_VERSION_GONE",
                format!("the log of {} no longer has version {version}", self.location()),
            )
            .help(KEEP)
        })?;
        Entry::parse(version, &bytes).map_err(|e| self.unreadable(e))
    }

    /// Whether the log has the entry of a version. Costs one look at one name.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn has(&self, version: i64) -> Result<bool> {
        Ok(self.lake.modified(&entry_path(&self.location, version)).await?.is_some())
    }

    /// Versions whose entries are in the log, in order. Costs one listing.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn versions(&self) -> Result<Vec<i64>> {
        let names = self.lake.list(&format!("{}/_delta_log", self.location)).await?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    /// The columns that an entry defines, if it does.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE` (external); `UNSUPPORTED_DATA_TYPE` (user).
    pub fn redefined(&self, entry: &Entry) -> Result<Option<SchemaRef>> {
        let Some(text) = entry.schema() else { return Ok(None) };
        let parsed: StructType = serde_json::from_str(text).map_err(|e| self.unreadable(e))?;
        from_delta(&parsed).map(Some)
    }

    /// The columns at a version.
    ///
    /// # Errors
    /// As [`head`](Self::head); a version that the table no longer has is not readable.
    pub async fn schema_at(&self, version: i64) -> Result<SchemaRef> {
        let delta = self.load(Some(version)).await?;
        from_delta(&delta.snapshot().map_err(|e| self.unreadable(e))?.schema())
    }

    async fn load(&self, version: Option<i64>) -> Result<DeltaTable> {
        match self.lake.load_delta(&self.location, version).await {
            Ok(Some(delta)) => Ok(delta),
            Ok(None) => Err(not_found(&self.location())),
            Err(e) => Err(self.unreadable(e)),
        }
    }

    async fn stream(&self, provider: Arc<dyn TableProvider>, schema: &SchemaRef) -> Result<RowStream> {
        let context = SessionContext::new();
        let frame = context.read_table(provider).map_err(|e| self.unreadable(e))?;
        let rows = frame.execute_stream().await.map_err(|e| self.unreadable(e))?;
        let (table, schema) = (self.clone(), Arc::clone(schema));
        let rows = rows.map_err(move |e| table.unreadable(e)).and_then({
            let table = self.clone();
            move |batch| {
                let fitted = conform(&batch, &schema).map_err(|e| table.unreadable(e));
                async move { fitted }
            }
        });
        Ok(rows.boxed())
    }

    fn unreadable(&self, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::external("SOURCE_NOT_READABLE", format!("cannot read the Delta table {}", self.location())).caused_by(e)
    }
}

const KEEP: &str = "keep the log (delta.logRetentionDuration) and removed files (delta.deletedFileRetentionDuration) of \
                    that table longer than the pipeline rests; a full refresh of what it feeds begins anew from its rows of now";

fn not_found(location: &str) -> Error {
    Error::external("SOURCE_NOT_FOUND", format!("there is no Delta table {location}"))
        .help("a table outside the pipeline lies under its storage, or where `silverflow.table.<name>` in the configuration says")
}

fn percent_decoded(name: &str) -> String {
    // A URL of one segment decodes as a path does.
    url::Url::parse(&format!("file:///{name}"))
        .ok()
        .and_then(|x| x.to_file_path().ok())
        .and_then(|x| Some(x.file_name()?.to_str()?.to_owned()))
        .unwrap_or_else(|| name.to_owned())
}
