//! Opening: what is created, what is kept, every way in which a directory can be wrong, and what happens when
//! files of an open cluster are changed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tidegate_store::{
    AfterLoss, Class, Cluster, Entry, EntryMut, Eviction, Hashed, OpenFailure, Options, StoredKey,
    UpdateError, View,
};

use crate::common::child::{Child, command, leave, role, say, without_root};
use crate::common::format::{
    BOOT, CHECKSUM, CONTROL, Image, Layout, NONCE, RESTORING, SEED, SPOILED, layouts, memory_dir,
};
use crate::common::random::Random;
use crate::common::{
    Directory, SECOND, directory, file, geometry, memory_file, narrow, narrow_and_wide, not_run,
    until_decided,
};

const FILES: [&str; 4] = [CONTROL, "narrow-000.tide", "narrow-001.tide", "wide-000.tide"];
const LONG: Duration = Duration::from_secs(10);

/// The advice for a damaged file.
const RESTORE: &str = "restore the whole file, or move its directory away to start with empty \
                       counters";
const PUT_BACK: &str = "put back the file that was here, or move its directory away to start \
                        with empty counters";
const OTHER_RELEASE: &str = "use the release that wrote it, or move its directory away to \
                             start with empty counters";

fn options() -> Options {
    Options {
        narrow: geometry(2, 3, 8, 4),
        wide: Some(geometry(1, 2, 3, 20)),
        eviction: Eviction::Refuse,
        ..Options::default()
    }
}

fn open(dir: &Path) -> Cluster {
    Cluster::open(dir, &options()).unwrap()
}

fn count(cluster: &Cluster, key: u64) -> Result<u64, UpdateError> {
    cluster.update(&key, SECOND, |entry| {
        entry.state[0] += 1;
        *entry.expires_at = u64::MAX;
        entry.state[0]
    })
}

/// Some entries in every file. With some seeds, six short chains have no room for all of them.
fn fill(cluster: &Cluster) {
    for key in 0..20 {
        let counted = count(cluster, key);
        assert!(matches!(counted, Ok(1) | Err(UpdateError::Full { .. })), "{counted:?}");
    }
    for key in 0..3 {
        let entry = Entry::new(&[key as u64 + 1; 20], u64::MAX);
        assert!(cluster.create(&Hashed::wide(key), SECOND, &entry).unwrap());
    }
}

fn entries(cluster: &Cluster) -> Vec<(Class, StoredKey, Entry)> {
    let mut entries = Vec::new();
    cluster.for_each(|class, key, entry| entries.push((class, key, entry))).unwrap();
    entries
}

/// A cluster with some entries, at rest.
fn good() -> (Directory, Image) {
    let dir = directory();
    fill(&open(dir.path()));
    let image = Image::of_snapshot(dir.path());
    (dir, image)
}

/// The content of a directory, with the bytes of its files.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut tree = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            tree.extend(self::tree(&path));
        }
        let bytes = kind.is_file().then(|| fs::read(&path).unwrap());
        tree.insert(path, bytes);
    }
    tree
}

/// Opens a damaged cluster twice: each time the error is this one, about this file, and nothing changes.
#[track_caller]
fn check_refused(damage: impl FnOnce(&Path), name: &str, message: &str) {
    let (dir, _) = good();
    damage(dir.path());
    let cluster = dir.path().join("cluster");
    let before = tree(&cluster);
    let other = Options { eviction: Eviction::EvictSoonestExpiry, ..narrow(1, 1) };
    for options in [options(), other] {
        let error = Cluster::open(dir.path(), &options).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: {message}", cluster.join(name).display()));
        assert!(tree(&cluster) == before, "something has changed");
    }
}

/// As [`check_refused`], for a change of the bytes.
#[track_caller]
fn check_refused_image(damage: impl FnOnce(&mut Image), name: &str, message: &str) {
    check_refused(
        |dir| {
            let mut image = Image::of_snapshot(dir);
            damage(&mut image);
            for (name, bytes) in &image.0 {
                fs::write(file(dir, name), bytes).unwrap();
            }
        },
        name,
        message,
    );
}

#[test]
fn a_new_cluster_is_made_whole() {
    let dir = directory();
    let below = dir.path().join("a/b/c");
    let cluster = open(&below);
    assert_eq!((cluster.geometry(Class::Narrow), cluster.geometry(Class::Wide)), {
        (Some(options().narrow), options().wide)
    });
    let memory = memory_dir(&below).unwrap();
    assert_eq!(memory.parent(), Some(tidegate_store::default_memory_dir().as_path()));
    assert_eq!(fs::metadata(&memory).unwrap().mode() & 0o777, 0o700);
    for name in FILES {
        for path in [file(&below, name), memory.join(name)] {
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.mode() & 0o777, 0o600, "{}", path.display());
            assert!(metadata.blocks() * 512 >= metadata.len(), "{} has holes", path.display());
        }
    }
    assert!(!below.join("cluster.new").exists());
    let (image, snapshot) = (Image::read(&below), Image::of_snapshot(&below));
    assert_eq!(
        (image.names(), snapshot.names()),
        (FILES.map(str::to_owned).to_vec(), image.names())
    );
    let name = "narrow-001.tide";
    assert_eq!(image.0[name].len() as u64, options().narrow.file_bytes());
    assert_eq!(snapshot.0[name].len() as u64, options().narrow.snapshot_file_bytes());
    assert_eq!((image.seed(), snapshot.seed()), (cluster.seed(), cluster.seed()));
    // The memory is removed by the last process.
    let second = open(&below);
    drop(cluster);
    assert!(memory.exists());
    let cluster = second;
    // No two clusters are alike.
    let other = directory();
    assert_ne!(open(other.path()).seed(), cluster.seed());
}

#[test]
fn the_memory_that_an_opening_takes_is_known_before() {
    let dir = directory();
    let needed = |options: &Options| Cluster::memory_needed(dir.path(), options).unwrap();
    assert_eq!(needed(&options()), options().total_bytes());
    let cluster = open(dir.path());
    let memory = memory_dir(dir.path()).unwrap();
    let lengths = FILES.map(|name| fs::metadata(memory.join(name)).unwrap().len());
    assert_eq!(lengths.iter().sum::<u64>(), options().total_bytes());
    assert_eq!(needed(&options()), 0, "another process has it");
    drop(cluster);
    assert_eq!(needed(&narrow(7, 5)), options().total_bytes(), "a cluster keeps its geometry");
}

#[test]
fn what_is_unsaved_is_as_old_as_the_last_pass() {
    let dir = directory();
    let cluster = open(dir.path());
    let opened = Instant::now();
    let wait = Duration::from_millis(3);
    while opened.elapsed() < wait {
        thread::yield_now();
    }
    assert!(cluster.unsaved_for() >= wait, "there was no pass");
    let pass = Instant::now();
    cluster.sync().unwrap();
    let unsaved_for = cluster.unsaved_for();
    assert!(unsaved_for <= pass.elapsed() + Duration::from_millis(1), "{unsaved_for:?}");
}

#[test]
fn what_was_counted_is_kept() {
    let (dir, _) = good();
    let (seed, before) = {
        let cluster = open(dir.path());
        (cluster.seed(), entries(&cluster))
    };
    assert_eq!(before.len(), 23);
    // The geometry of an existing cluster wins over the requested one.
    for options in [options(), narrow(7, 5), narrow_and_wide((1, 1), (9, 9), 512)] {
        let cluster = Cluster::open(dir.path(), &options).unwrap();
        assert_eq!(cluster.geometry(Class::Narrow), Some(self::options().narrow));
        assert_eq!(cluster.geometry(Class::Wide), self::options().wide);
        assert_eq!((cluster.seed(), entries(&cluster)), (seed, before.clone()));
        cluster.check_files().unwrap();
        cluster.sync().unwrap();
    }
}

#[test]
fn a_copy_with_holes_is_a_cluster() {
    let (dir, copy, options) = (directory(), directory(), narrow(64, 35));
    assert_eq!(count(&Cluster::open(dir.path(), &options).unwrap(), 3), Ok(1));
    Image::of_snapshot(dir.path()).write_snapshot(copy.path());
    let holes = || {
        let metadata = fs::metadata(file(copy.path(), FILES[1])).unwrap();
        metadata.blocks() * 512 < metadata.len()
    };
    assert!(holes());
    let cluster = Cluster::open(copy.path(), &options).unwrap();
    assert_eq!(count(&cluster, 3), Ok(2));
    // Now the space is allocated.
    assert!(!holes());
}

#[test]
fn a_file_of_something_else_is_refused() {
    for name in FILES {
        let message = "not a counter file: found [54, 49, 44, 45, 47, 41, 54, 58] at its start, \
                       expected [54, 49, 44, 45, 47, 41, 54, 45]; move it away, or choose another \
                       directory";
        check_refused_image(|image| image.0.get_mut(name).unwrap()[7] = b'X', name, message);
    }
}

#[test]
fn a_file_of_another_version_is_refused() {
    for name in FILES {
        for version in [0, 1, 2, 3, 5, u64::MAX] {
            let message = format!("found format version {version}, expected 4; {OTHER_RELEASE}");
            check_refused_image(|image| image.set(name, 1, version), name, &message);
            let sealed = |image: &mut Image| {
                image.set(name, 1, version);
                image.seal_header(name);
            };
            check_refused_image(sealed, name, &message);
        }
    }
}

#[test]
fn a_damaged_header_is_refused() {
    for name in FILES {
        for word in (2..16).chain([100, 510, CHECKSUM]) {
            let (dir, mut image) = good();
            let checksum = image.get(name, CHECKSUM);
            image.set(name, word, image.get(name, word) ^ 1 << (word % 64));
            let found = image.get(name, CHECKSUM);
            image.seal_header(name);
            // The checksum computed from the damaged header.
            let expected = if word == CHECKSUM { checksum } else { image.get(name, CHECKSUM) };
            image.set(name, CHECKSUM, found);
            fs::write(file(dir.path(), name), &image.0[name]).unwrap();
            let error = Cluster::open(dir.path(), &options()).unwrap_err();
            let path = file(dir.path(), name);
            let message = format!(
                "{}: the header is damaged: found checksum {found:#018x}, expected \
                 {expected:#018x}; restore the whole file, or move its directory away to start \
                 with empty counters",
                path.display()
            );
            assert_eq!(error.to_string(), message, "word {word}");
            assert!(Image::of_snapshot(dir.path()) == image, "something has changed");
        }
    }
}

#[test]
fn a_whole_header_that_cannot_be_is_refused() {
    let set = |name: &'static str, word: usize, value: u64| {
        move |image: &mut Image| {
            image.set(name, word, value);
            image.seal_header(name);
        }
    };
    for name in FILES {
        let other_file = format!("is another file of a cluster; {PUT_BACK}");
        check_refused_image(set(name, 2, 7), name, &other_file);
        check_refused_image(set(name, 3, 5), name, &other_file);
        for (at, words) in [(8, "narrow"), (12, "wide")] {
            for (field, value, message) in [
                (0, 129, "number of files 129 is not allowed (1 to 128)"),
                (0, 1 << 32, "number of files 4294967295 is not allowed (1 to 128)"),
                (1, 0, "number of key-nodes 0 is not allowed (1 to 1099511627776)"),
                (2, 41, "chain length 41 is not allowed (1 to 40)"),
                (2, 0, "chain length 0 is not allowed (1 to 40)"),
                (3, 513, "number of state words 513 is not allowed (1 to 512)"),
            ] {
                println!("{name} {words}");
                let message = format!("{message}; use the release that wrote it");
                check_refused_image(set(name, at + field, value), name, &message);
            }
        }
        let huge = "140737488355392 bytes are too much for one cluster (at most 70368744177664)";
        let message = format!("{huge}; use the release that wrote it");
        let damage = |image: &mut Image| {
            image.set(name, 8, 128);
            image.set(name, 9, (1 << 40) / 536 - 8);
            image.seal_header(name);
        };
        let (dir, mut image) = good();
        damage(&mut image);
        fs::write(file(dir.path(), name), &image.0[name]).unwrap();
        let error = Cluster::open(dir.path(), &options()).unwrap_err().to_string();
        let tail = message.split_once(" bytes").unwrap().1;
        assert!(error.ends_with(tail), "{error}");
    }
}

#[test]
fn files_of_two_clusters_are_refused() {
    let message = format!("is a file of another cluster; {PUT_BACK}");
    let other = good().1;
    for name in &FILES[1..] {
        let bytes = other.0[*name].clone();
        check_refused(|dir| fs::write(file(dir, name), &bytes).unwrap(), name, &message);
        // Id, seed and geometry must be those of the control file.
        for word in [4, 5, SEED, 9, 10, 11, 13, 14] {
            let damage = |image: &mut Image| {
                image.set(name, word, image.get(name, word) + 1);
                image.seal_header(name);
            };
            check_refused_image(damage, name, &message);
        }
    }
    let bytes = other.0[CONTROL].clone();
    check_refused(|dir| fs::write(file(dir, CONTROL), &bytes).unwrap(), FILES[1], &message);
}

#[test]
fn a_file_in_the_place_of_another_is_refused() {
    let message = format!("is another file of a cluster; {PUT_BACK}");
    let swap = |dir: &Path, one: &str, other: &str| {
        let spare = dir.join("spare");
        fs::rename(file(dir, one), &spare).unwrap();
        fs::rename(file(dir, other), file(dir, one)).unwrap();
        fs::rename(spare, file(dir, other)).unwrap();
    };
    check_refused(|dir| swap(dir, FILES[1], FILES[2]), FILES[1], &message);
    check_refused(|dir| swap(dir, FILES[2], FILES[3]), FILES[2], &message);
    check_refused(|dir| swap(dir, FILES[0], FILES[3]), FILES[0], &message);
}

#[test]
fn a_file_of_another_length_is_refused() {
    let (_dir, image) = good();
    for name in FILES {
        let length = image.0[name].len() as u64;
        for found in [0, 1, 4095] {
            let message = format!(
                "found {found} bytes, expected at least the 4096 bytes of a header; {RESTORE}"
            );
            check_refused(|dir| set_length(&file(dir, name), found), name, &message);
        }
        for found in [4096, length - 1, length + 1, length + 4096, 2 * length] {
            let message = format!(
                "found {found} bytes, expected the {length} bytes that its header describes; \
                 {RESTORE}"
            );
            check_refused(|dir| set_length(&file(dir, name), found), name, &message);
        }
    }
}

fn set_length(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn a_missing_file_is_not_made_again() {
    for name in FILES {
        let remove = |dir: &Path| {
            fs::remove_file(file(dir, name)).unwrap();
        };
        let dangle = |dir: &Path| {
            remove(dir);
            symlink("nowhere", file(dir, name)).unwrap();
        };
        for damage in [&remove as &dyn Fn(&Path), &dangle] {
            let (dir, _) = good();
            damage(dir.path());
            let error = Cluster::open(dir.path(), &options()).unwrap_err();
            let (path, cluster) = (file(dir.path(), name), dir.path().join("cluster"));
            let message = format!("{}: the file is missing; {RESTORE}", path.display());
            assert_eq!(error.to_string(), message);
            // Trying again does not help.
            Cluster::open(dir.path(), &options()).unwrap_err();
            assert!(!path.exists());
            // Following the advice does.
            fs::rename(&cluster, dir.path().join("away")).unwrap();
            assert!(entries(&open(dir.path())).is_empty());
        }
    }
}

#[test]
fn what_is_not_a_file_is_refused() {
    let message = "not a regular file; move it away";
    for name in FILES {
        let replace_by_directory = |dir: &Path| {
            fs::remove_file(file(dir, name)).unwrap();
            fs::create_dir(file(dir, name)).unwrap();
            fs::write(file(dir, name).join("precious"), "data").unwrap();
        };
        check_refused(replace_by_directory, name, message);
        let replace_by_socket = |dir: &Path| {
            fs::remove_file(file(dir, name)).unwrap();
            drop(UnixListener::bind(file(dir, name)).unwrap());
        };
        check_refused(replace_by_socket, name, message);
    }
}

/// Something else under the name of the cluster directory, or in place of the whole directory.
#[test]
fn a_file_in_the_place_of_a_directory_is_refused() {
    let dir = directory();
    let cluster = dir.path().join("cluster");
    fs::write(&cluster, "precious").unwrap();
    for path in [dir.path(), &cluster] {
        let error = Cluster::open(path, &options()).unwrap_err().to_string();
        println!("{error}");
        assert!(error.starts_with(&cluster.display().to_string()), "{error}");
        assert_eq!(fs::read(&cluster).unwrap(), b"precious");
    }
}

#[test]
fn a_cluster_in_the_making_is_made_again() {
    let (dir, image) = good();
    fs::rename(dir.path().join("cluster"), dir.path().join("cluster.new")).unwrap();
    fs::write(dir.path().join("cluster.new/narrow-000.tide"), "half").unwrap();
    let cluster = open(dir.path());
    assert!(entries(&cluster).is_empty());
    assert_ne!(cluster.seed(), image.seed());
    assert!(!dir.path().join("cluster.new").exists());

    // Keep what the store did not create.
    let dir = directory();
    fs::write(dir.path().join("cluster.new"), "precious").unwrap();
    let error = Cluster::open(dir.path(), &options()).unwrap_err().to_string();
    let path = dir.path().join("cluster.new");
    let expected = format!("{}: cannot remove the leftovers: ", path.display());
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert!(!dir.path().join("cluster").exists());
}

#[test]
fn files_without_permission_are_refused() {
    const TEST: &str = "open::files_without_permission_are_refused";
    without_root(TEST, check_permissions);
}

fn check_permissions() {
    for name in FILES {
        let (dir, _) = good();
        let path = file(dir.path(), name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        let error = Cluster::open(dir.path(), &options()).unwrap_err().to_string();
        let text = "cannot open the file: Permission denied (os error 13)";
        assert_eq!(error, format!("{}: {text}", path.display()));
    }
    let dir = directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap();
    let error = Cluster::open(dir.path(), &options()).unwrap_err().to_string();
    let text = "cannot open the file: Permission denied (os error 13)";
    assert_eq!(error, format!("{}: {text}", dir.path().join("cluster.lock").display()));
    let below = dir.path().join("below");
    let error = Cluster::open(&below, &options()).unwrap_err().to_string();
    let text = "cannot create the directory: Permission denied (os error 13)";
    assert_eq!(error, format!("{}: {text}", below.display()));
}

/// What cannot be saved, as a lock is never released, stays in memory for the next process.
#[test]
fn a_process_that_cannot_save_all_leaves_the_memory() {
    let dir = directory();
    let cluster = open(dir.path());
    fill(&cluster);
    let memory = memory_dir(dir.path()).unwrap();
    for layout in layouts(&options()) {
        for number in 0..layout.geometry.key_nodes_total() {
            let (name, word) = layout.key_node_at(number);
            let file = File::options().write(true).open(memory.join(name)).unwrap();
            // The low half of the lock: a writer slot that does not exist.
            file.write_all_at(&5000_u32.to_le_bytes(), 8 * word as u64).unwrap();
        }
    }
    let synced = cluster.sync().unwrap().expect("no other process saves it");
    assert!(synced.copied == 0 && synced.locked > 1, "{synced:?}");
    drop(cluster);
    assert!(memory.exists());
    let cluster = open(dir.path());
    assert_eq!((count(&cluster, 0), cluster.was_emptied()), (Ok(2), false));
    drop(cluster);
    assert!(!memory.exists());
    assert_eq!(count(&open(dir.path()), 0), Ok(3));
}

/// Root may open a cluster that a sidecar of another user joins.
#[test]
fn memory_that_root_makes_belongs_to_the_owner_of_the_snapshot() {
    const NOBODY: u32 = 65_534;
    let (dir, _) = good();
    for name in FILES {
        if lchown(file(dir.path(), name), Some(NOBODY), Some(NOBODY)).is_err() {
            return not_run(
                "open::memory_that_root_makes_belongs_to_the_owner_of_the_snapshot",
                "root",
            );
        }
    }
    let cluster = open(dir.path());
    cluster.shared_words("marks", 10).unwrap();
    let memory = memory_dir(dir.path()).unwrap();
    let names = FILES.into_iter().chain(["marks"]).map(|name| memory.join(name));
    for path in names.chain([memory.clone(), file(dir.path(), "memory")]) {
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (NOBODY, NOBODY), "{}", path.display());
    }
}

/// A FIFO under the name of the lock file blocked the start forever, as opening it waits for a reader. Only a
/// regular file is accepted.
#[test]
fn a_lock_that_is_not_a_file_is_refused_at_once() {
    type Make = fn(&Path);
    let make: [(&str, Make); 4] = [
        ("FIFO", |path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()),
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("device", |path| symlink("/dev/null", path).unwrap()),
    ];
    for (kind, make) in make {
        for has_cluster in [false, true] {
            let dir = if has_cluster { good().0 } else { directory() };
            let lock = dir.path().join("cluster.lock");
            let _ = fs::remove_file(&lock);
            make(&lock);
            let error = Cluster::open(dir.path(), &options()).unwrap_err().to_string();
            let text = "not a regular file; move it away";
            assert_eq!(error, format!("{}: {text}", lock.display()), "{kind}");
            assert_eq!(dir.path().join("cluster").exists(), has_cluster, "{kind}");
        }
    }
}

/// Another process is just opening the cluster.
#[test]
fn one_process_at_a_time_opens_the_cluster() {
    let (dir, _) = good();
    let lock = OpenOptions::new().write(true).open(dir.path().join("cluster.lock")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let opener = scope.spawn(|| open(dir.path()));
        // Other clusters are not affected.
        for _ in 0..5 {
            good();
        }
        assert!(!opener.is_finished());
        lock.unlock().unwrap();
        assert_eq!(count(&opener.join().unwrap(), 1), Ok(2));
    });
}

/// A process was killed while restoring the cluster, and is not quite gone. What it left must not be used
/// before it is restored.
#[test]
fn an_unfinished_restoration_is_waited_for() {
    let (dir, _) = good();
    let dying = open(dir.path());
    let image = Image::read(dir.path());
    let control = OpenOptions::new().write(true).open(memory_file(dir.path(), CONTROL)).unwrap();
    control.write_all_at(&1_u64.to_le_bytes(), 8 * RESTORING as u64).unwrap();
    // A fault that only a restoration notices.
    let name = "narrow-000.tide";
    let layout = layouts(&options())[0];
    // With some seeds, one of the three key-nodes in the file is empty.
    let mut slots = (0..3).flat_map(|number| (0..8).map(move |slot| (number, slot)));
    let (number, slot) =
        slots.find(|(number, slot)| image.tag(&layout, *number, *slot) != 0).unwrap();
    let tail = layout.key_node_at(number).1 + layout.word_indexes(slot)[6];
    let data = OpenOptions::new().write(true).open(memory_file(dir.path(), name)).unwrap();
    data.write_all_at(&(!image.get(name, tail)).to_le_bytes(), 8 * tail as u64).unwrap();
    let lock = OpenOptions::new().write(true).open(dir.path().join("cluster.lock")).unwrap();
    thread::scope(|scope| {
        let opener = scope.spawn(|| open(dir.path()));
        // The opener has the lock until it is done.
        while !opener.is_finished() && lock.try_lock().is_ok() {
            lock.unlock().unwrap();
            thread::yield_now();
        }
        for _ in 0..5 {
            good();
        }
        assert!(!opener.is_finished());
        drop(dying);
        let cluster = opener.join().unwrap();
        assert_eq!(cluster.stats().dropped_torn, 1);
        let words = Image::read(dir.path());
        assert_eq!(words.get(CONTROL, RESTORING), 0);
    });
}

/// A file of the memory is truncated under an open cluster: an error, and no signal ends the process. That
/// memory is never trusted again; the next process to open the cluster gets the last snapshot.
#[test]
fn a_file_cut_short_under_an_open_cluster_is_noticed() {
    for name in FILES {
        for length in [0, 4096] {
            let (dir, _) = good();
            let cluster = open(dir.path());
            assert_eq!(count(&cluster, 3), Ok(2));
            let path = memory_file(dir.path(), name);
            let whole = fs::metadata(&path).unwrap().len();
            set_length(&path, length);

            let since = Instant::now();
            assert_eq!(use_all(&cluster), Err(UpdateError::DataLoss), "{name}");
            assert!(cluster.is_lost());
            // Updates of other files fail too.
            for key in 0..20 {
                assert_eq!(count(&cluster, key), Err(UpdateError::DataLoss));
            }
            let keys = [Hashed::wide(1), Hashed::narrow(1 << 127)];
            assert_eq!(cluster.update_many(&keys, SECOND, |_| ()), Err(UpdateError::DataLoss));
            let mut failed = [false; 2];
            cluster.update_each(&keys, SECOND, |index, entry| failed[index] |= entry.is_err());
            assert_eq!(failed, [true; 2]);
            assert_eq!(cluster.find(&1_u64, SECOND), Err(UpdateError::DataLoss));
            assert_eq!(cluster.erase(&1_u64, SECOND), Err(UpdateError::DataLoss));
            assert_eq!(cluster.sweep(SECOND), Err(UpdateError::DataLoss));
            assert_eq!(cluster.reset_all(), Err(UpdateError::DataLoss));
            assert_eq!(cluster.for_each(|_, _, _| {}), Err(UpdateError::DataLoss));
            assert!(cluster.sync().is_err(), "what is lost is not saved");
            let _ = (cluster.stats(), cluster.occupancy(Class::Narrow));
            assert!(since.elapsed() < LONG);
            let error = cluster.check_files().unwrap_err().to_string();
            let text = "a file in memory was cut short, or has a hole, and counters are gone";
            assert_eq!(error, format!("{}: {text}", path.parent().unwrap().display()));

            // Extended again, with zeros in the hole, it is still lost.
            set_length(&path, whole);
            assert!(cluster.check_files().is_err());
            assert_eq!(count(&cluster, 1), Err(UpdateError::DataLoss));
            // Processes that open it now learn that it is served by a process that they cannot join.
            let error = Cluster::open(dir.path(), &options()).unwrap_err();
            assert!(matches!(error.failure, OpenFailure::ServedElsewhere), "{error}");
            drop(cluster);
            assert_eq!(count(&open(dir.path()), 3), Ok(2), "as the snapshot has it");
        }
    }
}

/// A hole in a file, or a file truncated and extended, is noticed by looking at it, without any access to the
/// missing page. Once one process has noticed it, others know it as well.
#[test]
fn a_hole_in_the_memory_is_noticed() {
    for punch in [true, false] {
        let (dir, _) = good();
        let clusters = [open(dir.path()), open(dir.path())];
        clusters.iter().for_each(|cluster| cluster.check_files().unwrap());
        let path = memory_file(dir.path(), FILES[1]);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        if punch {
            use rustix::fs::FallocateFlags;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 4096, 4096).unwrap();
        } else {
            file.set_len(4096).unwrap();
            file.set_len(length).unwrap();
        }
        for cluster in &clusters {
            cluster.check_files().unwrap_err();
            assert!(cluster.is_lost());
            assert_eq!(count(cluster, 1), Err(UpdateError::DataLoss));
        }
        drop(clusters);
        assert_eq!(count(&open(dir.path()), 3), Ok(2), "as the snapshot has it");
    }
}

/// The memory was overwritten, as by `cp`. Nothing is missing, but an update that needs a lock there notices.
/// So does a pass, if no update did.
#[test]
fn memory_that_was_written_over_is_noticed() {
    for is_met in [true, false] {
        for with in [vec![0; 4096], vec![0x5a; 4096]] {
            let (dir, _) = good();
            let clusters = [open(dir.path()), open(dir.path())];
            assert_eq!(count(&clusters[0], 3), Ok(2));
            for name in &FILES[1..] {
                let path = memory_file(dir.path(), name);
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(&with, 4096).unwrap();
            }
            if is_met {
                let lost = (0..20).find(|key| count(&clusters[0], *key).is_err());
                assert!(lost.is_some(), "every key was counted anew");
            } else {
                clusters[0].sync().unwrap_err();
            }
            assert!(clusters[0].is_lost());
            // The other process notices with its next check.
            clusters[1].check_files().unwrap_err();
            assert_eq!(count(&clusters[1], 1), Err(UpdateError::DataLoss));
            drop(clusters);
            assert_eq!(count(&open(dir.path()), 3), Ok(2), "as the snapshot has it");
        }
    }
}

/// An update decided, its file was cut short meanwhile, and what it wrote was lost. It must not be reported as done,
/// in whichever way it changes keys.
#[test]
fn an_update_that_loses_its_file_while_it_decides_fails() {
    type Update = fn(&Cluster, &dyn Fn()) -> Result<(), UpdateError>;
    #[expect(clippy::needless_pass_by_value, reason = "as an update hands it over")]
    fn add(entry: EntryMut<'_>) {
        entry.state[0] += 1;
        *entry.expires_at = u64::MAX;
    }
    let updates: [(&str, Update); 6] = [
        ("a live key", |cluster, cut| {
            cluster.update(&1_u64, SECOND, |entry| {
                cut();
                add(entry);
            })
        }),
        ("a new key", |cluster, cut| {
            cluster.update(&9_u64, SECOND, |entry| {
                cut();
                add(entry);
            })
        }),
        ("a key that is erased", |cluster, cut| {
            cluster.update(&1_u64, SECOND, |entry| {
                cut();
                entry.state.fill(0);
            })
        }),
        ("one key of an update of several", |cluster, cut| {
            cluster.update_many(&[1_u64], SECOND, |entries| {
                cut();
                add(entries.get(0));
            })
        }),
        ("several keys, live and new", |cluster, cut| {
            cluster.update_many(&[1_u64, 2, 9], SECOND, |entries| {
                cut();
                (0..3).for_each(|index| add(entries.get(index)));
            })
        }),
        ("keys in a transaction each", |cluster, cut| {
            let mut result = Ok(());
            cluster.update_each(&[1_u64], SECOND, |_, entry| match entry {
                Ok(entry) => {
                    cut();
                    add(entry);
                }
                Err(error) => result = Err(error),
            });
            result
        }),
    ];
    for (name, update) in updates {
        let dir = directory();
        let cluster = Cluster::open(dir.path(), &narrow(4, 8)).unwrap();
        (1..3).for_each(|key| assert_eq!(count(&cluster, key), Ok(1)));
        cluster.sync().unwrap();
        // The header stays, and all nodes are gone.
        let nodes = memory_file(dir.path(), FILES[1]);
        let result = update(&cluster, &|| set_length(&nodes, 4096));
        assert_eq!((result, cluster.is_lost()), (Err(UpdateError::DataLoss), true), "{name}");
        drop(cluster);
        let next = Cluster::open(dir.path(), &narrow(4, 8)).unwrap();
        let counts = [1, 2, 9].map(|key| count(&next, key));
        assert_eq!(counts, [Ok(2), Ok(2), Ok(1)], "{name}: as the last snapshot has it");
    }
}

/// A node of the memory is damaged. A pass that meets it saves nothing, an update does not seal it again, and
/// that memory is never trusted again.
#[test]
fn a_damaged_node_is_neither_saved_nor_updated() {
    for is_updated in [true, false] {
        check_damaged_node(is_updated);
    }
}

fn check_damaged_node(is_updated: bool) {
    let (dir, _) = good();
    let cluster = open(dir.path());
    assert_eq!(count(&cluster, 3), Ok(2));
    assert_eq!(cluster.sync().unwrap().map(|synced| synced.copied), Some(1));
    assert_eq!(count(&cluster, 3), Ok(3));
    let (image, layout) = (Image::read(dir.path()), layouts(&options())[0]);
    let (number, slot) = (0..layout.geometry.key_nodes_total())
        .flat_map(|number| (0..layout.chain()).map(move |slot| (number, slot)))
        .find(|&(number, slot)| {
            image.tag(&layout, number, slot) != 0 && image.node(&layout, number, slot)[2] == 3
        })
        .expect("a count of 3");
    let (name, first) = layout.key_node_at(number);
    let word = first + layout.word_indexes(slot)[2];
    let data = OpenOptions::new().write(true).open(memory_file(dir.path(), &name)).unwrap();
    data.write_all_at(&1000_u64.to_le_bytes(), 8 * word as u64).unwrap();
    if is_updated {
        assert_eq!(count(&cluster, 3), Err(UpdateError::DataLoss));
        assert!(cluster.is_lost());
    } else {
        let error = cluster.sync().unwrap_err().to_string();
        let text = format!("node {slot} of narrow key-node {number} was damaged in memory");
        assert_eq!((error, cluster.is_lost()), (text, true));
    }
    assert_eq!(count(&cluster, 3), Err(UpdateError::DataLoss));
    drop(cluster);
    assert_eq!(count(&open(dir.path()), 3), Ok(3), "as the last snapshot has it");
}

/// Updates keys in all files until one fails.
fn use_all(cluster: &Cluster) -> Result<(), UpdateError> {
    for key in 0..20 {
        count(cluster, key)?;
    }
    for key in 0..4 {
        cluster.update(&Hashed::wide(key << 126), SECOND, |entry| entry.state[0] += 1)?;
    }
    Ok(())
}

/// The last page of a file is lost, which updates do not need.
#[test]
fn what_was_lost_is_noticed_when_it_is_missed() {
    let dir = directory();
    let options = narrow(64, 35);
    let cluster = Cluster::open(dir.path(), &options).unwrap();
    let layout: Layout = layouts(&options)[0];
    let mut random = Random::new(1);
    let mut key_at = |home: std::ops::Range<u64>| loop {
        let key = StoredKey::from_bits(random.hash());
        if home.contains(&layout.home(&key)) {
            return key;
        }
    };
    let (near, far) = (key_at(0..2), key_at(62..64));
    let path = memory_file(dir.path(), FILES[1]);
    // The words about snapshot copies, and the last page of key-nodes.
    set_length(&path, 4096 + 62 * options.narrow.key_node_bytes());
    let update = |key: &StoredKey| cluster.update(key, SECOND, |_| ());
    assert_eq!((update(&near), cluster.is_lost()), (Ok(()), false));
    assert_eq!((update(&far), cluster.is_lost()), (Err(UpdateError::DataLoss), true));
    assert_eq!(update(&near), Err(UpdateError::DataLoss));
}

#[test]
fn a_file_that_was_deleted_or_replaced_is_noticed() {
    for name in FILES {
        for of_memory in [false, true] {
            let (dir, _) = good();
            let cluster = open(dir.path());
            let path =
                if of_memory { memory_file(dir.path(), name) } else { file(dir.path(), name) };
            let bytes = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let error = cluster.check_files().unwrap_err().to_string();
            let gone = "the file in use is gone: No such file or directory (os error 2)";
            assert_eq!(error, format!("{}: {gone}", path.display()));
            use_all(&cluster).unwrap();
            fs::write(&path, &bytes).unwrap();
            let error = cluster.check_files().unwrap_err().to_string();
            let replaced = "another file is in the place of the one in use";
            assert_eq!(error, format!("{}: {replaced}", path.display()));
            use_all(&cluster).unwrap();
            assert!(!cluster.is_lost());
            cluster.reset_all().unwrap();
        }
    }
    // The whole directory.
    let (dir, _) = good();
    let cluster = open(dir.path());
    fs::rename(dir.path().join("cluster"), dir.path().join("away")).unwrap();
    let error = cluster.check_files().unwrap_err().to_string();
    assert!(error.contains("the file in use is gone"), "{error}");
    use_all(&cluster).unwrap();
    drop(open(dir.path()));
    let error = cluster.check_files().unwrap_err().to_string();
    assert!(error.contains("another file is in the place of the one in use"), "{error}");
    assert_eq!(count(&cluster, 1), Ok(3));
}

/// A copy of a data directory in use is a separate cluster, with the content of the last snapshot.
#[test]
fn a_copy_of_an_open_directory_is_another_cluster() {
    let (dir, _) = good();
    let cluster = open(dir.path());
    assert_eq!(count(&cluster, 3), Ok(2));
    cluster.sync().unwrap();
    assert_eq!(count(&cluster, 3), Ok(3));
    let copy = directory();
    let status =
        Command::new("cp").arg("-a").arg(dir.path().join("cluster")).arg(copy.path()).status();
    assert!(status.unwrap().success());
    let other = open(copy.path());
    assert_eq!((count(&other, 3), count(&other, 3)), (Ok(3), Ok(4)));
    assert_eq!(count(&cluster, 3), Ok(4));
    assert_ne!(memory_dir(dir.path()), memory_dir(copy.path()));
}

/// A process is killed, and its memory ends with the machine or the container: the snapshot is older than the counts were.
#[test]
fn counts_that_must_not_be_old_are_gone_with_the_memory() {
    let emptied = Options { after_loss: AfterLoss::Nothing, ..options() };
    let open_emptied = |dir: &Path| Cluster::open(dir, &emptied).unwrap();
    let dir = directory();
    let cluster = open_emptied(dir.path());
    assert_eq!((count(&cluster, 3), cluster.was_emptied()), (Ok(1), false));
    drop(cluster);
    // It left in order, so everything is there.
    let cluster = open_emptied(dir.path());
    assert_eq!(
        (count(&cluster, 3), count(&cluster, 4), cluster.was_emptied()),
        (Ok(2), Ok(1), false)
    );
    // In more than one key-node, so that some are not written again below.
    (10..30).for_each(|key| _ = count(&cluster, key));
    cluster.sync().unwrap();
    drop(cluster);

    for (after_loss, counted) in [(AfterLoss::LastSnapshot, 4), (AfterLoss::Nothing, 1)] {
        let copy = directory();
        let cluster = open(dir.path());
        assert_eq!(count(&cluster, 3), Ok(3));
        cluster.sync().unwrap();
        let all =
            Command::new("cp").arg("-a").arg(dir.path().join("cluster")).arg(copy.path()).status();
        assert!(all.unwrap().success());
        let options = Options { after_loss, ..options() };
        let other = Cluster::open(copy.path(), &options).unwrap();
        assert_eq!((count(&other, 3), other.was_emptied()), (Ok(counted), counted == 1));
        drop(other);
        // Nothing of the lost counts comes back later.
        let other = Cluster::open(copy.path(), &options).unwrap();
        assert_eq!((count(&other, 3), other.was_emptied()), (Ok(counted + 1), false));
        let is_only_entry = entries(&other).len() == 1;
        assert_eq!(is_only_entry, counted == 1);
        assert_eq!(count(&other, 4), Ok(if counted == 1 { 1 } else { 2 }));
        assert!(cluster.erase(&3_u64, SECOND).unwrap());
        for expected in 1..=2 {
            assert_eq!(count(&cluster, 3), Ok(expected));
        }
    }
    // A process that finds the memory cut short leaves as well, but not in order.
    let cluster = open_emptied(dir.path());
    assert_eq!((count(&cluster, 4), cluster.was_emptied()), (Ok(2), false));
    set_length(&memory_file(dir.path(), CONTROL), 4096);
    cluster.check_files().unwrap_err();
    drop(cluster);
    let cluster = open_emptied(dir.path());
    assert_eq!((count(&cluster, 4), cluster.was_emptied()), (Ok(1), true));
}

/// Memory that cannot be seen, as in another container or on another machine: opening is refused while a
/// process has it, whether it has made it or found it.
#[test]
fn memory_that_cannot_be_seen_is_not_made_a_second_time() {
    for earlier in 0..2 {
        let (dir, _) = good();
        let makers: Vec<_> = (0..earlier).map(|_| open(dir.path())).collect();
        let cluster = open(dir.path());
        drop(makers);
        assert_eq!(count(&cluster, 3), Ok(2));
        let (pointer, hidden) = (file(dir.path(), "memory"), file(dir.path(), "hidden"));
        fs::rename(&pointer, &hidden).unwrap();
        let error = Cluster::open(dir.path(), &options()).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::ServedElsewhere), "{error}");
        let text = "already served by a process whose shared memory is not reachable from here";
        let text = format!("{}: {text}", dir.path().display());
        assert!(error.to_string().starts_with(&text), "{error}");
        let view = View::open(dir.path()).unwrap();
        assert!(view.is_served_elsewhere());
        assert_eq!(view.find(&3_u64, SECOND).unwrap().map(|entry| entry.state[0]), Some(1));
        fs::rename(&hidden, &pointer).unwrap();
        assert_eq!(count(&open(dir.path()), 3), Ok(3));
        // A process killed elsewhere does not matter.
        fs::rename(&pointer, &hidden).unwrap();
        cluster.sync().unwrap();
        drop(cluster);
        assert_eq!(count(&open(dir.path()), 3), Ok(4));
    }
}

#[test]
fn no_two_clusters_have_the_same_id_or_seed() {
    let [one, other] = [(); 2].map(|()| {
        let dir = directory();
        let cluster = open(dir.path());
        [(cluster.id() >> 64) as u64, cluster.id() as u64, cluster.seed()]
    });
    assert!(one.iter().zip(&other).all(|(one, other)| one != other), "{one:?} {other:?}");
}

/// Memory of another boot, or of an earlier time of the cluster, or that was found damaged.
#[test]
fn memory_is_used_only_if_all_says_that_it_is_the_right_one() {
    let dir = directory();
    let cluster = open(dir.path());
    assert_eq!(count(&cluster, 3), Ok(1));
    let mut image = Image::read(dir.path());
    drop(cluster);
    image.end_processes();
    for (wrong, counted) in [(None, 2), (Some(NONCE), 1), (Some(BOOT), 1), (Some(SPOILED), 1)] {
        let dir = directory();
        image.write(dir.path());
        if let Some(word) = wrong {
            let path = memory_file(dir.path(), CONTROL);
            let mut bytes = fs::read(&path).unwrap();
            bytes[8 * word] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(count(&open(dir.path()), 3), Ok(counted), "{wrong:?}");
    }
}

/// One process found that the memory was changed from outside.
#[test]
fn damage_that_one_process_finds_is_known_to_the_others() {
    let (dir, _) = good();
    let cluster = open(dir.path());
    cluster.check_files().unwrap();
    let control = File::options().write(true).open(memory_file(dir.path(), CONTROL)).unwrap();
    control.write_all_at(&1_u64.to_le_bytes(), 8 * SPOILED as u64).unwrap();
    assert!(!cluster.is_lost(), "not until it looks");
    let error = cluster.check_files().unwrap_err().to_string();
    assert!(error.contains("counters are gone"), "{error}");
    assert!(cluster.is_lost());
}

/// A process that opens a cluster while the last one leaves finds its memory or none, and never that it is
/// served elsewhere.
#[test]
fn opening_and_leaving_never_report_elsewhere() {
    let (dir, _) = good();
    let since = Instant::now();
    thread::scope(|scope| {
        for thread in 0..3 {
            let dir = dir.path();
            scope.spawn(move || {
                for _ in 0..60 {
                    let cluster = open(dir);
                    until_decided(|| count(&cluster, thread)).unwrap();
                }
            });
        }
    });
    assert!(since.elapsed() < LONG * 6);
    let cluster = open(dir.path());
    for thread in 0..3 {
        assert_eq!(count(&cluster, thread), Ok(62));
    }
}

/// A pipe under the name of a file is refused without waiting.
#[test]
fn a_pipe_is_no_file() {
    for name in FILES {
        let (dir, _) = good();
        fs::remove_file(file(dir.path(), name)).unwrap();
        assert!(Command::new("mkfifo").arg(file(dir.path(), name)).status().unwrap().success());
        let error = Cluster::open(dir.path(), &options()).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::NotAFile), "{error}");
    }
}

#[test]
fn a_directory_on_a_disk_is_no_place_for_memory() {
    let (dir, disk) = (directory(), tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
    let options = Options { memory_dir: Some(disk.path().to_owned()), ..options() };
    let opened = Cluster::open(dir.path(), &options);
    match opened {
        Err(error) if matches!(error.failure, OpenFailure::NotInMemory) => {
            let text = "is not on a tmpfs, so counters there would wait for a disk; choose a \
                        directory on a tmpfs, such as /dev/shm";
            assert_eq!(error.to_string(), format!("{}: {text}", disk.path().display()));
        }
        // The source directory may be on a tmpfs itself.
        Err(error) => panic!("{error}"),
        Ok(_) => assert!(cfg!(not(target_os = "linux")) || is_tmpfs(disk.path())),
    }
}

fn is_tmpfs(path: &Path) -> bool {
    let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output().unwrap();
    output.stdout.starts_with(b"tmpfs")
}

/// A process that may not write files of the required size.
#[test]
fn a_limit_on_files_is_no_surprise() {
    const TEST: &str = "open::a_limit_on_files_is_no_surprise";
    let in_memory = |dir: &Path| Options { memory_dir: Some(dir.join("memory")), ..options() };
    if let Some((_, dir)) = role() {
        let error = Cluster::open(&dir, &in_memory(&dir)).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::NoSpace { .. }), "{error:?}");
        say(&error.to_string());
        leave();
    }
    let dir = directory();
    let memory = dir.path().join("memory");
    fs::create_dir(&memory).unwrap();
    let child = command(TEST, "", dir.path());
    let mut shell = Command::new("sh");
    // Without the signal that comes with the limit, as a service manager does.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$0\" \"$@\""]).arg(child.get_program());
    shell.args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = Child::of(&mut shell);
    let said = child.next_line().unwrap();
    let text = "control.tide: cannot reserve 8396800 bytes: File too large (os error 27); free some \
                space, choose a directory on another file system, or lower the capacity if the \
                cluster is a new one";
    assert!(said.starts_with(&memory.display().to_string()) && said.ends_with(text), "{said}");
    assert!(child.wait().success());
    assert_eq!(fs::read_dir(&memory).unwrap().count(), 0, "something was left behind");
}

/// A file system with room for the control file, but not for the nodes.
#[test]
fn a_full_disk_is_no_surprise() {
    const TEST: &str = "open::a_full_disk_is_no_surprise";
    if let Some((_, dir)) = role() {
        let error = Cluster::open(&dir, &narrow(4000, 35)).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::NoSpace { .. }), "{error:?}");
        let path = dir.join("cluster.new").join(FILES[1]);
        let text = "cannot reserve 16388096 bytes: No space left on device (os error 28); free some \
                    space, ";
        assert!(error.to_string().starts_with(&format!("{}: {text}", path.display())), "{error}");
        assert_eq!(tree(&dir).into_keys().collect::<Vec<_>>(), [dir.join("cluster.lock")]);

        // A smaller cluster fits, unless something was left behind. All of its space is reserved.
        let cluster = Cluster::open(&dir, &narrow(400, 35)).unwrap();
        fill_disk(&dir.join("other"));
        for key in 0..60 {
            count(&cluster, key).unwrap();
            if key % 10 == 0 {
                cluster.sync().unwrap();
            }
        }
        drop(cluster);
        drop(open(&dir));

        // A copy with holes cannot be opened, and stays.
        let image = Image::of_snapshot(&dir);
        fs::remove_dir_all(dir.join("cluster")).unwrap();
        fs::remove_file(dir.join("other")).unwrap();
        image.write_snapshot(&dir);
        fill_disk(&dir.join("other"));
        let error = Cluster::open(&dir, &options()).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::NoSpace { .. }), "{error:?}");
        assert!(Image::of_snapshot(&dir) == image);
        fs::remove_file(dir.join("other")).unwrap();
        assert_eq!(count(&open(&dir), 59), Ok(2));

        // Not enough memory: the file system is smaller than a control file.
        let in_memory = Options { memory_dir: Some(dir.clone()), ..options() };
        let other = directory();
        fill_disk(&dir.join("other"));
        let error = Cluster::open(other.path(), &in_memory).unwrap_err();
        assert!(matches!(error.failure, OpenFailure::NoSpace { .. }), "{error:?}");
        assert_eq!(tree(&dir).into_keys().filter(|path| is_memory(path)).count(), 0);
        fs::remove_file(dir.join("other")).unwrap();
        say("done");
        leave();
    }
    let dir = directory();
    let child = command(TEST, "", dir.path());
    // Root may mount; others become root of a namespace first, where the system lets them.
    let is_root = rustix::process::geteuid().is_root();
    let namespaces: &[&str] = if is_root { &["--mount"] } else { &["--mount", "--map-root-user"] };
    let script = "mount -t tmpfs -o size=10m none \"$1\" || exit 77; shift; exec \"$0\" \"$@\"";
    let mut shell = Command::new("unshare");
    shell.args(namespaces).args(["sh", "-c", script]).arg(child.get_program()).arg(dir.path());
    shell.args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let allowed = Command::new("unshare").args(namespaces).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return not_run(TEST, "the right to unshare a mount namespace");
    }
    let mut child = Child::of(&mut shell);
    let said = child.next_line();
    let status = child.wait();
    if status.code() == Some(77) {
        return not_run(TEST, "the right to mount a tmpfs");
    }
    assert_eq!(said.as_deref(), Some("done"), "{status}");
}

fn is_memory(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tidegate-"))
}

/// Writes a file until the disk is full.
fn fill_disk(path: &Path) {
    let file = File::create(path).unwrap();
    let mut offset = 0;
    while let Ok(written @ 1..) = file.write_at(&[1; 4096], offset) {
        offset += written as u64;
    }
    assert!(offset > 0, "there was no room at all");
}
