use super::*;
use crate::summary::Order;
use proptest::prelude::*;
use std::collections::HashMap;
use tidegate_core::Entry;
use tidegate_recent::Pairs;

/// One hit or more of a descriptor with this value.
fn record(groups: &mut Groups, value: &str, (allowed, denied): (u64, u64), now_ms: u64) {
    record_of(groups, ("d/user", "user", value), (allowed, denied), now_ms);
}

fn record_of(
    groups: &mut Groups,
    (rule, key, value): (&str, &str, &str),
    (allowed, denied): (u64, u64),
    now_ms: u64,
) {
    let entries = [Entry::new(key, value)];
    let hash = |text: &str| xxhash_rust::xxh3::xxh3_64_with_seed(text.as_bytes(), 0);
    let event = Event {
        hash: hash(value),
        domain: "d",
        entries: Pairs::of(&entries),
        met: MetKind::Rule,
        group_hash: hash(rule),
        group_domain: "d",
        rule: Some(rule),
        allowed,
        denied,
        elsewhere: 0,
        in_envoy: 0,
        retry_at_ms: None,
        left: None,
    };
    groups.record(&event, now_ms);
}

/// The rates of rows by value: at least and at most.
fn bounds(group: &GroupSummary, order: Order) -> HashMap<String, (f64, f64)> {
    let bounds = |row: &Row| (row.rate(order), row.rate(order) + row.error);
    group.rows(order).iter().map(|row| (row.entries[0].1.clone(), bounds(row))).collect()
}

/// The slow twin: every hit is kept, and decays by itself.
#[derive(Default)]
struct Twin(Vec<(String, u64, u64, u64)>);

impl Twin {
    fn rates(&self, order: Order, now_ms: u64) -> HashMap<&str, f64> {
        let mut rates = HashMap::new();
        for (value, allowed, denied, at) in &self.0 {
            let hits = match order {
                Order::Hits => allowed + denied,
                Order::Denied => *denied,
            };
            let age = (now_ms - at) as f64 / 1_000.0;
            let rate = hits as f64 * (-age / DECAY_SECONDS).exp() / DECAY_SECONDS;
            *rates.entry(value.as_str()).or_default() += rate;
        }
        rates
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With far more descriptors than places, pauses that scale weights down, and some that are heavy.
    #[test]
    fn true_rates_are_within_the_bounds_of_the_sketch(
        steps in prop::collection::vec(
            (prop_oneof![0_u32..8, 0_u32..400], 0_u64..4, 0_u64..3, prop_oneof![
                8 => 0_u64..50, 1 => 0_u64..30_000, 1 => 0_u64..3_000_000,
            ]),
            1..1_200,
        ),
    ) {
        let (mut groups, mut twin, mut now) = (Groups::new(BYTES_MAX), Twin::default(), 0);
        for (value, allowed, denied, pause) in steps {
            now += pause;
            if allowed + denied == 0 {
                continue;
            }
            let value = format!("v{value}");
            record(&mut groups, &value, (allowed, denied), now);
            twin.0.push((value, allowed, denied, now));
        }
        let (counted, real) = groups.bytes();
        prop_assert_eq!(counted, real);
        let summary = groups.summary(now);
        for order in [Order::Hits, Order::Denied] {
            let Some(group) = summary.groups.first() else { break };
            let (found, rates) = (bounds(group, order), twin.rates(order, now));
            let total: f64 = rates.values().sum();
            let floor = match order {
                Order::Hits => group.hottest_floor,
                Order::Denied => group.most_denied_floor,
            };
            let slack = 1e-6 * total + 1e-12;
            prop_assert!(floor <= total / PLACES_MAX as f64 + slack, "{floor} of {total}");
            for (value, rate) in rates {
                match found.get(value) {
                    Some((least, most)) => {
                        prop_assert!(*least <= rate + slack && rate <= most + slack,
                            "{value}: {rate} is not in {least}..{most}");
                        prop_assert!(most - least <= total / PLACES_MAX as f64 + slack);
                    }
                    // Faded rows are left out.
                    None => prop_assert!(rate <= floor.max(0.001 / DECAY_SECONDS) + slack, "{value}: {rate}"),
                }
            }
        }
    }
}

#[test]
fn a_rate_decays_and_a_row_fades() {
    let mut groups = Groups::new(BYTES_MAX);
    for second in 0..200 {
        record(&mut groups, "steady", (50, 0), second * 1_000);
    }
    let rate = |groups: &mut Groups, now: u64| {
        let summary = groups.summary(now);
        summary.groups.first().map(|group| group.hottest[0].rates.allowed)
    };
    let now = rate(&mut groups, 199_500).unwrap();
    assert!((now - 50.0).abs() < 2.0, "{now}");
    let later = rate(&mut groups, 209_500).unwrap();
    assert!((later - now / std::f64::consts::E).abs() < 0.1, "{later}");
    assert_eq!(rate(&mut groups, 2_000_000), None);
}

/// Beside 100,000 others in each second, whose names are as long as clients can make them.
#[test]
fn a_heavy_hitter_is_found_in_a_flood_and_memory_is_bounded() {
    let mut groups = Groups::new(BYTES_MAX);
    let long = "x".repeat(5_000);
    for number in 0..100_000_u64 {
        let now = number / 100;
        record(&mut groups, &format!("{number}{long}"), (1, 1), now);
        if number % 20 == 0 {
            record(&mut groups, "heavy", (0, 1), now);
        }
    }
    let (counted, real) = groups.bytes();
    assert_eq!(counted, real);
    assert!(real < 512 * 1024, "{real} bytes of one group");
    let summary = groups.summary(1_000);
    let found = bounds(&summary.groups[0], Order::Denied);
    let most = found.values().map(|(least, _)| *least).fold(0.0, f64::max);
    assert!(found["heavy"].0 == most && most > 100.0, "{:?}", found["heavy"]);
}

/// 5,000 rules with names of the longest kind in each: places are halved, then the coldest groups go.
#[test]
fn many_groups_stay_within_the_bytes_and_the_hottest_stay() {
    let mut groups = Groups::new(BYTES_MAX);
    let (long, key) = ("x".repeat(500), "k".repeat(500));
    for round in 0..20_u64 {
        for rule in 0..5_000_u64 {
            let (rule, value) = (format!("d/{rule}"), format!("{rule}-{round}{long}"));
            record_of(&mut groups, (&rule, &key, &value), (1, 1), round);
        }
        record_of(&mut groups, ("d/hot", "user", "a"), (1_000, 0), round);
        let (counted, real) = groups.bytes();
        assert!(counted == real && real <= BYTES_MAX, "{counted} {real}");
    }
    let summary = groups.summary(20);
    let hot = summary.groups.iter().find(|group| group.rule.as_deref() == Some("d/hot")).unwrap();
    assert!(hot.hottest[0].allowed >= 19_000, "{hot:?}");
}

/// Symptom: a call failed with an internal error, in a build that checks overflows. Cause: the sketch added up hits without a
/// bound, and a client chooses its hits.
#[test]
fn the_largest_numbers_of_hits_add_up_to_the_largest() {
    let mut groups = Groups::new(BYTES_MAX);
    for _ in 0..3 {
        record(&mut groups, "a", (u64::MAX, u64::MAX), 1_000);
    }
    let summary = groups.summary(1_000);
    let row = &summary.groups[0].rows(Order::Hits)[0];
    assert_eq!((row.allowed, row.denied), (u64::MAX, u64::MAX));
    assert!(row.rates.hits().is_finite(), "{row:?}");
}
