//! Liveness locks: each process that has a cluster open holds a lock on one byte of the control file.
//!
//! The kernel releases the lock when its holder dies, however it dies. So acquiring another process's lock
//! proves that it is dead, and makes the acquirer the only one to recover it. The lock is on the mapped file,
//! not on a name that could be removed or reused. Owns these locks; knows nothing of recovery.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::memory::control::CONTROL_BYTES;
use crate::writers::byte_lock;

pub(crate) enum LivenessLocks {
    /// Bytes of this control file, opened by this process.
    File(Arc<File>),
    /// In tests: flags. A test clears the flag of a process that it declares dead.
    #[cfg(all(test, not(loom)))]
    Flags(Arc<Vec<std::sync::atomic::AtomicBool>>),
}

/// The liveness lock of one process; released on drop. Its holder is the process, or may recover it.
pub(crate) enum LivenessLock {
    Byte(Arc<File>, u32),
    #[cfg(all(test, not(loom)))]
    Flag(Arc<Vec<std::sync::atomic::AtomicBool>>, u32),
}

impl LivenessLocks {
    /// Acquires the lock of process number `process`, unless another process has it. Never waits.
    ///
    /// Does not exclude other threads of this process, nor its own number.
    pub(crate) fn try_acquire(&self, process: u32) -> io::Result<Option<LivenessLock>> {
        match self {
            Self::File(control) => {
                let is_taken = byte_lock::try_lock(control, byte_of(process))?;
                Ok(is_taken.then(|| LivenessLock::Byte(control.clone(), process)))
            }
            #[cfg(all(test, not(loom)))]
            Self::Flags(flags) => {
                let was = flags[process as usize].swap(true, std::sync::atomic::Ordering::SeqCst);
                Ok((!was).then(|| LivenessLock::Flag(flags.clone(), process)))
            }
        }
    }
}

/// Whether process number `process` is alive, without acquiring anything. If that is unknown, it counts as alive.
pub(crate) fn is_alive(control: &File, process: u32) -> bool {
    byte_lock::is_locked(control, byte_of(process)).unwrap_or(true)
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        match self {
            Self::Byte(control, process) => byte_lock::unlock(control, byte_of(*process)),
            #[cfg(all(test, not(loom)))]
            Self::Flag(flags, process) => {
                flags[*process as usize].store(false, std::sync::atomic::Ordering::SeqCst);
            }
        }
    }
}

/// Beyond the end of the file, where no other lock can be.
const fn byte_of(process: u32) -> u64 {
    CONTROL_BYTES + process as u64
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// Releases that differ must not take each other's processes for dead.
    #[test]
    fn a_process_is_alive_by_the_byte_that_the_format_names() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || Arc::new(File::options().read(true).write(true).open(file.path()).unwrap());
        let (own, other) = (open(), open());
        for process in [0, 3] {
            assert!(!is_alive(&own, process));
            assert!(byte_lock::try_lock(&other, CONTROL_BYTES + u64::from(process)).unwrap());
            assert!(is_alive(&own, process));
            assert!(LivenessLocks::File(own.clone()).try_acquire(process).unwrap().is_none());
        }
        byte_lock::unlock(&other, CONTROL_BYTES);
        let claim = LivenessLocks::File(own).try_acquire(0).unwrap();
        assert!(claim.is_some() && is_alive(&other, 0));
        drop(claim);
        assert!(!is_alive(&other, 0));
    }
}
