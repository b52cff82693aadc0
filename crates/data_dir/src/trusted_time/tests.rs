use super::*;
use proptest::prelude::*;

const NOON: u64 = 1_800_000_000;
const DAY: i64 = 86_400;

/// A machine, and the shared words of a cluster on it.
struct Machine {
    /// The true time.
    truth: u64,
    /// How far the system clock is ahead of the true time.
    off: i64,
    began: u64,
    boot: u32,
    words: [u64; 2],
}

impl Machine {
    /// Up for a day, with the right time.
    fn new() -> Self {
        Self { truth: NOON, off: 0, began: NOON - 86_400, boot: 7, words: [0; 2] }
    }

    fn wall(&self) -> u64 {
        self.truth.saturating_add_signed(self.off)
    }

    fn clocks(&self) -> Clocks {
        Clocks { wall: self.wall(), uptime: self.truth - self.began, boot: self.boot }
    }

    fn update(&mut self, tracker: &mut Tracker) -> Update {
        let update = tracker.update(self.words, self.clocks());
        self.words = update.words;
        update
    }

    /// Updates every second for `secs` seconds; returns the last update.
    fn run(&mut self, tracker: &mut Tracker, secs: u64) -> Update {
        for _ in 1..secs {
            self.update(tracker);
            self.truth += 1;
        }
        let update = self.update(tracker);
        self.truth += 1;
        update
    }

    fn reboot(&mut self, after_secs: u64) {
        self.truth += after_secs;
        (self.began, self.boot) = (self.truth, self.boot + 1);
    }

    /// Counters that expire by then count as expired.
    fn freed_until(&self, update: Update) -> u64 {
        self.wall().min(update.trusted_secs.into())
    }

    /// No live counter counts as expired, except by rounding.
    #[track_caller]
    fn check_safe(&self, update: Update) {
        let until = self.freed_until(update);
        assert!(until <= self.truth + SLACK, "{} s too far", until - self.truth);
    }

    /// All expired counters count as expired, except those that expire at this moment.
    #[track_caller]
    fn check_full(&self, update: Update) {
        let until = self.freed_until(update);
        assert!(until + 1 >= self.wall(), "{} s short", self.wall() - until);
        assert_eq!(update.ahead_secs, 0);
    }
}

#[test]
fn a_clock_that_goes_as_it_should_is_trusted() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    for _ in 0..2 * DAY {
        let update = machine.update(&mut tracker);
        machine.check_safe(update);
        machine.check_full(update);
        machine.truth += 1;
    }
}

#[test]
fn a_step_ahead_and_back_is_never_trusted() {
    for step in [TOLERANCE + 1, 3_600, 2 * DAY, 50 * 365 * DAY] {
        let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
        machine.run(&mut tracker, 1_000);
        machine.off = step;
        for _ in 0..PATIENCE {
            let update = machine.update(&mut tracker);
            machine.check_safe(update);
            assert!(update.ahead_secs.abs_diff(step.unsigned_abs()) <= 1, "{update:?}");
            assert_eq!(update.ahead_secs, ahead_secs(update.words, machine.clocks()));
            machine.truth += 1;
        }
        machine.off = 0;
        let update = machine.run(&mut tracker, 1);
        machine.check_safe(update);
        machine.check_full(update);
    }
}

#[test]
fn a_step_that_stays_is_trusted_after_a_while() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 1_000);
    machine.off = 2 * DAY;
    assert_eq!(machine.run(&mut tracker, PATIENCE).ahead_secs, 2 * DAY.unsigned_abs());
    let update = machine.run(&mut tracker, 1);
    machine.check_full(update);
    // Corrected later: at once the earlier of the two clocks decides; in the end both are right.
    machine.off = 0;
    let update = machine.run(&mut tracker, PATIENCE + 1);
    machine.check_safe(update);
    assert!(update.trusted_secs <= to_u32_secs(machine.truth + SLACK), "{update:?}");
}

#[test]
fn of_several_steps_the_least_is_trusted() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 10);
    for off in [3 * DAY, 3_600, 2 * DAY] {
        machine.off = off;
        machine.run(&mut tracker, PATIENCE / 3);
    }
    machine.run(&mut tracker, 1);
    let update = machine.run(&mut tracker, 1);
    let lead = (2 * DAY - 3_600).unsigned_abs();
    assert!(update.ahead_secs.abs_diff(lead) <= 1, "{update:?}");
    assert!(u64::from(update.trusted_secs).abs_diff(machine.truth + 3_600) <= SLACK);
}

/// A clock that is right for a moment starts its patience anew.
#[test]
fn a_clock_that_steps_to_and_fro_is_not_trusted() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 10);
    for _ in 0..10 {
        machine.off = 2 * DAY;
        let update = machine.run(&mut tracker, PATIENCE - 1);
        machine.check_safe(update);
        machine.off = 0;
        machine.run(&mut tracker, 1);
    }
}

#[test]
fn small_steps_do_not_add_up_faster_than_the_pace() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 10);
    let mut update = machine.update(&mut tracker);
    for _ in 0..100 {
        machine.off += 3;
        update = machine.run(&mut tracker, 10);
    }
    let passed: u64 = 100 * 10;
    assert!(
        u64::from(update.trusted_secs) <= machine.truth + SLACK + passed / PACE + 1,
        "{update:?}"
    );
    assert!(update.ahead_secs > 200, "{update:?}");
}

/// A drift of a thousandth, to either side.
#[test]
fn slow_drift_is_followed() {
    for drift in [1, -1] {
        let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
        for _ in 0..300 {
            machine.off += drift;
            let update = machine.run(&mut tracker, 1_000);
            assert_eq!(update.ahead_secs, 0);
            let until = machine.freed_until(update);
            assert!(until + 3 >= machine.wall() && until <= machine.wall() + SLACK);
        }
    }
}

#[test]
fn a_step_back_lowers_nothing_for_a_while() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    let before = machine.run(&mut tracker, 1_000);
    machine.off = -DAY;
    let update = machine.run(&mut tracker, PATIENCE);
    assert_eq!(
        (update.ahead_secs, update.trusted_secs),
        (0, before.trusted_secs + to_u32_secs(PATIENCE))
    );
    machine.off = 0;
    let update = machine.run(&mut tracker, 1);
    machine.check_safe(update);
    machine.check_full(update);
}

#[test]
fn a_machine_that_begins_in_1970_is_trusted_once_its_clock_is_set() {
    let mut machine = Machine::new();
    let mut tracker = Tracker::default();
    machine.run(&mut tracker, 1_000);
    for words in [[0; 2], machine.words] {
        machine.words = words;
        machine.reboot(600);
        machine.off = -i64::try_from(machine.truth).unwrap();
        let mut tracker = Tracker::default();
        let update = machine.run(&mut tracker, 2 * PATIENCE);
        assert_eq!(machine.words, words, "1970 is no anchor");
        // Counters of 1970 expire by their clock.
        assert!(update.trusted_secs >= to_u32_secs(machine.wall()));
        machine.off = 0;
        let update = machine.run(&mut tracker, 1);
        machine.check_safe(update);
        machine.check_full(update);
    }
    // The time that passed before is known: a wrong clock frees no more than that until the next update.
    machine.reboot(600);
    machine.off = -i64::try_from(machine.truth).unwrap();
    let update = machine.run(&mut Tracker::default(), 10);
    machine.off = 2 * DAY;
    machine.check_safe(update);
}

/// Nothing shows how long the machine was off.
#[test]
fn a_machine_that_was_off_is_trusted_at_once() {
    for off in [10, 30 * DAY.unsigned_abs()] {
        let mut machine = Machine::new();
        machine.run(&mut Tracker::default(), 1_000);
        machine.reboot(off);
        let update = machine.run(&mut Tracker::default(), 1);
        machine.check_safe(update);
        machine.check_full(update);
    }
}

/// The boot clock runs on meanwhile.
#[test]
fn a_suspended_machine_is_trusted_at_once() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 1_000);
    machine.truth += 100_000;
    let update = machine.run(&mut tracker, 1);
    machine.check_safe(update);
    machine.check_full(update);
}

#[test]
fn a_process_that_starts_while_the_clock_is_ahead_knows_it() {
    let mut machine = Machine::new();
    machine.run(&mut Tracker::default(), 1_000);
    machine.off = 2 * DAY;
    for _ in 0..10 {
        let update = machine.run(&mut Tracker::default(), PATIENCE - 1);
        machine.check_safe(update);
    }
}

#[test]
fn what_one_process_has_seen_holds_for_all() {
    let (mut machine, mut old) = (Machine::new(), Tracker::default());
    machine.run(&mut old, 1_000);
    machine.off = 2 * DAY;
    machine.run(&mut old, PATIENCE - 10);
    let mut new = Tracker::default();
    assert_ne!(machine.run(&mut new, 1).ahead_secs, 0);
    for _ in 0..20 {
        machine.update(&mut old);
        machine.run(&mut new, 1);
    }
    let update = machine.run(&mut new, 1);
    machine.check_full(update);
}

#[test]
fn somebody_who_knows_can_say_that_the_clock_is_right() {
    let (mut machine, mut tracker) = (Machine::new(), Tracker::default());
    machine.run(&mut tracker, 1_000);
    machine.off = 2 * DAY;
    assert_ne!(machine.run(&mut tracker, 10).ahead_secs, 0);
    machine.words = trusting(machine.clocks());
    let update = machine.run(&mut tracker, 10);
    machine.check_full(update);
}

proptest! {
    /// With a clock that is wrong in any way, but for less than the patience at a time, no live counter counts as
    /// expired, except by small steps. Several processes come and go.
    #[test]
    fn no_clock_that_is_wrong_for_a_while_erases(
        phases in prop::collection::vec((-3 * DAY..3 * DAY, 1..PATIENCE - 2, 0..4_usize), 1..20),
    ) {
        let mut machine = Machine::new();
        let mut trackers = [Tracker::default(), Tracker::default(), Tracker::default()];
        machine.run(&mut trackers[0], 5);
        let start = machine.truth;
        for (off, secs, ended) in phases {
            for (off, secs) in [(off, secs), (0, 2)] {
                machine.off = off;
                for second in 0..secs {
                    let tracker = &mut trackers[second as usize % 2];
                    let update = machine.update(tracker);
                    let small = (machine.truth - start) / PACE + 1;
                    let until = machine.freed_until(update);
                    prop_assert!(until <= machine.truth + SLACK + small);
                    machine.truth += 1;
                }
            }
            if let Some(tracker) = trackers.get_mut(ended) {
                *tracker = Tracker::default();
            }
        }
    }

    /// An update accepts any words.
    #[test]
    fn any_words_are_borne(words in any::<[u64; 2]>(), wall in 0..1_u64 << 34, uptime in 0..1_u64 << 33) {
        for words in [words, [words[0], 7]] {
            let mut tracker = Tracker::default();
            let update = tracker.update(words, Clocks { wall, uptime, boot: 7 });
            let later = Clocks { wall, uptime: uptime + PATIENCE, boot: 7 };
            ahead_secs(update.words, later);
            tracker.update(update.words, later);
        }
    }
}
