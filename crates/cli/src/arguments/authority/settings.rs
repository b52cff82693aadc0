//! Servers of shared counters, and how to talk to them.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Counters that machines share.
#[derive(Debug, Clone)]
pub(crate) struct SharedCounters {
    pub(crate) servers: Settings,
    /// Those of limits per second, if they have servers of their own.
    pub(crate) per_second: Option<Settings>,
    pub(crate) failure: Failure,
    /// Whether the health check fails while no server answers.
    pub(crate) fails_health: bool,
}

/// What becomes of requests while no server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Failure {
    /// Deny them
    Deny,
    /// Allow them, uncounted
    Allow,
    /// Decide by the counters of this machine, with its share of each limit
    Local,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) servers: Servers,
    pub(crate) credentials: Credentials,
    /// The number of the database. A cluster has only number 0.
    pub(crate) database: u32,
    pub(crate) tls: Option<Tls>,
    /// The start of every key.
    pub(crate) prefix: String,
    pub(crate) connections: NonZeroUsize,
    pub(crate) timeout: Duration,
    /// Keys expire up to so much later than their states.
    pub(crate) jitter: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, primary: String, credentials: Credentials },
    Cluster { nodes: Vec<Address> },
    Memcached { servers: Vec<Address> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Contents of PEM files.
#[derive(Clone)]
pub(crate) struct Tls {
    /// Certificates of the authorities that may sign the server's.
    pub(crate) ca: Vec<u8>,
    /// The certificate and the key of this client.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether the server's certificate need not have the name of the server.
    pub(crate) skips_hostname: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("password", &password)
            .finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.client.is_some() { "with" } else { "without" };
        write!(f, "Tls {kind} a client certificate")
    }
}
