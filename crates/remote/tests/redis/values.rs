//! What the server keeps: counters of all sidecars, their expiry, the seed.

use super::*;
use std::path::Path;
use std::time::Duration;
use tidegate_remote::{Address, Servers};
use tidegate_store::Class;

#[test]
fn sidecars_share_counters() {
    let Some(server) = Server::start("values::sidecars_share_counters", &[]) else { return };
    let (one, two) = (sidecar(&server), sidecar(&server));
    assert_eq!(one.seed(), two.seed());
    assert_eq!(hit(&one, &[key(1), key(2)]).unwrap(), [1, 1]);
    assert_eq!(hit(&two, &[key(2)]).unwrap(), [2]);
    assert_eq!(hit(&one, &[key(2), key(1), key(2)]).unwrap(), [3, 2, 4]);
    let wide = Hashed { hash: 5, class: Class::Wide };
    assert_eq!(hit(&two, &[wide, key(5)]).unwrap(), [1, 1]);
    assert_eq!(hit(&one, &[wide]).unwrap(), [2]);
    assert_eq!(hit(&one, &[]).unwrap(), [0_u64; 0]);
    assert_eq!(server.counter_keys().len(), 4);
}

/// All at once, so that nothing is lost in the way that updates are put together.
#[test]
fn thousands_of_updates_at_once_count_exactly_once() {
    let test = "values::thousands_of_updates_at_once_count_exactly_once";
    let Some(server) = Server::start(test, &[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let hits = (0..30_000_usize).map(|number| {
        let remote = sidecars[number % 3].clone();
        let keys = [key(number as u128 % 7), key(100 + number as u128 % 1_000)];
        async move { hit_later(&remote, &keys).await }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let results =
        runtime.block_on(async { hits.collect::<tokio::task::JoinSet<_>>().join_all().await });
    for sidecar in &sidecars {
        println!("{:?}", sidecar.counts());
    }
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
    let expected = |number: u64| (30_000 - number).div_ceil(7) + 1;
    for number in 0..7 {
        let counts = hit(&sidecars[0], &[key(u128::from(number))]).unwrap();
        assert_eq!(counts, [expected(number)], "key {number}");
    }
    for number in 0..1_000 {
        assert_eq!(hit(&sidecars[1], &[key(100 + number)]).unwrap(), [31], "key {number}");
    }
}

#[test]
fn three_sidecars_on_one_key_lose_and_double_nothing() {
    let test = "values::three_sidecars_on_one_key_lose_and_double_nothing";
    let Some(server) = Server::start(test, &[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let committed = storm(&sidecars, &[key(1)], 1_000);
    assert_eq!(committed, 3_000);
    assert_eq!(hit(&sidecars[0], &[key(1)]).unwrap(), [3_001]);
}

#[test]
fn keys_expire_by_themselves_some_time_after_their_states() {
    let test = "values::keys_expire_by_themselves_some_time_after_their_states";
    let Some(server) = Server::start(test, &[]) else { return };
    let mut settings = Settings::at(&server.address()).unwrap();
    settings.jitter = Duration::from_secs(40);
    let remote = connect(settings).unwrap();
    for number in 0..100 {
        hit(&remote, &[key(number)]).unwrap();
    }
    let mut ends: Vec<u64> = Vec::new();
    for name in server.counter_keys() {
        let reply = server.command(&[b"TTL", &name]);
        ends.push(String::from_utf8_lossy(&reply)[1..].trim().parse().unwrap());
    }
    let (least, most) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    // 60 s, and 10 s for late updates.
    assert!((60..=71).contains(least) && (100..=111).contains(most), "{least} to {most} s");
    // The state itself ends with its window.
    let later = Timestamp::from_nanos(now(&remote).as_nanos() + 61 * SECOND);
    let mut was_new = false;
    let mut look = |entries: &mut Entries<'_>| was_new = entries.get(0).is_new();
    let early = wait(remote.update(&[key(1)], later, &mut look)).unwrap_err().to_string();
    assert!(was_new && early.contains("behind the time of the request"), "{early}");
}

#[test]
fn a_counter_that_is_empty_again_leaves_no_key() {
    let test = "values::a_counter_that_is_empty_again_leaves_no_key";
    let Some(server) = Server::start(test, &[]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    let mut clear = |entries: &mut Entries<'_>| entries.get(0).state.fill(0);
    wait(remote.update(&[key(1)], now(&remote), &mut clear)).unwrap();
    assert!(server.counter_keys().is_empty());
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
}

#[test]
fn a_unix_socket_a_user_and_a_database_are_enough_too() {
    let test = "values::a_unix_socket_a_user_and_a_database_are_enough_too";
    let options =
        ["--user", "tide", "on", ">gate", "~tidegate:*", "+@all", "--user", "default", "off"];
    let Some(server) = Server::start(test, &options) else { return };
    let with = |password: &str, servers: &dyn Fn() -> Settings| {
        let mut settings = servers();
        settings.credentials.user = Some("tide".to_owned());
        settings.credentials.password = Some(password.to_owned());
        settings.database = 3;
        settings.patience = Duration::from_secs(1);
        connect(settings)
    };
    let socket = || {
        let path = Path::new(&server.socket()).to_owned();
        Settings::new(Servers::Single(Address::Unix(path)))
    };
    let remote = with("gate", &socket).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    let tcp = || Settings::at(&server.address()).unwrap();
    let remote = with("gate", &tcp).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [2]);
    let error = with("wrong", &tcp).unwrap_err().to_string();
    assert!(error.contains("Password authentication failed"), "{error}");
}
