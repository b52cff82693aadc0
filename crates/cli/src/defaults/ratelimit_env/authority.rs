//! The variables of envoyproxy/ratelimit for Redis and memcached. They name servers of shared counters if `REDIS_URL`
//! is set, or `BACKEND_TYPE=memcache`; there the first is so by default, at a socket that is rarely meant.

use super::servers::{self, Backend, Redis};
use super::{RatelimitEnv, Variables, Warning, values};
use crate::arguments::url;

/// Supported variables that hardly any other program uses.
pub(super) const OWN_NAMES: [&str; 32] = [
    "BACKEND_TYPE",
    "CACHE_KEY_PREFIX",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "REDIS_SOCKET_TYPE",
    "REDIS_TYPE",
    "REDIS_POOL_SIZE",
    "REDIS_SENTINEL_AUTH",
    "REDIS_TLS_CLIENT_CERT",
    "REDIS_TLS_CLIENT_KEY",
    "REDIS_TLS_CACERT",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_MAX_IDLE_CONNS",
    "MEMCACHE_SRV",
    "MEMCACHE_SRV_REFRESH",
    "MEMCACHE_TLS",
    "MEMCACHE_TLS_CLIENT_CERT",
    "MEMCACHE_TLS_CLIENT_KEY",
    "MEMCACHE_TLS_CACERT",
    "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
];
/// Those that others use as well.
pub(super) const SHARED_NAMES: [&str; 4] =
    ["REDIS_URL", "REDIS_AUTH", "REDIS_TLS", "REDIS_TIMEOUT"];

const NO_URL: &str = "without REDIS_URL no servers share counters; they live in --data-dir";
const NO_MEMCACHE: &str =
    "without BACKEND_TYPE=memcache it has no effect in envoyproxy/ratelimit either";
const NO_REDIS: &str = "with BACKEND_TYPE=memcache it has no effect in envoyproxy/ratelimit either";
const NO_PER_SECOND: &str =
    "without REDIS_PERSECOND=true it has no effect in envoyproxy/ratelimit either";
const NO_TLS: &str = "without TLS it has no effect in envoyproxy/ratelimit either";
const NO_SENTINEL: &str =
    "without REDIS_TYPE=sentinel it has no effect in envoyproxy/ratelimit either";
const NO_POOL: &str = "commands share connections, so no pool runs empty";

/// The variables of one Redis, and the flags that they become.
struct Names {
    url: &'static str,
    kind: &'static str,
    socket_type: &'static str,
    tls: &'static str,
    auth: &'static str,
    sentinel_auth: &'static str,
    timeout: &'static str,
    pool_size: &'static str,
    pool_on_empty: &'static str,
    flags: Flags,
}

struct Flags {
    authority: &'static str,
    credentials: [&'static str; 2],
    sentinel_credentials: [&'static str; 2],
    timeout: &'static str,
    connections: &'static str,
}

const MAIN: Names = Names {
    url: "REDIS_URL",
    kind: "REDIS_TYPE",
    socket_type: "REDIS_SOCKET_TYPE",
    tls: "REDIS_TLS",
    auth: "REDIS_AUTH",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    timeout: "REDIS_TIMEOUT",
    pool_size: "REDIS_POOL_SIZE",
    pool_on_empty: "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    flags: Flags {
        authority: "authority",
        credentials: ["authority_user", "authority_password"],
        sentinel_credentials: ["authority_sentinel_user", "authority_sentinel_password"],
        timeout: "authority_timeout",
        connections: "authority_connections",
    },
};

const PER_SECOND: Names = Names {
    url: "REDIS_PERSECOND_URL",
    kind: "REDIS_PERSECOND_TYPE",
    socket_type: "REDIS_PERSECOND_SOCKET_TYPE",
    tls: "REDIS_PERSECOND_TLS",
    auth: "REDIS_PERSECOND_AUTH",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    timeout: "REDIS_PERSECOND_TIMEOUT",
    pool_size: "REDIS_PERSECOND_POOL_SIZE",
    pool_on_empty: "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    flags: Flags {
        authority: "authority_per_second",
        credentials: ["authority_per_second_user", "authority_per_second_password"],
        sentinel_credentials: [
            "authority_per_second_sentinel_user",
            "authority_per_second_sentinel_password",
        ],
        timeout: "authority_per_second_timeout",
        connections: "authority_per_second_connections",
    },
};

/// The files of TLS by the flag of each.
type TlsNames = [(&'static str, &'static str); 4];

const REDIS_TLS: TlsNames = [
    ("REDIS_TLS_CACERT", "authority_ca"),
    ("REDIS_TLS_CLIENT_CERT", "authority_cert"),
    ("REDIS_TLS_CLIENT_KEY", "authority_key"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "authority_skip_hostname"),
];
const MEMCACHE_TLS: TlsNames = [
    ("MEMCACHE_TLS_CACERT", "authority_ca"),
    ("MEMCACHE_TLS_CLIENT_CERT", "authority_cert"),
    ("MEMCACHE_TLS_CLIENT_KEY", "authority_key"),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "authority_skip_hostname"),
];
const MEMCACHE_NAMES: [&str; 9] = [
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_MAX_IDLE_CONNS",
    "MEMCACHE_SRV",
    "MEMCACHE_SRV_REFRESH",
    "MEMCACHE_TLS",
    "MEMCACHE_TLS_CLIENT_CERT",
    "MEMCACHE_TLS_CLIENT_KEY",
    "MEMCACHE_TLS_CACERT",
    "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
];

impl Names {
    fn all(&self) -> [&'static str; 9] {
        [
            self.url,
            self.kind,
            self.socket_type,
            self.tls,
            self.auth,
            self.sentinel_auth,
            self.timeout,
            self.pool_size,
            self.pool_on_empty,
        ]
    }
}

impl RatelimitEnv {
    /// The servers of shared counters. Mistakes here matter only where no flag names the servers.
    pub(super) fn read_authority(&mut self, set: &Variables) {
        let (mistakes, defaults) = (self.mistakes.len(), self.defaults.len());
        let is_memcache =
            self.parsed(set, "BACKEND_TYPE", servers::backend) == Some(Backend::Memcache);
        let is_shared = if is_memcache { self.read_memcached(set) } else { self.read_redis(set) };
        if is_shared {
            if let Some(prefix) = set.text("CACHE_KEY_PREFIX") {
                // Keys of both services may be in one Redis.
                self.add_default(
                    "CACHE_KEY_PREFIX",
                    "authority_prefix",
                    format!("{prefix}tidegate:"),
                );
            }
            const JITTER: &str = "EXPIRATION_JITTER_MAX_SECONDS";
            self.add_parsed(set, JITTER, "authority_expiry_jitter", servers::jitter);
        } else {
            let advice = "counters of one machine have no prefix; give separate deployments separate --data-dir";
            self.warn_if_set(set, &["CACHE_KEY_PREFIX"], advice);
            let advice = "without shared counters no keys expire at once";
            self.warn_if_set(set, &["EXPIRATION_JITTER_MAX_SECONDS"], advice);
        }
        self.authority_mistakes = self.mistakes.split_off(mistakes);
        if !self.authority_mistakes.is_empty() {
            self.defaults.truncate(defaults);
        }
    }

    fn read_redis(&mut self, set: &Variables) -> bool {
        self.warn_if_set(set, &MEMCACHE_NAMES, NO_MEMCACHE);
        let is_second = self.parsed(set, "REDIS_PERSECOND", values::truth) == Some(true);
        if set.text("REDIS_URL").is_none() {
            if is_second {
                self.mistakes.push("REDIS_PERSECOND=true: REDIS_URL must be set too".to_owned());
            }
            self.warn_if_set(set, &["BACKEND_TYPE"], NO_URL);
            self.warn_if_set(set, &MAIN.all(), NO_URL);
            self.warn_if_set(set, &PER_SECOND.all(), NO_URL);
            self.warn_if_set(set, &REDIS_TLS.map(|(name, _)| name), NO_URL);
            self.warn_if_set(set, &["REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"], NO_URL);
            return false;
        }
        let mut is_tls = self.read_server(set, &MAIN);
        if is_second {
            if set.text("REDIS_PERSECOND_URL").is_none() {
                let mistake = "REDIS_PERSECOND=true: REDIS_PERSECOND_URL must be set too";
                self.mistakes.push(mistake.to_owned());
            }
            is_tls |= self.read_server(set, &PER_SECOND);
        } else {
            self.warn_if_set(set, &PER_SECOND.all(), NO_PER_SECOND);
        }
        self.read_server_tls(set, is_tls, &REDIS_TLS);
        const HEALTH: &str = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION";
        self.add_parsed(set, HEALTH, "authority_health", values::switch);
        true
    }

    /// Whether this Redis is asked with TLS.
    fn read_server(&mut self, set: &Variables, names: &Names) -> bool {
        let Some(text) = set.text(names.url) else { return false };
        let is_tls = self.parsed(set, names.tls, values::truth) == Some(true);
        let kind = self.parsed(set, names.kind, servers::redis_type).unwrap_or(Redis::Single);
        let socket = self.parsed(set, names.socket_type, servers::socket_type);
        let read = servers::redis_url(text, kind, socket, is_tls);
        // What is wrong is said without the text, which may have a password.
        let read = read.and_then(|url| url::parse(&url).map(|_| url));
        match read {
            Ok(url) => self.add_default(names.url, names.flags.authority, url),
            Err(mistake) => self.mistakes.push(format!("{}: {mistake}", names.url)),
        }
        self.read_credentials(set, names.auth, names.flags.credentials);
        if kind == Redis::Sentinel {
            self.read_credentials(set, names.sentinel_auth, names.flags.sentinel_credentials);
        } else {
            self.warn_if_set(set, &[names.sentinel_auth], NO_SENTINEL);
        }
        self.add_parsed(set, names.timeout, names.flags.timeout, servers::answer);
        self.add_parsed(set, names.pool_size, names.flags.connections, servers::connections);
        if set.text(names.pool_on_empty).is_some_and(|text| !text.eq_ignore_ascii_case("WAIT")) {
            self.warn_if_set(set, &[names.pool_on_empty], NO_POOL);
        }
        is_tls
    }

    /// `user:password`, or a password alone.
    fn read_credentials(
        &mut self,
        set: &Variables,
        name: &'static str,
        [user, password]: [&'static str; 2],
    ) {
        let Some(text) = set.text(name) else { return };
        let (of_user, of_password) = text.split_once(':').unwrap_or(("", text));
        for (id, value) in [(user, of_user), (password, of_password)] {
            if !value.is_empty() {
                self.add_default(name, id, value.to_owned());
            }
        }
    }

    fn read_server_tls(&mut self, set: &Variables, is_tls: bool, names: &TlsNames) {
        if !is_tls {
            self.warn_if_set(set, &names.map(|(name, _)| name), NO_TLS);
            return;
        }
        let [ca, cert, key, skip] = *names;
        for (name, id) in [ca, cert, key] {
            self.add_parsed(set, name, id, |text| Ok(text.to_owned()));
        }
        for (one, other) in [(cert.0, key.0), (key.0, cert.0)] {
            if set.text(one).is_some() && set.text(other).is_none() {
                self.mistakes.push(format!("{one}: {other} must be set too"));
            }
        }
        self.add_parsed(set, skip.0, skip.1, values::switch);
    }

    fn read_memcached(&mut self, set: &Variables) -> bool {
        self.warn_if_set(set, &MAIN.all(), NO_REDIS);
        self.warn_if_set(set, &PER_SECOND.all(), NO_REDIS);
        self.warn_if_set(
            set,
            &["REDIS_PERSECOND", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"],
            NO_REDIS,
        );
        self.warn_if_set(set, &REDIS_TLS.map(|(name, _)| name), NO_REDIS);
        let Some(servers) = set.text("MEMCACHE_HOST_PORT") else {
            let mistake = match set.text("MEMCACHE_SRV") {
                Some(_) => {
                    "MEMCACHE_SRV: SRV records are not looked up; name the servers by MEMCACHE_HOST_PORT"
                }
                None => "BACKEND_TYPE=memcache: MEMCACHE_HOST_PORT must be set too",
            };
            self.mistakes.push(mistake.to_owned());
            return false;
        };
        if set.text("MEMCACHE_SRV").is_some() {
            let mistake = "MEMCACHE_HOST_PORT and MEMCACHE_SRV: only one of them may be set";
            self.mistakes.push(mistake.to_owned());
        }
        let is_tls = self.parsed(set, "MEMCACHE_TLS", values::truth) == Some(true);
        let url = format!("{}://{servers}", if is_tls { "memcacheds" } else { "memcached" });
        match url::parse(&url) {
            Ok(_) => self.add_default("MEMCACHE_HOST_PORT", "authority", url),
            Err(mistake) => self.mistakes.push(format!("MEMCACHE_HOST_PORT: {mistake}")),
        }
        self.read_server_tls(set, is_tls, &MEMCACHE_TLS);
        const IDLE: &str = "MEMCACHE_MAX_IDLE_CONNS";
        self.add_parsed(set, IDLE, "authority_connections", servers::connections);
        self.warn_if_set(set, &["MEMCACHE_SRV_REFRESH"], "SRV records are not looked up");
        true
    }

    /// A variable that becomes a flag.
    fn add_parsed(
        &mut self,
        set: &Variables,
        name: &'static str,
        id: &'static str,
        read: impl Fn(&str) -> Result<String, &'static str>,
    ) {
        if let Some(value) = self.parsed(set, name, read) {
            self.add_default(name, id, value);
        }
    }

    fn warn_if_set(&mut self, set: &Variables, names: &[&'static str], advice: &'static str) {
        let are_set = names.iter().filter(|name| set.text(name).is_some());
        self.warnings.extend(are_set.map(|name| Warning { name, advice }));
    }
}

#[cfg(test)]
mod tests;
