//! How full a cluster can be: random keys find slots up to the load that it is made for, and chosen keys fare
//! no worse than random ones.

use tidegate_store::{Class, Cluster, Geometry, Key, Options, UpdateError};

use crate::common::format::{Image, Layout};
use crate::common::random::mixed;
use crate::common::{directory, narrow, repetitions};

/// The number of clusters to fill, of each size.
const CLUSTERS: &str = "TIDEGATE_STORE_TEST_CLUSTERS";

/// Creates entries until there are enough. Returns how many were refused.
fn fill(cluster: &Cluster, keys: impl Iterator<Item = u64>) -> u64 {
    let mut refused = 0;
    for key in keys {
        let result = cluster.update(&key, 1, |entry| {
            entry.state[0] = 1;
            *entry.expires_at = u64::MAX;
        });
        match result {
            Ok(()) => {}
            Err(UpdateError::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Fills a cluster with this seed to a share of its nodes, in percent.
fn fill_to(options: &Options, seed: u64, percent: u64) -> (u64, u64) {
    let dir = directory();
    Image::new(options, seed).write(dir.path());
    let cluster = Cluster::open(dir.path(), options).unwrap();
    let keys = options.narrow.nodes() * percent / 100;
    let refused = fill(&cluster, 0..keys);
    let occupancy = cluster.occupancy(Class::Narrow).unwrap();
    assert_eq!(occupancy.occupied, keys - refused);
    assert_eq!(cluster.stats().refused, refused);
    (keys, refused)
}

#[test]
fn no_key_is_refused_at_four_fifths() {
    for seed in 0..repetitions(CLUSTERS, 3) {
        for key_nodes in [1, 10, 100, 1500] {
            let (keys, refused) = fill_to(&narrow(key_nodes, 35), mixed(seed), 80);
            assert_eq!(refused, 0, "of {keys} keys, seed {seed}");
        }
    }
}

/// With few key-nodes too, a key has two of them to choose from. One cluster is filled with many sets of keys.
#[test]
fn no_key_is_refused_in_a_small_cluster_at_four_fifths() {
    let sets = 50 * repetitions(CLUSTERS, 3);
    for key_nodes in [2, 3, 4, 6, 10] {
        let (dir, options) = (directory(), narrow(key_nodes, 35));
        Image::new(&options, mixed(key_nodes)).write(dir.path());
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        let keys = options.narrow.nodes() * 80 / 100;
        let refused: Vec<_> = (0..sets)
            .map(|set| {
                cluster.reset_all().unwrap();
                fill(&cluster, set << 32..(set << 32) + keys)
            })
            .collect();
        let bad = refused.iter().filter(|refused| **refused > 0).count();
        assert_eq!(bad, 0, "{bad} of {sets} sets of {keys} keys for {key_nodes} key-nodes");
    }
}

#[test]
fn hardly_a_key_is_refused_at_nine_tenths() {
    let mut sums = (0, 0);
    for seed in 0..repetitions(CLUSTERS, 3) {
        let (keys, refused) = fill_to(&narrow(2000, 35), mixed(seed), 90);
        sums = (sums.0 + keys, sums.1 + refused);
    }
    println!("{} of {} keys refused", sums.1, sums.0);
    // A few in a million.
    assert!(sums.1 <= 2 + sums.0 / 100_000, "{} of {} keys refused", sums.1, sums.0);
}

/// As many keys as a cluster was made for, in both classes.
#[test]
fn a_capacity_is_kept() {
    for seed in 0..repetitions(CLUSTERS, 3) {
        for capacity in [1, 10, 28, 100, 1000, 10_000] {
            let options = Options::narrow(Geometry::by_capacity(capacity, 0.8).unwrap());
            let dir = directory();
            Image::new(&options, mixed(seed)).write(dir.path());
            let cluster = Cluster::open(dir.path(), &options).unwrap();
            let refused = fill(&cluster, (0..capacity).map(|key| key << 20));
            assert_eq!(refused, 0, "of {capacity}, seed {seed}");
        }
    }
}

/// The longest chain.
fn longest(cluster: &Cluster) -> usize {
    let occupancy = cluster.occupancy(Class::Narrow).unwrap();
    occupancy.chains.iter().rposition(|count| *count > 0).unwrap()
}

/// An attacker who knows the hash but not the seed chooses keys that share a home under the seeds that they
/// can guess.
#[test]
fn chosen_keys_do_not_crowd() {
    const KEY_NODES: u64 = 64;
    const KEYS: usize = 640;
    let options = narrow(KEY_NODES, 40);
    let layout = Layout::new(Class::Narrow, options.narrow);
    let dir = directory();
    let other = Cluster::open(dir.path(), &options).unwrap();
    for seed in [0, u64::MAX, other.seed()] {
        let is_chosen = |key: &u64| layout.home(&key.stored(seed)) == 7;
        let keys: Vec<u64> = (0..).filter(is_chosen).take(KEYS).collect();

        // Under a guessed seed they do crowd, so the test would notice.
        let crowded = directory();
        Image::new(&options, seed).write(crowded.path());
        let crowded = Cluster::open(crowded.path(), &options).unwrap();
        fill(&crowded, keys.iter().copied());
        assert!(longest(&crowded) > 34, "{:?}", crowded.occupancy(Class::Narrow));

        // Ten keys per chain on average. Poisson: one of 64 chains has more than 34 keys once in 2.5e7 runs.
        // The seed differs each time.
        let dir = directory();
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        assert_eq!(fill(&cluster, keys.iter().copied()), 0);
        assert!(longest(&cluster) <= 34, "{:?}", cluster.occupancy(Class::Narrow));
        let image = Image::read(dir.path());
        // Nor does the cluster use a seed that an attacker could guess.
        assert_eq!(image.seed(), cluster.seed());
        assert!(![0, u64::MAX, other.seed()].contains(&cluster.seed()));
    }
}
