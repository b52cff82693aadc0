//! Servers of shared counters, as a URL names them.

use tidegate_remote::{Address, Credentials};

/// What becomes of requests while no server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Failure {
    /// Deny them
    Deny,
    /// Allow them, uncounted
    Allow,
    /// Allow this sidecar's share of each limit, which is charged when a server answers again
    Local,
}

impl From<Failure> for tidegate_authority::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Deny => tidegate_authority::Failure::Deny,
            Failure::Allow => tidegate_authority::Failure::Allow,
            Failure::Local => tidegate_authority::Failure::Local,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, primary: String },
    Cluster { nodes: Vec<Address> },
    Memcached { servers: Vec<Address> },
}

impl Servers {
    /// With the user and the password of Sentinels.
    pub(super) fn with(self, credentials: Credentials) -> tidegate_remote::Servers {
        match self {
            Servers::Single(address) => tidegate_remote::Servers::Single(address),
            Servers::Sentinel { sentinels, primary } => {
                tidegate_remote::Servers::Sentinel { sentinels, primary, credentials }
            }
            Servers::Cluster { nodes } => tidegate_remote::Servers::Cluster { nodes },
            Servers::Memcached { servers } => tidegate_remote::Servers::Memcached(servers),
        }
    }
}
