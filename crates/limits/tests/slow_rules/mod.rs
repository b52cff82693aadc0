//! The rules as plain lists: every place of a level is tried, in order, in the most naive way.

use std::net::IpAddr;
use tidegate_limits::{Matcher, Rule};

/// A place and what is below it.
#[derive(Debug, Default)]
pub(crate) struct SlowNode {
    pub path: Option<String>,
    pub places: Vec<SlowPlace>,
}

/// A way down.
#[derive(Debug)]
pub(crate) struct SlowPlace {
    pub key: String,
    pub matcher: Matcher,
    pub share: Option<String>,
    pub node: SlowNode,
}

/// What a look finds: the rule's path, and the entries that share.
pub(crate) type SlowMatch = (String, Vec<(usize, String)>);

impl SlowNode {
    /// Whether there is this place already.
    pub(crate) fn has(&self, key: &str, matcher: &Matcher) -> bool {
        self.places.iter().any(|place| place.key == key && place.matcher == *matcher)
    }

    pub(crate) fn find(&self, entries: &[(String, String)]) -> Option<SlowMatch> {
        let mut node = self;
        let mut shared = Vec::new();
        for (index, (key, value)) in entries.iter().enumerate() {
            let of_key = || node.places.iter().filter(|place| place.key == *key);
            let exact = of_key().find(|place| place.matcher == Matcher::Exact(value.clone()));
            let pattern = || of_key().find(|place| pattern_takes(&place.matcher, value));
            let any = || of_key().find(|place| place.matcher == Matcher::Any);
            let place = exact.or_else(pattern).or_else(any)?;
            shared.extend(place.share.iter().map(|text| (index, text.clone())));
            node = &place.node;
        }
        Some((node.path.clone()?, shared))
    }

    /// Sets what stands here.
    pub(crate) fn set_rule(&mut self, rule: &Rule) {
        self.path = Some(rule.path.clone());
    }
}

/// Whether a pattern takes a value.
pub(crate) fn pattern_takes(matcher: &Matcher, value: &str) -> bool {
    match matcher {
        Matcher::Any | Matcher::Exact(_) => false,
        Matcher::Wildcard(pattern) => wildcard(pattern.as_bytes(), value.as_bytes()),
        Matcher::Prefix(prefix) => value.get(..prefix.len()) == Some(prefix),
        Matcher::Cidr(ranges) => ranges.iter().any(|range| within(value, &range.to_string())),
        Matcher::Regex(text) => {
            let (_, takes) = REGEXES.iter().find(|(known, _)| *known == &**text).unwrap();
            takes(value)
        }
    }
}

/// The textbook: a `*` is nothing, or one more character.
fn wildcard(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern.split_first(), value.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => wildcard(rest, value),
        (Some((b'*', rest)), Some((_, after))) => wildcard(rest, value) || wildcard(pattern, after),
        (Some((a, rest)), Some((b, after))) if a == b => wildcard(rest, after),
        _ => false,
    }
}

/// Ranges as strings of bits: one within another starts with its bits.
fn within(value: &str, range: &str) -> bool {
    match (bits(value), bits(range)) {
        (Some(value), Some(range)) => value.starts_with(&range),
        _ => false,
    }
}

fn bits(text: &str) -> Option<String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, n)| (a, Some(n)));
    let mut bits = match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) => format!("4:{:032b}", address.to_bits()),
        IpAddr::V6(address) => match (address.to_ipv4_mapped(), length.map(str::parse::<usize>)) {
            (Some(v4), None) => format!("4:{:032b}", v4.to_bits()),
            (Some(v4), Some(Ok(length))) if length >= 96 => {
                return bits(&format!("{v4}/{}", length - 96));
            }
            _ => format!("6:{:0128b}", address.to_bits()),
        },
    };
    if let Some(length) = length {
        let length: usize = length.parse().ok()?;
        if length + 2 > bits.len() {
            return None;
        }
        bits.truncate(length + 2);
    }
    Some(bits)
}

fn all(value: &str, of: &str) -> bool {
    value.chars().all(|c| of.contains(c))
}

/// An expression, and what it says in code.
type Said = (&'static str, fn(&str) -> bool);

/// Expressions with what they say in code.
pub(crate) const REGEXES: &[Said] = &[
    ("a+", |v| !v.is_empty() && all(v, "a")),
    ("a|ab", |v| v == "a" || v == "ab"),
    ("(a|ab)b", |v| v == "ab" || v == "abb"),
    ("^/.*", |v| v.starts_with('/')),
    (".", |v| v.chars().count() == 1),
    ("", str::is_empty),
    ("b?a", |v| v == "a" || v == "ba"),
    ("a+*", |v| all(v, "a")),
    ("ab{0,1}", |v| v == "a" || v == "ab"),
    (r"a\*b*", |v| v.strip_prefix("a*").is_some_and(|rest| all(rest, "b"))),
    ("[ab]_", |v| v == "a_" || v == "b_"),
    ("[^]a]/|b", |v| {
        let mut chars = v.chars();
        let first = chars.next().is_some_and(|c| c != ']' && c != 'a');
        v == "b" || first && chars.as_str() == "/"
    }),
    ("(?i)A", |v| v == "a" || v == "A"),
    ("(?x) a b # and nothing else", |v| v == "ab"),
    ("(?:a|b)*/a", |v| v.strip_suffix("/a").is_some_and(|rest| all(rest, "ab"))),
    (".*b_.*", |v| v.contains("b_")),
    (".*a.*_.*", |v| v.find('a').is_some_and(|at| v[at..].contains('_'))),
];
