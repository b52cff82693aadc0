//! The contract of every limit, by search instead of arithmetic: a model returns only the hits left at a
//! time, and the rest of a decision follows from the contract. Also the traces for a limit and its model.
//! Nothing is shared with the code under test.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use tidegate_core::{Charge, Decision, Hits, Outcome, Timestamp};

/// A limit that remembers everything.
pub(crate) trait Model: Clone {
    fn limit(&self) -> u64;
    fn period(&self) -> u64;
    /// A charge came, whatever its result.
    fn look(&mut self, _at: u64) {}
    /// Hits were forced that were not counted.
    fn forced_without_room(&mut self, _at: u64) {}
    /// The hits left at `at` if none come until then.
    fn left(&self, at: u64) -> u64;
    fn take(&mut self, at: u64, hits: u64);
    fn give_back(&mut self, at: u64, hits: u64);
    /// A time after `at` when no hits count any more.
    fn horizon(&self, at: u64) -> u64;
    /// A time that the clock has to pass (again) before the counter is full, whatever is left.
    fn settled(&self) -> u64 {
        0
    }
    /// How long the counter is remembered once no hits count.
    fn grace(&self) -> u64 {
        0
    }
}

/// A decision in plain numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) allowed: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_at: Option<u64>,
    pub(crate) reset_at: u64,
    pub(crate) keep_until: u64,
}

pub(crate) fn said(decision: &Decision, now: u64) -> Said {
    Said {
        allowed: decision.is_allow(),
        remaining: decision.remaining,
        retry_at: match decision.outcome {
            Outcome::Allow => None,
            Outcome::Deny { retry_after } => Some(now + retry_after.as_nanos()),
        },
        reset_at: decision.reset_at.as_nanos(),
        keep_until: decision.keep_until.as_nanos(),
    }
}

/// The decision that follows from the contract.
pub(crate) fn expected(model: &mut impl Model, charge: Charge, now: u64) -> Said {
    let hits = charge.hits().get();
    let needed = hits.max(1);
    let mut allowed = true;
    match charge {
        Charge::Refund(_) => model.give_back(now, hits),
        Charge::Take(_) | Charge::Force(_) => {
            model.look(now);
            let left = model.left(now);
            allowed = needed <= left;
            if allowed {
                model.take(now, hits);
            } else if matches!(charge, Charge::Force(_)) && left > 0 {
                // The hits have happened: they count, up to the whole limit.
                model.take(now, hits.min(model.limit()));
            } else if matches!(charge, Charge::Force(_)) && hits > 0 {
                model.forced_without_room(now);
            }
        }
    }
    let mut model = model.clone();
    model.look(now);
    let (left, limit) = (model.left(now), model.limit());
    let gone_at = first(&model, now, |model, at| model.left(at) == limit).max(model.settled());
    let whole_at = if limit == 0 { now + model.period() } else { gone_at };
    let fits_at = |hits| {
        if hits > limit { whole_at } else { first(&model, now, |model, at| model.left(at) >= hits) }
    };
    Said {
        allowed,
        remaining: left,
        // A charge that never fits must not ask for an immediate retry, for ever.
        retry_at: (!allowed).then(|| match fits_at(needed) {
            at if at == now => now + model.period(),
            at => at,
        }),
        reset_at: if left < limit { fits_at(left + 1) } else { whole_at },
        keep_until: gone_at + model.grace(),
    }
}

/// The first time from `now` on at which `holds`; once true, it stays true.
pub(crate) fn first<M: Model>(model: &M, now: u64, holds: impl Fn(&M, u64) -> bool) -> u64 {
    if holds(model, now) {
        return now;
    }
    let (mut before, mut after) = (now, model.horizon(now));
    assert!(holds(model, after), "never holds");
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        if holds(model, middle) { after = middle } else { before = middle }
    }
    after
}

/// A step of a trace: the clock moves by thousandths of the period and some nanoseconds, then a charge
/// comes.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) mils: i64,
    pub(crate) nanos: i64,
    pub(crate) charge: Charge,
}

impl Step {
    pub(crate) fn moves(&self, now: u64, period: u64) -> u64 {
        let mil = (period / 1_000) as i64;
        now.saturating_add_signed(self.mils.saturating_mul(mil)).saturating_add_signed(self.nanos)
    }
}

/// Any charge, mostly of few hits.
pub(crate) fn charges() -> impl Strategy<Value = Charge> {
    let hits = prop_oneof![1 => Just(0u64), 8 => 1u64..4, 2 => 4u64..50, 1 => Just(u64::MAX)];
    (0..10, hits.prop_map(Hits::new)).prop_map(|(kind, hits)| match kind {
        0..6 => Charge::Take(hits),
        6 | 7 => Charge::Force(hits),
        _ => Charge::Refund(hits),
    })
}

/// Takes and peeks only.
pub(crate) fn takes() -> impl Strategy<Value = Charge> {
    prop_oneof![1 => Just(0u64), 8 => 1u64..4, 2 => 4u64..30]
        .prop_map(|hits| Charge::Take(Hits::new(hits)))
}

/// Clocks that mostly move on a little, sometimes by about a period, far forward, or back.
pub(crate) fn steps(charges: impl Strategy<Value = Charge>) -> impl Strategy<Value = Vec<Step>> {
    let mils = prop_oneof![
        2 => Just(0i64),
        6 => 0i64..60,
        4 => 60i64..700,
        2 => 900i64..2_200,
        1 => -2_500i64..0,
        1 => -60i64..0,
        1 => 10_000i64..1_000_000,
    ];
    let step = (mils, -3i64..4, charges);
    prop::collection::vec(
        step.prop_map(|(mils, nanos, charge)| Step { mils, nanos, charge }),
        1..60,
    )
}

/// Clocks that only go forward.
pub(crate) fn forward_steps() -> impl Strategy<Value = Vec<Step>> {
    let mils = prop_oneof![2 => Just(0i64), 6 => 0i64..60, 3 => 60i64..700, 1 => 900i64..1_100];
    let step = (mils, 0i64..4, takes());
    prop::collection::vec(
        step.prop_map(|(mils, nanos, charge)| Step { mils, nanos, charge }),
        1..80,
    )
}

/// Odd lengths, so that nothing divides evenly, and common lengths.
pub(crate) fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 1_000_000u64..3_000_000_000,
        1 => Just(1_000_000_000),
        1 => Just(3_600_000_000_000),
        1 => 86_000_000_000_000u64..900_000_000_000_000,
    ]
}

pub(crate) const START: std::ops::Range<u64> = 1_700_000_000_000_000_000..1_900_000_000_000_000_000;

/// Seeded, so that failures reproduce everywhere, wasm32 included.
pub(crate) fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    })
}

pub(crate) fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// For all pairs of a first and a last hit: `fits(span, hits)`, where `hits` were admitted in the `span`
/// from one to the other, both included.
pub(crate) fn check_spans(
    admitted: &[(u64, u64)],
    fits: impl Fn(u64, u64) -> bool,
) -> Result<(), TestCaseError> {
    let mut admitted = admitted.to_vec();
    admitted.sort_unstable();
    for (index, (from, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for (to, hits) in &admitted[index..] {
            sum += hits;
            prop_assert!(fits(to - from, sum), "{sum} hits in {} ns", to - from);
        }
    }
    Ok(())
}

/// When a hit is spent that may be spent from `from` on and before `until`, delayed by thousandths of that
/// time.
pub(crate) fn spent_at(from: u64, until: u64, mils: u64) -> u64 {
    assert!(from < until, "nothing could be spent");
    from + (u128::from(until - 1 - from) * u128::from(mils) / 1_000) as u64
}

/// The delay of each hit of a trace, in thousandths of the available time.
pub(crate) fn delays() -> impl Strategy<Value = Vec<u64>> {
    let mils = prop_oneof![2 => Just(0u64), 3 => Just(1_000), 3 => 0u64..1_000];
    prop::collection::vec(mils, 80)
}
