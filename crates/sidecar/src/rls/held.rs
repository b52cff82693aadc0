//! How much memory all connections hold together for calls that are not whole and for answers that are not
//! taken.
//!
//! One connection is bounded by its limits, at some 10 MiB; ten thousand of them that did so at once would
//! take 100 GiB. So beyond [`HELD_BYTES_MAX`] every connection that holds more than its [`FAIR_BYTES`] is
//! closed when it sends something more. Those who ask as usual hold next to nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Room for twenty-five connections at their limits.
const HELD_BYTES_MAX: usize = 256 << 20;

/// What a connection may hold whatever others do: a message of the usual size on each of its calls. Ten
/// thousand connections of so much are 625 MiB.
const FAIR_BYTES: usize = 64 * 1024;

/// What all connections hold.
#[derive(Debug, Default)]
pub(super) struct Held(AtomicUsize);

impl Held {
    /// That of one more connection.
    pub(super) fn share(&self) -> Share<'_> {
        Share { all: &self.0, bytes: 0 }
    }
}

/// What one of them holds.
#[derive(Debug)]
pub(super) struct Share<'a> {
    all: &'a AtomicUsize,
    bytes: usize,
}

impl Share<'_> {
    /// It holds so much now. False when that is more than can be had.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        // As all others, it mostly holds a few hundred bytes or none: those are not worth the writes.
        let counted = if bytes > FAIR_BYTES { bytes } else { 0 };
        if counted == self.bytes {
            return true;
        }
        // Relaxed: the sum stands for itself. It wraps around to the right one.
        let change = counted.wrapping_sub(self.bytes);
        let all = self.all.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.bytes = counted;
        counted == 0 || all <= HELD_BYTES_MAX
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_only_those_who_hold_little_go_on() {
        let held = Held::default();
        let mut large: Vec<_> = (0..32).map(|_| held.share()).collect();
        assert!(large.iter_mut().all(|share| share.hold(8 << 20)));
        let (mut one_more, mut usual) = (held.share(), held.share());
        assert!(usual.hold(FAIR_BYTES));
        assert!(!one_more.hold(FAIR_BYTES + 1));
        assert!(usual.hold(FAIR_BYTES));
        drop(one_more);
        // One that gives back what it held goes on, and makes room for another.
        assert!(large[0].hold(0));
        assert!(held.share().hold(8 << 20));
        drop(large);
        drop(usual);
        assert_eq!(held.0.into_inner(), 0);
    }
}
