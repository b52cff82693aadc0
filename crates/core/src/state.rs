//! The shape of a counter's state: its size, and its parts.

/// The size of each part of a counter's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSize {
    /// 32 bytes.
    Narrow,
    /// A ring of buckets.
    Wide,
}

impl StateSize {
    /// The size in words of 8 bytes.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            StateSize::Narrow => 4,
            StateSize::Wide => WIDE_WORDS,
        }
    }
}

/// 61 buckets of 4 bytes, and two more words.
pub(crate) const WIDE_WORDS: usize = 2 + 61_usize.div_ceil(2);

/// The parts of a counter that one decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    labels: [u64; Parts::MAX],
    len: usize,
}

impl Parts {
    /// The most parts of one decision.
    pub const MAX: usize = 5;
    /// The single part of most counters.
    pub const ONE: Parts = Parts { labels: [0; Parts::MAX], len: 1 };

    /// Adds a part unless it is present.
    pub(crate) fn insert(&mut self, label: u64) {
        if !self.labels().contains(&label) {
            self.labels[self.len] = label;
            self.len += 1;
        }
    }

    /// The labels that distinguish the parts of one counter. The first is 0.
    #[must_use]
    pub fn labels(&self) -> &[u64] {
        &self.labels[..self.len]
    }
}

/// The words of a narrow state.
pub(crate) fn narrow(state: &[u64]) -> &[u64; 4] {
    state.first_chunk().expect("a narrow state has four words")
}

/// The words of a narrow state, to change.
pub(crate) fn narrow_mut(state: &mut [u64]) -> &mut [u64; 4] {
    state.first_chunk_mut().expect("a narrow state has four words")
}
