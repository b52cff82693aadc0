//! Configurations for Envoy: one listener, one filter or none, an upstream and a sidecar.

use crate::artifacts;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;

/// What limits the requests.
#[derive(Debug, Clone, Copy)]
pub enum Filter<'a> {
    /// Nothing.
    None,
    /// Tidegate, with its plugin configuration as it is handed over: a JSON text.
    Tidegate(&'a str),
    /// The same in the module with conditions.
    TidegateWithConditions(&'a str),
    /// Another Wasm module, without a configuration.
    Wasm(&'a Path),
    /// Envoy's own local rate limit filter: one token bucket with this many tokens a second.
    NativeLocal {
        /// Tokens a second, and as many at once.
        tokens: u32,
    },
    /// Envoy's own rate limit filter, asking the sidecar.
    Native {
        /// The domain.
        domain: &'a str,
        /// How descriptors are made, as in a route's `rate_limits`.
        rate_limits: &'a Value,
    },
    /// The same, with more said.
    NativeWith {
        /// The domain.
        domain: &'a str,
        /// More fields of the filter.
        filter: &'a Value,
        /// Fields of the virtual host, `rate_limits` among them.
        host: &'a Value,
    },
}

/// What comes before Tidegate among the filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// A filter that sets [`DYNAMIC_METADATA`].
    SetsMetadata,
    /// The same, and `jwt_authn`, which lets requests pass without a token, too.
    ChecksTokens,
    /// A filter that reads the last line of a response, such as `cost 41`, and sets the number as dynamic metadata:
    /// [`COST_METADATA`]. As filters of AI gateways do, it passes the rest on as it comes.
    ReadsCost,
}

/// Namespace and key of the cost of a stream in dynamic metadata.
pub const COST_METADATA: (&str, &str) = ("llm", "cost");

/// How an Envoy is to be set up.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What limits the requests.
    pub filter: Filter<'a>,
    /// Separates the data that its workers share from those of other filters.
    pub vm_id: &'a str,
    /// Routes (as Envoy has them) before the one that takes all requests to the upstream.
    pub routes: &'a [Value],
    /// What comes before Tidegate.
    pub before: Before,
    /// The sidecar's socket.
    pub sidecar: &'a Path,
    /// The upstream.
    pub upstream: SocketAddr,
    /// How many calls to the sidecar may be under way at once; more fail at once.
    pub calls_max: u32,
}

/// Envoy's own bound, of 1,024 calls or requests, is below what the load of a test has under way.
pub const UNDER_WAY_MAX: u32 = 100_000;

impl<'a> Setup<'a> {
    /// One filter, and no routes but the one that takes all.
    #[must_use]
    pub fn new(filter: Filter<'a>, sidecar: &'a Path, upstream: SocketAddr) -> Setup<'a> {
        Setup {
            filter,
            vm_id: "",
            routes: &[],
            before: Before::Nothing,
            sidecar,
            upstream,
            calls_max: UNDER_WAY_MAX,
        }
    }
}

/// A route to the upstream, with a name and metadata under `tidegate`.
#[must_use]
pub fn route(prefix: &str, name: &str, metadata: &Value) -> Value {
    json!({
        "name": name,
        "match": {"prefix": prefix},
        "route": {"cluster": "upstream"},
        "metadata": {"filter_metadata": {"tidegate": metadata}},
    })
}

/// Requests from this network (of 8 bits) are internal ones to Envoy.
pub const INTERNAL_NETWORK: &str = "10.0.0.0";

/// A cluster without any host.
pub const NO_HOSTS: &str = "no-hosts";

/// What the upstream's cluster says of itself under `tidegate`, in its metadata.
pub const CLUSTER_METADATA: (&str, &str) = ("tier", "gold");

/// What a filter before the limiting one says of each request under `tidegate`, in dynamic metadata.
pub const DYNAMIC_METADATA: (&str, &str) = ("plan", "free");

/// A bootstrap configuration with the filter on one listener, all ports picked by the system.
///
/// # Errors
/// When the filter is not built.
pub fn bootstrap(setup: &Setup<'_>) -> anyhow::Result<Value> {
    let mut upstream = cluster("upstream", &socket_address(setup.upstream), &json!({}));
    upstream["metadata"] = metadata(CLUSTER_METADATA);
    let mut sidecar = cluster("tidegate", &json!({"pipe": {"path": setup.sidecar}}), &http2());
    sidecar["circuit_breakers"]["thresholds"][0]["max_requests"] = json!(setup.calls_max);
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
                upstream,
                // Envoy answers 503 at once.
                {"name": NO_HOSTS, "type": "STATIC", "connect_timeout": "1s"},
                sidecar,
            ],
        },
    }))
}

/// The options of a cluster that is called by gRPC.
#[must_use]
pub fn http2() -> Value {
    json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }})
}

/// A TCP address.
#[must_use]
pub fn socket_address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// A cluster of one host.
#[must_use]
pub fn cluster(name: &str, address: &Value, protocol_options: &Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [{
            "max_connections": UNDER_WAY_MAX,
            "max_pending_requests": UNDER_WAY_MAX,
            "max_requests": UNDER_WAY_MAX,
        }]},
        "typed_extension_protocol_options": protocol_options,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

fn http_connection_manager(setup: &Setup<'_>) -> anyhow::Result<Value> {
    let mut routes = setup.routes.to_vec();
    routes.push(json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}));
    let mut all = json!({"name": "all", "domains": ["*"], "routes": routes});
    let mut filters = Vec::new();
    if setup.before == Before::ReadsCost {
        filters.push(reads_cost());
    }
    match setup.filter {
        Filter::None => {}
        Filter::Tidegate(plugin) | Filter::TidegateWithConditions(plugin) => {
            match setup.before {
                Before::Nothing | Before::ReadsCost => {}
                Before::SetsMetadata => filters.push(set_metadata()),
                Before::ChecksTokens => filters.extend([set_metadata(), jwt_authn()]),
            }
            let module = match setup.filter {
                Filter::Tidegate(_) => artifacts::filter()?,
                _ => artifacts::filter_with_conditions()?,
            };
            filters.push(wasm(&module, setup.vm_id, Some(plugin)));
        }
        Filter::Wasm(module) => filters.push(wasm(module, setup.vm_id, None)),
        Filter::NativeLocal { tokens } => filters.push(native_local(tokens)),
        Filter::Native { domain, rate_limits } => {
            filters.push(native(domain));
            all["rate_limits"] = rate_limits.clone();
        }
        Filter::NativeWith { domain, filter, host } => {
            let mut native = native(domain);
            merge(&mut native["typed_config"], filter);
            filters.push(native);
            merge(&mut all, host);
        }
    }
    filters.push(router());
    Ok(json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "main",
            "internal_address_config": internal_addresses(),
            "route_config": {"virtual_hosts": [all]},
            "http_filters": filters,
        },
    }))
}

/// The addresses in [`INTERNAL_NETWORK`].
#[must_use]
pub fn internal_addresses() -> Value {
    json!({"cidr_ranges": [{"address_prefix": INTERNAL_NETWORK, "prefix_len": 8}]})
}

/// The last of all filters.
#[must_use]
pub fn router() -> Value {
    json!({"name": "envoy.filters.http.router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
    }})
}

/// Sets these fields of an object.
///
/// # Panics
/// When `to` is another kind of value.
pub fn merge(to: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        to[name] = value.clone();
    }
}

fn metadata((key, value): (&str, &str)) -> Value {
    json!({"filter_metadata": {"tidegate": {key: value}}})
}

fn set_metadata() -> Value {
    let (key, value) = DYNAMIC_METADATA;
    json!({"name": "envoy.filters.http.set_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "tidegate", "value": {key: value}}],
    }})
}

fn reads_cost() -> Value {
    let (namespace, key) = COST_METADATA;
    let code = format!(
        "function envoy_on_response(handle)
           for chunk in handle:bodyChunks() do
             local cost = string.match(chunk:getBytes(0, chunk:length()), \"cost (%S+)\")
             if cost then
               local metadata = handle:streamInfo():dynamicMetadata()
               metadata:set(\"{namespace}\", \"{key}\", tonumber(cost) or cost)
             end
           end
         end"
    );
    json!({"name": "envoy.filters.http.lua", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": code},
    }})
}

/// The key of the tokens in base64url, for HS256.
const TOKEN_KEY: &str = "dGlkZWdhdGUtdGVzdC1rZXktb2YtMzItYnl0ZXMhISE";

fn jwt_authn() -> Value {
    let key = json!({"kty": "oct", "alg": "HS256", "kid": "test", "k": TOKEN_KEY});
    json!({"name": "envoy.filters.http.jwt_authn", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"shop": {
            "issuer": "shop",
            "local_jwks": {"inline_string": json!({"keys": [key]}).to_string()},
            "payload_in_metadata": "payload",
        }},
        "rules": [{
            "match": {"prefix": "/"},
            "requires": {"requires_any": {"requirements": [
                {"provider_name": "shop"}, {"allow_missing": {}},
            ]}},
        }],
    }})
}

/// A Wasm filter.
#[must_use]
pub fn wasm(module: &Path, vm_id: &str, plugin: Option<&str>) -> Value {
    let mut config = json!({
        "name": "tidegate",
        "vm_config": {
            "vm_id": vm_id,
            "runtime": "envoy.wasm.runtime.v8",
            "code": {"local": {"filename": module}},
        },
    });
    if let Some(plugin) = plugin {
        config["configuration"] = json!({
            "@type": "type.googleapis.com/google.protobuf.StringValue",
            "value": plugin,
        });
    }
    json!({"name": "tidegate", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": config,
    }})
}

fn native_local(tokens: u32) -> Value {
    let always = json!({"default_value": {"numerator": 100, "denominator": "HUNDRED"}});
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "local",
        "token_bucket": {
            "max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "1s",
        },
        "filter_enabled": always,
        "filter_enforced": always,
    });
    json!({"name": "envoy.filters.http.local_ratelimit", "typed_config": config})
}

/// Envoy's own rate limit filter, asking the cluster `tidegate`.
#[must_use]
pub fn native(domain: &str) -> Value {
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
