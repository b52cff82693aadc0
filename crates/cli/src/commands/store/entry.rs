//! `tidegate store get`, `set` and `erase`: the entry of one key.

use super::key::{KeyArgument, ResolvedKey};
use super::names::{Name, Names};
use super::place::{Place, change};
use crate::arguments::store::{
    EraseOptions, Expiry, GetOptions, KeyOptions, PlaceOptions, SetOptions,
};
use crate::output::Output;
use crate::time::from_now;
use anyhow::bail;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;
use tidegate_core::{Charge, Decision, Period, Timestamp};
use tidegate_limits::Limit;
use tidegate_limits::describe::{grouped, span, utc};
use tidegate_store::{Class, Entry};

const SECOND: u64 = 1_000_000_000;

pub(crate) fn get(options: &GetOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (place, key) = open(&options.place, &options.key)?;
    let now = place.now();
    let mut found = None;
    for class in classes(&place, &key, options.class.map(Class::from))? {
        let entry = place.find(&key.within(class), now)?;
        found = found.or(entry.map(|entry| (class, entry)));
    }
    let use_now = use_now(&place, &key, now)?;
    place.check()?;
    let names = Names::of(&options.names, place.dir(), place.hashing())?;
    let name = names.as_ref().map(|names| names.get(key.stored.bits()));
    if options.place.json {
        let mut document = json_of(&key, found.as_ref(), use_now.as_ref(), now);
        if let Some(name) = name {
            document["name"] = name.map_or(Value::Null, Name::json);
        }
        out.json(&document)?;
    } else {
        print(out, &key, found.as_ref(), use_now.as_ref(), now)?;
        if let Some(name) = name {
            writeln!(out, "name     {}", name.map_or_else(|| "not known".to_owned(), Name::text))?;
        }
    }
    Ok(if found.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn set(options: &SetOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (place, key) = open(&options.place, &options.key)?;
    let class = key.class.unwrap_or(options.class.into());
    let Some(words_max) = place.state_words(class) else { bail!(without(class)) };
    let state = &options.state;
    check_state(state, class, words_max)?;
    let now = place.now();
    let expires_at = expiry_of(&options.expiry, now)?;

    let counters = place.join()?;
    let had_one = change(&*counters, &key.within(class), now, |entry| {
        entry.state.fill(0);
        entry.state[..state.len()].copy_from_slice(state);
        *entry.expires_at = expires_at;
    })?;
    let is_new = !had_one;
    let (name, stored, secs) = (class.name(), key.stored, expires_at.div_ceil(SECOND));
    if options.place.json {
        let key = stored.to_string();
        out.json(&json!({"key": key, "class": name, "created": is_new, "expires_at": secs}))?;
    } else {
        let done = if is_new { "created" } else { "overwrote" };
        let expires = from_now(secs, secs_of(now));
        writeln!(out, "{done} the {name} entry of key {stored}, which expires {expires}")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn erase(options: &EraseOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let (place, key) = open(&options.place, &options.key)?;
    let classes = classes(&place, &key, options.class.map(Class::from))?;
    let (now, seed) = (place.now(), place.seed());
    let counters = place.join()?;
    let mut erased = Vec::new();
    for class in classes {
        let mut had_one = false;
        for part in key.every_part(class, seed, now) {
            had_one |= change(&*counters, &part, now, |entry| entry.state.fill(0))?;
        }
        if had_one {
            erased.push(class.name());
        }
    }
    if options.place.json {
        let key = key.stored.to_string();
        out.json(&json!({"key": key, "erased": !erased.is_empty(), "classes": erased}))?;
    } else if erased.is_empty() {
        writeln!(out, "key {} has no entry", key.stored)?;
    } else {
        writeln!(out, "erased the {} entry of key {}", erased.join(" and the "), key.stored)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the counters are, and the key that the command line names.
fn open(options: &PlaceOptions, key: &KeyOptions) -> anyhow::Result<(Place, ResolvedKey)> {
    let (dir, words) = key.split(&options.servers);
    let argument = KeyArgument::parse(key, words)?;
    let place = Place::open(dir, &options.servers, &options.cold)?;
    let key = argument.resolve(place.hashing())?;
    Ok((place, key))
}

/// The classes to search for a key: that of the key or of the command line, else all.
fn classes(place: &Place, key: &ResolvedKey, given: Option<Class>) -> anyhow::Result<Vec<Class>> {
    match key.class.or(given) {
        Some(class) if place.state_words(class).is_none() => bail!(without(class)),
        Some(class) => Ok(vec![class]),
        None => {
            Ok(Class::ALL.into_iter().filter(|class| place.state_words(*class).is_some()).collect())
        }
    }
}

fn without(class: Class) -> String {
    format!("this data directory was created without {} nodes", class.name())
}

/// Refuses a state that does not fit, or that means no entry.
fn check_state(words: &[u64], class: Class, words_max: u32) -> anyhow::Result<()> {
    let (count, class) = (words.len(), class.name());
    if count > words_max as usize {
        bail!("--state: {count} words do not fit into a {class} node, which has {words_max}");
    }
    if words.iter().all(|word| *word == 0) {
        bail!("--state: a state of zeros is the same as no entry; use `tidegate store erase`");
    }
    Ok(())
}

fn expiry_of(expiry: &Expiry, now: Timestamp) -> anyhow::Result<u64> {
    let now = now.as_nanos();
    let at = match (&expiry.expires_at, &expiry.expires_in) {
        (Some(secs), _) => u64::from(*secs) * SECOND,
        (None, Some(period)) => {
            let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
            now.saturating_add(period)
        }
        // clap requires one of them.
        (None, None) => now,
    };
    if at <= now {
        let (at, now) = (utc(at / SECOND), utc(now / SECOND));
        bail!("the entry would have expired already, at {at}; it is {now} now");
    }
    let secs_max = u64::from(u32::MAX);
    if at > secs_max * SECOND {
        bail!("the entry would expire after {}, the latest possible time", utc(secs_max));
    }
    Ok(at)
}

fn print(
    out: &mut Output,
    key: &ResolvedKey,
    found: Option<&(Class, Entry)>,
    use_now: Option<&Decision>,
    now: Timestamp,
) -> anyhow::Result<()> {
    let stored = key.stored;
    match found {
        None => writeln!(out, "key {stored} has no entry")?,
        Some((class, entry)) => {
            let state: Vec<String> = entry.state.iter().map(u64::to_string).collect();
            let secs = entry.expires_at / SECOND;
            let expires = from_now(secs, secs_of(now));
            writeln!(out, "key      {stored}")?;
            writeln!(out, "class    {}", class.name())?;
            writeln!(out, "state    {}", state.join(" "))?;
            writeln!(out, "expires  {} ({expires})", utc(secs))?;
        }
    }
    let Some(limit) = &key.limit else { return Ok(()) };
    let (quota, period) = (&limit.quota, period_of(limit));
    let (algorithm, requests) = (quota.algorithm(), grouped(quota.requests().into()));
    writeln!(out, "limit    {}: {algorithm}, {requests} per {period}", limit.path)?;
    if let Some(use_now) = use_now {
        let (left, capacity) = (use_now.remaining, u64::from(quota.capacity()));
        let resets = match left < capacity {
            true => {
                let secs = secs_of(use_now.reset_at);
                format!("; more {} ({})", utc(secs), from_now(secs, secs_of(now)))
            }
            false => String::new(),
        };
        writeln!(out, "left     {} of {}{resets}", grouped(left), grouped(capacity))?;
    }
    Ok(())
}

fn json_of(
    key: &ResolvedKey,
    found: Option<&(Class, Entry)>,
    use_now: Option<&Decision>,
    now: Timestamp,
) -> Value {
    let mut document = json!({"key": key.stored.to_string(), "found": found.is_some()});
    if let Some((class, entry)) = found {
        let secs = entry.expires_at / SECOND;
        document["class"] = json!(class.name());
        document["state"] = state_json(entry);
        document["expires_at"] = json!(secs);
        document["expires_in"] = json!(secs.saturating_sub(secs_of(now)));
    }
    if let Some(limit) = &key.limit {
        document["limit"] = json!({
            "path": limit.path,
            "name": limit.name,
            "algorithm": limit.quota.algorithm(),
            "requests": limit.quota.requests(),
            "period_ms": limit.quota.period().nominal().as_nanos() / 1_000_000,
            "capacity": limit.quota.capacity(),
            "left": use_now.map(|now| now.remaining),
            "more_at": use_now.map(|now| secs_of(now.reset_at)),
        });
    }
    document
}

/// As strings: many JSON parsers keep numbers in 53 bits.
pub(crate) fn state_json(entry: &Entry) -> Value {
    entry.state.iter().map(u64::to_string).collect()
}

/// The use of the limit, for a descriptor; none for other keys, and for a state of another algorithm's
/// size.
fn use_now(place: &Place, key: &ResolvedKey, now: Timestamp) -> anyhow::Result<Option<Decision>> {
    let Some(limit) = &key.limit else { return Ok(None) };
    let words = limit.quota.state_size().words();
    let mut state = Vec::new();
    for part in key.parts(key.class.unwrap_or_default(), place.seed(), now) {
        match place.find(&part, now)? {
            None => state.resize(state.len() + words, 0),
            Some(entry) => match entry.state.get(..words) {
                Some(found) => state.extend_from_slice(found),
                None => return Ok(None),
            },
        }
    }
    Ok(Some(tidegate_core::decide(&mut state, &limit.quota, Charge::PEEK, now)))
}

/// Rounded up, as the store rounds expiry times: an entry of 60 s then shows 60 s.
fn secs_of(moment: Timestamp) -> u64 {
    moment.as_nanos().div_ceil(SECOND)
}

fn period_of(limit: &Limit) -> String {
    match limit.quota.period() {
        period if period.unit().is_some() => {
            period.unit().map_or_else(String::new, |unit| unit.name().to_owned())
        }
        Period::Span(length) if length.as_nanos().is_multiple_of(SECOND) => {
            span(length.as_secs_ceil())
        }
        period => period.to_string(),
    }
}
