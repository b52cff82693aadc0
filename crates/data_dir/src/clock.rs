//! The system clock of a cluster, checked every second so that a clock which is ahead for a moment erases no
//! counter. Reads the clocks and logs. The rule is in [`crate::trusted_time`].

use crate::trusted_time::{self, Clocks, Tracker};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_store::Cluster;

/// Follows the system clock in one process.
#[derive(Debug, Default)]
pub struct ClockMonitor {
    tracker: Tracker,
    /// The untrusted lead of the system clock at the last check.
    ahead_secs: u64,
}

impl ClockMonitor {
    /// Reads the clocks, and sets the trusted time of the store. Returns by how many seconds the system clock is
    /// ahead of it; 0 while the clock is trusted.
    pub fn check(&mut self, store: &Cluster) -> u64 {
        let words = store.clock_words();
        let update = self.tracker.update(words, now());
        if update.words != words {
            // If another process was faster, the next check uses its words.
            store.replace_clock_words(words, update.words);
        }
        store.trust_clock_until(update.trusted_secs);
        self.ahead_secs = update.ahead_secs;
        update.ahead_secs
    }

    /// As [`ClockMonitor::check`], and logs a change.
    pub(crate) fn check_and_log(&mut self, store: &Cluster) {
        let before = self.ahead_secs;
        let ahead_secs = self.check(store);
        match (before, ahead_secs) {
            (0, 1..) => tracing::warn!(
                ahead_secs,
                "the system clock is ahead of the time that has passed; counters that expire by it alone are \
                 kept until it is trusted"
            ),
            (1.., 0) => tracing::info!("the system clock is trusted again"),
            _ => {}
        }
    }
}

/// By how many seconds the system clock is ahead of trusted time; 0 while it is trusted.
pub fn clock_ahead_secs(store: &Cluster) -> u64 {
    trusted_time::ahead_secs(store.clock_words(), now())
}

/// Makes all processes trust the system clock as it is now.
pub fn trust_clock(store: &Cluster) {
    while !store.replace_clock_words(store.clock_words(), trusted_time::trusting(now())) {}
}

fn now() -> Clocks {
    let uptime = clock_gettime(ClockId::Boottime).tv_sec;
    Clocks {
        wall: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        uptime: u64::try_from(uptime).unwrap_or(0),
        boot: boot(),
    }
}

/// A number that identifies this boot of the machine; not 0.
fn boot() -> u32 {
    static BOOT: OnceLock<u32> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Its digits are random.
        id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0) | 1
    })
}
