use super::*;
use proptest::prelude::*;

fn row(value: u32, denied: f64, error: f64) -> Row {
    Row {
        domain: "d".to_owned(),
        entries: vec![("k".to_owned(), format!("v{value}"))],
        is_cut: false,
        rates: Rates { denied, ..Rates::default() },
        error,
        allowed: 0,
        denied: 1,
        retry_ms: None,
        left: None,
    }
}

/// A summary of true rates by value, in which only some rows have a place.
fn summary(rates: &[(u32, f64)], rows_max: usize) -> Summary {
    let mut group = GroupSummary {
        met: MetKind::Rule,
        domain: "d".to_owned(),
        rule: Some("d/k".to_owned()),
        rates: Rates { denied: rates.iter().map(|(_, rate)| rate).sum(), ..Rates::default() },
        hottest: rates.iter().map(|(value, rate)| row(*value, *rate, 0.0)).collect(),
        hottest_floor: 0.0,
        most_denied: rates.iter().map(|(value, rate)| row(*value, *rate, 0.0)).collect(),
        most_denied_floor: 0.0,
    };
    group.truncate(rows_max);
    Summary { groups: vec![group] }
}

fn rates() -> impl Strategy<Value = Vec<(u32, f64)>> {
    prop::collection::btree_map(0_u32..30, 0.1_f64..100.0, 0..30)
        .prop_map(|rates| rates.into_iter().collect())
}

proptest! {
    #[test]
    fn merged_bounds_hold_the_true_sums(
        parts in prop::collection::vec((rates(), 1_usize..12), 1..5),
    ) {
        let mut merged = Summary::default();
        let mut sums: HashMap<u32, f64> = HashMap::new();
        for (rates, rows_max) in &parts {
            merged.merge(summary(rates, *rows_max));
            for (value, rate) in rates {
                *sums.entry(*value).or_default() += rate;
            }
        }
        let group = &merged.groups[0];
        for (value, sum) in &sums {
            let name = format!("v{value}");
            match group.most_denied.iter().find(|row| row.entries[0].1 == name) {
                Some(row) => {
                    let least = row.rate(Order::Denied);
                    prop_assert!(least <= sum + 1e-9 && *sum <= least + row.error + 1e-9);
                }
                None => prop_assert!(*sum <= group.most_denied_floor + 1e-9),
            }
        }
        let total: f64 = sums.values().sum();
        prop_assert!((group.rates.denied - total).abs() < 1e-6);
    }
}

#[test]
fn a_bounded_summary_keeps_the_heaviest() {
    let mut all = Summary::default();
    for group in 0..300_u32 {
        let rates: Vec<(u32, f64)> =
            (0..60).map(|value| (value, f64::from(group * 100 + value))).collect();
        let mut summary = summary(&rates, 60);
        summary.groups[0].rule = Some(format!("d/{group}"));
        all.merge(summary);
    }
    for bytes_max in [10_000_000, 1_000_000, 100_000, 1_000] {
        let mut bounded = all.clone();
        bounded.bound(bytes_max);
        // No name here needs an escape.
        let bytes = serde_json::to_vec(&bounded).unwrap().len();
        assert!(bytes <= bytes_max, "{bytes} of {bytes_max}");
        let first = &bounded.groups[0];
        assert_eq!(first.rule.as_deref(), Some("d/299"));
        assert_eq!(first.most_denied[0].entries[0].1, "v59");
    }
}

#[test]
fn names_that_were_cut_to_the_same_are_one_row() {
    let cut = Row { is_cut: true, ..row(1, 2.0, 0.5) };
    let mut summary = summary(&[(2, 4.0)], 10);
    summary.groups[0].most_denied.extend([cut.clone(), cut]);
    summary.drop_faded();
    let rates: Vec<f64> =
        summary.groups[0].most_denied.iter().map(|row| row.rates.denied).collect();
    assert_eq!(rates, [4.0, 4.0]);
}
