//! The storage as an object store, for delta-rs and for storages that are one.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

use super::disk::Disk;
use super::faults::{Guard, Step, failed};

/// An object store each of whose steps is guarded. On a local disk a finished put is durable, which the store of the
/// library does not see to.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    inner: Arc<dyn ObjectStore>,
    disk: Option<(Disk, Arc<LocalFileSystem>)>,
    guard: Guard,
}

impl Objects {
    /// The objects of a store.
    pub(crate) fn remote(inner: Arc<dyn ObjectStore>, guard: Guard) -> Objects {
        Objects { inner, disk: None, guard }
    }

    /// The files of the machine, by absolute paths. What is written lies below the disk's root.
    pub(crate) fn local(disk: &Disk) -> Objects {
        let files = Arc::new(LocalFileSystem::new());
        let inner = Arc::<LocalFileSystem>::clone(&files);
        Objects { inner, disk: Some((disk.clone(), files)), guard: disk.guard().clone() }
    }

    async fn put_local(&self, disk: Disk, path: PathBuf, payload: PutPayload, mode: PutMode) -> Result<PutResult> {
        let bytes = Bytes::from(payload);
        let file = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || match mode {
            PutMode::Create => disk.publish(&[], &path, &bytes),
            _ => disk.replace(&path, &bytes).map(|()| true),
        });
        match written.await.map_err(|e| object_store::Error::JoinError { source: e })? {
            Ok(true) => Ok(PutResult { e_tag: None, version: None }),
            Ok(false) => Err(object_store::Error::AlreadyExists { source: "the file exists".into(), path: file }),
            Err((_, e)) => Err(failed(e)),
        }
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        match &self.disk {
            Some((_, _)) if matches!(options.mode, PutMode::Update(_)) => Err(object_store::Error::NotImplemented {
                operation: "conditional update".into(),
                implementer: "a local disk".into(),
            }),
            Some((disk, files)) => {
                let path = files.path_to_filesystem(location)?;
                self.put_local(disk.clone(), path, payload, options.mode).await
            }
            None => {
                let bytes = Bytes::from(payload);
                let path = PathBuf::from(location.as_ref());
                let put = self.inner.put_opts(location, PutPayload::from(bytes.clone()), options);
                self.guard.step_of(Step::Put(&path, &bytes), put).await
            }
        }
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload { objects: self.clone(), location: location.clone(), parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = PathBuf::from(location.as_ref());
        self.guard.step_of(Step::Read(&path), self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = PathBuf::from(location.as_ref());
        self.guard.step_of(Step::Read(&path), self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let objects = self.clone();
        let deleted = locations.then(move |location| {
            let objects = objects.clone();
            async move {
                let location = location?;
                let path = PathBuf::from(location.as_ref());
                let one = futures::stream::once(futures::future::ready(Ok(location.clone()))).boxed();
                let delete =
                    objects.inner.delete_stream(one).into_future().map(|(first, _)| first.unwrap_or(Ok(location)));
                objects.guard.step_of(Step::Remove(&path), delete).await
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let path = prefix.map(|x| PathBuf::from(x.as_ref())).unwrap_or_default();
        let listed = self.inner.list(prefix);
        let guard = self.guard.clone();
        let listed = async move { guard.step_of(Step::List(&path), futures::future::ready(Ok(listed))).await };
        listed
            .map(|x| x.unwrap_or_else(|e| futures::stream::once(futures::future::ready(Err(e))).boxed()))
            .flatten_stream()
            .boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let path = prefix.map(|x| PathBuf::from(x.as_ref())).unwrap_or_default();
        let listed = self.inner.list_with_offset(prefix, offset);
        let guard = self.guard.clone();
        let listed = async move { guard.step_of(Step::List(&path), futures::future::ready(Ok(listed))).await };
        listed
            .map(|x| x.unwrap_or_else(|e| futures::stream::once(futures::future::ready(Err(e))).boxed()))
            .flatten_stream()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let path = prefix.map(|x| PathBuf::from(x.as_ref())).unwrap_or_default();
        self.guard.step_of(Step::List(&path), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(object_store::Error::NotImplemented {
            operation: "copy".into(),
            implementer: "the storage of a pipeline".into(),
        })
    }
}

/// An upload in parts, which are put together.
#[derive(Debug)]
struct Upload {
    objects: Objects,
    location: Path,
    parts: Vec<Bytes>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.extend(data);
        futures::future::ready(Ok(())).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let payload: PutPayload = std::mem::take(&mut self.parts).into_iter().collect();
        self.objects.put_opts(&self.location, payload, PutOptions::default()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.clear();
        Ok(())
    }
}
