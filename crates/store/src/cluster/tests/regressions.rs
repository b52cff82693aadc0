//! Fixed bugs, each with its story.

use super::*;
use crate::memory::control::{MARK, WRITERS_MAX, word};
use crate::memory::sync::put;

/// A tag beyond the end of the chain, which only a damaged file has, was taken for a node. Reading it went
/// past the end of the key-node and panicked. Such tags are now ignored, and zeroed on open.
#[test]
fn a_tag_behind_the_chain_is_no_node() {
    // In a chain of eight, these slots lie outside of the key-node.
    for slot in [8, 30, 39] {
        let heap = Heap::new(2);
        let key = key_at(0, 1);
        let tag = u64::from(StoredKey::from_bits(key.hash).tag());
        let words = heap.memory.class(Class::Narrow).unwrap().key_node(0).words();
        put(&words[3 + slot / 8], tag << (slot % 8 * 8));
        assert_eq!(heap.open(0, Eviction::Refuse).find(&key, NOW), Ok(None));
        let reopened = heap.reopened();
        let words = reopened.memory.class(Class::Narrow).unwrap().key_node(0).words();
        assert_eq!(get(&words[3 + slot / 8]), 0);
    }
}

/// A kill between the last word of a new node and the hint in the head left a hint that was too late. Recovery found
/// the node written, and ignored the head. The key-node then refused new keys although one of its nodes had expired.
#[test]
fn a_completed_update_corrects_the_hint_in_the_head() {
    for writes in (0..).step_by(if cfg!(miri) { 13 } else { 1 }) {
        let heap = Heap::new(1);
        let key = |number: u128| Hashed::narrow(number << 90 | number);
        // The key-node is empty, and its hint says so.
        heap.open(1, Eviction::Refuse).sweep(NOW).unwrap();
        let victim = heap.open(0, Eviction::Refuse);
        let survived = kill::before_write(writes, || {
            let brief = |entry: EntryMut<'_>| {
                entry.state[0] = 1;
                *entry.expires_at = NOW + SECOND;
            };
            victim.update(&key(1), NOW, brief).unwrap();
        });
        heap.kill_process(0, victim);
        let _ = recover(&heap.memory, [0]);
        let cluster = heap.open(0, Eviction::Refuse);
        for number in 2..9 {
            cluster.update(&key(number), NOW, |entry| add(entry, 1)).unwrap();
        }
        let later = NOW + 30 * SECOND;
        let new = cluster.update(&key(9), later, |entry| add(entry, 1));
        assert_eq!(new, Ok(()), "killed before write {writes}");
        if survived.is_some() {
            break;
        }
    }
}

/// A process whose threads were all in an update once kept all writer slots forever, and the updates of every
/// other process failed. Now one slot is reserved for each process.
#[test]
fn no_process_can_take_the_last_slot_of_another() {
    let heap = Heap::new(2);
    let hog = heap.open(0, Eviction::Refuse);
    // All slots available to this process, without those reserved for others.
    let writers = WRITERS_MAX - u64::from(crate::memory::control::PROCESSES_MAX) + 1;
    let held: Vec<_> = (0..writers).map(|_| hog.writers.acquire(&hog.memory).unwrap()).collect();
    assert_eq!(
        WriterSlot::all(&heap.memory.control).filter(|writer| writer.owner() == 1).count(),
        held.len()
    );
    let other = heap.open(1, Eviction::Refuse);
    assert_eq!(other.update(&key_at(0, 1), NOW, |entry| add(entry, 1)), Ok(()));
}

/// An entry was erased and synced, its key returned, and power was lost when the head was on disk and the new node
/// was not. The old node, whole and in the right place, counted again. Erasing a node now also zeroes its tail.
#[test]
fn an_erased_entry_does_not_come_back() {
    let heap = Heap::new(2);
    let cluster = heap.open(0, Eviction::Refuse);
    let key = Hashed::wide(4);
    cluster.update(&key, NOW, |entry| add(entry, 1000)).unwrap();
    assert_eq!(cluster.erase(&key, NOW), Ok(true));
    let words = || heap.memory.class(Class::Wide).unwrap().words();
    let mut mixed = words();
    cluster.update(&key, NOW, |entry| add(entry, 1)).unwrap();
    // The head, after the header of the file, is new; the rest is as synced.
    mixed[512..520].copy_from_slice(&words()[512..520]);
    let narrow = heap.memory.class(Class::Narrow).unwrap().words();
    let lost = Heap::from_words(heap.memory.info, &vec![0; CONTROL_WORDS], &narrow, &mixed);
    restore::restore(&lost.memory);
    assert_eq!(count(&lost.open(0, Eviction::Refuse), &key), None);
}

/// A restoration was killed after it had zeroed the counts of displaced keys and before it had recounted
/// them. A process that opened the cluster just before the killed one was gone took the result for complete.
/// A restoration is now marked, and repeated.
#[test]
fn a_killed_restoration_is_known_and_can_be_done_again() {
    let heap = Heap::new(2);
    fill_both(&heap.open(0, Eviction::Refuse));
    let keys = || (0..8).flat_map(|number| [key_at(0, number), key_at(1, number)]);
    for writes in (0..).step_by(if cfg!(miri) { 13 } else { 1 }) {
        let survived = kill::before_write(writes, || restore::restore(&heap.memory)).is_some();
        assert_eq!(restore::is_being_restored(&heap.memory), !survived && writes > 0);
        restore::restore(&heap.memory);
        let cluster = heap.open(0, Eviction::Refuse);
        assert!(keys().all(|key| count(&cluster, &key) == Some(1)), "killed before write {writes}");
        if survived {
            break;
        }
    }
}

/// A kill between the two words of the clock left a value of this boot marked as one of another, which no
/// clock could match.
#[test]
fn a_kill_never_mixes_what_is_known_of_the_clock() {
    for (before, after) in [([0, 0], [5, 7]), ([3, 6], [5, 7]), ([3, 7], [5, 7])] {
        for writes in 0.. {
            let heap = Heap::new(1);
            let cluster = heap.open(0, Eviction::Refuse);
            assert!(cluster.replace_clock_words([0, 0], before));
            let replaced =
                kill::before_write(writes, || cluster.replace_clock_words(before, after));
            let [value, valid_for] = cluster.clock_words();
            let is_whole = [before, after].contains(&[value, valid_for]);
            assert!(is_whole || valid_for == 0, "{value} {valid_for}");
            if replaced.is_some() {
                assert_eq!([value, valid_for], after);
                break;
            }
        }
    }
}

/// A lock that became free just when a thread began to wait for it was taken for a held one, since a free
/// lock contains the mark of its memory. The wait ended after 5 ms without a result.
#[test]
fn a_lock_that_is_free_by_now_is_not_waited_for() {
    let heap = Heap::new(2);
    let mark = 0x1234_5679 << 32;
    put(word(&heap.memory.control, MARK), mark);
    for key_node in heap.memory.classes().flat_map(ClassMemory::key_nodes) {
        put(key_node.lock(), mark);
    }
    let cluster = heap.open(0, Eviction::Refuse);
    assert_eq!(cluster.update(&key_at(0, 1), NOW, |entry| add(entry, 1)), Ok(()));
    let held = cluster.writers.acquire(&cluster.memory).unwrap();
    let key_node = cluster.memory.class(Class::Narrow).unwrap().key_node(0);
    let mut backoff = crate::writers::backoff::Backoff::default();
    let waited = cluster.writers.wait(&cluster.memory, &held.writer, key_node.lock(), &mut backoff);
    assert_eq!(waited, Ok(()));
}

/// A slot without an owner kept the journal of an old update, or a slot had an owner that cannot exist. The first
/// would be applied when the next owner dies, the second would be lost for good, so a restoration clears both.
#[test]
fn a_restoration_clears_slots_that_nobody_can_own() {
    for (number, owner, committed) in [(1, 0, 9), (2, 1_000, 0), (3, 1_000, 9)] {
        let heap = Heap::new(2);
        let control = &heap.memory.control;
        let slot = WriterSlot::new(control, number);
        let at = slot.offset() as usize / 8;
        put(word(control, at), owner);
        put(word(control, at + 1), committed);
        assert_eq!((slot.owner(), slot.committed()), (owner, committed as usize));
        restore::restore(&heap.memory);
        assert_eq!((slot.owner(), slot.committed()), (0, 0), "slot {number}");
    }
}
