//! Decisions on counters. Loaded as two modules: one over shared memory, one over counters that answer later.

#[path = "tests/calls.rs"]
mod calls;
#[path = "tests/debits.rs"]
mod debits;
#[path = "tests/effects.rs"]
mod effects;
#[path = "tests/erasures.rs"]
mod erasures;
#[path = "tests/events.rs"]
mod events;
#[path = "tests/expiries.rs"]
mod expiries;
#[path = "tests/lease_bounds.rs"]
mod lease_bounds;
#[path = "tests/lease_terms.rs"]
mod lease_terms;
#[path = "tests/leases.rs"]
mod leases;
#[path = "tests/nodes.rs"]
mod nodes;
#[path = "tests/shared_memory.rs"]
mod shared_memory;
#[path = "tests/statuses.rs"]
mod statuses;

use crate::testing::LaterCounters;
use crate::*;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_core::{
    Answer, Charge, Decision, DeniedHits, Descriptor, Direction, Entry, Hits, LimitOverride, Nanos,
    Request, Status, Timestamp, Unit, Value, Verdict,
};
use tidegate_limits::{self as rules, Limit, Rule, Rules, SameDomain};
use tidegate_store::{Class, Cluster, Geometry, Hashed, Options, UpdateError, View};

/// A Thursday, at midnight: every window starts here.
const START: u64 = 1_700_092_800;

struct Fixture {
    engine: Authority,
    counters: Arc<dyn Counters>,
    dir: tempfile::TempDir,
}

/// Counts what a test asks for.
#[derive(Debug, Default)]
struct Counts {
    domain_not_found: AtomicU64,
    hits: AtomicU64,
    leases: AtomicU64,
    leased: AtomicU64,
    returned: AtomicU64,
}

#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Counts>);

impl Observer for Recorder {
    fn limits_replaced(&self, _rules: &Rules) -> Box<dyn LimitObserver> {
        Box::new(self.clone())
    }

    fn domain_not_found(&self, descriptors: u64) {
        self.0.domain_not_found.fetch_add(descriptors, Ordering::Relaxed);
    }
}

impl LimitObserver for Recorder {
    fn decided(
        &self,
        _of: Option<(&Rule, &Limit)>,
        _entries: &[Entry],
        charge: Charge,
        _decision: &Decision,
        _capacity: u32,
        _shadow: Shadow,
    ) {
        self.0.hits.fetch_add(charge.hits().get(), Ordering::Relaxed);
    }

    fn unlimited(&self, _rule: &Rule, _entries: &[Entry], _charge: Charge) {}

    fn leased(&self, _of: (&Rule, &Limit), _entries: &[Entry], tokens: u32) {
        self.0.leases.fetch_add(1, Ordering::Relaxed);
        self.0.leased.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    fn returned(&self, _of: (&Rule, &Limit), _entries: &[Entry], tokens: u64) {
        self.0.returned.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// An engine with the rules of `descriptors` in domain `d`, on a store of its own.
fn engine_with(descriptors: &str, modes: Modes) -> Fixture {
    observed(descriptors, modes, Arc::new(()))
}

fn observed(descriptors: &str, modes: Modes, observer: Arc<dyn Observer>) -> Fixture {
    let dir = tempfile::TempDir::new().expect("a directory");
    let counters: Arc<dyn Counters> = match module_path!().contains("tests_later") {
        true => Arc::new(LaterCounters::default()),
        false => shared_memory(dir.path()),
    };
    Fixture::new(counters, dir, descriptors, modes, observer)
}

/// Counters in files of `dir`.
fn shared_memory(dir: &Path) -> Arc<Cluster> {
    let options = Options {
        wide: Some(Geometry::wide_by_capacity(256, 0.8, 33).expect("a geometry")),
        ..Options::narrow(Geometry::by_capacity(4_096, 0.8).expect("a geometry"))
    };
    Arc::new(Cluster::open(&dir.join("data"), &options).expect("a store"))
}

fn engine(descriptors: &str) -> Fixture {
    engine_with(descriptors, Modes::default())
}

fn rules_of(dir: &Path, descriptors: &str) -> Rules {
    let file = dir.join("limits.yaml");
    std::fs::write(&file, format!("domain: d\ndescriptors:\n{descriptors}")).expect("a file");
    rules::load(&file, SameDomain::Refuse).expect("good rules").rules
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    Descriptor::new(entries.iter().map(|(key, value)| Entry::new(*key, *value)).collect())
}

/// Asks again as long as other threads are in the way, as on a machine with fewer processors than threads.
fn until_decided<T>(mut ask: impl FnMut() -> Result<T, Undecided>) -> T {
    loop {
        match ask() {
            Err(Undecided::Store(error)) if error.is_contention() => std::thread::yield_now(),
            decided => return decided.expect("a decision"),
        }
    }
}

impl Fixture {
    fn new(
        counters: Arc<dyn Counters>,
        dir: tempfile::TempDir,
        descriptors: &str,
        modes: Modes,
        observer: Arc<dyn Observer>,
    ) -> Fixture {
        let rules = rules_of(dir.path(), descriptors);
        let engine = Authority::new(counters.clone(), rules, modes, observer).expect("an engine");
        Fixture { engine, counters, dir }
    }

    fn ask_at(&self, secs: u64, hits: u64, descriptors: Vec<Descriptor>) -> Answer {
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
        wait(self.engine.decide(&request, Timestamp::from_secs(START + secs))).expect("a decision")
    }

    fn ask_until_decided(&self, descriptors: Vec<Descriptor>) -> Answer {
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(1) };
        until_decided(|| wait(self.engine.decide(&request, Timestamp::from_secs(START))))
    }

    fn ask(&self, descriptors: Vec<Descriptor>) -> Answer {
        self.ask_at(0, 1, descriptors)
    }

    /// What is left for a descriptor.
    fn left(&self, entries: &[(&str, &str)]) -> u32 {
        self.ask_at(0, 0, vec![descriptor(entries)]).statuses[0].remaining
    }
}

/// The verdict, and what each descriptor has left.
fn summary(answer: &Answer) -> (Verdict, Vec<(Verdict, u32)>) {
    let statuses = answer.statuses.iter().map(|status| (status.verdict, status.remaining));
    (answer.verdict, statuses.collect())
}

/// A bucket that one request charged twice was forgotten after the refill of the first charge
/// alone, and came back full: the expiry of the first decision was kept, not the later one.
#[test]
fn descriptors_of_a_domain_that_there_is_not_are_counted() {
    let recorder = Recorder::default();
    let limits = "- {key: k, rate_limit: {unit: hour, requests_per_unit: 2}}\n";
    let fixture = observed(limits, Modes::default(), Arc::new(recorder.clone()));
    let not_found = || recorder.0.domain_not_found.load(Ordering::Relaxed);
    let asks = |domain: &str| {
        let descriptors = vec![descriptor(&[("k", "v")]), descriptor(&[("unknown", "v")])];
        let request = Request { domain: domain.into(), descriptors, hits: Hits::new(1) };
        wait(fixture.engine.decide(&request, Timestamp::from_secs(START))).expect("a decision")
    };
    assert_eq!(asks("d").statuses[1], Status::NO_LIMIT);
    assert_eq!(not_found(), 0);
    assert_eq!(asks("e").statuses, [Status::NO_LIMIT, Status::NO_LIMIT]);
    assert_eq!(not_found(), 2);
}

#[test]
fn a_counter_charged_twice_by_one_request_is_kept_until_both_are_refilled() {
    let limit = "{algorithm: token_bucket, requests: 1, period: 1s, burst: 10}";
    let engine = engine(&format!("- {{key: k, rate_limit: {limit}}}"));
    let of = descriptor(&[("k", "v")]);
    assert_eq!(engine.ask_at(0, 5, vec![of.clone(), of.clone()]).verdict, Verdict::Allow);
    let later = engine.ask_at(6, 1, vec![of]);
    assert_eq!(summary(&later), (Verdict::Allow, vec![(Verdict::Allow, 5)]));
}

/// What is shown to an operator is worth something only if the next request gets just that.
#[test]
fn a_preview_says_what_the_decision_after_it_says_and_takes_nothing() {
    let limit = "{algorithm: token_bucket, requests: 1, period: 1s, burst: 10}";
    let dir = tempfile::TempDir::new().expect("a directory");
    let limits = format!("- {{key: k, rate_limit: {limit}}}");
    let fixture =
        Fixture::new(shared_memory(dir.path()), dir, &limits, Modes::default(), Arc::new(()));
    let Fixture { engine, counters, dir } = fixture;
    let preview_of = |request: &Request, now: Timestamp| {
        let view = View::open(&dir.path().join("data")).expect("a view");
        let read = |key: &Hashed, words: &mut [u64]| {
            let found = view.find(key, now.as_nanos())?;
            if let Some(entry) = found {
                words.copy_from_slice(&entry.state[..words.len()]);
            }
            Ok::<(), UpdateError>(())
        };
        let in_force = engine.limits.load();
        let (verdict, limits) =
            preview(&in_force.rules, request, counters.seed(), now, read).expect("a preview");
        (verdict, limits.iter().map(|limit| (limit.now.remaining, limit.then)).collect::<Vec<_>>())
    };
    for (times, hits, secs, left) in
        [(1, 4, 1_000, 10), (2, 3, 1_000, 6), (1, 1, 1_000, 0), (2, 1, 1_001, 1), (1, 0, 1_009, 9)]
    {
        let descriptors = vec![descriptor(&[("k", "v")]); times];
        let request = Request { domain: "d".into(), descriptors, hits: Hits::new(hits) };
        let now = Timestamp::from_secs(secs);
        let previewed = preview_of(&request, now);
        assert_eq!(preview_of(&request, now), previewed, "a preview took something");
        let answer = wait(engine.decide(&request, now)).expect("a decision");
        let (verdict, limits) = previewed;
        assert_eq!(verdict, answer.verdict, "at {secs}");
        assert_eq!(limits[0].0, left, "at {secs}");
        for (status, (_, then)) in answer.statuses.iter().zip(&limits) {
            assert_eq!(u64::from(status.remaining), then.remaining, "at {secs}");
            assert_eq!(status.verdict == Verdict::Allow, then.is_allow(), "at {secs}");
            assert_eq!(status.reset, then.wait(now), "at {secs}");
        }
    }
}

const SEVERAL: &str = "
- key: user
  rate_limits:
  - {name: short, algorithm: token_bucket, requests: 2, period: 10s}
  - {name: hour, algorithm: sliding_window, requests: 3, period: 1h}
  - {name: day, requests: 4, period: 1d}
";

#[test]
fn several_limits_on_one_descriptor_take_together_and_the_tightest_is_told() {
    let engine = engine(SEVERAL);
    let of = || vec![descriptor(&[("user", "u")])];
    let name = |status: &Status| status.limit.as_ref().map(|limit| limit.name.clone());
    let mut seen = Vec::new();
    for secs in [0, 0, 0, 10, 20] {
        let answer = engine.ask_at(secs, 1, of());
        let status = &answer.statuses[0];
        seen.push((answer.verdict, name(status).unwrap_or_default(), status.remaining));
    }
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    let expected = [
        (allow, "short", 1),
        (allow, "short", 0),
        (deny, "short", 0),
        (allow, "hour", 0),
        (deny, "hour", 0),
    ];
    assert_eq!(seen, expected.map(|(verdict, name, left)| (verdict, name.to_owned(), left)));
}

#[test]
fn a_replaced_limit_does_not_apply_and_is_not_charged() {
    let engine = engine(
        "
- {key: tenant, rate_limit: {name: tenant, unit: hour, requests_per_unit: 1}}
- {key: vip, rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: tenant}]}}
",
    );
    let both = || vec![descriptor(&[("tenant", "t")]), descriptor(&[("vip", "v")])];
    for left in [4, 3, 2] {
        let answer = engine.ask(both());
        assert_eq!(
            summary(&answer),
            (Verdict::Allow, vec![(Verdict::Allow, 0), (Verdict::Allow, left)])
        );
        assert_eq!(answer.statuses[0].limit, None);
    }
    assert_eq!(engine.left(&[("tenant", "t")]), 1);
}

#[test]
fn an_override_takes_the_place_of_the_rule_where_the_domain_is_known() {
    let engine = engine("- {key: k, rate_limit: {unit: hour, requests_per_unit: 1, name: n}}");
    let limit = Some(LimitOverride { requests: 3, unit: Unit::Minute });
    let of = || vec![Descriptor { limit, ..descriptor(&[("k", "v")]) }];
    for left in [2, 1, 0] {
        assert_eq!(summary(&engine.ask(of())), (Verdict::Allow, vec![(Verdict::Allow, left)]));
    }
    let denied = engine.ask(of());
    assert_eq!(denied.verdict, Verdict::Deny);
    let view = denied.statuses[0].limit.clone().expect("a limit");
    assert_eq!((view.requests, view.unit, view.name), (3, Some(Unit::Minute), String::new()));
    // The rule's own counter was not touched.
    assert_eq!(engine.left(&[("k", "v")]), 1);

    let request = Request { domain: "other".into(), descriptors: of(), hits: Hits::new(1) };
    let answer =
        wait(engine.engine.decide(&request, Timestamp::from_secs(START))).expect("a decision");
    assert_eq!(answer.statuses, [Status::NO_LIMIT]);
}

#[test]
fn a_refund_gives_back_what_was_taken_for_every_algorithm() {
    let limits = [
        "{unit: day, requests_per_unit: 10}",
        "{algorithm: first_hit_window, period: 1d, requests: 10}",
        "{algorithm: token_bucket, period: 1d, requests: 10}",
        "{algorithm: sliding_window, period: 1d, requests: 10}",
        "{algorithm: sliding_buckets, period: 1d, requests: 10}",
        "{algorithm: sliding_buckets, exact: true, period: 1d, requests: 10}",
    ];
    for limit in limits {
        let engine = engine(&format!("- {{key: k, rate_limit: {limit}}}"));
        let of = |direction| vec![Descriptor { direction, ..descriptor(&[("k", "v")]) }];
        engine.ask_at(0, 7, of(Direction::Take));
        assert_eq!(engine.left(&[("k", "v")]), 3, "{limit}");
        let refund = engine.ask_at(0, 4, of(Direction::Refund));
        assert_eq!(summary(&refund), (Verdict::Allow, vec![(Verdict::Allow, 7)]), "{limit}");
        engine.ask_at(0, 100, of(Direction::Refund));
        assert_eq!(engine.left(&[("k", "v")]), 10, "{limit}");
    }
}

#[test]
fn quota_mode_denies_only_when_all_are_over() {
    let rules = "
- {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
";
    let engine = engine(rules);
    let both = || vec![descriptor(&[("a", "x")]), descriptor(&[("b", "x")])];
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    assert_eq!(summary(&engine.ask(both())), (allow, vec![(allow, 0), (allow, 1)]));
    assert_eq!(summary(&engine.ask(both())), (allow, vec![(deny, 0), (allow, 0)]));
    assert_eq!(summary(&engine.ask(both())), (deny, vec![(deny, 0), (deny, 0)]));
}

#[test]
fn the_global_modes_hold_for_every_rule() {
    let rules = "
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 5}}
";
    let both = || vec![descriptor(&[("a", "x")]), descriptor(&[("b", "x")])];
    let (allow, deny) = (Verdict::Allow, Verdict::Deny);
    let shadow = engine_with(rules, Modes { shadow: GlobalShadow::On, ..Modes::default() });
    shadow.ask(both());
    // The request passes; the status tells what would have been.
    assert_eq!(summary(&shadow.ask(both())), (allow, vec![(deny, 0), (allow, 3)]));
    let quota = engine_with(rules, Modes { quota: GlobalQuota::On, ..Modes::default() });
    quota.ask(both());
    assert_eq!(summary(&quota.ask(both())), (allow, vec![(deny, 0), (allow, 3)]));
}

#[test]
fn metadata_of_rules_that_passed_is_merged_and_the_first_value_wins() {
    let rules = "
- {key: a, rate_limit: {unit: hour, requests_per_unit: 9}, metadata: {plan: gold, cost: 2}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 9}, metadata: {plan: iron, team: [x]}}
- {key: c, rate_limit: {unit: hour, requests_per_unit: 0}, metadata: {over: true}}
";
    let modes = Modes { metadata: DynamicMetadata::On, ..Modes::default() };
    let engine = engine_with(rules, modes);
    let answer = engine.ask(["a", "b", "c"].map(|key| descriptor(&[(key, "x")])).into());
    let Some(Value::Map(fields)) = answer.metadata else { panic!("no metadata") };
    let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let text = |text: &str| Value::Text(text.to_owned());
    let expected = Value::Map(vec![
        ("plan".to_owned(), text("gold")),
        ("cost".to_owned(), Value::Number(2.0)),
        ("team".to_owned(), Value::List(vec![text("x")])),
    ]);
    assert_eq!(field("metadata"), Some(&expected));
    assert_eq!(field("domain"), Some(&text("d")));
    let Some(Value::List(descriptors)) = field("descriptors") else { panic!("no descriptors") };
    let entries = Value::List(vec![text("a=x")]);
    assert_eq!(descriptors[0], Value::Map(vec![("entries".to_owned(), entries)]));
}

#[test]
fn changed_limits_keep_live_counts_unless_algorithm_or_period_change() {
    let engine = engine("- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}");
    let of = [("k", "v")];
    engine.ask_at(0, 3, vec![descriptor(&of)]);
    let put = |limit: &str| {
        let dir = tempfile::TempDir::new().expect("a directory");
        let rules = rules_of(dir.path(), &format!("- {{key: k, rate_limit: {limit}}}"));
        engine.engine.replace_limits(rules).expect("rules in force");
    };
    let table = [
        ("{unit: day, requests_per_unit: 9}", 6),
        ("{name: renamed, unit: day, requests_per_unit: 9}", 6),
        ("{unit: day, requests_per_unit: 2}", 0),
        ("{period: 24h, requests: 9, borrow: 4}", 10),
        ("{unit: hour, requests_per_unit: 9}", 9),
        ("{algorithm: token_bucket, unit: day, requests: 9}", 9),
        ("{unit: day, requests_per_unit: 5}", 2),
    ];
    for (limit, left) in table {
        put(limit);
        assert_eq!(engine.left(&of), left, "{limit}");
    }
}

#[test]
fn rules_that_the_store_has_no_nodes_for_are_refused() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let options = Options::narrow(Geometry::by_capacity(64, 0.8).expect("a geometry"));
    let store = Cluster::open(&dir.path().join("data"), &options).expect("a store");
    let limit = "{algorithm: sliding_buckets, unit: hour, requests: 5}";
    let rules = rules_of(dir.path(), &format!("- {{key: k, rate_limit: {limit}}}"));
    let error = Authority::new(Arc::new(store), rules, Modes::default(), Arc::new(())).err();
    let message = error.expect("refused").to_string();
    assert!(message.starts_with("limit d/k (sliding_buckets) needs wide nodes"), "{message}");
}

const CONCURRENT: &str = "
- {key: all, rate_limit: {unit: day, requests_per_unit: 400}}
- key: user
  rate_limits:
  - {name: bucket, algorithm: token_bucket, requests: 90, period: 1d}
  - {name: exact, algorithm: sliding_buckets, exact: true, requests: 80, period: 1d}
  - {name: ring, algorithm: sliding_buckets, requests: 100, period: 1d}
";

/// Threads race for requests of a limit that all share and of three that each user has. What every
/// counter says afterwards is the number of requests that passed: nothing was
/// taken for a denied one, and nothing taken twice.
#[test]
fn all_or_nothing_holds_under_concurrency() {
    const USERS: usize = 8;
    let engine = engine(CONCURRENT);
    let passed: [AtomicU64; USERS] = std::array::from_fn(|_| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, passed) = (&engine, &passed);
            scope.spawn(move || {
                for turn in 0..400 {
                    let user = (turn * 7 + thread * 3) % USERS;
                    let name = user.to_string();
                    let of = vec![descriptor(&[("all", "")]), descriptor(&[("user", &name)])];
                    if engine.ask_until_decided(of).verdict == Verdict::Allow {
                        passed[user].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let passed = passed.map(AtomicU64::into_inner);
    assert_eq!(passed.iter().sum::<u64>(), 400);
    assert_eq!(engine.left(&[("all", "")]), 0);
    for (user, passed) in passed.into_iter().enumerate() {
        assert!(passed <= 80, "user {user} passed {passed} times");
        let left = engine.left(&[("user", &user.to_string())]);
        assert_eq!(u64::from(left), 80 - passed, "user {user}");
    }
}
