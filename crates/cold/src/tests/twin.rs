//! Random operations beside a map in memory, on two shards of SQLite.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_store::Class;

const SHARDS: usize = 2;

#[derive(Debug, Clone)]
enum Step {
    Put(usize, Vec<Row>),
    Remove(usize, Vec<(Hashed, u32)>),
    Fetch(usize, Vec<Hashed>),
    List(usize),
    /// Another process takes over.
    Reopen,
    /// Time passes.
    Wait(u32),
}

fn keys() -> impl Strategy<Value = Hashed> {
    // Few, so that operations meet: some of one bucket, some of others.
    (0_u128..4, 0_u128..4, any::<bool>()).prop_map(|(high, low, is_wide)| Hashed {
        hash: high << 126 | low,
        class: if is_wide { Class::Wide } else { Class::Narrow },
    })
}

/// Times relative to the first one.
fn rows() -> impl Strategy<Value = Row> {
    let state = prop::collection::vec(1_u64.., 0..35);
    (keys(), state, 0_u32..200, 0_u32..3).prop_map(|(key, state, expires, moved)| Row {
        key,
        state: state.into_iter().collect(),
        expires_at: NOW + expires,
        moved_at: NOW + moved,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let version = (keys(), 0_u32..3).prop_map(|(key, moved)| (key, NOW + moved));
    let step = prop_oneof![
        5 => (0..SHARDS, prop::collection::vec(rows(), 0..12)).prop_map(|(at, rows)| Step::Put(at, rows)),
        3 => (0..SHARDS, prop::collection::vec(version, 0..12)).prop_map(|(at, rows)| Step::Remove(at, rows)),
        4 => (0..SHARDS, prop::collection::vec(keys(), 0..12)).prop_map(|(at, keys)| Step::Fetch(at, keys)),
        2 => (0..SHARDS).prop_map(Step::List),
        1 => Just(Step::Reopen),
        2 => prop_oneof![0_u32..40, 3_500_u32..3_700].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..40)
}

/// What the shards should have.
#[derive(Default)]
struct Twin {
    shards: [BTreeMap<Hashed, Row>; SHARDS],
}

impl Twin {
    fn get(&self, shard: usize, key: &Hashed, now: u32) -> Option<Row> {
        self.shards[shard].get(key).filter(|row| row.expires_at > now).cloned()
    }
}

async fn compare(steps: Vec<Step>) {
    let server = Server::start(Kind::Sqlite).await.unwrap();
    let mut settings = settings(&server, "one").await;
    settings.urls.push(server.create_database("two").await);
    settings.buckets_log2 = 2;
    let mut cold = Cold::open(&settings, 1).unwrap();
    let mut twin = Twin::default();
    let mut now = NOW;
    for step in steps {
        match step {
            Step::Put(shard, rows) => {
                cold.put(shard, &rows, now).await.unwrap();
                twin.shards[shard].extend(rows.into_iter().map(|row| (row.key, row)));
            }
            Step::Remove(shard, versions) => {
                cold.remove(shard, &versions, now).await.unwrap();
                for (key, version) in versions {
                    let rows = &mut twin.shards[shard];
                    if rows.get(&key).is_some_and(|row| row.moved_at <= version) {
                        rows.remove(&key);
                    }
                }
            }
            Step::Fetch(shard, keys) => {
                let expected: Vec<Option<Row>> =
                    keys.iter().map(|key| twin.get(shard, key, now)).collect();
                assert_eq!(cold.fetch(shard, &keys, now).await.unwrap(), expected);
            }
            Step::List(shard) => {
                let page = cold.page(shard, None, now).await.unwrap();
                let found: Vec<Hashed> = page.rows.iter().map(|row| row.key).collect();
                let keys = twin.shards[shard].keys();
                let expected: Vec<Hashed> =
                    keys.filter(|key| twin.get(shard, key, now).is_some()).copied().collect();
                assert_eq!((found, page.next), (expected, None));
                let size = cold.size(shard).await.unwrap().counters;
                assert!(size >= page.rows.len() as u64);
            }
            Step::Reopen => {
                cold.close().await;
                cold = Cold::open(&settings, 1).unwrap();
            }
            Step::Wait(seconds) => now += seconds,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_operations_are_those_of_a_map(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(steps));
    }
}
