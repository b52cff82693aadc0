//! The command line. Flags win over environment variables; what neither sets has a default.

use crate::address::Address;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate serve --limits limits.yaml --data-dir /var/lib/tidegate
  tidegate serve --limits limits.d --data-dir data --grpc unix:/run/tidegate.sock --http off";

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
}

/// SIGTERM and SIGINT drain and stop; SIGHUP reads the limits again.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Limits file (YAML, one domain), or a directory of them
    #[arg(long, value_name = "PATH", env = "TIDEGATE_LIMITS")]
    pub(crate) limits: PathBuf,

    /// Directory of the counters; made if missing, used by one process at a time
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA_DIR")]
    pub(crate) data_dir: PathBuf,

    /// Counters to make room for, 128 bytes each; an existing data directory keeps its own size
    #[arg(long, value_name = "N", env = "TIDEGATE_CAPACITY", default_value_t = 1 << 20,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) capacity: u64,

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
