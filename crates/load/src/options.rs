//! The options of `tidegate load`, checked so that a run cannot fail because of them later.

use crate::keys::Distribution;
use crate::template::PLACEHOLDER;
use anyhow::bail;
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const HELP: &str = "\
Requests are due on a schedule that does not wait for answers, and latency counts from when a request
was due: a server that falls behind shows as slow and gets no fewer requests. Every request is in
exactly one class: allowed, denied, shed (RESOURCE_EXHAUSTED, 503), refused, broken, timed out or not sent.

Examples:
  tidegate load --rate 5000 --duration 30s --domain shop --descriptor 'user={key}' --keys 10000
  tidegate load --target 127.0.0.1:8081 --rate 20000 --poisson --distribution zipf:1.1 --warmup 2s \\
      --domain shop --descriptor 'app=web,user={key}' --descriptor 'path=/login' --svg latency.svg
  tidegate load --closed --connections 8 --streams 50 --duration 10s --json - | jq .achieved_rate
  tidegate load --protocol frs --target unix:/run/frs.sock --business 7 --command pair --rate 20000

Exit status: 0 if every request is accounted for, in whatever class; 1 if the load could not run or
the classes do not add up; 2 for a mistake on the command line.";

/// `tidegate load`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct LoadOptions {
    /// The service: host:port or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    pub target: Target,

    /// The protocol: Envoy's rate limit service over gRPC, or FRS over HTTP/1.1
    #[arg(long, value_enum, default_value_t = Protocol::Rls)]
    pub protocol: Protocol,

    /// Requests per second over all connections (with --command pair: pairs per second)
    #[arg(long, value_name = "N", default_value_t = 1_000.0)]
    pub rate: f64,

    /// Exponential gaps between requests instead of equal ones
    #[arg(long)]
    pub poisson: bool,

    /// Closed loop: send as fast as requests are answered, to measure capacity; excludes --rate
    #[arg(long, conflicts_with_all = ["rate", "poisson"])]
    pub closed: bool,

    /// How long to measure: 10s, 500ms, 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub duration: Duration,

    /// Load before the measurement
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub warmup: Duration,

    /// Connections of all threads together
    #[arg(long, value_name = "C", default_value_t = 2)]
    pub connections: u32,

    /// Concurrent requests on a connection (rls: streams; frs: pipelined)
    /// [default: rls 100, frs 1]
    #[arg(long, value_name = "M")]
    pub streams: Option<u32>,

    /// Requests that may wait for a stream; further ones are not sent
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub queue: u32,

    /// How long after a request was due its answer counts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub timeout: Duration,

    /// Threads that send, each with its share of rate and connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,

    /// Requests are sent in slices of this length, which is the longest sleep while any is due
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = duration)]
    pub slice: Duration,

    /// rls: the domain
    #[arg(long, default_value = "load")]
    pub domain: String,

    /// rls: a descriptor, K=V,K2=V2, repeatable; {key} is replaced by the number of a key
    #[arg(long = "descriptor", value_name = "ENTRIES", default_value = "key={key}")]
    pub descriptors: Vec<Descriptor>,

    /// rls: hits per request [default: absent, which means 1]
    #[arg(long, value_name = "N")]
    pub hits: Option<u32>,

    /// frs: the business
    #[arg(long, value_name = "ID", default_value = "1")]
    pub business: String,

    /// frs: the command; pair is Query, then Update if that is allowed
    #[arg(long, value_enum, default_value_t = FrsCommand::Pair)]
    pub command: FrsCommand,

    /// The number of keys; the first is 0
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub keys: u64,

    /// The distribution of requests over keys: uniform, zipf, zipf:S, single or sequential
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    pub distribution: Distribution,

    /// The seed of keys and of exponential gaps
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Write the report as JSON to a file, or to standard output (-) instead of the table
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,

    /// Draw latency by percentile as SVG
    #[arg(long, value_name = "PATH")]
    pub svg: Option<PathBuf>,

    /// No progress line
    #[arg(long)]
    pub no_progress: bool,
}

#[derive(Debug, Parser)]
struct Alone {
    #[command(flatten)]
    options: LoadOptions,
}

impl Default for LoadOptions {
    /// The options of a command line without arguments.
    fn default() -> LoadOptions {
        Alone::parse_from(["tidegate load"]).options
    }
}

impl LoadOptions {
    /// Concurrent requests on a connection.
    #[must_use]
    pub fn streams_per_connection(&self) -> u32 {
        self.streams.unwrap_or(match self.protocol {
            Protocol::Rls => 100,
            Protocol::Frs => 1,
        })
    }

    /// # Errors
    /// When options are out of range or contradict each other. The error names the option to change.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if !(self.rate > 0.0 && self.rate <= RATE_MAX) {
            bail!("--rate {} must be above 0 and at most {RATE_MAX}", self.rate);
        }
        if self.duration.is_zero() {
            bail!("--duration must be above 0");
        }
        if self.timeout.is_zero() {
            bail!("--timeout must be above 0");
        }
        for (flag, number, most) in [
            ("threads", self.threads, 1_024),
            ("connections", self.connections, 65_536),
            ("streams", self.streams_per_connection(), 1_000_000),
        ] {
            if number == 0 || number > most {
                bail!("--{flag} {number} must be from 1 to {most}");
            }
        }
        if self.connections < self.threads {
            bail!(
                "--connections {} must be at least --threads {}, so that each thread has one",
                self.connections,
                self.threads
            );
        }
        if self.keys == 0 {
            bail!("--keys must be above 0");
        }
        Ok(())
    }
}

/// Far beyond what one machine can send. Keeps gaps above a nanosecond.
const RATE_MAX: f64 = 1e8;

/// The address of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// host:port
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("`unix:` must be followed by a path".to_owned());
            }
            return Ok(Target::Unix(path.into()));
        }
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            return Err(format!("`{text}` must be host:port or unix:PATH"));
        }
        Ok(Target::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => formatter.write_str(address),
            Target::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// The protocol of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Envoy's rate limit service, v3, over gRPC
    Rls,
    /// The Frequency Restrict Service over HTTP/1.1
    Frs,
}

/// A command of FRS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrsCommand {
    /// Ask whether a key may be used, without counting
    Query,
    /// Count a use
    Update,
    /// Ask and count in one step
    Acquire,
    /// Query, then Update if that is allowed
    Pair,
}

/// An RLS descriptor. Its keys and values may contain `{key}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Keys and values.
    pub entries: Vec<(String, String)>,
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Descriptor, String> {
        let entry = |entry: &str| match entry.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(format!("`{entry}` must be KEY=VALUE, as in app=web,user={PLACEHOLDER}")),
        };
        Ok(Descriptor { entries: text.split(',').map(entry).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.entries.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(formatter, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// Longer times are probably mistakes. Sums of nanoseconds must fit 64 bits.
const DURATION_MAX: Duration = Duration::from_secs(7 * 86_400);

/// A time such as `10s` or `1.5ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` must be a number with us, ms, s, m or h, as in 500ms");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
    if duration > DURATION_MAX {
        return Err(format!("`{text}` is longer than {} days", DURATION_MAX.as_secs() / 86_400));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &[&str]) -> Result<LoadOptions, String> {
        let arguments = ["tidegate load"].iter().chain(arguments);
        let options = Alone::try_parse_from(arguments).map_err(|error| error.to_string())?.options;
        options.check().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn the_command_is_consistent() {
        Alone::command().debug_assert();
        let options = parse(&[]).unwrap();
        assert_eq!(options.target, Target::Tcp("127.0.0.1:8081".to_owned()));
        assert_eq!(options.streams_per_connection(), 100);
        assert_eq!(parse(&["--protocol", "frs"]).unwrap().streams_per_connection(), 1);
    }

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, micros) in [("1us", 1), ("1.5ms", 1_500), ("2s", 2_000_000), ("1m", 60_000_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "5", "s", "5 parsecs", "-1s", "nans", "infs", "1e9h", "8000h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_and_descriptors_are_read_as_they_are_written() {
        for text in ["localhost:80", "[::1]:8081", "unix:/run/a b.sock"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "localhost", "localhost:0", "unix:", "a:b"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        for text in ["a=b", "a=b,c={key}", "a=,b=c=d"] {
            assert_eq!(text.parse::<Descriptor>().unwrap().to_string(), text);
        }
        for text in ["", "a", "=b", "a=b,"] {
            assert!(text.parse::<Descriptor>().is_err(), "{text}");
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused_by_name() {
        for (arguments, named) in [
            (&["--rate", "0"][..], "--rate 0"),
            (&["--rate", "nan"], "--rate NaN"),
            (&["--duration", "0s"], "--duration"),
            (&["--timeout", "0s"], "--timeout"),
            (&["--threads", "0"], "--threads 0"),
            (&["--streams", "0"], "--streams 0"),
            (&["--threads", "3", "--connections", "2"], "--connections 2"),
            (&["--keys", "0"], "--keys"),
            (&["--closed", "--rate", "5"], "--closed"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(named), "{arguments:?}: {error}");
        }
    }
}
