//! Conditions of entries: expressions, requests, and whether the entry applies.

use super::{facts as known, *};
use prost::Message;
use prost_types::{ListValue, Struct, value::Kind};

/// The message `Metadata` of Envoy with these namespaces.
pub(super) fn metadata(namespaces: &Value) -> Vec<u8> {
    let fields = namespaces.as_object().unwrap().iter();
    let entry = |(name, value): (&String, &Value)| {
        let Some(Kind::StructValue(value)) = value_of(value).kind else { panic!("no object") };
        let entry = [field(1, name.as_bytes()), field(2, &value.encode_to_vec())].concat();
        field(1, &entry)
    };
    fields.flat_map(entry).collect()
}

/// A request with all dynamic metadata, whose property has only one part.
pub(super) fn facts(values: Known<'_>) -> Facts {
    let mut facts = known(values);
    if let Some(mut metadata) = facts.headers.remove("metadata") {
        facts.properties.insert("metadata".to_owned(), metadata.remove(0));
    }
    facts
}

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    [bytes, content.to_vec()].concat()
}

fn value_of(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(value_of).collect() })
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), value_of(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    prost_types::Value { kind: Some(kind) }
}

/// Whether an expression applies to a request, or why it cannot be evaluated.
pub(super) fn evaluated(when: &str, facts: &Facts) -> Result<bool, String> {
    let action = json!({"generic_key": {"descriptor_value": "v"}});
    let config = config(&json!([{"actions": [action], "when": when}]));
    let (mut enforced, _) = descriptors(&config, facts);
    match enforced.take_failures() {
        None => Ok(!enforced.is_empty()),
        Some((count, (path, cause))) => {
            assert_eq!((count, path.as_str()), (1, "rate_limits[0].when"));
            assert_eq!(enforced.len(), 1, "the entry applies: {when}");
            Err(cause.to_string())
        }
    }
}

const ABSENT: &str = "a value is absent";
const TYPE: &str = "a value has another type than the expression needs";
const NO_NUMBER: &str = "a string is not a number";
const RANGE: &str = "a number is too large, or a divisor is 0";

fn check(facts: &Facts, table: &[(&str, Result<bool, &str>)]) {
    for (when, expected) in table {
        let expected = expected.map_err(str::to_owned);
        assert_eq!(evaluated(when, facts), expected, "for {when}");
    }
}

fn request() -> Facts {
    let claims = json!({"tier": "gold", "age": 42, "half": 0.5, "admin": true, "none": null,
        "groups": ["a", "b", 7], "empty": [], "nested": {"deep": {"er": "x"}}, "": "no name"});
    let metadata = metadata(&json!({
        "other": {"key": "v"},
        "envoy.filters.http.jwt_authn": {"payload": claims, "": {}},
    }));
    facts(&[
        (":method", b"POST"),
        (":path", b"/a/b?c=d&e=%20#f?g"),
        (":authority", b"shop.example"),
        (":scheme", b"https"),
        ("x-app", b"web"),
        ("x-count", b"17"),
        ("x-wide", "\u{e9}\u{1f600}".as_bytes()),
        ("x-bad", b"a\xffb"),
        ("x-empty", b""),
        ("source|address", b"10.0.0.7:4711"),
        ("source|port", &4711_i64.to_le_bytes()),
        ("request|size", &i64::MAX.to_le_bytes()),
        ("connection|mtls", &[1]),
        ("xds|route_name", b"search"),
        ("metadata", &metadata),
    ])
}

#[test]
fn variables_have_the_values_of_the_request() {
    let table = [
        ("request.method == 'POST'", true),
        ("request.path == '/a/b?c=d&e=%20#f?g'", true),
        ("request.url_path == '/a/b'", true),
        ("request.query == 'c=d&e=%20'", true),
        ("request.host == 'shop.example' && request.scheme == \"https\"", true),
        ("request.headers['X-App'] == 'web'", true),
        ("request.headers.host == 'a' || request.headers[':authority'] == 'shop.example'", true),
        ("'x-app' in request.headers", true),
        ("'x-none' in request.headers", false),
        ("request.headers['x-bad'] == 'a\\ufffdb'", true),
        ("source.address.startsWith('10.')", true),
        ("source.port == 4711", true),
        ("request.size == 9223372036854775807", true),
        ("connection.mtls", true),
        ("xds.route_name in ['search', 'cart']", true),
        ("xds.route_name in ['cart']", false),
        ("has(connection.requested_server_name)", false),
        ("has(request.headers.nope)", false),
        ("has(request.method) && !has(request.referer)", true),
        ("metadata.filter_metadata['other']['key'] == 'v'", true),
        ("metadata.filter_metadata.other.key == 'v'", true),
        ("'other' in metadata.filter_metadata && size(metadata.filter_metadata) == 2", true),
    ];
    check(&request(), &table.map(|(when, expected)| (when, Ok(expected))));
    // A path without a query, and one with an empty query.
    let plain = facts(&[(":path", b"/a#b")]);
    check(&plain, &[("request.url_path == '/a#b' && request.query == ''", Ok(true))]);
    let empty = facts(&[(":path", b"/a?")]);
    check(&empty, &[("request.url_path == '/a' && request.query == ''", Ok(true))]);
}

#[test]
fn claims_have_types() {
    let table = [
        ("jwt.claims.tier == 'gold'", Ok(true)),
        ("jwt.claims.tier != 'gold'", Ok(false)),
        ("jwt.claims['tier'] in ['gold', 'silver']", Ok(true)),
        ("jwt.claims.age == 42 && jwt.claims.age > 41.5", Ok(true)),
        ("jwt.claims.age == '42'", Ok(false)),
        ("jwt.claims.age < 42", Ok(false)),
        ("jwt.claims.age > '4'", Err(TYPE)),
        ("jwt.claims.half + 0.5 == 1", Ok(true)),
        ("jwt.claims.age + 1 == 43", Err(TYPE)),
        ("int(jwt.claims.age) % 5 == 2", Ok(true)),
        ("jwt.claims.admin", Ok(true)),
        ("jwt.claims.tier", Err(TYPE)),
        ("jwt.claims.none == null", Ok(true)),
        ("jwt.claims.tier == null", Ok(false)),
        ("has(jwt.claims.none)", Ok(true)),
        ("'a' in jwt.claims.groups && 7 in jwt.claims.groups", Ok(true)),
        ("'c' in jwt.claims.groups", Ok(false)),
        ("size(jwt.claims.groups) == 3 && size(jwt.claims.empty) == 0", Ok(true)),
        ("jwt.claims.groups[1] == 'b'", Ok(true)),
        ("jwt.claims.groups[3] == 'b'", Err(ABSENT)),
        ("jwt.claims.groups[-1] == 'b'", Err(ABSENT)),
        ("jwt.claims.groups == 'b'", Ok(false)),
        ("jwt.claims.groups == jwt.claims.groups", Err(TYPE)),
        ("jwt.claims.nested == jwt.claims.nested", Err(TYPE)),
        ("jwt.claims.nested.deep.er == 'x'", Ok(true)),
        ("has(jwt.claims.nested.deep.er) && !has(jwt.claims.nested.deep.est)", Ok(true)),
        ("has(jwt.claims.nope.deep.er)", Ok(false)),
        ("has(jwt.claims.tier.deep)", Err(TYPE)),
        ("'tier' in jwt.claims && !('nope' in jwt.claims) && !(1 in jwt.claims)", Ok(true)),
        ("jwt.claims[''] == 'no name'", Ok(true)),
        ("jwt.claims[request.headers['x-app']] == 'gold'", Err(ABSENT)),
        ("{'gold': 100, 'free': 1}[jwt.claims.tier] > 10", Ok(true)),
        ("{1: true, true: false}[1]", Ok(true)),
        ("{'free': 1}[jwt.claims.tier] > 10", Err(ABSENT)),
        ("jwt.claims.nope == 'gold'", Err(ABSENT)),
        ("jwt.claims.nope != 'gold'", Err(ABSENT)),
    ];
    check(&request(), &table);
    // Without a token, nothing decides that a limit is not for this request.
    let none = facts(&[("metadata", b"")]);
    let table = [
        ("jwt.claims.tier != 'gold'", Err(ABSENT)),
        ("has(jwt.claims.tier)", Ok(false)),
        ("!has(jwt.claims.tier) || jwt.claims.tier != 'gold'", Ok(true)),
        ("has(jwt.claims.tier) && jwt.claims.tier == 'gold'", Ok(false)),
    ];
    check(&none, &table);
    check(&facts(&[]), &table);
}

#[test]
fn operators_are_those_of_cel() {
    let table = [
        // A side that decides alone makes up for the other's failure.
        ("request.referer == 'a' && false", Ok(false)),
        ("false && request.referer == 'a'", Ok(false)),
        ("request.referer == 'a' || true", Ok(true)),
        ("request.referer == 'a' && true", Err(ABSENT)),
        ("request.referer == 'a' || false", Err(ABSENT)),
        ("jwt.claims.age || request.referer == 'a'", Err(TYPE)),
        ("!(request.referer == 'a')", Err(ABSENT)),
        ("request.method == 'GET' ? request.referer == 'a' : true", Ok(true)),
        ("'a' < 'b' && 'a' < 'aa' && 'Z' < 'a' && 'b' >= 'b' && !('b' > 'b')", Ok(true)),
        ("1 < 1.5 && 1.5 < 2 && 1 == 1.0 && 9007199254740993 > 9007199254740992.0", Ok(true)),
        ("9223372036854775807 < 9223372036854775808.0", Ok(true)),
        ("-9223372036854775808 == -9223372036854775808.0", Ok(true)),
        ("1 <= 1e300 && -1 > -1e300 && !(1 > 1e300)", Ok(true)),
        ("0.0 / 0.0 == 0.0 / 0.0", Ok(false)),
        ("0.0 / 0.0 > 1 || 0.0 / 0.0 <= 1", Ok(false)),
        ("0.0 / 0.0 != 1", Ok(true)),
        ("7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1 && 2 * 3 - 1 == 5", Ok(true)),
        ("request.size + 1 > 0", Err(RANGE)),
        ("-(-request.size - 1) > 0", Err(RANGE)),
        ("request.size * request.size > 0", Err(RANGE)),
        ("1 / (source.port - 4711) == 1", Err(RANGE)),
        ("1 % (source.port - 4711) == 1", Err(RANGE)),
        ("(-request.size - 1) / (source.port - 4712) == 1", Err(RANGE)),
        ("(-request.size - 1) % (source.port - 4712) == 0", Err(RANGE)),
        ("int(request.headers['x-count']) == 17", Ok(true)),
        ("double(request.headers['x-count']) == 17 && double(1) == 1 && double(0.5) < 1", Ok(true)),
        ("int(request.headers['x-app']) == 17", Err(NO_NUMBER)),
        ("int(request.headers['x-empty']) == 17", Err(NO_NUMBER)),
        ("int(1e300) == 17", Err(RANGE)),
        ("int(0.0 / 0.0) == 0", Err(RANGE)),
        ("int(9223372036854775808.0) == 0", Err(RANGE)),
        ("int(-9223372036854775808.0) == 0", Err(RANGE)),
        ("int(9223372036854774784.0) == 9223372036854774784", Ok(true)),
        ("int(-9223372036854774784.0) == -9223372036854774784", Ok(true)),
        ("int(-1.9) == -1", Ok(true)),
        (
            "size(request.headers['x-wide']) == 2 && request.headers['x-empty'].size() == 0",
            Ok(true),
        ),
        ("size([1, 2]) == 2 && size({'a': 1}) == 1", Ok(true)),
        ("request.path.startsWith('/a') && request.path.endsWith('g')", Ok(true)),
        ("request.path.contains('b?c') && request.path.contains('')", Ok(true)),
        ("request.path.contains(request.query) && request.path.endsWith(request.query)", Ok(false)),
        ("request.path.startsWith(request.url_path)", Ok(true)),
        ("request.path.matches('b.c')", Ok(true)),
        ("request.path.matches('^b.c')", Ok(false)),
        ("request.path.matches('^/a') && request.path.matches('g$')", Ok(true)),
        ("request.path.matches('A')", Ok(false)),
        ("request.path.matches('(?i)A|z')", Ok(true)),
        // A character of three bytes, as in matchers.
        ("request.headers['x-bad'].matches('^a.b$')", Ok(false)),
        ("request.headers['x-bad'].matches('^a...b$')", Ok(true)),
        ("jwt.claims.tier.matches('^g.*d$')", Ok(true)),
        ("jwt.claims.age.matches('4')", Err(TYPE)),
        ("[1, 'a', null, true, 2.5][4] == 2.5", Ok(true)),
        ("1.0 in [1] && !('1' in [1]) && null in [null]", Ok(true)),
        ("'a' in {'a': 1} && !('b' in {'a': 1})", Ok(true)),
    ];
    check(&request(), &table);
}

/// Numbers that are longer than any number would be read whole by each use.
#[test]
fn a_text_is_a_number_only_up_to_a_length() {
    let zeros = |count: usize| facts(&[("x-n", "0".repeat(count).as_bytes())]);
    check(&zeros(128), &[("int(request.headers['x-n']) == 0", Ok(true))]);
    check(&zeros(129), &[("int(request.headers['x-n']) == 0", Err(NO_NUMBER))]);
    check(&zeros(129), &[("double(request.headers['x-n']) == 0", Err(NO_NUMBER))]);
}

/// Each value costs a host call, and those of an entry that does not apply cost none.
#[test]
fn only_the_values_that_decide_are_read() {
    let request = request();
    assert_eq!(evaluated("request.method == 'GET' && jwt.claims.tier == 'x'", &request), Ok(false));
    assert_eq!(*request.read.borrow(), [":method"]);
    request.read.borrow_mut().clear();
    let two = "jwt.claims.tier == 'gold' && jwt.claims.age == 42 && request.query != '' \
               && request.url_path != ''";
    assert_eq!(evaluated(two, &request), Ok(true));
    assert_eq!(*request.read.borrow(), ["metadata", ":path"]);
}

/// An entry needs its routes and its condition.
#[test]
fn routes_and_conditions_must_both_hold() {
    let entry = |route: &str, when: &str| {
        json!({"routes": [route], "when": when, "shadow": true,
            "actions": [{"generic_key": {"descriptor_value": "v"}}]})
    };
    for (route, when, applies) in
        [("search", "true", true), ("search", "false", false), ("cart", "true", false)]
    {
        let (enforced, shadowed) = descriptors(&config(&json!([entry(route, when)])), &request());
        assert_eq!((enforced.len(), shadowed.len()), (0, usize::from(applies)));
    }
}

/// Properties and metadata of a form that this Envoy never sends.
#[test]
fn malformed_values_of_envoy_are_failures() {
    for (name, bytes) in
        [("request|size", &b"17"[..]), ("request|size", b""), ("connection|mtls", b"")]
    {
        let when = if name == "request|size" { "request.size > 1" } else { "connection.mtls" };
        check(&facts(&[(name, bytes)]), &[(when, Err(TYPE))]);
    }
    let whole = metadata(&json!({"envoy.filters.http.jwt_authn": {"payload":
        {"tier": "gold", "list": [1, "a", {"k": []}], "number": 0.5, "yes": true}}}));
    let expressions = [
        "jwt.claims.tier == 'gold'",
        "'a' in jwt.claims.list",
        "jwt.claims.list[2].k[0] == 1",
        "size(jwt.claims) > 1",
        "jwt.claims.number > 0 && jwt.claims.yes",
    ];
    for end in 0..whole.len() {
        let mut changed = whole.clone();
        changed[end] ^= 0x5a;
        for bytes in [&whole[..end], &changed] {
            for when in expressions {
                let _ = evaluated(when, &facts(&[("metadata", bytes)]));
            }
        }
    }
}

/// An error made every entry apply. A client whose header was no number got the refund of an entry
/// for others.
#[test]
fn an_entry_that_refunds_does_not_apply_if_its_condition_cannot_be_evaluated() {
    let applies = |rest: &str| {
        let json = format!(
            r#"{{"actions": [{{"generic_key": {{"descriptor_value": "v"}}}}],
                "when": "int(request.headers['x-level']) > 5", "hits_addend": {rest}}}"#
        );
        let entry = serde_json::from_str(&json).unwrap();
        let (enforced, _) =
            descriptors(&config(&Value::Array(vec![entry])), &facts(&[("x-level", b"abc")]));
        !enforced.is_empty()
    };
    assert!(applies(r#"{"number": 2}"#));
    assert!(!applies(r#"{"number": 2, "is_negative_hits": true}"#));
}
