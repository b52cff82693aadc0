//! The client's side of a connection, fed with random bytes in random pieces: each call ends at most once,
//! and in the same way however the bytes are cut. Memory is proportional to them, and CPU per byte is
//! limited.

use super::Target;
use crate::frames::{self, frame};
use crate::input::{Input, pieces};
use crate::memory::Meter;
use crate::work::Bound;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_grpc::client::{Connection, Ended};

pub(super) const TARGET: Target = Target { name: "client", run, seeds };

const WORK: Bound = Bound { fixed: Duration::from_micros(500), nanos_per_byte: 250 };
/// Calls begun before each part of the bytes.
const CALLS: usize = 12;

/// How a call ended, as text.
type End = (u32, String);

fn run(input: &[u8]) {
    let mut input = Input(input);
    let is_raw = input.flag();
    let sizes = input.take(3);
    let cut = input.byte();
    let bytes = if is_raw { input.rest().to_vec() } else { frames::build(&mut input) };
    let (first, second) = bytes.split_at(bytes.len() * usize::from(cut) / 255);
    let parts = [first, second];
    let whole = WORK.check(bytes.len(), || fed(parts, &[u8::MAX]));
    let meter = Meter::begin();
    let cut = fed(parts, sizes);
    // The output is kept here as text, too.
    let allowed = 256 * 1024 + 16 * bytes.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), bytes.len());
    assert_eq!(cut, whole, "in pieces of {sizes:?}");
    let numbers: BTreeSet<u32> = whole.1.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers.len(), whole.1.len(), "a call ends twice: {:?}", whole.1);
}

/// Begins calls and feeds the bytes, twice. Returns the output, how calls ended, and whether the connection
/// failed.
fn fed(parts: [&[u8]; 2], sizes: &[u8]) -> (Vec<u8>, Vec<End>, bool) {
    let mut connection = Connection::new("localhost", "/test.Echo/Echo", &[("x-a", "b")]);
    let mut ends: Vec<End> = Vec::new();
    let mut begun = 0;
    let mut settings = Vec::new();
    frame(4, 0, 0, &[], &mut settings);
    let mut feed = |connection: &mut Connection, piece: &[u8]| {
        connection.receive(piece, &mut |number, ended: Ended<'_>| {
            ends.push((number, format!("{ended:.60?}")));
        })
    };
    let mut is_broken = feed(&mut connection, &settings).is_err();
    for part in parts {
        begun += (0..CALLS).filter(|_| connection.call(&[b'x'; 100]).is_some()).count();
        for piece in pieces(part, sizes) {
            is_broken = is_broken || feed(&mut connection, piece).is_err();
        }
    }
    assert!(is_broken || connection.calls() + ends.len() == begun, "a call is lost");
    (connection.output().to_vec(), ends, is_broken)
}

fn seeds() -> Vec<Vec<u8>> {
    let built = |frames: &[&[u8]]| [&[0, 255, 7, 40, 255][..], &frames.concat()].concat();
    let headers: &[u8] = &[0, 0, 0, 3, 1, 3];
    let message: &[u8] = &[4, 0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 0, 0];
    // grpc-status: 0.
    let trailers: &[u8] = &[0, 0, 1, 3, 1, 5, 1, 8, 11];
    let refused: &[u8] = &[0, 0, 1, 3, 3, 3, 5, 1, 8, 12, 5, 1, 9, 6];
    let reset: &[u8] = &[10, 0, 8];
    let leaving: &[u8] = &[13, 0, 3];
    let http: &[u8] = &[0, 0, 1, 3, 1, 5, 1, 3, 8];
    let many: &[u8] = &[15, 60, 1];
    let window: &[u8] = &[9, 0, 50, 0, 0];
    let settings: &[u8] = &[11, 0, 2, 4, 100, 0, 0, 3, 5, 0, 0, 0];
    vec![
        built(&[headers, message, trailers]),
        built(&[headers, message, trailers, &[0, 205], &headers[2..], message, trailers]),
        built(&[refused, reset]),
        built(&[http, leaving]),
        built(&[headers, message, many]),
        built(&[settings, window, headers, trailers]),
    ]
}
