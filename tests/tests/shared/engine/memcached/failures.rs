//! Failures of a server: each has a clear cause, and leaves no counter that cannot be used.

use super::super::failures::{until_refused, until_told};
use super::*;
use rustix::process::Signal;
use tidegate_remote::Health;

#[test]
fn a_server_that_is_away_is_named_with_its_cause() {
    let address = "127.0.0.1:1";
    let servers = Servers::Memcached(vec![address.parse().unwrap()]);
    let patience = Duration::from_millis(300);
    let settings = Settings { patience, ..Settings::new(servers) };
    says(&until_refused(&settings, "Connection refused"), address);
}

#[test]
fn a_server_that_restarts_is_used_again_with_the_same_seed() {
    let Some(mut server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    server.stop();
    until("the loss is noticed", || remote.health() != Health::Up);
    // At once: no command waits for a server that is known to be away.
    let refused = (0..1_000).map(|_| cause(&remote, &[key(1)])).last().unwrap();
    says(&refused, "cannot be reached");
    server.restart();
    assert_eq!(until_hit(&remote, &[key(1)]), [1]);
    assert_eq!(sidecar(&server).seed(), remote.seed());
    // The first connection after the restart may be one that had not been made before it.
    until("a connection is made again", || remote.counts().reconnects >= 1);
}

/// memcached counts versions from the beginning when it starts. A version of the process before must not count.
#[test]
fn versions_of_a_server_end_with_it() {
    let Some(mut server) = Server::start(&[]) else { return };
    let (one, two) = (sidecar(&server), sidecar(&server));
    for round in 0..5 {
        assert_eq!(until_hit(&one, &[key(1)]), [1]);
        assert_eq!(until_hit(&one, &[key(1)]), [2]);
        server.stop();
        server.restart();
        // As many values as before, by the other sidecar.
        assert_eq!(until_hit(&two, &[key(1)]), [1], "round {round}");
        assert_eq!(until_hit(&two, &[key(1)]), [2]);
        assert_eq!(until_hit(&one, &[key(1)]), [3]);
        server.stop();
        server.restart();
    }
}

#[test]
fn what_is_flushed_is_new_and_the_seed_comes_back() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [2]);
    assert_eq!(server.line("flush_all"), "OK");
    until("the flush takes effect", || hit(&remote, &[key(1)]).unwrap() < vec![3]);
    until("the seed is there again", || server.line("mg tidegate:seed v").starts_with("VA"));
    assert_eq!(sidecar(&server).seed(), remote.seed());
}

#[test]
fn another_seed_in_the_server_refuses_updates() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    server.line("set tidegate:seed 0 0 16\r\n00000000000000ff");
    until("it is noticed", || remote.health() != Health::Up);
    says(&cause(&remote, &[key(1)]), "restart the sidecar");
    assert_eq!(sidecar(&server).seed(), 255);
    server.line("set tidegate:seed 0 0 8\r\nnonsense");
    until("it is noticed", || cause(&remote, &[key(1)]).contains("delete it"));
}

#[test]
fn a_server_that_stands_still_fails_updates_until_it_goes_on() {
    let Some(server) = Server::start(&[]) else { return };
    let timeout = Duration::from_millis(100);
    let remote = connect(Settings { timeout, ..settings(&[&server]) }).unwrap();
    until_told(
        &remote,
        || server.signal(Signal::STOP),
        "not answered within 100 ms",
        || server.signal(Signal::CONT),
    );
    until("all connections are known to be useless", || remote.health() != Health::Up);
    server.signal(Signal::CONT);
    // What was sent before it stood still may have been done.
    let counts = until_hit(&remote, &[key(1)]);
    assert!(counts[0] >= 2, "{counts:?}");
}

/// The keys of the other server are counted on, and its own again when it is back.
#[test]
fn a_server_that_is_away_concerns_its_own_keys() {
    let (Some(mut one), Some(two)) = (Server::start(&[]), Server::start(&[])) else {
        return;
    };
    let remote = connect(settings(&[&one, &two])).unwrap();
    let places =
        (0..40_u128).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_ffff);
    let keys: Vec<Hashed> = places.map(|place| key_at(place, 1)).collect();
    keys.iter().for_each(|key| drop(hit(&remote, &[*key]).unwrap()));
    let of_one = one.counter_keys().len();
    one.stop();
    let Health::Down { cause } = ({
        until("the loss is noticed", || remote.health() != Health::Up);
        remote.health()
    }) else {
        panic!("up")
    };
    says(&cause, "1 of 2 servers");
    says(&cause, &one.address());
    let counts = |key: &Hashed| hit(&remote, &[*key]);
    let failed = keys.iter().map(counts).filter(Result::is_err).count();
    assert_eq!(failed, of_one);
    one.restart();
    until("the server is used again", || remote.health() == Health::Up);
    let again: Vec<u64> = keys.iter().map(|key| until_hit(&remote, &[*key])[0]).collect();
    assert_eq!(again.iter().filter(|count| **count == 1).count(), of_one);
    assert!(again.iter().all(|count| matches!(count, 1 | 3)), "{again:?}");
}

#[test]
fn a_seed_is_made_by_the_first_server_alone() {
    let (Some(one), Some(two)) = (Server::start(&[]), Server::start(&[])) else {
        return;
    };
    let mut servers = [one, two];
    servers.sort_by_key(Server::address);
    let both = settings(&[&servers[0], &servers[1]]);
    servers[0].stop();
    let patience = Duration::from_millis(500);
    until_refused(&Settings { patience, ..both.clone() }, "servers");
    servers[0].restart();
    let remote = connect(both.clone()).unwrap();
    until("both have it", || remote.health() == Health::Up);
    servers[0].stop();
    // The other one has it by now.
    assert_eq!(connect(both).unwrap().seed(), remote.seed());
}

#[test]
fn a_server_without_versions_is_refused() {
    let Some(server) = Server::start(&["-C"]) else { return };
    let patience = Duration::from_millis(500);
    until_refused(&Settings { patience, ..settings(&[&server]) }, "without -C");
}

/// Whatever is in the way is said once, and replaced.
#[test]
fn values_that_are_no_counters_are_told_once_and_replaced() {
    let Some(server) = Server::start(&["-I", "2m"]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    let name = server.counter_keys().remove(0).0;
    for garbage in ["garbage", "\x01", "\x02", "\x01abcdefghijkl", ""] {
        server.line(&format!("set {name} 0 0 {}\r\n{garbage}", garbage.len()));
        // One sidecar knows the key, the other does not.
        let results = [hit(&remote, &[key(1)]), hit(&sidecar(&server), &[key(1)])];
        let told = results.iter().filter_map(|result| result.as_ref().err());
        let told: Vec<String> = told.map(ToString::to_string).collect();
        assert!(told.iter().all(|cause| cause.contains("no counter")), "{garbage:?}: {told:?}");
        assert!(hit(&remote, &[key(1)]).is_ok(), "{garbage:?}");
    }
}

#[test]
fn refusals_of_the_server_are_told_in_its_words() {
    let Some(server) = Server::start(&["-M", "-m", "2"]) else { return };
    let remote = sidecar(&server);
    let mut said = None;
    let mut number = 0;
    until("it is full", || {
        let hits = (number..number + 2_000).map(|number| hit(&remote, &[key(number)]));
        said = hits.filter_map(Result::err).last();
        number += 2_000;
        said.is_some()
    });
    says(&said.unwrap().to_string(), "out of memory");
    assert!(matches!(remote.health(), Health::Up));
    server.line("flush_all");
    until_hit(&remote, &[key(number)]);
}

#[test]
fn an_update_that_is_given_up_leaves_its_key_usable() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    for _ in 0..2_000 {
        let keys = [key(1)];
        let mut given_up = Box::pin(hit_later(&remote, &keys));
        let waker = std::task::Waker::noop();
        let _ = given_up.as_mut().poll(&mut std::task::Context::from_waker(waker));
    }
    let counts = until_hit(&remote, &[key(1)]);
    assert!(counts[0] <= 2_001, "{counts:?}");
}
