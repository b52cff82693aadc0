//! The times of answered calls, in buckets, by endpoint.

use crate::counter::Counter;
use crate::snapshot::{Family, Kind, Labels, Number, Samples, labels};
use std::fmt;
use std::time::Duration;

/// The upper bounds of all buckets but the last, which has none: those of Prometheus' clients, and some below them,
/// where nearly all calls are.
pub(crate) const BUCKETS_SECS: [f64; 16] = [
    0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
/// Names of families: calls by endpoint and bucket, and their time in nanoseconds.
pub(crate) const TIMES: &str = "answer_seconds";
pub(crate) const TIMES_SUM: &str = "answer_seconds_sum";

const ENDPOINTS: [&str; 3] = ["grpc", "frs", "http"];

/// Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Times([Histogram; ENDPOINTS.len()]);

#[derive(Debug, Clone, Default)]
struct Histogram {
    buckets: [Counter; BUCKETS_SECS.len() + 1],
    nanos: Counter,
}

impl Times {
    /// Counts calls that took at most this long each.
    pub(crate) fn note(&self, endpoint: &str, calls: u64, time: Duration) {
        let index = ENDPOINTS.iter().position(|each| *each == endpoint);
        let Some(Histogram { buckets, nanos }) = index.and_then(|index| self.0.get(index)) else {
            return;
        };
        let seconds = time.as_secs_f64();
        let bucket = BUCKETS_SECS.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = buckets.get(bucket.unwrap_or(BUCKETS_SECS.len())) {
            bucket.inc_by(calls);
        }
        let each = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanos.inc_by(each.saturating_mul(calls));
    }

    pub(crate) fn families(&self) -> [Family; 2] {
        let each = || ENDPOINTS.into_iter().zip(&self.0);
        // Two digits, so that they sort as numbers.
        let named = |endpoint, index: usize| {
            labels([("door", endpoint), ("bucket", &*format!("{index:02}"))])
        };
        let counts = each().flat_map(|(endpoint, of)| {
            let buckets = of.buckets.iter().enumerate();
            buckets.map(move |(index, count)| (named(endpoint, index), count.value()))
        });
        let sums: Samples =
            each().map(|(endpoint, of)| (labels([("door", endpoint)]), of.nanos.value())).collect();
        let help = "Time from the reading of a call to its answer, by endpoint";
        [
            Family::new(TIMES, help, Kind::Histogram, counts.collect()),
            Family::new(TIMES_SUM, "Time of calls", Kind::Part, sums),
        ]
    }
}

/// Writes the histogram of each endpoint that has answered, from its counts and sums.
pub(crate) fn write(
    text: &mut String,
    name: &str,
    (counts, sums): (&Family, Option<&Family>),
    labels_of: impl Fn(&str) -> Labels,
) -> fmt::Result {
    for endpoint in ENDPOINTS {
        let is_of = |of: &Labels| of.iter().any(|(name, door)| name == "door" && door == endpoint);
        let counts: Vec<&Number> =
            counts.samples().filter(|(of, _)| is_of(of)).map(|(_, count)| count).collect();
        if counts.iter().all(|count| count.real() == 0.0) {
            continue;
        }
        let with = |bound: &str| {
            let mut labels = labels_of(endpoint);
            labels.push(("le".into(), bound.to_owned()));
            labels
        };
        let mut total = Number::Whole(0);
        let bounds = BUCKETS_SECS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            total = total.plus(*count);
            Family::write_sample(text, &format!("{name}_bucket"), &with(&bound), &total)?;
        }
        let mut sums = sums.into_iter().flat_map(Family::samples).filter(|(of, _)| is_of(of));
        let seconds = Number::Real(sums.next().map_or(0.0, |(_, nanos)| nanos.real() / 1e9));
        Family::write_sample(text, &format!("{name}_sum"), &labels_of(endpoint), &seconds)?;
        Family::write_sample(text, &format!("{name}_count"), &labels_of(endpoint), &total)?;
    }
    Ok(())
}
