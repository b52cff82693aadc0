//! The wire form of a report: a field of Tidegate's own at the end of a `RateLimitRequest`, which other services
//! skip.
//!
//! ```proto
//! // In RateLimitRequest:
//! Report report = 1004;
//!
//! message Report {
//!   uint64 sequence = 1;
//!   uint64 number = 2;
//!   repeated Tally tallies = 3;
//! }
//! message Tally {
//!   RateLimitDescriptor descriptor = 1;  // entries and limit
//!   uint64 allowed = 2;
//!   uint64 denied = 3;
//!   uint64 denied_elsewhere = 4;
//!   repeated string over = 5;            // the limits that denied, if there are several
//! }
//! ```
//!
//! Written and read by hand, since each call may have one. A report that makes no sense is ignored as a whole: the
//! request that it came with is somebody else's, and must not fail.

use crate::mapping::unit_to_wire;
use crate::reader::{Fields, Value, descriptor_at};
use crate::writer::{BYTES, message, number, text, varint, with_length};
use tidegate_core::{Descriptor, Report, TalliedHits, Tally};

/// The field of a request that has a report.
pub(crate) const FIELD: u32 = 1004;

/// The most tallies in one report. The filter sends up to half as many.
pub const TALLIES_MAX: usize = 64;

/// The most names of limits in one tally. A status has as many limits at most.
const OVER_MAX: usize = 4;

/// Appends a report to an encoded request.
pub fn append_report(report: &Report, bytes: &mut Vec<u8>) {
    varint(u64::from(FIELD) << 3 | u64::from(BYTES), bytes);
    with_length(bytes, |bytes| {
        number(1, report.sequence, bytes);
        number(2, report.number, bytes);
        for tally in &report.tallies {
            message(3, bytes, |bytes| tally_to(tally, bytes));
        }
    });
}

fn tally_to(tally: &Tally, bytes: &mut Vec<u8>) {
    message(1, bytes, |bytes| {
        for entry in &tally.entries {
            message(1, bytes, |bytes| {
                text(1, &entry.key, bytes);
                text(2, &entry.value, bytes);
            });
        }
        if let Some(limit) = tally.limit {
            message(2, bytes, |bytes| {
                number(1, limit.requests.into(), bytes);
                number(2, i32::from(unit_to_wire(Some(limit.unit))) as u64, bytes);
            });
        }
    });
    number(2, tally.hits.allowed, bytes);
    number(3, tally.hits.denied, bytes);
    number(4, tally.hits.denied_elsewhere, bytes);
    for name in &tally.over {
        text(5, name, bytes);
    }
}

/// The report of an encoded request; none if it has none, or one that makes no sense.
#[must_use]
pub fn report_of(request: &[u8]) -> Option<Report> {
    let mut fields = Fields { bytes: request };
    let mut found = None;
    while let Some(field) = fields.next()? {
        if let (FIELD, Value::Bytes(bytes)) = field {
            // Only the last one counts.
            found = Some(bytes);
        }
    }
    report_from(found?)
}

/// Reads the content of the field.
pub(crate) fn report_from(bytes: &[u8]) -> Option<Report> {
    let mut fields = Fields { bytes };
    let mut report = Report { sequence: 0, number: 0, tallies: Vec::new() };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Number(sequence)) => report.sequence = sequence,
            (2, Value::Number(number)) => report.number = number,
            (3, Value::Bytes(_)) if report.tallies.len() == TALLIES_MAX => return None,
            (3, Value::Bytes(bytes)) => report.tallies.push(tally_from(bytes)?),
            (1..=3, _) => return None,
            _ => {}
        }
    }
    Some(report)
}

fn tally_from(bytes: &[u8]) -> Option<Tally> {
    let mut fields = Fields { bytes };
    let mut descriptor = None;
    let mut hits = TalliedHits::default();
    let mut over = Vec::new();
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => {
                let mut read = Descriptor::new(Vec::new());
                if descriptor_at(0, bytes, &mut read)?.is_some() {
                    return None;
                }
                descriptor = Some(read);
            }
            (2, Value::Number(number)) => hits.allowed = number,
            (3, Value::Number(number)) => hits.denied = number,
            (4, Value::Number(number)) => hits.denied_elsewhere = number,
            (5, Value::Bytes(_)) if over.len() == OVER_MAX => return None,
            (5, Value::Bytes(name)) => over.push(std::str::from_utf8(name).ok()?.to_owned()),
            (1..=5, _) => return None,
            _ => {}
        }
    }
    let Descriptor { entries, limit, .. } = descriptor?;
    Some(Tally { entries, limit, hits, over })
}
