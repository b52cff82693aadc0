//! The words of a whole cluster: the control file, and the key-nodes of both classes.
//!
//! Owns the way from the name of a key-node to its words, and the completion of what a killed process
//! left. Knows no file. Takes no lock, except to give back those of the dead.

pub(crate) mod control;
pub(crate) mod key_node;
pub(crate) mod region;
pub(crate) mod sigbus;
pub(crate) mod sync;
pub(crate) mod validity;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::geometry::{Class, Geometry};
use crate::format::header::{ClusterInfo, Role};
use crate::format::key::StoredKey;
use crate::format::layout::{KeyNodeAt, KeyNodeId, Layout};
use control::poisoned_word;
use key_node::KeyNode;
use region::Region;
use sync::{AtomicU64, put};

/// One class of nodes, over all its files.
pub(crate) struct ClassMemory {
    pub(crate) class: Class,
    pub(crate) layout: Layout,
    files: Vec<Region>,
}

impl ClassMemory {
    /// `files` are as many and as long as the geometry says.
    pub(crate) fn new(class: Class, geometry: Geometry, files: Vec<Region>) -> Self {
        debug_assert!(files.len() == geometry.files() as usize);
        Self { class, layout: Layout::new(geometry), files }
    }

    /// The key-node of this number, which is less than there are.
    pub(crate) fn key_node(&self, number: u64) -> KeyNode<'_> {
        self.key_node_at(self.layout.key_node(number))
    }

    /// See [`Layout::home`].
    #[inline]
    pub(crate) fn home(&self, stored: &StoredKey) -> KeyNode<'_> {
        self.key_node_at(self.layout.home(stored))
    }

    /// See [`Layout::alternate`].
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

    /// What is known of the copy of a key-node in the snapshot: see [`crate::snapshot`].
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

/// A whole cluster.
pub(crate) struct Memory {
    pub(crate) info: ClusterInfo,
    pub(crate) control: Region,
    narrow: ClassMemory,
    wide: Option<ClassMemory>,
    /// Whether somebody changed the files from outside.
    is_poisoned: AtomicBool,
}

impl Memory {
    pub(crate) fn new(
        info: ClusterInfo,
        control: Region,
        narrow: ClassMemory,
        wide: Option<ClassMemory>,
    ) -> Self {
        Self { info, control, narrow, wide, is_poisoned: AtomicBool::new(false) }
    }

    /// Of the words of each file, the control file first.
    pub(crate) fn of_files<E>(
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
        Ok(Self::new(info, control, narrow, wide))
    }

    /// The seed of the cluster.
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

    /// A key-node, if there is one of this name.
    pub(crate) fn key_node(&self, id: KeyNodeId) -> Option<KeyNode<'_>> {
        let class = self.class(id.class)?;
        let total = class.layout.geometry.key_nodes_total();
        (id.number < total).then(|| class.key_node(id.number))
    }

    /// See [`Region::use_large_pages`].
    pub(crate) fn use_large_pages(&self) {
        self.classes().flat_map(|class| &class.files).for_each(Region::use_large_pages);
    }

    /// Nothing that is read here counts any more, in this process and all others.
    pub(crate) fn poison(&self) {
        put(poisoned_word(&self.control), 1);
        self.is_poisoned.store(true, Ordering::Relaxed);
    }

    /// Whether nothing that is read here counts: a file was cut short, or changed from outside.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        if self.is_poisoned.load(Ordering::Relaxed) {
            return true;
        }
        let of = |class: &ClassMemory| class.files.iter().any(Region::is_lost);
        self.control.is_lost() || of(&self.narrow) || self.wide.as_ref().is_some_and(of)
    }
}
