//! What a node of a cluster says of the others: `CLUSTER SLOTS`, and the redirections of a refused command.
//!
//! Refuses answers of another form, and clusters with more than [`NODES_MAX`] nodes.

use crate::engine::Cause;
use crate::settings::Address;
use crate::slots::SLOTS;
use ::redis::{ServerError, Value};
use std::ops::RangeInclusive;

/// Redis recommends at most a thousand.
pub(super) const NODES_MAX: usize = 1_000;

/// Which master has which slots.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) slots: Vec<(RangeInclusive<usize>, Address)>,
    /// Nodes that may be asked as well.
    pub(super) replicas: Vec<Address>,
}

/// Another node than the one that was asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// It has the slot from now on.
    Moved(usize, Address),
    /// It has the key that was asked for; the slot is on its way to it.
    Ask(Address),
}

impl View {
    /// Reads the answer of the node at `asked`.
    pub(super) fn read(value: &Value, asked: &Address) -> Result<View, Cause> {
        let nonsense = || Cause::new("the server answers CLUSTER SLOTS with something else");
        let Value::Array(ranges) = value else { return Err(nonsense()) };
        let mut view = View { slots: Vec::new(), replicas: Vec::new() };
        for range in ranges {
            let Value::Array(parts) = range else { return Err(nonsense()) };
            let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &parts[..] else {
                return Err(nonsense());
            };
            let (first, last) = (usize::try_from(*first), usize::try_from(*last));
            let (Ok(first), Ok(last)) = (first, last) else { return Err(nonsense()) };
            if first > last || last >= SLOTS || view.slots.len() >= SLOTS {
                return Err(nonsense());
            }
            // An unknown address is one that nobody can go to.
            if let Some(master) = node(master, asked) {
                view.slots.push((first..=last, master));
            }
            for replica in replicas.iter().filter_map(|replica| node(replica, asked)) {
                if view.replicas.len() < NODES_MAX && !view.replicas.contains(&replica) {
                    view.replicas.push(replica);
                }
            }
        }
        Ok(view)
    }
}

impl Redirection {
    pub(super) fn read(error: &ServerError, asked: &Address) -> Option<Redirection> {
        let (slot, address) = error.details()?.split_once(' ')?;
        let slot: usize = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
        let (host, port) = address.rsplit_once(':')?;
        let to = Address::Tcp { host: host_or(host, asked)?, port: port.parse().ok()? };
        match error.code() {
            "MOVED" => Some(Redirection::Moved(slot, to)),
            "ASK" => Some(Redirection::Ask(to)),
            _ => None,
        }
    }
}

fn node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = value else { return None };
    let (host, port) = match &parts[..] {
        [Value::BulkString(host), Value::Int(port), ..] => (str::from_utf8(host).ok()?, port),
        [Value::Nil, Value::Int(port), ..] => ("", port),
        _ => return None,
    };
    Some(Address::Tcp { host: host_or(host, asked)?, port: u16::try_from(*port).ok()? })
}

/// A host, or that of the node that was asked, if it does not know its own.
fn host_or(host: &str, asked: &Address) -> Option<String> {
    let is_host =
        |host: &str| host.len() <= 255 && host.chars().all(|char| char.is_ascii_graphic());
    match (host, asked) {
        ("" | "?", Address::Tcp { host, .. }) => Some(host.clone()),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => is_host(host).then(|| host.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn of(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        let mut parts = vec![Value::Int(first), Value::Int(last)];
        parts.extend_from_slice(nodes);
        Value::Array(parts)
    }

    #[test]
    fn views() {
        let asked = tcp("seed.example", 7_000);
        let read = |ranges: Vec<Value>| View::read(&Value::Array(ranges), &asked).ok();
        let nodes = [of("10.0.0.1", 7_001), of("", 7_002)];
        let unknown = [Value::Array(vec![Value::Nil, Value::Int(7_003)])];
        assert_eq!(
            read(vec![range(0, 99, &nodes), range(100, 16_383, &unknown)]),
            Some(View {
                slots: vec![
                    (0..=99, tcp("10.0.0.1", 7_001)),
                    (100..=16_383, tcp("seed.example", 7_003))
                ],
                replicas: vec![tcp("seed.example", 7_002)],
            })
        );
        // No node can be reached there.
        let lost = read(vec![range(0, 99, &[of("a b", 1)]), range(1, 2, &[of("a", 70_000)])]);
        assert_eq!(lost, Some(View { slots: Vec::new(), replicas: Vec::new() }));
        for refused in [
            range(5, 4, &nodes),
            range(0, 16_384, &nodes),
            range(-1, 4, &nodes),
            range(0, 4, &[]),
            Value::Int(4),
        ] {
            assert_eq!(read(vec![refused.clone()]), None, "{refused:?}");
        }
        assert!(View::read(&Value::Okay, &asked).is_err());
    }
}
