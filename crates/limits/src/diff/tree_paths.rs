//! Every path through the trees of all domains, whether a rule ends there or not.

use crate::compiled::{Child, Rule, RuleNode, Rules};
use crate::path::{escaped, segment};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A path from the root of a domain's tree to one of its nodes.
#[derive(Debug, Clone)]
pub(super) struct TreePath<'r> {
    pub(super) domain: &'r str,
    pub(super) root: &'r RuleNode,
    /// Never empty.
    pub(super) levels: Vec<Level<'r>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Level<'r> {
    pub(super) child: Child<'r>,
    /// Where its key ends in the text of the path.
    pub(super) key_end: usize,
    /// Where its segment ends.
    pub(super) end: usize,
}

/// Paths by their texts.
pub(super) type TreePaths<'r> = BTreeMap<String, TreePath<'r>>;

impl<'r> TreePath<'r> {
    pub(super) fn last(&self) -> Option<Child<'r>> {
        self.levels.last().map(|level| level.child)
    }

    pub(super) fn rule(&self) -> Option<&'r Arc<Rule>> {
        self.last()?.node.rule()
    }
}

pub(super) fn all(rules: &Rules) -> TreePaths<'_> {
    let mut paths = TreePaths::new();
    for domain in rules.domain_names() {
        let Some(root) = rules.root(domain) else { continue };
        let mut open = vec![(escaped(domain), root, Vec::new())];
        while let Some((parent, node, levels)) = open.pop() {
            for child in node.children() {
                let text = format!("{parent}/{}", segment(child.key, child.matcher));
                let key_end = parent.len() + 1 + escaped(child.key).len();
                let level = Level { child, key_end, end: text.len() };
                let levels: Vec<Level<'_>> = [&levels[..], &[level]].concat();
                paths.insert(text.clone(), TreePath { domain, root, levels: levels.clone() });
                open.push((text, child.node, levels));
            }
        }
    }
    paths
}
