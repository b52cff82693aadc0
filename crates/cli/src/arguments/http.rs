//! Flags of the HTTP endpoint: its console and its TLS.

use super::OnOff;
use clap::Args;
use std::path::PathBuf;
use tidegate_servers::TlsFiles;

/// The HTTP endpoint.
#[derive(Debug, Args)]
pub(crate) struct HttpOptions {
    /// Whether the console is at --http, and what it asks and changes
    #[arg(long, value_name = "WHEN", env = "TIDEGATE_CONSOLE", default_value = "on")]
    pub(crate) console: OnOff,

    /// Certificate chain (PEM) for --http, whose TCP address then accepts TLS only
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_TLS_CERT", requires = "http_tls_key")]
    pub(crate) http_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "PATH", env = "TIDEGATE_HTTP_TLS_KEY", requires = "http_tls_cert")]
    pub(crate) http_tls_key: Option<PathBuf>,

    /// CA certificates (PEM); clients with a certificate from one of them read the console and /v1 without the token
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_HTTP_TLS_CLIENT_CA",
        requires = "http_tls_cert"
    )]
    pub(crate) http_tls_client_ca: Option<PathBuf>,

    /// Alternative name (DNS or URI) that such a certificate must have; any one of several
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_HTTP_TLS_CLIENT_NAME",
        value_delimiter = ',',
        requires = "http_tls_client_ca"
    )]
    pub(crate) http_tls_client_name: Vec<String>,
}

impl HttpOptions {
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let files = self.http_tls_cert.clone().zip(self.http_tls_key.clone());
        files.map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca: self.http_tls_client_ca.clone(),
            client_names: self.http_tls_client_name.clone(),
        })
    }
}
