//! What a check of a whole cluster reports: what is sound, what is flawed and where, and what a killed
//! process left for the next one to clean up.
//!
//! Owns the words for it. Looks at nothing: see [`super::check`].

use std::fmt;
use std::path::PathBuf;

use crate::format::key::StoredKey;

/// More flaws than this are counted, but not kept one by one: nobody reads them, and a file of random
/// bytes has millions.
const FLAWS_KEPT: usize = 1000;

/// What is wrong with a place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FlawKind {
    /// The check of a node does not match its words.
    Torn,
    /// A node's key does not belong in its key-node, or the tag in the head is not its key's.
    Foreign,
    /// Another node, which counts, has the same key.
    Duplicate,
    /// The home of a node's key says that none of its keys is away, so the node is not found.
    Unreachable,
    /// The head says that no node expires that early.
    Late,
    /// A key-node is locked, and nobody has the lock.
    Lock,
    /// A seat belongs to a process that cannot be.
    WriterSlot,
}

impl FlawKind {
    /// All kinds.
    pub const ALL: [FlawKind; 7] = [
        FlawKind::Torn,
        FlawKind::Foreign,
        FlawKind::Duplicate,
        FlawKind::Unreachable,
        FlawKind::Late,
        FlawKind::Lock,
        FlawKind::WriterSlot,
    ];

    /// One word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FlawKind::Torn => "torn",
            FlawKind::Foreign => "foreign",
            FlawKind::Duplicate => "duplicate",
            FlawKind::Unreachable => "unreachable",
            FlawKind::Late => "late",
            FlawKind::Lock => "lock",
            FlawKind::WriterSlot => "seat",
        }
    }

    /// What that means.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            FlawKind::Torn => "the check of the node does not match its words",
            FlawKind::Foreign => "the key of the node belongs elsewhere, or its tag is another's",
            FlawKind::Duplicate => "another node, which counts, has the same key",
            FlawKind::Unreachable => "the key's home says that no key is away, so it is not found",
            FlawKind::Late => "the head says that no node here expires that early",
            FlawKind::Lock => "the key-node is locked, and nobody has the lock",
            FlawKind::WriterSlot => "the seat belongs to a process that cannot be",
        }
    }
}

/// A flaw, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// What is wrong.
    pub kind: FlawKind,
    /// The file.
    pub file: PathBuf,
    /// Where in the file: of a node, its first word; of a lock, its key-node; of a seat, the seat.
    pub offset: u64,
    /// The key-node, counted over all files of its class; none for a seat.
    pub key_node: Option<u64>,
    /// The slot of the node in its key-node; none if it is not about a node.
    pub slot: Option<u32>,
    /// The key that the node has, if that can be said of it.
    pub key: Option<StoredKey>,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: byte {}", self.file.display(), self.offset)?;
        match (self.key_node, self.slot) {
            (Some(key_node), Some(slot)) => write!(f, " (key-node {key_node}, slot {slot})")?,
            (Some(key_node), None) => write!(f, " (key-node {key_node})")?,
            _ => {}
        }
        write!(f, ": {}: {}", self.kind.name(), self.kind.meaning())?;
        self.key.map_or(Ok(()), |key| write!(f, " (key {key})"))
    }
}

/// What a check of a whole cluster found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// Key-nodes that were checked.
    pub key_nodes: u64,
    /// Nodes with a key that were checked.
    pub nodes: u64,
    /// Those of them without a flaw.
    pub sound: u64,
    /// Those of them whose entry has not expired.
    pub live: u64,
    /// Those of them whose entry has expired.
    pub expired: u64,
    /// Nodes half written by somebody who did not go on; the next who needs them completes them.
    pub pending: u64,
    /// Updates that are committed and were not completed. As for `pending`.
    pub updates_pending: u64,
    /// Key-nodes that are locked by a process which is gone. As for `pending`.
    pub locks_left: u64,
    /// Seats of processes that are gone. The next process that opens the cluster frees them.
    pub writer_slots_left: u64,
    /// Whether a process restored the cluster meanwhile, or was killed while it did: then flaws may be
    /// what it is about to repair.
    pub is_being_restored: bool,
    /// How many flaws there are of each kind, in the order of [`FlawKind::ALL`].
    counts: [u64; FlawKind::ALL.len()],
    /// The flaws, or the first thousand.
    pub flaws: Vec<Flaw>,
}

impl Findings {
    /// Whether there is no flaw.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.flaws_total() == 0
    }

    /// How many flaws there are of this kind.
    #[must_use]
    pub fn flaws_of(&self, kind: FlawKind) -> u64 {
        self.counts[kind as usize]
    }

    /// How many flaws there are.
    #[must_use]
    pub fn flaws_total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn add(&mut self, flaw: Flaw) {
        self.counts[flaw.kind as usize] += 1;
        if self.flaws.len() < FLAWS_KEPT {
            self.flaws.push(flaw);
        }
    }
}
