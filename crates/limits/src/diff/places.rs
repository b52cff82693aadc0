//! Every place in the trees of all domains, by its path: those where a rule ends, those that only lead
//! on, and those that end without a limit.

use crate::text::escaped;
use crate::yaml::matching::segment;
use crate::{Below, Rule, RuleNode, Rules};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A place, with the way there.
#[derive(Debug, Clone)]
pub(super) struct Place<'r> {
    pub(super) domain: &'r str,
    /// The top of the domain's tree.
    pub(super) root: &'r RuleNode,
    /// Never empty.
    pub(super) levels: Vec<Level<'r>>,
}

/// A level of a place's path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level<'r> {
    pub(super) at: Below<'r>,
    /// Where its key ends in the path of the place.
    pub(super) key_end: usize,
    /// Where all of it ends.
    pub(super) end: usize,
}

pub(super) type Places<'r> = BTreeMap<String, Place<'r>>;

impl<'r> Place<'r> {
    pub(super) fn last(&self) -> Option<Below<'r>> {
        self.levels.last().map(|level| level.at)
    }

    pub(super) fn rule(&self) -> Option<&'r Arc<Rule>> {
        self.last()?.node.rule()
    }
}

pub(super) fn all(rules: &Rules) -> Places<'_> {
    let mut places = Places::new();
    for domain in rules.domain_names() {
        let Some(root) = rules.root(domain) else { continue };
        let mut open = vec![(escaped(domain), root, Vec::new())];
        while let Some((path, node, levels)) = open.pop() {
            for at in node.below() {
                let path = format!("{path}/{}", segment(at.key, at.matcher));
                let key_end = path.rfind('/').map_or(0, |slash| slash + 1);
                let key_end = key_end + escaped(at.key).len();
                let level = Level { at, key_end, end: path.len() };
                let levels: Vec<Level<'_>> = [&levels[..], &[level]].concat();
                places.insert(path.clone(), Place { domain, root, levels: levels.clone() });
                open.push((path, at.node, levels));
            }
        }
    }
    places
}

/// Where each part of a path after the domain ends.
pub(super) fn ends(path: &str) -> impl Iterator<Item = usize> {
    path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()])
}
