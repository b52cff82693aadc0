//! What a run is made of: limits, processes, network, clocks, traffic, and which faults happen. All of
//! it follows from the algorithm and the seed.

use crate::limits::{Algorithm, Limit, Rule, SECOND};
use crate::rng::Rng;

/// How the network behaves. Times in nanoseconds, chances in a thousand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    /// The least delay of a message.
    pub(crate) delay_min: u64,
    /// The mean of what comes on top.
    pub(crate) delay_mean: u64,
    /// Messages that take very long.
    pub(crate) slow: u64,
    /// Messages that are lost.
    pub(crate) lost: u64,
    /// Messages that come twice.
    pub(crate) twice: u64,
    /// Calls that cannot be sent at all.
    pub(crate) unsent: u64,
}

/// Which faults a scenario has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Mean time between two faults, in nanoseconds; 0 for none.
    pub(crate) every: u64,
    /// The sidecar's clock is stepped.
    pub(crate) clock_steps: bool,
    /// Limits are raised, lowered, taken away and put back.
    pub(crate) limits_change: bool,
    /// Limits get another algorithm.
    pub(crate) algorithms_change: bool,
}

/// The monotonic clock of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// What it said when the run began.
    pub(crate) origin: u64,
    /// How much too fast it runs, in parts per million.
    pub(crate) ppm: i64,
}

impl Clock {
    /// What it says at `now`.
    #[must_use]
    pub(crate) fn at(self, now: u64) -> u64 {
        let gained = i128::from(now) * i128::from(self.ppm) / 1_000_000;
        self.origin + (i128::from(now) + gained) as u64
    }
}

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// Envoy processes.
    pub(crate) proxies: usize,
    /// Workers in each.
    pub(crate) workers: usize,
    /// The rules; the first is what the run is about.
    pub(crate) rules: Vec<Rule>,
    /// The network.
    pub(crate) network: Network,
    /// The faults.
    pub(crate) faults: Faults,
    /// The filter's `timeout_ms`.
    pub(crate) timeout_ms: u64,
    /// The filter's slots.
    pub(crate) slots: u32,
    /// Requests per second, when neither much nor little goes on.
    pub(crate) rate: u64,
    /// How many requests in a thousand are for the hot counter.
    pub(crate) hot: u64,
    /// The sidecar's wall clock when the run begins.
    pub(crate) wall: u64,
    /// The clock of each process.
    pub(crate) clocks: Vec<Clock>,
    /// How long leases may last.
    pub(crate) lease_ttl: u64,
    /// How often another worker runs between two calls of one, in a thousand.
    pub(crate) interleaved: u64,
}

/// No process asks for more within a second, or a run would be over in no time.
const RATE_MAX: u64 = 4_000;

impl Scenario {
    /// The scenario of this seed.
    #[must_use]
    pub(crate) fn new(algorithm: Algorithm, rng: &mut Rng) -> Scenario {
        let rules = rules(algorithm, rng);
        let limit = rules[0].limits[0];
        let own_rate = limit.requests * SECOND / limit.period;
        let rate = (own_rate * rng.between(20, 500) / 100).clamp(rng.between(30, 300), RATE_MAX);
        let proxies = rng.between(1, 4) as usize;
        let clock = |rng: &mut Rng| Clock {
            origin: rng.between(0, 1 << 50),
            ppm: rng.between(0, 1_000) as i64 - 500,
        };
        let timeout_ms = rng.pick(&[5, 20, 20, 100, 400]);
        Scenario {
            proxies,
            workers: rng.between(1, 4) as usize,
            network: network(timeout_ms, rng),
            faults: faults(rng),
            timeout_ms,
            slots: rng.pick(&[1, 2, 8, 64, 512]),
            rate,
            hot: rng.pick(&[0, 300, 700, 950]),
            wall: wall(limit.period, rng),
            clocks: (0..proxies).map(|_| clock(rng)).collect(),
            lease_ttl: rng.pick(&[SECOND / 2, 2 * SECOND, 2 * SECOND, 5 * SECOND]),
            interleaved: rng.pick(&[0, 20, 100]),
            rules,
        }
    }

    /// How many counters it has.
    #[must_use]
    pub(crate) fn keys(&self) -> usize {
        self.rules.iter().map(|rule| rule.values as usize).sum()
    }

    /// Whether what its limits promise can be told: not when the time jumps, or counts are dropped.
    #[must_use]
    pub(crate) fn is_bounded(&self) -> bool {
        !self.faults.clock_steps && !self.faults.algorithms_change
    }

    /// The filter's configuration: each rule twice, so that a request may hit a counter twice.
    #[must_use]
    pub(crate) fn config(&self) -> String {
        let recipe = |header: String, key: usize| {
            format!(
                r#"{{"actions":[{{"request_headers":{{"header_name":"{header}","descriptor_key":"k{key}"}}}}]}}"#
            )
        };
        let recipes: Vec<String> = (0..self.rules.len())
            .flat_map(|rule| {
                [recipe(format!("k{rule}"), rule), recipe(format!("again{rule}"), rule)]
            })
            .collect();
        format!(
            r#"{{"domain":"sim","sidecar":{{"cluster":"tidegate","timeout_ms":{}}},
            "failure_mode":"deny","rate_limits":[{}]}}"#,
            self.timeout_ms,
            recipes.join(",")
        )
    }
}

fn rules(algorithm: Algorithm, rng: &mut Rng) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for index in 0..rng.between(1, 4) {
        let of =
            |index, rng: &mut Rng| if index == 0 { algorithm } else { rng.pick(&Algorithm::ALL) };
        let mut limits = vec![Limit::random(of(index, rng), rng)];
        // The windows of a first hit are told by the answer, which is about the closest limit only.
        if rng.chance(250) && limits[0].algorithm != Algorithm::FirstHitWindow {
            let second = Limit::random(rng.pick(&Algorithm::ALL), rng);
            if second.algorithm != Algorithm::FirstHitWindow {
                limits.push(second);
            }
        }
        if index > 0 && rng.chance(150) {
            limits.clear();
        }
        // The exact window takes up to 66 wide nodes for a counter, a ring one; there are 512.
        let large = limits.iter().map(|limit| match limit.algorithm {
            Algorithm::Exact => 3,
            Algorithm::SlidingBuckets => 40,
            _ => 300,
        });
        let values_max = large.min().unwrap_or(300);
        let values = match rng.below(3) {
            0 => 1,
            1 => rng.between(1, 3.min(values_max)),
            _ => rng.between(1, values_max),
        };
        let first = rules.last().map_or(0, |rule: &Rule| rule.first + rule.values);
        let change_per_cent = rng.pick(&[30, 70, 150, 300]);
        rules.push(Rule { limits, values: values as u32, first, change_per_cent });
    }
    rules
}

fn network(timeout_ms: u64, rng: &mut Rng) -> Network {
    let ms = SECOND / 1_000;
    let bad = rng.chance(600);
    let some = |rng: &mut Rng, most| if bad { rng.between(0, most) } else { 0 };
    Network {
        delay_min: rng.between(20_000, ms),
        delay_mean: rng.log_between(50_000, timeout_ms.min(80) * ms / 4),
        slow: some(rng, 50),
        lost: some(rng, 100),
        twice: some(rng, 100),
        unsent: some(rng, 5),
    }
}

fn faults(rng: &mut Rng) -> Faults {
    let limits_change = rng.chance(300);
    Faults {
        every: if rng.chance(700) { rng.log_between(SECOND / 5, 10 * SECOND) } else { 0 },
        clock_steps: rng.chance(150),
        limits_change,
        algorithms_change: limits_change && rng.chance(300),
    }
}

/// Some time in this century; often a little before the end of a window, as long ones have no other
/// within a run.
fn wall(period: u64, rng: &mut Rng) -> u64 {
    let wall = rng.between(1_600_000_000, 3_000_000_000) * SECOND + rng.below(SECOND);
    if rng.chance(500) {
        return wall;
    }
    wall / period * period + period - rng.between(1, period.min(10 * SECOND))
}
