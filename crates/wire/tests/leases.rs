//! The wire form of leases: the ends understand each other, and malformed values are refused by name or
//! ignored.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use prost::Message;
use tidegate_core::{
    Answer, DebitRequest, HeaderForm, Lease, LeaseRequest, LeaseReturn, LimitView, Nanos, Status,
    Timestamp, Unit, Verdict,
};
use tidegate_wire::rls::{Code, DescriptorStatus, Quota, RateLimitResponse};
use tidegate_wire::{
    WireError, debit_from, debit_metadata, decode_answer, lease_request_from,
    lease_request_metadata, response_to_wire, returned_from, returned_metadata,
};

type Metadata = Vec<(&'static str, Vec<u8>)>;

fn written(metadata: Vec<(&'static str, String)>) -> Metadata {
    metadata.into_iter().map(|(name, value)| (name, value.into_bytes())).collect()
}

fn ask_from(descriptors: usize, metadata: &Metadata) -> Result<Option<LeaseRequest>, WireError> {
    lease_request_from(descriptors, |name| value_of(metadata, name))
}

fn return_from(descriptors: usize, metadata: &Metadata) -> Result<Option<LeaseReturn>, WireError> {
    returned_from(descriptors, |name| value_of(metadata, name))
}

fn value_of<'a>(metadata: &'a Metadata, name: &str) -> Option<&'a [u8]> {
    let found = metadata.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value.as_slice())
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn an_ask_has_these_words() {
    let ask = LeaseRequest {
        call: 0xc0,
        proxy: 0xab,
        clock: Timestamp::from_nanos(1_234),
        wanted: vec![50, 0],
        waiting: vec![0, 3],
        headers: HeaderForm::Draft03,
    };
    let expected = [
        ("tidegate-lease", "50,0"),
        ("tidegate-call", "00000000000000c0"),
        ("tidegate-proxy", "00000000000000ab"),
        ("tidegate-clock", "1234"),
        ("tidegate-waiting", "0,3"),
        ("tidegate-headers", "draft03"),
    ];
    assert_eq!(
        lease_request_metadata(&ask),
        expected.map(|(name, value)| (name, value.to_owned()))
    );
    let nobody_waits = LeaseRequest { waiting: vec![0, 0], headers: HeaderForm::Ietf, ..ask };
    let names: Vec<_> =
        lease_request_metadata(&nobody_waits).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["tidegate-lease", "tidegate-call", "tidegate-proxy", "tidegate-clock"]);
    let returned = [
        ("tidegate-return", "0000000000000001,ffffffffffffffff".to_owned()),
        ("tidegate-call", "0000000000000005".to_owned()),
    ];
    assert_eq!(returned_metadata(5, &[1, u64::MAX]), returned);
}

#[test]
fn asks_and_returns_survive_the_wire() {
    let ask = (1..9usize).prop_flat_map(|descriptors| {
        let numbers = || prop::collection::vec(any::<u64>(), descriptors);
        let headers =
            prop::sample::select(vec![HeaderForm::Ietf, HeaderForm::Draft03, HeaderForm::Off]);
        (any::<u64>(), any::<u64>(), numbers(), numbers(), headers)
    });
    runner(500)
        .run(&ask, |(proxy, clock, wanted, waiting, headers)| {
            let (descriptors, ids) = (wanted.len(), waiting.clone());
            let (call, clock) = (proxy ^ clock, Timestamp::from_nanos(clock));
            let ask = LeaseRequest { call, proxy, clock, wanted, waiting, headers };
            let metadata = written(lease_request_metadata(&ask));
            prop_assert_eq!(ask_from(descriptors, &metadata), Ok(Some(ask)));
            prop_assert_eq!(return_from(descriptors, &metadata), Ok(None));
            let metadata = written(returned_metadata(call, &ids));
            let back = LeaseReturn { call, leases: ids };
            prop_assert_eq!(return_from(descriptors, &metadata), Ok(Some(back)));
            prop_assert_eq!(ask_from(descriptors, &metadata), Ok(None));
            Ok(())
        })
        .unwrap();
}

fn debit_of(descriptors: usize, metadata: &Metadata) -> Result<Option<DebitRequest>, WireError> {
    debit_from(descriptors, |name| value_of(metadata, name))
}

#[test]
fn a_debit_has_these_words_and_says_nothing_that_goes_without_saying() {
    let debit = DebitRequest {
        call: 0xc0,
        sequence: 0x5e,
        streams: vec![2, 1],
        ages: vec![Nanos::ZERO, Nanos::new(1_000_001), Nanos::ZERO],
    };
    let expected = [
        ("tidegate-call", "00000000000000c0"),
        ("tidegate-debit", "000000000000005e"),
        ("tidegate-streams", "2,1"),
        ("tidegate-age", "0,2,0"),
    ];
    let owned = |(name, value): (&'static str, &str)| (name, value.to_owned());
    assert_eq!(debit_metadata(&debit, None), expected.map(owned));
    let plain = DebitRequest { streams: vec![1; 3], ages: vec![Nanos::ZERO; 3], ..debit };
    assert_eq!(debit_metadata(&plain, None), [expected[0], expected[1]].map(owned));
    assert_eq!(debit_of(3, &written(debit_metadata(&plain, None))), Ok(Some(plain.clone())));
    // With a lease request, the number is there once.
    let ask = LeaseRequest {
        call: plain.call,
        proxy: 1,
        clock: Timestamp::from_nanos(1),
        wanted: vec![5; 3],
        waiting: vec![0; 3],
        headers: HeaderForm::Off,
    };
    let both = written(debit_metadata(&plain, Some(&ask)));
    assert_eq!(both.iter().filter(|(name, _)| *name == "tidegate-call").count(), 1);
    assert_eq!(ask_from(3, &both), Ok(Some(ask)));
    assert_eq!(debit_of(3, &both), Ok(Some(plain)));
}

#[test]
fn words_of_a_debit_that_make_no_sense_are_refused_by_name() {
    let parts = "numbers above 0 that add up to the descriptors";
    for (name, value, expected) in [
        ("tidegate-debit", "1 2", "\"1 2\" is not 16 hex digits".to_owned()),
        ("tidegate-call", "", "\"\" is not 16 hex digits".to_owned()),
        ("tidegate-streams", "1,1", format!("\"1,1\" is not {parts}")),
        ("tidegate-streams", "0,3", format!("\"0,3\" is not {parts}")),
        ("tidegate-streams", "4", format!("\"4\" is not {parts}")),
        ("tidegate-streams", "1,x", format!("\"1,x\" is not {parts}")),
        (
            "tidegate-streams",
            "18446744073709551615,4",
            format!("\"18446744073709551615,4\" is not {parts}"),
        ),
        ("tidegate-age", "1,2", "\"1,2\" is not one number, or one for each descriptor".to_owned()),
    ] {
        let mut metadata: Metadata =
            vec![("tidegate-debit", b"5e".to_vec()), ("tidegate-call", b"c".to_vec())];
        metadata.retain(|(known, _)| *known != name);
        metadata.push((name, value.as_bytes().to_vec()));
        let error = debit_of(3, &metadata).unwrap_err().to_string();
        assert_eq!(error, format!("metadata {name}: {expected}"));
    }
}

#[test]
fn one_number_is_for_each_descriptor_and_absent_waiting_is_none() {
    let metadata: Metadata = vec![
        ("tidegate-lease", b"50".to_vec()),
        ("tidegate-call", b"c".to_vec()),
        ("tidegate-proxy", b"ab".to_vec()),
        ("tidegate-clock", b"7".to_vec()),
    ];
    let ask = LeaseRequest {
        call: 0xc,
        proxy: 0xab,
        clock: Timestamp::from_nanos(7),
        wanted: vec![50; 3],
        waiting: vec![0; 3],
        headers: HeaderForm::Ietf,
    };
    assert_eq!(ask_from(3, &metadata), Ok(Some(ask)));
}

#[test]
fn words_that_make_no_sense_are_refused_by_name() {
    let numbers = "one number, or one for each descriptor";
    let long = "9".repeat(70);
    let table: [(&str, &[u8], String); 15] = [
        ("tidegate-lease", b"", format!("\"\" is not {numbers}")),
        ("tidegate-lease", b"1,2,3", format!("\"1,2,3\" is not {numbers}")),
        ("tidegate-lease", b"1,", format!("\"1,\" is not {numbers}")),
        ("tidegate-lease", b"-1", format!("\"-1\" is not {numbers}")),
        ("tidegate-lease", b"1.5", format!("\"1.5\" is not {numbers}")),
        (
            "tidegate-lease",
            b"18446744073709551616",
            format!("\"18446744073709551616\" is not {numbers}"),
        ),
        ("tidegate-lease", b"\xff", format!("\"\u{fffd}\" is not {numbers}")),
        ("tidegate-lease", long.as_bytes(), format!("\"{}\" is not {numbers}", &long[..64])),
        ("tidegate-waiting", b"x", format!("\"x\" is not {numbers}")),
        ("tidegate-waiting", b"1,2,3", format!("\"1,2,3\" is not {numbers}")),
        ("tidegate-call", b"", "\"\" is not 16 hex digits".to_owned()),
        ("tidegate-proxy", b"", "\"\" is not 16 hex digits".to_owned()),
        (
            "tidegate-proxy",
            b"12345678901234567",
            "\"12345678901234567\" is not 16 hex digits".to_owned(),
        ),
        ("tidegate-clock", b"", "\"\" is not a number of nanoseconds".to_owned()),
        ("tidegate-clock", b"-1", "\"-1\" is not a number of nanoseconds".to_owned()),
    ];
    for (name, value, message) in table {
        let mut metadata: Metadata = vec![
            ("tidegate-lease", b"1".to_vec()),
            ("tidegate-call", b"1".to_vec()),
            ("tidegate-proxy", b"1".to_vec()),
            ("tidegate-clock", b"1".to_vec()),
        ];
        metadata.retain(|(known, _)| *known != name);
        metadata.push((name, value.to_vec()));
        let error = ask_from(2, &metadata).unwrap_err();
        assert_eq!(error.to_string(), format!("metadata {name}: {message}"));
    }
    for value in ["", "1", "1,2,3", "1,x", "1,12345678901234567"] {
        let metadata: Metadata = vec![("tidegate-return", value.as_bytes().to_vec())];
        let message =
            format!("metadata tidegate-return: {value:?} is not 16 hex digits for each descriptor");
        assert_eq!(return_from(2, &metadata).unwrap_err().to_string(), message);
    }
}

#[test]
fn no_bytes_of_metadata_are_too_strange() {
    let name = prop_oneof![
        Just("tidegate-lease"),
        Just("tidegate-waiting"),
        Just("tidegate-proxy"),
        Just("tidegate-clock"),
        Just("tidegate-call"),
        Just("tidegate-return"),
    ];
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "[0-9a-f,+ -]{0,60}".prop_map(String::into_bytes),
    ];
    let metadata = prop::collection::vec((name, value), 0..6);
    runner(2_000)
        .run(&(0..6usize, metadata), |(descriptors, metadata)| {
            if let Ok(Some(ask)) = ask_from(descriptors, &metadata) {
                prop_assert_eq!(ask.wanted.len(), descriptors);
                prop_assert_eq!(ask.waiting.len(), descriptors);
            }
            if let Ok(Some(back)) = return_from(descriptors, &metadata) {
                prop_assert_eq!(back.leases.len(), descriptors);
            }
            Ok(())
        })
        .unwrap();
}

fn status(lease: Option<Lease>, reset: Nanos) -> Status {
    let limit = LimitView { requests: 5, unit: Some(Unit::Minute), name: String::new() };
    Status {
        verdict: Verdict::Allow,
        limit: Some(limit),
        remaining: 4,
        reset,
        lease,
        details: None,
    }
}

fn answer(statuses: Vec<Status>) -> Answer {
    Answer { verdict: Verdict::Allow, statuses, metadata: None }
}

#[test]
fn leases_and_the_exact_time_beside_them_survive_the_wire() {
    let lease = (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(id, tokens, until)| Lease {
        id,
        tokens,
        valid_until: Timestamp::from_nanos(until),
    });
    runner(500)
        .run(&(lease, any::<u64>()), |(lease, reset)| {
            let sent = answer(vec![status(Some(lease), Nanos::new(reset))]);
            let bytes = response_to_wire(&sent).encode_to_vec();
            prop_assert_eq!(decode_answer(&bytes), Ok(sent));
            Ok(())
        })
        .unwrap();
}

#[test]
fn times_are_whole_seconds_for_those_who_know_of_no_leases() {
    let reset = Nanos::new(1_000_000_001);
    let lease = Lease { id: 1, tokens: 0, valid_until: Timestamp::from_nanos(1) };
    let wire = response_to_wire(&answer(vec![status(None, reset), status(Some(lease), reset)]));
    let times = wire.statuses.iter().map(|status| {
        let time = status.duration_until_reset.unwrap();
        (time.seconds, time.nanos)
    });
    assert_eq!(times.collect::<Vec<_>>(), [(2, 0), (1, 1)]);
}

#[test]
fn a_quota_that_makes_no_sense_is_no_lease() {
    let valid_until = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    let good = Quota { requests: 7, valid_until: valid_until(3, 9), id: "0f".to_owned() };
    let read = |quota: &Quota| {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            quota: Some(quota.clone()),
            ..DescriptorStatus::default()
        };
        let response = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        decode_answer(&response.encode_to_vec()).unwrap().statuses.remove(0).lease
    };
    let until = Timestamp::from_nanos(3_000_000_009);
    assert_eq!(read(&good), Some(Lease { id: 15, tokens: 7, valid_until: until }));
    let bad = [
        Quota { valid_until: None, ..good.clone() },
        Quota { valid_until: valid_until(-1, 0), ..good.clone() },
        Quota { valid_until: valid_until(1, -1), ..good.clone() },
        Quota { valid_until: valid_until(i64::MAX, 0), ..good.clone() },
        Quota { valid_until: valid_until(18_446_744_073, 999_999_999), ..good.clone() },
        Quota { id: String::new(), ..good.clone() },
        Quota { id: "lease".to_owned(), ..good.clone() },
        Quota { id: "f0123456789abcdef".to_owned(), ..good },
    ];
    for quota in bad {
        assert_eq!(read(&quota), None, "{quota:?}");
    }
}

/// Answers come over a network: no bytes may cause a panic.
#[test]
fn no_bytes_of_an_answer_are_too_strange() {
    let lease = Lease { id: 9, tokens: 3, valid_until: Timestamp::from_secs(5) };
    let good = answer(vec![status(Some(lease), Nanos::from_secs(1)); 3]);
    let good = response_to_wire(&good).encode_to_vec();
    let change = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    let strategy =
        (prop::collection::vec(any::<u8>(), 0..200), change, any::<prop::sample::Index>());
    runner(3_000)
        .run(&strategy, |(any_bytes, changes, cut)| {
            let _ = decode_answer(&any_bytes);
            let mut bytes = good.clone();
            for (index, byte) in changes {
                let place = index.index(bytes.len());
                bytes[place] = byte;
            }
            let _ = decode_answer(&bytes);
            let _ = decode_answer(&bytes[..cut.index(bytes.len())]);
            Ok(())
        })
        .unwrap();
}
