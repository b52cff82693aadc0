//! What was read of the request at hand: each fact when it is first needed, and at most once.

use super::RequestFacts;
use crate::config::{Fact, PROPERTY_PARTS_MAX, Source};
use crate::matching::address::ip_of;
use std::net::IpAddr;

/// The facts that are known, by their numbers. Empty between requests: their values may be secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scratch {
    slots: Vec<Slot>,
    /// The values, one after the other.
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Slot {
    #[default]
    NotRead,
    Absent,
    /// The value is in these bytes.
    Read {
        start: usize,
        end: usize,
    },
    Address(IpAddr),
}

/// Memory for values that is kept from request to request.
const KEPT_BYTES_MAX: usize = 16_384;

/// The reading of one request.
pub(super) struct Reading<'a, F> {
    facts: &'a F,
    scratch: Box<Scratch>,
}

impl<'a, F: RequestFacts> Reading<'a, F> {
    pub(super) fn new(facts: &'a F, scratch: Box<Scratch>) -> Self {
        Reading { facts, scratch }
    }

    pub(super) fn into_scratch(mut self) -> Box<Scratch> {
        self.scratch.slots.clear();
        self.scratch.bytes.clear();
        self.scratch.bytes.shrink_to(KEPT_BYTES_MAX);
        self.scratch
    }

    /// The value of a fact; of an address, use [`Reading::address`].
    pub(super) fn value(&mut self, fact: &Fact) -> Option<&[u8]> {
        if let Slot::NotRead = self.slot(fact.number) {
            let bytes = &mut self.scratch.bytes;
            let start = bytes.len();
            let copy = |value: &[u8]| {
                bytes.extend_from_slice(value);
                Slot::Read { start, end: bytes.len() }
            };
            let slot = read(self.facts, &fact.source, copy).unwrap_or(Slot::Absent);
            self.set(fact.number, slot);
        }
        match self.slot(fact.number) {
            Slot::Read { start, end } => self.scratch.bytes.get(start..end),
            Slot::NotRead | Slot::Absent | Slot::Address(_) => None,
        }
    }

    /// The value of a fact that is an address, without its port.
    pub(super) fn address(&mut self, fact: &Fact) -> Option<IpAddr> {
        if let Slot::NotRead = self.slot(fact.number) {
            let address = read(self.facts, &fact.source, ip_of).flatten();
            self.set(fact.number, address.map_or(Slot::Absent, Slot::Address));
        }
        match self.slot(fact.number) {
            Slot::Address(address) => Some(address),
            Slot::NotRead | Slot::Absent | Slot::Read { .. } => None,
        }
    }

    fn slot(&self, number: usize) -> Slot {
        self.scratch.slots.get(number).copied().unwrap_or_default()
    }

    fn set(&mut self, number: usize, slot: Slot) {
        let slots = &mut self.scratch.slots;
        if slots.len() <= number {
            slots.resize(number.saturating_add(1), Slot::NotRead);
        }
        if let Some(place) = slots.get_mut(number) {
            *place = slot;
        }
    }
}

fn read<T>(facts: &impl RequestFacts, source: &Source, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    match source {
        Source::Header(name) => facts.header(name, read),
        Source::Property(path) => property(facts, path, read),
        // Whatever is there makes an entry, lossily if need be: what a client can have put there must not
        // drop the descriptor. Envoy takes an empty text for none.
        Source::Text(path) => {
            property(facts, path, |value| (!value.is_empty()).then(|| read(value))).flatten()
        }
    }
}

fn property<T>(
    facts: &impl RequestFacts,
    path: &[String],
    read: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    let mut parts = [""; PROPERTY_PARTS_MAX];
    for (part, name) in parts.iter_mut().zip(path) {
        *part = name;
    }
    facts.property(parts.get(..path.len())?, read)
}
