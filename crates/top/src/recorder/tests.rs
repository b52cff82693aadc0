use super::*;
use crate::DECAY_SECONDS;
use crate::respond::{Question, respond};
use serde_json::{Value, json};
use std::time::Instant;
use tidegate_authority::{Authority, Modes, open_store, wait};
use tidegate_core::{Descriptor, Hits, Request, Timestamp};
use tidegate_limits::{SameDomain, load};
use tidegate_recent::{Recent, Sinks};

const LIMITS: &str = "\
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: app, rate_limit: { unit: minute, requests_per_unit: 100 } }
";

/// Decides calls of one hit under the limits, and answers a question about them.
fn asked(calls: &[(&str, &[(&str, &str)])], query: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let rules = load(&limits, SameDomain::Refuse).unwrap().rules;
    let store = open_store(64, &dir.path().join("data")).unwrap();
    let recorder = Recorder::default();
    let sinks = Sinks { prompt: Some(Arc::new(recorder.clone())), patient: None };
    let recent = Recent::new(sinks);
    let observer = Arc::new(recent.clone());
    let authority = Authority::new(store, rules, Modes::default(), observer).unwrap();
    let now = Timestamp::from_nanos(30_000_000_000);
    for (domain, descriptors) in calls {
        let descriptors = descriptors.iter();
        let descriptors = descriptors
            .map(|(key, value)| Descriptor::new(vec![Entry::new(*key, *value)]))
            .collect();
        let request = Request { domain: (*domain).to_owned(), descriptors, hits: Hits::new(1) };
        let answer = authority.decide(&request, now);
        wait(answer).unwrap();
    }
    recent.pass_on_prompt();
    let body = respond(&Question::parse(query).unwrap(), &recorder.summary()).body;
    body["descriptors"].as_array().unwrap().clone()
}

fn picked(row: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), row[*name].clone())).collect()
}

#[test]
fn who_is_denied_is_named_with_its_rule_and_its_wait() {
    let both: &[(&str, &str)] = &[("user", "eve"), ("app", "web")];
    let calls = [("shop", both); 5];
    let rows = asked(&calls, "order=denied");
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let names = ["domain", "entries", "met", "rule", "remaining", "capacity", "in_envoy"];
    let expected = json!({
        "domain": "shop", "entries": [{"key": "user", "value": "eve"}],
        "met": "rule", "rule": "shop/user", "remaining": 0, "capacity": 3, "in_envoy": 0.0,
    });
    assert_eq!(picked(row, &names), expected);
    assert_eq!(row["hits"]["denied"], json!(2));
    // The sketch of denied hits knows it since the first sum with one.
    assert!(row["hits"]["allowed"].as_u64().unwrap() <= 3, "{row}");
    let retry = row["retry_ms"].as_u64().unwrap();
    assert!((25_000..=30_000).contains(&retry), "the window ends 30 s later: {retry}");
    // The other descriptor had room: its hits are not denied by its rule.
    let began = Instant::now();
    let rows = asked(&calls, "rule=shop/app");
    let decayed = 0.2 * (-began.elapsed().as_secs_f64() / DECAY_SECONDS).exp();
    assert_eq!(rows[0]["hits"], json!({"allowed": 3, "denied": 0}));
    let rate = rows[0]["rate"]["denied_elsewhere"].as_f64().unwrap();
    // It is rounded to thousandths.
    assert!((decayed - 0.001..=0.2).contains(&rate), "{rate}, at least {decayed}");
}

#[test]
fn what_met_no_rule_is_named_by_domain() {
    let calls: [(&str, &[(&str, &str)]); 3] =
        [("shop", &[("usr", "eve")]), ("other", &[("user", "a")]), ("shop", &[("user", "b")])];
    let rows = asked(&calls, "rule=none");
    let named = |row: &Value| picked(row, &["domain", "met"]);
    let expected = [
        json!({"domain": "other", "met": "unknown_domain"}),
        json!({"domain": "shop", "met": "no_rule"}),
    ];
    assert_eq!(rows.iter().map(named).collect::<Vec<_>>(), expected);
    assert_eq!(asked(&calls, "rule=none&domain=shop").len(), 1);
    assert_eq!(asked(&calls, "").len(), 3);
}
