//! The figures of one load on a sidecar, and their medians.

use super::sidecar::Sidecar;
use crate::figures::median;
use crate::generator::{From, Report};

/// The figures of a load, or the medians of several.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Figures {
    /// Decisions a second.
    pub(super) rate: f64,
    /// µs of CPU of the sidecar for each decision.
    pub(super) micros: f64,
    /// Latency in µs since a call was written.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// The part of the calls that was not decided.
    pub(super) undecided: f64,
    /// For each decision: counters that came back, and look-ups without a row.
    pub(super) fetched: f64,
    pub(super) in_vain: f64,
}

/// The counts of a sidecar before a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    micros: f64,
    fetched: f64,
    in_vain: f64,
}

impl Before {
    pub(super) async fn of(sidecar: &Sidecar) -> anyhow::Result<Before> {
        Ok(Before {
            fetched: sidecar.metric("cold_fetched_total").await.unwrap_or(0.0),
            in_vain: sidecar.metric("cold_fetched_in_vain_total").await.unwrap_or(0.0),
            // Last, so that the looks at metrics are not part of it.
            micros: sidecar.server.cpu_micros()?,
        })
    }

    /// The figures of a load that has run since then.
    pub(super) async fn figures(
        self,
        sidecar: &Sidecar,
        report: &Report,
    ) -> anyhow::Result<Figures> {
        let micros = sidecar.server.cpu_micros()? - self.micros;
        let after = Before::of(sidecar).await?;
        let decided = report.decided();
        Ok(Figures {
            rate: decided / report.seconds(),
            micros: micros / decided,
            p50: report.served_micros(From::Written, "p50"),
            p99: report.served_micros(From::Written, "p99"),
            undecided: 1.0 - decided / report.due(),
            fetched: (after.fetched - self.fetched) / decided,
            in_vain: (after.in_vain - self.in_vain) / decided,
        })
    }
}

impl Figures {
    /// The median of each figure.
    pub(super) fn medians(rounds: &[Figures]) -> Figures {
        let of =
            |figure: fn(&Figures) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        Figures {
            rate: of(|of| of.rate),
            micros: of(|of| of.micros),
            p50: of(|of| of.p50),
            p99: of(|of| of.p99),
            undecided: of(|of| of.undecided),
            fetched: of(|of| of.fetched),
            in_vain: of(|of| of.in_vain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_each_figure_alone() {
        let round = |rate, micros| Figures { rate, micros, ..Figures::default() };
        let rounds = [round(1.0, 9.0), round(3.0, 7.0), round(2.0, 8.0)];
        assert_eq!(Figures::medians(&rounds), round(2.0, 8.0));
    }
}
