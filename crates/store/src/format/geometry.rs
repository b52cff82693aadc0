//! The geometry of a class of nodes: how many there are.
//!
//! A cluster is *n* files of *m* key-nodes, each a chain of *L* nodes: `size = node_size × L × m × n`, plus a
//! head of one cache line for each key-node. Pure arithmetic: touches no file.
//!
//! A key-node is a head of one line, then its nodes. A node with four state words is seven words long, one less than
//! a line. So each *primary* slot has a line to itself, and the last words of seven lines make up one *spread* node.
//! A spread node takes seven cache misses instead of one, so spread nodes are allocated last.

pub(crate) const WORD_BYTES: u64 = 8;
/// State words of a narrow node.
pub const STATE_WORDS_NARROW: u32 = 4;
/// Default state words of a wide node: 61 buckets of 4 bytes, and two more words.
pub const STATE_WORDS_WIDE: u32 = 33;
/// The maximum of state words per node: 4 KiB.
pub const STATE_WORDS_MAX: u32 = 512;
/// The longest chain: the number of tags that fit in a head of one cache line.
pub const CHAIN_MAX: u32 = 40;

/// A narrow key-node of 35 nodes is 2 KiB, so that none crosses a page.
const CHAIN_NARROW: u32 = 35;
/// A wide key-node of 28 nodes is just under two pages.
const CHAIN_WIDE: u32 = 28;
/// The target size of a file when the number of files is not given.
const FILE_BYTES_WANTED: u64 = 1 << 30;
/// The largest cluster: 64 TiB, well below the address space of a process.
const TOTAL_BYTES_MAX: u64 = 1 << 46;
/// The maximum number of files; each takes a mapping.
pub(super) const FILES_MAX: u32 = 128;

pub(super) const LINE_WORDS: u32 = 8;
/// Words of a head: one line (docs/internals/store-format.md, "Key-node").
pub(crate) const HEAD_WORDS: usize = 8;
/// Words of a node besides its state: two for the key, one for expiry and check.
pub(crate) const NODE_WORDS_BESIDES_STATE: usize = 3;
/// Bytes of the header of every file: a page, so that key-nodes start on one.
pub(crate) const HEADER_BYTES: usize = 4096;
pub(super) const HEADER_WORDS: usize = HEADER_BYTES / WORD_BYTES as usize;

/// A class of nodes. Each key lives in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Four state words: for algorithms whose state fits in 32 bytes.
    #[default]
    Narrow,
    /// More state words, fixed when the cluster is created: for rings of buckets.
    Wide,
}

impl Class {
    /// Both classes, in the order of their files.
    pub const ALL: [Class; 2] = [Class::Narrow, Class::Wide];

    /// The name of the class in file names and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Narrow => "narrow",
            Class::Wide => "wide",
        }
    }
}

/// Why a geometry is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A number is zero or too large.
    #[error("{what} {found} is not allowed (1 to {max})")]
    Range {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The load is out of range.
    #[error("load {found} is not allowed (0.05 to 0.95)")]
    Load {
        /// The requested load.
        found: f64,
    },
    /// All numbers are in range, but their product is too large.
    #[error("{bytes} bytes are too much for one cluster (at most {max})")]
    Total {
        /// The size of the cluster.
        bytes: u64,
        /// The largest allowed size.
        max: u64,
    },
}

/// How many nodes a class has: files × key-nodes × chain × node size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    files: u32,
    key_nodes: u64,
    chain: u32,
    state_words: u32,
}

impl Geometry {
    /// By count: `files` (1 to 128) of `key_nodes` each, with a chain of `chain` (1 to 40) nodes of
    /// `state_words` (1 to 512) state words.
    ///
    /// # Errors
    ///
    /// If a number is out of range, or the total exceeds 64 TiB.
    pub fn by_count(
        files: u32,
        key_nodes: u64,
        chain: u32,
        state_words: u32,
    ) -> Result<Self, GeometryError> {
        let key_nodes_max = TOTAL_BYTES_MAX / (WORD_BYTES * HEAD_WORDS as u64);
        for (what, found, max) in [
            ("number of files", u64::from(files), u64::from(FILES_MAX)),
            ("number of key-nodes", key_nodes, key_nodes_max),
            ("chain length", u64::from(chain), u64::from(CHAIN_MAX)),
            ("number of state words", u64::from(state_words), u64::from(STATE_WORDS_MAX)),
        ] {
            if !(1..=max).contains(&found) {
                return Err(GeometryError::Range { what, found, max });
            }
        }
        let geometry = Self { files, key_nodes, chain, state_words };
        let bytes = geometry.total_bytes();
        if bytes > TOTAL_BYTES_MAX {
            return Err(GeometryError::Total { bytes, max: TOTAL_BYTES_MAX });
        }
        Ok(geometry)
    }

    /// By capacity: narrow nodes for `capacity` keys at a load of `load` (0.05 to 0.95), in files of at most
    /// about 1 GiB.
    ///
    /// Up to a load of 0.8, practically every new key finds a slot; at 0.9, all but a few in a million do.
    ///
    /// # Errors
    ///
    /// As [`Geometry::by_count`], and if the load is out of range.
    pub fn by_capacity(capacity: u64, load: f64) -> Result<Self, GeometryError> {
        Self::of_class(capacity, load, CHAIN_NARROW, STATE_WORDS_NARROW)
    }

    /// As [`Geometry::by_capacity`], for wide nodes of `state_words` state words.
    ///
    /// # Errors
    ///
    /// As [`Geometry::by_capacity`].
    pub fn wide_by_capacity(
        capacity: u64,
        load: f64,
        state_words: u32,
    ) -> Result<Self, GeometryError> {
        Self::of_class(capacity, load, CHAIN_WIDE, state_words)
    }

    fn of_class(
        capacity: u64,
        load: f64,
        chain: u32,
        state_words: u32,
    ) -> Result<Self, GeometryError> {
        if !(0.05..=0.95).contains(&load) {
            return Err(GeometryError::Load { found: load });
        }
        let max = TOTAL_BYTES_MAX / WORD_BYTES;
        if !(1..=max).contains(&capacity) {
            return Err(GeometryError::Range { what: "capacity", found: capacity, max });
        }
        let nodes = (capacity as f64 / load).ceil() as u64;
        let key_nodes = nodes.div_ceil(u64::from(chain));
        let whole = Self::by_count(1, key_nodes, chain, state_words)?;
        let files = whole.file_bytes().div_ceil(FILE_BYTES_WANTED).min(u64::from(FILES_MAX));
        Self::by_count(files as u32, key_nodes.div_ceil(files), chain, state_words)
    }

    /// The number of files, *n*.
    #[must_use]
    pub const fn files(&self) -> u32 {
        self.files
    }

    /// The number of key-nodes of one file, *m*.
    #[must_use]
    pub const fn key_nodes(&self) -> u64 {
        self.key_nodes
    }

    /// The number of key-nodes in all files, *m × n*.
    #[must_use]
    pub const fn key_nodes_total(&self) -> u64 {
        self.key_nodes * self.files as u64
    }

    /// The number of nodes of a key-node, *L*.
    #[must_use]
    pub const fn chain(&self) -> u32 {
        self.chain
    }

    /// The number of nodes in all files, *L × m × n*: the upper bound on live keys.
    #[must_use]
    pub const fn nodes(&self) -> u64 {
        self.key_nodes_total() * self.chain as u64
    }

    /// The number of state words of a node.
    #[must_use]
    pub const fn state_words(&self) -> u32 {
        self.state_words
    }

    /// The size of a node in bytes: key, state, expiry and check.
    #[must_use]
    pub const fn node_bytes(&self) -> u64 {
        self.node_words() as u64 * WORD_BYTES
    }

    /// The size of all nodes in bytes: `node_size × L × m × n`.
    #[must_use]
    pub const fn nodes_bytes(&self) -> u64 {
        self.node_bytes() * self.nodes()
    }

    /// The size of a key-node in bytes, with its head.
    #[must_use]
    pub const fn key_node_bytes(&self) -> u64 {
        self.key_node_words() as u64 * WORD_BYTES
    }

    /// The size of a memory file in bytes: its header, its key-nodes, and for each a word about its snapshot copy.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        let key_nodes = (self.key_node_bytes() + WORD_BYTES).saturating_mul(self.key_nodes);
        key_nodes.saturating_add(HEADER_BYTES as u64)
    }

    /// The size of a snapshot file in bytes: its header, and two copies of each key-node.
    #[must_use]
    pub const fn snapshot_file_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + 2 * self.key_node_bytes() * self.key_nodes
    }

    /// The size of all memory files in bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.file_bytes().saturating_mul(self.files as u64)
    }

    pub(super) const fn node_words(&self) -> usize {
        NODE_WORDS_BESIDES_STATE + self.state_words as usize
    }

    /// Whether nodes are one word shorter than a line, so that some are spread over the lines.
    pub(super) const fn has_spread_nodes(&self) -> bool {
        self.node_words() as u32 == LINE_WORDS - 1
    }

    /// How many slots of a chain are filled before a new key also considers its alternate. All contiguous
    /// slots if some nodes are spread, and the same share otherwise.
    ///
    /// Of 8k + r nodes, 7k + r have a line each, and leave 7k + r words for k more.
    pub(super) const fn primary_slots(&self) -> u32 {
        (self.chain * (LINE_WORDS - 1)).div_ceil(LINE_WORDS)
    }

    /// The number of words of a key-node, rounded up to whole lines.
    pub(super) const fn key_node_words(&self) -> usize {
        let nodes = if self.has_spread_nodes() {
            self.primary_slots() * LINE_WORDS
        } else {
            self.chain * self.node_words() as u32
        };
        HEAD_WORDS + nodes.next_multiple_of(LINE_WORDS) as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_products() {
        let geometry = Geometry::by_count(3, 1000, 35, 4).unwrap();
        assert_eq!(geometry.node_bytes(), 56);
        assert_eq!(geometry.nodes(), 105_000);
        assert_eq!(geometry.nodes_bytes(), 56 * 35 * 1000 * 3);
        assert_eq!(geometry.key_node_bytes(), 2048);
        assert_eq!(geometry.file_bytes(), 4096 + 2_048_000 + 8_000);
        assert_eq!(geometry.snapshot_file_bytes(), 4096 + 2 * 2_048_000);
        assert_eq!(geometry.total_bytes(), 3 * geometry.file_bytes());
    }

    #[test]
    fn eighty_bytes_a_key_at_a_load_of_four_fifths() {
        let geometry = Geometry::by_capacity(8_000_000, 0.8).unwrap();
        assert!(geometry.nodes() >= 10_000_000);
        assert!(geometry.total_bytes() < 80 * 8_000_000, "{}", geometry.total_bytes());
    }

    #[test]
    fn a_large_class_has_several_files_of_equal_shape() {
        let geometry = Geometry::by_capacity(100_000_000, 0.8).unwrap();
        assert_eq!(geometry.files(), 7);
        assert!(geometry.file_bytes() <= FILE_BYTES_WANTED + 4096 + 2048);
        assert!(geometry.nodes() >= 125_000_000);
    }

    #[track_caller]
    fn check_refused(result: Result<Geometry, GeometryError>, message: &str) {
        assert_eq!(result.unwrap_err().to_string(), message);
    }

    #[test]
    fn a_cluster_may_have_exactly_64_tib() {
        // A key-node of 88 words, and a word about its copy.
        let key_nodes = ((1 << 45) - 4096) / (89 * 8);
        let largest = Geometry::by_count(2, key_nodes, 1, 77).unwrap();
        assert_eq!(largest.total_bytes(), 1 << 46);
        check_refused(
            Geometry::by_count(2, key_nodes + 1, 1, 77),
            "70368744179088 bytes are too much for one cluster (at most 70368744177664)",
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let by_count = Geometry::by_count;
        check_refused(by_count(0, 1, 1, 4), "number of files 0 is not allowed (1 to 128)");
        check_refused(
            by_count(1, 0, 1, 4),
            "number of key-nodes 0 is not allowed (1 to 1099511627776)",
        );
        check_refused(by_count(1, 1, 41, 4), "chain length 41 is not allowed (1 to 40)");
        check_refused(
            by_count(1, 1, 1, 513),
            "number of state words 513 is not allowed (1 to 512)",
        );
        check_refused(
            by_count(128, 1 << 40, 40, 512),
            "18446744073709551615 bytes are too much for one cluster (at most 70368744177664)",
        );
        let by_capacity = Geometry::by_capacity;
        check_refused(by_capacity(1, 0.96), "load 0.96 is not allowed (0.05 to 0.95)");
        check_refused(by_capacity(1, f64::NAN), "load NaN is not allowed (0.05 to 0.95)");
        check_refused(by_capacity(0, 0.8), "capacity 0 is not allowed (1 to 8796093022208)");
        assert!(by_capacity(u64::MAX, 0.8).is_err());
    }
}
