//! The findings of a verification: sound nodes, flaws and their positions, and leftovers of killed processes.
//!
//! Owns the words for it. Reads no memory: see [`super::verifier`].

use std::fmt;
use std::path::PathBuf;

use crate::format::StoredKey;

/// Further flaws are counted but not kept: a file of random bytes has millions, too many to read.
const FLAWS_KEPT: usize = 1000;

/// A kind of flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FlawKind {
    /// The check of a node does not match its words.
    Torn,
    /// The node's key belongs in other key-nodes, or its tag in the head is not the key's.
    Foreign,
    /// Another valid node has the same key.
    Duplicate,
    /// The home of the node's key has no displaced keys, so the node is not found.
    Unreachable,
    /// The hint in the head says that no node expires this early.
    Late,
    /// A key-node is locked without a holder.
    Lock,
    /// A writer slot belongs to a process that cannot exist.
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

    /// The name of the kind, and its meaning.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            FlawKind::Torn => ("torn", "the check of the node does not match its words"),
            FlawKind::Foreign => {
                ("foreign", "the key of the node belongs elsewhere, or its tag is another key's")
            }
            FlawKind::Duplicate => ("duplicate", "another valid node has the same key"),
            FlawKind::Unreachable => {
                ("unreachable", "the key's home has no displaced keys, so it is not found")
            }
            FlawKind::Late => ("late", "the head says that no node here expires that early"),
            FlawKind::Lock => ("lock", "the key-node is locked, but no process holds the lock"),
            FlawKind::WriterSlot => {
                ("writer", "the writer slot belongs to a process that cannot exist")
            }
        }
    }

    /// The name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    /// The meaning of the kind.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        self.words().1
    }
}

/// A flaw and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The kind of flaw.
    pub kind: FlawKind,
    /// The file.
    pub file: PathBuf,
    /// The offset in the file: of a node's first word, of a locked key-node, or of a writer slot.
    pub offset: u64,
    /// The key-node, counted over all files of its class; none for a writer slot.
    pub key_node: Option<u64>,
    /// The slot of the node; none if the flaw is not about a node.
    pub slot: Option<u32>,
    /// The key of the node, if it is known.
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

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// Key-nodes that were checked.
    pub key_nodes: u64,
    /// Nodes with a key that were checked.
    pub nodes: u64,
    /// Of these, nodes without a flaw.
    pub sound: u64,
    /// Of these, nodes with a live entry.
    pub live: u64,
    /// Of these, nodes with an expired entry.
    pub expired: u64,
    /// Half-written nodes whose writer does not continue; the next process that needs one completes it.
    pub pending: u64,
    /// Committed updates that were not completed. Completed like `pending` nodes.
    pub updates_pending: u64,
    /// Key-nodes locked by a dead process. Released like `pending` nodes are completed.
    pub locks_left: u64,
    /// Writer slots of dead processes. The next process that opens the cluster frees them.
    pub writer_slots_left: u64,
    /// Whether a process restored the cluster meanwhile, or was killed doing so. It may be about to repair the
    /// flaws.
    pub is_being_restored: bool,
    /// The number of flaws of each kind, in the order of [`FlawKind::ALL`].
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

    /// The number of flaws of this kind.
    #[must_use]
    pub fn flaws_of(&self, kind: FlawKind) -> u64 {
        self.counts[kind as usize]
    }

    /// The number of flaws.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaw_is_described_by_its_place_and_its_kind() {
        let flaw = |kind, key_node, slot| Flaw {
            kind,
            file: PathBuf::from("/m/nodes"),
            offset: 4096,
            key_node,
            slot,
            key: None,
        };
        let table = [
            (
                flaw(FlawKind::Torn, Some(3), Some(1)),
                "/m/nodes: byte 4096 (key-node 3, slot 1): torn: the check of the node does not match \
                 its words",
            ),
            (
                flaw(FlawKind::Lock, Some(3), None),
                "/m/nodes: byte 4096 (key-node 3): lock: the key-node is locked, but no process \
                 holds the lock",
            ),
            (
                flaw(FlawKind::WriterSlot, None, None),
                "/m/nodes: byte 4096: writer: the writer slot belongs to a process that cannot exist",
            ),
        ];
        for (flaw, expected) in table {
            assert_eq!(flaw.to_string(), expected);
        }
    }

    #[test]
    fn each_kind_of_flaw_has_a_name_and_a_meaning_of_its_own() {
        let names: std::collections::BTreeSet<_> = FlawKind::ALL.map(FlawKind::name).into();
        let meanings: std::collections::BTreeSet<_> = FlawKind::ALL.map(FlawKind::meaning).into();
        assert_eq!((names.len(), meanings.len()), (FlawKind::ALL.len(), FlawKind::ALL.len()));
        let words = ["torn", "foreign", "duplicate", "unreachable", "late", "lock", "writer"];
        assert_eq!(FlawKind::ALL.map(FlawKind::name), words);
    }
}
