//! Delta tables that others write: their versions, rows and commits, read through delta-rs.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;
use deltalake::DeltaTable;
use deltalake::kernel::{Action, Add};
use futures::{StreamExt, TryStreamExt};

use super::log::entry_path;
use super::scan::RowStream;
use super::storage::Lake;
use super::types::{conform, from_delta};
use crate::error::{Error, Result};

/// A Delta table of others.
#[derive(Clone, Debug)]
pub struct ExternalTable {
    lake: Lake,
    location: String,
}

/// What one commit did to a table.
#[derive(Debug, Default)]
pub struct Changes {
    added: Vec<Add>,
    /// Whether rows were removed or changed, not only moved.
    pub removes: bool,
    /// Whether the table's schema or properties were set.
    pub redefines: bool,
}

impl Changes {
    /// Whether rows were added.
    pub fn adds(&self) -> bool {
        !self.added.is_empty()
    }
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

    /// The newest version and the schema that it has: every type one that a table of ours can hold.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` (external) if there is no table; `SOURCE_NOT_READABLE` (external); `UNSUPPORTED_DATA_TYPE` (user).
    pub async fn latest(&self) -> Result<(i64, SchemaRef)> {
        let delta = self.load(None).await?;
        let state = delta.snapshot().map_err(|e| self.unreadable(e))?;
        let version = i64::try_from(state.version()).map_err(|e| self.unreadable(e))?;
        Ok((version, from_delta(&state.schema())?))
    }

    /// All rows at a version, in a schema: columns by name, absent ones null.
    ///
    /// # Errors
    /// As [`latest`](Self::latest); a version that the table no longer has is not readable.
    pub async fn rows_at(&self, version: i64, schema: &SchemaRef) -> Result<RowStream> {
        let delta = self.load(Some(version)).await?;
        let provider = delta.table_provider().build().await.map_err(|e| self.unreadable(e))?;
        self.stream(Arc::new(provider), schema).await
    }

    /// What the commit of a version did.
    ///
    /// # Errors
    /// `SOURCE_VERSION_GONE` (external) if its log entry was cleaned up; `SOURCE_NOT_READABLE` (external).
    pub async fn changes(&self, version: i64) -> Result<Changes> {
        let path = entry_path(&self.location, version);
        let bytes = self.lake.get(&path).await?.ok_or_else(|| {
            Error::external(
                "SOURCE_VERSION_GONE",
                format!("the log of {} no longer has version {version}", self.location()),
            )
            .help("keep its log longer than the pipeline rests")
        })?;
        let mut changes = Changes::default();
        for action in serde_json::Deserializer::from_slice(&bytes).into_iter::<Action>() {
            match action.map_err(|e| self.unreadable(e))? {
                Action::Add(add) if add.data_change => changes.added.push(add),
                Action::Remove(remove) if remove.data_change => changes.removes = true,
                Action::Metadata(_) | Action::Protocol(_) => changes.redefines = true,
                _ => {}
            }
        }
        Ok(changes)
    }

    /// The rows that the commit of a version added; only for one that removed none.
    ///
    /// # Errors
    /// As [`rows_at`](Self::rows_at).
    pub async fn added_rows(&self, version: i64, changes: Changes, schema: &SchemaRef) -> Result<RowStream> {
        let delta = self.load(Some(version)).await?;
        let provider = delta.table_provider().with_adds(changes.added).build().await.map_err(|e| self.unreadable(e))?;
        self.stream(Arc::new(provider), schema).await
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
