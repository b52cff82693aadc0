//! The explanation as JSON.

use super::{Counters, Explanation, more_at, used};
use serde_json::{Value, json};
use tidegate_authority::Previewed;
use tidegate_core::{DeniedHits, Enforcement, Nanos, Outcome, Verdict};
use tidegate_limits::RuleKind;
use tidegate_limits::describe::{borrow, burst, initial, reset};
use tidegate_limits::lookup::{Level, Trace};
use tidegate_store::Key;

const NANOS_PER_MS: u64 = 1_000_000;

pub(super) fn of(of: &Explanation<'_>) -> Value {
    let denied_by = of.denied_by();
    let retry_after = denied_by.iter().filter_map(|limit| retry_after_ms(limit)).max();
    let can_ever = denied_by.iter().all(|limit| of.can_ever(limit));
    let looks = of.looks.iter().enumerate().map(|(index, look)| descriptor(of, index, look));
    json!({
        "domain": of.request.domain,
        "hits": of.request.hits.get(),
        "counters": match &of.counters {
            Counters::Live(_) => "live",
            Counters::Fresh | Counters::NoneYet(_) => "fresh",
        },
        "verdict": match of.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        },
        "left": of.left(),
        "denied_by": denied_by.iter().map(|limit| &limit.limit.path).collect::<Vec<_>>(),
        "can_ever": can_ever,
        "retry_after_ms": retry_after,
        "descriptors": looks.collect::<Vec<_>>(),
    })
}

fn descriptor(of: &Explanation<'_>, index: usize, look: &Trace<'_>) -> Value {
    let replaced = of.replaced_of(index);
    let replaced =
        replaced.iter().map(|(limit, by)| json!({"limit": limit.path, "replaced_by": by}));
    let entries = look.entries.iter().map(|e| json!({"key": e.key, "value": e.value}));
    json!({
        "entries": entries.collect::<Vec<_>>(),
        "levels": look.levels.iter().enumerate().map(|(i, l)| level(look, i, l)).collect::<Vec<_>>(),
        "rule": look.rule().map(|rule| &rule.path),
        "unlimited": look.rule().is_some_and(|r| matches!(r.kind, RuleKind::Unlimited { .. })),
        "hints": look.hints,
        "replaced": replaced.collect::<Vec<_>>(),
        "limits": of.limits_of(index).map(|l| limit(of, l)).collect::<Vec<_>>(),
    })
}

fn level(look: &Trace<'_>, index: usize, level: &Level<'_>) -> Value {
    json!({
        "key": level.entry.key,
        "value": level.entry.value,
        "matched": level.matched.map(ToString::to_string),
        "rule": level.rule,
        "shared": look.shared_as(index),
    })
}

fn limit(of: &Explanation<'_>, limit: &Previewed) -> Value {
    let (configured, quota) = (&limit.limit, &limit.limit.quota);
    let mut document = json!({
        "path": configured.path,
        "name": configured.name,
        "algorithm": quota.algorithm(),
        "requests": quota.requests(),
        "period_ms": quota.period().nominal().as_nanos() / NANOS_PER_MS,
        "capacity": quota.capacity(),
        "burst": burst(quota),
        "initial": initial(quota),
        "borrow": borrow(quota),
        "reset": reset(quota),
        "timezone": configured.timezone,
        "enforcement": match limit.enforcement {
            Enforcement::Enforce => "enforce",
            Enforcement::Shadow => "shadow",
            Enforcement::Quota => "quota",
        },
        "count_denied": configured.denied == DeniedHits::Count,
        "replaces": configured.replaces,
        "verdict": if limit.then.is_allow() { "allow" } else { "deny" },
        "left": limit.then.remaining,
        "can_ever": of.can_ever(limit),
        "retry_after_ms": retry_after_ms(limit),
    });
    if let Counters::Live(view) = &of.counters {
        let keys: Vec<String> =
            limit.keys.iter().map(|key| key.stored(view.seed()).to_string()).collect();
        document["keys"] = json!(keys);
        document["now"] = json!({
            "used": used(limit),
            "left": limit.now.remaining,
            "more_in_ms": more_at(limit).map(|at| ms(at.saturating_since(of.now))),
        });
        if let Some(held) = of.held_of(limit) {
            document["held"] = json!({
                "tokens": held.tokens,
                "owed": held.owed,
                "ends_in_ms": (held.tokens > 0).then(|| ms(held.until.saturating_since(of.now))),
            });
        }
    }
    document
}

fn retry_after_ms(limit: &Previewed) -> Option<u64> {
    match limit.then.outcome {
        Outcome::Allow => None,
        Outcome::Deny { retry_after } => Some(ms(retry_after)),
    }
}

/// Rounded up, so that a client that waits this long is not early.
fn ms(time: Nanos) -> u64 {
    time.as_nanos().div_ceil(NANOS_PER_MS)
}
