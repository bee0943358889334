//! Processes that run one pipeline together: who they are, how they recognise each other, and how they talk.
//!
//! Nothing here knows of pipelines, workers or tables: it opens connections that are proven to be the right ones, carries
//! frames over them, and says when a peer is gone. What the frames mean is the runtime's.
//!
//! A connection is believed nothing before it has shown the protocol's version, proven that it knows the secret, and made a
//! claim that fits: the same pipeline, definitions, release, number of processes and of workers. All of it has a deadline,
//! and whatever fails is named and closed without any effect on others.

mod frame;
mod handshake;
mod hosts;
mod link;
mod listener;
mod member;
mod pulse;
mod secret;

pub use frame::{MOST, read_frame, write_frame};
pub use handshake::{Claim, Expected, Purpose, Refusal, connect};
pub use hosts::Hosts;
pub use link::Link;
pub use listener::{Arrival, Listener, Listening};
pub use member::Member;
pub use pulse::{HANGS, Pulse, Watched, turn};
pub use secret::{LEAST, Secret};

/// Raised whenever anything that goes over a connection changes its form or meaning.
pub const PROTOCOL: u32 = 2;

/// Code of the error with which a run ends that has lost a process.
pub const PEER_LOST: &str = "PEER_LOST";
/// Code of the error of a process that was not there in time.
pub const PEER_MISSING: &str = "PEER_MISSING";

/// Hears what is remarkable about connections.
pub type Say = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
