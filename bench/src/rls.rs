//! The cost of a call of the rate limit service, beside Limitador in one run; and FRS alone.
//!
//! `LIMITADOR` is the path of Limitador's server; without it, earlier figures are shown and marked. The
//! servers take turns, round after round, each under load by `tidegate load`, which counts every request,
//! while the others are idle. Costs are CPU time of the server, as the machine is shared.

mod capacity;
mod frs;
mod overload;
mod pace;
mod server;

use crate::generator::{Ask, Load, Order, Pace};
use crate::report::Row;
use crate::server::{Cores, Server, limitador};
use crate::{Extent, progress};
use std::time::Duration;

const SUITE: &str = "rls";

/// The size of the measurement.
pub(crate) struct Plan {
    rounds: usize,
    /// Numbers of rules.
    rules: &'static [u32],
    /// The cores of the server. With one core, the generator has the other.
    cores: &'static [Cores],
    /// The length of each measurement.
    duration: Duration,
    /// Calls per second, open loop.
    rates: &'static [u64],
    /// Pairs of Query and Update per second.
    pairs: u64,
}

const FULL: Plan = Plan {
    rounds: 3,
    rules: &[1, 100, 10_000],
    cores: &[Cores::One, Cores::Two],
    duration: Duration::from_secs(2),
    // The second is the share of each of five servers of an open platform with 100 million calls a day.
    rates: &[20_000, 4_630],
    pairs: 20_000,
};
const QUICK: Plan = Plan {
    rounds: 1,
    rules: &[1, 100],
    cores: &[Cores::One, Cores::Two],
    duration: Duration::from_millis(500),
    rates: &[1_000],
    pairs: 500,
};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(extent: Extent) -> anyhow::Result<Vec<Row>> {
    let plan = extent.of(&FULL, &QUICK);
    if limitador().is_none() {
        println!(
            "Without Limitador: LIMITADOR=/path/to/limitador-server has it run beside. The row of it \
             below is from earlier measurements on another machine, of 1 rule on one core.\n"
        );
    }
    let mut rows = capacity::measure(plan).await?;
    rows.extend(pace::measure(plan).await?);
    rows.extend(overload::measure(plan).await?);
    rows.extend(frs::measure(plan).await?);
    progress::clear();
    Ok(rows)
}

/// Calls of the rate limit service by every user.
fn calls<'a>(server: &Server, pace: Pace, plan: &Plan, cores: Cores) -> Load<'a> {
    let ask = Ask::Rls { descriptor: server::DESCRIPTOR };
    load(server, ask, pace, plan, cores)
}

/// Requests of every user.
fn load<'a>(server: &Server, ask: Ask<'a>, pace: Pace, plan: &Plan, cores: Cores) -> Load<'a> {
    let (keys, duration) = (u64::from(server::USERS), plan.duration);
    Load { target: server.address, ask, keys, order: Order::Random, pace, duration, cores }
}
