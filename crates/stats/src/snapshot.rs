//! The values of all metrics at one moment: sent from worker to supervisor, added up there, and encoded as
//! OpenMetrics text.

use crate::times;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Before the name of each family in the text.
const PREFIX: &str = "tidegate_";
/// Bytes for the value and the punctuation of a sample: 20 digits at most, and 12 of each label in JSON.
const SAMPLE_BYTES: usize = 48;

/// The metric families of one process, or of several added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub(crate) families: Vec<Family>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Family {
    name: Cow<'static, str>,
    help: Cow<'static, str>,
    kind: Kind,
    #[serde(with = "pairs")]
    samples: Samples,
}

/// The labels of a sample: names and values.
pub type Label = [(Cow<'static, str>, String)];

/// Names and values.
pub(crate) type Labels = Vec<(Cow<'static, str>, String)>;
pub(crate) type Samples = BTreeMap<Labels, Number>;

/// The type of a family, and how the values of several processes combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Added up, including processes that have ended.
    Counter,
    /// Counts what all processes do alike, such as reading the limits: one of them is reported.
    CommonCounter,
    /// Added up over the processes that run.
    Gauge,
    /// The lowest of the processes that run is reported, such as whether the limits are current.
    LowestGauge,
    /// Calls by bucket, added up; [`crate::times`] has the bounds.
    Histogram,
    /// Added up like a counter, and only a part of what pages show.
    Part,
}

impl Kind {
    /// The name of the type, and what follows the name of the family.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Counter | Kind::CommonCounter => ("counter", "_total"),
            Kind::Histogram => ("histogram", ""),
            Kind::Gauge | Kind::LowestGauge | Kind::Part => ("gauge", ""),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

impl Number {
    pub(crate) fn real(self) -> f64 {
        match self {
            Number::Whole(number) => number as f64,
            Number::Real(number) => number,
        }
    }

    /// Without a fraction.
    fn whole(self) -> u64 {
        match self {
            Number::Whole(number) => number,
            Number::Real(number) => number as u64,
        }
    }

    pub(crate) fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Whole(one), Number::Whole(two)) => Number::Whole(one.saturating_add(two)),
            (one, two) => Number::Real(one.real() + two.real()),
        }
    }

    fn min(self, other: Number) -> Number {
        if other.real() < self.real() { other } else { self }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => write!(f, "{number}"),
            // `{:?}` keeps the fraction of 0.0.
            Number::Real(number) => write!(f, "{number:?}"),
        }
    }
}

/// The labels of a sample.
pub(crate) fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    labels.map(|(name, value)| (name.into(), value.to_owned())).into()
}

impl Family {
    pub(crate) fn new(
        name: impl Into<Cow<'static, str>>,
        help: &'static str,
        kind: Kind,
        samples: Samples,
    ) -> Family {
        Family { name: name.into(), help: help.into(), kind, samples }
    }

    /// A family of one sample without labels.
    pub(crate) fn single(
        name: impl Into<Cow<'static, str>>,
        help: &'static str,
        kind: Kind,
        value: Number,
    ) -> Family {
        Family::new(name, help, kind, BTreeMap::from([(Labels::new(), value)]))
    }

    fn add(&mut self, other: &Family) {
        for (labels, value) in &other.samples {
            let Some(sum) = self.samples.get_mut(labels) else {
                self.samples.insert(labels.clone(), *value);
                continue;
            };
            *sum = match self.kind {
                Kind::Counter | Kind::Gauge | Kind::Histogram | Kind::Part => sum.plus(*value),
                Kind::LowestGauge => sum.min(*value),
                Kind::CommonCounter => *sum,
            };
        }
    }

    fn write(&self, text: &mut String, all: &Snapshot) -> fmt::Result {
        let name = self.full_name();
        let (kind, suffix) = self.kind.words();
        writeln!(text, "# HELP {name} {}.\n# TYPE {name} {kind}", self.help)?;
        self.write_samples(text, &format!("{name}{suffix}"), all)
    }

    /// The same in the form of Prometheus, where the type names the sample.
    pub(crate) fn write_prometheus(&self, text: &mut String, all: &Snapshot) -> fmt::Result {
        let (kind, suffix) = self.kind.words();
        let sample = format!("{}{suffix}", self.full_name());
        writeln!(text, "# HELP {sample} {}.\n# TYPE {sample} {kind}", self.help)?;
        self.write_samples(text, &sample, all)
    }

    /// Figures of processes have the names that they have everywhere.
    fn full_name(&self) -> String {
        let prefix = if self.name.starts_with("process_") { "" } else { PREFIX };
        format!("{prefix}{}", self.name)
    }

    fn write_samples(&self, text: &mut String, name: &str, all: &Snapshot) -> fmt::Result {
        if self.kind == Kind::Histogram {
            return times::write(text, name, (self, all.family(times::TIMES_SUM)), |door| {
                labels([("door", door)])
            });
        }
        let mut samples = self.samples.iter();
        samples.try_for_each(|(labels, value)| Family::write_sample(text, name, labels, value))
    }

    pub(crate) fn write_sample(
        text: &mut String,
        name: &str,
        labels: &Labels,
        value: &Number,
    ) -> fmt::Result {
        text.write_str(name)?;
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            write!(text, "{before}{label}=\"{}\"", escaped(value))?;
        }
        let end = if labels.is_empty() { "" } else { "}" };
        writeln!(text, "{end} {value}")
    }

    /// With the samples of one endpoint.
    pub(crate) fn of_door(&self, endpoint: &str) -> Family {
        let is_of = |of: &Labels| of.iter().any(|(name, door)| name == "door" && door == endpoint);
        let samples = self.samples.iter().filter(|(of, _)| is_of(of));
        let samples = samples.map(|(labels, value)| (labels.clone(), *value)).collect();
        Family { samples, ..self.clone() }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether it is on a page, by itself and with samples.
    pub(crate) fn is_shown(&self) -> bool {
        self.kind != Kind::Part && !self.samples.is_empty()
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = (&Labels, &Number)> {
        self.samples.iter()
    }
}

impl Snapshot {
    /// Adds the snapshot of another running process.
    pub fn add(&mut self, other: &Snapshot) {
        self.add_where(other, |_| true);
    }

    /// Adds the counters of a process that has ended; its gauges end with it.
    pub fn add_ended(&mut self, other: &Snapshot) {
        self.add_where(other, |kind| matches!(kind, Kind::Counter | Kind::Histogram | Kind::Part));
    }

    /// Adds the counters of processes that have ended, of families that are here.
    pub fn add_ended_of_same(&mut self, ended: &Snapshot) {
        for ours in &mut self.families {
            let theirs = ended.families.iter().find(|theirs| theirs.name == ours.name);
            if let Some(theirs) = theirs.filter(|theirs| theirs.kind == Kind::Counter) {
                ours.add(theirs);
            }
        }
    }

    fn add_where(&mut self, other: &Snapshot, wanted: impl Fn(Kind) -> bool) {
        for theirs in other.families.iter().filter(|family| wanted(family.kind)) {
            match self.families.iter_mut().find(|ours| ours.name == theirs.name) {
                Some(ours) => ours.add(theirs),
                None => self.families.push(theirs.clone()),
            }
        }
    }

    /// The samples of a family by their labels; of a name that there is not, none.
    pub fn samples<'s>(&'s self, family: &str) -> impl Iterator<Item = (&'s Label, u64)> {
        let samples = self.family(family).into_iter().flat_map(Family::samples);
        samples.map(|(labels, value)| (&labels[..], value.whole()))
    }

    /// The value of a family without labels, if there is one.
    pub fn value(&self, family: &str) -> Option<u64> {
        self.samples(family).next().map(|(_, value)| value)
    }

    pub(crate) fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.is_named(name))
    }

    /// The OpenMetrics text. Families without samples are left out.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for family in self.families.iter().filter(|family| family.is_shown()) {
            // Writing to a string does not fail.
            let _ = family.write(&mut text, self);
        }
        text.push_str("# EOF\n");
        text
    }

    /// About its size in bytes, as text or as JSON before escaping.
    pub fn bytes(&self) -> usize {
        let label = |(name, value): &(Cow<'static, str>, String)| name.len() + value.len();
        let sample = |labels: &Labels| SAMPLE_BYTES + labels.iter().map(label).sum::<usize>();
        self.families.iter().map(|family| family.samples.keys().map(sample).sum::<usize>()).sum()
    }
}

/// A label value with `\`, `"` and line ends as OpenMetrics writes them.
fn escaped(value: &str) -> Cow<'_, str> {
    if value.contains(['\\', '"', '\n']) {
        value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
    } else {
        value.into()
    }
}

/// Samples as a list of pairs: keys of a JSON object are strings.
mod pairs {
    use super::Samples;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        samples: &Samples,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(samples)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Samples, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor() -> Snapshot {
        let nodes = Samples::from([(labels([("class", "narrow")]), Number::Whole(100))]);
        let one = Number::Whole(1);
        Snapshot {
            families: vec![
                Family::new("answers", "Calls answered", Kind::Counter, Samples::new()),
                Family::single("config_load_success", "Times", Kind::CommonCounter, one),
                Family::single("config_current", "Current", Kind::LowestGauge, one),
                Family::new("store_nodes", "Nodes", Kind::Gauge, nodes),
            ],
        }
    }

    fn worker(ok: u64, odd: u64, current: u64, open: u64) -> Snapshot {
        let code = |code| labels([("code", code), ("door", "grpc")]);
        let answers =
            [(code("ok"), Number::Whole(ok)), (code("} 7 \\ \"x\"\n 9"), Number::Whole(odd))];
        let whole = Number::Whole;
        Snapshot {
            families: vec![
                Family::new("answers", "Calls answered", Kind::Counter, answers.into()),
                Family::single("config_load_success", "Times", Kind::CommonCounter, whole(4)),
                Family::single("config_current", "Current", Kind::LowestGauge, whole(current)),
                Family::single("blocked_seconds", "Time", Kind::Counter, Number::Real(0.5)),
                Family::single("connections", "Open", Kind::Gauge, whole(open)),
            ],
        }
    }

    #[test]
    fn counters_are_added_and_the_lowest_standing_is_reported() {
        let mut sum = supervisor();
        sum.add(&worker(3, 1, 1, 2));
        sum.add(&worker(4, 0, 0, 5));
        sum.add_ended(&worker(100, 10, 0, 9));
        let expected = "\
# HELP tidegate_answers Calls answered.
# TYPE tidegate_answers counter
tidegate_answers_total{code=\"ok\",door=\"grpc\"} 107
tidegate_answers_total{code=\"} 7 \\\\ \\\"x\\\"\\n 9\",door=\"grpc\"} 11
# HELP tidegate_config_load_success Times.
# TYPE tidegate_config_load_success counter
tidegate_config_load_success_total 1
# HELP tidegate_config_current Current.
# TYPE tidegate_config_current gauge
tidegate_config_current 0
# HELP tidegate_store_nodes Nodes.
# TYPE tidegate_store_nodes gauge
tidegate_store_nodes{class=\"narrow\"} 100
# HELP tidegate_blocked_seconds Time.
# TYPE tidegate_blocked_seconds counter
tidegate_blocked_seconds_total 1.5
# HELP tidegate_connections Open.
# TYPE tidegate_connections gauge
tidegate_connections 7
# EOF
";
        assert_eq!(sum.text(), expected);
        assert_eq!(Snapshot::default().text(), "# EOF\n");
    }

    #[test]
    fn a_snapshot_survives_json() {
        let mut snapshot = worker(u64::MAX, 0, 1, 2);
        let zero = Family::single("zero_seconds", "Time", Kind::Counter, Number::Real(0.0));
        snapshot.families.push(zero);
        let json = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
    }

    /// Workers refuse to send a snapshot that is too large by this number.
    #[test]
    fn the_size_bounds_text_and_json() {
        let rules = (0..1_000).map(|rule| (labels([("rule", &*format!("d/k={rule}"))]), u64::MAX));
        let samples = rules.map(|(labels, value)| (labels, Number::Whole(value))).collect();
        let family = Family::new("total_hits", "Hits", Kind::Counter, samples);
        let snapshot = Snapshot { families: vec![family] };
        let (text, json) = (snapshot.text().len(), serde_json::to_string(&snapshot).unwrap().len());
        let bytes = snapshot.bytes();
        assert!(text <= bytes + bytes / 4 && json <= bytes + bytes / 4, "{text} {json} {bytes}");
        assert!(bytes <= 2 * json, "{json} {bytes}");
    }
}
