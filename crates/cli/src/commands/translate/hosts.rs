//! Virtual hosts and routes. What Envoy keeps apart by where it stands must be kept apart here by its name, so blocks
//! of one name that differ have no equivalent.

use super::entries::{List, Owner, list};
use super::find::{Found, Host, PER_ROUTE, ROUTE_FILTER_CONFIG, for_filter, is_type, typed};
use super::input::{At, field_name};
use super::report::Report;
use serde_json::{Value, json};
use std::collections::HashMap;
use tidegate_limits::suggestion;

/// The fields of `RateLimitPerRoute`.
const OF_PER_ROUTE: [&str; 4] = ["vh_rate_limits", "override_option", "rate_limits", "domain"];

/// Adds the lists to a configuration: the filter's own, and those of virtual hosts and routes.
pub(super) fn translate(
    found: &Found<'_>,
    filter: &str,
    own: List,
    config: &mut Value,
    report: &mut Report,
) {
    let mut hosts = Hosts {
        filter,
        own_is_there: own.is_there,
        report,
        any: json!({}),
        named: Vec::new(),
        by_name: HashMap::new(),
    };
    for host in &found.hosts {
        hosts.host(host);
    }
    let Hosts { any, named, .. } = hosts;
    if own.is_there {
        config["rate_limits"] = own.entries.into();
    }
    let is_plain =
        named.is_empty() && any.get("routes").is_none() && any.get("per_route").is_none();
    let mut blocks = named;
    match any.get("rate_limits") {
        // For all virtual hosts: as good as the filter's own.
        Some(list) if is_plain => config["rate_limits"] = list.clone(),
        None if is_plain => {}
        _ if any == json!({}) => {}
        _ => {
            let mut block = any;
            block["name"] = json!({"safe_regex": {"regex": ".*"}});
            blocks.push(block);
        }
    }
    if !blocks.is_empty() {
        config["virtual_hosts"] = blocks.into();
    }
}

/// `RateLimitPerRoute`, or a filter that is switched off.
struct PerRoute {
    list: List,
    option: String,
    domain: Option<String>,
    is_disabled: bool,
}

struct Hosts<'r> {
    filter: &'r str,
    own_is_there: bool,
    report: &'r mut Report,
    /// The block of all virtual hosts.
    any: Value,
    named: Vec<Value>,
    /// The indexes of those in `named`.
    by_name: HashMap<String, usize>,
}

impl Hosts<'_> {
    fn host(&mut self, host: &Host<'_>) {
        let path = host.name.map_or_else(String::new, |name| format!("virtual host {name}: "));
        let per_route = for_filter(host.at, self.filter)
            .or_else(|| {
                let above = host.above?.fields();
                above.into_iter().find(|(name, _)| *name == self.filter).map(|(_, at)| at)
            })
            .filter(|_| !is_route_alone(host));
        let per_route = per_route.and_then(|at| self.per_route(at, &path));
        let list = match is_route_alone(host) {
            true => List::default(),
            false => self.list(Some(host.at), &path),
        };
        let mut block = self.block(list, true, None, per_route.as_ref());
        if let Some(per_route) = &per_route {
            block["per_route"] = self.json(per_route, block.get("per_route"));
        }
        let routes = self.routes(host, per_route.as_ref(), &path);
        if !routes.is_empty() {
            block["routes"] = routes.into();
        }
        if !has_effect(&block, self.own_is_there) {
            return;
        }
        match host.name {
            None => merge(&mut self.any, block),
            Some(name) => {
                block["name"] = name.into();
                match self.by_name.get(name).and_then(|index| self.named.get(*index)) {
                    None => {
                        self.by_name.insert(name.to_owned(), self.named.len());
                        self.named.push(block);
                    }
                    Some(known) if *known == block => {}
                    Some(_) => self.report.missing(
                        &host.at,
                        &path,
                        "an earlier virtual host of this name has other rate limits, and a Wasm filter knows only \
                         the name; give it another name, and translate again. Its rate limits are left out",
                    ),
                }
            }
        }
    }

    /// The blocks of the routes that need one.
    fn routes(&mut self, host: &Host<'_>, above: Option<&PerRoute>, path: &str) -> Vec<Value> {
        let mut by_name: Vec<(&str, Vec<(Value, At<'_>)>)> = Vec::new();
        let mut places = HashMap::new();
        for route in &host.routes {
            // Envoy's own filter does not limit what Envoy answers.
            if ["redirect", "direct_response", "non_forwarding_action"]
                .iter()
                .any(|action| route.field(action).is_some())
            {
                continue;
            }
            let name = route.text_of("name").unwrap_or_default();
            let path = match name {
                "" => format!("{path}route without a name: "),
                name => format!("{path}route {name}: "),
            };
            let block = self.route(*route, above, &path);
            let place = *places.entry(name).or_insert(by_name.len());
            match by_name.get_mut(place) {
                Some((_, blocks)) => blocks.push((block, *route)),
                None => by_name.push((name, vec![(block, *route)])),
            }
        }
        let mut routes = Vec::new();
        for (name, blocks) in by_name {
            let Some((first, _)) = blocks.first() else { continue };
            if blocks.iter().all(|(block, _)| block == first) {
                if !first.is_null() {
                    let mut block = first.clone();
                    block["name"] = name.into();
                    routes.push(block);
                }
                continue;
            }
            let which = match name {
                "" => "routes without a name".to_owned(),
                name => format!("several routes with the name {name}"),
            };
            for (_, route) in blocks.iter().filter(|(block, _)| !block.is_null()) {
                self.report.missing(
                    route,
                    path,
                    format!(
                        "{which} have different rate limits, and a Wasm filter knows only the name; give each a name \
                         of its own, and translate again. Their rate limits are left out"
                    ),
                );
            }
        }
        routes
    }

    /// The block of a route; null if that of its virtual host is enough.
    fn route(&mut self, route: At<'_>, above: Option<&PerRoute>, path: &str) -> Value {
        let action = route.field("route");
        let clusters = action.and_then(|action| action.at(&["weighted_clusters", "clusters"]));
        for cluster in clusters.map(|clusters| clusters.items()).unwrap_or_default() {
            if let Some(at) = for_filter(cluster, self.filter) {
                let message = "a Wasm filter does not know which of the weighted clusters was chosen; it is left out";
                self.report.missing(&at, path, message);
            }
        }
        let per_route = for_filter(route, self.filter).and_then(|at| self.per_route(at, path));
        let list = self.list(action, path);
        let includes = action.is_some_and(|action| action.is_true("include_vh_rate_limits"));
        if !list.is_there && per_route.is_none() && !includes {
            return Value::Null;
        }
        let mut block = self.block(list, includes, above, per_route.as_ref());
        if let Some(per_route) = &per_route {
            block["per_route"] = self.json(per_route, block.get("per_route"));
        }
        if includes && !self.own_is_there {
            block["include_vh_rate_limits"] = true.into();
        }
        block
    }

    /// A block with its list. If entries of it were left out, so that none remain, no other list steps in for it.
    fn block(
        &self,
        list: List,
        includes: bool,
        above: Option<&PerRoute>,
        own: Option<&PerRoute>,
    ) -> Value {
        let per_route = own.or(above);
        let mut block = json!({});
        if per_route.is_some_and(|per_route| per_route.is_disabled) {
            if own.is_none() && above.is_some() {
                block["per_route"] = json!({"vh_rate_limits": "IGNORE"});
            }
            return block;
        }
        if !list.entries.is_empty() {
            block["rate_limits"] = list.entries.into();
        } else if list.is_there && !includes {
            let is_override = per_route
                .is_none_or(|per_route| per_route.option == "OVERRIDE" && !per_route.list.is_there);
            if is_override && !self.own_is_there {
                block["per_route"] = json!({"vh_rate_limits": "IGNORE"});
            }
        }
        block
    }

    /// The list of a route or a virtual host, unless the filter's own replaces it.
    fn list(&mut self, of: Option<At<'_>>, path: &str) -> List {
        if !self.own_is_there {
            return list(of, path, Owner::Route, self.report);
        }
        if let Some(at) = of.and_then(|of| of.field("rate_limits")) {
            let message =
                "has no effect in Envoy, as the filter's own list replaces it; it is left out";
            self.report.note(&at, &format!("{path}rate_limits"), message);
        }
        List::default()
    }

    fn per_route(&mut self, at: At<'_>, path: &str) -> Option<PerRoute> {
        let (mut kind, mut config) = typed(at).unwrap_or((PER_ROUTE, at));
        if is_type(kind, ROUTE_FILTER_CONFIG) {
            if config.is_true("disabled") {
                if self.own_is_there {
                    self.report.missing(
                        &at,
                        path,
                        "the filter is switched off here; say the same in Envoy for the name of the Wasm filter",
                    );
                    return None;
                }
                let (list, option) = (List::default(), "IGNORE".to_owned());
                return Some(PerRoute { list, option, domain: None, is_disabled: true });
            }
            config = config.field("config")?;
            (kind, config) = typed(config)?;
        }
        if !is_type(kind, PER_ROUTE) {
            self.report.missing(&at, path, format!("unknown type {kind:?}; it is left out"));
            return None;
        }
        for (written, value) in config.fields() {
            let name = field_name(written);
            if name == "override_option" {
                let message = "Envoy does not implement it, so it is left out";
                self.report.note(&value, &format!("{path}{name}"), message);
            } else if name != "@type" && !OF_PER_ROUTE.contains(&name.as_str()) {
                let meant = suggestion(&name, &OF_PER_ROUTE);
                let message = format!("unknown field{meant}; it is left out");
                self.report.missing(&value, &format!("{path}{name}"), message);
            }
        }
        let option = match config.field("vh_rate_limits").map(|option| option.json()) {
            None => "OVERRIDE".to_owned(),
            Some(Value::Number(number)) => {
                let names = ["OVERRIDE", "INCLUDE", "IGNORE"];
                let name =
                    number.as_u64().and_then(|number| names.get(usize::try_from(number).ok()?));
                name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
            }
            Some(option) => option.as_str().unwrap_or_default().to_owned(),
        };
        let domain = config.text_of("domain").filter(|domain| !domain.is_empty());
        Some(PerRoute {
            list: list(Some(config), path, Owner::Filter, self.report),
            option,
            domain: domain.map(str::to_owned),
            is_disabled: false,
        })
    }

    /// `per_route` of a block. `instead` is its value for a list without a remaining entry.
    fn json(&self, per_route: &PerRoute, instead: Option<&Value>) -> Value {
        let mut json = json!({});
        let lost = per_route.list.is_there && per_route.list.entries.is_empty();
        if let Some(option) = instead.and_then(|instead| instead.get("vh_rate_limits")) {
            json["vh_rate_limits"] = option.clone();
        } else if lost {
            json["vh_rate_limits"] = "IGNORE".into();
        } else if per_route.option != "OVERRIDE" && !self.own_is_there {
            json["vh_rate_limits"] = per_route.option.as_str().into();
        }
        if !per_route.list.entries.is_empty() {
            json["rate_limits"] = per_route.list.entries.clone().into();
        }
        if let Some(domain) = &per_route.domain {
            json["domain"] = domain.as_str().into();
        }
        json
    }
}

/// Whether the virtual host is only what a route stands in.
fn is_route_alone(host: &Host<'_>) -> bool {
    host.routes.len() == 1 && host.routes.first().is_some_and(|route| route.is_at(&host.at))
}

/// Whether a block limits anything, or says what else does.
fn has_effect(block: &Value, own_is_there: bool) -> bool {
    let has_list = |block: &Value| {
        let per_route = &block["per_route"];
        block.get("rate_limits").is_some()
            || per_route.get("rate_limits").is_some()
            || own_is_there && per_route.get("domain").is_some()
    };
    let routes = block["routes"].as_array().map_or(&[][..], Vec::as_slice);
    has_list(block) || routes.iter().any(has_list)
}

/// Adds the lists of a block to those of another for the same virtual hosts.
fn merge(to: &mut Value, from: Value) {
    let Value::Object(fields) = from else { return };
    for (name, value) in fields {
        match (to[&name].as_array_mut(), value) {
            (Some(known), Value::Array(more)) => known.extend(more),
            (_, value) => to[&name] = value,
        }
    }
}
