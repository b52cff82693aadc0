//! Settings of a data directory. An existing one keeps the geometry that it was created with.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tidegate_store::{AfterLoss, Eviction, Geometry, GeometryError, STATE_WORDS_NARROW};

#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of the counters, created if missing. None keeps them in the memory of one process, which they end
    /// with.
    pub dir: Option<PathBuf>,
    /// A tmpfs for the counters while the directory is served.
    pub memory_dir: PathBuf,
    /// Number of counters; by default as many as memory allows, up to 1,048,576.
    pub capacity: Option<u64>,
    /// Share of the nodes that these counters use.
    pub load: f64,
    /// Replaces capacity and load.
    pub geometry: Option<NodeCounts>,
    /// Number of counters with wide states; 0 for none.
    pub wide_capacity: u64,
    /// What happens to a new counter when all its nodes are live.
    pub eviction: Eviction,
    /// What counts once the memory was lost.
    pub after_loss: AfterLoss,
    /// Time between snapshots; `None` writes one at the end only.
    pub sync_interval: Option<Duration>,
}

/// A geometry by its counts, as `4x65536x35`: files, key-nodes, nodes of a chain.
#[derive(Debug, Clone, Copy)]
pub struct NodeCounts {
    pub files: u32,
    pub key_nodes: u64,
    pub chain: u32,
}

impl NodeCounts {
    /// The geometry of narrow nodes with these counts.
    pub fn geometry(self) -> Result<Geometry, GeometryError> {
        Geometry::by_count(self.files, self.key_nodes, self.chain, STATE_WORDS_NARROW)
    }
}

impl fmt::Display for NodeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.files, self.key_nodes, self.chain)
    }
}

impl FromStr for NodeCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<&str> = text.split('x').collect();
        let [files, key_nodes, chain] = numbers[..] else {
            return Err("expected files x key-nodes x chain, such as 4x65536x35".to_owned());
        };
        let bad = |what: &str, number: &str| format!("{what} {number:?} is not a number");
        Ok(NodeCounts {
            files: files.parse().map_err(|_| bad("number of files", files))?,
            key_nodes: key_nodes.parse().map_err(|_| bad("number of key-nodes", key_nodes))?,
            chain: chain.parse().map_err(|_| bad("chain length", chain))?,
        })
    }
}
