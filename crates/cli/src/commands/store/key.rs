//! Finds the key that the command line names.
//!
//! A descriptor is looked up as in a request: the rules find its limit, and the authority computes the key of the
//! counter.

use crate::arguments::store::KeyOptions;
use crate::commands::UsageError;
use anyhow::{anyhow, bail};
use std::path::Path;
use tidegate_authority::clock;
use tidegate_authority::{Hashing, counter_keys};
use tidegate_core::{Entry, Identity, KeyHash, Timestamp};
use tidegate_limits::describe::key_values;
use tidegate_limits::{self as rules, Loaded, SameDomain};
use tidegate_limits::{Limit, Lookup, Match, Rules};
use tidegate_store::{Class, Hashed, Key, StoredKey};

/// A key as given. Parsed before anything is opened, so that a typing error is reported first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyArgument<'a> {
    Stored(StoredKey),
    Number(u64),
    Text(String),
    /// The counter that a descriptor meets; the options find its limit.
    Descriptor {
        limits: &'a Path,
        options: &'a KeyOptions,
        entries: Vec<Entry>,
    },
}

/// A key of one cluster.
#[derive(Debug)]
pub(crate) struct ResolvedKey {
    pub(crate) stored: StoredKey,
    /// The class of its nodes, if the argument determines it.
    pub(crate) class: Option<Class>,
    /// The limit of the counter, for a descriptor.
    pub(crate) limit: Option<Limit>,
    /// The hash of that counter; its parts derive theirs from it.
    pub(crate) counter: Option<KeyHash>,
}

impl ResolvedKey {
    /// The keys of the counter parts that a decision at `now` reads, or the one key.
    pub(crate) fn parts(&self, class: Class, seed: u64, now: Timestamp) -> Vec<Hashed> {
        match self.limit.as_ref().zip(self.counter) {
            Some((limit, hash)) => counter_keys(hash, &limit.quota, seed, now).into_vec(),
            None => vec![self.within(class)],
        }
    }

    /// The keys of all parts that the counter may have, its representative first.
    pub(crate) fn every_part(&self, class: Class, seed: u64, now: Timestamp) -> Vec<Hashed> {
        match self.limit.as_ref().zip(self.counter) {
            Some((limit, hash)) => {
                let labels = limit.quota.part_labels(now).into_iter();
                labels.map(|label| Hashed { hash: hash.part(seed, label).0, class }).collect()
            }
            None => vec![self.within(class)],
        }
    }

    pub(crate) fn within(&self, class: Class) -> Hashed {
        Hashed { hash: self.stored.bits(), class }
    }
}

impl<'a> KeyArgument<'a> {
    pub(crate) fn parse(options: &'a KeyOptions, words: &[String]) -> Result<Self, UsageError> {
        if words.is_empty() {
            let missing =
                "the key is missing: tidegate store COMMAND DIR KEY, or --authority URL KEY";
            return Err(UsageError(missing.to_owned()));
        }
        if let Some(limits) = &options.limits {
            let entries = words.iter().map(|entry| parse_entry(entry));
            let entries = entries.collect::<Result<_, _>>()?;
            return Ok(KeyArgument::Descriptor { limits, options, entries });
        }
        match words {
            [key] => parse_key(key),
            keys => Err(UsageError(format!(
                "{} keys are given, expected one; a descriptor of several entries takes --limits",
                keys.len()
            ))),
        }
    }

    /// The key among counters whose keys are made like this.
    pub(crate) fn resolve(self, hashing: Hashing) -> anyhow::Result<ResolvedKey> {
        let seed = hashing.seed();
        let stored = match self {
            KeyArgument::Stored(stored) => stored,
            KeyArgument::Number(number) => number.stored(seed),
            KeyArgument::Text(text) => text.as_str().stored(seed),
            KeyArgument::Descriptor { limits, options, entries } => {
                let Loaded { rules, .. } =
                    rules::load(limits, SameDomain::Merge).map_err(|errors| anyhow!("{errors}"))?;
                let domain = domain_of(&rules, options.domain.as_ref())?;
                let found = rule_of(&rules, limits, &domain, &entries)?;
                let limit = limit_of(&found, options.limit.as_deref())?;
                let hash = counter_of((&domain, &entries), &found, limit, hashing);
                // The first part represents the counter.
                let key = counter_keys(hash, &limit.quota, seed, clock::now())[0];
                let (stored, class) = (key.stored(seed), Some(key.class));
                let (limit, counter) = (Some(limit.clone()), Some(hash));
                return Ok(ResolvedKey { stored, class, limit, counter });
            }
        };
        Ok(ResolvedKey { stored, class: None, limit: None, counter: None })
    }
}

/// The hash of the counter that a descriptor has under a limit of the rule that it met.
pub(super) fn counter_of(
    (domain, entries): (&str, &[Entry]),
    found: &Match<'_>,
    limit: &Limit,
    hashing: Hashing,
) -> KeyHash {
    let (shared, quota, label) = (&found.shared, &limit.quota, &limit.label);
    let identity = Identity { domain, entries, shared, quota, label };
    hashing.hash(&identity, found.rule.limits().iter().map(|limit| &limit.quota))
}

fn parse_key(text: &str) -> Result<KeyArgument<'static>, UsageError> {
    let expected = "expected 32 hex digits, u64:NUMBER or text:STRING; a descriptor takes --limits";
    let mistake = || UsageError(format!("key {text:?}: {expected}"));
    if let Some(text) = text.strip_prefix("text:") {
        return Ok(KeyArgument::Text(text.to_owned()));
    }
    if let Some(number) = text.strip_prefix("u64:") {
        return Ok(KeyArgument::Number(number.parse().map_err(|_| mistake())?));
    }
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or_else(mistake)?;
    Ok(KeyArgument::Stored(StoredKey::from_bits(bits)))
}

pub(crate) fn parse_entry(text: &str) -> Result<Entry, UsageError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry::new(key, value)),
        _ => Err(UsageError(format!("entry {text:?}: expected KEY=VALUE"))),
    }
}

pub(crate) fn domain_of(rules: &Rules, given: Option<&String>) -> Result<String, UsageError> {
    match (given, &rules.domain_names()[..]) {
        (Some(domain), _) => Ok(domain.clone()),
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => {
            Err(UsageError(format!("--domain is needed: the limits have {}", names.join(", "))))
        }
    }
}

/// The limit with this name or number, or the only one.
fn limit_of<'a>(found: &Match<'a>, name: Option<&str>) -> Result<&'a Limit, UsageError> {
    let (path, limits) = (&found.rule.path, found.rule.limits());
    // The path of one of several limits ends in `#` and its name or number.
    let label = |limit: &'a Limit| {
        let number = limit.path.rsplit_once('#').map_or("", |(_, number)| number);
        limit.name.as_deref().unwrap_or(number)
    };
    let names = || limits.iter().map(label).collect::<Vec<_>>().join(", ");
    match (name, limits) {
        (None, [only]) => Ok(only),
        (None, _) => {
            let count = limits.len();
            Err(UsageError(format!(
                "{path} has {count} limits; say which with --limit: {}",
                names()
            )))
        }
        (Some(name), _) => {
            let found = limits.iter().find(|limit| label(limit) == name.trim_start_matches('#'));
            found.ok_or_else(|| {
                UsageError(format!("{path} has no limit named {name:?}, but {}", names()))
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
    let (words, limits) = (key_values(entries), limits.display());
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
    fn check(text: &str, expected: &Option<KeyArgument<'_>>) {
        assert_eq!(parse_key(text).ok(), *expected, "for {text:?}");
    }

    #[test]
    fn a_key_has_one_of_three_forms() {
        let hex = "00000000000000ab00000000000000CD";
        let stored = StoredKey { estimate: 0xab, identity: 0xcd };
        check(hex, &Some(KeyArgument::Stored(stored)));
        check("u64:17", &Some(KeyArgument::Number(17)));
        check("text:", &Some(KeyArgument::Text(String::new())));
        check("text:u64:17", &Some(KeyArgument::Text("u64:17".to_owned())));
        for wrong in ["", "17", "u64:", "u64:-1", "u64:18446744073709551616", "0xab", &hex[1..]] {
            check(wrong, &None);
        }
        // A sign is no hex digit, but would parse as part of a number.
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
