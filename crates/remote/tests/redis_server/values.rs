//! What the server keeps: counters of all sidecars, their expiry, the seed.

use super::*;
use std::time::Duration;
use tidegate_remote::{Address, Servers, Tls};
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
    let test = "values::thousands_of_updates_at_once_are_all_committed";
    let Some(server) = Server::start(test, &[]) else { return };
    let remote = Arc::new(sidecar(&server));
    let hits = (0..20_000_u128).map(|number| {
        let remote = remote.clone();
        async move { hit_later(&remote, &[key(number % 3), key(100 + number % 1_000)]).await }
    });
    let results = all_at_once(hits);
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
    for number in 0..1_000 {
        assert_eq!(hit(&remote, &[key(100 + number)]).unwrap(), [21], "key {number}");
    }
    println!("{:?}", remote.counts());
}

/// Three sidecars that contend for all keys at once. An update that is given up says so, and does not count.
#[test]
fn updates_that_contend_count_once_or_fail() {
    let test = "values::updates_that_contend_count_once_or_fail";
    let Some(server) = Server::start(test, &[]) else { return };
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
    let socket = || Settings::new(Servers::Single(Address::Unix(server.socket())));
    let remote = with("gate", &socket).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    let tcp = || Settings::at(&server.address()).unwrap();
    let remote = with("gate", &tcp).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [2]);
    let error = with("wrong", &tcp).unwrap_err().to_string();
    assert!(error.contains("Password authentication failed"), "{error}");
}

#[test]
fn tls_checks_both_sides() {
    let files = tempfile::tempdir().unwrap();
    let [ca, server_identity, client] = certificates();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("ca"), &ca.0).unwrap();
    std::fs::write(path("cert"), &server_identity.0).unwrap();
    std::fs::write(path("key"), &server_identity.1).unwrap();
    let port = server::free_port().to_string();
    let (ca_path, cert, key_path) = (path("ca"), path("cert"), path("key"));
    let options = [
        ["--tls-port", &port],
        ["--tls-ca-cert-file", &ca_path],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key_path],
    ];
    let Some(_server) = Server::start("values::tls_checks_both_sides", options.as_flattened())
    else {
        return;
    };
    let with = |ca: &str, client: Option<(String, String)>| {
        let mut settings = Settings::at(&format!("localhost:{port}")).unwrap();
        let client = client.map(|(cert, key)| (cert.into_bytes(), key.into_bytes()));
        settings.tls = Some(Tls { ca: ca.as_bytes().to_vec(), client, skips_hostname: false });
        settings.patience = Duration::from_secs(2);
        connect(settings)
    };
    let remote = with(&ca.0, Some(client.clone())).unwrap();
    assert_eq!(hit(&remote, &[key(1)]).unwrap(), [1]);
    let error = with(&certificates()[0].0, Some(client)).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    let error = with(&ca.0, None).unwrap_err().to_string();
    assert!(error.contains("ertificate"), "{error}");
    let error = with("nothing", None).unwrap_err().to_string();
    assert!(error.contains("no certificate in PEM"), "{error}");
}

/// An authority, and what it has signed for `localhost` and for a client: certificates and keys in PEM.
fn certificates() -> [(String, String); 3] {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "the authority of a test");
    let key = KeyPair::generate().unwrap();
    let pem = (authority.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let issuer = Issuer::new(authority, key);
    let signed = || {
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (server, client) = (signed(), signed());
    [pem, server, client]
}
