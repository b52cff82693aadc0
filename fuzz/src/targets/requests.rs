//! Requests of the rate limit service, decoded by hand and by prost: the same request, or the same error.
//!
//! The report of a request is read by hand alone: bounded, and the same once it is written again.
//!
//! Deliberate differences: a long message in an unusual encoding is refused without decoding, while prost may
//! accept it; and a request with too many descriptors or entries may report another error.

use super::Target;
use crate::memory::Meter;
use crate::work::Bound;
use prost::Message;
use std::cell::RefCell;
use std::time::Duration;
use tidegate_core::{Entry, Report, TalliedHits, Tally};
use tidegate_wire::rls::{
    DescriptorEntry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
};
use tidegate_wire::{
    RequestReader, TALLIES_MAX, WireError, append_report, decode_request, report_of,
    request_from_wire,
};

pub(super) const TARGET: Target = Target { name: "requests", run, seeds };

const WORK: Bound = Bound { fixed: Duration::from_micros(300), nanos_per_byte: 500 };

thread_local! {
    /// Has decoded every earlier input.
    static READER: RefCell<RequestReader> = const { RefCell::new(RequestReader::new()) };
}

fn run(input: &[u8]) {
    let meter = Meter::begin();
    let read = decode_request(input);
    // The shortest entries take some 16 times their bytes.
    let allowed = 4_096 + 64 * input.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), input.len());
    let by_prost = RateLimitRequest::decode(input).map_err(WireError::MalformedRequest);
    match (&read, by_prost.and_then(request_from_wire)) {
        (Err(WireError::OddRequest(_)), _) => assert!(input.len() > 64 * 1024),
        (Err(error), Err(expected)) if is_too_many(error) || is_too_many(&expected) => {}
        (_, expected) => assert_eq!(read, expected),
    }
    READER.with_borrow_mut(|reader| {
        let again = WORK.check(input.len(), || reader.read(input).cloned());
        assert_eq!(again, read, "with buffers of other requests");
    });
    let meter = Meter::begin();
    let report = WORK.check(input.len(), || report_of(input));
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), input.len());
    if let Some(report) = &report {
        assert!(report.tallies.len() <= TALLIES_MAX);
        let mut written = Vec::new();
        append_report(report, &mut written);
        assert_eq!(report_of(&written).as_ref(), Some(report), "written again");
    }
    READER.with_borrow_mut(|reader| {
        if let Ok((again, found)) = reader.read_with_report(input) {
            assert_eq!(Ok(again), read.as_ref());
            assert!(found.is_none() || found == report, "{found:?} {report:?}");
        }
    });
}

/// Input after one descriptor or entry too many is not read, and may contain other errors.
fn is_too_many(error: &WireError) -> bool {
    error.to_string().contains("too many")
}

fn seeds() -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &str| DescriptorEntry { key: key.into(), value: value.into() };
    let descriptor = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let request = |descriptors, hits_addend| {
        RateLimitRequest { domain: "shop".into(), descriptors, hits_addend }.encode_to_vec()
    };
    let plain = descriptor(vec![entry("app", "web"), entry("remote_address", "10.0.0.7")]);
    let full = RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 7, unit: 2 }),
        hits_addend: Some(300),
        is_negative_hits: true,
        ..plain.clone()
    };
    let tally = Tally {
        entries: vec![Entry::new("app", "web")],
        limit: None,
        hits: TalliedHits { allowed: 300, denied: 2, denied_elsewhere: 1 },
        over: vec!["day".into()],
    };
    let report = Report { sequence: 7, number: 1 << 40, tallies: vec![tally; 2] };
    let mut reported = request(vec![plain.clone()], 1);
    append_report(&report, &mut reported);
    let group = [&request(vec![plain.clone()], 1)[..], &[0x7b, 0x08, 1, 0x7c]].concat();
    vec![
        request(vec![plain.clone()], 1),
        request(vec![plain.clone(), full.clone()], 0),
        request(vec![full; 3], u32::MAX),
        request(vec![descriptor(vec![])], 1),
        request(vec![descriptor(vec![entry("", "")])], 1),
        request(vec![], 1),
        group,
        reported,
        request(vec![plain; 130], 1),
    ]
}
