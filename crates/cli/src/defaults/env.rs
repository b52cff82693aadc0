//! The environment of an envoyproxy/ratelimit deployment: what of it means something here becomes a default
//! of `tidegate serve`, below flags and `TIDEGATE_*`; the rest is told by name, with what to do instead.
//!
//! Names that other programs use as well (`HOST`, `PORT`, `LOG_LEVEL`, `REDIS_URL` and the like) count only
//! beside one that is unmistakable, such as `RUNTIME_ROOT` or `GRPC_PORT`. No variable but `GRPC_HOST` and
//! `HOST` makes a door listen beyond loopback. docs/reference/envoyproxy-ratelimit.md has the whole table.

mod ignored;
mod values;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use ignored::{IGNORED, Name};
use std::collections::HashMap;
use std::ffi::OsString;

/// Names that mean something here and that hardly anybody else uses.
const TAKEN: [&str; 22] = [
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
/// Names that mean something here, and that others use as well: a SHADOW_MODE of another program must not
/// keep limits from being enforced.
const TAKEN_IN_COMPANY: [&str; 6] =
    ["HOST", "PORT", "LOG_LEVEL", "LOG_FORMAT", "SHADOW_MODE", "QUOTA_MODE"];

/// What an environment comes to.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    defaults: Vec<FlagDefault>,
    warnings: Vec<Warning>,
    mistakes: Vec<String>,
}

/// A default of a flag.
#[derive(Debug, PartialEq, Eq)]
struct FlagDefault {
    /// The variables that it comes from.
    from: &'static str,
    /// The flag's id.
    id: &'static str,
    value: String,
}

/// A variable that has no effect, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Warning {
    name: &'static str,
    advice: &'static str,
}

/// What is told at start, once there is a log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notices {
    taken: Vec<(&'static str, String)>,
    warnings: Vec<Warning>,
}

impl Inherited {
    /// Reads an environment.
    pub(crate) fn of(value_of: impl Fn(&'static str) -> Option<OsString>) -> Inherited {
        let mut inherited = Inherited::default();
        let mut set = HashMap::new();
        let ignored = || {
            IGNORED.iter().flat_map(|(kind, names, _)| names.iter().map(move |name| (*kind, *name)))
        };
        let own = TAKEN.into_iter().map(|name| (Name::Own, name));
        let shared = TAKEN_IN_COMPANY.into_iter().map(|name| (Name::Shared, name));
        let mut in_company = false;
        for (kind, name) in own.chain(shared).chain(ignored()) {
            // One that is empty is taken for one that is not set.
            let Some(value) = value_of(name).filter(|value| !value.is_empty()) else { continue };
            in_company |= kind == Name::Own;
            set.insert(name, (kind, value));
        }
        set.retain(|_, (kind, _)| in_company || *kind == Name::Own);
        let mut texts = HashMap::new();
        for (name, (_, value)) in set {
            match value.into_string() {
                Ok(text) => drop(texts.insert(name, text)),
                Err(value) => inherited.mistakes.push(format!("{name}={value:?}: expected UTF-8")),
            }
        }
        inherited.take(&Set { texts, in_company });
        inherited.mistakes.sort_unstable();
        inherited
    }

    /// Gives `serve` these defaults; flags that this version does not have are left out.
    pub(crate) fn defaults(&self, command: Command) -> Command {
        command.mut_subcommand("serve", |mut serve| {
            for FlagDefault { id, value, .. } in &self.defaults {
                if serve.get_arguments().any(|arg| arg.get_id() == id) {
                    // What is required must be given, whatever its default.
                    let with = |arg: clap::Arg| arg.required(false).default_value(value.clone());
                    serve = serve.mut_arg(id, with);
                }
            }
            serve
        })
    }

    /// Variables that cannot be understood, each with what was expected.
    pub(crate) fn mistakes(&self) -> &[String] {
        &self.mistakes
    }

    /// What to tell, now that it is known which flags were given.
    pub(crate) fn notices(&self, serve: &ArgMatches) -> Notices {
        let has = |default: &&FlagDefault| {
            let is_known = serve.ids().any(|id| id == default.id);
            is_known && serve.value_source(default.id) == Some(ValueSource::DefaultValue)
        };
        let taken = self.defaults.iter().filter(has).map(|default| {
            let flag = default.id.replace('_', "-");
            (default.from, format!("--{flag} {}", default.value))
        });
        Notices { taken: taken.collect(), warnings: self.warnings.clone() }
    }

    fn take(&mut self, set: &Set) {
        self.take_doors(set);
        self.take_limits(set);
        self.take_tls(set);
        for (name, id) in [
            ("MERGE_DOMAIN_CONFIG", "merge_domains"),
            ("SHADOW_MODE", "shadow_mode"),
            ("QUOTA_MODE", "quota_mode"),
            ("RESPONSE_DYNAMIC_METADATA", "dynamic_metadata"),
        ] {
            if let Some(value) = self.parsed(set, name, values::truth) {
                self.inherit(name, id, value.to_string());
            }
        }
        if self.parsed(set, "LIMIT_RESPONSE_HEADERS_ENABLED", values::truth) == Some(true) {
            self.inherit(
                "LIMIT_RESPONSE_HEADERS_ENABLED",
                "response_headers",
                "ratelimit".to_owned(),
            );
        }
        for (name, id) in [
            ("LIMIT_LIMIT_HEADER", "ratelimit_limit_header"),
            ("LIMIT_REMAINING_HEADER", "ratelimit_remaining_header"),
            ("LIMIT_RESET_HEADER", "ratelimit_reset_header"),
        ] {
            if let Some(header) = self.parsed(set, name, values::header) {
                self.inherit(name, id, header);
            }
        }
        for (name, id, read) in [
            ("LOG_LEVEL", "log", values::log_level as fn(&str) -> Result<String, &'static str>),
            ("LOG_FORMAT", "log_format", values::log_format),
            ("GRPC_MAX_CONNECTION_AGE", "connection_age", values::age),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "connection_age_grace", values::grace),
        ] {
            if let Some(value) = self.parsed(set, name, read) {
                self.inherit(name, id, value);
            }
        }
        self.take_counting(set);
        self.warn(set);
    }

    /// There, denied requests count unless it is said otherwise.
    fn take_counting(&mut self, set: &Set) {
        const STOP: &str = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
        let stops = self.parsed(set, STOP, values::truth);
        if stops != Some(true) && set.in_company {
            let from = if stops.is_some() { STOP } else { "its own default" };
            self.inherit(from, "count_denied", true.to_string());
        }
    }

    fn take_doors(&mut self, set: &Set) {
        let grpc = self.address(set, ("GRPC_HOST", "GRPC_PORT", "8081"));
        if let Some(socket) = self.parsed(set, "GRPC_UDS", values::socket) {
            self.inherit("GRPC_UDS", "grpc", socket);
        } else if let Some(address) = grpc {
            self.inherit("GRPC_HOST, GRPC_PORT", "grpc", address);
        }
        // Shells say the name of the machine in HOST, which is no word on where to listen.
        let host = if set.text("HOST").is_some_and(values::is_address) { "HOST" } else { "" };
        if let Some(address) = self.address(set, (host, "PORT", "8080")) {
            self.inherit("HOST, PORT", "http", address);
        }
        if host.is_empty() && set.text("HOST").is_some() {
            let advice = "a machine's name may come from a shell; say with --http where to listen";
            self.warnings.push(Warning { name: "HOST", advice });
        }
    }

    /// A host, or loopback; and a port, or the one that there is by default.
    fn address(
        &mut self,
        set: &Set,
        (host, port, port_else): (&'static str, &'static str, &str),
    ) -> Option<String> {
        let (host, port) =
            (self.parsed(set, host, values::host), self.parsed(set, port, values::port));
        if host.is_none() && port.is_none() {
            return None;
        }
        let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
        Some(format!("{host}:{}", port.as_deref().unwrap_or(port_else)))
    }

    fn take_limits(&mut self, set: &Set) {
        let parts = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
        let [root, subdirectory, appdirectory] = parts.map(|name| set.text(name));
        if root.or(subdirectory).or(appdirectory).is_none() {
            return;
        }
        let mut path = std::path::PathBuf::from(root.unwrap_or("/srv/runtime_data/current"));
        // As Go joins them: what begins with a slash does not start anew.
        for part in [subdirectory.unwrap_or_default(), appdirectory.unwrap_or("config")] {
            path.push(part.trim_start_matches('/'));
        }
        let from = "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY";
        // Made of texts, so it is one.
        self.inherit(from, "limits", path.to_string_lossy().into_owned());
    }

    fn take_tls(&mut self, set: &Set) {
        let is_on = self.parsed(set, "GRPC_SERVER_USE_TLS", values::truth) == Some(true);
        for (name, id) in [
            ("GRPC_SERVER_TLS_CERT", "tls_cert"),
            ("GRPC_SERVER_TLS_KEY", "tls_key"),
            ("GRPC_CLIENT_TLS_CACERT", "tls_client_ca"),
            ("GRPC_CLIENT_TLS_SAN", "tls_client_name"),
        ] {
            match set.text(name) {
                Some(value) if is_on => self.inherit(name, id, value.to_owned()),
                Some(_) => {
                    let advice =
                        "without GRPC_SERVER_USE_TLS=true it has no effect, there and here";
                    self.warnings.push(Warning { name, advice });
                }
                None if is_on && (id == "tls_cert" || id == "tls_key") => {
                    // Without, it would be served in the clear what was meant not to be.
                    self.mistakes.push(format!("GRPC_SERVER_USE_TLS=true: {name} must be set too"));
                }
                None => {}
            }
        }
    }

    /// Warns of what has no effect.
    fn warn(&mut self, set: &Set) {
        let mut warn = |name, advice| self.warnings.push(Warning { name, advice });
        for (_, names, advice) in IGNORED {
            let is_said = |name: &&&str| match set.text(name) {
                // What it is here as well.
                Some("FILE") => **name != "CONFIG_TYPE",
                text => text.is_some(),
            };
            names.iter().filter(is_said).for_each(|name| warn(name, advice));
        }
        let says =
            |name, truth| set.text(name).and_then(|text| values::truth(text).ok()) == Some(truth);
        if says("RUNTIME_IGNOREDOTFILES", false) {
            warn(
                "RUNTIME_IGNOREDOTFILES",
                "files whose names begin with a dot are never read; rename them",
            );
        }
        let ratio = set.text("NEAR_LIMIT_RATIO").map(str::parse::<f64>);
        if ratio.is_some_and(|ratio| ratio != Ok(0.8)) {
            warn("NEAR_LIMIT_RATIO", "near_limit counts from 0.8 of a limit on, always");
        }
        self.parsed(set, "RUNTIME_IGNOREDOTFILES", values::truth);
    }

    /// The value of a variable that is set; one that makes no sense is a mistake.
    fn parsed<T>(
        &mut self,
        set: &Set,
        name: &'static str,
        read: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<T> {
        let text = set.text(name)?;
        let read = read(text).map_err(|expected| format!("{name}={text:?}: expected {expected}"));
        read.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    fn inherit(&mut self, from: &'static str, id: &'static str, value: String) {
        self.defaults.push(FlagDefault { from, id, value });
    }
}

/// The variables that count.
struct Set {
    texts: HashMap<&'static str, String>,
    /// Whether one of them is unmistakable.
    in_company: bool,
}

impl Set {
    fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }
}

impl Notices {
    /// Tells them, a line each.
    pub(crate) fn log(&self) {
        for (variable, taken) in &self.taken {
            tracing::info!(variable, "taken from the environment of envoyproxy/ratelimit: {taken}");
        }
        for Warning { name, advice } in &self.warnings {
            tracing::warn!(variable = name, "has no effect: {advice}");
        }
    }
}

#[cfg(test)]
mod tests;
