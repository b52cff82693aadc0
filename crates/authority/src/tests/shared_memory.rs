//! Counters in shared memory as the authority sees them.

use super::*;
use tidegate_core::StateSize;

fn cluster(dir: &Path, wide: Option<Geometry>) -> Arc<Cluster> {
    let narrow = Geometry::by_capacity(64, 0.8).expect("a geometry");
    let options = Options { wide, ..Options::narrow(narrow) };
    Arc::new(Cluster::open(&dir.join("data"), &options).expect("a store"))
}

#[test]
fn the_engine_has_the_seed_the_nodes_and_the_longest_state_of_its_cluster() {
    let wide = Geometry::wide_by_capacity(16, 0.8, 33).expect("a geometry");
    for (wide, words) in [(None, StateSize::Narrow.words()), (Some(wide), StateSize::Wide.words())]
    {
        let dir = tempfile::TempDir::new().expect("a directory");
        let cluster = cluster(dir.path(), wide);
        let counters: &dyn Counters = &*cluster;
        assert_eq!(counters.seed(), Cluster::seed(&cluster));
        assert_eq!(counters.state_words(), words);
        assert_eq!(counters.answers(), Answers::AtOnce);
        let narrow = cluster.geometry(Class::Narrow).expect("narrow nodes");
        assert_eq!(counters.capacity(), narrow.nodes());
        assert!(counters.capacity() >= 64);
    }
}

/// A reload that was refused had to leave the limits as they were.
#[test]
fn new_limits_that_the_store_has_no_nodes_for_leave_the_old_ones_in_force() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let store = cluster(dir.path(), None);
    let good = "- {key: k, rate_limit: {unit: day, requests: 5}}";
    let fixture = Fixture::new(store, dir, good, Modes::default(), Arc::new(()));
    let wide = "- {key: k, rate_limit: {algorithm: sliding_buckets, unit: hour, requests: 9}}";
    let rules = rules_of(fixture.dir.path(), wide);
    assert!(fixture.engine.replace_limits(rules).is_err());
    assert_eq!(fixture.left(&[("k", "v")]), 5);
}

#[test]
fn an_authority_on_a_directory_of_its_own_finds_its_counters_again() {
    let dir = tempfile::TempDir::new().expect("a directory");
    rules_of(dir.path(), "- {key: k, rate_limit: {unit: day, requests: 100}}");
    let (data, file) = (dir.path().join("data"), dir.path().join("limits.yaml"));
    let descriptors = leases::of_k();
    let request = Request { domain: "d".into(), descriptors, hits: Hits::ONE };
    let ask = leases::wants(1, 10, 0);
    for left in [89, 78] {
        let authority =
            open_standalone(64, &data, &file, Nanos::from_secs(2)).expect("an authority");
        let ask = tidegate_core::LeaseRequest { call: ask.call + left, ..ask.clone() };
        let answer = wait(authority.decide_leasing(&request, &ask, Timestamp::from_secs(START)));
        let status = &answer.expect("an answer").statuses[0];
        assert_eq!(u64::from(status.remaining), left);
        assert_eq!(status.lease.map(|lease| lease.tokens), Some(10));
    }
}
