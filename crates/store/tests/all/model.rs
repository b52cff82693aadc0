//! The cluster against its slow, obvious twin: every result, every count and every slot of a key.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use tidegate_store::{
    Class, Cluster, Entry, EntryMut, Eviction, Hashed, Key, Options, Parts, StoredKey, UpdateError,
};

use crate::common::format::Image;
use crate::common::random::mixed;
use crate::common::twin::{Refused, Room, Seen, Twin};
use crate::common::{Directory, SECOND, check_sound, directory, geometry, repetitions};

const SEED: u64 = 0x5EED;
/// The number of cases to try.
const CASES: &str = "TIDEGATE_STORE_TEST_CASES";

/// A key of the model, of one of several kinds.
#[derive(Clone, Copy, Debug)]
struct Id(u64);

/// The kinds of keys, by number.
enum Kind {
    /// A hash: estimate and identity.
    Hash(StoredKey),
    /// Compares without the lowest byte of the identity, which is a note.
    Noted(u64),
    Number(u64),
    Text(String),
    Parts(String, String),
}

impl Id {
    fn kind(self) -> Kind {
        let number = self.0 / 8;
        match self.0 % 8 {
            0 | 1 => Kind::Hash(StoredKey::from_bits(
                u128::from(mixed(number)) << 64 | u128::from(number),
            )),
            // Three keys with one estimate, which for some is the least or the largest.
            2 => {
                let estimate = match number / 3 {
                    0 => 0,
                    1 => u64::MAX,
                    other => mixed(other << 32),
                };
                Kind::Hash(StoredKey { estimate, identity: number % 3 })
            }
            // Two equal keys with different notes.
            3 | 4 => Kind::Noted(number),
            5 => Kind::Number(number),
            6 => Kind::Text(format!("key {number}")),
            _ => Kind::Parts(format!("{}", number % 12), format!("{}", number / 12)),
        }
    }
}

impl Key for Id {
    fn stored(&self, seed: u64) -> StoredKey {
        match self.kind() {
            Kind::Hash(key) => key,
            Kind::Noted(number) => {
                // Far from the numbers that are keys themselves.
                let StoredKey { estimate, identity } = (1 << 60 | number << 8).stored(seed);
                StoredKey { estimate, identity: identity | (self.0 % 8) }
            }
            Kind::Number(number) => number.stored(seed),
            Kind::Text(text) => text.as_str().stored(seed),
            Kind::Parts(a, b) => Parts(&[a.as_bytes(), b.as_bytes()]).stored(seed),
        }
    }

    fn compare(&self, own: &StoredKey, found: &StoredKey) -> bool {
        match self.kind() {
            Kind::Noted(_) => {
                own.estimate == found.estimate && own.identity >> 8 == found.identity >> 8
            }
            Kind::Hash(key) => key.compare(own, found),
            Kind::Number(number) => number.compare(own, found),
            Kind::Text(text) => text.as_str().compare(own, found),
            Kind::Parts(a, b) => Parts(&[a.as_bytes(), b.as_bytes()]).compare(own, found),
        }
    }

    fn class(&self) -> Class {
        if self.0 / 8 % 4 == 3 { Class::Wide } else { Class::Narrow }
    }
}

/// What an update does to an entry.
#[derive(Clone, Copy, Debug)]
enum Change {
    Leave,
    Zero,
    /// Writes every word, and sets the expiry this many nanoseconds ahead.
    Set {
        value: u64,
        lifetime: u64,
    },
    /// Writes the last word only.
    Touch(u64),
    Expire,
    Renew(u64),
    Forever,
}

impl Change {
    fn apply(self, state: &mut [u64], expires_at: &mut u64, now: u64) {
        match self {
            Self::Leave => {}
            Self::Zero => state.fill(0),
            Self::Set { value, lifetime } => {
                let words = state.iter_mut().enumerate();
                words.for_each(|(index, word)| *word = value.wrapping_mul(index as u64 + 1));
                *expires_at = now.saturating_add(lifetime);
            }
            Self::Touch(value) => *state.last_mut().unwrap() ^= value,
            Self::Expire => *expires_at = now,
            Self::Renew(lifetime) => *expires_at = now.saturating_add(lifetime),
            Self::Forever => *expires_at = u64::MAX,
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Update(u64, Change),
    Many(Vec<(u64, Change)>),
    Each(Vec<(u64, Change)>),
    /// An update that panics instead of deciding.
    Panic(Vec<u64>),
    Create(u64, u64, u64),
    Find(u64),
    Erase(u64),
    Sweep,
    /// The handle trusts its clock until this many seconds ahead, or always.
    Trust(Option<i64>),
    ResetAll,
    Visit,
    /// One of the handles is closed and reopened.
    Rejoin,
    /// All handles are, so that the first one to return checks every node.
    Reopen,
}

/// An action, after this many nanoseconds, by one of two handles.
#[derive(Clone, Debug)]
struct Step {
    passed: i64,
    handle: usize,
    act: Act,
}

#[derive(Clone, Debug)]
struct Case {
    options: Options,
    start: u64,
    steps: Vec<Step>,
}

fn case(steps: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    let narrow = prop_oneof![
        Just(geometry(1, 1, 1, 4)),
        Just(geometry(2, 3, 8, 4)),
        Just(geometry(1, 2, 35, 4)),
        Just(geometry(3, 1, 40, 4)),
        Just(geometry(1, 5, 9, 1)),
        Just(geometry(2, 2, 3, 7)),
    ];
    let wide = prop_oneof![
        Just(None),
        Just(Some(geometry(1, 1, 2, 80))),
        Just(Some(geometry(1, 3, 3, 9))),
        Just(Some(geometry(2, 1, 12, 4))),
    ];
    let eviction = prop_oneof![Just(Eviction::Refuse), Just(Eviction::EvictSoonestExpiry)];
    // At the beginning of time, in our days, and at its end.
    let start = prop_oneof![Just(0), Just(1_700_000_000 * SECOND), Just(4_294_967_200 * SECOND)];
    (narrow, wide, eviction, start).prop_flat_map(move |(narrow, wide, eviction, start)| {
        let options = Options { narrow, wide, eviction, ..Options::default() };
        // A third more keys than nodes, as every fourth key is wide. A cluster that two processes have open,
        // and its twin.
        let keys = 4 + 8 * narrow.nodes() / 5;
        let steps = prop::collection::vec(step(keys), steps.clone());
        steps.prop_map(move |steps| Case { options: options.clone(), start, steps })
    })
}

fn step(keys: u64) -> impl Strategy<Value = Step> {
    let lifetime = || prop_oneof![0..3 * SECOND, 0..100 * SECOND];
    let change = prop_oneof![
        1 => Just(Change::Leave),
        1 => Just(Change::Zero),
        8 => (any::<u64>(), lifetime())
            .prop_map(|(value, lifetime)| Change::Set { value, lifetime }),
        1 => any::<u64>().prop_map(Change::Touch),
        1 => Just(Change::Expire),
        1 => lifetime().prop_map(Change::Renew),
        1 => Just(Change::Forever),
    ];
    let changes = |most| prop::collection::vec((0..keys, change.clone()), 0..most);
    let key = 0..keys;
    let act = prop_oneof![
        8 => (key.clone(), change.clone()).prop_map(|(key, change)| Act::Update(key, change)),
        8 => changes(12).prop_map(Act::Many),
        1 => changes(70).prop_map(Act::Many),
        4 => changes(70).prop_map(Act::Each),
        1 => prop::collection::vec(key.clone(), 1..4).prop_map(Act::Panic),
        3 => (key.clone(), any::<u64>(), lifetime())
            .prop_map(|(key, value, lifetime)| Act::Create(key, value, lifetime)),
        4 => key.clone().prop_map(Act::Find),
        4 => key.prop_map(Act::Erase),
        1 => Just(Act::Sweep),
        1 => prop_oneof![3 => Just(Act::Visit), 1 => Just(Act::ResetAll)],
        2 => prop_oneof![Just(None), (-60..60_i64).prop_map(Some)].prop_map(Act::Trust),
        2 => Just(Act::Visit),
        1 => Just(Act::Rejoin),
        1 => Just(Act::Reopen),
    ];
    let second = SECOND as i64;
    let passed = prop_oneof![
        4 => Just(0),
        4 => 0..2 * second,
        2 => 0..60 * second,
        1 => -60 * second..0,
    ];
    (passed, 0..2_usize, act).prop_map(|(passed, handle, act)| Step { passed, handle, act })
}

/// A cluster that two processes have open, and its twin.
struct Pair {
    dir: Directory,
    options: [Options; 2],
    handles: [Option<Cluster>; 2],
    /// The second until which each handle trusts its clock.
    trusted_secs: [u64; 2],
    twin: Twin,
    now: u64,
}

impl Pair {
    fn new(case: &Case) -> Self {
        let dir = directory();
        Image::new(&case.options, SEED).write(dir.path());
        // The geometry of an existing cluster does not depend on the opening process; its eviction policy does.
        let other = Options { eviction: Eviction::EvictSoonestExpiry, ..Options::default() };
        let options = [case.options.clone(), other];
        let twin = Twin::new(&case.options, SEED);
        let (handles, trusted_secs) = ([None, None], [u64::MAX; 2]);
        let mut pair = Self { dir, options, handles, trusted_secs, twin, now: case.start };
        pair.open();
        pair
    }

    fn open(&mut self) {
        for (index, handle) in self.handles.iter_mut().enumerate() {
            handle.get_or_insert_with(|| {
                self.trusted_secs[index] = u64::MAX;
                Cluster::open(self.dir.path(), &self.options[index]).unwrap()
            });
        }
    }

    fn run(&mut self, step: &Step) {
        self.now = self.now.saturating_add_signed(step.passed);
        let (now, handle) = (self.now, step.handle);
        let eviction = self.options[handle].eviction;
        let cluster = self.handles[handle].as_ref().unwrap();
        let twin = &mut self.twin;
        twin.trusted_secs = self.trusted_secs[handle];
        match &step.act {
            Act::Update(key, change) => {
                let found =
                    cluster.update(&Id(*key), now, |entry| change_entry(entry, *change, now));
                let expected = update_twin(twin, &[(*key, *change)], now, eviction, Room::ForAll);
                assert_eq!(found.map_err(refused), expected.map(|mut seen| seen.remove(0)));
            }
            Act::Many(changes) => {
                let keys: Vec<_> = changes.iter().map(|(key, _)| Id(*key)).collect();
                let found = cluster.update_many(&keys, now, |entries| {
                    assert_eq!(entries.len(), changes.len());
                    let changes = changes.iter().enumerate();
                    let change = |(index, (_, change)): (usize, &(u64, Change))| {
                        change_entry(entries.get(index), *change, now)
                    };
                    changes.map(change).collect::<Vec<_>>()
                });
                let expected = update_twin(twin, changes, now, eviction, Room::ForWritten);
                assert_eq!(found.map_err(refused), expected);
            }
            Act::Each(changes) => {
                let keys: Vec<_> = changes.iter().map(|(key, _)| Id(*key)).collect();
                let mut seen = Vec::new();
                cluster.update_each(&keys, now, |index, entry| {
                    assert_eq!(index, seen.len());
                    let change = |entry| change_entry(entry, changes[index].1, now);
                    seen.push(entry.map(change).map_err(refused));
                });
                let update = |change: &(u64, Change)| {
                    update_twin(twin, &[*change], now, eviction, Room::ForAll)
                        .map(|mut seen| seen.remove(0))
                };
                assert_eq!(seen, changes.iter().map(update).collect::<Vec<_>>());
            }
            Act::Panic(keys) => self.panic(handle, keys),
            Act::Create(key, value, lifetime) => {
                let words = 1 + (value % 9) as usize;
                let entry = Entry::new(&vec![*value; words], now.saturating_add(*lifetime));
                let found = cluster.create(&Id(*key), now, &entry);
                let (mut is_new, mut words_max) = (false, 0);
                let expected = twin.update(&[Id(*key)], now, eviction, Room::ForAll, |seen, _| {
                    let (new, state, expires_at) = &mut seen[0];
                    (is_new, words_max) = (*new, state.len());
                    if *new && words <= words_max {
                        state.iter_mut().zip(&entry.state).for_each(|(to, word)| *to = *word);
                        *expires_at = entry.expires_at;
                    }
                });
                if expected.is_ok() && words > words_max {
                    assert_eq!(found, Err(UpdateError::StateTooLong { words, words_max }));
                } else {
                    assert_eq!(found.map_err(refused), expected.map(|()| is_new));
                }
            }
            Act::Find(key) => {
                let found = cluster.find(&Id(*key), now).map_err(refused);
                let found = found.map(|entry| {
                    entry.map(|entry| (false, entry.state.to_vec(), entry.expires_at))
                });
                assert_eq!(found, twin.find(&Id(*key), now));
            }
            Act::Erase(key) => {
                let found = cluster.erase(&Id(*key), now).map_err(refused);
                assert_eq!(found, twin.erase(&Id(*key), now));
            }
            Act::Sweep => assert_eq!(cluster.sweep(now), Ok(twin.sweep(now))),
            Act::Trust(ahead) => {
                let secs = ahead.map(|secs| (now / SECOND).saturating_add_signed(secs));
                let secs = secs.map_or(u32::MAX, |secs| u32::try_from(secs).unwrap_or(u32::MAX));
                cluster.trust_clock_until(secs);
                self.trusted_secs[handle] = secs.into();
            }
            Act::ResetAll => assert_eq!(cluster.reset_all(), Ok(twin.reset_all())),
            Act::Visit => self.check(),
            Act::Rejoin => {
                self.handles[handle] = None;
                self.open();
            }
            Act::Reopen => {
                self.handles = [None, None];
                self.open();
            }
        }
    }

    /// An update that panics changes nothing, except that expired nodes may be freed.
    fn panic(&mut self, handle: usize, keys: &[u64]) {
        let cluster = self.handles[handle].as_ref().unwrap();
        let ids: Vec<_> = keys.iter().map(|key| Id(*key)).collect();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            cluster.update_many(&ids, self.now, |entries| {
                for index in 0..entries.len() {
                    entries.get(index).state.fill(u64::MAX);
                    *entries.get(index).expires_at = u64::MAX;
                }
                resume_unwind(Box::new("decided to panic"))
            })
        }));
        let eviction = self.options[handle].eviction;
        let changes: Vec<_> = keys.iter().map(|key| (*key, Change::Leave)).collect();
        let expected = update_twin(&mut self.twin, &changes, self.now, eviction, Room::ForWritten);
        match caught {
            Err(_) => assert!(expected.is_ok(), "{expected:?}"),
            Ok(found) => {
                let found: Result<(), _> = found;
                assert_eq!(found.map_err(refused), expected.map(|_| ()));
            }
        }
    }

    /// Compares every node, every count, and how full the chains are.
    fn check(&self) {
        check_sound(self.dir.path());
        for cluster in self.handles.iter().flatten() {
            let mut found = Vec::new();
            cluster
                .for_each(|class, key, Entry { state, expires_at, .. }| {
                    found.push((class, key, state.to_vec(), expires_at));
                })
                .unwrap();
            let expected: Vec<_> = self
                .twin
                .all()
                .into_iter()
                .map(|(class, node)| (class, node.key, node.state, node.expires_secs * SECOND))
                .collect();
            assert_eq!(found, expected);
            assert_eq!(cluster.stats(), self.twin.stats);
            for (class, chains, crowded) in self.twin.occupancy() {
                let found = cluster.occupancy(class).unwrap();
                assert_eq!((found.chains, found.crowded), (chains, crowded));
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn change_entry(entry: EntryMut<'_>, change: Change, now: u64) -> Seen {
    let seen = (entry.is_new(), entry.state.to_vec(), *entry.expires_at);
    change.apply(entry.state, entry.expires_at, now);
    seen
}

/// The entries as each change finds them.
fn update_twin(
    twin: &mut Twin,
    changes: &[(u64, Change)],
    now: u64,
    eviction: Eviction,
    room: Room,
) -> Result<Vec<Seen>, Refused> {
    let keys: Vec<_> = changes.iter().map(|(key, _)| Id(*key)).collect();
    let mut before = Vec::new();
    twin.update(&keys, now, eviction, room, |entries, firsts| {
        for (index, (_, change)) in changes.iter().enumerate() {
            let (is_new, state, expires_at) = &mut entries[firsts[index]];
            before.push((*is_new, state.clone(), *expires_at));
            change.apply(state, expires_at, now);
        }
    })?;
    Ok(before)
}

fn refused(error: UpdateError) -> Refused {
    match error {
        UpdateError::Full { key, class, nodes } => Refused::Full { key, class, nodes },
        UpdateError::NoClass { key, class } => Refused::NoClass { key, class },
        error => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: repetitions(CASES, 128) as u32, ..Default::default() })]

    #[test]
    fn the_cluster_is_its_twin(case in case(1..120)) {
        let mut pair = Pair::new(&case);
        case.steps.iter().for_each(|step| pair.run(step));
        pair.check();
    }
}

/// The maximum number of keys in an update, and one more.
#[test]
fn an_update_has_so_many_keys_at_most() {
    let dir = directory();
    let options =
        Options { wide: Some(geometry(1, 16, 12, 80)), ..Options::narrow(geometry(2, 16, 35, 4)) };
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    let update = |keys: &[Hashed]| {
        cluster.update_many(keys, SECOND, |entries| {
            for index in 0..entries.len() {
                entries.get(index).state[0] += 1;
                *entries.get(index).expires_at = u64::MAX;
            }
        })
    };
    let keys = |class, count: u64| -> Vec<_> {
        (0..count)
            .map(|key| Hashed { hash: u128::from(mixed(key)) << 64 | u128::from(key), class })
            .collect()
    };
    let (narrow, wide) = (|count| keys(Class::Narrow, count), |count| keys(Class::Wide, count));
    // A node, and two words for its target; 3552 words in all.
    let mut both = narrow(95);
    both.extend(wide(31));
    let mut repeated = wide(40);
    repeated.extend((0..66).map(|_| wide(1)[0]));
    for keys in [vec![], narrow(256), wide(41), both, repeated] {
        assert_eq!(update(&keys), Ok(()), "{} keys", keys.len());
    }
    let mut both = narrow(103);
    both.extend(wide(31));
    let repeated = vec![narrow(1)[0]; 257];
    let million = vec![narrow(1)[0]; 1_000_000];
    for keys in [narrow(257), wide(42), both, repeated, million] {
        let count = keys.len();
        let error = update(&keys).unwrap_err();
        assert!(matches!(error, UpdateError::TooLarge { keys, .. } if keys == count), "{error:?}");
        let tail = "are too much for one update (at most 256 keys and 3552 words)";
        assert!(error.to_string().ends_with(tail), "{error}");
    }
    // The refused update has changed nothing.
    let mut sum = 0;
    cluster.for_each(|_, _, entry| sum += entry.state[0]).unwrap();
    assert_eq!(sum, 256 + 41 + 95 + 31 + 40 + 66);
}

/// A full chain used to refuse every update with a new key in it before the other keys were considered. So a
/// caller over its limit got an error, and passed where errors mean "allow", by naming a new key besides.
#[test]
fn a_new_key_without_room_does_not_hide_the_others() {
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &Options::narrow(geometry(1, 1, 8, 4))).unwrap();
    for key in 0..8_u64 {
        cluster
            .update(&key, SECOND, |entry| {
                entry.state[0] = 1 + key;
                *entry.expires_at = u64::MAX;
            })
            .unwrap();
    }
    let both = [3_u64, 100];
    let seen = cluster.update_many(&both, SECOND, |entries| {
        (entries.get(0).state[0], entries.get(1).state[0], entries.get(1).is_new())
    });
    assert_eq!(seen, Ok((4, 0, true)));
    assert_eq!(cluster.stats().refused, 0);
    // Writing it needs a node, and then nothing is written.
    let written = cluster.update_many(&both, SECOND, |entries| {
        for index in 0..2 {
            entries.get(index).state[0] = 99;
            *entries.get(index).expires_at = u64::MAX;
        }
    });
    assert!(matches!(written, Err(UpdateError::Full { .. })), "{written:?}");
    assert_eq!(cluster.stats().refused, 1);
    assert_eq!(cluster.find(&3_u64, SECOND).unwrap().unwrap().state[0], 4);
}

/// Before changing an entry, a caller sees whether it has no node, or only by evicting another key's live entry.
#[test]
fn an_entry_says_whether_it_has_room() {
    use tidegate_store::{Entries, Room};

    for (eviction, without) in
        [(Eviction::Refuse, Room::Full), (Eviction::EvictSoonestExpiry, Room::ByEviction)]
    {
        let dir = directory();
        let options = Options { eviction, ..Options::narrow(geometry(1, 1, 8, 4)) };
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        let keep = |entry: EntryMut<'_>| {
            entry.state[0] = 1;
            *entry.expires_at = 9 * SECOND;
            entry.room()
        };
        let rooms = |keys: &[u64], now| {
            let look = |entries: &mut Entries<'_>| {
                (0..entries.len()).map(|index| entries.get(index).room()).collect::<Vec<_>>()
            };
            cluster.update_many(keys, now, look).unwrap()
        };
        for key in 0..7_u64 {
            assert_eq!(cluster.update(&key, SECOND, keep), Ok(Room::Available), "key {key}");
        }
        // The last node goes to the first key without one, and to each occurrence of that key.
        assert_eq!(
            rooms(&[3, 7, 8, 7], SECOND),
            [Room::Available, Room::Available, without, Room::Available]
        );
        assert_eq!(rooms(&[8, 7], SECOND), [Room::Available, without]);
        assert_eq!(cluster.update(&7_u64, SECOND, keep), Ok(Room::Available));
        assert_eq!(rooms(&[3, 8], SECOND), [Room::Available, without]);
        assert_eq!(rooms(&[8], 9 * SECOND), [Room::Available], "all have expired");
        assert_eq!(cluster.stats().refused, 0);
        assert_eq!(cluster.stats().evicted_live, 0);
    }
}

/// The first and the last second of time: what expires then, and what does not.
#[test]
fn time_has_ends() {
    const END: u64 = u32::MAX as u64 * SECOND;
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &Options::narrow(geometry(1, 2, 8, 4))).unwrap();
    let set = |key: u64, now: u64, expires_at: u64| {
        let decide = |entry: EntryMut<'_>| {
            entry.state[0] = 1;
            *entry.expires_at = expires_at;
        };
        cluster.update(&key, now, decide).unwrap();
        cluster.find(&key, now).unwrap().map(|entry| entry.expires_at)
    };
    assert_eq!(set(1, 0, 0), None);
    assert_eq!(set(1, 0, 1), Some(SECOND));
    assert_eq!(set(1, SECOND - 1, SECOND), Some(SECOND));
    assert_eq!(set(1, SECOND, SECOND), None);
    assert_eq!(set(2, 0, u64::MAX), Some(END));
    assert_eq!(set(2, END - 1, u64::MAX), Some(END));
    // From then on, no entry is worth keeping.
    for now in [END, END + 1, u64::MAX] {
        assert_eq!(set(3, now, u64::MAX), None);
        assert_eq!(cluster.find(&2_u64, now), Ok(None));
    }
    assert_eq!(set(2, END - SECOND, END - 1), Some(END));
    // The node of the first key is still there, although it expired long ago.
    assert_eq!((cluster.sweep(END - 1), cluster.sweep(u64::MAX)), (Ok(1), Ok(1)));
}

/// The property above is worth little if its steps never fill a chain.
#[test]
fn the_twin_meets_everything() {
    let mut runner = TestRunner::deterministic();
    let [mut refused, mut no_class, mut displaced, mut found_displaced, mut repeated] = [0; 5];
    let mut stats = [0; 6];
    for _ in 0..200 {
        let case = case(100..120).new_tree(&mut runner).unwrap().current();
        let mut twin = Twin::new(&case.options, SEED);
        let mut now = case.start;
        for step in &case.steps {
            now = now.saturating_add_signed(step.passed);
            let eviction =
                if step.handle == 0 { case.options.eviction } else { Eviction::EvictSoonestExpiry };
            let result = match &step.act {
                Act::Update(key, change) => {
                    update_twin(&mut twin, &[(*key, *change)], now, eviction, Room::ForAll)
                }
                Act::Many(changes) => {
                    update_twin(&mut twin, changes, now, eviction, Room::ForWritten)
                }
                _ => continue,
            };
            refused += u64::from(matches!(result, Err(Refused::Full { .. })));
            no_class += u64::from(matches!(result, Err(Refused::NoClass { .. })));
        }
        displaced += twin.met.placed_displaced;
        found_displaced += twin.met.found_displaced;
        repeated += twin.met.repeated;
        for (sum, (_, count)) in stats.iter_mut().zip(twin.stats.named()) {
            *sum += count;
        }
    }
    let met = [refused, no_class, displaced, found_displaced, repeated];
    println!("met {met:?}, counted {stats:?}");
    assert!(met.iter().chain(&stats).all(|count| *count > 50), "{met:?} {stats:?}");
}
