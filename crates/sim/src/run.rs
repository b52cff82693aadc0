//! One run from its seed to its outcome.

use crate::limits::Algorithm;
use crate::mutation::Mutation;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::tally::{Tally, Usage};
use crate::world::World;
use std::fmt;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The algorithm of the first rule.
    pub algorithm: Algorithm,
    /// All chance.
    pub seed: u64,
    /// Events; a run that measures how much of a limit is used takes what that needs on top.
    pub steps: u64,
    /// A deliberate fault.
    pub mutation: Option<Mutation>,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// What happened.
    pub tally: Tally,
    /// The part of the limit that was used once all was calm, in thousandths, where it was measured.
    pub used: Option<u64>,
    /// The same for two runs only if they went the same way.
    pub digest: u64,
}

/// Something was as it must not be.
#[derive(Debug)]
pub struct Failure {
    /// What was run.
    pub plan: Plan,
    /// After so many events.
    pub steps: u64,
    /// What was wrong.
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
        write!(
            f,
            "replay: tidegate-sim --algorithm {} --seed {seed} --steps {steps} --runs 1",
            algorithm.name()
        )
    }
}

/// Runs it.
///
/// # Errors
/// With the first thing that is as it must not be.
pub fn run(plan: Plan) -> Result<Outcome, Box<Failure>> {
    let mut rng = Rng::new(plan.seed.wrapping_mul(16).wrapping_add(plan.algorithm as u64));
    let scenario = Scenario::new(plan.algorithm, &mut rng);
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
    let state = world.state.borrow();
    let used = state.usage.as_ref().map(Usage::per_mille);
    let least = used_at_least(plan.algorithm);
    if let Some(used) = used.filter(|used| *used < least) {
        let broken = format!("{used} of 1000 used of the first limit, at least {least} expected");
        return Err(fail(state.tally.steps, broken, state.trace.to_string()));
    }
    Ok(Outcome { tally: state.tally, used, digest: state.trace.digest() })
}

/// How much of a limit must be used with three times the traffic, in thousandths.
fn used_at_least(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::FixedWindow | Algorithm::Zone => 990,
        // What was borrowed before the measured windows is paid back in them: up to half a window of six.
        Algorithm::Borrow => 900,
        // A bucket may hold a few tokens when the measuring ends that it did not when it began.
        Algorithm::TokenBucket => 950,
        // Windows are not measured as they open, so that a part of one of six may be missing.
        Algorithm::FirstHitWindow => 800,
        // The estimate counts the last window as if it had been even.
        Algorithm::SlidingWindow => 800,
        // Buckets are held for a part of them longer than the period, and all come back together.
        Algorithm::SlidingBuckets => 750,
        // Seconds are held for one second longer than a period of one.
        Algorithm::Exact => 400,
    }
}
