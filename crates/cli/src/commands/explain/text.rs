//! The explanation as text.

use super::{Counters, Explanation, capacity, more_at, used};
use crate::commands::store::place::Place;
use crate::output::Output;
use std::io::{self, Write};
use tidegate_authority::{HeldTokens, Previewed};
use tidegate_core::{DeniedHits, Enforcement, Nanos, Outcome, Verdict};
use tidegate_limits::describe::key_values;
use tidegate_limits::describe::{algorithm, limit as described, some_of};
use tidegate_limits::describe::{grouped, span, utc};
use tidegate_limits::lookup::Trace;
use tidegate_limits::unescaped;
use tidegate_limits::{Matcher, Rule, RuleKind};
use tidegate_store::Key;

/// In the data directory of a sidecar whose counters are in servers.
const SHARED: &str = "shared-counters.json";
/// Values listed for a key.
const VALUES_MAX: usize = 5;

pub(super) fn print(of: &Explanation<'_>, out: &mut Output) -> io::Result<()> {
    writeln!(out, "domain {}", of.request.domain)?;
    for (index, look) in of.looks.iter().enumerate() {
        writeln!(out, "descriptor {}", key_values(look.entries))?;
        print_look(look, out)?;
        for (limit, by) in of.replaced_of(index) {
            let name = limit.name.as_deref().unwrap_or_default();
            writeln!(out, "  limit {}", limit.path)?;
            writeln!(out, "    replaced: {by}, which the request meets too, replaces {name}")?;
        }
        for limit in of.limits_of(index) {
            print_limit(of, limit, out)?;
        }
    }
    print_verdict(of, out)
}

fn print_look(look: &Trace<'_>, out: &mut Output) -> io::Result<()> {
    let has_counter = look.rule().is_some_and(|rule| !rule.limits().is_empty());
    for (index, level) in look.levels.iter().enumerate() {
        let entry = key_values(std::slice::from_ref(level.entry));
        let how = match level.matched {
            None => "no match".to_owned(),
            Some(matched) if has_counter => {
                how(matched, &level.values) + &counter(matched, look.shared_as(index))
            }
            Some(matched) => how(matched, &level.values),
        };
        writeln!(out, "  {}. {entry}: {how}", index + 1)?;
        if level.matched.is_none() {
            break;
        }
    }
    if let Some(rule) = look.rule() {
        writeln!(out, "  rule {}{}", rule.path, of_rule(rule))?;
    }
    for hint in &look.hints {
        writeln!(out, "  {hint}")?;
    }
    Ok(())
}

/// How an entry matched.
fn how(matched: &Matcher, values: &[String]) -> String {
    match matched {
        Matcher::Exact(_) => "matches its value".to_owned(),
        Matcher::Any if values.is_empty() => "matches the key alone".to_owned(),
        Matcher::Any => {
            let values = some_of(values.iter().map(String::as_str), VALUES_MAX);
            format!("matches the key alone, as it is none of {values}")
        }
        pattern => format!("matches a pattern, {pattern}"),
    }
}

/// Whether values share a counter, for a match of several values.
fn counter(matched: &Matcher, shared: Option<&str>) -> String {
    match (matched, shared) {
        (_, Some(_)) => "; all values of the pattern share one counter".to_owned(),
        (Matcher::Exact(_), None) => String::new(),
        (_, None) => "; each value has a counter of its own".to_owned(),
    }
}

fn of_rule(rule: &Rule) -> &'static str {
    match (&rule.kind, rule.enforcement) {
        (RuleKind::Unlimited { .. }, _) => ": unlimited, so it has no counter and never denies",
        (_, Enforcement::Enforce) => "",
        (_, Enforcement::Shadow) => ": in shadow mode, so it counts and reports, but never denies",
        (_, Enforcement::Quota) => {
            ": a quota, which denies only when all quotas that the request meets are used up"
        }
    }
}

fn print_limit(of: &Explanation<'_>, limit: &Previewed, out: &mut Output) -> io::Result<()> {
    let (configured, quota) = (&limit.limit, &limit.limit.quota);
    let name = configured.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    writeln!(out, "  limit {}{name}", configured.path)?;
    writeln!(out, "    allows   {}, by {}", described(configured), algorithm(quota))?;
    if configured.denied == DeniedHits::Count {
        writeln!(out, "    counts   denied requests and debits after the fact")?;
    }
    if !configured.replaces.is_empty() {
        let names = configured.replaces.join(", ");
        writeln!(out, "    replaces {names} where the request meets both")?;
    }
    writeln!(out, "    counter  {}", identity(of, limit))?;
    if let Counters::Live(view) = &of.counters {
        let keys: Vec<String> =
            limit.keys.iter().map(|key| key.stored(view.seed()).to_string()).collect();
        writeln!(out, "    key      {}", keys.join("\n             "))?;
        writeln!(out, "    now      {}{}", state(limit), reset(of, limit))?;
        if let Some(held) = of.held_of(limit) {
            writeln!(out, "    held     {}", held_here(of, held))?;
        }
    }
    writeln!(out, "    says     {}", says(of, limit))
}

/// The identity of the counter: the parts of its key.
fn identity(of: &Explanation<'_>, limit: &Previewed) -> String {
    let look = &of.looks[limit.descriptor];
    let mut parts = vec![of.request.domain.clone()];
    for (index, entry) in look.entries.iter().enumerate() {
        parts.push(match look.shared_as(index) {
            Some(text) => format!("{}=(any of {})", entry.key, unescaped(text)),
            None => key_values(std::slice::from_ref(entry)),
        });
    }
    if !limit.limit.label.is_empty() {
        parts.push(format!("#{}", limit.limit.label));
    }
    parts.join(" ")
}

/// The use of the counter.
fn state(limit: &Previewed) -> String {
    let (left, capacity) = (grouped(limit.now.remaining), grouped(capacity(limit)));
    match used(limit) {
        Some(used) => format!("{} of {capacity} used, {left} left", grouped(used)),
        None => format!("{left} of {capacity} tokens left"),
    }
}

/// The tokens that a sidecar holds, and the hits that it has still to charge.
fn held_here(of: &Explanation<'_>, held: &HeldTokens) -> String {
    let mut words = match held.tokens {
        0 => "none here".to_owned(),
        tokens => {
            let ends = wait(held.until.saturating_since(of.now));
            format!("{} of the used ones here, until they end in {ends}", grouped(tokens))
        }
    };
    if held.owed > 0 {
        words += &format!("; {} hits are not charged yet", grouped(held.owed));
    }
    words
}

fn reset(of: &Explanation<'_>, limit: &Previewed) -> String {
    more_at(limit).map_or_else(String::new, |at| {
        let when = utc(at.as_nanos().div_ceil(1_000_000_000));
        format!("; more in {}, at {when}", wait(at.saturating_since(of.now)))
    })
}

fn says(of: &Explanation<'_>, limit: &Previewed) -> String {
    let hits = of.request.hits.get();
    let denial = match limit.then.outcome {
        Outcome::Allow => {
            let left = grouped(limit.then.remaining);
            return match of.verdict {
                Verdict::Allow if hits > 0 => format!("allowed: {left} left after it"),
                Verdict::Allow => format!("allowed: {left} left"),
                Verdict::Deny => format!("has room, but nothing is taken: {left} left"),
            };
        }
        Outcome::Deny { .. } if !of.can_ever(limit) => {
            let (needed, most) = (grouped(of.request.hits.needed()), limit.limit.quota.capacity());
            format!("{needed} hits never fit: it allows at most {}", grouped(most.into()))
        }
        Outcome::Deny { retry_after } => format!("try again in {}", wait(retry_after)),
    };
    match limit.enforcement {
        Enforcement::Enforce => format!("denied: {denial}"),
        Enforcement::Shadow => format!("over, but in shadow mode: {denial}"),
        Enforcement::Quota => format!("over its quota: {denial}"),
    }
}

fn print_verdict(of: &Explanation<'_>, out: &mut Output) -> io::Result<()> {
    let denied_by = of.denied_by();
    let hits = match of.request.hits.get() {
        1 => String::new(),
        hits => format!(" {} hits", grouped(hits)),
    };
    match (of.verdict, of.left()) {
        (Verdict::Allow, None) => writeln!(out, "allowed{hits}: no limit applies")?,
        (Verdict::Allow, Some(left)) => writeln!(out, "allowed{hits}: {} left", grouped(left))?,
        (Verdict::Deny, _) => {
            for limit in denied_by {
                let when = match limit.then.outcome {
                    Outcome::Deny { retry_after } if of.can_ever(limit) => {
                        format!("try again in {}", wait(retry_after))
                    }
                    _ => "never fits".to_owned(),
                };
                writeln!(out, "denied{hits} by {}: {when}", limit.limit.path)?;
            }
        }
    }
    match &of.counters {
        Counters::Fresh if !of.limits.is_empty() => {
            writeln!(out, "(with fresh counters; --data-dir DIR uses the live ones)")
        }
        Counters::Live(Place::Dir(dir, ..)) if dir.join(SHARED).exists() => {
            writeln!(
                out,
                "(this sidecar shares its counters; --authority URL beside --data-dir shows them)"
            )
        }
        Counters::NoneYet(dir) if !of.limits.is_empty() => {
            let dir = dir.display();
            writeln!(out, "({dir} has no counters yet: this is the answer for fresh ones)")
        }
        _ => Ok(()),
    }
}

/// A time to wait, rounded up as in replies.
fn wait(time: Nanos) -> String {
    span(time.as_secs_ceil())
}
