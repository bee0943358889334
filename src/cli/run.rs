//! `silverflow run`.

use std::fmt::Write;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use clap::Args;
use indicatif::ProgressBar;
use silverflow::cluster::Member;
use silverflow::error::{Error, Result};
use silverflow::pipeline::NO_EFFECT;
use silverflow::runtime::{self, Continuous, FlowChanges, OnEpoch, Progress, RunOptions, RunReport, Selection, Stop};

use super::member::{self, AGAIN, Cluster, Role};
use super::{Project, default_workers, describe, print, with_remarks};

/// Arguments of `run`.
#[derive(Args)]
pub(super) struct Run {
    #[command(flatten)]
    project: Project,
    /// Computing threads; the result does not depend on it.
    #[arg(long, value_name = "N", default_value_t = default_workers(), value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Fix the wall clock: an ISO 8601 date or timestamp, UTC if it has no zone.
    #[arg(long, value_name = "TIMESTAMP", value_parser = wall)]
    wall: Option<DateTime<Utc>>,
    /// Stop, with nothing done, if a table would be computed anew because its definition has changed.
    #[arg(long)]
    no_recompute: bool,
    /// Memory for state and for the rows on their way, in bytes or as 512MB or 8GB; by default half of the machine's or the
    /// container's. State beyond it lies in files: the run is slower then, and goes on.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Folder for these files, which have no name and are gone with the run; by default in the storage if that is a local
    /// disk, else the system's folder for temporary files.
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// After how long without a sign of life another run on the storage counts as dead, if its process cannot be asked about.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    lock_timeout: Duration,
    /// Let only these datasets take part, as far as there is something new for them. What they read is not refreshed with
    /// them; what reads them catches up in the next run.
    #[arg(long, value_name = "DATASETS", value_delimiter = ',')]
    refresh: Vec<String>,
    /// Make these datasets anew: read again what they store of the outside, as it is now, and recompute the rest.
    #[arg(long, value_name = "DATASETS", value_delimiter = ',')]
    full_refresh: Vec<String>,
    /// Make all datasets anew.
    #[arg(long)]
    full_refresh_all: bool,
    /// Let a full refresh lose rows that the outside no longer has.
    #[arg(long)]
    accept_loss: bool,
    /// A flow that is gone for good.
    #[arg(long, value_name = "FLOW", value_delimiter = ',')]
    drop_flow: Vec<String>,
    /// A flow that bears another name now.
    #[arg(long, value_name = "OLD=NEW", value_delimiter = ',', value_parser = renaming)]
    rename_flow: Vec<(String, String)>,
    /// Go on, and read what is new as it lands, until SIGINT or SIGTERM: the epoch at hand is finished, and the run ends. A
    /// second signal ends it at once.
    #[arg(long, conflicts_with_all = ["refresh", "full_refresh", "full_refresh_all"])]
    continuous: bool,
    /// How often to look for what the system does not tell of: tables of others, folders of other machines; with
    /// --continuous.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, requires = "continuous")]
    interval: Duration,
    /// Report as one JSON object; with --continuous, as one an epoch.
    #[arg(long)]
    json: bool,
    /// Also report how the work was spread over workers and processes; --json always does.
    #[arg(long)]
    figures: bool,
    #[command(flatten)]
    cluster: Cluster,
}

pub(super) fn duration(text: &str) -> std::result::Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        Some(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
        _ => Err("expected a number and a unit, such as 500ms, 30s or 5m".to_owned()),
    }
}

/// The least that a run can do with.
const LEAST_MEMORY: u64 = 64 << 20;

fn size(text: &str) -> std::result::Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => 64,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(1u64.checked_shl(shift)?)) {
        Some(bytes) if bytes >= LEAST_MEMORY => Ok(bytes),
        Some(_) => Err(format!("a run needs at least {} MB", LEAST_MEMORY >> 20)),
        None => Err("expected a number of bytes, or one with a unit, such as 512MB or 8GB".to_owned()),
    }
}

fn wall(text: &str) -> std::result::Result<DateTime<Utc>, String> {
    if let Ok(zoned) = DateTime::parse_from_rfc3339(text) {
        return Ok(zoned.to_utc());
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"] {
        if let Ok(local) = NaiveDateTime::parse_from_str(text, format) {
            return Ok(local.and_utc());
        }
    }
    NaiveDate::parse_from_str(text, "%Y-%m-%d")
        .ok()
        .and_then(|date| date.and_hms_opt(0, 0, 0))
        .map(|local| local.and_utc())
        .ok_or_else(|| "expected a date or a timestamp, such as 2026-06-30 or 2026-06-30T12:00:00Z".to_owned())
}

fn renaming(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("expected OLD=NEW, two names of flows".to_owned()),
    }
}

impl Run {
    /// Runs, and gives the exit code where it is not that of an error.
    pub(super) fn run(&self) -> Result<u8> {
        let stop = Stop::default();
        stop_on_signals(stop.clone(), !self.cluster.serves() && !member::is_child())?;
        // A refresh that is begun a second time would do what it has done once more.
        let again = self.refresh.is_empty() && self.full_refresh.is_empty() && !self.full_refresh_all;
        let member = match self.cluster.role(&stop, again)? {
            Role::Alone => None,
            Role::Member(member) => Some(member),
            Role::Parent(code) => return Ok(code),
        };
        let result = match member {
            Some(member) if member.index > 0 => self.serve(member, stop),
            member => self.lead(member, stop),
        };
        match result {
            Err(error) if member::is_child() && member::may_pass(&error) => {
                if !self.cluster.is_echo() {
                    let _ = writeln!(io::stderr(), "{error}");
                }
                Ok(AGAIN)
            }
            // The leading process is on the same terminal and says the same.
            Err(error) if member::is_child() && self.cluster.is_echo() => Ok(error.fault().exit_code()),
            other => other.map(|()| 0),
        }
    }

    /// Serves another process.
    fn serve(&self, member: Arc<Member>, stop: Stop) -> Result<()> {
        let loaded = self.project.load()?;
        let options = RunOptions {
            workers: usize::from(self.workers),
            memory: self.memory,
            scratch: self.scratch.clone(),
            member: Some(member),
            stop,
            ..RunOptions::default()
        };
        runtime::join(&loaded.pipeline, &options)
    }

    fn lead(&self, member: Option<Arc<Member>>, stop: Stop) -> Result<()> {
        let loaded = self.project.load()?;
        for lint in loaded.lints.iter().filter(|lint| lint.code != NO_EFFECT) {
            eprintln!("warning: [{}] {} ({})", lint.code, lint.message, lint.span);
        }
        let spinner = ProgressBar::new_spinner();
        let on_epoch: Option<OnEpoch> = self.continuous.then(|| on_epoch(self.json));
        let options = RunOptions {
            workers: usize::from(self.workers),
            wall: self.wall,
            recompute: !self.no_recompute,
            selection: Selection {
                refresh: self.refresh.clone(),
                full_refresh: self.full_refresh.clone(),
                full_refresh_all: self.full_refresh_all,
                accept_loss: self.accept_loss,
            },
            flows: FlowChanges { drop: self.drop_flow.clone(), rename: self.rename_flow.clone() },
            memory: self.memory,
            scratch: self.scratch.clone(),
            progress: Some(progress(&spinner)),
            lock_timeout: self.lock_timeout,
            continuous: self.continuous.then_some(Continuous { interval: self.interval }),
            stop,
            on_epoch: if member.is_some() { Some(telling(on_epoch)) } else { on_epoch },
            member,
            ..RunOptions::default()
        };
        let report = runtime::run(&loaded.pipeline, &options);
        spinner.finish_and_clear();
        if let (true, Err(error)) = (self.json, &report) {
            print(&format!("{}\n", serde_json::json!({ "error": describe(error) })))?;
        }
        let report = report.map_err(|error| with_remarks(error, &loaded.lints))?;
        if self.continuous {
            return Ok(());
        }
        if self.json {
            let text = serde_json::to_string(&report)
                .map_err(|e| Error::internal("the report has no JSON form").caused_by(e))?;
            return print(&format!("{text}\n"));
        }
        let figures = if self.figures { spread(&report) } else { String::new() };
        print(&(render(&report) + &figures))
    }
}

/// The first signal asks the run to end, the second one ends the process: what is stored is as after a crash, that is, whole.
fn stop_on_signals(stop: Stop, says: bool) -> Result<()> {
    let failed = |e: io::Error| Error::external("NO_SIGNALS", "signals cannot be waited for").caused_by(e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (ready, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut signals = match Signals::new() {
                Ok(signals) => signals,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            signals.next().await;
            if says {
                let _ = writeln!(io::stderr(), "stopping when the epoch at hand is complete; once more stops at once");
            }
            stop.request();
            signals.next().await;
            std::process::exit(130);
        });
    });
    started.recv().unwrap_or(Ok(())).map_err(failed)
}

#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

/// Tells of each epoch also the command that has started this process.
fn telling(other: Option<OnEpoch>) -> OnEpoch {
    Arc::new(move |report| {
        member::progress();
        if let Some(other) = &other {
            other(report);
        }
    })
}

/// Tells of each epoch on standard output. A reader that has gone misses it.
fn on_epoch(json: bool) -> OnEpoch {
    Arc::new(move |report| {
        let text = if json {
            match serde_json::to_string(report) {
                Ok(text) => text,
                Err(error) => return tracing::warn!("the report has no JSON form: {error}"),
            }
        } else {
            let (rows, gone) = report.tables.iter().fold((0, 0), |(a, b), t| (a + t.inserted, b + t.deleted));
            let quarantined: i64 = report.tables.iter().map(|t| t.quarantined).sum();
            format!(
                "{}: epoch {} complete, {} files read, {quarantined} rows quarantined; committed {rows} rows in, {gone} out",
                report.pipeline,
                report.last_epoch.unwrap_or_default(),
                report.files
            )
        };
        if let Err(error) = print(&format!("{text}\n")) {
            tracing::warn!("{error}");
        }
    })
}

/// A moving line on a terminal, plain lines elsewhere.
fn progress(spinner: &ProgressBar) -> Progress {
    if spinner.is_hidden() {
        return Arc::new(|line| {
            let _ = writeln!(io::stderr(), "{line}");
        });
    }
    spinner.enable_steady_tick(Duration::from_millis(100));
    let spinner = spinner.clone();
    Arc::new(move |line| match line.starts_with("warning: ") {
        // It stays when the work has gone on.
        true => spinner.println(line),
        false => spinner.set_message(line.to_owned()),
    })
}

/// Files that are there and were not read.
fn not_read(out: &mut String, report: &RunReport) {
    for (flow, source) in &report.sources {
        if source.changed_files > 0 {
            let files = source.changed_files;
            let _ =
                writeln!(out, "  flow {flow}: files that changed after they were read, and are not read again {files}");
        }
        if source.waiting_files > 0 {
            let files = source.waiting_files;
            let _ = writeln!(out, "  flow {flow}: files still being written, left for the next run {files}");
        }
    }
}

/// How the work was spread, as a table a worker and one a process.
fn spread(report: &RunReport) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\nworker  process     rows in  keyed rows  busy seconds  most waiting");
    for worker in &report.workers {
        let _ = writeln!(
            out,
            "{:6}  {:7}  {:10}  {:10}  {:12.3}  {:12}",
            worker.worker,
            worker.process,
            worker.rows_in,
            worker.rows,
            worker.busy_micros as f64 / 1e6,
            worker.most_waiting
        );
    }
    if let Some(skew) = report.skew {
        let _ = writeln!(out, "the busiest worker has {skew:.2} times its part of the keyed rows");
    }
    let _ = writeln!(out, "\nprocess  bytes sent  bytes received  bytes in files");
    for process in &report.processes {
        let _ = writeln!(
            out,
            "{:7}  {:10}  {:14}  {:14}",
            process.process, process.sent_bytes, process.received_bytes, process.spilled_bytes
        );
    }
    let sent: u64 = report.processes.iter().map(|process| process.sent_bytes).sum();
    let rows: u64 = report.workers.iter().map(|worker| worker.rows).sum();
    if sent > 0 && rows > 0 {
        let _ = writeln!(out, "{:.1} bytes exchanged a keyed row", sent as f64 / rows as f64);
    }
    for key in &report.hot_keys {
        let _ = writeln!(
            out,
            "hot key of {}: ({}) has {} of {} rows of worker {}",
            key.table, key.key, key.rows, key.of, key.worker
        );
    }
    out
}

fn render(report: &RunReport) -> String {
    let mut out = String::new();
    if report.epochs.is_empty() {
        if report.cleaned > 0 {
            let _ = writeln!(out, "{}: {} files cleaned away that had been read", report.pipeline, report.cleaned);
        }
        let _ = match report.last_epoch {
            Some(epoch) => writeln!(out, "{}: nothing new since epoch {epoch}; nothing was committed", report.pipeline),
            None => writeln!(out, "{}: there is nothing to read yet; nothing was committed", report.pipeline),
        };
        not_read(&mut out, report);
        return out;
    }
    let epochs = match report.epochs.as_slice() {
        [only] => format!("epoch {only}"),
        many => format!(
            "epochs {} to {}",
            many.first().copied().unwrap_or_default(),
            many.last().copied().unwrap_or_default()
        ),
    };
    let _ = write!(out, "{}: {epochs} complete, {} files read", report.pipeline, report.files);
    let _ = match report.cleaned {
        0 => writeln!(out),
        cleaned => writeln!(out, ", {cleaned} cleaned away"),
    };
    for (flow, source) in &report.sources {
        if source.malformed + source.dropped + source.rescued + source.corrupt_files == 0 {
            continue;
        }
        let _ = write!(
            out,
            "  flow {flow}: records malformed {}, left out {}, rescued {}",
            source.malformed, source.dropped, source.rescued
        );
        let _ = match source.corrupt_files {
            0 => writeln!(out),
            files => writeln!(out, "; files not readable to their end {files}"),
        };
    }
    not_read(&mut out, report);
    for table in &report.tables {
        let _ = writeln!(out, "\n{} ({})", table.name, table.kind);
        let _ = writeln!(
            out,
            "  rows read {}, valid {}, quarantined {}, dropped {}",
            table.read, table.valid, table.quarantined, table.dropped
        );
        if table.kind.starts_with("AUTO CDC") {
            let _ = writeln!(
                out,
                "  versions opened {}, closed {}, ties {}",
                table.versions_opened, table.versions_closed, table.ties
            );
        }
        let _ = writeln!(
            out,
            "  verdicts withdrawn {}; committed {} rows in, {} out",
            table.verdicts_withdrawn, table.inserted, table.deleted
        );
        for rule in table.expectations.iter().filter(|rule| rule.failed != 0) {
            let _ = write!(
                out,
                "  expectation {} ({}): passed {}, failed {}",
                rule.name, rule.action, rule.passed, rule.failed
            );
            let mut notes = Vec::new();
            if rule.null != 0 {
                notes.push(format!("{} null", rule.null));
            }
            if rule.error != 0 {
                notes.push(format!("{} with an error", rule.error));
            }
            let _ = if notes.is_empty() { writeln!(out) } else { writeln!(out, ", of these {}", notes.join(", ")) };
        }
        let _ = writeln!(out, "  {}", table.location);
        if let Some(quarantine) = &table.quarantine_location {
            let _ = writeln!(out, "  {quarantine}");
        }
    }
    out
}
