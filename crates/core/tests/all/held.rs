//! Held tokens: their ends, denials and debts, and a slow twin that keeps a list of them.

use crate::slow_contract::runner;
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_core::{
    Charge, FixedWindow, GivenBack, Held, Hits, Lack, Nanos, Outcome, Quota, Refill, Timestamp,
    TokenBucket, decide,
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_092_800 * SECOND;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(START + millis * 1_000_000)
}

fn bucket(burst: u32) -> Quota {
    let bucket = TokenBucket::new(burst, Nanos::from_secs(10), burst, burst).unwrap();
    Quota::held(Arc::new(Quota::TokenBucket(bucket)))
}

fn window(limit: u32) -> Quota {
    let window = FixedWindow::new(limit, Nanos::from_secs(3)).unwrap();
    Quota::held(Arc::new(Quota::FixedWindow(window)))
}

fn held(quota: &Quota) -> &Held {
    match quota {
        Quota::Held(held, _) => held,
        _ => panic!("not held"),
    }
}

fn of(quota: &Quota) -> &Quota {
    match quota {
        Quota::Held(_, of) => of,
        _ => panic!("not held"),
    }
}

/// A refill of `tokens` at `now`.
fn refill(quota: &Quota, tokens: u64, now: Timestamp) -> Refill {
    let end = held(quota).end(of(quota).spendable_until(&[0; 4], now), now);
    let more_at = at(60_000);
    Refill { tokens, ahead: tokens, end, left: 0, more_at, denied: None, paid: 0 }
}

fn take(state: &mut [u64; 4], quota: &Quota, hits: u64, now: Timestamp) -> bool {
    decide(state, quota, Charge::Take(Hits::new(hits)), now).is_allow()
}

#[test]
fn tokens_of_a_window_end_with_it() {
    let (quota, mut state) = (window(100), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 10, at(2_000)), at(2_001));
    assert!(take(&mut state, &quota, 4, at(2_500)));
    assert!(!take(&mut state, &quota, 7, at(2_999)));
    assert_eq!(held(&quota).tokens(&state, at(2_999)), 6);
    assert_eq!(held(&quota).tokens(&state, at(3_000)), 0);
    assert_eq!(quota.spendable_until(&state, at(2_500)), at(3_000));
    // Those of the next window do not revive them.
    held(&quota).add(&mut state, &refill(&quota, 3, at(3_000)), at(3_000));
    assert_eq!(held(&quota).tokens(&state, at(3_000)), 3);
}

#[test]
fn tokens_of_a_bucket_last_one_to_two_seconds() {
    let (quota, mut state) = (bucket(100), [0; 4]);
    let tokens = |state: &[u64; 4], millis| held(&quota).tokens(state, at(millis));
    held(&quota).add(&mut state, &refill(&quota, 10, at(999)), at(999));
    assert_eq!((tokens(&state, 1_999), tokens(&state, 2_000)), (10, 0));
    held(&quota).add(&mut state, &refill(&quota, 7, at(1_000)), at(1_001));
    assert_eq!((tokens(&state, 1_999), tokens(&state, 2_000), tokens(&state, 3_000)), (17, 7, 0));
    // The older ones are spent first.
    assert_eq!(quota.next_spendable_until(&state, at(1_500)), at(2_000));
    assert!(take(&mut state, &quota, 12, at(1_500)));
    assert_eq!((tokens(&state, 1_999), tokens(&state, 2_000)), (5, 5));
    assert_eq!(quota.next_spendable_until(&state, at(1_500)), at(3_000));
}

#[test]
fn a_denial_is_for_so_many_hits_and_ends() {
    let (quota, mut state) = (window(100), [0; 4]);
    let denied = Some((5, at(1_200)));
    let found = Refill { denied, more_at: at(3_000), ..refill(&quota, 3, at(1_000)) };
    held(&quota).add(&mut state, &found, at(1_000));
    let lacks = |state: &[u64; 4], hits, millis| held(&quota).lacks(state, hits, at(millis));
    assert_eq!(lacks(&state, 3, 1_000), Lack::Nothing);
    assert_eq!(lacks(&state, 4, 1_000), Lack::Tokens);
    assert_eq!(lacks(&state, 5, 1_000), Lack::Denied);
    assert_eq!(lacks(&state, u64::MAX, 1_198), Lack::Denied);
    assert_eq!(lacks(&state, 5, 1_200), Lack::Tokens);
    let decision = decide(&mut state, &quota, Charge::Take(Hits::new(5)), at(1_100));
    // The client hears when hits fit, and who caches the denial hears how long it is certain.
    let retry_after = Nanos::new(1_900_000_000);
    assert_eq!(decision.outcome, Outcome::Deny { retry_after });
    let certain = quota.denied_for(&state, 5, retry_after, at(1_100));
    assert!(certain <= Nanos::new(100_000_000) && certain > Nanos::new(98_000_000), "{certain}");
    assert_eq!(quota.denied_for(&state, 4, retry_after, at(1_100)), Nanos::ZERO);
    // It ends at the time itself.
    let end = Timestamp::from_nanos(at(1_200).as_nanos() >> 20 << 20);
    let before = Timestamp::from_nanos(end.as_nanos() - 1);
    assert_eq!(held(&quota).lacks(&state, 5, before), Lack::Denied);
    assert_eq!(held(&quota).lacks(&state, 5, end), Lack::Tokens);
}

/// A number of hits is kept in ten bits and a shift, rounded up. So what the counter had left tells the very hits that were
/// denied from those that fit. Beyond what any limit has, that is not known.
#[test]
fn a_denial_is_for_the_hits_that_were_denied_and_not_for_those_that_fit() {
    let (quota, mut state) = (window(u32::MAX), [0; 4]);
    let numbers =
        (0..40).flat_map(|shift| [1_u64 << shift, (1 << shift) + 1, (1_u64 << shift) - 1]);
    for hits in numbers.chain([1_023, 1_024, 1_025, 2_046, 2_047]).filter(|n| *n > 0) {
        let left = hits - 1;
        let found = Refill { denied: Some((hits, at(2_000))), left, ..refill(&quota, 0, at(0)) };
        held(&quota).add(&mut state, &found, at(0));
        assert_eq!(held(&quota).lacks(&state, hits, at(0)), Lack::Denied, "{hits}");
        assert_eq!(
            held(&quota).lacks(&state, hits.saturating_add(1), at(0)),
            Lack::Denied,
            "{hits}"
        );
        if left <= u64::from(u32::MAX) {
            let expected = if left == 0 { Lack::Nothing } else { Lack::Tokens };
            assert_eq!(held(&quota).lacks(&state, left, at(0)), expected, "{hits}");
        }
    }
}

/// Tokens that are held are as good as what the counter had left: hits that fit into both are not denied by rounding.
#[test]
fn a_denial_is_not_for_hits_that_fit_together_with_the_tokens() {
    let (quota, mut state) = (bucket(u32::MAX), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 500, at(999)), at(999));
    let denied = Some((2_049, at(1_900)));
    let found = Refill { denied, left: 1_300, ..refill(&quota, 250, at(1_000)) };
    held(&quota).add(&mut state, &found, at(1_000));
    let lacks = |hits| held(&quota).lacks(&state, hits, at(1_000));
    assert_eq!(lacks(750), Lack::Nothing);
    assert_eq!(lacks(751), Lack::Tokens);
    // 2,049 is kept as 2,052.
    assert_eq!(
        (lacks(2_050), lacks(2_051), lacks(2_052)),
        (Lack::Tokens, Lack::Denied, Lack::Denied)
    );
}

#[test]
fn a_denial_tells_when_to_ask_again() {
    #[track_caller]
    fn check(quota: &Quota, state: &mut [u64; 4], hits: u64, retry_at: Timestamp) {
        let decision = decide(state, quota, Charge::Take(Hits::new(hits)), at(1_000));
        let retry_after = retry_at.saturating_since(at(1_000));
        assert_eq!(decision.outcome, Outcome::Deny { retry_after });
    }
    let quota = window(100);
    let refilled = |denied, more_at| {
        let mut state = [0; 4];
        let found = Refill { denied, more_at, left: 4, ..refill(&quota, 3, at(1_000)) };
        held(&quota).add(&mut state, &found, at(1_000));
        state
    };
    // Nobody has asked the shared counter for so many: soon.
    check(&quota, &mut refilled(None, at(3_000)), 5, at(2_000));
    check(&quota, &mut refilled(Some((9, at(2_500))), at(3_000)), 8, at(2_000));
    // It has none: when it has more, and not before it can be asked again. Both are kept rounded, away from each other.
    check(&quota, &mut refilled(Some((9, at(1_500))), at(2_500)), 9, at(3_000));
    let retry_at = Timestamp::from_nanos(at(2_900).as_nanos() >> 20 << 20);
    check(&quota, &mut refilled(Some((9, at(2_900))), at(2_000)), 9, retry_at);
    // There will never be any: after a period.
    check(&window(0), &mut [0; 4], 1, at(4_000));
    // Alone: with the next share.
    let mut alone = [0; 4];
    held(&quota).decide_alone(&mut alone, 10, at(1_000));
    check(&quota, &mut alone, 11, at(3_000));
}

#[test]
fn what_is_left_is_told_with_the_tokens_and_without_the_debt() {
    let (quota, mut state) = (bucket(100), [0; 4]);
    held(&quota).add(&mut state, &Refill { left: 40, ..refill(&quota, 10, at(999)) }, at(999));
    let found = Refill { left: 30, more_at: at(2_000), ..refill(&quota, 7, at(1_000)) };
    held(&quota).add(&mut state, &found, at(1_000));
    assert_eq!(held(&quota).left(&state, at(1_000)), 30);
    let mut ask = |charge| {
        let decision = decide(&mut state, &quota, charge, at(1_000));
        (decision.remaining, decision.reset_at)
    };
    assert_eq!(ask(Charge::PEEK), (10 + 7 + 30, at(2_000)));
    assert_eq!(ask(Charge::Take(Hits::new(12))), (5 + 30, at(2_000)));
    assert_eq!(ask(Charge::Force(Hits::new(12))), (30 - 7, at(2_000)));
    assert_eq!(ask(Charge::Force(Hits::new(60))), (0, at(2_000)));
    // The time when there is more has passed.
    assert_eq!(decide(&mut state, &quota, Charge::PEEK, at(2_500)).reset_at, at(2_500));
}

#[test]
fn a_state_is_kept_while_it_has_something_to_tell() {
    let (quota, second) = (bucket(100), |millis| at(millis).as_nanos());
    let keep_until = |tokens, denied, forced, millis| {
        let (mut state, now) = ([0; 4], at(millis));
        let refill = Refill { denied, ..refill(&quota, tokens, at(0)) };
        held(&quota).add(&mut state, &refill, now);
        let force = Charge::Force(Hits::new(forced));
        decide(&mut state, &quota, force, now).keep_until.as_nanos()
    };
    // Tokens, until they end.
    assert_eq!(keep_until(5, None, 0, 1), second(2_000));
    assert_eq!(keep_until(5, None, 4, 1), second(2_000));
    // A denial, if it ends later.
    let denied = |millis| Some((9, at(millis)));
    assert_eq!(keep_until(5, denied(1_500), 0, 1), second(2_000));
    assert_eq!(keep_until(5, denied(9_000), 0, 1), second(9_000) >> 20 << 20);
    // A debt, for an hour.
    assert_eq!(keep_until(5, None, 6, 1), second(3_600_001));
    // Without tokens, ten seconds in which some may come back, and no longer than these would be good for.
    assert_eq!(keep_until(0, None, 0, 1), second(2_000));
    let (quota, mut state) = (window(100), [0; 4]);
    let long = Refill { end: at(60_000), ..refill(&quota, 0, at(0)) };
    assert_eq!(held(&quota).add(&mut state, &long, at(1)), at(10_001));
}

/// A refill is due when a quarter of the tokens is left. Taking some out changes what this is a quarter of.
#[test]
fn a_refill_is_due_by_what_is_left_after_tokens_were_taken_out() {
    for (quota, older) in [(window(1_000), 0), (bucket(1_000), 40)] {
        let mut state = [0; 4];
        held(&quota).add(&mut state, &refill(&quota, older, at(999)), at(999));
        held(&quota).add(&mut state, &refill(&quota, 100, at(1_000)), at(1_000));
        let out = held(&quota).take_out(&mut state, 64, at(1_000));
        assert_eq!((out.older, out.tokens), (older, 36));
        let due = (0..64).filter(|_| {
            assert!(take(&mut state, &quota, 1, at(1_000)));
            held(&quota).is_refill_due(&mut state, at(1_000))
        });
        assert_eq!(due.collect::<Vec<_>>(), [47], "older tokens: {older}");
    }
}

#[test]
fn a_refund_pays_the_debt_and_comes_back_with_the_earliest_end() {
    let refund = |hits| Charge::Refund(Hits::new(hits));
    let (quota, mut state) = (window(100), [0; 4]);
    held(&quota).add(&mut state, &Refill { left: 50, ..refill(&quota, 10, at(0)) }, at(0));
    decide(&mut state, &quota, Charge::Force(Hits::new(25)), at(1));
    let mut give = |hits, millis| {
        let decision = decide(&mut state, &quota, refund(hits), at(millis));
        assert!(decision.is_allow());
        let now = at(millis);
        (held(&quota).owed(&state, now), held(&quota).tokens(&state, now), decision.remaining)
    };
    assert_eq!(give(5, 2), (10, 0, 40));
    assert_eq!(give(12, 3), (0, 2, 52));
    assert_eq!(give(3, 4), (0, 5, 55));
    // At most what the limit has in all.
    assert_eq!(give(1_000, 5), (0, 50, 100));
    assert_eq!(give(1, 6), (0, 50, 100));
    // The window of these hits is over.
    assert_eq!(give(7, 3_000), (0, 0, 0));

    let (quota, mut state) = (bucket(100), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 7, at(1_000)), at(1_000));
    let tokens = |state: &[u64; 4], millis| held(&quota).tokens(state, at(millis));
    decide(&mut state, &quota, refund(4), at(1_999));
    assert_eq!((tokens(&state, 1_999), tokens(&state, 2_000)), (11, 7));
    decide(&mut state, &quota, refund(4), at(2_000));
    assert_eq!((tokens(&state, 2_000), tokens(&state, 2_999), tokens(&state, 3_000)), (11, 11, 0));
}

#[test]
fn a_refill_is_due_once_when_tokens_run_low() {
    let (quota, mut state) = (window(1_000), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 100, at(0)), at(0));
    let due: Vec<u64> = (0..100)
        .filter(|_| {
            assert!(take(&mut state, &quota, 1, at(10)));
            held(&quota).is_refill_due(&mut state, at(10))
        })
        .collect();
    // A quarter, rounded down to a power of two.
    assert_eq!(due, [83]);
    // Without tokens ahead of requests none is due.
    held(&quota).add(&mut state, &Refill { ahead: 0, ..refill(&quota, 8, at(20)) }, at(20));
    assert!(take(&mut state, &quota, 8, at(20)));
    assert!(!held(&quota).is_refill_due(&mut state, at(20)));
}

#[test]
fn forced_hits_beyond_the_tokens_are_owed_until_a_refill_pays_them() {
    let (quota, mut state) = (window(100), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 10, at(0)), at(0));
    let force = Charge::Force(Hits::new(25));
    assert!(!decide(&mut state, &quota, force, at(1)).is_allow());
    assert_eq!((held(&quota).owed(&state, at(1)), held(&quota).tokens(&state, at(1))), (15, 0));
    assert!(!take(&mut state, &quota, 1, at(1)));
    // Also after the window: the shared counter decides what becomes of them.
    assert_eq!(held(&quota).owed(&state, at(5_000)), 15);
    // Nine more were owed while the refill was under way.
    decide(&mut state, &quota, Charge::Force(Hits::new(9)), at(2));
    held(&quota).add(&mut state, &Refill { paid: 15, ..refill(&quota, 20, at(3)) }, at(3));
    assert_eq!((held(&quota).owed(&state, at(3)), held(&quota).tokens(&state, at(3))), (0, 11));
}

#[test]
fn a_state_that_decides_alone_admits_its_share_of_each_window() {
    let (quota, mut state) = (window(10), [0; 4]);
    let mut admitted = |millis: u64| {
        held(&quota).decide_alone(&mut state, 3, at(millis));
        take(&mut state, &quota, 1, at(millis))
    };
    let by_window: Vec<usize> = (0..3)
        .map(|window| (0..30).filter(|of| admitted(window * 3_000 + of * 100)).count())
        .collect();
    assert_eq!(by_window, [3, 3, 3]);
    // What the last window owes is charged by the next refill, which ends this.
    assert_eq!(held(&quota).owed(&state, at(8_999)), 3);
    held(&quota).add(&mut state, &Refill { paid: 3, ..refill(&quota, 1, at(8_999)) }, at(8_999));
    assert!(take(&mut state, &quota, 1, at(8_999)));
    assert!(!take(&mut state, &quota, 1, at(8_999)));
}

/// The share is for the case that nobody knows what is left. If the shared counter has told that it has less, and no more
/// before the end of this window, that is all.
#[test]
fn a_state_that_decides_alone_admits_no_more_than_was_left_in_its_first_window() {
    #[track_caller]
    fn check(left: u64, (more_at, alone_from): (u64, u64), admitted: usize) {
        let (quota, mut state) = (window(10), [0; 4]);
        let found = Refill { left, more_at: at(more_at), ..refill(&quota, 0, at(0)) };
        held(&quota).add(&mut state, &found, at(0));
        let mut one = |millis| {
            held(&quota).decide_alone(&mut state, 2, at(millis));
            take(&mut state, &quota, 1, at(millis))
        };
        assert_eq!((0..20).filter(|of| one(alone_from + of)).count(), admitted);
    }
    check(2, (3_000, 1_000), 2);
    check(0, (3_000, 1_000), 0);
    // A share is half of ten.
    check(9, (3_000, 1_000), 5);
    // There was to be more in this window.
    check(2, (2_000, 1_000), 5);
    // It was left in a window that is over.
    check(2, (6_000, 3_000), 5);
}

#[test]
fn a_state_does_not_decide_alone_before_its_tokens_are_spent() {
    let (quota, mut state) = (bucket(100), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 2, at(999)), at(999));
    let found = Refill { left: 100, ..refill(&quota, 3, at(1_000)) };
    held(&quota).add(&mut state, &found, at(1_000));
    let before = state;
    held(&quota).decide_alone(&mut state, 2, at(1_000));
    assert_eq!(state, before);
    assert!(take(&mut state, &quota, 5, at(1_000)));
    assert!(!take(&mut state, &quota, 1, at(1_000)));
    held(&quota).decide_alone(&mut state, 2, at(1_000));
    assert!(take(&mut state, &quota, 50, at(1_000)));
    // Each request tries to get a refill, so none is due besides.
    assert!(!held(&quota).is_refill_due(&mut state, at(1_000)));
    assert!(!take(&mut state, &quota, 1, at(1_000)));
}

/// A return to another window would free room there that its tokens did not take. A bucket has refilled since the
/// charge, so tokens that came back in full could be charged and held again without end.
#[test]
fn only_their_own_window_takes_tokens_back_and_a_bucket_less_its_refill() {
    let back = |end| GivenBack { tokens: 40, older: 0, end };
    let (quota, mut state) = (window(100), [0; 4]);
    decide(&mut state, of(&quota), Charge::Take(Hits::new(50)), at(100));
    assert_eq!(quota.worth_back(&state, &back(at(3_000)), at(2_999)), 40);
    assert_eq!(quota.worth_back(&state, &back(at(3_000)), at(3_000)), 0);
    assert_eq!(quota.worth_back(&state, &back(at(6_000)), at(2_999)), 0);
    // Ten a second. The earliest time of a charge with this end is at 1 s.
    let (quota, mut state) = (bucket(100), [0; 4]);
    decide(&mut state, of(&quota), Charge::Take(Hits::new(50)), at(1_500));
    assert_eq!(quota.worth_back(&state, &back(at(3_000)), at(2_000)), 30);
    let older = GivenBack { tokens: 0, older: 40, end: at(4_000) };
    assert_eq!(quota.worth_back(&state, &older, at(2_000)), 30);
    assert_eq!(quota.worth_back(&state, &back(at(3_000)), at(9_000)), 0);
}

/// Tokens that are not held are for the shared counter to lend. It alone knows of hits that were taken earlier.
#[test]
fn only_held_tokens_are_charged_ahead_and_none_of_earlier_hits_come_back() {
    let (quota, mut state) = (bucket(100), [0; 4]);
    held(&quota).add(&mut state, &refill(&quota, 7, at(999)), at(999));
    held(&quota).add(&mut state, &refill(&quota, 5, at(1_000)), at(1_000));
    let chargeable = |quota: &Quota, left, millis| quota.chargeable(&state, left, at(millis));
    assert_eq!((chargeable(&quota, 90, 1_000), chargeable(&quota, 9, 1_000)), (12, 9));
    assert_eq!((chargeable(&quota, 90, 2_000), chargeable(&quota, 90, 3_000)), (5, 0));
    assert_eq!(chargeable(of(&quota), 90, 1_000), 90);
    for state in [state, [0; 4]] {
        assert_eq!(quota.refundable(&state, 3, at(1_000), at(1_000)), 0);
    }
}

/// Tokens by their end.
#[derive(Debug, Default)]
struct Slow {
    tokens: Vec<(u64, u64)>,
}

impl Slow {
    fn pass(&mut self, now: u64) {
        self.tokens.retain(|(end, tokens)| *end > now && *tokens > 0);
        self.tokens.sort_unstable();
    }

    fn sum(&self) -> u64 {
        self.tokens.iter().map(|(_, tokens)| tokens).sum()
    }

    fn spend(&mut self, mut hits: u64) {
        for (_, tokens) in &mut self.tokens {
            let spent = hits.min(*tokens);
            *tokens -= spent;
            hits -= spent;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Pass(u64),
    Refill(u64),
    Take(u64),
    TakeOut(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2_500_000_000_u64).prop_map(Step::Pass),
        (0..5_000_000_u64).prop_map(Step::Pass),
        (0..40_u64).prop_map(Step::Refill),
        (1..20_u64).prop_map(Step::Take),
        (0..20_u64).prop_map(Step::TakeOut),
    ];
    prop::collection::vec(step, 1..60)
}

#[test]
fn held_tokens_agree_with_a_list_of_them() {
    let run = |(is_bucket, steps): (bool, Vec<Step>)| {
        let quota = if is_bucket { bucket(1_000_000) } else { window(1_000_000) };
        let (held, mut state, mut slow) = (held(&quota), [0; 4], Slow::default());
        let mut now = START;
        for step in steps {
            let time = Timestamp::from_nanos(now);
            match step {
                Step::Pass(nanos) => now += nanos,
                Step::Refill(tokens) => {
                    let refill = refill(&quota, tokens, time);
                    held.add(&mut state, &refill, time);
                    slow.tokens.push((refill.end.as_nanos(), tokens));
                }
                Step::Take(hits) => {
                    let fits = hits <= slow.sum();
                    prop_assert_eq!(take(&mut state, &quota, hits, time), fits);
                    slow.spend(if fits { hits } else { 0 });
                }
                Step::TakeOut(keep) => {
                    let out = held.take_out(&mut state, keep, time);
                    let expected = slow.sum().saturating_sub(keep);
                    prop_assert_eq!(out.tokens + out.older, expected);
                    slow.spend(expected);
                }
            }
            slow.pass(now);
            let time = Timestamp::from_nanos(now);
            prop_assert_eq!(held.tokens(&state, time), slow.sum(), "{:?} {:?}", state, slow);
            let first = slow.tokens.first().map(|(end, _)| Timestamp::from_nanos(*end));
            if let Some(first) = first {
                prop_assert_eq!(quota.next_spendable_until(&state, time), first);
            }
        }
        Ok(())
    };
    runner(2_000).run(&(any::<bool>(), steps()), run).unwrap();
}

/// Words of a damaged store are no reason to stop, and a refill brings any state back to its tokens.
#[test]
fn no_state_makes_a_decision_fail_and_a_refill_ends_deciding_alone() {
    let ends = prop_oneof![any::<u64>(), START..START + 5 * SECOND];
    let words = (any::<u64>(), ends, any::<u64>(), any::<u64>());
    let charge = (0..3, any::<u64>()).prop_map(|(kind, hits)| match kind {
        0 => Charge::Take(Hits::new(hits)),
        1 => Charge::Force(Hits::new(hits)),
        _ => Charge::Refund(Hits::new(hits)),
    });
    let run = |(is_bucket, words, charge, tokens, sidecars): (bool, _, _, u64, u32)| {
        let (tokens_word, end, left, denial) = words;
        let state = [tokens_word, end, left, denial];
        let quota = if is_bucket { bucket(100) } else { window(100) };
        let (held, now) = (held(&quota), at(1_000));
        for _ in 0..3 {
            let mut state = state;
            decide(&mut state, &quota, charge, now);
            held.decide_alone(&mut state, sidecars, now);
            decide(&mut state, &quota, charge, now);
            held.is_refill_due(&mut state, now);
        }
        let mut state = state;
        let refill = Refill { left: 50, paid: u64::MAX, ahead: 1, ..refill(&quota, tokens, now) };
        held.add(&mut state, &refill, now);
        let more = held.tokens(&state, now) + 1;
        prop_assert!(!take(&mut state, &quota, more, now), "{:?}", state);
        if more > 1 {
            // It spends tokens, and owes nothing.
            prop_assert!(take(&mut state, &quota, 1, now), "{:?}", state);
            prop_assert_eq!((held.tokens(&state, now), held.owed(&state, now)), (more - 2, 0));
        }
        Ok(())
    };
    let strategy = (any::<bool>(), words, charge, 0..3_u64, any::<u32>());
    runner(2_000).run(&strategy, run).unwrap();
}
