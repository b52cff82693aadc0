//! What servers put into the spans of their calls.

use tidegate_authority::Authority;
use tidegate_core::{Answer, Descriptor, Request, Status};
use tidegate_limits::{Lookup, Rules};
use tidegate_traces::Span;

/// The name of a limit that came with a descriptor.
const BROUGHT_ALONG: &str = "(override)";

/// Adds the decision. Only descriptors that were denied are looked up again: by the limits in force now, which are the
/// same unless they have just been replaced.
#[cold]
pub(crate) fn add_decision(
    span: &mut Span,
    authority: &Authority,
    request: &Request,
    answer: &Answer,
) {
    authority.with_limits(|rules| {
        span.decided(request, answer, |descriptor, status| {
            denied_by(rules, &request.domain, descriptor, status)
        });
    });
}

/// The path of the limit that a status reports, as in metrics.
fn denied_by(rules: &Rules, domain: &str, descriptor: &Descriptor, status: &Status) -> String {
    if descriptor.limit.is_some() {
        return BROUGHT_ALONG.to_owned();
    }
    let Lookup::Rule(found) = rules.find(domain, &descriptor.entries) else { return String::new() };
    let name = status.limit.as_ref().map(|limit| limit.name.as_str()).unwrap_or_default();
    let mut limits = found.rule.limits().iter();
    let limit = limits.find(|limit| limit.name.as_deref().unwrap_or_default() == name);
    limit.map_or(&found.rule.path, |limit| &limit.path).clone()
}
