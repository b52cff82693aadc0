//! Paths of rules, such as `shop/app=web/ip=cidr=10.0.0.0%2F8`: the domain, then one segment per level.
//!
//! Segments are percent-encoded where they would make two paths look the same. Equal matchers have equal
//! segments, so a path identifies a node of the tree.

use crate::compiled::{Cidr, Matcher};
use tidegate_core::fingerprint;

/// The most ranges that a path spells out: eight of IPv6 are some 150 bytes.
const RANGES_SPELT_MAX: usize = 8;

/// A part of a path, percent-encoded.
pub fn escaped(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for c in part.chars() {
        match c {
            '%' => escaped.push_str("%25"),
            '/' => escaped.push_str("%2F"),
            '=' => escaped.push_str("%3D"),
            '#' => escaped.push_str("%23"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The reverse of [`escaped`].
pub fn unescaped(part: &str) -> String {
    part.replace("%2F", "/").replace("%3D", "=").replace("%23", "#").replace("%25", "%")
}

/// The segment for a key and a matcher of its values. The `=` after the key is unambiguous, because an
/// escaped key has none.
pub fn segment(key: &str, matcher: &Matcher) -> String {
    match matcher {
        Matcher::Any => escaped(key),
        _ => format!("{}={}", escaped(key), spelling(matcher)),
    }
}

/// The part of a segment that follows `key=`; empty for any value.
pub(crate) fn spelling(matcher: &Matcher) -> String {
    match matcher {
        Matcher::Any => String::new(),
        Matcher::Exact(value) | Matcher::Wildcard(value) => escaped(value),
        Matcher::Prefix(prefix) => format!("prefix={}", escaped(prefix)),
        Matcher::Regex(expression) => format!("regex={}", escaped(expression)),
        Matcher::Cidr(ranges) => format!("cidr={}", escaped(&spelt_ranges(ranges))),
    }
}

/// All ranges, or the first one and a hash of all if there are too many to spell out.
fn spelt_ranges(ranges: &[Cidr]) -> String {
    let all: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    if all.len() <= RANGES_SPELT_MAX {
        return all.join(",");
    }
    let hash = fingerprint(all.join(",").as_bytes());
    format!("{},+{}~{hash:032x}", all[0], all.len() - 1)
}

/// Where each segment of a path ends, the domain aside.
pub(crate) fn segment_ends(path: &str) -> impl Iterator<Item = usize> {
    path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()])
}
