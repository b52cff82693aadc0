//! The options of a load, checked so that a run cannot fail because of them later.

use crate::keys::Distribution;
use crate::template::PLACEHOLDER;
use anyhow::bail;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The requests of a load, and their pace.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// The service.
    pub target: Target,
    /// The protocol.
    pub protocol: Protocol,
    /// Requests per second over all connections; of pairs, pairs per second.
    pub rate: f64,
    /// Exponential gaps between requests instead of equal ones.
    pub poisson: bool,
    /// Sends as fast as requests are answered, instead of at a rate.
    pub closed: bool,
    /// How long to measure.
    pub duration: Duration,
    /// Load before the measurement.
    pub warmup: Duration,
    /// Connections of all threads together.
    pub connections: u32,
    /// Concurrent requests on a connection; by default 100 of RLS, 1 of FRS.
    pub streams: Option<u32>,
    /// Requests that may wait for a stream; further ones are not sent.
    pub queue: u32,
    /// How long after a request was due its answer counts.
    pub timeout: Duration,
    /// Threads that send, each with its share of rate and connections.
    pub threads: u32,
    /// The longest sleep while any request is due.
    pub slice: Duration,
    /// RLS: the domain.
    pub domain: String,
    /// RLS: the descriptors.
    pub descriptors: Vec<Descriptor>,
    /// RLS: hits per request; absent means 1.
    pub hits: Option<u32>,
    /// FRS: the business.
    pub business: String,
    /// FRS: the command.
    pub command: FrsCommand,
    /// The number of keys; the first is 0.
    pub keys: u64,
    /// The distribution of requests over keys.
    pub distribution: Distribution,
    /// The seed of keys and of exponential gaps.
    pub seed: u64,
}

impl Default for LoadOptions {
    /// The options of a command line without arguments.
    fn default() -> LoadOptions {
        let entries = vec![("key".to_owned(), PLACEHOLDER.to_owned())];
        LoadOptions {
            target: Target::Tcp("127.0.0.1:8081".to_owned()),
            protocol: Protocol::Rls,
            rate: 1_000.0,
            poisson: false,
            closed: false,
            duration: Duration::from_secs(10),
            warmup: Duration::ZERO,
            connections: 2,
            streams: None,
            queue: 10_000,
            timeout: Duration::from_secs(1),
            threads: 1,
            slice: Duration::from_micros(100),
            domain: "load".to_owned(),
            descriptors: vec![Descriptor { entries }],
            hits: None,
            business: "1".to_owned(),
            command: FrsCommand::Pair,
            keys: 1_000,
            distribution: Distribution::Uniform,
            seed: 1,
        }
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

    /// Checks them all.
    ///
    /// # Errors
    /// When options are out of range or contradict each other. The error names the option to change.
    pub fn check(&self) -> anyhow::Result<()> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Envoy's rate limit service, v3, over gRPC
    Rls,
    /// The Frequency Restrict Service over HTTP/1.1
    Frs,
}

/// A command of FRS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
