//! The values of the current request: each fact is read when it is first needed, and at most once.

use crate::config::{Config, Fact, PROPERTY_PARTS_MAX, Source};
use crate::host::RequestFacts;
use crate::matching::address::ip_of;
use crate::matching::cookies;
use crate::matching::query::Found;
use crate::request::virtual_hosts::Progress;
#[cfg(feature = "cel")]
use crate::request::when::Cause;
use std::net::IpAddr;
use std::ops::Range;

/// The values read so far, by the number of their fact. Empty between requests: values may be
/// secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct FactBuffer {
    states: Vec<FactState>,
    /// Derived values, by fact and [`Derivation`].
    derived: Vec<[Option<Range<usize>>; 3]>,
    bytes: Vec<u8>,
    /// The client's address, once it was read.
    address: Option<Option<IpAddr>>,
    /// Evaluations of conditions that failed, and the first of them.
    #[cfg(feature = "cel")]
    failures: (u64, Option<Failure>),
    /// The progress with the lists of virtual hosts and routes.
    progress: Progress,
}

/// An evaluation of a condition that failed: the path of its field, and why.
#[cfg(feature = "cel")]
pub(crate) type Failure = (String, Cause);

/// A form of a value, derived at most once per request, since the value may be long.
#[derive(Debug, Clone, Copy)]
enum Derivation {
    Short,
    Path,
    #[cfg(feature = "cel")]
    Text,
}

#[derive(Debug, Clone, Copy, Default)]
enum FactState {
    #[default]
    NotRead,
    Absent,
    /// The position of the value in `bytes`.
    Read {
        start: usize,
        end: usize,
    },
}

/// Memory that is kept from request to request.
const KEPT_BYTES_MAX: usize = 16_384;

pub(super) struct FactReader<'a, F> {
    config: &'a Config,
    facts: &'a F,
    buffer: Box<FactBuffer>,
}

#[cfg(feature = "cel")]
impl FactBuffer {
    pub(crate) fn take_failures(&mut self) -> Option<(u64, Failure)> {
        let (count, first) = std::mem::take(&mut self.failures);
        Some((count, first?))
    }
}

impl<'a, F: RequestFacts> FactReader<'a, F> {
    pub(super) fn new(config: &'a Config, facts: &'a F, buffer: Box<FactBuffer>) -> Self {
        FactReader { config, facts, buffer }
    }

    pub(super) fn into_buffer(mut self) -> Box<FactBuffer> {
        self.buffer.states.clear();
        self.buffer.derived.clear();
        self.buffer.bytes.clear();
        self.buffer.address = None;
        if self.buffer.bytes.capacity() > KEPT_BYTES_MAX {
            self.buffer.bytes.shrink_to(KEPT_BYTES_MAX);
        }
        self.buffer
    }

    pub(super) fn progress(&mut self) -> &mut Progress {
        &mut self.buffer.progress
    }

    /// The value of a fact. Inlined, as is the next, since actions call it for each request.
    #[inline(always)]
    pub(super) fn value(&mut self, fact: &Fact) -> Option<&[u8]> {
        let range = self.range(fact)?;
        self.buffer.bytes.get(range)
    }

    /// The value, or `shorten` of it if it is longer than `max` bytes.
    #[inline(always)]
    pub(super) fn shortened(
        &mut self,
        fact: &Fact,
        max: usize,
        shorten: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Option<&[u8]> {
        let range = self.range(fact)?;
        if range.len() <= max {
            return self.buffer.bytes.get(range);
        }
        self.derived(fact.number, Derivation::Short, |bytes| {
            let short = shorten(bytes.get(range)?);
            Some(appended(bytes, &short))
        })
    }

    /// The value as UTF-8, with U+FFFD for invalid bytes.
    #[cfg(feature = "cel")]
    pub(super) fn text(&mut self, fact: &Fact) -> Option<&[u8]> {
        let range = self.range(fact)?;
        self.derived(fact.number, Derivation::Text, |bytes| {
            let value = bytes.get(range.clone())?;
            // The usual case; the lossy conversion takes ten times as long.
            if std::str::from_utf8(value).is_ok() {
                return Some(range);
            }
            let text = String::from_utf8_lossy(value).into_owned();
            Some(appended(bytes, text.as_bytes()))
        })
    }

    /// The position of the text among the bytes read so far.
    #[cfg(feature = "cel")]
    pub(super) fn text_range(&mut self, fact: &Fact) -> Option<Range<usize>> {
        self.text(fact)?;
        let derived = self.buffer.derived.get(fact.number)?;
        derived.get(Derivation::Text as usize)?.clone()
    }

    /// All bytes read so far.
    #[cfg(feature = "cel")]
    pub(super) fn read_so_far(&self) -> &[u8] {
        &self.buffer.bytes
    }

    /// A condition could not be evaluated.
    #[cfg(feature = "cel")]
    #[cold]
    pub(super) fn note_failure(&mut self, path: &str, cause: Cause) {
        let (count, first) = &mut self.buffer.failures;
        *count = count.saturating_add(1);
        first.get_or_insert_with(|| (path.to_owned(), cause));
    }

    /// The value up to a query, or `shorten` of that.
    pub(super) fn path(
        &mut self,
        fact: &Fact,
        max: usize,
        shorten: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Option<&[u8]> {
        let Range { start, end } = self.range(fact)?;
        self.derived(fact.number, Derivation::Path, |bytes| {
            let value = bytes.get(start..end)?;
            let path = value.get(..memchr::memchr(b'?', value).unwrap_or(value.len()))?;
            if path.len() <= max {
                return Some(start..start.saturating_add(path.len()));
            }
            let short = shorten(path);
            Some(appended(bytes, &short))
        })
    }

    /// A value derived from a fact: by `derive`, unless it was before.
    fn derived(
        &mut self,
        number: usize,
        by: Derivation,
        derive: impl FnOnce(&mut Vec<u8>) -> Option<Range<usize>>,
    ) -> Option<&[u8]> {
        let FactBuffer { derived, bytes, .. } = &mut *self.buffer;
        if derived.len() <= number {
            derived.resize(number.saturating_add(1), Default::default());
        }
        let known = derived.get_mut(number)?.get_mut(by as usize)?;
        if known.is_none() {
            *known = derive(bytes);
        }
        bytes.get(known.clone()?)
    }

    pub(super) fn range(&mut self, fact: &Fact) -> Option<Range<usize>> {
        if let FactState::NotRead = self.slot(fact.number) {
            self.read(fact);
        }
        match self.slot(fact.number) {
            FactState::Read { start, end } => Some(start..end),
            FactState::NotRead | FactState::Absent => None,
        }
    }

    fn read(&mut self, fact: &Fact) {
        if let Source::Parameter(_) | Source::ResponseHeader(_) | Source::Cookie(_) = fact.source {
            return self.read_other(fact);
        }
        let bytes = &mut self.buffer.bytes;
        let copy = |value: &[u8]| {
            let Range { start, end } = appended(bytes, value);
            FactState::Read { start, end }
        };
        let slot = read(self.facts, &fact.source, copy).unwrap_or(FactState::Absent);
        self.set(fact.number, slot);
    }

    #[cold]
    fn read_other(&mut self, fact: &Fact) {
        let bytes = &mut self.buffer.bytes;
        let copy = |value: &[u8]| {
            let Range { start, end } = appended(bytes, value);
            FactState::Read { start, end }
        };
        let read = match &fact.source {
            Source::ResponseHeader(name) => self.facts.response_header(name, copy),
            Source::Cookie(name) => read_cookie(self.facts, name, copy),
            _ => return self.read_parameters(),
        };
        self.set(fact.number, read.unwrap_or(FactState::Absent));
    }

    /// Reads all configured parameters in one pass: a path can have tens of thousands.
    fn read_parameters(&mut self) {
        let parameters = &self.config.parameters;
        parameters.numbers().for_each(|number| self.set(number, FactState::Absent));
        let Some(path) = self.range(&self.config.path) else { return };
        let FactBuffer { states, bytes, .. } = &mut *self.buffer;
        // Decoded values are appended to the values read so far.
        let base = bytes.len();
        let mut decoded = Vec::new();
        let value = bytes.get(path.clone()).unwrap_or_default();
        parameters.find(value, &mut decoded, |number, found| {
            let (from, Range { start, end }) = match found {
                Found::InPath(range) => (path.start, range),
                Found::Decoded(range) => (base, range),
            };
            if let Some(slot @ FactState::Absent) = states.get_mut(number) {
                let (start, end) = (start.saturating_add(from), end.saturating_add(from));
                *slot = FactState::Read { start, end };
            }
        });
        bytes.extend_from_slice(&decoded);
    }

    /// The client's trusted address, without its port.
    #[inline(never)]
    pub(super) fn address(&mut self) -> Option<IpAddr> {
        if self.buffer.address.is_none() {
            let address = self.facts.property(&["source", "address"], ip_of).flatten();
            self.buffer.address = Some(address);
        }
        self.buffer.address.flatten()
    }

    fn slot(&self, number: usize) -> FactState {
        self.buffer.states.get(number).copied().unwrap_or_default()
    }

    fn set(&mut self, number: usize, slot: FactState) {
        let states = &mut self.buffer.states;
        if states.len() <= number {
            states.resize(number.saturating_add(1), FactState::NotRead);
        }
        if let Some(place) = states.get_mut(number) {
            *place = slot;
        }
    }
}

/// Appends bytes and returns their position.
fn appended(bytes: &mut Vec<u8>, more: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(more);
    start..bytes.len()
}

fn read<T>(facts: &impl RequestFacts, source: &Source, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    match source {
        Source::Header(name) => facts.header(name, read),
        // Read by `read_other`.
        Source::Parameter(_) | Source::ResponseHeader(_) | Source::Cookie(_) => None,
        Source::Property(path) => property(facts, path, read),
        // Any value becomes an entry, lossily if necessary: a value from a client must not drop the
        // descriptor. Envoy treats an empty text as absent.
        Source::Text(path) => {
            property(facts, path, |value| (!value.is_empty()).then(|| read(value))).flatten()
        }
    }
}

/// Only a client with several `cookie` headers, or without this cookie, costs a read of all headers.
fn read_cookie<T>(
    facts: &impl RequestFacts,
    name: &str,
    mut copy: impl FnMut(&[u8]) -> T,
) -> Option<T> {
    let mut read = |header: &[u8]| cookies::value_of(header, name.as_bytes()).map(&mut copy);
    let in_first = facts.header("cookie", &mut read)?;
    let mut is_first = true;
    in_first.or_else(|| {
        let unless_first = |header: &[u8]| {
            if std::mem::take(&mut is_first) { None } else { read(header) }
        };
        facts.find_header("cookie", unless_first)
    })
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
