//! Query parameters: how they are found in a path, and tests of them.
//!
//! Read as Envoy's rate limit actions read them: a name counts as its first occurrence; one without
//! `=` has an empty value; `%41` is `A` in names and values, whatever byte it stands for; and `+`
//! stays `+`.

use super::text::TextMatcher;
use std::borrow::Cow;

/// A test of one query parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryMatcher {
    /// The parameter, decoded.
    pub name: String,
    /// What is asked of it.
    pub test: QueryTest,
}

/// What is asked of a query parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryTest {
    /// It is there.
    Present,
    /// It is not there.
    Absent,
    /// Its value passes; a parameter that is not there does not.
    Text(TextMatcher),
}

impl QueryMatcher {
    /// Whether a request with this path passes.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let value = first_value(path, self.name.as_bytes());
        match &self.test {
            QueryTest::Present => value.is_some(),
            QueryTest::Absent => value.is_none(),
            QueryTest::Text(text) => value.is_some_and(|value| text.matches(&value)),
        }
    }
}

/// The decoded value of the first parameter of this name in a path.
#[must_use]
pub fn first_value<'a>(path: &'a [u8], name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let (_, query) = split_at_byte(path, b'?')?;
    let query = split_at_byte(query, b'#').map_or(query, |(query, _fragment)| query);
    // An empty piece, as between `&&`, is no parameter; `=x` is one without a name.
    let mut pieces = query.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty());
    pieces.find_map(|piece| {
        let (key, value) = split_at_byte(piece, b'=').unwrap_or((piece, &[]));
        Decoded(key).eq(name.iter().copied()).then(|| decoded(value))
    })
}

fn split_at_byte(bytes: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|found| *found == byte)?;
    Some((bytes.get(..at)?, bytes.get(at.checked_add(1)?..)?))
}

fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    if value.contains(&b'%') { Decoded(value).collect::<Vec<u8>>().into() } else { value.into() }
}

/// The bytes of a name or a value, decoded one by one.
struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        if let (b'%', Some((digits, after))) = (*first, rest.split_first_chunk::<2>())
            && let Some(byte) = byte_of(*digits)
        {
            self.0 = after;
            return Some(byte);
        }
        self.0 = rest;
        Some(*first)
    }
}

fn byte_of(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from((high? << 4) | low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parameter_of_a_name_is_found_and_decoded_as_envoy_does() {
        type Row<'a> = (&'a [u8], &'a str, Option<&'a [u8]>);
        let table: [Row<'_>; 20] = [
            (b"/p", "a", None),
            (b"/p?", "a", None),
            (b"/p?a", "a", Some(b"")),
            (b"/p?a=", "a", Some(b"")),
            (b"/p?a=1&a=2", "a", Some(b"1")),
            (b"/p?b=1&a=2", "a", Some(b"2")),
            (b"/p?A=1", "a", None),
            (b"/p?ab=1", "a", None),
            (b"/p?%61=1", "a", Some(b"1")),
            (b"/p?a=%41%2fb", "a", Some(b"A/b")),
            (b"/p?a=%20+%25", "a", Some(b" +%")),
            (b"/p?a=%e9%00", "a", Some(b"\xe9\0")),
            (b"/p?a=%4", "a", Some(b"%4")),
            (b"/p?a=%", "a", Some(b"%")),
            (b"/p?a=%zz", "a", Some(b"%zz")),
            (b"/p?a=b=c", "a", Some(b"b=c")),
            (b"/p?a=b?c", "a", Some(b"b?c")),
            (b"/p?b#?a=1", "a", None),
            (b"/p?&&a=\xff", "a", Some(b"\xff")),
            (b"", "a", None),
        ];
        for (path, name, expected) in table {
            let found = first_value(path, name.as_bytes());
            assert_eq!(found.as_deref(), expected, "{name} in {}", String::from_utf8_lossy(path));
        }
    }
}
