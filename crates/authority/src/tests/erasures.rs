//! Erased nodes: nothing of an exact window is left, though one decision needs few of its parts.

use super::refusing::Refusing;
use super::*;
use crate::applied::match_limits;
use crate::plan::{Hashing, Plan};
use tidegate_store::Entries;

const RULES: &str = "
- {key: k, rate_limit: {algorithm: sliding_buckets, exact: true, requests: 5, unit: day}}
";
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// An engine that takes few keys at a time.
fn few_keys(counters: Arc<dyn Counters>, keys_max: usize) -> Arc<dyn Counters> {
    Refusing::new(counters, move |keys| {
        let (keys, words, words_max) = (keys.len(), 0, 0);
        let too_large = UpdateError::TooLarge { keys, words, keys_max, words_max };
        (keys > keys_max).then(|| too_large.into())
    })
}

fn node() -> Request {
    Request { domain: "d".into(), descriptors: vec![descriptor(&[("k", "v")])], hits: Hits::ONE }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(START + secs)
}

impl Fixture {
    fn count_at(&self, secs: u64) -> u64 {
        let count = |_, windows: &NodeWindows<'_>| windows[0].count();
        wait(self.engine.use_node(&node(), Use::Look, at(secs), count)).expect("a look")
    }

    fn erase_at(&self, secs: u64) -> bool {
        wait(self.engine.erase_node(&node(), at(secs))).expect("erased")
    }
}

/// Hits of earlier hours are in parts of their own. Those that stayed counted again as soon as the window ended in
/// their hour.
#[track_caller]
fn check(fixture: impl Fn() -> Fixture) {
    for used in [0, HOUR / 2 + 30, 5 * HOUR + 600, 11 * HOUR + 3_599] {
        let used_at = |secs: u64| {
            let fixture = fixture();
            fixture.ask_at(secs, 5, node().descriptors);
            fixture
        };
        // The oldest second that counts is that of the hits, in their minute, and in their hour.
        let looks = [used.saturating_sub(120) + DAY, used.saturating_sub(1) + DAY, used + DAY];
        let kept = used_at(used);
        assert_eq!(looks.map(|secs| kept.count_at(secs)), [5; 3], "after {used} s");
        let fixture = used_at(used);
        assert!(fixture.erase_at(12 * HOUR), "after {used} s");
        assert!(!fixture.erase_at(12 * HOUR), "after {used} s");
        assert_eq!(looks.map(|secs| fixture.count_at(secs)), [0; 3], "after {used} s");
    }
}

#[test]
fn an_erased_exact_window_counts_nothing_when_its_old_hours_are_read_again() {
    check(|| engine(RULES));
}

#[test]
fn a_node_is_erased_by_an_engine_that_takes_few_keys_at_a_time() {
    check(|| {
        let Fixture { counters, dir, .. } = engine(RULES);
        let counters = few_keys(counters, 5);
        Fixture::new(counters, dir, RULES, Modes::default(), Arc::new(()))
    });
}

#[test]
fn a_node_that_an_engine_takes_no_key_of_is_not_erased() {
    let Fixture { counters, dir, .. } = engine(RULES);
    let counters = few_keys(counters, 0);
    let fixture = Fixture::new(counters, dir, RULES, Modes::default(), Arc::new(()));
    let refused = wait(fixture.engine.erase_node(&node(), at(0)));
    let is_too_large =
        |error: &NodeError| matches!(error, NodeError::Undecided(why) if why.is_too_large());
    assert!(refused.as_ref().is_err_and(is_too_large), "{refused:?}");
}

/// A node is whole without its first part, if the store has dropped that.
#[test]
fn a_node_of_which_only_old_parts_are_left_existed() {
    let fixture = engine(RULES);
    fixture.ask_at(HOUR, 5, node().descriptors);
    let limits = fixture.engine.limits.load();
    let matched = match_limits(&limits.rules, &node()).each;
    let request = node();
    let seed = fixture.counters.seed();
    let plan = Plan::of(&matched, &request, Modes::default(), Hashing::undivided(seed), at(HOUR));
    let mut drop_root = |entries: &mut Entries<'_>| entries.get(0).state.fill(0);
    let root = [plan.keys[0]];
    wait(fixture.counters.update(&root, at(HOUR), &mut drop_root)).expect("dropped");
    assert!(fixture.erase_at(12 * HOUR));
    assert!(!fixture.erase_at(12 * HOUR));
}
