//! Names of files in the epoch log: relative to the project's folder where they lie in it, so that a project that is moved
//! finds what it has read.

use std::path::Path;

use crate::lake::{FileId, Position};

/// The name under which the log keeps a file.
pub(super) fn name_of<'a>(root: &Path, path: &'a str) -> &'a str {
    Path::new(path).strip_prefix(root).ok().and_then(Path::to_str).filter(|name| !name.is_empty()).unwrap_or(path)
}

/// A position as the log keeps it.
pub(super) fn logged(root: &Path, position: &Position) -> Position {
    renamed(position, |path| name_of(root, path).to_owned())
}

/// A position of the log as it is read.
pub(super) fn found(root: &Path, position: &Position) -> Position {
    // An absolute name stays as it is.
    renamed(position, |name| root.join(name).to_string_lossy().into_owned())
}

fn renamed(position: &Position, name: impl Fn(&str) -> String) -> Position {
    let all = |files: &[FileId]| files.iter().map(|file| FileId { path: name(&file.path), ..file.clone() }).collect();
    match position {
        Position::Files(files) => Position::Files(all(files)),
        Position::Skipped(files) => Position::Skipped(all(files)),
        delta @ Position::Delta { .. } => delta.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_project_is_named_from_there() {
        for (path, name) in
            [("/p/landing/a.json", "landing/a.json"), ("/pp/a.json", "/pp/a.json"), ("/p", "/p"), ("/q/p/a", "/q/p/a")]
        {
            assert_eq!(name_of(Path::new("/p"), path), name);
            let position = Position::Files(vec![FileId { path: path.into(), size: 1, modified_micros: 2 }]);
            assert_eq!(found(Path::new("/p"), &logged(Path::new("/p"), &position)), position);
        }
        assert_eq!(name_of(Path::new(""), "landing/a"), "landing/a");
    }
}
