//! Statistics: the median of rounds, and the percentiles of latencies.

use hdrhistogram::Histogram;
use std::time::Duration;

/// The median: the upper of two middle values, NaN without values.
pub(crate) fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The reported percentiles and the names of their metrics.
pub(crate) const PERCENTILES: [(&str, f64); 3] =
    [("latency_p50", 50.0), ("latency_p99", 99.0), ("latency_p99.9", 99.9)];

/// Latencies of single decisions, with three digits, up to ten seconds.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    const LONGEST: Duration = Duration::from_secs(10);

    pub(crate) fn new() -> anyhow::Result<Latencies> {
        Ok(Latencies(Histogram::new_with_bounds(1, Self::LONGEST.as_nanos() as u64, 3)?))
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(took.as_nanos() as u64);
    }

    /// Adds the latencies of another thread.
    pub(crate) fn add(&mut self, other: &Latencies) -> anyhow::Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// A percentile in µs.
    pub(crate) fn percentile_micros(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_in_any_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 3.0);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[track_caller]
    fn check(latencies: &Latencies, percent: f64, expected_micros: f64) {
        let micros = latencies.percentile_micros(percent);
        let error = (micros - expected_micros).abs() / expected_micros;
        // With three digits. The rank of a percentile is rounded up.
        assert!(error < 0.002, "p{percent}: {micros} µs, not {expected_micros} µs");
    }

    #[test]
    fn percentiles_count_decisions_and_come_in_micros() {
        let mut latencies = Latencies::new().unwrap();
        for micros in 1..=1_000 {
            latencies.record(Duration::from_micros(micros));
        }
        check(&latencies, 50.0, 500.0);
        check(&latencies, 99.0, 990.0);
        check(&latencies, 99.9, 999.0);
    }

    #[test]
    fn threads_add_up() {
        let mut all = Latencies::new().unwrap();
        for micros in [1, 100] {
            let mut one = Latencies::new().unwrap();
            for _ in 0..1_000 {
                one.record(Duration::from_micros(micros));
            }
            all.add(&one).unwrap();
        }
        check(&all, 50.0, 1.0);
        check(&all, 50.1, 100.0);
    }

    #[test]
    fn a_time_beyond_the_longest_counts_as_the_longest() {
        let mut latencies = Latencies::new().unwrap();
        latencies.record(Duration::from_secs(3_600));
        check(&latencies, 50.0, Latencies::LONGEST.as_micros() as f64);
    }
}
