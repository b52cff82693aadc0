//! Chooses the format of a body by the request's header `accept` (RFC 9110, 12.5.1).
//!
//! Clients write the header, so only its beginning is read, once. Parameters of a media type other
//! than its weight are ignored.

/// Of longer headers, whatever does not end before this byte is ignored.
const BYTES_MAX: usize = 1_024;

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    Text,
    Json,
    Problem,
}

impl Format {
    /// In the order of preference where a client has none.
    const ALL: [Format; 3] = [Format::Text, Format::Json, Format::Problem];

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain",
            Format::Json => "application/json",
            Format::Problem => "application/problem+json",
        }
    }
}

/// How well the header accepts a format: by the most specific range that matches it.
#[derive(Debug, Clone, Copy, Default)]
struct Acceptance {
    /// 3: the media type, 2: its group, 1: all, 0: none matched.
    specificity: u8,
    /// In thousandths.
    weight: u16,
    /// Where in the header the range is.
    position: usize,
}

/// The format that this header prefers: by weight, then as named over matched by a wildcard, then
/// the first named. Text, if it accepts none.
pub(super) fn preferred(accept: &[u8]) -> Format {
    let mut formats = [Acceptance::default(); 3];
    for (position, range) in ranges(accept).enumerate() {
        let Some((media_type, weight)) = weighted(range) else { continue };
        for (format, best) in Format::ALL.iter().zip(&mut formats) {
            let specificity = specificity(media_type, format.content_type());
            if specificity > best.specificity {
                *best = Acceptance { specificity, weight, position };
            }
        }
    }
    let accepted = Format::ALL.iter().zip(formats).filter(|(_, acceptance)| acceptance.weight > 0);
    let rank = |(_, acceptance): &(&Format, Acceptance)| {
        let Acceptance { specificity, weight, position } = *acceptance;
        (weight, specificity, std::cmp::Reverse(position))
    };
    // The last of equal ones is the maximum.
    accepted.rev().max_by_key(rank).map_or(Format::Text, |(format, _)| *format)
}

/// The ranges of a header: what is between commas outside of quotes.
fn ranges(accept: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_cut = accept.len() > BYTES_MAX;
    let mut rest = Some(accept.get(..BYTES_MAX).unwrap_or(accept));
    std::iter::from_fn(move || {
        let bytes = rest.take()?;
        let Some(end) = unquoted(bytes, b',') else { return (!is_cut).then_some(bytes) };
        let (range, after) = bytes.split_at_checked(end)?;
        rest = after.get(1..);
        Some(range)
    })
}

/// The position of the first `wanted` outside of quotes.
fn unquoted(bytes: &[u8], wanted: u8) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    bytes.iter().position(|byte| match *byte {
        _ if is_escaped => {
            is_escaped = false;
            false
        }
        b'\\' if is_quoted => {
            is_escaped = true;
            false
        }
        b'"' => {
            is_quoted = !is_quoted;
            false
        }
        byte => byte == wanted && !is_quoted,
    })
}

/// The media type of a range and its weight; none if the weight is malformed.
fn weighted(range: &[u8]) -> Option<(&[u8], u16)> {
    let end = unquoted(range, b';').unwrap_or(range.len());
    let (media_type, mut rest) = range.split_at_checked(end)?;
    let mut weight = 1_000;
    while let Some(parameter) = rest.get(1..).filter(|rest| !rest.is_empty()) {
        let end = unquoted(parameter, b';').unwrap_or(parameter.len());
        let (parameter, after) = parameter.split_at_checked(end)?;
        if let [b'q' | b'Q', b'=', value @ ..] = parameter.trim_ascii() {
            weight = thousandths(value)?;
        }
        rest = after;
    }
    Some((media_type.trim_ascii(), weight))
}

/// A weight: `0` or `1`, with up to three decimals.
fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, decimals) = match value {
        [whole] | [whole, b'.'] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut weight = 0_u16;
    for digit in std::iter::once(whole).chain(decimals).chain(b"000").take(4) {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        weight = weight.saturating_mul(10).saturating_add(digit.into());
    }
    (weight <= 1_000).then_some(weight)
}

/// How specifically a range matches a media type; 0 if it does not.
fn specificity(range: &[u8], media_type: &str) -> u8 {
    if range.eq_ignore_ascii_case(media_type.as_bytes()) {
        return 3;
    }
    if range == b"*/*" {
        return 1;
    }
    let group = range.strip_suffix(b"/*").zip(media_type.split_once('/'));
    match group {
        Some((range, (group, _))) if range.eq_ignore_ascii_case(group.as_bytes()) => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_is_by_weight_then_by_name_then_by_place() {
        use Format::{Json, Problem, Text};
        let long = format!("text/html;{},application/json", "x".repeat(BYTES_MAX));
        let cut = format!("{}application/json", " ".repeat(BYTES_MAX - 12));
        let many = "a/b,".repeat(250) + "application/json;q=0.2,";
        let table = [
            ("", Text),
            ("*/*", Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Text),
            ("application/json", Json),
            ("Application/JSON", Json),
            ("application/problem+json", Problem),
            ("application/problem+json, application/json", Problem),
            ("application/json, application/problem+json", Json),
            ("application/json, text/plain, */*", Json),
            ("application/json, */*", Json),
            ("*/*, application/problem+json", Problem),
            ("application/*", Json),
            ("application/*;q=0.5, text/plain;q=0.4", Json),
            ("text/*, application/json", Json),
            ("text/plain;q=0.5, application/json;q=0.4", Text),
            ("text/plain;q=0.4, application/json ; q=0.5", Json),
            ("text/plain;q=0.4, application/json;q=0.401", Json),
            ("application/json;q=0, */*", Text),
            ("text/plain;q=0, */*", Json),
            ("text/plain;q=0, application/json;q=0, */*", Problem),
            ("text/plain;q=0, application/*;q=0.000, */*;q=0", Text),
            // The most specific range counts, wherever it is.
            ("*/*, text/*;q=0.2", Json),
            ("*/*;q=0.3, application/*;q=0.1, text/*;q=0.2", Text),
            ("application/json;charset=utf-8", Json),
            ("application/json;q=\"1\"", Text),
            ("text/html;a=\"x, application/json;q=1\"", Text),
            ("text/html;a=\"\\\", text/plain\", application/json", Json),
            ("application/json;q=2, application/problem+json", Problem),
            ("application/json;q=0.1234", Text),
            ("application/json;q=", Text),
            ("application/json;q", Json),
            ("application/json;Q=1.000;ext", Json),
            ("application/json;q=1.001", Text),
            (",,;, application/json", Json),
            ("\u{e9}, application/json", Json),
            (&long, Text),
            (&cut, Text),
            (&many, Json),
        ];
        for (accept, expected) in table {
            assert_eq!(preferred(accept.as_bytes()), expected, "{accept}");
        }
    }

    /// Whatever a client sends: no panic, and an answer.
    #[test]
    fn any_bytes_are_read() {
        let pieces: [&[u8]; 12] = [
            b"*/*",
            b"application/",
            b"json",
            b";q=",
            b"0.",
            b"\"",
            b"\\",
            b",",
            b"\xff",
            b";",
            b"=",
            b" ",
        ];
        let mut random = 1_u64;
        for _ in 0..20_000 {
            let mut accept = Vec::new();
            for _ in 0..12 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                accept.extend_from_slice(pieces[usize::try_from(random >> 33).unwrap() % 12]);
            }
            let _ = preferred(&accept);
        }
    }
}
