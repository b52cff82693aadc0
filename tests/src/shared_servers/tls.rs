//! Certificates of a server of shared counters.

use crate::certificates::{Authority, ip};
use std::path::{Path, PathBuf};

/// The files of a server that speaks TLS, and of its clients: all certificates are of one authority.
#[derive(Debug)]
pub struct ServerTls {
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// A certificate for 127.0.0.1, which clients may show as well.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Whether clients must show a certificate.
    clients: &'static str,
}

impl ServerTls {
    /// Writes certificates into `dir`. Clients need none.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn new(dir: &Path) -> anyhow::Result<ServerTls> {
        let authority = Authority::new()?;
        let identity = authority.sign(ip("127.0.0.1")?)?;
        let path = |name: &str| dir.join(format!("server-{name}.pem"));
        let (ca, cert, key) = (path("ca"), path("cert"), path("key"));
        std::fs::write(&ca, &authority.pem)?;
        std::fs::write(&cert, &identity.cert)?;
        std::fs::write(&key, &identity.key)?;
        Ok(ServerTls { ca, cert, key, clients: "no" })
    }

    /// Each client must show a certificate of the authority.
    #[must_use]
    pub fn with_client_certificates(self) -> ServerTls {
        ServerTls { clients: "yes", ..self }
    }

    pub(super) fn server_flags(&self) -> impl Iterator<Item = String> {
        let paths = [&self.cert, &self.key, &self.ca].map(|path| path.display().to_string());
        let names = ["--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file"];
        let files = names.into_iter().zip(paths).flat_map(|(name, path)| [name.to_owned(), path]);
        files.chain(["--tls-auth-clients".to_owned(), self.clients.to_owned()])
    }

    pub(super) fn client_flags(&self) -> impl Iterator<Item = String> {
        let paths = [&self.cert, &self.key, &self.ca].map(|path| path.display().to_string());
        let names = ["--cert", "--key", "--cacert"];
        let files = names.into_iter().zip(paths).flat_map(|(name, path)| [name.to_owned(), path]);
        std::iter::once("--tls".to_owned()).chain(files)
    }
}
