//! Many threads of two processes, while counters move all the time: each hit has a number of its own.

use super::*;
use crate::tiered::FETCHED_ELSEWHERE;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn no_hit_is_lost_or_counted_twice_while_counters_move() {
    const THREADS: u64 = 4;
    const HITS: u64 = 30_000;
    /// On a busy machine the threads may have made their hits before anything moves. Then they go on.
    const HITS_MAX: u64 = 100 * HITS;
    const KEYS: u64 = 500;
    let mut world = World::new(2);
    let other = world.another();
    let (counts, is_over) = (Mutex::new(BTreeMap::<u64, Vec<u64>>::new()), AtomicBool::new(false));
    let World { process, .. } = &mut world;
    let Process { hot, tiered, mover } = process;
    let (one, other) = (&*tiered, &other.tiered);
    let have_moved = || {
        let [one, other] = [one, other].map(Tiered::counts);
        one.moved > 50 && one.fetched + other.fetched > 25
    };
    let hits: u64 = std::thread::scope(|scope| {
        let (counts, is_over, have_moved) = (&counts, &is_over, &have_moved);
        let hitting: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for hit in 0..HITS_MAX {
                        if hit >= HITS && have_moved() {
                            return hit;
                        }
                        // A few keys at a time, and others later.
                        let number = (hit / 100 * 37 + hit % (5 + thread)) % KEYS;
                        let tiered = if thread % 2 == 0 { one } else { other };
                        let count = loop {
                            match hit_in(tiered, number) {
                                // Another thread had no processor while it held the lock. Nothing was counted.
                                Err(Undecided::Store(error)) if error.is_contention() => {}
                                // This one had none, and each time that it was fetched the counter moved back. Nor here.
                                Err(Undecided::Unreachable { cause })
                                    if cause == FETCHED_ELSEWHERE => {}
                                hit => break hit.unwrap(),
                            }
                        };
                        counts.lock().unwrap().entry(number).or_default().push(count);
                    }
                    HITS_MAX
                })
            })
            .collect();
        let moving = scope.spawn(|| {
            let mut passes = 0;
            while !is_over.load(Ordering::Relaxed) {
                // A counter that was just fetched is left alone for a pass.
                mover.whole_pass_at(Pressure { idle_min: 2, ..ALL }).unwrap();
                passes += 1;
                if passes % 20 == 0 {
                    hot.sync().unwrap();
                }
            }
        });
        let hit: Vec<_> = hitting.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        moving.join().unwrap();
        hit.into_iter().map(|thread| thread.unwrap()).sum()
    });
    let counts = counts.into_inner().unwrap();
    assert_eq!(counts.values().map(Vec::len).sum::<usize>() as u64, hits);
    for (number, mut counts) in counts {
        counts.sort_unstable();
        let expected: Vec<u64> = (1..=counts.len() as u64).collect();
        assert_eq!(counts, expected, "key {number}");
    }
    assert!(have_moved(), "{:?}, {:?}", one.counts(), other.counts());
}

fn hit_in(tiered: &Tiered, number: u64) -> Result<u64, Undecided> {
    let (keys, now, mut count) = ([key(number)], clock::now(), 0);
    let mut update = |entries: &mut Entries<'_>| {
        let entry = entries.get(0);
        entry.state[0] += 1;
        *entry.expires_at = now.as_nanos() + DAY;
        count = entry.state[0];
    };
    wait(tiered.update(&keys, now, &mut update))?;
    Ok(count)
}
