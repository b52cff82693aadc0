//! The processes that have a cluster open: each holds a lock on a byte of the control file for as long as
//! it lives.
//!
//! The kernel takes such a lock back when its holder dies, however it dies. So whoever can take the
//! lock of another process knows that it is dead, and at the same time is the only one to clean up
//! after it. The lock is on the file that is mapped, not on a name that somebody could remove or
//! reuse. Owns these locks; knows nothing of what there is to clean up.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::memory::control::CONTROL_BYTES;
use crate::writers::byte_lock;

/// Where processes show that they live.
pub(crate) enum LivenessLocks {
    /// By bytes of this control file, opened by this process.
    File(Arc<File>),
    /// In tests: by flags. A test lets go of the flag of a process that it declares dead.
    #[cfg(all(test, not(loom)))]
    Flags(Arc<Vec<std::sync::atomic::AtomicBool>>),
}

/// The right to be, or to clean up after, one process; given back when dropped.
pub(crate) enum LivenessLock {
    Byte(Arc<File>, u32),
    #[cfg(all(test, not(loom)))]
    Flag(Arc<Vec<std::sync::atomic::AtomicBool>>, u32),
}

impl LivenessLocks {
    /// Takes the lock of process number `process`, if no other process has it. Never waits.
    ///
    /// Does not exclude another thread of this process, nor this process from its own number.
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

/// Whether process number `process` lives, for somebody who only looks: takes nothing. If it cannot be
/// told, it does.
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

/// Behind the end of the file, so that a lock is in nobody's way.
const fn byte_of(process: u32) -> u64 {
    CONTROL_BYTES + process as u64
}
