//! Projects with definitions in Python: a child process runs them, and declares what they say to a server of ours that
//! lives as long as it does. Data never passes through it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{ServeOptions, Server};
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::Declarations;
use crate::pipeline::{Settings, Source};
use crate::project::{Loaded, load_with};

const LOADER: &str = include_str!("../../python/silverflow/loader.py");
const DLT: &str = include_str!("../../python/silverflow/modules/dlt.py");
/// How long definitions may take, unless `silverflow.python.timeout` says otherwise.
const DEADLINE: Duration = Duration::from_secs(120);
const INSTALL: &str = "pip install 'pyspark-client>=4.2', or name a Python that has it in SILVERFLOW_PYTHON";

/// Loads a project whose definitions are in SQL, in Python, or in both.
///
/// # Errors
/// As for [`crate::project::load`]; `PYTHON_NOT_USABLE` (external) where there is no Python that can load definitions,
/// `PYTHON_DEFINITION_FAILED` (user) for an exception, at the user's own line, `PYTHON_TIMEOUT` (user).
pub fn load(spec: &Path) -> Result<Loaded> {
    load_with(spec, &mut declare)
}

/// What the child says.
#[derive(Deserialize)]
struct Outcome {
    graph: Option<String>,
    missing: Option<String>,
    error: Option<Raised>,
}

#[derive(Deserialize)]
struct Raised {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    file: Option<PathBuf>,
    line: Option<u64>,
    #[serde(default)]
    trace: Vec<String>,
}

/// A folder that goes with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Scratch> {
        let folder = std::env::temp_dir().join(format!("silverflow-{}", uuid::Uuid::new_v4()));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder)?;
        let scratch = Scratch(folder);
        std::fs::create_dir(scratch.0.join("modules"))?;
        std::fs::write(scratch.0.join("loader.py"), LOADER)?;
        std::fs::write(scratch.0.join("modules/dlt.py"), DLT)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends with its value, whatever comes of it.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unusable(why: impl std::fmt::Display) -> Error {
    Error::external("PYTHON_NOT_USABLE", format!("definitions in Python cannot be loaded: {why}")).help(INSTALL)
}

fn declare(settings: &Settings, shown: &Path, files: &[PathBuf]) -> Result<Declarations> {
    let timeout = match settings.configuration.get("silverflow.python.timeout") {
        None => DEADLINE,
        Some(text) => text.trim().parse().map(Duration::from_secs).map_err(|_| {
            Error::user("INVALID_CONFIGURATION", format!("silverflow.python.timeout takes seconds, not `{text}`"))
        })?,
    };
    let options = ServeOptions {
        root: settings.root.clone(),
        shown: shown.to_owned(),
        name: settings.name.clone(),
        fixed_root: true,
        ..ServeOptions::at(([127, 0, 0, 1], 0).into())?
    };
    let server = Server::start(options)?;
    let wrong = |e: std::io::Error| Error::external("CANNOT_WRITE", "no folder for temporary files").caused_by(e);
    let scratch = Scratch::new().map_err(wrong)?;
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let job = serde_json::json!({
        "remote": format!("sc://{}", server.address()),
        "root": settings.root,
        "catalog": settings.catalog,
        "schema": settings.schema,
        "configuration": settings.configuration,
        "files": files.iter().map(absolute).collect::<Vec<_>>(),
    });
    let (job_file, outcome_file) = (scratch.0.join("job.json"), scratch.0.join("outcome.json"));
    std::fs::write(&job_file, job.to_string()).map_err(wrong)?;
    let child = start(&[&scratch.0.join("loader.py"), &job_file, &outcome_file])?;
    let status = wait(Ending(child), timeout)?;
    let outcome = std::fs::read_to_string(&outcome_file)
        .map_err(|e| unusable(format!("Python ended without a word ({status})")).caused_by(e))?;
    let outcome: Outcome =
        serde_json::from_str(&outcome).map_err(|e| unusable("what Python says is no JSON").caused_by(e))?;
    if let Some(missing) = outcome.missing {
        return Err(unusable(missing));
    }
    if let Some(raised) = outcome.error {
        return Err(raised.told(&settings.root, shown));
    }
    let graph = outcome.graph.and_then(|id| server.take_graph(&id));
    let graph = graph.ok_or_else(|| Error::internal("definitions were loaded and are not here"))?;
    graph.into_declarations()
}

/// Starts the first Python that there is.
fn start(arguments: &[&Path]) -> Result<Child> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    match std::env::var_os("SILVERFLOW_PYTHON") {
        Some(named) => candidates.push(named.into()),
        None => {
            candidates.extend(std::env::var_os("VIRTUAL_ENV").map(|venv| PathBuf::from(venv).join("bin/python")));
            candidates.extend(["python3", "python"].map(PathBuf::from));
        }
    }
    let mut last = None;
    for python in &candidates {
        let spawned = Command::new(python)
            .args(arguments)
            .env_remove("SPARK_REMOTE")
            .env_remove("SPARK_CONNECT_MODE_ENABLED")
            .env_remove("SPARK_LOCAL_REMOTE")
            .env("PYTHONWARNINGS", std::env::var_os("PYTHONWARNINGS").unwrap_or_else(|| "ignore::FutureWarning".into()))
            .stdin(Stdio::null())
            // What definitions print must not run into a report.
            .stdout(std::io::stderr())
            .spawn();
        match spawned {
            Ok(child) => return Ok(child),
            Err(error) => last = Some((python, error)),
        }
    }
    Err(match last {
        Some((python, error)) => unusable(format!("there is no Python at {}", python.display())).caused_by(error),
        None => unusable("there is no Python"),
    })
}

fn wait(mut child: Ending, timeout: Duration) -> Result<std::process::ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if begun.elapsed() > timeout => {
                let message = format!("the definitions were not loaded within {} s", timeout.as_secs());
                return Err(Error::user("PYTHON_TIMEOUT", message).help(
                    "a definition says what to compute and computes nothing; silverflow.python.timeout gives it longer",
                ));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(unusable("Python cannot be waited for").caused_by(error)),
        }
    }
}

impl Raised {
    fn told(self, root: &Path, shown: &Path) -> Error {
        let mut message = self.message.trim().to_owned();
        if message.is_empty() {
            message.clone_from(&self.kind);
        } else {
            message = format!("{}: {message}", self.kind);
        }
        let mut error = Error::user("PYTHON_DEFINITION_FAILED", message);
        if let Some(file) = self.file {
            let name = file.strip_prefix(root).map_or_else(|_| file.clone(), |inside| shown.join(inside));
            let line = self.line.and_then(|line| usize::try_from(line).ok()).unwrap_or(0);
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let source = Source::new(name.to_string_lossy(), text);
            let text = source.line(line).to_owned();
            let column = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
            let length = text.trim().chars().count().max(1);
            error = error.at(&Span { file: source.name().to_owned(), line, column, length, text });
        }
        let trace = self
            .trace
            .iter()
            .map(|frame| format!("called from {}", frame.replace(&format!("{}/", root.display()), "")));
        error.details(trace.collect::<Vec<_>>())
    }
}
