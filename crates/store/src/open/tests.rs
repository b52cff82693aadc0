use super::*;
use crate::format::{Geometry, HEADER_BYTES, WORD_BYTES};
use crate::memory::control::CONTROL_WORDS;

#[test]
fn a_lock_that_stays_held_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::narrow(Geometry::by_count(1, 1, 1, 4).unwrap());
    let path = dir.path().join(OPEN_LOCK);
    let lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    let since = Instant::now();
    let errors = [open(dir.path(), &options).err(), memory_needed(dir.path(), &options).err()];
    assert!(since.elapsed() >= 2 * OPEN_WAIT_MAX);
    let (path, seconds) = (path.display(), OPEN_WAIT_MAX.as_secs());
    let text = "wait for it, or stop it";
    for error in errors {
        let message = format!(
            "{path}: another process has been opening this cluster for {seconds} s; {text}"
        );
        assert_eq!(error.unwrap().to_string(), message);
    }
    assert!(!dir.path().join(SNAPSHOT_DIR).exists(), "nothing is created without the lock");
}

#[test]
fn memory_of_one_process_is_as_large_as_its_files_would_be() {
    let narrow = Geometry::by_count(2, 3, 8, 4).unwrap();
    let wide = Geometry::by_count(1, 2, 3, 20).unwrap();
    let options = Options { wide: Some(wide), ..Options::narrow(narrow) };
    let (memory, _) = in_memory(&options).unwrap();
    assert_eq!(memory.control.words().len(), CONTROL_WORDS);
    for class in memory.classes() {
        let geometry = class.layout.geometry;
        let of_key_nodes = geometry.key_nodes_total() * geometry.key_node_bytes();
        let bytes = class.words().len() as u64 * WORD_BYTES;
        // A header in each file, and a word for each key-node, in whole pages.
        let rest = bytes - of_key_nodes;
        assert!(rest <= 3 * u64::from(geometry.files()) * HEADER_BYTES as u64, "{rest} bytes");
    }
}
