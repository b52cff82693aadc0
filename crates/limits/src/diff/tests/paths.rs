//! Paths that are added, removed or shared, including paths without a rule. The rules are read from files.

use super::super::*;
use super::lines;
use crate::{Loaded, SameDomain, load};

const HOURLY: &str = "rate_limit: {unit: hour, requests_per_unit: 3}";

/// Rules of a domain `s` with these descriptors, in which `@` stands for a limit.
fn rules(descriptors: &[&str]) -> Rules {
    let text: String = descriptors.iter().map(|of| format!("- {{{of}}}\n")).collect();
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("limits.yaml");
    std::fs::write(&path, format!("domain: s\ndescriptors:\n{}", text.replace('@', HOURLY)))
        .unwrap();
    let Loaded { rules, .. } = load(&path, SameDomain::Refuse).unwrap();
    rules
}

#[track_caller]
fn check(old: &[&str], new: &[&str], expected: &[&str]) {
    assert_eq!(lines(&compare_rules(&rules(old), &rules(new))), expected);
}

#[test]
fn sharing_counters_starts_them_anew() {
    let own = ["key: ip, value: '10.*', @, descriptors: [{key: u, @}]"];
    let shared = ["key: ip, value: '10.*', share_threshold: true, @, descriptors: [{key: u, @}]"];
    check(
        &own,
        &shared,
        &["Changed s/ip=10.*: share_threshold on (all values of the pattern share one counter \
             now; \
           counts of s/ip=10.*, s/ip=10.*/u start anew)"],
    );
    check(
        &shared,
        &own,
        &["Changed s/ip=10.*: share_threshold off (each value of the pattern has a counter of \
             its own \
           now; counts of s/ip=10.*, s/ip=10.*/u start anew)"],
    );
    check(
        &["key: ip, value: '10.*', descriptors: [{key: u, @}]"],
        &["key: ip, value: '10.*', share_threshold: true, descriptors: [{key: u, \
           rate_limit: {unit: hour, requests_per_unit: 4}}]"],
        &[
            "Changed s/ip=10.*: share_threshold on (all values of the pattern share one counter \
             now; \
           counts of s/ip=10.*/u start anew)",
            "Changed s/ip=10.*/u: 3 per hour -> 4 per hour (callers matching s/ip=10.*/u get 4 per \
           hour now; counts start anew, because the sharing of its counters changed)",
        ],
    );
    // There is no counter before or after.
    check(
        &["key: ip, value: '10.*'", "key: k, @"],
        &["key: ip, value: '10.*', share_threshold: true", "key: k, @"],
        &[],
    );
}

/// A branch without a limit lets through descriptors that end there.
#[test]
fn a_branch_without_a_limit_takes_callers_from_the_key_alone() {
    for (place, caller) in [
        ("key: c, value: v", "v"),
        ("key: c, value: 'v*'", "v"),
        ("key: c, match: {prefix: v}", "v"),
        ("key: c, match: {cidr: 10.0.0.0/8}", "10.0.0.0"),
    ] {
        let (without, with) = (["key: c, @"], ["key: c, @", place]);
        let fewer = format!(
            "Changed s/c: takes fewer callers (callers such as c={caller} met s/c, and meet \
             nothing now: a branch without a rule matches first)"
        );
        check(&without, &with, &[&fewer]);
        let more = format!(
            "Changed s/c: takes more callers (callers such as c={caller} met nothing, and meet \
             s/c now)"
        );
        check(&with, &without, &[&more]);
    }
}

#[test]
fn a_branch_takes_callers_from_deeper_rules_of_the_key_alone() {
    for (value, segment) in [("value: v", "v"), ("match: {prefix: v}", "prefix=v")] {
        let added = format!("key: a, {value}, descriptors: [{{key: c, @}}]");
        let without = ["key: a, descriptors: [{key: b, @}]"];
        let with = [without[0], &added];
        let line = format!("d s/a={segment}/c: 3 per hour (callers matching s/a={segment}/c are ");
        check(
            &without,
            &with,
            &[
                "Changed s/a/b: takes fewer callers (callers such as a=v b=~any~ met s/a/b, and \
                 meet nothing now: a branch without a rule matches first)",
                &format!("Adde{line}limited now)"),
            ],
        );
        check(
            &with,
            &without,
            &[
                "Changed s/a/b: takes more callers (callers such as a=v b=~any~ met nothing, and \
                 meet \
                 s/a/b now)",
                &format!("Remove{line}no longer limited)"),
            ],
        );
    }
}

#[test]
fn limits_are_the_same_by_their_counters_whatever_their_paths_are() {
    let list = |limits: &str| format!("key: l, rate_limits: [{limits}]");
    let (day, hour) = ("{unit: day}", "{unit: hour, requests_per_unit: 3}");
    let moved = |from: &str, to: &str| {
        format!(
            "Changed {to}: path was {from} (metrics and logs go by the new path; live counts are \
             kept)"
        )
    };
    check(&["key: l, @"], &[&list(hour)], &[&moved("s/l", "s/l#1")]);
    check(
        &[&list(&format!("{hour}, {day}"))],
        &[&list(&format!("{day}, {hour}"))],
        &[&moved("s/l#2", "s/l#1"), &moved("s/l#1", "s/l#2")],
    );
    check(
        &[&list(hour)],
        &[&list(&format!("{day}, {hour}"))],
        &[
            "Added s/l#1: 0 per day (callers matching s/l are held to this limit too, from a new \
             count)",
            &moved("s/l#1", "s/l#2"),
        ],
    );
    // The exact window has other counters, although the algorithm has the same name.
    let sliding = |exact| format!("{{algorithm: sliding_buckets, unit: hour, exact: {exact}}}");
    let changes =
        compare_rules(&rules(&[&list(&sliding(true))]), &rules(&[&list(&sliding(false))]));
    assert!(lines(&changes)[0].contains("counts start anew, because the algorithm changed"));
}

#[test]
fn counts_are_kept_where_another_rule_has_the_same_counters() {
    let met = |what: &str, means: &str| {
        format!(
            "Added s/c=v: {what} (callers matching s/c=v are limited now; they met s/c (3 per \
             hour) \
             before; {means})"
        )
    };
    let any = "key: c, @";
    check(
        &[any],
        &[any, "key: c, value: v, rate_limit: {unit: hour, requests_per_unit: 9}"],
        &[&met("9 per hour", "live counts are kept")],
    );
    check(
        &[any],
        &[any, "key: c, value: v, rate_limit: {unit: day, requests_per_unit: 9}"],
        &[&met("9 per day", "counts start anew")],
    );
    check(
        &[any],
        &[any, "key: c, value: v, rate_limits: [{unit: day}, {unit: hour}]"],
        &[&met("0 per day and 0 per hour", "live counts of s/c=v#2 are kept, others start anew")],
    );
    // A new limit has no earlier counts, shared or not.
    let line = &lines(&compare_rules(
        &rules(&[any]),
        &rules(&[any, "key: c, value: 'v*', share_threshold: true, @"]),
    ))[0];
    assert!(line.ends_with("before; counts start anew)"), "{line}");
}
