//! Counts of rules under an authority that decides and gets reports.

use crate::{Metrics, MoreCounts, RuleUse};
use std::sync::Arc;
use tidegate_authority::{Authority, Called, Modes};
use tidegate_core::{Descriptor, Entry, Hits, Report, Request, TalliedHits, Tally, Timestamp};
use tidegate_limits::{Rules, SameDomain, load};
use tidegate_store::{Cluster, Geometry, Options};
use tidegate_wire::{RequestReader, append_report, encode_request};

const LIMITS: &str = "
- {key: user, rate_limit: {unit: day, requests: 10}}
- {key: app, rate_limit: {unit: day, requests: 2}}
- {key: free, rate_limit: {unlimited: true}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests: 1}}
- key: two
  rate_limits:
  - {name: small, unit: day, requests: 3}
  - {name: large, unit: day, requests: 90}
- {key: path, detailed_metric: true, rate_limit: {unit: day, requests: 5}}
";

struct Fixture {
    authority: Authority,
    store: Arc<Cluster>,
    metrics: Metrics,
    dir: tempfile::TempDir,
    reports: u64,
}

fn rules(dir: &tempfile::TempDir, domain: &str, descriptors: &str) -> Rules {
    let path = dir.path().join("limits.yaml");
    std::fs::write(&path, format!("domain: {domain}\ndescriptors:{descriptors}")).unwrap();
    load(&path, SameDomain::Refuse).unwrap().rules
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::TempDir::new().unwrap();
        let options = Options::narrow(Geometry::by_capacity(256, 0.8).unwrap());
        let store = Arc::new(Cluster::in_memory(&options).unwrap());
        let metrics = Metrics::default();
        let rules = rules(&dir, "d", LIMITS);
        let observer = Arc::new(metrics.clone());
        let modes = Modes::default();
        let authority = Authority::new(store.clone(), rules, modes, observer).unwrap();
        Fixture { authority, store, metrics, dir, reports: 0 }
    }

    /// Asks for one hit of each, and reports tallies with it.
    fn call(&mut self, domain: &str, keys: &[&str], tallies: Vec<Tally>) {
        let descriptors = keys.iter().map(|key| Descriptor::new(vec![Entry::new(*key, "v")]));
        let descriptors = descriptors.collect();
        let request = Request { domain: domain.into(), descriptors, hits: Hits::ONE };
        let mut message = encode_request(&request);
        if !tallies.is_empty() {
            self.reports += 1;
            append_report(&Report { sequence: 1, number: self.reports, tallies }, &mut message);
        }
        let now = || Timestamp::from_secs(1_700_000_000);
        let mut reader = RequestReader::new();
        let answer = self.authority.answer_call(&mut reader, &message, |_| None, now);
        assert!(matches!(answer, Ok(Called::Answered(..))), "{answer:?}");
    }

    /// The hits of a domain: allowed, denied, denied elsewhere, shadowed, and how many of them in Envoy. None of a domain that
    /// has none.
    fn domain_hits(&self, domain: &str) -> Option<[u64; 5]> {
        let snapshot = self.metrics.snapshot(&self.store, MoreCounts::default());
        let of = |family: &str, verdict: Option<&str>| {
            let mut samples = snapshot.samples(family);
            let found = samples.find(|(labels, _)| {
                labels[0].1 == domain && labels.get(1).map(|(_, value)| value.as_str()) == verdict
            });
            found.map(|(_, hits)| hits)
        };
        let verdict = |verdict| of("domain_hits", Some(verdict));
        Some([
            verdict("allowed")?,
            verdict("denied")?,
            verdict("denied_elsewhere")?,
            verdict("shadowed")?,
            of("domain_hits_in_envoy", None)?,
        ])
    }

    /// The use of a rule or limit in both forms, which must agree: hits, allowed, over, denied elsewhere, shadowed, in Envoy.
    fn rule_use(&self, name: &str) -> Option<[u64; 6]> {
        let in_short = self.metrics.rule_use();
        assert_eq!(
            in_short,
            RuleUse::of(&self.metrics.snapshot(&self.store, MoreCounts::default()))
        );
        let found = in_short.iter().find(|(known, _)| *known == name);
        found.map(|(_, hits)| {
            [
                hits.hits(),
                hits.allowed(),
                hits.over(),
                hits.denied_elsewhere(),
                hits.shadowed(),
                hits.in_envoy(),
            ]
        })
    }

    /// The counts that are not 0, of all rules and domains, but for the hits of domains.
    fn counts(&self) -> Vec<String> {
        let text = self.metrics.snapshot(&self.store, MoreCounts::default()).text();
        let counts = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("tidegate_")?.split_once("_total{")?;
            let (label, value) = rest.split_once("} ")?;
            let of = label.split_once('=')?.1.trim_matches('"');
            let is_ours = label.starts_with("rule=") || label.starts_with("domain=");
            let is_ours = is_ours && !name.starts_with("domain_hits");
            (is_ours && value != "0").then(|| format!("{of} {name} {value}"))
        });
        counts.collect()
    }
}

fn tally(key: &str, [allowed, denied, denied_elsewhere]: [u64; 3]) -> Tally {
    Tally {
        entries: vec![Entry::new(key, "v")],
        limit: None,
        hits: TalliedHits { allowed, denied, denied_elsewhere },
        over: Vec::new(),
    }
}

#[track_caller]
fn check(found: &[String], expected: &[&str]) {
    let (mut found, mut expected) = (found.to_vec(), expected.to_vec());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// A limit with room counted the hits of requests that another limit denied as if it had let them through.
#[test]
fn hits_that_another_limit_denied_were_not_let_through() {
    let mut fixture = Fixture::new();
    for _ in 0..5 {
        fixture.call("d", &["user", "app", "free", "none"], vec![]);
    }
    let expected = [
        "d/user total_hits 5",
        "d/user within_limit 2",
        "d/user denied_elsewhere 3",
        "d/app total_hits 5",
        "d/app within_limit 2",
        "d/app near_limit 1",
        "d/app over_limit 3",
        "d/free total_hits 5",
        "d/free within_limit 2",
        "d/free denied_elsewhere 3",
        "d unmatched_descriptors 5",
    ];
    check(&fixture.counts(), &expected);
    assert_eq!(fixture.domain_hits("d"), Some([6, 3, 6, 0, 0]));
}

#[test]
fn what_the_filter_decided_counts_under_the_same_names() {
    let mut fixture = Fixture::new();
    let mut two = tally("two", [4, 3, 0]);
    two.over = vec!["small".into()];
    let tallies = vec![
        tally("user", [5, 2, 1]),
        tally("free", [7, 0, 0]),
        tally("none", [6, 0, 0]),
        tally("path", [1, 0, 0]),
        two,
    ];
    fixture.call("d", &["user"], tallies);
    let expected = [
        "d/user total_hits 9",
        "d/user within_limit 6",
        "d/user over_limit 2",
        "d/user denied_elsewhere 1",
        "d/user decided_in_envoy 8",
        "d/free total_hits 7",
        "d/free within_limit 7",
        "d/free decided_in_envoy 7",
        "d unmatched_descriptors 6",
        "d/path=v total_hits 1",
        "d/path=v within_limit 1",
        "d/path=v decided_in_envoy 1",
        "d/two#small total_hits 7",
        "d/two#small within_limit 4",
        "d/two#small over_limit 3",
        "d/two#small decided_in_envoy 7",
        "d/two#large total_hits 7",
        "d/two#large within_limit 4",
        "d/two#large denied_elsewhere 3",
        "d/two#large decided_in_envoy 7",
    ];
    check(&fixture.counts(), &expected);
    assert_eq!(fixture.rule_use("d/user"), Some([9, 6, 2, 1, 0, 8]));
    assert_eq!(fixture.rule_use("d/two#small"), Some([7, 4, 3, 0, 0, 7]));
    assert_eq!(fixture.rule_use("d/app"), None);
    let brief = fixture.metrics.brief_with_store(&fixture.store, MoreCounts::default());
    let domain = brief.samples("domain_hits_in_envoy").next().map(|(_, hits)| hits);
    assert_eq!((domain, brief.samples("total_hits").count()), (Some(23), 0));
    // Hits of a rule with two limits count once.
    assert_eq!(fixture.domain_hits("d"), Some([6 + 7 + 1 + 4, 2 + 3, 1, 0, 8 + 7 + 1 + 7]));
}

#[test]
fn hits_over_a_limit_in_shadow_mode_are_over_it_though_they_pass() {
    let mut fixture = Fixture::new();
    for _ in 0..3 {
        fixture.call("d", &["dark"], vec![]);
    }
    let expected = [
        "d/dark total_hits 3",
        "d/dark within_limit 1",
        "d/dark near_limit 1",
        "d/dark over_limit 2",
        "d/dark shadow_mode 2",
    ];
    check(&fixture.counts(), &expected);
    assert_eq!(fixture.domain_hits("d"), Some([1, 0, 0, 2, 0]));
}

/// Clients choose the names of domains.
#[test]
fn only_configured_domains_are_labels() {
    let mut fixture = Fixture::new();
    fixture.call("other", &["user"], vec![tally("user", [1, 0, 0])]);
    fixture.call("d", &["none"], vec![]);
    check(&fixture.counts(), &["d unmatched_descriptors 1"]);
    let rules = rules(&fixture.dir, "e", LIMITS);
    fixture.authority.replace_limits(rules).unwrap();
    fixture.call("d", &["none"], vec![]);
    fixture.call("e", &["none"], vec![]);
    check(&fixture.counts(), &["e unmatched_descriptors 1"]);
    assert_eq!(fixture.domain_hits("e"), Some([0; 5]));
    assert_eq!((fixture.domain_hits("d"), fixture.domain_hits("other")), (None, None));
}

/// Peers write reports: numbers of any size do not make a count wrap.
#[test]
fn enormous_reports_do_not_wrap_a_count() {
    let mut fixture = Fixture::new();
    for _ in 0..1_000 {
        fixture.call("d", &["none"], vec![tally("free", [u64::MAX; 3])]);
    }
    let most = 1_000_u64 << 42;
    let expected = [
        format!("d/free total_hits {}", 3 * most),
        format!("d/free within_limit {most}"),
        format!("d/free over_limit {most}"),
        format!("d/free denied_elsewhere {most}"),
        format!("d/free decided_in_envoy {}", 3 * most),
        "d unmatched_descriptors 1000".to_owned(),
    ];
    check(&fixture.counts(), &expected.each_ref().map(String::as_str));
}
