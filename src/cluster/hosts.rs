//! Where the processes of a run listen.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use crate::error::{Error, Result};

/// An address a process, `host:port`, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These addresses.
    pub fn new(addresses: Vec<String>) -> Hosts {
        Hosts(addresses)
    }

    /// Reads a file with an address a line. Empty lines do not count, nor does what follows a `#`.
    ///
    /// # Errors
    /// `HOSTS_NOT_READABLE` (external); `HOSTS_INVALID` (user), naming the line.
    pub fn from_file(path: &Path) -> Result<Hosts> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::external("HOSTS_NOT_READABLE", format!("{} cannot be read", path.display())).caused_by(e)
        })?;
        Hosts::parse(&text).map_err(|why| Error::user("HOSTS_INVALID", format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Hosts, String> {
        let mut addresses: Vec<String> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let address = line.split('#').next().unwrap_or_default().trim();
            if address.is_empty() {
                continue;
            }
            let port = address.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
            if port.and_then(|port| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
                return Err(format!("line {number}: `{address}` is not of the form host:port"));
            }
            if addresses.iter().any(|known| known == address) {
                return Err(format!("line {number}: {address} stands there twice"));
            }
            addresses.push(address.to_owned());
        }
        if addresses.is_empty() { Err("it names no host".to_owned()) } else { Ok(Hosts(addresses)) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address of a process.
    pub fn get(&self, process: usize) -> Option<&str> {
        self.0.get(process).map(String::as_str)
    }

    /// A process, as messages name it.
    pub fn show(&self, process: usize) -> String {
        match self.get(process) {
            Some(address) => format!("process {process} ({address})"),
            None => format!("process {process}"),
        }
    }

    /// Whether nobody outside this machine can reach any of them.
    pub fn are_loopback(&self) -> bool {
        self.0.iter().all(|address| resolve(address).is_ok_and(|all| all.iter().all(|a| a.ip().is_loopback())))
    }
}

/// The addresses that a name stands for; at least one.
pub(super) fn resolve(address: &str) -> std::io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    if found.is_empty() { Err(std::io::ErrorKind::NotFound.into()) } else { Ok(found) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_of_hosts() {
        let hosts = Hosts::parse("# all\n127.0.0.1:7001\n\n [::1]:7002 # second\nlocalhost:7003\n").unwrap();
        assert_eq!((hosts.len(), hosts.get(1)), (3, Some("[::1]:7002")));
        assert!(!Hosts::parse("192.0.2.1:7001").unwrap().are_loopback());
        assert!(Hosts::parse("127.0.0.1:1\n127.0.0.2:1").unwrap().are_loopback());
        for (text, what) in [
            ("", "no host"),
            ("a", "line 1"),
            ("a:1\nb:", "line 2"),
            (":1", "line 1"),
            ("a:0", "line 1"),
            ("a:70000", "line 1"),
            ("a:1\na:1", "twice"),
        ] {
            let why = Hosts::parse(text).unwrap_err();
            assert!(why.contains(what), "{text}: {why}");
        }
    }
}
