//! The promises of units, quotas and counter keys, case by case.

use std::sync::Arc;
use tidegate_core::{
    CounterKey, Entry, FirstHitWindow, FixedWindow, Identity, KeyHash, Nanos, Period, Quota,
    QuotaError, SlidingBuckets, SlidingExact, SlidingWindow, StateSize, TokenBucket, Unit, Zone,
    fingerprint,
};

const MINUTE: Nanos = Nanos::from_secs(60);

fn window(requests: u32, period: Nanos) -> Quota {
    Quota::FixedWindow(FixedWindow::new(requests, period).unwrap())
}

#[test]
fn units_have_the_lengths_of_the_ratelimit_service() {
    let table = [
        (Unit::Second, 1),
        (Unit::Minute, 60),
        (Unit::Hour, 3_600),
        (Unit::Day, 86_400),
        (Unit::Week, 604_800),
        (Unit::Month, 2_592_000),
        (Unit::Year, 31_536_000),
    ];
    for (unit, secs) in table {
        assert_eq!(unit.period(), Nanos::from_secs(secs));
        assert_eq!(Unit::of_period(Nanos::from_secs(secs)), Some(unit));
        assert_eq!(Unit::from_name(&unit.name().to_uppercase()), Some(unit));
    }
    assert_eq!(Unit::of_period(Nanos::from_secs(30)), None);
    assert_eq!(Unit::from_name("fortnight"), None);
}

#[test]
fn periods_of_the_calendar_have_names_and_a_nominal_length() {
    let day = 86_400;
    let table = [
        (Period::Span(MINUTE), "60s", Some(Unit::Minute), 60),
        (Period::Months(1), "1mo", Some(Unit::Month), 30 * day),
        (Period::Months(3), "3mo", None, 90 * day),
        (Period::Months(12), "1y", Some(Unit::Year), 365 * day),
        (Period::Months(24), "2y", None, 730 * day),
    ];
    for (period, text, unit, secs) in table {
        let got = (period.to_string(), period.unit(), period.nominal());
        assert_eq!(got, (text.to_owned(), unit, Nanos::from_secs(secs)));
    }
}

#[test]
fn a_quota_reports_its_numbers_and_its_algorithm() {
    let bucket = TokenBucket::new(7, MINUTE, 9, 2).unwrap();
    let borrows = FixedWindow::new(7, MINUTE).unwrap().with_borrow(3).unwrap();
    let table = [
        (Quota::FixedWindow(borrows), "fixed_window", 10),
        (Quota::TokenBucket(bucket), "token_bucket", 9),
        (Quota::FirstHitWindow(FirstHitWindow::new(7, MINUTE).unwrap()), "first_hit_window", 7),
        (Quota::SlidingWindow(SlidingWindow::new(7, MINUTE).unwrap()), "sliding_window", 7),
        (Quota::SlidingBuckets(SlidingBuckets::new(7, MINUTE).unwrap()), "sliding_buckets", 7),
        (Quota::SlidingExact(SlidingExact::new(7, MINUTE).unwrap()), "sliding_buckets", 7),
    ];
    for (quota, algorithm, capacity) in table {
        assert_eq!((quota.algorithm(), quota.capacity()), (algorithm, capacity));
        assert_eq!((quota.requests(), quota.period()), (7, Period::Span(MINUTE)));
        assert_eq!(quota.reset(), None);
    }
}

/// Long names are shortened by it, and must stay the same over releases. XXH3 publishes the hash of no bytes.
#[test]
fn a_fingerprint_is_xxh3_without_a_seed() {
    assert_eq!(fingerprint(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    assert_ne!(fingerprint(b"a"), fingerprint(b"b"));
}

#[test]
fn quotas_out_of_range_are_refused_with_the_value() {
    let long = Nanos::from_secs(4_000 * 86_400);
    let exact = |period| SlidingExact::new(1, period).unwrap_err().to_string();
    let table = [
        (FixedWindow::new(1, Nanos::ZERO).unwrap_err(), QuotaError::PeriodZero),
        (
            FixedWindow::new(1, Nanos::new(5)).unwrap_err(),
            QuotaError::PeriodTooShort(Nanos::new(5)),
        ),
        (FixedWindow::new(1, long).unwrap_err(), QuotaError::PeriodTooLong(long)),
        (FixedWindow::calendar(1, 0).unwrap_err(), QuotaError::Months(0)),
        (FixedWindow::calendar(1, 121).unwrap_err(), QuotaError::Months(121)),
        (TokenBucket::new(0, MINUTE, 1, 1).unwrap_err(), QuotaError::RefillZero),
        (TokenBucket::new(1, MINUTE, 0, 0).unwrap_err(), QuotaError::BurstZero),
        (
            TokenBucket::new(1, MINUTE, 2, 3).unwrap_err(),
            QuotaError::InitialAboveBurst { initial: 3, burst: 2 },
        ),
        (
            FirstHitWindow::new(0, MINUTE).unwrap().with_borrow(1).unwrap_err(),
            QuotaError::BorrowWithoutRequests(1),
        ),
        (
            FixedWindow::new(1, MINUTE).unwrap().with_borrow(u32::MAX).unwrap_err(),
            QuotaError::BorrowTooLarge { requests: 1, borrow: u32::MAX },
        ),
    ];
    for (got, expected) in table {
        assert_eq!(got, expected);
    }
    let text = TokenBucket::new(1, MINUTE, 2, 3).unwrap_err().to_string();
    assert_eq!(text, "initial 3 is more than burst 2");
    let text = "period 1.5s is not allowed with exact (whole seconds, 1s to 1d)";
    assert_eq!(exact(Nanos::new(1_500_000_000)), text);
    assert!(exact(Nanos::from_secs(86_401)).starts_with("period 86401s is not allowed"));
}

#[test]
fn all_states_but_rings_take_32_bytes() {
    let bucket = Quota::TokenBucket(TokenBucket::new(1, MINUTE, 1, 1).unwrap());
    let exact = Quota::SlidingExact(SlidingExact::new(1, MINUTE).unwrap());
    for (quota, bytes) in [(window(1, MINUTE), 32), (bucket, 32), (exact, 264)] {
        assert_eq!(quota.state_size().words() * 8, bytes, "{}", quota.algorithm());
    }
    assert_eq!(StateSize::Narrow.words(), 4);
}

/// The hash of a counter that is described by differences from a plain one.
#[derive(Clone)]
struct Counter<'a> {
    domain: &'a str,
    entries: &'a [(&'a str, &'a str)],
    shared: &'a [(usize, &'a str)],
    quota: Quota,
    label: &'a str,
}

impl Counter<'_> {
    fn hash(&self) -> KeyHash {
        let entries: Vec<Entry> =
            self.entries.iter().map(|(key, value)| Entry::new(*key, *value)).collect();
        let (shared, quota, label) = (self.shared, &self.quota, self.label);
        let of = Identity { domain: self.domain, entries: &entries, shared, quota, label };
        CounterKey::new().hash(7, &of)
    }
}

#[test]
fn counters_are_told_apart_by_what_makes_them_and_by_nothing_else() {
    let plain = Counter {
        domain: "d",
        entries: &[("a", "b_c")],
        shared: &[],
        quota: window(1, MINUTE),
        label: "",
    };
    let zone = FixedWindow::new(1, MINUTE).unwrap().in_zone(&Zone::fixed(3_600));
    let borrowing = FixedWindow::new(1, MINUTE).unwrap().with_borrow(3).unwrap();
    let same = [
        Counter { quota: window(9, MINUTE), ..plain.clone() },
        Counter { quota: Quota::FixedWindow(borrowing), ..plain.clone() },
        Counter { quota: Quota::FixedWindow(zone), ..plain.clone() },
    ];
    for counter in &same {
        assert_eq!(counter.hash(), plain.hash(), "{:?}", counter.quota);
    }
    let bucket = Quota::TokenBucket(TokenBucket::new(1, MINUTE, 1, 1).unwrap());
    let held = |quota: &Quota| Quota::held(Arc::new(quota.clone()));
    let month = Quota::FixedWindow(FixedWindow::calendar(1, 1).unwrap());
    let others = [
        plain.clone(),
        Counter { entries: &[("a_b", "c")], ..plain.clone() },
        Counter { domain: "d_a", entries: &[("", "b_c")], ..plain.clone() },
        Counter { entries: &[("a", "b"), ("c", "")], ..plain.clone() },
        Counter { entries: &[("a", "b"), ("", "c")], ..plain.clone() },
        Counter { entries: &[("a", "b*")], ..plain.clone() },
        Counter { shared: &[(0, "b*")], ..plain.clone() },
        Counter { label: "x", ..plain.clone() },
        Counter { quota: held(&bucket), ..plain.clone() },
        Counter { quota: held(&plain.quota), ..plain.clone() },
        Counter { quota: bucket, ..plain.clone() },
        Counter { quota: window(1, Nanos::from_secs(1)), ..plain.clone() },
        Counter { quota: window(1, Nanos::new(1_000_001)), ..plain.clone() },
        Counter { quota: month, ..plain.clone() },
    ];
    for (index, counter) in others.iter().enumerate() {
        for other in &others[..index] {
            assert_ne!(counter.hash(), other.hash());
        }
    }
}

#[test]
fn values_of_a_shared_pattern_share_a_counter() {
    let of = |entries, shared| {
        let quota = window(1, MINUTE);
        Counter { domain: "d", entries, shared, quota, label: "" }.hash()
    };
    let first = of(&[("a", "x1"), ("b", "y")], &[(0, "x*")]);
    assert_eq!(first, of(&[("a", "x2"), ("b", "y")], &[(0, "x*")]));
    assert_ne!(first, of(&[("a", "x2"), ("b", "z")], &[(0, "x*")]));
}

#[test]
fn the_first_part_of_a_counter_has_its_key_and_the_others_their_own() {
    let whole = KeyHash(1 << 100);
    assert_eq!(whole.part(7, 0), whole);
    assert_ne!(whole.part(7, 1), whole.part(7, 2));
    assert_ne!(whole.part(7, 1), whole.part(8, 1));
    assert_ne!(whole.part(7, 1), KeyHash(2 << 100).part(7, 1));
}

#[test]
fn limits_per_second_have_places_of_their_own() {
    for value in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let quota = window(1, MINUTE);
        let hash =
            Counter { domain: "d", entries: &[("a", value)], shared: &[], quota, label: "" }.hash();
        assert!(!hash.is_per_second() && hash.per_second().is_per_second());
        assert_ne!(hash.place(), hash.per_second().place());
        assert!(hash.per_second().part(7, 1).is_per_second());
        assert!(KeyHash(0).placed(hash.per_second().place()).is_per_second());
    }
}

#[test]
fn the_limits_of_a_descriptor_and_their_parts_have_one_place() {
    let of = |domain, value, label, period| {
        let (entries, quota) = (&[("a", value)], window(1, period));
        Counter { domain, entries, shared: &[], quota, label }.hash()
    };
    let first = of("d", "b", "", MINUTE);
    let second = of("d", "b", "second", Nanos::from_secs(1));
    assert_ne!(first, second);
    assert_eq!(first.place(), second.place());
    assert_eq!(first.part(7, 1).place(), first.place());
    assert_ne!(first.part(7, 1), second.part(7, 1));
    let values = ["b", "c", "d", "e", "f", "g"].map(|value| of("d", value, "", MINUTE));
    let mut places = values.map(KeyHash::place).to_vec();
    places.push(of("e", "b", "", MINUTE).place());
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 7, "{places:?}");
}
