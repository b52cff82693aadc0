//! The command line. Flags win over environment variables; what neither sets has a default.

use crate::address::Address;
use crate::rules::duration;
use crate::store_commands::StoreCommand;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate serve --limits limits.yaml --data-dir /var/lib/tidegate
  tidegate serve --limits limits.d --data-dir data --grpc unix:/run/tidegate.sock --http off
  tidegate store inspect /var/lib/tidegate";

/// Rate limiting for Envoy: the sidecar that owns the counters.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Envoy's rate limit service (RLS v3)
    Serve(ServeOptions),
    /// Show every mistake in a limits file or directory; exit 1 if there is one
    Check(CheckOptions),
    /// Look into a data directory, or change it by hand, while sidecars run and while none does
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
}

/// SIGTERM and SIGINT drain and stop; SIGHUP reads the limits again.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Limits file (YAML, one domain), or a directory of them
    #[arg(long, value_name = "PATH", env = "TIDEGATE_LIMITS")]
    pub(crate) limits: PathBuf,

    #[command(flatten)]
    pub(crate) store: StoreOptions,

    /// Where to serve gRPC: host:port, unix:PATH or off; may be given several times
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_GRPC",
        default_value = "127.0.0.1:8081",
        value_delimiter = ','
    )]
    pub(crate) grpc: Vec<Address>,

    /// Where to serve /healthcheck and /metrics: host:port, unix:PATH or off
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub(crate) http: Address,

    /// What to log, to standard error: error, warn, info, debug, or directives such as info,h2=debug
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG", default_value = "info")]
    pub(crate) log: String,

    /// How to log
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// The data directory. An existing one keeps the geometry that it was made with.
#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// Directory of the counters; made if missing. Several processes may share it
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA_DIR")]
    pub(crate) data_dir: PathBuf,

    /// Counters to make room for, 73 bytes each at the default load
    #[arg(long, value_name = "N", env = "TIDEGATE_CAPACITY", default_value_t = 1 << 20)]
    pub(crate) capacity: u64,

    /// Share of the nodes that these counters take up, 0.05 to 0.95
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_LOAD", default_value_t = 0.8)]
    pub(crate) load: f64,

    /// Files x key-nodes x chain, such as 4x65536x35, instead of capacity and load
    #[arg(long, value_name = "NxMxL", env = "TIDEGATE_GEOMETRY")]
    pub(crate) geometry: Option<ByCount>,

    /// Counters of the algorithms with large states to make room for, 840 bytes each; 0 for none
    #[arg(long, value_name = "N", env = "TIDEGATE_WIDE_CAPACITY", default_value_t = 1 << 12)]
    pub(crate) wide_capacity: u64,

    /// What a new counter gets where all nodes are live
    #[arg(long, value_name = "POLICY", env = "TIDEGATE_EVICTION", default_value = "refuse")]
    pub(crate) eviction: EvictionPolicy,

    /// How often changes are written to disk, against loss of power only: 500ms, 5s, 1m or off
    #[arg(long, value_name = "TIME", env = "TIDEGATE_SYNC_INTERVAL", default_value = "5s")]
    pub(crate) sync_interval: SyncInterval,
}

/// A geometry by count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByCount {
    pub(crate) files: u32,
    pub(crate) key_nodes: u64,
    pub(crate) chain: u32,
}

impl FromStr for ByCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<&str> = text.split('x').collect();
        let [files, key_nodes, chain] = numbers[..] else {
            return Err("expected files x key-nodes x chain, such as 4x65536x35".to_owned());
        };
        let bad = |what: &str, number: &str| format!("{what} {number:?} is not a number");
        Ok(ByCount {
            files: files.parse().map_err(|_| bad("number of files", files))?,
            key_nodes: key_nodes.parse().map_err(|_| bad("number of key-nodes", key_nodes))?,
            chain: chain.parse().map_err(|_| bad("chain length", chain))?,
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EvictionPolicy {
    /// Its request is refused; failure_mode decides. No limit is ever loosened
    Refuse,
    /// The node that would have expired first; the limit of its key starts anew
    EvictOldest,
}

/// How often to sync; `None` is off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncInterval(pub(crate) Option<Duration>);

impl FromStr for SyncInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(SyncInterval(None));
        }
        let period = duration::parse(text).filter(|period| period.as_nanos() >= 10_000_000);
        let period = period.ok_or("expected a time of at least 10ms, such as 500ms, 5s, or off")?;
        Ok(SyncInterval(Some(Duration::from_nanos(period.as_nanos()))))
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Limits file (YAML, one domain), or a directory of them
    pub(crate) path: PathBuf,
}
