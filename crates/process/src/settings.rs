//! What a service is made of.

use crate::logging::LogSettings;
use tidegate_authority::Modes;
use tidegate_servers::{Address, Replies, frs, rls};

/// 64 processes may have a data directory open. An old and a new supervisor with all their workers are 62
/// then, which leaves two for operators who look into it.
pub const WORKERS_MAX: u16 = 30;

/// The settings of a service.
#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: tidegate_data_dir::Settings,
    /// What holds for all limits.
    pub modes: Modes,
    /// Where the rate limit service is served.
    pub grpc: Vec<Address>,
    pub http: Address,
    pub frs_address: Address,
    pub rls: rls::Settings,
    pub frs: frs::Settings,
    pub replies: Replies,
    pub log: LogSettings,
    /// Worker processes, up to [`WORKERS_MAX`]; with 0 this process serves by threads.
    pub workers: u32,
    /// Whether the addresses of a process that serves the data directory are taken over.
    pub takeover: bool,
}
