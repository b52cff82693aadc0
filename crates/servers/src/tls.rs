//! TLS of an endpoint: its certificate and the accepted clients, as the files say now; and the handshake.
//!
//! The files are compared by content every [`CHECK_INTERVAL`] and on SIGHUP, so any way of changing them
//! works, including the links that Kubernetes moves. New connections use the new files. Files that are not
//! valid, such as a certificate whose key is not written yet, are logged once and change nothing.

mod client_verifier;

use crate::accept::Socket;
use anyhow::Context;
use arc_swap::ArcSwap;
pub(crate) use client_verifier::Certificates;
use client_verifier::ClientVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CertificateError, ServerConfig};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_authority::{Observer, OncePerSecond};
use tidegate_tls::pem::{certificates, private_key, read};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// An honest peer completes the handshake within a few round trips.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How often a failed handshake is logged: scanners and probes make many.
const FAILURE_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// What is spoken over TLS, and whether every client must have a certificate if there are authorities for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// All must.
    Grpc,
    /// A probe of health need not; pages with values of requests look at it.
    Http,
}

impl Protocol {
    /// The beginning of the flags that name the files.
    fn flags(self) -> &'static str {
        match self {
            Protocol::Grpc => "--tls",
            Protocol::Http => "--http-tls",
        }
    }

    fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Grpc => b"h2",
            Protocol::Http => b"http/1.1",
        }
    }

    fn certificates(self) -> Certificates {
        match self {
            Protocol::Grpc => Certificates::Required,
            Protocol::Http => Certificates::Offered,
        }
    }
}

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

/// Why a handshake failed, as metrics name it.
fn failure_cause(error: &io::Error) -> &'static str {
    let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>())
    else {
        return "closed";
    };
    match error {
        rustls::Error::NoCertificatesPresented => "no_certificate",
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => "expired",
            CertificateError::UnknownIssuer => "unknown_issuer",
            CertificateError::NotValidForName => "name",
            _ => "bad_certificate",
        },
        // The client refused this side.
        rustls::Error::AlertReceived(_) => "alert",
        rustls::Error::PeerIncompatible(_) => "incompatible",
        rustls::Error::InvalidMessage(_)
        | rustls::Error::InappropriateMessage { .. }
        | rustls::Error::InappropriateHandshakeMessage { .. } => "no_tls",
        _ => "other",
    }
}

#[derive(PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// TLS of an endpoint.
pub struct Tls {
    protocol: Protocol,
    files: TlsFiles,
    initial: Contents,
    current: ArcSwap<ServerConfig>,
    reload_requested: Notify,
    /// When a failed handshake was logged last.
    failures: Mutex<OncePerSecond>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// None if no files are configured.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid.
    pub fn open(files: Option<&TlsFiles>, protocol: Protocol) -> anyhow::Result<Option<Tls>> {
        let Some(files) = files.cloned() else { return Ok(None) };
        let initial = files.read(protocol.flags())?;
        let current = ArcSwap::from_pointee(files.config(&initial, protocol)?);
        let (reload_requested, failures) = (Notify::new(), Mutex::default());
        Ok(Some(Tls { protocol, files, initial, current, reload_requested, failures }))
    }

    /// The stream of a client that completes its handshake. A failure is counted and logged.
    pub(crate) async fn accept(
        &self,
        socket: Socket,
        observer: &dyn Observer,
    ) -> Option<TlsStream<Socket>> {
        let peer = socket.peer();
        let acceptor = TlsAcceptor::from(self.current.load_full());
        match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                observer.tls_failed(failure_cause(&error));
                self.log_failure(peer, &error.to_string());
            }
            Err(_) => {
                observer.tls_failed("timeout");
                self.log_failure(peer, &format!("it took longer than {HANDSHAKE_MAX:?}"));
            }
        }
        None
    }

    fn log_failure(&self, peer: Option<SocketAddr>, cause: &str) {
        let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let mut logged = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_due_each(FAILURE_LOGGED_EVERY) {
            tracing::warn!(
                peer,
                cause,
                "a TLS handshake failed; the next ones of this minute are logged at level debug"
            );
        } else {
            tracing::debug!(peer, cause, "a TLS handshake failed");
        }
    }

    /// Requests a check of the files now.
    pub fn reload(&self) {
        self.reload_requested.notify_one();
    }

    /// Applies changes of the files; never returns.
    pub async fn watch_files(self: Arc<Self>) {
        let mut last_read = None;
        let mut logged_error = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.reload_requested.notified() => {}
            }
            let (files, flags) = (self.files.clone(), self.protocol.flags());
            let Ok(read) = tokio::task::spawn_blocking(move || files.read(flags)).await else {
                continue;
            };
            let config = match read {
                Ok(contents) if contents == *last_read.as_ref().unwrap_or(&self.initial) => {
                    logged_error = None;
                    continue;
                }
                Ok(contents) => {
                    let config = self.files.config(&contents, self.protocol);
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
    /// `flags` is the beginning of the flags that name the files.
    fn read(&self, flags: &str) -> anyhow::Result<Contents> {
        Ok(Contents {
            cert: read(&named(flags, "cert", &self.cert), &self.cert)?,
            key: read(&named(flags, "key", &self.key), &self.key)?,
            client_ca: match &self.client_ca {
                Some(path) => Some(read(&named(flags, "client-ca", path), path)?),
                None => None,
            },
        })
    }

    fn config(&self, contents: &Contents, protocol: Protocol) -> anyhow::Result<ServerConfig> {
        let flags = protocol.flags();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = certificates(&named(flags, "cert", &self.cert), &contents.cert)?;
        let key = private_key(&named(flags, "key", &self.key), &contents.key)?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(bytes)) => {
                let verifier = self.client_verifier((path, bytes), protocol, &provider)?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).with_context(|| {
            let (cert, key) = (self.cert.display(), self.key.display());
            format!("{flags}-cert {cert} and {flags}-key {key} do not go together")
        })?;
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        Ok(config)
    }

    fn client_verifier(
        &self,
        (path, bytes): (&Path, &[u8]),
        protocol: Protocol,
        provider: &Arc<CryptoProvider>,
    ) -> anyhow::Result<Arc<ClientVerifier>> {
        let name = named(protocol.flags(), "client-ca", path);
        let authorities = certificates(&name, bytes)?;
        let names = self.client_names.clone();
        let verifier =
            ClientVerifier::new(authorities, names, protocol.certificates(), provider.clone());
        verifier.map(Arc::new).with_context(|| name)
    }
}

/// A file in an error: its flag and its path.
fn named(flags: &str, flag: &str, path: &Path) -> String {
    format!("{flags}-{flag} {}", path.display())
}
