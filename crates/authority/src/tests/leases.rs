//! Leases on a real store: what is charged, who gets how much, what comes back.

use super::*;
use std::cell::Cell;
use tidegate_core::{HeaderForm, Lease, LeaseRequest, LeaseReturn};
use tidegate_store::Eviction;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = SECOND / 1_000;
const TTL: Nanos = Nanos::from_secs(2);
/// What the client's clock says; nothing like the sidecar's.
const CLOCK: u64 = 77 * SECOND;
const PROXY: u64 = 0xa1;
const OTHER: u64 = 0xb2;

const WINDOW: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}";

pub(super) const EVERY_ALGORITHM: [&str; 6] = [
    "{period: 10s, requests: 100}",
    "{algorithm: first_hit_window, period: 10s, requests: 100}",
    "{algorithm: token_bucket, period: 1000s, requests: 100}",
    "{algorithm: sliding_window, period: 10s, requests: 100}",
    "{algorithm: sliding_buckets, period: 10s, requests: 100}",
    "{algorithm: sliding_buckets, exact: true, period: 10s, requests: 100}",
];

/// A number that no call of this test has had. Each test has its own: of numbers for all of them, which run at the same
/// time, every 32nd had the stamp of a return that a test had made before, so its tokens stayed charged now and then.
fn new_call() -> u64 {
    thread_local! {
        static CALLS: Cell<u64> = const { Cell::new(1 << 40) };
    }
    CALLS.replace(CALLS.get() + 128) + 128
}

pub(super) fn leasing(descriptors: &str) -> Fixture {
    engine_with(descriptors, Modes { lease_ttl: Some(TTL), ..Modes::default() })
}

pub(super) fn of_k() -> Vec<Descriptor> {
    vec![descriptor(&[("k", "v")])]
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_secs(START).saturating_add(Nanos::new(nanos))
}

/// What `proxy` says beside its request: the same for each descriptor.
pub(super) fn wants(proxy: u64, wanted: u64, waiting: u64) -> LeaseRequest {
    let each = |number| vec![number; 8];
    LeaseRequest {
        call: new_call(),
        proxy,
        clock: Timestamp::from_nanos(CLOCK),
        wanted: each(wanted),
        waiting: each(waiting),
        headers: HeaderForm::Ietf,
    }
}

/// In nanoseconds after the ask.
fn lasts(lease: Lease) -> u64 {
    lease.valid_until.as_nanos() - CLOCK
}

/// `nanos` less what is taken off for clocks that differ.
fn told_of(nanos: u64) -> u64 {
    nanos - nanos.div_ceil(1024)
}

/// What is left of a lease in its holder's hands.
pub(super) struct Held {
    pub(super) id: u64,
    pub(super) tokens: u64,
    /// In nanoseconds after the start of the test.
    pub(super) until: u64,
}

impl Held {
    /// A lease that was asked for at `nanos`. A denial, too, which has no tokens.
    pub(super) fn of(lease: Lease, nanos: u64) -> Held {
        Held { id: lease.id, tokens: lease.tokens.into(), until: nanos + lasts(lease) }
    }
}

impl Fixture {
    pub(super) fn ask_leasing(
        &self,
        nanos: u64,
        descriptors: Vec<Descriptor>,
        ask: &LeaseRequest,
    ) -> Answer {
        let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
        until_decided(|| wait(self.engine.decide_leasing(&request, ask, at(nanos))))
    }

    /// The lease of the one descriptor `k=v`, for `proxy`.
    fn lease_of(&self, nanos: u64, (proxy, wanted, waiting): (u64, u64, u64)) -> Option<Lease> {
        let answer = self.ask_leasing(nanos, of_k(), &wants(proxy, wanted, waiting));
        answer.statuses[0].lease
    }

    /// Gives tokens of `k=v` back.
    pub(super) fn give_back(&self, nanos: u64, id: u64, tokens: u64) {
        self.give_back_by(new_call(), nanos, id, tokens);
    }

    /// The same, by a call of this number.
    fn give_back_by(&self, call: u64, nanos: u64, id: u64, tokens: u64) {
        self.returned(call, of_k(), nanos, id, tokens);
    }

    /// Gives tokens of one descriptor back.
    pub(super) fn give_back_to(&self, of: Vec<Descriptor>, nanos: u64, id: u64, tokens: u64) {
        self.returned(new_call(), of, nanos, id, tokens);
    }

    fn returned(&self, call: u64, of: Vec<Descriptor>, nanos: u64, id: u64, tokens: u64) {
        let refunds = of.into_iter().map(|of| Descriptor { direction: Direction::Refund, ..of });
        let descriptors = refunds.collect();
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(tokens) };
        let back = LeaseReturn { call, leases: vec![id] };
        let answer = until_decided(|| wait(self.engine.return_tokens(&request, &back, at(nanos))));
        assert_eq!(answer.verdict, Verdict::Allow);
        assert_eq!(answer.statuses.len(), 1);
    }

    fn left_at(&self, nanos: u64) -> u64 {
        let request = Request { domain: "d".into(), descriptors: of_k(), hits: Hits::PEEK };
        let answer = wait(self.engine.decide(&request, at(nanos))).expect("a decision");
        u64::from(answer.statuses[0].remaining)
    }

    /// A crash and a restart, as far as the counters can tell.
    fn reopened(self) -> Fixture {
        let Fixture { engine, mut counters, dir } = self;
        let modes = engine.modes;
        drop(engine);
        if counters.answers() == Answers::AtOnce {
            drop(counters);
            counters = shared_memory(dir.path());
        }
        let file = dir.path().join("limits.yaml");
        let rules = rules::load(&file, SameDomain::Refuse).expect("good rules").rules;
        let engine =
            Authority::new(counters.clone(), rules, modes, Arc::new(())).expect("an engine");
        Fixture { engine, counters, dir }
    }

    fn put_rules(&self, descriptors: &str) {
        let rules = rules_of(self.dir.path(), descriptors);
        self.engine.replace_limits(rules).expect("rules in force");
    }
}

#[test]
fn tokens_are_charged_when_they_are_granted_and_told_in_the_clients_clock() {
    let engine = leasing(WINDOW);
    let answer = engine.ask_leasing(0, of_k(), &wants(PROXY, 10, 0));
    let lease = answer.statuses[0].lease.expect("a lease");
    assert_eq!((lease.tokens, lasts(lease)), (10, told_of(2 * SECOND)));
    assert_ne!(lease.id, Lease::NO_ID);
    // What is left is reported without the tokens of the lease.
    assert_eq!(answer.statuses[0].remaining, 89);
    assert_eq!(engine.left_at(0), 89);
    // Its share at most, and after those who wait.
    let lease = engine.lease_of(0, (PROXY, 1_000, 4)).expect("a lease");
    assert_eq!(u64::from(lease.tokens), 4 + (88 - 4) / 4);
}

#[test]
fn who_asks_for_no_tokens_gets_none() {
    let engine = leasing(WINDOW);
    assert_eq!(engine.lease_of(0, (PROXY, 0, 0)), None);
    let request = Request { domain: "d".into(), descriptors: of_k(), hits: Hits::ONE };
    let ask = LeaseRequest { wanted: Vec::new(), waiting: Vec::new(), ..wants(PROXY, 0, 0) };
    let answer = wait(engine.engine.decide_leasing(&request, &ask, at(0))).expect("a decision");
    assert_eq!(answer.statuses[0].lease, None);
    // Nor anybody where leases are off.
    let off = self::engine(WINDOW);
    assert_eq!(off.lease_of(0, (PROXY, 10, 10)), None);
    assert_eq!(off.left_at(0), 99);
}

#[test]
fn a_lease_ends_with_the_window_that_it_was_charged_to() {
    #[track_caller]
    fn check(limit: &str, nanos: u64, expected: u64) {
        let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
        let lease = engine.lease_of(nanos, (PROXY, 10, 0)).expect("a lease");
        assert_eq!(lasts(lease), told_of(expected), "{limit}");
    }
    check("{period: 10s, requests: 100}", 9 * SECOND, SECOND);
    check("{algorithm: first_hit_window, period: 1s, requests: 100}", 9 * SECOND, SECOND);
    check("{algorithm: token_bucket, period: 1s, requests: 100}", 9 * SECOND, 2 * SECOND);
    check("{algorithm: sliding_window, period: 10s, requests: 100}", 9 * SECOND, SECOND);
    check("{algorithm: sliding_buckets, period: 1m, requests: 100}", 500 * MS, 500 * MS);
    check(
        "{algorithm: sliding_buckets, exact: true, period: 1m, requests: 100}",
        250 * MS,
        750 * MS,
    );
    // Too short to be of use.
    let engine = leasing("- {key: k, rate_limit: {unit: second, requests_per_unit: 100}}");
    assert_eq!(engine.lease_of(991 * MS, (PROXY, 10, 10)), None);
    assert!(engine.lease_of(990 * MS, (PROXY, 10, 10)).is_some());
}

/// Proxies that ask, spend and give back for ever in one window: what passed is never more than the limit,
/// and what is left at the end is what neither passed nor is held.
#[test]
fn hits_and_tokens_together_never_exceed_the_limit_of_any_algorithm() {
    for limit in EVERY_ALGORITHM {
        let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
        let (mut used, mut held) = (0, Vec::<Lease>::new());
        for turn in 0..400_u64 {
            // Within a millisecond: the same second, bucket and window.
            let nanos = turn * 1_000;
            let proxy = 1 + turn % 3;
            let ask = wants(proxy, turn % 50, turn % 4);
            let answer = engine.ask_leasing(nanos, of_k(), &ask);
            used += u64::from(answer.verdict == Verdict::Allow);
            let lease = answer.statuses[0].lease.filter(|lease| lease.tokens > 0);
            used += lease.map_or(0, |lease| u64::from(lease.tokens));
            held.extend(lease);
            assert!(used <= 100, "{limit}: {used}");
            assert_eq!(engine.left_at(nanos), 100 - used, "{limit}");
            if turn % 5 == 0
                && let Some(lease) = held.pop()
            {
                let tokens = u64::from(lease.tokens).min(1 + turn % 7);
                engine.give_back(nanos, lease.id, tokens);
                // Of a bucket that refills, what comes back has refilled in part.
                let worth = tokens - u64::from(engine.left_at(nanos) < 100 - used + tokens);
                used -= worth;
                assert_eq!(engine.left_at(nanos), 100 - used, "{limit}");
            }
        }
        assert!(used > 90, "{limit}: {used}");
    }
}

#[test]
fn tokens_come_back_once_and_only_as_many_as_are_held() {
    let engine = leasing(WINDOW);
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    assert_eq!(engine.left_at(0), 79);
    engine.give_back(0, lease.id, 5);
    assert_eq!(engine.left_at(0), 84);
    engine.give_back(0, lease.id, 100);
    assert_eq!(engine.left_at(0), 99);
    engine.give_back(0, lease.id, 5);
    engine.give_back(0, lease.id ^ 1, 5);
    engine.give_back(0, Lease::NO_ID, 5);
    assert_eq!(engine.left_at(0), 99);
}

/// The answer of one of the two is lost, and the tokens of its lease with it: there must not be two.
#[test]
fn an_ask_that_comes_twice_is_leased_once() {
    let engine = leasing(WINDOW);
    let ask = wants(PROXY, 20, 0);
    let request = Request { domain: "d".into(), descriptors: of_k(), hits: Hits::PEEK };
    let lease = || {
        let answer = wait(engine.engine.decide_leasing(&request, &ask, at(0))).expect("an answer");
        answer.statuses[0].lease
    };
    let first = lease().expect("a lease");
    assert_eq!((lease(), first.id), (None, LeaseRequest::lease_id(ask.call, 0)));
    assert_eq!(engine.left_at(0), 100 - u64::from(first.tokens));
}

/// What the network delivers twice is taken once, though the lease has more tokens out: its holder may
/// still spend those.
#[test]
fn a_return_that_comes_twice_is_taken_once() {
    let engine = leasing(WINDOW);
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    let mut left = vec![engine.left_at(0)];
    for call in [1, 1, 2, 3, 1, 2, 3] {
        engine.give_back_by(call * 128, 0, lease.id, 5);
        left.push(engine.left_at(0));
    }
    assert_eq!(left, [79, 84, 84, 89, 94, 94, 94, 94]);
    // Nothing is no return, and keeps none from being taken.
    engine.give_back_by(4 * 128, 0, lease.id, 0);
    engine.give_back_by(4 * 128, 0, lease.id, 9);
    assert_eq!(engine.left_at(0), 99);
}

#[test]
fn a_lease_that_has_ended_takes_nothing_back() {
    let engine = leasing(WINDOW);
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    engine.give_back(2 * SECOND, lease.id, 5);
    assert_eq!(engine.left_at(0), 79);
    engine.give_back(2 * SECOND - 1, lease.id, 5);
    assert_eq!(engine.left_at(0), 84);
}

#[test]
fn tokens_of_one_counter_do_not_come_back_to_another() {
    let engine = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}");
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    let other = descriptor(&[("k", "w")]);
    engine.ask_at(0, 50, vec![other.clone()]);
    let refund = Descriptor { direction: Direction::Refund, ..other };
    let request = |descriptors| Request { domain: "d".into(), descriptors, hits: Hits::new(20) };
    let give = |request: &Request, leases: &[u64]| {
        let back = LeaseReturn { call: new_call(), leases: leases.to_vec() };
        wait(engine.engine.return_tokens(request, &back, at(0))).expect("an answer")
    };
    let answer = give(&request(vec![refund.clone()]), &[lease.id]);
    assert_eq!(summary(&answer), (Verdict::Allow, vec![(Verdict::Allow, 50)]));
    // A descriptor that takes hits takes none where tokens are given back.
    assert_eq!(
        summary(&give(&request(of_k()), &[lease.id])),
        (Verdict::Allow, vec![(Verdict::Allow, 79)])
    );
    // One that is named twice comes back once; ids that lack are of none.
    let mine = Descriptor { direction: Direction::Refund, ..descriptor(&[("k", "v")]) };
    give(&request(vec![mine.clone(), mine, refund]), &[lease.id, lease.id]);
    assert_eq!((engine.left(&[("k", "v")]), engine.left(&[("k", "w")])), (99, 50));
}

/// A lease that was charged to one window must not lower the count of the next.
#[test]
fn tokens_come_back_to_no_other_window() {
    for (limit, window) in [
        ("{unit: second, requests_per_unit: 100}", SECOND),
        ("{algorithm: first_hit_window, period: 1s, requests: 100}", SECOND),
        ("{algorithm: sliding_window, period: 1s, requests: 100}", SECOND),
        ("{algorithm: sliding_buckets, period: 1m, requests: 100}", SECOND),
        ("{algorithm: sliding_buckets, exact: true, period: 1m, requests: 100}", SECOND),
    ] {
        let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
        let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
        // The clock steps ahead, hits are counted there, and the clock steps back.
        engine.ask_at(1, 30, of_k());
        let left = engine.left_at(window);
        engine.give_back(window, lease.id, 20);
        engine.give_back(0, lease.id, 20);
        assert_eq!(engine.left_at(window), left, "{limit}");
    }
}

/// A bucket refills while its tokens are held; given back and charged again, they would gather.
#[test]
fn a_bucket_takes_back_what_it_has_not_refilled() {
    let limit = "{algorithm: token_bucket, requests: 10, period: 1s, burst: 100}";
    let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
    engine.ask_at(0, 50, of_k());
    let lease = engine.lease_of(0, (PROXY, 0, 30)).expect("a lease");
    assert_eq!(engine.left_at(0), 19);
    assert_eq!(engine.left_at(SECOND), 29);
    engine.give_back(SECOND, lease.id, 30);
    assert_eq!(engine.left_at(SECOND), 49);
}

/// Else it would come back full once the hits of the request alone were refilled.
#[test]
fn a_counter_is_kept_until_its_leased_tokens_are_refilled() {
    let limit = "{algorithm: token_bucket, requests: 1, period: 1s, burst: 100}";
    let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
    assert_eq!(engine.lease_of(0, (PROXY, 0, 50)).map(|lease| lease.tokens), Some(50));
    assert_eq!(engine.left_at(10 * SECOND), 59);
}

#[test]
fn a_restarted_sidecar_knows_its_leases() {
    let engine = leasing(WINDOW);
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    let engine = engine.reopened();
    assert_eq!(engine.left_at(0), 79);
    engine.give_back_by(1, 0, lease.id, 15);
    let engine = engine.reopened();
    assert_eq!(engine.left_at(0), 94);
    engine.give_back_by(1, 0, lease.id, 15);
    assert_eq!(engine.left_at(0), 94, "it knows what was given back, too");
    engine.give_back(1, lease.id, 15);
    assert_eq!(engine.left_at(0), 99);
    let again = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    assert_ne!(again.id, lease.id);
}

#[test]
fn tokens_come_back_under_changed_rules_only_to_the_same_counters() {
    #[track_caller]
    fn check(limits: &str, left: u64) {
        let engine = leasing(WINDOW);
        let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
        engine.put_rules(limits);
        engine.give_back(0, lease.id, 20);
        assert_eq!(engine.left_at(0), left, "{limits}");
    }
    check("- {key: k, rate_limit: {unit: day, requests_per_unit: 200}}", 199);
    check("- {key: k, rate_limit: {unit: hour, requests_per_unit: 100}}", 100);
    check("- {key: other, rate_limit: {unit: hour, requests_per_unit: 100}}", 0);
    check(
        "- key: k
  rate_limits:
  - {unit: day, requests_per_unit: 100}
  - {name: more, unit: hour, requests_per_unit: 500}",
        79,
    );
}

#[test]
fn near_the_limit_leases_shrink_to_those_who_wait() {
    let engine = leasing(WINDOW);
    let mut granted = Vec::new();
    while let Some(lease) = engine.lease_of(0, (PROXY, 1_000, 0)) {
        granted.push(lease.tokens);
        if lease.tokens == 0 {
            break;
        }
    }
    assert!(granted.is_sorted_by(|a, b| a >= b), "{granted:?}");
    let left = engine.left_at(0);
    assert!(left > 0 && left < 5, "{granted:?}, {left} left");
    let lease = engine.lease_of(0, (PROXY, 1_000, 100)).expect("a lease");
    assert_eq!((u64::from(lease.tokens), engine.left_at(0)), (left - 1, 0));
}

#[test]
fn proxies_share_what_is_left() {
    let engine = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 8000}}");
    let tokens =
        |proxy, nanos| engine.lease_of(nanos, (proxy, 100_000, 0)).expect("a lease").tokens;
    assert_eq!(tokens(PROXY, 0), 7_999 / 4);
    let left = engine.left_at(0) - 1;
    assert_eq!(u64::from(tokens(OTHER, 0)), left / 8);
    // Those of the period before are still active, those before that no longer.
    let left = engine.left_at(0) - 1;
    assert_eq!(u64::from(tokens(OTHER, 2 * SECOND)), left / 8);
    let left = engine.left_at(0) - 1;
    assert_eq!(u64::from(tokens(OTHER, 4 * SECOND)), left / 4);
}

#[test]
fn several_limits_are_leased_together_or_not_at_all() {
    let engine = leasing(
        "
- key: k
  rate_limits:
  - {name: bucket, algorithm: token_bucket, requests: 50, period: 1d}
  - {name: ring, algorithm: sliding_buckets, requests: 400, period: 1m}
  - {name: day, requests: 90, period: 1d}
",
    );
    let lease = engine.lease_of(500 * MS, (PROXY, 1_000, 0)).expect("a lease");
    assert_eq!((lease.tokens, lasts(lease)), (49 / 4, told_of(500 * MS)));
    let left = |name: &str| {
        let fixture = &engine;
        fixture.put_rules(&format!("- {{key: k, rate_limits: [{name}]}}"));
        fixture.left_at(500 * MS)
    };
    assert_eq!(left("{name: bucket, algorithm: token_bucket, requests: 50, period: 1d}"), 37);
    assert_eq!(left("{name: ring, algorithm: sliding_buckets, requests: 400, period: 1m}"), 387);
    assert_eq!(left("{name: day, requests: 90, period: 1d}"), 77);
}

#[test]
fn small_limits_lease_to_those_who_wait_alone() {
    let engine = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}");
    assert_eq!(engine.lease_of(0, (PROXY, 5, 0)), None);
    assert_eq!(engine.lease_of(0, (PROXY, 5, 2)).map(|lease| lease.tokens), Some(2));
}

#[test]
fn what_a_holder_could_not_do_as_the_sidecar_does_is_never_leased() {
    let limit = "rate_limit: {name: n, unit: day, requests_per_unit: 100}";
    let never = [
        format!("- {{key: k, quota_mode: true, {limit}}}"),
        "- {key: k, rate_limit: {unit: day, requests_per_unit: 100, count_denied: true}}"
            .to_owned(),
        "- {key: k, rate_limit: {unit: day, requests_per_unit: 100, replaces: [{name: x}]}}"
            .to_owned(),
        "- {key: k, rate_limit: {unlimited: true, replaces: [{name: x}]}}".to_owned(),
    ];
    for rules in never {
        let engine = leasing(&rules);
        assert_eq!(engine.lease_of(0, (PROXY, 10, 10)), None, "{rules}");
    }
    let engine = leasing(WINDOW);
    let brought = Some(LimitOverride { requests: 100, unit: Unit::Day });
    let odd = [
        Descriptor { limit: brought, ..of_k().remove(0) },
        Descriptor { direction: Direction::Refund, ..of_k().remove(0) },
    ];
    for descriptor in odd {
        let answer = engine.ask_leasing(0, vec![descriptor], &wants(PROXY, 10, 10));
        assert_eq!(answer.statuses[0].lease, None);
    }
    // Nothing of a request in which something was replaced, not even what meets no limit.
    let engine = leasing(
        "
- {key: k, rate_limit: {name: n, unit: day, requests_per_unit: 100}}
- {key: vip, rate_limit: {unit: day, requests_per_unit: 100, replaces: [{name: n}]}}
- {key: third, rate_limit: {unit: day, requests_per_unit: 100}}
",
    );
    let all = |keys: &[&str]| keys.iter().map(|key| descriptor(&[(key, "v")])).collect::<Vec<_>>();
    let leases = |keys: &[&str]| {
        let answer = engine.ask_leasing(0, all(keys), &wants(PROXY, 10, 0));
        answer.statuses.iter().map(|status| status.lease.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(leases(&["k", "vip", "third", "none"]), [false; 4]);
    assert_eq!(leases(&["vip", "third", "none"]), [false, true, true]);
    let quotas = Modes { quota: GlobalQuota::On, lease_ttl: Some(TTL), ..Modes::default() };
    assert_eq!(engine_with(WINDOW, quotas).lease_of(0, (PROXY, 10, 0)), None);
}

#[test]
fn where_no_limit_applies_hits_are_free() {
    let engine = leasing("- {key: k, rate_limit: {unlimited: true}}");
    let both = || vec![descriptor(&[("k", "v")]), descriptor(&[("none", "v")])];
    let answer = engine.ask_leasing(0, both(), &wants(PROXY, 0, 0));
    for status in &answer.statuses {
        let lease = status.lease.expect("a lease");
        assert_eq!((lease.tokens, lease.id), (Lease::UNLIMITED, Lease::NO_ID));
        assert_eq!(lasts(lease), told_of(2 * SECOND));
    }
    // Of a request that is denied, only the denial is worth knowing.
    let engine = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 0}}");
    let answer = engine.ask_leasing(0, both(), &wants(PROXY, 0, 0));
    let tokens = answer.statuses.iter().map(|status| status.lease.map(|lease| lease.tokens));
    assert_eq!(tokens.collect::<Vec<_>>(), [Some(0), None]);
}

#[test]
fn a_denial_is_a_lease_of_nothing_until_one_hit_may_fit() {
    let limit = "{algorithm: token_bucket, requests: 1, period: 1s, burst: 10}";
    let engine = leasing(&format!(
        "
- {{key: k, rate_limit: {limit}}}
- {{key: roomy, rate_limit: {{unit: day, requests_per_unit: 100}}}}
"
    ));
    engine.ask_at(0, 8, of_k());
    let both = |hits: u64| {
        let k = Descriptor { hits: Some(Hits::new(hits)), ..descriptor(&[("k", "v")]) };
        engine.ask_leasing(0, vec![k, descriptor(&[("roomy", "v")])], &wants(PROXY, 10, 10))
    };
    // Five do not fit, but one would.
    let answer = both(5);
    assert_eq!(answer.verdict, Verdict::Deny);
    assert_eq!([answer.statuses[0].lease, answer.statuses[1].lease], [None, None]);
    engine.ask_at(0, 2, of_k());
    let answer = both(5);
    let lease = answer.statuses[0].lease.expect("a lease");
    // Five fit in five seconds, one in one.
    assert_eq!((lease.tokens, lease.id, lasts(lease)), (0, Lease::NO_ID, told_of(SECOND)));
    assert_eq!(answer.statuses[0].reset, Nanos::from_secs(5));
    // Of a denied request, nothing is taken for those that have room.
    assert_eq!(answer.statuses[1].lease, None);
    assert_eq!(engine.left(&[("roomy", "v")]), 100);
}

#[test]
fn a_caches_denial_five_seconds_and_less_while_others_may_give_tokens_back() {
    let denied = |engine: &Fixture, nanos, proxy| {
        engine.ask_at(nanos / SECOND, 1_000, of_k());
        let lease = engine.lease_of(nanos, (proxy, 10, 10)).expect("a lease");
        (lease.tokens, lasts(lease))
    };
    let drained = || {
        let engine = leasing(WINDOW);
        let held = engine.lease_of(0, (PROXY, 10, 0)).expect("a lease");
        engine.ask_at(0, engine.left_at(0), of_k());
        (engine, held)
    };
    let (engine, _) = drained();
    // Its own count too: the answer that granted them may have been lost, and they come back.
    assert_eq!(denied(&engine, 0, PROXY), (0, told_of(200 * MS)));
    assert_eq!(denied(&engine, 0, OTHER), (0, told_of(200 * MS)));
    assert_eq!(denied(&engine, 2 * SECOND, OTHER), (0, told_of(5 * SECOND)), "they have ended");
    // Two hold some: each waits for the other.
    let engine = leasing(WINDOW);
    for proxy in [PROXY, OTHER] {
        engine.lease_of(0, (proxy, 10, 0)).expect("a lease");
    }
    engine.ask_at(0, engine.left_at(0), of_k());
    for proxy in [PROXY, OTHER, 0xc3] {
        assert_eq!(denied(&engine, 0, proxy), (0, told_of(200 * MS)));
    }
    // And what comes back is there for the next.
    let (engine, held) = drained();
    engine.give_back(0, held.id, 10);
    assert_eq!(engine.lease_of(0, (OTHER, 0, 4)).map(|lease| lease.tokens), Some(4));
}

#[test]
fn denials_that_only_report_are_not_leased() {
    let over = [
        (
            "- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}",
            Modes::default(),
        ),
        (
            "- {key: k, rate_limit: {unit: day, requests_per_unit: 0}}",
            Modes { shadow: GlobalShadow::On, ..Modes::default() },
        ),
        (
            "- {key: k, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}",
            Modes::default(),
        ),
        (
            "- {key: k, rate_limit: {unit: day, requests_per_unit: 0, count_denied: true}}",
            Modes::default(),
        ),
    ];
    for (rules, modes) in over {
        let engine = engine_with(rules, Modes { lease_ttl: Some(TTL), ..modes });
        assert_eq!(engine.lease_of(0, (PROXY, 10, 10)), None, "{rules}");
    }
    let shadow = "- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}";
    let lease = leasing(shadow).lease_of(0, (PROXY, 10, 0));
    assert_eq!(lease.map(|lease| lease.tokens), Some(10), "counted ahead like any other");
}

/// An engine on a store of forty nodes, four of which leases may have.
fn tiny(eviction: Eviction, descriptors: &str) -> (Fixture, Arc<Cluster>) {
    on_nodes(Geometry::by_count(1, 1, 40, 4).expect("a geometry"), eviction, descriptors)
}

fn on_nodes(narrow: Geometry, eviction: Eviction, descriptors: &str) -> (Fixture, Arc<Cluster>) {
    let dir = tempfile::TempDir::new().expect("a directory");
    let options = Options { eviction, ..Options::narrow(narrow) };
    let store = Arc::new(Cluster::open(&dir.path().join("data"), &options).expect("a store"));
    (in_store(store.clone(), dir, descriptors), store)
}

fn in_store(store: Arc<Cluster>, dir: tempfile::TempDir, descriptors: &str) -> Fixture {
    let modes = Modes { lease_ttl: Some(TTL), ..Modes::default() };
    Fixture::new(store, dir, descriptors, modes, Arc::new(()))
}

/// A store without room for a lease decides as ever: one node is left, which the counter takes; or two, so
/// that there would be room for the record alone; or none but that of who uses the counter.
#[test]
fn a_full_store_decides_and_leases_nothing() {
    let ask_for = |engine: &Fixture, values: Range<u32>| {
        for value in values {
            engine.ask(vec![descriptor(&[("k", &value.to_string())])]);
        }
    };
    #[track_caller]
    fn check(engine: &Fixture, others: u32, left: u32) {
        for left in (left - 3..left).rev() {
            let answer = engine.ask_leasing(0, of_k(), &wants(PROXY, 10, 10));
            assert_eq!(answer.statuses[0].lease, None);
            assert_eq!(summary(&answer), (Verdict::Allow, vec![(Verdict::Allow, left)]));
        }
        for value in 0..others {
            assert_eq!(engine.left(&[("k", &value.to_string())]), 99, "a counter gave way");
        }
    }
    for eviction in [Eviction::Refuse, Eviction::EvictSoonestExpiry] {
        for others in [39, 38] {
            let (engine, _) = tiny(eviction, WINDOW);
            ask_for(&engine, 0..others);
            check(&engine, others, 100);
        }
        let (engine, _) = tiny(eviction, WINDOW);
        ask_for(&engine, 0..37);
        let lease = engine.lease_of(0, (PROXY, 10, 0)).expect("a lease");
        engine.give_back(0, lease.id, 10);
        ask_for(&engine, 37..38);
        check(&engine, 38, 99);
    }
}

/// Leases have a sixteenth of the nodes, so all counters that the store was made for find theirs.
#[test]
fn leases_never_take_the_room_of_counters() {
    const CAPACITY: u64 = 3_000;
    let narrow = Geometry::by_capacity(CAPACITY, 0.8).expect("a geometry");
    let (engine, store) = on_nodes(narrow, Eviction::Refuse, WINDOW);
    let leased = |nanos: u64, values: Range<u64>| {
        let lease_of = |value: u64| {
            let of = vec![descriptor(&[("k", &value.to_string())])];
            let answer = engine.ask_leasing(nanos, of, &wants(PROXY, 10, 0));
            assert_eq!(answer.verdict, Verdict::Allow);
            answer.statuses[0].lease.map(|lease| lease.id)
        };
        values.filter_map(lease_of).collect::<Vec<u64>>()
    };
    let occupied = || store.occupancy(Class::Narrow).expect("nodes").occupied;
    // A lease is two nodes: its record, and those who use the counter.
    let most = narrow.nodes() / 16 / 2;
    let mut of_value = Vec::new();
    for value in 0..CAPACITY {
        of_value.extend(leased(0, value..value + 1).into_iter().map(|id| (value, id)));
    }
    assert_eq!(of_value.len() as u64, most);
    assert_eq!(occupied(), CAPACITY + 2 * most);
    // A second lease of a counter is a record more; and none are made again before some end.
    assert_eq!(leased(0, 0..CAPACITY).len(), 0);
    // What is given back in full makes room at once, for its record.
    for (value, id) in of_value.iter().take(4) {
        let of = descriptor(&[("k", &value.to_string())]);
        let descriptors = vec![Descriptor { direction: Direction::Refund, ..of }];
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(10) };
        let back = LeaseReturn { call: new_call(), leases: vec![*id] };
        wait(engine.engine.return_tokens(&request, &back, at(0))).expect("an answer");
    }
    assert_eq!(occupied(), CAPACITY + 2 * most - 4);
    // These still have the other node, but a lease is only made where there is room for both.
    assert_eq!(leased(0, 0..CAPACITY).len(), 3);
    // Leases that have ended leave their room to others.
    let later = leased(30 * SECOND, 1_000..CAPACITY);
    assert_eq!(later.len() as u64, most);
}

/// Who makes up values gets nodes for what has to be remembered, and none for leases of nothing.
#[test]
fn denials_take_no_nodes() {
    let (engine, store) =
        tiny(Eviction::Refuse, "- {key: k, rate_limit: {unit: day, requests_per_unit: 0}}");
    for value in 0..20 {
        let of = vec![descriptor(&[("k", &value.to_string())])];
        let answer = engine.ask_leasing(0, of, &wants(PROXY, 10, 10));
        assert_eq!(answer.statuses[0].lease.map(|lease| lease.tokens), Some(0));
    }
    let narrow = store.occupancy(Class::Narrow).expect("narrow nodes");
    assert_eq!(narrow.occupied, 0);
}

/// What operators look at holds leases for narrow nodes like others, and they expire like others.
#[test]
fn leases_are_sound_nodes_that_expire() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let limit = "- {key: k, rate_limit: {unit: second, requests_per_unit: 100}}";
    let engine = in_store(shared_memory(dir.path()), dir, limit);
    engine.lease_of(0, (PROXY, 10, 0)).expect("a lease");
    let view = View::open(&engine.dir.path().join("data")).expect("a view");
    // The counter, the lease, and who uses the counter: for two periods, and a second of slack.
    for (nanos, live) in [(0, 3), (4 * SECOND, 1), (5 * SECOND, 0)] {
        let findings = view.verify(at(nanos).as_nanos(), |_, _| {});
        assert!(findings.is_sound());
        assert_eq!((findings.nodes, findings.live), (3, live), "after {nanos} ns");
    }
}

/// As many counters as one update takes leave no place for leases beside them.
#[test]
fn a_request_of_many_limits_is_decided_without_leases() {
    let limits: Vec<String> =
        (0..2).map(|index| format!("{{name: n{index}, unit: day, requests: 100}}")).collect();
    let engine = leasing(&format!("- {{key: k, rate_limits: [{}]}}", limits.join(", ")));
    let many = |count: usize| {
        (0..count).map(|index| descriptor(&[("k", &index.to_string())])).collect::<Vec<_>>()
    };
    let leases = |count| {
        let ask =
            LeaseRequest { wanted: vec![10; count], waiting: Vec::new(), ..wants(PROXY, 0, 0) };
        let answer = engine.ask_leasing(0, many(count), &ask);
        assert_eq!(answer.verdict, Verdict::Allow);
        answer.statuses.iter().filter(|status| status.lease.is_some()).count()
    };
    assert_eq!(leases(40), 40);
    assert_eq!(leases(60), 0);
}

/// Threads as proxies that ask, hold and give back. What passed and what is held never exceed the
/// limit; at the end all is accounted for.
#[test]
fn racing_proxies_never_hold_more_than_there_is() {
    let engine = leasing("- {key: k, rate_limit: {unit: day, requests_per_unit: 5000}}");
    let taken = Mutex::new(0_u64);
    std::thread::scope(|scope| {
        for proxy in 1..5_u64 {
            let (engine, taken) = (&engine, &taken);
            scope.spawn(move || {
                let mut own = 0;
                for turn in 0..300_u64 {
                    let answer = engine.ask_leasing(turn, of_k(), &wants(proxy, 40, turn % 3));
                    own += u64::from(answer.verdict == Verdict::Allow);
                    let lease = answer.statuses[0].lease.filter(|lease| lease.tokens > 0);
                    let Some(lease) = lease else { continue };
                    // What is spent stays held, as far as the sidecar knows.
                    let tokens = u64::from(lease.tokens);
                    let spent = tokens * (turn % 4) / 4;
                    own += spent;
                    engine.give_back(turn, lease.id, tokens - spent);
                }
                *taken.lock().expect("no thread panicked") += own;
            });
        }
    });
    let taken = taken.into_inner().expect("no thread panicked");
    assert!(taken >= 4_000, "{taken}");
    assert_eq!(engine.left_at(0), 5_000 - taken);
}

#[test]
fn leases_are_counted_by_rule_and_not_as_hits() {
    let recorder = Recorder::default();
    let modes = Modes { lease_ttl: Some(TTL), ..Modes::default() };
    let engine = observed(WINDOW, modes, Arc::new(recorder.clone()));
    let lease = engine.lease_of(0, (PROXY, 20, 0)).expect("a lease");
    for nanos in 0..3 {
        engine.give_back(nanos, lease.id, 8);
    }
    let counts = &recorder.0;
    let found = [&counts.hits, &counts.leases, &counts.leased, &counts.returned];
    assert_eq!(found.map(|count| count.load(Ordering::Relaxed)), [1, 1, 20, 20]);
}

/// A denial was reported for a limit that the next request's other rule replaces, so a client that had no
/// limit was denied for as long as others asked for that limit alone.
#[test]
fn denials_that_depend_on_the_rest_of_a_request_are_not_told() {
    let replaced = "
- {key: k, rate_limit: {name: slow, unit: day, requests_per_unit: 0}}
- {key: other, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: vip, rate_limit: {unlimited: true, replaces: [{name: slow}]}}
";
    // Denied hits that count would not be counted.
    let counted = "
- {key: k, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: other, rate_limit: {unit: day, requests: 9, count_denied: true}}
";
    for (rules, key, is_leased) in
        [(replaced, "k", false), (replaced, "other", true), (counted, "k", false)]
    {
        let engine = leasing(rules);
        let descriptors = vec![descriptor(&[(key, "v")])];
        let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
        let ask = wants(PROXY, 0, 0);
        let answer = wait(engine.engine.decide_leasing(&request, &ask, at(0))).expect("an answer");
        assert_eq!(answer.verdict, Verdict::Deny);
        assert_eq!(answer.statuses[0].lease.is_some(), is_leased, "{key} of {rules}");
    }
}

/// The parts of so many exact counters are too much for one update; the return was refused, and its
/// tokens lost for the whole period.
#[test]
fn a_return_of_many_parts_is_taken_one_by_one() {
    let engine = leasing(
        "- {key: k, rate_limit: {algorithm: sliding_buckets, exact: true, period: 7000s, requests: 50}}",
    );
    let of = |value: usize| descriptor(&[("k", &value.to_string())]);
    let mut leases = Vec::new();
    for value in 0..20 {
        let (domain, hits) = ("d".to_owned(), Hits::ONE);
        let request = Request { domain, descriptors: vec![of(value)], hits };
        let answer = wait(engine.engine.decide_leasing(&request, &wants(PROXY, 0, 9), at(0)));
        let lease = answer.expect("an answer").statuses[0].lease.expect("a lease");
        assert_eq!(lease.tokens, 9);
        leases.push(lease.id);
    }
    let refund = |value| Descriptor { direction: Direction::Refund, ..of(value) };
    let descriptors = (0..20).map(refund).collect();
    let request = Request { domain: "d".into(), descriptors, hits: Hits::new(9) };
    let back = LeaseReturn { call: new_call(), leases };
    let answer = wait(engine.engine.return_tokens(&request, &back, at(0))).expect("an answer");
    let left: Vec<u32> = answer.statuses.iter().map(|status| status.remaining).collect();
    assert_eq!(left, vec![49; 20]);
}

/// Of a descriptor that came twice in one ask, the second status did not tell of the tokens that the
/// first had just been leased: a client took what was in use for what was left. They are taken off
/// all later statuses of the same counter.
#[test]
fn what_is_left_after_two_leases_of_one_ask_is_told_with_the_last() {
    let engine = leasing(WINDOW);
    let twice = vec![descriptor(&[("k", "v")]); 2];
    let request = Request { domain: "d".into(), descriptors: twice, hits: Hits::ONE };
    let ask = wants(PROXY, 10, 0);
    let answer = wait(engine.engine.decide_leasing(&request, &ask, at(0))).expect("a decision");
    let leased = |status: &Status| status.lease.map_or(0, |lease| lease.tokens);
    assert_eq!(answer.statuses.iter().map(leased).collect::<Vec<_>>(), [10, 10]);
    let left: Vec<u32> = answer.statuses.iter().map(|status| status.remaining).collect();
    assert_eq!(left, [89, 78]);
    assert_eq!(engine.left(&[("k", "v")]), 78);
}
