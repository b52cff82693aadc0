//! The log of debits that were refused.

use super::*;

const USER: &[(&str, &str)] = &[("user", "a")];
const TOKENS: &str = "- {key: user, rate_limit: {unit: day, requests: 100}}";

/// Peeks, and debits the cost of the request, for each of 30 requests that may pass.
fn serve(engine: &Fixture, cost: u64) {
    for _ in 0..30 {
        if engine.ask_at(0, 0, vec![descriptor(USER)]).verdict == Verdict::Allow {
            engine.ask_at(0, cost, vec![descriptor(USER)]);
        }
    }
}

fn logged(engine: &Fixture) -> usize {
    engine.engine.limits.load().debits.logged()
}

#[test]
fn a_refused_debit_is_logged_once_for_each_limit_that_is_peeked_at() {
    let engine = engine(TOKENS);
    // Without a peek an ask may be for more than there is.
    engine.ask_at(0, 60, vec![descriptor(USER)]);
    engine.ask_at(0, 60, vec![descriptor(USER)]);
    assert_eq!(logged(&engine), 0);
    serve(&engine, 60);
    assert_eq!(logged(&engine), 1);
    // New rules are looked at anew.
    engine.engine.replace_limits(rules_of(engine.dir.path(), TOKENS)).expect("good rules");
    assert_eq!(logged(&engine), 0);
}

#[test]
fn nothing_is_logged_where_denied_requests_count_or_nothing_is_left() {
    let counting = engine(&TOKENS.replace("100", "100, count_denied: true"));
    serve(&counting, 60);
    assert_eq!(logged(&counting), 0);
    let engine = engine(TOKENS);
    serve(&engine, 50);
    engine.ask_at(0, 1, vec![descriptor(USER)]);
    assert_eq!(logged(&engine), 0);
}

#[test]
fn a_peek_at_one_limit_says_nothing_of_another() {
    let other = &[("team", "b")];
    let engine = engine(&format!("{TOKENS}\n{}", TOKENS.replace("user", "team")));
    engine.ask_at(0, 0, vec![descriptor(USER)]);
    for _ in 0..2 {
        engine.ask_at(0, 60, vec![descriptor(other)]);
    }
    assert_eq!(logged(&engine), 0);
    engine.ask_at(0, 0, vec![descriptor(other)]);
    engine.ask_at(0, 60, vec![descriptor(other)]);
    assert_eq!(logged(&engine), 1);
}
