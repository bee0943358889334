//! The storage of a pipeline: durable writes, put-if-absent, reads and listings, on a local disk or an object store.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use deltalake::{DeltaTable, DeltaTableBuilder};
use futures::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use url::Url;

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
    Local(PathBuf),
    Remote { store: Arc<dyn ObjectStore>, prefix: object_store::path::Path },
}

/// Something that Parquet can be read from.
pub(crate) enum Input {
    /// A file on a local disk.
    File(File),
    /// An object, fetched whole.
    Bytes(Vec<u8>),
}

impl Lake {
    /// Opens the storage at a local path, a `file://` URL or, where the feature is compiled in, an object-store URL.
    /// The last folder of a local path is created if it is missing.
    ///
    /// # Errors
    /// `STORAGE_NOT_ACCESSIBLE` (external) if the folder cannot be created or its parent is missing;
    /// `UNSUPPORTED_STORAGE` (user) for a URL that this build cannot open.
    pub async fn open(storage: &str) -> Result<Lake> {
        match Url::parse(storage) {
            Ok(url) if url.scheme() == "file" => {
                let path = url.to_file_path().map_err(|()| {
                    Error::user("UNSUPPORTED_STORAGE", format!("{storage} is not the URL of a local path"))
                })?;
                Lake::open_local(&path, true).await
            }
            // A scheme of one letter is a drive.
            Ok(url) if url.scheme().len() > 1 => Lake::open_remote(&url),
            _ => Lake::open_local(Path::new(storage), true).await,
        }
    }

    /// As [`open`](Self::open), for a folder that must be there already.
    pub(crate) async fn existing(storage: &str) -> Result<Lake> {
        match Url::parse(storage) {
            Ok(url) if url.scheme() == "file" => match url.to_file_path() {
                Ok(path) => Lake::open_local(&path, false).await,
                Err(()) => Err(Error::user("UNSUPPORTED_STORAGE", format!("{storage} is not the URL of a local path"))),
            },
            Ok(url) if url.scheme().len() > 1 => Lake::open_remote(&url),
            _ => Lake::open_local(Path::new(storage), false).await,
        }
    }

    async fn open_local(path: &Path, create: bool) -> Result<Lake> {
        let path = path.to_owned();
        blocking(move || {
            let inaccessible = |e: io::Error| {
                Error::external("STORAGE_NOT_ACCESSIBLE", format!("cannot open the storage {}", path.display()))
                    .caused_by(e)
                    .help("create the folder above it, or give another `storage`")
            };
            match if create { fs::create_dir(&path) } else { Ok(()) } {
                Ok(()) if !create => {}
                Ok(()) => sync_folder(path.parent().filter(|x| !x.as_os_str().is_empty()).unwrap_or(Path::new(".")))
                    .map_err(inaccessible)?,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(inaccessible(e)),
            }
            let path = fs::canonicalize(&path).map_err(inaccessible)?;
            if !path.is_dir() {
                return Err(inaccessible(io::Error::from(io::ErrorKind::NotADirectory)));
            }
            let root = Url::from_directory_path(&path)
                .map_err(|()| Error::internal(format!("no URL for the folder {}", path.display())))?;
            Ok(Lake { inner: Arc::new(Inner { root, backend: Backend::Local(path) }) })
        })
        .await
    }

    fn open_remote(url: &Url) -> Result<Lake> {
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
        Lake::with_store(Arc::from(store), url)
    }

    /// The storage in an object store, under the path of `url`.
    pub(crate) fn with_store(store: Arc<dyn ObjectStore>, url: &Url) -> Result<Lake> {
        let mut root = url.clone();
        if !root.path().ends_with('/') {
            root.set_path(&format!("{}/", root.path()));
        }
        let prefix = object_store::path::Path::from_url_path(root.path())
            .map_err(|e| Error::user("UNSUPPORTED_STORAGE", format!("cannot open the storage {url}")).caused_by(e))?;
        register_log_store(url);
        Ok(Lake { inner: Arc::new(Inner { root, backend: Backend::Remote { store, prefix } }) })
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
            Backend::Local(root) => root.join(location).display().to_string(),
            Backend::Remote { .. } => format!("{}{location}", self.inner.root),
        }
    }

    /// The local folder of the storage, if it is on a local disk.
    pub fn local_root(&self) -> Option<&Path> {
        match &self.inner.backend {
            Backend::Local(root) => Some(root),
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
            Backend::Local(root) => {
                let (root, path) = (root.clone(), root.join(location));
                blocking(move || publish_local(&root, &files, &path, &bytes).map_err(|(path, e)| write_error(&path, e)))
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
            Backend::Local(root) => {
                let path = root.join(location);
                blocking(move || match fs::read(&path) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(read_error(&path.display().to_string(), e)),
                })
                .await
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

    /// Puts a small object in place of whatever is there. On a local disk it is not made durable.
    pub(crate) async fn replace(&self, location: &str, bytes: Vec<u8>) -> Result<()> {
        match &self.inner.backend {
            Backend::Local(root) => {
                let path = root.join(location);
                blocking(move || fs::write(&path, bytes).map_err(|e| write_error(&path, e))).await
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
            Backend::Local(root) => {
                let path = root.join(location);
                blocking(move || match fs::metadata(&path).and_then(|found| found.modified()) {
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
            Backend::Local(root) => {
                let path = root.join(folder);
                blocking(move || list_local(&path).map_err(|e| read_error(&path.display().to_string(), e))).await?
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

    /// Removes files; one that is gone already is no error.
    pub(crate) async fn remove(&self, locations: Vec<String>) -> Result<()> {
        match &self.inner.backend {
            Backend::Local(root) => {
                let root = root.clone();
                blocking(move || {
                    for path in locations.iter().map(|x| root.join(x)) {
                        match fs::remove_file(&path) {
                            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(write_error(&path, e)),
                            _ => {}
                        }
                    }
                    Ok(())
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

    /// Makes files durable that another library wrote.
    pub(crate) async fn sync(&self, locations: Vec<String>) -> Result<()> {
        let Backend::Local(root) = &self.inner.backend else { return Ok(()) };
        let root = root.clone();
        blocking(move || {
            let mut folders = BTreeSet::new();
            for path in locations.iter().map(|x| root.join(x)) {
                File::open(&path).and_then(|f| f.sync_all()).map_err(|e| write_error(&path, e))?;
                folders.extend(path.parent().map(Path::to_owned));
            }
            folders.iter().try_for_each(|x| sync_folder(x).map_err(|e| write_error(x, e)))
        })
        .await
    }

    /// Opens a file for reading Parquet. Blocks: for a thread that may.
    pub(crate) fn input(&self, location: &str, runtime: &tokio::runtime::Handle) -> Result<Input> {
        match &self.inner.backend {
            Backend::Local(root) => {
                let path = root.join(location);
                File::open(&path).map(Input::File).map_err(|e| read_error(&path.display().to_string(), e))
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
            Backend::Local(root) => Url::from_directory_path(root.join(location))
                .map_err(|()| Error::internal(format!("no URL for the folder {}", self.display(location)))),
            Backend::Remote { .. } => self
                .inner
                .root
                .join(&format!("{location}/"))
                .map_err(|e| Error::internal(format!("no URL for {location}")).caused_by(e)),
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
        let mut builder = DeltaTableBuilder::from_url(url.clone()).map_err(failed)?;
        if let Backend::Remote { store, .. } = &self.inner.backend {
            builder = builder.with_storage_backend(Arc::clone(store), url);
        }
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

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates a folder under `root` and the missing ones above it, and makes the new entries durable.
fn create_folders(root: &Path, folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|x| x.starts_with(root));
    if let Some(parent) = parent {
        create_folders(root, parent)?;
    }
    match fs::create_dir(folder) {
        Ok(()) => parent.map_or(Ok(()), sync_folder),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

fn write_new(root: &Path, path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let mut file = match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), |folder| create_folders(root, folder))?;
            options.open(path)?
        }
        other => other?,
    };
    file.write_all(bytes)?;
    Ok(file)
}

/// Syncs files and folders side by side: a disk does many at once for little more than one.
fn sync_together(files: &[(PathBuf, File)]) -> Result<(), (PathBuf, io::Error)> {
    let sync = |(path, file): &(PathBuf, File)| file.sync_all().map_err(|e| (path.clone(), e));
    let Some((first, rest)) = files.split_first() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = rest.iter().map(|x| scope.spawn(move || sync(x))).collect();
        let own = sync(first);
        let stopped = |_| Err((PathBuf::new(), io::Error::other("a thread stopped")));
        others.into_iter().map(|x| x.join().unwrap_or_else(stopped)).fold(own, |all, x| all.and(x))
    })
}

/// Everything that the new file refers to, and its own bytes under a temporary name, are durable before its real name
/// links to them, so that neither a reader nor a crash meets a part of it. Listings of an object store leave out names
/// that end in `#` and digits.
fn publish_local(
    root: &Path,
    files: &[(String, Vec<u8>)],
    path: &Path,
    bytes: &[u8],
) -> Result<bool, (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |e: io::Error| (path, e)
    };
    let folder = path.parent().ok_or_else(|| at(path)(io::ErrorKind::InvalidInput.into()))?;
    let mut temporary = path.file_name().unwrap_or_default().to_owned();
    temporary.push(format!("#{}", uuid::Uuid::new_v4().as_u128() >> 64));
    let temporary = folder.join(temporary);
    let staged = || {
        let mut open = Vec::with_capacity(files.len() * 2 + 1);
        let mut folders = BTreeSet::new();
        open.push((temporary.clone(), write_new(root, &temporary, bytes).map_err(at(&temporary))?));
        for (location, bytes) in files {
            let path = root.join(location);
            open.push((path.clone(), write_new(root, &path, bytes).map_err(at(&path))?));
            folders.extend(path.parent().map(Path::to_owned));
        }
        for folder in folders {
            open.push((folder.clone(), File::open(&folder).map_err(at(&folder))?));
        }
        sync_together(&open)?;
        match fs::hard_link(&temporary, path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(at(path)(e)),
        }
    };
    let created = staged();
    let removed = fs::remove_file(&temporary);
    let created = created?;
    removed.map_err(at(&temporary))?;
    sync_folder(folder).map_err(at(folder))?;
    Ok(created)
}

fn list_local(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
            && !name.contains('#')
        {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn lakes() -> (tempfile::TempDir, [Lake; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let local = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        let store = Arc::new(object_store::memory::InMemory::new());
        let remote = Lake::with_store(store, &Url::parse("memory:///a/b").unwrap()).unwrap();
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
