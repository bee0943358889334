//! Which files there are.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::options::Options;
use super::pattern::{alternatives, is_pattern};
use crate::error::{Error, Result};
use crate::lake::{FileId, Position};

/// Where files are looked for.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A folder or one file.
    Path(PathBuf),
    /// Paths of patterns.
    Glob { patterns: Vec<String>, root: PathBuf },
}

impl Place {
    pub(super) fn parse(path: &str) -> Result<Place> {
        let local = match url::Url::parse(path) {
            Ok(url) if url.scheme() == "file" => {
                // A pattern is no valid URL path, so it is taken as it stands.
                path.strip_prefix("file://").or_else(|| path.strip_prefix("file:")).unwrap_or(path)
            }
            Ok(url) if url.scheme().len() > 1 => {
                return Err(Error::user("NOT_SUPPORTED", format!("reading files from {path} is not supported"))
                    .help("read them from a local or mounted folder"));
            }
            _ => path,
        };
        if !is_pattern(local) {
            return Ok(Place::Path(PathBuf::from(local)));
        }
        let invalid = || Error::user("INVALID_PATH", format!("{path} is no valid pattern"));
        let patterns = alternatives(local).ok_or_else(invalid)?;
        for pattern in &patterns {
            glob::Pattern::new(pattern).map_err(|e| invalid().caused_by(e))?;
        }
        let root =
            Path::new(local).components().take_while(|x| !is_pattern(&x.as_os_str().to_string_lossy())).collect();
        Ok(Place::Glob { patterns, root })
    }

    /// The folder below which everything is.
    pub(super) fn root(&self) -> &Path {
        match self {
            Place::Path(root) | Place::Glob { root, .. } => root,
        }
    }

    /// Whether a file in that folder is one that may be found here.
    pub(super) fn holds(&self, folder: &str) -> bool {
        Path::new(folder).starts_with(self.root())
    }

    /// All files there, sorted by path; `None` if the place does not exist.
    pub(super) fn list(&self, options: &Options) -> Result<Option<Vec<FileId>>> {
        let mut files = Vec::new();
        match self {
            Place::Path(path) => match fs::metadata(path) {
                Ok(found) if found.is_dir() => folder(path, options, options.recursive != Some(false), &mut files)?,
                Ok(found) => push(path, &found, options, &mut files)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(unreadable(path, e)),
            },
            Place::Glob { patterns, root } => {
                match fs::metadata(root) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(e) => return Err(unreadable(root, e)),
                    Ok(_) => {}
                }
                for pattern in patterns {
                    matching(pattern, root, options, &mut files)?;
                }
            }
        }
        files.sort_unstable();
        files.dedup();
        Ok(Some(files))
    }
}

impl Place {
    /// Where files land.
    pub(super) fn landing(&self, options: &Options) -> Landing {
        match self {
            Place::Path(path) => Landing { root: path.clone(), deep: options.recursive != Some(false) },
            Place::Glob { root, .. } => Landing { root: root.clone(), deep: true },
        }
    }

    /// Of some paths, the files that are there and that a listing would show; none if only a listing can tell.
    pub(super) fn among<'a>(
        &self,
        paths: impl Iterator<Item = &'a Path>,
        options: &Options,
    ) -> Result<Option<Vec<FileId>>> {
        let (landing, mut files) = (self.landing(options), Vec::new());
        for path in paths.filter(|path| landing.has(path)) {
            let shown = match self {
                Place::Path(_) => path == landing.root || is_wanted(path, options),
                Place::Glob { patterns, root } => {
                    let Some(patterns) = patterns.iter().map(|x| plain(x)).collect::<Option<Vec<_>>>() else {
                        return Ok(None);
                    };
                    is_wanted(path, options) && patterns.iter().any(|x| shows(x, root, path, options))
                }
            };
            match fs::metadata(path) {
                Ok(found) if !found.is_dir() && shown => {
                    push(path, &found, options, &mut files)?;
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unreadable(path, e)),
                _ => {}
            }
        }
        files.sort_unstable();
        Ok(Some(files))
    }
}

/// A place where files land.
#[derive(Clone, Debug)]
pub struct Landing {
    /// The folder, or a single file.
    pub root: PathBuf,
    /// Whether files are looked for in all folders below, or only in those of partitions.
    pub deep: bool,
}

impl Landing {
    /// Whether a file with this path would be found here, as far as folders tell.
    pub fn has(&self, path: &Path) -> bool {
        let Ok(inside) = path.strip_prefix(&self.root) else { return false };
        let mut folders = inside.parent().unwrap_or(Path::new("")).components();
        folders.all(|folder| is_entered(&folder.as_os_str().to_string_lossy(), self.deep))
    }

    /// The folders that are there.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        below(&self.root, self.deep, &mut found);
        found
    }
}

fn below(path: &Path, deep: bool, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let entered = is_entered(&entry.file_name().to_string_lossy(), deep);
        if entered && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), deep, found);
        }
    }
}

/// Whether files are looked for in a folder of that name.
fn is_entered(name: &str, deep: bool) -> bool {
    !is_hidden(name) && (deep || name.contains('='))
}

/// Files that a pattern without braces matches, and those in folders that it matches.
fn matching(pattern: &str, root: &Path, options: &Options, files: &mut Vec<FileId>) -> Result<()> {
    let settings = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    let matches = glob::glob_with(pattern, settings)
        .map_err(|e| Error::user("INVALID_PATH", format!("{pattern} is no valid pattern")).caused_by(e))?;
    for path in matches {
        let path = path.map_err(|e| unreadable(&PathBuf::from(e.path()), e.into()))?;
        let inside = path.strip_prefix(root).unwrap_or(&path);
        if inside.components().any(|x| is_hidden(&x.as_os_str().to_string_lossy())) {
            continue;
        }
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(unreadable(&path, e)),
        };
        if found.is_dir() {
            folder(&path, options, options.recursive == Some(true), files)?;
        } else if is_wanted(&path, options) {
            push(&path, &found, options, files)?;
        }
    }
    Ok(())
}

/// A pattern that can be compared with paths as they are: none of its folders is the one before, or itself, and it does not
/// end with `**` or a slash, which are folders alone.
fn plain(pattern: &str) -> Option<glob::Pattern> {
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if pattern.ends_with("**") || pattern.split('/').skip(1).any(odd) {
        return None;
    }
    glob::Pattern::new(pattern).ok()
}

/// Whether [`matching`] would find a file: the pattern matches it, or a folder above it from which it is found.
fn shows(pattern: &glob::Pattern, root: &Path, path: &Path, options: &Options) -> bool {
    let settings = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    let deep = options.recursive == Some(true);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Folders between the one at hand and the file are entered by name.
    let mut entered = true;
    for (height, above) in path.ancestors().enumerate() {
        let Ok(inside) = above.strip_prefix(root) else { return false };
        let visible = !inside.components().any(|x| is_hidden(&x.as_os_str().to_string_lossy()));
        if entered && visible && pattern.matches_path_with(above, settings) {
            return true;
        }
        entered &= height == 0 || is_entered(&name(above), deep);
    }
    false
}

/// Folders of partitions may have names that begin with `_`.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
}

/// Ends of names that programs give files which are not there yet.
const TEMPORARY: [&str; 8] = ["._copying_", ".tmp", ".temp", ".partial", ".filepart", ".crdownload", ".swp", "~"];

fn is_wanted(path: &Path, options: &Options) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lower = name.to_lowercase();
    !is_hidden(&name)
        && !TEMPORARY.iter().any(|end| lower.ends_with(end))
        && options.name_glob.as_ref().is_none_or(|x| x.matches(&name))
}

/// Files of a folder, of the folders of partitions in it and, if `deep`, of all folders.
fn folder(path: &Path, options: &Options, deep: bool, files: &mut Vec<FileId>) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| unreadable(path, e))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| unreadable(path, e))?;
        let path = entry.path();
        // A link may lead back to where it is.
        let linked = entry.file_type().is_ok_and(|x| x.is_symlink());
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            // Gone between listing and looking, or a link to nothing: not there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(unreadable(&path, e)),
        };
        if found.is_dir() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !linked && is_entered(&name, deep) {
                folder(&path, options, deep, files)?;
            }
        } else if is_wanted(&path, options) {
            push(&path, &found, options, files)?;
        }
    }
    Ok(())
}

fn push(path: &Path, found: &Metadata, options: &Options, files: &mut Vec<FileId>) -> Result<()> {
    let text = path.to_str().ok_or_else(|| {
        Error::external("SOURCE_NOT_READABLE", format!("the name of the file {} is not UTF-8", path.display()))
    })?;
    let file = identify(text, found).map_err(|e| unreadable(path, e))?;
    let after = options.modified_after.is_none_or(|x| file.modified_micros > x);
    let before = options.modified_before.is_none_or(|x| file.modified_micros < x);
    if after && before {
        files.push(file);
    }
    Ok(())
}

/// Whether what an epoch is to read is still as it was found. A table keeps its versions.
pub fn is_there(position: &Position) -> bool {
    match position {
        Position::Files(files) => files.iter().all(|file| as_it_is(file).as_ref() == Some(file)),
        Position::Skipped(_) => true,
        Position::Delta { .. } => true,
    }
}

/// A file that was found, as it is now; none if it cannot be looked at.
pub fn as_it_is(file: &FileId) -> Option<FileId> {
    fs::metadata(&file.path).and_then(|found| identify(&file.path, &found)).ok()
}

/// What tells a file.
pub(super) fn identify(path: &str, found: &Metadata) -> io::Result<FileId> {
    let modified = found.modified()?;
    let micros = match modified.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |x| -x),
    };
    Ok(FileId { path: path.to_owned(), size: found.len(), modified_micros: micros })
}

fn unreadable(path: &Path, e: io::Error) -> Error {
    Error::external("SOURCE_NOT_READABLE", format!("cannot read {}", path.display())).caused_by(e)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    /// Asked for every file by name, a place shows what a listing of it shows.
    #[test]
    fn files_that_are_named_are_those_that_a_listing_shows() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let mut paths = Vec::new();
        for folder in
            ["", "a", "a/deep", "a/deep/er", "b", "b/day=1", "b/day=1/hour=2", "_hidden", "a/.git", "a/_x=1", "ab"]
        {
            for name in ["x.json", "y.json", "x.csv", "_z.json", "t.json.tmp", "_x=1.json"] {
                let path = root.join(folder).join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "{}").unwrap();
                paths.push(path);
            }
        }
        paths.push(root.join("a/not_there.json"));
        let mut shown = 0;
        for pattern in [
            "",
            "*",
            "*.json",
            "a",
            "a/*",
            "a/*.json",
            "*/*.json",
            "**/*.json",
            "{a,b}",
            "{a,b}/*",
            "a*",
            "b/*/x.json",
            "b/day=*",
            "b/*",
            "**",
            "a/d*/*",
            "[ab]/x.json",
            "?",
            "a/x.json",
            "a/./*.json",
            "*/",
        ] {
            for recursive in [None, Some("true"), Some("false")] {
                let mut given = BTreeMap::new();
                given.extend(recursive.map(|value| ("recursivefilelookup".to_owned(), value.to_owned())));
                let options = Options::parse(&given).unwrap();
                let place = Place::parse(root.join(pattern).to_str().unwrap()).unwrap();
                let listed = place.list(&options).unwrap().unwrap_or_default();
                let Some(named) = place.among(paths.iter().map(PathBuf::as_path), &options).unwrap() else {
                    assert!(["a/./*.json", "**", "*/"].contains(&pattern), "{pattern} is listed");
                    continue;
                };
                assert_eq!(named, listed, "{pattern} with {recursive:?}");
                shown += named.len();
            }
        }
        assert!(shown > 100, "{shown}");
    }
}
