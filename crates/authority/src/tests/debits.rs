//! Peeks, and debits after the fact.

use super::*;

const USER: &[(&str, &str)] = &[("user", "a")];
const TOKENS: &str = "- {key: user, rate_limit: {unit: day, requests: 100}}";

/// Peeks, and debits what the request turned out to cost; as often as it may. Says how often that was.
fn served(engine: &Fixture, cost: u64) -> usize {
    let request = || {
        let is_served = engine.ask_at(0, 0, vec![descriptor(USER)]).verdict == Verdict::Allow;
        if is_served {
            engine.ask_at(0, cost, vec![descriptor(USER)]);
        }
        is_served
    };
    (0..30).filter(|_| request()).count()
}

fn logged(engine: &Fixture) -> usize {
    engine.engine.limits.load().debits.logged()
}

/// A limit of 100 tokens that was debited 45 a request admitted all of them: the third debit was larger than
/// what was left, so it took nothing, and the next peek passed.
#[test]
fn a_limit_of_usage_closes_with_the_debit_that_exceeds_it() {
    let engine = engine(TOKENS);
    assert_eq!(served(&engine, 45), 30);
    let counting = engine_with(TOKENS, Modes { denied: DeniedHits::Count, ..Modes::default() });
    // The mode is for limits that requests bring along; a rule's limit was read with its own.
    assert_eq!(served(&counting, 45), 30);
    let counting = super::engine(&TOKENS.replace("100", "100, count_denied: true"));
    assert_eq!(served(&counting, 45), 3);
}

#[test]
fn limits_that_are_brought_along_count_denied_requests_where_the_service_says_so() {
    for (denied, expected) in [(DeniedHits::Ignore, 30), (DeniedHits::Count, 3)] {
        let engine = engine_with(TOKENS, Modes { denied, ..Modes::default() });
        let brought = || {
            let limit = LimitOverride { requests: 100, unit: Unit::Day };
            Descriptor { limit: Some(limit), ..descriptor(USER) }
        };
        let served = (0..30).filter(|_| {
            let is_served = engine.ask_at(0, 0, vec![brought()]).verdict == Verdict::Allow;
            if is_served {
                engine.ask_at(0, 45, vec![brought()]);
            }
            is_served
        });
        assert_eq!(served.count(), expected);
    }
}

#[test]
fn a_refused_debit_is_logged_once_for_each_limit_that_is_peeked_at() {
    let engine = engine(TOKENS);
    // Without a peek an ask may be for more than there is.
    engine.ask_at(0, 60, vec![descriptor(USER)]);
    engine.ask_at(0, 60, vec![descriptor(USER)]);
    assert_eq!(logged(&engine), 0);
    served(&engine, 60);
    assert_eq!(logged(&engine), 1);
    // New rules are looked at anew.
    engine.engine.replace_limits(rules_of(engine.dir.path(), TOKENS)).expect("good rules");
    assert_eq!(logged(&engine), 0);
}

#[test]
fn nothing_is_logged_where_denied_requests_count_or_nothing_is_left() {
    let counting = engine(&TOKENS.replace("100", "100, count_denied: true"));
    served(&counting, 60);
    assert_eq!(logged(&counting), 0);
    let engine = engine(TOKENS);
    served(&engine, 50);
    engine.ask_at(0, 1, vec![descriptor(USER)]);
    assert_eq!(logged(&engine), 0);
}
