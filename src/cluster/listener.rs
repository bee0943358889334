//! Where a process hears its peers. Each connection shakes hands on a thread of its own, so that none holds up another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::handshake::{Claim, Expected, accept};
use super::hosts::resolve;
use super::{Say, Secret};
use crate::error::{Error, Result};

/// Handshakes at the same time at most. If one more comes, the oldest one of the address that has most of them is closed;
/// it tries again if it is a peer.
const OPEN: usize = 64;

/// A connection that is proven to be a peer's.
#[derive(Debug)]
pub struct Arrival {
    /// What it is.
    pub claim: Claim,
    /// The connection.
    pub stream: TcpStream,
}

/// A port that is listened on.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listening {
    /// Peers that have come.
    pub arrivals: Receiver<Arrival>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Binds an address, `host:port`.
    ///
    /// # Errors
    /// `CANNOT_LISTEN` (external).
    pub fn bind(address: &str) -> Result<Listener> {
        let failed = |e| Error::external("CANNOT_LISTEN", format!("{address} cannot be listened on")).caused_by(e);
        let listener = resolve(address).and_then(|all| TcpListener::bind(all.as_slice())).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Listener { listener, address })
    }

    /// A port of this machine that nobody outside can reach.
    ///
    /// # Errors
    /// `CANNOT_LISTEN` (external).
    pub fn loopback() -> Result<Listener> {
        Listener::bind("127.0.0.1:0")
    }

    /// The address, with the port that was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes in connections that are what is expected. Others are told to `say`.
    ///
    /// # Errors
    /// `CANNOT_LISTEN` (external).
    pub fn listen(&self, expected: Expected, secret: Secret, say: Say) -> Result<Listening> {
        let (sender, arrivals) = bounded(OPEN);
        let stop = Arc::new(AtomicBool::new(false));
        let listener = self
            .listener
            .try_clone()
            .map_err(|e| Error::external("CANNOT_LISTEN", "a port cannot be shared").caused_by(e))?;
        let door = Door { expected, secret, say, sender, open: Mutex::default() };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let door = Arc::new(door);
            while !stopped.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok(_) if stopped.load(Ordering::SeqCst) => break,
                    Ok((stream, from)) => door.answer(stream, from),
                    // Out of handles, most likely; that passes.
                    Err(error) => {
                        tracing::warn!("no connection can be taken: {error}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        });
        Ok(Listening { arrivals, address: self.address, stop, thread: Some(thread) })
    }
}

struct Door {
    expected: Expected,
    secret: Secret,
    say: Say,
    sender: Sender<Arrival>,
    /// Handshakes, in the order in which they came.
    open: Mutex<BTreeMap<u64, (SocketAddr, TcpStream)>>,
}

impl Door {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, (SocketAddr, TcpStream)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let Ok(handle) = stream.try_clone() else { return };
        let number = {
            let mut open = self.open();
            if open.len() >= OPEN
                && let Some((_, (_, oldest))) = most(&open).and_then(|number| open.remove_entry(&number))
            {
                let _ = oldest.shutdown(Shutdown::Both);
            }
            let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
            open.insert(number, (from, handle));
            number
        };
        let door = Arc::clone(self);
        std::thread::spawn(move || {
            let answer = accept(&stream, &door.expected, &door.secret);
            let gave_way = door.open().remove(&number).is_none();
            match answer {
                // It is closed if nobody waits for peers any more.
                Ok(claim) if !gave_way => _ = door.sender.try_send(Arrival { claim, stream }),
                Ok(_) => {}
                Err(_) if gave_way => {
                    (door.say)(&format!("refused a connection from {from}: it gave way to others, there are too many"));
                }
                Err(why) => (door.say)(&format!("refused a connection from {from}: {why}")),
            }
        });
    }
}

/// The oldest handshake of the address that has most of them.
fn most(open: &BTreeMap<u64, (SocketAddr, TcpStream)>) -> Option<u64> {
    let mut by_address: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
    for (number, (from, _)) in open {
        by_address.entry(from.ip()).or_insert((0, *number)).0 += 1;
    }
    by_address.values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest))).map(|(_, oldest)| *oldest)
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // It waits for a connection, so it gets one.
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        let knock = TcpStream::connect_timeout(&SocketAddr::new(ip, self.address.port()), Duration::from_secs(1));
        if knock.is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
