//! Finds the rate limit filter, virtual hosts and routes wherever they stand: in a bootstrap, a listener, a dump of
//! Envoy's configuration, an `EnvoyFilter` of Istio, or alone.

use super::input::{At, File};

/// The usual name of the filter, under which routes have their configuration for it.
pub(super) const FILTER_NAME: &str = "envoy.filters.http.ratelimit";

const FILTER: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";
pub(super) const PER_ROUTE: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
pub(super) const ROUTE_FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// What the files have.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub(super) filters: Vec<NativeFilter<'a>>,
    pub(super) hosts: Vec<Host<'a>>,
}

/// Envoy's own filter.
#[derive(Debug)]
pub(super) struct NativeFilter<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) at: At<'a>,
}

/// A virtual host, or a part of one.
#[derive(Debug)]
pub(super) struct Host<'a> {
    /// None if it stands for all virtual hosts.
    pub(super) name: Option<&'a str>,
    pub(super) at: At<'a>,
    /// The `typed_per_filter_config` of its route configuration.
    pub(super) above: Option<At<'a>>,
    pub(super) routes: Vec<At<'a>>,
}

impl NativeFilter<'_> {
    pub(super) fn is_same(&self, other: &NativeFilter<'_>) -> bool {
        self.name == other.name && self.at.json() == other.at.json()
    }
}

impl<'a> Found<'a> {
    pub(super) fn of(files: &'a [File]) -> Found<'a> {
        let mut found = Found::default();
        for file in files {
            for document in &file.documents {
                let root = file.at(document);
                let before = (found.filters.len(), found.hosts.len());
                found.walk(root);
                if before == (found.filters.len(), found.hosts.len()) {
                    found.fragment(root);
                }
            }
        }
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty() && self.hosts.is_empty()
    }

    fn walk(&mut self, at: At<'a>) {
        if let Some(filter) = filter(at) {
            return self.filters.push(filter);
        }
        if let (Some(kind), Some(value)) = (at.text_of("apply_to"), at.at(&["patch", "value"])) {
            return self.patch(kind, at, value);
        }
        if at.field("domains").is_some_and(|domains| domains.is_list()) {
            return self.host(at, None);
        }
        if let Some(hosts) = at.field("virtual_hosts").filter(At::is_list) {
            let above = at.field("typed_per_filter_config");
            return hosts.items().into_iter().for_each(|host| self.host(host, above));
        }
        if is_route(at) {
            return self.route(None, at);
        }
        at.items().into_iter().for_each(|item| self.walk(item));
        at.fields().into_iter().for_each(|(_, value)| self.walk(value));
    }

    fn host(&mut self, at: At<'a>, above: Option<At<'a>>) {
        let routes = at.field("routes").map(|routes| routes.items()).unwrap_or_default();
        self.hosts.push(Host { name: at.text_of("name"), at, above, routes });
    }

    /// A route whose virtual host is not known any better.
    fn route(&mut self, host: Option<&'a str>, at: At<'a>) {
        self.hosts.push(Host { name: host, at, above: None, routes: vec![at] });
    }

    /// One of the patches of an `EnvoyFilter`.
    fn patch(&mut self, kind: &str, at: At<'a>, value: At<'a>) {
        let host = at.at(&["match", "route_configuration", "vhost"]);
        let name = host.and_then(|host| host.text_of("name")).filter(|name| !name.is_empty());
        match kind {
            "VIRTUAL_HOST" => {
                let routes = value.field("routes").map(|routes| routes.items()).unwrap_or_default();
                self.hosts.push(Host { name, at: value, above: None, routes });
            }
            "HTTP_ROUTE" => self.route(name, value),
            _ => self.walk(value),
        }
    }

    /// A document with the `rate_limits` or the routes of a virtual host alone.
    fn fragment(&mut self, root: At<'a>) {
        let has_entries = root.field("rate_limits").is_some_and(|list| list.is_list());
        if has_entries || root.field("typed_per_filter_config").is_some() {
            let routes = root.field("routes").map(|routes| routes.items()).unwrap_or_default();
            self.hosts.push(Host { name: None, at: root, above: None, routes });
        }
    }
}

/// The filter that this is, with its name or without.
fn filter(at: At<'_>) -> Option<NativeFilter<'_>> {
    if let Some(config) = at.field("typed_config") {
        let (kind, config) = typed(config)?;
        return is_type(kind, FILTER)
            .then(|| NativeFilter { name: at.text_of("name"), at: config });
    }
    let (kind, config) = typed(at).unwrap_or(("", at));
    let is_plain = kind.is_empty() && at.field("rate_limit_service").is_some();
    (is_type(kind, FILTER) || is_plain).then_some(NativeFilter { name: None, at: config })
}

fn is_route(at: At<'_>) -> bool {
    let actions = ["route", "redirect", "direct_response", "typed_per_filter_config"];
    at.field("match").is_some_and(|value| value.is_map())
        && actions.iter().any(|action| at.field(action).is_some())
}

/// The type and the value of an `Any`, also one in a `TypedStruct`.
pub(super) fn typed(at: At<'_>) -> Option<(&str, At<'_>)> {
    let kind = at.text_of("@type")?;
    if kind.ends_with(".TypedStruct") {
        return Some((at.text_of("type_url")?, at.field("value").unwrap_or(at)));
    }
    Some((kind, at))
}

pub(super) fn is_type(url: &str, name: &str) -> bool {
    url.rsplit('/').next() == Some(name)
}

/// The configuration of a virtual host or a route for the filter of this name.
pub(super) fn for_filter<'a>(of: At<'a>, name: &str) -> Option<At<'a>> {
    let fields = of.field("typed_per_filter_config")?.fields();
    // As they are written: a name of a filter is not the name of a field.
    fields.into_iter().find(|(key, _)| *key == name).map(|(_, config)| config)
}
