use super::*;
use crate::format::Geometry;

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
