//! Flags of the FRS server.

use super::times;
use anyhow::anyhow;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_core::DailyReset;
use tidegate_limits::daily_reset;
use tidegate_servers::Address;

/// The FRS server.
#[derive(Debug, Args)]
pub(crate) struct FrsOptions {
    /// Address for FRS (POST /frs, XML): host:port, unix:PATH or off
    #[arg(
        long = "frs",
        id = "frs",
        value_name = "ADDR",
        env = "TIDEGATE_FRS",
        default_value = "127.0.0.1:8090"
    )]
    pub(crate) address: Address,

    /// The srv.xml of an FRS; flags and environment variables override it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SRV")]
    pub(crate) srv: Option<PathBuf>,

    /// Time of the daily reset of counters for a map.xml without one, such as 03:00
    #[arg(
        long = "frs-self-update",
        id = "frs-self-update",
        value_name = "TIME",
        env = "TIDEGATE_FRS_SELF_UPDATE"
    )]
    pub(crate) self_update_time: Option<String>,

    /// Timezone of --frs-self-update: UTC, an offset such as +08:00, or a name such as Europe/Berlin
    #[arg(
        long = "frs-timezone",
        id = "frs-timezone",
        value_name = "ZONE",
        env = "TIDEGATE_FRS_TIMEZONE",
        default_value = "UTC"
    )]
    pub(crate) timezone: String,

    /// FRS connections of a process at once; more clients are asked to try again
    #[arg(
        long = "frs-connections",
        id = "frs-connections",
        value_name = "N",
        env = "TIDEGATE_FRS_CONNECTIONS",
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) connections: u32,

    /// Timeout to receive an FRS request, and to send its answer
    #[arg(
        long = "frs-request-timeout",
        id = "frs-request-timeout",
        value_name = "TIME",
        env = "TIDEGATE_FRS_REQUEST_TIMEOUT",
        default_value = "10s",
        value_parser = times::timeout
    )]
    pub(crate) request_timeout: Duration,

    /// How long an FRS connection may be idle between requests
    #[arg(
        long = "frs-idle-timeout",
        id = "frs-idle-timeout",
        value_name = "TIME",
        env = "TIDEGATE_FRS_IDLE_TIMEOUT",
        default_value = "60s",
        value_parser = times::timeout
    )]
    pub(crate) idle_timeout: Duration,
}

impl FrsOptions {
    /// The daily reset for a `map.xml` without one.
    pub(crate) fn self_update(&self) -> anyhow::Result<Option<DailyReset>> {
        let Some(time) = &self.self_update_time else { return Ok(None) };
        let reset = daily_reset(time, &self.timezone);
        reset.map(Some).map_err(|message| anyhow!("--frs-self-update: {message}"))
    }
}
