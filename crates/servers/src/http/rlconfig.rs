//! `GET /rlconfig`: the limits in force, one a line, sorted. Plain limits are written as envoyproxy/ratelimit
//! does; settings that only Tidegate has follow with their names in the limits file.

use std::fmt::Write;
use tidegate_core::{DeniedHits, Enforcement, Period};
use tidegate_limits::describe;
use tidegate_limits::{Limit, Rule, RuleKind, Rules};

/// The usual length of a line.
const LINE_BYTES: usize = 96;

pub(super) fn text(rules: &Rules) -> String {
    let rules = rules.rules();
    let mut text = String::with_capacity(rules.len() * LINE_BYTES);
    for rule in rules {
        match &rule.kind {
            RuleKind::Unlimited { .. } => line(&mut text, rule, &rule.path, "unlimited"),
            RuleKind::Limits(limits) => {
                for limit in limits {
                    line(&mut text, rule, &limit.path, &amount(limit));
                }
            }
        }
    }
    text
}

fn line(text: &mut String, rule: &Rule, path: &str, amount: &str) {
    let is_shadow = rule.enforcement == Enforcement::Shadow;
    let is_quota = rule.enforcement == Enforcement::Quota;
    let key = joined(path);
    // Writing to a string cannot fail. A newline in a value must not start another line.
    let _ = writeln!(
        text,
        "{}: {amount}, shadow_mode: {is_shadow}, quota_mode: {is_quota}",
        key.replace(['\n', '\r'], "?")
    );
}

/// A path as envoyproxy/ratelimit joins it: `domain.key_value.key`, unescaped.
fn joined(path: &str) -> String {
    let parts = path.split('/').map(|part| unescaped(&part.replacen('=', "_", 1)));
    parts.collect::<Vec<_>>().join(".")
}

fn unescaped(part: &str) -> String {
    // The percent sign last, so that an escaped one is not unescaped twice.
    part.replace("%2F", "/").replace("%3D", "=").replace("%23", "#").replace("%25", "%")
}

fn amount(limit: &Limit) -> String {
    let quota = &limit.quota;
    let (requests, period) = (quota.requests(), quota.period());
    let unit = period.unit().filter(|_| matches!(period, Period::Span(_)));
    let mut text = match unit {
        Some(unit) => {
            format!("unit={} requests_per_unit={requests}", unit.name().to_uppercase())
        }
        None => format!("period={period} requests={requests}"),
    };
    if quota.algorithm() != "fixed_window" {
        let _ = write!(text, ", algorithm: {}", describe::algorithm(quota));
    }
    if let (Some(burst), Some(initial)) = (describe::burst(quota), describe::initial(quota)) {
        let _ = write!(text, ", burst: {burst}, initial: {initial}");
    }
    if let Some(borrow) = describe::borrow(quota).filter(|borrow| *borrow > 0) {
        let _ = write!(text, ", borrow: {borrow}");
    }
    if let Some(reset) = describe::reset(quota) {
        let _ = write!(text, ", reset: {reset}");
    }
    if let Some(zone) = &limit.timezone {
        let _ = write!(text, ", timezone: {zone}");
    }
    if limit.denied == DeniedHits::Count {
        text.push_str(", count_denied: true");
    }
    if !limit.replaces.is_empty() {
        let _ = write!(text, ", replaces: {}", limit.replaces.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_limits::{self as rules, SameDomain};

    #[track_caller]
    fn check(descriptors: &str, expected: &[&str]) {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("limits.yaml");
        std::fs::write(&path, format!("domain: d\ndescriptors:\n{descriptors}")).unwrap();
        let rules = rules::load(&path, SameDomain::Refuse).unwrap().rules;
        assert_eq!(text(&rules).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn plain_limits_are_written_as_by_envoyproxy_ratelimit() {
        check(
            "- {key: b, rate_limit: {unit: minute, requests_per_unit: 20}}\n\
             - key: a\n  value: x/y%=1\n  shadow_mode: true\n\
             \x20 rate_limit: {unit: Week, requests_per_unit: 1}\n\
             \x20 descriptors:\n  - {key: c, value: 'z*', quota_mode: true, \
             rate_limit: {unit: month, requests_per_unit: 9}}\n\
             - {key: free, rate_limit: {unlimited: true}}\n",
            &[
                "d.a_x/y%=1: unit=WEEK requests_per_unit=1, shadow_mode: true, quota_mode: false",
                "d.a_x/y%=1.c_z*: unit=MONTH requests_per_unit=9, shadow_mode: false, quota_mode: true",
                "d.b: unit=MINUTE requests_per_unit=20, shadow_mode: false, quota_mode: false",
                "d.free: unlimited, shadow_mode: false, quota_mode: false",
            ],
        );
    }

    #[test]
    fn other_settings_follow_with_their_names_in_the_file() {
        check(
            "- key: k\n  rate_limits:\n\
             \x20 - {name: short, algorithm: token_bucket, requests: 200, period: 10s, burst: 300, \
             initial: 100}\n\
             \x20 - {name: day, requests: 9, period: 1d, timezone: '+08:00', borrow: 3, count_denied: true}\n\
             \x20 - {name: hour, algorithm: sliding_buckets, exact: true, requests: 7, period: 1h}\n",
            &[
                "d.k#short: period=10s requests=200, algorithm: token_bucket, burst: 300, initial: 100, \
                 shadow_mode: false, quota_mode: false",
                "d.k#day: unit=DAY requests_per_unit=9, borrow: 3, timezone: +08:00, \
                 count_denied: true, shadow_mode: false, quota_mode: false",
                "d.k#hour: unit=HOUR requests_per_unit=7, algorithm: sliding_buckets, exact, \
                 shadow_mode: false, quota_mode: false",
            ],
        );
    }

    /// A newline in a value would make a line that looks like a limit.
    #[test]
    fn a_limit_is_one_line() {
        check(
            "- {key: k, value: \"v\\nd.x: \", rate_limit: {unit: day, requests_per_unit: 1}}\n",
            &["d.k_v?d.x: : unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false"],
        );
    }
}
