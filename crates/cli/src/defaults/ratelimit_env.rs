//! The environment of an envoyproxy/ratelimit deployment. Variables with an equivalent flag become defaults of
//! `tidegate serve`; each of the others is logged with advice.
//!
//! Names that other programs use as well (`HOST`, `PORT`, `LOG_LEVEL`, `REDIS_URL` and the like) count only
//! next to a name of envoyproxy/ratelimit alone, such as `RUNTIME_ROOT` or `GRPC_PORT`. Only `GRPC_HOST` and
//! `HOST` make a server listen beyond loopback. `authority` reads where shared counters are. docs/reference/envoyproxy-ratelimit.md has the whole table.

mod authority;
mod ignored;
mod servers;
mod traces;
mod values;
mod xds;

use super::FlagDefault;
use ignored::{IGNORED, NameKind};
use std::collections::HashMap;
use std::ffi::OsString;

/// Supported variables that hardly any other program uses.
const OWN_NAMES: [&str; 22] = [
    "GRPC_HOST",
    "GRPC_PORT",
    "GRPC_UDS",
    "GRPC_SERVER_USE_TLS",
    "GRPC_SERVER_TLS_CERT",
    "GRPC_SERVER_TLS_KEY",
    "GRPC_CLIENT_TLS_CACERT",
    "GRPC_CLIENT_TLS_SAN",
    "GRPC_MAX_CONNECTION_AGE",
    "GRPC_MAX_CONNECTION_AGE_GRACE",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "MERGE_DOMAIN_CONFIG",
    "RESPONSE_DYNAMIC_METADATA",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_RESET_HEADER",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "NEAR_LIMIT_RATIO",
];
/// Supported variables that other programs use as well: the SHADOW_MODE of another program must not disable
/// limits.
const SHARED_NAMES: [&str; 9] = [
    "HOST",
    "PORT",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "SHADOW_MODE",
    "QUOTA_MODE",
    "USE_PROMETHEUS",
    "PROMETHEUS_ADDR",
    "PROMETHEUS_PATH",
];

/// How much of an environment counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What is set of it, for `tidegate serve`. Servers stay on loopback unless a host is set.
    Set,
    /// All of it, with the defaults of envoyproxy/ratelimit, for a program in its place.
    Whole,
}

/// Every variable that is known.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let ignored = IGNORED.iter().flat_map(|(_, names, _)| names.iter().copied());
    let of_servers = authority::OWN_NAMES.into_iter().chain(authority::SHARED_NAMES);
    let own = OWN_NAMES.into_iter().chain(xds::NAMES);
    own.chain(SHARED_NAMES).chain(traces::NAMES).chain(of_servers).chain(ignored)
}

/// The options of an environment.
#[derive(Debug, Default)]
pub(crate) struct RatelimitEnv {
    defaults: Vec<FlagDefault>,
    warnings: Vec<Warning>,
    mistakes: Vec<String>,
    /// Those about servers of shared counters.
    authority_mistakes: Vec<String>,
}

/// A variable without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warning {
    name: &'static str,
    advice: &'static str,
}

/// What to log at the start, once the log is open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notices {
    used: Vec<(&'static str, String)>,
    warnings: Vec<Warning>,
}

impl RatelimitEnv {
    /// Whether a name of envoyproxy/ratelimit alone is set.
    pub(crate) fn is_set(value_of: impl Fn(&'static str) -> Option<OsString>) -> bool {
        let own_ignored = IGNORED.iter().filter(|(kind, ..)| *kind == NameKind::Own);
        let own_ignored = own_ignored.flat_map(|(_, names, _)| names.iter().copied());
        let mut own = OWN_NAMES.into_iter().chain(xds::NAMES).chain(own_ignored);
        own.any(|name| value_of(name).is_some_and(|value| !value.is_empty()))
    }

    pub(crate) fn read(
        extent: Extent,
        value_of: impl Fn(&'static str) -> Option<OsString>,
    ) -> RatelimitEnv {
        let mut environment = RatelimitEnv::default();
        let mut set = HashMap::new();
        let ignored = || {
            IGNORED.iter().flat_map(|(kind, names, _)| names.iter().map(move |name| (*kind, *name)))
        };
        let own = OWN_NAMES.into_iter().chain(authority::OWN_NAMES).chain(xds::NAMES);
        let own = own.map(|name| (NameKind::Own, name));
        let shared = SHARED_NAMES.into_iter().chain(traces::NAMES).chain(authority::SHARED_NAMES);
        let shared = shared.map(|name| (NameKind::Shared, name));
        let mut has_own = extent == Extent::Whole;
        for (kind, name) in own.chain(shared).chain(ignored()) {
            // An empty variable counts as not set.
            let Some(value) = value_of(name).filter(|value| !value.is_empty()) else { continue };
            has_own |= kind == NameKind::Own;
            set.insert(name, (kind, value));
        }
        set.retain(|_, (kind, _)| has_own || *kind == NameKind::Own);
        let mut texts = HashMap::new();
        for (name, (_, value)) in set {
            match value.into_string() {
                Ok(text) => drop(texts.insert(name, text)),
                Err(value) => {
                    environment.mistakes.push(format!("{name}={value:?}: expected UTF-8"));
                }
            }
        }
        environment.read_all(&Variables { texts, has_own, extent });
        environment.mistakes.sort_unstable();
        environment
    }

    pub(crate) fn defaults(&self) -> &[FlagDefault] {
        &self.defaults
    }

    /// Adds flags and values that no variable has.
    pub(crate) fn add_built_in(&mut self, flags: &[(&'static str, &str)]) {
        for (id, value) in flags {
            self.add_default("the name of this program", id, (*value).to_owned());
        }
    }

    /// Invalid variables, each with the expected value.
    pub(crate) fn mistakes(&self) -> &[String] {
        &self.mistakes
    }

    /// Those about servers of shared counters, which matter only where no flag names them.
    pub(crate) fn authority_mistakes(&self) -> &[String] {
        &self.authority_mistakes
    }

    /// What to log; `is_default` says whether a flag has its default.
    pub(crate) fn notices(&self, is_default: impl Fn(&str) -> bool) -> Notices {
        let used = self.defaults.iter().filter(|default| is_default(default.id)).map(|default| {
            let flag = default.id.replace('_', "-");
            (default.source, format!("--{flag} {}", default.shown()))
        });
        Notices { used: used.collect(), warnings: self.warnings.clone() }
    }

    fn read_all(&mut self, set: &Variables) {
        self.read_addresses(set);
        self.read_prometheus(set);
        if !xds::read(self, set) {
            self.read_limits(set);
        }
        self.read_tls(set);
        self.read_authority(set);
        let parsers: [(&str, &str, values::Parser); 12] = [
            ("MERGE_DOMAIN_CONFIG", "merge_domains", values::switch),
            ("SHADOW_MODE", "shadow_mode", values::switch),
            ("QUOTA_MODE", "quota_mode", values::switch),
            ("RESPONSE_DYNAMIC_METADATA", "dynamic_metadata", values::switch),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "response_headers", values::header_form),
            ("LIMIT_LIMIT_HEADER", "ratelimit_limit_header", values::header),
            ("LIMIT_REMAINING_HEADER", "ratelimit_remaining_header", values::header),
            ("LIMIT_RESET_HEADER", "ratelimit_reset_header", values::header),
            ("LOG_LEVEL", "log", values::log_level),
            ("LOG_FORMAT", "log_format", values::log_format),
            ("GRPC_MAX_CONNECTION_AGE", "connection_age", values::age),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "connection_age_grace", values::grace),
        ];
        for (name, id, parse) in parsers {
            // An empty value leaves the flag as it is.
            if let Some(value) = self.parsed(set, name, parse).filter(|value| !value.is_empty()) {
                self.add_default(name, id, value);
            }
        }
        traces::read(self, set);
        self.read_counting(set);
        self.warn(set);
    }

    /// envoyproxy/ratelimit counts denied requests by default.
    fn read_counting(&mut self, set: &Variables) {
        const STOP: &str = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
        let stops = self.parsed(set, STOP, values::truth);
        if stops != Some(true) && set.has_own {
            let source = if stops.is_some() { STOP } else { "its own default" };
            self.add_default(source, "count_denied", true.to_string());
        }
    }

    fn read_addresses(&mut self, set: &Variables) {
        let grpc = self.address(set, ("GRPC_HOST", "GRPC_PORT", "8081"));
        if let Some(socket) = self.parsed(set, "GRPC_UDS", values::socket) {
            self.add_default("GRPC_UDS", "grpc", socket);
        } else if let Some(address) = grpc {
            self.add_default("GRPC_HOST, GRPC_PORT", "grpc", address);
        }
        // Shells set HOST to the name of the machine, which is not an address to listen on.
        let host = if set.text("HOST").is_some_and(values::is_address) { "HOST" } else { "" };
        if let Some(address) = self.address(set, (host, "PORT", "8080")) {
            self.add_default("HOST, PORT", "http", address);
        }
        if host.is_empty() && set.text("HOST").is_some() {
            let advice = "the name of a machine may come from a shell; set the address with --http";
            self.warnings.push(Warning { name: "HOST", advice });
        }
    }

    /// Host and port; loopback and the default port where one is missing.
    fn address(
        &mut self,
        set: &Variables,
        (host, port, port_else): (&'static str, &'static str, &str),
    ) -> Option<String> {
        let (host, port) =
            (self.parsed(set, host, values::host), self.parsed(set, port, values::port));
        if host.is_none() && port.is_none() && set.extent == Extent::Set {
            return None;
        }
        let host = host.unwrap_or_else(|| set.host_else().to_owned());
        Some(format!("{host}:{}", port.as_deref().unwrap_or(port_else)))
    }

    fn read_prometheus(&mut self, set: &Variables) {
        let is_on = self.parsed(set, "USE_PROMETHEUS", values::truth) == Some(true);
        let address = |text: &str| values::address(text, set.host_else());
        let address = self.parsed(set, "PROMETHEUS_ADDR", address);
        let path = self.parsed(set, "PROMETHEUS_PATH", values::path);
        if !is_on {
            return;
        }
        let address = address.unwrap_or_else(|| format!("{}:9090", set.host_else()));
        self.add_default("USE_PROMETHEUS, PROMETHEUS_ADDR", "prometheus", address);
        if let Some(path) = path {
            self.add_default("PROMETHEUS_PATH", "prometheus_path", path);
        }
    }

    fn read_limits(&mut self, set: &Variables) {
        let parts = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
        let [root, subdirectory, appdirectory] = parts.map(|name| set.text(name));
        if root.or(subdirectory).or(appdirectory).is_none() && set.extent == Extent::Set {
            return;
        }
        let mut path = std::path::PathBuf::from(root.unwrap_or("/srv/runtime_data/current"));
        // As in Go, a leading slash does not start a new path.
        for part in [subdirectory.unwrap_or_default(), appdirectory.unwrap_or("config")] {
            path.push(part.trim_start_matches('/'));
        }
        let from = "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY";
        // All parts are UTF-8.
        self.add_default(from, "limits", path.to_string_lossy().into_owned());
    }

    fn read_tls(&mut self, set: &Variables) {
        let is_on = self.parsed(set, "GRPC_SERVER_USE_TLS", values::truth) == Some(true);
        for (name, id) in [
            ("GRPC_SERVER_TLS_CERT", "tls_cert"),
            ("GRPC_SERVER_TLS_KEY", "tls_key"),
            ("GRPC_CLIENT_TLS_CACERT", "tls_client_ca"),
            ("GRPC_CLIENT_TLS_SAN", "tls_client_name"),
        ] {
            match set.text(name) {
                Some(value) if is_on => self.add_default(name, id, value.to_owned()),
                Some(_) => {
                    let advice = "without GRPC_SERVER_USE_TLS=true it has no effect in envoyproxy/ratelimit either";
                    self.warnings.push(Warning { name, advice });
                }
                None if is_on && (id == "tls_cert" || id == "tls_key") => {
                    // Otherwise it would serve without TLS.
                    self.mistakes.push(format!("GRPC_SERVER_USE_TLS=true: {name} must be set too"));
                }
                None => {}
            }
        }
    }

    /// Warns of variables without effect.
    fn warn(&mut self, set: &Variables) {
        let mut warn = |name, advice| self.warnings.push(Warning { name, advice });
        for (_, names, advice) in IGNORED {
            names
                .iter()
                .filter(|name| set.text(name).is_some())
                .for_each(|name| warn(name, advice));
        }
        let is =
            |name, truth| set.text(name).and_then(|text| values::truth(text).ok()) == Some(truth);
        if is("RUNTIME_IGNOREDOTFILES", false) {
            warn(
                "RUNTIME_IGNOREDOTFILES",
                "files whose names begin with a dot are never read; rename them",
            );
        }
        let ratio = set.text("NEAR_LIMIT_RATIO").map(str::parse::<f64>);
        if ratio.is_some_and(|ratio| ratio != Ok(0.8)) {
            warn("NEAR_LIMIT_RATIO", "near_limit always counts from 0.8 of a limit");
        }
        self.parsed(set, "RUNTIME_IGNOREDOTFILES", values::truth);
    }

    /// The value of a variable, if set; an invalid value is a mistake.
    fn parsed<T>(
        &mut self,
        set: &Variables,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<T> {
        let text = set.text(name)?;
        let read = read(text).map_err(|expected| format!("{name}={text:?}: expected {expected}"));
        read.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    fn add_default(&mut self, source: &'static str, id: &'static str, value: String) {
        self.defaults.push(FlagDefault { source, id, value });
    }
}

/// The variables in use.
struct Variables {
    texts: HashMap<&'static str, String>,
    /// Whether they count for this program.
    has_own: bool,
    extent: Extent,
}

impl Variables {
    /// The address to listen on if none is set.
    fn host_else(&self) -> &'static str {
        match self.extent {
            Extent::Set => "127.0.0.1",
            Extent::Whole => "0.0.0.0",
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }
}

impl Notices {
    /// Logs one line for each.
    pub(crate) fn log(&self) {
        for (variable, flag) in &self.used {
            tracing::info!(variable, "used from the environment of envoyproxy/ratelimit: {flag}");
        }
        for Warning { name, advice } in &self.warnings {
            tracing::warn!(variable = name, "has no effect: {advice}");
        }
    }
}

#[cfg(test)]
mod tests;
