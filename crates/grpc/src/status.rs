//! gRPC statuses, and the encoding of their messages (gRPC over HTTP/2, "Percent-Encoded").

use std::borrow::Cow;

/// The status codes of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are gRPC's own")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Status {
    /// The code.
    pub code: Code,
    /// Text for people. Percent-encoded on the wire, at most its first 1024 bytes. A static text needs no
    /// allocation.
    pub message: Cow<'static, str>,
}

impl Status {
    /// A status.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status { code, message: message.into() }
    }
}

/// The most bytes of a message that are sent. Encoded, they are at most three times as many, far below the
/// size of a frame.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The length of an encoded message.
pub(crate) fn encoded_bytes(message: &str) -> usize {
    let bytes = |form| if let Form::Plain(_) = form { 1 } else { 3 };
    sent(message).map(bytes).sum()
}

/// Appends an encoded message.
pub(crate) fn encode(message: &str, output: &mut Vec<u8>) {
    for form in sent(message) {
        match form {
            Form::Plain(byte) => output.push(byte),
            Form::Percent(byte) => {
                output.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte & 0xf)]);
            }
        }
    }
}

/// Decodes a message from the wire. A `%` without two hexadecimal digits stands for itself.
#[must_use]
pub fn decode_message(encoded: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let decoded = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => u8::try_from(high << 4 | low).ok(),
            _ => None,
        };
        bytes.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether and how a byte is encoded.
enum Form {
    Plain(u8),
    Percent(u8),
}

fn sent(message: &str) -> impl Iterator<Item = Form> {
    let length = message.floor_char_boundary(MESSAGE_BYTES_MAX);
    message.bytes().take(length).enumerate().map(move |(at, byte)| match byte {
        // HTTP/2 fields must not begin or end with a space (RFC 9113, section 8.2.1).
        b' ' if at == 0 || at + 1 == length => Form::Percent(byte),
        b'%' => Form::Percent(byte),
        b' '..=b'~' => Form::Plain(byte),
        _ => Form::Percent(byte),
    })
}

fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'A' + nibble - 10 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(message: &str) -> Vec<u8> {
        let mut output = Vec::new();
        encode(message, &mut output);
        assert_eq!(output.len(), encoded_bytes(message));
        output
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(encoded("no limit, 100 %\n"), b"no limit, 100 %25%0A");
        assert_eq!(encoded("é~"), b"%C3%A9~");
        // Regression: clients rejected the answer for a method whose name ended with a space.
        assert_eq!(encoded("  no method /a "), b"%20 no method /a%20");
        assert_eq!(encoded(" "), b"%20");
        assert_eq!(decode_message(b"100 % of %4x %"), "100 % of %4x %");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(encoded(&"é".repeat(5000)).len(), 1024 * 3);
        assert_eq!(encoded(&format!("x{}", "é".repeat(5000))).len(), 1 + 1022 * 3);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(message in "\\PC{0,80}[\\x00-\\x1f%]{0,5}") {
            prop_assert_eq!(decode_message(&encoded(&message)), message);
        }

        #[test]
        fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_message(&bytes);
        }
    }
}
