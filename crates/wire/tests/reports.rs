//! The wire form of reports beside a slow twin, prost: both read and write the same, and no request fails for a report
//! that makes no sense.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use prost::Message;
use std::cell::RefCell;
use tidegate_core::{
    Descriptor, Entry, Hits, LimitOverride, Report, Request, TalliedHits, Tally, Unit,
};
use tidegate_wire::rls::{DescriptorEntry, RateLimitDescriptor, RateLimitOverride};
use tidegate_wire::{
    RequestReader, TALLIES_MAX, append_report, decode_request, encode_request, report_of,
};

/// A request as prost sees it: its other fields are skipped.
#[derive(Clone, PartialEq, Message)]
struct WithReport {
    #[prost(message, optional, tag = "1004")]
    report: Option<WireReport>,
}

#[derive(Clone, PartialEq, Message)]
struct WireReport {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(uint64, tag = "2")]
    number: u64,
    #[prost(message, repeated, tag = "3")]
    tallies: Vec<WireTally>,
}

#[derive(Clone, PartialEq, Message)]
struct WireTally {
    #[prost(message, optional, tag = "1")]
    descriptor: Option<RateLimitDescriptor>,
    #[prost(uint64, tag = "2")]
    allowed: u64,
    #[prost(uint64, tag = "3")]
    denied: u64,
    #[prost(uint64, tag = "4")]
    denied_elsewhere: u64,
    #[prost(string, repeated, tag = "5")]
    over: Vec<String>,
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_125),
        failure_persistence: None,
        ..Config::default()
    })
}

fn request() -> Request {
    let descriptors = vec![Descriptor::new(vec![Entry::new("k", "v")])];
    Request { domain: "d".into(), descriptors, hits: Hits::ONE }
}

fn with_report(report: &Report) -> Vec<u8> {
    let mut bytes = encode_request(&request());
    append_report(report, &mut bytes);
    bytes
}

fn reports() -> impl Strategy<Value = Report> {
    let entry = ("[a-z]{1,200}", "\\PC{0,4}").prop_map(|(key, value)| Entry::new(key, value));
    let limit = (any::<u32>(), prop::sample::select(Unit::ALL.to_vec()));
    let limit = limit.prop_map(|(requests, unit)| LimitOverride { requests, unit });
    let hits = prop_oneof![Just(0), 1..300_u64, any::<u64>()];
    let hits =
        (hits.clone(), hits.clone(), hits).prop_map(|(allowed, denied, denied_elsewhere)| {
            TalliedHits { allowed, denied, denied_elsewhere }
        });
    let tally = (
        prop::collection::vec(entry, 1..4),
        prop::option::weighted(0.2, limit),
        hits,
        prop::collection::vec("[a-z]{1,3}", 0..=4),
    );
    let tally = tally.prop_map(|(entries, limit, hits, over)| Tally { entries, limit, hits, over });
    let parts = (any::<u64>(), any::<u64>(), prop::collection::vec(tally, 0..5));
    parts.prop_map(|(sequence, number, tallies)| Report { sequence, number, tallies })
}

fn wire(report: &Report) -> WireReport {
    let tally = |tally: &Tally| WireTally {
        descriptor: Some(RateLimitDescriptor {
            entries: tally
                .entries
                .iter()
                .map(|Entry { key, value }| DescriptorEntry {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            limit: tally.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests,
                unit: match limit.unit {
                    Unit::Second => 1,
                    Unit::Minute => 2,
                    Unit::Hour => 3,
                    Unit::Day => 4,
                    Unit::Month => 5,
                    Unit::Year => 6,
                    Unit::Week => 7,
                },
            }),
            ..RateLimitDescriptor::default()
        }),
        allowed: tally.hits.allowed,
        denied: tally.hits.denied,
        denied_elsewhere: tally.hits.denied_elsewhere,
        over: tally.over.clone(),
    };
    WireReport {
        sequence: report.sequence,
        number: report.number,
        tallies: report.tallies.iter().map(tally).collect(),
    }
}

#[test]
fn a_report_is_written_and_read_as_prost_does_and_leaves_its_request_alone() {
    let reader = RefCell::new(RequestReader::new());
    runner(2_000)
        .run(&reports(), |report| {
            let bytes = with_report(&report);
            let by_prost = WithReport::decode(&*bytes).unwrap();
            prop_assert_eq!(by_prost.report.as_ref(), Some(&wire(&report)));
            prop_assert_eq!(report_of(&bytes), Some(report.clone()));
            let expected = Ok((&request(), Some(report)));
            let mut reader = reader.borrow_mut();
            prop_assert_eq!(reader.read_with_report(&bytes), expected);
            prop_assert_eq!(decode_request(&bytes), Ok(request()));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_request_without_a_report_has_none_also_after_one_that_has_it() {
    let mut reader = RequestReader::new();
    let report = Report { sequence: 1, number: 2, tallies: Vec::new() };
    assert_eq!(reader.read_with_report(&with_report(&report)).unwrap().1, Some(report));
    let plain = encode_request(&request());
    assert_eq!(reader.read_with_report(&plain), Ok((&request(), None)));
    assert_eq!(report_of(&plain), None);
}

/// What is changed or cut off is read as prost reads it, or is no report; the request is what it was.
#[test]
fn a_report_that_makes_no_sense_is_ignored_and_its_request_is_read() {
    let reader = RefCell::new(RequestReader::new());
    let inputs = (reports(), any::<prop::sample::Index>(), any::<u8>());
    runner(5_000)
        .run(&inputs, |(report, place, byte)| {
            let mut field = Vec::new();
            append_report(&report, &mut field);
            // Tag and length stay, so that the request can be read.
            let head = 2 + field[2..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
            if head == field.len() {
                return Ok(());
            }
            let place = head + place.index(field.len() - head);
            field[place] = byte;
            let bytes = [encode_request(&request()), field].concat();
            let mut reader = reader.borrow_mut();
            let (read, found) = reader.read_with_report(&bytes).unwrap();
            prop_assert_eq!(read, &request());
            if let Some(found) = found {
                // Of a message that comes twice, prost merges the two.
                let by_prost = WithReport::decode(&*bytes).unwrap().report.unwrap();
                prop_assert_eq!(by_prost.tallies.len(), found.tallies.len());
                prop_assert_eq!(
                    (by_prost.sequence, by_prost.number),
                    (found.sequence, found.number)
                );
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn numbers_of_tallies_names_and_entries_are_bounded() {
    let tally = |entries: usize, names: usize| Tally {
        entries: vec![Entry::new("k", ""); entries],
        limit: None,
        hits: TalliedHits { allowed: 1, ..TalliedHits::default() },
        over: vec!["n".into(); names],
    };
    let read = |tallies: Vec<Tally>| {
        let report = Report { sequence: 7, number: 8, tallies };
        let mut reader = RequestReader::new();
        let bytes = with_report(&report);
        let (read, found) = reader.read_with_report(&bytes).unwrap();
        assert_eq!(read, &request());
        found.is_some_and(|found| found == report)
    };
    assert!(read(vec![tally(1, 0); TALLIES_MAX]));
    assert!(!read(vec![tally(1, 0); TALLIES_MAX + 1]));
    assert!(read(vec![tally(256, 4)]));
    assert!(!read(vec![tally(257, 4)]));
    assert!(!read(vec![tally(256, 5)]));
    assert!(!read(vec![tally(0, 0)]));
}
