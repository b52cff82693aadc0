//! Locks on single bytes of an open file. The kernel releases them when the holder dies.
//!
//! Contains `unsafe` code: the standard library locks whole files only, and locks of the open file (not of
//! the process) are available only through libc. The byte need not exist: locks beyond the end of a file work
//! as well. Two locks through the same open file do not exclude each other.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks a byte exclusively, unless another open file has locked it. Never waits.
pub(crate) fn try_lock(file: &File, byte: u64) -> io::Result<bool> {
    set(file, byte, libc::F_WRLCK as libc::c_short)
}

/// Locks a byte shared, unless another open file has locked it exclusively. Turns an exclusive lock of this
/// open file into a shared one. Never waits.
pub(crate) fn try_lock_shared(file: &File, byte: u64) -> io::Result<bool> {
    set(file, byte, libc::F_RDLCK as libc::c_short)
}

/// Whether another open file has locked a byte. Acquires nothing; read access suffices.
pub(crate) fn is_locked(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = lock_of(byte, libc::F_WRLCK as libc::c_short)?;
    // SAFETY: the descriptor is open as long as `file`, and the kernel writes only the lock.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unlocks a byte. Fails only for a closed file.
pub(crate) fn unlock(file: &File, byte: u64) {
    let _ = set(file, byte, libc::F_UNLCK as libc::c_short);
}

/// Sets the lock of a byte. Returns whether the kernel granted it.
fn set(file: &File, byte: u64, kind: libc::c_short) -> io::Result<bool> {
    let lock = lock_of(byte, kind)?;
    // SAFETY: the descriptor is open as long as `file`, and the kernel only reads the lock.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    let is_taken = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    if is_taken { Ok(false) } else { Err(error) }
}

/// The description of one byte for the kernel.
fn lock_of(byte: u64, kind: libc::c_short) -> io::Result<libc::flock> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(byte).map_err(io::Error::other)?;
    lock.l_len = 1;
    Ok(lock)
}

// These need a disk, which Miri does not have.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn bytes_are_locked_by_open_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OpenOptions::new().write(true).open(file.path()).unwrap();
        let (one, other) = (open(), open());
        assert!(try_lock(&one, 5).unwrap());
        assert!(!try_lock(&other, 5).unwrap());
        assert!(try_lock(&other, 6).unwrap());
        let look = File::open(file.path()).unwrap();
        assert_eq!([4, 5, 6].map(|byte| is_locked(&look, byte).unwrap()), [false, true, true]);
        assert!(!is_locked(&one, 5).unwrap(), "its own lock does not count");
        assert!(try_lock(&one, 5).unwrap(), "the same open file may lock again");
        unlock(&one, 5);
        assert!(try_lock(&other, 5).unwrap());
        drop(other);
        assert!(try_lock(&one, 5).unwrap());
    }

    #[test]
    fn a_byte_is_locked_shared_or_exclusively() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (one, other) = (open(), open());
        assert!(try_lock(&one, 5).unwrap());
        assert!(!try_lock_shared(&other, 5).unwrap());
        assert!(try_lock_shared(&one, 5).unwrap(), "downgraded");
        assert!(try_lock_shared(&other, 5).unwrap());
        assert!(!try_lock(&one, 5).unwrap());
        drop(other);
        assert!(try_lock(&one, 5).unwrap());
    }
}
