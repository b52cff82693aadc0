//! Random histories of two processes, beside a twin that has all counters in a map.

use super::memory_rows::{Fault, Faults};
use super::*;
use crate::tiered::Missing;
use proptest::prelude::*;
use std::collections::HashMap;

const KEYS: u64 = 12;

#[derive(Debug, Clone, Copy)]
enum Step {
    Hit {
        process: usize,
        number: u64,
    },
    GiveBack {
        process: usize,
        number: u64,
    },
    Move,
    Save,
    Break(Fault, Fault),
    Mend,
    /// The next page of a shard is listed for its filter. The first page begins a new build.
    Build {
        shard: usize,
    },
    /// The process ends without a word, as by a kill, and another one starts.
    Replace {
        process: usize,
    },
    /// The process that moves is another one from now on.
    PassOn,
}

fn steps() -> impl Strategy<Value = Step> {
    let (process, number) = (0..2_usize, 0..KEYS);
    let fault = || prop_oneof![Just(Fault::None), Just(Fault::Refused), Just(Fault::DoneUnheard)];
    prop_oneof![
        12 => (process.clone(), number.clone()).prop_map(|(process, number)| Step::Hit { process, number }),
        2 => (process.clone(), number).prop_map(|(process, number)| Step::GiveBack { process, number }),
        5 => Just(Step::Move),
        3 => Just(Step::Save),
        2 => (fault(), fault()).prop_map(|(reads, writes)| Step::Break(reads, writes)),
        2 => Just(Step::Mend),
        4 => (0..2_usize).prop_map(|shard| Step::Build { shard }),
        1 => process.prop_map(|process| Step::Replace { process }),
        1 => Just(Step::PassOn),
    ]
}

/// Runs a history in which counters that cannot be read are dealt with by this rule.
fn check(missing: Missing, steps: Vec<Step>) -> Result<(), TestCaseError> {
    // Fetches of processes that have ended are waited for.
    let timeout = Duration::from_millis(20);
    let settings = Settings { capacity: 1_000, missing, timeout };
    let world = World::with(2, settings);
    let mut processes = [world.another(), world.another()];
    let (mut twin, mut mover) = (HashMap::<u64, u64>::new(), 0);
    for step in steps {
        match step {
            Step::Hit { process, number } => {
                let (changed, is_known) =
                    change_and_look(&processes[process], number, |count| *count += 1);
                let Ok(count) = changed else {
                    prop_assert_eq!(missing, Missing::Deny);
                    continue;
                };
                let before = if is_known { twin.get(&number).copied().unwrap_or(0) } else { 0 };
                prop_assert_eq!(count, before + 1);
                if is_known || missing != Missing::Allow {
                    twin.insert(number, count);
                }
            }
            Step::GiveBack { process, number } => {
                let (changed, is_known) =
                    change_and_look(&processes[process], number, |count| *count = 0);
                if changed.is_ok() && (is_known || missing != Missing::Allow) {
                    twin.remove(&number);
                }
            }
            Step::Move => _ = processes[mover].mover.pass_and_remove(ALL),
            Step::Save => _ = processes[mover].hot.sync().unwrap(),
            Step::Break(reads, writes) => world.rows.set_faults(Faults { reads, writes }),
            Step::Mend => world.rows.set_faults(Faults::default()),
            Step::Build { shard } => _ = processes[mover].mover.list_a_page(shard),
            Step::Replace { process } => processes[process] = world.another(),
            Step::PassOn => {
                mover = 1 - mover;
                let Process { tiered, mover, .. } = &mut processes[mover];
                *mover = tiered.mover(MovesSettings::default()).unwrap();
            }
        }
    }
    world.rows.set_faults(Faults::default());
    for number in 0..KEYS {
        let expected = twin.get(&number).copied().unwrap_or(0);
        prop_assert_eq!(processes[0].count(number), Ok(expected), "key {}", number);
    }
    Ok(())
}

/// Changes a counter. Returns what came of it, and whether the counter's row was known, if it has one.
fn change_and_look(
    process: &Process,
    number: u64,
    change: impl Fn(&mut u64) + Sync,
) -> (Result<u64, Undecided>, bool) {
    let unknown = || process.tiered.counts().without_state;
    let before = unknown();
    let changed = process.change(number, change);
    (changed, unknown() == before)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn a_counter_is_what_it_would_be_in_a_map(steps in prop::collection::vec(steps(), 1..150)) {
        check(Missing::Deny, steps)?;
    }

    #[test]
    fn what_passes_without_a_row_changes_no_counter(steps in prop::collection::vec(steps(), 1..150)) {
        check(Missing::Allow, steps)?;
    }

    #[test]
    fn a_counter_that_began_anew_is_what_it_would_be_in_a_map(steps in prop::collection::vec(steps(), 1..150)) {
        check(Missing::Fresh, steps)?;
    }
}
