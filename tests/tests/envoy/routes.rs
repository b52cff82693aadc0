//! Virtual hosts and routes: Envoy's own filter by its route configuration, and ours by its blocks, on the same
//! requests, each in an Envoy of its own beside one sidecar.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::bootstrap::{Filter, NO_HOSTS, Setup, bootstrap, merge};
use tidegate_tests::client::Client;
use tidegate_tests::envoy::{Envoy, start_envoy};
use tidegate_tests::plugin::plugin;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::upstream::Upstream;

const NATIVE: &str = "envoy.filters.http.ratelimit";

/// An entry that meets the limit of this name, in any domain.
fn entry(name: &str) -> Value {
    json!({"actions": [{"generic_key": {"descriptor_key": "k", "descriptor_value": name}}]})
}

const NAMES: [&str; 8] = ["filter", "host", "more", "route", "unnamed", "replacing", "a", "b"];

/// A limit for each name. In the domain `other`, their names end with that.
fn limits(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(dir)?;
    for domain in ["test", "other"] {
        let limit = |name: &&str| {
            let named =
                if domain == "test" { (*name).to_owned() } else { format!("{name}-{domain}") };
            json!({"key": "k", "value": name, "rate_limit":
                {"name": named, "unit": "hour", "requests_per_unit": 1_000_000}})
        };
        let limits: Vec<Value> = NAMES.iter().map(limit).collect();
        let file = json!({"domain": domain, "descriptors": limits});
        std::fs::write(dir.join(format!("{domain}.yaml")), file.to_string())?;
    }
    Ok(())
}

/// A route for a path that is its name. `fields` has `rate_limits`, `include_vh_rate_limits` and `per_route`.
fn route(name: &str, fields: &Value) -> Value {
    let mut route = json!({"name": name, "match": {"prefix": format!("/{name}")}});
    route["route"] = json!({"cluster": "upstream"});
    merge(&mut route, fields);
    route
}

fn host(name: &str, fields: &Value, routes: &[Value]) -> Value {
    let mut host = json!({"name": name, "domains": [name], "routes": routes});
    merge(&mut host, fields);
    host
}

fn option(option: &str) -> Value {
    json!({"vh_rate_limits": option})
}

/// The blocks as Envoy has them: with `per_route` and the fields of a route's action in their places.
fn for_envoy(blocks: &[Value]) -> Value {
    let placed = |block: &Value| {
        let mut block = block.clone();
        let Some(fields) = block.as_object_mut() else { return block };
        if let Some(mut per_route) = fields.remove("per_route") {
            per_route["@type"] = json!(
                "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
            );
            fields.insert("typed_per_filter_config".to_owned(), json!({NATIVE: per_route}));
        }
        if fields.contains_key("route") {
            for name in ["rate_limits", "include_vh_rate_limits"] {
                if let Some(field) = fields.remove(name) {
                    fields["route"][name] = field;
                }
            }
        }
        block
    };
    let host = |block: &Value| {
        let mut host = placed(block);
        host["routes"] = host["routes"].as_array().into_iter().flatten().map(placed).collect();
        host
    };
    blocks.iter().map(host).collect()
}

/// The blocks as the filter has them: without what is Envoy's alone.
fn for_us(blocks: &[Value]) -> Value {
    let without = |block: &Value, names: &[&str]| {
        let mut block = block.clone();
        for name in names {
            block.as_object_mut().and_then(|fields| fields.remove(*name));
        }
        block
    };
    let host = |block: &Value| {
        let mut host = without(block, &["domains"]);
        let routes = host["routes"].as_array().into_iter().flatten();
        let envoys = ["match", "route", "redirect", "direct_response"];
        host["routes"] = routes.map(|route| without(route, &envoys)).collect();
        host
    };
    blocks.iter().map(host).collect()
}

/// A route configuration, the filters' own list, and requests with the limits that they meet.
pub(crate) struct Scene {
    blocks: Vec<Value>,
    own: Value,
    requests: Vec<(&'static str, &'static str, &'static [&'static str])>,
}

struct Both {
    native: Envoy,
    ours: Envoy,
    _parts: (Sidecar, Upstream, TempDir),
}

impl Scene {
    /// That both filters meet the limits. `plugin` makes our configuration of Envoy's bootstrap.
    pub(crate) async fn check(
        &self,
        plugin: impl AsyncFnOnce(&Path) -> anyhow::Result<Value>,
    ) -> anyhow::Result<()> {
        let both = Both::start(self, plugin).await?;
        for (host, path, expected) in &self.requests {
            both.check(host, path, expected).await?;
        }
        Ok(())
    }

    fn by_hand(&self) -> Value {
        let mut plugin = plugin();
        let lists = json!({"rate_limits": self.own, "virtual_hosts": for_us(&self.blocks)});
        merge(&mut plugin, &lists);
        plugin
    }
}

impl Both {
    async fn start(
        scene: &Scene,
        plugin: impl AsyncFnOnce(&Path) -> anyhow::Result<Value>,
    ) -> anyhow::Result<Both> {
        let dir = TempDir::new()?;
        let limits_dir = dir.path().join("limits");
        limits(&limits_dir)?;
        let upstream = Upstream::start("127.0.0.1:0").await?;
        let flags = ["--capacity", "1000", "--response-headers", "ietf"];
        let sidecar = Sidecar::start_with(dir.path(), &limits_dir, &flags).await?;
        let socket = Sidecar::socket(dir.path());
        let hosts = for_envoy(&scene.blocks);
        let start = async |name: &str, filter: Filter<'_>| {
            let mut config = bootstrap(&Setup::new(filter, &socket, upstream.address))?;
            let at =
                "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config";
            config.pointer_mut(at).context("the routes")?["virtual_hosts"] = hosts.clone();
            config.pointer_mut(at).context("the routes")?["validate_clusters"] = json!(false);
            let own = dir.path().join(name);
            std::fs::create_dir(&own)?;
            start_envoy(&config.to_string(), &own, 1).await
        };
        let filter = json!({"rate_limits": scene.own});
        let native = Filter::NativeWith { domain: "test", filter: &filter, host: &json!({}) };
        let native = start("native", native).await?;
        let plugin = plugin(&dir.path().join("native/envoy.yaml")).await?;
        let ours = start("ours", Filter::Tidegate(&plugin.to_string())).await?;
        Ok(Both { native, ours, _parts: (sidecar, upstream, dir) })
    }

    /// The limits that a request meets, by both filters: these, in this order.
    async fn check(&self, host: &str, path: &str, expected: &[&str]) -> anyhow::Result<()> {
        for (which, envoy) in [("native", &self.native), ("ours", &self.ours)] {
            // The second time, ours decides by a lease.
            for _ in 0..2 {
                let headers: [(&str, &[u8]); 1] = [("host", host.as_bytes())];
                let reply = Client::connect(envoy.address).await?.get(path, &headers).await?;
                let policies = reply.header("ratelimit-policy").unwrap_or_default();
                let names: Vec<&str> = policies.split('"').skip(1).step_by(2).collect();
                ensure!(
                    names == expected,
                    "{which}: {host}{path}: {names:?}, expected {expected:?}: {reply:?}"
                );
            }
        }
        Ok(())
    }
}

/// All that the lists of routes and virtual hosts can be.
pub(crate) fn lists() -> Scene {
    let route_list = json!({"rate_limits": [entry("route")]});
    let with = |mut fields: Value, more: Value| {
        merge(&mut fields, &more);
        fields
    };
    let per_route = |fields: Value| json!({"per_route": fields});
    let one_route = |fields| with(route_list.clone(), per_route(fields));
    let replacing = json!({"rate_limits": [entry("replacing")], "vh_rate_limits": "INCLUDE"});
    let mut ghost = route("ghost", &json!({}));
    ghost["route"]["cluster"] = json!("nowhere");
    let answered = |name: &str, field: &str, value: Value| json!({"name": name, "match": {"prefix": format!("/{name}")}, field: value});
    let mut unnamed = route("unnamed", &json!({"rate_limits": [entry("unnamed")]}));
    unnamed["name"] = json!("");
    let blocks = [
        host(
            "a",
            &json!({"rate_limits": [entry("host"), entry("more")]}),
            &[
                route("plain", &route_list),
                route("empty", &json!({"rate_limits": []})),
                route("override", &one_route(option("OVERRIDE"))),
                route("include", &one_route(option("INCLUDE"))),
                route("ignore", &one_route(option("IGNORE"))),
                route("nothing", &per_route(option("IGNORE"))),
                route(
                    "old",
                    &with(one_route(option("IGNORE")), json!({"include_vh_rate_limits": true})),
                ),
                // A list that has only entries of another stage overrides all the same.
                route(
                    "stage",
                    &json!({"rate_limits": [{"stage": 1, "actions": entry("route")["actions"]}]}),
                ),
                route("replaced", &one_route(replacing)),
                route(
                    "domain",
                    &one_route(json!({"domain": "other", "vh_rate_limits": "INCLUDE"})),
                ),
                answered("direct", "direct_response", json!({"status": 204})),
                answered("redirect", "redirect", json!({"host_redirect": "b"})),
                ghost,
                unnamed,
            ],
        ),
        host(
            "b",
            &with(json!({"rate_limits": [entry("host")]}), per_route(option("IGNORE"))),
            &[
                route("own", &per_route(option("INCLUDE"))),
                route("other", &route_list),
                // The whole message of the route counts, so its option is the default.
                route("whole", &one_route(json!({"domain": "other"}))),
                route("empty", &json!({})),
            ],
        ),
        host("c", &json!({"rate_limits": [entry("a")]}), &[route("", &json!({}))]),
        host("d", &json!({}), &[route("", &json!({}))]),
        host(
            "e",
            &with(
                json!({"rate_limits": [entry("a")]}),
                per_route(json!({"rate_limits": [entry("b")], "domain": "other"})),
            ),
            &[route("own", &per_route(json!({}))), route("", &route_list)],
        ),
    ];
    let requests = vec![
        ("a", "/plain", &["route"] as &[&str]),
        ("a", "/empty", &["host", "more"]),
        ("a", "/override", &["route"]),
        ("a", "/include", &["route", "host", "more"]),
        ("a", "/ignore", &["route"]),
        ("a", "/nothing", &[]),
        ("a", "/old", &["route", "host", "more"]),
        ("a", "/stage", &[]),
        ("a", "/replaced", &["replacing"]),
        ("a", "/domain", &["route-other", "host-other", "more-other"]),
        ("a", "/direct", &[]),
        ("a", "/redirect", &[]),
        ("a", "/ghost", &[]),
        ("a", "/unnamed", &["unnamed"]),
        ("a", "/no-route", &[]),
        ("b", "/own", &["host"]),
        ("b", "/other", &["route"]),
        ("b", "/whole", &["route-other"]),
        ("b", "/empty", &[]),
        ("c", "/", &["a"]),
        ("d", "/", &[]),
        ("e", "/own", &["a"]),
        ("e", "/", &["b-other"]),
        ("no-host", "/", &[]),
    ];
    Scene { blocks: blocks.into(), own: json!([]), requests }
}

/// Beside a list of the filter's own.
pub(crate) fn lists_beside_the_filters_own() -> Scene {
    let per_route = |fields: Value| json!({"per_route": fields});
    let replacing = per_route(json!({"rate_limits": [entry("replacing")]}));
    let mut to_no_host = route("no-hosts", &json!({}));
    to_no_host["route"]["cluster"] = json!(NO_HOSTS);
    let blocks = [
        host(
            "a",
            &json!({}),
            &[
                route("replaced", &replacing),
                route("domain", &per_route(json!({"domain": "other", "vh_rate_limits": "IGNORE"}))),
                to_no_host,
                json!({"name": "direct", "match": {"prefix": "/direct"}, "direct_response": {"status": 204}}),
                route("", &json!({})),
            ],
        ),
        host("b", &replacing, &[route("own", &per_route(json!({}))), route("", &json!({}))]),
        host("c", &json!({}), &[route("", &json!({}))]),
    ];
    let requests = vec![
        ("a", "/replaced", &["replacing"] as &[&str]),
        ("a", "/domain", &["filter-other"]),
        ("a", "/no-hosts", &["filter"]),
        ("a", "/direct", &[]),
        ("a", "/", &["filter"]),
        ("b", "/own", &["filter"]),
        ("b", "/", &["replacing"]),
        ("c", "/", &["filter"]),
        ("d", "/", &[]),
    ];
    Scene { blocks: blocks.into(), own: json!([entry("filter")]), requests }
}

#[tokio::test]
async fn lists_of_routes_and_virtual_hosts_go_together_as_in_envoy() -> anyhow::Result<()> {
    let scene = lists();
    scene.check(async |_| Ok(scene.by_hand())).await
}

#[tokio::test]
async fn the_filters_own_list_replaces_others_as_in_envoy() -> anyhow::Result<()> {
    let scene = lists_beside_the_filters_own();
    scene.check(async |_| Ok(scene.by_hand())).await
}
