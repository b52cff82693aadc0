//! What a client trusts, and the certificate that it shows.

use crate::pem::{certificates, private_key, read};
use anyhow::{Context, ensure};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The authorities that the system trusts, by distribution.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Files in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates of the authorities that may sign the server's; without them, those of the system.
    pub authorities: Option<PathBuf>,
    /// The certificate and the key of this client.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl ClientFiles {
    /// What the files say now, for connections that speak `protocol` (its name in ALPN). `setting` is what names the
    /// authorities where the system has none.
    ///
    /// # Errors
    /// If a file is missing or makes no sense; the error names it.
    pub fn config(&self, protocol: &[u8], setting: &str) -> anyhow::Result<ClientConfig> {
        let system =
            || SYSTEM_AUTHORITIES.map(PathBuf::from).into_iter().find(|path| path.exists());
        let authorities = self.authorities.clone().or_else(system);
        let authorities = authorities
            .with_context(|| format!("this system has no list of authorities; set {setting}"))?;
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(chain(&authorities)?);
        ensure!(added > 0, "{}: no certificate of an authority", authorities.display());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let name = key.display().to_string();
                let private_key = private_key(&name, &read(&name, key)?)?;
                builder.with_client_auth_cert(chain(cert)?, private_key).with_context(|| {
                    format!("{} and {} do not go together", cert.display(), key.display())
                })?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

fn chain(path: &Path) -> anyhow::Result<Vec<rustls_pki_types::CertificateDer<'static>>> {
    let name = path.display().to_string();
    certificates(&name, &read(&name, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A directory with `a.crt`, `a.key`, `b.crt`, `b.key`, an empty file and a large one.
    fn files() -> TempDir {
        let dir = TempDir::new().unwrap();
        for name in ["a", "b"] {
            let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            std::fs::write(dir.path().join(format!("{name}.crt")), made.cert.pem()).unwrap();
            let key = made.signing_key.serialize_pem();
            std::fs::write(dir.path().join(format!("{name}.key")), key).unwrap();
        }
        std::fs::write(dir.path().join("empty"), "").unwrap();
        std::fs::write(dir.path().join("large"), vec![b'a'; 4 * 1024 * 1024 + 1]).unwrap();
        dir
    }

    fn check(dir: &TempDir, ca: &str, client: Option<(&str, &str)>, expected: Option<&str>) {
        let path = |name: &str| dir.path().join(name);
        let files = ClientFiles {
            authorities: Some(path(ca)),
            client: client.map(|(cert, key)| (path(cert), path(key))),
        };
        let error = files.config(b"h2", "--ca").map(|config| {
            assert_eq!(config.alpn_protocols, [b"h2".to_vec()]);
        });
        let error = error.err().map(|error| format!("{error:#}"));
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) => {
                let error = error.replace(&format!("{}/", dir.path().display()), "");
                assert!(error.starts_with(expected), "{error}, expected {expected}");
            }
            _ => panic!("{ca}, {client:?}: {error:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn files_are_good_or_the_error_names_the_bad_one() {
        let dir = files();
        check(&dir, "a.crt", None, None);
        check(&dir, "a.crt", Some(("b.crt", "b.key")), None);
        check(&dir, "empty", None, Some("empty: no certificate in PEM"));
        check(&dir, "a.key", None, Some("a.key: no certificate in PEM"));
        check(&dir, "none", None, Some("none: No such file"));
        check(&dir, "large", None, Some("large: expected a file of at most 4194304 bytes"));
        check(&dir, "", None, Some(": expected a file of at most"));
        check(&dir, "a.crt", Some(("b.crt", "b.crt")), Some("b.crt: no private key in PEM"));
        let mixed = Some(("b.crt", "a.key"));
        check(&dir, "a.crt", mixed, Some("b.crt and a.key do not go together"));
    }
}
