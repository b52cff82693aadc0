//! Virtual hosts with routes, as both filters have their lists.

use super::configuration::{Place, ROUTE, entry};
use super::dice::Dice;
use super::stack::metadata;
use serde_json::{Value, json};
use tidegate_tests::bootstrap::merge;

/// Stands for the filter's domain in that of a `per_route`.
pub(super) const DOMAIN: &str = "<domain>";

/// The end of the domains of a `per_route`.
pub(super) const OTHER: &str = "-other";

/// The names of two routes, for which ours has one block.
const MANY: [&str; 2] = ["many-1", "many-2"];

/// Envoy's filter, in `typed_per_filter_config`.
const NATIVE: &str = "envoy.filters.http.ratelimit";

/// Blocks, and all entries of their lists.
pub(super) struct Blocks {
    /// Virtual hosts with the fields of both filters: `per_route`, and `route` with a cluster.
    hosts: Vec<Value>,
    pub(super) entries: Vec<Value>,
    stage: Option<u32>,
    /// Whether the filter has a list of its own, beside which there are only lists of `per_route`.
    has_own: bool,
}

impl Blocks {
    /// `entries` are those that the filter has of its own.
    pub(super) fn new(dice: &mut Dice, entries: Vec<Value>, stage: Option<u32>) -> Blocks {
        let has_own = !entries.is_empty();
        let mut blocks = Blocks { hosts: Vec::new(), entries, stage, has_own };
        let rest = dice.pick(&["*", "*", "*", "test"]);
        for (name, domains) in [("a", json!(["a", "a.b:80"])), ("rest", json!([rest]))] {
            let mut host = json!({"name": name, "domains": domains});
            // So that one list is there.
            if !has_own && (name == "rest" || dice.one_in(2)) {
                host["rate_limits"] = blocks.list(dice, Place::Host, 1);
            }
            if dice.one_in(3) {
                host["per_route"] = blocks.per_route(dice);
            }
            host["routes"] = json!(blocks.routes(dice));
            blocks.hosts.push(host);
        }
        blocks
    }

    /// A list of `least` to 3 entries.
    fn list(&mut self, dice: &mut Dice, place: Place, least: usize) -> Value {
        let count = least + dice.below(4 - least);
        let mut list: Vec<Value> = Vec::new();
        for _ in 0..count {
            let mut entry = entry(dice, self.entries.len(), place);
            if let Some(stage) = self.stage.filter(|_| self.entries.is_empty()) {
                entry["stage"] = json!(stage);
            }
            list.push(entry.clone());
            self.entries.push(entry);
        }
        json!(list)
    }

    fn per_route(&mut self, dice: &mut Dice) -> Value {
        let mut of = json!({});
        if !dice.one_in(4) {
            of["vh_rate_limits"] = json!(dice.pick(&["OVERRIDE", "INCLUDE", "IGNORE"]));
        }
        if dice.one_in(4) {
            of["domain"] = json!(format!("{DOMAIN}{OTHER}"));
        }
        // Envoy refuses stages there.
        if self.stage.is_none() && dice.one_in(4) {
            of["rate_limits"] = self.list(dice, Place::Filter, 0);
        }
        of
    }

    fn routes(&mut self, dice: &mut Dice) -> Vec<Value> {
        let last = dice.pick(&["", "last"]);
        let mut routes: Vec<Value> = Vec::new();
        for (prefix, name) in
            [("/named", ROUTE), ("/other", "other"), ("/v1", MANY[0]), ("/", last)]
        {
            if dice.one_in(6) {
                continue;
            }
            let mut route = json!({"name": name, "match": {"prefix": prefix}});
            match (name, dice.one_in(3)) {
                ("other", true) => route["direct_response"] = json!({"status": 204}),
                ("other", false) => route["route"] = json!({"cluster": "other"}),
                _ => route["route"] = json!({"cluster": "upstream"}),
            }
            if route["route"].is_object() {
                if !self.has_own && !dice.one_in(3) {
                    route["rate_limits"] = self.list(dice, Place::Route, 0);
                }
                if dice.one_in(4) {
                    route["include_vh_rate_limits"] = json!(dice.one_in(2));
                }
            }
            if !dice.one_in(3) {
                route["per_route"] = self.per_route(dice);
            }
            routes.push(route.clone());
            if name == MANY[0] {
                merge(&mut route, &json!({"name": MANY[1], "match": {"prefix": "/a"}}));
                routes.push(route);
            }
        }
        routes
    }

    /// As Envoy has them: with `per_route` and the fields of a route's action in their places.
    pub(super) fn for_envoy(&self) -> Value {
        let placed = |block: &Value| {
            let mut block = block.clone();
            if let Some(mut per_route) = taken(&mut block, "per_route") {
                per_route["@type"] = json!(
                    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
                );
                block["typed_per_filter_config"] = json!({NATIVE: per_route});
            }
            if block["route"].is_object() {
                for name in ["rate_limits", "include_vh_rate_limits"] {
                    if let Some(field) = taken(&mut block, name) {
                        block["route"][name] = field;
                    }
                }
            }
            if block["name"] == ROUTE {
                block["metadata"] = metadata("route");
            }
            block
        };
        of_all(&self.hosts, placed, placed)
    }

    /// As ours has them: without what is Envoy's alone.
    pub(super) fn for_us(&self) -> Value {
        let without = |names: &'static [&'static str]| {
            move |block: &Value| {
                let mut block = block.clone();
                for name in names {
                    taken(&mut block, name);
                }
                if block["name"] == MANY[0] {
                    block["name"] = json!({"prefix": "many-"});
                }
                block
            }
        };
        let route = without(&["match", "route", "direct_response"]);
        let mut hosts = of_all(&self.hosts, without(&["domains"]), route);
        for host in hosts.as_array_mut().into_iter().flatten() {
            if let Some(routes) = host["routes"].as_array_mut() {
                routes.retain(|route| route["name"] != MANY[1]);
            }
        }
        hosts
    }
}

fn taken(of: &mut Value, name: &str) -> Option<Value> {
    of.as_object_mut()?.remove(name)
}

fn of_all(
    hosts: &[Value],
    of_host: impl Fn(&Value) -> Value,
    of_route: impl Fn(&Value) -> Value,
) -> Value {
    let host = |host: &Value| {
        let mut host = of_host(host);
        host["routes"] = host["routes"].as_array().into_iter().flatten().map(&of_route).collect();
        host
    };
    hosts.iter().map(host).collect()
}
