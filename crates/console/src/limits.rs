//! `/v1/limits`: where the limits are from, what the last reloads changed, and the mistakes of those that were refused.

use crate::Response;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_feeds::{Refusal, Reload, SourceStanding, Standing};
use tidegate_limits::diff::{Change, ChangeKind};

#[must_use]
pub fn respond(standing: &Standing) -> Response {
    let sources = standing.sources.iter().map(source).collect::<Vec<_>>();
    let reloads = standing.reloads.iter().map(reload).collect::<Vec<_>>();
    let mut body = summary(standing);
    body["sources"] = sources.into();
    body["reloads"] = reloads.into();
    Response::ok(body)
}

/// The standing in short, as a part of an overview.
pub(crate) fn summary(standing: &Standing) -> Value {
    let refused = standing.sources.iter().filter_map(|source| source.refused.as_ref());
    let mistakes: usize = refused.map(|refusal| refusal.mistakes.len() + refusal.more).sum();
    json!({
        "current": standing.sources.iter().all(|source| source.is_current),
        "loaded_ms": standing.loaded_at.map(ms),
        "limits": standing.limits,
        "domains": standing.domains,
        "mistakes": mistakes,
    })
}

fn source(source: &SourceStanding) -> Value {
    json!({
        "name": source.name,
        "arrived": source.has_arrived,
        "current": source.is_current,
        "refused": source.refused.as_ref().map(refusal),
    })
}

fn refusal(refusal: &Refusal) -> Value {
    json!({ "at_ms": ms(refusal.at), "mistakes": refusal.mistakes, "more": refusal.more })
}

fn reload(reload: &Reload) -> Value {
    let changes = reload.changes.iter().map(change);
    json!({
        "at_ms": ms(reload.at),
        "limits": reload.limits,
        "changes": changes.collect::<Vec<_>>(),
        "more": reload.more,
    })
}

fn change(change: &Change) -> Value {
    let kind = match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed => "changed",
    };
    json!({ "path": change.path, "kind": kind, "what": change.what, "means": change.means })
}

fn ms(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_refused_reload_is_shown_beside_the_last_one_in_force() {
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        let change = Change {
            path: "d/k".to_owned(),
            kind: ChangeKind::Changed,
            what: "5 per minute to 6 per minute".to_owned(),
            means: "counts are kept".to_owned(),
        };
        let reload = Reload { at: at(7), limits: 1, changes: vec![change], more: 2 };
        let mistakes = vec!["limits.yaml:3:1: no".to_owned()];
        let standing = Standing {
            sources: vec![SourceStanding {
                name: "limits.yaml".to_owned(),
                has_arrived: true,
                is_current: false,
                refused: Some(Refusal { at: at(9), mistakes, more: 1 }),
            }],
            loaded_at: Some(at(7)),
            limits: 1,
            domains: 1,
            reloads: vec![reload],
        };
        let expected = json!({
            "current": false, "loaded_ms": 7_000, "limits": 1, "domains": 1, "mistakes": 2,
            "sources": [{
                "name": "limits.yaml", "arrived": true, "current": false,
                "refused": {"at_ms": 9_000, "mistakes": ["limits.yaml:3:1: no"], "more": 1},
            }],
            "reloads": [{
                "at_ms": 7_000, "limits": 1, "more": 2,
                "changes": [{
                    "path": "d/k", "kind": "changed", "what": "5 per minute to 6 per minute",
                    "means": "counts are kept",
                }],
            }],
        });
        assert_eq!(respond(&standing).body, expected);
    }
}
