//! The servers of an engine, and which of them has a key.
//!
//! Rendezvous hashing by place: each server has a number for each place, and the highest one has it. So a server that is
//! added or removed moves only the places that it gets or had. All sidecars have to name the servers by the same
//! addresses, in any order. Servers are apart: each has its own connections, its own flights and its own clock.

use crate::clock::Reached;
use crate::layout::place;
use crate::shared::{Counts, Health, Shared};
use std::sync::Arc;
use tidegate_core::{Timestamp, fingerprint};
use tidegate_store::Hashed;

#[derive(Debug)]
pub(crate) struct Spread(Vec<Server>);

#[derive(Debug)]
struct Server {
    /// The hash of its address.
    mark: u64,
    shared: Arc<Shared>,
}

impl Spread {
    /// One server has all keys.
    pub(crate) fn one(shared: Arc<Shared>) -> Spread {
        Spread(vec![Server { mark: 0, shared }])
    }

    /// The servers at these addresses.
    pub(crate) fn of(servers: impl IntoIterator<Item = (String, Arc<Shared>)>) -> Spread {
        let server = |(address, shared): (String, _)| Server {
            mark: fingerprint(address.as_bytes()) as u64,
            shared,
        };
        Spread(servers.into_iter().map(server).collect())
    }

    /// The server that has `keys`; none if no single one has all.
    pub(crate) fn of_keys(&self, keys: &[Hashed]) -> Option<&Shared> {
        let (first, rest) = match (&self.0[..], keys) {
            ([only], _) | ([only, ..], []) => return Some(&only.shared),
            (_, [first, rest @ ..]) => (first, rest),
            ([], []) => return None,
        };
        let index = self.index(place(first))?;
        let has = |key: &Hashed| self.index(place(key)) == Some(index);
        rest.iter().all(has).then(|| self.0.get(index).map(|server| &*server.shared))?
    }

    fn index(&self, place: u64) -> Option<usize> {
        let number = |server: &Server| mixed(place ^ server.mark);
        (0..self.0.len()).max_by_key(|index| self.0.get(*index).map(number))
    }

    /// A time that all servers have reached which answer.
    pub(crate) fn reached(&self) -> Option<Reached> {
        self.0.iter().filter_map(|server| server.shared.reached()).min()
    }

    /// The servers had reached this time.
    pub(crate) fn remember(&self, now: Timestamp) {
        self.0.iter().for_each(|server| server.shared.remember(now));
    }

    pub(crate) fn health(&self) -> Health {
        let down = self.0.iter().filter_map(|server| match server.shared.health() {
            Health::Up => None,
            Health::Down { cause } => Some(cause),
        });
        let down: Vec<String> = down.collect();
        match (&down[..], self.0.len()) {
            ([], _) => Health::Up,
            ([cause, ..], 1) => Health::Down { cause: cause.clone() },
            ([cause, ..], all) => {
                Health::Down { cause: format!("{} of {all} servers: {cause}", down.len()) }
            }
        }
    }

    /// Why counters may disappear from a server by themselves, if they may.
    pub(crate) fn warning(&self) -> Option<String> {
        self.0.iter().find_map(|server| server.shared.warning())
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.iter().map(|server| server.shared.counts()).fold(Counts::default(), Counts::plus)
    }
}

/// A permutation of all numbers without visible order (the finalizer of splitmix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Rules;
    use crate::image::Retention;
    use crate::layout::Layout;

    fn spread(addresses: &[&str]) -> Spread {
        let retention = Retention { slack_secs: 10, jitter_secs: 0 };
        let rules = Rules { patience: 1, retention, layout: Layout::Place, keys_max: 1 };
        let server = |address: &&str| ((*address).to_owned(), Arc::new(Shared::of_one(rules)));
        Spread::of(addresses.iter().map(server))
    }

    /// The share of places that have another server when one is added, and how even all are.
    #[test]
    fn a_server_that_is_added_takes_its_share_and_moves_nothing_else() {
        let (three, four) = (spread(&["a:1", "b:1", "c:1"]), spread(&["a:1", "b:1", "c:1", "d:1"]));
        let (mut moved, mut each) = (0, [0; 4]);
        for number in 0..40_000_u64 {
            let place = mixed(number) >> 16;
            let (before, after) = (three.index(place).unwrap(), four.index(place).unwrap());
            each[after] += 1;
            if before != after {
                assert_eq!(after, 3);
                moved += 1;
            }
        }
        assert!((9_000..11_000).contains(&moved), "{moved}");
        assert!(each.iter().all(|count| (9_000..11_000).contains(count)), "{each:?}");
    }

    #[test]
    fn the_order_of_addresses_does_not_matter() {
        let (one, other) = (spread(&["a:1", "b:1", "c:1"]), spread(&["c:1", "a:1", "b:1"]));
        for place in (0..1_000).map(mixed) {
            let (one, other) = (one.index(place).unwrap(), other.index(place).unwrap());
            assert_eq!((one + 1) % 3, other);
        }
    }

    #[test]
    fn keys_of_one_server_have_it_and_others_none() {
        let servers = spread(&["a:1", "b:1"]);
        let keys: Vec<Hashed> =
            (0..64).map(|number| Hashed::narrow(mixed(number).into())).collect();
        assert!(keys.iter().all(|key| servers.of_keys(&[*key, *key]).is_some()));
        assert!(servers.of_keys(&[]).is_some());
        assert!(servers.of_keys(&keys).is_none());
        assert!(spread(&["a:1"]).of_keys(&keys).is_some());
    }
}
