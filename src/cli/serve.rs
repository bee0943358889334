//! `silverflow serve`: a server for Spark Connect clients.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;
use silverflow::connect::{ServeOptions, Server};
use silverflow::error::{Error, Result};

/// `silverflow serve`
#[derive(Args)]
pub(super) struct Serve {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15002")]
    address: String,
    /// What clients must bear (`sc://HOST:PORT/;token=…`); needed if others can reach the address.
    #[arg(long, env = "SILVERFLOW_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Project whose tables clients read before they have declared a pipeline of their own.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Computing threads of a run.
    #[arg(long, value_name = "N", default_value_t = super::default_workers(), value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
}

impl Serve {
    pub(super) fn run(&self) -> Result<()> {
        let address = resolved(&self.address)?;
        let mut options = ServeOptions {
            token: self.token.clone(),
            workers: usize::from(self.workers),
            ..ServeOptions::at(address)?
        };
        if let Some(spec) = &self.spec {
            let loaded = silverflow::connect::load(spec)?;
            options.root.clone_from(&loaded.root);
            options.name.clone_from(&loaded.pipeline.name);
            options.tables = Some(loaded.into());
        }
        let server = Server::start(options)?;
        if !server.address().ip().is_loopback() {
            eprintln!("warning: there is no TLS here; tokens and data pass in the clear");
        }
        super::print(&format!("serving at sc://{}\n", server.address()))?;
        server.wait();
        Ok(())
    }
}

fn resolved(address: &str) -> Result<SocketAddr> {
    let wrong = || Error::user("INVALID_ADDRESS", format!("{address} is no address")).help("such as 127.0.0.1:15002");
    address.to_socket_addrs().map_err(|e| wrong().caused_by(e))?.next().ok_or_else(wrong)
}
