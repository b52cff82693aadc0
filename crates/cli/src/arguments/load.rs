//! The arguments of `tidegate load`.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_load::{Descriptor, Distribution, FrsCommand, LoadOptions, Output, Protocol, Target};

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

#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct LoadArguments {
    /// The service: host:port or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    target: Target,

    /// The protocol: Envoy's rate limit service over gRPC, or FRS over HTTP/1.1
    #[arg(long, default_value = "rls", value_parser = protocol())]
    protocol: Protocol,

    /// Requests per second over all connections (with --command pair: pairs per second)
    #[arg(long, value_name = "N", default_value_t = 1_000.0)]
    rate: f64,

    /// Exponential gaps between requests instead of equal ones
    #[arg(long)]
    poisson: bool,

    /// Closed loop: send as fast as requests are answered, to measure capacity; excludes --rate
    #[arg(long, conflicts_with_all = ["rate", "poisson"])]
    closed: bool,

    /// How long to measure: 10s, 500ms, 2m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,

    /// Load before the measurement
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    warmup: Duration,

    /// Connections of all threads together
    #[arg(long, value_name = "C", default_value_t = 2)]
    connections: u32,

    /// Concurrent requests on a connection (rls: streams; frs: pipelined)
    /// [default: rls 100, frs 1]
    #[arg(long, value_name = "M")]
    streams: Option<u32>,

    /// Requests that may wait for a stream; further ones are not sent
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    queue: u32,

    /// How long after a request was due its answer counts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    timeout: Duration,

    /// Threads that send, each with its share of rate and connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,

    /// Requests are sent in slices of this length, which is the longest sleep while any is due
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = duration)]
    slice: Duration,

    /// rls: the domain
    #[arg(long, default_value = "load")]
    domain: String,

    /// rls: a descriptor, K=V,K2=V2, repeatable; {key} is replaced by the number of a key
    #[arg(long = "descriptor", value_name = "ENTRIES", default_value = "key={key}")]
    descriptors: Vec<Descriptor>,

    /// rls: hits per request [default: absent, which means 1]
    #[arg(long, value_name = "N")]
    hits: Option<u32>,

    /// frs: the business
    #[arg(long, value_name = "ID", default_value = "1")]
    business: String,

    /// frs: the command; pair is Query, then Update if that is allowed
    #[arg(long, default_value = "pair", value_parser = command())]
    command: FrsCommand,

    /// The number of keys; the first is 0
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    keys: u64,

    /// The distribution of requests over keys: uniform, zipf, zipf:S, single, sequential, or hot:SHARE:KEYS for a share of
    /// them on the first keys and the others on each other key in turn
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    distribution: Distribution,

    /// The seed of keys and of exponential gaps
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Write the report as JSON to a file, or to standard output (-) instead of the table
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,

    /// Draw latency by percentile as SVG
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,

    /// No progress line
    #[arg(long)]
    no_progress: bool,
}

impl LoadArguments {
    pub(crate) fn split(self) -> (LoadOptions, Output) {
        let output = Output { json: self.json, svg: self.svg, shows_progress: !self.no_progress };
        let options = LoadOptions {
            target: self.target,
            protocol: self.protocol,
            rate: self.rate,
            poisson: self.poisson,
            closed: self.closed,
            duration: self.duration,
            warmup: self.warmup,
            connections: self.connections,
            streams: self.streams,
            queue: self.queue,
            timeout: self.timeout,
            threads: self.threads,
            slice: self.slice,
            domain: self.domain,
            descriptors: self.descriptors,
            hits: self.hits,
            business: self.business,
            command: self.command,
            keys: self.keys,
            distribution: self.distribution,
            seed: self.seed,
        };
        (options, output)
    }
}

fn protocol() -> impl TypedValueParser<Value = Protocol> {
    PossibleValuesParser::new([
        PossibleValue::new("rls").help("Envoy's rate limit service, v3, over gRPC"),
        PossibleValue::new("frs").help("The Frequency Restrict Service over HTTP/1.1"),
    ])
    .map(|name| if name == "frs" { Protocol::Frs } else { Protocol::Rls })
}

fn command() -> impl TypedValueParser<Value = FrsCommand> {
    PossibleValuesParser::new([
        PossibleValue::new("query").help("Ask whether a key may be used, without counting"),
        PossibleValue::new("update").help("Count a use"),
        PossibleValue::new("acquire").help("Ask and count in one step"),
        PossibleValue::new("pair").help("Query, then Update if that is allowed"),
    ])
    .map(|name| match name.as_str() {
        "query" => FrsCommand::Query,
        "update" => FrsCommand::Update,
        "acquire" => FrsCommand::Acquire,
        _ => FrsCommand::Pair,
    })
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
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: LoadArguments,
    }

    fn parse(arguments: &[&str]) -> Result<LoadOptions, String> {
        let arguments = ["tidegate load"].iter().chain(arguments);
        let parsed = Alone::try_parse_from(arguments).map_err(|error| error.to_string())?;
        let (options, _) = parsed.arguments.split();
        options.check().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn the_command_is_consistent() {
        Alone::command().debug_assert();
        let options = parse(&[]).unwrap();
        assert_eq!(options, LoadOptions::default());
        assert_eq!(options.streams_per_connection(), 100);
        assert_eq!(parse(&["--protocol", "frs"]).unwrap().streams_per_connection(), 1);
        for (name, command) in [
            ("query", FrsCommand::Query),
            ("update", FrsCommand::Update),
            ("acquire", FrsCommand::Acquire),
        ] {
            assert_eq!(parse(&["--command", name]).unwrap().command, command);
        }
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
