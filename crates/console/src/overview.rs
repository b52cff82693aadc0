//! `/v1/overview`: the counts of a sidecar by domain, its counters, its processes, and the standing of its limits.
//!
//! Counts are sums since the start of each process. Who asks again makes rates of the differences, so nothing is kept for that.

use crate::Response;
use crate::limits::summary;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tidegate_feeds::Standing;
use tidegate_stats::Snapshot;

/// Domains of an answer; the ones with the most hits.
const DOMAINS_MAX: usize = 200;

/// What an overview is of.
#[derive(Debug)]
pub struct Overview<'a> {
    pub snapshot: &'a Snapshot,
    pub standing: &'a Standing,
    pub about: About<'a>,
}

/// About the processes of a sidecar.
#[derive(Debug)]
pub struct About<'a> {
    pub version: &'a str,
    pub now_ms: u64,
    pub started_ms: u64,
    /// Worker processes that serve, and how many there should be; none if the process serves by itself.
    pub workers: Option<(usize, u32)>,
    /// Why nothing can be decided.
    pub failing: Option<&'a str>,
    /// What is wrong although requests are decided.
    pub degraded: Option<&'a str>,
    /// Whether it is known who is limited now.
    pub has_top: bool,
    /// Whether there is a place for statistics.
    pub has_statistics: bool,
    /// Whether the limits deny nothing, by a flag.
    pub is_shadow: bool,
}

#[derive(Debug, Default)]
struct DomainHits {
    allowed: u64,
    denied: u64,
    denied_elsewhere: u64,
    shadowed: u64,
    in_envoy: u64,
    unmatched: u64,
}

impl DomainHits {
    fn hits(&self) -> u64 {
        let parts = [self.denied, self.denied_elsewhere, self.shadowed, self.unmatched];
        parts.into_iter().fold(self.allowed, u64::saturating_add)
    }

    fn json(&self, name: &str) -> Value {
        json!({
            "domain": name,
            "allowed": self.allowed,
            "denied": self.denied,
            "denied_elsewhere": self.denied_elsewhere,
            "shadowed": self.shadowed,
            "in_envoy": self.in_envoy,
            "unmatched": self.unmatched,
        })
    }
}

#[must_use]
pub fn respond(of: &Overview<'_>) -> Response {
    let Overview { snapshot, standing, about } = of;
    let mut domains: Vec<(&str, DomainHits)> = by_domain(snapshot).into_iter().collect();
    // Also by name, so that equal ones do not change places.
    domains.sort_by(|(a_name, a), (b_name, b)| b.hits().cmp(&a.hits()).then(a_name.cmp(b_name)));
    let more = domains.len().saturating_sub(DOMAINS_MAX);
    let domains = domains.iter().take(DOMAINS_MAX).map(|(name, hits)| hits.json(name));
    let workers = about.workers.map(|(serving, of)| json!({ "serving": serving, "of": of }));
    Response::ok(json!({
        "version": about.version,
        "now_ms": about.now_ms,
        "started_ms": about.started_ms,
        "workers": workers,
        "failing": about.failing,
        "degraded": about.degraded,
        "has_top": about.has_top,
        "has_statistics": about.has_statistics,
        "shadow": about.is_shadow,
        "domains": domains.collect::<Vec<_>>(),
        "more_domains": more,
        "answers": labelled(snapshot, "answers"),
        "undecided": labelled(snapshot, "undecided"),
        "shed": labelled(snapshot, "shed"),
        "unknown_domain": snapshot.value("domain_not_found"),
        "store": store(snapshot),
        "shared": shared(snapshot),
        "cold": cold(snapshot),
        "statistics": statistics(snapshot),
        "limits": summary(standing),
    }))
}

fn by_domain(snapshot: &Snapshot) -> BTreeMap<&str, DomainHits> {
    let mut domains: BTreeMap<&str, DomainHits> = BTreeMap::new();
    for (labels, hits) in snapshot.samples("domain_hits") {
        let [(_, domain), (_, verdict)] = labels else { continue };
        let of = domains.entry(domain).or_default();
        let count = match verdict.as_str() {
            "allowed" => &mut of.allowed,
            "denied" => &mut of.denied,
            "denied_elsewhere" => &mut of.denied_elsewhere,
            _ => &mut of.shadowed,
        };
        *count = count.saturating_add(hits);
    }
    for (labels, hits) in snapshot.samples("domain_hits_in_envoy") {
        if let Some((_, domain)) = labels.first() {
            domains.entry(domain).or_default().in_envoy = hits;
        }
    }
    for (labels, hits) in snapshot.samples("unmatched_descriptors") {
        if let Some((_, domain)) = labels.first() {
            domains.entry(domain).or_default().unmatched = hits;
        }
    }
    domains
}

/// The samples of a family with one label, as an object.
fn labelled(snapshot: &Snapshot, family: &str) -> Value {
    let pairs = snapshot.samples(family);
    let pairs = pairs.filter_map(|(labels, value)| Some((labels.first()?.1.clone(), json!(value))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn store(snapshot: &Snapshot) -> Value {
    let mut classes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (labels, nodes) in snapshot.samples("store_nodes") {
        if let Some((_, class)) = labels.first() {
            classes.entry(class).or_default().0 = nodes;
        }
    }
    for (labels, occupied) in snapshot.samples("store_occupied") {
        if let Some((_, class)) = labels.first() {
            classes.entry(class).or_default().1 = occupied;
        }
    }
    let classes = classes.into_iter().map(|(class, (nodes, occupied))| {
        json!({ "class": class, "nodes": nodes, "occupied": occupied })
    });
    json!({
        "classes": classes.collect::<Vec<_>>(),
        "refused": snapshot.value("store_refused"),
        "evicted_live": snapshot.value("store_evicted_live"),
        "updates": snapshot.value("store_updates"),
        "unsaved_seconds": snapshot.value("store_unsaved_seconds"),
        "stuck_processes": snapshot.value("store_stuck_processes"),
    })
}

fn shared(snapshot: &Snapshot) -> Option<Value> {
    let is_up = snapshot.value("shared_up")?;
    Some(json!({
        "up": is_up == 1,
        "commands": snapshot.value("shared_commands"),
        "failed": snapshot.value("shared_commands_failed"),
        "taken_tokens": snapshot.value("shared_taken_tokens"),
        "returned_tokens": snapshot.value("shared_returned_tokens"),
        "decided_without": labelled(snapshot, "shared_decided_without"),
    }))
}

fn cold(snapshot: &Snapshot) -> Option<Value> {
    let is_up = snapshot.value("cold_up")?;
    Some(json!({
        "up": is_up == 1,
        "moved": snapshot.value("cold_moved"),
        "moved_on": snapshot.value("cold_moved_on"),
        "fetched": snapshot.value("cold_fetched"),
        "fetched_in_vain": snapshot.value("cold_fetched_in_vain"),
        "spared": snapshot.value("cold_spared"),
        "without_state": snapshot.value("cold_without_state"),
    }))
}

fn statistics(snapshot: &Snapshot) -> Option<Value> {
    let is_up = snapshot.value("statistics_up")?;
    Some(json!({
        "up": is_up == 1,
        "dropped": snapshot.value("statistics_dropped"),
        "backlog_bytes": snapshot.value("statistics_backlog_bytes"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scene;

    fn about() -> About<'static> {
        About {
            version: "1",
            now_ms: 7_000,
            started_ms: 5_000,
            workers: Some((1, 2)),
            failing: None,
            degraded: Some("x"),
            has_top: true,
            has_statistics: false,
            is_shadow: false,
        }
    }

    #[test]
    fn hits_count_once_for_each_descriptor_by_domain() {
        let shop = "
domain: shop
descriptors:
- key: two
  rate_limits:
  - {name: small, unit: day, requests: 1}
  - {name: large, unit: day, requests: 2}
- {key: free, rate_limit: {unlimited: true}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests: 1}}
";
        let scene = Scene::new(&[shop, "domain: idle\ndescriptors: [{key: k}]"]);
        for _ in 0..4 {
            scene.ask("shop", &["two=1", "free=1", "none=1"]);
            scene.ask("shop", &["dark=1"]);
            scene.ask("other", &["two=1"]);
        }
        let snapshot = scene.snapshot();
        let standing = Standing::default();
        let body =
            respond(&Overview { snapshot: &snapshot, standing: &standing, about: about() }).body;
        // Of the key `two` 1 fits; the other 3 had their room elsewhere denied.
        let expected = json!([
            {
                "domain": "shop", "allowed": 1 + 1 + 1, "denied": 3, "denied_elsewhere": 3, "shadowed": 3,
                "in_envoy": 0, "unmatched": 4,
            },
            {
                "domain": "idle", "allowed": 0, "denied": 0, "denied_elsewhere": 0, "shadowed": 0,
                "in_envoy": 0, "unmatched": 0,
            },
        ]);
        assert_eq!(body["domains"], expected);
        assert_eq!((&body["more_domains"], &body["unknown_domain"]), (&json!(0), &json!(4)));
        assert_eq!(body["workers"], json!({"serving": 1, "of": 2}));
        let narrow = &body["store"]["classes"][0];
        assert_eq!((&narrow["class"], &narrow["occupied"]), (&json!("narrow"), &json!(3)));
        assert!(narrow["nodes"].as_u64().unwrap() >= 1_000, "{narrow}");
        let others = ["shared", "cold", "statistics"].map(|name| &body[name]);
        assert_eq!(others, [&Value::Null; 3]);
        assert_eq!(body["answers"], json!({"ok": 9, "over_limit": 3, "returned": 0, "error": 0}));
    }

    #[test]
    fn an_overview_has_a_bounded_number_of_domains() {
        let files: Vec<String> =
            (0..DOMAINS_MAX + 3).map(|n| format!("domain: d{n}\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests: 9}}}}]")).collect();
        let scene = Scene::new(&files.iter().map(String::as_str).collect::<Vec<_>>());
        scene.ask("d201", &["k=1"]);
        let snapshot = scene.snapshot();
        let standing = Standing::default();
        let body =
            respond(&Overview { snapshot: &snapshot, standing: &standing, about: about() }).body;
        assert_eq!(body["domains"].as_array().unwrap().len(), DOMAINS_MAX);
        assert_eq!(
            (&body["domains"][0]["domain"], &body["more_domains"]),
            (&json!("d201"), &json!(3))
        );
    }
}
