//! Counters that machines share: an engine of counters whose states are in a server.
//!
//! `engine/` commits many updates with few commands. It is a state machine without I/O. `shared` is where updates and
//! drivers meet. `redis/` is the driver for Redis and Valkey: connections, the script that compares and sets, and the
//! nodes of a cluster. `memcached/` is the driver for memcached, where all keys of a place are one value (`layout`). Both
//! compare the `seed` that a server has, pace their attempts to connect by `retry`, and take answers `in_time`. `slots` and
//! `spread` say which server has a key. `image` is the value of a key, `clock` the time of the servers. `operators` is
//! what commands need beyond updates, and `redis/link` a connection for what else is kept in a Redis. `simulation` is the
//! engine without connections. Refuses to know limits and algorithms, and to wait for a server that does not answer: an
//! update ends within a few times [`Settings::timeout`].

#![allow(missing_docs, reason = "used in this workspace alone; a good name is not explained again")]

mod any_name;
mod clock;
mod engine;
mod engines;
mod image;
mod in_time;
mod layout;
mod memcached;
mod operators;
mod redis;
mod remote;
mod retry;
mod seed;
mod settings;
mod shared;
pub mod simulation;
mod slots;
mod spread;
mod stream;

pub use engines::{EngineError, Engines};
pub use operators::{OperatorError, connect_with_seed, list};
pub use redis::{Link, LinkError, Links};
pub use remote::{ConnectError, Known, Remote, connect, start};
pub use settings::{Address, AddressError, Credentials, Servers, Settings, Tls};
pub use shared::{Counts, Health};
