//! Checkpoints of a snapshot: which one counts, and what is reported if one is gone, or the copies that it counts.

use std::fs;
use std::path::Path;

use tidegate_store::{Cluster, EntryMut, FlawKind, Hashed, Options, View};

use crate::common::format::{CONTROL, Image, PAGE};
use crate::common::{Directory, SECOND, directory, file, geometry};

const NOW: u64 = 1000 * SECOND;
const NARROW: &str = "narrow-000.tide";
/// The word of a checkpoint that has the number of key-nodes with a copy.
const COPIES: usize = 13;
/// The word of the memory's control file that has the number of the last pass.
const LAST_PASS: usize = 594;

/// Two key-nodes.
fn options() -> Options {
    Options::narrow(geometry(1, 2, 8, 4))
}

/// One key of each key-node.
fn keys() -> [Hashed; 2] {
    [5, 5 | 1 << 127].map(Hashed::narrow)
}

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn count(entry: EntryMut<'_>) {
    entry.state[0] += 1;
    *entry.expires_at = u64::MAX;
}

/// The snapshots of a cluster before its first pass and after each of three. The counters grow by 1 before each pass.
fn snapshots() -> [Image; 4] {
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    [0, 1, 2, 3].map(|pass| {
        if pass > 0 {
            keys().iter().for_each(|key| cluster.update(key, NOW, count).unwrap());
            cluster.sync().unwrap().expect("no other process saves it");
        }
        Image::of_snapshot(dir.path())
    })
}

fn disk(image: &Image) -> Directory {
    let dir = directory();
    image.write_snapshot(dir.path());
    dir
}

/// The value of each key.
fn values(dir: &Path) -> [u64; 2] {
    let view = View::open(dir).unwrap();
    keys().map(|key| view.find(&key, NOW).unwrap().map_or(0, |entry| entry.state[0]))
}

/// The passes of both checkpoints.
fn passes(image: &Image) -> [u64; 2] {
    [1, 2].map(|page| image.get(CONTROL, page * PAGE / 8))
}

#[test]
fn checkpoints_take_turns_and_the_first_is_written_twice() {
    assert_eq!(snapshots().each_ref().map(passes), [[0, 0], [1, 1], [1, 2], [3, 2]]);
}

/// Checks the values found in a snapshot, the files and places of flaws, and how many copies are dropped.
#[track_caller]
fn check(image: &Image, expected: [u64; 2], flaws: &[(&str, u64)], dropped: u64) {
    let dir = disk(image);
    assert_eq!(values(dir.path()), expected);
    let view = View::open(dir.path()).unwrap();
    let findings = view.verify(NOW, |_, _| {});
    assert!(findings.flaws.iter().all(|flaw| flaw.kind == FlawKind::Torn));
    let places: Vec<_> =
        findings.flaws.iter().map(|flaw| (flaw.file.clone(), flaw.offset)).collect();
    let flaws: Vec<_> = flaws.iter().map(|(name, at)| (file(dir.path(), name), *at)).collect();
    assert_eq!((places, view.stats().dropped_torn), (flaws, dropped));
}

/// The same for flaws of the control file, if both keys have this value.
#[track_caller]
fn check_control(image: &Image, value: u64, flaws: &[u64], dropped: u64) {
    let flaws: Vec<_> = flaws.iter().map(|at| (CONTROL, *at)).collect();
    check(image, [value; 2], &flaws, dropped);
}

#[test]
fn a_damaged_or_lost_checkpoint_is_reported_and_the_other_one_counts() {
    let [new, once, twice, _] = &snapshots();
    let damaged = |image: &Image, pages: &[usize]| {
        let mut image = image.clone();
        for page in pages {
            image.set(CONTROL, page * PAGE / 8 + COPIES, 1000);
        }
        image
    };
    let lost = |image: &Image, pages: &[usize]| {
        let mut image = image.clone();
        for page in pages {
            image.0.get_mut(CONTROL).unwrap()[page * PAGE..][..PAGE].fill(0);
        }
        image
    };
    check_control(new, 0, &[], 0);
    check_control(once, 1, &[], 0);
    check_control(twice, 2, &[], 0);
    check_control(&damaged(twice, &[1]), 2, &[4096], 1);
    check_control(&damaged(twice, &[2]), 1, &[8192], 1);
    check_control(&lost(twice, &[1]), 2, &[4096], 1);
    check_control(&lost(twice, &[2]), 1, &[8192], 1);
    // Without a checkpoint, the latest copies count. Power may have been lost in the first pass, but not in a later one.
    check_control(&lost(once, &[1, 2]), 1, &[], 0);
    check_control(&lost(twice, &[1, 2]), 2, &[4096], 1);
    check_control(&damaged(once, &[1, 2]), 1, &[4096, 8192], 2);
    check_control(&damaged(twice, &[1, 2]), 2, &[4096, 8192, 4096], 3);
}

#[test]
fn copies_that_have_vanished_are_reported() {
    for image in &snapshots()[1..] {
        let mut image = image.clone();
        image.0.get_mut(NARROW).unwrap()[PAGE..].fill(0);
        // Both copies, and the report.
        check_control(&image, 0, &[4096], 3);
    }
}

/// A directory was copied while a pass wrote it: the copies of that pass do not count, not even after the next one.
#[test]
fn copies_that_are_ahead_of_their_checkpoint_never_count() {
    let [_, once, twice, thrice] = &snapshots();
    for (checkpoints, copies, value) in [(once, twice, 1), (twice, thrice, 2), (once, thrice, 2)] {
        let mut mixed = copies.clone();
        mixed.0.insert(CONTROL.to_owned(), checkpoints.0[CONTROL].clone());
        check_control(&mixed, value, &[], 0);
        let dir = disk(&mixed);
        let cluster = Cluster::open(dir.path(), &options()).unwrap();
        let pass = cluster.completed_pass();
        assert_eq!(
            pass,
            *passes(copies).iter().max().unwrap(),
            "the next one is later than all copies"
        );
        cluster.sync().unwrap().expect("no other process saves it");
        assert_eq!(cluster.completed_pass(), pass + 1);
        drop(cluster);
        assert_eq!(values(dir.path()), [value; 2]);
    }
}

/// Processes were killed, and the number of the last pass in their memory is wrong.
#[test]
fn a_last_pass_that_cannot_be_is_that_of_the_checkpoint() {
    let dir = directory();
    let cluster = Cluster::open(dir.path(), &options()).unwrap();
    for _ in 0..2 {
        keys().iter().for_each(|key| cluster.update(key, NOW, count).unwrap());
        cluster.sync().unwrap().expect("no other process saves it");
    }
    let (mut memory, snapshot) = (Image::read(dir.path()), Image::of_snapshot(dir.path()));
    drop(cluster);
    memory.end_processes();
    let ahead = 2 + (1 << 32);
    for (found, expected) in
        [(0, 2), (1, 2), (2, 2), (3, 3), (ahead - 1, ahead - 1), (ahead, 2), (u64::MAX, 2)]
    {
        memory.set(CONTROL, LAST_PASS, found);
        let dir = directory();
        memory.write(dir.path());
        for (name, bytes) in &snapshot.0 {
            fs::write(file(dir.path(), name), bytes).unwrap();
        }
        let cluster = Cluster::open(dir.path(), &options()).unwrap();
        assert_eq!(cluster.completed_pass(), expected, "found {found}");
        keys().iter().for_each(|key| cluster.update(key, NOW, count).unwrap());
        cluster.sync().unwrap().expect("no other process saves it");
        assert_eq!(cluster.completed_pass(), expected + 1);
        drop(cluster);
        assert_eq!(values(dir.path()), [3; 2]);
    }
}

/// Each key-node has two copies, the second one in the second half of its file.
#[test]
fn a_damaged_or_lost_copy_is_reported_and_the_other_one_counts() {
    let bytes = options().narrow.key_node_bytes();
    let [_, once, twice, _] = &snapshots();
    for (image, latest, second_latest) in [(once, 1, 1), (twice, 2, 1)] {
        for (position, number, is_lost) in
            [(0, 0, true), (0, 1, false), (1, 0, false), (1, 1, true), (0, 1, true), (1, 1, false)]
        {
            let at = PAGE as u64 + (2 * position + number) * bytes;
            let mut image = image.clone();
            let copy = &mut image.0.get_mut(NARROW).unwrap()[at as usize..][..bytes as usize];
            if is_lost {
                copy.fill(0);
            } else {
                copy[100] ^= 1;
            }
            let mut expected = [latest; 2];
            // The second pass writes to the second position.
            if position == 1 {
                expected[number as usize] = second_latest;
            }
            check(&image, expected, &[(NARROW, at)], 1);
        }
    }
}
