//! Pairs of measurements, without and with tiers: on hot counters, and on new ones, which have no row.

use super::aims::Aim;
use super::figures::{Before, Figures};
use super::sidecar::{STREAMS, Sidecar};
use super::{Plan, SUITE};
use crate::figures::median;
use crate::generator::{Order, Pace};
use crate::progress;
use crate::report::{Row, print_table};
use std::time::Duration;

/// Hot keys, as users in the suite `rls`.
const HOT: u64 = 10_000;
/// More keys than any measurement has calls.
const NEW: u64 = 100_000_000;

/// What is measured.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    keys: u64,
    order: Order,
    duration: Duration,
    /// What a decision with tiers may cost of one without.
    at_most: f64,
}

/// Both sidecars in turns: without and with, then with and without, and so on.
pub(super) async fn measure(
    plan: &Plan,
    sidecars: [&Sidecar; 2],
    aims: &mut Vec<Aim>,
) -> anyhow::Result<Vec<Row>> {
    let hot = Case {
        name: "hot keys",
        keys: HOT,
        order: Order::Random,
        duration: plan.hot,
        at_most: 1.03,
    };
    let new = Case {
        name: "new keys",
        keys: NEW,
        order: Order::InTurn,
        duration: plan.new,
        at_most: 1.3,
    };
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for case in [hot, new] {
        let rounds = case.measure(plan, sidecars).await?;
        let [without, with] = rounds.each_ref().map(|rounds| Figures::medians(rounds));
        let pairs = rounds[0].iter().zip(&rounds[1]);
        let ratios: Vec<f64> = pairs.map(|(without, with)| with.micros / without.micros).collect();
        let ratio = median(&ratios);
        for (who, of, ratio) in [("without", &without, None), ("with tiers", &with, Some(ratio))] {
            lines.push(line(&format!("{}, {who}", case.name), of, ratio));
        }
        let what = format!("{}: CPU a decision with tiers, of that without", case.name);
        aims.push(Aim { what, figure: ratio, at_most: case.at_most });
        if case.order == Order::InTurn {
            let what = "new keys that were looked up in vain, percent".to_owned();
            aims.push(Aim { what, figure: 100.0 * with.in_vain, at_most: 1.0 });
            rows.push(Row::new(SUITE, case.name, ("in_vain", "share"), with.in_vain));
        }
        let beside = |metric, of: fn(&Figures) -> f64| {
            let row = Row::new(SUITE, case.name, metric, of(&with));
            row.beside(("without tiers", of(&without)))
        };
        rows.push(beside(("cpu", "us/decision"), |of| of.micros));
        rows.push(beside(("decisions", "1/s"), |of| of.rate));
        rows.push(Row::new(SUITE, case.name, ("cpu_ratio", "1"), ratio));
    }
    progress::clear();
    let title = format!(
        "A sidecar on 1 core, without tiers and with those in SQLite, which has {} counters, as fast as it answers; medians of {} \
         pairs in turns, of {:?} on hot keys and {:?} on new ones; CPU of the sidecar alone; latency in µs; the ratio is the \
         median of those of the pairs",
        plan.counters(),
        plan.pairs,
        plan.hot,
        plan.new
    );
    let header =
        ["case", "µs of CPU a decision", "ratio", "decisions a second", "p50", "p99", "in vain, %"];
    print_table(&title, &header, &lines);
    Ok(rows)
}

impl Case {
    async fn measure(
        &self,
        plan: &Plan,
        sidecars: [&Sidecar; 2],
    ) -> anyhow::Result<[Vec<Figures>; 2]> {
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..=plan.pairs {
            progress::show(&format!("{}: pair {round} of {}", self.name, plan.pairs));
            let turns = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for turn in turns {
                let figures = self.round(round, sidecars[turn]).await?;
                // The first round is the warm-up.
                if round > 0 {
                    rounds[turn].push(figures);
                }
            }
        }
        Ok(rounds)
    }

    async fn round(&self, round: usize, sidecar: &Sidecar) -> anyhow::Result<Figures> {
        let group = match self.order {
            Order::InTurn => format!("new{round}"),
            _ => "hot".to_owned(),
        };
        let before = Before::of(sidecar).await?;
        let pace = Pace::Closed { streams: STREAMS };
        let report = sidecar.calls(&group, self.keys, self.order, pace, self.duration).await?;
        before.figures(sidecar, &report).await
    }
}

fn line(name: &str, figures: &Figures, ratio: Option<f64>) -> Vec<String> {
    vec![
        name.to_owned(),
        format!("{:.3}", figures.micros),
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        format!("{:.0}", figures.rate),
        format!("{:.0}", figures.p50),
        format!("{:.0}", figures.p99),
        ratio.map_or_else(|| "-".to_owned(), |_| format!("{:.2}", 100.0 * figures.in_vain)),
    ]
}
