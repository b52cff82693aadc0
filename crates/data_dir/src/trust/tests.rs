use super::*;
use proptest::prelude::*;

const NOON: u64 = 1_800_000_000;
const DAY: i64 = 86_400;

/// A machine, and the words of a cluster on it.
struct Machine {
    /// What time it is in truth.
    truth: u64,
    /// How far the system clock is ahead of it.
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

    fn look(&mut self, watch: &mut Watch) -> Look {
        let look = watch.look(self.words, self.clocks());
        self.words = look.words;
        look
    }

    /// Looks each second for so long. The last look.
    fn run(&mut self, watch: &mut Watch, secs: u64) -> Look {
        for _ in 1..secs {
            self.look(watch);
            self.truth += 1;
        }
        let look = self.look(watch);
        self.truth += 1;
        look
    }

    fn reboot(&mut self, after_secs: u64) {
        self.truth += after_secs;
        (self.began, self.boot) = (self.truth, self.boot + 1);
    }

    /// What expires by then is taken for expired.
    fn freed_until(&self, look: Look) -> u64 {
        self.wall().min(look.until.into())
    }

    /// Nothing that lives is taken for expired, but for rounding.
    #[track_caller]
    fn check_safe(&self, look: Look) {
        let until = self.freed_until(look);
        assert!(until <= self.truth + SLACK, "{} s too far", until - self.truth);
    }

    /// All that has expired is taken for it, save what expires at this very moment.
    #[track_caller]
    fn check_full(&self, look: Look) {
        let until = self.freed_until(look);
        assert!(until + 1 >= self.wall(), "{} s short", self.wall() - until);
        assert_eq!(look.ahead, 0);
    }
}

#[test]
fn a_clock_that_goes_as_it_should_is_trusted() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    for _ in 0..2 * DAY {
        let look = machine.look(&mut watch);
        machine.check_safe(look);
        machine.check_full(look);
        machine.truth += 1;
    }
}

#[test]
fn a_step_ahead_and_back_is_never_trusted() {
    for step in [TOLERANCE + 1, 3_600, 2 * DAY, 50 * 365 * DAY] {
        let (mut machine, mut watch) = (Machine::new(), Watch::default());
        machine.run(&mut watch, 1_000);
        machine.off = step;
        for _ in 0..PATIENCE {
            let look = machine.look(&mut watch);
            machine.check_safe(look);
            assert!(look.ahead.abs_diff(step.unsigned_abs()) <= 1, "{look:?}");
            assert_eq!(look.ahead, ahead(look.words, machine.clocks()));
            machine.truth += 1;
        }
        machine.off = 0;
        let look = machine.run(&mut watch, 1);
        machine.check_safe(look);
        machine.check_full(look);
    }
}

#[test]
fn a_step_that_stays_is_trusted_after_a_while() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 1_000);
    machine.off = 2 * DAY;
    assert_eq!(machine.run(&mut watch, PATIENCE).ahead, 2 * DAY.unsigned_abs());
    let look = machine.run(&mut watch, 1);
    machine.check_full(look);
    // Undone after all: as soon as it is, the earlier of the two decides; in the end both are right.
    machine.off = 0;
    let look = machine.run(&mut watch, PATIENCE + 1);
    machine.check_safe(look);
    assert!(look.until <= narrow(machine.truth + SLACK), "{look:?}");
}

#[test]
fn of_several_steps_the_least_is_trusted() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 10);
    for off in [3 * DAY, 3_600, 2 * DAY] {
        machine.off = off;
        machine.run(&mut watch, PATIENCE / 3);
    }
    machine.run(&mut watch, 1);
    let look = machine.run(&mut watch, 1);
    let lead = (2 * DAY - 3_600).unsigned_abs();
    assert!(look.ahead.abs_diff(lead) <= 1, "{look:?}");
    assert!(u64::from(look.until).abs_diff(machine.truth + 3_600) <= SLACK);
}

/// A clock that is right for a moment begins its time of patience anew.
#[test]
fn a_clock_that_steps_to_and_fro_is_not_trusted() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 10);
    for _ in 0..10 {
        machine.off = 2 * DAY;
        let look = machine.run(&mut watch, PATIENCE - 1);
        machine.check_safe(look);
        machine.off = 0;
        machine.run(&mut watch, 1);
    }
}

#[test]
fn small_steps_do_not_add_up_faster_than_the_pace() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 10);
    let mut look = machine.look(&mut watch);
    for _ in 0..100 {
        machine.off += 3;
        look = machine.run(&mut watch, 10);
    }
    let passed: u64 = 100 * 10;
    assert!(u64::from(look.until) <= machine.truth + SLACK + passed / PACE + 1, "{look:?}");
    assert!(look.ahead > 200, "{look:?}");
}

/// A thousandth of time, to either side.
#[test]
fn slow_drift_is_followed() {
    for drift in [1, -1] {
        let (mut machine, mut watch) = (Machine::new(), Watch::default());
        for _ in 0..300 {
            machine.off += drift;
            let look = machine.run(&mut watch, 1_000);
            assert_eq!(look.ahead, 0);
            let until = machine.freed_until(look);
            assert!(until + 3 >= machine.wall() && until <= machine.wall() + SLACK);
        }
    }
}

#[test]
fn a_step_back_lowers_nothing_for_a_while() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    let before = machine.run(&mut watch, 1_000);
    machine.off = -DAY;
    let look = machine.run(&mut watch, PATIENCE);
    assert_eq!((look.ahead, look.until), (0, before.until + narrow(PATIENCE)));
    machine.off = 0;
    let look = machine.run(&mut watch, 1);
    machine.check_safe(look);
    machine.check_full(look);
}

#[test]
fn a_machine_that_begins_in_1970_is_trusted_once_its_clock_is_set() {
    let mut machine = Machine::new();
    let mut watch = Watch::default();
    machine.run(&mut watch, 1_000);
    for words in [[0; 2], machine.words] {
        machine.words = words;
        machine.reboot(600);
        machine.off = -i64::try_from(machine.truth).unwrap();
        let mut watch = Watch::default();
        let look = machine.run(&mut watch, 2 * PATIENCE);
        assert_eq!(machine.words, words, "1970 is no anchor");
        // Counters of 1970 expire by their clock.
        assert!(look.until >= narrow(machine.wall()));
        machine.off = 0;
        let look = machine.run(&mut watch, 1);
        machine.check_safe(look);
        machine.check_full(look);
    }
    // What passed before is known: a clock that is set wrong frees no more than that, until it is looked at.
    machine.reboot(600);
    machine.off = -i64::try_from(machine.truth).unwrap();
    let look = machine.run(&mut Watch::default(), 10);
    machine.off = 2 * DAY;
    machine.check_safe(look);
}

/// Nothing tells how long it was off.
#[test]
fn a_machine_that_was_off_is_trusted_at_once() {
    for off in [10, 30 * DAY.unsigned_abs()] {
        let mut machine = Machine::new();
        machine.run(&mut Watch::default(), 1_000);
        machine.reboot(off);
        let look = machine.run(&mut Watch::default(), 1);
        machine.check_safe(look);
        machine.check_full(look);
    }
}

/// The clock of the boot goes on meanwhile.
#[test]
fn a_suspended_machine_is_trusted_at_once() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 1_000);
    machine.truth += 100_000;
    let look = machine.run(&mut watch, 1);
    machine.check_safe(look);
    machine.check_full(look);
}

#[test]
fn a_process_that_starts_while_the_clock_is_ahead_knows_it() {
    let mut machine = Machine::new();
    machine.run(&mut Watch::default(), 1_000);
    machine.off = 2 * DAY;
    for _ in 0..10 {
        let look = machine.run(&mut Watch::default(), PATIENCE - 1);
        machine.check_safe(look);
    }
}

#[test]
fn what_one_process_has_seen_holds_for_all() {
    let (mut machine, mut old) = (Machine::new(), Watch::default());
    machine.run(&mut old, 1_000);
    machine.off = 2 * DAY;
    machine.run(&mut old, PATIENCE - 10);
    let mut new = Watch::default();
    assert_ne!(machine.run(&mut new, 1).ahead, 0);
    for _ in 0..20 {
        machine.look(&mut old);
        machine.run(&mut new, 1);
    }
    let look = machine.run(&mut new, 1);
    machine.check_full(look);
}

#[test]
fn somebody_who_knows_can_say_that_the_clock_is_right() {
    let (mut machine, mut watch) = (Machine::new(), Watch::default());
    machine.run(&mut watch, 1_000);
    machine.off = 2 * DAY;
    assert_ne!(machine.run(&mut watch, 10).ahead, 0);
    machine.words = trusting(machine.clocks());
    let look = machine.run(&mut watch, 10);
    machine.check_full(look);
}

proptest! {
    /// A machine whose clock is wrong for less than the patience at a time, however: nothing that lives is
    /// taken for expired, but for what small steps make of it. With several processes, that come and go.
    #[test]
    fn no_clock_that_is_wrong_for_a_while_erases(
        phases in prop::collection::vec((-3 * DAY..3 * DAY, 1..PATIENCE - 2, 0..4_usize), 1..20),
    ) {
        let mut machine = Machine::new();
        let mut watches = [Watch::default(), Watch::default(), Watch::default()];
        machine.run(&mut watches[0], 5);
        let start = machine.truth;
        for (off, secs, ended) in phases {
            for (off, secs) in [(off, secs), (0, 2)] {
                machine.off = off;
                for second in 0..secs {
                    let watch = &mut watches[second as usize % 2];
                    let look = machine.look(watch);
                    let small = (machine.truth - start) / PACE + 1;
                    let until = machine.freed_until(look);
                    prop_assert!(until <= machine.truth + SLACK + small);
                    machine.truth += 1;
                }
            }
            if let Some(watch) = watches.get_mut(ended) {
                *watch = Watch::default();
            }
        }
    }

    /// Whatever words are there, looking does no harm.
    #[test]
    fn any_words_are_borne(words in any::<[u64; 2]>(), wall in 0..1_u64 << 34, uptime in 0..1_u64 << 33) {
        for words in [words, [words[0], 7]] {
            let mut watch = Watch::default();
            let look = watch.look(words, Clocks { wall, uptime, boot: 7 });
            let later = Clocks { wall, uptime: uptime + PATIENCE, boot: 7 };
            ahead(look.words, later);
            watch.look(look.words, later);
        }
    }
}
