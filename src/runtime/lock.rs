//! One run per storage: who owns it, whether the owner lives, and taking it over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chrono::Utc;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lake::heartbeat::{Heartbeat, is_there};
use crate::lake::{EpochLog, Generation, History, Lake, Owner};

/// After how long without a sign of life a run counts as dead, unless it says otherwise.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Signs of life within the timeout.
const BEATS: u32 = 6;
/// How often the storage is tried to be taken while other runs try the same.
const ATTEMPTS: usize = 20;

/// The storage is this run's, until it is dropped or another run takes over.
pub struct RunLock {
    /// Number of this run among all that have owned the storage.
    pub generation: u64,
    /// An earlier run may not know that it is no owner any more.
    pub took_over: bool,
    lost: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// What is known of the run that had the storage last.
enum Last {
    /// It has ended, or there was none.
    Ended,
    /// Its process is gone.
    Dead(Generation),
    /// It has given no sign of life for long.
    Silent(Generation, Duration),
}

/// Refuses if another run owns the storage and may be alive.
///
/// # Errors
/// `STORAGE_LOCKED` (external), naming the owner; external errors of the storage.
pub fn refuse_if_owned(lake: &Lake, history: &History, timeout: Duration, io: &Handle) -> Result<()> {
    let there = match &history.generation {
        Some(last) => io.block_on(is_there(lake, &last.owner.id))?,
        None => false,
    };
    if there {
        let (heartbeat, _) = io.block_on(introduce(lake, timeout))?;
        let judged = io.block_on(judge(lake, history, &heartbeat, timeout));
        io.block_on(heartbeat.stop())?;
        judged?;
    }
    Ok(())
}

impl RunLock {
    /// Takes the storage, over from a run that is dead if need be. Gives the log, ready for writing, and what it says.
    ///
    /// Costs one durable record. Waits only where a run on another machine, or one whose process still exists, has been
    /// silent for longer than `timeout`: then it is given the time of one more sign of life.
    ///
    /// # Errors
    /// `STORAGE_LOCKED` (external), naming the owner; external errors of the storage.
    pub fn take(
        lake: &Lake,
        timeout: Duration,
        io: &Handle,
        say: &dyn Fn(&str),
    ) -> Result<(RunLock, EpochLog, History)> {
        let (heartbeat, owner) = io.block_on(introduce(lake, timeout))?;
        let taken = io.block_on(async {
            for _ in 0..ATTEMPTS {
                let (mut log, history) = EpochLog::load(lake).await?;
                let last = judge(lake, &history, &heartbeat, timeout).await?;
                if let Some(generation) = log.take(owner.clone()).await? {
                    return Ok((generation, last, log));
                }
            }
            Err(Error::external("STORAGE_LOCKED", format!("other runs take {} again and again", lake.display(""))))
        });
        let (generation, last, log) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // What is left of it would be taken for a run that died, at most.
                let _ = io.block_on(heartbeat.stop());
                return Err(error);
            }
        };
        let took_over = match &last {
            Last::Ended => None,
            Last::Dead(last) => {
                say(&format!("taking over from a run that died: {}", last.owner));
                Some(last)
            }
            Last::Silent(last, silence) => {
                say(&format!(
                    "taking over from a run that has given no sign of life for {:.1} s: {}",
                    silence.as_secs_f64(),
                    last.owner
                ));
                Some(last)
            }
        };
        if let Some(last) = took_over {
            io.block_on(heartbeat.bury(&last.owner.id))?;
        }
        let (stop, stopped) = bounded::<()>(0);
        let lost = Arc::new(AtomicBool::new(false));
        let took_over = took_over.is_some();
        let keeper = {
            let (lost, io, lake) = (Arc::clone(&lost), io.clone(), lake.clone());
            let interval = timeout / BEATS;
            std::thread::spawn(move || {
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    match io.block_on(heartbeat.beat()) {
                        Ok(true) => {}
                        Ok(false) if io.block_on(is_last(&lake, generation)) => {
                            tracing::warn!("the file with this run's signs of life is gone; nobody should remove it");
                        }
                        Ok(false) => lost.store(true, Ordering::SeqCst),
                        Err(error) => tracing::warn!("no sign of life could be given: {error}"),
                    }
                }
                if let Err(error) = io.block_on(heartbeat.stop()) {
                    tracing::warn!("the end of the run could not be told: {error}");
                }
            })
        };
        let history = log.history().clone();
        let lock = RunLock { generation, took_over, lost, stop: Some(stop), keeper: Some(keeper) };
        Ok((lock, log, history))
    }

    /// Whether the epoch log knows of no later run.
    pub fn is_last(&self, lake: &Lake, io: &Handle) -> bool {
        io.block_on(is_last(lake, self.generation))
    }

    /// Whether the storage is still this run's, as far as is known. What is written decides on its own, at every write.
    ///
    /// # Errors
    /// `FENCED` (external) if another run has taken over.
    pub fn check(&self) -> Result<()> {
        if self.lost.load(Ordering::SeqCst) {
            return Err(Error::external(
                "FENCED",
                format!("another run has taken over the storage; this one (generation {}) stops", self.generation),
            )
            .help("nothing is lost: that run finishes what this one had begun"));
        }
        Ok(())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            // A keeper that panicked has nothing more to say.
            let _ = keeper.join();
        }
    }
}

async fn is_last(lake: &Lake, generation: u64) -> bool {
    EpochLog::load(lake).await.is_ok_and(|(_, history)| history.generation() == generation)
}

/// Starts a heartbeat under a name of its own.
async fn introduce(lake: &Lake, timeout: Duration) -> Result<(Heartbeat, Owner)> {
    let owner = Owner {
        id: Uuid::new_v4().to_string(),
        host: sysinfo::System::host_name().unwrap_or_else(|| "a machine without a name".to_owned()),
        boot: boot(),
        pid: std::process::id(),
        since_micros: Utc::now().timestamp_micros(),
        beat_millis: u64::try_from((timeout / BEATS).as_millis()).unwrap_or(u64::MAX),
    };
    let heartbeat = Heartbeat::start(lake, &owner.id, format!("{owner}\n")).await?;
    Ok((heartbeat, owner))
}

/// The same for all processes that one kernel runs, in whatever container.
fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

async fn judge(lake: &Lake, history: &History, heartbeat: &Heartbeat, timeout: Duration) -> Result<Last> {
    let Some(last) = &history.generation else { return Ok(Last::Ended) };
    let Some(sign) = heartbeat.look(&last.owner.id).await? else { return Ok(Last::Ended) };
    let same_machine = match (&last.owner.boot, boot()) {
        (Some(theirs), Some(ours)) => *theirs == ours,
        (None, None) => sysinfo::System::host_name().is_some_and(|ours| ours == last.owner.host),
        _ => false,
    };
    if same_machine && sign.abandoned {
        return Ok(Last::Dead(last.clone()));
    }
    let beat = Duration::from_millis(last.owner.beat_millis);
    if sign.age > timeout.max(beat * 3) {
        // Clocks jump and machines sleep: one more sign of life is waited for.
        let until = Instant::now() + beat + beat / 2;
        loop {
            tokio::time::sleep((beat / 8).max(Duration::from_millis(10))).await;
            match heartbeat.look(&last.owner.id).await? {
                None => return Ok(Last::Ended),
                Some(now) if now.at != sign.at => break,
                Some(now) if Instant::now() > until => return Ok(Last::Silent(last.clone(), now.age)),
                Some(_) => {}
            }
        }
    }
    Err(Error::external(
        "STORAGE_LOCKED",
        format!("another run owns {} (generation {}: {})", lake.display(""), last.generation, last.owner),
    )
    .help(format!(
        "wait until it has ended, or stop it; a run that gives no sign of life for {:?} is taken over",
        timeout.max(beat * 3)
    )))
}
