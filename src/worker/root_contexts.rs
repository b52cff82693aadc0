//! Finds the plugin of a request if one virtual machine runs several.
//!
//! Envoy runs plugins with the same code and the same configuration of the virtual machine in one
//! of these: two listeners with the filter, or one listener before and after a change. Each plugin
//! is a root context with its own worker. Only the creation of a request's context names its root;
//! its headers need it, and from then on its worker knows it by its id. Usually nothing happens in
//! between, so the newest one is kept apart and costs no map.
//!
//! Owns the workers. Invariant: stores no request whose headers have arrived, or that is over.

use std::collections::BTreeMap;

/// The workers of a virtual machine, by root context.
#[derive(Debug)]
pub struct RootContexts<W> {
    workers: Vec<(u32, W)>,
    /// The request that was created last, and its root, until its headers arrive.
    newest: Option<(u32, u32)>,
    /// Earlier requests whose headers have not arrived yet.
    older: BTreeMap<u32, u32>,
}

impl<W> RootContexts<W> {
    /// No workers.
    #[must_use]
    pub const fn new() -> Self {
        RootContexts { workers: Vec::new(), newest: None, older: BTreeMap::new() }
    }

    /// Makes `worker` that of `root`; returns its predecessor.
    pub fn insert(&mut self, root: u32, worker: W) -> Option<W> {
        let before = self.remove(root);
        self.workers.push((root, worker));
        before
    }

    /// Removes the worker of `root`.
    pub fn remove(&mut self, root: u32) -> Option<W> {
        let index = self.workers.iter().position(|(known, _)| *known == root)?;
        Some(self.workers.swap_remove(index).1)
    }

    /// The worker of `root`.
    pub fn get_mut(&mut self, root: u32) -> Option<&mut W> {
        self.workers.iter_mut().find(|(known, _)| *known == root).map(|(_, worker)| worker)
    }

    /// All workers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut W> {
        self.workers.iter_mut().map(|(_, worker)| worker)
    }

    /// A request of `root` was created.
    pub fn stream_created(&mut self, stream: u32, root: u32) {
        if let Some((stream, root)) = self.newest.replace((stream, root)) {
            self.older.insert(stream, root);
        }
    }

    /// The worker of a request whose headers have arrived. Called once for each.
    pub fn claim(&mut self, stream: u32) -> Option<&mut W> {
        let root = self.forget(stream)?;
        self.get_mut(root)
    }

    /// A request is over, with or without its headers.
    pub fn stream_deleted(&mut self, stream: u32) {
        self.forget(stream);
    }

    fn forget(&mut self, stream: u32) -> Option<u32> {
        match self.newest {
            Some((newest, root)) if newest == stream => {
                self.newest = None;
                Some(root)
            }
            _ => self.older.remove(&stream),
        }
    }
}

impl<W> Default for RootContexts<W> {
    fn default() -> Self {
        RootContexts::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_find_their_own_plugin_in_whatever_order_their_headers_come() {
        let mut roots = RootContexts::new();
        assert_eq!(roots.insert(1, "one"), None);
        assert_eq!(roots.insert(2, "two"), None);
        for (stream, root) in [(10, 1), (11, 2), (12, 1), (13, 2)] {
            roots.stream_created(stream, root);
        }
        assert_eq!(roots.claim(13).copied(), Some("two"));
        assert_eq!(roots.claim(10).copied(), Some("one"));
        assert_eq!(roots.claim(10).copied(), None, "asked once");
        roots.stream_deleted(11);
        assert_eq!(roots.claim(11).copied(), None);
        assert_eq!(roots.claim(12).copied(), Some("one"));
        assert!(roots.newest.is_none() && roots.older.is_empty(), "{roots:?}");
    }

    #[test]
    fn a_removed_plugin_takes_no_requests_and_keeps_those_of_others() {
        let mut roots = RootContexts::new();
        for (root, worker) in [(1, "one"), (2, "two"), (3, "three")] {
            roots.insert(root, worker);
        }
        roots.stream_created(10, 1);
        roots.stream_created(11, 3);
        assert_eq!(roots.remove(1), Some("one"));
        assert_eq!(roots.remove(1), None);
        assert_eq!(roots.claim(10).copied(), None);
        assert_eq!(roots.claim(11).copied(), Some("three"));
        assert_eq!(roots.insert(3, "again"), Some("three"));
        assert_eq!(roots.get_mut(3).copied(), Some("again"));
        assert_eq!(roots.iter_mut().count(), 2);
    }
}
