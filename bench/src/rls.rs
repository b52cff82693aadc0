//! What a call of the rate limit service costs, beside Limitador's in one run; and the FRS door alone.
//!
//! `LIMITADOR` names its server's binary; without it figures that were measured before stand in its
//! place, and say so. Servers take turns, round after round, each with the generator (`tidegate load`,
//! which counts every request) while the others are idle. Costs are CPU time of the server, since
//! machines are shared.

mod capacity;
mod frs;
mod generator;
mod overload;
mod pace;
mod server;

use crate::report::Row;
use crate::{Extent, progress};
use std::time::Duration;

const SUITE: &str = "rls";

/// How much is measured.
pub(crate) struct Plan {
    rounds: usize,
    /// How many rules are loaded.
    rules: &'static [u32],
    /// How many cores the server has; one is the generator's when it has one.
    cores: &'static [Cores],
    /// How long each measurement lasts.
    duration: Duration,
    /// Calls a second, whatever is answered.
    rates: &'static [u64],
    /// Pairs of Query and Update a second.
    pairs: u64,
}

/// Where the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cores {
    /// On the first core, with the generator on the second.
    One,
    /// On both, and the generator too.
    Two,
}

impl Cores {
    fn name(self) -> &'static str {
        match self {
            Cores::One => "1 core",
            Cores::Two => "2 cores",
        }
    }
}

const FULL: Plan = Plan {
    rounds: 3,
    rules: &[1, 100, 10_000],
    cores: &[Cores::One, Cores::Two],
    duration: Duration::from_secs(2),
    // The second is what each of five servers of an open platform with 100 million calls a day has.
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
    let plan = match extent {
        Extent::Full => &FULL,
        Extent::Quick => &QUICK,
    };
    if server::limitador().is_none() {
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
