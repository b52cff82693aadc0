//! Requests of many users to some interfaces of few apps.

use super::Plan;
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tidegate_statistics::{Aggregator, Counts, Declared};

pub(super) struct Traffic {
    apps: Zipf<f64>,
    interfaces: Zipf<f64>,
    users: u64,
    random: Xoshiro256PlusPlus,
}

impl Traffic {
    pub(super) fn new(plan: &Plan) -> anyhow::Result<Traffic> {
        let zipf = |of: u64| Zipf::new(of as f64, 1.0).map_err(anyhow::Error::msg);
        Ok(Traffic {
            apps: zipf(plan.apps)?,
            interfaces: zipf(plan.interfaces)?,
            users: plan.users,
            random: Xoshiro256PlusPlus::seed_from_u64(11),
        })
    }

    /// Records the next request in all statistics.
    pub(super) fn request(&mut self, declared: &Declared, aggregator: &Aggregator) {
        let app = format!("app-{}", self.apps.sample(&mut self.random) as u64);
        let interface = format!("/v1/{}", self.interfaces.sample(&mut self.random) as u64);
        let user = format!("user-{}", self.random.next_u64() % self.users);
        let denied = u64::from(self.random.next_u64().is_multiple_of(50));
        let counts = Counts { allowed: 1 - denied, denied, hits: 1 };
        let entries = [("app", &*app), ("interface", &*interface), ("user", &*user)];
        declared.record(aggregator, "shop", &entries.into_iter(), counts);
    }
}
