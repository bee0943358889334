//! Files that are written once and read as memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, PutPayload};

use super::{Backend, Lake, PRIVATE, blocking, join, read_error, store_error, write_error};
use crate::error::Result;
use crate::lake::mapped::map;

/// Objects of up to so many bytes are kept in memory.
const SMALL: u64 = 1 << 20;

impl Lake {
    /// Writes new files, each from its parts, durable when this returns. Nobody may know their names before.
    pub(crate) async fn store(&self, files: Vec<(String, Vec<Bytes>)>) -> Result<()> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let disk = disk.clone();
                blocking(move || {
                    let files: Vec<_> = files.into_iter().map(|(x, parts)| (disk.root().join(x), parts)).collect();
                    disk.store(&files).map_err(|(path, e)| write_error(&path, e))
                })
                .await
            }
            Backend::Remote { store, prefix } => {
                for (location, parts) in files {
                    let put = store.put(&join(prefix, &location), parts.into_iter().collect::<PutPayload>()).await;
                    put.map_err(|e| store_error("write", &self.display(&location), e))?;
                }
                Ok(())
            }
        }
    }

    /// The contents of a file that is never changed; `None` if there is none. On a local disk nothing is read until it is
    /// looked at; from an object store what is not small goes into a file without a name, in `folder`.
    pub(crate) async fn open_whole(&self, location: &str, folder: &Path) -> Result<Option<Bytes>> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(location));
                blocking(move || {
                    let opened = disk.open_file(&path).and_then(|file| map(&file));
                    match opened {
                        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                        other => other.map(Some).map_err(|e| read_error(&path.display().to_string(), e)),
                    }
                })
                .await
            }
            Backend::Remote { store, prefix } => {
                let failed = |e| store_error("read", &self.display(location), e);
                let found = match store.get(&join(prefix, location)).await {
                    Err(object_store::Error::NotFound { .. }) => return Ok(None),
                    found => found.map_err(failed)?,
                };
                if found.meta.size <= SMALL {
                    return found.bytes().await.map(Some).map_err(failed);
                }
                let no_scratch = |e| write_error(folder, e);
                std::fs::create_dir_all(folder).map_err(no_scratch)?;
                let mut file = tempfile::tempfile_in(folder).map_err(no_scratch)?;
                let mut parts = found.into_stream();
                while let Some(part) = parts.try_next().await.map_err(failed)? {
                    file.write_all(&part).map_err(no_scratch)?;
                }
                map(&file).map(Some).map_err(no_scratch)
            }
        }
    }

    /// Where files lie that only this run sees: in the storage if it is on a local disk, for there is room.
    pub(crate) fn scratch(&self) -> PathBuf {
        match &self.inner.backend {
            Backend::Local(disk) => disk.root().join(PRIVATE).join("scratch"),
            Backend::Remote { .. } => std::env::temp_dir(),
        }
    }
}
