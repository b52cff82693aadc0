//! Every interleaving of two or three threads over one lock, and over the writer slot of a dead process. Run
//! by `make test-loom`.

use super::*;
use crate::format::{Class, KeyNodeId, Record, read_journal};
use crate::writers::WriterSlot;
use crate::writers::slot::{LOOM_WRITER_WORDS, owner_word};
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
fn a_bounded_attempt_takes_the_lock_or_not() {
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

/// The number of the dead process.
const DEAD: u32 = 0;
const KEY_NODE: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 0 };
/// The value after its committed journal.
const DONE: u64 = 10;

/// What a process left that died holding a lock, after committing an update and before applying it.
struct Remains {
    lock: AtomicU64,
    value: AtomicU64,
    writer: Box<[AtomicU64]>,
    /// Stands for the liveness lock of the dead process: its holder may recover.
    claim: Mutex<()>,
    /// The number of threads using the slot, other than the dead one.
    users: AtomicU64,
}

impl Remains {
    fn new() -> Arc<Self> {
        let remains = Self {
            lock: AtomicU64::new(0),
            value: AtomicU64::new(0),
            writer: (0..LOOM_WRITER_WORDS).map(|_| AtomicU64::new(0)).collect(),
            claim: Mutex::new(()),
            users: AtomicU64::new(0),
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

    /// The steps of [`crate::writers::recovery::recover`], over one slot and a key-node of one word. The real
    /// function is raced in `cluster/tests/recoveries.rs`.
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

    /// Finds the dead holder, recovers it, claims its slot if that is free, and counts under the lock.
    /// Returns whether it counted.
    fn count_from_its_slot(&self, process: u32) -> bool {
        self.recover();
        let writer = self.writer();
        if !writer.try_claim(owner_word(process)) {
            return false;
        }
        assert_eq!(swap_if(&self.users, 0, 1), Ok(()), "two threads use one slot");
        writer.list_lock(0, KEY_NODE);
        // The other thread has no slot, so the lock is free.
        assert_eq!(try_acquire(&self.lock, writer.lock_word()), Ok(()));
        let value = get(&self.value);
        assert!(value >= DONE, "the update of the dead process is not complete");
        put(&self.value, value + 1);
        assert_eq!(get(&self.lock), writer.lock_word(), "another thread released the lock");
        assert_eq!(writer.owner(), owner_word(process), "another thread released the slot");
        release(&self.lock, writer.lock_word());
        writer.clear_locks();
        assert_eq!(swap_if(&self.users, 1, 0), Ok(()));
        writer.release();
        true
    }
}

#[test]
fn one_of_two_recovers_and_neither_disturbs_the_successor() {
    loom::model(|| {
        let remains = Remains::new();
        let other = remains.clone();
        let thread = thread::spawn(move || other.count_from_its_slot(2));
        let mut counted = u64::from(remains.count_from_its_slot(1));
        counted += u64::from(thread.join().unwrap());
        // A thread that did not get the claim may have left recovery to the other.
        remains.recover();
        assert_eq!(get(&remains.value), DONE + counted);
        assert_eq!(get(&remains.lock), 0);
        assert_eq!(remains.writer().owner(), 0);
        assert_eq!(remains.writer().committed(), 0);
    });
}
