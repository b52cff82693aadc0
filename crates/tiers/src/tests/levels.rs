//! Rows that nobody asks for go on to the cold level.

use super::memory_rows::{Fault, Faults};
use super::*;
use crate::levels::Levels;
use crate::rows::Rows;

struct TwoLevels {
    warm: Arc<MemoryRows>,
    cold: Arc<MemoryRows>,
    process: Process,
    _dir: TempDir,
}

impl TwoLevels {
    /// With 60 counters of two hits that are warm.
    fn new() -> TwoLevels {
        let (warm, cold) = (Arc::new(MemoryRows::new(1)), Arc::new(MemoryRows::new(2)));
        let levels: Arc<dyn Rows> = Arc::new(Levels::new(warm.clone(), cold.clone()));
        let dir = directory();
        let settings = Settings { capacity: 10_000, ..Settings::default() };
        // Whatever is warm is old enough at once.
        let moves = MovesSettings { warm: Duration::ZERO, ..MovesSettings::default() };
        let mut process = Process::over(dir.path(), levels, settings, moves);
        process.mover.build_all();
        (0..60).for_each(|number| _ = (process.hit(number), process.hit(number)));
        for _ in 0..5 {
            process.mover.move_idle(ALL).unwrap();
        }
        assert_eq!((warm.len(), cold.len()), (60, 0));
        TwoLevels { warm, cold, process, _dir: dir }
    }

    fn age(&mut self) {
        let _ = self.process.mover.age();
    }
}

#[test]
fn a_row_goes_on_and_comes_back_from_the_cold_level() {
    let mut levels = TwoLevels::new();
    assert_eq!(levels.process.hit(0), Ok(3));
    levels.age();
    // The row of the counter that came back is stale, and goes on as the others do.
    assert_eq!((levels.warm.len(), levels.cold.len()), (0, 60));
    (1..60).for_each(|number| assert_eq!(levels.process.hit(number), Ok(3)));
    assert_eq!(levels.process.hit(0), Ok(4));
    assert_eq!(levels.process.tiered.counts().moved_on, 60);
}

#[test]
fn a_row_that_is_on_both_levels_counts_once() {
    let mut levels = TwoLevels::new();
    levels.warm.set_faults(Faults { writes: Fault::Refused, ..Faults::default() });
    levels.age();
    assert!(levels.warm.len() == 60 && levels.cold.len() > 0);
    levels.warm.set_faults(Faults::default());
    (0..60).for_each(|number| assert_eq!(levels.process.hit(number), Ok(3)));
    // Given back whole, they are new, whatever is on which level.
    (0..60).for_each(|number| assert_eq!(levels.process.change(number, |count| *count = 0), Ok(0)));
    (0..60).for_each(|number| assert_eq!(levels.process.hit(number), Ok(1)));
    for _ in 0..5 {
        levels.process.mover.move_idle(ALL).unwrap();
    }
    levels.age();
    (0..60).for_each(|number| assert_eq!(levels.process.hit(number), Ok(2)));
}

#[test]
fn a_row_stays_warm_while_the_cold_level_is_away() {
    let mut levels = TwoLevels::new();
    for writes in [Fault::Refused, Fault::DoneUnheard] {
        levels.cold.set_faults(Faults { writes, ..Faults::default() });
        levels.age();
        assert_eq!(levels.warm.len(), 60);
    }
    (0..60).for_each(|number| assert_eq!(levels.process.hit(number), Ok(3)));
}

/// Symptom: a counter that moved to two shards within a second could come back from the older row. Cause: rows had the same
/// second as their version, and neither was newer.
#[test]
fn the_row_of_a_later_move_counts_also_within_one_second() {
    let mut levels = TwoLevels::new();
    levels.warm.set_faults(Faults { writes: Fault::Refused, ..Faults::default() });
    levels.age();
    levels.warm.set_faults(Faults::default());
    // All that is on both levels comes back, and moves again at once.
    let both: Vec<u64> = (0..60).collect();
    both.iter().for_each(|number| assert_eq!(levels.process.hit(*number), Ok(3)));
    for _ in 0..5 {
        levels.process.mover.move_idle(ALL).unwrap();
    }
    both.iter().for_each(|number| assert_eq!(levels.process.hit(*number), Ok(4)));
}
