//! The project file: the same fields and checks as Spark's pipelines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};
use serde_yaml_ng::{Mapping, Value};

use crate::error::{Error, Result, Span};
use crate::pipeline::{Settings, Source, near_miss};
use crate::sql::absolute;

const FILES: [&str; 2] = ["spark-pipeline.yml", "spark-pipeline.yaml"];
const FIELDS: [&str; 7] = ["name", "storage", "catalog", "database", "schema", "configuration", "libraries"];

/// One entry of `libraries`.
#[derive(Debug)]
pub(super) struct Include {
    pub(super) pattern: String,
    pub(super) span: Span,
}

/// The project file of a folder or of the nearest folder above it; relative if the folder is the current one, so that
/// messages stay short.
///
/// # Errors
/// `PIPELINE_SPEC_FILE_NOT_FOUND` if there is none, `MULTIPLE_PIPELINE_SPEC_FILES_FOUND` if a folder has both spellings.
pub fn find_spec(start: &Path) -> Result<PathBuf> {
    let start = std::path::absolute(start)
        .map_err(|e| Error::external("CANNOT_READ", format!("no path to {}", start.display())).caused_by(e))?;
    let here = std::env::current_dir().is_ok_and(|current| current == start);
    for (above, folder) in start.ancestors().enumerate() {
        let mut found = FILES.iter().map(|name| folder.join(name)).filter(|path| path.is_file());
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => {
                let message = format!("{} has both {} and {}", folder.display(), FILES[0], FILES[1]);
                return Err(Error::user("MULTIPLE_PIPELINE_SPEC_FILES_FOUND", message)
                    .help("remove one, or name one with --spec"));
            }
            (Some(path), None) => {
                let name = path.file_name().filter(|_| here);
                return Ok(
                    name.map_or(path.clone(), |name| std::iter::repeat_n("..", above).collect::<PathBuf>().join(name))
                );
            }
            _ => {}
        }
    }
    let message = format!("no {} in {} or above it", FILES[0], start.display());
    Err(Error::user("PIPELINE_SPEC_FILE_NOT_FOUND", message)
        .help("name one with --spec, or start a project with `silverflow init NAME`"))
}

/// The name of the pipeline in a project file, as far as it can be read.
pub fn name_of_spec(spec: &Path) -> Option<String> {
    read(spec).ok().map(|(settings, _)| settings.name)
}

/// Reads and checks a project file.
pub(super) fn read(path: &Path) -> Result<(Settings, Vec<Include>)> {
    let shown = path.to_string_lossy().into_owned();
    if !path.is_file() {
        let error = Error::user("PIPELINE_SPEC_FILE_DOES_NOT_EXIST", format!("there is no file {shown}"));
        return Err(if path.is_dir() { error.help("--spec names the project file, not its folder") } else { error });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::external("CANNOT_READ", format!("cannot read {shown}")).caused_by(e))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let root = std::path::absolute(folder)
        .map_err(|e| Error::external("CANNOT_READ", format!("no path to {shown}")).caused_by(e))?;
    parse(Source::new(shown, text), root)
}

fn parse(source: Source, root: PathBuf) -> Result<(Settings, Vec<Include>)> {
    let yaml: Value = serde_yaml_ng::from_str(source.text()).map_err(|error| {
        let at = error.location().map_or(Location { line: 1, column: 1 }, |at| Location {
            line: at.line() as u64,
            column: at.column() as u64,
        });
        let span = source.span(AstSpan { start: at, end: at });
        Error::user("PIPELINE_SPEC_INVALID_YAML", format!("this is no YAML: {error}")).at(&span)
    })?;
    let first = Location { line: 1, column: 1 };
    let start = source.span(AstSpan { start: first, end: first });
    let Value::Mapping(fields) = yaml else {
        return Err(
            Error::user("PIPELINE_SPEC_FIELD_NOT_DICT", "a project file is a list of `field: value`").at(&start)
        );
    };
    let mut spec = Spec { source, errors: Vec::new() };
    spec.known_fields(&fields, &FIELDS, "the project file");
    let required = ["name", "storage", "libraries"].map(|field| (field, fields.get(field)));
    for (field, _) in required.iter().filter(|(_, value)| value.is_none_or(Value::is_null)) {
        let error = Error::user("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", format!("the project file has no `{field}`"))
            .at(&start);
        let help = match *field {
            "name" => "name: my_pipeline",
            "storage" => "storage: storage   # a folder beside this file, or the URL of an object store",
            _ => "libraries: [{glob: {include: transformations/**}}]",
        };
        spec.errors.push(error.help(help));
    }
    let defaults = Settings::default();
    let name = spec.text(&fields, "name").unwrap_or_default();
    let storage = spec.text(&fields, "storage").unwrap_or_default();
    let catalog = spec.text(&fields, "catalog").unwrap_or(defaults.catalog);
    let (database, schema) = (spec.text(&fields, "database"), spec.text(&fields, "schema"));
    if database.is_some() && schema.is_some() {
        let error = Error::user("PIPELINE_SPEC_CONFLICTING_FIELDS", "`database` and `schema` are the same thing")
            .at(&spec.place("schema"));
        spec.errors.push(error.help("give one of them"));
    }
    let schema = schema.or(database).unwrap_or(defaults.schema);
    let configuration = spec.configuration(&fields);
    let includes = spec.libraries(&fields);
    match Error::all(spec.errors) {
        Some(error) => Err(error),
        None => {
            let storage = absolute(&root, &storage);
            Ok((Settings { name, storage, catalog, schema, configuration, root }, includes))
        }
    }
}

struct Spec {
    source: Source,
    errors: Vec<Error>,
}

impl Spec {
    /// Where a field or a value stands: the first line that starts with it, else the first that holds it.
    fn place(&self, word: &str) -> Span {
        let lines = || self.source.text().lines().enumerate();
        let starts = lines().find(|(_, line)| {
            let line = line.trim_start().trim_start_matches("- ").trim_start_matches(['"', '\'']);
            line.strip_prefix(word)
                .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
        });
        let found = starts.and_then(|(i, line)| Some((i, whole_word(line, word)?)));
        let found = found.or_else(|| lines().find_map(|(i, line)| Some((i, whole_word(line, word)?))));
        let (line, column) = found.unwrap_or((0, 0));
        let start = Location { line: line as u64 + 1, column: column as u64 + 1 };
        let end = Location { column: start.column + word.chars().count() as u64, ..start };
        self.source.span(AstSpan { start, end: if found.is_some() { end } else { start } })
    }

    fn wrong(&mut self, code: &'static str, field: &str, message: String) {
        let error = Error::user(code, message).at(&self.place(field));
        self.errors.push(error);
    }

    fn known_fields(&mut self, fields: &Mapping, known: &[&'static str], of: &str) {
        for key in fields.keys() {
            let Some(name) = key.as_str() else {
                let shown = plain(key);
                self.wrong("PIPELINE_SPEC_DICT_KEY_NOT_STRING", &shown, format!("`{shown}` is no name of a field"));
                continue;
            };
            if !known.contains(&name) {
                let message = format!("{of} has no field `{name}`");
                let error = Error::user("PIPELINE_SPEC_UNEXPECTED_FIELD", message).at(&self.place(name));
                self.errors.push(match near_miss(name, known.iter().copied()) {
                    Some(near) => error.help(format!("did you mean `{near}`?")),
                    None => error.help(format!("its fields are {}", known.join(", "))),
                });
            }
        }
    }

    /// A field that is text; empty text is refused, a missing field is `None`.
    fn text(&mut self, fields: &Mapping, field: &str) -> Option<String> {
        match fields.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
            Some(other) => {
                let message = format!("`{field}` must be text, and is `{}`", plain(other));
                self.wrong("PIPELINE_SPEC_FIELD_NOT_STRING", field, message);
                None
            }
        }
    }

    fn configuration(&mut self, fields: &Mapping) -> BTreeMap<String, String> {
        let mut result = BTreeMap::new();
        match fields.get("configuration") {
            None | Some(Value::Null) => {}
            Some(Value::Mapping(entries)) => {
                for (key, value) in entries {
                    match (key, value) {
                        (Value::String(key), Value::String(value)) => {
                            result.insert(key.clone(), value.clone());
                        }
                        (Value::String(key), other) => {
                            let message = format!("the value of `{key}` must be text: write \"{}\"", plain(other));
                            self.wrong("PIPELINE_SPEC_DICT_VALUE_NOT_STRING", key, message);
                        }
                        (other, _) => {
                            let shown = plain(other);
                            self.wrong(
                                "PIPELINE_SPEC_DICT_KEY_NOT_STRING",
                                &shown,
                                format!("`{shown}` is no key: put it in quotes"),
                            );
                        }
                    }
                }
            }
            Some(_) => self.wrong(
                "PIPELINE_SPEC_FIELD_NOT_DICT",
                "configuration",
                "`configuration` must be a list of `key: value`".to_owned(),
            ),
        }
        result
    }

    fn libraries(&mut self, fields: &Mapping) -> Vec<Include> {
        let mut result = Vec::new();
        let Some(Value::Sequence(libraries)) = fields.get("libraries") else {
            if fields.get("libraries").is_some_and(|value| !value.is_null()) {
                self.wrong("PIPELINE_SPEC_FIELD_NOT_LIST", "libraries", "`libraries` must be a list".to_owned());
            }
            return result;
        };
        if libraries.is_empty() {
            self.wrong("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", "libraries", "`libraries` names no file".to_owned());
        }
        for library in libraries {
            let shape = "an entry of `libraries` is written {glob: {include: transformations/**}}";
            let Value::Mapping(library) = library else {
                self.wrong("PIPELINE_SPEC_FIELD_NOT_DICT", "libraries", shape.to_owned());
                continue;
            };
            self.known_fields(library, &["glob"], "an entry of `libraries`");
            match library.get("glob") {
                Some(Value::Mapping(glob)) => {
                    self.known_fields(glob, &["include"], "`glob`");
                    match self.text(glob, "include") {
                        Some(pattern) => result.extend(self.include(pattern)),
                        None if glob.get("include").is_none_or(Value::is_null) => {
                            self.wrong("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", "glob", shape.to_owned());
                        }
                        None => {}
                    }
                }
                Some(_) => self.wrong("PIPELINE_SPEC_FIELD_NOT_DICT", "glob", shape.to_owned()),
                None => self.wrong("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", "libraries", shape.to_owned()),
            }
        }
        result
    }

    fn include(&mut self, pattern: String) -> Option<Include> {
        let folder = pattern.strip_suffix("/**").unwrap_or(&pattern);
        if folder.is_empty() || folder.contains(['*', '?', '[', ']']) {
            let message = format!("`{pattern}` is neither a file nor a folder followed by /**");
            let error = Error::user("PIPELINE_SPEC_INVALID_GLOB_PATTERN", message).at(&self.place(&pattern));
            self.errors.push(error.help("include: transformations/**"));
            return None;
        }
        let span = self.place(&pattern);
        Some(Include { pattern, span })
    }
}

/// Where a word stands in a line by itself, in characters.
fn whole_word(line: &str, word: &str) -> Option<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    line.match_indices(word).find_map(|(at, _)| {
        let (before, after) = (line.get(..at)?, line.get(at + word.len()..)?);
        let whole = !part(before.chars().next_back()) && !part(after.chars().next());
        whole.then(|| before.chars().count())
    })
}

/// A value on one line, for a message.
fn plain(value: &Value) -> String {
    serde_yaml_ng::to_string(value).map_or_else(|_| "?".to_owned(), |text| text.trim().replace('\n', " "))
}
