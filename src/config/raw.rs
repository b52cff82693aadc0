//! The configuration as it is spelt, and the checks that make it a [`super::Config`].

use super::{ConfigError, DeniedReply, FailureMode, HeaderStyle, WhenAbsent};
use serde::Deserialize;
use std::time::Duration;

/// Envoy's own rate limit filter gives an ask 20 ms unless told otherwise.
const TIMEOUT_MS_DEFAULT: u64 = 20;
/// A request held for a minute is lost anyway.
const TIMEOUT_MS_MAX: u64 = 60_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    domain: String,
    sidecar: Sidecar,
    #[serde(default)]
    failure_mode: FailureMode,
    rate_limits: Vec<RateLimit>,
    #[serde(default)]
    headers: HeaderStyle,
    #[serde(default)]
    denied: Denied,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `cluster`")]
struct Sidecar {
    cluster: String,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, expecting = "an object with `status` or `body`")]
struct Denied {
    status: Option<u32>,
    body: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `actions`")]
struct RateLimit {
    actions: Vec<Action>,
}

/// A protobuf oneof: exactly one of the fields is set. Fields rather than an enum, so that serde
/// names a misspelt action together with those that exist.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with one action")]
struct Action {
    request_headers: Option<RequestHeaders>,
    remote_address: Option<RemoteAddress>,
    generic_key: Option<GenericKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `header_name` and `descriptor_key`")]
struct RequestHeaders {
    header_name: String,
    descriptor_key: String,
    #[serde(default)]
    skip_if_absent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an empty object")]
struct RemoteAddress {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `descriptor_value`")]
struct GenericKey {
    descriptor_value: String,
    descriptor_key: Option<String>,
}

impl Config {
    pub(super) fn validate(self) -> Result<super::Config, ConfigError> {
        let cluster = not_empty("sidecar.cluster", self.sidecar.cluster)?;
        Ok(super::Config {
            domain: not_empty("domain", self.domain)?,
            call_target: call_target(&cluster)?,
            cluster,
            timeout: timeout(self.sidecar.timeout_ms)?,
            failure_mode: self.failure_mode,
            rate_limits: rate_limits(self.rate_limits)?,
            headers: self.headers,
            denied: denied(self.denied)?,
        })
    }
}

fn not_empty(path: &str, value: String) -> Result<String, ConfigError> {
    if value.is_empty() {
        return Err(ConfigError::new(path, "must not be empty"));
    }
    Ok(value)
}

fn call_target(cluster: &str) -> Result<String, ConfigError> {
    tidegate_wire::grpc_service_of_cluster(cluster).ok_or_else(|| {
        let (bytes, max) = (cluster.len(), tidegate_wire::CLUSTER_NAME_BYTES_MAX);
        let message = format!("the name has {bytes} bytes (maximum {max})");
        ConfigError::new("sidecar.cluster", message)
    })
}

fn timeout(timeout_ms: Option<u64>) -> Result<Duration, ConfigError> {
    let timeout_ms = timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT);
    if !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
        return Err(ConfigError::new(
            "sidecar.timeout_ms",
            format!("{timeout_ms} is out of range (1 to {TIMEOUT_MS_MAX})"),
        ));
    }
    Ok(Duration::from_millis(timeout_ms))
}

fn denied(denied: Denied) -> Result<DeniedReply, ConfigError> {
    let status = denied.status.unwrap_or(429);
    if !(400..=599).contains(&status) {
        return Err(ConfigError::new(
            "denied.status",
            format!("{status} is out of range (400 to 599)"),
        ));
    }
    let body = denied.body.unwrap_or_else(|| "rate limit exceeded\n".to_owned());
    Ok(DeniedReply { status, body })
}

fn rate_limits(rate_limits: Vec<RateLimit>) -> Result<Vec<super::RateLimit>, ConfigError> {
    if rate_limits.is_empty() {
        return Err(ConfigError::new(
            "rate_limits",
            "must not be empty; without descriptors there is nothing to limit",
        ));
    }
    let (count, max) = (rate_limits.len(), tidegate_wire::DESCRIPTORS_MAX);
    if count > max {
        return Err(ConfigError::new(
            "rate_limits",
            format!("{count} are too many (maximum {max})"),
        ));
    }
    let mut valid = Vec::with_capacity(count);
    for (index, rate_limit) in rate_limits.into_iter().enumerate() {
        let path = format!("rate_limits[{index}].actions");
        if rate_limit.actions.is_empty() {
            return Err(ConfigError::new(path, "must not be empty"));
        }
        let mut actions = Vec::with_capacity(rate_limit.actions.len());
        for (index, raw) in rate_limit.actions.into_iter().enumerate() {
            actions.push(action(&format!("{path}[{index}]"), raw)?);
        }
        valid.push(super::RateLimit { actions });
    }
    Ok(valid)
}

fn action(path: &str, action: Action) -> Result<super::Action, ConfigError> {
    match (action.request_headers, action.remote_address, action.generic_key) {
        (Some(headers), None, None) => request_headers(&format!("{path}.request_headers"), headers),
        (None, Some(RemoteAddress {}), None) => Ok(super::Action::RemoteAddress),
        (None, None, Some(key)) => generic_key(&format!("{path}.generic_key"), key),
        _ => Err(ConfigError::new(
            path,
            "expected exactly one of `request_headers`, `remote_address`, `generic_key`",
        )),
    }
}

fn request_headers(path: &str, raw: RequestHeaders) -> Result<super::Action, ConfigError> {
    Ok(super::Action::RequestHeaders {
        header_name: header_name(&format!("{path}.header_name"), raw.header_name)?,
        descriptor_key: not_empty(&format!("{path}.descriptor_key"), raw.descriptor_key)?,
        when_absent: if raw.skip_if_absent {
            WhenAbsent::SkipEntry
        } else {
            WhenAbsent::DropDescriptor
        },
    })
}

fn generic_key(path: &str, raw: GenericKey) -> Result<super::Action, ConfigError> {
    let key = raw.descriptor_key.unwrap_or_else(|| "generic_key".to_owned());
    Ok(super::Action::GenericKey {
        descriptor_key: not_empty(&format!("{path}.descriptor_key"), key)?,
        descriptor_value: not_empty(&format!("{path}.descriptor_value"), raw.descriptor_value)?,
    })
}

/// A header name as RFC 9110 has it (a token), or a pseudo-header.
fn header_name(path: &str, name: String) -> Result<String, ConfigError> {
    let token = name.strip_prefix(':').unwrap_or(&name);
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if token.is_empty() || !token.bytes().all(is_token_byte) {
        return Err(ConfigError::new(path, format!("{name:?} is not a header name")));
    }
    Ok(name.to_ascii_lowercase())
}
