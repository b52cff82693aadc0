//! Proof that the states of the server come from running requests one after the other.
//!
//! The state of a key is a count, and a chain of the numbers of the requests that have changed it. So the last state
//! tells all requests that it comes from, in their order.

use super::world::World;
use super::*;
use crate::image;
use std::collections::{HashMap as StdHashMap, HashSet};
use tidegate_store::EntryMut;

type State = [u64; 2];

/// One key in one run of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    key: Hashed,
    before: State,
    after: State,
}

impl Step {
    /// Runs request number `request` on an entry.
    pub(super) fn make(key: Hashed, entry: &mut EntryMut<'_>, request: u64, looks: bool) -> Step {
        let before = [entry.state[0], entry.state[1]];
        let mut after = before;
        if !looks {
            let link = (before[1] ^ (request + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            after = [before[0] + 1, link ^ (link >> 29)];
            (entry.state[0], entry.state[1]) = (after[0], after[1]);
            *entry.expires_at = 2_000_000_000_000;
        }
        Step { key, before, after }
    }
}

pub(super) struct History<'w> {
    world: &'w World,
    /// For each key all its states, the first one first, and the request that has made each.
    states: StdHashMap<Hashed, Vec<(State, Option<usize>)>>,
}

impl<'w> History<'w> {
    pub(super) fn of(world: &'w World) -> Self {
        let mut made_by = StdHashMap::new();
        for (index, request) in world.requests.iter().enumerate().filter(|(_, one)| !one.looks) {
            for step in request.runs.iter().flatten() {
                made_by.insert((step.key, step.after), (step.before, index));
            }
        }
        let mut states = StdHashMap::new();
        for (key, image) in &world.server.values {
            let entry = image::decode(image, key.class);
            let mut state = entry.map_or([0; 2], |entry| [entry.state[0], entry.state[1]]);
            let mut path = Vec::new();
            while state != [0; 2] {
                let (before, request) = made_by[&(*key, state)];
                path.push((state, Some(request)));
                state = before;
            }
            path.push(([0; 2], None));
            path.reverse();
            states.insert(*key, path);
        }
        History { world, states }
    }

    fn path(&self, key: &Hashed) -> &[(State, Option<usize>)] {
        self.states.get(key).map_or(&[([0; 2], None)], |path| path)
    }

    pub(super) fn check(&self) {
        for (index, request) in self.world.requests.iter().enumerate() {
            let times = |key| {
                let made = |(_, by): &&(State, Option<usize>)| *by == Some(index);
                self.path(key).iter().filter(made).count()
            };
            let times: HashSet<usize> = request.keys.iter().map(times).collect();
            let is_acknowledged = request.result == Some(Ok(()));
            let expected = usize::from(is_acknowledged && !request.looks);
            assert!(times.iter().all(|times| *times <= 1), "request {index} counts twice");
            assert!(times.len() == 1, "request {index} counts for some of its keys");
            if is_acknowledged {
                assert!(times.contains(&expected), "request {index} does not count");
                let last = request.runs.last().expect("it has run");
                for step in last {
                    let states = self.path(&step.key);
                    assert!(
                        states.iter().any(|(state, _)| *state == step.after),
                        "request {index} was answered on a state that never was"
                    );
                }
            }
        }
        self.check_order();
    }

    /// The orders of the requests of all keys agree: there is one order that has all of them.
    fn check_order(&self) {
        let mut before: StdHashMap<usize, HashSet<usize>> = StdHashMap::new();
        for path in self.states.values() {
            for pair in path.windows(2) {
                if let [(_, Some(first)), (_, Some(second))] = pair {
                    before.entry(*second).or_default().insert(*first);
                }
            }
        }
        let (mut done, all) = (HashSet::new(), self.world.requests.len());
        loop {
            let is_next = |index: &usize| {
                let earlier = before.get(index);
                !done.contains(index) && earlier.is_none_or(|earlier| earlier.is_subset(&done))
            };
            let next: Vec<usize> = (0..all).filter(is_next).collect();
            if next.is_empty() {
                break;
            }
            done.extend(next);
        }
        assert_eq!(done.len(), all, "no serial order has these states");
    }
}
