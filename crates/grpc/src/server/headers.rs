//! New streams, and trailers of open ones.

use crate::broken::{Broken, ErrorCode};
use crate::frame::{self, Head};
use crate::hpack::{Undecodable, Validity};
use crate::{Code, Status};

use super::reply::{self, Advice, Ending};
use super::request::{Fault, Request, read_trailers};
use super::stream::{Fate, Stream};
use super::{Connection, Phase};

/// Longer blocks are not kept: they contain more than references.
const RECENT_BYTES_MAX: usize = 64;

/// Larger requests are not kept either: a short block may refer to large table entries.
const RECENT_REQUEST_BYTES_MAX: usize = 2 * 1024;

/// The last block that left the decoder's table unchanged. Clients that index their fields send the same
/// bytes for each call; they mean the same until the table changes.
#[derive(Debug, Default)]
pub(super) struct Recent {
    block: Vec<u8>,
    changes: u64,
    request: Request,
}

impl Recent {
    /// The memory that it has.
    #[inline]
    pub(super) fn capacity_bytes(&self) -> usize {
        self.block.capacity() + self.request.capacity_bytes()
    }
}

impl Connection {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.kind == frame::HEADERS && head.stream.is_multiple_of(2) {
            return Err(Broken::protocol("a client's stream has an even number"));
        }
        match self.link.take_block(head, payload, self.shared.now)? {
            Some((begun, block)) => self.block(begun, &block),
            None => Ok(()),
        }
    }

    /// A whole block. `head` is the frame that began it.
    fn block(&mut self, head: Head, block: &[u8]) -> Result<(), Broken> {
        if head.stream > self.last_stream {
            return self.begin(head, block);
        }
        let validity =
            read_trailers(&mut self.link.decoder, block, self.shared.limits.header_bytes_max)
                .map_err(undecodable)?;
        let Some(stream) = self.streams.get(head.stream) else {
            if head.stream > self.closed_early_max && head.stream < self.last_stream {
                return Err(Broken::protocol("a stream's number is lower than the one before"));
            }
            return self.frame_on_closed(head.stream);
        };
        let fate = if validity == Validity::Invalid || !head.has(frame::END_STREAM) {
            Fate::Failed(ErrorCode::Protocol)
        } else {
            stream.take_end(&mut self.link)
        };
        if let Fate::Failed(_) = fate {
            self.link.spend_budget()?;
        }
        self.settle(head.stream, fate);
        Ok(())
    }

    /// Begins a stream.
    fn begin(&mut self, head: Head, block: &[u8]) -> Result<(), Broken> {
        self.last_stream = head.stream;
        let mut stream = self.streams.spare(Stream::new);
        self.read(&mut stream.request, block)?;
        let has_ended = head.has(frame::END_STREAM);
        let refused = if let Phase::Closed(last) = self.phase {
            // The GOAWAY named the last stream, which must stay true.
            self.last_stream = last;
            self.closed_early_max = head.stream;
            self.link.spend_budget()
        } else if self.taken_streams() >= self.shared.limits.streams_max as usize {
            self.refuse(head.stream, ErrorCode::RefusedStream)
        } else if let Some(fault) = stream.request.fault {
            self.refuse_fault(head.stream, fault, has_ended)
        } else if !self.shared.has_room_for_headers(stream.request.capacity_bytes()) {
            self.refuse(head.stream, ErrorCode::RefusedStream)
        } else if has_ended {
            match stream.request.content_length {
                None | Some(0) => self.refuse_empty(head.stream),
                Some(_) => self.refuse(head.stream, ErrorCode::Protocol),
            }
        } else {
            stream.begin(head.stream, self.link.initial_window, &mut self.shared);
            self.streams.insert(head.stream, stream);
            return Ok(());
        };
        self.streams.keep(stream);
        refused
    }

    /// Decodes a request, or copies the last one if the block is the same.
    #[inline]
    fn read(&mut self, request: &mut Request, block: &[u8]) -> Result<(), Broken> {
        let decoder = &mut self.link.decoder;
        let recent = &mut self.recent;
        let changes = decoder.changes();
        if recent.changes == changes && recent.block == block && !block.is_empty() {
            request.copy_from(&recent.request);
            return Ok(());
        }
        request.read(decoder, block, self.shared.limits.header_bytes_max).map_err(undecodable)?;
        if decoder.changes() == changes
            && block.len() <= RECENT_BYTES_MAX
            && request.capacity_bytes() <= RECENT_REQUEST_BYTES_MAX
        {
            recent.block.clear();
            recent.block.extend_from_slice(block);
            recent.changes = changes;
            recent.request.copy_from(request);
        }
        Ok(())
    }

    /// Resets a stream at a cost to the budget.
    fn refuse(&mut self, stream: u32, code: ErrorCode) -> Result<(), Broken> {
        self.link.reset(stream, code);
        self.closed_early_max = stream;
        self.link.spend_budget()
    }

    fn refuse_fault(&mut self, stream: u32, fault: Fault, has_ended: bool) -> Result<(), Broken> {
        let outgoing = &mut self.link.outgoing;
        match fault {
            Fault::Malformed => return self.refuse(stream, ErrorCode::Protocol),
            Fault::Method => reply::http_status(stream, *b"405", outgoing),
            Fault::ContentType => reply::http_status(stream, *b"415", outgoing),
            Fault::TooLarge => {
                let message = format!(
                    "the header fields are larger than {} bytes",
                    self.shared.limits.header_bytes_max
                );
                let status = Status::new(Code::ResourceExhausted, message);
                reply::status(stream, &status, Ending::TrailersOnly, Advice::None, outgoing);
            }
        }
        if has_ended { self.link.spend_budget() } else { self.refuse(stream, ErrorCode::NoError) }
    }

    fn refuse_empty(&mut self, stream: u32) -> Result<(), Broken> {
        let status = Status::new(Code::Internal, "the call has no message");
        let outgoing = &mut self.link.outgoing;
        reply::status(stream, &status, Ending::TrailersOnly, Advice::None, outgoing);
        self.link.spend_budget()
    }
}

fn undecodable(_: Undecodable) -> Broken {
    Broken::new(ErrorCode::Compression, "a header block cannot be decoded")
}
