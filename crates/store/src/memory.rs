//! The memory of a cluster: the control file and the key-nodes of both classes, as shared words.
//!
//! Owns the mapping of files to words, and finds the words of a key-node. Creates no file, decides nothing
//! about keys, and takes no lock.

pub(crate) mod control;
pub(crate) mod key_node;
pub(crate) mod region;
pub(crate) mod sigbus;
pub(crate) mod sync;
pub(crate) mod validity;

pub(crate) use key_node::{KeyNode, Slots};
pub(crate) use region::Region;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::layout::KeyNodeAt;
use crate::format::{Class, ClusterInfo, Geometry, KeyNodeId, Layout, Role, StoredKey};
use control::{POISONED, word};
use sync::{AtomicU64, put};

/// One class of nodes, in all its files.
pub(crate) struct ClassMemory {
    pub(crate) class: Class,
    pub(crate) layout: Layout,
    files: Vec<Region>,
}

impl ClassMemory {
    /// `files` must match the geometry in number and length.
    pub(crate) fn new(class: Class, geometry: Geometry, files: Vec<Region>) -> Self {
        debug_assert!(files.len() == geometry.files() as usize);
        Self { class, layout: Layout::new(geometry), files }
    }

    /// The key-node with this number, which must exist.
    pub(crate) fn key_node(&self, number: u64) -> KeyNode<'_> {
        self.key_node_at(self.layout.key_node(number))
    }

    #[inline]
    pub(crate) fn home(&self, stored: &StoredKey) -> KeyNode<'_> {
        self.key_node_at(self.layout.home(stored))
    }

    #[inline]
    pub(crate) fn alternate(&self, stored: &StoredKey) -> KeyNode<'_> {
        self.key_node_at(self.layout.alternate(stored))
    }

    #[inline]
    fn key_node_at(&self, at: KeyNodeAt) -> KeyNode<'_> {
        let words = self.files[at.file].slice(at.first, self.layout.key_node_words);
        let id = KeyNodeId { class: self.class, number: at.number };
        KeyNode::new(id, words, &self.layout)
    }

    /// The word about a key-node's snapshot copy: see [`crate::snapshot`].
    pub(crate) fn copy_state(&self, number: u64) -> &AtomicU64 {
        let (file, index) = self.layout.copy_state_at(number);
        &self.files[file].slice(index, 1)[0]
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn words(&self) -> Vec<u64> {
        self.files.iter().flat_map(Region::words).collect()
    }

    pub(crate) fn key_nodes(&self) -> impl Iterator<Item = KeyNode<'_>> {
        (0..self.layout.geometry.key_nodes_total()).map(|number| self.key_node(number))
    }
}

/// The memory of a whole cluster.
pub(crate) struct Memory {
    pub(crate) info: ClusterInfo,
    pub(crate) control: Region,
    narrow: ClassMemory,
    wide: Option<ClassMemory>,
    /// Whether this process found that the files were changed from outside.
    is_poisoned: AtomicBool,
}

impl Memory {
    /// Built from the words of each file, the control file first.
    pub(crate) fn new<E>(
        info: ClusterInfo,
        mut words: impl FnMut(Role) -> Result<Region, E>,
    ) -> Result<Self, E> {
        let control = words(Role::Control)?;
        let mut class = |class, geometry: Geometry| {
            let files = (0..geometry.files()).map(|file| words(Role::Nodes { class, file }));
            Ok(ClassMemory::new(class, geometry, files.collect::<Result<_, E>>()?))
        };
        let narrow = class(Class::Narrow, info.narrow)?;
        let wide = info.wide.map(|geometry| class(Class::Wide, geometry)).transpose()?;
        Ok(Self { info, control, narrow, wide, is_poisoned: AtomicBool::new(false) })
    }

    #[inline]
    pub(crate) fn seed(&self) -> u64 {
        self.info.seed
    }

    #[inline]
    pub(crate) fn class(&self, class: Class) -> Option<&ClassMemory> {
        match class {
            Class::Narrow => Some(&self.narrow),
            Class::Wide => self.wide.as_ref(),
        }
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = &ClassMemory> {
        Class::ALL.into_iter().filter_map(|class| self.class(class))
    }

    pub(crate) fn key_node(&self, id: KeyNodeId) -> Option<KeyNode<'_>> {
        let class = self.class(id.class)?;
        let total = class.layout.geometry.key_nodes_total();
        (id.number < total).then(|| class.key_node(id.number))
    }

    pub(crate) fn use_large_pages(&self) {
        self.classes().flat_map(|class| &class.files).for_each(Region::use_large_pages);
    }

    /// Marks the memory as corrupted. From now on every process refuses it.
    pub(crate) fn poison(&self) {
        put(word(&self.control, POISONED), 1);
        self.is_poisoned.store(true, Ordering::Relaxed);
    }

    /// Whether the memory is unusable: a file was truncated, or changed from outside.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        if self.is_poisoned.load(Ordering::Relaxed) {
            return true;
        }
        let of = |class: &ClassMemory| class.files.iter().any(Region::is_lost);
        self.control.is_lost() || of(&self.narrow) || self.wide.as_ref().is_some_and(of)
    }
}
