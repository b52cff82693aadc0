//! The system clock under a cluster: looked at each second, so that one which is ahead for a moment erases
//! no counter. Owns the reading of the clocks, and what is said of them. The rule is in [`super::trust`].

use super::trust::{self, Clocks, Watch};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_store::Cluster;

/// This process's watch over the system clock.
#[derive(Debug, Default)]
pub struct ClockWatch {
    watch: Watch,
    /// By how many seconds it was ahead at the last look, and not trusted for that.
    ahead: u64,
}

impl ClockWatch {
    /// Looks at the clocks, and tells the store how far they are trusted. By how many seconds the system clock
    /// is ahead, if it is not trusted for that; else 0.
    pub fn look(&mut self, store: &Cluster) -> u64 {
        let words = store.clock_words();
        let look = self.watch.look(words, now());
        if look.words != words {
            // Where another process was faster, the next look goes by what that one knows.
            store.replace_clock_words(words, look.words);
        }
        store.trust_clock_until(look.until);
        self.ahead = look.ahead;
        look.ahead
    }

    /// As [`ClockWatch::look`], and logs what has changed.
    pub(super) fn look_and_tell(&mut self, store: &Cluster) {
        let before = self.ahead;
        let ahead_secs = self.look(store);
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

/// By how many seconds the system clock is ahead of the time that is known to have passed, if it is not
/// trusted for that; else 0.
pub fn ahead(store: &Cluster) -> u64 {
    trust::ahead(store.clock_words(), now())
}

/// Has all processes trust the system clock as it is.
pub fn trust(store: &Cluster) {
    while !store.replace_clock_words(store.clock_words(), trust::trusting(now())) {}
}

fn now() -> Clocks {
    let uptime = clock_gettime(ClockId::Boottime).tv_sec;
    Clocks {
        wall: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        uptime: u64::try_from(uptime).unwrap_or(0),
        boot: boot(),
    }
}

/// A number for this start of the machine, which is not 0.
fn boot() -> u32 {
    static BOOT: OnceLock<u32> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Random digits.
        id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0) | 1
    })
}
