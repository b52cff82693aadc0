//! Lease metadata: accepted values survive encoding and decoding, refusals have a short message, and time and
//! memory are proportional to the value.

use super::Target;
use crate::input::Input;
use crate::memory::Meter;
use crate::work::Bound;
use std::time::Duration;
use tidegate_core::{HeaderForm, LeaseRequest, Timestamp};
use tidegate_wire::{
    DESCRIPTORS_MAX, lease_request_from, lease_request_metadata, returned_from, returned_metadata,
};

pub(super) const TARGET: Target = Target { name: "leases", run, seeds };

const WORK: Bound = Bound { fixed: Duration::from_micros(300), nanos_per_byte: 500 };
/// The longest value in an error message, with each byte as `\u{13}`, and the words around it.
const MESSAGE_BYTES_MAX: usize = 800;

const NAMES: [&str; 7] = [
    "tidegate-lease",
    "tidegate-waiting",
    "tidegate-proxy",
    "tidegate-clock",
    "tidegate-call",
    "tidegate-return",
    "tidegate-headers",
];

/// A line for each name, in the order of [`NAMES`]: `+` and its value; anything else means absent.
fn run(input: &[u8]) {
    let mut input = Input(input);
    // A request without descriptors is refused earlier.
    let descriptors = usize::from(input.byte()).clamp(1, DESCRIPTORS_MAX);
    let lines: Vec<&[u8]> = input.rest().split(|byte| *byte == b'\n').collect();
    let bytes = lines.iter().map(|line| line.len()).sum();
    let value_of = |name: &'static str| {
        let at = NAMES.iter().position(|known| *known == name)?;
        lines.get(at)?.strip_prefix(b"+")
    };
    let meter = Meter::begin();
    let (ask, returned) = WORK.check(bytes, || {
        (lease_request_from(descriptors, value_of), returned_from(descriptors, value_of))
    });
    let allowed = 8_192 + 64 * descriptors + 16 * bytes;
    assert!(meter.peak() <= allowed, "{} bytes for {bytes}", meter.peak());
    match ask {
        Ok(None) => assert_eq!(value_of("tidegate-lease"), None),
        Ok(Some(ask)) => {
            assert_eq!((ask.wanted.len(), ask.waiting.len()), (descriptors, descriptors));
            let metadata = lease_request_metadata(&ask);
            assert_eq!(lease_request_from(descriptors, find(&metadata)), Ok(Some(ask)));
        }
        Err(error) => assert!(error.to_string().len() < MESSAGE_BYTES_MAX, "{error}"),
    }
    match returned {
        Ok(None) => assert_eq!(value_of("tidegate-return"), None),
        Ok(Some(returned)) => {
            assert_eq!(returned.leases.len(), descriptors);
            let metadata = returned_metadata(returned.call, &returned.leases);
            assert_eq!(returned_from(descriptors, find(&metadata)), Ok(Some(returned)));
        }
        Err(error) => assert!(error.to_string().len() < MESSAGE_BYTES_MAX, "{error}"),
    }
}

fn find<'a>(metadata: &'a [(&str, String)]) -> impl Fn(&'static str) -> Option<&'a [u8]> {
    move |name| {
        let found = metadata.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_bytes())
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |descriptors: u8, metadata: &[(&str, String)]| {
        let line = |name: &&str| match metadata.iter().find(|(known, _)| known == name) {
            Some((_, value)) => format!("+{value}"),
            None => String::new(),
        };
        let lines: Vec<String> = NAMES.iter().map(line).collect();
        [&[descriptors][..], lines.join("\n").as_bytes()].concat()
    };
    let clock = Timestamp::from_nanos(1_763_766_000_000_000_000);
    let ask = |wanted: Vec<u64>, waiting: Vec<u64>| LeaseRequest {
        call: 7,
        proxy: 9,
        clock,
        wanted,
        waiting,
        headers: HeaderForm::Off,
    };
    vec![
        seed(1, &lease_request_metadata(&ask(vec![50], vec![0]))),
        seed(3, &lease_request_metadata(&ask(vec![50, 0, u64::MAX], vec![1, 2, 3]))),
        seed(2, &returned_metadata(u64::MAX, &[1, u64::MAX])),
        seed(2, &[("tidegate-lease", "5, 6".into()), ("tidegate-clock", "x".into())]),
        seed(0, &[]),
    ]
}
