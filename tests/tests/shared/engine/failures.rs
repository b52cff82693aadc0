//! Failures of the server: each has a clear cause, and leaves no counter that cannot be used.

use super::*;
use rustix::process::Signal;
use std::time::Duration;
use tidegate_remote::Health;

/// The error of connecting, once it has this text. A busy machine may not find the cause within a short patience.
pub(super) fn until_refused(settings: &Settings, expected: &str) -> String {
    let mut said = String::new();
    until(expected, || {
        said = connect(settings.clone()).unwrap_err().to_string();
        println!("{said}");
        said.contains(expected)
    });
    said
}

/// Refuses until an update fails for this cause, and leaves it so. The cause shows only until the connections are known to
/// be useless. If the sidecar finds that out before the update, accepts and refuses again.
pub(super) fn until_told(remote: &Remote, refuse: impl Fn(), expected: &str, accept: impl Fn()) {
    until(expected, || {
        until_hit(remote, &[key(1)]);
        refuse();
        let mut said = None;
        until("an update fails", || {
            said = hit(remote, &[key(1)]).err().map(|error| error.to_string());
            said.is_some()
        });
        let is_told = said.as_ref().is_some_and(|said| said.contains(expected));
        if !is_told {
            println!("{said:?}");
            accept();
        }
        is_told
    });
}

#[test]
fn a_server_that_is_away_is_named_with_its_cause() {
    let mut settings = Settings::at("127.0.0.1:1").unwrap();
    settings.patience = Duration::from_millis(300);
    says(&until_refused(&settings, "Connection refused"), "127.0.0.1:1:");
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
    // The data are gone with the server, which saves none.
    assert_eq!(until_hit(&remote, &[key(1)]), [1]);
    assert_eq!(sidecar(&server).seed(), remote.seed());
    // The first connection after the restart may be one that had not been made before it.
    until("a connection is made again", || remote.counts().reconnects >= 1);
}

#[test]
fn what_is_deleted_in_the_server_is_new_and_the_seed_comes_back() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [2]);
    server.text("FLUSHALL");
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    until("the seed is there again", || server.text("EXISTS tidegate:seed") == ":1\r\n");
    assert_eq!(sidecar(&server).seed(), remote.seed());
}

#[test]
fn another_seed_in_the_server_refuses_updates() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    server.text("SET tidegate:seed 00000000000000ff");
    until("it is noticed", || remote.health() != Health::Up);
    says(&cause(&remote, &[key(1)]), "restart the sidecar");
    assert_eq!(sidecar(&server).seed(), 255);
    server.text("SET tidegate:seed nonsense");
    until("it is noticed", || cause(&remote, &[key(1)]).contains("delete it"));
}

#[test]
fn a_script_that_the_server_forgot_is_loaded_again() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    for count in 1..20 {
        assert_eq!(hit(&remote, &[key(1)]).unwrap(), [count]);
        server.text("SCRIPT FLUSH");
    }
}

#[test]
fn a_server_that_stands_still_fails_updates_until_it_goes_on() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar_with_timeout(&server, Duration::from_millis(100));
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

/// Whatever the server refuses is said in its words, and over as soon as the server accepts updates.
fn check_refusal(remote: &Remote, refuse: impl Fn(), expected: &str, accept: impl Fn()) {
    until_hit(remote, &[key(1)]);
    refuse();
    let mut said = String::new();
    until(expected, || {
        said = hit(remote, &[key(1)]).err().map_or(String::new(), |error| error.to_string());
        said.contains(expected)
    });
    accept();
    until_hit(remote, &[key(1)]);
}

/// The same for a cause that shows only for a moment.
fn check_refusal_at_first(remote: &Remote, refuse: impl Fn(), expected: &str, accept: impl Fn()) {
    until_told(remote, refuse, expected, &accept);
    accept();
    until_hit(remote, &[key(1)]);
}

#[test]
fn refusals_of_the_server_are_told_and_pass() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let remote = sidecar(&server);
    let run = |line: &'static str| {
        let server = &server;
        move || {
            let reply = server.text(line);
            assert!(reply.starts_with('+'), "{line}: {reply}");
        }
    };
    check_refusal(
        &remote,
        run("CONFIG SET maxmemory 1"),
        "OOM command not allowed",
        run("CONFIG SET maxmemory 0"),
    );
    check_refusal_at_first(
        &remote,
        run("REPLICAOF 127.0.0.1 1"),
        "read only replica",
        run("REPLICAOF NO ONE"),
    );
    check_refusal(
        &remote,
        run("ACL SETUSER default -set"),
        "can't run this command",
        run("ACL SETUSER default +set"),
    );
    check_refusal(
        &remote,
        run("REPLICAOF 127.0.0.1 1"),
        // The connection is made again, and sees the role.
        "its role is slave",
        run("REPLICAOF NO ONE"),
    );
}

/// A snapshot that could not be written.
#[test]
fn a_server_that_cannot_save_is_told() {
    let flags = ["--dbfilename", "dump.rdb", "--stop-writes-on-bgsave-error", "yes"];
    let Some(server) = Server::start(&flags) else { return };
    let remote = sidecar(&server);
    check_refusal(
        &remote,
        || {
            // There is a directory where the file should be. Such an error stops writes while snapshots are on.
            let file = server.dir().join("redis").join("dump.rdb");
            std::fs::create_dir_all(file.join("full")).unwrap();
            server.command(&[b"CONFIG", b"SET", b"save", b"3600 1"]);
            until("a snapshot fails", || {
                server.text("BGSAVE");
                server.text("INFO persistence").contains("rdb_last_bgsave_status:err")
            });
        },
        "MISCONF",
        || {
            server.command(&[b"CONFIG", b"SET", b"save", b""]);
            server.text("CONFIG SET stop-writes-on-bgsave-error no");
        },
    );
}

/// A script of somebody else that does not end.
#[test]
fn a_server_that_is_busy_is_told() {
    let Some(server) = Server::start(&["--busy-reply-threshold", "50"]) else { return };
    let remote = sidecar(&server);
    check_refusal(
        &remote,
        || {
            let port = server.redis.port;
            std::thread::spawn(move || server::reply(port, &[b"EVAL", b"while true do end", b"0"]));
            until("the script runs", || server.text("PING").starts_with("-BUSY"));
        },
        "BUSY",
        || {
            until("it ends", || {
                server.text("SCRIPT KILL");
                server.text("PING").starts_with('+')
            });
        },
    );
}

/// A server that reads its files.
#[test]
fn a_server_that_loads_is_told() {
    // Five seconds for the keys below. It answers meanwhile.
    let flags = ["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"];
    let Some(mut server) = Server::start(&flags) else { return };
    let remote = sidecar(&server);
    for number in 0..1_000 {
        hit(&remote, &[key(number)]).unwrap();
    }
    assert_eq!(server.text("SAVE"), "+OK\r\n");
    server.kill_and_start();
    until("it loads", || server.text("GET tidegate:seed").starts_with("-LOADING"));
    until("the cause is told", || {
        let said = hit(&remote, &[key(1)]).err().map_or(String::new(), |error| error.to_string());
        said.contains("LOADING")
    });
    assert_eq!(until_hit(&remote, &[key(1)]), [2]);
}

#[test]
fn a_replica_without_its_primary_is_told() {
    let Some(server) = Server::start(&["--replica-serve-stale-data", "no"]) else { return };
    let remote = sidecar(&server);
    check_refusal_at_first(
        &remote,
        || assert_eq!(server.text("REPLICAOF 127.0.0.1 1"), "+OK\r\n"),
        "MASTERDOWN",
        || assert_eq!(server.text("REPLICAOF NO ONE"), "+OK\r\n"),
    );
}

#[test]
fn a_server_that_may_evict_counters_is_warned_of() {
    let Some(server) = Server::start(&["--maxmemory-policy", "allkeys-lru"]) else { return };
    // Without a limit nothing is evicted.
    assert_eq!(sidecar(&server).warning(), None);
    assert_eq!(server.text("CONFIG SET maxmemory 100mb"), "+OK\r\n");
    let warning = sidecar(&server).warning().unwrap();
    says(&warning, "maxmemory-policy is allkeys-lru");
    assert_eq!(server.text("CONFIG SET maxmemory-policy noeviction"), "+OK\r\n");
    assert_eq!(sidecar(&server).warning(), None);
}

#[test]
fn a_replica_is_refused_when_it_is_connected_to() {
    let Some(server) = Server::start(&["--replicaof", "127.0.0.1 1"]) else { return };
    let mut settings = Settings::at(&server.address()).unwrap();
    settings.patience = Duration::from_millis(500);
    until_refused(&settings, "its role is slave");
}

#[test]
fn values_that_are_no_counters_are_told_once_and_replaced() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    let name = server.counter_keys().remove(0);
    let long = vec![1; 2_000_000];
    let reserved = [&b"\x02xxxx\0client!!"[..], b"9999999999999"].concat();
    let garbage: [&[&[u8]]; 8] = [
        &[b"SET", &name, b"garbage"],
        &[b"SET", &name, b"\x01"],
        &[b"SET", &name, b"\x01\0\0\0\xff\0"],
        &[b"SET", &name, b"\x02"],
        &[b"SET", &name, &reserved],
        &[b"SET", &name, &long],
        &[b"LPUSH", &name, b"element"],
        &[b"HSET", &name, b"field", b"value"],
    ];
    for words in garbage {
        server.command(&[b"DEL", &name]);
        server.command(words);
        let shown = String::from_utf8_lossy(words[2]);
        let shown = &shown[..shown.len().min(30)];
        // One sidecar knows the key, the other does not.
        let results = [hit(&remote, &[key(1)]), hit(&sidecar(&server), &[key(1)])];
        let told = results.iter().filter_map(|result| result.as_ref().err());
        let told: Vec<String> = told.map(ToString::to_string).collect();
        assert!(told.iter().all(|cause| cause.contains("no counter")), "{shown}: {told:?}");
        // A value of another type is as none.
        assert_eq!(told.is_empty(), words[0] != b"SET", "{shown}");
        assert!(hit(&remote, &[key(1), key(2)]).is_ok(), "{shown}");
    }
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
