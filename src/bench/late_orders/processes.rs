//! A continuous run in several processes, as the command line starts it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crossbeam_channel::Sender;
use serde_json::Value;

use super::delta::Done;
use super::{DEFINITIONS, Settings};
use crate::error::{Error, Result};

/// The run. It ends with the handle.
pub(super) struct Processes {
    command: Child,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Processes {
    /// Starts this program's `run` on a project in `folder`. What each epoch did goes to `tell`.
    pub(super) fn start(settings: &Settings, folder: &Path, landing: &Path, tell: Sender<Done>) -> Result<Processes> {
        let failed = |e| Error::external("CANNOT_START", "the measured run cannot be started").caused_by(e);
        let landing = serde_json::Value::from(landing.to_string_lossy());
        let spec = format!(
            "name: late orders\nstorage: lakehouse\nconfiguration:\n  landing: {landing}\nlibraries:\n  - glob:\n      include: pipeline.sql\n"
        );
        std::fs::write(folder.join("spark-pipeline.yml"), spec).map_err(failed)?;
        std::fs::write(folder.join("pipeline.sql"), DEFINITIONS).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["run", "--continuous", "--interval", "1s", "--json"]);
        command.args(["--processes", &settings.processes.to_string(), "--workers", &settings.workers.to_string()]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut command = command.spawn().map_err(failed)?;
        let out = command.stdout.take();
        let reader = std::thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(std::result::Result::ok));
            for epoch in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
                let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
                let tables = epoch.get("tables").and_then(Value::as_array);
                let rows = tables.into_iter().flatten().map(|t| number(t, "inserted") + number(t, "deleted")).sum();
                if epoch.get("error").is_some() || tell.send((number(&epoch, "files"), rows)).is_err() {
                    break;
                }
            }
        });
        Ok(Processes { command, reader: Some(reader) })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Its processes end with it, and what they have written goes with the folder.
        let _ = self.command.kill();
        let _ = self.command.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
