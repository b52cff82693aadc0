//! What the server keeps: counters of all sidecars, their expiry, the seed.

use super::failures::until_refused;
use super::*;
use std::path::Path;
use std::time::Duration;
use tidegate_remote::{Address, Servers, Tls};
use tidegate_store::Class;
use tidegate_tests::shared_servers::{RedisOptions, ServerTls};

#[test]
fn sidecars_share_counters() {
    let Some(server) = Server::start(&[]) else { return };
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

/// Runs `hits` at once, and says how each ended.
fn all_at_once<F>(hits: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async { hits.collect::<tokio::task::JoinSet<_>>().join_all().await })
}

#[test]
fn thousands_of_updates_at_once_are_all_committed() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = Arc::new(sidecar(&server));
    let hits = (0..5_000_u128).map(|number| {
        let remote = remote.clone();
        let keys = [key(number % 3), key(100 + number % 1_000)];
        async move {
            loop {
                match hit_later(&remote, &keys).await {
                    // On a busy machine the last ones wait for so long that they are given up, and are not counted.
                    Err(error) if error.to_string().contains("too many other requests") => {}
                    result => break result,
                }
            }
        }
    });
    let results = all_at_once(hits);
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
    for number in 0..1_000 {
        assert_eq!(hit(&remote, &[key(100 + number)]).unwrap(), [6], "key {number}");
    }
    println!("{:?}", remote.counts());
}

/// Three sidecars that contend for all keys at once. An update that is given up says so, and does not count.
#[test]
fn updates_that_contend_count_once_or_fail() {
    let Some(server) = Server::start(&[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let hits = (0..3_000_usize).map(|number| {
        let remote = sidecars[number % 3].clone();
        let keys = [key(number as u128 % 7), key(100 + number as u128 % 1_000)];
        async move { (number, hit_later(&remote, &keys).await) }
    });
    let (mut hot, mut cold) = ([0; 7], vec![0; 1_000]);
    for (number, result) in all_at_once(hits) {
        match result {
            Ok(_) => {
                hot[number % 7] += 1;
                cold[number % 1_000] += 1;
            }
            Err(error) => {
                let said = error.to_string();
                let is_late = said.contains("too long ago");
                assert!(is_late || said.contains("too many other requests"), "{said}");
            }
        }
    }
    for sidecar in &sidecars {
        println!("{:?}", sidecar.counts());
        assert!(sidecar.counts().committed > 0);
    }
    let check = |first: u128, counts: &[u64]| {
        for (number, count) in (first..).zip(counts) {
            assert_eq!(hit(&sidecars[0], &[key(number)]).unwrap(), [count + 1], "key {number}");
        }
    };
    check(0, &hot);
    check(100, &cold);
}

#[test]
fn three_sidecars_on_one_key_lose_and_double_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let committed = storm(&sidecars, &[key(1)], 1_000);
    assert_eq!(committed, 3_000);
    assert_eq!(hit(&sidecars[0], &[key(1)]).unwrap(), [3_001]);
}

#[test]
fn keys_expire_by_themselves_some_time_after_their_states() {
    let Some(server) = Server::start(&[]) else { return };
    let mut settings = Settings::at(&server.address()).unwrap();
    settings.timeout = Duration::from_secs(10);
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
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    hit(&remote, &[key(1)]).unwrap();
    let mut clear = |entries: &mut Entries<'_>| entries.get(0).state.fill(0);
    wait(remote.update(&[key(1)], now(&remote), &mut clear)).unwrap();
    assert!(server.counter_keys().is_empty());
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
}

#[test]
fn a_unix_socket_a_user_and_a_database_are_enough_too() {
    let Some(server) = Server::start(&[]) else { return };
    for line in ["ACL SETUSER tide on >gate ~tidegate:* +@all", "ACL SETUSER default off"] {
        assert_eq!(server.text(line), "+OK\r\n", "{line}");
    }
    let with = |password: &str, servers: &dyn Fn() -> Settings| {
        let mut settings = servers();
        settings.credentials.user = Some("tide".to_owned());
        settings.credentials.password = Some(password.to_owned());
        settings.database = 3;
        settings.timeout = Duration::from_secs(10);
        settings
    };
    let socket = || Settings::new(Servers::Single(Address::Unix(server.socket())));
    let remote = connect(with("gate", &socket)).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    let tcp = || Settings::at(&server.address()).unwrap();
    let remote = connect(with("gate", &tcp)).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [2]);
    let wrong = Settings { patience: Duration::from_secs(1), ..with("wrong", &tcp) };
    until_refused(&wrong, "Password authentication failed");
}

#[test]
fn tls_checks_both_sides() {
    let files = tempfile::tempdir().unwrap();
    let tls = ServerTls::new(files.path()).unwrap().with_client_certificates();
    let options = RedisOptions { tls: Some(&tls), ..RedisOptions::default() };
    let Some(server) = Server::with(|_| options) else { return };
    let read = |path: &Path| std::fs::read(path).unwrap();
    let with = |ca: Vec<u8>, client: Option<(Vec<u8>, Vec<u8>)>| {
        let mut settings = Settings::at(&server.address()).unwrap();
        settings.tls = Some(Tls { ca, client, skips_hostname: false });
        settings.timeout = Duration::from_secs(10);
        settings
    };
    let (ca, client) = (read(&tls.ca), (read(&tls.cert), read(&tls.key)));
    let remote = connect(with(ca.clone(), Some(client.clone()))).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = ServerTls::new(elsewhere.path()).unwrap();
    for (ca, client, expected) in [
        (read(&other.ca), Some(client), "certificate"),
        (ca, None, "ertificate"),
        (b"nothing".to_vec(), None, "no certificate in PEM"),
    ] {
        let wrong = Settings { patience: Duration::from_secs(2), ..with(ca, client) };
        until_refused(&wrong, expected);
    }
}
