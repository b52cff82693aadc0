//! The files of options: passwords and certificates.

use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A chain of certificates has some KiB, a bundle of all public authorities less than one MiB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Where systems have the certificates of public authorities.
const SYSTEM_CA: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The contents of a file that a flag names.
pub(in crate::arguments) fn contents(path: &Path, flag: &str) -> anyhow::Result<Vec<u8>> {
    let what = || format!("{flag} {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(what)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(what)?;
    ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "{}: more than 4 MiB", what());
    Ok(bytes)
}

/// The password in a file, without the end of its line.
pub(in crate::arguments) fn password(path: &Path, flag: &str) -> anyhow::Result<String> {
    let what = || format!("{flag} {}", path.display());
    let text = String::from_utf8(contents(path, flag)?);
    let text = text.ok().with_context(|| format!("{}: a password in UTF-8 is expected", what()))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let password = line.strip_suffix('\r').unwrap_or(line);
    ensure!(!password.is_empty(), "{}: it is empty", what());
    ensure!(!password.contains('\n'), "{}: one line with the password is expected", what());
    Ok(password.to_owned())
}

/// The certificates of authorities: those of a file, or those that the system trusts.
pub(in crate::arguments) fn certificates(ca: Option<&Path>, flag: &str) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = ca {
        return contents(path, flag);
    }
    let named = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
    let mut paths = named.map(PathBuf::from).into_iter().chain(SYSTEM_CA.map(PathBuf::from));
    match paths.find(|path| path.is_file()) {
        Some(path) => contents(&path, "the system's certificates,"),
        None => {
            bail!("this system has no certificates of authorities; name a file by {flag}")
        }
    }
}
