//! TLS of the gRPC door: the certificate and whom it takes as a client, as the files say now.
//!
//! The files are compared every [`LOOK_EVERY`] and on SIGHUP, by contents: so it does not matter how they
//! change, as with the links that Kubernetes moves. New connections get what is new; one that makes no
//! sense, as with a certificate whose key is not written yet, is logged once and changes nothing.

mod clients;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use clients::Clients;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A chain of certificates has some KiB, a bundle of all public authorities less than one MiB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The files of TLS (PEM), and the names of clients.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Certificates; one of them must have signed each client's.
    pub client_ca: Option<PathBuf>,
    /// Alternative names (DNS or URI) of clients; one of them, or any client if there is none.
    pub client_names: Vec<String>,
}

/// What is in them.
#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The door's TLS.
pub(super) struct Tls {
    files: TlsFiles,
    /// What is in force was made of.
    first: Contents,
    current: ArcSwap<ServerConfig>,
    asked: Notify,
}

impl Tls {
    /// None without files.
    ///
    /// # Errors
    /// When a file cannot be read, or makes no sense.
    pub(super) fn open(files: Option<&TlsFiles>) -> anyhow::Result<Option<Tls>> {
        let Some(files) = files.cloned() else { return Ok(None) };
        let first = files.read()?;
        let current = ArcSwap::from_pointee(files.config(&first)?);
        Ok(Some(Tls { files, first, current, asked: Notify::new() }))
    }

    /// For one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Has the files looked at now.
    pub(super) fn look(&self) {
        self.asked.notify_one();
    }

    /// Puts what changes in force, for ever.
    pub(super) async fn follow_files(self: Arc<Self>) {
        let mut seen = None;
        let mut complaint = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.asked.notified() => {}
            }
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else {
                continue;
            };
            let taken = match read {
                Ok(contents) if contents == *seen.as_ref().unwrap_or(&self.first) => {
                    complaint = None;
                    continue;
                }
                Ok(contents) => {
                    let config = self.files.config(&contents);
                    seen = Some(contents);
                    config
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(config) => {
                    self.current.store(Arc::new(config));
                    complaint = None;
                    tracing::info!("new TLS certificates are in force");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if complaint.as_ref() != Some(&error) {
                        tracing::error!(error, "the old TLS certificates stay in force");
                        complaint = Some(error);
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
                builder.with_client_cert_verifier(self.clients(path, bytes, &provider)?)
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

    fn clients(
        &self,
        path: &Path,
        bytes: &[u8],
        provider: &Arc<CryptoProvider>,
    ) -> anyhow::Result<Arc<Clients>> {
        let authorities = certificates("--tls-client-ca", path, bytes)?;
        let clients = Clients::new(authorities, self.client_names.clone(), provider.clone());
        clients.map(Arc::new).with_context(|| format!("--tls-client-ca {}", path.display()))
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
