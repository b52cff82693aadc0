//! Claims of tokens (JWT) in headers and cookies. Nothing is verified: another filter must do that before.
//!
//! One pass over the token, without its signature. It is scanned, not parsed, so that a client cannot
//! make it cost memory for each of its values.

use super::fact_reader::FactReader;
use crate::config::Claim;
use crate::host::RequestFacts;

/// The text of a claim.
#[inline(never)]
pub(super) fn claim_of<F: RequestFacts>(
    claim: &Claim,
    reader: &mut FactReader<'_, F>,
) -> Option<Vec<u8>> {
    let token = reader.value(&claim.fact)?.strip_prefix(claim.prefix.as_bytes())?;
    let (header, rest) = at_dot(token)?;
    let (payload, signature) = at_dot(rest)?;
    if at_dot(signature).is_some() || !is_header(header) {
        return None;
    }
    let payload = decoded(payload)?;
    let mut json = Json::of(&payload);
    for name in &claim.path {
        json.enter(name.as_bytes())?;
    }
    Some(unescaped(json.string()?.text))
}

/// Whether this is the first part of a token.
fn is_header(text: &[u8]) -> bool {
    decoded(text).is_some_and(|header| Json::of(&header).enter(b"alg").is_some())
}

/// The parts before and after the first dot.
fn at_dot(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, rest) = text.split_at_checked(memchr::memchr(b'.', text)?)?;
    Some((before, rest.get(1..)?))
}

/// Decodes base64url; padding is optional.
fn decoded(mut text: &[u8]) -> Option<Vec<u8>> {
    while let Some(rest) = text.strip_suffix(b"=") {
        text = rest;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let (chunks, last) = text.as_chunks::<4>();
    for chunk in chunks {
        bytes.extend_from_slice(&three_of(*chunk)?);
    }
    // The digits that are missing are zeros.
    let mut rest = *b"AAAA";
    rest.get_mut(..last.len())?.copy_from_slice(last);
    bytes.extend_from_slice(three_of(rest)?.get(..last.len().saturating_sub(1))?);
    Some(bytes)
}

/// Three bytes of four digits.
fn three_of(digits: [u8; 4]) -> Option<[u8; 3]> {
    let [a, b, c, d] = digits.map(|digit| DIGITS.get(usize::from(digit)).copied().unwrap_or(NONE));
    if (a | b | c | d) & NONE != 0 {
        return None;
    }
    Some([(a << 2) | (b >> 4), (b << 4) | (c >> 2), (c << 6) | d])
}

/// Marks a byte that is no digit.
const NONE: u8 = 0x80;

/// The values of digits.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const DIGITS: [u8; 256] = {
    let alphabet = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut values, mut value) = ([NONE; 256], 0_u8);
    while value < 64 {
        values[alphabet[value as usize] as usize] = value;
        value = value.wrapping_add(1);
    }
    values
};

/// A place in a JSON text.
struct Json<'a> {
    text: &'a [u8],
    at: usize,
}

/// A string without its quotes.
struct Escaped<'a> {
    text: &'a [u8],
    has_escapes: bool,
}

impl<'a> Json<'a> {
    fn of(text: &'a [u8]) -> Self {
        Json { text, at: 0 }
    }

    /// Goes to the value with this name in the object here.
    fn enter(&mut self, name: &[u8]) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            if key.text == name || (key.has_escapes && unescaped(key.text) == name) {
                return Some(());
            }
            self.skip_value()?;
            self.expect(b',')?;
        }
    }

    /// The byte here, and beyond it.
    #[inline(always)]
    fn next(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at)?;
        self.at = self.at.wrapping_add(1);
        Some(*byte)
    }

    /// The same after spaces.
    fn next_visible(&mut self) -> Option<u8> {
        loop {
            let byte = self.next()?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next_visible()? == byte).then_some(())
    }

    fn string(&mut self) -> Option<Escaped<'a>> {
        self.expect(b'"')?;
        self.rest_of_string()
    }

    /// The string whose first quote was before.
    fn rest_of_string(&mut self) -> Option<Escaped<'a>> {
        let (start, mut has_escapes) = (self.at, false);
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    self.next()?;
                }
                _ => {}
            }
        }
        let text = self.text.get(start..self.at.wrapping_sub(1))?;
        Some(Escaped { text, has_escapes })
    }

    /// Goes beyond the value here.
    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.next_visible()? {
                b'"' => {
                    self.rest_of_string()?;
                }
                b'{' | b'[' => {
                    depth = depth.wrapping_add(1);
                    continue;
                }
                b'}' | b']' => depth = depth.checked_sub(1)?,
                b',' | b':' => {
                    depth.checked_sub(1)?;
                    continue;
                }
                // A number or a name.
                _ => {
                    while !matches!(
                        self.next()?,
                        b',' | b':' | b']' | b'}' | b'"' | b' ' | b'\t' | b'\r' | b'\n'
                    ) {}
                    self.at = self.at.wrapping_sub(1);
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
