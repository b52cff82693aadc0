//! Parses values of variables about Redis and memcached. An error names the expected value.

use super::values::nanos;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

type Parsed<T> = Result<T, &'static str>;

/// What a name in a URL may have as it is.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
/// Longer waits of clients make no sense.
const ANSWER_MILLIS_MAX: u64 = 60_000;
const CONNECTIONS_MAX: u64 = 64;

/// Kinds of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redis {
    Single,
    Sentinel,
    Cluster,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Socket {
    Tcp,
    Unix,
}

/// Kinds of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Redis,
    Memcache,
}

pub(super) fn backend(text: &str) -> Parsed<Backend> {
    match text {
        "redis" => Ok(Backend::Redis),
        "memcache" => Ok(Backend::Memcache),
        _ => Err("redis or memcache"),
    }
}

pub(super) fn redis_type(text: &str) -> Parsed<Redis> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(Redis::Single),
        "sentinel" => Ok(Redis::Sentinel),
        "cluster" => Ok(Redis::Cluster),
        _ => Err("SINGLE, SENTINEL or CLUSTER"),
    }
}

pub(super) fn socket_type(text: &str) -> Parsed<Socket> {
    match text {
        "tcp" | "tcp4" | "tcp6" => Ok(Socket::Tcp),
        "unix" => Ok(Socket::Unix),
        _ => Err("tcp or unix"),
    }
}

/// The URL of servers for `--authority`, from what `REDIS_URL` has for a kind of Redis: `host:port`, a path, a list of
/// nodes, or the name of a primary and a list of Sentinels. Addresses may begin with `redis://user:password@`.
pub(super) fn redis_url(
    text: &str,
    kind: Redis,
    socket: Option<Socket>,
    is_tls: bool,
) -> Result<String, String> {
    let scheme = if is_tls { "rediss" } else { "redis" };
    let bare = |address: &str| address.strip_prefix("redis://").unwrap_or(address).to_owned();
    match kind {
        Redis::Single => {
            let is_path = socket == Some(Socket::Unix) || socket.is_none() && text.starts_with('/');
            match (is_path, is_tls) {
                (true, true) => Err("there is no TLS at a Unix socket".to_owned()),
                (true, false) => Ok(format!("unix:{text}")),
                (false, _) => Ok(format!("{scheme}://{}", bare(text))),
            }
        }
        Redis::Cluster => {
            let mut credentials = String::new();
            let mut nodes = Vec::new();
            for address in text.split(',') {
                let address = bare(address);
                let (user, node) = address.rsplit_once('@').unwrap_or(("", &address));
                if credentials.is_empty() && !user.is_empty() {
                    credentials = format!("{user}@");
                }
                nodes.push(node.to_owned());
            }
            Ok(format!("{scheme}+cluster://{credentials}{}", nodes.join(",")))
        }
        Redis::Sentinel => {
            let Some((primary, sentinels)) = text.split_once(',') else {
                return Err(
                    "expected the name of the primary and its Sentinels: NAME,HOST:PORT,HOST:PORT"
                        .to_owned(),
                );
            };
            let sentinels: Vec<String> = sentinels.split(',').map(bare).collect();
            let primary = utf8_percent_encode(primary, NAME);
            Ok(format!("{scheme}+sentinel://{}/{primary}", sentinels.join(",")))
        }
    }
}

/// As `time.ParseDuration`; 0 is the longest.
pub(super) fn answer(text: &str) -> Parsed<String> {
    let nanos = nanos(text).ok_or("a time, such as 500ms or 10s")?;
    let millis = match nanos {
        0 => ANSWER_MILLIS_MAX,
        nanos => (nanos / 1_000_000).clamp(1, ANSWER_MILLIS_MAX),
    };
    Ok(format!("{millis}ms"))
}

/// The size of a pool. Commands share connections here, so that many are of no use.
pub(super) fn connections(text: &str) -> Parsed<String> {
    match text.parse::<u64>() {
        Ok(count @ 1..) => Ok(count.min(CONNECTIONS_MAX).to_string()),
        _ => Err("a number of connections from 1"),
    }
}

/// Seconds.
pub(super) fn jitter(text: &str) -> Parsed<String> {
    let secs: u64 = text.parse().map_err(|_| "a number of seconds")?;
    Ok(format!("{}s", secs.min(86_400)))
}
