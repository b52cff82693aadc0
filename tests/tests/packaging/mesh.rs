//! What a control plane makes of manifests: the configuration of one proxy. Istio's parts are as in its
//! `pilot/pkg/model/extensions.go` and `pilot/pkg/networking/core`, reduced to what the manifests use.

use super::manifests::Manifests;
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use tidegate_tests::bootstrap::{cluster, http2, router, socket_address};

const WASM: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const MANAGER: &str = "envoy.filters.network.http_connection_manager";
const MANAGER_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// What a proxy is made from besides manifests.
#[derive(Debug)]
pub(crate) struct Around<'a> {
    /// For files that the agent of a proxy writes.
    pub(crate) dir: &'a Path,
    /// The module that the agent has fetched.
    pub(crate) module: &'a Path,
    /// The sidecar's socket.
    pub(crate) sidecar: &'a Path,
    /// The application.
    pub(crate) upstream: SocketAddr,
    /// The name of the virtual host.
    pub(crate) host: &'a str,
    /// Routes by their names: prefixes of paths.
    pub(crate) routes: &'a [(&'a str, &'a str)],
}

/// The bootstrap of a proxy in the mesh of these manifests.
pub(crate) fn istio(manifests: &Manifests, around: &Around<'_>) -> anyhow::Result<Value> {
    let known = service_clusters(manifests)?;
    let mut filters = Vec::new();
    for (kind, prefix) in [("WasmPlugin", "wasmplugin"), ("TrafficExtension", "trafficextension")] {
        for plugin in manifests.of(kind) {
            let module =
                if kind == "WasmPlugin" { &plugin["spec"] } else { &plugin["spec"]["wasm"] };
            let called =
                module["pluginConfig"]["sidecar"]["cluster"].as_str().context("a cluster")?;
            ensure!(known.contains_key(called), "{called} is none of {:?}", known.keys());
            filters.push(discovered(plugin, module, prefix, around)?);
        }
    }
    filters.push(router());
    let mut proxy = bootstrap(&filters, around);
    for (name, is_grpc) in known {
        let options = if is_grpc { http2() } else { json!({}) };
        let address = json!({"pipe": {"path": around.sidecar}});
        push(&mut proxy, "/static_resources/clusters", cluster(&name, &address, &options))?;
    }
    for filter in manifests.of("EnvoyFilter") {
        for patch in filter["spec"]["configPatches"].as_array().context("patches")? {
            apply(&mut proxy, patch)?;
        }
    }
    Ok(proxy)
}

/// The bootstrap of an Envoy of Envoy Gateway.
pub(crate) fn gateway(manifests: &Manifests, around: &Around<'_>) -> anyhow::Result<Value> {
    let mut filters = Vec::new();
    for policy in manifests.of("EnvoyExtensionPolicy") {
        for wasm in policy["spec"]["wasm"].as_array().context("wasm")? {
            let name = wasm["name"].as_str().context("a name")?;
            let mut config = plugin_config(name, &wasm["config"], around.module);
            config["vm_config"]["vm_id"] = json!(name);
            config["failure_policy"] =
                json!(if wasm["failOpen"] == true { "FAIL_OPEN" } else { "FAIL_CLOSED" });
            filters.push(json!({"name": name, "typed_config": {"@type": WASM, "config": config}}));
        }
    }
    filters.push(router());
    let mut proxy = bootstrap(&filters, around);
    for object in manifests.of("EnvoyProxy") {
        for patch in object["spec"]["bootstrap"]["jsonPatches"].as_array().context("patches")? {
            let path = patch["path"].as_str().context("a path")?;
            let list = path.strip_suffix("/-").context("only additions to lists")?;
            ensure!(patch["op"] == "add", "{patch}");
            push(&mut proxy, list, patch["value"].clone())?;
        }
    }
    // The name of a Service means the socket of the test.
    for cluster in proxy["static_resources"]["clusters"].as_array_mut().context("clusters")? {
        if cluster["type"] == "STRICT_DNS" {
            cluster["type"] = json!("STATIC");
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            let address = cluster.pointer_mut(endpoint).context("an endpoint")?;
            *address = json!({"pipe": {"path": around.sidecar}});
        }
    }
    Ok(proxy)
}

fn bootstrap(filters: &[Value], around: &Around<'_>) -> Value {
    let route = |(name, prefix): &(&str, &str)| json!({"name": name, "match": {"prefix": prefix}, "route": {"cluster": "upstream"}});
    let routes: Vec<Value> = around.routes.iter().map(route).collect();
    let any = || json!({"address": socket_address(SocketAddr::from(([127, 0, 0, 1], 0)))});
    let mut listener = any();
    listener["name"] = json!("main");
    listener["filter_chains"] = json!([{"filters": [{"name": MANAGER, "typed_config": {
        "@type": MANAGER_TYPE,
        "stat_prefix": "main",
        "route_config": {"virtual_hosts": [{"name": around.host, "domains": ["*"], "routes": routes}]},
        "http_filters": filters,
    }}]}]);
    json!({
        "node": {"id": "proxy", "cluster": "mesh"},
        "admin": any(),
        "static_resources": {
            "listeners": [listener],
            "clusters": [cluster("upstream", &socket_address(around.upstream), &json!({}))],
        },
    })
}

/// The clusters of Services and ServiceEntries, and whether each speaks gRPC: the protocol is in the name of a port.
fn service_clusters(manifests: &Manifests) -> anyhow::Result<BTreeMap<String, bool>> {
    let mut clusters = BTreeMap::new();
    for service in manifests.of("Service") {
        let of = |field: &str| {
            service["metadata"][field].as_str().context("metadata").map(str::to_owned)
        };
        for port in service["spec"]["ports"].as_array().context("ports")? {
            let name = port["name"].as_str().unwrap_or_default();
            let cluster = format!(
                "outbound|{}||{}.{}.svc.cluster.local",
                port["port"],
                of("name")?,
                of("namespace")?
            );
            clusters.insert(cluster, name == "grpc" || name.starts_with("grpc-"));
        }
    }
    for entry in manifests.of("ServiceEntry") {
        let spec = &entry["spec"];
        let socket = spec["endpoints"][0]["address"].as_str().context("an endpoint")?;
        let socket = socket.strip_prefix("unix://").context("a Unix socket")?;
        let opened = manifests.arguments()?;
        ensure!(opened.contains(&format!("--grpc=unix:{socket}")), "{socket} is not in {opened:?}");
        for port in spec["ports"].as_array().context("ports")? {
            let host = spec["hosts"][0].as_str().context("a host")?;
            clusters
                .insert(format!("outbound|{}||{host}", port["number"]), port["protocol"] == "GRPC");
        }
    }
    Ok(clusters)
}

/// The filter of a plugin. Its configuration is discovered, here in a file.
fn discovered(
    plugin: &Value,
    module: &Value,
    kind: &str,
    around: &Around<'_>,
) -> anyhow::Result<Value> {
    let of = |field: &str| plugin["metadata"][field].as_str().context("metadata");
    let name = format!("{}.{}", of("namespace")?, of("name")?);
    let resource = format!("extensions.istio.io/{kind}/{name}");
    let mut config = plugin_config(&name, &module["pluginConfig"], around.module);
    config["failure_policy"] = match module["failStrategy"].as_str() {
        Some("FAIL_OPEN") => json!("FAIL_OPEN"),
        Some("FAIL_RELOAD") => json!("FAIL_RELOAD"),
        _ => json!("FAIL_CLOSED"),
    };
    let response = json!({"version_info": "1", "resources": [{
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": resource,
        "typed_config": {"@type": WASM, "config": config},
    }]});
    let path = around.dir.join(format!("{kind}.{name}.json"));
    std::fs::write(&path, response.to_string())?;
    Ok(json!({"name": resource, "config_discovery": {
        "config_source": {
            "path_config_source": {"path": path}, "resource_api_version": "V3", "initial_fetch_timeout": "0s",
        },
        "type_urls": [WASM],
    }}))
}

/// The plugin's configuration arrives as JSON text.
fn plugin_config(name: &str, plugin: &Value, module: &Path) -> Value {
    json!({
        "name": name,
        "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": module}}},
        "configuration": {
            "@type": "type.googleapis.com/google.protobuf.StringValue", "value": plugin.to_string(),
        },
    })
}

/// Applies one patch of an EnvoyFilter.
fn apply(proxy: &mut Value, patch: &Value) -> anyhow::Result<()> {
    let (matched, value) = (&patch["match"], &patch["patch"]["value"]);
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = proxy.pointer_mut(manager).context("a connection manager")?;
    let place = (patch["applyTo"].as_str(), patch["patch"]["operation"].as_str());
    let vhost = &matched["routeConfiguration"]["vhost"];
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    match place {
        (Some("HTTP_FILTER"), Some("INSERT_BEFORE")) => {
            let filter = &matched["listener"]["filterChain"]["filter"];
            ensure!(filter["name"] == MANAGER, "{filter}");
            let filters = manager["http_filters"].as_array_mut().context("filters")?;
            let at = filters.iter().position(|known| known["name"] == filter["subFilter"]["name"]);
            filters.insert(at.with_context(|| format!("no filter {filter}"))?, value.clone());
        }
        (Some("VIRTUAL_HOST"), Some("MERGE")) => {
            ensure!(vhost["name"] == host["name"], "{vhost}");
            merge(host, value);
        }
        (Some("HTTP_ROUTE"), Some("MERGE")) => {
            let routes = host["routes"].as_array_mut().context("routes")?;
            let named = routes.iter_mut().find(|route| route["name"] == vhost["route"]["name"]);
            merge(named.with_context(|| format!("no route {vhost}"))?, value);
        }
        _ => bail!("a patch that the test does not know: {patch}"),
    }
    Ok(())
}

/// Merges as messages merge: lists are joined.
fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (name, value) in from {
                merge(to.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(to), Value::Array(from)) => to.extend(from.iter().cloned()),
        (to, from) => *to = from.clone(),
    }
}

fn push(document: &mut Value, list: &str, value: Value) -> anyhow::Result<()> {
    let list = document.pointer_mut(list).and_then(Value::as_array_mut);
    list.context("a list")?.push(value);
    Ok(())
}
