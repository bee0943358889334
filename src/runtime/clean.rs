//! What becomes of files after the epoch that read them is durable: `cleanSource`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::names::name_of;
use crate::error::Result;
use crate::lake::{FileId, History};
use crate::plan::{Plan, SourceKind};
use crate::sources::{Clean, FileSource};

/// Removes or moves the files that complete epochs have read and whose time is over at `now`, in microseconds since 1970.
/// A file that was changed since is another one, and stays. Gives how many have gone; one that cannot go stays, and is
/// tried again by the next run.
pub(super) fn clean(plan: &Plan, history: &History, now: i64) -> Result<u64> {
    let mut gone = 0;
    for source in &plan.sources {
        let SourceKind::Files(read) = &source.kind else { continue };
        let files = FileSource::new(read)?;
        let (Some((clean, retention)), Some(seen)) = (files.clean(), history.seen(&source.id)) else { continue };
        let due = |file: &FileId| {
            let known = seen.get(name_of(&plan.root, &file.path)).filter(|known| known.is_of(file));
            let read = known.and_then(|known| history.walls.get(&known.epoch));
            read.and_then(|read| read.checked_add(retention)).is_some_and(|end| end <= now)
        };
        for file in files.discover(|file| !due(file), true)? {
            let done = match clean {
                Clean::Off => continue,
                Clean::Delete => fs::remove_file(&file.path),
                Clean::Move(to) => shift(&file, files.root(), Path::new(to)),
            };
            match done {
                Ok(()) => gone += 1,
                // Another run was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => tracing::warn!("the file {} has been read and cannot be cleaned away: {e}", file.path),
            }
        }
    }
    Ok(gone)
}

/// Moves a file to a folder, under the same path as below the root. What is there already stays.
fn shift(file: &FileId, root: &Path, to: &Path) -> io::Result<()> {
    let from = Path::new(&file.path);
    let inside = from.strip_prefix(root).ok().filter(|x| !x.as_os_str().is_empty());
    let target = to.join(inside.map_or_else(|| PathBuf::from(from.file_name().unwrap_or_default()), Path::to_owned));
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    let target = match target.try_exists()? {
        false => target,
        true => {
            let mut name = target.into_os_string();
            name.push(format!(".{}", file.modified_micros));
            PathBuf::from(name)
        }
    };
    match fs::rename(from, &target) {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            fs::copy(from, &target)?;
            fs::File::open(&target)?.sync_all()?;
            fs::remove_file(from)
        }
        other => other,
    }
}
