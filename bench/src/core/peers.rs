//! Limiters of the governor crate, without keys: one atomic word for each limit.
//!
//! Three limiters are asked in sequence. When the last one denies, the tokens of the others are lost, while
//! Tidegate takes from all limits or from none.

use super::KEYS;
use super::limits::{AMPLE, FEW, HOUR, STEP};
use super::subject::{Answers, Subject, Work};
use anyhow::Context;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

/// A clock that is set like the time argument of Tidegate's algorithms.
#[derive(Debug, Clone, Default)]
struct ManualClock(Rc<Cell<u64>>);

impl Clock for ManualClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.get())
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, ManualClock, NoOpMiddleware<Nanos>>;

pub(super) fn subjects() -> Vec<Subject> {
    vec![
        Subject::new("governor, allow", Answers::Yes, || governors([AMPLE])),
        Subject::new("governor, deny", Answers::No, || governors([FEW])),
        Subject::new("governor x3, allow", Answers::Yes, || governors([AMPLE; 3])),
        Subject::new("governor x3, deny", Answers::No, || governors([AMPLE, AMPLE, FEW])),
    ]
}

/// For each key, a limiter for each number of hits per hour. Small ones are used up.
fn governors<const N: usize>(hits: [u32; N]) -> anyhow::Result<Box<dyn Work>> {
    let clock = ManualClock::default();
    let mut limiters = Vec::new();
    for _ in 0..KEYS {
        for hits in hits {
            let burst = NonZeroU32::new(hits).context("burst 0")?;
            let refill = Duration::from_nanos(HOUR.as_nanos() / u64::from(hits));
            let quota = Quota::with_period(refill).context("refill in no time")?.allow_burst(burst);
            let limiter = Limiter::direct_with_clock(quota, clock.clone());
            while hits == FEW && limiter.check().is_ok() {}
            limiters.push(limiter);
        }
    }
    Ok(Box::new(Governors::<N> { limiters, clock }))
}

struct Governors<const N: usize> {
    limiters: Vec<Limiter>,
    clock: ManualClock,
}

impl<const N: usize> Work for Governors<N> {
    fn decide_each(&mut self, picks: &[u32]) -> u64 {
        let mut allowed = 0;
        for &pick in picks {
            let from = pick as usize * N;
            let limiters = &self.limiters[from..from + N];
            allowed += u64::from(limiters.iter().all(|limiter| limiter.check().is_ok()));
            self.clock.0.set(self.clock.0.get() + STEP.as_nanos());
        }
        allowed
    }
}
