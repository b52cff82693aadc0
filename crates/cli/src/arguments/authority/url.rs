//! The URL of servers of shared counters. A mistake never repeats a password.

use super::settings::Servers;
use percent_encoding::percent_decode_str;
use tidegate_remote::{Address, Credentials};

const EXPECTED: &str = "expected local, redis://HOST:PORT, unix:PATH, redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY, \
                        redis+cluster://HOST:PORT,HOST:PORT or memcached://HOST:PORT,HOST:PORT; rediss:// and \
                        memcacheds:// are with TLS";
/// Enough for any cluster. Each is asked in turn until one answers.
const ADDRESSES_MAX: usize = 64;

/// What a URL says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) servers: Servers,
    pub(crate) credentials: Credentials,
    pub(crate) database: u32,
    pub(crate) is_tls: bool,
}

impl Location {
    /// The address, if it is one server of Redis or Valkey.
    pub(crate) fn single(&self) -> Option<&Address> {
        match &self.servers {
            Servers::Single(address) => Some(address),
            Servers::Sentinel { .. } | Servers::Cluster { .. } | Servers::Memcached { .. } => None,
        }
    }
}

/// The kinds of servers that a scheme names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
    Memcached,
}

impl Kind {
    fn port(self) -> u16 {
        match self {
            Kind::Single | Kind::Cluster => 6379,
            Kind::Sentinel => 26379,
            Kind::Memcached => 11211,
        }
    }
}

/// Reads a URL; `local` is none.
pub(crate) fn parse(text: &str) -> Result<Option<Location>, String> {
    if text == "local" {
        return Ok(None);
    }
    let socket = text.strip_prefix("redis+unix:").or_else(|| text.strip_prefix("unix:"));
    if let Some(path) = socket {
        return unix(path).map(Some);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(match text.contains(':') && address(text, 0).is_ok() {
            true => format!("the kind of server is missing, such as redis://{text}"),
            false => EXPECTED.to_owned(),
        });
    };
    let (kind, is_tls) = kind(scheme).ok_or_else(|| EXPECTED.to_owned())?;
    if rest.contains(['?', '#']) {
        return Err("there are no options after ? or #; each has a flag of its own, see --help \
                    (in a password write %3F and %23)"
            .to_owned());
    }
    located(kind, is_tls, rest).map(Some)
}

/// The URL as it may be shown: without a password.
pub(crate) fn shown(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    }
}

fn kind(scheme: &str) -> Option<(Kind, bool)> {
    Some(match scheme {
        "redis" | "valkey" => (Kind::Single, false),
        "rediss" | "valkeys" => (Kind::Single, true),
        "redis+sentinel" | "valkey+sentinel" => (Kind::Sentinel, false),
        "rediss+sentinel" | "valkeys+sentinel" => (Kind::Sentinel, true),
        "redis+cluster" | "valkey+cluster" => (Kind::Cluster, false),
        "rediss+cluster" | "valkeys+cluster" => (Kind::Cluster, true),
        "memcached" => (Kind::Memcached, false),
        "memcacheds" => (Kind::Memcached, true),
        _ => return None,
    })
}

fn unix(path: &str) -> Result<Location, String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err("unix: needs a path, such as unix:/run/redis/redis.sock".to_owned());
    }
    Ok(Location {
        servers: Servers::Single(Address::Unix(path.into())),
        credentials: Credentials::default(),
        database: 0,
        is_tls: false,
    })
}

fn located(kind: Kind, is_tls: bool, rest: &str) -> Result<Location, String> {
    // A password may have a slash, if it has no @.
    let (user, rest) =
        rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let credentials = match user {
        Some(_) if kind == Kind::Memcached => {
            return Err("memcached has no users here; leave out what is before @".to_owned());
        }
        Some(user) if kind != Kind::Single && user.contains(['@', ',']) => {
            return Err("a user and a password stand once, before the first address (in a password write %2C for a comma \
                        and %40 for @)"
                .to_owned());
        }
        Some(user) => credentials(user)?,
        None => Credentials::default(),
    };
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        addresses.push(address(host, kind.port())?);
    }
    if addresses.len() > ADDRESSES_MAX {
        return Err(format!("{} addresses; at most {ADDRESSES_MAX} are read", addresses.len()));
    }
    let (servers, database) = match kind {
        Kind::Single => match <[Address; 1]>::try_from(addresses) {
            Ok([address]) => (Servers::Single(address), database(path)?),
            Err(_) => {
                return Err("several addresses are for redis+cluster:// or redis+sentinel://; with redis:// there is one"
                    .to_owned());
            }
        },
        Kind::Sentinel => {
            let (primary, number) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err("the name of the primary is missing after the Sentinels: \
                            redis+sentinel://HOST:PORT,HOST:PORT/PRIMARY"
                    .to_owned());
            }
            let primary = decoded(primary)?;
            (Servers::Sentinel { sentinels: addresses, primary }, database(number)?)
        }
        Kind::Cluster if matches!(path, "" | "0") => (Servers::Cluster { nodes: addresses }, 0),
        Kind::Cluster => return Err(format!("a cluster has no database {path:?}; it has only 0")),
        Kind::Memcached if path.is_empty() => (Servers::Memcached { servers: addresses }, 0),
        Kind::Memcached => return Err(format!("memcached has no database {path:?}")),
    };
    Ok(Location { servers, credentials, database, is_tls })
}

fn credentials(text: &str) -> Result<Credentials, String> {
    let (user, password) = text.split_once(':').map_or((text, None), |(u, p)| (u, Some(p)));
    let user = (!user.is_empty()).then(|| decoded(user)).transpose()?;
    let password = password.filter(|password| !password.is_empty()).map(decoded).transpose()?;
    Ok(Credentials { user, password })
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "what %XX stands for is not UTF-8".to_owned())
}

fn database(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("expected the number of a database after /, not {text:?}"))
}

/// `HOST` or `HOST:PORT`; an IPv6 address has brackets.
fn address(text: &str, port_else: u16) -> Result<Address, String> {
    let is_bracketed = text.starts_with('[');
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bracketed || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        None => port_else,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            // Without the text, which may be a password that no host follows.
            _ => return Err(format!("expected a port from 1 to 65535 after {host:?}")),
        },
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_good = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_of_name = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
            !host.is_empty() && host.chars().all(is_of_name)
        }
    };
    if !is_good {
        return Err(format!("expected HOST:PORT, not {text:?}; an IPv6 address has brackets"));
    }
    Ok(Address::Tcp { host: bare.unwrap_or(host).to_owned(), port })
}

#[cfg(test)]
mod tests;
