//! Reads requests into reused buffers, so that the steady state allocates nothing.
//!
//! Reads the forms that clients send. Anything unusual (groups, wrong wire types, malformed bytes) is left to
//! prost, which names the mistake. So this reader must agree with prost on everything it reads.

use crate::error::{DESCRIPTORS_MAX, ENTRIES_MAX, WireError};
use crate::mapping::{request_from_wire, unit_from_wire};
use crate::report::{self, report_of};
use crate::rls;
use prost::Message;
use tidegate_core::{Descriptor, Direction, Entry, Hits, LimitOverride, Report, Request};

/// Buffers of longer messages are freed, at the latest before the next read. They take up to some 16 times
/// the length, with the shortest entries. Envoy's own requests are below 1 KiB.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// Longer messages are not left to prost, which allocates a hundred times their length for empty descriptors
/// and entries before they can be counted. Real mistakes are short, and groups are obsolete.
const ODD_BYTES_MAX: usize = 64 * 1024;

/// Reads requests, one after the other. Keeps the buffers of the last one, so use one reader per thread
/// rather than per connection.
#[derive(Debug, Default)]
pub struct RequestReader {
    request: Option<Request>,
    /// The length of the last message.
    len: usize,
    /// Whether the last message has a report.
    has_report: bool,
}

impl RequestReader {
    /// A reader without buffers.
    #[must_use]
    pub const fn new() -> Self {
        RequestReader { request: None, len: 0, has_report: false }
    }

    /// Frees the buffers of a long message. Call it when the request is no longer needed.
    #[inline]
    pub fn release(&mut self) {
        if self.len > KEPT_BYTES_MAX {
            self.request = None;
            self.len = 0;
        }
    }

    /// Reads a request from its bytes.
    ///
    /// # Errors
    /// As [`decode_request`].
    pub fn read(&mut self, bytes: &[u8]) -> Result<&Request, WireError> {
        self.release();
        self.len = bytes.len();
        self.has_report = false;
        let request = self.request.get_or_insert_with(nothing);
        read_into(bytes, request, &mut self.has_report)?;
        Ok(request)
    }

    /// Reads a request and the report that came with it.
    ///
    /// # Errors
    /// As [`decode_request`].
    pub fn read_with_report(
        &mut self,
        bytes: &[u8],
    ) -> Result<(&Request, Option<Report>), WireError> {
        self.read(bytes)?;
        let report = if self.has_report { report_of(bytes) } else { None };
        Ok((self.request.get_or_insert_with(nothing), report))
    }
}

/// Reads a request from its bytes.
///
/// # Errors
/// When the bytes are not a `RateLimitRequest`. When the domain is missing, when there are no descriptors or
/// too many, when one has no entries or too many, or when a limit has an unknown unit.
pub fn decode_request(bytes: &[u8]) -> Result<Request, WireError> {
    let mut request = nothing();
    read_into(bytes, &mut request, &mut false)?;
    Ok(request)
}

fn nothing() -> Request {
    Request { domain: String::new(), descriptors: Vec::new(), hits: Hits::ONE }
}

fn read_into(bytes: &[u8], request: &mut Request, has_report: &mut bool) -> Result<(), WireError> {
    match request_at(bytes, request, has_report) {
        Some(read) => read,
        None if bytes.len() > ODD_BYTES_MAX => {
            // The partly read request is invalid.
            *request = nothing();
            Err(WireError::OddRequest(bytes.len()))
        }
        None => {
            let message = rls::RateLimitRequest::decode(bytes);
            *request = request_from_wire(message.map_err(WireError::MalformedRequest)?)?;
            Ok(())
        }
    }
}

/// None leaves the message to prost.
fn request_at(
    bytes: &[u8],
    request: &mut Request,
    has_report: &mut bool,
) -> Option<Result<(), WireError>> {
    let mut fields = Fields { bytes };
    let (mut descriptors, mut hits) = (0_usize, 0);
    let mut wrong = None;
    request.domain.clear();
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(domain)) => set(&mut request.domain, domain)?,
            (2, Value::Bytes(bytes)) => {
                // The rest cannot change the outcome, and may be millions of empty descriptors.
                if descriptors == DESCRIPTORS_MAX {
                    return Some(Err(WireError::TooManyDescriptors));
                }
                let new = || Descriptor::new(vec![]);
                let descriptor = place_of(&mut request.descriptors, descriptors, new);
                let error = descriptor_at(descriptors, bytes, descriptor)?;
                let is_endless = matches!(error, Some(WireError::TooManyEntries { .. }));
                wrong = wrong.or(error);
                if is_endless {
                    return wrong.map(Err);
                }
                descriptors += 1;
            }
            (3, Value::Number(number)) => hits = number as u32,
            (1..=3, _) => return None,
            (report::FIELD, _) => *has_report = true,
            _ => {}
        }
    }
    request.descriptors.truncate(descriptors);
    request.hits = Hits::new(u64::from(hits.max(1)));
    let wrong = match descriptors {
        _ if request.domain.is_empty() => Some(WireError::EmptyDomain),
        0 => Some(WireError::NoDescriptors),
        _ => wrong,
    };
    Some(wrong.map_or(Ok(()), Err))
}

/// The error of a descriptor, if it has one.
pub(crate) fn descriptor_at(
    index: usize,
    bytes: &[u8],
    descriptor: &mut Descriptor,
) -> Option<Option<WireError>> {
    let mut fields = Fields { bytes };
    let (mut entries, mut kept) = (0_usize, 0);
    let mut empty_key = None;
    let mut limit: Option<(u32, i32)> = None;
    descriptor.hits = None;
    descriptor.direction = Direction::Take;
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => {
                if entries == ENTRIES_MAX {
                    return Some(Some(WireError::TooManyEntries { descriptor: index }));
                }
                let new = || Entry { key: String::new(), value: String::new() };
                let entry = place_of(&mut descriptor.entries, kept, new);
                entry_at(bytes, entry)?;
                if empty_key.is_none() && entry.key.is_empty() {
                    empty_key = Some(entries);
                }
                entries += 1;
                // A refused descriptor need not be kept.
                kept += usize::from(empty_key.is_none());
            }
            (2, Value::Bytes(bytes)) => {
                let (requests, unit) = limit.get_or_insert_default();
                limit_at(bytes, requests, unit)?;
            }
            (3, Value::Bytes(bytes)) => {
                let mut hits = descriptor.hits.map_or(0, Hits::get);
                hits_at(bytes, &mut hits)?;
                descriptor.hits = Some(Hits::new(hits));
            }
            (4, Value::Number(is_negative)) => {
                let negative = is_negative != 0;
                descriptor.direction = if negative { Direction::Refund } else { Direction::Take };
            }
            (1..=4, _) => return None,
            _ => {}
        }
    }
    descriptor.entries.truncate(kept);
    let unit = limit.map(|(requests, unit)| (requests, unit, unit_from_wire(unit)));
    descriptor.limit =
        unit.and_then(|(requests, _, unit)| Some(LimitOverride { requests, unit: unit? }));
    Some(match (empty_key, entries, unit) {
        (Some(entry), ..) => Some(WireError::EmptyKey { descriptor: index, entry }),
        (None, 0, _) => Some(WireError::NoEntries(index)),
        (_, _, Some((_, unit, None))) => Some(WireError::UnknownUnit { descriptor: index, unit }),
        _ => None,
    })
}

fn entry_at(bytes: &[u8], entry: &mut Entry) -> Option<()> {
    let mut fields = Fields { bytes };
    entry.key.clear();
    entry.value.clear();
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(key)) => set(&mut entry.key, key)?,
            (2, Value::Bytes(value)) => set(&mut entry.value, value)?,
            (1..=2, _) => return None,
            _ => {}
        }
    }
    Some(())
}

fn limit_at(bytes: &[u8], requests: &mut u32, unit: &mut i32) -> Option<()> {
    let mut fields = Fields { bytes };
    while let Some(field) = fields.next()? {
        match field {
            // Protobuf drops the upper bits of numbers that are too long.
            (1, Value::Number(number)) => *requests = number as u32,
            (2, Value::Number(number)) => *unit = number as i32,
            (1..=2, _) => return None,
            _ => {}
        }
    }
    Some(())
}

fn hits_at(bytes: &[u8], hits: &mut u64) -> Option<()> {
    let mut fields = Fields { bytes };
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Number(number)) => *hits = number,
            (1, _) => return None,
            _ => {}
        }
    }
    Some(())
}

fn set(text: &mut String, bytes: &[u8]) -> Option<()> {
    let read = std::str::from_utf8(bytes).ok()?;
    text.clear();
    text.push_str(read);
    Some(())
}

/// The element with this number, which exists or is the next one.
fn place_of<T>(places: &mut Vec<T>, number: usize, new: impl FnOnce() -> T) -> &mut T {
    if number >= places.len() {
        return places.push_mut(new());
    }
    &mut places[number]
}

/// The remaining fields of a message.
pub(crate) struct Fields<'a> {
    pub(crate) bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed-length value, which no field of these messages has.
    Fixed,
}

impl<'a> Fields<'a> {
    /// The next field. `Some(None)` at the end; None leaves the message to prost.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Option<(u32, Value<'a>)>> {
        if self.bytes.is_empty() {
            return Some(None);
        }
        let key = u32::try_from(self.varint()?).ok()?;
        let tag = key >> 3;
        if tag == 0 {
            return None;
        }
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some(Some((tag, value)))
    }

    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    /// A number of up to 64 bits, in at most ten bytes of seven bits.
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let (&first, rest) = self.bytes.split_first()?;
        if first < 0x80 {
            self.bytes = rest;
            return Some(first.into());
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (place, byte) in self.bytes.iter().enumerate().take(10) {
            if place == 9 && *byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.bytes = &self.bytes[place + 1..];
                return Some(number);
            }
        }
        None
    }
}
