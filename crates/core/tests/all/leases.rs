//! How many tokens a lease has, and when it ends for its holder.

use tidegate_core::{Demand, Lease, Nanos, Timestamp, lease_tokens};

#[track_caller]
fn check(left: u64, capacity: u32, proxies: u32, (waiting, wanted): (u64, u64), tokens: u32) {
    assert_eq!(lease_tokens(left, capacity, proxies, Demand { waiting, wanted }), tokens);
}

#[test]
fn waiting_requests_come_first_and_the_rest_is_shared() {
    check(100, 100, 1, (0, 1_000), 25);
    check(100, 100, 1, (0, 10), 10);
    check(100, 100, 5, (0, 1_000), 5);
    check(100, 100, 1, (20, 1_000), 40);
    check(100, 100, 1, (200, 1_000), 100);
    check(100, 100, 0, (0, 1_000), 25);
    check(0, 100, 1, (5, 5), 0);
}

#[test]
fn near_the_limit_only_waiting_requests_get_tokens() {
    check(3, 100, 1, (0, 1_000), 0);
    check(4, 100, 1, (0, 1_000), 1);
    check(3, 100, 1, (2, 1_000), 2);
}

#[test]
fn small_limits_have_tokens_for_waiting_requests_only() {
    check(9, 9, 1, (0, 9), 0);
    check(9, 9, 1, (3, 9), 3);
    check(10, 10, 1, (0, 9), 2);
}

#[test]
fn no_numbers_lead_to_more_than_is_left() {
    let numbers = [0, 1, 3, 9, 10, 1 << 32, (1 << 33) + 5, u64::MAX - 1, u64::MAX];
    for (left, waiting) in numbers.into_iter().flat_map(|left| numbers.map(|other| (left, other))) {
        for wanted in numbers {
            for proxies in [0, 1, 64, u32::MAX] {
                let tokens = lease_tokens(left, u32::MAX, proxies, Demand { waiting, wanted });
                assert!(u64::from(tokens) <= left && tokens != Lease::UNLIMITED);
                assert!(u64::from(tokens) >= waiting.min(left).min(u64::from(u32::MAX - 1)));
            }
        }
    }
}

#[test]
fn a_lease_ends_slightly_early_for_its_holder() {
    #[track_caller]
    fn check(left: u64, clock: u64, until: Option<u64>) {
        let deadline = Lease::deadline(Nanos::new(left), Timestamp::from_nanos(clock));
        assert_eq!(deadline, until.map(Timestamp::from_nanos));
    }
    check(2_048, 7, Some(7 + 2_046));
    check(2_049, 7, Some(7 + 2_046));
    check(2, 0, Some(1));
    check(1, 0, None);
    check(0, 0, None);
    check(2_048, u64::MAX, None);
    check(2_048, u64::MAX - 2_046, Some(u64::MAX));
}
