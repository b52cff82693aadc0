//! Writer slots: the records of updating threads in the control file, so that the death of one does no harm.
//!
//! A slot has three parts. The list of locks is written before a lock is taken, so that recovery finds them.
//! The journal receives the new nodes of an update before any node is touched. Once the journal is committed,
//! the update counts, and recovery completes it (docs/internals/store-format.md, "Updates"). The counts are statistics.
//! One thread at a time writes to a slot; only the record of a stall is written by others.
//!
//! Owns these words and their order. Does not know which process is alive, nor the content of nodes.

use crate::format::{KeyNodeId, RECORD_WORDS_BESIDES_IMAGE, Record, WORD_BYTES};
use crate::memory::Region;
use crate::memory::control::{PROCESSES_MAX, WRITER_WORDS, WRITERS, WRITERS_MAX, unlocked_word};
use crate::memory::sync::{AtomicU64, get, put, swap_if};

/// The maximum of keys per update. A request of Envoy has up to 128 descriptors. Loom explores every word of
/// a slot, so there it has few.
pub const KEYS_MAX: usize = if cfg!(loom) { 2 } else { 256 };

/// Words of a slot: its owner, the committed words of the journal, the number of listed locks, the counts,
/// the locks, the journal.
const OWNER: usize = 0;
const COMMITTED: usize = 1;
const LOCK_COUNT: usize = 2;
/// Above the number of locks, in the same word to save a write: the progress, that is how often the slot has
/// released all its locks.
const PROGRESS_SHIFT: u32 = 16;
const LOCK_COUNT_MASK: u64 = (1 << PROGRESS_SHIFT) - 1;
const _: () = assert!(LOCKS_MAX as u64 <= LOCK_COUNT_MASK);
/// Written by waiters, for operators: the progress at which they found the slot stalled, plus one, and since
/// when, in milliseconds since the Unix epoch.
const STALL_PROGRESS: usize = 3;
const STALL_SINCE: usize = 4;
const COUNTS: usize = 8;
const LOCKS: usize = 32;
/// A key has two key-nodes.
const LOCKS_MAX: usize = 2 * KEYS_MAX;
const JOURNAL: usize = LOCKS + LOCKS_MAX;
/// Room for 256 narrow nodes, each with two more words, or for 93 nodes of 33 state words.
pub(crate) const JOURNAL_WORDS: usize = WRITER_WORDS - JOURNAL;
const _: () = assert!(COUNTS + Count::KINDS <= LOCKS);
#[cfg(loom)]
pub(crate) const LOOM_WRITER_WORDS: usize = WRITER_WORDS;
const _: () = assert!(JOURNAL_WORDS >= KEYS_MAX * (RECORD_WORDS_BESIDES_IMAGE + 7));

/// The owner of a slot, as a word of the control file: the process number plus one.
pub(crate) fn owner_word(process: u32) -> u64 {
    u64::from(process) + 1
}

/// The process number in an [`owner_word`], if such a process can exist.
pub(crate) fn process_of(owner: u64) -> Option<u32> {
    let process = u32::try_from(owner.checked_sub(1)?).ok()?;
    (process < PROCESSES_MAX).then_some(process)
}

/// The counts of a slot, in the order of their words.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Updates,
    Created,
    EvictedExpired,
    EvictedLive,
    Erased,
    Refused,
    DroppedTorn,
    DroppedForeign,
    DroppedDuplicate,
    Recovered,
    Completed,
}

impl Count {
    pub(crate) const KINDS: usize = Self::Completed as usize + 1;
}

#[derive(Clone, Copy)]
pub(crate) struct WriterSlot<'a> {
    words: &'a [AtomicU64],
    number: u64,
    /// The word of a free lock of this memory.
    mark: u64,
}

impl<'a> WriterSlot<'a> {
    /// Slot `number`, which is less than [`WRITERS_MAX`].
    #[inline]
    pub(crate) fn new(control: &'a Region, number: u64) -> Self {
        let start = WRITERS + number as usize * WRITER_WORDS;
        let mark = unlocked_word(control);
        Self { words: control.slice(start, WRITER_WORDS), number, mark }
    }

    /// A slot outside of a control file.
    #[cfg(loom)]
    pub(crate) fn of_words(words: &'a [AtomicU64], number: u64) -> Self {
        Self { words, number, mark: 0 }
    }

    /// The slot that the word of a lock names, if it names one.
    pub(crate) fn of_lock(control: &'a Region, word: u64) -> Option<Self> {
        let number = (word ^ unlocked_word(control)).checked_sub(1)?;
        (number < WRITERS_MAX).then(|| Self::new(control, number))
    }

    pub(crate) fn all(control: &'a Region) -> impl Iterator<Item = Self> {
        (0..WRITERS_MAX).map(move |number| Self::new(control, number))
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The offset of the slot in the control file in bytes.
    pub(crate) fn offset(&self) -> u64 {
        (WRITERS as u64 + self.number * WRITER_WORDS as u64) * WORD_BYTES
    }

    /// The word of a lock held from this slot.
    #[inline]
    pub(crate) fn lock_word(&self) -> u64 {
        self.mark | (self.number + 1)
    }

    /// The [`owner_word`] of the slot's process; 0 if there is none.
    pub(crate) fn owner(&self) -> u64 {
        get(&self.words[OWNER])
    }

    /// The number of the slot's process, if such a process can exist.
    pub(crate) fn process(&self) -> Option<u32> {
        process_of(self.owner())
    }

    /// Claims the slot if it has no owner.
    pub(crate) fn try_claim(&self, owner: u64) -> bool {
        swap_if(&self.words[OWNER], 0, owner).is_ok()
    }

    /// Gives the slot up. Its locks and its journal are done with.
    pub(crate) fn release(&self) {
        put(&self.words[OWNER], 0);
    }

    /// Lists a lock about to be taken, as number `index`, counted from 0.
    #[inline]
    pub(crate) fn list_lock(&self, index: usize, id: KeyNodeId) {
        put(&self.words[LOCKS + index], id.to_word());
        let count = &self.words[LOCK_COUNT];
        put(count, get(count) & !LOCK_COUNT_MASK | (index as u64 + 1));
    }

    /// Clears the list of locks, which have been released.
    #[inline]
    pub(crate) fn clear_locks(&self) {
        // Carries into the progress, and zeroes the number of locks.
        let count = &self.words[LOCK_COUNT];
        put(count, (get(count) | LOCK_COUNT_MASK).wrapping_add(1));
    }

    /// How often the slot has released all its locks. While this does not change and the slot holds a lock,
    /// its thread makes no progress.
    #[inline]
    pub(crate) fn progress(&self) -> u64 {
        get(&self.words[LOCK_COUNT]) >> PROGRESS_SHIFT
    }

    /// Records since when the slot has stalled, in milliseconds since the Unix epoch, unless that is recorded
    /// for this `progress`.
    pub(crate) fn note_stall(&self, progress: u64, since: u64) {
        if get(&self.words[STALL_PROGRESS]) != progress.wrapping_add(1) {
            put(&self.words[STALL_SINCE], since);
            put(&self.words[STALL_PROGRESS], progress.wrapping_add(1));
        }
    }

    /// Since when the slot has stalled, if a waiter recorded that for the current progress.
    pub(crate) fn stalled_since(&self) -> Option<u64> {
        let is_noted = get(&self.words[STALL_PROGRESS]) == self.progress().wrapping_add(1);
        is_noted.then(|| get(&self.words[STALL_SINCE]))
    }

    /// Whether locks are listed, and so may be held.
    pub(crate) fn has_listed_locks(&self) -> bool {
        get(&self.words[LOCK_COUNT]) & LOCK_COUNT_MASK != 0
    }

    /// The listed locks. A damaged file may list anything.
    pub(crate) fn locks(&self) -> impl Iterator<Item = KeyNodeId> {
        let count = get(&self.words[LOCK_COUNT]) & LOCK_COUNT_MASK;
        let count = count.min(LOCKS_MAX as u64) as usize;
        self.words[LOCKS..][..count].iter().map(|word| KeyNodeId::from_word(get(word)))
    }

    #[inline]
    pub(crate) fn journal(&self) -> Journal<'a> {
        Journal { words: self.words, len: 0 }
    }

    /// The number of committed journal words. If not 0, an update must be completed.
    pub(crate) fn committed(&self) -> usize {
        get(&self.words[COMMITTED]).min(JOURNAL_WORDS as u64) as usize
    }

    /// Clears the journal, whose update is complete.
    #[inline]
    pub(crate) fn clear_journal(&self) {
        put(&self.words[COMMITTED], 0);
    }

    pub(crate) fn committed_words(&self) -> Vec<u64> {
        self.words[JOURNAL..][..self.committed()].iter().map(get).collect()
    }

    #[inline]
    pub(crate) fn count(&self, count: Count, by: u64) {
        if by != 0 {
            let word = &self.words[COUNTS + count as usize];
            put(word, get(word).wrapping_add(by));
        }
    }

    pub(crate) fn counted(&self, count: Count) -> u64 {
        get(&self.words[COUNTS + count as usize])
    }

    /// Sets a count, in a cluster that no other process has yet.
    pub(crate) fn set_counted(&self, count: usize, value: u64) {
        put(&self.words[COUNTS + count], value);
    }
}

pub(crate) struct Journal<'a> {
    words: &'a [AtomicU64],
    len: usize,
}

impl Journal<'_> {
    /// Appends a record. The caller has checked that it fits.
    #[inline(always)]
    pub(crate) fn push(&mut self, record: &Record<'_>) {
        let image = record.image.unwrap_or_default();
        let words = &self.words[JOURNAL + self.len..];
        put(&words[0], record.target_word());
        put(&words[1], record.before);
        for (word, value) in words[RECORD_WORDS_BESIDES_IMAGE..][..image.len()].iter().zip(image) {
            put(word, *value);
        }
        self.len += RECORD_WORDS_BESIDES_IMAGE + image.len();
    }

    /// The commit: from this write on, the update counts.
    #[inline]
    pub(crate) fn commit(&self) {
        put(&self.words[COMMITTED], self.len as u64);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::format::layout::KEY_NODE_MASK;
    use crate::format::{Class, read_journal};
    use crate::memory::control::CONTROL_WORDS;

    const WIDE: KeyNodeId = KeyNodeId { class: Class::Wide, number: KEY_NODE_MASK };
    const NARROW: KeyNodeId = KeyNodeId { class: Class::Narrow, number: 5 };

    fn control() -> Region {
        Region::heap(&vec![0; CONTROL_WORDS])
    }

    #[test]
    fn a_journal_reads_as_it_was_written() {
        let control = control();
        let writer = WriterSlot::new(&control, WRITERS_MAX - 1);
        let mut journal = writer.journal();
        journal.push(&Record { id: NARROW, slot: 39, before: 1, image: Some(&[1; 7]) });
        journal.push(&Record { id: WIDE, slot: 2, before: 2, image: None });
        journal.push(&Record { id: WIDE, slot: 0, before: 3, image: Some(&[2; 83]) });
        assert_eq!(writer.committed(), 0);
        journal.commit();
        let words = writer.committed_words();
        let lengths = |class| Some(if class == Class::Wide { 83 } else { 7 });
        let read: Vec<_> = read_journal(&words, lengths)
            .map(|record| (record.id, record.slot, record.before, record.image.map(<[u64]>::len)))
            .collect();
        assert_eq!(read, [(NARROW, 39, 1, Some(7)), (WIDE, 2, 2, None), (WIDE, 0, 3, Some(83))]);
        let cut = &words[..words.len() - 1];
        assert_eq!(read_journal(cut, lengths).count(), 2);
        let narrow_only = |class| (class == Class::Narrow).then_some(7);
        assert_eq!(read_journal(&words, narrow_only).count(), 1);
        writer.clear_journal();
        assert_eq!(writer.committed(), 0);
    }

    #[test]
    fn counts_of_a_damaged_slot_are_bounded() {
        let control = Region::heap(&vec![u64::MAX; CONTROL_WORDS]);
        let writer = WriterSlot::new(&control, 0);
        assert_eq!(writer.committed(), JOURNAL_WORDS);
        assert_eq!(writer.locks().count(), LOCKS_MAX);
    }

    #[test]
    fn progress_is_made_when_the_list_of_locks_is_cleared() {
        let control = control();
        let writer = WriterSlot::new(&control, 1);
        for progress in 0..3 {
            assert_eq!((writer.progress(), writer.has_listed_locks()), (progress, false));
            writer.list_lock(0, NARROW);
            writer.list_lock(1, WIDE);
            assert_eq!((writer.progress(), writer.has_listed_locks()), (progress, true));
            assert_eq!(writer.locks().collect::<Vec<_>>(), [NARROW, WIDE]);
            writer.clear_locks();
        }
    }

    #[test]
    fn an_owner_is_a_process_that_can_exist() {
        for process in [0, 1, PROCESSES_MAX - 1] {
            assert_eq!(process_of(owner_word(process)), Some(process));
        }
        for owner in [0, owner_word(PROCESSES_MAX), 1 << 32 | 1, u64::MAX] {
            assert_eq!(process_of(owner), None);
        }
    }

    #[test]
    fn a_slot_has_one_owner() {
        let control = control();
        let writer = WriterSlot::new(&control, 3);
        assert!(writer.try_claim(owner_word(0)) && !writer.try_claim(owner_word(1)));
        assert_eq!(writer.owner(), 1);
        writer.release();
        assert!(writer.try_claim(owner_word(1)));
        assert_eq!(WriterSlot::of_lock(&control, writer.lock_word()).unwrap().number(), 3);
        assert!(WriterSlot::of_lock(&control, 0).is_none());
        assert!(WriterSlot::of_lock(&control, WRITERS_MAX + 1).is_none());
    }
}
