//! Entries of `rate_limits` by virtual host and route: which lists apply to a request is worked out
//! when the configuration is read, so that a request only looks up two names.
//!
//! The rules are those of Envoy's own filter; `read::virtual_hosts` has them.

use super::encoded::Encoded;
use super::rate_limit::{Fact, RateLimit};
use crate::matching::text::TextMatcher;

/// The blocks of a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct VirtualHosts {
    /// The name of the request's virtual host.
    pub(crate) host: Fact,
    /// The name of its route.
    pub(crate) route: Fact,
    /// The cluster that it is routed to. Like Envoy's own filter, this one limits no request that
    /// Envoy answers itself.
    pub(crate) cluster: Fact,
    pub(crate) hosts: ByName<VirtualHost>,
    /// What hosts and routes name by index.
    pub(crate) applicable: Vec<Applicable>,
    /// What [`Applicable`] names by index.
    pub(crate) lists: Vec<Vec<RateLimit>>,
}

/// The index of what applies where nothing does.
pub(crate) const NOTHING: usize = 0;
/// The index of what applies to requests of other virtual hosts.
pub(crate) const OF_OTHER_HOSTS: usize = 1;

/// A virtual host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VirtualHost {
    pub(crate) routes: ByName<usize>,
    /// For requests of other routes.
    pub(crate) otherwise: usize,
}

/// What applies to the requests of a route.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Applicable {
    /// Two lists, one after the other.
    pub(crate) lists: [usize; 2],
    /// The mark of the calls' domain, unless it is the filter's.
    pub(crate) domain: Option<Encoded>,
}

impl VirtualHosts {
    /// One of the lists that apply, if it is there.
    pub(crate) fn list(&self, applicable: usize, list: usize) -> Option<&[RateLimit]> {
        let list = self.applicable.get(applicable)?.lists.get(list)?;
        self.lists.get(*list).map(Vec::as_slice)
    }

    /// Whether any entry applies.
    pub(crate) fn has_entries(&self, applicable: usize) -> bool {
        [0, 1].iter().any(|list| self.list(applicable, *list).is_some_and(|list| !list.is_empty()))
    }

    /// The mark of the domain, unless it is the filter's.
    pub(crate) fn domain(&self, applicable: usize) -> Option<&[u8]> {
        self.applicable.get(applicable)?.domain.as_ref().map(|mark| mark.0.as_slice())
    }
}

/// Items by exact name, and by matchers of names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ByName<T> {
    /// In the order of their names.
    named: Vec<(String, T)>,
    matched: Vec<(TextMatcher, T)>,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        ByName { named: Vec::new(), matched: Vec::new() }
    }
}

impl<T> ByName<T> {
    /// Adds an item. False if the name is there already.
    pub(crate) fn insert(&mut self, name: String, item: T) -> bool {
        match self.named.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(_) => false,
            Err(place) => {
                self.named.insert(place, (name, item));
                true
            }
        }
    }

    /// Adds an item for the names that match, and that no item before it is for.
    pub(crate) fn push(&mut self, matcher: TextMatcher, item: T) {
        self.matched.push((matcher, item));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.matched.is_empty()
    }

    /// The item of exactly this name.
    pub(crate) fn named(&self, name: &[u8]) -> Option<&T> {
        let place = self.named.binary_search_by(|(known, _)| known.as_bytes().cmp(name)).ok()?;
        self.named.get(place).map(|(_, item)| item)
    }

    /// The first item whose matcher says yes.
    pub(crate) fn matched(&self, mut matches: impl FnMut(&TextMatcher) -> bool) -> Option<&T> {
        self.matched.iter().find(|(matcher, _)| matches(matcher)).map(|(_, item)| item)
    }
}
