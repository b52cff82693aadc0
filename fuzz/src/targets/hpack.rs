//! Header blocks, decoded here and by the h2 crate: the same fields, or both refuse the block.
//!
//! Deliberate differences, which end the comparison:
//! - For a field with forbidden bytes, or an unknown or invalid pseudo-header, h2 fails the whole connection.
//!   Here the field is passed on as invalid, which costs only its call.
//! - h2 allows any text in the value of a pseudo-header; here a zero byte or a line end is invalid.
//! - A block that is not a request (pseudo-headers twice or late, connection-specific fields) fails the stream
//!   in h2, which passes none of its fields on; here other code checks that.

use super::Target;
use crate::frames::frame;
use crate::header_blocks;
use crate::input::Input;
use crate::work::Bound;
use bytes::Bytes;
use futures_core::Stream;
use h2::frame::Frame;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tidegate_grpc::fuzzing::BlockDecoder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) const TARGET: Target = Target { name: "hpack", run, seeds };

/// A Huffman code takes some 20 ns a byte in the instrumented build, plain fields less.
const WORK: Bound = Bound { fixed: Duration::from_micros(200), nanos_per_byte: 100 };

/// The server's limit for one call.
const LIST_BYTES_MAX: usize = 16 * 1024;

/// A block can have thousands of fields; those beyond this are not compared.
const COMPARED_BYTES_MAX: usize = 256 * 1024;

type Fields = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

fn blocks(input: &[u8]) -> Vec<Vec<u8>> {
    let mut input = Input(input);
    let is_raw = input.flag();
    let mut blocks = Vec::new();
    while !input.is_empty() && blocks.len() < 16 {
        let mut block = Vec::new();
        if is_raw {
            let bytes = usize::from(input.word() % 2_048);
            block.extend_from_slice(input.take(bytes));
        } else {
            header_blocks::build(&mut input, &mut block);
        }
        block.truncate(header_blocks::BLOCK_BYTES_MAX);
        blocks.push(block);
    }
    blocks
}

fn run(input: &[u8]) {
    let blocks = blocks(input);
    let bytes = blocks.iter().map(Vec::len).sum();
    WORK.check(bytes, || {
        let mut decoder = BlockDecoder::default();
        let mut sizes = 0_usize;
        let _ = blocks.iter().all(|block| {
            decoder
                .decode(block, LIST_BYTES_MAX, |name, value, _| sizes += name.len() + value.len())
        });
        sizes
    });
    let (mut ours, mut theirs) = (BlockDecoder::default(), H2::new());
    for block in &blocks {
        let (mut fields, mut size) = (Vec::new(), 0);
        let is_decoded = ours.decode(block, usize::MAX, |name, value, is_valid| {
            size += name.len() + value.len();
            if size <= COMPARED_BYTES_MAX {
                fields.push((name.to_vec(), value.to_vec(), is_valid));
            }
        });
        if size > COMPARED_BYTES_MAX {
            return;
        }
        if fields.iter().any(|(name, value, is_valid)| {
            let refused = is_refused(name, value) || is_cut(value);
            // A field that is invalid here is invalid there.
            assert!(*is_valid || refused, "{name:x?}: {value:x?} is refused here alone");
            refused
        }) {
            return;
        }
        match theirs.decode(block) {
            Theirs::Undecodable => return assert!(!is_decoded, "h2 refuses {block:x?}"),
            Theirs::Malformed => {
                assert!(is_decoded, "h2 decodes {block:x?}");
                assert!(is_malformed(&fields), "malformed to h2: {fields:x?}");
            }
            Theirs::Fields(found) => {
                assert!(is_decoded, "h2 decodes {block:x?}");
                let mut expected = Fields::new();
                for (name, value, _) in fields {
                    expected.entry(name).or_default().push(value);
                }
                assert_eq!(expected, found, "of {block:x?}");
            }
        }
    }
}

/// Whether h2 refuses the bytes of a field.
fn is_refused(name: &[u8], value: &[u8]) -> bool {
    let is_text = std::str::from_utf8(value).is_ok();
    match name {
        b":authority" | b":scheme" | b":path" | b":protocol" => !is_text,
        b":method" => Method::from_bytes(value).is_err(),
        b":status" => StatusCode::from_bytes(value).is_err(),
        [b':', ..] | [] => true,
        name => {
            HeaderName::from_lowercase(name).is_err() || HeaderValue::from_bytes(value).is_err()
        }
    }
}

/// Whether a value contains a line end or a zero byte: invalid here for pseudo-headers as well.
fn is_cut(value: &[u8]) -> bool {
    value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

fn is_malformed(fields: &[(Vec<u8>, Vec<u8>, bool)]) -> bool {
    let names: Vec<&[u8]> = fields.iter().map(|(name, ..)| &name[..]).collect();
    let is_pseudo = |name: &&[u8]| name.starts_with(b":");
    let late = names.iter().skip_while(|name| is_pseudo(name)).any(is_pseudo);
    let twice = |at: usize| is_pseudo(&names[at]) && names[..at].contains(&names[at]);
    let of_connection = |(name, value, _): &(Vec<u8>, Vec<u8>, bool)| match &name[..] {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            true
        }
        b"te" => value != b"trailers",
        _ => false,
    };
    late || (0..names.len()).any(twice) || fields.iter().any(of_connection)
}

/// The result of h2.
enum Theirs {
    Fields(Fields),
    Malformed,
    Undecodable,
}

/// h2's frame reader, for the decoder in it.
struct H2(h2::Codec<Memory, Bytes>);

impl H2 {
    fn new() -> H2 {
        H2(h2::Codec::new(Memory::default()))
    }

    fn decode(&mut self, block: &[u8]) -> Theirs {
        let mut bytes = Vec::new();
        // END_HEADERS.
        frame(1, 0x4, 1, block, &mut bytes);
        *self.0.get_mut() = Memory { bytes, read: 0 };
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_next(&mut context) {
            Poll::Ready(Some(Ok(Frame::Headers(headers)))) => {
                assert!(!headers.is_over_size());
                let (pseudo, map) = headers.into_parts();
                let mut fields = Fields::new();
                let mut add = |name: &str, value: Option<&[u8]>| {
                    if let Some(value) = value {
                        fields.entry(name.into()).or_default().push(value.to_vec());
                    }
                };
                add(":method", pseudo.method.as_ref().map(|value| value.as_str().as_bytes()));
                add(":scheme", pseudo.scheme.as_ref().map(|value| value.as_bytes()));
                add(":authority", pseudo.authority.as_ref().map(|value| value.as_bytes()));
                add(":path", pseudo.path.as_ref().map(|value| value.as_bytes()));
                add(":protocol", pseudo.protocol.as_ref().map(|value| value.as_str().as_bytes()));
                add(":status", pseudo.status.as_ref().map(|value| value.as_str().as_bytes()));
                for (name, value) in &map {
                    add(name.as_str(), Some(value.as_bytes()));
                }
                Theirs::Fields(fields)
            }
            Poll::Ready(Some(Err(h2::proto::Error::Reset(..)))) => Theirs::Malformed,
            Poll::Ready(Some(Err(h2::proto::Error::GoAway(..)))) => Theirs::Undecodable,
            other => panic!("h2 says {other:?}"),
        }
    }
}

/// Bytes to read. Ignores writes.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    read: usize,
}

impl AsyncRead for Memory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.bytes[self.read..];
        if rest.is_empty() {
            return Poll::Pending;
        }
        let taken = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..taken]);
        self.read += taken;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Memory {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The examples of RFC 7541, appendix C.3 and C.4, as blocks of one connection, and generated blocks.
fn seeds() -> Vec<Vec<u8>> {
    let plain: [&[u8]; 3] = [
        b"\x82\x86\x84\x41\x0fwww.example.com",
        b"\x82\x86\x84\xbe\x58\x08no-cache",
        b"\x82\x87\x85\xbf\x40\x0acustom-key\x0ccustom-value",
    ];
    let huffman: [&[u8]; 3] = [
        b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
        b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
        b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
    ];
    let raw = |blocks: [&[u8]; 3]| {
        let mut seed = vec![1];
        for block in blocks {
            seed.extend((block.len() as u16).to_le_bytes());
            seed.extend_from_slice(block);
        }
        seed
    };
    vec![
        raw(plain),
        raw(huffman),
        vec![0, 3, 4, 6, 0, 70, 0, 3, b'a', b'b', b'c', 0, 62],
        // A large entry.
        vec![0, 2, 6, 0, 0, 0, 3, b'x', b'-', b'a', 1, 14, 0, 0, 62],
        // Many references to an entry.
        vec![0, 2, 6, 0, 0, 0, 3, b'x', b'-', b'a', 1, 6, 0, 9, 40, 40, 0, 62],
    ]
}
