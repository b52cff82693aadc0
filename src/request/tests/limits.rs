//! Overrides of limits.

use super::*;
use tidegate_core::{LimitOverride, Unit};

const REQUESTS: &str = "metadata|filter_metadata|n|p|requests_per_unit";
const UNIT: &str = "metadata|filter_metadata|n|p|unit";

fn entry(limit: &Value) -> Value {
    json!([{"actions": [
        {"request_headers": {"header_name": "a", "descriptor_key": "a", "skip_if_absent": true}},
    ], "limit": limit}])
}

fn from_metadata() -> Value {
    entry(&json!({"dynamic_metadata": {"metadata_key": {"key": "n", "path": [{"key": "p"}]}}}))
}

/// The only descriptor.
fn descriptor(
    rate_limits: &Value,
    known: Known<'_>,
) -> (Option<LimitOverride>, descriptors::LeaseKey) {
    let (enforced, _) = descriptors(&config(rate_limits), &facts(known));
    let key = enforced.iter().next().unwrap().key;
    let mut all = enforced.to_vec();
    assert_eq!((all.len(), shown(&enforced)), (1, vec!["a=1".to_owned()]));
    (all.remove(0).limit, key)
}

#[test]
fn an_override_of_metadata_is_a_number_and_a_unit() {
    let check = |requests: &[u8], unit: &[u8], expected: Option<(u32, Unit)>| {
        let known: Known<'_> = &[("a", b"1"), (REQUESTS, requests), (UNIT, unit)];
        let expected = expected.map(|(requests, unit)| LimitOverride { requests, unit });
        let found = descriptor(&from_metadata(), known).0;
        assert_eq!(found, expected, "for {requests:?} per {unit:?}");
    };
    let number = |number: f64| number.to_le_bytes();
    check(&number(42.0), b"HOUR", Some((42, Unit::Hour)));
    check(&number(0.0), b"SECOND", Some((0, Unit::Second)));
    check(&number(2.9), b"MINUTE", Some((2, Unit::Minute)));
    check(&number(0.1), b"DAY", Some((0, Unit::Day)));
    check(&number(4_294_967_295.0), b"MONTH", Some((u32::MAX, Unit::Month)));
    check(&number(7.0), b"YEAR", Some((7, Unit::Year)));
    // Envoy ignores all others; so the sidecar's limit holds.
    for unit in [&b"WEEK"[..], b"hour", b"UNKNOWN", b"", &3.0_f64.to_le_bytes()] {
        check(&number(42.0), unit, None);
    }
    for requests in [
        &b"42"[..],
        b"12345678",
        b"abcdefg@",
        b"",
        &number(-1.0),
        &number(4_294_967_296.0),
        &number(f64::NAN),
        &number(f64::INFINITY),
    ] {
        check(requests, b"HOUR", None);
    }
    assert_eq!(descriptor(&from_metadata(), &[("a", b"1")]).0, None);
    assert_eq!(descriptor(&from_metadata(), &[("a", b"1"), (UNIT, b"HOUR")]).0, None);
}

#[test]
fn a_configured_override_holds_for_all() {
    for (unit, expected) in [(json!("MINUTE"), Unit::Minute), (json!(6), Unit::Year)] {
        let limit = json!({"rate_limit": {"requests_per_unit": 9, "unit": unit}});
        let found = descriptor(&entry(&limit), &[("a", b"1")]).0;
        assert_eq!(found, Some(LimitOverride { requests: 9, unit: expected }));
    }
}

/// Local state is found by this key, so no lease and no denial of one override serves another.
#[test]
fn descriptors_with_other_overrides_have_other_keys() {
    let key = |requests: f64, unit: &[u8]| {
        let requests = requests.to_le_bytes();
        descriptor(&from_metadata(), &[("a", b"1"), (REQUESTS, &requests), (UNIT, unit)]).1
    };
    let plain = descriptor(&from_metadata(), &[("a", b"1")]).1;
    let keys = [plain, key(1.0, b"HOUR"), key(2.0, b"HOUR"), key(1.0, b"DAY")];
    for (index, one) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(one));
    }
    assert_eq!(key(1.0, b"HOUR"), keys[1]);
    // An unreadable one is none.
    assert_eq!(key(1.0, b"WEEK"), plain);
}

#[test]
fn an_override_makes_no_descriptor() {
    let limit = json!({"rate_limit": {"requests_per_unit": 9, "unit": "HOUR"}});
    assert!(descriptors(&config(&entry(&limit)), &facts(&[])).0.is_empty());
}
