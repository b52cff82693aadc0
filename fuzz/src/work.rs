//! Bounds on the CPU time that an input may take.
//!
//! CPU time of the thread, not wall time: a busy machine does not change it much. A run above its bound is
//! repeated, and counts only if every repetition is above the bound too.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const REPETITIONS: u32 = 5;

/// What an input may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// For an input of any size.
    pub(crate) fixed: Duration,
    /// For each byte.
    pub(crate) nanos_per_byte: u64,
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Bound {
    /// Runs `work`, which reads so many bytes. Returns what it returned, the first time.
    pub(crate) fn check<T>(self, bytes: usize, mut work: impl FnMut() -> T) -> T {
        let allowed = self.fixed + Duration::from_nanos(self.nanos_per_byte) * bytes as u32;
        let mut timed = || {
            let begun = cpu_time();
            let result = work();
            (cpu_time().saturating_sub(begun), result)
        };
        let (mut least, result) = timed();
        for _ in 0..REPETITIONS {
            if least <= allowed {
                break;
            }
            least = least.min(timed().0);
        }
        assert!(
            least <= allowed,
            "{bytes} bytes take {least:?} of CPU, where {allowed:?} are allowed"
        );
        if std::env::var_os("SHOW_WORK").is_some() {
            eprintln!("{bytes} bytes: {least:?} of CPU, {allowed:?} allowed");
        }
        result
    }
}
