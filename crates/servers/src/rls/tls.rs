//! TLS of the gRPC endpoint: its certificate and the accepted clients, as the files say now.
//!
//! The files are compared by content every [`CHECK_INTERVAL`] and on SIGHUP, so any way of changing them
//! works, including the links that Kubernetes moves. New connections use the new files. Files that are not
//! valid, such as a certificate whose key is not written yet, are logged once and change nothing.

mod client_verifier;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use client_verifier::ClientVerifier;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A chain of certificates has some KiB, a bundle of all public authorities less than one MiB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The files of TLS (PEM), and the names of accepted clients.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Certificates of the authorities that may sign client certificates.
    pub client_ca: Option<PathBuf>,
    /// Accepted alternative names of clients (DNS or URI). Empty accepts all names.
    pub client_names: Vec<String>,
}

#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

pub(super) struct Tls {
    files: TlsFiles,
    initial: Contents,
    current: ArcSwap<ServerConfig>,
    reload_requested: Notify,
}

impl Tls {
    /// None if no files are configured.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid.
    pub(super) fn open(files: Option<&TlsFiles>) -> anyhow::Result<Option<Tls>> {
        let Some(files) = files.cloned() else { return Ok(None) };
        let initial = files.read()?;
        let current = ArcSwap::from_pointee(files.config(&initial)?);
        Ok(Some(Tls { files, initial, current, reload_requested: Notify::new() }))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Requests a check of the files now.
    pub(super) fn reload(&self) {
        self.reload_requested.notify_one();
    }

    /// Applies changes of the files; never returns.
    pub(super) async fn watch_files(self: Arc<Self>) {
        let mut last_read = None;
        let mut logged_error = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.reload_requested.notified() => {}
            }
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else {
                continue;
            };
            let config = match read {
                Ok(contents) if contents == *last_read.as_ref().unwrap_or(&self.initial) => {
                    logged_error = None;
                    continue;
                }
                Ok(contents) => {
                    let config = self.files.config(&contents);
                    last_read = Some(contents);
                    config
                }
                Err(error) => Err(error),
            };
            match config {
                Ok(config) => {
                    self.current.store(Arc::new(config));
                    logged_error = None;
                    tracing::info!("new TLS certificates are in force");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if logged_error.as_ref() != Some(&error) {
                        tracing::error!(error, "the old TLS certificates stay in force");
                        logged_error = Some(error);
                    }
                }
            }
        }
    }
}

impl TlsFiles {
    fn read(&self) -> anyhow::Result<Contents> {
        Ok(Contents {
            cert: read("--tls-cert", &self.cert)?,
            key: read("--tls-key", &self.key)?,
            client_ca: match &self.client_ca {
                Some(path) => Some(read("--tls-client-ca", path)?),
                None => None,
            },
        })
    }

    fn config(&self, contents: &Contents) -> anyhow::Result<ServerConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = certificates("--tls-cert", &self.cert, &contents.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .with_context(|| format!("--tls-key {}: no private key in PEM", self.key.display()))?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(bytes)) => {
                builder.with_client_cert_verifier(self.client_verifier(path, bytes, &provider)?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).with_context(|| {
            let (cert, key) = (self.cert.display(), self.key.display());
            format!("--tls-cert {cert} and --tls-key {key} do not go together")
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn client_verifier(
        &self,
        path: &Path,
        bytes: &[u8],
        provider: &Arc<CryptoProvider>,
    ) -> anyhow::Result<Arc<ClientVerifier>> {
        let authorities = certificates("--tls-client-ca", path, bytes)?;
        let client_verifier =
            ClientVerifier::new(authorities, self.client_names.clone(), provider.clone());
        client_verifier.map(Arc::new).with_context(|| format!("--tls-client-ca {}", path.display()))
    }
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || format!("{flag} {}", path.display());
    let metadata = std::fs::metadata(path).with_context(name)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        bail!("{}: expected a file of at most {FILE_BYTES_MAX} bytes", name());
    }
    std::fs::read(path).with_context(name)
}

fn certificates(
    flag: &str,
    path: &Path,
    bytes: &[u8],
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let name = || format!("{flag} {}", path.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.with_context(name)?;
    if found.is_empty() {
        bail!("{}: no certificate in PEM", name());
    }
    Ok(found)
}
