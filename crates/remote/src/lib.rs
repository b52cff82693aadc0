//! Counters that machines share: an engine of counters whose states are in a server.
//!
//! `engine/` commits many updates with few commands. It is a state machine without I/O. `shared` is where updates and
//! drivers meet. `redis/` is the driver for Redis and Valkey: connections, the script that compares and sets, the
//! seed. `image` is the value of a key, `clock` the time of the server. Refuses to know limits and algorithms, and to
//! wait for a server that does not answer: an update ends within a few times [`Settings::timeout`].

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod clock;
mod engine;
mod image;
mod redis;
mod remote;
mod settings;
mod shared;

pub use remote::{ConnectError, Remote, connect};
pub use settings::{Address, AddressError, Credentials, Servers, Settings, Tls};
pub use shared::{Counts, Health};
