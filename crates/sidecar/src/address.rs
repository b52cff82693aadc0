//! Where a front door listens: `host:port`, `unix:PATH`, or `off`.

use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// A door's address, as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `host:port`
    Tcp(String),
    /// `unix:PATH`
    Unix(PathBuf),
    /// `off`
    Off,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Address::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: wants a path, such as unix:/run/tidegate.sock".to_owned());
            }
            return Ok(Address::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(text.to_owned()))
            }
            _ => Err("expected host:port, unix:PATH or off".to_owned()),
        }
    }
}

/// A door that is open.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes a Unix socket's file when its door closes.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Opens `address`; none when it is off.
    pub(crate) async fn open(address: &Address) -> anyhow::Result<Option<Listener>> {
        match address {
            Address::Off => Ok(None),
            Address::Tcp(text) => {
                let listener = TcpListener::bind(text).await;
                Ok(Some(Listener::Tcp(
                    listener.with_context(|| format!("cannot listen on {text}"))?,
                )))
            }
            Address::Unix(path) => {
                remove_dead_socket(path).await?;
                let listener = UnixListener::bind(path)
                    .with_context(|| format!("cannot listen on unix:{}", path.display()))?;
                Ok(Some(Listener::Unix(listener, SocketFile(path.clone()))))
            }
        }
    }

    /// The address as others reach it: with the real port where 0 was asked for.
    pub(crate) fn describe(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
            }
            Listener::Unix(_, file) => format!("unix:{}", file.0.display()),
        }
    }
}

/// A process that was killed leaves its socket behind; one that still answers is another matter.
async fn remove_dead_socket(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        bail!("cannot listen on unix:{}: the path exists and is no socket", path.display());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        // Whoever answers is alive, and so may be who cannot be asked.
        Ok(_) => bail!("cannot listen on unix:{}: another process does", path.display()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot listen on unix:{}", path.display()));
        }
    }
    std::fs::remove_file(path)
        .with_context(|| format!("cannot remove the dead socket {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused_with_what_was_expected() {
        let tcp = |text: &str| Ok(Address::Tcp(text.to_owned()));
        let wanted = || Err("expected host:port, unix:PATH or off".to_owned());
        let table = [
            ("127.0.0.1:8081", tcp("127.0.0.1:8081")),
            ("[::1]:0", tcp("[::1]:0")),
            ("localhost:1", tcp("localhost:1")),
            ("unix:/run/x.sock", Ok(Address::Unix("/run/x.sock".into()))),
            ("off", Ok(Address::Off)),
            ("unix:", Err("unix: wants a path, such as unix:/run/tidegate.sock".to_owned())),
            ("8081", wanted()),
            (":8081", wanted()),
            ("localhost:70000", wanted()),
            ("", wanted()),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse::<Address>(), expected, "for {text:?}");
        }
    }
}
