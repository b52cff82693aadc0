//! Hits that are charged after the fact, for all algorithms against their slow twins: each charge of a call counts by
//! itself, and a refund makes no more room than there would be if its hits had never been taken.

use crate::slow_buckets::BucketModel;
use crate::slow_contract::{Model, START, Said, at, charges, expected, runner, said};
use crate::slow_sliding::{LogModel, RingModel, WindowModel};
use crate::slow_windows::{FirstHitWindowTwin, FixedWindowTwin, SlowWindows};
use proptest::prelude::*;
use std::collections::HashMap;
use tidegate_core::{
    Charge, Decisions, DeniedHits, Enforcement, FirstHitWindow, FixedWindow, Hits, LimitCheck,
    Nanos, Quota, SlidingBuckets, SlidingExact, SlidingWindow, TokenBucket, Verdict, charge_each,
    decide,
};

const SECOND: u64 = 1_000_000_000;
/// How long ago the hits of a refund may have been taken, beyond what it says.
const DELAY: u64 = SECOND / 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Fixed,
    Borrowing,
    FirstHit,
    Bucket,
    Window,
    Ring,
    Exact,
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    use Algorithm::{Borrowing, Bucket, Exact, FirstHit, Fixed, Ring, Window};
    prop::sample::select(vec![Fixed, Borrowing, FirstHit, Bucket, Window, Ring, Exact])
}

/// A limit of one of the algorithms; the period in seconds.
#[derive(Debug, Clone, Copy)]
struct Limit {
    algorithm: Algorithm,
    requests: u32,
    secs: u64,
}

fn limits() -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![6 => 1u32..30, 1 => 1_000u32..100_000];
    let secs = prop_oneof![3 => 1u64..10, 3 => 10u64..100, 1 => Just(60), 1 => 600u64..4_000];
    (algorithms(), requests, secs).prop_map(|(algorithm, requests, secs)| Limit {
        algorithm,
        requests,
        secs,
    })
}

/// A slow twin of any algorithm.
trait Twin {
    fn charge(&mut self, charge: Charge, now: u64) -> Said;
}

impl<M: Model> Twin for M {
    fn charge(&mut self, charge: Charge, now: u64) -> Said {
        expected(self, charge, now)
    }
}

struct Fixed(FixedWindowTwin);

impl Twin for Fixed {
    fn charge(&mut self, charge: Charge, now: u64) -> Said {
        said(&self.0.decide(charge, at(now)), now)
    }
}

struct FirstHit(FirstHitWindowTwin);

impl Twin for FirstHit {
    fn charge(&mut self, charge: Charge, now: u64) -> Said {
        said(&self.0.decide(charge, at(now)), now)
    }
}

impl Limit {
    fn period(&self) -> u64 {
        self.secs * SECOND
    }

    fn borrow(&self) -> u32 {
        if self.algorithm == Algorithm::Borrowing { self.requests / 2 } else { 0 }
    }

    fn quota(&self) -> Quota {
        let (requests, period) = (self.requests, Nanos::from_secs(self.secs));
        match self.algorithm {
            Algorithm::Fixed | Algorithm::Borrowing => {
                let window = FixedWindow::new(requests, period).unwrap();
                Quota::FixedWindow(window.with_borrow(self.borrow()).unwrap())
            }
            Algorithm::FirstHit => {
                Quota::FirstHitWindow(FirstHitWindow::new(requests, period).unwrap())
            }
            Algorithm::Bucket => {
                Quota::TokenBucket(TokenBucket::new(requests, period, requests, requests).unwrap())
            }
            Algorithm::Window => {
                Quota::SlidingWindow(SlidingWindow::new(requests, period).unwrap())
            }
            Algorithm::Ring => {
                Quota::SlidingBuckets(SlidingBuckets::new(requests, period).unwrap())
            }
            Algorithm::Exact => Quota::SlidingExact(SlidingExact::new(requests, period).unwrap()),
        }
    }

    fn twin(&self) -> Box<dyn Twin> {
        let (requests, period) = (self.requests, self.period());
        match self.algorithm {
            Algorithm::Fixed | Algorithm::Borrowing => {
                let windows = SlowWindows::Each(period);
                Box::new(Fixed(FixedWindowTwin::new(requests, self.borrow(), windows)))
            }
            Algorithm::FirstHit => {
                Box::new(FirstHit(FirstHitWindowTwin::new(requests, 0, Nanos::new(period))))
            }
            Algorithm::Bucket => Box::new(BucketModel::new(requests, period, requests, requests)),
            Algorithm::Window => Box::new(WindowModel::new(requests, period)),
            Algorithm::Ring => Box::new(RingModel::new(requests, period)),
            Algorithm::Exact => Box::new(LogModel::new(requests, self.secs)),
        }
    }
}

/// The counter of a limit, in parts as a store keeps them.
#[derive(Clone)]
struct Counter {
    quota: Quota,
    parts: HashMap<u64, Vec<u64>>,
}

impl Counter {
    fn new(limit: &Limit) -> Counter {
        Counter { quota: limit.quota(), parts: HashMap::new() }
    }

    fn state(&self, now: u64) -> Vec<u64> {
        let words = self.quota.state_size().words();
        let part = |label: &u64| self.parts.get(label).cloned().unwrap_or(vec![0; words]);
        self.quota.parts(at(now)).labels().iter().flat_map(part).collect()
    }

    fn put(&mut self, now: u64, state: &[u64]) {
        let words = self.quota.state_size().words();
        let parts = self.quota.parts(at(now));
        for (label, part) in parts.labels().iter().zip(state.chunks_exact(words)) {
            self.parts.insert(*label, part.to_vec());
        }
    }

    /// Whether a charge fits, and what is left after it.
    fn charge(&mut self, charge: Charge, now: u64) -> (bool, u64) {
        let mut state = self.state(now);
        let decision = decide(&mut state, &self.quota, charge, at(now));
        self.put(now, &state);
        (decision.is_allow(), decision.remaining)
    }

    fn left(&self, now: u64) -> u64 {
        self.clone().charge(Charge::PEEK, now).1
    }
}

/// One charge of a call.
#[derive(Debug, Clone)]
struct Ask {
    counter: usize,
    enforcement: Enforcement,
    charge: Charge,
}

/// Charges of a call, by descriptor.
fn calls() -> impl Strategy<Value = Vec<Vec<Ask>>> {
    let enforcement = prop_oneof![
        3 => Just(Enforcement::Enforce),
        1 => Just(Enforcement::Shadow),
        2 => Just(Enforcement::Quota),
    ];
    let descriptor = (enforcement, prop::collection::vec((0usize..4, charges()), 1..3));
    let descriptor = descriptor.prop_map(|(enforcement, asks)| {
        let ask = |(counter, charge)| Ask { counter, enforcement, charge };
        asks.into_iter().map(ask).collect()
    });
    prop::collection::vec(descriptor, 1..4)
}

/// The verdict by its rule: a descriptor that is over denies if its rule is enforced, or if all with quotas are.
fn verdict_by_rule(descriptors: &[Vec<Ask>], fits: &[Vec<bool>]) -> Verdict {
    let (mut quotas, mut quotas_over, mut denied) = (0, 0, false);
    for (asks, fits) in descriptors.iter().zip(fits) {
        let is_over = fits.contains(&false);
        match asks[0].enforcement {
            Enforcement::Enforce => denied |= is_over,
            Enforcement::Shadow => {}
            Enforcement::Quota => {
                quotas += 1;
                quotas_over += usize::from(is_over);
            }
        }
    }
    if denied || (quotas > 0 && quotas == quotas_over) { Verdict::Deny } else { Verdict::Allow }
}

/// Clocks that mostly go on, by milliseconds and nanoseconds.
fn moves() -> impl Strategy<Value = i64> {
    let millis = prop_oneof![
        3 => Just(0i64), 6 => 0i64..500, 4 => 500i64..20_000, 2 => 20_000i64..100_000,
        1 => -3_000i64..0, 1 => 100_000i64..10_000_000,
    ];
    (millis, -3i64..4).prop_map(|(millis, nanos)| millis * 1_000_000 + nanos)
}

#[test]
fn each_charge_of_a_call_counts_as_by_itself() {
    let limits = prop::collection::vec(limits(), 4);
    let steps = prop::collection::vec((moves(), calls()), 1..30);
    runner(2_000)
        .run(&(limits, START, steps), |(limits, start, steps)| {
            let mut counters: Vec<Counter> = limits.iter().map(Counter::new).collect();
            let mut twins: Vec<Box<dyn Twin>> = limits.iter().map(Limit::twin).collect();
            let (mut now, mut decisions) = (start, Decisions::default());
            for (moved, descriptors) in &steps {
                now = now.saturating_add_signed(*moved);
                let mut states = Vec::new();
                let mut ranges = Vec::new();
                for counter in &counters {
                    let first = states.len();
                    states.extend(counter.state(now));
                    ranges.push(first..states.len());
                }
                let asks = descriptors.iter().enumerate();
                let asks = asks.flat_map(|(index, asks)| asks.iter().map(move |ask| (index, ask)));
                let checks: Vec<LimitCheck<'_>> = asks
                    .clone()
                    .map(|(descriptor, ask)| LimitCheck {
                        quota: &counters[ask.counter].quota,
                        enforcement: ask.enforcement,
                        denied: DeniedHits::Ignore,
                        charge: ask.charge,
                        descriptor,
                        state: ranges[ask.counter].clone(),
                    })
                    .collect();
                let verdict = charge_each(&mut states, &checks, at(now), &mut decisions);
                drop(checks);
                let mut fits = vec![Vec::new(); descriptors.len()];
                for ((index, ask), decision) in asks.zip(decisions.all()) {
                    // Hits that have happened count in any case.
                    let charge = match ask.charge {
                        Charge::Take(hits) if hits.get() > 0 => Charge::Force(hits),
                        charge => charge,
                    };
                    let expected = twins[ask.counter].charge(charge, now);
                    let found = said(decision, now);
                    let of = &limits[ask.counter];
                    prop_assert_eq!(found.allowed, expected.allowed, "{:?} {:?}", of, ask);
                    prop_assert_eq!(found.remaining, expected.remaining, "{:?} {:?}", of, ask);
                    // The times of an exact window have a resolution of their own.
                    if of.algorithm != Algorithm::Exact {
                        prop_assert_eq!(found, expected, "{:?} {:?}", of, ask);
                    }
                    fits[index].push(decision.is_allow());
                }
                prop_assert_eq!(verdict, verdict_by_rule(descriptors, &fits));
                for (counter, range) in counters.iter_mut().zip(ranges) {
                    counter.put(now, &states[range]);
                }
            }
            Ok(())
        })
        .unwrap();
}

/// Takes, by the time that passes before each.
fn traffic() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let passed = prop_oneof![
        2 => Just(0u64), 4 => 0..SECOND / 5, 4 => 0..5 * SECOND, 2 => 0..100 * SECOND,
    ];
    prop::collection::vec((passed, 1u64..6), 0..8)
}

/// One refund: hits that are taken amid others, and returned in part later.
#[derive(Debug, Clone)]
struct Refund {
    limit: Limit,
    start: u64,
    before: Vec<(u64, u64)>,
    hits: u64,
    /// How many of the hits were used.
    used: u64,
    after: Vec<(u64, u64)>,
    /// The error of the time that the refund says.
    delay: u64,
    peeks: Vec<u64>,
}

fn refunds() -> impl Strategy<Value = Refund> {
    let hits = (1u64..12, 0u64..12);
    let peeks = prop::collection::vec(prop_oneof![0..SECOND, 0..70 * SECOND], 1..8);
    (limits(), START, traffic(), hits, traffic(), 0..=DELAY, peeks).prop_map(
        |(limit, start, before, (hits, used), after, delay, peeks)| {
            // Hits that have opened a window still have, if one of them was used.
            let least = u64::from(limit.algorithm == Algorithm::FirstHit);
            let used = used.clamp(least, hits.max(least));
            let hits = hits.max(used);
            Refund { limit, start, before, hits, used, after, delay, peeks }
        },
    )
}

/// What came of a refund.
struct Refunded {
    counter: Counter,
    /// Hits that were admitted, by time, without those of the refund.
    others: Vec<(u64, u64)>,
    taken_at: u64,
    since: u64,
    now: u64,
    /// The hits that it returned.
    worth: u64,
}

/// None if the hits were denied.
fn refunded(refund: &Refund) -> Option<Refunded> {
    let (mut counter, mut now) = (Counter::new(&refund.limit), refund.start);
    let mut others = Vec::new();
    let mut pass = |counter: &mut Counter, now: &mut u64, traffic: &[(u64, u64)]| {
        for (passed, hits) in traffic {
            *now += passed;
            if counter.charge(Charge::Take(Hits::new(*hits)), *now).0 {
                others.push((*now, *hits));
            }
        }
    };
    pass(&mut counter, &mut now, &refund.before);
    let taken_at = now;
    if !counter.charge(Charge::Take(Hits::new(refund.hits)), now).0 {
        return None;
    }
    pass(&mut counter, &mut now, &refund.after);
    // A first-hit window takes the time as it is said.
    let delay = if refund.limit.algorithm == Algorithm::FirstHit { 0 } else { refund.delay };
    let since = (taken_at + delay).min(now);
    let unused = refund.hits - refund.used;
    let worth = counter.quota.refundable(&counter.state(now), unused, at(since), at(now));
    counter.charge(Charge::Refund(Hits::new(worth)), now);
    Some(Refunded { counter, others, taken_at, since, now, worth })
}

/// What is left at `times` for a twin that has only ever seen `admitted`.
fn left_for_twin(limit: &Limit, admitted: &[(u64, u64)], times: &[u64]) -> Vec<u64> {
    let mut twin = limit.twin();
    for (time, hits) in admitted {
        assert!(twin.charge(Charge::Take(Hits::new(*hits)), *time).allowed, "it has more room");
    }
    times.iter().map(|time| twin.charge(Charge::PEEK, *time).remaining).collect()
}

/// The length of the windows that a refund must stay in, by their definition.
fn window_of(limit: &Limit) -> Option<u64> {
    match limit.algorithm {
        Algorithm::Fixed | Algorithm::Borrowing | Algorithm::Window => Some(limit.period()),
        Algorithm::Ring => Some(limit.period().div_ceil(60)),
        Algorithm::Exact => Some(SECOND),
        Algorithm::FirstHit | Algorithm::Bucket => None,
    }
}

#[test]
fn a_refund_makes_no_more_room_than_there_would_be_without_its_hits() {
    runner(6_000)
        .run(&refunds(), |refund| {
            let Some(done) = refunded(&refund) else { return Ok(()) };
            let Refunded { counter, mut others, taken_at, now, worth, .. } = done;
            let kept = refund.hits - worth;
            let index = others.partition_point(|(time, _)| *time < taken_at);
            if kept > 0 {
                others.insert(index, (taken_at, kept));
            }
            let mut time = now;
            let times = refund.peeks.iter().map(|passed| {
                time += passed;
                time
            });
            let times: Vec<u64> = std::iter::once(now).chain(times).collect();
            let room = left_for_twin(&refund.limit, &others, &times);
            for (time, room) in times.into_iter().zip(room) {
                let left = counter.left(time);
                prop_assert!(left <= room, "{left} left, {room} without the {worth} hits returned");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_refund_in_the_window_of_its_hits_is_made_in_full_and_in_no_other() {
    let (full, none) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    runner(6_000)
        .run(&refunds(), |refund| {
            let Some(done) = refunded(&refund) else { return Ok(()) };
            let unused = refund.hits - refund.used;
            let Some(window) = window_of(&refund.limit) else {
                if refund.limit.algorithm == Algorithm::Bucket {
                    let passed = u128::from(done.now - done.since + DELAY)
                        * u128::from(refund.limit.requests);
                    let refilled = passed.div_ceil(u128::from(refund.limit.period())) as u64;
                    prop_assert_eq!(done.worth, unused.saturating_sub(refilled));
                }
                return Ok(());
            };
            if done.taken_at / window != done.now / window {
                // An exact window returns hits to the newest second of their minute.
                if refund.limit.algorithm != Algorithm::Exact {
                    prop_assert_eq!(done.worth, 0);
                    none.set(none.get() + 1);
                }
            } else if done.since % window >= DELAY {
                prop_assert_eq!(done.worth, unused);
                full.set(full.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(full.get() > 300 && none.get() > 300, "{} in full, {} not", full.get(), none.get());
}
