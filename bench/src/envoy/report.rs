//! The cases as a table, as rows of results, and compared with the design's targets.

use super::case::{Case, Setup};
use super::{Plan, SUITE};
use crate::report::{Row, print_table};

pub(super) fn report(plan: &Plan, cases: &[Case]) -> Vec<Row> {
    let title = format!(
        "CPU µs per proxied request, median of {} rounds of {}, one worker; latency in µs, closed \
         loop of 16; Envoy's memory in MiB",
        plan.rounds, plan.requests
    );
    let header = [
        "case",
        "Envoy",
        "sidecar",
        "both",
        "above no filter",
        "decided in Envoy",
        "p50",
        "p99",
        "memory",
    ];
    let lines: Vec<Vec<String>> = cases.iter().map(|case| line(case, cases)).collect();
    print_table(&title, &header, &lines);
    for target in targets(cases) {
        println!("{target}");
    }
    println!();
    cases.iter().flat_map(|case| rows(case, cases)).collect()
}

fn of(cases: &[Case], kind: Setup) -> Option<&Case> {
    cases.iter().find(|case| case.kind == kind)
}

/// µs of both processes per request beyond those without a filter.
fn above(case: &Case, cases: &[Case]) -> f64 {
    of(cases, Setup::NoFilter).map_or(f64::NAN, |none| case.both_micros() - none.both_micros())
}

fn line(case: &Case, cases: &[Case]) -> Vec<String> {
    let one = |value: f64| format!("{value:.1}");
    let whole = |value: f64| format!("{value:.0}");
    let share = |share: f64| format!("{:.2} %", share * 100.0);
    vec![
        case.kind.name().to_owned(),
        one(case.envoy_micros()),
        one(case.sidecar_micros()),
        one(case.both_micros()),
        one(above(case, cases)),
        case.local_share().map(share).unwrap_or_default(),
        whole(case.latency_micros(50.0)),
        whole(case.latency_micros(99.0)),
        whole(case.resident_mebibytes()),
    ]
}

fn rows(case: &Case, cases: &[Case]) -> Vec<Row> {
    let native = match case.kind {
        Setup::LeasesOfThree
        | Setup::LeasesOfThreeWithHeaders
        | Setup::LeasesOfThreeWithConditions => Setup::NativeOfThree,
        _ => Setup::NativeOfOne,
    };
    let p50 = |case: &Case| case.latency_micros(50.0);
    let p99 = |case: &Case| case.latency_micros(99.0);
    let above = |case: &Case| above(case, cases);
    // Beside conditions, the module without them.
    let without = match case.kind {
        Setup::LeasesOfThreeWithConditions => Setup::LeasesOfThree,
        _ => Setup::NoFilter,
    };
    type Figure<'a> = &'a dyn Fn(&Case) -> f64;
    let compared: [(_, _, Figure<'_>); 6] = [
        (("cpu_envoy", "us/request"), without, &Case::envoy_micros),
        (("cpu_envoy_and_sidecar", "us/request"), without, &Case::both_micros),
        (("cpu_above_no_filter", "us/request"), native, &above),
        (("latency_p50", "us"), without, &p50),
        (("latency_p99", "us"), without, &p99),
        (("resident_memory", "MiB"), without, &Case::resident_mebibytes),
    ];
    let row = |metric, value| Row::new(SUITE, case.kind.name(), metric, value);
    let beside = |(metric, peer, figure): (_, _, Figure<'_>)| {
        let peer = of(cases, peer).map(|peer| (peer.kind.name(), figure(peer)));
        row(metric, figure(case)).beside(peer)
    };
    let mut rows: Vec<Row> = compared.into_iter().map(beside).collect();
    rows.push(row(("cpu_sidecar", "us/request"), case.sidecar_micros()));
    if let Some(share) = case.local_share() {
        rows.push(row(("decided_in_envoy", "share"), share));
    }
    rows
}

/// The design's targets beside the figures.
fn targets(cases: &[Case]) -> Vec<String> {
    let mut targets = Vec::new();
    let Some(three) = of(cases, Setup::LeasesOfThree) else {
        return targets;
    };
    if let Some(noop) = of(cases, Setup::NoopAbi) {
        let more = three.both_micros() - noop.both_micros();
        targets.push(format!(
            "Three leases held, above a filter that does nothing: {more:.1} µs (target: at most 6)"
        ));
    }
    if let Some(conditions) = of(cases, Setup::LeasesOfThreeWithConditions) {
        let more = conditions.both_micros() - three.both_micros();
        targets.push(format!("A condition for each of three leases: {more:.1} µs more"));
    }
    for kind in [Setup::NativeOfOne, Setup::NativeOfThree] {
        if let Some(native) = of(cases, kind) {
            let share = above(three, cases) / above(native, cases);
            targets.push(format!(
                "Three leases held, beside \"{}\": {share:.2} of what that adds (target: at most \
                 0.33)",
                kind.name()
            ));
        }
    }
    if let Some(share) = three.local_share() {
        let percent = share * 100.0;
        targets.push(format!("Decided in Envoy: {percent:.2} % (target: at least 99 %)"));
    }
    if let Some(none) = of(cases, Setup::NoFilter) {
        let more = three.resident_mebibytes() - none.resident_mebibytes();
        targets.push(format!("Envoy's memory above no filter: {more:.0} MiB (target: at most 40)"));
    }
    targets
}
