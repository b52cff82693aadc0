//! Conditions (`when`) in the built module tidegate-cel.wasm, and what they cost; the plain module refuses them.

use crate::host::{Host, Outcome};
use crate::scene::*;
use serde_json::{Value, json};
use tidegate_core::Verdict;
use tidegate_tests::artifacts;

fn started_with(plugin: &Value) -> Host {
    let module = artifacts::filter_with_conditions().expect("the built filter with conditions");
    configured(Host::load(&module), plugin)
}

/// One descriptor for requests for which this holds.
fn plugin_when(when: &str) -> Value {
    let mut plugin = plugin();
    plugin["headers"] = json!("off");
    plugin["rate_limits"] =
        json!([{"when": when, "actions": [{"generic_key": {"descriptor_value": "v"}}]}]);
    plugin
}

/// Whether an entry applies to a request, and the instructions until it is asked about, or passes.
fn evaluated(host: &mut Host, headers: &[(&str, &[u8])]) -> (bool, u64) {
    host.clear_calls();
    allow_all(host);
    let request = host.request(headers);
    let instructions = host.instructions()["proxy_on_request_headers"];
    let asked = *host.outcome(request) == Outcome::Paused;
    for call in host.take_grpc_calls() {
        host.answer(call.token, &answer(Verdict::Allow, &[]));
    }
    host.finish(request);
    (asked, instructions)
}

#[test]
fn the_plain_module_names_the_one_with_conditions() {
    let mut host = Host::load(&artifacts::filter().expect("the built filter"));
    allow(&mut host, ON_START);
    assert!(!host.start(plugin_when("true").to_string().as_bytes()));
    let logged: Vec<&str> = host.logs().iter().map(|line| line.text.as_str()).collect();
    let message = "tidegate: plugin configuration: rate_limits[0].when: not supported: conditions need \
                   the module tidegate-cel.wasm in place of this one";
    assert_eq!(logged, [message]);
}

#[test]
fn an_entry_applies_to_requests_for_which_its_condition_holds() {
    let mut host = started_with(&plugin_when("request.method == 'POST' && source.address != ''"));
    assert!(evaluated(&mut host, &[(":method", b"POST")]).0);
    assert!(!evaluated(&mut host, &[(":method", b"GET")]).0);
    assert_eq!(host.calls().get("proxy_get_property"), None, "not read where it decides nothing");
    assert_eq!(host.metric("tidegate.condition_errors"), Some(0));
    // Without the header, nothing says that the limit is not for this request.
    assert!(evaluated(&mut host, &[]).0);
    assert!(evaluated(&mut host, &[]).0);
    let logged = host.logs().iter().map(|line| line.text.as_str());
    let logged: Vec<&str> = logged.filter(|line| line.contains("when")).collect();
    let message = "tidegate: rate_limits[0].when: no result for some requests: a value is absent";
    assert_eq!(logged, [message], "once, not for each request");
    allow(&mut host, ON_TICK);
    host.tick();
    assert_eq!(host.metric("tidegate.condition_errors"), Some(2));
}

/// A stack that is too small would end the virtual machine.
#[test]
fn the_deepest_expressions_fit_on_the_stack() {
    let nested = |depth: usize| format!("{}true{}", "!(".repeat(depth), ")".repeat(depth));
    let ternary = |depth: usize| format!("{}true", "true ? true : ".repeat(depth));
    let indexes = |depth: usize| format!("jwt.claims{} == 1", "['a']".repeat(depth));
    for when in [nested(31), ternary(25), indexes(25)] {
        let mut host = started_with(&plugin_when(&when));
        let metadata = [0x0a; 4_000];
        host.set_property(&["metadata"], &metadata);
        evaluated(&mut host, &[]);
    }
    for when in [
        "(".repeat(2_048),
        "-".repeat(2_048),
        "!".repeat(2_048),
        "[".repeat(2_048),
        "{1:".repeat(600),
        format!("{}a", "a.".repeat(250)),
        format!("{}1", "1+".repeat(250)),
        format!("a{}", "[0]".repeat(250)),
        format!("f({}1)", "1+".repeat(250)),
        format!("a{}", ".f()".repeat(120)),
        format!("1{}", " in a".repeat(250)),
        format!("{}a", "a.".repeat(1_000)),
        format!("{}1", "1+".repeat(1_000)),
        format!("a{}", "[0]".repeat(680)),
        format!("a{}", ".f()".repeat(500)),
        "true?true:".repeat(200),
        "has(".repeat(500),
        "a.all(b,".repeat(250),
    ] {
        let module = artifacts::filter_with_conditions().expect("the built filter with conditions");
        let mut host = Host::load(&module);
        allow(&mut host, ON_START);
        assert!(!host.start(plugin_when(&when).to_string().as_bytes()), "{when}");
        assert!(host.logs()[0].text.contains("rate_limits[0].when: "), "{:?}", host.logs());
    }
}

/// What a byte of a client's value costs at most, and that twice the bytes cost twice as much.
#[test]
fn long_values_cost_a_bounded_number_of_instructions_a_byte() {
    const SHORT: usize = 6_000;
    const LONG: usize = 60_000;
    let many = |test: &str, count: usize| vec![test; count].join(" && ");
    let cases = [
        ("reading", "request.path != 'x'".to_owned(), "/", 8),
        ("startsWith", "request.path.startsWith('/x')".to_owned(), "/", 8),
        ("contains", "request.path.contains('aaaaaaaaaaaaaaab')".to_owned(), "a", 20),
        ("contains a value", "!request.path.contains(request.headers['x-b'])".to_owned(), "a", 150),
        ("equal values", "request.path == request.headers['x-b']".to_owned(), "a", 20),
        ("size", "size(request.path) > 0".to_owned(), "a", 20),
        ("int", "int(request.path) > 0".to_owned(), "1", 8),
        ("query", "request.query != request.url_path".to_owned(), "a", 30),
        ("matches", "request.path.matches('b$')".to_owned(), "a", 60),
        (
            "matches of many states",
            "request.path.matches('(a|b)*a(a|b){12}c')".to_owned(),
            "ab",
            9_000,
        ),
        ("no UTF-8", "request.path == 'x'".to_owned(), "\u{ff}", 180),
        ("40 tests", many("!request.path.contains('aaaaaaaaaaaaaaab')", 40), "a", 800),
    ];
    for (what, when, part, most) in cases {
        let mut letters = 7_u64;
        let mut value = |length: usize| -> Vec<u8> {
            let part = if part == "\u{ff}" { b"\xff" } else { part.as_bytes() };
            let letter = |_| {
                letters = letters.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                part[(letters >> 33) as usize % part.len()]
            };
            (0..length).map(letter).collect()
        };
        let mut cost = |length: usize| {
            // Does not apply, so that a request costs nothing else.
            let mut host = started_with(&plugin_when(&format!("({when}) && false")));
            let (path, other) = (value(length), [value(length / 2), b"b".to_vec()].concat());
            let headers: [(&str, &[u8]); 2] = [(":path", &path), ("x-b", &other)];
            (0..3).map(|_| evaluated(&mut host, &headers).1).max().expect("three")
        };
        let (short, long) = (cost(SHORT), cost(LONG));
        eprintln!("COST {} {:.1} {what}", long / LONG as u64, long as f64 / short as f64);
        assert!(
            long / LONG as u64 <= most,
            "{what}: {} a byte (at most {most})",
            long / LONG as u64
        );
        assert!(long <= short * 11, "{what}: {short} for {SHORT} bytes, {long} for {LONG}");
    }
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).expect("room");
    [bytes, content.to_vec()].concat()
}

/// Dynamic metadata with claims, each a name and an encoded `Value`.
fn metadata(claims: &[(String, Vec<u8>)]) -> Vec<u8> {
    let entry =
        |name: &str, value: &[u8]| field(1, &[field(1, name.as_bytes()), field(2, value)].concat());
    let claims: Vec<u8> = claims.iter().flat_map(|(name, value)| entry(name, value)).collect();
    let payload = entry("payload", &field(5, &claims));
    entry("envoy.filters.http.jwt_authn", &payload)
}

fn text(text: &str) -> Vec<u8> {
    field(3, text.as_bytes())
}

/// Thousands of headers, claims, namespaces and elements of a list.
#[test]
fn many_headers_and_many_claims_cost_a_bounded_number_of_instructions_each() {
    let mut host = started_with(&plugin_when("request.headers['x-last'] != 'a'"));
    let names: Vec<String> = (0..5_000).map(|n| format!("x-{n}")).collect();
    let mut headers: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
    headers.push(("x-last", b"a"));
    // Envoy finds the header; the module does not see the others.
    let (applies, many) = evaluated(&mut host, &headers);
    let (_, one) = evaluated(&mut host, &[("x-last", b"a")]);
    assert!(!applies && many.abs_diff(one) < 5_000, "{many} and {one}");

    let cost = |when: &str, claims: &[(String, Vec<u8>)]| {
        let mut host = started_with(&plugin_when(&format!("({when}) && false")));
        let metadata = metadata(claims);
        host.set_property(&["metadata"], &metadata);
        let (_, instructions) = evaluated(&mut host, &[]);
        (instructions, metadata.len())
    };
    let claims =
        |count: usize| -> Vec<_> { (0..count).map(|n| (format!("c{n}"), text("v"))).collect() };
    let list = |count: usize| {
        let items: Vec<u8> = (0..count).flat_map(|_| field(1, &text("v"))).collect();
        vec![("groups".to_owned(), field(6, &items))]
    };
    // Every key is a byte or two and has an empty value: the most entries in a byte.
    let tiny = |count: usize| vec![(String::new(), Vec::new()); count];
    let ten = ["!has(jwt.claims.nope)"; 10].join(" && ");
    for (what, when, claims, most) in [
        ("claims", "has(jwt.claims.nope)", [claims(300), claims(3_000)], 45),
        ("tiny claims", "has(jwt.claims.nope)", [tiny(600), tiny(6_000)], 90),
        ("elements", "'a' in jwt.claims.groups", [list(600), list(6_000)], 110),
        ("an index", "jwt.claims.groups[100000] == 'a'", [list(600), list(6_000)], 110),
        ("ten of them", &ten, [claims(300), claims(3_000)], 450),
    ] {
        let [(short, _), (long, bytes)] = claims.map(|claims| cost(when, &claims));
        let each = long / bytes as u64;
        eprintln!("COST {each} {:.1} {what}: {bytes} bytes", long as f64 / short as f64);
        assert!(each <= most, "{what}: {each} instructions a byte (at most {most})");
        assert!(long <= short * 11, "{what}: {short}, {long}");
    }
}

/// The examples of the documentation, in instructions beyond those of an entry without a condition.
#[test]
fn a_condition_costs_few_instructions() {
    let claims = [("tier".to_owned(), text("silver")), ("sub".to_owned(), text("0123456789"))];
    let metadata = metadata(&claims);
    let headers: [(&str, &[u8]); 4] = [
        (":method", b"POST"),
        (":path", b"/v1/orders?expand=items"),
        ("user-agent", b"curl/8.5.0"),
        ("x-plan", b"free"),
    ];
    let cost = |when: Option<&str>| {
        let mut plugin = plugin_when(when.unwrap_or_default());
        if when.is_none() {
            plugin["rate_limits"][0].as_object_mut().expect("an entry").remove("when");
        }
        let mut host = started_with(&plugin);
        host.set_property(&["metadata"], &metadata);
        (0..5).map(|_| evaluated(&mut host, &headers).1).min().expect("five")
    };
    let without = cost(None);
    for (when, most) in [
        ("request.method == 'POST'", 1_800),
        ("request.method == 'POST' && jwt.claims.tier != 'gold'", 6_000),
        (
            "request.url_path.startsWith('/v1/') && request.headers['x-plan'] in ['free', 'trial'] \
             && request.headers['user-agent'].matches('^(curl|wget)/')",
            9_000,
        ),
    ] {
        let more = cost(Some(when)).saturating_sub(without);
        eprintln!("COST {more} {when}");
        assert!(more <= most, "{when}: {more}");
    }
}
