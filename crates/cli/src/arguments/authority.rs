//! Flags for counters that machines share.

mod files;
mod operators;
mod roles;
mod settings;
pub(crate) mod url;

use super::times;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

pub(super) use files::{certificates, contents, password};
pub(crate) use operators::ServerOptions;
pub(crate) use settings::Failure;

/// The option of servers for limits per second.
const PER_SECOND: &str = "authority_per_second";

/// Counters that machines share.
#[derive(Debug, Args)]
pub(crate) struct AuthorityOptions {
    /// Servers that hold the counters for several machines: redis://HOST:PORT (rediss:// with TLS;
    /// USER:PASSWORD@ may stand before the host),
    /// unix:PATH, redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY, redis+cluster://HOST:PORT,HOST:PORT,
    /// memcached://HOST:PORT,HOST:PORT; or local, which is the default
    #[arg(long, value_name = "URL", env = "TIDEGATE_AUTHORITY", hide_env_values = true)]
    pub(crate) authority: Option<String>,

    /// User at the servers, if they have users (ACL)
    #[arg(long, value_name = "NAME", env = "TIDEGATE_AUTHORITY_USER")]
    pub(crate) authority_user: Option<String>,

    /// File with the password at the servers. TIDEGATE_AUTHORITY_PASSWORD may have the password itself
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_AUTHORITY_PASSWORD_FILE",
        conflicts_with = "authority_password"
    )]
    pub(crate) authority_password_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_AUTHORITY_PASSWORD", hide_env_values = true)]
    pub(crate) authority_password: Option<String>,

    /// User at the Sentinels
    #[arg(long, value_name = "NAME", env = "TIDEGATE_AUTHORITY_SENTINEL_USER")]
    pub(crate) authority_sentinel_user: Option<String>,

    /// File with the password at the Sentinels, or TIDEGATE_AUTHORITY_SENTINEL_PASSWORD
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_AUTHORITY_SENTINEL_PASSWORD_FILE",
        conflicts_with = "authority_sentinel_password"
    )]
    pub(crate) authority_sentinel_password_file: Option<PathBuf>,

    #[arg(long, hide = true, env = "TIDEGATE_AUTHORITY_SENTINEL_PASSWORD", hide_env_values = true)]
    pub(crate) authority_sentinel_password: Option<String>,

    /// CA certificates (PEM) of the servers; those of the system without it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_AUTHORITY_CA")]
    pub(crate) authority_ca: Option<PathBuf>,

    /// Certificate (PEM) that is shown to the servers
    #[arg(long, value_name = "PATH", env = "TIDEGATE_AUTHORITY_CERT")]
    pub(crate) authority_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "PATH", env = "TIDEGATE_AUTHORITY_KEY")]
    pub(crate) authority_key: Option<PathBuf>,

    /// Accept a certificate of the CA whatever name it has
    #[arg(long, env = "TIDEGATE_AUTHORITY_SKIP_HOSTNAME")]
    pub(crate) authority_skip_hostname: bool,

    /// How long the answer to a command may take: 1ms to 60s
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_AUTHORITY_TIMEOUT",
        default_value = "100ms",
        value_parser = times::answer
    )]
    pub(crate) authority_timeout: Duration,

    /// Connections of a process to a server, 1 to 64. Commands are pipelined
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_AUTHORITY_CONNECTIONS",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) authority_connections: u32,

    /// Replicas of Redis that must confirm a change before it counts as made, so that a failover does not forget
    /// it. Without so many, commands fail
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_AUTHORITY_REPLICAS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=8)
    )]
    pub(crate) authority_replicas: u32,

    /// What becomes of requests while no server answers and no tokens are left here
    #[arg(long, value_name = "RULE", env = "TIDEGATE_AUTHORITY_FAILURE", default_value = "local")]
    pub(crate) authority_failure: Failure,

    /// Fail /healthcheck while no server answers
    #[arg(long, env = "TIDEGATE_AUTHORITY_HEALTH")]
    pub(crate) authority_health: bool,

    /// Start of every key. Sidecars with the same servers and prefix share their counters
    #[arg(
        long,
        value_name = "TEXT",
        env = "TIDEGATE_AUTHORITY_PREFIX",
        default_value = "tidegate:",
        value_parser = prefix
    )]
    pub(crate) authority_prefix: String,

    /// Keys expire up to so much later than their counters, so that not all expire at once
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_AUTHORITY_EXPIRY_JITTER",
        default_value = "10s",
        value_parser = times::jitter
    )]
    pub(crate) authority_expiry_jitter: Duration,

    #[command(flatten)]
    pub(crate) per_second: PerSecondOptions,
}

/// Servers of their own for limits per second. What has no flag here is as for the others.
#[derive(Debug, Args)]
pub(crate) struct PerSecondOptions {
    /// Other servers for the counters of limits per second
    #[arg(
        long = "authority-per-second",
        id = PER_SECOND,
        value_name = "URL",
        env = "TIDEGATE_AUTHORITY_PER_SECOND",
        hide_env_values = true
    )]
    pub(crate) authority: Option<String>,

    /// User at these servers
    #[arg(
        long = "authority-per-second-user",
        id = "authority_per_second_user",
        value_name = "NAME",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_USER"
    )]
    pub(crate) user: Option<String>,

    /// File with the password at these servers, or TIDEGATE_AUTHORITY_PER_SECOND_PASSWORD
    #[arg(
        long = "authority-per-second-password-file",
        id = "authority_per_second_password_file",
        value_name = "PATH",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_PASSWORD_FILE",
        conflicts_with = "authority_per_second_password"
    )]
    pub(crate) password_file: Option<PathBuf>,

    #[arg(
        long = "authority-per-second-password",
        id = "authority_per_second_password",
        hide = true,
        env = "TIDEGATE_AUTHORITY_PER_SECOND_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) password: Option<String>,

    /// User at the Sentinels of these servers
    #[arg(
        long = "authority-per-second-sentinel-user",
        id = "authority_per_second_sentinel_user",
        value_name = "NAME",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_SENTINEL_USER"
    )]
    pub(crate) sentinel_user: Option<String>,

    /// File with the password at these Sentinels, or TIDEGATE_AUTHORITY_PER_SECOND_SENTINEL_PASSWORD
    #[arg(
        long = "authority-per-second-sentinel-password-file",
        id = "authority_per_second_sentinel_password_file",
        value_name = "PATH",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_SENTINEL_PASSWORD_FILE",
        conflicts_with = "authority_per_second_sentinel_password"
    )]
    pub(crate) sentinel_password_file: Option<PathBuf>,

    #[arg(
        long = "authority-per-second-sentinel-password",
        id = "authority_per_second_sentinel_password",
        hide = true,
        env = "TIDEGATE_AUTHORITY_PER_SECOND_SENTINEL_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) sentinel_password: Option<String>,

    /// How long the answer of these servers may take
    #[arg(
        long = "authority-per-second-timeout",
        id = "authority_per_second_timeout",
        value_name = "TIME",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_TIMEOUT",
        value_parser = times::answer
    )]
    pub(crate) timeout: Option<Duration>,

    /// Connections of a process to one of these servers
    #[arg(
        long = "authority-per-second-connections",
        id = "authority_per_second_connections",
        value_name = "N",
        env = "TIDEGATE_AUTHORITY_PER_SECOND_CONNECTIONS",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) connections: Option<u32>,
}

/// A prefix goes into every key, and a brace would put all keys of a cluster into one slot.
fn prefix(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 100;
    let is_good = |char: char| char.is_ascii_graphic() && !"{}".contains(char);
    if text.is_empty() || text.len() > BYTES_MAX || !text.chars().all(is_good) {
        return Err(format!(
            "expected 1 to {BYTES_MAX} characters of ASCII without spaces and braces, such as tidegate:"
        ));
    }
    Ok(text.to_owned())
}
