//! The parameters of a run: limits, processes, network, clocks, traffic, and faults. All of them
//! follow from the algorithm and the seed.

use crate::limits::{Algorithm, Limit, Rule, SECOND};
use crate::meters::{DEBITED, ESTIMATE, ESTIMATED, LEASED, METERS};
use crate::rng::Rng;
use tidegate_authority::Failure;

/// The network. Times in nanoseconds, probabilities in thousandths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    /// The least delay of a message.
    pub(crate) delay_min: u64,
    /// The mean of the additional delay.
    pub(crate) delay_mean: u64,
    pub(crate) slow: u64,
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    /// Calls that cannot be sent.
    pub(crate) unsent: u64,
}

/// The faults in a scenario.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Mean time between two faults, in nanoseconds; 0 for none.
    pub(crate) every: u64,
    /// The sidecar's clock is stepped.
    pub(crate) clock_steps: bool,
    /// Limits are raised, lowered, removed and restored.
    pub(crate) limits_change: bool,
    /// Limits get another algorithm.
    pub(crate) algorithms_change: bool,
}

/// Where the counters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiers {
    /// In one sidecar.
    Two,
    /// In a server that several sidecars share.
    Three,
}

/// Sidecars that share counters.
#[derive(Debug, Clone)]
pub(crate) struct Machines {
    pub(crate) sidecars: usize,
    /// How far the clock of each is from that of the server, in nanoseconds.
    pub(crate) skews: Vec<i64>,
    pub(crate) clocks: Vec<Clock>,
    /// `--authority-timeout`, in nanoseconds.
    pub(crate) timeout: u64,
    pub(crate) delay_min: u64,
    pub(crate) delay_mean: u64,
    /// Commands that take up to three times the timeout, in thousandths.
    pub(crate) slow: u64,
    pub(crate) lost_commands: u64,
    pub(crate) lost_answers: u64,
    /// What the server may have forgotten after a failover: the changes of so many nanoseconds. 0 for no failovers.
    pub(crate) forgets: u64,
    pub(crate) failure: Failure,
}

/// The monotonic clock of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// Its time at the start of the run.
    pub(crate) origin: u64,
    /// Its error in parts per million; positive is fast.
    pub(crate) ppm: i64,
}

impl Clock {
    /// Its time at `now`.
    #[must_use]
    pub(crate) fn at(self, now: u64) -> u64 {
        let gained = i128::from(now) * i128::from(self.ppm) / 1_000_000;
        self.origin + (i128::from(now) + gained) as u64
    }
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) proxies: usize,
    pub(crate) workers: usize,
    /// The rules; the first one has the algorithm of the run.
    pub(crate) rules: Vec<Rule>,
    pub(crate) network: Network,
    pub(crate) faults: Faults,
    /// The filter's `timeout_ms`.
    pub(crate) timeout_ms: u64,
    /// The filter's `slots`.
    pub(crate) slots: u32,
    /// Requests per second in normal traffic.
    pub(crate) rate: u64,
    /// Requests for the hot counter, in thousandths.
    pub(crate) hot: u64,
    /// The sidecar's wall clock at the start.
    pub(crate) wall: u64,
    pub(crate) clocks: Vec<Clock>,
    /// The longest lease.
    pub(crate) lease_ttl: u64,
    /// The probability that another worker runs between two host calls, in thousandths.
    pub(crate) interleaved: u64,
    /// Requests with costs that their end knows, in thousandths.
    pub(crate) metered: u64,
    /// None if there is one sidecar, with the counters.
    pub(crate) machines: Option<Machines>,
}

/// No process makes more calls within a second, or a run would be over at once.
const RATE_MAX: u64 = 4_000;

impl Scenario {
    /// The scenario of this generator.
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
            metered: rng.pick(&[0, 100, 500]),
            machines: None,
            rules,
        }
    }

    /// The same with several sidecars, which share their counters.
    #[must_use]
    pub(crate) fn sharing(self, rng: &mut Rng) -> Scenario {
        let machines = machines(rng);
        let proxies = self.proxies.max(machines.sidecars);
        let clocks = (0..proxies).map(|index| self.clocks[index % self.clocks.len()]).collect();
        // What a failover forgets is computed by the limits of the start.
        let limits_change = self.faults.limits_change && machines.forgets == 0;
        let algorithms_change = self.faults.algorithms_change && limits_change;
        let faults = Faults { limits_change, algorithms_change, ..self.faults };
        // Debits are of one sidecar and its holdings.
        Scenario { proxies, clocks, faults, metered: 0, machines: Some(machines), ..self }
    }

    /// The sidecars.
    #[must_use]
    pub(crate) fn sidecars(&self) -> usize {
        self.machines.as_ref().map_or(1, |machines| machines.sidecars)
    }

    /// How long a token may be held beside its counter.
    #[must_use]
    pub(crate) fn held_for(&self) -> u64 {
        match self.machines {
            None => self.lease_ttl,
            // Two generations of held tokens. Leases end with them.
            Some(_) => 2 * SECOND,
        }
    }

    #[must_use]
    pub(crate) fn keys(&self) -> usize {
        self.first_meter() + METERS
    }

    /// The counter of the first limit of costs.
    #[must_use]
    pub(crate) fn first_meter(&self) -> usize {
        self.rules.iter().map(|rule| rule.values as usize).sum()
    }

    /// Whether bounds can be checked: not if the clock that counts steps, if counts are dropped, or if sidecars admit
    /// hits that no counter knows.
    #[must_use]
    pub(crate) fn is_bounded(&self) -> bool {
        let is_strict = match &self.machines {
            None => !self.faults.clock_steps,
            Some(machines) => machines.failure == Failure::Deny,
        };
        is_strict && !self.faults.algorithms_change
    }

    /// The filter's configuration: each rule twice, so that a request may hit a counter twice.
    #[must_use]
    pub(crate) fn config(&self) -> String {
        let recipe = |header: String, key: usize| {
            format!(
                r#"{{"actions":[{{"request_headers":{{"header_name":"{header}","descriptor_key":"k{key}"}}}}]}}"#
            )
        };
        let cost = r#"{"format":"%DYNAMIC_METADATA(llm:cost)%"}"#;
        let metered = |meter: usize, rest: String| {
            format!(
                r#"{{"actions":[{{"request_headers":{{"header_name":"m{meter}","descriptor_key":"m{meter}"}}}}],{rest}}}"#
            )
        };
        let debit = format!(r#""apply_on_stream_done":true,"hits_addend":{cost}"#);
        let estimate = format!(r#""hits_addend":{{"estimate":{ESTIMATE},"actual":{cost}}}"#);
        let meters = [
            metered(DEBITED, debit.clone()),
            metered(LEASED, r#""hits_addend":{"number":0}"#.to_owned()),
            metered(LEASED, debit),
            metered(ESTIMATED, estimate),
        ];
        let recipes: Vec<String> = (0..self.rules.len())
            .flat_map(|rule| {
                [recipe(format!("k{rule}"), rule), recipe(format!("again{rule}"), rule)]
            })
            .chain(if self.metered > 0 { &meters[..] } else { &[] }.iter().cloned())
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
        // First-hit windows are visible only in answers, which are about the closest limit only.
        if rng.chance(250) && limits[0].algorithm != Algorithm::FirstHitWindow {
            let second = Limit::random(rng.pick(&Algorithm::ALL), rng);
            if second.algorithm != Algorithm::FirstHitWindow {
                limits.push(second);
            }
        }
        if index > 0 && rng.chance(150) {
            limits.clear();
        }
        // The exact window takes up to 66 wide nodes per counter, a ring one; there are 512.
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

fn machines(rng: &mut Rng) -> Machines {
    let ms = SECOND / 1_000;
    let sidecars = rng.between(2, 3) as usize;
    let bad = rng.chance(600);
    let some = |rng: &mut Rng, most| if bad { rng.between(0, most) } else { 0 };
    let skew = |rng: &mut Rng| {
        let skew = rng.log_between(ms, 3_600 * SECOND) as i64;
        if rng.chance(500) { skew } else { -skew }
    };
    let clock = |rng: &mut Rng| Clock {
        origin: rng.between(0, 1 << 50),
        ppm: rng.between(0, 1_000) as i64 - 500,
    };
    Machines {
        sidecars,
        skews: (0..sidecars).map(|_| skew(rng)).collect(),
        clocks: (0..sidecars).map(|_| clock(rng)).collect(),
        timeout: rng.pick(&[20, 100, 100, 400]) * ms,
        delay_min: rng.between(20_000, ms),
        delay_mean: rng.log_between(50_000, 4 * ms),
        slow: some(rng, 20),
        lost_commands: some(rng, 30),
        lost_answers: some(rng, 30),
        forgets: if rng.chance(300) { rng.log_between(10 * ms, 2 * SECOND) } else { 0 },
        failure: rng.pick(&[Failure::Deny, Failure::Deny, Failure::Deny, Failure::Local]),
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

/// A time in this century; often shortly before the end of a window, as a run sees no other end of
/// a long one.
fn wall(period: u64, rng: &mut Rng) -> u64 {
    let wall = rng.between(1_600_000_000, 3_000_000_000) * SECOND + rng.below(SECOND);
    if rng.chance(500) {
        return wall;
    }
    wall / period * period + period - rng.between(1, period.min(10 * SECOND))
}
