//! The built filter among hostile bytes: answers that no sidecar would give, and configurations that
//! no one would write. It may refuse them; a trap would take the worker's machine down.

use crate::host::{GrpcCall, Host, Outcome};
use crate::scene::*;
use prost::Message;
use prost_types::Timestamp as WireTimestamp;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tidegate_core::Verdict;
use tidegate_tests::artifacts;
use tidegate_wire::rls::{DescriptorStatus, FurtherLimit, HeaderValue, Quota, RateLimitResponse};

/// Pseudo-random numbers, the same in every run.
struct Odd(u64);

impl Odd {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// Up to one of these numbers.
    fn some_bytes(&mut self, most: &[usize]) -> Vec<u8> {
        let most = self.of(most);
        self.bytes(most)
    }
}

/// An answer with nothing in it that can be relied on.
fn absurd(odd: &mut Odd, call: &GrpcCall) -> RateLimitResponse {
    const STATUSES: [usize; 8] = [0, 1, 2, 2, 2, 2, 3, 70];
    // A return has no clock.
    let clock = call.metadata.text("tidegate-clock").and_then(|clock| clock.parse::<u64>().ok());
    let now = clock.unwrap_or_default() / 1_000_000_000;
    let now = i64::try_from(now).expect("seconds");
    let own = format!("{:016x}", number_of(call));
    let status = |odd: &mut Odd| {
        let mut status = DescriptorStatus {
            code: odd.of(&[0, 1, 1, 1, 2, 2, 3, -1, i32::MAX]),
            limit_remaining: odd.of(&[0, 1, 100, u32::MAX]),
            ..DescriptorStatus::default()
        };
        if odd.below(2) == 0 {
            let seconds = odd.of(&[0, 1, -1, i64::MAX, i64::MIN]);
            let nanos = odd.of(&[0, 999_999_999, -1, i32::MAX, i32::MIN]);
            status.duration_until_reset = Some(prost_types::Duration { seconds, nanos });
        }
        if odd.below(2) == 0 {
            let requests_per_unit = odd.of(&[0, 1, u32::MAX]);
            let name = String::from_utf8_lossy(&odd.bytes(200)).into_owned();
            let unit = odd.of(&[0, 1, 6, 99, -1]);
            let limit = tidegate_wire::rls::RateLimit { requests_per_unit, unit, name };
            status.current_limit = Some(limit);
        }
        if odd.below(4) > 0 {
            let seconds = odd.of(&[now, now + 2, now + 60, 0, -1, i64::MAX, i64::MIN, 1 << 34]);
            let nanos = odd.of(&[0, 999_999_999, -1, i32::MAX, i32::MIN]);
            let ids = [own.clone(), String::new(), "0".into(), "no hex".into(), "f".repeat(99)];
            status.quota = Some(Quota {
                requests: odd.of(&[0, 1, 5, 1_000, u32::MAX - 1, u32::MAX]),
                valid_until: (odd.below(8) > 0).then_some(WireTimestamp { seconds, nanos }),
                id: odd.of(&ids),
            });
        }
        status.shadow_denied = odd.below(4) == 0;
        for _ in 0..odd.of(&[0, 0, 0, 1, 3, 9]) {
            let limit = status.current_limit.clone().filter(|_| odd.below(8) > 0);
            let (remaining, is_over) = (odd.of(&[0, 7, u32::MAX]), odd.below(2) == 0);
            let duration_until_reset = status.duration_until_reset;
            let further = FurtherLimit { limit, remaining, duration_until_reset, is_over };
            status.further_limits.push(further);
        }
        status
    };
    let text =
        |odd: &mut Odd| String::from_utf8_lossy(&odd.some_bytes(&[0, 3, 3, 3, 5_000])).into_owned();
    let headers = |odd: &mut Odd| {
        (0..odd.of(&[0, 0, 0, 1, 2, 40]))
            .map(|_| HeaderValue { key: text(odd), value: text(odd) })
            .collect()
    };
    RateLimitResponse {
        overall_code: odd.of(&[0, 1, 1, 1, 1, 2, 2, 7, -1]),
        statuses: (0..odd.of(&STATUSES)).map(|_| status(odd)).collect(),
        response_headers_to_add: headers(odd),
        request_headers_to_add: headers(odd),
        raw_body: odd.some_bytes(&[0, 0, 10, 10_000]),
        dynamic_metadata: (odd.below(4) == 0).then(|| prost_types::Struct {
            fields: [(text(odd), prost_types::Value::from(text(odd)))].into(),
        }),
    }
}

fn hostile(odd: &mut Odd, call: &GrpcCall) -> Vec<u8> {
    let mut bytes = absurd(odd, call).encode_to_vec();
    match odd.below(5) {
        0 => odd.bytes(80),
        1 => {
            bytes.truncate(odd.below(bytes.len() + 1));
            bytes
        }
        2 => {
            for _ in 0..=odd.below(4) {
                if let Some(place) = bytes.len().checked_sub(1) {
                    bytes[odd.below(place + 1)] = odd.next() as u8;
                }
            }
            bytes
        }
        _ => bytes,
    }
}

#[test]
fn no_answer_traps_and_each_decides_its_requests() {
    const SEED: u64 = 0x7469_6465;
    let mut odd = Odd(SEED);
    let mut host = started(&plugin());
    allow_all(&mut host);
    let mut asked = 0;
    for case in 0..3_000 {
        // Few enough that leases of one case are met by others, and both kinds of descriptor.
        let user = format!("{}", odd.below(200));
        let headers: [(&str, &[u8]); 2] = [("x-app", b"a"), ("x-user", user.as_bytes())];
        let open: Vec<_> = (0..=odd.below(3)).map(|_| host.request(&headers)).collect();
        if odd.below(2) == 0 {
            host.advance(Duration::from_millis(100));
            host.tick();
        }
        for _ in 0..20 {
            for call in host.take_grpc_calls() {
                asked += 1;
                match odd.below(10) {
                    0 => host.close(call.token, odd.of(&[1, 4, 14, 99, u32::MAX])),
                    _ => host.answer(call.token, &hostile(&mut odd, &call)),
                }
            }
        }
        for request in open {
            assert_ne!(*host.outcome(request), Outcome::Paused, "case {case}");
            host.response_headers(request, &[(":status", b"200")]);
            host.finish(request);
        }
        // Five failures in a row would open the breaker, and nobody would be asked.
        let headers: [(&str, &[u8]); 1] = [("x-user", &case.to_string().into_bytes())];
        let good = host.request(&headers);
        for call in host.take_grpc_calls() {
            host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
        }
        assert_ne!(*host.outcome(good), Outcome::Paused, "case {case}");
        host.finish(good);
    }
    assert!(asked > 1_000, "only {asked} were asked about");
    // The worker is as good as new.
    host.advance(Duration::from_secs(61));
    // The last failures may have opened the breaker, which a probe closes.
    host.request(&[("x-user", b"probe")]);
    for call in host.take_grpc_calls() {
        host.answer(call.token, &answer(Verdict::Allow, &[(Verdict::Allow, "", 9, 30)]));
    }
    let request = host.request(&[("x-user", b"at last")]);
    let call = host.take_grpc_calls().remove(0);
    host.answer(call.token, &leased(Verdict::Deny, &call, 0, 1_000));
    assert_eq!(host.local_reply(request).status, 429);
}

/// Every field that there is, so that each is changed now and then.
fn full() -> Value {
    json!({
        "domain": "shop",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 25},
        "failure_mode": "deny",
        "shadow": false,
        "rate_limits": [
            {"actions": [
                {"request_headers": {"header_name": "x-app", "descriptor_key": "app"}},
                {"masked_remote_address": {"v4_prefix_mask_len": 24, "v6_prefix_mask_len": 64}},
                {"generic_key": {"descriptor_key": "k", "descriptor_value": "v"}},
            ]},
            {
                "actions": [
                    {"query_parameters": {"query_parameter_name": "q", "descriptor_key": "query"}},
                    {"remote_address_match": {"descriptor_value": "in", "address_matcher": {
                        "ranges": [{"address_prefix": "203.0.113.0", "prefix_len": 24}]}}},
                    {"header_value_match": {"descriptor_value": "h", "headers": [
                        {"name": "x-app", "string_match": {"prefix": "a", "ignore_case": true}},
                        {"name": "x-cost", "range_match": {"start": "-1", "end": 9}},
                        {"name": "x-app", "safe_regex_match": {"google_re2": {}, "regex": "a+"}},
                    ]}},
                    {"metadata": {"descriptor_key": "user", "source": "ROUTE_ENTRY",
                        "metadata_key": {"key": "ns", "path": [{"key": "a"}]}}},
                ],
                "hits_addend": {"format": "%REQ(x-cost)%"},
                "routes": ["checkout"],
                "route_metadata":
                    {"metadata_key": {"key": "s", "path": [{"key": "t"}]}, "value": "strict"},
                "shadow": true,
            },
        ],
        "headers": "draft03",
        "denied": {"status": 503, "body": "later"},
        "leases": {"slots": 100},
    })
}

fn odd_value(odd: &mut Odd, depth: usize) -> Value {
    match odd.below(if depth == 0 { 7 } else { 9 }) {
        0 => Value::Null,
        1 => json!(odd.below(2) == 0),
        2 => json!(odd.of(&[0, 1, -1, 25, 128, i64::MAX, i64::MIN, 1 << 32])),
        3 => json!(odd.of(&[0.5, -0.0, 1e300, 1e-300, 1e20])),
        4 => json!(u64::MAX),
        5 => json!(String::from_utf8_lossy(&odd.bytes(30))),
        6 => {
            json!(odd.of(&["", "deny", "x-app", "%REQ(", "(", "a{1000}{1000}", "1.2.3.4", ":path"]))
        }
        7 => (0..odd.below(5)).map(|_| odd_value(odd, depth - 1)).collect(),
        _ => {
            let key = |odd: &mut Odd| odd.of(&["actions", "key", "name", "", "regex"]).to_owned();
            let fields = (0..odd.below(4)).map(|_| (key(odd), odd_value(odd, depth - 1)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
}

/// Changes a value somewhere inside.
fn change(odd: &mut Odd, value: &mut Value) {
    let deeper = odd.below(6) > 0;
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = odd.of(&keys);
            match odd.below(12) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(format!("{key}x"), odd_value(odd, 2))),
                _ => change(odd, &mut fields[key.as_str()]),
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let index = odd.below(items.len());
            match odd.below(6) {
                0 => drop(items.remove(index)),
                1 => items.push(items[index].clone()),
                _ => change(odd, &mut items[index]),
            }
        }
        // Of its own kind half of the time, which is refused less often.
        Value::Bool(flag) if deeper => *flag = !*flag,
        Value::Number(number) if deeper => *number = odd.of(&[0, 1, 25, 33, 200, 599]).into(),
        Value::String(text) if deeper => {
            *text =
                odd.of(&["x-app", "a", "v", "allow", "/", "%REQ(x-app)%", "::1", "[a-z]"]).into();
        }
        value => *value = odd_value(odd, 3),
    }
}

/// The bytes of an odd configuration.
fn odd_plugin(odd: &mut Odd) -> Vec<u8> {
    let mut plugin = full();
    for _ in 0..=odd.below(2) {
        change(odd, &mut plugin);
    }
    let mut bytes = plugin.to_string().into_bytes();
    match odd.below(10) {
        0 => odd.bytes(200),
        1 => {
            bytes.truncate(odd.below(bytes.len()));
            bytes
        }
        2 => {
            let place = odd.below(bytes.len());
            bytes[place] = odd.next() as u8;
            bytes
        }
        3 => odd.of(&["[", "{\"a\":", "\""]).repeat(100_000).into_bytes(),
        _ => bytes,
    }
}

#[test]
fn no_configuration_traps_and_each_is_served_or_refused_with_a_line() {
    const SEED: u64 = 0x6761_7465;
    let mut odd = Odd(SEED);
    let filter = artifacts::filter().expect("the built filter");
    let (mut served, mut refused) = (0, 0);
    for case in 0..500 {
        let plugin = odd_plugin(&mut odd);
        let mut host = Host::load(&filter);
        host.set_property(&["source", "address"], b"203.0.113.9:4711");
        allow_all(&mut host);
        if host.start(&plugin) {
            served += 1;
            let headers: [(&str, &[u8]); 3] =
                [(":path", b"/?q=%zz"), ("x-app", b"a\xff"), ("x-cost", b"9999999999999999999999")];
            let request = host.request(&headers);
            for call in host.take_grpc_calls() {
                host.close(call.token, 14);
            }
            assert_ne!(*host.outcome(request), Outcome::Paused, "case {case}");
            host.tick();
        } else {
            refused += 1;
            let text = String::from_utf8_lossy(&plugin);
            assert_eq!(host.logs().len(), 1, "case {case}: {:?} of {text}", host.logs());
            assert!(host.logs()[0].text.starts_with("tidegate: plugin configuration: "), "{text}");
        }
    }
    assert!(served >= 50 && refused >= 200, "{served} were served, {refused} refused");
}
