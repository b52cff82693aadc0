//! Trusted time: the time that is known to have passed, whatever the system clock shows.
//!
//! The system clock may be ahead for a moment: set by hand, by a faulty time service, or on a machine that
//! starts in 1970. Erasing what expires by such a clock would lose live counters. So nodes are reused for other
//! keys by trusted time: the system clock at an anchor, plus the time since then on the boot clock. Nobody can
//! set the boot clock, and it runs while the machine is suspended.
//!
//! At each update, about once a second:
//! - The first update after a boot takes the system clock as the anchor, since the time that the machine was
//!   off is unknown. A clock behind the last time known from before the boot is no anchor; that time is kept instead.
//! - Trusted time follows a system clock within [`TOLERANCE`], by at most a second each [`PACE`].
//! - A clock further off, ahead or behind, is not followed until it has been off to that side for
//!   [`PATIENCE`]. Then trusted time moves by the smallest deviation in that time.
//! - A counter has expired only when both the system clock and trusted time say so.
//!
//! All processes of a cluster share the anchor in two words, so a process that starts while the clock is ahead
//! knows it. The time for which the clock has been off is kept by each process. Reads no clock.

/// A system clock is right within this many seconds: leap seconds, and small steps of a time service.
const TOLERANCE: i64 = 5;
/// Trusted time moves by at most a second in this many, so that small steps do not add up.
const PACE: u64 = 100;
/// A clock that is off stays untrusted for this many seconds. Time services check at least every 1024 seconds,
/// so one has found the clock right since.
const PATIENCE: u64 = 1800;
/// Updates are a second apart, and all clocks are read in whole seconds.
const SLACK: u64 = 2;
/// An earlier clock is wrong: the first second of 2026.
const EARLIEST: u64 = 1_767_225_600;

/// One reading of the clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    /// The system clock, in seconds since 1970.
    pub(super) wall: u64,
    /// Seconds since the machine booted, including suspended ones.
    pub(super) uptime: u64,
    /// Identifies the boot; not 0.
    pub(super) boot: u32,
}

/// The shared state of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    /// When the machine booted, by trusted time, in seconds since 1970.
    booted: u32,
    /// The uptime of the last change of `booted`.
    moved: u32,
}

impl Anchor {
    /// Takes the system clock as right.
    fn at(clocks: Clocks) -> Anchor {
        let booted = to_u32_secs(clocks.wall.saturating_sub(clocks.uptime));
        Anchor { booted, moved: to_u32_secs(clocks.uptime) }
    }

    fn of(word: u64) -> Anchor {
        Anchor { booted: (word >> 32) as u32, moved: word as u32 }
    }

    fn words(self, boot: u32) -> [u64; 2] {
        [u64::from(self.booted) << 32 | u64::from(self.moved), boot.into()]
    }

    fn time(self, uptime: u64) -> u64 {
        u64::from(self.booted) + uptime
    }

    fn moved_by(self, secs: i64, clocks: Clocks) -> Anchor {
        let booted = to_u32_secs(u64::from(self.booted).saturating_add_signed(secs));
        Anchor { booted, moved: to_u32_secs(clocks.uptime) }
    }

    /// Seconds by which the system clock is ahead; negative if it is behind.
    fn lead(self, clocks: Clocks) -> i64 {
        let time = self.time(clocks.uptime);
        clocks.wall.checked_signed_diff(time).unwrap_or(i64::MAX)
    }

    /// The untrusted lead of the system clock in seconds; 0 while it is trusted.
    fn ahead_secs(self, clocks: Clocks) -> u64 {
        let lead = self.lead(clocks);
        if lead > TOLERANCE { lead.unsigned_abs() } else { 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Update {
    pub(super) words: [u64; 2],
    /// Counters that expire by this second have expired, if the system clock agrees.
    pub(super) trusted_secs: u32,
    /// The untrusted lead of the system clock; 0 while it is trusted.
    pub(super) ahead_secs: u64,
}

/// A system clock outside of the tolerance.
#[derive(Debug, Clone, Copy)]
struct Deviation {
    /// The uptime of the update that found it.
    since: u64,
    /// The smallest lead since; negative if the clock is behind.
    smallest: i64,
}

/// Follows the system clock in one process.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    deviation: Option<Deviation>,
}

impl Tracker {
    /// Derives trusted time from the shared words and the clocks.
    pub(super) fn update(&mut self, words: [u64; 2], clocks: Clocks) -> Update {
        let Some(anchor) = anchor_of_boot(words, clocks.boot) else {
            return self.first_of_boot(words, clocks);
        };
        let anchor = self.moved(anchor, clocks);
        Update {
            words: anchor.words(clocks.boot),
            trusted_secs: to_u32_secs(anchor.time(clocks.uptime) + SLACK),
            ahead_secs: anchor.ahead_secs(clocks),
        }
    }

    fn first_of_boot(&mut self, words: [u64; 2], clocks: Clocks) -> Update {
        self.deviation = None;
        let [word, boot] = words;
        let before = if boot == 0 { 0 } else { last_known(Anchor::of(word)) + clocks.uptime };
        let known = before.max(EARLIEST);
        if clocks.wall < known {
            return Update { words, trusted_secs: to_u32_secs(known), ahead_secs: 0 };
        }
        let anchor = Anchor::at(clocks);
        let trusted_secs = to_u32_secs(clocks.wall + SLACK);
        Update { words: anchor.words(clocks.boot), trusted_secs, ahead_secs: 0 }
    }

    fn moved(&mut self, anchor: Anchor, clocks: Clocks) -> Anchor {
        let lead = anchor.lead(clocks);
        if lead.abs() <= TOLERANCE {
            self.deviation = None;
            let is_time = clocks.uptime.saturating_sub(anchor.moved.into()) >= PACE;
            // Rounding alone makes one second. `moved` is renewed even without a change, so that the next boot
            // knows the last time of this one.
            let by = if lead.abs() > 1 { lead.signum() } else { 0 };
            return if is_time { anchor.moved_by(by, clocks) } else { anchor };
        }
        let new = Deviation { since: clocks.uptime, smallest: lead };
        let deviation = match self.deviation {
            Some(known) if known.smallest.signum() == lead.signum() => {
                let smallest =
                    if lead.abs() < known.smallest.abs() { lead } else { known.smallest };
                Deviation { smallest, ..known }
            }
            _ => new,
        };
        if clocks.wall < EARLIEST || clocks.uptime.saturating_sub(deviation.since) < PATIENCE {
            self.deviation = Some(deviation);
            return anchor;
        }
        // A larger deviation has not lasted that long.
        self.deviation = None;
        anchor.moved_by(deviation.smallest, clocks)
    }
}

/// The untrusted lead of the system clock in seconds; 0 while it is trusted.
pub(super) fn ahead_secs(words: [u64; 2], clocks: Clocks) -> u64 {
    anchor_of_boot(words, clocks.boot).map_or(0, |anchor| anchor.ahead_secs(clocks))
}

/// The shared words that make the system clock the trusted time.
pub(super) fn trusting(clocks: Clocks) -> [u64; 2] {
    Anchor::at(clocks).words(clocks.boot)
}

fn anchor_of_boot([word, boot]: [u64; 2], own: u32) -> Option<Anchor> {
    (boot == u64::from(own)).then(|| Anchor::of(word))
}

/// The last known moment of another boot.
fn last_known(anchor: Anchor) -> u64 {
    anchor.time(anchor.moved.into())
}

/// Seconds since 1970 as the store keeps them: up to 2106.
fn to_u32_secs(secs: u64) -> u32 {
    u32::try_from(secs).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
