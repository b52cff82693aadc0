//! Claims of tokens (JWT) in headers. Nothing is verified: another filter must do that before.
//!
//! One pass over the token, without its signature. It is scanned, not parsed, so that a client cannot
//! make it cost memory for each of its values.

use super::fact_reader::FactReader;
use crate::config::Claim;
use crate::host::RequestFacts;

/// The text of a claim.
#[cold]
#[inline(never)]
pub(super) fn claim_of<F: RequestFacts>(
    claim: &Claim,
    reader: &mut FactReader<'_, F>,
) -> Option<Vec<u8>> {
    let header = reader.value(&claim.header)?;
    let value = match &claim.cookie {
        Some(name) => cookie(header, name.as_bytes())?,
        None => header,
    };
    let token = value.strip_prefix(claim.prefix.as_bytes())?;
    let mut parts = token.split(|byte| *byte == b'.');
    let (header, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || !is_header(header) {
        return None;
    }
    let payload = decoded(payload)?;
    let mut json = Json(&payload);
    for name in &claim.path {
        json.enter(name.as_bytes())?;
    }
    Some(unescaped(json.string()?))
}

/// Whether this is the first part of a token.
fn is_header(text: &[u8]) -> bool {
    decoded(text).is_some_and(|header| Json(&header).enter(b"alg").is_some())
}

/// The value of a cookie, without its quotes.
fn cookie<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    header.split(|byte| *byte == b';').find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"=")?;
        let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        Some(quoted.unwrap_or(value))
    })
}

/// Decodes base64url; padding is optional.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last.saturating_add(1));
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text.get(..end)? {
        let six = match byte {
            b'A'..=b'Z' => byte.wrapping_sub(b'A'),
            b'a'..=b'z' => byte.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => byte.wrapping_sub(b'0').wrapping_add(52),
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        count = count.wrapping_add(6);
        if count >= 8 {
            count = count.wrapping_sub(8);
            bytes.push(bits.checked_shr(count)?.to_le_bytes()[0]);
        }
    }
    Some(bytes)
}

/// The rest of a JSON text.
struct Json<'a>(&'a [u8]);

impl<'a> Json<'a> {
    /// Goes to the value with this name in the object here.
    fn enter(&mut self, name: &[u8]) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            if key == name || (key.contains(&b'\\') && unescaped(key) == name) {
                return Some(());
            }
            self.skip_value()?;
            self.expect(b',')?;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.trim_ascii_start().strip_prefix(&[byte])?;
        Some(())
    }

    /// The string here, without its quotes, escaped.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let mut is_escaped = false;
        let end = self.0.iter().position(|byte| {
            let is_end = *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            is_end
        })?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        Some(text)
    }

    /// Goes beyond the value here.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.0 = self.0.trim_ascii_start();
            match self.0.first()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth = depth.saturating_add(1);
                    self.0 = self.0.get(1..)?;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.0 = self.0.get(1..)?;
                }
                b',' | b':' if depth > 0 => {
                    self.0 = self.0.get(1..)?;
                    continue;
                }
                // A number or a name.
                _ => {
                    let is_end = |byte: &u8| b",:]} \t\r\n\"".contains(byte);
                    let end = self.0.iter().position(is_end).filter(|end| *end > 0)?;
                    self.0 = self.0.get(end..)?;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// Resolves the escapes of a JSON string. Half of a pair of surrogates becomes U+FFFD.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((byte, rest)) = text.split_first() {
        text = rest;
        let (b'\\', Some((escape, rest))) = (byte, rest.split_first()) else {
            bytes.push(*byte);
            continue;
        };
        text = rest;
        let char = match escape {
            b'u' => utf16(&mut text),
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            other => char::from(*other),
        };
        bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    }
    bytes
}

/// The character after `\u`: one unit of UTF-16, or two.
fn utf16(text: &mut &[u8]) -> char {
    let first = hex_of(text);
    if let (0xd800..=0xdbff, Some(mut rest)) = (first, text.strip_prefix(b"\\u"))
        && let second @ 0xdc00..=0xdfff = hex_of(&mut rest)
    {
        *text = rest;
        let code = 0x1_0000 | ((first & 0x3ff) << 10) | (second & 0x3ff);
        return char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    }
    char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Four hexadecimal digits.
fn hex_of(text: &mut &[u8]) -> u32 {
    let (digits, rest) = text.split_at_checked(4).unwrap_or((text, &[]));
    *text = rest;
    let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or(0);
    digits.iter().fold(0, |number, byte| (number << 4) | digit(byte))
}
