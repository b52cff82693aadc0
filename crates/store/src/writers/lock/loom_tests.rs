//! Every interleaving of two or three threads over one lock, and over the seat of a dead process. Run by
//! `make test-loom`.

use super::*;
use crate::format::geometry::Class;
use crate::format::journal::{Record, read_journal};
use crate::format::layout::KeyNodeId;
use crate::writers::slot::{SEAT_WORDS_OF_LOOM, Seat, owner_word};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, yield_now};

struct Shared {
    lock: AtomicU64,
    value: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: AtomicU64::new(0), value: AtomicU64::new(0) })
    }

    /// Adds one in two steps under the lock.
    fn add(&self, me: u64) {
        while acquire_within(&self.lock, me, 0).is_err() {
            yield_now();
        }
        let value = get(&self.value);
        put(&self.value, value + 1);
        release(&self.lock, me);
    }
}

#[test]
fn two_holders_exclude_each_other() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || other.add(2));
        shared.add(1);
        thread.join().unwrap();
        assert_eq!(get(&shared.value), 2);
        assert_eq!(get(&shared.lock), 0);
    });
}

#[test]
fn a_lock_that_is_not_waited_for_is_taken_or_not() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            if acquire_within(&other.lock, 2, 1).is_ok() {
                put(&other.value, get(&other.value) + 1);
                release(&other.lock, 2);
                return 1;
            }
            0
        });
        shared.add(1);
        let added = thread.join().unwrap();
        assert_eq!(get(&shared.value), 1 + added);
    });
}

/// The process that died, as seats name it.
const DEAD: u32 = 0;
const KEY_NODE: KeyNodeId = KeyNodeId { class: Class::Narrow, key_node: 0 };
/// What its committed journal makes of the value.
const DONE: u64 = 10;

/// A process that died with a lock, after it had committed an update and before it made it.
struct Remains {
    lock: AtomicU64,
    value: AtomicU64,
    seat: Box<[AtomicU64]>,
    /// Stands for the lock on the byte of the dead process: who has it may clean up.
    life: Mutex<()>,
    /// Threads that are in the seat, other than the dead one.
    in_seat: AtomicU64,
}

impl Remains {
    fn new() -> Arc<Self> {
        let remains = Self {
            lock: AtomicU64::new(0),
            value: AtomicU64::new(0),
            seat: (0..SEAT_WORDS_OF_LOOM).map(|_| AtomicU64::new(0)).collect(),
            life: Mutex::new(()),
            in_seat: AtomicU64::new(0),
        };
        let seat = remains.seat();
        assert!(seat.take(owner_word(DEAD)));
        seat.list_lock(0, KEY_NODE);
        assert_eq!(try_acquire(&remains.lock, seat.lock_word()), Ok(()));
        let mut journal = seat.journal();
        journal.push(&Record { id: KEY_NODE, slot: 0, before: 0, image: Some(&[DONE]) });
        journal.commit();
        Arc::new(remains)
    }

    fn seat(&self) -> Seat<'_> {
        Seat::of_words(&self.seat, 0)
    }

    /// What [`crate::memory::Memory::clean_up_after`] does, over one seat and a key-node of one word. The
    /// whole of it is raced in `cluster/tests/cleaners.rs`.
    fn clean_up(&self) {
        let Ok(life) = self.life.try_lock() else { return };
        with_right(life, || {
            let seat = self.seat();
            if seat.owner() != owner_word(DEAD) {
                return;
            }
            let words = seat.committed_words();
            for record in read_journal(&words, |_| Some(1)) {
                // Only if the value is as the journal found it.
                if let (Some([image]), true) = (record.image, get(&self.value) == record.before) {
                    put(&self.value, *image);
                }
            }
            if !words.is_empty() {
                seat.clear_journal();
            }
            for _ in seat.locks() {
                release_of(&self.lock, seat.lock_word());
            }
            seat.clear_locks();
            seat.give_back();
        });
    }

    /// Meets the dead holder, cleans up after it, takes the seat if it is free, and counts under the lock.
    /// Says whether it came that far.
    fn count_from_its_seat(&self, process: u32) -> bool {
        self.clean_up();
        let seat = self.seat();
        if !seat.take(owner_word(process)) {
            return false;
        }
        assert_eq!(swap_if(&self.in_seat, 0, 1), Ok(()), "two threads are in one seat");
        seat.list_lock(0, KEY_NODE);
        // The other thread has no seat, so nobody has the lock.
        assert_eq!(try_acquire(&self.lock, seat.lock_word()), Ok(()));
        let value = get(&self.value);
        assert!(value >= DONE, "the update of the dead process is not complete");
        put(&self.value, value + 1);
        assert_eq!(get(&self.lock), seat.lock_word(), "another thread gave back the lock");
        assert_eq!(seat.owner(), owner_word(process), "another thread gave back the seat");
        release(&self.lock, seat.lock_word());
        seat.clear_locks();
        assert_eq!(swap_if(&self.in_seat, 1, 0), Ok(()));
        seat.give_back();
        true
    }
}

#[test]
fn of_two_cleaners_one_cleans_up_and_neither_disturbs_who_comes_next() {
    loom::model(|| {
        let remains = Remains::new();
        let other = remains.clone();
        let thread = thread::spawn(move || other.count_from_its_seat(2));
        let mut counted = u64::from(remains.count_from_its_seat(1));
        counted += u64::from(thread.join().unwrap());
        // Whoever could not have the right may have left it to the other.
        remains.clean_up();
        assert_eq!(get(&remains.value), DONE + counted);
        assert_eq!(get(&remains.lock), 0);
        assert_eq!(remains.seat().owner(), 0);
        assert_eq!(remains.seat().committed(), 0);
    });
}
