//! `/v1/key`: what one descriptor meets, and what is left; and its counters, erased or set.
//!
//! Looking counts nothing. Erasing forgets the counters of all limits of the descriptor. Setting takes or gives back hits of one
//! limit, so that as many are left as asked for.

use crate::rules::enforcement;
use crate::{Parameter, Response, no_parameter};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_authority::{Authority, LeftError, Looked, NodeError, Previewed, Undecided};
use tidegate_core::{
    DeniedHits, Descriptor, Entry, Hits, Nanos, Outcome, Request, Timestamp, Verdict,
};
use tidegate_limits::describe::{algorithm, numbers};
use tidegate_limits::lookup::{Level, Trace};
use tidegate_limits::{RuleKind, Rules};

/// More than any filter sends.
const ENTRIES_MAX: usize = 32;
const NANOS_PER_MS: u64 = 1_000_000;

/// A descriptor, and how many hits are asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question(Request);

impl Question {
    /// # Errors
    /// A message, for a parameter that does not exist or has a wrong value.
    pub fn parse(parameters: &[Parameter]) -> Result<Question, String> {
        let (mut domain, mut entries, mut hits) = (None, Vec::new(), 1);
        for (name, value) in parameters {
            match name.as_str() {
                "domain" => domain = Some(value.clone()),
                "entry" => match value.split_once('=') {
                    Some((key, value)) if !key.is_empty() => entries.push(Entry::new(key, value)),
                    _ => return Err("`entry` must be KEY=VALUE".to_owned()),
                },
                "hits" => {
                    let number = value.parse::<u32>().ok();
                    hits = number
                        .ok_or_else(|| "`hits` must be a number up to 4294967295".to_owned())?;
                }
                _ => return Err(no_parameter(name, "domain, entry, hits")),
            }
        }
        let domain = domain.ok_or_else(|| "`domain` is missing".to_owned())?;
        Ok(Question(request(domain, entries, hits)?))
    }
}

fn request(domain: String, entries: Vec<Entry>, hits: u32) -> Result<Request, String> {
    match entries.len() {
        0 => Err("an entry is missing: give all of the descriptor, in their order".to_owned()),
        1..=ENTRIES_MAX => {
            let descriptors = vec![Descriptor::new(entries)];
            Ok(Request { domain, descriptors, hits: Hits::new(hits.into()) })
        }
        _ => Err(format!("a descriptor has at most {ENTRIES_MAX} entries")),
    }
}

/// The answer to a question. Counters that machines share are asked for it.
pub async fn respond(question: &Question, authority: &Authority, now: Timestamp) -> Response {
    let request = &question.0;
    match authority.look(request, now).await {
        Ok(looked) => {
            let body = authority.with_limits(|rules| document(rules, request, &looked));
            Response::ok(body)
        }
        Err(error) => undecided(&error),
    }
}

fn undecided(error: &Undecided) -> Response {
    Response::error(503, &format!("the counters cannot be read: {error}"))
}

fn document(rules: &Rules, request: &Request, looked: &Looked) -> Value {
    let entries = request.descriptors.first().map(|first| &first.entries[..]).unwrap_or_default();
    let trace = Trace::of(rules, &request.domain, entries);
    let levels = trace.levels.iter().enumerate();
    let statistics =
        rules.statistics().iter().filter(|statistic| *statistic.domain == *request.domain);
    let statistics = statistics.filter_map(|statistic| {
        let (values, _) = statistic.values(&entries.iter().map(|e| (&*e.key, &*e.value)))?;
        let by: Vec<Value> = statistic
            .by
            .iter()
            .zip(values)
            .map(|(key, value)| json!({ "key": key, "value": value }))
            .collect();
        Some(json!({ "name": statistic.name, "by": by }))
    });
    json!({
        "domain": request.domain,
        "entries": entries.iter().map(|e| json!({ "key": e.key, "value": e.value })).collect::<Vec<_>>(),
        "hits": request.hits.get(),
        "levels": levels.map(|(index, of)| level(&trace, index, of)).collect::<Vec<_>>(),
        "rule": trace.rule().map(|rule| &rule.path),
        "unlimited": trace.rule().is_some_and(|rule| matches!(rule.kind, RuleKind::Unlimited { .. })),
        "hints": trace.hints,
        "verdict": match looked.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        },
        "limits": looked.limits.iter().map(|of| limit(looked, of)).collect::<Vec<_>>(),
        "statistics": statistics.collect::<Vec<_>>(),
    })
}

fn level(trace: &Trace<'_>, index: usize, level: &Level<'_>) -> Value {
    json!({
        "key": level.entry.key,
        "value": level.entry.value,
        "matched": level.matched.map(ToString::to_string),
        "rule": level.rule,
        "shared": trace.shared_as(index),
    })
}

fn limit(looked: &Looked, of: &Previewed) -> Value {
    let (configured, quota) = (&of.limit, &of.limit.quota);
    let capacity = u64::from(quota.capacity());
    let more_at = (of.now.remaining < capacity).then_some(of.now.reset_at);
    json!({
        "path": configured.path,
        "name": configured.name,
        "words": numbers(quota),
        "algorithm": algorithm(quota),
        "capacity": capacity,
        "enforcement": enforcement(of.enforcement),
        "count_denied": configured.denied == DeniedHits::Count,
        "left": of.now.remaining,
        "more_in_ms": more_at.map(|at| ms(at.saturating_since(looked.now))),
        "verdict": if of.then.is_allow() { "allow" } else { "deny" },
        "retry_ms": match of.then.outcome {
            Outcome::Allow => None,
            Outcome::Deny { retry_after } => Some(ms(retry_after)),
        },
        "held": looked.held_of(of).map(|held| held.tokens),
    })
}

/// Rounded up, so that a client that waits this long is not early.
fn ms(time: Nanos) -> u64 {
    time.as_nanos().div_ceil(NANOS_PER_MS)
}

/// The body of a change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    domain: String,
    entries: Vec<BodyEntry>,
    /// The path of a limit, to be set.
    limit: Option<String>,
    /// What is to be left under it.
    left: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyEntry {
    key: String,
    value: String,
}

/// A change of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Erase(Request),
    Set { request: Request, limit: String, left: u64 },
}

impl Change {
    /// Reads the body of a request to erase.
    ///
    /// # Errors
    /// A message, for a body that is none.
    pub fn erase(body: &[u8]) -> Result<Change, String> {
        match read(body)? {
            (request, None, None) => Ok(Change::Erase(request)),
            _ => Err("all limits of a descriptor are erased: `limit` and `left` are to set one"
                .to_owned()),
        }
    }

    /// Reads the body of a request to set what is left.
    ///
    /// # Errors
    /// A message, for a body that is none.
    pub fn set(body: &[u8]) -> Result<Change, String> {
        match read(body)? {
            (request, Some(limit), Some(left)) => Ok(Change::Set { request, limit, left }),
            _ => Err("`limit` and `left` are needed".to_owned()),
        }
    }

    /// The descriptor whose counters change.
    #[must_use]
    pub fn request(&self) -> &Request {
        match self {
            Change::Erase(request) | Change::Set { request, .. } => request,
        }
    }
}

fn read(body: &[u8]) -> Result<(Request, Option<String>, Option<u64>), String> {
    let Body { domain, entries, limit, left } = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not as expected: {error}"))?;
    let entries = entries.into_iter().map(|entry| Entry::new(entry.key, entry.value)).collect();
    Ok((request(domain, entries, 0)?, limit, left))
}

/// Makes a change, and says what it did.
pub async fn change(change: &Change, authority: &Authority, now: Timestamp) -> Response {
    match change {
        Change::Erase(request) => match authority.erase_node(request, now).await {
            Ok(existed) => Response::ok(json!({ "erased": existed })),
            Err(error) => refused(&error),
        },
        Change::Set { request, limit, left } => {
            match authority.set_left(request, limit, *left, now).await {
                Ok(before) => Response::ok(json!({ "left": left, "before": before })),
                Err(LeftError::Node(error)) => refused(&error),
                Err(error) => Response::error(400, &error.to_string()),
            }
        }
    }
}

fn refused(error: &NodeError) -> Response {
    match error {
        NodeError::UnknownBusiness => {
            Response::error(404, "this descriptor meets no limit, so it has no counter")
        }
        NodeError::Undecided(error) => {
            Response::error(503, &format!("the counters cannot be changed: {error}"))
        }
        other => Response::error(400, &other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Scene, parameters};
    use tidegate_authority::wait;

    const SHOP: &str = "
domain: shop
statistics:
- {name: users, by: [user]}
- {name: apps, by: [app]}
descriptors:
- key: app
  descriptors:
  - key: user
    rate_limits:
    - {name: minute, unit: minute, requests: 3}
    - {name: bucket, algorithm: token_bucket, requests: 10, period: 10s, burst: 20}
- {key: free, rate_limit: {unlimited: true}}
";

    fn ask(scene: &Scene, pairs: &[(&str, &str)]) -> Value {
        let question = Question::parse(&parameters(pairs)).unwrap();
        let response = wait(respond(&question, &scene.authority, NOW));
        assert_eq!(response.status, 200, "{response:?}");
        response.body
    }

    const EVE: [(&str, &str); 3] =
        [("domain", "shop"), ("entry", "app=web"), ("entry", "user=e=v\0e")];

    #[test]
    fn a_key_shows_what_it_meets_and_what_is_left() {
        let scene = Scene::new(&[SHOP]);
        for _ in 0..4 {
            scene.ask("shop", &["app=web/user=e=v\0e"]);
        }
        let answer = ask(&scene, &EVE);
        assert_eq!(answer["entries"][1], json!({"key": "user", "value": "e=v\0e"}));
        assert_eq!(
            (&answer["rule"], &answer["verdict"]),
            (&json!("shop/app/user"), &json!("deny"))
        );
        assert_eq!(answer["levels"][1]["rule"], "shop/app/user");
        let [minute, bucket] = &answer["limits"].as_array().unwrap()[..] else {
            panic!("{answer}")
        };
        let expected = json!({
            "path": "shop/app/user#minute", "name": "minute", "words": "3 per minute",
            "algorithm": "fixed_window", "capacity": 3, "enforcement": "enforce", "count_denied": false,
            "left": 0, "more_in_ms": 60_000, "verdict": "deny", "retry_ms": 60_000, "held": null,
        });
        assert_eq!(*minute, expected);
        assert_eq!((&bucket["left"], &bucket["capacity"]), (&json!(17), &json!(20)));
        assert_eq!((&bucket["verdict"], &bucket["retry_ms"]), (&json!("allow"), &Value::Null));
        let statistics = json!([
            {"name": "users", "by": [{"key": "user", "value": "e=v\0e"}]},
            {"name": "apps", "by": [{"key": "app", "value": "web"}]},
        ]);
        assert_eq!(answer["statistics"], statistics);
        assert_eq!(ask(&scene, &EVE)["limits"][0]["left"], 0, "looking counts nothing");

        let free = ask(&scene, &[("domain", "shop"), ("entry", "free=1")]);
        assert_eq!((&free["unlimited"], &free["limits"]), (&json!(true), &json!([])));
        let none = ask(&scene, &[("domain", "shop"), ("entry", "ap=web"), ("hits", "5")]);
        assert_eq!((&none["rule"], &none["verdict"]), (&Value::Null, &json!("allow")));
        assert!(none["hints"][0].as_str().unwrap().contains("did you mean app?"), "{none}");
        let unknown = ask(&scene, &[("domain", "x"), ("entry", "a=b")]);
        assert_eq!((&unknown["levels"], &unknown["rule"]), (&json!([]), &Value::Null));
    }

    #[test]
    fn counters_are_erased_and_set() {
        let scene = Scene::new(&[SHOP]);
        for _ in 0..3 {
            scene.ask("shop", &["app=web/user=eve"]);
        }
        let make =
            |read: Result<Change, String>| wait(change(&read.unwrap(), &scene.authority, NOW));
        let eve = r#""domain":"shop","entries":[{"key":"app","value":"web"},{"key":"user","value":"eve"}]"#;
        let left = || {
            let answer = ask(&scene, &[EVE[0], EVE[1], ("entry", "user=eve")]);
            [0, 1].map(|limit| answer["limits"][limit]["left"].as_u64().unwrap())
        };
        let body = format!(r#"{{{eve},"limit":"shop/app/user#bucket","left":5}}"#);
        let made = make(Change::set(body.as_bytes()));
        assert_eq!(made, Response::ok(json!({"left": 5, "before": 17})));
        assert_eq!(left(), [0, 5]);
        let body = format!(r#"{{{eve},"limit":"shop/app/user#minute","left":4}}"#);
        let made = make(Change::set(body.as_bytes()));
        let error = "shop/app/user#minute cannot have 4 hits left now; 3 at most";
        assert_eq!(made, Response::error(400, error));
        let body = format!("{{{eve}}}");
        assert_eq!(make(Change::erase(body.as_bytes())), Response::ok(json!({"erased": true})));
        assert_eq!(left(), [3, 20]);
        assert_eq!(make(Change::erase(body.as_bytes())), Response::ok(json!({"erased": false})));
        let none = r#"{"domain":"shop","entries":[{"key":"x","value":"y"}]}"#;
        assert_eq!(make(Change::erase(none.as_bytes())).status, 404);
    }

    #[test]
    fn mistakes_are_refused_with_their_cause() {
        let wrong = |pairs: &[(&str, &str)], message: &str| {
            assert_eq!(Question::parse(&parameters(pairs)), Err(message.to_owned()));
        };
        wrong(&[("entry", "a=b")], "`domain` is missing");
        wrong(
            &[("domain", "d")],
            "an entry is missing: give all of the descriptor, in their order",
        );
        wrong(&[("domain", "d"), ("entry", "=b")], "`entry` must be KEY=VALUE");
        wrong(&[("domain", "d"), ("entry", "a")], "`entry` must be KEY=VALUE");
        wrong(&[("hits", "-1")], "`hits` must be a number up to 4294967295");
        wrong(&[("x", "")], "\"x\" is no parameter: domain, entry, hits");
        let many = [[("domain", "d")].as_slice(), &[("entry", "a=b"); 33]].concat();
        wrong(&many, "a descriptor has at most 32 entries");
        for body in [
            "",
            "[]",
            "{}",
            r#"{"domain":"d","entries":[{"key":"a"}]}"#,
            r#"{"domain":"d","entries":[],"x":1}"#,
        ] {
            let error = Change::erase(body.as_bytes()).unwrap_err();
            assert!(error.starts_with("the body is not as expected: "), "{body}: {error}");
        }
        let eve = r#"{"domain":"d","entries":[{"key":"a","value":"b"}]"#;
        assert_eq!(
            Change::set(format!("{eve}}}").as_bytes()).unwrap_err(),
            "`limit` and `left` are needed"
        );
        assert!(Change::set(format!(r#"{eve},"limit":"d/a","left":-1}}"#).as_bytes()).is_err());
        assert!(Change::erase(format!(r#"{eve},"left":1}}"#).as_bytes()).is_err());
    }
}
