//! The options of Envoy's filter. Those that have another name here are translated. All others go through unchanged
//! if the filter's own reader accepts them.

use super::entries::{List, Owner, list, read};
use super::find::NativeFilter;
use super::input::{At, field_name};
use super::report::Report;
use crate::arguments::TranslateOptions;
use serde_json::{Map, Value, json};
use tidegate_limits::suggestion;

/// All fields of the filter in Envoy 1.40.
const KNOWN: [&str; 19] = [
    "domain",
    "stage",
    "request_type",
    "timeout",
    "failure_mode_deny",
    "rate_limited_as_resource_exhausted",
    "rate_limit_service",
    "enable_x_ratelimit_headers",
    "disable_x_envoy_ratelimited_header",
    "rate_limited_status",
    "response_headers_to_add",
    "status_on_error",
    "stat_prefix",
    "filter_enabled",
    "filter_enforced",
    "failure_mode_deny_percent",
    "rate_limits",
    "metadata_namespace",
    "enable_retry_after_header",
];

/// The most time for a call.
const TIMEOUT_MS_MAX: f64 = 60_000.0;

/// The configuration without lists of entries, and the filter's own list.
pub(super) fn translate(
    filter: Option<&NativeFilter<'_>>,
    options: &TranslateOptions,
    report: &mut Report,
) -> Result<(Value, List), String> {
    let at = filter.map(|filter| filter.at);
    let domain = options.domain.as_deref().or_else(|| at?.text_of("domain"));
    let domain = domain.ok_or_else(|| missing("domain", "--domain NAME", at))?;
    let service = at.and_then(|at| at.at(&["rate_limit_service", "grpc_service"]));
    let cluster = service.and_then(|service| service.at(&["envoy_grpc", "cluster_name"])?.text());
    let cluster = options.cluster.as_deref().or(cluster);
    let cluster = cluster.ok_or_else(|| missing("cluster of the sidecar", "--cluster NAME", at))?;
    let mut config = Map::new();
    config.insert("domain".to_owned(), domain.into());
    config.insert("sidecar".to_owned(), json!({"cluster": cluster}));
    if let Some(at) = at {
        // Without these fields, Envoy has these defaults, and this filter others.
        config.insert("headers".to_owned(), "off".into());
        config.insert("denied".to_owned(), json!({"body": ""}));
        for (written, value) in at.fields() {
            option(&field_name(written), value, &mut config, report);
        }
        if let Some(service) = service {
            self::service(service, report);
        }
    }
    Ok((Value::Object(config), list(at, "", Owner::Filter, report)))
}

fn missing(what: &str, flag: &str, at: Option<At<'_>>) -> String {
    match at {
        Some(at) => format!("{}: the filter has no {what}; give it with {flag}", at.place()),
        None => format!("the input has no rate limit filter, so no {what}; give it with {flag}"),
    }
}

fn option(name: &str, value: At<'_>, config: &mut Map<String, Value>, report: &mut Report) {
    match name {
        "@type" | "domain" | "rate_limit_service" | "rate_limits" => {}
        _ if value.json().is_null() => {}
        "timeout" => match milliseconds(value) {
            Some(ms) if ms > 0.0 && ms <= TIMEOUT_MS_MAX => {
                config["sidecar"]["timeout_ms"] = json!(ms.ceil() as u64);
            }
            Some(_) => {
                config["sidecar"]["timeout_ms"] = json!(TIMEOUT_MS_MAX as u64);
                let message =
                    "calls without end or of more than 60 s are not supported; 60 s is used";
                report.missing(&value, name, message);
            }
            None => report.missing(&value, name, "expected a duration such as 0.02s"),
        },
        "failure_mode_deny" => {
            let mode = if value.json() == json!(true) { "deny" } else { "allow" };
            config.insert("failure_mode".to_owned(), mode.into());
        }
        "enable_x_ratelimit_headers" => {
            let is_on = [json!("DRAFT_VERSION_03"), json!(1)].contains(&value.json());
            config.insert("headers".to_owned(), if is_on { "draft03" } else { "off" }.into());
        }
        "rate_limited_status" => {
            // Envoy takes one below 400 for 429.
            let code = value.json()["code"].as_u64().filter(|code| *code >= 400);
            config["denied"]["status"] = json!(code.unwrap_or(429));
        }
        // Denials always have it here.
        "enable_retry_after_header" if !is_accepted(name, &value.json()) => {}
        _ if KNOWN.contains(&name) => pass(name, value, config, report),
        _ => {
            let meant = suggestion(name, &KNOWN);
            report.missing(&value, name, format!("unknown field{meant}; it is left out"));
        }
    }
}

/// An option with the same name here.
fn pass(name: &str, value: At<'_>, config: &mut Map<String, Value>, report: &mut Report) {
    if let Some(key) = value.field("runtime_key") {
        let message = "has no effect: a Wasm filter cannot read Envoy's runtime";
        report.note(&key, &format!("{name}.runtime_key"), message);
    }
    let json = value.json();
    match read(&alone(name, &json)) {
        Ok(()) => {
            config.insert(name.to_owned(), json);
        }
        Err(error) => {
            let place = value
                .at_path(error.path.strip_prefix(name).unwrap_or_default().trim_start_matches('.'));
            let message = match error.message.starts_with("unknown field") && error.path == name {
                true => "has no equivalent",
                false => &error.message,
            };
            report.missing(&place, &error.path, format!("{message}; it is left out"));
        }
    }
}

fn is_accepted(name: &str, value: &Value) -> bool {
    read(&alone(name, value)).is_ok()
}

/// A configuration with one option.
fn alone(name: &str, value: &Value) -> Value {
    let stage = if name == "stage" { value.clone() } else { json!(0) };
    let entry = json!({"actions": [{"remote_address": {}}], "stage": stage});
    let mut config = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [entry]});
    config[name] = value.clone();
    config
}

/// What a call of Envoy's filter has besides its cluster.
fn service(service: At<'_>, report: &mut Report) {
    let path = "rate_limit_service.grpc_service";
    for (written, value) in service.fields() {
        match field_name(written).as_str() {
            // Envoy's filter does not use it either.
            "envoy_grpc" | "timeout" => {}
            "google_grpc" => {
                let message = "the sidecar is called through a cluster of Envoy; define one, and name it in --cluster";
                report.missing(&value, &format!("{path}.google_grpc"), message);
            }
            name => {
                let message = "has no equivalent; it is left out";
                report.missing(&value, &format!("{path}.{name}"), message);
            }
        }
    }
    for (written, value) in
        service.field("envoy_grpc").map(|grpc| grpc.fields()).unwrap_or_default()
    {
        let name = field_name(written);
        if name != "cluster_name" && name != "authority" {
            let message = "has no equivalent; it is left out";
            report.missing(&value, &format!("{path}.envoy_grpc.{name}"), message);
        }
    }
}

/// A duration as protobuf's JSON has it, or as a message.
fn milliseconds(value: At<'_>) -> Option<f64> {
    if let Some(text) = value.text() {
        let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
        return (seconds >= 0.0).then_some(seconds * 1000.0);
    }
    let json = value.json();
    let part = |name: &str| json.get(name).map_or(Some(0.0), Value::as_f64);
    (value.is_map()).then_some(part("seconds")? * 1000.0 + part("nanos")? / 1e6)
}
