//! The socket: connections, the token, limits.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;
use tonic::codegen::Service as _;
use tonic::codegen::http;

use super::graph::Graph;
use super::service::Service;
use super::session::Sessions;
use super::wire::spark::spark_connect_service_server::SparkConnectServiceServer;
use super::{ServeOptions, Tables};
use crate::error::{Error, Result};

/// The largest request that is read.
const REQUEST: usize = 128 << 20;
/// How many connections there can be at once.
const CONNECTIONS: usize = 256;
/// How long a connection may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection that is let go may take to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A server that runs on threads of its own, until it is dropped.
pub struct Server {
    address: SocketAddr,
    sessions: Arc<Sessions>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address; port 0 is any that is free.
    ///
    /// # Errors
    /// `ADDRESS_NOT_USABLE` (external); `TOKEN_NEEDED` (user) for an address that others can reach, without a token.
    pub fn start(options: ServeOptions) -> Result<Server> {
        if !options.address.ip().is_loopback() && options.token.is_none() {
            let message =
                format!("{} can be reached from elsewhere, and anyone could run pipelines here", options.address);
            return Err(
                Error::user("TOKEN_NEEDED", message).help("give --token, or an address such as 127.0.0.1:15002")
            );
        }
        let unusable = |e: std::io::Error| {
            Error::external("ADDRESS_NOT_USABLE", format!("cannot listen at {}", options.address)).caused_by(e)
        };
        let listener = TcpListener::bind(options.address).map_err(unusable)?;
        listener.set_nonblocking(true).map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        let tables = options.tables.as_ref().map(|Tables { pipeline, root }| (Arc::clone(pipeline), root.clone()));
        let sessions = Arc::new(Sessions::reading(tables));
        let io = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .thread_name("silverflow-serve")
            .build()
            .map_err(|e| Error::external("NO_THREADS", "the server cannot start").caused_by(e))?;
        let (stop, stopped) = oneshot::channel();
        let service = Arc::new(Service { sessions: Arc::clone(&sessions), options: Arc::new(options) });
        let thread = std::thread::Builder::new()
            .name("silverflow-serve".to_owned())
            .spawn(move || {
                io.block_on(async {
                    tokio::select! {
                        () = accept(listener, service) => {}
                        _ = stopped => {}
                    }
                });
                io.shutdown_background();
            })
            .map_err(|e| Error::external("NO_THREADS", "the server cannot start").caused_by(e))?;
        Ok(Server { address, sessions, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it ends.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Takes the graph that a client has declared.
    pub(crate) fn take_graph(&self, id: &str) -> Option<Graph> {
        self.sessions.take_graph(id)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take().filter(|_| self.thread.is_some()) {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, service: Arc<Service>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let token: Option<Arc<str>> = service.options.token.as_deref().map(Into::into);
    let server = SparkConnectServiceServer::from_arc(service)
        .max_decoding_message_size(REQUEST)
        .max_encoding_message_size(usize::MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No handle is free, for instance.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (server, token) = (server.clone(), token.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = stream.set_nodelay(true);
            if !matches!(tokio::time::timeout(PATIENCE, stream.readable()).await, Ok(Ok(()))) {
                return;
            }
            let spoken = Arc::new(AtomicBool::new(false));
            let asked = Arc::clone(&spoken);
            let service = service_fn(move |request: http::Request<Incoming>| {
                asked.store(true, Ordering::Relaxed);
                let (mut server, token) = (server.clone(), token.clone());
                async move {
                    if token.is_some_and(|token| !bears(&request, &token)) {
                        let refused = Status::unauthenticated("the token is missing or wrong");
                        return Ok::<_, Infallible>(refused.into_http());
                    }
                    server.call(request).await
                }
            });
            // A connection that speaks another protocol, or breaks, ends by itself.
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(Some(Duration::from_secs(60)))
                .keep_alive_timeout(Duration::from_secs(60))
                .max_concurrent_streams(256)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            if tokio::time::timeout(PATIENCE, connection.as_mut()).await.is_ok() {
                return;
            }
            if spoken.load(Ordering::Relaxed) {
                let _ = connection.await;
            } else {
                // It takes the place of others and asks for nothing; a client that is only slow is told to come again.
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(FAREWELL, connection).await;
            }
        });
    }
}

/// Whether a request bears the token; takes as long for a wrong one as for the right one.
fn bears(request: &http::Request<Incoming>, token: &str) -> bool {
    let given = request.headers().get(http::header::AUTHORIZATION).map_or(&b""[..], http::HeaderValue::as_bytes);
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    given.len() == token.len() && given.iter().zip(token.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
