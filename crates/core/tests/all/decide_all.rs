//! Several limits as one: all or nothing, shadow and quota modes, and denied hits.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use tidegate_core::{
    Charge, Decisions, DeniedHits, Enforcement, FixedWindow, Hits, LimitCheck, Nanos, Outcome,
    Quota, Timestamp, TokenBucket, Verdict, decide, decide_all,
};

const MINUTE: Nanos = Nanos::from_secs(60);
const NOW: Timestamp = Timestamp::from_secs(6_000);

fn window(requests: u32) -> Quota {
    Quota::FixedWindow(FixedWindow::new(requests, MINUTE).unwrap())
}

/// One hit of descriptor `descriptor` on the `state`th narrow state.
fn check(quota: &Quota, descriptor: usize, state: usize) -> LimitCheck<'_> {
    LimitCheck {
        quota,
        enforcement: Enforcement::Enforce,
        denied: DeniedHits::Ignore,
        charge: Charge::ONE,
        descriptor,
        state: state * 4..state * 4 + 4,
    }
}

/// Decides, and returns the verdict with the remaining hits of each limit.
fn run(states: &mut [u64], checks: &[LimitCheck<'_>]) -> (Verdict, Vec<(bool, u64)>) {
    let mut decisions = Decisions::default();
    let verdict = decide_all(states, checks, NOW, &mut decisions);
    let decisions = decisions.all().iter();
    (verdict, decisions.map(|decision| (decision.is_allow(), decision.remaining)).collect())
}

#[test]
fn one_denial_takes_from_no_limit() {
    let (wide, narrow) = (window(10), window(1));
    // As two descriptors, and as two limits of one.
    for descriptors in [[0, 1], [0, 0]] {
        let mut states = [0; 8];
        let checks = [check(&wide, descriptors[0], 0), check(&narrow, descriptors[1], 1)];
        assert_eq!(run(&mut states, &checks).0, Verdict::Allow);
        let after_one = states;
        for _ in 0..3 {
            // The limit with room reports its remaining hits unchanged.
            let expected = (Verdict::Deny, vec![(true, 9), (false, 0)]);
            assert_eq!(run(&mut states, &checks), expected);
            assert_eq!(states, after_one);
        }
    }
}

#[test]
fn decisions_that_were_made_elsewhere_replace_all_others() {
    let quota = window(10);
    let decided = |hits| decide(&mut [0; 4], &quota, Charge::Take(Hits::new(hits)), NOW);
    let mut decisions = Decisions::new();
    for all in [vec![decided(1), decided(2)], vec![decided(11)]] {
        decisions.set(all.clone());
        assert_eq!(decisions.all(), all);
    }
}

#[test]
fn a_shadow_limit_reports_and_never_denies() {
    let (real, shadow) = (window(10), window(1));
    let mut states = [0; 8];
    let shadowed = LimitCheck { enforcement: Enforcement::Shadow, ..check(&shadow, 1, 1) };
    let checks = [check(&real, 0, 0), shadowed];
    for turn in 0..3u64 {
        let expected = (Verdict::Allow, vec![(true, 9 - turn), (turn == 0, 0)]);
        assert_eq!(run(&mut states, &checks), expected);
    }
}

#[test]
fn a_descriptor_that_is_over_in_shadow_takes_from_none_of_its_limits() {
    let (open, full) = (window(10), window(0));
    let mut states = [0; 12];
    let shadow = |check| LimitCheck { enforcement: Enforcement::Shadow, ..check };
    let checks = [shadow(check(&open, 0, 0)), shadow(check(&full, 0, 1)), check(&open, 1, 2)];
    let expected = (Verdict::Allow, vec![(true, 10), (false, 0), (true, 9)]);
    assert_eq!(run(&mut states, &checks), expected);
}

#[test]
fn quotas_deny_only_together() {
    let (one, two, open) = (window(1), window(2), window(10));
    let mut states = [0; 12];
    let quota = |check| LimitCheck { enforcement: Enforcement::Quota, ..check };
    let checks = [quota(check(&one, 0, 0)), quota(check(&two, 1, 1)), check(&open, 2, 2)];
    let turns = [
        (Verdict::Allow, vec![(true, 0), (true, 1), (true, 9)]),
        (Verdict::Allow, vec![(false, 0), (true, 0), (true, 8)]),
        (Verdict::Deny, vec![(false, 0), (false, 0), (true, 8)]),
    ];
    for expected in turns {
        assert_eq!(run(&mut states, &checks), expected);
    }
    // An enforced rule denies whatever the quotas decide.
    let closed = window(0);
    let checks = [quota(check(&open, 0, 2)), check(&closed, 1, 0)];
    assert_eq!(run(&mut states, &checks).0, Verdict::Deny);
}

#[test]
fn denied_hits_count_where_the_limit_says_so() {
    let (spared, counted, closed) = (window(10), window(10), window(0));
    let mut states = [0; 12];
    let four = Charge::Take(Hits::new(4));
    let count = LimitCheck { denied: DeniedHits::Count, charge: four, ..check(&counted, 1, 1) };
    let checks = [check(&spared, 0, 0), count, check(&closed, 2, 2)];
    for left in [6, 2, 0, 0] {
        let (verdict, decisions) = run(&mut states, &checks);
        assert_eq!((verdict, decisions[0], decisions[1].1), (Verdict::Deny, (true, 10), left));
    }
}

/// Limits on usage work by a peek and a later debit. A debit larger than the remaining hits took nothing,
/// so the next peek passed, and nothing was limited.
#[test]
fn a_debit_after_the_fact_closes_a_limit_that_counts_denied_hits() {
    let bucket = TokenBucket::new(10, MINUTE, 10, 10).unwrap();
    for quota in [window(10), Quota::TokenBucket(bucket)] {
        let (mut states, mut admitted) = ([0; 4], [0, 0]);
        for (index, denied) in [DeniedHits::Ignore, DeniedHits::Count].into_iter().enumerate() {
            states.fill(0);
            for _ in 0..30 {
                let peek = LimitCheck { denied, charge: Charge::PEEK, ..check(&quota, 0, 0) };
                if run(&mut states, std::slice::from_ref(&peek)).0 == Verdict::Allow {
                    admitted[index] += 1;
                    let debit = LimitCheck { charge: Charge::Take(Hits::new(11)), ..peek };
                    assert_eq!(run(&mut states, &[debit]).0, Verdict::Deny);
                }
            }
        }
        assert_eq!(admitted, [30, 1], "{}", quota.algorithm());
    }
}

/// As in envoyproxy/ratelimit: a window is over once its count exceeds the limit, so a limit of two with
/// later debits of one hit each admits a third request.
#[test]
fn a_peek_passes_while_the_count_is_not_past_the_limit() {
    let two = window(2);
    let mut states = [0; 4];
    let count = |charge| LimitCheck { denied: DeniedHits::Count, charge, ..check(&two, 0, 0) };
    let mut turn = || {
        let peeked = run(&mut states, &[count(Charge::PEEK)]).0;
        run(&mut states, &[count(Charge::ONE)]);
        peeked
    };
    let verdicts = [turn(), turn(), turn(), turn()];
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Allow, Verdict::Deny]);
}

/// If another descriptor was over its quota, a descriptor that passed was decided again as if denied hits
/// did not count: a service with just enough quota was reported as over.
#[test]
fn a_peek_that_passes_beside_an_exhausted_quota_is_reported_so() {
    let (one, two) = (window(1), window(2));
    let quota =
        |check| LimitCheck { enforcement: Enforcement::Quota, denied: DeniedHits::Count, ..check };
    let mut states = [0; 8];
    let debits = |hits| Charge::Take(Hits::new(hits));
    run(&mut states, &[quota(LimitCheck { charge: debits(2), ..check(&one, 0, 0) })]);
    run(&mut states, &[quota(LimitCheck { charge: debits(2), ..check(&two, 0, 1) })]);
    let peek = |check| quota(LimitCheck { charge: Charge::PEEK, ..check });
    let checks = [peek(check(&one, 0, 0)), peek(check(&two, 1, 1))];
    assert_eq!(run(&mut states, &checks), (Verdict::Allow, vec![(false, 0), (true, 0)]));
}

#[test]
fn a_refund_is_given_with_the_request_or_not_at_all() {
    let (open, closed) = (window(10), window(0));
    let mut states = [0; 8];
    run(&mut states, &[LimitCheck { charge: Charge::Take(Hits::new(7)), ..check(&open, 0, 0) }]);
    let refund = LimitCheck { charge: Charge::Refund(Hits::new(5)), ..check(&open, 0, 0) };
    let denied = [refund.clone(), check(&closed, 1, 1)];
    assert_eq!(run(&mut states, &denied).1, [(true, 3), (false, 0)]);
    assert_eq!(run(&mut states, std::slice::from_ref(&refund)), (Verdict::Allow, vec![(true, 8)]));
    // No more than what was taken.
    assert_eq!(run(&mut states, &[refund]), (Verdict::Allow, vec![(true, 10)]));
}

#[test]
fn a_descriptor_that_comes_twice_is_charged_twice_or_not_at_all() {
    let quota = window(3);
    let mut states = [0; 4];
    let checks = [check(&quota, 0, 0), check(&quota, 1, 0)];
    assert_eq!(run(&mut states, &checks).0, Verdict::Allow);
    let (verdict, decisions) = run(&mut states, &checks);
    assert_eq!((verdict, decisions[0].1), (Verdict::Deny, 1));
}

/// A bucket that started below the cost of its first charge denied for ever: the denial left no trace, so
/// every charge met a new bucket, and nothing ever refilled.
#[test]
fn a_bucket_refills_from_its_first_use_even_if_that_was_denied() {
    let bucket = TokenBucket::new(1, Nanos::from_secs(10), 2, 0).unwrap();
    let (bucket, closed) = (Quota::TokenBucket(bucket), window(0));
    let mut states = [0; 8];
    let first = decide(&mut states, &bucket, Charge::ONE, NOW);
    assert_eq!(first.outcome, Outcome::Deny { retry_after: Nanos::from_secs(10) });
    let later = NOW.saturating_add(Nanos::from_secs(10));
    assert!(decide(&mut states, &bucket, Charge::ONE, later).is_allow());

    // The same if another limit of the request denies as well.
    states.fill(0);
    run(&mut states, &[check(&bucket, 0, 0), check(&closed, 1, 1)]);
    assert!(decide(&mut states, &bucket, Charge::ONE, later).is_allow());
}

/// A check of the model: the counter, the descriptor and the charge.
#[derive(Debug, Clone)]
struct Plan {
    counter: usize,
    descriptor: usize,
    enforcement: Enforcement,
    denied: DeniedHits,
    hits: u64,
}

/// The documented rules of `decide_all` over plain counts.
fn model(plans: &[Plan], limits: &[u32], counts: &mut [u64]) -> Verdict {
    let left =
        |counts: &[u64], counter: usize| u64::from(limits[counter]).saturating_sub(counts[counter]);
    let fits = |counts: &[u64], plan: &Plan| match (plan.denied, plan.hits) {
        // A window is over once its count exceeds the limit.
        (DeniedHits::Count, 0) => {
            limits[plan.counter] > 0 && counts[plan.counter] <= limits[plan.counter].into()
        }
        (_, hits) => hits.max(1) <= left(counts, plan.counter),
    };
    let mut trial = counts.to_vec();
    let mut over: Vec<usize> = Vec::new();
    for plan in plans {
        let fits = fits(&trial, plan);
        if fits || plan.denied == DeniedHits::Count {
            trial[plan.counter] += plan.hits;
        }
        if !fits {
            over.push(plan.descriptor);
        }
    }
    let of = |enforcement| plans.iter().filter(move |plan| plan.enforcement == enforcement);
    let is_over = |plan: &&Plan| over.contains(&plan.descriptor);
    let denied = of(Enforcement::Enforce).any(|plan| over.contains(&plan.descriptor))
        || (of(Enforcement::Quota).count() > 0
            && of(Enforcement::Quota).filter(is_over).count() == of(Enforcement::Quota).count());
    for plan in plans {
        let room = left(counts, plan.counter);
        if !denied && !over.contains(&plan.descriptor) {
            counts[plan.counter] += if plan.hits <= room { plan.hits } else { 0 };
        } else if plan.denied == DeniedHits::Count {
            counts[plan.counter] += plan.hits;
        }
    }
    if denied { Verdict::Deny } else { Verdict::Allow }
}

/// Requests with one rule, so one enforcement, for each descriptor.
fn requests() -> impl Strategy<Value = Vec<Plan>> {
    let enforcement = prop_oneof![
        3 => Just(Enforcement::Enforce),
        1 => Just(Enforcement::Shadow),
        2 => Just(Enforcement::Quota),
    ];
    let denied = prop_oneof![3 => Just(DeniedHits::Ignore), 1 => Just(DeniedHits::Count)];
    let limits = prop::collection::vec((0usize..4, denied, 0u64..4), 1..3);
    let descriptors = prop::collection::vec((enforcement, limits), 1..4);
    descriptors.prop_map(|descriptors| {
        let descriptors = descriptors.into_iter().enumerate();
        let plans = descriptors.flat_map(|(descriptor, (enforcement, limits))| {
            limits.into_iter().map(move |(counter, denied, hits)| Plan {
                counter,
                descriptor,
                enforcement,
                denied,
                hits,
            })
        });
        plans.collect()
    })
}

#[test]
fn decisions_agree_with_the_documented_rules() {
    let config = Config {
        cases: 2_000,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    };
    let limits = prop::collection::vec(0u32..8, 4);
    let strategy = (limits, prop::collection::vec(requests(), 1..12));
    TestRunner::new(config)
        .run(&strategy, |(limits, requests)| {
            let quotas: Vec<Quota> = limits.iter().map(|limit| window(*limit)).collect();
            let (mut states, mut counts) = ([0; 16], [0; 4]);
            for plans in &requests {
                let checks: Vec<LimitCheck<'_>> = plans
                    .iter()
                    .map(|plan| LimitCheck {
                        enforcement: plan.enforcement,
                        denied: plan.denied,
                        charge: Charge::Take(Hits::new(plan.hits)),
                        ..check(&quotas[plan.counter], plan.descriptor, plan.counter)
                    })
                    .collect();
                let verdict = run(&mut states, &checks).0;
                prop_assert_eq!(verdict, model(plans, &limits, &mut counts));
                for (counter, quota) in quotas.iter().enumerate() {
                    let mut state = states[counter * 4..counter * 4 + 4].to_vec();
                    let left = decide(&mut state, quota, Charge::PEEK, NOW).remaining;
                    let expected = u64::from(limits[counter]).saturating_sub(counts[counter]);
                    prop_assert_eq!(left, expected);
                }
            }
            Ok(())
        })
        .unwrap();
}
