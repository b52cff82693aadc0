//! `/v1/rules`: the rules in force, each with its limits in words and its counts.
//!
//! The answer lists rules by path, at most [`ROWS_MAX`] of them. The console draws the tree. `find` and `domain` narrow the
//! list, and `order` says which rules come first.

use crate::{Parameter, Response, no_parameter};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use tidegate_core::{DeniedHits, Enforcement, Entry};
use tidegate_limits::describe::{algorithm, numbers};
use tidegate_limits::{Rule, RuleKind, RuleNode, Rules, segment as path_segment, unescaped};
use tidegate_stats::{RuleHits, RuleUse};

const ROWS: usize = 500;
pub const ROWS_MAX: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    domain: Option<String>,
    /// A part of the path, in lower case.
    find: String,
    order: Order,
    rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Path,
    Hits,
    Denied,
}

impl Question {
    /// # Errors
    /// A message, for a parameter that does not exist or has a wrong value.
    pub fn parse(parameters: &[Parameter]) -> Result<Question, String> {
        let mut question =
            Question { domain: None, find: String::new(), order: Order::Path, rows: ROWS };
        for (name, value) in parameters {
            match name.as_str() {
                "domain" => question.domain = Some(value.clone()),
                "find" => question.find = value.to_lowercase(),
                "order" => {
                    question.order = match value.as_str() {
                        "path" => Order::Path,
                        "hits" => Order::Hits,
                        "denied" => Order::Denied,
                        _ => return Err("`order` must be `path`, `hits` or `denied`".to_owned()),
                    };
                }
                "n" => {
                    let rows = value.parse().ok().filter(|rows| (1..=ROWS_MAX).contains(rows));
                    question.rows =
                        rows.ok_or_else(|| format!("`n` must be a number from 1 to {ROWS_MAX}"))?;
                }
                _ => return Err(no_parameter(name, "domain, find, order, n")),
            }
        }
        Ok(question)
    }

    fn takes(&self, rule: &Rule) -> bool {
        let domain = rule.path.split('/').next().unwrap_or_default();
        self.domain.as_ref().is_none_or(|wanted| unescaped(domain) == *wanted)
            && (self.find.is_empty() || unescaped(&rule.path).to_lowercase().contains(&self.find))
    }
}

/// The hits of a rule or a limit since the start, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Counts {
    hits: u64,
    /// Let through with room.
    allowed: u64,
    /// Without room: denied, unless the rule only reports.
    over: u64,
    denied_elsewhere: u64,
    /// Of those without room, those that shadow mode let through.
    shadowed: u64,
    in_envoy: u64,
}

impl From<RuleHits> for Counts {
    fn from(of: RuleHits) -> Counts {
        Counts {
            hits: of.hits(),
            allowed: of.allowed(),
            over: of.over(),
            denied_elsewhere: of.denied_elsewhere(),
            shadowed: of.shadowed(),
            in_envoy: of.in_envoy(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    path: &'a str,
    domain: String,
    levels: Vec<Level>,
    enforcement: &'static str,
    unlimited: bool,
    limits: Vec<LimitRow<'a>>,
    /// Of the descriptors that met the rule. Each of its limits has the same number of hits.
    counts: Counts,
}

/// One step of a path: the key, and what its values must be.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Level {
    key: String,
    /// `is`, `prefix`, `regex` or `cidr`; none for any value.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

#[derive(Debug, Serialize)]
struct LimitRow<'a> {
    path: &'a str,
    name: Option<&'a str>,
    /// The rate and what differs from defaults, such as `1,000 per minute, burst 200`.
    words: String,
    algorithm: &'static str,
    capacity: u32,
    count_denied: bool,
    counts: Counts,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    rules: Vec<Row<'a>>,
    /// Rules that were asked for and have no room.
    more: usize,
    /// All rules in force.
    total: usize,
    domains: Vec<&'a str>,
}

/// Domains that are named; readers choose among them.
const DOMAINS_MAX: usize = 1_000;

#[must_use]
pub fn respond(question: &Question, rules: &Rules, used: &RuleUse) -> Response {
    let all = rules.rules();
    let total = all.len();
    let mut wanted: Vec<&Rule> =
        all.into_iter().map(|rule| &**rule).filter(|rule| question.takes(rule)).collect();
    let counts = counts(rules, used);
    let of = |path: &str| counts.get(path).copied().unwrap_or_default();
    let of_rule = |rule: &Rule| rule_counts(rule, of);
    match question.order {
        // As they are.
        Order::Path => {}
        Order::Hits => wanted.sort_by_cached_key(|rule| Reverse(of_rule(rule).hits)),
        Order::Denied => wanted.sort_by_cached_key(|rule| {
            let Counts { over, denied_elsewhere, .. } = of_rule(rule);
            Reverse(over.saturating_add(denied_elsewhere))
        }),
    }
    let more = wanted.len().saturating_sub(question.rows);
    let rows = wanted.into_iter().take(question.rows).map(|rule| row(rule, of_rule(rule), of));
    let mut domains = rules.domain_names();
    domains.truncate(DOMAINS_MAX);
    let answer = Answer { rules: rows.collect(), more, total, domains };
    match serde_json::to_value(&answer) {
        Ok(body) => Response::ok(body),
        Err(_) => Response::error(500, "the rules cannot be written"),
    }
}

fn row(rule: &Rule, counts: Counts, of: impl Fn(&str) -> Counts) -> Row<'_> {
    let (domain, levels) = split(&rule.path);
    let limits = rule.limits().iter().map(|limit| LimitRow {
        path: &limit.path,
        name: limit.name.as_deref(),
        words: numbers(&limit.quota),
        algorithm: algorithm(&limit.quota),
        capacity: limit.quota.capacity(),
        count_denied: limit.denied == DeniedHits::Count,
        counts: of(&limit.path),
    });
    Row {
        path: &rule.path,
        domain,
        levels,
        enforcement: enforcement(rule.enforcement),
        unlimited: matches!(rule.kind, RuleKind::Unlimited { .. }),
        limits: limits.collect(),
        counts,
    }
}

pub(crate) fn enforcement(of: Enforcement) -> &'static str {
    match of {
        Enforcement::Enforce => "enforce",
        Enforcement::Shadow => "shadow",
        Enforcement::Quota => "quota",
    }
}

/// The counts of a rule: those of its limit, or of several limits what they agree on. Hits that any of them denied were
/// not let through.
fn rule_counts(rule: &Rule, of: impl Fn(&str) -> Counts) -> Counts {
    match rule.limits() {
        [] => of(&rule.path),
        [only] => of(&only.path),
        limits => {
            let each = limits.iter().map(|limit| of(&limit.path));
            each.reduce(|a, b| if b.over > a.over { b } else { a }).unwrap_or_default()
        }
    }
}

/// The domain and the levels of a path.
fn split(path: &str) -> (String, Vec<Level>) {
    let mut segments = path.split('/');
    let domain = unescaped(segments.next().unwrap_or_default());
    let level = |segment: &str| {
        let Some((key, spelt)) = segment.split_once('=') else {
            return Level { key: unescaped(segment), by: None, value: None };
        };
        // In the spelling of a plain value no sign of equality is left.
        let (by, value) = spelt.split_once('=').unwrap_or(("is", spelt));
        Level { key: unescaped(key), by: Some(by.to_owned()), value: Some(unescaped(value)) }
    };
    (domain, segments.map(level).collect())
}

/// The counts by the paths of rules without limits and of limits. Series that have values of requests in their names
/// count for their rules.
fn counts<'a>(rules: &'a Rules, used: &RuleUse) -> HashMap<&'a str, Counts> {
    let (mut paths, mut is_detailed) = (HashMap::new(), false);
    for rule in rules.rules() {
        is_detailed |= rule.metric_values.contains(&true);
        let limits = rule.limits().iter().map(|limit| limit.path.as_str());
        let own = rule.limits().is_empty().then_some(rule.path.as_str());
        paths.extend(limits.chain(own).map(|path| (path, RuleHits::default())));
    }
    let mut walk = Walk { rules, known: HashMap::new() };
    for (name, hits) in used.iter() {
        if let Some(sum) = paths.get_mut(name) {
            sum.add(hits);
        } else if is_detailed && let Some(sum) = walk.met(name).and_then(|path| paths.get_mut(path))
        {
            sum.add(hits);
        }
    }
    paths.into_iter().map(|(path, hits)| (path, hits.into())).collect()
}

/// Finds the rules of series that have values of requests in their names. Values were cut when a series was named, so those
/// of a long one may lead to no rule.
struct Walk<'a> {
    rules: &'a Rules,
    /// Nodes that patterns lead to, by the address of the node before and the segment: to find one takes a look at all
    /// children.
    known: HashMap<(usize, String), Option<&'a RuleNode>>,
}

impl<'a> Walk<'a> {
    /// The path of the limit, or of the rule that has none.
    fn met(&mut self, name: &str) -> Option<&'a str> {
        let (path, label) = match name.split_once('#') {
            Some((path, _)) => (path, Some(&name[path.len()..])),
            None => (name, None),
        };
        let mut segments = path.split('/');
        let mut node = self.rules.root(&unescaped(segments.next()?))?;
        for segment in segments {
            node = self.next(node, segment)?;
        }
        let rule = node.rule()?;
        let mut limits = rule.limits().iter().map(|limit| limit.path.as_str());
        match label {
            _ if rule.limits().is_empty() => Some(&rule.path),
            None => limits.next(),
            Some(label) => limits.find(|limit| limit.ends_with(label)),
        }
    }

    fn next(&mut self, node: &'a RuleNode, segment: &str) -> Option<&'a RuleNode> {
        if let Some((key, value)) =
            segment.split_once('=').filter(|(_, value)| !value.contains('='))
        {
            return Some(node.next(&Entry::new(unescaped(key), unescaped(value)))?.node);
        }
        let known = (std::ptr::from_ref(node).addr(), segment.to_owned());
        *self.known.entry(known).or_insert_with(|| {
            let key = unescaped(segment.split('=').next().unwrap_or_default());
            let mut of_key = node.children().filter(|child| child.key == key);
            of_key
                .find(|child| path_segment(child.key, child.matcher) == segment)
                .map(|child| child.node)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, parameters};
    use serde_json::{Value, json};

    const SHOP: &str = "
domain: shop
descriptors:
- {key: app, value: web, rate_limit: {unit: day, requests: 2}}
- key: app
  match: {prefix: t}
  descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: day, requests: 1}}
- key: two
  rate_limits:
  - {name: small, unit: day, requests: 1}
  - {name: large, unit: day, requests: 9, count_denied: true}
- {key: free, rate_limit: {unlimited: true}}
- {key: dark, shadow_mode: true, rate_limit: {algorithm: token_bucket, requests: 1, period: 1d}}
";
    const OTHER: &str = "
domain: a/b
descriptors:
- {key: 'k=1', value: 'x/#%', rate_limit: {unit: minute, requests: 5}}
";

    fn ask(scene: &Scene, pairs: &[(&str, &str)]) -> Value {
        let question = Question::parse(&parameters(pairs)).unwrap();
        scene.authority.with_limits(|rules| respond(&question, rules, &scene.rule_use())).body
    }

    fn paths(answer: &Value) -> Vec<&str> {
        answer["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["path"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn each_rule_has_its_limits_in_words_and_its_counts() {
        let scene = Scene::new(&[SHOP, OTHER]);
        for _ in 0..3 {
            scene.ask("shop", &["app=web"]);
            scene.ask("shop", &["two=1"]);
            scene.ask("shop", &["free=1"]);
            scene.ask("shop", &["dark=1"]);
        }
        let answer = ask(&scene, &[]);
        assert_eq!((&answer["total"], &answer["more"]), (&json!(6), &json!(0)));
        assert_eq!(answer["domains"], json!(["a/b", "shop"]));
        let counts = |[hits, allowed, over, denied_elsewhere, shadowed]: [u64; 5]| {
            json!({
                "hits": hits, "allowed": allowed, "over": over, "denied_elsewhere": denied_elsewhere,
                "shadowed": shadowed, "in_envoy": 0,
            })
        };
        let rule = |path: &str| {
            let rules = answer["rules"].as_array().unwrap();
            rules.iter().find(|rule| rule["path"] == path).unwrap().clone()
        };
        let web = json!({
            "path": "shop/app=web", "domain": "shop",
            "levels": [{"key": "app", "by": "is", "value": "web"}],
            "enforcement": "enforce", "unlimited": false,
            "limits": [{
                "path": "shop/app=web", "name": null, "words": "2 per day", "algorithm": "fixed_window",
                "capacity": 2, "count_denied": false, "counts": counts([3, 2, 1, 0, 0]),
            }],
            "counts": counts([3, 2, 1, 0, 0]),
        });
        assert_eq!(rule("shop/app=web"), web);
        let two = rule("shop/two");
        assert_eq!(two["counts"], counts([3, 1, 2, 0, 0]));
        assert_eq!(two["limits"][0]["counts"], counts([3, 1, 2, 0, 0]));
        assert_eq!(two["limits"][1]["path"], "shop/two#large");
        assert_eq!(two["limits"][1]["count_denied"], true);
        let free = rule("shop/free");
        assert_eq!((&free["unlimited"], &free["counts"]), (&json!(true), &counts([3, 3, 0, 0, 0])));
        let dark = rule("shop/dark");
        assert_eq!(
            (&dark["enforcement"], &dark["counts"]),
            (&json!("shadow"), &counts([3, 1, 2, 0, 2]))
        );
        // What separates the parts of a path may be in a part.
        let odd = rule("a%2Fb/k%3D1=x%2F%23%25");
        assert_eq!(odd["domain"], "a/b");
        assert_eq!(odd["levels"], json!([{"key": "k=1", "by": "is", "value": "x/#%"}]));
        let user = rule("shop/app=prefix=t/user");
        let levels = json!([{"key": "app", "by": "prefix", "value": "t"}, {"key": "user"}]);
        assert_eq!(user["levels"], levels);
    }

    /// Series with values in their names left the counts of their rule at 0.
    #[test]
    fn series_with_values_count_for_their_rule() {
        let scene = Scene::new(&[SHOP]);
        for user in ["u1", "u1", "u2", "a%=#b"] {
            scene.ask("shop", &[&format!("app=t{user}/user={user}")]);
        }
        let answer = ask(&scene, &[("find", "/USER")]);
        assert_eq!(paths(&answer), ["shop/app=prefix=t/user"]);
        let counts = &answer["rules"][0]["counts"];
        assert_eq!((&counts["hits"], &counts["over"]), (&json!(4), &json!(1)));
    }

    #[test]
    fn rules_are_found_ordered_and_bounded() {
        let scene = Scene::new(&[SHOP, OTHER]);
        for _ in 0..5 {
            scene.ask("shop", &["app=web"]);
        }
        scene.ask("shop", &["two=1"]);
        let busiest = ask(&scene, &[("order", "hits"), ("n", "2")]);
        assert_eq!(paths(&busiest), ["shop/app=web", "shop/two"]);
        assert_eq!(busiest["more"], 4);
        assert_eq!(paths(&ask(&scene, &[("order", "denied"), ("n", "1")])), ["shop/app=web"]);
        assert_eq!(paths(&ask(&scene, &[("domain", "a/b")])), ["a%2Fb/k%3D1=x%2F%23%25"]);
        assert!(paths(&ask(&scene, &[("domain", "a")])).is_empty());
        let refused = |name: &str, value: &str, message: &str| {
            assert_eq!(Question::parse(&parameters(&[(name, value)])), Err(message.to_owned()));
        };
        refused("n", "0", "`n` must be a number from 1 to 1000");
        refused("n", "1001", "`n` must be a number from 1 to 1000");
        refused("order", "x", "`order` must be `path`, `hits` or `denied`");
        refused("a\n", "", "\"a\\n\" is no parameter: domain, find, order, n");
    }
}
