//! Reading a table: a stream of its live rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc;

use super::data::{DataFile, Reader};
use super::storage::Lake;
use super::table::{Table, files_at};
use super::types::position;
use crate::error::{Error, Result};

/// Batches of rows, read while they are asked for; a few batches are held at most.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// What to read of a table.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// These columns, in this order; all by default.
    pub columns: Option<Vec<String>>,
    /// At this version of the table; the current one by default.
    pub version: Option<i64>,
    /// Of the files, by name, the one at this place and every so many further on: of `(i, n)` for each `i` below `n` all
    /// rows come once. All of them by default.
    pub share: Option<(usize, usize)>,
}

impl Table {
    /// The live rows, in the table's [`schema`](Table::schema), in no particular order. Later commits do not show.
    ///
    /// # Errors
    /// Items are external errors naming the file that cannot be read.
    pub fn scan(&self) -> RowStream {
        stream_files(
            self.lake.clone(),
            self.location.clone(),
            self.files.values().cloned().collect(),
            Arc::clone(&self.schema),
        )
    }

    /// The rows as they were at a version.
    ///
    /// # Errors
    /// External if the table no longer has that version.
    pub async fn scan_at(&self, version: i64) -> Result<RowStream> {
        self.scan_with(Scan { version: Some(version), ..Scan::default() }).await
    }

    /// Some columns, or the rows of an older version.
    ///
    /// # Errors
    /// `UNKNOWN_COLUMN` (user); external if the table no longer has that version.
    pub async fn scan_with(&self, scan: Scan) -> Result<RowStream> {
        let schema = match &scan.columns {
            None => Arc::clone(&self.schema),
            Some(columns) => project(&self.schema, columns).map_err(|e| e.dataset(&self.name))?,
        };
        let mut files: Vec<DataFile> = match scan.version {
            Some(version) if version != self.version => files_at(&self.lake, &self.location, version).await?,
            _ => self.files.values().cloned().collect(),
        };
        if let Some((at, of)) = scan.share {
            files.sort_by(|a, b| a.path.cmp(&b.path));
            files = files.into_iter().skip(at).step_by(of.max(1)).collect();
        }
        Ok(stream_files(self.lake.clone(), self.location.clone(), files, schema))
    }
}

fn project(schema: &SchemaRef, columns: &[String]) -> Result<SchemaRef> {
    let fields = columns
        .iter()
        .map(|name| {
            position(schema.fields(), name)
                .and_then(|i| schema.fields().get(i).cloned())
                .ok_or_else(|| Error::user("UNKNOWN_COLUMN", format!("there is no column {name}")))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

/// Reads files one after the other on a thread that may block, a few batches ahead of the consumer.
fn stream_files(lake: Lake, location: String, files: Vec<DataFile>, schema: SchemaRef) -> RowStream {
    blocking_stream(move |send| {
        let runtime = tokio::runtime::Handle::current();
        for file in files.iter().filter(|x| x.live() > 0) {
            let mut reader = match Reader::open(&lake, &location, file, &schema, &runtime) {
                Ok(reader) => reader,
                Err(e) => {
                    send(Err(e));
                    return;
                }
            };
            while let Some(next) = reader.next_rows() {
                let failed = next.is_err();
                if !send(next.map(|x| x.0)) || failed {
                    return;
                }
            }
        }
    })
}

/// A stream of what blocking work hands to `send`, which says whether anyone still listens. Must be called on a
/// runtime. Work that panics ends the stream with an error, not early.
pub(crate) fn blocking_stream<T: Send + 'static>(
    work: impl FnOnce(&mut dyn FnMut(Result<T>) -> bool) + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    let (sender, receiver) = mpsc::channel::<Option<Result<T>>>(4);
    tokio::task::spawn_blocking(move || {
        work(&mut |item| sender.blocking_send(Some(item)).is_ok());
        // The end is said, so that it is told from a stop.
        sender.blocking_send(None).ok();
    });
    stream::unfold(Some(receiver), |state| async move {
        let mut receiver = state?;
        match receiver.recv().await {
            Some(Some(item)) => Some((item, Some(receiver))),
            Some(None) => None,
            None => Some((Err(Error::internal("a reader stopped before its end")), None)),
        }
    })
    .boxed()
}
