//! Suggestions: the nearest spelling, and descriptors of the same entries that do meet a rule.

use crate::compiled::{Lookup, Rules};
use crate::describe::key_values;
use tidegate_core::Entry;

/// Up to this many entries, all orders are tried: 5! are 120 lookups.
const ORDERS_MAX: usize = 5;

/// ` (did you mean …?)` if a name is near enough, otherwise nothing.
pub(super) fn suggestion<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(name, names).map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"))
}

/// The name with the smallest edit distance: two at most, one for a word of two or three letters. A single
/// letter has no nearest name, because every other letter is as near.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|known| (strsim::damerau_levenshtein(name, known), known));
    let distance_max = match name.chars().count() {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    };
    near.min().filter(|(distance, _)| (1..=distance_max).contains(distance)).map(|(_, known)| known)
}

/// Descriptors that meet a rule: these entries in another order, or without one of them.
pub(super) fn others(rules: &Rules, domain: &str, entries: &[Entry]) -> Vec<String> {
    let path_of = |entries: &[Entry]| match rules.find(domain, entries) {
        Lookup::Rule(found) => Some(found.rule.path.clone()),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    };
    let mut hints = Vec::new();
    if entries.len() <= ORDERS_MAX {
        let found = orders(entries).into_iter().find_map(|order| Some((path_of(&order)?, order)));
        if let Some((path, order)) = found {
            hints.push(format!("in the order {} it would meet {path}", key_values(&order)));
        }
    }
    for left_out in 0..entries.len() {
        let mut fewer = entries.to_vec();
        let gone = fewer.remove(left_out);
        if let Some(path) = path_of(&fewer) {
            hints.push(format!("without {} it would meet {path}", key_values(&[gone])));
        }
    }
    hints
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
    fn the_nearest_name_is_two_distance_away_at_most() {
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
        let mut lines: Vec<String> = orders.iter().map(|order| key_values(order)).collect();
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), 6);
    }
}
