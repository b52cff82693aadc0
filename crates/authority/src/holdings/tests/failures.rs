//! Servers that are away, answers that are lost, sidecars that are killed.

use super::world::{Network, World, key};
use crate::Modes;
use crate::holdings::Failure;
use tidegate_core::Nanos;

const PER_MINUTE: &str = "- {key: k, rate_limit: {unit: minute, requests_per_unit: 3000}}\n";

fn set(world: &World, network: Network) {
    *world.server.network.lock().unwrap() = network;
}

/// Asks every millisecond.
fn ask(world: &mut World, requests: usize) {
    for request in 0..requests {
        let sidecars = world.sidecars.len();
        world.ask(request % sidecars, 1, key("v"));
        world.pass(1_000);
        if request % 250 == 0 {
            world.tend();
        }
    }
}

#[test]
fn holdings_are_spent_while_the_server_is_away_and_then_the_mode_decides() {
    for (failure, passes) in [(Failure::Deny, false), (Failure::Allow, true)] {
        let mut world = World::with(1, PER_MINUTE, Modes::default(), failure);
        ask(&mut world, 500);
        assert_eq!(world.allowed(), 500);
        let charged = 3_000 - world.left(key("v")) as usize;
        assert!(charged > 600, "{charged} charged");
        set(&world, Network::Down);
        ask(&mut world, charged - 500);
        assert_eq!(world.allowed(), charged, "with {failure:?}");
        assert!(
            world.sidecars[0]
                .authority
                .shared_trouble()
                .is_none_or(|cause| { cause == "the counters cannot be reached: no answer" })
        );
        world.pass(5_000);
        ask(&mut world, 100);
        world.pass(5_000);
        assert_eq!(world.waiting(), 0);
        let passed = if passes { 100 } else { 0 };
        assert_eq!(world.allowed(), charged + passed, "with {failure:?}");
        assert!(world.sidecars[0].authority.shared_trouble().is_some());
        set(&world, Network::Up);
        ask(&mut world, 3_000 - charged);
        world.pass(5_000);
        assert_eq!(world.allowed(), 3_000 + passed, "with {failure:?}");
        assert_eq!(world.sidecars[0].authority.shared_trouble(), None);
    }
}

/// Requests that only the true states can decide.
#[test]
fn direct_decisions_are_made_by_the_mode_too() {
    let limits = "
- key: k
  rate_limit: {unit: minute, requests_per_unit: 30}
- key: c
  rate_limits: [{count_denied: true, unit: minute, requests_per_unit: 3}]
";
    for (failure, passes) in [(Failure::Deny, 3), (Failure::Allow, 13)] {
        let mut world = World::with(1, limits, Modes::default(), failure);
        let of = || {
            let entry = tidegate_core::Entry::new("c", "v");
            vec![tidegate_core::Descriptor::new(vec![entry])]
        };
        for _ in 0..6 {
            world.ask(0, 1, of());
            world.pass(2_000);
        }
        assert_eq!(world.allowed(), 3);
        set(&world, Network::Down);
        for _ in 0..10 {
            world.ask(0, 1, of());
            world.pass(2_000);
        }
        assert_eq!((world.allowed(), world.waiting()), (passes, 0), "with {failure:?}");
    }
}

/// Nobody knows whether a refill without an answer was made. Its tokens are never spent.
#[test]
fn lost_answers_strand_tokens_and_never_double_them() {
    let mut world = World::new(3, PER_MINUTE);
    for turn in 0..60 {
        set(&world, if turn % 10 == 5 { Network::Deaf } else { Network::Up });
        ask(&mut world, 20);
    }
    set(&world, Network::Up);
    world.rest(2_000);
    let (allowed, left) = (world.allowed() as u32, world.left(key("v")));
    assert!(allowed + left <= 3_000, "{allowed} and {left}");
    for _ in 0..3 {
        ask(&mut world, 1_500);
    }
    assert!(world.allowed() <= 3_000, "{} allowed", world.allowed());
}

/// A kill between the commit in the server and the write to the local counters loses the tokens of one refill for
/// their window, and no more.
#[test]
fn a_kill_after_the_commit_strands_tokens_for_one_window() {
    let mut world = World::new(2, PER_MINUTE);
    ask(&mut world, 400);
    let mut kills = 0;
    for _ in 0..4_000 {
        let commands = world.commands();
        world.ask(0, 1, key("v"));
        world.pass(250);
        if world.commands() > commands {
            // The server has it, the sidecar does not.
            world.pass(500);
            world.kill(0);
            kills += 1;
            if kills == 20 {
                break;
            }
        }
        world.pass(500);
    }
    assert_eq!(kills, 20);
    world.rest(2_000);
    let stranded = 3_000 - world.allowed() as u32 - world.left(key("v"));
    assert!(stranded > 0, "nothing was stranded");
    ask(&mut world, 4_000);
    assert!(world.allowed() + (stranded as usize) <= 3_000, "{} allowed", world.allowed());
    // The next minute has all of its tokens.
    let minute = 60_000 - world.now().as_nanos() / 1_000_000 % 60_000;
    world.rest(minute + 100);
    let before = world.allowed();
    ask(&mut world, 4_000);
    assert_eq!(world.allowed() - before, 3_000);
}

/// Holdings outlive their process.
#[test]
fn a_sidecar_that_starts_again_spends_the_tokens_that_it_held() {
    let mut world = World::new(1, PER_MINUTE);
    ask(&mut world, 500);
    let (charged, commands) = (3_000 - world.left(key("v")) as usize, world.commands());
    world.kill(0);
    set(&world, Network::Down);
    ask(&mut world, charged - 500);
    assert_eq!(world.allowed(), charged);
    assert!(world.commands() <= commands + 2);
}

/// A task that is dropped, as by a runtime that ends, leaves nobody waiting.
#[test]
fn a_refill_that_is_given_up_answers_those_who_wait() {
    let mut world = World::new(1, PER_MINUTE);
    ask(&mut world, 1);
    for _ in 0..1_000 {
        world.ask(0, 1, key("v"));
    }
    world.drop_tasks(0);
    world.pass(1_000);
    assert_eq!((world.waiting(), world.allowed()), (0, 1));
    ask(&mut world, 10);
    world.pass(2_000);
    assert_eq!(world.allowed(), 11);
}

/// More requests than may wait are refused, not passed, whatever the failure mode.
#[test]
fn too_many_waiting_requests_are_an_error() {
    let mut world = World::with(1, PER_MINUTE, Modes::default(), Failure::Allow);
    // The first one does not wait for a refill.
    for _ in 0..65_538 {
        world.ask(0, 1, key("v"));
    }
    assert_eq!((world.answered.len(), world.allowed()), (1, 0));
    assert!(world.answered[0].answer.is_err());
    world.pass(10_000);
    assert_eq!((world.waiting(), world.allowed()), (0, 3_000));
}

/// Alone, each sidecar admits its share, and owes it to the server.
#[test]
fn sidecars_admit_their_shares_while_the_server_is_away() {
    for (limit, minutes) in [
        ("{unit: minute, requests_per_unit: 3000}", 1),
        ("{algorithm: sliding_window, requests: 3000, period: 1m}", 1),
        ("{algorithm: token_bucket, requests: 3000, period: 1m, burst: 6000}", 2),
    ] {
        let limits = format!("- {{key: k, rate_limit: {limit}}}\n");
        let mut world = World::with(3, &limits, Modes::default(), Failure::Local);
        ask(&mut world, 30);
        world.rest(2_500);
        set(&world, Network::Down);
        ask(&mut world, 9_000);
        world.pass(5_000);
        let share = 1_000 * minutes;
        assert_eq!((world.waiting(), world.allowed()), (0, 30 + 3 * share), "{limit}");
        let denied = world.answered.last().and_then(|last| last.answer.as_ref().ok());
        let reset = denied.expect("an answer").statuses[0].reset;
        assert!(reset <= Nanos::from_secs(60 * minutes as u64), "{reset}");
        // Back again, it hears of all of it.
        set(&world, Network::Up);
        ask(&mut world, 30);
        world.rest(2_500);
        let left = world.left(key("v"));
        assert!(left < 1_000, "{left} left of {limit}");
    }
}

/// Symptom: with the mode `local`, two sidecars of a fleet admitted the whole of a limit each. Cause: sidecars were told
/// apart by a random one of 64 bits, so two in 64 had the same and counted as one.
#[test]
fn each_sidecar_of_a_large_fleet_counts() {
    let mut world =
        World::new(100, "- {key: k, rate_limit: {unit: hour, requests_per_unit: 100}}\n");
    world.rest(25_000);
    for sidecar in &world.sidecars {
        assert_eq!(sidecar.authority.sidecars_seen(), Some(100));
    }
}

/// Symptom: after 10 to 20 minutes without the server, the mode `local` denied everything. Cause: the number of sidecars was
/// forgotten with time, although no refill could tell it again.
#[test]
fn a_sidecar_admits_its_share_however_long_the_server_is_away() {
    let mut world = World::with(2, PER_MINUTE, Modes::default(), Failure::Local);
    ask(&mut world, 30);
    world.rest(2_500);
    set(&world, Network::Down);
    ask(&mut world, 9_000);
    world.pass(5_000);
    for minutes in [5, 20, 120] {
        world.rest(minutes * 60_000);
        let before = world.allowed();
        ask(&mut world, 9_000);
        world.pass(5_000);
        // A sidecar may be asked at the edge of a window.
        let more = world.allowed() - before;
        assert!((3_000..=6_000).contains(&more), "{more} after {minutes} minutes");
    }
}

/// Nobody knows how many others there are.
#[test]
fn a_sidecar_that_never_reached_the_server_denies_alone() {
    let mut world = World::with(1, PER_MINUTE, Modes::default(), Failure::Local);
    set(&world, Network::Down);
    ask(&mut world, 100);
    world.pass(5_000);
    assert_eq!((world.waiting(), world.allowed()), (0, 0));
}

/// Symptom: a limit of 10,000 that two sidecars had used up admitted hit 10,001, as an answer of the server was late. Cause:
/// with the mode `local`, a request without an answer took from a whole share of the limit, although the sidecar knew
/// that nothing was left in this window.
#[test]
fn a_limit_that_is_used_up_stays_so_without_the_server() {
    for network in [Network::Deaf, Network::Down] {
        let mut world = World::with(2, PER_MINUTE, Modes::default(), Failure::Local);
        ask(&mut world, 4_000);
        let before = world.allowed();
        assert!((2_970..=3_000).contains(&before), "{before} of 3000");
        set(&world, network);
        // Longer than a denial is kept.
        ask(&mut world, 9_000);
        world.pass(5_000);
        assert_eq!((world.waiting(), world.allowed()), (0, before), "{network:?}");
        // The next window is one that nothing is known of.
        world.rest(50_000);
        ask(&mut world, 4_000);
        world.pass(5_000);
        assert_eq!((world.waiting(), world.allowed()), (0, before + 3_000), "{network:?}");
    }
}

/// What is left when answers begin to be lost is admitted once more at most, by all sidecars that do not hear: the tokens of
/// a refill whose answer is lost are spent by nobody.
#[test]
fn lost_answers_admit_no_more_than_was_left() {
    for deaf_after in [500, 1_500, 2_500, 2_900] {
        let mut world = World::with(2, PER_MINUTE, Modes::default(), Failure::Local);
        ask(&mut world, deaf_after);
        let (before, left) = (world.allowed(), world.left(key("v")) as usize);
        let held = 3_000 - before - left;
        set(&world, Network::Deaf);
        ask(&mut world, 9_000);
        world.pass(5_000);
        assert_eq!(world.waiting(), 0);
        let more = world.allowed() - before;
        // Each sidecar knows what was left at its last refill: a quarter of its share more than there is now.
        let most = held + 2 * (left + left / 2 + 100).min(1_500);
        assert!(more <= most, "{more} of {most} after {deaf_after}, {left} left, {held} held");
    }
}

/// A limit in many parts is decided on as many that are thrown away.
#[test]
fn limits_of_all_algorithms_pass_without_the_server_if_they_may() {
    for limit in [
        "{unit: hour, requests_per_unit: 5}",
        "{algorithm: token_bucket, requests: 5, period: 1h, burst: 5}",
        "{algorithm: sliding_buckets, requests: 5, period: 1h}",
        "{algorithm: sliding_buckets, exact: true, requests: 5, period: 1h}",
    ] {
        let limits = format!("- {{key: k, rate_limit: {limit}}}\n");
        let mut world = World::with(1, &limits, Modes::default(), Failure::Allow);
        set(&world, Network::Down);
        ask(&mut world, 20);
        world.pass(2_000);
        assert_eq!((world.waiting(), world.allowed()), (0, 20), "{limit}");
    }
}

#[test]
fn refills_under_way_are_counted_and_bounded() {
    let mut world = World::with(1, PER_MINUTE, Modes::default(), Failure::Allow);
    let holdings = world.sidecars[0].authority.holdings.clone().expect("holdings");
    let flights = || holdings.desk().flights;
    // Counters in rare use need no refill.
    for key in ["v0", "v1", "v2", "w"].map(key) {
        world.ask(0, 1, key);
    }
    assert_eq!(flights(), 0);
    for number in 0..3 {
        world.ask(0, 1, key(&format!("v{number}")));
        assert_eq!(flights(), number + 1);
    }
    // One that others wait for.
    world.ask(0, 1, key("v0"));
    assert_eq!(flights(), 3);
    world.pass(10_000);
    assert_eq!((flights(), world.allowed()), (0, 8));
    holdings.desk().flights = 16_384;
    world.ask(0, 1, key("w"));
    let refused = world.answered.last().expect("an answer");
    assert!(refused.answer.is_err(), "{refused:?}");
    holdings.desk().flights -= 1;
    world.ask(0, 1, key("w"));
    world.pass(10_000);
    assert_eq!((flights(), world.allowed()), (16_383, 9));
}
