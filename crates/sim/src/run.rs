//! One run from its seed to its outcome.

use crate::limits::Algorithm;
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::scenario::{Scenario, Tiers};
use crate::tally::{Tally, Usage};
use crate::world::World;
use std::fmt;

/// The input of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Where the counters are.
    pub tiers: Tiers,
    /// The algorithm of the first rule.
    pub algorithm: Algorithm,
    /// The seed of all randomness.
    pub seed: u64,
    /// The number of events; a run that measures usage takes some more.
    pub steps: u64,
    /// A deliberate fault.
    pub mutation: Option<Mutation>,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Counts of events.
    pub tally: Tally,
    /// The used part of the limit in the calm at the end, in thousandths, if it was measured.
    pub used: Option<u64>,
    /// Equal for two runs only if they had the same events.
    pub digest: u64,
}

/// A broken promise.
#[derive(Debug)]
pub struct Failure {
    /// The input of the run.
    pub plan: Plan,
    /// The number of events before it.
    pub steps: u64,
    /// The violation.
    pub broken: String,
    /// The scenario.
    pub scenario: String,
    /// The last events.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { algorithm, seed, steps, .. } = self.plan;
        writeln!(f, "{}", self.trace)?;
        writeln!(f, "{}", self.scenario)?;
        writeln!(f, "{} seed {seed}, step {}: {}", algorithm.name(), self.steps, self.broken)?;
        let shared = if self.plan.tiers == Tiers::Three { " --shared" } else { "" };
        write!(
            f,
            "replay: tidegate-sim{shared} --algorithm {} --seed {seed} --steps {steps} --runs 1",
            algorithm.name()
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// The first violation.
pub fn run(plan: Plan) -> Result<Outcome, Box<Failure>> {
    let mut rng = Rng::new(plan.seed.wrapping_mul(16).wrapping_add(plan.algorithm as u64));
    let mut scenario = Scenario::new(plan.algorithm, &mut rng);
    if plan.tiers == Tiers::Three {
        scenario = scenario.sharing(&mut rng);
    }
    let description = format!("{scenario:#?}");
    let fail = |steps: u64, broken: String, trace: String| {
        Box::new(Failure { plan, steps, broken, scenario: description.clone(), trace })
    };
    let world = World::new(scenario, rng, plan.mutation)
        .map_err(|error| fail(0, format!("{error:#}"), String::new()))?;
    let calm_at = plan.steps - plan.steps / 5;
    loop {
        let done = world.state.borrow().tally.steps;
        if done >= plan.steps && world.is_measured() {
            break;
        }
        let calm = world.state.borrow().calm;
        let stepped = if done >= calm_at && !calm { world.calm() } else { world.step() };
        let mut state = world.state.borrow_mut();
        if let Err(error) = stepped {
            state.fail(format!("{error:#}"));
        }
        if let Some(broken) = state.broken.take() {
            return Err(fail(done, broken, state.trace.to_string()));
        }
    }
    let settled = world.settle();
    let mut state = world.state.borrow_mut();
    if let Err(error) = settled {
        state.fail(format!("{error:#}"));
    }
    if let Some(broken) = state.broken.take() {
        return Err(fail(state.tally.steps, broken, state.trace.to_string()));
    }
    let used = state.usage.as_ref().map(Usage::per_mille);
    let least = used_at_least(plan.algorithm, plan.tiers);
    if let Some(used) = used.filter(|used| *used < least) {
        let broken = format!("{used} of 1000 used of the first limit, at least {least} expected");
        return Err(fail(state.tally.steps, broken, state.trace.to_string()));
    }
    Ok(Outcome { tally: state.tally, used, digest: state.trace.digest() })
}

/// The least usage of a limit under three times its traffic, in thousandths.
fn used_at_least(algorithm: Algorithm, tiers: Tiers) -> u64 {
    let of_one = match algorithm {
        Algorithm::FixedWindow | Algorithm::Zone => 990,
        // Hits borrowed before the measured windows are paid back in them: up to half of one of six
        // windows.
        Algorithm::Borrow => 900,
        // A bucket may end the measurement with a few tokens more than at its start.
        Algorithm::TokenBucket => 950,
        // The measured span is not aligned to the windows, so a part of one of six may be missing.
        Algorithm::FirstHitWindow => 800,
        // The estimate assumes an even last window.
        Algorithm::SlidingWindow => 800,
        // Buckets are held for a part longer than the period, and all expire together.
        Algorithm::SlidingBuckets => 750,
        // Seconds are held for one second longer than a period of one.
        Algorithm::Exact => 400,
    };
    match tiers {
        Tiers::Two => of_one,
        Tiers::Three => of_one - 100,
    }
}
