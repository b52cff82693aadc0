//! The promises of units, quotas, rules, keys and the all-or-nothing engine, case by case.

use std::sync::Arc;
use tidegate_core::{
    Ask, CounterKey, DomainRules, Enforcement, Entry, FixedWindow, Found, Hits, Limit, Nanos,
    Outcome, Quota, QuotaError, Rule, Rules, State, Timestamp, TokenBucket, Unit, Verdict, decide,
    decide_all,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const MINUTE: Nanos = Nanos::from_secs(60);

fn window(requests: u32, period: Nanos) -> Quota {
    Quota::FixedWindow(FixedWindow::new(requests, period).unwrap())
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

#[test]
fn fixed_window_opens_on_the_boundary_and_not_before() {
    let quota = window(2, MINUTE);
    let mut state = State::default();
    // (second, allowed, remaining, reset at second)
    let table = [
        (6_000, true, 1, 6_060),
        (6_059, true, 0, 6_060),
        (6_059, false, 0, 6_060),
        (6_060, true, 1, 6_120),
    ];
    for (secs, allowed, remaining, reset) in table {
        let decision = decide(&mut state, &quota, Hits::ONE, at(secs));
        let got = (decision.is_allow(), decision.remaining, decision.reset_at);
        assert_eq!(got, (allowed, remaining, at(reset)), "at {secs}");
    }
}

#[test]
fn units_have_the_lengths_of_the_ratelimit_service() {
    let table = [
        (Unit::Second, 1),
        (Unit::Minute, 60),
        (Unit::Hour, 3_600),
        (Unit::Day, 86_400),
        (Unit::Week, 604_800),
        (Unit::Month, 2_592_000),
        (Unit::Year, 31_536_000),
    ];
    for (unit, secs) in table {
        assert_eq!(unit.period(), Nanos::from_secs(secs));
        assert_eq!(Unit::of_period(Nanos::from_secs(secs)), Some(unit));
        assert_eq!(Unit::from_name(&unit.name().to_uppercase()), Some(unit));
    }
    assert_eq!(Unit::of_period(Nanos::from_secs(30)), None);
    assert_eq!(Unit::from_name("fortnight"), None);
}

#[test]
fn a_week_rolls_over_on_thursday_midnight_utc() {
    // 1970-01-01 was a Thursday, and windows count from there.
    let thursday = at(7 * 86_400 * 2_900);
    let decision =
        decide(&mut State::default(), &window(1, Unit::Week.period()), Hits::ONE, thursday);
    assert_eq!(decision.reset_at, thursday.saturating_add(Unit::Week.period()));
}

#[test]
fn an_ask_larger_than_what_is_left_drains_nothing() {
    for quota in [window(5, MINUTE), bucket(5, 5)] {
        let mut state = State::default();
        assert!(decide(&mut state, &quota, Hits::new(3), at(6_000)).is_allow());
        let before = state;
        assert!(!decide(&mut state, &quota, Hits::new(3), at(6_000)).is_allow());
        assert_eq!(state, before);
        assert!(decide(&mut state, &quota, Hits::new(2), at(6_000)).is_allow());
    }
}

#[test]
fn a_peek_takes_nothing_and_answers_for_one_hit() {
    for quota in [window(1, MINUTE), bucket(1, 1)] {
        let mut state = State::default();
        assert!(decide(&mut state, &quota, Hits::PEEK, at(6_000)).is_allow());
        assert!(state.is_new());
        assert!(decide(&mut state, &quota, Hits::ONE, at(6_000)).is_allow());
        assert!(!decide(&mut state, &quota, Hits::PEEK, at(6_000)).is_allow());
    }
}

#[test]
fn a_limit_of_zero_denies_everything() {
    assert!(!decide(&mut State::default(), &window(0, MINUTE), Hits::ONE, at(6_000)).is_allow());
}

fn bucket(burst: u32, initial: u32) -> Quota {
    Quota::TokenBucket(TokenBucket::new(1, Nanos::from_secs(10), burst, initial).unwrap())
}

#[test]
fn a_bucket_starts_with_its_initial_fill_and_refills_to_its_burst() {
    let quota = bucket(4, 2);
    let mut state = State::default();
    // (second, allowed, remaining)
    let table = [
        (1_000, true, 1),
        (1_000, true, 0),
        (1_000, false, 0),
        (1_009, false, 0),
        (1_010, true, 0),
        (1_035, true, 1),
        (9_000, true, 3),
    ];
    for (secs, allowed, remaining) in table {
        let decision = decide(&mut state, &quota, Hits::ONE, at(secs));
        assert_eq!((decision.is_allow(), decision.remaining), (allowed, remaining), "at {secs}");
    }
}

#[test]
fn quotas_out_of_range_are_refused_with_the_value() {
    let long = Nanos::from_secs(4_000 * 86_400);
    let table = [
        (FixedWindow::new(1, Nanos::ZERO).unwrap_err(), QuotaError::PeriodZero),
        (
            FixedWindow::new(1, Nanos::new(5)).unwrap_err(),
            QuotaError::PeriodTooShort(Nanos::new(5)),
        ),
        (FixedWindow::new(1, long).unwrap_err(), QuotaError::PeriodTooLong(long)),
        (TokenBucket::new(0, MINUTE, 1, 1).unwrap_err(), QuotaError::RefillZero),
        (TokenBucket::new(1, MINUTE, 0, 0).unwrap_err(), QuotaError::BurstZero),
        (
            TokenBucket::new(1, MINUTE, 2, 3).unwrap_err(),
            QuotaError::InitialAboveBurst { initial: 3, burst: 2 },
        ),
    ];
    for (got, expected) in table {
        assert_eq!(got, expected);
    }
    assert_eq!(
        TokenBucket::new(1, MINUTE, 2, 3).unwrap_err().to_string(),
        "initial 3 is more than burst 2"
    );
}

fn limit(path: &str, quota: Quota) -> Arc<Limit> {
    Arc::new(Limit { name: None, path: path.to_owned(), quota, enforcement: Enforcement::Enforce })
}

fn shop() -> Rules {
    let mut domain = DomainRules::new("shop");
    let root = domain.root_mut();
    let app = root.insert("app", None).unwrap();
    app.set_rule(Rule::Limit(limit("shop/app", window(1, MINUTE))));
    let user = app.insert("user", None).unwrap();
    user.set_rule(Rule::Limit(limit("shop/app/user", window(2, MINUTE))));
    let vip = root.insert("app", Some("vip")).unwrap();
    vip.set_rule(Rule::Unlimited);
    let mut rules = Rules::default();
    rules.insert(domain).unwrap();
    rules
}

#[test]
fn a_rule_is_found_only_where_the_descriptor_ends() {
    let rules = shop();
    let find = |domain: &str, entries: &[(&str, &str)]| {
        let entries: Vec<Entry> = entries.iter().map(|(k, v)| Entry::new(*k, *v)).collect();
        match rules.find(domain, &entries) {
            Found::UnknownDomain => "unknown domain".to_owned(),
            Found::NoLimit => "no limit".to_owned(),
            Found::Unlimited => "unlimited".to_owned(),
            Found::Limit(limit) => limit.path.clone(),
        }
    };
    assert_eq!(find("other", &[("app", "a")]), "unknown domain");
    assert_eq!(find("shop", &[("app", "a")]), "shop/app");
    assert_eq!(find("shop", &[("app", "a"), ("user", "u")]), "shop/app/user");
    assert_eq!(find("shop", &[("app", "vip")]), "unlimited");
    // The exact value was taken, and has nothing below it: there is no way back to `app` alone.
    assert_eq!(find("shop", &[("app", "vip"), ("user", "u")]), "no limit");
    assert_eq!(find("shop", &[("app", "a"), ("user", "u"), ("x", "y")]), "no limit");
    assert_eq!(find("shop", &[("user", "u")]), "no limit");
    assert_eq!(find("shop", &[]), "no limit");
}

#[test]
fn duplicate_rules_and_domains_are_refused() {
    let mut domain = DomainRules::new("shop");
    assert!(domain.root_mut().insert("app", None).is_some());
    assert!(domain.root_mut().insert("app", Some("a")).is_some());
    assert!(domain.root_mut().insert("app", None).is_none());
    assert!(domain.root_mut().insert("app", Some("a")).is_none());
    let mut rules = shop();
    assert!(rules.insert(domain).is_err());
    assert_eq!(rules.domain_names(), ["shop"]);
    let paths: Vec<&str> = rules.limits().iter().map(|limit| limit.path.as_str()).collect();
    assert_eq!(paths, ["shop/app", "shop/app/user"]);
}

#[test]
fn keys_do_not_collide_where_joined_strings_would() {
    let mut key = CounterKey::new();
    let plain = limit("x", window(1, MINUTE));
    let mut hash = |domain: &str, entries: &[(&str, &str)], limit: &Limit| {
        let entries: Vec<Entry> = entries.iter().map(|(k, v)| Entry::new(*k, *v)).collect();
        key.hash(7, domain, &entries, limit)
    };
    let one = hash("d", &[("a", "b_c")], &plain);
    assert_eq!(one, hash("d", &[("a", "b_c")], &plain));
    assert_ne!(one, hash("d", &[("a_b", "c")], &plain));
    assert_ne!(one, hash("d_a", &[("", "b_c")], &plain));
    assert_ne!(hash("d", &[("a", ""), ("b", "")], &plain), hash("d", &[("a", "b")], &plain));
    // The requests may change under a live counter; the algorithm and the period may not.
    assert_eq!(one, hash("d", &[("a", "b_c")], &limit("x", window(9, MINUTE))));
    assert_ne!(one, hash("d", &[("a", "b_c")], &limit("x", bucket(1, 1))));
    assert_ne!(one, hash("d", &[("a", "b_c")], &limit("x", window(1, Nanos::from_secs(1)))));
}

#[test]
fn a_changed_limit_keeps_its_count() {
    let mut state = State::default();
    for _ in 0..5 {
        assert!(decide(&mut state, &window(5, MINUTE), Hits::ONE, at(6_000)).is_allow());
    }
    assert_eq!(decide(&mut state, &window(8, MINUTE), Hits::ONE, at(6_001)).remaining, 2);
    assert!(!decide(&mut state, &window(3, MINUTE), Hits::ONE, at(6_002)).is_allow());
}

fn ask(quota: &Quota, state: usize, enforcement: Enforcement) -> Ask<'_> {
    Ask { quota, enforcement, hits: Hits::ONE, state }
}

#[test]
fn one_denial_takes_from_no_limit() {
    let (wide, narrow) = (window(10, MINUTE), window(1, MINUTE));
    let mut states = [State::default(); 2];
    let mut decisions = Vec::new();
    let asks = [ask(&wide, 0, Enforcement::Enforce), ask(&narrow, 1, Enforcement::Enforce)];
    assert_eq!(decide_all(&mut states, &asks, at(6_000), &mut decisions), Verdict::Allow);
    let after_one = states;
    for _ in 0..3 {
        assert_eq!(decide_all(&mut states, &asks, at(6_001), &mut decisions), Verdict::Deny);
        assert_eq!(states, after_one);
        // The limit with room says what is left there, untouched.
        assert!(decisions[0].is_allow() && !decisions[1].is_allow());
        assert_eq!((decisions[0].remaining, decisions[1].remaining), (9, 0));
    }
}

#[test]
fn a_shadow_limit_reports_and_never_denies() {
    let (real, shadow) = (window(10, MINUTE), window(1, MINUTE));
    let mut states = [State::default(); 2];
    let mut decisions = Vec::new();
    let asks = [ask(&real, 0, Enforcement::Enforce), ask(&shadow, 1, Enforcement::Shadow)];
    for turn in 0..3u64 {
        let verdict = decide_all(&mut states, &asks, at(6_000), &mut decisions);
        assert_eq!(verdict, Verdict::Allow);
        assert_eq!(decisions[1].is_allow(), turn == 0);
        assert_eq!(decisions[0].remaining, 9 - turn);
    }
}

#[test]
fn a_descriptor_carried_twice_is_charged_twice_or_not_at_all() {
    let quota = window(3, MINUTE);
    let mut states = [State::default()];
    let mut decisions = Vec::new();
    let asks = [ask(&quota, 0, Enforcement::Enforce), ask(&quota, 0, Enforcement::Enforce)];
    assert_eq!(decide_all(&mut states, &asks, at(6_000), &mut decisions), Verdict::Allow);
    assert_eq!(decide_all(&mut states, &asks, at(6_000), &mut decisions), Verdict::Deny);
    assert_eq!(decisions[0].remaining, 1);
}

/// A bucket told its caller to retry too early after the clock had stepped back: the wait was
/// reckoned from now, while nothing refills until the clock has caught up with the last take.
#[test]
fn retry_after_counts_the_time_that_a_stepped_back_clock_must_catch_up() {
    let quota = bucket(1, 1);
    let mut state = State::default();
    assert!(decide(&mut state, &quota, Hits::ONE, at(1_000)).is_allow());
    let denied = decide(&mut state, &quota, Hits::ONE, at(997));
    assert_eq!(denied.wait(at(997)), Nanos::from_secs(13));
    assert!(!decide(&mut state, &quota, Hits::ONE, at(1_009)).is_allow());
    assert!(decide(&mut state, &quota, Hits::ONE, at(1_010)).is_allow());
}

/// A bucket that started below the cost of its first ask denied for ever: the denial left no
/// trace, so every ask met a bucket that was new again, and nothing ever refilled.
#[test]
fn a_bucket_refills_from_the_first_look_even_if_that_was_a_denial() {
    let quota = bucket(2, 0);
    let mut state = State::default();
    let first = decide(&mut state, &quota, Hits::ONE, at(1_000));
    assert_eq!(first.outcome, Outcome::Deny { retry_after: Nanos::from_secs(10) });
    assert!(!decide(&mut state, &quota, Hits::ONE, at(1_009)).is_allow());
    assert!(decide(&mut state, &quota, Hits::ONE, at(1_010)).is_allow());

    // The same when another limit of the request denies as well.
    let closed = window(0, MINUTE);
    let mut states = [State::default(); 2];
    let mut decisions = Vec::new();
    let asks = [ask(&quota, 0, Enforcement::Enforce), ask(&closed, 1, Enforcement::Enforce)];
    decide_all(&mut states, &asks, at(1_000), &mut decisions);
    assert!(decide(&mut states[0], &quota, Hits::ONE, at(1_010)).is_allow());
}

#[test]
fn a_bucket_tells_when_its_next_token_comes() {
    let quota = bucket(3, 3);
    let mut state = State::default();
    assert_eq!(decide(&mut state, &quota, Hits::PEEK, at(1_000)).reset_at, at(1_000));
    assert_eq!(decide(&mut state, &quota, Hits::new(2), at(1_000)).reset_at, at(1_010));
    assert_eq!(decide(&mut state, &quota, Hits::PEEK, at(1_004)).reset_at, at(1_010));
}
