//! A clock that is briefly ahead, as while it is being set: no live entry is erased for a new key, and room
//! is found again as time passes.

use std::path::Path;

use tidegate_store::{Cluster, Eviction, Hashed, Options, UpdateError};

use crate::common::{SECOND, check_sound, directory, narrow, narrow_and_wide};

const NOW_SECS: u64 = 1_700_000_000;
const NOW: u64 = NOW_SECS * SECOND;
const TWO_DAYS: u64 = 2 * 86_400 * SECOND;
/// The lifetime of the counters in a full cluster.
const LIFETIME: u64 = 60 * SECOND;
/// More keys than nodes.
const KEYS: u64 = 200;

fn key(number: u64) -> Hashed {
    let spread = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let key = spread << 64 | u128::from(number);
    if number % 4 == 3 { Hashed::wide(key) } else { Hashed::narrow(key) }
}

fn options() -> Options {
    narrow_and_wide((2, 35), (1, 20), 9)
}

fn open(dir: &Path) -> Cluster {
    Cluster::open(dir, &options()).unwrap()
}

fn trust(cluster: &Cluster, now: u64) {
    cluster.trust_clock_until(u32::try_from(now / SECOND).unwrap());
}

/// Counts a hit of a key, and returns its hits so far.
fn hit(cluster: &Cluster, number: u64, now: u64) -> Result<u64, UpdateError> {
    cluster.update(&key(number), now, |entry| {
        entry.state[0] += 1;
        *entry.expires_at = now + LIFETIME;
        entry.state[0]
    })
}

/// Counts hits of new keys until none finds room. Returns the keys that did.
fn fill(cluster: &Cluster, now: u64) -> Vec<u64> {
    (0..KEYS).filter(|number| hit(cluster, *number, now).is_ok()).collect()
}

/// All operations that free nodes, or evict for a new key.
fn press(cluster: &Cluster, now: u64) -> (usize, u64) {
    let alone = (1_000..1_000 + KEYS).filter(|number| hit(cluster, *number, now).is_ok());
    let alone = alone.count();
    let together = (2_000..2_000 + KEYS).filter(|number| {
        let keys = [key(*number), key(number + KEYS)];
        let write = |entry: tidegate_store::EntryMut<'_>| {
            entry.state[0] = 1;
            *entry.expires_at = now + LIFETIME;
        };
        let result = cluster.update_many(&keys, now, |entries| {
            write(entries.get(0));
            write(entries.get(1));
        });
        result.is_ok()
    });
    (alone + together.count(), cluster.sweep(now).unwrap())
}

/// The clock was two days ahead while new keys came, and every counter of a full cluster was gone for good:
/// each limit restarted. Nodes are now freed by time known to have passed.
#[test]
fn a_clock_that_is_ahead_for_a_moment_erases_no_live_counter() {
    let dir = directory();
    let cluster = open(dir.path());
    trust(&cluster, NOW);
    let full = fill(&cluster, NOW);
    assert!(full.len() > 80 && full.len() < KEYS as usize, "{}", full.len());

    assert_eq!(press(&cluster, NOW + TWO_DAYS), (0, 0));
    // Nor can another process with the same bound erase them.
    let other = open(dir.path());
    trust(&other, NOW);
    assert_eq!(press(&other, NOW + TWO_DAYS), (0, 0));

    let back = NOW + SECOND;
    trust(&cluster, back);
    for number in full {
        assert_eq!(hit(&cluster, number, back), Ok(2), "key {number}");
    }
    assert_eq!(cluster.stats().evicted_expired, 0);
    check_sound(dir.path());
}

/// Without the bound the same clock erases them, so the test above would notice.
#[test]
fn a_clock_that_is_trusted_frees_what_has_expired_by_it() {
    let dir = directory();
    let cluster = open(dir.path());
    let full = fill(&cluster, NOW);
    let (made, _) = press(&cluster, NOW + TWO_DAYS);
    assert!(made > 80, "{made}");
    let kept = full.iter().filter(|number| hit(&cluster, **number, NOW + SECOND) == Ok(2));
    assert!(kept.count() < full.len() / 4);
}

/// As time and the bound advance, new keys get the nodes of expired ones, as without a bound.
#[test]
fn room_is_found_as_time_passes() {
    let dir = directory();
    let cluster = open(dir.path());
    let mut made = 0;
    for minute in 0..10 {
        let now = NOW + minute * (LIFETIME + SECOND);
        trust(&cluster, now);
        let numbers = minute * KEYS..(minute + 1) * KEYS;
        made += numbers.filter(|number| hit(&cluster, *number, now).is_ok()).count();
    }
    assert!(made > 800, "{made}");
    // A bound that lags behind frees less.
    let now = NOW + 10 * (LIFETIME + SECOND);
    trust(&cluster, now - LIFETIME);
    assert_eq!(hit(&cluster, 10_000, now).ok(), None);
    trust(&cluster, now);
    assert_eq!(hit(&cluster, 10_000, now), Ok(1));
}

/// The updated key itself goes by the caller's clock: when its window has ended, a new one begins.
#[test]
fn a_key_is_as_new_as_its_caller_says() {
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &narrow(1, 8)).unwrap();
    trust(&cluster, NOW);
    assert_eq!(hit(&cluster, 0, NOW), Ok(1));
    assert_eq!(hit(&cluster, 0, NOW + TWO_DAYS), Ok(1));
}

/// With eviction no key is refused: the counter that expires soonest is evicted, and counted as live.
#[test]
fn eviction_counts_what_may_be_alive_as_live() {
    let dir = directory();
    let options =
        Options { eviction: Eviction::EvictSoonestExpiry, ..Options::narrow(narrow(1, 8).narrow) };
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    trust(&cluster, NOW);
    for number in 0..8 {
        assert_eq!(hit(&cluster, 4 * number, NOW + number * SECOND), Ok(1));
    }
    assert_eq!(hit(&cluster, 400, NOW + TWO_DAYS), Ok(1));
    let stats = cluster.stats();
    assert_eq!((stats.evicted_expired, stats.evicted_live), (0, 1));
    // The first one is evicted, the others are not.
    assert_eq!(cluster.find(&key(0), NOW).unwrap(), None);
    for number in 1..8 {
        assert!(cluster.find(&key(4 * number), NOW).unwrap().is_some(), "key {number}");
    }
}

/// What the processes know about the clock outlives each of them, and is the same for all.
#[test]
fn the_words_of_the_clock_are_shared_and_kept() {
    let dir = directory();
    let cluster = open(dir.path());
    assert_eq!(cluster.clock_words(), [0, 0]);
    assert!(cluster.replace_clock_words([0, 0], [1, 2]));
    let other = open(dir.path());
    assert_eq!(other.clock_words(), [1, 2]);
    // The first process is too late, and changes nothing.
    assert!(other.replace_clock_words([1, 2], [3, 2]));
    assert!(!cluster.replace_clock_words([1, 2], [4, 2]));
    drop((cluster, other));
    assert_eq!(open(dir.path()).clock_words(), [3, 2]);
    check_sound(dir.path());
}
