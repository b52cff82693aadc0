//! `tidegate explain`: the limits that a request meets, the reason for each, and their decisions now.
//!
//! Uses the functions of a real decision on a view of the data directory, which changes no byte, or on the states in
//! servers, which it compares and does not change. Any answer is a success.

mod json;
mod text;

use crate::arguments::ExplainOptions;
use crate::commands::UsageError;
use crate::commands::store::check_whole;
use crate::commands::store::key::{domain_of, parse_entry};
use crate::commands::store::place::Place;
use crate::output::Output;
use anyhow::{Context, anyhow};
use std::path::Path;
use std::process::ExitCode;
use tidegate_authority::clock;
use tidegate_authority::{Hashing, HeldTokens, Previewed, held_tokens, preview};
use tidegate_core::{Descriptor, Enforcement, Hits, Quota, Request, Timestamp, Verdict};
use tidegate_limits::lookup::Trace;
use tidegate_limits::{self as rules, Loaded};
use tidegate_limits::{Limit, Rules};
use tidegate_store::{Entry, Hashed, OpenFailure, View};

pub(crate) fn run(options: &ExplainOptions, out: &mut Output) -> anyhow::Result<ExitCode> {
    let mut descriptors = vec![descriptor_of(&options.entries)?];
    for entries in &options.and {
        descriptors.push(descriptor_of(&split(entries))?);
    }
    let Loaded { rules, .. } =
        rules::load(&options.limits, options.read.defaults()).map_err(|errors| {
            // One a line, as `tidegate check` prints them.
            eprintln!("{errors}");
            anyhow!("nothing can be explained until {} has no mistake", options.limits.display())
        })?;
    let domain = domain_of(&rules, options.domain.as_ref())?;
    let request = Request { domain, descriptors, hits: Hits::new(options.hits) };
    let view = options.data_dir.as_ref().map(|dir| (dir, View::open(dir)));
    let view = match view {
        None => None,
        Some((dir, Ok(view))) => Some((dir, Some(view))),
        Some((dir, Err(error))) if matches!(error.failure, OpenFailure::NoCluster) => {
            Some((dir, None))
        }
        Some((_, Err(error))) => return Err(error.into()),
    };
    let (opened, local) = match (view, &options.servers.authority) {
        (view, Some(_)) => {
            let place = Place::open(None, &options.servers, &options.cold)?;
            (Counters::Live(place), view.and_then(|(_, view)| view))
        }
        (Some((dir, Some(view))), None) => {
            (Counters::Live(Place::of_view(dir, view, &options.cold)?), None)
        }
        (Some((dir, None)), None) => (Counters::NoneYet(dir), None),
        (None, None) => (Counters::Fresh, None),
    };
    let now = match &opened {
        Counters::Live(place) => place.now(),
        Counters::Fresh | Counters::NoneYet(_) => clock::now(),
    };
    let explanation = Explanation::new(&rules, &request, opened, now)?.with_holdings(local)?;
    if options.json {
        out.json(&json::of(&explanation))?;
    } else {
        text::print(&explanation, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn descriptor_of(words: &[String]) -> Result<Descriptor, UsageError> {
    let entries = words.iter().map(|word| parse_entry(word));
    Ok(Descriptor::new(entries.collect::<Result<_, _>>()?))
}

/// The parts between commas; `\,` is a comma within a part.
fn split(entries: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut rest = entries.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' if rest.next_if_eq(&',').is_some() => word.push(','),
            ',' => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words
}

/// All data of the output.
struct Explanation<'a> {
    request: &'a Request,
    now: Timestamp,
    counters: Counters<'a>,
    /// One lookup for each descriptor.
    looks: Vec<Trace<'a>>,
    /// The limits that take part in the decision.
    limits: Vec<Previewed>,
    /// What a sidecar holds of the counter of each, if its data directory was named beside servers.
    held: Vec<HeldTokens>,
    verdict: Verdict,
}

/// The states that the limits decided on.
enum Counters<'a> {
    /// From a data directory, or from servers.
    Live(Place),
    /// New counters: no data directory was named.
    Fresh,
    /// New counters: this data directory has none yet.
    NoneYet(&'a Path),
}

impl<'a> Explanation<'a> {
    fn new(
        rules: &'a Rules,
        request: &'a Request,
        counters: Counters<'a>,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let (hashing, place) = match &counters {
            Counters::Live(place) => (place.hashing(), Some(place)),
            Counters::Fresh | Counters::NoneYet(_) => (Hashing::undivided(0), None),
        };
        let read = |key: &Hashed, words: &mut [u64]| {
            let found = place.map(|place| place.find(key, now)).transpose()?;
            fill(found.flatten(), words)
        };
        let (verdict, limits) = preview(rules, request, hashing, now, read)?;
        place.map_or(Ok(()), Place::check)?;
        let looks = request.descriptors.iter();
        let looks = looks
            .map(|descriptor| Trace::of(rules, &request.domain, &descriptor.entries))
            .collect();
        Ok(Explanation { request, now, counters, looks, limits, held: Vec::new(), verdict })
    }

    /// Adds the tokens in the data directory of a sidecar.
    fn with_holdings(mut self, local: Option<View>) -> anyhow::Result<Self> {
        let Some(local) = local else { return Ok(self) };
        for limit in &self.limits {
            let counter = (limit.counter, &limit.limit.quota);
            self.held.push(held_tokens(counter, local.seed(), self.now, |key, words| {
                fill(local.find(key, self.now.as_nanos())?, words)
            })?);
        }
        check_whole(&local)?;
        Ok(self)
    }

    /// What a sidecar holds of the counter of a limit.
    fn held_of(&self, limit: &Previewed) -> Option<&HeldTokens> {
        let index = self.limits.iter().position(|other| std::ptr::eq(other, limit))?;
        self.held.get(index)
    }

    /// The limits of a descriptor that take part in the decision.
    fn limits_of(&self, descriptor: usize) -> impl Iterator<Item = &Previewed> {
        self.limits.iter().filter(move |limit| limit.descriptor == descriptor)
    }

    /// The replaced limits of a descriptor, each with the path of the replacing rule.
    fn replaced_of(&self, descriptor: usize) -> Vec<(&'a Limit, &'a str)> {
        let Some(rule) = self.looks[descriptor].rule() else { return Vec::new() };
        let rule_that_replaces = |limit: &Limit| {
            let name = limit.name.as_deref()?;
            let mut rules = self.looks.iter().filter_map(Trace::rule);
            rules.find(|rule| rule.replaces().any(|replaced| replaced == name))
        };
        let limits = rule.limits().iter();
        limits.filter_map(|limit| Some((limit, rule_that_replaces(limit)?.path.as_str()))).collect()
    }

    /// The limits that deny the request.
    fn denied_by(&self) -> Vec<&Previewed> {
        let denies = |of: Enforcement| {
            let over = move |limit: &&Previewed| limit.enforcement == of && !limit.then.is_allow();
            self.limits.iter().filter(over).collect::<Vec<_>>()
        };
        match self.verdict {
            Verdict::Allow => Vec::new(),
            Verdict::Deny => {
                let enforced = denies(Enforcement::Enforce);
                if enforced.is_empty() { denies(Enforcement::Quota) } else { enforced }
            }
        }
    }

    /// The remaining hits of the tightest limit; none if no limit may deny. Quotas deny only when those of all
    /// descriptors are used up, so for them the descriptor with the most counts.
    fn left(&self) -> Option<u64> {
        let tightest = |limits: &mut dyn Iterator<Item = &Previewed>, of: Enforcement| {
            limits.filter(|limit| limit.enforcement == of).map(|limit| limit.then.remaining).min()
        };
        let enforced = tightest(&mut self.limits.iter(), Enforcement::Enforce);
        let quotas = (0..self.looks.len())
            .filter_map(|index| tightest(&mut self.limits_of(index), Enforcement::Quota))
            .max();
        enforced.into_iter().chain(quotas).min()
    }

    /// Whether the limit could ever allow the requested hits.
    fn can_ever(&self, limit: &Previewed) -> bool {
        self.request.hits.needed() <= capacity(limit)
    }
}

/// Copies the state of an entry.
fn fill(entry: Option<Entry>, words: &mut [u64]) -> anyhow::Result<()> {
    if let Some(entry) = entry {
        let state = entry.state.get(..words.len());
        words.copy_from_slice(state.context("the nodes have too few words for a limit")?);
    }
    Ok(())
}

/// The used hits of a window, up to its capacity; none for a token bucket, which refills and does not keep this
/// number.
fn used(limit: &Previewed) -> Option<u64> {
    match limit.limit.quota {
        Quota::TokenBucket(_) => None,
        _ => Some(capacity(limit).saturating_sub(limit.now.remaining)),
    }
}

/// When more hits become available; none while all are.
fn more_at(limit: &Previewed) -> Option<Timestamp> {
    (limit.now.remaining < capacity(limit)).then_some(limit.now.reset_at)
}

fn capacity(limit: &Previewed) -> u64 {
    limit.limit.quota.capacity().into()
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_comma_that_is_escaped_is_part_of_a_value() {
        for (text, words) in [
            ("a=1", &["a=1"][..]),
            ("a=1,b=2", &["a=1", "b=2"]),
            (r"a=1\,5,b=2", &["a=1,5", "b=2"]),
            (r"a=\,\,", &["a=,,"]),
            (r"a=C:\x,b=\", &[r"a=C:\x", r"b=\"]),
            ("a=1,", &["a=1", ""]),
            ("", &[""]),
        ] {
            assert_eq!(split(text), words, "for {text:?}");
        }
    }
}
