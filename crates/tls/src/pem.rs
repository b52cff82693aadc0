//! Certificates and keys in PEM. Errors begin with a name that the caller gives: a path, or a flag and its path.

use anyhow::{Context, ensure};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// A bundle of all public authorities has less than one MiB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// # Errors
/// If the file cannot be read, or is none of 4 MiB at most.
pub fn read(name: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).with_context(|| name.to_owned())?;
    let is_small = metadata.is_file() && metadata.len() <= FILE_BYTES_MAX;
    ensure!(is_small, "{name}: expected a file of at most {FILE_BYTES_MAX} bytes");
    std::fs::read(path).with_context(|| name.to_owned())
}

/// # Errors
/// If there is no certificate in it, or a damaged one.
pub fn certificates(name: &str, bytes: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.with_context(|| name.to_owned())?;
    ensure!(!found.is_empty(), "{name}: no certificate in PEM");
    Ok(found)
}

/// # Errors
/// If there is no private key in it.
pub fn private_key(name: &str, bytes: &[u8]) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(bytes).with_context(|| format!("{name}: no private key in PEM"))
}
