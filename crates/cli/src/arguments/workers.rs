//! Flags for worker processes and takeover.

use clap::Args;
use std::num::NonZeroU32;
use tidegate_process::WORKERS_MAX;

/// Processes.
#[derive(Debug, Args)]
pub(crate) struct WorkerOptions {
    /// Serve gRPC and FRS by this many processes of one thread each, up to 30, restarted when they end; 0
    /// serves by threads of this process
    #[arg(
        long = "workers",
        id = "workers",
        value_name = "N",
        env = "TIDEGATE_WORKERS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=i64::from(WORKERS_MAX))
    )]
    pub(crate) count: u32,

    /// Take over the addresses of the process that serves this data directory, which then drains and ends;
    /// start as usual if there is none
    #[arg(long, env = "TIDEGATE_TAKEOVER")]
    pub(crate) takeover: bool,

    /// Serve as a worker of the process at the other end of standard input
    #[arg(long, hide = true)]
    pub(crate) as_worker: bool,
}

impl WorkerOptions {
    /// Whether this process starts others.
    pub(crate) fn supervises(&self) -> bool {
        self.count > 0 && !self.as_worker
    }

    /// The number of processes that grant leases.
    pub(crate) fn lessors(&self) -> NonZeroU32 {
        NonZeroU32::new(self.count).unwrap_or(NonZeroU32::MIN)
    }
}
