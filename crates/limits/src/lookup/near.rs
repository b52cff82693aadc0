//! What may have been meant: the nearest spelling, and descriptors of the same entries that do meet a
//! rule.

use crate::{Found, Rules};
use tidegate_core::Entry;

/// Entries whose orders are all tried: 5! are 120 looks.
const ORDERS_MAX: usize = 5;

/// The name that is the fewest slips away: two at most, one for a word of two or three letters, and
/// none for a single letter, which is as near to any other.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|known| (strsim::damerau_levenshtein(name, known), known));
    let slips_max = match name.chars().count() {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    };
    near.min().filter(|(slips, _)| (1..=slips_max).contains(slips)).map(|(_, known)| known)
}

/// Descriptors of these entries that meet a rule: in another order, or without one of them.
pub(super) fn others(rules: &Rules, domain: &str, entries: &[Entry]) -> Vec<String> {
    let path_of = |entries: &[Entry]| match rules.find(domain, entries) {
        Found::Rule(found) => Some(found.rule.path.clone()),
        Found::NoRule | Found::UnknownDomain => None,
    };
    let mut hints = Vec::new();
    if entries.len() <= ORDERS_MAX {
        let found = orders(entries).into_iter().find_map(|order| Some((path_of(&order)?, order)));
        if let Some((path, order)) = found {
            hints.push(format!("in the order {} it would meet {path}", words(&order)));
        }
    }
    for left_out in 0..entries.len() {
        let mut fewer = entries.to_vec();
        let gone = fewer.remove(left_out);
        if let Some(path) = path_of(&fewer) {
            hints.push(format!("without {} it would meet {path}", words(&[gone])));
        }
    }
    hints
}

/// Entries as they are given on the command line.
pub fn words(entries: &[Entry]) -> String {
    let words = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    words.collect::<Vec<_>>().join(" ")
}

fn orders(entries: &[Entry]) -> Vec<Vec<Entry>> {
    let mut orders = vec![Vec::new()];
    for entry in entries {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<Entry>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, entry.clone());
                    order
                })
            })
            .collect();
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_two_slips_away_at_most() {
        for (name, expected) in [
            ("usre", Some("user")),
            ("uzer", Some("user")),
            ("u", None),
            ("user", Some("users")),
            ("client", None),
            ("", None),
            ("c", None),
            ("ap", Some("app")),
            ("ab", Some("b")),
            ("pap", Some("app")),
            ("xap", None),
        ] {
            let names = ["user", "users", "app", "b"].into_iter().filter(|known| *known != name);
            assert_eq!(nearest(name, names), expected, "for {name:?}");
        }
    }

    #[test]
    fn all_orders_are_tried() {
        let entries = ["a", "b", "c"].map(|key| Entry::new(key, "1"));
        let orders = orders(&entries);
        assert_eq!(orders.len(), 6);
        let mut told: Vec<String> = orders.iter().map(|order| words(order)).collect();
        told.sort();
        told.dedup();
        assert_eq!(told.len(), 6);
    }
}
