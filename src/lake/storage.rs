//! The storage of a pipeline: durable writes, put-if-absent, reads and listings, on a local disk or an object store.

mod whole;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use deltalake::{DeltaTable, DeltaTableBuilder};
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use url::Url;

use super::disk::Disk;
use super::faults::{Faults, Guard};
use super::objects::Objects;
use crate::error::{Error, Result};
use crate::pipeline::TableName;

/// Folder of everything under the storage that is not a dataset's table.
const PRIVATE: &str = "_silverflow";

/// The storage of a pipeline. Cheap to clone.
///
/// Paths inside are relative to its root, with `/` between the parts. A write that has returned survives a crash
/// of the machine: on a local disk files and folders are synced, on an object store a finished put is durable.
#[derive(Clone, Debug)]
pub struct Lake {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: Url,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Local(Disk),
    Remote { store: Objects, prefix: object_store::path::Path },
}

/// Something that Parquet can be read from.
pub(crate) enum Input {
    /// A file on a local disk.
    File(File),
    /// An object, fetched whole.
    Bytes(Vec<u8>),
}

/// A file in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Its name.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) size: u64,
    /// When it was last written, in milliseconds of the storage's clock.
    pub(crate) modified: i64,
}

impl Lake {
    /// Opens the storage at a local path, a `file://` URL or, where the feature is compiled in, an object-store URL.
    /// The last folder of a local path is created if it is missing.
    ///
    /// # Errors
    /// `STORAGE_NOT_ACCESSIBLE` (external) if the folder cannot be created or its parent is missing;
    /// `UNSUPPORTED_STORAGE` (user) for a URL that this build cannot open.
    pub async fn open(storage: &str) -> Result<Lake> {
        Lake::open_at(storage, true, Guard::default()).await
    }

    /// As [`open`](Self::open), for a folder that must be there already.
    pub(crate) async fn existing(storage: &str) -> Result<Lake> {
        Lake::open_at(storage, false, Guard::default()).await
    }

    /// As [`open`](Self::open), with someone who watches each step and can let it fail.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub async fn open_watched(storage: &str, faults: Arc<dyn Faults>) -> Result<Lake> {
        Lake::open_at(storage, true, Guard::watched(faults)).await
    }

    /// The local folder at `path`, used as an object store is, with someone who watches each step and can let it fail.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn watched_objects(path: &Path, faults: Arc<dyn Faults>) -> Result<Lake> {
        let url = Url::from_directory_path(path)
            .map_err(|()| Error::internal(format!("no URL for the folder {}", path.display())))?;
        let store = object_store::local::LocalFileSystem::new();
        Lake::with_store(Objects::remote(Arc::new(store), Guard::watched(faults)), &url)
    }

    async fn open_at(storage: &str, create: bool, guard: Guard) -> Result<Lake> {
        match Url::parse(storage) {
            Ok(url) if url.scheme() == "file" => {
                let path = url.to_file_path().map_err(|()| {
                    Error::user("UNSUPPORTED_STORAGE", format!("{storage} is not the URL of a local path"))
                })?;
                Lake::open_local(&path, create, guard).await
            }
            // A scheme of one letter is a drive.
            Ok(url) if url.scheme().len() > 1 => Lake::open_remote(&url, guard),
            _ => Lake::open_local(Path::new(storage), create, guard).await,
        }
    }

    async fn open_local(path: &Path, create: bool, guard: Guard) -> Result<Lake> {
        let path = path.to_owned();
        blocking(move || {
            let disk = Disk::open(&path, create, guard).map_err(|e| {
                Error::external("STORAGE_NOT_ACCESSIBLE", format!("cannot open the storage {}", path.display()))
                    .caused_by(e)
                    .help("create the folder above it, or give another `storage`")
            })?;
            let root = Url::from_directory_path(disk.root())
                .map_err(|()| Error::internal(format!("no URL for the folder {}", disk.root().display())))?;
            Ok(Lake { inner: Arc::new(Inner { root, backend: Backend::Local(disk) }) })
        })
        .await
    }

    fn open_remote(url: &Url, guard: Guard) -> Result<Lake> {
        let (feature, compiled) = match url.scheme() {
            "s3" | "s3a" => ("s3", cfg!(feature = "s3")),
            "az" | "azure" | "abfs" | "abfss" | "adl" => ("azure", cfg!(feature = "azure")),
            "gs" => ("gcs", cfg!(feature = "gcs")),
            other => {
                return Err(Error::user(
                    "UNSUPPORTED_STORAGE",
                    format!("storage with the scheme {other} is not supported: {url}"),
                )
                .help("use a local path, file://, s3://, az:// or gs://"));
            }
        };
        if !compiled {
            return Err(Error::user("UNSUPPORTED_STORAGE", format!("this build cannot open {url}"))
                .help(format!("build silverflow with the cargo feature `{feature}`")));
        }
        let options = std::env::vars().map(|(k, v)| (k.to_lowercase(), v));
        let (store, _) = object_store::parse_url_opts(url, options)
            .map_err(|e| Error::user("UNSUPPORTED_STORAGE", format!("cannot open the storage {url}")).caused_by(e))?;
        Lake::with_store(Objects::remote(Arc::from(store), guard), url)
    }

    /// The storage in an object store, under the path of `url`.
    pub(crate) fn with_store(store: Objects, url: &Url) -> Result<Lake> {
        let mut root = url.clone();
        if !root.path().ends_with('/') {
            root.set_path(&format!("{}/", root.path()));
        }
        let prefix = object_store::path::Path::from_url_path(root.path())
            .map_err(|e| Error::user("UNSUPPORTED_STORAGE", format!("cannot open the storage {url}")).caused_by(e))?;
        register_log_store(url);
        Ok(Lake { inner: Arc::new(Inner { root, backend: Backend::Remote { store, prefix } }) })
    }

    /// A storage in the memory of the process.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Lake {
        let store = Objects::remote(Arc::new(object_store::memory::InMemory::new()), Guard::default());
        Url::parse("memory:///some/place")
            .map_err(|e| Error::internal("no URL for the memory").caused_by(e))
            .and_then(|url| Lake::with_store(store, &url))
            .unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// The root, as a URL that ends in `/`.
    pub fn url(&self) -> &Url {
        &self.inner.root
    }

    /// Where a dataset's table lies: `<catalog>/<schema>/<table>`, in lower case, since names are compared without
    /// regard to case. What cannot stand in a path is written as `~` and its code point.
    pub fn table_location(&self, name: &TableName) -> String {
        [&name.catalog, &name.schema, &name.table].map(|x| path_part(x)).join("/")
    }

    /// Where the private replay point of a flow lies.
    pub fn replay_location(&self, flow: &str) -> String {
        format!("{PRIVATE}/replay/{}", path_part(flow))
    }

    /// Where the private files of one kind lie.
    pub(crate) fn private_location(&self, kind: &str) -> String {
        format!("{PRIVATE}/{kind}")
    }

    /// A location as people know it: a path on a local disk, else a URL.
    pub fn display(&self, location: &str) -> String {
        match &self.inner.backend {
            Backend::Local(disk) => disk.root().join(location).display().to_string(),
            Backend::Remote { .. } => format!("{}{location}", self.inner.root),
        }
    }

    /// The local folder of the storage, if it is on a local disk.
    pub fn local_root(&self) -> Option<&Path> {
        match &self.inner.backend {
            Backend::Local(disk) => Some(disk.root()),
            Backend::Remote { .. } => None,
        }
    }

    /// Creates a file, durable when this returns, unless it exists; says whether it was created.
    /// No reader ever sees a part of it.
    pub(crate) async fn put_new(&self, location: &str, bytes: Vec<u8>) -> Result<bool> {
        self.publish(Vec::new(), location, bytes).await
    }

    /// Writes new files, none of which may exist, and then creates the one that refers to them, as [`put_new`]
    /// (Self::put_new) does. They are durable before it is visible.
    pub(crate) async fn publish(&self, files: Vec<(String, Vec<u8>)>, location: &str, bytes: Vec<u8>) -> Result<bool> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(location));
                blocking(move || {
                    let files: Vec<_> = files.into_iter().map(|(x, bytes)| (disk.root().join(x), bytes)).collect();
                    disk.publish(&files, &path, &bytes).map_err(|(path, e)| write_error(&path, e))
                })
                .await
            }
            Backend::Remote { store, prefix } => {
                let puts = files.into_iter().map(|(location, bytes)| {
                    let path = join(prefix, &location);
                    async move {
                        let done = store.put(&path, PutPayload::from(bytes)).await;
                        done.map_err(|e| store_error("write", &self.display(&location), e))
                    }
                });
                futures::future::try_join_all(puts).await?;
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match store.put_opts(&join(prefix, location), PutPayload::from(bytes), options).await {
                    Ok(_) => Ok(true),
                    Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                    Err(e) => Err(store_error("write", &self.display(location), e)),
                }
            }
        }
    }

    /// The contents of a file; `None` if there is none.
    pub(crate) async fn get(&self, location: &str) -> Result<Option<Vec<u8>>> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(location));
                blocking(move || disk.read(&path).map_err(|e| read_error(&path.display().to_string(), e))).await
            }
            Backend::Remote { store, prefix } => {
                let failed = |e| store_error("read", &self.display(location), e);
                match store.get(&join(prefix, location)).await {
                    Ok(found) => Ok(Some(found.bytes().await.map_err(failed)?.to_vec())),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(e) => Err(failed(e)),
                }
            }
        }
    }

    /// Makes a folder that files are to be put into by other means; an object store needs none.
    pub(crate) async fn make_folder(&self, location: &str) -> Result<()> {
        let Backend::Local(disk) = &self.inner.backend else { return Ok(()) };
        let (disk, path) = (disk.clone(), disk.root().join(location));
        blocking(move || disk.create_folders(&path).map_err(|e| write_error(&path, e))).await
    }

    /// Puts a small object in place of whatever is there, durable when this returns.
    pub(crate) async fn replace(&self, location: &str, bytes: Vec<u8>) -> Result<()> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(location));
                blocking(move || disk.replace(&path, &bytes).map_err(|(path, e)| write_error(&path, e))).await
            }
            Backend::Remote { store, prefix } => {
                let put = store.put(&join(prefix, location), PutPayload::from(bytes)).await;
                put.map(drop).map_err(|e| store_error("write", &self.display(location), e))
            }
        }
    }

    /// When a file was last written, by the storage's clock; `None` if there is none.
    pub(crate) async fn modified(&self, location: &str) -> Result<Option<SystemTime>> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let path = disk.root().join(location);
                blocking(move || match std::fs::metadata(&path).and_then(|found| found.modified()) {
                    Ok(modified) => Ok(Some(modified)),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(read_error(&path.display().to_string(), e)),
                })
                .await
            }
            Backend::Remote { store, prefix } => match store.head(&join(prefix, location)).await {
                Ok(found) => Ok(Some(found.last_modified.into())),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(e) => Err(store_error("read", &self.display(location), e)),
            },
        }
    }

    /// Names of the files right in a folder, sorted; empty if there is no such folder.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<String>> {
        let mut names = match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(folder));
                blocking(move || disk.list(&path).map_err(|e| read_error(&path.display().to_string(), e))).await?
            }
            Backend::Remote { store, prefix } => {
                let folder = join(prefix, folder);
                let listed: Vec<_> = store
                    .list(Some(&folder))
                    .try_collect()
                    .await
                    .map_err(|e| store_error("list", folder.as_ref(), e))?;
                let inside = |path: &object_store::path::Path| {
                    let mut parts = path.prefix_match(&folder)?;
                    let name = parts.next()?.as_ref().to_owned();
                    parts.next().is_none().then_some(name)
                };
                listed.iter().filter_map(|x| inside(&x.location)).collect()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    /// The files right in a folder, also temporary ones; none if there is no such folder.
    pub(crate) async fn stored(&self, folder: &str) -> Result<Vec<Stored>> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let (disk, path) = (disk.clone(), disk.root().join(folder));
                blocking(move || disk.stored(&path).map_err(|e| read_error(&path.display().to_string(), e))).await
            }
            Backend::Remote { store, prefix } => {
                let folder = join(prefix, folder);
                let listed: Vec<_> = store
                    .list(Some(&folder))
                    .try_collect()
                    .await
                    .map_err(|e| store_error("list", folder.as_ref(), e))?;
                let stored = |x: &object_store::ObjectMeta| {
                    let mut parts = x.location.prefix_match(&folder)?;
                    let name = parts.next()?.as_ref().to_owned();
                    let modified = x.last_modified.timestamp_millis();
                    parts.next().is_none().then_some(Stored { name, size: x.size, modified })
                };
                Ok(listed.iter().filter_map(stored).collect())
            }
        }
    }

    /// Makes durable what a listing of a folder shows: an earlier run may have stopped just before it was.
    pub(crate) async fn sync_folder(&self, folder: &str) -> Result<()> {
        let Backend::Local(disk) = &self.inner.backend else { return Ok(()) };
        let (disk, path) = (disk.clone(), disk.root().join(folder));
        blocking(move || disk.sync_folder(&path).map_err(|e| write_error(&path, e))).await
    }

    /// Removes files; one that is gone already is no error.
    pub(crate) async fn remove(&self, locations: Vec<String>) -> Result<()> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let disk = disk.clone();
                blocking(move || {
                    let mut paths = locations.iter().map(|x| disk.root().join(x));
                    paths.try_for_each(|path| disk.remove(&path).map_err(|e| write_error(&path, e)))
                })
                .await
            }
            Backend::Remote { store, prefix } => {
                for location in locations {
                    match store.delete(&join(prefix, &location)).await {
                        Err(object_store::Error::NotFound { .. }) | Ok(()) => {}
                        Err(e) => return Err(store_error("remove", &self.display(&location), e)),
                    }
                }
                Ok(())
            }
        }
    }

    /// Opens a file for reading Parquet. Blocks: for a thread that may.
    pub(crate) fn input(&self, location: &str, runtime: &tokio::runtime::Handle) -> Result<Input> {
        match &self.inner.backend {
            Backend::Local(disk) => {
                let path = disk.root().join(location);
                disk.open_file(&path).map(Input::File).map_err(|e| read_error(&path.display().to_string(), e))
            }
            Backend::Remote { .. } => match runtime.block_on(self.get(location))? {
                Some(bytes) => Ok(Input::Bytes(bytes)),
                None => Err(read_error(&self.display(location), io::Error::from(io::ErrorKind::NotFound))),
            },
        }
    }

    /// The URL of a table, ending in `/`.
    pub(crate) fn table_url(&self, location: &str) -> Result<Url> {
        match &self.inner.backend {
            Backend::Local(disk) => Url::from_directory_path(disk.root().join(location))
                .map_err(|()| Error::internal(format!("no URL for the folder {}", self.display(location)))),
            Backend::Remote { .. } => self
                .inner
                .root
                .join(&format!("{location}/"))
                .map_err(|e| Error::internal(format!("no URL for {location}")).caused_by(e)),
        }
    }

    /// The store under the storage, from its root on.
    pub(crate) fn objects(&self) -> Objects {
        match &self.inner.backend {
            Backend::Local(disk) => Objects::local(disk),
            Backend::Remote { store, .. } => store.clone(),
        }
    }

    /// Loads a table's log, the newest version or a given one; `None` if there is no table.
    pub(crate) async fn load_delta(&self, location: &str, version: Option<i64>) -> Result<Option<DeltaTable>> {
        if self.list(&format!("{location}/_delta_log")).await?.is_empty() {
            return Ok(None);
        }
        let failed = |e: deltalake::DeltaTableError| {
            Error::external("TABLE_NOT_READABLE", format!("cannot read the Delta log of {}", self.display(location)))
                .caused_by(e)
        };
        let url = self.table_url(location)?;
        let store = Arc::new(self.objects());
        let mut builder = DeltaTableBuilder::from_url(url.clone()).map_err(failed)?.with_storage_backend(store, url);
        if let Some(version) = version {
            builder = builder.with_version(as_version(version)?);
        }
        builder.load().await.map(Some).map_err(failed)
    }
}

/// A Delta version as delta-rs counts it.
pub(crate) fn as_version(version: i64) -> Result<u64> {
    u64::try_from(version).map_err(|_| Error::internal(format!("{version} is no version of a table")))
}

/// Makes delta-rs accept tables whose URL has this scheme; the store itself is handed to it with each table.
fn register_log_store(url: &Url) {
    struct Plain;
    impl deltalake::logstore::LogStoreFactory for Plain {
        fn with_options(
            &self,
            prefixed: Arc<dyn ObjectStore>,
            root: Arc<dyn ObjectStore>,
            location: &Url,
            options: &deltalake::logstore::StorageConfig,
        ) -> deltalake::DeltaResult<Arc<dyn deltalake::logstore::LogStore>> {
            Ok(deltalake::logstore::default_logstore(prefixed, root, location, options))
        }
    }
    if let Ok(scheme) = Url::parse(&format!("{}://", url.scheme())) {
        deltalake::logstore::logstore_factories().entry(scheme).or_insert_with(|| Arc::new(Plain));
    }
}

/// Runs blocking work on the runtime's threads for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Error::internal("a background task of the lake stopped").caused_by(e)),
    }
}

fn join(prefix: &object_store::path::Path, location: &str) -> object_store::path::Path {
    object_store::path::Path::from_iter(prefix.parts().chain(object_store::path::Path::from(location).parts()))
}

fn path_part(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.to_lowercase().chars() {
        if c.is_alphanumeric() || matches!(c, '_' | '-') || (c == '.' && !out.is_empty()) {
            out.push(c);
        } else {
            out.push_str(&format!("~{:x}~", u32::from(c)));
        }
    }
    out
}

fn write_error(path: &Path, e: io::Error) -> Error {
    Error::external("STORAGE_FAILED", format!("cannot write {}", path.display())).caused_by(e)
}

pub(crate) fn read_error(path: &str, e: io::Error) -> Error {
    Error::external("STORAGE_FAILED", format!("cannot read {path}")).caused_by(e)
}

fn store_error(verb: &str, path: &str, e: object_store::Error) -> Error {
    Error::external("STORAGE_FAILED", format!("cannot {verb} {path}")).caused_by(e)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    async fn lakes() -> (tempfile::TempDir, [Lake; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let local = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        let store = Arc::new(object_store::memory::InMemory::new());
        let remote =
            Lake::with_store(Objects::remote(store, Guard::default()), &Url::parse("memory:///a/b").unwrap()).unwrap();
        (folder, [local, remote])
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_is_created_once_and_nothing_else_is_left_behind() {
        let (folder, lakes) = lakes().await;
        for lake in lakes {
            assert!(lake.put_new("x/y/1.json", b"a".to_vec()).await.unwrap());
            assert!(!lake.put_new("x/y/1.json", b"b".to_vec()).await.unwrap());
            let data = vec![("x/d1".to_owned(), b"1".to_vec()), ("x/z/d2".to_owned(), b"2".to_vec())];
            assert!(lake.publish(data, "x/y/2.json", b"c".to_vec()).await.unwrap());
            assert_eq!(lake.get("x/y/1.json").await.unwrap().unwrap(), b"a");
            assert_eq!(lake.get("x/z/d2").await.unwrap().unwrap(), b"2");
            assert_eq!(lake.get("x/none").await.unwrap(), None);
            assert_eq!(lake.list("x/y").await.unwrap(), ["1.json", "2.json"]);
            assert_eq!(lake.list("x").await.unwrap(), ["d1"]);
            assert!(lake.list("none").await.unwrap().is_empty());
            lake.remove(vec!["x/y/1.json".into(), "x/none".into()]).await.unwrap();
            assert_eq!(lake.list("x/y").await.unwrap(), ["2.json"]);
        }
        let names: Vec<_> = fs::read_dir(folder.path().join("x/y")).unwrap().map(|x| x.unwrap().file_name()).collect();
        assert_eq!(names, ["2.json"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn data_that_cannot_be_written_is_never_referred_to() {
        let (folder, [lake, _]) = lakes().await;
        fs::write(folder.path().join("taken"), "x").unwrap();
        for bad in ["taken", "taken/below"] {
            let error = lake.publish(vec![(bad.into(), vec![1])], "log/1.json", vec![2]).await.unwrap_err();
            assert_eq!((error.code(), error.fault()), ("STORAGE_FAILED", crate::error::Fault::External));
            assert!(error.to_string().contains(folder.path().join("taken").to_str().unwrap()), "{error}");
            assert_eq!(fs::read_dir(folder.path().join("log")).unwrap().count(), 0);
        }
    }
}
