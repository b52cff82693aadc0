//! Leases to filters, their returns and debits, over holdings.

use super::world::{START, World, key};
use crate::holdings::Failure;
use crate::{Modes, wait};
use tidegate_core::{
    Answer, DebitRequest, Descriptor, Direction, Hits, Lease, LeaseRequest, LeaseReturn, Nanos,
    Request, Verdict,
};

fn modes() -> Modes {
    Modes { lease_ttl: Some(Nanos::from_secs(2)), ..Modes::default() }
}

fn request(hits: u64, descriptors: Vec<Descriptor>) -> Request {
    Request { domain: "d".into(), descriptors, hits: Hits::new(hits) }
}

/// A request whose client wants `wanted` tokens, from the first sidecar. Its clock is that of the world.
fn lease(world: &mut World, call: u64, (waiting, wanted): (u64, u64)) -> Answer {
    let ask = LeaseRequest {
        call,
        proxy: 1,
        clock: world.now(),
        wanted: vec![wanted],
        waiting: vec![waiting],
        headers: Default::default(),
    };
    let (authority, now) = (world.sidecars[0].authority.clone(), world.now());
    let request = request(1, key("v"));
    let asked = Box::pin(async move { authority.decide_leasing(&request, &ask, now).await });
    world.finish(asked).expect("a decision")
}

fn give_back(world: &mut World, id: u64, call: u64, tokens: u64) {
    let mut descriptors = key("v");
    descriptors[0].direction = Direction::Refund;
    let back = LeaseReturn { call, leases: vec![id] };
    let (authority, now) = (world.sidecars[0].authority.clone(), world.now());
    wait(authority.return_tokens(&request(tokens, descriptors), &back, now)).expect("an answer");
}

#[test]
fn leases_are_taken_from_holdings_and_come_back_through_them() {
    for limit in [
        "{unit: day, requests_per_unit: 5000}",
        "{algorithm: first_hit_window, requests: 5000, period: 1d}",
        "{algorithm: sliding_window, requests: 5000, period: 1d}",
    ] {
        let limits = format!("- {{key: k, rate_limit: {limit}}}\n");
        let mut world = World::with(2, &limits, modes(), Failure::Deny);
        let answer = lease(&mut world, 128, (20, 10));
        let lease = answer.statuses[0].lease.expect("a lease");
        assert!(lease.tokens >= 20, "{} tokens", lease.tokens);
        assert!(world.left(key("v")) <= 5_000 - 21 - 10);
        world.rest(1_000);
        give_back(&mut world, lease.id, 256, 15);
        give_back(&mut world, lease.id, 256, 15);
        // All that is idle goes back, and the tokens of the lease that did not come back stay charged.
        world.rest(3_000);
        assert_eq!(world.left(key("v")), 5_000 - 1 - lease.tokens + 15, "{limit}");
    }
}

/// A process that starts knows of no holding. Tokens that come back to one have it looked after.
#[test]
fn returned_tokens_go_back_though_the_process_is_new() {
    let limits = "- {key: k, rate_limit: {unit: day, requests_per_unit: 5000}}\n";
    let mut world = World::with(1, limits, modes(), Failure::Deny);
    let lease = lease(&mut world, 128, (20, 10)).statuses[0].lease.expect("a lease");
    world.kill(0);
    give_back(&mut world, lease.id, 256, 15);
    world.rest(3_000);
    assert_eq!(world.left(key("v")), 5_000 - 1 - lease.tokens + 15);
}

#[test]
fn leases_end_with_their_holding() {
    // A bucket of a minute's ring lasts a second; tokens of a token bucket at most two.
    for (limit, most) in [
        ("{algorithm: sliding_buckets, requests: 6000, period: 1m}", 1_000),
        ("{algorithm: token_bucket, requests: 6000, period: 1m, burst: 6000}", 2_000),
        ("{unit: second, requests_per_unit: 6000}", 1_000),
    ] {
        let limits = format!("- {{key: k, rate_limit: {limit}}}\n");
        let mut world = World::with(1, &limits, modes(), Failure::Deny);
        let mut leased = 0;
        for call in 1..60 {
            let answer = lease(&mut world, call * 128, (5, 20));
            let Some(lease) = answer.statuses[0].lease else { continue };
            leased += u64::from(lease.tokens);
            let since = world.now().as_nanos() / 1_000_000 - START;
            let until = lease.valid_until.as_nanos() / 1_000_000 - START;
            let end = match most {
                1_000 => since / 1_000 * 1_000 + 1_000,
                most => since + most,
            };
            assert!(until <= end, "{limit}: leased at {since} until {until}");
            world.pass(73_000);
            world.tend();
        }
        assert!(leased > 500, "{leased} leased of {limit}");
    }
}

#[test]
fn denials_that_filters_keep_end_with_that_of_the_holding() {
    let limits = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}\n";
    let mut world = World::with(2, limits, modes(), Failure::Deny);
    for _ in 0..100 {
        world.ask(1, 1, key("v"));
        world.pass(2_000);
    }
    let answer = lease(&mut world, 128, (0, 10));
    assert_eq!(answer.verdict, Verdict::Deny);
    let denial: Lease = answer.statuses[0].lease.expect("a denial");
    let kept = denial.valid_until.saturating_since(world.now());
    // The other sidecar may still give tokens back.
    assert!(denial.tokens == 0 && kept <= Nanos::new(200_000_000), "kept for {kept}");
    assert!(answer.statuses[0].reset > Nanos::from_secs(3_600));
}

fn debit(world: &mut World, call: u64, hits: u64) -> Verdict {
    let debit = DebitRequest { call, sequence: 7, streams: vec![1], ages: vec![Nanos::ZERO] };
    let (authority, now) = (world.sidecars[0].authority.clone(), world.now());
    let request = request(hits, key("v"));
    let asked = Box::pin(async move { authority.debit(&request, &debit, None, now).await });
    world.finish(asked).expect("an answer").verdict
}

/// Debits that came again had their holding refilled, although they were counted before. The tokens stayed there until
/// their window ended.
#[test]
fn what_is_refilled_for_debits_that_were_counted_before_comes_back() {
    let limits = "- {key: k, rate_limit: {unit: day, requests_per_unit: 1000}}\n";
    let mut world = World::with(2, limits, modes(), Failure::Deny);
    for _ in 0..5 {
        assert_eq!(debit(&mut world, 128, 60), Verdict::Allow);
        world.rest(3_000);
        assert_eq!(world.left(key("v")), 940);
    }
}

/// Debits take what is held; the rest is charged to the shared counter afterwards.
#[test]
fn debits_count_even_beyond_what_is_held_and_once() {
    let limits = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}\n";
    let mut world = World::with(2, limits, modes(), Failure::Deny);
    assert_eq!(debit(&mut world, 128, 60), Verdict::Allow);
    assert_eq!(debit(&mut world, 128, 60), Verdict::Allow);
    world.rest(1_500);
    assert_eq!(world.left(key("v")), 40);
    assert_eq!(debit(&mut world, 256, 70), Verdict::Deny);
    world.rest(1_500);
    assert_eq!(world.left(key("v")), 0);
    world.ask(1, 1, key("v"));
    world.pass(5_000);
    assert_eq!(world.allowed(), 0);
}
