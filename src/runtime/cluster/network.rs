//! The connections that timely's workers exchange rows over.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use timely::communication::Hooks;
use timely::communication::allocator::zero_copy::initialize::{CommsGuard, initialize_networking_from_sockets};
use timely::communication::allocator::zero_copy::stream::Stream;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};

use crate::cluster::{Expected, Listening, Member, PEER_MISSING, Purpose, connect};
use crate::error::{Error, Result};
use crate::runtime::worker::Network;

/// Bytes that a connection keeps for the next messages at most.
const SPARE: usize = 1 << 24;

/// Connections that can be cut from anywhere.
#[derive(Default)]
pub(super) struct Cut(Mutex<(bool, Vec<TcpStream>)>);

impl Cut {
    /// Cuts what there is, and whatever is added later.
    pub(super) fn now(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0 = true;
        for stream in all.1.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts what there is.
    fn these(&self) {
        for stream in self.0.lock().unwrap_or_else(PoisonError::into_inner).1.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn replace(&self, streams: Vec<TcpStream>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.0 {
            for stream in streams {
                let _ = stream.shutdown(Shutdown::Both);
            }
        } else {
            all.1 = streams;
        }
    }

    fn is_cut(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Connects this process's workers with those of all others. A process calls those of smaller numbers.
pub(super) fn meet(
    member: &Member,
    expected: &Expected,
    listening: &Listening,
    (generation, session): (u64, u64),
    cut: &Cut,
) -> Result<Vec<Option<TcpStream>>> {
    let purpose = Purpose::Data { generation, session };
    let until = Instant::now() + member.start_timeout;
    let mut streams: Vec<Option<TcpStream>> = (0..member.hosts.len()).map(|_| None).collect();
    for (to, stream) in streams.iter_mut().enumerate().take(member.index) {
        let address = member.hosts.get(to).unwrap_or_default();
        let patience = until.saturating_duration_since(Instant::now());
        let claim = expected.claim(purpose, to);
        *stream = Some(connect(address, &claim, &member.secret, patience, &|| !cut.is_cut())?);
    }
    loop {
        let missing = streams.iter().enumerate().find(|(from, stream)| *from > member.index && stream.is_none());
        let Some((missing, _)) = missing else { break };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || cut.is_cut() {
            return Err(Error::external(
                PEER_MISSING,
                format!("the workers of {} were not connected in time", member.hosts.show(missing)),
            ));
        }
        // Short, so that a cut is noticed.
        let Ok(arrival) = listening.arrivals.recv_timeout(left.min(Duration::from_millis(100))) else { continue };
        match streams.get_mut(arrival.claim.from) {
            Some(stream) if arrival.claim.purpose == purpose && arrival.claim.from > member.index => {
                *stream = Some(arrival.stream);
            }
            _ => (member.say)(&format!("closed a connection of process {}: it is of another run", arrival.claim.from)),
        }
    }
    for stream in streams.iter().flatten() {
        watch(stream, member.peer_timeout)?;
    }
    Ok(streams)
}

/// Lets the system notice that the other machine cannot be reached any more, also while nothing is sent.
fn watch(stream: &TcpStream, timeout: Duration) -> Result<()> {
    let probe = (timeout / 4).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
    #[cfg(not(windows))]
    let keepalive = keepalive.with_retries(3);
    let socket = SockRef::from(stream);
    let set = socket.set_tcp_keepalive(&keepalive);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let set = set.and_then(|()| socket.set_tcp_user_timeout(Some(timeout)));
    set.map_err(|e| Error::external("CONNECTION_FAILED", "a connection cannot be watched").caused_by(e))
}

/// Bytes that workers exchange with those of other processes.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    /// Bytes sent, and bytes received.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}

/// A connection whose bytes are counted.
struct Counted {
    stream: TcpStream,
    traffic: Arc<Traffic>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.stream.read(buffer)?;
        self.traffic.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.stream.write(buffer)?;
        self.traffic.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Stream for Counted {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(Counted { stream: self.stream.try_clone()?, traffic: Arc::clone(&self.traffic) })
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.stream.set_nonblocking(nonblocking)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }
}

/// What runs the exchange, from its connections.
pub(super) fn exchange(
    streams: Vec<Option<TcpStream>>,
    index: usize,
    workers: usize,
    cut: &Arc<Cut>,
) -> Result<(Vec<AllocatorBuilder>, Exchange)> {
    let failed = |e| Error::external("CONNECTION_FAILED", "the workers cannot be connected").caused_by(e);
    let clones: Vec<TcpStream> =
        streams.iter().flatten().map(TcpStream::try_clone).collect::<Result<_, _>>().map_err(failed)?;
    cut.replace(clones);
    let mut hooks = Hooks::default();
    hooks.refill.limit = Some(SPARE);
    let traffic: Arc<Traffic> = Arc::default();
    let count = |stream| Counted { stream, traffic: Arc::clone(&traffic) };
    let streams = streams.into_iter().map(|stream| stream.map(count)).collect();
    let processes = ProcessBuilder::new_typed_vector(workers, hooks.refill.clone(), None);
    let (builders, guard) =
        initialize_networking_from_sockets(processes, streams, index, workers, hooks).map_err(failed)?;
    let exchange = Exchange { guard: Some(guard), cut: Arc::clone(cut), ending: None, traffic };
    Ok((builders.into_iter().map(AllocatorBuilder::Tcp).collect(), exchange))
}

/// The exchange of one dataflow.
pub(super) struct Exchange {
    guard: Option<CommsGuard>,
    cut: Arc<Cut>,
    /// What goes over it.
    pub(super) traffic: Arc<Traffic>,
    /// Tells others that it ends.
    pub(super) ending: Option<Box<dyn FnOnce() + Send>>,
}

impl Exchange {
    fn join(&mut self) -> Result<()> {
        let guard = self.guard.take();
        // Its threads panic where a connection breaks.
        let joined = catch_unwind(AssertUnwindSafe(|| drop(guard)));
        joined.map_err(|_| Error::external(crate::cluster::PEER_LOST, "the exchange with other processes broke off"))
    }
}

impl Network for Exchange {
    fn ending(&mut self) {
        if let Some(ending) = self.ending.take() {
            ending();
        }
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        let joined = self.join();
        self.cut.replace(Vec::new());
        joined
    }

    fn abort(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.cut.these();
            if let Err(error) = self.join() {
                tracing::debug!("{error}");
            }
        }
    }
}
