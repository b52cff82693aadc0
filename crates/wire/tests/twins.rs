//! The hand-written reader and writer beside their slow twin, prost: they must read and write the same,
//! whatever the bytes.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use prost::Message;
use std::cell::RefCell;
use tidegate_core::{
    Answer, FurtherLimit, Lease, LimitView, Nanos, Request, Status, StatusDetails, Timestamp, Unit,
    Value, Verdict,
};
use tidegate_wire::rls::{
    DescriptorEntry, HeaderValue, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse,
};
use tidegate_wire::{
    Additions, RequestReader, Struct, WireError, decode_request, encode_answer, request_from_wire,
    response_to_wire,
};

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    })
}

fn by_prost(bytes: &[u8]) -> Result<Request, WireError> {
    request_from_wire(RateLimitRequest::decode(bytes).map_err(WireError::MalformedRequest)?)
}

/// Reads with a reader that has read another message before.
#[track_caller]
fn check(reader: &mut RequestReader, bytes: &[u8]) {
    let expected = by_prost(bytes);
    assert_eq!(decode_request(bytes), expected, "{bytes:x?}");
    assert_eq!(reader.read(bytes).cloned(), expected, "{bytes:x?}");
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-z]{1,6}", 1 => Just(String::new()), 1 => "\\PC{1,3}", 1 => "a{120,140}"]
}

fn descriptors() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry = (text(), text()).prop_map(|(key, value)| DescriptorEntry { key, value });
    let limit = (any::<u32>(), -1..10)
        .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    let parts = (
        prop::collection::vec(entry, 0..4),
        prop::option::weighted(0.2, limit),
        prop::option::of(prop_oneof![0..3_u64, any::<u64>()]),
        any::<bool>(),
    );
    parts.prop_map(|(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
        entries,
        limit,
        hits_addend,
        is_negative_hits,
    })
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let parts = (text(), prop::collection::vec(descriptors(), 0..4), any::<u32>());
    parts.prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest { domain, descriptors, hits_addend }.encode_to_vec()
    })
}

#[test]
fn requests_are_read_as_prost_reads_them() {
    let reader = RefCell::new(RequestReader::new());
    runner(1_000)
        .run(&messages(), |bytes| {
            check(&mut reader.borrow_mut(), &bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn mutated_requests_are_read_or_refused_as_prost_does() {
    let reader = RefCell::new(RequestReader::new());
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let mutated = (messages(), prop::collection::vec(change, 1..4), messages());
    runner(1_500)
        .run(&mutated, |(mut bytes, changes, second)| {
            // Two concatenated messages are one message with repeated fields.
            check(&mut reader.borrow_mut(), &[&bytes[..], &second].concat());
            for (place, byte) in changes {
                if bytes.is_empty() {
                    break;
                }
                let place = place.index(bytes.len());
                bytes[place] = byte;
                check(&mut reader.borrow_mut(), &bytes);
                check(&mut reader.borrow_mut(), &bytes[..place]);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn arbitrary_bytes_are_read_or_refused_as_prost_does() {
    let reader = RefCell::new(RequestReader::new());
    // Bytes of keys and lengths are more likely.
    let byte = prop_oneof![4 => 0..64_u8, 1 => any::<u8>()];
    let bytes = prop::collection::vec(byte, 0..48);
    runner(5_000)
        .run(&bytes, |bytes| {
            check(&mut reader.borrow_mut(), &bytes);
            let len = bytes.len() as u8;
            let descriptor = [&[0x0a, 1, b'd', 0x12, len][..], &bytes].concat();
            check(&mut reader.borrow_mut(), &descriptor);
            let fact = [0x0a, 3, 0x0a, 1, b'k'];
            let inner = [&[0x0a, 1, b'd', 0x12, len + 5][..], &fact, &bytes].concat();
            check(&mut reader.borrow_mut(), &inner);
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_few_clients_send_is_read_as_prost_reads_it() {
    let mut reader = RequestReader::new();
    let good = [0x0a, 1, b'd', 0x12, 5, 0x0a, 3, 0x0a, 1, b'k'];
    let read = |reader: &mut RequestReader, more: &[u8]| {
        let bytes = [&good[..], more].concat();
        check(reader, &bytes);
        by_prost(&bytes)
    };
    // An unknown group, fixed-length numbers, a key in more bytes than necessary.
    assert!(read(&mut reader, &[0x7b, 0x08, 1, 0x7c]).is_ok());
    assert!(read(&mut reader, &[0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x7d, 1, 2, 3, 4]).is_ok());
    assert_eq!(read(&mut reader, &[0x98, 0x00, 7]).map(|request| request.hits.get()), Ok(7));
    // The longest number, one that is too long, an invalid tag, invalid text.
    let longest = [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert!(read(&mut reader, &longest).is_ok());
    let mut too_long = longest;
    too_long[10] = 0x02;
    assert!(read(&mut reader, &too_long).is_err());
    assert!(read(&mut reader, &[0x00, 0]).is_err());
    assert!(read(&mut reader, &[0x0a, 1, 0xff]).is_err());
}

#[test]
fn too_many_descriptors_are_refused_as_prost_does() {
    let one = [0x12, 5, 0x0a, 3, 0x0a, 1, b'k'];
    for count in [128, 129, 5_000] {
        let bytes = [&[0x0a, 1, b'd'][..], &one.repeat(count)].concat();
        check(&mut RequestReader::new(), &bytes);
    }
}

/// Regression: a descriptor of 4 MiB kept a thread busy for tens of milliseconds, as its entries were not
/// counted.
#[test]
fn too_many_entries_are_refused_as_prost_does() {
    let mut reader = RequestReader::new();
    let of = |count: usize, last: &[u8]| {
        let one = [0x0a, 3, 0x0a, 1, b'k'];
        let entries = [&one.repeat(count), last].concat();
        let descriptor = RateLimitDescriptor::decode(&entries[..]).unwrap();
        let descriptors = vec![descriptor; 2];
        RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 1 }.encode_to_vec()
    };
    let empty_key = [0x0a, 0];
    for count in [255, 256, 257, 5_000, 3] {
        check(&mut reader, &of(count, &[]));
        check(&mut reader, &of(count, &empty_key));
    }
    let refused = reader.read(&of(257, &empty_key)).unwrap_err();
    assert_eq!(refused, WireError::TooManyEntries { descriptor: 0 });
}

/// Regression: two million empty descriptors took 22 ms, as all were read and counted. Now reading stops
/// after the first one too many, so the bytes after it may be anything.
#[test]
fn nothing_is_read_after_one_too_many() {
    let mut reader = RequestReader::new();
    let good = [0x0a, 1, b'd', 0x12, 5, 0x0a, 3, 0x0a, 1, b'k'];
    let no_message = [0xff; 3];
    let descriptors = [&good[..], &[0x12, 0].repeat(128), &no_message].concat();
    assert_eq!(reader.read(&descriptors), Err(WireError::TooManyDescriptors));
    let entries = [&[0x0a, 3, 0x0a, 1, b'k'].repeat(257)[..], &no_message].concat();
    let length = [entries.len() as u8 | 0x80, (entries.len() >> 7) as u8];
    let entries = [&good[..], &[0x12], &length, &entries, &no_message].concat();
    assert_eq!(reader.read(&entries), Err(WireError::TooManyEntries { descriptor: 1 }));
    check(&mut reader, &good);
}

/// Regression: 4 MiB of empty descriptors took 400 MiB. Prost, which makes a message of every two bytes, got
/// messages of any length.
#[test]
fn long_messages_that_cannot_be_read_at_once_are_refused_unread() {
    // Begins with a group, which only prost reads.
    let of = |count: usize| [&[0x4b, 0x4c, 0x0a, 1, b'd'][..], &[0x12, 0].repeat(count)].concat();
    check(&mut RequestReader::new(), &of(2_000));
    let mut reader = RequestReader::new();
    let refused = reader.read(&of(2 << 20)).unwrap_err();
    assert_eq!(refused, WireError::OddRequest((4 << 20) + 5));
    let usual = [0x0a, 1, b'd', 0x12, 5, 0x0a, 3, 0x0a, 1, b'k'];
    check(&mut reader, &usual);
}

#[test]
fn a_reader_reads_short_messages_after_long_ones() {
    let mut reader = RequestReader::new();
    let of = |entries: usize| {
        let entry = DescriptorEntry { key: "k".repeat(100), value: "v".into() };
        let entries = vec![entry; entries];
        let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }; 3];
        RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 1 }.encode_to_vec()
    };
    for entries in [1, 200, 2, 1] {
        check(&mut reader, &of(entries));
    }
}

/// Of whole answers, and of some in which a byte is another one.
#[test]
fn additions_are_read_as_prost_reads_them() {
    let header = || (text(), text()).prop_map(|(key, value)| HeaderValue { key, value });
    let headers = || prop::collection::vec(header(), 0..4);
    let metadata = prop::option::of(prop::collection::btree_map(text(), any::<bool>(), 0..4));
    let body = prop::collection::vec(any::<u8>(), 0..9);
    let change = prop::option::of((any::<prop::sample::Index>(), any::<u8>()));
    let answers = (headers(), headers(), body, metadata, statuses(), change);
    runner(2_000)
        .run(&answers, |(response, request, body, metadata, status, change)| {
            let mut answer = response_to_wire(&Answer {
                verdict: Verdict::Deny,
                statuses: vec![status],
                metadata: None,
            });
            answer.response_headers_to_add = response;
            answer.request_headers_to_add = request;
            answer.raw_body = body;
            answer.dynamic_metadata = metadata.map(|fields| Struct {
                fields: fields.into_iter().map(|(name, flag)| (name, flag.into())).collect(),
            });
            let mut bytes = answer.encode_to_vec();
            if let Some((index, byte)) = change {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let Ok(answer) = RateLimitResponse::decode(bytes.as_slice()) else {
                let _ = Additions::of_answer(&bytes);
                return Ok(());
            };
            // Groups and the like are left out as a whole.
            let Some(read) = Additions::of_answer(&bytes) else {
                let nothing = answer.response_headers_to_add.is_empty()
                    && answer.request_headers_to_add.is_empty()
                    && answer.raw_body.is_empty()
                    && answer.dynamic_metadata.is_none();
                prop_assert!(nothing || change.is_some());
                return Ok(());
            };
            prop_assert_eq!(read.response_headers, answer.response_headers_to_add);
            prop_assert_eq!(read.request_headers, answer.request_headers_to_add);
            prop_assert_eq!(read.body, answer.raw_body);
            let metadata = Struct::decode(read.metadata.as_slice()).unwrap();
            prop_assert_eq!(metadata, answer.dynamic_metadata.unwrap_or_default());
            Ok(())
        })
        .unwrap();
}

fn statuses() -> impl Strategy<Value = Status> {
    let lease = (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(id, tokens, until)| Lease {
        id,
        tokens,
        valid_until: Timestamp::from_nanos(until),
    });
    let parts = (
        prop::sample::select(vec![Verdict::Allow, Verdict::Deny]),
        prop::option::of(limits()),
        prop_oneof![0..3_u32, any::<u32>()],
        prop_oneof![0..3_000_000_000_u64, any::<u64>()],
        prop::option::of(lease),
        prop::option::of(details()),
    );
    parts.prop_map(|(verdict, limit, remaining, reset, lease, details)| Status {
        verdict,
        limit,
        remaining,
        reset: Nanos::new(reset),
        lease,
        details,
    })
}

fn details() -> impl Strategy<Value = Box<StatusDetails>> {
    let verdicts = || prop::sample::select(vec![Verdict::Allow, Verdict::Deny]);
    let further = (limits(), any::<u32>(), any::<u64>(), verdicts());
    let further = further.prop_map(|(limit, remaining, reset, verdict)| FurtherLimit {
        limit,
        remaining,
        reset: Nanos::new(reset),
        verdict,
    });
    let parts = (prop::collection::vec(further, 0..4), verdicts(), any::<bool>());
    parts.prop_map(|(further, without_shadow, is_uncounted)| {
        Box::new(StatusDetails { further, without_shadow, is_uncounted })
    })
}

fn limits() -> impl Strategy<Value = LimitView> {
    let unit = prop::option::of(prop::sample::select(Unit::ALL.to_vec()));
    (any::<u32>(), unit, text()).prop_map(|(requests, unit, name)| LimitView {
        requests,
        unit,
        name,
    })
}

#[test]
fn answers_are_written_as_prost_writes_them() {
    let header = (text(), text()).prop_map(|(key, value)| HeaderValue { key, value });
    let verdict = prop::sample::select(vec![Verdict::Allow, Verdict::Deny]);
    let metadata = prop::option::of(prop::collection::vec((text(), text()), 0..9));
    let answers = (
        verdict,
        prop::collection::vec(statuses(), 0..5),
        metadata,
        prop::collection::vec(header, 0..3),
    );
    runner(1_000)
        .run(&answers, |(verdict, statuses, metadata, headers)| {
            let fields = |fields: Vec<(String, String)>| {
                Value::Map(fields.into_iter().map(|(k, v)| (k, Value::Text(v))).collect())
            };
            let answer = Answer { verdict, statuses, metadata: metadata.map(fields) };
            let mut response = response_to_wire(&answer);
            response.response_headers_to_add = headers.clone();
            let mut written = b"before".to_vec();
            encode_answer(&answer, headers, &mut written);
            prop_assert_eq!(&written[6..], response.encode_to_vec());
            Ok(())
        })
        .unwrap();
}
