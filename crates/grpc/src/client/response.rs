//! A response and its meaning (gRPC over HTTP/2, "Responses").

use crate::frame::{self, Head};
use crate::hpack::{Decoder, Field, Listed, Undecodable, Validity};
use crate::message::{self, Cut};
use crate::outgoing::release;
use crate::{Code, client::Ended};

/// The effect of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Going,
    /// Preliminary headers (1xx).
    Informed,
    Ended,
    Malformed,
}

/// Why a valid HTTP/2 response is not valid gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    TooLarge,
    SecondMessage,
    Compressed,
}

/// A response. Reused by later calls.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// The HTTP status; 0 before the headers.
    http_status: u16,
    grpc_status: Option<u32>,
    grpc_message: Vec<u8>,
    /// The message and its prefix, as far as they have arrived.
    message: Vec<u8>,
    fault: Option<Fault>,
}

/// The fields of one header block.
#[derive(Debug, Default)]
struct Block {
    http_status: Option<u16>,
    grpc_status: Option<u32>,
    is_malformed: bool,
    has_regular: bool,
}

impl Response {
    /// Clears it for the next call.
    pub(super) fn renew(&mut self) {
        self.http_status = 0;
        self.grpc_status = None;
        release(&mut self.grpc_message);
        release(&mut self.message);
        self.fault = None;
    }

    pub(super) fn capacity_bytes(&self) -> usize {
        self.grpc_message.capacity() + self.message.capacity()
    }

    pub(super) fn buffered_bytes(&self) -> usize {
        self.message.len()
    }

    /// Takes headers or trailers.
    pub(super) fn block(
        &mut self,
        head: Head,
        bytes: &[u8],
        decoder: &mut Decoder,
        size_max: usize,
    ) -> Result<Progress, Undecodable> {
        let mut block = Block::default();
        let message = &mut self.grpc_message;
        let listed = decoder.decode(bytes, size_max, |field| block.take(field, message))?;
        block.is_malformed |= listed == Listed::TooLarge;
        let has_ended = head.has(frame::END_STREAM);
        let is_first = self.http_status == 0;
        if block.is_malformed || is_first != block.http_status.is_some() {
            return Ok(Progress::Malformed);
        }
        if block.http_status.is_some_and(|status| status < 200) {
            return Ok(if has_ended { Progress::Malformed } else { Progress::Informed });
        }
        if let Some(status) = block.http_status {
            self.http_status = status;
        }
        self.grpc_status = block.grpc_status.or(self.grpc_status);
        Ok(match (has_ended, is_first) {
            (true, _) => Progress::Ended,
            (false, true) => Progress::Going,
            (false, false) => Progress::Malformed,
        })
    }

    /// Takes a part of the body.
    pub(super) fn data(&mut self, head: Head, mut data: &[u8], bytes_max: usize) -> Progress {
        if self.http_status == 0 {
            return Progress::Malformed;
        }
        // The body of an HTTP error is text for people.
        if self.http_status == 200 && self.fault.is_none() {
            message::fill(&mut self.message, &mut data, bytes_max);
            self.fault = match message::cut(&self.message, bytes_max) {
                Cut::TooLarge => Some(Fault::TooLarge),
                Cut::Whole { flag, .. } if flag != 0 => Some(Fault::Compressed),
                _ if !data.is_empty() => Some(Fault::SecondMessage),
                _ => None,
            };
        }
        if head.has(frame::END_STREAM) { Progress::Ended } else { Progress::Going }
    }

    /// The meaning of a whole response.
    pub(super) fn ended(&self) -> Ended<'_> {
        if self.http_status != 200 {
            return Ended::Http(self.http_status);
        }
        let refused = |code: Code, message: &'static str| Ended::Refused {
            code: code as u32,
            message: message.as_bytes(),
        };
        match (self.grpc_status, self.fault) {
            (None, _) => refused(Code::Unknown, "the response has no grpc-status"),
            (Some(0), Some(Fault::TooLarge)) => {
                refused(Code::ResourceExhausted, "the answer is too large")
            }
            (Some(0), Some(Fault::SecondMessage)) => {
                refused(Code::Internal, "the answer has more than one message")
            }
            (Some(0), Some(Fault::Compressed)) => {
                refused(Code::Internal, "the answer is compressed")
            }
            (Some(0), None) => match message::cut(&self.message, usize::MAX) {
                Cut::Whole { message, .. } => Ended::Answer(message),
                _ => refused(Code::Internal, "the answer has no whole message"),
            },
            (Some(code), _) => Ended::Refused { code, message: &self.grpc_message },
        }
    }

    /// The meaning of a response that a reset cut off.
    pub(super) fn reset(&self, code: u32) -> Ended<'_> {
        match self.http_status {
            0 | 200 => Ended::Reset(code),
            status => Ended::Http(status),
        }
    }
}

impl Block {
    fn take(&mut self, field: Field<'_>, grpc_message: &mut Vec<u8>) {
        let is_pseudo = field.name.first() == Some(&b':');
        self.is_malformed |= field.validity == Validity::Invalid
            || (is_pseudo && (self.has_regular || field.name != b":status"))
            || (is_pseudo && self.http_status.is_some());
        self.has_regular |= !is_pseudo;
        if self.is_malformed {
            return;
        }
        match field.name {
            b":status" => {
                self.http_status = number(field.value).and_then(|status| status.try_into().ok());
                self.is_malformed =
                    !self.http_status.is_some_and(|status| (100..1000).contains(&status));
            }
            b"grpc-status" => {
                // A status that is not a number means UNKNOWN.
                self.grpc_status = number(field.value).or(Some(Code::Unknown as u32));
            }
            b"grpc-message" => {
                grpc_message.clear();
                grpc_message.extend_from_slice(field.value);
            }
            _ => {}
        }
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    let is_plain = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}
