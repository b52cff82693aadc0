//! What the servers keep: counters of all sidecars, their expiry, the seed.

use super::*;
use tidegate_remote::Health;
use tidegate_store::Class;

#[test]
fn sidecars_share_counters() {
    let Some(server) = Server::start(&[]) else { return };
    let (one, two) = (sidecar(&server), sidecar(&server));
    assert_eq!(one.seed(), two.seed());
    let (first, second) = (key_at(7, 1), key_at(7, 2));
    assert_eq!(hit(&one, &[first, second]).unwrap(), [1, 1]);
    assert_eq!(hit(&two, &[second]).unwrap(), [2]);
    assert_eq!(hit(&one, &[second, first, second]).unwrap(), [3, 2, 4]);
    let wide = Hashed { hash: first.hash, class: Class::Wide };
    assert_eq!(hit(&two, &[wide, first]).unwrap(), [1, 3]);
    assert_eq!(hit(&one, &[wide]).unwrap(), [2]);
    assert_eq!(hit(&two, &[key(8)]).unwrap(), [1]);
    assert_eq!(hit(&one, &[]).unwrap(), [0_u64; 0]);
    // All keys of a place are one value.
    let mut names: Vec<String> = server.counter_keys().into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["tidegate:000000000007", "tidegate:000000000008"]);
}

#[test]
fn thousands_of_updates_at_once_are_all_committed() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = Arc::new(sidecar(&server));
    let hits = (0..5_000_u128).map(|number| {
        let remote = remote.clone();
        let place = number % 1_000;
        async move { hit_later(&remote, &[key_at(place, 1), key_at(place, number % 3)]).await }
    });
    let results = all_at_once(hits);
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
    // A third of them has one key twice.
    let total: u64 = (0..1_000)
        .map(|place| {
            hit(&remote, &[0, 1, 2].map(|n| key_at(place, n))).unwrap().iter().sum::<u64>()
        })
        .sum();
    assert_eq!(total, 10_000 + 3_000);
    println!("{:?}", remote.counts());
}

/// Three sidecars that contend for all keys at once. An update that is given up says so, and does not count.
#[test]
fn updates_that_contend_count_once_or_fail() {
    let Some(server) = Server::start(&[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let hits = (0..3_000_usize).map(|number| {
        let remote = sidecars[number % 3].clone();
        async move { (number % 7, hit_later(&remote, &[key(number as u128 % 7)]).await) }
    });
    let mut counts = [0; 7];
    for (place, result) in all_at_once(hits) {
        match result {
            Ok(_) => counts[place] += 1,
            Err(error) => says(&error.to_string(), "too many other requests"),
        }
    }
    for sidecar in &sidecars {
        println!("{:?}", sidecar.counts());
        assert!(sidecar.counts().committed > 0);
    }
    for (place, count) in counts.iter().enumerate() {
        assert_eq!(hit(&sidecars[0], &[key(place as u128)]).unwrap(), [count + 1], "key {place}");
    }
}

/// One after the other, and each sidecar goes on at once: none is always last.
#[test]
fn three_sidecars_on_one_key_lose_and_double_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let committed = storm(&sidecars, &[key(1)], 1_000);
    sidecars.iter().for_each(|sidecar| println!("{:?}", sidecar.counts()));
    assert_eq!(committed, 3_000);
    assert_eq!(hit(&sidecars[0], &[key(1)]).unwrap(), [3_001]);
}

#[test]
fn values_expire_by_themselves_some_time_after_their_states() {
    let Some(server) = Server::start(&[]) else { return };
    let with = Settings { jitter: Duration::from_secs(40), ..settings(&[&server]) };
    let remote = connect(with).unwrap();
    (0..100).for_each(|number| drop(hit(&remote, &[key(number)]).unwrap()));
    let now = server.stat("time");
    let ends: Vec<u64> = server.counter_keys().into_iter().map(|(_, end)| end - now).collect();
    let (least, most) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    // 60 s, 10 s for late updates, and what passes meanwhile.
    assert_eq!(ends.len(), 100);
    assert!((55..=72).contains(least) && (95..=112).contains(most), "{least} to {most} s");
    // One that outlives 30 days has a time of the epoch.
    let mut keep = |entries: &mut Entries<'_>| {
        let entry = entries.get(0);
        entry.state[0] = 1;
        *entry.expires_at = (now + 90 * 86_400) * SECOND;
    };
    wait(remote.update(&[key(1_000)], remote.now().unwrap(), &mut keep)).unwrap();
    let keys = server.counter_keys();
    let (_, end) = keys.iter().find(|(name, _)| name == "tidegate:0000000003e8").unwrap();
    assert!((89 * 86_400..91 * 86_400).contains(&(end - now)), "{end}");
}

#[test]
fn a_place_that_is_empty_again_leaves_no_value() {
    let Some(server) = Server::start(&[]) else { return };
    let remote = sidecar(&server);
    let keys = [key_at(7, 1), key_at(7, 2)];
    hit(&remote, &keys).unwrap();
    let clear = |keys: &[Hashed]| {
        let mut clear = |entries: &mut Entries<'_>| {
            (0..entries.len()).for_each(|index| entries.get(index).state.fill(0));
        };
        wait(remote.update(keys, remote.now().unwrap(), &mut clear)).unwrap();
    };
    clear(&keys[..1]);
    assert_eq!(server.counter_keys().len(), 1);
    assert_eq!(hit(&remote, &keys).unwrap(), [1, 2]);
    clear(&keys);
    assert!(server.counter_keys().is_empty());
    assert_eq!(hit(&remote, &keys).unwrap(), [1, 1]);
}

#[test]
fn several_servers_have_a_part_of_the_keys_each_and_one_seed() {
    let (Some(one), Some(two)) = (Server::start(&[]), Server::start(&[])) else {
        return;
    };
    let (first, second) =
        (connect(settings(&[&one, &two])).unwrap(), connect(settings(&[&two, &one])).unwrap());
    // Servers behind the first to answer are not waited for at the start.
    for remote in [&first, &second] {
        until("both are there", || remote.health() == Health::Up);
    }
    assert_eq!(first.seed(), second.seed());
    // Bits of a place that are hashed are spread like these.
    let places =
        (0..100_u128).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_ffff);
    for place in places {
        assert_eq!(hit(&first, &[key_at(place, 1)]).unwrap(), [1]);
        assert_eq!(hit(&second, &[key_at(place, 1)]).unwrap(), [2]);
    }
    let (keys_of_one, keys_of_two) = (one.counter_keys().len(), two.counter_keys().len());
    assert_eq!(keys_of_one + keys_of_two, 100);
    assert!(keys_of_one > 20 && keys_of_two > 20, "{keys_of_one} and {keys_of_two}");
    for server in [&one, &two] {
        assert!(server.line("mg tidegate:seed v").starts_with("VA 16"));
    }
}
