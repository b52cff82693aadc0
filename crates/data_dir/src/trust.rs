//! Trusted time: the time that is known to have passed, whatever the system clock says.
//!
//! The system clock may be ahead for a moment: set by hand, by a faulty time service, or on a machine that
//! starts in 1970. Erasing what expires by such a clock would lose live counters. So places of other keys
//! are freed by trusted time: the system clock at an anchor, plus what the clock of the boot has counted
//! since. Nobody can set that clock, and it goes on while the machine is suspended.
//!
//! At each look, about once a second:
//! - The first look after a boot takes the system clock as the anchor, as nothing tells how long the machine
//!   was off. A clock behind the last time known from before the boot is no anchor; that time stands instead.
//! - Trusted time follows a system clock within [`TOLERANCE`], by at most a second each [`PACE`].
//! - A clock further off, ahead or behind, is not followed until it has been off to that side for
//!   [`PATIENCE`]. Then trusted time moves by the least that it was off.
//! - A counter has expired if both the system clock and trusted time say so.
//!
//! Two words that all processes of a cluster share keep the anchor, so a process that starts while the clock
//! is ahead knows it. How long the clock has been off is known to each process alone. Reads no clock.

/// A system clock this many seconds off is in order: leap seconds, and small steps of a time service.
const TOLERANCE: i64 = 5;
/// How many seconds go by until trusted time moves by another one, so that small steps do not add up.
const PACE: u64 = 100;
/// How many seconds a clock that is off stays untrusted. Time services look every 1024 seconds at the latest,
/// so one has looked since, and found the clock in order.
const PATIENCE: u64 = 1800;
/// Looks are a second apart, and all clocks are read in whole seconds.
const SLACK: u64 = 2;
/// No clock that is earlier is right: the first second of 2026.
const EARLIEST: u64 = 1_767_225_600;

/// The clocks of one look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    /// The system clock, in seconds since 1970.
    pub(super) wall: u64,
    /// Seconds since the machine was started, suspended ones included.
    pub(super) uptime: u64,
    /// Which start of the machine that was; not 0.
    pub(super) boot: u32,
}

/// What all processes know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    /// When the machine was started, by trusted time, in seconds since 1970.
    began: u32,
    /// The uptime at which that was changed last.
    moved: u32,
}

impl Anchor {
    /// The system clock is right.
    fn at(clocks: Clocks) -> Anchor {
        let began = narrow(clocks.wall.saturating_sub(clocks.uptime));
        Anchor { began, moved: narrow(clocks.uptime) }
    }

    fn of(word: u64) -> Anchor {
        Anchor { began: (word >> 32) as u32, moved: word as u32 }
    }

    fn words(self, boot: u32) -> [u64; 2] {
        [u64::from(self.began) << 32 | u64::from(self.moved), boot.into()]
    }

    fn time(self, uptime: u64) -> u64 {
        u64::from(self.began) + uptime
    }

    fn moved_by(self, secs: i64, clocks: Clocks) -> Anchor {
        let began = narrow(u64::from(self.began).saturating_add_signed(secs));
        Anchor { began, moved: narrow(clocks.uptime) }
    }

    /// By how many seconds the system clock is ahead.
    fn lead(self, clocks: Clocks) -> i64 {
        let time = self.time(clocks.uptime);
        clocks.wall.checked_signed_diff(time).unwrap_or(i64::MAX)
    }
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// The shared words from now on.
    pub(super) words: [u64; 2],
    /// Counters that expire by this second have expired, if the system clock agrees.
    pub(super) until: u32,
    /// By how many seconds the system clock is ahead, where it is not trusted for that; 0 where it is.
    pub(super) ahead: u64,
}

/// A system clock that is off.
#[derive(Debug, Clone, Copy)]
struct Off {
    /// The uptime of the first look that found it so.
    since: u64,
    /// The least that it was ahead since; less than 0 if it was behind.
    least: i64,
}

/// One process's watch over the system clock.
#[derive(Debug, Default)]
pub(super) struct Watch {
    off: Option<Off>,
}

impl Watch {
    /// Looks at the clocks, with what all processes know.
    pub(super) fn look(&mut self, words: [u64; 2], clocks: Clocks) -> Look {
        let Some(anchor) = anchor_of_boot(words, clocks.boot) else {
            return self.first_look(words, clocks);
        };
        let anchor = self.moved(anchor, clocks);
        let ahead = Some(anchor.lead(clocks)).filter(|lead| *lead > TOLERANCE).unwrap_or(0);
        Look {
            words: anchor.words(clocks.boot),
            until: narrow(anchor.time(clocks.uptime) + SLACK),
            ahead: ahead.unsigned_abs(),
        }
    }

    fn first_look(&mut self, words: [u64; 2], clocks: Clocks) -> Look {
        self.off = None;
        let [word, boot] = words;
        let before = if boot == 0 { 0 } else { last_known(Anchor::of(word)) + clocks.uptime };
        let known = before.max(EARLIEST);
        if clocks.wall < known {
            return Look { words, until: narrow(known), ahead: 0 };
        }
        let anchor = Anchor::at(clocks);
        Look { words: anchor.words(clocks.boot), until: narrow(clocks.wall + SLACK), ahead: 0 }
    }

    fn moved(&mut self, anchor: Anchor, clocks: Clocks) -> Anchor {
        let lead = anchor.lead(clocks);
        if lead.abs() <= TOLERANCE {
            self.off = None;
            let is_time = clocks.uptime.saturating_sub(anchor.moved.into()) >= PACE;
            // One second is what rounding makes of nothing. Also where there is no other change, so that
            // the next boot knows how far this one came.
            let by = if lead.abs() > 1 { lead.signum() } else { 0 };
            return if is_time { anchor.moved_by(by, clocks) } else { anchor };
        }
        let new = Off { since: clocks.uptime, least: lead };
        let off = match self.off {
            Some(off) if off.least.signum() == lead.signum() => {
                let least = if lead.abs() < off.least.abs() { lead } else { off.least };
                Off { least, ..off }
            }
            _ => new,
        };
        if clocks.wall < EARLIEST || clocks.uptime.saturating_sub(off.since) < PATIENCE {
            self.off = Some(off);
            return anchor;
        }
        // What it was off by besides has not been seen for as long.
        self.off = None;
        anchor.moved_by(off.least, clocks)
    }
}

/// By how many seconds the system clock is ahead of trusted time, where it is not trusted for that.
pub(super) fn ahead(words: [u64; 2], clocks: Clocks) -> u64 {
    let lead = anchor_of_boot(words, clocks.boot).map_or(0, |anchor| anchor.lead(clocks));
    if lead > TOLERANCE { lead.unsigned_abs() } else { 0 }
}

/// The words of somebody who knows that the system clock is right.
pub(super) fn trusting(clocks: Clocks) -> [u64; 2] {
    Anchor::at(clocks).words(clocks.boot)
}

fn anchor_of_boot([word, boot]: [u64; 2], own: u32) -> Option<Anchor> {
    (boot == u64::from(own)).then(|| Anchor::of(word))
}

/// The last moment of another boot that is known of.
fn last_known(anchor: Anchor) -> u64 {
    anchor.time(anchor.moved.into())
}

/// Seconds since 1970 that a counter can expire at: up to 2106.
fn narrow(secs: u64) -> u32 {
    u32::try_from(secs).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
