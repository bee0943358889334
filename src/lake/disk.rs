//! A folder on a local disk: files that appear whole and durable, or not at all.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::faults::{Guard, Step};
use super::storage::Stored;

/// A folder on a local disk. Every change of it goes through here.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    root: PathBuf,
    guard: Guard,
}

/// Files that are written at the same time.
const WRITERS: usize = 4;

/// What failed where.
type Failed = (PathBuf, io::Error);

fn at(path: &Path) -> impl FnOnce(io::Error) -> Failed {
    let path = path.to_owned();
    move |e| (path, e)
}

impl Disk {
    /// The folder at `root`, an absolute path. With `create` it is made, durably, if it is missing; the folder above
    /// it must be there.
    pub(crate) fn open(path: &Path, create: bool, guard: Guard) -> io::Result<Disk> {
        let made =
            if create { guard.step(Step::MakeFolder(path), || fs::create_dir(path)).map(|()| true) } else { Ok(false) };
        match made {
            Ok(false) => {}
            Ok(true) => {
                let above = path.parent().filter(|x| !x.as_os_str().is_empty()).unwrap_or(Path::new("."));
                guard.step(Step::SyncFolder(above), || sync(above))?;
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let root = fs::canonicalize(path)?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Disk { root, guard })
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Who watches.
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Everything that the new file refers to, and its own bytes under a temporary name, are durable before its real
    /// name links to them, so that neither a reader nor a crash meets a part of it. Says whether the name was free.
    pub(crate) fn publish(&self, files: &[(PathBuf, Vec<u8>)], path: &Path, bytes: &[u8]) -> Result<bool, Failed> {
        self.staged(files, path, bytes, |temporary| {
            match self.guard.step(Step::Link(temporary, path), || fs::hard_link(temporary, path)) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(at(path)(e)),
            }
        })
    }

    /// Writes new files under names that nobody looks for before they are told, durable when this returns. Several are
    /// written at the same time.
    pub(crate) fn store(&self, files: &[(PathBuf, Vec<Bytes>)]) -> Result<(), Failed> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((path, parts)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let parts: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
                let file = self.write_parts(path, &parts).map_err(at(path))?;
                self.guard.step(Step::SyncFile(path), || file.sync_all()).map_err(at(path))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..files.len().min(WRITERS)).map(|_| scope.spawn(work)).collect();
            let own = work();
            let stopped = |_| Err((PathBuf::new(), io::Error::other("a thread stopped")));
            others.into_iter().map(|x| x.join().unwrap_or_else(stopped)).fold(own, |all, x| all.and(x))
        })?;
        let folders: BTreeSet<&Path> = files.iter().filter_map(|(path, _)| path.parent()).collect();
        folders.into_iter().try_for_each(|folder| self.sync_folder(folder).map_err(at(folder)))
    }

    /// Writes a file in place of whatever has its name.
    pub(crate) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Failed> {
        self.staged(&[], path, bytes, |temporary| {
            self.guard.step(Step::Rename(temporary, path), || fs::rename(temporary, path)).map_err(at(path))
        })
    }

    /// The contents of a file, if there is one.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.guard.step(Step::Read(path), || fs::read(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, path: &Path) -> io::Result<File> {
        self.guard.step(Step::Read(path), || File::open(path))
    }

    /// Names of the files right in a folder; none if there is no such folder. Temporary ones are left out.
    pub(crate) fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let entries = match self.guard.step(Step::List(folder), || fs::read_dir(folder)) {
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

    /// The files right in a folder, also temporary ones; none if there is no such folder.
    pub(crate) fn stored(&self, folder: &Path) -> io::Result<Vec<Stored>> {
        let entries = match self.guard.step(Step::List(folder), || fs::read_dir(folder)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut stored = Vec::new();
        for entry in entries {
            let entry = entry?;
            let found = match entry.metadata() {
                Ok(found) => found,
                // A temporary file that has its name now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let since = found.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            if let (false, Ok(name)) = (found.is_dir(), entry.file_name().into_string()) {
                let modified = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
                stored.push(Stored { name, size: found.len(), modified });
            }
        }
        Ok(stored)
    }

    /// Removes a file; one that is gone already is no error. Not durable: after a crash it may be there again.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        match self.guard.step(Step::Remove(path), || fs::remove_file(path)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Writes files and, under a temporary name, the one that refers to them; makes them durable, and then lets
    /// `finish` give the last its name, which is made durable too.
    fn staged<T>(
        &self,
        files: &[(PathBuf, Vec<u8>)],
        path: &Path,
        bytes: &[u8],
        finish: impl FnOnce(&Path) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let folder = path.parent().ok_or_else(|| at(path)(io::ErrorKind::InvalidInput.into()))?;
        let temporary = temporary_of(path);
        let staged = || {
            let mut open = Vec::with_capacity(files.len() * 2 + 1);
            let mut folders = BTreeSet::new();
            open.push((temporary.clone(), self.write_new(&temporary, bytes).map_err(at(&temporary))?));
            for (path, bytes) in files {
                open.push((path.clone(), self.write_new(path, bytes).map_err(at(path))?));
                folders.extend(path.parent());
            }
            for folder in folders {
                open.push((folder.to_owned(), File::open(folder).map_err(at(folder))?));
            }
            self.sync_together(&open)?;
            finish(&temporary)
        };
        let finished = staged();
        let removed = self.remove(&temporary);
        let finished = finished?;
        removed.map_err(at(&temporary))?;
        self.sync_folder(folder).map_err(at(folder))?;
        Ok(finished)
    }

    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        self.write_parts(path, &[bytes])
    }

    fn write_parts(&self, path: &Path, parts: &[&[u8]]) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let create = || self.guard.step(Step::Create(path), || options.open(path));
        let mut file = match create() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), |folder| self.create_folders(folder))?;
                create()?
            }
            other => other?,
        };
        match parts {
            [whole] => self.guard.write(path, whole, |bytes| file.write_all(bytes))?,
            // Who watches is told of a file at once.
            parts if self.guard.is_watched() => {
                self.guard.write(path, &parts.concat(), |bytes| file.write_all(bytes))?;
            }
            parts => parts.iter().try_for_each(|part| file.write_all(part))?,
        }
        Ok(file)
    }

    /// Creates a folder under the root and the missing ones above it, and makes the new entries durable.
    pub(crate) fn create_folders(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().filter(|x| x.starts_with(&self.root));
        if let Some(parent) = parent {
            self.create_folders(parent)?;
        }
        match self.guard.step(Step::MakeFolder(folder), || fs::create_dir(folder)) {
            Ok(()) => parent.map_or(Ok(()), |x| self.sync_folder(x)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.guard.step(Step::SyncFolder(path), || sync(path))
    }

    /// Syncs files and folders side by side: a disk does many at once for little more than one.
    fn sync_together(&self, files: &[(PathBuf, File)]) -> Result<(), Failed> {
        let sync = |(path, file): &(PathBuf, File)| {
            let folder = file.metadata().is_ok_and(|x| x.is_dir());
            let step = if folder { Step::SyncFolder(path) } else { Step::SyncFile(path) };
            self.guard.step(step, || file.sync_all()).map_err(at(path))
        };
        let Some((first, rest)) = files.split_first() else { return Ok(()) };
        std::thread::scope(|scope| {
            let others: Vec<_> = rest.iter().map(|x| scope.spawn(move || sync(x))).collect();
            let own = sync(first);
            let stopped = |_| Err((PathBuf::new(), io::Error::other("a thread stopped")));
            others.into_iter().map(|x| x.join().unwrap_or_else(stopped)).fold(own, |all, x| all.and(x))
        })
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A name beside a file that listings of the disk and of an object store leave out: it ends in `#` and digits.
fn temporary_of(path: &Path) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("#{}", uuid::Uuid::new_v4().as_u128() >> 64));
    path.with_file_name(name)
}
