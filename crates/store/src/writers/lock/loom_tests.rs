//! Every interleaving of two or three threads over one lock, and over the seat of a dead process. Run by
//! `make test-loom`.

use super::*;
use crate::format::geometry::Class;
use crate::format::journal::{Record, read_journal};
use crate::format::layout::KeyNodeId;
use crate::writers::slot::{LOOM_WRITER_WORDS, WriterSlot, owner_word};
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
const KEY_NODE: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 0 };
/// What its committed journal makes of the value.
const DONE: u64 = 10;

/// A process that died with a lock, after it had committed an update and before it made it.
struct Remains {
    lock: AtomicU64,
    value: AtomicU64,
    writer: Box<[AtomicU64]>,
    /// Stands for the lock on the byte of the dead process: who has it may clean up.
    claim: Mutex<()>,
    /// Threads that are in the seat, other than the dead one.
    in_seat: AtomicU64,
}

impl Remains {
    fn new() -> Arc<Self> {
        let remains = Self {
            lock: AtomicU64::new(0),
            value: AtomicU64::new(0),
            writer: (0..LOOM_WRITER_WORDS).map(|_| AtomicU64::new(0)).collect(),
            claim: Mutex::new(()),
            in_seat: AtomicU64::new(0),
        };
        let writer = remains.writer();
        assert!(writer.try_claim(owner_word(DEAD)));
        writer.list_lock(0, KEY_NODE);
        assert_eq!(try_acquire(&remains.lock, writer.lock_word()), Ok(()));
        let mut journal = writer.journal();
        journal.push(&Record { id: KEY_NODE, slot: 0, before: 0, image: Some(&[DONE]) });
        journal.commit();
        Arc::new(remains)
    }

    fn writer(&self) -> WriterSlot<'_> {
        WriterSlot::of_words(&self.writer, 0)
    }

    /// What [`crate::memory::Memory::clean_up_after`] does, over one seat and a key-node of one word. The
    /// whole of it is raced in `cluster/tests/cleaners.rs`.
    fn recover(&self) {
        let Ok(claim) = self.claim.try_lock() else { return };
        recover_then_release(claim, || {
            let writer = self.writer();
            if writer.owner() != owner_word(DEAD) {
                return;
            }
            let words = writer.committed_words();
            for record in read_journal(&words, |_| Some(1)) {
                // Only if the value is as the journal found it.
                if let (Some([image]), true) = (record.image, get(&self.value) == record.before) {
                    put(&self.value, *image);
                }
            }
            if !words.is_empty() {
                writer.clear_journal();
            }
            for _ in writer.locks() {
                release_dead(&self.lock, writer.lock_word());
            }
            writer.clear_locks();
            writer.release();
        });
    }

    /// Meets the dead holder, cleans up after it, takes the seat if it is free, and counts under the lock.
    /// Says whether it came that far.
    fn count_from_its_seat(&self, process: u32) -> bool {
        self.recover();
        let writer = self.writer();
        if !writer.try_claim(owner_word(process)) {
            return false;
        }
        assert_eq!(swap_if(&self.in_seat, 0, 1), Ok(()), "two threads are in one seat");
        writer.list_lock(0, KEY_NODE);
        // The other thread has no seat, so nobody has the lock.
        assert_eq!(try_acquire(&self.lock, writer.lock_word()), Ok(()));
        let value = get(&self.value);
        assert!(value >= DONE, "the update of the dead process is not complete");
        put(&self.value, value + 1);
        assert_eq!(get(&self.lock), writer.lock_word(), "another thread gave back the lock");
        assert_eq!(writer.owner(), owner_word(process), "another thread gave back the seat");
        release(&self.lock, writer.lock_word());
        writer.clear_locks();
        assert_eq!(swap_if(&self.in_seat, 1, 0), Ok(()));
        writer.release();
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
        remains.recover();
        assert_eq!(get(&remains.value), DONE + counted);
        assert_eq!(get(&remains.lock), 0);
        assert_eq!(remains.writer().owner(), 0);
        assert_eq!(remains.writer().committed(), 0);
    });
}
