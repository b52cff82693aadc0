//! Limits on the CPU time of an input.
//!
//! Counts CPU time of the thread, as wall time depends on the load of the machine. A run above its limit is
//! repeated, and counts only if every repetition is above the limit too.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const REPETITIONS: u32 = 5;

/// The limit of CPU time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// Per input.
    pub(crate) fixed: Duration,
    /// Per byte.
    pub(crate) nanos_per_byte: u64,
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Bound {
    /// Runs `work`, which reads this many bytes. Returns its first result.
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
