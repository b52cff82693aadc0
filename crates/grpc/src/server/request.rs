//! Parses the header block of a request (RFC 9113, section 8.3; gRPC over HTTP/2).

use crate::Metadata;
use crate::hpack::{Decoder, Field, Listed, Undecodable, Validity};

/// Why a request is refused. The first reason counts, unless `Malformed` follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not a valid HTTP/2 request.
    Malformed,
    /// Header fields beyond the limit.
    TooLarge,
    /// Not POST.
    Method,
    /// Not application/grpc.
    ContentType,
}

/// The encoding of compressed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Encoding {
    #[default]
    Identity,
    Other,
}

/// Bits for the pseudo-headers and fields that may occur only once.
mod once {
    pub(super) const METHOD: u8 = 1;
    pub(super) const SCHEME: u8 = 2;
    pub(super) const PATH: u8 = 4;
    pub(super) const AUTHORITY: u8 = 8;
    pub(super) const CONTENT_LENGTH: u8 = 16;
    pub(super) const REGULAR: u8 = 32;
    pub(super) const NEEDED: u8 = METHOD | SCHEME | PATH;
}

/// The parsed header block of a request. Reused by later requests.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: Vec<u8>,
    pub(crate) metadata: Metadata,
    pub(crate) content_length: Option<u64>,
    pub(crate) encoding: Encoding,
    pub(crate) fault: Option<Fault>,
    seen: u8,
    content_type: ContentType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ContentType {
    Grpc,
    #[default]
    Other,
}

impl Request {
    /// Decodes a header block. A malformed request does not stop the decoding, as later blocks depend on the
    /// decoder's table.
    pub(crate) fn read(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        size_max: usize,
    ) -> Result<(), Undecodable> {
        self.clear();
        match decoder.decode(block, size_max, |field| self.take(field))? {
            Listed::TooLarge => self.fault = Some(Fault::TooLarge),
            Listed::All if self.fault.is_none() => self.fault = self.missing(),
            Listed::All => {}
        }
        Ok(())
    }

    pub(crate) fn copy_from(&mut self, other: &Request) {
        self.path.clone_from(&other.path);
        self.metadata.copy_from(&other.metadata);
        self.content_length = other.content_length;
        self.encoding = other.encoding;
        self.fault = other.fault;
    }

    /// Bytes of memory, by capacity.
    #[inline]
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.path.capacity() + self.metadata.capacity_bytes()
    }

    /// Clears the metadata, which later messages do not need, and frees memory beyond `kept_bytes`.
    #[inline]
    pub(crate) fn drop_metadata(&mut self, kept_bytes: usize) {
        self.metadata.clear();
        if self.metadata.capacity_bytes() > kept_bytes {
            self.metadata = Metadata::default();
        }
        if self.path.capacity() > kept_bytes {
            self.path.shrink_to_fit();
        }
    }

    fn clear(&mut self) {
        self.path.clear();
        self.metadata.clear();
        self.content_length = None;
        self.encoding = Encoding::Identity;
        self.fault = None;
        self.seen = 0;
        self.content_type = ContentType::Other;
    }

    fn missing(&self) -> Option<Fault> {
        if self.seen & once::NEEDED != once::NEEDED || self.path.is_empty() {
            Some(Fault::Malformed)
        } else if self.content_type == ContentType::Other {
            Some(Fault::ContentType)
        } else {
            None
        }
    }

    #[inline]
    fn take(&mut self, field: Field<'_>) {
        if field.validity == Validity::Invalid {
            self.fault = Some(Fault::Malformed);
            return;
        }
        if field.name.first() == Some(&b':') {
            self.pseudo(field);
        } else {
            self.seen |= once::REGULAR;
            self.regular(field);
        }
    }

    fn pseudo(&mut self, field: Field<'_>) {
        let bit = match field.name {
            b":method" => once::METHOD,
            b":scheme" => once::SCHEME,
            b":path" => once::PATH,
            b":authority" => once::AUTHORITY,
            _ => once::REGULAR,
        };
        // Each once, no unknown ones, and none after a regular field.
        if self.seen & (bit | once::REGULAR) != 0 || bit == once::REGULAR {
            self.fault = Some(Fault::Malformed);
            return;
        }
        self.seen |= bit;
        match bit {
            once::PATH => self.path.extend_from_slice(field.value),
            once::METHOD if field.value != b"POST" => {
                self.fault = self.fault.or(Some(Fault::Method));
            }
            _ => {}
        }
    }

    fn regular(&mut self, field: Field<'_>) {
        let is_allowed = match field.name {
            name if is_of_connection(name) => false,
            b"te" => field.value.eq_ignore_ascii_case(b"trailers"),
            b"content-length" => self.take_content_length(field.value),
            b"content-type" => {
                self.content_type = content_type(field.value);
                true
            }
            b"grpc-encoding" => {
                self.encoding = match field.value {
                    b"identity" => Encoding::Identity,
                    _ => Encoding::Other,
                };
                true
            }
            _ => true,
        };
        if is_allowed {
            self.metadata.push(field);
        } else {
            self.fault = Some(Fault::Malformed);
        }
    }

    fn take_content_length(&mut self, value: &[u8]) -> bool {
        let digits = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
        let length = digits.and_then(|digits| digits.parse().ok());
        let is_first = self.seen & once::CONTENT_LENGTH == 0;
        self.seen |= once::CONTENT_LENGTH;
        self.content_length = length;
        is_first && length.is_some()
    }
}

/// Connection-specific fields of HTTP/1.1: malformed in requests and trailers of HTTP/2 (RFC 9113, section
/// 8.2.2).
#[inline]
fn is_of_connection(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade"
    )
}

/// `application/grpc`, optionally followed by a message format (`+proto`) or by parameters.
fn content_type(value: &[u8]) -> ContentType {
    match value.strip_prefix(b"application/grpc") {
        Some([] | [b'+' | b';', ..]) => ContentType::Grpc,
        _ => ContentType::Other,
    }
}

/// Decodes the trailers of a request. Their fields are ignored, but may be malformed.
pub(crate) fn read_trailers(
    decoder: &mut Decoder,
    block: &[u8],
    size_max: usize,
) -> Result<Validity, Undecodable> {
    let mut validity = Validity::Valid;
    let listed = decoder.decode(block, size_max, |field| {
        if field.validity == Validity::Invalid || field.name.first() == Some(&b':') {
            validity = Validity::Invalid;
        }
        if is_of_connection(field.name) {
            validity = Validity::Invalid;
        }
    })?;
    Ok(if listed == Listed::TooLarge { Validity::Invalid } else { validity })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with this much memory for its path of three bytes, and for its metadata.
    fn with_capacity(path_bytes: usize) -> Request {
        let mut request = Request::default();
        request.path.reserve_exact(path_bytes);
        request.path.extend_from_slice(b"/ab");
        request.metadata.push(Field { name: b"x", value: b"y", validity: Validity::Valid });
        request
    }

    #[test]
    fn memory_of_a_request_up_to_a_bound_is_kept_with_its_path() {
        let metadata_bytes = with_capacity(3).metadata.capacity_bytes();
        for (path_bytes, bound, kept) in [
            (metadata_bytes, metadata_bytes, 2 * metadata_bytes),
            (metadata_bytes + 1, metadata_bytes, 3 + metadata_bytes),
            (metadata_bytes - 1, metadata_bytes - 1, metadata_bytes - 1),
            (5, 0, 3),
        ] {
            let mut request = with_capacity(path_bytes);
            assert_eq!(request.capacity_bytes(), path_bytes + metadata_bytes);
            request.drop_metadata(bound);
            assert_eq!(request.capacity_bytes(), kept, "{path_bytes} bytes of {bound}");
            assert_eq!((&request.path[..], request.metadata.iter().count()), (&b"/ab"[..], 0));
        }
    }
}
