use super::*;
use std::path::Path;
use tidegate_limits::{Defaults, Loaded, Origin, Source, load_source};

fn policy(unit: i32, requests_per_unit: u32) -> Option<RateLimitPolicy> {
    Some(RateLimitPolicy { unit, requests_per_unit, ..Default::default() })
}

fn descriptor(
    key: &str,
    value: &str,
    rate_limit: Option<RateLimitPolicy>,
    below: &[RateLimitDescriptor],
) -> RateLimitDescriptor {
    let descriptors = below.iter().map(|below| below.encode_to_vec().into()).collect();
    let (key, value) = (key.to_owned(), value.to_owned());
    RateLimitDescriptor { key, value, rate_limit, descriptors, ..Default::default() }
}

fn resource(name: &str, domain: &str, below: &[RateLimitDescriptor]) -> Bytes {
    let descriptors = below.iter().map(|below| below.encode_to_vec().into()).collect();
    let config = RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors };
    let any = Any { type_url: RATE_LIMIT_CONFIG.to_owned(), value: config.encode_to_vec().into() };
    any.encode_to_vec().into()
}

fn load(document: &Document) -> Result<Loaded, Vec<String>> {
    let files = vec![document.file.clone()];
    let source = Source::brought(Path::new("xDS"), files, Origin::Feeds);
    load_source(&source, Defaults::default())
        .map_err(|errors| errors.0.iter().filter_map(|error| document.explain(error)).collect())
}

#[track_caller]
fn rules(below: &[RateLimitDescriptor]) -> Vec<String> {
    let document = Document::read(0, resource("shop", "shop", below)).unwrap();
    let Loaded { rules, warnings, .. } = load(&document).unwrap();
    assert_eq!(warnings, []);
    rules.rules().into_iter().map(|rule| described(rule)).collect()
}

fn described(rule: &tidegate_limits::Rule) -> String {
    let mode = rule.enforcement;
    let named = &rule.metric_values;
    format!("{}: {} {mode:?} {named:?}", rule.path, tidegate_limits::diff::describe(rule))
}

#[track_caller]
fn mistakes(below: &[RateLimitDescriptor], expected: &[&str]) {
    let document = Document::read(0, resource("shop", "shop", below)).unwrap();
    assert_eq!(load(&document).map(|_| ()).unwrap_err(), expected);
}

#[test]
fn each_field_means_what_it_means_in_a_file() {
    for (unit, name) in (1..).zip(["second", "minute", "hour", "day", "month", "year", "week"]) {
        let found = rules(&[descriptor("k", "", policy(unit, 7), &[])]);
        assert_eq!(found.len(), 1);
        means(
            &[descriptor("k", "", policy(unit, 7), &[])],
            &format!(
                "domain: shop\ndescriptors: [{{key: k, rate_limit: {{unit: {name}, requests_per_unit: 7}}}}]"
            ),
        );
    }
    let mut unlimited = policy(0, 0);
    unlimited.as_mut().unwrap().unlimited = true;
    assert_eq!(rules(&[descriptor("k", "v", unlimited, &[])]).len(), 1);
    // A limit of nothing denies everything.
    assert_eq!(rules(&[descriptor("k", "v", policy(1, 0), &[])]).len(), 1);
}

/// Generated configurations set modes on levels without limits, where they have no effect.
#[test]
fn modes_of_levels_without_a_limit_are_no_warning() {
    let mut inner = descriptor("masked_remote_address", "10.0.0.0/8", policy(1, 5), &[]);
    inner.shadow_mode = true;
    inner.quota_mode = true;
    inner.detailed_metric = true;
    let mut middle = descriptor("rule-0-match-0", "rule-0-match-0", None, &[inner]);
    middle.shadow_mode = true;
    let found = rules(&[descriptor("r", "r", None, &[middle])]);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("shadow"), "{found:?}");
}

#[test]
fn any_text_of_a_key_arrives_as_it_was_sent() {
    for text in [
        "httproute/default/api/rule/0",
        "true",
        "007",
        "~",
        "a: b # c",
        "\"'\\",
        "*/x",
        "\u{e9}\u{4e2d}",
        "\t\n\r\0\u{7f}\u{85}",
        "\u{feff}\u{2028}\u{1f600}",
        "%REQ(x)%",
        "{}",
        "[a,b]",
        "- x",
        " ",
    ] {
        let document =
            Document::read(0, resource("r", text, &[descriptor(text, "", policy(1, 1), &[])]))
                .unwrap();
        let Loaded { rules, .. } = load(&document).unwrap();
        assert_eq!(rules.domain_names(), [text], "{text:?}");
        assert_eq!(rules.root(text).unwrap().keys(), [text], "{text:?}");
    }
}

#[test]
fn metadata_is_passed_on() {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let list = prost_types::ListValue { values: vec![text("a"), text("b: c")] };
    let fields = [
        ("owner".to_owned(), text("team \"x\"")),
        ("list".to_owned(), Value { kind: Some(Kind::ListValue(list)) }),
        ("number".to_owned(), Value { kind: Some(Kind::NumberValue(1e300)) }),
        ("none".to_owned(), Value { kind: None }),
    ];
    let mut with = descriptor("k", "", policy(1, 1), &[]);
    with.metadata = Some(Struct { fields: fields.into() });
    let document = Document::read(0, resource("r", "d", &[with.clone()])).unwrap();
    let loaded = load(&document).unwrap();
    let metadata = format!("{:?}", loaded.rules.rules()[0].metadata);
    for part in ["owner", "team \\\"x\\\"", "b: c", "1e300"] {
        assert!(metadata.contains(part), "{part}: {metadata}");
    }
    let nan = Value { kind: Some(Kind::NumberValue(f64::NAN)) };
    with.metadata = Some(Struct { fields: [("n".to_owned(), nan)].into() });
    mistakes(
        &[with],
        &["resource shop: descriptor k: `metadata`: only finite numbers can be passed on"],
    );
}

#[test]
fn every_mistake_names_its_descriptor() {
    let bad = descriptor("", "", policy(1, 1), &[]);
    let unit = descriptor("u", "v", policy(9, 1), &[]);
    let below = descriptor("b", "", None, &[descriptor("x", "1", policy(0, 1), &[])]);
    let twice = descriptor("t", "", policy(1, 1), &[]);
    let document =
        Document::read(0, resource("shop", "shop", &[bad, unit, below, twice.clone(), twice]));
    let found = load(&document.unwrap()).map(|_| ()).unwrap_err();
    assert_eq!(found.len(), 4, "{found:#?}");
    for (found, start) in found.iter().zip([
        "resource shop: descriptor : `key` is required",
        "resource shop: descriptor u=v: ",
        "resource shop: descriptor b/x=1: ",
        "resource shop: descriptor t: duplicate descriptor shop/t",
    ]) {
        assert!(found.starts_with(start), "{found}");
        assert!(!found.contains("the first is at"), "{found}");
    }
    assert!(found[1].contains("unit number 9"), "{}", found[1]);
    let document = Document::read(3, resource("", "", &[])).unwrap();
    let found = load(&document).map(|_| ()).unwrap_err();
    assert_eq!(found, ["resources[3]: `domain` is required and must not be empty"]);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let error = |bytes: &[u8]| Document::read(2, Bytes::copy_from_slice(bytes)).unwrap_err();
    assert!(error(b"\xff").starts_with("resources[2]: "));
    let other = Any { type_url: "type.googleapis.com/x.Y".to_owned(), value: Bytes::new() };
    assert!(error(&other.encode_to_vec()).contains("found type.googleapis.com/x.Y"));
    let mut deep = descriptor("k", "", policy(1, 1), &[]);
    for _ in 0..LEVELS_MAX {
        deep = descriptor("k", "", None, &[deep]);
    }
    let error = Document::read(0, resource("shop", "shop", &[deep])).unwrap_err();
    assert_eq!(error, "resource shop: nested too deeply (maximum: 30 levels of descriptors)");
    let broken = RateLimitConfig {
        name: "n".to_owned(),
        domain: "d".to_owned(),
        descriptors: vec![Bytes::from_static(b"\xff")],
    };
    let any = Any { type_url: RATE_LIMIT_CONFIG.to_owned(), value: broken.encode_to_vec().into() };
    let error = Document::read(0, any.encode_to_vec().into()).unwrap_err();
    assert!(error.starts_with("resource n: "), "{error}");
}

/// A resource means what a file says.
#[track_caller]
fn means(below: &[RateLimitDescriptor], yaml: &str) {
    let file = SourceFile { path: "f.yaml".into(), bytes: Ok(yaml.as_bytes().to_vec()) };
    let source = Source::brought(Path::new("f"), vec![file], Origin::Feeds);
    let loaded = load_source(&source, Defaults::default()).unwrap();
    let expected: Vec<String> =
        loaded.rules.rules().into_iter().map(|rule| described(rule)).collect();
    assert_eq!(rules(below), expected);
}

/// The shapes of configurations that Envoy Gateway generates: a level for the route, and one for each match.
#[test]
fn what_envoy_gateway_generates_means_what_it_says() {
    let rule = "rule-0-match-0";
    let of_route = |below: &[RateLimitDescriptor]| descriptor("r", "r", None, below);
    let shadow = |mut of: RateLimitDescriptor| {
        of.shadow_mode = true;
        of
    };
    let detailed = |mut of: RateLimitDescriptor| {
        of.detailed_metric = true;
        of
    };
    let cases = [
        // The whole route.
        (
            vec![descriptor("r", "r", policy(2, 40), &[])],
            "{ unit: minute, requests_per_unit: 40 }",
            "",
        ),
        // One value of a header.
        (
            vec![of_route(&[descriptor(rule, rule, policy(1, 12), &[])])],
            "",
            "{ key: rule-0-match-0, value: rule-0-match-0, rate_limit: { unit: second, requests_per_unit: 12 } }",
        ),
        // Each value, and others for some.
        (
            vec![of_route(&[
                descriptor(rule, "", policy(1, 11), &[]),
                descriptor(rule, "gold", policy(3, 77), &[]),
            ])],
            "",
            "{ key: rule-0-match-0, rate_limit: { unit: second, requests_per_unit: 11 } }, \
             { key: rule-0-match-0, value: gold, rate_limit: { unit: hour, requests_per_unit: 77 } }",
        ),
        // Several matches and a network.
        (
            vec![of_route(&[shadow(descriptor(
                rule,
                rule,
                None,
                &[shadow(descriptor("masked_remote_address", "172.16.0.0/12", policy(4, 6), &[]))],
            ))])],
            "",
            "{ key: rule-0-match-0, value: rule-0-match-0, descriptors: [ { key: masked_remote_address, \
             value: 172.16.0.0/12, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 6 } } ] }",
        ),
        // All but a network.
        (
            vec![of_route(&[descriptor(
                "masked_remote_address",
                "invert:172.16.0.0/12",
                policy(5, 6),
                &[],
            )])],
            "",
            "{ key: masked_remote_address, value: 'invert:172.16.0.0/12', rate_limit: { unit: month, \
             requests_per_unit: 6 } }",
        ),
        // Each value, by name in metrics.
        (
            vec![of_route(&[detailed(descriptor(rule, "", policy(6, 9), &[]))])],
            "",
            "{ key: rule-0-match-0, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }",
        ),
    ];
    for (below, limit, levels) in cases {
        let limit = if limit.is_empty() { String::new() } else { format!("rate_limit: {limit},") };
        let yaml = format!(
            "domain: shop\ndescriptors: [ {{ key: r, value: r, {limit} descriptors: [ {levels} ] }} ]\n"
        );
        means(&below, &yaml);
    }
}

/// AI Gateway sets the mode on each limit of a quota.
#[test]
fn quotas_of_ai_gateway_have_their_mode() {
    let quota = |value: &str, requests| {
        let mut of = descriptor("model", value, policy(3, requests), &[]);
        of.quota_mode = true;
        of
    };
    means(
        &[descriptor("backend", "b", None, &[quota("small", 5), quota("", 50)])],
        "domain: shop\ndescriptors: [ { key: backend, value: b, descriptors: [ \
         { key: model, value: small, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 5 } }, \
         { key: model, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 50 } } ] } ]",
    );
}
