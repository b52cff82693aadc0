//! Flags for limits from a server of the discovery protocol.

use super::times;
use clap::Args;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tidegate_feeds::{
    BackoffSettings, MESSAGE_BYTES_MAX, ServerAddress, Start, TlsSettings, XdsSettings,
};
use tidegate_tls::ClientFiles;

/// Where limits come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LimitsSource {
    Path(PathBuf),
    Server(ServerAddress),
}

impl FromStr for LimitsSource {
    type Err = String;

    fn from_str(text: &str) -> Result<LimitsSource, String> {
        match text.split_once("://") {
            Some(_) => text.parse().map(LimitsSource::Server),
            None => Ok(LimitsSource::Path(text.into())),
        }
    }
}

/// Limits from a server of the discovery protocol (xDS).
#[derive(Debug, Args)]
pub(crate) struct XdsOptions {
    /// Name of this client, by which a server of xDS chooses the limits
    #[arg(long, value_name = "NAME", env = "TIDEGATE_XDS_NODE_ID", default_value = "default")]
    pub(crate) xds_node_id: String,

    /// Metadata of this client: NAME=VALUE, separated by commas
    #[arg(long, value_name = "PAIRS", env = "TIDEGATE_XDS_NODE_METADATA", value_delimiter = ',')]
    pub(crate) xds_node_metadata: Vec<Pair<'='>>,

    /// Headers of the call to a server of xDS: NAME:VALUE, separated by commas
    #[arg(long, value_name = "PAIRS", env = "TIDEGATE_XDS_HEADERS", value_delimiter = ',')]
    pub(crate) xds_headers: Vec<Pair<':'>>,

    /// CA certificates (PEM) for servers of xdss://; without them, those of the system. Read again for each
    /// connection, as are the certificate and the key
    #[arg(long, value_name = "PATH", env = "TIDEGATE_XDS_CA")]
    pub(crate) xds_ca: Option<PathBuf>,

    /// Certificate chain (PEM) of this client
    #[arg(long, value_name = "PATH", env = "TIDEGATE_XDS_CERT", requires = "xds_key")]
    pub(crate) xds_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "PATH", env = "TIDEGATE_XDS_KEY", requires = "xds_cert")]
    pub(crate) xds_key: Option<PathBuf>,

    /// Name in the certificate of the server, if it is not the host
    #[arg(long, value_name = "NAME", env = "TIDEGATE_XDS_SERVER_NAME")]
    pub(crate) xds_server_name: Option<String>,

    /// Wait after a first failure of the stream; it doubles from failure to failure
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_XDS_BACKOFF_INITIAL",
        default_value = "250ms",
        value_parser = times::timeout
    )]
    pub(crate) xds_backoff_initial: Duration,

    /// Longest such wait
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_XDS_BACKOFF_MAX",
        default_value = "60s",
        value_parser = times::timeout
    )]
    pub(crate) xds_backoff_max: Duration,

    /// Share by which waits differ by chance, 0 to 1
    #[arg(
        long,
        value_name = "SHARE",
        env = "TIDEGATE_XDS_BACKOFF_JITTER",
        default_value = "0.5",
        value_parser = share
    )]
    pub(crate) xds_backoff_jitter: f64,

    /// Wait after a connection that failed, instead of the one that doubles
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_XDS_CONNECT_RETRY",
        value_parser = times::timeout
    )]
    pub(crate) xds_connect_retry: Option<Duration>,

    /// Largest message of a server, in bytes
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_XDS_MESSAGE_BYTES",
        default_value_t = MESSAGE_BYTES_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1024..=1 << 30)
    )]
    pub(crate) xds_message_bytes: u32,

    /// Serve before the limits of xDS have arrived. Until then, requests of unknown domains get an error, so that
    /// Envoy decides by its own mode for failures
    #[arg(long, env = "TIDEGATE_START_WITHOUT_LIMITS")]
    pub(crate) start_without_limits: bool,
}

impl XdsOptions {
    pub(crate) fn settings(&self, server: ServerAddress) -> XdsSettings {
        XdsSettings {
            server,
            tls: TlsSettings {
                files: ClientFiles {
                    authorities: self.xds_ca.clone(),
                    client: self.xds_cert.clone().zip(self.xds_key.clone()),
                },
                server_name: self.xds_server_name.clone(),
            },
            node_id: self.xds_node_id.clone(),
            node_metadata: self.xds_node_metadata.iter().map(Pair::parts).collect(),
            headers: self.xds_headers.iter().map(Pair::parts).collect(),
            backoff: BackoffSettings {
                initial: self.xds_backoff_initial,
                max: self.xds_backoff_max,
                jitter: self.xds_backoff_jitter,
                connect: self.xds_connect_retry,
            },
            message_bytes_max: self.xds_message_bytes as usize,
            start: match self.start_without_limits {
                true => Start::WithoutLimits,
                false => Start::WithLimits,
            },
        }
    }
}

/// Two texts with a separator between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair<const SEPARATOR: char>(String, String);

impl<const SEPARATOR: char> Pair<SEPARATOR> {
    fn parts(&self) -> (String, String) {
        (self.0.clone(), self.1.clone())
    }
}

impl<const SEPARATOR: char> FromStr for Pair<SEPARATOR> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(SEPARATOR) {
            Some((name, value)) if !name.is_empty() => {
                Ok(Pair(name.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(format!("expected NAME{SEPARATOR}VALUE")),
        }
    }
}

impl<const SEPARATOR: char> fmt::Display for Pair<SEPARATOR> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}{}", self.0, self.1)
    }
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share: Option<f64> = text.parse().ok();
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or("expected a share from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_at_a_path_or_at_a_server() {
        let path = |text: &str| Ok(LimitsSource::Path(text.into()));
        for text in ["limits.d", "/etc/limits.yaml", "xds", "a:b"] {
            assert_eq!(text.parse(), path(text));
        }
        let Ok(LimitsSource::Server(server)) = "xdss://gateway:18001".parse() else { panic!() };
        assert_eq!((server.port, server.is_tls), (18_001, true));
        for text in ["xds://gateway", "http://gateway:1"] {
            assert!(text.parse::<LimitsSource>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pair_has_a_name() {
        let pair: Pair<'='> = "a = b=c".parse().unwrap();
        assert_eq!(pair.parts(), ("a".to_owned(), "b=c".to_owned()));
        assert!("=b".parse::<Pair<'='>>().is_err() && "b".parse::<Pair<':'>>().is_err());
    }
}
