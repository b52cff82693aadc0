//! The command line: clap types only. [`crate::defaults`] merges it with the other sources of options.

pub(crate) mod authority;
pub(crate) mod cold;
mod connections;
mod frs;
mod http;
mod load;
mod replies;
mod sidecar;
mod statistics;
pub(crate) mod store;
mod times;
mod top;
mod traces;
mod warm;
mod workers;
mod xds;

pub(crate) use authority::{AuthorityOptions, url};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
pub(crate) use connections::ConnectionOptions;
pub(crate) use frs::FrsOptions;
pub(crate) use http::HttpOptions;
pub(crate) use load::LoadArguments;
pub(crate) use replies::ReplyOptions;
pub(crate) use sidecar::{SidecarAddress, SidecarOptions};
pub(crate) use statistics::{StatisticsOptions, StatsOptions};
use std::path::PathBuf;
use store::StoreCommand;
use tidegate_core::DeniedHits;
use tidegate_data_dir::NodeCounts;
use tidegate_limits::{Defaults, SameDomain};
use tidegate_servers::Address;
use times::OrOff;
pub(crate) use top::{TailOptions, TopOptions, TopOrder};
pub(crate) use traces::TracesOptions;
pub(crate) use workers::WorkerOptions;
pub(crate) use xds::{LimitsSource, XdsOptions};

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate explain --limits limits.yaml --data-dir /var/lib/tidegate client=203.0.113.9
  tidegate translate envoy.yaml
  tidegate serve --limits limits.yaml --data-dir /var/lib/tidegate
  tidegate serve --limits limits.d --data-dir data --grpc unix:/run/tidegate.sock --http off
  tidegate serve --limits xds://gateway:18002 --data-dir off
  tidegate store inspect /var/lib/tidegate
  tidegate load --rate 5000 --duration 10s --domain shop --descriptor 'user={key}'";

const CHECK_USAGE: &str = "\
tidegate check [OPTIONS] <PATH>
       tidegate check [OPTIONS] --diff <OLD> <NEW>";

const CHECK_HELP: &str = "\
Exit code: 0 without a mistake, 1 with one (with --strict also for a warning), 2 for a mistake on the
command line. With --diff as diff(1): 0 if nothing changes for any caller, 1 if something changes, 2 if
either side has a mistake. --diff compares the meaning of limits, not their spelling, and reports which
live counts are kept. JSON: {ok, errors, warnings, domains}, each mistake as {file, line, column,
message}; with --diff {same, changes}, each change as {path, change, what, means}.

Examples:
  tidegate check limits.yaml
  tidegate check --strict --json limits.d | jq .errors
  tidegate check --usage-based llm/user limits.yaml
  tidegate check --diff /etc/tidegate/limits.d limits.d
  tidegate check --json --diff old.yaml limits.yaml | jq .same
  git show HEAD:limits.yaml > old.yaml; tidegate check --diff old.yaml limits.yaml";

const STATS_HELP: &str = "\
Limits files declare statistics. The database may be in use, and its user need only read.

Examples:
  tidegate stats --data-dir /var/lib/tidegate
  tidegate stats app-calls app=web --last 30d --data-dir /var/lib/tidegate
  tidegate stats app-calls --by app --top 10 --order denied --last 1d
  tidegate stats app-calls --by app --last 7d --step 1h --csv";

const TOP_HELP: &str = "\
Refreshes until Ctrl-C in a terminal, else prints once. Rates are hits a second, and decay over 10 seconds.

Examples:
  tidegate top
  tidegate top --order denied --domain shop
  tidegate top --rule none
  tidegate top --http unix:/run/tidegate-http.sock --once
  tidegate top --order denied --rows 100 --json | jq .descriptors";

const TAIL_HELP: &str = "\
Runs until Ctrl-C. Of each process at most 200 decisions a second that allow and 200 others are shown; what the filter
decides in Envoy comes with its reports, after five seconds at most.

Examples:
  tidegate tail --denied
  tidegate tail --rule shop/user --match user=17
  tidegate tail --rule none
  tidegate tail --json | jq .verdict";

const EXPLAIN_HELP: &str = "\
Give the entries in the order in which the filter sends them; a descriptor meets a limit only where
both end. Nothing is counted: a data directory is only read, served or not, and servers are only asked. Without
either, counters are taken as new. A request may have several descriptors: --and adds one. A request takes from all limits
that it meets or from none.

Exit code: 0 for any answer, 1 if the limits have a mistake or the data directory cannot be read, 2 for
a mistake on the command line.

Examples:
  tidegate explain --limits limits.yaml client=203.0.113.9
  tidegate explain --limits limits.yaml --data-dir data --hits 5 app=web user=17
  tidegate explain --limits limits.d --domain shop user=17 --and path=/login --and app=web,user=17
  tidegate explain --limits limits.yaml --data-dir data client=a --json | jq .verdict
  tidegate explain --limits limits.yaml --authority redis://redis:6379 --data-dir data client=a";

const TRANSLATE_HELP: &str = "\
Finds Envoy's rate limit filter (envoy.filters.http.ratelimit), and the virtual hosts and routes with
rate_limits, wherever they stand: alone, in a bootstrap or a listener, in a dump (/config_dump), or in an
EnvoyFilter of Istio. Names may be in camelCase or snake_case. Routes that Envoy gets from elsewhere (RDS)
go into a FILE of their own.

The plugin configuration goes to standard output as JSON, which is YAML, too. Standard error has a line for
each thing without an equivalent: its place, and what to do instead. An entry of which a part has none is
left out. A line with `note:` needs no change.

Exit code: 0 if all was translated, 1 if something has no equivalent, 2 if the input cannot be read.

Examples:
  tidegate translate envoy.yaml > plugin.json
  tidegate translate --strict listener.yaml routes.yaml
  tidegate translate --domain shop --cluster tidegate routes.yaml
  curl -s localhost:9901/config_dump | tidegate translate -";

const COMPLETIONS_HELP: &str = "\
Examples:
  tidegate completions bash > /usr/share/bash-completion/completions/tidegate
  tidegate completions zsh > /usr/share/zsh/site-functions/_tidegate
  tidegate completions fish > /usr/share/fish/vendor_completions.d/tidegate.fish";

/// Rate limiting for Envoy: the sidecar that owns the counters.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version = tidegate_process::version(), after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Envoy's rate limit service (RLS v3)
    Serve(Box<ServeOptions>),
    /// Show every mistake in a limits file or directory, or the effect of a change on callers
    #[command(after_help = CHECK_HELP, override_usage = CHECK_USAGE)]
    Check(CheckOptions),
    /// Show which limits a descriptor meets and why, and their decisions now
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainOptions),
    /// Translate the configuration of Envoy's own rate limit filter into that of Tidegate's
    #[command(after_help = TRANSLATE_HELP)]
    Translate(TranslateOptions),
    /// Show statistics: hits by values of descriptors, over time
    #[command(after_help = STATS_HELP)]
    Stats(StatsOptions),
    /// Show who is limited now: the hottest and the most denied descriptors of a sidecar
    #[command(after_help = TOP_HELP)]
    Top(TopOptions),
    /// Show single decisions of a sidecar as they are made: a sample of them
    #[command(after_help = TAIL_HELP)]
    Tail(TailOptions),
    /// Inspect or edit a data directory, served or not
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Load a rate limit service at a fixed rate, and account for every request
    Load(Box<LoadArguments>),
    /// Print a script that completes these commands in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages of all commands into a directory
    Man {
        /// The directory, which must be there
        dir: PathBuf,
    },
}

/// SIGTERM and SIGINT drain and stop; SIGHUP reloads the limits.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Limits file (YAML, one domain, or the map.xml of an FRS), or a directory of them; or a server of xDS,
    /// xds://HOST:PORT, or xdss://HOST:PORT with TLS. May be given several times, with at most one path
    #[arg(long, value_name = "PATH", env = "TIDEGATE_LIMITS", required = true)]
    pub(crate) limits: Vec<LimitsSource>,

    #[command(flatten)]
    pub(crate) xds: XdsOptions,

    #[command(flatten)]
    pub(crate) store: StoreOptions,

    #[command(flatten)]
    pub(crate) authority: AuthorityOptions,

    #[command(flatten)]
    pub(crate) cold: cold::ColdOptions,

    #[command(flatten)]
    pub(crate) statistics: StatisticsOptions,

    /// Address for gRPC: host:port, unix:PATH or off; may be given several times
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_GRPC",
        default_value = "127.0.0.1:8081",
        value_delimiter = ','
    )]
    pub(crate) grpc: Vec<Address>,

    /// Whether /v1/top knows who is limited now
    #[arg(long, value_name = "WHEN", env = "TIDEGATE_TOP", default_value = "on")]
    pub(crate) top: OnOff,

    /// Address for the console, /healthcheck, /metrics, /rlconfig, /v1 and /json: host:port, unix:PATH or off
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub(crate) http: Address,

    #[command(flatten)]
    pub(crate) http_options: HttpOptions,

    /// Address for metrics under the names of envoyproxy/ratelimit, beside those of /metrics, and for
    /// /healthcheck: host:port, unix:PATH or off
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_PROMETHEUS", default_value = "off")]
    pub(crate) prometheus: Address,

    /// Path of the metrics at --prometheus
    #[arg(long, value_name = "PATH", env = "TIDEGATE_PROMETHEUS_PATH", default_value = "/metrics")]
    pub(crate) prometheus_path: String,

    /// Permissions of the files of Unix sockets, such as 0660; by default what the umask leaves of 0777
    #[arg(long, value_name = "MODE", env = "TIDEGATE_SOCKET_MODE", value_parser = socket_mode)]
    pub(crate) socket_mode: Option<u32>,

    #[command(flatten)]
    pub(crate) traces: TracesOptions,

    #[command(flatten)]
    pub(crate) frs: FrsOptions,

    #[command(flatten)]
    pub(crate) workers: WorkerOptions,

    #[command(flatten)]
    pub(crate) connections: ConnectionOptions,

    #[command(flatten)]
    pub(crate) replies: ReplyOptions,

    /// When to reload the limits, in addition to SIGHUP
    #[arg(long, value_name = "WHEN", env = "TIDEGATE_WATCH", default_value = "on")]
    pub(crate) watch: Watch,

    /// Allow several files to define one domain, and merge their rules
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS")]
    pub(crate) merge_domains: bool,

    /// Deny nothing; count and report as if limits were enforced
    #[arg(long, env = "TIDEGATE_SHADOW_MODE")]
    pub(crate) shadow_mode: bool,

    /// Treat every rule as if it had quota_mode: deny only when all rules that a request meets are over
    #[arg(long, env = "TIDEGATE_QUOTA_MODE")]
    pub(crate) quota_mode: bool,

    /// Count the hits of denied requests, too, where neither a limit nor its file sets count_denied. Debits after
    /// the fact need it
    #[arg(long, env = "TIDEGATE_COUNT_DENIED")]
    pub(crate) count_denied: bool,

    /// Send the limits that a request met and the metadata of its rules to Envoy as dynamic metadata
    #[arg(long, env = "TIDEGATE_DYNAMIC_METADATA")]
    pub(crate) dynamic_metadata: bool,

    /// How long a proxy may hold leased tokens: 10ms to 60s; off disables leases
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_LEASE_TTL",
        default_value = "2s",
        value_parser = times::lease_ttl
    )]
    pub(crate) lease_ttl: OrOff,

    /// What to log, to standard error: error, warn, info, debug, or directives such as info,h2=debug
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG", default_value = "info")]
    pub(crate) log: String,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// The data directory. An existing one keeps the geometry that it was created with.
#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// Directory of the counters; created if missing. Several processes may share it. off keeps the counters in the
    /// memory of one process, which they end with
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA_DIR")]
    pub(crate) data_dir: PathBuf,

    /// Directory of shared memory (tmpfs) for the counters while the data directory is served
    #[arg(long, value_name = "DIR", env = "TIDEGATE_MEMORY_DIR", default_value = "/dev/shm")]
    pub(crate) memory_dir: PathBuf,

    /// Number of counters, 73 bytes each at the default load. The default is 1048576, or less if that exceeds
    /// a third of the memory limit (cgroup) or half of the free shared memory
    #[arg(long, value_name = "N", env = "TIDEGATE_CAPACITY")]
    pub(crate) capacity: Option<u64>,

    /// Share of the nodes that these counters use, 0.05 to 0.95
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_LOAD", default_value_t = 0.8)]
    pub(crate) load: f64,

    /// Files x key-nodes x chain, such as 4x65536x35, instead of capacity and load
    #[arg(long, value_name = "NxMxL", env = "TIDEGATE_GEOMETRY")]
    pub(crate) geometry: Option<NodeCounts>,

    /// Number of counters of algorithms with large states, 363 bytes each; 0 for none
    #[arg(long, value_name = "N", env = "TIDEGATE_WIDE_CAPACITY", default_value_t = 1 << 12)]
    pub(crate) wide_capacity: u64,

    /// What happens to a new counter when all its nodes are live
    #[arg(long, value_name = "POLICY", env = "TIDEGATE_EVICTION", default_value = "refuse")]
    pub(crate) eviction: EvictionPolicy,

    /// Interval of snapshots to disk, which matter only after a loss of power: 500ms, 5s, 1m or off
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_SYNC_INTERVAL",
        default_value = "5s",
        value_parser = times::sync_interval
    )]
    pub(crate) sync_interval: OrOff,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum EvictionPolicy {
    /// Refuse its request, so that overload_mode decides. No limit is ever loosened
    Refuse,
    /// Evict the counter that expires soonest, whose limit then starts anew. A flood of new keys can evict
    /// short-lived counters, including the sender's own
    #[value(alias = "evict-oldest")]
    EvictSoonestExpiry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watch {
    /// On a change event of the system, and every two seconds in case an event was missed
    On,
    /// Every two seconds, for file systems where change events do harm
    Poll,
    /// Never
    Off,
}

/// Defaults for limits, from the flags of a command.
pub(crate) fn defaults(is_merged: bool, is_counted: bool) -> Defaults {
    let same_domain = if is_merged { SameDomain::Merge } else { SameDomain::Refuse };
    Defaults { same_domain, denied: denied(is_counted), self_update: None }
}

pub(crate) fn denied(is_counted: bool) -> DeniedHits {
    if is_counted { DeniedHits::Count } else { DeniedHits::Ignore }
}

/// How a command other than `serve` reads limits.
#[derive(Debug, Args)]
pub(crate) struct ReadOptions {
    /// Allow several files to define one domain, and merge their rules
    #[arg(long, env = "TIDEGATE_MERGE_DOMAINS")]
    merge_domains: bool,

    /// Read the limits as a service with --count-denied
    #[arg(long, env = "TIDEGATE_COUNT_DENIED")]
    count_denied: bool,
}

impl ReadOptions {
    /// Defaults for limits.
    pub(crate) fn defaults(&self) -> Defaults {
        defaults(self.merge_domains, self.count_denied)
    }
}

/// Permissions in octal digits.
fn socket_mode(text: &str) -> Result<u32, String> {
    let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| "expected octal digits up to 0777".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Limits file (YAML, one domain, or the map.xml of an FRS), a directory of them, or the srv.xml of an FRS; - is
    /// standard input
    #[arg(required_unless_present = "diff")]
    pub(crate) path: Option<PathBuf>,

    /// Show the effect on callers when the limits at NEW replace those at OLD
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["path", "strict"])]
    pub(crate) diff: Vec<PathBuf>,

    /// A domain, or the path of a rule such as llm/user, whose limits are debited after the fact: warn of each
    /// limit there that does not count denied requests. May be given several times
    #[arg(long, value_name = "PATH", conflicts_with = "diff")]
    pub(crate) usage_based: Vec<String>,

    /// Treat warnings as mistakes
    #[arg(long)]
    pub(crate) strict: bool,

    #[command(flatten)]
    pub(crate) read: ReadOptions,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// Entries of the descriptor, outermost first
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) entries: Vec<String>,

    /// Another descriptor of the same request; may be given several times. `\,` is a comma in a value
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) and: Vec<String>,

    /// Limits file (YAML, one domain, or the map.xml of an FRS), or a directory of them
    #[arg(long, value_name = "PATH", env = "TIDEGATE_LIMITS")]
    pub(crate) limits: PathBuf,

    /// Domain of the request; optional if the limits have only one
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,

    /// Data directory with the live counters. With --authority, that of a sidecar, to show the tokens that it holds
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Hits of the request; 0 asks without taking
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) hits: u64,

    #[command(flatten)]
    pub(crate) read: ReadOptions,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) servers: authority::ServerOptions,

    #[command(flatten)]
    pub(crate) cold: cold::ColdPlaces,
}

#[derive(Debug, Args)]
pub(crate) struct TranslateOptions {
    /// Files of Envoy's configuration, YAML or JSON; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Name of the filter, if the files have several
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,

    /// Domain, instead of the filter's
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,

    /// Envoy cluster of the sidecar, instead of that of the filter's service
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// Print nothing if anything has no equivalent
    #[arg(long)]
    pub(crate) strict: bool,
}
