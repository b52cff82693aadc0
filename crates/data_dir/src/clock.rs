//! The system clock of a cluster, checked every second so that a clock which is ahead for a moment erases no
//! counter. Reads the clocks and logs. The rule is in [`crate::trusted_time`].

use crate::trusted_time::{self, Clocks, Tracker};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_store::Cluster;

/// Follows the system clock in one process.
#[derive(Debug, Default)]
pub struct ClockMonitor {
    tracker: Tracker,
    steps: StepDetector,
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
        let time_ms = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000)
        };
        let (wall_ms, uptime_ms) = (time_ms(ClockId::Realtime), time_ms(ClockId::Boottime));
        if let Some(by_ms) = self.steps.look(wall_ms, uptime_ms) {
            log_step(by_ms);
        }
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

/// How often the system clock was set, as this process has seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockSteps {
    pub ahead: u64,
    pub back: u64,
}

/// A machine has one system clock, so this is known to all of a process.
static STEPS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

pub fn clock_steps() -> ClockSteps {
    let [ahead, back] = &STEPS;
    ClockSteps { ahead: ahead.load(Ordering::Relaxed), back: back.load(Ordering::Relaxed) }
}

/// Finds steps of the system clock, which is compared with the time since the boot.
#[derive(Debug, Default)]
struct StepDetector {
    /// The last difference of both, in milliseconds.
    booted_ms: Option<i64>,
}

/// Time services correct smaller differences all the time, by steps or slowly.
const STEP_MIN_MS: u64 = 1_000;

impl StepDetector {
    /// By how many milliseconds the system clock was set since the last look, if it was. Small steps and slow
    /// corrections since then count with it.
    fn look(&mut self, wall_ms: i64, uptime_ms: i64) -> Option<i64> {
        let booted_ms = wall_ms.saturating_sub(uptime_ms);
        let by = booted_ms.saturating_sub(self.booted_ms.replace(booted_ms)?);
        (by.unsigned_abs() >= STEP_MIN_MS).then_some(by)
    }
}

fn log_step(by_ms: i64) {
    let [ahead, back] = &STEPS;
    let (direction, count) = if by_ms > 0 { ("ahead", ahead) } else { ("back", back) };
    count.fetch_add(1, Ordering::Relaxed);
    let by = Duration::from_millis(by_ms.unsigned_abs());
    tracing::warn!(?by, direction, "the system clock was set; limits follow it at once");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_found_once_with_its_size_and_direction() {
        let mut steps = StepDetector::default();
        assert_eq!(steps.look(1_000_000, 5_000), None, "nothing is known before");
        assert_eq!(steps.look(1_001_000, 6_000), None);
        // A suspended machine counts the time in both clocks.
        assert_eq!(steps.look(9_001_000, 8_006_000), None);
        assert_eq!(steps.look(9_002_900, 8_007_000), None, "900 ms are corrected all the time");
        assert_eq!(steps.look(12_603_900, 8_008_000), Some(3_600_000));
        assert_eq!(steps.look(12_604_900, 8_009_000), None);
        assert_eq!(steps.look(12_603_900, 8_009_000), Some(-1_000));
        assert_eq!(steps.look(i64::MAX, i64::MIN), Some(i64::MAX - 4_594_900));
    }
}
