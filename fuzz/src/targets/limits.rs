//! Limits in YAML: rules or mistakes, the same in every run, each mistake at a position inside the file, with
//! limited work and memory.

use super::Target;
use super::xml_files::check_mistakes;
use crate::memory::Meter;
use crate::work::Bound;
use std::time::Duration;
use tidegate_cli::fuzzing;

pub(super) const TARGET: Target = Target { name: "limits", run, seeds };

/// Aliases may expand to far more than their length, and expressions are compiled.
const WORK: Bound = Bound { fixed: Duration::from_millis(50), nanos_per_byte: 10_000 };

fn run(input: &[u8]) {
    let meter = Meter::begin();
    let loaded = WORK.check(input.len(), || fuzzing::limits("limits.yaml", input));
    let allowed = (32 << 20) + 1_024 * input.len();
    assert!(meter.peak() <= allowed, "{} bytes for {}", meter.peak(), input.len());
    let again = fuzzing::limits("limits.yaml", input);
    match (loaded, again) {
        (Ok((rules, warnings)), Ok((again, warned))) => {
            assert_eq!(rules.domain_names().len(), 1, "one file is one domain");
            assert_eq!(format!("{:?}", rules.limits()), format!("{:?}", again.limits()));
            assert_eq!(rules.statistics(), again.statistics());
            assert!(rules.statistics().len() <= 64, "more statistics than there may be");
            assert_eq!(warnings, warned);
            for (_, message) in warnings {
                assert!(!message.is_empty() && message.len() < 4_000, "{message}");
            }
        }
        (Err(mistakes), Err(again)) => {
            assert_eq!(mistakes, again);
            check_mistakes(&mistakes, input);
        }
        _ => panic!("the same file is read in two ways"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let limits = [
        "{ unit: minute, requests_per_unit: 50 }",
        "{ algorithm: sliding_window, requests: 5000, period: 1h, timezone: +08:00 }",
        "{ algorithm: token_bucket, requests: 200, period: 10s, burst: 500 }",
        "{ algorithm: sliding_buckets, exact: true, unit: day, requests: 500 }",
        "{ requests: 1000000, period: 1mo, timezone: Europe/Berlin, borrow: 20000 }",
        "{ unlimited: true, name: n, replaces: [{ name: m }] }",
        "{ algorithm: first_hit_window, requests: 3, period: 250ms }",
    ];
    let matches = [
        "value: v",
        "match: { prefix: \"b-\" }",
        "match: { cidr: [10.0.0.0/8, \"::1/128\"] }",
        "match: { regex: \"^(a|b)+$\" }",
        "value: \"a*\"",
    ];
    let mut seeds = Vec::new();
    for (number, limit) in limits.iter().enumerate() {
        let matched = matches[number % matches.len()];
        seeds.push(format!(
            "domain: d{number}\ndescriptors:\n  - key: k\n    {matched}\n    rate_limit: {limit}\n"
        ));
    }
    seeds.push(
        "domain: &a d\ndescriptors:\n- key: k\n  shadow_mode: true\n  detailed_metric: true\n  \
         metadata: {a: [1, 2.5]}\n  rate_limits: [{name: 'n', unit: hour, requests: &r 5}, {name: m, \
         unit: day, requests: *r}]\n  descriptors: [{key: l, quota_mode: true, rate_limit: {unit: \
         second, requests_per_unit: 1}}]\n"
            .to_owned(),
    );
    seeds.push(
        "domain: d\nstatistics: [{name: calls, by: [app, 'user']}, {name: users, by: &b [app], \
         distinct: user}, {name: more, by: *b}]\n"
            .to_owned(),
    );
    seeds.push("domain: d\n".to_owned());
    seeds.push("l0: &l0 x\nl1: &l1 [*l0,*l0]\ndomain: *l1\n".to_owned());
    seeds.into_iter().map(String::into_bytes).collect()
}
