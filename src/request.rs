//! Extracts the descriptors of a request by the configured actions.
//!
//! Header values are arbitrary bytes of any length that Envoy lets through. On the wire a value is
//! UTF-8, so other bytes become U+FFFD: no panic, and clients that differ only in such bytes share
//! a counter. A long value is shortened: otherwise a client could make a call too large to be
//! answered, and `failure_mode` would decide instead of its limits.
//!
//! This runs for every request. So constant entries are precompiled bytes, a fact is read when the
//! first action needs it, and values go straight into the buffer. Refuses to know leases or the
//! sidecar.

mod claims;
pub mod descriptors;
mod fact_reader;
mod formats;
mod limits;
#[cfg(feature = "cel")]
mod metadata;
#[cfg(test)]
mod tests;
mod virtual_hosts;
#[cfg(feature = "cel")]
pub(crate) mod when;

use crate::config::{
    Action, Claim, Command, Condition, Config, Encoded, Enforcement, Fact, Formatted, HITS_MAX,
    HitsAddend, WhenAbsent,
};
use crate::host::RequestFacts;
use crate::matching::address::Network;
use crate::matching::text::TextMatcher;
use crate::request::descriptors::Descriptors;
use fact_reader::FactReader;
use formats::{append_format, cost_of};
use std::io::Write;
use tidegate_core::fingerprint;

/// Extracts the descriptors of a request, enforced and in shadow: one per entry of `rate_limits`
/// whose actions all apply. `seed` is the seed of their keys.
pub fn extract(
    config: &Config,
    facts: &impl RequestFacts,
    seed: u64,
    enforced: &mut Descriptors,
    shadowed: &mut Descriptors,
) {
    enforced.clear();
    shadowed.clear();
    let mut reader = FactReader::new(config, facts, enforced.take_buffer());
    let mut list = config.rate_limits.as_slice();
    loop {
        for rate_limit in list {
            if !rate_limit.conditions.iter().all(|condition| holds(condition, &mut reader)) {
                continue;
            }
            #[cfg(feature = "cel")]
            if let Some(when) = &rate_limit.when
                && !when::applies(when, &mut reader)
            {
                continue;
            }
            let descriptors = match rate_limit.enforcement {
                Enforcement::Enforced => &mut *enforced,
                Enforcement::Shadow => &mut *shadowed,
            };
            let mut actions = rate_limit.actions.iter();
            match actions.try_for_each(|action| entry(action, &mut reader, descriptors)) {
                Some(()) => descriptors.finish(seed, hits(&rate_limit.hits, &mut reader)),
                None => descriptors.discard_partial(),
            }
        }
        let Some(blocks) = &config.virtual_hosts else { break };
        match virtual_hosts::next_list(blocks, &mut reader) {
            Some(next) => list = next,
            None => {
                virtual_hosts::finish(blocks, &mut reader, seed, enforced, shadowed);
                break;
            }
        }
    }
    enforced.put_buffer(reader.into_buffer());
}

fn holds<F: RequestFacts>(condition: &Condition, reader: &mut FactReader<'_, F>) -> bool {
    let Some(value) = reader.value(&condition.fact) else { return false };
    condition.one_of.iter().any(|text| text.as_bytes() == value)
        || condition.matchers.iter().any(|matcher| matches(matcher, &condition.fact, reader))
}

/// Whether a value is there and matches.
#[cold]
fn matches<F: RequestFacts>(
    matcher: &TextMatcher,
    fact: &Fact,
    reader: &mut FactReader<'_, F>,
) -> bool {
    reader.value(fact).is_some_and(|value| matcher.matches(value))
}

/// Appends the entry of an action, if it has one; none if the descriptor is dropped.
fn entry<F: RequestFacts>(
    action: &Action,
    reader: &mut FactReader<'_, F>,
    descriptors: &mut Descriptors,
) -> Option<()> {
    match action {
        Action::Origin(number) => descriptors.come_from(*number),
        Action::Constant(entry) => descriptors.append(&entry.0),
        Action::Value { key, fact, when_absent } => {
            match reader.shortened(fact, VALUE_BYTES_MAX, shortened) {
                Some(value) => {
                    descriptors.append(&key.0);
                    descriptors.value(|bytes| append_text(bytes, value));
                }
                None => match when_absent {
                    WhenAbsent::DropDescriptor => return None,
                    WhenAbsent::SkipEntry => {}
                    WhenAbsent::Entry(entry) => descriptors.append(&entry.0),
                },
            }
        }
        Action::Address { key } => shown_entry(descriptors, key, &reader.address()?),
        Action::Network { key, v4_prefix_mask_len, v6_prefix_mask_len } => {
            let address = reader.address()?;
            let bits = if address.is_ipv4() { v4_prefix_mask_len } else { v6_prefix_mask_len };
            shown_entry(descriptors, key, &Network::new(address, *bits));
        }
        Action::AddressMatch { entry, matcher } => {
            matcher.matches(reader.address()?).then(|| descriptors.append(&entry.0))?;
        }
        Action::ValueMatch { entry, matchers, sense } => {
            let matched =
                matchers.iter().all(|(fact, matcher)| matcher.matches(reader.value(fact)));
            sense.of(matched).then(|| descriptors.append(&entry.0))?;
        }
        Action::Formatted(formatted) => return formatted_entry(formatted, reader, descriptors),
        Action::Claim(claim) => return claim_entry(claim, reader, descriptors),
        Action::Limit(source) => limits::append_override(source, reader, descriptors),
    }
    Some(())
}

/// Appends an entry with a format as its value.
#[cold]
#[inline(never)]
fn formatted_entry<F: RequestFacts>(
    formatted: &Formatted,
    reader: &mut FactReader<'_, F>,
    descriptors: &mut Descriptors,
) -> Option<()> {
    let start = descriptors.bytes();
    descriptors.append(&formatted.key.0);
    let mut has_value = false;
    descriptors.value(|bytes| has_value = append_format(&formatted.format, reader, bytes));
    if !has_value {
        descriptors.truncate(start);
        descriptors.append(&formatted.default.as_ref()?.0);
    }
    Some(())
}

/// Appends an entry with a claim as its value.
#[cold]
#[inline(never)]
fn claim_entry<F: RequestFacts>(
    claim: &Claim,
    reader: &mut FactReader<'_, F>,
    descriptors: &mut Descriptors,
) -> Option<()> {
    match (claims::claim_of(claim, reader), &claim.when_absent) {
        (Some(mut value), _) => {
            if value.len() > VALUE_BYTES_MAX {
                value = shortened(&value);
            }
            descriptors.append(&claim.key.0);
            descriptors.value(|bytes| append_text(bytes, &value));
        }
        (None, WhenAbsent::DropDescriptor) => return None,
        (None, WhenAbsent::SkipEntry) => {}
        (None, WhenAbsent::Entry(entry)) => descriptors.append(&entry.0),
    }
    Some(())
}

/// The longest value that goes into a descriptor unshortened. Keys and tokens in rules are far
/// shorter.
const VALUE_BYTES_MAX: usize = 1024;
/// The readable part of a shortened value.
const VALUE_BYTES_KEPT: usize = 64;

/// A long value as its beginning, `~`, and the hash of the whole.
fn shortened(value: &[u8]) -> Vec<u8> {
    let mut bytes = value.get(..VALUE_BYTES_KEPT).unwrap_or_default().to_vec();
    // Writing to a vector cannot fail.
    let _ = write!(bytes, "~{:032x}", fingerprint(value));
    bytes
}

fn append_text(bytes: &mut Vec<u8>, value: &[u8]) {
    // The usual case; chunk by chunk takes several times as long.
    if std::str::from_utf8(value).is_ok() {
        return bytes.extend_from_slice(value);
    }
    for chunk in value.utf8_chunks() {
        bytes.extend_from_slice(chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            bytes.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn shown_entry(descriptors: &mut Descriptors, key: &Encoded, value: &impl std::fmt::Display) {
    descriptors.append(&key.0);
    descriptors.value(|bytes| {
        let _ = write!(bytes, "{value}");
    });
}

/// The cost of a request. A header that is not a number costs 1, where Envoy's own filter drops the
/// descriptor: a client that can write the header must not be able to evade all limits.
fn hits<F: RequestFacts>(addend: &HitsAddend, reader: &mut FactReader<'_, F>) -> u64 {
    match addend {
        HitsAddend::Number(number) => *number,
        HitsAddend::Header(fact) => reader.value(fact).and_then(cost).unwrap_or(1),
        HitsAddend::Command(command) => cost_of(command, reader).unwrap_or(1),
    }
}

/// The cost of a stream, read from what Envoy knows of it now.
pub(crate) fn cost_now(
    config: &Config,
    command: &Command,
    facts: &impl RequestFacts,
) -> Option<u64> {
    cost_of(command, &mut FactReader::new(config, facts, Box::default()))
}

/// Longer than any number; each entry of `rate_limits` would read the whole value.
const COST_BYTES_MAX: usize = 128;

/// A number such as `3`, `2.5` or `1e3`, rounded up, and at most [`HITS_MAX`].
fn cost(value: &[u8]) -> Option<u64> {
    if value.len() > COST_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    // As Envoy does.
    let text = text.strip_prefix('+').unwrap_or(text);
    // `parse` also accepts `-1`, `inf` and `nan`.
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let number = text.parse::<f64>().ok()?;
    // The cast saturates.
    Some((number.ceil() as u64).min(HITS_MAX))
}
