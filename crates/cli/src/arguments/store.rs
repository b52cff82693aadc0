//! The command line of `tidegate store`.

use super::authority::ServerOptions;
use super::cold::ColdPlaces;
use super::sidecar::SidecarOptions;
use super::statistics::database_at;
use super::times;
use clap::{Args, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_statistics::database::Settings;
use tidegate_store::Class;

const KEYS_HELP: &str = "\
Keys:
  0123456789abcdef0123456789abcdef   the 32 hex digits that `tidegate store export` prints
  u64:17                             a number
  text:some string                   a string
  --limits PATH KEY=VALUE ...        the counter of the limit that a descriptor meets";

const GET_HELP: &str = "\
Examples:
  tidegate store get data 5f0c1a7be2d94c03a1b2c3d4e5f60718
  tidegate store get data --limits limits.yaml client=203.0.113.9
  tidegate store get data --limits limits.d --domain shop app=web user=17 --json
  tidegate store get data 5f0c1a7be2d94c03a1b2c3d4e5f60718 --names limits.yaml
  tidegate store get --authority redis://redis:6379 --limits limits.yaml client=203.0.113.9";

const SET_HELP: &str = "\
A running sidecar uses the new entry from its next request on. The meaning of the state words depends on
the algorithm: see its module in crates/core/src/algorithm.

Examples:
  tidegate store set data u64:17 --state 5 --expires-in 60s
  tidegate store set data text:blocked --state 1,0,0,0xff --expires-at 1800000000
  tidegate store set data u64:17 --class wide --state 1,2,3,4,5 --expires-in 1h";

const ERASE_HELP: &str = "\
A running sidecar counts that key anew from its next request on.

Examples:
  tidegate store erase data --limits limits.yaml client=203.0.113.9
  tidegate store erase data 5f0c1a7be2d94c03a1b2c3d4e5f60718
  tidegate store erase --authority redis://redis:6379 --limits limits.yaml client=203.0.113.9";

const SWEEP_HELP: &str = "\
A system clock that has stepped ahead is not trusted for half an hour, here and in running sidecars:
entries that expire by it alone are kept.

Examples:
  tidegate store sweep /var/lib/tidegate
  tidegate store sweep --trust-clock /var/lib/tidegate";

const VERIFY_HELP: &str = "\
Exit code: 0 without a flaw, 1 with one or without a cluster, 2 for a mistake on the command line.
The first process that opens the cluster while no other has it open drops flawed nodes. So to repair a
cluster, stop all sidecars that share it, and start one again.

Examples:
  tidegate store verify /var/lib/tidegate
  tidegate store verify /backup/tidegate --json | jq .flaws";

const MOVE_HELP: &str = "\
A sidecar that runs with --cold moves idle counters by itself. So --to cold needs the data directory while none runs, for
example before a backup of the database alone. --to hot may be used at any time, for example before a rush; what is
not used then becomes cold again.

Examples:
  tidegate store move data --to hot --all
  tidegate store move data --to hot --limits limits.yaml client=203.0.113.9
  tidegate store move data --to cold --all --cold postgres://tidegate:secret@db/counters";

const EXPORT_HELP: &str = "\
Columns: key, class, expiry (seconds since 1970), state words. With --json, one object a line; state
words are strings there, as many JSON parsers round 64-bit numbers. With --seed, the first line has the seed
of the keys, which `import` needs; keep such a file as secret as the data directory. Servers of shared counters are
read page by page, at most half of the time, and a key that changes meanwhile may come twice.

Examples:
  tidegate store export data > counters.tsv
  tidegate store export --seed --authority redis://redis:6379 > counters.tsv
  tidegate store export data --json | jq -r 'select(.class == \"wide\") | .key'";

const IMPORT_HELP: &str = "\
Needs what `tidegate store export --seed` has written: keys are hashes, so the place that they go to must have
the seed that they were hashed with. An empty place gets that seed: servers without counters under the prefix, or a
data directory that does not exist yet. Entries of keys that are there already stay, and are counted; --replace
replaces them. Nothing is changed unless every line can be read.

Stop the sidecars of both places first: what they hold or count meanwhile is not moved.

Examples:
  tidegate store export --seed data | tidegate store import --authority redis://redis:6379 -
  tidegate store export --seed --authority redis://redis:6379 > counters.tsv
  tidegate store import new-data counters.tsv";

/// The two forms of a command, which names a data directory or servers.
fn usage(command: &str, rest: &str) -> String {
    let form = |place: &str| format!("tidegate store {command} [OPTIONS] {place} {rest}");
    format!("{}\n       {}", form("<DIR>").trim_end(), form("--authority <URL>").trim_end())
}

/// Inspect or edit a data directory, served or not, or the counters that machines share.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Show geometry, use, busy regions, counts since the creation, and processes
    #[command(after_help = "Examples:\n  tidegate store inspect /var/lib/tidegate\n  \
                            tidegate store inspect data --json | jq .counts.refused")]
    Inspect(InspectOptions),
    /// Check every node, lock and writer slot; exit 1 on a flaw
    #[command(after_help = VERIFY_HELP)]
    Verify(CommonOptions),
    /// Show the entry of a key; exit 1 without one
    #[command(after_help = format!("{KEYS_HELP}\n\n{GET_HELP}"), override_usage = usage("get", "<KEY>..."))]
    Get(GetOptions),
    /// Create or replace the entry of a key
    #[command(after_help = format!("{KEYS_HELP}\n\n{SET_HELP}"), override_usage = usage("set", "<KEY>..."))]
    Set(SetOptions),
    /// Erase the entry of a key, if any; exit 0 in either case
    #[command(after_help = format!("{KEYS_HELP}\n\n{ERASE_HELP}"), override_usage = usage("erase", "<KEY>..."))]
    Erase(EraseOptions),
    /// Free the nodes of expired entries. Never needed: new keys reuse them
    #[command(after_help = SWEEP_HELP)]
    Sweep(SweepOptions),
    /// Erase all entries of both classes
    #[command(after_help = "Examples:\n  tidegate store reset data --yes")]
    Reset(ResetOptions),
    /// Move counters between the memory and the databases of cold counters
    #[command(after_help = MOVE_HELP)]
    Move(MoveOptions),
    /// Write every live entry to standard output, one a line
    #[command(after_help = EXPORT_HELP, override_usage = usage("export", ""))]
    Export(ExportOptions),
    /// Add the entries of an export
    #[command(after_help = IMPORT_HELP, override_usage = usage("import", "<FILE>"))]
    Import(ImportOptions),
}

/// A data directory, or servers; and what follows it on the command line.
#[derive(Debug, Args)]
pub(crate) struct PlaceOptions {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) servers: ServerOptions,

    #[command(flatten)]
    pub(crate) cold: ColdPlaces,
}

#[derive(Debug, Args)]
pub(crate) struct InspectOptions {
    #[command(flatten)]
    pub(crate) common: CommonOptions,

    #[command(flatten)]
    pub(crate) cold: ColdPlaces,
}

#[derive(Debug, Args)]
pub(crate) struct CommonOptions {
    /// Data directory, as in `tidegate serve --data-dir`
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SweepOptions {
    #[command(flatten)]
    pub(crate) common: CommonOptions,

    /// Trust the system clock, here and in running sidecars
    #[arg(long)]
    pub(crate) trust_clock: bool,
}

#[derive(Debug, PartialEq, Eq, Args)]
pub(crate) struct KeyOptions {
    /// Data directory, as in `tidegate serve --data-dir`, unless --authority names servers; then the key: 32 hex digits,
    /// u64:NUMBER or text:STRING; with --limits, KEY=VALUE for each entry
    #[arg(value_names = ["DIR", "KEY"], required = true, num_args = 1..)]
    words: Vec<String>,

    /// Limits file or directory, to find the counter of a descriptor
    #[arg(long, value_name = "PATH")]
    pub(crate) limits: Option<PathBuf>,

    /// Domain of the descriptor; optional if the limits have only one
    #[arg(long, value_name = "DOMAIN", requires = "limits")]
    pub(crate) domain: Option<String>,

    /// Name of the limit, or its number from 1, for a descriptor that meets several
    #[arg(long, value_name = "NAME", requires = "limits")]
    pub(crate) limit: Option<String>,
}

impl KeyOptions {
    /// The key, and the data directory unless there are servers.
    pub(crate) fn split(&self, servers: &ServerOptions) -> (Option<&Path>, &[String]) {
        match (&servers.authority, self.words.split_first()) {
            (None, Some((dir, key))) => (Some(Path::new(dir)), key),
            _ => (None, &self.words),
        }
    }
}

/// Where names of keys are known.
#[derive(Debug, Args)]
pub(crate) struct NameOptions {
    /// Tell the descriptors of keys by these limits, where a sidecar at --http knows them now, or the statistics
    #[arg(long, value_name = "LIMITS")]
    pub(crate) names: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) sidecar: SidecarOptions,

    /// Database of statistics, unless it is that in the data directory
    #[arg(long, value_name = "URL", env = "TIDEGATE_STATISTICS", hide_env_values = true)]
    pub(crate) statistics: Option<String>,
}

impl NameOptions {
    /// The database that is named, if one is.
    pub(crate) fn database(&self) -> anyhow::Result<Option<Settings>> {
        let url = self.statistics.as_deref().filter(|url| *url != "off");
        url.map(database_at).transpose()
    }
}

#[derive(Debug, Args)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    #[command(flatten)]
    pub(crate) names: NameOptions,

    /// Class of nodes to search [default: narrow, then wide]
    #[arg(long, value_name = "CLASS", conflicts_with = "limits")]
    pub(crate) class: Option<ClassName>,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,
}

#[derive(Debug, Args)]
pub(crate) struct EraseOptions {
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// Class of nodes to search [default: narrow, then wide]
    #[arg(long, value_name = "CLASS", conflicts_with = "limits")]
    pub(crate) class: Option<ClassName>,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,
}

#[derive(Debug, Args)]
pub(crate) struct SetOptions {
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// Class of nodes for the key
    #[arg(long, value_name = "CLASS", conflicts_with = "limits", default_value = "narrow")]
    pub(crate) class: ClassName,

    /// State words, decimal or 0x and hex; missing ones are 0
    #[arg(
        long,
        value_name = "WORD,...",
        value_delimiter = ',',
        required = true,
        value_parser = word
    )]
    pub(crate) state: Vec<u64>,

    #[command(flatten)]
    pub(crate) expiry: Expiry,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Expiry {
    /// Time until the entry expires: 500ms, 60s, 5m, 1h, 1d, 2w
    #[arg(long, value_name = "TIME", value_parser = times::period)]
    pub(crate) expires_in: Option<Duration>,

    /// When the entry expires, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    pub(crate) expires_at: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct ResetOptions {
    #[command(flatten)]
    pub(crate) common: CommonOptions,

    /// Confirm
    #[arg(long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) cold: ColdPlaces,
}

#[derive(Debug, Args)]
pub(crate) struct MoveOptions {
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// Where they move
    #[arg(long, value_name = "TIER")]
    pub(crate) to: Tier,

    /// Move all counters
    #[arg(long, conflicts_with = "limits")]
    pub(crate) all: bool,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) cold: ColdPlaces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// The memory
    Hot,
    /// The databases
    Cold,
}

#[derive(Debug, Args)]
pub(crate) struct ExportOptions {
    /// Data directory, as in `tidegate serve --data-dir`, unless --authority names servers
    #[arg(value_name = "DIR", required_unless_present = "authority", conflicts_with = "authority")]
    pub(crate) dir: Option<PathBuf>,

    /// Write the seed of the keys first, for `import`
    #[arg(long)]
    pub(crate) seed: bool,

    /// Print JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Include expired entries whose node is not reused yet
    #[arg(long)]
    pub(crate) expired: bool,

    #[command(flatten)]
    pub(crate) names: NameOptions,

    #[command(flatten)]
    pub(crate) servers: ServerOptions,

    #[command(flatten)]
    pub(crate) cold: ColdPlaces,
}

#[derive(Debug, Args)]
pub(crate) struct ImportOptions {
    /// Data directory, which is created if it is missing, unless --authority names servers; then the file, or - for
    /// standard input
    #[arg(value_names = ["DIR", "FILE"], required = true, num_args = 1..=2)]
    pub(crate) words: Vec<PathBuf>,

    /// Replace the entries of keys that are there already
    #[arg(long)]
    pub(crate) replace: bool,

    /// Counters that a new data directory has room for [default: 1048576]
    #[arg(long, value_name = "N", conflicts_with = "authority")]
    pub(crate) capacity: Option<u64>,

    /// Shared memory (tmpfs) of a new data directory, as in `tidegate serve --memory-dir`
    #[arg(long, value_name = "DIR", env = "TIDEGATE_MEMORY_DIR", default_value = "/dev/shm")]
    pub(crate) memory_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) servers: ServerOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassName {
    /// Four state words
    Narrow,
    /// As many as the data directory was created with
    Wide,
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Class {
        match name {
            ClassName::Narrow => Class::Narrow,
            ClassName::Wide => Class::Wide,
        }
    }
}

/// A word of a state, decimal or hexadecimal.
fn word(text: &str) -> Result<u64, &'static str> {
    let word = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    word.map_err(|_| "expected a 64-bit number, such as 17 or 0xff")
}
