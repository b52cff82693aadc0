//! Rules as plain lists: every branch of a level is tried in order, in the most naive way.

use std::net::IpAddr;
use tidegate_limits::{Matcher, Rule};

/// A node and its branches.
#[derive(Debug, Default)]
pub(crate) struct SlowNode {
    pub path: Option<String>,
    pub branches: Vec<SlowBranch>,
}

/// A branch.
#[derive(Debug)]
pub(crate) struct SlowBranch {
    pub key: String,
    pub matcher: Matcher,
    pub share: Option<String>,
    pub node: SlowNode,
}

/// The result of a lookup: the rule's path, and the entries that share counters.
pub(crate) type SlowMatch = (String, Vec<(usize, String)>);

impl SlowNode {
    /// Whether this branch exists.
    pub(crate) fn has(&self, key: &str, matcher: &Matcher) -> bool {
        self.branches.iter().any(|branch| branch.key == key && branch.matcher == *matcher)
    }

    pub(crate) fn find(&self, entries: &[(String, String)]) -> Option<SlowMatch> {
        let mut node = self;
        let mut shared = Vec::new();
        for (index, (key, value)) in entries.iter().enumerate() {
            let of_key = || node.branches.iter().filter(|branch| branch.key == *key);
            let exact = of_key().find(|branch| branch.matcher == Matcher::Exact(value.clone()));
            let pattern = || of_key().find(|branch| pattern_matches(&branch.matcher, value));
            let any = || of_key().find(|branch| branch.matcher == Matcher::Any);
            let branch = exact.or_else(pattern).or_else(any)?;
            shared.extend(branch.share.iter().map(|text| (index, text.clone())));
            node = &branch.node;
        }
        Some((node.path.clone()?, shared))
    }

    /// Sets the rule that ends here.
    pub(crate) fn set_rule(&mut self, rule: &Rule) {
        self.path = Some(rule.path.clone());
    }
}

/// Whether a pattern matches a value.
pub(crate) fn pattern_matches(matcher: &Matcher, value: &str) -> bool {
    match matcher {
        Matcher::Any | Matcher::Exact(_) => false,
        Matcher::Wildcard(pattern) => wildcard(pattern.as_bytes(), value.as_bytes()),
        Matcher::Prefix(prefix) => value.get(..prefix.len()) == Some(prefix),
        Matcher::Cidr(ranges) => ranges.iter().any(|range| within(value, &range.to_string())),
        Matcher::Regex(text) => {
            let (_, matches) = REGEXES.iter().find(|(known, _)| *known == &**text).unwrap();
            matches(value)
        }
    }
}

/// The textbook algorithm: a `*` matches nothing, or one more character.
fn wildcard(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern.split_first(), value.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => wildcard(rest, value),
        (Some((b'*', rest)), Some((_, after))) => wildcard(rest, value) || wildcard(pattern, after),
        (Some((a, rest)), Some((b, after))) if a == b => wildcard(rest, after),
        _ => false,
    }
}

/// Ranges as strings of bits: a range contains another if it is its prefix.
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

/// An expression and an equivalent function.
type Said = (&'static str, fn(&str) -> bool);

/// Expressions with equivalent functions.
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
