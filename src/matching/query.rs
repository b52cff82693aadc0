//! Query parameters: their extraction from a path.
//!
//! The rules of Envoy's rate limit actions: the first occurrence of a name counts; a parameter
//! without `=` has an empty value; `%41` is `A` in names and values, for any byte; `+` stays `+`.

use std::ops::Range;

/// The configured parameters, so that one pass over a path finds all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Decoded names in order, each with the number of its fact.
    names: Vec<(Vec<u8>, usize)>,
    /// The length of the longest name.
    longest: usize,
    /// The first bytes of the names: a query may have tens of thousands of other parameters.
    firsts: Vec<u8>,
}

/// The position of a parameter's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// In the path.
    InPath(Range<usize>),
    /// In the decoded values.
    Decoded(Range<usize>),
}

impl Parameters {
    /// These names, each with the number of its fact.
    pub fn new(names: impl Iterator<Item = (Vec<u8>, usize)>) -> Self {
        let mut names: Vec<_> = names.collect();
        names.sort();
        let longest = names.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let mut firsts: Vec<u8> =
            names.iter().filter_map(|(name, _)| name.first().copied()).collect();
        firsts.dedup();
        Parameters { names, longest, firsts }
    }

    /// The numbers of all facts.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.names.iter().map(|(_, number)| *number)
    }

    /// Reports the positions of these parameters' values in a path. Decoded values are appended to
    /// `decoded`.
    pub fn find(&self, path: &[u8], decoded: &mut Vec<u8>, mut found: impl FnMut(usize, Found)) {
        let Some(question) = path.iter().position(|byte| *byte == b'?') else { return };
        let mut piece = Piece::at(question.saturating_add(1));
        for (at, byte) in path.iter().enumerate().skip(piece.start) {
            match byte {
                b'&' => {
                    self.meet(path, &piece, at, decoded, &mut found);
                    piece = Piece::at(at.saturating_add(1));
                }
                b'=' if piece.equals.is_none() => piece.equals = Some(at),
                b'%' if piece.equals.is_none() => piece.is_coded = true,
                b'#' => return self.meet(path, &piece, at, decoded, &mut found),
                _ => {}
            }
        }
        self.meet(path, &piece, path.len(), decoded, &mut found);
    }

    /// Handles one parameter, up to `end`. An empty one, as between `&&`, is ignored; `=x` is one
    /// with an empty name.
    fn meet(
        &self,
        path: &[u8],
        piece: &Piece,
        end: usize,
        decoded: &mut Vec<u8>,
        found: &mut impl FnMut(usize, Found),
    ) {
        let name_end = piece.equals.unwrap_or(end);
        let length = name_end.saturating_sub(piece.start);
        if end == piece.start || length > self.longest.saturating_mul(CODED_BYTES) {
            return;
        }
        let name = path.get(piece.start..name_end).unwrap_or_default();
        if !piece.is_coded && name.first().is_some_and(|first| !self.firsts.contains(first)) {
            return;
        }
        let Some(number) = self.number(name, piece.is_coded) else { return };
        let value = piece.equals.map_or(end, |equals| equals.saturating_add(1))..end;
        let coded = path.get(value.clone()).unwrap_or_default();
        if !coded.contains(&b'%') {
            return found(number, Found::InPath(value));
        }
        let start = decoded.len();
        decoded.extend(Decoded(coded));
        found(number, Found::Decoded(start..decoded.len()));
    }

    fn number(&self, name: &[u8], is_coded: bool) -> Option<usize> {
        let compared = |known: &Vec<u8>| {
            if is_coded {
                known.iter().copied().cmp(Decoded(name))
            } else {
                known.as_slice().cmp(name)
            }
        };
        let index = self.names.binary_search_by(|(known, _)| compared(known)).ok()?;
        self.names.get(index).map(|(_, number)| *number)
    }
}

/// `%41` is one byte.
const CODED_BYTES: usize = 3;

/// The part of a query between two `&`, as far as it was read.
struct Piece {
    start: usize,
    /// The first `=`.
    equals: Option<usize>,
    /// Whether its name contains a `%`.
    is_coded: bool,
}

impl Piece {
    fn at(start: usize) -> Self {
        Piece { start, equals: None, is_coded: false }
    }
}

/// Decodes a name or a value byte by byte.
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
    use proptest::prelude::*;

    fn first_value(path: &[u8], name: &str) -> Option<Vec<u8>> {
        // The other names could be mistaken for it.
        let names = [name, "", "aaa", "A", "bb"].map(|name| name.as_bytes().to_vec());
        let parameters = Parameters::new(names.into_iter().zip([7, 1, 2, 3, 4]));
        let (mut decoded, mut first) = (Vec::new(), None);
        parameters.find(path, &mut decoded, |number, found| {
            if number == 7 {
                first.get_or_insert(found);
            }
        });
        Some(match first? {
            Found::InPath(range) => path[range].to_vec(),
            Found::Decoded(range) => decoded[range].to_vec(),
        })
    }

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
            let found = first_value(path, name);
            assert_eq!(found.as_deref(), expected, "{name} in {}", String::from_utf8_lossy(path));
        }
    }

    /// The slow twin: one pass for each name.
    fn slow_first_value(path: &[u8], name: &[u8]) -> Option<Vec<u8>> {
        let query = path.splitn(2, |byte| *byte == b'?').nth(1)?;
        let query = query.split(|byte| *byte == b'#').next()?;
        let mut pieces = query.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty());
        pieces.find_map(|piece| {
            let mut parts = piece.splitn(2, |byte| *byte == b'=');
            let (key, value) = (parts.next()?, parts.next().unwrap_or_default());
            Decoded(key).eq(name.iter().copied()).then(|| Decoded(value).collect())
        })
    }

    proptest! {
        #[test]
        fn one_pass_finds_what_a_pass_for_each_name_finds(
            path in "[ab%461?#&=]{0,40}",
            name in prop::sample::select(vec!["a", "ab", "aF", "F", "b", "aa"]),
        ) {
            let expected = slow_first_value(path.as_bytes(), name.as_bytes());
            prop_assert_eq!(first_value(path.as_bytes(), name), expected, "{} in {}", name, path);
        }
    }
}
