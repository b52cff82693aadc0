//! The bound of every algorithm over several sidecars, whatever the network, crashes and clocks do, against a slow list
//! of all admitted hits.

use super::world::{Network, START, World, key};
use proptest::prelude::*;
use tidegate_core::Verdict;

const SECOND: u64 = 1_000_000_000;

/// How many hits an algorithm may admit.
#[derive(Debug, Clone, Copy)]
enum Bound {
    /// In each of adjacent windows of this length.
    Aligned { limit: u64, window: u64 },
    /// In any span of this length.
    AnySpan { limit: u64, span: u64 },
    /// In any span of T: so many, and `limit` × T / `period`.
    Rate { limit: u64, period: u64, burst: u64 },
}

impl Bound {
    /// Checks hits, given as times and numbers, in the order of time.
    fn check(self, hits: &[(u64, u64)]) -> Result<(), TestCaseError> {
        for (first, (start, _)) in hits.iter().enumerate() {
            let mut sum = 0;
            for (at, number) in &hits[first..] {
                sum += number;
                let time = at - start;
                let most = match self {
                    Bound::Aligned { limit, window } if at / window == start / window => limit,
                    Bound::AnySpan { limit, span } if time < span => limit,
                    Bound::Rate { limit, period, burst } => burst + (limit * time).div_ceil(period),
                    _ => continue,
                };
                prop_assert!(sum <= most, "{sum} of {most} from {start} to {at}, {self:?}");
            }
        }
        Ok(())
    }
}

/// Limits with the period of a few seconds, and what they may admit.
fn limits() -> impl Strategy<Value = (String, Bound, u64)> {
    (0..6_usize, 1..60_u64).prop_map(|(kind, limit)| {
        let (algorithm, period, bound) = match kind {
            0 => ("fixed_window", 4, Bound::Aligned { limit, window: 4 * SECOND }),
            1 => {
                let (limit, span) = (2 * limit, 4 * SECOND);
                ("first_hit_window", 4, Bound::AnySpan { limit, span })
            }
            2 => {
                let (period, burst) = (4 * SECOND, limit);
                ("sliding_window", 4, Bound::Rate { limit, period, burst })
            }
            3 => ("sliding_buckets", 60, Bound::AnySpan { limit, span: 60 * SECOND }),
            4 => ("sliding_buckets, exact: true", 4, Bound::AnySpan { limit, span: 4 * SECOND }),
            _ => {
                // Tokens of a bucket are held for two seconds at most.
                let period = 4 * SECOND;
                let burst = limit + (limit * 2 * SECOND).div_ceil(period);
                ("token_bucket", 4, Bound::Rate { limit, period, burst })
            }
        };
        let limits = format!(
            "- {{key: k, rate_limit: {{algorithm: {algorithm}, requests: {limit}, period: {period}s}}}}\n"
        );
        (limits, bound, limit)
    })
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// So many requests of so many hits at a sidecar.
    Ask(usize, usize, u64),
    /// Microseconds.
    Pass(u64),
    Tend,
    Network(Network),
    Delay(u64),
    Kill(usize),
    /// The time of a sidecar is so many milliseconds behind.
    Lag(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..3_usize, 1..12_usize, 1..4_u64).prop_map(|(of, n, hits)| Step::Ask(of, n, hits)),
        6 => (0..4_000_u64).prop_map(Step::Pass),
        2 => (0..1_500_000_u64).prop_map(Step::Pass),
        3 => Just(Step::Tend),
        1 => prop_oneof![Just(Network::Down), Just(Network::Deaf)].prop_map(Step::Network),
        2 => Just(Step::Network(Network::Up)),
        1 => (0..20_000_000_u64).prop_map(Step::Delay),
        1 => (0..3_usize).prop_map(Step::Kill),
        1 => (0..3_usize, 0..30_u64).prop_map(|(of, lag)| Step::Lag(of, lag)),
    ];
    prop::collection::vec(step, 1..120)
}

/// Runs steps, and returns the admitted hits in the order of time.
fn run(world: &mut World, steps: &[Step]) -> Vec<(u64, u64)> {
    let mut asked = std::collections::HashMap::new();
    for step in steps {
        match *step {
            Step::Ask(of, times, hits) => {
                for _ in 0..times {
                    asked.insert(world.ask(of, hits, key("v")), hits);
                }
            }
            Step::Pass(micros) => world.pass(micros),
            Step::Tend => world.tend(),
            Step::Network(network) => *world.server.network.lock().unwrap() = network,
            Step::Delay(nanos) => world.set_delay(nanos),
            Step::Kill(of) => world.kill(of),
            Step::Lag(of, millis) => world.set_lag(of, millis * 1_000_000),
        }
    }
    world.set_delay(500_000);
    world.pass(50_000);
    assert_eq!(world.waiting(), 0, "requests wait for ever");
    let allowed = world.answered.iter().filter(|answered| answered.is_allow());
    let mut hits: Vec<_> = allowed.map(|answered| (answered.at, asked[&answered.id])).collect();
    hits.sort_unstable();
    hits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_limit_admits_more_than_its_algorithm_allows((limits, bound, _) in limits(), steps in steps()) {
        let mut world = World::new(3, &limits);
        let hits = run(&mut world, &steps);
        bound.check(&hits)?;
    }

    /// Without losses, what is neither admitted nor held is left, and what is not used comes back.
    #[test]
    fn all_that_was_not_admitted_comes_back(limit in 1..3_000_u64, steps in steps()) {
        let limits = format!("- {{key: k, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n");
        let mut world = World::new(3, &limits);
        let is_harmless =
            |step: &Step| !matches!(step, Step::Network(_) | Step::Kill(_));
        let steps: Vec<_> = steps.into_iter().filter(is_harmless).collect();
        let hits: u64 = run(&mut world, &steps).iter().map(|(_, hits)| hits).sum();
        world.rest(4_000);
        prop_assert_eq!(u64::from(world.left(key("v"))), limit - hits);
    }

    /// With two limits all or nothing is taken, over holdings of both.
    #[test]
    fn requests_of_several_limits_take_all_or_nothing(
        (one, other) in (1..200_u64, 1..200_u64),
        steps in steps(),
    ) {
        let limits = format!(
            "- key: k\n  rate_limits:\n  - {{name: a, unit: day, requests: {one}}}\n  \
             - {{name: b, algorithm: sliding_window, period: 1d, requests: {other}}}\n"
        );
        let mut world = World::new(3, &limits);
        let is_harmless =
            |step: &Step| !matches!(step, Step::Network(_) | Step::Kill(_));
        let steps: Vec<_> = steps.into_iter().filter(is_harmless).collect();
        let hits: u64 = run(&mut world, &steps).iter().map(|(_, hits)| hits).sum();
        world.rest(4_000);
        prop_assert_eq!(u64::from(world.left(key("v"))), one.min(other) - hits);
    }
}

/// With traffic at every sidecar and no losses, a limit of any algorithm is used up.
#[test]
fn limits_are_used_up_by_steady_traffic() {
    for (limit, seconds, least) in [
        ("{unit: day, requests_per_unit: 2000}", 4, 2_000),
        ("{algorithm: sliding_window, requests: 2000, period: 1d}", 4, 2_000),
        ("{algorithm: sliding_buckets, requests: 2000, period: 1m}", 4, 1_980),
        ("{algorithm: sliding_buckets, exact: true, requests: 2000, period: 1m}", 4, 1_980),
        // A burst, and what refills in ten seconds.
        ("{algorithm: token_bucket, requests: 200, period: 1s, burst: 200}", 10, 2_150),
    ] {
        let mut world = World::new(3, &format!("- {{key: k, rate_limit: {limit}}}\n"));
        for step in 0..seconds * 1_000 {
            for sidecar in 0..3 {
                world.ask(sidecar, 1, key("v"));
            }
            world.pass(1_000);
            if step % 100 == 0 {
                world.tend();
            }
        }
        world.pass(5_000);
        let (allowed, commands) = (world.allowed(), world.commands());
        eprintln!("{allowed} allowed, {commands} commands of {limit}");
        assert!(allowed >= least, "{allowed} of {limit}");
        let last = world.answered.last().and_then(|last| last.answer.as_ref().ok());
        assert_eq!(last.map(|answer| answer.statuses.len()), Some(1));
        assert!(last.is_some_and(|answer| answer.verdict == Verdict::Deny || allowed < 2_200));
        assert!(START > 0);
    }
}
