//! All settings, checked by the caller.

use crate::logging::LogSettings;
use crate::shared::SharedSettings;
use tidegate_authority::Modes;
use tidegate_servers::{Address, Replies, frs, rls};

/// 64 processes may open a data directory. The workers and supervisors of an old and a new service are 62 of
/// them, which leaves two for operators' commands.
pub const WORKERS_MAX: u16 = 30;

#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: tidegate_data_dir::Settings,
    pub modes: Modes,
    /// None if counters are of this machine alone.
    pub shared: Option<SharedSettings>,
    /// Addresses of the rate limit service.
    pub grpc: Vec<Address>,
    pub http: Address,
    pub frs_address: Address,
    pub rls: rls::Settings,
    pub frs: frs::Settings,
    pub replies: Replies,
    pub log: LogSettings,
    /// The number of worker processes, up to [`WORKERS_MAX`]; with 0 this process serves with threads.
    pub workers: u32,
    /// Take over the addresses of the process that serves the data directory.
    pub takeover: bool,
}
