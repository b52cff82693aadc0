//! The variables of envoyproxy/ratelimit for limits by xDS. They count where `CONFIG_TYPE` is `GRPC_XDS_SOTW`.

use super::{RatelimitEnv, Variables, Warning, values};
use tidegate_feeds::ServerAddress;

pub(super) const NAMES: [&str; 18] = [
    "CONFIG_TYPE",
    "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_NODE_METADATA",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
];

/// Its own default.
const SERVER: &str = "localhost:18000";
/// Variables of TLS and their flags.
const TLS: [(&str, &str); 4] = [
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "xds_cert"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "xds_key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "xds_ca"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds_server_name"),
];

/// Reads the variables. Returns whether limits come by xDS.
pub(super) fn read(environment: &mut RatelimitEnv, set: &Variables) -> bool {
    let is_xds = environment.parsed(set, "CONFIG_TYPE", |text| match text {
        "FILE" => Ok(false),
        "GRPC_XDS_SOTW" => Ok(true),
        _ => Err("FILE or GRPC_XDS_SOTW"),
    });
    if is_xds != Some(true) {
        let advice = "limits come by xDS only with CONFIG_TYPE=GRPC_XDS_SOTW";
        let others =
            NAMES.iter().filter(|name| **name != "CONFIG_TYPE" && set.text(name).is_some());
        environment.warnings.extend(others.map(|name| Warning { name, advice }));
        return false;
    }
    read_server(environment, set);
    for (name, id, parse) in [
        ("CONFIG_GRPC_XDS_NODE_ID", "xds_node_id", values::any as values::Parser),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "xds_node_metadata", values::any),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "xds_headers", values::any),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "xds_connect_retry", values::wait),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "xds_backoff_initial", values::wait),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "xds_backoff_max", values::wait),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "xds_message_bytes", values::message_bytes),
    ] {
        if let Some(value) = environment.parsed(set, name, parse).filter(|value| !value.is_empty())
        {
            environment.add_default(name, id, value);
        }
    }
    read_jitter(environment, set);
    read_start(environment, set);
    true
}

fn read_server(environment: &mut RatelimitEnv, set: &Variables) {
    const URL: &str = "CONFIG_GRPC_XDS_SERVER_URL";
    const USE_TLS: &str = "CONFIG_GRPC_XDS_SERVER_USE_TLS";
    let is_tls = environment.parsed(set, USE_TLS, values::truth) == Some(true);
    let url = set.text(URL).unwrap_or(SERVER);
    // As gRPC names a target that is looked up by DNS.
    let authority = url.strip_prefix("dns:///").unwrap_or(url);
    match ServerAddress::parse(authority, is_tls) {
        Ok(server) => environment.add_default(URL, "limits", server.to_string()),
        Err(expected) => environment.mistakes.push(format!("{URL}={url:?}: {expected}")),
    }
    for (name, id) in TLS {
        match set.text(name) {
            Some(value) if is_tls => environment.add_default(name, id, value.to_owned()),
            Some(_) => {
                let advice = "without CONFIG_GRPC_XDS_SERVER_USE_TLS=true it has no effect in envoyproxy/ratelimit either";
                environment.warnings.push(Warning { name, advice });
            }
            None => {}
        }
    }
}

fn read_jitter(environment: &mut RatelimitEnv, set: &Variables) {
    const JITTER: &str = "XDS_CLIENT_BACKOFF_JITTER";
    const FACTOR: &str = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR";
    let factor = environment.parsed(set, FACTOR, values::share);
    match environment.parsed(set, JITTER, values::truth) {
        Some(false) => environment.add_default(JITTER, "xds_backoff_jitter", "0".to_owned()),
        _ => {
            if let Some(factor) = factor {
                environment.add_default(FACTOR, "xds_backoff_jitter", factor);
            }
        }
    }
}

/// Without limits, a service that is healthy only with some is not ready, so it waits for them.
fn read_start(environment: &mut RatelimitEnv, set: &Variables) {
    const FORCED: &str = "FORCE_START_WITHOUT_INITIAL_CONFIG";
    const HEALTHY: &str = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED";
    let is_forced = environment.parsed(set, FORCED, values::truth) == Some(true);
    let needs_limits = environment.parsed(set, HEALTHY, values::truth) == Some(true);
    if is_forced && !needs_limits {
        environment.add_default(FORCED, "start_without_limits", true.to_string());
    }
}
