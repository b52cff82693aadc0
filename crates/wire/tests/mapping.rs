//! The protocol from outside: golden bytes, defaults, refusals, and hostile answers.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use prost::Message;
use prost_types::value::Kind;
use tidegate_core::{
    Answer, Charge, Descriptor, Direction, Entry, FurtherLimit, Hits, LimitOverride, LimitView,
    Nanos, Request, Status, StatusDetails, Unit, Value, Verdict,
};
use tidegate_wire::rls::{
    DescriptorEntry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use tidegate_wire::{
    WireError, decode_answer, encode_request, grpc_service_of_cluster, request_from_wire,
    response_to_wire,
};

fn request() -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![DescriptorEntry { key: "app".into(), value: "a".into() }],
            ..Default::default()
        }],
        hits_addend: 0,
    }
}

/// The bytes of this message by the published proto, encoded by hand.
#[test]
fn a_request_has_the_published_bytes() {
    let request = Request {
        domain: "shop".into(),
        descriptors: vec![Descriptor {
            hits: Some(Hits::new(3)),
            ..Descriptor::new(vec![Entry::new("app", "a")])
        }],
        hits: Hits::ONE,
    };
    let entry = [&[0x0a, 3][..], b"app", &[0x12, 1], b"a"].concat();
    let descriptor = [&[0x0a, 8][..], &entry, &[0x1a, 2, 0x08, 3]].concat();
    let expected = [&[0x0a, 4][..], b"shop", &[0x12, 14], &descriptor, &[0x18, 1]].concat();
    assert_eq!(encode_request(&request), expected);
}

#[test]
fn a_cluster_target_has_the_published_bytes() {
    assert_eq!(grpc_service_of_cluster("tide"), b"\x0a\x06\x0a\x04tide");
    // From 126 bytes on, lengths take two bytes, and the first is no UTF-8.
    let outer = |bytes: usize| grpc_service_of_cluster(&"x".repeat(bytes))[..6].to_vec();
    assert_eq!(outer(125), [0x0a, 127, 0x0a, 125, b'x', b'x']);
    assert_eq!(outer(126), [0x0a, 0x80, 1, 0x0a, 126, b'x']);
    assert_eq!(outer(200), [0x0a, 0xcb, 1, 0x0a, 0xc8, 1]);
}

#[test]
fn absent_hits_are_one_and_a_descriptors_zero_is_a_peek() {
    let mut wire = request();
    let read = request_from_wire(wire.clone()).unwrap();
    assert_eq!((read.hits, read.descriptors[0].hits), (Hits::ONE, None));
    wire.hits_addend = 7;
    wire.descriptors[0].hits_addend = Some(0);
    let read = request_from_wire(wire).unwrap();
    assert_eq!(read.hits, Hits::new(7));
    assert_eq!(read.charge_of(&read.descriptors[0]), Charge::PEEK);
}

#[test]
fn requests_without_meaning_are_refused_by_name() {
    type Change = fn(&mut RateLimitRequest);
    let table: [(Change, &str); 6] = [
        (
            |r| r.descriptors = vec![r.descriptors[0].clone(); 129],
            "too many descriptors for one request (maximum 128)",
        ),
        (|r| r.domain.clear(), "rate limit domain must not be empty"),
        (|r| r.descriptors.clear(), "rate limit descriptor list must not be empty"),
        (|r| r.descriptors[0].entries.clear(), "descriptors[0]: entries must not be empty"),
        (
            |r| r.descriptors[0].entries[0].key.clear(),
            "descriptors[0].entries[0]: key must not be empty",
        ),
        (
            |r| {
                r.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 0 });
            },
            "descriptors[0].limit.unit: 0 is not a unit (expected 1 to 7)",
        ),
    ];
    for (change, message) in table {
        let mut wire = request();
        change(&mut wire);
        assert_eq!(request_from_wire(wire).unwrap_err().to_string(), message);
    }
}

#[test]
fn an_override_and_a_refund_survive_the_wire() {
    let request = Request {
        domain: "shop".into(),
        descriptors: vec![Descriptor {
            direction: Direction::Refund,
            limit: Some(LimitOverride { requests: 7, unit: Unit::Week }),
            ..Descriptor::new(vec![Entry::new("app", "a")])
        }],
        hits: Hits::new(3),
    };
    let wire = RateLimitRequest::decode(&encode_request(&request)[..]).unwrap();
    assert_eq!(request_from_wire(wire), Ok(request.clone()));
    assert_eq!(request.charge_of(&request.descriptors[0]), Charge::Refund(Hits::new(3)));
}

/// Regression: a peek was sent as `hits_addend: 0`, which servers read as one hit.
#[test]
fn hits_that_a_request_cannot_carry_go_with_its_descriptors() {
    for hits in [Hits::PEEK, Hits::new(u64::MAX)] {
        let descriptors = vec![Descriptor::new(vec![Entry::new("app", "a")])];
        let request = Request { domain: "shop".into(), descriptors, hits };
        let wire = RateLimitRequest::decode(&encode_request(&request)[..]).unwrap();
        let read = request_from_wire(wire).unwrap();
        assert_eq!(read.charge_of(&read.descriptors[0]), Charge::Take(hits));
    }
}

#[test]
fn metadata_becomes_a_struct() {
    let text = |text: &str| Value::Text(text.to_owned());
    let metadata = Value::Map(vec![
        ("plan".to_owned(), text("gold")),
        ("costs".to_owned(), Value::List(vec![Value::Number(1.5), Value::Null])),
        ("owner".to_owned(), Value::Map(vec![("active".to_owned(), Value::Bool(true))])),
    ]);
    let answer = Answer { verdict: Verdict::Allow, statuses: Vec::new(), metadata: Some(metadata) };
    let wire = response_to_wire(&answer).dynamic_metadata.unwrap();
    let kind = |value: &prost_types::Value| value.kind.clone().unwrap();
    assert_eq!(kind(&wire.fields["plan"]), Kind::StringValue("gold".to_owned()));
    let Kind::ListValue(costs) = kind(&wire.fields["costs"]) else { panic!("not a list") };
    let costs: Vec<Kind> = costs.values.iter().map(kind).collect();
    assert_eq!(costs, [Kind::NumberValue(1.5), Kind::NullValue(0)]);
    let Kind::StructValue(owner) = kind(&wire.fields["owner"]) else { panic!("not a struct") };
    assert_eq!(kind(&owner.fields["active"]), Kind::BoolValue(true));
}

#[test]
fn seconds_until_reset_are_rounded_up() {
    let mut status = Status {
        verdict: Verdict::Deny,
        limit: Some(LimitView { requests: 5, unit: Some(Unit::Minute), name: String::new() }),
        remaining: 0,
        reset: Nanos::new(1_000_000_001),
        lease: None,
        details: None,
    };
    let wire = |status: &Status| {
        let answer =
            Answer { verdict: Verdict::Deny, statuses: vec![status.clone()], metadata: None };
        response_to_wire(&answer).statuses.remove(0).duration_until_reset
    };
    assert_eq!(wire(&status).map(|reset| (reset.seconds, reset.nanos)), Some((2, 0)));
    status.limit = None;
    assert_eq!(wire(&status), None);
}

#[test]
fn answers_without_a_verdict_are_refused() {
    assert_eq!(decode_answer(&[]).unwrap_err(), WireError::UnknownCode(0));
    assert_eq!(decode_answer(&[0x08, 9]).unwrap_err(), WireError::UnknownCode(9));
    assert!(matches!(decode_answer(b"\xff\xff"), Err(WireError::Malformed(_))));
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    })
}

fn statuses() -> impl Strategy<Value = Status> {
    let unit = prop::option::of(prop::sample::select(Unit::ALL.to_vec()));
    let limit = (any::<u32>(), unit, "[a-z]{0,8}").prop_map(|(requests, unit, name)| LimitView {
        requests,
        unit,
        name,
    });
    let verdict = prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny)];
    let parts = (verdict, limit, any::<u32>(), 0u64..1_000_000_000);
    let further = parts.clone().prop_map(|(verdict, limit, remaining, secs)| FurtherLimit {
        limit,
        remaining,
        reset: Nanos::from_secs(secs),
        verdict,
    });
    let further = prop::collection::vec(further, 0..=StatusDetails::FURTHER_MAX);
    (parts, further).prop_map(|((verdict, limit, remaining, secs), further)| {
        let without_shadow = if remaining % 2 == 0 { Verdict::Deny } else { Verdict::Allow };
        let is_uncounted = remaining % 3 == 0;
        let is_plain = without_shadow == Verdict::Allow && !is_uncounted && further.is_empty();
        let details = StatusDetails { further, without_shadow, is_uncounted };
        let details = (!is_plain).then(|| Box::new(details));
        let reset = Nanos::from_secs(secs);
        Status { verdict, limit: Some(limit), remaining, reset, lease: None, details }
    })
}

#[test]
fn answers_survive_the_wire() {
    runner()
        .run(&prop::collection::vec(statuses(), 0..5), |statuses| {
            let answer = Answer { verdict: Verdict::Deny, statuses, metadata: None };
            let bytes = response_to_wire(&answer).encode_to_vec();
            prop_assert_eq!(decode_answer(&bytes), Ok(answer));
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_answer_bytes_do_harm() {
    runner()
        .run(&prop::collection::vec(any::<u8>(), 0..128), |bytes| {
            let _ = decode_answer(&bytes);
            let response = [&[0x08, 2, 0x12][..], &[bytes.len() as u8], &bytes].concat();
            let _ = decode_answer(&response);
            Ok(())
        })
        .unwrap();
}
