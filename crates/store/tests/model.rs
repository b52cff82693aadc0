//! The store against its slow, obvious twin: a map, and the placing rule of docs/store-format.md.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tidegate_store::{Entry, Key, Options, Store, UpdateError};

/// Three chains, 48 nodes.
const CHAINS: u64 = 3;
const NODES: usize = 16;
/// More keys than nodes, so that chains fill up.
const KEYS: u64 = 90;

#[derive(Clone, Debug)]
enum Step {
    /// Time passes, then one call.
    Update { passed: u64, changes: Vec<(u64, Change)> },
    /// The store is closed and opened again.
    Reopen,
}

/// What the closure does to one entry.
#[derive(Clone, Copy, Debug)]
enum Change {
    Leave,
    Zero,
    Set { state: u64, lifetime: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![
        1 => Just(Change::Leave),
        1 => Just(Change::Zero),
        6 => (1..u64::MAX, 0..400_u64).prop_map(|(state, lifetime)| Change::Set { state, lifetime }),
    ];
    // Up to 12 keys: past the 8 that are handled without allocating.
    let changes = prop::collection::vec((0..KEYS, change), 0..12);
    prop_oneof![
        15 => (0..12_u64, changes).prop_map(|(passed, changes)| Step::Update { passed, changes }),
        1 => Just(Step::Reopen),
    ]
}

/// The twin.
#[derive(Default)]
struct Model {
    entries: HashMap<u64, Entry>,
}

/// What a call must come to.
#[derive(Debug)]
enum Outcome {
    /// The closure gets these entries, in the order of the keys.
    Done(Vec<Entry>),
    Repeated(u64),
    /// One of these keys is refused.
    Full(Vec<u64>),
}

impl Model {
    fn update(&mut self, now: u64, changes: &[(u64, Change)]) -> Outcome {
        self.entries.retain(|_, entry| entry.expires_at > now);
        if let Some(id) = repeated(changes) {
            return Outcome::Repeated(id);
        }
        let refused = self.refused(changes);
        if !refused.is_empty() {
            return Outcome::Full(refused);
        }
        let mut before = Vec::new();
        for &(id, change) in changes {
            let entry = self.entries.get(&id).copied().unwrap_or_default();
            before.push(entry);
            let after = apply(entry, change, now);
            let is_kept = after.state != [0; 4] && after.expires_at > now;
            if self.entries.contains_key(&id) || is_kept {
                self.entries.insert(id, after);
            }
        }
        Outcome::Done(before)
    }

    /// The absent keys of chains which have fewer nodes that are not live than keys that need one.
    fn refused(&self, changes: &[(u64, Change)]) -> Vec<u64> {
        let absent = |id: &u64| !self.entries.contains_key(id);
        let absent: Vec<_> = changes.iter().map(|(id, _)| *id).filter(absent).collect();
        let is_full = |id: &u64| {
            let in_chain = |other: &&u64| chain(**other) == chain(*id);
            let live = self.entries.keys().filter(in_chain).count();
            live + absent.iter().filter(in_chain).count() > NODES
        };
        absent.iter().copied().filter(is_full).collect()
    }
}

fn apply(entry: Entry, change: Change, now: u64) -> Entry {
    match change {
        Change::Leave => entry,
        Change::Zero => Entry { state: [0; 4], ..entry },
        Change::Set { state, lifetime } => Entry {
            state: [state, !state, entry.state[0], entry.state[1]],
            expires_at: now + lifetime,
        },
    }
}

fn repeated(changes: &[(u64, Change)]) -> Option<u64> {
    let is_repeated = |at: usize| changes[..at].iter().any(|(id, _)| *id == changes[at].0);
    (0..changes.len()).find(|&at| is_repeated(at)).map(|at| changes[at].0)
}

fn key(id: u64) -> Key {
    Key::from_hash(hash(id))
}

fn hash(id: u64) -> u128 {
    u128::from(id + 1)
}

fn chain(id: u64) -> u64 {
    let folded = (hash(id) >> 64) as u64 ^ hash(id) as u64;
    let spread = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(spread) * u128::from(CHAINS)) >> 64) as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_store_is_a_map_with_full_chains(steps in prop::collection::vec(step(), 1..120)) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { capacity: CHAINS * NODES as u64 };
        let mut store = Store::open(dir.path(), &options).unwrap();
        let mut model = Model::default();
        let mut now = 1_000;
        for step in steps {
            let Step::Update { passed, changes } = step else {
                drop(store);
                store = Store::open(dir.path(), &options).unwrap();
                continue;
            };
            now += passed;
            let keys: Vec<_> = changes.iter().map(|(id, _)| key(*id)).collect();
            let found = store.update_many(&keys, now, |entries| {
                let before = entries.to_vec();
                for (entry, (_, change)) in entries.iter_mut().zip(&changes) {
                    *entry = apply(*entry, *change, now);
                }
                before
            });
            match model.update(now, &changes) {
                Outcome::Done(before) => prop_assert_eq!(found, Ok(before)),
                Outcome::Repeated(id) => {
                    prop_assert_eq!(found, Err(UpdateError::RepeatedKey { key: key(id) }));
                }
                Outcome::Full(ids) => {
                    let nodes = NODES as u64;
                    let refused = |id| UpdateError::ChainFull { key: key(id), chain: chain(id), nodes };
                    let error = found.unwrap_err();
                    prop_assert!(ids.iter().any(|id| error == refused(*id)), "{error}: {ids:?}");
                }
            }
        }
        for (&id, &entry) in &model.entries {
            let expected = if entry.expires_at > now { entry } else { Entry::default() };
            prop_assert_eq!(store.update_many(&[key(id)], now, |entries| entries[0]), Ok(expected));
        }
        prop_assert_eq!(store.stats().dropped_invalid, 0);
    }
}

/// The property above is worth little if its steps never fill a chain.
#[test]
fn the_twin_meets_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let (mut done, mut repeated, mut full) = (0, 0, 0);
    for _ in 0..20 {
        let steps = prop::collection::vec(step(), 119).new_tree(&mut runner).unwrap().current();
        let (mut model, mut now) = (Model::default(), 1_000);
        for step in steps {
            let Step::Update { passed, changes } = step else {
                continue;
            };
            now += passed;
            match model.update(now, &changes) {
                Outcome::Done(_) => done += 1,
                Outcome::Repeated(_) => repeated += 1,
                Outcome::Full(_) => full += 1,
            }
        }
    }
    assert!(done > 200 && repeated > 200 && full > 200, "{done} {repeated} {full}");
}
