//! Projects on disk: the project file, the definition files it names, and a first project to start from.

mod init;
mod spec;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::Pattern;

use crate::error::{Error, Result};
use crate::pipeline::declaration::{Declarations, Defaults};
use crate::pipeline::resolve::resolve;
use crate::pipeline::{Lint, Pipeline, Settings, Source};
use crate::sql::{Context, parse_file};

pub use init::init;
pub use spec::find_spec;

/// A checked pipeline, with what is remarkable about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Remarks, by place.
    pub lints: Vec<Lint>,
    /// The project's folder, absolute.
    pub root: PathBuf,
}

/// Loads the project whose project file is `spec`, with all the definition files that it names. The result does not
/// depend on the order in which files are found. Reads files and touches nothing else.
///
/// # Errors
/// Every mistake in the project file; if there is none, every mistake in the definition files. A file that cannot be
/// read is an external error.
pub fn load(spec: &Path) -> Result<Loaded> {
    let (settings, includes) = spec::read(spec)?;
    // Files are shown as the user named the project: relative where the project file was named so.
    let shown_root = spec.parent().unwrap_or(Path::new(""));
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    let mut errors = Vec::new();
    for include in &includes {
        match matching(shown_root, &include.pattern) {
            Ok(found) if found.is_empty() => {
                let message = format!("`{}` matches no definition file", include.pattern);
                errors.push(Error::user("PIPELINE_NO_DEFINITION_FILES", message).at(&include.span));
            }
            Ok(found) => files.extend(found),
            Err(error) => errors.push(error.at(&include.span)),
        }
    }
    let mut sources = Vec::new();
    for path in files {
        match read_definitions(&path) {
            Ok(source) => sources.push(source),
            Err(error) => errors.push(error),
        }
    }
    match Error::all(errors) {
        Some(error) => Err(error),
        None => load_sources(sources, settings),
    }
}

/// Loads definitions that are at hand as text, each with the name that messages show.
///
/// # Errors
/// As for [`load`].
pub fn load_sql(sources: &[(&str, &str)], settings: &Settings) -> Result<Loaded> {
    load_sources(sources.iter().map(|(name, text)| Source::new(*name, *text)).collect(), settings.clone())
}

fn load_sources(sources: Vec<Source>, mut settings: Settings) -> Result<Loaded> {
    settings.root = std::path::absolute(&settings.root)
        .map_err(|e| Error::external("CANNOT_READ", format!("no path to {}", settings.root.display())).caused_by(e))?;
    let mut declarations = Declarations::default();
    let mut errors = Vec::new();
    for source in sources {
        let file = Arc::new(source);
        let defaults = Defaults { catalog: settings.catalog.clone(), schema: settings.schema.clone() };
        let mut context = Context::new(&file, &settings.root, defaults);
        errors.extend(parse_file(&mut context, &settings.configuration, &mut declarations));
    }
    // What a faulty statement would have declared is missing, so names are looked up only once all of them can be read.
    if let Some(error) = Error::all(errors) {
        return Err(error);
    }
    finish(&settings, declarations)
}

/// Resolves and checks what a front end has declared.
pub(crate) fn finish(settings: &Settings, declarations: Declarations) -> Result<Loaded> {
    let (pipeline, lints) = resolve(settings, declarations)?;
    Ok(Loaded { pipeline, lints, root: settings.root.clone() })
}

/// Files of one `include`: the file itself, or everything in a folder but what is hidden.
fn matching(root: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let Some(folder) = pattern.strip_suffix("/**") else {
        let path = root.join(pattern);
        return Ok(if path.is_file() { vec![path] } else { Vec::new() });
    };
    let folder = root.join(folder);
    let escaped = format!("{}/**/*", Pattern::escape(&folder.to_string_lossy()));
    let invalid =
        |e: &dyn std::fmt::Display| Error::user("PIPELINE_SPEC_INVALID_GLOB_PATTERN", format!("`{pattern}`: {e}"));
    let mut found = Vec::new();
    for entry in glob::glob(&escaped).map_err(|e| invalid(&e))? {
        let path = entry
            .map_err(|e| Error::external("CANNOT_READ", format!("cannot read {}", e.path().display())).caused_by(e))?;
        let inside = path.strip_prefix(&folder).unwrap_or(&path);
        let hidden = inside.components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            part.starts_with('.') || part == "__pycache__"
        });
        if !hidden && path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

fn read_definitions(path: &Path) -> Result<Source> {
    let shown = path.to_string_lossy().into_owned();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("sql") => {}
        Some("py") => {
            let error = Error::user("NOT_SUPPORTED", format!("{shown}: definitions in Python are not supported yet"));
            return Err(error.help("write them in SQL, or leave the file out of `libraries`"));
        }
        _ => {
            let error = Error::user(
                "PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION",
                format!("{shown} is no definition file"),
            );
            return Err(error.help("definition files end in .sql; name just their folder in `libraries`"));
        }
    }
    let bytes =
        std::fs::read(path).map_err(|e| Error::external("CANNOT_READ", format!("cannot read {shown}")).caused_by(e))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(shown, text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))),
        Err(_) => Err(Error::user("INVALID_ENCODING", format!("{shown} is not UTF-8"))),
    }
}
