//! A real Envoy with the built filter in it.

use crate::client::get;
use crate::process::Process;
use crate::{artifacts, wait};
use anyhow::Context;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use tokio::process::Command;

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    /// The process.
    pub process: Process,
    /// Its listener.
    pub address: SocketAddr,
    /// Its admin interface.
    pub admin: SocketAddr,
}

impl Envoy {
    /// Starts Envoy on the configuration in `config` (YAML or JSON, ports may be 0), with its log
    /// in `dir`, and waits until it is ready.
    ///
    /// # Errors
    /// When it ends instead; the error has its log.
    pub async fn start(config: &Path, dir: &Path, workers: u32) -> anyhow::Result<Envoy> {
        let mut process = Envoy::launch(config, dir, workers)?;
        let admin_path = admin_path(dir);
        let ready = wait::until("Envoy to be ready", async || {
            if let Err(ended) = process.check_running() {
                return Some(Err(ended));
            }
            let admin = std::fs::read_to_string(&admin_path).ok()?.trim().parse().ok()?;
            let ready = get(admin, "/ready").await.ok()?;
            (ready.status == 200).then_some(Ok::<SocketAddr, anyhow::Error>(admin))
        });
        let admin = ready.await?.context("Envoy did not start")?;
        let address = listener_address(admin).await?;
        Ok(Envoy { process, address, admin })
    }

    /// Starts Envoy without waiting, for configurations that it should refuse.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn launch(config: &Path, dir: &Path, workers: u32) -> anyhow::Result<Process> {
        let mut command = Command::new(artifacts::envoy()?);
        let workers = workers.to_string();
        command
            .args(["--concurrency", &workers, "--disable-hot-restart"])
            // Enough to see why it ends, and what the filter logs.
            .args(["--log-level", "warn", "--component-log-level", "wasm:info"])
            .arg("--admin-address-path")
            .arg(admin_path(dir))
            .arg("--config-path")
            .arg(config);
        Process::start(command, "envoy", dir)
    }

    /// One of Envoy's own counters or gauges.
    ///
    /// # Errors
    /// When the admin interface does not answer, or has no such stat.
    pub async fn stat(&self, name: &str) -> anyhow::Result<u64> {
        let reply = get(self.admin, &format!("/stats?filter=^{name}$")).await?;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let value = text.trim().rsplit_once(": ").and_then(|(_, value)| value.parse().ok());
        value.with_context(|| format!("Envoy has no stat {name}: {text:?}"))
    }
}

fn admin_path(dir: &Path) -> std::path::PathBuf {
    dir.join("admin-address")
}

async fn listener_address(admin: SocketAddr) -> anyhow::Result<SocketAddr> {
    let reply = get(admin, "/listeners?format=json").await?;
    let listeners: Value = serde_json::from_slice(&reply.body)?;
    let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
    let (host, port) = (address["address"].as_str(), address["port_value"].as_u64());
    let (host, port) = host.zip(port).context("Envoy has no listener")?;
    Ok(format!("{host}:{port}").parse()?)
}

/// What limits the requests.
#[derive(Debug, Clone, Copy)]
pub enum Filter<'a> {
    /// Nothing.
    None,
    /// Tidegate, with its plugin configuration as it is handed over: a JSON text.
    Tidegate(&'a str),
    /// Envoy's own rate limit filter, with a domain and one descriptor from a header.
    Native {
        /// The domain.
        domain: &'a str,
        /// The header.
        header: &'a str,
        /// The descriptor's key.
        key: &'a str,
    },
}

/// How an Envoy is to be set up.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What limits the requests.
    pub filter: Filter<'a>,
    /// The sidecar's socket.
    pub sidecar: &'a Path,
    /// The upstream.
    pub upstream: SocketAddr,
}

/// A bootstrap configuration with the filter on one listener, all ports picked by the system.
///
/// # Errors
/// When the filter is not built.
pub fn bootstrap(setup: &Setup<'_>) -> anyhow::Result<Value> {
    Ok(json!({
        "admin": {"address": socket_address("127.0.0.1:0".parse()?)},
        "static_resources": {
            "listeners": [{
                "name": "main",
                "address": socket_address("127.0.0.1:0".parse()?),
                // Spreads connections evenly over the workers; the kernel alone may not.
                "connection_balance_config": {"exact_balance": {}},
                "filter_chains": [{"filters": [http_connection_manager(setup)?]}],
            }],
            "clusters": [
                cluster("upstream", &socket_address(setup.upstream), &json!({})),
                cluster(
                    "tidegate",
                    &json!({"pipe": {"path": setup.sidecar}}),
                    &json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": {"http2_protocol_options": {}},
                    }}),
                ),
            ],
        },
    }))
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn cluster(name: &str, address: &Value, protocol_options: &Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": protocol_options,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

fn http_connection_manager(setup: &Setup<'_>) -> anyhow::Result<Value> {
    let mut all = json!({
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}],
    });
    let mut filters = Vec::new();
    match setup.filter {
        Filter::None => {}
        Filter::Tidegate(plugin) => filters.push(tidegate(plugin)?),
        Filter::Native { domain, header, key } => {
            filters.push(native(domain));
            let action = json!({"request_headers": {"header_name": header, "descriptor_key": key}});
            all["rate_limits"] = json!([{"actions": [action]}]);
        }
    }
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        },
    }));
    Ok(json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "main",
            "route_config": {"virtual_hosts": [all]},
            "http_filters": filters,
        },
    }))
}

fn tidegate(plugin: &str) -> anyhow::Result<Value> {
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": {
            "name": "tidegate",
            "vm_config": {
                "runtime": "envoy.wasm.runtime.v8",
                "code": {"local": {"filename": artifacts::filter()?}},
            },
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": plugin,
            },
        },
    });
    Ok(json!({"name": "tidegate", "typed_config": config}))
}

fn native(domain: &str) -> Value {
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": domain,
        "timeout": "5s",
        "rate_limit_service": {
            "grpc_service": {"envoy_grpc": {"cluster_name": "tidegate"}},
            "transport_api_version": "V3",
        },
    });
    json!({"name": "envoy.filters.http.ratelimit", "typed_config": config})
}
