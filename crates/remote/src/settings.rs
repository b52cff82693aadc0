//! Where the servers are, and how to talk to them.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const PORT: u16 = 6379;

#[derive(Debug, Clone)]
pub struct Settings {
    pub servers: Servers,
    pub credentials: Credentials,
    /// The number of the database. A cluster has only number 0.
    pub database: u32,
    pub tls: Option<Tls>,
    /// The start of every key. Sidecars with equal prefixes share their counters.
    pub prefix: String,
    /// To each server.
    pub connections: NonZeroUsize,
    /// How many replicas must have an update before it counts as made.
    pub replicas: u32,
    /// How long the answer to one command may take.
    pub timeout: Duration,
    /// Keys expire up to so much later than their states, spread by key.
    pub jitter: Duration,
    /// How long [`connect`](crate::connect) waits for the seed.
    pub patience: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Servers {
    /// One server, or a name that leads to the present primary.
    Single(Address),
    /// The primary with this name, as these sentinels know it.
    Sentinel { sentinels: Vec<Address>, primary: String, credentials: Credentials },
    /// The cluster that these nodes belong to. The others are learned from them.
    Cluster { nodes: Vec<Address> },
    /// Several of memcached, each with a part of the keys.
    Memcached(Vec<Address>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub user: Option<String>,
    pub password: Option<String>,
}

/// Contents of PEM files.
#[derive(Clone)]
pub struct Tls {
    /// Certificates of the authorities that may sign the server's.
    pub ca: Vec<u8>,
    /// The certificate and the key of this client.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Accept a certificate of the authorities whatever name it has.
    pub skips_hostname: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address:?} is no address of a server; expected HOST:PORT, unix:PATH or \
     redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"
)]
pub struct AddressError {
    address: String,
}

impl Settings {
    /// The defaults.
    pub fn new(servers: Servers) -> Settings {
        Settings {
            servers,
            credentials: Credentials::default(),
            database: 0,
            tls: None,
            prefix: "tidegate:".to_owned(),
            connections: NonZeroUsize::new(2).expect("two is not zero"),
            replicas: 0,
            timeout: Duration::from_millis(100),
            jitter: Duration::from_secs(10),
            patience: Duration::from_secs(10),
        }
    }

    /// The defaults for a server at an address, or at a URL with its credentials and database.
    pub fn at(address: &str) -> Result<Settings, AddressError> {
        if !address.starts_with("redis://") {
            return Ok(Settings::new(Servers::Single(address.parse()?)));
        }
        // The error must not repeat a password.
        let invalid = || AddressError { address: without_credentials(address) };
        let info =
            ::redis::IntoConnectionInfo::into_connection_info(address).map_err(|_| invalid())?;
        let ::redis::ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(invalid()) };
        let (host, port) = (host.clone(), *port);
        let redis = info.redis_settings();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Settings {
            credentials: Credentials {
                user: owned(redis.username()),
                password: owned(redis.password()),
            },
            database: u32::try_from(redis.db()).map_err(|_| invalid())?,
            ..Settings::new(Servers::Single(Address::Tcp { host, port }))
        })
    }
}

fn without_credentials(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, rest)) => format!("redis://…@{rest}"),
        None => url.to_owned(),
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(address: &str) -> Result<Address, AddressError> {
        let invalid = || AddressError { address: address.to_owned() };
        if let Some(path) = address.strip_prefix("unix:") {
            return match path {
                "" => Err(invalid()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| invalid())?),
            None => (address, PORT),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => host,
            None if host.contains(':') => return Err(invalid()),
            None => host,
        };
        if host.is_empty() || host.contains(['/', '@', ' ']) {
            return Err(invalid());
        }
        Ok(Address::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("password", &password)
            .finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.client.is_some() { "with" } else { "without" };
        write!(f, "Tls {kind} a client certificate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, expected: Option<&str>) {
        let parsed = address.parse::<Address>();
        assert_eq!(parsed.ok().map(|parsed| parsed.to_string()).as_deref(), expected, "{address}");
    }

    #[test]
    fn addresses() {
        check("redis:6380", Some("redis:6380"));
        check("redis", Some("redis:6379"));
        check("10.0.0.1:1", Some("10.0.0.1:1"));
        check("[::1]:7000", Some("[::1]:7000"));
        check("unix:/run/redis.sock", Some("unix:/run/redis.sock"));
        for invalid in ["", ":1", "host:", "host:99999", "::1", "http://host", "unix:", "a b:1"] {
            check(invalid, None);
        }
    }

    #[test]
    fn urls() {
        let settings = Settings::at("redis://tide:gate@redis.example:6380/3").unwrap();
        let address = Address::Tcp { host: "redis.example".to_owned(), port: 6380 };
        assert_eq!(settings.servers, Servers::Single(address));
        let owned = |text: &str| Some(text.to_owned());
        let expected = Credentials { user: owned("tide"), password: owned("gate") };
        assert_eq!((settings.credentials, settings.database), (expected, 3));
    }

    #[test]
    fn neither_errors_nor_debug_output_tell_a_password() {
        let error = Settings::at("redis://tide:secret@host:99999").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        let settings = Settings::at("redis://tide:secret@host").unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
