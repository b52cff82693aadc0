//! The action `jwt_claim`: what it reads of tokens, and of what resembles them.

use super::*;

/// Encodes as tokens do.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |index| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for index in 0..=chunk.len() {
            let six = (bits >> (18 - 6 * index)) & 63;
            text.push(char::from(DIGITS[six as usize]));
        }
    }
    text
}

fn token(payload: &[u8]) -> Vec<u8> {
    format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln", base64url(payload)).into_bytes()
}

fn action(fields: &Value) -> Value {
    let mut action = json!({"descriptor_key": "user", "header_name": "Authorization",
        "value_prefix": "Bearer ", "claim_name": "sub"});
    for (name, value) in fields.as_object().unwrap() {
        action[name] = value.clone();
    }
    json!({"jwt_claim": action})
}

/// The claim of a payload, as text.
fn check_claim(name: &str, payload: &[u8], expected: Option<&str>) {
    let header = [b"Bearer ", &token(payload)[..]].concat();
    let expected = expected.map(|claim| format!("g=1,user={claim}"));
    let action = action(&json!({"claim_name": name}));
    super::check(&action, &[("authorization", &header)], expected.as_deref());
}

#[test]
fn a_claim_is_a_string_at_its_names() {
    let payload = br#" { "n": 5, "b": true, "z" : null, "l":["sub",{"sub":"x"}], "e":"",
        "o":{"a":{"sub":"deep"}, "s":"}"}, "a.b":"dotted", "q\u0075x":"key","sub" :"ann" ,"sub":"2"}"#;
    let table = [
        ("sub", Some("ann")),
        ("o.a.sub", Some("deep")),
        ("o.s", Some("}")),
        ("quux", None),
        ("qux", Some("key")),
        ("e", Some("")),
        ("n", None),
        ("b", None),
        ("z", None),
        ("l", None),
        ("o", None),
        ("o.none", None),
        ("sub.x", None),
        ("a.b", None),
    ];
    for (name, expected) in table {
        check_claim(name, payload, expected);
    }
}

#[test]
fn escapes_are_resolved() {
    let table: [(&[u8], &str); 7] = [
        (br#"{"sub":"a\"b\\c\/d"}"#, "a\"b\\c/d"),
        (br#"{"sub":"\n\t\r\b\f"}"#, "\n\t\r\u{8}\u{c}"),
        (br#"{"sub":"\u00e9\uD83D\uDE00"}"#, "\u{e9}\u{1f600}"),
        (br#"{"sub":"\ud83dx\ud83d\u0041\ude00"}"#, "\u{fffd}x\u{fffd}A\u{fffd}"),
        (br#"{"sub":"\u00"}"#, "\0"),
        ("{\"sub\":\"\u{e9}\"}".as_bytes(), "\u{e9}"),
        (b"{\"sub\":\"\xff\"}", "\u{fffd}"),
    ];
    for (payload, expected) in table {
        check_claim("sub", payload, Some(expected));
    }
}

#[test]
fn what_is_no_token_has_no_claim() {
    let good = token(br#"{"sub":"ann"}"#);
    let with = |header: Vec<u8>, expected| {
        super::check(&action(&json!({})), &[("authorization", &header)], expected);
    };
    with([b"Bearer ", &good[..]].concat(), Some("g=1,user=ann"));
    with(good.clone(), None);
    with([b"bearer ", &good[..]].concat(), None);
    with([b"Bearer ", &good[..], b".x"].concat(), None);
    for text in ["", "Bearer ", "Bearer a.b", "Bearer a.?.c", "Bearer ..", "Bearer a.e30.c"] {
        with(text.as_bytes().to_vec(), None);
    }
    // A prefix that is not configured is taken for a part of the token, as in Envoy.
    let no_prefix = action(&json!({"value_prefix": ""}));
    let header = [b"Bearer ", &good[..]].concat();
    super::check(&no_prefix, &[("authorization", &header)], None);
    for payload in
        [&b"{"[..], b"{}", b"[]", b"{\"sub\"", b"{\"sub\":\"x", b"{\"a\":,\"sub\":\"x\"}"]
    {
        check_claim("sub", payload, None);
    }
    super::check(&action(&json!({})), &[], None);
    super::check(&action(&json!({"skip_if_absent": true})), &[], Some("g=1"));
    let default = action(&json!({"default_value": "none", "skip_if_absent": true}));
    super::check(&default, &[], Some("g=1,user=none"));
}

/// Four digits are decoded at once.
#[test]
fn a_token_has_no_claim_if_one_or_several_of_its_digits_are_none() {
    let header = [b"Bearer ", &token(br#"{"sub":"anna-maria"}"#)[..]].concat();
    // Those of three bytes of the name.
    let digits = header.iter().position(|byte| *byte == b'.').expect("a dot") + 1 + 12;
    for wrong in 0..16 {
        let mut header = header.clone();
        for digit in (0..4).filter(|digit| wrong >> digit & 1 == 1) {
            header[digits + digit] = b'!';
        }
        let expected = (wrong == 0).then_some("g=1,user=anna-maria");
        super::check(&action(&json!({})), &[("authorization", &header)], expected);
    }
}

#[test]
fn a_token_may_be_in_a_cookie() {
    let fields = json!({"header_name": "", "cookie": "jwt", "value_prefix": ""});
    let token = token(br#"{"sub":"ann"}"#);
    let token = std::str::from_utf8(&token).unwrap();
    for header in [
        format!("jwt={token}"),
        format!("a=b; jwt={token}; c=d"),
        format!("jwtx=1;jwt=\"{token}\""),
    ] {
        let known: Known<'_> = &[("cookie", header.as_bytes())];
        super::check(&action(&fields), known, Some("g=1,user=ann"));
    }
    super::check(&action(&fields), &[("cookie", b"jwt=")], None);
    super::check(&action(&fields), &[("cookie", b"other=1")], None);
}

/// Symptom: a client that sent its token in a second `cookie` header met no limit, as only the first
/// header was read, while Envoy's filters find the token in any.
#[test]
fn a_token_may_be_in_any_cookie_header() {
    let fields = json!({"header_name": "", "cookie": "jwt", "value_prefix": ""});
    let action = action(&fields);
    let [ann, bob] = [&b"{\"sub\":\"ann\"}"[..], b"{\"sub\":\"bob\"}"]
        .map(|payload| [b"jwt=", &token(payload)[..]].concat());
    let (ann, bob) = (ann.as_slice(), bob.as_slice());
    let found = Some("g=1,user=ann");
    super::check(&action, &[("cookie", b"a=b"), ("cookie", ann)], found);
    super::check(&action, &[("cookie", b""), ("cookie", b";;"), ("cookie", ann)], found);
    super::check(&action, &[("cookie", ann), ("cookie", bob)], found);
    super::check(&action, &[("cookie", b"jwt"), ("x-a", bob), ("cookie", ann)], found);
    // The first cookie counts, though it has no token.
    super::check(&action, &[("cookie", b"jwt="), ("cookie", ann)], None);
    super::check(&action, &[("cookie", b"a=b; jwt=x.y.z"), ("cookie", ann)], None);
    super::check(&action, &[("x-cookie", ann)], None);
    let many = vec![("cookie", &b"a=b"[..]); 5_000];
    super::check(&action, &[many, vec![("cookie", ann)]].concat(), found);
}

/// All headers are read only where the first has not the cookie, and once for all its claims.
#[test]
fn a_cookie_is_read_once_for_all_its_claims() {
    let of = |cookie: &str, claim: &str| {
        action(&json!({"header_name": "", "cookie": cookie, "value_prefix": "",
            "claim_name": claim, "skip_if_absent": true}))
    };
    let config = config(&json!([
        {"actions": [of("jwt", "sub"), of("jwt", "team")]},
        {"actions": [of("jwt", "sub"), of("other", "sub")]},
    ]));
    let token = [b"jwt=", &token(br#"{"sub":"ann","team":"red"}"#)[..]].concat();
    let check = |headers: Known<'_>, expected: &[&str]| {
        let facts = facts(headers);
        let _ = descriptors(&config, &facts);
        assert_eq!(*facts.read.borrow(), expected);
    };
    check(&[("cookie", &token)], &["cookie", "cookie", "all cookie"]);
    let second = [("cookie", &b"a=b"[..]), ("cookie", &token)];
    check(&second, &["cookie", "all cookie", "cookie", "all cookie"]);
    check(&[], &["cookie", "cookie"]);
}

/// Envoy's own form of the action.
#[test]
fn the_extension_of_envoy_is_the_same_action() {
    let action = action(&json!({}));
    let mut typed = action["jwt_claim"].clone();
    typed["@type"] = json!(
        "type.googleapis.com/envoy.extensions.rate_limit_descriptors.jwt_claim.v3.Descriptor"
    );
    let extension = json!({"extension":
        {"name": "envoy.rate_limit_descriptors.jwt_claim", "typed_config": typed}});
    let rate_limits = |action: &Value| config(&json!([{"actions": [action]}])).rate_limits;
    assert_eq!(rate_limits(&extension), rate_limits(&action));
}

#[test]
fn a_long_claim_is_shortened() {
    let claim_of = |bytes, end: &str| {
        let payload = format!("{{\"sub\":\"{}{end}\"}}", "x".repeat(bytes));
        let header = [b"Bearer ", &token(payload.as_bytes())[..]].concat();
        let config = config(&json!([{"actions": [action(&json!({}))]}]));
        shown(&descriptors(&config, &facts(&[("authorization", &header)])).0).remove(0)
    };
    let claim = |end| claim_of(40_000, end);
    let short = "user=".len() + VALUE_BYTES_KEPT + "~".len() + 32;
    assert_eq!([claim("1").len(), claim_of(1_024, "1").len()], [short; 2]);
    assert_eq!(claim_of(1_023, "1").len(), "user=".len() + 1_024);
    assert_ne!(claim("1"), claim("2"));
}

const VALUES: [&str; 10] = [
    r#""x\n\u00e9\"""#,
    "-1.5e3",
    "true",
    "null",
    "[]",
    r#"[1, {}, [{"sub": "no"}], "]"]"#,
    "{}",
    r#"{"sub": "y", "o": 1}"#,
    r#"{ "o" : {"sub":"}"} }"#,
    r#"{"o": [{"sub": "no"}], "sub": "\ud83d\ude00"}"#,
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The slow twin parses the whole payload.
    #[test]
    fn a_scan_finds_what_a_parser_finds(
        keys in Just(vec!["sub", "\\u0061", "z"]).prop_shuffle(),
        values in prop::collection::vec(prop::sample::select(VALUES.to_vec()), 3),
        space in "[ \n\t\r]{0,2}",
    ) {
        let fields: Vec<String> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| format!("{space}\"{key}\"{space}:{space}{value}{space}"))
            .collect();
        let payload = format!("{space}{{{}}}{space}", fields.join(","));
        let parsed: Value = serde_json::from_str(&payload).unwrap();
        check_claim("sub", payload.as_bytes(), parsed["sub"].as_str());
        check_claim("a.sub", payload.as_bytes(), parsed["a"]["sub"].as_str());
        check_claim("z.o.sub", payload.as_bytes(), parsed["z"]["o"]["sub"].as_str());
    }

    #[test]
    fn any_bytes_are_read_without_harm(header in bytes(), payload in bytes()) {
        let action = action(&json!({"claim_name": "a.b", "default_value": "d"}));
        let config = config(&json!([{"actions": [action]}]));
        for value in [header, [b"Bearer ", &token(&payload)[..]].concat()] {
            let (enforced, _) = descriptors(&config, &facts(&[("authorization", &value)]));
            prop_assert_eq!(enforced.len(), 1);
        }
    }
}
