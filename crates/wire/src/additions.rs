//! The parts of an answer that are not about the decision, read by hand: few answers have any, and code of prost for
//! them would be a good part of the filter's size.

use crate::reader::{Fields, Value};
use crate::rls::HeaderValue;

/// The parts of an answer that are not about the decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Additions {
    /// For the response, of whichever verdict.
    pub response_headers: Vec<HeaderValue>,
    /// For the request that passes.
    pub request_headers: Vec<HeaderValue>,
    /// The body of a denial.
    pub body: Vec<u8>,
    /// A serialized `google.protobuf.Struct`.
    pub metadata: Vec<u8>,
}

impl Additions {
    /// Those of a serialized answer; none if it has none, or makes no sense.
    #[must_use]
    pub fn of_answer(bytes: &[u8]) -> Option<Box<Additions>> {
        let mut fields = Fields { bytes };
        let mut found: Option<Box<Additions>> = None;
        while let Some((tag, value)) = fields.next()? {
            if let (3..=6, Value::Bytes(bytes)) = (tag, value) {
                found.get_or_insert_default().add(tag, bytes)?;
            }
        }
        found
    }

    #[cold]
    fn add(&mut self, tag: u32, bytes: &[u8]) -> Option<()> {
        match tag {
            3 => self.response_headers.push(header(bytes)?),
            4 => self.request_headers.push(header(bytes)?),
            5 => self.body = bytes.to_vec(),
            // Several are one message in pieces.
            _ => self.metadata.extend_from_slice(bytes),
        }
        Some(())
    }
}

fn header(bytes: &[u8]) -> Option<HeaderValue> {
    let mut fields = Fields { bytes };
    let mut header = HeaderValue::default();
    while let Some((tag, value)) = fields.next()? {
        let text = match tag {
            1 => &mut header.key,
            2 => &mut header.value,
            _ => continue,
        };
        let Value::Bytes(bytes) = value else { return None };
        *text = std::str::from_utf8(bytes).ok()?.to_owned();
    }
    Some(header)
}
