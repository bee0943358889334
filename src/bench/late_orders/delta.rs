//! The stage `delta`: a continuous run from Parquet files to committed Delta tables.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use crossbeam_channel::{Receiver, unbounded};
use parquet::arrow::ArrowWriter;

use super::feed::{Arrival, item_schema, order_schema};
use super::processes::Processes;
use super::{DEFINITIONS, Measured, Settings};
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use crate::runtime::{self, Continuous, RunOptions, Stop};

/// Files read and rows committed by an epoch.
pub(super) type Done = (u64, u64);

pub(super) fn run(settings: &Settings, feed: &[Arrival], progress: &mut dyn FnMut(u64, u64)) -> Result<Measured> {
    let folder = tempfile::Builder::new().prefix("silverflow-bench-").tempdir().map_err(no_folder)?;
    let landing = folder.path().join("landing");
    // Files of the history before, so that the run's first epoch is not measured.
    land(&landing, "orders/first.parquet", &RecordBatch::new_empty(order_schema()))?;
    land(&landing, "items/first.parquet", &RecordBatch::new_empty(item_schema()))?;
    if settings.processes > 1 {
        let (tell, told) = unbounded();
        let _running = Processes::start(settings, folder.path(), &landing, tell)?;
        return drive(&landing, feed, &told, progress);
    }
    let pipeline = Pipeline::builder("late orders")
        .storage(folder.path().join("lakehouse").to_string_lossy())
        .configuration("landing", landing.to_string_lossy())
        .sql(DEFINITIONS)
        .build()?
        .pipeline;
    let stop = Stop::default();
    let (tell, told) = unbounded();
    let options = RunOptions {
        workers: settings.workers,
        continuous: Some(Continuous { interval: Duration::from_secs(1) }),
        stop: stop.clone(),
        on_epoch: Some(Arc::new(move |report| {
            let rows = report.tables.iter().map(|table| table.inserted + table.deleted).sum();
            let _ = tell.send((report.files, rows));
        })),
        ..RunOptions::default()
    };
    std::thread::scope(|scope| {
        // The run owns the options, and with them the sender: whoever waits for it notices when it ends.
        let running = scope.spawn(move || runtime::run(&pipeline, &options));
        let measured = drive(&landing, feed, &told, progress);
        stop.request();
        running.join().map_err(|_| Error::internal("the measured run panicked"))??;
        measured
    })
}

fn drive(
    landing: &Path,
    feed: &[Arrival],
    told: &Receiver<Done>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Measured> {
    let mut measured = Measured::default();
    read(told, 2)?;
    for (number, arrival) in feed.iter().enumerate() {
        let (items, orders) = (arrival.item_rows()?, arrival.order_rows()?);
        let mut files = Vec::new();
        for (name, rows) in [("orders", orders), ("items", items)] {
            if rows.num_rows() > 0 {
                files.push((write(landing, name, &rows)?, format!("{name}/{number:06}.parquet")));
            }
        }
        let start = Instant::now();
        for (waiting, name) in &files {
            fs::rename(waiting, landing.join(name)).map_err(no_folder)?;
        }
        let touched = read(told, files.len() as u64)?;
        measured.epoch(start.elapsed(), touched, None);
        progress(number as u64 + 1, feed.len() as u64);
    }
    Ok(measured)
}

/// Waits until so many files are committed; gives the rows that were.
fn read(told: &Receiver<Done>, files: u64) -> Result<u64> {
    let (mut read, mut rows) = (0, 0);
    while read < files {
        let done = told.recv().map_err(|_| Error::internal("the measured run has ended"))?;
        read += done.0;
        rows += done.1;
    }
    Ok(rows)
}

/// Writes a file beside the place where it is to land.
fn write(landing: &Path, name: &str, rows: &RecordBatch) -> Result<std::path::PathBuf> {
    let path = landing.join(format!("{name}.waiting"));
    let wrong = |e| Error::internal("the feed cannot be written as Parquet").caused_by(e);
    let file = File::create(&path).map_err(no_folder)?;
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).map_err(wrong)?;
    writer.write(rows).map_err(wrong)?;
    writer.close().map_err(wrong)?;
    Ok(path)
}

fn land(landing: &Path, name: &str, rows: &RecordBatch) -> Result<()> {
    let target = landing.join(name);
    fs::create_dir_all(target.parent().unwrap_or(landing)).map_err(no_folder)?;
    let waiting = write(landing, "first", rows)?;
    fs::rename(waiting, target).map_err(no_folder)
}

fn no_folder(error: std::io::Error) -> Error {
    Error::external("BENCH_FOLDER", "the feed cannot be written into the system's folder for temporary files")
        .help("set TMPDIR to a folder with room")
        .caused_by(error)
}
