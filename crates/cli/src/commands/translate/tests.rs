//! Configurations of Envoy, as its users and Kubernetes tools write them, and what becomes of them.

use super::input::File;
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn options() -> TranslateOptions {
    TranslateOptions { files: Vec::new(), filter: None, domain: None, cluster: None, strict: false }
}

/// The translation of a text, and the findings about it. A translation that the filter would refuse fails the test.
#[track_caller]
fn translated(options: &TranslateOptions, text: &str) -> (Value, Vec<String>) {
    let files = [File::of("f", text).unwrap()];
    let (config, report) = translate(options, &files).unwrap();
    (config.unwrap(), report.findings().iter().map(ToString::to_string).collect())
}

/// A text that is translated without anything missing.
#[track_caller]
fn check(text: &str, expected: &Value) {
    let (config, findings) = translated(&options(), text);
    assert_eq!(config, *expected, "for {text}");
    assert_eq!(findings, [""; 0], "for {text}");
}

/// Checks that each finding contains these words.
#[track_caller]
fn check_findings(text: &str, expected: &[&str]) -> Value {
    let (config, findings) = translated(&options(), text);
    let matches = findings.len() == expected.len()
        && findings.iter().zip(expected).all(|(finding, words)| finding.contains(words));
    assert!(matches, "{findings:#?}\nexpected {expected:#?}");
    config
}

fn refused(text: &str, words: &str) {
    let message = match File::of("f", text) {
        Err(error) => format!("{error:#}"),
        Ok(file) => translate(&options(), &[file]).map(drop).unwrap_err(),
    };
    assert!(message.contains(words), "{message}");
}

const FILTER: &str = "\
name: envoy.filters.http.ratelimit
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
  domain: shop
  rate_limit_service:
    grpc_service: { envoy_grpc: { cluster_name: tidegate } }
    transport_api_version: V3
";

/// The filter with these fields, in the form of a document.
fn filter(fields: &str) -> String {
    format!("{FILTER}{}\n", fields.lines().map(|line| format!("  {line}\n")).collect::<String>())
}

/// The filter, and virtual hosts in another document.
fn with_hosts(hosts: &str) -> String {
    format!("{FILTER}---\nvirtual_hosts:\n{hosts}\n")
}

/// What the filter alone means.
fn base() -> Value {
    json!({"domain": "shop", "sidecar": {"cluster": "tidegate"}, "headers": "off", "denied": {"body": ""}})
}

fn with(fields: &Value) -> Value {
    let mut config = base();
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    config
}

fn entry(value: &str) -> Value {
    json!({"actions": [{"generic_key": {"descriptor_value": value}}]})
}

const ENTRY: &str = "{ actions: [ { generic_key: { descriptor_value: a } } ] }";

#[test]
fn every_option_of_the_filter() {
    let text = filter(&format!(
        "stage: 2\nrequest_type: external\ntimeout: 0.0251s\nfailure_mode_deny: true\n\
         rate_limited_as_resource_exhausted: true\nenable_x_ratelimit_headers: DRAFT_VERSION_03\n\
         disable_x_envoy_ratelimited_header: true\nrate_limited_status: {{ code: 503 }}\n\
         response_headers_to_add: [ {{ header: {{ key: x-a, value: b }} }} ]\nstatus_on_error: {{ code: 502 }}\n\
         filter_enabled: {{ default_value: {{ numerator: 5 }} }}\n\
         filter_enforced: {{ default_value: {{ numerator: 6 }} }}\n\
         failure_mode_deny_percent: {{ default_value: {{ numerator: 7 }} }}\n\
         rate_limits: [ {{ stage: 2, actions: [ {{ remote_address: {{}} }} ] }}, {ENTRY} ]"
    ));
    let share = |numerator: u32| json!({"default_value": {"numerator": numerator}});
    let expected = json!({
        "domain": "shop",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 26},
        "stage": 2,
        "request_type": "external",
        "failure_mode": "deny",
        "rate_limited_as_resource_exhausted": true,
        "headers": "draft03",
        "disable_x_envoy_ratelimited_header": true,
        "denied": {"status": 503, "body": ""},
        "response_headers_to_add": [{"header": {"key": "x-a", "value": "b"}}],
        "status_on_error": {"code": 502},
        "filter_enabled": share(5),
        "filter_enforced": share(6),
        "failure_mode_deny_percent": share(7),
        "rate_limits": [{"stage": 2, "actions": [{"remote_address": {}}]}, entry("a")],
    });
    check(&text, &expected);
}

/// `typed_config` alone, JSON with names in camel case, and deep in a bootstrap.
#[test]
fn the_filter_is_found_wherever_it_stands() {
    let own = with(&json!({"rate_limits": [entry("a")], "failure_mode": "allow"}));
    let document: String = filter(&format!("failure_mode_deny: false\nrate_limits: [ {ENTRY} ]"));
    check(&document, &own);
    let alone: Vec<&str> =
        document.lines().skip(2).map(|line| line.get(2..).unwrap_or("")).collect();
    check(&alone.join("\n"), &own);
    let camel = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": "shop",
        "failureModeDeny": false,
        "rateLimits": [{"actions": [{"genericKey": {"descriptorValue": "a"}}]}],
        "rateLimitService": {"grpcService": {"envoyGrpc": {"clusterName": "tidegate"}}},
    });
    check(&camel.to_string(), &own);
    let tabs = serde_json::to_string_pretty(&camel).unwrap().replace("  ", "\t");
    check(&tabs, &own);
    let http = json!({"name": "envoy.filters.http.ratelimit", "typedConfig": camel});
    let bootstrap = json!({"static_resources": {"listeners": [{"filter_chains": [{"filters": [
        {"name": "hcm", "typed_config": {"@type": "x/HttpConnectionManager", "http_filters": [http, {"name": "router"}],
            "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": []}]}}}]}]}]}});
    check(&bootstrap.to_string(), &own);
    let structured = json!({"name": "envoy.filters.http.ratelimit", "typed_config": {
        "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "value": camel}});
    check(&structured.to_string(), &own);
    // Listeners repeat it.
    check(&json!([http, {"a": http}]).to_string(), &own);
}

#[test]
fn virtual_hosts_and_routes_keep_their_lists() {
    let hosts = format!(
        "\
- name: v
  domains: ['*']
  rate_limits: [ {ENTRY} ]
  routes:
  - name: both
    match: {{ prefix: / }}
    route: {{ cluster: c, rate_limits: [ {ENTRY} ], include_vh_rate_limits: true }}
  - name: plain
    match: {{ prefix: / }}
    route: {{ cluster: c }}
  - name: own
    match: {{ prefix: / }}
    route: {{ cluster: c }}
    typed_per_filter_config:
      envoy.filters.http.ratelimit:
        '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
        vh_rate_limits: IGNORE
        domain: other
        rate_limits: [ {ENTRY} ]
      another: {{ '@type': x/Y, z: 1 }}
  - match: {{ prefix: / }}
    route: {{ cluster: c, rate_limits: [ {ENTRY} ] }}
  - match: {{ prefix: / }}
    redirect: {{ https_redirect: true }}
- name: nothing
  domains: [a]
  routes: [ {{ match: {{ prefix: / }}, route: {{ cluster: c }} }} ]
"
    );
    let list = json!([entry("a")]);
    let host = json!({"name": "v", "rate_limits": list, "routes": [
        {"name": "both", "rate_limits": list, "include_vh_rate_limits": true},
        {"name": "own", "per_route": {"vh_rate_limits": "IGNORE", "domain": "other", "rate_limits": list}},
        {"name": "", "rate_limits": list},
    ]});
    check(&with_hosts(&hosts), &with(&json!({"virtual_hosts": [host]})));
}

#[test]
fn a_filter_that_is_switched_off_limits_nothing() {
    let off = "{ envoy.filters.http.ratelimit: { '@type': type.googleapis.com/envoy.config.route.v3.FilterConfig, \
               disabled: true } }";
    let hosts = format!(
        "- {{ name: v, rate_limits: [ {ENTRY} ], routes: [ {{ name: r, match: {{ prefix: / }}, route: {{ cluster: c, \
         rate_limits: [ {ENTRY} ] }}, typed_per_filter_config: {off} }} ] }}\n\
         - {{ name: w, rate_limits: [ {ENTRY} ], typed_per_filter_config: {off}, routes: [ {{ name: r, match: \
         {{ prefix: / }}, route: {{ cluster: c, rate_limits: [ {ENTRY} ] }} }} ] }}"
    );
    let expected = json!({"virtual_hosts": [
        {"name": "v", "rate_limits": [entry("a")], "routes": [
            {"name": "r", "per_route": {"vh_rate_limits": "IGNORE"}}]},
    ]});
    check(&with_hosts(&hosts), &with(&expected));
}

#[test]
fn routes_that_a_wasm_filter_cannot_tell_apart_are_named() {
    let route = |name: &str, value: &str| {
        let list = ENTRY.replace("value: a", &format!("value: {value}"));
        format!(
            "{{ name: '{name}', match: {{ prefix: / }}, route: {{ cluster: c, rate_limits: [ {list} ] }} }}"
        )
    };
    let hosts = |routes: &[String]| {
        with_hosts(&format!(
            "- name: v\n  domains: ['*']\n  rate_limits: [ {ENTRY} ]\n  routes: [ {} ]",
            routes.join(",\n    ")
        ))
    };
    let unnamed = "virtual host v: routes without a name have different rate limits";
    let config = check_findings(
        &hosts(&[route("", "a"), route("", "b"), route("x", "c")]),
        &["f:13:15: virtual host v: ", unnamed],
    );
    assert_eq!(
        config["virtual_hosts"][0]["routes"],
        json!([{"name": "x", "rate_limits": [entry("c")]}])
    );
    let bare = "{ match: { prefix: / }, route: { cluster: c } }".to_owned();
    check_findings(&hosts(&[route("", "a"), bare]), &["routes without a name"]);
    check_findings(
        &hosts(&[route("x", "a"), route("x", "b")]),
        &["several routes with the name x", "several routes with the name x"],
    );
    check_findings(&hosts(&[route("", "a"), route("", "a")]), &[]);
    let twice =
        hosts(&[]) + &format!("- name: v\n  domains: [b]\n  rate_limits: [ {ENTRY}, {ENTRY} ]\n");
    check_findings(&twice, &["an earlier virtual host of this name"]);
}

#[test]
fn an_entry_with_a_part_that_has_no_equivalent_is_left_out() {
    let list = "rate_limits: [ { actions: [ { extension: { name: x, typed_config: {} } }, { remote_address: {} }, { generic_kex: {} } ], \
                hits_addend: { format: '%REG(a)%' } }, { actions: [ { remote_address: {} } ] } ]";
    let config = check_findings(
        &filter(list),
        &[
            "f:8:46: rate_limits[0].actions[0].extension: not supported",
            "rate_limits[0].actions[2].generic_kex: unknown field `generic_kex` (did you mean `generic_key`?)",
            "rate_limits[0].hits_addend.format: ",
        ],
    );
    assert_eq!(config["rate_limits"], json!([{"actions": [{"remote_address": {}}]}]));
    // If no entry of a list remains, no other list takes its place.
    let hosts = format!(
        "- name: v\n  domains: ['*']\n  rate_limits: [ {ENTRY} ]\n  routes: [ {{ name: r, match: {{ prefix: / }}, \
         route: {{ cluster: c, rate_limits: [ {{ actions: [ {{ extension: {{ name: x, typed_config: {{}} }} }} ] }} ] }} }} ]"
    );
    let config = check_findings(
        &with_hosts(&hosts),
        &["virtual host v: route r: rate_limits[0].actions[0].extension"]
            .map(|_| "route r: rate_limits[0].actions[0].extension"),
    );
    let expected = json!([{"name": "r", "per_route": {"vh_rate_limits": "IGNORE"}}]);
    assert_eq!(config["virtual_hosts"][0]["routes"], expected);
}

#[test]
fn options_without_an_equivalent_are_named_with_their_place() {
    let rows = [
        ("timeout: 0s", "f:8:12: timeout: calls without end"),
        ("timeout: 20", "timeout: expected a duration"),
        ("domian: a", "domian: unknown field (did you mean `domain`?)"),
        (
            "status_on_error: { code: 200 }",
            "status_on_error.code: 200 is out of range (400 to 599)",
        ),
        (
            "filter_enabled: { default_value: { numerator: -1 } }",
            "filter_enabled.default_value.numerator: invalid value",
        ),
    ];
    for (field, words) in rows {
        check_findings(&filter(&format!("{field}\nrate_limits: [ {ENTRY} ]")), &[words]);
    }
    let notes = filter(
        "filter_enabled: { default_value: { numerator: 5 }, runtime_key: a }\n\
         rate_limits: [ { disable_key: b, actions: [ { remote_address: {} } ] } ]",
    );
    check_findings(
        &notes,
        &["note: filter_enabled.runtime_key: has no effect", "note: rate_limits[0].disable_key"],
    );
    let google = filter(&format!("rate_limits: [ {ENTRY} ]"))
        .replace("envoy_grpc: { cluster_name: tidegate }", "google_grpc: { target_uri: a }");
    refused(&google, "give it with --cluster NAME");
    let cluster = TranslateOptions { cluster: Some("c".to_owned()), ..options() };
    let (config, findings) = translated(&cluster, &google);
    assert_eq!(config["sidecar"]["cluster"], "c");
    assert!(
        findings[0].contains("google_grpc: the sidecar is called through a cluster"),
        "{findings:?}"
    );
}

#[test]
fn lists_that_the_filters_own_replaces_are_left_out_with_a_note() {
    let text = filter(&format!("rate_limits: [ {ENTRY} ]")).trim_end().to_owned()
        + &format!(
            "\n---\nvirtual_hosts: [ {{ name: v, domains: ['*'], rate_limits: [ {ENTRY} ], routes: [ {{ name: r, match: {{ prefix: / }}, route: {{ cluster: c }}, typed_per_filter_config: {{ envoy.filters.http.ratelimit: {{ domain: o }} }} }} ] }} ]\n"
        );
    let config =
        check_findings(&text, &["note: virtual host v: rate_limits: has no effect in Envoy"]);
    let expected = json!([{"name": "v", "routes": [{"name": "r", "per_route": {"domain": "o"}}]}]);
    assert_eq!(config["virtual_hosts"], expected);
}

/// The filter and the patch of Istio's task for global rate limits.
#[test]
fn patches_of_istio() {
    let istio = |host: &str| {
        format!(
            "\
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
spec:
  configPatches:
    - applyTo: HTTP_FILTER
      match: {{ context: GATEWAY }}
      patch:
        operation: INSERT_BEFORE
        value:
          name: envoy.filters.http.ratelimit
          typed_config:
            '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
            domain: productpage-ratelimit
            failure_mode_deny: true
            timeout: 10s
            rate_limit_service:
              grpc_service:
                envoy_grpc: {{ cluster_name: 'outbound|8081||ratelimit.default.svc.cluster.local', authority: a }}
              transport_api_version: V3
---
# The actions.
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
spec:
  configPatches:
    - applyTo: VIRTUAL_HOST
      match:
        context: GATEWAY
        routeConfiguration: {{ vhost: {{ name: '{host}', route: {{ action: ANY }} }} }}
      patch:
        operation: MERGE
        value:
          rate_limits:
            - actions:
              - request_headers: {{ header_name: ':path', descriptor_key: PATH }}
"
        )
    };
    let header = json!({"request_headers": {"header_name": ":path", "descriptor_key": "PATH"}});
    let list = json!([{"actions": [header]}]);
    let mut expected = json!({
        "domain": "productpage-ratelimit",
        "sidecar": {"cluster": "outbound|8081||ratelimit.default.svc.cluster.local", "timeout_ms": 10000},
        "failure_mode": "deny",
        "headers": "off",
        "denied": {"body": ""},
        "rate_limits": list,
    });
    check(&istio(""), &expected);
    expected.as_object_mut().unwrap().remove("rate_limits");
    expected["virtual_hosts"] = json!([{"name": "*:80", "rate_limits": list}]);
    check(&istio("*:80"), &expected);
}

/// As Envoy Gateway configures Envoy: a list for each route, by its name.
#[test]
fn routes_of_envoy_gateway() {
    let name = "httproute/default/backend/rule/0/match/0/www_example_com";
    let per_route = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
        "rateLimits": [{"actions": [
            {"genericKey": {"descriptorKey": name, "descriptorValue": name}},
            {"headerValueMatch": {"descriptorKey": "rule-0-match-0", "descriptorValue": "rule-0-match-0",
                "expectMatch": true, "headers": [{"name": "x-user-id", "stringMatch": {"exact": "one"}}]}},
            {"maskedRemoteAddress": {"v4PrefixMaskLen": 16}},
        ], "hitsAddend": {"number": 2}}],
    });
    let dump = json!({"configs": [
        {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamicListeners": [{"listener": {"x": [
            {"name": "envoy.filters.http.ratelimit", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
                "domain": "default/eg/http",
                "enableXRatelimitHeaders": "DRAFT_VERSION_03",
                "rateLimitService": {"grpcService": {"envoyGrpc": {"clusterName": "ratelimit_cluster"}},
                    "transportApiVersion": "V3"},
            }}]}}]},
        {"@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump", "dynamicRouteConfigs": [{"routeConfig": {
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "name": "default/eg/http",
            "ignorePortInHostMatching": true,
            "virtualHosts": [{"name": "default/eg/http/www_example_com", "domains": ["www.example.com"], "routes": [
                {"name": name, "match": {"prefix": "/"}, "route": {"cluster": "c", "upgradeConfigs": []},
                    "typedPerFilterConfig": {"envoy.filters.http.ratelimit": per_route}}]}],
        }}]},
    ]});
    let list = json!([{"actions": [
        {"generic_key": {"descriptor_key": name, "descriptor_value": name}},
        {"header_value_match": {"descriptor_key": "rule-0-match-0", "descriptor_value": "rule-0-match-0",
            "expect_match": true, "headers": [{"name": "x-user-id", "string_match": {"exact": "one"}}]}},
        {"masked_remote_address": {"v4_prefix_mask_len": 16}},
    ], "hits_addend": {"number": 2}}]);
    let expected = json!({
        "domain": "default/eg/http",
        "sidecar": {"cluster": "ratelimit_cluster"},
        "headers": "draft03",
        "denied": {"body": ""},
        "virtual_hosts": [{"name": "default/eg/http/www_example_com", "routes": [
            {"name": name, "per_route": {"rate_limits": list}}]}],
    });
    check(&dump.to_string(), &expected);
}

#[test]
fn routes_alone_need_a_domain_and_a_cluster() {
    let text = format!("rate_limits: [ {ENTRY} ]\n");
    refused(&text, "no rate limit filter, so no domain; give it with --domain NAME");
    let both = TranslateOptions {
        domain: Some("d".to_owned()),
        cluster: Some("c".to_owned()),
        ..options()
    };
    let plain = json!({"domain": "d", "sidecar": {"cluster": "c"}, "rate_limits": [entry("a")]});
    assert_eq!(translated(&both, &text), (plain, Vec::new()));
    let route = format!(
        "match: {{ prefix: / }}\nname: r\nroute: {{ cluster: c, rate_limits: [ {ENTRY} ] }}\n"
    );
    let (config, _) = translated(&both, &route);
    let any = json!({"safe_regex": {"regex": ".*"}});
    let routes = json!([{"name": "r", "rate_limits": [entry("a")]}]);
    assert_eq!(config["virtual_hosts"], json!([{"name": any, "routes": routes}]));
}

#[test]
fn input_that_cannot_be_translated() {
    refused("", "f is empty");
    refused("a: [", "f:1:");
    refused("a: 1\n---\nb: {\n", "f:");
    refused("a: b", "no rate limit filter, virtual host or route in the input");
    refused(&"[".repeat(1000), "nested too deeply");
    refused(&"---\na: 1\n".repeat(300), "f has more than 256 documents");
    let two = format!("{FILTER}---\n{}", FILTER.replace("domain: shop", "domain: other"));
    refused(&two, "several rate limit filters");
    let named = two.replacen("name: envoy.filters.http.ratelimit", "name: first", 1);
    let one = TranslateOptions { filter: Some("first".to_owned()), ..options() };
    let files = [File::of("f", &named).unwrap()];
    // Nothing limits, so there is no configuration; but the filter was chosen.
    let (config, report) = translate(&one, &files).unwrap();
    assert!(config.unwrap_err().contains("missing field `rate_limits`") && !report.is_complete());
    // A name in both spellings.
    check_findings(
        &filter(&format!(
            "rate_limits: [ {{ actions: [ {{ generic_key: {{ descriptor_value: a, descriptorValue: b }} }} ] }}, {ENTRY} ]"
        )),
        &["`descriptor_value` is there in both spellings"],
    );
}

/// The JSON pointers of all values in a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    let below: Vec<(String, &Value)> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.replace('~', "~0").replace('/', "~1"), field))
            .collect(),
        _ => Vec::new(),
    };
    below.into_iter().for_each(|(step, value)| pointers(value, &format!("{at}/{step}"), all));
}

/// A filter with virtual hosts and routes of all kinds.
fn everything() -> Value {
    let list = json!([entry("a"), {"stage": 1, "hits_addend": {"number": 2}, "actions": [{"remote_address": {}}]}]);
    let per_route = json!({"envoy.filters.http.ratelimit": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
        "vh_rate_limits": "INCLUDE", "rate_limits": list, "domain": "o"}});
    let routes = json!([
        {"name": "a", "match": {}, "route": {"cluster": "c", "rate_limits": list, "include_vh_rate_limits": true}},
        {"name": "b", "match": {}, "route": {"cluster": "c"}, "typed_per_filter_config": per_route},
        {"match": {}, "route": {"weighted_clusters": {"clusters": [{"typed_per_filter_config": per_route}]}}},
        {"match": {}, "redirect": {}},
    ]);
    json!([
        {"name": "envoy.filters.http.ratelimit", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": "d", "timeout": "1s", "stage": 0, "failure_mode_deny": true,
            "rate_limited_status": {"code": 420}, "filter_enabled": {"default_value": {"numerator": 1}},
            "rate_limit_service": {"grpc_service": {"envoy_grpc": {"cluster_name": "c"}}}}},
        {"virtual_hosts": [
            {"name": "v", "domains": ["*"], "rate_limits": list, "typed_per_filter_config": per_route, "routes": routes},
            {"name": "w", "domains": ["w"], "rate_limits": list, "routes": routes}]},
        {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"vhost": {"name": ""}}},
            "patch": {"value": {"rate_limits": list}}},
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is wrong in a document: the filter accepts what is printed, or there is a message instead.
    #[test]
    fn what_is_printed_is_accepted(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..9_usize), 1..5),
    ) {
        let mut document = everything();
        for (place, kind) in changes {
            let mut all = Vec::new();
            pointers(&document, "", &mut all);
            let values = [
                json!(null), json!(7), json!(-1), json!(true), json!("x"), json!(""), json!([]), json!({}),
                json!([{"actions": [{"extension": {"a": 1}}]}]),
            ];
            if let Some(value) = document.pointer_mut(place.get(&all).as_str()) {
                *value = values[kind].clone();
            }
        }
        let files = [File::of("f", &document.to_string()).unwrap()];
        if let Ok((config, report)) = translate(&options(), &files) {
            match config {
                Ok(config) => prop_assert!(Config::from_envoy(config.to_string().as_bytes()).is_ok()),
                Err(message) => prop_assert!(!message.is_empty() && !report.is_complete()),
            }
        }
    }
}

/// Thousands of virtual hosts, routes, filters and findings take no time that grows with their square.
#[test]
fn large_inputs_take_time_in_proportion() {
    let route = |n: usize| {
        format!(
            "{{ name: r{n}, match: {{}}, route: {{ cluster: c, rate_limits: [ {{ actions: [ {{ x: {{}} }} ] }} ] }} }}"
        )
    };
    let routes: Vec<String> = (0..4_000).map(route).collect();
    let host = |n: usize| format!("- {{ name: h{n}, domains: [a], rate_limits: [ {ENTRY} ] }}\n");
    let hosts: String = (0..4_000).map(host).collect();
    let text = with_hosts(&format!(
        "{hosts}- {{ name: v, domains: [b], routes: [ {} ] }}",
        routes.join(", ")
    ));
    let files = [File::of("f", &text).unwrap()];
    let (config, report) = translate(&options(), &files).unwrap();
    assert!(config.unwrap_err().contains("too many"));
    assert_eq!(report.findings().len(), 4_000);
    let filters =
        (0..4_000).map(|n| FILTER.replace("shop", &format!("d{n}")).replace('\n', "\n  "));
    let filters: String = filters.map(|filter| format!("- {}\n", filter.trim_end())).collect();
    refused(&filters, "several rate limit filters");
}
