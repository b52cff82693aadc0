//! One Envoy with both filters for many configurations: two listeners for each.

use super::blocks::DOMAIN;
use super::configuration::{Configuration, DEBIT, Place, ROUTE};
use super::recorder::Recorder;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::bootstrap::{
    cluster, http2, internal_addresses, merge, native, router, socket_address, wasm,
};
use tidegate_tests::envoy::{Envoy, listener_addresses, start_envoy};
use tidegate_tests::upstream::Upstream;

/// The name of Envoy's filter, and of ours.
pub(super) const FILTERS: [&str; 2] = ["native", "ours"];

/// A running Envoy with a configuration at each index.
pub(super) struct Stack {
    _envoy: Envoy,
    pub(super) recorder: Recorder,
    listeners: BTreeMap<String, SocketAddr>,
    _upstream: Upstream,
    _dir: TempDir,
}

/// The domain of a filter of the configuration at `index`, and its listener's name.
pub(super) fn domain(filter: &str, index: usize) -> String {
    format!("{filter}-{index}")
}

impl Stack {
    pub(super) async fn start(configurations: &[Configuration]) -> anyhow::Result<Stack> {
        let dir = TempDir::new()?;
        let upstream = Upstream::start("127.0.0.1:0").await?;
        let recorder = Recorder::start().await?;
        let mut listeners = Vec::new();
        for (index, configuration) in configurations.iter().enumerate() {
            for filter in FILTERS {
                listeners.push(listener(filter, index, configuration)?);
            }
        }
        let mut behind = cluster("upstream", &socket_address(upstream.address), &json!({}));
        behind["metadata"] = metadata("cluster");
        let other = cluster("other", &socket_address(upstream.address), &json!({}));
        let rls = cluster("rls", &socket_address(recorder.address), &http2());
        let bootstrap = json!({
            "admin": {"address": socket_address("127.0.0.1:0".parse()?)},
            "static_resources": {"listeners": listeners, "clusters": [behind, other, rls]},
            "layered_runtime": {"layers": [{"name": "all", "static_layer": {
                "envoy.features.enable_all_deprecated_features": true,
                "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value": true,
            }}]},
        });
        let envoy = start_envoy(&bootstrap.to_string(), dir.path(), 1).await?;
        let listeners = listener_addresses(envoy.admin).await?.into_iter().collect();
        Ok(Stack { _envoy: envoy, recorder, listeners, _upstream: upstream, _dir: dir })
    }

    /// The listener of a filter of the configuration at `index`.
    pub(super) fn address(&self, filter: &str, index: usize) -> anyhow::Result<SocketAddr> {
        let address = self.listeners.get(&domain(filter, index)).copied();
        address.with_context(|| format!("no listener of {filter} {index}"))
    }
}

pub(super) fn metadata(of: &str) -> Value {
    let values = json!({
        "text": of,
        "empty": "",
        "seven": 7,
        "deep": {"er": format!("{of} down")},
        "list": [format!("{of} first"), {"inner": "in a list"}, ["a", "b"]],
        "limit": {"requests_per_unit": 42, "unit": "HOUR"},
        "no_limit": {"requests_per_unit": "many", "unit": "HOUR"},
    });
    json!({"filter_metadata": {"dyn": values}})
}

fn listener(filter: &str, index: usize, configuration: &Configuration) -> anyhow::Result<Value> {
    let domain = domain(filter, index);
    let (mut named, mut host) = (route("/named", "upstream"), json!({}));
    merge(&mut named, &json!({"name": ROUTE, "metadata": metadata("route")}));
    let limiting = if filter == "native" {
        let mut native = native(&domain);
        native["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"] =
            json!({"cluster_name": "rls"});
        merge(&mut native["typed_config"], &configuration.native);
        match configuration.place {
            Place::Filter | Place::Blocks => {}
            Place::Host => host["rate_limits"] = configuration.entries.clone(),
            Place::Route => named["route"]["rate_limits"] = configuration.entries.clone(),
        }
        native
    } else {
        wasm(&artifacts::filter()?, "twin", Some(&plugin(&domain, configuration)))
    };
    let routes = json!([named, route("/other", "other"), route("/", "upstream")]);
    merge(&mut host, &json!({"name": "all", "domains": ["*"], "routes": routes}));
    let hosts = match &configuration.blocks {
        Some(blocks) => {
            serde_json::from_str(&blocks.for_envoy().to_string().replace(DOMAIN, &domain))?
        }
        None => json!([host]),
    };
    // What the upstream says that a stream has cost.
    let header = json!({"key": DEBIT, "value": format!("%REQ({DEBIT})%")});
    Ok(json!({
        "name": domain,
        "address": socket_address("127.0.0.1:0".parse()?),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "twin",
                "internal_address_config": internal_addresses(),
                "generate_request_id": false,
                "route_config": {
                    "virtual_hosts": hosts,
                    "response_headers_to_add": [{"header": header}],
                },
                "http_filters": [set_metadata(), header_to_metadata(), limiting, router()],
            },
        }]}],
    }))
}

fn route(prefix: &str, cluster: &str) -> Value {
    json!({"match": {"prefix": prefix}, "route": {"cluster": cluster}})
}

/// Without leases, so that each request is a call.
fn plugin(domain: &str, configuration: &Configuration) -> String {
    let mut plugin = json!({
        "domain": domain,
        "sidecar": {"cluster": "rls", "timeout_ms": 5000},
        "headers": "off",
        "leases": {"slots": 0},
    });
    merge(&mut plugin, &configuration.ours);
    // Envoy's filter has no body of its own.
    plugin["denied"]["body"] = json!("");
    plugin.to_string().replace(DOMAIN, domain)
}

fn set_metadata() -> Value {
    let metadata = metadata("request")["filter_metadata"]["dyn"].take();
    json!({"name": "envoy.filters.http.set_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "dyn", "value": metadata}],
    }})
}

fn header_to_metadata() -> Value {
    let to = json!({"metadata_namespace": "header", "key": "meta", "type": "STRING"});
    json!({"name": "envoy.filters.http.header_to_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": "x-meta", "on_header_present": to}],
    }})
}
