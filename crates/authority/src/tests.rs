//! Decisions on counters. Loaded as two modules: one over shared memory, one over counters that answer later.

#[path = "tests/after_the_fact.rs"]
mod after_the_fact;
#[path = "tests/calls.rs"]
mod calls;
#[path = "tests/conformance.rs"]
mod conformance;
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
#[path = "tests/lease_details.rs"]
mod lease_details;
#[path = "tests/lease_terms.rs"]
mod lease_terms;
#[path = "tests/leases.rs"]
mod leases;
#[path = "tests/left.rs"]
mod left;
#[path = "tests/nodes.rs"]
mod nodes;
#[path = "tests/refusing.rs"]
mod refusing;
#[path = "tests/reports.rs"]
mod reports;
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
    Answer, DeniedHits, Descriptor, Direction, Entry, Hits, LimitOverride, Nanos, Request, Status,
    Timestamp, Unit, Verdict,
};
use tidegate_limits::{self as rules, Limit, Rule, Rules, SameDomain};
use tidegate_store::{Class, Cluster, Geometry, Hashed, Options, UpdateError, View};
use tidegate_wire::RequestReader;

/// A Thursday, at midnight: every window starts here.
const START: u64 = 1_700_092_800;

struct Fixture {
    engine: Authority,
    counters: Arc<dyn Counters>,
    dir: tempfile::TempDir,
}

/// Answers a message as a server does: at once, or else with patience.
fn answer<'a>(
    authority: &Authority,
    message: &[u8],
    value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
    now: Timestamp,
) -> Result<(Request, Answer), CallError> {
    let mut reader = RequestReader::default();
    let later = match authority.answer_call(&mut reader, message, &value_of, || now)? {
        Called::Answered(request, answer) => return Ok((request.clone(), answer)),
        Called::Later(later) => later,
    };
    let answer = wait(authority.answer_later(&later, now))?;
    Ok((later.request, answer))
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
    fn decided(&self, outcome: &Outcome<'_>) {
        let hits = outcome.charge.hits().get() * outcome.limits().count() as u64;
        self.0.hits.fetch_add(hits, Ordering::Relaxed);
    }

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
    Fixture::new(counters(dir.path()), dir, descriptors, modes, observer)
}

/// Counters of the engine that this module tests, in `dir` if they have files.
fn counters(dir: &Path) -> Arc<dyn Counters> {
    match module_path!().contains("tests_later") {
        true => Arc::new(LaterCounters::default()),
        false => shared_memory(dir),
    }
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
            preview(&in_force.rules, request, Hashing::of(&*counters), now, read)
                .expect("a preview");
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
