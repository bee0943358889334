//! The command line: one file a command, thin over the library.

mod bench;
mod dry_run;
mod init;
mod member;
mod optimize;
mod processes;
mod query;
mod run;
mod serve;
mod verify;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use silverflow::error::{Error, Result};
use silverflow::pipeline::Lint;
use silverflow::project::{self, Loaded};

/// Declarative data pipelines on timely and differential dataflow, with Delta tables as the result.
#[derive(Parser)]
#[command(name = "silverflow", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a pipeline over everything that is new.
    Run(run::Run),
    /// Check a pipeline and show its graph, without touching data.
    DryRun(dry_run::DryRun),
    /// Recompute every table from what is stored, and say what differs; writes nothing.
    Verify(verify::Verify),
    /// Ask the pipeline's tables, as of the last complete epoch.
    Query(query::Query),
    /// Serve Spark Connect clients: pipelines in Python, and questions to their tables.
    Serve(serve::Serve),
    /// Make a new project that runs.
    Init(init::Init),
    /// Bring the files and logs of all tables into order; no row changes.
    Optimize(optimize::Optimize),
    /// Measure the product on this machine.
    Bench(bench::Bench),
}

/// Which project.
#[derive(Args)]
struct Project {
    /// Project file; by default spark-pipeline.yml here or in a folder above.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
}

impl Project {
    fn load(&self) -> Result<Loaded> {
        let spec = match &self.spec {
            Some(spec) => spec.clone(),
            None => project::find_spec(&std::env::current_dir().map_err(|e| {
                Error::external("NO_CURRENT_FOLDER", "the current folder cannot be read").caused_by(e)
            })?)?,
        };
        silverflow::connect::load(&spec)
    }
}

fn default_workers() -> u16 {
    std::thread::available_parallelism().ok().and_then(|n| u16::try_from(n.get()).ok()).unwrap_or(1)
}

/// Parses the arguments, runs the command, and gives the exit code: 0 done, 1 data, 2 user, 3 outside, 4 bug.
pub(crate) fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SILVERFLOW_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off,silverflow=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).without_time().init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help and version through the same path; only those are a success.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let result = match cli.command {
        Command::Run(command) => match command.run() {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Command::DryRun(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Query(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Init(command) => command.run(),
        Command::Optimize(command) => command.run(),
        Command::Bench(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(error.fault().exit_code())
        }
    }
}

/// An error with the remarks on the same place, such as a name that is nearly that of a dataset.
fn with_remarks(error: Error, lints: &[Lint]) -> Error {
    let place = error.place().span.clone();
    let same = lints
        .iter()
        .filter(|lint| place.as_ref().is_some_and(|at| (&at.file, at.line) == (&lint.span.file, lint.span.line)));
    let remarks: Vec<String> = same
        .filter(|lint| lint.code != silverflow::pipeline::NO_EFFECT)
        .map(|lint| format!("remark: [{}] {}; {}", lint.code, lint.message, lint.help))
        .collect();
    error.details(remarks)
}

/// An error for machines.
fn describe(error: &Error) -> serde_json::Value {
    let place = error.place();
    serde_json::json!({
        "code": error.code(),
        "exit_code": error.fault().exit_code(),
        "message": error.message(),
        "dataset": place.dataset,
        "flow": place.flow,
        "expectation": place.rule,
        "epoch": place.epoch,
        "at": place.span.as_ref().map(ToString::to_string),
        "details": error.detail_lines(),
        "help": error.advice(),
        "others": error.others().iter().map(describe).collect::<Vec<_>>(),
    })
}

/// Writes to standard output. A reader that has gone is a success.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::external("OUTPUT_FAILED", "standard output cannot be written").caused_by(error))
        }
        _ => Ok(()),
    }
}
