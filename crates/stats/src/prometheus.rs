//! The page for dashboards of envoyproxy/ratelimit: its metrics under the names and labels that the usual mapping of
//! statsd-exporter gives them, followed by Tidegate's own, in the text form of Prometheus.
//!
//! Derives all of it from a snapshot. A rule is its domain and one label for each level, `key1="KEY_VALUE"`, with `_` for
//! the characters that statsd has for itself.

use crate::snapshot::{Family, Labels, Number, Samples, Snapshot, labels};
use crate::times::{self, TIMES, TIMES_SUM};
use std::fmt::Write;
use tidegate_limits::unescaped;

/// Before each name.
const PREFIX: &str = "ratelimit_service_";
const METHOD: &str = "ShouldRateLimit";
/// Counts of rules that have an equivalent.
const RULE_FAMILIES: [&str; 5] =
    ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];

impl Snapshot {
    /// The text of the page.
    pub fn prometheus_text(&self) -> String {
        let mut text = String::new();
        for name in RULE_FAMILIES {
            let Some(family) = self.family(name) else { continue };
            let samples = of_rules(family);
            write(&mut text, &format!("rate_limit_{name}"), "counter", &samples);
        }
        let answers = self.sum("answers", None);
        write(&mut text, "total_requests", "counter", &of_method(answers));
        self.write_times(&mut text);
        // The counters are not to blame for limits that are still to come.
        let awaited = self.sum("undecided", Some("limits_awaited"));
        let undecided = self.sum("undecided", None).saturating_sub(awaited);
        let others = self.sum("answers", Some("error")).saturating_sub(undecided);
        let errors = [("redis_error", undecided), ("service_error", others)];
        let errors =
            errors.map(|(kind, count)| (labels([("err_type", kind)]), Number::Whole(count)));
        write(&mut text, "should_rate_limit_error", "counter", &errors.into());
        for name in ["config_load_success", "config_load_error"] {
            let samples = Samples::from([(Labels::new(), Number::Whole(self.sum(name, None)))]);
            write(&mut text, name, "counter", &samples);
        }
        for family in self.families.iter().filter(|family| family.is_shown()) {
            // Writing to a string does not fail.
            let _ = family.write_prometheus(&mut text, self);
        }
        text
    }

    /// The histogram of the times of rate limit calls, under that name.
    fn write_times(&self, text: &mut String) {
        const NAME: &str = "response_time_seconds";
        let Some(counts) = self.family(TIMES) else { return };
        let counts = &counts.of_door("grpc");
        let _ = writeln!(text, "# TYPE {PREFIX}{NAME} histogram");
        let times = (counts, self.family(TIMES_SUM));
        let method = |_: &str| labels([("grpc_method", METHOD)]);
        let _ = times::write(text, &format!("{PREFIX}{NAME}"), times, method);
    }

    /// The sum of a family, or of its samples with this code or cause.
    fn sum(&self, name: &str, code: Option<&str>) -> u64 {
        let samples = self.family(name).into_iter().flat_map(Family::samples);
        let is_wanted =
            |labels: &Labels| code.is_none_or(|code| labels.iter().any(|(_, value)| value == code));
        let wanted = samples.filter(|(labels, _)| is_wanted(labels));
        wanted.fold(0, |sum, (_, value)| match value {
            Number::Whole(value) => sum.saturating_add(*value),
            Number::Real(_) => sum,
        })
    }
}

fn of_method(count: u64) -> Samples {
    Samples::from([(labels([("grpc_method", METHOD)]), Number::Whole(count))])
}

/// The counts of rules by domain and keys. Rules that differ only in characters that become `_` are added up.
fn of_rules(family: &Family) -> Samples {
    let mut samples = Samples::new();
    for (of, value) in family.samples() {
        let Some((_, path)) = of.iter().find(|(label, _)| label == "rule") else { continue };
        let mut parts = path.split('/');
        let mut named = labels([("domain", &word(parts.next().unwrap_or_default()))]);
        for (level, part) in (1..).zip(parts) {
            // Of several limits, the name follows.
            let part = part.replacen('=', "_", 1).replace('#', "_");
            named.push((format!("key{level}").into(), word(&part)));
        }
        let sum = samples.entry(named).or_insert(Number::Whole(0));
        *sum = sum.plus(*value);
    }
    samples
}

/// A part of a path as a word of statsd.
fn word(part: &str) -> String {
    unescaped(part).replace([':', '|', '.'], "_")
}

fn write(text: &mut String, name: &str, kind: &str, samples: &Samples) {
    if samples.is_empty() {
        return;
    }
    let _ = writeln!(text, "# TYPE {PREFIX}{name} {kind}");
    for (labels, value) in samples {
        let _ = Family::write_sample(text, &format!("{PREFIX}{name}"), labels, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Kind;
    use crate::times::Times;
    use std::time::Duration;

    fn times() -> [Family; 2] {
        let times = Times::default();
        for micros in [1, 99, 3_000, 60_000_000] {
            times.note("grpc", 1, Duration::from_micros(micros));
        }
        times.note("http", 7, Duration::from_micros(3_000));
        times.families()
    }

    fn snapshot() -> Snapshot {
        let rule = |path: &str, count| (labels([("rule", path)]), Number::Whole(count));
        let hits = [
            rule("eg/http/httproute%2Fdefault%2Fapi%2Frule%2F0=x/rule-0-match-0=rule-0-match-0", 7),
            rule("eg/http/client=10.0.0.0%2F8", 1),
            rule("plain/key", 2),
            rule("plain/key=a.b", 3),
            rule("plain/key=a:b", 4),
        ];
        let hits = hits.into_iter().collect();
        let code = |code, count| (labels([("code", code)]), Number::Whole(count));
        let answers = [code("ok", 5), code("over_limit", 2), code("error", 3)].into();
        let cause = |cause| (labels([("cause", cause)]), Number::Whole(1));
        let busy = [cause("busy"), cause("limits_awaited")].into();
        Snapshot {
            families: vec![
                Family::new("total_hits", "Hits", Kind::Counter, hits),
                Family::new("answers", "Calls", Kind::Counter, answers),
                Family::new("undecided", "Undecided", Kind::Counter, busy),
                Family::single("config_load_error", "Times", Kind::CommonCounter, Number::Whole(6)),
                Family::single("store_nodes", "Nodes", Kind::Gauge, Number::Whole(9)),
            ]
            .into_iter()
            .chain(times())
            .collect(),
        }
    }

    #[test]
    fn the_names_and_labels_are_those_of_the_usual_mapping() {
        let text = snapshot().prometheus_text();
        for line in [
            "# TYPE ratelimit_service_rate_limit_total_hits counter",
            "ratelimit_service_rate_limit_total_hits{domain=\"plain\",key1=\"key\"} 2",
            // Both have the same name there.
            "ratelimit_service_rate_limit_total_hits{domain=\"plain\",key1=\"key_a_b\"} 7",
            "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 10",
            "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 1",
            "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 2",
            "# TYPE ratelimit_service_response_time_seconds histogram",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.0001\"} 2",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.005\"} 3",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"10\"} 3",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"} 4",
            "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 4",
            "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"} 60.0031",
            "# TYPE tidegate_answer_seconds histogram",
            "tidegate_answer_seconds_bucket{door=\"grpc\",le=\"0.00001\"} 1",
            "tidegate_answer_seconds_bucket{door=\"http\",le=\"0.001\"} 0",
            "tidegate_answer_seconds_bucket{door=\"http\",le=\"0.005\"} 7",
            "tidegate_answer_seconds_count{door=\"http\"} 7",
            "ratelimit_service_config_load_error 6",
            "# TYPE tidegate_answers_total counter",
            "tidegate_answers_total{code=\"ok\"} 5",
            "# TYPE tidegate_store_nodes gauge",
            "tidegate_store_nodes 9",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        // It is no part of this form.
        assert!(!text.contains("# EOF"));
        assert!(
            !text.contains("# TYPE tidegate_answer_seconds_sum"),
            "a part is not shown by itself"
        );
        assert!(!text.contains("door=\"frs\""), "nothing was answered there");
    }

    #[test]
    fn the_labels_of_envoy_gateways_dashboard_are_found() {
        let path = "default%2Feg%2Fhttp/httproute%2Fdefault%2Fapi%2Frule%2F0%2Fmatch%2F0%2Fratelimit_example=\
                    httproute%2Fdefault%2Fapi%2Frule%2F0%2Fmatch%2F0%2Fratelimit_example/\
                    rule-0-match-0=rule-0-match-0";
        let hits = [(labels([("rule", path)]), Number::Whole(4))].into();
        let families = vec![Family::new("near_limit", "Hits", Kind::Counter, hits)];
        let text = Snapshot { families }.prometheus_text();
        let name = "httproute/default/api/rule/0/match/0/ratelimit_example";
        let line = format!(
            "ratelimit_service_rate_limit_near_limit{{domain=\"default/eg/http\",key1=\"{name}_{name}\",\
             key2=\"rule-0-match-0_rule-0-match-0\"}} 4"
        );
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
