//! What an operator's words for a key stand for.
//!
//! A descriptor goes the way that a request's does: the rules find its limit, and the engine's own
//! function the key of the counter.

use super::Usage;
use crate::arguments::store::KeyOptions;
use anyhow::{anyhow, bail};
use std::path::{Path, PathBuf};
use tidegate_authority::clock;
use tidegate_authority::counter_keys;
use tidegate_core::{CounterKey, Entry, Identity, KeyHash, Timestamp};
use tidegate_limits::{self as rules, Loaded, SameDomain};
use tidegate_limits::{Limit, Lookup, Match, Rules};
use tidegate_store::{Class, Hashed, Key, StoredKey};

/// A key as it was named; found out before anything is opened, so that a slip of the pen is told first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Stored(StoredKey),
    Number(u64),
    Text(String),
    Descriptor {
        limits: PathBuf,
        domain: Option<String>,
        name: Option<String>,
        entries: Vec<Entry>,
    },
}

/// A key of one cluster.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) stored: StoredKey,
    /// The class of its nodes, if the name of the key says it.
    pub(crate) class: Option<Class>,
    /// The limit whose counter it is, if it was named so.
    pub(crate) limit: Option<Limit>,
    /// The hash of that counter, of which its parts have theirs.
    pub(crate) counter: Option<KeyHash>,
}

impl Resolved {
    /// The keys of the parts of the counter that a decision at `now` goes by, or the one key.
    pub(crate) fn parts(&self, class: Class, seed: u64, now: Timestamp) -> Vec<Hashed> {
        match self.limit.as_ref().zip(self.counter) {
            Some((limit, hash)) => counter_keys(hash, &limit.quota, seed, now).into_vec(),
            None => vec![self.within(class)],
        }
    }

    /// The keys of all parts that the counter may have, the one that stands for it first.
    pub(crate) fn every_part(&self, class: Class, seed: u64, now: Timestamp) -> Vec<Hashed> {
        match self.limit.as_ref().zip(self.counter) {
            Some((limit, hash)) => {
                let labels = limit.quota.part_labels(now).into_iter();
                labels.map(|label| Hashed { hash: hash.part(seed, label).0, class }).collect()
            }
            None => vec![self.within(class)],
        }
    }

    /// The key in a class of nodes.
    pub(crate) fn within(&self, class: Class) -> Hashed {
        Hashed { hash: self.stored.bits(), class }
    }
}

impl Named {
    pub(crate) fn parse(options: &KeyOptions) -> Result<Named, Usage> {
        if let Some(limits) = &options.limits {
            let entries = options.key.iter().map(|entry| parse_entry(entry));
            let entries = entries.collect::<Result<_, Usage>>()?;
            let (limits, domain) = (limits.clone(), options.domain.clone());
            let name = options.limit.clone();
            return Ok(Named::Descriptor { limits, domain, name, entries });
        }
        match &options.key[..] {
            [key] => parse_key(key),
            keys => Err(Usage(format!(
                "{} keys are given, expected one; a descriptor of several entries takes --limits",
                keys.len()
            ))),
        }
    }

    /// The key that it is in a cluster with this seed.
    pub(crate) fn resolve(self, seed: u64) -> anyhow::Result<Resolved> {
        let stored = match self {
            Named::Stored(stored) => stored,
            Named::Number(number) => number.stored(seed),
            Named::Text(text) => text.as_str().stored(seed),
            Named::Descriptor { limits, domain, name, entries } => {
                let Loaded { rules, .. } = rules::load(&limits, SameDomain::Merge)
                    .map_err(|errors| anyhow!("{errors}"))?;
                let domain = domain_of(&rules, domain)?;
                let found = rule_of(&rules, &limits, &domain, &entries)?;
                let limit = limit_of(&found, name.as_deref())?;
                let identity = Identity {
                    domain: &domain,
                    entries: &entries,
                    shared: &found.shared,
                    quota: &limit.quota,
                    label: &limit.label,
                };
                let hash = CounterKey::new().hash(seed, &identity);
                // The first part of a counter is the one that stands for it.
                let key = counter_keys(hash, &limit.quota, seed, clock::now())[0];
                let (stored, class) = (key.stored(seed), Some(key.class));
                let (limit, counter) = (Some(limit.clone()), Some(hash));
                return Ok(Resolved { stored, class, limit, counter });
            }
        };
        Ok(Resolved { stored, class: None, limit: None, counter: None })
    }
}

fn parse_key(text: &str) -> Result<Named, Usage> {
    let what = "expected 32 hex digits, u64:NUMBER or text:STRING; a descriptor takes --limits";
    let wrong = || Usage(format!("key {text:?}: {what}"));
    if let Some(text) = text.strip_prefix("text:") {
        return Ok(Named::Text(text.to_owned()));
    }
    if let Some(number) = text.strip_prefix("u64:") {
        return Ok(Named::Number(number.parse().map_err(|_| wrong())?));
    }
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or_else(wrong)?;
    Ok(Named::Stored(StoredKey::from_bits(bits)))
}

pub(crate) fn parse_entry(text: &str) -> Result<Entry, Usage> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry::new(key, value)),
        _ => Err(Usage(format!("entry {text:?}: expected KEY=VALUE"))),
    }
}

pub(crate) fn domain_of(rules: &Rules, asked: Option<String>) -> Result<String, Usage> {
    match (asked, &rules.domain_names()[..]) {
        (Some(domain), _) => Ok(domain),
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => {
            Err(Usage(format!("--domain is needed: the limits have {}", names.join(", "))))
        }
    }
}

/// The limit of this name or place, or the only one.
fn limit_of<'a>(found: &Match<'a>, name: Option<&str>) -> Result<&'a Limit, Usage> {
    let (path, limits) = (&found.rule.path, found.rule.limits());
    // Of one of several limits the path ends in `#` and its name, or its place.
    let told = |limit: &'a Limit| {
        let place = limit.path.rsplit_once('#').map_or("", |(_, place)| place);
        limit.name.as_deref().unwrap_or(place)
    };
    let names = || limits.iter().map(told).collect::<Vec<_>>().join(", ");
    match (name, limits) {
        (None, [only]) => Ok(only),
        (None, _) => {
            let count = limits.len();
            Err(Usage(format!("{path} has {count} limits; say which with --limit: {}", names())))
        }
        (Some(name), _) => {
            let found = limits.iter().find(|limit| told(limit) == name.trim_start_matches('#'));
            found.ok_or_else(|| {
                Usage(format!("{path} has no limit named {name:?}, but {}", names()))
            })
        }
    }
}

fn rule_of<'a>(
    rules: &'a Rules,
    limits: &Path,
    domain: &str,
    entries: &[Entry],
) -> anyhow::Result<Match<'a>> {
    let words: Vec<String> =
        entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
    let (words, limits) = (words.join(" "), limits.display());
    match rules.find(domain, entries) {
        Lookup::Rule(found) if found.rule.limits().is_empty() => {
            bail!("{limits}: {words} is unlimited, so it has no counter")
        }
        Lookup::Rule(found) => Ok(found),
        Lookup::NoRule => bail!(
            "{limits}: {words} meets no limit of domain {domain:?}; give all entries of the \
             descriptor, in their order"
        ),
        Lookup::UnknownDomain => {
            let names = rules.domain_names().join(", ");
            bail!("{limits}: there is no domain {domain:?}, but {names}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &Option<Named>) {
        assert_eq!(parse_key(text).ok(), *expected, "for {text:?}");
    }

    #[test]
    fn a_key_has_one_of_three_forms() {
        let hex = "00000000000000ab00000000000000CD";
        let stored = StoredKey { estimate: 0xab, identity: 0xcd };
        check(hex, &Some(Named::Stored(stored)));
        check("u64:17", &Some(Named::Number(17)));
        check("text:", &Some(Named::Text(String::new())));
        check("text:u64:17", &Some(Named::Text("u64:17".to_owned())));
        for wrong in ["", "17", "u64:", "u64:-1", "u64:18446744073709551616", "0xab", &hex[1..]] {
            check(wrong, &None);
        }
        // A sign is no hex digit, though it parses as a part of a number.
        check(&format!("+{}", &hex[1..]), &None);
        check(&"é".repeat(16), &None);
    }

    #[test]
    fn an_entry_is_split_at_the_first_equals_sign() {
        assert_eq!(parse_entry("a=b=c").ok(), Some(Entry::new("a", "b=c")));
        assert_eq!(parse_entry("a=").ok(), Some(Entry::new("a", "")));
        assert!(parse_entry("=b").is_err() && parse_entry("a").is_err());
    }
}
