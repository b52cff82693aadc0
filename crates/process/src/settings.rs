//! All settings, checked by the caller.

use crate::cold::ColdSettings;
use crate::logging::LogSettings;
use crate::shared::SharedSettings;
use crate::statistics::StatisticsSettings;
use tidegate_authority::Modes;
use tidegate_servers::http::Token;
use tidegate_servers::{Address, Replies, TlsFiles, frs, rls};

/// 64 processes may open a data directory. The workers and supervisors of an old and a new service are 62 of
/// them, which leaves two for operators' commands.
pub const WORKERS_MAX: u16 = 30;

#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: tidegate_data_dir::Settings,
    pub modes: Modes,
    /// None if counters are of this machine alone.
    pub shared: Option<SharedSettings>,
    /// None if idle counters stay in memory.
    pub cold: Option<ColdSettings>,
    pub statistics: StatisticsSettings,
    /// Whether it is known who is limited now.
    pub top: bool,
    /// Addresses of the rate limit service.
    pub grpc: Vec<Address>,
    pub http: Address,
    /// Clients on other machines need it to read values of requests, and all clients to change counters.
    pub http_token: Option<Token>,
    /// TLS of TCP connections to `http`.
    pub http_tls: Option<TlsFiles>,
    /// Whether there is a console at `http`.
    pub console: bool,
    /// None if no traces are exported.
    pub traces: Option<tidegate_traces::Settings>,
    /// For metrics under the names of envoyproxy/ratelimit, at this path.
    pub prometheus: Address,
    pub prometheus_path: String,
    pub frs_address: Address,
    /// Permissions of the files of Unix sockets; none for those that the umask leaves.
    pub socket_mode: Option<u32>,
    pub rls: rls::Settings,
    pub frs: frs::Settings,
    pub replies: Replies,
    pub log: LogSettings,
    /// The number of worker processes, up to [`WORKERS_MAX`]; with 0 this process serves with threads.
    pub workers: u32,
    /// Take over the addresses of the process that serves the data directory.
    pub takeover: bool,
}
