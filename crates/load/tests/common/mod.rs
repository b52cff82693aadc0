//! What a scripted server has done.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longer than a server takes to read what was sent to it.
const LONG: Duration = Duration::from_secs(30);

/// Requests and reactions in order of arrival.
#[derive(Debug)]
pub(crate) struct Done<Asked, Act> {
    all: Mutex<Vec<(Asked, Act)>>,
    added: Condvar,
}

impl<Asked, Act> Default for Done<Asked, Act> {
    fn default() -> Self {
        Done { all: Mutex::default(), added: Condvar::new() }
    }
}

impl<Asked, Act: Copy + Ord> Done<Asked, Act> {
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<(Asked, Act)>> {
        self.all.lock().unwrap()
    }

    /// Decides a request by its number, and records it.
    pub(crate) fn add(&self, asked: Asked, decide: impl FnOnce(usize, &Asked) -> Act) -> Act {
        let mut all = self.all();
        let act = decide(all.len(), &asked);
        all.push((asked, act));
        self.added.notify_all();
        act
    }

    /// Counts of each reaction.
    pub(crate) fn acts(&self) -> BTreeMap<Act, u64> {
        self.acts_after(0)
    }

    /// The same, once so many requests have been read. On a busy machine they may be read after the load has ended.
    pub(crate) fn acts_after(&self, requests: usize) -> BTreeMap<Act, u64> {
        let is_short = |all: &mut Vec<_>| all.len() < requests;
        let (all, _) = self.added.wait_timeout_while(self.all(), LONG, is_short).unwrap();
        let mut acts = BTreeMap::new();
        for (_, act) in &*all {
            *acts.entry(*act).or_default() += 1;
        }
        acts
    }
}
