//! Virtual hosts and routes: what is accepted, one row per mistake, and the bounds.

use super::read;
use serde_json::{Value, json};

fn entry(value: &str) -> Value {
    json!({"actions": [{"generic_key": {"descriptor_value": value}}]})
}

fn plugin(fields: &Value) -> String {
    let mut plugin = json!({"domain": "d", "sidecar": {"cluster": "c"}});
    plugin.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    plugin.to_string()
}

fn check(fields: &Value, message: &str) {
    let error = read(&plugin(fields)).map(|_| "taken").unwrap_err().to_string();
    assert_eq!(error, format!("plugin configuration: {message}"), "for {fields}");
}

/// A configuration with one virtual host, with these fields besides its name and a list.
fn host(fields: Value) -> Value {
    let mut host = json!({"name": "a", "rate_limits": [entry("a")]});
    host.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"virtual_hosts": [host]})
}

fn route(fields: Value) -> Value {
    host(json!({"routes": [fields]}))
}

#[test]
fn every_field_is_read() {
    let fields = json!({"virtual_hosts": [
        {"name": "shop", "rate_limits": [entry("a")], "per_route": {"vh_rate_limits": "INCLUDE"}, "routes": [
            {"name": "x", "rate_limits": [entry("b")], "include_vh_rate_limits": true},
            {"rate_limits": []},
            {"name": {"safe_regex": {"regex": "y.*"}}, "per_route": {
                "vh_rate_limits": "IGNORE", "rate_limits": [entry("c")], "domain": "other"}},
        ]},
        {"name": {"prefix": "shop-", "ignore_case": true}, "rate_limits": null, "per_route": {"domain": ""}},
    ]});
    let config = read(&plugin(&fields)).unwrap();
    assert!(config.rate_limits.is_empty() && config.virtual_hosts.is_some());
    let camel = fields.to_string();
    let names = [
        ("virtual_hosts", "virtualHosts"),
        ("include_vh_rate_limits", "includeVhRateLimits"),
        ("vh_rate_limits", "vhRateLimits"),
        ("per_route", "perRoute"),
    ];
    let camel = names.iter().fold(camel, |text, (snake, camel)| text.replace(snake, camel));
    assert_eq!(read(&plugin(&serde_json::from_str(&camel).unwrap())), Ok(config));
}

#[test]
fn mistakes_of_virtual_hosts() {
    check(&json!({"virtual_hosts": {}}), "virtual_hosts: invalid type: object, expected a list");
    check(&json!({"virtual_hosts": []}), "virtual_hosts: must not be empty");
    check(
        &json!({"virtual_hosts": [{"rate_limits": []}]}),
        "virtual_hosts[0]: missing field `name`",
    );
    check(&host(json!({"name": ""})), "virtual_hosts[0].name: must not be empty");
    check(
        &host(json!({"name": 7})),
        "virtual_hosts[0].name: invalid type: integer `7`, expected a string, or an object with \
         one test of a text",
    );
    check(
        &host(json!({"name": {"safe_regex": {"regex": "["}}})),
        "virtual_hosts[0].name.safe_regex.regex: not a regular expression: unmatched `[` (at byte 1)",
    );
    check(
        &host(json!({"route": []})),
        "virtual_hosts[0].route: unknown field `route` (did you mean `routes`?), expected one of \
         `name`, `rate_limits`, `per_route`, `routes`",
    );
    check(
        &host(json!({"domains": ["*"]})),
        "virtual_hosts[0].domains: not supported: this is a block of Envoy's configuration, which \
         `tidegate translate` turns into this one's",
    );
    check(
        &host(json!({"vh_rate_limits": "IGNORE"})),
        "virtual_hosts[0].vh_rate_limits: not supported: it belongs into `per_route`",
    );
    check(
        &json!({"virtual_hosts": [{"name": "a", "rate_limits": [entry("a")]}, {"name": {"exact": "a"}}]}),
        "virtual_hosts[1]: the second block of this name",
    );
    check(
        &json!({"virtual_hosts": [{"name": "a", "rate_limits": []}]}),
        "virtual_hosts: no virtual host or route has `rate_limits`",
    );
    check(
        &json!({"virtual_hosts": [{"name": "a", "rate_limits": [entry("a")]}], "stage": 3}),
        "virtual_hosts: no entry has the stage 3",
    );
    check(
        &host(json!({"rate_limits": [{"actions": []}]})),
        "virtual_hosts[0].rate_limits[0].actions: must not be empty",
    );
}

#[test]
fn mistakes_of_routes() {
    check(
        &route(json!({"name": "x", "match": {"prefix": "/"}})),
        "virtual_hosts[0].routes[0].match: not supported: this is a block of Envoy's \
         configuration, which `tidegate translate` turns into this one's",
    );
    check(
        &route(json!({"include_vh_rate_limit": true})),
        "virtual_hosts[0].routes[0].include_vh_rate_limit: unknown field `include_vh_rate_limit` \
         (did you mean `include_vh_rate_limits`?), expected one of `name`, `rate_limits`, \
         `include_vh_rate_limits`, `per_route`",
    );
    check(
        &host(json!({"routes": [{}, {"name": ""}]})),
        "virtual_hosts[0].routes[1]: the second block for routes without a name, which a Wasm \
         filter cannot tell apart; give the routes names in Envoy",
    );
    check(
        &host(json!({"routes": [{"name": "x"}, {"name": "x"}]})),
        "virtual_hosts[0].routes[1]: the second block of this name",
    );
    check(
        &route(json!({"per_route": {"vh_rate_limits": "INCLUDED"}})),
        "virtual_hosts[0].routes[0].per_route.vh_rate_limits: unknown variant `INCLUDED` (did you \
         mean `INCLUDE`?), expected one of `OVERRIDE`, `INCLUDE`, `IGNORE`",
    );
    check(
        &route(json!({"per_route": {"override_option": "INCLUDE_POLICY"}})),
        "virtual_hosts[0].routes[0].per_route.override_option: not supported: Envoy does not \
         implement it either",
    );
    check(
        &route(json!({"per_route": {"domain": 7}})),
        "virtual_hosts[0].routes[0].per_route.domain: invalid type: integer `7`, expected a string",
    );
}

/// In Envoy, too, the filter's own entries replace those of routes.
#[test]
fn a_list_without_effect_is_refused() {
    let with = |host: Value| json!({"rate_limits": [entry("all")], "virtual_hosts": [host]});
    let message = "has no effect, as in Envoy: the filter's own `rate_limits` replace it; \
                   `per_route.rate_limits` would replace those";
    check(
        &with(json!({"name": "a", "rate_limits": [entry("a")]})),
        &format!("virtual_hosts[0].rate_limits: {message}"),
    );
    check(
        &with(json!({"name": "a", "routes": [{"name": "x", "rate_limits": [entry("a")]}]})),
        &format!("virtual_hosts[0].routes[0].rate_limits: {message}"),
    );
    let replacing = json!({"name": "a", "per_route": {"rate_limits": [entry("a")]}});
    assert_eq!(read(&plugin(&with(replacing))).map(drop), Ok(()));
}

#[test]
fn a_pasted_block_of_envoy_names_the_command() {
    for (field, value) in [("typed_config", json!({})), ("@type", json!("t")), ("name", json!("n"))]
    {
        check(
            &json!({"rate_limits": [entry("a")], field: value}),
            &format!(
                "{field}: not supported: this is a block of Envoy's configuration, which \
                 `tidegate translate` turns into this one's"
            ),
        );
    }
}

/// A call has room for 128 descriptors, and each virtual machine keeps all entries.
#[test]
fn entries_and_blocks_are_bounded() {
    let list = |count: usize| vec![entry("a"); count];
    let hosts = |count: usize, entries: usize| -> Value {
        let host = |n: usize| json!({"name": n.to_string(), "rate_limits": list(entries)});
        json!({"virtual_hosts": (0..count).map(host).collect::<Vec<_>>()})
    };
    let valid = |fields: &Value| assert_eq!(read(&plugin(fields)).map(drop), Ok(()));
    valid(&hosts(8, 128));
    check(&hosts(1, 129), "virtual_hosts[0].rate_limits: 129 are too many (maximum 128)");
    check(
        &hosts(9, 128),
        "virtual_hosts[8].rate_limits: up to here, 1152 entries are too many (maximum 1024)",
    );
    valid(&hosts(1_024, 1));
    check(
        &hosts(1_025, 0),
        "virtual_hosts[1024]: more than 1024 virtual hosts and routes up to here",
    );
    let both = |route: usize| {
        json!({"virtual_hosts": [{"name": "a", "rate_limits": list(100), "routes": [
            {"name": "x", "rate_limits": list(route), "include_vh_rate_limits": true}]}]})
    };
    valid(&both(28));
    check(
        &both(29),
        "virtual_hosts[0].routes[0]: 129 entries of the route and its virtual host are too many \
         (maximum 128)",
    );
}
