//! The documented differences between the filters (docs/reference/filter-differences.md), as far as
//! generated cases have them. Anything else is a defect.

use super::configuration::{COST, Configuration, NUMBER, TAG};
use super::recorder::{Debits, Descriptor};
use super::requests::Request;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tidegate_core::fingerprint;

/// "Long values, and bytes that are not UTF-8": shortened, replaced.
fn value_of_ours(value: &[u8]) -> Vec<u8> {
    if value.len() <= 1024 {
        return String::from_utf8_lossy(value).into_owned().into_bytes();
    }
    let mut short = String::from_utf8_lossy(&value[..64]).into_owned().into_bytes();
    write!(short, "~{:032x}", fingerprint(value)).expect("a vector takes all");
    short
}

/// The descriptors of our filter where Envoy's has these. "A descriptor without entries" is not made.
pub(super) fn all_of_ours(native: &[Descriptor]) -> Vec<Descriptor> {
    let has_entries = |descriptor: &&Descriptor| !descriptor.entries.is_empty();
    native.iter().filter(has_entries).map(of_ours).collect()
}

/// The descriptor of our filter where Envoy's has this one.
pub(super) fn of_ours(native: &Descriptor) -> Descriptor {
    let entry = |(key, value): &(String, Vec<u8>)| {
        let value = value_of_ours(value);
        match key.as_str() {
            "remote_address" | "masked_remote_address" => (key.clone(), without_zone(&value)),
            _ => (key.clone(), value),
        }
    };
    Descriptor { entries: native.entries.iter().map(entry).collect(), ..native.clone() }
}

/// "The zone of an IPv6 address": left out.
fn without_zone(value: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(value);
    let Some((address, rest)) = text.split_once('%') else { return value.to_vec() };
    format!("{address}{}", rest.trim_start_matches(|char: char| char.is_ascii_digit())).into()
}

/// Removes what is owed as documented: by "a refund with `apply_on_stream_done` of a request that was denied", which ours
/// does not make, and by requests with other hits, which may be denied by one filter alone.
pub(super) fn with_same_debits(
    [mut native, mut ours]: [Debits; 2],
    denied: &BTreeSet<Vec<u8>>,
    with_other_hits: &BTreeSet<Vec<u8>>,
) -> [Debits; 2] {
    let is_of = |debit: &Descriptor, numbers: &BTreeSet<Vec<u8>>| {
        let number = debit.entries.get(1).filter(|(key, _)| key == NUMBER);
        number.is_some_and(|(_, number)| numbers.contains(number))
    };
    native.retain(|debit, _| !(debit.is_refund && is_of(debit, denied)));
    for debits in [&mut native, &mut ours] {
        debits.retain(|debit, _| !is_of(debit, with_other_hits));
    }
    [native, ours]
}

/// Whether denials have an effect.
pub(super) fn is_enforced(configuration: &Configuration) -> bool {
    configuration.ours["filter_enforced"]["default_value"]["numerator"] != 0
}

/// "A denial that `filter_enforced` excludes": Envoy marks the response.
pub(super) fn reply_of_ours(native: &str, configuration: &Configuration) -> String {
    if is_enforced(configuration) {
        native.to_owned()
    } else {
        native.replace(" x-envoy-ratelimited: true", "")
    }
}

/// "`x-ratelimit-reset` of a slow response": whether our reply is this one, but for the seconds that have passed.
pub(super) fn is_same_reply(expected: &str, ours: &str, waited: Duration) -> bool {
    match (without_reset(expected), without_reset(ours)) {
        (Some((expected, at_answer)), Some((ours, at_reply))) => {
            let passed = at_answer.checked_sub(at_reply);
            expected == ours && passed.is_some_and(|passed| passed <= waited.as_secs())
        }
        _ => expected == ours,
    }
}

/// What is before and after the seconds of `x-ratelimit-reset`, and these.
fn without_reset(reply: &str) -> Option<([&str; 2], u64)> {
    let (before, rest) = reply.split_once("x-ratelimit-reset: ")?;
    let (seconds, after) = rest.split_once(',')?;
    Some(([before, after], seconds.parse().ok()?))
}

/// "`hits_addend` from a missing value or one that is not a number", "with a fraction, or above the
/// maximum": whether Envoy drops the descriptor of an entry, or rounds its hits down.
fn has_other_hits(request: &Request) -> bool {
    let value = request.headers.iter().find(|(name, _)| *name == COST).map(|(_, value)| value);
    let number = value.and_then(|value| std::str::from_utf8(value).ok()?.parse::<u64>().ok());
    number.is_none_or(|number| number > 1_000_000_000)
}

/// Removes the descriptors whose hits differ as documented.
pub(super) fn without_other_hits(
    descriptors: &[Descriptor],
    entries: &Value,
    request: &Request,
) -> Vec<Descriptor> {
    let is_other = |descriptor: &&Descriptor| {
        let tag = descriptor.entries.first().filter(|(key, _)| key == TAG);
        let index = tag.and_then(|(_, index)| std::str::from_utf8(index).ok()?.parse().ok());
        let entry = index.map(|index: usize| &entries[index]);
        let format = entry.and_then(|entry| entry["hits_addend"]["format"].as_str());
        format.is_some_and(|format| format.contains(COST)) && has_other_hits(request)
    };
    descriptors.iter().filter(|descriptor| !is_other(descriptor)).cloned().collect()
}

#[test]
fn replies_are_the_same_but_for_the_seconds_that_passed() {
    let reply = |limit, reset| {
        format!("200 x-ratelimit-limit: {limit} x-ratelimit-reset: {reset}, 33 bytes")
    };
    let is_same =
        |ours: &str, millis| is_same_reply(&reply(48, 233), ours, Duration::from_millis(millis));
    assert!(is_same(&reply(48, 233), 10) && is_same(&reply(48, 232), 1_000));
    assert!(!is_same(&reply(48, 232), 999) && !is_same(&reply(48, 231), 1_999));
    assert!(!is_same(&reply(48, 234), 60_000) && !is_same(&reply(47, 232), 60_000));
    assert!(!is_same("200, 33 bytes", 60_000));
    assert!(is_same_reply("200, 33 bytes", "200, 33 bytes", Duration::ZERO));
}
