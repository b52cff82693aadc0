//! The address of an endpoint: `host:port`, `:port` for all addresses of this machine, `unix:PATH`, or `off`.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::net::{TcpListener, UnixListener};

const EXPECTED: &str = "expected host:port, unix:PATH or off";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
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
                return Err("unix: needs a path, such as unix:/run/tidegate.sock".to_owned());
            }
            return Ok(Address::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            // A URL is none.
            Some((host, _)) if host.contains('/') => Err(EXPECTED.to_owned()),
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(text.to_owned()))
            }
            Some(("", port)) if port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(format!("0.0.0.0:{port}")))
            }
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Off => f.write_str("off"),
        }
    }
}

/// A listening socket. It does not own the file of a Unix socket; the process that created the file removes it.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Who can connect to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locality {
    /// Those whom the file of a Unix socket lets.
    Socket,
    /// Programs of this machine, browsers among them.
    Loopback,
    Anywhere,
}

impl Listener {
    /// Who can connect.
    pub fn locality(&self) -> Locality {
        let is_loopback = |listener: &TcpListener| {
            listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
        };
        match self {
            Listener::Unix(_) => Locality::Socket,
            Listener::Tcp(listener) if is_loopback(listener) => Locality::Loopback,
            Listener::Tcp(_) => Locality::Anywhere,
        }
    }

    /// Wraps a socket that listens at `address`. Must be called in a runtime.
    pub fn from_socket(socket: OwnedFd, address: &Address) -> io::Result<Listener> {
        match address {
            Address::Unix(_) => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(UnixListener::from_std(listener)?))
            }
            Address::Tcp(_) | Address::Off => {
                let listener = std::net::TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(TcpListener::from_std(listener)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_or_refused_with_the_expected_form() {
        let tcp = |text: &str| Ok(Address::Tcp(text.to_owned()));
        let expected_form = || Err("expected host:port, unix:PATH or off".to_owned());
        let table = [
            ("127.0.0.1:8081", tcp("127.0.0.1:8081")),
            ("[::1]:0", tcp("[::1]:0")),
            ("localhost:1", tcp("localhost:1")),
            ("unix:/run/x.sock", Ok(Address::Unix("/run/x.sock".into()))),
            ("off", Ok(Address::Off)),
            ("http://localhost:1", expected_form()),
            ("unix:", Err("unix: needs a path, such as unix:/run/tidegate.sock".to_owned())),
            ("8081", expected_form()),
            (":70000", expected_form()),
            (":", expected_form()),
            ("localhost:70000", expected_form()),
            ("", expected_form()),
        ];
        for (text, expected) in table {
            let parsed = text.parse::<Address>();
            assert_eq!(parsed, expected, "for {text:?}");
            assert!(parsed.is_err() || parsed.unwrap().to_string() == text, "for {text:?}");
        }
        assert_eq!(":8081".parse(), tcp("0.0.0.0:8081"));
    }
}
