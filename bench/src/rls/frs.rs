//! The FRS door, alone: pairs of Query and Update at a fixed rate, and as fast as they go.

use super::generator::{Ask, From, Pace, load};
use super::pace::{line, medians, rows_alone};
use super::server::Server;
use super::{Cores, Plan, SUITE};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let server = Server::start_frs(Cores::Two).await?;
    let ask = |pace| load(server.address, Ask::FrsPairs, pace, plan.duration, Cores::Two);
    let (mut paced, mut micros, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=plan.rounds {
        progress::show(&format!("FRS, round {round} of {}", plan.rounds));
        let before = server.cpu_micros()?;
        let report = ask(Pace::Open { rate: plan.pairs }).await?;
        let used = server.cpu_micros()? - before;
        let fastest = ask(Pace::Closed { streams: 1 }).await?;
        // The first was the warm-up.
        if round > 0 {
            micros.push(used / report.pairs());
            most.push(fastest.pairs() / fastest.seconds());
            paced.push(report);
        }
    }
    progress::clear();
    let figures = medians(&paced, From::Due);
    let case = format!("{} FRS pairs a second", plan.pairs);
    let title = format!(
        "FRS, Query then Update, 2 cores shared with the generator: latency in µs since a pair was due, \
         medians of {} rounds of {:?}; {:.1} µs of the server's CPU a pair; {:.0} pairs a second as fast \
         as they go",
        plan.rounds,
        plan.duration,
        median(&micros),
        median(&most)
    );
    let header = ["rate", "p50", "p99", "p99.9", "p99.99", "not decided"];
    print_table(&title, &header, &[line(&case, &figures, &paced)]);
    let mut rows = rows_alone(&case, &figures);
    rows.push(Row::new(SUITE, &case, ("cpu", "us/pair"), median(&micros)));
    rows.push(Row::new(SUITE, "FRS as fast as it goes", ("pairs", "1/s"), median(&most)));
    Ok(rows)
}
