//! What only clients that understand leases get beside their leases: all limits of a descriptor, and denials that
//! a shadow mode prevented. And which answers are given for each request, without leases.

use super::leases::{leasing, of_k, wants};
use super::*;
use tidegate_core::{HeaderForm, LeaseRequest, StatusDetails};

/// Each with its name, the hits left and the verdict.
fn further(status: &Status) -> Vec<(&str, u32, Verdict)> {
    let details = status.details.as_deref();
    let further = details.map_or(&[][..], |details| details.further.as_slice());
    further
        .iter()
        .map(|limit| (limit.limit.name.as_str(), limit.remaining, limit.verdict))
        .collect()
}

fn first(status: &Status) -> (&str, u32, Verdict) {
    let limit = status.limit.as_ref().expect("a limit");
    (limit.name.as_str(), status.remaining, status.verdict)
}

fn without_shadow(status: &Status) -> Verdict {
    status.details.as_ref().map_or(Verdict::Allow, |details| details.without_shadow)
}

const SEVERAL: &str = "
- key: k
  rate_limits:
  - {name: day, unit: day, requests: 1000}
  - {name: short, algorithm: token_bucket, requests: 1, period: 60s, burst: 50}
  - {name: hour, unit: hour, requests: 200}
";

#[test]
fn all_limits_of_a_descriptor_are_reported_less_the_tokens_of_its_lease() {
    let fixture = leasing(SEVERAL);
    let answer = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0));
    let status = &answer.statuses[0];
    assert_eq!(status.lease.map(|lease| lease.tokens), Some(10));
    assert_eq!(first(status), ("short", 39, Verdict::Allow));
    let expected = [("hour", 189, Verdict::Allow), ("day", 989, Verdict::Allow)];
    assert_eq!(further(status), expected);
    // The same descriptor again has the same counters.
    let answer = fixture.ask_leasing(0, [of_k(), of_k()].concat(), &wants(1, 4, 0));
    let [one, other] = answer.statuses.as_slice() else { panic!("two statuses") };
    let leased = |status: &Status| status.lease.map_or(0, |lease| lease.tokens);
    let left = 39 - 2 - leased(one) - leased(other);
    assert_eq!((first(other).1, further(other)[0].1), (left, left + 150));
}

#[test]
fn a_denial_says_of_each_limit_whether_it_denies() {
    let fixture = leasing(SEVERAL);
    fixture.ask_at(0, 50, of_k());
    let answer = fixture.ask_leasing(0, of_k(), &wants(1, 10, 0));
    let status = &answer.statuses[0];
    assert_eq!(first(status), ("short", 0, Verdict::Deny));
    assert_eq!(further(status), [("hour", 150, Verdict::Allow), ("day", 950, Verdict::Allow)]);
    assert_eq!(without_shadow(status), Verdict::Allow, "it is denied, and in no shadow");
    let two = "- {key: k, rate_limits: [{unit: day, requests: 0, name: a}, {unit: hour, requests: 0, name: b}]}";
    let answer = leasing(two).ask_leasing(0, of_k(), &wants(1, 0, 0));
    // The one that denies for longest comes first.
    assert_eq!(first(&answer.statuses[0]), ("a", 0, Verdict::Deny));
    assert_eq!(further(&answer.statuses[0]), [("b", 0, Verdict::Deny)]);
}

#[test]
fn at_most_four_limits_are_reported_the_tightest_first() {
    let limits: Vec<String> =
        (0..16).map(|n| format!("{{name: n{n}, unit: day, requests: {}}}", 100 - n)).collect();
    let fixture = leasing(&format!("- {{key: k, rate_limits: [{}]}}", limits.join(", ")));
    let answer = fixture.ask_leasing(0, of_k(), &wants(1, 0, 0));
    assert_eq!(first(&answer.statuses[0]).0, "n15");
    let names: Vec<&str> = further(&answer.statuses[0]).iter().map(|limit| limit.0).collect();
    assert_eq!((names.len(), names), (StatusDetails::FURTHER_MAX, vec!["n14", "n13", "n12"]));
}

#[test]
fn a_denial_that_a_shadow_mode_prevented_is_reported() {
    let rule = |mode: &str| {
        format!("- {{key: k, {mode} rate_limit: {{name: n, unit: day, requests_per_unit: 1}}}}")
    };
    let (shadow, quota) = ("shadow_mode: true,", "quota_mode: true,");
    let global = GlobalShadow::On;
    let table = [
        (shadow, GlobalShadow::Off, Verdict::Deny),
        ("", global, Verdict::Deny),
        (shadow, global, Verdict::Deny),
        // Enforced, and denied.
        ("", GlobalShadow::Off, Verdict::Allow),
        // Whether a quota denies is said by the others of the request.
        (quota, global, Verdict::Allow),
    ];
    for (mode, shadow, expected) in table {
        let modes = Modes { shadow, lease_ttl: Some(Nanos::from_secs(2)), ..Modes::default() };
        let fixture = engine_with(&rule(mode), modes);
        let ask = || fixture.ask_leasing(0, of_k(), &wants(1, 0, 0)).statuses.remove(0);
        assert_eq!(ask().details, None, "{mode} {shadow:?}: it has room");
        let over = ask();
        assert_eq!(without_shadow(&over), expected, "{mode} {shadow:?}");
        assert_eq!((first(&over).0, further(&over)), ("n", vec![]));
    }
}

#[test]
fn others_get_nothing_of_it() {
    let fixture = leasing(SEVERAL);
    assert_eq!(fixture.ask_at(0, 1, of_k()).statuses[0].details, None);
    let shadow = "- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}";
    assert_eq!(leasing(shadow).ask_at(0, 1, of_k()).statuses[0].details, None);
}

/// A client that holds a lease gets no further answers, so it would lose what answers carry.
#[test]
fn answers_that_carry_more_than_their_client_writes_itself_come_without_leases() {
    use HeaderForm::{Draft03, Ietf, Off, Plain};
    let table = [
        (Off, DynamicMetadata::Off, [Off, Draft03, Ietf].as_slice()),
        (Ietf, DynamicMetadata::Off, &[Ietf]),
        (Draft03, DynamicMetadata::Off, &[Draft03]),
        (Plain, DynamicMetadata::Off, &[]),
        (Off, DynamicMetadata::On, &[]),
    ];
    for (headers, metadata, leased_to) in table {
        for own in [Off, Draft03, Ietf] {
            let ttl = Some(Nanos::from_secs(2));
            let modes = Modes { headers, metadata, lease_ttl: ttl, ..Modes::default() };
            let rules = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}";
            let fixture = engine_with(rules, modes);
            let ask = LeaseRequest { headers: own, ..wants(1, 10, 0) };
            let mut statuses = fixture.ask_leasing(0, of_k(), &ask).statuses;
            let free = descriptor(&[("free", "")]);
            statuses.extend(fixture.ask_leasing(0, vec![free], &ask).statuses);
            // Together all that is left, with or without the lease.
            fixture.ask_at(0, 89, of_k());
            fixture.ask_at(0, 10, of_k());
            statuses.extend(fixture.ask_leasing(0, of_k(), &ask).statuses);
            let expected = leased_to.contains(&own);
            for status in statuses {
                assert_eq!(status.lease.is_some(), expected, "{headers:?} {metadata:?} {own:?}");
            }
        }
    }
}
