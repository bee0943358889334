//! Signs of life of a run: one small file or object a run, written again and again while it lives, gone when it has ended.
//!
//! Ages are told by the storage's own clock, so that clocks of machines that differ do no harm. On a local disk the file is
//! also locked while the process lives; the kernel takes the lock away when it dies, however that happens.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::storage::{Lake, blocking};
use crate::error::{Error, Result};

const FOLDER: &str = "runs";

/// The heartbeat of this process for one run.
#[derive(Debug)]
pub struct Heartbeat {
    lake: Lake,
    location: String,
    text: String,
    /// Keeps the lock of the file, on a local disk that has locks.
    _file: Option<File>,
}

/// The last sign of life of another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// When it was given, by the storage's clock.
    pub at: SystemTime,
    /// How long ago that was.
    pub age: Duration,
    /// Whether the kernel says that the process which gave it is gone. Only to be believed of processes on the same machine.
    pub abandoned: bool,
}

impl Heartbeat {
    /// Gives the first sign of life. `text` is for people who look into the file.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn start(lake: &Lake, id: &str, text: String) -> Result<Heartbeat> {
        let location = place(lake, id);
        lake.make_folder(&lake.private_location(FOLDER)).await?;
        let file = match path(lake, &location) {
            Some(path) => {
                let failed = |e| write_error(&path, e);
                let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
                // A disk without locks leaves the age alone to tell.
                file.try_lock().is_ok().then_some(file)
            }
            None => None,
        };
        let heartbeat = Heartbeat { lake: lake.clone(), location, text, _file: file };
        heartbeat.write().await?;
        Ok(heartbeat)
    }

    /// Gives a sign of life; false if the file is gone, since someone else has taken over.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn beat(&self) -> Result<bool> {
        if self.lake.modified(&self.location).await?.is_none() {
            return Ok(false);
        }
        self.write().await.map(|()| true)
    }

    /// Says that the run has ended.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn stop(&self) -> Result<()> {
        end(&self.lake, &self.location).await
    }

    /// The last sign of life of another run; none if it has ended.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn look(&self, id: &str) -> Result<Option<Sign>> {
        let location = place(&self.lake, id);
        let Some(at) = self.lake.modified(&location).await? else { return Ok(None) };
        let abandoned = path(&self.lake, &location).is_some_and(|path| match File::open(path) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
            },
            Err(_) => false,
        });
        self.write().await?;
        let now = self.lake.modified(&self.location).await?.unwrap_or(at);
        Ok(Some(Sign { at, age: now.duration_since(at).unwrap_or_default(), abandoned }))
    }

    /// Removes what another run has left.
    ///
    /// # Errors
    /// External errors of the storage.
    pub async fn bury(&self, id: &str) -> Result<()> {
        end(&self.lake, &place(&self.lake, id)).await
    }

    async fn write(&self) -> Result<()> {
        match path(&self.lake, &self.location) {
            Some(path) => {
                let text = self.text.clone();
                blocking(move || {
                    // The same file, in place: another one would not have the lock. The disk's clock stamps it.
                    let written = OpenOptions::new().write(true).truncate(true).open(&path);
                    match written.and_then(|mut file| file.write_all(text.as_bytes())) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(write_error(&path, e)),
                        _ => Ok(()),
                    }
                })
                .await
            }
            None => self.lake.replace(&self.location, self.text.clone().into_bytes()).await,
        }
    }
}

/// Whether a run has given signs of life and not said that it has ended.
///
/// # Errors
/// External errors of the storage.
pub async fn is_there(lake: &Lake, id: &str) -> Result<bool> {
    Ok(lake.modified(&place(lake, id)).await?.is_some())
}

async fn end(lake: &Lake, location: &str) -> Result<()> {
    match path(lake, location) {
        Some(path) => match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(write_error(&path, e)),
            _ => Ok(()),
        },
        None => lake.remove(vec![location.to_owned()]).await,
    }
}

fn place(lake: &Lake, id: &str) -> String {
    format!("{}/{id}", lake.private_location(FOLDER))
}

fn path(lake: &Lake, location: &str) -> Option<PathBuf> {
    lake.local_root().map(|root| root.join(location))
}

fn write_error(path: &std::path::Path, e: io::Error) -> Error {
    Error::external("STORAGE_FAILED", format!("cannot write {}", path.display())).caused_by(e)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use url::Url;

    use super::super::faults::Guard;
    use super::super::objects::Objects;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_lives_until_it_ends_and_is_abandoned_when_its_process_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let local = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        let store = Objects::remote(Arc::new(object_store::memory::InMemory::new()), Guard::default());
        let remote = Lake::with_store(store, &Url::parse("memory:///runs").unwrap()).unwrap();
        for (lake, locks) in [(local, true), (remote, false)] {
            let one = Heartbeat::start(&lake, "1", "one".into()).await.unwrap();
            let two = Heartbeat::start(&lake, "2", "two".into()).await.unwrap();
            let first = two.look("1").await.unwrap().unwrap();
            assert!(!first.abandoned && first.age < Duration::from_secs(60));
            assert!(one.beat().await.unwrap());
            assert!(two.look("1").await.unwrap().unwrap().at >= first.at);
            drop(one);
            assert_eq!(two.look("1").await.unwrap().unwrap().abandoned, locks);
            assert!(is_there(&lake, "1").await.unwrap());
            two.bury("1").await.unwrap();
            two.bury("1").await.unwrap();
            assert_eq!(two.look("1").await.unwrap(), None);
            let three = Heartbeat::start(&lake, "3", "three".into()).await.unwrap();
            three.bury("2").await.unwrap();
            assert!(!two.beat().await.unwrap());
            assert!(!is_there(&lake, "2").await.unwrap(), "who has been taken over does not come back");
            three.stop().await.unwrap();
            assert!(!is_there(&lake, "3").await.unwrap());
        }
    }
}
