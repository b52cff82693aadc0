//! The terms of leases and of denials to cache, where a descriptor has several limits or a request several
//! descriptors.

use super::leases::{leasing, of_k, wants};
use super::*;
use crate::applied::match_limits;
use crate::plan::{Hashing, Plan};
use tidegate_core::Lease;

const SECOND: u64 = 1_000_000_000;

fn lasts(lease: Lease) -> u64 {
    lease.valid_until.as_nanos() - wants(0, 0, 0).clock.as_nanos()
}

/// `nanos` less the share by which clocks may differ.
fn shortened(nanos: u64) -> u64 {
    nanos - nanos.div_ceil(1024)
}

/// Once the limit that denies for longest has room, the other has had room for long.
#[test]
fn a_denial_is_cached_for_as_long_as_the_limit_that_denies_for_longest() {
    let limit = |name: &str, period: u64| {
        format!(
            "{{name: {name}, algorithm: token_bucket, requests: 1, period: {period}s, burst: 4}}"
        )
    };
    for periods in [[1, 3], [3, 1]] {
        let [first, second] = periods.map(|period| limit(&format!("n{period}"), period));
        let fixture = leasing(&format!("- {{key: k, rate_limits: [{first}, {second}]}}"));
        fixture.ask_at(0, 4, of_k());
        let lease = fixture.ask_leasing(0, of_k(), &wants(1, 0, 0)).statuses[0].lease;
        let lease = lease.expect("a denial");
        assert_eq!((lease.tokens, lasts(lease)), (0, shortened(3 * SECOND)), "{periods:?}");
    }
}

/// A limit with room does not shorten the denial of another one.
#[test]
fn a_denial_is_cached_for_the_limits_that_deny() {
    let fixture = leasing(
        "
- key: k
  rate_limits:
  - {name: short, algorithm: token_bucket, requests: 1, period: 2s, burst: 1}
  - {name: day, unit: day, requests: 100}
",
    );
    fixture.ask_at(0, 1, of_k());
    let lease = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0)).statuses[0].lease;
    let lease = lease.expect("a denial");
    assert_eq!((lease.tokens, lasts(lease)), (0, shortened(2 * SECOND)));
}

/// A rule below the first level made denials of its whole domain depend on the rest of a request, and went
/// unnoticed.
#[test]
fn rules_at_any_depth_decide_whether_denials_may_be_cached() {
    let rule = |inner: &str| {
        format!(
            "
- {{key: k, rate_limit: {{name: slow, unit: day, requests: 0}}}}
- key: a
  descriptors:
  - key: b
    descriptors:
    - {{key: c, rate_limit: {inner}}}
"
        )
    };
    for (inner, is_cached) in [
        ("{unit: day, requests: 9}", true),
        ("{unit: day, requests: 9, count_denied: true}", false),
        ("{unit: day, requests: 9, replaces: [{name: slow}]}", false),
        ("{unlimited: true, replaces: [{name: slow}]}", false),
        ("{unit: day, requests: 9, replaces: [{name: quick}]}", true),
    ] {
        let fixture = leasing(&rule(inner));
        let lease = fixture.ask_leasing(0, of_k(), &wants(1, 0, 0)).statuses[0].lease;
        assert_eq!(lease.is_some(), is_cached, "{inner}");
    }
}

/// A lease of several limits charges one counter of each, so a charge that fits each limit fits all of them.
#[test]
fn limits_of_one_rule_never_share_a_counter() {
    let algorithms = [
        "",
        "algorithm: first_hit_window, ",
        "algorithm: token_bucket, ",
        "algorithm: sliding_window, ",
        "algorithm: sliding_buckets, ",
        "algorithm: sliding_buckets, exact: true, ",
    ];
    let names = ["", "name: a, ", "name: b, ", "name: '', ", "name: '1', ", "name: (override), "];
    let rates =
        ["requests: 3, unit: minute", "requests: 5, period: 60s", "requests: 3, unit: hour"];
    let mut all = Vec::new();
    for algorithm in algorithms {
        for name in names {
            all.extend(rates.map(|rate| format!("{{{name}{algorithm}{rate}}}")));
        }
    }
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("limits.yaml");
    let (request, now) = (
        Request { domain: "d".into(), descriptors: of_k(), hits: Hits::ONE },
        Timestamp::from_secs(START),
    );
    let (mut loaded, mut refused) = (0, 0);
    for (index, first) in all.iter().enumerate() {
        for second in &all[index..] {
            let limits = format!("- {{key: k, rate_limits: [{first}, {second}]}}");
            std::fs::write(&file, format!("domain: d\ndescriptors:\n{limits}")).expect("a file");
            let Ok(rules) = rules::load(&file, SameDomain::Refuse) else {
                refused += 1;
                continue;
            };
            let matched = match_limits(&rules.rules, &request);
            let plan =
                Plan::of(&matched.each, &request, Modes::default(), Hashing::undivided(1), now);
            assert_eq!((plan.asks.len(), plan.counters.len()), (2, 2), "{limits}");
            loaded += 1;
        }
    }
    assert!(loaded > 1_000 && refused > 100, "{loaded} loaded, {refused} refused");
}

#[test]
fn leased_tokens_are_missing_in_later_statuses_of_their_counter_and_in_no_other() {
    let fixture = leasing(
        "
- key: k
  rate_limits:
  - {name: day, unit: day, requests: 100}
  - {name: hour, unit: hour, requests: 200}
",
    );
    let values = ["v", "w", "v", "w"].map(|value| descriptor(&[("k", value)]));
    let ask = tidegate_core::LeaseRequest { wanted: vec![10, 0, 0, 5], ..wants(1, 0, 0) };
    let answer = fixture.ask_leasing(0, values.to_vec(), &ask);
    let leased = |status: &Status| status.lease.map_or(0, |lease| lease.tokens);
    let seen: Vec<(u32, u32)> =
        answer.statuses.iter().map(|status| (leased(status), status.remaining)).collect();
    assert_eq!(seen, [(10, 89), (0, 99), (0, 88), (5, 93)]);
    assert_eq!([fixture.left(&[("k", "v")]), fixture.left(&[("k", "w")])], [88, 93]);
}

/// Without a time to live there are no leases, and requests are decided as for other clients.
#[test]
fn no_lease_outlasts_the_mode() {
    for (ttl, expected) in [(None, None), (Some(1), Some(1)), (Some(60), Some(60))] {
        let modes = Modes { lease_ttl: ttl.map(Nanos::from_secs), ..Modes::default() };
        let fixture = engine_with("- {key: k, rate_limit: {unit: day, requests: 100}}", modes);
        let both = || vec![of_k().remove(0), descriptor(&[("none", "v")])];
        let answer = fixture.ask_leasing(0, both(), &wants(1, 10, 0));
        for status in &answer.statuses {
            let expected = expected.map(|secs| shortened(secs * SECOND));
            assert_eq!(status.lease.map(lasts), expected);
        }
    }
}
