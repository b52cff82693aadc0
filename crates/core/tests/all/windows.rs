//! The windows, with a fixed and with a first-hit start: boundaries and debts case by case,
//! agreement with their slow twins on random traces (with clock steps, forced charges and refunds), and
//! the bounds they promise.

use crate::slow_windows::{
    DAY, FirstHitWindowTwin, FixedWindowTwin, ResetWindowTwin, SECOND, SlowWindows, SlowZone,
    month_starts, utc,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use tidegate_core::{
    Charge, DailyReset, Decision, FirstHitWindow, FixedWindow, Hits, Nanos, OpenWindow, Outcome,
    Quota, QuotaError, Timestamp, Zone, decide,
};

const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(3_600);

fn fixed(requests: u32, borrow: u32, period: Nanos) -> Quota {
    let window = FixedWindow::new(requests, period).unwrap();
    Quota::FixedWindow(window.with_borrow(borrow).unwrap())
}

fn first_hit(requests: u32, borrow: u32, period: Nanos) -> Quota {
    let window = FirstHitWindow::new(requests, period).unwrap();
    Quota::FirstHitWindow(window.with_borrow(borrow).unwrap())
}

/// A first-hit window with a daily reset, `secs` after midnight UTC.
fn reset_daily(requests: u32, borrow: u32, period: Nanos, secs: u64) -> Quota {
    let reset = DailyReset::new(Nanos::from_secs(secs), &Zone::utc()).unwrap();
    let window = FirstHitWindow::new(requests, period).unwrap().with_borrow(borrow).unwrap();
    Quota::FirstHitWindow(window.with_reset(reset))
}

/// A fixed window with a daily reset, `secs` after midnight UTC.
fn fixed_reset_daily(requests: u32, borrow: u32, period: Nanos, secs: u64) -> Quota {
    let reset = DailyReset::new(Nanos::from_secs(secs), &Zone::utc()).unwrap();
    let window = FixedWindow::new(requests, period).unwrap().with_borrow(borrow).unwrap();
    Quota::FixedWindow(window.with_reset(reset))
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn take(hits: u64) -> Charge {
    Charge::Take(Hits::new(hits))
}

fn force(hits: u64) -> Charge {
    Charge::Force(Hits::new(hits))
}

fn refund(hits: u64) -> Charge {
    Charge::Refund(Hits::new(hits))
}

// Cases.

/// Second, charge, and the decision: the seconds to wait if denied, the remaining hits, the reset, and how
/// long the state matters.
type Said = (u64, Charge, Option<u64>, u64, u64, u64);

fn check(quota: &Quota, table: &[Said]) {
    let mut state = [0; 4];
    for (index, &(secs, charge, retry_after, remaining, reset, keep)) in table.iter().enumerate() {
        let expected = Decision {
            outcome: match retry_after {
                None => Outcome::Allow,
                Some(secs) => Outcome::Deny { retry_after: Nanos::from_secs(secs) },
            },
            remaining,
            reset_at: at(reset),
            keep_until: at(keep),
        };
        let got = decide(&mut state, quota, charge, at(secs));
        assert_eq!(got, expected, "step {index}: {charge:?} at {secs}");
    }
}

#[test]
fn a_fixed_window_opens_on_the_boundary_and_not_before() {
    check(
        &fixed(2, 0, MINUTE),
        &[
            (6_000, take(1), None, 1, 6_060, 6_060),
            (6_059, take(1), None, 0, 6_060, 6_060),
            (6_059, take(1), Some(1), 0, 6_060, 6_060),
            (6_060, take(1), None, 1, 6_120, 6_120),
        ],
    );
}

#[test]
fn a_fixed_window_passes_twice_its_limit_around_a_boundary() {
    check(
        &fixed(1_000, 0, MINUTE),
        &[
            (6_059, take(1_000), None, 0, 6_060, 6_060),
            (6_060, take(1_000), None, 0, 6_120, 6_120),
            (6_060, take(1), Some(60), 0, 6_120, 6_120),
        ],
    );
}

#[test]
fn a_first_hit_window_opens_at_the_first_hit_and_reopens_after_the_interval() {
    check(
        &first_hit(2, 0, MINUTE),
        &[
            (6_010, Charge::PEEK, None, 2, 6_070, 6_070),
            (6_030, take(1), None, 1, 6_090, 6_090),
            (6_089, take(1), None, 0, 6_090, 6_090),
            (6_089, take(1), Some(1), 0, 6_090, 6_090),
            (6_100, Charge::PEEK, None, 2, 6_160, 6_160),
            (6_110, take(1), None, 1, 6_170, 6_170),
        ],
    );
}

#[test]
fn twelve_hundred_calls_pass_on_credit_and_the_next_hour_starts_at_eight_hundred() {
    check(
        &fixed(1_000, 300, HOUR),
        &[
            (36_000, take(1_200), None, 100, 39_600, 43_200),
            // 800 of its own, and 300 that it may borrow.
            (39_600, Charge::PEEK, None, 1_100, 43_200, 43_200),
            (39_600, take(800), None, 300, 43_200, 43_200),
            (39_600, take(300), None, 0, 43_200, 46_800),
            // 300 are owed: 1000 fit in the next hour, 1001 in the one after it.
            (39_600, take(1_000), Some(3_600), 0, 43_200, 46_800),
            (39_600, take(1_001), Some(7_200), 0, 43_200, 46_800),
            // Never fits; everything is paid after two hours.
            (39_600, take(1_301), Some(7_200), 0, 43_200, 46_800),
            // An hour without requests pays as well.
            (46_800, Charge::PEEK, None, 1_300, 50_400, 50_400),
        ],
    );
}

#[test]
fn debts_of_a_first_hit_window_are_paid_interval_by_interval() {
    check(
        &first_hit(10, 15, MINUTE),
        &[
            (6_030, take(25), None, 0, 6_090, 6_210),
            (6_030, take(1), Some(60), 0, 6_090, 6_210),
            (6_030, take(11), Some(120), 0, 6_090, 6_210),
            // 15 are owed from 6,090 on, 5 from 6,150 on; a hit joins the current interval.
            (6_100, Charge::PEEK, None, 10, 6_150, 6_210),
            (6_160, take(3), None, 17, 6_210, 6_210),
            // Paid: the next hit opens a new window.
            (6_215, Charge::PEEK, None, 25, 6_275, 6_275),
        ],
    );
}

#[test]
fn a_daily_reset_ends_the_window_that_is_open() {
    check(
        &reset_daily(2, 0, MINUTE, 6_050),
        &[
            (6_030, take(2), None, 0, 6_050, 6_050),
            (6_040, take(1), Some(10), 0, 6_050, 6_050),
            (6_050, take(1), None, 1, 6_110, 6_110),
            // The clock steps back over the reset: the newer window stays.
            (6_049, take(2), Some(61), 1, 6_110, 6_110),
            (92_440, take(2), None, 0, 92_450, 92_450),
            (92_449, take(1), Some(1), 0, 92_450, 92_450),
            (92_451, take(1), None, 1, 92_511, 92_511),
        ],
    );
}

#[test]
fn a_daily_reset_forgives_debts() {
    check(
        &reset_daily(10, 15, MINUTE, 6_100),
        &[
            (6_030, take(25), None, 0, 6_090, 6_100),
            (6_030, take(11), Some(70), 0, 6_090, 6_100),
            (6_095, Charge::PEEK, None, 10, 6_100, 6_100),
            (6_100, Charge::PEEK, None, 25, 6_160, 6_160),
        ],
    );
}

#[test]
fn a_daily_reset_tells_its_time_of_day() {
    let noon = Nanos::from_secs(43_200);
    assert_eq!(DailyReset::new(noon, &Zone::fixed(3_600)).unwrap().time_of_day(), noon);
}

#[test]
fn a_daily_reset_empties_a_fixed_window_and_forgives_its_debts() {
    const NOON: u64 = 864_000 + 12 * 3_600;
    let day = Nanos::from_secs(86_400);
    check(
        &fixed_reset_daily(5, 5, day, 13 * 3_600),
        &[
            // Without the reset, the debt would last until midnight and through the next day.
            (NOON, take(8), None, 2, NOON + 3_600, NOON + 3_600),
            (NOON + 60, take(3), Some(3_540), 2, NOON + 3_600, NOON + 3_600),
            (NOON + 3_599, Charge::PEEK, None, 2, NOON + 3_600, NOON + 3_600),
            (NOON + 3_600, Charge::PEEK, None, 10, NOON + 43_200, NOON + 43_200),
            // The clock steps back: the peek has changed nothing.
            (NOON + 3_599, take(3), Some(1), 2, NOON + 3_600, NOON + 3_600),
            (NOON + 3_600, refund(3), None, 10, NOON + 43_200, NOON + 43_200),
            (NOON + 3_600, take(9), None, 1, NOON + 43_200, NOON + 90_000),
            (NOON + 43_200, Charge::PEEK, None, 6, NOON + 90_000, NOON + 90_000),
            // Back before the reset, with hits after it.
            (NOON, take(2), Some(43_200), 1, NOON + 43_200, NOON + 90_000),
        ],
    );
}

#[test]
fn a_first_hit_window_records_its_last_hit() {
    let window = FirstHitWindow::new(2, MINUTE).unwrap();
    let quota = Quota::FirstHitWindow(window.clone());
    let mut state = [0; 4];
    assert_eq!(window.open_window(&state, at(6_000)), None);
    for (secs, charge, count, last) in [
        (6_010, take(1), 1, 6_010),
        (6_020, Charge::PEEK, 1, 6_010),
        (6_030, take(1), 2, 6_030),
        (6_035, take(1), 2, 6_030),
        // A forced hit without room has happened all the same.
        (6_040, force(1), 2, 6_040),
        (6_050, refund(1), 1, 6_040),
        (6_000, take(1), 2, 6_040),
    ] {
        decide(&mut state, &quota, charge, at(secs));
        let open = OpenWindow { start: at(6_010), last: at(last), count, end: at(6_070) };
        assert_eq!(window.open_window(&state, at(secs)), Some(open), "{charge:?} at {secs}");
    }
    assert_eq!(window.open_window(&state, at(6_070)), None);
    // A state from before last hits were recorded.
    let old = window.open_window(&[6_010_000_000_000, 1, 0, 0], at(6_020)).unwrap();
    assert_eq!((old.start, old.last), (at(6_010), at(6_010)));
    let made = FirstHitWindow::state(at(6_010), 1, at(6_015));
    let expected = OpenWindow { start: at(6_010), last: at(6_015), count: 1, end: at(6_070) };
    assert_eq!(window.open_window(&made, at(6_020)), Some(expected));
}

#[test]
fn forced_charges_count_hits_that_do_not_fit_and_refunds_return_them() {
    // The remaining hits after a forced charge of three and a refund of two depend on whether forced
    // hits beyond the limit were counted.
    for (quota, left) in [(fixed(5, 0, MINUTE), 1), (first_hit(5, 0, MINUTE), 2)] {
        let over = (6_000, force(left), None, 0, 6_060, 6_060);
        check(
            &quota,
            &[
                (6_000, refund(3), None, 5, 6_060, 6_060),
                (6_000, take(3), None, 2, 6_060, 6_060),
                (6_000, take(3), Some(60), 2, 6_060, 6_060),
                (6_000, force(0), None, 2, 6_060, 6_060),
                (6_000, force(3), Some(60), 0, 6_060, 6_060),
                (6_000, force(0), Some(60), 0, 6_060, 6_060),
                (6_000, refund(2), None, left, 6_060, 6_060),
                over,
                (6_000, refund(u64::MAX), None, 5, 6_060, 6_060),
                (6_000, take(5), None, 0, 6_060, 6_060),
                (6_060, refund(5), None, 5, 6_120, 6_120),
                (6_060, take(6), Some(60), 5, 6_120, 6_120),
                (6_060, take(5), None, 0, 6_120, 6_120),
            ],
        );
    }
}

#[test]
fn a_fixed_window_is_over_once_its_count_has_passed_the_limit() {
    check(
        &fixed(5, 0, MINUTE),
        &[
            (6_000, force(5), None, 0, 6_060, 6_060),
            (6_000, force(0), None, 0, 6_060, 6_060),
            (6_000, take(0), Some(60), 0, 6_060, 6_060),
            (6_000, force(1), Some(60), 0, 6_060, 6_060),
            (6_000, force(0), Some(60), 0, 6_060, 6_060),
            (6_000, force(u64::MAX), Some(60), 0, 6_060, 6_060),
            (6_059, force(0), Some(1), 0, 6_060, 6_060),
            (6_060, force(0), None, 5, 6_120, 6_120),
        ],
    );
    // Borrowed hits are part of the limit. The next window inherits the debt, but no overdraft.
    check(
        &fixed(5, 3, MINUTE),
        &[
            (6_000, force(100), Some(120), 0, 6_060, 6_120),
            (6_000, force(0), Some(60), 0, 6_060, 6_120),
            (6_060, force(0), None, 5, 6_120, 6_120),
        ],
    );
    check(&fixed(0, 0, MINUTE), &[(6_000, force(0), Some(60), 0, 6_060, 6_060)]);
}

#[test]
fn peeks_denials_and_late_refunds_write_nothing() {
    for quota in [fixed(5, 0, MINUTE), first_hit(5, 0, MINUTE), fixed(0, 0, MINUTE)] {
        let mut state = [0; 4];
        for charge in [Charge::PEEK, take(6), refund(1), force(0)] {
            decide(&mut state, &quota, charge, at(6_000));
            assert_eq!(state, [0; 4], "{charge:?}");
        }
    }
}

#[test]
fn a_refund_lowers_the_debt_that_is_still_carried() {
    check(
        &fixed(10, 5, MINUTE),
        &[
            (6_000, take(15), None, 0, 6_060, 6_120),
            (6_060, refund(3), None, 13, 6_120, 6_120),
            (6_060, refund(9), None, 15, 6_120, 6_120),
        ],
    );
}

#[test]
fn a_clock_that_steps_back_stays_in_the_newer_window() {
    for quota in [fixed(1, 0, MINUTE), first_hit(1, 0, MINUTE)] {
        check(
            &quota,
            &[
                (6_000, take(1), None, 0, 6_060, 6_060),
                (5_000, take(1), Some(1_060), 0, 6_060, 6_060),
                (0, take(1), Some(6_060), 0, 6_060, 6_060),
                (6_059, take(1), Some(1), 0, 6_060, 6_060),
                (6_060, take(1), None, 0, 6_120, 6_120),
            ],
        );
    }
}

#[test]
fn time_zero_is_a_time_like_others() {
    for quota in [fixed(1, 0, MINUTE), first_hit(1, 0, MINUTE)] {
        let mut state = [0; 4];
        assert!(decide(&mut state, &quota, Charge::ONE, at(0)).is_allow());
        assert!(!decide(&mut state, &quota, Charge::ONE, at(0)).is_allow());
    }
}

#[test]
fn zero_requests_deny_everything() {
    check(&fixed(0, 0, MINUTE), &[(6_010, Charge::PEEK, Some(50), 0, 6_060, 6_060)]);
    check(&first_hit(0, 0, MINUTE), &[(6_010, take(1), Some(60), 0, 6_070, 6_070)]);
}

#[test]
fn a_lower_limit_denies_at_once_and_collects_no_debt_that_it_never_lent() {
    let mut state = [0; 4];
    assert!(decide(&mut state, &fixed(1_000, 0, MINUTE), take(1_000), at(6_000)).is_allow());
    for (borrow, left_later) in [(0, 10), (5, 10)] {
        let lower = fixed(10, borrow, MINUTE);
        assert_eq!(decide(&mut state.clone(), &lower, take(1), at(6_000)).remaining, 0);
        let later = decide(&mut state.clone(), &lower, Charge::PEEK, at(6_060));
        assert_eq!(later.remaining, left_later, "borrow {borrow}");
    }
}

#[test]
fn invalid_numbers_are_refused() {
    let fixed = |requests| FixedWindow::new(requests, MINUTE).unwrap();
    let first_hit = |requests| FirstHitWindow::new(requests, MINUTE).unwrap();
    let nothing_to_pay_with = QuotaError::BorrowWithoutRequests(1);
    let too_large = QuotaError::BorrowTooLarge { requests: u32::MAX, borrow: 1 };
    assert_eq!(fixed(0).with_borrow(1), Err(nothing_to_pay_with.clone()));
    assert_eq!(first_hit(0).with_borrow(1), Err(nothing_to_pay_with));
    assert_eq!(fixed(u32::MAX).with_borrow(1), Err(too_large.clone()));
    assert_eq!(first_hit(u32::MAX).with_borrow(1), Err(too_large));
    assert_eq!(FixedWindow::new(1, Nanos::ZERO), Err(QuotaError::PeriodZero));
    assert_eq!(FirstHitWindow::new(1, Nanos::ZERO), Err(QuotaError::PeriodZero));
    assert_eq!(FixedWindow::calendar(1, 0), Err(QuotaError::Months(0)));
    assert_eq!(FixedWindow::calendar(1, 121), Err(QuotaError::Months(121)));
    let day = Nanos::from_secs(DAY as u64);
    assert_eq!(DailyReset::new(day, &Zone::utc()), Err(QuotaError::ResetAfterDay(day)));
    assert_eq!(Quota::FixedWindow(fixed(10).with_borrow(3).unwrap()).capacity(), 13);
}

// Boundaries of windows.

/// The window that contains an instant.
fn window_at(windows: &FixedWindow, nanos: u64) -> (u64, u64) {
    let quota = Quota::FixedWindow(windows.clone());
    let mut state = [0; 4];
    let decision = decide(&mut state, &quota, Charge::ONE, Timestamp::from_nanos(nanos));
    assert!(decision.is_allow());
    (state[0], decision.reset_at.as_nanos())
}

fn check_windows(windows: &FixedWindow, table: &[(&str, &str, &str)]) {
    let nanos = |text| u64::try_from(utc(text)).unwrap() * SECOND;
    for (instant, start, end) in table {
        let got = window_at(windows, nanos(instant));
        assert_eq!(got, (nanos(start), nanos(end)), "{windows:?} at {instant}");
    }
}

fn spans(secs: u64, zone: Option<&Zone>) -> FixedWindow {
    let windows = FixedWindow::new(1, Nanos::from_secs(secs)).unwrap();
    zone.map_or(windows.clone(), |zone| windows.in_zone(zone))
}

fn months(months: u32, zone: Option<&Zone>) -> FixedWindow {
    let windows = FixedWindow::calendar(1, months).unwrap();
    zone.map_or(windows.clone(), |zone| windows.in_zone(zone))
}

#[test]
fn weeks_start_on_thursday_by_the_epoch_and_on_monday_by_a_clock() {
    const WEEK: u64 = 7 * DAY as u64;
    // 2026-11-21 is a Saturday.
    let table = [("2026-11-21 12:00", "2026-11-19 00:00", "2026-11-26 00:00")];
    check_windows(&spans(WEEK, None), &table);
    let table = [
        ("2026-11-21 12:00", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("1970-01-01 00:00", "1970-01-01 00:00", "1970-01-05 00:00"),
    ];
    check_windows(&spans(WEEK, Some(&Zone::utc())), &table);
    let table = [("2026-11-21 12:00", "2026-11-15 16:00", "2026-11-22 16:00")];
    check_windows(&spans(WEEK, Some(&Zone::fixed(8 * 3_600))), &table);
    // 1969-12-29 was a Monday, and 2026-11-16 is 2,968 weeks later.
    let table = [("2026-11-21 12:00", "2026-11-16 00:00", "2026-11-30 00:00")];
    check_windows(&spans(2 * WEEK, Some(&Zone::utc())), &table);
}

#[test]
fn months_are_those_of_the_calendar() {
    check_windows(
        &months(1, None),
        &[
            ("1970-01-01 00:00", "1970-01-01 00:00", "1970-02-01 00:00"),
            ("2026-01-31 23:59:59", "2026-01-01 00:00", "2026-02-01 00:00"),
            ("2027-02-28 23:59:59", "2027-02-01 00:00", "2027-03-01 00:00"),
            ("2028-02-29 12:00", "2028-02-01 00:00", "2028-03-01 00:00"),
            ("2028-03-01 00:00", "2028-03-01 00:00", "2028-04-01 00:00"),
            ("2000-02-29 23:59:59", "2000-02-01 00:00", "2000-03-01 00:00"),
            ("2100-02-28 23:59:59", "2100-02-01 00:00", "2100-03-01 00:00"),
            ("2026-12-31 23:59:59", "2026-12-01 00:00", "2027-01-01 00:00"),
        ],
    );
    check_windows(
        &months(3, None),
        &[
            ("2026-02-14 00:00", "2026-01-01 00:00", "2026-04-01 00:00"),
            ("2026-12-31 23:59:59", "2026-10-01 00:00", "2027-01-01 00:00"),
        ],
    );
    check_windows(
        &months(7, None),
        &[("1970-08-01 00:00", "1970-08-01 00:00", "1971-03-01 00:00")],
    );
    check_windows(
        &months(12, None),
        &[
            ("2028-12-31 23:59:59", "2028-01-01 00:00", "2029-01-01 00:00"),
            ("2029-01-01 00:00", "2029-01-01 00:00", "2030-01-01 00:00"),
        ],
    );
    let last = u64::try_from(utc("2554-07-01 00:00")).unwrap() * SECOND;
    assert_eq!(window_at(&months(1, None), u64::MAX), (last, u64::MAX));
}

#[test]
fn every_month_of_six_centuries_is_in_its_place() {
    let starts: Vec<u64> = month_starts()
        .map_while(|start| u64::try_from(start).unwrap().checked_mul(SECOND))
        .collect();
    assert_eq!(starts.len(), (2554 - 1970) * 12 + 7);
    let windows = months(1, None);
    for month in starts.windows(2) {
        let expected = (month[0], month[1]);
        assert_eq!(window_at(&windows, month[0]), expected);
        assert_eq!(window_at(&windows, month[1] - 1), expected);
    }
}

#[test]
fn a_fixed_offset_moves_the_day() {
    check_windows(
        &spans(DAY as u64, Some(&Zone::fixed(8 * 3_600))),
        &[
            ("2026-05-05 15:59:59", "2026-05-04 16:00", "2026-05-05 16:00"),
            ("2026-05-05 16:00", "2026-05-05 16:00", "2026-05-06 16:00"),
            // The first window begins with time.
            ("1970-01-01 03:00", "1970-01-01 00:00", "1970-01-01 16:00"),
        ],
    );
    check_windows(
        &spans(DAY as u64, Some(&Zone::fixed(-(5 * 3_600 + 1_800)))),
        &[
            ("2026-05-05 05:29:59", "2026-05-04 05:30", "2026-05-05 05:30"),
            ("1970-01-01 03:00", "1970-01-01 00:00", "1970-01-01 05:30"),
        ],
    );
    check_windows(
        &months(1, Some(&Zone::fixed(8 * 3_600))),
        &[("2026-02-28 16:00", "2026-02-28 16:00", "2026-03-31 16:00")],
    );
    check_windows(
        &months(12, Some(&Zone::fixed(-5 * 3_600))),
        &[
            ("1970-01-01 03:00", "1970-01-01 00:00", "1970-01-01 05:00"),
            ("2027-01-01 04:59:59", "2026-01-01 05:00", "2027-01-01 05:00"),
        ],
    );
}

#[test]
fn windows_around_the_changes_of_daylight_saving_follow_the_clock_on_the_wall() {
    // Berlin: at 02:00 the clock jumps to 03:00 in spring, at 03:00 back to 02:00 in autumn.
    let berlin = Zone::changing(
        3_600,
        vec![(utc("2026-10-25 01:00"), 3_600), (utc("2026-03-29 01:00"), 7_200)],
    );
    let berlin = Some(&berlin);
    check_windows(
        &spans(1_800, berlin),
        &[
            ("2026-03-29 00:45", "2026-03-29 00:30", "2026-03-29 01:00"),
            ("2026-03-29 01:10", "2026-03-29 01:00", "2026-03-29 01:30"),
            ("2026-10-25 00:10", "2026-10-25 00:00", "2026-10-25 00:30"),
            // The half hour before 03:00 ends when the clock shows 03:00 for the second time.
            ("2026-10-25 00:40", "2026-10-25 00:30", "2026-10-25 02:00"),
            ("2026-10-25 01:10", "2026-10-25 00:30", "2026-10-25 02:00"),
            ("2026-10-25 02:00", "2026-10-25 02:00", "2026-10-25 02:30"),
        ],
    );
    check_windows(
        &spans(3_600, berlin),
        &[
            ("2026-03-29 00:59:59", "2026-03-29 00:00", "2026-03-29 01:00"),
            ("2026-03-29 01:00", "2026-03-29 01:00", "2026-03-29 02:00"),
            ("2026-10-25 00:30", "2026-10-25 00:00", "2026-10-25 02:00"),
            ("2026-10-25 01:30", "2026-10-25 00:00", "2026-10-25 02:00"),
        ],
    );
    check_windows(
        &spans(6 * 3_600, berlin),
        &[
            ("2026-03-29 01:00", "2026-03-28 23:00", "2026-03-29 04:00"),
            ("2026-10-25 01:00", "2026-10-24 22:00", "2026-10-25 05:00"),
        ],
    );
    check_windows(
        &spans(DAY as u64, berlin),
        &[
            ("2026-03-29 12:00", "2026-03-28 23:00", "2026-03-29 22:00"),
            ("2026-10-25 12:00", "2026-10-24 22:00", "2026-10-25 23:00"),
            ("2026-10-26 12:00", "2026-10-25 23:00", "2026-10-26 23:00"),
        ],
    );
    check_windows(
        &spans(7 * DAY as u64, berlin),
        &[
            ("2026-03-29 12:00", "2026-03-22 23:00", "2026-03-29 22:00"),
            ("2026-10-25 12:00", "2026-10-18 22:00", "2026-10-25 23:00"),
        ],
    );
    check_windows(
        &months(1, berlin),
        &[
            ("2026-03-29 12:00", "2026-02-28 23:00", "2026-03-31 22:00"),
            ("2026-10-25 12:00", "2026-09-30 22:00", "2026-10-31 23:00"),
        ],
    );
    let year = [("2026-07-01 00:00", "2025-12-31 23:00", "2026-12-31 23:00")];
    check_windows(&months(12, berlin), &year);
}

#[test]
fn windows_south_of_the_equator_follow_the_clock_on_the_wall() {
    let sydney = Zone::changing(
        39_600,
        vec![(utc("2026-04-04 16:00"), 36_000), (utc("2026-10-03 16:00"), 39_600)],
    );
    check_windows(
        &spans(DAY as u64, Some(&sydney)),
        &[
            ("2026-04-05 00:00", "2026-04-04 13:00", "2026-04-05 14:00"),
            ("2026-10-04 00:00", "2026-10-03 14:00", "2026-10-04 13:00"),
        ],
    );
    // Lord Howe Island moves its clocks by half an hour.
    let lord_howe = Zone::changing(39_600, vec![(utc("2026-04-04 15:00"), 37_800)]);
    check_windows(
        &spans(3_600, Some(&lord_howe)),
        &[
            ("2026-04-04 14:59:59", "2026-04-04 14:00", "2026-04-04 15:30"),
            ("2026-04-04 15:10", "2026-04-04 14:00", "2026-04-04 15:30"),
            ("2026-04-04 15:30", "2026-04-04 15:30", "2026-04-04 16:30"),
        ],
    );
}

/// Samoa crossed the date line, and had no 30th of December.
fn samoa() -> Zone {
    Zone::changing(-10 * 3_600, vec![(utc("2011-12-30 10:00"), 14 * 3_600)])
}

#[test]
fn a_day_that_the_clock_skips_does_not_exist_and_pays_no_debt() {
    check_windows(
        &spans(DAY as u64, Some(&samoa())),
        &[
            ("2011-12-30 09:59:59", "2011-12-29 10:00", "2011-12-30 10:00"),
            ("2011-12-30 10:00", "2011-12-30 10:00", "2011-12-31 10:00"),
        ],
    );
    let days = FixedWindow::new(10, Nanos::from_secs(DAY as u64)).unwrap();
    let quota = Quota::FixedWindow(days.in_zone(&samoa()).with_borrow(30).unwrap());
    let [noon, next_noon] =
        ["2011-12-29 22:00", "2011-12-30 22:00"].map(|text| u64::try_from(utc(text)).unwrap());
    let day = DAY as u64;
    let reset = noon + day / 2;
    check(
        &quota,
        &[
            (noon, take(40), None, 0, reset, reset + 3 * day),
            (noon, take(11), Some(day / 2 + day), 0, reset, reset + 3 * day),
            (next_noon, Charge::PEEK, None, 10, reset + day, reset + 3 * day),
        ],
    );
}

#[test]
fn zones_accept_unsorted_and_redundant_changes() {
    let day = |zone: &Zone| window_at(&spans(DAY as u64, Some(zone)), 10 * DAY as u64 * SECOND);
    assert_eq!(Zone::fixed(i32::MAX), Zone::fixed(86_400));
    assert_eq!(Zone::fixed(i32::MIN), Zone::fixed(-86_400));
    // Of several changes at one time the last wins; changes outside of time are ignored.
    let odd = Zone::changing(
        7,
        vec![(i64::MAX, 1), (864_000, 3_600), (i64::MIN, -1), (864_000, 60), (-9_999_999, 0)],
    );
    assert_eq!(odd, Zone::changing(0, vec![(864_000, 60)]));
    assert_eq!(Zone::changing(0, vec![(1 << 35, 60)]), Zone::utc());
    assert_ne!(Zone::changing(0, vec![((1 << 35) - 1, 60)]), Zone::utc());
    assert_eq!(day(&Zone::changing(0, vec![(5, 0)])), day(&Zone::utc()));
    // An hour before the epoch this clock went back from 01:30 to 23:00.
    let early = Zone::changing(9_000, vec![(-3_600, 0)]);
    assert_eq!(window_at(&spans(3_600, Some(&early)), 0), (0, 7_200 * SECOND));
}

/// A zone with arbitrary changes, some of them close together.
fn zones() -> impl Strategy<Value = (i32, Vec<(i64, i32)>)> {
    let offset = || prop_oneof![-100_000..100_000_i32, -50_000..50_000_i32, any::<i32>()];
    let time = prop_oneof![
        6 => 1_790_000_000..1_790_400_000_i64,
        1 => -300_000..300_000_i64,
        1 => 18_446_500_000..18_446_800_000_i64,
        1 => any::<i64>(),
    ];
    (offset(), prop::collection::vec((time, offset()), 0..12))
}

fn cuts() -> impl Strategy<Value = Result<Nanos, u32>> {
    let secs = |secs| Just(Ok(Nanos::from_secs(secs)));
    prop_oneof![
        3 => (1_000_000..200_000_000_000_000_u64).prop_map(|nanos| Ok(Nanos::new(nanos))),
        2 => prop_oneof![secs(1_800), secs(3_600), secs(21_600), secs(86_400), secs(604_800)],
        2 => (1..=120_u32).prop_map(Err),
    ]
}

fn cut(requests: u32, cut: Result<Nanos, u32>) -> FixedWindow {
    match cut {
        Ok(period) => FixedWindow::new(requests, period).unwrap(),
        Err(months) => FixedWindow::calendar(requests, months).unwrap(),
    }
}

fn instants() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1_789_900_000_000_000_000..1_790_500_000_000_000_000_u64,
        1 => 0..400_000_000_000_000_u64,
        1 => u64::MAX - 400_000_000_000_000..u64::MAX,
        1 => 0..u64::MAX,
    ]
}

#[test]
fn every_instant_lies_in_exactly_one_window() {
    let strategy = (zones(), cuts(), instants());
    runner()
        .run(&strategy, |((offset, changes), windows, instant)| {
            let windows = cut(1, windows).in_zone(&Zone::changing(offset, changes));
            let (start, end) = window_at(&windows, instant);
            prop_assert!(start <= instant && instant < end, "{start} {instant} {end}");
            prop_assert_eq!(window_at(&windows, start), (start, end));
            prop_assert_eq!(window_at(&windows, end - 1), (start, end));
            prop_assert_eq!(window_at(&windows, start + (instant - start) / 2), (start, end));
            if end < u64::MAX {
                prop_assert_eq!(window_at(&windows, end).0, end);
            }
            if start > 0 {
                prop_assert_eq!(window_at(&windows, start - 1).1, start);
            }
            Ok(())
        })
        .unwrap();
}

// Agreement with the twins.

/// Seeded, so that failures reproduce everywhere, wasm32 included.
fn runner() -> TestRunner {
    let config = Config {
        cases: 400,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
}

/// How the clock moves before a charge: mostly a little forward, sometimes far or back.
#[derive(Debug, Clone)]
enum Move {
    /// By thousandths of a period, and a few nanoseconds.
    By(i64, i64),
    /// Anywhere.
    To(u64),
    /// To the start of the trace.
    Home,
}

#[derive(Debug, Clone)]
struct Step {
    clock: Move,
    charge: Charge,
}

fn charges() -> impl Strategy<Value = Charge> {
    prop_oneof![
        1 => Just(Charge::PEEK),
        9 => (1..4_u64).prop_map(take),
        2 => (4..40_u64).prop_map(take),
        2 => (0..30_u64).prop_map(force),
        2 => (0..10_u64).prop_map(refund),
        1 => any::<u64>().prop_map(take),
        1 => prop_oneof![any::<u64>().prop_map(force), any::<u64>().prop_map(refund)],
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let by =
        |permille| (permille, -2..3_i64).prop_map(|(permille, nanos)| Move::By(permille, nanos));
    let clock = prop_oneof![
        40 => by(0..150_i64),
        12 => by(150..2_500_i64),
        6 => by(-1_500..0_i64),
        2 => by(2_500..60_000_i64),
        1 => any::<u64>().prop_map(Move::To),
        2 => Just(Move::Home),
    ];
    let step = (clock, charges()).prop_map(|(clock, charge)| Step { clock, charge });
    prop::collection::vec(step, 1..100)
}

fn moved(now: u64, home: u64, period: Nanos, clock: &Move) -> u64 {
    match clock {
        Move::By(permille, nanos) => {
            let thousandth = i64::try_from(period.as_nanos() / 1_000).unwrap();
            now.saturating_add_signed(thousandth.saturating_mul(*permille).saturating_add(*nanos))
        }
        Move::To(time) => *time,
        Move::Home => home,
    }
}

/// Requests, and the hits that may be borrowed.
fn allowances() -> impl Strategy<Value = (u32, u32)> {
    prop_oneof![(0..20_u32).prop_map(|requests| (requests, 0)), (1..12_u32, 0..30_u32)]
}

fn periods() -> impl Strategy<Value = Nanos> {
    // Odd lengths, so that nothing divides evenly, and the longest and shortest ones.
    prop_oneof![
        2 => Just(Nanos::from_secs(1)),
        6 => (1_000_000..3_000_000_000_u64).prop_map(Nanos::new),
        1 => Just(Nanos::new(1_000_000)),
        1 => Just(Nanos::from_secs(3_660 * DAY as u64)),
    ]
}

const START: std::ops::Range<u64> = 1_700_000_000_000_000_000..1_900_000_000_000_000_000;

/// Every decision equals the twin's, in all its parts.
fn agree(
    quota: &Quota,
    times_and_charges: impl Iterator<Item = (u64, Charge)>,
    mut twin: impl FnMut(Charge, Timestamp) -> Decision,
) -> Result<(), TestCaseError> {
    let mut state = [0; 4];
    for (index, (now, charge)) in times_and_charges.enumerate() {
        let now = Timestamp::from_nanos(now);
        let mut expected = twin(charge, now);
        if expected.outcome == (Outcome::Deny { retry_after: Nanos::ZERO }) {
            // At the end of time there is no next window. No answer asks for an immediate retry.
            expected.outcome = Outcome::Deny { retry_after: quota.period().nominal() };
        }
        let decision = decide(&mut state, quota, charge, now);
        prop_assert_eq!(decision, expected, "step {}: {:?} at {:?}", index, charge, now);
    }
    Ok(())
}

fn trace(home: u64, period: Nanos, steps: &[Step]) -> impl Iterator<Item = (u64, Charge)> {
    steps.iter().scan(home, move |now, step| {
        *now = moved(*now, home, period, &step.clock);
        Some((*now, step.charge))
    })
}

#[test]
fn fixed_window_agrees_with_its_twin() {
    runner()
        .run(&(allowances(), periods(), START, steps()), |(numbers, period, start, steps)| {
            let (requests, borrow) = numbers;
            let windows = SlowWindows::Each(period.as_nanos());
            let mut twin = FixedWindowTwin::new(requests, borrow, windows);
            let quota = fixed(requests, borrow, period);
            agree(&quota, trace(start, period, &steps), |charge, now| twin.decide(charge, now))
        })
        .unwrap();
}

#[test]
fn first_hit_window_agrees_with_its_twin() {
    runner()
        .run(&(allowances(), periods(), START, steps()), |(numbers, period, start, steps)| {
            let (requests, borrow) = numbers;
            let mut twin = FirstHitWindowTwin::new(requests, borrow, period);
            let quota = first_hit(requests, borrow, period);
            agree(&quota, trace(start, period, &steps), |charge, now| twin.decide(charge, now))
        })
        .unwrap();
}

#[test]
fn a_fixed_window_with_a_daily_reset_agrees_with_its_twin_and_records_its_last_hit() {
    let periods = prop_oneof![2 => periods(), 1 => Just(Nanos::from_secs(DAY.unsigned_abs()))];
    runner()
        .run(
            &(allowances(), periods, 0..DAY.unsigned_abs(), START, steps()),
            |((requests, borrow), period, secs, start, steps)| {
                let quota = fixed_reset_daily(requests, borrow, period, secs);
                let windows = SlowWindows::Each(period.as_nanos());
                let twin = FixedWindowTwin::new(requests, borrow, windows);
                let mut twin = ResetWindowTwin::new(twin, secs);
                let mut state = [0; 4];
                // At the end of time there is no further reset.
                let in_time = |(now, _): &(u64, Charge)| *now < u64::MAX;
                for (now, charge) in trace(start, period, &steps).take_while(in_time) {
                    let now = Timestamp::from_nanos(now);
                    let expected = twin.decide(charge, now);
                    prop_assert_eq!(decide(&mut state, &quota, charge, now), expected);
                    let last = twin.last.map(Timestamp::from_nanos);
                    prop_assert_eq!(quota.last_hit(&state, Timestamp::from_nanos(0)), last);
                }
                Ok(())
            },
        )
        .unwrap();
}

/// Everything is a multiple of a quarter of an hour: the zone's changes, the reset, the period.
#[test]
fn a_first_hit_window_with_a_daily_reset_agrees_with_its_twin() {
    const TICK: i64 = 900;
    let by = prop_oneof![8 => 0..60_i64, 2 => 60..1_000_i64, 2 => -200..0_i64];
    let steps = prop::collection::vec(((by, charges()), 0..3_u64), 1..100);
    let changes = prop::collection::vec((0..TICKS, -90..90_i32), 0..9);
    let strategy = (allowances(), -90..90_i32, changes, 0..96_i64, 1..400_i64, steps);
    runner()
        .run(&strategy, |((requests, borrow), offset, mut changes, time, period, steps)| {
            changes.sort_unstable();
            changes.dedup_by_key(|(time, _)| *time);
            let changes = changes.iter().map(|(time, offset)| (BASE + time * TICK, offset * 900));
            let zone = SlowZone { offset: offset * 900, changes: changes.collect() };
            let days = (BASE - 400 * TICK) / DAY..(BASE + (TICKS + 1_000) * TICK) / DAY;
            let resets = zone.instants(days.map(|day| day * DAY + time * TICK), TICK);
            let resets = resets.iter().map(|secs| secs.unsigned_abs() * SECOND).collect();
            let period = Nanos::from_secs((period * TICK).unsigned_abs());
            let mut twin = FirstHitWindowTwin::new(requests, borrow, period).with_resets(resets);
            let fast_zone = Zone::changing(zone.offset, zone.changes);
            let time = Nanos::from_secs((time * TICK).unsigned_abs());
            let window = FirstHitWindow::new(requests, period).unwrap();
            let window = window.with_borrow(borrow).unwrap();
            let window = window.with_reset(DailyReset::new(time, &fast_zone).unwrap());
            let quota = Quota::FirstHitWindow(window.clone());
            let (mut state, mut ticks) = ([0; 4], 0_i64);
            for ((by, charge), nanos) in steps {
                ticks = (ticks + by).clamp(1, TICKS - 1);
                let nanos = (BASE + ticks * TICK).unsigned_abs() * SECOND + nanos - 1;
                let now = Timestamp::from_nanos(nanos);
                let expected = twin.decide(charge, now);
                prop_assert_eq!(decide(&mut state, &quota, charge, now), expected);
                let open = window.open_window(&state, now);
                let open = open.map(|open| (open.start, open.count, open.last));
                let nanos = Timestamp::from_nanos;
                let expected = twin.open(now);
                let expected = expected.map(|(start, n, last)| (nanos(start), n, nanos(last)));
                prop_assert_eq!(open, expected);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn months_agree_with_their_twin() {
    runner()
        .run(&(allowances(), 1..30_u32, START, steps()), |(numbers, months, start, steps)| {
            let (requests, borrow) = numbers;
            let starts = month_starts().step_by(months as usize);
            let windows = SlowWindows::at_seconds(starts.take(7_100));
            let mut twin = FixedWindowTwin::new(requests, borrow, windows);
            let window = FixedWindow::calendar(requests, months).unwrap();
            let quota = Quota::FixedWindow(window.with_borrow(borrow).unwrap());
            let period = Nanos::from_secs(u64::from(months) * 30 * DAY as u64);
            agree(&quota, trace(start, period, &steps), |charge, now| twin.decide(charge, now))
        })
        .unwrap();
}

/// A local clock with windows, both in multiples of a tick.
#[derive(Debug, Clone)]
struct Clock {
    tick: i64,
    zone: SlowZone,
    /// The period in ticks, or months.
    cut: Result<i64, u32>,
}

/// The start of the clocks' changes and of the traces: 2026-09-21 13:30 UTC.
const BASE: i64 = 1_790_000_000 / 3_600 * 3_600 + 1_800;
/// The length of the changes and the traces, in ticks.
const TICKS: i64 = 3_000;

fn clocks() -> impl Strategy<Value = Clock> {
    let tick = prop_oneof![Just(1_i64), Just(60), Just(900)];
    let changes = prop::collection::vec((0..TICKS, -90..90_i32), 0..9);
    let cut = prop_oneof![
        4 => (1..300_i64).prop_map(Ok),
        1 => Just(Ok(4)),
        1 => Just(Ok(96)),
        1 => Just(Ok(672)),
        2 => (1..4_u32).prop_map(Err),
    ];
    (tick, -90..90_i32, changes, cut).prop_map(|(tick, offset, mut changes, cut)| {
        // Reading months second by second is slow.
        let tick = if cut.is_ok() { tick } else { 900 };
        changes.sort_unstable();
        changes.dedup_by_key(|(time, _)| *time);
        let ticks = i32::try_from(tick).unwrap();
        let changes = changes.iter();
        let changes = changes.map(|(time, offset)| (BASE + time * tick, offset * ticks)).collect();
        Clock { tick, zone: SlowZone { offset: offset * ticks, changes }, cut }
    })
}

impl Clock {
    fn slow_windows(&self) -> SlowWindows {
        let (from, to) = (BASE - 100 * self.tick, BASE + (TICKS + 100) * self.tick);
        let instants = match self.cut {
            Ok(ticks) => {
                let period = ticks * self.tick;
                // Weeks are counted from a Monday, 1969-12-29.
                let origin = if period % (7 * DAY) == 0 { -3 * DAY } else { 0 };
                let first = (from - period - origin).div_euclid(period);
                let last = (to - origin).div_euclid(period) + 12;
                let readings = (first..last).map(|index| index * period + origin);
                self.zone.instants(readings, self.tick)
            }
            Err(months) => {
                let near = from - 100 * DAY..to + 1_200 * DAY;
                let readings = month_starts().step_by(months as usize);
                let readings = readings.skip_while(|reading| *reading < near.start);
                let readings = readings.take_while(|reading| *reading < near.end);
                self.zone.instants(readings, self.tick)
            }
        };
        SlowWindows::at_seconds(instants.into_iter())
    }

    fn windows(&self, requests: u32, borrow: u32) -> FixedWindow {
        let cut = self.cut.map(|ticks| Nanos::from_secs((ticks * self.tick).unsigned_abs()));
        let zone = Zone::changing(self.zone.offset, self.zone.changes.clone());
        let windows = match cut {
            Ok(period) => FixedWindow::new(requests, period).unwrap(),
            Err(months) => FixedWindow::calendar(requests, months).unwrap(),
        };
        windows.with_borrow(borrow).unwrap().in_zone(&zone)
    }
}

#[test]
fn windows_by_a_local_clock_agree_with_their_twin() {
    let step = (prop_oneof![8 => 0..60_i64, 2 => 60..1_000_i64, 2 => -200..0_i64], charges());
    let steps = prop::collection::vec((step, 0..3_u64), 1..100);
    runner()
        .run(&(allowances(), clocks(), steps), |((requests, borrow), clock, steps)| {
            // Debts of at most ten windows, so that the twin's list of windows is long enough.
            let borrow = borrow.min(requests * 9);
            let mut twin = FixedWindowTwin::new(requests, borrow, clock.slow_windows());
            let quota = Quota::FixedWindow(clock.windows(requests, borrow));
            let mut ticks = 0_i64;
            let trace = steps.iter().map(|((by, charge), nanos)| {
                ticks = (ticks + by).clamp(1, TICKS - 1);
                let secs = (BASE + ticks * clock.tick).unsigned_abs();
                (secs * SECOND + nanos - 1, *charge)
            });
            agree(&quota, trace, |charge, now| twin.decide(charge, now))
        })
        .unwrap();
}

// Promises of all windows.

/// Windows of every kind, each with a length for the traces.
fn quotas() -> impl Strategy<Value = (Quota, Nanos)> {
    let local = (allowances(), zones(), cuts());
    prop_oneof![
        (allowances(), periods()).prop_map(|((r, b), period)| (fixed(r, b, period), period)),
        (allowances(), periods()).prop_map(|((r, b), period)| (first_hit(r, b, period), period)),
        (allowances(), periods(), 0..DAY as u64)
            .prop_map(|((r, b), period, secs)| { (reset_daily(r, b, period, secs), period) }),
        (allowances(), periods(), 0..DAY as u64)
            .prop_map(|((r, b), period, secs)| (fixed_reset_daily(r, b, period, secs), period)),
        local.prop_map(|((requests, borrow), (offset, changes), windows)| {
            let zone = Zone::changing(offset, changes);
            let window = cut(requests, windows).in_zone(&zone).with_borrow(borrow).unwrap();
            let quota = Quota::FixedWindow(window);
            let period = quota.period().nominal();
            (quota, period)
        }),
    ]
}

/// The approximate time of the zones' changes.
const NEAR: std::ops::Range<u64> = 1_789_950_000_000_000_000..1_790_400_000_000_000_000;

#[test]
fn a_denied_charge_succeeds_at_its_retry_after_and_not_before() {
    runner()
        .run(&(quotas(), NEAR, steps()), |((quota, period), start, steps)| {
            let mut state = [0; 4];
            for (now, charge) in trace(start, period, &steps) {
                let decision = decide(&mut state, &quota, charge, Timestamp::from_nanos(now));
                let Outcome::Deny { retry_after } = decision.outcome else { continue };
                prop_assert!(retry_after > Nanos::ZERO || now == u64::MAX);
                let again = Charge::Take(charge.hits());
                let can_fit = charge.hits().needed() <= u64::from(quota.capacity());
                let then = now.saturating_add(retry_after.as_nanos());
                if !can_fit || then == u64::MAX {
                    continue;
                }
                let early = Timestamp::from_nanos(then - 1);
                prop_assert!(!decide(&mut state.clone(), &quota, again, early).is_allow());
                let then = Timestamp::from_nanos(then);
                prop_assert!(decide(&mut state.clone(), &quota, again, then).is_allow());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_state_past_its_keep_until_decides_as_a_new_one() {
    runner()
        .run(&(quotas(), NEAR, steps(), charges()), |((quota, period), start, steps, next)| {
            let mut state = [0; 4];
            for (now, charge) in trace(start, period, &steps) {
                let now = Timestamp::from_nanos(now);
                let kept = decide(&mut state, &quota, charge, now).keep_until;
                if kept.as_nanos() == u64::MAX {
                    continue;
                }
                let (mut old, mut new) = (state, [0; 4]);
                let with_state = decide(&mut old, &quota, next, kept.max(now));
                let without = decide(&mut new, &quota, next, kept.max(now));
                prop_assert_eq!(with_state, without);
            }
            Ok(())
        })
        .unwrap();
}

/// The hits that each window admitted in a trace without refunds, by the window's start.
fn admitted(quota: &Quota, trace: impl Iterator<Item = (u64, Charge)>) -> Vec<(u64, u64)> {
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    let mut state = [0; 4];
    for (now, charge) in trace.filter(|(_, charge)| !matches!(charge, Charge::Refund(_))) {
        let now = Timestamp::from_nanos(now);
        let before = decide(&mut state, quota, Charge::PEEK, now).remaining;
        let taken = before - decide(&mut state, quota, charge, now).remaining;
        match admitted.last_mut() {
            _ if taken == 0 => {}
            Some((start, hits)) if *start == state[0] => *hits += taken,
            _ => admitted.push((state[0], taken)),
        }
    }
    admitted
}

/// Hits that are charged ahead and spent later are spent in the window that counted them.
#[test]
fn hits_charged_ahead_keep_the_bound_of_a_window() {
    let late = prop::collection::vec(prop_oneof![Just(0), Just(1_000), 0..1_000_u64], 100);
    let strategy = (allowances(), periods(), START, steps(), any::<bool>(), late);
    runner()
        .run(&strategy, |((requests, borrow), period, start, steps, is_fixed, late)| {
            let quota = if is_fixed { fixed } else { first_hit }(requests, borrow, period);
            let (mut state, mut newest, mut windows) = ([0; 4], 0, Vec::<(u64, u64, u64)>::new());
            for ((now, charge), mils) in trace(start, period, &steps).zip(late) {
                let is_take = matches!(charge, Charge::Take(hits) if hits != Hits::PEEK);
                if !is_take
                    || !decide(&mut state, &quota, charge, Timestamp::from_nanos(now)).is_allow()
                {
                    continue;
                }
                // If the clock steps back, time stands still until it has caught up.
                newest = now.max(newest);
                let until = quota.spendable_until(&state, Timestamp::from_nanos(now)).as_nanos();
                if until == u64::MAX {
                    continue;
                }
                prop_assert!(newest < until);
                let spent =
                    newest + (u128::from(until - 1 - newest) * u128::from(mils) / 1_000) as u64;
                let hits = charge.hits().get();
                match windows.last_mut() {
                    Some((_, end, sum)) if *end == until => {
                        prop_assert!(spent < *end);
                        *sum += hits;
                    }
                    last => {
                        prop_assert!(last.is_none_or(|(_, end, _)| *end <= spent));
                        windows.push((until.saturating_sub(period.as_nanos()), until, hits));
                    }
                }
            }
            for (start, end, hits) in windows {
                prop_assert!(end - start == period.as_nanos());
                prop_assert!(hits <= u64::from(requests) + u64::from(borrow));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn hits_may_be_spent_until_the_window_that_counted_them_ends() {
    #[track_caller]
    fn check(quota: &Quota, table: &[(u64, Charge, u64)]) {
        let mut state = [0; 4];
        for (secs, charge, until) in table {
            decide(&mut state, quota, *charge, at(*secs));
            assert_eq!(quota.spendable_until(&state, at(*secs)), at(*until), "at {secs}");
            assert_eq!(quota.refund_spendable_until(&state, at(*secs)), at(*until), "at {secs}");
        }
    }
    // The third steps back before the window; the last peeks at a window that is over.
    check(
        &fixed(9, 0, MINUTE),
        &[
            (6_010, take(1), 6_060),
            (6_130, take(1), 6_180),
            (6_010, take(1), 6_180),
            (6_200, Charge::PEEK, 6_240),
        ],
    );
    check(
        &first_hit(9, 0, MINUTE),
        &[
            (6_010, take(1), 6_070),
            (6_130, take(1), 6_190),
            (6_010, take(1), 6_190),
            (6_200, Charge::PEEK, 6_260),
        ],
    );
    // A reset at noon comes first, on the first day and on the next; the clock steps back before it.
    let day = Nanos::from_secs(86_400);
    check(
        &fixed_reset_daily(9, 0, day, 43_200),
        &[
            (864_000, take(1), 864_000 + 43_200),
            (864_000 + 43_199, take(1), 864_000 + 43_200),
            (864_000 + 43_200, Charge::PEEK, 864_000 + 86_400),
            (864_000 + 43_200, take(1), 864_000 + 86_400),
            (864_000, take(1), 864_000 + 86_400),
            (864_000 + 86_400, take(1), 864_000 + 86_400 + 43_200),
        ],
    );
    // In debt, a window follows at once.
    check(&first_hit(5, 5, MINUTE), &[(6_010, take(8), 6_070), (6_090, take(1), 6_130)]);
}

#[test]
fn neither_one_window_nor_several_admit_more_than_they_may() {
    let strategy = (allowances(), periods(), START, steps(), any::<bool>());
    runner()
        .run(&strategy, |((requests, borrow), period, start, steps, is_fixed)| {
            let quota = if is_fixed { fixed } else { first_hit }(requests, borrow, period);
            let admitted = admitted(&quota, trace(start, period, &steps));
            prop_assert!(admitted.is_sorted());
            for (index, (first, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (last, hits) in &admitted[index..] {
                    sum += hits;
                    // Windows without hits pay too, and are not in the list.
                    let windows = (last - first) / period.as_nanos() + 1;
                    let most = u128::from(windows) * u128::from(requests) + u128::from(borrow);
                    prop_assert!(u128::from(sum) <= most, "{} in {} windows", sum, windows);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_state_and_no_time_make_a_decision_fail() {
    let day = Nanos::from_secs(DAY as u64);
    let wild = Zone::changing(i32::MIN, vec![(i64::MIN, 5), (0, i32::MAX), (1, -7), (1 << 34, 9)]);
    let most = u32::MAX - 1;
    let quotas = [
        fixed(u32::MAX, 0, MINUTE),
        fixed(1, most, Nanos::new(1_000_000)),
        fixed(1, most, Nanos::from_secs(3_660 * DAY as u64)),
        first_hit(1, most, Nanos::from_secs(3_660 * DAY as u64)),
        first_hit(0, 0, MINUTE),
        reset_daily(1, most, Nanos::from_secs(3_660 * DAY as u64), 10_800),
        fixed_reset_daily(1, most, Nanos::from_secs(3_660 * DAY as u64), 10_800),
        Quota::FixedWindow(FixedWindow::calendar(1, 120).unwrap().with_borrow(most).unwrap()),
        Quota::FixedWindow(FixedWindow::calendar(most, 1).unwrap().in_zone(&wild)),
        Quota::FixedWindow(
            FixedWindow::new(1, day).unwrap().with_borrow(most).unwrap().in_zone(&wild),
        ),
    ];
    let word = || prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), START];
    let charge =
        prop_oneof![word().prop_map(take), word().prop_map(force), word().prop_map(refund),];
    let strategy = ([word(), word(), word(), word()], word(), charge);
    runner()
        .run(&strategy, |(words, now, charge)| {
            for quota in &quotas {
                let mut state = words;
                let decision = decide(&mut state, quota, charge, Timestamp::from_nanos(now));
                prop_assert!(decision.remaining <= u64::from(quota.capacity()));
                prop_assert!(decision.keep_until >= decision.reset_at);
                let until = quota.spendable_until(&state, Timestamp::from_nanos(now));
                prop_assert!(until >= Timestamp::from_nanos(now));
            }
            Ok(())
        })
        .unwrap();
}
