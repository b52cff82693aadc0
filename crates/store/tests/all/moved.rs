//! Files and directories that are moved, removed or put back while a cluster is open.
//!
//! Liveness was once proved by separate lock files. If a holder's file was removed, or its directory moved,
//! others took the holder for dead. Both wrote, and acknowledged updates were lost. And a process that opened
//! a cluster put in the place of one in use joined it unchecked, since its processes were alive. Now the lock
//! is on the mapped file.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use tidegate_store::{Class, Cluster, EntryMut, Geometry, Options};

use crate::common::until_decided;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;

fn open(dir: &Path) -> Cluster {
    let geometry = Geometry::by_count(1, 1, 8, 4).unwrap();
    Cluster::open(dir, &Options::narrow(geometry)).unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
fn add(entry: EntryMut<'_>) -> u64 {
    entry.state[0] += 1;
    *entry.expires_at = NOW + 60 * SECOND;
    entry.state[0]
}

/// Removes every file of a data directory that is not part of the cluster itself.
fn remove_locks(dir: &Path) {
    for found in fs::read_dir(dir).unwrap() {
        let path = found.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
}

/// One process holds a key for longer than waiters wait before they check whether the holder is alive.
#[track_caller]
fn check_holder_is_respected(first: &Cluster, second: &Cluster) {
    let before = first.update("k", NOW, add).unwrap();
    let held = Barrier::new(2);
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            first.update("k", NOW, |entry| {
                held.wait();
                // Long enough for the other process to wait, to check whether this one is alive, and to give up.
                let since = std::time::Instant::now();
                while since.elapsed().as_millis() < 50 {
                    thread::yield_now();
                }
                add(entry)
            })
        });
        held.wait();
        let after = until_decided(|| second.update("k", NOW, add)).unwrap();
        assert_eq!(holder.join().unwrap().unwrap(), before + 1);
        assert_eq!(after, before + 2, "an update was lost");
    });
}

#[test]
fn lock_files_may_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (open(dir.path()), open(dir.path()));
    remove_locks(dir.path());
    check_holder_is_respected(&first, &second);
    // Nor does a newcomer take any process for dead.
    let third = open(dir.path());
    check_holder_is_respected(&first, &third);
    check_holder_is_respected(&third, &second);
}

#[test]
fn a_directory_may_be_moved_and_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, old) = (parent.path().join("data"), parent.path().join("data.old"));
    let (first, second) = (open(&dir), open(&dir));
    fs::rename(&dir, old).unwrap();
    let new = open(&dir);
    check_holder_is_respected(&first, &second);
    let error = first.check_files().unwrap_err().to_string();
    assert!(error.contains("another file is in the place of the one in use"), "{error}");
    assert_eq!(new.update("k", NOW, add), Ok(1), "a new cluster starts empty");
    drop((first, second));
    assert_eq!(open(&dir).update("k", NOW, add), Ok(2), "its memory is still known");
}

#[test]
fn a_cluster_put_in_the_place_of_one_in_use_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, copy) = (dir.path().join("cluster"), dir.path().join("copy"));
    let first = open(dir.path());
    first.update("k", NOW, add).unwrap();
    first.sync().unwrap();
    fs::create_dir(&copy).unwrap();
    for found in fs::read_dir(&cluster).unwrap() {
        let found = found.unwrap();
        fs::copy(found.path(), copy.join(found.file_name())).unwrap();
    }
    // The copy is damaged: at neither position does a state match its checksum.
    let path = copy.join("narrow-000.tide");
    let mut bytes = fs::read(&path).unwrap();
    let key_node_bytes = Geometry::by_count(1, 1, 8, 4).unwrap().key_node_bytes() as usize;
    for place in bytes[4096..].chunks_mut(key_node_bytes) {
        let mut states = place.chunks_exact_mut(8).skip(8);
        let count = states.find(|word| **word == 1_u64.to_le_bytes());
        count.expect("a count of 1")[0] = 77;
    }
    fs::write(&path, &bytes).unwrap();
    fs::rename(&cluster, dir.path().join("in-use")).unwrap();
    fs::rename(&copy, &cluster).unwrap();

    let second = open(dir.path());
    assert_eq!(second.find("k", NOW), Ok(None));
    assert_eq!(second.stats().dropped_torn, 2, "both places");
    assert_eq!(second.update("k", NOW, add), Ok(1));
    assert_eq!(first.update("k", NOW, add), Ok(2));
}

/// More mapped files than the SIGBUS handler had room for: every later opening failed.
#[test]
fn as_many_files_as_are_allowed_can_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry::by_count(128, 1, 1, 4).unwrap();
    let options = Options { wide: Some(geometry), ..Options::narrow(geometry) };
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    assert_eq!(cluster.geometry(Class::Wide).unwrap().files(), 128);
    assert_eq!(cluster.update("k", NOW, add), Ok(1));
}

/// A pass over the whole cluster met a truncated file in the last key-node, and reported success.
#[test]
fn a_pass_over_a_file_cut_short_does_not_say_that_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = open(dir.path());
    cluster.update("k", NOW, add).unwrap();
    let text = fs::read_to_string(dir.path().join("cluster/memory")).unwrap();
    let memory = Path::new(text.trim_end().split_once(' ').unwrap().1).to_owned();
    let path = memory.join("narrow-000.tide");
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
    assert!(cluster.reset_all().is_err());
    assert!(cluster.is_lost());
    drop(cluster);
    assert!(!memory.exists(), "no process needs it any more");
}
