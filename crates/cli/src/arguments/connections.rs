//! Flags of gRPC connections: TLS, age and number.

use super::times::{self, OrOff};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_servers::{TlsFiles, rls};

/// gRPC connections.
#[derive(Debug, Args)]
pub(crate) struct ConnectionOptions {
    /// Certificate chain (PEM) for gRPC; its TCP addresses then accept TLS only
    #[arg(long, value_name = "PATH", env = "TIDEGATE_TLS_CERT", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "PATH", env = "TIDEGATE_TLS_KEY", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// CA certificates (PEM); each client needs a certificate from one of them
    #[arg(long, value_name = "PATH", env = "TIDEGATE_TLS_CLIENT_CA", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Alternative name (DNS or URI) that a client certificate must have; any one of several
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_TLS_CLIENT_NAME",
        value_delimiter = ',',
        requires = "tls_client_ca"
    )]
    pub(crate) tls_client_name: Vec<String>,

    /// Age at which a gRPC connection is closed and the client reconnects, or off
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_CONNECTION_AGE",
        default_value = "24h",
        value_parser = times::connection_age
    )]
    pub(crate) connection_age: OrOff,

    /// How long calls in progress may still take on a connection that is too old
    #[arg(
        long,
        value_name = "TIME",
        env = "TIDEGATE_CONNECTION_AGE_GRACE",
        default_value = "1h",
        value_parser = times::connection_age_grace
    )]
    pub(crate) connection_age_grace: Duration,

    /// gRPC connections of a process at once; one more closes the longest idle one, or is refused
    #[arg(
        long,
        value_name = "N",
        env = "TIDEGATE_CONNECTIONS_MAX",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) connections_max: u32,
}

impl ConnectionOptions {
    pub(crate) fn settings(&self) -> rls::Settings {
        let tls = self.tls_cert.clone().zip(self.tls_key.clone()).map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca: self.tls_client_ca.clone(),
            client_names: self.tls_client_name.clone(),
        });
        rls::Settings {
            tls,
            connection_age: self.connection_age.0,
            connection_age_grace: self.connection_age_grace,
            connections_max: self.connections_max as usize,
        }
    }
}
